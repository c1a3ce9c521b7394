/* Bodies of the frames by which launchers fill seats again: see wire.h. */
#include "base/memory.h"
#include "launch/wire/wire.h"

static bool is_span(const wefti_span *span, int32_t least) {
    return span->first >= least && span->first < WEFTI_RANKS_MAX && span->count > 0 &&
           span->count <= WEFTI_RANKS_MAX;
}

size_t wefti_registration_encode(const wefti_registration *m,
                                 unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u64(&p, m->launcher);
    wefti_pack_u64(&p, (uint64_t)m->pid);
    wefti_pack_u32(&p, (uint32_t)m->ranks.first);
    wefti_pack_u32(&p, (uint32_t)m->ranks.count);
    wefti_pack_u32(&p, m->waits);
    wefti_pack_text(&p, m->job, WEFTI_NAME_MAX);
    return p.used;
}

weft_status wefti_registration_decode(const wefti_frame *frame, wefti_registration *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->launcher = wefti_unpack_u64(&u);
    out->pid = (int64_t)wefti_unpack_u64(&u);
    out->ranks.first = (int32_t)wefti_unpack_u32(&u);
    out->ranks.count = (int32_t)wefti_unpack_u32(&u);
    const uint32_t waits = wefti_unpack_u32(&u);
    out->waits = waits == 1;
    wefti_unpack_text(&u, out->job, WEFTI_NAME_MAX);
    if (out->launcher == 0 || out->pid <= 0 || waits > 1 || !is_span(&out->ranks, 0)) u.bad = true;
    return wefti_unpack_end(&u, "registration");
}

size_t wefti_keep_encode(const wefti_keep *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u32(&p, (uint32_t)m->seats.first);
    wefti_pack_u32(&p, (uint32_t)m->seats.count);
    wefti_pack_u64(&p, m->launcher);
    wefti_pack_u32(&p, m->again);
    return p.used;
}

weft_status wefti_keep_decode(const wefti_frame *frame, wefti_keep *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->seats.first = (int32_t)wefti_unpack_u32(&u);
    out->seats.count = (int32_t)wefti_unpack_u32(&u);
    out->launcher = wefti_unpack_u64(&u);
    const uint32_t again = wefti_unpack_u32(&u);
    out->again = again == 1;
    if (again > 1) u.bad = true;
    if (!is_span(&out->seats, WEFTI_SEATS_ADDED) || out->launcher == 0) u.bad = true;
    return wefti_unpack_end(&u, "keep");
}

size_t wefti_loss_encode(const wefti_loss *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u32(&p, (uint32_t)m->starts);
    wefti_pack_u32(&p, (uint32_t)m->end.rank);
    wefti_pack_u32(&p, (uint32_t)m->end.code);
    wefti_pack_u32(&p, (uint32_t)m->end.signal);
    wefti_pack_text(&p, m->end.text, WEFTI_TEXT_MAX);
    return p.used;
}

weft_status wefti_loss_decode(const wefti_frame *frame, wefti_loss *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->starts = (int32_t)wefti_unpack_u32(&u);
    if (out->starts <= 0) u.bad = true;
    wefti_unpack_process_end(&u, &out->end);
    return wefti_unpack_end(&u, "loss");
}

size_t wefti_again_encode(const wefti_again_message *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u32(&p, (uint32_t)m->rank);
    wefti_pack_u32(&p, (uint32_t)m->starts);
    wefti_pack_u32(&p, (uint32_t)m->again);
    return p.used;
}

weft_status wefti_again_decode(const wefti_frame *frame, wefti_again_message *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->rank = (int32_t)wefti_unpack_u32(&u);
    out->starts = (int32_t)wefti_unpack_u32(&u);
    const uint32_t again = wefti_unpack_u32(&u);
    out->again = (wefti_again)again;
    if (out->rank < 0 || out->rank >= WEFTI_RANKS_MAX || out->starts <= 0 ||
        again >= WEFTI_AGAIN_PENDING)
        u.bad = true;
    return wefti_unpack_end(&u, "again");
}

enum { SEATS_HEAD = 12 };

weft_status wefti_seats_encode(const wefti_span *seats, int32_t size, const int32_t *deaths,
                               unsigned char **out, size_t *out_bytes) {
    const size_t room = SEATS_HEAD + 4 * (size_t)seats->count;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u32(&p, (uint32_t)seats->first);
    wefti_pack_u32(&p, (uint32_t)seats->count);
    wefti_pack_u32(&p, (uint32_t)size);
    for (int32_t i = 0; i < seats->count; i++) wefti_pack_u32(&p, (uint32_t)deaths[i]);
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_seats_decode(const wefti_frame *frame, wefti_span *out, int32_t *out_size,
                               int32_t **out_deaths) {
    wefti_unpack u = wefti_unpack_of(frame);
    int32_t *deaths = NULL;
    out->first = (int32_t)wefti_unpack_u32(&u);
    out->count = (int32_t)wefti_unpack_u32(&u);
    *out_size = (int32_t)wefti_unpack_u32(&u);
    if (*out_size <= 0 || *out_size > WEFTI_RANKS_MAX) u.bad = true;
    if (!is_span(out, 0) || u.bytes - u.at != 4 * (size_t)out->count) u.bad = true;
    if (u.bad) return wefti_unpack_end(&u, "seats");
    WEFT_NEW_ARRAY(deaths, int32_t, out->count);
    for (int32_t i = 0; i < out->count; i++) {
        deaths[i] = (int32_t)wefti_unpack_u32(&u);
        if (deaths[i] < 0) u.bad = true;
    }
    if (u.bad)
        wefti_free(deaths);
    else
        *out_deaths = deaths;
    return wefti_unpack_end(&u, "seats");
}
