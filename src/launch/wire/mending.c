/* Bodies of the frames by which a world is mended: see wire.h. */
#include <string.h>

#include "base/memory.h"
#include "launch/wire/wire.h"

/* No generation is 0, and all are times: numbers of 63 bits. */
static uint64_t unpack_generation(wefti_unpack *u) {
    uint64_t generation = wefti_unpack_u64(u);
    if (generation == 0 || generation > INT64_MAX) u->bad = true;
    return generation;
}

static size_t bytes_of_fits(int32_t most) {
    return most > 0 ? (size_t)most / 8 + 1 : 0;
}

size_t wefti_arm_encode(const wefti_arm *m, unsigned char out[WEFTI_ARM_BYTES]) {
    wefti_pack p = {.data = out, .room = WEFTI_ARM_BYTES};
    const size_t bytes = bytes_of_fits(m->most);
    wefti_pack_u32(&p, (uint32_t)m->least);
    wefti_pack_u32(&p, (uint32_t)m->patience_s);
    wefti_pack_u32(&p, (uint32_t)m->most);
    memcpy(out + p.used, m->fits, bytes);
    return p.used + bytes;
}

weft_status wefti_arm_decode(const wefti_frame *frame, wefti_arm *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->least = (int32_t)wefti_unpack_u32(&u);
    out->patience_s = (int32_t)wefti_unpack_u32(&u);
    out->most = (int32_t)wefti_unpack_u32(&u);
    if (out->least < 0 || out->least > WEFTI_RANKS_MAX || out->patience_s < 0 || out->most < 0 ||
        out->most > WEFTI_RANKS_MAX || u.bytes - u.at != bytes_of_fits(out->most))
        u.bad = true;
    if (!u.bad) {
        memcpy(out->fits, u.data + u.at, bytes_of_fits(out->most));
        u.at = u.bytes;
    }
    return wefti_unpack_end(&u, "arm");
}

size_t wefti_halt_encode(const wefti_halt *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u32(&p, (uint32_t)m->failed);
    wefti_pack_u32(&p, (uint32_t)m->used);
    wefti_pack_text(&p, m->text, WEFTI_TEXT_MAX);
    return p.used;
}

weft_status wefti_halt_decode(const wefti_frame *frame, wefti_halt *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = unpack_generation(&u);
    out->failed = (int32_t)wefti_unpack_u32(&u);
    out->used = (int32_t)wefti_unpack_u32(&u);
    wefti_unpack_text(&u, out->text, WEFTI_TEXT_MAX);
    if (out->used < 0 || out->failed < 0 || out->failed >= WEFTI_RANKS_MAX) u.bad = true;
    return wefti_unpack_end(&u, "halt");
}

