/* Text generation on several devices: the texts of one device on splits of heads, of stages and of
 * experts, in one process and in a world; caches and weights are divided; what does not fit is
 * refused. */
#include "generate_fixture.h"
#include "models/family.h"
#include "models/splits.h"
#include "session/world_fixture.h"

enum { VOCAB = 256, CONTEXT = 90, PROMPTS = 4, TOKENS = 24 };

/* ---- plans ---- */

typedef struct split {
    const char *name;
    int devices; /* without stages and axes: heads are divided */
    int stages, data, tensor;
    bool experts;
} split;

static const split splits[] = {
    {.name = "2 devices", .devices = 2},
    {.name = "4 devices", .devices = 4}, /* with 2 heads of keys */
    {.name = "3 devices, uneven", .devices = 3},
    {.name = "2 stages", .devices = 2, .stages = 2},
    {.name = "2 data 2 tensor", .devices = 4, .data = 2, .tensor = 2},
    {.name = "2 stages 2 tensor", .devices = 4, .stages = 2, .tensor = 2},
    {.name = "2 experts", .devices = 2, .data = 2, .experts = true},
};
enum { SPLIT_COUNT = sizeof splits / sizeof *splits };

/* NULL: the generator makes its own. */
static weft_plan *plan_of(const split *p, weft_family family) {
    weft_plan *plan = NULL;
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    if (!p->stages && !p->data && !p->tensor) return NULL;
    ASSERT_OK(weft_plan_create(p->devices, &plan));
    if (p->data) ASSERT_OK(weft_plan_axis(plan, "dp", p->data));
    if (p->tensor) ASSERT_OK(weft_plan_axis(plan, "tp", p->tensor));
    if (p->stages) ASSERT_OK(weft_plan_pipeline(plan, p->stages, 2, WEFT_PIPELINE_1F1B, 1));
    for (int i = 0; i < count; i++) { /* heads, without the product behind them */
        char split[32];
        if (!p->tensor || !wefti_split_applies(&rows[i], &(weft_model_config){.family = family}))
            continue;
        if (rows[i].role != WEFTI_SPLIT_HEADS || !strcmp(rows[i].factor, "k")) continue;
        (void)snprintf(split, sizeof split, "%s=tp", rows[i].factor);
        ASSERT_OK(weft_plan_split_op(plan, rows[i].match, split));
    }
    if (p->experts) {
        ASSERT_OK(weft_plan_split_op(plan, "*moe.experts.*", "experts=dp"));
        ASSERT_OK(weft_plan_split_op(plan, "*moe:moe_dispatch", "experts=dp"));
        ASSERT_OK(weft_plan_split_op(plan, "*moe:moe_combine", "experts=dp"));
    }
    return plan;
}

/* ---- texts ---- */

/* Prompts shorter and longer than a piece, and one that fills the context. */
static const int64_t lengths[PROMPTS] = {1, 9, 70, 85};

typedef struct texts {
    const char *checkpoint;
    const weft_plan *plan;
    int devices;
    bool silent; /* no prompt, other numbers: rank 0's count */
    text text[PROMPTS];
    weft_generator_info info;
} texts;

static void prompt_of(char *prompt) {
    for (int i = 0; i < 200; i++) prompt[i] = (char)(i * 37 + i / 5);
}

static weft_status write_texts(void *context, weft_world *world) {
    texts *t = context;
    char prompt[200];
    weft_generator *g;
    const weft_generator_options o =
        WEFT_STRUCT(weft_generator_options, .threads = 1, .plan = t->plan, .devices = t->devices,
                    .world = world);
    prompt_of(prompt);
    TRY(weft_generator_open(t->checkpoint, &o, &g));
    t->info = weft_generator_info_of(g);
    weft_status status = WEFT_OK;
    for (int n = 0; n < PROMPTS && status >= 0; n++) {
        t->text[n].used = 0;
        weft_generate_options how =
            WEFT_STRUCT(weft_generate_options, .tokens = t->silent ? 1 : TOKENS,
                        .temperature = n % 2 && !t->silent ? 1 : 0, .seed = t->silent ? 77 : 5,
                        .context = &t->text[n], .text = take);
        status = weft_generator_run(g, t->silent ? NULL : prompt, t->silent ? 0 : lengths[n], &how,
                                    NULL);
    }
    weft_generator_close(g);
    return status;
}

static void assert_same(const texts *one, const texts *many, const char *family, const char *what) {
    for (int n = 0; n < PROMPTS; n++)
        if (many->text[n].used != one->text[n].used ||
            memcmp(many->text[n].data, one->text[n].data, (size_t)one->text[n].used) != 0)
            fail_msg("%s, %s: text %d differs from one device's", family, what, n);
}

