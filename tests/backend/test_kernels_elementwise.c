/* The elementwise interpreter against double-precision arithmetic: every op, every operand type,
 * all broadcasts, random programs, dropout bits. */
#include <float.h>

#include "base/philox.h"
#include "kernels_support.h"

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}
static double gelu_tanh(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_tanh_slope(double x) {
    double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1.0 + t) +
           0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}
static double cdf(double x) {
    return 0.5 * erfc(-x * M_SQRT1_2);
}
static double round_bf16(double x) {
    return (double)wefti_bf16_to_f32(wefti_f32_to_bf16((float)x));
}
static double max_nan(double a, double b) {
    return a != a || b != b ? NAN : a > b ? a : b;
}
static double min_nan(double a, double b) {
    return a != a || b != b ? NAN : a < b ? a : b;
}

static double reference(const wefti_ew_instruction *i, double a, double b, double c,
                        double uniform) {
    double imm = (double)i->imm, imm2 = (double)i->imm2;
    double kept = uniform >= imm ? 1.0 / (1.0 - imm) : 0.0;
    switch ((wefti_ew_op)i->op) {
    case WEFTI_EW_COPY:
        return a;
    case WEFTI_EW_CONSTANT:
        return imm;
    case WEFTI_EW_ADD:
        return a + b;
    case WEFTI_EW_SUB:
        return a - b;
    case WEFTI_EW_MUL:
        return a * b;
    case WEFTI_EW_DIV:
        return a / b;
    case WEFTI_EW_FMA:
        return a * b + c;
    case WEFTI_EW_SCALE:
        return a * imm + imm2;
    case WEFTI_EW_AXPY:
        return a + imm * b;
    case WEFTI_EW_NEG:
        return -a;
    case WEFTI_EW_EXP:
        return exp(a);
    case WEFTI_EW_LOG:
        return log(a);
    case WEFTI_EW_SQRT:
        return sqrt(a);
    case WEFTI_EW_RSQRT:
        return 1.0 / sqrt(a);
    case WEFTI_EW_RECIPROCAL:
        return 1.0 / a;
    case WEFTI_EW_TANH:
        return tanh(a);
    case WEFTI_EW_ERF:
        return erf(a);
    case WEFTI_EW_SIGMOID:
        return sigmoid(a);
    case WEFTI_EW_RELU:
        return a > 0.0 || a != a ? a : 0.0;
    case WEFTI_EW_GELU_TANH:
        return gelu_tanh(a);
    case WEFTI_EW_GELU_ERF:
        return a * cdf(a);
    case WEFTI_EW_SILU:
        return a * sigmoid(a);
    case WEFTI_EW_RELU_GRAD:
        return b > 0.0 ? a : 0.0;
    case WEFTI_EW_GELU_TANH_GRAD:
        return a * gelu_tanh_slope(b);
    case WEFTI_EW_GELU_ERF_GRAD:
        return a * (cdf(b) + b * exp(-0.5 * b * b) / sqrt(2.0 * M_PI));
    case WEFTI_EW_SILU_GRAD:
        return a * sigmoid(b) * (1.0 + b * (1.0 - sigmoid(b)));
    case WEFTI_EW_SIGMOID_GRAD:
        return a * b * (1.0 - b);
    case WEFTI_EW_TANH_GRAD:
        return a * (1.0 - b * b);
    case WEFTI_EW_MAXIMUM:
        return max_nan(a, b);
    case WEFTI_EW_MINIMUM:
        return min_nan(a, b);
    case WEFTI_EW_WHERE:
        return a != 0.0 ? b : c;
    case WEFTI_EW_EQ:
        return a == b;
    case WEFTI_EW_NE:
        return a != b;
    case WEFTI_EW_LT:
        return a < b;
    case WEFTI_EW_LE:
        return a <= b;
    case WEFTI_EW_GT:
        return a > b;
    case WEFTI_EW_GE:
        return a >= b;
    case WEFTI_EW_CLIP:
        return a < imm ? imm : a > imm2 ? imm2 : a;
    case WEFTI_EW_CLIP_GRAD:
        return b >= imm && b <= imm2 ? a : 0.0;
    case WEFTI_EW_POW:
        return pow(a, b);
    case WEFTI_EW_POW_SCALAR:
        return pow(a, imm);
    case WEFTI_EW_ABS:
        return fabs(a);
    case WEFTI_EW_SIGN:
        return a > 0.0 ? 1.0 : a < 0.0 ? -1.0 : a;
    case WEFTI_EW_SQUARE:
        return a * a;
    case WEFTI_EW_ROUND_BF16:
        return round_bf16(a);
    case WEFTI_EW_DROPOUT:
        return a * kept;
    case WEFTI_EW_DROPOUT_MASK:
        return kept;
    case WEFTI_EW_OP_COUNT:
        break;
    }
    return NAN;
}

