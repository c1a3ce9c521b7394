/* A session shows its completed plan and the program of each device: the plan makes the same
 * programs again, the programs say where slices begin, and wrong questions are refused. */
#include "session_models.h"

#include "base/memory.h"
#include "weft/program.h"

static weft_session *split_session(weft_graph *g, const weft_plan *plan) {
    weft_session_options o = weft_session_defaults();
    o.threads = 1;
    o.plan = plan;
    return session_of(g, o);
}

static weft_plan *two_by_two(void) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(4, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", 2));
    ASSERT_OK(weft_plan_axis(plan, "tp", 2));
    ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_fc:linear", "n0=tp"));
    return plan;
}

/* The part of a program's text behind its first line of tensors; strategies of the plan may differ
 * in form. */
static void assert_same_programs(const weft_session *a, const weft_session *b, int rank) {
    char *texts[2];
    ASSERT_OK(weft_session_program_json(a, 0, rank, &texts[0]));
    ASSERT_OK(weft_session_program_json(b, 0, rank, &texts[1]));
    for (int i = 0; i < 2; i++) cut_program_bytes(texts[i]);
    assert_string_equal(texts[0], texts[1]);
    weft_text_free(texts[0]);
    weft_text_free(texts[1]);
}

static void the_plan_is_complete(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_plan *given = two_by_two(), *shown, *again;
    weft_session *s = split_session(g, given);
    char *text;
    ASSERT_OK(weft_session_plan(s, &shown));
    assert_int_equal(weft_plan_devices(shown), 4);
    ASSERT_OK(weft_plan_print(shown, &text));
    assert_non_null(strstr(text, "h.*.mlp.c_proj:linear")); /* which follows from c_fc */
    assert_non_null(strstr(text, "k=tp"));
    weft_text_free(text);
    weft_graph *other = tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_session *same = split_session(other, shown);
    for (int r = 0; r < 4; r++) assert_same_programs(s, same, r);
    ASSERT_OK(weft_session_plan(same, &again)); /* nothing is left to complete */
    ASSERT_OK(weft_plan_diff(shown, again, &text));
    assert_string_equal(text, "");
    weft_text_free(text);
    weft_plan_destroy(again);
    weft_plan_destroy(shown);
    weft_plan_destroy(given);
    weft_session_destroy(same);
    weft_graph_destroy(other);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void programs_show_where_slices_begin(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_graph *eval = tiny_gpt2(WEFT_USE_EVAL, 4, 0, WEFT_F32);
    weft_plan *plan = two_by_two();
    weft_session *s = split_session(g, plan);
    int program;
    ASSERT_OK(weft_session_add(s, eval, &program));
    for (int r = 0; r < 4; r++) { /* c_fc.weight is [32, 64], split by columns over tp */
        char *text, *line, *end, from[40];
        ASSERT_OK(weft_session_program_text(s, 0, r, &text));
        line = strstr(text, "\ntensors:");
        assert_non_null(line);
        line = strstr(line, "  h.1.mlp.c_fc.weight  ");
        assert_non_null(line);
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        (void)snprintf(from, sizeof from, "from (0, %d)", r % 2 ? 32 : 0);
        if (!strstr(line, from)) fail_msg("rank %d: no '%s' in: %s", r, from, line);
        weft_text_free(text);
        ASSERT_OK(weft_session_program_json(s, program, r, &text));
        (void)snprintf(from, sizeof from, "\"rank\": %d", r);
        assert_non_null(strstr(text, from));
        assert_non_null(strstr(text, "\"begin\": ["));
        weft_text_free(text);
    }
    char *text = NULL;
    ASSERT_FAILS(WEFT_E_ARG, "rank 4", weft_session_program_text(s, 0, 4, &text));
    ASSERT_FAILS(WEFT_E_ARG, "program 2", weft_session_program_text(s, 2, 0, &text));
    ASSERT_FAILS(WEFT_E_ARG, "program -1", weft_session_program_json(s, -1, 0, &text));
    ASSERT_FAILS(WEFT_E_ARG, "session", weft_session_program_text(NULL, 0, 0, &text));
    ASSERT_FAILS(WEFT_E_ARG, "weft_session_plan", weft_session_plan(NULL, NULL));
    weft_plan_destroy(plan);
    weft_session_destroy(s);
    weft_graph_destroy(eval);
    weft_graph_destroy(g);
}

static void one_device_has_a_plan_too(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_session *s = split_session(g, NULL);
    weft_plan *plan;
    char *text;
    int64_t first, rows;
    ASSERT_OK(weft_session_plan(s, &plan));
    assert_int_equal(weft_plan_devices(plan), 1);
    weft_plan_destroy(plan);
    ASSERT_OK(weft_session_program_text(s, 0, -1, &text));
    assert_non_null(strstr(text, "wte.weight"));
    assert_null(strstr(text, "  from ("));
    weft_text_free(text);
    ASSERT_OK(weft_session_rows(s, 0, "tokens", &first, &rows)); /* all, in one process */
    assert_int_equal(first, 0);
    assert_int_equal(rows, 4);
    ASSERT_FAILS(WEFT_E_ARG, "wte.weight", weft_session_rows(s, 0, "wte.weight", &first, &rows));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_complete),
        cmocka_unit_test(programs_show_where_slices_begin),
        cmocka_unit_test(one_device_has_a_plan_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
