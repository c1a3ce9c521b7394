/* Trained models in use, on the devices of one process or of a world: how good a model is on data.
 * Text generation is in weft/generate.h.
 *
 * A job says how: the data, the batch, the precision, the plan. The weights come from a checkpoint,
 * which may have been written on any plan. Sessions have no backward pass and no optimizer. In a
 * world each rank reads only the parts of the files that its device has, if all ranks see them. */
#ifndef WEFT_INFER_H
#define WEFT_INFER_H

#include "weft/job.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Callbacks, from the calling thread. In a world only rank 0 makes notes. */
typedef struct weft_infer_events {
    void *context;
    void (*note)(void *context, const char *text); /* for the user; may be NULL */
    const volatile int *stop; /* stop when it becomes nonzero, on any rank. May be NULL */
} weft_infer_events;

typedef struct weft_eval_options {
    const char *checkpoint; /* as for weft_generator_open */
    const char *data;       /* evaluate this file or directory, in the job's data.format; NULL: the
                               job's validation data */
    const char *labels;     /* of `data`, if these are images; NULL: found by name */
    weft_infer_events events;
} weft_eval_options;

typedef struct weft_eval_result {
    char checkpoint[4096]; /* directory of the weights */
    int64_t samples;
    int64_t targets;      /* tokens or labels that count */
    int64_t bytes;        /* of the targets' texts, without tokens that end a text; 0: unknown */
    double loss;          /* mean over the targets, in nats */
    double perplexity;    /* exp(loss); NaN for classifiers */
    double bits_per_byte; /* NaN if bytes is 0 */
    double accuracy;      /* of classifiers: the share of samples whose label has the largest logit;
                             NaN for language models */
    int devices;
    int64_t predicted_peak_bytes; /* of the device that needs most */
    double seconds;               /* of the passes, without opening and loading */
} weft_eval_result;

/** Evaluate a checkpoint on data. Collective in a world, where each process runs one device of the
 * job's plan; all ranks get the same result.
 * @param world  NULL: all devices are in this process
 * @param job    data, batch, precision, plan. Sizes of the model that it sets must be the
 *   checkpoint's. Its microbatches divide a batch here too
 * @return WEFT_E_ARG if there are no data to evaluate, or for a job of another model; WEFT_E_SHAPE
 *   if the data or the checkpoint do not fit the model; WEFT_E_STOPPED after a stop request;
 *   WEFT_E_NUMERIC if the loss is not finite; the errors of weft_job_report, weft_generator_open
 *   and weft_data_open */
WEFT_API weft_status weft_eval_run(weft_world *world, const weft_job *job,
                                   const weft_eval_options *options,
                                   weft_eval_result *out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
