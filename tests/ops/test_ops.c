/* Every op of the registry on each of its test cases: shapes, gradient, split rule, text. */
#include "support.h"

#include "graph/grad/grad.h"
#include "ops/harness.h"

enum { PROBES = 48, SMALL = 1 << 16 };

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};
static int failures; /* of the running test: all are listed before it fails */

static void complain(const op_setup *s, const char *what, const char *detail) {
    wefti_text t = {0};
    for (int i = 0; i < s->inputs; i++)
        wefti_text_add(&t, "%s%s", i ? ", " : "",
                       s->in[i].style == '-' ? "-" : wefti_desc_text(&s->in[i].desc).text);
    wefti_text_add(&t, ")");
    wefti_attrs_print(s->op, s->attrs, &t);
    char *text = wefti_text_take(&t);
    print_error("%s(%s: %s: %s\n", s->op->name, text ? text : "", what, detail);
    wefti_free(text);
    failures++;
}

#define COMPLAIN(setup, what, ...)                                                                 \
    do {                                                                                           \
        char detail_[512];                                                                         \
        (void)snprintf(detail_, sizeof detail_, __VA_ARGS__);                                      \
        complain(setup, what, detail_);                                                            \
    } while (0)

typedef void (*each_setup)(const op_setup *s);

static void for_each_case(each_setup check) {
    const wefti_op_registry *ops = wefti_builtin_ops();
    failures = 0;
    for (int i = 0; i < ops->count; i++)
        for (const wefti_op_case *c = ops->ops[i]->cases; c && (c->inputs[0] || c->attrs); c++) {
            op_setup s;
            if (!setup_case(ops->ops[i], c, &s)) {
                print_error("%s: the case '%s...' '%s' cannot be read: %s\n", ops->ops[i]->name,
                            c->inputs[0] ? c->inputs[0] : "", c->attrs ? c->attrs : "",
                            weft_error_message());
                failures++;
                continue;
            }
            check(&s);
        }
    assert_int_equal(failures, 0);
}

/* ---- shapes ---- */

static int64_t out_elems(const weft_node *n) {
    int64_t most = 0;
    for (int o = 0; o < n->outputs; o++)
        if (weft_desc_elems(wefti_out(n, o)) > most) most = weft_desc_elems(wefti_out(n, o));
    return most;
}

static void case_runs(const op_setup *s) {
    op_graph g;
    if (op_graph_open(s, 1, &g) < 0) {
        complain(s, "infer refuses its own case", weft_error_message());
        return;
    }
    if (op_graph_run(&g, &stream) < 0) complain(s, "reference", weft_error_message());
    for (int o = 0; o < g.node->outputs; o++)
        for (int64_t e = 0; e < weft_desc_elems(wefti_out(g.node, o)); e++)
            if (isnan(g.out[o][e])) {
                COMPLAIN(s, "reference", "output %d has a NaN at %lld", o, (long long)e);
                break;
            }
    wefti_cost cost;
    wefti_node_cost(g.node, &cost);
    if (!(cost.flops >= 0 && cost.bytes >= 0)) complain(s, "cost", "negative or NaN");
    op_graph_close(&g);
}

/* The number of an op is its place in the list, so that it can index a table. */
static void numbers_follow_the_list(void **state) {
    (void)state;
    const wefti_op_registry *ops = wefti_builtin_ops();
    assert_int_equal(ops->count, WEFTI_OPS - WEFTI_OP_transfer - 1);
    for (int i = 0; i < ops->count; i++)
        assert_int_equal(ops->ops[i]->id, WEFTI_OP_transfer + 1 + i);
}

static void every_case_runs(void **state) {
    (void)state;
    const wefti_op_registry *ops = wefti_builtin_ops();
    for_each_case(case_runs);
    for (int i = 0; i < ops->count; i++) {
        if (!ops->ops[i]->cases) fail_msg("%s has no test cases", ops->ops[i]->name);
        assert_ptr_equal(wefti_op_find(ops, ops->ops[i]->name), ops->ops[i]); /* names are unique */
    }
}

