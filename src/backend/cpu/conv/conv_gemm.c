/* Convolution as a matrix product: see conv.h.
 *
 * For each group and chunk of images, the columns [in taps, pixels of y] hold the windows of x:
 *     y = w columns
 *     columns' gradient = w^T dy, folded
 *     dw += dy columns^T
 * Between the product and memory, y and dy of several images are kept as [out, pixels]. */
#include "backend/cpu/conv/conv.h"

#include "backend/cpu/kernels/kernels.h"
#include "base/memory.h"
#include "backend/cpu/gemm/gemm.h"
#include "base/number.h"

/* CHUNK_BYTES: most bytes of columns of one chunk. LARGE_PLANE: planes from this size on fill a
 * product with one image. NARROW: for planes below this width, columns run over images first. */
enum { CHUNK_BYTES = 16 << 20, LARGE_PLANE = 1024, NARROW = 16 };

struct wefti_conv_gemm {
    wefti_conv conv;
    const wefti_kernels *kernels;
    int64_t in, out, taps; /* channels of one group */
    int64_t images;        /* of a chunk */
    wefti_gemm product[2]; /* for a whole chunk; for the shorter last one */
    wefti_gemm adding[2];  /* the same products for weight gradients, added to the old value */
    bool images_inner;     /* order of the columns: wefti_unfold_args */
    bool direct;           /* the product reads or writes y's memory itself */
    int64_t columns_bytes, pixels_bytes, plane_bytes, product_bytes;
};

static wefti_gemm_spec product_spec(const wefti_conv_gemm *c, int64_t images) {
    const wefti_conv *p = &c->conv;
    int64_t plane = wefti_conv_plane(p->y), pixels = images * plane, k = c->in * c->taps;
    weft_dtype y = c->direct ? p->y_dtype : WEFT_F32;
    wefti_gemm_spec s;
    switch (p->kind) {
    case WEFTI_CONV_FORWARD:
        s = wefti_gemm_spec_of(y, c->out, pixels, k);
        s.a = wefti_gemm_rows(p->w_dtype, k);
        s.b = wefti_gemm_rows(WEFT_F32, pixels);
        return s;
    case WEFTI_CONV_GRAD_INPUT:
        s = wefti_gemm_spec_of(WEFT_F32, k, pixels, c->out);
        s.a = wefti_gemm_transposed(p->w_dtype, k);
        s.b = wefti_gemm_rows(y, pixels);
        return s;
    default:
        s = wefti_gemm_spec_of(p->w_dtype, c->out, k, pixels);
        s.a = wefti_gemm_rows(y, pixels);
        s.b = wefti_gemm_transposed(WEFT_F32, pixels);
        return s;
    }
}

static weft_status prepare_products(wefti_conv_gemm *c, int threads) {
    for (int t = 0; t < 2; t++) {
        int64_t images = t ? c->conv.batch % c->images : c->images;
        if (images == 0) continue;
        wefti_gemm_spec spec = product_spec(c, images);
        WEFT_TRY(wefti_gemm_prepare(&spec, c->conv.isa, &c->product[t]));
        spec.accumulate = true;
        WEFT_TRY(wefti_gemm_prepare(&spec, c->conv.isa, &c->adding[t]));
        int64_t bytes = wefti_gemm_workspace_bytes(&c->product[t], threads);
        int64_t more = wefti_gemm_workspace_bytes(&c->adding[t], threads);
        if (more > bytes) bytes = more;
        if (bytes > c->product_bytes) c->product_bytes = bytes;
    }
    return WEFT_OK;
}

weft_status wefti_conv_gemm_create(const wefti_conv *p, int threads, wefti_conv_gemm **out) {
    wefti_conv_gemm *c;
    weft_status status;
    if (p->batch == 0 || p->in == 0 || p->out == 0) return WEFT_E_NO_IMPL;
    WEFT_NEW(c, wefti_conv_gemm);
    c->conv = *p;
    c->kernels = wefti_kernels_best();
    c->in = p->in / p->groups;
    c->out = p->out / p->groups;
    c->taps = wefti_conv_plane(p->k);
    int64_t plane = wefti_conv_plane(p->y), image = c->in * c->taps * plane * 4;
    c->images = plane >= LARGE_PLANE ? 1 : CHUNK_BYTES / image;
    if (c->images > p->batch) c->images = p->batch;
    if (c->images < 1) c->images = 1;
    c->direct = c->images == 1 && !p->has_bias;
    c->images_inner = p->y[WEFTI_CONV_SPATIAL - 1] < NARROW && c->images >= NARROW / 2;
    /* Chunks of one weight gradient are added in its own dtype. */
    const bool sums = p->kind == WEFTI_CONV_GRAD_WEIGHT && p->w_dtype != WEFT_F32 && !p->sizes_only;
    status = sums ? WEFT_E_NO_IMPL : prepare_products(c, threads);
    if (status < 0) goto err;
    c->columns_bytes = wefti_aligned(c->images * image);
    if (!c->direct) c->pixels_bytes = wefti_aligned(c->images * plane * c->out * 4);
    int64_t in_plane = wefti_conv_plane(p->x);
    c->plane_bytes = wefti_aligned(threads * (in_plane > plane ? in_plane : plane) * c->images * 4);
    *out = c;
    return WEFT_OK;
err:
    wefti_conv_gemm_destroy(c);
    return status;
}

