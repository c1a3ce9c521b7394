/* What the files of the branch and bound of the joint search share. */
#ifndef WEFTI_JOINT_BRANCH_H
#define WEFTI_JOINT_BRANCH_H

#include <math.h>

#include "search/joint/guess/guess.h"
#include "search/joint/parts.h"

enum { WEFTI_JOINT_MISFITS = 6 };
enum { WEFTI_JOINT_ROUND = 16 }; /* walks of a phase in the first round */
enum { WEFTI_JOINT_TIGHT_MISFITS = 4 };

/* Whether a candidate fits, by its guess. TIGHT: perhaps. Tight ones are walked too, until a few of
 * them have not fitted. */
typedef enum wefti_joint_fitting {
    WEFTI_JOINT_FITS,
    WEFTI_JOINT_TIGHT,
    WEFTI_JOINT_TOO_LARGE
} wefti_joint_fitting;

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
    double certain;      /* what holds of a bound that tells the order only; 0: all of it */
    double guess;        /* of the step, about */
    double about;        /* bytes of a device */
    wefti_joint_item_kind kind;
    int64_t number;
    wefti_degrees degrees;
    bool tight;     /* it may not fit */
    bool retried;   /* the candidate with more recomputation is open as well */
    bool waits;     /* seldom better than another mode of recomputation: taken by its bound only */
    bool corrected; /* the guess is, by a walk of the same split */
    bool sized;     /* `about` is corrected, by walks of the same mesh */
    bool taken;
} wefti_joint_item;

/* How much longer than guessed the walks of a split have been. */
typedef struct wefti_joint_correction {
    wefti_degrees degrees;
    double ratio, missing; /* seconds / guess, and seconds - guess */
} wefti_joint_correction;

/* How much larger than guessed a plan was that did not fit. */
typedef struct wefti_joint_size {
    wefti_degrees degrees;
    double ratio; /* bytes / guess; 1: the guess was corrected before */
} wefti_joint_size;

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
    wefti_degrees *past; /* candidates that were walked */
    int64_t past_count, past_cap;
    wefti_joint_correction *corrections;
    int64_t correction_count, correction_cap;
    wefti_joint_size *sizes;
    int64_t size_count, size_cap;
    int64_t count;                        /* items that have not been taken */
    double ideal_forward, ideal_backward; /* of products of one sample on one device */
    double ratio;                         /* the best step may be so much longer than the bound */
    wefti_joint_misfit walked;            /* that needs least memory of those that were simulated */
    wefti_joint_misfit
        bounded[WEFTI_JOINT_MISFITS]; /* of the others those with the least bounds, in order */
    int misfits;
    wefti_joint_misfit large; /* with the least activations of those without programs */
    bool any_walked, any_large;
    int64_t host_least; /* bytes of tier host: of those that fit but for these; 0: none */
    bool fits;          /* the plan that was walked last */
    bool outwards;      /* levels of links are slower from the innermost one on */
    wefti_joint_answer *out;
    double parameters;     /* bytes of the whole model's */
    double tensors;        /* how many of them have gradients */
    double tied;           /* bytes of those that several calls read */
    bool guessing;         /* the least guess is taken next, not the least bound */
    int32_t tight_misfits; /* tight candidates that were walked and did not fit */
    double tight_effort;   /* of programs for tight splits */
    int32_t round;         /* walks that a phase may make: see search.c */
    int32_t phase_walks;   /* walks before the phase */
    double phase_spent;    /* effort before the phase */
    double share;          /* of the round's effort: the budget of the phase */
    int32_t found;         /* walks before the last one that found a better plan */
    double split_bound;    /* of the split whose candidates are pushed */
    double begin;
} wefti_joint_branch;

/* Seconds of the best step. */
static inline double wefti_joint_best(const wefti_joint_branch *s) {
    return s->out->prediction ? s->out->prediction->step_seconds : INFINITY;
}

/* order.c */
weft_status wefti_joint_push_item(wefti_joint_branch *s, wefti_joint_item x) WEFT_CHECKED;
weft_status wefti_joint_insert(wefti_joint_branch *s, wefti_joint_order by,
                               int64_t number) WEFT_CHECKED;
void wefti_joint_remove_first(wefti_joint_branch *s, wefti_joint_order by);
wefti_joint_item wefti_joint_take(wefti_joint_branch *s, int64_t number);
/* The first item that is open, -1: none. */
int64_t wefti_joint_first_of(wefti_joint_branch *s, wefti_joint_order by);
/* The step, about: what is known less well turns out longer. */
double wefti_joint_guess_of(const wefti_joint_item *x);

