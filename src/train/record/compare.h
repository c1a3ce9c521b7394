/* The record of a run, read for an audit. */
#ifndef WEFTI_RUN_RECORD_COMPARE_H
#define WEFTI_RUN_RECORD_COMPARE_H

#include "train/record/rows.h"
#include "weft/audit.h"
#include "weft/train.h"

/* Settings of the run, for advice. 0: not known, or off. */
typedef struct wefti_run_facts {
    int64_t batch, microbatches, stages, checkpoint_every, eval_every;
    int64_t steps_made; /* by the processes that measured */
    double checkpoint_seconds;
    bool sliced, bf16;
} wefti_run_facts;

typedef struct wefti_run_record_rank {
    int32_t rank; /* predicted: the lowest one of equal ranks */
    int64_t peak_bytes;
    int64_t host_bytes, disk_bytes; /* predicted, in the tiers below device memory */
    double waits;                   /* predicted: exposed and idle */
    double parts[WEFT_TRAIN_PARTS]; /* measured: seconds of the run up to its last step; 0: an older
                                       record */
    wefti_run_record_rows rows;
} wefti_run_record_rank;

/* A file of the record: of the prediction, or of the measurement. */
typedef struct wefti_run_record_side {
    wefti_arena *arena; /* of the JSON, whose texts the rows borrow */
    double step_seconds, first_quartile, third_quartile;
    const char *machine; /* of the prediction */
    int64_t devices, steps;
    wefti_run_record_rank *ranks;
    int32_t count;
    int32_t *class_of; /* of the prediction: for each rank in detail, its place in `ranks` */
    int32_t detailed;
    wefti_run_facts facts; /* of the measurement */
} wefti_run_record_side;

typedef struct wefti_run_record {
    wefti_run_record_side predicted, measured;
    wefti_machine_model *machine; /* NULL: nothing is predicted */
} wefti_run_record;

weft_status wefti_run_record_open(const char *directory, wefti_run_record *out) WEFT_CHECKED;
void wefti_run_record_close(wefti_run_record *record); /* also after a failure */
/* Seconds of all rows of a kind, and of all kinds. */
double wefti_run_record_seconds(const wefti_run_record_rows *rows, wefti_run_record_kind kind);
double wefti_run_record_busy(const wefti_run_record_rows *rows);

/* judge.c: the verdict on a measurement: a pure function of it. Texts lie in `arena`. */
weft_status wefti_run_judge(const wefti_run_record_side *measured, wefti_arena *arena,
                            weft_audit_verdict *out) WEFT_CHECKED;

#endif
