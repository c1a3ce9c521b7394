/* A random matrix product with what must come out of it: random layouts and epilogues, guards
 * around all buffers, a naive product in doubles, and the bound of rounding. */
#ifndef TESTS_BACKEND_GEMM_PROBLEM_H
#define TESTS_BACKEND_GEMM_PROBLEM_H

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/gemm/gemm.h"
#include "backend/paths.h"
#include "tensor/tensor.h"

#define UNUSED __attribute__((unused)) /* not every test uses all of this file */

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

static uint64_t random_state;
static uint64_t random_bits(void) { /* xorshift64*, Vigna 2016 */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dULL;
}
static UNUSED int64_t random_below(int64_t n) {
    return (int64_t)(random_bits() >> 33) % n;
}
static double random_value(void) {
    return (double)(random_bits() >> 11) * 0x1p-52 - 1.0;
}

/* `elems` values between two guards. */
typedef struct buffer {
    char *base;
    int64_t bytes;
} buffer;

static buffer buffer_new(int64_t bytes) {
    buffer b = {.bytes = bytes};
    b.base = aligned_alloc(64, (size_t)((bytes + 2 * GUARD + 63) / 64 * 64));
    assert_non_null(b.base);
    memset(b.base, GUARD_BYTE, (size_t)((bytes + 2 * GUARD + 63) / 64 * 64));
    return b;
}
static void *buffer_data(const buffer *b) {
    return b->base + GUARD;
}
static void buffer_check(const buffer *b) {
    for (int64_t i = 0; i < GUARD; i++) {
        assert_int_equal((unsigned char)b->base[i], GUARD_BYTE);
        assert_int_equal((unsigned char)b->base[GUARD + b->bytes + i], GUARD_BYTE);
    }
}
static UNUSED buffer buffer_random(weft_dtype dtype, int64_t elems) {
    buffer b = buffer_new(elems * (int64_t)weft_dtype_bytes(dtype));
    for (int64_t i = 0; i < elems; i++) wefti_store(dtype, buffer_data(&b), i, random_value());
    return b;
}

/* Any layout of [batch0, batch1, rows, columns]: row-major, transposed or scattered, with gaps;
 * returns its elements. */
static UNUSED int64_t random_layout(const wefti_gemm_spec *spec, int64_t rows, int64_t columns,
                                    bool may_repeat, wefti_gemm_operand *operand) {
    int64_t kind = random_below(5), extent;
    int64_t gap = random_below(4) ? random_below(3) * random_below(4) : 32;
    if (kind < 2) {
        operand->column_stride = 1;
        operand->row_stride = columns + gap;
        extent = rows * operand->row_stride;
    } else if (kind < 4) {
        operand->row_stride = 1;
        operand->column_stride = rows + gap;
        extent = columns * operand->column_stride;
    } else {
        operand->column_stride = 2;
        operand->row_stride = 2 * columns + gap;
        extent = rows * operand->row_stride;
    }
    bool repeat = may_repeat && random_below(3) == 0;
    operand->batch_stride[1] = repeat ? 0 : extent;
    operand->batch_stride[0] = repeat ? 0 : extent * spec->batch[1];
    return repeat ? extent : extent * spec->batch[0] * spec->batch[1];
}

static UNUSED int64_t index_of(const wefti_gemm_operand *o, int64_t b0, int64_t b1, int64_t row,
                               int64_t column) {
    return b0 * o->batch_stride[0] + b1 * o->batch_stride[1] + row * o->row_stride +
           column * o->column_stride;
}

typedef struct problem {
    wefti_gemm_spec spec;
    buffer a, b, c, bias;
    int64_t c_elems;
    double *want, *want_bound; /* as [batch0, batch1, m, n] */
} problem;

/* sums[j] += left right[j] for j < n, and after them the absolute values. */
static UNUSED UNSANITIZED void add_products(int64_t n, double left, const double *right,
                                            double *sums) {
    for (int64_t j = 0; j < n; j++) {
        sums[j] += left * right[j];
        sums[n + j] += fabs(left * right[j]);
    }
}

/* The expected result, and the bound of its rounding error. Summing k products in any order errs by
 * less than k eps sum |a b| (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
 * Here eps is half a unit in the last place; alpha, bias and C need a few more eps. A result in
 * bf16 is rounded once more, by up to 2^-8 of it. In a product with `bf16`, each f32 operand may be
 * rounded to bf16, by up to 2^-8 of it (and both: 2^-16 more). */
