/* Brings the parameters that are not resident to one call of a cell, and frees them after the call.
 * A parameter is not resident if its home has only a piece of it, or lies in a tier below device
 * memory. From there the piece is fetched, one call ahead; it is gathered when the call begins.
 *
 * All parameters of a call are gathered together. With overlap, the transfers for the next call are
 * posted before this call runs, and waited for when the next call begins. An engine that moves data
 * by itself then works during this call. At most two calls' parameters are whole at the same time.
 * Small parameters share a message: they are joined, gathered, and divided again. Large ones have
 * messages of their own, since copying them takes longer than a message costs.
 * Sources: Rajbhandari et al., "ZeRO", SC 2020, section 5.3; for the prefetch, Zhao et al.,
 * "PyTorch FSDP", VLDB 2023, section 3.3.2. */
#include <string.h>

#include "builder/build.h"
#include "builder/tags.h"
#include "graph/lower/lower.h"

/* Of the whole parameter. Measured: between hosts a message costs more than these copies. Between
 * processes of a host both cost about the same, and 1 MiB is slower (docs/reference/benchmarks.md).
 */
enum { SHARED_MESSAGE_BYTES = 64 << 10 };

static bool in_pieces(const wefti_emitter *b, int32_t v) {
    return b->part && v >= 0 && b->root->values[v].kind == WEFTI_VALUE_PARAM &&
           !wefti_layout_equal(&b->dec->sharding[v].storage, &b->dec->sharding[v].use);
}

/* What calls read of a parameter between two calls: it, or the copy of a master. */
static int32_t home_of(const wefti_emitter *b, int32_t v) {
    return b->param_copy[v] >= 0 ? b->param_copy[v] : b->param_buffer[v];
}

/* Whether the home of a value is that of a parameter in a tier below device memory. */
static bool is_below(const wefti_emitter *b, int32_t v) {
    return v >= 0 && b->root->values[v].kind == WEFTI_VALUE_PARAM &&
           wefti_tier_below(b, home_of(b, v));
}

/* The buffer of device memory with this rank's piece of a parameter, which is there from now on. */
static weft_status piece_of(wefti_emitter *b, wefti_section s, int32_t v, int32_t *out) {
    int32_t at = wefti_flight_find(b, WEFTI_FLIGHT_OPERAND, v);
    *out = at < 0 ? home_of(b, v) : b->flights[at].destination.buffer;
    if (at < 0 && is_below(b, v)) {
        WEFT_TRY(wefti_tier_fetch(b, s, v, out));
        at = wefti_flight_find(b, WEFTI_FLIGHT_OPERAND, v);
    }
    return at < 0 ? WEFT_OK : wefti_flight_wait(b, s, at);
}

static weft_status new_buffer(wefti_emitter *b, int32_t v, int32_t *out) {
    const weft_desc whole = wefti_use_desc(b->dec, v),
                    here = wefti_sharding_desc(b->dec, &whole, &b->dec->sharding[v].use);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                              wefti_build_name(b, "gathered ", b->root->values[v].name), out));
    b->buffers[*out].param = b->param_index[v];
    return WEFT_OK;
}

/* ---- many in one message ---- */

bool wefti_gather_packs(const wefti_emitter *b, const weft_desc *whole, const wefti_layout *from,
                        const wefti_layout *to, wefti_division *out) {
    return wefti_layout_bytes(to, &b->p->mesh, whole) <= SHARED_MESSAGE_BYTES &&
           wefti_build_divides(b, whole, to, from, out);
}

/* Parameters that are gathered together, and the transfer that does it. */
typedef struct wefti_gather_pack {
    int count;
    int32_t values[WEFTI_MAX_BUCKET]; /* gathered ahead: the parameters, */
    int32_t divide;                   /* and the routine behind the transfer */
    int64_t elems[WEFTI_MAX_BUCKET];  /* of this rank's piece */
    int64_t outer[WEFTI_MAX_BUCKET];  /* blocks of a piece that are apart in the parameter */
    int32_t parts, transfer;          /* transfer -1: none can */
    weft_desc joined, gathered;
} pack;

