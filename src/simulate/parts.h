/* Definitions that the files of the simulator share. */
#ifndef WEFTI_SIMULATE_PARTS_H
#define WEFTI_SIMULATE_PARTS_H

#include "base/memory.h"
#include "comm/comm.h"
#include "program/groups.h"
#include "simulate/simulate.h"

/* A time with the causes that it consists of. */
typedef struct wefti_moment {
    int64_t at;
    int64_t cause[WEFTI_CAUSES];
} wefti_moment;

/* Posts that meet. `when`: of the last post; then the end. */
typedef struct wefti_sim_meeting {
    wefti_moment when;
    int64_t start, duration;
    int32_t kind, arrived, left; /* left: members that have not waited yet */
    int32_t by;                  /* the member whose post is `when`, the first of several */
    int32_t turn; /* the least number that the post has among its rank's posts of that instant */
    bool started;
} wefti_sim_meeting;

/* A group of players and a tag. Meetings before `begin` are over. */
typedef struct wefti_sim_channel {
    struct wefti_sim_channel *next; /* in the same hash bucket */
    struct wefti_sim_channel *all;  /* the next one of all channels, in the order of creation */
    uint64_t tag;
    int32_t members, level;
    const int32_t *players; /* in the order in which the group's ranks have them */
    int64_t *posted;        /* per member */
    bool *waiting;
    wefti_sim_meeting *open;
    int64_t begin, used, capacity;
} wefti_sim_channel;

/* A transfer that is ready and has not started. */
typedef struct wefti_sim_ready {
    wefti_sim_channel *channel;
    int64_t number; /* of the meeting */
} wefti_sim_ready;

/* A transfer in one player's table. */
typedef struct wefti_sim_end {
    wefti_sim_channel *channel;
    int64_t duration;
    int32_t kind, slot; /* slot: the player's index in the channel */
    uint32_t posted, waited;
    int64_t number[WEFTI_COMM_DEPTH]; /* of the posts under way, in the channel */
    int64_t at[WEFTI_COMM_DEPTH];     /* when they were posted; for spans */
} wefti_sim_end;

/* A copy between spaces in one player's table of moves. `end`: of each post under way. */
typedef struct wefti_sim_copy {
    wefti_space tier;
    int64_t duration;
    uint32_t posted, waited;
    wefti_moment end[WEFTI_COMM_DEPTH];
} wefti_sim_copy;

/* What players with one program share. */
typedef struct wefti_sim_timing {
    const wefti_program *program;
    int64_t **duration;                      /* [routine][instruction] */
    const int64_t **of_step[WEFTI_SECTIONS]; /* [step]: of its routine */
} wefti_sim_timing;

/* The two streams of a level. */
typedef enum wefti_sim_lane {
    WEFTI_SIM_COLLECTIVES, /* within a mesh */
    WEFTI_SIM_MESSAGES,    /* between stages */
    WEFTI_SIM_LANES
} wefti_sim_lane;

/* A rank, or equal ranks: see players.c. */
typedef struct wefti_sim_rank {
    const wefti_program *program;
    const wefti_sim_timing *timing;
    int32_t rank, members; /* the lowest rank, and how many ranks */
    wefti_sim_end *ends;
    int32_t count;
    wefti_sim_copy *copies; /* [moves]: those of the program; 0: none of them is a copy */
    int32_t moves;
    wefti_moment copied[WEFTI_SPACES]; /* when the copies of a tier end that are posted */
    double slow;
    wefti_moment now;
    int32_t turn; /* how many posts the rank has made at this instant */
    wefti_moment stream[WEFTI_LEVELS_MAX][WEFTI_SIM_LANES]; /* when they are free */
    wefti_rank_time time;
    wefti_section section;
    int32_t repeat; /* of section NEXT */
    wefti_cursor at;
    int32_t code, joined_end; /* as in matching */
    int64_t began;            /* when the present step began */
    bool in_step;             /* it has begun */
    bool entered, blocked, done, failed;
    int32_t remembered; /* iteration at the remembered state */
} wefti_sim_rank;

typedef struct wefti_sim_repeat {
    int32_t reference;
    bool known, grown; /* a state is remembered; growth is known */
    uint64_t digest;
    int64_t at;                         /* the reference's clock in that state */
    int64_t *values, *growth, *scratch; /* of all moments, flat */
    int64_t count, kept, capacity, growth_capacity, scratch_capacity; /* kept: of `values` */
    int64_t passed, patience;
} wefti_sim_repeat;

typedef struct wefti_sim {
    const wefti_simulate_options *options;
    const wefti_match_classes *classes;   /* NULL: every rank has a program */
    const wefti_program *const *programs; /* of the ranks, or of the classes */
    wefti_arena *arena;
    wefti_sim_rank *ranks; /* [count]: the players, in the order of their lowest ranks */
    int32_t count, world;
    int32_t *player_of; /* [world] */
    int32_t *heap;      /* runnable players by (clock, rank) */
    int64_t heaped;
    wefti_sim_ready *ready; /* a heap, by the order in which they start */
    int64_t ready_count, ready_capacity;
    wefti_sim_channel **channels, *first, **last;
    uint64_t buckets;
    int64_t fail_at;     /* INT64_MAX: never */
    int64_t *processors; /* by wefti_model_processor: when they are free; NULL: each rank has its
                            own */
    int64_t events, iterations;
    wefti_sim_repeat repeat;
} wefti_sim;

/* processors.c. Before the players: whether ranks share processors. */
weft_status wefti_sim_share(wefti_sim *sim) WEFT_CHECKED;
/* Another rank has to be walked before this one can compute. */
bool wefti_sim_is_ahead(const wefti_sim *sim, const wefti_sim_rank *rank);
/* The time at which a kernel begins, or what a rank moves itself; takes the processor for its
 * duration. */
int64_t wefti_sim_begin(wefti_sim *sim, const wefti_sim_rank *rank, int64_t duration);

/* players.c: which ranks walk together. Sets ranks, count, player_of and each player's rank,
 * members, program and slow. */
weft_status wefti_sim_players(wefti_sim *sim) WEFT_CHECKED;
/* The ranks of the group in which a player's lowest rank makes a transfer: t->members many, in
 * `out`. */
void wefti_sim_group(const wefti_sim *sim, const wefti_sim_rank *player, const wefti_transfer *t,
                     wefti_group_place *room, int32_t *out);
/* How many times as long a transfer among these ranks takes. */
double wefti_sim_link_factor(const wefti_sim *sim, const int32_t *ranks, int32_t members);
/* setup.c */
weft_status wefti_sim_setup(wefti_sim *sim) WEFT_CHECKED;
/* play.c: until no rank can continue. */
weft_status wefti_sim_play(wefti_sim *sim) WEFT_CHECKED;
/* How often a rank runs a section. */
int32_t wefti_sim_runs(const wefti_sim *sim, const wefti_sim_rank *rank, wefti_section section);
/* repeat.c: when a rank begins another iteration. */
void wefti_sim_repeat_begin(wefti_sim *sim);
weft_status wefti_sim_repeat_at(wefti_sim *sim, const wefti_sim_rank *rank) WEFT_CHECKED;
void wefti_sim_repeat_free(wefti_sim *sim);

#endif
