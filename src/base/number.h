/* Small arithmetic on whole numbers and reals. */
#pragma once
#include <stdint.h>

/* Buffers in arenas, workspaces and messages begin at multiples of this many bytes: a cache line, a
 * vector register. */
enum { WEFTI_ALIGNMENT = 64 };

/* The least multiple of `unit` that is at least n; n >= 0, unit > 0. */
static inline int64_t wefti_round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}
static inline int64_t wefti_aligned(int64_t bytes) {
    return wefti_round_up(bytes, WEFTI_ALIGNMENT);
}
/* The largest multiple that is at most n. */
static inline int64_t wefti_round_down(int64_t n, int64_t unit) {
    return n - n % unit;
}
static inline int64_t wefti_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t wefti_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}
/* Makes *most the larger of both. */
static inline void wefti_keep_most(int64_t *most, int64_t n) {
    if (n > *most) *most = n;
}
static inline double wefti_larger(double a, double b) {
    return a > b ? a : b;
}
static inline double wefti_smaller(double a, double b) {
    return a < b ? a : b;
}
