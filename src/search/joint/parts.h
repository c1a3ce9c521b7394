/* What the files of the joint search share. */
#ifndef WEFTI_JOINT_PARTS_H
#define WEFTI_JOINT_PARTS_H

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "cost/cost.h"
#include "plan/plan.h"
#include "program/program.h"
#include "search/joint/joint.h"

enum { WEFTI_JOINT_SHORT_LAYERS = 3 }; /* blocks of the short model */
/* Calls of the model with few blocks. The call `middle` stands for `copies` calls of the whole
 * model, which follow each other. */
typedef struct wefti_joint_shape {
    int64_t layers; /* of the short model; 0: it is the whole model */
    int32_t calls, middle, copies;
    const char **scope; /* [calls] */
    int64_t number;     /* where the block's number stands in the scope of `middle` */
} wefti_joint_shape;

/* Of each call of the short model, for one microbatch on one device. */
typedef struct wefti_joint_call {
    double forward, backward;   /* seconds of kernels, and of transfers that the rank waits for */
    int64_t saved, kept, frame; /* bytes: saved block, inputs kept for the backward pass, working
                                    memory of the backward pass */
} wefti_joint_call;

/* Depends on the split of one replica only: not on replicas, microbatches, level. */
typedef struct wefti_joint_work_key {
    int32_t data, expert, context, tensor, samples;
    int8_t order[4];
    int32_t sequence, recompute;
} wefti_joint_work_key;
typedef struct wefti_joint_work {
    wefti_joint_work_key key;
    bool legal;
    wefti_joint_call *calls; /* [shape.calls] */
    int64_t boundary;        /* bytes that pass from a block to the next one */
} wefti_joint_work;

/* Seconds of one pass of a call. */
typedef struct wefti_joint_growth {
    double fixed, each; /* of a microbatch, and of each sample in it */
    /* Of `each`: kernels that are no products, and products whose sizes are not known. Known
     * products are in wefti_joint_line.products. */
    double others, unknown;
    double flops;                 /* of all products, for each sample */
    double dearest;               /* seconds of a FLOP in the product of `unknown` that has most */
    double wait_fixed, wait_each; /* transfers; `fixed` and `each` have them too */
    double wait_latency, ring_latency; /* with two samples, also if it depends on the size */
    double ring_fixed, ring_each; /* of these, collectives whose value is the same on any number of
                                     devices: all-gathers, reduce-scatters, all-reduces */
} wefti_joint_growth;
/* A product of one device, by the number of samples. */
typedef struct wefti_joint_product {
    double one[4], more[4]; /* sizes of wefti_product_shape with one sample; of each further one */
    double flops, memory;   /* of each sample: FLOPs; seconds of its bytes */
    double rate, factor;    /* the best flop/s; the least correction of its seconds */
    wefti_arithmetic arithmetic;
    int32_t call;
    bool backward;
} wefti_joint_product;

/* What one microbatch of s samples on each device takes at least, in all calls of the model, is
 * fixed + each x s, for every s. From programs of one and of two samples: see bound/line.c. */
typedef struct wefti_joint_line {
    wefti_joint_work_key key; /* of one sample, data 1 */
    bool legal;
    double fixed, each;            /* seconds */
    wefti_joint_growth (*call)[2]; /* [shape.calls]: of the forward and of the backward pass */
    wefti_joint_product *products;
    int64_t product_count, product_cap;
    double kept_fixed, kept_each; /* bytes of saved blocks and of inputs that are kept */
    double boundary; /* bytes of a sample that pass from a block to the next one, and in a model
                      * without short blocks from a call in its middle */
    double frame[2]; /* working memory of the backward pass with one sample, with two */
    /* Bytes on a device at level 0, without stages, and of the whole tensors. `trained`: those of
     * the parameters that have gradients. */
    double parameters, optimizer, trained;
    double whole_parameters, whole_optimizer, whole_trained;
    double shared_blocks; /* of the trained parameters of blocks that levels 2 and 3 share */
    double tensors;       /* how many parameters have gradients */
    double tied;          /* bytes on a device of those that several calls read */
} wefti_joint_line;

/* Of parameters, gradients and the optimizer, on one device. Layouts of gradients, and so transfers
 * between replicas within calls, depend on what is recomputed and on the sizes of activations. */
