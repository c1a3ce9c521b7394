/* Random plans for random networks (random_network.h), for tests that run one model in several
 * ways. Plans have random meshes, splits of ops, inputs and parameters, microbatches and copies.
 * Stages follow all schedules, and may have meshes of their own. Recomputation, sharded optimizers
 * and fusion are random too. Everything follows from one seed. */
#ifndef WEFT_TESTS_RANDOM_PLAN_H
#define WEFT_TESTS_RANDOM_PLAN_H

#include "session_models.h"

#include "graph/builder.h"
#include "plan/plan.h"
#include "random_network.h"
#include "weft/plan.h"

typedef struct trial {
    uint64_t seed;
    dice dice;
    int most; /* devices */
    weft_dtype dtype;
    int devices, stages, chunks, microbatches;
    int64_t batch; /* of a microbatch */
    int cells;
    weft_optimizer_kind optimizer;
    double clip;
    bool cuts;  /* some strategies are cuts of each input */
    bool links; /* between two stages of equal meshes were measured */
    bool gpt2;  /* the tiny gpt2 in place of a random network */
    weft_plan *plan;
} trial;

/* ---- strategies for an op ---- */

static inline const char *label_of(const weft_body *body, const weft_node *n, const char *call,
                                   char *out, size_t bytes) {
    const char *inside = n->scope;
    int length = (int)strlen(inside);
    for (int i = 0; i < n->inputs; i++) {
        const wefti_value_info *v = n->in[i] < 0 ? NULL : &body->values[n->in[i]];
        const char *dot =
            v && v->kind == WEFTI_VALUE_PARAM && v->name ? strrchr(v->name, '.') : NULL;
        if (!dot) continue;
        inside = v->name;
        length = (int)(dot - v->name);
        break;
    }
    (void)snprintf(out, bytes, "%s%s%.*s:%s", call, *call && length ? "." : "", length, inside,
                   n->op->name);
    return out;
}

static inline bool may_split(const weft_node *n, const wefti_split_rule *rule, int f) {
    wefti_factor_kind kind = rule->factor[f].kind;
    if (kind == WEFTI_FACTOR_FREE || kind == WEFTI_FACTOR_SUM || kind == WEFTI_FACTOR_MAX)
        return true;
    return kind != WEFTI_FACTOR_WHOLE && n->op->lower && (n->op->lowers >> kind & 1);
}

/* Some of the axes, each on one factor. No factor has more parts than elements. */
static inline bool random_split(trial *t, const weft_node *n, char *out, size_t bytes) {
    wefti_split_rule rule;
    wefti_rule_begin(&rule);
    if (!n->op->split || n->op->split(n, &rule) < 0) return false;
    const wefti_mesh *mesh = &t->plan->mesh;
    char axes[WEFTI_MAX_FACTORS][64] = {{0}};
    int64_t parts[WEFTI_MAX_FACTORS];
    for (int f = 0; f < rule.factors; f++) parts[f] = 1;
    for (int a = 0; a < mesh->axes; a++) {
        if (roll(&t->dice, 3) == 0 || rule.factors == 0) continue;
        int f = (int)roll(&t->dice, rule.factors);
        if (!may_split(n, &rule, f) || parts[f] * mesh->axis[a].size > rule.factor[f].size)
            continue;
        parts[f] *= mesh->axis[a].size;
        if (*axes[f]) strcat(axes[f], "+");
        strcat(axes[f], mesh->axis[a].name);
    }
    size_t at = 0;
    out[0] = 0;
    for (int f = 0; f < rule.factors; f++)
        if (*axes[f])
            at += (size_t)snprintf(out + at, bytes - at, "%s%s=%s", at ? " " : "",
                                   rule.factor[f].name, axes[f]);
    return at > 0;
}

