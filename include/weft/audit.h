/* Audits: where the time of a run went, what to try, and what it was predicted to take.
 *
 * A run with a checkpoint directory keeps its plan, its machine, its prediction and the times of
 * its kernels and transfers in the folder `record` of that directory
 * (docs/reference/format-record.md). */
#ifndef WEFT_AUDIT_H
#define WEFT_AUDIT_H

#include <stdint.h>

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds of a step, summed over all ranks in detail. */
typedef struct weft_audit_line {
    const char *name; /* of an op, of a kind of transfers, or of copies: "fetch from disk" */
    double calls;     /* of a step */
    double predicted_seconds, measured_seconds;
} weft_audit_line;

typedef struct weft_audit_rank {
    int rank;
    int64_t predicted_peak_bytes, observed_peak_bytes;
    double predicted_kernels, measured_kernels; /* seconds of a step */
    double predicted_waits, measured_waits;     /* for transfers and for other ranks */
    int64_t host_bytes, disk_bytes;             /* predicted in the tiers below device memory */
} weft_audit_rank;

/* What the time of a run goes into. */
typedef enum weft_audit_cause {
    WEFT_AUDIT_COMPUTE,     /* kernels */
    WEFT_AUDIT_OVERHEAD,    /* steps outside of kernels, transfers and copies */
    WEFT_AUDIT_TRANSFERS,   /* waits for transfers within a stage, and for the ranks that share them
                             */
    WEFT_AUDIT_PIPELINE,    /* waits for other stages */
    WEFT_AUDIT_COPIES,      /* waits for copies between device memory and a lower tier */
    WEFT_AUDIT_DATA,        /* waits for samples */
    WEFT_AUDIT_CHECKPOINTS, /* saving that stops the run */
    WEFT_AUDIT_VALIDATION,
    WEFT_AUDIT_START, /* all before the first step */
    WEFT_AUDIT_OTHER,
    WEFT_AUDIT_CAUSES
} weft_audit_cause;
/** A cause's name: "compute", "data". Never fails. */
WEFT_API const char *weft_audit_cause_text(weft_audit_cause cause);

/* Something to try, with the figure that speaks for it. */
typedef struct weft_audit_advice {
    weft_audit_cause cause;
    const char *setting; /* keys with values: "checkpoint.every=200"; "": no key helps */
    const char *reason;  /* a sentence or two */
    double at_most;      /* the part of the run's time that it can save */
} weft_audit_advice;

/* What follows from the measurements. */
typedef struct weft_audit_verdict {
    double run_seconds;              /* mean of the ranks, from the start of the process to the
                                        last step; 0: an older record, of steps alone */
    double share[WEFT_AUDIT_CAUSES]; /* of that time, mean of the ranks; their sum is 1 */
    weft_audit_cause dominant;       /* has the largest share */
    int slow_rank;                   /* computes slower than others do the same; -1: none */
    double slowness;                 /* its time over theirs */
    double slow_seconds;             /* that it takes longer in a step */
    const weft_audit_advice *advice; /* the most promising first */
    int advice_count;
    const char *text; /* all of it in sentences, one a line */
} weft_audit_verdict;

typedef struct weft_audit {
    char machine[128]; /* its name; "": the run had none, and nothing is predicted */
    int devices;
    int64_t steps;                              /* that were measured */
    double predicted_seconds, measured_seconds; /* of a step; measured: the median */
    double error;                               /* predicted / measured - 1 */
    double spread;                              /* of the middle half of the steps, over the
                                                   median */
    double other_seconds; /* measured on the busiest rank, outside of kernels, transfers and copies
                           */
    weft_audit_line *ops, *transfers; /* the one with most measured time first */
    int op_count, transfer_count;
    weft_audit_rank *ranks; /* in detail: the first 64 */
    int rank_count;
    weft_audit_verdict verdict;
    void *owner;
    weft_audit_line *copies; /* between device memory and lower tiers, alike in order */
    int copy_count;
} weft_audit;

/** Judge the measurement of a run. If the run had a machine, also compare it with the prediction,
 * and write the error into the plan of the run's record.
 * @param directory  of the run, checkpoint.dir
 * @param out        freed with weft_audit_free
 * @return WEFT_E_NOT_FOUND for a run without a record or a measurement, with the reason;
 * WEFT_E_CORRUPT for a damaged record; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_audit_run(const char *directory, weft_audit **out) WEFT_CHECKED;
WEFT_API void weft_audit_free(weft_audit *audit); /* NULL is legal */
/** The machine file of a run, corrected by its measurement: curves are scaled, and ops get factors
 * by size.
 * @param out  the text, freed with weft_text_free
 * @return as weft_audit_run; WEFT_E_NOT_FOUND also for a run without a prediction */
WEFT_API weft_status weft_audit_calibrate(const char *directory, char **out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