/* A damaged case is refused with a shape or argument error, or is legal. If infer accepts a case,
 * the reference kernel survives it (sanitizers find out-of-range reads). */
static void try_damaged(const op_setup *s, const char *how) {
    weft_graph *probe;
    weft_status st = op_graph_make(s, &probe);
    if (st < 0) {
        if (st != WEFT_E_SHAPE && st != WEFT_E_ARG)
            COMPLAIN(s, how, "status %d: %s", st, weft_error_message());
        return;
    }
    int64_t elems = out_elems(&probe->root->nodes[0]);
    for (int i = 0; i < s->inputs; i++)
        if (weft_desc_elems(&s->in[i].desc) > elems) elems = weft_desc_elems(&s->in[i].desc);
    weft_graph_destroy(probe);
    if (elems > SMALL) return;
    op_graph g;
    if (op_graph_open(s, 2, &g) < 0) return;
    st = op_graph_run(&g, &stream);
    if (st == WEFT_E_BUG) complain(s, how, weft_error_message());
    op_graph_close(&g);
}

static void damage_shapes(const op_setup *s) {
    for (int i = 0; i < s->inputs; i++) {
        if (s->in[i].style == '-') continue;
        op_setup d = *s;
        if (d.in[i].desc.rank < WEFT_MAX_RANK) {
            d.in[i].desc.shape[d.in[i].desc.rank++] = 2;
            try_damaged(&d, "one dimension more");
        }
        d = *s;
        if (d.in[i].desc.rank > 0) {
            d.in[i].desc.rank--;
            try_damaged(&d, "one dimension less");
            d.in[i].desc.rank = 0;
            try_damaged(&d, "a scalar");
        }
        for (int k = 0; k < s->in[i].desc.rank; k++) {
            d = *s;
            d.in[i].desc.shape[k] += 1;
            try_damaged(&d, "a larger size");
            d.in[i].desc.shape[k] = 0;
            try_damaged(&d, "a size of 0");
            d.in[i].desc.shape[k] = 1;
            try_damaged(&d, "a size of 1");
        }
        for (int t = 0; t < WEFT_DTYPES; t++) {
            d = *s;
            d.in[i].desc.dtype = (weft_dtype)t;
            try_damaged(&d, "another dtype");
        }
        d = *s;
        d.in[i].style = '-';
        try_damaged(&d, "a missing input");
    }
}

static void damage_counts(const op_setup *s) {
    op_setup d = *s;
    weft_graph *g;
    while (d.inputs <= s->op->max_inputs && d.inputs < WEFTI_MAX_IN - 1)
        d.in[d.inputs++] = s->inputs ? s->in[0] : (operand){.desc = {.dtype = WEFT_F32}};
    weft_status st = d.inputs > s->op->max_inputs ? op_graph_make(&d, &g) : WEFT_E_ARG;
    if (st != WEFT_E_ARG) COMPLAIN(s, "too many inputs", "status %d", st);
    if (st >= 0) weft_graph_destroy(g);
    if (s->op->min_inputs == 0) return;
    d = *s;
    d.inputs = s->op->min_inputs - 1;
    st = op_graph_make(&d, &g);
    if (st != WEFT_E_ARG) COMPLAIN(s, "too few inputs", "status %d", st);
    if (st >= 0) weft_graph_destroy(g);
}

static void damage_attrs(const op_setup *s) {
    static const int64_t integers[] = {INT64_MIN, -1, 0, 1, 2, 7, 1 << 20, INT64_MAX};
    static const double floats[] = {-1e300, -1, 0, 0.5, 1, 1e300, (double)INFINITY, (double)NAN};
    for (int a = 0; a < wefti_attr_count(s->op); a++)
        for (int v = 0; v < 8; v++) {
            op_setup d = *s;
            wefti_attr *attr = &d.attrs[a];
            attr->i = integers[v];
            attr->f = floats[v];
            try_damaged(&d, "another attribute");
            if (attr->kind != WEFTI_ATTR_INTS) continue;
            attr->ints.count = v;
            try_damaged(&d, "another count of integers");
            for (int k = 0; k < s->attrs[a].ints.count; k++) {
                d = *s;
                attr->ints.v[k] = integers[v];
                try_damaged(&d, "another integer");
            }
        }
}

