/* Tables of the work of microbatches, from programs of the model with few blocks: see parts.h. */
#include <stdio.h>
#include <string.h>

#include "backend/kinds.h"
#include "cost/cost.h"
#include "models/family.h"
#include "program/program.h"
#include "search/joint/parts.h"

/* ---- the short model ---- */

static bool has_equal_blocks(const weft_model_config *c) {
    const bool alike = c->window <= 0 || c->window_from <= 0;
    return alike && wefti_family_has(c->family, WEFTI_EQUAL_BLOCKS);
}

/* Where the number 1 stands as a component of the scope, -1: nowhere. */
static int64_t number_at(const char *scope) {
    for (const char *at = scope; at; at = strchr(at, '.')) {
        at += *at == '.';
        if (at[0] == '1' && (at[1] == '\0' || at[1] == '.')) return at - scope;
    }
    return -1;
}

static weft_status read_shape(wefti_joint *j, const weft_graph *g) {
    wefti_joint_shape *s = &j->shape;
    int32_t count = 0;
    for (int64_t i = 0; i < g->root->node_count; i++) count += g->root->nodes[i].callee != NULL;
    s->scope = wefti_arena_alloc(j->arena, (size_t)(count + 1) * sizeof *s->scope);
    WEFT_REQUIRE(s->scope, WEFT_E_NOMEM, "no memory for a search");
    for (int64_t i = 0; i < g->root->node_count; i++) {
        const weft_node *n = &g->root->nodes[i];
        if (!n->callee) continue;
        s->scope[s->calls] = wefti_arena_strdup(j->arena, n->scope);
        WEFT_REQUIRE(s->scope[s->calls], WEFT_E_NOMEM, "no memory for a search");
        if (s->layers && s->middle < 0 && number_at(n->scope) >= 0) {
            s->middle = s->calls;
            s->number = number_at(n->scope);
        }
        s->calls++;
    }
    return WEFT_OK;
}

static weft_status short_graph(wefti_joint *j, int64_t samples, int64_t layers, weft_graph **graph,
                               const wefti_optimizer_plan **optimizer) {
    const wefti_joint_source *source = &j->problem->source;
    return source->model(source->context, j->scalable ? samples : 0, layers, graph, optimizer);
}

weft_status wefti_joint_shape_find(wefti_joint *j) {
    const weft_model_config *c = j->problem->source.config;
    wefti_joint_shape *s = &j->shape;
    weft_graph *g;
    const wefti_optimizer_plan *optimizer;
    s->middle = -1;
    const bool shortened =
        j->scalable && c && has_equal_blocks(c) && c->layers > WEFTI_JOINT_SHORT_LAYERS + 1;
    if (shortened) s->layers = WEFTI_JOINT_SHORT_LAYERS;
    WEFT_TRY(short_graph(j, 1, s->layers, &g, &optimizer));
    WEFT_TRY(read_shape(j, g));
    if (s->middle >= 0) s->copies = (int32_t)c->layers - (WEFTI_JOINT_SHORT_LAYERS - 1);
    if (!shortened || s->middle >= 0) return WEFT_OK;
    s->calls = 0; /* blocks without numbers: the whole model then */
    s->layers = 0;
    WEFT_TRY(short_graph(j, 1, 0, &g, &optimizer));
    return read_shape(j, g);
}

const char *wefti_joint_call_name(const wefti_joint_shape *s, int32_t call, char *out) {
    enum { ROOM = 256 };
    const int32_t at = wefti_joint_short_call(s, call);
    const char *scope = s->scope[at];
    if (s->middle < 0 || at < s->middle || at > s->middle + 1) {
        snprintf(out, ROOM, "%s", scope);
        return out;
    }
    /* Block 1 is the first of the middle ones; the short model's last block is the last one. */
    const int32_t block = at == s->middle ? 1 + call - s->middle : 1 + s->copies;
    snprintf(out, ROOM, "%.*s%d%s", (int)s->number, scope, block, scope + s->number + 1);
    return out;
}

/* ---- programs ---- */

