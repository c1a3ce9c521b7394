/* From the one that has it to all that want it: along a binomial tree, whose depth is the logarithm
 * of their number, or for much data along a chain, in chunks that follow each other. Places are
 * counted from the one that has it on. */
#include "comm/rounds_build.h"

typedef struct line {
    int32_t *member; /* [places] */
    int32_t places, mine;
} line;

static weft_status line_up(const wefti_rounds_build *b, line *out) {
    const wefti_transfer *t = b->t;
    *out = (line){.mine = -1};
    WEFT_NEW_ARRAY(out->member, int32_t, t->members);
    for (int32_t i = 0; i < t->members; i++) {
        int32_t m = (b->root + i) % t->members;
        if (i > 0 && wefti_box_elems(&t->want[m], t->rank) == 0) continue;
        if (m == t->me) out->mine = out->places;
        out->member[out->places++] = m;
    }
    return WEFT_OK;
}

static wefti_rounds_array array_of(const line *l) {
    return l->mine == 0 ? WEFTI_ROUNDS_SOURCE : WEFTI_ROUNDS_DESTINATION;
}

/* What the one that has it wants for itself. */
static weft_status keep(wefti_rounds_build *b) {
    const wefti_transfer *t = b->t;
    wefti_rounds_place source = {WEFTI_ROUNDS_SOURCE, 0};
    if (t->me != b->root || wefti_box_elems(&t->want[t->me], t->rank) == 0) return WEFT_OK;
    return wefti_rounds_op_flat(b, wefti_box_elems(&t->want[t->me], t->rank),
                                wefti_rounds_at(WEFTI_ROUNDS_DESTINATION, 0), 1, &source);
}

static weft_status build_tree(wefti_rounds_build *b, const line *l) {
    int64_t bytes = wefti_rounds_bytes(b, &b->t->have[b->root]);
    WEFT_TRY(wefti_rounds_begin(b));
    if (l->mine < 0) return WEFT_OK;
    int32_t reach = 1; /* places mine + 1 .. mine + reach - 1 hear it from this one */
    while (l->mine == 0 ? reach < l->places : !(l->mine & reach)) reach *= 2;
    if (l->mine > 0)
        WEFT_TRY(wefti_rounds_receive(b, l->member[l->mine - reach],
                                      wefti_rounds_at(WEFTI_ROUNDS_DESTINATION, 0), bytes, 0));
    WEFT_TRY(wefti_rounds_begin(b));
    for (int32_t far = reach / 2; far >= 1; far /= 2)
        if (l->mine + far < l->places)
            WEFT_TRY(wefti_rounds_send(b, l->member[l->mine + far], wefti_rounds_at(array_of(l), 0),
                                       bytes));
    return keep(b);
}

static weft_status build_chain(wefti_rounds_build *b, const line *l) {
    int64_t bytes = wefti_rounds_bytes(b, &b->t->have[b->root]);
    int64_t chunks = wefti_rounds_chunks(bytes);
    for (int64_t k = 0; k <= chunks; k++) {
        int64_t gone = bytes * (k - 1) / chunks, now = bytes * k / chunks;
        int64_t next = bytes * (k + 1) / chunks;
        WEFT_TRY(wefti_rounds_begin(b));
        if (l->mine < 0) return WEFT_OK;
        if (k > 0 && l->mine + 1 < l->places)
            WEFT_TRY(wefti_rounds_send(b, l->member[l->mine + 1],
                                       wefti_rounds_at(array_of(l), gone), now - gone));
        if (k < chunks && l->mine > 0)
            WEFT_TRY(wefti_rounds_receive(b, l->member[l->mine - 1],
                                          wefti_rounds_at(WEFTI_ROUNDS_DESTINATION, now),
                                          next - now, (int32_t)k));
    }
    return keep(b);
}

static weft_status with_line(wefti_rounds_build *b,
                             weft_status (*build)(wefti_rounds_build *, const line *)) {
    line l;
    WEFT_TRY(line_up(b, &l));
    weft_status status = build(b, &l);
    wefti_free(l.member);
    return status;
}

weft_status wefti_rounds_tree(wefti_rounds_build *b) {
    return with_line(b, build_tree);
}
weft_status wefti_rounds_spread(wefti_rounds_build *b) {
    return with_line(b, build_chain);
}
