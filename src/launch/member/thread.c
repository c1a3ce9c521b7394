/* The thread of a connection to the scheduler: calls until the scheduler answers, says what there
 * is to say, and listens. It calls a lost scheduler again: one that was started anew learns from
 * its members which ranks they have, and the job goes on meanwhile. */
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/member/caller.h"
#include "launch/socket.h"

enum { THREAD_MS = 1000000 };
static const int64_t second_ns = 1000000000;

/* --- calling */

static void call_later(wefti_caller *c, int64_t now) {
    c->dice = c->dice * 6364136223846793005u + 1442695040888963407u;
    double jitter = 0.5 + (double)(c->dice >> 40) / (double)(1 << 24);
    c->call_ns = now + (int64_t)(jitter * (double)c->pause_ns);
    c->pause_ns = c->pause_ns * 3 / 2 < second_ns ? c->pause_ns * 3 / 2 : second_ns;
}

/* The next call goes to the other scheduler, if there are two and this one has said nothing. */
static void hang_up(wefti_caller *c, const char *why) {
    snprintf(c->trouble, sizeof c->trouble, "%s", why);
    wefti_wire_close(&c->link);
    c->connection = WEFTI_LINE_OFF;
    if (!c->answered && wefti_caller_has_standby(c)) c->at_standby = !c->at_standby;
    call_later(c, wefti_now_ns());
}

/* What that means depends on the state. */
void wefti_caller_lose(wefti_caller *c, const char *why) {
    hang_up(c, why);
    if (wefti_caller_row(c)->lose) wefti_caller_row(c)->lose(c);
}

/* An interface may come late. A mistake in its name must not take all the time for joining. */
static bool is_absent_for_long(wefti_caller *c, int64_t now) {
    if (!c->absent_ns) c->absent_ns = now;
    return now - c->absent_ns > WEFTI_SETTLE_SECONDS * second_ns;
}

static void call(wefti_caller *c, int64_t now) {
    wefti_address to;
    int fd = -1;
    bool absent = false;
    const char *place = wefti_caller_place(c);
    c->answered = false;
    pthread_mutex_unlock(&c->lock); /* a name server may take its time */
    weft_status status = wefti_address_find(place, &to);
    if (status >= 0) {
        status = wefti_connect(&to, c->interface, &fd);
        absent = status == WEFT_E_ARG;
    }
    pthread_mutex_lock(&c->lock);
    if (absent && !is_absent_for_long(c, now)) status = WEFT_E_PEER;
    if (!absent) c->absent_ns = 0;
    if (status >= 0) {
        c->link = (wefti_wire){.fd = fd};
        c->connection = WEFTI_LINE_CALLING;
        c->call_ns = now;
    } else if (status == WEFT_E_ARG)
        wefti_caller_fail(c, status, WEFT_RANK_OWN, weft_error_message());
    else
        hang_up(c, weft_error_message());
}

/* Whether nobody has listened at any of the addresses when it was called last. */
static bool nobody_listens(const wefti_caller *c) {
    return c->refused[0] && (c->refused[1] || !wefti_caller_has_standby(c));
}

static void connected(wefti_caller *c) {
    weft_status status = wefti_connected(c->link.fd);
    c->refused[c->at_standby] = status == WEFT_E_NOT_FOUND;
    if (status >= 0) {
        int fd = c->link.fd;
        wefti_socket_watch(
            fd, (double)(wefti_caller_has_standby(c) ? c->heartbeat_ns : c->join_ns) * 1e-9);
        status = wefti_wire_open(&c->link, fd, false, &c->secret, c->tls);
    }
    if (status < 0)
        hang_up(c, weft_error_message());
    else
        c->connection = WEFTI_LINE_SHAKING;
    if (nobody_listens(c) && wefti_caller_row(c)->gone) wefti_caller_row(c)->gone(c);
}

/* --- hearing */

weft_status wefti_caller_hear(wefti_caller *c, const wefti_frame *frame) {
    const wefti_protocol_state *row = wefti_caller_row(c);
    c->heard_ns = wefti_now_ns();
    c->answered = true;
    if (row->hear[frame->kind]) return row->hear[frame->kind](c, frame);
    WEFT_REQUIRE(row->deaf, WEFT_E_CORRUPT, "a message of kind %d, which does not belong here",
                 (int)frame->kind);
    return WEFT_OK;
}

static weft_status listen_once(wefti_caller *c) {
    weft_status status = wefti_wire_fill(&c->link);
    if (status != WEFT_OK) return status;
    wefti_frame frame;
    while ((status = wefti_wire_next(&c->link, &frame)) == WEFT_OK)
        WEFT_TRY(wefti_caller_hear(c, &frame));
    return status == WEFT_PENDING ? WEFT_OK : status;
}

static void hear_all(wefti_caller *c) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && c->link.fd >= 0) status = listen_once(c);
    if (status == WEFT_E_ARG && c->connection == WEFTI_LINE_SHAKING) {
        char text[512];
        snprintf(text, sizeof text, "%s: %s", wefti_caller_place(c), weft_error_message());
        hang_up(c, text);
        wefti_caller_fail(c, WEFT_E_ARG, WEFT_RANK_OWN, text);
    } else if (status < 0)
        wefti_caller_lose(c, weft_error_message());
}

