/* Every split of every op. Each case of an op is cut along each factor of its rule over meshes of 1
 * to 8 devices, and along random sets of factors. Operands come in random layouts, also as partial
 * sums. The result equals the result of the uncut op. */
#include "support.h"

#include <time.h>

#include "program/spmd.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};
static uint64_t seed = 20240607, rolls;
static int failures, splits;

static int64_t dice(int64_t n) {
    return (int64_t)(wefti_philox_u32(seed, 1, rolls++) % (uint32_t)n);
}

/* ---- one split ---- */

typedef struct trial {
    const op_setup *setup;
    op_graph *whole;
    const wefti_split_rule *rule;
    int axes;
    int sizes[3];
    int of[3];        /* factor that each axis splits, -1: none */
    bool any_layouts; /* operands come as they like; else as the split wants them */
    bool follow;      /* no split is given: it follows from the layouts of the operands */
    bool cuts;        /* it is given as cuts of each input's dimensions */
} trial;

static void complain(const trial *t, const char *split, const char *why) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s(", t->setup->op->name);
    for (int i = 0; i < t->setup->inputs; i++)
        wefti_text_add(&text, "%s%s", i ? ", " : "",
                       t->setup->in[i].style == '-' ? "-"
                                                    : wefti_desc_text(&t->setup->in[i].desc).text);
    wefti_text_add(&text, ")");
    wefti_attrs_print(t->setup->op, t->setup->attrs, &text);
    char *s = wefti_text_take(&text);
    print_error("%s, mesh (%d,%d,%d), '%s': %s\n", s ? s : "", t->sizes[0],
                t->axes > 1 ? t->sizes[1] : 1, t->axes > 2 ? t->sizes[2] : 1, split, why);
    wefti_free(s);
    failures++;
}

static const char *const axis_names[] = {"x", "y", "z"};

/* "m=x+z h=y" */
static void split_text(const trial *t, char *out, size_t bytes) {
    size_t at = 0;
    out[0] = 0;
    for (int f = 0; f < t->rule->factors; f++) {
        bool begun = false;
        for (int a = 0; a < t->axes; a++) {
            if (t->of[a] != f) continue;
            at += (size_t)snprintf(out + at, bytes - at, "%s%s%s%s", begun || !at ? "" : " ",
                                   begun ? "" : t->rule->factor[f].name, begun ? "+" : "=",
                                   axis_names[a]);
            begun = true;
        }
    }
}

/* "((2,1),(1,4))", up to the first operand that is absent */
static void cuts_text(const trial *t, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "(");
    for (int i = 0; i < t->whole->node->inputs; i++) {
        const weft_desc *d = wefti_in(t->whole->node, i);
        if (!d) break;
        at += (size_t)snprintf(out + at, bytes - at, "%s(", i ? "," : "");
        for (int k = 0; k < d->rank; k++) {
            int f = t->rule->in[i][k], parts = 1;
            for (int a = 0; a < t->axes && f >= 0; a++)
                if (t->of[a] == f) parts *= t->sizes[a];
            at += (size_t)snprintf(out + at, bytes - at, "%s%d", k ? "," : "", parts);
        }
        at += (size_t)snprintf(out + at, bytes - at, ")");
    }
    (void)snprintf(out + at, bytes - at, ")");
}

static void wanted_layout(const trial *t, const int8_t *dims, const weft_desc *d,
                          wefti_layout *out) {
    *out = wefti_layout_replicated(d->rank);
    for (int k = 0; k < d->rank; k++) {
        int f = dims[k];
        if (f < 0) continue;
        const wefti_factor *factor = &t->rule->factor[f];
        bool space = factor->kind == WEFTI_FACTOR_HALO || factor->size == 0;
        for (int a = 0; a < t->axes; a++)
            if (t->of[a] == f) out->dim[k].axis[out->dim[k].count++] = (int8_t)a;
        if (out->dim[k].count) out->dim[k].unit = space ? 1 : d->shape[k] / factor->size;
    }
}

