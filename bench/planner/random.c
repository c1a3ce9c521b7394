/* Random questions, whose answers must hold against every other answer to them.
 *
 *   bench/planner WEFT random [--seed S] [--from F] [--count N] [--sample K] [--seconds T]
 *                        [--cpu C]
 *
 * A question is a small model of a random family with odd sizes, on 1 to 4 hosts of 1 to 6 devices
 * with random links. Each question is asked several times. First it has no constraints. Then it has
 * one: a degree, the level, the recomputation or the microbatches. Then it has all degrees of a
 * neighbour of the answer, of which one differs. Then it has what the answer prints, and then other
 * budgets. At last it has a part of the memory that the answer takes. If no plan fits there, it is
 * asked with the constraints too. --sample draws K of the constraints and neighbours. For every
 * second question, one of the last three kinds is in place of one of them, with one line of print
 * or one budget. No question begins once the answers have taken C seconds of processor time.
 *
 * These faults are counted:
 *
 *   beaten    A constraint or a neighbour gives a plan that is over 0.2 % faster than the answer.
 *   broken    A plan is faster than the lower bound.
 *   refused   The question has no answer, but a constraint has one.
 *   unlike    Printed degrees or alternatives give another number when they are typed back.
 *   worse     A larger budget gives a slower plan.
 *   over      A plan takes more memory than there is.
 *   failed    The command ends in another way: by a signal, or because T seconds are over.
 *
 * One JSON object for each of these, and one with the counts: of `count` questions, `questions`
 * were asked and `answered` had a plan. The exit code is 1 if none had, or if the counts are beyond
 * the limits of `within_limits`. The same seed asks the same questions, and --from begins with a
 * later one of them. */
#include "planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/philox.h"

enum { TEXT = 512, FIXES = 512, ALTERNATIVES = 3 };
static const double tolerance = 0.002, rounding = 1e-9;

typedef struct random_run {
    const char *weft;
    uint64_t seed, drawn;
    long from, count, sample;
    unsigned limit;
    double cpu, cpu_limit; /* seconds of the processor; limit 0: none */
    int asked, beaten, far_beaten, broken, refused, unlike, worse, over, failed;
    double ratios[4096]; /* best found / answer, of each question */
} random_run;

/* ---- questions ---- */

static uint64_t draw(random_run *r, uint64_t below) {
    const uint32_t x = wefti_philox_u32(r->seed, 0, r->drawn++);
    return below ? x % below : 0;
}
static long among(random_run *r, const long *values, size_t count) {
    return values[draw(r, count)];
}
#define AMONG(r, ...)                                                                              \
    among(r, (const long[]){__VA_ARGS__}, sizeof((const long[]){__VA_ARGS__}) / sizeof(long))

typedef struct random_question {
    char words[TEXT], machine[TEXT];
    long devices, batch, layers, experts, hosts;
} random_question;

static void draw_model(random_run *r, random_question *q) {
    static const char *const families[] = {"gpt2",    "gpt2", "llama", "llama", "gpt2-moe",
                                           "mixtral", "bert", "vit",   "mlp"};
    const char *family = families[draw(r, sizeof families / sizeof *families)];
    const long heads = AMONG(r, 1, 2, 3, 4, 6, 8, 12), width = AMONG(r, 8, 16, 20, 64, 128);
    q->layers = AMONG(r, 1, 2, 3, 4, 6, 8, 12, 24);
    q->batch = AMONG(r, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64, 96);
    q->experts =
        !strcmp(family, "gpt2-moe") || !strcmp(family, "mixtral") ? AMONG(r, 2, 4, 6, 8) : 0;
    int at = snprintf(q->words, TEXT,
                      "model.family=%s model.layers=%ld model.hidden=%ld train.batch=%ld", family,
                      q->layers, heads * width, q->batch);
#define ADD(...) at += snprintf(q->words + at, TEXT - (size_t)at, __VA_ARGS__)
    if (!strcmp(family, "mlp")) {
        ADD(" model.image=[1,28,28] model.classes=10");
        return;
    }
    ADD(" model.heads=%ld", heads);
    if (!strcmp(family, "vit"))
        ADD(" model.image=[3,32,32] model.patch=%ld model.classes=%ld", AMONG(r, 4, 8, 16),
            AMONG(r, 10, 1000));
    else
        ADD(" model.context=%ld model.vocab=%ld", AMONG(r, 16, 24, 32, 128, 512),
            AMONG(r, 64, 500, 1000, 8000, 50257));
    if (q->experts) ADD(" model.experts=%ld", q->experts);
    if (draw(r, 3) == 0) ADD(" train.clip=0");
#undef ADD
}

