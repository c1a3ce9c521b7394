/* Programs for users set their locale, and many locales write a decimal comma. Jobs are read and
 * files are written as in every other locale. */
#include "run_fixture.h"

#include "comma_locale.h"
#include "base/json/json.h"
#include "base/text.h"
#include "graph/graph.h"
#include "graph/text/text.h"
#include "weft/graph.h"
#include "weft/ops.h"
#include "weft/predict.h"

#define NEEDS_A_COMMA()                                                                            \
    do {                                                                                           \
        if (!comma_locale_set(data_root))                                                          \
            SKIP("no locale with a decimal comma, and localedef makes none");                      \
        char half[8];                                                                              \
        (void)snprintf(half, sizeof half, "%g", 0.5);                                              \
        assert_string_equal(half, "0,5");                                                          \
    } while (0)

static int back_to_c(void **state) {
    (void)state;
    comma_locale_end();
    return 0;
}

static void reals_have_a_point(void **state) {
    (void)state;
    char text[32], *end;
    NEEDS_A_COMMA();
    assert_string_equal(wefti_real_text(0.1, 6, 17, text), "0.1");
    assert_string_equal(wefti_real_text(-1.25e-300, 6, 17, text), "-1.25e-300");
    assert_string_equal(wefti_real_text(3, 6, 17, text), "3");
    assert_string_equal(wefti_real_text(1e30, 6, 17, text), "1e+30");
    assert_string_equal(wefti_real_text(2.0 / 3, 9, 9, text), "0.666666667");
    assert_true(strtod("0", NULL) == 0 && wefti_real_read("0.25;", &end) == 0.25 && *end == ';');
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t bits = (uint64_t)wefti_philox_u32(11, 0, i) << 32 | wefti_philox_u32(11, 1, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        assert_true(wefti_real_read(wefti_real_text(value, 6, 17, text), NULL) == value);
        assert_null(strchr(text, ','));
    }
}

static void a_job_is_the_same(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_word(&w, "data.validation=0.25");
    add_word(&w, "train.optimizer.betas=[0.9, 0.95]");
    weft_job *job = job_of(&w), *again;
    NEEDS_A_COMMA();
    again = job_of(&w);
    assert_true(again->data.validation_fraction == 0.25);
    assert_true(again->train.optimizer.lr == 0.01);
    assert_string_equal(again->text, job->text);
    weft_job_free(job);
    weft_job_free(again);
}

/* Every line of a file; returns how many there are. */
static int parse_lines(const char *path) {
    char *text;
    int64_t bytes;
    wefti_arena *arena;
    int lines = 0;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    ASSERT_OK(wefti_arena_create(&arena));
    for (char *line = text, *end; *line; line = end + 1, lines++) {
        const wefti_json_limits limits = {4, 32, 32};
        const wefti_json *object;
        assert_non_null(end = strchr(line, '\n'));
        ASSERT_OK(wefti_json_parse(arena, line, end - line, &limits, &object));
    }
    wefti_arena_destroy(arena);
    wefti_free(text);
    return lines;
}

static void check_trace(const char *path) {
    const wefti_json_limits limits = {8, 64, 1 << 20};
    const wefti_json *root, *events;
    wefti_arena *arena;
    char *text;
    int64_t bytes;
    bool timed = false;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &root));
    ASSERT_OK(wefti_json_array(root, "traceEvents", &events));
    WEFTI_JSON_EACH(event, events) {
        const wefti_json *duration = wefti_json_get(event, "dur");
        timed = timed || (duration && duration->kind == WEFTI_JSON_REAL && duration->as.real > 0);
    }
    assert_true(timed);
    wefti_arena_destroy(arena);
    wefti_free(text);
}

static void what_a_run_writes_is_json(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_word(&w, "train.log=%s", in_root("comma.jsonl"));
    add_word(&w, "%s", dir_word("comma"));
    add_word(&w, "train.steps=5");
    record r = {.first = 0};
    char trace[300];
    (void)snprintf(trace, sizeof trace, "%s", in_root("comma.trace"));
    NEEDS_A_COMMA();
    weft_job *job = job_of(&w);
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &r, .step = on_step, .trace = trace);
    ASSERT_OK(weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    assert_int_equal(parse_lines(in_root("comma.jsonl")), 6);
    check_trace(trace);
    wefti_checkpoint *c;
    ASSERT_OK(wefti_checkpoint_open(in_root("comma"), WEFTI_CHECKPOINT_LATEST, &c, NULL));
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    assert_string_equal(wefti_checkpoint_value(&meta->settings, "lr"), "0.01");
    wefti_checkpoint_close(c);
}

static char *file_of(const char *path) {
    char *text;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    return text;
}

/* The page of a prediction and its timeline. */
static void a_prediction_writes_the_same(void **state) {
    (void)state;
    words w = tiny_gpt2();
    char *text[2][2];
    weft_job *job = job_of(&w);
    char page[300], trace[300];
    (void)snprintf(page, sizeof page, "%s", in_root("comma.html"));
    (void)snprintf(trace, sizeof trace, "%s", in_root("predicted.trace"));
    for (int comma = 0; comma < 2; comma++) {
        const weft_predict_options o =
            WEFT_STRUCT(weft_predict_options, .machine = "v100", .report = page, .trace = trace);
        weft_prediction *p;
        if (comma) NEEDS_A_COMMA();
        ASSERT_OK(weft_job_predict(job, &o, &p));
        weft_prediction_free(p);
        text[comma][0] = file_of(page);
        text[comma][1] = file_of(trace);
    }
    check_trace(trace);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(text[0][i], text[1][i]);
        wefti_free(text[0][i]);
        wefti_free(text[1][i]);
    }
    weft_job_free(job);
}

static void a_graph_is_read_back(void **state) {
    (void)state;
    weft_graph *g, *again;
    char *text, *second;
    NEEDS_A_COMMA();
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_param(g, "x", WEFT_DESC(WEFT_F32, 4), (weft_init){WEFT_INIT_NORMAL, 0.02});
    weft_output(g, "y", weft_dropout(g, x, 0.125));
    ASSERT_OK(weft_graph_print(g, &text));
    assert_non_null(strstr(text, "normal(0.02)"));
    ASSERT_OK(wefti_graph_parse(g->ops, text, &again));
    ASSERT_OK(weft_graph_print(again, &second));
    assert_string_equal(text, second);
    weft_text_free(text);
    weft_text_free(second);
    weft_graph_destroy(g);
    weft_graph_destroy(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(reals_have_a_point, back_to_c),
        cmocka_unit_test_teardown(a_job_is_the_same, back_to_c),
        cmocka_unit_test_teardown(what_a_run_writes_is_json, back_to_c),
        cmocka_unit_test_teardown(a_prediction_writes_the_same, back_to_c),
        cmocka_unit_test_teardown(a_graph_is_read_back, back_to_c),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
