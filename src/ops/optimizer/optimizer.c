/* Optimizer steps: p, state -> p', state', in place (output o is the memory of input o).
 *
 * Inputs are the tensors to update, then the gradient, then `scalars`, f32 [8], or f64 [8] for a
 * parameter in f64. The scalars change from step to step: {learning rate, step, gradient scale,
 * 0...}. The step is a whole number from
 * 1. Below, g is the gradient times the gradient scale (clipping, averaging). Rates that do not
 * change are attributes, so each parameter can have its own weight decay.
 *
 *     opt_sgd     g += decay p
 *                 b = g at step 1, else momentum b + g
 *                 p -= lr b, or for nesterov lr (g + momentum b); without a buffer lr g
 *     opt_adam    g += decay p
 *                 m = b1 m + (1 - b1) g        m^ = m / (1 - b1^step)
 *                 v = b2 v + (1 - b2) g^2      v^ = v / (1 - b2^step)
 *                 p -= lr m^ / (sqrt(v^) + eps)
 *     opt_adamw   the same, but p -= lr decay p instead of g += decay p
 *     opt_lion    p -= lr (sign(b1 m + (1 - b1) g) + decay p)
 *                 m = b2 m + (1 - b2) g
 *     opt_adagrad g += decay p
 *                 sum += g^2
 *                 p -= lr g / (sqrt(initial_accumulator + sum) + eps)
 *     opt_lamb    u = m^ / (sqrt(v^) + eps) + decay p, m^ and v^ as adam's
 *                 p -= lr |p|/|u| u, with ratio 1 if a norm is 0
 *     opt_adafactor, for each matrix of the last two dimensions, with b2 = 1 - step^decay_exponent:
 *                 row, col = moving means of g^2 + eps1 along rows and columns
 *                 u = g / sqrt(row col / mean(row)),  u /= max(1, rms(u) / clip)
 *                 p -= rate (u + decay p), rate = lr, times max(eps2, rms(p)) if scale_parameter
 *     opt_adafactor1 (vectors) keeps v = b2 v + (1 - b2) (g^2 + eps1) in place of row and col
 *     grad_norm2  the sum of squares of a gradient, for clipping by global norm
 *     lamb_squares  |p|^2 and |u|^2 of a step of lamb, f32 [2]
 *
 * lamb and adafactor need facts about the whole tensor. For a piece, extra inputs after the scalars
 * give these facts (optimizer/split.c makes them):
 *
 *     lamb, adafactor1    Squares f32 [2] = {|p|^2, |u|^2}, with u before clipping.
 *     adafactor           The new row and col, mean(row), and squares.
 *
 * `count` is then the number of elements of the whole tensor.
 *
 * The steps that treat each element by itself also update rows of tables, where they lie. Then an
 * extra input after the scalars, i32 [n], numbers the rows of the tensors [rows, width], and the
 * gradient is [n, width]. The list ends at the first number that is no row. No row may come twice.
 * All other rows stay as they are.
 *
 * Sources: sgd as PyTorch with dampening 0 (nesterov: Sutskever et al., ICML 2013). Kingma, Ba,
 * "Adam", ICLR 2015. Loshchilov, Hutter, "Decoupled weight decay", ICLR 2019. Chen et al.,
 * "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2. Duchi, Hazan, Singer,
 * "Adaptive subgradient methods", JMLR 2011, as PyTorch's torch.optim.Adagrad with lr_decay 0.
 * There the state begins with the initial value; here it begins with 0, so a row that nothing has
 * updated needs no start value. You et al., "Large batch optimization for deep learning", ICLR
 * 2020, algorithm 2. Shazeer, Stern, "Adafactor", ICML 2018, algorithms 4 and 5. */
#include "ops/optimizer/optimizer.h"

#include <float.h>

/* ---- shapes ---- */

/* Whether only the rows that the last input numbers are updated. */
static bool by_rows(const weft_node *n) {
    return !n->op->lower && n->inputs > n->op->gradient_input + 2;
}

/* Checks the gradient of listed rows, and their list. */
static weft_status check_rows(const weft_node *n) {
    const int gradient = n->op->gradient_input, list = gradient + 2;
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, 2));
    WEFT_TRY(wefti_op_check_i32(n, list));
    WEFT_TRY(wefti_op_check_rank(n, list, 1, 1));
    const int64_t shape[] = {wefti_in(n, list)->shape[0], wefti_in(n, 0)->shape[1]};
    return wefti_op_check_shape(n, gradient, 2, shape, "the numbers of rows and a row");
}