static void draw_machine(random_run *r, random_question *q) {
    static const char *const devices[] = {"a100-80g", "h100-80g", "a100-40g"};
    static const char *const within[] = {"300e9,2e-6", "30e9,2e-6", "900e9,3e-6", "12e9,1e-5"};
    static const char *const between[] = {"10e9,5e-6", "1e9,5e-6", "50e9,3e-6", "100e6,5e-5"};
    const long per_host = AMONG(r, 1, 2, 3, 4, 6);
    q->hosts = AMONG(r, 1, 2, 3, 4);
    q->devices = q->hosts * per_host;
    (void)snprintf(q->machine, TEXT, "hosts=%ld gpus=%ld gpu=%s intra=%s inter=%s", q->hosts,
                   per_host, devices[draw(r, 3)], within[draw(r, 4)], between[draw(r, 4)]);
}

/* ---- asking ---- */

typedef struct random_answer {
    double seconds, bound; /* seconds 0: no plan fits; negative: it failed */
    double bytes;          /* of the device that needs most */
    char degrees[TEXT], alternatives[ALTERNATIVES][TEXT];
    double alternative_seconds[ALTERNATIVES];
} random_answer;

static void read_alternatives(const wefti_json *list, random_answer *out) {
    int n = 0;
    if (!list) return;
    WEFTI_JSON_EACH(item, list) {
        const wefti_json *text = planner_member(item, "constraints");
        if (n == ALTERNATIVES || !text) return;
        (void)snprintf(out->alternatives[n], TEXT, "%s", text->as.text);
        out->alternative_seconds[n++] = planner_number(item, "seconds");
    }
}

static void tell(const random_question *q, const char *what, const char *fix, double answer,
                 double other) {
    printf(
        "{\"%s\": \"%s\", \"machine\": \"%s\", \"fix\": \"%s\", \"answer\": %.9g, \"other\": %.9g, "
        "\"ratio\": %.4f}\n",
        what, q->words, q->machine, fix, answer, other, answer > 0 ? other / answer : 0);
    (void)fflush(stdout);
}

static void ask(random_run *r, const random_question *q, const char *fix, const char *more,
                random_answer *out) {
    char words[2 * TEXT];
    planner_answer a = {0};
    wefti_arena *arena;
    *out = (random_answer){.seconds = -1};
    (void)snprintf(words, sizeof words, "%s %s", q->words, more);
    const planner_question question = {"random", words, q->machine, fix, NULL, NULL};
    if (wefti_arena_create(&arena) < 0) return;
    if (planner_ask(r->weft, &question, fix, r->limit, &a)) {
        const wefti_json *x = planner_parse(arena, &a);
        const wefti_json *degrees = x ? planner_member(x, "degrees") : NULL;
        if (a.code == 1) out->seconds = 0; /* no plan, or none with this constraint */
        if (degrees) {
            out->seconds = planner_number(x, "step_seconds");
            out->bound = planner_number(x, "lower_bound_seconds");
            out->bytes = planner_number(x, "predicted_peak_bytes");
            (void)snprintf(out->degrees, TEXT, "%s", degrees->as.text);
            read_alternatives(planner_member(x, "alternatives"), out);
            if (out->bytes > planner_number(x, "device_memory_bytes")) {
                r->over++;
                tell(q, "over", fix ? fix : more, planner_number(x, "device_memory_bytes"),
                     out->bytes);
            }
        }
        r->cpu += a.cpu_seconds;
    }
    free(a.text);
    wefti_arena_destroy(arena);
}

/* ---- constraints ---- */

typedef struct random_fixes {
    char text[FIXES][TEXT];
    int count;
} random_fixes;

