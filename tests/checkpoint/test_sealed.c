/* Encrypted files and steps: any region reads as of the plain file; damage of any bit, frames and
 * files in wrong places, and wrong keys are found; no key and nonce are used twice. */
#include "fixture.h"

#include <pthread.h>
#include <sys/stat.h>

#include "checkpoint/seal/seal.h"
#include "checkpoint/tensor_set.h"
#include "weft/checkpoint.h"

#include "sealed_golden.inc"

enum { MOST = 5000, SMALL = 64 };

static const char key_text[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/* A file that only its owner can read. */
static const char *private_file(const fixture *f, const char *name, const char *text) {
    const char *path = path_in(f->root, name);
    put_file(path, text, strlen(text));
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

/* The key of which every byte has the value; not kept. */
static wefti_key key_of(const fixture *f, int value) {
    char text[80];
    wefti_key key;
    for (int i = 0; i < 32; i++) (void)snprintf(text + 2 * i, 3, "%02x", value);
    ASSERT_OK(wefti_key_read(private_file(f, "key", text), &key));
    return key;
}

static wefti_key kept_key(const fixture *f) {
    wefti_key key = key_of(f, 0x11);
    ASSERT_OK(wefti_key_keep(&key));
    return key;
}

/* ---- keys ---- */

static void assert_refused(weft_status wanted, const char *where, const char *message) {
    wefti_key key;
    weft_status status = wefti_key_read(where, &key);
    if (status != wanted || !strstr(weft_error_message(), message))
        fail_msg("%s: status %d, \"%s\"", where, (int)status, weft_error_message());
    assert_null(strstr(weft_error_message(), "0405060708"));
}

static void keys_come_from_private_files_and_variables(void **state) {
    const fixture *f = *state;
    char line[80], path[700], capitals[80];
    wefti_key a, b;
    (void)snprintf(line, sizeof line, "%s\n", key_text);
    (void)snprintf(path, sizeof path, "%s", private_file(f, "good", line));
    ASSERT_OK(wefti_key_read(path, &a));
    for (int i = 0; i < WEFTI_KEY_BYTES; i++) assert_int_equal(a.bytes[i], i);
    for (size_t i = 0; i < sizeof key_text; i++)
        capitals[i] = (char)(key_text[i] >= 'a' ? key_text[i] - 'a' + 'A' : key_text[i]);
    assert_int_equal(setenv("WEFT_TEST_KEY", capitals, 1), 0);
    ASSERT_OK(wefti_key_read("env:WEFT_TEST_KEY", &b));
    assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
    assert_true(a.number == b.number);
    assert_refused(WEFT_E_NOT_FOUND, "env:WEFT_TEST_NO_KEY", "WEFT_TEST_NO_KEY");
    assert_int_equal(setenv("WEFT_TEST_KEY", "00", 1), 0);
    assert_refused(WEFT_E_ARG, "env:WEFT_TEST_KEY", "64 hexadecimal");
    assert_refused(WEFT_E_NOT_FOUND, path_in(f->root, "none"), "none");
    assert_refused(WEFT_E_ARG, f->root, "plain file");
    assert_refused(WEFT_E_ARG, "", "env:");
    assert_refused(WEFT_E_ARG, key_text, "belongs");
    (void)snprintf(line, sizeof line, "%s0\n", key_text);
    assert_refused(WEFT_E_ARG, private_file(f, "long", line), "no key");
    (void)snprintf(line, sizeof line, "%.62szz", key_text);
    assert_refused(WEFT_E_ARG, private_file(f, "letters", line), "no key");
    assert_int_equal(chmod(path, 0640), 0);
    assert_refused(WEFT_E_ARG, path, "mode 0640");
    assert_int_equal(chmod(path, 0604), 0);
    assert_refused(WEFT_E_ARG, path, "chmod 600");
}

/* ---- files in memory ---- */

/* A file of `bytes` plain bytes. */
static void seal_bytes(const wefti_key *key, const wefti_seal_mark *mark, const char *name,
                       const unsigned char *plain, int64_t bytes, int64_t frame,
                       unsigned char **out, int64_t *out_bytes) {
    wefti_seal seal;
    ASSERT_OK(wefti_seal_make(key, mark, name, bytes, frame, &seal));
    ASSERT_OK(wefti_seal_text(&seal, plain, out, out_bytes));
    assert_int_equal(*out_bytes, wefti_seal_file_bytes(bytes, frame));
}

static weft_status open_bytes(const void *data, int64_t bytes, const char *name,
                              const wefti_seal_mark *mark, wefti_reader **out) {
    wefti_reader *raw;
    ASSERT_OK(wefti_reader_of(data, bytes, &raw));
    weft_status status = wefti_sealed_of(raw, name, mark, out);
    if (status < 0) wefti_reader_close(raw);
    return status;
}

/* The status of reading all bytes in one call. */
static weft_status read_whole(const void *data, int64_t bytes, const char *name,
                              const wefti_seal_mark *mark, unsigned char *to) {
    wefti_reader *reader;
    weft_status status = open_bytes(data, bytes, name, mark, &reader);
    if (status < 0) return status;
    status = wefti_reader_at(reader, 0, wefti_reader_bytes(reader), to);
    wefti_reader_close(reader);
    return status;
}

static void fill(unsigned char *to, int64_t bytes, uint64_t seed) {
    for (int64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)wefti_philox_u32(seed, 1, (uint64_t)i);
}

/* Another program has made this file from the description of the format. */
static void the_format_is_as_described(void **state) {
    const fixture *f = *state;
    unsigned char got[150], *sealed;
    int64_t bytes;
    wefti_key key;
    wefti_seal_mark mark = {.sealed = true};
    ASSERT_OK(wefti_key_read(private_file(f, "golden", key_text), &key));
    ASSERT_OK(wefti_key_keep(&key));
    ASSERT_OK(read_whole(golden, sizeof golden, "some/where/golden.txt", NULL, got));
    for (int i = 0; i < 150; i++) assert_int_equal(got[i], (i * 7 + 3) & 255);
    for (int i = 0; i < 32; i++) mark.salt[i] = (unsigned char)(64 + i);
    seal_bytes(&key, &mark, "golden.txt", got, 150, SMALL, &sealed, &bytes);
    assert_int_equal(bytes, sizeof golden);
    assert_memory_equal(sealed, golden, sizeof golden);
    wefti_free(sealed);
}

/* Random sizes, frames and regions. */
static void regions_read_as_of_the_plain_file(void **state) {
    const fixture *f = *state;
    const uint64_t seed = 20261127;
    static unsigned char plain[MOST], got[MOST];
    const wefti_key key = kept_key(f);
    print_message("seed %llu\n", (unsigned long long)seed);
    fill(plain, MOST, seed);
    for (uint64_t round = 0; round < 60; round++) {
        const int64_t frame = 64 + 16 * (int64_t)(wefti_philox_u32(seed, 2, round) % 20);
        const int64_t bytes = round < 4 ? (int64_t)round / 2 * frame + (round & 1 ? 1 : 0)
                                        : (int64_t)(wefti_philox_u32(seed, 3, round) % MOST);
        wefti_seal_mark mark;
        unsigned char *sealed;
        int64_t sealed_bytes;
        wefti_reader *reader;
        ASSERT_OK(wefti_seal_mark_make(&mark));
        seal_bytes(&key, &mark, "file", plain, bytes, frame, &sealed, &sealed_bytes);
        ASSERT_OK(open_bytes(sealed, sealed_bytes, "x/file", &mark, &reader));
        assert_int_equal(wefti_reader_bytes(reader), bytes);
        for (uint64_t k = 0; k < 40; k++) {
            const uint64_t number = round * 40 + k;
            const int64_t at = bytes ? wefti_philox_u32(seed, 4, number) % bytes : 0,
                          n = wefti_philox_u32(seed, 5, number) % (bytes - at + 1);
            memset(got, 0xa5, sizeof got);
            ASSERT_OK(wefti_reader_at(reader, at, n, got));
            assert_memory_equal(got, plain + at, (size_t)n);
            if (n < MOST) assert_int_equal(got[n], 0xa5);
        }
        wefti_reader_close(reader);
        wefti_free(sealed);
    }
}

typedef struct reading {
    const wefti_reader *reader;
    const unsigned char *plain;
    uint64_t stream;
    bool same;
} reading;

static void *read_regions(void *argument) {
    reading *r = argument;
    static _Thread_local unsigned char got[MOST];
    r->same = true;
    for (uint64_t k = 0; k < 300; k++) {
        const int64_t at = wefti_philox_u32(7, r->stream, k) % MOST,
                      n = wefti_philox_u32(8, r->stream, k) % (MOST - at + 1);
        r->same &=
            wefti_reader_at(r->reader, at, n, got) >= 0 && !memcmp(got, r->plain + at, (size_t)n);
    }
    return NULL;
}

static void threads_share_a_reader(void **state) {
    const fixture *f = *state;
    enum { THREADS = 4 };
    static unsigned char plain[MOST];
    const wefti_key key = kept_key(f);
    wefti_seal_mark mark;
    unsigned char *sealed;
    int64_t bytes;
    wefti_reader *reader;
    pthread_t threads[THREADS];
    reading readings[THREADS];
    fill(plain, MOST, 3);
    ASSERT_OK(wefti_seal_mark_make(&mark));
    seal_bytes(&key, &mark, "file", plain, MOST, 256, &sealed, &bytes);
    ASSERT_OK(open_bytes(sealed, bytes, "file", &mark, &reader));
    for (int i = 0; i < THREADS; i++) {
        readings[i] = (reading){reader, plain, (uint64_t)i, false};
        assert_int_equal(pthread_create(&threads[i], NULL, read_regions, &readings[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(readings[i].same);
    }
    wefti_reader_close(reader);
    wefti_free(sealed);
}

/* Each bit of a small file, also of its header; each length; frames that change places. */
static void damage_is_found(void **state) {
    const fixture *f = *state;
    enum { BYTES = 3 * SMALL + 10 };
    static unsigned char plain[BYTES], got[2 * BYTES];
    const wefti_key key = kept_key(f);
    wefti_seal_mark mark, another;
    unsigned char *sealed, *other, *longer;
    int64_t bytes;
    const size_t frame = SMALL + WEFTI_SEAL_TAG_BYTES;
    fill(plain, BYTES, 4);
    ASSERT_OK(wefti_seal_mark_make(&mark));
    ASSERT_OK(wefti_seal_mark_make(&another));
    seal_bytes(&key, &mark, "file", plain, BYTES, SMALL, &sealed, &bytes);
    ASSERT_OK(read_whole(sealed, bytes, "file", &mark, got));
    assert_memory_equal(got, plain, BYTES);
    for (int64_t i = 0; i < bytes * 8; i++) {
        memset(got, 0, sizeof got);
        sealed[i / 8] ^= (unsigned char)(1 << i % 8);
        weft_status status = read_whole(sealed, bytes, "file", &mark, got);
        sealed[i / 8] ^= (unsigned char)(1 << i % 8);
        const bool number = i / 8 >= 24 && i / 8 < 32, version = i / 8 >= 8 && i / 8 < 12;
        const weft_status wanted = number ? WEFT_E_ARG : version ? WEFT_E_NO_IMPL : WEFT_E_CORRUPT;
        if (status != wanted)
            fail_msg("bit %lld: status %d, \"%s\"", (long long)i, (int)status,
                     weft_error_message());
    }
    for (int64_t n = 0; n < bytes; n++)
        ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(sealed, n, "file", &mark, got));
    longer = calloc(1, (size_t)bytes + frame);
    memcpy(longer, sealed, (size_t)bytes);
    for (size_t n = 1; n <= frame; n++)
        ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(longer, bytes + (int64_t)n, "file", &mark, got));
    /* two frames of one file, and a frame of another file of the same place and size */
    memcpy(longer + 64, sealed + 64 + frame, frame);
    memcpy(longer + 64 + frame, sealed + 64, frame);
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(longer, bytes, "file", &mark, got));
    ASSERT_MESSAGE("damaged|the tag");
    memcpy(longer, sealed, (size_t)bytes);
    seal_bytes(&key, &mark, "other", plain, BYTES, SMALL, &other, &bytes);
    memcpy(longer + 64 + frame, other + 64 + frame, frame);
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(longer, bytes, "file", &mark, got));
    /* a file under another's name; a file of another folder; a plain one */
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(other, bytes, "file", &mark, got));
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(sealed, bytes, "file", &another, got));
    ASSERT_MESSAGE("another checkpoint");
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(plain, BYTES, "file", &mark, got));
    ASSERT_MESSAGE("not encrypted");
    mark.sealed = false;
    ASSERT_STATUS(WEFT_E_CORRUPT, read_whole(sealed, bytes, "file", &mark, got));
    free(longer);
    wefti_free(other);
    wefti_free(sealed);
}

