/* Dtypes, shapes and their text, for internal use. Descriptors are public: weft/types.h. */
#ifndef WEFTI_TENSOR_H
#define WEFTI_TENSOR_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "weft/types.h"

typedef struct wefti_shape_text {
    char text[200];
} wefti_shape_text;

wefti_shape_text wefti_desc_text(const weft_desc *desc); /* "f32[4, 256, 768]" */
bool wefti_desc_equal(const weft_desc *a, const weft_desc *b);
bool wefti_dtype_parse(const char *text, weft_dtype *out); /* "bf16" */
bool wefti_dtype_is_float(weft_dtype dtype);
/* Checks descriptors from outside: rank in range, sizes >= 0, bytes representable. */
weft_status wefti_desc_check(const weft_desc *desc) WEFT_CHECKED;
void wefti_strides(const weft_desc *desc, int64_t out[WEFT_MAX_RANK]); /* in elements */
/* NumPy broadcasting of two shapes; WEFT_E_SHAPE if they do not fit. */
weft_status wefti_broadcast(const weft_desc *a, const weft_desc *b, weft_desc *out) WEFT_CHECKED;

/* Element conversions, round to nearest even. */
static inline float wefti_bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint16_t wefti_f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float wefti_f16_to_f32(uint16_t h);
uint16_t wefti_f32_to_f16(float f);

/* Converts `count` elements between any two dtypes, through double. Integers saturate; NaN becomes
 * integer 0. */
void wefti_convert(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t count);
double wefti_load(weft_dtype dtype, const void *src, int64_t index);
/* The same for integers and booleans, exact; 0 for other dtypes. */
int64_t wefti_load_integer(weft_dtype dtype, const void *src, int64_t index);
void wefti_store_integer(weft_dtype dtype, void *dst, int64_t index, int64_t value);
void wefti_store(weft_dtype dtype, void *dst, int64_t index, double value);

#endif