/* The same as cuts of each input, ((2,1),(1,4)), which leave the axes open. */
static inline void as_cuts(const trial *t, const weft_node *n, char *split, size_t bytes) {
    wefti_split_rule rule;
    int64_t cuts[WEFTI_MAX_FACTORS];
    char text[256];
    size_t at = 0;
    wefti_rule_begin(&rule);
    ASSERT_OK(n->op->split(n, &rule));
    for (int f = 0; f < rule.factors; f++) {
        char key[40];
        (void)snprintf(key, sizeof key, "%s=", rule.factor[f].name);
        const char *axes = strstr(split, key);
        cuts[f] = 1;
        while (axes && axes != split && axes[-1] != ' ') axes = strstr(axes + 1, key);
        size_t length = axes ? strcspn(axes, " ") : 0;
        for (int a = 0; a < t->plan->mesh.axes && axes; a++) {
            const char *name = strstr(axes, t->plan->mesh.axis[a].name);
            if (name && name < axes + length) cuts[f] *= t->plan->mesh.axis[a].size;
        }
    }
    for (int i = 0; i < n->inputs; i++) {
        if (!wefti_in(n, i)) return;
        at += (size_t)snprintf(text + at, sizeof text - at, i ? ",(" : "((");
        for (int d = 0; d < wefti_in(n, i)->rank; d++) {
            int f = rule.in[i][d];
            at += (size_t)snprintf(text + at, sizeof text - at, d ? ",%d" : "%d",
                                   f < 0 ? 1 : (int)cuts[f]);
        }
        at += (size_t)snprintf(text + at, sizeof text - at, ")");
    }
    if (n->inputs) (void)snprintf(split, bytes, "%s)", text);
}

/* Sometimes a result is to lie in some layout: " -> [-, tp]". */
static inline void random_result(const trial *t, dice *d, const weft_node *n, char *out,
                                 size_t bytes) {
    const weft_desc *y = wefti_out(n, 0);
    const wefti_mesh *mesh = &t->plan->mesh;
    char dims[WEFT_MAX_RANK][64] = {{0}};
    int64_t parts[WEFT_MAX_RANK];
    if (roll(d, 4) || y->rank == 0) return;
    for (int k = 0; k < y->rank; k++) parts[k] = 1;
    for (int a = 0; a < mesh->axes; a++) {
        int k = (int)roll(d, y->rank);
        if (roll(d, 2) || parts[k] * mesh->axis[a].size > y->shape[k]) continue;
        parts[k] *= mesh->axis[a].size;
        if (*dims[k]) strcat(dims[k], "+");
        strcat(dims[k], mesh->axis[a].name);
    }
    size_t at = strlen(out);
    at += (size_t)snprintf(out + at, bytes - at, " -> [");
    for (int k = 0; k < y->rank; k++)
        at +=
            (size_t)snprintf(out + at, bytes - at, "%s%s", k ? ", " : "", *dims[k] ? dims[k] : "-");
    (void)snprintf(out + at, bytes - at, "]");
}

static inline void split_ops(trial *t, weft_graph *g) {
    dice own = {t->seed, 1u << 23}, cut = {t->seed, 1u << 24};
    int64_t one_in = 1 + roll(&t->dice, 4);
    for (int64_t k = 0; k < g->root->node_count; k++) {
        const weft_node *call = &g->root->nodes[k];
        if (call->op != &wefti_op_call) continue;
        for (int64_t j = 0; j < call->callee->node_count; j++) {
            const weft_node *n = &call->callee->nodes[j];
            char label[256], split[256];
            if (roll(&t->dice, one_in) || !random_split(t, n, split, sizeof split)) continue;
            label_of(call->callee, n, call->scope, label, sizeof label);
            if (t->cuts && roll(&cut, 3) == 0) as_cuts(t, n, split, sizeof split);
            random_result(t, &own, n, split, sizeof split);
            ASSERT_OK(weft_plan_split_op(t->plan, label, split));
        }
    }
}

static inline void split_tensors(trial *t, weft_graph *g) {
    const wefti_mesh *mesh = &t->plan->mesh;
    for (int64_t k = 0; k < g->root->in_count; k++) {
        const wefti_value_info *v = &g->root->values[g->root->in[k]];
        if (roll(&t->dice, 6) || v->desc.rank == 0) continue;
        wefti_layout layout = wefti_layout_replicated(v->desc.rank);
        for (int a = 0; a < mesh->axes; a++) {
            wefti_dim_split *s = &layout.dim[roll(&t->dice, v->desc.rank)];
            int64_t parts = mesh->axis[a].size;
            for (int b = 0; b < s->count; b++) parts *= mesh->axis[s->axis[b]].size;
            if (roll(&t->dice, 2) && parts <= v->desc.shape[s - layout.dim])
                s->axis[s->count++] = (int8_t)a;
        }
        wefti_text text = {0};
        wefti_text_add(&text, "[");
        for (int d = 0; d < v->desc.rank; d++) {
            if (d) wefti_text_add(&text, ", ");
            if (!layout.dim[d].count) wefti_text_add(&text, "-");
            for (int a = 0; a < layout.dim[d].count; a++)
                wefti_text_add(&text, "%s%s", a ? "+" : "", mesh->axis[layout.dim[d].axis[a]].name);
        }
        wefti_text_add(&text, "]");
        char *s = wefti_text_take(&text);
        ASSERT_OK(weft_plan_split_tensor(t->plan, v->name, s));
        wefti_free(s);
    }
}

