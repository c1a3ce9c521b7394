/* Convolution by oneDNN: see conv.h. */
#include "backend/cpu/conv/conv.h"

#ifdef WEFT_HAVE_ONEDNN

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/conv/onednn.h"
#include "base/memory.h"
#include "tensor/tensor.h"

enum {
    MAX_PIECES = 16,        /* of the batch */
    MAX_PARTS = 8,          /* of the weights */
    PART_BYTES = 256 << 10, /* weights with fewer bytes are one part */
    SUM_BLOCK = 16384,      /* floats that one task of the reduction sums */
    MAX_RANK = 6
};

/* One operand in the caller's layout and in the kernel's. `reorder` converts one to the other; NULL
 * if both are the same. */
typedef struct operand {
    wefti_md outer, inner;
    dnnl_primitive_t reorder;
    int64_t inner_bytes;
} operand;

/* The primitives for pieces of one size. */
typedef struct unit {
    int64_t images;
    operand x, y;
    wefti_md w, bias, scratch;
    int64_t scratch_bytes;
    dnnl_primitive_t conv;
} unit;

/* Memory objects of one thread for one unit. */
typedef struct slot {
    dnnl_memory_t x_outer, x_inner, y_outer, y_inner, w, bias, scratch;
} slot;

/* A range of output channels of the weights. */
typedef struct part {
    dnnl_primitive_t reorder;
    wefti_md outer, inner;
    dnnl_memory_t from, to;
} part;

struct wefti_onednn_conv {
    wefti_conv conv;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    unit units[2]; /* for a whole piece; for the shorter last one */
    slot *slots;   /* [threads][2] */
    part parts[MAX_PARTS];
    int part_count; /* 0: the kernel takes the weights as they are */
    int threads;
    bool dry; /* only sizes: descriptors, no primitives */
    int64_t pieces, images, w_bytes;
    /* bytes of x and y in the kernel's layout, and of the kernel's scratchpad */
    int64_t thread_bytes;
};

static int64_t rounded(size_t bytes) {
    return ((int64_t)bytes + 63) & ~(int64_t)63;
}

/* ---- descriptors ---- */

static dnnl_status_t activation(const wefti_conv *p, bool is_x, int64_t images,
                                dnnl_data_type_t type, bool any, wefti_md *out) {
    dnnl_dims_t dims = {images, is_x ? p->in : p->out};
    const int64_t *size = is_x ? p->x : p->y;
    int rank = p->spatial + 2;
    for (int s = 0; s < p->spatial; s++) dims[2 + s] = size[WEFTI_CONV_SPATIAL - p->spatial + s];
    dnnl_format_tag_t tag = p->spatial == 2 ? dnnl_abcd : dnnl_abcde;
    if (any) tag = dnnl_format_tag_any;
    return wefti_md_tag(out, rank, dims, type, tag);
}

/* [out, in / groups, k...], or [groups, out / groups, in / groups, k...]; row-major or free. */
static dnnl_status_t weight(const wefti_conv *p, dnnl_data_type_t type, bool any, wefti_md *out) {
    dnnl_dims_t dims, strides;
    int rank = 0;
    if (p->groups > 1) dims[rank++] = p->groups;
    dims[rank++] = p->out / p->groups;
    dims[rank++] = p->in / p->groups;
    for (int s = 0; s < p->spatial; s++) dims[rank++] = p->k[WEFTI_CONV_SPATIAL - p->spatial + s];
    if (any) return wefti_md_tag(out, rank, dims, type, dnnl_format_tag_any);
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; d--) {
        strides[d] = step;
        step *= dims[d];
    }
    return wefti_md_strides(out, rank, dims, type, strides);
}

static dnnl_status_t user_attr(dnnl_primitive_attr_t *out) {
    dnnl_status_t s = dnnl_primitive_attr_create(out);
    if (s != dnnl_success) return s;
    s = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (s != dnnl_success) (void)dnnl_primitive_attr_destroy(*out);
    return s;
}

/* Makes a reorder add to its result. */
static dnnl_status_t set_adding(dnnl_primitive_attr_t attr) {
    dnnl_post_ops_t ops;
    dnnl_status_t s = dnnl_post_ops_create(&ops);
    if (s != dnnl_success) return s;
#if DNNL_VERSION_MAJOR >= 3
    s = dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
#else
    s = dnnl_post_ops_append_sum(ops, 1.0f);
#endif
    if (s == dnnl_success) s = dnnl_primitive_attr_set_post_ops(attr, ops);
    (void)dnnl_post_ops_destroy(ops);
    return s;
}

/* ---- the convolution's primitive ---- */

