/* Transfers: bytes, checks, copies. */
#include "layout/transfer.h"

#include "base/digest/digest.h"
#include "base/memory.h"

const char *wefti_transfer_kind_text(wefti_transfer_kind kind) {
    switch (kind) {
#define WEFTI_TRANSFER_ROW(name, text)                                                             \
    case WEFTI_TRANSFER_##name:                                                                    \
        return text;
        WEFTI_TRANSFER_LIST(WEFTI_TRANSFER_ROW)
#undef WEFTI_TRANSFER_ROW
    default:
        return "?";
    }
}

const char *wefti_reduction_text(wefti_reduction reduction) {
    static const char *const text[WEFTI_REDUCTIONS] = {"", "sum", "max", "min", "prod"};
    return (unsigned)reduction < WEFTI_REDUCTIONS ? text[reduction] : "?";
}

static int64_t overlap(const wefti_transfer *t, int32_t have, int32_t want) {
    wefti_region both;
    return wefti_region_intersect(&t->have[have], &t->want[want], t->rank, &both)
               ? wefti_region_elems(&both, t->rank)
               : 0;
}

/* A member without a region has sizes 0. The region of a scalar has no sizes and one element. */
static int64_t elems(const wefti_transfer *t, const wefti_region *region) {
    return wefti_region_elems(region, t->rank);
}

int64_t wefti_transfer_bytes(const wefti_transfer *t) {
    int64_t element = (int64_t)weft_dtype_bytes(t->dtype), wanted = elems(t, &t->want[t->me]);
    if (t->reduction == WEFTI_REDUCE_NONE) return element * (wanted - overlap(t, t->me, t->me));
    if (t->kind == WEFTI_TRANSFER_ALL_REDUCE) { /* a ring: 2 (g - 1) / g of the value */
        int64_t bytes = element * wanted, g = t->members, rounds = 2 * (g - 1);
        return bytes / g * rounds + (bytes % g * rounds + g - 1) / g;
    }
    int64_t received = 0;
    for (int32_t m = 0; m < t->members; m++)
        if (m != t->me) received += overlap(t, m, t->me);
    return element * received;
}

/* ---- checks ---- */

/* Regions that no member covers yet. */
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

static bool contains(const wefti_region *outer, const wefti_region *inner, int rank) {
    for (int d = 0; d < rank; d++)
        if (inner->begin[d] < outer->begin[d] ||
            inner->begin[d] + inner->size[d] > outer->begin[d] + outer->size[d])
            return false;
    return true;
}

bool wefti_regions_equal(const wefti_region *a, const wefti_region *b, int rank) {
    size_t bytes = (size_t)rank * sizeof a->size[0];
    return memcmp(a->begin, b->begin, bytes) == 0 && memcmp(a->size, b->size, bytes) == 0;
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
    if (contains(common, &t->want[m], t->rank)) return WEFT_OK;
    int32_t lacks = 0;
    while (contains(&t->have[lacks], &t->want[m], t->rank)) lacks++;
    WEFT_FAIL(WEFT_E_MISMATCH,
              "transfer '%s': rank %d wants elements to be reduced over all members that rank "
              "%d does not have",
              name_of(t), t->ranks[m], t->ranks[lacks]);
}

static weft_status check_covered(const wefti_transfer *t, int32_t m, regions *rest) {
    if (contains(&t->have[m], &t->want[m], t->rank)) return WEFT_OK;
    rest->used = 0;
    WEFT_TRY(regions_add(rest, &t->want[m]));
    for (int32_t from = 0; from < t->members && rest->used; from++)
        if (elems(t, &t->have[from])) WEFT_TRY(regions_subtract(rest, &t->have[from], t->rank));
    if (!rest->used) return WEFT_OK;
    const wefti_region *gap = &rest->region[0];
    int d = 0;
    while (d + 1 < t->rank && gap->size[d] == t->want[m].size[d]) d++;
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
    regions rest = {0};
    weft_status status = WEFT_OK;
    for (int32_t m = 0; m < t->members && status >= 0; m++) {
        if (!elems(t, &t->want[m])) continue;
        if (all_have)
            status = check_common(t, m, &common);
        else if (!m || !wefti_regions_equal(&t->want[m], &t->want[m - 1], t->rank))
            status = check_covered(t, m, &rest);
    }
    wefti_free(rest.region);
    if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
    return WEFT_OK;
}

