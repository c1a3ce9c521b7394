/* See onednn_matmul.h. C is cut into slices; up to four shapes of slices occur (whole or last, in m
 * and in n), each with one primitive. oneDNN computes a slice into C itself, or, where C is strided
 * or has an epilogue, into the workspace, from which the epilogue of gemm_kernels.h takes it to C.
 */
#include "backend/cpu/onednn_matmul.h"

#include <string.h>

#include "backend/cpu/gemm_internal.h"
#include "backend/cpu/onednn.h"
#include "base/memory.h"

#ifdef WEFT_HAVE_ONEDNN

enum {
    M_SLICE = 256, /* with N_SLICE: 100 million products at k = 768, and B's slice in the
                      second-level cache */
    N_SLICE = 512,
    ALIGNMENT = 64,
    SHAPES = 2 /* whole and last slices, in each direction */
};

typedef struct part {
    dnnl_primitive_t multiply, pack;
    wefti_md a, b, b_packed, c, multiply_scratch, pack_scratch;
    bool used;
} part;

/* What one thread needs to run a part. */
typedef struct slot {
    dnnl_stream_t stream;
    dnnl_memory_t c[SHAPES][SHAPES], multiply_scratch[SHAPES][SHAPES], pack_scratch[SHAPES];
    weft_status status;
} slot;

struct wefti_onednn_matmul {
    wefti_gemm_spec spec;
    const wefti_gemm_kernels *kernels;
    bool direct; /* oneDNN writes C */
    int threads;
    int64_t m_slice, n_slice, m_slices, n_slices;
    int64_t slice_bytes;               /* of a whole packed slice of B */
    int64_t scratch_bytes, sums_bytes; /* of a thread */
    int64_t packed_bytes;
    dnnl_engine_t engine;
    part parts[SHAPES][SHAPES];
    slot *slots;                     /* [threads] */
    dnnl_memory_t *a, *b, *b_packed; /* [m_slices], [n_slices], [n_slices] */
    const wefti_gemm_args *args;     /* of the run in progress */
    char *workspace;
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}

static weft_status converted(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return WEFT_OK;
    WEFT_REQUIRE(status != dnnl_out_of_memory, WEFT_E_NOMEM, "oneDNN has no memory to %s", what);
    WEFT_REQUIRE(status != dnnl_unimplemented, WEFT_E_NO_IMPL, "oneDNN cannot %s", what);
    WEFT_FAIL(WEFT_E_DEVICE, "oneDNN failed to %s (status %d)", what, (int)status);
}
#define DNNL_TRY(call, what) WEFT_TRY(converted((call), (what)))

bool wefti_onednn_matmul_available(void) {
    return wefti_onednn_usable();
}

static int64_t rows_of(const wefti_onednn_matmul *w, int64_t slice) {
    return slice + 1 < w->m_slices ? w->m_slice : w->spec.m - slice * w->m_slice;
}
static int64_t columns_of(const wefti_onednn_matmul *w, int64_t slice) {
    return slice + 1 < w->n_slices ? w->n_slice : w->spec.n - slice * w->n_slice;
}
static int m_shape(const wefti_onednn_matmul *w, int64_t slice) {
    return slice + 1 == w->m_slices;
}
static int n_shape(const wefti_onednn_matmul *w, int64_t slice) {
    return slice + 1 == w->n_slices;
}

/* --- Creating
 * --------------------------------------------------------------------------------------------------
 */

static weft_status describe(wefti_md *out, int64_t rows, int64_t columns, weft_dtype dtype,
                            int64_t row_stride, int64_t column_stride) {
    /* The stride of a dimension of size 1 is never used, but oneDNN derives the order of dimensions
     * from it. */
    if (rows == 1) row_stride = column_stride == 1 ? columns : 1;
    if (columns == 1) column_stride = row_stride == 1 ? rows : 1;
    const dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    DNNL_TRY(wefti_md_strides(out, 2, dims, wefti_onednn_dtype(dtype), strides),
             "describe a matrix");
    return WEFT_OK;
}

