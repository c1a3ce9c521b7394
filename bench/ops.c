/* Rates of each op through the backends that programs use, on sizes of a GPT-2 124M step with 4 x
 * 256 tokens: GB/s beside the rate of copying, GFLOP/s beside the best matrix product. It shows
 * which op to improve next.
 *
 * Usage: bench/ops [threads [name [seconds]]], by default 1 thread, all ops, and 0.2 s for each;
 * `name` is a part of the ops' names.
 *
 * Bytes are those of the op's cost: each operand once. A figure is the best of many runs, so that a
 * busy machine disturbs it little. */
#include <time.h>

#include "../tests/ops/harness.h"
#include "backend/kinds.h"

typedef struct line {
    const char *op;
    wefti_op_case c;
} line;

#define LINE(op_, attrs_, ...)                                                                     \
    {                                                                                              \
        op_, {                                                                                     \
            {__VA_ARGS__}, attrs_                                                                  \
        }                                                                                          \
    }
#define X "f32[4,256,768]"
#define H "bf16[4,256,768]"
#define WIDE "f32[4,256,3072]"
#define QKV "f32[4,256,12,64]"

static const line lines[] = {
    LINE("linear", NULL, X, "f32[768,3072]", "f32[3072]"),
    LINE("linear", NULL, H, "f32[768,3072]", "f32[3072]"),
    LINE("linear_grad_input", NULL, WIDE, "f32[768,3072]"),
    LINE("linear_grad_weight", NULL, X, WIDE),
    LINE("matmul", "transpose_b=1", "f32[4,12,256,64]", "f32[4,12,256,64]"),
    LINE("attention", "causal=1", QKV, QKV, QKV),
    LINE("attention_grad", "causal=1", QKV, QKV, QKV, QKV, "f32[2,4,12,256]+", QKV),
    LINE("linear_cross_entropy", "transposed=1", X, "f32[50257,768]", "i32[4,256]<50257", "f32[]"),
    LINE("cross_entropy", NULL, "f32[4,256,50257]", "i32[4,256]<50257"),
    LINE("layer_norm", NULL, X, "f32[768]", "f32[768]"),
    LINE("layer_norm_apply", NULL, X, "f32[768]", "f32[768]", "f32[4,256]", "f32[4,256]+"),
    LINE("layer_norm_grad", NULL, X, "f32[768]", "f32[4,256]", "f32[4,256]+", X),
    LINE("rms_norm", NULL, X, "f32[768]"),
    LINE("rms_norm_grad", NULL, X, "f32[768]", "f32[4,256]+", X),
    LINE("softmax", "axis=3", "f32[4,12,256,256]"),
    LINE("add", NULL, X, X),
    LINE("add", NULL, H, H),
    LINE("add", NULL, WIDE, "f32[3072]"),
    LINE("gelu", NULL, WIDE),
    LINE("gelu", NULL, "bf16[4,256,3072]"),
    LINE("gelu_grad", NULL, WIDE, WIDE),
    LINE("silu", NULL, WIDE),
    LINE("dropout", "rate=0.1", X),
    LINE("cast", "dtype=bf16", WIDE),
    LINE("where", NULL, "bool[4,256,768]?", X, "f32[]"),
    LINE("broadcast_to", "shape=(4,256,768)", "f32[768]"),
    LINE("sum_to", "shape=(3072)", WIDE),
    LINE("sum_to", "shape=(3072) dtype=f32", "bf16[4,256,3072]"),
    LINE("sum_to", "shape=(256,768)", X),
    LINE("sum", "axes=(2)", WIDE),
    LINE("mean", "axes=(0,2)", X),
    LINE("max", "axes=(2)", WIDE),
    LINE("argmax", "axis=2", WIDE),
    LINE("mse", NULL, WIDE, WIDE),
    LINE("mse_grad", NULL, WIDE, WIDE, "f32[]"),
    LINE("chunk", "axis=2 parts=3", "f32[4,256,3,768]"),
    LINE("chunk", "axis=2 parts=3", "bf16[4,256,3,768]"),
    LINE("concat", "axis=2", "f32[4,256,1,768]", "f32[4,256,1,768]", "f32[4,256,1,768]"),
    LINE("transpose", "order=(0,2,1,3)", QKV),
    LINE("transpose", "order=(1,0)", "f32[768,3072]"),
    LINE("slice", "axis=2 begin=0 end=384", X),
    LINE("pad", "before=(0,0,0) after=(0,0,768)", X),
    LINE("embedding", NULL, "f32[50257,768]", "i32[4,256]<50257"),
    LINE("embedding_grad", "vocab=50257", "i32[4,256]<50257", X),
    LINE("gather", "axis=0", "f32[50257,768]", "i32[1024]<50257"),
    LINE("scatter_add", "axis=0", "f32[50257,768]", "i32[1024]<50257", "f32[1024,768]"),
    LINE("one_hot", "classes=50257", "i32[64]<50257"),
    LINE("top_k", "k=40", "f32[64,50257]"),
    LINE("rope", NULL, QKV),
    LINE("grad_norm2", NULL, "f32[768,3072]"),
    LINE("opt_adamw", NULL, "f32[768,3072]", "f32[768,3072]", "f32[768,3072]+", "f32[768,3072]",
         "f32[8]+"),
    LINE("opt_lion", NULL, "f32[768,3072]", "f32[768,3072]", "f32[768,3072]", "f32[8]+"),
    LINE("opt_adafactor", NULL, "f32[768,3072]", "f32[768]+", "f32[3072]+", "f32[768,3072]",
         "f32[8]+"),
};

