/* Prepares a matrix product: checks it, and chooses the algorithm and the block sizes. See gemm.h;
 * run.c runs the product. */
#include "backend/cpu/gemm/gemm.h"

#include "backend/cpu/gemm/block.h"
#include "backend/cpu/tuning.h"
#include "base/tuning.h"
#include "tensor/tensor.h"

/* Block sizes, measured on processors with 2 MiB of second-level cache for each core. */
enum {
    L2_BYTES = 2 << 20,
    M_BLOCK = 2688, /* shared panels of A and B: at most 8 MiB each */
    N_BLOCK = 3072,
    SPLIT_BLOCK = 1024, /* rows and columns if partial sums wait in the workspace: 4 MiB */
    PRIVATE_ROWS = 256, /* rows of a task that packs for itself */
    PRIVATE_COLUMNS = 512,
};
static const int64_t SHARED_BYTES = 24 << 20, PRIVATE_BYTES = 2 << 20; /* of panels */
static const double PRIVATE_WORK = 2e6; /* products: about 20 microseconds */
static const double PRIVATE_BATCHED_WORK =
    1e8; /* with at least this work, one product feeds all threads */

/* The size of equal parts of `total`: multiples of `unit`, at most `most` each. */
static int64_t even_part(int64_t total, int64_t most, int64_t unit) {
    return total == 0 ? unit : wefti_round_up(ceil_div(total, ceil_div(total, most)), unit);
}

wefti_gemm_operand wefti_gemm_rows(weft_dtype dtype, int64_t columns) {
    return (wefti_gemm_operand){.dtype = dtype, .row_stride = columns, .column_stride = 1};
}
wefti_gemm_operand wefti_gemm_transposed(weft_dtype dtype, int64_t rows) {
    return (wefti_gemm_operand){.dtype = dtype, .row_stride = 1, .column_stride = rows};
}

wefti_gemm_spec wefti_gemm_spec_of(weft_dtype dtype, int64_t m, int64_t n, int64_t k) {
    wefti_gemm_spec spec = {.m = m, .n = n, .k = k, .batch = {1, 1}, .alpha = 1.0};
    spec.a = wefti_gemm_rows(dtype, k);
    spec.b = wefti_gemm_rows(dtype, n);
    spec.c = wefti_gemm_rows(dtype, n);
    spec.a.batch_stride[1] = m * k;
    spec.b.batch_stride[1] = k * n;
    spec.c.batch_stride[1] = m * n;
    return spec;
}

const char *wefti_gemm_batch(const wefti_gemm_spec *spec, const wefti_gemm_operand *operand,
                             const void *data, int64_t batch) {
    if (!data) return NULL;
    int64_t index = batch / spec->batch[1] * operand->batch_stride[0] +
                    batch % spec->batch[1] * operand->batch_stride[1];
    return (const char *)data + index * (int64_t)weft_dtype_bytes(operand->dtype);
}

static bool is_f32_or_bf16(weft_dtype dtype) {
    return dtype == WEFT_F32 || dtype == WEFT_BF16;
}

static weft_status check(const wefti_gemm_spec *spec, wefti_isa isa) {
    WEFT_REQUIRE(
        spec->m >= 0 && spec->n >= 0 && spec->k >= 0 && spec->batch[0] >= 0 && spec->batch[1] >= 0,
        WEFT_E_SHAPE, "a matrix product cannot have m %lld, n %lld, k %lld, batch %lld x %lld",
        (long long)spec->m, (long long)spec->n, (long long)spec->k, (long long)spec->batch[0],
        (long long)spec->batch[1]);
    bool f32 = is_f32_or_bf16(spec->a.dtype) && is_f32_or_bf16(spec->b.dtype) &&
               is_f32_or_bf16(spec->c.dtype);
    bool f64 = spec->a.dtype == WEFT_F64 && spec->b.dtype == WEFT_F64 && spec->c.dtype == WEFT_F64;
    WEFT_REQUIRE(
        f32 || f64, WEFT_E_NO_IMPL,
        "no matrix product of %s and %s to %s; f32 and bf16 mix freely, f64 goes with f64 only",
        weft_dtype_text(spec->a.dtype), weft_dtype_text(spec->b.dtype),
        weft_dtype_text(spec->c.dtype));
    WEFT_REQUIRE((unsigned)isa < WEFTI_ISAS, WEFT_E_ARG, "no form of kernels has number %d",
                 (int)isa);
    WEFT_REQUIRE(!spec->bf16 || (f32 && wefti_isa_has_bf16(isa)), WEFT_E_NO_IMPL,
                 "%s kernels multiply no bf16 as such", wefti_isa_text(isa));
    return WEFT_OK;
}

