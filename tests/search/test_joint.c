/* The joint search finds what trying all plans finds, and it finds the known answers of invented
 * machines. */
#include "models/model_fixture.h"

#include <math.h>
#include <unistd.h>

#include "base/philox.h"
#include "plan/plan.h"
#include "search/joint/joint.h"
#include "session/optimizer.h"
#include "verify.h"
#include "weft/search.h"

/* ---- a source of models ---- */

enum { MODELS = 64 };

typedef struct source {
    weft_model_config config;
    weft_dtype dtype;
    struct {
        int64_t samples, layers;
        weft_graph *graph;
        wefti_optimizer *optimizer;
    } made[MODELS];
    int count;
} source;

static weft_status find_model(void *context, int64_t samples, int64_t layers, weft_graph **graph,
                              const wefti_optimizer_plan **optimizer) {
    source *s = context;
    int i = 0;
    while (i < s->count && (s->made[i].samples != samples || s->made[i].layers != layers)) i++;
    if (i == s->count) {
        weft_model_config c = s->config;
        const weft_session_options o = weft_session_defaults();
        assert_true(i < MODELS);
        if (layers) c.layers = layers;
        s->made[i].samples = samples;
        s->made[i].layers = layers;
        ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, samples, 0, s->dtype, &s->made[i].graph));
        ASSERT_OK(wefti_graph_wrap(s->made[i].graph));
        ASSERT_OK(
            wefti_optimizer_create(&o.optimizer, false, s->made[i].graph, &s->made[i].optimizer));
        s->count++;
    }
    *graph = s->made[i].graph;
    *optimizer = wefti_optimizer_plan_of(s->made[i].optimizer);
    return WEFT_OK;
}

static void source_free(source *s) {
    for (int i = 0; i < s->count; i++) {
        wefti_optimizer_destroy(s->made[i].optimizer);
        weft_graph_destroy(s->made[i].graph);
    }
    s->count = 0;
}

static weft_model_config language(weft_family family, int64_t layers, int64_t hidden, int64_t vocab,
                                  int64_t context) {
    weft_model_config c = {.family = family, .layers = layers, .hidden = hidden, .vocab = vocab};
    c.heads = 8, c.ffn = 4 * hidden, c.context = context;
    if (is_rotary(family)) c.kv_heads = 8;
    if (family == WEFT_FAMILY_MIXTRAL) c.experts = 8, c.experts_per_token = 2;
    ASSERT_OK(weft_model_complete(&c));
    return c;
}

/* ---- questions ---- */

typedef struct question {
    const char *machine, *fix;
    int devices;
    int64_t batch, memory;
    int evaluations;
} question;

/* A clock that ticks when it is asked: since the last search began, and the limit, 0: none. */
static int64_t asked, ticks;
static int copies = 1;      /* of each microbatch */
static int first_of_second; /* block that begins the second stage; 0: the search decides */

static void set_stages(weft_plan *settings) {
    char name[16];
    if (!first_of_second) return;
    ASSERT_OK(weft_plan_stage(settings, "embed", 0));
    ASSERT_OK(weft_plan_stage(settings, "head", 1));
    for (int k = 0; k < 6; k++) {
        (void)snprintf(name, sizeof name, "h.%d", k);
        ASSERT_OK(weft_plan_stage(settings, name, k >= first_of_second));
    }
}

static double next_tick(void *clock) {
    (void)clock;
    return (double)asked++;
}

/* The verifier on each answer. The predicted peak is the largest arena of the programs of all
 * ranks. */
static void verify_answer(source *s, const question *q, const weft_plan *settings,
                          const wefti_joint_answer *a) {
    verify_question v = {.plan = a->plan, .settings = settings, .memory = q->memory};
    const int64_t micro =
        (a->plan->pipeline.stages > 1 ? a->plan->pipeline.microbatches : a->plan->accumulate) *
        a->plan->copies;
    weft_graph *graph;
    ASSERT_OK(find_model(s, q->batch / micro, 0, &graph, &v.optimizer));
    v.graph = graph;
    if (a->plan->devices <= VERIFY_RANKS)
        assert_int_equal(verify_plan(&v), a->prediction->peak_bytes);
}

