/* The protocol of a member: what it says to the scheduler, and what it does on what it hears. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "launch/member/state.h"
#include "launch/socket.h"

enum { MS = 1000000 };
static const int64_t second_ns = 1000000000;

/* --- speaking */

static weft_status ask(wefti_caller *c) {
    wefti_member *m = (wefti_member *)c;
    unsigned char body[WEFTI_MESSAGE_MAX];
    WEFT_TRY(wefti_member_say_world(m));
    m->join.waited = m->asked[!c->at_standby];
    m->asked[c->at_standby] = true;
    if (m->identity.bytes)
        WEFT_TRY(wefti_wire_send(&c->link, WEFTI_FRAME_IDENTITY, m->identity.body,
                                 m->identity.bytes, NULL, 0));
    return wefti_wire_send(&c->link, WEFTI_FRAME_JOIN, body, wefti_join_encode(&m->join, body),
                           NULL, 0);
}

static weft_status send_entry(wefti_member *m, const wefti_member_entry *entry) {
    unsigned char head[WEFTI_ENTRY_HEAD];
    wefti_entry_head(entry->number, entry->bytes, head);
    return wefti_wire_send(&m->caller.link, WEFTI_FRAME_ENTRY, head, sizeof head, entry->data,
                           entry->bytes);
}

static weft_status beat(wefti_member *m, int64_t now) {
    wefti_standing standing = {
        .what = "setting up", .since_ns = m->placed_ns, .moved_ns = m->placed_ns};
    if (m->comm && wefti_comm_moves(m->comm)) wefti_position_moved(m->position);
    if (m->position) standing = wefti_position_read(m->position);
    unsigned char body[WEFTI_MESSAGE_MAX];
    m->beat_ns = now;
    return wefti_wire_send(&m->caller.link, WEFTI_FRAME_BEAT, body,
                           wefti_beat_encode(&standing, now, body), NULL, 0);
}

static int64_t interval(const wefti_member *m) { /* of heartbeats */
    int64_t quarter = m->placed.heartbeat_ns / 4;
    return quarter > 50 * MS ? quarter : 50 * MS;
}

static int64_t next(const wefti_caller *c) {
    const wefti_member *m = (const wefti_member *)c;
    return m->beat_ns + interval(m);
}

static weft_status leave(wefti_member *m) {
    unsigned char *body;
    size_t bytes;
    WEFT_TRY(wefti_records_encode(m->records, &body, &bytes));
    weft_status status = wefti_wire_send(&m->caller.link, WEFTI_FRAME_LEAVE, body, bytes, NULL, 0);
    wefti_free(body);
    return status;
}

static weft_status say(wefti_caller *c, int64_t now) {
    wefti_member *m = (wefti_member *)c;
    unsigned char body[WEFTI_MESSAGE_MAX];
    if (m->now_word == WEFTI_WORD_DUE) {
        WEFT_TRY(send_entry(m, &m->now));
        m->now_word = WEFTI_WORD_SAID;
    }
    if (m->fail_word == WEFTI_WORD_DUE) {
        /* Where it stood goes first, for the table. */
        WEFT_TRY(beat(m, now));
        WEFT_TRY(wefti_wire_send(
            &c->link, WEFTI_FRAME_FAIL, body,
            wefti_abort_reason_encode(m->fail_status, m->failed, m->giving_up, body), NULL, 0));
        m->fail_word = WEFTI_WORD_SAID;
        pthread_cond_broadcast(&c->changed);
    }
    WEFT_TRY(wefti_member_say_mending(m));
    if (m->leave_word == WEFTI_WORD_DUE) {
        WEFT_TRY(leave(m));
        m->leave_word = WEFTI_WORD_SAID;
    }
    if (now - m->beat_ns >= interval(m)) WEFT_TRY(beat(m, now));
    return WEFT_OK;
}

/* --- hearing */

static void enter(wefti_member *m) {
    wefti_caller_change(&m->caller, WEFTI_MEMBER_IN);
    m->beat_ns = 0;
    m->caller.looked_ns = m->placed_ns = wefti_now_ns();
}