static weft_status find_packed_transfer(wefti_emitter *b, const wefti_division *x, uint64_t tag,
                                        pack *p) {
    const wefti_route *route;
    wefti_transfer *t;
    wefti_layout from = wefti_layout_replicated(2), to = from;
    from.dim[0] = x->axes;
    wefti_layout_normal(&from, &b->p->mesh, &p->gathered);
    p->transfer = -1;
    WEFT_TRY(wefti_route_find(b->spec->routes, &b->p->mesh, &p->gathered, &from, &to, 0, &route));
    if (route->moves != 1 || route->move[0].kind != WEFTI_MOVE_TRANSFER) return WEFT_OK;
    wefti_rank_reads_move(wefti_partition_reads(b->part), &b->p->mesh, &p->gathered, &from, &to,
                          route->move[0].axes);
    WEFT_TRY(
        wefti_move_transfer(&b->p->mesh, &p->gathered, &from, &route->move[0], b->p->rank, &t));
    t->name = "small parameters";
    t->tag = tag;
    return wefti_partition_add(b->part, t, &p->transfer);
}

/* All have equal dtypes and are divided by the same axes. */
static weft_status make_pack(wefti_emitter *b, int count, const weft_desc *whole,
                             const wefti_layout *from, const wefti_layout *to, uint64_t tag,
                             pack **out) {
    wefti_division x;
    int64_t elems = 0;
    pack *p;
    WEFT_TRY(wefti_new_array(b->scratch, 1, sizeof *p, &p));
    *out = p;
    p->count = count;
    for (int i = 0; i < count; i++) {
        (void)wefti_build_divides(b, &whole[i], &to[i], &from[i], &x);
        weft_desc piece = wefti_sharding_desc(b->dec, &whole[i], &from[i]);
        p->outer[i] = 1;
        for (int d = 0; d < x.dim; d++) p->outer[i] *= piece.shape[d];
        elems += p->elems[i] = weft_desc_elems(&piece);
    }
    p->parts = x.parts;
    p->joined = weft_desc_of(whole[0].dtype, 2, (int64_t[]){1, elems});
    p->gathered = weft_desc_of(whole[0].dtype, 2, (int64_t[]){x.parts, elems});
    return find_packed_transfer(b, &x, tag, p);
}

/* Pieces as inputs, joined to one row. Shapes matter to nobody else, so each piece is a row. */
static weft_status add_joined(const pack *p, weft_body *body, int32_t *out) {
    int32_t value[WEFTI_MAX_BUCKET];
    for (int i = 0; i < p->count; i++) {
        weft_desc row = weft_desc_of(p->joined.dtype, 2, (int64_t[]){1, p->elems[i]});
        WEFT_TRY(wefti_body_input(body, row, WEFTI_VALUE_INPUT, NULL, &value[i]));
    }
    WEFT_TRY(wefti_build_join(body, p->count, value));
    *out = value[0];
    return WEFT_OK;
}

/* The rows of all devices, divided into parameters, which are outputs. */
static weft_status add_divided(const pack *p, weft_body *body, int32_t rows) {
    int64_t at = 0;
    for (int i = 0; i < p->count; i++) {
        int32_t value;
        wefti_attr columns[] = {
            WEFTI_I(axis, 1), WEFTI_I(begin, at), WEFTI_I(end, at + p->elems[i]), {0}};
        WEFT_TRY(wefti_build_node(body, "slice", 1, &rows, columns, &value));
        at += p->elems[i];
        if (p->outer[i] > 1) {
            wefti_ints blocks = {.count = 3,
                                 .v = {p->parts, p->outer[i], p->elems[i] / p->outer[i]}},
                       order = {.count = 3, .v = {1, 0, 2}};
            WEFT_TRY(wefti_build_node(body, "reshape", 1, &value,
                                      (wefti_attr[]){WEFTI_N(shape, blocks), {0}}, &value));
            WEFT_TRY(wefti_build_node(body, "transpose", 1, &value,
                                      (wefti_attr[]){WEFTI_N(order, order), {0}}, &value));
        }
        WEFT_TRY(wefti_body_output(body, value));
    }
    return WEFT_OK;
}

typedef enum pack_part {
    PACK_ALL,    /* join, transfer, divide */
    PACK_JOIN,   /* to one row */
    PACK_DIVIDE, /* the rows of all devices */
} pack_part;

