/* Mixtures of experts: assigns slots, moves rows to the experts and back, and computes the experts'
 * products. */
#include <string.h>

#include "backend/cpu/ops/ops.h"
#include "backend/cpu/gemm/gemm.h"
#include "base/number.h"

/* ---- slots ---- */

typedef struct slots_kernel {
    wefti_kernel base;
    int64_t groups, size, choices, experts, capacity; /* tokens are [groups, size] */
    int64_t parts, part;                              /* parts 0: the groups are not split */
} slots_kernel;

/* Runs as one task: it needs only a few operations for each choice. */
static weft_status run_slots(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const slots_kernel *k = (const slots_kernel *)kernel;
    const int32_t *expert = in[0], *counts = k->parts ? in[1] : NULL;
    int32_t *slot = out[0], *used = out[1]; /* [experts, groups] */
    int64_t parts = counts ? k->parts : 1;
    (void)run;
    (void)workspace;
    memset(used, 0, (size_t)(k->experts * k->groups) * sizeof *used);
    for (int64_t g = 0; g < k->groups; g++)
        for (int64_t at = 0; at < k->choices * parts; at++) {
            int64_t c = at / parts, part = at % parts;
            if (counts && part != k->part) {
                const int32_t *add = counts + ((g * parts + part) * k->choices + c) * k->experts;
                for (int64_t e = 0; e < k->experts; e++) used[e * k->groups + g] += add[e];
                continue;
            }
            for (int64_t t = g * k->size; t < (g + 1) * k->size; t++) {
                int64_t i = t * k->choices + c, e = expert[i];
                bool known = e >= 0 && e < k->experts;
                int32_t *next = used + (known ? e * k->groups + g : 0);
                slot[i] = known && *next < k->capacity ? *next : -1;
                if (known) ++*next;
            }
        }
    for (int64_t i = 0; i < k->experts * k->groups; i++)
        if (used[i] > k->capacity) used[i] = (int32_t)k->capacity;
    return WEFT_OK;
}

static weft_status run_counts(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const slots_kernel *k = (const slots_kernel *)kernel;
    const int32_t *expert = in[0];
    int32_t *count = out[0];
    (void)run;
    (void)workspace;
    memset(count, 0, (size_t)(k->groups * k->choices * k->experts) * sizeof *count);
    for (int64_t i = 0; i < k->groups * k->size * k->choices; i++) {
        int64_t row = i / (k->size * k->choices) * k->choices + i % k->choices;
        if (expert[i] >= 0 && expert[i] < k->experts) count[row * k->experts + expert[i]]++;
    }
    return WEFT_OK;
}

static weft_status slots(const weft_node *n, const wefti_prepare *options, const char *label,
                         weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                            const void *const *, void *const *, void *),
                         slots_kernel **out) {
    const weft_desc *expert = wefti_in(n, 0);
    wefti_kernel *base;
    if (options->accumulate) return WEFT_E_NO_IMPL;
    WEFT_TRY(wefti_cpu_kernel(sizeof(slots_kernel), label, run, &base));
    slots_kernel *k = (slots_kernel *)base;
    k->groups = wefti_cpu_span(expert, 0, expert->rank - 2);
    k->size = expert->shape[expert->rank - 2];
    k->choices = expert->shape[expert->rank - 1];
    k->experts = wefti_attr_int(n, WEFTI_AT_experts);
    *out = k;
    return WEFT_OK;
}

