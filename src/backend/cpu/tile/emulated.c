/* See emulated.h. */
#include "backend/cpu/tile/emulated.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, EMULATED_ROWS = 16, ROW_BYTES = sizeof(wefti_emulated_row) };

static _Thread_local bool configured;
static _Thread_local _Alignas(64) wefti_emulated_row registers[TILES][EMULATED_ROWS];

static wefti_emulated_row *rows_of(int tile) {
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
    wefti_emulated_row *rows = rows_of(tile);
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy(rows[r], (const char *)from + (size_t)r * stride, ROW_BYTES);
}
void wefti_emulated_tile_store(int tile, void *to, size_t stride) {
    wefti_emulated_row *rows = rows_of(tile);
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy((char *)to + (size_t)r * stride, rows[r], ROW_BYTES);
}

void wefti_emulated_tile_dot(int sums, int left, int right) {
    wefti_emulated_tdpbf16ps(rows_of(sums), rows_of(left), rows_of(right));
}
