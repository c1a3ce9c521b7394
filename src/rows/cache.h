/* Which rows of a table a cache holds: a policy, without rows and without I/O. The caller has the
 * bytes of each slot and moves them.
 *
 * Rows are kept by frequency. Counters, which age, estimate how often each row was counted, in the
 * manner of TinyLFU (Einziger, Friedman, Manes, 2017). A row replaces the least frequent one of a
 * few slots, and only if it is more frequent. So rows that are used once leave the cache as it is.
 * Equal calls give equal results: nothing is drawn by chance. */
#ifndef WEFTI_ROWS_CACHE_H
#define WEFTI_ROWS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFTI_CACHE_COUNTERS = 16 }; /* for each slot */

typedef struct wefti_row_cache {
    int64_t slots, used;
    int32_t *row; /* [slots]: -1: the slot is free */
    /* [slots]: which parts of the row (its value, its states) the slot has, and which of them are
     * not written back: a bit for each. The policy clears them for a new row. */
    uint8_t *held, *changed;
    int32_t *table;   /* a hash table of slots; -1: empty */
    uint8_t *counter; /* estimates of how often a row was counted: the least of several counters */
    int64_t hand;     /* the slot at which the search for a victim goes on */
    int64_t counted;  /* since the counters were halved */
} wefti_row_cache;

/* Bytes of memory for a cache of so many slots: in proportion to them. */
size_t wefti_row_cache_bytes(int64_t slots);
/* An empty cache of at least one slot. It lies in `memory`, which is aligned to 8 bytes. */
void wefti_row_cache_init(wefti_row_cache *cache, int64_t slots, void *memory);

/* The slot of a row; -1: it has none. */
int64_t wefti_row_cache_find(const wefti_row_cache *cache, int32_t row);
/* A row is used. */
void wefti_row_cache_count(wefti_row_cache *cache, int32_t row);

/* Gives a row that has no slot this slot, whose row then has none. */
void wefti_row_cache_give(wefti_row_cache *cache, int64_t slot, int32_t row);

/* A slot that a row gets, and what was there. */
typedef struct wefti_row_admission {
    int64_t slot;
    int32_t victim; /* -1: the slot was free */
    uint8_t held, changed;
} wefti_row_admission;

/* Gives a row that has no slot the slot of a less frequent one. False: there is no such row among
 * those that were looked at. */
bool wefti_row_cache_admit(wefti_row_cache *cache, int32_t row, wefti_row_admission *out);
/* Undoes an admission, whose victim could not be written back. The victim must have no slot. */
void wefti_row_cache_restore(wefti_row_cache *cache, const wefti_row_admission *admission);

#endif
