/* The cost of every op on each of its cases, against counts that are made another way.
 *
 * Products, sums and attention: the reference kernel counts. With ones for operands, a sum of
 * products is the number of its terms. The scores of equal keys give the logarithm of the number of
 * keys that a query sees.
 * Other ops: operations per element, counted in the formula in the table.
 * Bytes: of the operands in the case, or of the elements that the result shows. */
#include "support.h"

#include <math.h>
#include "ops/harness.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};
static int failures, counted; /* of the running test; cases that a count was compared for */

static void expect(const op_setup *s, const char *what, double cost, double count) {
    counted++;
    if (cost == count) return;
    wefti_text t = {0};
    for (int i = 0; i < s->inputs; i++)
        wefti_text_add(&t, "%s%s", i ? ", " : "",
                       s->in[i].style == '-' ? "-" : wefti_desc_text(&s->in[i].desc).text);
    wefti_attrs_print(s->op, s->attrs, &t);
    char *text = wefti_text_take(&t);
    print_error("%s(%s: %s %g, counted %g\n", s->op->name, text ? text : "", what, cost, count);
    wefti_free(text);
    failures++;
}

static wefti_cost cost_of(const op_graph *g) {
    wefti_cost cost;
    wefti_node_cost(g->node, &cost);
    return cost;
}

static double elems(const op_graph *g, int operand) {
    return (double)weft_desc_elems(wefti_in(g->node, operand));
}

/* ---- counted by the reference ---- */

/* Terms of output 0 when all operands are ones and each of `zeros` is 0; -1: some terms fall
 * outside, so that the reference leaves them out. */
typedef struct product {
    const char *op;
    double flops; /* of a term */
    uint32_t zeros;
    double index; /* value of integer operands: rows in use, a class that exists */
} product;

static const product products[] = {
    {"linear", 2, 1u << 2, 0},
    {"linear_grad_input", 2, 0, 0},
    {"linear_grad_weight", 2, 0, 0},
    {"matmul", 2, 0, 0},
    {"conv2d", 2, 1u << 2, 0},
    {"conv3d", 2, 1u << 2, 0},
    {"conv_grad_input", 2, 0, 0},
    {"conv_grad_weight", 2, 0, 0},
    {"moe_linear", 2, 0, 1000},
    {"moe_linear_grad_weight", 2, 0, 1000},
    {"moe_dispatch", 2, 0, 0},
    {"moe_combine", 2, 0, 0},
    {"moe_dot", 2, 0, 0},
    {"sum", 1, 0, 0},
    {"sum_to", 1, 0, 0},
    {"embedding_grad", 1, 0, 0},
    {"scatter_add", 1, 1u << 0, 0},
    {"top_k_grad", 1, 0, 0},
};

static const product *product_of(const weft_op_def *op) {
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (!strcmp(products[i].op, op->name)) return &products[i];
    return NULL;
}

static double attr_or(const op_setup *s, wefti_attr_id id, double otherwise) {
    for (int i = 0; i < wefti_attr_count(s->op); i++)
        if (s->attrs[i].id == id) return (double)s->attrs[i].i;
    return otherwise;
}

static bool is_padded(const op_setup *s) {
    for (int i = 0; i < wefti_attr_count(s->op); i++)
        for (int d = 0; s->attrs[i].id == WEFTI_AT_padding && d < s->attrs[i].ints.count; d++)
            if (s->attrs[i].ints.v[d]) return true;
    return false;
}

static bool has_no_slots(const op_setup *s) {
    return attr_or(s, WEFTI_AT_capacity, 1) == 0 || weft_desc_elems(&s->in[0].desc) == 0;
}

