/* The protocol of a watch: a launcher without the scheduler waits for the end of the job. */
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/caller.h"

struct wefti_watch {
    wefti_caller caller;
    wefti_span ranks;
    bool found;                /* the scheduler, at some time */
    wefti_end end;             /* in the state OVER */
    bool asks;                 /* wants to hear what the scheduler may have said by now */
    int unanswered;            /* questions without an answer */
    wefti_abort_reason unlike; /* what the scheduler said of calls; status 0: nothing */
};

typedef enum wefti_watch_state {                        /* rows of the table */
                                 WEFTI_WATCH_SEEKING,   /* has not found the scheduler */
                                 WEFTI_WATCH_LISTENING, /* said WATCH */
                                 WEFTI_WATCH_LOST, /* the connection broke; it may be the network */
                                 WEFTI_WATCH_OVER, /* knows which end ended the job */
                                 WEFTI_WATCH_DISMISSED, /* the scheduler said GOODBYE */
                                 WEFTI_WATCH_FAILED,    /* refused, or out of time */
} wefti_watch_state;

static weft_status say_watch(wefti_watch *w, int unanswered) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    WEFT_TRY(wefti_wire_send(&w->caller.link, WEFTI_FRAME_WATCH, body,
                             wefti_span_encode(&w->ranks, body), NULL, 0));
    w->unanswered = unanswered;
    w->asks = false;
    return WEFT_OK;
}

static weft_status ask(wefti_caller *c) {
    wefti_watch *w = (wefti_watch *)c;
    WEFT_TRY(say_watch(w, 1));
    w->found = true;
    wefti_caller_change(c, WEFTI_WATCH_LISTENING);
    return WEFT_OK;
}

/* A WATCH that is repeated is a question. */
static weft_status ask_again(wefti_caller *c, int64_t now) {
    wefti_watch *w = (wefti_watch *)c;
    (void)now;
    return w->asks ? say_watch(w, w->unanswered + 1) : WEFT_OK;
}

static weft_status unlike(wefti_caller *c, const wefti_frame *frame) {
    wefti_abort_reason reason;
    WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
    ((wefti_watch *)c)->unlike = reason;
    return WEFT_OK;
}

static weft_status heard(wefti_caller *c, const wefti_frame *frame) {
    wefti_watch *w = (wefti_watch *)c;
    (void)frame;
    if (w->unanswered > 0 && --w->unanswered == 0) pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

static weft_status over(wefti_caller *c, const wefti_frame *frame) {
    wefti_end end;
    WEFT_TRY(wefti_end_decode(frame, &end));
    ((wefti_watch *)c)->end = end;
    wefti_caller_change(c, WEFTI_WATCH_OVER);
    return WEFT_OK;
}

static weft_status goodbye(wefti_caller *c, const wefti_frame *frame) {
    (void)frame;
    wefti_caller_change(c, WEFTI_WATCH_DISMISSED);
    return WEFT_OK;
}

static void lose(wefti_caller *c) {
    wefti_caller_call_again(c);
    wefti_caller_change(c, WEFTI_WATCH_LOST);
}

/* There was no GOODBYE: the scheduler's launcher was killed, which also ends its processes. */
static void gone(wefti_caller *c) {
    wefti_watch *w = (wefti_watch *)c;
    w->end = (wefti_end){.rank = 0, .signal = SIGKILL};
    snprintf(w->end.text, sizeof w->end.text, "rank 0 was ended with what ran the scheduler at %s",
             c->scheduler);
    wefti_caller_change(c, WEFTI_WATCH_OVER);
}

static const wefti_protocol_state states[] = {
    [WEFTI_WATCH_SEEKING] = {.name = "SEEKING",
                             .calls = true,
                             .ask = ask,
                             .hear = {[WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure}},
    [WEFTI_WATCH_LISTENING] = {.name = "LISTENING",
                               .say = ask_again,
                               .hear = {[WEFTI_FRAME_HEARD] = heard,
                                        [WEFTI_FRAME_ABORT] = unlike,
                                        [WEFTI_FRAME_REFUSED] = wefti_caller_ignore,
                                        [WEFTI_FRAME_OVER] = over,
                                        [WEFTI_FRAME_GOODBYE] = goodbye},
                               .lose = lose},
    [WEFTI_WATCH_LOST] = {.name = "LOST",
                          .calls = true,
                          .ask = ask,
                          .hear = {[WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure},
                          .lose = lose,
                          .gone = gone},
    [WEFTI_WATCH_OVER] = {.name = "OVER",
                          .hear = {[WEFTI_FRAME_HEARD] = heard,
                                   [WEFTI_FRAME_ABORT] = unlike,
                                   [WEFTI_FRAME_REFUSED] = wefti_caller_ignore,
                                   [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_WATCH_DISMISSED] = {.name = "DISMISSED",
                               .hear = {[WEFTI_FRAME_HEARD] = heard,
                                        [WEFTI_FRAME_ABORT] = unlike,
                                        [WEFTI_FRAME_REFUSED] = wefti_caller_ignore,
                                        [WEFTI_FRAME_OVER] = over,
                                        [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_WATCH_FAILED] = {.name = "FAILED", .deaf = true},
};

const wefti_protocol wefti_protocol_watch = {
    .states = states, .count = sizeof states / sizeof *states, .failed = WEFTI_WATCH_FAILED};

weft_status wefti_watch_begin(const wefti_member_options *options, const wefti_span *ranks,
                              wefti_watch **out) {
    wefti_watch *w;
    WEFT_NEW(w, wefti_watch);
    w->ranks = *ranks;
    weft_status status = wefti_caller_begin(&w->caller, &wefti_protocol_watch, options);
    if (status < 0)
        wefti_free(w);
    else
        *out = w;
    return status;
}

void wefti_watch_end(wefti_watch *w) {
    wefti_caller_end(&w->caller);
    wefti_free(w);
}

bool wefti_watch_is_over(wefti_watch *w, wefti_end *out) {
    pthread_mutex_lock(&w->caller.lock);
    bool is_over = w->caller.state == WEFTI_WATCH_OVER;
    if (is_over) *out = w->end;
    pthread_mutex_unlock(&w->caller.lock);
    return is_over;
}

bool wefti_watch_is_seeking(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    bool seeks = w->caller.state == WEFTI_WATCH_SEEKING;
    pthread_mutex_unlock(&w->caller.lock);
    return seeks;
}

bool wefti_watch_has_found(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    bool found = w->found;
    pthread_mutex_unlock(&w->caller.lock);
    return found;
}

bool wefti_watch_is_unlike(wefti_watch *w, double seconds, wefti_abort_reason *out) {
    const int64_t look_ns = 50000000;
    wefti_caller *c = &w->caller;
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    pthread_mutex_lock(&c->lock);
    w->asks = true;
    wefti_caller_ring(c);
    /* In all other states the scheduler has said everything, or is not asked any more. */
    while ((c->state == WEFTI_WATCH_LISTENING || c->state == WEFTI_WATCH_LOST) &&
           (w->asks || w->unanswered > 0) && wefti_now_ns() < until)
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    bool is_unlike = w->unlike.status < 0;
    if (is_unlike) *out = w->unlike;
    pthread_mutex_unlock(&c->lock);
    return is_unlike;
}
