/* Merges listed slices into a file, and splits a checkpoint into files of slices. See
 * weft/checkpoint.h. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "reshard/reshard.h"
#include "tensor/tensor.h"
#include "weft/checkpoint.h"

typedef struct slice_conversion {
    wefti_shards *source;
    const wefti_shards *first; /* the source, or the first of the slices that it joins */
    wefti_layouts *layouts;    /* of the source, or of the destination */
    wefti_target *target;
    int *dimensions; /* [tensors of `first`] */
    wefti_safetensors_pair *pairs;
    int64_t pairs_count;
} slice_conversion;

static void conversion_free(slice_conversion *x) {
    wefti_target_destroy(x->target);
    wefti_layouts_close(x->layouts);
    wefti_shards_close(x->source);
    wefti_free(x->dimensions);
    wefti_free(x->pairs);
}

static bool has_pair(const wefti_shards *s, const wefti_safetensors_pair *pair) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_shards_pairs(s, &count);
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(pairs[i].key, pair->key)) return !strcmp(pairs[i].value, pair->value);
    return false;
}

/* Metadata that is equal in all slices also holds for the whole, and for slices of it, unless it
 * tells the place of a slice. */
static weft_status keep_pairs(slice_conversion *x) {
    static const char *const own[] = {"rank", "ranks", WEFTI_SLICES_REGIONS, WEFTI_DCP_REGIONS,
                                      "DCP_VERSION"};
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_shards_pairs(x->first, &count);
    WEFT_NEW_ARRAY(x->pairs, wefti_safetensors_pair, count + 1);
    for (int64_t i = 0; i < count; i++) {
        bool kept = true;
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            kept = kept && strcmp(pairs[i].key, own[k]) != 0;
        for (int k = 1; k < x->source->part_count; k++)
            kept = kept && has_pair(x->source->parts[k], &pairs[i]);
        if (kept) x->pairs[x->pairs_count++] = pairs[i];
    }
    return WEFT_OK;
}

/* What both ways do with an open source. `stem`: what the names of the files begin with. */
static weft_status prepare(slice_conversion *x, const char *stem) {
    x->first = x->source->part_count ? x->source->parts[0] : x->source;
    WEFT_NEW_ARRAY(x->dimensions, int, x->first->count + 1);
    WEFT_TRY(wefti_shards_dimensions(x->first, x->layouts, x->dimensions));
    if (x->source->part_count) WEFT_TRY(wefti_shards_join(x->source, x->dimensions));
    WEFT_TRY(keep_pairs(x));
    WEFT_TRY(wefti_target_create_beside(x->source, stem, &x->target));
    x->target->pairs = x->pairs;
    x->target->pairs_count = x->pairs_count;
    return WEFT_OK;
}

/* ---- the report ---- */

static void tell_tensors(const slice_conversion *x, const char *verb, bool json, wefti_text *text) {
    for (int64_t k = 0; k < x->source->count; k++) {
        const wefti_source_tensor *t = &x->source->tensors[k];
        const int dimension = x->dimensions[k];
        if (!json) {
            wefti_text_add(text, "  %-48s %-24s ", t->name, wefti_desc_text(&t->desc).text);
            if (dimension < 0) wefti_text_add(text, "whole\n");
            if (dimension >= 0) wefti_text_add(text, "%s along dimension %d\n", verb, dimension);
            continue;
        }
        wefti_text_add(text, "%s{\"name\": ", k ? ", " : "");
        wefti_json_quote(text, t->name);
        wefti_text_add(text, ", \"dtype\": \"%s\", \"shape\": [",
                       wefti_safetensors_dtype_name(t->desc.dtype));
        for (int d = 0; d < t->desc.rank; d++)
            wefti_text_add(text, d ? ", %lld" : "%lld", (long long)t->desc.shape[d]);
        if (dimension < 0) wefti_text_add(text, "], \"dimension\": null}");
        if (dimension >= 0) wefti_text_add(text, "], \"dimension\": %d}", dimension);
    }
    if (json) wefti_text_add(text, "]}\n");
}

static void tell_merged(const slice_conversion *x, const char *path, bool json, wefti_text *text) {
    const int slices = x->source->part_count;
    if (json) {
        wefti_text_add(text, "{\"file\": ");
        wefti_json_quote(text, path);
        wefti_text_add(text, ", \"slices\": %d, \"tensors\": [", slices);
    } else {
        wefti_text_add(text, "file         %s\nslices       %d\ntensors      %lld\n", path, slices,
                       (long long)x->source->count);
    }
    tell_tensors(x, "joined", json, text);
}

