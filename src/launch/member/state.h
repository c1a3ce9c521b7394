/* What a member knows, shared by its thread (thread.c) and the one that uses the world. */
#ifndef WEFTI_MEMBER_STATE_H
#define WEFTI_MEMBER_STATE_H

#include <pthread.h>

#include "launch/member/member.h"
#include "launch/wire/wire.h"

typedef enum wefti_member_state {
    WEFTI_MEMBER_JOINING,
    WEFTI_MEMBER_IN,
    WEFTI_MEMBER_FAILED, /* status and text say why */
    WEFTI_MEMBER_PARTED, /* the scheduler has said goodbye */
} wefti_member_state;

typedef struct wefti_member_entry {
    uint64_t number; /* 0: none */
    unsigned char *data;
    size_t bytes;
} wefti_member_entry;

struct wefti_member {
    char *scheduler, *interface;
    wefti_secret secret;
    wefti_tls *tls;  /* NULL: none is wanted */
    wefti_join join; /* as it is sent; with rank and generation once they are known */
    int64_t join_ns, leave_ns;
    int alarm; /* an eventfd that ends the thread's poll */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    wefti_member_state state;
    wefti_abort_reason reason;
    wefti_world_message placed;
    int32_t *host;
    wefti_comm *comm;
    wefti_position *position;
    wefti_member_entry last, now; /* kept until the next: a new scheduler may need them */
    bool now_sent;
    void *entries; /* where the answer to `now` goes; NULL: it is there */
    char *giving_up;
    weft_status fail_status;
    int32_t failed; /* the rank that it names */
    bool given_up;  /* said so, to the last byte */
    bool reports;   /* is none, but says `end` of a rank */
    bool looks;     /* is none, and waits for `end`, which is there once it `is_over` */
    bool is_over;
    bool watches; /* it has found the scheduler, which has not said goodbye */
    wefti_end end;
    wefti_span ranks;          /* for a watcher: its ranks */
    bool asks;                 /* once more, for what the scheduler may have said by now */
    int unanswered;            /* times that it has */
    wefti_abort_reason unlike; /* what it has told of calls; status 0: nothing */
    bool leaving, leave_sent, stopping;
    const wefti_call_records *records; /* said when leaving; borrowed until the end */
    int64_t beat_ns;                   /* the last heartbeat; 0: one is due */
    /* the thread's own */
    enum {
        WEFTI_LINE_OFF,
        WEFTI_LINE_CALLING,
        WEFTI_LINE_SHAKING,
        WEFTI_LINE_ASKED,
        WEFTI_LINE_UP
    } connection;
    wefti_wire link;
    int64_t deadline_ns; /* of joining, or coming back */
    int64_t call_ns, heard_ns, looked_ns, placed_ns;
    int64_t pause_ns; /* between two calls */
    uint64_t dice;
    char trouble[256]; /* why the last call failed */
};

void *wefti_member_run(void *member);

/* --- talk.c, under the lock */
/* The end of the job, as this member sees it: the first one counts. Lets go of the lock meanwhile.
 */
void wefti_member_broken(wefti_member *m, weft_status status, int32_t failed, const char *text);
weft_status wefti_member_ask(wefti_member *m) WEFT_CHECKED; /* for a place */
/* All that there is to say now. */
weft_status wefti_member_say(wefti_member *m, int64_t now) WEFT_CHECKED;
weft_status wefti_member_hear(wefti_member *m, const wefti_frame *frame) WEFT_CHECKED;
int64_t wefti_member_interval(const wefti_member *m); /* of heartbeats */

#endif
