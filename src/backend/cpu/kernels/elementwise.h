/* A small interpreter for a chain of elementwise ops. It runs the chain block by block in the
 * first-level cache. So a chain of any length makes only one pass over memory.
 *
 * A program is a list of instructions on f32 registers, each one block long. Register i < inputs is
 * input i; instructions write the other registers. Outputs name registers.
 *
 * Integers become f32 on loading (exact up to 2^24). On storing they are truncated toward zero and
 * saturated (NaN becomes 0). Booleans are 0 and 1, stored as "not equal to 0". */
#ifndef WEFTI_CPU_KERNELS_ELEMENTWISE_H
#define WEFTI_CPU_KERNELS_ELEMENTWISE_H

#include "backend/cpu/types.h"

/* X(NAME, name, operands), with the semantics beside each entry. `imm` and `imm2` are the
 * instruction's immediates. Gradients take (dy, x); sigmoid and tanh gradients take (dy, y). */
#define WEFTI_EW_OPS(X)                                                                            \
    X(COPY, copy, 1)         /* a */                                                               \
    X(CONSTANT, constant, 0) /* imm */                                                             \
    X(ADD, add, 2)           /* a + b */                                                           \
    X(SUB, sub, 2)           /* a - b */                                                           \
    X(MUL, mul, 2)           /* a b */                                                             \
    X(DIV, div, 2)           /* a / b */                                                           \
    X(FMA, fma, 3)           /* a b + c */                                                         \
    X(SCALE, scale, 1)       /* a imm + imm2 */                                                    \
    X(AXPY, axpy, 2)         /* a + imm b */                                                       \
    X(NEG, neg, 1)           /* -a */                                                              \
    X(EXP, exp, 1)           /* e^a */                                                             \
    X(LOG, log, 1)           /* ln a */                                                            \
    X(SQRT, sqrt, 1)                                                                               \
    X(RSQRT, rsqrt, 1)           /* 1 / sqrt(a) */                                                 \
    X(RECIPROCAL, reciprocal, 1) /* 1 / a */                                                       \
    X(TANH, tanh, 1)                                                                               \
    X(ERF, erf, 1)                                                                                 \
    X(SIGMOID, sigmoid, 1)                                                                         \
    X(RELU, relu, 1)                     /* max(a, 0); NaN stays NaN */                            \
    X(GELU_TANH, gelu_tanh, 1)           /* Hendrycks & Gimpel 2016, tanh form */                  \
    X(GELU_ERF, gelu_erf, 1)             /* the exact form */                                      \
    X(SILU, silu, 1)                     /* a sigmoid(a) */                                        \
    X(RELU_GRAD, relu_grad, 2)           /* dy [x > 0] */                                          \
    X(GELU_TANH_GRAD, gelu_tanh_grad, 2) /* (dy, x) */                                             \
    X(GELU_ERF_GRAD, gelu_erf_grad, 2)   /* (dy, x) */                                             \
    X(SILU_GRAD, silu_grad, 2)           /* (dy, x) */                                             \
    X(SIGMOID_GRAD, sigmoid_grad, 2)     /* (dy, y): dy y (1 - y) */                               \
    X(TANH_GRAD, tanh_grad, 2)           /* (dy, y): dy (1 - y^2) */                               \
    X(MAXIMUM, maximum, 2)               /* NaN if either is NaN */                                \
    X(MINIMUM, minimum, 2)               /* NaN if either is NaN */                                \
    X(WHERE, where, 3)                   /* a != 0 ? b : c */                                      \
    X(EQ, eq, 2)                         /* 1 or 0 */                                              \
    X(NE, ne, 2)                                                                                   \
    X(LT, lt, 2)                                                                                   \
    X(LE, le, 2)                                                                                   \
    X(GT, gt, 2)                                                                                   \
    X(GE, ge, 2)                                                                                   \
    X(CLIP, clip, 1)             /* min(max(a, imm), imm2); NaN stays NaN */                       \
    X(CLIP_GRAD, clip_grad, 2)   /* (dy, x): dy where imm <= x <= imm2, else 0 */                  \
    X(POW, pow, 2)               /* a^b, C99 powf semantics */                                     \
    X(POW_SCALAR, pow_scalar, 1) /* a^imm; fast for imm in {2, 3, -1, -2} */                       \
    X(ABS, abs, 1)                                                                                 \
    X(SIGN, sign, 1) /* -1, 0, 1; NaN stays NaN */                                                 \
    X(SQUARE, square, 1)                                                                           \
    X(ROUND_BF16, round_bf16, 1)     /* to the nearest bf16: a cast and back */                    \
    X(DROPOUT, dropout, 1)           /* keep ? a / (1 - imm) : 0; see stream, position below */    \
    X(DROPOUT_MASK, dropout_mask, 0) /* keep ? 1 / (1 - imm) : 0 */