static weft_status fill(const pack *p, pack_part part, weft_body *body) {
    int32_t value;
    if (part == PACK_DIVIDE)
        WEFT_TRY(wefti_body_input(body, p->gathered, WEFTI_VALUE_INPUT, NULL, &value));
    else
        WEFT_TRY(add_joined(p, body, &value));
    if (part == PACK_JOIN) return wefti_body_output(body, value);
    if (part == PACK_ALL)
        WEFT_TRY(wefti_body_add_transfer(body, value, p->transfer, &p->gathered, WEFTI_MOVED_VALUE,
                                         "", &value));
    return add_divided(p, body, value);
}

static weft_status pack_routine(wefti_emitter *b, const pack *p, pack_part part, int32_t *out) {
    weft_body *body;
    WEFT_TRY(wefti_body_create(b->g, "small parameters", &body));
    weft_status status = fill(p, part, body);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    return wefti_build_routine_of(b, body, out);
}

weft_status wefti_gather_packed(wefti_emitter *b, int count, const weft_desc *whole,
                                const wefti_layout *from, const wefti_layout *to, uint64_t tag,
                                int32_t *out) {
    pack *p;
    *out = -1;
    WEFT_TRY(make_pack(b, count, whole, from, to, tag, &p));
    return p->transfer < 0 ? WEFT_OK : pack_routine(b, p, PACK_ALL, out);
}

/* Lists the small ones among parameters that may share a message: out[0..*out_count). */
static void find_small(const wefti_emitter *b, const int32_t *values, int count, int *out,
                       int *out_count) {
    wefti_division first = {0}, x;
    weft_dtype dtype = WEFT_F32;
    *out_count = 0;
    for (int i = 0; i < count; i++) {
        const wefti_sharding *s = &b->dec->sharding[values[i]];
        const weft_desc whole = wefti_use_desc(b->dec, values[i]);
        if (!wefti_gather_packs(b, &whole, &s->storage, &s->use, &x)) continue;
        if (*out_count == 0) {
            first = x;
            dtype = whole.dtype;
        }
        if (!wefti_build_same_axes(&x, &first) || whole.dtype != dtype) continue;
        out[(*out_count)++] = i;
    }
    if (*out_count > 1) b->p->fused[1] += *out_count;
    if (*out_count < 2 || b->spec->plan->fusion[1].mode == WEFT_FUSION_NONE) *out_count = 0;
}

/* ---- ahead ---- */

/* The pack that is being gathered ahead; NULL: none. */
static const pack *pack_ahead(const wefti_emitter *b) {
    const int32_t i = wefti_flight_find(b, WEFTI_FLIGHT_PACK, -1);
    return i < 0 ? NULL : b->flights[i].pack;
}

/* The place of a parameter in a pack, -1: it is not there. */
static int place_in(const pack *p, int32_t v) {
    for (int i = 0; p && i < p->count; i++)
        if (p->values[i] == v) return i;
    return -1;
}

static bool alike(const wefti_emitter *b, int32_t u, int32_t v) {
    const weft_desc x = wefti_use_desc(b->dec, u), y = wefti_use_desc(b->dec, v);
    return wefti_desc_equal(&x, &y) &&
           wefti_layout_equal(&b->dec->sharding[u].storage, &b->dec->sharding[v].storage) &&
           wefti_layout_equal(&b->dec->sharding[u].use, &b->dec->sharding[v].use);
}

/* The transfer that gathers a parameter, -1 if a single transfer cannot. Parameters at the same
 * position of equal cells share one transfer, call after call. So a deep model needs no more
 * transfers than a shallow one. */
static weft_status find_transfer(wefti_emitter *b, int32_t v, int place, int32_t *out) {
    const wefti_sharding *x = &b->dec->sharding[v];
    const weft_desc of_use = wefti_use_desc(b->dec, v), *whole = &of_use;
    wefti_gathered *last = &b->gathered[place];
    const wefti_route *route;
    wefti_transfer *t;
    if (!last->known || !alike(b, last->value, v)) {
        *last = (wefti_gathered){true, v, -1};
        WEFT_TRY(
            wefti_route_find(b->spec->routes, &b->p->mesh, whole, &x->storage, &x->use, 0, &route));
        if (route->moves == 1 && route->move[0].kind == WEFTI_MOVE_TRANSFER) {
            wefti_rank_reads_move(wefti_partition_reads(b->part), &b->p->mesh, whole, &x->storage,
                                  &x->use, route->move[0].axes);
            WEFT_TRY(wefti_move_transfer(&b->p->mesh, whole, &x->storage, &route->move[0],
                                         b->p->rank, &t));
            t->name = b->root->values[v].name;
            t->tag =
                wefti_tag(WEFTI_TAG_GATHER, (uint64_t)place); /* the gathers of one call overlap */
            WEFT_TRY(wefti_partition_add(b->part, t, &last->transfer));
        }
    }
    *out = last->transfer;
    return WEFT_OK;
}

