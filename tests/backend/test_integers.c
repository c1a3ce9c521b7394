/* Arithmetic on integers: exact in all of their bits, on both backends. A result out of range
 * becomes the nearest representable number, also between the nodes of a fused chain. */
#include "support.h"

#include "backend/backend.h"
#include "backend/paths.h"
#include "ops/harness.h"
#include "rewrite/rewrite.h"
#include "weft/ops.h"

extern const wefti_backend wefti_backend_cpu;
static const wefti_random numbers = {.seed = 7};
static wefti_pool *pool;

typedef struct fact {
    const char *op, *attrs;
    weft_dtype from, to;
    int64_t a, b, want;
} fact;

#define BIG ((INT64_C(1) << 60) + 1) /* no double is this number */

static const fact facts[] = {
    {"add", NULL, WEFT_I64, WEFT_I64, BIG, 2, BIG + 2},
    {"add", NULL, WEFT_I64, WEFT_I64, INT64_MAX, 1, INT64_MAX},
    {"add", NULL, WEFT_I64, WEFT_I64, INT64_MIN, -1, INT64_MIN},
    {"sub", NULL, WEFT_I64, WEFT_I64, BIG, BIG - 1, 1},
    {"sub", NULL, WEFT_I64, WEFT_I64, 0, INT64_MIN, INT64_MAX},
    {"sub", NULL, WEFT_I64, WEFT_I64, -2, INT64_MAX, INT64_MIN},
    {"mul", NULL, WEFT_I64, WEFT_I64, 3037000499, 3037000499, INT64_C(9223372030926249001)},
    {"mul", NULL, WEFT_I64, WEFT_I64, BIG, -BIG, INT64_MIN},
    {"mul", NULL, WEFT_I64, WEFT_I64, -BIG, -BIG, INT64_MAX},
    {"maximum", NULL, WEFT_I64, WEFT_I64, BIG, BIG - 1, BIG},
    {"minimum", NULL, WEFT_I64, WEFT_I64, BIG, BIG - 1, BIG - 1},
    {"compare", "relation=0", WEFT_I64, WEFT_BOOL, BIG, BIG - 1, 0},
    {"compare", "relation=1", WEFT_I64, WEFT_BOOL, BIG, BIG - 1, 1},
    {"compare", "relation=2", WEFT_I64, WEFT_BOOL, BIG - 1, BIG, 1},
    {"compare", "relation=3", WEFT_I64, WEFT_BOOL, BIG, BIG - 1, 0},
    {"compare", "relation=4", WEFT_I64, WEFT_BOOL, BIG, BIG - 1, 1},
    {"compare", "relation=5", WEFT_I64, WEFT_BOOL, BIG - 1, BIG, 0},
    {"neg", NULL, WEFT_I64, WEFT_I64, BIG, 0, -BIG},
    {"neg", NULL, WEFT_I64, WEFT_I64, INT64_MIN, 0, INT64_MAX},
    {"abs", NULL, WEFT_I64, WEFT_I64, -BIG, 0, BIG},
    {"abs", NULL, WEFT_I64, WEFT_I64, INT64_MIN, 0, INT64_MAX},
    {"sign", NULL, WEFT_I64, WEFT_I64, INT64_MIN, 0, -1},
    {"square", NULL, WEFT_I64, WEFT_I64, -3037000499, 0, INT64_C(9223372030926249001)},
    {"square", NULL, WEFT_I64, WEFT_I64, BIG, 0, INT64_MAX},
    {"cast", "dtype=i64", WEFT_I64, WEFT_I64, BIG, 0, BIG},
    {"cast", "dtype=i32", WEFT_I64, WEFT_I32, BIG, 0, INT32_MAX},
    {"cast", "dtype=u16", WEFT_I64, WEFT_U16, -BIG, 0, 0},
    {"cast", "dtype=u8", WEFT_I32, WEFT_U8, 300, 0, 255},
    {"cast", "dtype=bool", WEFT_I64, WEFT_BOOL, INT64_MIN, 0, 1},
    {"cast", "dtype=i64", WEFT_I32, WEFT_I64, INT32_MIN, 0, INT32_MIN},
    {"add", NULL, WEFT_I32, WEFT_I32, INT32_MAX, 1, INT32_MAX},
    {"mul", NULL, WEFT_I32, WEFT_I32, 1 << 20, -(1 << 20), INT32_MIN},
    {"neg", NULL, WEFT_I32, WEFT_I32, INT32_MIN, 0, INT32_MAX},
    {"add", NULL, WEFT_U16, WEFT_U16, 65535, 65535, 65535},
    {"sub", NULL, WEFT_U16, WEFT_U16, 1, 2, 0},
    {"add", NULL, WEFT_U8, WEFT_U8, 200, 100, 255},
    {"sub", NULL, WEFT_U8, WEFT_U8, 1, 2, 0},
    {"mul", NULL, WEFT_U8, WEFT_U8, 255, 255, 255},
    {"neg", NULL, WEFT_U8, WEFT_U8, 7, 0, 0},
};

