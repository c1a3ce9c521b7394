/* Matrix products of a GPT-2 124M training step: weft's kernels against oneDNN's matmul,
 * alternating, medians.
 *
 * Usage: gemm [threads (default: all cores)] [rounds (default 7)] [part of a shape's name] [f32
 * (default) | bf16].
 *
 * In bf16 weft multiplies as a training step does: activations are bf16, weights and their
 * gradients f32. It uses the processor's bf16 arithmetic if there is one. oneDNN gets bf16 operands
 * only, its best case. Each product runs at 1024 tokens: forward (y = x W), the gradient of x and
 * the gradient of W. The weight is stored as [in, out] (GPT-2) and as [out, in] (Llama; the tied
 * output layer of GPT-2). The last line is oneDNN's best rate on squares: the machine's limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/gemm/gemm.h"
#include "base/memory.h"
#include "tensor/tensor.h"

#ifdef WEFT_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif
#ifdef WEFT_HAVE_GOMP
void omp_set_num_threads(int threads);
#endif

typedef struct product {
    const char *name;
    int64_t m, n, k;
    bool a_transposed, b_transposed;
    int count; /* in one step of GPT-2 124M */
} product;

static const product products[] = {
    {"qkv y", 1024, 2304, 768, 0, 0, 12},        {"qkv y, W^T", 1024, 2304, 768, 0, 1, 0},
    {"qkv dx", 1024, 768, 2304, 0, 1, 12},       {"qkv dx, W^T", 1024, 768, 2304, 0, 0, 0},
    {"qkv dW", 768, 2304, 1024, 1, 0, 12},       {"qkv dW, W^T", 2304, 768, 1024, 1, 0, 0},
    {"proj y", 1024, 768, 768, 0, 0, 12},        {"proj dx", 1024, 768, 768, 0, 1, 12},
    {"proj dW", 768, 768, 1024, 1, 0, 12},       {"ffn up y", 1024, 3072, 768, 0, 0, 12},
    {"ffn up y, W^T", 1024, 3072, 768, 0, 1, 0}, {"ffn up dx", 1024, 768, 3072, 0, 1, 12},
    {"ffn up dW", 768, 3072, 1024, 1, 0, 12},    {"ffn down y", 1024, 768, 3072, 0, 0, 12},
    {"ffn down dx", 1024, 3072, 768, 0, 1, 12},  {"ffn down dW", 3072, 768, 1024, 1, 0, 12},
    {"head y, W^T", 1024, 50257, 768, 0, 1, 1},  {"head dx, W^T", 1024, 768, 50257, 0, 0, 1},
    {"head dW, W^T", 50257, 768, 1024, 1, 0, 1}, {"head y", 1024, 50257, 768, 0, 0, 0},
};