static void tell_split(const slice_conversion *x, bool json, wefti_text *text) {
    const wefti_target *t = x->target;
    if (json) {
        wefti_text_add(text, "{\"files\": [");
        for (int64_t r = 0; r < t->file_count; r++) {
            wefti_text_add(text, "%s", r ? ", " : "");
            wefti_json_quote(text, t->files[r].place);
        }
        wefti_text_add(text, "], \"tensors\": [");
    } else {
        wefti_text_add(text, "files        %s", t->files[0].place);
        if (t->file_count > 1) wefti_text_add(text, " to %s", t->files[t->file_count - 1].place);
        wefti_text_add(text, "\ntensors      %lld\n", (long long)x->source->count);
    }
    tell_tensors(x, "split", json, text);
}

static weft_status write_all(const slice_conversion *x) {
    const wefti_reads reads = {.source = x->source, .target = x->target, .prefer = -1, .all = true};
    const wefti_shard_copy what = {.source = x->source,
                                   .target = x->target,
                                   .whole = true,
                                   .replicas = true,
                                   .crc32c = x->target->crc32c};
    WEFT_TRY(wefti_reads_choose(&reads, NULL));
    WEFT_TRY(wefti_target_make(x->target));
    WEFT_TRY(wefti_copy_run(&what));
    return wefti_target_commit(x->target);
}

/* Writes the files, gives the report to the caller, and frees everything. */
static weft_status finish(slice_conversion *x, weft_status status, wefti_text *text,
                          char **out_text) {
    char *told = NULL;
    wefti_failure failure;
    if (status >= 0) status = wefti_reshard_give(status, text, &told);
    if (status >= 0) status = write_all(x);
    if (status == WEFT_E_MISMATCH && told)
        status = wefti_prefix(status, "what is not split along a dimension must be whole, with the "
                                      "same values, in every slice");
    wefti_failure_keep(status, &failure); /* freeing removes files, which may fail, too */
    wefti_text_free(text);
    conversion_free(x);
    if (status < 0 || !out_text)
        wefti_free(told);
    else
        *out_text = told;
    return status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

/* ---- merging ---- */

static weft_status prepare_merge(slice_conversion *x, const char *const *slices, int count,
                                 const weft_checkpoint_slice_rule *rules, int rule_count,
                                 const char *path) {
    const char *slash = strrchr(path, '/');
    int32_t file;
    WEFT_REQUIRE(count > 0, WEFT_E_ARG, "merge needs one slice or more");
    WEFT_REQUIRE(wefti_safetensors_is_name(path), WEFT_E_ARG,
                 "%s: the name of the output must end in .safetensors", path);
    WEFT_TRY(wefti_layouts_of_rules(rules, rule_count, count, &x->layouts));
    WEFT_TRY(wefti_shards_open_parts(slices, count, &x->source));
    WEFT_TRY(prepare(x, path));
    WEFT_TRY(wefti_target_add_file(x->target, slash ? slash + 1 : path, -1, &file));
    for (int64_t k = 0; k < x->source->count; k++) {
        const wefti_region whole = wefti_region_whole(&x->source->tensors[k].desc);
        WEFT_TRY(wefti_target_add_item(x->target, file, k, &whole));
    }
    return WEFT_OK;
}

weft_status weft_checkpoint_merge(const char *const *slices, int slice_count,
                                  const weft_checkpoint_slice_rule *rules, int rule_count,
                                  const char *path, int json, char **out_text) {
    slice_conversion x = {0};
    wefti_text text = {0};
    weft_status status = prepare_merge(&x, slices, slice_count, rules, rule_count, path);
    if (status >= 0) tell_merged(&x, path, json != 0, &text);
    return finish(&x, status, &text, out_text);
}

/* ---- splitting ---- */

static weft_status prepare_split(slice_conversion *x, const char *path, int ranks,
                                 const weft_checkpoint_slice_rule *rules, int rule_count,
                                 const char *prefix) {
    const size_t length = strlen(prefix);
    WEFT_REQUIRE(ranks >= 1 && ranks <= WEFTI_RULES_RANKS, WEFT_E_ARG,
                 "a checkpoint is split for 1 to %d ranks, not %d", WEFTI_RULES_RANKS, ranks);
    /* without a prefix file names would begin with "-", as options do */
    WEFT_REQUIRE(
        length && prefix[length - 1] != '/', WEFT_E_ARG,
        "'%s' cannot be the prefix of file names: give one that is not empty and does not end with "
        "'/', for example '%sslice'",
        prefix, prefix);
    WEFT_TRY(wefti_layouts_of_rules(rules, rule_count, ranks, &x->layouts));
    WEFT_TRY(wefti_shards_open_slice(path, &x->source));
    WEFT_TRY(prepare(x, prefix));
    return wefti_target_slices(x->target, x->layouts, NULL);
}

weft_status weft_checkpoint_split(const char *path, int ranks,
                                  const weft_checkpoint_slice_rule *rules, int rule_count,
                                  const char *prefix, int json, char **out_text) {
    slice_conversion x = {0};
    wefti_text text = {0};
    weft_status status = prepare_split(&x, path, ranks, rules, rule_count, prefix);
    if (status >= 0) tell_split(&x, json != 0, &text);
    return finish(&x, status, &text, out_text);
}
