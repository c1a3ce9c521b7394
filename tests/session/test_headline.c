/* Whole models run over several devices, with all kinds of parallelism at once. In each step they
 * have the losses of one device:
 * - gpt2 on real text over 2 x 2 x 2 devices with every setting of a plan;
 * - all combinations of these settings;
 * - experts;
 * - images split over height and width;
 * - a sequence split four ways. */
#include "session_models.h"

#include "base/io.h"
#include "weft/plan.h"
#include "sanitized.h"

enum { SEED = 5 };

typedef struct split {
    const char *match, *axes;
} split;

typedef struct run {
    const char *name;
    weft_model_config model;
    weft_dtype dtype;
    int devices, batch, steps;
    struct {
        const char *name;
        int size;
    } axis[3];
    split splits[10], tensors[4];
    int level, stages, microbatches;
    weft_recompute recompute;
    bool apart; /* collectives are not joined */
    double clip, tolerance;
    const char *text; /* tokens come from here; NULL: random inputs */
    int64_t text_bytes;
} run;

static weft_plan *plan_of(const run *c) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    for (int a = 0; a < 3 && c->axis[a].name; a++)
        ASSERT_OK(weft_plan_axis(plan, c->axis[a].name, c->axis[a].size));
    for (int i = 0; i < 10 && c->splits[i].match; i++)
        ASSERT_OK(weft_plan_split_op(plan, c->splits[i].match, c->splits[i].axes));
    for (int i = 0; i < 4 && c->tensors[i].match; i++)
        ASSERT_OK(weft_plan_split_tensor(plan, c->tensors[i].match, c->tensors[i].axes));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->recompute) ASSERT_OK(weft_plan_recompute(plan, c->recompute, NULL, false));
    static const char *const collectives[] = {"allreduce", "allgather", "reducescatter"};
    for (int k = 0; k < 3; k++)
        ASSERT_OK(weft_plan_fusion(plan, collectives[k],
                                   c->apart ? WEFT_FUSION_NONE : WEFT_FUSION_AUTO, 0, 0, NULL));
    if (c->stages > 1)
        ASSERT_OK(weft_plan_pipeline(plan, c->stages, c->microbatches, WEFT_PIPELINE_1F1B, 1));
    else if (c->microbatches > 1)
        ASSERT_OK(weft_plan_accumulate(plan, c->microbatches));
    return plan;
}

static int64_t rows_of(const run *c) {
    return c->batch / c->microbatches;
}

/* Bytes of the text as tokens. Each row begins at a place of its own. */
static void feed_text(weft_session *s, const run *c, int step, int micro) {
    int64_t rows = rows_of(c), length = c->model.context;
    for (int k = 0; k < 2; k++) {
        int32_t *data = malloc((size_t)(rows * length) * sizeof *data);
        for (int64_t i = 0; i < rows * length; i++) {
            int64_t row = ((int64_t)step * c->microbatches + micro) * rows + i / length;
            data[i] = (unsigned char)c->text[(row * 1009 + i % length + k) % c->text_bytes] % 128;
        }
        ASSERT_OK(weft_session_feed(s, 0, k ? "targets" : "tokens", data,
                                    (size_t)(rows * length) * sizeof *data));
        free(data);
    }
}

/* Random images; labels and tokens below what the model knows. */
static void feed_random(weft_session *s, const run *c, int step, int micro) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        uint32_t below = (uint32_t)(c->model.classes ? c->model.classes : c->model.vocab);
        uint64_t stream = wefti_stream_of(info.name),
                 key = (uint64_t)(step * c->microbatches + micro);
        float *data = malloc((size_t)info.bytes);
        for (int64_t i = 0; i < weft_desc_elems(&info.desc); i++) {
            int32_t number = (int32_t)(wefti_philox_u32(key, stream, (uint64_t)i) % below);
            if (info.desc.dtype == WEFT_I32)
                memcpy(data + i, &number, sizeof number);
            else if (info.desc.dtype == WEFT_F64)
                ((double *)(void *)data)[i] = (double)wefti_philox_normal(key, stream, (uint64_t)i);
            else
                data[i] = wefti_philox_normal(key, stream, (uint64_t)i);
        }
        ASSERT_OK(weft_session_feed(s, 0, info.name, data, (size_t)info.bytes));
        free(data);
    }
}