static const weft_op_def *op_named(const char *name) {
    const weft_op_def *op = wefti_op_find(wefti_builtin_ops(), name);
    assert_non_null(op);
    return op;
}

/* Runs a node by a backend, or by the reference if the backend leaves it to the reference. */
static void run_node(const wefti_backend *backend, const weft_node *n, const void *const *in,
                     void *const *out) {
    wefti_kernel *k;
    wefti_prepare options = {.threads = 1};
    wefti_run run = {.pool = pool, .random = numbers};
    weft_status status = backend->prepare(backend, n, &options, &k);
    if (status == WEFT_E_NO_IMPL)
        status = wefti_backend_reference.prepare(&wefti_backend_reference, n, &options, &k);
    assert_int_equal(status, WEFT_OK);
    void *workspace = aligned_alloc(64, ((size_t)k->workspace_bytes + 127) / 64 * 64);
    assert_non_null(workspace);
    assert_int_equal(k->run(k, &run, in, out, workspace), WEFT_OK);
    free(workspace);
    wefti_kernel_destroy(k);
}

static int64_t answer(const wefti_backend *backend, const fact *f, const weft_node *n) {
    int64_t a = 0, b = 0, y = 0;
    wefti_store_integer(f->from, &a, 0, f->a);
    wefti_store_integer(f->from, &b, 0, f->b);
    run_node(backend, n, (const void *[]){&a, &b}, (void *[]){&y});
    return wefti_load_integer(f->to, &y, 0);
}

static void every_bit(void) {
    const wefti_backend *backends[] = {&wefti_backend_cpu, &wefti_backend_reference};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const fact *f = &facts[i];
        op_setup s = {.op = op_named(f->op), .inputs = op_named(f->op)->min_inputs};
        weft_graph *g;
        assert_true(wefti_attrs_parse(s.op, f->attrs ? f->attrs : "", tables_of_cases(), s.attrs) >=
                    0);
        for (int k = 0; k < s.inputs; k++) s.in[k].desc = weft_desc_of(f->from, 0, NULL);
        assert_int_equal(op_graph_make(&s, &g), WEFT_OK);
        for (int b = 0; b < 2; b++) {
            int64_t got = answer(backends[b], f, &g->root->nodes[0]);
            if (got != f->want)
                fail_msg("%s: %s of %s %lld and %lld is %lld, not %lld", backends[b]->name, f->op,
                         weft_dtype_text(f->from), (long long)f->a, (long long)f->b, (long long)got,
                         (long long)f->want);
        }
        weft_graph_destroy(g);
    }
}

/* Repeating operands, and a condition that is not an integer. */
static void where_broadcasts(void **state) {
    (void)state;
    op_setup s = {.op = op_named("where"), .inputs = 3};
    weft_graph *g;
    s.in[0].desc = weft_desc_of(WEFT_BOOL, 2, (int64_t[]){2, 1});
    s.in[1].desc = weft_desc_of(WEFT_I64, 1, (int64_t[]){3});
    s.in[2].desc = weft_desc_of(WEFT_I64, 0, NULL);
    assert_int_equal(op_graph_make(&s, &g), WEFT_OK);
    const weft_node *n = &g->root->nodes[0];
    const uint8_t condition[] = {0, 2};
    const int64_t a[] = {BIG, BIG + 1, BIG + 2}, b[] = {-BIG};
    const int64_t want[] = {-BIG, -BIG, -BIG, BIG, BIG + 1, BIG + 2};
    int64_t y[6];
    assert_true(wefti_elementwise_is_integer(n));
    wefti_elementwise_integer(n, (const void *[]){condition, a, b}, y);
    assert_memory_equal(y, want, sizeof want);
    weft_graph_destroy(g);
}

/* Runs a body's nodes one after the other as the cpu backend does, in storage. */
static void run_body(const weft_body *b, const void *const *in, void *const *out) {
    void *value[32] = {0};
    assert_true(b->value_count <= 32);
    for (int64_t v = 0; v < b->value_count; v++)
        value[v] = calloc((size_t)weft_desc_bytes(&b->values[v].desc) + 1, 1);
    for (int64_t i = 0; i < b->in_count; i++)
        memcpy(value[b->in[i]], in[i], (size_t)weft_desc_bytes(&b->values[b->in[i]].desc));
    for (int64_t x = 0; x < b->node_count; x++) {
        const weft_node *n = &b->nodes[x];
        const void *from[WEFTI_MAX_IN] = {0};
        void *to[WEFTI_MAX_OUT] = {0};
        for (int i = 0; i < n->inputs; i++) from[i] = value[n->in[i]];
        for (int o = 0; o < n->outputs; o++) to[o] = value[n->out[o]];
        run_node(&wefti_backend_cpu, n, from, to);
    }
    for (int64_t o = 0; o < b->out_count; o++)
        memcpy(out[o], value[b->out[o]], (size_t)weft_desc_bytes(&b->values[b->out[o]].desc));
    for (int64_t v = 0; v < b->value_count; v++) free(value[v]);
}

