/* Rates of kernels by size. The kernels are those that sessions run, prepared in the same way.
 *
 * Operands stay where they are between runs, so small ones come from caches, as the results of a
 * kernel just before do in a step. */
#include "measure/machine.h"

#include <math.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/clock.h"
#include "base/memory.h"
#include "compile/routine.h"
#include "weft/ops.h"

enum {
    PRODUCT_LEAST = 16,
    PRODUCT_MOST = 1024,
    MEMORY_LEAST = 3 << 10,
    MEMORY_MOST = 96 << 20,
    VECTOR_ELEMENTS = 4096,
    SHARING_SIDE = 128,
    MOST_SHARES = 4, /* other hosts sleep while so many devices may share a processor */
    OPERANDS = 3,
    OPERAND_BYTES = 64
};

/* A cell of one op, with memory for its operands. */
typedef struct bench_kernel {
    weft_graph *graph;
    wefti_routine *routine;
    const wefti_instruction *x;
    unsigned char *memory;
    const void *in[OPERANDS];
    void *out[OPERANDS], *workspace;
    wefti_run run;
    bool idle; /* others measure */
} bench_kernel;

static void destroy(bench_kernel *k) {
    wefti_routine_destroy(k->routine);
    weft_graph_destroy(k->graph);
    wefti_free(k->memory);
}

static int64_t padded(int64_t bytes) {
    return (bytes + OPERAND_BYTES - 1) / OPERAND_BYTES * OPERAND_BYTES;
}

/* Places the operands behind each other. Every byte is written, so that each page is there; the
 * pattern is a small normal number in f32 and in bf16. */
static weft_status place(bench_kernel *k) {
    const weft_node *n = k->x->node;
    int64_t bytes = OPERAND_BYTES + padded(k->x->workspace_bytes);
    for (int i = 0; i < n->inputs; i++) bytes += padded(weft_desc_bytes(wefti_in(n, i)));
    for (int i = 0; i < n->outputs; i++) bytes += padded(weft_desc_bytes(wefti_out(n, i)));
    k->memory = wefti_alloc((size_t)bytes);
    WEFT_REQUIRE(k->memory, WEFT_E_NOMEM, "no memory for operands of %lld bytes", (long long)bytes);
    memset(k->memory, 0x3c, (size_t)bytes);
    unsigned char *at =
        k->memory + (OPERAND_BYTES - (uintptr_t)k->memory % OPERAND_BYTES) % OPERAND_BYTES;
    for (int i = 0; i < n->inputs; at += padded(weft_desc_bytes(wefti_in(n, i))), i++)
        k->in[i] = at;
    for (int i = 0; i < n->outputs; at += padded(weft_desc_bytes(wefti_out(n, i))), i++)
        k->out[i] = at;
    k->workspace = at;
    return WEFT_OK;
}

static weft_status compile(const wefti_measuring *m, bench_kernel *k) {
    const wefti_device_kind *kind = wefti_kind_of(weft_world_rank(m->world));
    WEFT_TRY(wefti_kind_check(kind));
    WEFT_TRY(weft_graph_status(k->graph));
    const wefti_routine_spec spec = {
        .body = k->graph->cells[0],
        .prepare = {.threads = m->threads, .bf16 = wefti_kind_choose_bf16(kind)},
        .backends = wefti_kind_backends(kind)};
    WEFT_TRY(wefti_routine_compile(&spec, &k->routine));
    WEFT_REQUIRE(k->routine->code_count == 1 && k->routine->code[0].kernel, WEFT_E_BUG,
                 "a cell of one op has %d instructions", k->routine->code_count);
    k->x = k->routine->code;
    k->run = (wefti_run){.pool = m->pool};
    return place(k);
}

static weft_status run(void *context) {
    const bench_kernel *k = context;
    return k->x->kernel->run(k->x->kernel, &k->run, k->in, k->out, k->workspace);
}

typedef enum bench_op { PRODUCT, ADD } bench_op;

/* PRODUCT: [size, size] x [size, size]; others: `size` elements. */
static weft_status build(bench_op op, weft_dtype dtype, int64_t size, weft_graph **out) {
    const int64_t shape[] = {size, op == PRODUCT ? size : 1};
    const weft_desc desc = weft_desc_of(dtype, 2, shape);
    WEFT_TRY(weft_graph_create(out));
    weft_graph *g = *out;
    weft_value x = weft_input(g, "x", desc), y = weft_input(g, "y", desc);
    weft_cell_begin(g, "cell");
    weft_value z = op == PRODUCT ? weft_linear(g, x, y, WEFT_NO_VALUE, false) : weft_add(g, x, y);
    weft_output(g, "z", weft_cell_end(g, z));
    return weft_graph_status(g);
}

/* Whether others measure on the processors of this rank. */
static bool is_idle(const wefti_measuring *m) {
    const int32_t rank = weft_world_rank(m->world), per_host = m->out->per_host;
    return (m->out->at_once && rank % per_host >= m->out->at_once) ||
           (m->out->hosts_at_once && rank / per_host >= m->out->hosts_at_once);
}

/* *out: seconds of a run, and the op's own counts. If devices share processors, as many measure as
 * compute at the same time. */
