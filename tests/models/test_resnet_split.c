/* Residual networks of few channels on small, odd planes, split along batch, channels, height and
 * width over random meshes, in f64. Loss, parameters and running statistics of each step equal the
 * values of one device.
 *
 * Such networks are ill-conditioned. Dozens of batch norms over a handful of numbers divide by
 * small deviations, and relus switch. Rounding grows a hundredfold from step to step, to percents
 * within a few steps of f32. So each step begins with the numbers of one device. The tolerance is
 * the difference that one device shows when its parameters are nudged by rounding. Mostly this is
 * far less than 1e-9, where no mistake would hide. */
#include "models/model_fixture.h"

#include <math.h>

#include "sanitized.h"
#include "weft/plan.h"

enum { STEPS = 2, AXES = 3, STAGES = 5, FACTORS = 5 };

static const char *const names[AXES] = {"a", "b", "c"};

typedef struct said {
    char match[24], split[128];
} said;

typedef struct trial {
    uint64_t seed;
    weft_model_config config;
    int batch, axes, size[AXES], level, ops;
    char layout[64], label[32];
    said op[STAGES];
} trial;

static int roll(uint64_t *state, int n) {
    return (int)(uniform(state) * n);
}

/* Each axis splits one of several dimensions that has elements for all of its pieces, or none. */
static void split_by(const trial *t, uint64_t *dice, int count, const int64_t *size,
                     char text[][16]) {
    int64_t parts[FACTORS] = {1, 1, 1, 1, 1};
    for (int a = 0; a < t->axes; a++) {
        int f = roll(dice, count + 1);
        if (f == count || parts[f] * t->size[a] > size[f]) continue;
        parts[f] *= t->size[a];
        size_t at = strlen(text[f]);
        (void)snprintf(text[f] + at, 16 - at, "%s%s", at ? "+" : "", names[a]);
    }
}

static void split_images(trial *t, uint64_t *dice) {
    const int64_t *image = t->config.image;
    char text[3][16] = {"", "", ""};
    split_by(t, dice, 3, (int64_t[]){t->batch, image[1], image[2]}, text);
    for (int k = 0; k < 3; k++)
        if (!text[k][0]) (void)snprintf(text[k], 16, "-");
    (void)snprintf(t->layout, sizeof t->layout, "[%s, -, %s, %s]", text[0], text[1], text[2]);
    (void)snprintf(t->label, sizeof t->label, "[%s]", text[0]);
}

/* The convolutions of each stage, as far as the smallest of its results has elements. */
static void split_stages(trial *t, uint64_t *dice) {
    static const char *const factor[FACTORS] = {"batch", "s0", "s1", "in", "out"};
    const weft_model_config *c = &t->config;
    bool large = c->image[1] >= 64;
    for (int stage = 0; stage < STAGES; stage++) {
        int halved = (stage > 1 ? stage - 1 : 0) + (large ? stage ? 2 : 1 : 0);
        int64_t size[FACTORS] = {t->batch, 0, 0, stage ? c->hidden : c->image[0], c->hidden};
        for (int d = 1; d <= 2; d++) size[d] = (c->image[d] + (1 << halved) - 1) >> halved;
        char text[FACTORS][16] = {"", "", "", "", ""};
        said *s = &t->op[t->ops];
        split_by(t, dice, FACTORS, size, text);
        s->split[0] = 0;
        for (int f = 0; f < FACTORS; f++) {
            size_t at = strlen(s->split);
            if (text[f][0])
                (void)snprintf(s->split + at, sizeof s->split - at, "%s%s=%s", at ? " " : "",
                               factor[f], text[f]);
        }
        (void)snprintf(s->match, sizeof s->match, stage ? "layer%d.*:conv2d" : "stem.conv1:conv2d",
                       stage);
        t->ops += s->split[0] != 0;
    }
}

static trial trial_of(uint64_t seed) {
    static const int meshes[][AXES] = {{2}, {3}, {4}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}, {7}, {5}};
    uint64_t dice = seed * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < 8; i++) (void)uniform(&dice);
    trial t = {.seed = seed};
    t.config.family = roll(&dice, 4) ? WEFT_FAMILY_RESNET18 : WEFT_FAMILY_RESNET50;
    t.config.classes = 3;
    t.config.hidden = 2 + roll(&dice, 3);
    t.config.image[0] = 1 + roll(&dice, 3);
    for (int d = 1; d <= 2; d++) t.config.image[d] = 5 + roll(&dice, 15);
    if (roll(&dice, 8) == 0) t.config.image[1] = t.config.image[2] = 65; /* the large stem */
    t.batch = 2 + roll(&dice, 5);
    t.level = roll(&dice, 3) ? 0 : 1 + roll(&dice, 3);
    memcpy(t.size, meshes[roll(&dice, sizeof meshes / sizeof *meshes)], sizeof t.size);
    for (t.axes = 0; t.axes < AXES && t.size[t.axes];) t.axes++;
    split_images(&t, &dice);
    split_stages(&t, &dice);
    return t;
}