typedef enum wefti_ew_op {
#define WEFTI_EW_ROW(NAME, name, operands) WEFTI_EW_##NAME,
    WEFTI_EW_OPS(WEFTI_EW_ROW)
#undef WEFTI_EW_ROW
        WEFTI_EW_OP_COUNT
} wefti_ew_op;

enum { WEFTI_EW_CODE = 32, WEFTI_EW_INPUTS = 12, WEFTI_EW_OUTPUTS = 6, WEFTI_EW_REGISTERS = 44 };

typedef struct wefti_ew_instruction {
    uint8_t op;      /* wefti_ew_op */
    uint8_t dst;     /* >= inputs; may equal a, b or c */
    uint8_t a, b, c; /* the operands; an op may have fewer than three */
    float imm, imm2;
    uint64_t stream; /* dropout: the Philox stream */
} wefti_ew_instruction;

typedef enum wefti_ew_broadcast {
    WEFTI_EW_FULL,   /* element i */
    WEFTI_EW_SCALAR, /* element 0 */
    WEFTI_EW_ROW,    /* element i % inner: a vector along the last dims */
    WEFTI_EW_COLUMN, /* element i / inner */
    WEFTI_EW_STRIDED /* by strides over the program's shape */
} wefti_ew_broadcast;

typedef struct wefti_ew_input {
    weft_dtype dtype; /* f32, bf16, u8, bool, i32 */
    wefti_ew_broadcast broadcast;
    int64_t inner;
    int64_t strides[WEFT_MAX_RANK]; /* in elements; 0 repeats; strided only */
} wefti_ew_input;

typedef struct wefti_ew_program {
    int instructions, inputs, outputs;
    wefti_ew_instruction code[WEFTI_EW_CODE];
    wefti_ew_input input[WEFTI_EW_INPUTS];
    struct {
        weft_dtype dtype; /* f32, bf16, u8, bool, i32; dense */
        uint8_t reg;      /* an input's register is legal: a cast or broadcast copy */
    } output[WEFTI_EW_OUTPUTS];
    int64_t elements;
    /* The shape of the outputs, for strided inputs and global positions; its product == elements.
     * Rank 0: flat. */
    int rank;
    int64_t shape[WEFT_MAX_RANK];
    /* Dropout: the Philox position of local element [i0, i1, ...] is base + sum i_d *
     * position_strides[d]. With position_flat, it is base + the flat local index. */
    bool position_flat;
    int64_t position_strides[WEFT_MAX_RANK];
} wefti_ew_program;

typedef struct wefti_elementwise_args {
    const wefti_ew_program *program;
    const void *in[WEFTI_EW_INPUTS];
    /* in place: may equal an input of kind FULL and the same element size */
    void *out[WEFTI_EW_OUTPUTS];
    uint64_t seed; /* dropout keeps iff wefti_philox_uniform(seed, stream, position) >= imm */
    int64_t position_base;
} wefti_elementwise_args;

/* WEFT_E_ARG with the reason if the program breaks a rule above. Kernels do not check. */
weft_status wefti_ew_check(const wefti_ew_program *program) WEFT_CHECKED;
/* Sets the program's input `index` to the cheapest broadcast that reads `shape` as the program's
 * shape under NumPy rules. Set program->rank and shape first. Returns WEFT_E_SHAPE if the shapes do
 * not fit. */
weft_status wefti_ew_set_input(wefti_ew_program *program, int index,
                               const weft_desc *desc) WEFT_CHECKED;
const char *wefti_ew_op_text(wefti_ew_op op); /* "gelu_tanh" */
int wefti_ew_op_operands(wefti_ew_op op);

#endif
