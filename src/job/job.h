/* Inside of job files: the table of keys, a job while it is read, values. Public side: weft/job.h.
 */
#ifndef WEFTI_JOB_JOB_H
#define WEFTI_JOB_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "job/yaml.h"
#include "weft/job.h"

typedef enum wefti_job_kind {
    WEFTI_JOB_TEXT,     /* const char * */
    WEFTI_JOB_FILE,     /* const char *: a path */
    WEFTI_JOB_CHOICE,   /* an enum, by its number in `words` */
    WEFTI_JOB_INTEGER,  /* int64_t or uint64_t */
    WEFTI_JOB_REAL,     /* double */
    WEFTI_JOB_FLAG,     /* bool */
    WEFTI_JOB_BYTES,    /* int64_t */
    WEFTI_JOB_LIMIT,    /* int64_t: bytes, and next to it double: per cent; one of them is 0 */
    WEFTI_JOB_INTEGERS, /* int64_t [count] */
    WEFTI_JOB_REALS,    /* double [count] */
    WEFTI_JOB_SHARE,    /* const char * and, next to it, double */
    /* Lists, in lists.c: weft_job_pairs. */
    WEFTI_JOB_SIZES,    /* {name: size} */
    WEFTI_JOB_FLAGS,    /* {pattern: true or false} */
    WEFTI_JOB_MESHES,   /* [{name: size}] */
    WEFTI_JOB_SPLITS,   /* [{match, split}] */
    WEFTI_JOB_LAYOUTS,  /* [{match, layout}] */
    WEFTI_JOB_STAGES,   /* [{match, stage}] */
    WEFTI_JOB_OFFLOADS, /* [{match, what, to}], or one of `words` for all parameters */
    WEFTI_JOB_PLACES,   /* [{match, on}] */
    WEFTI_JOB_SERVERS,  /* [{match, sync}] */
    WEFTI_JOB_TEXTS,
    WEFTI_JOB_DATASET, /* weft_job_dataset: a choice, or {name: layout} */
    WEFTI_JOB_BUCKETS, /* const char *: bytes, or whole numbers */
} wefti_job_kind;

/* What the ranks of a run need to have in common of a key: see keys.def. */
typedef enum wefti_job_ranks {
    WEFTI_RANKS_SAME,
    WEFTI_RANKS_GIVEN,
    WEFTI_RANKS_RANK0,
    WEFTI_RANKS_OWN
} wefti_job_ranks;

typedef struct wefti_job_row {
    const char *path, *default_text, *help;
    wefti_job_kind kind;
    int count; /* INTEGERS, REALS: how many */
    size_t offset;
    double min, max;
    const char *const *words; /* CHOICE: NULL-terminated */
    bool of_model;            /* excludes model.from */
    wefti_job_ranks ranks;
} wefti_job_row;

enum { WEFTI_JOB_KEYS_MAX = 160, WEFTI_JOB_PATH = 64 };
const wefti_job_row *wefti_job_table(int *out_count);
int wefti_job_row_number(const char *path);        /* the number of a row; -1: there is none */
bool wefti_job_row_auto(const wefti_job_row *row); /* its default is "auto" */

/* The origin of a value, for messages. It also marks the keys that the job does not set. */
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
    weft_plan *plan; /* of the section `parallel`, once resolved; the caller's to destroy */
    int64_t devices; /* of another world than the job was written for; 0: as the job says */
} wefti_job_draft;

/* The job for another number of devices, as far as its own rules say how: parallel.devices is that
 * number, and the axis dp of parallel.mesh follows it. A job whose plan has no other number of
 * devices is refused. `job` comes from weft_job_parse or weft_job_load. Free with weft_job_free. */
weft_status wefti_job_for_devices(const weft_job *job, int devices, weft_job **out) WEFT_CHECKED;

/* ranks.c: what a job must have in common with those of other ranks, to send to them. Free with
 * wefti_text_free. */
weft_status wefti_job_shared(const weft_job *job, wefti_text *out) WEFT_CHECKED;
/* `first`: the same of rank 0's job. WEFT_E_MISMATCH names the key in which the job of rank `me`
 * differs, and both values. */
weft_status wefti_job_same(const weft_job *job, int32_t me, const char *first,
                           int64_t bytes) WEFT_CHECKED;
/* Whether model.from, model.config or parallel.plan replaces the key. */
bool wefti_job_is_told_elsewhere(const weft_job *job, const wefti_job_row *row);
/* job.c: whether a line of the text begins as a job does. The text ends with a 0 byte. */
bool wefti_job_has_section(const char *text, int64_t bytes);

