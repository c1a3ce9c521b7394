/* Attention on AMX tiles, forward: see amx_panels.h.
 *
 * A block is 32 queries by 128 keys. Each query has a centre, which moves only when scores exceed
 * it by far. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/attention/amx_panels.h"

static const float LN_2 = 0.693147181f;

enum {
    /* keys that have scores in memory at once: they fit the first-level cache */
    SPAN = ATTENTION_SPAN,
    SPAN_STRIDE = SPAN + VL, /* stride for which consecutive rows lie in different cache sets */
    SPAN_VECTORS = SPAN / VL,
    SEGMENT = 512, /* queries of a task */
};

/* Probabilities may reach this power of 2 before their centre moves. Sums stay far from overflow,
 * and centres move seldom. */
static const float HEADROOM = 40.0f;

typedef struct tiles_forward {
    uint16_t *keys, *values;   /* panels: [key / 32][dim]; [dim / 32][key] */
    uint16_t *queries, *probs; /* panels of 32 queries: [dim]; [SPAN] */
    float *scores;             /* [32][SPAN_STRIDE] */
    float *output;             /* [32][dim] */
} tiles_forward;

typedef struct forward_run {
    const wefti_attention_args *a;
    int64_t keys; /* rounded up */
    size_t per_thread;
} forward_run;

static tiles_forward carve_forward(const forward_run *r, int thread) {
    const int64_t dim = r->a->shape.dim;
    char *p = (char *)r->a->workspace + (size_t)thread * r->per_thread;
    tiles_forward m;
    m.keys = (uint16_t *)(void *)p;
    m.values = m.keys + r->keys * dim;
    m.queries = m.values + r->keys * dim;
    m.probs = m.queries + EDGE * dim;
    m.scores = (float *)(void *)(m.probs + EDGE * SPAN);
    m.output = m.scores + EDGE * SPAN_STRIDE;
    return m;
}

/* The state of the softmax of 32 queries. A probability is 2^(score - centre), with scores in units
 * of ln 2. If scores exceed `limit`, the centre must move first. */
typedef struct softmax {
    vfloat sums[EDGE];
    float centre[EDGE], limit[EDGE];
    float factor; /* converts scores to units of ln 2 */
} softmax;

/* Moves the centre of row `row` to the largest of `top`, and rescales the row's sums and
 * outputs. */
static __attribute__((noinline)) void move_centre(softmax *x, int row, vfloat top, float *output,
                                                  int64_t dim) {
    const float centre = vtop(top);
    if (x->limit[row] != -INFINITY) {
        const vfloat less = vsplat(exp2f(x->centre[row] - centre));
        x->sums[row] = (x->sums[row] * less);
        for (int64_t c = 0; c < dim; c += VL) vstore(output + c, (vload(output + c) * less));
    }
    x->centre[row] = centre;
    x->limit[row] = centre + HEADROOM;
}

/* Turns the scores of a row into probabilities, in the order of a left operand. The query sees the
 * first `seen` of the `count` keys. `whole`: it sees a full span. */
INLINE void softmax_row(const bool whole, const tiles_forward *m, softmax *x, int row, int64_t seen,
                        int64_t count, int64_t dim) {
    const float *scores = m->scores + row * SPAN_STRIDE;
    uint16_t *out = m->probs + row / SIDE * TILE + row % SIDE * DEPTH;
    const vfloat factor = vsplat(x->factor);
    const int vectors = whole ? SPAN_VECTORS : (int)(count / VL);
    vfloat s[SPAN_VECTORS], top = vsplat(-INFINITY);
    UNROLL for (int v = 0; v < vectors; v++) {
        const mask16 here = whole ? 0xffff : first_16(seen - v * VL);
        s[v] = (vload_masked(here, scores + v * VL) * factor);
        /* A maximum returns its second operand if either operand is NaN. */
        top = whole ? vmax(s[v], top) : vmax_masked(here, s[v], top);
    }
    if (vany_greater(top, vsplat(x->limit[row])))
        move_centre(x, row, top, m->output + row * dim, dim);
    const vfloat centre = vsplat(x->centre[row]);
    vfloat sum = x->sums[row];
    UNROLL for (int v = 0; v < vectors; v += 2, out += 2 * TILE) {
        vfloat low = power_of_2(s[v] - centre);
        vfloat high = power_of_2(s[v + 1] - centre);
        if (!whole) {
            low = vkeep(first_16(seen - v * VL), low);
            high = vkeep(first_16(seen - (v + 1) * VL), high);
        }
        sum = sum + low + high;
        vstore_int(out, vround_bf16(low, high));
    }
    x->sums[row] = sum;
}

