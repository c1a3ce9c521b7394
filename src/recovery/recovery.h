/* The protocol by which a world goes on after a process has died, as pure state machines: two for
 * each rank, one for the scheduler. They hold no sockets, clocks or tensors, and call nothing.
 * An event goes in, and actions come out. docs/design/recovery.md has the tables of states, the
 * rules, and their guarantees. tests/launch/test_recovery.c explores all interleavings.
 *
 * Words: a *seat* is the place of a rank in its world. Another process can take it. The *holders*
 * of a seat are the ranks that have its state too: replicas, or buddies with a copy. A step is
 * *committed* when every rank, and every holder, has the reduced gradients of that step. A
 * *generation* counts how often the world has been mended; what belongs to an older one is void.
 *
 * A world may change its size: seats that stay empty are given up, and processes that were not
 * there get seats at the end. Then the seats have other numbers than in the world that was whole
 * last. Each process gives what it has of the state by its number there; sources have no meaning.
 */
#ifndef WEFTI_RECOVERY_H
#define WEFTI_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include "recovery/restart.h"
#include "recovery/vote.h"
#include "weft/status.h"

/* Where the state of a seat comes from: a rank, or one of these. */
enum {
    WEFTI_SOURCE_OWN = -1,  /* its process has it */
    WEFTI_SOURCE_DISK = -2, /* the last checkpoint, for all seats alike */
    WEFTI_SOURCE_ALL = -3,  /* all that have a state, which another world's seats divided */
};

/* Where a rank stands when its world is broken. */
typedef struct wefti_stand {
    int64_t step;         /* committed steps in its state; -1: it has no state */
    bool ready;           /* it has the reduced gradients of the next step, and updates by itself */
    const int32_t *holds; /* other ranks whose state this rank has as well: its replicas, and the
                             ward of which it has an up-to-date copy. Ascending, by their numbers in
                             the world that was whole last; borrowed */
    int32_t holds_count;
} wefti_stand;
bool wefti_stand_holds(const wefti_stand *at, int32_t rank);

/* ---- a rank: what it has of the state. Its session owns it ---- */

/* From STEPPING on it has a state. */
typedef enum wefti_survivor_phase {
    WEFTI_SURVIVOR_NEW,       /* has none, and may have to set up */
    WEFTI_SURVIVOR_TORN,      /* has none: a change of it has begun, and has not ended */
    WEFTI_SURVIVOR_STEPPING,  /* computes a step */
    WEFTI_SURVIVOR_READY,     /* has the gradients to update with; waits for the commit */
    WEFTI_SURVIVOR_SCATTERED, /* has updated its pieces of parameters, and has not gathered */
} wefti_survivor_phase;

/* Of the states of its wards; without wards it has none to lack. */
typedef enum wefti_survivor_copies {
    WEFTI_COPIES_HELD,
    WEFTI_COPIES_LACKING, /* on this rank: its wards give them */
    WEFTI_COPIES_STALE,   /* on all ranks: all take them before the next step */
} wefti_survivor_copies;

typedef struct wefti_survivor {
    int64_t step; /* updates that its state includes */
    wefti_survivor_phase phase;
    wefti_survivor_copies copies;
    bool borrowed; /* its state is of a repair that has not ended */
} wefti_survivor;

/* The state after `step` updates, without copies; or none. */
wefti_survivor wefti_survivor_begin(int64_t step);
wefti_survivor wefti_survivor_new(void);

static inline bool wefti_survivor_has_state(const wefti_survivor *s) {
    return s->phase >= WEFTI_SURVIVOR_STEPPING;
}
static inline bool wefti_survivor_keeps(const wefti_survivor *s) { /* its wards' states */
    return wefti_survivor_has_state(s) && s->copies == WEFTI_COPIES_HELD;
}
wefti_stand wefti_survivor_stands(const wefti_survivor *s); /* holds: for the caller to add */

