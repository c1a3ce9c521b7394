/* Tables of parameters, gradients and the optimizer, from programs of the model with few blocks:
 * see parts.h. */
#include <string.h>

#include "cost/cost.h"
#include "program/program.h"
#include "search/joint/parts.h"

/* Sums over one program: 0 in the first microbatch, 1 in each further one, 2 in the last one, and
 * everything behind them. */
typedef struct state_sums {
    double update, waits[3], stream[3][WEFTI_LEVELS_MAX], tail;
    double early[WEFTI_LEVELS_MAX]; /* of the stream, posted before the first backward call */
} state_sums;

static void add_transfer(const wefti_joint_walk *w, int part, int32_t index, state_sums *out) {
    const wefti_transfer *t = wefti_partition_transfer(w->program->partition, index);
    if (t->members > 1) out->stream[part][wefti_transfer_level(w->machine, t)] += w->instant[index];
}

/* Seconds of the kernels of an update. Those that only move values pack and unpack messages. How
 * many there are depends on how messages divide the parameters, which differs from block to block,
 * so they do not count. */
static double update_of(const wefti_joint_walk *w, const wefti_step *s) {
    double seconds = 0;
    for (int32_t k = s->from; k < s->to; k++) {
        const wefti_instruction *x = &s->routine->code[k];
        if (x->transfer < 0 && x->node && x->cost.flops > 0)
            seconds += wefti_node_model_seconds(w->machine, s->space, x->node, &x->cost);
    }
    return seconds;
}

static void add_state_step(const wefti_joint_walk *w, const wefti_step *s, int part,
                           state_sums *out) {
    double kernels, waits;
    if (s->kind == WEFTI_STEP_POST && !wefti_step_copy(w->program, s))
        add_transfer(w, part, wefti_step_transfer_of(w->program, s), out);
    if (s->kind == WEFTI_STEP_COPY && part != 1)
        out->update += wefti_copy_seconds(w->machine, (double)wefti_copy_bytes(s));
    if (s->kind != WEFTI_STEP_CALL) return;
    const bool computes = s->phase == WEFTI_FORWARD || s->phase == WEFTI_BACKWARD;
    /* More blocks may share a message: latencies do not grow with them. */
    wefti_joint_walk instant = *w;
    instant.seconds = w->instant;
    wefti_joint_walk_call(&instant, s, true, &kernels, &waits);
    out->waits[part] += waits;
    if (!computes && part != 1) out->update += update_of(w, s);
    for (int32_t k = s->from; k < s->to; k++) {
        const int32_t t = s->routine->code[k].transfer;
        if (t >= 0 && w->replicas[t]) add_transfer(w, part, t, out);
    }
}

/* The last section that computes. */
static wefti_section last_section(const wefti_program *p) {
    return p->step_count[WEFTI_SECTION_LAST]   ? WEFTI_SECTION_LAST
           : p->step_count[WEFTI_SECTION_NEXT] ? WEFTI_SECTION_NEXT
                                               : WEFTI_SECTION_FIRST;
}

/* The exposed part of transfers that are posted behind the last backward call: a rank that waits
 * for none of the earlier ones walks to the end of its step. */
static weft_status find_tail(const wefti_joint_walk *w, double *out) {
    const wefti_program *p = w->program;
    const wefti_section from = last_section(p);
    const int32_t transfers = p->partition ? wefti_partition_transfers(p->partition) : 0;
    double *ends, clock = 0, busy = 0, kernels, waits;
    int32_t begin = 0;
    WEFT_NEW_ARRAY(ends, double, transfers + 1);
    for (int32_t i = 0; i < p->step_count[from]; i++) {
        const wefti_step *s = &p->steps[from][i];
        if (s->kind == WEFTI_STEP_CALL && s->phase == WEFTI_BACKWARD) begin = i + 1;
    }
    for (int section = (int)from; section < WEFTI_SECTIONS; section++) {
        for (int32_t i = section == (int)from ? begin : 0; i < p->step_count[section]; i++) {
            const wefti_step *s = &p->steps[section][i];
            double more = 0;
            const bool moves = s->kind == WEFTI_STEP_POST || s->kind == WEFTI_STEP_WAIT;
            const int32_t t = moves ? wefti_step_transfer_of(p, s) : -1; /* a copy hides */
            if (t >= 0 && s->kind == WEFTI_STEP_POST && section == (int)from)
                ends[t] = clock + w->seconds[t];
            if (t >= 0 && s->kind == WEFTI_STEP_WAIT && ends[t] > clock) clock = ends[t];
            if (s->kind == WEFTI_STEP_COPY)
                more = wefti_copy_seconds(w->machine, (double)wefti_copy_bytes(s));
            if (s->kind == WEFTI_STEP_CALL) {
                wefti_joint_walk_call(w, s, true, &kernels, &waits);
                more = kernels + waits;
            }
            clock += more;
            busy += more;
        }
    }
    *out = clock - busy;
    wefti_free(ends);
    return WEFT_OK;
}

