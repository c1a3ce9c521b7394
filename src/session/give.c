/* The state of a rank that a new process takes over: parameters, states and optimizer tensors, from
 * the memory of a replica. They go as one stream of bytes in blocks of one size, with a head in
 * front and a checksum behind. */
#include <string.h>

#include "base/digest/digest.h"
#include "session/parts.h"

enum { STATE_BLOCK = 1 << 20 };

#define NAME "the state of a rank"
#define STATE_TAG (UINT64_C(250) << 56) /* no program has it */

/* ---- who has the state of whom ---- */

static bool is_kept(const wefti_tensor *t) {
    return t->role <= WEFTI_TENSOR_OPTIMIZER;
}

static bool same_region(const wefti_site *x, const wefti_site *y, int32_t i) {
    const wefti_tensor *t = &x->tensors[i];
    const wefti_region a = wefti_site_region(x, t), b = wefti_site_region(y, &y->tensors[i]);
    if (t->layout.sum || t->layout.max) return false; /* each rank has a term of its own */
    for (int d = 0; d < t->whole.rank; d++)
        if (a.begin[d] != b.begin[d] || a.size[d] != b.size[d]) return false;
    return true;
}

bool wefti_session_replicates(const weft_session *s, int32_t a, int32_t b) {
    if (!s->plan || s->plan->mode == WEFT_PARALLEL_MANUAL) return false;
    for (int64_t i = 0; i < s->view_count; i++) {
        const wefti_site *x = &s->views[i]->sites[a], *y = &s->views[i]->sites[b];
        if (x->facts.mesh.first != y->facts.mesh.first) return false; /* of another stage */
        for (int32_t t = 0; t < x->facts.tensor_count; t++)
            if (is_kept(&x->tensors[t]) && !same_region(x, y, t)) return false;
    }
    return true;
}

/* ---- the stream ---- */

typedef struct stream {
    wefti_endpoint *endpoint;
    char *block;
    bool gives;
    int64_t at; /* in the block */
    uint32_t crc;
} stream;

static weft_status exchange(stream *x) {
    x->at = 0;
    return wefti_comm_run(x->endpoint, x->gives ? x->block : NULL, x->gives ? NULL : x->block);
}

/* Moves `bytes` at `memory` of a device; NULL: of the host, where `memory` NULL means that they are
 * of no use. */
static weft_status move_bytes(stream *x, wefti_device *device, void *memory, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        if (x->at == STATE_BLOCK) WEFT_TRY(exchange(x));
        const int64_t left = bytes - done,
                      part = STATE_BLOCK - x->at < left ? STATE_BLOCK - x->at : left;
        char *here = x->block + x->at, *there = memory ? (char *)memory + done : NULL;
        weft_status status = WEFT_OK;
        if (device && x->gives)
            status = wefti_device_read(device, here, there, part);
        else if (device)
            status = wefti_device_write(device, there, here, part);
        else if (there)
            memcpy(x->gives ? here : there, x->gives ? there : here, (size_t)part);
        WEFT_TRY(status);
        x->crc = wefti_crc32c(x->crc, here, (size_t)part);
        x->at += part;
        done += part;
    }
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

/* ---- what goes ---- */

typedef struct state_head {
    int64_t step, bytes;
    uint64_t tensors; /* names and sizes, as a digest */
} state_head;

typedef weft_status of_tensor(const weft_session *s, const wefti_tensor *t, void *context);

/* Each kept tensor of this process's device, once, in one order on all replicas. */
static weft_status for_each(const weft_session *s, of_tensor *call, void *context) {
    for (int64_t i = 0; i < s->view_count; i++) {
        const wefti_program *p = s->views[i]->own;
        for (int32_t t = 0; t < p->tensor_count; t++) {
            const wefti_tensor *x = &p->tensors[t];
            if (!is_kept(x) || (i && wefti_program_tensor(s->views[0]->own, x->name))) continue;
            WEFT_TRY(call(s, x, context));
        }
    }
    return WEFT_OK;
}

static weft_status count(const weft_session *s, const wefti_tensor *t, void *context) {
    state_head *h = context;
    (void)s;
    h->bytes += weft_desc_bytes(&t->desc);
    h->tensors = wefti_digest_text(h->tensors, t->name);
    h->tensors = wefti_digest_number(h->tensors, (uint64_t)weft_desc_bytes(&t->desc));
    return WEFT_OK;
}

static weft_status move_tensor(const weft_session *s, const wefti_tensor *t, void *context) {
    wefti_rank_device *d = wefti_workers_device(s->workers, s->me);
    unsigned char *memory = wefti_rank_device_memory(d) + t->offset;
    if (!((stream *)context)->gives)
        wefti_rank_device_observe(d, memory, weft_desc_bytes(&t->desc));
    return move_bytes(context, wefti_rank_device_device(d), memory, weft_desc_bytes(&t->desc));
}

/* A stream that is not wanted is read to its end: the giver waits for that. */
static weft_status move_state(weft_session *s, stream *x, int64_t target) {
    state_head own = {.step = target, .tensors = 7}, h;
    WEFT_TRY(for_each(s, count, &own));
    h = own;
    WEFT_TRY(move_bytes(x, NULL, &h, sizeof h));
    const bool same = !memcmp(&h, &own, sizeof h);
    WEFT_TRY(same ? for_each(s, move_tensor, x) : move_bytes(x, NULL, NULL, h.bytes));
    const uint32_t crc = x->crc;
    uint32_t told = crc;
    WEFT_TRY(move_bytes(x, NULL, &told, sizeof told));
    if (x->gives) return exchange(x); /* the last block */
    WEFT_REQUIRE(
        same, WEFT_E_MISMATCH,
        "the replica gives %lld bytes after %lld updates, this rank takes %lld after %lld%s",
        (long long)h.bytes, (long long)h.step, (long long)own.bytes, (long long)own.step,
        h.bytes == own.bytes ? ": their tensors differ" : "");
    WEFT_REQUIRE(told == crc, WEFT_E_CORRUPT, "the state that a replica gave is damaged");
    return WEFT_OK;
}

static weft_status give(weft_session *s, int32_t from, int32_t to, int64_t target) {
    stream x = {.gives = from == s->me, .at = from == s->me ? 0 : STATE_BLOCK};
    x.block = wefti_alloc(STATE_BLOCK);
    weft_status status = x.block ? bind(s, from, to, &x.endpoint)
                                 : WEFT_RAISE(WEFT_E_NOMEM, "no memory to give a state");
    if (status >= 0) status = move_state(s, &x, target);
    wefti_comm_unbind(x.endpoint);
    wefti_free(x.block);
    return status;
}

/* Of a rank that gets no state. */
static weft_status check_state(const weft_session *s, int64_t target) {
    const int64_t step = wefti_session_stands(s).step;
    WEFT_REQUIRE(step == target, WEFT_E_MISMATCH,
                 "rank %d has %s, and no other rank gives it the one after %lld updates", s->me,
                 step < 0 ? "no whole state" : "another state", (long long)target);
    return WEFT_OK;
}

weft_status wefti_session_give(weft_session *s, int64_t target, const int32_t *source) {
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < s->devices && status >= 0; r++)
        if (source[r] >= 0 && (r == s->me || source[r] == s->me))
            status = give(s, source[r], r, target);
    if (status >= 0 && source[s->me] < 0) status = check_state(s, target);
    WEFT_TRY(wefti_agree(s->agreement, status));
    if (source[s->me] < 0) return WEFT_OK;
    s->step = target;
    s->torn = s->ready = s->newcomer = false;
    return WEFT_OK;
}