static void add_fix(random_fixes *f, const char *text) {
    if (f->count < FIXES) (void)snprintf(f->text[f->count++], TEXT, "%s", text);
}
static void add_value(random_fixes *f, const char *name, long value) {
    char text[64];
    (void)snprintf(text, sizeof text, "%s=%ld", name, value);
    add_fix(f, text);
}

static void single_constraints(const random_question *q, random_fixes *f) {
    static const char *const axes[] = {"dp", "tp", "pp", "cp"};
    static const char *const modes[] = {"recompute=none", "recompute=selective", "recompute=full"};
    for (long v = 1; v <= q->devices; v++) {
        if (q->devices % v) continue;
        for (size_t a = 0; a < sizeof axes / sizeof *axes; a++) add_value(f, axes[a], v);
        if (q->experts) add_value(f, "ep", v);
    }
    for (long l = 0; l <= 3; l++) add_value(f, "level", l);
    for (long m = 1; m <= q->batch; m++)
        if (q->batch % m == 0) add_value(f, "microbatches", m);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) add_fix(f, modes[m]);
}

/* The degrees with other values of two of its words: a factor moves from one to the other. */
static void move_factor(const char *degrees, const char *from, const char *to, long factor,
                        random_fixes *f) {
    char out[TEXT] = "", word[64];
    bool left = false, arrived = false;
    int at = 0;
    for (const char *p = degrees; sscanf(p, "%63s", word) == 1;) {
        char *equals = strchr(word, '=');
        p = strstr(p, word) + strlen(word);
        const size_t name = equals ? (size_t)(equals - word) : 0;
        long value = equals ? strtol(equals + 1, NULL, 10) : 0;
        const bool is_from = name == strlen(from) && !strncmp(word, from, name);
        const bool is_to = name == strlen(to) && !strncmp(word, to, name);
        if (is_from && value % factor == 0) value /= factor, left = true;
        if (is_to) value *= factor, arrived = true;
        /* What depends on the degrees stays open. */
        if (!strncmp(word, "sp=", 3) || !strncmp(word, "shard=", 6) ||
            !strncmp(word, "inner=", 6) || !strncmp(word, "schedule=", 9) ||
            !strncmp(word, "chunks=", 7) || (!strcmp(from, to) && is_from))
            continue;
        at += is_from || is_to
                  ? snprintf(out + at, TEXT - (size_t)at, "%s=%ld ", is_from ? from : to, value)
                  : snprintf(out + at, TEXT - (size_t)at, "%s ", word);
    }
    if (left && arrived) add_fix(f, out);
}

/* The degrees without the word `name`, and with `value` for it. */
static void other_value(const char *degrees, const char *name, const char *value, random_fixes *f) {
    char out[TEXT] = "", word[64];
    int at = 0;
    for (const char *p = degrees; sscanf(p, "%63s", word) == 1;) {
        p = strstr(p, word) + strlen(word);
        const size_t n = strlen(name);
        if (!strncmp(word, name, n) && word[n] == '=')
            at += snprintf(out + at, TEXT - (size_t)at, "%s=%s ", name, value);
        else if (strncmp(word, "shard=", 6) != 0)
            at += snprintf(out + at, TEXT - (size_t)at, "%s ", word);
    }
    if (strcmp(out, degrees) != 0) add_fix(f, out);
}

static void neighbours(const random_question *q, const char *degrees, random_fixes *f) {
    static const char *const axes[] = {"dp", "tp", "pp", "cp", "ep"};
    static const long factors[] = {2, 3};
    static const char *const levels[] = {"0", "1", "2", "3"};
    static const char *const modes[] = {"none", "selective", "full"};
    enum { AXES = sizeof axes / sizeof *axes };
    for (int a = 0; a < AXES; a++)
        for (int b = 0; b < AXES; b++)
            for (int k = 0; k < 2 && a != b; k++)
                if (b < AXES - 1 || q->experts)
                    move_factor(degrees, axes[a], axes[b], factors[k], f);
    for (int l = 0; l < 4; l++) other_value(degrees, "level", levels[l], f);
    for (int m = 0; m < 3; m++) other_value(degrees, "recompute", modes[m], f);
    for (long m = 1; m <= q->batch; m++) {
        char value[32];
        (void)snprintf(value, sizeof value, "%ld", m);
        if (q->batch % m == 0) other_value(degrees, "microbatches", value, f);
    }
}

