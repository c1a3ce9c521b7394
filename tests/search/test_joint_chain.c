/* All bounds of a candidate hold in the simulator: those of each set that it belongs to, and its
 * own. Small random questions on random machines, with measured tiles and without; of each one,
 * candidates of the whole space are walked. */
#include "joint_models.h"

#include <stdio.h>

#include "search/joint/branch.h"

static uint64_t pick(uint64_t *state, uint64_t count) {
    return (uint64_t)(uniform(state) * (double)count) % count;
}
#define AMONG(s, ...)                                                                              \
    ((const double[]){__VA_ARGS__})[pick(s, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))]

/* ---- random questions ---- */

typedef struct question {
    joint_source source;
    char machine[4096], fix[256], words[256];
    int devices;
    int64_t batch;
} question;

static void random_model(uint64_t *s, question *q) {
    static const weft_family families[] = {WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA, WEFT_FAMILY_MIXTRAL,
                                           WEFT_FAMILY_BERT};
    weft_model_config *c = &q->source.config;
    q->source.dtype = pick(s, 2) ? WEFT_BF16 : WEFT_F32;
    *c = (weft_model_config){.family = families[pick(s, 4)]};
    c->layers = (int64_t)AMONG(s, 1, 2, 4, 5, 6, 9);
    c->heads = (int64_t)AMONG(s, 1, 2, 3, 4, 6, 8);
    c->hidden = c->heads * (int64_t)AMONG(s, 8, 16, 20, 32, 64);
    c->ffn = c->hidden * (int64_t)AMONG(s, 1, 2, 4);
    c->vocab = (int64_t)AMONG(s, 64, 96, 250, 1000, 4096);
    c->context = (int64_t)AMONG(s, 8, 24, 32, 64, 128);
    if (is_rotary(c->family)) c->kv_heads = c->heads % 2 || pick(s, 2) ? c->heads : c->heads / 2;
    if (c->family == WEFT_FAMILY_MIXTRAL) {
        c->experts = (int64_t)AMONG(s, 2, 4, 6, 8);
        c->experts_per_token = 1 + (int64_t)pick(s, 2);
    }
    ASSERT_OK(weft_model_complete(c));
    (void)snprintf(q->words, sizeof q->words,
                   "%s layers %lld hidden %lld heads %lld ffn %lld context %lld vocab %lld",
                   weft_family_text(c->family), (long long)c->layers, (long long)c->hidden,
                   (long long)c->heads, (long long)c->ffn, (long long)c->context,
                   (long long)c->vocab);
}

static void add_figure(char *out, size_t room, const char *name, double value) {
    const size_t used = strlen(out);
    (void)snprintf(out + used, room - used, "\"%s\": {\"value\": %.9g, \"source\": \"random\"}, ",
                   name, value);
}

