/* Models for tests of searches, and what the tests ask of a plan. */
#ifndef WEFT_TESTS_SEARCH_MODELS_H
#define WEFT_TESTS_SEARCH_MODELS_H

#include "support.h"

#include <math.h>

#include "builder/fold/fold.h"
#include "graph/build_random.h"
#include "partition/partition.h"
#include "program/print.h"
#include "search/find.h"
#include "search/mindspore/mindspore.h"
#include "search/predict/predict.h"
#include "session/optimizer.h"
#include "topo/model.h"
#include "verify.h"
#include "weft/ops.h"
#include "weft/search.h"
#include "weft/session.h"

static const weft_init search_normal = {WEFT_INIT_NORMAL, 0.3};

static inline weft_desc search_desc(weft_dtype dtype, int64_t a, int64_t b) {
    return weft_desc_of(dtype, b ? 2 : 1, (int64_t[]){a, b});
}

static inline weft_plan *search_settings(int devices) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(devices, &plan));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    return plan;
}

/* The verifier's questions (verify.h), with AdamW if the model has a loss. The largest arena. */
static inline int64_t search_verify(const weft_graph *g, const weft_plan *settings,
                                    const weft_plan *plan) {
    const weft_optimizer adamw = weft_optimizer_defaults(WEFT_ADAMW);
    wefti_optimizer *optimizer = NULL;
    if (g->loss >= 0) ASSERT_OK(wefti_optimizer_create(&adamw, false, g, &optimizer));
    const verify_question q = {.graph = g,
                               .plan = plan,
                               .settings = settings,
                               .optimizer = optimizer ? wefti_optimizer_plan_of(optimizer) : NULL};
    const int64_t most = verify_plan(&q);
    wefti_optimizer_destroy(optimizer);
    return most;
}

static inline weft_plan *search_plan(weft_graph *g, const weft_plan *settings,
                                     const weft_search_options *o, char **notes) {
    weft_plan *plan = NULL;
    ASSERT_OK(weft_plan_search(g, settings, o, &plan, notes));
    assert_int_equal(plan->mode, WEFT_PARALLEL_SEMI);
    ASSERT_OK(weft_plan_check(plan));
    (void)search_verify(g, settings, plan);
    return plan;
}

/* The parts of each input of an op under the plan, as MindSpore writes them: "((2,1),(1,4))".
 * `label` is "call.scope:op" of a call. */
static inline const char *search_parts(const weft_plan *plan, const weft_graph *g,
                                       const char *wanted, char out[256]) {
    size_t at = 0;
    for (int64_t k = 0; k < g->root->node_count; k++) {
        const weft_node *call = &g->root->nodes[k];
        for (int64_t i = 0; call->callee && i < call->callee->node_count; i++) {
            const weft_node *n = &call->callee->nodes[i];
            char label[512], name[600];
            wefti_split_rule rule;
            wefti_node_label(call->callee, call->scope, n, label, sizeof label);
            snprintf(name, sizeof name, "%s:%s", label, n->op->name);
            if (strcmp(name, wanted) != 0) continue;
            wefti_rule_begin(&rule);
            ASSERT_OK(n->op->split(n, &rule));
            const wefti_strategy *s = wefti_plan_strategy(plan, label, n->op->name, false);
            const int64_t *cut = s ? s->cuts : NULL;
            for (int j = 0; j < n->inputs && wefti_in(n, j); j++) {
                at += (size_t)snprintf(out + at, 256 - at, "%s", j ? ",(" : "((");
                for (int d = 0; d < wefti_in(n, j)->rank; d++) {
                    int32_t parts = s && s->cuts ? (int32_t)*cut++ : 1;
                    for (int32_t x = 0; s && x < s->split_count; x++)
                        for (int a = 0; a < s->splits[x].count; a++)
                            if (rule.in[j][d] >= 0 &&
                                !strcmp(s->splits[x].what, rule.factor[rule.in[j][d]].name))
                                parts *= plan->mesh.axis[s->splits[x].axis[a]].size;
                    at += (size_t)snprintf(out + at, 256 - at, d ? ",%d" : "%d", (int)parts);
                }
                at += (size_t)snprintf(out + at, 256 - at, ")");
            }
            snprintf(out + at, 256 - at, ")");
            return out;
        }
    }
    return "no such op";
}

/* ---- random models ---- */

