/* A member: what its thread (member_states.c) and the program that uses the world share. */
#ifndef WEFTI_MEMBER_STATE_H
#define WEFTI_MEMBER_STATE_H

#include <stdatomic.h>

#include "launch/member/caller.h"
#include "recovery/recovery.h"

typedef enum wefti_member_state {                       /* rows of the table */
                                  WEFTI_MEMBER_JOINING, /* no rank yet */
                                  WEFTI_MEMBER_IN,      /* has its rank */
                                  WEFTI_MEMBER_LOST, /* has its rank, and calls a scheduler that is
                                                        lost */
                                  WEFTI_MEMBER_PARTED, /* the scheduler has said goodbye */
                                  WEFTI_MEMBER_FAILED, /* `reason` says why */
} wefti_member_state;

typedef struct wefti_member_entry {
    uint64_t number; /* 0: none */
    unsigned char *data;
    size_t bytes;
} wefti_member_entry;

/* A word to the scheduler. After a loss one that was said is due again. */
typedef enum wefti_word {
    WEFTI_WORD_NONE,
    WEFTI_WORD_DUE,
    WEFTI_WORD_SAID,
    WEFTI_WORD_HEARD
} wefti_word;

/* The mending of a broken world. `round` is its one state. What else is a boolean here is no state:
 * a copy of the round for threads without the lock, what this process is, what MEND says. */
typedef struct wefti_member_mending {
    wefti_round round;
    atomic_bool halted;    /* wefti_round_is_halted(&round) */
    bool came;             /* to a world that can be mended, after its begin */
    wefti_word armed;      /* ARM; HEARD: and ARMED has come */
    int breaking;          /* threads that break the communicator */
    wefti_stand at;        /* borrowed from the caller, while wefti_member_mend waits */
    int64_t target;        /* of MEND */
    bool resized;          /* of MEND */
    int32_t *source, *was; /* of MEND: [size] each, one block */
    wefti_arm arm;
    wefti_halt halt; /* the last */
} wefti_member_mending;

typedef struct wefti_member_world {
    wefti_vote_place place; /* generation 0: none */
    wefti_seated *seats;    /* [place.size] */
} wefti_member_world;

struct wefti_member {
    wefti_caller caller;
    bool asked[2]; /* the scheduler; the one that stands by */
    wefti_identity identity;
    wefti_join join; /* as it is sent; with rank and generation once they are known */
    int64_t leave_ns;
    wefti_world_message placed;
    int32_t *host;
    wefti_member_world whole, next; /* of WORLD or GO, and of the last MEND: world.c */
    wefti_comm *comm;
    wefti_position *position;
    wefti_member_entry last, now; /* kept until the next: a new scheduler may need them */
    wefti_word now_word;
    void *entries; /* where the answer to `now` goes; NULL: it is there */
    char *giving_up;
    weft_status fail_status;
    int32_t failed; /* the rank that it names */
    wefti_word fail_word, leave_word;
    const wefti_call_records *records; /* said when leaving; borrowed until the end */
    wefti_member_mending mend;
    int64_t placed_ns;
    int64_t beat_ns; /* the last heartbeat; 0: one is due */
};

/* With or without a connection to the scheduler. */
static inline bool wefti_member_is_in(const wefti_member *m) {
    return m->caller.state == WEFTI_MEMBER_IN || m->caller.state == WEFTI_MEMBER_LOST;
}
/* FAIL is due. Under the lock. */
void wefti_member_accuse(wefti_member *m, weft_status status, int failed, const char *message);

/* mending.c, under the lock. What a member that is in hears and says of it. */
weft_status wefti_member_hear_halt(wefti_caller *c, const wefti_frame *frame);
/* WORLD of a newer generation, when it comes back to a scheduler, is a HALT. */
void wefti_member_halt(wefti_member *m, const wefti_halt *said);
/* GO. False: it has not said WHOLE. */
bool wefti_member_goes_on(wefti_member *m);
weft_status wefti_member_hear_mend(wefti_caller *c, const wefti_frame *frame);
weft_status wefti_member_hear_go(wefti_caller *c, const wefti_frame *frame);
weft_status wefti_member_hear_armed(wefti_caller *c, const wefti_frame *frame);
weft_status wefti_member_say_mending(wefti_member *m) WEFT_CHECKED;
/* It has its place for the first time. */
weft_status wefti_member_begin_mending(wefti_member *m) WEFT_CHECKED;
/* Breaks the present communicator, without the lock meanwhile. */
void wefti_member_break_locked(wefti_member *m, int failed, const char *message);
/* No thread breaks any communicator but the present one. */
void wefti_member_settle(wefti_member *m);
/* The reason of the last HALT, as this thread's error. */
weft_status wefti_member_halt_reason(const wefti_member *m);

/* world.c, under the lock */
void wefti_member_forget_worlds(wefti_member *m);
/* A world begins, which is not whole yet: takes `seats` over. */
void wefti_member_is_next(wefti_member *m, wefti_vote_place place, wefti_seated *seats);
void wefti_member_is_whole(wefti_member *m);
/* What JOIN says of its worlds, and what goes before it. */
weft_status wefti_member_say_world(wefti_member *m) WEFT_CHECKED;
/* A scheduler halts the world, and says which one was whole last. If this member has lost that GO,
 * it hears it now. False: it does not know that world. */
bool wefti_member_returns_to(wefti_member *m, uint64_t whole);

#endif