/* The parts of the gap are not negative, and the plans with the least bound can be asked for. */
static void verify_gap(const wefti_joint_answer *a) {
    wefti_joint_fix fix = wefti_joint_free();
    if (a->plan_bound_seconds == 0) {
        assert_true(a->exhausted || a->cut);
        return;
    }
    assert_true(a->plan_bound_seconds <= a->prediction->step_seconds);
    assert_true(a->plan_bound_seconds >= a->lower_bound_seconds);
    assert_true((a->least != NULL) == (a->plan_bound_seconds > a->lower_bound_seconds));
    if (a->least) ASSERT_OK(wefti_joint_fix_add(a->least, &fix));
}

static weft_status ask(source *s, const question *q, wefti_joint_answer *out) {
    wefti_machine_model *machine;
    weft_plan *settings;
    ASSERT_OK(weft_plan_create(q->devices, &settings));
    ASSERT_OK(weft_plan_copies(settings, copies));
    set_stages(settings);
    if (wefti_model_find(q->machine, &machine) < 0) fail_msg("%s", weft_error_message());
    wefti_joint_problem p = {
        .source = {.context = s, .model = find_model, .config = &s->config, .batch = q->batch},
        .settings = settings,
        .machine = machine,
        .fix = wefti_joint_free(),
        .memory_bytes = q->memory,
        .evaluations = q->evaluations,
        .seconds = (double)ticks,
        .now = next_tick};
    asked = 0;
    ASSERT_OK(wefti_joint_fix_add(q->fix ? q->fix : "", &p.fix));
    const weft_status status = wefti_joint_search(&p, out);
    if (status >= 0) verify_answer(s, q, settings, out);
    if (status >= 0) verify_gap(out);
    wefti_model_destroy(machine);
    weft_plan_destroy(settings);
    return status;
}

static wefti_joint_answer answered(source *s, const question *q) {
    wefti_joint_answer a;
    if (ask(s, q, &a) < 0) fail_msg("%s: %s", q->fix ? q->fix : "", weft_error_message());
    return a;
}

static char machine_text[256];
/* intra, inter: bytes per second of a device. */
static const char *machine(int hosts, int devices, double intra, double inter) {
    snprintf(machine_text, sizeof machine_text,
             "hosts=%d gpus=%d gpu=a100-80g intra=%g,3e-6 inter=%g,8e-6", hosts, devices, intra,
             inter);
    return machine_text;
}

/* ---- against all plans ---- */

/* The least step over all constraints that name every dimension. */
static double least_of_all(source *m, const question *base) {
    static const char *const modes[] = {"none", "selective", "full"};
    static const char *const schedules[] = {"1f1b", "interleaved", "zero_bubble"};
    double least = INFINITY;
    for (int pp = 1; pp <= base->devices; pp *= 2)
        for (int tp = 1; tp * pp <= base->devices; tp *= 2)
            for (int micro = 1; micro <= base->batch; micro *= 2)
                for (int level = 0; level < 4; level++)
                    for (int r = 0; r < 3; r++)
                        for (int s = 0; s < (pp > 1 ? 3 : 1); s++) {
                            char fix[160];
                            snprintf(fix, sizeof fix,
                                     "pp=%d tp=%d cp=1 ep=1 microbatches=%d level=%d recompute=%s "
                                     "schedule=%s",
                                     pp, tp, micro, level, modes[r], schedules[s]);
                            question q = *base;
                            q.fix = fix;
                            q.evaluations = 64;
                            wefti_joint_answer a;
                            if (ask(m, &q, &a) < 0) continue;
                            if (a.prediction->step_seconds < least)
                                least = a.prediction->step_seconds;
                            wefti_joint_answer_free(&a);
                        }
    return least;
}

