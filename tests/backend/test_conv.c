/* Convolution, batch normalisation and pooling of the cpu backend against the reference backend, on
 * random problems. They cover both dtypes, groups, dilation, 2 and 3 spatial dimensions, and all
 * instruction sets. Runs with 1 to 3 threads give equal bits, and guard bytes lie around every
 * buffer. The seed is printed; WEFT_TEST_SEED sets it. */
#include "support.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/conv/conv.h"
#include "backend/paths.h"
#include "builtin.h"
#include "graph/graph.h"
#include "sanitized.h"

enum { GUARD = 64, THREADS = 3, MAX_ATTRS = 8 };

static uint64_t random_state;
static weft_graph *graph;
static wefti_pool *pools[THREADS];

static uint64_t random_u64(void) {
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static int64_t random_int(int64_t low, int64_t high) { /* both included */
    return low + (int64_t)(random_u64() % (uint64_t)(high - low + 1));
}
static double random_value(void) {
    return (double)(random_u64() >> 40) / 8388608.0 - 1.0;
}

/* ---- one node with operands ---- */

typedef struct subject {
    weft_body *body;
    weft_node *node;
    unsigned char *in[WEFTI_MAX_IN];
    unsigned char *want[WEFTI_MAX_OUT];
} subject;

static unsigned char *guarded(const weft_desc *d) {
    size_t bytes = (size_t)weft_desc_bytes(d), total = (bytes + 2 * GUARD + 63) / 64 * 64;
    unsigned char *p = aligned_alloc(64, total);
    assert_non_null(p);
    memset(p, 0xA5, total);
    return p + GUARD;
}
static void check_guards(const unsigned char *data, const weft_desc *d, const char *what) {
    size_t bytes = (size_t)weft_desc_bytes(d);
    for (int i = 0; i < GUARD; i++)
        if (data[i - GUARD] != 0xA5 || data[bytes + (size_t)i] != 0xA5)
            fail_msg("%s: a byte outside of a buffer was written", what);
}
static void release(unsigned char *data) {
    if (data) free(data - GUARD);
}

/* The node `op` on inputs of these descriptors (rank 0 and dtype < 0: absent), random values. */
static subject subject_new(const char *op, int inputs, const weft_desc *descs, int attr_count,
                           const wefti_attr *attrs) {
    subject s = {0};
    int32_t in[WEFTI_MAX_IN], node;
    wefti_attr full[MAX_ATTRS] = {{0}};
    const weft_op_def *def = wefti_op_find(wefti_builtin_ops(), op);
    assert_non_null(def);
    int count = 0;
    for (; def->attrs && def->attrs[count].id; count++) {
        full[count] = def->attrs[count];
        for (int a = 0; a < attr_count; a++)
            if (full[count].id == attrs[a].id) full[count] = attrs[a];
    }
    assert_int_equal(wefti_body_create(graph, "subject", &s.body), WEFT_OK);
    for (int i = 0; i < inputs; i++) {
        in[i] = -1;
        if (descs[i].rank == 0) continue;
        assert_int_equal(wefti_body_input(s.body, descs[i], WEFTI_VALUE_INPUT, NULL, &in[i]),
                         WEFT_OK);
    }
    if (wefti_body_add(s.body, def, NULL, inputs, in, def->attrs ? full : NULL, "", &node) < 0)
        fail_msg("%s", weft_error_message());
    s.node = &s.body->nodes[node];
    for (int i = 0; i < inputs; i++) {
        if (in[i] < 0) continue;
        s.in[i] = guarded(&descs[i]);
        int64_t elems = weft_desc_elems(&descs[i]);
        for (int64_t e = 0; e < elems; e++) wefti_store(descs[i].dtype, s.in[i], e, random_value());
    }
    return s;
}

static void subject_free(subject *s) {
    for (int i = 0; i < s->node->inputs; i++) release(s->in[i]);
    for (int o = 0; o < s->node->outputs; o++) release(s->want[o]);
    wefti_body_destroy(s->body);
}

static void run_kernel(const subject *s, const wefti_kernel *k, wefti_pool *pool,
                       unsigned char **out) {
    const void *in[WEFTI_MAX_IN];
    void *to[WEFTI_MAX_OUT];
    weft_desc space = weft_desc_of(WEFT_U8, 1, &k->workspace_bytes);
    unsigned char *workspace = guarded(&space);
    for (int i = 0; i < s->node->inputs; i++) in[i] = s->in[i];
    for (int o = 0; o < s->node->outputs; o++) to[o] = out[o];
    wefti_run run = {.pool = pool};
    if (k->run(k, &run, in, to, workspace) < 0) fail_msg("%s", weft_error_message());
    check_guards(workspace, &space, "workspace");
    release(workspace);
}

static void make_reference(subject *s) {
    wefti_kernel *k;
    wefti_prepare options = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32};
    assert_int_equal(
        wefti_backend_reference.prepare(&wefti_backend_reference, s->node, &options, &k), WEFT_OK);
    for (int o = 0; o < s->node->outputs; o++) s->want[o] = guarded(wefti_out(s->node, o));
    run_kernel(s, k, NULL, s->want);
    wefti_kernel_destroy(k);
}