/* ---- one question ---- */

/* `sample` of them, -1: all. */
static void try_fixes(random_run *r, const random_question *q, const random_answer *answer,
                      const random_fixes *f, long sample, double *best) {
    const long count = sample >= 0 && sample < f->count ? sample : f->count;
    for (long i = 0; i < count; i++) {
        random_answer x;
        const char *fix = f->text[count < f->count ? (long)draw(r, (uint64_t)f->count) : i];
        ask(r, q, fix, "", &x);
        if (x.seconds < 0) r->failed++, tell(q, "failed", fix, answer->seconds, x.seconds);
        if (x.seconds <= 0) continue;
        if (answer->seconds == 0) {
            r->refused++;
            tell(q, "refused", fix, 0, x.seconds);
            return;
        }
        if (x.seconds < answer->bound * (1 - rounding)) {
            r->broken++;
            tell(q, "broken", fix, answer->bound, x.seconds);
        }
        if (x.seconds < *best) {
            *best = x.seconds;
            if (x.seconds * (1 + tolerance) < answer->seconds)
                tell(q, "beaten", fix, answer->seconds, x.seconds);
        }
    }
}

/* What is printed, typed back, gives the same number: the degrees, and each alternative. */
static void type_back(random_run *r, const random_question *q, const random_answer *answer) {
    int printed = 1;
    while (printed <= ALTERNATIVES && *answer->alternatives[printed - 1]) printed++;
    const int drawn = r->sample ? (int)draw(r, (uint64_t)printed) : -1;
    for (int i = 0; i < printed; i++) {
        const char *text = i ? answer->alternatives[i - 1] : answer->degrees;
        const double seconds = i ? answer->alternative_seconds[i - 1] : answer->seconds;
        random_answer x;
        if (drawn >= 0 && i != drawn) continue;
        ask(r, q, text, "", &x);
        if (fabs(x.seconds - seconds) <= 1e-6 * answer->seconds) continue;
        r->unlike++;
        tell(q, "unlike", text, seconds, x.seconds);
    }
}

/* Budgets in order. If constraints are drawn, so is one budget beside the usual one. */
static void try_budgets(random_run *r, const random_question *q, const random_answer *answer) {
    static const char *const budgets[] = {"--evaluations 1", "--evaluations 7", NULL,
                                          "--evaluations 200"};
    enum { BUDGETS = sizeof budgets / sizeof *budgets };
    const size_t drawn = (size_t)AMONG(r, 0, 1, 3);
    double before = INFINITY;
    for (size_t i = 0; i < BUDGETS; i++) {
        random_answer x = *answer;
        if (budgets[i] && r->sample && i != drawn) continue;
        if (budgets[i]) ask(r, q, NULL, budgets[i], &x);
        if (x.seconds > before * (1 + rounding)) {
            r->worse++;
            tell(q, "worse", budgets[i] ? budgets[i] : "usual budget", before, x.seconds);
        }
        if (x.seconds > 0) before = x.seconds;
    }
}

/* The same question with less memory than the answer takes: another plan fits, or none. */
static void try_memory(random_run *r, const random_question *question, const random_answer *answer,
                       const random_fixes *fixes) {
    random_question q = *question;
    random_answer less;
    const size_t at = strlen(q.words);
    const double part = (double)AMONG(r, 50, 70, 80, 90, 95) / 100;
    (void)snprintf(q.words + at, sizeof q.words - at, " --memory %.0f", part * answer->bytes);
    ask(r, &q, NULL, "", &less);
    if (less.seconds < 0) r->failed++, tell(&q, "failed", "", 0, less.seconds);
    double best = INFINITY;
    if (less.seconds == 0) try_fixes(r, &q, &less, fixes, r->sample ? r->sample : -1, &best);
}