static weft_session *session_for(const run *c, bool spread, weft_graph **graph) {
    weft_model_config model = c->model;
    weft_plan *plan = spread ? plan_of(c) : NULL;
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.seed = SEED;
    o.threads = 2;
    o.clip = c->clip;
    o.microbatches = c->microbatches;
    o.plan = plan;
    ASSERT_OK(weft_model_complete(&model));
    ASSERT_OK(weft_model_build(&model, WEFT_USE_TRAIN, rows_of(c), 0, c->dtype, graph));
    if (weft_session_create(*graph, &o, &s) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    weft_plan_destroy(plan);
    return s;
}

static double train_step(weft_session *s, const run *c, int step) {
    double sum = 0, loss = NAN;
    int known = 0;
    for (int m = 0; m < c->microbatches; m++) {
        if (c->text)
            feed_text(s, c, step, m);
        else
            feed_random(s, c, step, m);
        ASSERT_OK(weft_session_set_row(s, ((int64_t)step * c->microbatches + m) * rows_of(c)));
        weft_status status = c->microbatches == 1 && c->clip == 0
                                 ? weft_session_step(s, 1e-3, &loss)
                                 : weft_session_accumulate(s, &loss);
        if (status < 0) fail_msg("%s: step %d: %s", c->name, step, weft_error_message());
        if (isnan(loss)) continue; /* a pipeline knows it at the last one */
        sum += loss;
        known++;
    }
    if (c->microbatches > 1 || c->clip > 0) ASSERT_OK(weft_session_update(s, 1e-3, NULL));
    return sum / known;
}

static void equals_one_device(const run *c) {
    weft_graph *graph[2];
    weft_session *s[2];
    double first = 0, last = 0;
    for (int k = 0; k < 2; k++) s[k] = session_for(c, k == 1, &graph[k]);
    assert_int_equal(weft_session_devices(s[1]), c->devices);
    for (int step = 0; step < c->steps; step++) {
        double want = train_step(s[0], c, step), is = train_step(s[1], c, step);
        if (!(fabs(is - want) <= c->tolerance * fabs(want)))
            fail_msg("%s: loss %d is %.8g, not %.8g", c->name, step, is, want);
        if (step == 0) first = want;
        last = want;
    }
    assert_true(isfinite(last) && (!c->text || last < first));
    /* parameters on two stages are checked too */
    if (weft_session_check_replicas(s[1]) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    for (int r = 0; r < c->devices; r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s[1], r, &predicted, &observed));
        assert_int_equal(predicted, observed);
    }
    for (int k = 0; k < 2; k++) {
        weft_session_destroy(s[k]);
        weft_graph_destroy(graph[k]);
    }
}

#define GPT2_TENSOR(axis)                                                                          \
    {"h.*.attn.c_attn", "n1=" axis}, {"h.*.attn:attention", "heads=" axis},                        \
        {"h.*.attn.c_proj", "k=" axis}, {"h.*.mlp.c_fc", "n0=" axis}, {                            \
        "h.*.mlp.c_proj", "k=" axis                                                                \
    }

static const weft_model_config tiny = {.family = WEFT_FAMILY_GPT2,
                                       .layers = 2,
                                       .hidden = 32,
                                       .heads = 4,
                                       .ffn = 64,
                                       .context = 32,
                                       .vocab = 128,
                                       .dropout = 0.1};

/* tinyshakespeare. If the file is absent, prints a message and returns false. */
static bool read_text(run *c, char **out) {
    char path[600];
    const char *data = getenv("WEFT_TEST_DATA");
    (void)snprintf(path, sizeof path, "%s/tinyshakespeare.txt", data ? data : "../shared/data");
    if (wefti_file_read(path, 1 << 22, out, &c->text_bytes) < 0) {
        print_message("SKIP: no %s (set WEFT_TEST_DATA)\n", path);
        return false;
    }
    c->text = *out;
    return true;
}

/* accept 40(a) */
static void everything_at_once_on_real_text(void **state) {
    (void)state;
    char *text;
    run c = {.name = "2 data x 2 tensor x 2 stages, gradients split, all recomputed",
             .model = tiny,
             .devices = 8,
             .batch = 8,
             .steps = 20,
             .axis = {{"dp", 2}, {"tp", 2}},
             .splits = {GPT2_TENSOR("tp")},
             .level = 2,
             .stages = 2,
             .microbatches = 4,
             .recompute = WEFT_RECOMPUTE_FULL,
             .clip = 1,
             .tolerance = 1e-5};
    if (!read_text(&c, &text)) skip();
    equals_one_device(&c);
    wefti_free(text);
}

