/* Look-ups, copies, pooling and random numbers against plain loops. */
#include "base/philox.h"
#include "kernels_support.h"

/* --- embedding
 * ------------------------------------------------------------------------------------ */
typedef struct embedding_case {
    wefti_embedding_args f;
    wefti_embedding_backward_args b;
    operand table, second, ids, second_ids, y, dy, dtable;
} embedding_case;

static void run_embedding(const wefti_kernels *k, wefti_pool *pool, void *context) {
    embedding_case *c = context;
    k->embedding(pool, &c->f);
    k->embedding_backward(pool, &c->b);
}
static void check_embedding(void *context) {
    embedding_case *c = context;
    int64_t dim = c->f.dim, vocab = c->f.vocab;
    double *grad = calloc((size_t)(vocab * dim) + 1, sizeof *grad);
    for (int64_t r = 0; r < c->f.rows; r++) {
        int64_t id = (int64_t)get(c->ids, r);
        int64_t second = c->f.second_ids.data ? (int64_t)get(c->second_ids, r)
                                              : c->f.second_offset + r % c->f.second_period;
        bool legal = id >= 0 && id < vocab && (!c->f.second.data || second < c->f.second_vocab);
        int64_t target = c->b.ids.data ? id : c->b.offset + r % c->b.period;
        for (int64_t i = 0; i < dim; i++) {
            double y = legal ? get(c->table, id * dim + i) : NAN;
            if (c->f.second.data && legal) y += get(c->second, second * dim + i);
            check_close(c->y, r * dim + i, y, 1e-6, "y");
            if (target >= 0 && target < vocab && target != c->b.padding)
                grad[target * dim + i] += get(c->dy, r * dim + i);
        }
    }
    for (int64_t i = 0; i < vocab * dim; i++)
        check_close(c->dtable, i, grad[i] + (c->b.accumulate ? before(c->dtable, i) : 0.0), 1e-4,
                    "dtable");
    free(grad);
}
static void test_embedding(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        embedding_case c = {0};
        int64_t rows = random_int(0, 200), dim = random_int(1, 200), vocab = random_int(1, 50);
        static const weft_dtype types[] = {WEFT_I32, WEFT_I64, WEFT_U16};
        c.table = operand_random(INPUT, random_type(), vocab * dim, -1.0f, 1.0f);
        c.ids = operand_new(INPUT, types[random_int(0, 2)], rows);
        c.second_ids = operand_new(INPUT, WEFT_I32, rows);
        for (int64_t r = 0; r < rows; r++) {
            wefti_store(c.ids.dtype, c.ids.data, r, (double)random_int(0, vocab)); /* one too far */
            wefti_store(WEFT_I32, c.second_ids.data, r, (double)random_int(0, 6));
        }
        c.y = operand_new(OUTPUT, random_type(), rows * dim);
        c.f = (wefti_embedding_args){
            .table = in(c.table), .ids = in(c.ids), .y = out(c.y), .rows = rows};
        c.f.dim = dim;
        c.f.vocab = vocab;
        c.f.second_period = 5;
        c.f.second_offset = 2;
        c.f.second_vocab = 7;
        if (random_bool()) {
            c.second = operand_random(INPUT, random_type(), 7 * dim, -1.0f, 1.0f);
            c.f.second = in(c.second);
            if (random_bool()) c.f.second_ids = in(c.second_ids);
        }
        c.dy = operand_random(INPUT, random_type(), rows * dim, -1.0f, 1.0f);
        c.dtable = f32_random(OUTPUT, vocab * dim, -1.0f, 1.0f);
        c.b = (wefti_embedding_backward_args){.dy = in(c.dy),
                                              .period = 5,
                                              .offset = 1,
                                              .dtable = f32(c.dtable),
                                              .rows = rows,
                                              .dim = dim};
        c.b.vocab = vocab;
        c.b.padding = random_int(-1, vocab - 1); /* -1: none */
        c.b.accumulate = random_bool();
        if (random_bool()) c.b.ids = in(c.ids);
        run_case(run_embedding, check_embedding, &c);
    }
}

