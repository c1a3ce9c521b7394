/* A session's model on disk, as a checkpoint. For tests and benchmarks. */
#ifndef WEFT_TESTS_SAVED_MODEL_H
#define WEFT_TESTS_SAVED_MODEL_H

#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "weft/weft.h"

enum { SAVED_MODEL_TENSORS = 4096 };

typedef struct saved_model {
    wefti_checkpoint_tensor tensors[SAVED_MODEL_TENSORS];
    char names[SAVED_MODEL_TENSORS][200];
    int64_t count;
    float *owned[SAVED_MODEL_TENSORS];
    int kept;
} saved_model;

/* A parameter in f32, under its names in files: several if files have it in parts. */
static inline weft_status saved_model_add(saved_model *m, weft_session *s,
                                          const weft_model_config *c,
                                          const weft_tensor_info *info) {
    float *data = malloc((size_t)info->bytes), *at = data;
    m->owned[m->kept++] = data;
    weft_status status = weft_session_read(s, 0, info->name, data, (size_t)info->bytes);
    for (int64_t part = 0; status >= 0 && at < data + weft_desc_elems(&info->desc); part++) {
        char *name = m->names[m->count];
        weft_desc desc;
        status =
            weft_model_file_name(c, info->name, &info->desc, part, name, sizeof m->names[0], &desc);
        if (status < 0) break;
        m->tensors[m->count++] = (wefti_checkpoint_tensor){
            .name = name, .role = WEFTI_CHECKPOINT_MODEL, .desc = desc, .data = at};
        at += weft_desc_elems(&desc);
    }
    return status;
}

static inline weft_status saved_model_fill(saved_model *m, weft_session *s,
                                           const weft_model_config *c) {
    weft_status status = WEFT_OK;
    for (int t = 0; t < weft_session_tensors(s, 0) && status >= 0; t++) {
        weft_tensor_info info;
        status = weft_session_tensor(s, 0, t, &info);
        if (status >= 0 && info.role == WEFT_ROLE_PARAM) status = saved_model_add(m, s, c, &info);
    }
    return status;
}

/* Writes step `step` of the run. `tokenizer` NULL: without tokenizer.json. */
static inline weft_status saved_model_write(weft_session *s, const weft_model_config *c,
                                            const char *run, int64_t step, const char *tokenizer) {
    saved_model *m = calloc(1, sizeof *m);
    wefti_checkpoint_lock *lock = NULL;
    char *config = NULL, *note = NULL;
    weft_status status = saved_model_fill(m, s, c);
    if (status >= 0) status = weft_model_config_write(c, &config);
    const wefti_checkpoint_text texts[] = {{.name = "config.json", .text = config},
                                           {.name = "tokenizer.json", .text = tokenizer}};
    const wefti_checkpoint_options how = {.texts = texts, .text_count = tokenizer ? 2 : 1};
    const wefti_checkpoint_meta meta = {.step = step};
    if (status >= 0) status = wefti_checkpoint_lock_open(run, &lock);
    if (status >= 0) status = wefti_checkpoint_write(run, &meta, m->tensors, m->count, &how, &note);
    if (lock) wefti_checkpoint_lock_close(lock);
    weft_text_free(config);
    for (int i = 0; i < m->kept; i++) free(m->owned[i]);
    free(m);
    return status;
}

#endif
