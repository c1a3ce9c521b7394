/* How the variables of launchers are read: private to launch/env.
 *
 * Each launcher has a file. It defines a wefti_launcher_source: the names of the launcher's
 * variables, and a function that reads them into a claim. env/environment.c lists the sources in
 * order of precedence, and env/merge.c makes one answer of all claims. */
#ifndef WEFTI_LAUNCH_ENV_READER_H
#define WEFTI_LAUNCH_ENV_READER_H

#include "launch/env/values.h"
#include "launch/env/volcano.h"

/* Names of a launcher's variables. NULL: the launcher has no such variable. */
typedef struct wefti_claim_names {
    const char *launcher, *rank, *size, *local_rank, *local_size, *host, *hosts;
} wefti_claim_names;

/* The place that one launcher gives to this process. Messages show `rank_name` and `size_name`. */
typedef struct wefti_claim {
    bool there;
    bool carrier; /* a Slurm step with one task per node, in which another launcher may run */
    bool one_host;
    weft_launcher place;
    const char *rank_name, *size_name;
} wefti_claim;

typedef struct wefti_env_reader {
    wefti_variables v;
    const char *host_name;
    char volcano_size[WEFTI_VOLCANO_NAME + 16]; /* the text for Volcano's size in messages */
    wefti_launcher *out;
    wefti_claim claims[WEFTI_START_ALONE];
} wefti_env_reader;

typedef struct wefti_launcher_source {
    wefti_claim_names names;
    weft_status (*read)(
        wefti_env_reader *r); /* leaves the claim alone if the launcher is not there */
} wefti_launcher_source;

extern const wefti_launcher_source wefti_source_weft, wefti_source_open_mpi, wefti_source_mpich,
    wefti_source_torchrun, wefti_source_slurm, wefti_source_mindspore, wefti_source_rank_table,
    wefti_source_volcano;
/* Indexed by wefti_start: in order of falling precedence. */
extern const wefti_launcher_source *const wefti_launchers[WEFTI_START_ALONE];

/* --- env/reader.c --- */

const char *wefti_reader_get(const wefti_env_reader *r,
                             const char *name); /* NULL: unset or empty */
/* WEFT_E_ARG if `one` is set and `other` is not. */
weft_status wefti_reader_need(const wefti_env_reader *r, const char *one,
                              const char *other) WEFT_CHECKED;
/* As wefti_variable_number; nothing to do if `name` is NULL. */
weft_status wefti_reader_number(const wefti_env_reader *r, const char *name, int min, int max,
                                int *out) WEFT_CHECKED;
/* Reads the variables of `n`. A missing number stays -1, a missing size 0. */
weft_status wefti_reader_place(const wefti_env_reader *r, const wefti_claim_names *n,
                               wefti_claim *c) WEFT_CHECKED;
/* WEFT_E_ARG unless value < limit, where both are known. */
weft_status wefti_reader_below(const char *name, int value, const char *limit_name,
                               int limit) WEFT_CHECKED;
/* Reads a launcher that sets rank and size as plain numbers. */
weft_status wefti_read_numbered(wefti_env_reader *r, wefti_start start) WEFT_CHECKED;
/* The value of a text of digits only; else -1. */
int wefti_whole_number(const char *text);

/* --- env/process_number.c: systems that number processes without their count --- */

/* The number that this process has in its job, or -1. *out_from: the variable that says so. */
weft_status wefti_process_number(const wefti_env_reader *r, int *out,
                                 const wefti_claim_names **out_from) WEFT_CHECKED;
/* Several processes share one number, so that it is not a rank: a pod starts two, for example. */
bool wefti_shares_number(const wefti_env_reader *r, const weft_launcher *place);
/* Takes the process number as rank if the user has set WEFT_SIZE but no rank. */
weft_status wefti_rank_from_number(const wefti_env_reader *r) WEFT_CHECKED;

/* --- env/merge.c, env/address.c, env/slurm.c --- */

/* Chooses the claim that counts, and checks that all other claims agree with it. */
weft_status wefti_claims_merge(wefti_env_reader *r) WEFT_CHECKED;
/* The scheduler's address. */
weft_status wefti_read_address(wefti_env_reader *r) WEFT_CHECKED;
void wefti_slurm_address(const wefti_env_reader *r);

/* --- env/mindspore.c --- */

/* MS_ENABLE_RECOVERY and MS_RECOVERY_PATH: workers that die may come again. */
weft_status wefti_mindspore_recovery(const wefti_env_reader *r) WEFT_CHECKED;

#endif
