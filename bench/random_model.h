/* A language model with random weights, on disk as a checkpoint. */
#ifndef WEFT_BENCH_RANDOM_MODEL_H
#define WEFT_BENCH_RANDOM_MODEL_H

#include "stepper.h"

#include "checkpoint/checkpoint.h"

enum { RANDOM_MODEL_TENSORS = 4096 };

static inline void random_model_write(const weft_model_config *config, const char *run) {
    static char names[RANDOM_MODEL_TENSORS][200];
    static wefti_checkpoint_tensor tensors[RANDOM_MODEL_TENSORS];
    static void *owned[RANDOM_MODEL_TENSORS];
    weft_session_options o = weft_session_defaults();
    weft_graph *graph;
    weft_session *s;
    int64_t count = 0;
    int kept = 0;
    char *text, *note = NULL;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    stepper_check(weft_model_build(config, WEFT_USE_LOGITS, 1, 1, WEFT_F32, &graph));
    stepper_check(weft_session_create(graph, &o, &s));
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        weft_desc desc;
        stepper_check(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        float *data = malloc((size_t)info.bytes), *at = data;
        stepper_check(weft_session_read(s, 0, info.name, data, (size_t)info.bytes));
        owned[kept++] = data;
        for (int64_t part = 0; at < data + weft_desc_elems(&info.desc); part++) {
            stepper_check(weft_model_file_name(config, info.name, &info.desc, part, names[count],
                                               sizeof names[count], &desc));
            tensors[count] = (wefti_checkpoint_tensor){
                .name = names[count], .role = WEFTI_CHECKPOINT_MODEL, .desc = desc, .data = at};
            at += weft_desc_elems(&desc);
            count++;
        }
    }
    stepper_check(weft_model_config_write(config, &text));
    const wefti_checkpoint_text texts[] = {{"config.json", text}};
    const wefti_checkpoint_options how = {.texts = texts, .text_count = 1};
    const wefti_checkpoint_meta meta = {.step = 1};
    wefti_checkpoint_lock *lock;
    stepper_check(wefti_checkpoint_lock_open(run, &lock));
    stepper_check(wefti_checkpoint_write(run, &meta, tensors, count, &how, &note));
    wefti_checkpoint_lock_close(lock);
    weft_text_free(text);
    for (int i = 0; i < kept; i++) free(owned[i]);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

#endif