/* Checks the inputs: `states` tensors to update, then grad, then scalars. Without `like_param` the
 * caller checks states 1 and up. */
static weft_status check(const weft_node *n, int states, bool like_param, weft_desc *out,
                         int *out_count) {
    /* `given`: the number of extra inputs, with facts about the whole or the numbers of rows. */
    int present = 0, given = n->op->max_inputs - states - 2;
    WEFT_REQUIRE((n->inputs == states + 2 || n->inputs == states + 2 + given) &&
                     wefti_in(n, states) && wefti_in(n, states + 1),
                 WEFT_E_ARG,
                 "%s: needs %d tensors to update, a gradient and the scalars, and for a piece all "
                 "that it needs of the whole, or for rows their numbers",
                 n->op->name, states);
    for (int i = states + 2; i < n->inputs; i++)
        WEFT_REQUIRE(wefti_in(n, i), WEFT_E_ARG, "%s: input %d is missing", n->op->name, i);
    if (n->inputs > states + 2 && !by_rows(n))
        WEFT_TRY(wefti_op_check_shape(n, n->inputs - 1, 1, (int64_t[]){2}, "two sums of squares"));
    for (int i = 0; i < n->inputs - by_rows(n); i++)
        if (wefti_in(n, i)) WEFT_TRY(wefti_op_check_float(n, i));
    for (int i = 1; i < states && like_param; i++)
        if (wefti_in(n, i)) WEFT_TRY(wefti_op_check_same_shape(n, 0, i));
    WEFT_TRY(by_rows(n) ? check_rows(n) : wefti_op_check_same_shape(n, 0, states));
    WEFT_TRY(wefti_op_check_shape(n, states + 1, 1, (int64_t[]){WEFTI_STEP_SCALARS},
                                  "the scalars of a step"));
    for (int i = 0; i < states; i++)
        if (wefti_in(n, i)) out[present++] = *wefti_in(n, i);
    *out_count = present;
    return WEFT_OK;
}

static weft_status infer_sgd(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_REQUIRE(wefti_in(n, 1) || wefti_attr_float(n, WEFTI_AT_momentum) == 0.0, WEFT_E_ARG,
                 "opt_sgd: momentum %g needs a momentum buffer",
                 wefti_attr_float(n, WEFTI_AT_momentum));
    return check(n, 2, true, out, out_count);
}
static weft_status infer_squares(const weft_node *n, weft_desc *out, int *out_count) {
    weft_desc updated[3];
    WEFT_TRY(check(n, 3, true, updated, out_count));
    *out = wefti_op_desc(wefti_op_statistics_dtype(updated[0].dtype), 1, (int64_t[]){2});
    *out_count = 1;
    return WEFT_OK;
}
static weft_status infer_one_state(const weft_node *n, weft_desc *out, int *out_count) {
    return check(n, 2, true, out, out_count);
}
static weft_status infer_two_moments(const weft_node *n, weft_desc *out, int *out_count) {
    return check(n, 3, true, out, out_count);
}
static weft_status check_count(const weft_node *n) {
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_count) >= 0, WEFT_E_ARG, "%s: the count is %lld",
                 n->op->name, (long long)wefti_attr_int(n, WEFTI_AT_count));
    return WEFT_OK;
}
static weft_status infer_adafactor1(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(wefti_op_check_rank(n, 0, 0, 1));
    WEFT_TRY(check_count(n));
    return check(n, 2, true, out, out_count);
}

static weft_status infer_adafactor(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *p = wefti_in(n, 0);
    weft_desc col = *p;
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, WEFT_MAX_RANK));
    WEFT_TRY(check(n, 3, false, out, out_count));
    WEFT_TRY(check_count(n));
    col.rank--;
    col.shape[p->rank - 2] = p->shape[p->rank - 1];
    /* The old row and col, then the new ones that a piece receives. */
    for (int i = 1; i < n->inputs; i += 4) {
        WEFT_TRY(wefti_op_check_shape(n, i, p->rank - 1, p->shape,
                                      "the parameter without its last dimension"));
        WEFT_TRY(wefti_op_check_shape(n, i + 1, col.rank, col.shape,
                                      "the parameter without its last dimension but one"));
    }
    if (n->inputs > 5) WEFT_TRY(wefti_op_check_shape(n, 7, p->rank - 2, p->shape, "the matrices"));
    return WEFT_OK;
}

static weft_status infer_norm(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    *out = wefti_op_desc(wefti_op_statistics_dtype(wefti_in(n, 0)->dtype), 0, NULL);
    return WEFT_OK;
}

/* ---- split rules ---- */

