/* Bodies of frames: see wire.h. */
#include "launch/wire/wire.h"

#include <string.h>

#include "base/memory.h"

static wefti_pack packing(unsigned char *out, size_t room) {
    return (wefti_pack){.data = out, .room = room};
}

static void pack_place(wefti_pack *p, const wefti_vote_place *at) {
    wefti_pack_u64(p, at->generation);
    wefti_pack_u32(p, (uint32_t)at->rank);
    wefti_pack_u32(p, (uint32_t)at->size);
}

/* Without a world there is no rank in it. */
static wefti_vote_place unpack_place(wefti_unpack *u) {
    wefti_vote_place at = {.generation = wefti_unpack_u64(u)};
    at.rank = (int32_t)wefti_unpack_u32(u);
    at.size = (int32_t)wefti_unpack_u32(u);
    if (at.generation ? at.rank < 0 || at.rank >= at.size || at.size > WEFTI_RANKS_MAX
                      : at.rank || at.size)
        u->bad = true;
    return at;
}

size_t wefti_join_encode(const wefti_join *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = packing(out, WEFTI_MESSAGE_MAX);
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u32(&p, (uint32_t)m->number);
    wefti_pack_u32(&p, (uint32_t)m->size);
    wefti_pack_u64(&p, (uint64_t)m->pid);
    wefti_pack_u64(&p, m->launcher);
    wefti_pack_text(&p, m->job, WEFTI_NAME_MAX);
    wefti_pack_text(&p, m->node, WEFTI_NAME_MAX);
    wefti_pack_text(&p, m->host, WEFTI_NAME_MAX);
    wefti_pack_text(&p, m->facts, WEFTI_NAME_MAX);
    pack_place(&p, &m->whole);
    pack_place(&p, &m->said);
    wefti_pack_u32(&p, (uint32_t)m->numbers);
    wefti_pack_u32(&p, (uint32_t)m->used);
    wefti_pack_u32(&p, (uint32_t)m->deaths);
    wefti_pack_u32(&p, (uint32_t)m->armed | (uint32_t)m->mends << 1 | (uint32_t)m->leaves << 2 |
                           (uint32_t)m->arms << 3 | (uint32_t)m->waited << 4);
    return p.used;
}

static bool is_sound(const wefti_join *m) {
    const uint64_t whole = m->whole.generation, said = m->said.generation;
    if (whole > m->generation || said > m->generation || (said && said <= whole)) return false;
    if (m->numbers < 0 || m->numbers > WEFTI_RANKS_MAX || m->used < 0 || m->deaths < 0)
        return false;
    if (m->number < -1 || m->number >= WEFTI_RANKS_MAX || m->pid <= 0) return false;
    if (m->generation && (m->number < 0 || m->number >= m->numbers)) return false;
    return m->size == -1 || (m->size > 0 && m->size <= WEFTI_RANKS_MAX);
}

weft_status wefti_join_decode(const wefti_frame *frame, wefti_join *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = wefti_unpack_u64(&u);
    out->number = (int32_t)wefti_unpack_u32(&u);
    out->size = (int32_t)wefti_unpack_u32(&u);
    out->pid = (int64_t)wefti_unpack_u64(&u);
    out->launcher = wefti_unpack_u64(&u);
    wefti_unpack_text(&u, out->job, WEFTI_NAME_MAX);
    wefti_unpack_text(&u, out->node, WEFTI_NAME_MAX);
    wefti_unpack_text(&u, out->host, WEFTI_NAME_MAX);
    wefti_unpack_text(&u, out->facts, WEFTI_NAME_MAX);
    out->whole = unpack_place(&u);
    out->said = unpack_place(&u);
    out->numbers = (int32_t)wefti_unpack_u32(&u);
    out->used = (int32_t)wefti_unpack_u32(&u);
    out->deaths = (int32_t)wefti_unpack_u32(&u);
    const uint32_t flags = wefti_unpack_u32(&u);
    out->armed = flags & 1;
    out->mends = flags & 2;
    out->leaves = flags & 4;
    out->arms = flags & 8;
    out->waited = flags & 16;
    if (flags > 31 || !is_sound(out)) u.bad = true;
    return wefti_unpack_end(&u, "join");
}

/* 0 where the time is not known. */
static int64_t age_of(int64_t since_ns, int64_t now_ns) {
    return since_ns > 0 && now_ns > since_ns ? now_ns - since_ns : 0;
}

size_t wefti_beat_encode(const wefti_standing *m, int64_t now_ns,
                         unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = packing(out, WEFTI_MESSAGE_MAX);
    wefti_pack_u64(&p, (uint64_t)m->step);
    wefti_pack_u64(&p, m->done);
    wefti_pack_u32(&p, m->waiting);
    wefti_pack_u64(&p, (uint64_t)age_of(m->since_ns, now_ns));
    wefti_pack_u64(&p, (uint64_t)age_of(m->moved_ns, now_ns));
    wefti_pack_text(&p, m->what, WEFTI_POSITION_TEXT - 1);
    return p.used;
}

