/* A damaged step is always recognized, and the step before it is used. Every file is cut off at
 * every byte, grown, emptied and removed, and suffers ten thousand random flips of single bits. */
#include "fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint/manifest.h"

enum { FLIPS = 10000 };
static uint64_t random_seed;

/* The newest step must be refused as damaged, and the older one opened with a note that says so. */
static void assert_falls_back(const char *dir, const char *how, const char *name, int64_t where) {
    wefti_checkpoint *c = NULL;
    char *note = NULL;
    weft_status status = wefti_checkpoint_open(dir, WEFTI_CHECKPOINT_LATEST, &c, &note);
    if (status < 0)
        fail_msg("%s %s at %lld: %s", how, name, (long long)where, weft_error_message());
    if (wefti_checkpoint_meta_of(c)->step != 1 || !note)
        fail_msg("%s %s at %lld was not noticed", how, name, (long long)where);
    assert_non_null(strstr(note, "skipped step 2: "));
    wefti_free(note);
    wefti_checkpoint_close(c);
}

/* Files of step 2, split over shards so that an index exists. */
static char **damage_begin(const fixture *f, char dir[400], int64_t *out_count) {
    ASSERT_OK(write_step(f->dir, 1, 40));
    ASSERT_OK(write_step(f->dir, 2, 40));
    snprintf(dir, 400, "%s/step-000000000002", f->dir);
    char **names = NULL;
    ASSERT_OK(wefti_dir_list(dir, &names, out_count));
    assert_true(*out_count >= 6); /* config, index, manifest, two model shards, optimizer shards */
    return names;
}

static void cut_off_anywhere(void **state) {
    const fixture *f = *state;
    char dir[400];
    int64_t count = 0;
    char **names = damage_begin(f, dir, &count);
    for (int64_t i = 0; i < count; i++) {
        const char *path = path_in(dir, names[i]);
        size_t bytes = 0;
        unsigned char *data = get_file(path, &bytes);
        for (size_t keep = bytes; keep-- > 0;) {
            assert_int_equal(truncate(path, (off_t)keep), 0);
            assert_falls_back(f->dir, "cutting", names[i], (int64_t)keep);
        }
        data[bytes] = '\n';
        put_file(path, data, bytes + 1);
        assert_falls_back(f->dir, "growing", names[i], (int64_t)bytes);
        assert_int_equal(remove(path), 0);
        assert_falls_back(f->dir, "removing", names[i], 0);
        put_file(path, data, bytes);
        free(data);
        wefti_checkpoint *c = NULL; /* whole again: the newest is used again */
        ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
        assert_model(c, 2);
        wefti_checkpoint_close(c);
    }
    wefti_free(names);
}

/* In place: rewriting a file makes some file systems wait for the disk. */
static void flip(const char *path, int64_t at, int bits) {
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    unsigned char byte = 0;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte = (unsigned char)(byte ^ bits);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void random_flips(void **state) {
    const fixture *f = *state;
    char dir[400];
    int64_t count = 0;
    char **names = damage_begin(f, dir, &count);
    for (uint64_t i = 0; i < FLIPS; i++) {
        const char *name = names[wefti_philox_u32(random_seed, 0, i) % (uint64_t)count];
        const char *path = path_in(dir, name);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        int64_t at = wefti_philox_u32(random_seed, 1, i) % info.st_size;
        int bit = 1 << (wefti_philox_u32(random_seed, 2, i) % 8);
        flip(path, at, bit);
        assert_falls_back(f->dir, "flipping", name, at);
        flip(path, at, bit);
    }
    wefti_free(names);
}

enum { LARGE = 50000 }; /* elements: more than is read at once when a step is opened */

static wefti_checkpoint *open_large(const char *dir, char *out_path, size_t bytes) {
    static float values[LARGE];
    const wefti_checkpoint_meta meta = meta_of(1);
    const wefti_checkpoint_tensor tensor = {
        .name = "w", .desc = {WEFT_F32, 1, {LARGE}}, .data = values};
    wefti_checkpoint *c = NULL;
    ASSERT_OK(wefti_dir_make(dir));
    ASSERT_OK(wefti_checkpoint_write(dir, &meta, &tensor, 1, NULL, NULL));
    ASSERT_OK(wefti_checkpoint_open(dir, 1, &c, NULL));
    snprintf(out_path, bytes, "%s/%s", wefti_checkpoint_path(c), wefti_checkpoint_at(c, 0)->file);
    return c;
}

/* Reading a tensor that changed after opening is an error. Reading a tensor from a file that was
 * cut is an error that names the file; the process goes on. */
static void change_after_opening(void **state) {
    const fixture *f = *state;
    static float values[LARGE];
    char path[600];
    wefti_checkpoint *c = open_large(f->dir, path, sizeof path);
    const wefti_checkpoint_entry *e = wefti_checkpoint_at(c, 0);
    ASSERT_OK(wefti_checkpoint_read(c, e->role, "w", &e->desc, values));
    flip(path, e->at + e->bytes - 1, 4);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_read(c, e->role, "w", &e->desc, values));
    ASSERT_MESSAGE("changed|since");
    assert_int_equal(truncate(path, 100001), 0);
    ASSERT_STATUS(WEFT_E_IO, wefti_checkpoint_read(c, e->role, "w", &e->desc, values));
    ASSERT_MESSAGE("model.safetensors");
    wefti_checkpoint_close(c);
}