/* Posts the gather of one parameter ahead, if a single transfer can do it. */
static weft_status post(wefti_emitter *b, wefti_section s, int32_t v, int place) {
    int32_t transfer = -1;
    if (!in_pieces(b, v) || is_below(b, v) || wefti_flight_find(b, WEFTI_FLIGHT_GATHER, v) >= 0 ||
        place_in(pack_ahead(b), v) >= 0 || place >= WEFTI_MAX_BUCKET)
        return WEFT_OK;
    WEFT_TRY(find_transfer(b, v, place, &transfer));
    if (transfer < 0 || wefti_flight_has(b, transfer)) return WEFT_OK;
    wefti_flight f = {.use = WEFTI_FLIGHT_GATHER,
                      .owner = v,
                      .name = b->root->values[v].name,
                      .source = {home_of(b, v), 0}};
    WEFT_TRY(new_buffer(b, v, &f.destination.buffer));
    return wefti_flight_post(b, s, f, transfer);
}

/* Whether a call's pass reads an input. Forward passes and fused forward-backward passes read all
 * of them; a backward body reads some. */
static bool reads(const wefti_emitter *b, const wefti_call_plan *call, int input, bool backward) {
    if (!backward || call->fused) return true;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    for (int64_t i = 0; i < grad->backward->in_count; i++)
        if (grad->bindings[i].source == WEFTI_GRAD_INPUT && grad->bindings[i].index == input)
            return true;
    return false;
}

/* The parameters whose gather may begin before a call's pass, each once. */
static int list_gathered(const wefti_emitter *b, int32_t k, bool backward,
                         int32_t out[WEFTI_MAX_BUCKET]) {
    const weft_node *n = b->dec->calls[k].node;
    int count = 0;
    for (int i = 0; i < n->inputs && count < WEFTI_MAX_BUCKET; i++) {
        bool again = false;
        for (int j = 0; j < count; j++) again |= out[j] == n->in[i];
        if (!again && in_pieces(b, n->in[i]) && !is_below(b, n->in[i]) &&
            reads(b, &b->dec->calls[k], i, backward))
            out[count++] = n->in[i];
    }
    return count;
}

/* Joins the small parameters of a call, and posts their gather. */
static weft_status post_packed(wefti_emitter *b, wefti_section s, int32_t k, bool backward) {
    wefti_flight f = {.use = WEFTI_FLIGHT_PACK, .owner = -1};
    int32_t values[WEFTI_MAX_BUCKET], join;
    int small[WEFTI_MAX_BUCKET], count = list_gathered(b, k, backward, values);
    weft_desc whole[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    pack *p;
    wefti_draft_step *d;
    find_small(b, values, count, small, &count);
    if (pack_ahead(b) || count == 0) return WEFT_OK;
    for (int i = 0; i < count; i++) {
        int32_t v = values[i] = values[small[i]];
        whole[i] = wefti_use_desc(b->dec, v);
        from[i] = b->dec->sharding[v].storage;
        to[i] = b->dec->sharding[v].use;
    }
    WEFT_TRY(
        make_pack(b, count, whole, from, to, wefti_tag(WEFTI_TAG_GATHER, WEFTI_MAX_BUCKET), &p));
    if (p->transfer < 0) return WEFT_OK;
    memcpy(p->values, values, (size_t)count * sizeof *values);
    WEFT_TRY(pack_routine(b, p, PACK_JOIN, &join));
    WEFT_TRY(pack_routine(b, p, PACK_DIVIDE, &p->divide));
    const char *name = b->root->values[values[count - 1]].name;
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&p->joined),
                              wefti_build_name(b, "small pieces up to ", name), &f.source.buffer));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "small pieces up to ", name),
                               b->p->routines[join]->args, &d));
    for (int i = 0; i < count; i++) wefti_build_arg(b, d, i, home_of(b, values[i]), 0);
    wefti_build_arg(b, d, count, f.source.buffer, 0);
    WEFT_TRY(wefti_build_end(b, d, join));
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&p->gathered),
                              wefti_build_name(b, "small parameters up to ", name),
                              &f.destination.buffer));
    f.pack = p;
    return wefti_flight_post(b, s, f, p->transfer);
}