weft_status wefti_joint_build(wefti_joint *j, const wefti_degrees *d, int64_t samples,
                              int64_t layers, weft_graph **out_graph, wefti_program **out) {
    weft_plan *plan;
    const wefti_optimizer_plan *optimizer;
    WEFT_TRY(short_graph(j, samples, layers, out_graph, &optimizer));
    WEFT_TRY(wefti_joint_plan(j, d, NULL, &plan));
    plan->copies = 1; /* what one copy computes */
    /* Few blocks would stand for all, of which entries may move some. A plan that moves nothing is
     * no slower, but for what the bounds leave out. */
    if (wefti_joint_moves_parameters(j) || wefti_joint_offloads(j, WEFT_OFFLOAD_GRADIENTS))
        plan->offload.count = 0;
    const wefti_program_spec spec = {
        .graph = *out_graph,
        .kind = wefti_kind_of(0),
        .prepare = wefti_prepare_anywhere(),
        .optimizer = optimizer,
        .keep_gradients = !optimizer && (*out_graph)->loss >= 0,
        .microbatches = d->microbatches,
        .plan = wefti_plan_matters(plan) ? plan : NULL,
        .routes = j->routes,
    };
    weft_status status = wefti_program_build(&spec, out);
    weft_plan_destroy(plan);
    j->built++;
    j->effort += wefti_joint_effort(d);
    return status;
}

int32_t wefti_joint_call_of(const wefti_joint_shape *s, const char *name) {
    for (int32_t k = 0; k < s->calls; k++)
        if (!strcmp(s->scope[k], name)) return k;
    return -1;
}

static double instruction_seconds(const wefti_machine_model *m, const wefti_instruction *x) {
    if (x->node) return wefti_node_model_seconds(m, WEFTI_SPACE_DEVICE, x->node, &x->cost);
    return x->bytes > 0 ? wefti_copy_seconds(m, (double)x->bytes) : 0;
}

/* Whether the members of a transfer are in different replicas. */
static bool joins_replicas(const wefti_program *p, const wefti_transfer *t) {
    const int dp = wefti_mesh_find(&p->mesh, "dp");
    int32_t first[WEFTI_MAX_AXES], other[WEFTI_MAX_AXES];
    const int axes = p->mesh.axes;
    if (dp < 0 || t->members < 2) return false;
    wefti_mesh_coordinates(&p->mesh, t->ranks[0], first);
    for (int32_t i = 1; i < t->members; i++) {
        wefti_mesh_coordinates(&p->mesh, t->ranks[i], other);
        for (int a = dp; a < axes && (a == dp || wefti_mesh_part(&p->mesh, a)); a++)
            if (first[a] != other[a]) return true;
    }
    return false;
}

void wefti_joint_walk_end(wefti_joint_walk *w) {
    wefti_free(w->seconds);
    wefti_free(w->instant);
    wefti_free(w->replicas);
    wefti_free(w->rings);
}

weft_status wefti_joint_walk_begin(const wefti_joint *j, const wefti_program *p,
                                   wefti_joint_walk *out) {
    const wefti_active active = {p->mesh.first, wefti_mesh_size(&p->mesh)};
    const int32_t count = p->partition ? wefti_partition_transfers(p->partition) : 0;
    *out = (wefti_joint_walk){.machine = j->problem->machine, .program = p};
    out->seconds = wefti_calloc((size_t)count + 1, sizeof *out->seconds);
    out->instant = wefti_calloc((size_t)count + 1, sizeof *out->instant);
    out->replicas = wefti_calloc((size_t)count + 1, sizeof *out->replicas);
    out->rings = wefti_calloc((size_t)count + 1, sizeof *out->rings);
    if (!out->seconds || !out->instant || !out->replicas || !out->rings) {
        wefti_joint_walk_end(out);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a search");
    }
    for (int32_t i = 0; i < count; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p->partition, i);
        out->seconds[i] = wefti_transfer_seconds(out->machine, t, active);
        out->instant[i] = wefti_transfer_seconds(&j->instant, t, active);
        out->replicas[i] = joins_replicas(p, t);
        out->rings[i] = t->kind == WEFTI_TRANSFER_ALL_REDUCE ||
                        t->kind == WEFTI_TRANSFER_ALL_GATHER ||
                        t->kind == WEFTI_TRANSFER_REDUCE_SCATTER;
    }
    return WEFT_OK;
}

void wefti_joint_walk_call(const wefti_joint_walk *w, const wefti_step *s, bool replicas,
                           double *kernels, double *waits) {
    *kernels = *waits = 0;
    for (int32_t k = s->from; k < s->to;) {
        const wefti_instruction *x = &s->routine->code[k];
        if (x->transfer < 0) {
            *kernels += instruction_seconds(w->machine, x);
            k++;
            continue;
        }
        double longest = 0;
        for (bool more = true; more; k++) {
            x = &s->routine->code[k];
            const bool stays = k >= s->to - s->leaves;
            const bool counts = !stays && w->replicas[x->transfer] == replicas &&
                                (!w->only_rings || w->rings[x->transfer]);
            const double seconds = counts ? w->seconds[x->transfer] : 0;
            if (seconds > longest) longest = seconds;
            more = x->joined && k + 1 < s->to && s->routine->code[k + 1].transfer >= 0;
        }
        *waits += longest;
    }
}