static weft_status primitive_of(dnnl_primitive_desc_t pd, const char *what, wefti_md *out_scratch,
                                dnnl_primitive_t *out) {
    DNNL_TRY(
        wefti_md_copy(out_scratch, dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)),
        what);
    DNNL_TRY(dnnl_primitive_create(out, pd), what);
    return WEFT_OK;
}

static weft_status create_multiply(part *p, dnnl_engine_t engine, wefti_md_ref b_any,
                                   dnnl_primitive_attr_t attributes) {
    const char *what = "multiply these matrices";
    dnnl_primitive_desc_t pd = NULL;
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY(dnnl_matmul_primitive_desc_create(&pd, engine, p->a, b_any, NULL, p->c, attributes),
             what);
#else
    dnnl_matmul_desc_t desc;
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &p->a, b_any, NULL, &p->c), what);
    DNNL_TRY(dnnl_primitive_desc_create(&pd, &desc, attributes, engine, NULL), what);
#endif
    weft_status status = converted(
        wefti_md_copy(&p->b_packed, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)),
        what);
    if (status >= 0) status = primitive_of(pd, what, &p->multiply_scratch, &p->multiply);
    (void)dnnl_primitive_desc_destroy(pd);
    return status;
}

static weft_status create_pack(part *p, dnnl_engine_t engine, dnnl_primitive_attr_t attributes) {
    const char *what = "bring a matrix into its format";
    dnnl_primitive_desc_t pd = NULL;
    DNNL_TRY(dnnl_reorder_primitive_desc_create(&pd, wefti_md_of(&p->b), engine,
                                                wefti_md_of(&p->b_packed), engine, attributes),
             what);
    weft_status status = primitive_of(pd, what, &p->pack_scratch, &p->pack);
    (void)dnnl_primitive_desc_destroy(pd);
    return status;
}

static weft_status create_part(wefti_onednn_matmul *w, int64_t rows, int64_t columns,
                               dnnl_primitive_attr_t attributes, part *p) {
    const wefti_gemm_spec *s = &w->spec;
    const dnnl_dims_t b_dims = {s->k, columns};
    wefti_md any = {0};
    p->used = true;
    WEFT_TRY(describe(&p->a, rows, s->k, s->a.dtype, s->a.row_stride, s->a.column_stride));
    WEFT_TRY(describe(&p->b, s->k, columns, s->b.dtype, s->b.row_stride, s->b.column_stride));
    if (w->direct)
        WEFT_TRY(describe(&p->c, rows, columns, s->c.dtype, columns, 1));
    else
        WEFT_TRY(describe(&p->c, rows, columns, WEFT_F32, columns, 1));
    DNNL_TRY(wefti_md_tag(&any, 2, b_dims, wefti_onednn_dtype(s->b.dtype), dnnl_format_tag_any),
             "describe a matrix");
    weft_status status = create_multiply(p, w->engine, wefti_md_of(&any), attributes);
    wefti_md_free(&any);
    WEFT_TRY(status);
    return create_pack(p, w->engine, attributes);
}

static weft_status create_parts(wefti_onednn_matmul *w) {
    dnnl_primitive_attr_t attributes = NULL;
    DNNL_TRY(dnnl_primitive_attr_create(&attributes), "create attributes");
    weft_status status =
        converted(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
                  "use the caller's workspace");
    for (int i = 0; i < SHAPES && status >= 0; i++)
        for (int j = 0; j < SHAPES && status >= 0; j++) {
            /* Shape 0, whole slices, occurs only beside the last one. */
            if ((i == 0 && w->m_slices == 1) || (j == 0 && w->n_slices == 1)) continue;
            status = create_part(w, i ? rows_of(w, w->m_slices - 1) : w->m_slice,
                                 j ? columns_of(w, w->n_slices - 1) : w->n_slice, attributes,
                                 &w->parts[i][j]);
        }
    (void)dnnl_primitive_attr_destroy(attributes);
    return status;
}

static weft_status new_memory(wefti_onednn_matmul *w, const wefti_md *md, dnnl_memory_t *out) {
    DNNL_TRY(dnnl_memory_create(out, wefti_md_of(md), w->engine, DNNL_MEMORY_NONE),
             "create a memory object");
    return WEFT_OK;
}

