/* The memory of the route search: a hash table of nodes and a binary heap of open nodes. */
#include "layout/open_list.h"

#include "base/heap.h"
#include "base/memory.h"

/* An entry of the heap. It is outdated if the search has since reached the node at a lower cost. */
typedef struct wefti_waiting {
    wefti_route_cost cost; /* lower bound from the start to the goal */
    int32_t node;
} wefti_waiting;

int wefti_route_cost_compare(const wefti_route_cost *a, const wefti_route_cost *b) {
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return (a->moves > b->moves) - (a->moves < b->moves);
}

wefti_route_cost wefti_route_cost_sum(wefti_route_cost a, wefti_route_cost b) {
    return (wefti_route_cost){a.time + b.time, a.bytes + b.bytes, a.moves + b.moves};
}

/* ---- the open list: a binary heap ---- */

static bool before(const void *none, const wefti_waiting *a, const wefti_waiting *b) {
    (void)none;
    const int order = wefti_route_cost_compare(&a->cost, &b->cost);
    return order ? order < 0 : a->node < b->node;
}
WEFTI_HEAP(waiting, wefti_waiting, const void *, before)

weft_status wefti_open_list_push(wefti_open_list *f, int32_t n) {
    WEFT_TRY(WEFT_GROW(f->heap, f->heap_used, f->heap_capacity));
    const wefti_waiting entry = {wefti_route_cost_sum(f->nodes[n].cost, f->nodes[n].ahead), n};
    waiting_push(f->heap, &f->heap_used, entry, NULL);
    return WEFT_OK;
}

int32_t wefti_open_list_pop(wefti_open_list *f) {
    return waiting_pop(f->heap, &f->heap_used, NULL).node;
}

/* ---- the layouts seen ---- */

static uint64_t hash(const wefti_layout *layout) {
    uint64_t h = (uint64_t)layout->sum << 32 | layout->max;
    for (int d = 0; d < layout->rank; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        uint64_t word = (uint64_t)split->unit;
        for (int i = 0; i < split->count; i++) word = word * 31 + (uint64_t)split->axis[i] + 1;
        h = (h ^ word) * 0x9e3779b97f4a7c15u; /* Fibonacci hashing */
        h ^= h >> 29;
    }
    return h;
}

/* The slot that holds the layout, or the free slot where it would go. */
static int64_t slot_of(const wefti_open_list *f, const wefti_layout *layout) {
    uint64_t mask = (uint64_t)f->slots - 1, i = hash(layout) & mask;
    while (f->table[i] >= 0 && !wefti_layout_equal(&f->nodes[f->table[i]].move.to, layout))
        i = (i + 1) & mask;
    return (int64_t)i;
}

static weft_status grow_table(wefti_open_list *f) {
    int64_t slots = f->slots ? 2 * f->slots : 256;
    int32_t *table = wefti_alloc((size_t)slots * sizeof *table);
    WEFT_REQUIRE(table, WEFT_E_NOMEM, "no memory for %lld layouts", (long long)slots);
    for (int64_t i = 0; i < slots; i++) table[i] = -1;
    wefti_free(f->table);
    f->table = table;
    f->slots = slots;
    for (int32_t n = 0; n < f->used; n++) f->table[slot_of(f, &f->nodes[n].move.to)] = n;
    return WEFT_OK;
}

weft_status wefti_open_list_add(wefti_open_list *f, const wefti_layout *layout, int32_t *out) {
    if (2 * (f->used + 1) > f->slots) WEFT_TRY(grow_table(f));
    WEFT_TRY(WEFT_GROW(f->nodes, f->used, f->capacity));
    int32_t n = (int32_t)f->used;
    f->table[slot_of(f, layout)] = n;
    f->nodes[f->used++] = (wefti_open_node){.move = {.to = *layout}, .parent = -1};
    *out = n;
    return WEFT_OK;
}

int32_t wefti_open_list_find(const wefti_open_list *f, const wefti_layout *layout) {
    return f->slots ? f->table[slot_of(f, layout)] : -1;
}

void wefti_open_list_free(wefti_open_list *f) {
    wefti_free(f->nodes);
    wefti_free(f->table);
    wefti_free(f->heap);
}
