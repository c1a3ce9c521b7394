/* Slices of ranks, and torch's distributed checkpoints, as a destination. See target.h. */
#include <string.h>

#include "base/text.h"
#include "reshard/target.h"
#include "tensor/tensor.h"

/* The regions of one tensor on all ranks. */
typedef struct tensor_ranks {
    int64_t tensor;
    wefti_placement *found; /* none: every rank has all of it */
    int32_t count;
} tensor_ranks;

static weft_status find_ranks(const wefti_shards *s, const wefti_layouts *to, int64_t tensor,
                              tensor_ranks *out) {
    const wefti_source_tensor *t = &s->tensors[tensor];
    const wefti_source_tensor *of = wefti_shards_parameter(s, t);
    *out = (tensor_ranks){.tensor = tensor};
    WEFT_TRY(
        wefti_layouts_find(to, t->name, of ? of->name : NULL, &t->desc, &out->found, &out->count));
    for (int32_t i = 0; i < out->count; i++) {
        weft_status status = wefti_placement_check(to, &out->found[i], &t->desc);
        if (status >= 0) continue;
        wefti_free(out->found);
        return wefti_prefix(status, "%s", s->path);
    }
    return WEFT_OK;
}

/* Whether `rank` has the tensor, and which region. */
static bool region_on(const wefti_shards *s, const tensor_ranks *x, int32_t rank,
                      wefti_region *out) {
    const weft_desc *desc = &s->tensors[x->tensor].desc;
    *out = wefti_region_whole(desc);
    for (int32_t i = 0; i < x->count; i++) {
        if (!wefti_placement_has(&x->found[i], rank)) continue;
        wefti_placement_region(&x->found[i], desc, rank, out);
        return true;
    }
    return x->count == 0;
}

static weft_status check_rules(const wefti_shards *s, const wefti_layouts *to) {
    int *dimensions;
    WEFT_NEW_ARRAY(dimensions, int, s->count + 1);
    weft_status status = wefti_shards_dimensions(s, to, dimensions);
    wefti_free(dimensions);
    return status;
}

/* A strategy file describes only tensors of the source. */
static weft_status check_named(const wefti_shards *s, const wefti_layouts *to) {
    if (to->matched) return check_rules(s, to);
    bool any = !to->plan || !wefti_layouts_patterns(to);
    for (int64_t i = 0; i < to->count; i++) {
        const char *name = to->items[i].name;
        WEFT_REQUIRE(wefti_shards_find(s, WEFTI_CHECKPOINT_MODEL, name) ||
                         wefti_shards_find(s, WEFTI_CHECKPOINT_OPTIMIZER, name) ||
                         wefti_map_find_text(&s->absent_names, name) >= 0,
                     WEFT_E_MISMATCH,
                     "%s describes the parameter %.200s, which %s does not have: are both of the "
                     "same model?",
                     to->path, name, s->path);
    }
    for (int64_t i = 0; i < s->count && !any; i++)
        any = wefti_layouts_names(to, s->tensors[i].name);
    WEFT_REQUIRE(any, WEFT_E_MISMATCH,
                 "no pattern of %s matches a tensor of %s: are both of the same model?", to->path,
                 s->path);
    return WEFT_OK;
}

/* The chosen ranks must not have tensors of which nothing is left but the name. */
static weft_status check_absent(const wefti_shards *s, const wefti_layouts *to, const bool *only) {
    for (int64_t i = 0; i < s->absent_count; i++)
        for (int32_t r = 0; r < to->ranks; r++)
            if ((!only || only[r]) && wefti_layouts_may_have(to, s->absent[i], r))
                return wefti_shards_fail_absent(s, s->absent[i]);
    return WEFT_OK;
}

static weft_status add_files(wefti_target *t, const bool *only, int32_t *files) {
    const char *slash = strrchr(t->path ? t->path : "", '/');
    for (int32_t r = 0; r < t->ranks; r++) {
        const char *name =
            t->beside ? wefti_arena_format(t->arena, "%s-rank-%05d-of-%05d.safetensors",
                                           slash ? slash + 1 : t->path, r, t->ranks)
            : t->regions == WEFTI_REGIONS_DCP
                ? wefti_arena_format(t->arena, "shard-%05d-model-00001-of-00001.safetensors", r + 1)
                : wefti_arena_format(t->arena, "rank_%d/checkpoint_%d.safetensors", r, r);
        files[r] = -1;
        if (only && !only[r]) continue;
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
        WEFT_TRY(wefti_target_add_file(t, name, r, &files[r]));
    }
    return WEFT_OK;
}

/* Whether an item of the tensor has this region already. */
static bool is_written(const wefti_target *t, int64_t tensor, const wefti_region *region) {
    for (int32_t i = t->first_item[tensor]; i >= 0; i = t->items[i].next)
        if (!memcmp(&t->items[i].region, region, sizeof *region)) return true;
    return false;
}

static weft_status add_tensor(wefti_target *t, const wefti_layouts *to, const int32_t *files,
                              int64_t tensor) {
    tensor_ranks x;
    wefti_region region;
    WEFT_TRY(find_ranks(t->source, to, tensor, &x));
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < t->ranks && status >= 0; r++) {
        if (files[r] < 0 || !region_on(t->source, &x, r, &region)) continue;
        if (t->regions == WEFTI_REGIONS_DCP && is_written(t, tensor, &region)) continue;
        status = wefti_target_add_item(t, files[r], tensor, &region);
    }
    wefti_free(x.found);
    return status;
}

static weft_status add_all(wefti_target *t, const wefti_layouts *to, const bool *only) {
    int32_t *files;
    t->ranks = to->ranks;
    WEFT_TRY(check_named(t->source, to));
    WEFT_TRY(check_absent(t->source, to, only));
    WEFT_NEW_ARRAY(files, int32_t, t->ranks);
    weft_status status = add_files(t, only, files);
    for (int64_t i = 0; i < t->source->count && status >= 0; i++)
        status = add_tensor(t, to, files, i);
    wefti_free(files);
    return status;
}

weft_status wefti_target_slices(wefti_target *t, const wefti_layouts *to, const bool *only) {
    t->regions = t->beside ? WEFTI_REGIONS_RANKS : WEFTI_REGIONS_SLICES;
    return add_all(t, to, only);
}

weft_status wefti_target_dcp(wefti_target *t, const wefti_layouts *to) {
    t->regions = WEFTI_REGIONS_DCP;
    return add_all(t, to, NULL);
}

weft_status wefti_target_slices_end(wefti_target *t) {
    const wefti_shards *s = t->source;
    if (s->manifest)
        WEFT_TRY(wefti_target_text(t, WEFTI_SLICES_MANIFEST, s->manifest_text, s->manifest_bytes));
    return wefti_target_side_files(t);
}
