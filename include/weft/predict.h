/* Predictions of a training step on a machine that need not exist: seconds, causes, memory.
 *
 * A prediction walks the programs that a run would execute with a clock. Costs come from a machine
 * model (docs/reference/format-machine.md). Nothing is trained; neither data nor weights are read.
 */
#ifndef WEFT_PREDICT_H
#define WEFT_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/graph.h"
#include "weft/job.h"
#include "weft/plan.h"
#include "weft/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kernels and copies of a rank take `factor` times as long, 1 to 1e6. */
typedef struct weft_slow_rank {
    int rank;
    double factor;
} weft_slow_rank;

/** Transfers with both ranks among their members take `factor` times as long, 1 to 1e6. */
typedef struct weft_slow_link {
    int a, b;
    double factor;
} weft_slow_link;

/** What differs from a machine in perfect order. All zero: nothing. */
typedef struct weft_disturbances {
    const weft_slow_rank *slow_ranks;
    int slow_rank_count;
    const weft_slow_link *slow_links;
    int slow_link_count;
    int failing;         /* this rank stops at fail_seconds */
    double fail_seconds; /* 0: no rank fails */
} weft_disturbances;

/** Seconds of the step's critical path that one cause takes: "forward", "backward", "update",
 * "other" (kernels), "copy", "host copy" and "disk copy" (between device memory and these tiers),
 * or a kind of transfer such as "all_reduce". */
typedef struct weft_time_cause {
    const char *name; /* static storage */
    double seconds;
} weft_time_cause;

/** Ranks that have equal programs and equal times. */
typedef struct weft_rank_prediction {
    int rank;  /* the lowest of them */
    int count; /* how many ranks they are */
    int stage;
    int64_t peak_bytes;      /* of the arena: exactly the predicted peak of the program */
    int64_t program_bytes;   /* of the program itself */
    double end_seconds;      /* of its own last step */
    double busy_seconds;     /* kernels, and copies within device memory */
    double exposed_seconds;  /* waits for transfers that are under way */
    double idle_seconds;     /* waits for other ranks (bubbles, stragglers), and for links in use */
    double transfer_seconds; /* transfers under way, exposed or not */
    double tier_seconds;     /* copies between device memory and the tiers below it, as far as the
                                rank waits for them */
} weft_rank_prediction;

/** Memory of a rank as the driver of its device shows it, from figures of the machine. */
typedef struct weft_driver_memory {
    int64_t bytes;              /* both arenas in whole allocations, and what follows */
    int64_t context_bytes;      /* of the driver and the code of kernels */
    int64_t communicator_bytes; /* buffers of all communicators */
    int communicators;          /* groups that the rank communicates in; one for all messages
                                   between stages */
    int rank;                   /* the one that needs most */
    bool known;                 /* the machine has such figures; else all are 0 */
    bool fits;                  /* bytes are at most the memory of a device */
} weft_driver_memory;

typedef struct weft_prediction {
    double step_seconds;
    weft_time_cause *causes; /* that are not 0; they add up to step_seconds */
    int cause_count;
    int critical_rank;      /* the critical path ends there */
    double compute_seconds; /* on the critical path: kernels, copies within device memory */
    double exposed_seconds; /* on the critical path: transfers */
    double bubble_seconds;  /* mean over all ranks of idle_seconds */
    int64_t peak_bytes;     /* of the rank that needs most */
    int peak_rank;
    int64_t device_bytes;     /* memory of a device of the machine */
    bool fits;                /* peak_bytes are at most that */
    double tokens_per_second; /* 0: unknown */
    double flops;             /* of a step and all ranks, without recomputation if that is known */
    double mfu;               /* flops per second, as a part of the products' peak; 0: unknown */
    weft_rank_prediction *classes; /* in the order of their lowest ranks */
    int class_count;
    int ranks;
    bool stopped; /* a rank failed, others waited for it: step_seconds is when the last stopped */
    int waiting;  /* how many ranks waited then */
    int hosts;    /* that the ranks are on */
    weft_driver_memory driver;
    int64_t state_bytes;       /* parameters and states, of the rank that has most of them */
    double checkpoint_seconds; /* to write them at the machine's disk rate; 0: unknown */
    double tier_seconds; /* on the critical path: copies between device memory and lower tiers */
    int64_t host_bytes, disk_bytes; /* that a device keeps in the tiers below its memory, at most */
    int64_t host_moved_bytes, disk_moved_bytes; /* copied to and from them in a step, at most */
    int64_t server_bytes; /* of all servers together: parameters, optimizer states, gradients */
    int64_t server_moved_bytes; /* that a device pushes and pulls in a step, at most */
} weft_prediction;

typedef struct weft_predict_options {
    size_t struct_bytes;
    const char
        *machine; /* as the job key `machine`: a name, a topology or a file; NULL: the job's */
    weft_disturbances disturbances;
    double tokens; /* of a step, for tokens_per_second; 0: the job's, or unknown */
    const char
        *trace; /* file for a timeline of all ranks (docs/reference/format-trace.md), or NULL */
    const char *report; /* HTML file that shows the prediction, or NULL */
    const char *title;  /* of the report: the job's file, for one; NULL: none */
} weft_predict_options;
WEFTI_ZERO_DEFAULTS(weft_predict_options, weft_predict_defaults)

/** Predict a step of a job. Its programs are built without kernels, one for each class of equal
 * ranks, and checked against each other. Opens the data only if sizes depend on them.
 * @param options  NULL: the job's machine, nothing else
 * @param out      freed with weft_prediction_free
 * @return WEFT_E_ARG without a machine, for a machine with too few devices, or for disturbances of
 *   ranks that do not exist; the errors of weft_job_report but for its limit of memory; WEFT_E_IO
 *   for the files */
WEFT_API weft_status weft_job_predict(const weft_job *job, const weft_predict_options *options,
                                      weft_prediction **out) WEFT_CHECKED;
/** Predict a step of a graph under a plan. Wraps loose nodes of the graph into cells.
 * @param plan     NULL: one device
 * @param session  optimizer, clipping, microbatches, arithmetic; its plan and world are not used.
 *                 NULL: weft_session_defaults
 * @param options  options->machine is needed
 * @return as weft_job_predict */
WEFT_API weft_status weft_plan_predict(weft_graph *graph, const weft_plan *plan,
                                       const weft_session_options *session,
                                       const weft_predict_options *options,
                                       weft_prediction **out) WEFT_CHECKED;
WEFT_API void weft_prediction_free(weft_prediction *prediction); /* NULL is legal */

#ifdef __cplusplus
}
#endif
#endif