/* Rates that make now products, now memory, now launches, now transfers the most of a step. */
static void random_machine(uint64_t *s, question *q) {
    char device[1024] = "", *m = q->machine;
    const size_t room = sizeof q->machine;
    const int hosts = 1 + (int)pick(s, 4);
    const int of_host = 1 + (int)pick(s, 6 / (unsigned)(hosts > 2 ? 2 : 1));
    q->devices = hosts * of_host;
    add_figure(device, sizeof device, "memory_bytes", 1e12);
    add_figure(device, sizeof device, "memory_bytes_per_second", AMONG(s, 1e10, 1e11, 2e12));
    add_figure(device, sizeof device, "vector_flops", AMONG(s, 1e10, 1e12, 5e13));
    add_figure(device, sizeof device, "launch_seconds", AMONG(s, 0, 4e-7, 5e-6));
    if (pick(s, 3)) {
        add_figure(device, sizeof device, "units", AMONG(s, 8, 20, 108, 132));
        add_figure(device, sizeof device, "tile_rows", AMONG(s, 16, 64, 128, 256));
        add_figure(device, sizeof device, "tile_columns", AMONG(s, 16, 64, 128, 256));
    }
    if (pick(s, 2)) add_figure(device, sizeof device, "tile_depth", AMONG(s, 16, 64, 512));
    if (pick(s, 2)) add_figure(device, sizeof device, "aligned_bytes", AMONG(s, 16, 64, 128));
    (void)snprintf(m, room,
                   "{\"version\": 1, \"name\": \"random\", \"hosts\": %d, \"device\": {%s"
                   "\"peak_flops\": {\"f32\": {\"value\": %g, \"source\": \"random\"}, \"bf16\": "
                   "{\"value\": %g, \"source\": \"random\"}}}, \"levels\": [",
                   hosts, device, AMONG(s, 1e10, 1e12, 1e14), AMONG(s, 2e10, 1e12, 3e14));
    const double latency = AMONG(s, 0, 1e-6, 1.6e-5), rate = AMONG(s, 1e9, 3e10, 3e11);
    const double slower[2] = {AMONG(s, 1, 4, 20), AMONG(s, 1, 2, 30)};
    for (int l = 0; l < 2; l++) {
        char level[256] = "", devices[32] = "";
        add_figure(level, sizeof level, "latency_seconds", latency * (l ? slower[0] : 1));
        add_figure(level, sizeof level, "bytes_per_second", rate / (l ? slower[1] : 1));
        if (!l) (void)snprintf(devices, sizeof devices, "\"devices\": %d, ", of_host);
        const size_t used = strlen(m);
        (void)snprintf(m + used, room - used, "%s{%s%s\"name\": \"%s\"}", l ? ", " : "", level,
                       devices, l ? "network" : "host");
    }
    (void)snprintf(m + strlen(m), room - strlen(m), "]}");
}

static void random_question(uint64_t *s, question *q) {
    static const char *const fixes[] = {"",
                                        "",
                                        "",
                                        "",
                                        "level=1",
                                        "level=3",
                                        "cp=1",
                                        "sp=0",
                                        "pp=2",
                                        "recompute=full",
                                        "tp=2",
                                        "chunks=1",
                                        "schedule=zero_bubble"};
    *q = (question){.devices = 0};
    random_model(s, q);
    random_machine(s, q);
    q->batch = (int64_t)AMONG(s, 1, 2, 3, 4, 6, 8, 12, 16, 24);
    (void)snprintf(q->fix, sizeof q->fix, "%s", fixes[pick(s, sizeof fixes / sizeof *fixes)]);
}

/* ---- the property ---- */

typedef struct walks {
    wefti_joint_branch s;
    const question *q;
    uint64_t *chance;
    double part; /* of the candidates that are walked */
    uint64_t seed;
    int64_t candidates;
    int walked;
} walks;

static void check_candidate(walks *w, const wefti_degrees *d) {
    static const char *const links[] = {"coarse", "line", "work", "draft", "state"};
    wefti_joint_chain chain;
    weft_plan *plan;
    weft_prediction *x;
    wefti_text degrees = {0};
    const weft_status status = wefti_joint_simulate(&w->s, d, &plan, &x);
    if (wefti_joint_refuses(status)) {
        wefti_error_clear();
        return;
    }
    ASSERT_OK(status);
    ASSERT_OK(wefti_joint_chain_find(&w->s, d, &chain));
    for (int k = 0; k < WEFTI_JOINT_LINKS; k++) {
        if (chain.seconds[k] <= x->step_seconds * (1 + 1e-9) &&
            chain.bytes[k] <= (double)x->peak_bytes)
            continue;
        wefti_joint_degrees_text(d, &degrees);
        fail_msg("seed %llu: %s, batch %lld, fix '%s', %s on %s: the bound '%s' is %.9g s and %.0f "
                 "bytes, the plan takes %.9g s and %lld bytes",
                 (unsigned long long)w->seed, w->q->words, (long long)w->q->batch, w->q->fix,
                 degrees.data, w->q->machine, links[k], chain.seconds[k], chain.bytes[k],
                 x->step_seconds, (long long)x->peak_bytes);
        wefti_text_free(&degrees);
    }
    w->walked++;
    weft_plan_destroy(plan);
    weft_prediction_free(x);
}