/* The updated tensors and the gradient are split alike, with factors of this kind. The scalars are
 * replicated. */
static void rule(const weft_node *n, wefti_factor_kind kind, wefti_split_rule *r) {
    const weft_desc *p = wefti_in(n, 0);
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "d", p, 0, p->rank, kind, f);
    int gradient = n->op->gradient_input;
    for (int i = 0; i <= gradient; i++)
        if (wefti_in(n, i)) wefti_op_assign(r->in[i], 0, f, 0, p->rank);
    for (int o = 0; o < n->outputs; o++) wefti_op_assign(r->out[o], 0, f, 0, p->rank);
}

/* Columns of rows are free. */
static void rule_of_rows(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *p = wefti_in(n, 0);
    const int gradient = n->op->gradient_input;
    const int8_t listed =
        wefti_op_factor(r, "listed", -1, wefti_in(n, gradient)->shape[0], WEFTI_FACTOR_WHOLE);
    rule(n, WEFTI_FACTOR_FREE, r);
    if (p->shape[0] > 1) r->factor[r->in[0][0]].kind = WEFTI_FACTOR_WHOLE;
    r->in[gradient][0] = r->in[gradient + 2][0] = listed;
}

static weft_status split_free(const weft_node *n, wefti_split_rule *r) {
    if (by_rows(n))
        rule_of_rows(n, r);
    else
        rule(n, WEFTI_FACTOR_FREE, r);
    return WEFT_OK;
}
/* Norms and means of the whole tensor are statistics. If they are given, the dimensions are
 * free. */
static wefti_factor_kind statistics_kind(const weft_node *n) {
    bool given = n->inputs > n->op->gradient_input + 2;
    return given ? WEFTI_FACTOR_FREE : WEFTI_FACTOR_STATS;
}

static weft_status split_statistics(const weft_node *n, wefti_split_rule *r) {
    rule(n, statistics_kind(n), r);
    return WEFT_OK;
}

static weft_status split_squares(const weft_node *n, wefti_split_rule *r) {
    rule(n, WEFTI_FACTOR_SUM, r);
    r->out[0][0] = -1;
    return WEFT_OK;
}

static weft_status localize_count(const weft_node *n, const wefti_split_rule *rule_,
                                  const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)rule_;
    (void)begins;
    (void)sizes;
    wefti_attr *count = wefti_op_attr(n, attrs, WEFTI_AT_count);
    if (!count->i) count->i = weft_desc_elems(wefti_in(n, 0));
    return WEFT_OK;
}

static weft_status split_adafactor(const weft_node *n, wefti_split_rule *r) {
    int rank = wefti_in(n, 0)->rank;
    rule(n, statistics_kind(n), r);
    for (int o = 1; o < 3; o++) {
        memset(r->in[o], -1, sizeof r->in[o]);
        /* row; for col, all factors but the last one. */
        wefti_op_assign(r->in[o], 0, r->in[0], 0, rank - 1);
        if (o == 2) r->in[o][rank - 2] = r->in[0][rank - 1];
        memcpy(r->out[o], r->in[o], sizeof r->out[o]);
        if (n->inputs > 5) memcpy(r->in[4 + o], r->in[o], sizeof r->in[o]);
    }
    if (n->inputs > 5) wefti_op_assign(r->in[7], 0, r->in[0], 0, rank - 2);
    return WEFT_OK;
}

static weft_status split_norm(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    const weft_desc *x = wefti_in(n, 0);
    wefti_op_factors(r, "d", x, 0, x->rank, WEFTI_FACTOR_SUM, f);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    return WEFT_OK;
}

/* ---- references ---- */

/* Values that every step reads. `given`: the inputs with facts about the whole; NULL if the tensor
 * is the whole. `rows`: the numbers of rows; NULL if all are updated. */
typedef struct step {
    int64_t elements; /* to update, and of the gradient */
    int64_t width;    /* of a row */
    double lr, number, grad_scale, decay;
    const double *p, *grad, *const *given, *squares, *rows;
} step;

/* Where element i of the gradient has its parameter and states. */
static int64_t place(const step *s, int64_t i) {
    return s->rows ? (int64_t)s->rows[i / s->width] * s->width + i % s->width : i;
}

