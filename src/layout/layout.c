/* Layouts: the axes they use, their normal form, their checks, and the region that each rank
 * holds. */
#include "layout/layout.h"

wefti_layout wefti_layout_replicated(int rank) {
    wefti_layout layout = {.rank = (int8_t)rank};
    for (int d = 0; d < WEFT_MAX_RANK; d++) layout.dim[d].unit = 1;
    return layout;
}

wefti_axes wefti_layout_dim_axes(const wefti_layout *layout, int d) {
    wefti_axes axes = 0;
    for (int i = 0; i < layout->dim[d].count; i++) axes |= 1u << layout->dim[d].axis[i];
    return axes;
}

wefti_axes wefti_layout_split_axes(const wefti_layout *layout) {
    wefti_axes axes = 0;
    for (int d = 0; d < layout->rank; d++) axes |= wefti_layout_dim_axes(layout, d);
    return axes;
}

wefti_axes wefti_layout_axes(const wefti_layout *layout) {
    return wefti_layout_split_axes(layout) | layout->sum | layout->max;
}

int32_t wefti_layout_parts(const wefti_layout *layout, const wefti_mesh *mesh, int d) {
    int32_t parts = 1;
    for (int i = 0; i < layout->dim[d].count; i++) parts *= mesh->axis[layout->dim[d].axis[i]].size;
    return parts;
}

/* floor(i * units / parts) without overflow of the product. */
static int64_t boundary(int64_t units, int32_t parts, int32_t i) {
    return units / parts * i + units % parts * i / parts;
}

void wefti_part(int64_t n, int64_t unit, int32_t parts, int32_t index, int64_t *out_begin,
                int64_t *out_size) {
    if (unit < 1) unit = 1;
    int64_t begin = boundary(n / unit, parts, index), end = boundary(n / unit, parts, index + 1);
    *out_begin = begin * unit;
    *out_size = (end - begin) * unit;
}

static bool same_parts(int64_t n, int64_t a, int64_t b, int32_t parts) {
    for (int32_t i = 1; i < parts; i++)
        if (a * boundary(n / a, parts, i) != b * boundary(n / b, parts, i)) return false;
    return true;
}

int64_t wefti_part_unit(int64_t n, int64_t unit, int32_t parts) {
    if (unit <= 1 || parts == 1 || n / unit % parts == 0) return 1;
    if (same_parts(n, 1, unit, parts)) return 1;
    int64_t best = unit;
    for (int64_t low = 1; low <= n / low; low++) { /* divisors come in pairs: low * high = n */
        if (n % low) continue;
        int64_t high = n / low;
        if (low < best && same_parts(n, low, unit, parts)) return low;
        if (high < best && same_parts(n, high, unit, parts)) best = high;
    }
    return best;
}

static wefti_axes drop_single(wefti_axes axes, const wefti_mesh *mesh) {
    for (int a = 0; a < mesh->axes; a++)
        if (mesh->axis[a].size == 1) axes &= ~(1u << a);
    return axes;
}

void wefti_layout_normal(wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole) {
    wefti_layout normal = wefti_layout_replicated(layout->rank);
    for (int d = 0; d < layout->rank; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        wefti_dim_split *to = &normal.dim[d];
        for (int i = 0; i < split->count; i++)
            if (mesh->axis[split->axis[i]].size > 1) to->axis[to->count++] = split->axis[i];
        to->unit =
            wefti_part_unit(whole->shape[d], split->unit, wefti_layout_parts(&normal, mesh, d));
    }
    normal.sum = drop_single(layout->sum, mesh);
    normal.max = drop_single(layout->max, mesh);
    *layout = normal;
}

bool wefti_layout_equal(const wefti_layout *a, const wefti_layout *b) {
    if (a->rank != b->rank || a->sum != b->sum || a->max != b->max) return false;
    for (int d = 0; d < a->rank; d++) {
        const wefti_dim_split *p = &a->dim[d], *q = &b->dim[d];
        if (p->count != q->count) return false;
        for (int i = 0; i < p->count; i++)
            if (p->axis[i] != q->axis[i]) return false;
        if (p->count && (p->unit < 1 ? 1 : p->unit) != (q->unit < 1 ? 1 : q->unit)) return false;
    }
    return true;
}

static weft_status use_axis(const wefti_layout *layout, const wefti_mesh *mesh, int axis,
                            wefti_axes *used) {
    WEFT_REQUIRE(axis >= 0 && axis < mesh->axes, WEFT_E_ARG,
                 "the layout uses axis %d, the mesh has %d axes", axis, mesh->axes);
    WEFT_REQUIRE(!(*used >> axis & 1u), WEFT_E_ARG,
                 "the layout %s uses axis '%s' twice; each axis splits one dimension or is partial",
                 wefti_layout_text(layout, mesh).text, mesh->axis[axis].name);
    *used |= 1u << axis;
    return WEFT_OK;
}

