/* A trained model in a session without a backward pass: on the plan of a job, over the devices of
 * one process or of a world. */
#ifndef WEFTI_INFER_TRAINED_H
#define WEFTI_INFER_TRAINED_H

#include "train/training.h"
#include "weft/infer.h"

enum { WEFTI_TRAINED_PATH = 4096 };

/* The settings come from a job, whose model is replaced by the checkpoint's. It must not move:
 * `training` points to it. */
typedef struct wefti_trained {
    weft_job job; /* the caller's, with `path` as its model.from */
    weft_train_events events;
    weft_train_result result;
    wefti_training training; /* program 0 of its session is model.eval_graph */
    char path[WEFTI_TRAINED_PATH];
} wefti_trained;

/* All calls are collective in a world. Begins; closed with wefti_trained_close, also after a
 * failure of this call or of a later one. `job` is borrowed. `path` is found, nothing is open yet;
 * then the caller may change `job`. */
weft_status wefti_trained_begin(wefti_trained *m, weft_world *world, const weft_job *job,
                                const char *checkpoint,
                                const weft_infer_events *events) WEFT_CHECKED;
/* Builds the session for a graph of `use` and loads the weights. EVAL opens the job's data.
 * `batch`: samples of a pass; 0: those of the job's microbatch. `length`: tokens of a sample; 0:
 * the job's model.context, or the model's. */
weft_status wefti_trained_open(wefti_trained *m, weft_model_use use, int64_t batch,
                               int64_t length) WEFT_CHECKED;
void wefti_trained_close(wefti_trained *m);

#endif