/* Up to `ops` random steps over [8, 16], in cells; some cells repeat; some share a parameter. */
static inline weft_graph *search_random_model(dice *d, int ops) {
    weft_graph *g;
    weft_value values[16];
    int count = 0;
    ASSERT_OK(weft_graph_create(&g));
    values[count++] = weft_input(g, "x", matrix(8, 16));
    weft_value shared =
        roll(d, 2) ? weft_param(g, "shared", matrix(16, 16), normal_init()) : WEFT_NO_VALUE;
    const bool has_shared = weft_value_desc(g, shared).rank == 2;
    for (int i = 0; i < ops; i++) {
        weft_value a = values[roll(d, count)], b = values[count - 1], y;
        weft_cell_begin(g, "c%d", i);
        switch (roll(d, has_shared ? 7 : 4)) {
        case 0:
            y = weft_add(g, a, b);
            break;
        case 1:
            y = weft_linear(g, b, weft_param(g, "w", matrix(16, 16), normal_init()), WEFT_NO_VALUE,
                            roll(d, 2));
            break;
        case 2:
            y = weft_layer_norm(g, b, weft_param(g, "w", vector(16), normal_init()), WEFT_NO_VALUE,
                                1e-2);
            break;
        case 3:
            y = roll(d, 2) ? weft_tanh(g, b) : weft_mul(g, b, a);
            break;
        case 4:
            y = weft_matmul(g, b, shared, false, roll(d, 2));
            break;
        default:
            y = weft_linear(g, b, shared, WEFT_NO_VALUE, roll(d, 2));
            break;
        }
        values[count++] = weft_cell_end(g, y);
    }
    weft_output(g, "y", values[count - 1]);
    weft_loss(g, weft_mean(g, values[count - 1], 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static inline weft_search_options search_random_options(dice *d) {
    weft_search_options o = weft_search_defaults();
    o.cost.beta = (double[]){0.01, 1, 50, 400}[roll(d, 4)];
    o.cost.gamma = roll(d, 2) ? 1 : 0.001;
    o.cost.threshold = o.cost.constant = o.cost.bias = (double)(64 * roll(d, 2));
    return o;
}

/* ---- programs ---- */

/* What a rank sends and receives in a step: transfers that reduce, and others, which only bring
 * values to another layout. */
typedef struct search_log {
    int64_t moves, move_bytes, sums, sum_bytes; /* bytes that the rank receives */
    int64_t first_members, first_rank;          /* of the first reduction: its group */
    uint64_t form;                              /* of the program (builder/fold/fold.h) */
} search_log;

/* Of a dry build of the graph, which is wrapped. `phase`: WEFTI_FORWARD or WEFTI_BACKWARD. */
static inline search_log search_log_of(const weft_graph *g, const weft_plan *plan, int32_t rank,
                                       wefti_phase phase) {
    search_log log = {0};
    wefti_route_cache *routes;
    wefti_program *program;
    ASSERT_OK(wefti_route_cache_create(&routes));
    const wefti_program_spec spec = {
        .graph = g,
        .kind = wefti_kind_of(rank),
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
        .microbatches = 1,
        .keep_gradients = g->loss >= 0,
        .plan = plan,
        .rank = rank,
        .routes = routes};
    ASSERT_OK(wefti_program_build(&spec, &program));
    for (int32_t i = 0; i < program->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *step = &program->steps[WEFTI_SECTION_FIRST][i];
        wefti_step_transfer t;
        if (step->phase != phase) continue;
        for (int32_t at = 0; wefti_step_transfer_next(program, step, &at, &t);) {
            const int64_t bytes = wefti_transfer_bytes(t.transfer);
            if (t.transfer->reduction == WEFTI_REDUCE_NONE) {
                log.moves++;
                log.move_bytes += bytes;
                continue;
            }
            if (!log.sums) {
                log.first_members = t.transfer->members;
                log.first_rank = t.transfer->ranks[0];
            }
            log.sums++;
            log.sum_bytes += bytes;
        }
    }
    log.form = wefti_program_form(program);
    wefti_program_destroy(program);
    wefti_route_cache_destroy(routes);
    return log;
}

/* The step of a plan in the simulator, with AdamW if the model has a loss. */
static inline double search_predicted(weft_graph *g, const weft_plan *plan, const char *machine) {
    const weft_optimizer adamw = weft_optimizer_defaults(WEFT_ADAMW);
    wefti_machine_model *model;
    wefti_optimizer *optimizer = NULL;
    weft_prediction *p;
    weft_plan *refined;
    ASSERT_OK(wefti_model_find(machine, &model));
    if (g->loss >= 0) ASSERT_OK(wefti_optimizer_create(&adamw, false, g, &optimizer));
    ASSERT_OK(wefti_plan_copy(plan, &refined));
    ASSERT_OK(wefti_plan_refine(refined));
    const wefti_predict_spec spec = {.graph = g,
                                     .plan = refined,
                                     .optimizer =
                                         optimizer ? wefti_optimizer_plan_of(optimizer) : NULL,
                                     .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32},
                                     .options = {.machine = model, .microbatches = 1}};
    ASSERT_OK(wefti_predict_plan(&spec, &p));
    const double seconds = p->step_seconds;
    weft_prediction_free(p);
    weft_plan_destroy(refined);
    wefti_optimizer_destroy(optimizer);
    wefti_model_destroy(model);
    return seconds;
}

/* Normal numbers in every input. */
static inline void search_feed(weft_session *s, uint64_t seed) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        const int64_t count = weft_desc_elems(&info.desc);
        float *data = calloc((size_t)count + 1, sizeof *data);
        assert_non_null(data);
        assert_int_equal(info.desc.dtype, WEFT_F32);
        for (int64_t e = 0; e < count; e++)
            data[e] = (float)wefti_philox_normal(seed, (uint64_t)t, (uint64_t)e);
        ASSERT_OK(weft_session_feed(s, 0, info.name, data, (size_t)info.bytes));
        free(data);
    }
}

