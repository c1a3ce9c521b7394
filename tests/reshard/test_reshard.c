/* Checkpoints under random layouts: converted between all pairs and through chains, the values stay
 * the same, Adam's states too. weft-test: threads */
#include "fixture.h"

enum { LAYOUTS = 10, CHAINS = 4, CHAIN = 5 };

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

/* ---- the files that a rank needs ---- */

static bool is_listed(const char *list, const char *path) {
    const char *at = strstr(list, path);
    return at && at[strlen(path)] == '"';
}

static void reshard_rank(const char *source, const char *to, const char *from, const char *layouts,
                         int rank, weft_status expected) {
    const weft_checkpoint_reshard_options o = {
        .from = from, .to = layouts, .only = &rank, .only_count = 1};
    char *text = NULL;
    weft_status status = weft_checkpoint_reshard(source, to, &o, 1, &text);
    weft_checkpoint_text_free(text);
    if (status != expected)
        fail_msg("%s, expected %s: %s", weft_status_text(status), weft_status_text(expected),
                 weft_error_message());
}

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
        const weft_checkpoint_reshard_options o = {.from = from, .to = to};
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
        cmocka_unit_test_setup_teardown(test_lists, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
