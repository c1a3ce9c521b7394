/* A member's thread: calls the scheduler until it answers, says what there is to say, and listens.
 * A scheduler that is lost is called again: one that was started anew learns from its members which
 * ranks they have, and the job goes on meanwhile. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member_state.h"
#include "launch/wire_socket.h"

enum { MS = 1000000 };
static const int64_t second_ns = 1000000000, shake_ns = 10000000000;

static void change(wefti_member *m, wefti_member_state state) {
    m->state = state;
    pthread_cond_broadcast(&m->changed);
}

static void fail(wefti_member *m, weft_status status, const char *text) {
    if (m->state == WEFTI_MEMBER_FAILED || m->state == WEFTI_MEMBER_PARTED) return;
    m->verdict.status = status;
    snprintf(m->verdict.text, sizeof m->verdict.text, "%s", text);
    change(m, WEFTI_MEMBER_FAILED);
    wefti_comm *comm = m->comm;
    pthread_mutex_unlock(&m->lock); /* lives until leave, which waits for this thread */
    if (comm) wefti_comm_break(comm, m->verdict.text);
    pthread_mutex_lock(&m->lock);
}

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
    m->line = WEFTI_LINE_OFF;
    call_later(m, wefti_now_ns());
}

/* The connection is gone. What that means depends on whether the job runs. */
static void lose(wefti_member *m, const char *why) {
    bool was_up = m->line == WEFTI_LINE_UP;
    hang_up(m, why);
    if (!was_up || over(m)) return;
    if (m->placed.hosted_by >= 0) {
        char text[512];
        snprintf(text, sizeof text, "rank %d, whose process is the scheduler of this job, died: %s",
                 (int)m->placed.hosted_by, m->trouble);
        fail(m, WEFT_E_PEER, text);
    }
    m->deadline_ns = wefti_now_ns() + m->join_ns;
    m->pause_ns = 50 * (int64_t)MS;
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
        m->line = WEFTI_LINE_CALLING;
        m->call_ns = now;
    } else if (status == WEFT_E_ARG)
        fail(m, status, weft_error_message());
    else
        hang_up(m, weft_error_message());
}

static void answered(wefti_member *m) {
    weft_status status = wefti_connected(m->link.fd);
    if (status >= 0) {
        int fd = m->link.fd;
        wefti_socket_watch(fd, (double)m->join_ns * 1e-9);
        status = wefti_wire_open(&m->link, fd, false, &m->secret);
    }
    if (status < 0)
        hang_up(m, weft_error_message());
    else
        m->line = WEFTI_LINE_SHAKING;
}

/* --- saying */

static weft_status ask(wefti_member *m) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    WEFT_TRY(wefti_wire_send(&m->link, WEFTI_FRAME_JOIN, body, wefti_join_encode(&m->join, body),
                             NULL, 0));
    m->line = WEFTI_LINE_ASKED;
    /* The scheduler knows who is missing: it is given the time to say so. */
    m->deadline_ns = wefti_now_ns() + m->join_ns + 2 * second_ns;
    return WEFT_OK;
}

static weft_status send_card(wefti_member *m, const wefti_member_card *card) {
    unsigned char head[WEFTI_CARD_HEAD];
    wefti_card_head(card->number, card->bytes, head);
    WEFT_TRY(
        wefti_wire_send(&m->link, WEFTI_FRAME_CARD, head, sizeof head, card->data, card->bytes));
    return WEFT_OK;
}

static weft_status beat(wefti_member *m, int64_t now) {
    wefti_standing standing = {.what = "setting up", .since_ns = m->placed_ns};
    if (m->position) standing = wefti_position_read(m->position);
    unsigned char body[WEFTI_MESSAGE_MAX];
    m->beat_ns = now;
    WEFT_TRY(wefti_wire_send(&m->link, WEFTI_FRAME_BEAT, body,
                             wefti_beat_encode(&standing, now, body), NULL, 0));
    return WEFT_OK;
}

static int64_t beat_interval(const wefti_member *m) {
    int64_t interval = m->placed.heartbeat_ns / 4;
    return interval > 50 * MS ? interval : 50 * MS;
}