weft_status wefti_standing_encode(uint64_t generation, const wefti_stand *at, unsigned char **out,
                                  size_t *out_bytes) {
    size_t room = 24 + 4 * (size_t)at->holds_count;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u64(&p, generation);
    wefti_pack_u64(&p, (uint64_t)at->step);
    wefti_pack_u32(&p, at->ready);
    wefti_pack_u32(&p, (uint32_t)at->holds_count);
    for (int32_t i = 0; i < at->holds_count; i++) wefti_pack_u32(&p, (uint32_t)at->holds[i]);
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_standing_decode(const wefti_frame *frame, int32_t size, uint64_t *out_generation,
                                  wefti_stand *out, int32_t **out_holds) {
    wefti_unpack u = wefti_unpack_of(frame);
    int32_t *holds = NULL, last = -1;
    *out_generation = unpack_generation(&u);
    out->step = (int64_t)wefti_unpack_u64(&u);
    uint32_t ready = wefti_unpack_u32(&u), count = wefti_unpack_u32(&u);
    out->ready = ready == 1;
    if (out->step < -1 || ready > 1 || count > (uint32_t)size ||
        u.bytes - u.at != 4 * (size_t)count || (out->step < 0 && (ready || count)))
        u.bad = true;
    if (u.bad) return wefti_unpack_end(&u, "standing");
    if (count > 0) WEFT_NEW_ARRAY(holds, int32_t, count);
    for (uint32_t i = 0; i < count; i++) {
        holds[i] = (int32_t)wefti_unpack_u32(&u);
        if (holds[i] <= last || holds[i] >= size) u.bad = true;
        last = holds[i];
    }
    if (u.bad) {
        wefti_free(holds);
    } else {
        out->holds = *out_holds = holds;
        out->holds_count = (int32_t)count;
    }
    return wefti_unpack_end(&u, "standing");
}

weft_status wefti_mend_encode(const wefti_mend_message *m, const wefti_mend_rank *ranks,
                              const wefti_seated *seats, unsigned char **out, size_t *out_bytes) {
    const size_t room = 32 + (8 + WEFTI_SEATED_BYTES) * (size_t)m->size;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u64(&p, (uint64_t)m->target);
    wefti_pack_u32(&p, (uint32_t)m->rank);
    wefti_pack_u32(&p, (uint32_t)m->size);
    wefti_pack_u32(&p, m->resized);
    wefti_pack_u32(&p, (uint32_t)m->numbers);
    for (int32_t r = 0; r < m->size; r++) {
        wefti_pack_u32(&p, (uint32_t)ranks[r].source);
        wefti_pack_u32(&p, (uint32_t)ranks[r].was);
    }
    wefti_pack_seats(&p, seats, m->size);
    *out_bytes = p.used;
    return WEFT_OK;
}

static void unpack_ranks(wefti_unpack *u, wefti_mend_rank *ranks, int32_t size) {
    for (int32_t r = 0; r < size; r++) {
        wefti_mend_rank *x = &ranks[r];
        x->source = (int32_t)wefti_unpack_u32(u);
        x->was = (int32_t)wefti_unpack_u32(u);
        if (x->source < -3 || x->source >= size || x->source == r || x->was < -1 ||
            x->was >= WEFTI_RANKS_MAX)
            u->bad = true;
    }
}

weft_status wefti_mend_decode(const wefti_frame *frame, wefti_mend_message *out,
                              wefti_mend_rank **out_ranks, wefti_seated **out_seats) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = unpack_generation(&u);
    out->target = (int64_t)wefti_unpack_u64(&u);
    out->rank = (int32_t)wefti_unpack_u32(&u);
    out->size = (int32_t)wefti_unpack_u32(&u);
    const uint32_t resized = wefti_unpack_u32(&u);
    out->resized = resized == 1;
    out->numbers = (int32_t)wefti_unpack_u32(&u);
    if (resized > 1 || out->target < 0 || out->size <= 0 || out->size > WEFTI_RANKS_MAX ||
        out->rank < 0 || out->rank >= out->size || u.bytes - u.at < 8 * (size_t)out->size)
        u.bad = true;
    if (u.bad) return wefti_unpack_end(&u, "mend");
    wefti_mend_rank *ranks;
    WEFT_NEW_ARRAY(ranks, wefti_mend_rank, out->size);
    unpack_ranks(&u, ranks, out->size);
    weft_status status = wefti_unpack_seats(&u, "mend", out->numbers, &out->size, out_seats);
    if (status < 0)
        wefti_free(ranks);
    else
        *out_ranks = ranks;
    return status;
}

void wefti_go_encode(uint64_t generation, int32_t used, unsigned char out[WEFTI_GO_BYTES]) {
    wefti_pack p = {.data = out, .room = WEFTI_GO_BYTES};
    wefti_pack_u64(&p, generation);
    wefti_pack_u32(&p, (uint32_t)used);
}

weft_status wefti_go_decode(const wefti_frame *frame, uint64_t *out, int32_t *out_used) {
    wefti_unpack u = wefti_unpack_of(frame);
    *out = unpack_generation(&u);
    *out_used = (int32_t)wefti_unpack_u32(&u);
    if (*out_used < 0) u.bad = true;
    return wefti_unpack_end(&u, "go");
}

void wefti_generation_encode(uint64_t generation, unsigned char out[WEFTI_GENERATION_BYTES]) {
    wefti_pack p = {.data = out, .room = WEFTI_GENERATION_BYTES};
    wefti_pack_u64(&p, generation);
}

weft_status wefti_generation_decode(const wefti_frame *frame, uint64_t *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    *out = unpack_generation(&u);
    return wefti_unpack_end(&u, "generation");
}