static const wefti_random stream = {.seed = 1};
static wefti_pool *pool;
static int threads = 1;
static double seconds = 0.2;

_Noreturn static void stop(const char *what) {
    fprintf(stderr, "bench/ops: %s: %s\n", what, weft_error_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    /* With one thread: its CPU time, which other processes do not lengthen. */
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(int64_t bytes) {
    void *p = aligned_alloc(64, ((size_t)bytes + 127) / 64 * 64);
    if (!p) abort();
    memset(p, 0, (size_t)bytes);
    return p;
}

typedef struct measured {
    double seconds;
    wefti_cost cost;
    const char *label;
} measured;

enum { PERIOD = 65536 };

/* Values below 1 in magnitude, like a model's weights and logits; they repeat with a period. */
static void fill(const operand *o, uint64_t stream_, void *out) {
    const weft_dtype dtype = o->desc.dtype;
    const bool small = o->style == 0 && wefti_dtype_is_float(dtype);
    const int64_t count = weft_desc_elems(&o->desc), bytes = (int64_t)weft_dtype_bytes(dtype);
    for (int64_t e = 0; e < count && e < PERIOD; e++)
        wefti_store(dtype, out, e, draw(o, 3, stream_, e, PERIOD) * (small ? 0.1 : 1.0));
    for (int64_t e = PERIOD; e < count; e += PERIOD)
        memcpy((char *)out + e * bytes, out,
               (size_t)((count - e < PERIOD ? count - e : PERIOD) * bytes));
}

/* Chooses the backend once, as sessions do. */
static wefti_bf16_compute bf16_of_products(void) {
    static wefti_bf16_compute chosen = WEFTI_BF16_AUTO;
    if (chosen == WEFTI_BF16_AUTO) chosen = wefti_kind_choose_bf16(wefti_kind_of(0));
    return chosen;
}

static measured measure(const line *l) {
    op_setup s;
    weft_graph *g = NULL;
    const weft_op_def *op = wefti_op_find(wefti_builtin_ops(), l->op);
    if (!op || !setup_case(op, &l->c, &s) || op_graph_make(&s, &g) < 0) stop(l->op);
    const weft_node *n = &g->root->nodes[0];
    wefti_prepare options = {.threads = threads, .bf16 = bf16_of_products()};
    wefti_kernel *k = NULL;
    for (const wefti_backend *const *b = wefti_kind_backends(wefti_kind_of(0)); *b && !k; b++)
        if ((*b)->prepare(*b, n, &options, &k) < 0) k = NULL;
    if (!k) stop(l->op);
    void *in[WEFTI_MAX_IN] = {0}, *out[WEFTI_MAX_OUT] = {0},
         *workspace = memory(k->workspace_bytes);
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        if (!d) continue;
        in[i] = memory(weft_desc_bytes(d));
        fill(&s.in[i], (uint64_t)i, in[i]);
    }
    bool updates = (op->flags & WEFTI_OP_IN_PLACE) != 0;
    for (int o = 0; o < n->outputs; o++)
        out[o] = updates ? in[o] : memory(weft_desc_bytes(wefti_out(n, o)));
    measured m = {.seconds = 1e9, .label = k->label};
    wefti_run run = {.pool = pool, .random = stream};
    double start = now();
    for (int i = 0; i < 1 || now() - start < seconds; i++) {
        double begin = now();
        if (k->run(k, &run, (const void *const *)in, out, workspace) < 0) stop(l->op);
        if (now() - begin < m.seconds) m.seconds = now() - begin;
    }
    wefti_node_cost(n, &m.cost);
    for (int o = 0; o < n->outputs && !updates; o++) free(out[o]);
    for (int i = 0; i < n->inputs; i++) free(in[i]);
    free(workspace);
    wefti_kernel_destroy(k);
    weft_graph_destroy(g);
    return m;
}

int main(int argc, char **argv) {
    if (argc > 1) threads = atoi(argv[1]);
    if (threads < 1) threads = 1;
    const char *wanted = argc > 2 ? argv[2] : "";
    if (argc > 3) seconds = atof(argv[3]);
    if (wefti_pool_create(threads, &pool) < 0) stop("threads");
    const line copy = LINE("chunk", "axis=0 parts=1", "f32[16777216]");
    const line product = LINE("matmul", NULL, "f32[1024,1024]", "f32[1024,1024]");
    measured limit = measure(&copy), best = measure(&product);
    double copy_rate = limit.cost.bytes / limit.seconds;
    double product_rate = best.cost.flops / best.seconds;
    printf("%d thread%s: copying %.1f GB/s, products %.1f GFLOP/s\n\n", threads,
           threads == 1 ? "" : "s", copy_rate / 1e9, product_rate / 1e9);
    printf("%-22s %-20s %-16s %9s %8s %6s %9s %6s\n", "op", "first operand", "kernel", "ms", "GB/s",
           "copy%", "GFLOP/s", "prod%");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (!strstr(lines[i].op, wanted)) continue;
        measured m = measure(&lines[i]);
        double bytes = m.cost.bytes / m.seconds, flops = m.cost.flops / m.seconds;
        printf("%-22s %-20s %-16s %9.3f %8.1f %5.0f%% %9.1f %5.0f%%\n", lines[i].op,
               lines[i].c.inputs[0], m.label, 1e3 * m.seconds, bytes / 1e9, 100 * bytes / copy_rate,
               flops / 1e9, 100 * flops / product_rate);
        fflush(stdout);
    }
    wefti_pool_destroy(pool);
    return 0;
}
