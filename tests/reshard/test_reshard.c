/* Checkpoints under random layouts: converted between all pairs and through chains, the values stay
 * the same, Adam's states too. weft-test: threads */
#include "fixture.h"
#include "../sanitized.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYOUTS = SANITIZED ? 10 : 40, CHAINS = 4, CHAIN = 5 };

static int layouts_of_test(void) {
    const char *all = getenv("WEFT_RESHARD_LAYOUTS");
    return all ? atoi(all) : LAYOUTS;
}

/* A path of the fixture, by number. */
static const char *numbered(const fixture *f, const char *what, int i, int j) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s-%d-%d", what, i, j);
    return in(f, name);
}

static void new_strategy(random_source *r, const char *path) {
    static const int ranks[] = {1, 2, 3, 4, 6, 8};
    const int n = ranks[pick(r, 6)];
    const int stages = n % 2 == 0 && pick(r, 3) == 0 ? 2 : 1;
    random_strategy(r, n, stages, path);
}

static void assert_digest(const char *path, const char *layouts, const char *expected) {
    char got[32];
    digest_text(path, layouts, got);
    if (strcmp(got, expected) != 0) fail_msg("%s: %s, not %s", path, got, expected);
}

static void test_all_pairs(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(20)};
    const int count = layouts_of_test();
    char expected[32];
    write_run(f);
    digest_text(f->dir, NULL, expected);
    for (int i = 0; i < count; i++) {
        new_strategy(&r, numbered(f, "strategy", i, 0));
        ASSERT_OK(
            reshard(f->dir, numbered(f, "slices", i, 0), NULL, numbered(f, "strategy", i, 0)));
        assert_digest(numbered(f, "slices", i, 0), NULL, expected);
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const char *to = numbered(f, "pair", i, j);
            ASSERT_OK(reshard(numbered(f, "slices", i, 0), to, numbered(f, "strategy", i, 0),
                              numbered(f, "strategy", j, 0)));
            assert_digest(to, numbered(f, "strategy", j, 0), expected);
            ASSERT_OK(wefti_remove_tree(to));
        }
}

/* accept 31(a) */
static void test_chains(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(21)};
    char expected[32];
    write_run(f);
    digest_text(f->dir, NULL, expected);
    for (int c = 0; c < CHAINS; c++) {
        char last[700], from[700] = "";
        (void)snprintf(last, sizeof last, "%s", f->dir);
        for (int k = 0; k < CHAIN; k++) {
            const char *strategy = numbered(f, "strategy", c, k), *to = numbered(f, "link", c, k);
            new_strategy(&r, strategy);
            ASSERT_OK(reshard(last, to, *from && pick(&r, 2) ? from : NULL, strategy));
            (void)snprintf(last, sizeof last, "%s", to);
            (void)snprintf(from, sizeof from, "%s", strategy);
        }
        const char *end = numbered(f, "end", c, 0);
        ASSERT_OK(reshard(last, end, NULL, NULL));
        assert_digest(end, NULL, expected);
        /* the run's step has the same files, byte for byte */
        static const char *const names[] = {"model.safetensors", "manifest.json", "config.json",
                                            "optimizer-00001-of-00001.safetensors"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t bytes[2];
            const char *step = "step-000000000007";
            unsigned char *a = get_file(path_in(path_in(f->dir, step), names[i]), &bytes[0]);
            unsigned char *b = get_file(path_in(path_in(end, step), names[i]), &bytes[1]);
            assert_int_equal(bytes[0], bytes[1]);
            assert_memory_equal(a, b, bytes[0]);
            free(a);
            free(b);
        }
    }
}

/* accept 31(b): from 8 ranks to 6, 4, 3 and 2, of which few divide each other. */
static void test_other_numbers(void **state) {
    const fixture *f = *state;
    static const int ranks[] = {8, 6, 4, 3, 2, 8};
    random_source r = {.seed = test_seed(23)};
    char expected[32];
    write_run(f);
    digest_text(f->dir, NULL, expected);
    for (int round = 0; round < CHAINS; round++)
        for (int k = 0; k < (int)(sizeof ranks / sizeof *ranks); k++) {
            const char *to = numbered(f, "number", round, k);
            const char *strategy = numbered(f, "layout", round, k);
            const char *before = k ? numbered(f, "layout", round, k - 1) : NULL;
            random_strategy(&r, ranks[k], 1, strategy);
            ASSERT_OK(
                reshard(k ? numbered(f, "number", round, k - 1) : f->dir, to, before, strategy));
            assert_digest(to, strategy, expected);
        }
}