typedef struct ew_case {
    wefti_ew_program p;
    wefti_elementwise_args a;
    operand in[WEFTI_EW_INPUTS], out[WEFTI_EW_OUTPUTS];
    double tolerance; /* relative to the magnitude of a result and its operands */
} ew_case;

static void run(const wefti_kernels *k, wefti_pool *pool, void *context) {
    ew_case *c = context;
    k->elementwise(pool, &c->a);
}

/* Element of an input that element i of the program reads, computed from the shape alone. */
static int64_t source(const ew_case *c, const wefti_ew_input *in, int64_t i) {
    switch (in->broadcast) {
    case WEFTI_EW_FULL:
        return i;
    case WEFTI_EW_SCALAR:
        return 0;
    case WEFTI_EW_ROW:
        return i % in->inner;
    case WEFTI_EW_COLUMN:
        return i / in->inner;
    case WEFTI_EW_STRIDED:
        break;
    }
    int64_t at = 0;
    for (int d = c->p.rank - 1; d >= 0; d--) {
        at += i % c->p.shape[d] * in->strides[d];
        i /= c->p.shape[d];
    }
    return at;
}
static uint64_t position(const ew_case *c, int64_t i) {
    uint64_t at = (uint64_t)c->a.position_base;
    if (c->p.position_flat) return at + (uint64_t)i;
    for (int d = c->p.rank - 1; d >= 0; d--) {
        at += (uint64_t)(i % c->p.shape[d] * c->p.position_strides[d]);
        i /= c->p.shape[d];
    }
    return at;
}

static void check(void *context) {
    ew_case *c = context;
    for (int64_t i = 0; i < c->p.elements; i++) {
        double reg[WEFTI_EW_REGISTERS], size[WEFTI_EW_REGISTERS]; /* values and error scales */
        for (int k = 0; k < c->p.inputs; k++) {
            reg[k] = before(c->in[k], source(c, &c->p.input[k], i));
            if (c->in[k].dtype == WEFT_BOOL) reg[k] = reg[k] != 0.0;
            size[k] = 0.0;
        }
        for (int k = 0; k < c->p.instructions; k++) {
            const wefti_ew_instruction *s = &c->p.code[k];
            int n = wefti_ew_op_operands((wefti_ew_op)s->op);
            double u = (double)wefti_philox_uniform(c->a.seed, s->stream, position(c, i));
            double a = n > 0 ? reg[s->a] : 0, b = n > 1 ? reg[s->b] : 0, d = n > 2 ? reg[s->c] : 0;
            double y = reference(s, a, b, d, u), e = 1.0 + fabs(y) + fabs(a) + fabs(b) + fabs(d);
            if (n > 0) e += 4.0 * size[s->a];
            if (n > 1) e += 4.0 * size[s->b] * (1.0 + fabs(a));
            if (n > 2) e += 4.0 * size[s->c];
            if (n > 1) e += 4.0 * size[s->a] * fabs(b);
            reg[s->dst] = y;
            size[s->dst] = e;
        }
        for (int k = 0; k < c->p.outputs; k++) {
            double want = reg[c->p.output[k].reg], tolerance = size[c->p.output[k].reg];
            tolerance = tolerance * c->tolerance;
            weft_dtype t = c->out[k].dtype;
            if (t == WEFT_BOOL) {
                want = want != 0.0;
            } else if (t == WEFT_I32 || t == WEFT_U8) {
                double high = t == WEFT_I32 ? INT32_MAX : 255.0,
                       low = t == WEFT_I32 ? INT32_MIN : 0;
                want = want != want ? 0.0 : want < low ? low : want > high ? high : trunc(want);
                tolerance = 0.0;
            }
            check_close(c->out[k], i, want, tolerance, wefti_ew_op_text(c->p.code[0].op));
        }
    }
}

