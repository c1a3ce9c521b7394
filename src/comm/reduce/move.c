/* Runs moves: loops around runs of elements. A run is divided into tiles that stay in registers or
 * the first-level cache.
 *
 * A tile is reduced in a buffer of its own and then written to its destinations. That costs little
 * compared with reading memory. It allows a destination to be one of the sources, and several
 * destinations, of which some are written past the caches (comm/copy.h). Two members, the most
 * frequent case, need no buffer while nothing is streamed. Halves are added in f32 and rounded
 * once, so that the number of members does not add errors. */
#include "comm/reduce/reduce.h"

#include <string.h>

#include "comm/copy.h"

enum {
    MOVE_LINE = 64,
    REDUCE_MOVE_TILE = 8 * MOVE_LINE,
    MOVE_PIECE = 4 * MOVE_LINE,
    MOVE_NEAR = 4096,
    MOVE_BLOCK = 1024 /* elements */
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOVE_CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MOVE_CLONED
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
/* Reduce elements [first, end) of at least two sources into all destinations, which may be
 * sources; those that are streamed begin at a line there. */
typedef void reduce_tiles(const void *const *source, int32_t sources, void *const *destination,
                          const bool *streamed, int32_t destinations, int64_t first, int64_t end);
/* The same for two sources and two destinations. The lower share is processed downwards:
 * processors prefetch beyond the end of a read, which would fetch lines that the other member has
 * just written. */
typedef void reduce_pair(const void *const *source, void *const *destination, int64_t first,
                         int64_t end);
typedef struct reduce_kernels {
    reduce_block *block; /* NULL: by tiles, and pairs */
    reduce_tiles *tiles;
    reduce_pair *pair;
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
#define INTO(name, type, as, op)                                                                   \
    MOVE_CLONED static void name##_into(type *restrict out, const type *restrict b, int64_t n) {   \
        for (int64_t i = 0; i < n; i++) out[i] = (type)op((as)out[i], (as)b[i]);                   \
    }
#define REDUCE(name, type, as, op)                                                                 \
    MOVE_CLONED static void name##_pair(const void *const *source, void *const *destination,       \
                                        int64_t first, int64_t end) {                              \
        enum { STEP = MOVE_PIECE / sizeof(type) };                                                 \
        const type *a = source[0], *b = source[1];                                                 \
        type *to_a = destination[0], *to_b = destination[1];                                       \
        for (; first == 0 && end >= STEP && end <= MOVE_NEAR / (int)sizeof(type); end -= STEP)     \
            INDEPENDENT for (int64_t i = end - STEP; i < end; i++) to_a[i] = to_b[i] =             \
                (type)op((as)a[i], (as)b[i]);                                                      \
        INDEPENDENT for (int64_t i = first; i < end; i++) to_a[i] = to_b[i] =                      \
            (type)op((as)a[i], (as)b[i]);                                                          \
    }                                                                                              \
    MOVE_CLONED static void name(const void *const *source, int32_t sources,                       \
                                 void *const *destination, const bool *streamed,                   \
                                 int32_t destinations, int64_t first, int64_t end) {               \
        enum { MOST = REDUCE_MOVE_TILE / sizeof(type) };                                           \
        wefti_copy_lines *stream = streamed ? wefti_copy_streaming(wefti_copy_best()) : NULL;      \
        int64_t i = first;                                                                         \
        for (; i + MOST <= end; i += MOST) {                                                       \
            type tile[MOST] __attribute__((aligned(MOVE_LINE)));                                   \
            const type *a = (const type *)source[0] + i, *b = (const type *)source[1] + i;         \
            for (int k = 0; k < MOST; k++) tile[k] = (type)op((as)a[k], (as)b[k]);                 \
            for (int32_t s = 2; s < sources; s++) {                                                \
                const type *c = (const type *)source[s] + i;                                       \
                for (int k = 0; k < MOST; k++) tile[k] = (type)op((as)tile[k], (as)c[k]);          \
            }                                                                                      \
            for (int32_t d = 0; d < destinations; d++) {                                           \
                char *to = (char *)((type *)destination[d] + i);                                   \
                if (stream && streamed[d])                                                         \
                    stream(to, tile, REDUCE_MOVE_TILE);                                            \
                else                                                                               \
                    memcpy(to, tile, REDUCE_MOVE_TILE);                                            \
            }                                                                                      \
        }                                                                                          \
        if (i == end) return;                                                                      \
        type rest[MOST];                                                                           \
        int64_t n = end - i;                                                                       \
        const type *a = (const type *)source[0] + i, *b = (const type *)source[1] + i;             \
        for (int64_t k = 0; k < n; k++) rest[k] = (type)op((as)a[k], (as)b[k]);                    \
        for (int32_t s = 2; s < sources; s++) {                                                    \
            const type *c = (const type *)source[s] + i;                                           \
            for (int64_t k = 0; k < n; k++) rest[k] = (type)op((as)rest[k], (as)c[k]);             \
        }                                                                                          \
        for (int32_t d = 0; d < destinations; d++)                                                 \
            memcpy((type *)destination[d] + i, rest, (size_t)n * sizeof(type));                    \
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

INTO(sum_f32, float, float, SUM)
INTO(max_f32, float, float, MAX)
INTO(min_f32, float, float, MIN)
INTO(prod_f32, float, float, PROD)
MOVE_CLONED static void widen_bf16(float *restrict out, const uint16_t *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = wefti_bf16_to_f32(in[i]);
}
MOVE_CLONED static void narrow_bf16(uint16_t *restrict out, const float *restrict in, int64_t n) {
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
        float sum[MOVE_BLOCK], next[MOVE_BLOCK];                                                   \
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
#define BY_TILES(name)                                                                             \
    { NULL, name, name##_pair }
#define BY_BLOCKS(name)                                                                            \
    { name, NULL, NULL }
static const reduce_kernels kernels[WEFT_DTYPES][WEFTI_REDUCTIONS - 1] = {
    [WEFT_F32] = {BY_TILES(sum_f32), BY_TILES(max_f32), BY_TILES(min_f32), BY_TILES(prod_f32)},
    [WEFT_BF16] = {BY_BLOCKS(sum_bf16), BY_BLOCKS(max_bf16), BY_BLOCKS(min_bf16),
                   BY_BLOCKS(prod_bf16)},
    [WEFT_F16] = {BY_BLOCKS(sum_f16), BY_BLOCKS(max_f16), BY_BLOCKS(min_f16), BY_BLOCKS(prod_f16)},
    [WEFT_F64] = {BY_TILES(sum_f64), BY_TILES(max_f64), BY_TILES(min_f64), BY_TILES(prod_f64)},
    [WEFT_I32] = {BY_TILES(sum_i32), BY_TILES(max_i32), BY_TILES(min_i32), BY_TILES(prod_i32)},
    [WEFT_I64] = {BY_TILES(sum_i64), BY_TILES(max_i64), BY_TILES(min_i64), BY_TILES(prod_i64)},
    [WEFT_U16] = {BY_TILES(sum_u16), BY_TILES(max_u16), BY_TILES(min_u16), BY_TILES(prod_u16)},
    [WEFT_U8] = {BY_TILES(sum_u8), BY_TILES(max_u8), BY_TILES(min_u8), BY_TILES(prod_u8)},
    [WEFT_BOOL] = {BY_TILES(or_bool), BY_TILES(or_bool), BY_TILES(and_bool), BY_TILES(and_bool)},
};

static const reduce_kernels *kernel_of(weft_dtype dtype, wefti_reduction reduction) {
    return &kernels[dtype][reduction - 1];
}

static void *at(void *array, int64_t element, size_t bytes) {
    return (char *)array + element * (int64_t)bytes;
}

static void reduce_blocks(reduce_block *kernel, size_t bytes, const void *const *source,
                          int32_t sources, void *const *destination, int32_t destinations,
                          int64_t first, int64_t count) {
    unsigned char block[sizeof(double) * MOVE_BLOCK] __attribute__((aligned(MOVE_LINE)));
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < MOVE_BLOCK ? count - done : MOVE_BLOCK, where = first + done;
        kernel(block, source, sources, where, n);
        for (int32_t d = 0; d < destinations; d++)
            memcpy(at(destination[d], where, bytes), block, (size_t)n * bytes);
        done += n;
    }
}

/* Elements of [first, first + count) after which a streamed destination has a line that begins. */
static int64_t find_line(void *const *destination, const bool *streamed, int32_t arrays,
                         size_t bytes, int64_t first, int64_t count) {
    for (int32_t d = 0; d < arrays; d++) {
        if (!streamed[d]) continue;
        size_t before =
            (MOVE_LINE - (uintptr_t)at(destination[d], first, bytes) % MOVE_LINE) % MOVE_LINE;
        if (before % bytes != 0) continue;
        return (int64_t)(before / bytes) < count ? (int64_t)(before / bytes) : count;
    }
    return 0;
}

void wefti_move_reduce_to_all(weft_dtype dtype, wefti_reduction reduction,
                              const void *const *source, void *const *destination, bool *streamed,
                              int32_t arrays, int64_t first, int64_t count) {
    const reduce_kernels *kernel = kernel_of(dtype, reduction);
    size_t bytes = weft_dtype_bytes(dtype);
    if (kernel->block) {
        reduce_blocks(kernel->block, bytes, source, arrays, destination, arrays, first, count);
        return;
    }
    if (streamed && !wefti_copy_streaming(wefti_copy_best())) streamed = NULL;
    if (arrays == 2 && !streamed) {
        kernel->pair(source, destination, first, first + count);
        return;
    }
    if (streamed) {
        int64_t before = find_line(destination, streamed, arrays, bytes, first, count);
        kernel->tiles(source, arrays, destination, NULL, arrays, first, first + before);
        first += before;
        count -= before;
        for (int32_t d = 0; d < arrays; d++)
            streamed[d] &= (uintptr_t)at(destination[d], first, bytes) % MOVE_LINE == 0;
    }
    kernel->tiles(source, arrays, destination, streamed, arrays, first, first + count);
    if (streamed) wefti_copy_order();
}

/* One run: neighbours. */
static void reduce_run(const wefti_copy_move *move, const void *const *source, void *destination) {
    size_t bytes = weft_dtype_bytes(move->dtype);
    if (move->sources == 1) {
        if (source[0] != destination)
            wefti_copy(destination, source[0], (size_t)move->run * bytes, move->streamed);
        return;
    }
    const reduce_kernels *kernel = kernel_of(move->dtype, move->reduction);
    if (kernel->block)
        reduce_blocks(kernel->block, bytes, source, move->sources, &destination, 1, 0, move->run);
    else
        kernel->tiles(source, move->sources, &destination, NULL, 1, 0, move->run);
}

void wefti_move_run(const wefti_copy_move *move, const void *const *source, void *destination) {
    const char *from[move->sources]; /* at least 1, at most WEFTI_COMM_MEMBERS */
    int64_t index[WEFT_MAX_RANK] = {0}, bytes = (int64_t)weft_dtype_bytes(move->dtype);
    char *to = (char *)destination + move->to.offset * bytes;
    for (int32_t s = 0; s < move->sources; s++)
        from[s] = (const char *)source[s] + move->from[s].offset * bytes;
    for (;;) {
        reduce_run(move, (const void *const *)from, to);
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
