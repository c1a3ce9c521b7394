/* A trained model in a session without a backward pass: on the plan of a job, over the devices of
 * one process or of a world. */
#ifndef WEFTI_INFER_TRAINED_H
#define WEFTI_INFER_TRAINED_H

#include "setup/setup.h"
#include "weft/infer.h"

/* The settings come from a job, whose model is replaced by the checkpoint's. It must not move:
 * `built` points to it. */
typedef struct wefti_trained {
    weft_job job; /* the caller's, with `path` as its model.from */
    wefti_setup setup;
    wefti_built built;        /* program 0 of its session is model.eval_graph */
    const volatile int *stop; /* not 0: this process is asked to stop. NULL: it is never */
    char *path;
} wefti_trained;

/* All calls but the last are collective. Joins the world. */
weft_status wefti_trained_join(wefti_trained *m, weft_world *world, const weft_job *job,
                               const weft_infer_events *events) WEFT_CHECKED;
/* Joins the world and finds the checkpoint, `path`, but opens nothing: the caller may still change
 * m->job. `job` is borrowed. Close `m` after any of these calls, also after one that failed. */
weft_status wefti_trained_begin(wefti_trained *m, weft_world *world, const weft_job *job,
                                const char *checkpoint,
                                const weft_infer_events *events) WEFT_CHECKED;
/* Builds the session for a graph of `use` and loads the weights. EVAL opens the job's data.
 * `batch`: samples of a pass; 0: those of the job's microbatch. `length`: tokens of a sample; 0:
 * the job's model.context, or the model's. */
weft_status wefti_trained_open(wefti_trained *m, weft_model_use use, int64_t batch,
                               int64_t length) WEFT_CHECKED;
/* What a tier on a disk reads from the checkpoint itself. *out NULL: nothing; wefti_free. */
weft_status wefti_lent_note(const weft_session *session, char **out) WEFT_CHECKED;
weft_status wefti_trained_tell_lent(const wefti_setup *setup,
                                    const weft_session *session) WEFT_CHECKED;
/* Whether some rank was asked to stop. */
weft_status wefti_trained_stops(const wefti_trained *m, bool *out) WEFT_CHECKED;
void wefti_trained_close(wefti_trained *m);

#endif
