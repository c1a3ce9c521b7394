/* How the programs of a class of ranks are walked for setup/movable.h: each file adds what its
 * candidates free at each step, and what a step becomes longer. */
#ifndef WEFTI_SETUP_MOVABLE_WALK_H
#define WEFTI_SETUP_MOVABLE_WALK_H

#include "setup/movable.h"

extern const wefti_space wefti_movable_spaces[WEFTI_RESIDENCY_TIERS];
extern const weft_tier wefti_movable_tiers[WEFTI_RESIDENCY_TIERS];

/* ---- movable.c ---- */

/* Zeroed, with room for one more. */
weft_status wefti_movable_take(wefti_arena *arena, int64_t count, size_t bytes,
                               void *out) WEFT_CHECKED;
/* What entries with this `what` match. */
const wefti_movable_names *wefti_movable_names_of(const wefti_movable *m, int what);
/* NULL: there is none. */
const wefti_movable_name *wefti_movable_name_of(const wefti_movable_names *names, const char *name);

/* ---- movable_costs.c ---- */

/* Of one class. */
typedef struct wefti_movable_sums {
    int64_t *bytes, *moved;                 /* [candidates] */
    int64_t *used;                          /* [groups]: by the call that is walked */
    double *seconds[WEFTI_RESIDENCY_TIERS]; /* [candidates] */
    double *reads[WEFTI_RESIDENCY_TIERS];   /* [groups]: of the call that is walked */
} wefti_movable_sums;

typedef struct wefti_movable_walk {
    wefti_movable *m;
    const wefti_movable_costs *costs;
    const wefti_program *p;
    int32_t time; /* of the next step; times of all classes follow each other */
    wefti_movable_sums sum;
} wefti_movable_walk;

/* Candidate i frees `bytes` from time `first` to `last`. */
weft_status wefti_movable_span(wefti_movable *m, int32_t i, int32_t first, int32_t last,
                               int64_t bytes) WEFT_CHECKED;
double wefti_movable_copy_seconds(const wefti_movable_walk *w, int tier, bool reads, int64_t bytes);
/* Whether copies run beside kernels. */
bool wefti_movable_hides(const wefti_movable_walk *w, int tier);
/* Kernels of a step, behind which copies can hide. */
double wefti_movable_kernel_seconds(const wefti_movable_walk *w, const wefti_step *step);
/* The group of a tensor that is a parameter, or a state of one; -1: of none. */
int32_t wefti_movable_group(const wefti_movable_walk *w, const wefti_tensor *t);

static inline int32_t wefti_movable_steps(const wefti_program *p) {
    int32_t steps = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++) steps += p->step_count[s];
    return steps;
}

static inline bool wefti_movable_is_pass(const wefti_step *step) {
    return step->kind == WEFTI_STEP_CALL &&
           (step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD);
}

/* ---- movable_between.c: of the program of a step ---- */

weft_status wefti_movable_saved(wefti_movable_walk *w, int32_t begin) WEFT_CHECKED;
/* Small gradients do not move. */
weft_status wefti_movable_gradients(wefti_movable_walk *w, int32_t begin) WEFT_CHECKED;

#endif