static void damage(const op_setup *s) {
    damage_shapes(s);
    damage_counts(s);
    damage_attrs(s);
}

static void damaged_cases_are_refused_or_legal(void **state) {
    (void)state;
    for_each_case(damage);
}

/* ---- gradients ---- */

/* One op's node differentiated for the gradients of the outputs in `given`. */
typedef struct derivative {
    op_graph *g;
    wefti_cell_grad cg;
    double *weights[WEFTI_MAX_OUT]; /* gradients of the outputs */
    double *gradients[WEFTI_MAX_IN];
} derivative;

static weft_status run_backward(derivative *d) {
    const weft_body *root = d->g->graph->root, *backward = d->cg.backward;
    const double *in[WEFTI_MAX_IN] = {0}, *args[WEFTI_MAX_IN + 2 * WEFTI_MAX_OUT];
    double *kept[2 * WEFTI_MAX_OUT] = {0}, *out[WEFTI_MAX_IN] = {0};
    for (int i = 0, k = 0; i < d->g->node->inputs; i++)
        if (d->g->in[i]) in[k++] = d->g->in[i];

    for (int64_t o = 0; o < d->cg.forward->out_count; o++)
        kept[o] = new_values(&d->cg.forward->values[d->cg.forward->out[o]].desc);
    weft_status st = wefti_interpret(d->cg.forward, &stream, in, kept);
    for (int64_t k = 0; k < backward->in_count; k++) {
        int32_t index = d->cg.bindings[k].index;
        switch (d->cg.bindings[k].source) {
        case WEFTI_GRAD_SAVED:
            args[k] = kept[root->out_count + index];
            break;
        case WEFTI_GRAD_INPUT:
            args[k] = in[index];
            break;
        case WEFTI_GRAD_OUTPUT:
            args[k] = kept[index];
            break;
        case WEFTI_GRAD_DOUT:
            args[k] = d->weights[index];
            break;
        case WEFTI_GRAD_CROSSED: /* only in parts of a split pass */
            break;
        }
    }
    for (int64_t o = 0; o < backward->out_count; o++)
        out[o] = d->gradients[o] = new_values(&backward->values[backward->out[o]].desc);
    if (st >= 0) st = wefti_interpret(backward, &stream, args, out);
    for (int64_t o = 0; o < d->cg.forward->out_count; o++) free(kept[o]);
    return st;
}

static double weighted_sum(derivative *d, const bool *given) {
    double sum = 0;
    if (op_graph_run(d->g, &stream) < 0) return NAN;
    for (int o = 0; o < d->g->node->outputs; o++)
        for (int64_t e = 0; given[o] && e < weft_desc_elems(wefti_out(d->g->node, o)); e++)
            sum += d->weights[o][e] * d->g->out[o][e];
    return sum;
}

/* Central differences for some elements of input i, against element e of its gradient. */
static void compare_input(const op_setup *s, derivative *d, const bool *given, int i,
                          const double *gradient) {
    int64_t count = weft_desc_elems(&s->in[i].desc);
    double *x = d->g->in[i];
    for (int64_t p = 0; p < count && p < PROBES; p++) {
        int64_t e = count <= PROBES ? p : (int64_t)(wefti_philox_u32(9, 9, (uint64_t)p) % count);
        double before = x[e], step = 1e-6;
        x[e] = before + step;
        double high = weighted_sum(d, given);
        x[e] = before - step;
        double low = weighted_sum(d, given);
        x[e] = before;
        double numeric = (high - low) / (2 * step), exact = gradient ? gradient[e] : 0.0;
        if (!(fabs(numeric - exact) <= 1e-5 + 1e-3 * fabs(numeric))) {
            COMPLAIN(s, "gradient", "input %d, element %lld: %.9g, by differences %.9g", i,
                     (long long)e, exact, numeric);
            return;
        }
    }
}

