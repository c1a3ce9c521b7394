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
    wefti_axes kept = 0;
    for (int a = 0; a < mesh->axes; a++)
        if (mesh->axis[a].size > 1) kept |= axes & 1u << a;
    return kept;
}

static bool same_split(const wefti_dim_split *a, const wefti_dim_split *b) {
    return a->count == b->count && a->unit == b->unit &&
           !memcmp(a->axis, b->axis, (size_t)a->count);
}

static bool is_equal(const wefti_rank_read *a, const wefti_rank_read *b) {
    return a->kind == b->kind && a->axes == b->axes && a->step == b->step && a->size == b->size &&
           same_split(&a->split, &b->split) && same_split(&a->other, &b->other);
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

static wefti_dim_split normal(const wefti_mesh *mesh, const wefti_dim_split *split) {
    wefti_dim_split to = {.unit = unit_of(split)};
    for (int i = 0; i < split->count; i++)
        if (mesh->axis[split->axis[i]].size > 1) to.axis[to.count++] = split->axis[i];
    return to;
}

/* Adds a read of sizes of an uneven split: with `axes`, of a group's parts. */
static void add_sizes(wefti_rank_reads *reads, const wefti_mesh *mesh, int64_t size,
                      const wefti_dim_split *split, wefti_axes axes) {
    wefti_rank_read read = {.kind = WEFTI_READ_SIZE, .size = size};
    if (!reads || is_even(mesh, size, split)) return;
    read.axes = drop_single(mesh, axes);
    if (read.axes) read.kind = WEFTI_READ_SIZES;
    read.split = normal(mesh, split);
    add(reads, &read);
}

void wefti_rank_reads_part(wefti_rank_reads *reads, const wefti_mesh *mesh, int64_t size,
                           const wefti_dim_split *split) {
    add_sizes(reads, mesh, size, split, 0);
}

void wefti_rank_reads_layout(wefti_rank_reads *reads, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *layout) {
    for (int d = 0; reads && d < whole->rank; d++)
        wefti_rank_reads_part(reads, mesh, whole->shape[d], &layout->dim[d]);
}

void wefti_rank_reads_neighbor(wefti_rank_reads *reads, const wefti_mesh *mesh,
                               const weft_desc *whole, const wefti_layout *layout, int axis,
                               int32_t step) {
    for (int d = 0; reads && d < whole->rank; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        if (is_even(mesh, whole->shape[d], split)) continue;
        add(reads, &(wefti_rank_read){.kind = WEFTI_READ_NEIGHBOR,
                                      .axes = 1u << axis,
                                      .step = step,
                                      .split = normal(mesh, split),
                                      .size = whole->shape[d]});
    }
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
        const wefti_dim_split *finer = have->count > want->count ? have : want;
        const wefti_axes more = axes_of(have) ^ axes_of(want);
        const wefti_axes both = axes_of(have) | axes_of(want);
        if (!nest(have, want) && !(both & ~axes)) /* the group has all parts */
            add(reads, &(wefti_rank_read){.kind = WEFTI_READ_OVERLAP,
                                          .split = normal(mesh, have),
                                          .other = normal(mesh, want),
                                          .size = whole->shape[d]});
        else if (!nest(have, want) || more & ~axes)
            wefti_rank_reads_place(reads, mesh, both);
        else if (more)
            add_sizes(reads, mesh, whole->shape[d], finer, more);
        else if (axes_of(have) & axes && !is_even(mesh, whole->shape[d], have))
            wefti_rank_reads_place(reads, mesh, axes_of(have));
    }
}

void wefti_rank_reads_join(wefti_rank_reads *to, const wefti_rank_reads *from) {
    to->lost |= from->lost;
    for (int64_t i = 0; i < from->count; i++) add(to, &from->items[i]);
}

/* Part `index` of the split. */
static int64_t size_of(const wefti_rank_read *read, int32_t parts, int32_t index) {
    int64_t begin, size;
    wefti_part(read->size, read->split.unit, parts, index, &begin, &size);
    return size;
}

static int32_t index_at(const wefti_dim_split *split, const wefti_mesh *mesh,
                        const int32_t at[WEFTI_MAX_AXES]) {
    int32_t index = 0;
    for (int i = 0; i < split->count; i++)
        index = index * mesh->axis[split->axis[i]].size + at[split->axis[i]];
    return index;
}

static int64_t overlap_at(const wefti_rank_read *read, const wefti_mesh *mesh,
                          const int32_t at[WEFTI_MAX_AXES]) {
    const wefti_dim_split *split[2] = {&read->split, &read->other};
    int64_t begin[2], end[2];
    for (int k = 0; k < 2; k++) {
        wefti_part(read->size, split[k]->unit, (int32_t)parts_of(mesh, split[k]),
                   index_at(split[k], mesh, at), &begin[k], &end[k]);
        end[k] += begin[k];
    }
    const int64_t first = begin[0] > begin[1] ? begin[0] : begin[1];
    const int64_t last = end[0] < end[1] ? end[0] : end[1];
    return last > first ? last - first : 0;
}

static bool same_sizes(const wefti_rank_read *read, const wefti_mesh *mesh,
                       const int32_t a[WEFTI_MAX_AXES], const int32_t b[WEFTI_MAX_AXES]) {
    const int32_t parts = (int32_t)parts_of(mesh, &read->split);
    const int32_t members = wefti_mesh_product(mesh, read->axes);
    const int32_t i = index_at(&read->split, mesh, a) / members;
    const int32_t k = index_at(&read->split, mesh, b) / members;
    for (int32_t m = 0; i != k && m < members; m++)
        if (size_of(read, parts, i * members + m) != size_of(read, parts, k * members + m))
            return false;
    return true;
}

static int64_t size_at(const wefti_rank_read *read, const wefti_mesh *mesh,
                       const int32_t at[WEFTI_MAX_AXES]) {
    return size_of(read, (int32_t)parts_of(mesh, &read->split), index_at(&read->split, mesh, at));
}

static int64_t neighbor_at(const wefti_rank_read *read, const wefti_mesh *mesh,
                           const int32_t at[WEFTI_MAX_AXES]) {
    int32_t there[WEFTI_MAX_AXES];
    for (int a = 0; a < WEFTI_MAX_AXES; a++) {
        const int32_t size = a < mesh->axes ? mesh->axis[a].size : 1;
        const int32_t step = read->axes >> a & 1u ? read->step : 0;
        there[a] = ((at[a] + step) % size + size) % size;
    }
    return size_at(read, mesh, there);
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
    case WEFTI_READ_SIZES:
        return same_sizes(read, mesh, a, b);
    case WEFTI_READ_NEIGHBOR:
        return neighbor_at(read, mesh, a) == neighbor_at(read, mesh, b);
    case WEFTI_READ_OVERLAP:
        return overlap_at(read, mesh, a) == overlap_at(read, mesh, b);
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