static void random_layout(const trial *t, const weft_desc *d, wefti_layout *out) {
    *out = wefti_layout_replicated(d->rank);
    for (int a = 0; a < t->axes; a++) {
        int64_t roll = dice(d->rank + 3);
        if (roll < d->rank) {
            wefti_dim_split *s = &out->dim[roll];
            int64_t parts = t->sizes[a];
            for (int k = 0; k < s->count; k++) parts *= t->sizes[s->axis[k]];
            int64_t unit = 1 + dice(3); /* whole heads, say */
            if (d->shape[roll] % unit || parts * unit > d->shape[roll]) unit = 1;
            if (parts <= d->shape[roll]) {
                s->axis[s->count++] = (int8_t)a;
                s->unit = unit;
            }
        } else if (roll == d->rank && wefti_dtype_is_float(d->dtype)) {
            out->sum |= 1u << a;
        }
    }
}

static weft_plan *plan_of(const trial *t, const char *text) {
    weft_plan *plan;
    int devices = 1;
    for (int a = 0; a < t->axes; a++) devices *= t->sizes[a];
    weft_status st = weft_plan_create(devices, &plan);
    for (int a = 0; a < t->axes && st >= 0; a++)
        st = weft_plan_axis(plan, axis_names[a], t->sizes[a]);
    if (st >= 0) st = weft_plan_mode(plan, t->follow ? WEFT_PARALLEL_SEMI : WEFT_PARALLEL_MANUAL);
    if (st >= 0 && *text) st = weft_plan_split_op(plan, "*", text);
    if (st < 0) {
        print_error("%s: %s\n", text, weft_error_message());
        abort();
    }
    return plan;
}

static void run_trial(const trial *t, spmd *s) {
    char text[256];
    wefti_layout in[WEFTI_MAX_IN];
    int count = 0;
    split_text(t, text, sizeof text);
    if (t->follow) text[0] = 0;
    if (t->cuts) cuts_text(t, text, sizeof text);
    for (int i = 0; i < t->whole->node->inputs; i++) {
        const weft_desc *d = wefti_in(t->whole->node, i);
        if (!d) continue;
        if (t->any_layouts)
            random_layout(t, d, &in[count++]);
        else
            wanted_layout(t, t->rule->in[i], d, &in[count++]);
    }
    weft_plan *plan = plan_of(t, text);
    bool ok = spmd_partition(s, t->whole, plan, in);
    if (ok) {
        spmd_feed(s, seed + (uint64_t)splits);
        ok = spmd_run(s, &stream) && spmd_compare(s);
    }
    if (!ok) complain(t, text, s->why);
    splits++;
    weft_plan_destroy(plan);
}

static void try(const trial *t) {
    spmd s;
    run_trial(t, &s);
    spmd_close(&s);
}

/* ---- all of them ---- */

static bool can_split(const weft_op_def *op, const wefti_factor *f) {
    if (f->kind == WEFTI_FACTOR_FREE || f->kind == WEFTI_FACTOR_SUM || f->kind == WEFTI_FACTOR_MAX)
        return true;
    return op->lower && (op->lowers >> f->kind & 1);
}

static bool fits(const trial *t, int f) {
    int64_t parts = 1;
    for (int a = 0; a < t->axes; a++)
        if (t->of[a] == f) parts *= t->sizes[a];
    return parts <= t->rule->factor[f].size;
}

static void along_each_factor(trial *t) {
    static const int meshes[][4] = {{1, 1}, {1, 2}, {1, 3}, {2, 2, 2}, {3, 2, 2, 2}, {1, 8}};
    for (int f = 0; f < t->rule->factors; f++) {
        if (!can_split(t->setup->op, &t->rule->factor[f])) continue;
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            t->axes = meshes[m][0];
            for (int a = 0; a < t->axes; a++) {
                t->sizes[a] = meshes[m][1 + a];
                t->of[a] = f;
            }
            if (!fits(t, f)) continue;
            t->follow = false;
            t->any_layouts = false;
            try(t);
            t->any_layouts = true;
            try(t);
            t->cuts = t->whole->node->inputs > 0 && wefti_in(t->whole->node, 0);
            if (t->cuts) try(t);
            t->cuts = false;
        }
    }
}