/* --- rope
 * ------------------------------------------------------------------------------------------- */
typedef struct rope_case {
    wefti_rope_args f, b;
    operand x, y, z;
} rope_case;

static void run_rope(const wefti_kernels *k, wefti_pool *pool, void *context) {
    rope_case *c = context;
    k->rope(pool, &c->f);
    k->rope(pool, &c->b); /* the inverse turns back */
}
static void check_rope(void *context) {
    rope_case *c = context;
    const wefti_rope_args *a = &c->f;
    int64_t half = a->rotary / 2;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->seq; t++)
            for (int64_t h = 0; h < a->heads; h++) {
                int64_t x = b * a->x_strides[0] + t * a->x_strides[1] + h * a->x_strides[2];
                int64_t y = b * a->y_strides[0] + t * a->y_strides[1] + h * a->y_strides[2];
                double position = (double)(a->offset + t);
                for (int64_t i = 0; i < a->dim; i++) {
                    double want = get(c->x, x + i);
                    if (i < a->rotary) {
                        int64_t pair = a->interleaved ? i / 2 : i % half;
                        int64_t u = a->interleaved ? 2 * pair : pair;
                        int64_t v = a->interleaved ? u + 1 : pair + half;
                        double angle =
                            position * pow(10000.0, -2.0 * (double)pair / (double)a->rotary);
                        want = i == u
                                   ? get(c->x, x + u) * cos(angle) - get(c->x, x + v) * sin(angle)
                                   : get(c->x, x + v) * cos(angle) + get(c->x, x + u) * sin(angle);
                    }
                    check_close(c->y, y + i, want, 1e-5, "rope"); /* angles are f32 */
                    if (c->y.dtype == WEFT_F32)
                        check_close(c->z, x + i, get(c->x, x + i), 2e-6, "inverse");
                }
            }
}
/* cos and sin, [positions, rotary / 2] each. */
static void fill_table(int64_t first, int64_t positions, int64_t rotary, double theta,
                       const weft_rope_scaling *scaling, float *cos_out, float *sin_out) {
    double frequencies[64];
    const int64_t half = rotary / 2;
    assert_in_range(half, 1, 64);
    wefti_rope_frequencies(rotary, theta, scaling, frequencies);
    for (int64_t p = 0; p < positions; p++)
        wefti_rope_row(first + p, half, frequencies, cos_out + p * half, sin_out + p * half);
}

static void test_rope(void **state) {
    (void)state;
    for (int round = 0; round < 30; round++) {
        rope_case c = {0};
        int64_t b = random_int(1, 3), t = random_int(0, 20), h = random_int(1, 4),
                d = 2 * random_int(1, 40);
        int64_t rotary = random_bool() ? d : 2 * random_int(1, d / 2);
        operand cos_table = operand_new(INPUT, WEFT_F32, 64 * rotary / 2);
        operand sin_table = operand_new(INPUT, WEFT_F32, 64 * rotary / 2);
        fill_table(0, 64, rotary, 10000.0, &(weft_rope_scaling){0}, f32(cos_table), f32(sin_table));
        c.x = operand_random(INPUT, random_type(), b * t * h * d, -1.0f, 1.0f);
        c.y = operand_new(OUTPUT, random_type(), b * t * h * d);
        c.z = operand_new(OUTPUT, c.x.dtype, b * t * h * d);
        c.f = (wefti_rope_args){.x = in(c.x),
                                .y = out(c.y),
                                .batch = b,
                                .seq = t,
                                .heads = h,
                                .dim = d,
                                .rotary = rotary,
                                .x_strides = {t * h * d, h * d, d},
                                .y_strides = {h * t * d, d, t * d}, /* heads outermost */
                                .cos = f32(cos_table),
                                .sin = f32(sin_table),
                                .offset = random_int(0, 20),
                                .interleaved = random_bool()};
        c.b = c.f;
        c.b.x = in(c.y);
        c.b.y = out(c.z);
        memcpy(c.b.x_strides, c.f.y_strides, sizeof c.b.x_strides);
        memcpy(c.b.y_strides, c.f.x_strides, sizeof c.b.y_strides);
        c.b.inverse = true;
        run_case(run_rope, check_rope, &c);
    }
}