static void start(ew_case *c, int64_t elements) {
    memset(c, 0, sizeof *c);
    c->p.elements = elements;
    c->p.rank = 1;
    c->p.shape[0] = elements;
    c->p.position_flat = true;
    c->a.seed = random_u64();
    c->a.position_base = random_int(0, 1 << 20);
    c->tolerance = 6e-7; /* a few roundings of 2^-24, relative to the operands' size */
}
static void add_input(ew_case *c, weft_dtype dtype, int64_t count, wefti_ew_broadcast how,
                      int64_t inner, float low, float high) {
    int k = c->p.inputs++;
    c->p.input[k] = (wefti_ew_input){.dtype = dtype, .broadcast = how, .inner = inner};
    c->in[k] = operand_random(INPUT, dtype, count, low, high);
    c->a.in[k] = c->in[k].data;
}
static void add_output(ew_case *c, weft_dtype dtype, int reg) {
    int k = c->p.outputs++;
    c->p.output[k].dtype = dtype;
    c->p.output[k].reg = (uint8_t)reg;
    c->out[k] = operand_new(OUTPUT, dtype, c->p.elements);
    c->a.out[k] = c->out[k].data;
}
static void go(ew_case *c) {
    c->a.program = &c->p;
    assert_int_equal(wefti_ew_check(&c->p), WEFT_OK);
    run_case(run, check, c);
}

static void test_every_op(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 5, 512, 1031, 20000};
    for (int op = 0; op < WEFTI_EW_OP_COUNT; op++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            ew_case c;
            start(&c, sizes[s]);
            bool positive = op == WEFTI_EW_LOG || op == WEFTI_EW_SQRT || op == WEFTI_EW_RSQRT ||
                            op == WEFTI_EW_POW || op == WEFTI_EW_POW_SCALAR ||
                            op == WEFTI_EW_RECIPROCAL;
            bool whole = op >= WEFTI_EW_EQ && op <= WEFTI_EW_GE;
            for (int k = 0; k < 3; k++) {
                add_input(&c, whole ? WEFT_U8 : WEFT_F32, sizes[s], WEFTI_EW_FULL, 0,
                          positive || whole ? 0.25f : -4.0f, 4.0f);
                if (op == WEFTI_EW_DIV && k == 1)
                    for (int64_t i = 0; i < sizes[s]; i++)
                        f32(c.in[1])[i] += f32(c.in[1])[i] < 0 ? -0.5f : 0.5f;
                if (op == WEFTI_EW_WHERE && k == 0)
                    for (int64_t i = 0; i < sizes[s]; i += 3) f32(c.in[0])[i] = 0.0f;
            }
            float imm = op == WEFTI_EW_POW_SCALAR ? (float)random_int(-3, 4) : 0.375f;
            c.p.code[0] = (wefti_ew_instruction){
                .op = (uint8_t)op, .dst = 3, .a = 0, .b = 1, .c = 2, .imm = imm, .imm2 = 2.0f};
            c.p.code[0].stream = random_u64();
            c.p.instructions = 1;
            if (op == WEFTI_EW_POW || op == WEFTI_EW_POW_SCALAR) c.tolerance = 1e-6;
            add_output(&c, WEFT_F32, 3);
            go(&c);
        }
}

