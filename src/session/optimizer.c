/* Optimizers as data: the op, its attributes and the state tensors for a parameter. */
#include "session/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/map/map.h"
#include "base/text.h"
#include "graph/graph.h"

/* An op with its attributes, for parameters with weight decay and without. */
typedef struct variant {
    const weft_op_def *op;
    const wefti_attr *attrs[2];
} variant;

struct wefti_optimizer {
    weft_optimizer settings;
    wefti_arena *arena;    /* attribute tables */
    variant usual, vector; /* Adafactor has another op for vectors */
    wefti_map params;      /* names to numbers in these arrays */
    const char **names;    /* of the parameters, NULL-terminated */
    bool *decays;
    int64_t count;
    wefti_optimizer_plan plan;
};

const char *wefti_optimizer_text(weft_optimizer_kind kind) {
    switch (kind) {
#define WEFT_OPTIMIZER_ROW(name, text)                                                             \
    case WEFT_##name:                                                                              \
        return text;
        WEFT_OPTIMIZER_LIST(WEFT_OPTIMIZER_ROW)
#undef WEFT_OPTIMIZER_ROW
    default:
        return "none";
    }
}

/* The op and the state tensors of each kind, and the values of its paper. Adafactor has two forms.
 */
typedef struct kind_row {
    const char *op;
    int states;
    const char *names[3];
    double beta2, eps, weight_decay;
} kind_row;

static const kind_row kinds[WEFT_OPTIMIZERS] = {
    [WEFT_SGD] = {"opt_sgd", 0, {0}, 0.999, 1e-8, 0},
    [WEFT_MOMENTUM] = {"opt_sgd", 1, {"momentum"}, 0.999, 1e-8, 0},
    [WEFT_NESTEROV] = {"opt_sgd", 1, {"momentum"}, 0.999, 1e-8, 0},
    [WEFT_ADAM] = {"opt_adam", 2, {"m", "v"}, 0.999, 1e-8, 0},
    [WEFT_ADAMW] = {"opt_adamw", 2, {"m", "v"}, 0.999, 1e-8, 0.01},
    [WEFT_LAMB] = {"opt_lamb", 2, {"m", "v"}, 0.999, 1e-6, 0.01},
    [WEFT_LION] = {"opt_lion", 1, {"m"}, 0.99, 1e-8, 0.01},
    [WEFT_ADAFACTOR] = {"opt_adafactor", 2, {"row", "col"}, 0.999, 1e-30, 0},
    [WEFT_ADAGRAD] = {"opt_adagrad", 1, {"sum"}, 0.999, 1e-10, 0},
};

weft_optimizer weft_optimizer_defaults(weft_optimizer_kind kind) {
    const kind_row *row = &kinds[kind < WEFT_OPTIMIZERS ? kind : WEFT_SGD];
    return (weft_optimizer){.kind = kind,
                            .beta1 = 0.9,
                            .beta2 = row->beta2,
                            .eps = row->eps,
                            .momentum = 0.9,
                            .weight_decay = row->weight_decay};
}

static void set_float(wefti_attr *attrs, wefti_attr_id id, double value) {
    for (; attrs->id; attrs++)
        if (attrs->id == id) attrs->f = value;
}

static void set_int(wefti_attr *attrs, wefti_attr_id id, int64_t value) {
    for (; attrs->id; attrs++)
        if (attrs->id == id) attrs->i = value;
}

static weft_status attributes(wefti_optimizer *o, const weft_op_def *op, bool decay,
                              const wefti_attr **out) {
    int count = wefti_attr_count(op);
    wefti_attr *attrs = wefti_arena_alloc(o->arena, (size_t)(count + 1) * sizeof *attrs);
    WEFT_REQUIRE(attrs, WEFT_E_NOMEM, "no memory for an optimizer's attributes");
    if (count) memcpy(attrs, op->attrs, (size_t)count * sizeof *attrs);
    const weft_optimizer *s = &o->settings;
    set_float(attrs, WEFTI_AT_beta1, s->beta1);
    set_float(attrs, WEFTI_AT_beta2, s->beta2);
    set_float(attrs, s->kind == WEFT_ADAFACTOR ? WEFTI_AT_eps1 : WEFTI_AT_eps, s->eps);
    set_float(attrs, WEFTI_AT_momentum, s->kind == WEFT_SGD ? 0.0 : s->momentum);
    set_float(attrs, WEFTI_AT_weight_decay, decay ? s->weight_decay : 0.0);
    set_float(attrs, WEFTI_AT_initial_accumulator, s->initial_accumulator);
    set_int(attrs, WEFTI_AT_nesterov, s->kind == WEFT_NESTEROV);
    *out = attrs;
    return WEFT_OK;
}

