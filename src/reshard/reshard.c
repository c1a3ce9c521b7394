/* Converts checkpoints between formats and layouts. See weft/checkpoint.h. */
#include "reshard/reshard.h"

#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/text.h"
#include "weft/checkpoint.h"

typedef struct resharding {
    const weft_checkpoint_reshard_options *o;
    wefti_reshard_input in;
    wefti_layouts *to;
    wefti_target *target;
    wefti_target_step *step;
    weft_checkpoint_format format;
    bool *only; /* [ranks]; NULL: all */
} resharding;

static void resharding_free(resharding *r) {
    wefti_target_run_free(r->step);
    wefti_target_destroy(r->target);
    wefti_layouts_close(r->to);
    wefti_reshard_close(&r->in);
    wefti_free(r->only);
}

/* ---- settings ---- */

static weft_status take_only(resharding *r) {
    const weft_checkpoint_reshard_options *o = r->o;
    if (!o->only_count) return WEFT_OK;
    WEFT_REQUIRE(r->to, WEFT_E_ARG, "ranks can be chosen only if the destination has slices");
    WEFT_NEW_ARRAY(r->only, bool, r->to->ranks);
    for (int i = 0; i < o->only_count; i++) {
        WEFT_REQUIRE(o->only[i] >= 0 && o->only[i] < r->to->ranks, WEFT_E_ARG,
                     "rank %d does not exist: %s is for %d ranks", o->only[i], r->to->path,
                     r->to->ranks);
        r->only[o->only[i]] = true;
    }
    return WEFT_OK;
}

static weft_status choose_format(resharding *r) {
    weft_checkpoint_format format = r->o->format;
    if (format == WEFT_CHECKPOINT_AUTO)
        format = r->to                    ? WEFT_CHECKPOINT_SLICES
                 : r->in.shards->manifest ? WEFT_CHECKPOINT_RUN
                                          : WEFT_CHECKPOINT_HF;
    const bool slices = format == WEFT_CHECKPOINT_SLICES || format == WEFT_CHECKPOINT_DCP;
    WEFT_REQUIRE(slices || !r->to, WEFT_E_ARG,
                 "%s is for slices, but the destination has whole tensors", r->to->path);
    WEFT_REQUIRE(
        !slices || r->to, WEFT_E_ARG,
        "the destination has slices: give the plan, the strategy file or rules of its ranks");
    r->format = format;
    return WEFT_OK;
}

static weft_status open_all(resharding *r, const char *source) {
    WEFT_TRY(wefti_reshard_open(source, r->o->from, &r->in));
    if (r->o->to) WEFT_TRY(wefti_layouts_open(r->o->to, &r->to));
    WEFT_TRY(choose_format(r));
    return take_only(r);
}

static weft_status add_items(resharding *r) {
    switch (r->format) {
    case WEFT_CHECKPOINT_SLICES:
        return wefti_target_slices(r->target, r->to, r->only);
    case WEFT_CHECKPOINT_DCP:
        return wefti_target_dcp(r->target, r->to);
    case WEFT_CHECKPOINT_RUN:
        return wefti_target_run(r->target, &r->step);
    default:
        return wefti_target_model(r->target);
    }
}

static weft_status end(resharding *r) {
    switch (r->format) {
    case WEFT_CHECKPOINT_SLICES:
        return wefti_target_slices_end(r->target);
    case WEFT_CHECKPOINT_DCP:
        return wefti_target_side_files(r->target);
    case WEFT_CHECKPOINT_RUN:
        return wefti_target_run_end(r->target, r->step);
    default:
        return wefti_target_model_end(r->target);
    }
}

static int32_t preferred(const resharding *r) {
    return r->o->only_count == 1 ? r->o->only[0] : -1;
}

/* ---- copying ---- */

static weft_status copy(resharding *r) {
    const bool all = !r->only;
    const wefti_reads reads = {.source = r->in.shards,
                               .target = r->target,
                               .prefer = preferred(r),
                               .replicas = r->o->replicas,
                               .all = all};
    const wefti_shard_copy what = {.source = r->in.shards,
                                   .target = r->target,
                                   .whole = all && r->format != WEFT_CHECKPOINT_HF,
                                   .replicas = all,
                                   .crc32c = r->target->crc32c};
    WEFT_TRY(wefti_reads_choose(&reads, NULL));
    WEFT_TRY(wefti_target_make(r->target));
    WEFT_TRY(wefti_copy_run(&what));
    WEFT_TRY(end(r));
    return wefti_target_commit(r->target);
}

/* ---- reports ---- */

