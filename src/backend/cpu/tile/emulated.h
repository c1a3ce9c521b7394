/* TDPBF16PS and VDPBF16PS in plain C, bit for bit. Only tests use them, through kernels that are
 * compiled with WEFTI_EMULATED.
 *
 * Both instructions multiply and add with one rounding to nearest even. Both take subnormal
 * operands as zero and write subnormal results as zero. Both ignore MXCSR and do not change it.
 * Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, the operation
 * sections of VDPBF16PS and TDPBF16PS. TDPBF16PS, for one element of the result:
 *   even = odd = 0
 *   for each pair p of k, in ascending order:
 *     even = a[2 p] b[2 p] + even             (fused, DAZ = FTZ = 1, round to nearest even)
 *     odd = a[2 p + 1] b[2 p + 1] + odd       (the same)
 *   c = c + (even + odd)                      (two additions, DAZ = FTZ = 1, the same rounding) */
#ifndef WEFTI_CPU_TILE_EMULATED_H
#define WEFTI_CPU_TILE_EMULATED_H

#include <stddef.h>
#include <stdint.h>

/* For each of 16 sums: sum + a[1] b[1], then + a[0] b[0], where a and b are its pairs. */
void wefti_emulated_vdpbf16ps(float sums[16], const uint16_t left[32], const uint16_t right[32]);

typedef unsigned char wefti_emulated_row[64];
/* sums += left right, of 16 rows each. */
void wefti_emulated_tdpbf16ps(wefti_emulated_row *sums, const wefti_emulated_row *left,
                              const wefti_emulated_row *right);

/* The eight tile registers of the calling thread, each 16 rows of 64 bytes. Every use between
 * `release` and `configure` aborts, because the processor would raise an exception. */
void wefti_emulated_tiles_configure(void);
void wefti_emulated_tiles_release(void);
void wefti_emulated_tile_zero(int tile);
void wefti_emulated_tile_load(int tile, const void *from, size_t stride);
void wefti_emulated_tile_store(int tile, void *to, size_t stride);
/* sums += left right, as TDPBF16PS does. */
void wefti_emulated_tile_dot(int sums, int left, int right);

#endif