static void test_rope_scaling(void **state) {
    (void)state;
    /* Llama 3.1's numbers, theta 500000: the first pair is kept, the last is slowed by exactly the
     * factor. */
    weft_rope_scaling scaling = {.factor = 8.0,
                                 .low_freq_factor = 1.0,
                                 .high_freq_factor = 4.0,
                                 .original_context = 8192},
                      linear = {.factor = 4.0}, none = {0};
    float c[2 * 64], s[2 * 64], plain_c[2 * 64], plain_s[2 * 64];
    fill_table(0, 2, 128, 500000.0, &none, plain_c, plain_s);
    fill_table(0, 2, 128, 500000.0, &scaling, c, s);
    assert_true(s[64] == plain_s[64]);
    assert_true(fabsf(s[127] - plain_s[127] / 8.0f) < 1e-12f);
    assert_true(s[64 + 30] < plain_s[64 + 30] &&
                s[64 + 30] > plain_s[64 + 30] / 8.0f); /* blended */
    /* YaRN's for Qwen2.5: pairs up to floor(23.6), of 32 turns in the original context, are kept,
     * those from ceil(39.7), of 1 turn, on slowed by the factor, those between are blended. */
    weft_rope_scaling yarn = {
        .factor = 4.0, .original_context = 32768, .beta_fast = 32.0, .beta_slow = 1.0};
    float before[64], after[64];
    fill_table(1, 1, 128, 1e6, &none, c, before);
    fill_table(1, 1, 128, 1e6, &yarn, c, after);
    assert_true(after[23] == before[23] && after[24] < before[24]);
    assert_true(after[39] > before[39] / 4.0f && fabsf(after[40] - before[40] / 4.0f) < 1e-8f);
    /* Divided frequencies are divided positions. */
    fill_table(4, 1, 128, 500000.0, &linear, c, s);
    assert_memory_equal(c, plain_c + 64, 64 * sizeof *c);
    assert_memory_equal(s, plain_s + 64, 64 * sizeof *s);
}

/* Far positions turn as in transformers 5.24, whose frequencies and angles are f32. Cosines of
 * LlamaRotaryEmbedding with head_dim 80, divided by its attention_scaling. */