/* Waits for the small parameters of a call, if they are gathered ahead, and divides them: `buffers`
 * are theirs. *out NULL: they are not. */
static weft_status take_packed(wefti_emitter *b, wefti_section s, int32_t k, bool backward,
                               int32_t *buffers, const pack **out) {
    const pack *p = pack_ahead(b);
    const weft_node *n = b->dec->calls[k].node;
    wefti_draft_step *d;
    bool here = false;
    for (int i = 0; i < n->inputs; i++)
        here |= place_in(p, n->in[i]) >= 0 && reads(b, &b->dec->calls[k], i, backward);
    *out = here && b->copies <= 1 ? p : NULL;
    if (!*out) return WEFT_OK;
    const int32_t at = wefti_flight_find(b, WEFTI_FLIGHT_PACK, -1);
    const int32_t gathered = b->flights[at].destination.buffer;
    WEFT_TRY(wefti_flight_wait(b, s, at));
    for (int i = 0; i < p->count; i++) WEFT_TRY(new_buffer(b, p->values[i], &buffers[i]));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "small parameters up to ",
                                                b->root->values[p->values[p->count - 1]].name),
                               b->p->routines[p->divide]->args, &d));
    wefti_build_arg(b, d, 0, gathered, 0);
    for (int i = 0; i < p->count; i++) wefti_build_arg(b, d, 1 + i, buffers[i], 0);
    return wefti_build_end(b, d, p->divide);
}

/* Begins to fetch what a call's pass reads from tiers below device memory. */
static weft_status fetch_all(wefti_emitter *b, wefti_section s, int32_t k, bool backward) {
    const weft_node *n = b->dec->calls[k].node;
    int32_t unused;
    for (int i = 0; i < n->inputs; i++)
        if (is_below(b, n->in[i]) && !wefti_rows_looked_up(b, k, n->in[i], backward) &&
            reads(b, &b->dec->calls[k], i, backward) &&
            wefti_flight_find(b, WEFTI_FLIGHT_OPERAND, n->in[i]) < 0)
            WEFT_TRY(wefti_tier_fetch(b, s, n->in[i], &unused));
    return WEFT_OK;
}

weft_status wefti_gather_ahead(wefti_emitter *b, wefti_section s, int32_t k, bool backward) {
    if (!b->part || !b->spec->plan->overlap || k < 0 || b->dec->calls[k].on_host) return WEFT_OK;
    const weft_node *n = b->dec->calls[k].node;
    WEFT_TRY(fetch_all(b, s, k, backward));
    if (backward && b->spec->plan->copies <= WEFTI_COMM_DEPTH) /* all copies have one under way */
        WEFT_TRY(wefti_saved_ahead(b, s, k, b->now_micro));
    if (backward) WEFT_TRY(wefti_gradients_ahead(b, s, k));
    WEFT_TRY(post_packed(b, s, k, backward));
    for (int i = 0; i < n->inputs; i++)
        if (reads(b, &b->dec->calls[k], i, backward)) WEFT_TRY(post(b, s, n->in[i], i));
    return WEFT_OK;
}

/* ---- now ---- */

/* Gathers `count` parameters, in one message or in one each. */
static weft_status gather_some(wefti_emitter *b, wefti_section s, const int32_t *values, int count,
                               bool packed, int32_t *buffers) {
    weft_desc whole[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t routine = -1, piece[WEFTI_MAX_BUCKET];
    wefti_draft_step *d;
    if (count == 0) return WEFT_OK;
    for (int i = 0; i < count; i++) {
        whole[i] = wefti_use_desc(b->dec, values[i]);
        from[i] = b->dec->sharding[values[i]].storage;
        to[i] = b->dec->sharding[values[i]].use;
        WEFT_TRY(piece_of(b, s, values[i], &piece[i]));
        WEFT_TRY(new_buffer(b, values[i], &buffers[i]));
    }
    if (packed) WEFT_TRY(wefti_gather_packed(b, count, whole, from, to, 0, &routine));
    if (routine < 0) WEFT_TRY(wefti_build_reshard(b, count, whole, from, to, false, 0, &routine));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "gather ", b->root->values[values[0]].name),
                               b->p->routines[routine]->args, &d));
    for (int i = 0; i < count; i++) {
        wefti_build_arg(b, d, i, piece[i], 0);
        wefti_build_arg(b, d, count + i, buffers[i], 0);
    }
    return wefti_build_end(b, d, routine);
}

