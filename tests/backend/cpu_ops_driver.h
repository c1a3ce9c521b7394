/* One node, its kernel of the cpu backend and the reference, for tests that run over many nodes.
 *
 * A kernel runs with 1, 2 and 3 threads, on buffers between guards. Its workspace has exactly the
 * stated size and is full of NaN. If the kernel can accumulate or run in place, the test also runs
 * it that way. */
#ifndef TESTS_BACKEND_CPU_OPS_DRIVER_H
#define TESTS_BACKEND_CPU_OPS_DRIVER_H

#include "support.h"

#include "backend/backend.h"
#include "backend/cpu_ops_cases.h"
#include "backend/paths.h"

enum { GUARD = 64, THREADS = 3, POISON = 0xFF };

static const wefti_random stream = {.seed = 7, .step = 3, .call_stream = 11, .row_offset = 5};
static wefti_pool *pools[THREADS];
static int failures, runs; /* of the running test */
static int path;           /* of the kernels: paths.h */

extern const wefti_backend wefti_backend_cpu;

/* Kernels prepared after this call use this path. False: there is no such path here. */
static bool use_path(int which) {
    path = which;
    return path_begin(which);
}

/* ---- messages ---- */

static char *text_of(const op_setup *s) {
    wefti_text t = {0};
    wefti_text_add(&t, "%s(", s->op->name);
    for (int i = 0; i < s->inputs; i++)
        wefti_text_add(&t, "%s%s", i ? ", " : "",
                       s->in[i].style == '-' ? "-" : wefti_desc_text(&s->in[i].desc).text);
    wefti_text_add(&t, ")");
    wefti_attrs_print(s->op, s->attrs, &t);
    char *text = wefti_text_take(&t);
    if (!text) abort();
    return text;
}

static void complain(const op_setup *s, const char *how, const char *format, ...) {
    char detail[300], *text = text_of(s);
    va_list list;
    va_start(list, format);
    (void)vsnprintf(detail, sizeof detail, format, list);
    va_end(list);
    print_error("%s, %s, %s: %s\n", text, path_text(path), how, detail);
    wefti_free(text);
    failures++;
}

/* ---- guarded memory ---- */

typedef struct memory {
    unsigned char *base, *data;
    size_t bytes, total;
} memory;

/* `bytes` between guards, at an address that is only as aligned as `alignment`. */
static memory memory_new(int64_t bytes, size_t alignment) {
    memory m = {.bytes = (size_t)bytes};
    m.total = (2 * GUARD + alignment + m.bytes + 63) / 64 * 64;
    m.base = aligned_alloc(64, m.total);
    if (!m.base) abort();
    m.data = m.base + GUARD + alignment % 64;
    memset(m.base, 0xA5, m.total);
    memset(m.data, POISON, m.bytes);
    return m;
}
static bool memory_whole(const memory *m) {
    for (const unsigned char *p = m->base; p < m->data; p++)
        if (*p != 0xA5) return false;
    for (const unsigned char *p = m->data + m->bytes; p < m->base + m->total; p++)
        if (*p != 0xA5) return false;
    return true;
}

/* ---- one node with operands in their dtypes ---- */

typedef struct subject {
    const op_setup *setup; /* for messages */
    const weft_node *node;
    double *in[WEFTI_MAX_IN];      /* values as stored in the operands' dtypes */
    double *want[WEFTI_MAX_OUT];   /* reference, not rounded */
    double *margin[WEFTI_MAX_OUT]; /* what each may be off by before it is stored */
} subject;

static size_t element(const weft_desc *d) {
    return weft_dtype_bytes(d->dtype);
}

static const bound *bound_of(const char *op) {
    const bound *b = bounds;
    while (!name_fits(b->op, op)) b++;
    return b;
}

static double unit(weft_dtype d) {
    return d == WEFT_F64 ? 0x1p-53 : 0x1p-24;
}
/* Half a unit in the last place, relative. */
static double storing(weft_dtype d) {
    return d == WEFT_BF16 ? 0x1p-8 : d == WEFT_F16 ? 0x1p-11 : d == WEFT_F32 ? 0x1p-24 : 0x1p-53;
}

static weft_status reference(const weft_node *n, double *const *in, double *const *out) {
    const double *from[WEFTI_MAX_IN];
    for (int i = 0; i < WEFTI_MAX_IN; i++) from[i] = in[i];
    return n->op->reference ? n->op->reference(n, &stream, from, out)
                            : wefti_elementwise_reference(n, &stream, from, out);
}