static void test_rope_of_transformers(void **state) {
    (void)state;
    enum { PAIRS = 5 };
    static const int pairs[PAIRS] = {1, 13, 20, 24, 39};
    static const struct {
        double theta;
        weft_rope_scaling scaling;
        double frequency[PAIRS];
        float far[PAIRS]; /* at 131071 */
    } cases[] = {
        {1e4,
         {.factor = 0},
         {0.794328213, 0.0501187257, 0.00999999978, 0.00398107059, 0.000125892519},
         {0.5317887f, -0.9991559f, -0.7864078f, 0.9557678f, -0.7017859f}},
        {5e5,
         {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192},
         {0.720320463, 0.0140551282, 0.000524846022, 4.7591333e-05, 3.4706764e-07},
         {-0.4002393f, 0.3187068f, 0.9483043f, 0.9989722f, 0.9989655f}},
        {1e4,
         {.factor = 4},
         {0.198582053, 0.0125296814, 0.00249999994, 0.000995267648, 3.14731296e-05},
         {-0.9682856f, -0.7143330f, 0.5801738f, 0.0745650f, -0.5540109f}},
        {1e4,
         {.factor = 4, .original_context = 4096, .beta_fast = 32, .beta_slow = 1},
         {0.794328213, 0.0501187257, 0.00671874965, 0.0019283311, 3.14731296e-05},
         {0.5317887f, -0.9991559f, 0.5509478f, 0.1493567f, -0.5540109f}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double frequencies[40];
        float c[40], s[40];
        wefti_rope_frequencies(80, cases[i].theta, &cases[i].scaling, frequencies);
        wefti_rope_row(131071, 40, frequencies, c, s);
        for (int k = 0; k < PAIRS; k++) {
            const double is = frequencies[pairs[k]], want = cases[i].frequency[k];
            assert_true((double)(float)is == is);
            if (fabs(is - want) > 1.2e-7 * want || fabsf(c[pairs[k]] - cases[i].far[k]) > 2e-3f)
                fail_msg("case %zu, pair %d: %.9g, cos %.7f; transformers has %.9g, %.7f", i,
                         pairs[k], is, (double)c[pairs[k]], want, (double)cases[i].far[k]);
        }
    }
}

/* --- one_hot, gather, scatter_add
 * ----------------------------------------------------------------- */
typedef struct gather_case {
    wefti_gather_args g;
    wefti_scatter_add_args s;
    wefti_one_hot_args h;
    operand x, ids, y, dx, hot;
} gather_case;

static void run_gather(const wefti_kernels *k, wefti_pool *pool, void *context) {
    gather_case *c = context;
    k->gather(pool, &c->g);
    k->scatter_add(pool, &c->s);
    k->one_hot(pool, &c->h);
}
static void check_gather(void *context) {
    gather_case *c = context;
    const wefti_gather_args *a = &c->g;
    double *sum = calloc((size_t)(a->outer * a->axis * a->inner) + 1, sizeof *sum);
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t k = 0; k < a->count; k++)
            for (int64_t i = 0; i < a->inner; i++) {
                int64_t at = (a->ids_per_outer ? o * a->count : 0) + k;
                int64_t id = (int64_t)get(c->ids, a->ids_per_inner ? at * a->inner + i : at);
                int64_t y = (o * a->count + k) * a->inner + i;
                bool legal = id >= 0 && id < a->axis;
                int64_t x = legal ? (o * a->axis + id) * a->inner + i : 0;
                assert_true(get(c->y, y) == (legal ? get(c->x, x) : 0.0));
                if (legal) sum[x] += get(c->y, y);
            }
    for (int64_t i = 0; i < a->outer * a->axis * a->inner; i++)
        check_close(c->dx, i, sum[i] + (c->s.accumulate ? before(c->dx, i) : 0.0), 1e-5,
                    "scatter_add");
    free(sum);
    for (int64_t i = 0; i < c->h.rows * c->h.classes; i++) {
        bool on = i % c->h.classes == (int64_t)get(c->ids, i / c->h.classes);
        assert_true(get(c->hot, i) == (on ? 1.0 : -0.5));
    }
}
static void test_gather(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        gather_case c = {0};
        int64_t outer = random_int(0, 5), axis = random_int(1, 20), count = random_int(0, 30);
        int64_t inner = random_int(1, 100);
        bool per_outer = random_bool(), per_inner = random_bool();
        int64_t ids = (per_outer ? outer : 1) * count * (per_inner ? inner : 1);
        c.x = operand_random(INPUT, random_type(), outer * axis * inner, -1.0f, 1.0f);
        c.ids = operand_new(INPUT, random_bool() ? WEFT_I32 : WEFT_I64, ids);
        for (int64_t i = 0; i < ids; i++)
            wefti_store(c.ids.dtype, c.ids.data, i, (double)random_int(-1, axis));
        c.y = operand_new(OUTPUT, c.x.dtype, outer * count * inner);
        c.dx = f32_random(OUTPUT, outer * axis * inner, -1.0f, 1.0f);
        c.hot = operand_new(OUTPUT, random_type(), ids * axis);
        c.g = (wefti_gather_args){.x = in(c.x),
                                  .ids = in(c.ids),
                                  .y = out(c.y),
                                  .outer = outer,
                                  .axis = axis,
                                  .count = count,
                                  .inner = inner,
                                  .ids_per_outer = per_outer,
                                  .ids_per_inner = per_inner};
        c.s = (wefti_scatter_add_args){.x = in(c.y),
                                       .ids = in(c.ids),
                                       .y = f32(c.dx),
                                       .accumulate = random_bool(),
                                       .outer = outer,
                                       .axis = axis,
                                       .count = count,
                                       .inner = inner,
                                       .ids_per_outer = per_outer,
                                       .ids_per_inner = per_inner};
        c.h = (wefti_one_hot_args){.ids = in(c.ids),
                                   .y = out(c.hot),
                                   .rows = ids,
                                   .classes = axis,
                                   .on = 1.0f,
                                   .off = -0.5f};
        run_case(run_gather, check_gather, &c);
    }
}