static weft_status measure(const wefti_measuring *m, bench_op op, weft_dtype dtype, int64_t size,
                           double *out, wefti_cost *cost) {
    bench_kernel k = {.idle = is_idle(m)};
    weft_status status = build(op, dtype, size, &k.graph);
    if (status >= 0) status = compile(m, &k);
    if (status >= 0) *cost = k.x->cost;
    if (status >= 0) status = wefti_measured_seconds(m, k.idle ? NULL : run, &k, out);
    destroy(&k);
    return status;
}

static weft_status products(const wefti_measuring *m, weft_dtype dtype, wefti_arithmetic a,
                            const char *name) {
    for (int64_t side = PRODUCT_LEAST; side <= PRODUCT_MOST; side *= 2) {
        double seconds;
        wefti_cost cost;
        weft_status status = measure(m, PRODUCT, dtype, side, &seconds, &cost);
        if (status < 0) return wefti_prefix(status, "a product of %lld", (long long)side);
        wefti_measured_point(m, &m->out->product[a], name, cost.flops, cost.flops / seconds);
        if (wefti_measured_enough(m, &m->out->product[a], seconds)) break;
    }
    return WEFT_OK;
}

/* ---- shared processors ---- */

/* Seconds of the slowest rank for `repeats` runs. Means count here, not the best: a device that
 * shares its processor computes at full speed for a time, and then not at all. Idle ranks sleep
 * for `about` so many seconds. */
static weft_status time_all(const wefti_measuring *m, bench_kernel *k, int64_t repeats,
                            double about, double *out) {
    WEFT_TRY(weft_barrier(m->world, NULL));
    const double begin = wefti_now_s();
    if (k->idle) wefti_measured_rest(about);
    for (int64_t i = 0; i < repeats && !k->idle; i++) WEFT_TRY(run(k));
    *out = k->idle ? 0 : wefti_now_s() - begin;
    return weft_all_reduce(m->world, NULL, out, out, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

int32_t wefti_measured_at_once(int32_t count, double slower) {
    const int32_t whole = (int32_t)ceil(count / slower - 0.3); /* caches make it slower as well */
    if (count == 1 || slower < 1.4 || whole >= count) return 0;
    return whole > 1 ? whole : 1;
}

/* One rank alone, then all of its host, then those of all hosts. */
static weft_status compare_shares(const wefti_measuring *m, bench_kernel *k) {
    const double least = 2 * m->seconds; /* many turns of the scheduler */
    const int32_t rank = weft_world_rank(m->world);
    const int32_t per_host = m->out->per_host;
    double alone = 0, host, all;
    int64_t repeats = 1;
    k->idle = rank != 0;
    for (;; repeats *= 2) {
        WEFT_TRY(time_all(m, k, repeats, 2 * alone, &alone));
        if (alone >= least) break;
    }
    k->idle = rank >= per_host;
    WEFT_TRY(
        time_all(m, k, repeats, (per_host < MOST_SHARES ? per_host : MOST_SHARES) * alone, &host));
    m->out->at_once = wefti_measured_at_once(per_host, host / alone);
    if (m->out->at_once) wefti_measured_figure(m, "devices_at_once", m->out->at_once);
    if (m->out->hosts == 1) return WEFT_OK;
    k->idle = false;
    WEFT_TRY(time_all(m, k, repeats, 0, &all));
    m->out->hosts_at_once = wefti_measured_at_once(m->out->hosts, all / host);
    if (m->out->hosts_at_once) wefti_measured_figure(m, "hosts_at_once", m->out->hosts_at_once);
    return WEFT_OK;
}

/* How many devices of a host, and how many hosts, compute at the same time. */
static weft_status measure_sharing(const wefti_measuring *m) {
    bench_kernel k = {.idle = false};
    if (weft_world_size(m->world) == 1) return WEFT_OK;
    weft_status status = build(PRODUCT, WEFT_F32, SHARING_SIDE, &k.graph);
    if (status >= 0) status = compile(m, &k);
    if (status >= 0) status = compare_shares(m, &k);
    destroy(&k);
    return status;
}

weft_status wefti_measure_kernels(const wefti_measuring *m) {
    double seconds;
    wefti_cost cost;
    WEFT_TRY(measure_sharing(m));
    WEFT_TRY(measure(m, ADD, WEFT_F32, 1, &seconds, &cost));
    m->out->launch_seconds = seconds;
    wefti_measured_figure(m, "launch_seconds", seconds);
    WEFT_TRY(measure(m, ADD, WEFT_F32, VECTOR_ELEMENTS, &seconds, &cost));
    m->out->vector_flops = cost.flops / seconds;
    wefti_measured_figure(m, "vector_flops", m->out->vector_flops);
    for (int64_t bytes = MEMORY_LEAST; bytes <= MEMORY_MOST; bytes *= 4) {
        WEFT_TRY(measure(m, ADD, WEFT_F32, bytes / 12, &seconds, &cost));
        wefti_measured_point(m, &m->out->memory, "memory_curve", cost.bytes, cost.bytes / seconds);
        if (wefti_measured_enough(m, &m->out->memory, seconds)) break;
    }
    WEFT_TRY(products(m, WEFT_F32, WEFTI_ARITHMETIC_F32, "product_curves.f32"));
    return products(m, WEFT_BF16, WEFTI_ARITHMETIC_BF16, "product_curves.bf16");
}
