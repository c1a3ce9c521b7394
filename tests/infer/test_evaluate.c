/* Evaluations: every family on every kind of split has the numbers of one device, in one process
 * and in a world; the loss is that of the run's own validation; what does not fit is refused. */
#include "infer_fixture.h"

static weft_status evaluate(weft_world *world, const weft_job *job, const char *checkpoint,
                            weft_eval_result *out) {
    const weft_eval_options o = WEFT_STRUCT(weft_eval_options, .checkpoint = checkpoint);
    return weft_eval_run(world, job, &o, out);
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
        const split tensor = tensor_split(f), expert = expert_split(), sequence = sequence_split();
        if (f->language) on_plan(f, &sequence, checkpoint, &one);
        if (f->language) in_world(f, &sequence, checkpoint, &one);
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
    weft_eval_options o = WEFT_STRUCT(weft_eval_options, .checkpoint = checkpoint, .data = other);
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