weft_status wefti_beat_decode(const wefti_frame *frame, int64_t now_ns, wefti_standing *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->step = (int64_t)wefti_unpack_u64(&u);
    out->done = wefti_unpack_u64(&u);
    uint32_t waiting = wefti_unpack_u32(&u);
    uint64_t age = wefti_unpack_u64(&u), moved = wefti_unpack_u64(&u);
    wefti_unpack_text(&u, out->what, WEFTI_POSITION_TEXT - 1);
    if (out->step < 0 || waiting > 1 || age > INT64_MAX / 4 || moved > INT64_MAX / 4) u.bad = true;
    out->waiting = waiting == 1;
    out->since_ns = u.bad ? now_ns : now_ns - (int64_t)age;
    out->moved_ns = u.bad ? now_ns : now_ns - (int64_t)moved;
    return wefti_unpack_end(&u, "heartbeat");
}

size_t wefti_abort_reason_encode(weft_status status, int32_t failed, const char *text,
                                 unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = packing(out, WEFTI_MESSAGE_MAX);
    wefti_pack_u32(&p, (uint32_t)status);
    wefti_pack_u32(&p, (uint32_t)failed);
    wefti_pack_text(&p, text, WEFTI_TEXT_MAX);
    return p.used;
}

static bool is_failure(int32_t status) {
#define FAILURE_ROW(name, value, text)                                                             \
    if (value < 0 && status == value) return true;
    WEFT_STATUS_LIST(FAILURE_ROW)
#undef FAILURE_ROW
    return false;
}

weft_status wefti_abort_reason_decode(const wefti_frame *frame, wefti_abort_reason *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    int32_t status = (int32_t)wefti_unpack_u32(&u);
    out->failed = (int32_t)wefti_unpack_u32(&u);
    wefti_unpack_text(&u, out->text, WEFTI_TEXT_MAX);
    if (!is_failure(status) || out->failed < WEFT_RANK_NONE) u.bad = true;
    out->status = u.bad ? WEFT_E_CORRUPT : (weft_status)status;
    return wefti_unpack_end(&u, "abort");
}

size_t wefti_end_encode(const wefti_end *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = packing(out, WEFTI_MESSAGE_MAX);
    wefti_pack_u32(&p, (uint32_t)m->rank);
    wefti_pack_u32(&p, (uint32_t)m->code);
    wefti_pack_u32(&p, (uint32_t)m->signal);
    wefti_pack_text(&p, m->text, WEFTI_TEXT_MAX);
    return p.used;
}

void wefti_unpack_process_end(wefti_unpack *u, wefti_end *out) {
    out->rank = (int32_t)wefti_unpack_u32(u);
    out->code = (int32_t)wefti_unpack_u32(u);
    out->signal = (int32_t)wefti_unpack_u32(u);
    wefti_unpack_text(u, out->text, WEFTI_TEXT_MAX);
    if (out->rank < 0 || out->rank >= WEFTI_RANKS_MAX || out->code < -1 || out->code > 255 ||
        out->signal < 0 || out->signal > 255 || (out->code && out->signal))
        u->bad = true;
}

weft_status wefti_end_decode(const wefti_frame *frame, wefti_end *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    wefti_unpack_process_end(&u, out);
    return wefti_unpack_end(&u, "end");
}

size_t wefti_span_encode(const wefti_span *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = packing(out, WEFTI_MESSAGE_MAX);
    wefti_pack_u32(&p, (uint32_t)m->first);
    wefti_pack_u32(&p, (uint32_t)m->count);
    return p.used;
}

weft_status wefti_span_decode(const wefti_frame *frame, wefti_span *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->first = (int32_t)wefti_unpack_u32(&u);
    out->count = (int32_t)wefti_unpack_u32(&u);
    if (out->first < 0 || out->first >= WEFTI_RANKS_MAX || out->count <= 0 ||
        out->count > WEFTI_RANKS_MAX)
        u.bad = true;
    return wefti_unpack_end(&u, "watch");
}

