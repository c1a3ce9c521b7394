/* Which ranks of a world live, as a pure state machine: no sockets, no clock. An event that needs
 * the time has it as an argument. It returns an action, which launch/scheduler/watch.c carries out
 * and puts into words. tests/launch/test_liveness.c sends it events.
 *
 * Each rank has one state (wefti_life_state) and a table of events, in liveness.c. Beside it are
 * facts that a rank has said, which any state may have.
 *
 * *Silence.* A rank that is not heard of for `silence_ns` is stopped.
 *
 * *Waits.* If a rank waits for longer than `wait_ns`, the machine names the culprits. These are the
 * ranks of the first of these groups that has any:
 * 1. ranks that compute or have left,
 * 2. ranks that wait in another transfer than most,
 * 3. ranks that have done fewer transfers than others.
 * The machine names them earlier if a rank has left, all others wait, and no bytes reach any of
 * them.
 *
 * *Blame.* A rank whose connection to another rank has closed may give up before the scheduler
 * sees that the other process has died: these are different connections. So the word of a blamed
 * rank counts more. For a moment the machine awaits its death or its own failure, which is then why
 * the job fails. If neither comes, nobody is dead: only the connection between the two was lost.
 * The world makes new connections if it can be mended, or else begins again. If it may do neither,
 * the job fails for the reason of the rank that blames, and may be tried again. */
#ifndef WEFTI_SCHEDULER_LIVENESS_H
#define WEFTI_SCHEDULER_LIVENESS_H

#include "launch/wire/wire.h"

/* The process of a seat. In order: it runs, has left, is dead. */
typedef enum wefti_life_state {
    WEFTI_LIFE_RANK,
    WEFTI_LIFE_NEWCOMER,      /* took an empty seat, and its world is not whole yet */
    WEFTI_LIFE_LEFT,          /* after a failure, of the job or of itself */
    WEFTI_LIFE_PARTED,        /* left before the job failed */
    WEFTI_LIFE_NEWCOMER_DIED, /* and has its seat yet */
    WEFTI_LIFE_DEAD,
    WEFTI_LIFE_AWAITED /* dead, and another process is being started for the seat */
} wefti_life_state;
typedef enum wefti_life_event {
    WEFTI_LIFE_DIES,
    WEFTI_LIFE_LEAVES,
    WEFTI_LIFE_PARTS,   /* has left, and nothing has failed */
    WEFTI_LIFE_EMPTIES, /* the world is mended without it */
    WEFTI_LIFE_AWAITS,  /* another process follows */
    WEFTI_LIFE_AWAITS_NONE,
    WEFTI_LIFE_FILLS,  /* another process comes */
    WEFTI_LIFE_GOES_ON /* the world is whole */
} wefti_life_event;

/* How fast a rank makes steps, as its heartbeats say. */
typedef struct wefti_pace {
    int64_t step, since_ns; /* the last step, and when it was first heard of */
    int64_t pace_ns;        /* that a step takes, the last ones above all; 0: not known */
} wefti_pace;

typedef struct wefti_life {
    wefti_life_state state;
    bool gave_up;     /* it has said that it failed, since the last halt */
    int64_t heard_ns; /* last heartbeat, or connection */
    wefti_standing standing;
    int64_t said_ns; /* when it said so; 0: it has not */
    wefti_pace pace;
} wefti_life;

typedef struct wefti_liveness {
    wefti_life *ranks; /* [room of the owner] from `count` on: state RANK, and never heard of */
    int32_t count;     /* ranks of the world; 0: it is forming */
    int64_t silence_ns, wait_ns;
    int64_t looked_ns; /* the last check */
    int32_t staying;   /* where to look first for a rank that has not left */
    struct {
        int64_t until_ns;          /* 0: no word is awaited */
        int32_t cut_off;           /* the rank that has lost a connection; -1: none has */
        wefti_abort_reason reason; /* names the blamed rank */
    } blame;
} wefti_liveness;

/* A world begins, or ends (count 0). All are ranks, and are heard of now. */
void wefti_liveness_begin(wefti_liveness *l, int32_t count, int64_t now_ns);
/* One more rank, a newcomer, in a world for which there is room. */
void wefti_liveness_grow(wefti_liveness *l, int64_t now_ns);
/* The first `count` ranks are left. */
void wefti_liveness_shrink(wefti_liveness *l, int32_t count);

/* The table: an event that a state does not know changes nothing. */
void wefti_life_happens(wefti_life *rank, wefti_life_event event);
static inline bool wefti_is_dead(const wefti_life *rank) {
    return rank->state >= WEFTI_LIFE_NEWCOMER_DIED;
}
static inline bool wefti_has_left(const wefti_life *rank) {
    return rank->state == WEFTI_LIFE_LEFT || rank->state == WEFTI_LIFE_PARTED;
}
static inline bool wefti_is_new(const wefti_life *rank) {
    return rank->state == WEFTI_LIFE_NEWCOMER || rank->state == WEFTI_LIFE_NEWCOMER_DIED;
}

/* A heartbeat says where the rank stands. */
void wefti_liveness_beat(wefti_liveness *l, int32_t rank, const wefti_standing *at, int64_t now_ns);
/* Another process takes the seat. */
void wefti_liveness_fill(wefti_liveness *l, int32_t rank, int64_t now_ns);
/* The world is broken: what ranks said before is void. */
void wefti_liveness_halt(wefti_liveness *l);
/* The world is whole: nobody waits for the rank that died any more. */
void wefti_liveness_go(wefti_liveness *l, int64_t now_ns);

/* A rank gives up. */
typedef struct wefti_last_word {
    int32_t rank;
    wefti_abort_reason said; /* `failed` as it is to be reported */
    bool of_itself;          /* else it blames another rank */
    bool runs;               /* the world does */
    bool halted;             /* the world waits for processes */
    bool mendable;           /* with this rank */
} wefti_last_word;
/* True: the job ends for blame.reason, unless the world makes new connections. */
bool wefti_liveness_gave_up(wefti_liveness *l, const wefti_last_word *word, int64_t now_ns);
static inline bool wefti_liveness_awaits_word(const wefti_liveness *l) {
    return l->blame.until_ns != 0;
}
/* The time for the word is up: blame.reason counts. */
static inline bool wefti_liveness_is_word_late(const wefti_liveness *l, int64_t now_ns) {
    return wefti_liveness_awaits_word(l) && now_ns > l->blame.until_ns;
}

/* A rank says that it leaves. True: no word can come any more, and blame.reason counts. */
bool wefti_liveness_left(wefti_liveness *l, int32_t rank);
/* The same, and the job has not failed. True: all have left. */
bool wefti_liveness_parted(wefti_liveness *l, int32_t rank);

enum { WEFTI_LATE_NAMED = 8 };
typedef struct wefti_late {
    enum {
        WEFTI_LATE_NONE,
        WEFTI_LATE_SILENT, /* `rank` is stopped, or its host or network is down */
        WEFTI_LATE_WAITS   /* `rank` waits in vain */
    } kind;
    int32_t rank;
    int32_t culprits;                /* that keep the others waiting */
    int32_t named[WEFTI_LATE_NAMED]; /* the first of them */
} wefti_late;
/* Called again and again while the world runs. After a pause of the caller all ranks are heard of
 * anew. halted: the world waits for processes, and its ranks for the world. */
wefti_late wefti_liveness_check(wefti_liveness *l, bool halted, int64_t now_ns);

#endif
