/* The protocol of a question: how does the job do? */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/caller.h"

struct wefti_question {
    wefti_caller caller;
    wefti_job_health health;
    wefti_rank_health *rank;
    double seconds;
    int64_t until_ns;
};

typedef enum wefti_question_state {                        /* rows of the table */
                                    WEFTI_QUESTION_ASKING, /* no answer yet */
                                    WEFTI_QUESTION_TOLD,   /* the answer is here */
                                    WEFTI_QUESTION_FAILED, /* refused, or out of time */
} wefti_question_state;

static weft_status ask(wefti_caller *c) {
    return wefti_wire_send(&c->link, WEFTI_FRAME_HEALTH, NULL, 0, NULL, 0);
}

static weft_status told(wefti_caller *c, const wefti_frame *frame) {
    wefti_question *q = (wefti_question *)c;
    wefti_rank_health *rank;
    WEFT_TRY(wefti_health_decode(frame, &q->health, &rank));
    wefti_free(q->rank);
    q->rank = rank;
    wefti_caller_change(c, WEFTI_QUESTION_TOLD);
    return WEFT_OK;
}

static const wefti_protocol_state states[] = {
    [WEFTI_QUESTION_ASKING] =
        {.name = "ASKING",
         .calls = true,
         .ask = ask,
         .hear = {[WEFTI_FRAME_STATE] = told, [WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure}},
    [WEFTI_QUESTION_TOLD] = {.name = "TOLD", .deaf = true},
    [WEFTI_QUESTION_FAILED] = {.name = "FAILED", .deaf = true},
};

const wefti_protocol wefti_protocol_question = {
    .states = states, .count = sizeof states / sizeof *states, .failed = WEFTI_QUESTION_FAILED};

bool wefti_member_finds_job(const wefti_member_options *options, double seconds) {
    const int64_t look_ns = 20000000, until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    wefti_question *q = wefti_calloc(1, sizeof *q);
    if (!q) return false;
    if (wefti_caller_begin(&q->caller, &wefti_protocol_question, options) < 0) {
        wefti_free(q);
        return false;
    }
    wefti_caller *c = &q->caller;
    pthread_mutex_lock(&c->lock);
    while (c->state == WEFTI_QUESTION_ASKING && !c->trouble[0] && wefti_now_ns() < until)
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    const bool found = c->state == WEFTI_QUESTION_TOLD;
    pthread_mutex_unlock(&c->lock);
    wefti_caller_end(c);
    wefti_free(q->rank);
    wefti_free(q);
    return found;
}

bool wefti_member_runs_at(const wefti_member_options *like, const char *address) {
    enum { ANSWER_SECONDS = 3 };
    wefti_member_options o = *like;
    if (!address || !*address) return false;
    o.scheduler = address;
    o.standby = NULL;
    o.join_seconds = ANSWER_SECONDS;
    const bool runs = wefti_member_finds_job(&o, ANSWER_SECONDS);
    explicit_bzero(&o.secret, sizeof o.secret);
    return runs;
}

weft_status wefti_question_begin(const wefti_member_options *options, double seconds,
                                 wefti_question **out) {
    wefti_question *q;
    WEFT_NEW(q, wefti_question);
    q->seconds = seconds;
    q->until_ns = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    weft_status status = wefti_caller_begin(&q->caller, &wefti_protocol_question, options);
    if (status < 0) {
        wefti_free(q);
        return status;
    }
    pthread_mutex_lock(&q->caller.lock);
    if (q->caller.shake_ns > wefti_ns_of_seconds(seconds / 3, 0) &&
        wefti_caller_has_standby(&q->caller))
        q->caller.shake_ns = wefti_ns_of_seconds(seconds / 3, 0);
    pthread_mutex_unlock(&q->caller.lock);
    *out = q;
    return WEFT_OK;
}

weft_status wefti_question_end(wefti_question *q, wefti_job_health *out,
                               wefti_rank_health **out_rank, bool *out_by_standby) {
    const int64_t look_ns = 50000000;
    weft_status status = WEFT_OK;
    wefti_caller *c = &q->caller;
    char places[WEFTI_CALLER_PLACES];
    char trouble[sizeof c->trouble] = "";
    pthread_mutex_lock(&c->lock);
    while (c->state == WEFTI_QUESTION_ASKING && wefti_now_ns() < q->until_ns)
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    if (c->state == WEFTI_QUESTION_FAILED)
        status = wefti_caller_reason(c);
    else if (c->state == WEFTI_QUESTION_TOLD)
        *out = q->health;
    else
        status = WEFT_E_TIMEOUT;
    *out_rank = status >= 0 ? q->rank : NULL;
    (void)snprintf(trouble, sizeof trouble, "%s", c->trouble[0] ? c->trouble : "no answer");
    (void)wefti_caller_places(c, places);
    *out_by_standby = c->at_standby;
    const bool late = status == WEFT_E_TIMEOUT; /* whichever limit ended it */
    const bool two = wefti_caller_has_standby(c);
    const double seconds = q->seconds;
    pthread_mutex_unlock(&c->lock);
    wefti_caller_end(c);
    if (status < 0) wefti_free(q->rank);
    wefti_free(q);
    if (late)
        WEFT_FAIL(WEFT_E_TIMEOUT, "%s %s not answered within %.4g s: %s", places,
                  two ? "have" : "has", seconds, trouble);
    return status;
}
