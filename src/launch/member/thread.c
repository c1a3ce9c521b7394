/* A member's thread: calls the scheduler until it answers, says what there is to say, and listens.
 * A scheduler that is lost is called again: one that was started anew learns from its members which
 * ranks they have, and the job goes on meanwhile. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "launch/member/state.h"
#include "launch/socket.h"

enum { THREAD_MS = 1000000 };
static const int64_t second_ns = 1000000000, shake_ns = 10000000000;

static bool over(const wefti_member *m) {
    return m->state == WEFTI_MEMBER_FAILED || m->state == WEFTI_MEMBER_PARTED;
}

/* --- calling */

static void call_later(wefti_member *m, int64_t now) {
    m->dice = m->dice * 6364136223846793005u + 1442695040888963407u;
    double jitter = 0.5 + (double)(m->dice >> 40) / (double)(1 << 24);
    m->call_ns = now + (int64_t)(jitter * (double)m->pause_ns);
    m->pause_ns = m->pause_ns * 3 / 2 < second_ns ? m->pause_ns * 3 / 2 : second_ns;
}

static void hang_up(wefti_member *m, const char *why) {
    snprintf(m->trouble, sizeof m->trouble, "%s", why);
    wefti_wire_close(&m->link);
    m->connection = WEFTI_LINE_OFF;
    call_later(m, wefti_now_ns());
}

/* The connection is gone. What that means depends on whether the job runs. */
static void lose(wefti_member *m, const char *why) {
    bool was_up = m->connection == WEFTI_LINE_UP;
    hang_up(m, why);
    if (m->looks && m->watches && !m->is_over) { /* it may be the network: it is called again */
        m->state = WEFTI_MEMBER_JOINING;
        m->deadline_ns = wefti_now_ns() + m->join_ns;
        m->pause_ns = 50 * (int64_t)THREAD_MS;
        return;
    }
    if (!was_up || over(m)) return;
    if (m->placed.hosted_by >= 0) {
        char text[512];
        snprintf(text, sizeof text, "rank %d, whose process is the scheduler of this job, died: %s",
                 (int)m->placed.hosted_by, m->trouble);
        wefti_member_broken(m, WEFT_E_PEER, m->placed.hosted_by, text);
    }
    m->deadline_ns = wefti_now_ns() + m->join_ns;
    m->pause_ns = 50 * (int64_t)THREAD_MS;
}

static void call(wefti_member *m, int64_t now) {
    wefti_address to;
    int fd = -1;
    pthread_mutex_unlock(&m->lock); /* a name server may take its time */
    weft_status status = wefti_address_find(m->scheduler, &to);
    if (status >= 0) status = wefti_connect(&to, m->interface, &fd);
    pthread_mutex_lock(&m->lock);
    if (status >= 0) {
        m->link = (wefti_wire){.fd = fd};
        m->connection = WEFTI_LINE_CALLING;
        m->call_ns = now;
    } else if (status == WEFT_E_ARG)
        wefti_member_broken(m, status, WEFT_RANK_OWN, weft_error_message());
    else
        hang_up(m, weft_error_message());
}

/* A watcher finds no scheduler at its address any more and got no GOODBYE: the scheduler's
 * launcher was killed, which also ends its processes. */
static void find_scheduler_gone(wefti_member *m) {
    m->end = (wefti_end){.rank = 0, .signal = SIGKILL};
    snprintf(m->end.text, sizeof m->end.text, "rank 0 was ended with what ran the scheduler at %s",
             m->scheduler);
    m->is_over = true;
    m->state = WEFTI_MEMBER_PARTED;
}

static void answered(wefti_member *m) {
    weft_status status = wefti_connected(m->link.fd);
    if (status >= 0) {
        int fd = m->link.fd;
        wefti_socket_watch(fd, (double)m->join_ns * 1e-9);
        status = wefti_wire_open(&m->link, fd, false, &m->secret, m->tls);
    }
    bool gone = status == WEFT_E_NOT_FOUND && m->watches && !m->is_over;
    if (status < 0)
        hang_up(m, weft_error_message());
    else
        m->connection = WEFTI_LINE_SHAKING;
    if (gone) find_scheduler_gone(m);
}

