/* The arithmetic of emulated.h, on registers. It is compiled without sanitizers, under which it
 * would take most of the time of the tests: it touches no memory but the arguments, of fixed size.
 * Loads and stores are in emulated.c. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/tile/emulated.h"

enum { ROW_PAIRS = 16, ROW_FLOATS = 16, PRODUCTS = 2 * ROW_FLOATS };

static inline __attribute__((always_inline)) float flushed(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

static inline __attribute__((always_inline)) float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return flushed(value);
}

/* a b + c, rounded once. A result is subnormal if it would be subnormal with an unbounded exponent.
 * A result that reaches FLT_MIN only by rounding at subnormal precision becomes zero. */
static inline __attribute__((always_inline)) float multiply_add(float a, float b, float c) {
    const float sum = fmaf(a, b, flushed(c));
    if (fabsf(sum) > FLT_MIN) return sum;
    if (fabsf(sum) == FLT_MIN && fabsf(fmaf(a * 0x1p24f, b, c * 0x1p24f)) < FLT_MIN * 0x1p24f)
        return copysignf(0.0f, sum);
    return flushed(sum);
}

static inline __attribute__((always_inline)) float add(float a, float b) {
    return flushed(flushed(a) + flushed(b));
}

/* sums += left right, element by element. If no result is tiny, one fused operation does it. A sum
 * of zero is right: sums are flushed. */
static inline __attribute__((always_inline)) void
add_products(const float *left, const float *right, float *sums, int count) {
    float next[PRODUCTS];
    int tiny = 0;
    for (int n = 0; n < count; n++) next[n] = fmaf(left[n], right[n], sums[n]);
    for (int n = 0; n < count; n++) tiny |= (fabsf(next[n]) <= FLT_MIN) & (next[n] != 0.0f);
    if (tiny)
        for (int n = 0; n < count; n++) next[n] = multiply_add(left[n], right[n], sums[n]);
    memcpy(sums, next, (size_t)count * sizeof *next);
}

static inline __attribute__((always_inline)) void dot_tile(wefti_emulated_row *sums,
                                                           const wefti_emulated_row *left,
                                                           const wefti_emulated_row *right) {
    float b[ROW_PAIRS][PRODUCTS]; /* pairs of k side by side, as in the register */
    for (int k = 0; k < ROW_PAIRS; k++) {
        uint16_t line[PRODUCTS];
        memcpy(line, right[k], sizeof line);
        for (int n = 0; n < PRODUCTS; n++) b[k][n] = from_bf16(line[n]);
    }
    for (int m = 0; m < ROW_PAIRS; m++) {
        uint16_t a[2 * ROW_PAIRS];
        float partial[PRODUCTS] = {0}, c[ROW_FLOATS];
        memcpy(a, left[m], sizeof a);
        memcpy(c, sums[m], sizeof c);
        for (int k = 0; k < ROW_PAIRS; k++) {
            const float even = from_bf16(a[2 * k]), odd = from_bf16(a[2 * k + 1]);
            float pairs[PRODUCTS];
            for (int n = 0; n < PRODUCTS; n++) pairs[n] = n % 2 ? odd : even;
            add_products(pairs, b[k], partial, PRODUCTS);
        }
        for (int n = 0; n < ROW_FLOATS; n++)
            c[n] = add(c[n], add(partial[2 * n], partial[2 * n + 1]));
        memcpy(sums[m], c, sizeof c);
    }
}

static inline __attribute__((always_inline)) void dot_lanes(float *sums, const uint16_t *left,
                                                            const uint16_t *right) {
    float a[ROW_FLOATS], b[ROW_FLOATS], c[ROW_FLOATS];
    for (int n = 0; n < ROW_FLOATS; n++) c[n] = flushed(sums[n]);
    for (int half = 1; half >= 0; half--) {
        for (int n = 0; n < ROW_FLOATS; n++) {
            a[n] = from_bf16(left[2 * n + half]);
            b[n] = from_bf16(right[2 * n + half]);
        }
        add_products(a, b, c, ROW_FLOATS);
    }
    memcpy(sums, c, sizeof c);
}

#if defined(__x86_64__)
/* fmaf is an instruction here, and a call otherwise. The bits are the same. */
__attribute__((target("avx2,fma"))) static void fused_tile(wefti_emulated_row *sums,
                                                           const wefti_emulated_row *left,
                                                           const wefti_emulated_row *right) {
    dot_tile(sums, left, right);
}
__attribute__((target("avx2,fma"))) static void fused_lanes(float *sums, const uint16_t *left,
                                                            const uint16_t *right) {
    dot_lanes(sums, left, right);
}
static bool has_fused(void) {
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}
#else
#define fused_tile dot_tile
#define fused_lanes dot_lanes
static bool has_fused(void) {
    return false;
}
#endif

void wefti_emulated_tdpbf16ps(wefti_emulated_row *sums, const wefti_emulated_row *left,
                              const wefti_emulated_row *right) {
    if (has_fused())
        fused_tile(sums, left, right);
    else
        dot_tile(sums, left, right);
}

void wefti_emulated_vdpbf16ps(float sums[16], const uint16_t left[32], const uint16_t right[32]) {
    if (has_fused())
        fused_lanes(sums, left, right);
    else
        dot_lanes(sums, left, right);
}