static void count_terms(const op_setup *s, const product *p) {
    op_graph g;
    double terms = 0;
    if (op_graph_open(s, 1, &g) < 0) fail_msg("%s", weft_error_message());
    /* Indices count from `begin`, experts and slots from first_expert and first_slot. */
    double index = p->index + attr_or(s, WEFTI_AT_begin, 0);
    for (int i = 0; i < s->inputs; i++) {
        double value = p->zeros >> i & 1u ? 0.0 : 1.0;
        if (s->in[i].style == '<')
            value = index + attr_or(s, i == 1 ? WEFTI_AT_first_expert : WEFTI_AT_first_slot, 0);
        for (int64_t e = 0; g.in[i] && e < weft_desc_elems(&s->in[i].desc); e++) g.in[i][e] = value;
    }
    if (op_graph_run(&g, &stream) < 0) fail_msg("%s", weft_error_message());
    for (int64_t e = 0; e < weft_desc_elems(wefti_out(g.node, 0)); e++) terms += g.out[0][e];
    if (is_padded(s)) {
        /* A kernel multiplies by the zeros around x too: a bound from below is all that the
         * reference has. The same window without padding is counted exactly in other cases. */
        counted++;
        if (cost_of(&g).flops < p->flops * terms || cost_of(&g).flops > 8 * p->flops * terms)
            expect(s, "flops", cost_of(&g).flops, p->flops * terms);
    } else if (!has_no_slots(s)) {
        expect(s, "flops", cost_of(&g).flops, p->flops * terms);
    }
    op_graph_close(&g);
}

/* ---- attention ---- */

static void set_attr(op_setup *s, wefti_attr_id id, int64_t i, double f) {
    for (int k = 0; k < wefti_attr_count(s->op); k++)
        if (s->attrs[k].id == id) {
            s->attrs[k].i = i;
            s->attrs[k].f = f;
        }
}

/* Pairs of a query and a key that it sees, summed over batch and heads: e^lse, where all scores are
 * 0. */
static double visible_pairs(const op_setup *s, int position) {
    op_setup forward = *s;
    op_graph g;
    double pairs = 0;
    forward.op = wefti_op_find(wefti_builtin_ops(), "attention");
    forward.inputs = 3;
    set_attr(&forward, WEFTI_AT_dropout, 0, 0);
    if (s->inputs > position && s->in[position].style != '-') {
        set_attr(&forward, WEFTI_AT_causal, 0, 0); /* the position is known only when it runs */
        set_attr(&forward, WEFTI_AT_window, 0, 0);
    }
    if (op_graph_open(&forward, 1, &g) < 0) fail_msg("%s", weft_error_message());
    for (int64_t e = 0; e < weft_desc_elems(&forward.in[0].desc); e++) g.in[0][e] = 0.0;
    if (op_graph_run(&g, &stream) < 0) fail_msg("%s", weft_error_message());
    int64_t rows = weft_desc_elems(wefti_out(g.node, 1)) / 2;
    for (int64_t r = 0; r < rows; r++) {
        double sees = exp(g.out[1][r] + g.out[1][rows + r]);
        pairs += isfinite(sees) ? round(sees) : 0.0;
    }
    op_graph_close(&g);
    return pairs;
}

/* Products: q k^T and p v; backward besides do v^T, and three for dq, dk and dv in place of p v. */
static bool count_attention(const op_setup *s) {
    static const struct {
        const char *op;
        int position;
        double products;
    } rows[] = {{"attention", 4, 2}, {"attention_grad", 7, 5}, {"attention_mask_grad", 7, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].op, s->op->name) != 0) continue;
        op_graph g;
        if (op_graph_open(s, 1, &g) < 0) fail_msg("%s", weft_error_message());
        double width = (double)s->in[0].desc.shape[3];
        expect(s, "flops", cost_of(&g).flops,
               rows[i].products * 2 * width * visible_pairs(s, rows[i].position));
        op_graph_close(&g);
        return true;
    }
    return false;
}

/* ---- operations an element ---- */

/* Operations for each element of input `of`; -1: of output 0. Each line counts its formula, without
 * the work that depends only on a row or a tensor. */
typedef struct formula {
    const char *op;
    int of;
    double flops;
} formula;