static int64_t md_bytes(const wefti_md *md) {
    return (int64_t)dnnl_memory_desc_get_size(wefti_md_of(md));
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* All rows of parts pack B's slices the same way: the packed form belongs to the last row of parts.
 */
static const part *packer(const wefti_onednn_matmul *w, int shape) {
    return &w->parts[1][shape];
}

static weft_status create_memories(wefti_onednn_matmul *w) {
    for (int j = 0; j < SHAPES; j++)
        if (w->parts[0][j].used)
            WEFT_REQUIRE(dnnl_memory_desc_equal(wefti_md_of(&w->parts[0][j].b_packed),
                                                wefti_md_of(&packer(w, j)->b_packed)),
                         WEFT_E_NO_IMPL,
                         "oneDNN wants B in two formats for slices of %lld and %lld rows",
                         (long long)w->m_slice, (long long)rows_of(w, w->m_slices - 1));
    WEFT_NEW_ARRAY(w->a, dnnl_memory_t, w->m_slices);
    WEFT_NEW_ARRAY(w->b, dnnl_memory_t, w->n_slices);
    WEFT_NEW_ARRAY(w->b_packed, dnnl_memory_t, w->n_slices);
    WEFT_NEW_ARRAY(w->slots, slot, w->threads);
    for (int64_t i = 0; i < w->m_slices; i++)
        WEFT_TRY(new_memory(w, &w->parts[m_shape(w, i)][1].a, &w->a[i]));
    for (int64_t j = 0; j < w->n_slices; j++) {
        WEFT_TRY(new_memory(w, &packer(w, n_shape(w, j))->b, &w->b[j]));
        WEFT_TRY(new_memory(w, &packer(w, n_shape(w, j))->b_packed, &w->b_packed[j]));
    }
    for (int t = 0; t < w->threads; t++) {
        slot *s = &w->slots[t];
        DNNL_TRY(dnnl_stream_create(&s->stream, w->engine, dnnl_stream_default_flags),
                 "create a stream");
        for (int i = 0; i < SHAPES; i++)
            for (int j = 0; j < SHAPES; j++) {
                const part *p = &w->parts[i][j];
                if (!p->used) continue;
                w->scratch_bytes = larger(w->scratch_bytes, md_bytes(&p->multiply_scratch));
                w->scratch_bytes = larger(w->scratch_bytes, md_bytes(&p->pack_scratch));
                WEFT_TRY(new_memory(w, &p->c, &s->c[i][j]));
                WEFT_TRY(new_memory(w, &p->multiply_scratch, &s->multiply_scratch[i][j]));
                if (i == 1) WEFT_TRY(new_memory(w, &p->pack_scratch, &s->pack_scratch[j]));
            }
    }
    w->scratch_bytes = round_up(w->scratch_bytes, ALIGNMENT);
    w->slice_bytes =
        packer(w, 0)->used ? round_up(md_bytes(&packer(w, 0)->b_packed), ALIGNMENT) : 0;
    w->packed_bytes =
        w->slice_bytes * (w->n_slices - 1) + round_up(md_bytes(&packer(w, 1)->b_packed), ALIGNMENT);
    return WEFT_OK;
}

static bool fits(const wefti_gemm_spec *s) {
    const bool dense_a = s->a.row_stride == 1 || s->a.column_stride == 1;
    /* oneDNN 3.7 multiplies one row of a transposed matrix wrongly on AMX. */
    const bool last_row = s->m % M_SLICE == 1 && s->a.column_stride != 1;
    const bool dense_b = s->b.row_stride == 1 || s->b.column_stride == 1;
    return !last_row && s->m > 0 && s->n > 0 && s->k > 0 && s->batch[0] == 1 && s->batch[1] == 1 &&
           s->a.dtype == s->b.dtype && (s->a.dtype == WEFT_F32 || s->a.dtype == WEFT_BF16) &&
           (s->c.dtype == WEFT_F32 || s->c.dtype == WEFT_BF16) && dense_a && dense_b &&
           s->a.row_stride > 0 && s->a.column_stride > 0 && s->b.row_stride > 0 &&
           s->b.column_stride > 0;
}

weft_status wefti_onednn_matmul_create(const wefti_gemm_spec *spec, wefti_isa isa, int threads,
                                       wefti_onednn_matmul **out) {
    wefti_gemm gemm;
    if (!fits(spec) || !wefti_onednn_usable()) return WEFT_E_NO_IMPL;
    wefti_gemm_spec own = *spec;
    own.b_packed = false;
    WEFT_TRY(wefti_gemm_prepare(&own, isa, &gemm));
    wefti_onednn_matmul *w;
    WEFT_NEW(w, wefti_onednn_matmul);
    w->spec = *spec;
    w->kernels = gemm.kernels;
    w->threads = threads;
    w->m_slices = ceil_div(spec->m, M_SLICE);
    w->n_slices = ceil_div(spec->n, N_SLICE);
    w->m_slice = w->m_slices == 1 ? spec->m : M_SLICE;
    w->n_slice = w->n_slices == 1 ? spec->n : N_SLICE;
    /* Its AMX kernels write dense matrices only. */
    w->direct = w->n_slices == 1 && spec->c.row_stride == spec->n && spec->c.column_stride == 1 &&
                spec->alpha == 1.0 && !spec->accumulate && !spec->has_bias && !spec->has_pre &&
                !spec->has_residual && !spec->activation && !spec->derivative;
    w->sums_bytes = w->direct ? 0 : round_up(w->m_slice * w->n_slice * 4, ALIGNMENT);
    weft_status status;
    const int before = wefti_onednn_alone();
    WEFT_TRY_OR(err_destroy, status,
                converted(dnnl_engine_create(&w->engine, dnnl_cpu, 0), "start"));
    WEFT_TRY_OR(err_destroy, status, create_parts(w));
    WEFT_TRY_OR(err_destroy, status, create_memories(w));
    wefti_onednn_restore(before);
    *out = w;
    return WEFT_OK;
err_destroy:
    wefti_onednn_restore(before);
    wefti_onednn_matmul_destroy(w);
    return status;
}

static void drop(dnnl_memory_t memory) {
    if (memory) (void)dnnl_memory_destroy(memory);
}

void wefti_onednn_matmul_destroy(wefti_onednn_matmul *w) {
    if (!w) return;
    for (int64_t i = 0; w->a && i < w->m_slices; i++) drop(w->a[i]);
    for (int64_t j = 0; w->b && j < w->n_slices; j++) drop(w->b[j]);
    for (int64_t j = 0; w->b_packed && j < w->n_slices; j++) drop(w->b_packed[j]);
    for (int t = 0; w->slots && t < w->threads; t++) {
        slot *s = &w->slots[t];
        for (int i = 0; i < SHAPES; i++) {
            for (int j = 0; j < SHAPES; j++) {
                drop(s->c[i][j]);
                drop(s->multiply_scratch[i][j]);
            }
            drop(s->pack_scratch[i]);
        }
        if (s->stream) (void)dnnl_stream_destroy(s->stream);
    }
    for (int i = 0; i < SHAPES; i++)
        for (int j = 0; j < SHAPES; j++) {
            part *p = &w->parts[i][j];
            if (!p->used) continue;
            if (p->multiply) (void)dnnl_primitive_destroy(p->multiply);
            if (p->pack) (void)dnnl_primitive_destroy(p->pack);
            wefti_md *descriptions[] = {
                &p->a, &p->b, &p->b_packed, &p->c, &p->multiply_scratch, &p->pack_scratch};
            for (size_t d = 0; d < sizeof descriptions / sizeof *descriptions; d++)
                wefti_md_free(descriptions[d]);
        }
    if (w->engine) (void)dnnl_engine_destroy(w->engine);
    wefti_free(w->a);
    wefti_free(w->b);
    wefti_free(w->b_packed);
    wefti_free(w->slots);
    wefti_free(w);
}

/* --- Running
 * ---------------------------------------------------------------------------------------------------
 */

/* Scratch and sums of each thread, then the packed B where the caller brings none. */
int64_t wefti_onednn_matmul_workspace_bytes(const wefti_onednn_matmul *w) {
    return w->threads * (w->scratch_bytes + w->sums_bytes) +
           (w->spec.b_packed ? 0 : w->packed_bytes);
}

int64_t wefti_onednn_matmul_packed_bytes(const wefti_onednn_matmul *w) {
    return w->packed_bytes;
}

static char *thread_space(const wefti_onednn_matmul *w, int thread) {
    return w->workspace + thread * (w->scratch_bytes + w->sums_bytes);
}

/* Run a primitive on this thread. */
static weft_status execute(dnnl_primitive_t primitive, slot *s, const dnnl_exec_arg_t *list,
                           int count, const char *what) {
    const int before = wefti_onednn_alone();
    dnnl_status_t status = wefti_onednn_execute(primitive, s->stream, count, list);
    wefti_onednn_restore(before);
    return converted(status, what);
}

static weft_status point(dnnl_memory_t memory, const void *data) {
    DNNL_TRY(dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data), "use a buffer");
    return WEFT_OK;
}

