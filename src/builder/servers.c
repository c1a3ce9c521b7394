/* Parameters that servers keep, with their optimizer's states (program/service.h). Calls read a
 * copy in device memory. A rank pushes its term of the gradient's sum when the term is complete,
 * while backward passes of other calls run. In place of an update it pulls the value that the
 * servers have made. Both are copies to and from the space of servers. */
#include <string.h>

#include "builder/build.h"

/* ---- decisions ---- */

/* Programs that share parameters with a training agree with it. */
static bool is_served(const wefti_program_spec *spec, const wefti_value_info *info) {
    if (info->kind != WEFTI_VALUE_PARAM || !spec->plan) return false;
    if (!spec->shared)
        return spec->optimizer && !info->frozen && wefti_plan_serves(spec->plan, info->name);
    const wefti_tensor *old = wefti_program_tensor(spec->shared, info->name);
    if (old) return wefti_location_space(old->home) == WEFTI_SPACE_SERVER;
    return spec->shared->serves && wefti_plan_serves(spec->plan, info->name); /* another stage's */
}

weft_status wefti_decide_served(wefti_decisions *dec) {
    const weft_body *root = dec->root;
    WEFT_TRY(wefti_new_array(dec->scratch, root->value_count, sizeof *dec->served, &dec->served));
    for (int64_t i = 0; i < root->in_count; i++) {
        const int32_t v = root->in[i];
        dec->served[v] = is_served(dec->spec, &root->values[v]);
        dec->serves = dec->serves || dec->served[v];
    }
    return WEFT_OK;
}

/* Why servers cannot keep a parameter; NULL: they can. */
static const char *obstacle(const wefti_decisions *dec, int32_t v) {
    const wefti_program_spec *spec = dec->spec;
    const char *name = dec->root->values[v].name;
    if (dec->tied[v] >= 0) return "it is read in several pipeline stages";
    if (dec->hosted[v]) return "operations on the host read it (place)";
    if (!spec->optimizer) return NULL;
    if (spec->optimizer->recovery)
        return "with recovery, a step that another rank has not made is made again";
    if (spec->keep_gradients) return "its gradient is to be read, which only servers would add";
    if (wefti_plan_updates_on_host(spec->plan, name)) return "the host updates it (place)";
    for (int what = 0; what < WEFT_OFFLOADS; what++)
        if (what != WEFT_OFFLOAD_SAVED &&
            wefti_plan_tier(spec->plan, (weft_offload)what, name) != WEFT_TIER_DEVICE)
            return "it, its states or its gradient lie in another tier (memory.offload)";
    return NULL;
}

weft_status wefti_served_check(const wefti_decisions *dec) {
    for (int64_t i = 0; i < dec->root->in_count && dec->serves; i++) {
        const int32_t v = dec->root->in[i];
        const char *why = dec->served[v] ? obstacle(dec, v) : NULL;
        WEFT_REQUIRE(!why, WEFT_E_NO_IMPL, "servers cannot keep '%s' (parallel.server): %s",
                     dec->root->values[v].name, why);
        WEFT_REQUIRE(!dec->served[v] || !dec->part || !dec->sharding[v].gradient.max, WEFT_E_BUG,
                     "the gradient of '%s' is a maximum", dec->root->values[v].name);
    }
    return WEFT_OK;
}

/* ---- the parts of a parameter ---- */

/* The buffers, in the space of servers. */
typedef struct wefti_served_draft {
    int32_t number; /* among the program's; -1: none */
    int32_t part[WEFTI_SERVED_PARTS], sum, square;
} wefti_served_draft;

/* Which term of the sum this rank has. Axes that neither divide the gradient nor hold terms hold
 * equal ones: their first ranks push. */
static weft_status find_term(const wefti_emitter *b, int32_t v, wefti_served *out) {
    const wefti_layout *gradient = &b->dec->sharding[v].gradient;
    const wefti_mesh *mesh = &b->p->mesh;
    int32_t at[WEFTI_MAX_AXES], *ranks;
    const bool any = b->dec->has_gradient[v];
    out->terms = 1;
    out->term = any ? 0 : -1;
    if (!b->part || !any) return WEFT_OK;
    out->terms = wefti_mesh_product(mesh, gradient->sum);
    WEFT_TRY(wefti_new_indices(b->scratch, out->terms, &ranks));
    (void)wefti_mesh_group(mesh, b->p->rank, gradient->sum, ranks);
    while (ranks[out->term] != b->p->rank) out->term++;
    wefti_mesh_coordinates(mesh, b->p->rank, at);
    const wefti_axes used = gradient->sum | wefti_layout_split_axes(gradient);
    for (int a = 0; a < mesh->axes; a++)
        if (!(used & 1u << a) && at[a]) out->term = -1;
    return WEFT_OK;
}