/* Some results of cells, to be read after each step. */
static inline void name_results(const trial *t, weft_graph *g) {
    dice own = {t->seed, 1u << 25};
    for (int64_t v = 0; v < g->root->value_count && t->dtype == WEFT_F64; v++) {
        const wefti_value_info *x = &g->root->values[v];
        char name[32];
        if (x->kind != WEFTI_VALUE_NODE || x->desc.dtype != t->dtype || roll(&own, 3)) continue;
        (void)snprintf(name, sizeof name, "result%d", (int)v);
        ASSERT_OK(wefti_root_output(g, name, (int32_t)v));
    }
}

/* ---- plans ---- */

static inline void make_mesh(trial *t) {
    static const char *const names[] = {"dp", "tp", "sp"};
    static const int sizes[][3] = {{1},
                                   {2},
                                   {3},
                                   {4},
                                   {2, 2},
                                   {5},
                                   {6},
                                   {2, 3},
                                   {3, 2},
                                   {7},
                                   {8},
                                   {2, 4},
                                   {4, 2},
                                   {2, 2, 2},
                                   /* for more than 8 devices */
                                   {3, 3},
                                   {2, 5},
                                   {4, 4},
                                   {3, 2, 2},
                                   {8, 2},
                                   {5, 3},
                                   {12},
                                   {16},
                                   {4, 2, 2},
                                   {2, 8},
                                   {6, 4},
                                   {7, 4},
                                   {32},
                                   {2, 4, 4}};
    const int count = t->most > 8 ? (int)(sizeof sizes / sizeof *sizes) : 14;
    do {
        int m = (int)roll(&t->dice, count);
        t->stages = roll(&t->dice, 3) ? 1 : 2 << roll(&t->dice, 2);
        if (t->links) m = 4, t->stages = 2;
        t->devices = t->stages;
        for (int a = 0; a < 3; a++) t->devices *= sizes[m][a] ? sizes[m][a] : 1;
        if (t->devices > t->most) continue;
        ASSERT_OK(weft_plan_create(t->devices, &t->plan));
        for (int a = 0; a < 3 && sizes[m][a]; a++)
            ASSERT_OK(weft_plan_axis(t->plan, names[a], sizes[m][a]));
    } while (!t->plan);
}

static inline void make_schedule(trial *t) {
    t->microbatches = 1;
    t->chunks = 1;
    if (t->stages > 1) {
        weft_schedule kind = (weft_schedule)roll(&t->dice, WEFT_PIPELINE_SCHEDULES);
        if (kind == WEFT_PIPELINE_ZERO_BUBBLE) t->chunks = 1 + (int)roll(&t->dice, 2);
        if (kind == WEFT_PIPELINE_INTERLEAVED) t->chunks = 2;
        t->microbatches = t->stages * (t->chunks > 1 ? 2 : 1 + (int)roll(&t->dice, 2));
        ASSERT_OK(weft_plan_pipeline(t->plan, t->stages, t->microbatches, kind, t->chunks));
    } else if (roll(&t->dice, 3) == 0) {
        t->microbatches = 2 + (int)roll(&t->dice, 2);
        ASSERT_OK(weft_plan_accumulate(t->plan, t->microbatches));
    } else if (roll(&t->dice, 6) == 0) {
        t->microbatches = 2;
        ASSERT_OK(weft_plan_copies(t->plan, 2));
    }
}

/* Sometimes stages have meshes of their own. No axis is longer than in the mesh for which the split
 * and the batch were chosen. */
static inline void unlike_meshes(trial *t) {
    int sizes[8][WEFTI_MAX_AXES], axes = t->plan->mesh.axes, devices = 0;
    weft_plan *plan;
    dice own = {t->seed, 1u << 21}; /* numbers of its own: the other choices of a trial stay */
    if (t->stages == 1 || t->links || roll(&own, 2)) return;
    for (int s = 0; s < t->stages; s++) {
        int product = 1;
        for (int a = 0; a < axes; a++) {
            int size = t->plan->mesh.axis[a].size;
            sizes[s][a] = roll(&own, 2) ? size : 1 + (int)roll(&own, size);
            product *= sizes[s][a];
        }
        devices += product;
    }
    for (int a = 0; a < axes; a++)
        if (t->plan->mesh.axis[a].size > devices) return;
    ASSERT_OK(weft_plan_create(devices, &plan));
    for (int a = 0; a < axes; a++)
        ASSERT_OK(weft_plan_axis(plan, t->plan->mesh.axis[a].name, t->plan->mesh.axis[a].size));
    weft_plan_destroy(t->plan);
    t->plan = plan;
    make_schedule(t);
    for (int s = 0; s < t->stages; s++) ASSERT_OK(weft_plan_stage_mesh(plan, s, axes, sizes[s]));
}