/* From this size on, f32 products on tiles take 0.6 to 0.9 of their time on vectors. The smallest
 * are slower: 16 x 32 x 32 takes 1.4 us instead of 0.8. The rule ignores the rows of A, because the
 * bits of a row must not depend on the number of other rows. */
static bool suits_f32_tiles(const wefti_gemm_spec *spec) {
    return spec->a.dtype == WEFT_F32 && spec->b.dtype == WEFT_F32 && spec->n >= 32 && spec->k >= 32;
}

static const wefti_gemm_forms *forms(void) {
    static const wefti_gemm_forms native = {
        .plain = &wefti_gemm_kernels_plain,
#if defined(__x86_64__)
        .avx2 = &wefti_gemm_kernels_avx2,
        .avx2_narrow = &wefti_gemm_kernels_avx2_narrow,
        .avx512 = &wefti_gemm_kernels_avx512,
        .avx512_bf16 = &wefti_gemm_kernels_avx512_bf16,
        .amx = &wefti_gemm_kernels_amx,
        .amx_f32 = &wefti_gemm_kernels_amx_f32,
#endif
    };
    const wefti_cpu_tuning *tuned = wefti_cpu_tuned();
    return tuned && tuned->emulated ? tuned->gemm : &native;
}

/* Wide tiles take about 1/32 less time for each product (bench/gemm, 2 threads of a Zen 3). Narrow
 * tiles compute fewer columns beyond the last one. Both divide k into the same blocks, so the bits
 * are the same. */
static const wefti_gemm_kernels *avx2_kernels(const wefti_gemm_forms *f, int64_t n) {
    const int64_t more =
        wefti_round_up(n, f->avx2->columns) - wefti_round_up(n, f->avx2_narrow->columns);
    return more > n / 32 ? f->avx2_narrow : f->avx2;
}

/* With few rows (`skinny`), the time is the time to read B. */
static const wefti_gemm_kernels *kernels_of(const wefti_gemm_spec *spec, wefti_isa isa,
                                            bool skinny) {
    const wefti_gemm_forms *f = forms();
    if (!skinny && spec->bf16) return isa >= WEFTI_ISA_AMX ? f->amx : f->avx512_bf16;
    if (!skinny && isa >= WEFTI_ISA_AMX && suits_f32_tiles(spec)) return f->amx_f32;
    if (isa >= WEFTI_ISA_AVX512) return f->avx512;
    if (isa == WEFTI_ISA_AVX2) return avx2_kernels(f, spec->n);
    return f->plain;
}

static enum gemm_path path_of(const wefti_gemm_spec *spec) {
    double work = (double)spec->m * (double)spec->n * (double)spec->k;
    bool batched = spec->batch[0] * spec->batch[1] > 1;
    if (spec->m == 0 || spec->n == 0 || spec->batch[0] == 0 || spec->batch[1] == 0)
        return GEMM_EMPTY;
    if (spec->a.dtype == WEFT_F64) return GEMM_F64;
    if (spec->k > 0 && spec->m <= GEMM_SKINNY_ROWS &&
        (spec->b.row_stride == 1 || spec->b.column_stride == 1))
        return GEMM_SKINNY;
    if (work <= (batched ? PRIVATE_BATCHED_WORK : PRIVATE_WORK)) return GEMM_PRIVATE;
    return GEMM_SHARED;
}

/* C receives only S (+ C): tiles are written to C straight from registers. */
static bool is_plain_sum(const wefti_gemm_spec *spec) {
    return spec->c.dtype == WEFT_F32 && spec->c.column_stride == 1 && spec->alpha == 1.0 &&
           !spec->has_bias;
}

/* Whether A is bf16 with whole tiles in each row, and rows begin at cache lines if the matrix
 * does. */
