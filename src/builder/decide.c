/* Makes the decisions of a build: see builder/decide.h. Each unique cell is differentiated once and
 * partitioned for this rank. */
#include "builder/decide.h"

#include <string.h>

weft_status wefti_new_array(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to build a program");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

weft_status wefti_new_indices(wefti_arena *arena, int64_t count, int32_t **out) {
    WEFT_TRY(wefti_new_array(arena, count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++) (*out)[i] = -1;
    return WEFT_OK;
}

/* ---- the model and the rank ---- */

/* The number of rows that most inputs have. Other inputs may be masks or tables that all samples
 * share. In a tie the smallest number wins: microbatches may have one row, but masks rarely do. */
static int64_t samples_of(const weft_body *root) {
    int64_t samples = 0;
    int most = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        int alike = 0;
        if (v->kind != WEFTI_VALUE_INPUT || v->desc.rank == 0) continue;
        for (int64_t k = i; k < root->in_count; k++) {
            const wefti_value_info *other = &root->values[root->in[k]];
            alike += other->kind == WEFTI_VALUE_INPUT && other->desc.rank > 0 &&
                     other->desc.shape[0] == v->desc.shape[0];
        }
        if (alike < most || (alike == most && v->desc.shape[0] >= samples)) continue;
        most = alike;
        samples = v->desc.shape[0];
    }
    return samples;
}

/* The mesh of the rank's stage. */
static wefti_mesh mesh_of(const wefti_program_spec *spec) {
    if (spec->plan)
        return wefti_plan_mesh(spec->plan, wefti_plan_stage_of_rank(spec->plan, spec->rank));
    return (wefti_mesh){.axes = 1, .axis = {{.name = "dp", .size = 1}}};
}

static weft_status collect_calls(wefti_decisions *dec) {
    WEFT_TRY(wefti_new_array(dec->scratch, dec->root->node_count, sizeof *dec->calls, &dec->calls));
    for (int64_t k = 0; k < dec->root->node_count; k++) {
        const weft_node *n = &dec->root->nodes[k];
        WEFT_REQUIRE(n->op == &wefti_op_call, WEFT_E_BUG, "the root still holds a loose '%s'",
                     n->op->name);
        dec->calls[dec->call_count++] = (wefti_call_plan){
            .node = n, .grad = -1, .mine = true, .on_host = dec->apart && dec->apart[k]};
    }
    return WEFT_OK;
}

/* ---- layouts ---- */

/* Finds the layouts of all values in the order in which calls make them, also for the calls of
 * other stages. */
static weft_status shard_calls(wefti_decisions *dec) {
    if (!dec->part) return WEFT_OK;
    for (int32_t k = 0; k < dec->call_count; k++) {
        if (!dec->calls[k].fused)
            WEFT_TRY(wefti_sharding_forward(dec, &dec->calls[k]));
        else if (!dec->layouts_only) /* nothing comes after the loss */
            WEFT_TRY(wefti_sharding_fused(dec, &dec->calls[k]));
    }
    return WEFT_OK;
}

/* Finds the layouts of backward passes, in their order. The first round finds the layouts in which
 * gradients of parameters accumulate. The second round uses them to find the bodies of this rank.
 * The first round covers all stages if there is an optimizer, because its buckets depend on all
 * gradients. */
static weft_status shard_backward_calls(wefti_decisions *dec) {
    if (!dec->part || dec->layouts_only) return WEFT_OK;
    for (int round = 0; round < 2; round++)
        for (int32_t k = dec->call_count - 1; k >= 0; k--) {
            wefti_call_plan *call = &dec->calls[k];
            bool required = call->mine || (round == 0 && dec->spec->optimizer);
            if (!call->differentiated || !required) continue;
            if (!call->fused)
                WEFT_TRY(wefti_sharding_backward(dec, call));
            else if (round == 1)
                WEFT_TRY(wefti_sharding_fused(dec, call));
        }
    return WEFT_OK;
}

/* ---- values of the root ---- */

/* Marks the root values that a call of a stage reads. Also marks the states for which such a call
 * makes the next value. A value that no call uses belongs to the first stage. */
weft_status wefti_decide_bound(const wefti_decisions *dec, int32_t stage, bool **out) {
    bool *read, *remote;
    WEFT_TRY(wefti_new_array(dec->scratch, dec->root->value_count, sizeof *read, &read));
    WEFT_TRY(wefti_new_array(dec->scratch, dec->root->value_count, sizeof *remote, &remote));
    for (int32_t k = 0; k < dec->call_count; k++) {
        bool *by = dec->calls[k].stage == stage ? read : remote;
        for (int i = 0; i < dec->calls[k].node->inputs; i++)
            if (dec->calls[k].node->in[i] >= 0) by[dec->calls[k].node->in[i]] = true;
    }
    for (int64_t a = 0; a < dec->g->assign_count; a++) {
        int32_t maker = wefti_call_maker(dec, dec->g->assigns[a].next);
        if (maker >= 0)
            (dec->calls[maker].stage == stage ? read : remote)[dec->g->assigns[a].state] = true;
    }
    for (int64_t i = 0; i < dec->root->in_count && stage == 0; i++)
        read[dec->root->in[i]] |= !remote[dec->root->in[i]];
    *out = read;
    return WEFT_OK;
}

/* Finds the inputs of the root that this rank stores: in a pipeline the ones that its calls read.
 * The others belong to other stages. A stored value that no call reads is whole. */
static weft_status find_bound(wefti_decisions *dec) {
    bool *read;
    WEFT_TRY(wefti_decide_bound(dec, dec->stage, &read));
    for (int64_t i = 0; i < dec->root->in_count; i++) {
        int32_t v = dec->root->in[i];
        wefti_sharding *x = &dec->sharding[v];
        dec->bound[v] = read[v] || dec->stages == 1;
        if (!dec->bound[v] || !dec->part || x->known) continue;
        x->use = x->storage = x->state = wefti_layout_replicated(dec->root->values[v].desc.rank);
        x->known = true;
    }
    return WEFT_OK;
}

/* ---- all of it ---- */

static weft_status new_tables(wefti_decisions *dec) {
    int64_t values = dec->root->value_count;
    WEFT_TRY(wefti_new_indices(dec->scratch, values, &dec->last_backward));
    WEFT_TRY(wefti_new_indices(dec->scratch, values, &dec->forwarded));
    WEFT_TRY(wefti_new_indices(dec->scratch, values, &dec->tied));
    WEFT_TRY(wefti_new_indices(dec->scratch, values, &dec->bucket_of));
    WEFT_TRY(wefti_new_indices(dec->scratch, values, &dec->own_last));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof *dec->rows, &dec->rows));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof *dec->form, &dec->form));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof(bool), &dec->inside));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof(bool), &dec->bound));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof(bool), &dec->needs));
    WEFT_TRY(wefti_new_array(dec->scratch, values, sizeof(bool), &dec->has_gradient));
    return wefti_new_indices(dec->scratch, dec->g->assign_count, &dec->state_after);
}