/* --- top_k
 * ------------------------------------------------------------------------------------------ */
typedef struct top_k_case {
    wefti_top_k_args a;
    operand x, values, indices;
} top_k_case;

static void run_top_k(const wefti_kernels *k, wefti_pool *pool, void *context) {
    k->top_k(pool, &((top_k_case *)context)->a);
}
static void check_top_k(void *context) {
    top_k_case *c = context;
    int64_t dim = c->a.dim, k = c->a.k;
    for (int64_t r = 0; r < c->a.rows; r++)
        for (int64_t i = 0; i < k; i++) {
            int64_t at = (int64_t)get(c->indices, r * k + i), rank = 0;
            double v = get(c->x, r * dim + at);
            check_close(c->values, r * k + i, v, 0.0, "top_k value");
            for (int64_t j = 0; j < dim; j++) { /* its rank by definition */
                double w = get(c->x, r * dim + j);
                bool first = v != v ? w != w && j < at : w != w || w > v || (w == v && j < at);
                rank += first;
            }
            assert_int_equal(rank, i);
        }
}
static void test_top_k(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        top_k_case c = {0};
        int64_t rows = random_int(0, 6), dim = random_int(1, 700);
        int64_t k = random_int(1, random_bool() ? dim : (dim + 31) / 32);
        c.x = operand_random(INPUT, WEFT_BF16, rows * dim, -1.0f, 1.0f); /* coarse: many ties */
        if (rows > 0 && random_bool())
            wefti_store(WEFT_BF16, c.x.data, random_int(0, dim - 1), (double)NAN);
        c.values = operand_new(OUTPUT, random_type(), rows * k);
        c.indices = operand_new(OUTPUT, random_bool() ? WEFT_I32 : WEFT_I64, rows * k);
        c.a = (wefti_top_k_args){in(c.x), rows, dim, k, out(c.values), out(c.indices), NULL};
        c.a.workspace = scratch(wefti_top_k_workspace_bytes(rows, dim, k));
        run_case(run_top_k, check_top_k, &c);
    }
}

/* --- permute, copy_strided, convert, fill
 * --------------------------------------------------------- */
typedef struct move_case {
    wefti_permute_args p;
    wefti_copy_strided_args s;
    uint8_t *x, *y, *box, *start;
    int64_t elements;
} move_case;

