/* The joint search: all dimensions of a plan together, with memory as a hard limit and a bound.
 *
 * The space. A candidate fixes the degrees of search/degrees.h: data, expert, context and tensor
 * parallelism, the order of these axes (and so the links on which each lies), splits along the
 * sequence, stages, chunks, schedule, microbatches, optimizer level and the devices that share its
 * states, and recomputation. Selective recomputation is left out where it changes next to nothing:
 * it keeps the bytes of a plan without recomputation, and a replica is one device a stage. Cells
 * are divided into stages by the times of their kernels. Without a known family, the dynamic search
 * (search/dynamic.c) splits the ops of a stage.
 *
 * The order. Each candidate has a lower bound of its step (bound/), from programs of the model
 * with few blocks. Candidates are taken by bound, lowest first. The programs of a candidate are
 * built dry and walked with a clock (search/predict). The search ends when no bound is below the
 * best step by more than the tolerance, or when the budget is used up.
 *
 * The lower bound of the answer: no plan of the space has a shorter step in the simulator. It is
 * the least bound of the candidates that were not walked, or the best step, if that is less.
 *     gap = (step - lower bound) / lower bound
 *
 * All ties are broken by number, so the answer depends on the arguments only, except for
 * `seconds`. */
#ifndef WEFTI_JOINT_H
#define WEFTI_JOINT_H

#include "base/text.h"
#include "builder/spec.h"
#include "search/degrees.h"
#include "topo/model.h"
#include "weft/predict.h"
#include "weft/search.h"

/* Dimensions that a constraint may fix: name of the dimension in texts. */
#define WEFTI_JOINT_DIMENSIONS(X)                                                                  \
    X(DATA, "dp")                                                                                  \
    X(EXPERT, "ep")                                                                                \
    X(CONTEXT, "cp")                                                                               \
    X(TENSOR, "tp")                                                                                \
    X(SEQUENCE, "sp")                                                                              \
    X(STAGES, "pp")                                                                                \
    X(CHUNKS, "chunks")                                                                            \
    X(MICROBATCHES, "microbatches")                                                                \
    X(SCHEDULE, "schedule")                                                                        \
    X(LEVEL, "level")                                                                              \
    X(SHARD, "shard")                                                                              \
    X(RECOMPUTE, "recompute")                                                                      \
    X(INNER, "inner")
typedef enum wefti_joint_dimension {
#define WEFTI_JOINT_ROW(name, text) WEFTI_JOINT_##name,
    WEFTI_JOINT_DIMENSIONS(WEFTI_JOINT_ROW)
#undef WEFTI_JOINT_ROW
        WEFTI_JOINT_COUNT
} wefti_joint_dimension;

/* Hard constraints: -1 for a free dimension. */
typedef struct wefti_joint_fix {
    int32_t value[WEFTI_JOINT_COUNT];
} wefti_joint_fix;
wefti_joint_fix wefti_joint_free(void);
const char *wefti_joint_dimension_text(wefti_joint_dimension dimension);
/* "pp=4", for a value that the constraint may have. */
void wefti_joint_constraint_text(wefti_joint_dimension d, int32_t value, wefti_text *out);
/* Adds the constraints of a text, "pp=4 tp=2 schedule=1f1b recompute=full". WEFT_E_ARG names a word
 * that is none, or two that contradict each other. */
weft_status wefti_joint_fix_add(const char *text, wefti_joint_fix *fix) WEFT_CHECKED;
/* WEFT_E_ARG names the two constraints that no plan for so many devices and samples meets. */
weft_status wefti_joint_fix_check(const wefti_joint_fix *fix, int32_t devices,
                                  int64_t batch) WEFT_CHECKED;

/* The model, for every number of samples in a microbatch and every depth. */
typedef struct wefti_joint_source {
    void *context;
    /* A wrapped graph and its optimizer, borrowed until the search is over. `layers`: blocks of the
     * model, 0: all. `samples` 0: as the caller has built it. */
    weft_status (*model)(void *context, int64_t samples, int64_t layers, weft_graph **out_graph,
                         const wefti_optimizer_plan **out_optimizer);
    const weft_model_config *config; /* NULL: no known family */
    int64_t batch;                   /* samples of a step; 0: the model has one size only */
    double tokens, flops;            /* of a step, for the answer; 0: unknown */
} wefti_joint_source;

