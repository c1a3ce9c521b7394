/* Reductions that send as few bytes between hosts as possible. For each share, the members of a
 * host send their parts to one member, which reduces them. Partial results go from host to host,
 * and the last host has the result. In an all-reduce the result returns the same way, and each
 * host spreads it. So each byte leaves each host but the last once on the way there, and each host
 * but the first once on the way back.
 *
 * The order of additions is still the order of members: a host continues the partial result of the
 * hosts before it. That requires the members of a host to be neighbours in the group. Hosts that
 * reduced in parallel and were then added up would need fewer steps, but give other bits. For
 * integers, whose order makes no difference, each share has its own last host, which balances the
 * load. Halves are summed in f32 and rounded once, so they have no partial results and do not use
 * this algorithm.
 *
 * A round is a step of all members: a message that is sent in a round is needed at the end of that
 * round. So no members wait in a circle, and both sides list messages in one order. */
#include "base/number.h"
#include "comm/schedule/build.h"

enum { SLOTS = 3 /* segments that are staged at a time */ };

typedef struct share {
    wefti_commsched_span all;
    int32_t home, part,
        last; /* the member that wants it (-1: all); the responsible part on hosts; the last host */
    wefti_commsched_place in,
        out; /* of the responsible member: received parts, [SLOTS][sources]; the result */
    int64_t in_bytes;
} share;

typedef struct host_reduce_work {
    wefti_commsched_build *b;
    const wefti_commsched_hosts *hosts;
    int64_t parts;
    int32_t shares, mine; /* mine: this member's host */
    share *share;
    int64_t *raw, *partial; /* [shares][parts]: sends to the responsible member; to the next host */
    wefti_commsched_place *from; /* [members + 1] */
} host_reduce_work;

bool wefti_commsched_exact(const wefti_commsched_build *b) {
    return b->t->dtype != WEFT_BF16 && b->t->dtype != WEFT_F16;
}
static bool any_order(const wefti_commsched_build *b) {
    weft_dtype d = b->t->dtype;
    return d != WEFT_F32 && d != WEFT_F64 && wefti_commsched_exact(b);
}

bool wefti_commsched_host_possible(const wefti_commsched_build *b) {
    const wefti_commsched_hosts *h = &b->hosts;
    if (h->hosts < 2 || h->most < 2 || b->form == WEFTI_COMMSCHED_GENERAL) return false;
    if (b->form == WEFTI_COMMSCHED_ALL_GATHER || b->form == WEFTI_COMMSCHED_BROADCAST) return true;
    if (b->form == WEFTI_COMMSCHED_REDUCE && b->wanting > 1) return false;
    return wefti_commsched_exact(b) && (h->in_order || any_order(b));
}

/* --- shares --- */

static int32_t shares_of(const wefti_commsched_build *b) {
    if (b->form == WEFTI_COMMSCHED_REDUCE_SCATTER) return b->t->members;
    bool turns = b->form == WEFTI_COMMSCHED_ALL_REDUCE && any_order(b);
    return b->hosts.most * (turns ? b->hosts.hosts : 1);
}

int64_t wefti_commsched_host_parts(const wefti_commsched_build *b) {
    const wefti_transfer *t = b->t;
    int64_t most = 0, parts;
    bool gathers = b->form == WEFTI_COMMSCHED_ALL_GATHER;
    if (b->form == WEFTI_COMMSCHED_BROADCAST)
        return wefti_commsched_chunks(wefti_commsched_bytes(b, &t->have[b->root]));
    if (gathers || b->form == WEFTI_COMMSCHED_REDUCE_SCATTER)
        for (int32_t m = 0; m < t->members; m++) {
            int64_t bytes = wefti_commsched_bytes(b, gathers ? &t->have[m] : &t->want[m]);
            most = bytes > most ? bytes : most;
        }
    else
        most = wefti_commsched_bytes(b, &t->have[0]) / shares_of(b);
    parts = (most + WEFTI_COMMSCHED_CHUNK - 1) / WEFTI_COMMSCHED_CHUNK;
    return parts < 1 ? 1 : parts > 256 ? 256 : parts;
}