/* --- hearing */

static weft_status listen_once(wefti_member *m) {
    weft_status status = wefti_wire_fill(&m->link);
    if (status != WEFT_OK) return status;
    wefti_frame frame;
    while ((status = wefti_wire_next(&m->link, &frame)) == WEFT_OK)
        WEFT_TRY(wefti_member_hear(m, &frame));
    return status == WEFT_PENDING ? WEFT_OK : status;
}

static void hear_all(wefti_member *m) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && m->link.fd >= 0) status = listen_once(m);
    if (status == WEFT_E_ARG && m->connection == WEFTI_LINE_SHAKING) {
        char text[512];
        snprintf(text, sizeof text, "%s: %s", m->scheduler, weft_error_message());
        hang_up(m, text);
        wefti_member_broken(m, WEFT_E_ARG, WEFT_RANK_OWN, text);
    } else if (status < 0)
        lose(m, weft_error_message());
}

/* --- the loop */

/* "; ranks 0-3 (host 0), 8 (host 2) may be out of reach too": the ranks of other hosts. */
static void add_far_ranks(const wefti_member *m, wefti_text *out) {
    enum { NAMED = 8 };
    const int32_t *host = m->host, size = m->placed.size;
    int named = 0;
    for (int32_t first = 0, end; first < size; first = end) {
        for (end = first + 1; end < size && host[end] == host[first];) end++;
        if (host[first] == host[m->placed.rank] || ++named > NAMED) continue;
        wefti_text_add(out, named == 1 ? "; ranks %d" : ", %d", (int)first);
        if (end > first + 1) wefti_text_add(out, "-%d", (int)end - 1);
        wefti_text_add(out, " (host %d)", (int)host[first]);
    }
    if (named > NAMED) wefti_text_add(out, " and more");
    if (named > 0) wefti_text_add(out, " may be out of reach too");
}

static void miss_far_scheduler(wefti_member *m, double seconds) {
    wefti_text text = {0};
    wefti_text_add(&text,
                   "the scheduler at %s, on another host, has not been heard of for %.1f s: that "
                   "host, or the network between it and this one, is down",
                   m->scheduler, seconds);
    add_far_ranks(m, &text);
    char *words = wefti_text_take(&text);
    wefti_member_broken(m, WEFT_E_TIMEOUT, WEFT_RANK_OWN,
                        words ? words
                              : "the scheduler has not been heard of (no memory to say more)");
    wefti_free(words);
}

/* A scheduler in a process of its own may be stopped for a while, or be suspended on this host. A
 * scheduler inside a rank is missed like that rank. A scheduler on another host is missed like the
 * network: by now it has decided which ranks are out of its reach, and that abort reason would be
 * here if it came through. */
static void check_silence(wefti_member *m, int64_t silent) {
    char text[512];
    double seconds = (double)silent * 1e-9;
    if (m->placed.hosted_by >= 0 && silent > m->placed.heartbeat_ns) {
        snprintf(text, sizeof text,
                 "rank %d, whose process is the scheduler of this job, has not been heard of for "
                 "%.1f s",
                 (int)m->placed.hosted_by, seconds);
        wefti_member_broken(m, WEFT_E_TIMEOUT, m->placed.hosted_by, text);
    } else if (silent > m->placed.heartbeat_ns + second_ns && wefti_socket_is_remote(m->link.fd)) {
        miss_far_scheduler(m, seconds);
    } else if (silent > m->join_ns && silent > m->placed.heartbeat_ns)
        lose(m, "it is silent");
}