static weft_status say(wefti_member *m, int64_t now) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    if (m->now.number && !m->now_sent) {
        WEFT_TRY(send_card(m, &m->now));
        m->now_sent = true;
    }
    if (m->giving_up && !m->given_up) {
        /* Where it stood goes first, for the table. */
        WEFT_TRY(beat(m, now));
        WEFT_TRY(wefti_wire_send(&m->link, WEFTI_FRAME_FAIL, body,
                                 wefti_verdict_encode(WEFT_E_PEER, m->giving_up, body), NULL, 0));
        m->given_up = true;
        pthread_cond_broadcast(&m->changed);
    }
    if (m->leaving && !m->leave_sent) {
        WEFT_TRY(wefti_wire_send(&m->link, WEFTI_FRAME_LEAVE, NULL, 0, NULL, 0));
        m->leave_sent = true;
    }
    if (now - m->beat_ns >= beat_interval(m)) WEFT_TRY(beat(m, now));
    return WEFT_OK;
}

/* --- hearing */

static weft_status placed(wefti_member *m, const wefti_frame *frame) {
    wefti_placed placed;
    int32_t *host;
    WEFT_TRY(wefti_placed_decode(frame, &placed, &host));
    if (m->state == WEFTI_MEMBER_JOINING) {
        m->placed = placed;
        m->host = host;
        m->join.rank = placed.rank;
        m->join.size = placed.size;
        m->join.generation = placed.generation;
        change(m, WEFTI_MEMBER_IN);
    } else {
        bool same = placed.generation == m->placed.generation && placed.rank == m->placed.rank &&
                    placed.size == m->placed.size;
        wefti_free(host);
        WEFT_REQUIRE(same, WEFT_E_CORRUPT, "the scheduler mistakes this rank for another");
        m->placed.hosted_by = placed.hosted_by;
        m->now_sent = m->leave_sent = false;
        m->given_up = false;
        if (m->last.number) WEFT_TRY(send_card(m, &m->last));
    }
    m->line = WEFTI_LINE_UP;
    m->beat_ns = 0;
    m->looked_ns = m->placed_ns = wefti_now_ns();
    return WEFT_OK;
}

static weft_status take_cards(wefti_member *m, const wefti_frame *frame) {
    wefti_card cards;
    WEFT_TRY(wefti_card_decode(frame, m->placed.size, &cards));
    if (!m->cards || cards.number != m->now.number) return WEFT_OK; /* known already */
    WEFT_REQUIRE(cards.bytes == m->now.bytes, WEFT_E_CORRUPT, "cards of another size");
    memcpy(m->cards, cards.data, cards.bytes * (size_t)m->placed.size);
    m->cards = NULL;
    pthread_cond_broadcast(&m->changed);
    return WEFT_OK;
}

static weft_status hear(wefti_member *m, const wefti_frame *frame) {
    wefti_verdict verdict;
    bool in = m->line == WEFTI_LINE_UP;
    m->heard_ns = wefti_now_ns();
    switch (frame->kind) {
    case WEFTI_FRAME_WORLD:
        WEFT_REQUIRE(m->line == WEFTI_LINE_ASKED, WEFT_E_CORRUPT, "placed twice");
        return placed(m, frame);
    case WEFTI_FRAME_CARDS:
        WEFT_REQUIRE(in, WEFT_E_CORRUPT, "cards before the world");
        return take_cards(m, frame);
    case WEFTI_FRAME_VERDICT:
    case WEFTI_FRAME_REFUSED:
        WEFT_TRY(wefti_verdict_decode(frame, &verdict));
        fail(m, verdict.status, verdict.text);
        return WEFT_OK;
    case WEFTI_FRAME_GOODBYE:
        if (m->state == WEFTI_MEMBER_IN) change(m, WEFTI_MEMBER_PARTED);
        return WEFT_OK;
    default:
        return WEFT_OK; /* HEARD */
    }
}