static void the_search_equals_trying_all(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        source m = {.dtype = WEFT_F32};
        m.config = language(k ? WEFT_FAMILY_LLAMA : WEFT_FAMILY_GPT2, 4, 64, 256, 32);
        const question q = {machine(2, 1, 1e9, k ? 1e8 : 2e10), "cp=1 ep=1", 2, 4, 0, 1000};
        wefti_joint_answer a = answered(&m, &q);
        const double least = least_of_all(&m, &q);
        assert_true(a.exhausted);
        if (!(a.prediction->step_seconds <= least * 1.0021))
            fail_msg("found %.9g s, but a plan takes %.9g s", a.prediction->step_seconds, least);
        if (!(a.lower_bound_seconds <= least * (1 + 1e-9)))
            fail_msg("bound %.9g s, but a plan takes %.9g s", a.lower_bound_seconds, least);
        wefti_joint_answer_free(&a);
        source_free(&m);
    }
}

static void an_answer_is_the_same_in_every_run(void **state) {
    (void)state;
    char *texts[2];
    double bounds[2];
    for (int k = 0; k < 2; k++) {
        source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
        wefti_joint_answer a =
            answered(&m, &(question){machine(2, 4, 1e10, 1e9), NULL, 8, 32, 0, 4});
        ASSERT_OK(weft_plan_print(a.plan, &texts[k]));
        bounds[k] = a.lower_bound_seconds;
        wefti_joint_answer_free(&a);
        source_free(&m);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_true(bounds[0] == bounds[1]);
    weft_text_free(texts[0]);
    weft_text_free(texts[1]);
}

/* The clock is asked while programs are built and walked too, so the limit may end a walk. The
 * answer is a plan that fits, and no plan of the space is below its bound. */
static void the_limit_of_time_is_kept(void **state) {
    (void)state;
    enum { LATE = 300 }; /* the splits that are visited after the limit, and a few more */
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    const question q = {machine(2, 4, 1e10, 1e9), NULL, 8, 32, 0, 40};
    ticks = INT32_MAX;
    wefti_joint_answer all = answered(&m, &q);
    const int64_t whole = asked;
    assert_false(all.cut);
    assert_true(whole > 2 * all.evaluations);
    int cut = 0;
    int32_t before = 0;
    for (ticks = 1; ticks < whole; ticks += 1 + ticks / 4) {
        wefti_joint_answer a = answered(&m, &q);
        if (asked > ticks + LATE)
            fail_msg("%lld ticks after a limit of %lld", (long long)asked, (long long)ticks);
        assert_true(a.cut || a.evaluations == all.evaluations);
        assert_true(a.evaluations >= before);
        assert_true(a.prediction->fits);
        assert_true(a.prediction->step_seconds >= all.prediction->step_seconds);
        assert_true(a.lower_bound_seconds <= all.prediction->step_seconds * (1 + 1e-9));
        before = a.evaluations;
        cut += a.cut;
        wefti_joint_answer_free(&a);
    }
    ticks = 0;
    assert_true(cut > 3);
    wefti_joint_answer_free(&all);
    source_free(&m);
}

static void more_is_never_slower(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 6, 128, 512, 64)};
    double before = INFINITY;
    for (int k = 0; k < 3; k++) { /* faster links */
        wefti_joint_answer a =
            answered(&m, &(question){machine(2, 2, 1e10, 1e8 * pow(10, k)), NULL, 4, 16, 0, 40});
        assert_true(a.prediction->step_seconds <= before * (1 + a.gap + 0.003));
        before = a.prediction->step_seconds;
        wefti_joint_answer_free(&a);
    }
    before = INFINITY;
    for (int64_t megabytes = 16; megabytes <= 64; megabytes *= 2) {
        const question q = {machine(2, 2, 1e10, 1e9), NULL, 4, 16, megabytes << 20, 40};
        wefti_joint_answer a;
        const weft_status status = ask(&m, &q, &a);
        if (status == WEFT_E_NOMEM) continue;
        ASSERT_OK(status);
        assert_true(a.prediction->peak_bytes <= megabytes << 20);
        assert_true(a.prediction->step_seconds <= before * (1 + a.gap + 0.003));
        before = a.prediction->step_seconds;
        wefti_joint_answer_free(&a);
    }
    assert_true(before < INFINITY);
    source_free(&m);
}