static weft_status start(wefti_decisions *dec, const wefti_program_spec *spec, bool layouts_only) {
    *dec = (wefti_decisions){.spec = spec,
                             .root = spec->graph->root,
                             .rank = spec->rank,
                             .mesh = mesh_of(spec),
                             .layouts_only = layouts_only,
                             .stages = 1};
    WEFT_TRY(wefti_graph_derive(spec->graph, &dec->g));
    WEFT_TRY(wefti_arena_create(&dec->arena));
    WEFT_TRY(wefti_arena_create(&dec->requests));
    WEFT_TRY(wefti_arena_create(&dec->scratch));
    WEFT_TRY(wefti_decide_places(dec));
    WEFT_TRY(wefti_decide_masters(dec));
    return wefti_decide_served(dec);
}

/* Gradients that are kept to be read add up whole. */
static bool reduces_late(const wefti_program_spec *spec) {
    return spec->optimizer && spec->plan && spec->plan->optimizer.level == 2 &&
           !(spec->keep_gradients && spec->microbatches > 1);
}

/* The stage of each call, the gradients to compute, and the layouts of all values. */
static weft_status decide_layouts(wefti_decisions *dec) {
    const wefti_program_spec *spec = dec->spec;
    bool train = spec->optimizer || spec->keep_gradients;
    dec->samples = samples_of(dec->root);
    dec->late = reduces_late(spec);
    bool staged = spec->plan && spec->plan->pipeline.stages > 1;
    dec->copies = spec->plan ? spec->plan->copies : 1;
    WEFT_TRY(new_tables(dec));
    WEFT_TRY(collect_calls(dec));
    dec->all_microbatches = train && (staged || dec->copies > 1);
    WEFT_TRY(wefti_rows_at_once(dec, &dec->all_microbatches));
    WEFT_REQUIRE(!dec->all_microbatches || spec->microbatches % dec->copies == 0, WEFT_E_ARG,
                 "%d microbatches cannot be run in copies of %d", spec->microbatches, dec->copies);
    WEFT_TRY(wefti_decide_stages(dec));
    if (dec->late) WEFT_TRY(wefti_decide_late(dec));
    WEFT_TRY(wefti_sharding_start(dec));
    wefti_decide_loop(dec);
    if (spec->plan && spec->plan->recompute.mode != WEFT_RECOMPUTE_NONE)
        WEFT_TRY(shard_calls(dec)); /* values that need communication are saved, not recomputed */
    if (train && dec->g->loss >= 0) WEFT_TRY(wefti_decide_gradients(dec));
    WEFT_TRY(wefti_decide_states(dec));
    WEFT_TRY(shard_calls(dec));
    return shard_backward_calls(dec);
}