typedef struct wefti_joint_problem {
    wefti_joint_source source;
    const weft_plan *settings; /* devices, and what the user has decided beside the constraints */
    const wefti_machine_model *machine;
    wefti_joint_fix fix;
    int64_t memory_bytes;       /* of a device; 0: the machine's */
    int64_t host_bytes;         /* for tier host of a device; 0: no limit */
    int32_t evaluations;        /* budget: plans that are walked; 0: the usual number */
    double tolerance;           /* part of the step; 0: the usual one */
    double seconds;             /* 0: no limit of time */
    double (*now)(void *clock); /* seconds, for the limit; NULL: the monotonic clock */
    void *clock;
    bool by_bound;   /* no guesses: each candidate is bounded with its state before it is walked */
    bool plain;      /* if no plan fits, the message does not say which change would make one fit */
    bool moves_less; /* plans may move less than the settings say: bounds hold for these too, but no
                        step that was simulated does */
} wefti_joint_problem;

/* A candidate that was simulated. */
typedef struct wefti_joint_walked {
    wefti_degrees degrees;
    double seconds;
    int64_t bytes; /* of the rank that needs most */
    bool fits;
} wefti_joint_walked;
enum { WEFTI_JOINT_WALKED = 9 };
/* The unique cells of an answer, for wefti_joint_cells_free. */
typedef struct wefti_joint_cells {
    weft_cell_report *cells;
    int count;
    int64_t cap;
} wefti_joint_cells;
void wefti_joint_cells_free(wefti_joint_cells *cells);

/* Which plans the lower bound holds for, and how that is known. */
extern const char wefti_joint_bound_scope[];
typedef struct wefti_joint_answer {
    weft_plan *plan; /* refined; the caller's */
    wefti_degrees degrees;
    weft_prediction *prediction;
    double lower_bound_seconds, gap;
    double own_bound_seconds, own_bound_bytes; /* of the plan's own candidate; 0: none were made */
    /* The best bound of the plan itself; the step is longer by what no bound counts, such as waits.
     * 0: not known. The search is exhausted or was cut, or the model has one size only. */
    double plan_bound_seconds;
    /* Constraints of the plans whose bound the lower bound is, for wefti_free. NULL: it is the
     * plan's own. */
    char *least;
    int64_t candidates, bounded; /* in the space; with programs behind their bounds */
    int64_t programs;            /* of the short model that were built for bounds */
    int32_t evaluations;
    bool exhausted; /* the bounds prove that nothing in the space is faster by the tolerance */
    bool cut;       /* by `seconds` */
    wefti_joint_walked walked[WEFTI_JOINT_WALKED]; /* the best ones in order: the plan itself first,
                                                      then those that fit, the fastest first */
    int32_t walked_count;
    wefti_joint_cells cells;
} wefti_joint_answer;

/* WEFT_E_NOMEM: no plan fits; the message says by how many bytes and on which rank. WEFT_E_ARG:
 * contradicting constraints, or no plan meets them. WEFT_E_NOT_FOUND: the time was over before a
 * plan was found. */
weft_status wefti_joint_search(const wefti_joint_problem *problem,
                               wefti_joint_answer *out) WEFT_CHECKED;
void wefti_joint_answer_free(wefti_joint_answer *answer);
/* machine.c: one host of so many devices with assumed rates and links (between-host ones do not
 * count); `links` NULL: assumed. For wefti_model_destroy. */
weft_status wefti_joint_assume(int32_t devices, int64_t memory_bytes, const wefti_links *links,
                               wefti_machine_model **out) WEFT_CHECKED;
/* The joint search as weft_plan_search offers it: one graph, whose microbatches are given. */
weft_status wefti_joint_of_graph(weft_graph *graph, const weft_plan *settings,
                                 const weft_search_options *options, weft_plan **out) WEFT_CHECKED;
/* Degrees as constraints that wefti_joint_fix_add reads: "dp=8 ep=1 cp=1 tp=8 ...". Unlike degrees
 * have unlike texts, and each text admits one candidate only: it names the innermost of several
 * axes, and the replicas that share states (0: all), also if they are the usual ones. */
void wefti_joint_degrees_text(const wefti_degrees *degrees, wefti_text *out);
/* Constraints that decide nothing of a candidate that meets them, such as the schedule of a plan
 * without stages: "schedule=gpipe inner=tp". Nothing is added if there are none. */
weft_status wefti_joint_idle_text(const wefti_joint_fix *fix, const wefti_degrees *degrees,
                                  wefti_text *out) WEFT_CHECKED;
/* wefti_joint_degrees_text of a split: of all its schedules, levels and shards. */
void wefti_joint_split_text(const wefti_degrees *degrees, wefti_text *out);

#endif