/* The answer names the plans with the least bound. A search of these alone has no lower one. */
static void the_gap_names_the_least_bound(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 6, 128, 256, 64)};
    question q = {machine(2, 2, 3e11, 1e10), NULL, 4, 8, 0, 2};
    wefti_joint_answer a = answered(&m, &q);
    assert_non_null(a.least);
    assert_true(a.plan_bound_seconds > a.lower_bound_seconds);
    q.fix = a.least;
    wefti_joint_answer named = answered(&m, &q);
    assert_true(named.lower_bound_seconds >= a.lower_bound_seconds * (1 - 1e-9));
    wefti_joint_answer_free(&named);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Whatever the question: more evaluations give no slower plan, and the printed degrees, as
 * constraints, give the plan itself. */
static void budgets_and_texts_hold(void **state) {
    (void)state;
    static const int budgets[] = {1, 5, 16, 40};
    const uint64_t seed = test_seed((uint64_t)getpid());
    for (uint64_t k = 0; k < 3; k++) {
        const uint32_t x = wefti_philox_u32(seed, 0, k);
        const int hosts = 2 + (int)(x % 2), each = 2 + (int)(x / 2 % 2);
        const int64_t layers = 2 + x / 4 % 5, batch = 2 + x / 32 % 11;
        source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, layers, 64, 256, 32)};
        double before = INFINITY;
        wefti_text text = {0};
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            const char *links = machine(hosts, each, 1e10, 1e9);
            wefti_joint_answer a =
                answered(&m, &(question){links, NULL, hosts * each, batch, 0, budgets[b]});
            const double step = a.prediction->step_seconds;
            if (step > before)
                fail_msg("seed %llu, question %llu: %d evaluations give %g s, fewer %g s",
                         (unsigned long long)seed, (unsigned long long)k, budgets[b], step, before);
            before = step;
            text.used = 0;
            wefti_joint_degrees_text(&a.degrees, &text);
            wefti_joint_answer_free(&a);
        }
        char *fix = wefti_text_take(&text);
        wefti_joint_answer again = answered(
            &m, &(question){machine(hosts, each, 1e10, 1e9), fix, hosts * each, batch, 0, 1});
        if (again.prediction->step_seconds != before)
            fail_msg("seed %llu, question %llu: '%s' gives %g s, not %g s",
                     (unsigned long long)seed, (unsigned long long)k, fix,
                     again.prediction->step_seconds, before);
        wefti_joint_answer_free(&again);
        wefti_free(fix);
        source_free(&m);
    }
}

/* The best plan takes 94 % of the memory. Guesses of bytes are not as exact as that, but the plan
 * is found. */
static void a_plan_may_take_nearly_all_memory(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16};
    m.config = language(WEFT_FAMILY_GPT2, 96, 12288, 51200, 2048);
    m.config.heads = m.config.kv_heads = 96, m.config.head_dim = 128;
    question q = {"8 hosts of 8 a100-80g", NULL, 64, 64, 0, 0};
    wefti_joint_answer a = answered(&m, &q);
    q.fix = "dp=1 cp=1 ep=1 tp=4 sp=0 pp=16 microbatches=64";
    wefti_joint_answer best = answered(&m, &q);
    const int64_t memory = best.prediction->device_bytes;
    assert_true((double)best.prediction->peak_bytes > 0.92 * (double)memory);
    if (!(a.prediction->step_seconds <= best.prediction->step_seconds * 1.002))
        fail_msg("found %.9g s, but a plan takes %.9g s", a.prediction->step_seconds,
                 best.prediction->step_seconds);
    wefti_joint_answer_free(&a);
    wefti_joint_answer_free(&best);
    source_free(&m);
}

/* ---- known answers ---- */

static void replicas_if_everything_fits(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_GPT2, 4, 256, 512, 128)};
    wefti_joint_answer a =
        answered(&m, &(question){machine(1, 4, 300e9, 50e9), NULL, 4, 256, 0, 24});
    assert_int_equal(a.degrees.data, 4);
    assert_int_equal(a.degrees.tensor * a.degrees.stages * a.degrees.context, 1);
    assert_int_equal(a.degrees.recompute, WEFT_RECOMPUTE_NONE);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Guesses put each of these far behind other plans. */
