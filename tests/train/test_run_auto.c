/* Plans by a search change where a model runs, never its results: mode auto on 1 to 8 devices gives
 * the losses of one device, for every family, every search, and machines of one and of two hosts.
 * Each family comes twice; in nightly runs (WEFT_NIGHTLY in the environment) ten times. Processes
 * of a world take rank 0's plan, and compute the bits of one process with as many devices. */
#include "run_members.h"

#include <stdlib.h>

#include "base/philox.h"

enum { AUTO_STEPS = 3 };

typedef struct auto_family {
    const char *name;
    bool images;
    const char *words[6];
} auto_family;

static const auto_family families[] = {
    {"gpt2", false, {NULL}},
    {"llama", false, {"model.heads=4", "model.kv_heads=2"}},
    {"resnet18",
     true,
     {"model.hidden=4", "train.optimizer.name=sgd"}}, /* others amplify rounding */
    {"gpt2-moe", false, {"model.experts=4", "model.experts_per_token=2"}},
    {"vit", true, {"model.layers=2", "model.hidden=16", "model.heads=2", "model.patch=2"}},
    {"mistral", false, {"model.kv_heads=1"}},
    {"mlp", true, {"model.layers=2", "model.hidden=16"}},
    {"bert", false, {NULL}},
    {"qwen2", false, {"model.kv_heads=2"}},
    {"lenet", true, {NULL}},
    {"mixtral", false, {"model.experts=4", "model.experts_per_token=1", "model.kv_heads=1"}},
    {"resnet50", true, {"model.hidden=4", "train.optimizer.name=sgd"}},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* 24 images of 1 x 16 x 16, random, with labels of 0 to 3: LeNet needs 12 x 12. */
static const char *random_images(void) {
    enum { IMAGES = 24, SIDE = 16 };
    buffer images = {.count = 0}, labels = {.count = 0};
    put_big(&images, 0x803, 4);
    put_big(&images, IMAGES, 4);
    put_big(&images, SIDE, 4);
    put_big(&images, SIDE, 4);
    put_big(&labels, 0x801, 4);
    put_big(&labels, IMAGES, 4);
    for (uint64_t i = 0; i < IMAGES; i++) {
        put_big(&labels, i % 4, 1);
        for (uint64_t p = 0; p < (uint64_t)SIDE * SIDE; p++)
            put_big(&images, wefti_philox_u32(5, i, p) % 256, 1);
    }
    (void)put_file("labels-idx1-ubyte", labels.bytes, (size_t)labels.count);
    return put_file("images-idx3-ubyte", images.bytes, (size_t)images.count);
}

static words job_of_family(const auto_family *f) {
    words w = {.count = 0};
    if (!f->images) w = tiny_gpt2();
    if (f->images) add_word(&w, "data.path=%s", random_images());
    add_word(&w, "model.family=%s", f->name);
    add_words(&w, f->words);
    add_words(&w, WITH("train.batch=8", "train.optimizer.lr=0.001", "train.eval_every=0",
                       "data.validation=0", "device.threads=1", "train.seed=11"));
    add_word(&w, "train.steps=%d", AUTO_STEPS);
    return w;
}

/* A choice of 0 to count - 1. */
static int choose(uint64_t seed, uint64_t which, int count) {
    return (int)(wefti_philox_u32(seed, which, 0) % (uint32_t)count);
}

static void test_auto_equals_one_device(void **state) {
    (void)state;
    static const char *const searches[] = {"joint", "joint", "dynamic", "recursive"};
    static const char *const machines[] = {
        "", "machine=cpu-epyc-9654",
        "machine=hosts=2 gpus=4 gpu=a100-80g intra=1e9,1e-5 inter=1e8,1e-4", "machine=8 v100"};
    const uint64_t cases = FAMILIES * (getenv("WEFT_NIGHTLY") ? 10 : 2);
    TEST_SEEDS(seed, 1, cases) {
        const auto_family *f = &families[(seed - 1) % FAMILIES];
        const int devices = 1 + choose(seed, 1, 8);
        const words one_words = job_of_family(f);
        words w = one_words;
        record one = {.first = 0}, many = {.first = 0};
        const char *search = searches[choose(seed, 2, 4)], *machine = machines[choose(seed, 3, 4)];
        add_words(&w, WITH("parallel.mode=auto"));
        add_word(&w, "parallel.devices=%d", devices);
        add_word(&w, "parallel.search=%s", search);
        if (!strcmp(search, "joint")) add_word(&w, "parallel.evaluations=40");
        if (*machine) add_word(&w, "%s", machine);
        ASSERT_OK(run_words(&one_words, &one));
        if (run_words(&w, &many) < 0)
            fail_msg("%s on %d devices, search %s, %s: %s", f->name, devices, search, machine,
                     weft_error_message());
        assert_int_equal(many.last, AUTO_STEPS);
        for (int64_t s = 1; s <= AUTO_STEPS; s++)
            if (!(fabs(one.losses[s] - many.losses[s]) <= 1e-4 * fabs(one.losses[s])))
                fail_msg("%s on %d devices, search %s, %s: the loss of step %lld is %.9g, on one "
                         "device %.9g",
                         f->name, devices, search, machine, (long long)s, many.losses[s],
                         one.losses[s]);
    }
}

/* mlp and lenet have nodes outside cells, which a search wraps into cells. */
static void each_search_runs_in_a_world(void **state) {
    (void)state;
    static const char *const families_of_world[] = {"mlp", "gpt2", "lenet"};
    static const char *const searches[WEFT_SEARCHES] = {"propagation", "dynamic", "recursive",
                                                        "joint"};
    static const char *const configured[] = {"*0*:linear", "h.*.mlp.c_fc:linear", "*fc*:linear"};
    for (int i = 0; i < 3; i++)
        for (int s = 0; s < WEFT_SEARCHES; s++) {
            const auto_family *f = families;
            while (strcmp(f->name, families_of_world[i]) != 0) f++;
            words w = job_of_family(f);
            record one = {.first = 0};
            member members[2] = {{.job = NULL}};
            rank_of_world ranks[2];
            add_words(&w, WITH("parallel.mode=auto", "parallel.devices=2", "train.eval_every=2"));
            add_word(&w, "parallel.search=%s", searches[s]);
            if (s == WEFT_SEARCH_JOINT) add_word(&w, "parallel.evaluations=40");
            if (s == WEFT_SEARCH_PROPAGATION)
                add_word(&w, "parallel.strategies=[{match: \"%s\", split: m0=dp}]", configured[i]);
            if (run_words(&w, &one) < 0)
                fail_msg("%s, %s: %s", f->name, searches[s], weft_error_message());
            run_all(&w, NULL, 2, members, ranks);
            assert_all_ok(ranks, 2, searches[s]);
            assert_same_record(&one, &members[0].record, searches[s]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_auto_equals_one_device),
                                       cmocka_unit_test(each_search_runs_in_a_world)};
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