/* Each axis splits some factor or none, or the partitioner chooses. */
static void along_random_factors(trial *t) {
    static const int meshes[][4] = {{2, 2, 2}, {2, 2, 3}, {3, 2, 2, 2}, {2, 4, 2}, {2, 3, 2}};
    for (int round = 0; round < 9; round++) {
        int m = (int)dice(sizeof meshes / sizeof *meshes);
        t->axes = meshes[m][0];
        for (int a = 0; a < t->axes; a++) t->of[a] = -1;
        for (int a = 0; a < t->axes; a++) {
            t->sizes[a] = meshes[m][1 + a];
            int f = t->rule->factors ? (int)dice(t->rule->factors + 1) : 0;
            if (f == t->rule->factors || !can_split(t->setup->op, &t->rule->factor[f])) continue;
            t->of[a] = f;
            if (!fits(t, f)) t->of[a] = -1;
        }
        t->any_layouts = round % 2;
        t->follow = round >= 6;
        try(t);
    }
}

static void every_split(const op_setup *setup) {
    op_graph g;
    wefti_split_rule rule;
    if (op_graph_open(setup, seed, &g) < 0 || op_graph_run(&g, &stream) < 0) {
        print_error("%s: %s\n", setup->op->name, weft_error_message());
        abort();
    }
    if (op_rule(g.node, &rule)) {
        trial t = {.setup = setup, .whole = &g, .rule = &rule};
        along_each_factor(&t);
        along_random_factors(&t);
    }
    op_graph_close(&g);
}

/* Beside the ops' own cases: sizes that 8 devices can share, windows that reach over several
 * neighbors, masks and groups. */