static weft_status pack_slice(wefti_onednn_matmul *w, int64_t j, int thread) {
    slot *s = &w->slots[thread];
    const int shape = n_shape(w, j);
    WEFT_TRY(point(s->pack_scratch[shape], thread_space(w, thread)));
    const dnnl_exec_arg_t list[] = {{DNNL_ARG_FROM, w->b[j]},
                                    {DNNL_ARG_TO, w->b_packed[j]},
                                    {DNNL_ARG_SCRATCHPAD, s->pack_scratch[shape]}};
    return execute(packer(w, shape)->pack, s, list, 3, "pack a matrix");
}

static weft_status multiply_slice(wefti_onednn_matmul *w, int64_t i, int64_t j, int thread) {
    slot *s = &w->slots[thread];
    const wefti_gemm_spec *spec = &w->spec;
    const int down = m_shape(w, i), across = n_shape(w, j);
    const int64_t row = i * w->m_slice, column = j * w->n_slice;
    char *space = thread_space(w, thread);
    float *sums = (float *)(space + w->scratch_bytes);
    WEFT_TRY(point(s->multiply_scratch[down][across], space));
    if (w->direct)
        WEFT_TRY(point(s->c[down][across],
                       (char *)w->args->c + (row * spec->c.row_stride + column) *
                                                (int64_t)weft_dtype_bytes(spec->c.dtype)));
    else
        WEFT_TRY(point(s->c[down][across], sums));
    const dnnl_exec_arg_t list[] = {{DNNL_ARG_SRC, w->a[i]},
                                    {DNNL_ARG_WEIGHTS, w->b_packed[j]},
                                    {DNNL_ARG_DST, s->c[down][across]},
                                    {DNNL_ARG_SCRATCHPAD, s->multiply_scratch[down][across]}};
    WEFT_TRY(execute(w->parts[down][across].multiply, s, list, 4, "multiply matrices"));
    if (!w->direct) {
        const wefti_gemm_sink sink = {.spec = spec,
                                      .c = w->args->c,
                                      .pre = spec->has_pre ? w->args->pre : NULL,
                                      .residual = spec->has_residual ? w->args->residual : NULL,
                                      .aux = spec->derivative ? w->args->aux : NULL,
                                      .bias = spec->has_bias ? w->args->bias : NULL};
        w->kernels->epilogue(&sink, row, column, rows_of(w, i), columns_of(w, j), sums,
                             columns_of(w, j), NULL, 0);
    }
    return WEFT_OK;
}