static weft_plan *plan_of(const trial *t) {
    weft_plan *plan;
    int devices = 1;
    for (int a = 0; a < t->axes; a++) devices *= t->size[a];
    ASSERT_OK(weft_plan_create(devices, &plan));
    for (int a = 0; a < t->axes; a++) ASSERT_OK(weft_plan_axis(plan, names[a], t->size[a]));
    ASSERT_OK(weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH));
    ASSERT_OK(weft_plan_split_tensor(plan, "image", t->layout));
    ASSERT_OK(weft_plan_split_tensor(plan, "label", t->label));
    for (int k = 0; k < t->ops; k++)
        ASSERT_OK(weft_plan_split_op(plan, t->op[k].match, t->op[k].split));
    if (t->level) ASSERT_OK(weft_plan_optimizer(plan, t->level, 0, 0));
    return plan;
}

static weft_session *session_of(const trial *t, weft_graph *g, const weft_plan *plan) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.seed = t->seed;
    o.threads = 2;
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD};
    o.plan = plan;
    if (weft_session_create(g, &o, &s) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    return s;
}

/* Give one session the parameters and running statistics of another. */
static void follow(weft_session *from, weft_session *to) {
    for (int k = 0; k < weft_session_tensors(from, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(from, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_STATE) continue;
        void *data = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(from, 0, info.name, data, (size_t)info.bytes));
        ASSERT_OK(weft_session_write(to, 0, info.name, data, (size_t)info.bytes));
        free(data);
    }
}

/* The largest distance of a parameter or running statistic, relative to its largest element. */
static double apart(weft_session *a, weft_session *b, char *where, size_t bytes) {
    double worst = 0;
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_STATE) continue;
        double *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes), most = 0,
               largest = 1;
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        for (int64_t i = 0; i < info.bytes / 8; i++) {
            largest = fmax(largest, fabs(x[i]));
            most = fmax(most, fabs(x[i] - y[i]));
        }
        free(x);
        free(y);
        if (!(most / largest <= worst)) {
            worst = most / largest;
            (void)snprintf(where, bytes, "%s", info.name);
        }
    }
    return worst;
}

/* Every parameter by at most 1e-14 of itself. */
static void nudge(weft_session *s) {
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        double *data = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(s, 0, info.name, data, (size_t)info.bytes));
        for (int64_t i = 0; i < info.bytes / 8; i++)
            data[i] *= 1 + 1e-14 * (double)(i * 7919 % 13 - 6) / 6;
        ASSERT_OK(weft_session_write(s, 0, info.name, data, (size_t)info.bytes));
        free(data);
    }
}

/* One device, many devices, and one device with nudged parameters. */
enum { ONE, MANY, NUDGED, SESSIONS };

static void check_step(const trial *t, int step, weft_session **s) {
    double loss[SESSIONS];
    char where[256] = "", what[160];
    (void)snprintf(what, sizeof what, "WEFT_TEST_SEED=%llu WEFT_CASES=1 (%s, image %s), step %d",
                   (unsigned long long)t->seed, weft_family_text(t->config.family), t->layout,
                   step);
    nudge(s[NUDGED]);
    for (int k = 0; k < SESSIONS; k++) {
        feed_all(s[k], 0, &t->config, t->seed + 17 + (uint64_t)step);
        ASSERT_OK(weft_session_step(s[k], 0.05, &loss[k]));
    }
    double apart_by = fabs(loss[MANY] - loss[ONE]), moved = fabs(loss[NUDGED] - loss[ONE]);
    if (!(apart_by <= fmax(1e-11 * fmax(1, fabs(loss[ONE])), 100 * moved)))
        fail_msg("%s: loss is %.17g, not %.17g", what, loss[MANY], loss[ONE]);
    moved = apart(s[ONE], s[NUDGED], where, sizeof where);
    apart_by = apart(s[ONE], s[MANY], where, sizeof where);
    if (!(apart_by <= fmax(1e-9, 100 * moved)))
        fail_msg("%s: '%s' is %.3g apart, nudged %.3g", what, where, apart_by, moved);
    follow(s[ONE], s[MANY]);
    follow(s[ONE], s[NUDGED]);
}

static void check(uint64_t seed) {
    trial t = trial_of(seed);
    weft_graph *g = built(&t.config, WEFT_USE_TRAIN, t.batch, 0, WEFT_F64);
    weft_plan *plan = plan_of(&t);
    weft_session *s[SESSIONS];
    for (int k = 0; k < SESSIONS; k++) s[k] = session_of(&t, g, k == MANY ? plan : NULL);
    for (int step = 0; step < STEPS; step++) check_step(&t, step, s);
    for (int k = 0; k < SESSIONS; k++) weft_session_destroy(s[k]);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void few_channels_give_the_result_of_one_device(void **state) {
    (void)state;
    uint64_t first = test_seed(150),
             cases = setting("WEFT_CASES", SANITIZED_THREAD || SANITIZED_ADDRESS ? 3 : 10);
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) check(first + k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_channels_give_the_result_of_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
