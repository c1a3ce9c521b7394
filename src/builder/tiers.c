/* Parameters, optimizer states, gradients and saved blocks in a tier below device memory. Steps
 * work on device memory. So a parameter is fetched before a call that reads it (gather.c). What an
 * update changes is fetched before, and stored behind it, in slices. What a forward pass saves is
 * stored behind it, and fetched before the backward pass. A gradient is stored behind a backward
 * pass, and fetched before what reads it or adds to it. */
#include "builder/build.h"

/* ---- copies ---- */

static const char *name_of(const wefti_emitter *b, wefti_buffer_ref home) {
    return b->buffers[home.buffer].name;
}

bool wefti_tier_below(const wefti_emitter *b, int32_t buffer) {
    return b->buffers[buffer].space != WEFTI_SPACE_DEVICE;
}

/* Uses `use` and `owner` of `f`. *move: as in wefti_flight_copy. */
static weft_status fetch(wefti_emitter *b, wefti_section s, wefti_flight f, wefti_buffer_ref home,
                         int64_t bytes, int32_t *move, int32_t *out) {
    f.name = name_of(b, home);
    f.source = home;
    WEFT_TRY(wefti_buffer_add(b, bytes, wefti_build_name(b, "fetched ", f.name), out));
    f.destination.buffer = *out;
    return bytes ? wefti_flight_copy(b, s, f, bytes, move) : WEFT_OK;
}

/* All fetches of a parameter are one move, so microbatches are alike. */
weft_status wefti_tier_fetch(wefti_emitter *b, wefti_section s, int32_t value, int32_t *out) {
    const wefti_flight f = {.use = WEFTI_FLIGHT_OPERAND, .owner = value};
    const int32_t home = b->param_buffer[value];
    WEFT_TRY(fetch(b, s, f, (wefti_buffer_ref){home, 0}, b->buffers[home].life.bytes,
                   &b->param_move[value], out));
    b->buffers[*out].param = b->param_index[value];
    return WEFT_OK;
}

weft_status wefti_slice_arrive(wefti_emitter *b, wefti_section s, int32_t number) {
    for (int32_t i; (i = wefti_flight_find(b, WEFTI_FLIGHT_FETCH, number)) >= 0;)
        WEFT_TRY(wefti_flight_wait(b, s, i));
    return WEFT_OK;
}

/* *move: as in wefti_flight_copy. */
static weft_status store(wefti_emitter *b, wefti_section s, int32_t owner, wefti_buffer_ref from,
                         wefti_buffer_ref home, int64_t bytes, int32_t *move) {
    const wefti_flight f = {.use = WEFTI_FLIGHT_STORE,
                            .owner = owner,
                            .name = name_of(b, home),
                            .source = from,
                            .destination = home};
    return bytes ? wefti_flight_copy(b, s, f, bytes, move) : WEFT_OK;
}

weft_status wefti_tier_finish(wefti_emitter *b, wefti_section s) {
    for (int32_t i; (i = wefti_flight_find(b, WEFTI_FLIGHT_STORE, -1)) >= 0;)
        WEFT_TRY(wefti_flight_wait(b, s, i));
    return WEFT_OK;
}

static wefti_space space_of_tier(weft_tier tier) {
    static const wefti_space spaces[WEFT_TIERS] = {[WEFT_TIER_DEVICE] = WEFTI_SPACE_DEVICE,
                                                   [WEFT_TIER_HOST] = WEFTI_SPACE_HOST,
                                                   [WEFT_TIER_DISK] = WEFTI_SPACE_DISK};
    return spaces[tier];
}

wefti_space wefti_tier_space(const wefti_emitter *b, weft_offload what, const char *name) {
    return space_of_tier(wefti_plan_tier(b->spec->plan, what, name));
}

static int64_t least_bytes(const weft_plan *plan) {
    return plan->offload.least ? plan->offload.least : WEFTI_SAVED_LEAST;
}

/* ---- what a forward pass saves for the backward pass ---- */

enum { SAVED_STORE, SAVED_FETCH };

/* Whether a call's backward pass comes behind its forward pass, or behind one more pass. Its block
 * would be fetched before it is stored. */
