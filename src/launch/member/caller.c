/* Beginning and ending a connection to the scheduler, and what all protocols share: caller.h. */
#include "launch/member/caller.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/secret/secret.h"
#include "base/thread.h"
#include "launch/socket.h"

static const int64_t second_ns = 1000000000;

void wefti_caller_ring(wefti_caller *c) {
    uint64_t one = 1;
    if (write(c->alarm, &one, sizeof one) < 0) return; /* full: it rings already */
}

bool wefti_caller_wait(wefti_caller *c, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / second_ns, .tv_nsec = until_ns % second_ns};
    return pthread_cond_timedwait(&c->changed, &c->lock, &until) != ETIMEDOUT;
}

void wefti_caller_change(wefti_caller *c, int state) {
    c->state = state;
    pthread_cond_broadcast(&c->changed);
}

static void release(wefti_caller *c) {
    wefti_wire_close(&c->link);
    wefti_tls_destroy(c->tls);
    if (c->alarm >= 0) close(c->alarm);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    explicit_bzero(&c->secret, sizeof c->secret);
    wefti_free(c->scheduler);
    wefti_free(c->standby);
    wefti_free(c->interface);
    wefti_free(c->job);
}

void wefti_caller_end(wefti_caller *c) {
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_mutex_unlock(&c->lock);
    wefti_caller_ring(c);
    pthread_join(c->thread, NULL);
    release(c);
}

static weft_status fill_in(wefti_caller *c, const wefti_member_options *o) {
    c->scheduler = wefti_strdup(o->scheduler ? o->scheduler : "");
    c->standby = wefti_strdup(o->standby ? o->standby : "");
    c->interface = wefti_strdup(o->interface ? o->interface : "");
    c->job = wefti_strdup(o->job ? o->job : "");
    WEFT_REQUIRE(c->scheduler && c->standby && c->interface && c->job, WEFT_E_NOMEM,
                 "no memory for a connection");
    if (o->tls) WEFT_TRY(wefti_tls_create(false, &c->secret, &c->tls));
    c->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    WEFT_REQUIRE(c->alarm >= 0, WEFT_E_IO, "no event descriptor: %s", strerror(errno));
    int error = wefti_thread_start(&c->thread, wefti_caller_run, c);
    WEFT_REQUIRE(error == 0, WEFT_E_NOMEM, "no thread for a connection: %s", strerror(error));
    return WEFT_OK;
}

weft_status wefti_caller_begin(wefti_caller *c, const wefti_protocol *protocol,
                               const wefti_member_options *o) {
    pthread_condattr_t clock;
    *c = (wefti_caller){.protocol = protocol, .secret = o->secret, .alarm = -1, .link = {.fd = -1}};
    c->join_ns = wefti_ns_of_seconds(o->join_seconds, 600);
    c->outlives = o->outlives;
    c->launcher = o->launcher;
    c->heartbeat_ns = wefti_ns_of_seconds(o->heartbeat_seconds, 10);
    /* Where another scheduler may answer, the first one is not waited for so long. */
    c->shake_ns = (o->standby && *o->standby ? 4 : 10) * second_ns;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&c->lock, NULL);
    weft_status status = fill_in(c, o);
    if (status < 0) release(c);
    return status;
}

static uint64_t own_number;
static void draw_number(void) {
    if (wefti_random_bytes(&own_number, sizeof own_number) < 0) own_number = (uint64_t)getpid();
    own_number |= 1; /* not 0 */
}

weft_status wefti_caller_say_ranks(wefti_caller *c, const wefti_span *ranks, bool waits) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned char body[WEFTI_MESSAGE_MAX];
    (void)pthread_once(&once, draw_number);
    wefti_registration said = {.launcher = c->launcher ? c->launcher : own_number,
                               .pid = getpid(),
                               .ranks = *ranks,
                               .waits = waits};
    (void)snprintf(said.job, sizeof said.job, "%s", c->job);
    return wefti_wire_send(&c->link, WEFTI_FRAME_REGISTER, body,
                           wefti_registration_encode(&said, body), NULL, 0);
}

void wefti_caller_fail(wefti_caller *c, weft_status status, int32_t failed, const char *text) {
    if (!wefti_caller_row(c)->calls) return;
    c->reason.status = status;
    c->reason.failed = failed;
    snprintf(c->reason.text, sizeof c->reason.text, "%s", text);
    wefti_caller_change(c, c->protocol->failed);
    if (c->protocol->broken) c->protocol->broken(c);
}

weft_status wefti_caller_reason(const wefti_caller *c) {
    WEFT_FAIL_OF(c->reason.failed, c->reason.status, "%s", c->reason.text);
}

weft_status wefti_caller_hear_failure(wefti_caller *c, const wefti_frame *frame) {
    wefti_abort_reason reason;
    WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
    wefti_caller_fail(c, reason.status, reason.failed, reason.text);
    return WEFT_OK;
}

weft_status wefti_caller_ignore(wefti_caller *c, const wefti_frame *frame) {
    (void)c;
    (void)frame;
    return WEFT_OK;
}

char *wefti_caller_places(const wefti_caller *c, char out[WEFTI_CALLER_PLACES]) {
    if (wefti_caller_has_standby(c))
        (void)snprintf(out, WEFTI_CALLER_PLACES, "the schedulers at %s and %s", c->scheduler,
                       c->standby);
    else
        (void)snprintf(out, WEFTI_CALLER_PLACES, "the scheduler at %s", c->scheduler);
    return out;
}

void wefti_caller_call_again(wefti_caller *c) {
    c->deadline_ns = wefti_now_ns() + c->join_ns;
    c->pause_ns = second_ns / 20;
}