weft_status wefti_cpu_moe_slots(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    const weft_desc *counts = wefti_in(n, 1);
    slots_kernel *k;
    weft_status status = slots(n, options, "slots", run_slots, &k);
    if (status < 0) return status;
    k->capacity = wefti_attr_int(n, WEFTI_AT_capacity);
    k->part = wefti_attr_int(n, WEFTI_AT_part);
    if (counts) k->parts = counts->shape[counts->rank - 3];
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_moe_counts(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    slots_kernel *k;
    weft_status status = slots(n, options, "counts", run_counts, &k);
    if (status < 0) return status;
    *out = &k->base;
    return WEFT_OK;
}

/* ---- rows ---- */

typedef struct rows_kernel {
    wefti_kernel base;
    void (*kernel)(wefti_pool *pool, const wefti_moe_args *a);
    wefti_moe_args args; /* sizes and dtypes */
    bool weight, dot;
} rows_kernel;

static weft_status run_rows(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const rows_kernel *k = (const rows_kernel *)kernel;
    wefti_moe_args a = k->args;
    a.from.data = in[0];
    a.expert = in[1];
    a.slot = in[2];
    a.workspace = workspace;
    if (k->dot) {
        a.x.data = in[3];
        a.dots = out[0];
    } else {
        a.to.data = out[0];
        if (k->weight) a.weight.data = in[3];
    }
    k->kernel(run->pool, &a);
    return WEFT_OK;
}

/* `tokens` and `buffers` are the x and y of ops/moe/moe.c; input 0 is one of the two. */
static weft_status rows(const weft_node *n, const wefti_prepare *options, const char *label,
                        void (*kernel)(wefti_pool *, const wefti_moe_args *),
                        const weft_desc *tokens, const weft_desc *buffers, wefti_kernel **out) {
    const weft_desc *expert = wefti_in(n, 1), *last = wefti_in(n, 3);
    int64_t choices = expert->shape[expert->rank - 1], count = weft_desc_elems(expert);
    int rank = buffers->rank;
    int64_t slots_here = wefti_cpu_span(buffers, 0, rank - 1);
    if (options->accumulate || !wefti_cpu_is_real(tokens) || !wefti_cpu_is_real(buffers) ||
        (last && !wefti_cpu_is_real(last)) || choices > WEFTI_MOE_CHOICES || count > INT32_MAX)
        return WEFT_E_NO_IMPL;
    WEFT_TRY(wefti_cpu_kernel(sizeof(rows_kernel), label, run_rows, out));
    rows_kernel *k = (rows_kernel *)*out;
    k->kernel = kernel;
    k->dot = kernel == wefti_kernels_best()->moe_dot;
    k->weight = last && !k->dot;
    k->args = (wefti_moe_args){.from = {NULL, wefti_in(n, 0)->dtype},
                               .to = {NULL, wefti_out(n, 0)->dtype},
                               .groups = wefti_cpu_span(expert, 0, expert->rank - 2),
                               .size = expert->shape[expert->rank - 2],
                               .choices = choices,
                               .h = buffers->shape[rank - 1],
                               .experts = buffers->shape[0],
                               .capacity = buffers->shape[rank - 2],
                               .first_expert = wefti_attr_int(n, WEFTI_AT_first_expert),
                               .first_slot = wefti_attr_int(n, WEFTI_AT_first_slot)};
    if (k->dot) k->args.x.dtype = last->dtype;
    if (k->weight) k->args.weight.dtype = last->dtype;
    if (kernel == wefti_kernels_best()->moe_dispatch)
        k->base.workspace_bytes = (slots_here + count) * (int64_t)sizeof(int32_t);
    return WEFT_OK;
}

weft_status wefti_cpu_moe_dispatch(const weft_node *n, const wefti_prepare *options,
                                   wefti_kernel **out) {
    return rows(n, options, "dispatch", wefti_kernels_best()->moe_dispatch, wefti_in(n, 0),
                wefti_out(n, 0), out);
}

weft_status wefti_cpu_moe_combine(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    return rows(n, options, "combine", wefti_kernels_best()->moe_combine, wefti_out(n, 0),
                wefti_in(n, 0), out);
}

weft_status wefti_cpu_moe_dot(const weft_node *n, const wefti_prepare *options,
                              wefti_kernel **out) {
    return rows(n, options, "dot", wefti_kernels_best()->moe_dot, wefti_in(n, 3), wefti_in(n, 0),
                out);
}

/* ---- products ---- */

/* Products of experts. For each expert they cover the used rows of all its groups, in pieces of at
 * most MOE_PIECE rows.
 *
 * If there is only one group, or a group has at least MOE_PIECE / 2 rows left, its rows are used as
 * they lie. Otherwise rows of several groups are gathered side by side, so that small groups do not
 * make small products.
 *
 * The number of rows is known only at run time, so products are prepared then. Preparing is plain
 * computation.
 *
 * If experts are many or small, they run side by side, one thread each. Otherwise all threads share
 * each product. The bits are the same, because the bits of a product do not depend on its threads.
 */
enum { MOE_PIECE = 512 };

typedef struct experts_kernel {
    wefti_kernel base;
    /* for a piece of MOE_PIECE rows: they are m, or k for the weight's gradient */
    wefti_gemm_spec spec;
    wefti_isa isa;
    int64_t experts, groups, rows, first;
    int64_t width[2]; /* width of a row of x; of a row of y or dy */
    bool weight_gradient, swapped, side_by_side, counted;
    size_t size[2]; /* bytes of their elements */
    /* workspace bytes: gathered rows; a product; both for one expert */
    int64_t gather, product, per_expert;
} experts_kernel;

typedef struct experts_run {
    const experts_kernel *kernel;
    const char *x, *weight; /* weight: the weight operand of the product */
    char *y;                /* dy for the weight's gradient */
    char *result;           /* y, or dw */
    const int32_t *count;
    char *workspace;
    wefti_pool *pool; /* NULL: experts run side by side */
} experts_run;

static int64_t rows_in_use(const experts_kernel *k, const int32_t *count, int64_t buffer) {
    int64_t rows = count ? count[buffer] - k->first : k->rows;
    return rows < 0 ? 0 : rows > k->rows ? k->rows : rows;
}

/* A piece: `rows` rows side by side; the first ones lie at x and y. */
typedef struct piece {
    char *x, *y;
    int64_t rows;
} piece;

static void multiply(const experts_run *r, int64_t e, const piece *p, bool add, char *workspace) {
    const experts_kernel *k = r->kernel;
    wefti_gemm_spec spec = k->spec;
    wefti_gemm gemm;
    wefti_gemm_args args;
    if (k->weight_gradient) {
        spec.k = p->rows;
        spec.accumulate = add;
        args = (wefti_gemm_args){.a = k->swapped ? p->y : p->x,
                                 .b = k->swapped ? p->x : p->y,
                                 .c = r->result + e * spec.m * spec.n *
                                                      (int64_t)weft_dtype_bytes(spec.c.dtype)};
    } else {
        spec.m = p->rows;
        args = (wefti_gemm_args){.a = p->x,
                                 .b = r->weight +
                                      e * spec.k * spec.n * (int64_t)weft_dtype_bytes(spec.b.dtype),
                                 .c = p->y};
    }
    /* workspace_of prepared all sizes before, so this cannot fail. */
    if (wefti_gemm_prepare(&spec, k->isa, &gemm) < 0) return;
    wefti_gemm_run(&gemm, &args, workspace, r->pool);
}

/* The address of row `row` of x (o 0) or of y (o 1). */
static char *row_at(const experts_run *r, int o, int64_t row) {
    const experts_kernel *k = r->kernel;
    char *base = o ? r->y : (char *)(uintptr_t)r->x;
    return base + row * k->width[o] * (int64_t)k->size[o];
}

/* Copies rows [first, first + count) of operand o to place `at` of the gathered rows, or back. */
static void move_rows(const experts_run *r, int o, int64_t first, int64_t count, char *side,
                      int64_t at, bool back) {
    const experts_kernel *k = r->kernel;
    size_t row = (size_t)k->width[o] * k->size[o];
    char *there = row_at(r, o, first), *here = side + (size_t)at * row;
    if (count > 0) memcpy(back ? there : here, back ? here : there, (size_t)count * row);
}

/* A place among an expert's rows: the next group, and the number of its rows already done. */
typedef struct cursor {
    int64_t group, done;
} cursor;

/* Goes over the rows of a piece from *at on. Copies operands to the gathered rows, or results
 * back. */
static int64_t walk_rows(const experts_run *r, int64_t e, cursor *at, const piece *p, bool back) {
    const experts_kernel *k = r->kernel;
    int64_t rows = 0;
    while (at->group < k->groups && rows < MOE_PIECE) {
        int64_t buffer = e * k->groups + at->group, used = rows_in_use(k, r->count, buffer);
        int64_t count = used - at->done < MOE_PIECE - rows ? used - at->done : MOE_PIECE - rows;
        int64_t first = buffer * k->rows + at->done;
        if (!back) move_rows(r, 0, first, count, p->x, rows, false);
        if (back || k->weight_gradient) move_rows(r, 1, first, count, p->y, rows, back);
        rows += count;
        at->done += count;
        if (at->done == used) *at = (cursor){at->group + 1, 0};
    }
    return rows;
}

/* Whether the next group has enough rows to be used as it lies. If so, sets that piece. */
static bool next_in_place(const experts_run *r, int64_t e, cursor *at, piece *out) {
    const experts_kernel *k = r->kernel;
    int64_t buffer = e * k->groups + at->group, first = buffer * k->rows + at->done;
    int64_t left = rows_in_use(k, r->count, buffer) - at->done;
    if (k->groups > 1 && left < MOE_PIECE / 2) return false;
    int64_t rows = left < MOE_PIECE ? left : MOE_PIECE;
    *out = (piece){row_at(r, 0, first), row_at(r, 1, first), rows};
    at->done += rows;
    if (rows == left) *at = (cursor){at->group + 1, 0};
    return true;
}

static void one_expert(void *context, int64_t e, int thread) {
    const experts_run *r = context;
    const experts_kernel *k = r->kernel;
    char *side = r->workspace + thread * k->per_expert;
    bool add = k->spec.accumulate; /* adds, for the weight's gradient */
    cursor at = {0, 0};
    while (at.group < k->groups) {
        cursor begin = at;
        piece p = {side, side + MOE_PIECE * k->width[0] * (int64_t)k->size[0], 0};
        bool in_place = next_in_place(r, e, &at, &p);
        if (!in_place) p.rows = walk_rows(r, e, &at, &p, false);
        if (p.rows == 0) continue;
        multiply(r, e, &p, add, side + k->gather);
        add = true;
        if (!in_place && !k->weight_gradient) (void)walk_rows(r, e, &begin, &p, true);
    }
    if (k->weight_gradient && !add)
        multiply(r, e, &(piece){side, side, 0}, false, side + k->gather);
    for (int64_t g = 0; !k->weight_gradient && g < k->groups; g++) {
        int64_t buffer = e * k->groups + g, rows = rows_in_use(k, r->count, buffer);
        memset(row_at(r, 1, buffer * k->rows + rows), 0,
               (size_t)((k->rows - rows) * k->width[1]) * k->size[1]);
    }
}

static weft_status run_experts(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const experts_kernel *k = (const experts_kernel *)kernel;
    experts_run r = {.kernel = k,
                     .x = in[0],
                     .weight = in[1],
                     .y = k->weight_gradient ? (char *)(uintptr_t)in[1] : out[0],
                     .result = out[0],
                     .count = k->counted ? in[2] : NULL,
                     .workspace = workspace,
                     .pool = k->side_by_side ? NULL : run->pool};
    if (k->side_by_side)
        wefti_pool_run(run->pool, k->experts, one_expert, &r);
    else
        for (int64_t e = 0; e < k->experts; e++) one_expert(&r, e, 0);
    return WEFT_OK;
}

/* Computes the workspace that the largest product needs. */
static weft_status workspace_of(experts_kernel *k, int threads) {
    if (k->groups > 1)
        k->gather = wefti_aligned(
            MOE_PIECE * (k->width[0] * (int64_t)k->size[0] + k->width[1] * (int64_t)k->size[1]));
    for (int64_t rows = 0; rows <= MOE_PIECE; rows++) {
        wefti_gemm_spec spec = k->spec;
        wefti_gemm gemm;
        *(k->weight_gradient ? &spec.k : &spec.m) = rows;
        weft_status status = wefti_gemm_prepare(&spec, k->isa, &gemm);
        if (status < 0) return status;
        int64_t bytes = wefti_gemm_workspace_bytes(&gemm, k->side_by_side ? 1 : threads);
        if (bytes > k->product) k->product = bytes;
    }
    k->per_expert = k->gather + wefti_aligned(k->product);
    k->base.workspace_bytes = k->per_expert * (k->side_by_side ? threads : 1);
    return WEFT_OK;
}

static weft_status experts(const weft_node *n, const wefti_prepare *options,
                           const wefti_gemm_spec *spec, const weft_desc *y, bool weight_gradient,
                           bool swapped, wefti_kernel **out) {
    enum { SMALL = 100000000 }; /* multiplications that take one thread some milliseconds */
    const weft_desc *x = wefti_in(n, 0);
    const weft_dtype d[] = {spec->a.dtype, spec->b.dtype, spec->c.dtype};
    bool f64 = d[0] == WEFT_F64 && d[1] == WEFT_F64 && d[2] == WEFT_F64, real = true;
    for (int i = 0; i < 3; i++) real = real && (d[i] == WEFT_F32 || d[i] == WEFT_BF16);
    if (!f64 && !real) return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(experts_kernel), "gemm experts", run_experts, &base));
    experts_kernel *k = (experts_kernel *)base;
    k->spec = *spec;
    k->isa = wefti_cpu_isa(options);
    k->experts = x->shape[0];
    k->groups = wefti_cpu_span(x, 1, x->rank - 2);
    k->rows = x->shape[x->rank - 2];
    k->first = wefti_attr_int(n, WEFTI_AT_first_row);
    k->width[0] = x->shape[x->rank - 1];
    k->width[1] = y->shape[y->rank - 1];
    k->size[0] = weft_dtype_bytes(x->dtype);
    k->size[1] = weft_dtype_bytes(y->dtype);
    k->weight_gradient = weight_gradient;
    k->swapped = swapped;
    k->counted = wefti_in(n, 2) != NULL;
    k->side_by_side =
        k->experts >= 2 * options->threads ||
        (double)(k->groups * k->rows) * (double)k->width[0] * (double)k->width[1] <= SMALL;
    weft_status status = workspace_of(k, options->threads);
    if (status < 0) {
        wefti_kernel_destroy(base);
        return status;
    }
    *out = base;
    return WEFT_OK;
}

