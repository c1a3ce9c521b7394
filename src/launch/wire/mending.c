/* Bodies of the frames by which a world is mended: see wire.h. */
#include "base/memory.h"
#include "launch/wire/wire.h"

/* No generation is 0, and all are times: numbers of 63 bits. */
static uint64_t unpack_generation(wefti_unpack *u) {
    uint64_t generation = wefti_unpack_u64(u);
    if (generation == 0 || generation > INT64_MAX) u->bad = true;
    return generation;
}

size_t wefti_halt_encode(const wefti_halt *m, unsigned char out[WEFTI_MESSAGE_MAX]) {
    wefti_pack p = {.data = out, .room = WEFTI_MESSAGE_MAX};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u32(&p, (uint32_t)m->failed);
    wefti_pack_text(&p, m->text, WEFTI_TEXT_MAX);
    return p.used;
}

weft_status wefti_halt_decode(const wefti_frame *frame, wefti_halt *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = unpack_generation(&u);
    out->failed = (int32_t)wefti_unpack_u32(&u);
    wefti_unpack_text(&u, out->text, WEFTI_TEXT_MAX);
    if (out->failed < 0 || out->failed >= WEFTI_RANKS_MAX) u.bad = true;
    return wefti_unpack_end(&u, "halt");
}

weft_status wefti_standing_encode(const wefti_standing_message *m, const int32_t *holds,
                                  int32_t count, unsigned char **out, size_t *out_bytes) {
    size_t room = 24 + 4 * (size_t)count;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u64(&p, (uint64_t)m->step);
    wefti_pack_u32(&p, m->ready);
    wefti_pack_u32(&p, (uint32_t)count);
    for (int32_t i = 0; i < count; i++) wefti_pack_u32(&p, (uint32_t)holds[i]);
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_standing_decode(const wefti_frame *frame, int32_t size,
                                  wefti_standing_message *out, int32_t **out_holds,
                                  int32_t *out_count) {
    wefti_unpack u = wefti_unpack_of(frame);
    int32_t *holds = NULL, last = -1;
    out->generation = unpack_generation(&u);
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
        *out_holds = holds;
        *out_count = (int32_t)count;
    }
    return wefti_unpack_end(&u, "standing");
}

weft_status wefti_mend_encode(const wefti_mend_message *m, const int32_t *source, int32_t size,
                              unsigned char **out, size_t *out_bytes) {
    size_t room = 16 + 4 * (size_t)size;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u64(&p, (uint64_t)m->target);
    for (int32_t r = 0; r < size; r++) wefti_pack_u32(&p, (uint32_t)source[r]);
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_mend_decode(const wefti_frame *frame, int32_t size, wefti_mend_message *out,
                              int32_t *source) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = unpack_generation(&u);
    out->target = (int64_t)wefti_unpack_u64(&u);
    if (out->target < 0) u.bad = true;
    for (int32_t r = 0; r < size; r++) {
        source[r] = (int32_t)wefti_unpack_u32(&u);
        if (source[r] < -2 || source[r] >= size || source[r] == r) u.bad = true;
    }
    return wefti_unpack_end(&u, "mend");
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
