/* Prepares and destroys a convolution by oneDNN: see conv.h. */
#include "backend/cpu/conv/conv.h"

#ifdef WEFT_HAVE_ONEDNN

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/conv/onednn_state.h"
#include "base/memory.h"

enum { MAX_PIECES = 16 }; /* of the batch */

static dnnl_status_t make_memory(const wefti_onednn_conv *c, const wefti_md *md,
                                 dnnl_memory_t *out) {
    return dnnl_memory_create(out, wefti_md_of(md), c->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t make_slot(wefti_onednn_conv *c, const wefti_onednn_unit *u,
                               wefti_onednn_slot *t) {
    dnnl_status_t s = make_memory(c, &u->x.outer, &t->x_outer);
    if (s == dnnl_success) s = make_memory(c, &u->x.inner, &t->x_inner);
    if (s == dnnl_success) s = make_memory(c, &u->y.outer, &t->y_outer);
    if (s == dnnl_success) s = make_memory(c, &u->y.inner, &t->y_inner);
    if (s == dnnl_success) s = make_memory(c, &u->w, &t->w);
    if (s == dnnl_success && c->conv.has_bias) s = make_memory(c, &u->bias, &t->bias);
    if (s == dnnl_success) s = make_memory(c, &u->scratch, &t->scratch);
    return s;
}

/* Images of a piece. There are few pieces if each one writes a sum of all weights or reads large
 * weights. */
static int64_t piece_images(const wefti_conv *p) {
    int64_t w_bytes = p->out * (p->in / p->groups) * wefti_conv_plane(p->k) * 4;
    int64_t pieces = MAX_PIECES;
    if (p->kind == WEFTI_CONV_GRAD_WEIGHT)
        while (pieces > 4 && pieces * w_bytes > 4 << 20) pieces /= 2;
    else if (w_bytes > 1 << 20)
        pieces = 8;
    return (p->batch + pieces - 1) / pieces;
}

static dnnl_status_t make_all(wefti_onednn_conv *c) {
    dnnl_status_t s = dnnl_engine_create(&c->engine, dnnl_cpu, 0);
    if (s == dnnl_success) s = dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags);
    int64_t tail = c->conv.batch % c->images;
    c->units[0].images = c->images;
    c->units[1].images = tail;
    if (s == dnnl_success) s = wefti_onednn_make_unit(c, &c->units[0], NULL);
    if (s == dnnl_success && tail) s = wefti_onednn_make_unit(c, &c->units[1], &c->units[0].w);
    if (s == dnnl_success) s = wefti_onednn_make_parts(c);
    for (int t = 0; t < c->threads && !c->dry; t++)
        for (int u = 0; u < 2 && s == dnnl_success; u++)
            if (c->units[u].images) s = make_slot(c, &c->units[u], &c->slots[t * 2 + u]);
    for (int u = 0; u < 2; u++) {
        const wefti_onednn_unit *v = &c->units[u];
        int64_t bytes = v->x.inner_bytes + v->y.inner_bytes + v->scratch_bytes;
        if (v->images && bytes > c->thread_bytes) c->thread_bytes = bytes;
    }
    return s;
}

/* oneDNN uses the instructions that it finds, or those that it is told to use before it makes its
 * first primitive in this process. It ignores later calls. */
static void heed_isa(void) {
    static const struct {
        const char *name;
        dnnl_cpu_isa_t most;
    } forms[] = {{"plain", dnnl_cpu_isa_sse41},
                 {"avx2", dnnl_cpu_isa_avx2},
                 {"avx512", dnnl_cpu_isa_avx512_core},
                 {"avx512_bf16", dnnl_cpu_isa_avx512_core_bf16}};
    const char *wanted = getenv("WEFT_ISA");
    for (size_t f = 0; wanted && f < sizeof forms / sizeof *forms; f++)
        if (strcmp(wanted, forms[f].name) == 0) (void)dnnl_set_max_cpu_isa(forms[f].most);
}

weft_status wefti_onednn_conv_create(const wefti_conv *p, int threads, bool dry,
                                     wefti_onednn_conv **out) {
    wefti_onednn_conv *c;
    if (p->batch == 0 || !wefti_onednn_usable()) return WEFT_E_NO_IMPL;
    heed_isa();
    if (p->kind == WEFTI_CONV_GRAD_WEIGHT && p->w_dtype != WEFT_F32) return WEFT_E_NO_IMPL;
    WEFT_NEW(c, wefti_onednn_conv);
    c->conv = *p;
    c->threads = threads;
    c->dry = dry;
    c->images = piece_images(p);
    c->pieces = (p->batch + c->images - 1) / c->images;
    c->slots = wefti_calloc((size_t)threads * 2, sizeof *c->slots);
    if (!c->slots) {
        wefti_onednn_conv_destroy(c);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a convolution");
    }
    int before = wefti_onednn_alone();
    dnnl_status_t s = make_all(c);
    wefti_onednn_restore(before);
    if (s != dnnl_success) {
        wefti_onednn_conv_destroy(c);
        WEFT_REQUIRE(s != dnnl_out_of_memory, WEFT_E_NOMEM, "oneDNN has no memory");
        return WEFT_E_NO_IMPL;
    }
    *out = c;
    return WEFT_OK;
}

static void destroy_primitive(dnnl_primitive_t p) {
    if (p) (void)dnnl_primitive_destroy(p);
}
static void destroy_memory(dnnl_memory_t m) {
    if (m) (void)dnnl_memory_destroy(m);
}

void wefti_onednn_conv_destroy(wefti_onednn_conv *c) {
    if (!c) return;
    for (int t = 0; c->slots && t < c->threads * 2; t++) {
        wefti_onednn_slot *s = &c->slots[t];
        dnnl_memory_t all[] = {s->x_outer, s->x_inner, s->y_outer, s->y_inner,
                               s->w,       s->bias,    s->scratch};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) destroy_memory(all[i]);
    }
    for (int i = 0; i < c->part_count; i++) {
        wefti_onednn_part *p = &c->parts[i];
        destroy_primitive(p->reorder);
        destroy_memory(p->from);
        destroy_memory(p->to);
        wefti_md_free(&p->outer);
        wefti_md_free(&p->inner);
    }
    for (int i = 0; i < 2; i++) {
        wefti_onednn_unit *u = &c->units[i];
        destroy_primitive(u->conv);
        destroy_primitive(u->x.reorder);
        destroy_primitive(u->y.reorder);
        wefti_md *all[] = {&u->x.outer, &u->x.inner, &u->y.outer, &u->y.inner,
                           &u->w,       &u->bias,    &u->scratch};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) wefti_md_free(all[k]);
    }
    if (c->stream) (void)dnnl_stream_destroy(c->stream);
    if (c->engine) (void)dnnl_engine_destroy(c->engine);
    wefti_free(c->slots);
    wefti_free(c);
}

