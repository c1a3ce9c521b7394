/* Checks of transfers: ranks and regions are legal, and some member has each wanted element. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "layout/transfer.h"

/* A member without a region has sizes 0. The region of a scalar has no sizes and one element. */
static bool is_empty(const wefti_region *region, int rank) {
    for (int d = 0; d < rank; d++)
        if (region->size[d] == 0) return true;
    return false;
}

/* ---- lists of regions ---- */

typedef struct regions {
    wefti_region *region;
    int64_t used, capacity;
} regions;

static weft_status regions_add(regions *list, const wefti_region *region) {
    WEFT_TRY(WEFT_GROW(list->region, list->used, list->capacity));
    list->region[list->used++] = *region;
    return WEFT_OK;
}

/* Subtracts `cut` from every region: up to two slabs remain for each dimension. */
static weft_status regions_subtract(regions *list, const wefti_region *cut, int rank) {
    int64_t kept = 0, count = list->used;
    for (int64_t i = 0; i < count; i++) {
        wefti_region rest = list->region[i], both;
        if (!wefti_region_intersect(&rest, cut, rank, &both)) {
            list->region[kept++] = rest;
            continue;
        }
        for (int d = 0; d < rank; d++) {
            wefti_region slab = rest;
            slab.size[d] = both.begin[d] - rest.begin[d];
            if (slab.size[d] > 0) WEFT_TRY(regions_add(list, &slab));
            slab.begin[d] = both.begin[d] + both.size[d];
            slab.size[d] = rest.begin[d] + rest.size[d] - slab.begin[d];
            if (slab.size[d] > 0) WEFT_TRY(regions_add(list, &slab));
            rest.begin[d] = both.begin[d];
            rest.size[d] = both.size[d];
        }
    }
    memmove(list->region + kept, list->region + count,
            (size_t)(list->used - count) * sizeof *list->region);
    list->used -= count - kept;
    return WEFT_OK;
}

static const char *name_of(const wefti_transfer *t) {
    return t->name ? t->name : wefti_transfer_kind_text(t->kind);
}

/* The region that all members have; sizes may be negative: there is none. */
static wefti_region common_region(const wefti_transfer *t) {
    wefti_region all = t->have[0];
    for (int32_t m = 1; m < t->members; m++) {
        const wefti_region *have = &t->have[m];
        for (int d = 0; d < t->rank; d++) {
            int64_t end = all.begin[d] + all.size[d], other = have->begin[d] + have->size[d];
            if (have->begin[d] > all.begin[d]) all.begin[d] = have->begin[d];
            all.size[d] = (other < end ? other : end) - all.begin[d];
        }
    }
    return all;
}

/* What is reduced over all members, all of them must have. `common`: see above. */
static weft_status check_common(const wefti_transfer *t, int32_t m, const wefti_region *common) {
    if (wefti_region_contains(common, &t->want[m], t->rank)) return WEFT_OK;
    int32_t lacks = 0;
    while (wefti_region_contains(&t->have[lacks], &t->want[m], t->rank)) lacks++;
    WEFT_FAIL(WEFT_E_MISMATCH,
              "transfer '%s': rank %d wants elements to be reduced over all members that rank "
              "%d does not have",
              name_of(t), t->ranks[m], t->ranks[lacks]);
}

/* ---- what all members have together ---- */

/* Whether two regions are one region together; then it is `a`. */
static bool merge_two(wefti_region *a, const wefti_region *b, int rank) {
    int other = -1;
    for (int d = 0; d < rank; d++) {
        if (a->begin[d] == b->begin[d] && a->size[d] == b->size[d]) continue;
        if (other >= 0) return wefti_region_contains(a, b, rank);
        other = d;
    }
    if (other < 0) return true;
    const int64_t a_end = a->begin[other] + a->size[other];
    const int64_t b_end = b->begin[other] + b->size[other];
    if (b->begin[other] > a_end || a->begin[other] > b_end) return false;
    if (b->begin[other] < a->begin[other]) a->begin[other] = b->begin[other];
    a->size[other] = (a_end > b_end ? a_end : b_end) - a->begin[other];
    return true;
}

