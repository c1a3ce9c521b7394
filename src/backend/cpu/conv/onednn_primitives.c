/* oneDNN's descriptors and primitives of a convolution, and of the reorders around it. See
 * onednn_state.h. */
#include "backend/cpu/conv/onednn_state.h"

#ifdef WEFT_HAVE_ONEDNN

#include <string.h>

enum { PART_BYTES = 256 << 10 }; /* weights with fewer bytes are one part */

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

static dnnl_status_t take_layouts(wefti_onednn_unit *u, const_dnnl_primitive_desc_t pd,
                                  wefti_conv_kind kind) {
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
static dnnl_status_t make_conv(wefti_onednn_conv *c, wefti_onednn_unit *u, dnnl_data_type_t type,
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
    u->scratch_bytes = wefti_onednn_rounded(dnnl_memory_desc_get_size(wefti_md_of(&u->scratch)));
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

static dnnl_status_t make_operand(const wefti_onednn_conv *c, wefti_onednn_operand *o,
                                  bool is_result) {
    o->inner_bytes = 0;
    if (dnnl_memory_desc_equal(wefti_md_of(&o->outer), wefti_md_of(&o->inner))) return dnnl_success;
    o->inner_bytes = wefti_onednn_rounded(dnnl_memory_desc_get_size(wefti_md_of(&o->inner)));
    return is_result ? make_reorder(c, &o->inner, &o->outer, false, &o->reorder)
                     : make_reorder(c, &o->outer, &o->inner, false, &o->reorder);
}

dnnl_status_t wefti_onednn_make_unit(wefti_onednn_conv *c, wefti_onednn_unit *u,
                                     const wefti_md *fixed_w) {
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
                               const dnnl_dims_t dims, int64_t begin, wefti_onednn_part *out) {
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

dnnl_status_t wefti_onednn_make_parts(wefti_onednn_conv *c) {
    const wefti_conv *p = &c->conv;
    wefti_md outer = {0};
    const wefti_md *inner = &c->units[0].w;
    dnnl_status_t s = weight(p, wefti_onednn_dtype(p->w_dtype), false, &outer);
    if (s != dnnl_success) return s;
    size_t bytes = dnnl_memory_desc_get_size(wefti_md_of(inner));
    c->w_bytes = wefti_onednn_rounded(bytes);
    if (!dnnl_memory_desc_equal(wefti_md_of(&outer), wefti_md_of(inner))) {
        dnnl_dims_t dims;
        int rank = 0;
        if (p->groups > 1) dims[rank++] = p->groups;
        dims[rank++] = p->out / p->groups;
        dims[rank++] = p->in / p->groups;
        for (int d = 0; d < p->spatial; d++)
            dims[rank++] = p->k[WEFTI_CONV_SPATIAL - p->spatial + d];
        int64_t rows = dims[0], count = WEFTI_ONEDNN_PARTS;
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

#endif
