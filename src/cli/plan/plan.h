/* The answers of `weft plan` for jobs of mode auto with the joint search. */
#ifndef WEFT_CLI_PLAN_H
#define WEFT_CLI_PLAN_H

#include "cli/cli.h"

typedef struct cli_plan_question {
    const char *out;     /* write the plan there; NULL: nowhere */
    const char *why_not; /* constraints of the alternative, or a plan's file; NULL: none */
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

#endif
