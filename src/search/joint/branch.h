/* What the files of the branch and bound of the joint search share. */
#ifndef WEFTI_JOINT_BRANCH_H
#define WEFTI_JOINT_BRANCH_H

#include <math.h>

#include "search/joint/parts.h"

enum { WEFTI_JOINT_MISFITS = 6 };
#define WEFTI_JOINT_MARGIN 0.92 /* of memory, for guesses */

/* A set of candidates with a bound: SPLIT stands for all schedules, levels and shards. */
typedef enum wefti_joint_item_kind {
    WEFTI_JOINT_BOUNDED, /* one candidate, with its state: to be walked */
    WEFTI_JOINT_DRAFT,   /* one candidate, without its state */
    WEFTI_JOINT_RETRY,   /* one candidate that has not fitted with less recomputation */
    WEFTI_JOINT_SPLIT,   /* with its work */
    WEFTI_JOINT_DRAWN,   /* with the work of one sample */
    WEFTI_JOINT_COARSE   /* with neither */
} wefti_joint_item_kind;

typedef struct wefti_joint_item {
    double bound, bytes; /* of the step and of memory, at least */
    double guess;        /* of the step, about */
    double about;        /* bytes of a device */
    wefti_joint_item_kind kind;
    int64_t number;
    wefti_degrees degrees;
    bool retried;   /* the same with more recomputation is open as well */
    bool corrected; /* the guess is, by a walk of the same split */
    bool taken;
} wefti_joint_item;

/* How much longer than guessed the walks of a split have been. */
typedef struct wefti_joint_correction {
    wefti_degrees degrees;
    double ratio;
} wefti_joint_correction;

/* Orders of what is open. WEFTI_JOINT_BY_BYTES: while nothing that is likely to fit is known.
 * WEFTI_JOINT_FIRST_PLAN: by guess, but what is known better comes first unless it is far longer;
 * only plain candidates, until there is a plan. */
typedef enum wefti_joint_order {
    WEFTI_JOINT_BY_BOUND,
    WEFTI_JOINT_BY_GUESS,
    WEFTI_JOINT_BY_BYTES,
    WEFTI_JOINT_FIRST_PLAN,
    WEFTI_JOINT_ORDERS
} wefti_joint_order;
/* Numbers of items. Those that have been taken leave it when they come first. */
typedef struct wefti_joint_heap {
    int64_t *at;
    int64_t count, cap;
} wefti_joint_heap;

/* A candidate that does not fit. */
typedef struct wefti_joint_misfit {
    double bytes;
    int32_t rank;
    wefti_degrees degrees;
} wefti_joint_misfit;

typedef struct wefti_joint_branch {
    wefti_joint j;
    wefti_joint_item *items; /* by number */
    int64_t numbered, cap;
    wefti_joint_heap heaps[WEFTI_JOINT_ORDERS];
    wefti_joint_correction *corrections;
    int64_t correction_count, correction_cap;
    int64_t count;                        /* items that have not been taken */
    double ideal_forward, ideal_backward; /* of products of one sample on one device */
    double ratio;                         /* the best step may be so much longer than the bound */
    wefti_joint_misfit walked;            /* that needs least memory of those that were simulated */
    wefti_joint_misfit
        bounded[WEFTI_JOINT_MISFITS]; /* of the others those with the least bounds, in order */
    int misfits;
    wefti_joint_misfit large; /* with the least activations of those without programs */
    bool any_walked, any_large;
    bool fits;     /* the plan that was walked last */
    bool outwards; /* levels of links are slower from the innermost one on */
    wefti_joint_answer *out;
    double parameters;  /* bytes of the whole model's */
    bool guessing;      /* the least guess is taken next, not the least bound */
    int32_t found;      /* walks before the last one that found a better plan */
    double split_bound; /* of the split whose candidates are pushed */
    double begin;
} wefti_joint_branch;

/* Seconds of the best step. */
static inline double wefti_joint_best(const wefti_joint_branch *s) {
    return s->out->prediction ? s->out->prediction->step_seconds : INFINITY;
}

/* open.c */
weft_status wefti_joint_push_item(wefti_joint_branch *s, wefti_joint_item x) WEFT_CHECKED;
weft_status wefti_joint_push(wefti_joint_branch *s, wefti_joint_item_kind kind, double bound,
                             double guess, double about, const wefti_degrees *d) WEFT_CHECKED;