static weft_status visit_candidate(void *context, const wefti_degrees *d) {
    walks *w = context;
    w->candidates++;
    if (uniform(w->chance) < w->part) check_candidate(w, d);
    return WEFT_OK;
}

static weft_status visit_split(void *context, const wefti_degrees *split) {
    walks *w = context;
    const int32_t fixed = w->s.j.problem->fix.value[WEFTI_JOINT_RECOMPUTE];
    const wefti_joint_visit visit = {w, visit_candidate};
    wefti_degrees d = *split;
    for (int32_t mode = 0; mode <= (int32_t)WEFT_RECOMPUTE_FULL; mode++) {
        if (fixed >= 0 && fixed != mode) continue;
        d.recompute = (weft_recompute)mode;
        WEFT_TRY(wefti_joint_schedules(&w->s.j, &d, &visit));
    }
    return WEFT_OK;
}

static int check_seed(uint64_t seed, double candidates) {
    uint64_t chance = 0x9E3779B97F4A7C15u * (seed + 1);
    question q;
    wefti_joint_answer none = {0};
    wefti_machine_model *machine;
    weft_plan *settings;
    random_question(&chance, &q);
    walks w = {.q = &q, .chance = &chance, .seed = seed};
    if (wefti_model_parse("random", q.machine, (int64_t)strlen(q.machine), &machine) < 0)
        fail_msg("%s: %s", weft_error_message(), q.machine);
    ASSERT_OK(weft_plan_create(q.devices, &settings));
    wefti_joint_problem p = {.source = {.context = &q.source,
                                        .model = joint_find_model,
                                        .config = &q.source.config,
                                        .batch = q.batch},
                             .settings = settings,
                             .machine = machine,
                             .fix = wefti_joint_free()};
    ASSERT_OK(wefti_joint_fix_add(q.fix, &p.fix));
    w.s = (wefti_joint_branch){.j = {.problem = &p, .devices = q.devices}, .out = &none};
    if (wefti_joint_begin(&w.s) >= 0) {
        const wefti_joint_visit visit = {&w, visit_split};
        ASSERT_OK(wefti_joint_splits(&w.s.j, &visit));
        w.part = candidates / (double)(w.candidates + 1);
        ASSERT_OK(wefti_joint_splits(&w.s.j, &visit));
    }
    wefti_joint_end(&w.s);
    weft_plan_destroy(settings);
    wefti_model_destroy(machine);
    joint_source_free(&q.source);
    return w.walked;
}

static void all_bounds_of_a_candidate_hold(void **state) {
    (void)state;
    const char *asked = getenv("WEFT_TEST_BOUNDS");
    int walked = 0;
    TEST_SEEDS(seed, 1, asked ? strtoull(asked, NULL, 10) : 12) {
        walked += check_seed(seed, 20);
    }
    if (asked) print_message("%d candidates\n", walked);
    assert_true(test_one_seed() || walked >= 60);
}

/* Seeds whose bounds were once too long. */
static void bounds_hold_where_they_did_not(void **state) {
    (void)state;
    static const uint64_t seeds[] = {
        2,   /* experts on unequal parts of sequences are split otherwise with more samples */
        34,  /* a model with experts is not split over a number that does not divide its heads */
        36,  /* results that needed transfers are not recomputed */
        48,  /* the head is more than a tenth of the products */
        131, /* products of a backward pass in two parts have other sizes */
        197, /* with more samples another size of a product is split */
        253, /* second chunks are done before the next microbatch comes */
    };
    enum { SEEDS = sizeof seeds / sizeof *seeds };
    for (int i = 0; i < SEEDS; i++) TEST_SEEDS(seed, seeds[i], 1) {
            (void)check_seed(seed, 20);
        }
}