/* In manual mode the plan does not say which gradients are replicas and which are slices. Then each
 * device of a stage sums the squares of its own gradients. */
static bool own_norms(const wefti_decisions *dec) {
    if (!dec->part || dec->spec->plan->devices == dec->stages) return false;
    return dec->spec->plan->mode == WEFT_PARALLEL_MANUAL;
}

weft_status wefti_decisions_make(const wefti_program_spec *spec, wefti_decisions *dec) {
    WEFT_TRY(start(dec, spec, false));
    WEFT_TRY(decide_layouts(dec));
    WEFT_TRY(wefti_decide_edges(dec));
    WEFT_TRY(find_bound(dec));
    WEFT_TRY(wefti_served_check(dec));
    dec->eager = spec->optimizer && !spec->optimizer->clip && !spec->optimizer->recovery &&
                 spec->microbatches == 1 && !spec->keep_gradients && dec->stages == 1 &&
                 !dec->serves;
    if (!spec->optimizer) return WEFT_OK;
    dec->own_norms = !dec->eager && own_norms(dec);
    return wefti_decide_buckets(dec);
}

void wefti_decisions_release(wefti_decisions *dec, wefti_program *to) {
    to->arena = dec->arena;
    to->graph = dec->g;
    to->rank = dec->rank;
    to->mesh = dec->mesh;
    to->partition = dec->part;
    to->grads = dec->grads;
    to->grad_count = dec->grad_count;
    to->program_bytes = wefti_array_bytes(dec->grads, dec->grad_cap, sizeof *dec->grads);
    to->all_microbatches = dec->all_microbatches;
    to->own_norms = dec->own_norms;
    to->serves = dec->serves;
    to->samples = dec->samples;
    to->remote_layouts = dec->remote_layouts;
    to->placed = dec->placed;
    to->placed_count = dec->placed_count;
    memcpy(to->fused, dec->fused, sizeof to->fused);
    dec->released = true;
}

void wefti_decisions_free(wefti_decisions *dec) {
    wefti_free(dec->grad_keys);
    wefti_free(dec->edges);
    wefti_arena_destroy(dec->requests);
    wefti_arena_destroy(dec->scratch);
    wefti_body_destroy(dec->own_root);
    wefti_free(dec->apart);
    if (dec->released) return;
    for (int32_t i = 0; i < dec->grad_count; i++) wefti_cell_grad_free(&dec->grads[i]);
    wefti_free(dec->grads);
    wefti_partition_destroy(dec->part);
    weft_graph_destroy(dec->g);
    wefti_arena_destroy(dec->arena);
}