static weft_status sum_state(const wefti_joint *j, const wefti_program *p, state_sums *out) {
    wefti_joint_walk w;
    bool backward = false;
    *out = (state_sums){0};
    WEFT_TRY(wefti_joint_walk_begin(j, p, &w));
    for (int section = 0; section < WEFTI_SECTIONS; section++) {
        const int part = section == WEFTI_SECTION_FIRST ? 0 : section == WEFTI_SECTION_NEXT ? 1 : 2;
        for (int32_t i = 0; i < p->step_count[section]; i++) {
            const wefti_step *s = &p->steps[section][i];
            if (s->kind == WEFTI_STEP_CALL && s->phase == WEFTI_BACKWARD && !backward) {
                backward = true;
                for (int l = 0; l < WEFTI_LEVELS_MAX; l++)
                    out->early[l] = out->stream[0][l] + out->stream[1][l] + out->stream[2][l];
            }
            add_state_step(&w, s, part, out);
        }
    }
    const weft_status status = find_tail(&w, &out->tail);
    wefti_joint_walk_end(&w);
    /* Gradients in a lower tier are messages of their own, which may come earlier than buckets. */
    if (wefti_joint_offloads(j, WEFT_OFFLOAD_GRADIENTS)) {
        memset(out->waits, 0, sizeof out->waits);
        out->tail = 0;
    }
    return status;
}

int32_t wefti_joint_readers(const weft_graph *g, const char *name, int32_t *out_first) {
    int32_t readers = 0, call = -1;
    *out_first = -1;
    for (int64_t i = 0; i < g->root->node_count; i++) {
        const weft_node *n = &g->root->nodes[i];
        bool reads = false;
        if (!n->callee) continue;
        call++;
        for (int k = 0; k < n->inputs && !reads; k++) {
            const char *is = n->in[k] < 0 ? NULL : g->root->values[n->in[k]].name;
            reads = is && !strcmp(is, name);
        }
        if (reads && !readers++) *out_first = call;
    }
    return readers;
}

static weft_status read_tensors(wefti_joint *j, const weft_graph *g, const wefti_program *p,
                                wefti_joint_state *out) {
    const bool offloads = wefti_joint_offloads(j, WEFT_OFFLOAD_OPTIMIZER);
    const bool parameters = !wefti_joint_offloads(j, WEFT_OFFLOAD_PARAMETERS);
    const bool gradients = !wefti_joint_offloads(j, WEFT_OFFLOAD_GRADIENTS);
    int32_t *reader;
    WEFT_NEW_ARRAY(reader, int32_t, p->tensor_count + 1);
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        reader[i] = -1;
        if (t->role == WEFTI_TENSOR_PARAM) (void)wefti_joint_readers(g, t->name, &reader[i]);
        if (reader[i] >= j->shape.calls) reader[i] = -1;
        if (reader[i] < 0) continue;
        if (parameters) out->parameters[reader[i]] += weft_desc_bytes(&t->desc);
        if (gradients && out->key.several && out->key.level < 2)
            out->gradients[reader[i]] += weft_desc_bytes(&t->desc);
    }
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (t->role != WEFTI_TENSOR_OPTIMIZER || t->param < 0 || reader[t->param] < 0 || offloads)
            continue;
        out->optimizer[reader[t->param]] += weft_desc_bytes(&t->desc);
    }
    wefti_free(reader);
    return WEFT_OK;
}

