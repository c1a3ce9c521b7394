/* bf16 in the order of AMX tiles, and the tile registers. For files compiled for AMX, or with
 * WEFTI_EMULATED for any processor. These files define VL as 16.
 *
 * Panels lie as tiles do, one kilobyte after the other:
 *   A: [k / 32][row / 16][row % 16][k % 32]
 *   B: [k / 32][column / 16][k % 32 / 2][column % 16][k % 2]   (pairs of k side by side) */
#ifndef WEFTI_CPU_TILE_H
#define WEFTI_CPU_TILE_H

#include "backend/cpu/tile/emulated.h"
#include "backend/cpu/tile/wide.h"

enum {
    SIDE = 16,           /* rows and columns of a tile of sums */
    DEPTH = 32,          /* lines of k of a tile */
    TILE = SIDE * DEPTH, /* elements of a tile: 1 KiB */
    EDGE = 2 * SIDE,     /* rows and columns of the register tile */
};

/* The eight registers have numbers, which must be constants. TILE_LOAD and TILE_STORE move 16 rows
 * of 64 bytes, `stride` bytes apart. TILE_DOT: sums += left right (TDPBF16PS). */
#if defined(WEFTI_EMULATED)

#define TILE_ZERO(tile) wefti_emulated_tile_zero(tile)
#define TILE_LOAD(tile, from, stride) wefti_emulated_tile_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) wefti_emulated_tile_store(tile, to, stride)
#define TILE_DOT(sums, left, right) wefti_emulated_tile_dot(sums, left, right)

INLINE void tiles_configure(void) {
    wefti_emulated_tiles_configure();
}
INLINE void tiles_release(void) {
    wefti_emulated_tiles_release();
}

#elif defined(__AMX_BF16__) || defined(__AMXBF16__) /* gcc; older clang */

#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_DOT(sums, left, right) _tile_dpbf16ps(sums, left, right)

INLINE void tiles_configure(void) {
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = SIDE;
    }
    /* For gcc the intrinsic reads only 8 bytes. The asm makes all 64 bytes be stored before it. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}
INLINE void tiles_release(void) {
    _tile_release();
}

#endif

#endif
