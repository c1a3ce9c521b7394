/* A connection to the scheduler, kept by a thread of its own, whatever it is for.
 *
 * caller.c and thread.c call the scheduler, prove the secret, and read frames. A protocol decides
 * what the two sides say to each other. Each protocol is a table of states in a file of its own:
 * member_states.c, report.c, watch.c and ask.c. docs/design/launch.md shows the tables. */
#ifndef WEFTI_MEMBER_CALLER_H
#define WEFTI_MEMBER_CALLER_H

#include <pthread.h>

#include "launch/member/member.h"
#include "launch/wire/wire.h"

typedef struct wefti_caller wefti_caller;

/* What a caller does in one state. All functions run under the lock. NULL: nothing. */
typedef struct wefti_protocol_state {
    const char *name;
    bool calls; /* calls the scheduler while there is no connection, until the deadline */
    bool again; /* those calls are for a scheduler that was there before */
    bool deaf;  /* ignores every frame that has no function below; else such a frame is an error */
    weft_status (*ask)(wefti_caller *c); /* the connection is open: says the first words */
    /* In each turn, once the first words are said. */
    weft_status (*say)(wefti_caller *c, int64_t now);
    int64_t (*next)(const wefti_caller *c); /* when it has something to say */
    weft_status (*hear[WEFTI_FRAME_KINDS])(wefti_caller *c, const wefti_frame *frame);
    void (*lose)(wefti_caller *c); /* the connection broke */
    void (*gone)(wefti_caller *c); /* no process listens at the address; of two, at either */
    void (*silent)(wefti_caller *c, int64_t silent_ns); /* since the last frame; no deadline then */
} wefti_protocol_state;

typedef struct wefti_protocol {
    const wefti_protocol_state *states;
    int count, failed;               /* `failed`: the state after wefti_caller_fail */
    void (*broken)(wefti_caller *c); /* called on entering it */
} wefti_protocol;

struct wefti_caller {
    const wefti_protocol *protocol;
    char *scheduler, *interface, *job;
    char *standby; /* the second address; "": there is none */
    wefti_secret secret;
    wefti_tls *tls; /* NULL: none is wanted */
    int64_t join_ns, heartbeat_ns;
    uint64_t launcher; /* as in wefti_member_options */
    bool outlives;     /* as in wefti_member_options */
    int alarm;         /* an eventfd that ends the thread's poll */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows, and of the protocol's own data */
    pthread_cond_t changed;
    int state;                 /* row of the protocol's table; 0 at first */
    wefti_abort_reason reason; /* of the state `failed` */
    bool stopping;
    char trouble[256]; /* why the last call failed */
    /* the thread's own */
    enum {
        WEFTI_LINE_OFF,
        WEFTI_LINE_CALLING, /* TCP connects */
        WEFTI_LINE_SHAKING, /* both sides prove the secret */
        WEFTI_LINE_ASKED,   /* the first words are said */
    } connection;
    bool at_standby;  /* the address that is called, or was called last */
    bool answered;    /* a frame came over this connection */
    bool refused[2];  /* at the last call nobody listened: at the scheduler's address, the other */
    int64_t shake_ns; /* for connecting and the handshake */
    wefti_wire link;
    int64_t deadline_ns; /* of calling, and of an answer to the first words */
    int64_t call_ns, heard_ns, looked_ns;
    int64_t pause_ns; /* between two calls */
    int64_t
        absent_ns; /* since when the interface or address to call from is missing; 0: it is not */
    uint64_t dice;
};

/* --- caller.c --- */

/* Starts the thread. On failure the caller is released already. */
weft_status wefti_caller_begin(wefti_caller *c, const wefti_protocol *protocol,
                               const wefti_member_options *options) WEFT_CHECKED;
/* REGISTER: which ranks this launcher starts. */
weft_status wefti_caller_say_ranks(wefti_caller *c, const wefti_span *ranks, bool waits);
void wefti_caller_end(wefti_caller *c);  /* ends the thread and the connection */
void wefti_caller_ring(wefti_caller *c); /* the thread has something to do */
/* Under the lock, until a change; false: the time is up. */
bool wefti_caller_wait(wefti_caller *c, int64_t until_ns);
/* Under the lock: a row of the table, and all that wait learn of it. */
void wefti_caller_change(wefti_caller *c, int state);
static inline const wefti_protocol_state *wefti_caller_row(const wefti_caller *c) {
    return &c->protocol->states[c->state];
}
/* Under the lock. The first failure of a caller that still calls counts. */
void wefti_caller_fail(wefti_caller *c, weft_status status, int32_t failed, const char *text);
/* The reason of the state `failed`, as this thread's error. */
weft_status wefti_caller_reason(const wefti_caller *c);
/* For tables: hears ABORT or REFUSED, and fails with that reason; hears a frame and ignores it. */
weft_status wefti_caller_hear_failure(wefti_caller *c, const wefti_frame *frame);
weft_status wefti_caller_ignore(wefti_caller *c, const wefti_frame *frame);
/* A connection was lost in a state that calls again: new deadline, and the first call soon. */
void wefti_caller_call_again(wefti_caller *c);
static inline bool wefti_caller_has_standby(const wefti_caller *c) {
    return c->standby && *c->standby;
}
/* The address that is called, or was called last. */
static inline const char *wefti_caller_place(const wefti_caller *c) {
    return c->at_standby ? c->standby : c->scheduler;
}
/* "the scheduler at A", or "the schedulers at A and B", for messages. */
enum { WEFTI_CALLER_PLACES = 600 };
char *wefti_caller_places(const wefti_caller *c, char out[WEFTI_CALLER_PLACES]);

/* --- thread.c --- */

void *wefti_caller_run(void *caller);
weft_status wefti_caller_hear(wefti_caller *c, const wefti_frame *frame) WEFT_CHECKED;
void wefti_caller_lose(wefti_caller *c, const char *why);

extern const wefti_protocol wefti_protocol_member, wefti_protocol_report, wefti_protocol_watch,
    wefti_protocol_question;

#endif