static void pack_task(void *context, int64_t task, int thread) {
    wefti_onednn_matmul *w = context;
    slot *s = &w->slots[thread];
    if (s->status >= 0) s->status = pack_slice(w, task, thread);
}
static void multiply_task(void *context, int64_t task, int thread) {
    wefti_onednn_matmul *w = context;
    slot *s = &w->slots[thread];
    if (s->status >= 0)
        s->status = multiply_slice(w, task % w->m_slices, task / w->m_slices, thread);
}

/* Run tasks; a thread that failed stops, and its status is the result. Messages stay with their
 * threads. */
static weft_status run_tasks(wefti_onednn_matmul *w, wefti_pool *pool, int64_t tasks,
                             wefti_task *task, const char *what) {
    WEFT_REQUIRE(wefti_pool_threads(pool) <= w->threads, WEFT_E_ARG,
                 "this product was made for %d threads, not %d", w->threads,
                 wefti_pool_threads(pool));
    for (int t = 0; t < w->threads; t++) w->slots[t].status = WEFT_OK;
    wefti_pool_run(pool, tasks, task, w);
    for (int t = 0; t < w->threads; t++)
        WEFT_REQUIRE(w->slots[t].status >= 0, w->slots[t].status,
                     "oneDNN failed to %s of %lld x %lld x %lld", what, (long long)w->spec.m,
                     (long long)w->spec.n, (long long)w->spec.k);
    return WEFT_OK;
}

