/* The protocol of a report: a launcher tells the scheduler how a process has ended. */
#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/caller.h"

struct wefti_report {
    wefti_caller caller;
    wefti_end end;
    wefti_span ranks; /* that its launcher starts */
};

typedef enum wefti_report_state {                       /* rows of the table */
                                  WEFTI_REPORT_TELLING, /* no answer yet */
                                  WEFTI_REPORT_TOLD,    /* the scheduler has heard it */
                                  WEFTI_REPORT_FAILED,  /* refused, or out of time */
} wefti_report_state;

static weft_status ask(wefti_caller *c) {
    const wefti_report *r = (const wefti_report *)c;
    unsigned char body[WEFTI_MESSAGE_MAX];
    WEFT_TRY(wefti_caller_say_ranks(c, &r->ranks, false));
    return wefti_wire_send(&c->link, WEFTI_FRAME_ENDED, body, wefti_end_encode(&r->end, body), NULL,
                           0);
}

static weft_status heard(wefti_caller *c, const wefti_frame *frame) {
    (void)frame;
    wefti_caller_change(c, WEFTI_REPORT_TOLD);
    return WEFT_OK;
}

static const wefti_protocol_state states[] = {
    [WEFTI_REPORT_TELLING] = {.name = "TELLING",
                              .calls = true,
                              .ask = ask,
                              .hear = {[WEFTI_FRAME_HEARD] = heard,
                                       [WEFTI_FRAME_ABORT] = wefti_caller_hear_failure,
                                       [WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure,
                                       [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_REPORT_TOLD] = {.name = "TOLD", .deaf = true},
    [WEFTI_REPORT_FAILED] = {.name = "FAILED", .deaf = true},
};

const wefti_protocol wefti_protocol_report = {
    .states = states, .count = sizeof states / sizeof *states, .failed = WEFTI_REPORT_FAILED};

weft_status wefti_report_begin(const wefti_member_options *options, const wefti_end *end,
                               wefti_report **out) {
    wefti_report *r;
    WEFT_NEW(r, wefti_report);
    r->end = *end;
    r->ranks = options->ranks.count > 0 ? options->ranks : (wefti_span){end->rank, 1};
    weft_status status = wefti_caller_begin(&r->caller, &wefti_protocol_report, options);
    if (status < 0)
        wefti_free(r);
    else
        *out = r;
    return status;
}

bool wefti_report_is_under_way(wefti_report *r) {
    pthread_mutex_lock(&r->caller.lock);
    bool under_way = r->caller.state == WEFTI_REPORT_TELLING;
    pthread_mutex_unlock(&r->caller.lock);
    return under_way;
}

void wefti_report_end(wefti_report *r, double seconds, bool only_once) {
    const int64_t look_ns = 50000000;
    wefti_caller *c = &r->caller;
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    pthread_mutex_lock(&c->lock);
    while (c->state == WEFTI_REPORT_TELLING && wefti_now_ns() < until &&
           !(only_once && c->trouble[0]))
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    pthread_mutex_unlock(&c->lock);
    wefti_caller_end(c);
    wefti_free(r);
}
