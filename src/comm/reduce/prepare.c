/* From boxes to loops: dimensions that are whole in all arrays become one run of neighbours. */
#include "comm/reduce/reduce.h"

/* Dimension d and the next one are one for this array: it holds all of the next one. */
static bool whole(const wefti_region *part, const wefti_region *array, int d) {
    return part->size[d] == array->size[d];
}

static void place(const wefti_region *part, const wefti_region *array, int rank,
                  wefti_move_side *out) {
    int64_t stride = 1;
    out->offset = 0;
    for (int d = rank - 1; d >= 0; d--) {
        out->offset += (part->begin[d] - array->begin[d]) * stride;
        out->stride[d] = stride;
        stride *= array->size[d];
    }
}

static void keep_loops(wefti_move_side *side, const int *kept, int loops) {
    for (int i = 0; i < loops; i++) side->stride[i] = side->stride[kept[i]];
}

void wefti_move_prepare(const wefti_region *part, int rank, weft_dtype dtype,
                        wefti_reduction reduction, const wefti_region *to, const wefti_region *have,
                        const int32_t *members, int32_t sources, wefti_move_side *sides,
                        wefti_copy_move *out) {
    *out = (wefti_copy_move){.dtype = dtype,
                             .reduction = reduction,
                             .sources = sources,
                             .members = members,
                             .from = sides};
    place(part, to, rank, &out->to);
    for (int32_t s = 0; s < sources; s++) place(part, &have[members[s]], rank, &sides[s]);
    /* The run: from the last dimension outwards, as long as the one within is whole everywhere. */
    out->run = 1;
    int d = rank - 1;
    for (bool neighbours = true; d >= 0 && neighbours; d--) {
        out->run *= part->size[d];
        neighbours = whole(part, to, d);
        for (int32_t s = 0; s < sources && neighbours; s++)
            neighbours = whole(part, &have[members[s]], d);
    }
    int kept[WEFT_MAX_RANK];
    for (int outer = 0; outer <= d; outer++) {
        if (part->size[outer] == 1) continue;
        kept[out->loops] = outer;
        out->count[out->loops++] = part->size[outer];
    }
    keep_loops(&out->to, kept, out->loops);
    for (int32_t s = 0; s < sources; s++) keep_loops(&sides[s], kept, out->loops);
}
