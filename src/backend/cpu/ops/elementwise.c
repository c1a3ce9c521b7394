/* Elementwise nodes, single and fused, run as programs of the elementwise interpreter. */
#include <string.h>

#include "backend/cpu/ops/ops.h"
#include "graph/graph.h"
#include "weft/ops.h"

enum { MAX_RANDOM = 8 };

typedef struct elementwise_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    wefti_ew_program program;
    int random; /* dropout instructions */
    struct {
        int instruction;
        const weft_node *node;
    } dropout[MAX_RANDOM];
    /* shape that dropouts draw for: all draw for the same piece of the same whole */
    weft_desc drawn;
} elementwise_kernel;

static weft_status run_elementwise(const wefti_kernel *kernel, const wefti_run *run,
                                   const void *const *in, void *const *out, void *workspace) {
    const elementwise_kernel *k = (const elementwise_kernel *)kernel;
    (void)workspace;
    wefti_elementwise_args args = {.program = &k->program};
    for (int i = 0; i < k->program.inputs; i++) args.in[i] = in[i];
    for (int o = 0; o < k->program.outputs; o++) args.out[o] = out[o];
    if (!k->random) {
        k->kernels->elementwise(run->pool, &args);
        return WEFT_OK;
    }
    wefti_ew_program seeded = k->program;
    for (int i = 0; i < k->random; i++)
        seeded.code[k->dropout[i].instruction].stream =
            wefti_random_stream(&run->random, k->dropout[i].node);
    args.program = &seeded;
    args.seed = run->random.seed;
    int64_t strides[WEFT_MAX_RANK];
    args.position_base = wefti_random_place(&run->random, k->dropout[0].node, &k->drawn, strides);
    k->kernels->elementwise(run->pool, &args);
    return WEFT_OK;
}

/* How an op's node becomes an instruction. */
typedef enum row_form {
    FORM_PLAIN = 1, /* passes the operands in order; 0: no row */
    FORM_SWAPPED,   /* the op takes (x, dy), the instruction (dy, x) */
    FORM_COMPARE,   /* the attribute `relation` names the instruction */
    FORM_SCALE,     /* x factor */
    FORM_SHIFT,     /* + term */
    FORM_CLIP,      /* between low and high */
    FORM_CLIP_GRAD,
    FORM_CAST,
    FORM_DROPOUT
} row_form;

typedef struct elementwise_row {
    row_form form;
    wefti_ew_op code;
} elementwise_row;