static void choose_share(const host_reduce_work *w, int32_t s, share *out) {
    const wefti_commsched_build *b = w->b;
    const wefti_commsched_hosts *h = w->hosts;
    bool turns = any_order(b);
    *out = (share){.home = -1, .part = s % h->most, .last = h->hosts - 1};
    switch (b->form) {
    case WEFTI_COMMSCHED_REDUCE_SCATTER:
        out->home = s;
        out->part = h->place[s];
        out->all.count = wefti_region_elems(&b->t->want[s], b->t->rank);
        (void)wefti_commsched_run(&b->t->want[s], &b->t->have[0], b->t->rank, &out->all.begin);
        break;
    case WEFTI_COMMSCHED_REDUCE:
        out->home = b->first;
        out->all = wefti_commsched_part(b, wefti_commsched_whole(b), s, w->shares);
        break;
    default:
        if (turns) out->last = s / h->most;
        out->all = wefti_commsched_part(b, wefti_commsched_whole(b), s, w->shares);
    }
    if (turns && out->home >= 0) out->last = h->host[out->home];
}

/* How many hosts have reduced a share before this one has. */
static int32_t position(const host_reduce_work *w, const share *s, int32_t host) {
    int32_t n = w->hosts->hosts;
    return (host - s->last - 1 + 2 * n) % n;
}
static int32_t at_position(const host_reduce_work *w, const share *s, int32_t i) {
    return (s->last + 1 + i) % w->hosts->hosts;
}
static int32_t charge(const host_reduce_work *w, const share *s, int32_t host) {
    return wefti_commsched_hosts_responsible(w->hosts, host, s->part);
}
static bool is_mine(const host_reduce_work *w, const share *s) {
    return charge(w, s, w->mine) == w->b->t->me;
}
static wefti_commsched_span segment(const host_reduce_work *w, const share *s, int64_t q) {
    return wefti_commsched_part(w->b, s->all, q, w->parts);
}
static int64_t bytes_of(const host_reduce_work *w, const share *s, int64_t q) {
    return segment(w, s, q).count * w->b->element;
}

static wefti_commsched_place in_array(const host_reduce_work *w, wefti_commsched_array array,
                                      int64_t element) {
    return wefti_commsched_at(array, element * w->b->element);
}
/* Where its home wants it. */
static wefti_commsched_place wanted(const host_reduce_work *w, const share *s, int64_t q) {
    int64_t skip = w->b->form == WEFTI_COMMSCHED_REDUCE_SCATTER ? s->all.begin : 0;
    return in_array(w, WEFTI_COMMSCHED_DESTINATION, segment(w, s, q).begin - skip);
}

/* Where the responsible member of the host at position i has the partial result. */
static wefti_commsched_place reduced(const host_reduce_work *w, const share *s, int64_t q,
                                     int32_t i) {
    wefti_commsched_span part = segment(w, s, q);
    bool last = i == w->hosts->hosts - 1;
    if (i == 0 && wefti_commsched_hosts_count(w->hosts, w->mine) == 1)
        return in_array(w, WEFTI_COMMSCHED_SOURCE, part.begin);
    if (s->home < 0 || (last && s->home == w->b->t->me)) return wanted(w, s, q);
    return wefti_commsched_at(WEFTI_COMMSCHED_STAGE,
                              s->out.offset + (part.begin - s->all.begin) * w->b->element);
}

static void make_room(host_reduce_work *w, share *s) {
    if (!is_mine(w, s)) return;
    for (int64_t q = 0; q < w->parts; q++)
        if (bytes_of(w, s, q) > s->in_bytes) s->in_bytes = bytes_of(w, s, q);
    s->in_bytes = wefti_aligned(s->in_bytes);
    s->in = wefti_commsched_stage_space(
        w->b, SLOTS * s->in_bytes * (1 + wefti_commsched_hosts_count(w->hosts, w->mine)));
    if (s->home >= 0) s->out = wefti_commsched_stage_space(w->b, s->all.count * w->b->element);
}

/* --- there --- */

