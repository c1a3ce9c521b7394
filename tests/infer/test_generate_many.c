/* Text generation for many prompts at once: the texts of one prompt after the other, for every
 * family, numbers of rows, limits and splits; prompts from files; what is refused. */
#include "generate_fixture.h"
#include "models/family.h"
#include "session/world_fixture.h"

enum { VOCAB = 256, CONTEXT = 90, PROMPTS = 24 };

static const char *model_of(weft_family family) {
    weft_model_config c = config_of(family, CONTEXT, VOCAB);
    if (family == WEFT_FAMILY_MISTRAL) c.window = 20;
    return saved_run(&c, weft_family_text(family));
}

/* ---- texts ---- */

typedef struct texts {
    const char *checkpoint;
    const weft_plan *plan;
    int devices;
    int64_t rows, count;
    bool silent, whole; /* no prompts: rank 0's count; caches for the whole context */
    weft_prompt prompts[PROMPTS];
    double temperature;
    text text[PROMPTS];
    weft_generation done[PROMPTS];
    int64_t shown, peak;
} texts;

/* Prompts of mixed lengths, some longer than the context, and mixed limits, some beyond it. */
static void make_prompts(texts *t, uint64_t seed) {
    static char bytes[300];
    for (int i = 0; i < 300; i++) bytes[i] = (char)(i * 37 + i / 5);
    t->count = PROMPTS;
    for (int i = 0; i < PROMPTS; i++) {
        const uint32_t kind = wefti_philox_u32(seed, 1, (uint64_t)i) % 8;
        const int64_t most = kind == 0 ? 200 : kind == 1 ? 1 : 40;
        t->prompts[i] = (weft_prompt){
            .text = bytes + i,
            .bytes = 1 + (int64_t)(wefti_philox_u32(seed, 2, (uint64_t)i) % (uint32_t)most),
            .tokens = 1 + (int64_t)(wefti_philox_u32(seed, 3, (uint64_t)i) % 12),
            .has_seed = i % 3 == 0,
            .seed = (uint64_t)i};
        if (kind == 2) t->prompts[i].tokens = 100; /* the window slides */
    }
}

static weft_generate_options options_of(const texts *t) {
    static const char *const stops[] = {"ab", "\x01\x02"};
    return WEFT_STRUCT(weft_generate_options, .tokens = 5, .temperature = t->temperature, .seed = 9,
                       .repetition_penalty = 1.1, .stop_texts = stops, .stop_count = 2);
}

static void one_after_the_other(texts *t) {
    weft_generator *g;
    ASSERT_OK(
        weft_generator_open(t->checkpoint, &WEFT_STRUCT(weft_generator_options, .threads = 1), &g));
    for (int i = 0; i < t->count; i++) {
        weft_generate_options o = options_of(t);
        const weft_prompt *p = &t->prompts[i];
        if (p->tokens) o.tokens = p->tokens;
        if (p->has_seed) o.seed = p->seed;
        t->done[i] = run(g, p->text, p->bytes, o, &t->text[i]);
    }
    weft_generator_close(g);
}

static void take_text(void *context, const weft_generated *made) {
    texts *t = context;
    assert_int_equal(made->prompt, t->shown); /* in the order of the prompts */
    t->text[t->shown].used = 0;
    take(&t->text[t->shown], made->text, made->bytes);
    t->done[t->shown++] = made->generation;
}

static weft_status at_once(void *context, weft_world *world) {
    texts *t = context;
    weft_generator *g;
    const weft_generator_options o =
        WEFT_STRUCT(weft_generator_options, .threads = 1, .plan = t->plan, .devices = t->devices,
                    .world = world, .rows = t->silent ? 1 : t->rows,
                    .prompts = t->whole || t->silent ? NULL : t->prompts,
                    .prompt_count = t->whole || t->silent ? 0 : t->count);
    TRY(weft_generator_open(t->checkpoint, &o, &g));
    t->peak = weft_generator_info_of(g).peak_bytes;
    weft_generate_options how = options_of(t);
    if (t->silent) how.temperature = 3;
    how.context = t;
    t->shown = 0;
    weft_status status = weft_generator_run_many(g, t->silent ? NULL : t->prompts,
                                                 t->silent ? 0 : t->count, &how, take_text);
    weft_generator_close(g);
    return status;
}

static void assert_same(const texts *one, const texts *many, const char *what) {
    assert_int_equal(many->shown, one->count);
    for (int i = 0; i < one->count; i++) {
        const weft_generation *a = &one->done[i], *b = &many->done[i];
        if (one->text[i].used != many->text[i].used ||
            memcmp(one->text[i].data, many->text[i].data, (size_t)one->text[i].used) != 0)
            fail_msg("%s: text %d differs from that of its prompt alone", what, i);
        assert_int_equal(a->tokens, b->tokens);
        assert_int_equal(a->prompt_tokens, b->prompt_tokens);
        assert_int_equal(a->dropped_tokens, b->dropped_tokens);
        assert_int_equal(a->ended, b->ended);
        assert_int_equal(a->stop_text, b->stop_text);
    }
}