static weft_status new_bytes(wefti_joint *j, int64_t **out) {
    *out = wefti_arena_alloc(j->arena, (size_t)j->shape.calls * sizeof **out);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a search");
    return WEFT_OK;
}

static weft_status sums_of(wefti_joint *j, const wefti_joint_state *state, int64_t layers,
                           state_sums *out, wefti_joint_state *tensors) {
    const wefti_joint_state_key *k = &state->key;
    wefti_degrees d = wefti_degrees_none();
    wefti_program *p;
    weft_graph *g;
    d.data = k->data, d.expert = k->expert, d.context = k->context, d.tensor = k->tensor;
    d.sequence = k->sequence, d.level = k->level, d.shard = k->shard;
    d.recompute = (weft_recompute)k->recompute;
    d.microbatches = k->several ? 3 : 1; /* sections FIRST, NEXT and LAST */
    memcpy(d.order, k->order, sizeof d.order);
    WEFT_TRY(wefti_joint_build(j, &d, k->samples, layers, &g, &p));
    weft_status status = sum_state(j, p, out);
    if (status >= 0 && tensors) status = read_tensors(j, g, p, tensors);
    wefti_program_destroy(p);
    return status;
}

/* A block costs what three blocks cost more than two. */
static wefti_joint_share share_of(double three, double two, bool shortened) {
    const double block = shortened && three > two ? three - two : 0;
    return (wefti_joint_share){three - (shortened ? WEFTI_JOINT_SHORT_LAYERS : 0) * block, block};
}

static weft_status make_state(wefti_joint *j, wefti_joint_state *state) {
    const bool shortened = j->shape.layers > 0;
    state_sums three, two = {0};
    WEFT_TRY(new_bytes(j, &state->parameters));
    WEFT_TRY(new_bytes(j, &state->optimizer));
    WEFT_TRY(new_bytes(j, &state->gradients));
    weft_status status = sums_of(j, state, j->shape.layers, &three, state);
    if (status >= 0 && shortened) status = sums_of(j, state, j->shape.layers - 1, &two, NULL);
    if (wefti_joint_refuses(status)) return WEFT_OK;
    WEFT_TRY(status);
    state->update = share_of(three.update, two.update, shortened);
    for (int part = 0; part < 3; part++) {
        state->waits[part] = share_of(three.waits[part], two.waits[part], shortened);
        for (int l = 0; l < WEFTI_LEVELS_MAX; l++)
            state->stream[part][l] =
                share_of(three.stream[part][l], two.stream[part][l], shortened);
    }
    for (int l = 0; l < WEFTI_LEVELS_MAX; l++)
        state->early[l] = share_of(three.early[l], two.early[l], shortened);
    state->tail = three.tail;
    state->legal = true;
    return WEFT_OK;
}

weft_status wefti_joint_state_find(wefti_joint *j, const wefti_degrees *d,
                                   const wefti_joint_state **out) {
    wefti_joint_state_key key;
    memset(&key, 0, sizeof key);
    key.data = d->data, key.expert = d->expert, key.context = d->context, key.tensor = d->tensor;
    key.sequence = d->sequence, key.level = d->level, key.shard = d->shard;
    key.several = d->microbatches > 1 || d->stages > 1;
    key.samples = (int32_t)wefti_joint_samples(j, d);
    key.recompute = (int32_t)d->recompute;
    memcpy(key.order, d->order, sizeof key.order);
    for (int64_t i = 0; i < j->state_count; i++)
        if (!memcmp(&j->states[i].key, &key, sizeof key)) {
            *out = &j->states[i];
            return WEFT_OK;
        }
    WEFT_TRY(WEFT_GROW(j->states, j->state_count, j->state_cap));
    wefti_joint_state *state = &j->states[j->state_count++];
    *state = (wefti_joint_state){.key = key};
    WEFT_TRY(make_state(j, state));
    *out = state;
    return WEFT_OK;
}