/* Source number n of a segment. */
static wefti_commsched_place room_of(const host_reduce_work *w, const share *s, int64_t q,
                                     int32_t n) {
    int64_t sources = 1 + wefti_commsched_hosts_count(w->hosts, w->mine);
    return wefti_commsched_at(WEFTI_COMMSCHED_STAGE,
                              s->in.offset + (q % SLOTS * sources + n) * s->in_bytes);
}

/* Segment q of a share, in round q + position: members send their parts to the responsible member,
 * the previous host sends its partial result, and the responsible member reduces them. */
static weft_status collect(host_reduce_work *w, int32_t number, int64_t q) {
    wefti_commsched_build *b = w->b;
    share *s = &w->share[number];
    int32_t i = position(w, s, w->mine), me = b->t->me, now = wefti_commsched_current_round(b),
            sources = 0;
    int64_t bytes = bytes_of(w, s, q);
    wefti_commsched_place own = in_array(w, WEFTI_COMMSCHED_SOURCE, segment(w, s, q).begin);
    if (!is_mine(w, s)) {
        WEFT_TRY(wefti_commsched_send(b, charge(w, s, w->mine), own, bytes));
        w->raw[number * w->parts + q] = b->plan->sends - 1;
        return WEFT_OK;
    }
    int32_t gate = q < SLOTS ? 0 : now - SLOTS + 1; /* its last user has been reduced */
    if (i > 0) {
        int32_t before = charge(w, s, at_position(w, s, i - 1));
        w->from[sources++] = room_of(w, s, q, 0);
        WEFT_TRY(wefti_commsched_receive_gated(b, before, w->from[0], bytes, now, gate, -1));
    }
    for (int32_t n = 0; n < wefti_commsched_hosts_count(w->hosts, w->mine); n++) {
        int32_t m = w->hosts->member[w->hosts->begin[w->mine] + n];
        w->from[sources] = m == me ? own : room_of(w, s, q, 1 + n);
        if (m != me)
            WEFT_TRY(wefti_commsched_receive_gated(b, m, w->from[sources], bytes, now, gate, -1));
        sources++;
    }
    if (sources < 2) return WEFT_OK;
    return wefti_commsched_op_flat(b, segment(w, s, q).count, reduced(w, s, q, i), sources,
                                   w->from);
}

/* In the round after, the partial result goes to the next host. The last host keeps the result, or
 * sends it to the member that wants it. */
static weft_status go_on(host_reduce_work *w, int32_t number, int64_t q) {
    wefti_commsched_build *b = w->b;
    share *s = &w->share[number];
    int32_t i = position(w, s, w->mine), end = w->hosts->hosts - 1, to = s->home;
    if (i < end) to = charge(w, s, at_position(w, s, i + 1));
    if (!is_mine(w, s) || to < 0 || to == b->t->me) return WEFT_OK;
    WEFT_TRY(wefti_commsched_send(b, to, reduced(w, s, q, i), bytes_of(w, s, q)));
    w->partial[number * w->parts + q] = b->plan->sends - 1;
    return WEFT_OK;
}

/* The result of a share that this member wants and has not made. Where source and destination are
 * the same, what was sent from there has left, and what was reduced from there has been. */
static weft_status come_home(host_reduce_work *w, int32_t number, int64_t q) {
    share *s = &w->share[number];
    int32_t me = w->b->t->me, maker = charge(w, s, s->last);
    if (s->home != me || maker == me) return WEFT_OK;
    int64_t sent = is_mine(w, s) ? -1 : w->raw[number * w->parts + q];
    int32_t gate = is_mine(w, s) ? (int32_t)q + position(w, s, w->mine) + 1 : 0;
    if (is_mine(w, s)) sent = w->partial[number * w->parts + q];
    return wefti_commsched_receive_gated(w->b, maker, wanted(w, s, q), bytes_of(w, s, q),
                                         wefti_commsched_current_round(w->b), gate, sent);
}

/* --- back --- */

