/* Rates of the vectorised kernels on sizes of a GPT-2 124M step with 4 x 256 tokens: GB/s beside
 * the rate of copying, GFLOP/s beside the FMA peak.
 *
 * Usage: bench/kernels [threads [name]], by default 1 thread and all kernels; `name` is a part of
 * the kernels' names.
 *
 * A figure is the best of many runs, so that a busy machine disturbs it little. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/cpu/kernels/kernels.h"
#include "tensor/tensor.h"

static wefti_pool *pool;
static const wefti_kernels *kernels;
static const char *wanted = "";
static double copy_rate, fma_rate;

static double now(void) {
    struct timespec t;
    /* With one thread: its CPU time, which other processes do not lengthen. */
    bool alone = wefti_pool_threads(pool) == 1;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void call(const void *kernel_arguments);

/* Seconds of the fastest call among those of a quarter of a second (at least 5 calls). */
static double fastest(call *f, const void *a) {
    double best = 1e9, start = now();
    for (int i = 0; i < 5 || now() - start < 0.25; i++) {
        double t = now();
        f(a);
        t = now() - t;
        if (t < best) best = t;
    }
    return best;
}

static float *filled(int64_t n, float size) {
    float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "no memory for %lld floats\n", (long long)n);
        exit(1);
    }
    uint32_t s = 1;
    for (int64_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        p[i] = size * ((float)(s >> 8) / 8388608.0f - 1.0f);
    }
    return p;
}
/* Converts the float array to bf16 in place. */
static wefti_src as_bf16(float *p, int64_t n) {
    uint16_t *h = (uint16_t *)(void *)p;
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, (const char *)p + 4 * i, sizeof value);
        uint16_t rounded = wefti_f32_to_bf16(value);
        memcpy((char *)h + 2 * i, &rounded, sizeof rounded);
    }
    return wefti_src_bf16(h);
}
static void *zeroed(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

static void report(const char *name, call *f, const void *a, double bytes, double flops) {
    if (!strstr(name, wanted)) return;
    double t = fastest(f, a);
    printf("%-34s %9.3f ms", name, t * 1e3);
    if (bytes > 0)
        printf("  %7.1f GB/s  %4.0f %% of copy", bytes / t * 1e-9, 100 * bytes / t / copy_rate);
    if (flops > 0)
        printf("  %7.1f GFLOP/s  %3.0f %% of peak", flops / t * 1e-9, 100 * flops / t / fma_rate);
    printf("\n");
}

#define CALL(name, type)                                                                           \
    static void call_##name(const void *a) {                                                       \
        kernels->name(pool, (const type *)a);                                                      \
    }
CALL(elementwise, wefti_elementwise_args)
CALL(convert, wefti_convert_args)
CALL(layer_norm, wefti_norm_args)
CALL(layer_norm_backward, wefti_norm_backward_args)
CALL(reduce, wefti_reduce_args)
CALL(cross_entropy_fused, wefti_cross_entropy_fused_args)
CALL(embedding, wefti_embedding_args)
CALL(embedding_backward, wefti_embedding_backward_args)
CALL(adam, wefti_adam_args)
CALL(sgd, wefti_sgd_args)
CALL(sum_squares, wefti_sum_squares_args)
CALL(permute, wefti_permute_args)
CALL(random_fill, wefti_random_fill_args)
CALL(attention, wefti_attention_args)
CALL(attention_backward, wefti_attention_backward_args)
CALL(batch_norm, wefti_batch_norm_args)
CALL(batch_norm_backward, wefti_batch_norm_backward_args)
CALL(max_pool, wefti_pool2d_args)
CALL(max_pool_backward, wefti_pool2d_args)
#undef CALL

/* --- the machine's limits */
typedef struct span {
    float *y;
    const float *x;
    int64_t n;
} span;

static void copy_task(void *context, int64_t task, int thread) {
    (void)thread;
    const span *s = context;
    int64_t first = task * 16384, n = s->n - first < 16384 ? s->n - first : 16384;
    memcpy(s->y + first, s->x + first, (size_t)n * sizeof *s->y);
}
static void copy_call(const void *a) {
    span s = *(const span *)a;
    wefti_pool_run(pool, (s.n + 16383) / 16384, copy_task, &s);
}

/* Twelve dependency chains hide the latency of four cycles on two units. */
#define FMA_LOOP(name, isa, vector, set1, fma)                                                     \
    __attribute__((target(isa))) static float name(int64_t rounds) {                               \
        vector a[12], x = set1(0.999f), y = set1(0.001f);                                          \
        for (int i = 0; i < 12; i++) a[i] = y;                                                     \
        for (int64_t r = 0; r < rounds; r++) {                                                     \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = fma(a[i], x, y);          \
        }                                                                                          \
        float s = 0;                                                                               \
        for (int i = 0; i < 12; i++) s += a[i][0];                                                 \
        return s;                                                                                  \
    }
