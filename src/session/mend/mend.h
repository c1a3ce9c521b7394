/* A world is mended, and a session of it goes on: the order of a repair, which trainings and
 * programs share. docs/design/recovery.md has the protocol.
 *
 * A round begins with a new communicator, after a process has died and another one has taken its
 * place. The ranks tell each other where they stand. Newcomers set up, the sessions of the others
 * move to the new communicator, and all come to one state. If a further process dies meanwhile, the
 * next round begins. */
#ifndef WEFTI_SESSION_MEND_H
#define WEFTI_SESSION_MEND_H

#include "recovery/recovery.h"
#include "session/agree.h"
#include "session/session.h"

typedef struct wefti_repair wefti_repair;
typedef weft_status wefti_repair_call(void *context, wefti_repair *m);

/* What the owner of the session does, in this order. Any may be NULL. All are collective but drop.
 */
typedef struct wefti_repair_calls {
    wefti_repair_call *meet;    /* all ranks, which know m->ranks */
    wefti_repair_call *begin;   /* all ranks are new: a job begins. Nothing else is called then */
    wefti_repair_call *arrive;  /* newcomers: wefti_session_arrive of m->session, which it sets */
    wefti_repair_call *welcome; /* the others, before they answer it */
    wefti_repair_call *check;   /* all, if there are newcomers */
    wefti_repair_call *read;    /* nobody has the state of some rank. Sessions have start values */
    wefti_repair_call *settled; /* all have the state after m->mend.target updates */
    /* In place of all from `arrive` on: the world has another size. Sets m->session, to one of that
     * size, with the state after m->mend.target updates, or one that it has read. */
    wefti_repair_call *resize;
    /* Of each round, not collective: it was the last one, or the session of before goes on. Sets
     * m->session if `resize` did. */
    void (*end_round)(void *context, wefti_repair *m, bool whole);
    void (*drop)(void *context); /* a newcomer's round has failed: it has no session */
} wefti_repair_calls;

typedef enum wefti_repair_place {
    WEFTI_REPAIR_BROKEN, /* the world waits to be mended */
    WEFTI_REPAIR_MENDED, /* it has its new communicator; m->mend is known */
    WEFTI_REPAIR_MET     /* the ranks know of each other */
} wefti_repair_place;

/* Set the first members, up to `is_new`. The others belong to the calls below. */
struct wefti_repair {
    weft_world *world;
    weft_session *session; /* NULL: none yet */
    const wefti_repair_calls *calls;
    void *context;
    bool is_new; /* this process takes the place of a rank */
    wefti_repair_place place;
    wefti_mend mend;
    wefti_agreement *agreement; /* of this round */
    wefti_survivor *ranks;      /* [size] what each has of the state; NEW: it has to set up */
    int32_t size, newcomers;
    int32_t teller; /* a rank that lives, with the target's state if one has it; -1: all are new */
    bool ended;     /* the world could not be mended */
};

/* Whether a world can be mended after `status`. agreement: of the session's owner; may be NULL. */
bool wefti_repair_can(const weft_world *world, const wefti_agreement *agreement,
                      weft_status status);
/* Rounds until the world is whole, from m->place on. A failure has ended the world. */
weft_status wefti_repair_run(wefti_repair *m) WEFT_CHECKED;
/* The first parts of a round alone: from BROKEN to MENDED, from there to MET. */
weft_status wefti_repair_mend(wefti_repair *m) WEFT_CHECKED;
weft_status wefti_repair_meet(wefti_repair *m) WEFT_CHECKED;
void wefti_repair_free(wefti_repair *m); /* what it has, not m itself */

/* ---- program.c: programs that use sessions themselves ----
 *
 * Their calls mend the world by themselves, and return WEFT_E_RECOVERED then. */

/* Of a new session with a world. In a newcomer it meets the other ranks, which go on. */
weft_status wefti_session_enter(weft_session *s) WEFT_CHECKED;
/* After a failure of a newcomer's create or add: whether a process has died meanwhile, so that the
 * world was mended once more, and what failed is to be tried again. Else *status has the failure.
 */
bool wefti_session_meets_again(weft_session *s, weft_status *status);
/* A new session has its devices: the program gives it its start. */
weft_status wefti_session_began(weft_session *s) WEFT_CHECKED;
/* In a newcomer, in place of both: WEFT_E_RECOVERED once it has its state. */
weft_status wefti_session_take_seat(weft_session *s) WEFT_CHECKED;
/* The result of a public call that gave `status`: WEFT_E_RECOVERED if the world was mended. */
weft_status wefti_session_settle(weft_session *s, weft_status status) WEFT_CHECKED;
void wefti_session_leave(weft_session *s);

#endif