void wefti_conv_gemm_destroy(wefti_conv_gemm *c) {
    if (!c) return;
    wefti_free(c);
}

int64_t wefti_conv_gemm_bytes(const wefti_conv_gemm *c) {
    return c ? (int64_t)sizeof *c : 0;
}

int64_t wefti_conv_gemm_workspace_bytes(const wefti_conv_gemm *c) {
    return c->columns_bytes + c->pixels_bytes + c->plane_bytes + c->product_bytes;
}

static unsigned char *at(void *data, weft_dtype dtype, int64_t element) {
    return (unsigned char *)data + element * (int64_t)weft_dtype_bytes(dtype);
}

/* x's windows for images [first, first + images) in group g. */
static wefti_unfold_args windows(const wefti_conv_gemm *c, void *x, int64_t first, int64_t images,
                                 int64_t group) {
    const wefti_conv *p = &c->conv;
    int64_t plane = wefti_conv_plane(p->x);
    unsigned char *data = at(x, p->x_dtype, (first * p->in + group * c->in) * plane);
    wefti_unfold_args a = {.image = {data, p->x_dtype},
                           .result = {data, p->x_dtype},
                           .images = images,
                           .images_inner = c->images_inner,
                           .channels = c->in,
                           .image_stride = p->in * plane};
    for (int s = 0; s < WEFTI_CONV_SPATIAL; s++) {
        a.x[s] = p->x[s];
        a.k[s] = p->k[s];
        a.y[s] = p->y[s];
        a.stride[s] = p->stride[s];
        a.padding[s] = p->padding[s];
        a.dilation[s] = p->dilation[s];
    }
    return a;
}

/* y as [out, images * plane]: windows of one element. */
static wefti_unfold_args pixels(const wefti_conv_gemm *c, void *y, int64_t first, int64_t images,
                                int64_t group) {
    const wefti_conv *p = &c->conv;
    int64_t plane = wefti_conv_plane(p->y);
    unsigned char *data = at(y, p->y_dtype, (first * p->out + group * c->out) * plane);
    wefti_unfold_args a = {.image = {data, p->y_dtype},
                           .result = {data, p->y_dtype},
                           .images = images,
                           .images_inner = c->images_inner,
                           .channels = c->out,
                           .image_stride = p->out * plane};
    for (int s = 0; s < WEFTI_CONV_SPATIAL; s++) {
        a.x[s] = a.y[s] = s == WEFTI_CONV_SPATIAL - 1 ? plane : 1;
        a.k[s] = a.stride[s] = a.dilation[s] = 1;
    }
    return a;
}

typedef struct parts {
    float *columns, *pixels, *plane;
    void *product;
} parts;

static void run_chunk(const wefti_conv_gemm *c, const wefti_conv_args *args, const parts *w,
                      int64_t first, int64_t images, int64_t group, wefti_pool *pool) {
    const wefti_conv *p = &c->conv;
    bool tail = images != c->images;
    wefti_unfold_args x = windows(c, args->x, first, images, group);
    wefti_unfold_args y = pixels(c, args->y, first, images, group);
    unsigned char *weight = at(args->w, p->w_dtype, group * c->out * c->in * c->taps);
    float *in_pixels = c->direct ? y.result.data : w->pixels;
    x.columns = w->columns;
    y.columns = w->pixels;
    x.workspace = y.workspace = w->plane;
    const wefti_gemm *product = &c->product[tail];
    wefti_gemm_args g = {0};
    switch (p->kind) {
    case WEFTI_CONV_FORWARD:
        c->kernels->unfold(pool, &x);
        g = (wefti_gemm_args){.a = weight, .b = w->columns, .c = in_pixels};
        wefti_gemm_run(product, &g, w->product, pool);
        y.bias = args->bias ? args->bias + group * c->out : NULL;
        if (!c->direct) c->kernels->fold(pool, &y);
        break;
    case WEFTI_CONV_GRAD_INPUT:
        if (!c->direct) c->kernels->unfold(pool, &y);
        g = (wefti_gemm_args){.a = weight, .b = in_pixels, .c = w->columns};
        wefti_gemm_run(product, &g, w->product, pool);
        c->kernels->fold(pool, &x);
        break;
    case WEFTI_CONV_GRAD_WEIGHT:
        c->kernels->unfold(pool, &x);
        if (!c->direct) c->kernels->unfold(pool, &y);
        if (p->accumulate || first > 0) product = &c->adding[tail];
        g = (wefti_gemm_args){.a = in_pixels, .b = w->columns, .c = weight};
        wefti_gemm_run(product, &g, w->product, pool);
        break;
    }
}

void wefti_conv_gemm_run(const wefti_conv_gemm *c, const wefti_conv_args *args, void *workspace,
                         wefti_pool *pool) {
    unsigned char *next = workspace;
    parts w = {.columns = (float *)(void *)next};
    next += c->columns_bytes;
    w.pixels = (float *)(void *)next;
    next += c->pixels_bytes;
    w.plane = (float *)(void *)next;
    next += c->plane_bytes;
    w.product = next;
    for (int64_t first = 0; first < c->conv.batch; first += c->images) {
        int64_t left = c->conv.batch - first, images = left < c->images ? left : c->images;
        for (int64_t group = 0; group < c->conv.groups; group++)
            run_chunk(c, args, &w, first, images, group, pool);
    }
}