static void wrong_keys_are_told_from_damage(void **state) {
    const fixture *f = *state;
    static const unsigned char plain[] = "weights";
    const wefti_key key = kept_key(f), unknown = key_of(f, 0x22);
    wefti_seal_mark mark;
    unsigned char *sealed, got[16];
    int64_t bytes;
    char number[32];
    ASSERT_OK(wefti_seal_mark_make(&mark));
    seal_bytes(&unknown, &mark, "file", plain, sizeof plain, SMALL, &sealed, &bytes);
    ASSERT_STATUS(WEFT_E_ARG, read_whole(sealed, bytes, "file", &mark, got));
    (void)snprintf(number, sizeof number, "%016llx", (unsigned long long)unknown.number);
    ASSERT_MESSAGE(number);
    (void)snprintf(number, sizeof number, "%016llx", (unsigned long long)key.number);
    ASSERT_MESSAGE(number);
    ASSERT_OK(wefti_key_keep(&unknown));
    ASSERT_OK(wefti_key_keep(&unknown));
    ASSERT_OK(read_whole(sealed, bytes, "file", &mark, got));
    assert_memory_equal(got, plain, sizeof plain);
    wefti_free(sealed);
}

/* ---- steps ---- */

static weft_status write_sealed(const char *dir, int64_t step, const wefti_key *key) {
    model m;
    model_make(&m, (uint64_t)step);
    wefti_checkpoint_meta meta = meta_of(step);
    wefti_checkpoint_options options = options_of(40);
    options.key = key;
    return wefti_checkpoint_write(dir, &meta, m.tensors, MODEL_TENSORS, &options, NULL);
}