/* Number of copies of the weights in the workspace. A weight gradient has one copy for each piece,
 * except that the first piece writes the caller's memory if the kernel can. */
int64_t wefti_onednn_weight_copies(const wefti_onednn_conv *c) {
    if (c->conv.kind == WEFTI_CONV_GRAD_WEIGHT) return c->part_count ? c->pieces : c->pieces - 1;
    return c->part_count ? 1 : 0;
}

int64_t wefti_onednn_conv_bytes(const wefti_onednn_conv *c) {
    return c ? (int64_t)(sizeof *c + (size_t)c->threads * 2 * sizeof *c->slots) : 0;
}

int64_t wefti_onednn_conv_workspace_bytes(const wefti_onednn_conv *c) {
    return wefti_onednn_weight_copies(c) * c->w_bytes + c->threads * c->thread_bytes;
}

#else

weft_status wefti_onednn_conv_create(const wefti_conv *p, int threads, bool dry,
                                     wefti_onednn_conv **out) {
    (void)p;
    (void)threads;
    (void)dry;
    (void)out;
    return WEFT_E_NO_IMPL;
}
void wefti_onednn_conv_destroy(wefti_onednn_conv *c) {
    (void)c;
}
int64_t wefti_onednn_conv_bytes(const wefti_onednn_conv *c) {
    (void)c;
    return 0;
}

int64_t wefti_onednn_conv_workspace_bytes(const wefti_onednn_conv *c) {
    (void)c;
    return 0;
}
weft_status wefti_onednn_conv_run(const wefti_onednn_conv *c, const wefti_conv_args *args,
                                  void *workspace, wefti_pool *pool) {
    (void)c;
    (void)args;
    (void)workspace;
    (void)pool;
    return WEFT_E_NO_IMPL;
}

#endif
