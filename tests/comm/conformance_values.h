/* Inputs and expected results of the conformance suite: calls that all ranks derive from one seed,
 * the values of each member, and a naive reference that reduces element by element in the group's
 * order. It shares only the conversion of halves with the library. */
#ifndef CONFORMANCE_VALUES_H
#define CONFORMANCE_VALUES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensor/tensor.h"
#include "weft/collective.h"

enum { CONFORMANCE_RANKS = 8 };

typedef enum conformance_kind {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    NEIGHBORS,
    MESSAGE,
    BARRIER,
    CONFORMANCE_KINDS
} conformance_kind;

static const char *const conformance_text[CONFORMANCE_KINDS] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",        "all_to_all_v", "broadcast",
    "reduce",     "gather",     "scatter",        "neighbor_exchange", "message",      "barrier"};

/* One call as all members see it. */
typedef struct conformance_call {
    conformance_kind kind;
    weft_dtype dtype;
    weft_reduction reduction;
    int members, root, other, tag; /* a message goes from root to other */
    int64_t count;
    int64_t blocks[CONFORMANCE_RANKS][CONFORMANCE_RANKS]; /* [from][to]; neighbours: -1, none */
    int order[CONFORMANCE_RANKS];                         /* members, by ascending world rank */
    uint64_t salt;
} conformance_call;

