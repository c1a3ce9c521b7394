/* Dtypes, shapes, conversions. */
#include "tensor/tensor.h"

#include <stdio.h>

const char *weft_dtype_text(weft_dtype dtype) {
    switch (dtype) {
#define WEFT_DTYPE_ROW(name, bytes, text, st)                                                      \
    case WEFT_##name:                                                                              \
        return text;
        WEFT_DTYPE_LIST(WEFT_DTYPE_ROW)
#undef WEFT_DTYPE_ROW
    default:
        return "?";
    }
}

size_t weft_dtype_bytes(weft_dtype dtype) {
    switch (dtype) {
#define WEFT_DTYPE_ROW(name, bytes, text, st)                                                      \
    case WEFT_##name:                                                                              \
        return bytes;
        WEFT_DTYPE_LIST(WEFT_DTYPE_ROW)
#undef WEFT_DTYPE_ROW
    default:
        return 0;
    }
}

bool wefti_dtype_parse(const char *text, weft_dtype *out) {
    for (int d = 0; d < WEFT_DTYPES; d++)
        if (!strcmp(text, weft_dtype_text((weft_dtype)d))) {
            *out = (weft_dtype)d;
            return true;
        }
    return false;
}

bool wefti_dtype_is_float(weft_dtype dtype) {
    return dtype == WEFT_F32 || dtype == WEFT_BF16 || dtype == WEFT_F16 || dtype == WEFT_F64;
}

weft_desc weft_desc_of(weft_dtype dtype, int rank, const int64_t *shape) {
    weft_desc d = {.dtype = dtype, .rank = rank};
    if (rank < 0 || rank > WEFT_MAX_RANK) {
        d.rank = -1;
        return d;
    }
    for (int i = 0; i < rank; i++) d.shape[i] = shape[i];
    return d;
}

int64_t weft_desc_elems(const weft_desc *desc) {
    int64_t n = 1;
    for (int i = 0; i < desc->rank; i++) n *= desc->shape[i];
    return n;
}

int64_t weft_desc_bytes(const weft_desc *desc) {
    return weft_desc_elems(desc) * (int64_t)weft_dtype_bytes(desc->dtype);
}

weft_status wefti_desc_check(const weft_desc *desc) {
    WEFT_REQUIRE(desc->rank >= 0 && desc->rank <= WEFT_MAX_RANK, WEFT_E_SHAPE,
                 "a tensor has 0 to %d dimensions", WEFT_MAX_RANK);
    WEFT_REQUIRE((unsigned)desc->dtype < WEFT_DTYPES, WEFT_E_ARG, "unknown dtype %d",
                 (int)desc->dtype);
    int64_t bytes = (int64_t)weft_dtype_bytes(desc->dtype);
    for (int i = 0; i < desc->rank; i++) {
        WEFT_REQUIRE(desc->shape[i] >= 0, WEFT_E_SHAPE, "dimension %d has the negative size %lld",
                     i, (long long)desc->shape[i]);
        int64_t size = desc->shape[i] ? desc->shape[i] : 1;
        WEFT_REQUIRE(!__builtin_mul_overflow(bytes, size, &bytes), WEFT_E_SHAPE,
                     "a tensor of this shape has more bytes than 64 bits can count");
    }
    return WEFT_OK;
}

wefti_shape_text wefti_desc_text(const weft_desc *desc) {
    wefti_shape_text out;
    size_t cap = sizeof out.text, used = 0;
    int n = snprintf(out.text, cap, "%s[", weft_dtype_text(desc->dtype));
    used = (size_t)n;
    for (int i = 0; i < desc->rank && used < cap; i++) {
        n = snprintf(out.text + used, cap - used, "%s%lld", i ? ", " : "",
                     (long long)desc->shape[i]);
        used += (size_t)n;
    }
    if (used < cap) (void)snprintf(out.text + used, cap - used, "]");
    return out;
}

bool wefti_desc_equal(const weft_desc *a, const weft_desc *b) {
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

void wefti_strides(const weft_desc *desc, int64_t out[WEFT_MAX_RANK]) {
    int64_t stride = 1;
    for (int i = desc->rank - 1; i >= 0; i--) {
        out[i] = stride;
        stride *= desc->shape[i];
    }
}

weft_status wefti_broadcast(const weft_desc *a, const weft_desc *b, weft_desc *out) {
    weft_desc r = {.dtype = a->dtype, .rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 0; i < r.rank; i++) {
        int ia = i - (r.rank - a->rank), ib = i - (r.rank - b->rank);
        int64_t sa = ia < 0 ? 1 : a->shape[ia], sb = ib < 0 ? 1 : b->shape[ib];
        WEFT_REQUIRE(
            sa == sb || sa == 1 || sb == 1, WEFT_E_SHAPE,
            "%s and %s do not broadcast: dimension %d is %lld in one and %lld in the other",
            wefti_desc_text(a).text, wefti_desc_text(b).text, i, (long long)sa, (long long)sb);
        r.shape[i] = sa == 1 ? sb : sa;
    }
    *out = r;
    return WEFT_OK;
}

float wefti_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in f32 */
        float f = (float)fraction * (1.0f / 16777216.0f);
        return sign ? -f : f;
    }
    uint32_t bits = exponent == 31 ? sign | 0x7f800000u | fraction << 13
                                   : sign | (exponent + 112u) << 23 | fraction << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t wefti_f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (magnitude < 0x38800000u) { /* subnormal: count of 2^-24, rounded to even */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof scaled);
        return (uint16_t)(sign | (uint32_t)nearbyintf(scaled * 16777216.0f));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
    return (uint16_t)(sign | rounded >> 13);
}

