#include "rows/rows.h"

#include <string.h>

/* Slots of the hash table: 2 to this power, at least twice the places. */
static int slot_bits(int64_t places) {
    int bits = 4;
    while ((int64_t)1 << bits < 2 * places) bits++;
    return bits;
}

size_t wefti_rows_bytes(int64_t places) {
    return ((size_t)1 << slot_bits(places)) * sizeof(int32_t) +
           (size_t)(4 * places + 1) * sizeof(int32_t);
}

/* Fibonacci hashing: Knuth, "The Art of Computer Programming", volume 3, section 6.4. The upper
 * bits of the product are those that depend on all bits of the id. */
static int64_t slot_of(int32_t id, int bits) {
    return (int64_t)((uint64_t)id * UINT64_C(0x9E3779B97F4A7C15) >> (64 - bits));
}

void wefti_rows_find(const int32_t *ids, int64_t places, void *memory, wefti_rows *out) {
    const int bits = slot_bits(places);
    const int64_t slots = (int64_t)1 << bits;
    int32_t *slot = memory, *row = slot + slots;
    *out =
        (wefti_rows){.ids = row + places, .begin = row + 2 * places, .place = row + 3 * places + 1};
    memset(slot, -1, (size_t)slots * sizeof *slot);
    memset(out->begin, 0, (size_t)(places + 1) * sizeof *out->begin);
    for (int64_t i = 0; i < places; i++) {
        row[i] = -1;
        if (ids[i] < 0) continue;
        int64_t at = slot_of(ids[i], bits);
        while (slot[at] >= 0 && out->ids[slot[at]] != ids[i]) at = (at + 1) & (slots - 1);
        if (slot[at] < 0) {
            out->ids[out->count] = ids[i];
            slot[at] = out->count++;
        }
        row[i] = slot[at];
        out->begin[row[i]]++;
    }
    /* Counts become ends; filling in backwards turns them into begins. */
    for (int32_t r = 1; r < out->count; r++) out->begin[r] += out->begin[r - 1];
    if (out->count) out->begin[out->count] = out->begin[out->count - 1];
    for (int64_t i = places - 1; i >= 0; i--)
        if (row[i] >= 0) out->place[--out->begin[row[i]]] = (int32_t)i;
}
