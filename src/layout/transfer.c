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

bool wefti_regions_equal(const wefti_region *a, const wefti_region *b, int rank) {
    size_t bytes = (size_t)rank * sizeof a->size[0];
    return memcmp(a->begin, b->begin, bytes) == 0 && memcmp(a->size, b->size, bytes) == 0;
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