static const char *step_file(const fixture *f, int64_t step, const char *name) {
    char folder[64];
    (void)snprintf(folder, sizeof folder, "step-%012lld", (long long)step);
    return path_in(path_in(f->dir, folder), name);
}

static bool holds(const unsigned char *data, size_t bytes, const void *what, size_t length) {
    for (size_t i = 0; i + length <= bytes; i++)
        if (!memcmp(data + i, what, length)) return true;
    return false;
}

/* Calls `see` for each file of a step. */
static void each_file(const fixture *f, int64_t step, void (*see)(const char *path, void *to),
                      void *to) {
    char **names = NULL;
    int64_t count = 0;
    ASSERT_OK(wefti_dir_list(step_file(f, step, "."), &names, &count));
    assert_true(count >= 6);
    for (int64_t i = 0; i < count; i++) see(step_file(f, step, names[i]), to);
    wefti_free(names);
}

static void see_nothing_plain(const char *path, void *to) {
    const model *m = to;
    size_t bytes;
    unsigned char *data = get_file(path, &bytes);
    if (!wefti_seal_is(data, (int64_t)bytes)) fail_msg("%s is not encrypted", path);
    assert_false(holds(data, bytes, "model_type", 10));
    assert_false(holds(data, bytes, "attn", 4));
    for (int i = 0; i < MODEL_TENSORS; i++)
        if (weft_desc_bytes(&m->tensors[i].desc) >= 8)
            assert_false(holds(data, bytes, m->bytes[i], 8));
    free(data);
}