static const struct {
    const char *op;
    wefti_op_case c;
} larger[] = {
    {"linear", {{"f32[3,17]", "f32[17,11]", "f32[11]"}, NULL}},
    {"softmax", {{"f32[3,17]"}, "axis=1"}},
    {"log_softmax", {{"f32[19,2]"}, "axis=0"}},
    {"softmax_grad", {{"f32[3,17]", "f32[3,17]"}, "axis=1"}},
    {"log_softmax_grad", {{"f32[19,2]", "f32[19,2]"}, "axis=0"}},
    {"layer_norm", {{"f32[9,17]", "f32[17]", "f32[17]"}, NULL}},
    {"layer_norm_grad", {{"f32[9,17]", "f32[17]", "f32[9]", "f32[9]+", "f32[9,17]"}, NULL}},
    {"rms_norm", {{"f32[9,17]", "f32[17]"}, NULL}},
    {"rms_norm_grad", {{"f32[9,17]", "f32[17]", "f32[9]+", "f32[9,17]"}, NULL}},
    {"batch_norm_train", {{"f32[9,3,10,11]", "f32[3]", "f32[3]"}, NULL}},
    {"batch_norm_grad",
     {{"f32[9,3,10,11]", "f32[3]", "f32[3]", "f32[3]+", "f32[9,3,10,11]"}, NULL}},
    {"max_grad", {{"f32[9,17]<3", "f32[9]<3", "f32[9]"}, "axes=(1)"}},
    {"embedding", {{"f32[17,9]", "i32[5,8]<17"}, NULL}},
    {"embedding_grad", {{"i32[5,8]<17", "f32[5,8,9]"}, "vocab=17"}},
    {"embedding_grad", {{"i32[5,8]<17", "f32[5,8,9]"}, "vocab=17 padding=11"}},
    {"gather", {{"f32[2,17,3]", "i32[10]<19"}, "axis=1"}},
    {"cross_entropy", {{"f32[11,17]", "i32[11]<17"}, "smoothing=0.1 ignore=3"}},
    {"cross_entropy", {{"f32[2,9,17]", "i32[2,9]<17"}, NULL}},
    {"cross_entropy_grad",
     {{"f32[11,17]", "i32[11]<17", "f32[11]+", "f32[]+", "f32[]"}, "smoothing=0.1 ignore=3"}},
    {"argmax", {{"f32[5,17]<4"}, "axis=1"}},
    {"argmax", {{"i32[19,3]<4"}, "axis=0"}},
    {"top_k", {{"f32[5,17]<6"}, "k=3"}},
    {"top_k", {{"f32[2,3,9]u"}, "k=7"}},
    {"dropout", {{"f32[9,10,11]"}, "rate=0.4"}},
    {"attention", {{"f32[2,13,4,2]", "f32[2,13,2,2]", "f32[2,13,2,2]"}, "causal=1 dropout=0.2"}},
    {"attention", {{"f32[1,17,2,3]", "f32[1,17,2,3]", "f32[1,17,2,3]", "bool[1,2,17,17]?"}, NULL}},
    {"attention", {{"f32[2,9,2,3]", "f32[2,9,1,3]", "f32[2,9,1,3]", "f32[2,1,9,9]"}, "causal=1"}},
    {"attention",
     {{"f32[1,19,2,2]", "f32[1,19,2,2]", "f32[1,19,2,2]", "bool[1,2,19,19]?"},
      "causal=1 dropout=0.3"}},
    {"attention", {{"f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]"}, "causal=1"}},
    {"attention", {{"f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]"}, "causal=1 window=2"}},
    {"attention",
     {{"f32[2,19,2,3]", "f32[2,19,1,3]", "f32[2,19,1,3]"}, "causal=1 window=9 dropout=0.2"}},
    {"attention", {{"f32[2,9,2,3]", "f32[2,17,2,3]", "f32[2,17,2,3]"}, "causal=1 window=4"}},
    {"attention",
     {{"f32[1,8,2,3]", "f32[1,8,2,3]", "f32[1,8,2,3]", "-", "i32[]<3"}, "causal=1 window=3"}},
    {"attention_grad",
     {{"f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]", "f32[2,1,1,24]+",
       "f32[1,24,1,2]"},
      "causal=1 window=2"}},
    {"attention_grad",
     {{"f32[2,19,2,3]", "f32[2,19,1,3]", "f32[2,19,1,3]", "f32[2,19,2,3]", "f32[2,2,2,19]+",
       "f32[2,19,2,3]", "f32[2,1,19,19]"},
      "causal=1 window=7 dropout=0.2"}},
    {"attention",
     {{"f32[1,8,2,3]", "f32[1,8,2,3]", "f32[1,8,2,3]", "-", "i32[]<3"}, "causal=1 dropout=0.5"}},
    {"attention", {{"f32[2,9,2,3]", "f32[2,17,2,3]", "f32[2,17,2,3]"}, "causal=1"}},
    {"attention", {{"f32[2,17,2,3]", "f32[2,9,2,3]", "f32[2,9,2,3]"}, "causal=1 dropout=0.3"}},
    {"attention_grad",
     {{"f32[2,13,4,2]", "f32[2,13,2,2]", "f32[2,13,2,2]", "f32[2,13,4,2]", "f32[2,2,4,13]+",
       "f32[2,13,4,2]"},
      "causal=1 dropout=0.2"}},
    {"attention_grad",
     {{"f32[2,19,2,3]", "f32[2,19,1,3]", "f32[2,19,1,3]", "f32[2,19,2,3]", "f32[2,2,2,19]+",
       "f32[2,19,2,3]", "f32[2,1,19,19]"},
      "causal=1 dropout=0.2"}},
    {"attention_grad",
     {{"f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]", "f32[1,24,1,2]", "f32[2,1,1,24]+",
       "f32[1,24,1,2]"},
      "causal=1"}},
    {"attention_grad",
     {{"f32[1,17,2,3]", "f32[1,17,2,3]", "f32[1,17,2,3]", "f32[1,17,2,3]", "f32[2,1,2,17]+",
       "f32[1,17,2,3]", "bool[1,2,17,17]?"},
      NULL}},
    {"attention_grad",
     {{"f32[2,9,2,3]", "f32[2,17,2,3]", "f32[2,17,2,3]", "f32[2,9,2,3]", "f32[2,2,2,9]+",
       "f32[2,9,2,3]"},
      "causal=1"}},
    {"rope", {{"f32[2,9,8,4]"}, NULL}},
    {"slice", {{"f32[3,17]"}, "axis=1 begin=2 end=14"}},
    {"slice", {{"f32[19,2]"}, "axis=0 begin=18 end=19"}},
    {"slice", {{"f32[17]"}, "axis=0 begin=9 end=17"}},
    {"concat", {{"f32[2,9]", "f32[2,1]", "f32[2,17]", "f32[2,0]"}, "axis=1"}},
    {"concat", {{"f32[8,2]", "f32[9,2]", "f32[11,2]"}, "axis=0"}},
    {"chunk", {{"f32[2,27]"}, "axis=1 parts=3"}},
    {"chunk", {{"f32[8,3]"}, "axis=0 parts=8"}},
    {"pad", {{"f32[9,10]"}, "before=(3,1) after=(0,9) value=1.5"}},
    {"pad", {{"f32[17]"}, "before=(40) after=(2)"}},
    {"pad", {{"f32[1,9]"}, "before=(8,0) after=(0,1) value=-2"}},
    {"conv2d",
     {{"f32[1,2,17,19]", "f32[2,2,3,5]", "f32[2]"}, "stride=(3,2) padding=(2,3) dilation=(2,1)"}},
    {"conv2d", {{"f32[1,1,9,10]", "f32[1,1,9,3]"}, "padding=(4,1)"}},
    {"conv2d", {{"f32[2,4,41,3]", "f32[6,2,2,3]", "f32[6]"}, "stride=(5,1) groups=2"}},
    {"conv2d", {{"f32[1,2,8,8]", "f32[3,2,1,1]", "f32[3]"}, "stride=(2,2)"}},
    {"conv2d", {{"f32[1,1,3,8]", "f32[1,1,3,1]"}, "padding=(4,0)"}},
    {"conv3d",
     {{"f32[1,2,8,5,6]", "f32[2,2,3,3,2]", "f32[2]"},
      "stride=(1,1,2) padding=(1,1,0) dilation=(1,1,1)"}},
    {"conv_grad_input",
     {{"f32[1,2,6,11]", "f32[2,2,3,5]"},
      "stride=(3,2) padding=(2,3) dilation=(2,1) in_shape=(1,2,17,19)"}},
    {"conv_grad_input", {{"f32[1,1,9,10]", "f32[1,1,9,3]"}, "padding=(4,1) in_shape=(1,1,9,10)"}},
    {"conv_grad_input",
     {{"f32[2,6,8,1]", "f32[6,2,2,3]"}, "stride=(5,1) groups=2 in_shape=(2,4,41,3)"}},
    {"conv_grad_input", {{"f32[1,3,9,8]", "f32[3,1,3,1]"}, "padding=(4,0) in_shape=(1,1,3,8)"}},
    {"conv_grad_weight",
     {{"f32[1,2,17,19]", "f32[1,2,6,11]"},
      "stride=(3,2) padding=(2,3) dilation=(2,1) kernel=(3,5)"}},
    {"conv_grad_weight", {{"f32[1,1,9,10]", "f32[1,1,9,10]"}, "padding=(4,1) kernel=(9,3)"}},
    {"conv_grad_weight", {{"f32[2,4,41,3]", "f32[2,6,8,1]"}, "stride=(5,1) groups=2 kernel=(2,3)"}},
    {"max_pool2d", {{"f32[1,2,17,11]u"}, "kernel=(3,3) stride=(2,2) padding=(1,1)"}},
    {"max_pool2d", {{"f32[1,1,9,4]u"}, "kernel=(3,4) stride=(1,1) padding=(2,3)"}},
    {"max_pool2d", {{"f32[1,1,41,3]u"}, "kernel=(2,2) stride=(5,1)"}},
    {"max_pool2d_grad",
     {{"f32[1,2,17,11]<3", "f32[1,2,9,6]"}, "kernel=(3,3) stride=(2,2) padding=(1,1)"}},
    {"max_pool2d_grad",
     {{"f32[1,1,9,4]<3", "f32[1,1,11,7]"}, "kernel=(3,4) stride=(1,1) padding=(2,3)"}},
    {"max_pool2d_grad", {{"f32[1,1,41,3]<3", "f32[1,1,8,2]"}, "kernel=(2,2) stride=(5,1)"}},
    {"avg_pool2d", {{"f32[1,2,17,11]"}, "kernel=(3,3) stride=(2,2) padding=(1,1)"}},
    {"avg_pool2d", {{"f32[1,1,9,4]"}, "kernel=(3,4) stride=(1,1) padding=(2,3)"}},
    {"avg_pool2d_grad",
     {{"f32[1,2,9,6]"}, "kernel=(3,3) stride=(2,2) padding=(1,1) in_shape=(1,2,17,11)"}},
    {"avg_pool2d_grad",
     {{"f32[1,1,11,7]"}, "kernel=(3,4) stride=(1,1) padding=(2,3) in_shape=(1,1,9,4)"}},
    {"avg_pool2d_grad", {{"f32[1,1,8,2]"}, "kernel=(2,2) stride=(5,1) in_shape=(1,1,41,3)"}},
};