static void test_special_values(void **state) {
    (void)state;
    const float values[] = {NAN,     INFINITY, -INFINITY, 0.0f,    -0.0f,    1e-40f,
                            -1e-40f, 1e30f,    -1e30f,    3.4e38f, -3.4e38f, 100.0f,
                            -100.0f, 89.0f,    -104.0f,   1.0f,    -1.0f,    0.5f};
    enum { COUNT = sizeof values / sizeof *values };
    static const uint8_t ops[] = {
        WEFTI_EW_COPY,  WEFTI_EW_NEG,     WEFTI_EW_EXP,       WEFTI_EW_SQRT,    WEFTI_EW_TANH,
        WEFTI_EW_ERF,   WEFTI_EW_SIGMOID, WEFTI_EW_RELU,      WEFTI_EW_MAXIMUM, WEFTI_EW_MINIMUM,
        WEFTI_EW_EQ,    WEFTI_EW_NE,      WEFTI_EW_LT,        WEFTI_EW_LE,      WEFTI_EW_GT,
        WEFTI_EW_GE,    WEFTI_EW_ABS,     WEFTI_EW_SIGN,      WEFTI_EW_CLIP,    WEFTI_EW_LOG,
        WEFTI_EW_WHERE, WEFTI_EW_ADD,     WEFTI_EW_ROUND_BF16};
    for (size_t o = 0; o < sizeof ops; o++) {
        ew_case c;
        start(&c, COUNT * COUNT);
        for (int k = 0; k < 3; k++) {
            add_input(&c, WEFT_F32, COUNT * COUNT, WEFTI_EW_FULL, 0, 0, 0);
            for (int i = 0; i < COUNT * COUNT; i++)
                f32(c.in[k])[i] = values[k == 0 ? i % COUNT : i / COUNT];
        }
        c.p.code[0] = (wefti_ew_instruction){
            .op = ops[o], .dst = 3, .a = 0, .b = 1, .c = 2, .imm = -1.0f, .imm2 = 2.0f};
        c.p.instructions = 1;
        add_output(&c, WEFT_F32, 3);
        c.a.program = &c.p;
        /* exp of 89 overflows f32 but not f64, sums of 3.4e38 too: compare after rounding to f32.
         */
        for (int path = 0; path < PATHS; path++) {
            const wefti_kernels *k = path_kernels(path);
            if (!k) continue;
            k->elementwise(pools[0], &c.a);
            for (int i = 0; i < COUNT * COUNT; i++) {
                double a = (double)f32(c.in[0])[i], b = (double)f32(c.in[1])[i];
                float want = (float)reference(&c.p.code[0], a, b, b, 0.0), got = f32(c.out[0])[i];
                bool equal = (want != want && got != got) || want == got ||
                             fabsf(want - got) <= 1e-6f * fabsf(want) + FLT_MIN;
                if (!equal)
                    fail_msg("%s %s(%g, %g) = %g, should be %g", k->isa,
                             wefti_ew_op_text((wefti_ew_op)ops[o]), a, b, (double)got,
                             (double)want);
            }
        }
        buffers_free();
    }
}

static void test_types(void **state) {
    (void)state;
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16, WEFT_U8, WEFT_BOOL, WEFT_I32};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            ew_case c;
            start(&c, random_int(1, 3000));
            add_input(&c, types[i], c.p.elements, WEFTI_EW_FULL, 0, -300.0f, 300.0f);
            add_output(&c, types[j], 0); /* a cast without instructions */
            go(&c);
        }
}

static void random_shape(ew_case *c) {
    c->p.rank = (int)random_int(1, 4);
    c->p.elements = 1;
    for (int d = 0; d < c->p.rank; d++) {
        c->p.shape[d] = random_int(1, 20);
        if (random_int(0, 40) == 0) c->p.shape[d] = 0;
        c->p.elements *= c->p.shape[d];
    }
}

/* Random chains over random broadcasts, several outputs, dropout by strided global positions. */
static void test_random_programs(void **state) {
    (void)state;
    static const uint8_t ops[] = {WEFTI_EW_ADD,       WEFTI_EW_SUB,     WEFTI_EW_MUL,
                                  WEFTI_EW_TANH,      WEFTI_EW_SILU,    WEFTI_EW_MAXIMUM,
                                  WEFTI_EW_SIGMOID,   WEFTI_EW_DROPOUT, WEFTI_EW_FMA,
                                  WEFTI_EW_GELU_TANH, WEFTI_EW_RELU};
    for (int round = 0; round < 120; round++) {
        ew_case c;
        start(&c, 0);
        random_shape(&c);
        int inputs = (int)random_int(1, 5);
        for (int k = 0; k < inputs; k++) {
            weft_desc desc = {.dtype = random_type(), .rank = (int)random_int(0, c.p.rank)};
            for (int d = 0; d < desc.rank; d++) {
                int64_t size = c.p.shape[c.p.rank - desc.rank + d];
                desc.shape[d] = random_bool() ? size : 1;
            }
            add_input(&c, desc.dtype, weft_desc_elems(&desc), WEFTI_EW_FULL, 1, -1.5f, 1.5f);
            assert_int_equal(wefti_ew_set_input(&c.p, k, &desc), WEFT_OK);
            /* The choice of broadcast must read what NumPy's rules say. */
            int64_t strides[WEFT_MAX_RANK] = {0}, stride = 1;
            for (int d = desc.rank - 1; d >= 0; d--) {
                if (desc.shape[d] != 1) strides[c.p.rank - desc.rank + d] = stride;
                stride *= desc.shape[d];
            }
            wefti_ew_input by_strides = {.broadcast = WEFTI_EW_STRIDED};
            memcpy(by_strides.strides, strides, sizeof strides);
            for (int64_t i = 0; i < c.p.elements; i++)
                assert_int_equal(source(&c, &c.p.input[k], i), source(&c, &by_strides, i));
        }
        int last = inputs;
        c.p.instructions = (int)random_int(1, 6);
        for (int k = 0; k < c.p.instructions; k++, last++) {
            wefti_ew_instruction *s = &c.p.code[k];
            s->op = ops[random_u64() % sizeof ops];
            s->dst = (uint8_t)last;
            s->a = (uint8_t)random_int(0, last - 1);
            s->b = (uint8_t)random_int(0, last - 1);
            s->c = (uint8_t)random_int(0, last - 1);
            s->imm = 0.25f;
            s->stream = random_u64();
        }
        c.p.position_flat = random_bool();
        for (int d = 0; d < c.p.rank; d++)
            c.p.position_strides[d] = d == c.p.rank - 1 && random_bool() ? 1 : random_int(1, 5000);
        add_output(&c, random_type(), last - 1);
        add_output(&c, random_type(), (int)random_int(0, last - 1));
        c.tolerance = 1e-6;
        go(&c);
    }
}