static step step_of(const weft_node *n, const double *const *in) {
    int gradient = n->op->gradient_input;
    bool piece = n->op->lower && n->inputs > gradient + 2;
    const double *scalars = in[gradient + 1];
    return (step){.elements = weft_desc_elems(wefti_in(n, 0)),
                  .lr = scalars[WEFTI_STEP_PLACE(learning_rate)],
                  .number = fmax(1.0, floor(scalars[WEFTI_STEP_PLACE(step)])),
                  .grad_scale = scalars[WEFTI_STEP_PLACE(gradient_scale)],
                  .decay = wefti_attr_float(n, WEFTI_AT_weight_decay),
                  .p = in[0],
                  .grad = in[gradient],
                  .given = piece ? in + gradient + 2 : NULL,
                  .squares = piece ? in[n->inputs - 1] : NULL};
}

/* The same for a step that may update rows: the other rows stay as they are. */
static step step_on_rows(const weft_node *n, const double *const *in, double *const *out) {
    step s = step_of(n, in);
    if (!by_rows(n)) return s;
    const weft_desc *p = wefti_in(n, 0), *list = wefti_in(n, n->op->gradient_input + 2);
    int64_t count = 0;
    int o = 0;
    for (int i = 0; i < n->op->gradient_input; i++)
        if (wefti_in(n, i)) memcpy(out[o++], in[i], (size_t)s.elements * sizeof **out);
    s.rows = in[n->op->gradient_input + 2];
    s.width = p->shape[1];
    while (count < list->shape[0] && s.rows[count] >= 0.0 && s.rows[count] < (double)p->shape[0])
        count++;
    s.elements = count * s.width;
    return s;
}

static weft_status reference_sgd(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const step s = step_on_rows(n, in, out);
    const double *buffer = wefti_op_optional(n, in, 1);
    double momentum = wefti_attr_float(n, WEFTI_AT_momentum);
    for (int64_t i = 0; i < s.elements; i++) {
        const int64_t at = place(&s, i);
        double g = s.grad[i] * s.grad_scale + s.decay * s.p[at];
        if (buffer) {
            double b = s.number <= 1.0 ? g : momentum * buffer[at] + g;
            out[1][at] = b;
            g = wefti_attr_int(n, WEFTI_AT_nesterov) ? g + momentum * b : b;
        }
        out[0][at] = s.p[at] - s.lr * g;
    }
    return WEFT_OK;
}

/* With an infinite second moment, an element would never change again. Checks those that the step
 * makes. `state`: the output that holds them. */
static weft_status check_moments(const weft_node *n, const step *s, int state, const double *v) {
    const weft_desc *desc = wefti_out(n, state);
    const bool f64 = desc->dtype == WEFT_F64;
    const int64_t count = s->rows ? s->elements : weft_desc_elems(desc);
    for (int64_t i = 0; i < count; i++) {
        const double x = v[place(s, i)];
        WEFT_REQUIRE(isfinite(x) && (f64 || fabs(x) <= (double)FLT_MAX), WEFT_E_CORRUPT,
                     WEFTI_MOMENT_OVERFLOW, f64 ? "double" : "single");
    }
    return WEFT_OK;
}

/* Updates the moments of element i with gradient g. Returns the corrected ratio m^ / (sqrt(v^) +
 * eps). */
static double adam_step(const weft_node *n, const step *s, const double *const *in, int64_t i,
                        double g, double *m, double *v) {
    double beta1 = wefti_attr_float(n, WEFTI_AT_beta1), beta2 = wefti_attr_float(n, WEFTI_AT_beta2);
    *m = beta1 * in[1][i] + (1.0 - beta1) * g;
    *v = beta2 * in[2][i] + (1.0 - beta2) * g * g;
    double root = sqrt(*v / (1.0 - pow(beta2, s->number)));
    return *m / (1.0 - pow(beta1, s->number)) / (root + wefti_attr_float(n, WEFTI_AT_eps));
}

static double adam_ratio(const weft_node *n, const step *s, const double *const *in,
                         double *const *out, int64_t i, double g) {
    return adam_step(n, s, in, i, g, &out[1][i], &out[2][i]);
}

static weft_status reference_adam(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const step s = step_on_rows(n, in, out);
    for (int64_t i = 0; i < s.elements; i++) {
        const int64_t at = place(&s, i);
        double g = s.grad[i] * s.grad_scale + s.decay * s.p[at];
        out[0][at] = s.p[at] - s.lr * adam_ratio(n, &s, in, out, at, g);
    }
    return check_moments(n, &s, 2, out[2]);
}

static weft_status reference_adamw(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const step s = step_on_rows(n, in, out);
    for (int64_t i = 0; i < s.elements; i++) {
        const int64_t at = place(&s, i);
        double ratio = adam_ratio(n, &s, in, out, at, s.grad[i] * s.grad_scale);
        out[0][at] = s.p[at] * (1.0 - s.lr * s.decay) - s.lr * ratio;
    }
    return check_moments(n, &s, 2, out[2]);
}