static weft_status copy_attrs(wefti_emitter *b, wefti_update_rule *rule) {
    const int count = wefti_attr_count(rule->op);
    wefti_attr *attrs;
    if (!rule->attrs) return WEFT_OK;
    WEFT_TRY(wefti_new_array(b->p->arena, count, sizeof *attrs, &attrs)); /* ends with {0} */
    memcpy(attrs, rule->attrs, (size_t)count * sizeof *attrs);
    rule->attrs = attrs;
    return WEFT_OK;
}

static weft_status server_buffer(wefti_emitter *b, const char *what, const char *name,
                                 int64_t bytes, int32_t *out) {
    WEFT_TRY(wefti_buffer_persistent(b, bytes, wefti_build_name(b, what, name), out));
    b->buffers[*out].space = WEFTI_SPACE_SERVER;
    return WEFT_OK;
}

/* The optimizer's state number i, of this rank's piece. */
static weft_status add_state(wefti_emitter *b, int32_t v, wefti_served *x, int i, int32_t *out) {
    const weft_desc *whole = &b->root->values[v].desc, state = x->rule.state_descs[i];
    const bool divided = wefti_same_shape(&state, whole);
    const wefti_layout all = wefti_layout_replicated(state.rank);
    const wefti_layout *layout = divided ? &b->dec->sharding[v].use : &all;
    const int32_t tensor = b->param_index[v];
    int32_t index;
    char *full = wefti_format("%s.%s", x->name, x->rule.state_names[i]);
    WEFT_REQUIRE(full, WEFT_E_NOMEM, "no memory for a name");
    const weft_status status = wefti_build_persistent(
        b, full, WEFTI_TENSOR_OPTIMIZER, WEFTI_SPACE_SERVER, &state, b->part ? layout : NULL,
        (weft_init){WEFT_INIT_ZEROS, 0}, out, &index);
    wefti_free(full);
    WEFT_TRY(status);
    b->p->tensors[index].param = tensor;
    b->p->tensors[index].state = i;
    x->rule.state_descs[i] = b->p->tensors[index].desc;
    x->part_bytes[1 + i] = b->buffers[*out].life.bytes;
    return WEFT_OK;
}

/* Whether an update of a piece needs no other one. */
static bool updates_pieces(const wefti_update_rule *rule, const weft_desc *whole) {
    for (int i = 0; i < rule->states; i++)
        if (!wefti_same_shape(&rule->state_descs[i], whole)) return false;
    return !rule->op->lower;
}

static weft_status prepare(wefti_emitter *b, int32_t v) {
    const wefti_optimizer_plan *o = b->spec->optimizer;
    const weft_desc *whole = &b->root->values[v].desc;
    wefti_served_draft *u = &b->served[v];
    u->number = b->p->served_count++;
    wefti_served *x = &b->p->served[u->number].piece;
    const wefti_tensor *t = &b->p->tensors[b->param_index[v]];
    *x = (wefti_served){
        .name = t->name, .desc = t->desc, .whole = *whole, .square = b->p->norms_dtype};
    b->p->served[u->number].tensor = b->param_index[v];
    wefti_program_region(b->p, t, &x->region);
    WEFT_TRY(find_term(b, v, x));
    WEFT_TRY(o->rule(o->context, x->name, whole, &x->rule));
    WEFT_REQUIRE(
        wefti_desc_equal(&x->desc, whole) || updates_pieces(&x->rule, whole), WEFT_E_NO_IMPL,
        "'%s' is %s, of which this rank has %s: servers update such a piece by itself, but "
        "the optimizer's %s needs the whole",
        x->name, wefti_desc_text(whole).text, wefti_desc_text(&x->desc).text, x->rule.op->name);
    WEFT_TRY(copy_attrs(b, &x->rule));
    x->part_bytes[0] = weft_desc_bytes(&x->desc);
    u->part[0] = b->param_buffer[v];
    for (int i = 0; i < x->rule.states; i++) WEFT_TRY(add_state(b, v, x, i, &u->part[1 + i]));
    WEFT_TRY(server_buffer(b, "gradient of ", x->name, x->part_bytes[0], &u->sum));
    if (!o->clip) return WEFT_OK;
    return server_buffer(b, "square of ", x->name, (int64_t)weft_dtype_bytes(x->square),
                         &u->square);
}