typedef struct wefti_joint_state_key {
    int32_t data, expert, context, tensor, samples;
    int8_t order[4];
    int32_t sequence, level, shard, several, recompute;
} wefti_joint_state_key;
/* Seconds on a device; `of_block`: of one block of the model, beside `all` without blocks. */
typedef struct wefti_joint_share {
    double all, of_block;
} wefti_joint_share;
typedef struct wefti_joint_state {
    wefti_joint_state_key key;
    bool legal;
    wefti_joint_share update;                      /* kernels of the update that compute */
    wefti_joint_share waits[3];                    /* transfers within calls, per section */
    wefti_joint_share stream[3][WEFTI_LEVELS_MAX]; /* busy time without latencies */
    wefti_joint_share early[WEFTI_LEVELS_MAX];   /* of it, posted before the first backward call */
    double tail;                                 /* exposed behind the last backward pass */
    int64_t *parameters, *optimizer, *gradients; /* [shape.calls]: bytes */
} wefti_joint_state;

/* Bounds are sums of seconds; the simulator adds whole picoseconds. */
#define WEFTI_JOINT_ROUNDING (1 - 1e-6)

typedef struct wefti_joint_bound {
    double seconds;
    double bytes; /* of the stage that needs most, at least */
    int32_t stage;
} wefti_joint_bound;

typedef struct wefti_joint_products wefti_joint_products;

typedef struct wefti_joint {
    const wefti_joint_problem *problem;
    wefti_arena *arena;
    wefti_route_cache *routes;
    wefti_joint_shape shape;
    bool scalable; /* the source has models for every size */
    bool known;    /* a family with degrees */
    int32_t devices;
    int64_t limit;               /* bytes of a device */
    wefti_machine_model instant; /* the machine without latencies */
    wefti_links links;
    wefti_machine rates;
    wefti_joint_work *works;
    int64_t work_count, work_cap;
    wefti_joint_line *lines;
    int64_t line_count, line_cap;
    wefti_joint_state *states;
    int64_t state_count, state_cap;
    wefti_joint_products *products;
    int64_t products_count, products_cap;
    int64_t built; /* short programs */
    double effort; /* what has been built and walked, without routes */
} wefti_joint;

/* plan.c */
/* The plan of degrees with the user's settings, refined. `stage_of`: the part of each call of the
 * whole model, NULL: not decided. WEFT_E_ARG, WEFT_E_LAYOUT: not possible. */
weft_status wefti_joint_plan(wefti_joint *j, const wefti_degrees *degrees, const int32_t *stage_of,
                             weft_plan **out) WEFT_CHECKED;
/* The full name of a call of the whole model; `out` has room for 256 bytes. */
const char *wefti_joint_call_name(const wefti_joint_shape *shape, int32_t call, char *out);

/* bound/table.c: tables from programs of the short model. */
weft_status wefti_joint_shape_find(wefti_joint *j) WEFT_CHECKED;
weft_status wefti_joint_work_find(wefti_joint *j, const wefti_degrees *degrees,
                                  const wefti_joint_work **out) WEFT_CHECKED;
/* Of the split of degrees, whatever its replicas and microbatches. For axes in the usual order. */
weft_status wefti_joint_line_find(wefti_joint *j, const wefti_degrees *degrees,
                                  const wefti_joint_line **out) WEFT_CHECKED;
/* bound/products.c */
/* The part of the rate that a product of these sizes reaches, with room for rounding. */
double wefti_joint_product_use(const wefti_device_model *device, wefti_arithmetic arithmetic,
                               const wefti_product_shape *shape);
/* Seconds of a product of a split's own line for so many samples, at least. */
double wefti_joint_product_of_line(const wefti_device_model *device,
                                   const wefti_joint_product *product, double samples,
                                   int32_t tensor, int32_t context);
/* All known products of a pass of a call. */
typedef struct wefti_joint_product_sum {
    double seconds;
    double dearest; /* seconds of a FLOP in the product that has most */
} wefti_joint_product_sum;
/* Of each call, forward and backward, on the devices of a split: from the line of one device with
 * this recomputation. The result lives as long as the arena. */
weft_status wefti_joint_products_find(wefti_joint *j, const wefti_degrees *degrees,
                                      const wefti_joint_line *line, double samples,
                                      const wefti_joint_product_sum (**out)[2]) WEFT_CHECKED;
/* bound/state.c */
/* How many calls of the graph read a parameter; *out_first: the first of them, -1: none. */
int32_t wefti_joint_readers(const weft_graph *graph, const char *parameter, int32_t *out_first);
weft_status wefti_joint_state_find(wefti_joint *j, const wefti_degrees *degrees,
                                   const wefti_joint_state **out) WEFT_CHECKED;

