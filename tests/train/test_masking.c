/* Masking of tokens: the shares of the paper, a function of seed and position, other targets
 * ignored. */
#include "support.h"

#include <string.h>

#include "setup/objective.h"

enum { COUNT = 200000, VOCAB = 1000, MASK = 999 };

static int32_t tokens[COUNT], targets[COUNT];

static void fill(void) {
    for (int i = 0; i < COUNT; i++) {
        tokens[i] = i % 997;
        targets[i] = 7;
    }
}

static void test_shares(void **state) {
    (void)state;
    int chosen = 0, masked = 0, kept = 0, other = 0;
    fill();
    wefti_mask_tokens(3, 0, COUNT, MASK, VOCAB, tokens, targets);
    for (int i = 0; i < COUNT; i++) {
        if (targets[i] == -1) {
            assert_int_equal(tokens[i], i % 997);
            continue;
        }
        assert_int_equal(targets[i], i % 997);
        chosen++;
        if (tokens[i] == MASK)
            masked++;
        else if (tokens[i] == i % 997)
            kept++;
        else
            other++;
        assert_in_range(tokens[i], 0, VOCAB - 1);
    }
    /* five standard deviations of the binomial counts */
    assert_in_range(chosen, 30000 - 800, 30000 + 800);
    assert_in_range(masked, 24000 - 900, 24000 + 900);
    assert_in_range(kept, 3000 - 400, 3000 + 400);
    assert_in_range(other, 3000 - 400, 3000 + 400);
}

static void test_pieces(void **state) {
    (void)state;
    static int32_t whole[COUNT], whole_targets[COUNT];
    fill();
    memcpy(whole, tokens, sizeof whole);
    wefti_mask_tokens(5, 1000, COUNT, MASK, VOCAB, whole, whole_targets);
    for (int at = 0; at < COUNT; at += 777) {
        int n = COUNT - at < 777 ? COUNT - at : 777;
        int64_t before = 0;
        for (int64_t k = at; k < at + n; k++) before += whole_targets[k] != -1;
        assert_int_equal(wefti_masked_count(5, 1000 + at, n), before);
        wefti_mask_tokens(5, 1000 + at, n, MASK, VOCAB, tokens + at, targets + at);
    }
    assert_memory_equal(tokens, whole, sizeof tokens);
    assert_memory_equal(targets, whole_targets, sizeof targets);
    fill();
    wefti_mask_tokens(6, 1000, COUNT, MASK, VOCAB, tokens, targets);
    assert_memory_not_equal(targets, whole_targets, sizeof targets);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares),
                                       cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