static const formula formulas[] = {
    {"mean", 0, 1},
    {"max", 0, 1},
    {"argmax", 0, 1},
    {"max_grad", 0, 1},
    {"softmax", 0, 5},          /* max, x - max, exp, sum, / sum */
    {"log_softmax", 0, 5},      /* max, x - max, exp, sum, - log sum */
    {"softmax_grad", 0, 4},     /* y dy, sum, dy - sum, y * */
    {"log_softmax_grad", 0, 4}, /* sum, exp y, * sum, dy - */
    {"cross_entropy", 0, 4},    /* max, x - max, exp, sum */
    {"cross_entropy_part", 0, 4},
    {"cross_entropy_grad", 0, 4}, /* x - lse, exp, - q, * scale */
    {"count_targets", 0, 1},
    {"mse", 0, 3},              /* x - t, square, sum */
    {"mse_grad", 0, 3},         /* x - t, * dloss, * 2 / count */
    {"layer_norm", 0, 8},       /* sum; - mean, square, sum; - mean, * rstd, * gamma, + beta */
    {"layer_norm_apply", 0, 4}, /* - mean, * rstd, * gamma, + beta */
    {"layer_norm_grad", 0, 13}, /* n = (x - mean) rstd: 2; g = dy gamma; sum g; sum g n: 2; dgamma:
                                   2; dbeta; rstd (g - a - n b): 4 */
    {"rms_norm", 0, 4},         /* square, sum; * rstd, * gamma */
    {"rms_norm_apply", 0, 2},
    {"rms_norm_grad", 0, 9}, /* n = x rstd; g = dy gamma; sum g n: 2; dgamma: 2; rstd (g - n a): 3
                              */
    {"batch_norm_train", 0, 8},
    {"batch_norm_infer", 0, 4},
    {"batch_norm_grad", 0, 9}, /* n: 2; sum dy; sum dy n: 2; (dy - a - n b) c: 4 */
    {"rope", 0, 3},            /* a pair: four products, two sums */
    {"rope_grad", 0, 3},
    {"top_k", 0, 1}, /* each against the least that is kept */
    {"moe_slots", 0, 1},
    {"moe_counts", 0, 1},
    {"opt_adam", 0, 17}, /* g scale; + decay p: 2; m: 3; v: 4; ratio of both corrected: 5; p - lr: 2
                          */
    {"opt_adamw", 0, 16}, /* the same, with decay: p * */
    {"opt_lion", 0, 12},  /* g scale; b m + (1 - b) g: 3; sign; + decay p: 2; p - lr: 2; m: 3 */
    /* g scale; + decay p: 2; sum: 2; + initial, sqrt, + eps: 3; ratio; p - lr: 2 */
    {"opt_adagrad", 0, 11},
    {"opt_lamb", 0, 21}, /* 13 as adam without decay and step; decay: 2; p^2: 2; u^2: 2; step: 2 */
    {"lamb_squares", 0, 19},
    {"opt_adafactor", 0, 20},  /* g scale; g^2 + eps: 2; row: 2; col: 2; g / sqrt(row col / mean):
                                  4; p^2: 2; u^2: 2; / clip; decay: 2; step: 2 */
    {"opt_adafactor1", 0, 17}, /* g scale; g^2 + eps: 2; v: 3; g / sqrt v: 2; then as above: 9 */
    {"grad_norm2", 0, 2},
    {"constant", -1, 0},
    {"broadcast_to", -1, 0},
    {"embedding", -1, 0},
    {"embedding_rows", -1, 0},
    {"rows_find", -1, 0},
    {"rows_sum", 0, 1},
    {"rows_write", -1, 0},
    {"gather", -1, 0},
    {"cache_write", -1, 0},
    {"reshape", -1, 0},
    {"transpose", -1, 0},
    {"slice", -1, 0},
    {"concat", -1, 0},
    {"chunk", -1, 0},
    {"pad", -1, 0},
    {"one_hot", -1, 1},
    {"accumulate", -1, 1},
    {"dropout", -1, 1},
};

/* The rows of tables that an optimizer step updates: as many as the gradient has. */
static bool takes_rows(const op_setup *s) {
    return s->op->gradient_input && s->in[s->inputs - 1].desc.dtype == WEFT_I32;
}