static weft_status reference_adagrad(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    const step s = step_on_rows(n, in, out);
    double initial = wefti_attr_float(n, WEFTI_AT_initial_accumulator);
    double eps = wefti_attr_float(n, WEFTI_AT_eps);
    for (int64_t i = 0; i < s.elements; i++) {
        const int64_t at = place(&s, i);
        double g = s.grad[i] * s.grad_scale + s.decay * s.p[at];
        out[1][at] = in[1][at] + g * g;
        out[0][at] = s.p[at] - s.lr * g / (sqrt(initial + out[1][at]) + eps);
    }
    return check_moments(n, &s, 1, out[1]);
}

static double sign(double x) {
    return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x;
}

static weft_status reference_lion(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const step s = step_on_rows(n, in, out);
    double beta1 = wefti_attr_float(n, WEFTI_AT_beta1), beta2 = wefti_attr_float(n, WEFTI_AT_beta2);
    for (int64_t i = 0; i < s.elements; i++) {
        const int64_t at = place(&s, i);
        double g = s.grad[i] * s.grad_scale, m = in[1][at];
        out[0][at] = s.p[at] - s.lr * (sign(beta1 * m + (1.0 - beta1) * g) + s.decay * s.p[at]);
        out[1][at] = beta2 * m + (1.0 - beta2) * g;
    }
    return WEFT_OK;
}

static weft_status reference_lamb(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    step s = step_of(n, in);
    double p2 = 0.0, u2 = 0.0, *u = out[0]; /* stores u in the memory of the result */
    for (int64_t i = 0; i < s.elements; i++) {
        u[i] = adam_ratio(n, &s, in, out, i, s.grad[i] * s.grad_scale) + s.decay * s.p[i];
        p2 += s.p[i] * s.p[i];
        u2 += u[i] * u[i];
    }
    if (s.squares) {
        p2 = s.squares[0];
        u2 = s.squares[1];
    }
    double trust = p2 > 0.0 && u2 > 0.0 ? sqrt(p2) / sqrt(u2) : 1.0;
    for (int64_t i = 0; i < s.elements; i++) out[0][i] = s.p[i] - s.lr * trust * u[i];
    return check_moments(n, &s, 2, out[2]);
}

static weft_status reference_squares(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    step s = step_of(n, in);
    out[0][0] = out[0][1] = 0.0;
    for (int64_t i = 0; i < s.elements; i++) {
        double m, v, u = adam_step(n, &s, in, i, s.grad[i] * s.grad_scale, &m, &v);
        u += s.decay * s.p[i];
        out[0][0] += s.p[i] * s.p[i];
        out[0][1] += u * u;
    }
    return WEFT_OK;
}

static double sum_of_squares(const double *x, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

/* The last part of both forms. `u` holds g / sqrt(v) and becomes the new parameter. */
static void adafactor_apply(const weft_node *n, const step *s, double *u) {
    int64_t stated = wefti_attr_int(n, WEFTI_AT_count);
    double count = (double)(stated ? stated : s->elements), rate = s->lr;
    if (s->elements == 0) return;
    double p2 = s->squares ? s->squares[0] : sum_of_squares(s->p, s->elements);
    double u2 = s->squares ? s->squares[1] : sum_of_squares(u, s->elements);
    double clip = fmax(1.0, sqrt(u2 / count) / wefti_attr_float(n, WEFTI_AT_clip));
    if (wefti_attr_int(n, WEFTI_AT_scale_parameter))
        rate *= fmax(wefti_attr_float(n, WEFTI_AT_eps2), sqrt(p2 / count));
    for (int64_t i = 0; i < s->elements; i++)
        u[i] = s->p[i] - rate * (u[i] / clip + s->decay * s->p[i]);
}

static double adafactor_beta2(const weft_node *n, const step *s) {
    return 1.0 - pow(s->number, wefti_attr_float(n, WEFTI_AT_decay_exponent));
}

static weft_status reference_adafactor(const weft_node *n, const wefti_random *random,
                                       const double *const *in, double *const *out) {
    (void)random;
    step s = step_of(n, in);
    const weft_desc *p = wefti_in(n, 0);
    int64_t rows = p->shape[p->rank - 2], cols = p->shape[p->rank - 1];
    double beta2 = adafactor_beta2(n, &s), eps1 = wefti_attr_float(n, WEFTI_AT_eps1);
    for (int64_t matrix = 0; matrix < wefti_op_count(p, 0, p->rank - 2); matrix++) {
        const double *grad = s.grad + matrix * rows * cols;
        double *row = out[1] + matrix * rows, *col = out[2] + matrix * cols, mean = 0.0;
        double *u = out[0] + matrix * rows * cols;
        for (int64_t i = 0; i < rows; i++) row[i] = beta2 * in[1][matrix * rows + i];
        for (int64_t j = 0; j < cols; j++) col[j] = beta2 * in[2][matrix * cols + j];
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                double g = grad[i * cols + j] * s.grad_scale, square = g * g + eps1;
                row[i] += (1.0 - beta2) * square / (double)cols;
                col[j] += (1.0 - beta2) * square / (double)rows;
            }
        for (int64_t i = 0; i < rows; i++) mean += row[i] / (double)rows;
        if (s.given) {
            memcpy(row, s.given[0] + matrix * rows, (size_t)rows * sizeof *row);
            memcpy(col, s.given[1] + matrix * cols, (size_t)cols * sizeof *col);
            mean = s.given[2][matrix];
        }
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                u[i * cols + j] = grad[i * cols + j] * s.grad_scale / sqrt(row[i] * col[j] / mean);
    }
    adafactor_apply(n, &s, out[0]);
    WEFT_TRY(check_moments(n, &s, 1, out[1]));
    return check_moments(n, &s, 2, out[2]);
}

