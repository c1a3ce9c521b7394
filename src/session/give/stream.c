/* Streams of states: see give.h. */
#include "session/give/give.h"

#include <string.h>

#include "base/digest/digest.h"

enum { STATE_BLOCK = 1 << 20 };

#define NAME "the state of a rank"
#define STATE_TAG (UINT64_C(250) << 56) /* no program has it */

/* ---- bytes ---- */

static weft_status exchange(wefti_state_stream *x) {
    x->at = 0;
    if (!x->endpoint) return WEFT_RAISE(WEFT_E_BUG, "a state has more bytes than were counted");
    return wefti_comm_run(x->endpoint, x->gives ? x->block : NULL, x->gives ? NULL : x->block);
}

/* Moves bytes of the host; `memory` NULL: they are of no use. With a home: all of its bytes. */
static weft_status move_bytes(wefti_state_stream *x, const wefti_home *home, void *memory,
                              int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        if (x->at == x->room) WEFT_TRY(exchange(x));
        const int64_t left = bytes - done, part = x->room - x->at < left ? x->room - x->at : left;
        char *here = x->block + x->at, *there = memory ? (char *)memory + done : NULL;
        if (home)
            WEFT_TRY(x->gives ? wefti_home_read(home, done, part, here)
                              : wefti_home_write(home, done, part, here));
        else if (there)
            memcpy(x->gives ? here : there, x->gives ? there : here, (size_t)part);
        x->crc = wefti_crc32c(x->crc, here, (size_t)part);
        x->at += part;
        done += part;
    }
    return WEFT_OK;
}

/* ---- tensors ---- */

/* A region of a tensor, or of a copy, in a device's memory. */
typedef struct state_place {
    const char *name;
    wefti_location home;
    weft_desc desc;    /* of what lies there */
    wefti_region part; /* in its coordinates */
} state_place;

typedef weft_status of_place(const state_place *at, void *context);

static state_place whole_of(const char *name, wefti_location home, const weft_desc *desc) {
    state_place x = {.name = name, .home = home, .desc = *desc};
    for (int d = 0; d < desc->rank; d++) x.part.size[d] = desc->shape[d];
    return x;
}

static bool is_kept(const wefti_tensor *t) {
    return t->role <= WEFTI_TENSOR_OPTIMIZER;
}

/* The pieces of a rank, as it has them itself, or as its holder has them. A holder that shares a
 * piece with its ward has it in a tensor of its own. */
static weft_status for_pieces(const wefti_program *p, const wefti_piece *pieces, int32_t count,
                              of_place *call, void *context) {
    for (int32_t i = 0; i < count; i++) {
        const wefti_piece *x = &pieces[i];
        state_place at = whole_of(x->name, x->home, &x->desc);
        if (x->tensor >= 0) {
            const wefti_tensor *t = &p->tensors[x->tensor];
            wefti_region piece, all;
            wefti_layout_region(&x->layout, &p->mesh, &x->whole, p->rank, &piece);
            wefti_program_region(p, t, &all);
            at.home = t->home;
            at.desc = t->desc;
            for (int d = 0; d < x->desc.rank; d++) {
                at.part.begin[d] = piece.begin[d] - all.begin[d];
                at.part.size[d] = piece.size[d];
            }
        }
        WEFT_TRY(call(&at, context));
    }
    return WEFT_OK;
}

static weft_status for_all(const weft_session *s, int32_t rank, of_place *call, void *context) {
    const wefti_program *first = s->views[0]->programs[rank];
    for (int64_t i = 0; i < s->view_count; i++) {
        const wefti_program *p = s->views[i]->programs[rank];
        for (int32_t t = 0; t < p->tensor_count; t++) {
            const wefti_tensor *x = &p->tensors[t];
            if (!is_kept(x) || (i && wefti_program_tensor(first, x->name))) continue;
            const state_place at = whole_of(x->name, x->home, &x->desc);
            WEFT_TRY(call(&at, context));
        }
    }
    return WEFT_OK;
}

static weft_status for_each(const wefti_state_stream *x, wefti_given what, int32_t rank,
                            of_place *call, void *context) {
    const weft_session *s = x->s;
    const wefti_program *p = s->views[0]->programs[rank];
    state_place at;
    switch (what) {
    case WEFTI_GIVEN_ALL:
        return for_all(s, rank, call, context);
    case WEFTI_GIVEN_OWNED:
        return for_pieces(p, p->owned, p->owned_count, call, context);
    case WEFTI_GIVEN_COPIES:
        return for_pieces(p, p->copies, p->copy_count, call, context);
    case WEFTI_GIVEN_TENSOR:
        at = whole_of(p->tensors[x->tensor].name, p->tensors[x->tensor].home,
                      &p->tensors[x->tensor].desc);
        return call(&at, context);
    }
    return WEFT_OK;
}

/* ---- the stream ---- */

typedef struct state_head {
    int64_t step, bytes;
    uint64_t tensors; /* names and sizes, as a digest */
} state_head;

static int64_t bytes_of(const state_place *at) {
    return wefti_region_elems(&at->part, at->desc.rank) * (int64_t)weft_dtype_bytes(at->desc.dtype);
}

static weft_status count(const state_place *at, void *context) {
    state_head *h = context;
    h->bytes += bytes_of(at);
    h->tensors = wefti_digest_text(h->tensors, at->name);
    h->tensors = wefti_digest_number(h->tensors, (uint64_t)bytes_of(at));
    return WEFT_OK;
}

typedef struct mover {
    wefti_state_stream *x;
    int32_t rank;
} mover;

