/* The answers of `weft plan` for jobs of mode auto with the joint search. */
#ifndef WEFT_CLI_PLAN_H
#define WEFT_CLI_PLAN_H

#include "cli/cli.h"

typedef struct cli_plan_question {
    const char *out;      /* write the plan there; NULL: nowhere */
    const char *why_not;  /* constraints of the alternative, or a plan's file; NULL: none */
    const char *failures; /* of devices, for the goodput; NULL: not asked */
    int64_t evaluations;  /* of a search instead of a job's own plan; 0: the usual number */
    bool json;
} cli_plan_question;

/* Whether the job asks for the joint search. */
bool cli_plan_is_joint(const weft_job *job);
/* Searches, and shows the answer. Returns the exit code. */
int cli_plan_search(const weft_job *job, const cli_plan_question *question);
/* Shows a cell of the answer, and what other choices for it would take. */
int cli_plan_why(const weft_job *job, const char *name, bool as_json);
/* The answer for the job and that for the job with the alternative, side by side. */
int cli_plan_why_not(const weft_job *job, const weft_job *other, const cli_plan_question *question);
/* The same for a job with a plan of its own, and a search with the question's constraints alone. */
int cli_plan_why_not_own(const weft_job *job, const cli_plan_question *question);
/* The same for a job with a plan of its own, and `other` with the plan of a file. */
int cli_plan_why_not_file(const weft_job *job, const weft_job *other,
                          const cli_plan_question *question);

/* Two plans, side by side: their predictions, and texts that name them (`degrees`). */
struct weft_search_report;
struct weft_prediction;
void cli_plan_say_difference(const struct weft_search_report *a,
                             const struct weft_search_report *b);
/* Members difference_seconds and difference_bytes of an open object. */
void cli_plan_json_difference(cli_json *json, const struct weft_search_report *a,
                              const struct weft_search_report *b);

/* goodput.c */
typedef struct cli_goodput {
    bool known;             /* else all are 0 */
    double failure_seconds; /* between two failures of any device or host */
    double checkpoint_seconds, restart_seconds;
    double every; /* the best number of steps between checkpoints */
    double share; /* of its time that the job computes for good */
    bool mtbf_assumed, checkpoint_assumed, restart_assumed; /* not given */
} cli_goodput;
/* CLI_DONE if a text is "mtbf=50000h host_mtbf=9000h checkpoint=30s restart=5min": of a device, of
 * a host besides its devices, of writing a checkpoint, of starting again. Each may be absent.
 * CLI_USAGE: the message names the wrong word. */
int cli_goodput_check(const cli_verb *verb, const char *text);
/* text NULL: nothing is given. */
cli_goodput cli_goodput_of(const char *text, const struct weft_prediction *p);

/* diff.c: the files of two plans. */
typedef struct cli_plan_files {
    const char *first, *second;
} cli_plan_files;
/* Shows the differences, and with a job both predicted steps. Returns CLI_FAILED if they differ.
 * `source` NULL: no job. */
int cli_plan_diff(const cli_plan_files *files, const cli_job_source *source, bool as_json);

/* infer.c: layouts and memory of the model in use; rows 0: the job's microbatch;
 * length 0: the job's. */
int cli_plan_infer(const weft_job *job, int64_t rows, int64_t length, bool json);

#endif