/* Sums of absolute terms: the reference on absolute operands. */
static void fill_terms(subject *s) {
    double *in[WEFTI_MAX_IN] = {0};
    for (int i = 0; i < s->node->inputs; i++) {
        const weft_desc *d = wefti_in(s->node, i);
        if (!d) continue;
        in[i] = new_values(d);
        for (int64_t e = 0; e < weft_desc_elems(d); e++)
            in[i][e] = wefti_dtype_is_float(d->dtype) ? fabs(s->in[i][e]) : s->in[i][e];
    }
    if (reference(s->node, in, s->margin) < 0) abort();
    for (int i = 0; i < s->node->inputs; i++) free(in[i]);
}

static void subject_open(const op_setup *setup, const op_graph *g, subject *out) {
    subject s = {.setup = setup, .node = g->node};
    const weft_node *n = g->node;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        if (!d) continue;
        s.in[i] = g->in[i];
        for (int64_t e = 0; e < weft_desc_elems(d); e++) {
            _Alignas(8) unsigned char bits[8];
            wefti_store(d->dtype, bits, 0, s.in[i][e]);
            s.in[i][e] = wefti_load(d->dtype, bits, 0);
        }
    }
    for (int o = 0; o < n->outputs; o++) {
        s.want[o] = g->out[o];
        s.margin[o] = new_values(wefti_out(n, o));
    }
    if (reference(n, s.in, s.want) < 0) fail_msg("%s: %s", n->op->name, weft_error_message());
    const bound *b = bound_of(n->op->name);
    if (b->kind == TERMS) fill_terms(&s);
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *d = wefti_out(n, o);
        int64_t count = weft_desc_elems(d);
        double largest = 0.0;
        for (int64_t e = 0; e < count; e++)
            if (isfinite(s.want[o][e])) largest = fmax(largest, fabs(s.want[o][e]));
        for (int64_t e = 0; e < count; e++) {
            double size = b->kind == TERMS     ? s.margin[o][e]
                          : b->kind == ELEMENT ? fabs(s.want[o][e]) + 1.0
                          : b->kind == SCALE   ? 1.0 + largest
                                               : 0.0;
            s.margin[o][e] = b->factor * unit(d->dtype) * size;
        }
    }
    *out = s;
}

static void subject_close(subject *s) {
    for (int o = 0; o < WEFTI_MAX_OUT; o++) free(s->margin[o]);
}

/* ---- one run ---- */

typedef struct result {
    memory out[WEFTI_MAX_OUT];
} result;

static void result_free(result *r) {
    for (int o = 0; o < WEFTI_MAX_OUT; o++) free(r->out[o].base);
    memset(r, 0, sizeof *r);
}

/* What was there before, when a result is added to. */
static double before(int o, int64_t e) {
    return (double)((e * 7 + o) % 5) - 2.0;
}

typedef struct manner {
    const char *name;
    int threads;
    uint32_t accumulate;
    bool in_place;
    bool native; /* bf16 products in the processor's own arithmetic: f32 weights become bf16 */
} manner;

/* Runs `k` on copies of the operands; the results stay in *out. */
static bool run_kernel(const subject *s, const wefti_kernel *k, manner how, result *out) {
    const weft_node *n = s->node;
    bool updates = (n->op->flags & WEFTI_OP_IN_PLACE) != 0;
    memory in[WEFTI_MAX_IN] = {0}, copy[WEFTI_MAX_IN] = {0};
    const void *from[WEFTI_MAX_IN] = {0};
    void *to[WEFTI_MAX_OUT] = {0};
    wefti_run run = {.pool = pools[how.threads - 1], .random = stream};
    int failed = failures;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        if (!d) continue;
        in[i] = memory_new(weft_desc_bytes(d), element(d));
        for (int64_t e = 0; e < weft_desc_elems(d); e++)
            wefti_store(d->dtype, in[i].data, e, s->in[i][e]);
        copy[i] = memory_new(weft_desc_bytes(d), element(d));
        memcpy(copy[i].data, in[i].data, in[i].bytes);
        from[i] = in[i].data;
    }
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *d = wefti_out(n, o);
        out->out[o] = memory_new(weft_desc_bytes(d), element(d));
        if (how.accumulate >> o & 1u)
            for (int64_t e = 0; e < weft_desc_elems(d); e++)
                wefti_store(d->dtype, out->out[o].data, e, before(o, e));
        int shared = updates ? o : how.in_place && o == 0 ? k->in_place : -1;
        if (shared >= 0) {
            memcpy(out->out[o].data, from[shared], out->out[o].bytes);
            from[shared] = out->out[o].data;
        }
        to[o] = out->out[o].data;
    }
    memory workspace = memory_new(k->workspace_bytes, 64);
    weft_status status = k->run(k, &run, from, to, workspace.data);
    runs++;
    if (status < 0) complain(s->setup, how.name, "%s: %s", k->label, weft_error_message());
    for (int i = 0; i < n->inputs; i++) {
        if (!in[i].base) continue;
        if (!memory_whole(&in[i])) complain(s->setup, how.name, "wrote around input %d", i);
        if (in[i].bytes && memcmp(in[i].data, copy[i].data, in[i].bytes))
            complain(s->setup, how.name, "changed input %d", i);
        free(in[i].base);
        free(copy[i].base);
    }
    for (int o = 0; o < n->outputs; o++)
        if (!memory_whole(&out->out[o])) complain(s->setup, how.name, "wrote around output %d", o);
    if (!memory_whole(&workspace)) complain(s->setup, how.name, "wrote around its workspace");
    free(workspace.base);
    return failures == failed;
}