#if defined(__x86_64__)
FMA_LOOP(fma_16, "avx512f,fma", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
FMA_LOOP(fma_8, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
#endif
typedef float four __attribute__((vector_size(16)));
#define FOUR(x) ((four){x, x, x, x})
#define FOUR_FMA(a, x, y) ((a) * (x) + (y))
FMA_LOOP(fma_4, "sse2", four, FOUR, FOUR_FMA)

/* The peak of the widest vectors that kernels use. AMX kernels add with AVX-512. */
static int lanes(void) {
    return !strcmp(kernels->isa, "plain") ? 4 : !strcmp(kernels->isa, "avx2") ? 8 : 16;
}

static volatile float sink;
static void fma_task(void *context, int64_t task, int thread) {
    (void)task;
    (void)thread;
    int64_t rounds = *(const int64_t *)context;
#if defined(__x86_64__)
    if (lanes() == 16) {
        sink = fma_16(rounds);
        return;
    }
    if (lanes() == 8) {
        sink = fma_8(rounds);
        return;
    }
#endif
    sink = fma_4(rounds);
}
static void fma_call(const void *a) {
    int64_t rounds = *(const int64_t *)a;
    wefti_pool_run(pool, wefti_pool_threads(pool), fma_task, &rounds);
}

static void limits(void) {
    int64_t n = 24 << 20, rounds = 1000000;
    span s = {zeroed((size_t)n * 4), filled(n, 1), n};
    copy_rate = 8.0 * (double)n / fastest(copy_call, &s);
    double flops = 24.0 * lanes() * (double)rounds * wefti_pool_threads(pool);
    fma_rate = flops / fastest(fma_call, &rounds);
    printf("%s, %d threads: copy %.1f GB/s, multiply-add %.1f GFLOP/s\n", kernels->isa,
           wefti_pool_threads(pool), copy_rate * 1e-9, fma_rate * 1e-9);
    free(s.y);
    free((void *)(uintptr_t)s.x);
}

/* --- kernels */
static void bench_elementwise(void) {
    int64_t rows = 1024, width = 3072, n = rows * width;
    float *x = filled(n, 2), *bias = filled(width, 1), *y = filled(n, 1),
          *z = zeroed((size_t)n * 4);
    wefti_ew_program p = {.instructions = 2, .inputs = 2, .outputs = 1, .elements = n};
    p.position_flat = true;
    p.input[0] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_FULL};
    p.input[1] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_ROW, .inner = width};
    p.code[0] = (wefti_ew_instruction){.op = WEFTI_EW_ADD, .dst = 2, .a = 0, .b = 1};
    p.code[1] = (wefti_ew_instruction){.op = WEFTI_EW_GELU_TANH, .dst = 2, .a = 2};
    p.output[0].reg = 2;
    wefti_elementwise_args a = {.program = &p, .in = {x, bias}, .out = {z}};
    report("bias + gelu", call_elementwise, &a, 8.0 * (double)n, 0);
    p.code[1] = (wefti_ew_instruction){.op = WEFTI_EW_GELU_TANH_GRAD, .dst = 2, .a = 0, .b = 1};
    p.input[1] = p.input[0];
    p.code[0].op = WEFTI_EW_COPY;
    a.in[1] = y;
    report("gelu gradient", call_elementwise, &a, 12.0 * (double)n, 0);
    p.instructions = 1;
    p.code[0].op = WEFTI_EW_ADD;
    report("add", call_elementwise, &a, 12.0 * (double)n, 0);
    p.instructions = 2;
    p.code[1] = (wefti_ew_instruction){.op = WEFTI_EW_DROPOUT, .dst = 2, .a = 2, .imm = 0.1f};
    report("add + dropout", call_elementwise, &a, 12.0 * (double)n, 0);
    wefti_convert_args c = {wefti_src_f32(x), wefti_dst_bf16((uint16_t *)(void *)z), n};
    report("f32 to bf16", call_convert, &c, 6.0 * (double)n, 0);
    as_bf16(x, n);
    as_bf16(y, n);
    p.input[0].dtype = p.input[1].dtype = p.output[0].dtype = WEFT_BF16;
    p.code[1] = (wefti_ew_instruction){.op = WEFTI_EW_GELU_TANH_GRAD, .dst = 2, .a = 0, .b = 1};
    report("gelu gradient bf16", call_elementwise, &a, 6.0 * (double)n, 0);
    p.instructions = 1;
    report("add bf16", call_elementwise, &a, 6.0 * (double)n, 0);
    free(x);
    free(bias);
    free(y);
    free(z);
}