/* Merges each region with those behind it, as long as they continue it. */
static void merge_neighbours(regions *list, int rank) {
    int64_t kept = 0, before;
    do {
        before = list->used;
        kept = 0;
        for (int64_t i = 0; i < list->used; i++)
            if (!kept || !merge_two(&list->region[kept - 1], &list->region[i], rank))
                list->region[kept++] = list->region[i];
        list->used = kept;
    } while (kept < before);
}

static int by_place(const void *a, const void *b) {
    const wefti_region *x = a, *y = b;
    for (int d = 0; d < WEFT_MAX_RANK; d++) {
        if (x->begin[d] != y->begin[d]) return x->begin[d] < y->begin[d] ? -1 : 1;
        if (x->size[d] != y->size[d]) return x->size[d] < y->size[d] ? -1 : 1;
    }
    return 0;
}

static void swap_dimensions(regions *list, int d, int e) {
    for (int64_t i = 0; i < list->used; i++) {
        wefti_region *x = &list->region[i];
        const int64_t begin = x->begin[d], size = x->size[d];
        x->begin[d] = x->begin[e];
        x->size[d] = x->size[e];
        x->begin[e] = begin;
        x->size[e] = size;
    }
}

/* Makes the list of regions that cover what the members have. Pieces of a tensor become one region,
 * in whatever order the members hold them: pieces that continue each other along a dimension are
 * neighbours once that dimension is the last one to be sorted by. */
static weft_status find_covered(const wefti_transfer *t, regions *list) {
    list->used = 0;
    for (int32_t m = 0; m < t->members; m++) {
        if (is_empty(&t->have[m], t->rank)) continue;
        wefti_region x = {.begin = {0}};
        memcpy(x.begin, t->have[m].begin, (size_t)t->rank * sizeof *x.begin);
        memcpy(x.size, t->have[m].size, (size_t)t->rank * sizeof *x.size);
        if (list->used && merge_two(&list->region[list->used - 1], &x, t->rank)) continue;
        WEFT_TRY(regions_add(list, &x));
    }
    merge_neighbours(list, t->rank);
    for (int64_t before = 0; list->used > 1 && before != list->used;) {
        before = list->used;
        for (int d = t->rank - 1; d >= 0 && list->used > 1; d--) {
            swap_dimensions(list, d, t->rank - 1);
            qsort(list->region, (size_t)list->used, sizeof *list->region, by_place);
            merge_neighbours(list, t->rank);
            swap_dimensions(list, d, t->rank - 1);
        }
    }
    return WEFT_OK;
}

/* What remains of a wanted region without `have`. */
static weft_status find_rest(const wefti_region *want, const wefti_region *have, int64_t count,
                             int rank, regions *rest) {
    rest->used = 0;
    WEFT_TRY(regions_add(rest, want));
    for (int64_t i = 0; i < count && rest->used; i++)
        if (!is_empty(&have[i], rank)) WEFT_TRY(regions_subtract(rest, &have[i], rank));
    return WEFT_OK;
}

/* Members that want the same follow each other, and pieces become few regions: so this takes the
 * time of sorting. */
static weft_status check_covered(const wefti_transfer *t, int32_t m, regions *covered,
                                 regions *rest) {
    const wefti_region *want = &t->want[m];
    if (wefti_region_contains(&t->have[m], want, t->rank)) return WEFT_OK;
    if (!covered->used) WEFT_TRY(find_covered(t, covered));
    for (int64_t i = 0; i < covered->used; i++)
        if (wefti_region_contains(&covered->region[i], want, t->rank)) return WEFT_OK;
    WEFT_TRY(find_rest(want, covered->region, covered->used, t->rank, rest));
    if (!rest->used) return WEFT_OK;
    WEFT_TRY(find_rest(want, t->have, t->members, t->rank, rest)); /* a gap that has no seams */
    const wefti_region *gap = &rest->region[0];
    int d = 0;
    while (d + 1 < t->rank && gap->size[d] == want->size[d]) d++;
    WEFT_FAIL(WEFT_E_MISMATCH,
              "transfer '%s': rank %d wants elements %lld to %lld of dimension %d, which no member "
              "has",
              name_of(t), t->ranks[m], (long long)gap->begin[d],
              (long long)(gap->begin[d] + gap->size[d]), d);
}