static bool returns_soon(const wefti_emitter *b, int32_t k) {
    const wefti_decisions *dec = b->dec;
    const weft_plan *plan = b->spec->plan;
    const int32_t part = dec->calls[k].part;
    int32_t passes = 0;
    if (dec->stages > 1 && (plan->pipeline.schedule == WEFT_PIPELINE_GPIPE ||
                            part + 1 < dec->stages * plan->pipeline.chunks))
        return false;
    for (int32_t j = k + 1; j < dec->call_count && passes < 2; j++)
        if (dec->calls[j].part == part)
            passes += dec->calls[j].differentiated && !dec->calls[j].fused ? 2 : 1;
    return passes < 2;
}

weft_status wefti_pass_stored(wefti_emitter *b, wefti_section s) {
    for (int32_t i = 0; i < b->flight_count;) {
        const wefti_flight *f = &b->flights[i];
        if (f->use == WEFTI_FLIGHT_STORE && f->owner >= 0)
            WEFT_TRY(wefti_flight_wait(b, s, i));
        else
            i++;
    }
    return WEFT_OK;
}

weft_status wefti_saved_store(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const int32_t saved = b->micro[micro].saved[k];
    int32_t *kept = &b->micro[micro].kept[k];
    WEFT_TRY(wefti_pass_stored(b, s));
    if (saved < 0) return WEFT_OK;
    const wefti_space space = wefti_tier_space(b, WEFT_OFFLOAD_SAVED, b->dec->calls[k].node->scope);
    const int64_t bytes = b->buffers[saved].life.bytes;
    if (space == WEFTI_SPACE_DEVICE || returns_soon(b, k) || bytes < least_bytes(b->spec->plan))
        return WEFT_OK;
    WEFT_TRY(wefti_buffer_add(b, bytes, b->buffers[saved].name, kept));
    b->buffers[*kept].space = space;
    return store(b, s, *kept, (wefti_buffer_ref){saved, 0}, (wefti_buffer_ref){*kept, 0}, bytes,
                 &b->saved_move[SAVED_STORE][k]);
}

weft_status wefti_saved_ahead(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const int32_t kept = b->micro[micro].kept[k];
    const wefti_flight f = {.use = WEFTI_FLIGHT_SAVED, .owner = kept};
    int32_t out;
    if (kept < 0 || wefti_flight_find(b, WEFTI_FLIGHT_SAVED, kept) >= 0) return WEFT_OK;
    if (wefti_flight_find(b, WEFTI_FLIGHT_STORE, kept) >= 0) WEFT_TRY(wefti_pass_stored(b, s));
    WEFT_TRY(fetch(b, s, f, (wefti_buffer_ref){kept, 0}, b->buffers[kept].life.bytes,
                   &b->saved_move[SAVED_FETCH][k], &out));
    b->buffers[out].saved = true;
    return WEFT_OK;
}

weft_status wefti_saved_take(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro,
                             int32_t *out) {
    const int32_t kept = b->micro[micro].kept[k];
    *out = b->micro[micro].saved[k];
    if (kept < 0) return WEFT_OK;
    WEFT_TRY(wefti_saved_ahead(b, s, k, micro));
    const int32_t i = wefti_flight_find(b, WEFTI_FLIGHT_SAVED, kept);
    *out = b->flights[i].destination.buffer;
    return wefti_flight_wait(b, s, i);
}

/* ---- gradients ---- */

enum { GRADIENT_STORE, GRADIENT_FETCH };

wefti_space wefti_tier_of_large(const wefti_program_spec *spec, weft_offload what,
                                const wefti_value_info *param) {
    if (!spec->optimizer || !spec->plan || weft_desc_bytes(&param->desc) < least_bytes(spec->plan))
        return WEFTI_SPACE_DEVICE;
    return space_of_tier(wefti_plan_tier(spec->plan, what, param->name));
}

wefti_space wefti_gradient_space(const wefti_decisions *dec, int32_t value) {
    return dec->hosted[value]
               ? WEFTI_SPACE_HOST
               : wefti_tier_of_large(dec->spec, WEFT_OFFLOAD_GRADIENTS, &dec->root->values[value]);
}

