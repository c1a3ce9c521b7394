/* Tables by row: which rows of a table a list of ids touches, and in which order terms of one row
 * are added. These are pure functions on arrays; the ops on rows (ops/move/rows.c) and their
 * kernels call them.
 *
 * A gradient as rows is an array [places, WEFTI_ROWS_ID + dim]. Each place has an id, as two whole
 * numbers that every floating format holds, then the gradient of that row. Places without a row
 * have a negative id. */
#ifndef WEFTI_ROWS_H
#define WEFTI_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* Columns of an id: its upper part, then its lower 16 bits. */
enum { WEFTI_ROWS_ID = 2 };

static inline int64_t wefti_rows_high(int64_t id) {
    return id < 0 ? -1 : id >> 16;
}
static inline int64_t wefti_rows_low(int64_t id) {
    return id < 0 ? 0 : id & 0xffff;
}
static inline int64_t wefti_rows_id(double high, double low) {
    return high < 0 ? -1 : (int64_t)high << 16 | (int64_t)low;
}

/* The rows that a list of ids touches, in the order in which the list first names them. `place`
 * lists the places of row r, ascending, from number begin[r] to begin[r + 1]. */
typedef struct wefti_rows {
    int32_t count;
    int32_t *ids, *begin, *place;
} wefti_rows;

/* A list that names each row once has room for a further look-up of one: the number of the row's
 * place in the list, as a number below -1. */
static inline int32_t wefti_rows_repeat(int32_t place) {
    return -2 - place;
}
static inline int32_t wefti_rows_repeated(int32_t repeat) {
    return -2 - repeat;
}

/* Bytes of memory that wefti_rows_find needs for so many places. */
size_t wefti_rows_bytes(int64_t places);
/* Finds the rows of ids [places]. Negative ids are no rows. The result lies in `memory`. Takes time
 * and memory in proportion to the places, not to the table. */
void wefti_rows_find(const int32_t *ids, int64_t places, void *memory, wefti_rows *out);

#endif