/* WORLD, to a process that has no place yet. */
static weft_status placed(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    wefti_world_message placed;
    wefti_seated *seats;
    WEFT_TRY(wefti_world_message_decode(frame, &placed, &seats));
    m->host = wefti_calloc((size_t)placed.size, sizeof *m->host);
    if (!m->host) wefti_free(seats);
    WEFT_REQUIRE(m->host, WEFT_E_NOMEM, "no memory for a world of %d ranks", (int)placed.size);
    for (int32_t r = 0; r < placed.size; r++) m->host[r] = seats[r].host;
    m->placed = placed;
    m->join.number = seats[placed.rank].number;
    m->join.size = placed.first_size;
    m->join.numbers = placed.numbers;
    m->join.generation = placed.generation;
    m->join.used = placed.used;
    m->join.deaths = placed.deaths;
    wefti_member_is_next(m, (wefti_vote_place){placed.generation, placed.rank, placed.size}, seats);
    if (!placed.newcomer) wefti_member_is_whole(m);
    WEFT_TRY(wefti_member_begin_mending(m));
    enter(m);
    return WEFT_OK;
}

/* Whether WORLD is for this process. In a world that is halted, ranks may be others than before. */
static weft_status check_place(const wefti_member *m, const wefti_world_message *placed,
                               const wefti_seated *seats, bool halts) {
    const wefti_vote_place *at = &m->whole.place;
    const bool same = placed->generation == m->placed.generation && placed->rank == at->rank &&
                      placed->size == at->size;
    WEFT_REQUIRE((halts || same) && seats[placed->rank].number == m->join.number &&
                     placed->first_size == m->join.size,
                 WEFT_E_CORRUPT, "the scheduler mistakes this rank for another");
    WEFT_REQUIRE(halts || !wefti_round_is_mending(&m->mend.round), WEFT_E_CORRUPT,
                 "a scheduler that was lost amid a mending goes on with it");
    return WEFT_OK;
}

/* After a loss: by the same scheduler, or by one that was started again. */
static weft_status placed_again(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    wefti_world_message placed;
    wefti_seated *seats;
    WEFT_TRY(wefti_world_message_decode(frame, &placed, &seats));
    const bool halts = placed.generation > m->placed.generation && m->join.armed;
    const weft_status status = check_place(m, &placed, seats, halts);
    wefti_free(seats);
    WEFT_TRY(status);
    WEFT_REQUIRE(!halts || wefti_member_returns_to(m, placed.whole), WEFT_E_CORRUPT,
                 "the scheduler goes on from a world that this rank has not been in");
    m->placed.hosted_by = placed.hosted_by;
    m->join.numbers = placed.numbers;
    m->join.used = placed.used;
    m->join.deaths = placed.deaths;
    wefti_word *const words[] = {&m->now_word, &m->fail_word, &m->leave_word, &m->mend.armed};
    for (int i = 0; i < 4; i++)
        if (*words[i] > WEFTI_WORD_DUE) *words[i] = WEFTI_WORD_DUE;
    enter(m);
    if (halts) {
        wefti_halt halt = {
            .generation = placed.generation, .failed = placed.failed, .used = placed.used};
        (void)snprintf(halt.text, sizeof halt.text, "%s",
                       *placed.text ? placed.text : "this rank has its seat again");
        wefti_member_halt(m, &halt);
    } else if (m->last.number) {
        WEFT_TRY(send_entry(m, &m->last));
    }
    return WEFT_OK;
}

static weft_status take_entries(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    wefti_entry entries;
    WEFT_TRY(wefti_entry_decode(frame, m->placed.size, &entries));
    if (!m->entries || entries.number != m->now.number) return WEFT_OK; /* known already */
    WEFT_REQUIRE(entries.bytes == m->now.bytes, WEFT_E_CORRUPT,
                 "all-gather entries of another size");
    memcpy(m->entries, entries.data, entries.bytes * (size_t)m->placed.size);
    m->entries = NULL;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

static weft_status goodbye(wefti_caller *c, const wefti_frame *frame) {
    (void)frame;
    wefti_caller_change(c, WEFTI_MEMBER_PARTED);
    return WEFT_OK;
}

/* --- losing the scheduler */

static void lose(wefti_caller *c) {
    wefti_member *m = (wefti_member *)c;
    char text[512];
    if (m->placed.hosted_by >= 0 && !wefti_caller_has_standby(c)) {
        snprintf(text, sizeof text, "rank %d, whose process is the scheduler of this job, died: %s",
                 (int)m->placed.hosted_by, c->trouble);
        wefti_caller_fail(c, WEFT_E_LOST, m->placed.hosted_by, text);
        return;
    }
    wefti_caller_call_again(c);
    wefti_caller_change(c, WEFTI_MEMBER_LOST);
}

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
                   wefti_caller_place(&m->caller), seconds);
    add_far_ranks(m, &text);
    char *words = wefti_text_take(&text);
    wefti_caller_fail(&m->caller, WEFT_E_TIMEOUT, WEFT_RANK_OWN,
                      words ? words
                            : "the scheduler has not been heard of (no memory to say more)");
    wefti_free(words);
}