static int32_t *gradient_buffer(wefti_emitter *b, int32_t value, wefti_gradient_use use) {
    return use == WEFTI_GRADIENT_TERM ? &b->param_gradient[value] : &b->reduced[value];
}

weft_status wefti_gradient_ahead(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use) {
    wefti_gradient_home *x = &b->gradient_home[use][value];
    const wefti_flight f = {.use = WEFTI_FLIGHT_SAVED, .owner = x->buffer};
    int32_t out;
    if (x->where != WEFTI_GRADIENT_AWAY || wefti_flight_find(b, WEFTI_FLIGHT_SAVED, x->buffer) >= 0)
        return WEFT_OK;
    if (wefti_flight_find(b, WEFTI_FLIGHT_STORE, x->buffer) >= 0) WEFT_TRY(wefti_pass_stored(b, s));
    return fetch(b, s, f, (wefti_buffer_ref){x->buffer, 0}, b->buffers[x->buffer].life.bytes,
                 &x->move[GRADIENT_FETCH], &out);
}

weft_status wefti_gradient_bring(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use, bool changes) {
    wefti_gradient_home *x = &b->gradient_home[use][value];
    const bool away = x->where == WEFTI_GRADIENT_AWAY;
    if (away) WEFT_TRY(wefti_gradient_ahead(b, s, value, use));
    if (away) x->where = WEFTI_GRADIENT_BOTH;
    if (changes) x->where = WEFTI_GRADIENT_HERE;
    if (!away) return WEFT_OK;
    const int32_t i = wefti_flight_find(b, WEFTI_FLIGHT_SAVED, x->buffer);
    *gradient_buffer(b, value, use) = b->flights[i].destination.buffer;
    return wefti_flight_wait(b, s, i);
}

weft_status wefti_gradient_leave(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use) {
    wefti_gradient_home *x = &b->gradient_home[use][value];
    int32_t *buffer = gradient_buffer(b, value, use);
    const wefti_space space = wefti_gradient_space(b->dec, value);
    if (space == WEFTI_SPACE_DEVICE || *buffer < 0 || !b->buffers[*buffer].life.bytes)
        return WEFT_OK;
    const wefti_buffer_ref from = {*buffer, 0};
    const int64_t bytes = b->buffers[*buffer].life.bytes;
    const bool stored = x->where == WEFTI_GRADIENT_BOTH;
    *buffer = -1;
    x->where = WEFTI_GRADIENT_AWAY;
    if (x->buffer < 0) {
        WEFT_TRY(wefti_buffer_add(b, bytes,
                                  wefti_build_name(b, "gradient of ", b->root->values[value].name),
                                  &x->buffer));
        b->buffers[x->buffer].space = space;
    }
    if (stored) return WEFT_OK;
    return store(b, s, x->buffer, from, (wefti_buffer_ref){x->buffer, 0}, bytes,
                 &x->move[GRADIENT_STORE]);
}

/* The parameter to whose gradient a call adds by its input i; -1: to none. */
static int32_t added_by(const wefti_emitter *b, int32_t k, int i) {
    const wefti_call_plan *call = &b->dec->calls[k];
    const int32_t v = call->node->in[i];
    const bool param = v >= 0 && b->root->values[v].kind == WEFTI_VALUE_PARAM;
    return param && call->differentiated && b->dec->grads[call->grad].gradient_out[i] >= 0 ? v : -1;
}

weft_status wefti_gradients_ahead(wefti_emitter *b, wefti_section s, int32_t k) {
    for (int i = 0; i < b->dec->calls[k].node->inputs; i++) {
        const int32_t v = added_by(b, k, i);
        if (v >= 0) WEFT_TRY(wefti_gradient_ahead(b, s, v, WEFTI_GRADIENT_TERM));
    }
    return WEFT_OK;
}

static bool next_adds(const wefti_emitter *b, int32_t value) {
    const int32_t k = b->next_backward ? b->next_call : -1;
    for (int i = 0; k >= 0 && i < b->dec->calls[k].node->inputs; i++)
        if (added_by(b, k, i) == value) return true;
    return false;
}

