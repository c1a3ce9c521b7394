/* Reductions, argmax and the sum of squares against double-precision loops. */
#include "kernels_support.h"

typedef struct reduce_case {
    wefti_reduce_args r;
    wefti_argmax_args m;
    wefti_sum_squares_args s;
    operand x, y, index, squares;
} reduce_case;

static void run(const wefti_kernels *k, wefti_pool *pool, void *context) {
    reduce_case *c = context;
    k->reduce(pool, &c->r);
    if (c->r.reduce > 0) k->argmax(pool, &c->m);
    k->sum_squares(pool, &c->s);
}

static void check(void *context) {
    reduce_case *c = context;
    int64_t reduce = c->r.reduce, inner = c->r.inner;
    double squares = 0.0;
    for (int64_t k = 0; k < c->r.outer * inner; k++) {
        int64_t start = k / inner * reduce * inner + k % inner, best = 0;
        double sum = 0.0, max = -INFINITY, size = 0.0;
        for (int64_t j = 0; j < reduce; j++) {
            double x = get(c->x, start + j * inner);
            sum += x;
            size += fabs(x);
            squares += x * x;
            if (max == max && (x > max || x != x)) {
                max = x;
                best = j;
            }
        }
        double old = before(c->y, k), want = max;
        if (c->r.op == WEFTI_FOLD_SUM) want = sum;
        if (c->r.op == WEFTI_FOLD_MEAN) want = sum / (double)reduce;
        if (c->r.op == WEFTI_FOLD_MEAN) size /= (double)(reduce ? reduce : 1);
        if (c->r.accumulate)
            want = c->r.op != WEFTI_FOLD_MAX ? old + want : want != want ? want : fmax(old, want);
        /* Partial sums of about 100 terms in a row, their results in a short tree. */
        check_close(c->y, k, want, 1e-6 * (size + 1.0), "reduce");
        if (reduce > 0) assert_int_equal((int64_t)get(c->index, k), best);
    }
    if (squares == squares)
        assert_true(fabs(get(c->squares, 0) - squares) <= 2e-6 * squares);
    else
        assert_true(isnan(get(c->squares, 0)));
}

static void one_case(int64_t outer, int64_t reduce, int64_t inner) {
    reduce_case c = {0};
    c.x = operand_random(INPUT, random_type(), outer * reduce * inner, -1.0f, 1.5f);
    if (random_int(0, 3) == 0 && c.x.count > 0)
        wefti_store(c.x.dtype, c.x.data, random_int(0, c.x.count - 1), (double)NAN);
    c.y = operand_random(OUTPUT, random_type(), outer * inner, -1.0f, 1.0f);
    c.index = operand_new(OUTPUT, random_bool() ? WEFT_I32 : WEFT_I64, outer * inner);
    c.squares = operand_new(OUTPUT, WEFT_F64, 1);
    c.r = (wefti_reduce_args){.op = (wefti_reduce_op)random_int(0, 2),
                              .x = in(c.x),
                              .y = out(c.y),
                              .outer = outer,
                              .reduce = reduce,
                              .inner = inner,
                              .accumulate = random_bool()};
    c.r.workspace = scratch(wefti_reduce_workspace_bytes(outer, reduce, inner));
    c.m = (wefti_argmax_args){in(c.x), out(c.index), outer, reduce, inner};
    c.s = (wefti_sum_squares_args){in(c.x), c.x.count, c.squares.data, NULL};
    c.s.workspace = scratch(wefti_sum_squares_workspace_bytes(c.x.count));
    run_case(run, check, &c);
}

static void test_reduce(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{0, 3, 4},     {3, 0, 4},    {3, 4, 0},     {1, 1, 1},
                                       {1, 20000, 1}, {3, 8193, 1}, {1, 300, 768}, {1, 1000, 33},
                                       {2, 129, 513}, {1, 70, 1},   {5, 40000, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int round = 0; round < 4; round++) one_case(sizes[i][0], sizes[i][1], sizes[i][2]);
    for (int round = 0; round < 60; round++)
        one_case(random_int(1, 12), random_int(1, 100), random_int(1, 100));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reduce)};
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