weft_status wefti_joint_insert(wefti_joint_branch *s, wefti_joint_order by,
                               int64_t number) WEFT_CHECKED;
void wefti_joint_remove_first(wefti_joint_branch *s, wefti_joint_order by);
wefti_joint_item wefti_joint_take(wefti_joint_branch *s, int64_t number);
/* The first item that is open, -1: none. */
int64_t wefti_joint_first_of(wefti_joint_branch *s, wefti_joint_order by);
/* The step, about: what is known less well turns out longer. */
double wefti_joint_guess_of(const wefti_joint_item *x);

/* coarse.c */
/* Seconds of a step, about, for guesses: kernels and transfers on a stage, and how much longer the
 * transfers are likely to take. */
typedef struct wefti_joint_about {
    double work, further;
} wefti_joint_about;
typedef struct wefti_joint_line_bound {
    bool legal;
    double seconds, bytes;
    double guess_bytes[4]; /* about, by optimizer level; 0: unknown */
    wefti_joint_about about;
} wefti_joint_line_bound;
weft_status wefti_joint_find_ideal(wefti_joint_branch *s) WEFT_CHECKED;
/* Without programs of its own. Kernels divide at best evenly. */
weft_status wefti_joint_coarse_bound(wefti_joint_branch *s, const wefti_degrees *d,
                                     wefti_joint_line_bound *out) WEFT_CHECKED;
/* Saves the programs of splits that are slow, and of microbatches that are far too large. */
weft_status wefti_joint_bound_of_line(wefti_joint_branch *s, const wefti_degrees *d,
                                      wefti_joint_line_bound *out) WEFT_CHECKED;
/* The least bytes of a stage, and about how many, before its state is known. */
weft_status wefti_joint_bytes_of_draft(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_work *work, double *out,
                                       double *out_about) WEFT_CHECKED;
/* About how many bytes the level takes that needs least. */
double wefti_joint_least_of_levels(const wefti_joint_branch *s, const wefti_joint_line_bound *b);
/* Whether about some level fits, with room for the margin. */
bool wefti_joint_likely_fits(const wefti_joint_branch *s, const wefti_joint_line_bound *b);
/* Each level is at least as slow as the one before it. */
bool wefti_joint_is_slower_outwards(const wefti_machine_model *m);
wefti_degrees wefti_joint_in_usual_order(const wefti_degrees *degrees);

/* walk.c */
bool wefti_joint_is_walked(const wefti_joint_item *x);
/* What a walk costs, in short programs. */
double wefti_joint_walk_effort(const wefti_degrees *d);
/* Whether the walk goes far beyond the budget. */
bool wefti_joint_is_costly(const wefti_joint_branch *s, const wefti_joint_item *x);
int32_t wefti_joint_budget(const wefti_joint_branch *s);
/* Searches on larger machines may take longer. */
double wefti_joint_effort_budget(const wefti_joint_branch *s);
weft_status wefti_joint_graph_of(wefti_joint_branch *s, const wefti_degrees *d, weft_graph **graph,
                                 const wefti_optimizer_plan **optimizer) WEFT_CHECKED;
void wefti_joint_note_bounded(wefti_joint_branch *s, const wefti_degrees *d, double bytes);
/* The factor that the guess of a candidate needs, 1: nothing is known. */
double wefti_joint_correction_for(const wefti_joint_branch *s, const wefti_degrees *d);
/* The part of each call of the whole model, for wefti_free; NULL: one part. */
weft_status wefti_joint_parts_of(wefti_joint_branch *s, const wefti_degrees *d,
                                 int32_t **out) WEFT_CHECKED;
/* `bounds` NULL: none were made. */
weft_status wefti_joint_walk_candidate(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_item *bounds) WEFT_CHECKED;
/* Models without tensor-parallel splits of their family: the dynamic search splits the ops. */
weft_status wefti_joint_walk_splits_of_ops(wefti_joint_branch *s) WEFT_CHECKED;

/* refuse.c: WEFT_E_NOMEM, WEFT_E_ARG with a message. */
weft_status wefti_joint_no_plan(wefti_joint_branch *s) WEFT_CHECKED;

#endif