weft_status wefti_transfer_clone(const wefti_transfer *t, wefti_transfer **out) {
    size_t members = (size_t)t->members, name = t->name ? strlen(t->name) + 1 : 0;
    size_t regions_bytes = members * sizeof(wefti_region);
    const bool shared = t->want == t->have; /* an all-reduce of many members */
    size_t bytes = sizeof *t + (shared ? 1 : 2) * regions_bytes + members * sizeof *t->ranks + name;
    char *block = wefti_alloc(bytes);
    WEFT_REQUIRE(block, WEFT_E_NOMEM, "no memory for a transfer of %d members", t->members);
    wefti_transfer *copy = (wefti_transfer *)block;
    *copy = *t;
    copy->have = (wefti_region *)(block + sizeof *t);
    copy->want = shared ? copy->have : copy->have + members;
    copy->ranks = (int32_t *)(copy->want + members);
    memcpy(copy->have, t->have, regions_bytes);
    if (!shared) memcpy(copy->want, t->want, regions_bytes);
    memcpy(copy->ranks, t->ranks, members * sizeof *t->ranks);
    if (name) {
        char *text = (char *)(copy->ranks + members);
        memcpy(text, t->name, name);
        copy->name = text;
    }
    *out = copy;
    return WEFT_OK;
}

int64_t wefti_transfer_block_bytes(const wefti_transfer *t) {
    size_t members = (size_t)t->members;
    size_t bytes = sizeof *t + members * (2 * sizeof(wefti_region) + sizeof *t->ranks);
    /* The block may end with the name, or the name lies elsewhere. */
    if (t->name == (const char *)(t->ranks + members)) bytes += strlen(t->name) + 1;
    return (int64_t)bytes;
}

bool wefti_transfer_equal(const wefti_transfer *a, const wefti_transfer *b) {
    if (a->kind != b->kind || a->reduction != b->reduction || a->dtype != b->dtype ||
        a->rank != b->rank || a->members != b->members)
        return false;
    for (int32_t m = 0; m < a->members; m++)
        if (a->ranks[m] != b->ranks[m] || !wefti_regions_equal(&a->have[m], &b->have[m], a->rank) ||
            !wefti_regions_equal(&a->want[m], &b->want[m], a->rank))
            return false;
    return true;
}

uint64_t wefti_transfer_channel(const wefti_transfer *t) {
    uint64_t digest = wefti_digest_number(wefti_digest_number(1, t->tag), (uint64_t)t->members);
    return wefti_digest_bytes(digest, t->ranks, (size_t)t->members * sizeof *t->ranks);
}

static uint64_t digest_region(uint64_t digest, const wefti_region *region, int rank) {
    for (int d = 0; d < rank; d++)
        digest = wefti_digest_number(wefti_digest_number(digest, (uint64_t)region->begin[d]),
                                     (uint64_t)region->size[d]);
    return digest;
}

uint64_t wefti_transfer_digest(const wefti_transfer *t) {
    uint64_t digest = wefti_digest_number(wefti_digest_number(2, t->kind), t->reduction);
    digest = wefti_digest_number(wefti_digest_number(digest, t->dtype), (uint64_t)t->rank);
    digest = wefti_digest_number(digest, (uint64_t)t->members);
    for (int32_t m = 0; m < t->members; m++) {
        digest = wefti_digest_number(digest, (uint64_t)t->ranks[m]);
        digest = digest_region(digest_region(digest, &t->have[m], t->rank), &t->want[m], t->rank);
    }
    return digest;
}