static void no_plain_plan_is_faster(void **state) {
    (void)state;
    static const char *const plain[] = {"dp=12",
                                        "pp=12",
                                        "pp=1",
                                        "tp=1",
                                        "dp=12 level=0 recompute=none",
                                        "dp=12 level=1 recompute=none",
                                        "dp=12 level=3 recompute=full",
                                        "tp=1 pp=12 recompute=none"};
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_LLAMA, 24, 32, 8000, 512)};
    m.config.heads = m.config.kv_heads = 2, m.config.head_dim = 16;
    question q = {
        "hosts=4 gpus=3 gpu=a100-80g intra=300e9,2e-6 inter=10e9,5e-6", NULL, 12, 24, 0, 0};
    wefti_joint_answer a = answered(&m, &q);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        q.fix = plain[i];
        wefti_joint_answer other = answered(&m, &q);
        if (!(a.prediction->step_seconds <= other.prediction->step_seconds * 1.002))
            fail_msg("found %.9g s, but %s takes %.9g s", a.prediction->step_seconds, plain[i],
                     other.prediction->step_seconds);
        wefti_joint_answer_free(&other);
    }
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Hosts that are slow to reach: stages lie on them, and no axis of the mesh crosses them. */
static void stages_across_slow_links(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_LLAMA, 8, 512, 512, 64)};
    wefti_joint_answer a = answered(&m, &(question){machine(2, 2, 300e9, 2e7), NULL, 4, 16, 0, 24});
    assert_true(a.degrees.stages >= 2);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Replicas of the whole model do not fit: tensors are split on the fast links within hosts, and
 * replicas lie on the slow ones (Megatron's layout). */
static void tensors_on_fast_links(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_GPT2, 4, 512, 512, 128)};
    const char *const fix = "level=0 cp=1 pp=1 recompute=none";
    const question whole = {machine(2, 4, 300e9, 2e9), "tp=1 level=0 cp=1 pp=1", 8, 64, 0, 4};
    wefti_joint_answer all = answered(&m, &whole);
    wefti_joint_answer a = answered(&m, &(question){machine(2, 4, 300e9, 2e9), fix, 8, 64,
                                                    all.prediction->peak_bytes * 6 / 10, 24});
    const wefti_mesh *mesh = &a.plan->mesh;
    assert_true(a.degrees.tensor == 2 || a.degrees.tensor == 4);
    assert_true(a.degrees.data >= 2);
    assert_string_equal(mesh->axis[mesh->axes - 1].name, "tp");
    wefti_joint_answer_free(&all);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Copies of a microbatch alternate, so no stage has to wait for its transfers. */
static void copies_of_the_job_are_kept(void **state) {
    (void)state;
    static const char *const fixes[] = {"tp=4 sp=0 level=0", "tp=4 sp=1", "tp=2 level=3",
                                        "tp=2 pp=2",         "dp=2 cp=2", "dp=4 level=2"};
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 2, 256, 512, 64)};
    static const char *const machines[] = {"hosts=1 gpus=4 gpu=a100-80g intra=5e9,3e-6",
                                           "hosts=1 gpus=4 gpu=a100-80g intra=300e9,3e-6"};
    copies = 2;
    for (int k = 0; k < 2; k++) {
        const question q = {machines[k], NULL, 4, 16, 0, 20};
        wefti_joint_answer best = answered(&m, &q);
        assert_int_equal(best.plan->copies, 2);
        for (size_t f = 0; f < sizeof fixes / sizeof *fixes; f++) {
            question fixed = q;
            fixed.fix = fixes[f];
            wefti_joint_answer a = answered(&m, &fixed);
            assert_int_equal(a.plan->copies, 2);
            assert_true(best.lower_bound_seconds <= a.prediction->step_seconds);
            wefti_joint_answer_free(&a);
        }
        wefti_joint_answer_free(&best);
    }
    copies = 1;
    source_free(&m);
}

