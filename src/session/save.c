/* Saves and loads the tensors on this process's device: the slices of programs that split
 * parameters by hand. Whole models of all devices are checkpoints: train/save. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"
#include "session/mend/mend.h"
#include "session/parts.h"

/* The tensors to save, with the memory that holds them. */
typedef struct saved {
    wefti_safetensors_item *items;
    int64_t count;
} saved;

static bool is_kept(const weft_tensor_info *info) {
    return info->role == WEFT_ROLE_PARAM || info->role == WEFT_ROLE_STATE ||
           info->role == WEFT_ROLE_OPTIMIZER;
}

static weft_status list_saved(weft_session *s, saved *out) {
    int tensors = weft_session_tensors(s, 0);
    WEFT_NEW_ARRAY(out->items, wefti_safetensors_item, tensors + 1);
    for (int i = 0; i < tensors; i++) {
        weft_tensor_info info;
        weft_session_part part;
        WEFT_TRY(weft_session_tensor(s, 0, i, &info));
        if (!is_kept(&info)) continue;
        WEFT_TRY(weft_session_local(s, 0, info.name, &part));
        if (!part.data) continue; /* not on this device */
        memcpy(info.desc.shape, part.size, (size_t)info.desc.rank * sizeof *part.size);
        out->items[out->count++] = (wefti_safetensors_item){info.name, info.desc, part.data};
    }
    return WEFT_OK;
}

static weft_status try_save_local(weft_session *session, const char *path) {
    saved list = {0};
    char step[24], rank[16];
    (void)snprintf(step, sizeof step, "%" PRId64, weft_session_step_number(session));
    (void)snprintf(rank, sizeof rank, "%d", session->me);
    const wefti_safetensors_pair pairs[] = {{"format", "pt"}, {"step", step}, {"rank", rank}};
    weft_status status = list_saved(session, &list);
    if (status >= 0)
        status =
            wefti_safetensors_write(path, list.items, list.count, pairs, session->world ? 3 : 2);
    wefti_free(list.items);
    return status;
}

weft_status weft_session_save_local(weft_session *session, const char *path) {
    return wefti_session_settle(session, try_save_local(session, path));
}

static weft_status check_item(const wefti_safetensors *file, const wefti_safetensors_item *item,
                              const char *path) {
    const wefti_safetensors_entry *entry = wefti_safetensors_find(file, item->name);
    WEFT_REQUIRE(entry, WEFT_E_SHAPE, "%s has no tensor \"%s\", which is %s here", path, item->name,
                 wefti_desc_text(&item->desc).text);
    WEFT_REQUIRE(entry->desc.rank >= 0 && wefti_desc_equal(&entry->desc, &item->desc), WEFT_E_SHAPE,
                 "%s: tensor \"%s\" is %s; here it is %s", path, item->name,
                 entry->desc.rank < 0 ? entry->dtype : wefti_desc_text(&entry->desc).text,
                 wefti_desc_text(&item->desc).text);
    return WEFT_OK;
}

static bool is_listed(const saved *list, const char *name) {
    for (int64_t i = 0; i < list->count; i++)
        if (!strcmp(list->items[i].name, name)) return true;
    return false;
}

/* Checks the whole file before anything changes. */
static weft_status check_file(const wefti_safetensors *file, const saved *list, const char *path) {
    for (int64_t i = 0; i < list->count; i++) WEFT_TRY(check_item(file, &list->items[i], path));
    int64_t count = wefti_safetensors_count(file);
    for (int64_t k = 0; k < count && count > list->count; k++) {
        const char *name = wefti_safetensors_at(file, k)->name;
        WEFT_REQUIRE(is_listed(list, name), WEFT_E_SHAPE,
                     "%s has a tensor \"%.200s\", which the session does not have", path, name);
    }
    return WEFT_OK;
}

/* The number of updates before the file was saved; -1: unknown. */
static weft_status step_of(const wefti_safetensors *file, const char *path, int64_t *out) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_safetensors_metadata(file, &count);
    *out = wefti_safetensors_number(pairs, count, "step");
    WEFT_REQUIRE(*out >= -1, WEFT_E_CORRUPT, "%s: its \"step\" is not a number of steps", path);
    return WEFT_OK;
}

static weft_status load(weft_session *session, const wefti_safetensors *file, const saved *list,
                        const char *path) {
    int64_t step;
    WEFT_TRY(check_file(file, list, path));
    WEFT_TRY(step_of(file, path, &step));
    if (step >= 0) WEFT_TRY(weft_session_set_step(session, step));
    for (int64_t i = 0; i < list->count; i++) {
        weft_session_part part;
        const wefti_safetensors_entry *entry = wefti_safetensors_find(file, list->items[i].name);
        WEFT_TRY(weft_session_local(session, 0, entry->name, &part));
        WEFT_TRY(wefti_reader_at(entry->reader, entry->at, part.bytes, part.data));
    }
    return WEFT_OK;
}

static weft_status try_load_local(weft_session *session, const char *path) {
    saved list = {0};
    wefti_safetensors *file = NULL;
    /* The collective part comes first, so that other ranks do not wait for a rank without a file.
     */
    weft_status status = list_saved(session, &list);
    if (status >= 0) status = wefti_safetensors_open(path, &file);
    if (status >= 0) status = load(session, file, &list, path);
    wefti_safetensors_close(file);
    wefti_free(list.items);
    return status;
}

weft_status weft_session_load_local(weft_session *session, const char *path) {
    return wefti_session_settle(session, try_load_local(session, path));
}