static void ask_question(random_run *r, long number) {
    static random_fixes fixes;
    random_question q;
    random_answer answer;
    fixes.count = 0;
    r->drawn = (uint64_t)number << 20;
    draw_model(r, &q);
    draw_machine(r, &q);
    ask(r, &q, NULL, "", &answer);
    if (answer.seconds < 0) {
        r->failed++;
        tell(&q, "failed", "", 0, answer.seconds);
        return;
    }
    double best = answer.seconds > 0 ? answer.seconds : INFINITY;
    single_constraints(&q, &fixes);
    if (answer.seconds > 0) neighbours(&q, answer.degrees, &fixes);
    /* In every second question of a sample, one of the last kinds is in place of a constraint. */
    const uint64_t only = r->sample ? draw(r, 6) : 6;
    const bool instead = only < 3 && answer.seconds > 0;
    try_fixes(r, &q, &answer, &fixes, r->sample ? r->sample - instead : -1, &best);
    if (answer.seconds == 0) return;
    r->beaten += best * (1 + tolerance) < answer.seconds;
    r->far_beaten += best * 1.02 < answer.seconds;
    r->ratios[r->asked++] = best / answer.seconds;
    if (only == 0 || only == 6) type_back(r, &q, &answer);
    if (only == 1 || only == 6) try_budgets(r, &q, &answer);
    if (only == 2 || only == 6) try_memory(r, &q, &answer, &fixes);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* There are answers. A hundredth of them may be beaten, none by more than 2 %. */
static bool within_limits(const random_run *r) {
    return r->asked && r->beaten * 100 <= r->asked && !r->far_beaten && !r->broken && !r->refused &&
           !r->unlike && !r->worse && !r->over && !r->failed;
}

int planner_random(const char *weft, int words, char **word) {
    static random_run r;
    r = (random_run){.weft = weft, .seed = 1, .count = 60, .limit = 120};
    for (int i = 0; i < words; i += 2) {
        static const char *const known[] = {"--seed",   "--from",    "--count",
                                            "--sample", "--seconds", "--cpu"};
        bool is_known = false;
        char *end = NULL;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is_known |= !strcmp(word[i], known[k]);
        const unsigned long value = i + 1 < words ? strtoul(word[i + 1], &end, 10) : 0;
        if (!is_known || !end || end == word[i + 1] || *end) {
            (void)fprintf(stderr,
                          "planner random: '%s': known are --seed, --from, --count, "
                          "--sample, --seconds and --cpu, each with a whole number\n",
                          word[i]);
            return 2;
        }
        if (!strcmp(word[i], "--seed")) r.seed = value;
        if (!strcmp(word[i], "--from")) r.from = (long)(value & UINT32_MAX);
        if (!strcmp(word[i], "--count")) r.count = value < 4096 ? (long)value : 4096;
        if (!strcmp(word[i], "--sample")) r.sample = (long)value;
        if (!strcmp(word[i], "--seconds")) r.limit = (unsigned)value;
        if (!strcmp(word[i], "--cpu")) r.cpu_limit = (double)value;
    }
    /* Of constraints that contradict the question the command says so, many times. */
    if (!freopen("/dev/null", "w", stderr)) return 1;
    long questions = 0;
    while (questions < r.count && !(r.cpu_limit > 0 && r.cpu > r.cpu_limit))
        ask_question(&r, r.from + questions++);
    qsort(r.ratios, (size_t)r.asked, sizeof *r.ratios, by_size);
    printf(
        "{\"seed\": %llu, \"from\": %ld, \"count\": %ld, \"questions\": %ld, \"answered\": %d, "
        "\"beaten\": %d, "
        "\"beaten_by_2_percent\": "
        "%d, \"worst_ratio\": %.4f, \"ratio_of_the_95th_percentile\": %.4f, \"bounds_broken\": %d, "
        "\"refused\": %d, \"unlike\": %d, \"worse_with_budget\": %d, \"over_memory\": %d, "
        "\"failed\": %d, \"cpu_seconds\": %.0f}\n",
        (unsigned long long)r.seed, r.from, r.count, questions, r.asked, r.beaten, r.far_beaten,
        r.asked ? r.ratios[0] : 0, r.asked ? r.ratios[r.asked / 20] : 0, r.broken, r.refused,
        r.unlike, r.worse, r.over, r.failed, r.cpu);
    return within_limits(&r) ? 0 : 1;
}