static inline uint64_t conformance_hash(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

typedef struct conformance_random {
    uint64_t seed, next;
} conformance_random;
static inline int64_t conformance_pick(conformance_random *r, int64_t low, int64_t high) {
    uint64_t h = conformance_hash(r->seed + 0x1234567 * ++r->next);
    return low + (int64_t)(h % (uint64_t)(high - low + 1));
}

/* ---- values ---- */

typedef union conformance_value {
    uint64_t integer;
    double real;
    float single;
} conformance_value;

/* Here, and not the library's, so that it is inlined: all elements of all calls come by. */
static inline size_t conformance_size_of(weft_dtype dtype) {
    switch (dtype) {
#define CONFORMANCE_SIZE_ROW(name, bytes, text, st)                                                \
    case WEFT_##name:                                                                              \
        return bytes;
        WEFT_DTYPE_LIST(CONFORMANCE_SIZE_ROW)
    default:
        return 0;
    }
}

/* An element as a number, and back. Little endian. */
static inline uint64_t conformance_load(weft_dtype dtype, const void *p) {
    uint64_t eight = 0;
    uint32_t four;
    uint16_t two;
    switch (conformance_size_of(dtype)) { /* the compiler knows each case's size */
    case 8:
        memcpy(&eight, p, sizeof eight);
        return eight;
    case 4:
        memcpy(&four, p, sizeof four);
        return four;
    case 2:
        memcpy(&two, p, sizeof two);
        return two;
    default:
        return *(const unsigned char *)p;
    }
}
static inline void conformance_store(weft_dtype dtype, uint64_t v, void *out) {
    uint32_t four = (uint32_t)v;
    uint16_t two = (uint16_t)v;
    switch (conformance_size_of(dtype)) {
    case 8:
        memcpy(out, &v, sizeof v);
        break;
    case 4:
        memcpy(out, &four, sizeof four);
        break;
    case 2:
        memcpy(out, &two, sizeof two);
        break;
    default:
        *(unsigned char *)out = (unsigned char)v;
    }
}

static inline bool conformance_is_float(weft_dtype dtype) {
    return dtype == WEFT_F32 || dtype == WEFT_F64 || dtype == WEFT_BF16 || dtype == WEFT_F16;
}

static inline void conformance_narrow(weft_dtype dtype, float f, void *out) {
    if (dtype == WEFT_F32) {
        memcpy(out, &f, sizeof f);
        return;
    }
    uint16_t half = dtype == WEFT_BF16 ? wefti_f32_to_bf16(f) : wefti_f32_to_f16(f);
    memcpy(out, &half, sizeof half);
}

/* Element i of what a member gives: of the whole range for integers, which may wrap; for floats
 * some NaN and negative zeros among numbers of order one. */
static inline void conformance_give(const conformance_call *c, int member, int64_t i, void *out) {
    uint64_t h = conformance_hash(c->salt ^ (uint64_t)(member + 1) << 56 ^ (uint64_t)i);
    if (!conformance_is_float(c->dtype)) {
        conformance_store(c->dtype, c->dtype == WEFT_BOOL ? h >> 20 & 1 : h, out);
        return;
    }
    float f = (float)((int32_t)(h >> 44) - (1 << 19)) / 65536.0f;
    if ((h & 0xFFF) == 0) f = NAN;
    if ((h & 0xFFF) == 1) f = -0.0f;
    double d = (double)f;
    if (c->dtype == WEFT_F64)
        memcpy(out, &d, sizeof d);
    else
        conformance_narrow(c->dtype, f, out);
}

static inline float conformance_widen(weft_dtype dtype, const void *p) {
    uint16_t half;
    float f;
    if (dtype == WEFT_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&half, p, sizeof half);
    return dtype == WEFT_BF16 ? wefti_bf16_to_f32(half) : wefti_f16_to_f32(half);
}

#define CONFORMANCE_REDUCE(name, type)                                                             \
    static inline type name(weft_reduction reduction, type a, type b) {                            \
        if (reduction == WEFT_REDUCE_SUM) return (type)(a + b);                                    \
        if (reduction == WEFT_REDUCE_PROD) return (type)(a * b);                                   \
        if (a != a) return a;                                                                      \
        if (b != b) return b;                                                                      \
        if (reduction == WEFT_REDUCE_MAX) return b > a ? b : a;                                    \
        return b < a ? b : a;                                                                      \
    }
CONFORMANCE_REDUCE(conformance_f32, float)
CONFORMANCE_REDUCE(conformance_f64, double)
CONFORMANCE_REDUCE(conformance_u64, uint64_t)
CONFORMANCE_REDUCE(conformance_i64, int64_t)

static inline int64_t conformance_signed(weft_dtype dtype, uint64_t v) {
    return dtype == WEFT_I32 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v;
}

static inline uint64_t conformance_integers(const conformance_call *c, uint64_t a, uint64_t b) {
    bool wraps = c->reduction == WEFT_REDUCE_SUM || c->reduction == WEFT_REDUCE_PROD;
    if (c->dtype == WEFT_BOOL) {
        bool any = c->reduction == WEFT_REDUCE_SUM || c->reduction == WEFT_REDUCE_MAX;
        return any ? a | b : a & b;
    }
    bool has_sign = c->dtype == WEFT_I32 || c->dtype == WEFT_I64;
    if (wraps || !has_sign) return conformance_u64(c->reduction, a, b);
    return (uint64_t)conformance_i64(c->reduction, conformance_signed(c->dtype, a),
                                     conformance_signed(c->dtype, b));
}

/* Element i of all members, reduced in their order. */
static inline void conformance_reduced(const conformance_call *c, int64_t i, void *out) {
    unsigned char next[8];
    if (c->dtype == WEFT_F64) {
        double sum = 0, x;
        for (int m = 0; m < c->members; m++) {
            conformance_give(c, c->order[m], i, next);
            memcpy(&x, next, sizeof x);
            sum = m ? conformance_f64(c->reduction, sum, x) : x;
        }
        memcpy(out, &sum, sizeof sum);
    } else if (c->dtype == WEFT_F32 || c->dtype == WEFT_BF16 || c->dtype == WEFT_F16) {
        float sum = 0;
        for (int m = 0; m < c->members; m++) {
            conformance_give(c, c->order[m], i, next);
            float x = conformance_widen(c->dtype, next);
            sum = m ? conformance_f32(c->reduction, sum, x) : x;
        }
        conformance_narrow(c->dtype, sum, out);
    } else {
        uint64_t sum = 0;
        for (int m = 0; m < c->members; m++) {
            conformance_give(c, c->order[m], i, next);
            uint64_t x = conformance_load(c->dtype, next);
            sum = m ? conformance_integers(c, sum, x) : x;
        }
        conformance_store(c->dtype, sum, out);
    }
}

static inline bool conformance_same(weft_dtype dtype, const void *a, const void *b) {
    if (conformance_load(dtype, a) == conformance_load(dtype, b)) return true;
    if (dtype == WEFT_F64) {
        double x, y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        return isnan(x) && isnan(y);
    }
    if (!conformance_is_float(dtype)) return false;
    return isnan(conformance_widen(dtype, a)) && isnan(conformance_widen(dtype, b));
}

/* ---- expected blocks of each member ---- */

static inline int64_t conformance_block(const conformance_call *c, int from, int to) {
    return c->blocks[from][to] > 0 ? c->blocks[from][to] : 0;
}

static inline int64_t conformance_source(const conformance_call *c, int m) {
    int64_t blocks = 0;
    switch (c->kind) {
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return c->count * c->members;
    case ALL_TO_ALL_V:
    case NEIGHBORS:
        for (int to = 0; to < c->members; to++) blocks += conformance_block(c, m, to);
        return blocks;
    case BROADCAST:
    case MESSAGE:
        return m == c->root ? c->count : 0;
    case SCATTER:
        return m == c->root ? c->count * c->members : 0;
    case BARRIER:
        return 0;
    default:
        return c->count;
    }
}

static inline int64_t conformance_destination(const conformance_call *c, int m) {
    int64_t blocks = 0;
    switch (c->kind) {
    case ALL_GATHER:
    case ALL_TO_ALL:
        return c->count * c->members;
    case ALL_TO_ALL_V:
    case NEIGHBORS:
        for (int from = 0; from < c->members; from++) blocks += conformance_block(c, from, m);
        return blocks;
    case BROADCAST:
        return m == c->root ? 0 : c->count;
    case MESSAGE:
        return m == c->other ? c->count : 0;
    case REDUCE:
        return m == c->root ? c->count : 0;
    case GATHER:
        return m == c->root ? c->count * c->members : 0;
    case BARRIER:
        return 0;
    default:
        return c->count;
    }
}

/* Element k of what member m gets. */
static inline void conformance_expected(const conformance_call *c, int m, int64_t k, void *out) {
    int from = 0;
    int64_t at = 0;
    switch (c->kind) {
    case ALL_REDUCE:
    case REDUCE:
        conformance_reduced(c, k, out);
        break;
    case REDUCE_SCATTER:
        conformance_reduced(c, m * c->count + k, out);
        break;
    case ALL_GATHER:
    case GATHER:
        conformance_give(c, (int)(k / c->count), k % c->count, out);
        break;
    case ALL_TO_ALL:
        conformance_give(c, (int)(k / c->count), m * c->count + k % c->count, out);
        break;
    case SCATTER:
        conformance_give(c, c->root, m * c->count + k, out);
        break;
    case ALL_TO_ALL_V:
    case NEIGHBORS:
        while (k >= conformance_block(c, from, m)) k -= conformance_block(c, from++, m);
        for (int to = 0; to < m; to++) at += conformance_block(c, from, to);
        conformance_give(c, from, at + k, out);
        break;
    default:
        conformance_give(c, c->root, k, out);
    }
}

#endif