static void on_split(const split *p, weft_family family, const texts *one) {
    const char *name = weft_family_text(family);
    weft_plan *plan = plan_of(p, family);
    texts *many = calloc(1, sizeof *many);
    *many = (texts){.checkpoint = one->checkpoint, .plan = plan, .devices = plan ? 0 : p->devices};
    if (write_texts(many, NULL) < 0) fail_msg("%s, %s: %s", name, p->name, weft_error_message());
    assert_int_equal(many->info.devices, p->devices);
    assert_same(one, many, name, p->name);
    weft_plan_destroy(plan);
    free(many);
}

static void in_world(const split *p, weft_family family, const texts *one) {
    const char *name = weft_family_text(family);
    weft_plan *plan = plan_of(p, family);
    rank_of_world ranks[MOST_RANKS];
    texts *members = calloc((size_t)p->devices, sizeof *members);
    for (int r = 0; r < p->devices; r++)
        members[r] = (texts){.checkpoint = one->checkpoint, .plan = plan, .silent = r > 0};
    run_world(p->devices, write_texts, members, sizeof *members, ranks);
    assert_all_ok(ranks, p->devices, name);
    for (int r = 0; r < p->devices; r++) assert_same(one, &members[r], name, p->name);
    weft_plan_destroy(plan);
    free(members);
}

static const char *model_of(weft_family family, const char *name) {
    weft_model_config c = config_of(family, CONTEXT, VOCAB);
    return saved_run(&c, name);
}

static void every_split_writes_the_texts_of_one_device(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        if (!wefti_family_has(family, WEFTI_GENERATES)) continue;
        char path[600];
        (void)snprintf(path, sizeof path, "%s", model_of(family, weft_family_text(family)));
        texts *one = calloc(1, sizeof *one);
        one->checkpoint = path;
        ASSERT_OK(write_texts(one, NULL));
        assert_int_equal(one->info.devices, 1);
        for (int k = 0; k < SPLIT_COUNT; k++) {
            if (splits[k].experts && !wefti_family_has(family, WEFTI_EXPERTS)) continue;
            on_split(&splits[k], family, one);
            if ((k + f) % 2 == 0) in_world(&splits[k], family, one);
        }
        free(one);
    }
}

/* ---- memory ---- */

/* A model whose caches are larger than all else: each device has its heads' part, or its layers'.
 */
static void caches_are_divided(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_LLAMA, 8000, VOCAB);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("long"), 1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    /* two layers of keys and values, [context, 2 heads, 8] each */
    const int64_t caches = 2 * 2 * 8000 * 2 * 8 * 4;
    int64_t peaks[3];
    for (int k = 0; k < 3; k++) {
        weft_generator *g;
        weft_plan *plan = k == 2 ? plan_of(&splits[3], c.family) : NULL;
        const weft_generator_options o = WEFT_STRUCT(weft_generator_options, .threads = 1,
                                                     .devices = k == 1 ? 2 : 0, .plan = plan);
        ASSERT_OK(weft_generator_open(in_root("long"), &o, &g));
        peaks[k] = weft_generator_info_of(g).peak_bytes;
        weft_generator_close(g);
        weft_plan_destroy(plan);
    }
    assert_true(peaks[0] > caches);
    for (int k = 1; k < 3; k++)
        if (peaks[0] - peaks[k] < caches / 2)
            fail_msg("device of split %d: %lld bytes, one device %lld, caches %lld", k,
                     (long long)peaks[k], (long long)peaks[0], (long long)caches);
}

/* ---- what is refused ---- */

static weft_status open_in(void *context, weft_world *world) {
    weft_generator_options o = *(const weft_generator_options *)context;
    weft_generator *g;
    o.world = world;
    TRY(weft_generator_open(in_root("refused"), &o, &g));
    weft_generator_close(g);
    return WEFT_OK;
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    char path[600];
    (void)snprintf(path, sizeof path, "%s", model_of(WEFT_FAMILY_GPT2, "refused"));
    weft_plan *plan = plan_of(&splits[3], WEFT_FAMILY_GPT2), *wrong;
    weft_generator *g;
    weft_generator_options o = WEFT_STRUCT(weft_generator_options, .devices = 3, .plan = plan);
    ASSERT_FAILS(WEFT_E_ARG, "2|3", weft_generator_open(path, &o, &g));
    o = WEFT_STRUCT(weft_generator_options, .devices = -1);
    ASSERT_FAILS(WEFT_E_ARG, "-1", weft_generator_open(path, &o, &g));
    ASSERT_OK(weft_plan_create(2, &wrong));
    ASSERT_OK(weft_plan_axis(wrong, "tp", 2));
    ASSERT_OK(weft_plan_split_op(wrong, "h.*.attn.c_atn", "n1=tp"));
    o = WEFT_STRUCT(weft_generator_options, .plan = wrong);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "h.*.attn.c_atn", weft_generator_open(path, &o, &g));
    const weft_generator_options in = WEFT_STRUCT(weft_generator_options, .plan = plan);
    weft_generator_options three[3] = {in, in, in};
    rank_of_world ranks[3];
    run_world(3, open_in, three, sizeof *three, ranks);
    for (int r = 0; r < 3; r++) assert_true(ranks[r].status < 0);
    assert_rank_fails(&ranks[0], 0, WEFT_E_ARG, "2|3");
    weft_plan_destroy(plan);
    weft_plan_destroy(wrong);
}