weft_status wefti_gradients_leave(wefti_emitter *b, wefti_section s, int32_t k) {
    for (int i = 0; i < b->dec->calls[k].node->inputs; i++) {
        const int32_t v = added_by(b, k, i);
        if (v >= 0 && !b->begun[b->dec->bucket_of[v]] && !next_adds(b, v))
            WEFT_TRY(wefti_gradient_leave(b, s, v, WEFTI_GRADIENT_TERM));
    }
    return WEFT_OK;
}

/* The buffer from which an update fetches a gradient; -1: it is in device memory then. Its bucket
 * may be reduced later than this is asked. */
static int32_t gradient_home(const wefti_emitter *b, int32_t value) {
    const wefti_gradient_home *sum = &b->gradient_home[WEFTI_GRADIENT_SUM][value],
                              *term = &b->gradient_home[WEFTI_GRADIENT_TERM][value];
    if (b->dec->hosted[value]) return sum->buffer;
    if (b->dec->eager) return -1;
    if (sum->where == WEFTI_GRADIENT_AWAY) return sum->buffer;
    return term->where == WEFTI_GRADIENT_AWAY && !wefti_is_reduced(b, value) ? term->buffer : -1;
}

/* ---- the slices of an update ---- */

/* Most bytes that are fetched for a slice, unless the plan says it. */
enum { UPDATE_SLICE = 32 << 20 };

/* Whether an update fetches part i, and stores it. */
static bool is_fetched(const wefti_emitter *b, const wefti_update_draft *u, int i) {
    return u->way == WEFTI_UPDATE_FETCHES && u->part[i].home >= 0 &&
           wefti_tier_below(b, u->part[i].home);
}

/* Whether it stores any. All states have one tier. */
static bool stores(const wefti_emitter *b, const wefti_update_draft *u) {
    return is_fetched(b, u, 0) || is_fetched(b, u, u->states);
}

static bool fetches(const wefti_emitter *b, const wefti_update_draft *u) {
    return stores(b, u) || is_fetched(b, u, u->states + 1);
}

/* Whether an update on the host sends the value there, and the gradient. */
static bool sends_value(const wefti_emitter *b, const wefti_update_draft *u) {
    return !wefti_tier_below(b, u->part[u->states].home);
}
static bool sends_gradient(const wefti_update_draft *u) {
    return u->part[u->states + 1].home < 0;
}

/* Of `bytes` of a master. */
static int64_t copy_bytes(const wefti_update_draft *u, int64_t bytes) {
    return u->copies ? bytes / (int64_t)sizeof(float) * (int64_t)weft_dtype_bytes(WEFT_BF16) : 0;
}

/* The bytes of a row of all parts of an update's piece that are fetched or sent; 0: the update is
 * not divided. Ops that need facts about the whole tensor are not (those with a lowering). */
static int64_t row_bytes(const wefti_emitter *b, const wefti_update_draft *u,
                         const wefti_update_rule *rule, const weft_desc *whole,
                         const weft_desc *here) {
    int64_t bytes = 0, elems = 1;
    if (rule->op->lower || here->rank == 0) return 0;
    for (int d = 1; d < here->rank; d++) elems *= here->shape[d];
    for (int i = 0; i < rule->states; i++) {
        if (!wefti_same_shape(&rule->state_descs[i], whole)) return 0;
        if (is_fetched(b, u, i))
            bytes += elems * (int64_t)weft_dtype_bytes(rule->state_descs[i].dtype);
    }
    const int64_t row = elems * (int64_t)weft_dtype_bytes(whole->dtype);
    if (u->way == WEFTI_UPDATE_ON_HOST)
        return row * (sends_value(b, u) + sends_gradient(u)) + copy_bytes(u, row);
    for (int i = rule->states; i < rule->states + 2; i++)
        if (is_fetched(b, u, i)) bytes += row;
    return bytes;
}

static int64_t most_bytes(const wefti_emitter *b) {
    const int64_t given = b->spec->plan ? b->spec->plan->offload.slice : 0;
    return given ? given : UPDATE_SLICE;
}