typedef struct shape {
    dnnl_dims_t stride, dilation, padding;
    const wefti_md *x, *w, *bias, *y;
} shape;

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const shape *s,
                              wefti_conv_kind kind, dnnl_primitive_attr_t attr,
                              const_dnnl_primitive_desc_t hint) {
    wefti_md_ref x = wefti_md_of(s->x), w = wefti_md_of(s->w), y = wefti_md_of(s->y);
    wefti_md_ref bias = s->bias ? wefti_md_of(s->bias) : NULL;
    switch (kind) {
    case WEFTI_CONV_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(
            out, engine, dnnl_forward_training, dnnl_convolution_direct, x, w, bias, y, s->stride,
            s->dilation, s->padding, s->padding, attr);
    case WEFTI_CONV_GRAD_INPUT:
        return dnnl_convolution_backward_data_primitive_desc_create(
            out, engine, dnnl_convolution_direct, x, w, y, s->stride, s->dilation, s->padding,
            s->padding, hint, attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            out, engine, dnnl_convolution_direct, x, w, NULL, y, s->stride, s->dilation, s->padding,
            s->padding, hint, attr);
    }
}
#else
static dnnl_status_t describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const shape *s,
                              wefti_conv_kind kind, dnnl_primitive_attr_t attr,
                              const_dnnl_primitive_desc_t hint) {
    dnnl_convolution_desc_t d;
    dnnl_status_t status;
    switch (kind) {
    case WEFTI_CONV_FORWARD:
        status = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_training, dnnl_convolution_direct, s->x, s->w, s->bias, s->y,
            s->stride, s->dilation, s->padding, s->padding);
        break;
    case WEFTI_CONV_GRAD_INPUT:
        status = dnnl_dilated_convolution_backward_data_desc_init(
            &d, dnnl_convolution_direct, s->x, s->w, s->y, s->stride, s->dilation, s->padding,
            s->padding);
        break;
    default:
        status = dnnl_dilated_convolution_backward_weights_desc_init(
            &d, dnnl_convolution_direct, s->x, s->w, NULL, s->y, s->stride, s->dilation, s->padding,
            s->padding);
        break;
    }
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(out, &d, attr, engine, hint);
}
#endif

/* oneDNN also has slow plain loops, for problems without an optimized kernel. */
static bool is_slow(const_dnnl_primitive_desc_t pd) {
    const char *name = "";
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) != dnnl_success)
        return true;
    return strncmp(name, "ref", 3) == 0 || strncmp(name, "gemm", 4) == 0;
}

static dnnl_status_t take(wefti_md *out, const_dnnl_primitive_desc_t pd, dnnl_query_t what) {
    wefti_md_ref md = dnnl_primitive_desc_query_md(pd, what, 0);
    if (!md) return dnnl_invalid_arguments;
    wefti_md_free(out);
    return wefti_md_copy(out, md);
}

static dnnl_status_t take_layouts(unit *u, const_dnnl_primitive_desc_t pd, wefti_conv_kind kind) {
    bool gx = kind == WEFTI_CONV_GRAD_INPUT, gw = kind == WEFTI_CONV_GRAD_WEIGHT;
    dnnl_status_t s;
    s = take(&u->x.inner, pd, gx ? dnnl_query_diff_src_md : dnnl_query_src_md);
    if (s == dnnl_success)
        s = take(&u->w, pd, gw ? dnnl_query_diff_weights_md : dnnl_query_weights_md);
    if (s == dnnl_success)
        s = take(&u->y.inner, pd,
                 kind == WEFTI_CONV_FORWARD ? dnnl_query_dst_md : dnnl_query_diff_dst_md);
    if (s == dnnl_success) s = take(&u->scratch, pd, dnnl_query_scratchpad_md);
    return s;
}