/* A body as it is and as it is fused. In storage and by the oracle, all four results are `want`. */
static void check_chain(weft_graph *g, const void *const *in, double *const *values,
                        const float *want, int64_t count) {
    weft_body *fused;
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(wefti_body_prune(g->root), WEFT_OK);
    assert_int_equal(wefti_fuse_elementwise(g, g->root, &fused), WEFT_OK);
    const weft_body *bodies[] = {g->root, fused};
    for (int i = 0; i < 2; i++) {
        float y[8];
        double oracle[8];
        run_body(bodies[i], in, (void *[]){y});
        assert_int_equal(wefti_interpret(bodies[i], &numbers, (const double *const *)values,
                                         (double *[]){oracle}),
                         WEFT_OK);
        for (int64_t e = 0; e < count; e++) {
            if (y[e] != want[e] || (float)oracle[e] != want[e])
                fail_msg("%s, element %d: %g, by the oracle %g, not %g", i ? "fused" : "as it is",
                         (int)e, (double)y[e], oracle[e], (double)want[e]);
        }
    }
    wefti_body_destroy(fused);
    weft_graph_destroy(g);
}

/* relu(float((a + b) - c)) of u8: a + b is at most 255 before c is taken away. */
static void sums_of_bytes(void) {
    weft_graph *g;
    weft_value in[3];
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    for (int i = 0; i < 3; i++)
        in[i] = weft_input(g, (const char *[]){"a", "b", "c"}[i], WEFT_DESC(WEFT_U8, 4));
    weft_value y = weft_sub(g, weft_add(g, in[0], in[1]), in[2]);
    weft_output(g, "y", weft_relu(g, weft_cast(g, y, WEFT_F32)));
    const uint8_t a[] = {200, 1, 255, 9}, b[] = {100, 2, 255, 0}, c[] = {100, 9, 0, 4};
    double wide[3][4];
    for (int e = 0; e < 4; e++) {
        wide[0][e] = a[e];
        wide[1][e] = b[e];
        wide[2][e] = c[e];
    }
    check_chain(g, (const void *[]){a, b, c}, (double *[]){wide[0], wide[1], wide[2]},
                (const float[]){155, 0, 255, 5}, 4);
}

/* Floats that pass through integers: truncated, and kept within them, where they are stored. */
static void through(weft_dtype dtype, const float *want) {
    static const float x[] = {-1.5f, 2.75f, 300.5f, 3e9f};
    weft_graph *g;
    double wide[4];
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_value in = weft_input(g, "x", WEFT_DESC(WEFT_F32, 4));
    weft_value y = weft_cast(g, weft_cast(g, weft_scale(g, in, 2.0), dtype), WEFT_F32);
    weft_output(g, "y", weft_scale(g, y, 0.5));
    for (int e = 0; e < 4; e++) wide[e] = (double)x[e];
    check_chain(g, (const void *[]){x}, (double *[]){wide}, want, 4);
}

static void casts_there_and_back(void) {
    through(WEFT_U8, (const float[]){0.0f, 2.5f, 127.5f, 127.5f});
    through(WEFT_U16, (const float[]){0.0f, 2.5f, 300.5f, 32767.5f});
    through(WEFT_I32, (const float[]){-1.5f, 2.5f, 300.5f, 1073741824.0f});
    through(WEFT_I64, (const float[]){-1.5f, 2.5f, 300.5f, 3e9f});
    through(WEFT_BOOL, (const float[]){0.5f, 0.5f, 0.5f, 0.5f});
}

static void on_every_path(void **state) {
    (void)state;
    for (int path = 0; path < PATHS; path++) {
        if (!path_begin(path)) continue;
        every_bit();
        sums_of_bytes();
        casts_there_and_back();
    }
    path_end();
}

static int open_pool(void **state) {
    (void)state;
    return wefti_pool_create(1, &pool) < 0 ? -1 : 0;
}
static int close_pool(void **state) {
    (void)state;
    wefti_pool_destroy(pool);
    paths_print();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_every_path),
        cmocka_unit_test(where_broadcasts),
    };
    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