/* --- the loop */

static void miss_deadline(wefti_caller *c) {
    char text[1024], places[WEFTI_CALLER_PLACES];
    if (c->connection == WEFTI_LINE_ASKED)
        snprintf(text, sizeof text,
                 "the scheduler at %s has not said within %.4g s that all processes are there",
                 wefti_caller_place(c), (double)c->join_ns * 1e-9);
    else
        snprintf(text, sizeof text, "%s %s for %.4g s: %.200s",
                 wefti_caller_row(c)->again ? "lost" : "cannot reach",
                 wefti_caller_places(c, places), (double)c->join_ns * 1e-9,
                 c->trouble[0] ? c->trouble : "no answer");
    wefti_caller_fail(c, WEFT_E_TIMEOUT, WEFT_RANK_OWN, text);
}

static void check_times(wefti_caller *c, int64_t now) {
    const wefti_protocol_state *row = wefti_caller_row(c);
    if (now - c->looked_ns > second_ns) c->heard_ns = now; /* this process was stopped */
    c->looked_ns = now;
    if ((c->connection == WEFTI_LINE_CALLING || c->connection == WEFTI_LINE_SHAKING) &&
        now - c->call_ns > c->shake_ns)
        hang_up(c, "no answer");
    if (row->silent)
        row->silent(c, now - c->heard_ns);
    else if (now >= c->deadline_ns)
        miss_deadline(c);
}

static weft_status ask(wefti_caller *c) {
    const bool again = wefti_caller_row(c)->again;
    WEFT_TRY(wefti_caller_row(c)->ask(c));
    c->connection = WEFTI_LINE_ASKED;
    /* Allows the scheduler, which knows the missing ranks, the time to report them. Of two
     * schedulers one may be asked again and again, so the time counts from the first call. */
    const bool counts = c->at_standby || (again && wefti_caller_has_standby(c));
    if (!counts) c->deadline_ns = wefti_now_ns() + c->join_ns + 2 * second_ns;
    return WEFT_OK;
}

static weft_status speak(wefti_caller *c, int64_t now) {
    if (wefti_caller_row(c)->calls && c->connection == WEFTI_LINE_SHAKING &&
        c->link.phase == WEFTI_WIRE_OPEN)
        return ask(c);
    if (wefti_caller_row(c)->say && c->connection == WEFTI_LINE_ASKED)
        return wefti_caller_row(c)->say(c, now);
    return WEFT_OK;
}

static void act(wefti_caller *c, int64_t now) {
    if (wefti_caller_row(c)->calls && c->connection == WEFTI_LINE_OFF && now >= c->call_ns)
        call(c, now);
    weft_status status = speak(c, now);
    /* A connection that breaks while we speak may hold an abort reason still to be read. */
    if (status < 0) {
        hear_all(c);
        if (c->link.fd >= 0 && wefti_caller_row(c)->calls)
            wefti_caller_lose(c, weft_error_message());
    }
    if (wefti_caller_row(c)->calls) check_times(c, now);
}

static int pause_ms(const wefti_caller *c, int64_t now) {
    const wefti_protocol_state *row = wefti_caller_row(c);
    if (!row->calls) return 1000;
    int64_t until = c->connection == WEFTI_LINE_OFF ? c->call_ns
                    : row->next                     ? row->next(c)
                                                    : now + 200 * (int64_t)THREAD_MS;
    int64_t wait = (until - now) / THREAD_MS + 1;
    return wait < 1 ? 1 : wait > 500 ? 500 : (int)wait;
}

static void wait_for_more(wefti_caller *c, int64_t now) {
    bool writes = c->connection == WEFTI_LINE_CALLING || wefti_wire_wants_to_write(&c->link);
    struct pollfd wanted[2] = {
        {.fd = c->alarm, .events = POLLIN},
        {.fd = c->link.fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))}};
    int timeout = pause_ms(c, now);
    pthread_mutex_unlock(&c->lock);
    int ready = poll(wanted, 2, timeout);
    uint64_t count;
    if (wanted[0].revents && read(c->alarm, &count, sizeof count) < 0) ready = 0;
    pthread_mutex_lock(&c->lock);
    if (ready <= 0 || !wanted[1].revents) return;
    if (c->connection == WEFTI_LINE_CALLING) {
        connected(c);
        return;
    }
    weft_status status = wefti_wire_flush(&c->link);
    hear_all(c);
    if (status < 0 && c->link.fd >= 0) wefti_caller_lose(c, weft_error_message());
}

void *wefti_caller_run(void *context) {
    wefti_caller *c = context;
    pthread_mutex_lock(&c->lock);
    int64_t now = wefti_now_ns();
    c->looked_ns = c->heard_ns = c->call_ns = now;
    c->deadline_ns = now + c->join_ns;
    c->pause_ns = 20 * (int64_t)THREAD_MS;
    c->dice = (uint64_t)now ^ (uint64_t)getpid() << 32;
    while (!c->stopping) {
        act(c, wefti_now_ns());
        if (c->stopping) break;
        wait_for_more(c, wefti_now_ns());
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