static void compare(const subject *s, const result *r, manner how) {
    const weft_node *n = s->node;
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *d = wefti_out(n, o);
        const bound *b = bound_of(n->op->name);
        bool exact = b->kind == EXACT && !(how.accumulate >> o & 1u);
        for (int64_t e = 0; e < weft_desc_elems(d); e++) {
            double got = wefti_load(d->dtype, r->out[o].data, e), want = s->want[o][e];
            _Alignas(8) unsigned char bits[8];
            double margin = s->margin[o][e];
            /* TERMS: each weight is rounded to bf16, half a unit is 2^-8. SCALE: so are the
             * operands of a whole chain of products. */
            if (how.native)
                margin *= 1.0 + (b->kind == TERMS ? 0x1p-8 : 0x1p-5) / (b->factor * unit(WEFT_F32));
            if (how.accumulate >> o & 1u) {
                want += before(o, e);
                margin += unit(d->dtype) * (fabs(before(o, e)) + fabs(want));
            }
            wefti_store(d->dtype, bits, 0, want);
            double rounded = wefti_load(d->dtype, bits, 0);
            if (isnan(want) ? isnan(got) : got == rounded) continue;
            margin += storing(d->dtype) * (fabs(want) + margin);
            if (!exact && fabs(got - want) <= margin) continue;
            complain(s->setup, how.name, "output %d is %.9g at %lld, not %.9g within %.3g", o, got,
                     (long long)e, want, exact ? 0.0 : margin);
            break;
        }
    }
}

static void same_bits(const subject *s, const result *a, const result *b, const char *how) {
    for (int o = 0; o < s->node->outputs; o++)
        if (a->out[o].bytes && memcmp(a->out[o].data, b->out[o].data, a->out[o].bytes))
            complain(s->setup, how, "output %d has other bits", o);
}

/* The estimate says of the kernel what the prepared kernel says of itself. */
static void check_estimate(const subject *s, const wefti_backend *backend,
                           const wefti_prepare *options, weft_status prepared,
                           const wefti_kernel *k) {
    wefti_estimate e;
    weft_status status = wefti_backend_estimate(backend, s->node, options, &e);
    if (status != prepared) {
        complain(s->setup, "estimate", "status %d, of prepare %d", status, prepared);
        return;
    }
    if (status < 0) return;
    if (e.workspace_bytes != k->workspace_bytes)
        complain(s->setup, "estimate", "%lld bytes of workspace, the kernel has %lld",
                 (long long)e.workspace_bytes, (long long)k->workspace_bytes);
    if (e.in_place != k->in_place || strcmp(e.label, k->label) != 0)
        complain(s->setup, "estimate", "%s in place of %d, the kernel is %s in place of %d",
                 e.label, e.in_place, k->label, k->in_place);
}

static weft_status prepare(const subject *s, manner how, wefti_kernel **out) {
    wefti_prepare options = {.threads = how.threads,
                             .accumulate = how.accumulate,
                             .bf16 = how.native ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32};
    weft_status status = wefti_backend_cpu.prepare(&wefti_backend_cpu, s->node, &options, out);
    check_estimate(s, &wefti_backend_cpu, &options, status, status < 0 ? NULL : *out);
    return status;
}

