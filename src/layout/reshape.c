/* Regions under two shapes. See reshape.h.
 *
 * The dimensions of both shapes fall into groups: the shortest lists of neighbours with equal
 * products. A group of one dimension on both sides passes a range on. In another group a range of
 * elements is cut into slabs of either shape until one is a slab of both. The parts of the region
 * are the combinations of all groups' parts. */
#include "layout/reshape.h"

#include "layout/runs.h"

typedef struct dims_group {
    int from, from_end, to, to_end; /* dimensions [from, from_end) and [to, to_end) */
} dims_group;

typedef struct reshaping {
    const weft_desc *from, *to;
    const wefti_region *region;
    dims_group groups[2 * WEFT_MAX_RANK + 1];
    int count;
    wefti_region box_from, box_to; /* of the groups before the present one */
    wefti_box_visit *visit;
    void *context;
} reshaping;

static void find_groups(reshaping *r) {
    const int most_from = r->from->rank, most_to = r->to->rank;
    int i = 0, j = 0;
    while (i < most_from || j < most_to) {
        dims_group g = {.from = i, .to = j};
        int64_t a = i < most_from ? r->from->shape[i++] : 1,
                b = j < most_to ? r->to->shape[j++] : 1;
        while (a != b) { /* ends, as all products are equal in the end */
            if (a < b)
                a *= r->from->shape[i++];
            else
                b *= r->to->shape[j++];
        }
        g.from_end = i;
        g.to_end = j;
        r->groups[r->count++] = g;
    }
}

static weft_desc dims_of(const weft_desc *desc, int begin, int end) {
    return weft_desc_of(desc->dtype, end - begin, desc->shape + begin);
}

static void set_box(wefti_region *box, const wefti_region *part, int begin, int end) {
    for (int d = begin; d < end; d++) {
        box->begin[d] = part->begin[d - begin];
        box->size[d] = part->size[d - begin];
    }
}

static weft_status visit_group(reshaping *r, int number);

/* A run of elements that are contiguous in the group. */
static weft_status visit_run(reshaping *r, int number, const weft_desc *from, const weft_desc *to,
                             int64_t at, int64_t count) {
    const dims_group *g = &r->groups[number];
    while (count > 0) {
        wefti_region a, b;
        const int64_t n = wefti_slab_both(from, to, at, count, &a, &b);
        set_box(&r->box_from, &a, g->from, g->from_end);
        set_box(&r->box_to, &b, g->to, g->to_end);
        WEFT_TRY(visit_group(r, number + 1));
        at += n;
        count -= n;
    }
    return WEFT_OK;
}

static weft_status visit_group(reshaping *r, int number) {
    const dims_group *g = &r->groups[number];
    wefti_region region = {{0}, {0}};
    if (number == r->count) return r->visit(r->context, &r->box_from, &r->box_to);
    for (int d = g->from; d < g->from_end; d++) {
        region.begin[d - g->from] = r->region->begin[d];
        region.size[d - g->from] = r->region->size[d];
    }
    if (g->from_end - g->from == 1 && g->to_end - g->to == 1) {
        set_box(&r->box_from, &region, g->from, g->from_end);
        set_box(&r->box_to, &region, g->to, g->to_end);
        return visit_group(r, number + 1);
    }
    const weft_desc from = dims_of(r->from, g->from, g->from_end),
                    to = dims_of(r->to, g->to, g->to_end);
    wefti_region_runs run = wefti_region_runs_of(&from, &region);
    while (wefti_region_runs_next(&run))
        WEFT_TRY(visit_run(r, number, &from, &to, run.at, run.count));
    return WEFT_OK;
}

weft_status wefti_region_reshape(const weft_desc *from, const wefti_region *region,
                                 const weft_desc *to, wefti_box_visit *visit, void *context) {
    reshaping r = {.from = from, .to = to, .region = region, .visit = visit, .context = context};
    WEFT_REQUIRE(weft_desc_elems(from) == weft_desc_elems(to), WEFT_E_SHAPE,
                 "%s and %s have different numbers of elements", wefti_desc_text(from).text,
                 wefti_desc_text(to).text);
    if (wefti_region_elems(region, from->rank) == 0) return WEFT_OK;
    find_groups(&r);
    return visit_group(&r, 0);
}