static void run_move(const wefti_kernels *k, wefti_pool *pool, void *context) {
    move_case *c = context;
    k->permute(pool, &c->p);
    k->copy_strided(pool, &c->s);
}
static void check_move(void *context) {
    move_case *c = context;
    size_t e = (size_t)c->p.element;
    int64_t x_strides[WEFT_MAX_RANK], stride = 1;
    for (int d = c->p.rank - 1; d >= 0; d--) {
        x_strides[d] = stride;
        stride *= c->p.shape[d];
    }
    for (int64_t i = 0; i < c->elements; i++) {
        int64_t rest = i, from = 0, box_x = 0, box_y = 0;
        for (int d = c->p.rank - 1; d >= 0; d--) { /* y's shape is the permuted one */
            int axis = c->p.axes[d];
            from += rest % c->p.shape[axis] * x_strides[axis];
            rest /= c->p.shape[axis];
        }
        assert_memory_equal(c->y + (size_t)i * e, c->x + (size_t)from * e, e);
        rest = i;
        for (int d = c->s.rank - 1; d >= 0; d--) {
            box_x += rest % c->s.shape[d] * c->s.x_strides[d];
            box_y += rest % c->s.shape[d] * c->s.y_strides[d];
            rest /= c->s.shape[d];
        }
        const uint8_t *x = (const uint8_t *)c->s.x + box_x * c->p.element;
        assert_memory_equal(c->box + box_y * c->p.element, x, e);
    }
}
static void move(int rank, const int64_t *shape) {
    static const int sizes[] = {1, 2, 4, 8};
    move_case c = {.p = {.rank = rank, .element = sizes[random_int(0, 3)]}, .elements = 1};
    for (int d = 0; d < rank; d++) {
        c.p.shape[d] = shape[d];
        c.elements *= shape[d];
        c.p.axes[d] = d;
    }
    for (int d = rank - 1; d > 0; d--) {
        int other = (int)random_int(0, d), t = c.p.axes[d];
        c.p.axes[d] = c.p.axes[other];
        c.p.axes[other] = t;
    }
    c.x = buffer_new(INPUT, c.elements, (size_t)c.p.element);
    for (int64_t i = 0; i < c.elements * c.p.element; i++) c.x[i] = (uint8_t)random_u64();
    c.y = buffer_new(OUTPUT, c.elements, (size_t)c.p.element);
    c.p.x = c.x;
    c.p.y = c.y;
    /* A box copied into the middle of a wider one; some dims of x repeat or run backwards. */
    c.s = (wefti_copy_strided_args){.element = c.p.element, .rank = rank};
    int64_t x_stride = 1, y_stride = 1, shift = 0;
    for (int d = rank - 1; d >= 0; d--) {
        int kind = (int)random_int(0, 3);
        c.s.shape[d] = shape[d];
        c.s.x_strides[d] = kind == 0 ? 0 : kind == 1 ? -x_stride : x_stride;
        if (kind == 1 && shape[d] > 0) shift += (shape[d] - 1) * x_stride;
        c.s.y_strides[d] = y_stride;
        x_stride *= shape[d];
        y_stride *= shape[d] + random_int(0, 2);
    }
    c.box = buffer_new(OUTPUT, y_stride, (size_t)c.p.element);
    c.s.x = c.x + shift * c.p.element;
    c.s.y = c.box;
    run_case(run_move, check_move, &c);
}
static void test_move(void **state) {
    (void)state;
    move(2, (int64_t[]){70, 100});
    move(2, (int64_t[]){64, 128});
    move(3, (int64_t[]){3, 65, 33});
    move(2, (int64_t[]){0, 5});
    move(0, NULL);
    for (int round = 0; round < 80; round++) {
        int64_t shape[5];
        int rank = (int)random_int(1, 5);
        for (int d = 0; d < rank; d++) shape[d] = random_int(1, rank > 3 ? 8 : 40);
        move(rank, shape);
    }
}

typedef struct convert_case {
    wefti_convert_args a;
    wefti_fill_args f;
    operand x, y, z;
} convert_case;

static void run_convert(const wefti_kernels *k, wefti_pool *pool, void *context) {
    convert_case *c = context;
    k->convert(pool, &c->a);
    k->fill(pool, &c->f);
}
static void check_convert(void *context) {
    convert_case *c = context;
    uint64_t want, filled = 0;
    size_t size = weft_dtype_bytes(c->y.dtype);
    wefti_store(c->f.y.dtype, &filled, 0, c->f.value);
    for (int64_t i = 0; i < c->a.elements; i++) {
        wefti_convert(c->y.dtype, &want, c->x.dtype,
                      (const char *)c->x.data + (size_t)i * weft_dtype_bytes(c->x.dtype), 1);
        assert_memory_equal((char *)c->y.data + (size_t)i * size, &want, size);
        assert_memory_equal((char *)c->z.data + (size_t)i * size, &filled, size);
    }
}
static void test_convert(void **state) {
    (void)state;
    for (int from = 0; from < WEFT_DTYPES; from++)
        for (int to = 0; to < WEFT_DTYPES; to++) {
            convert_case c = {0};
            int64_t n = random_int(0, 3) ? random_int(0, 300) : 20000;
            c.x = operand_random(INPUT, (weft_dtype)from, n, -300.0f, 300.0f);
            c.y = operand_new(OUTPUT, (weft_dtype)to, n);
            c.z = operand_new(OUTPUT, (weft_dtype)to, n);
            c.a = (wefti_convert_args){in(c.x), out(c.y), n};
            c.f = (wefti_fill_args){out(c.z), n, random_bool() ? 0.0 : 3.0};
            run_case(run_convert, check_convert, &c);
        }
}