/* ---- guesses ---- */

enum { ORDERS = 8 };
typedef struct orders {
    wefti_joint_branch s;
    wefti_degrees degrees[ORDERS];
    double guess[ORDERS], seconds[ORDERS];
    int count;
} orders;

static weft_status guess_and_walk(void *context, const wefti_degrees *d) {
    orders *x = context;
    wefti_joint_line_bound b;
    weft_prediction *walked;
    weft_plan *plan;
    assert_true(x->count < ORDERS);
    ASSERT_OK(wefti_joint_coarse_bound(&x->s, d, &b));
    ASSERT_OK(wefti_joint_simulate(&x->s, d, &plan, &walked));
    x->degrees[x->count] = *d;
    x->guess[x->count] = wefti_joint_guess_stages(&x->s, d, &b.about);
    x->seconds[x->count++] = walked->step_seconds;
    weft_plan_destroy(plan);
    weft_prediction_free(walked);
    return WEFT_OK;
}

/* Of one split, guesses put schedules and chunks in the order of their simulated steps. A
 * difference of less than a hundredth of the step does not count. */
static void guesses_tell_schedules(void **state) {
    (void)state;
    joint_source source = {.dtype = WEFT_BF16,
                           .config = {.family = WEFT_FAMILY_GPT2,
                                      .layers = 16,
                                      .hidden = 4096,
                                      .heads = 32,
                                      .context = 1024,
                                      .vocab = 1024}};
    wefti_joint_answer none = {0};
    wefti_machine_model *machine;
    weft_plan *settings;
    ASSERT_OK(weft_model_complete(&source.config));
    ASSERT_OK(wefti_model_find("hosts=1 gpus=4 gpu=a100-80g", &machine));
    ASSERT_OK(weft_plan_create(4, &settings));
    wefti_joint_problem p = {.source = {.context = &source,
                                        .model = joint_find_model,
                                        .config = &source.config,
                                        .batch = 8},
                             .settings = settings,
                             .machine = machine,
                             .fix = wefti_joint_free()};
    ASSERT_OK(wefti_joint_fix_add("pp=4 microbatches=8", &p.fix));
    orders x = {.s = {.j = {.problem = &p, .devices = 4}, .out = &none}};
    ASSERT_OK(wefti_joint_begin(&x.s));
    wefti_degrees d = wefti_degrees_none();
    d.stages = 4, d.microbatches = 8;
    ASSERT_OK(wefti_joint_orders(&x.s.j, &d, &(wefti_joint_visit){&x, guess_and_walk}));
    assert_int_equal(x.count, 6); /* 1f1b, 2 to 4 chunks, zero bubble with 1 and 2 */
    double least = INFINITY, found;
    for (int i = 0; i < x.count; i++) {
        least = wefti_smaller(least, x.guess[i]);
        for (int k = 0; k < x.count; k++)
            if (x.guess[i] < x.guess[k] && x.seconds[i] > 1.01 * x.seconds[k])
                fail_msg(
                    "schedule %d with %d chunks: guess %g, step %g; schedule %d with %d: %g, %g",
                    (int)x.degrees[i].schedule, x.degrees[i].chunks, x.guess[i], x.seconds[i],
                    (int)x.degrees[k].schedule, x.degrees[k].chunks, x.guess[k], x.seconds[k]);
    }
    wefti_joint_line_bound b;
    ASSERT_OK(wefti_joint_coarse_bound(&x.s, &d, &b));
    ASSERT_OK(wefti_joint_guess_least_stages(&x.s, &d, &b.about, &found));
    assert_true(found == least);
    wefti_joint_end(&x.s);
    weft_plan_destroy(settings);
    wefti_model_destroy(machine);
    joint_source_free(&source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_tell_schedules),
        cmocka_unit_test(bounds_hold_where_they_did_not),
        cmocka_unit_test(all_bounds_of_a_candidate_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