/* An output over its input, and a long chain with all operands of a fused gelu + bias + dropout +
 * residual. */
static void test_in_place(void **state) {
    (void)state;
    ew_case c;
    start(&c, 9000);
    c.in[0] = f32_random(OUTPUT, 9000, -2.0f, 2.0f);
    c.in[1] = f32_random(INPUT, 90, -1.0f, 1.0f);
    c.in[2] = f32_random(INPUT, 9000, -1.0f, 1.0f);
    for (int k = 0; k < 3; k++) c.a.in[k] = c.in[k].data;
    c.p.inputs = 3;
    c.p.input[0] = c.p.input[2] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_FULL};
    c.p.input[1] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_ROW, .inner = 90};
    c.p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_ADD, .dst = 3, .a = 0, .b = 1};
    c.p.code[1] = (wefti_ew_instruction){.op = WEFTI_EW_GELU_TANH, .dst = 3, .a = 3};
    c.p.code[2] = (wefti_ew_instruction){.op = WEFTI_EW_DROPOUT, .dst = 3, .a = 3, .imm = 0.1f};
    c.p.code[3] = (wefti_ew_instruction){.op = WEFTI_EW_ADD, .dst = 3, .a = 3, .b = 2};
    c.p.code[4] = (wefti_ew_instruction){.op = WEFTI_EW_MUL, .dst = 4, .a = 3, .b = 0};
    c.p.instructions = 5;
    c.p.outputs = 2;
    c.p.output[0].reg = 3;
    c.p.output[1].reg = 4;
    c.out[0] = c.in[0];
    c.a.out[0] = c.in[0].data;
    c.out[1] = operand_new(OUTPUT, WEFT_F32, 9000);
    c.a.out[1] = c.out[1].data;
    go(&c);
}

static void test_check_refuses(void **state) {
    (void)state;
    ew_case c;
    start(&c, 10);
    c.p.inputs = 1;
    c.p.input[0] = (wefti_ew_input){.dtype = WEFT_F32};
    c.p.instructions = 1;
    c.p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_ADD, .dst = 1, .a = 0, .b = 0};
    assert_int_equal(wefti_ew_check(&c.p), WEFT_OK);
    c.p.code[0].b = 2; /* never written */
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    c.p.code[0].b = 0;
    c.p.code[0].dst = 0; /* an input */
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    c.p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_DROPOUT, .dst = 1, .imm = 1.0f};
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    c.p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_OP_COUNT, .dst = 1};
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    c.p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_NEG, .dst = 1};
    c.p.input[0].dtype = WEFT_F64;
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    c.p.input[0].dtype = WEFT_F32;
    c.p.shape[0] = 11;
    assert_int_equal(wefti_ew_check(&c.p), WEFT_E_ARG);
    weft_desc wrong = {.dtype = WEFT_F32, .rank = 1, .shape = {7}};
    c.p.shape[0] = 10;
    assert_int_equal(wefti_ew_set_input(&c.p, 0, &wrong), WEFT_E_SHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op), cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_types),    cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_in_place), cmocka_unit_test(test_check_refuses),
    };
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