/* --- pooling
 * ---------------------------------------------------------------------------------------- */
typedef struct pool_case {
    wefti_pool2d_args max, avg;
    operand x, max_y, avg_y, dy, max_dx, avg_dx, indices;
} pool_case;

static void run_pool(const wefti_kernels *k, wefti_pool *pool, void *context) {
    pool_case *c = context;
    k->max_pool(pool, &c->max);
    k->max_pool_backward(pool, &c->max);
    k->avg_pool(pool, &c->avg);
    k->avg_pool_backward(pool, &c->avg);
}
static void check_pool(void *context) {
    pool_case *c = context;
    const wefti_pool2d_args *a = &c->max;
    int64_t area = a->height * a->width;
    double *max_dx = calloc((size_t)(a->planes * area) + 1, sizeof *max_dx);
    double *avg_dx = calloc((size_t)(a->planes * area) + 1, sizeof *avg_dx);
    int64_t at = 0;
    for (int64_t p = 0; p < a->planes; p++)
        for (int64_t oh = 0; oh < a->out_height; oh++)
            for (int64_t ow = 0; ow < a->out_width; ow++, at++) {
                double best = -INFINITY, sum = 0.0;
                int64_t winner = -1, inside = 0, padded = 0;
                for (int64_t kh = 0; kh < a->kernel_h; kh++)
                    for (int64_t kw = 0; kw < a->kernel_w; kw++) {
                        int64_t h = oh * a->stride_h - a->pad_h + kh * a->dilation_h;
                        int64_t w = ow * a->stride_w - a->pad_w + kw * a->dilation_w;
                        if (h >= 0 && h < a->height && w >= 0 && w < a->width) {
                            double v = get(c->x, p * area + h * a->width + w);
                            if (winner < 0 || v > best) {
                                best = v;
                                winner = h * a->width + w;
                            }
                        }
                        h = oh * a->stride_h - a->pad_h + kh; /* avg has no dilation */
                        w = ow * a->stride_w - a->pad_w + kw;
                        if (h < a->height + a->pad_h && w < a->width + a->pad_w) padded++;
                        if (h >= 0 && h < a->height && w >= 0 && w < a->width) {
                            sum += get(c->x, p * area + h * a->width + w);
                            inside++;
                        }
                    }
                check_close(c->max_y, at, best, 0.0, "max");
                assert_int_equal((int64_t)get(c->indices, at), winner);
                double d = get(c->dy, at),
                       count = (double)(c->avg.count_include_pad ? padded : inside);
                if (winner >= 0) max_dx[p * area + winner] += d;
                check_close(c->avg_y, at, count > 0.0 ? sum / count : 0.0, 1e-6, "avg");
                for (int64_t kh = 0; kh < a->kernel_h; kh++)
                    for (int64_t kw = 0; kw < a->kernel_w; kw++) {
                        int64_t h = oh * a->stride_h - a->pad_h + kh,
                                w = ow * a->stride_w - a->pad_w + kw;
                        if (h >= 0 && h < a->height && w >= 0 && w < a->width)
                            avg_dx[p * area + h * a->width + w] += d / count;
                    }
            }
    for (int64_t i = 0; i < a->planes * area; i++) {
        check_close(c->max_dx, i, max_dx[i], 1e-5, "max dx");
        check_close(c->avg_dx, i, avg_dx[i], 1e-5, "avg dx");
    }
    free(max_dx);
    free(avg_dx);
}
static void test_pool(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        pool_case c = {0};
        wefti_pool2d_args *a = &c.max;
        a->planes = random_int(0, 5);
        a->kernel_h = random_int(1, 4);
        a->kernel_w = random_int(1, 4);
        a->stride_h = random_int(1, 3);
        a->stride_w = random_int(1, 3);
        a->pad_h = random_int(0, a->kernel_h / 2);
        a->pad_w = random_int(0, a->kernel_w / 2);
        a->dilation_h = random_int(1, 2);
        a->dilation_w = random_int(1, 2);
        a->height = random_int((a->kernel_h - 1) * 2 + 1, 20);
        a->width = round == 0 ? 1100 : random_int((a->kernel_w - 1) * 2 + 1, 30);
        a->out_height =
            (a->height + 2 * a->pad_h - a->dilation_h * (a->kernel_h - 1) - 1) / a->stride_h + 1;
        a->out_width =
            (a->width + 2 * a->pad_w - a->dilation_w * (a->kernel_w - 1) - 1) / a->stride_w + 1;
        int64_t n = a->planes * a->height * a->width, m = a->planes * a->out_height * a->out_width;
        c.x = operand_random(INPUT, random_type(), n, -1.0f, 1.0f);
        c.dy = operand_random(INPUT, random_type(), m, -1.0f, 1.0f);
        c.max_y = operand_new(OUTPUT, c.x.dtype, m);
        c.avg_y = operand_new(OUTPUT, random_type(), m);
        c.max_dx = operand_new(OUTPUT, random_type(), n);
        c.avg_dx = operand_new(OUTPUT, random_type(), n);
        c.indices = operand_new(OUTPUT, WEFT_I32, m);
        a->x = in(c.x);
        a->y = out(c.max_y);
        a->dy = in(c.dy);
        a->dx = out(c.max_dx);
        a->indices = c.indices.data;
        c.avg = *a;
        c.avg.y = out(c.avg_y);
        c.avg.dx = out(c.avg_dx);
        c.avg.count_include_pad = random_bool();
        run_case(run_pool, check_pool, &c);
    }
}

