/* Models of sliced checkpoints in use. They run on the ranks that wrote the slices, on fewer ranks
 * with another split, and on one device. Each time the outputs are those of the whole checkpoint on
 * one device. */
#include "infer_fixture.h"

#include "train/run_members.h"

enum { SAMPLES = 16, LENGTH = 8, VOCAB = 256, LOGITS = SAMPLES * LENGTH * VOCAB };

static const family *const gpt2 = &families[0];
static int32_t tokens[SAMPLES * LENGTH];

/* Eight ranks, each of which has its own part of the parameters. */
static const split eight = {"8 replicas at level 3",
                            {"parallel.devices=8", "parallel.optimizer.level=3",
                             "parallel.optimizer.threshold=0", "train.batch=16"},
                            8};

static weft_status infer_on(weft_world *world, const weft_job *job, const char *checkpoint,
                            float *output) {
    const weft_infer_options o =
        WEFT_STRUCT(weft_infer_options, .checkpoint = checkpoint, .batch = SAMPLES);
    weft_infer *model;
    TRY(weft_infer_open(world, job, &o, &model));
    weft_status status = weft_infer_run(model, SAMPLES, LENGTH, tokens, output);
    weft_infer_close(model);
    return status;
}

typedef struct user {
    const weft_job *job;
    float output[LOGITS];
} user;

static weft_status use(void *context, weft_world *world) {
    user *u = context;
    return infer_on(world, u->job, in_root("sliced"), u->output);
}

/* All ranks have the same bits, and differ from `one` by 1e-6 of the largest logit at most. */
static void assert_ranks(const split *p, const float *one) {
    rank_of_world ranks[MOST_RANKS];
    user *users = calloc((size_t)p->devices, sizeof *users);
    weft_job *job = job_on(gpt2, p);
    double largest = 0, difference = 0;
    for (int r = 0; r < p->devices; r++) users[r].job = job;
    run_world(p->devices, use, users, sizeof *users, ranks);
    assert_all_ok(ranks, p->devices, p->name);
    for (int i = 0; i < LOGITS; i++) {
        const double a = (double)one[i], b = (double)users[0].output[i];
        assert_true(isfinite(b));
        largest = fmax(largest, fabs(a));
        difference = fmax(difference, fabs(a - b));
    }
    if (!(largest > 0) || difference > 1e-6 * largest)
        fail_msg("%s: %g is the largest difference, %g the largest logit", p->name, difference,
                 largest);
    for (int r = 1; r < p->devices; r++)
        assert_memory_equal(users[r].output, users[0].output, sizeof users[0].output);
    weft_job_free(job);
    free(users);
}

static void train_on_eight(const char *sliced, const char *dir) {
    static member members[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    words w = words_of(gpt2);
    for (int i = 0; eight.words[i]; i++) add_word(&w, "%s", eight.words[i]);
    add_word(&w, "%s", sliced);
    add_word(&w, "%s", dir_word(dir));
    memset(members, 0, sizeof members);
    run_all(&w, NULL, eight.devices, members, ranks);
    assert_all_ok(ranks, eight.devices, dir);
}

/* accept 32(a), 32(b), 32(c) */
static void slices_have_the_logits_of_the_whole(void **state) {
    (void)state;
    static float one[LOGITS], merged[LOGITS];
    for (int i = 0; i < SAMPLES * LENGTH; i++)
        tokens[i] = (int32_t)(wefti_philox_u32(3, 2, (uint64_t)i) % VOCAB);
    train_on_eight("checkpoint.sliced=true", "sliced");
    train_on_eight("checkpoint.sliced=false", "whole");
    assert_true(wefti_exists(in_root("sliced/rank_7")));
    assert_false(wefti_exists(in_root("whole/rank_7")));
    weft_job *job = job_on(gpt2, NULL);
    ASSERT_OK(infer_on(NULL, job, in_root("whole"), one));
    assert_ranks(&eight, one);
    const split other = tensor_split(gpt2);
    assert_ranks(&other, one);
    /* without any layout, the slices of all ranks are merged */
    ASSERT_OK(infer_on(NULL, job, in_root("sliced"), merged));
    assert_memory_equal(merged, one, sizeof one);
    weft_job_free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_have_the_logits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
