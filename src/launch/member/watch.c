/* The protocol of a watch: a launcher without the scheduler waits for the end of the job. Where
 * lost ranks are started again, it also gets its seats here, and hears whether to fill them again.
 */
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/caller.h"

/* A process of a seat has ended, and the scheduler is asked whether another one may follow. */
typedef struct vacancy {
    wefti_loss loss; /* starts 0: none was asked yet */
    bool said;
    wefti_again answer;
} vacancy;

struct wefti_watch {
    wefti_caller caller;
    wefti_span ranks;
    wefti_keep keep;            /* launcher 0: ranks are not started again */
    int32_t size;               /* of the job's first world, once it has seats */
    int32_t *deaths;            /* [ranks.count] of its seats; NULL: it has none yet */
    vacancy *vacancies;         /* the same */
    wefti_abort_reason refused; /* why it gets no seats; status 0: it may */
    bool found;                 /* the scheduler, at some time */
    int before;                 /* the state when the first words were said last */
    int64_t asked_ns, turn_ns;  /* the last WATCH; the last turn of the thread */
    wefti_end end;              /* in the state OVER */
    bool asks;                  /* wants to hear what the scheduler may have said by now */
    int unanswered;             /* questions without an answer */
    wefti_abort_reason verdict; /* why the scheduler ended the job: unlike calls; said to a standby,
                                   that it was deposed; status 0: nothing */
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
    w->asked_ns = wefti_now_ns();
    return WEFT_OK;
}

static weft_status say_keep(wefti_watch *w) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    const wefti_keep said = {
        .seats = w->ranks, .launcher = w->keep.launcher, .again = w->deaths != NULL};
    w->asked_ns = wefti_now_ns();
    return wefti_wire_send(&w->caller.link, WEFTI_FRAME_KEEP, body, wefti_keep_encode(&said, body),
                           NULL, 0);
}

static weft_status ask(wefti_caller *c) {
    wefti_watch *w = (wefti_watch *)c;
    if (w->ranks.first >= 0) {
        WEFT_TRY(wefti_caller_say_ranks(c, &w->ranks, w->keep.launcher != 0));
        WEFT_TRY(say_watch(w, 1));
    }
    if (w->keep.launcher) WEFT_TRY(say_keep(w));
    for (int32_t i = 0; w->vacancies && i < w->ranks.count; i++) w->vacancies[i].said = false;
    w->before = c->state;
    w->turn_ns = 0;
    if (!wefti_caller_has_standby(c)) w->found = true;
    wefti_caller_change(c, WEFTI_WATCH_LISTENING);
    return WEFT_OK;
}

static weft_status say_losses(wefti_watch *w) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    for (int32_t i = 0; w->vacancies && i < w->ranks.count; i++) {
        vacancy *q = &w->vacancies[i];
        if (q->said || q->answer != WEFTI_AGAIN_PENDING || !q->loss.starts) continue;
        WEFT_TRY(wefti_wire_send(&w->caller.link, WEFTI_FRAME_LOST, body,
                                 wefti_loss_encode(&q->loss, body), NULL, 0));
        q->said = true;
    }
    return WEFT_OK;
}

/* Whether a scheduler that another one may follow has been silent for too long. */
static bool is_silent(wefti_watch *w, int64_t now) {
    const int64_t pause_ns = 2000000000, second_ns = 1000000000;
    wefti_caller *c = &w->caller;
    if (now - w->turn_ns > pause_ns) c->heard_ns = now; /* it begins, or this process was stopped */
    w->turn_ns = now;
    return wefti_caller_has_standby(c) && now - c->heard_ns > c->heartbeat_ns + second_ns;
}

/* A WATCH that is repeated is a question. With a standby it is asked at times, since an answer
 * shows that the scheduler is there. A launcher without ranks repeats KEEP. */