static void split_case(const weft_op_def *op, const wefti_op_case *c) {
    op_setup setup;
    if (!setup_case(op, c, &setup)) fail_msg("%s: a case cannot be read", op->name);
    every_split(&setup);
}

static void every_split_of_every_op(void **state) {
    (void)state;
    const wefti_op_registry *ops = wefti_builtin_ops();
    const char *only = getenv("WEFT_TEST_OP");
    failures = 0;
    for (int i = 0; i < ops->count; i++) {
        const weft_op_def *op = ops->ops[i];
        if (only && strcmp(only, op->name)) continue;
        for (const wefti_op_case *c = op->cases; c && (c->inputs[0] || c->attrs); c++) {
            split_case(op, c);
        }
        for (size_t k = 0; k < sizeof larger / sizeof *larger; k++)
            if (!strcmp(larger[k].op, op->name)) split_case(op, &larger[k].c);
    }
    print_message("%d splits\n", splits);
    if (!splits) fail_msg("there is no op %s", only);
    assert_int_equal(failures, 0);
}

/* WHOLE marks the factors that may not be split. Every other kind has its lowering. */
static void no_factor_is_forgotten(void **state) {
    (void)state;
    const wefti_op_registry *ops = wefti_builtin_ops();
    failures = 0;
    for (int i = 0; i < ops->count; i++)
        for (const wefti_op_case *c = ops->ops[i]->cases; c && (c->inputs[0] || c->attrs); c++) {
            op_setup setup;
            op_graph g;
            wefti_split_rule rule;
            if (!setup_case(ops->ops[i], c, &setup) || op_graph_open(&setup, seed, &g) < 0) abort();
            if (op_rule(g.node, &rule))
                for (int f = 0; f < rule.factors; f++)
                    if (rule.factor[f].kind != WEFTI_FACTOR_WHOLE &&
                        !can_split(ops->ops[i], &rule.factor[f])) {
                        print_error("%s: factor %s has no lowering\n", ops->ops[i]->name,
                                    rule.factor[f].name);
                        failures++;
                    }
            op_graph_close(&g);
        }
    assert_int_equal(failures, 0);
}

int main(void) {
    seed = test_seed(seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_factor_is_forgotten),
        cmocka_unit_test(every_split_of_every_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