static bool communicates(const wefti_routine *r) {
    for (int32_t k = 0; k < r->code_count; k++)
        if (r->code[k].transfer >= 0) return true;
    return false;
}

weft_status wefti_slices_divide(wefti_emitter *b, int32_t value, const weft_desc *piece,
                                wefti_update_rule *rule, wefti_update_draft *u) {
    wefti_layout unused[4];
    const weft_desc *whole = &b->root->values[value].desc;
    weft_desc here = *piece;
    if (u->way != WEFTI_UPDATE_ON_HOST && !fetches(b, u)) return WEFT_OK;
    const int64_t rows = here.rank ? here.shape[0] : 0;
    const int64_t row = row_bytes(b, u, rule, whole, &here);
    const int64_t most = row ? most_bytes(b) / row : 0, each = most > 0 ? most : 1;
    if (!row || rows <= each || communicates(b->p->routines[u->routine])) return WEFT_OK;
    u->slices = (int32_t)((rows + each - 1) / each);
    here.shape[0] = each;
    u->part[rule->states].bytes = u->part[rule->states + 1].bytes = weft_desc_bytes(&here);
    for (int i = 0; i < rule->states; i++) {
        weft_desc state = here;
        state.dtype = rule->state_descs[i].dtype;
        u->part[i].bytes = weft_desc_bytes(&state);
    }
    WEFT_TRY(wefti_update_routine(b, value, &here, u->way == WEFTI_UPDATE_ON_HOST, rule, unused,
                                  &u->routine));
    here.shape[0] = rows - (u->slices - 1) * each;
    return wefti_update_routine(b, value, &here, u->way == WEFTI_UPDATE_ON_HOST, rule, unused,
                                &u->last);
}

/* The scalars of the step for updates on the host. */
static weft_status host_scalars(wefti_emitter *b) {
    if (b->host_scalars >= 0) return WEFT_OK;
    WEFT_TRY(wefti_buffer_persistent(b, sizeof(wefti_step_block), "scalars of the host",
                                     &b->host_scalars));
    b->buffers[b->host_scalars].space = WEFTI_SPACE_HOST;
    return WEFT_OK;
}

weft_status wefti_slices_begin(wefti_emitter *b, int32_t value) {
    wefti_update_draft *u = &b->update[value];
    const int32_t tensor = b->param_index[value];
    const char *name = b->p->tensors[tensor].name;
    const wefti_space space = wefti_tier_space(b, WEFT_OFFLOAD_OPTIMIZER, name);
    wefti_update_rule rule;
    wefti_layout layouts[4];
    const bool on_host = wefti_plan_updates_on_host(b->spec->plan, name);
    bool away;
    weft_desc rows;
    const weft_desc here =
        wefti_sharding_desc(b->dec, &b->root->values[value].desc, &b->dec->sharding[value].state);
    if (u->known) return WEFT_OK;
    if (on_host) WEFT_TRY(host_scalars(b));
    WEFT_TRY(wefti_rows_away(b, value, &away, &rows));
    WEFT_TRY(
        wefti_update_routine(b, value, away ? &rows : NULL, on_host, &rule, layouts, &u->routine));
    *u = (wefti_update_draft){.known = true,
                              .way = on_host ? WEFTI_UPDATE_ON_HOST
                                     : away  ? WEFTI_UPDATE_BY_ROWS
                                             : WEFTI_UPDATE_FETCHES,
                              .copies = b->dec->copied[value],
                              .piece_bytes = weft_desc_bytes(&here),
                              .states = rule.states,
                              .slices = 1,
                              .routine = u->routine,
                              .last = u->routine};
    for (int i = 0; i < rule.states; i++) {
        int32_t index;
        char *full = wefti_format("%s.%s", name, rule.state_names[i]);
        WEFT_REQUIRE(full, WEFT_E_NOMEM, "no memory for a name");
        weft_status status =
            wefti_build_persistent(b, full, WEFTI_TENSOR_OPTIMIZER, space, &rule.state_descs[i],
                                   b->part ? &layouts[i] : NULL, (weft_init){WEFT_INIT_ZEROS, 0},
                                   &u->part[i].home, &index);
        wefti_free(full);
        WEFT_TRY(status);
        b->p->tensors[index].param = tensor;
        b->p->tensors[index].state = i;
    }
    if (away) WEFT_TRY(wefti_rows_cache(b, value, &rule, &u->cache));
    u->part[rule.states].home = b->param_buffer[value];
    u->part[rule.states + 1].home = gradient_home(b, value);
    return wefti_slices_divide(b, value, &here, &rule, u);
}