static const elementwise_row rows[WEFTI_OPS] = {
    [WEFTI_OP_add] = {FORM_PLAIN, WEFTI_EW_ADD},
    [WEFTI_OP_sub] = {FORM_PLAIN, WEFTI_EW_SUB},
    [WEFTI_OP_mul] = {FORM_PLAIN, WEFTI_EW_MUL},
    [WEFTI_OP_div] = {FORM_PLAIN, WEFTI_EW_DIV},
    [WEFTI_OP_maximum] = {FORM_PLAIN, WEFTI_EW_MAXIMUM},
    [WEFTI_OP_minimum] = {FORM_PLAIN, WEFTI_EW_MINIMUM},
    [WEFTI_OP_pow] = {FORM_PLAIN, WEFTI_EW_POW},
    [WEFTI_OP_where] = {FORM_PLAIN, WEFTI_EW_WHERE},
    [WEFTI_OP_neg] = {FORM_PLAIN, WEFTI_EW_NEG},
    [WEFTI_OP_exp] = {FORM_PLAIN, WEFTI_EW_EXP},
    [WEFTI_OP_log] = {FORM_PLAIN, WEFTI_EW_LOG},
    [WEFTI_OP_sqrt] = {FORM_PLAIN, WEFTI_EW_SQRT},
    [WEFTI_OP_rsqrt] = {FORM_PLAIN, WEFTI_EW_RSQRT},
    [WEFTI_OP_tanh] = {FORM_PLAIN, WEFTI_EW_TANH},
    [WEFTI_OP_sigmoid] = {FORM_PLAIN, WEFTI_EW_SIGMOID},
    [WEFTI_OP_relu] = {FORM_PLAIN, WEFTI_EW_RELU},
    [WEFTI_OP_gelu] = {FORM_PLAIN, WEFTI_EW_GELU_TANH},
    [WEFTI_OP_gelu_erf] = {FORM_PLAIN, WEFTI_EW_GELU_ERF},
    [WEFTI_OP_silu] = {FORM_PLAIN, WEFTI_EW_SILU},
    [WEFTI_OP_abs] = {FORM_PLAIN, WEFTI_EW_ABS},
    [WEFTI_OP_sign] = {FORM_PLAIN, WEFTI_EW_SIGN},
    [WEFTI_OP_square] = {FORM_PLAIN, WEFTI_EW_SQUARE},
    [WEFTI_OP_broadcast_to] = {FORM_PLAIN, WEFTI_EW_COPY},
    [WEFTI_OP_tanh_grad] = {FORM_SWAPPED, WEFTI_EW_TANH_GRAD},
    [WEFTI_OP_sigmoid_grad] = {FORM_SWAPPED, WEFTI_EW_SIGMOID_GRAD},
    [WEFTI_OP_relu_grad] = {FORM_SWAPPED, WEFTI_EW_RELU_GRAD},
    [WEFTI_OP_gelu_grad] = {FORM_SWAPPED, WEFTI_EW_GELU_TANH_GRAD},
    [WEFTI_OP_gelu_erf_grad] = {FORM_SWAPPED, WEFTI_EW_GELU_ERF_GRAD},
    [WEFTI_OP_silu_grad] = {FORM_SWAPPED, WEFTI_EW_SILU_GRAD},
    [WEFTI_OP_compare] = {FORM_COMPARE, WEFTI_EW_EQ},
    [WEFTI_OP_scale] = {FORM_SCALE, WEFTI_EW_SCALE},
    [WEFTI_OP_shift] = {FORM_SHIFT, WEFTI_EW_SCALE},
    [WEFTI_OP_clip] = {FORM_CLIP, WEFTI_EW_CLIP},
    [WEFTI_OP_clip_grad] = {FORM_CLIP_GRAD, WEFTI_EW_CLIP_GRAD},
    [WEFTI_OP_cast] = {FORM_CAST, WEFTI_EW_COPY},
    [WEFTI_OP_dropout] = {FORM_DROPOUT, WEFTI_EW_DROPOUT},
};

static bool storable(weft_dtype d) {
    return d == WEFT_F32 || d == WEFT_BF16 || d == WEFT_U8 || d == WEFT_BOOL || d == WEFT_I32;
}

/* Whether f32 registers are exact for the operands. They hold every u8 and bool, and their sums and
 * products, but not every i32. A cast from i32 is rounded once, as it should be. The reference
 * backend runs all other ops on i32. */
static bool exact_operands(const weft_node *n) {
    for (int i = 0; i < n->inputs; i++)
        if (wefti_in(n, i)->dtype == WEFT_I32 && !(n->op->flags & WEFTI_OP_CONVERTS)) return false;
    return true;
}

/* The dropouts of one program share its positions. Checks that n draws at the same positions as the
 * first dropout: in the whole, and in pieces that follow a whole. */
static bool same_place(const elementwise_kernel *k, const weft_node *n) {
    static const wefti_random at[] = {{.row_offset = 0}, {.row_offset = 1, .samples = 1}};
    const weft_desc *x = wefti_out(n, 0);
    if (x->rank != k->drawn.rank) return false;
    for (int d = 0; d < x->rank; d++)
        if (x->shape[d] != k->drawn.shape[d]) return false;
    if (!k->random) return true;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        int64_t first[WEFT_MAX_RANK] = {0}, own[WEFT_MAX_RANK] = {0};
        if (wefti_random_place(&at[i], n, x, own) !=
                wefti_random_place(&at[i], k->dropout[0].node, x, first) ||
            memcmp(own, first, sizeof own))
            return false;
    }
    return true;
}

static const wefti_ew_op relations[] = {
    [WEFT_EQ] = WEFTI_EW_EQ, [WEFT_NE] = WEFTI_EW_NE, [WEFT_LT] = WEFTI_EW_LT,
    [WEFT_LE] = WEFTI_EW_LE, [WEFT_GT] = WEFTI_EW_GT, [WEFT_GE] = WEFTI_EW_GE};