static bool check_kernel(const subject *s, const wefti_kernel *k) {
    const weft_node *n = s->node;
    int failed = failures;
    if (!k->label || k->workspace_bytes < 0 || k->in_place >= n->inputs)
        complain(s->setup, "prepare", "label, workspace or operand numbers are wrong");
    if (k->in_place >= 0 &&
        (!wefti_in(n, k->in_place) ||
         weft_desc_bytes(wefti_in(n, k->in_place)) != weft_desc_bytes(wefti_out(n, 0))))
        complain(s->setup, "prepare", "in place of an input of another size");
    return failures == failed;
}

/* Every thread count: right, and the same bits. False when the backend leaves it to others. */
static bool threads_agree(const subject *s, manner how) {
    result first = {0};
    for (how.threads = 1; how.threads <= THREADS; how.threads++) {
        wefti_kernel *k;
        weft_status status = prepare(s, how, &k);
        if (status < 0) {
            if (status != WEFT_E_NO_IMPL)
                complain(s->setup, how.name, "prepare: %s", weft_error_message());
            result_free(&first);
            return status != WEFT_E_NO_IMPL;
        }
        result r = {0};
        if (check_kernel(s, k) && (!how.in_place || k->in_place >= 0) &&
            run_kernel(s, k, how, &r)) {
            if (how.threads == 1) {
                compare(s, &r, how);
                first = r;
                r = (result){0};
            } else if (first.out[0].base) {
                same_bits(s, &first, &r, how.threads == 2 ? "2 threads" : "3 threads");
            }
        }
        result_free(&r);
        wefti_kernel_destroy(k);
    }
    result_free(&first);
    return true;
}

static bool has_products(const weft_node *n) {
    static const char *const ops[] = {"linear*", "matmul", "conv*"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (name_fits(ops[i], n->op->name)) return true;
    return false;
}

/* All that the backend offers for a node; false when it leaves it to the reference. */
static bool check_subject(const subject *s) {
    const weft_node *n = s->node;
    if (!threads_agree(s, (manner){.name = "run"})) return false;
    threads_agree(s, (manner){.name = "in place", .in_place = true});
    if (has_products(n)) {
        threads_agree(s, (manner){.name = "native", .native = true});
        threads_agree(s, (manner){.name = "native adding",
                                  .native = true,
                                  .accumulate = 1u << (n->outputs - 1)});
    }
    if (n->op->flags & WEFTI_OP_IN_PLACE) return true;
    for (uint32_t mask = 1; mask < 1u << n->outputs && mask < 16; mask++)
        threads_agree(s, (manner){.name = "adding", .accumulate = mask});
    return true;
}

/* ---- the reference backend: guards, and the rounding of what the op's reference says ---- */

static void check_reference(const subject *s) {
    wefti_kernel *k;
    wefti_prepare options = {.threads = 1};
    manner how = {.name = "reference backend", .threads = 1};
    if (wefti_backend_reference.prepare(&wefti_backend_reference, s->node, &options, &k) < 0) {
        complain(s->setup, how.name, "refuses: %s", weft_error_message());
        return;
    }
    check_estimate(s, &wefti_backend_reference, &options, WEFT_OK, k);
    result r = {0};
    if (run_kernel(s, k, how, &r))
        for (int o = 0; o < s->node->outputs; o++) {
            const weft_desc *d = wefti_out(s->node, o);
            memory want = memory_new(weft_desc_bytes(d), element(d));
            wefti_convert(d->dtype, want.data, WEFT_F64, s->want[o], weft_desc_elems(d));
            if (want.bytes && memcmp(want.data, r.out[o].data, want.bytes))
                complain(s->setup, how.name, "output %d is not the rounded reference", o);
            free(want.base);
        }
    result_free(&r);
    wefti_kernel_destroy(k);
    options.accumulate = 1;
    if (wefti_backend_reference.prepare(&wefti_backend_reference, s->node, &options, &k) !=
        WEFT_E_NO_IMPL)
        complain(s->setup, how.name, "says that it can add");
}

static int open_pools(void **state) {
    (void)state;
    for (int t = 0; t < THREADS; t++)
        if (wefti_pool_create(t + 1, &pools[t]) < 0) return -1;
    return 0;
}
static int close_pools(void **state) {
    (void)state;
    for (int t = 0; t < THREADS; t++) wefti_pool_destroy(pools[t]);
    paths_print();
    return 0;
}

#endif