static bool is_in_rows(const wefti_gemm_operand *a, int64_t k, int64_t unit) {
    return a->dtype == WEFT_BF16 && a->column_stride == 1 && a->row_stride % unit == 0 &&
           k % unit == 0;
}

/* The kernels' blocks are made for L2_BYTES. Returns the part of `size` that fits the cache that a
 * test has set, in multiples of `unit`. Sizes of k blocks never depend on the cache, because
 * results depend on them. */
static int64_t in_cache(int64_t size, int64_t unit) {
    const int64_t l2_bytes = wefti_tuned()->l2_bytes;
    if (l2_bytes == 0 || size == 0) return size;
    const int64_t fits = size * l2_bytes / L2_BYTES / unit * unit;
    return fits < unit ? unit : fits;
}

weft_status wefti_gemm_prepare(const wefti_gemm_spec *spec, wefti_isa isa, wefti_gemm *out) {
    WEFT_TRY(check(spec, isa));
    wefti_gemm gemm = {.spec = *spec, .isa = isa, .path = (int)path_of(spec)};
    const wefti_gemm_kernels *kernels = kernels_of(spec, isa, gemm.path == GEMM_SKINNY);
    WEFT_REQUIRE(kernels, WEFT_E_ARG, "this build has no %s kernels", wefti_isa_text(isa));
    gemm.kernels = kernels;
    bool shared = gemm.path == GEMM_SHARED;
    gemm.a_in_place = kernels->reads_rows && is_in_rows(&spec->a, spec->k, kernels->depth_unit);
    gemm.plain_sum = is_plain_sum(spec);
    gemm.k_block = even_part(spec->k, kernels->k_block, kernels->depth_unit);
    /* Sums between k blocks may wait in C, unless C has low precision, is scattered, or its old
     * value is still needed. */
    gemm.split_sums = spec->k > gemm.k_block && !gemm.plain_sum &&
                      (spec->c.dtype != WEFT_F32 || spec->c.column_stride != 1 || spec->accumulate);
    int64_t m_most = !shared ? PRIVATE_ROWS : gemm.split_sums ? SPLIT_BLOCK : M_BLOCK;
    int64_t n_most = !shared ? PRIVATE_COLUMNS : gemm.split_sums ? SPLIT_BLOCK : N_BLOCK;
    gemm.m_group = in_cache(kernels->m_group, kernels->rows);
    gemm.n_group = in_cache(kernels->n_group, kernels->columns);
    gemm.m_block = even_part(spec->m, m_most, kernels->rows);
    gemm.n_block = even_part(spec->n, n_most, kernels->columns);
    gemm.m_tile =
        shared ? even_part(gemm.m_block, in_cache(kernels->m_tile, kernels->rows), kernels->rows)
               : gemm.m_block;
    gemm.n_tile = shared ? even_part(gemm.n_block, in_cache(kernels->n_tile, kernels->columns),
                                     kernels->columns)
                         : gemm.n_block;
    /* Pack as many blocks of k at once as fit the budget. Pack only one if tasks pack columns or
     * rows for themselves, because these must stay in the thread's cache. */
    int64_t block_bytes = (gemm.m_block + gemm.n_block) * gemm.k_block * kernels->element_bytes;
    int64_t spans = (shared ? SHARED_BYTES : PRIVATE_BYTES) / block_bytes;
    if (shared && gemm.n_group > 0) spans = 1;
    gemm.k_span = smaller(gemm.k_block * (spans < 1 ? 1 : spans),
                          wefti_round_up(spec->k, kernels->depth_unit));
    /* Lanes along k have an order of their own in any case: one block is the fastest. */
    if (gemm.path == GEMM_SKINNY && spec->b.column_stride != 1) gemm.k_block = spec->k;
    *out = gemm;
    return WEFT_OK;
}

int64_t wefti_gemm_workspace_bytes(const wefti_gemm *gemm, int threads) {
    return gemm->path == GEMM_EMPTY || gemm->path == GEMM_F64
               ? 0
               : wefti_gemm_panel_bytes(gemm, threads);
}

void wefti_gemm_run(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                    wefti_pool *pool) {
    if (gemm->path == GEMM_F64)
        wefti_gemm_run_f64(gemm, args, pool);
    else if (gemm->path != GEMM_EMPTY)
        wefti_gemm_run_f32(gemm, args, workspace, pool);
}