static void steps_are_encrypted_and_read(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    wefti_checkpoint *c;
    wefti_tensor_set *set;
    char *a, *b, *note;
    model m;
    ASSERT_OK(write_sealed(f->dir, 3, &key));
    model_make(&m, 3);
    each_file(f, 3, see_nothing_plain, &m);
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
    assert_null(note);
    assert_model(c, 3);
    wefti_checkpoint_close(c);
    ASSERT_OK(wefti_checkpoint_verify(step_file(f, 3, ".")));
    ASSERT_OK(wefti_tensor_set_open(step_file(f, 3, "."), &set)); /* as a model directory */
    assert_int_equal(wefti_tensor_set_count(set), 4);
    wefti_tensor_set_close(set);
    ASSERT_OK(weft_checkpoint_digest(f->dir, NULL, 1, &a));
    ASSERT_OK(wefti_remove_tree(f->dir));
    ASSERT_OK(write_step(f->dir, 3, 40));
    ASSERT_OK(weft_checkpoint_digest(f->dir, NULL, 1, &b));
    assert_string_equal(strstr(a, "digest"), strstr(b, "digest"));
    weft_checkpoint_text_free(a);
    weft_checkpoint_text_free(b);
}

typedef struct tags {
    unsigned char seen[200][WEFTI_SEAL_TAG_BYTES];
    int count;
} tags;

