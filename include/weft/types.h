/* Element types and tensor descriptors. */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes, text, safetensors name */
#define WEFT_DTYPE_LIST(X)                                                                         \
    X(F32, 4, "f32", "F32")                                                                        \
    X(BF16, 2, "bf16", "BF16")                                                                     \
    X(F16, 2, "f16", "F16")                                                                        \
    X(F64, 8, "f64", "F64")                                                                        \
    X(I32, 4, "i32", "I32")                                                                        \
    X(I64, 8, "i64", "I64")                                                                        \
    X(U16, 2, "u16", "U16")                                                                        \
    X(U8, 1, "u8", "U8")                                                                           \
    X(BOOL, 1, "bool", "BOOL")

typedef enum weft_dtype {
#define WEFT_DTYPE_ROW(name, bytes, text, st) WEFT_##name,
    WEFT_DTYPE_LIST(WEFT_DTYPE_ROW)
#undef WEFT_DTYPE_ROW
        WEFT_DTYPES
} weft_dtype;

enum { WEFT_MAX_RANK = 8 };

/* The type of a tensor: row-major, contiguous, little endian. Sizes may be 0 or 1. */
typedef struct weft_desc {
    weft_dtype dtype;
    int rank; /* 0 (a scalar) to WEFT_MAX_RANK */
    int64_t shape[WEFT_MAX_RANK];
} weft_desc;

/* Scaling of rotary positions (weft_rope) for texts longer than those of the first training. The
 * first row that applies decides:
 *
 *   factor 0             no scaling
 *   beta_fast > 0        YaRN (Peng et al., 2023), below
 *   original_context 0   all frequencies are divided by factor (Chen et al., "Extending context
 *                        window", 2023)
 *   else                 Llama 3.1, below
 *
 * Llama 3.1: frequencies with a wavelength above original_context / low_freq_factor are divided by
 * factor. Those below original_context / high_freq_factor stay, and those between are blended.
 *
 * YaRN: pairs that turn more than beta_fast times in original_context stay. Pairs that turn less
 * than beta_slow times are divided by factor. Those between are blended by their number; the bounds
 * are rounded outwards unless `exact`. YaRN's factor for queries and keys is not part of rope: set
 * its square in the scale of attention. */
typedef struct weft_rope_scaling {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_context;
    double beta_fast, beta_slow;
    bool exact;
} weft_rope_scaling;

/** "f32"; "?" for a value outside the enum. Static storage. */
WEFT_API const char *weft_dtype_text(weft_dtype dtype);
/** Bytes of one element; 0 for a value outside the enum. */
WEFT_API size_t weft_dtype_bytes(weft_dtype dtype);

/** A descriptor with 1 to 8 sizes: WEFT_DESC(WEFT_F32, batch, 4). */
#ifdef __cplusplus
#define WEFT_DESC(dtype, ...) (weft_desc{dtype, WEFTI_SIZES(__VA_ARGS__), {__VA_ARGS__}})
#else
#define WEFT_DESC(dtype, ...) ((weft_desc){dtype, WEFTI_SIZES(__VA_ARGS__), {__VA_ARGS__}})
#endif
#define WEFTI_SIZES(...) WEFTI_NINTH(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define WEFTI_NINTH(a, b, c, d, e, f, g, h, count, ...) count
/** A descriptor from an array, or of a scalar: weft_desc_of(WEFT_F32, 0, NULL). A rank outside 0..8
 * gives rank -1, which every call refuses with WEFT_E_SHAPE. */
WEFT_API weft_desc weft_desc_of(weft_dtype dtype, int rank, const int64_t *shape);
/** The number of elements, 1 for a scalar, and the size in bytes. The descriptor must be one that a
 * call of weft has accepted, so that they do not overflow. */
WEFT_API int64_t weft_desc_elems(const weft_desc *desc);
WEFT_API int64_t weft_desc_bytes(const weft_desc *desc);

#ifdef __cplusplus
}
#endif
#endif