/* Where part i of a slice lies in its home, and its bytes. */
static wefti_buffer_ref slice_of(const wefti_emitter *b, const wefti_update_draft *u, int i,
                                 int32_t slice, int64_t *out_bytes) {
    const wefti_update_part *part = &u->part[i];
    const int64_t begin = slice * part->bytes;
    const bool last = slice + 1 == u->slices;
    *out_bytes = last ? b->buffers[part->home].life.bytes - begin : part->bytes;
    return (wefti_buffer_ref){part->home, begin};
}

/* ---- fetches ahead of updates ---- */

/* Most slices that are under way ahead of their updates, and most stores behind them. */
enum { UPDATE_AHEAD = 16, STORES_AHEAD = 2 * UPDATE_AHEAD };

/* The bytes that all slices under way may have together; so may all stores. */
static int64_t most_ahead(const wefti_emitter *b) {
    const int64_t slice = most_bytes(b), given = b->spec->plan ? b->spec->plan->offload.ahead : 0;
    return given > slice ? given : slice;
}

/* A slice that is fetched. */
typedef struct fetched_slice {
    const wefti_update_draft *of;
    int32_t slice, number;            /* number: of all fetches, which waits name */
    int32_t part[WEFTI_UPDATE_PARTS]; /* buffers */
    int64_t bytes;
} fetched_slice;

/* Slices are fetched in the order of the buckets. Updates use them in the order in which buckets
 * are reduced. */
struct wefti_update_ahead {
    fetched_slice slices[UPDATE_AHEAD + 1];
    int32_t count, number;
    int64_t bytes;
    int32_t bucket, item; /* the parameter whose slices come next */
};

weft_status wefti_slices_prepare(wefti_emitter *b) {
    WEFT_TRY(wefti_new_array(b->scratch, 1, sizeof *b->ahead, &b->ahead));
    return wefti_new_array(b->scratch, b->root->value_count, sizeof *b->update, &b->update);
}

/* Of its first `parts` parts. */
static int64_t bytes_of_slice(const wefti_emitter *b, const wefti_update_draft *u, int32_t slice,
                              int parts) {
    int64_t all = 0, bytes;
    for (int i = 0; i < parts; i++) {
        if (!is_fetched(b, u, i)) continue;
        (void)slice_of(b, u, i, slice, &bytes);
        all += bytes;
    }
    return all;
}

/* Begins to fetch the next slice of an update. */
static weft_status fetch_slice(wefti_emitter *b, wefti_section s, wefti_update_draft *u) {
    struct wefti_update_ahead *x = b->ahead;
    fetched_slice *f = &x->slices[x->count];
    int64_t bytes;
    *f = (fetched_slice){.of = u, .slice = u->next++, .number = x->number++};
    f->bytes = bytes_of_slice(b, u, f->slice, u->states + 2);
    for (int i = 0; i < u->states + 2; i++) {
        const wefti_flight flight = {.use = WEFTI_FLIGHT_FETCH, .owner = f->number};
        int32_t move = -1;
        if (!is_fetched(b, u, i)) continue;
        const wefti_buffer_ref home = slice_of(b, u, i, f->slice, &bytes);
        WEFT_TRY(fetch(b, s, flight, home, bytes, &move, &f->part[i]));
    }
    x->bytes += f->bytes;
    x->count++;
    return WEFT_OK;
}