/* Events of steps. */
void wefti_survivor_reduced(wefti_survivor *s); /* all gradients to update with are here */
void wefti_survivor_forget(wefti_survivor *s);  /* they are of no use */
void wefti_survivor_updates(wefti_survivor *s); /* all ranks are ready: the update begins */
void wefti_survivor_updated(wefti_survivor *s, bool scattered); /* and has ended */
void wefti_survivor_gathered(wefti_survivor *s);                /* the parameters are whole */
void wefti_survivor_changed(wefti_survivor *s); /* on all ranks, another way than by a step */
void wefti_survivor_copied(wefti_survivor *s);  /* it has its wards' states */

/* Events of a repair. */
typedef enum wefti_survivor_way {                         /* from the own state to the target's */
                                  WEFTI_SURVIVOR_STAYS,   /* has it; the next step is made again */
                                  WEFTI_SURVIVOR_UPDATES, /* one update is lacking: another rank has
                                                             seen its commit */
                                  WEFTI_SURVIVOR_TAKES,   /* has no state: takes it from other ranks
                                                           */
                                  WEFTI_SURVIVOR_CANNOT   /* it lacks more than it can make */
} wefti_survivor_way;
void wefti_survivor_halt(wefti_survivor *s);
wefti_survivor_way wefti_survivor_mend(wefti_survivor *s, int64_t target);
void wefti_survivor_took(wefti_survivor *s, int64_t target);
/* From files, or in a world of another size. `borrowed`: the rank has no other state. */
void wefti_survivor_moved(wefti_survivor *s, int64_t target, bool borrowed);
void wefti_survivor_settled(wefti_survivor *s, bool resized); /* it has all of the target */
/* Some rank is scattered: all gather, also those that have gathered already. */
void wefti_survivor_scatter(wefti_survivor *s);
void wefti_survivor_go(wefti_survivor *s); /* the world is whole */

/* ---- a rank: which words of the scheduler count. Its member owns it ---- */

/* A repair is under way behind ASKS. Up to ANSWERED no world goes on. */
typedef enum wefti_round_phase {
    WEFTI_ROUND_STEPS,      /* the world makes steps */
    WEFTI_ROUND_ASKS,       /* this rank cannot go on, and waits for a halt */
    WEFTI_ROUND_HALTED,     /* the world is broken; the rank has not asked for a repair */
    WEFTI_ROUND_STANDS,     /* has asked, and is to tell where it stands */
    WEFTI_ROUND_STOOD,      /* has told */
    WEFTI_ROUND_ANSWERED,   /* the target is here, and is to be taken */
    WEFTI_ROUND_ASKS_AGAIN, /* the rank cannot come to the target, and waits for another halt */
    WEFTI_ROUND_MENDS,      /* comes to the state of the target */
    WEFTI_ROUND_WHOLE,      /* has it, and is to say so */
    WEFTI_ROUND_SAID,       /* has said so, and waits for the others */
    WEFTI_ROUND_PHASES
} wefti_round_phase;

/* Words of the scheduler, and what the rank does. */
typedef enum wefti_round_event {
    WEFTI_HEARS_HALT,
    WEFTI_HEARS_MEND,
    WEFTI_HEARS_GO,
    WEFTI_DOES_ASK,
    WEFTI_DOES_STAND,
    WEFTI_DOES_TAKE,
    WEFTI_DOES_REACH, /* it has all of the target */
    WEFTI_DOES_SAY,
    WEFTI_ROUND_EVENTS
} wefti_round_event;

typedef struct wefti_round {
    wefti_round_phase phase;
    int64_t generation;
} wefti_round;

wefti_round wefti_round_begin(int64_t generation);
wefti_round wefti_round_newcomer(void);
/* False: it means nothing in the present phase, or is of another generation: not of a later one for
 * HALT, not of the round's own for the others. */
bool wefti_round_happens(wefti_round *r, wefti_round_event event, int64_t generation);
static inline bool wefti_round_is_mending(const wefti_round *r) {
    return r->phase > WEFTI_ROUND_ASKS;
}
static inline bool wefti_round_is_halted(const wefti_round *r) {
    return r->phase >= WEFTI_ROUND_HALTED && r->phase <= WEFTI_ROUND_ANSWERED;
}

/* ---- the world ---- */