/* ---- work ---- */

static int64_t value_bytes(const weft_body *body, int32_t value) {
    return value < 0 ? 0 : weft_desc_bytes(&body->values[value].desc);
}

static const wefti_step *forward_step(const wefti_program *p, const char *name) {
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *s = &p->steps[WEFTI_SECTION_FIRST][i];
        if (s->kind == WEFTI_STEP_CALL && s->phase == WEFTI_FORWARD && !strcmp(s->name, name))
            return s;
    }
    return NULL;
}

/* How many forward calls read the buffer at an address. */
static int32_t readers_of(const wefti_program *p, wefti_location at) {
    int32_t readers = 0;
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *s = &p->steps[WEFTI_SECTION_FIRST][i];
        if (s->kind != WEFTI_STEP_CALL || s->phase != WEFTI_FORWARD || s->part) continue;
        for (int32_t a = 0; a < s->routine->inputs; a++)
            readers += wefti_location_equal(s->args[a], at);
    }
    return readers;
}

/* Inputs of the forward call that the backward call reads again: they lie in memory in between. */
int64_t wefti_joint_kept_bytes(const wefti_program *p, const wefti_step *backward) {
    const wefti_step *forward = forward_step(p, backward->name);
    int64_t bytes = 0;
    if (!forward) return 0;
    for (int32_t a = 0; a < backward->routine->inputs; a++) {
        bool same = false;
        if (backward->params && backward->params[a] >= 0) continue;
        for (int32_t f = 0; f < forward->routine->inputs; f++)
            same |= wefti_location_equal(forward->args[f], backward->args[a]) &&
                    !(forward->params && forward->params[f] >= 0);
        if (same && wefti_location_term(backward->args[a]) == WEFTI_TRANSIENT &&
            readers_of(p, backward->args[a]) == 1)
            bytes += value_bytes(backward->routine->body, backward->routine->body->in[a]);
    }
    return bytes;
}

double wefti_joint_best_rate(const wefti_device_model *d, wefti_arithmetic a) {
    const wefti_curve *c = &d->product[a];
    double rate = wefti_model_product_rate(d, a);
    for (int32_t i = 0; i < c->count; i++)
        if (i == 0 || c->rate[i] > rate) rate = c->rate[i];
    return rate;
}

/* Casts before a product in 8 bits have no factor, and the bound counts the bytes of its operands
 * once, before or behind the cast. So no factor above 1 counts there. */
double wefti_joint_least_factor(const wefti_device_model *d, const weft_node *n) {
    char key[64];
    double least = 1;
    if (!d->op_factor_count) return 1;
    (void)wefti_model_op_key(n->op->name, wefti_node_arithmetic(n), key);
    for (int32_t i = 0; i < d->op_factor_count; i++) {
        const wefti_curve *c = &d->op_factors[i].curve;
        if (strcmp(d->op_factors[i].op, key) != 0) continue;
        for (int32_t k = 0; k < c->count; k++)
            if (k == 0 || c->rate[k] < least) least = c->rate[k];
        break;
    }
    return wefti_node_is_f8(n) ? wefti_smaller(least, 1) : least;
}

static double ideal_seconds(const wefti_machine_model *m, const wefti_step *s) {
    double seconds = 0;
    for (int32_t k = s->from; k < s->to; k++) {
        const wefti_instruction *x = &s->routine->code[k];
        if (x->node && x->node->op->work == WEFTI_WORK_PRODUCT)
            seconds += x->cost.flops * wefti_joint_least_factor(&m->device, x->node) /
                       wefti_joint_best_rate(&m->device, wefti_node_arithmetic(x->node));
    }
    return seconds;
}