static texts *copy_of(const texts *one) {
    texts *t = malloc(sizeof *t);
    *t = *one;
    for (int i = 0; i < PROMPTS; i++) {
        t->text[i].used = 0;
        t->done[i] = (weft_generation){.tokens = -1};
    }
    return t;
}

static void texts_are_those_of_single_prompts(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 5, 32, 70};
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        if (!wefti_family_has(family, WEFTI_GENERATES)) continue;
        texts *one = calloc(1, sizeof *one);
        one->checkpoint = model_of(family);
        make_prompts(one, 100 + (uint64_t)f);
        for (int hot = 0; hot < 2; hot++) {
            one->temperature = hot;
            one_after_the_other(one);
            for (int r = hot; r < 4; r += 2) {
                texts *many = copy_of(one);
                many->rows = rows[r];
                many->whole = r == 2;
                if (at_once(many, NULL) < 0) fail_msg("%s", weft_error_message());
                assert_same(one, many, weft_family_text(family));
                free(many);
            }
        }
        free(one);
    }
}

/* ---- splits ---- */

static weft_plan *stages(void) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_pipeline(plan, 2, 2, WEFT_PIPELINE_1F1B, 1));
    return plan;
}

static void texts_are_the_same_on_splits(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        if (!wefti_family_has(family, WEFTI_GENERATES)) continue;
        texts *one = calloc(1, sizeof *one);
        one->checkpoint = model_of(family);
        make_prompts(one, 200 + (uint64_t)f);
        one_after_the_other(one);
        for (int k = 0; k < 3; k++) {
            weft_plan *plan = k == 2 ? stages() : NULL;
            texts *many = copy_of(one);
            many->rows = 7;
            many->plan = plan;
            many->devices = k == 0 ? 2 : k == 1 ? 4 : 0;
            if (at_once(many, NULL) < 0) fail_msg("%s", weft_error_message());
            assert_same(one, many, k == 2 ? "2 stages" : k ? "4 devices" : "2 devices");
            free(many);
            weft_plan_destroy(plan);
        }
        if (f % 2 == 0) { /* a world: rank 0 alone has prompts */
            rank_of_world ranks[MOST_RANKS];
            texts *members = calloc(2, sizeof *members);
            for (int r = 0; r < 2; r++) {
                members[r] = *one;
                members[r].rows = 6;
                members[r].silent = r > 0;
            }
            run_world(2, at_once, members, sizeof *members, ranks);
            assert_all_ok(ranks, 2, weft_family_text(family));
            for (int r = 0; r < 2; r++) assert_same(one, &members[r], "a world");
            free(members);
        }
        free(one);
    }
}

/* ---- caches ---- */

/* Caches have room for the longest prompt and its text, not for the context. */
static void caches_are_bounded(void **state) {
    (void)state;
    static char prompt[20] = "abcdefghijklmnopqrs";
    texts *t = calloc(1, sizeof *t);
    t->checkpoint = model_of(WEFT_FAMILY_GPT2);
    t->rows = 16;
    t->count = 2;
    t->prompts[0] = (weft_prompt){.text = prompt, .bytes = 3, .tokens = 4};
    t->prompts[1] = (weft_prompt){.text = prompt, .bytes = 12, .tokens = 8};
    ASSERT_OK(at_once(t, NULL));
    const int64_t small = t->peak;
    t->whole = true;
    ASSERT_OK(at_once(t, NULL));
    /* 16 texts, two layers of keys and values of 32 numbers; 90 tokens, not 20 */
    const int64_t saved = 16 * 2 * 2 * 32 * 4 * (CONTEXT - 20);
    assert_int_equal(t->peak - small, saved);
    free(t);
}

/* ---- files ---- */