/* Returns whether any gradient came out. */
static bool check_gradient(const op_setup *s, op_graph *g, const bool *given) {
    bool wanted[WEFTI_MAX_IN], any = false;
    derivative d = {.g = g};
    for (int i = 0; i < WEFTI_MAX_IN; i++) wanted[i] = true;
    if (wefti_differentiate(g->graph, g->graph->root, wanted, given, 0, &d.cg) < 0) {
        complain(s, "gradient", weft_error_message());
        return false;
    }
    for (int o = 0; o < g->node->outputs; o++) {
        int64_t count = weft_desc_elems(wefti_out(g->node, o));
        d.weights[o] = new_values(wefti_out(g->node, o));
        for (int64_t e = 0; e < count; e++)
            d.weights[o][e] = (double)wefti_philox_normal(77, (uint64_t)o, (uint64_t)e);
    }
    if (wefti_body_check(d.cg.backward) < 0) complain(s, "backward body", weft_error_message());
    if (run_backward(&d) < 0) complain(s, "backward body", weft_error_message());
    for (int64_t k = 0; k < g->graph->root->in_count; k++) any |= d.cg.gradient_out[k] >= 0;
    for (int i = 0, k = 0; i < s->inputs && (any || given[0]); i++) {
        if (s->in[i].style == '-') continue;
        int32_t at = d.cg.gradient_out[k++];
        if (wefti_dtype_is_float(s->in[i].desc.dtype))
            compare_input(s, &d, given, i, at < 0 ? NULL : d.gradients[at]);
    }
    for (int o = 0; o < WEFTI_MAX_OUT; o++) free(d.weights[o]);
    for (int i = 0; i < WEFTI_MAX_IN; i++) free(d.gradients[i]);
    wefti_cell_grad_free(&d.cg);
    return any;
}

/* Output 0 must have the right gradient. Each other output has no gradient (statistics), or a right
 * one; then all together must also be right. */
static void gradients_of(const op_setup *s) {
    op_graph g;
    if (!s->op->grad || op_graph_open(s, 3, &g) < 0) return;
    bool together[WEFTI_MAX_OUT] = {false};
    int count = 0;
    for (int o = 0; o < g.node->outputs; o++) {
        bool given[WEFTI_MAX_OUT] = {false};
        if (!wefti_dtype_is_float(wefti_out(g.node, o)->dtype)) continue;
        given[o] = true;
        together[o] = check_gradient(s, &g, given);
        count += together[o];
    }
    if (count > 1) (void)check_gradient(s, &g, together);
    op_graph_close(&g);
}

/* A dimension when its factor has another size: dimensions may be multiples of their factor. */
static int64_t scaled(int64_t dimension, const wefti_factor *factor, int64_t size) {
    return factor->size ? dimension / factor->size * size : size;
}

/* The case with all dimensions of factor f set to `size`. False if that changes nothing or cannot
 * be expressed. */
static bool resize_factor(const op_setup *s, const weft_node *n, const wefti_split_rule *rule,
                          int f, int64_t size, op_setup *out) {
    if (rule->factor[f].size == size) return false;
    op_setup d = *s;
    int64_t begins[WEFTI_MAX_FACTORS] = {0}, sizes[WEFTI_MAX_FACTORS];
    for (int k = 0; k < rule->factors; k++) sizes[k] = rule->factor[k].size;
    sizes[f] = size;
    for (int i = 0; i < s->inputs; i++) {
        for (int k = 0; k < s->in[i].desc.rank; k++)
            if (rule->in[i][k] == f)
                d.in[i].desc.shape[k] = scaled(s->in[i].desc.shape[k], &rule->factor[f], size);
        if (strchr("<!", d.in[i].style) && d.in[i].below == rule->factor[f].size)
            d.in[i].below = size;
    }
    if (s->op->localize && s->op->localize(n, rule, begins, sizes, d.attrs) < 0) return false;
    *out = d;
    return true;
}

