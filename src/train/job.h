/* Inside of job files: the table of keys, a job while it is read, values. Public side: weft/job.h.
 */
#ifndef WEFTI_TRAIN_JOB_H
#define WEFTI_TRAIN_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "train/yaml.h"
#include "weft/job.h"

typedef enum wefti_job_kind {
    WEFTI_JOB_TEXT,     /* const char * */
    WEFTI_JOB_CHOICE,   /* an enum, by its number in `words` */
    WEFTI_JOB_INTEGER,  /* int64_t or uint64_t */
    WEFTI_JOB_REAL,     /* double */
    WEFTI_JOB_FLAG,     /* bool */
    WEFTI_JOB_BYTES,    /* int64_t */
    WEFTI_JOB_INTEGERS, /* int64_t [count] */
    WEFTI_JOB_REALS,    /* double [count] */
    WEFTI_JOB_SHARE,    /* const char * and, next to it, double */
} wefti_job_kind;

typedef struct wefti_job_row {
    const char *path, *default_text, *help;
    wefti_job_kind kind;
    int count; /* INTEGERS, REALS: how many */
    size_t offset;
    double min, max;
    const char *const *words; /* CHOICE: NULL-terminated */
    bool of_model;            /* cannot stand beside model.from */
} wefti_job_row;

enum { WEFTI_JOB_KEYS_MAX = 128, WEFTI_JOB_PATH = 64 };
const wefti_job_row *wefti_job_table(int *out_count);
bool wefti_job_row_auto(const wefti_job_row *row); /* its default is "auto" */

/* What a value was read from; for messages and to know what was left out. */
typedef struct wefti_job_mark {
    bool given;
    int line, column;     /* in the file, or */
    const char *override; /* the word */
} wefti_job_mark;

/* A job while it is read. */
typedef struct wefti_job_draft {
    weft_job job;
    wefti_arena *arena;
    const char *name; /* of the file */
    wefti_job_mark marks[WEFTI_JOB_KEYS_MAX];
} wefti_job_draft;

/* "job.yaml:12:3: ", or "'train.steps=x': ": where a value came from. `out` has room for 512 bytes.
 */
const char *wefti_job_where(const wefti_job_draft *draft, const wefti_job_mark *mark, char *out);

/* Store the value of one row; `mark` says where it stands. "auto", where the row knows it, stores
 * nothing and leaves the row as not given. */
weft_status wefti_job_store(wefti_job_draft *draft, int row, const wefti_yaml *value,
                            const wefti_job_mark *mark) WEFT_CHECKED;
/* The value as it would be written in a file. */
void wefti_job_write_value(const weft_job *job, const wefti_job_row *row, wefti_text *out);

/* Fill in what was left out, then check the values against each other. */
weft_status wefti_job_resolve(wefti_job_draft *draft) WEFT_CHECKED;

#endif