static weft_status reference_adafactor1(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) {
    (void)random;
    step s = step_of(n, in);
    double beta2 = adafactor_beta2(n, &s), eps1 = wefti_attr_float(n, WEFTI_AT_eps1);
    for (int64_t i = 0; i < s.elements; i++) {
        double g = s.grad[i] * s.grad_scale;
        out[1][i] = beta2 * in[1][i] + (1.0 - beta2) * (g * g + eps1);
        out[0][i] = g / sqrt(out[1][i]);
    }
    adafactor_apply(n, &s, out[0]);
    return check_moments(n, &s, 1, out[1]);
}

static weft_status reference_norm(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    int64_t count = weft_desc_elems(wefti_in(n, 0));
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += in[0][i] * in[0][i];
    out[0][0] = sum;
    return WEFT_OK;
}

/* ---- cost: operations for each element, counted in the formulas above ---- */

/* Of listed rows: what is updated is read and written, the rest is read. */
static double bytes_of_rows(const weft_node *n) {
    const int gradient = n->op->gradient_input;
    const double elements = (double)weft_desc_elems(wefti_in(n, gradient));
    double bytes = 0.0;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        if (x)
            bytes += i < gradient ? 2.0 * elements * (double)weft_dtype_bytes(x->dtype)
                                  : (double)weft_desc_bytes(x);
    }
    return bytes;
}

static void cost_of(const weft_node *n, double flops, wefti_cost *out) {
    const int updated = by_rows(n) ? n->op->gradient_input : 0;
    *out = (wefti_cost){.flops = flops * (double)weft_desc_elems(wefti_in(n, updated)),
                        .bytes = by_rows(n) ? bytes_of_rows(n) : wefti_node_bytes(n)};
}
static void cost_sgd(const weft_node *n, wefti_cost *out) {
    double buffer = wefti_attr_int(n, WEFTI_AT_nesterov) ? 4.0 : 2.0;
    cost_of(n, 5.0 + (wefti_in(n, 1) ? buffer : 0.0), out);
}
static void cost_adam(const weft_node *n, wefti_cost *out) {
    cost_of(n, 17.0, out);
}
static void cost_adamw(const weft_node *n, wefti_cost *out) {
    cost_of(n, 16.0, out);
}
static void cost_lion(const weft_node *n, wefti_cost *out) {
    cost_of(n, 12.0, out);
}
static void cost_adagrad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 11.0, out);
}
static void cost_squares(const weft_node *n, wefti_cost *out) {
    cost_of(n, 19.0, out);
}
static void cost_lamb(const weft_node *n, wefti_cost *out) {
    cost_of(n, 21.0, out);
}
static void cost_adafactor(const weft_node *n, wefti_cost *out) {
    cost_of(n, 20.0, out);
}
static void cost_adafactor1(const weft_node *n, wefti_cost *out) {
    cost_of(n, 17.0, out);
}
static void cost_norm(const weft_node *n, wefti_cost *out) {
    cost_of(n, 2.0, out);
}

/* ---- tables ---- */

static const wefti_attr attrs_sgd[] = {
    WEFTI_F(momentum, 0.0), WEFTI_I(nesterov, 0), WEFTI_F(weight_decay, 0.0), {0}};