static void gradients_at_the_edges(const op_setup *s) {
    op_graph g;
    wefti_split_rule rule;
    gradients_of(s);
    if (op_graph_open(s, 3, &g) < 0) return;
    if (op_rule(g.node, &rule))
        for (int f = 0; f < rule.factors; f++)
            for (int64_t size = 0; size < 2; size++) {
                op_setup edge;
                if (resize_factor(s, g.node, &rule, f, size, &edge)) gradients_of(&edge);
            }
    op_graph_close(&g);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    for_each_case(gradients_at_the_edges);
}

/* Every factor of a case gets some size, one after the other. Illegal cases are skipped.
 * WEFT_TEST_SEED sets the sizes. */
static uint64_t shapes_seed, shapes_tried, shapes_legal;

static bool resize_at_random(op_setup *s, uint64_t trial) {
    for (int f = 0;; f++) {
        op_graph g;
        wefti_split_rule rule;
        op_setup next;
        if (op_graph_open(s, 3, &g) < 0) return false;
        bool more = op_rule(g.node, &rule) && f < rule.factors;
        if (more && resize_factor(s, g.node, &rule, f,
                                  1 + wefti_philox_u32(shapes_seed, trial, (uint64_t)f) % 7, &next))
            *s = next;
        op_graph_close(&g);
        if (!more) return true;
    }
}

static void gradients_of_some_shapes(const op_setup *s) {
    enum { SHAPES = 6 };
    for (int k = 0; k < SHAPES && s->op->grad; k++) {
        op_setup other = *s;
        if (resize_at_random(&other, shapes_tried++)) {
            shapes_legal++;
            gradients_of(&other);
        }
    }
}

static void gradients_match_on_random_shapes(void **state) {
    (void)state;
    shapes_seed = test_seed(20260);
    for_each_case(gradients_of_some_shapes);
    print_message("%llu shapes, %llu legal\n", (unsigned long long)shapes_tried,
                  (unsigned long long)shapes_legal);
    assert_true(shapes_legal > shapes_tried / 2);
}

/* ---- split rules ---- */

/* Copy the region [begin, begin + size) along the dimensions of factor f between a whole tensor and
 * a piece. */
static void move_region(double *whole, const weft_desc *of, double *piece, const int8_t *factors,
                        int f, const wefti_factor *factor, int64_t begin, int64_t size,
                        bool to_piece) {
    int64_t index[WEFT_MAX_RANK] = {0}, strides[WEFT_MAX_RANK], first[WEFT_MAX_RANK] = {0};
    wefti_strides(of, strides);
    weft_desc small = *of;
    for (int k = 0; k < of->rank; k++)
        if (factors[k] == f) {
            small.shape[k] = scaled(of->shape[k], factor, size);
            first[k] = scaled(of->shape[k], factor, begin);
        }
    int64_t count = weft_desc_elems(&small);
    for (int64_t e = 0; e < count; e++) {
        int64_t at = 0;
        for (int k = 0; k < of->rank; k++) at += (index[k] + first[k]) * strides[k];
        if (to_piece)
            piece[e] = whole[at];
        else
            whole[at] = piece[e];
        for (int k = small.rank - 1; k >= 0 && ++index[k] == small.shape[k]; k--) index[k] = 0;
    }
}

static bool has_factor(const int8_t *row, int rank, int f) {
    for (int k = 0; k < rank; k++)
        if (row[k] == f) return true;
    return false;
}

typedef struct splitting {
    const op_setup *s;
    bool by_offset; /* the run says where the rows are, as it does for microbatches */
    op_graph *whole;
    const wefti_split_rule *rule;
    int f, pieces;
    double *merged[WEFTI_MAX_OUT];
} splitting;