static void store_output(const forward_run *r, const tiles_forward *m, const softmax *x, int64_t b,
                         int64_t h, int64_t i0, int64_t count) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    uint16_t *o = (uint16_t *)a->o.data + b * a->o_strides.batch + h * a->o_strides.head +
                  i0 * a->o_strides.seq;
    for (int64_t i = 0; i < count; i++, o += a->o_strides.seq) {
        const float sum = vsum(x->sums[i]);
        const vfloat factor = vsplat(sum == 0.0f ? 0.0f : 1.0f / sum);
        wefti_attention_store_lse(a, b, h, i0 + i, x->centre[i] * LN_2, sum);
        for (int64_t c = 0; c < s->dim; c += DEPTH) {
            const float *from = m->output + i * s->dim + c;
            vstore_int(o + c, vround_bf16(vload(from) * factor, (vload(from + VL) * factor)));
        }
    }
}

/* The outputs of queries i0 .. i0 + 31 of head h. */
static void forward_block(const forward_run *r, const tiles_forward *m, int64_t b, int64_t h,
                          int64_t i0) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t dim = s->dim, count = smaller(EDGE, s->q_len - i0);
    const int64_t end = round_up(seen_by(s, i0 + count - 1));
    softmax x = {.factor = s->scale * LOG2_E};
    for (int i = 0; i < EDGE; i++) {
        x.sums[i] = (vfloat){0};
        x.limit[i] = -INFINITY;
    }
    pack_rows_a(rows_of(a->q.data, a->q_strides, b, h, i0), count, dim, m->queries);
    if (end == 0) memset(m->output, 0, (size_t)(EDGE * dim) * sizeof *m->output);
    for (int64_t j0 = 0; j0 < end; j0 += SPAN) {
        const int64_t keys = smaller(SPAN, end - j0);
        for (int64_t j = 0; j < keys; j += EDGE)
            tiles->tile(EDGE, dim, m->queries, 0, m->keys + (j0 + j) * dim, m->scores + j,
                        SPAN_STRIDE, false, NULL);
        for (int i = 0; i < EDGE; i++) {
            const int64_t seen = i < count ? seen_by(s, i0 + i) - j0 : 0;
            if (seen >= SPAN)
                softmax_row(true, m, &x, i, SPAN, SPAN, dim);
            else
                softmax_row(false, m, &x, i, seen, keys, dim);
        }
        for (int64_t c = 0; c < dim; c += EDGE)
            tiles->tile(EDGE, keys, m->probs, 0, m->values + c * r->keys + j0 * EDGE, m->output + c,
                        dim, j0 > 0, NULL);
    }
    store_output(r, m, &x, b, h, i0, count);
}

static void forward_task(void *context, int64_t task, int thread) {
    const forward_run *r = context;
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t segments = blocks_of(s->q_len, SEGMENT);
    /* Start with the longest causal rows, so that all threads finish at about the same time. */
    const int64_t first = (segments - 1 - task % segments) * SEGMENT, head = task / segments;
    const int64_t last = smaller(s->q_len, first + SEGMENT);
    const int64_t b = head / s->q_heads, h = head % s->q_heads;
    const int64_t kv = h / (s->q_heads / s->kv_heads), keys = seen_by(s, last - 1);
    tiles_forward m = carve_forward(r, thread);
    tiles->enter();
    pack_rows_b(rows_of(a->k.data, a->k_strides, b, kv, 0), keys, s->dim, m.keys);
    pack_transposed_b(rows_of(a->v.data, a->v_strides, b, kv, 0), keys, s->dim, r->keys, m.values);
    for (int64_t i0 = first; i0 < last; i0 += EDGE) forward_block(r, &m, b, h, i0);
    tiles->leave();
}

void WEFTI_FORM(wefti_attention_on_tiles)(wefti_pool *pool, const wefti_attention_args *a) {
    const wefti_attention_shape *s = &a->shape;
    if (!attention_fits_tiles(s)) {
        wefti_kernels_of(WEFTI_ISA_AVX512)->attention(pool, a);
        return;
    }
    forward_run r = {.a = a, .keys = round_up(s->k_len), .per_thread = attention_forward_bytes(s)};
    wefti_pool_run(pool, s->batch * s->q_heads * blocks_of(s->q_len, SEGMENT), forward_task, &r);
}
#endif