static void bench_norm(void) {
    int64_t rows = 1024, dim = 768, n = rows * dim;
    float *x = filled(n, 2), *r = filled(n, 1), *s = zeroed((size_t)n * 4),
          *y = zeroed((size_t)n * 4);
    float *g = filled(dim, 1), *b = filled(dim, 1), *mean = filled(rows, 1),
          *rstd = filled(rows, 1);
    wefti_norm_args f = {
        .x = wefti_src_f32(x), .residual = wefti_src_f32(r), .sum = wefti_dst_f32(s)};
    f.gamma = g;
    f.beta = b;
    f.y = wefti_dst_f32(y);
    f.mean = mean;
    f.rstd = rstd;
    f.rows = rows;
    f.dim = dim;
    f.eps = 1e-5f;
    report("layer_norm + residual", call_layer_norm, &f, 16.0 * (double)n, 0);
    wefti_norm_backward_args a = {.dy = wefti_src_f32(y), .x = wefti_src_f32(s), .gamma = g};
    float *dg = filled(dim, 1), *db = filled(dim, 1);
    void *workspace = zeroed(wefti_norm_backward_workspace_bytes(rows, dim));
    a.mean = mean;
    a.rstd = rstd;
    a.dx = wefti_dst_f32(r);
    a.dgamma = dg;
    a.dbeta = db;
    a.rows = rows;
    a.dim = dim;
    a.workspace = workspace;
    report("layer_norm backward", call_layer_norm_backward, &a, 12.0 * (double)n, 0);
    wefti_norm_args h = f;
    h.x = as_bf16(x, n);
    h.residual = as_bf16(r, n);
    h.sum.dtype = h.y.dtype = WEFT_BF16;
    report("layer_norm + residual bf16", call_layer_norm, &h, 8.0 * (double)n, 0);
    free(workspace);
    int64_t wide = 3072;
    float *big = filled(rows * wide, 1), *sum = zeroed((size_t)wide * 4);
    workspace = zeroed(wefti_reduce_workspace_bytes(1, rows, wide));
    wefti_reduce_args c = {.op = WEFTI_FOLD_SUM, .x = wefti_src_f32(big), .y = wefti_dst_f32(sum)};
    c.outer = 1;
    c.reduce = rows;
    c.inner = wide;
    c.workspace = workspace;
    report("column sums", call_reduce, &c, 4.0 * (double)(rows * wide), 0);
    c.outer = rows;
    c.reduce = wide;
    c.inner = 1;
    report("row sums", call_reduce, &c, 4.0 * (double)(rows * wide), 0);
    wefti_permute_args p = {big, zeroed((size_t)(rows * wide) * 4), 4, 2, {rows, wide}, {1, 0}};
    report("transpose", call_permute, &p, 8.0 * (double)(rows * wide), 0);
    float *all[] = {x, r, s, y, g, b, mean, rstd, dg, db, big, sum, workspace, p.y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void bench_loss(void) {
    int64_t rows = 256, vocab = 50257, dim = 768;
    float *logits = filled(rows * vocab, 3), *loss = zeroed((size_t)rows * 4);
    int32_t *targets = zeroed(1024 * 4);
    for (int64_t i = 0; i < 1024; i++) targets[i] = (int32_t)(i * 7919 % vocab);
    wefti_cross_entropy_fused_args a = {.logits = wefti_dst_f32(logits),
                                        .targets = {targets, WEFT_I32}};
    a.rows = rows;
    a.vocab = vocab;
    a.ignore_index = -100;
    a.scale = 1.0f;
    a.loss = loss;
    report("cross_entropy fused", call_cross_entropy_fused, &a, 8.0 * (double)(rows * vocab), 0);
    for (int64_t i = 0; i < rows * vocab; i++) logits[i] = (float)(i * 7919 % 1000) / 200.0f;
    a.logits = (wefti_dst){logits, as_bf16(logits, rows * vocab).dtype};
    report("cross_entropy fused bf16", call_cross_entropy_fused, &a, 4.0 * (double)(rows * vocab),
           0);
    free(logits);
    float *table = filled(vocab * dim, 1), *y = filled(1024 * dim, 1);
    wefti_embedding_args e = {.table = wefti_src_f32(table), .ids = {targets, WEFT_I32}};
    e.second = wefti_src_f32(table);
    e.second_period = 256;
    e.second_vocab = vocab;
    e.y = wefti_dst_f32(y);
    e.rows = 1024;
    e.dim = dim;
    e.vocab = vocab;
    report("embedding + position", call_embedding, &e, 12.0 * 1024 * (double)dim, 0);
    wefti_embedding_backward_args b = {
        .dy = wefti_src_f32(y), .ids = {targets, WEFT_I32}, .padding = -1};
    b.dtable = table;
    b.accumulate = true;
    b.rows = 1024;
    b.dim = dim;
    b.vocab = vocab;
    report("embedding backward", call_embedding_backward, &b, 12.0 * 1024 * (double)dim, 0);
    free(loss);
    free(targets);
    free(table);
    free(y);
}

static void bench_optimizer(void) {
    int64_t n = 16 << 20;
    float *p = filled(n, 1), *g = filled(n, 1), *m = filled(n, 0.1f), *v = zeroed((size_t)n * 4);
    wefti_adam_args a = {
        .param = p, .grad = wefti_src_f32(g), .m = m, .v = v, .elements = n, .step = 3};
    a.grad_scale = 1.0f;
    a.lr = 1e-6f;
    a.beta1 = 0.9f;
    a.beta2 = 0.95f;
    a.eps = 1e-8f;
    a.weight_decay = 0.1f;
    a.decoupled = true;
    report("adamw", call_adam, &a, 28.0 * (double)n, 0);
    wefti_sgd_args s = {.param = p, .grad = wefti_src_f32(g), .momentum_buffer = m, .elements = n};
    s.grad_scale = 1.0f;
    s.lr = 1e-6f;
    s.momentum = 0.9f;
    report("sgd momentum", call_sgd, &s, 20.0 * (double)n, 0);
    double result;
    wefti_sum_squares_args q = {wefti_src_f32(g), n, &result, NULL};
    q.workspace = zeroed(wefti_sum_squares_workspace_bytes(n));
    report("sum of squares", call_sum_squares, &q, 4.0 * (double)n, 0);
    a.grad = as_bf16(g, n);
    a.shadow = zeroed((size_t)n * 2);
    report("adamw bf16 gradient and copy", call_adam, &a, 28.0 * (double)n, 0);
    free(a.shadow);
    wefti_random_fill_args r = {wefti_dst_f32(p), n, 1, 2, 0, false, 0.0f, 0.02f};
    report("uniform numbers", call_random_fill, &r, 4.0 * (double)n, 0);
    r.normal = true;
    report("normal numbers", call_random_fill, &r, 4.0 * (double)n, 0);
    free(p);
    free(g);
    free(m);
    free(v);
    free(q.workspace);
}

static void bench_attention(int64_t batch, int64_t t, int64_t heads, int64_t dim, bool causal) {
    int64_t width = heads * dim, n = batch * t * width;
    float *qkv = filled(3 * n, 1), *o = zeroed((size_t)n * 4),
          *lse = zeroed((size_t)(batch * heads * t) * 8);
    float *d_qkv = zeroed((size_t)n * 12), *d_o = filled(n, 1);
    wefti_attention_strides three = {t * 3 * width, 3 * width, dim}, one = {t * width, width, dim};
    wefti_attention_args a = {.q = wefti_src_f32(qkv), .o = wefti_dst_f32(o), .lse = lse};
    a.shape = (wefti_attention_shape){.batch = batch,
                                      .q_len = t,
                                      .k_len = t,
                                      .q_heads = heads,
                                      .kv_heads = heads,
                                      .dim = dim,
                                      .scale = 1.0f / sqrtf((float)dim),
                                      .causal = causal};
    a.k = wefti_src_f32(qkv + width);
    a.v = wefti_src_f32(qkv + 2 * width);
    a.q_strides = a.k_strides = a.v_strides = three;
    a.o_strides = one;
    int threads = wefti_pool_threads(pool);
    a.workspace = zeroed(wefti_attention_workspace_bytes(&a.shape, threads));
    double pairs = (double)(batch * heads) *
                   (causal ? (double)t * (double)(t + 1) / 2 : (double)t * (double)t);
    char name[64];
    snprintf(name, sizeof name, "attention %lldx%lld d%lld%s", (long long)batch, (long long)t,
             (long long)dim, causal ? " causal" : "");
    report(name, call_attention, &a, 0, 4.0 * pairs * (double)dim);
    wefti_attention_backward_args b = {.shape = a.shape, .q = a.q, .k = a.k, .v = a.v};
    b.o = wefti_src_f32(o);
    b.d_o = wefti_src_f32(d_o);
    b.q_strides = b.k_strides = b.v_strides = b.dq_strides = b.dk_strides = b.dv_strides = three;
    b.o_strides = b.do_strides = one;
    b.lse = lse;
    b.dq = wefti_dst_f32(d_qkv);
    b.dk = wefti_dst_f32(d_qkv + width);
    b.dv = wefti_dst_f32(d_qkv + 2 * width);
    b.workspace = zeroed(wefti_attention_backward_workspace_bytes(&b.shape, threads));
    snprintf(name, sizeof name, "attention backward %lldx%lld d%lld%s", (long long)batch,
             (long long)t, (long long)dim, causal ? " causal" : "");
    report(name, call_attention_backward, &b, 0, 10.0 * pairs * (double)dim);
    if (causal) {
        a.shape.q_len = 1;
        a.shape.q_offset = t - 1;
        double bytes = 8.0 * (double)n;
        snprintf(name, sizeof name, "attention decode %lldx%lld d%lld", (long long)batch,
                 (long long)t, (long long)dim);
        free(a.workspace);
        a.workspace = zeroed(wefti_attention_workspace_bytes(&a.shape, threads));
        report(name, call_attention, &a, bytes, 0);
    }
    free(qkv);
    free(o);
    free(lse);
    free(d_qkv);
    free(d_o);
    free(a.workspace);
    free(b.workspace);
}

static void bench_vision(void) {
    int64_t n = 32, c = 64, side = 32, spatial = side * side, count = n * c * spatial;
    float *x = filled(count, 1), *y = zeroed((size_t)count * 4), *dx = zeroed((size_t)count * 4);
    float *channel = filled(4 * c, 1);
    for (int64_t i = 0; i < 4 * c; i++) channel[i] = fabsf(channel[i]) + 0.1f;
    void *workspace = zeroed(wefti_batch_norm_workspace_bytes(n, c, spatial));
    for (int last = 0; last < 2; last++) {
        wefti_batch_norm_args f = {
            .x = wefti_src_f32(x), .y = wefti_dst_f32(y), .n = n, .channels = c};
        f.spatial = spatial;
        f.channels_last = last;
        f.train = f.relu = true;
        f.gamma = channel;
        f.beta = channel + c;
        f.mean = channel + 2 * c;
        f.rstd = channel + 3 * c;
        f.eps = 1e-5f;
        f.workspace = workspace;
        report(last ? "batch_norm channels last" : "batch_norm", call_batch_norm, &f,
               12.0 * (double)count, 0);
        wefti_batch_norm_backward_args b = {.dy = wefti_src_f32(y), .x = wefti_src_f32(x), .n = n};
        b.dx = wefti_dst_f32(dx);
        b.channels = c;
        b.spatial = spatial;
        b.channels_last = last;
        b.train = b.relu = true;
        b.gamma = channel;
        b.beta = channel + c;
        b.mean = channel + 2 * c;
        b.rstd = channel + 3 * c;
        b.workspace = workspace;
        report(last ? "batch_norm backward ch. last" : "batch_norm backward",
               call_batch_norm_backward, &b, 20.0 * (double)count, 0);
    }
    int32_t *indices = zeroed((size_t)count * 4);
    wefti_pool2d_args p = {.x = wefti_src_f32(x), .y = wefti_dst_f32(y), .indices = indices};
    p.planes = n * c;
    p.height = p.width = side;
    p.out_height = p.out_width = side / 2;
    p.kernel_h = p.kernel_w = 3;
    p.stride_h = p.stride_w = 2;
    p.pad_h = p.pad_w = 1;
    p.dilation_h = p.dilation_w = 1;
    p.dy = wefti_src_f32(y);
    p.dx = wefti_dst_f32(dx);
    report("max_pool 3x3 / 2", call_max_pool, &p, 6.0 * (double)count, 0);
    report("max_pool backward", call_max_pool_backward, &p, 6.0 * (double)count, 0);
    free(x);
    free(y);
    free(dx);
    free(channel);
    free(workspace);
    free(indices);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2) wanted = argv[2];
    kernels = wefti_kernels_best();
    if (wefti_pool_create(threads, &pool) < 0) {
        fprintf(stderr, "%s\n", weft_error_message());
        return 1;
    }
    limits();
    bench_elementwise();
    bench_norm();
    bench_loss();
    bench_optimizer();
    bench_attention(4, 256, 12, 64, true);
    bench_attention(1, 1024, 12, 64, true);
    bench_attention(1, 1024, 12, 64, false);
    bench_attention(1, 512, 8, 128, true);
    bench_vision();
    wefti_pool_destroy(pool);
    return 0;
}