static bool count_formula(const op_setup *s, const op_graph *g) {
    const char *op = s->op->name;
    double each = -1;
    int of = -1;
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        if (!strcmp(formulas[i].op, op)) {
            each = formulas[i].flops;
            of = formulas[i].of;
        }
    if (s->op->flags & WEFTI_OP_ELEMENTWISE) each = 1;
    if (s->op->flags & WEFTI_OP_GROUP) each = 0;
    if (!strcmp(op, "cast")) each = 1;
    if (!strcmp(op, "opt_sgd")) { /* g scale; + decay p: 2; buffer: 2; nesterov: 2; p - lr: 2 */
        each = 5;
        of = 0;
        if (s->in[1].style != '-') each += attr_or(s, WEFTI_AT_nesterov, 0) != 0 ? 4 : 2;
    }
    if (each < 0) return false;
    if (takes_rows(s)) of = s->op->gradient_input;
    double units = of < 0 ? (double)weft_desc_elems(wefti_out(g->node, 0)) : elems(g, of);
    expect(s, "flops", cost_of(g).flops, each * units);
    return true;
}

/* One operation for each element of each window; gradients go the same way back. */
static bool count_windows(const op_setup *s, const op_graph *g) {
    if (!strstr(s->op->name, "_pool2d")) return false;
    const wefti_ints *kernel = wefti_attr_ints(g->node, WEFTI_AT_kernel);
    const weft_desc *pooled =
        s->op->flags & WEFTI_OP_GRADIENT ? wefti_in(g->node, s->inputs - 1) : wefti_out(g->node, 0);
    double count = 0;
    for (int64_t e = 0; e < weft_desc_elems(pooled); e++)
        for (int64_t tap = 0; tap < kernel->v[0] * kernel->v[1]; tap++) count += 1;
    expect(s, "flops", cost_of(g).flops, count);
    return true;
}

/* Three products, and forward and backward of the loss, 4 operations a logit each. */
static bool count_loss_head(const op_setup *s, const op_graph *g) {
    if (strcmp(s->op->name, "linear_cross_entropy") != 0) return false;
    const weft_desc *x = &s->in[0].desc;
    double k = (double)x->shape[x->rank - 1], rows = k > 0 ? elems(g, 0) / k : 0;
    double classes = k > 0 ? elems(g, 1) / k : 0;
    if (k > 0) expect(s, "flops", cost_of(g).flops, rows * classes * (3 * 2 * k + 4 + 4));
    return true;
}

static void check_flops(const op_setup *s) {
    const product *p = product_of(s->op);
    op_graph g;
    if (p) {
        count_terms(s, p);
        return;
    }
    if (count_attention(s)) return;
    if (op_graph_open(s, 1, &g) < 0) fail_msg("%s", weft_error_message());
    if (!count_loss_head(s, &g) && !count_windows(s, &g) && !count_formula(s, &g)) {
        print_error("%s: nothing here counts its operations: give it a row\n", s->op->name);
        failures++;
    }
    op_graph_close(&g);
}

/* ---- bytes ---- */

static double bytes_of_case(const op_graph *g) {
    double bytes = 0;
    for (int i = 0; i < g->node->inputs; i++) {
        const weft_desc *d = wefti_in(g->node, i);
        if (d) bytes += (double)weft_desc_elems(d) * (double)weft_dtype_bytes(d->dtype);
    }
    for (int o = 0; o < g->node->outputs; o++) {
        const weft_desc *d = wefti_out(g->node, o);
        bytes += (double)weft_desc_elems(d) * (double)weft_dtype_bytes(d->dtype);
    }
    return bytes;
}

/* Ops that read a part of input 0: as many of its elements as the results show, and all else once.
 * Elements of input 0 are marked by values from 1000 on. */
