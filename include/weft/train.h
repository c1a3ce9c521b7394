/* Training runs: a job from its first step, or its last checkpoint, to its end. */
#ifndef WEFT_TRAIN_H
#define WEFT_TRAIN_H

#include "weft/job.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Facts about a run before its first step. */
typedef struct weft_train_start {
    const char *family;
    int64_t parameters;        /* elements */
    int64_t steps, first_step; /* first_step > 0: continued from a checkpoint */
    int64_t batch, context;    /* context 0: images */
    int64_t samples, validation_samples;
    int64_t vocab;                /* or classes */
    int threads, devices;         /* threads of all devices together */
    const char *precision, *bf16; /* bf16: "native" or "f32 products", "" in f32 */
    int64_t predicted_peak_bytes; /* of the device that needs most */
    int64_t program_bytes;        /* that a device's programs take themselves */
    double flops_per_step;        /* of all devices and microbatches */
    bool resized; /* the run goes on after first_step with another number of processes */
    int64_t host_bytes, disk_bytes; /* that a device keeps in the tiers below its memory, at most */
} weft_train_start;

/* What a run does at a time. At every moment it does one of these, so their seconds add up to the
 * time of the process. */
typedef enum weft_train_part {
    WEFT_TRAIN_PART_START,       /* from the start of the process to the begin of the run */
    WEFT_TRAIN_PART_JOINING,     /* finds the other ranks */
    WEFT_TRAIN_PART_OPENING,     /* opens the data */
    WEFT_TRAIN_PART_BUILDING,    /* finds a plan, builds programs, prepares kernels */
    WEFT_TRAIN_PART_LOADING,     /* reads a checkpoint, or model.from */
    WEFT_TRAIN_PART_DATA,        /* waits for the samples of a step */
    WEFT_TRAIN_PART_STEPS,       /* computes steps */
    WEFT_TRAIN_PART_WAITING,     /* waits in steps, and before them, for other devices: until they
                                    are there and their data have come */
    WEFT_TRAIN_PART_VALIDATION,  /* computes the validation loss */
    WEFT_TRAIN_PART_CHECKPOINTS, /* cannot compute since a checkpoint is saved */
    WEFT_TRAIN_PART_RECOVERY,    /* goes on after a process was lost */
    WEFT_TRAIN_PART_SAVING,      /* saves the result at the end */
    WEFT_TRAIN_PART_OTHER,
    WEFT_TRAIN_PARTS
} weft_train_part;
/** A part's name, for people and in files: "steps", "waiting for others". Never fails. */
WEFT_API const char *weft_train_part_text(weft_train_part part);

typedef struct weft_train_step {
    int64_t step; /* updates done, from 1 */
    double loss, learning_rate;
    double gradient_norm;     /* NaN when clipping is off */
    double seconds;           /* of this step */
    double tokens_per_second; /* samples per second for images */
    double eta_seconds;
    int64_t observed_peak_bytes;
    int64_t resident_bytes; /* of this process, as the kernel counts them; 0: not known */
    /* FLOPs of the model in this step, over those that all devices can compute in its time; NaN:
     * neither does the job name a machine, nor is this one measured */
    double mfu;
    /* By weft_train_part: of this rank, since the step before. The first step has all before it. */
    double part_seconds[WEFT_TRAIN_PARTS];
} weft_train_step;

typedef struct weft_train_validation {
    int64_t step;
    double loss;
    double accuracy; /* classifiers; NaN for language models */
    double seconds;
} weft_train_validation;

/* Callbacks, from the thread that trains. Any may be NULL. */
typedef struct weft_train_events {
    size_t struct_bytes;
    void *context;
    void (*start)(void *context, const weft_train_start *start);
    void (*step)(void *context, const weft_train_step *step);
    void (*validation)(void *context, const weft_train_validation *validation);
    void (*checkpoint)(void *context, int64_t step, const char *path); /* committed */
    void (*note)(void *context, const char *text);                     /* for the user */
    const volatile int *stop; /* when it becomes nonzero (a signal handler may set it), the run
                                 commits a checkpoint and ends */
    const char *trace;        /* file for a Chrome JSON trace, or NULL */
} weft_train_events;
WEFTI_ZERO_DEFAULTS(weft_train_events, weft_train_events_defaults)