static const wefti_attr attrs_adam[] = {WEFTI_F(beta1, 0.9),
                                        WEFTI_F(beta2, 0.999),
                                        WEFTI_F(eps, 1e-8),
                                        WEFTI_F(weight_decay, 0.0),
                                        {0}};
static const wefti_attr attrs_lion[] = {
    WEFTI_F(beta1, 0.9), WEFTI_F(beta2, 0.99), WEFTI_F(weight_decay, 0.0), {0}};
static const wefti_attr attrs_adagrad[] = {
    WEFTI_F(eps, 1e-10), WEFTI_F(initial_accumulator, 0.0), WEFTI_F(weight_decay, 0.0), {0}};
static const wefti_attr attrs_lamb[] = {WEFTI_F(beta1, 0.9),
                                        WEFTI_F(beta2, 0.999),
                                        WEFTI_F(eps, 1e-6),
                                        WEFTI_F(weight_decay, 0.0),
                                        {0}};
static const wefti_attr attrs_adafactor[] = {WEFTI_F(decay_exponent, -0.8),
                                             WEFTI_F(eps1, 1e-30),
                                             WEFTI_F(eps2, 1e-3),
                                             WEFTI_F(clip, 1.0),
                                             WEFTI_F(weight_decay, 0.0),
                                             WEFTI_I(scale_parameter, 1),
                                             WEFTI_I(count, 0),
                                             {0}};

static const wefti_op_case cases_sgd[] = {
    CASE(NULL, "f32[3,5]", "-", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1", "f32[7]", "-", "bf16[7]", "f32[8]+"),
    CASE("momentum=0.9", "f32[3,5]", "f32[3,5]", "f32[3,5]", "f32[8]+"),
    CASE("momentum=0.9 nesterov=1 weight_decay=0.01", "f32[3]", "f32[3]", "f32[3]", "f32[8]+"),
    CASE("momentum=0.5", "f32[0]", "f32[0]", "f32[0]", "f32[8]+"),
    CASE("weight_decay=0.1", "f32[7,5]", "-", "f32[4,5]", "f32[8]+", "i32[4]!7"),
    CASE("momentum=0.9 nesterov=1", "f32[7,5]", "f32[7,5]", "bf16[5,5]", "f32[8]+", "i32[5]!9"),
    CASES_END};
static const wefti_op_case cases_squares[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]", "f32[3,5]+", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-3", "f32[7]", "f32[7]", "f32[7]+", "bf16[7]",
         "f32[8]+"),
    CASE(NULL, "f32[0]", "f32[0]", "f32[0]+", "f32[0]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_adam[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]", "f32[3,5]+", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-3", "f32[7]", "f32[7]", "f32[7]+", "bf16[7]",
         "f32[8]+"),
    CASE(NULL, "f32[0]", "f32[0]", "f32[0]+", "f32[0]", "f32[8]+"),
    CASE("weight_decay=0.1", "f32[7,5]", "f32[7,5]", "f32[7,5]+", "f32[6,5]", "f32[8]+",
         "i32[6]!8"),
    CASE(NULL, "f32[3,2]", "f32[3,2]", "f32[3,2]+", "f32[0,2]", "f32[8]+", "i32[0]!3"),
    CASES_END};