/* Sometimes each microbatch has copies, also in a pipeline. */
static inline void more_copies(trial *t) {
    dice own = {t->seed, 1u << 22};
    if (roll(&own, 6) || t->plan->copies > 1) return;
    int copies = 2 + (int)roll(&own, 2);
    ASSERT_OK(weft_plan_copies(t->plan, copies));
    t->microbatches *= copies;
}

/* Links within hosts and between them. A host may hold any number of ranks, so that stages may lie
 * on two hosts. */
static inline void measured_links(trial *t) {
    dice own = {t->seed, 1u << 26};
    wefti_measured_link between = {roll(&own, 2) ? 1e-3 : 1e-8, roll(&own, 2) ? 1e5 : 1e12};
    if (!t->links) return;
    t->plan->links = (wefti_links){.measured = true,
                                   .ranks_per_host = 1 + (int32_t)roll(&own, 7),
                                   .same_host = {1e-7, 1e10},
                                   .between_hosts = between};
}

static inline trial trial_of(uint64_t seed, bool links, int most) {
    trial t = {.seed = seed, .dice = {seed, 1u << 20}, .most = most, .links = links};
    dice *d = &t.dice;
    make_mesh(&t);
    make_schedule(&t);
    unlike_meshes(&t);
    measured_links(&t);
    more_copies(&t);
    t.dtype = roll(d, 4) ? WEFT_F64 : WEFT_F32;
    t.batch = t.devices / t.stages + roll(d, 5);
    if (t.batch < 2) t.batch = 2;
    t.cells = t.stages * t.chunks + (int)roll(d, 3);
    t.optimizer = t.dtype == WEFT_F64 ? (weft_optimizer_kind)roll(d, WEFT_OPTIMIZERS) : WEFT_SGD;
    t.clip = roll(d, 3) ? 0 : 0.05;
    if (roll(d, 2))
        ASSERT_OK(weft_plan_optimizer(t.plan, (int)roll(d, 4), roll(d, 2) ? 0 : 256,
                                      t.devices / t.stages % 2 || roll(d, 4) ? 0 : 2));
    if (roll(d, 3) == 0)
        ASSERT_OK(weft_plan_recompute(t.plan, (weft_recompute)(1 + roll(d, 2)),
                                      roll(d, 2) ? NULL : "c*", roll(d, 2)));
    if (roll(d, 4) == 0) ASSERT_OK(weft_plan_overlap(t.plan, roll(d, 2)));
    if (roll(d, 4) == 0) ASSERT_OK(weft_plan_dataset(t.plan, WEFT_DATASET_FULL_BATCH));
    if (roll(d, 4) == 0)
        ASSERT_OK(
            weft_plan_fusion(t.plan, "allreduce", (weft_fusion_mode)roll(d, 3), 512, 0, NULL));
    return t;
}

/* ---- inputs ---- */

/* Feeds all inputs. Numbers follow from the microbatch, the tensor's name and the place. For use in
 * a rank's thread too. */
static inline weft_status feed(weft_session *s, uint64_t microbatch) {
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        weft_status status = weft_session_tensor(s, 0, k, &info);
        if (status < 0) return status;
        if (info.role != WEFT_ROLE_INPUT) continue;
        uint64_t stream = wefti_stream_of(info.name);
        uint32_t below = strcmp(info.name, "index") ? 5 : 2;
        void *data = malloc((size_t)info.bytes + 8);
        for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++)
            if (info.desc.dtype == WEFT_I32)
                ((int32_t *)data)[e] =
                    (int32_t)(wefti_philox_u32(microbatch, stream, (uint64_t)e) % below);
            else if (info.desc.dtype == WEFT_F64)
                ((double *)data)[e] = wefti_philox_normal(microbatch, stream, (uint64_t)e);
            else
                wefti_store(info.desc.dtype, data, e,
                            wefti_philox_normal(microbatch, stream, (uint64_t)e));
        status = weft_session_feed(s, 0, info.name, data, (size_t)info.bytes);
        free(data);
        if (status < 0) return status;
    }
    return WEFT_OK;
}

#endif