/* Equal keys and nonces would give equal tags, as the contents are equal. */
static void see_tags(const char *path, void *to) {
    tags *t = to;
    size_t bytes;
    unsigned char *data = get_file(path, &bytes);
    assert_true(t->count < 200);
    memcpy(t->seen[t->count++], data + bytes - WEFTI_SEAL_TAG_BYTES, WEFTI_SEAL_TAG_BYTES);
    free(data);
}

static void no_nonce_is_used_twice(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    static tags t;
    for (int i = 0; i < 4; i++) {
        ASSERT_OK(write_sealed(f->dir, 3, &key));
        each_file(f, 3, see_tags, &t);
    }
    for (int i = 0; i < t.count; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(t.seen[i], t.seen[k], WEFTI_SEAL_TAG_BYTES);
}

/* A wrong key is not damage: it does not fall back to an older step. */
static void a_step_of_another_key_is_refused(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f), unknown = key_of(f, 0x33);
    wefti_checkpoint *c;
    int64_t *steps, count;
    char *text;
    ASSERT_OK(write_sealed(f->dir, 1, &key));
    ASSERT_OK(write_step(f->dir, 2, 0));
    ASSERT_OK(write_sealed(f->dir, 3, &unknown));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    ASSERT_MESSAGE("encrypted|key");
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_open_unread(f->dir, INT64_MAX, &c, NULL));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_list(f->dir, &steps, &count));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_prune(f->dir, 1));
    ASSERT_STATUS(WEFT_E_ARG, weft_checkpoint_verify(f->dir, 0, &text));
    ASSERT_STATUS(WEFT_E_ARG,
                  weft_checkpoint_reshard(f->dir, path_in(f->root, "to"), NULL, 0, &text));
    assert_false(wefti_exists(path_in(f->root, "to")));
    for (int64_t s = 1; s < 3; s++) {
        ASSERT_OK(wefti_checkpoint_open(f->dir, s, &c, NULL));
        assert_model(c, (uint64_t)s);
        wefti_checkpoint_close(c);
    }
    ASSERT_OK(wefti_key_keep(&unknown));
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    assert_model(c, 3);
    wefti_checkpoint_close(c);
}

static void copy_file(const char *from, const char *to) {
    size_t bytes;
    unsigned char *data = get_file(from, &bytes);
    put_file(to, data, bytes);
    free(data);
}

/* Files of another step, or plain ones, in an encrypted step; then the step before is taken. */
static void files_of_other_steps_are_refused(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    const char *names[] = {"config.json", "model-00001-of-00003.safetensors", "manifest.json"};
    wefti_checkpoint *c;
    char *note;
    for (int plain = 0; plain < 2; plain++)
        for (int i = 0; i < 3; i++) {
            ASSERT_OK(write_sealed(f->dir, 1, &key));
            ASSERT_OK(write_sealed(f->dir, 2, &key));
            ASSERT_OK(plain ? write_step(f->dir, 5, 40) : write_sealed(f->dir, 5, &key));
            char from[700];
            (void)snprintf(from, sizeof from, "%s", step_file(f, 5, names[i]));
            if (!wefti_exists(from)) fail_msg("no %s", from);
            copy_file(from, step_file(f, 2, names[i]));
            ASSERT_OK(wefti_remove_tree(step_file(f, 5, "")));
            ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
            assert_model(c, 1);
            wefti_checkpoint_close(c);
            assert_non_null(note);
            assert_non_null(strstr(note, plain ? "encrypted" : "another checkpoint"));
            wefti_free(note);
        }
}

/* Flips a byte of each file of a step in turn. */
static void damaged_steps_are_skipped(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    char **names = NULL;
    int64_t count = 0;
    wefti_checkpoint *c;
    ASSERT_OK(write_sealed(f->dir, 1, &key));
    ASSERT_OK(write_sealed(f->dir, 2, &key));
    ASSERT_OK(wefti_dir_list(step_file(f, 2, "."), &names, &count));
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const char *path = step_file(f, 2, names[i]);
        unsigned char *data = get_file(path, &bytes);
        for (size_t at = WEFTI_SEAL_HEADER_BYTES - 8; at < bytes; at += 23) {
            char *note = NULL;
            data[at] ^= 0x10;
            put_file(path, data, bytes);
            data[at] ^= 0x10;
            ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
            assert_int_equal(wefti_checkpoint_meta_of(c)->step, 1);
            assert_non_null(note);
            wefti_checkpoint_close(c);
            wefti_free(note);
        }
        put_file(path, data, bytes);
        free(data);
    }
    wefti_free(names);
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    assert_model(c, 2);
    wefti_checkpoint_close(c);
}