/* The next parameter with slices to fetch; -1: none. Makes its states. */
static weft_status next_to_fetch(wefti_emitter *b, int32_t *out) {
    struct wefti_update_ahead *x = b->ahead;
    *out = -1;
    for (; x->bucket < b->dec->bucket_count; x->bucket++, x->item = 0)
        for (; x->item < b->dec->bucket[x->bucket].count; x->item++) {
            const int32_t value = b->dec->bucket[x->bucket].values[x->item];
            const wefti_update_draft *u = &b->update[value];
            const char *name = b->root->values[value].name;
            if (wefti_plan_updates_on_host(b->spec->plan, name) || b->dec->served[value] ||
                (wefti_tier_space(b, WEFT_OFFLOAD_OPTIMIZER, name) == WEFTI_SPACE_DEVICE &&
                 !wefti_tier_below(b, b->param_buffer[value]) && gradient_home(b, value) < 0))
                continue;
            if (b->dec->hosted[value] &&
                b->gradient_home[WEFTI_GRADIENT_SUM][value].where != WEFTI_GRADIENT_AWAY)
                return WEFT_OK; /* its terms are not added yet */
            WEFT_TRY(wefti_slices_begin(b, value));
            if (!fetches(b, u) || u->next == u->slices) continue;
            *out = value;
            return WEFT_OK;
        }
    return WEFT_OK;
}

static weft_status fetch_ahead(wefti_emitter *b, wefti_section s) {
    const struct wefti_update_ahead *x = b->ahead;
    while (x->count < UPDATE_AHEAD) {
        int32_t value;
        WEFT_TRY(next_to_fetch(b, &value));
        if (value < 0) return WEFT_OK;
        wefti_update_draft *u = &b->update[value];
        if (x->count && x->bytes + bytes_of_slice(b, u, u->next, u->states + 2) > most_ahead(b))
            return WEFT_OK;
        WEFT_TRY(fetch_slice(b, s, u));
    }
    return WEFT_OK;
}

weft_status wefti_slice_take(wefti_emitter *b, wefti_section s, wefti_update_draft *u,
                             int32_t slice, wefti_update_operands *at) {
    struct wefti_update_ahead *x = b->ahead;
    int32_t i = 0;
    int64_t bytes;
    for (int part = 0; part < u->states; part++)
        at->state[part] = slice_of(b, u, part, slice, &bytes);
    if (!fetches(b, u)) return WEFT_OK;
    while (i < x->count && (x->slices[i].of != u || x->slices[i].slice != slice)) i++;
    if (i == x->count) WEFT_TRY(fetch_slice(b, s, u));
    const fetched_slice f = x->slices[i];
    WEFT_TRY(wefti_slice_arrive(b, s, f.number));
    for (int part = 0; part < u->states + 2; part++)
        if (is_fetched(b, u, part))
            *(part < u->states    ? &at->state[part]
              : part == u->states ? &at->param
                                  : &at->gradient) = (wefti_buffer_ref){f.part[part], 0};
    x->bytes -= f.bytes;
    x->slices[i] = x->slices[--x->count];
    WEFT_TRY(fetch_ahead(b, s));
    /* fetch_ahead knows the parameters of buckets, and not the copies that buddies keep */
    return x->count || u->next == u->slices ? WEFT_OK : fetch_slice(b, s, u);
}

/* Stores are under way behind their updates as fetches are before them: as many, with as many
 * bytes. */
static weft_status make_room(wefti_emitter *b, wefti_section s, int64_t bytes) {
    for (;;) {
        int64_t count = 0, all = bytes;
        for (int32_t i = 0; i < b->flight_count; i++) {
            if (b->flights[i].use != WEFTI_FLIGHT_STORE || b->flights[i].owner >= 0) continue;
            all += b->p->moves[b->flights[i].move].bytes;
            count++;
        }
        if (!count || (count < STORES_AHEAD && all <= most_ahead(b))) return WEFT_OK;
        WEFT_TRY(wefti_flight_wait(b, s, wefti_flight_find(b, WEFTI_FLIGHT_STORE, -1)));
    }
}