static weft_status point_packed(wefti_onednn_matmul *w, const void *packed) {
    for (int64_t j = 0; j < w->n_slices; j++)
        WEFT_TRY(point(w->b_packed[j], (const char *)packed + j * w->slice_bytes));
    return WEFT_OK;
}

static weft_status pack(wefti_onednn_matmul *w, const void *b, void *packed, wefti_pool *pool) {
    for (int64_t j = 0; j < w->n_slices; j++)
        WEFT_TRY(point(w->b[j], (const char *)b + j * w->n_slice * w->spec.b.column_stride *
                                                      (int64_t)weft_dtype_bytes(w->spec.b.dtype)));
    WEFT_TRY(point_packed(w, packed));
    return run_tasks(w, pool, w->n_slices, pack_task, "pack matrix B");
}

weft_status wefti_onednn_matmul_pack_b(wefti_onednn_matmul *w, const void *b, void *packed,
                                       void *workspace, wefti_pool *pool) {
    w->workspace = workspace;
    return pack(w, b, packed, pool);
}

weft_status wefti_onednn_matmul_run(wefti_onednn_matmul *w, const wefti_gemm_args *args,
                                    void *workspace, wefti_pool *pool) {
    w->workspace = workspace;
    w->args = args;
    if (w->spec.b_packed)
        WEFT_TRY(point_packed(w, args->b));
    else
        WEFT_TRY(
            pack(w, args->b, w->workspace + w->threads * (w->scratch_bytes + w->sums_bytes), pool));
    for (int64_t i = 0; i < w->m_slices; i++)
        WEFT_TRY(
            point(w->a[i], (const char *)args->a + i * w->m_slice * w->spec.a.row_stride *
                                                       (int64_t)weft_dtype_bytes(w->spec.a.dtype)));
    return run_tasks(w, pool, w->m_slices * w->n_slices, multiply_task, "multiply matrices");
}

#else

bool wefti_onednn_matmul_available(void) {
    return false;
}
weft_status wefti_onednn_matmul_create(const wefti_gemm_spec *spec, wefti_isa isa, int threads,
                                       wefti_onednn_matmul **out) {
    (void)spec, (void)isa, (void)threads, (void)out;
    return WEFT_E_NO_IMPL;
}
void wefti_onednn_matmul_destroy(wefti_onednn_matmul *matmul) {
    (void)matmul;
}
int64_t wefti_onednn_matmul_workspace_bytes(const wefti_onednn_matmul *matmul) {
    (void)matmul;
    return 0;
}
int64_t wefti_onednn_matmul_packed_bytes(const wefti_onednn_matmul *matmul) {
    (void)matmul;
    return 0;
}
weft_status wefti_onednn_matmul_pack_b(wefti_onednn_matmul *matmul, const void *b, void *packed,
                                       void *workspace, wefti_pool *pool) {
    (void)matmul, (void)b, (void)packed, (void)workspace, (void)pool;
    WEFT_FAIL(WEFT_E_BUG, "oneDNN is not built in");
}
weft_status wefti_onednn_matmul_run(wefti_onednn_matmul *matmul, const wefti_gemm_args *args,
                                    void *workspace, wefti_pool *pool) {
    (void)matmul, (void)args, (void)workspace, (void)pool;
    WEFT_FAIL(WEFT_E_BUG, "oneDNN is not built in");
}

#endif