static weft_status find_variant(wefti_optimizer *o, const wefti_op_registry *ops, const char *name,
                                variant *out) {
    out->op = wefti_op_find(ops, name);
    WEFT_REQUIRE(out->op, WEFT_E_BUG, "the optimizer's op '%s' is not registered", name);
    for (int decay = 0; decay < 2; decay++)
        WEFT_TRY(attributes(o, out->op, decay, &out->attrs[decay]));
    return WEFT_OK;
}

static weft_status rule(void *context, const char *param, const weft_desc *desc,
                        wefti_update_rule *out) {
    const wefti_optimizer *o = context;
    const kind_row *row = &kinds[o->settings.kind];
    const variant *form = &o->usual;
    wefti_update_rule r = {.states = row->states, .absent = o->settings.kind == WEFT_SGD};
    const int64_t number = wefti_map_find_text(&o->params, param);
    WEFT_REQUIRE(number >= 0, WEFT_E_BUG, "the optimizer does not know the parameter '%s'", param);
    for (int i = 0; i < row->states; i++) {
        r.state_names[i] = row->names[i];
        r.state_descs[i] = *desc;
    }
    if (o->settings.kind == WEFT_ADAFACTOR) {
        if (desc->rank >= 2) { /* the second moment's row and column means */
            r.state_descs[0].rank--;
            r.state_descs[1].rank--;
            r.state_descs[1].shape[desc->rank - 2] = desc->shape[desc->rank - 1];
        } else {
            form = &o->vector;
            r.states = 1;
            r.state_names[0] = "v";
        }
    }
    r.op = form->op;
    r.attrs = form->attrs[o->decays[number]];
    *out = r;
    return WEFT_OK;
}

/* ---- which parameters decay ---- */

static weft_status list_params(wefti_optimizer *o, const weft_graph *graph) {
    const weft_body *root = graph->root;
    bool *weights;
    const size_t room = (size_t)root->in_count + 1;
    o->names = wefti_arena_alloc(o->arena, room * sizeof *o->names);
    o->decays = wefti_arena_alloc(o->arena, room * sizeof *o->decays);
    WEFT_REQUIRE(o->names && o->decays, WEFT_E_NOMEM, "no memory for a list of parameters");
    WEFT_TRY(wefti_map_reserve(&o->params, root->in_count));
    WEFT_NEW_ARRAY(weights, bool, root->in_count + 1);
    weft_status status = wefti_graph_weights(graph, weights);
    for (int64_t i = 0; i < root->in_count && status >= 0; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        o->names[o->count] = v->name;
        o->decays[o->count] = weights[i] || o->settings.decay_all;
        status = wefti_map_add_text(&o->params, v->name, o->count++, NULL);
    }
    o->names[o->count] = NULL;
    wefti_free(weights);
    return status;
}

