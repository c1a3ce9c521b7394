/* Trained models in use, on the devices of one process or of a world: how good a model is on data,
 * and its outputs for given inputs. Text generation is in weft/generate.h.
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
    size_t struct_bytes;
    const char *checkpoint; /* as for weft_generator_open */
    const char *data;       /* evaluate this file or directory, in the job's data.format; NULL: the
                               job's validation data */
    const char *labels;     /* of `data`, if these are images; NULL: found by name */
    weft_infer_events events;
} weft_eval_options;
WEFTI_ZERO_DEFAULTS(weft_eval_options, weft_eval_defaults)

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
    int64_t predicted_peak_bytes;   /* of the device that needs most */
    double seconds;                 /* of the passes, without opening and loading */
    int64_t host_bytes, disk_bytes; /* in tiers below device memory, of the device with most */
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

/* ---- what it will take ---- */

typedef struct weft_infer_rank {
    int64_t peak_bytes;             /* of its arena: exactly what a model that is loaded has */
    int64_t weight_bytes;           /* of these: parameters and states */
    int64_t program_bytes;          /* of the host, besides: weft_session_memory */
    int64_t host_bytes, disk_bytes; /* parameters in tiers below device memory */
} weft_infer_rank;

typedef struct weft_infer_tensor {
    const char *name;
    weft_desc whole, part; /* part: of the first rank that has it */
    char layout[320];      /* as plans write it; empty: one device */
    int ranks;             /* that have it */
} weft_infer_tensor;

typedef struct weft_infer_report {
    int devices;
    weft_infer_rank *ranks; /* [devices] */
    int tensor_count;
    weft_infer_tensor *tensors; /* parameters and states */
    void *owner;
    const char *notes; /* what memory.offload: auto moves, a line each; NULL: nothing */
} weft_infer_report;

/** Memory and layouts of weft_infer_open for the job's model, before anything loads: no weights are
 * read, and no memory is taken for them. Of devices that are equal except for their place, one is
 * built.
 * @param batch   as in weft_infer_options
 * @param length  as in weft_infer_options
 * @param out     freed with weft_infer_report_free
 * @return as weft_job_report */
WEFT_API weft_status weft_job_infer_report(const weft_job *job, int64_t batch, int64_t length,
                                           weft_infer_report **out) WEFT_CHECKED;
WEFT_API void weft_infer_report_free(weft_infer_report *report); /* NULL is legal */

/* ---- outputs ---- */

/* A model that is loaded once and called many times. One thread at a time may use it. */
typedef struct weft_infer weft_infer;

typedef struct weft_infer_options {
    size_t struct_bytes;
    const char *checkpoint; /* as for weft_generator_open */
    int64_t batch;  /* samples that are computed together; 0: those of the job's microbatch */
    int64_t length; /* language models: most tokens of a sample; 0: the job's model.context,
                       or the model's */
    weft_infer_events events;
    int threads; /* without a job: of all devices; 0: all cores */
    /* Without a job: memory.disk and device.memory of this job count, nothing else. Borrowed until
     * the call returns. NULL: no directory and no limit. */
    const weft_job *memory;
} weft_infer_options;
WEFTI_ZERO_DEFAULTS(weft_infer_options, weft_infer_defaults)

/** Load a model. Collective in a world, as weft_eval_run.
 * @param job  NULL: `checkpoint` is a folder of weft_infer_export, which has all that a job says.
 *   Then `batch` and `length` must be 0
 * @param out  closed with weft_infer_close
 * @return as weft_eval_run; WEFT_E_ARG for more tokens than the model has positions */
WEFT_API weft_status weft_infer_open(weft_world *world, const weft_job *job,
                                     const weft_infer_options *options,
                                     weft_infer **out) WEFT_CHECKED;
WEFT_API void weft_infer_close(weft_infer *infer); /* NULL is legal; not collective */

/** Write the model to a new folder: its graph, its plan, and the weights of each rank
 * (docs/reference/format-exported.md). It runs without the job and the checkpoint, on the same
 * number of devices, as processes or in one, and gives the same bits on the same machine.
 * Collective in a world, whose ranks must all see the folder. The folder appears when it is
 * complete.
 * @return WEFT_E_ARG for a folder that exists; WEFT_E_STOPPED; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_infer_export(weft_infer *infer, const char *folder) WEFT_CHECKED;

typedef struct weft_infer_info {
    const char *checkpoint; /* directory of the weights; borrowed */
    /* One sample. Input: i32 [length], or f32 [channels, height, width] with values as in training.
     * Output: the logits, f32 [length, vocab] or [classes]. */
    weft_desc input, output;
    int64_t batch;
    bool causal; /* samples may be shorter than `input`: no token sees those after it */
    int devices;
    int64_t predicted_peak_bytes;   /* of the device that needs most */
    int64_t host_bytes, disk_bytes; /* in tiers below device memory, of the device with most */
} weft_infer_info;
WEFT_API weft_infer_info weft_infer_info_of(const weft_infer *infer);

/** Compute the logits of any number of samples, `batch` at a time; the last ones may be fewer.
 * Allocates nothing after the first call. Collective in a world, with the same input on all ranks;
 * all ranks get the output. Arguments that one rank alone has wrong fail the call on all ranks.
 * @param samples  1 or more
 * @param length   language models: tokens of each sample, at most those of weft_infer_info. Fewer
 *   are possible for causal models. Else 0
 * @param input    [samples, ...]: i32 [samples, length] or f32
 * @param output   [samples, length, vocab] or [samples, classes]
 * @return WEFT_E_ARG for wrong sizes and for tokens outside the vocabulary; WEFT_E_STOPPED */
WEFT_API weft_status weft_infer_run(weft_infer *infer, int64_t samples, int64_t length,
                                    const void *input, float *output) WEFT_CHECKED;

typedef struct weft_infer_files {
    size_t struct_bytes;
    const char *checkpoint;
    const char *input;  /* npy: whole numbers [samples, length]; or images [samples, channels,
                           height,  width], also without channels if there is one: u8, divided by
                           255,  or  floating-point numbers as they are */
    const char *output; /* npy of f32, written completely or not at all */
    int64_t batch;      /* as in weft_infer_options */
    weft_infer_events events;
    const weft_job *memory; /* as in weft_infer_options */
} weft_infer_files;
WEFTI_ZERO_DEFAULTS(weft_infer_files, weft_infer_files_defaults)

typedef struct weft_infer_files_result {
    char checkpoint[4096];
    int rank; /* of the output: 2 or 3 dimensions */
    int64_t shape[3];
    int devices;
    int64_t predicted_peak_bytes;
    double seconds; /* without opening and loading */
    int64_t host_bytes, disk_bytes;
} weft_infer_files_result;

/** Compute the logits of all samples of a file and write them to a file. Collective in a world:
 * rank 0 alone reads and writes the files.
 * @param job  NULL: the checkpoint is an exported folder, as for weft_infer_open
 * @return as weft_infer_open and weft_infer_run; WEFT_E_NOT_FOUND, WEFT_E_IO; WEFT_E_CORRUPT for a
 *   damaged file; WEFT_E_SHAPE if the array does not fit the model */
WEFT_API weft_status weft_infer_files_run(weft_world *world, const weft_job *job,
                                          const weft_infer_files *files,
                                          weft_infer_files_result *out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
