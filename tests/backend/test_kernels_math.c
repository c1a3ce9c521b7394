/* Errors of the vectorised exp, log, tanh, erf and sigmoid, in units in the last place, over the
 * whole range of floats: the bounds that kernels/simd_math.h promises, on every instruction set.
 * Results below the smallest normal number may be flushed to 0 by sigmoid; they are compared
 * absolutely. */
#include <float.h>

#include "kernels_support.h"

enum { BLOCK = 4096 };

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

typedef struct function {
    wefti_ew_op op;
    double (*exact)(double);
    double ulps;
} function;

static const function functions[] = {{WEFTI_EW_EXP, exp, 2.0},
                                     {WEFTI_EW_LOG, log, 2.0},
                                     {WEFTI_EW_TANH, tanh, 3.0},
                                     {WEFTI_EW_ERF, erf, 3.0},
                                     {WEFTI_EW_SIGMOID, sigmoid, 4.0}};

static void check_block(const wefti_kernels *k, const function *f, const float *x) {
    float y[BLOCK];
    wefti_ew_program p = {.instructions = 1, .inputs = 1, .outputs = 1, .elements = BLOCK};
    p.input[0] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_FULL};
    p.code[0] = (wefti_ew_instruction){.op = (uint8_t)f->op, .dst = 1};
    p.output[0].reg = 1;
    wefti_elementwise_args a = {.program = &p, .in = {x}, .out = {y}};
    k->elementwise(NULL, &a);
    for (int i = 0; i < BLOCK; i++) {
        double want = f->exact((double)x[i]), got = (double)y[i];
        if (want != want) {
            if (got != got) continue;
        } else if (fabs(want) > (double)FLT_MAX) {
            if (got == (want > 0 ? INFINITY : -INFINITY) || fabs(got) == (double)FLT_MAX) continue;
        } else if (fabs(want) < (double)FLT_MIN) {
            if (fabs(got - want) <= (double)FLT_MIN) continue;
        } else {
            int exponent;
            frexp(want, &exponent);
            if (fabs(got - want) <= f->ulps * ldexp(1.0, exponent - 24)) continue;
        }
        fail_msg("%s: %s(%.9g) = %.9g, should be %.9g", k->isa, wefti_ew_op_text(f->op),
                 (double)x[i], got, want);
    }
}

static void test_errors(void **state) {
    (void)state;
    for (int path = 0; path < PATHS; path++) {
        const wefti_kernels *k = path_kernels(path);
        if (!k) continue;
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            float x[BLOCK];
            uint32_t bits = (uint32_t)random_u64();
            for (int block = 0; block < 60; block++) {
                for (int i = 0; i < BLOCK; i++, bits += 17477u * 2u + 1u)
                    if (block < 40) /* all of the range, both signs, infinities and NaN */
                        memcpy(&x[i], &bits, sizeof bits);
                    else /* dense where the functions bend */
                        x[i] = random_float(-12.0f, 12.0f);
                if (block < 40) bits *= 2654435761u;
                check_block(k, &functions[f], x);
            }
        }
    }
}

/* Far out an activation is 0 or x, and its slope 0 or 1, however large x is. */
static void test_slopes_far_out(void **state) {
    (void)state;
    static const wefti_ew_op slopes[] = {WEFTI_EW_GELU_TANH_GRAD, WEFTI_EW_GELU_ERF_GRAD,
                                         WEFTI_EW_SILU_GRAD};
    static const float x[] = {200.0f, 1e6f, 1e13f, 2e19f, 3e38f, -200.0f, -1e6f, -1e13f, -3e38f};
    enum { COUNT = sizeof x / sizeof *x };
    for (int path = 0; path < PATHS; path++) {
        const wefti_kernels *k = path_kernels(path);
        for (size_t f = 0; k && f < sizeof slopes / sizeof *slopes; f++) {
            float dy[COUNT], y[COUNT];
            for (int i = 0; i < COUNT; i++) dy[i] = 3.0f;
            wefti_ew_program p = {.instructions = 1, .inputs = 2, .outputs = 1, .elements = COUNT};
            for (int i = 0; i < 2; i++)
                p.input[i] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_FULL};
            p.code[0] = (wefti_ew_instruction){.op = (uint8_t)slopes[f], .dst = 2, .a = 0, .b = 1};
            p.output[0].reg = 2;
            wefti_elementwise_args a = {.program = &p, .in = {dy, x}, .out = {y}};
            k->elementwise(NULL, &a);
            for (int i = 0; i < COUNT; i++)
                if (y[i] != (x[i] > 0.0f ? 3.0f : 0.0f))
                    fail_msg("%s: %s(3, %g) = %g", k->isa, wefti_ew_op_text(slopes[f]),
                             (double)x[i], (double)y[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_slopes_far_out)};
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
