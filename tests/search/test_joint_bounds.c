/* The bounds of the joint search hold in the simulator. A candidate's simulated step and peak are
 * not below its own bounds, nor below those of any set that it belongs to. */
#include "joint_models.h"

#include <stdio.h>

static int pick(uint64_t *state, int count) {
    return (int)(uniform(state) * count) % count;
}

/* A divisor of `n`, at most `most`. */
static int divisor(uint64_t *state, int n, int most) {
    int found[64], count = 0;
    for (int d = 1; d <= n && d <= most && count < 64; d++)
        if (n % d == 0) found[count++] = d;
    return found[pick(state, count)];
}

/* ---- random questions ---- */

typedef struct problem {
    joint_source source;
    joint_question question;
    char machine[256], words[16][32], fix[512];
    int count;
} problem;

static void add_word(problem *p, const char *name, int value) {
    (void)snprintf(p->words[p->count++], sizeof p->words[0], "%s=%d", name, value);
}
static void add_choice(problem *p, const char *name, const char *value) {
    (void)snprintf(p->words[p->count++], sizeof p->words[0], "%s=%s", name, value);
}

static void random_model(uint64_t *s, problem *p) {
    static const weft_family families[] = {WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA, WEFT_FAMILY_MIXTRAL,
                                           WEFT_FAMILY_BERT};
    weft_model_config *c = &p->source.config;
    p->source.dtype = pick(s, 2) ? WEFT_BF16 : WEFT_F32;
    *c = (weft_model_config){.family = families[pick(s, 4)], .layers = 4 + pick(s, 8)};
    c->hidden = 64 << pick(s, 3);
    c->vocab = pick(s, 3) ? 256 << pick(s, 3) : 250 + pick(s, 700);
    c->heads = 8, c->ffn = 4 * c->hidden, c->context = 32 << pick(s, 3);
    if (is_rotary(c->family)) c->kv_heads = pick(s, 2) ? 8 : 2;
    if (c->family == WEFT_FAMILY_MIXTRAL) c->experts = 8, c->experts_per_token = 2;
    ASSERT_OK(weft_model_complete(c));
}

/* How the devices are divided. Returns the replicas. */
static int random_split(uint64_t *s, problem *p) {
    const bool experts = p->source.config.family == WEFT_FAMILY_MIXTRAL;
    const int devices = p->question.devices;
    const int pp = pick(s, 2) ? 1 : divisor(s, devices, 4);
    const int tp = pick(s, 3) ? divisor(s, devices / pp, 8) : 1;
    const int cp = pick(s, 3) ? 1 : divisor(s, devices / pp / tp, 4);
    const int ep = experts ? divisor(s, devices / pp / tp / cp, 8) : 1;
    const int dp = devices / pp / tp / cp / ep;
    add_word(p, "pp", pp);
    add_word(p, "tp", tp);
    add_word(p, "cp", cp);
    add_word(p, "ep", ep);
    add_word(p, "dp", dp);
    if (tp > 1) add_word(p, "sp", pick(s, 2));
    add_word(p, "level", dp * cp * ep > 1 ? pick(s, 4) : 0);
    add_word(p, "shard", pick(s, 3) || dp == 1 ? 0 : divisor(s, dp, 8));
    return dp * ep;
}

static void random_schedule(uint64_t *s, problem *p, int replicas) {
    static const char *const modes[] = {"none", "selective", "full"};
    static const char *const schedules[] = {"1f1b", "gpipe", "interleaved", "zero_bubble"};
    static const char *const axes[] = {"dp", "ep", "cp", "tp"};
    const bool stages = strcmp(p->words[0], "pp=1") != 0;
    const int micro = 1 << pick(s, 5);
    add_word(p, "microbatches", micro);
    p->question.batch = (int64_t)micro * replicas * (1 + pick(s, 3));
    if (pick(s, 8) == 0) p->question.batch += micro; /* replicas with unequal numbers of samples */
    if (stages) {
        const int schedule = pick(s, 4);
        add_choice(p, "schedule", schedules[schedule]);
        add_word(p, "chunks", schedule < 2 ? 1 : schedule == 2 ? 2 + pick(s, 2) : 1 + pick(s, 2));
    }
    add_choice(p, "recompute", modes[pick(s, 3)]);
    if (pick(s, 3) == 0) add_choice(p, "inner", axes[pick(s, 4)]);
}