static void merge_output(splitting *c, int o, op_graph *piece, int64_t begin, int64_t size,
                         bool first) {
    const weft_desc *d = wefti_out(c->whole->node, o);
    const int8_t *row = c->rule->out[o];
    wefti_factor_kind kind = c->rule->factor[c->f].kind;
    weft_desc expected = *d;
    for (int k = 0; k < d->rank; k++)
        if (row[k] == c->f) expected.shape[k] = scaled(d->shape[k], &c->rule->factor[c->f], size);
    if (!wefti_desc_equal(&expected, wefti_out(piece->node, o))) {
        COMPLAIN(c->s, "split rule", "factor %s: output %d of a piece is %s, not %s",
                 c->rule->factor[c->f].name, o, wefti_desc_text(wefti_out(piece->node, o)).text,
                 wefti_desc_text(&expected).text);
        return;
    }
    if (has_factor(row, d->rank, c->f)) {
        move_region(c->merged[o], d, piece->out[o], row, c->f, &c->rule->factor[c->f], begin, size,
                    false);
        return;
    }
    for (int64_t e = 0; e < weft_desc_elems(d); e++) {
        double *m = &c->merged[o][e], v = piece->out[o][e];
        if (first || kind == WEFTI_FACTOR_FREE)
            *m = v;
        else if (kind == WEFTI_FACTOR_SUM)
            *m += v;
        else if (v > *m)
            *m = v;
    }
}

static void run_piece(splitting *c, int p) {
    const op_setup *s = c->s;
    const wefti_factor *factor = &c->rule->factor[c->f];
    int64_t n = factor->size;
    int64_t begin = n * p / c->pieces, size = n * (p + 1) / c->pieces - begin;
    op_setup local;
    op_graph g;
    int64_t begins[WEFTI_MAX_FACTORS] = {0}, sizes[WEFTI_MAX_FACTORS];
    for (int k = 0; k < c->rule->factors; k++) sizes[k] = c->rule->factor[k].size;
    begins[c->f] = begin;
    sizes[c->f] = size;
    local = *s;
    for (int i = 0; i < s->inputs; i++)
        for (int k = 0; k < s->in[i].desc.rank; k++)
            if (c->rule->in[i][k] == c->f)
                local.in[i].desc.shape[k] = scaled(s->in[i].desc.shape[k], factor, size);
    weft_status st = WEFT_OK;
    if (s->op->localize && !c->by_offset)
        st = s->op->localize(c->whole->node, c->rule, begins, sizes, local.attrs);
    if (st >= 0) st = op_graph_open(&local, 4, &g);
    if (st < 0) {
        COMPLAIN(s, "split rule", "factor %s: piece %d of %d is refused: %s",
                 c->rule->factor[c->f].name, p, c->pieces, weft_error_message());
        return;
    }
    for (int i = 0; i < s->inputs; i++) {
        if (!g.in[i]) continue;
        move_region(c->whole->in[i], &s->in[i].desc, g.in[i], c->rule->in[i], c->f, factor, begin,
                    size, true);
        bool once = c->rule->sum_once[i] && c->rule->factor[c->f].kind == WEFTI_FACTOR_SUM;
        if (once && p > 0)
            memset(g.in[i], 0, sizeof(double) * (size_t)weft_desc_elems(&local.in[i].desc));
    }
    wefti_random here = stream;
    if (c->by_offset) here.row_offset = begin;
    if (op_graph_run(&g, &here) < 0)
        complain(s, "split rule", weft_error_message());
    else
        for (int o = 0; o < g.node->outputs; o++) merge_output(c, o, &g, begin, size, p == 0);
    op_graph_close(&g);
}

static void check_factor(const op_setup *s, op_graph *whole, const wefti_split_rule *rule, int f,
                         int pieces, bool by_offset) {
    splitting c = {s, by_offset, whole, rule, f, pieces, {0}};
    int before = failures;
    for (int o = 0; o < whole->node->outputs; o++)
        c.merged[o] = new_values(wefti_out(whole->node, o));
    for (int p = 0; p < pieces && failures == before; p++) run_piece(&c, p);
    for (int o = 0; o < whole->node->outputs && failures == before; o++)
        for (int64_t e = 0; e < weft_desc_elems(wefti_out(whole->node, o)); e++) {
            double want = whole->out[o][e], have = c.merged[o][e];
            if (want == have || fabs(want - have) <= 1e-9 + 1e-9 * fabs(want)) continue;
            COMPLAIN(s, "split rule",
                     "factor %s in %d: output %d, element %lld: %.12g, whole %.12g",
                     rule->factor[f].name, pieces, o, (long long)e, have, want);
            break;
        }
    for (int o = 0; o < WEFTI_MAX_OUT; o++) free(c.merged[o]);
}