typedef enum wefti_mending_phase {
    WEFTI_MENDING_NOT,       /* the world makes steps */
    WEFTI_MENDING_COUNTING,  /* waits for processes in empty seats, and for all standings */
    WEFTI_MENDING_GIVING,    /* waits until all have the target */
    WEFTI_MENDING_GATHERING, /* this scheduler is new: waits for the ranks of the one before */
    WEFTI_MENDING_PHASES
} wefti_mending_phase;

typedef struct wefti_seat {
    bool filled, stood, whole;
    bool settled;   /* while gathering: it has come back, or will not */
    wefti_stand at; /* once it stood */
    int32_t source; /* once there is a target */
    int32_t was;    /* its number in the world that was whole last; -1: it was not there */
} wefti_seat;

typedef struct wefti_mending {
    wefti_mending_phase phase;
    int64_t generation, target;
    int64_t saved;       /* the step of the last whole checkpoint; 0: start values */
    int64_t least;       /* generations that begin are above this one */
    bool broken;         /* while gathering: ranks that came back are not all amid steps alike */
    int32_t size, whole; /* seats now, and in the world that was whole last */
    wefti_seat *seats;   /* [size]; borrowed, with room for those that come */
} wefti_mending;

typedef enum wefti_mending_action {
    WEFTI_MENDING_HALT = 1,     /* send `generation` to all filled seats that have not stood */
    WEFTI_MENDING_MEND = 2,     /* send target and sources to all seats */
    WEFTI_MENDING_GO = 4,       /* send `generation` to all seats */
    WEFTI_MENDING_GATHERED = 8, /* all seats are settled; before a HALT, if there is one */
} wefti_mending_action;

/* A world of which all seats are filled and make steps. */
void wefti_mending_begin(wefti_mending *w, int32_t size, wefti_seat *seats, int64_t generation);

/* A world of which this scheduler knows the size only: the scheduler before it has died. `least` is
 * at least as high as each generation that the scheduler before may have begun. A process may know
 * such a generation and come back after others have gone on. */
void wefti_mending_gather(wefti_mending *w, int32_t size, wefti_seat *seats, int64_t least);

/* Events. Each returns wefti_mending_action bits. */
/* While gathering: the rank in this seat comes back, of its generation. `mends`: it is not in the
 * middle of steps. `is_new`: it took the seat after the world was whole last. Or nobody comes: its
 * process has died, or does not come in time. */
unsigned wefti_mending_returned(wefti_mending *w, int32_t seat, int64_t generation, bool mends,
                                bool is_new);
unsigned wefti_mending_missing(wefti_mending *w, int32_t seat);
unsigned wefti_mending_died(wefti_mending *w, int32_t seat);
/* A rank comes back over a new connection: what was said on the old one may be lost. A world that
 * is being mended, for the scheduler or (`mends`) for the rank, begins again. */
unsigned wefti_mending_rejoined(wefti_mending *w, bool mends);
unsigned wefti_mending_filled(wefti_mending *w, int32_t seat);
/* WEFT_E_CORRUPT, with both named, if a rank cannot come to the furthest step: its update needs
 * ranks that have made theirs. The mending then takes all states from the disk. */
weft_status wefti_mending_stood(wefti_mending *w, int32_t seat, int64_t generation, wefti_stand at,
                                unsigned *out_actions) WEFT_CHECKED;
unsigned wefti_mending_whole(wefti_mending *w, int32_t seat, int64_t generation);

/* Gives up the empty seats while the world counts; the others keep their order. The actions are
 * those of wefti_mending_stood, since nobody may be awaited any more. A world without processes
 * keeps its seats. */
weft_status wefti_mending_shrink(wefti_mending *w, unsigned *out_actions) WEFT_CHECKED;
/* While the world counts: a rank that is too many leaves. Its seat is empty, to be given up. */
void wefti_mending_dismiss(wefti_mending *w, int32_t seat);
/* One more seat at the end, with a process that was not there: a generation begins. */
unsigned wefti_mending_grow(wefti_mending *w);
/* Whether seats have other numbers than in the world that was whole last, or are more or fewer. */
bool wefti_mending_is_resized(const wefti_mending *w);

#endif