/* The search keeps stages that the job sets, and says in which stage cells are. */
static void stages_of_the_job_are_kept(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 6, 64, 512, 32)};
    const question q = {machine(2, 1, 1e9, 1e9), "pp=2 microbatches=4", 2, 8, 0, 20};
    for (first_of_second = 1; first_of_second < 6; first_of_second++) {
        wefti_joint_answer a = answered(&m, &q);
        for (int k = 0; k < a.cells.count; k++) {
            const weft_cell_report *cell = &a.cells.cells[k];
            if (!strcmp(cell->name, "head")) assert_int_equal(cell->first_stage, 1);
            if (!strcmp(cell->name, "embed")) assert_int_equal(cell->last_stage, 0);
        }
        for (int k = 0; k < 6; k++) {
            char name[16];
            (void)snprintf(name, sizeof name, "h.%d", k);
            assert_int_equal(wefti_plan_stage(a.plan, name), k >= first_of_second);
        }
        assert_true(a.lower_bound_seconds <= a.prediction->step_seconds);
        wefti_joint_answer_free(&a);
    }
    first_of_second = 0;
    source_free(&m);
}

static void experts_are_shared_out(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_MIXTRAL, 4, 128, 256, 64)};
    wefti_joint_answer all =
        answered(&m, &(question){machine(1, 8, 300e9, 5e9), "ep=1 tp=1 pp=1 level=0", 8, 64, 0, 8});
    wefti_joint_answer a =
        answered(&m, &(question){machine(1, 8, 300e9, 5e9), "tp=1 pp=1 cp=1 level=0", 8, 64,
                                 all.prediction->peak_bytes * 2 / 3, 24});
    assert_true(a.degrees.expert > 1);
    wefti_joint_answer_free(&all);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Device counts that are no powers of two, on hosts of 8. */
static void uneven_machines_have_plans(void **state) {
    (void)state;
    static const int devices[] = {6, 12, 24};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
        const question q = {machine(3, 8, 1e11, 1e10), NULL, devices[i], 48, 0, 4};
        wefti_joint_answer a = answered(&m, &q);
        const wefti_degrees *d = &a.degrees;
        assert_int_equal(d->data * d->expert * d->context * d->tensor * d->stages, devices[i]);
        assert_true(a.prediction->step_seconds >= a.lower_bound_seconds * (1 - 1e-9));
        wefti_joint_answer_free(&a);
        source_free(&m);
    }
}

/* The cells of an answer: all calls are in one of them, and the plan's choice is the first. */
static void cells_are_described(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    wefti_joint_answer a =
        answered(&m, &(question){machine(2, 4, 1e11, 1e10), "pp=2 tp=2", 8, 32, 0, 4});
    int calls = 0, blocks = 0;
    for (int i = 0; i < a.cells.count; i++) {
        const weft_cell_report *c = &a.cells.cells[i];
        calls += c->calls;
        if (strstr(c->name, "*")) {
            blocks += c->calls;
            assert_non_null(strstr(c->splits, "tp"));
            assert_true(c->choice_count >= 3);
            assert_true(c->choices[0].forward_seconds > 0);
        }
        assert_string_equal(c->choices[0].name, "plan");
        assert_true(c->first_stage >= 0 && c->last_stage < 2);
    }
    assert_int_equal(blocks, 6);
    assert_true(calls > 6);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* A plain plan that fits comes first, though most splits of the experts do not fit. The batch is no
 * multiple of the devices. */
static void the_first_walk_is_a_plan_that_fits(void **state) {
    (void)state;
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_MIXTRAL, 5, 64, 256, 64)};
    m.config.experts = 32;
    wefti_joint_answer a =
        answered(&m, &(question){machine(2, 8, 300e9, 25e9), NULL, 16, 24, (int64_t)36 << 20, 1});
    assert_int_equal(a.evaluations, 1);
    assert_int_equal(a.degrees.context, 1);
    /* The limit leaves room for a change of guesses. */
    if (a.programs > 96) fail_msg("%lld programs", (long long)a.programs);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* Two plans never share one text, and each text is a constraint for its own plan. */
