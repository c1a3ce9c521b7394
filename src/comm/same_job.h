/* Whether two ranks run the same job. Each part of weft that must be the same on all ranks lists
 * its facts: the launcher's side when ranks have found each other (launch/join), a session for its
 * model and plan (session/world.c), a training run for its data (train/together.c). This is the
 * place that compares them and says what is unlike. Keys of jobs: job/ranks.c. */
#ifndef WEFTI_SAME_JOB_H
#define WEFTI_SAME_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WEFTI_FACT_TEXT = 160, WEFTI_FACTS = 16 };

/* What a rank compares. Without a verb: "rank 1 runs another job than rank 0: its seed differs".
 * With one, both values are shown: "rank 1 runs weft 1.0, rank 0 weft 1.1: all processes of a run
 * need the same". */
typedef struct wefti_job_fact {
    const char *name;           /* "seed" */
    const char *verb, *advice;  /* "runs", "all processes of a run need the same"; NULL */
    uint64_t value;             /* a number, or a digest */
    char text[WEFTI_FACT_TEXT]; /* "weft 1.0" */
} wefti_job_fact;

/* The part that ranks send each other. */
typedef struct wefti_job_value {
    uint64_t value;
    char text[WEFTI_FACT_TEXT];
} wefti_job_value;

void wefti_job_values(const wefti_job_fact *facts, int count, wefti_job_value *out);
/* WEFT_E_MISMATCH names the first fact in which rank `other` differs from rank `me`, whose facts
 * these are. `blamed` is the rank that is to blame: one of the two. */
weft_status wefti_job_compare(const wefti_job_fact *facts, int count, int32_t me,
                              wefti_job_value *others, int32_t other, int32_t blamed) WEFT_CHECKED;

#endif