/* A scheduler in a process of its own may be stopped for a while, or be suspended on this host. A
 * scheduler inside a rank is missed like that rank. A scheduler on another host is missed like the
 * network: by now it has decided which ranks are out of its reach, and that abort reason would be
 * here if it came through. Where a standby scheduler may follow, a silent one is lost, wherever it
 * is. */
static void be_silent(wefti_caller *c, int64_t silent) {
    wefti_member *m = (wefti_member *)c;
    char text[512];
    double seconds = (double)silent * 1e-9;
    if (wefti_caller_has_standby(c)) {
        if (silent > m->placed.heartbeat_ns + second_ns) wefti_caller_lose(c, "it is silent");
    } else if (m->placed.hosted_by >= 0 && silent > m->placed.heartbeat_ns) {
        snprintf(text, sizeof text,
                 "rank %d, whose process is the scheduler of this job, has not been heard of for "
                 "%.1f s",
                 (int)m->placed.hosted_by, seconds);
        wefti_caller_fail(&m->caller, WEFT_E_TIMEOUT, m->placed.hosted_by, text);
    } else if (silent > m->placed.heartbeat_ns + second_ns &&
               wefti_socket_is_remote(m->caller.link.fd)) {
        miss_far_scheduler(m, seconds);
    } else if (silent > m->caller.join_ns && silent > m->placed.heartbeat_ns)
        wefti_caller_lose(&m->caller, "it is silent");
}

/* The job has failed: a rank that waits for another learns of it. */
static void broken(wefti_caller *c) {
    wefti_member_break_locked((wefti_member *)c, c->reason.failed, c->reason.text);
}

static const wefti_protocol_state states[] = {
    [WEFTI_MEMBER_JOINING] = {.name = "JOINING",
                              .calls = true,
                              .ask = ask,
                              .hear = {[WEFTI_FRAME_WORLD] = placed,
                                       [WEFTI_FRAME_HEARD] = wefti_caller_ignore,
                                       [WEFTI_FRAME_ABORT] = wefti_caller_hear_failure,
                                       [WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure,
                                       [WEFTI_FRAME_GOODBYE] = wefti_caller_ignore}},
    [WEFTI_MEMBER_IN] = {.name = "IN",
                         .calls = true,
                         .say = say,
                         .next = next,
                         .hear = {[WEFTI_FRAME_ENTRIES] = take_entries,
                                  [WEFTI_FRAME_HEARD] = wefti_caller_ignore,
                                  [WEFTI_FRAME_ABORT] = wefti_caller_hear_failure,
                                  [WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure,
                                  [WEFTI_FRAME_GOODBYE] = goodbye,
                                  [WEFTI_FRAME_HALT] = wefti_member_hear_halt,
                                  [WEFTI_FRAME_MEND] = wefti_member_hear_mend,
                                  [WEFTI_FRAME_GO] = wefti_member_hear_go,
                                  [WEFTI_FRAME_ARMED] = wefti_member_hear_armed},
                         .lose = lose,
                         .silent = be_silent},
    [WEFTI_MEMBER_LOST] = {.name = "LOST",
                           .calls = true,
                           .again = true,
                           .ask = ask,
                           .hear = {[WEFTI_FRAME_WORLD] = placed_again,
                                    [WEFTI_FRAME_HEARD] = wefti_caller_ignore,
                                    [WEFTI_FRAME_ABORT] = wefti_caller_hear_failure,
                                    [WEFTI_FRAME_REFUSED] = wefti_caller_hear_failure,
                                    [WEFTI_FRAME_GOODBYE] = goodbye}},
    [WEFTI_MEMBER_PARTED] = {.name = "PARTED", .deaf = true},
    [WEFTI_MEMBER_FAILED] = {.name = "FAILED", .deaf = true},
};

const wefti_protocol wefti_protocol_member = {.states = states,
                                              .count = sizeof states / sizeof *states,
                                              .failed = WEFTI_MEMBER_FAILED,
                                              .broken = broken};
