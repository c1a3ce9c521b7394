/* A run is interrupted at any step and continued. It ends with the same bits as an uninterrupted
 * run, after a stop request or a kill behind a checkpoint. The bits do not depend on the number of
 * threads. */
#include "run_fixture.h"

static void assert_same_losses(const record *whole, const record *part) {
    for (int64_t s = part->first; s <= part->last; s++)
        if (memcmp(&whole->losses[s], &part->losses[s], sizeof part->losses[s]) != 0)
            fail_msg("step %lld: loss %.17g, uninterrupted %.17g", (long long)s, part->losses[s],
                     whole->losses[s]);
}

/* One run with a checkpoint at every step. Its directory is cut back step by step, as if the run
 * had been killed there, and the run continues. Besides, a fresh run is stopped at the step and
 * continues. */
static void resumes_at_every_step(words base) {
    static record whole;
    memset(&whole, 0, sizeof whole);
    ASSERT_OK(run_with(&base, WITH(dir_word("whole"), "checkpoint.keep=100"), &whole));
    static record saved;
    memset(&saved, 0, sizeof saved);
    ASSERT_OK(run_with(&base, WITH(dir_word("cut"), "checkpoint.every=1", "checkpoint.keep=100"),
                       &saved));
    assert_int_equal(steps_in("cut", NULL), RUN_STEPS);
    assert_same_losses(&whole, &saved);
    assert_same_checkpoint(in_root("whole"), in_root("cut"));
    for (int64_t k = RUN_STEPS - 1; k > 0; k--) {
        record r = {.first = 0};
        ASSERT_OK(wefti_remove_tree(step_path("cut", RUN_STEPS)));
        ASSERT_OK(wefti_remove_tree(step_path("cut", k + 1)));
        ASSERT_OK(run_with(&base, WITH(dir_word("cut"), "checkpoint.keep=100"), &r));
        assert_int_equal(r.first, k + 1);
        assert_same_losses(&whole, &r);
        assert_same_checkpoint(in_root("whole"), in_root("cut"));
    }
    for (int64_t k = 1; k < RUN_STEPS; k++) {
        record begin = {.stop_after = k}, rest = {.first = 0};
        assert_int_equal(run_with(&base, WITH(dir_word("stopped")), &begin), WEFT_E_STOPPED);
        assert_int_equal(begin.last, k);
        assert_int_equal(steps_in("stopped", NULL), 1);
        assert_same_losses(&whole, &begin);
        ASSERT_OK(run_with(&base, WITH(dir_word("stopped")), &rest));
        assert_int_equal(rest.first, k + 1);
        assert_int_equal(rest.last, RUN_STEPS);
        assert_same_losses(&whole, &rest);
        assert_same_checkpoint(in_root("whole"), in_root("stopped"));
        ASSERT_OK(wefti_remove_tree(in_root("stopped")));
    }
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
    ASSERT_OK(wefti_remove_tree(in_root("cut")));
}

static void resume_with_dropout(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("model.dropout=0.2", "train.clip=0", "train.optimizer=adagrad",
                       "train.optimizer.initial_accumulator=0.1"));
    resumes_at_every_step(w);
}

static void resume_with_accumulation_and_clipping(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("model.dropout=0.1", "train.accumulate=2", "train.clip=0.5",
                       "train.optimizer.name=adafactor"));
    resumes_at_every_step(w);
}

/* The experts of a layer are one tensor here and several there. */
static void resume_with_experts(void **state) {
    (void)state;
    static const char *const families[] = {"model.family=mixtral", "model.family=gpt2-moe"};
    for (int i = 0; i < 2; i++) {
        words w = tiny_gpt2();
        add_words(&w, WITH(families[i], "model.experts=3", "model.experts_per_token=2",
                           "train.optimizer.lr=0.03",
                           i ? "train.optimizer.name=adafactor" : "model.aux_loss=0.1"));
        record whole = {.first = 0}, begin = {.stop_after = 7}, rest = {.first = 0};
        ASSERT_OK(run_with(&w, WITH(dir_word("whole"), "device.threads=2"), &whole));
        assert_int_equal(run_with(&w, WITH(dir_word("stopped")), &begin), WEFT_E_STOPPED);
        ASSERT_OK(run_with(&w, WITH(dir_word("stopped")), &rest));
        assert_same_losses(&whole, &begin);
        assert_same_losses(&whole, &rest);
        assert_same_checkpoint(in_root("whole"), in_root("stopped"));
        assert_true(whole.losses[RUN_STEPS] < (i ? 0.95 : 0.5) * whole.losses[1]);
        ASSERT_OK(wefti_remove_tree(in_root("whole")));
        ASSERT_OK(wefti_remove_tree(in_root("stopped")));
    }
}

static void resume_with_states(void **state) {
    (void)state;
    resumes_at_every_step(tiny_resnet());
}

static void resume_in_bf16(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("train.precision=bf16"));
    record whole = {.first = 0}, begin = {.stop_after = 11}, rest = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("whole")), &whole));
    assert_int_equal(run_with(&w, WITH(dir_word("stopped")), &begin), WEFT_E_STOPPED);
    ASSERT_OK(run_with(&w, WITH(dir_word("stopped")), &rest));
    assert_same_losses(&whole, &begin);
    assert_same_losses(&whole, &rest);
    assert_same_checkpoint(in_root("whole"), in_root("stopped"));
    assert_true(whole.losses[RUN_STEPS] < 0.8 * whole.losses[1]);
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
    ASSERT_OK(wefti_remove_tree(in_root("stopped")));
}