static void check_times(wefti_member *m, int64_t now) {
    char text[512];
    if (now - m->looked_ns > second_ns) m->heard_ns = now; /* this process was stopped */
    m->looked_ns = now;
    if ((m->connection == WEFTI_LINE_CALLING || m->connection == WEFTI_LINE_SHAKING) &&
        now - m->call_ns > shake_ns)
        hang_up(m, "no answer");
    if (m->connection == WEFTI_LINE_UP) {
        check_silence(m, now - m->heard_ns);
        return;
    }
    if (now < m->deadline_ns) return;
    if (m->connection == WEFTI_LINE_ASKED)
        snprintf(text, sizeof text,
                 "the scheduler at %s has not said within %.4g s that all processes are there",
                 m->scheduler, (double)m->join_ns * 1e-9);
    else
        snprintf(text, sizeof text, "%s the scheduler at %s for %.4g s: %.200s",
                 m->state == WEFTI_MEMBER_IN ? "lost" : "cannot reach", m->scheduler,
                 (double)m->join_ns * 1e-9, m->trouble[0] ? m->trouble : "no answer");
    wefti_member_broken(m, WEFT_E_TIMEOUT, WEFT_RANK_OWN, text);
}

static void act(wefti_member *m, int64_t now) {
    weft_status status = WEFT_OK;
    if (m->asks && m->watches && m->connection == WEFTI_LINE_ASKED && wefti_member_ask(m) < 0)
        hear_all(m);
    if (over(m)) return;
    if (m->connection == WEFTI_LINE_OFF && now >= m->call_ns) call(m, now);
    if (m->connection == WEFTI_LINE_SHAKING && m->link.phase == WEFTI_WIRE_OPEN)
        status = wefti_member_ask(m);
    if (m->connection == WEFTI_LINE_UP) status = wefti_member_say(m, now);
    /* A connection that breaks while we speak may hold a verdict still to be read. */
    if (status < 0) {
        hear_all(m);
        if (m->link.fd >= 0 && !over(m)) lose(m, weft_error_message());
    }
    check_times(m, now);
}

static int pause_ms(const wefti_member *m, int64_t now) {
    if (over(m)) return 1000;
    int64_t until = m->connection == WEFTI_LINE_OFF  ? m->call_ns
                    : m->connection == WEFTI_LINE_UP ? m->beat_ns + wefti_member_interval(m)
                                                     : now + 200 * (int64_t)THREAD_MS;
    int64_t wait = (until - now) / THREAD_MS + 1;
    return wait < 1 ? 1 : wait > 500 ? 500 : (int)wait;
}

static void wait_for_more(wefti_member *m, int64_t now) {
    bool writes = m->connection == WEFTI_LINE_CALLING || wefti_wire_wants_to_write(&m->link);
    struct pollfd wanted[2] = {
        {.fd = m->alarm, .events = POLLIN},
        {.fd = m->link.fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))}};
    int timeout = pause_ms(m, now);
    pthread_mutex_unlock(&m->lock);
    int ready = poll(wanted, 2, timeout);
    uint64_t count;
    if (wanted[0].revents && read(m->alarm, &count, sizeof count) < 0) ready = 0;
    pthread_mutex_lock(&m->lock);
    if (ready <= 0 || !wanted[1].revents) return;
    if (m->connection == WEFTI_LINE_CALLING) {
        answered(m);
        return;
    }
    weft_status status = wefti_wire_flush(&m->link);
    hear_all(m);
    if (status < 0 && m->link.fd >= 0) lose(m, weft_error_message());
}

void *wefti_member_run(void *context) {
    wefti_member *m = context;
    pthread_mutex_lock(&m->lock);
    int64_t now = wefti_now_ns();
    m->looked_ns = m->heard_ns = m->call_ns = now;
    m->deadline_ns = now + m->join_ns;
    m->pause_ns = 20 * (int64_t)THREAD_MS;
    m->dice = (uint64_t)now ^ (uint64_t)m->join.pid << 32;
    while (!m->stopping) {
        act(m, wefti_now_ns());
        if (m->stopping) break;
        wait_for_more(m, wefti_now_ns());
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}