/* Fills u->conv and the inner layouts that `any` left open. `w` fixes the layout of the weights. */
static dnnl_status_t make_conv(wefti_onednn_conv *c, unit *u, dnnl_data_type_t type,
                               const wefti_md *fixed_w) {
    const wefti_conv *p = &c->conv;
    bool gw = p->kind == WEFTI_CONV_GRAD_WEIGHT;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    shape s = {.x = &u->x.inner, .w = &u->w, .y = &u->y.inner};
    for (int d = 0; d < p->spatial; d++) {
        int from = WEFTI_CONV_SPATIAL - p->spatial + d;
        s.stride[d] = p->stride[from];
        s.padding[d] = p->padding[from];
        s.dilation[d] = p->dilation[from] - 1;
    }
    dnnl_status_t status = activation(p, true, u->images, type, true, &u->x.inner);
    if (status == dnnl_success) status = activation(p, false, u->images, type, true, &u->y.inner);
    if (status == dnnl_success)
        status = fixed_w ? wefti_md_copy(&u->w, wefti_md_of(fixed_w))
                         : weight(p, gw ? dnnl_f32 : type, true, &u->w);
    if (status == dnnl_success && p->has_bias) {
        status = wefti_md_tag(&u->bias, 1, (dnnl_dims_t){p->out}, dnnl_f32, dnnl_a);
        s.bias = &u->bias;
    }
    if (status == dnnl_success) status = user_attr(&attr);
    if (status == dnnl_success && p->kind != WEFTI_CONV_FORWARD) {
        shape f = s;
        wefti_md w = {0};
        f.w = &w;
        status = weight(p, type, true, &w);
        if (status == dnnl_success)
            status = describe(&hint, c->engine, &f, WEFTI_CONV_FORWARD, NULL, NULL);
        wefti_md_free(&w);
    }
    if (status == dnnl_success) status = describe(&pd, c->engine, &s, p->kind, attr, hint);
    if (status == dnnl_success && is_slow(pd)) status = dnnl_unimplemented;
    if (status == dnnl_success) status = take_layouts(u, pd, p->kind);
    if (status == dnnl_success && !c->dry) status = dnnl_primitive_create(&u->conv, pd);
    if (pd) (void)dnnl_primitive_desc_destroy(pd);
    if (hint) (void)dnnl_primitive_desc_destroy(hint);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    u->scratch_bytes = rounded(dnnl_memory_desc_get_size(wefti_md_of(&u->scratch)));
    return status;
}

static dnnl_status_t make_reorder(const wefti_onednn_conv *c, const wefti_md *from,
                                  const wefti_md *to, bool add, dnnl_primitive_t *out) {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attr;
    dnnl_status_t status = user_attr(&attr);
    if (status != dnnl_success) return status;
    if (add) status = set_adding(attr);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&pd, wefti_md_of(from), c->engine,
                                                    wefti_md_of(to), c->engine, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) return status;
    wefti_md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (scratch && dnnl_memory_desc_get_size(scratch) > 0)
        status = dnnl_unimplemented; /* these plain layouts need no scratchpad */
    if (status == dnnl_success && !c->dry) status = dnnl_primitive_create(out, pd);
    (void)dnnl_primitive_desc_destroy(pd);
    return status;
}

static dnnl_status_t make_operand(const wefti_onednn_conv *c, operand *o, bool is_result) {
    o->inner_bytes = 0;
    if (dnnl_memory_desc_equal(wefti_md_of(&o->outer), wefti_md_of(&o->inner))) return dnnl_success;
    o->inner_bytes = rounded(dnnl_memory_desc_get_size(wefti_md_of(&o->inner)));
    return is_result ? make_reorder(c, &o->inner, &o->outer, false, &o->reorder)
                     : make_reorder(c, &o->outer, &o->inner, false, &o->reorder);
}

static dnnl_status_t make_unit(wefti_onednn_conv *c, unit *u, const wefti_md *fixed_w) {
    const wefti_conv *p = &c->conv;
    bool bf16 = p->native_bf16 && p->x_dtype == WEFT_BF16 && p->y_dtype == WEFT_BF16 &&
                (p->w_dtype == WEFT_BF16 || p->kind == WEFTI_CONV_GRAD_WEIGHT);
    dnnl_status_t s = make_conv(c, u, bf16 ? dnnl_bf16 : dnnl_f32, fixed_w);
    if (s == dnnl_success)
        s = activation(p, true, u->images, wefti_onednn_dtype(p->x_dtype), false, &u->x.outer);
    if (s == dnnl_success)
        s = activation(p, false, u->images, wefti_onednn_dtype(p->y_dtype), false, &u->y.outer);
    if (s == dnnl_success) s = make_operand(c, &u->x, p->kind == WEFTI_CONV_GRAD_INPUT);
    if (s == dnnl_success) s = make_operand(c, &u->y, p->kind == WEFTI_CONV_FORWARD);
    return s;
}

/* ---- weights ---- */

static dnnl_status_t make_part(wefti_onednn_conv *c, const wefti_md *outer, const wefti_md *inner,
                               const dnnl_dims_t dims, int64_t begin, part *out) {
    dnnl_dims_t offsets = {begin};
    bool back = c->conv.kind == WEFTI_CONV_GRAD_WEIGHT;
    dnnl_status_t s = wefti_md_part(&out->outer, wefti_md_of(outer), dims, offsets);
    if (s == dnnl_success) s = wefti_md_part(&out->inner, wefti_md_of(inner), dims, offsets);
    wefti_md *from = back ? &out->inner : &out->outer, *to = back ? &out->outer : &out->inner;
    if (s == dnnl_success) s = make_reorder(c, from, to, c->conv.accumulate, &out->reorder);
    if (s == dnnl_success)
        s = dnnl_memory_create(&out->from, wefti_md_of(from), c->engine, DNNL_MEMORY_NONE);
    if (s == dnnl_success)
        s = dnnl_memory_create(&out->to, wefti_md_of(to), c->engine, DNNL_MEMORY_NONE);
    return s;
}