static void tell(const resharding *r, bool json, wefti_text *text) {
    static const char *const names[] = {"", "slices", "dcp", "weft", "hf"};
    const wefti_target *t = r->target;
    int64_t bytes = 0;
    for (int64_t i = 0; i < t->file_count; i++) bytes += t->files[i].bytes;
    if (json) {
        wefti_text_add(text, "{\"destination\": ");
        wefti_json_quote(text, t->path);
        wefti_text_add(text,
                       ", \"format\": \"%s\", \"ranks\": %d, \"tensors\": %lld, "
                       "\"files\": %lld, \"bytes\": %lld}\n",
                       names[r->format], t->ranks, (long long)r->in.shards->count,
                       (long long)t->file_count, (long long)bytes);
        return;
    }
    char size[32];
    wefti_text_add(text, "destination  %s (%s)\ntensors      %lld\nfiles        %lld, %s\n",
                   t->path, names[r->format], (long long)r->in.shards->count,
                   (long long)t->file_count, wefti_bytes_text(bytes, size));
}

weft_status weft_checkpoint_reshard(const char *source, const char *destination,
                                    const weft_checkpoint_reshard_options *options, int json,
                                    char **out_text) {
    weft_checkpoint_reshard_options own = weft_checkpoint_reshard_defaults();
    resharding r = {.o = &own};
    wefti_text text = {0};
    weft_status status = wefti_struct_take("weft_checkpoint_reshard_options", options, &own);
    if (status >= 0) status = open_all(&r, source);
    if (status >= 0) status = wefti_target_create(r.in.shards, destination, &r.target);
    if (status >= 0) status = add_items(&r);
    if (status >= 0) status = copy(&r);
    if (status >= 0) tell(&r, json != 0, &text);
    wefti_failure failure;
    wefti_failure_keep(status, &failure); /* freeing removes files, which may fail, too */
    resharding_free(&r);
    if (status < 0) status = wefti_failure_tell(&failure);
    return wefti_reshard_give(status, &text, out_text);
}

static void tell_files(const resharding *r, const bool *used, bool json, wefti_text *text) {
    const wefti_shards *s = r->in.shards;
    const char *separator = "";
    if (json) wefti_text_add(text, "{\"files\": [");
    for (int64_t i = 0; i < s->file_count; i++) {
        if (!used[i]) continue;
        if (!json) {
            wefti_text_add(text, "%s\n", s->files[i].path);
            continue;
        }
        wefti_text_add(text, "%s", separator);
        wefti_json_quote(text, s->files[i].path);
        separator = ", ";
    }
    if (json) wefti_text_add(text, "]}\n");
    if (!json) wefti_text_add(text, "%s", "");
}

weft_status weft_checkpoint_sources(const char *source, int rank,
                                    const weft_checkpoint_reshard_options *options, int json,
                                    char **out_text) {
    weft_checkpoint_reshard_options o = weft_checkpoint_reshard_defaults();
    resharding r = {.o = &o};
    wefti_text text = {0};
    bool *used = NULL;
    weft_status status = wefti_struct_take("weft_checkpoint_reshard_options", options, &o);
    o.only = &rank;
    o.only_count = 1;
    if (status >= 0) status = open_all(&r, source);
    if (status >= 0) status = wefti_target_create(r.in.shards, NULL, &r.target);
    if (status >= 0) status = add_items(&r);
    if (status >= 0) {
        const wefti_reads reads = {
            .source = r.in.shards, .target = r.target, .prefer = rank, .replicas = o.replicas};
        used = wefti_calloc((size_t)r.in.shards->file_count + 1, sizeof *used);
        status = used ? wefti_reads_choose(&reads, used)
                      : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a list of files");
    }
    if (status >= 0) tell_files(&r, used, json != 0, &text);
    wefti_free(used);
    resharding_free(&r);
    return wefti_reshard_give(status, &text, out_text);
}

/* ---- strategy files ---- */

weft_status weft_checkpoint_merge_strategies(const char *const *paths, int count,
                                             const char *path) {
    wefti_layouts *all = NULL, *one;
    char *text = NULL;
    int64_t bytes = 0;
    const size_t length = strlen(path);
    WEFT_REQUIRE(count > 0, WEFT_E_ARG, "no strategy files to merge");
    WEFT_TRY(wefti_check_new(path));
    WEFT_TRY(wefti_layouts_create(path, &all));
    weft_status status = WEFT_OK;
    for (int i = 0; i < count && status >= 0; i++) {
        status = wefti_layouts_open(paths[i], &one);
        if (status < 0) break;
        if (!one->count) status = WEFT_RAISE(WEFT_E_ARG, "%s is not a strategy file", paths[i]);
        if (status >= 0) status = wefti_layouts_merge(all, one);
        wefti_layouts_close(one);
    }
    if (status >= 0)
        status = length > 5 && !strcmp(path + length - 5, ".json")
                     ? wefti_layouts_print_json(all, &text, &bytes)
                     : wefti_layouts_print_protobuf(all, &text, &bytes);
    if (status >= 0) status = wefti_file_write(path, text, (size_t)bytes);
    wefti_free(text);
    wefti_layouts_close(all);
    return status;
}