static void read_work_step(const wefti_joint_walk *w, const wefti_joint_shape *shape,
                           const wefti_step *s, wefti_joint_work *out) {
    const int32_t k = s->kind == WEFTI_STEP_CALL ? wefti_joint_call_of(shape, s->name) : -1;
    double kernels, waits;
    if (k < 0 || (s->phase != WEFTI_FORWARD && s->phase != WEFTI_BACKWARD)) return;
    wefti_joint_call *call = &out->calls[k];
    const wefti_routine *r = s->routine;
    wefti_joint_walk_call(w, s, false, &kernels, &waits);
    if (s->phase == WEFTI_FORWARD) {
        call->forward += kernels + waits;
        if (r->saved_bytes > call->saved) call->saved = r->saved_bytes;
        if (k == shape->middle && r->body->out_count)
            out->boundary = value_bytes(r->body, r->body->out[0]);
        return;
    }
    call->backward += kernels + waits;
    if (r->frame_bytes > call->frame) call->frame = r->frame_bytes;
    if (s->part == 0) call->kept += wefti_joint_kept_bytes(w->program, s);
}

static weft_status make_work(wefti_joint *j, wefti_joint_work *work) {
    const wefti_joint_work_key *k = &work->key;
    wefti_degrees d = wefti_degrees_none();
    wefti_program *p;
    weft_graph *g;
    d.data = k->data, d.expert = k->expert, d.context = k->context, d.tensor = k->tensor;
    d.sequence = k->sequence;
    d.recompute = (weft_recompute)k->recompute;
    memcpy(d.order, k->order, sizeof d.order);
    work->calls = wefti_arena_alloc(j->arena, (size_t)j->shape.calls * sizeof *work->calls);
    WEFT_REQUIRE(work->calls, WEFT_E_NOMEM, "no memory for a search");
    const weft_status status = wefti_joint_build(j, &d, k->samples, j->shape.layers, &g, &p);
    if (wefti_joint_refuses(status)) return WEFT_OK;
    WEFT_TRY(status);
    wefti_joint_walk w;
    const weft_status begun = wefti_joint_walk_begin(j, p, &w);
    for (int32_t i = 0; begun >= 0 && i < p->step_count[WEFTI_SECTION_FIRST]; i++)
        read_work_step(&w, &j->shape, &p->steps[WEFTI_SECTION_FIRST][i], work);
    if (begun >= 0) wefti_joint_walk_end(&w);
    work->legal = begun >= 0;
    wefti_program_destroy(p);
    return begun;
}

/* Replicas that hold whole samples each compute alike: one of them stands for all, if the axis of
 * replicas is outermost. */
static wefti_joint_work_key work_key(const wefti_joint *j, const wefti_degrees *d) {
    wefti_joint_work_key k;
    memset(&k, 0, sizeof k); /* padding too: keys are compared as bytes */
    const int64_t samples = wefti_joint_samples(j, d);
    const bool one = j->scalable && wefti_joint_outermost(d) && samples % d->data == 0;
    k.data = one ? 1 : d->data;
    k.expert = d->expert, k.context = d->context, k.tensor = d->tensor;
    k.samples = (int32_t)(one ? samples / d->data : samples);
    k.sequence = d->sequence;
    k.recompute = (int32_t)d->recompute;
    memcpy(k.order, d->order, sizeof k.order);
    return k;
}

weft_status wefti_joint_work_find(wefti_joint *j, const wefti_degrees *d,
                                  const wefti_joint_work **out) {
    const wefti_joint_work_key key = work_key(j, d);
    for (int64_t i = 0; i < j->work_count; i++)
        if (!memcmp(&j->works[i].key, &key, sizeof key)) {
            *out = &j->works[i];
            return WEFT_OK;
        }
    WEFT_TRY(WEFT_GROW(j->works, j->work_count, j->work_cap));
    wefti_joint_work *work = &j->works[j->work_count++];
    *work = (wefti_joint_work){.key = key};
    WEFT_TRY(make_work(j, work));
    *out = work;
    return WEFT_OK;
}

weft_status wefti_joint_ideal(wefti_joint *j, double *out_forward, double *out_backward) {
    const wefti_degrees d = wefti_degrees_none();
    wefti_program *p;
    weft_graph *g;
    WEFT_TRY(wefti_joint_build(j, &d, 1, j->shape.layers, &g, &p));
    *out_forward = *out_backward = 0;
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *s = &p->steps[WEFTI_SECTION_FIRST][i];
        const int32_t k = s->kind == WEFTI_STEP_CALL ? wefti_joint_call_of(&j->shape, s->name) : -1;
        if (k < 0 || (s->phase != WEFTI_FORWARD && s->phase != WEFTI_BACKWARD)) continue;
        *(s->phase == WEFTI_FORWARD ? out_forward : out_backward) +=
            ideal_seconds(j->problem->machine, s) * (k == j->shape.middle ? j->shape.copies : 1);
    }
    wefti_program_destroy(p);
    return WEFT_OK;
}