weft_status wefti_served_prepare(wefti_emitter *b) {
    WEFT_REQUIRE(!b->spec->shared, WEFT_E_NO_IMPL,
                 "one program trains what servers keep, and this is another one");
    WEFT_TRY(wefti_new_array(b->scratch, b->root->value_count, sizeof *b->served, &b->served));
    WEFT_NEW_ARRAY(b->p->served, wefti_program_served, b->root->in_count + 1);
    for (int64_t i = 0; i < b->root->in_count; i++) {
        const int32_t v = b->root->in[i];
        b->served[v] = (wefti_served_draft){-1, {-1, -1, -1, -1, -1}, -1, -1};
        if (b->dec->served[v] && b->param_index[v] >= 0) WEFT_TRY(prepare(b, v));
    }
    return WEFT_OK;
}

void wefti_served_place(wefti_emitter *b) {
    for (int64_t i = 0; i < b->root->in_count && b->served; i++) {
        const wefti_served_draft *u = &b->served[b->root->in[i]];
        wefti_program_served *x = u->number < 0 ? NULL : &b->p->served[u->number];
        if (!x) continue;
        for (int k = 0; k < WEFTI_SERVED_PARTS; k++)
            x->part[k] = wefti_buffer_location(b, u->part[k]);
        x->sum = wefti_buffer_location(b, u->sum);
        x->square = wefti_buffer_location(b, u->square);
    }
}

/* ---- steps ---- */

static weft_status copy(wefti_emitter *b, wefti_section s, wefti_flight f, int64_t bytes) {
    int32_t move = -1;
    return bytes ? wefti_flight_copy(b, s, f, bytes, &move) : WEFT_OK;
}

weft_status wefti_served_push(wefti_emitter *b, wefti_section s, int32_t value) {
    const wefti_served *x = &b->p->served[b->served[value].number].piece;
    const wefti_flight f = {.use = WEFTI_FLIGHT_SERVER,
                            .owner = -1,
                            .name = b->root->values[value].name,
                            .source = {b->param_gradient[value], 0},
                            .destination = {b->served[value].sum, 0}};
    return x->term < 0 ? WEFT_OK : copy(b, s, f, x->part_bytes[0]);
}

weft_status wefti_served_pull(wefti_emitter *b, wefti_section s, int32_t value) {
    const wefti_flight f = {.use = WEFTI_FLIGHT_SERVER,
                            .owner = -1,
                            .name = b->root->values[value].name,
                            .source = {b->param_buffer[value], 0},
                            .destination = {b->param_copy[value], 0}};
    return copy(b, s, f, b->buffers[b->param_buffer[value]].life.bytes);
}

weft_status wefti_served_norm(wefti_emitter *b, int32_t value, int64_t slot) {
    const int64_t bytes = (int64_t)weft_dtype_bytes(b->p->norms_dtype);
    const wefti_flight f = {.use = WEFTI_FLIGHT_NOW,
                            .owner = -1,
                            .name = b->root->values[value].name,
                            .source = {b->served[value].square, 0},
                            .destination = {b->norms, slot * bytes}};
    const wefti_served *x = &b->p->served[b->served[value].number].piece;
    if (!x->part_bytes[0]) return WEFT_OK;
    WEFT_TRY(copy(b, WEFTI_SECTION_NORM, f, bytes));
    return wefti_flight_arrive(b, WEFTI_SECTION_NORM);
}

weft_status wefti_served_finish(wefti_emitter *b, wefti_section s) {
    for (int32_t i; (i = wefti_flight_find(b, WEFTI_FLIGHT_SERVER, -1)) >= 0;)
        WEFT_TRY(wefti_flight_wait(b, s, i));
    return WEFT_OK;
}