static weft_status listen_once(wefti_member *m) {
    weft_status status = wefti_wire_fill(&m->link);
    if (status != WEFT_OK) return status;
    wefti_frame frame;
    while ((status = wefti_wire_next(&m->link, &frame)) == WEFT_OK) WEFT_TRY(hear(m, &frame));
    return status == WEFT_PENDING ? WEFT_OK : status;
}

static void hear_all(wefti_member *m) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && m->link.fd >= 0) status = listen_once(m);
    if (status == WEFT_E_ARG && m->line == WEFTI_LINE_SHAKING) {
        char text[512];
        snprintf(text, sizeof text, "%s: %s", m->scheduler, weft_error_message());
        hang_up(m, text);
        fail(m, WEFT_E_ARG, text);
    } else if (status < 0)
        lose(m, weft_error_message());
}

/* --- the loop */

static void check_times(wefti_member *m, int64_t now) {
    char text[512];
    if (now - m->looked_ns > second_ns) m->heard_ns = now; /* this process was stopped */
    m->looked_ns = now;
    if ((m->line == WEFTI_LINE_CALLING || m->line == WEFTI_LINE_SHAKING) &&
        now - m->call_ns > shake_ns)
        hang_up(m, "no answer");
    if (m->line == WEFTI_LINE_UP) {
        int64_t silent = now - m->heard_ns;
        if (m->placed.hosted_by >= 0 && silent > m->placed.heartbeat_ns) {
            snprintf(text, sizeof text,
                     "rank %d, whose process is the scheduler of this job, has not been heard of "
                     "for %.1f s",
                     (int)m->placed.hosted_by, (double)silent * 1e-9);
            fail(m, WEFT_E_TIMEOUT, text);
        } else if (silent > m->join_ns && silent > m->placed.heartbeat_ns)
            lose(m, "it is silent");
        return;
    }
    if (now < m->deadline_ns) return;
    if (m->line == WEFTI_LINE_ASKED)
        snprintf(text, sizeof text,
                 "the scheduler at %s has not said within %.4g s that all processes are there",
                 m->scheduler, (double)m->join_ns * 1e-9);
    else
        snprintf(text, sizeof text, "%s the scheduler at %s for %.4g s: %.200s",
                 m->state == WEFTI_MEMBER_IN ? "lost" : "cannot reach", m->scheduler,
                 (double)m->join_ns * 1e-9, m->trouble[0] ? m->trouble : "no answer");
    fail(m, WEFT_E_TIMEOUT, text);
}

static void act(wefti_member *m, int64_t now) {
    if (over(m)) return;
    if (m->line == WEFTI_LINE_OFF && now >= m->call_ns) call(m, now);
    weft_status status = WEFT_OK;
    if (m->line == WEFTI_LINE_SHAKING && m->link.phase == WEFTI_WIRE_OPEN) status = ask(m);
    if (m->line == WEFTI_LINE_UP) status = say(m, now);
    /* A connection that breaks while we speak may hold a verdict still to be read. */
    if (status < 0) {
        hear_all(m);
        if (m->link.fd >= 0 && !over(m)) lose(m, weft_error_message());
    }
    check_times(m, now);
}

static int pause_ms(const wefti_member *m, int64_t now) {
    if (over(m)) return 1000;
    int64_t until = m->line == WEFTI_LINE_OFF  ? m->call_ns
                    : m->line == WEFTI_LINE_UP ? m->beat_ns + beat_interval(m)
                                               : now + 200 * (int64_t)MS;
    int64_t wait = (until - now) / MS + 1;
    return wait < 1 ? 1 : wait > 500 ? 500 : (int)wait;
}

static void wait_for_more(wefti_member *m, int64_t now) {
    bool writes = m->line == WEFTI_LINE_CALLING || wefti_wire_wants_to_write(&m->link);
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
    if (m->line == WEFTI_LINE_CALLING) {
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
    m->pause_ns = 20 * (int64_t)MS;
    m->dice = (uint64_t)now ^ (uint64_t)m->join.pid << 32;
    while (!m->stopping) {
        act(m, wefti_now_ns());
        if (m->stopping) break;
        wait_for_more(m, wefti_now_ns());
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}
