/* Running moves: loops around runs, and in a run blocks that stay in the first-level cache.
 *
 * A reduced block is made in a buffer of its own and then copied to where it belongs. That costs
 * little beside the reading of memory, and lets a destination be one of the sources, and there be
 * several. Two members, the most frequent case, do without. Stores past the caches (non-temporal)
 * were measured to be slower at all sizes up to 64 MiB where the last level cache is large. Halves
 * are added in f32 and rounded once, so that a sum does not get worse with the number of members.
 */
#include "comm/move.h"

enum { BLOCK = 1024 }; /* elements */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONED
#endif

/* The iterations of the next loop do not depend on each other, though arrays may be the same. */
#if defined(__clang__)
#define INDEPENDENT /* clang checks at run time whether arrays overlap */
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* Reduce elements [first, first + n) of at least two sources into out[0..n), n <= BLOCK. */
typedef void reduce_block(void *out, const void *const *source, int32_t sources, int64_t first,
                          int64_t n);
/* Reduce elements [first, end) of two sources into two destinations, which may be the sources. */
typedef void reduce_pair(const void *const *source, void *const *destination, int64_t first,
                         int64_t end);
typedef struct reduce_kernels {
    reduce_block *block;
    reduce_pair *pair; /* NULL: by blocks */
} reduce_kernels;

/* A NaN wins a maximum and a minimum. Sums and products of integers wrap. */
#define SUM(a, b) ((a) + (b))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))
#define MIN(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))
#define PROD(a, b) ((a) * (b))
#define MAX_INTEGER(a, b) ((b) > (a) ? (b) : (a))
#define MIN_INTEGER(a, b) ((b) < (a) ? (b) : (a))
#define OR(a, b) ((a) | (b))
#define AND(a, b) ((a) & (b))

/* `as`: the type in which the operation is done. */
#define PAIR(name, type, as, op)                                                                   \
    CLONED static void name##_2(type *restrict out, const type *restrict a,                        \
                                const type *restrict b, int64_t n) {                               \
        for (int64_t i = 0; i < n; i++) out[i] = (type)op((as)a[i], (as)b[i]);                     \
    }                                                                                              \
    CLONED static void name##_into(type *restrict out, const type *restrict b, int64_t n) {        \
        for (int64_t i = 0; i < n; i++) out[i] = (type)op((as)out[i], (as)b[i]);                   \
    }                                                                                              \
    CLONED static void name##_pair(const void *const *source, void *const *destination,            \
                                   int64_t first, int64_t end) {                                   \
        const type *a = source[0], *b = source[1];                                                 \
        type *to_a = destination[0], *to_b = destination[1];                                       \
        INDEPENDENT for (int64_t i = first; i < end; i++) to_a[i] = to_b[i] =                      \
            (type)op((as)a[i], (as)b[i]);                                                          \
    }
#define REDUCE(name, type, as, op)                                                                 \
    PAIR(name, type, as, op)                                                                       \
    static void name(void *out, const void *const *source, int32_t sources, int64_t first,         \
                     int64_t n) {                                                                  \
        name##_2(out, (const type *)source[0] + first, (const type *)source[1] + first, n);        \
        for (int32_t s = 2; s < sources; s++)                                                      \
            name##_into(out, (const type *)source[s] + first, n);                                  \
    }