/* differ.c: the keys whose values differ from those in `before`, the text of another job: those of
 * the model (`of_model`), or those that decide how a run goes on. "train.batch 4 -> 8, ...": at
 * most eight. NULL if none differs, or the text cannot be read; wefti_free. */
char *wefti_job_differences(const weft_job *job, const char *before, bool of_model);

/* The files that describe the model: model.from, else model.config, else "". */
const char *wefti_job_model_files(const weft_job_model *model);

/* The origin of a value as text: "job.yaml:12:3: ", or "'train.steps=x': ". `out` has room for 512
 * bytes. */
const char *wefti_job_where(const wefti_job_draft *draft, const wefti_job_mark *mark, char *out);

/* Stores the value of one row; `mark` is its origin. If the row accepts "auto", that word stores
 * nothing and the row counts as not set. */
weft_status wefti_job_store(wefti_job_draft *draft, int row, const wefti_yaml *value,
                            const wefti_job_mark *mark) WEFT_CHECKED;
/* The job in the form of a file: the rows that `only` marks; NULL: all that say something. */
void wefti_job_write(const weft_job *job, const bool *only, wefti_text *out);
/* The value in the form that a file would have. */
void wefti_job_write_value(const weft_job *job, const wefti_job_row *row, wefti_text *out);

/* Refuses a value: "<where><key> must be <expected>; it is '<text>'". For lists and sections it
 * names their kind. */
weft_status wefti_job_refuse(const wefti_job_draft *draft, const wefti_job_row *row,
                             const wefti_job_mark *mark, const wefti_yaml *value) WEFT_CHECKED;
/* Refuses a text that is not UTF-8: a job file could not hold it. */
weft_status wefti_job_check_text(const wefti_job_draft *draft, const wefti_job_row *row,
                                 const wefti_job_mark *mark, const char *text) WEFT_CHECKED;
/* Append `text` in double quotes, as YAML and the overrides read it. */
void wefti_job_write_quoted(const char *text, wefti_text *out);
bool wefti_job_read_bytes(const char *text, int64_t *out);  /* "2GiB" */
bool wefti_job_read_percent(const char *text, double *out); /* "60%": above 0, at most 100 */

/* A limit of a job: `bytes`, or `percent` of `all` bytes, at least 1; 0: neither is set. */
int64_t wefti_job_limit(int64_t bytes, double percent, int64_t all);

/* Whether memory.offload is auto. */
static inline bool wefti_job_offloads_auto(const weft_job *job) {
    const weft_job_pairs *offload = &job->memory.offload;
    return offload->count == 1 && !*offload->items[0].value;
}

/* lists.c: the kinds from SIZES on, in a file, in an override, and written. */
bool wefti_job_is_list(wefti_job_kind kind);
weft_status wefti_job_store_list(wefti_job_draft *draft, const wefti_job_row *row, void *field,
                                 const wefti_yaml *value, const wefti_job_mark *mark) WEFT_CHECKED;
void wefti_job_write_list(const wefti_job_row *row, const void *field, wefti_text *out);
/* flow.c: lists in brackets and mappings in braces, for overrides. This is YAML's flow style, read
 * without a YAML reader. `text` is the end of `word`, the override. Commas in parentheses belong to
 * the text. */
weft_status wefti_job_flow_parse(wefti_arena *arena, const char *word, const char *text,
                                 wefti_yaml *out) WEFT_CHECKED;

/* parallel.c: the plan of the section `parallel`; *out is NULL if the section is empty. Fills in
 * keys that the section does not set. */
weft_status wefti_job_plan(wefti_job_draft *draft, weft_plan **out) WEFT_CHECKED;

/* parallel.c: sets mode auto if the job asks for a plan and says nothing of the split. */
void wefti_job_choose_mode(wefti_job_draft *draft);

/* The mark of a key. For an unknown key it is a mark that is not set. */
const wefti_job_mark *wefti_job_mark_of(const wefti_job_draft *draft, const char *path);

/* Fills in keys that are not set, then checks values against each other. */
weft_status wefti_job_resolve(wefti_job_draft *draft) WEFT_CHECKED;
/* uses.c: keys that say nothing of the model's family, the optimizer or the schedule are
 * refused, and not written. */
weft_status wefti_job_check_uses(const wefti_job_draft *draft) WEFT_CHECKED;
bool wefti_job_is_used(const weft_job *job, const char *key);

#endif