static void same_bits_on_any_number_of_threads(void **state) {
    (void)state;
    words jobs[] = {tiny_gpt2(), tiny_resnet()};
    add_words(&jobs[0], WITH("model.dropout=0.1", "train.clip=0.5"));
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
        record one = {.first = 0};
        ASSERT_OK(run_with(&jobs[j], WITH(dir_word("one")), &one));
        for (int threads = 2; threads <= 3; threads++) {
            record many = {.first = 0};
            char word[32];
            (void)snprintf(word, sizeof word, "device.threads=%d", threads);
            ASSERT_OK(run_with(&jobs[j], WITH(dir_word("many"), word), &many));
            assert_same_losses(&one, &many);
            assert_same_checkpoint(in_root("one"), in_root("many"));
            ASSERT_OK(wefti_remove_tree(in_root("many")));
        }
        ASSERT_OK(wefti_remove_tree(in_root("one")));
    }
}

/* A stop before the first step, and one when all is done. */
static void stops_at_the_ends(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record none = {.stop = 1};
    assert_int_equal(run_with(&w, WITH(dir_word("ends")), &none), WEFT_E_STOPPED);
    assert_int_equal(none.last, 0);
    assert_int_equal(steps_in("ends", NULL), 0);
    record last = {.stop_after = RUN_STEPS}, again = {.first = 0};
    int64_t newest;
    assert_int_equal(run_with(&w, WITH(dir_word("ends")), &last), WEFT_E_STOPPED);
    assert_int_equal(last.validated, 0); /* half of a validation is none */
    (void)steps_in("ends", &newest);
    assert_int_equal(newest, RUN_STEPS);
    ASSERT_OK(run_with(&w, WITH(dir_word("ends")), &again));
    assert_note(&again, "left|train");
    assert_int_equal(again.result.steps, RUN_STEPS);
    assert_true(again.result.final_loss == last.losses[RUN_STEPS]);
    assert_int_equal(again.validated, 1);
}

/* Another text of the same size, or a tokenizer of as many tokens with other numbers: a resume is
 * refused, or, if the job says so, goes on with a note. Other validation data give a note alone. */
static void a_resume_with_other_data_is_refused(void **state) {
    (void)state;
    char letters[3000];
    for (size_t i = 0; i < sizeof letters; i++) letters[i] = "abcab"[(i * i + i / 7) % 5];
    const char *const path = put_file("letters", letters, sizeof letters);
    words w = tiny_gpt2();
    record first = {.first = 0};
    add_word(&w, "data.path=%s", path);
    add_word(&w, "data.tokenizer=%s", put_tokenizer("abc.json", "abc"));
    add_words(&w, WITH(dir_word("data"), "train.steps=2", "train.schedule.name=constant"));
    ASSERT_OK(run_words(&w, &first));
    add_words(&w, WITH("train.steps=3"));

    char tokenizer[300], other[300], held[300];
    (void)snprintf(tokenizer, sizeof tokenizer, "data.tokenizer=%s",
                   put_tokenizer("acb.json", "acb"));
    letters[2999] = letters[2999] == 'a' ? 'b' : 'a';
    (void)snprintf(other, sizeof other, "data.path=%s", put_file("other", letters, sizeof letters));
    (void)snprintf(held, sizeof held, "data.validation=%s", in_root("other"));
    const struct {
        const char *word, *facts;
    } cases[] = {{other, "training data|other|letters|"
                         "other content|checkpoint.other_data: true"},
                 {tokenizer, "tokenizer|3 tokens|checkpoint.other_data: true"}};
    for (int i = 0; i < 2; i++) {
        record refused = {.first = 0};
        assert_int_equal(run_with(&w, WITH(cases[i].word), &refused), WEFT_E_ARG);
        ASSERT_MESSAGE(cases[i].facts);
        assert_int_equal(steps_in("data", NULL), 1);
    }
    record kept = {.first = 0}, changed = {.first = 0}, validated = {.first = 0};
    ASSERT_OK(run_words(&w, &kept)); /* as it was */
    assert_int_equal(kept.first, 3);
    assert_int_equal(kept.notes, 0);
    add_words(&w, WITH("train.steps=4"));
    ASSERT_OK(run_with(&w, WITH(held), &validated));
    assert_note(&validated, "validation data|other");
    add_words(&w, WITH("train.steps=5"));
    ASSERT_OK(run_with(&w, WITH(other, "checkpoint.other_data=true"), &changed));
    assert_int_equal(changed.first, 5);
    assert_note(&changed, "other data|training data");
    add_words(&w, WITH("train.steps=6", "checkpoint.other_data=false"));
    record since = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(other), &since)); /* the checkpoint now says the new ones */
    assert_int_equal(since.first, 6);
    ASSERT_OK(wefti_remove_tree(in_root("data")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_with_dropout),
        cmocka_unit_test(resume_with_accumulation_and_clipping),
        cmocka_unit_test(resume_with_experts),
        cmocka_unit_test(resume_with_states),
        cmocka_unit_test(resume_in_bf16),
        cmocka_unit_test(same_bits_on_any_number_of_threads),
        cmocka_unit_test(stops_at_the_ends),
        cmocka_unit_test(a_resume_with_other_data_is_refused),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
