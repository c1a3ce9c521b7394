/* Words between ranks and servers: they come back as they went, and bytes that are none are
 * refused. WEFT_TEST_SEED sets the first seed. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "graph/graph.h"
#include "server/words.h"
#include "weft/graph.h"

/* weft-test: no threads */

typedef struct numbers {
    uint64_t seed, next;
} numbers;
static int64_t pick(numbers *r, int64_t low, int64_t high) { /* inclusive */
    return low + (int64_t)(wefti_philox_u32(r->seed, 5, r->next++) % (uint64_t)(high - low + 1));
}

static wefti_bind_word random_word(numbers *r, const wefti_op_registry *ops) {
    static const char *const names[] = {"wte.weight", "h.0.attn.c_attn.bias", "x"};
    wefti_bind_word word = {.session = (uint64_t)pick(r, 0, UINT32_MAX) << 20,
                            .rank = (int32_t)pick(r, 0, INT32_MAX),
                            .probe = {.process = pick(r, 0, 9), .at = (uint64_t)pick(r, 0, 9)}};
    wefti_served *x = &word.served;
    x->name = names[pick(r, 0, 2)];
    x->whole.dtype = pick(r, 0, 1) ? WEFT_F32 : WEFT_F64;
    x->whole.rank = (int)pick(r, 0, 4);
    x->desc = x->whole;
    for (int d = 0; d < x->whole.rank; d++) {
        x->whole.shape[d] = pick(r, 0, 9);
        x->region.begin[d] = pick(r, 0, x->whole.shape[d]);
        x->desc.shape[d] = pick(r, 0, x->whole.shape[d] - x->region.begin[d]);
        x->region.size[d] = x->desc.shape[d];
    }
    x->terms = (int32_t)pick(r, 1, 100);
    x->term = (int32_t)pick(r, -1, x->terms - 1);
    x->square = pick(r, 0, 1) ? WEFT_F32 : WEFT_F64;
    const bool adam = pick(r, 0, 1);
    x->rule = (wefti_update_rule){.op = wefti_op_find(ops, adam ? "opt_adamw" : "opt_sgd"),
                                  .states = adam ? 2 : 0,
                                  .absent = adam ? 0 : 1,
                                  .state_names = {"m", "v"},
                                  .state_descs = {x->desc, x->desc}};
    assert_non_null(x->rule.op);
    x->rule.attrs = x->rule.op->attrs;
    x->part_bytes[0] = weft_desc_bytes(&x->desc);
    for (int i = 0; i < x->rule.states; i++) x->part_bytes[1 + i] = x->part_bytes[0];
    return word;
}

static void same(const wefti_bind_word *a, const wefti_bind_word *b) {
    const wefti_served *x = &a->served, *y = &b->served;
    assert_true(a->session == b->session && a->rank == b->rank);
    assert_memory_equal(&a->probe, &b->probe, sizeof a->probe);
    assert_string_equal(x->name, y->name);
    assert_true(wefti_desc_equal(&x->whole, &y->whole) && wefti_desc_equal(&x->desc, &y->desc));
    assert_memory_equal(&x->region, &y->region, sizeof x->region);
    assert_true(x->terms == y->terms && x->term == y->term && x->square == y->square);
    assert_memory_equal(x->part_bytes, y->part_bytes, sizeof x->part_bytes);
    assert_true(x->rule.op == y->rule.op && x->rule.states == y->rule.states &&
                x->rule.absent == y->rule.absent);
    for (int i = 0; i < wefti_attr_count(x->rule.op); i++)
        assert_true(wefti_attr_equal(&x->rule.attrs[i], &y->rule.attrs[i]));
    for (int i = 0; i < x->rule.states; i++) {
        assert_string_equal(x->rule.state_names[i], y->rule.state_names[i]);
        assert_true(wefti_desc_equal(&x->rule.state_descs[i], &y->rule.state_descs[i]));
    }
}

/* Whatever is changed is another word, or refused as corrupt; it is never read beyond its end. */
static void change(numbers *r, const wefti_op_registry *ops, const unsigned char *body,
                   size_t bytes, wefti_arena *arena) {
    wefti_bind_word word;
    const size_t left = pick(r, 0, 1) ? bytes : (size_t)pick(r, 0, (int64_t)bytes);
    unsigned char *changed = malloc(left + 1); /* of just that size, for the sanitizer */
    memcpy(changed, body, left);
    for (int64_t i = pick(r, 0, 3); i > 0 && left > 0; i--)
        changed[pick(r, 0, (int64_t)left - 1)] = (unsigned char)pick(r, 0, 255);
    const weft_status status = wefti_bind_decode(ops, changed, left, arena, &word);
    assert_true(status == WEFT_OK || status == WEFT_E_CORRUPT);
    assert_true(left == bytes || status == WEFT_E_CORRUPT);
    free(changed);
}

static void bind_words_come_back(void **state) {
    (void)state;
    weft_graph *g;
    wefti_arena *arena;
    ASSERT_OK(weft_graph_create(&g));
    ASSERT_OK(wefti_arena_create(&arena));
    TEST_SEEDS(seed, 1, 300) {
        numbers r = {seed, 0};
        unsigned char *body;
        size_t bytes;
        const wefti_bind_word word = random_word(&r, g->ops);
        wefti_bind_word got;
        ASSERT_OK(wefti_bind_encode(&word, &body, &bytes));
        ASSERT_OK(wefti_bind_decode(g->ops, body, bytes, arena, &got));
        same(&word, &got);
        for (int i = 0; i < 20; i++) change(&r, g->ops, body, bytes, arena);
        wefti_free(body);
        wefti_arena_clear(arena);
    }
    wefti_arena_destroy(arena);
    weft_graph_destroy(g);
}

static void failures_and_scalars_come_back(void **state) {
    (void)state;
    unsigned char body[WEFTI_FAILED_HEAD + WEFTI_WORD_TEXT], scalars[WEFTI_WORD_SCALARS];
    const wefti_failed_word word = {7, WEFT_E_PEER, -2, "rank 3 has\tleft"};
    wefti_failed_word got;
    const size_t bytes = wefti_failed_encode(&word, body);
    ASSERT_OK(wefti_failed_decode(body, bytes, &got));
    assert_true(got.shard == 7 && got.status == WEFT_E_PEER && got.rank == -2);
    assert_string_equal(got.text, "rank 3 has?left");
    for (size_t cut = 0; cut < WEFTI_FAILED_HEAD; cut++)
        ASSERT_STATUS(WEFT_E_CORRUPT, wefti_failed_decode(body, cut, &got));
    memset(body + 4, 0, 4); /* a failure that is none */
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_failed_decode(body, bytes, &got));
    const wefti_step_block block = {.f32 = {.learning_rate = 1e-3f, .step = 7},
                                    .f64 = {.learning_rate = 1e-3, .gradient_scale = 0.1}};
    wefti_step_block again;
    wefti_scalars_encode(&block, scalars);
    wefti_scalars_decode(scalars, &again);
    assert_memory_equal(&block, &again, sizeof block);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bind_words_come_back),
        cmocka_unit_test(failures_and_scalars_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