weft_status wefti_records_encode(const wefti_call_records *m, unsigned char **out,
                                 size_t *out_bytes) {
    WEFT_NEW_ARRAY(*out, unsigned char, WEFTI_RECORDS_MAX);
    wefti_pack p = packing(*out, WEFTI_RECORDS_MAX);
    for (int32_t i = 0; m && i < m->count; i++) {
        wefti_pack_u64(&p, m->of[i].ranks);
        wefti_pack_u32(&p, (uint32_t)m->of[i].other);
        wefti_pack_u32(&p, (uint32_t)m->of[i].side);
        wefti_pack_u64(&p, m->of[i].calls);
        wefti_pack_u64(&p, m->of[i].digest);
        wefti_pack_text(&p, m->of[i].text, WEFTI_CALL_TEXT - 1);
    }
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_records_decode(const wefti_frame *frame, wefti_call_records *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    for (out->count = 0; !u.bad && u.at < u.bytes; out->count++) {
        wefti_call_record *r = &out->of[out->count];
        if (out->count == WEFTI_CALL_RECORDS) {
            u.bad = true;
            break;
        }
        r->ranks = wefti_unpack_u64(&u);
        r->other = (int32_t)wefti_unpack_u32(&u);
        r->side = (int32_t)wefti_unpack_u32(&u);
        r->calls = wefti_unpack_u64(&u);
        r->digest = wefti_unpack_u64(&u);
        wefti_unpack_text(&u, r->text, WEFTI_CALL_TEXT - 1);
        if (r->other < -1 || r->other >= WEFTI_RANKS_MAX || r->side < WEFTI_NO_SIDE ||
            r->side > WEFTI_RECEIVED)
            u.bad = true;
    }
    return wefti_unpack_end(&u, "leave");
}

void wefti_entry_head(uint64_t number, uint64_t bytes, unsigned char out[WEFTI_ENTRY_HEAD]) {
    wefti_pack p = packing(out, WEFTI_ENTRY_HEAD);
    wefti_pack_u64(&p, number);
    wefti_pack_u64(&p, bytes);
}

weft_status wefti_entry_decode(const wefti_frame *frame, int32_t ranks, wefti_entry *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->number = wefti_unpack_u64(&u);
    uint64_t bytes = wefti_unpack_u64(&u);
    if (u.bad || bytes > WEFTI_ENTRY_MAX || bytes * (uint64_t)ranks != u.bytes - u.at)
        u.bad = true;
    else
        u.at = u.bytes;
    out->bytes = u.bad ? 0 : (size_t)bytes;
    out->data = u.bad ? NULL : u.data + WEFTI_ENTRY_HEAD;
    return wefti_unpack_end(&u, "card");
}

weft_status wefti_world_message_encode(const wefti_world_message *m, const wefti_seated *seats,
                                       unsigned char **out, size_t *out_bytes) {
    const size_t room = 72 + WEFTI_TEXT_MAX + WEFTI_SEATED_BYTES * (size_t)m->size;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = packing(*out, room);
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u32(&p, (uint32_t)m->rank);
    wefti_pack_u32(&p, (uint32_t)m->size);
    wefti_pack_u32(&p, (uint32_t)m->first_size);
    wefti_pack_u32(&p, (uint32_t)m->numbers);
    wefti_pack_u64(&p, m->whole);
    wefti_pack_u32(&p, (uint32_t)m->hosted_by);
    wefti_pack_u64(&p, (uint64_t)m->heartbeat_ns);
    wefti_pack_u32(&p, (uint32_t)m->mends | (uint32_t)m->newcomer << 1 | (uint32_t)m->resizes << 2);
    wefti_pack_u32(&p, (uint32_t)m->used);
    wefti_pack_u32(&p, (uint32_t)m->deaths);
    wefti_pack_u32(&p, (uint32_t)m->failed);
    wefti_pack_text(&p, m->text, WEFTI_TEXT_MAX);
    wefti_pack_seats(&p, seats, m->size);
    *out_bytes = p.used;
    return WEFT_OK;
}

static bool is_world(const wefti_world_message *m, uint32_t flags) {
    if (m->used < 0 || m->deaths < 0 || m->failed < 0 || m->failed >= WEFTI_RANKS_MAX) return false;
    if (m->generation == 0 || m->whole == 0 || m->whole > m->generation) return false;
    if (m->first_size <= 0 || m->first_size > WEFTI_RANKS_MAX) return false;
    return m->size > 0 && m->size <= WEFTI_RANKS_MAX && m->rank >= 0 && m->rank < m->size &&
           m->hosted_by >= -1 && m->hosted_by < m->size && m->heartbeat_ns > 0 && flags <= 7 &&
           flags != 2;
}

weft_status wefti_world_message_decode(const wefti_frame *frame, wefti_world_message *out,
                                       wefti_seated **out_seats) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = wefti_unpack_u64(&u);
    out->rank = (int32_t)wefti_unpack_u32(&u);
    out->size = (int32_t)wefti_unpack_u32(&u);
    out->first_size = (int32_t)wefti_unpack_u32(&u);
    out->numbers = (int32_t)wefti_unpack_u32(&u);
    out->whole = wefti_unpack_u64(&u);
    out->hosted_by = (int32_t)wefti_unpack_u32(&u);
    out->heartbeat_ns = (int64_t)wefti_unpack_u64(&u);
    const uint32_t flags = wefti_unpack_u32(&u);
    out->mends = flags & 1;
    out->newcomer = flags & 2;
    out->resizes = flags & 4;
    out->used = (int32_t)wefti_unpack_u32(&u);
    out->deaths = (int32_t)wefti_unpack_u32(&u);
    out->failed = (int32_t)wefti_unpack_u32(&u);
    wefti_unpack_text(&u, out->text, WEFTI_TEXT_MAX);
    if (!is_world(out, flags)) u.bad = true;
    return wefti_unpack_seats(&u, "world", out->numbers, &out->size, out_seats);
}
