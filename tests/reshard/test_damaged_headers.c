/* Headers of slices and of torch's shards with a byte changed, and files that are cut. No such
 * input may crash, take memory by the sizes that it claims, or be read as something else than it
 * says. weft-test: threads */
#include "fixture.h"

#include "dcp_shards.inc"

/* The file under test: its good bytes, and a copy to change. */
typedef struct victim {
    const char *dir, *path;
    unsigned char *good, *bad;
    size_t bytes, header;
} victim;

static void take(victim *v, const char *dir, const char *path) {
    uint64_t header = 0;
    *v = (victim){.dir = dir, .path = path};
    v->good = get_file(path, &v->bytes);
    v->bad = malloc(v->bytes);
    assert_non_null(v->bad);
    for (int i = 0; i < 8; i++) header |= (uint64_t)v->good[i] << 8 * i;
    v->header = (size_t)header + 8;
    assert_true(v->header < v->bytes);
}

static void give_back(victim *v) {
    put_file(v->path, v->good, v->bytes);
    free(v->good);
    free(v->bad);
}

/* Change `kind` of a byte: a digit becomes another digit, a sign another sign of JSON, and any byte
 * any other one. */
enum { CHANGES = 3 };
static unsigned char changed(unsigned char byte, size_t at, int kind) {
    static const char signs[] = "{}[]:,\"\\ 0";
    const unsigned char digit = (unsigned char)('0' + (byte + 3 + (int)(at % 9)) % 10);
    const unsigned char sign = (unsigned char)signs[(at + byte) % (sizeof signs - 1)];
    const unsigned char other = (unsigned char)(byte ^ (1 + at * 37 % 255));
    if (kind == 0 && byte >= '0' && byte <= '9') return digit;
    return kind == 1 ? sign : other;
}

/* Refused with a reason in words, by a status that says so of files. */
static void assert_refused(const victim *v, weft_status status, size_t at, const char *what) {
    switch (status) {
    case WEFT_E_CORRUPT:
    case WEFT_E_NOT_FOUND:
    case WEFT_E_MISMATCH:
    case WEFT_E_SHAPE:
    case WEFT_E_NO_IMPL:
    case WEFT_E_ARG:
        if (weft_error_message()[0]) return;
        break;
    default:
        break;
    }
    fail_msg("byte %zu of %s %s: status %d, \"%s\"", at, v->path, what, status,
             weft_error_message());
}

/* What an accepted input must satisfy; it may be refused as well. */
typedef void accepted(const fixture *f, const victim *v, size_t at, const char *digest);

static weft_status digest_of(const char *dir, char out[32]) {
    char *text = NULL;
    weft_status status = weft_checkpoint_digest(dir, NULL, 1, &text);
    if (status < 0) return status;
    const char *at = strstr(text, "\"digest\": \"");
    assert_non_null(at);
    (void)snprintf(out, 32, "%.18s", at + 11);
    weft_checkpoint_text_free(text);
    return WEFT_OK;
}

/* Returns how many changes were accepted. */
static int64_t change_each_byte(const fixture *f, const victim *v, accepted *check) {
    char digest[32];
    int64_t count = 0;
    for (size_t at = 0; at < v->header; at++)
        for (int kind = 0; kind < CHANGES; kind++) {
            memcpy(v->bad, v->good, v->bytes);
            v->bad[at] = changed(v->good[at], at, kind);
            if (v->bad[at] == v->good[at]) continue;
            put_file(v->path, v->bad, v->bytes);
            weft_status status = digest_of(v->dir, digest);
            if (status < 0) {
                assert_refused(v, status, at, "changed");
                continue;
            }
            count++;
            check(f, v, at, digest);
        }
    put_file(v->path, v->good, v->bytes);
    return count;
}

static void cut_at_each_byte(const victim *v) {
    char digest[32];
    for (size_t at = 0; at < v->bytes; at += at < v->header ? 1 : 61) {
        put_file(v->path, v->good, at);
        weft_status status = digest_of(v->dir, digest);
        if (status >= 0) fail_msg("%s is accepted with %zu bytes", v->path, at);
        assert_refused(v, status, at, "cut");
    }
    put_file(v->path, v->good, v->bytes);
}

