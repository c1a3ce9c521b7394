/* The body of STATE: how a job does. See wire.h. */
#include "base/memory.h"
#include "launch/wire/wire.h"

static void pack_rank(wefti_pack *p, const wefti_rank_health *r) {
    wefti_pack_u32(p, (uint32_t)r->state);
    wefti_pack_u32(p, (uint32_t)r->host);
    wefti_pack_u64(p, (uint64_t)r->step);
    wefti_pack_u64(p, (uint64_t)r->heard_ns);
    wefti_pack_u64(p, (uint64_t)r->step_ns);
    wefti_pack_u64(p, (uint64_t)r->pace_ns);
}

weft_status wefti_health_encode(const wefti_job_health *m, const wefti_rank_health *rank,
                                unsigned char **out, size_t *out_bytes) {
    enum { HEAD = 44 };
    const size_t room = HEAD + WEFTI_TEXT_MAX + WEFTI_STATE_RANK * (size_t)m->ranks;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u32(&p, (uint32_t)m->state);
    wefti_pack_u64(&p, m->generation);
    wefti_pack_u32(&p, (uint32_t)m->size);
    wefti_pack_u32(&p, (uint32_t)m->here);
    wefti_pack_u32(&p, (uint32_t)m->restarts);
    wefti_pack_u64(&p, (uint64_t)m->heartbeat_ns);
    wefti_pack_text(&p, m->text, WEFTI_TEXT_MAX);
    wefti_pack_u32(&p, (uint32_t)m->ranks);
    for (int32_t r = 0; r < m->ranks; r++) pack_rank(&p, &rank[r]);
    *out_bytes = p.used;
    return WEFT_OK;
}

/* A time of some 290 years at most. */
static int64_t unpack_ns(wefti_unpack *u) {
    const uint64_t ns = wefti_unpack_u64(u);
    if (ns > INT64_MAX) u->bad = true;
    return u->bad ? 0 : (int64_t)ns;
}

static void unpack_rank(wefti_unpack *u, int32_t ranks, wefti_rank_health *out) {
    const uint32_t state = wefti_unpack_u32(u), host = wefti_unpack_u32(u);
    if (state > WEFT_HEALTH_LEAVING || host >= (uint32_t)ranks) u->bad = true;
    out->state = (weft_health_state)state;
    out->host = (int32_t)host;
    out->step = unpack_ns(u);
    out->heard_ns = unpack_ns(u);
    out->step_ns = unpack_ns(u);
    out->pace_ns = unpack_ns(u);
}

weft_status wefti_health_decode(const wefti_frame *frame, wefti_job_health *out,
                                wefti_rank_health **out_rank) {
    wefti_unpack u = wefti_unpack_of(frame);
    wefti_rank_health *rank = NULL;
    const uint32_t state = wefti_unpack_u32(&u);
    out->generation = wefti_unpack_u64(&u);
    const uint32_t size = wefti_unpack_u32(&u), here = wefti_unpack_u32(&u);
    const uint32_t restarts = wefti_unpack_u32(&u);
    out->heartbeat_ns = unpack_ns(&u);
    wefti_unpack_text(&u, out->text, WEFTI_TEXT_MAX);
    const uint32_t ranks = wefti_unpack_u32(&u);
    if (state >= WEFTI_JOB_STATES || size == 0 || size > WEFTI_RANKS_MAX || here > size ||
        restarts > INT32_MAX || (ranks != 0 && ranks != size) ||
        u.bytes - u.at != WEFTI_STATE_RANK * (size_t)ranks)
        u.bad = true;
    *out_rank = NULL;
    if (u.bad) return wefti_unpack_end(&u, "state");
    out->state = (wefti_job_state)state;
    out->size = (int32_t)size;
    out->here = (int32_t)here;
    out->restarts = (int32_t)restarts;
    out->ranks = (int32_t)ranks;
    if (ranks > 0) WEFT_NEW_ARRAY(rank, wefti_rank_health, ranks);
    for (uint32_t r = 0; r < ranks; r++) unpack_rank(&u, (int32_t)ranks, &rank[r]);
    const weft_status status = wefti_unpack_end(&u, "state");
    if (status < 0)
        wefti_free(rank);
    else
        *out_rank = rank;
    return status;
}
