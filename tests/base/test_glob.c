/* Patterns over names: what matches, and that none takes long. */
#include "support.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "base/philox.h"

static void patterns(void **state) {
    (void)state;
    assert_true(wefti_glob_match("h.*.mlp.c_fc", "h.11.mlp.c_fc"));
    assert_false(wefti_glob_match("h.*.mlp.c_fc", "h.11.mlp.c_fc:linear"));
    assert_true(wefti_glob_match("h.*.mlp.c_fc*", "h.11.mlp.c_fc:linear"));
    assert_true(wefti_glob_match("*", ""));
    assert_true(wefti_glob_match("**a**", "xxa"));
    assert_false(wefti_glob_match("", "a"));
    assert_true(wefti_glob_match("h.[0-3]", "h.2"));
    assert_false(wefti_glob_match("h.[0-3]", "h.4"));
    assert_true(wefti_glob_match("h.[!0-3]", "h.4"));
    assert_true(wefti_glob_match("[]x]?", "]a"));
    assert_true(wefti_glob_match("a[-x]b", "a-b"));
    assert_false(wefti_glob_match("h.?", "h."));
    assert_true(wefti_glob_match("[ab", "[ab")); /* not closed: itself */
    assert_false(wefti_glob_valid("h.[0-3"));
    assert_true(wefti_glob_valid("h.[]]*[!a-z]"));
    /* many stars do not take exponential time */
    char text[201];
    memset(text, 'a', 200);
    text[200] = '\0';
    assert_false(wefti_glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b?", text));
}

/* Patterns against a matcher written the plain recursive way. */
static bool plain_match(const char *p, const char *t) {
    if (!*p) return !*t;
    if (*p == '*') return plain_match(p + 1, t) || (*t && plain_match(p, t + 1));
    return *t && (*p == '?' || *p == *t) && plain_match(p + 1, t + 1);
}
static void random_patterns(void **state) {
    (void)state;
    const uint64_t seed = test_seed(7);
    int hits = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        char p[8] = "", t[8] = "";
        uint32_t r = wefti_philox_u32(seed, 0, i), s = wefti_philox_u32(seed, 1, i);
        for (uint32_t k = 0; k < r % 7; k++) p[k] = "ab.*?*"[(r >> (3 + 3 * k)) % 6];
        for (uint32_t k = 0; k < s % 7; k++) t[k] = "ab."[(s >> (3 + 3 * k)) % 3];
        bool expected = plain_match(p, t);
        if (wefti_glob_match(p, t) != expected) fail_msg("'%s' on '%s'", p, t);
        hits += expected;
    }
    assert_in_range(hits, 1000, 19000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(random_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
