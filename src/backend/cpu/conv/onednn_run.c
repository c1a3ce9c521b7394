/* Runs a convolution by oneDNN. See onednn_state.h. */
#include "backend/cpu/conv/onednn_state.h"

#ifdef WEFT_HAVE_ONEDNN

#include <stdatomic.h>

#include "tensor/tensor.h"

enum { SUM_BLOCK = 16384 }; /* floats that one task of the reduction sums */

typedef struct conv_run {
    const wefti_onednn_conv *c;
    const wefti_conv_args *args;
    unsigned char *weights; /* the copies of the weights in the workspace */
    unsigned char *threads;
    _Atomic int failed; /* a dnnl_status_t */
} conv_run;

/* The address of the sum of piece k's weight gradients. */
static unsigned char *sum_of(const conv_run *r, int64_t piece) {
    const wefti_onednn_conv *c = r->c;
    if (c->part_count) return r->weights + piece * c->w_bytes;
    return piece ? r->weights + (piece - 1) * c->w_bytes : r->args->w;
}

static dnnl_status_t move(const wefti_onednn_conv *c, dnnl_primitive_t reorder, dnnl_memory_t from,
                          dnnl_memory_t to) {
    dnnl_exec_arg_t a[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return wefti_onednn_execute(reorder, c->stream, 2, a);
}

static void part_task(void *context, int64_t task, int thread) {
    conv_run *r = context;
    (void)thread;
    int before = wefti_onednn_alone();
    const wefti_onednn_part *p = &r->c->parts[task];
    dnnl_status_t s = move(r->c, p->reorder, p->from, p->to);
    wefti_onednn_restore(before);
    if (s != dnnl_success) r->failed = (int)s;
}

/* Sets the addresses of a piece's x and y: in the kernel's layout or in the caller's memory. */
static dnnl_status_t place(const wefti_onednn_operand *o, dnnl_memory_t outer, dnnl_memory_t inner,
                           void *user, unsigned char **scratch) {
    dnnl_status_t s = dnnl_memory_set_data_handle(o->reorder ? outer : inner, user);
    if (s != dnnl_success || !o->reorder) return s;
    s = dnnl_memory_set_data_handle(inner, *scratch);
    *scratch += o->inner_bytes;
    return s;
}

static dnnl_status_t run_piece(const conv_run *r, int64_t piece, int thread) {
    const wefti_onednn_conv *c = r->c;
    const wefti_conv *p = &c->conv;
    int64_t first = piece * c->images;
    int which = first + c->images > p->batch;
    const wefti_onednn_unit *u = &c->units[which];
    const wefti_onednn_slot *t = &c->slots[thread * 2 + which];
    unsigned char *scratch = r->threads + thread * c->thread_bytes;
    unsigned char *x = r->args->x, *y = r->args->y;
    x += first * p->in * wefti_conv_plane(p->x) * (int64_t)weft_dtype_bytes(p->x_dtype);
    y += first * p->out * wefti_conv_plane(p->y) * (int64_t)weft_dtype_bytes(p->y_dtype);
    bool gx = p->kind == WEFTI_CONV_GRAD_INPUT, gw = p->kind == WEFTI_CONV_GRAD_WEIGHT;
    bool gy = p->kind != WEFTI_CONV_FORWARD;
    dnnl_status_t s = place(&u->x, t->x_outer, t->x_inner, x, &scratch);
    if (s == dnnl_success) s = place(&u->y, t->y_outer, t->y_inner, y, &scratch);
    if (s == dnnl_success) s = dnnl_memory_set_data_handle(t->scratch, scratch);
    if (s == dnnl_success && gw) s = dnnl_memory_set_data_handle(t->w, sum_of(r, piece));
    if (s == dnnl_success && u->x.reorder && !gx) s = move(c, u->x.reorder, t->x_outer, t->x_inner);
    if (s == dnnl_success && u->y.reorder && gy) s = move(c, u->y.reorder, t->y_outer, t->y_inner);
    dnnl_exec_arg_t a[] = {{gx ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, t->x_inner},
                           {gw ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, t->w},
                           {gy ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, t->y_inner},
                           {DNNL_ARG_SCRATCHPAD, t->scratch},
                           {DNNL_ARG_BIAS, t->bias}};
    if (s == dnnl_success) s = wefti_onednn_execute(u->conv, c->stream, p->has_bias ? 5 : 4, a);
    if (s == dnnl_success && u->x.reorder && gx) s = move(c, u->x.reorder, t->x_inner, t->x_outer);
    if (s == dnnl_success && u->y.reorder && !gy) s = move(c, u->y.reorder, t->y_inner, t->y_outer);
    return s;
}

static void piece_task(void *context, int64_t task, int thread) {
    conv_run *r = context;
    int before = wefti_onednn_alone();
    dnnl_status_t s = run_piece(r, task, thread);
    wefti_onednn_restore(before);
    if (s != dnnl_success) r->failed = (int)s;
}

/* Adds the sums of all pieces to the first piece's sum, in order. */
static void sum_task(void *context, int64_t task, int thread) {
    const conv_run *r = context;
    (void)thread;
    int64_t count = r->c->w_bytes / 4, begin = task * SUM_BLOCK, end = begin + SUM_BLOCK;
    if (end > count) end = count;
    float *restrict to = (float *)(void *)sum_of(r, 0);
    if (!r->c->part_count) {
        const wefti_conv *p = &r->c->conv; /* the caller's memory has no padding at its end */
        int64_t exact = p->out * (p->in / p->groups) * wefti_conv_plane(p->k);
        if (end > exact) end = exact;
    }
    for (int64_t k = 1; k < r->c->pieces; k++) {
        const float *restrict from = (const float *)(const void *)sum_of(r, k);
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    }
}

static dnnl_status_t bind_weights(const wefti_onednn_conv *c, const conv_run *r) {
    bool gw = c->conv.kind == WEFTI_CONV_GRAD_WEIGHT;
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < c->part_count && s == dnnl_success; i++) {
        s = dnnl_memory_set_data_handle(c->parts[i].from, gw ? r->weights : r->args->w);
        if (s == dnnl_success)
            s = dnnl_memory_set_data_handle(c->parts[i].to, gw ? r->args->w : r->weights);
    }
    for (int t = 0; t < c->threads * 2 && s == dnnl_success; t++) {
        if (!c->slots[t].w) continue;
        if (!gw)
            s = dnnl_memory_set_data_handle(c->slots[t].w, c->part_count ? r->weights : r->args->w);
        if (s == dnnl_success && c->conv.has_bias)
            s = dnnl_memory_set_data_handle(c->slots[t].bias, (void *)(uintptr_t)r->args->bias);
    }
    return s;
}

weft_status wefti_onednn_conv_run(const wefti_onednn_conv *c, const wefti_conv_args *args,
                                  void *workspace, wefti_pool *pool) {
    conv_run r = {.c = c, .args = args, .weights = workspace};
    bool gw = c->conv.kind == WEFTI_CONV_GRAD_WEIGHT;
    r.threads = r.weights + wefti_onednn_weight_copies(c) * c->w_bytes;
    r.failed = (int)bind_weights(c, &r);
    if (!r.failed && !gw) wefti_pool_run(pool, c->part_count, part_task, &r);
    if (!r.failed) wefti_pool_run(pool, c->pieces, piece_task, &r);
    if (!r.failed && gw && c->pieces > 1)
        wefti_pool_run(pool, (c->w_bytes / 4 + SUM_BLOCK - 1) / SUM_BLOCK, sum_task, &r);
    if (!r.failed && gw) wefti_pool_run(pool, c->part_count, part_task, &r);
    WEFT_REQUIRE(!r.failed, WEFT_E_DEVICE, "oneDNN's convolution failed with status %d",
                 (int)r.failed);
    return WEFT_OK;
}

#endif
