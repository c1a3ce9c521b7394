/* Evaluations: every family on every kind of split has the numbers of one device, in one process
 * and in a world; the loss is that of the run's own validation; what does not fit is refused. */
#include "train/run_fixture.h"
#include "session/world_fixture.h"

#include "weft/infer.h"

/* ---- models ---- */

typedef struct family {
    const char *name, *words[6];
    bool language, experts;
    const char *tensor_parallel; /* strategies; NULL: a search finds some */
} family;

#define GPT2_SPLITS                                                                                \
    "parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: "       \
    "heads=tp}, {match: h.*.attn.c_proj, split: k=tp}]"
#define LLAMA_SPLITS                                                                               \
    "parallel.strategies=[{match: '*.self_attn.[qkv]_proj', split: n0=tp}, {match: "               \
    "'*.self_attn:attention', split: heads=tp}, {match: '*.self_attn.o_proj', split: k=tp}]"
#define EXPERT_SPLITS                                                                              \
    "parallel.strategies=[{match: '*moe.experts.*', split: experts=dp}, {match: "                  \
    "'*moe:moe_dispatch', split: experts=dp}, {match: '*moe:moe_combine', split: experts=dp}]"

static const family families[] = {
    {"gpt2", {NULL}, true, false, GPT2_SPLITS},
    {"llama", {"model.kv_heads=2"}, true, false, LLAMA_SPLITS},
    {"mistral", {"model.window=5"}, true, false, LLAMA_SPLITS},
    {"qwen2", {NULL}, true, false, LLAMA_SPLITS},
    {"bert", {NULL}, true, false, NULL},
    {"gpt2-moe", {"model.experts=4"}, true, true, GPT2_SPLITS},
    {"mixtral", {"model.experts=4"}, true, true, LLAMA_SPLITS},
    {"vit",
     {"model.patch=4", "model.layers=2", "model.hidden=16", "model.heads=2"},
     false,
     false,
     NULL},
    {"mlp", {"model.hidden=16"}, false, false, NULL},
    {"lenet", {NULL}, false, false, NULL},
    {"resnet18", {"model.hidden=4"}, false, false, NULL},
    {"resnet50", {"model.hidden=4"}, false, false, NULL},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* 40 images of 1 x 12 x 12 for lenet, which needs them larger. */
static const char *large_image_file(void) {
    enum { IMAGES = 40, SIDE = 12 };
    buffer images = {.count = 0}, labels = {.count = 0};
    put_big(&images, 0x803, 4);
    put_big(&labels, 0x801, 4);
    put_big(&images, IMAGES, 4);
    put_big(&labels, IMAGES, 4);
    for (int i = 0; i < 2; i++) put_big(&images, SIDE, 4);
    for (uint64_t i = 0; i < IMAGES; i++) put_big(&labels, i % 3, 1);
    for (uint64_t i = 0; i < IMAGES * SIDE * SIDE; i++)
        put_big(&images, wefti_philox_u32(5, 1, i) % 256, 1);
    (void)put_file("large-labels-idx1-ubyte", labels.bytes, (size_t)labels.count);
    return put_file("large-images-idx3-ubyte", images.bytes, (size_t)images.count);
}

static words words_of(const family *f) {
    words w = {.count = 0};
    add_word(&w, "model.family=%s", f->name);
    for (int i = 0; i < 6 && f->words[i]; i++) add_word(&w, "%s", f->words[i]);
    if (f->language)
        add_words(&w,
                  WITH("model.layers=2", "model.hidden=16", "model.heads=2", "model.context=8"));
    add_word(&w, "data.path=%s",
             f->language                 ? text_file()
             : !strcmp(f->name, "lenet") ? large_image_file()
                                         : image_file());
    add_words(&w, WITH("data.validation=0.3", "train.steps=3", "train.batch=4",
                       "train.optimizer.lr=0.003", "train.eval_every=0", "train.eval_batches=0",
                       "device.threads=1"));
    return w;
}

/* The directory of a run of three steps on one device, and its own validation. */
static const char *train(const family *f, record *r) {
    words w = words_of(f);
    add_word(&w, "%s", dir_word(f->name));
    ASSERT_OK(run_words(&w, r));
    return in_root(f->name);
}

/* ---- plans ---- */

typedef struct split {
    const char *name, *words[6];
    int devices;
} split;

static const split plans[] = {
    {"3 replicas, uneven", {"parallel.devices=3"}, 3},
    {"2 replicas at level 3",
     {"parallel.devices=2", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0"},
     2},
    {"2 stages, microbatches",
     {"parallel.devices=2", "parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2"},
     2},
    {"found by a search",
     {"parallel.devices=4", "parallel.mode=auto", "parallel.search=recursive"},
     4},
    {"2 stages of 2 replicas in copies",
     {"parallel.devices=4", "parallel.pipeline.stages=2", "parallel.copies=2", "train.batch=16"},
     4},
};
enum { PLAN_COUNT = sizeof plans / sizeof *plans };

static weft_job *job_on(const family *f, const split *p) {
    words w = words_of(f);
    for (int i = 0; p && i < 6 && p->words[i]; i++) add_word(&w, "%s", p->words[i]);
    return job_of(&w);
}

static weft_status evaluate(weft_world *world, const weft_job *job, const char *checkpoint,
                            weft_eval_result *out) {
    const weft_eval_options o = {.checkpoint = checkpoint};
    return weft_eval_run(world, job, &o, out);
}

static bool near(double a, double b) {
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fabs(b);
}

static void assert_equal(const weft_eval_result *one, const weft_eval_result *many, const family *f,
                         const char *plan) {
    assert_string_equal(one->checkpoint, many->checkpoint);
    assert_int_equal(one->samples, many->samples);
    assert_int_equal(one->targets, many->targets);
    assert_int_equal(one->bytes, many->bytes);
    if (!near(many->loss, one->loss) || !near(many->perplexity, one->perplexity) ||
        !near(many->bits_per_byte, one->bits_per_byte) || !near(many->accuracy, one->accuracy))
        fail_msg("%s, %s: loss %.9g and accuracy %g, on one device %.9g and %g", f->name, plan,
                 many->loss, many->accuracy, one->loss, one->accuracy);
}

static void on_plan(const family *f, const split *p, const char *checkpoint,
                    const weft_eval_result *one) {
    weft_eval_result r = {.samples = 0};
    weft_job *job = job_on(f, p);
    weft_status status = evaluate(NULL, job, checkpoint, &r);
    if (status < 0) fail_msg("%s, %s: %s", f->name, p->name, weft_error_message());
    assert_int_equal(r.devices, p->devices);
    assert_equal(one, &r, f, p->name);
    weft_job_free(job);
}

typedef struct member {
    const weft_job *job;
    const char *checkpoint;
    weft_eval_result result;
} member;

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    return evaluate(world, m->job, m->checkpoint, &m->result);
}

static void in_world(const family *f, const split *p, const char *checkpoint,
                     const weft_eval_result *one) {
    member members[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    weft_job *job = job_on(f, p);
    for (int r = 0; r < p->devices; r++)
        members[r] = (member){.job = job, .checkpoint = checkpoint};
    run_world(p->devices, run_member, members, sizeof *members, ranks);
    assert_all_ok(ranks, p->devices, f->name);
    for (int r = 0; r < p->devices; r++) assert_equal(one, &members[r].result, f, p->name);
    for (int r = 1; r < p->devices; r++)
        assert_memory_equal(&members[r].result.loss, &members[0].result.loss, sizeof(double));
    weft_job_free(job);
}

static void every_split_has_the_numbers_of_one_device(void **state) {
    (void)state;
    for (int i = 0; i < FAMILY_COUNT; i++) {
        const family *f = &families[i];
        record run = {.first = 0};
        weft_eval_result one = {.samples = 0};
        char checkpoint[600];
        (void)snprintf(checkpoint, sizeof checkpoint, "%s", train(f, &run));
        weft_job *job = job_on(f, NULL);
        ASSERT_OK(evaluate(NULL, job, checkpoint, &one));
        weft_job_free(job);
        assert_int_equal(one.devices, 1);
        assert_true(one.samples > 0 && one.targets > 0);
        assert_true(f->language ? isnan(one.accuracy) : isnan(one.perplexity));
        /* the same graph, data and weights as the run's own validation */
        if (one.loss != run.result.validation_loss)
            fail_msg("%s: loss %.17g, the run's own is %.17g", f->name, one.loss,
                     run.result.validation_loss);
        if (!f->language) assert_true(one.accuracy == run.result.accuracy);
        for (int k = 0; k < PLAN_COUNT; k++) on_plan(f, &plans[k], checkpoint, &one);
        in_world(f, &plans[i % PLAN_COUNT], checkpoint, &one);
        const split tensor = {"2 data 2 tensor",
                              {"parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi",
                               f->tensor_parallel},
                              4},
                    expert = {"2 experts",
                              {"parallel.mesh={dp: 2}", "parallel.mode=semi", EXPERT_SPLITS},
                              2};
        if (f->tensor_parallel) on_plan(f, &tensor, checkpoint, &one);
        if (f->tensor_parallel) in_world(f, &tensor, checkpoint, &one);
        if (f->experts) on_plan(f, &expert, checkpoint, &one);
        if (f->experts) in_world(f, &expert, checkpoint, &one);
        ASSERT_OK(wefti_remove_tree(in_root(f->name)));
    }
}

/* ---- other data ---- */

static void numbers_of_a_text(void **state) {
    (void)state;
    const family *f = &families[0];
    record run = {.first = 0};
    weft_eval_result r = {.samples = 0};
    const char *checkpoint = train(f, &run), *other = put_file("other", text_file(), 50);
    weft_job *job = job_on(f, NULL);
    weft_eval_options o = {.checkpoint = checkpoint, .data = other};
    ASSERT_OK(weft_eval_run(NULL, job, &o, &r));
    assert_int_equal(r.samples, 6); /* of 8 tokens, from 50 bytes; the last batch is not full */
    assert_int_equal(r.targets, 48);
    assert_int_equal(r.bytes, 48);
    assert_true(near(r.perplexity, exp(r.loss)));
    assert_true(near(r.bits_per_byte, r.loss / log(2)));
    o.data = "nothere";
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "nothere", weft_eval_run(NULL, job, &o, &r));
    weft_job_free(job);
    ASSERT_OK(wefti_remove_tree(in_root(f->name)));
}

/* ---- what is refused ---- */

static void refuse(weft_status status, const char *part, const family *f, const char *checkpoint,
                   const char *const *more) {
    weft_eval_result r = {.samples = 77};
    words w = words_of(f);
    add_words(&w, more);
    weft_job *job = job_of(&w);
    ASSERT_FAILS(status, part, evaluate(NULL, job, checkpoint, &r));
    assert_int_equal(r.samples, 77);
    weft_job_free(job);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    const family *f = &families[0];
    record run = {.first = 0};
    char checkpoint[600];
    (void)snprintf(checkpoint, sizeof checkpoint, "%s", train(f, &run));
    refuse(WEFT_E_NOT_FOUND, "nothere", f, "nothere", NULL);
    refuse(WEFT_E_ARG, "model.hidden|32|16", f, checkpoint, WITH("model.hidden=32"));
    refuse(WEFT_E_ARG, "llama|gpt2", &families[1], checkpoint, NULL);
    refuse(WEFT_E_ARG, "data.validation", f, checkpoint, WITH("data.validation=0"));
    char path[800];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", step_path(f->name, 3));
    char *text;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    text[bytes - 5] ^= 1;
    ASSERT_OK(wefti_file_write(path, text, (size_t)bytes));
    wefti_free(text);
    refuse(WEFT_E_CORRUPT, "model.safetensors", f, step_path(f->name, 3), NULL);
    ASSERT_OK(wefti_remove_tree(in_root(f->name)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_has_the_numbers_of_one_device),
        cmocka_unit_test(numbers_of_a_text),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
