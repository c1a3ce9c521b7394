/* The simulator: predicts a step by walking the programs of all ranks with a clock.
 *
 * Ranks walk through their programs as matching does (program/match.h), and every kernel, copy and
 * transfer takes the time that the cost model gives it (cost/cost.h).
 *
 * - A rank computes one kernel after another. A post takes no time. A rank that waits continues
 *   when the transfer has ended.
 * - A transfer is ready when all members have posted it. It starts as soon as the streams of all
 *   members for its level of links are free, in the order of readiness. Of transfers that are ready
 *   at the same time, the one that a member has posted first goes first; then tags decide.
 *   Transfers of different levels run at the same time, and kernels run beside them.
 * - Messages between stages do not wait for collectives, since libraries give each group a stream
 *   of its own. While both are under way, each has half of the link. Transfers that wait behind the
 *   collectives begin later. Collectives wait for messages that have begun.
 * - Copies between device memory and a tier below it run one after the other, beside kernels,
 *   transfers and the copies of another tier, at the machine's host_bytes_per_second and
 *   disk_bytes_per_second. The ranks of a host share its disk equally. A disk without a rate has
 *   1 GB/s. A wait for a copy ends when the copy does. If copies spend the cores of the machine, a
 *   post takes the time of its copy. Copies have no spans.
 * - What the host computes takes no less than its bytes at the machine's
 *   host_memory_bytes_per_second, and the device does nothing else meanwhile.
 * - Where devices move the data themselves when they wait for it (levels moved_in_waits), a wait
 *   takes the transfer's time from when all members have posted. Nothing overlaps with it.
 * - If fewer devices of a host compute at the same time than there are (devices_at_once), or fewer
 *   hosts (hosts_at_once), a kernel begins when the rank is ready and its processor is free. Ranks
 *   get processors kernel by kernel, in the order of their clocks.
 *
 * Classes. Of a world that is folded (program/match.h), one player walks for all ranks whose step
 * is the same: equal programs, in groups that lie in the same way on the machine, with members that
 * are equal again (players.c). Slow ranks, ranks with slow links and the failing rank get players
 * of their own. The result is that of the walk of all ranks: nothing in the walk depends on the
 * number of a rank.
 *
 * Times are whole picoseconds, so sums are exact and equal on every machine.
 *
 * Causes. Each time carries the causes that it consists of along the path that led to it: kernels
 * by phase, copies, copies of each tier, transfers by kind. A maximum keeps the causes of the
 * larger time. So the causes of the step add up to the step exactly, and are those of the critical
 * path.
 *
 * Loops (program/program.h). If the state of the simulation repeats itself, but for a shift in
 * time, the remaining repetitions are computed at once. The result equals that of the full walk:
 * the walk is deterministic, depends on differences of times only, and the causes have grown by
 * the same amounts twice (repeat.c). */
#ifndef WEFTI_SIMULATE_H
#define WEFTI_SIMULATE_H

#include "cost/cost.h"
#include "program/match.h"
#include "weft/predict.h"

#define WEFTI_PICOSECOND 1e-12

/* Causes of time. Transfers have one for each kind: WEFTI_CAUSE_TRANSFER + kind. */
typedef enum wefti_cause {
    WEFTI_CAUSE_FORWARD, /* kernels, by phase */
    WEFTI_CAUSE_BACKWARD,
    WEFTI_CAUSE_UPDATE,
    WEFTI_CAUSE_OTHER,
    WEFTI_CAUSE_COPY, /* within device memory */
    WEFTI_CAUSE_HOST, /* copies between device memory and the tier */
    WEFTI_CAUSE_DISK,
    WEFTI_CAUSE_IDLE, /* waiting for other ranks: bubbles and stragglers; not on critical paths */
    WEFTI_CAUSE_TRANSFER,
    WEFTI_CAUSES = WEFTI_CAUSE_TRANSFER + WEFTI_TRANSFER_KINDS
} wefti_cause;
const char *wefti_cause_text(int cause);

typedef enum wefti_span_track {
    WEFTI_SPAN_STEP,    /* a whole step, emitted at its end */
    WEFTI_SPAN_COMPUTE, /* a kernel or a copy */
    WEFTI_SPAN_TRANSFER
} wefti_span_track;

/* A part of a rank's timeline. */
typedef struct wefti_sim_span {
    int32_t rank; /* the lowest one of the player */
    wefti_section section;
    int32_t number; /* of the step in its section */
    wefti_span_track track;
    int64_t begin, end; /* transfers: from the post to the end of the wait */
    const wefti_step *step;
    const wefti_instruction *code;  /* NULL: the step's own transfer, or a copy */
    const wefti_transfer *transfer; /* NULL: computing */
    int32_t micro;
} wefti_sim_span;

typedef struct wefti_simulate_options {
    const wefti_machine_model *machine;
    int32_t microbatches; /* of a step; sections NEXT run microbatches - 1 times */
    const weft_slow_rank *slow_ranks;
    int slow_rank_count;
    const weft_slow_link *slow_links;
    int slow_link_count;
    int32_t failing; /* this rank stops at fail_seconds; ignored if fail_seconds is 0 */
    double fail_seconds;
    bool every_iteration; /* do not extrapolate loops */
    /* Receives every span; sets every_iteration. NULL: none. */
    weft_status (*span)(void *context, const wefti_sim_span *span);
    void *context;
    /* Asked again and again; true ends the walk with WEFT_E_STOPPED. NULL: nothing does. */
    bool (*stop)(void *stop_context);
    void *stop_context;
} wefti_simulate_options;

typedef struct wefti_rank_time {
    int64_t end;                 /* of its own last step */
    int64_t cause[WEFTI_CAUSES]; /* adds up to the step: idle until the others are done as well */
    int64_t transfers[WEFTI_TRANSFER_KINDS]; /* seconds under way, exposed or not */
} wefti_rank_time;

typedef struct wefti_simulation {
    int64_t step;                   /* picoseconds until the last rank is done */
    int32_t critical_rank;          /* the first of the last ranks */
    int64_t critical[WEFTI_CAUSES]; /* adds up to the step */
    wefti_rank_time *ranks;         /* [count]: of each player */
    int32_t *lowest, *members;      /* [count]: the first of a player's ranks, and their number */
    int32_t *player_of;             /* [world] */
    int32_t count, world; /* equal if every rank has walked; players are in the order of `lowest` */
    bool stopped; /* a rank failed, and others waited for it: `step` is when the last one stopped */
    int32_t waiting;    /* number of ranks that waited for others then */
    int64_t events;     /* kernels and transfers that were walked */
    int64_t iterations; /* iterations of loops that were not walked */
} wefti_simulation;

/* programs[r] is the program of rank r; they match each other. WEFT_E_MISMATCH if ranks wait for
 * each other for ever. */
weft_status wefti_simulate(const wefti_program *const *programs, int32_t count,
                           const wefti_simulate_options *options,
                           wefti_simulation **out) WEFT_CHECKED;
/* Of one rank of each class; the classes match each other (wefti_classes_match). */
weft_status wefti_simulate_classes(const wefti_match_classes *classes,
                                   const wefti_simulate_options *options,
                                   wefti_simulation **out) WEFT_CHECKED;
/* What the two calls above refuse: the machine has too few devices, or ranks that do not exist are
 * slow or fail. */
weft_status wefti_simulate_check(const wefti_simulate_options *options, int32_t ranks) WEFT_CHECKED;
void wefti_simulation_free(wefti_simulation *simulation); /* NULL is legal */

#endif