static void random_problem(uint64_t *s, problem *p) {
    static const int devices[] = {2, 4, 4, 6, 8, 8, 12, 16};
    *p = (problem){.count = 0};
    random_model(s, p);
    p->question.devices = devices[pick(s, 8)];
    const int hosts = divisor(s, p->question.devices, 4);
    (void)snprintf(p->machine, sizeof p->machine,
                   "hosts=%d gpus=%d gpu=a100-80g intra=%g,3e-6 inter=%g,8e-6", hosts,
                   p->question.devices / hosts, 1e9 * (1 + pick(s, 200)),
                   pow(10, 8 + pick(s, 3)) * (1 + pick(s, 20)));
    p->question.machine = p->machine;
    p->question.threshold = (int64_t[]){0, 0, 1 << 10, 1 << 14, 1 << 16}[pick(s, 5)];
    random_schedule(s, p, random_split(s, p));
    p->question.fix = p->fix;
}

static bool has_word(const problem *p, const char *word) {
    bool has = false;
    for (int i = 0; i < p->count; i++) has |= !strcmp(p->words[i], word);
    return has;
}

/* Whether a plan keeps this word. Without it, the plan may be outside of the searched space. The
 * space leaves out some shards, and selective recomputation on replicas of one device a stage. Of
 * several orders of axes with the same links, it has one. */
static bool is_kept(const problem *p, const char *word) {
    const bool alone = has_word(p, "tp=1") && has_word(p, "cp=1") && has_word(p, "ep=1");
    return !strncmp(word, "inner=", 6) ||
           (!strncmp(word, "shard=", 6) && strcmp(word, "shard=0") != 0) ||
           (alone && !strcmp(word, "recompute=selective"));
}

/* All words; or those that chance leaves. */
static void write_fix(problem *p, uint64_t *chance) {
    size_t used = 0;
    const int parts = chance ? 2 + pick(chance, 6) : 1;
    for (int i = 0; i < p->count; i++)
        if (!chance || pick(chance, parts) || is_kept(p, p->words[i]))
            used += (size_t)snprintf(p->fix + used, sizeof p->fix - used, "%s ", p->words[i]);
}

/* ---- the properties ---- */

static void check_own(const problem *p, const wefti_joint_answer *a) {
    const double step = a->prediction->step_seconds;
    if (!(a->own_bound_seconds > 0 && a->own_bound_seconds <= step * (1 + 1e-9)))
        fail_msg("%s on %s: bound %.9g s, simulated %.9g s", p->fix, p->machine,
                 a->own_bound_seconds, step);
    if (p->question.by_bound && !(a->own_bound_bytes > 0)) fail_msg("%s: no bytes", p->fix);
    if (!(a->own_bound_bytes <= (double)a->prediction->peak_bytes))
        fail_msg("%s: bound %.0f bytes, peak %lld bytes", p->fix, a->own_bound_bytes,
                 (long long)a->prediction->peak_bytes);
    if (!(a->lower_bound_seconds <= step * (1 + 1e-9) && a->gap >= -1e-9))
        fail_msg("%s: lower bound %g, step %g", p->fix, a->lower_bound_seconds, step);
}

/* With fewer constraints, and perhaps just the memory that the plan needs. */
static bool check_set(uint64_t *s, problem *p, const char *own, double step, int64_t peak) {
    wefti_joint_answer a;
    p->question.by_bound = pick(s, 2) == 0;
    p->question.evaluations = 1 + pick(s, 4);
    if (pick(s, 2)) p->question.memory = peak;
    write_fix(p, s);
    const weft_status status = joint_ask(&p->source, &p->question, &a);
    if (status == WEFT_E_NOMEM) return false; /* not found within its evaluations */
    if (status < 0) fail_msg("%s: %s", p->fix, weft_error_message());
    if (!(a.lower_bound_seconds <= step * (1 + 1e-9)))
        fail_msg("%s (%s) with %lld bytes: lower bound %.9g s, but a plan takes %.9g s: %s", p->fix,
                 p->machine, (long long)p->question.memory, a.lower_bound_seconds, step, own);
    wefti_joint_answer_free(&a);
    return true;
}

typedef struct tally {
    int answers, sets;
} tally;