static double bytes_shown(const op_setup *s, op_graph *g) {
    const weft_desc *x = wefti_in(g->node, 0);
    int64_t shown = 0;
    for (int64_t e = 0; e < weft_desc_elems(x); e++) g->in[0][e] = 1000.0 + (double)e;
    for (int i = 1; i < s->inputs; i++) /* all indices name element 0: none is left out */
        for (int64_t e = 0; s->in[i].style == '<' && e < weft_desc_elems(&s->in[i].desc); e++)
            g->in[i][e] = attr_or(s, WEFTI_AT_begin, 0);
    if (op_graph_run(g, &stream) < 0) fail_msg("%s", weft_error_message());
    for (int o = 0; o < g->node->outputs; o++)
        for (int64_t e = 0; e < weft_desc_elems(wefti_out(g->node, o)); e++)
            shown += g->out[o][e] >= 1000.0;
    double all = bytes_of_case(g);
    double width = (double)weft_dtype_bytes(x->dtype);
    return all - (double)weft_desc_elems(x) * width + (double)shown * width;
}

static bool reads_a_part(const weft_op_def *op) {
    static const char *const names[] = {"slice", "gather", "embedding"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], op->name)) return true;
    return false;
}

static void check_bytes(const op_setup *s) {
    op_graph g;
    if (op_graph_open(s, 1, &g) < 0) fail_msg("%s", weft_error_message());
    const char *op = s->op->name;
    double bytes = bytes_of_case(&g);
    if (reads_a_part(s->op)) {
        bytes = bytes_shown(s, &g);
    } else if (s->op->flags & WEFTI_OP_RESHAPE) {
        bytes = 0; /* the same memory */
    } else if (!strcmp(op, "rows_write")) {
        /* The rows, read and written, and the ids. */
        bytes =
            2 * (double)weft_desc_bytes(&s->in[2].desc) + (double)weft_desc_bytes(&s->in[1].desc);
    } else if (takes_rows(s)) {
        /* The rows of what is updated, read and written; all else read. */
        for (int i = 0; i < s->op->gradient_input; i++) {
            const weft_desc *x = &s->in[i].desc;
            if (s->in[i].style == '-') continue;
            bytes -= 2 * (double)weft_desc_bytes(x);
            bytes += 2 * elems(&g, s->op->gradient_input) * (double)weft_dtype_bytes(x->dtype);
        }
    } else if (!strcmp(op, "cache_write")) {
        /* The rows, read and written, and the position; the rest of the cache stays where it is. */
        bytes =
            2 * (double)weft_desc_bytes(&s->in[1].desc) + (double)weft_desc_bytes(&s->in[2].desc);
    } else if (!strcmp(op, "moe_combine") || !strcmp(op, "moe_dot")) {
        /* A row of the buffers for each choice; all else once. */
        const weft_desc *y = &s->in[0].desc, *expert = &s->in[1].desc;
        double row = (double)y->shape[y->rank - 1] * (double)weft_dtype_bytes(y->dtype);
        bytes += (double)weft_desc_elems(expert) * row - (double)weft_desc_bytes(y);
    }
    expect(s, "bytes", cost_of(&g).bytes, bytes);
    op_graph_close(&g);
}

/* ---- all cases ---- */

static void for_each_case(void (*check)(const op_setup *s)) {
    const wefti_op_registry *ops = wefti_builtin_ops();
    failures = counted = 0;
    for (int i = 0; i < ops->count; i++)
        for (const wefti_op_case *c = ops->ops[i]->cases; c && (c->inputs[0] || c->attrs); c++) {
            op_setup s;
            assert_true(setup_case(ops->ops[i], c, &s));
            check(&s);
        }
    print_message("%d counts\n", counted);
    assert_true(counted > 400);
    assert_int_equal(failures, 0);
}

static void flops_are_counted(void **state) {
    (void)state;
    for_each_case(check_flops);
}

static void bytes_are_counted(void **state) {
    (void)state;
    for_each_case(check_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_are_counted),
        cmocka_unit_test(bytes_are_counted),
    };
    return cmocka_run_group_tests_name("costs", tests, NULL, NULL);
}