static void texts_of_degrees_differ(void **state) {
    (void)state;
    static const int8_t orders[][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {1, 2, 3, 0}};
    static const int inner[] = {3, 2, 0};
    for (int k = 0; k < 3; k++) {
        wefti_degrees d = wefti_degrees_none();
        wefti_joint_fix fix = wefti_joint_free();
        wefti_text text = {0};
        d.data = d.context = d.tensor = 2;
        memcpy(d.order, orders[k], sizeof d.order);
        wefti_joint_degrees_text(&d, &text);
        char *words = wefti_text_take(&text);
        ASSERT_OK(wefti_joint_fix_add(words, &fix));
        assert_int_equal(fix.value[WEFTI_JOINT_INNER], inner[k]);
        wefti_free(words);
    }
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_LLAMA, 4, 64, 256, 32)};
    wefti_joint_answer a =
        answered(&m, &(question){machine(2, 2, 1e11, 1e10), "dp=2 tp=2 inner=dp", 4, 16, 0, 2});
    assert_int_equal(a.degrees.order[3], 0);
    wefti_joint_answer_free(&a);
    source_free(&m);
}

/* ---- constraints and limits ---- */

static void constraints_are_kept(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    wefti_joint_answer free =
        answered(&m, &(question){machine(2, 4, 1e11, 1e10), NULL, 8, 32, 0, 16});
    wefti_joint_answer a = answered(
        &m, &(question){machine(2, 4, 1e11, 1e10), "pp=2, tp=2 recompute=full", 8, 32, 0, 16});
    assert_int_equal(a.degrees.stages, 2);
    assert_int_equal(a.degrees.tensor, 2);
    assert_int_equal(a.degrees.recompute, WEFT_RECOMPUTE_FULL);
    assert_int_equal(a.plan->pipeline.stages, 2);
    assert_true(a.prediction->step_seconds >= free.lower_bound_seconds);
    /* The constraints that the answer names give the answer. */
    wefti_text text = {0};
    wefti_joint_degrees_text(&free.degrees, &text);
    char *fix = wefti_text_take(&text);
    wefti_joint_answer again =
        answered(&m, &(question){machine(2, 4, 1e11, 1e10), fix, 8, 32, 0, 8});
    assert_true(again.prediction->step_seconds <= free.prediction->step_seconds);
    wefti_free(fix);
    wefti_joint_answer_free(&free);
    wefti_joint_answer_free(&a);
    wefti_joint_answer_free(&again);
    source_free(&m);
}

static void refuses(const char *fix, int devices, const char *first, const char *second) {
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 4, 64, 256, 32)};
    wefti_joint_answer a;
    const weft_status status =
        ask(&m, &(question){machine(1, 8, 1e11, 1e10), fix, devices, 8, 0, 2}, &a);
    if (status != WEFT_E_ARG) fail_msg("%s: status %d", fix, (int)status);
    if (!strstr(weft_error_message(), first) || !strstr(weft_error_message(), second))
        fail_msg("%s: %s", fix, weft_error_message());
    source_free(&m);
}