/** weft_train_result.stop after a file asked for the end (job key checkpoint.stop_file). */
enum { WEFT_TRAIN_STOPPED_BY_FILE = -1 };

typedef struct weft_train_result {
    int64_t steps;
    double final_loss, validation_loss; /* validation_loss NaN without validation data */
    double accuracy;
    double first_step_seconds; /* from the start of the process to the end of its first step */
    double seconds;            /* of all steps */
    double process_seconds;    /* from the start of the process to the end of the run */
    double part_seconds[WEFT_TRAIN_PARTS]; /* of process_seconds, on this rank; they add up to it */
    double tokens_per_second;              /* median over steps */
    int64_t predicted_peak_bytes, observed_peak_bytes;
    /* Rows of tables on a disk that have a cache, as in weft_session_memory, of this process */
    int64_t cache_hits, cache_misses, cache_written, cache_look_ups, cache_look_ups_hit,
        cache_ahead;
    int64_t samples_prepared;    /* training samples that this process has read for its steps */
    int64_t validation_prepared; /* validation samples that this process has read */
    /* The value of *events->stop, on any rank, that ended the run, or WEFT_TRAIN_STOPPED_BY_FILE;
     * else 0 */
    int stop;
    char checkpoint[4096]; /* directory of the last committed step, "" without one */
} weft_train_result;

/** Run a job. Blocks until it is done, stopped or failed. *out_result is set as far as the run
 * came, also on failure.
 * @return WEFT_OK, also when a file asked for the end; WEFT_E_STOPPED after a stop request (a
 * checkpoint is committed if the job has a directory); WEFT_E_NUMERIC if the loss is not finite
 * (the last checkpoint stays); otherwise the error */
WEFT_API weft_status weft_train_run(const weft_job *job, const weft_train_events *events,
                                    weft_train_result *out_result) WEFT_CHECKED;
/** Run a job as one of several processes; each runs one device of the job's plan. Collective: all
 * processes call it with the same job. NULL world: as weft_train_run.
 *
 * Each rank reads the samples of which its device needs rows. Rank 0 alone has events, writes
 * metrics, and reads and writes checkpoints and model.from. The other ranks use only `stop` and
 * `trace` of their events. Ranks of one host end with one trace, that of rank 0's host under its
 * name, those of other hosts with ".host1" and so on appended. A stop on any rank stops
 * all after the same step. If one rank fails, all fail with its number in the message, and the
 * world can only be left. */
WEFT_API weft_status weft_train_run_in(weft_world *world, const weft_job *job,
                                       const weft_train_events *events,
                                       weft_train_result *out_result) WEFT_CHECKED;

/** How long the oldest call of this process to the file system has been under way, in seconds; 0:
 * there is none. A disk or a file server that does not answer keeps the calling thread in the
 * kernel, where it runs no signal handler: another thread that asks this can end the process. Calls
 * that this library makes for runs count. Any thread and any signal handler may ask. */
WEFT_API double weft_file_wait_seconds(void);

/** Complete the plan of a job: the strategy of each op, the layout of each tensor, the stage of
 * each cell. Nothing is trained, and no device is needed.
 * @param out            freed with weft_plan_destroy
 * @param out_unmatched  notes of a search of the job, then settings without effect, one per line;
 *   may be NULL; freed with weft_text_free.
 * Settings without effect are patterns that match nothing in the model (with the nearest name),
 * axes of the mesh that split nothing, fusion that has no effect in any stage, and ends of fusion
 * after a stage's last gradient
 * @return as weft_job_report */
WEFT_API weft_status weft_job_plan(const weft_job *job, weft_plan **out,
                                   char **out_unmatched) WEFT_CHECKED;

/** The layouts of a job's parameters, states and optimizer states as a strategy file of MindSpore
 * (docs/reference/format-slices.md), under the names that checkpoints give them. Nothing is
 * trained.
 * @param path  the file to write, completely or not at all; JSON if it ends in .json, else protobuf
 * @return as weft_job_report; WEFT_E_NO_IMPL for layouts that such a file cannot describe: uneven
 * parts, axes of one dimension that are not neighbours, unlike meshes of stages */