REDUCE(sum_f32, float, float, SUM)
REDUCE(max_f32, float, float, MAX)
REDUCE(min_f32, float, float, MIN)
REDUCE(prod_f32, float, float, PROD)
REDUCE(sum_f64, double, double, SUM)
REDUCE(max_f64, double, double, MAX)
REDUCE(min_f64, double, double, MIN)
REDUCE(prod_f64, double, double, PROD)
REDUCE(sum_i32, int32_t, uint32_t, SUM)
REDUCE(max_i32, int32_t, int32_t, MAX_INTEGER)
REDUCE(min_i32, int32_t, int32_t, MIN_INTEGER)
REDUCE(prod_i32, int32_t, uint32_t, PROD)
REDUCE(sum_i64, int64_t, uint64_t, SUM)
REDUCE(max_i64, int64_t, int64_t, MAX_INTEGER)
REDUCE(min_i64, int64_t, int64_t, MIN_INTEGER)
REDUCE(prod_i64, int64_t, uint64_t, PROD)
REDUCE(sum_u16, uint16_t, uint32_t, SUM)
REDUCE(max_u16, uint16_t, uint16_t, MAX_INTEGER)
REDUCE(min_u16, uint16_t, uint16_t, MIN_INTEGER)
REDUCE(prod_u16, uint16_t, uint32_t, PROD)
REDUCE(sum_u8, uint8_t, uint32_t, SUM)
REDUCE(max_u8, uint8_t, uint8_t, MAX_INTEGER)
REDUCE(min_u8, uint8_t, uint8_t, MIN_INTEGER)
REDUCE(prod_u8, uint8_t, uint32_t, PROD)
REDUCE(or_bool, uint8_t, uint8_t, OR)
REDUCE(and_bool, uint8_t, uint8_t, AND)

CLONED static void widen_bf16(float *restrict out, const uint16_t *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = wefti_bf16_to_f32(in[i]);
}
CLONED static void narrow_bf16(uint16_t *restrict out, const float *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = wefti_f32_to_bf16(in[i]);
}
static void widen_f16(float *restrict out, const uint16_t *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = wefti_f16_to_f32(in[i]);
}
static void narrow_f16(uint16_t *restrict out, const float *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = wefti_f32_to_f16(in[i]);
}

#define REDUCE_HALVES(name, format, combine)                                                       \
    static void name(void *out, const void *const *source, int32_t sources, int64_t first,         \
                     int64_t n) {                                                                  \
        float sum[BLOCK], next[BLOCK];                                                             \
        widen_##format(sum, (const uint16_t *)source[0] + first, n);                               \
        for (int32_t s = 1; s < sources; s++) {                                                    \
            widen_##format(next, (const uint16_t *)source[s] + first, n);                          \
            combine##_into(sum, next, n);                                                          \
        }                                                                                          \
        narrow_##format(out, sum, n);                                                              \
    }
REDUCE_HALVES(sum_bf16, bf16, sum_f32)
REDUCE_HALVES(max_bf16, bf16, max_f32)
REDUCE_HALVES(min_bf16, bf16, min_f32)
REDUCE_HALVES(prod_bf16, bf16, prod_f32)
REDUCE_HALVES(sum_f16, f16, sum_f32)
REDUCE_HALVES(max_f16, f16, max_f32)
REDUCE_HALVES(min_f16, f16, min_f32)
REDUCE_HALVES(prod_f16, f16, prod_f32)

/* Of truth values the sum, and the maximum, is whether one is true; the product, and the minimum,
 * whether all are. In the order of wefti_reduction. */