static void contradictions_are_named(void **state) {
    (void)state;
    refuses("pp=4 tp=4", 8, "pp=4", "tp=4");
    refuses("tp=3", 8, "tp=3", "8 devices");
    refuses("tp=3,pp=5", 8, "tp=3", "pp=5");
    refuses("schedule=1f1b chunks=2", 8, "chunks=2", "schedule=1f1b");
    refuses("microbatches=3", 8, "microbatches=3", "8 samples");
    refuses("sp=1 tp=1", 8, "sp=1", "tp=1");
    refuses("level=3 dp=1 ep=1 cp=1", 8, "level=3", "dp=1");
    refuses("level=1 tp=4 pp=2", 8, "level=1", "tp=4 pp=2");
    /* With values that would be right, and the reason where a check knows one. */
    refuses("pp=4 microbatches=2", 8, "pp=4 and microbatches=2",
            "pp=4: microbatches=4, microbatches=8");
    refuses("microbatches=2 pp=4 sp=0", 8, "pp=4 and microbatches=2", "microbatches=2: pp=1, pp=2");
    refuses("level=3 dp=1 tp=4", 4, "tp=4 and level=3", "tp=4: level=0");
    refuses("level=3 dp=1 tp=4", 4, "tp=4 and level=3", "level=3: tp=1, tp=2");
    refuses("ep=2", 8, "ep=2 and", "gpt2");
    refuses("ep=2", 8, "experts", " ep=1");
    refuses("shard=3 level=1", 4, "shard=3 and", "shard=0, shard=1, shard=2, shard=4");
    refuses("shard=3 level=1", 4, "shard_size = 3", "4 devices");
    refuses("dp=2 tp=2 cp=1 pp=1", 8, "without", "dp=2 or cp=1 or tp=2 or pp=1");
    wefti_joint_fix fix = wefti_joint_free();
    assert_int_equal(wefti_joint_fix_add("pp=2 pp=4", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("xx=2", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("tp=", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("tp=0", &fix), WEFT_E_ARG);
    ASSERT_FAILS(WEFT_E_ARG, "'some'|none|selective|full",
                 wefti_joint_fix_add("recompute=some", &fix));
}

static void what_does_not_fit_is_said(void **state) {
    (void)state;
    source m = {.dtype = WEFT_F32, .config = language(WEFT_FAMILY_GPT2, 4, 64, 256, 32)};
    wefti_joint_answer a;
    assert_int_equal(ask(&m, &(question){machine(1, 2, 1e11, 1e10), NULL, 2, 4, 100000, 8}, &a),
                     WEFT_E_NOMEM);
    assert_non_null(strstr(weft_error_message(), "rank"));
    assert_non_null(strstr(weft_error_message(), "bytes"));
    /* The instant: a step of the program. */
    assert_non_null(strstr(weft_error_message(), "at once in "));
    source_free(&m);
}

/* Splits of a mixture without a capacity factor whose guesses fit and whose programs do not: the
 * effort ends before one is walked. What is named needs little more than the least plan. */
static void the_least_need_is_said(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    source m = {.dtype = WEFT_BF16, .config = language(WEFT_FAMILY_MIXTRAL, 4, 512, 1024, 2048)};
    m.config.heads = m.config.kv_heads = 8, m.config.ffn = 256;
    m.config.experts = 64, m.config.experts_per_token = 4;
    ASSERT_OK(weft_model_complete(&m.config));
    const question q = {machine(4, 8, 4e11, 2e10), NULL, 32, 32, 150 * MIB, 0};
    wefti_joint_answer a;
    assert_int_equal(ask(&m, &q, &a), WEFT_E_NOMEM);
    const char *more = strstr(weft_error_message(), " bytes) more");
    assert_non_null(more);
    while (more[-1] != '(') more--;
    if (strtoll(more, NULL, 10) > 300 * MIB) fail_msg("%s", weft_error_message());
    source_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_equals_trying_all),
        cmocka_unit_test(an_answer_is_the_same_in_every_run),
        cmocka_unit_test(the_limit_of_time_is_kept),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(the_gap_names_the_least_bound),
        cmocka_unit_test(budgets_and_texts_hold),
        cmocka_unit_test(a_plan_may_take_nearly_all_memory),
        cmocka_unit_test(replicas_if_everything_fits),
        cmocka_unit_test(no_plain_plan_is_faster),
        cmocka_unit_test(stages_across_slow_links),
        cmocka_unit_test(tensors_on_fast_links),
        cmocka_unit_test(copies_of_the_job_are_kept),
        cmocka_unit_test(stages_of_the_job_are_kept),
        cmocka_unit_test(experts_are_shared_out),
        cmocka_unit_test(uneven_machines_have_plans),
        cmocka_unit_test(cells_are_described),
        cmocka_unit_test(the_first_walk_is_a_plan_that_fits),
        cmocka_unit_test(texts_of_degrees_differ),
        cmocka_unit_test(constraints_are_kept),
        cmocka_unit_test(contradictions_are_named),
        cmocka_unit_test(what_does_not_fit_is_said),
        cmocka_unit_test(the_least_need_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