static UNUSED void expect(problem *p) {
    const wefti_gemm_spec *s = &p->spec;
    const bool f64 = s->c.dtype == WEFT_F64;
    const double eps = f64 ? 0x1p-53 : 0x1p-24;
    const double round = s->c.dtype == WEFT_BF16 ? 0x1p-8 : eps;
    const double operands =
        !s->bf16 ? 0 : 0x1.01p-8 * ((s->a.dtype == WEFT_F32) + (s->b.dtype == WEFT_F32));
    const int64_t size = s->m * s->n, batches = s->batch[0] * s->batch[1];
    double *values = calloc((size_t)(size * batches * 2 + 1), sizeof *values);
    double *row = malloc((size_t)(s->k + 1) * sizeof *row);
    double *right = malloc((size_t)(s->k * s->n + 1) * sizeof *right);
    double *sums = malloc((size_t)(2 * s->n + 1) * sizeof *sums);
    assert_true(values && row && right && sums);
    p->want = values;
    p->want_bound = values + size * batches;
    for (int64_t batch = 0, at = 0; batch < batches; batch++) {
        const int64_t b0 = batch / s->batch[1], b1 = batch % s->batch[1];
        for (int64_t q = 0; q < s->k; q++)
            for (int64_t j = 0; j < s->n; j++)
                right[q * s->n + j] =
                    wefti_load(s->b.dtype, buffer_data(&p->b), index_of(&s->b, b0, b1, q, j));
        for (int64_t i = 0; i < s->m; i++) {
            memset(sums, 0, (size_t)(2 * s->n) * sizeof *sums);
            for (int64_t q = 0; q < s->k; q++) {
                double left =
                    wefti_load(s->a.dtype, buffer_data(&p->a), index_of(&s->a, b0, b1, i, q));
                add_products(s->n, left, right + q * s->n, sums);
            }
            for (int64_t j = 0; j < s->n; j++, at++) {
                const int64_t index = index_of(&s->c, b0, b1, i, j);
                double x = s->alpha * sums[j];
                double bound =
                    ((double)(s->k + 4) * eps + operands) * fabs(s->alpha) * sums[s->n + j];
                if (s->has_bias) {
                    x += wefti_load(f64 ? WEFT_F64 : WEFT_F32, buffer_data(&p->bias), j);
                    bound += 4 * eps * fabs(x);
                }
                double y = x, magnitude = fabs(x);
                if (s->accumulate) {
                    double old = wefti_load(s->c.dtype, buffer_data(&p->c), index);
                    y += old;
                    magnitude += fabs(old);
                }
                bound += (4 + (double)s->k / 256) * eps * magnitude;
                p->want[at] = y;
                p->want_bound[at] = bound + round * (fabs(y) + bound);
            }
        }
    }
    free(row);
    free(right);
    free(sums);
}

static UNUSED void compare(const problem *p, const buffer *got, const double *want,
                           const double *bound) {
    const wefti_gemm_spec *s = &p->spec;
    char *touched = calloc((size_t)p->c_elems + 1, 1);
    assert_non_null(touched);
    int64_t at = 0;
    for (int64_t b0 = 0; b0 < s->batch[0]; b0++)
        for (int64_t b1 = 0; b1 < s->batch[1]; b1++)
            for (int64_t i = 0; i < s->m; i++)
                for (int64_t j = 0; j < s->n; j++, at++) {
                    int64_t index = index_of(&s->c, b0, b1, i, j);
                    double value = wefti_load(s->c.dtype, buffer_data(got), index);
                    touched[index] = 1;
                    if (!(fabs(value - want[at]) <= bound[at]))
                        fail_msg(
                            "element [%lld, %lld, %lld, %lld] of %lld x %lld x %lld is %.9g, not "
                            "%.9g (bound %.3g)",
                            (long long)b0, (long long)b1, (long long)i, (long long)j,
                            (long long)s->m, (long long)s->n, (long long)s->k, value, want[at],
                            bound[at]);
                }
    const size_t bytes = weft_dtype_bytes(s->c.dtype);
    for (int64_t e = 0; e < p->c_elems; e++)
        if (!touched[e])
            assert_memory_equal((char *)buffer_data(got) + (size_t)e * bytes,
                                (char *)buffer_data(&p->c) + (size_t)e * bytes, bytes);
    free(touched);
    buffer_check(got);
}

static UNUSED problem problem_new(wefti_gemm_spec spec) {
    problem p = {.spec = spec};
    wefti_gemm_spec *s = &p.spec;
    p.a = buffer_random(s->a.dtype, random_layout(s, s->m, s->k, true, &s->a));
    p.b = buffer_random(s->b.dtype, random_layout(s, s->k, s->n, true, &s->b));
    p.c_elems = random_layout(s, s->m, s->n, false, &s->c);
    p.c = buffer_random(s->c.dtype, p.c_elems);
    p.bias = buffer_random(s->c.dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32, s->n);
    expect(&p);
    return p;
}
static UNUSED void problem_free(problem *p) {
    buffer *buffers[] = {&p->a, &p->b, &p->c, &p->bias};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        buffer_check(buffers[i]);
        free(buffers[i]->base);
    }
    free(p->want);
}
static UNUSED wefti_gemm_args problem_args(const problem *p, const buffer *c) {
    const wefti_gemm_spec *s = &p->spec;
    return (wefti_gemm_args){.a = buffer_data(&p->a),
                             .b = buffer_data(&p->b),
                             .c = buffer_data(c),
                             .bias = s->has_bias ? buffer_data(&p->bias) : NULL};
}

static UNUSED void random_epilogue(wefti_gemm_spec *s) {
    if (random_below(3) == 0) return;
    s->alpha = random_below(2) ? 1.0 : random_value() * 3;
    s->accumulate = random_below(3) == 0;
    s->has_bias = random_below(2) == 0;
}
static UNUSED int make_pools(void **state) {
    wefti_pool **pools = calloc(3, sizeof *pools);
    for (int i = 0; i < 3; i++) assert_int_equal(wefti_pool_create(i + 1, &pools[i]), WEFT_OK);
    *state = pools;
    random_state = test_seed(20240607);
    return 0;
}
static UNUSED int destroy_pools(void **state) {
    wefti_pool **pools = *state;
    for (int i = 0; i < 3; i++) wefti_pool_destroy(pools[i]);
    free(pools);
    paths_print();
    return 0;
}

#endif
