/* Values of variables: numbers, times, addresses, Slurm's lists. */
#ifndef WEFTI_LAUNCH_ENV_VALUES_H
#define WEFTI_LAUNCH_ENV_VALUES_H

#include "launch/env/env.h"

/* NULL when it is not set or empty. */
const char *wefti_variable(wefti_variables v, const char *name);
/* These leave *out alone when the variable is not set, and fail with WEFT_E_ARG naming it and its
 * value when that is not one. */
weft_status wefti_variable_number(wefti_variables v, const char *name, int min, int max,
                                  int *out) WEFT_CHECKED;
weft_status wefti_variable_seconds(wefti_variables v, const char *name, double *out) WEFT_CHECKED;
/* A name without spaces and control characters, shorter than `bytes`. */
weft_status wefti_variable_word(wefti_variables v, const char *name, char *out,
                                size_t bytes) WEFT_CHECKED;

/* The first host of "node[03-05,9],other": "node03". False: no such list. */
bool wefti_slurm_first_host(const char *list, char out[WEFTI_HOST_TEXT]);
/* Tasks of node number `node` in "2(x3),1": -1 when it does not say. */
int wefti_slurm_tasks_of(const char *list, int node);
/* Each node has one task: "1(x16)". */
bool wefti_slurm_one_task_each(const char *list);

#endif