static dnnl_status_t make_parts(wefti_onednn_conv *c) {
    const wefti_conv *p = &c->conv;
    wefti_md outer = {0};
    const wefti_md *inner = &c->units[0].w;
    dnnl_status_t s = weight(p, wefti_onednn_dtype(p->w_dtype), false, &outer);
    if (s != dnnl_success) return s;
    size_t bytes = dnnl_memory_desc_get_size(wefti_md_of(inner));
    c->w_bytes = rounded(bytes);
    if (!dnnl_memory_desc_equal(wefti_md_of(&outer), wefti_md_of(inner))) {
        dnnl_dims_t dims;
        int rank = 0;
        if (p->groups > 1) dims[rank++] = p->groups;
        dims[rank++] = p->out / p->groups;
        dims[rank++] = p->in / p->groups;
        for (int d = 0; d < p->spatial; d++)
            dims[rank++] = p->k[WEFTI_CONV_SPATIAL - p->spatial + d];
        int64_t rows = dims[0], count = MAX_PARTS;
        while (count > 1 && (bytes < PART_BYTES || rows % (count * 16))) count /= 2;
        dims[0] = rows / count;
        for (int64_t i = 0; i < count && s == dnnl_success; i++) {
            s = make_part(c, &outer, inner, dims, i * dims[0], &c->parts[i]);
            c->part_count = (int)i + 1;
        }
    }
    wefti_md_free(&outer);
    /* The reorder back to the caller's layout adds. Without a reorder, nothing can add. */
    if (s == dnnl_success && p->accumulate && c->part_count == 0) s = dnnl_unimplemented;
    return s;
}

/* ---- preparation ---- */

static dnnl_status_t make_memory(const wefti_onednn_conv *c, const wefti_md *md,
                                 dnnl_memory_t *out) {
    return dnnl_memory_create(out, wefti_md_of(md), c->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t make_slot(wefti_onednn_conv *c, const unit *u, slot *t) {
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
    if (s == dnnl_success) s = make_unit(c, &c->units[0], NULL);
    if (s == dnnl_success && tail) s = make_unit(c, &c->units[1], &c->units[0].w);
    if (s == dnnl_success) s = make_parts(c);
    for (int t = 0; t < c->threads && !c->dry; t++)
        for (int u = 0; u < 2 && s == dnnl_success; u++)
            if (c->units[u].images) s = make_slot(c, &c->units[u], &c->slots[t * 2 + u]);
    for (int u = 0; u < 2; u++) {
        const unit *v = &c->units[u];
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
        slot *s = &c->slots[t];
        dnnl_memory_t all[] = {s->x_outer, s->x_inner, s->y_outer, s->y_inner,
                               s->w,       s->bias,    s->scratch};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) destroy_memory(all[i]);
    }
    for (int i = 0; i < c->part_count; i++) {
        part *p = &c->parts[i];
        destroy_primitive(p->reorder);
        destroy_memory(p->from);
        destroy_memory(p->to);
        wefti_md_free(&p->outer);
        wefti_md_free(&p->inner);
    }
    for (int i = 0; i < 2; i++) {
        unit *u = &c->units[i];
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

/* ---- running ---- */

/* Number of copies of the weights in the workspace. A weight gradient has one copy for each piece,
 * except that the first piece writes the caller's memory if the kernel can. */
static int64_t weight_copies(const wefti_onednn_conv *c) {
    if (c->conv.kind == WEFTI_CONV_GRAD_WEIGHT) return c->part_count ? c->pieces : c->pieces - 1;
    return c->part_count ? 1 : 0;
}

int64_t wefti_onednn_conv_workspace_bytes(const wefti_onednn_conv *c) {
    return weight_copies(c) * c->w_bytes + c->threads * c->thread_bytes;
}

typedef struct conv_run {
    const wefti_onednn_conv *c;
    const wefti_conv_args *args;
    unsigned char *weights; /* workspace: weight_copies */
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
    const part *p = &r->c->parts[task];
    dnnl_status_t s = move(r->c, p->reorder, p->from, p->to);
    wefti_onednn_restore(before);
    if (s != dnnl_success) r->failed = (int)s;
}

/* Sets the addresses of a piece's x and y: in the kernel's layout or in the caller's memory. */
static dnnl_status_t place(const operand *o, dnnl_memory_t outer, dnnl_memory_t inner, void *user,
                           unsigned char **scratch) {
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
    const unit *u = &c->units[which];
    const slot *t = &c->slots[thread * 2 + which];
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
    r.threads = r.weights + weight_copies(c) * c->w_bytes;
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
