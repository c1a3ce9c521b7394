/* What a build reads of its rank's coordinates: see layout/rank_reads.h. */
#include "layout/rank_reads.h"

#include <string.h>

#include "base/memory.h"

static wefti_axes axes_of(const wefti_dim_split *split) {
    wefti_axes axes = 0;
    for (int i = 0; i < split->count; i++) axes |= 1u << split->axis[i];
    return axes;
}

static wefti_axes drop_single(const wefti_mesh *mesh, wefti_axes axes) {
    for (int a = 0; a < WEFTI_MAX_AXES; a++)
        if (a >= mesh->axes || mesh->axis[a].size == 1) axes &= ~(1u << a);
    return axes;
}

static bool is_equal(const wefti_rank_read *a, const wefti_rank_read *b) {
    return a->kind == b->kind && a->axes == b->axes && a->size == b->size &&
           a->split.count == b->split.count && a->split.unit == b->split.unit &&
           !memcmp(a->split.axis, b->split.axis, (size_t)a->split.count);
}

static void add(wefti_rank_reads *reads, const wefti_rank_read *read) {
    if (!reads || reads->lost) return;
    for (int64_t i = 0; i < reads->count; i++)
        if (is_equal(&reads->items[i], read)) return;
    if (WEFT_GROW(reads->items, reads->count, reads->cap) < 0) {
        reads->lost = true;
        return;
    }
    reads->items[reads->count++] = *read;
}

static int64_t parts_of(const wefti_mesh *mesh, const wefti_dim_split *split) {
    int64_t parts = 1;
    for (int i = 0; i < split->count; i++) parts *= mesh->axis[split->axis[i]].size;
    return parts;
}

static int64_t unit_of(const wefti_dim_split *split) {
    return split->unit > 1 ? split->unit : 1;
}

/* Whether all parts have one size. */
static bool is_even(const wefti_mesh *mesh, int64_t size, const wefti_dim_split *split) {
    return size / unit_of(split) % parts_of(mesh, split) == 0;
}

void wefti_rank_reads_part(wefti_rank_reads *reads, const wefti_mesh *mesh, int64_t size,
                           const wefti_dim_split *split) {
    wefti_rank_read read = {.kind = WEFTI_READ_SIZE, .size = size};
    if (!reads || is_even(mesh, size, split)) return;
    read.split.unit = unit_of(split);
    for (int i = 0; i < split->count; i++)
        if (mesh->axis[split->axis[i]].size > 1)
            read.split.axis[read.split.count++] = split->axis[i];
    add(reads, &read);
}

void wefti_rank_reads_layout(wefti_rank_reads *reads, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *layout) {
    for (int d = 0; reads && d < whole->rank; d++)
        wefti_rank_reads_part(reads, mesh, whole->shape[d], &layout->dim[d]);
}

void wefti_rank_reads_first(wefti_rank_reads *reads, const wefti_mesh *mesh, wefti_axes axes) {
    axes = drop_single(mesh, axes);
    if (axes) add(reads, &(wefti_rank_read){.kind = WEFTI_READ_FIRST, .axes = axes});
}

void wefti_rank_reads_counts(wefti_rank_reads *reads, const wefti_mesh *mesh,
                             const wefti_layout *layout) {
    wefti_rank_reads_first(reads, mesh, ~wefti_layout_split_axes(layout));
}

void wefti_rank_reads_place(wefti_rank_reads *reads, const wefti_mesh *mesh, wefti_axes axes) {
    axes = drop_single(mesh, axes);
    if (axes) add(reads, &(wefti_rank_read){.kind = WEFTI_READ_PLACE, .axes = axes});
}

/* Whether the parts of one split lie in parts of the other. Then a rank's two parts overlap by the
 * smaller one. */
static bool nest(const wefti_dim_split *a, const wefti_dim_split *b) {
    const int count = a->count < b->count ? a->count : b->count;
    if (count && unit_of(a) != unit_of(b)) return false;
    return !memcmp(a->axis, b->axis, (size_t)count);
}

void wefti_rank_reads_move(wefti_rank_reads *reads, const wefti_mesh *mesh, const weft_desc *whole,
                           const wefti_layout *from, const wefti_layout *to, wefti_axes axes) {
    if (!reads) return;
    wefti_rank_reads_layout(reads, mesh, whole, from);
    wefti_rank_reads_layout(reads, mesh, whole, to);
    for (int d = 0; d < whole->rank; d++) {
        const wefti_dim_split *have = &from->dim[d], *want = &to->dim[d];
        const wefti_axes both = axes_of(have) | axes_of(want);
        if (!nest(have, want))
            wefti_rank_reads_place(reads, mesh, both);
        else if (both & axes && (!is_even(mesh, whole->shape[d], have) ||
                                 !is_even(mesh, whole->shape[d], want)))
            wefti_rank_reads_place(reads, mesh, both & ~axes); /* sizes of the other members */
    }
}

static int64_t size_at(const wefti_rank_read *read, const wefti_mesh *mesh,
                       const int32_t at[WEFTI_MAX_AXES]) {
    int64_t begin, size;
    int32_t parts = 1, index = 0;
    for (int i = 0; i < read->split.count; i++) {
        const int axis = read->split.axis[i];
        parts *= mesh->axis[axis].size;
        index = index * mesh->axis[axis].size + at[axis];
    }
    wefti_part(read->size, read->split.unit, parts, index, &begin, &size);
    return size;
}

static bool is_first(wefti_axes axes, const int32_t at[WEFTI_MAX_AXES]) {
    for (int a = 0; a < WEFTI_MAX_AXES; a++)
        if (axes >> a & 1u && at[a] != 0) return false;
    return true;
}

static bool same_place(wefti_axes axes, const int32_t a[WEFTI_MAX_AXES],
                       const int32_t b[WEFTI_MAX_AXES]) {
    for (int k = 0; k < WEFTI_MAX_AXES; k++)
        if (axes >> k & 1u && a[k] != b[k]) return false;
    return true;
}

static bool same_answer(const wefti_rank_read *read, const wefti_mesh *mesh,
                        const int32_t a[WEFTI_MAX_AXES], const int32_t b[WEFTI_MAX_AXES]) {
    switch (read->kind) {
    case WEFTI_READ_SIZE:
        return size_at(read, mesh, a) == size_at(read, mesh, b);
    case WEFTI_READ_FIRST:
        return is_first(read->axes, a) == is_first(read->axes, b);
    case WEFTI_READ_PLACE:
        break;
    }
    return same_place(read->axes, a, b);
}

bool wefti_rank_reads_same(const wefti_rank_reads *reads, const wefti_mesh *mesh,
                           const int32_t a[WEFTI_MAX_AXES], const int32_t b[WEFTI_MAX_AXES]) {
    for (int64_t i = 0; i < reads->count; i++)
        if (!same_answer(&reads->items[i], mesh, a, b)) return false;
    return true;
}

void wefti_rank_reads_free(wefti_rank_reads *reads) {
    wefti_free(reads->items);
    *reads = (wefti_rank_reads){0};
}
