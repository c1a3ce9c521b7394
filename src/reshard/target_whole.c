/* Model directories and steps of weft as a destination. See target.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/json/json.h"
#include "base/text.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/write_plan.h"
#include "reshard/target.h"

#define TARGET_SHARD_BYTES ((int64_t)4 << 30)

/* ---- a model directory ---- */

/* If the roles are known, the model's tensors only. */
static bool belongs(const wefti_shards *s, int64_t tensor) {
    return !s->manifest || s->tensors[tensor].role == WEFTI_CHECKPOINT_MODEL;
}

weft_status wefti_target_model(wefti_target *t) {
    const wefti_shards *s = t->source;
    int32_t files = 0, file = -1;
    char name[64];
    for (int pass = 0; pass < 2; pass++) {
        int64_t used = 0;
        int32_t number = 0;
        for (int64_t i = 0; i < s->count; i++) {
            const int64_t bytes = weft_desc_bytes(&s->tensors[i].desc);
            const wefti_region whole = wefti_region_whole(&s->tensors[i].desc);
            if (!belongs(s, i)) continue;
            if (!number || bytes > TARGET_SHARD_BYTES - used) {
                number++;
                used = 0;
                (void)snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", number, files);
                if (files == 1) (void)snprintf(name, sizeof name, "model.safetensors");
                if (pass) WEFT_TRY(wefti_target_add_file(t, name, -1, &file));
            }
            used = bytes > TARGET_SHARD_BYTES - used ? TARGET_SHARD_BYTES : used + bytes;
            if (pass) WEFT_TRY(wefti_target_add_item(t, file, i, &whole));
        }
        files = number;
    }
    WEFT_REQUIRE(files, WEFT_E_ARG, "%s has no tensors", s->path);
    return WEFT_OK;
}

static weft_status add_index(wefti_target *t) {
    const wefti_shards *s = t->source;
    wefti_text text = {0};
    int64_t total = 0, bytes;
    const char *separator = "\n  ";
    for (int64_t i = 0; i < s->count; i++)
        if (belongs(s, i)) total += weft_desc_bytes(&s->tensors[i].desc);
    wefti_text_add(&text, "{\n \"metadata\": {\"total_size\": %lld},\n \"weight_map\": {",
                   (long long)total);
    for (int64_t i = 0; i < s->count; i++) {
        if (!belongs(s, i)) continue;
        wefti_text_add(&text, "%s", separator);
        wefti_json_quote(&text, s->tensors[i].name);
        wefti_text_add(&text, ": \"%s\"", t->files[t->items[t->first_item[i]].file].name);
        separator = ",\n  ";
    }
    wefti_text_add(&text, "\n }\n}\n");
    bytes = text.used;
    char *index = wefti_text_take(&text);
    WEFT_REQUIRE(index, WEFT_E_NOMEM, "no memory for a model's index");
    weft_status status = wefti_target_text(t, "model.safetensors.index.json", index, bytes);
    wefti_free(index);
    return status;
}

weft_status wefti_target_side_files(wefti_target *t) {
    const wefti_shards *s = t->source;
    for (int64_t i = 0; i < s->text_count; i++)
        WEFT_TRY(wefti_target_text(t, s->texts[i].name, s->texts[i].text,
                                   wefti_checkpoint_text_bytes(&s->texts[i])));
    return WEFT_OK;
}

weft_status wefti_target_model_end(wefti_target *t) {
    if (t->file_count > 1) WEFT_TRY(add_index(t));
    return wefti_target_side_files(t);
}

/* ---- a run with one step ---- */

struct wefti_target_step {
    wefti_write_plan plan; /* the files of the step, as a run would write them */
    int64_t *tensor_of;    /* [tensors of the plan]: number in the source */
    char name[WEFTI_STEP_NAME_BYTES];
};

void wefti_target_run_free(wefti_target_step *step) {
    if (!step) return;
    wefti_write_plan_destroy(&step->plan);
    wefti_free(step->tensor_of);
    wefti_free(step);
}