static bool fits(int64_t dimension, const wefti_factor *factor) {
    if (factor->kind == WEFTI_FACTOR_HALO || dimension == factor->size) return true;
    return factor->size > 0 && dimension % factor->size == 0;
}

static void check_rule_form(const op_setup *s, const weft_node *n, const wefti_split_rule *rule) {
    for (int f = 0; f < rule->factors; f++) {
        for (int k = 0; k < f; k++)
            if (!strcmp(rule->factor[f].name, rule->factor[k].name))
                COMPLAIN(s, "split rule", "two factors are named %s", rule->factor[f].name);
    }
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        bool output = i >= n->inputs;
        const weft_desc *d = output ? wefti_out(n, i - n->inputs) : wefti_in(n, i);
        const int8_t *row = output ? rule->out[i - n->inputs] : rule->in[i];
        for (int k = 0; d && k < d->rank; k++) {
            if (row[k] < -1 || row[k] >= rule->factors)
                COMPLAIN(s, "split rule", "operand %d, dimension %d: no factor %d", i, k, row[k]);
            else if (row[k] >= 0 && !fits(d->shape[k], &rule->factor[row[k]]))
                COMPLAIN(s, "split rule", "operand %d, dimension %d is %lld, its factor %s %lld", i,
                         k, (long long)d->shape[k], rule->factor[row[k]].name,
                         (long long)rule->factor[row[k]].size);
        }
    }
}

static void split_case(const op_setup *s) {
    op_graph g;
    wefti_split_rule rule;
    if (op_graph_open(s, 4, &g) < 0) return;
    if (!op_rule(g.node, &rule)) {
        complain(s, "split rule", "there is none");
    } else if (op_graph_run(&g, &stream) >= 0) {
        check_rule_form(s, g.node, &rule);
        for (int f = 0; f < rule.factors; f++) {
            wefti_factor_kind kind = rule.factor[f].kind;
            if (kind != WEFTI_FACTOR_FREE && kind != WEFTI_FACTOR_SUM && kind != WEFTI_FACTOR_MAX)
                continue;
            for (int pieces = 2; pieces <= 3; pieces++)
                if (rule.factor[f].size >= pieces) {
                    check_factor(s, &g, &rule, f, pieces, false);
                    bool rows = (s->op->flags & WEFTI_OP_RANDOM) && rule.out[0][0] == f;
                    if (rows) check_factor(s, &g, &rule, f, pieces, true);
                }
        }
    }
    op_graph_close(&g);
}

static void split_rules_hold(void **state) {
    (void)state;
    for_each_case(split_case);
}

/* ---- text ---- */

static void text_of(const op_setup *s) {
    op_graph g;
    char *first = NULL, *second = NULL;
    weft_graph *parsed = NULL;
    if (op_graph_open(s, 5, &g) < 0) return;
    weft_status st = wefti_graph_check(g.graph);
    if (st >= 0) st = weft_graph_print(g.graph, &first);
    if (st >= 0) st = weft_graph_parse(first, &parsed);
    if (st >= 0) st = weft_graph_print(parsed, &second);
    if (st < 0)
        complain(s, "text", weft_error_message());
    else if (strcmp(first, second) != 0 || !wefti_body_equal(g.graph->root, parsed->root))
        complain(s, "text does not read back", first);
    weft_text_free(first);
    weft_text_free(second);
    weft_graph_destroy(parsed);
    op_graph_close(&g);
}

static void text_reads_back(void **state) {
    (void)state;
    for_each_case(text_of);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_follow_the_list),
        cmocka_unit_test(every_case_runs),
        cmocka_unit_test(damaged_cases_are_refused_or_legal),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(gradients_match_on_random_shapes),
        cmocka_unit_test(split_rules_hold),
        cmocka_unit_test(text_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