static inline weft_session *search_session(weft_graph *g, const weft_plan *plan) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.seed = 3;
    o.threads = 1;
    o.optimizer = weft_optimizer_defaults(WEFT_MOMENTUM);
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &s));
    return s;
}

/* Twenty steps under a plan and on one device: losses and parameters agree (EQ20). The graphs are
 * equal, and have a loss. */
static inline void search_equals_one_device(weft_graph *g, weft_graph *alone, const weft_plan *plan,
                                            double rate) {
    weft_session *many = search_session(g, plan), *one = search_session(alone, NULL);
    for (int step = 0; step < 20; step++) {
        double is, want;
        search_feed(many, (uint64_t)step);
        search_feed(one, (uint64_t)step);
        ASSERT_OK(weft_session_step(many, rate, &is));
        ASSERT_OK(weft_session_step(one, rate, &want));
        if (!(fabs(is - want) <= 1e-5 * fmax(1, fabs(want))))
            fail_msg("loss %d is %.9g, not %.9g", step, is, want);
    }
    for (int t = 0; t < weft_session_tensors(one, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(one, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        float *a = malloc((size_t)info.bytes), *b = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(one, 0, info.name, a, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(many, 0, info.name, b, (size_t)info.bytes));
        for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++)
            if (!(fabs((double)a[e] - (double)b[e]) <= 1e-5 * fmax(1, fabs((double)a[e]))))
                fail_msg("%s: element %lld is %.9g, not %.9g", info.name, (long long)e,
                         (double)b[e], (double)a[e]);
        free(a);
        free(b);
    }
    weft_session_destroy(many);
    weft_session_destroy(one);
}

/* A graph of choices with all candidates. */
typedef struct search_space {
    wefti_choice_graph *graph;
    wefti_find find;
    weft_search_options options;
} search_space;

static inline void search_space_open(search_space *s, weft_graph *g, const weft_plan *settings,
                                     const weft_search_options *o) {
    const wefti_candidate_rules rules = {.fully_use_devices = o->rules.fully_use_devices,
                                         .elementwise_follow =
                                             o->rules.elementwise_op_strategy_follow,
                                         .slice_align = o->rules.tensor_slice_align};
    *s = (search_space){.options = *o};
    ASSERT_OK(wefti_choice_graph_create(g, settings, &s->graph));
    ASSERT_OK(wefti_choice_candidates(s->graph, &rules));
    s->find = (wefti_find){.graph = s->graph,
                           .options = &s->options,
                           .pricing = wefti_mindspore_pricing(&s->options.cost)};
    s->find.assigned = calloc((size_t)s->graph->node_count + 1, sizeof *s->find.assigned);
}

static inline void search_space_close(search_space *s) {
    wefti_choice_graph_destroy(s->graph);
    free(s->find.assigned);
    wefti_free(wefti_text_take(&s->find.notes));
}

static inline int32_t search_node(const search_space *s, const char *label, const char *op) {
    for (int32_t i = 0; i < s->graph->node_count; i++)
        if (!strcmp(s->graph->nodes[i].label, label) &&
            (s->graph->nodes[i].op ? !strcmp(s->graph->nodes[i].op->op->name, op) : !op))
            return i;
    fail_msg("no node %s:%s", label, op ? op : "tensor");
    return -1;
}

/* The strategy with these parts of the factors by name, "m0=16 k=1"; all others are whole. */
static inline const wefti_assignment *search_strategy(const search_space *s, int32_t node,
                                                      const char *parts) {
    const wefti_choice_node *n = &s->graph->nodes[node];
    for (int32_t i = 0; i < n->count; i++) {
        bool same = true;
        for (int f = 0; f < n->rule.factors; f++) {
            char key[32];
            snprintf(key, sizeof key, "%s=", n->rule.factor[f].name);
            const char *at = strstr(parts, key);
            long wanted = at ? strtol(at + strlen(key), NULL, 10) : 1;
            same &= wefti_choice_parts(&s->graph->mesh, &n->strategies[i], f) == wanted;
        }
        if (same) return &n->strategies[i];
    }
    fail_msg("%s has no strategy %s", n->label, parts);
    return NULL;
}

#endif