static void check_seed(uint64_t seed, tally *count) {
    uint64_t s = 0x9E3779B97F4A7C15u * (seed + 1);
    problem p;
    wefti_joint_answer a;
    char own[sizeof p.fix];
    random_problem(&s, &p);
    p.question.evaluations = 3;
    p.question.by_bound = seed % 2 == 0;
    write_fix(&p, NULL);
    memcpy(own, p.fix, sizeof own);
    const weft_status status = joint_ask(&p.source, &p.question, &a);
    /* The schedule or the split may not exist for the numbers. */
    if (status < 0 && status != WEFT_E_ARG) fail_msg("%s: %s", p.fix, weft_error_message());
    if (status >= 0) {
        const double step = a.prediction->step_seconds;
        const int64_t peak = a.prediction->peak_bytes;
        check_own(&p, &a);
        wefti_joint_answer_free(&a);
        count->answers++;
        count->sets += check_set(&s, &p, own, step, peak);
    }
    joint_source_free(&p.source);
}

static void bounds_hold_in_the_simulator(void **state) {
    (void)state;
    const char *asked = getenv("WEFT_TEST_BOUNDS");
    tally count = {0, 0};
    TEST_SEEDS(seed, 1, asked ? strtoull(asked, NULL, 10) : 60) {
        check_seed(seed, &count);
    }
    if (asked) print_message("%d candidates, %d sets\n", count.answers, count.sets);
    assert_true(test_one_seed() || (count.answers >= 20 && count.sets >= 15));
}

/* Seeds whose bounds were once too long. */
static void bounds_hold_where_they_did_not(void **state) {
    (void)state;
    static const uint64_t seeds[] = {
        885,  /* only programs of one replica recomputed small products */
        981,  /* experts on split sequences have other transfers on two devices */
        1100, /* with experts, full recomputation may save transfers */
        1156, /* blocks pack unlike numbers of messages in the update */
        1730, /* several messages that are posted together stay in flight */
        1739, /* recomputation keeps results that needed transfers */
        2074, /* as 981, with tensor parallelism */
    };
    tally count = {0, 0};
    for (int i = 0; i < 7; i++) TEST_SEEDS(seed, seeds[i], 1) {
            check_seed(seed, &count);
        }
    assert_true(test_one_seed() || count.answers == 7);
}

/* Small models of replicas whose hosts are slow to reach: transfers between them take most of the
 * step, so a bound that counts a few bytes too many is longer than it. */
static void transfers_between_replicas_are_bounded(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 10) {
        uint64_t s = 0x9E3779B97F4A7C15u * (seed + 1);
        const int level = seed % 2 ? 0 : 1 + pick(&s, 3), stages = seed % 3 == 0 ? 2 : 1;
        const int tensor = seed % 5 == 0 ? 2 : 1, micro = stages * (seed % 4 ? 1 : 4);
        problem p = {.count = 0};
        wefti_joint_answer a;
        random_model(&s, &p);
        p.source.config.family = WEFT_FAMILY_LLAMA;
        p.source.config.kv_heads = 8, p.source.config.experts = 0;
        p.source.config.experts_per_token = 0;
        p.question = (joint_question){.machine = p.machine, .fix = p.fix, .by_bound = true};
        p.question.devices = 4 * stages * tensor, p.question.batch = 4 * micro;
        p.question.evaluations = 3;
        p.question.threshold = pick(&s, 2) ? 0 : 1 << 14;
        (void)snprintf(p.machine, sizeof p.machine,
                       "hosts=%d gpus=%d gpu=a100-80g intra=1e11,1e-6 inter=%g,1e-6", 4 * stages,
                       tensor, 1e7 * (1 + pick(&s, 9)));
        (void)snprintf(p.fix, sizeof p.fix,
                       "pp=%d tp=%d cp=1 ep=1 dp=4 microbatches=%d level=%d shard=0 schedule=1f1b "
                       "inner=tp",
                       stages, tensor, micro, level);
        if (joint_ask(&p.source, &p.question, &a) < 0)
            fail_msg("%s: %s", p.fix, weft_error_message());
        check_own(&p, &a);
        const double step = a.prediction->step_seconds;
        /* At level 0 without stages, kernels and these transfers make up the step: tensors are
         * split within hosts. Then a device has half the gradients, so kernels may take long. */
        const double transfers = step - a.prediction->compute_seconds;
        if (level == 0 && stages == 1 && !(a.own_bound_seconds > 0.8 * transfers))
            fail_msg("%s: bound %g s, simulated %g s, of these %g s transfers", p.fix,
                     a.own_bound_seconds, step, transfers);
        wefti_joint_answer_free(&a);
        joint_source_free(&p.source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_between_replicas_are_bounded),
        cmocka_unit_test(bounds_hold_in_the_simulator),
        cmocka_unit_test(bounds_hold_where_they_did_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