static const wefti_op_case cases_lamb[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]", "f32[3,5]+", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-3", "f32[7]", "f32[7]", "f32[7]+", "bf16[7]",
         "f32[8]+", "f32[2]+"),
    CASE(NULL, "f32[0]", "f32[0]", "f32[0]+", "f32[0]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_lion[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 beta1=0.8 beta2=0.95", "f32[7]", "f32[7]", "bf16[7]", "f32[8]+"),
    CASE("weight_decay=0.1", "f32[7,5]", "f32[7,5]", "f32[6,5]", "f32[8]+", "i32[6]!8"),
    CASE(NULL, "f32[0]", "f32[0]", "f32[0]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_adagrad[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]+", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 eps=1e-3 initial_accumulator=0.5", "f32[7]", "f32[7]+", "bf16[7]",
         "f32[8]+"),
    CASE("weight_decay=0.1", "f32[7,5]", "f32[7,5]+", "f32[6,5]", "f32[8]+", "i32[6]!8"),
    CASE(NULL, "f32[0]", "f32[0]+", "f32[0]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_adafactor[] = {
    CASE(NULL, "f32[3,5]", "f32[3]+", "f32[5]+", "f32[3,5]", "f32[8]+"),
    CASE("weight_decay=0.1 scale_parameter=0 clip=0.5", "f32[2,1,3,2]", "f32[2,1,3]+",
         "f32[2,1,2]+", "bf16[2,1,3,2]", "f32[8]+"),
    CASE("count=60", "f32[3,5]", "f32[3]+", "f32[5]+", "f32[3,5]", "f32[8]+", "f32[3]+", "f32[5]+",
         "f32[]+", "f32[2]+"),
    CASE(NULL, "f32[0,3]", "f32[0]+", "f32[3]+", "f32[0,3]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_adafactor1[] = {
    CASE(NULL, "f32[5]", "f32[5]+", "f32[5]", "f32[8]+"),
    CASE("weight_decay=0.1 scale_parameter=0", "f32[]", "f32[]+", "bf16[]", "f32[8]+"),
    CASE("count=20", "f32[5]", "f32[5]+", "f32[5]", "f32[8]+", "f32[2]+"),
    CASE(NULL, "f32[0]", "f32[0]+", "f32[0]", "f32[8]+"), CASES_END};
static const wefti_op_case cases_norm[] = {CASE(NULL, "f32[3,5]"), CASE(NULL, "bf16[7]"),
                                           CASE(NULL, "f32[]"), CASE(NULL, "f32[0]"), CASES_END};

/* The first `min_` tensors are required; infer checks the rest. */
#define OPTIMIZER(name_, min_, max_, gradient_, attrs_, infer_, split_, cost_, reference_, cases_, \
                  ...)                                                                             \
    const weft_op_def weft_op_##name_ = {WEFTI_OP_NAME(name_),                                     \
                                         .min_inputs = min_,                                       \
                                         .max_inputs = max_,                                       \
                                         .gradient_input = gradient_,                              \
                                         .flags = WEFTI_OP_IN_PLACE,                               \
                                         .attrs = attrs_,                                          \
                                         .infer = infer_,                                          \
                                         .split = split_,                                          \
                                         .cost = cost_,                                            \
                                         .reference = reference_,                                  \
                                         .cases = cases_,                                          \
                                         __VA_ARGS__};
OPTIMIZER(opt_sgd, 1, 5, 2, attrs_sgd, infer_sgd, split_free, cost_sgd, reference_sgd, cases_sgd, )
OPTIMIZER(opt_adam, 5, 6, 3, attrs_adam, infer_two_moments, split_free, cost_adam, reference_adam,
          cases_adam, )
OPTIMIZER(opt_adamw, 5, 6, 3, attrs_adam, infer_two_moments, split_free, cost_adamw,
          reference_adamw, cases_adam, )
OPTIMIZER(opt_lion, 4, 5, 2, attrs_lion, infer_one_state, split_free, cost_lion, reference_lion,
          cases_lion, )
OPTIMIZER(opt_adagrad, 4, 5, 2, attrs_adagrad, infer_one_state, split_free, cost_adagrad,
          reference_adagrad, cases_adagrad, )
OPTIMIZER(opt_lamb, 5, 6, 3, attrs_lamb, infer_two_moments, split_statistics, cost_lamb,
          reference_lamb, cases_lamb, .lower = wefti_lamb_lower,
          .lowers = 1u << WEFTI_FACTOR_STATS, )
OPTIMIZER(opt_adafactor, 5, 9, 3, attrs_adafactor, infer_adafactor, split_adafactor, cost_adafactor,
          reference_adafactor, cases_adafactor, .localize = localize_count,
          .lower = wefti_adafactor_lower, .lowers = 1u << WEFTI_FACTOR_STATS, )
OPTIMIZER(opt_adafactor1, 4, 5, 2, attrs_adafactor, infer_adafactor1, split_statistics,
          cost_adafactor1, reference_adafactor1, cases_adafactor1, .localize = localize_count,
          .lower = wefti_adafactor1_lower, .lowers = 1u << WEFTI_FACTOR_STATS, )
#undef OPTIMIZER

const weft_op_def weft_op_grad_norm2 = {
    WEFTI_OP_NAME(grad_norm2),   .min_inputs = 1,     .max_inputs = 1,
    .infer = infer_norm,         .split = split_norm, .cost = cost_norm,
    .reference = reference_norm, .cases = cases_norm,
};

const weft_op_def weft_op_lamb_squares = {
    WEFTI_OP_NAME(lamb_squares), .min_inputs = 5,      .max_inputs = 5,
    .gradient_input = 3,         .attrs = attrs_lamb,  .infer = infer_squares,
    .split = split_squares,      .cost = cost_squares, .reference = reference_squares,
    .cases = cases_squares,
};
