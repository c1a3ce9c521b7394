/* Redundancy groups: ranks whose files have the same contents. See layouts.h. */
#include "base/digest/digest.h"
#include "reshard/layouts.h"

/* A digest of what a rank holds. Regions depend on the numbers of parts only, so each dimension has
 * one element for each part. */
static uint64_t digest_of(const wefti_layouts *l, int32_t rank) {
    uint64_t digest = 0;
    for (int64_t i = 0; i < l->count; i++) {
        const wefti_placement *p = &l->items[i];
        weft_desc whole = {.dtype = WEFT_F32, .rank = p->rank};
        wefti_region region;
        if (!wefti_placement_has(p, rank)) continue;
        wefti_placement_parts(p, p->rank, whole.shape);
        wefti_placement_region(p, &whole, rank, &region);
        digest = wefti_digest_text(digest, p->name);
        digest = wefti_digest_bytes(digest, &region, sizeof region);
    }
    return digest;
}

/* For each rank the lowest rank that holds the same regions of the same tensors. */
static weft_status find_groups(const wefti_layouts *l, int32_t *out) {
    uint64_t *digests;
    WEFT_NEW_ARRAY(digests, uint64_t, l->ranks);
    for (int32_t r = 0; r < l->ranks; r++) {
        digests[r] = digest_of(l, r);
        out[r] = 0;
        while (digests[out[r]] != digests[r]) out[r]++;
    }
    wefti_free(digests);
    return WEFT_OK;
}

weft_status wefti_layouts_groups_text(const wefti_layouts *l, bool json, wefti_text *text) {
    int32_t *groups;
    const char *between = "";
    WEFT_NEW_ARRAY(groups, int32_t, l->ranks);
    weft_status status = find_groups(l, groups);
    wefti_text_add(text, json ? "{\"groups\": [" : "");
    for (int32_t r = 0; r < l->ranks && status >= 0; r++) {
        const char *separator = "";
        if (groups[r] != r) continue;
        wefti_text_add(text, json ? "%s[" : "%s{", between);
        for (int32_t k = r; k < l->ranks; k++) {
            if (groups[k] != r) continue;
            wefti_text_add(text, json && *separator ? "%s %d" : "%s%d", separator, k);
            separator = ",";
        }
        wefti_text_add(text, json ? "]" : "}");
        between = json ? ", " : ",";
    }
    wefti_text_add(text, json ? "]}\n" : "\n");
    wefti_free(groups);
    return status;
}