/* |got - want| <= tolerance, plus a unit of bf16 where stored so. */
static void check_close(const subject *s, unsigned char *const *got, double tolerance,
                        const char *what) {
    for (int o = 0; o < s->node->outputs; o++) {
        const weft_desc *d = wefti_out(s->node, o);
        int64_t elems = weft_desc_elems(d);
        for (int64_t i = 0; i < elems; i++) {
            double a = wefti_load(d->dtype, got[o], i), b = wefti_load(d->dtype, s->want[o], i);
            double limit = tolerance + (d->dtype == WEFT_BF16 ? fabs(b) / 128 : 0);
            if (!(fabs(a - b) <= limit))
                fail_msg("%s of %s, output %d[%lld] = %.9g, should be %.9g within %.3g", what,
                         wefti_desc_text(wefti_in(s->node, 0)).text, o, (long long)i, a, b, limit);
        }
        check_guards(got[o], d, what);
    }
}

/* Runs the cpu backend's kernel with 1 to 3 threads; false when it has none. */
static bool check_kernel(subject *s, wefti_bf16_compute bf16, double tolerance) {
    unsigned char *first[WEFTI_MAX_OUT] = {NULL};
    const char *what = s->node->op->name;
    for (int t = 0; t < THREADS; t++) {
        wefti_kernel *k;
        wefti_prepare options = {.threads = t + 1, .bf16 = bf16};
        weft_status status = wefti_backend_cpu.prepare(&wefti_backend_cpu, s->node, &options, &k);
        if (status == WEFT_E_NO_IMPL && t == 0) return false;
        if (status < 0) fail_msg("%s", weft_error_message());
        unsigned char *out[WEFTI_MAX_OUT];
        for (int o = 0; o < s->node->outputs; o++) out[o] = guarded(wefti_out(s->node, o));
        run_kernel(s, k, pools[t], out);
        check_close(s, out, tolerance, k->label);
        for (int o = 0; o < s->node->outputs; o++) {
            const weft_desc *d = wefti_out(s->node, o);
            if (!first[o])
                first[o] = out[o];
            else {
                if (memcmp(first[o], out[o], (size_t)weft_desc_bytes(d)))
                    fail_msg("%s: %d threads gave other bits than 1", what, t + 1);
                release(out[o]);
            }
        }
        wefti_kernel_destroy(k);
    }
    for (int i = 0; i < s->node->inputs; i++)
        if (s->in[i]) check_guards(s->in[i], wefti_in(s->node, i), what);
    for (int o = 0; o < s->node->outputs; o++) release(first[o]);
    return true;
}

/* The kernel with output 0 added to the buffer's old contents. */
static void check_adding(subject *s, double tolerance) {
    const weft_desc *d = wefti_out(s->node, 0);
    wefti_kernel *k;
    wefti_prepare options = {.threads = 2, .accumulate = 1, .bf16 = WEFTI_BF16_AS_F32};
    assert_int_equal(wefti_backend_cpu.prepare(&wefti_backend_cpu, s->node, &options, &k), WEFT_OK);
    unsigned char *out[] = {guarded(d)};
    int64_t elems = weft_desc_elems(d);
    for (int64_t i = 0; i < elems; i++) wefti_store(d->dtype, out[0], i, (double)(i % 5) - 2.0);
    run_kernel(s, k, pools[1], out);
    for (int64_t i = 0; i < elems; i++)
        wefti_store(d->dtype, out[0], i, wefti_load(d->dtype, out[0], i) - ((double)(i % 5) - 2.0));
    check_close(s, out, tolerance + 2.4e-7 * 64, "a sum");
    release(out[0]);
    wefti_kernel_destroy(k);
}