/* bound/coarse.c */
/* Seconds of a step, about, for guesses: kernels and transfers on a stage, and how much longer the
 * transfers are likely to take. `send`: of a microbatch's values from one stage to another. */
typedef struct wefti_joint_about {
    double work, further, send;
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
/* The least step with the transfers between replicas, before the state is known. */
weft_status wefti_joint_step_of_draft(wefti_joint_branch *s, const wefti_degrees *d,
                                      const wefti_joint_work *work, double *out) WEFT_CHECKED;
/* The least bytes of a stage, and about how many, before its state is known. */
weft_status wefti_joint_bytes_of_draft(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_work *work, double *out,
                                       double *out_about) WEFT_CHECKED;
/* About how many bytes the level takes that needs least. */
double wefti_joint_least_of_levels(const wefti_joint_branch *s, const wefti_joint_line_bound *b);
wefti_joint_fitting wefti_joint_fitting_of(const wefti_joint_branch *s, double about);
/* The devices of an axis, on the machine. */
typedef struct wefti_joint_axis {
    int32_t stride, size;
    double share; /* the part of a sample's values that each group of the axis has */
} wefti_joint_axis;
/* The group of an axis from the first device on: how many blocks of each level are in one of the
 * next level. False: they do not divide equally. */
bool wefti_joint_levels_of(const wefti_machine_model *m, const wefti_joint_axis *a,
                           int32_t per_level[WEFTI_LEVELS_MAX]);
/* The product of the sizes of the axes within the axis `which`: 0 dp, 1 ep, 2 cp, 3 tp. */
int32_t wefti_joint_stride_of(const wefti_degrees *d, int which);
/* Each level is at least as slow as the one before it. */
bool wefti_joint_is_slower_outwards(const wefti_machine_model *m);
wefti_degrees wefti_joint_in_usual_order(const wefti_degrees *degrees);

/* guess/guess.c */
/* Seconds of the update, and of transfers between replicas that no kernel hides, about. `work`:
 * seconds of all microbatches on a stage. */
double wefti_joint_guess_exposed(const wefti_joint_branch *s, const wefti_degrees *d, double work,
                                 int level);
/* Seconds of the products of a step, about. `products`: without recomputation. */
double wefti_joint_guess_products(const wefti_joint_branch *s, const wefti_degrees *d,
                                  double products);
/* Seconds in which the first and the last stage sum the gradient of a parameter that both read,
 * about. */
double wefti_joint_guess_tied(const wefti_joint_branch *s, const wefti_degrees *d);
/* Seconds that a schedule adds to the work of a stage, about: where stages wait for each other,
 * where they wait for messages, and where they sum such gradients. */
double wefti_joint_guess_stages(const wefti_joint_branch *s, const wefti_degrees *d,
                                const wefti_joint_about *about);
/* The same with the schedule and chunks of the space that add least. */
weft_status wefti_joint_guess_least_stages(const wefti_joint_branch *s, const wefti_degrees *split,
                                           const wefti_joint_about *about,
                                           double *out) WEFT_CHECKED;

/* bound/chain.c */
/* Of a set with a line of its own, or with that of the usual order of its axes. */
weft_status wefti_joint_bound_drawn(wefti_joint_branch *s, const wefti_degrees *d,
                                    wefti_joint_line_bound *out) WEFT_CHECKED;
/* Of all schedules, from the work of the calls. */
double wefti_joint_bound_of_work(const wefti_joint_branch *s, const wefti_degrees *d,
                                 const wefti_joint_work *work);
/* Whether the bound of a candidate's stages holds. If not, it tells the order only. */
bool wefti_joint_is_certain(const wefti_joint *j, const wefti_degrees *d);
/* The bounds of a candidate's sets, from the one that is known first to its own. */
typedef enum wefti_joint_link {
    WEFTI_JOINT_OF_COARSE,
    WEFTI_JOINT_OF_LINE,
    WEFTI_JOINT_OF_WORK,
    WEFTI_JOINT_OF_DRAFT,
    WEFTI_JOINT_OF_STATE,
    WEFTI_JOINT_LINKS
} wefti_joint_link;
typedef struct wefti_joint_chain {
    double seconds[WEFTI_JOINT_LINKS], bytes[WEFTI_JOINT_LINKS]; /* 0: nothing is known */
    bool legal;                                                  /* the candidate has programs */
} wefti_joint_chain;
weft_status wefti_joint_chain_find(wefti_joint_branch *s, const wefti_degrees *d,
                                   wefti_joint_chain *out) WEFT_CHECKED;

/* bound/replicas.c: the least step at a level of the optimizer. `some_share`: not all replicas
 * share states. `chunks`: a stage may have several. `calls` NULL: nothing is known of the kernels.
 */
double wefti_joint_least_of_level(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                                  bool some_share, bool chunks, const wefti_joint_line *line,
                                  const wefti_joint_call *calls);

/* walk.c */
bool wefti_joint_is_walked(const wefti_joint_item *x);
/* What a walk costs, in short programs. */
double wefti_joint_walk_effort(const wefti_degrees *d);
/* Whether the walk goes far beyond the budget. */
bool wefti_joint_is_costly(const wefti_joint_branch *s, const wefti_joint_item *x);
int32_t wefti_joint_budget(const wefti_joint_branch *s);
/* Whether all walks that the caller asked for are made, or its time is over. */
bool wefti_joint_is_over(const wefti_joint_branch *s);
bool wefti_joint_out_of_time(const wefti_joint_branch *s);
double wefti_joint_now(const wefti_joint_problem *p); /* seconds */
/* A phase begins, with this part of the round's effort. */
void wefti_joint_begin_phase(wefti_joint_branch *s, double share);
/* What has been built and walked in this phase, in short programs. */
double wefti_joint_spent(const wefti_joint_branch *s);
/* Searches on larger machines may take longer: so many times the effort. */
double wefti_joint_larger_machine(const wefti_joint_branch *s);
double wefti_joint_effort_budget(const wefti_joint_branch *s);
double wefti_joint_effort_without_plan(const wefti_joint_branch *s);
weft_status wefti_joint_graph_of(wefti_joint_branch *s, const wefti_degrees *d, weft_graph **graph,
                                 const wefti_optimizer_plan **optimizer) WEFT_CHECKED;
void wefti_joint_note_bounded(wefti_joint_branch *s, const wefti_degrees *d, double bytes);
/* The factor that the guess of a candidate needs, 1: nothing is known. */
double wefti_joint_correction_for(const wefti_joint_branch *s, const wefti_joint_item *x);
/* The factor that the guess of a candidate's bytes needs, at least; 1: nothing is known. */
double wefti_joint_size_for(const wefti_joint_branch *s, const wefti_joint_item *x);
bool wefti_joint_same_split(const wefti_degrees *a, const wefti_degrees *b);
/* Whether the candidate has been walked. */
bool wefti_joint_is_past(const wefti_joint_branch *s, const wefti_degrees *d);
/* The part of each call of the whole model, for wefti_free; NULL: one part. */
weft_status wefti_joint_parts_of(wefti_joint_branch *s, const wefti_degrees *d,
                                 int32_t **out) WEFT_CHECKED;
/* `bounds` NULL: none were made. */
weft_status wefti_joint_walk_candidate(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_item *bounds) WEFT_CHECKED;
/* The plan of a candidate and what the simulator says of it, for weft_plan_destroy and
 * weft_prediction_free; both NULL after an error. */
weft_status wefti_joint_simulate(wefti_joint_branch *s, const wefti_degrees *d, weft_plan **plan,
                                 weft_prediction **out) WEFT_CHECKED;
/* Models without tensor-parallel splits of their family: the dynamic search splits the ops. */
weft_status wefti_joint_walk_splits_of_ops(wefti_joint_branch *s) WEFT_CHECKED;

/* search.c */
/* For wefti_joint_end, also after an error. */
weft_status wefti_joint_begin(wefti_joint_branch *s) WEFT_CHECKED;
void wefti_joint_end(wefti_joint_branch *s);
/* Programs for so many devices take long to build. */
bool wefti_joint_is_large(const wefti_degrees *d);
/* Whether recomputation is like the mode before it on one device: it keeps the same bytes. If
 * attention keeps none, selective recomputation is like none. */
weft_status wefti_joint_is_alike(wefti_joint_branch *s, const wefti_degrees *degrees,
                                 bool *out) WEFT_CHECKED;

/* near.c */
weft_status wefti_joint_walk_plain(wefti_joint_branch *s) WEFT_CHECKED;
weft_status wefti_joint_walk_singles(wefti_joint_branch *s) WEFT_CHECKED;
weft_status wefti_joint_walk_neighbours(wefti_joint_branch *s) WEFT_CHECKED;

/* refuse.c: WEFT_E_NOMEM, WEFT_E_ARG with a message; WEFT_OK if it finds a plan after all. */
weft_status wefti_joint_no_plan(wefti_joint_branch *s) WEFT_CHECKED;

#endif