/* The tensors in the order of the manifest, so that the files equal those of the run. */
static weft_status plan_step(const wefti_shards *s, wefti_target_step *step) {
    const wefti_manifest *m = s->manifest;
    const wefti_checkpoint_options options = {.texts = s->texts, .text_count = s->text_count};
    wefti_checkpoint_tensor *tensors;
    WEFT_NEW_ARRAY(tensors, wefti_checkpoint_tensor, m->tensor_count + 1);
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < m->tensor_count && status >= 0; k++) {
        const wefti_manifest_tensor *from = &m->tensors[k];
        const wefti_source_tensor *found = wefti_shards_find(s, from->role, from->name);
        if (!found)
            status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%s: no file has tensor %.200s of the step",
                                s->path, from->name);
        tensors[k] = (wefti_checkpoint_tensor){.name = from->name,
                                               .role = from->role,
                                               .desc = from->desc,
                                               .layout = from->layout,
                                               .later = true};
    }
    if (status >= 0 && s->count != m->tensor_count)
        status = WEFT_RAISE(WEFT_E_MISMATCH, "%s: the files have %lld tensors, the step %lld",
                            s->path, (long long)s->count, (long long)m->tensor_count);
    if (status >= 0)
        status = wefti_write_plan_create(&m->meta, tensors, m->tensor_count, &options, &step->plan);
    wefti_free(tensors);
    return status;
}

static weft_status add_step(wefti_target *t, wefti_target_step *step) {
    const wefti_manifest *m = &step->plan.manifest;
    int32_t file;
    WEFT_TRY(plan_step(t->source, step));
    (void)wefti_step_name(WEFTI_STEP_COMMITTED, m->meta.step, step->name);
    for (int64_t s = 0; s < step->plan.shard_count; s++) {
        const char *name = wefti_arena_format(t->arena, "%s/%s", step->name, m->files[s].name);
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
        WEFT_TRY(wefti_target_add_file(t, name, -1, &file));
    }
    WEFT_NEW_ARRAY(step->tensor_of, int64_t, m->tensor_count + 1);
    for (int64_t k = 0; k < m->tensor_count; k++) {
        const wefti_source_tensor *from =
            wefti_shards_find(t->source, m->tensors[k].role, m->tensors[k].name);
        const wefti_region whole = wefti_region_whole(&from->desc);
        step->tensor_of[k] = from - t->source->tensors;
        WEFT_TRY(wefti_target_add_item(t, (int32_t)m->tensors[k].file, step->tensor_of[k], &whole));
        t->items[t->item_count - 1].order = k;
    }
    return WEFT_OK;
}

weft_status wefti_target_run(wefti_target *t, wefti_target_step **out) {
    wefti_target_step *step;
    WEFT_REQUIRE(t->source->manifest, WEFT_E_ARG,
                 "%s does not have the state of a run of weft (optimizer, position in the data): "
                 "write a model directory, --format hf",
                 t->source->path);
    WEFT_NEW(step, wefti_target_step);
    weft_status status = add_step(t, step);
    if (status < 0) {
        wefti_target_run_free(step);
        return status;
    }
    *out = step;
    return WEFT_OK;
}

static weft_status end_step(wefti_target *t, wefti_target_step *step) {
    wefti_manifest *m = &step->plan.manifest;
    char *text = NULL;
    int64_t bytes = 0;
    for (int64_t s = 0; s < m->file_count; s++) {
        wefti_manifest_file *file = &m->files[s];
        if (s < step->plan.shard_count) {
            file->bytes = t->files[s].bytes;
            file->checked_bytes = t->files[s].header_bytes;
            file->crc32c = t->files[s].header_crc32c;
            continue;
        }
        const wefti_checkpoint_text *from = &step->plan.texts[s - step->plan.shard_count];
        const char *name = wefti_arena_format(t->arena, "%s/%s", step->name, file->name);
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
        file->bytes = file->checked_bytes = wefti_checkpoint_text_bytes(from);
        file->crc32c = wefti_crc32c(0, from->text, (size_t)file->bytes);
        WEFT_TRY(wefti_target_text(t, name, from->text, file->bytes));
    }
    for (int64_t k = 0; k < m->tensor_count; k++)
        m->tensors[k].crc32c = t->crc32c[step->tensor_of[k]];
    WEFT_TRY(wefti_manifest_print(m, &text, &bytes));
    char *name = wefti_format("%s/manifest.json", step->name);
    weft_status status = name ? wefti_target_text(t, name, text, bytes)
                              : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    wefti_free(name);
    wefti_free(text);
    return status;
}

weft_status wefti_target_run_end(wefti_target *t, wefti_target_step *step) {
    char latest[WEFTI_STEP_NAME_BYTES + 1];
    WEFT_TRY(end_step(t, step));
    (void)snprintf(latest, sizeof latest, "%s\n", step->name);
    return wefti_target_text(t, "latest", latest, (int64_t)strlen(latest));
}