/* ---- meshes of other stages ---- */

/* Keeps the layouts of the parameters and states that a stage reads, for programs that will share
 * them. */
static weft_status keep_layouts(wefti_decisions *dec, int32_t stage,
                                const wefti_sharding *sharding) {
    const weft_body *root = dec->root;
    size_t most = (size_t)root->in_count + 1;
    wefti_stage_layouts *l = wefti_arena_alloc(dec->arena, sizeof *l);
    const char **names = wefti_arena_alloc(dec->arena, most * sizeof *names);
    wefti_layout *layouts = wefti_arena_alloc(dec->arena, most * sizeof *layouts);
    WEFT_REQUIRE(l && names && layouts, WEFT_E_NOMEM, "no memory for the layouts of a stage");
    *l = (wefti_stage_layouts){stage, 0, names, layouts, dec->remote_layouts};
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i];
        bool reads = false;
        for (int32_t k = 0; k < dec->call_count; k++)
            for (int j = 0; j < dec->calls[k].node->inputs; j++)
                reads |= dec->calls[k].stage == stage && dec->calls[k].node->in[j] == v;
        if (!reads || root->values[v].kind == WEFTI_VALUE_INPUT || !sharding[v].known) continue;
        names[l->count] = wefti_arena_strdup(dec->arena, root->values[v].name);
        WEFT_REQUIRE(names[l->count], WEFT_E_NOMEM, "no memory for the layouts of a stage");
        layouts[l->count++] = sharding[v].storage;
    }
    dec->remote_layouts = l;
    return WEFT_OK;
}

/* Makes a dry build for a remote stage: finds the layouts that its first device finds. */
static weft_status dry_build(wefti_decisions *dec, int32_t stage, wefti_sharding **out) {
    wefti_program_spec spec = *dec->spec;
    wefti_decisions other;
    spec.observer = NULL;
    spec.rank = wefti_plan_mesh(spec.plan, stage).first;
    WEFT_TRY(wefti_new_array(dec->scratch, dec->root->value_count, sizeof **out, out));
    weft_status status = start(&other, &spec, true);
    if (status == WEFT_OK) status = decide_layouts(&other);
    if (status == WEFT_OK)
        memcpy(*out, other.sharding, (size_t)dec->root->value_count * sizeof **out);
    wefti_decisions_free(&other);
    return status < 0 ? wefti_prefix(status, "stage %d", stage) : WEFT_OK;
}

/* Stages with equal meshes share one dry build. */
weft_status wefti_decide_remote(wefti_decisions *dec, int32_t stage) {
    const weft_plan *plan = dec->spec->plan;
    wefti_mesh mesh = wefti_plan_mesh(plan, stage);
    wefti_sharding *sharding = NULL;
    if (wefti_meshes_alike(&mesh, &dec->mesh)) return WEFT_OK;
    if (!dec->remote)
        WEFT_TRY(wefti_new_array(dec->scratch, dec->stages, sizeof *dec->remote, &dec->remote));
    if (dec->remote[stage]) return WEFT_OK;
    for (int32_t s = 0; s < dec->stages && !sharding; s++) {
        wefti_mesh known = wefti_plan_mesh(plan, s);
        if (wefti_meshes_alike(&known, &mesh)) sharding = dec->remote[s];
    }
    if (!sharding) WEFT_TRY(dry_build(dec, stage, &sharding));
    WEFT_TRY(keep_layouts(dec, stage, sharding));
    dec->remote[stage] = sharding;
    return WEFT_OK;
}

wefti_stage_side wefti_stage_side_of(const wefti_decisions *dec, int32_t stage) {
    wefti_stage_side side = {wefti_plan_mesh(dec->spec->plan, stage), dec->sharding};
    if (!wefti_meshes_alike(&side.mesh, &dec->mesh)) side.sharding = dec->remote[stage];
    return side;
}