weft_status wefti_layout_check_stated(const wefti_layout *layout, const wefti_mesh *mesh,
                                      const weft_desc *whole) {
    WEFT_TRY(wefti_layout_check(layout, mesh, whole));
    for (int d = 0; d < layout->rank; d++) {
        int64_t parts = wefti_layout_parts(layout, mesh, d), unit = layout->dim[d].unit;
        int64_t most = unit > 1 ? whole->shape[d] / unit : whole->shape[d];
        WEFT_REQUIRE(parts <= most || parts == 1 || whole->shape[d] == 1, WEFT_E_LAYOUT,
                     "dimension %d would have %lld parts; %lld elements%s can have %lld at most", d,
                     (long long)parts, (long long)whole->shape[d],
                     unit > 1 ? " in units of several" : "", (long long)most);
    }
    return WEFT_OK;
}

weft_status wefti_layout_check(const wefti_layout *layout, const wefti_mesh *mesh,
                               const weft_desc *whole) {
    WEFT_REQUIRE(layout->rank == whole->rank, WEFT_E_ARG,
                 "a layout of %d dimensions for a tensor %s of %d", layout->rank,
                 wefti_desc_text(whole).text, whole->rank);
    wefti_axes used = 0;
    for (int d = 0; d < layout->rank; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        WEFT_REQUIRE(split->count >= 0 && split->count <= mesh->axes, WEFT_E_ARG,
                     "dimension %d of the layout is split by %d axes, the mesh has %d", d,
                     split->count, mesh->axes);
        for (int i = 0; i < split->count; i++)
            WEFT_TRY(use_axis(layout, mesh, split->axis[i], &used));
        WEFT_REQUIRE(split->unit >= 0, WEFT_E_ARG, "dimension %d of the layout has unit %lld", d,
                     (long long)split->unit);
        WEFT_REQUIRE(split->unit <= 1 || whole->shape[d] % split->unit == 0, WEFT_E_ARG,
                     "the layout %s splits dimension %d of %s in units of %lld, which does not "
                     "divide %lld",
                     wefti_layout_text(layout, mesh).text, d, wefti_desc_text(whole).text,
                     (long long)split->unit, (long long)whole->shape[d]);
    }
    wefti_axes partial = layout->sum | layout->max;
    for (int a = 0; a < WEFTI_MAX_AXES; a++)
        if (partial >> a & 1u) WEFT_TRY(use_axis(layout, mesh, a, &used));
    WEFT_REQUIRE(partial >> WEFTI_MAX_AXES == 0, WEFT_E_ARG,
                 "the layout is partial over axes that no mesh has (set %#x)", partial);
    /* sum and max do not commute, so the order of the two reductions would matter */
    WEFT_REQUIRE(!layout->sum || !layout->max, WEFT_E_ARG,
                 "the layout %s is partial both as a sum and as a maximum; reduce one first",
                 wefti_layout_text(layout, mesh).text);
    return WEFT_OK;
}

void wefti_layout_region_at(const wefti_layout *layout, const wefti_mesh *mesh,
                            const weft_desc *whole, const int32_t at[WEFTI_MAX_AXES],
                            wefti_region *out) {
    *out = (wefti_region){0};
    for (int d = 0; d < whole->rank; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        int32_t parts = 1, index = 0;
        for (int i = 0; i < split->count; i++) {
            int32_t size = mesh->axis[split->axis[i]].size;
            parts *= size;
            index = index * size + at[split->axis[i]];
        }
        wefti_part(whole->shape[d], split->unit, parts, index, &out->begin[d], &out->size[d]);
    }
}

void wefti_layout_region(const wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole,
                         int32_t rank, wefti_region *out) {
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(mesh, rank, at);
    wefti_layout_region_at(layout, mesh, whole, at, out);
}

weft_desc wefti_layout_local(const wefti_layout *layout, const wefti_mesh *mesh,
                             const weft_desc *whole, int32_t rank) {
    wefti_region region;
    wefti_layout_region(layout, mesh, whole, rank, &region);
    weft_desc local = *whole;
    for (int d = 0; d < whole->rank; d++) local.shape[d] = region.size[d];
    return local;
}

int64_t wefti_region_elems(const wefti_region *region, int rank) {
    int64_t elems = 1;
    for (int d = 0; d < rank; d++) elems *= region->size[d];
    return elems;
}

bool wefti_region_contains(const wefti_region *outer, const wefti_region *inner, int rank) {
    for (int d = 0; d < rank; d++)
        if (inner->begin[d] < outer->begin[d] ||
            inner->begin[d] + inner->size[d] > outer->begin[d] + outer->size[d])
            return false;
    return true;
}

bool wefti_region_intersect(const wefti_region *a, const wefti_region *b, int rank,
                            wefti_region *out) {
    wefti_region both = {0};
    for (int d = 0; d < rank; d++) {
        int64_t a_end = a->begin[d] + a->size[d], b_end = b->begin[d] + b->size[d];
        int64_t begin = a->begin[d] > b->begin[d] ? a->begin[d] : b->begin[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (end <= begin) return false;
        both.begin[d] = begin;
        both.size[d] = end - begin;
    }
    *out = both;
    return true;
}

bool wefti_layout_counts(const wefti_layout *layout, const wefti_mesh *mesh, int32_t rank) {
    wefti_axes split = wefti_layout_split_axes(layout);
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(mesh, rank, at);
    for (int a = 0; a < mesh->axes; a++)
        if (!(split >> a & 1u) && at[a]) return false;
    return true;
}
