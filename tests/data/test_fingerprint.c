/* Fingerprints of data: equal for equal data, and a difference is named. */
#include "data_fixture.h"

#include <unistd.h>

#include "data/fingerprint.h"
#include "weft/data.h"

static char *fingerprint_of(const weft_data_options *o) {
    weft_data *data;
    const char *text;
    ASSERT_OK(weft_data_open(o, &data));
    ASSERT_OK(wefti_data_fingerprint(data, &text));
    char *copy = wefti_strdup(text);
    weft_data_close(data);
    return copy;
}

static bool same_prints(const char *a, const char *b, const char *facts) {
    char difference[WEFTI_DATA_DIFFERENCE];
    if (wefti_data_same(a, b, WEFTI_DATA_ALL, "on rank 1", "on rank 0", difference)) return true;
    if (facts && !has_facts(difference, facts)) fail_msg("'%s' lacks '%s'", difference, facts);
    return false;
}

/* A copy under another name has the same fingerprint; one changed, added or exchanged byte of any
 * file gives another, and the difference names the file. */
static void fingerprints_tell_data_apart(void **state) {
    (void)state;
    static const char *const formats[] = {"raw", "jsonl", "tokens", "npy"};
    TEST_SEEDS(seed, 1, 60) {
        const int f = (int)(seed % 4), files = 1 + (int)(seed / 4 % 3);
        char *prints[3];
        const int changed = (int)(wefti_philox_u32(seed, 1, 0) % (uint32_t)files);
        for (int copy = 0; copy < 3; copy++) { /* the second is equal, the third is changed */
            char directory[32], name[64];
            (void)snprintf(directory, sizeof directory, "copy%d", copy);
            ASSERT_OK(wefti_dir_make(in_root(directory)));
            for (int i = 0; i < files; i++) {
                buffer b = {.count = 0};
                unsigned char values[256];
                for (int k = 0; k < 256; k++)
                    values[k] =
                        (unsigned char)('a' +
                                        wefti_philox_u32(seed, 2, (uint64_t)(256 * i + k)) % 26);
                if (copy == 2 && i == changed) {
                    unsigned char *at = &values[wefti_philox_u32(seed, 3, 0) % 256];
                    *at = *at == 'a' ? 'b' : 'a';
                }
                if (f == 2)
                    put_shard(&b, 20240520, 1, 128, values, 256);
                else if (f == 3)
                    put_npy(&b, 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (128,), }",
                            values, 256);
                else if (f == 1) {
                    put_bytes(&b, "{\"text\": \"", 10);
                    put_bytes(&b, values, 256);
                    put_bytes(&b, "\"}\n", 3);
                } else
                    put_bytes(&b, values, 256);
                (void)snprintf(name, sizeof name, "%s/%c.x", directory, 'a' + i);
                (void)put_file(name, b.bytes, (size_t)b.count);
            }
            const weft_data_options o = WEFT_STRUCT(weft_data_options, .format = formats[f],
                                                    .path = in_root(directory), .context = 4);
            prints[copy] = fingerprint_of(&o);
        }
        char facts[64];
        (void)snprintf(facts, sizeof facts, "training data|rank 0|rank 1|other content|%c.x",
                       'a' + changed);
        if (!same_prints(prints[0], prints[1], NULL))
            fail_msg("copies differ: %s%s", prints[0], prints[1]);
        if (same_prints(prints[0], prints[2], facts)) fail_msg("not told apart: %s", prints[0]);
        for (int copy = 0; copy < 3; copy++) {
            char directory[32];
            (void)snprintf(directory, sizeof directory, "copy%d", copy);
            ASSERT_OK(wefti_remove_tree(in_root(directory)));
            wefti_free(prints[copy]);
        }
    }
}

/* Of a large file, elements at fixed positions count, its size and its name. */
static void large_files_are_sampled(void **state) {
    (void)state;
    enum { LARGE = 100 << 20 };
    static const struct {
        const char *name;
        int64_t bytes, at; /* a byte that is not 0; -1: none */
        const char *facts; /* NULL: as the first */
    } cases[] = {{"a/large", LARGE, -1, NULL},
                 {"b/large", LARGE, -1, NULL},
                 {"b/large", LARGE, 0, "large|other content"},
                 {"b/large", LARGE, LARGE - 1, "large|other content"},
                 {"b/large", LARGE, 3, "large|other content"},
                 {"b/large", LARGE + 1, -1, "large|104857600|104857601"},
                 {"b/other", LARGE, -1, "large|other"}};
    char *first = NULL;
    ASSERT_OK(wefti_dir_make(in_root("a")));
    ASSERT_OK(wefti_dir_make(in_root("b")));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = put_file(cases[i].name, "", 0);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(ftruncate(fileno(file), cases[i].bytes), 0);
        if (cases[i].at >= 0) assert_int_equal(pwrite(fileno(file), "x", 1, cases[i].at), 1);
        assert_int_equal(fclose(file), 0);
        char *print = fingerprint_of(
            &WEFT_STRUCT(weft_data_options, .format = "raw", .path = path, .context = 8));
        if (first && same_prints(print, first, cases[i].facts) != !cases[i].facts)
            fail_msg("case %d: %s%s", (int)i, print, first);
        if (first)
            wefti_free(print);
        else
            first = print;
    }
    wefti_free(first);
}

/* Thousands of files need few rows, and still name the place. A fingerprint may come from anywhere:
 * one that is cut or damaged is another one. */
static void many_files_and_damaged_rows(void **state) {
    (void)state;
    char name[64], *prints[2];
    for (int copy = 0; copy < 2; copy++) {
        ASSERT_OK(wefti_dir_make(in_root("many")));
        for (int i = 0; i < 300; i++) {
            char text[16];
            (void)snprintf(name, sizeof name, "many/%03d.txt", i);
            (void)snprintf(text, sizeof text, "text %d\n", copy && i == 222 ? 999 : i);
            (void)put_file(name, text, strlen(text));
        }
        prints[copy] = fingerprint_of(&WEFT_STRUCT(weft_data_options, .format = "text",
                                                   .path = in_root("many"), .context = 4));
        ASSERT_OK(wefti_remove_tree(in_root("many")));
    }
    assert_true(strlen(prints[0]) < 8000);
    assert_false(same_prints(prints[0], prints[1], "training data|220.txt|other content"));
    for (size_t cut = 0; cut + 80 < strlen(prints[0]); cut += 7) {
        char *part = wefti_strdup(prints[0]);
        part[cut] = 0;
        assert_false(same_prints(prints[0], part, NULL));
        assert_false(same_prints(part, prints[0], NULL));
        part[cut] = '\n';
        (void)same_prints(part, prints[0], NULL);
        wefti_free(part);
    }
    for (int copy = 0; copy < 2; copy++) wefti_free(prints[copy]);
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, data_setup, data_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(fingerprints_tell_data_apart),
        IN_ROOT(large_files_are_sampled),
        IN_ROOT(many_files_and_damaged_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