/* Moves the runs of a region, which are contiguous, in order. */
static weft_status move_place(const state_place *at, void *context) {
    const mover *m = context;
    wefti_rank_device *d = wefti_workers_device(m->x->s->workers, m->rank);
    int64_t run = (int64_t)weft_dtype_bytes(at->desc.dtype), index[WEFT_MAX_RANK] = {0};
    int outer = at->desc.rank; /* dimensions outside of a run */
    if (bytes_of(at) == 0) return WEFT_OK;
    for (bool whole = true; whole && outer > 0;) {
        outer--;
        whole = at->part.size[outer] == at->desc.shape[outer];
        run *= at->part.size[outer];
    }
    for (int k = 0; k >= 0;) {
        int64_t element = 0;
        for (int i = 0; i < at->desc.rank; i++)
            element = element * at->desc.shape[i] + at->part.begin[i] + index[i];
        const wefti_location begin =
            wefti_location_plus(at->home, element * (int64_t)weft_dtype_bytes(at->desc.dtype));
        const wefti_home home = wefti_rank_device_home(d, begin, run);
        if (!m->x->gives) wefti_rank_device_observe(d, begin, run);
        WEFT_TRY(move_bytes(m->x, &home, NULL, run));
        for (k = outer - 1; k >= 0 && ++index[k] == at->part.size[k]; k--) index[k] = 0;
    }
    return WEFT_OK;
}

/* The bytes of a stream, head and checksum included. */
static weft_status count_all(const wefti_state_stream *x, wefti_given what, int32_t rank,
                             int64_t *out) {
    state_head h = {0};
    WEFT_TRY(for_each(x, what, rank, count, &h));
    *out = h.bytes + (int64_t)sizeof h + (int64_t)sizeof(uint32_t);
    return WEFT_OK;
}

/* A stream that is not wanted is read to its end: the giver waits for that. */
static weft_status move_state(wefti_state_stream *x, wefti_given what, int32_t rank,
                              int64_t target) {
    state_head own = {.step = target, .tensors = 7}, h;
    mover m = {x, rank};
    x->crc = 0;
    WEFT_TRY(for_each(x, what, rank, count, &own));
    h = own;
    WEFT_TRY(move_bytes(x, NULL, &h, sizeof h));
    const bool same = !memcmp(&h, &own, sizeof h);
    WEFT_TRY(same ? for_each(x, what, rank, move_place, &m) : move_bytes(x, NULL, NULL, h.bytes));
    const uint32_t crc = x->crc;
    uint32_t told = crc;
    WEFT_TRY(move_bytes(x, NULL, &told, sizeof told));
    if (x->gives) return x->endpoint ? exchange(x) : WEFT_OK; /* the last block */
    WEFT_REQUIRE(same, WEFT_E_MISMATCH,
                 "rank %d is given %lld bytes after %lld updates, and takes %lld after %lld%s",
                 rank, (long long)h.bytes, (long long)h.step, (long long)own.bytes,
                 (long long)own.step, h.bytes == own.bytes ? ": their tensors differ" : "");
    WEFT_REQUIRE(told == crc, WEFT_E_CORRUPT, "the state that rank %d was given is damaged", rank);
    return WEFT_OK;
}

static weft_status bind(const weft_session *s, int32_t from, int32_t to, wefti_endpoint **out) {
    int32_t ranks[2] = {from < to ? from : to, from < to ? to : from};
    wefti_region have[2] = {{{0}, {0}}, {{0}, {0}}}, want[2] = {{{0}, {0}}, {{0}, {0}}};
    have[from > to].size[0] = want[to > from].size[0] = STATE_BLOCK;
    const wefti_transfer t = {.kind = WEFTI_TRANSFER_SEND,
                              .dtype = WEFT_U8,
                              .rank = 1,
                              .members = 2,
                              .me = ranks[1] == s->me,
                              .ranks = ranks,
                              .have = have,
                              .want = want,
                              .tag = STATE_TAG,
                              .name = NAME};
    return s->world->comm->engine->bind(s->world->comm, &t, out);
}

/* Between two devices of this process. */
static weft_status give_here(const wefti_giving *g, wefti_state_stream *x, int64_t target) {
    WEFT_TRY(count_all(x, g->there, g->from, &x->room));
    x->block = wefti_alloc((size_t)x->room);
    WEFT_REQUIRE(x->block, WEFT_E_NOMEM, "no memory to give a state");
    x->gives = true;
    WEFT_TRY(move_state(x, g->there, g->from, target));
    x->gives = false;
    x->at = 0;
    return move_state(x, g->here, g->to, target);
}

static weft_status give_away(const wefti_giving *g, wefti_state_stream *x, int64_t target) {
    const int32_t me = x->s->me;
    x->gives = g->from == me;
    x->room = STATE_BLOCK;
    x->at = x->gives ? 0 : STATE_BLOCK;
    x->block = wefti_alloc(STATE_BLOCK);
    WEFT_REQUIRE(x->block, WEFT_E_NOMEM, "no memory to give a state");
    WEFT_TRY(bind(x->s, g->from, g->to, &x->endpoint));
    return move_state(x, x->gives ? g->there : g->here, me, target);
}

weft_status wefti_state_give(weft_session *s, const wefti_giving *g, int64_t target) {
    wefti_state_stream x = {.s = s, .tensor = g->tensor};
    s->copied = false;
    weft_status status = (s->world ? give_away : give_here)(g, &x, target);
    wefti_comm_unbind(x.endpoint);
    wefti_free(x.block);
    return status;
}