/* With one thread: its CPU time, which other load on the machine disturbs less. */
static clockid_t timer = CLOCK_MONOTONIC;
static double now(void) {
    struct timespec t;
    clock_gettime(timer, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(int ms) {
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool bf16; /* else f32 */

static void *matrix(weft_dtype dtype, int64_t elems) {
    void *p = NULL;
    if (posix_memalign(&p, 4096, (size_t)elems * weft_dtype_bytes(dtype) + 64)) exit(1);
    for (int64_t i = 0; i < elems; i++) wefti_store(dtype, p, i, (double)(i % 127) * 0.01 - 0.6);
    return p;
}

typedef struct runner {
    wefti_gemm gemm;
    wefti_gemm_args args;
    void *workspace;
    wefti_pool *pool;
#ifdef WEFT_HAVE_ONEDNN
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t exec[3];
    dnnl_stream_t stream;
#endif
} runner;

static double ours(runner *r) {
    double start = now();
    wefti_gemm_run(&r->gemm, &r->args, r->workspace, r->pool);
    return now() - start;
}

#ifdef WEFT_HAVE_ONEDNN
static void dnnl(dnnl_status_t status) {
    if (status == dnnl_success) return;
    fprintf(stderr, "oneDNN failed with status %d\n", (int)status);
    exit(1);
}

static void describe(dnnl_engine_t engine, void *data, int64_t rows, int64_t columns,
                     bool transposed, dnnl_memory_t *out) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t md;
    dnnl(dnnl_memory_desc_create_with_tag(&md, 2, dims, type, transposed ? dnnl_ba : dnnl_ab));
    dnnl(dnnl_memory_create(out, md, engine, data));
    dnnl(dnnl_memory_desc_destroy(md));
#else
    dnnl_memory_desc_t md;
    dnnl(dnnl_memory_desc_init_by_tag(&md, 2, dims, type, transposed ? dnnl_ba : dnnl_ab));
    dnnl(dnnl_memory_create(out, &md, engine, data));
#endif
}

static void peer_prepare(runner *r, const product *p, void *const data[3], dnnl_engine_t engine) {
    static const int slots[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    dnnl_memory_t memory[3];
    describe(engine, data[0], p->m, p->k, p->a_transposed, &memory[0]);
    describe(engine, data[1], p->k, p->n, p->b_transposed, &memory[1]);
    describe(engine, data[2], p->m, p->n, false, &memory[2]);
    dnnl_primitive_desc_t pd;
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t md[3];
    for (int i = 0; i < 3; i++) dnnl(dnnl_memory_get_memory_desc(memory[i], &md[i]));
    dnnl(dnnl_matmul_primitive_desc_create(&pd, engine, md[0], md[1], NULL, md[2], NULL));
#else
    const dnnl_memory_desc_t *md[3];
    for (int i = 0; i < 3; i++) dnnl(dnnl_memory_get_memory_desc(memory[i], &md[i]));
    dnnl_matmul_desc_t desc;
    dnnl(dnnl_matmul_desc_init(&desc, md[0], md[1], NULL, md[2]));
    dnnl(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL));
#endif
    dnnl(dnnl_primitive_create(&r->primitive, pd));
    dnnl(dnnl_primitive_desc_destroy(pd));
    for (int i = 0; i < 3; i++) r->exec[i] = (dnnl_exec_arg_t){slots[i], memory[i]};
}

static double peer(runner *r) {
    double start = now();
    dnnl(dnnl_primitive_execute(r->primitive, r->stream, 3, r->exec));
    dnnl(dnnl_stream_wait(r->stream));
    return now() - start;
}

static void peer_finish(runner *r) {
    for (int i = 0; i < 3; i++) dnnl_memory_destroy(r->exec[i].memory);
    dnnl_primitive_destroy(r->primitive);
}
#endif

enum { MOST_ROUNDS = 101 };
typedef struct rates {
    double ours_median, ours_best, peer_median, peer_best; /* seconds */
} rates;

static rates measure(const product *p, int threads, int rounds, wefti_pool *pool) {
    runner r = {.pool = pool};
    const weft_dtype dtype = bf16 ? WEFT_BF16 : WEFT_F32;
    const bool weight_gradient = p->a_transposed;
    wefti_gemm_spec spec = wefti_gemm_spec_of(dtype, p->m, p->n, p->k);
    if (p->a_transposed) spec.a = wefti_gemm_transposed(dtype, p->m);
    if (p->b_transposed) spec.b = wefti_gemm_transposed(dtype, p->k);
    if (weight_gradient)
        spec.c.dtype = WEFT_F32;
    else
        spec.b.dtype = WEFT_F32;
    spec.bf16 = bf16 && wefti_isa_best_has_bf16();
    if (wefti_gemm_prepare(&spec, wefti_isa_best(), &r.gemm) != WEFT_OK) exit(1);
    void *a = matrix(spec.a.dtype, p->m * p->k), *b = matrix(spec.b.dtype, p->k * p->n),
         *c = matrix(spec.c.dtype, p->m * p->n);
    int64_t bytes = wefti_gemm_workspace_bytes(&r.gemm, threads);
    r.workspace = matrix(WEFT_F32, bytes / 4);
    r.args = (wefti_gemm_args){.a = a, .b = b, .c = c};
    double mine[MOST_ROUNDS], theirs[MOST_ROUNDS] = {0};
#ifdef WEFT_HAVE_ONEDNN
    void *const data[3] = {matrix(dtype, p->m * p->k), matrix(dtype, p->k * p->n),
                           matrix(dtype, p->m * p->n)};
    dnnl_engine_t engine;
    dnnl(dnnl_engine_create(&engine, dnnl_cpu, 0));
    dnnl(dnnl_stream_create(&r.stream, engine, dnnl_stream_default_flags));
    peer_prepare(&r, p, data, engine);
    (void)peer(&r);
#endif
    (void)ours(&r);
    double work = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    int repeat = work < 2e10 ? 3 : 1; /* the best of a few within a round */
    for (int round = 0; round < rounds; round++) {
        pause_ms(2); /* until the other library's threads stop spinning */
        mine[round] = 1e9;
        for (int i = 0; i < repeat; i++) {
            double t = ours(&r);
            if (t < mine[round]) mine[round] = t;
        }
#ifdef WEFT_HAVE_ONEDNN
        pause_ms(2);
        theirs[round] = 1e9;
        for (int i = 0; i < repeat; i++) {
            double t = peer(&r);
            if (t < theirs[round]) theirs[round] = t;
        }
#endif
    }
    qsort(mine, (size_t)rounds, sizeof *mine, by_value);
    qsort(theirs, (size_t)rounds, sizeof *theirs, by_value);
#ifdef WEFT_HAVE_ONEDNN
    peer_finish(&r);
    dnnl_stream_destroy(r.stream);
    dnnl_engine_destroy(engine);
    for (int i = 0; i < 3; i++) free(data[i]);
#endif
    free(a);
    free(b);
    free(c);
    free(r.workspace);
    return (rates){mine[rounds / 2], mine[0], theirs[rounds / 2], theirs[0]};
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : wefti_cores();
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    const char *only = argc > 3 ? argv[3] : "";
    bf16 = argc > 4 && !strcmp(argv[4], "bf16");
    if ((argc > 4 && !bf16 && strcmp(argv[4], "f32")) || threads < 1 || threads > 1024 ||
        rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: gemm [threads] [rounds, up to %d] [name] [f32|bf16]\n",
                MOST_ROUNDS);
        return 2;
    }
    if (threads == 1) timer = CLOCK_THREAD_CPUTIME_ID;
    wefti_pool *pool;
    if (wefti_pool_create(threads, &pool) != WEFT_OK) return 1;
#ifdef WEFT_HAVE_GOMP
    omp_set_num_threads(threads);
#endif
    printf("%d thread(s), %s, %s, %d rounds; GFLOP/s, medians (best)\n", threads,
           wefti_isa_arithmetic(bf16), bf16 ? "bf16" : "f32", rounds);
    printf("%-14s %6s %6s %6s  %-16s %-16s %s\n", "product", "m", "n", "k", "ours", "oneDNN",
           "ratio");
    double flops = 0, seconds = 0, peer_seconds = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product *p = &products[i];
        if (!strstr(p->name, only)) continue;
        rates t = measure(p, threads, rounds, pool);
        double work = 2e-9 * (double)p->m * (double)p->n * (double)p->k;
        char text[2][32];
        snprintf(text[0], sizeof text[0], "%.0f (%.0f)", work / t.ours_median, work / t.ours_best);
        snprintf(text[1], sizeof text[1], "%.0f (%.0f)",
                 t.peer_median > 0 ? work / t.peer_median : 0,
                 t.peer_best > 0 ? work / t.peer_best : 0);
        printf("%-14s %6lld %6lld %6lld  %-16s %-16s %.2f\n", p->name, (long long)p->m,
               (long long)p->n, (long long)p->k, text[0], text[1], t.peer_median / t.ours_median);
        fflush(stdout);
        flops += p->count * work;
        seconds += p->count * t.ours_median;
        peer_seconds += p->count * t.peer_median;
    }
    if (seconds > 0)
        printf("all products of a step: ours %.0f, oneDNN %.0f GFLOP/s\n", flops / seconds,
               peer_seconds > 0 ? flops / peer_seconds : 0);
    double best = 0, own = 0;
    for (int64_t size = 1024; size <= 3072; size += 1024) {
        product square = {"square", size, size, size, 0, 0, 0};
        rates t = measure(&square, threads, rounds, pool);
        double work = 2e-9 * (double)size * (double)size * (double)size;
        if (t.peer_best > 0 && work / t.peer_best > best) best = work / t.peer_best;
        if (work / t.ours_best > own) own = work / t.ours_best;
    }
    printf("squares of 1024 to 3072, best: ours %.0f, oneDNN %.0f GFLOP/s\n", own, best);
    wefti_pool_destroy(pool);
    return 0;
}
