/* See emulated.h. */
#include "backend/cpu/tile/emulated.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, EMULATED_ROWS = 16, ROW_BYTES = 64, EMULATED_COLUMNS = 16 };

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

float wefti_emulated_vdpbf16ps(float sum, const uint16_t a[2], const uint16_t b[2]) {
    sum = multiply_add(from_bf16(a[1]), from_bf16(b[1]), sum);
    return multiply_add(from_bf16(a[0]), from_bf16(b[0]), sum);
}

static _Thread_local bool configured;
static _Thread_local _Alignas(64) unsigned char registers[TILES][EMULATED_ROWS][ROW_BYTES];

static unsigned char (*rows_of(int tile))[ROW_BYTES] {
    if (!configured || tile < 0 || tile >= TILES) abort();
    return registers[tile];
}

void wefti_emulated_tiles_configure(void) {
    configured = true;
    memset(registers, 0, sizeof registers);
}
void wefti_emulated_tiles_release(void) {
    configured = false;
}
void wefti_emulated_tile_zero(int tile) {
    memset(rows_of(tile), 0, sizeof registers[0]);
}
void wefti_emulated_tile_load(int tile, const void *from, size_t stride) {
    unsigned char(*rows)[ROW_BYTES] = rows_of(tile);
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy(rows[r], (const char *)from + (size_t)r * stride, ROW_BYTES);
}
void wefti_emulated_tile_store(int tile, void *to, size_t stride) {
    unsigned char(*rows)[ROW_BYTES] = rows_of(tile);
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy((char *)to + (size_t)r * stride, rows[r], ROW_BYTES);
}

enum { PRODUCTS = 2 * EMULATED_COLUMNS }; /* of one k: an even and an odd one for each column */

/* partial += left right for one pair of k. Without tiny results one fused operation does it. */
static inline __attribute__((always_inline)) void add_products(const float *left,
                                                               const float *right, float *partial) {
    float next[PRODUCTS];
    int tiny = 0;
    for (int n = 0; n < PRODUCTS; n++) next[n] = fmaf(left[n], right[n], partial[n]);
    for (int n = 0; n < PRODUCTS; n++) tiny |= fabsf(next[n]) <= FLT_MIN;
    if (tiny)
        for (int n = 0; n < PRODUCTS; n++) next[n] = multiply_add(left[n], right[n], partial[n]);
    memcpy(partial, next, sizeof next);
}

static inline __attribute__((always_inline)) void dot(unsigned char (*sums)[ROW_BYTES],
                                                      unsigned char (*left)[ROW_BYTES],
                                                      unsigned char (*right)[ROW_BYTES]) {
    float b[EMULATED_ROWS][PRODUCTS]; /* pairs of k side by side, as in the register */
    for (int k = 0; k < EMULATED_ROWS; k++) {
        uint16_t line[PRODUCTS];
        memcpy(line, right[k], sizeof line);
        for (int n = 0; n < PRODUCTS; n++) b[k][n] = from_bf16(line[n]);
    }
    for (int m = 0; m < EMULATED_ROWS; m++) {
        uint16_t a[2 * EMULATED_ROWS];
        float partial[PRODUCTS] = {0}, c[EMULATED_COLUMNS];
        memcpy(a, left[m], sizeof a);
        memcpy(c, sums[m], sizeof c);
        for (int k = 0; k < EMULATED_ROWS; k++) {
            const float even = from_bf16(a[2 * k]), odd = from_bf16(a[2 * k + 1]);
            float pairs[PRODUCTS];
            for (int n = 0; n < PRODUCTS; n++) pairs[n] = n % 2 ? odd : even;
            add_products(pairs, b[k], partial);
        }
        for (int n = 0; n < EMULATED_COLUMNS; n++)
            c[n] = add(c[n], add(partial[2 * n], partial[2 * n + 1]));
        memcpy(sums[m], c, sizeof c);
    }
}

#if defined(__x86_64__)
/* fmaf is an instruction here, and a call otherwise. The bits are the same. */
__attribute__((target("avx2,fma"))) static void dot_fused(unsigned char (*sums)[ROW_BYTES],
                                                          unsigned char (*left)[ROW_BYTES],
                                                          unsigned char (*right)[ROW_BYTES]) {
    dot(sums, left, right);
}
#endif

void wefti_emulated_tile_dot(int sums, int left, int right) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        dot_fused(rows_of(sums), rows_of(left), rows_of(right));
        return;
    }
#endif
    dot(rows_of(sums), rows_of(left), rows_of(right));
}