/* A rank that cannot open its part ends the others too. */
static void a_failure_of_one_rank_is_told(void **state) {
    (void)state;
    (void)model_of(WEFT_FAMILY_GPT2, "refused");
    weft_generator_options two[2] = {
        WEFT_STRUCT(weft_generator_options, .threads = 1),
        WEFT_STRUCT(weft_generator_options, .threads = 1, .tokenizer = "nothere.json")};
    rank_of_world ranks[2];
    run_world(2, open_in, two, sizeof *two, ranks);
    assert_rank_fails(&ranks[0], 0, WEFT_E_NOT_FOUND, "1|nothere.json");
    assert_rank_fails(&ranks[1], 1, WEFT_E_NOT_FOUND, "nothere.json");
}

/* If one rank's call lacks the path, or sets an unknown member, the others do not wait. */
static weft_status open_nothing(void *context, weft_world *world) {
    const int lacks = *(const int *)context;
    weft_generator *g = NULL;
    struct {
        weft_generator_options known;
        char later[8]; /* a member of a later version, which is set */
    } o = {WEFT_STRUCT(weft_generator_options, .world = world), {lacks == 2}};
    if (lacks == 2) o.known.struct_bytes = sizeof o;
    TRY(weft_generator_open(lacks == 1 ? NULL : in_root("refused"), &o.known, &g));
    weft_generator_close(g);
    return WEFT_OK;
}

static void wrong_calls_of_one_rank_are_told(void **state) {
    (void)state;
    (void)model_of(WEFT_FAMILY_GPT2, "refused");
    for (int lacks = 1; lacks <= 2; lacks++) {
        const weft_status expected = lacks == 1 ? WEFT_E_ARG : WEFT_E_NO_IMPL;
        int two[2] = {0, lacks};
        rank_of_world ranks[2];
        run_world(2, open_nothing, two, sizeof *two, ranks);
        assert_int_equal(ranks[0].status, WEFT_E_PEER); /* it names the rank, and its error */
        assert_int_equal(ranks[1].status, expected);
    }
}

typedef struct wrong_call {
    int64_t rows; /* > 0: of many texts */
    bool lacks;   /* its prompts */
    int stops;    /* texts that end the text */
} wrong_call;

static weft_status generate_nothing(void *context, weft_world *world) {
    const wrong_call *c = context;
    const weft_generator_options o =
        WEFT_STRUCT(weft_generator_options, .world = world, .threads = 1, .rows = c->rows);
    static const char *const stops[] = {"b", "c"};
    const weft_generate_options how = WEFT_STRUCT(weft_generate_options, .tokens = 1,
                                                  .stop_texts = stops, .stop_count = c->stops);
    const weft_prompt given = {.text = "a", .bytes = 1};
    weft_generator *g;
    TRY(weft_generator_open(in_root("refused"), &o, &g));
    const weft_status status =
        c->rows ? weft_generator_run_many(g, c->lacks ? NULL : &given, 1, &how, NULL)
                : weft_generator_run(g, c->lacks ? NULL : "a", 1, &how, NULL);
    weft_generator_close(g);
    return status;
}

static void calls_that_lack_a_prompt_or_stop_texts_are_told(void **state) {
    (void)state;
    (void)model_of(WEFT_FAMILY_GPT2, "refused");
    for (int64_t rows = 0; rows <= 1; rows++) {
        for (int stops = 0; stops < 2; stops++) {
            wrong_call two[2] = {{rows, false, 1}, {rows, !stops, 1 + stops}};
            rank_of_world ranks[2];
            run_world(2, generate_nothing, two, sizeof *two, ranks);
            for (int r = 0; r < 2; r++)
                assert_int_equal(ranks[r].status, stops ? WEFT_E_MISMATCH : WEFT_E_ARG);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_writes_the_texts_of_one_device),
        cmocka_unit_test(caches_are_divided),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_failure_of_one_rank_is_told),
        cmocka_unit_test(wrong_calls_of_one_rank_are_told),
        cmocka_unit_test(calls_that_lack_a_prompt_or_stop_texts_are_told),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