static weft_status ask_again(wefti_caller *c, int64_t now) {
    wefti_watch *w = (wefti_watch *)c;
    if (is_silent(w, now)) {
        wefti_caller_lose(c, "it is silent");
        return WEFT_OK;
    }
    WEFT_TRY(say_losses(w));
    const bool due = wefti_caller_has_standby(c) && now - w->asked_ns > c->heartbeat_ns / 4;
    if (w->ranks.first < 0) return due ? say_keep(w) : WEFT_OK;
    return w->asks || due ? say_watch(w, w->unanswered + 1) : WEFT_OK;
}

/* The first time its seats; later how many processes these have lost. One that has not asked for
 * seats may ask after its losses from then on. */
static weft_status seats(wefti_caller *c, const wefti_frame *frame) {
    wefti_watch *w = (wefti_watch *)c;
    int32_t *deaths;
    wefti_span given;
    WEFT_TRY(wefti_seats_decode(frame, &given, &w->size, &deaths));
    const bool first = !w->deaths;
    const bool asked = first && w->keep.launcher;
    const bool fits = asked ? given.count <= w->ranks.count
                            : given.first == w->ranks.first && given.count == w->ranks.count;
    if (first && fits) w->vacancies = wefti_calloc((size_t)given.count, sizeof *w->vacancies);
    if (!fits || !w->vacancies) {
        wefti_free(deaths);
        WEFT_REQUIRE(fits, WEFT_E_CORRUPT, "seats that were not asked for");
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %d seats", (int)given.count);
    }
    for (int32_t i = 0; i < given.count && !first;
         i++) /* some seats may have been given up since */
        if (deaths[i] < w->deaths[i]) deaths[i] = w->deaths[i];
    wefti_free(w->deaths);
    w->deaths = deaths;
    w->ranks = given;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

static weft_status again(wefti_caller *c, const wefti_frame *frame) {
    wefti_watch *w = (wefti_watch *)c;
    wefti_again_message said;
    WEFT_TRY(wefti_again_decode(frame, &said));
    const int32_t i = said.rank - w->ranks.first;
    WEFT_REQUIRE(w->vacancies && i >= 0 && i < w->ranks.count, WEFT_E_CORRUPT,
                 "an answer about rank %d, which was not asked for", (int)said.rank);
    if (w->vacancies[i].loss.starts == said.starts) w->vacancies[i].answer = said.again;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

static weft_status refused(wefti_caller *c, const wefti_frame *frame) {
    wefti_watch *w = (wefti_watch *)c;
    wefti_abort_reason reason;
    WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
    w->refused = reason;
    wefti_caller_change(c, WEFTI_WATCH_FAILED);
    return WEFT_OK;
}

static weft_status unlike(wefti_caller *c, const wefti_frame *frame) {
    wefti_abort_reason reason;
    WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
    ((wefti_watch *)c)->verdict = reason;
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

/* A standby scheduler without a job ends the connection before any answer: then nothing has
 * changed. */
static void lose(wefti_caller *c) {
    wefti_watch *w = (wefti_watch *)c;
    if (!c->answered && wefti_caller_has_standby(c)) {
        wefti_caller_change(c, w->before);
        return;
    }
    w->found = true;
    wefti_caller_call_again(c);
    wefti_caller_change(c, WEFTI_WATCH_LOST);
}

/* There was no GOODBYE: the scheduler's launcher was killed, which also ends its processes. Of two
 * schedulers, one may have run alone: then no rank is to blame. */
static void gone(wefti_caller *c) {
    wefti_watch *w = (wefti_watch *)c;
    if (c->outlives) return; /* it may be started again */
    w->end = (wefti_end){.rank = 0, .signal = SIGKILL};
    snprintf(w->end.text, sizeof w->end.text, "rank 0 was ended with what ran the scheduler at %s",
             c->scheduler);
    if (wefti_caller_has_standby(c)) {
        char places[WEFTI_CALLER_PLACES];
        w->end.rank = WEFT_RANK_NONE;
        snprintf(w->end.text, sizeof w->end.text, "%s are both gone",
                 wefti_caller_places(c, places));
    }
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
                                        [WEFTI_FRAME_REFUSED] = refused,
                                        [WEFTI_FRAME_OVER] = over,
                                        [WEFTI_FRAME_SEATS] = seats,
                                        [WEFTI_FRAME_AGAIN] = again,
                                        [WEFTI_FRAME_GOODBYE] = goodbye},
                               .lose = lose},
    [WEFTI_WATCH_LOST] = {.name = "LOST",
                          .calls = true,
                          .again = true,
                          .ask = ask,
                          .hear = {[WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure},
                          .lose = lose,
                          .gone = gone},
    [WEFTI_WATCH_OVER] = {.name = "OVER",
                          .hear = {[WEFTI_FRAME_HEARD] = heard,
                                   [WEFTI_FRAME_ABORT] = unlike,
                                   [WEFTI_FRAME_REFUSED] = wefti_caller_ignore,
                                   [WEFTI_FRAME_SEATS] = wefti_caller_ignore,
                                   [WEFTI_FRAME_AGAIN] = wefti_caller_ignore,
                                   [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_WATCH_DISMISSED] = {.name = "DISMISSED",
                               .hear = {[WEFTI_FRAME_HEARD] = heard,
                                        [WEFTI_FRAME_ABORT] = unlike,
                                        [WEFTI_FRAME_REFUSED] = wefti_caller_ignore,
                                        [WEFTI_FRAME_OVER] = over,
                                        [WEFTI_FRAME_SEATS] = wefti_caller_ignore,
                                        [WEFTI_FRAME_AGAIN] = wefti_caller_ignore,
                                        [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_WATCH_FAILED] = {.name = "FAILED", .deaf = true},
};

const wefti_protocol wefti_protocol_watch = {
    .states = states, .count = sizeof states / sizeof *states, .failed = WEFTI_WATCH_FAILED};

static weft_status begin(const wefti_member_options *options, const wefti_keep *keep,
                         wefti_watch **out) {
    wefti_watch *w;
    WEFT_NEW(w, wefti_watch);
    w->ranks = keep->seats;
    w->keep = *keep;
    weft_status status = wefti_caller_begin(&w->caller, &wefti_protocol_watch, options);
    if (status < 0)
        wefti_free(w);
    else
        *out = w;
    return status;
}

weft_status wefti_watch_begin(const wefti_member_options *options, const wefti_span *ranks,
                              wefti_watch **out) {
    return begin(options, &(wefti_keep){.seats = *ranks}, out);
}

weft_status wefti_watch_begin_keeping(const wefti_member_options *options, const wefti_keep *keep,
                                      wefti_watch **out) {
    return begin(options, keep, out);
}

void wefti_watch_end(wefti_watch *w) {
    wefti_caller_end(&w->caller);
    wefti_free(w->deaths);
    wefti_free(w->vacancies);
    wefti_free(w);
}

/* There is no scheduler any more that could answer. */
static bool has_ended(const wefti_watch *w) {
    const int state = w->caller.state;
    return state == WEFTI_WATCH_OVER || state == WEFTI_WATCH_DISMISSED ||
           state == WEFTI_WATCH_FAILED;
}

static weft_status failure(const wefti_watch *w) {
    if (w->caller.state != WEFTI_WATCH_FAILED) return WEFT_E_STOPPED;
    if (w->refused.status >= 0) return wefti_caller_reason(&w->caller);
    WEFT_FAIL_OF(w->refused.failed, w->refused.status, "%s", w->refused.text);
}

weft_status wefti_watch_registered(wefti_watch *w, double seconds) {
    const int64_t look_ns = 20000000;
    wefti_caller *c = &w->caller;
    const int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    weft_status status = WEFT_PENDING;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        if (w->refused.status < 0)
            status = failure(w);
        else if (has_ended(w) || (c->state == WEFTI_WATCH_LISTENING && c->answered))
            status = WEFT_OK;
        if (status != WEFT_PENDING || seconds <= 0 || wefti_now_ns() >= until) break;
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

weft_status wefti_watch_seats(wefti_watch *w, wefti_span *out, int32_t *out_size) {
    weft_status status = WEFT_PENDING;
    pthread_mutex_lock(&w->caller.lock);
    if (has_ended(w)) {
        status = failure(w);
    } else if (w->deaths) {
        *out = w->ranks;
        *out_size = w->size;
        status = WEFT_OK;
    }
    pthread_mutex_unlock(&w->caller.lock);
    return status;
}

int32_t wefti_watch_deaths(wefti_watch *w, int32_t rank) {
    pthread_mutex_lock(&w->caller.lock);
    int32_t deaths = w->deaths ? w->deaths[rank - w->ranks.first] : 0;
    pthread_mutex_unlock(&w->caller.lock);
    return deaths;
}

wefti_again wefti_watch_again(wefti_watch *w, const wefti_end *end, int32_t starts) {
    wefti_again answer = WEFTI_AGAIN_ELSEWHERE;
    pthread_mutex_lock(&w->caller.lock);
    vacancy *q = w->vacancies ? &w->vacancies[end->rank - w->ranks.first] : NULL;
    if (q && q->loss.starts != starts) {
        *q = (vacancy){.loss = {.end = *end, .starts = starts}, .answer = WEFTI_AGAIN_PENDING};
        wefti_caller_ring(&w->caller);
    }
    if (q) answer = q->answer;
    if (answer == WEFTI_AGAIN_PENDING && has_ended(w)) answer = WEFTI_AGAIN_NO;
    pthread_mutex_unlock(&w->caller.lock);
    return answer;
}

bool wefti_watch_may_ask(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    const bool may = w->vacancies != NULL;
    pthread_mutex_unlock(&w->caller.lock);
    return may;
}

bool wefti_watch_is_over(wefti_watch *w, wefti_end *out) {
    pthread_mutex_lock(&w->caller.lock);
    bool is_over = w->caller.state == WEFTI_WATCH_OVER;
    if (is_over) *out = w->end;
    pthread_mutex_unlock(&w->caller.lock);
    return is_over;
}

/* A standby scheduler that has no job yet ends the connection without an answer. */
static bool awaits_answer(const wefti_watch *w) {
    return wefti_caller_has_standby(&w->caller) && w->caller.state == WEFTI_WATCH_LISTENING &&
           !w->caller.answered;
}

bool wefti_watch_is_seeking(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    bool seeks = w->caller.state == WEFTI_WATCH_SEEKING ||
                 (awaits_answer(w) && w->before == WEFTI_WATCH_SEEKING);
    pthread_mutex_unlock(&w->caller.lock);
    return seeks;
}

bool wefti_watch_has_parted(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    const int state = w->caller.state;
    pthread_mutex_unlock(&w->caller.lock);
    return state == WEFTI_WATCH_OVER || state == WEFTI_WATCH_DISMISSED;
}

weft_status wefti_watch_check(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    weft_status status = w->caller.state == WEFTI_WATCH_FAILED ? failure(w) : WEFT_OK;
    pthread_mutex_unlock(&w->caller.lock);
    return status;
}

weft_status wefti_watch_deposed(wefti_watch *w) {
    pthread_mutex_lock(&w->caller.lock);
    const wefti_abort_reason why = w->verdict;
    pthread_mutex_unlock(&w->caller.lock);
    if (why.status != WEFT_E_LOST && why.status != WEFT_E_TIMEOUT) return WEFT_OK;
    WEFT_FAIL_OF(why.failed, why.status, "%s", why.text);
}

bool wefti_watch_finds(wefti_watch *w, double seconds) {
    const int64_t look_ns = 50000000;
    wefti_caller *c = &w->caller;
    const int64_t until = wefti_now_ns() + wefti_ns_of_seconds(seconds, 0);
    bool found;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        found = w->found || (c->state != WEFTI_WATCH_SEEKING && c->answered);
        if (found || c->state != WEFTI_WATCH_SEEKING || wefti_now_ns() >= until) break;
        (void)wefti_caller_wait(c, wefti_now_ns() + look_ns);
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

bool wefti_watch_has_found(wefti_watch *w) {
    return wefti_watch_finds(w, 0);
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
    bool is_unlike = w->verdict.status < 0;
    if (is_unlike) *out = w->verdict;
    pthread_mutex_unlock(&c->lock);
    return is_unlike;
}