static void prompts_come_from_files(void **state) {
    (void)state;
    /* Behind a byte order mark, which data may have, too. */
    static const char good[] = "\xEF\xBB\xBF{\"prompt\": \"Once\"}\n\n \t\r\n"
                               "{\"id\": \"b\", \"tokens\": 3, \"prompt\": \"\"}\n"
                               "{\"prompt\": \"\\u00e9\\n\", \"id\": -7, \"seed\": 12}";
    weft_prompts *p;
    int64_t count;
    ASSERT_OK(wefti_file_write(in_root("good"), good, sizeof good - 1));
    ASSERT_OK(weft_prompts_read(in_root("good"), &p));
    const weft_prompt *items = weft_prompts_items(p, &count);
    assert_int_equal(count, 3);
    assert_string_equal(items[0].text, "Once");
    assert_null(items[0].id);
    assert_int_equal(items[0].tokens, 0);
    assert_false(items[0].has_seed);
    assert_int_equal(items[1].bytes, 0);
    assert_string_equal(items[1].id, "b");
    assert_int_equal(items[1].tokens, 3);
    assert_string_equal(items[2].text, "\xc3\xa9\n");
    assert_true(items[2].id_is_number);
    assert_string_equal(items[2].id, "-7");
    assert_true(items[2].has_seed);
    assert_int_equal(items[2].seed, 12);
    weft_prompts_free(p);
    static const char *const bad[][2] = {
        {"", "no prompt"},
        {"\n\n", "no prompt"},
        {"{\"prompt\": \"a\"}\n\n{\"prompt\": }\n", "line 3"},
        {"{\"prompt\": \"a\"}\n[1]\n", "line 2|object"},
        {"{\"id\": 1}", "line 1|prompt"},
        {"{\"prompt\": 4}", "line 1|prompt"},
        {"{\"prompt\": \"a\", \"tokens\": 0}", "tokens"},
        {"{\"prompt\": \"a\", \"tokens\": 1.5}", "tokens"},
        {"{\"prompt\": \"a\", \"seed\": -1}", "seed"},
        {"{\"prompt\": \"a\", \"id\": true}", "id"},
        {"{\"prompt\": \"a\", \"token\": 4}", "token|tokens"},
        {"{\"prompt\": \"a\"} {\"prompt\": \"b\"}", "line 1"},
        {"{\"prompt\": \"\xff\"}", "line 1"},
        {"{\"prompt\": \"a\\u0000b\"}", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ASSERT_OK(wefti_file_write(in_root("bad"), bad[i][0], strlen(bad[i][0])));
        ASSERT_FAILS(WEFT_E_CORRUPT, bad[i][1], weft_prompts_read(in_root("bad"), &p));
    }
    ASSERT_OK(wefti_file_write(in_root("wide"), "\xff\xfe{\0}\0", 6));
    ASSERT_FAILS(WEFT_E_NO_IMPL, "wide|UTF-16", weft_prompts_read(in_root("wide"), &p));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "nothere", weft_prompts_read(in_root("nothere"), &p));
}

/* ---- what is refused ---- */

static void wrong_calls_are_refused(void **state) {
    (void)state;
    const char *path = model_of(WEFT_FAMILY_LLAMA);
    weft_generator *g;
    weft_generate_options how = WEFT_STRUCT(weft_generate_options, .tokens = 4);
    const weft_prompt given = {.text = "abcd", .bytes = 4, .tokens = 4},
                      longer = {.text = "abcdefgh", .bytes = 8, .tokens = 4};
    weft_generator_options o = WEFT_STRUCT(weft_generator_options, .rows = -1);
    ASSERT_FAILS(WEFT_E_ARG, "-1", weft_generator_open(path, &o, &g));
    o = WEFT_STRUCT(weft_generator_options, .rows = 5000);
    ASSERT_FAILS(WEFT_E_ARG, "5000", weft_generator_open(path, &o, &g));
    o = WEFT_STRUCT(weft_generator_options, .rows = 0);
    ASSERT_OK(weft_generator_open(path, &o, &g));
    ASSERT_FAILS(WEFT_E_ARG, "rows", weft_generator_run_many(g, &given, 1, &how, NULL));
    weft_generator_close(g);
    o = WEFT_STRUCT(weft_generator_options, .rows = 2, .prompts = &given, .prompt_count = 1);
    ASSERT_OK(weft_generator_open(path, &o, &g));
    ASSERT_OK(weft_generator_run_many(g, &given, 1, &how, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "8 tokens|8", weft_generator_run_many(g, &longer, 1, &how, NULL));
    ASSERT_OK(weft_generator_run_many(g, &given, 1, &how, NULL)); /* it lives */
    ASSERT_FAILS(WEFT_E_ARG, "run_many", weft_generator_run(g, "a", 1, &how, NULL));
    how.text = take;
    ASSERT_FAILS(WEFT_E_ARG, "text", weft_generator_run_many(g, &given, 1, &how, NULL));
    how.text = NULL;
    const volatile int stop = 1;
    how.stop = &stop;
    ASSERT_FAILS(WEFT_E_STOPPED, "0 of 1", weft_generator_run_many(g, &given, 1, &how, NULL));
    how.stop = NULL;
    how.tokens = 0;
    ASSERT_FAILS(WEFT_E_ARG, "tokens", weft_generator_run_many(g, &given, 1, &how, NULL));
    weft_generator_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_single_prompts),
        cmocka_unit_test(texts_are_the_same_on_splits),
        cmocka_unit_test(caches_are_bounded),
        cmocka_unit_test(prompts_come_from_files),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