/* Manifests with the right checksum that lie. Each row replaces a text by another of any length. */
static const struct {
    const char *from, *to, *why;
} lies[] = {
    {"\"weft-checkpoint\"", "\"other\"", "not \"weft-checkpoint\""},
    {"\"step\": 2", "\"step\": -2", "less than 0"},
    {"\"step\": 2", "\"step\": 3", "holds step 3"},
    {"\"step\": 2", "\"step\": \"2\"", "whole"},
    {"\"step\": 2", "\"stop\": 2", "\"step\" is missing"},
    {"\"seed\": \"0x", "\"seed\": \"0X", "hexadecimal"},
    {"\"0.9,0.95\"", "[]", "text"},
    {"[[1, 4.25], ", "[[1, 4.25, 7], ", "[step, loss]"},
    {"[[1, 4.25], ", "[7, ", "[step, loss]"},
    {"\"fingerprint\": \"0x", "\"fingerprint\": \"0x0000000000000001\", \"other\": \"",
     "fingerprint"},
    {"\"name\": \"config.json\"", "\"name\": \"../config.json\"", "plain|file"},
    {"\"name\": \"config.json\"", "\"name\": \".config.json\"", "plain|file"},
    {"\"name\": \"config.json\"", "\"name\": \"absent.json\"", "is missing"},
    {"\"checked_bytes\": 23, ", "\"checked_bytes\": 24, ", "24 are checked"},
    {"\"checked_bytes\": 23, \"crc32c\": \"",
     "\"checked_bytes\": 0, \"crc32c\": \"00000000\", \"x\": \"", "checksum|covers"},
    {"\"role\": \"model\"", "\"role\": \"modal\"", "unknown role"},
    {"\"file\": 0", "\"file\": 77", "\"file\" is 77"},
    {"\"file\": 0", "\"file\": -1", "less than 0"},
    {"\"dtype\": \"F64\"", "\"dtype\": \"F65\"", "unknown dtype"},
    {"\"dtype\": \"F64\"", "\"dtype\": \"I64\"", "tensor|scale"},
    {"[5, 3]", "[5, -3]", "not possible"},
    {"[5, 3]", "[3, 5]", "fingerprint"},
    {"[5, 3]", "[1,1,1,1,1,1,1,1,15]", "rank 9"},
    {"\"layout\": \"replicated\"", "\"layout\": 1", "text"},
    {"\"files\": [", "\"files\": {\"x\": [", "not valid JSON"},
    {"\"losses\": [", "\"losses\": [[[[[[", "nested deeper"},
    {"{\"name\": \"step\", ", "{\"name\": \"h.0.attn.weight.m\", ", "hold|tensor"},
};

static void manifests_that_lie(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 2, 0));
    const char *path = path_in(f->dir, "step-000000000002/manifest.json");
    size_t bytes = 0;
    char *text = (char *)get_file(path, &bytes);
    text[bytes - WEFTI_MANIFEST_TAIL_BYTES] = '\0';
    char *version = strstr(text, "\"format_version\": 2");
    assert_non_null(version);
    version[strlen("\"format_version\": ")] = '1'; /* without a digest that finds each lie */
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char *at = strstr(text, lies[i].from), *file_path = strdup(path);
        if (!at) fail_msg("the manifest has no %s", lies[i].from);
        char *lie =
            wefti_format("%.*s%s%s", (int)(at - text), text, lies[i].to, at + strlen(lies[i].from));
        char tail[WEFTI_MANIFEST_TAIL_BYTES + 1];
        wefti_manifest_tail(lie, (int64_t)strlen(lie), tail);
        char *whole = wefti_format("%s%s", lie, tail);
        put_file(file_path, whole, strlen(whole));
        wefti_checkpoint *c = NULL;
        if (wefti_checkpoint_open(f->dir, 2, &c, NULL) != WEFT_E_CORRUPT)
            fail_msg("%s in place of %s was believed", lies[i].to, lies[i].from);
        ASSERT_MESSAGE(lies[i].why);
        wefti_free(whole);
        wefti_free(lie);
        free(file_path);
    }
    free(text);
}

int main(void) {
    random_seed = test_seed(5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cut_off_anywhere, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(random_flips, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(change_after_opening, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(manifests_that_lie, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