static void several_processes_do_not_share_files(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    const wefti_checkpoint_duty duties[] = {WEFTI_CHECKPOINT_LEADS, WEFTI_CHECKPOINT_JOINS};
    model m;
    model_make(&m, 1);
    wefti_checkpoint_meta meta = meta_of(1);
    wefti_checkpoint_options options = options_of(0);
    wefti_checkpoint_job *job;
    options.key = &key;
    for (int i = 0; i < 2; i++) {
        options.duty = duties[i];
        ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_begin(f->dir, &meta, m.tensors, MODEL_TENSORS,
                                                         &options, &job));
    }
    assert_false(wefti_exists(f->dir));
}

/* Each call of the file system and each allocation fails in turn. */
static void failures_leave_the_step_before(void **state) {
    const fixture *f = *state;
    const wefti_key key = kept_key(f);
    const wefti_fault_kind kinds[] = {WEFTI_FAULT_IO, WEFTI_FAULT_ALLOC};
    ASSERT_OK(write_sealed(f->dir, 1, &key));
    for (int k = 0; k < 2; k++) {
        bool failed = true;
        for (int64_t nth = 0; failed; nth++) {
            wefti_checkpoint *c = NULL;
            wefti_fault_arm(kinds[k], nth, false, 5);
            weft_status written = write_sealed(f->dir, 2, &key), opened = WEFT_OK;
            failed = wefti_fault_count(kinds[k]) > nth;
            wefti_fault_arm(kinds[k], -1, false, 0);
            assert_true(written >= 0 || written == WEFT_E_IO || written == WEFT_E_NOMEM);
            ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
            const int64_t step = wefti_checkpoint_meta_of(c)->step;
            assert_int_equal(step, written >= 0 ? 2 : step);
            assert_model(c, (uint64_t)step);
            wefti_checkpoint_close(c);
            c = NULL;
            wefti_fault_arm(kinds[k], nth, false, 5);
            opened = wefti_checkpoint_open(f->dir, step, &c, NULL);
            failed |= wefti_fault_count(kinds[k]) > nth;
            wefti_fault_arm(kinds[k], -1, false, 0);
            assert_true(opened >= 0 || opened == WEFT_E_IO || opened == WEFT_E_NOMEM);
            if (opened >= 0) wefti_checkpoint_close(c);
            ASSERT_OK(wefti_remove_tree(step_file(f, 2, "")));
        }
    }
}

/* ---- a build without OpenSSL ---- */

static void a_build_without_openssl_refuses(void **state) {
    const fixture *f = *state;
    unsigned char got[150];
    assert_refused(WEFT_E_NO_IMPL, private_file(f, "key", key_text), "without OpenSSL");
    assert_refused(WEFT_E_NO_IMPL, "env:WEFT_TEST_KEY", "without OpenSSL");
    ASSERT_STATUS(WEFT_E_NO_IMPL, read_whole(golden, sizeof golden, "golden.txt", NULL, got));
    ASSERT_MESSAGE("is encrypted");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)
    static const struct CMUnitTest with[] = {TEST(keys_come_from_private_files_and_variables),
                                             TEST(the_format_is_as_described),
                                             TEST(regions_read_as_of_the_plain_file),
                                             TEST(threads_share_a_reader),
                                             TEST(damage_is_found),
                                             TEST(wrong_keys_are_told_from_damage),
                                             TEST(steps_are_encrypted_and_read),
                                             TEST(no_nonce_is_used_twice),
                                             TEST(a_step_of_another_key_is_refused),
                                             TEST(files_of_other_steps_are_refused),
                                             TEST(damaged_steps_are_skipped),
                                             TEST(several_processes_do_not_share_files),
                                             TEST(failures_leave_the_step_before)},
                                   without[] = {TEST(a_build_without_openssl_refuses)};
#ifdef WEFT_HAVE_OPENSSL
    (void)without;
    return cmocka_run_group_tests(with, NULL, NULL);
#else
    (void)with;
    return cmocka_run_group_tests(without, NULL, NULL);
#endif
}