WEFT_API weft_status weft_job_strategy_save(const weft_job *job, const char *path) WEFT_CHECKED;

/** The ranks whose slices of all parameters, states and optimizer states are the same, so that one
 * can replace another: "{0,4},{1,5}", or (json) one object with the list `groups`. Freed with
 * weft_text_free. */
WEFT_API weft_status weft_job_redundancy(const weft_job *job, int json, char **out) WEFT_CHECKED;

/** Search for the plan of a job whose mode is auto and whose search is joint, and predict its step.
 * Nothing is trained.
 * @param out         the completed plan, freed with weft_plan_destroy; may be NULL: then it is not
 *   completed
 * @param out_report  freed with weft_search_report_free
 * @return as weft_job_plan; WEFT_E_ARG for a job of another mode or search, or constraints that
 *   contradict each other; WEFT_E_NOMEM if no plan fits: by how many bytes and on which rank */
WEFT_API weft_status weft_job_search(const weft_job *job, weft_plan **out,
                                     weft_search_report **out_report) WEFT_CHECKED;

/* ---- the model of a job, without training: tables of cells, costs and memory ---- */

typedef struct weft_cell_info {
    const char *name;   /* path of the call: "h.3" */
    int64_t parameters; /* elements of its parameters (tied ones count at their first use) */
    double forward_flops, backward_flops;
    int64_t saved_bytes; /* saved for its backward pass */
    int64_t frame_bytes; /* working memory while it runs, the larger of both passes */
    int kind;            /* cells with equal numbers have one structure, compiled once */
    /* A device's pieces of the parameters that it uses first, and its saved bytes. */
    int64_t device_bytes;
    char layout[320]; /* of its first result on the plan's mesh, "[dp, -, -]"; "" without a plan */
} weft_cell_info;

/* With several devices, a cell's numbers are those of the first device that runs it. Parameters are
 * counted whole. Bytes are of the device that needs most. FLOPs of a step are the sum over all
 * devices. */
typedef struct weft_model_report {
    weft_cell_info *cells;
    int cell_count, kinds;
    int64_t trained; /* of `parameters`, elements: the others are frozen */
    int64_t parameters, parameter_bytes, optimizer_bytes, transient_bytes, predicted_peak_bytes;
    int64_t program_bytes; /* that a device's programs take themselves: weft_session_memory */
    int64_t copy_bytes;    /* of another device's state, as its buddy (recovery.buddy) */
    double forward_flops, backward_flops; /* of one step, all microbatches */
    int devices;
    int64_t *peaks;                 /* predicted, of each device */
    char *largest;                  /* largest tensors at the peak, one line */
    char *unmatched;                /* as for weft_job_plan; NULL: nothing is split */
    int64_t host_bytes, disk_bytes; /* that a device keeps in the tiers below its memory */
    int64_t host_moved_bytes, disk_moved_bytes; /* copied to and from them in a step */
    char *rows; /* with train.rows: how each table is updated, a line each; NULL: not asked */
    int64_t server_bytes; /* of all servers together: parameters, optimizer states, gradients */
    int64_t server_moved_bytes; /* that a device pushes and pulls in a step, at most */
    void *owner;
} weft_model_report;

/** Build the programs that weft_train_run would run, and describe them. Of devices that are equal
 * except for their place, one is built. Opens the data only if the sizes depend on it.
 * @param out  freed with weft_model_report_free
 * @return WEFT_E_ARG for an inconsistent job; WEFT_E_LAYOUT and others for a plan that does not fit
 *   the
 * model; WEFT_E_MISMATCH if the programs of the devices do not match; WEFT_E_NOMEM if a device
 * needs more than device.memory; the errors of weft_data_open and of reading model.from */
WEFT_API weft_status weft_job_report(const weft_job *job, weft_model_report **out) WEFT_CHECKED;
WEFT_API void weft_model_report_free(weft_model_report *report); /* NULL is legal */

#ifdef __cplusplus
}
#endif
#endif