/* The memory of a process that makes one rank's slices, in KiB at most, or 0 if it fails. */
static long peak_of_rank(const char *from, const char *to, const char *layouts) {
    int status = 0;
    struct rusage used;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int rank = 1;
        const weft_checkpoint_reshard_options o = WEFT_STRUCT(
            weft_checkpoint_reshard_options, .to = layouts, .only = &rank, .only_count = 1);
        char *text = NULL;
        _exit(weft_checkpoint_reshard(from, to, &o, 1, &text) < 0);
    }
    assert_int_equal(wait4(child, &status, 0, &used), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? used.ru_maxrss : 0;
}

/* accept 31(e): a model of 384 MiB, of which a rank needs half. */
static void test_memory(void **state) {
    const fixture *f = *state;
    if (SANITIZED) SKIP("a sanitizer needs memory of its own");
    enum { TENSORS = 4, ROWS = 1024, WIDTH = 96 * 256 };
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    static const char strategy[] = "{\"parallel_layout_item\": {"
                                   "\"a\": {\"dev_matrix\": [2], \"tensor_map\": [-1, 0]}, "
                                   "\"b\": {\"dev_matrix\": [2], \"tensor_map\": [0, -1]}, "
                                   "\"c\": {\"dev_matrix\": [2], \"tensor_map\": [-1, 0]}, "
                                   "\"d\": {\"dev_matrix\": [2], \"tensor_map\": [0, -1]}}}";
    float *data = calloc((size_t)ROWS * WIDTH, sizeof(float));
    assert_non_null(data);
    wefti_checkpoint_tensor tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (wefti_checkpoint_tensor){.name = names[i],
                                               .role = WEFTI_CHECKPOINT_MODEL,
                                               .desc = {WEFT_F32, 2, {ROWS, WIDTH}},
                                               .data = data};
    wefti_checkpoint_meta meta = meta_of(7);
    wefti_checkpoint_options options = options_of(0);
    ASSERT_OK(wefti_dir_make(f->dir));
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, tensors, TENSORS, &options, NULL));
    free(data);
    put_file(path_in(f->root, "halves.json"), strategy, sizeof strategy - 1);
    char layouts[700];
    (void)snprintf(layouts, sizeof layouts, "%s", path_in(f->root, "halves.json"));
    const long kib = peak_of_rank(f->dir, numbered(f, "half", 0, 0), layouts);
    assert_in_range(kib, 1, 256 * 1024);
}

/* ---- the files that a rank needs ---- */

static bool is_listed(const char *list, const char *path) {
    const char *at = strstr(list, path);
    return at && at[strlen(path)] == '"';
}

static void reshard_rank(const char *source, const char *to, const char *from, const char *layouts,
                         int rank, weft_status expected) {
    const weft_checkpoint_reshard_options o =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from, .to = layouts, .only = &rank,
                    .only_count = 1);
    char *text = NULL;
    weft_status status = weft_checkpoint_reshard(source, to, &o, 1, &text);
    weft_checkpoint_text_free(text);
    if (status != expected)
        fail_msg("%s, expected %s: %s", weft_status_text(status), weft_status_text(expected),
                 weft_error_message());
}

/* accept 31(c), 31(f) */
static void test_lists(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(22)};
    write_run(f);
    for (int i = 0; i < 8; i++) {
        const char *from = numbered(f, "from", i, 0), *to = numbered(f, "to", i, 0),
                   *slices = numbered(f, "slices", i, 0), *out = numbered(f, "out", i, 0),
                   *aside = numbered(f, "aside", i, 0);
        const int ranks = 6;
        random_strategy(&r, ranks, i % 2 + 1, from);
        random_strategy(&r, 4, 1, to);
        ASSERT_OK(reshard(f->dir, slices, NULL, from));
        const int rank = (int)pick(&r, 4);
        const weft_checkpoint_reshard_options o =
            WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from, .to = to);
        char *list = NULL;
        ASSERT_OK(weft_checkpoint_sources(slices, rank, &o, 1, &list));
        for (int k = 0; k < ranks; k++) {
            char name[64], folder[64];
            (void)snprintf(folder, sizeof folder, "rank_%d", k);
            (void)snprintf(name, sizeof name, "rank_%d/checkpoint_%d.safetensors", k, k);
            const bool listed = is_listed(list, name);
            ASSERT_OK(wefti_rename(path_in(slices, folder), aside));
            reshard_rank(slices, out, from, to, rank, listed ? WEFT_E_NOT_FOUND : WEFT_OK);
            if (listed) ASSERT_MESSAGE(folder);
            ASSERT_OK(wefti_rename(aside, path_in(slices, folder)));
            ASSERT_OK(wefti_remove_tree(out));
        }
        weft_checkpoint_text_free(list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_pairs, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_chains, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_other_numbers, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_memory, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_lists, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