/* From host to host against the order of positions. */
static weft_status go_back(host_reduce_work *w, int32_t number, int64_t q, int32_t to) {
    share *s = &w->share[number];
    int32_t i = position(w, s, w->mine);
    if (!is_mine(w, s)) return WEFT_OK;
    if (i == to + 1)
        return wefti_commsched_send(w->b, charge(w, s, at_position(w, s, to)), wanted(w, s, q),
                                    bytes_of(w, s, q));
    if (i != to) return WEFT_OK;
    return wefti_commsched_receive_gated(
        w->b, charge(w, s, at_position(w, s, i + 1)), wanted(w, s, q), bytes_of(w, s, q),
        wefti_commsched_current_round(w->b), 0, w->partial[number * w->parts + q]);
}

/* To all of the host. */
static weft_status spread(host_reduce_work *w, int32_t number, int64_t q) {
    share *s = &w->share[number];
    wefti_commsched_build *b = w->b;
    if (!is_mine(w, s))
        return wefti_commsched_receive_gated(b, charge(w, s, w->mine), wanted(w, s, q),
                                             bytes_of(w, s, q), wefti_commsched_current_round(b), 0,
                                             w->raw[number * w->parts + q]);
    for (int32_t n = 0; n < wefti_commsched_hosts_count(w->hosts, w->mine); n++) {
        int32_t m = w->hosts->member[w->hosts->begin[w->mine] + n];
        if (m != b->t->me) WEFT_TRY(wefti_commsched_send(b, m, wanted(w, s, q), bytes_of(w, s, q)));
    }
    return WEFT_OK;
}

/* --- all of it --- */

static bool is_part(const host_reduce_work *w, int64_t q) {
    return q >= 0 && q < w->parts;
}

static weft_status build_share(host_reduce_work *w, int32_t number, int64_t round) {
    const share *s = &w->share[number];
    int32_t i = position(w, s, w->mine), n = w->hosts->hosts;
    if (is_part(w, round - i - 1)) WEFT_TRY(go_on(w, number, round - i - 1));
    if (is_part(w, round - i)) WEFT_TRY(collect(w, number, round - i));
    if (s->home >= 0) return is_part(w, round - n) ? come_home(w, number, round - n) : WEFT_OK;
    for (int32_t to = i - 1; to <= i; to++) /* as sender, as receiver */
        if (to >= 0 && to < n - 1 && is_part(w, round - (2 * n - 2 - to)))
            WEFT_TRY(go_back(w, number, round - (2 * n - 2 - to), to));
    if (!is_part(w, round - (2 * n - 1 - i))) return WEFT_OK;
    return spread(w, number, round - (2 * n - 1 - i));
}

static weft_status build(host_reduce_work *w) {
    int32_t n = w->hosts->hosts;
    int64_t rounds = w->parts + (w->b->form == WEFTI_COMMSCHED_ALL_REDUCE ? 2 * n - 1 : n);
    for (int32_t s = 0; s < w->shares; s++) {
        choose_share(w, s, &w->share[s]);
        make_room(w, &w->share[s]);
    }
    for (int64_t r = 0; r < rounds; r++) {
        WEFT_TRY(wefti_commsched_begin_round(w->b));
        for (int32_t s = 0; s < w->shares; s++) WEFT_TRY(build_share(w, s, r));
    }
    return WEFT_OK;
}

weft_status wefti_commsched_host_reduce(wefti_commsched_build *b) {
    host_reduce_work w = {.b = b,
                          .hosts = &b->hosts,
                          .parts = wefti_commsched_host_parts(b),
                          .shares = shares_of(b),
                          .mine = b->hosts.host[b->t->me]};
    size_t sends = (size_t)w.shares * (size_t)w.parts;
    w.share = wefti_calloc((size_t)w.shares, sizeof *w.share);
    w.raw = wefti_calloc(2 * sends, sizeof *w.raw);
    w.from = wefti_calloc((size_t)b->hosts.most + 1, sizeof *w.from);
    w.partial = w.raw ? w.raw + sends : NULL;
    weft_status status = w.share && w.raw && w.from
                             ? build(&w)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d shares", (int)w.shares);
    wefti_free(w.share);
    wefti_free(w.raw);
    wefti_free(w.from);
    return status;
}
