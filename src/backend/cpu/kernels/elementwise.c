/* Elementwise programs as data: names, checking, broadcasting. See kernels/elementwise.h. */
#include "backend/cpu/kernels/elementwise.h"

#include "base/status.h"

const char *wefti_ew_op_text(wefti_ew_op op) {
    switch (op) {
#define ROW(NAME, name, operands)                                                                  \
    case WEFTI_EW_##NAME:                                                                          \
        return #name;
        WEFTI_EW_OPS(ROW)
#undef ROW
    case WEFTI_EW_OP_COUNT:
        break;
    }
    return "?";
}

int wefti_ew_op_operands(wefti_ew_op op) {
    static const uint8_t operands[WEFTI_EW_OP_COUNT] = {
#define ROW(NAME, name, count) [WEFTI_EW_##NAME] = count,
        WEFTI_EW_OPS(ROW)
#undef ROW
    };
    return (unsigned)op < WEFTI_EW_OP_COUNT ? operands[op] : 0;
}

static bool dtype_legal(weft_dtype dtype) {
    return dtype == WEFT_F32 || dtype == WEFT_BF16 || dtype == WEFT_U8 || dtype == WEFT_BOOL ||
           dtype == WEFT_I32;
}

static weft_status check_code(const wefti_ew_program *p, uint64_t *written) {
    for (int k = 0; k < p->instructions; k++) {
        const wefti_ew_instruction *in = &p->code[k];
        WEFT_REQUIRE(in->op < WEFTI_EW_OP_COUNT, WEFT_E_ARG, "instruction %d: unknown op %d", k,
                     in->op);
        const char *name = wefti_ew_op_text((wefti_ew_op)in->op);
        const uint8_t reg[3] = {in->a, in->b, in->c};
        for (int j = 0; j < wefti_ew_op_operands((wefti_ew_op)in->op); j++)
            WEFT_REQUIRE(reg[j] < WEFTI_EW_REGISTERS && (*written >> reg[j] & 1u), WEFT_E_ARG,
                         "instruction %d (%s): operand %d reads register %d before it is written",
                         k, name, j, reg[j]);
        WEFT_REQUIRE(in->dst >= p->inputs && in->dst < WEFTI_EW_REGISTERS, WEFT_E_ARG,
                     "instruction %d (%s): writes register %d, not one of %d..%d", k, name, in->dst,
                     p->inputs, WEFTI_EW_REGISTERS - 1);
        if (in->op == WEFTI_EW_DROPOUT || in->op == WEFTI_EW_DROPOUT_MASK)
            WEFT_REQUIRE(in->imm >= 0.0f && in->imm < 1.0f, WEFT_E_ARG,
                         "instruction %d: a dropout rate is in [0, 1), not %g", k, (double)in->imm);
        *written |= (uint64_t)1 << in->dst;
    }
    return WEFT_OK;
}

weft_status wefti_ew_check(const wefti_ew_program *p) {
    WEFT_REQUIRE(
        p->instructions >= 0 && p->instructions <= WEFTI_EW_CODE && p->inputs >= 0 &&
            p->inputs <= WEFTI_EW_INPUTS && p->outputs >= 0 && p->outputs <= WEFTI_EW_OUTPUTS,
        WEFT_E_ARG, "%d instructions, %d inputs, %d outputs: at most %d, %d, %d", p->instructions,
        p->inputs, p->outputs, WEFTI_EW_CODE, WEFTI_EW_INPUTS, WEFTI_EW_OUTPUTS);
    WEFT_REQUIRE(p->rank >= 0 && p->rank <= WEFT_MAX_RANK, WEFT_E_ARG, "rank %d", p->rank);
    int64_t elements = 1;
    for (int d = 0; d < p->rank; d++) elements *= p->shape[d];
    WEFT_REQUIRE(p->elements >= 0 && (p->rank == 0 || elements == p->elements), WEFT_E_ARG,
                 "the shape has %lld elements, the program %lld", (long long)elements,
                 (long long)p->elements);
    for (int k = 0; k < p->inputs; k++) {
        const wefti_ew_input *in = &p->input[k];
        WEFT_REQUIRE(dtype_legal(in->dtype), WEFT_E_ARG, "input %d is %s", k,
                     weft_dtype_text(in->dtype));
        bool row = in->broadcast == WEFTI_EW_ROW || in->broadcast == WEFTI_EW_COLUMN;
        WEFT_REQUIRE(!row || in->inner >= 1, WEFT_E_ARG, "input %d repeats every %lld elements", k,
                     (long long)in->inner);
        WEFT_REQUIRE(in->broadcast != WEFTI_EW_STRIDED || p->rank > 0 || p->elements <= 1,
                     WEFT_E_ARG, "input %d has strides, the program no shape", k);
    }
    uint64_t written = ((uint64_t)1 << p->inputs) - 1;
    WEFT_TRY(check_code(p, &written));
    for (int k = 0; k < p->outputs; k++) {
        WEFT_REQUIRE(dtype_legal(p->output[k].dtype), WEFT_E_ARG, "output %d is %s", k,
                     weft_dtype_text(p->output[k].dtype));
        WEFT_REQUIRE(p->output[k].reg < WEFTI_EW_REGISTERS && (written >> p->output[k].reg & 1u),
                     WEFT_E_ARG, "output %d is register %d, which nothing writes", k,
                     p->output[k].reg);
    }
    return WEFT_OK;
}

weft_status wefti_ew_set_input(wefti_ew_program *p, int index, const weft_desc *desc) {
    WEFT_REQUIRE(index >= 0 && index < WEFTI_EW_INPUTS, WEFT_E_ARG, "no input %d", index);
    WEFT_REQUIRE(desc->rank >= 0 && desc->rank <= p->rank, WEFT_E_SHAPE,
                 "an input of rank %d does not broadcast to rank %d", desc->rank, p->rank);
    wefti_ew_input in = {.dtype = desc->dtype};
    /* Dims are grouped from the last one on. Does each dim repeat or advance? A dim of size 1 fits
     * both. */
    bool repeats[WEFT_MAX_RANK];
    int64_t stride = 1;
    for (int d = p->rank - 1, s = desc->rank - 1; d >= 0; d--, s--) {
        int64_t size = s >= 0 ? desc->shape[s] : 1;
        WEFT_REQUIRE(size == 1 || size == p->shape[d], WEFT_E_SHAPE,
                     "size %lld does not broadcast to %lld in dimension %d", (long long)size,
                     (long long)p->shape[d], d);
        repeats[d] = size == 1;
        in.strides[d] = size == 1 ? 0 : stride;
        stride *= size;
    }
    int changes = 0, last = -1; /* over dims larger than 1, starting from the last */
    bool inner_repeats = false;
    int64_t inner = 1;
    for (int d = p->rank - 1; d >= 0; d--) {
        if (p->shape[d] == 1) continue;
        if (last < 0)
            inner_repeats = repeats[d];
        else if (repeats[d] != repeats[last])
            changes++;
        if (changes == 0) inner *= p->shape[d];
        last = d;
    }
    in.inner = inner;
    if (last < 0 || (changes == 0 && !inner_repeats))
        in.broadcast = WEFTI_EW_FULL;
    else if (changes == 0)
        in.broadcast = WEFTI_EW_SCALAR;
    else if (changes == 1)
        in.broadcast = inner_repeats ? WEFTI_EW_COLUMN : WEFTI_EW_ROW;
    else
        in.broadcast = WEFTI_EW_STRIDED;
    if (in.inner < 1) in.inner = 1; /* an empty shape */
    p->input[index] = in;
    return WEFT_OK;
}
