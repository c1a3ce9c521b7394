/* The record of a run, in the folder `record` of its directory (docs/reference/format-record.md):
 * the plan, the machine, the prediction, and what was measured. A resume uses plan and machine
 * again; an audit compares the prediction with the measurement.
 *
 * Only rank 0 reads and writes it. A record that cannot be written is a note: the run goes on. */
#ifndef WEFTI_TRAIN_RECORD_H
#define WEFTI_TRAIN_RECORD_H

#include "topo/model.h"
#include "train/training.h"

/* store.c */
/* The path of a file of the record of the run in `directory`; for wefti_free. NULL: no memory. */
char *wefti_run_record_path(const char *directory, const char *file);
/* Rank 0: on a resume with the settings of the record, the plan of this run: what the run began
 * with. Of mode auto it is the whole plan; otherwise the job's plan with the recorded links and
 * rates. *out NULL: the record does not count. */
weft_status wefti_run_record_plan(wefti_training *t, weft_plan **out) WEFT_CHECKED;
/* Rank 0, before the first step: writes settings, plan, machine and prediction, unless the resume
 * uses those that are there. */
void wefti_run_record_begin(wefti_training *t);
weft_status wefti_run_record_write(const wefti_training *t, const char *file,
                                   const char *text) WEFT_CHECKED;
/* Notes the last failure. */
void wefti_run_record_unwritten(const wefti_training *t);

/* measured.c */
/* After each step: `done` steps of this process have ended, and the last one took `seconds`. */
void wefti_run_record_step(wefti_training *t, int64_t done, double seconds);
/* Collective, after the last step: rank 0 writes what was measured, if anything was. */
weft_status wefti_run_record_end(wefti_training *t) WEFT_CHECKED;

/* predict.c */
/* The rate that all devices can reach, and the FLOPs of a step, if the machine is known. */
void wefti_run_rates(wefti_training *t);
/* Rank 0: writes the machine and the prediction. Without a machine: nothing. */
weft_status wefti_run_record_predict(wefti_training *t) WEFT_CHECKED;

#endif
