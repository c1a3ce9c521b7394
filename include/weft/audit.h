/* Audits: what a run was predicted to take, and what it took.
 *
 * A run with a checkpoint directory keeps its plan, its machine, its prediction and the times of
 * its kernels and transfers in the folder `record` of that directory (docs/format-record.md). */
#ifndef WEFT_AUDIT_H
#define WEFT_AUDIT_H

#include <stdint.h>

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds of a step, summed over all ranks in detail. */
typedef struct weft_audit_line {
    const char *name; /* of an op, or of a kind of transfers */
    double calls;     /* of a step */
    double predicted_seconds, measured_seconds;
} weft_audit_line;

typedef struct weft_audit_rank {
    int rank;
    int64_t predicted_peak_bytes, observed_peak_bytes;
    double predicted_kernels, measured_kernels; /* seconds of a step */
    double predicted_waits, measured_waits;     /* for transfers and for other ranks */
} weft_audit_rank;

typedef struct weft_audit {
    char machine[128]; /* its name */
    int devices;
    int64_t steps;                              /* that were measured */
    double predicted_seconds, measured_seconds; /* of a step; measured: the median */
    double error;                               /* predicted / measured - 1 */
    double spread;                              /* of the middle half of the steps, over the
                                                   median */
    double other_seconds; /* measured on the busiest rank, outside of kernels and transfers */
    weft_audit_line *ops, *transfers; /* the one with most measured time first */
    int op_count, transfer_count;
    weft_audit_rank *ranks; /* in detail: the first 64 */
    int rank_count;
    void *owner;
} weft_audit;

/** Compare the prediction of a run with its measurement, and write the error into the plan of the
 * run's record.
 * @param directory  of the run, checkpoint.dir
 * @param out        freed with weft_audit_free
 * @return WEFT_E_NOT_FOUND for a run without a record, a prediction or a measurement, with the
 *   reason; WEFT_E_CORRUPT for a damaged record; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_audit_run(const char *directory, weft_audit **out) WEFT_CHECKED;
WEFT_API void weft_audit_free(weft_audit *audit); /* NULL is legal */
/** The machine file of a run, corrected by its measurement: curves are scaled, and ops get factors
 * by size.
 * @param out  the text, freed with weft_text_free
 * @return as weft_audit_run */
WEFT_API weft_status weft_audit_calibrate(const char *directory, char **out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
