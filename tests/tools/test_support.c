/* What all tests share (tests/support.h): facts of a message, and the seeds of random tests. */
#include "support.h"

#include <sys/wait.h>

static const char *program;

/* --- as a program of its own, whose output the tests below read */

static void fails_at_7(void **state) {
    (void)state;
    TEST_SEEDS(seed, 5, 10) {
        print_message("at %d\n", (int)seed);
        assert_int_not_equal(seed, 7);
    }
}
static void passes(void **state) {
    (void)state;
    TEST_SEEDS(seed, 20, 3) print_message("at %d\n", (int)seed);
}
static void has_one_seed(void **state) {
    (void)state;
    print_message("is %d\n", (int)test_seed(3));
}

static int be_tests(const char *which) {
    const struct CMUnitTest last[] = {cmocka_unit_test(passes), cmocka_unit_test(fails_at_7)},
                            first[] = {cmocka_unit_test(fails_at_7), cmocka_unit_test(passes)},
                            good[] = {cmocka_unit_test(passes), cmocka_unit_test(has_one_seed)};
    if (strcmp(which, "last") == 0) return cmocka_run_group_tests(last, NULL, NULL);
    if (strcmp(which, "first") == 0) return cmocka_run_group_tests(first, NULL, NULL);
    return cmocka_run_group_tests(good, NULL, NULL);
}

/* --- */

typedef struct said {
    int code;
    char text[8192];
} said;

static said run(const char *setting, const char *which) {
    said s = {0};
    char command[4096];
    (void)snprintf(command, sizeof command, "%s '%s' %s 2>&1", setting, program, which);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t bytes = fread(s.text, 1, sizeof s.text - 1, f);
    s.text[bytes] = 0;
    const int status = pclose(f);
    s.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return s;
}

static void the_seed_that_failed_is_printed(void **state) {
    (void)state;
    static const char *const which[] = {"first", "last"};
    for (int i = 0; i < 2; i++) {
        const said s = run("env -u WEFT_TEST_SEED", which[i]);
        assert_int_equal(s.code, 1);
        ASSERT_FACTS(s.text, "at 5|at 6|at 7|at 20|at 22|seed 7|WEFT_TEST_SEED=7");
        assert_false(has_facts(s.text, "at 8"));
        assert_false(has_facts(s.text, "at 23"));
        assert_false(has_facts(s.text, "seed 22"));
    }
    const said s = run("env -u WEFT_TEST_SEED", "good");
    assert_int_equal(s.code, 0);
    ASSERT_FACTS(s.text, "at 20|at 21|at 22|is 3|seed 3");
    assert_false(has_facts(s.text, "WEFT_TEST_SEED=22"));
}

static void the_environment_sets_the_seed(void **state) {
    (void)state;
    said s = run("WEFT_TEST_SEED=7", "last");
    assert_int_equal(s.code, 1);
    ASSERT_FACTS(s.text, "at 7|WEFT_TEST_SEED=7");
    assert_false(has_facts(s.text, "at 5"));
    s = run("WEFT_TEST_SEED=9", "last");
    assert_int_equal(s.code, 0);
    s = run("WEFT_TEST_SEED=9", "good");
    assert_int_equal(s.code, 0);
    ASSERT_FACTS(s.text, "at 9|is 9|seed 9");
    assert_false(has_facts(s.text, "at 20"));
}

static void facts_are_whole_words_in_any_order(void **state) {
    (void)state;
    const char *text = "model.yaml:7: rank 12 has \"tp\", not dp";
    assert_true(has_facts(text, "rank 12"));
    assert_true(has_facts(text, "dp|rank 12|model.yaml:7"));
    assert_true(has_facts(text, "\"tp\""));
    assert_true(has_facts(text, ""));
    assert_false(has_facts(text, "rank 1"));
    assert_false(has_facts(text, "rank 12|rank 13"));
    assert_false(has_facts(text, "odel.yaml"));
    assert_false(has_facts("", "rank 1"));
}

static void prose_has_three_words_in_a_row(void **state) {
    (void)state;
    static const struct {
        const char *fact;
        bool prose;
    } cases[] = {{"is not known", true},        {"rank 2", false},      {"line 7: 'x'", false},
                 {"model.heads", false},        {"two words", false},   {"one, two, three", true},
                 {"rank's own message", true},  {"a 3 b 4 c", false},   {"two words 7 more", false},
                 {"model.heads is not", false}, {"IS NOT KNOWN", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (is_prose(cases[i].fact, strlen(cases[i].fact)) != cases[i].prose)
            fail_msg("'%s' is %sprose", cases[i].fact, cases[i].prose ? "not " : "");
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc > 1) return be_tests(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_seed_that_failed_is_printed),
        cmocka_unit_test(the_environment_sets_the_seed),
        cmocka_unit_test(facts_are_whole_words_in_any_order),
        cmocka_unit_test(prose_has_three_words_in_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
