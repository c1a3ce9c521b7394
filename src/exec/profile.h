/* The times of a program's kernels and transfers, step by step. A rank's device adds to its profile
 * while it runs; between steps the session ends each step. The last WEFTI_PROFILE_STEPS steps
 * count.
 *
 * An entry is an instruction of a routine, in the order of routines, or a transfer of the
 * partition. An instruction that several calls run has one entry. */
#ifndef WEFTI_PROFILE_H
#define WEFTI_PROFILE_H

#include "exec/exec.h"

enum { WEFTI_PROFILE_STEPS = 64 };

typedef struct wefti_profile wefti_profile;

/* What one entry took, per step. */
typedef struct wefti_profile_time {
    const wefti_instruction *x;     /* NULL: a transfer */
    const wefti_transfer *transfer; /* NULL: a kernel, a copy or an addition */
    double seconds;                 /* the mean over steps of the time in it; of transfers: of the
                                       rank's posts and waits */
    double under_way;               /* transfers: of the time from posts to ends of waits */
    double calls;                   /* the mean of how often it ran */
} wefti_profile_time;

/* The program must live longer than the profile. */
weft_status wefti_profile_create(const wefti_program *program, wefti_profile **out) WEFT_CHECKED;
void wefti_profile_destroy(wefti_profile *profile); /* NULL is legal */
/* The device measures the program from now on; NULL: nothing. Not while it runs. */
void wefti_rank_device_profile(wefti_rank_device *device, wefti_profile *profile);
/* Ends a step. */
void wefti_profile_end_step(wefti_profile *profile);

int64_t wefti_profile_steps(const wefti_profile *profile); /* that count */
int32_t wefti_profile_entries(const wefti_profile *profile);
/* Means over the steps whose bits in `steps` are set; the first measured step has bit 0. */
void wefti_profile_entry(const wefti_profile *profile, uint64_t steps, int32_t index,
                         wefti_profile_time *out);

/* ---- for the device ---- */

bool wefti_profile_is_of(const wefti_profile *profile, const wefti_program *program);
/* The entry of the first instruction of a step's routine. */
int32_t wefti_profile_routine(const wefti_profile *profile, wefti_section section, int32_t step);
void wefti_profile_add(wefti_profile *profile, int32_t entry, int64_t ns);
/* A part of a transfer's time. `under_way`: after the last one, from the post; else 0. */
void wefti_profile_add_transfer(wefti_profile *profile, int32_t transfer, int64_t ns,
                                int64_t under_way);

#endif