static weft_status apply_rule(wefti_optimizer *o, const weft_decay_rule *r) {
    bool found = false;
    WEFT_REQUIRE(r->match && *r->match && wefti_glob_valid(r->match), WEFT_E_ARG,
                 "'%.100s' is not a pattern for names of parameters (train.optimizer.decay)",
                 r->match ? r->match : "");
    for (int64_t i = 0; i < o->count; i++) {
        if (!wefti_glob_match(r->match, o->names[i])) continue;
        found = true;
        o->decays[i] = r->decay;
    }
    if (found) return WEFT_OK;
    const char *near = weft_nearest(r->match, o->names);
    const size_t length = strlen(r->match);
    for (int64_t i = 0; i < o->count && !near; i++) /* "wte" for "wte.weight" */
        if (!strncmp(o->names[i], r->match, length)) near = o->names[i];
    WEFT_FAIL(WEFT_E_ARG, "the model has no parameter '%.100s' (train.optimizer.decay)%s%.200s%s",
              r->match, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static weft_status choose_decay(wefti_optimizer *o, const weft_graph *graph) {
    const weft_optimizer *s = &o->settings;
    WEFT_REQUIRE(s->decay_rules >= 0 && (s->decay || !s->decay_rules), WEFT_E_ARG,
                 "the optimizer has %d decay rules%s", s->decay_rules,
                 s->decay ? "" : ", but no list of them");
    WEFT_TRY(list_params(o, graph));
    for (int i = 0; i < s->decay_rules; i++) WEFT_TRY(apply_rule(o, &s->decay[i]));
    return WEFT_OK;
}

uint64_t wefti_optimizer_digest(const wefti_optimizer *o) {
    uint64_t digest = 5;
    for (int64_t i = 0; i < o->count; i++)
        digest = wefti_digest_number(digest, (uint64_t)o->decays[i]);
    return digest;
}

/* Checks values as kernels see them, in single precision. A value that rounds to 1 or to infinity
 * there would turn every parameter into NaN. */
static weft_status check_settings(const weft_optimizer *s) {
    const double others[] = {s->weight_decay, s->eps, s->momentum, s->initial_accumulator};
    WEFT_REQUIRE(s->kind < WEFT_OPTIMIZERS, WEFT_E_ARG, "unknown optimizer %d", (int)s->kind);
    WEFT_REQUIRE(s->beta1 >= 0 && (float)s->beta1 < 1 && s->beta2 >= 0 && (float)s->beta2 < 1,
                 WEFT_E_ARG,
                 "beta1 and beta2 (train.optimizer.betas) must be in [0, 1) in single precision, "
                 "not %.10g and %.10g",
                 s->beta1, s->beta2);
    for (int i = 0; i < (int)(sizeof others / sizeof *others); i++)
        WEFT_REQUIRE(
            others[i] >= 0 && isfinite((float)others[i]), WEFT_E_ARG,
            "weight_decay, eps, momentum and initial_accumulator must not be negative, and "
            "finite in single precision; %g is not",
            wefti_printed(others[i]));
    return WEFT_OK;
}

weft_status wefti_optimizer_create(const weft_optimizer *settings, bool clip,
                                   const weft_graph *graph, wefti_optimizer **out) {
    const wefti_op_registry *ops = graph->ops;
    WEFT_TRY(check_settings(settings));
    wefti_optimizer *o;
    WEFT_NEW(o, wefti_optimizer);
    weft_status status = wefti_arena_create(&o->arena);
    if (status < 0) {
        wefti_free(o);
        return status;
    }
    o->settings = *settings;
    o->plan = (wefti_optimizer_plan){
        .context = o, .rule = rule, .clip = clip, .norm_op = wefti_op_find(ops, "grad_norm2")};
    status = find_variant(o, ops, kinds[settings->kind].op, &o->usual);
    if (status == WEFT_OK && settings->kind == WEFT_ADAFACTOR)
        status = find_variant(o, ops, "opt_adafactor1", &o->vector);
    if (status >= 0) status = choose_decay(o, graph);
    o->settings.decay = NULL; /* the caller's */
    if (status < 0) {
        wefti_optimizer_destroy(o);
        return status;
    }
    *out = o;
    return WEFT_OK;
}

weft_status wefti_optimizer_for(const weft_session_options *options, const weft_graph *graph,
                                wefti_optimizer **out) {
    WEFT_TRY(wefti_optimizer_create(&options->optimizer, options->clip > 0, graph, out));
    (*out)->plan.recovery = options->recovery;
    (*out)->plan.rows = options->rows == WEFT_ROWS_AUTO;
    (*out)->plan.buddies = options->recovery && options->buddy;
    return WEFT_OK;
}

void wefti_optimizer_destroy(wefti_optimizer *o) {
    if (!o) return;
    wefti_map_free(&o->params);
    wefti_arena_destroy(o->arena);
    wefti_free(o);
}

const wefti_optimizer_plan *wefti_optimizer_plan_of(const wefti_optimizer *o) {
    return o ? &o->plan : NULL;
}