/* --- random numbers
 * --------------------------------------------------------------------------------- */
typedef struct random_case {
    wefti_random_fill_args a;
    operand y;
} random_case;

static void run_random(const wefti_kernels *k, wefti_pool *pool, void *context) {
    k->random_fill(pool, &((random_case *)context)->a);
}
static void check_random(void *context) {
    random_case *c = context;
    const wefti_random_fill_args *a = &c->a;
    for (int64_t i = 0; i < a->elements; i++) {
        uint64_t at = a->base + (uint64_t)i;
        float number = a->normal ? wefti_philox_normal(a->seed, a->stream, at)
                                 : wefti_philox_uniform(a->seed, a->stream, at);
        float scaled = number * (a->normal ? a->b : a->b - a->a);
        check_close(c->y, i, (double)(scaled + a->a), 0.0, "random number");
    }
}
static void test_random(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        random_case c = {0};
        int64_t n = round < 4 ? 40000 : random_int(0, 700);
        c.y = operand_new(OUTPUT, random_bool() ? WEFT_F32 : WEFT_BF16, n);
        c.a = (wefti_random_fill_args){out(c.y),           n,     random_u64(), random_u64(),
                                       random_u64() >> 20, false, -0.5f,        2.0f};
        if (random_bool()) c.a.base = 0x3fffffff0u + random_u64() % 16; /* counters pass 2^32 */
        c.a.normal = round % 2;
        run_case(run_random, check_random, &c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),    cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rope_scaling), cmocka_unit_test(test_rope_of_transformers),
        cmocka_unit_test(test_gather),       cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_move),         cmocka_unit_test(test_convert),
        cmocka_unit_test(test_pool),         cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