/* ---- convolutions ---- */

typedef struct problem {
    int spatial;
    int64_t batch, groups, in, out, x[3], k[3], y[3];
    wefti_ints stride, padding, dilation;
} problem;

static void finish(problem *p) {
    p->stride.count = p->padding.count = p->dilation.count = p->spatial;
    for (int s = 0; s < p->spatial; s++)
        p->y[s] = (p->x[s] + 2 * p->padding.v[s] - p->dilation.v[s] * (p->k[s] - 1) - 1) /
                      p->stride.v[s] +
                  1;
}

static problem random_problem(void) {
    problem p = {.spatial = random_int(0, 3) ? 2 : 3, .batch = random_int(1, 9)};
    int64_t step = random_int(0, 1) ? 16 : 1;
    p.groups = random_int(0, 3) ? 1 : random_int(1, 3);
    p.in = p.groups * step * random_int(1, step == 1 ? 5 : 2);
    p.out = p.groups * step * random_int(1, step == 1 ? 5 : 3);
    for (int s = 0; s < p.spatial; s++) {
        p.x[s] = random_int(1, p.spatial == 2 ? 12 : 6);
        p.stride.v[s] = random_int(1, 3);
        p.dilation.v[s] = random_int(0, 2) ? 1 : 2;
        p.padding.v[s] = random_int(0, 2);
        p.k[s] = random_int(1, 4);
        while (p.dilation.v[s] * (p.k[s] - 1) + 1 > p.x[s] + 2 * p.padding.v[s]) p.k[s]--;
    }
    finish(&p);
    return p;
}

static weft_desc desc4(weft_dtype dtype, const problem *p, int64_t a, int64_t b,
                       const int64_t *size) {
    weft_desc d = {.dtype = dtype, .rank = p->spatial + 2, .shape = {a, b}};
    for (int s = 0; s < p->spatial; s++) d.shape[2 + s] = size[s];
    return d;
}

static weft_dtype random_type(void) {
    return random_int(0, 2) ? WEFT_F32 : WEFT_BF16;
}

/* All three of a problem; how many ran on the cpu backend. */
static int check_problem(const problem *p, weft_dtype dtype, weft_dtype w_dtype,
                         wefti_bf16_compute bf16) {
    weft_desc x = desc4(dtype, p, p->batch, p->in, p->x);
    weft_desc w = desc4(w_dtype, p, p->out, p->in / p->groups, p->k);
    weft_desc y = desc4(dtype, p, p->batch, p->out, p->y);
    weft_desc bias = weft_desc_of(dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32, 1, &p->out);
    wefti_attr attrs[] = {WEFTI_N(stride, p->stride), WEFTI_N(padding, p->padding),
                          WEFTI_N(dilation, p->dilation), WEFTI_I(groups, p->groups),
                          WEFTI_N(in_shape, ((wefti_ints){.count = x.rank}))};
    memcpy(attrs[4].ints.v, x.shape, sizeof x.shape);
    int64_t taps = 1, pixels = p->batch;
    for (int s = 0; s < p->spatial; s++) {
        taps *= p->k[s];
        pixels *= p->y[s];
    }
    if (random_int(0, 1)) bias.rank = 0;
    /* Products of values below 1: each rounding of a sum of n is at most n eps / 2. */
    double eps = 1.2e-7;
    int ran = 0;
    subject s =
        subject_new(p->spatial == 2 ? "conv2d" : "conv3d", 3, (weft_desc[]){x, w, bias}, 4, attrs);
    make_reference(&s);
    ran += check_kernel(&s, bf16, eps * (double)(p->in / p->groups * taps + 8));
    subject_free(&s);
    s = subject_new("conv_grad_input", 2, (weft_desc[]){y, w}, 5, attrs);
    make_reference(&s);
    ran += check_kernel(&s, bf16, eps * (double)(p->out / p->groups * taps + 8));
    subject_free(&s);
    attrs[4] = WEFTI_N(kernel, ((wefti_ints){.count = p->spatial}));
    memcpy(attrs[4].ints.v, p->k, sizeof p->k);
    s = subject_new("conv_grad_weight", 2, (weft_desc[]){x, y}, 5, attrs);
    make_reference(&s);
    ran += check_kernel(&s, bf16, eps * (double)(pixels + 8));
    if (dtype != WEFT_F64 && pixels) check_adding(&s, eps * (double)(pixels + 8));
    subject_free(&s);
    return ran;
}