static weft_status check_regions(const wefti_transfer *t, int32_t m) {
    for (int d = 0; d < t->rank; d++) {
        const wefti_region *have = &t->have[m], *want = &t->want[m];
        WEFT_REQUIRE(
            have->size[d] >= 0 && want->size[d] >= 0 && have->begin[d] >= 0 && want->begin[d] >= 0,
            WEFT_E_ARG,
            "transfer '%s': a region of rank %d is negative in dimension %d: has %lld from "
            "%lld, wants %lld from %lld",
            name_of(t), t->ranks[m], d, (long long)have->size[d], (long long)have->begin[d],
            (long long)want->size[d], (long long)want->begin[d]);
    }
    return WEFT_OK;
}

weft_status wefti_transfer_check(const wefti_transfer *t) {
    WEFT_REQUIRE((unsigned)t->kind < WEFTI_TRANSFER_KINDS, WEFT_E_ARG, "unknown transfer kind %d",
                 (int)t->kind);
    WEFT_REQUIRE(t->rank >= 0 && t->rank <= WEFT_MAX_RANK, WEFT_E_ARG,
                 "transfer '%s' has regions of %d dimensions, 0 to %d are possible", name_of(t),
                 t->rank, WEFT_MAX_RANK);
    WEFT_REQUIRE((unsigned)t->dtype < WEFT_DTYPES, WEFT_E_ARG, "transfer '%s': unknown dtype %d",
                 name_of(t), (int)t->dtype);
    WEFT_REQUIRE((unsigned)t->reduction < WEFTI_REDUCTIONS, WEFT_E_ARG,
                 "transfer '%s': unknown reduction %d", name_of(t), (int)t->reduction);
    WEFT_REQUIRE(t->members >= 1, WEFT_E_ARG, "transfer '%s' has %d members", name_of(t),
                 t->members);
    WEFT_REQUIRE(t->me >= 0 && t->me < t->members, WEFT_E_ARG,
                 "transfer '%s': this device is member %d of %d", name_of(t), t->me, t->members);
    for (int32_t m = 0; m < t->members; m++) {
        WEFT_REQUIRE(t->ranks[m] > (m ? t->ranks[m - 1] : -1), WEFT_E_ARG,
                     "transfer '%s': ranks ascend, member %d is rank %d after %d", name_of(t), m,
                     t->ranks[m], m ? t->ranks[m - 1] : -1);
        WEFT_TRY(check_regions(t, m));
    }
    bool all_have = t->reduction != WEFTI_REDUCE_NONE &&
                    (t->kind == WEFTI_TRANSFER_ALL_REDUCE || t->kind == WEFTI_TRANSFER_REDUCE ||
                     t->kind == WEFTI_TRANSFER_REDUCE_SCATTER);
    wefti_region common = common_region(t);
    regions covered = {0}, rest = {0};
    weft_status status = WEFT_OK;
    for (int32_t m = 0; m < t->members && status >= 0; m++) {
        if (is_empty(&t->want[m], t->rank)) continue;
        if (all_have)
            status = check_common(t, m, &common);
        else if (!m || !wefti_regions_equal(&t->want[m], &t->want[m - 1], t->rank))
            status = check_covered(t, m, &covered, &rest);
    }
    wefti_free(covered.region);
    wefti_free(rest.region);
    if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
    return WEFT_OK;
}