#define BY_PAIRS(name)                                                                             \
    { name, name##_pair }
#define BY_BLOCKS(name)                                                                            \
    { name, NULL }
static const reduce_kernels kernels[WEFT_DTYPES][WEFTI_REDUCTIONS - 1] = {
    [WEFT_F32] = {BY_PAIRS(sum_f32), BY_PAIRS(max_f32), BY_PAIRS(min_f32), BY_PAIRS(prod_f32)},
    [WEFT_BF16] = {BY_BLOCKS(sum_bf16), BY_BLOCKS(max_bf16), BY_BLOCKS(min_bf16),
                   BY_BLOCKS(prod_bf16)},
    [WEFT_F16] = {BY_BLOCKS(sum_f16), BY_BLOCKS(max_f16), BY_BLOCKS(min_f16), BY_BLOCKS(prod_f16)},
    [WEFT_F64] = {BY_PAIRS(sum_f64), BY_PAIRS(max_f64), BY_PAIRS(min_f64), BY_PAIRS(prod_f64)},
    [WEFT_I32] = {BY_PAIRS(sum_i32), BY_PAIRS(max_i32), BY_PAIRS(min_i32), BY_PAIRS(prod_i32)},
    [WEFT_I64] = {BY_PAIRS(sum_i64), BY_PAIRS(max_i64), BY_PAIRS(min_i64), BY_PAIRS(prod_i64)},
    [WEFT_U16] = {BY_PAIRS(sum_u16), BY_PAIRS(max_u16), BY_PAIRS(min_u16), BY_PAIRS(prod_u16)},
    [WEFT_U8] = {BY_PAIRS(sum_u8), BY_PAIRS(max_u8), BY_PAIRS(min_u8), BY_PAIRS(prod_u8)},
    [WEFT_BOOL] = {BY_PAIRS(or_bool), BY_PAIRS(or_bool), BY_PAIRS(and_bool), BY_PAIRS(and_bool)},
};

static const reduce_kernels *kernel_of(weft_dtype dtype, wefti_reduction reduction) {
    return &kernels[dtype][reduction - 1];
}

static void *at(void *array, int64_t element, size_t bytes) {
    return (char *)array + element * (int64_t)bytes;
}

void wefti_move_reduce_to_all(weft_dtype dtype, wefti_reduction reduction,
                              const void *const *source, void *const *destination, int32_t arrays,
                              int64_t first, int64_t count) {
    const reduce_kernels *kernel = kernel_of(dtype, reduction);
    if (arrays == 2 && kernel->pair) {
        kernel->pair(source, destination, first, first + count);
        return;
    }
    unsigned char block[8 * BLOCK] __attribute__((aligned(64)));
    size_t bytes = weft_dtype_bytes(dtype);
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < BLOCK ? count - done : BLOCK, where = first + done;
        kernel->block(block, source, arrays, where, n);
        for (int32_t d = 0; d < arrays; d++)
            memcpy(at(destination[d], where, bytes), block, (size_t)n * bytes);
        done += n;
    }
}

/* One run: `count` neighbours. */
static void reduce_run(weft_dtype dtype, wefti_reduction reduction, const void *const *source,
                       int32_t sources, void *destination, int64_t count) {
    size_t bytes = weft_dtype_bytes(dtype);
    if (sources == 1) {
        if (source[0] != destination) memcpy(destination, source[0], (size_t)count * bytes);
        return;
    }
    unsigned char block[8 * BLOCK] __attribute__((aligned(64)));
    reduce_block *kernel = kernel_of(dtype, reduction)->block;
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < BLOCK ? count - done : BLOCK;
        kernel(block, source, sources, done, n);
        memcpy(at(destination, done, bytes), block, (size_t)n * bytes);
        done += n;
    }
}

void wefti_move_run(const wefti_move *move, const void *const *source, void *destination) {
    const char *from[WEFTI_MOVE_MOST];
    int64_t index[WEFT_MAX_RANK] = {0}, bytes = (int64_t)weft_dtype_bytes(move->dtype);
    char *to = (char *)destination + move->to.offset * bytes;
    for (int32_t s = 0; s < move->sources; s++)
        from[s] = (const char *)source[s] + move->from[s].offset * bytes;
    for (;;) {
        reduce_run(move->dtype, move->reduction, (const void *const *)from, move->sources, to,
                   move->run);
        int loop = move->loops - 1;
        for (; loop >= 0; loop--) { /* the innermost loop that goes on; those within start anew */
            int64_t steps = 1;
            if (++index[loop] == move->count[loop]) {
                index[loop] = 0;
                steps = 1 - move->count[loop];
            }
            to += steps * move->to.stride[loop] * bytes;
            for (int32_t s = 0; s < move->sources; s++)
                from[s] += steps * move->from[s].stride[loop] * bytes;
            if (steps == 1) break;
        }
        if (loop < 0) return;
    }
}