/* Other kernels may or may not have zeroed the result rows. So accumulation is refused, and goes
 * through a temporary. */
weft_status wefti_cpu_moe_linear(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *y = wefti_out(n, 0);
    int64_t depth = x->shape[x->rank - 1], cols = y->shape[y->rank - 1];
    wefti_gemm_spec spec = wefti_gemm_spec_of(y->dtype, MOE_PIECE, cols, depth);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    spec.a = wefti_gemm_rows(x->dtype, depth);
    spec.b = wefti_attr_int(n, WEFTI_AT_transposed) ? wefti_gemm_transposed(w->dtype, depth)
                                                    : wefti_gemm_rows(w->dtype, cols);
    return experts(n, options, &spec, y, false, false, out);
}

weft_status wefti_cpu_moe_linear_grad_weight(const weft_node *n, const wefti_prepare *options,
                                             wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    int64_t depth = x->shape[x->rank - 1], cols = dy->shape[dy->rank - 1];
    bool t =
        wefti_attr_int(n, WEFTI_AT_transposed) != 0; /* true: dw [n, k] = dy^T x; false: x^T dy */
    wefti_gemm_spec spec =
        wefti_gemm_spec_of(wefti_out(n, 0)->dtype, t ? cols : depth, t ? depth : cols, MOE_PIECE);
    spec.a = t ? wefti_gemm_transposed(dy->dtype, cols) : wefti_gemm_transposed(x->dtype, depth);
    spec.b = t ? wefti_gemm_rows(x->dtype, depth) : wefti_gemm_rows(dy->dtype, cols);
    spec.accumulate = options->accumulate != 0;
    return experts(n, options, &spec, dy, true, t, out);
}