static weft_status gather_now(wefti_emitter *b, wefti_section s, const int32_t *values, int count,
                              int32_t *buffers) {
    int32_t some[WEFTI_MAX_BUCKET], theirs[WEFTI_MAX_BUCKET];
    int small[WEFTI_MAX_BUCKET], smalls, n = 0;
    find_small(b, values, count, small, &smalls);
    for (int i = 0; i < smalls; i++) some[i] = values[small[i]];
    WEFT_TRY(gather_some(b, s, some, smalls, true, theirs));
    for (int i = 0; i < smalls; i++) buffers[small[i]] = theirs[i];
    for (int i = 0, at = 0; i < count; i++) {
        if (at < smalls && small[at] == i)
            at++;
        else
            some[n++] = values[i];
    }
    WEFT_TRY(gather_some(b, s, some, n, false, theirs));
    for (int i = 0, at = 0, next = 0; i < count; i++) {
        if (at < smalls && small[at] == i)
            at++;
        else
            buffers[i] = theirs[next++];
    }
    return WEFT_OK;
}

/* Waits for the moves that were posted ahead of the call, and brings the missing parameters now. */
weft_status wefti_gather_operands(wefti_emitter *b, wefti_section s, int32_t k, bool backward,
                                  int32_t micro, int32_t **out) {
    const weft_node *n = b->dec->calls[k].node;
    int32_t values[WEFTI_MAX_BUCKET], buffers[WEFTI_MAX_BUCKET], divided[WEFTI_MAX_BUCKET];
    int count = 0;
    const pack *taken;
    WEFT_TRY(wefti_new_indices(b->scratch, n->inputs, out));
    if (b->copies <= 1) WEFT_TRY(fetch_all(b, s, k, backward));
    WEFT_TRY(take_packed(b, s, k, backward, divided, &taken));
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        if (v < 0 || !reads(b, &b->dec->calls[k], i, backward)) continue;
        (*out)[i] = b->param_copy[v] >= 0 ? b->param_copy[v] : *wefti_build_value(b, micro, v);
        if (!in_pieces(b, v) && !is_below(b, v)) continue;
        if (b->copies > 1) { /* the first copy brings them for all copies */
            (*out)[i] = b->held[i];
            continue;
        }
        if (wefti_rows_looked_up(b, k, v, backward)) {
            WEFT_TRY(wefti_rows_look_up(b, s, k, v, backward, micro, &(*out)[i]));
            continue;
        }
        if (!in_pieces(b, v)) {
            WEFT_TRY(piece_of(b, s, v, &(*out)[i]));
            continue;
        }
        const int packed = place_in(taken, v);
        if (packed >= 0) {
            (*out)[i] = divided[packed];
            continue;
        }
        const int32_t ahead = wefti_flight_find(b, WEFTI_FLIGHT_GATHER, v);
        if (ahead >= 0) {
            (*out)[i] = b->flights[ahead].destination.buffer;
            WEFT_TRY(wefti_flight_wait(b, s, ahead));
            continue;
        }
        if (count == WEFTI_MAX_BUCKET) {
            WEFT_TRY(gather_now(b, s, values, count, buffers));
            for (int j = 0; j < i; j++)
                for (int c = 0; c < count; c++)
                    if (n->in[j] == values[c]) (*out)[j] = buffers[c];
            count = 0;
        }
        values[count++] = v;
    }
    WEFT_TRY(gather_now(b, s, values, count, buffers));
    for (int j = 0; j < n->inputs; j++)
        for (int c = 0; c < count; c++)
            if (n->in[j] == values[c] && (*out)[j] >= 0) (*out)[j] = buffers[c];
    b->held = *out;
    return WEFT_OK;
}

/* Waits for all parameters that are on their way: none is in flight after the end of a section. */
weft_status wefti_gather_finish(wefti_emitter *b, wefti_section s) {
    for (int32_t i = 0; i < b->flight_count;)
        if (b->flights[i].use <= WEFTI_FLIGHT_OPERAND)
            WEFT_TRY(wefti_flight_wait(b, s, i));
        else
            i++;
    return WEFT_OK;
}
