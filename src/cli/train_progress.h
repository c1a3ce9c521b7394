/* The progress of a training run on standard output. */
#ifndef WEFT_CLI_TRAIN_PROGRESS_H
#define WEFT_CLI_TRAIN_PROGRESS_H

#include "cli.h"

#include "weft/train.h"

/* Zero-initialise, then set json, live, saves and eval_every. */
typedef struct train_progress {
    bool json;          /* one object a step */
    bool live;          /* a terminal: one line that is written over */
    bool saves;         /* the job has a checkpoint.dir */
    int64_t eval_every; /* of the job */
    weft_train_start start;
    weft_train_step step; /* not yet written, when pending */
    weft_train_validation validation;
    bool pending, validated, line_open;
    double elapsed_s, shown_s; /* of all steps; when the last line was shown */
    double rate_units, rate_s; /* units and seconds of the recent steps */
} train_progress;

weft_train_events train_progress_events(train_progress *p);
/* Whatever is still open, and the summary. */
void train_progress_end(train_progress *p, const weft_train_result *result, weft_status status);
/* Of a run that ends well without a checkpoint. */
const char *train_progress_why_unsaved(const train_progress *p);

#endif