double wefti_load(weft_dtype dtype, const void *src, int64_t i) {
    switch (dtype) {
    case WEFT_F32:
        return (double)((const float *)src)[i];
    case WEFT_BF16:
        return (double)wefti_bf16_to_f32(((const uint16_t *)src)[i]);
    case WEFT_F16:
        return (double)wefti_f16_to_f32(((const uint16_t *)src)[i]);
    case WEFT_F64:
        return ((const double *)src)[i];
    case WEFT_I32:
        return (double)((const int32_t *)src)[i];
    case WEFT_I64:
        return (double)((const int64_t *)src)[i];
    case WEFT_U16:
        return (double)((const uint16_t *)src)[i];
    case WEFT_U8:
        return (double)((const uint8_t *)src)[i];
    case WEFT_BOOL:
        return ((const uint8_t *)src)[i] ? 1.0 : 0.0;
    default:
        return 0.0;
    }
}

static double saturate(double v, double low, double high) {
    return v != v ? 0.0 : v < low ? low : v > high ? high : v;
}

void wefti_store(weft_dtype dtype, void *dst, int64_t i, double v) {
    switch (dtype) {
    case WEFT_F32:
        ((float *)dst)[i] = (float)v;
        break;
    case WEFT_BF16:
        ((uint16_t *)dst)[i] = wefti_f32_to_bf16((float)v);
        break;
    case WEFT_F16:
        ((uint16_t *)dst)[i] = wefti_f32_to_f16((float)v);
        break;
    case WEFT_F64:
        ((double *)dst)[i] = v;
        break;
    case WEFT_I32:
        ((int32_t *)dst)[i] = (int32_t)saturate(v, INT32_MIN, INT32_MAX);
        break;
    case WEFT_I64: /* the largest double below 2^63 */
        ((int64_t *)dst)[i] = (int64_t)saturate(v, -9223372036854775808.0, 9223372036854774784.0);
        break;
    case WEFT_U16:
        ((uint16_t *)dst)[i] = (uint16_t)saturate(v, 0, UINT16_MAX);
        break;
    case WEFT_U8:
        ((uint8_t *)dst)[i] = (uint8_t)saturate(v, 0, UINT8_MAX);
        break;
    case WEFT_BOOL:
        ((uint8_t *)dst)[i] = v != 0.0;
        break;
    default:
        break;
    }
}

int64_t wefti_load_integer(weft_dtype dtype, const void *src, int64_t i) {
    switch (dtype) {
    case WEFT_I32:
        return ((const int32_t *)src)[i];
    case WEFT_I64:
        return ((const int64_t *)src)[i];
    case WEFT_U16:
        return ((const uint16_t *)src)[i];
    case WEFT_U8:
        return ((const uint8_t *)src)[i];
    case WEFT_BOOL:
        return ((const uint8_t *)src)[i] != 0;
    default:
        return 0;
    }
}

static int64_t between(int64_t v, int64_t low, int64_t high) {
    return v < low ? low : v > high ? high : v;
}

void wefti_store_integer(weft_dtype dtype, void *dst, int64_t i, int64_t v) {
    switch (dtype) {
    case WEFT_I32:
        ((int32_t *)dst)[i] = (int32_t)between(v, INT32_MIN, INT32_MAX);
        break;
    case WEFT_I64:
        ((int64_t *)dst)[i] = v;
        break;
    case WEFT_U16:
        ((uint16_t *)dst)[i] = (uint16_t)between(v, 0, UINT16_MAX);
        break;
    case WEFT_U8:
        ((uint8_t *)dst)[i] = (uint8_t)between(v, 0, UINT8_MAX);
        break;
    case WEFT_BOOL:
        ((uint8_t *)dst)[i] = v != 0;
        break;
    default:
        break;
    }
}

void wefti_convert(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t count) {
    if (to == from) {
        memmove(dst, src, (size_t)count * weft_dtype_bytes(to));
        return;
    }
    if (from == WEFT_BF16 && to == WEFT_F32) { /* the pair of models' files, in vectors */
        for (int64_t i = 0; i < count; i++)
            ((float *)dst)[i] = wefti_bf16_to_f32(((const uint16_t *)src)[i]);
        return;
    }
    if (from == WEFT_F32 && to == WEFT_BF16) {
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = wefti_f32_to_bf16(((const float *)src)[i]);
        return;
    }
    for (int64_t i = 0; i < count; i++) wefti_store(to, dst, i, wefti_load(from, src, i));
}