/* ---- slices of weft ---- */

/* Slices carry the checksums of their step, so what is accepted has the values of the step. */
static void has_the_digest(const fixture *f, const victim *v, size_t at, const char *digest) {
    char expected[32];
    digest_text(f->dir, NULL, expected);
    if (strcmp(digest, expected) != 0)
        fail_msg("byte %zu of %s changed: read as %s, not refused", at, v->path, digest);
}

static const char emb_strategy[] = "{\"parallel_layout_item\": {\"emb.weight\": {\"dev_matrix\": "
                                   "[2], \"tensor_map\": [0, -1]}}}";

static const char *make_slices(const fixture *f) {
    const char *dir = in(f, "slices");
    write_run(f);
    put_file(in(f, "s.json"), emb_strategy, sizeof emb_strategy - 1);
    ASSERT_OK(reshard(f->dir, dir, NULL, in(f, "s.json")));
    return dir;
}

static void test_slices(void **state) {
    const fixture *f = *state;
    const char *dir = make_slices(f);
    for (int rank = 0; rank < 2; rank++) {
        char name[64];
        victim v;
        (void)snprintf(name, sizeof name, "slices/rank_%d/checkpoint_%d.safetensors", rank, rank);
        take(&v, dir, in(f, name));
        int64_t count = change_each_byte(f, &v, has_the_digest);
        print_message("%s: %lld changes of %zu bytes are accepted\n", name, (long long)count,
                      v.header);
        cut_at_each_byte(&v);
        give_back(&v);
    }
    char digest[32]; /* the files are as they were */
    ASSERT_OK(digest_of(dir, digest));
    has_the_digest(f, &(victim){.path = dir}, 0, digest);
}

/* The manifest beside the slices has a checksum of its own. */
static void test_carried_manifest(void **state) {
    const fixture *f = *state;
    const char *dir = make_slices(f);
    victim v = {.dir = dir, .path = in(f, "slices/weft-step.json")};
    v.good = get_file(v.path, &v.bytes);
    v.bad = malloc(v.bytes);
    assert_non_null(v.bad);
    v.header = v.bytes;
    assert_int_equal(change_each_byte(f, &v, has_the_digest), 0);
    cut_at_each_byte(&v);
    give_back(&v);
}

/* ---- shards of torch ---- */

/* torch writes no checksums: a changed name or type is what the file says. Then the whole tensors
 * that weft makes of the shards are those that it has read. */
static void converts_to_what_was_read(const fixture *f, const victim *v, size_t at,
                                      const char *digest) {
    const char *out = in(f, "out");
    char got[32];
    if (reshard(v->dir, out, NULL, NULL) < 0)
        fail_msg("byte %zu of %s changed: it has a digest, but cannot be converted: %s", at,
                 v->path, weft_error_message());
    ASSERT_OK(digest_of(out, got));
    if (strcmp(got, digest) != 0)
        fail_msg("byte %zu of %s changed: %s becomes %s", at, v->path, digest, got);
    ASSERT_OK(wefti_remove_tree(out));
}

static void test_torch_shards(void **state) {
    const fixture *f = *state;
    const char *dir = in(f, "dcp");
    static const char *const names[] = {"dcp/shard-00001-model-00001-of-00001.safetensors",
                                        "dcp/shard-00002-model-00001-of-00001.safetensors"};
    ASSERT_OK(wefti_dir_make(dir));
    put_file(in(f, names[0]), dcp_shard_1, sizeof dcp_shard_1);
    put_file(in(f, names[1]), dcp_shard_2, sizeof dcp_shard_2);
    for (int k = 0; k < 2; k++) {
        victim v;
        take(&v, dir, in(f, names[k]));
        int64_t count = change_each_byte(f, &v, converts_to_what_was_read);
        print_message("%s: %lld changes of %zu bytes are accepted\n", names[k], (long long)count,
                      v.header);
        cut_at_each_byte(&v);
        give_back(&v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slices, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_carried_manifest, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_torch_shards, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