/* accept 40(b) */
static void all_combinations(void **state) {
    (void)state;
    enum {
        DATA = 1,
        TENSOR = 2,
        STAGES = 4,
        OPTIMIZER = 8,
        RECOMPUTE = 16,
        ACCUMULATE = 32,
        FUSION = 64
    };
    /* Sanitizer builds run only some combinations: each of the seven settings is on and off, and
     * each optimizer level shards over dp. */
    unsigned levels = 0;
    for (int bits = 0; bits < 128; bits += SANITIZED_THREAD ? 7 : SANITIZED ? 5 : 1) {
        char name[80];
        (void)snprintf(name, sizeof name, "combination%s%s%s%s%s%s%s", bits & DATA ? " dp" : "",
                       bits & TENSOR ? " tp" : "", bits & STAGES ? " pp" : "",
                       bits & OPTIMIZER ? " opt" : "", bits & RECOMPUTE ? " recompute" : "",
                       bits & ACCUMULATE ? " accumulate" : "", bits & FUSION ? " fusion" : "");
        run c = {.name = name,
                 .model = tiny,
                 .devices =
                     (bits & DATA ? 2 : 1) * (bits & TENSOR ? 2 : 1) * (bits & STAGES ? 2 : 1),
                 .batch = 8,
                 .steps = SANITIZED ? 3 : 6,
                 .apart = !(bits & FUSION),
                 .axis = {{"dp", bits & DATA ? 2 : 1}, {"tp", bits & TENSOR ? 2 : 1}},
                 .level = bits & OPTIMIZER ? 1 + bits % 3 : 0,
                 .stages = bits & STAGES ? 2 : 1,
                 .microbatches = bits & ACCUMULATE ? 4
                                 : bits & STAGES   ? 2
                                                   : 1,
                 .recompute = bits & RECOMPUTE ? WEFT_RECOMPUTE_FULL : WEFT_RECOMPUTE_NONE,
                 .tolerance = 1e-5};
        split tensor[] = {GPT2_TENSOR("tp")};
        if (bits & TENSOR) memcpy(c.splits, tensor, sizeof tensor);
        c.model.context = 8;
        if (bits & DATA) levels |= 1u << c.level;
        equals_one_device(&c);
    }
    assert_int_equal(levels, 0xf);
}

static void a_sequence_split_four_ways(void **state) {
    (void)state;
    run c = {.name = "llama, sequence split",
             .model = {.family = WEFT_FAMILY_LLAMA,
                       .layers = 2,
                       .hidden = 32,
                       .heads = 4,
                       .kv_heads = 2,
                       .ffn = 48,
                       .context = 24,
                       .vocab = 64},
             .devices = 4,
             .batch = 2,
             .steps = 20,
             .axis = {{"sp", 4}},
             .tensors = {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
             .microbatches = 1,
             .tolerance = 1e-5};
    equals_one_device(&c);
}

/* 23 tokens on 3 devices, a group of query heads for each key head, probabilities dropped out. */
static void an_uneven_sequence_with_dropout(void **state) {
    (void)state;
    run c = {.name = "llama, uneven sequence, dropout",
             .model = {.family = WEFT_FAMILY_LLAMA,
                       .layers = 2,
                       .hidden = 32,
                       .heads = 4,
                       .kv_heads = 1,
                       .ffn = 48,
                       .context = 23,
                       .vocab = 64,
                       .dropout = 0.2},
             .devices = 3,
             .batch = 2,
             .steps = 20,
             .axis = {{"sp", 3}},
             .tensors = {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
             .microbatches = 1,
             .tolerance = 1e-5};
    equals_one_device(&c);
}

/* In f64: in f32, one rounding decides which of two elements a relu or a maximum lets through. That
 * difference grows from step to step. */
static void an_image_split_over_height_and_width(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int height, width;
    } pieces[] = {{"resnet18, 2 x 2 pieces of images", 2, 2},
                  {"resnet18, quarters of images", 1, 4}};
    for (int i = 0; i < (SANITIZED ? 1 : 2); i++) {
        run c = {.name = pieces[i].name,
                 .model = {.family = WEFT_FAMILY_RESNET18,
                           .hidden = 2,
                           .classes = 10,
                           .image = {3, 32, 32}},
                 .dtype = WEFT_F64,
                 .devices = pieces[i].height * pieces[i].width,
                 .batch = 2,
                 .steps = 20,
                 .axis = {{"hp", pieces[i].height}, {"wp", pieces[i].width}},
                 .tensors = {{"image", "[-, -, hp, wp]"}},
                 .microbatches = 1,
                 .tolerance = 1e-10};
        equals_one_device(&c);
    }
}

static void experts_over_devices(void **state) {
    (void)state;
    run c = {.name = "mixtral, 4 experts on 4 devices",
             .model = {.family = WEFT_FAMILY_MIXTRAL,
                       .layers = 2,
                       .hidden = 16,
                       .heads = 4,
                       .kv_heads = 2,
                       .ffn = 24,
                       .context = 16,
                       .vocab = 64,
                       .experts = 4,
                       .experts_per_token = 2},
             .devices = 4,
             .batch = 4,
             .steps = 20,
             .axis = {{"ep", 4}},
             .splits = {{"*moe.experts.*", "experts=ep"}},
             .tensors = {{"tokens", "[ep, -]"}, {"targets", "[ep, -]"}},
             .microbatches = 1,
             .tolerance = 1e-5};
    equals_one_device(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once_on_real_text),
        cmocka_unit_test(all_combinations),
        cmocka_unit_test(a_sequence_split_four_ways),
        cmocka_unit_test(an_uneven_sequence_with_dropout),
        cmocka_unit_test(an_image_split_over_height_and_width),
        cmocka_unit_test(experts_over_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