static const elementwise_row *row_of(const weft_op_def *op) {
    return rows[op->id].form ? &rows[op->id] : NULL;
}

/* Translates one node to one instruction, from registers a, b, c into dst. */
static bool translate(elementwise_kernel *k, const weft_node *n, const uint8_t *reg, uint8_t dst) {
    wefti_ew_program *p = &k->program;
    if (p->instructions == WEFTI_EW_CODE || !exact_operands(n)) return false;
    wefti_ew_instruction x = {.dst = dst, .a = reg[0], .b = reg[1], .c = reg[2]};
    const elementwise_row *row = row_of(n->op);
    if (!row) return false;
    x.op = (uint8_t)row->code;
    switch (row->form) {
    case FORM_PLAIN:
        break;
    case FORM_SWAPPED:
    case FORM_CLIP:
    case FORM_CLIP_GRAD:
        if (row->form != FORM_CLIP) {
            x.a = reg[1];
            x.b = reg[0];
        }
        if (row->form == FORM_SWAPPED) break;
        x.imm = (float)wefti_attr_float(n, WEFTI_AT_low);
        x.imm2 = (float)wefti_attr_float(n, WEFTI_AT_high);
        break;
    case FORM_COMPARE:
        x.op = (uint8_t)relations[wefti_attr_int(n, WEFTI_AT_relation)];
        break;
    case FORM_SCALE:
        x.imm = (float)wefti_attr_float(n, WEFTI_AT_factor);
        break;
    case FORM_SHIFT:
        x.imm = 1.0f;
        x.imm2 = (float)wefti_attr_float(n, WEFTI_AT_term);
        break;
    case FORM_CAST:
        if (wefti_in(n, 0)->dtype == WEFT_I32 && wefti_out(n, 0)->dtype == WEFT_I32) return false;
        if (wefti_out(n, 0)->dtype == WEFT_BF16) x.op = WEFTI_EW_ROUND_BF16; /* else it truncates */
        break;
    case FORM_DROPOUT:
        if (k->random == MAX_RANDOM || !same_place(k, n)) return false;
        x.imm = wefti_cpu_rate(wefti_attr_float(n, WEFTI_AT_rate));
        k->dropout[k->random].instruction = p->instructions;
        k->dropout[k->random++].node = n;
        break;
    }
    p->code[p->instructions++] = x;
    return true;
}

/* Casts and integer limits take effect only on storing. So within a body, only floating results and
 * results that are 0 or 1 can be read again. */
static bool readable_later(const weft_body *b, const weft_node *n) {
    weft_dtype to = wefti_out(n, 0)->dtype;
    bool one = to == WEFT_BOOL && !(n->op->flags & WEFTI_OP_CONVERTS);
    if (to == WEFT_F32 || to == WEFT_BF16 || one) return true;
    for (int64_t x = 0; x < b->node_count; x++)
        for (int i = 0; i < b->nodes[x].inputs; i++)
            if (b->nodes[x].in[i] == n->out[0]) return false;
    return true;
}

/* Builds the program of a fused node's whole body, or of the node alone. */
static bool build_program(elementwise_kernel *k, const weft_node *n) {
    wefti_ew_program *p = &k->program;
    if (n->inputs > WEFTI_EW_INPUTS || n->outputs > WEFTI_EW_OUTPUTS) return false;
    p->inputs = n->inputs;
    p->outputs = n->outputs;
    if (!n->callee) {
        uint8_t reg[3] = {0, 1, 2};
        p->output[0].reg = (uint8_t)n->inputs;
        return n->inputs <= 3 && translate(k, n, reg, (uint8_t)n->inputs);
    }
    const weft_body *b = n->callee;
    uint8_t reg_of[64];
    int next = n->inputs;
    if (b->value_count > 64) return false;
    for (int64_t i = 0; i < b->in_count; i++) reg_of[b->in[i]] = (uint8_t)i;
    for (int64_t x = 0; x < b->node_count; x++) {
        const weft_node *inner = &b->nodes[x];
        uint8_t reg[3] = {0, 0, 0};
        if (inner->inputs > 3 || next >= WEFTI_EW_REGISTERS || !readable_later(b, inner))
            return false;
        for (int i = 0; i < inner->inputs; i++) reg[i] = reg_of[inner->in[i]];
        if (!translate(k, inner, reg, (uint8_t)next)) return false;
        reg_of[inner->out[0]] = (uint8_t)next++;
    }
    for (int64_t o = 0; o < b->out_count; o++) p->output[o].reg = reg_of[b->out[o]];
    return true;
}