/* A program of the short model, for wefti_program_destroy. `samples`: of a microbatch. */
weft_status wefti_joint_build(wefti_joint *j, const wefti_degrees *degrees, int64_t samples,
                              int64_t layers, weft_graph **out_graph,
                              wefti_program **out) WEFT_CHECKED;
/* Walks the steps of a program. Of each transfer it knows the seconds with and without latencies,
 * and whether it joins replicas. */
typedef struct wefti_joint_walk {
    const wefti_machine_model *machine;
    const wefti_program *program;
    double *seconds, *instant;
    bool *replicas;
    bool *rings;     /* collectives whose value is the same on any number of devices */
    bool only_rings; /* others take no time */
} wefti_joint_walk;
weft_status wefti_joint_walk_begin(const wefti_joint *j, const wefti_program *program,
                                   wefti_joint_walk *out) WEFT_CHECKED;
void wefti_joint_walk_end(wefti_joint_walk *walk);
/* Seconds of kernels of a call, and of the transfers that it waits for at once. Of transfers that
 * are posted together, the longest counts. Those that stay in flight do not. `replicas`: transfers
 * between replicas, or the others. */
void wefti_joint_walk_call(const wefti_joint_walk *walk, const wefti_step *step, bool replicas,
                           double *out_kernels, double *out_waits);
/* The call of the short model of this name, -1: none. */
int32_t wefti_joint_call_of(const wefti_joint_shape *shape, const char *name);
/* Bytes of inputs of the forward call that the backward call reads again. */
int64_t wefti_joint_kept_bytes(const wefti_program *program, const wefti_step *backward);
/* The best rate of products, whatever their size. */
double wefti_joint_best_rate(const wefti_device_model *device, wefti_arithmetic arithmetic);
/* A correction of an op's time is at least this one. */
double wefti_joint_least_factor(const wefti_device_model *device, const weft_node *node);

/* Seconds of the products of one sample on one device, at the best rates. */
weft_status wefti_joint_ideal(wefti_joint *j, double *out_forward,
                              double *out_backward) WEFT_CHECKED;
/* Samples of a program: those of one copy of a microbatch on all replicas; 0: the model has one
 * size only. */
static inline int64_t wefti_joint_samples(const wefti_joint *j, const wefti_degrees *d) {
    const wefti_joint_problem *p = j->problem;
    return j->scalable ? p->source.batch / d->microbatches / p->settings->copies : 0;
}
/* Whether copies of a microbatch alternate: one computes while another waits for its transfers. So
 * no sum over calls is a bound of a stage; only the products of all devices are. */
static inline bool wefti_joint_alternates(const wefti_joint *j) {
    return j->problem->settings->copies > 1;
}
/* Whether the user's rules, and not the search, divide the calls of a candidate into stages. */
static inline bool wefti_joint_rules(const wefti_joint *j, const wefti_degrees *d) {
    return d->stages > 1 && j->problem->settings->pipeline.rule_count > 0;
}
/* Whether `what` of something may lie in a lower tier. Bounds count nothing of it then: rules name
 * blocks of the whole model, which the programs with few blocks do not have. */
static inline bool wefti_joint_offloads(const wefti_joint *j, weft_offload what) {
    for (int64_t i = 0; i < j->problem->settings->offload.count; i++)
        if (j->problem->settings->offload.rules[i].what == what) return true;
    return what == WEFT_OFFLOAD_OPTIMIZER && wefti_plan_may_update_on_host(j->problem->settings);
}
/* Then levels 1 and 2 gather parameters for each use, as level 3 does, so they are not tried. */
static inline bool wefti_joint_moves_parameters(const wefti_joint *j) {
    const weft_plan *s = j->problem->settings;
    return wefti_plan_may_offload(s, WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_HOST) ||
           wefti_plan_may_offload(s, WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_DISK);
}
/* What a call certainly keeps in device memory from its forward to its backward pass. */
static inline double wefti_joint_keeps(const wefti_joint *j, const wefti_joint_call *call) {
    return (double)(call->kept + (wefti_joint_offloads(j, WEFT_OFFLOAD_SAVED) ? 0 : call->saved));
}
/* What a program costs to build, in programs for few devices: regions of all members of groups, and
 * the rings of split sequences. Routes count apart. */