static void test_convolutions(void **state) {
    (void)state;
    /* The best native path first: oneDNN keeps its first setting for the whole process. */
    for (int i = 0; i < PATHS; i++) {
        const int path = i < WEFTI_ISAS ? WEFTI_ISAS - 1 - i : i;
        if (!path_begin(path)) continue;
        for (int k = 0; k < (SANITIZED || path_is_emulated(path) ? 10 : 40); k++) {
            problem p = random_problem();
            wefti_bf16_compute bf16 = random_int(0, 1) ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32;
            assert_int_equal(check_problem(&p, random_type(), random_type(), bf16), 3);
        }
    }
    path_end();
}

/* A batch that both paths accept, and sizes with a last piece shorter than the others. */
static void test_fixed_problems(void **state) {
    (void)state;
    static const problem list[] = {
        {.spatial = 2,
         .batch = 33,
         .groups = 1,
         .in = 3,
         .out = 16,
         .x = {9, 9},
         .k = {7, 7},
         .stride = {.v = {2, 2}},
         .padding = {.v = {3, 3}},
         .dilation = {.v = {1, 1}}},
        {.spatial = 2,
         .batch = 21,
         .groups = 1,
         .in = 32,
         .out = 16,
         .x = {8, 8},
         .k = {3, 3},
         .stride = {.v = {1, 1}},
         .padding = {.v = {1, 1}},
         .dilation = {.v = {1, 1}}},
        {.spatial = 2,
         .batch = 32,
         .groups = 1,
         .in = 32,
         .out = 48,
         .x = {2, 2},
         .k = {3, 3},
         .stride = {.v = {1, 1}},
         .padding = {.v = {1, 1}},
         .dilation = {.v = {1, 1}}},
        {.spatial = 2,
         .batch = 5,
         .groups = 16,
         .in = 16,
         .out = 32,
         .x = {12, 11},
         .k = {3, 3},
         .stride = {.v = {1, 2}},
         .padding = {.v = {1, 1}},
         .dilation = {.v = {2, 1}}},
        {.spatial = 2,
         .batch = 17,
         .groups = 1,
         .in = 16,
         .out = 16,
         .x = {1, 1},
         .k = {1, 1},
         .stride = {.v = {1, 1}},
         .padding = {.v = {0, 0}},
         .dilation = {.v = {1, 1}}},
        {.spatial = 2,
         .batch = 1,
         .groups = 1,
         .in = 4,
         .out = 8,
         .x = {40, 33},
         .k = {5, 4},
         .stride = {.v = {1, 1}},
         .padding = {.v = {2, 0}},
         .dilation = {.v = {1, 1}}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        problem p = list[i];
        finish(&p);
        assert_int_equal(check_problem(&p, WEFT_F32, WEFT_F32, WEFTI_BF16_AS_F32), 3);
        assert_int_equal(check_problem(&p, WEFT_BF16, WEFT_BF16, WEFTI_BF16_NATIVE), 3);
        assert_int_equal(check_problem(&p, WEFT_BF16, WEFT_F32, WEFTI_BF16_AS_F32), 3);
    }
}

static void test_not_for_us(void **state) {
    (void)state;
    problem p = {.spatial = 2,
                 .batch = 0,
                 .groups = 1,
                 .in = 2,
                 .out = 2,
                 .x = {3, 3},
                 .k = {1, 1},
                 .stride = {.v = {1, 1}},
                 .dilation = {.v = {1, 1}}};
    finish(&p);
    assert_int_equal(check_problem(&p, WEFT_F32, WEFT_F32, WEFTI_BF16_AS_F32), 0);
    p.batch = 1;
    assert_int_equal(check_problem(&p, WEFT_F64, WEFT_F64, WEFTI_BF16_AS_F32), 0);
}

static int setup(void **state) {
    (void)state;
    random_state = test_seed(20240611);
    for (int t = 0; t < THREADS; t++)
        if (wefti_pool_create(t + 1, &pools[t]) < 0) return -1;
    return wefti_graph_create(wefti_builtin_ops(), &graph) < 0 ? -1 : 0;
}
static int teardown(void **state) {
    (void)state;
    for (int t = 0; t < THREADS; t++) wefti_pool_destroy(pools[t]);
    paths_print();
    weft_graph_destroy(graph);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_fixed_problems),
        cmocka_unit_test(test_not_for_us),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