/* Positions are contiguous if the piece is: rows of the whole, or all of it. */
static void set_positions(elementwise_kernel *k) {
    wefti_ew_program *p = &k->program;
    int64_t stride = 1;
    p->position_flat = true;
    if (!k->random) return;
    (void)wefti_random_place(&(wefti_random){0}, k->dropout[0].node, &k->drawn,
                             p->position_strides);
    for (int d = p->rank - 1; d >= 0; d--) {
        if (p->shape[d] != 1 && p->position_strides[d] != stride) p->position_flat = false;
        stride *= p->shape[d];
    }
}

typedef bool builder(elementwise_kernel *k, const weft_node *n);

static weft_status fill(elementwise_kernel *k, const weft_node *n, builder *build) {
    wefti_ew_program *p = &k->program;
    const weft_desc *y = wefti_out(n, 0);
    p->rank = y->rank;
    memcpy(p->shape, y->shape, sizeof p->shape);
    p->elements = weft_desc_elems(y);
    k->drawn = *y;
    for (int o = 0; o < n->outputs; o++) {
        if (!storable(wefti_out(n, o)->dtype)) return WEFT_E_NO_IMPL;
        p->output[o].dtype = wefti_out(n, o)->dtype;
    }
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        if (!x || !storable(x->dtype)) return WEFT_E_NO_IMPL;
        if (i < WEFTI_EW_INPUTS && wefti_ew_set_input(p, i, x) < 0) return WEFT_E_NO_IMPL;
        if (k->base.in_place < 0 && weft_desc_elems(x) == p->elements &&
            weft_dtype_bytes(x->dtype) == weft_dtype_bytes(y->dtype) &&
            p->input[i].broadcast == WEFTI_EW_FULL)
            k->base.in_place = i;
    }
    if (!build(k, n)) return WEFT_E_NO_IMPL;
    set_positions(k);
    if (wefti_ew_check(p) < 0) return WEFT_E_NO_IMPL;
    return WEFT_OK;
}

static weft_status prepare(const weft_node *n, builder *build, const wefti_prepare *options,
                           wefti_kernel **out) {
    if (options->accumulate) return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(elementwise_kernel), "elementwise", run_elementwise, &base));
    elementwise_kernel *k = (elementwise_kernel *)base;
    k->kernels = wefti_kernels_best();
    weft_status status = fill(k, n, build);
    if (status < 0) {
        wefti_kernel_destroy(base);
        return status;
    }
    *out = base;
    return WEFT_OK;
}

weft_status wefti_cpu_elementwise(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    return prepare(n, build_program, options, out);
}

/* mse_grad(x, target, dloss) -> 2 (x - target) dloss / count */
static bool build_mse_grad(elementwise_kernel *k, const weft_node *n) {
    wefti_ew_program *p = &k->program;
    double count = (double)wefti_attr_int(n, WEFTI_AT_count);
    if (count == 0.0) count = (double)p->elements;
    p->inputs = 3;
    p->outputs = 1;
    p->code[0] = (wefti_ew_instruction){.op = WEFTI_EW_SUB, .dst = 3, .a = 0, .b = 1};
    p->code[1] = (wefti_ew_instruction){.op = WEFTI_EW_MUL, .dst = 3, .a = 3, .b = 2};
    p->code[2] = (wefti_ew_instruction){
        .op = WEFTI_EW_SCALE, .dst = 3, .a = 3, .imm = count > 0.0 ? (float)(2.0 / count) : 0.0f};
    p->instructions = 3;
    p->output[0].reg = 3;
    return true;
}

weft_status wefti_cpu_mse_grad(const weft_node *n, const wefti_prepare *options,
                               wefti_kernel **out) {
    return prepare(n, build_mse_grad, options, out);
}
