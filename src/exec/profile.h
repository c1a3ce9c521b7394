/* The times of a program's kernels, transfers and copies between spaces, step by step. A rank's
 * device adds to its profile while it runs; between steps the session ends each step. The last
 * WEFTI_PROFILE_STEPS steps count.
 *
 * An entry is an instruction of a routine, in the order of routines, a transfer of the partition,
 * or a move of the program. An instruction that several calls run has one entry. */
#ifndef WEFTI_PROFILE_H
#define WEFTI_PROFILE_H

#include "exec/exec.h"

enum { WEFTI_PROFILE_STEPS = 64 };

typedef struct wefti_profile wefti_profile;

/* What one entry took, per step. */
typedef struct wefti_profile_time {
    /* One of three: a kernel, or a copy or an addition within a space; a transfer; the step that
     * posts a copy between spaces. */
    const wefti_instruction *x;
    const wefti_transfer *transfer;
    const wefti_step *copy;
    double seconds;   /* the mean over steps of the time in it; of transfers and
                         copies between spaces: of the rank's posts and waits */
    double processor; /* of `seconds`: the time on a processor; 0: not known */
    double under_way; /* transfers: of the time from posts to ends of waits */
    double calls;     /* the mean of how often it ran */
} wefti_profile_time;

/* The program must live longer than the profile. */
weft_status wefti_profile_create(const wefti_program *program, wefti_profile **out) WEFT_CHECKED;
void wefti_profile_destroy(wefti_profile *profile); /* NULL is legal */
/* The device measures the program from now on; NULL: nothing. Not while it runs. */
void wefti_rank_device_profile(wefti_rank_device *device, wefti_profile *profile);
/* Ends a step. */
void wefti_profile_end_step(wefti_profile *profile);

const wefti_program *wefti_profile_program(const wefti_profile *profile);
int64_t wefti_profile_steps(const wefti_profile *profile); /* that count */
int32_t wefti_profile_entries(const wefti_profile *profile);
/* Means over the steps whose bits in `steps` are set; the first measured step has bit 0. */
void wefti_profile_entry(const wefti_profile *profile, uint64_t steps, int32_t index,
                         wefti_profile_time *out);

/* ---- for the device ---- */

/* A moment: of the clock, and of the thread's time on a processor. */
typedef struct wefti_profile_moment {
    int64_t ns, processor;
} wefti_profile_moment;

/* The time on a processor is known, and read, if the device computes in one thread. */
wefti_profile_moment wefti_profile_now(const wefti_profile *profile);

bool wefti_profile_is_of(const wefti_profile *profile, const wefti_program *program);
/* The entry of the first instruction of a step's routine. */
int32_t wefti_profile_routine(const wefti_profile *profile, wefti_section section, int32_t step);
/* The time since `begin`. */
void wefti_profile_add(wefti_profile *profile, int32_t entry, wefti_profile_moment begin);
/* A part of a transfer's time, since `begin`. `posted`: after the last part, when the transfer was
 * posted; else 0. */
void wefti_profile_add_transfer(wefti_profile *profile, int32_t transfer,
                                wefti_profile_moment begin, int64_t posted);
/* A part of the time of a copy between spaces, by its index in the program's moves. */
void wefti_profile_add_copy(wefti_profile *profile, int32_t move, wefti_profile_moment begin,
                            bool ends);

#endif