weft_status wefti_slice_store(wefti_emitter *b, wefti_section s, const wefti_update_draft *u,
                              int32_t slice, const wefti_update_operands *at) {
    int64_t bytes;
    if (!stores(b, u)) return WEFT_OK;
    WEFT_TRY(make_room(b, s, bytes_of_slice(b, u, slice, u->states + 1)));
    for (int i = 0; i <= u->states; i++) {
        if (!is_fetched(b, u, i)) continue;
        const wefti_buffer_ref home = slice_of(b, u, i, slice, &bytes);
        int32_t move = -1;
        WEFT_TRY(store(b, s, -1, i < u->states ? at->state[i] : at->param, home, bytes, &move));
    }
    return WEFT_OK;
}

/* ---- updates on the host ---- */

static int64_t sent_bytes(const wefti_update_draft *u, int32_t slice) {
    const int64_t each = u->part[u->states].bytes;
    return slice + 1 == u->slices ? u->piece_bytes - slice * each : each;
}

/* Begins to copy bytes of device memory to a new buffer of host memory. */
static weft_status send(wefti_emitter *b, wefti_section s, int32_t number, const char *name,
                        wefti_buffer_ref from, int64_t bytes, wefti_buffer_ref *out) {
    wefti_flight f = {.use = WEFTI_FLIGHT_FETCH, .owner = number, .name = name, .source = from};
    int32_t move = -1;
    *out = (wefti_buffer_ref){-1, 0};
    WEFT_TRY(wefti_buffer_add(b, bytes, name, &out->buffer));
    b->buffers[out->buffer].space = WEFTI_SPACE_HOST;
    f.destination = *out;
    return bytes ? wefti_flight_copy(b, s, f, bytes, &move) : WEFT_OK;
}

/* Room for what a slice's update makes for device memory. */
static weft_status new_copy(wefti_emitter *b, const char *name, int64_t bytes,
                            wefti_buffer_ref *out) {
    *out = (wefti_buffer_ref){-1, 0};
    WEFT_TRY(wefti_buffer_add(b, bytes, wefti_build_name(b, "copy of ", name), &out->buffer));
    b->buffers[out->buffer].space = WEFTI_SPACE_HOST;
    return WEFT_OK;
}

weft_status wefti_slice_send(wefti_emitter *b, wefti_section s, int32_t value, int32_t slice,
                             const wefti_update_operands *from, int32_t *out_number,
                             wefti_update_operands *out) {
    const wefti_update_draft *u = &b->update[value];
    const char *name = b->root->values[value].name;
    const int64_t bytes = sent_bytes(u, slice);
    int64_t unused;
    *out_number = b->ahead->number++;
    *out = *from;
    if (u->copies) WEFT_TRY(new_copy(b, name, copy_bytes(u, bytes), &out->copy));
    for (int part = 0; part < u->states; part++)
        out->state[part] = slice_of(b, u, part, slice, &unused);
    if (!sends_gradient(u)) { /* it lies there, or is on its way from a pass */
        out->gradient = slice_of(b, u, u->states + 1, slice, &unused);
        WEFT_TRY(wefti_pass_stored(b, s));
    } else {
        WEFT_TRY(send(b, s, *out_number, wefti_build_name(b, "gradient of ", name), from->gradient,
                      bytes, &out->gradient));
    }
    if (!sends_value(b, u)) return WEFT_OK;
    return send(b, s, *out_number, name, from->param, bytes, &out->param);
}

weft_status wefti_slice_return(wefti_emitter *b, wefti_section s, int32_t value, int32_t slice,
                               const wefti_update_operands *at, wefti_buffer_ref to) {
    const wefti_update_draft *u = &b->update[value];
    wefti_flight f = {.use = WEFTI_FLIGHT_STORE,
                      .owner = -1,
                      .name = b->root->values[value].name,
                      .source = at->param,
                      .destination = to};
    int64_t bytes = sent_bytes(u, slice);
    int32_t move = -1;
    if (u->copies) {
        f.source = at->copy;
        f.destination = (wefti_buffer_ref){b->param_copy[value],
                                           copy_bytes(u, slice * u->part[u->states].bytes)};
        bytes = copy_bytes(u, bytes);
    }
    if (!(sends_value(b, u) || u->copies) || !bytes) return WEFT_OK;
    WEFT_TRY(make_room(b, s, bytes));
    return wefti_flight_copy(b, s, f, bytes, &move);
}
