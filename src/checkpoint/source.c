/* Tensors from any supported path. See source.h. */
#include "checkpoint/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/tensor_set.h"

struct wefti_source {
    char *path;
    wefti_tensor_set *set;  /* a foreign file or directory, or NULL */
    wefti_checkpoint *step; /* a step of weft, or NULL */
    wefti_safetensors_entry *entries;
    int64_t count;
};

void wefti_source_close(wefti_source *source) {
    if (!source) return;
    wefti_tensor_set_close(source->set);
    wefti_checkpoint_close(source->step);
    wefti_free(source->entries);
    wefti_free(source->path);
    wefti_free(source);
}

const char *wefti_source_path(const wefti_source *source) {
    return source->path;
}

int64_t wefti_source_count(const wefti_source *source) {
    return source->count;
}

const wefti_safetensors_entry *wefti_source_at(const wefti_source *source, int64_t index) {
    return index >= 0 && index < source->count ? &source->entries[index] : NULL;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const wefti_safetensors_entry *)a)->name,
                  ((const wefti_safetensors_entry *)b)->name);
}

const wefti_safetensors_entry *wefti_source_find(const wefti_source *source, const char *name) {
    wefti_safetensors_entry key = {.name = name};
    if (!source->count) return NULL;
    return bsearch(&key, source->entries, (size_t)source->count, sizeof key, compare_entries);
}

const wefti_safetensors_pair *wefti_source_metadata(const wefti_source *source,
                                                    int64_t *out_count) {
    static const wefti_safetensors_pair of_steps = {"format", "pt"};
    const wefti_safetensors *file = source->set ? wefti_tensor_set_file(source->set, 0) : NULL;
    if (file) return wefti_safetensors_metadata(file, out_count);
    *out_count = source->step ? 1 : 0;
    return &of_steps;
}

int64_t wefti_source_number(const wefti_source *source, const char *key) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_source_metadata(source, &count);
    int64_t number = wefti_safetensors_number(pairs, count, key);
    return number < 0 ? -1 : number;
}

int64_t wefti_source_step(const wefti_source *source) {
    return source->step ? wefti_checkpoint_meta_of(source->step)->step
                        : wefti_source_number(source, "step");
}

static weft_status open_set(wefti_source *source) {
    WEFT_TRY(wefti_tensor_set_open(source->path, &source->set));
    int64_t count = wefti_tensor_set_count(source->set);
    WEFT_NEW_ARRAY(source->entries, wefti_safetensors_entry, count + 1);
    for (int64_t i = 0; i < count; i++) source->entries[i] = *wefti_tensor_set_at(source->set, i);
    source->count = count;
    return WEFT_OK;
}

static weft_status open_step(wefti_source *source) {
    WEFT_TRY(wefti_checkpoint_open_undamaged(source->path, &source->step));
    int64_t count = wefti_checkpoint_count(source->step);
    WEFT_NEW_ARRAY(source->entries, wefti_safetensors_entry, count + 1);
    for (int64_t i = 0; i < count; i++) {
        const wefti_checkpoint_entry *e = wefti_checkpoint_at(source->step, i);
        source->entries[i] = (wefti_safetensors_entry){
            .name = e->name,
            .dtype = wefti_safetensors_dtype_name(e->desc.dtype),
            .desc = e->desc,
            .reader = e->reader,
            .at = e->at,
            .bytes = e->bytes,
        };
    }
    source->count = count;
    if (count) qsort(source->entries, (size_t)count, sizeof *source->entries, compare_entries);
    for (int64_t i = 1; i < count; i++)
        WEFT_REQUIRE(strcmp(source->entries[i - 1].name, source->entries[i].name), WEFT_E_ARG,
                     "%s has a parameter and an optimizer's tensor named \"%.200s\"", source->path,
                     source->entries[i].name);
    return WEFT_OK;
}

weft_status wefti_source_open(const char *path, wefti_source **out) {
    bool steps = false;
    WEFT_TRY(wefti_step_holds(path, &steps));
    wefti_source *source;
    WEFT_NEW(source, wefti_source);
    source->path = wefti_strdup(path);
    weft_status status = WEFT_OK;
    if (!source->path) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    if (status >= 0) status = steps ? open_step(source) : open_set(source);
    if (status < 0) {
        wefti_source_close(source);
        return status;
    }
    *out = source;
    return WEFT_OK;
}