static inline double wefti_joint_effort(const wefti_degrees *d) {
    return 1 + (double)d->data * d->expert * d->context * d->tensor / 64 +
           (double)d->context * d->context / 64;
}
/* What all routes have cost. */
static inline double wefti_joint_effort_of_routes(const wefti_joint *j) {
    enum { LOOKS = 16384 }; /* take as long as a program for few devices */
    return (double)wefti_route_cache_looks(j->routes) / LOOKS;
}
/* Statuses that mean that degrees do not suit the model. */
static inline bool wefti_joint_refuses(weft_status status) {
    return status == WEFT_E_ARG || status == WEFT_E_SHAPE || status == WEFT_E_LAYOUT ||
           status == WEFT_E_NO_IMPL;
}

/* In how many blocks of `block` devices a group of `size` devices lies, `stride` apart, the first
 * at the begin of a block. */
static inline int32_t wefti_joint_blocks(int32_t stride, int32_t size, int32_t block) {
    return stride >= block ? size : (int32_t)((int64_t)(size - 1) * stride / block) + 1;
}

/* Whether the axis of replicas is the outermost one. */
static inline bool wefti_joint_outermost(const wefti_degrees *d) {
    return d->order[0] == d->order[1] || d->order[0] == 0;
}

/* bound/stages.c */
static inline int32_t wefti_joint_calls(const wefti_joint_shape *s) {
    return s->calls + (s->middle >= 0 ? s->copies - 1 : 0);
}
/* The call of the short model that stands for a call of the whole one. */
static inline int32_t wefti_joint_short_call(const wefti_joint_shape *s, int32_t call) {
    if (s->middle < 0 || call <= s->middle) return call;
    return call < s->middle + s->copies ? s->middle : call - s->copies + 1;
}
/* Divides the calls into parts of nearly equal time: part_of[calls]. False: too few calls. */
bool wefti_joint_divide(const wefti_joint *j, const wefti_joint_work *work, int32_t parts,
                        int32_t *part_of);
/* `state` NULL: not known yet; then the bound of bytes is 0. */
weft_status wefti_joint_bound_of(const wefti_joint *j, const wefti_degrees *degrees,
                                 const wefti_joint_work *work, const wefti_joint_state *state,
                                 wefti_joint_bound *out) WEFT_CHECKED;

/* Seconds of a message from a stage to another; each device of the one has so many bytes. */
double wefti_joint_send(const wefti_joint *j, const wefti_degrees *degrees, double bytes,
                        int32_t from, int32_t to);
/* Seconds in which a block's result passes from any stage to another, at least. `boundary`: bytes.
 */
double wefti_joint_least_send(const wefti_joint *j, const wefti_degrees *degrees, double boundary);

/* bound/fill.c */
/* The least step of any division into stages. `calls`: seconds of one microbatch in each call of
 * the short model, at least; `boundary`: bytes that pass from a block to the next one, at least. */
double wefti_joint_least_step(const wefti_joint *j, const wefti_degrees *degrees,
                              const wefti_joint_call *calls, double boundary);

/* cells.c: of a plan that has been walked. */
weft_status wefti_joint_cells_find(wefti_joint *j, const wefti_degrees *degrees,
                                   const weft_plan *plan, wefti_joint_cells *out) WEFT_CHECKED;

/* space.c */
typedef struct wefti_joint_visit {
    void *context;
    weft_status (*degrees)(void *context, const wefti_degrees *degrees);
} wefti_joint_visit;
/* Calls `visit` with the splits and microbatches of the space, with the least recomputation;
 * schedule, level and shard are open (SCHEDULE 1f1b, level 0). */
weft_status wefti_joint_splits(const wefti_joint *j, const wefti_joint_visit *visit) WEFT_CHECKED;
/* All schedules and chunks for one of these. */
weft_status wefti_joint_orders(const wefti_joint *j, const wefti_degrees *split,
                               const wefti_joint_visit *visit) WEFT_CHECKED;
/* The same, each with all levels and shards. */
weft_status wefti_joint_schedules(const wefti_joint *j, const wefti_degrees *split,
                                  const wefti_joint_visit *visit) WEFT_CHECKED;
/* contradict.c: WEFT_E_ARG if the constraints leave no legal candidate. The message names one that
 * does not go with the model, or two that contradict each other, and values that would be right. */
weft_status wefti_joint_contradiction(const wefti_joint *j) WEFT_CHECKED;

#endif
