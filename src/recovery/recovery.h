/* The protocol by which a world goes on after a process has died, as two pure state machines: one
 * for each rank, one for the scheduler. They hold no sockets, clocks or tensors, and call nothing.
 * An event goes in, and what to do comes out. docs/design/recovery.md has the tables of states, the
 * rules, and what they promise; tests/launch/test_recovery.c explores all interleavings.
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

/* What a rank says of itself when its world is broken. */
typedef struct wefti_standing_report {
    int64_t step; /* committed steps in its state; -1: it has no state */
    bool ready;   /* it has the reduced gradients of the next step, also those of its wards */
    bool copies;  /* it has its wards' states, of the same step; true without wards */
} wefti_standing_report;

/* ---- a rank ---- */

typedef enum wefti_survivor_phase {
    WEFTI_SURVIVOR_STEPPING, /* computes a step */
    WEFTI_SURVIVOR_READY,    /* has the gradients to update with; waits for the commit */
    WEFTI_SURVIVOR_HALTED,   /* has given up the step, and told where it stands */
    WEFTI_SURVIVOR_MENDING,  /* takes what it lacks of the target */
    WEFTI_SURVIVOR_WHOLE,    /* has all of the target; waits for the others */
    WEFTI_SURVIVOR_PHASES
} wefti_survivor_phase;

typedef struct wefti_survivor {
    wefti_survivor_phase phase;
    bool wards; /* it keeps copies for other seats */
    int64_t generation;
    wefti_standing_report at;
    int64_t target;                 /* while it mends */
    bool lacks_state, lacks_copies; /* of the target */
    bool borrowed;                  /* its state is of a world that is not whole yet */
} wefti_survivor;

/* What the caller does after an event, in this order. */
typedef enum wefti_recovery_action {
    WEFTI_RECOVERY_ABANDON = 1, /* end all transfers of older generations */
    WEFTI_RECOVERY_UPDATE = 2,  /* update own state and copies with the reduced gradients */
    WEFTI_RECOVERY_FORGET = 4,  /* drop the reduced gradients: the step is made again */
    WEFTI_RECOVERY_LOAD = 8,    /* read own state and copies from the last checkpoint */
    WEFTI_RECOVERY_GIVE = 16,   /* send states to the ranks that lack them */
    WEFTI_RECOVERY_SAY_READY = 32,
    WEFTI_RECOVERY_SAY_STANDING = 64, /* send survivor.at and its generation to the scheduler */
    WEFTI_RECOVERY_SAY_WHOLE = 128,
} wefti_recovery_action;

/* A rank that begins at a step with all that it needs; or the process that takes an empty seat. */
wefti_survivor wefti_survivor_begin(int64_t step, int64_t generation, bool wards);
wefti_survivor wefti_survivor_newcomer(bool wards);

/* Events. Each returns wefti_recovery_action bits; 0 for an event that means nothing in the present
 * phase, such as one of an older generation. */
unsigned wefti_survivor_reduced(wefti_survivor *s);   /* all gradients to update with are here */
unsigned wefti_survivor_committed(wefti_survivor *s); /* all ranks are ready */
unsigned wefti_survivor_halt(wefti_survivor *s, int64_t generation);
/* `gives`: other seats take states or copies from this rank. */
unsigned wefti_survivor_mend(wefti_survivor *s, int64_t generation, int64_t target, int32_t source,
                             bool gives);
unsigned wefti_survivor_took_state(wefti_survivor *s);
unsigned wefti_survivor_took_copies(wefti_survivor *s);
unsigned wefti_survivor_go(wefti_survivor *s, int64_t generation);

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
    bool settled;             /* while gathering: it has come back, or will not */
    wefti_standing_report at; /* once it stood */
    int32_t source;           /* once there is a target */
    int32_t was; /* its number in the world that was whole last; -1: it was not there */
} wefti_seat;

/* Who holds the state of seat i besides itself: holder[first[i]] up to first[i + 1]. */
typedef struct wefti_holders {
    const int32_t *first, *holder; /* [size + 1], [first[size]] */
    bool copies;                   /* holders are buddies with copies, not replicas */
} wefti_holders;

typedef struct wefti_mending {
    wefti_mending_phase phase;
    int64_t generation, target;
    int64_t saved;       /* the step of the last whole checkpoint; 0: start values */
    int64_t least;       /* generations that begin are above this one */
    bool broken;         /* while gathering: ranks that came back are not all amid steps alike */
    int32_t size, whole; /* seats now, and in the world that was whole last */
    wefti_seat *seats;   /* [size]; borrowed, with room for those that come */
    wefti_holders holders;
} wefti_mending;

typedef enum wefti_mending_action {
    WEFTI_MENDING_HALT = 1,     /* send `generation` to all filled seats that have not stood */
    WEFTI_MENDING_MEND = 2,     /* send target and sources to all seats */
    WEFTI_MENDING_GO = 4,       /* send `generation` to all seats */
    WEFTI_MENDING_GATHERED = 8, /* all seats are settled; before a HALT, if there is one */
} wefti_mending_action;

/* A world of which all seats are filled and make steps. */
void wefti_mending_begin(wefti_mending *w, int32_t size, wefti_seat *seats, wefti_holders holders,
                         int64_t generation);

/* A world of which this scheduler knows nothing but the size: the one before has died. `least` is
 * not below any generation that the one before may have begun: a process may know it that does not
 * come back before others go on. */
void wefti_mending_gather(wefti_mending *w, int32_t size, wefti_seat *seats, wefti_holders holders,
                          int64_t least);

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
/* Fails if survivors contradict each other, which a correct rank never does: WEFT_E_CORRUPT, with
 * both named. The mending then takes all states from the disk. */
weft_status wefti_mending_stood(wefti_mending *w, int32_t seat, int64_t generation,
                                wefti_standing_report at, unsigned *out_actions) WEFT_CHECKED;
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

/* Once there is a target: whether seat `from` sends the state of seat `of` to seat `to`, which is
 * `of` itself (a newcomer's state) or a holder without copies (a newcomer's copies). */
bool wefti_mending_gives(const wefti_mending *w, int32_t from, int32_t of, int32_t to);

#endif
