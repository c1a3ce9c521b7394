/* Traces: JSON that parses and holds every recorded event, for any names. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/json/json.h"
#include "exec/exec.h"
#include "weft/ops.h"
#include "weft/session.h"

static char path[200];

static int make_path(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/weft-test-trace-XXXXXX",
                   directory ? directory : P_tmpdir);
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}
static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

/* The events of the file with a duration; the number of all goes to *out_count. */
static const wefti_json *parse(wefti_arena *arena, int *out_count) {
    static const wefti_json_limits limits = {16, 100, 1 << 20};
    char *text;
    int64_t bytes;
    const wefti_json *root, *events;
    ASSERT_OK(wefti_file_read(path, 1 << 26, &text, &bytes));
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &root));
    ASSERT_OK(wefti_json_array(root, "traceEvents", &events));
    wefti_free(text);
    *out_count = 0;
    WEFTI_JSON_EACH(event, events) {
        const char *phase;
        ASSERT_OK(wefti_json_text(event, "ph", &phase));
        *out_count += !strcmp(phase, "X");
    }
    return events;
}

static double real(const wefti_json *object, const char *key) {
    const wefti_json *v = wefti_json_get(object, key);
    assert_non_null(v);
    return v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
}

static void any_name_is_valid_json(void **state) {
    (void)state;
    static const char *const names[] = {
        "plain",          "", "a \"quoted\" \\ name", "tab\tline\n\x01", "caf\xC3\xA9 \xE6\xBC\xA2",
        "\xFF\xC3(broken"};
    enum { NAMES = sizeof names / sizeof *names };
    wefti_trace *t;
    wefti_arena *arena;
    int count, at = 0;
    char lengths[200][120];
    ASSERT_OK(wefti_trace_open(path, 1, WEFTI_TRACE_OF_HOST, &t));
    for (int i = 0; i < NAMES; i++)
        wefti_trace_event(t, 0, 1, names[i], names[NAMES - 1 - i], 5000 + 1000 * i, 7000 + 1000 * i,
                          2e3, 4e3);
    for (int i = 0; i < 100; i++) { /* cut anywhere, characters of several bytes included */
        int n = snprintf(lengths[i], sizeof lengths[i], "%.*s", i, "");
        for (; n < i; n++) lengths[i][n] = 'x';
        (void)snprintf(lengths[i] + n, sizeof lengths[i] - (size_t)n,
                       "\xE6\xBC\xA2\xF0\x9F\x98\x80");
        wefti_trace_event(t, 0, 0, lengths[i], lengths[i], 9000, 9000, 0, 0);
    }
    ASSERT_OK(wefti_trace_close(t));
    ASSERT_OK(wefti_arena_create(&arena));
    const wefti_json *events = parse(arena, &count);
    assert_int_equal(count, NAMES + 100);
    WEFTI_JSON_EACH(event, events) {
        const char *text;
        ASSERT_OK(wefti_json_text(event, "ph", &text));
        if (strcmp(text, "X")) continue;
        ASSERT_OK(wefti_json_text(event, "name", &text));
        if (at < 2) assert_string_equal(text, names[at]);
        if (at < NAMES) {
            assert_true(real(event, "ts") == at && real(event, "dur") == 2);
            const wefti_json *args;
            ASSERT_OK(wefti_json_object(event, "args", &args));
            assert_true(real(args, "GFLOP/s") == 1 && real(args, "GB/s") == 2);
        }
        at++;
    }
    wefti_arena_destroy(arena);
    ASSERT_OK(wefti_trace_close(NULL));
}

/* A trace of a session has each call and each kernel, with the kernels inside their call's time. */
static void a_session_is_traced(void **state) {
    (void)state;
    weft_graph *g;
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 8}));
    for (int c = 0; c < 3; c++) {
        weft_cell_begin(g, "h.%d", c);
        weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, 2, (int64_t[]){8, 8}),
                                  (weft_init){WEFT_INIT_NORMAL, 0.1});
        x = weft_cell_end(g, weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
    }
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    o.threads = 1;
    ASSERT_OK(weft_session_create(g, &o, &s));
    for (int step = 0; step < 3; step++) { /* the second one is recorded */
        const float data[4 * 8] = {0};
        if (step > 0) ASSERT_OK(weft_session_trace(s, step == 1 ? path : NULL));
        ASSERT_OK(weft_session_feed(s, 0, "x", data, sizeof data));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
    }
    wefti_arena *arena;
    int count, cells = 0, kernels = 0, updates = 0;
    double begin[64], end[64];
    ASSERT_OK(wefti_arena_create(&arena));
    const wefti_json *events = parse(arena, &count);
    for (int pass = 0; pass < 2; pass++) WEFTI_JSON_EACH(event, events) {
            const char *phase, *category;
            int64_t track;
            ASSERT_OK(wefti_json_text(event, "ph", &phase));
            if (strcmp(phase, "X")) continue;
            ASSERT_OK(wefti_json_int(event, "tid", &track));
            ASSERT_OK(wefti_json_text(event, "cat", &category));
            double ts = real(event, "ts"), dur = real(event, "dur");
            assert_true(ts >= 0 && dur >= 0);
            if (pass == 0 && track == 0) {
                begin[cells] = ts;
                end[cells++] = ts + dur;
                updates += !strcmp(category, "update");
            } else if (pass == 1 && track == 1) {
                bool inside = false;
                for (int c = 0; c < cells; c++)
                    inside |= ts >= begin[c] - 0.002 && ts + dur <= end[c] + 0.002;
                assert_true(inside);
                kernels++;
            }
        }
    assert_int_equal(updates, 3);
    assert_true(cells >= 3 + 3 + 3 && kernels > cells && cells + kernels == count);
    wefti_arena_destroy(arena);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A path that cannot be written is reported at once, before hours of training without a trace. */
static void a_trace_that_cannot_be_written(void **state) {
    (void)state;
    wefti_trace *t;
    assert_int_equal(wefti_trace_open("/nonexistent/weft/trace.json", 1, WEFTI_TRACE_OF_HOST, &t),
                     WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE("/nonexistent/weft");
    for (int64_t n = 0; n < 4; n++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, true, 0);
        t = NULL;
        weft_status status = wefti_trace_open(path, 1, WEFTI_TRACE_OF_HOST, &t);
        if (status == WEFT_OK) {
            wefti_trace_event(t, 0, 0, "a", "b", 0, 1, 0, 0);
            status = wefti_trace_close(t);
        }
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_int_equal(status, WEFT_E_NOMEM);
    }
}

/* ---- traces of several hosts ---- */

/* A trace of device `pid` with one event from 3 to 4 us, whose host's clocks are as given. */
static void put_trace(const char *file, const char *host, int pid, long monotonic, long real_time,
                      const char *meetings) {
    char text[1024];
    const int bytes = snprintf(
        text, sizeof text,
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"device %d\"}},\n"
        "{\"ph\":\"X\",\"name\":\"a\",\"cat\":\"b\",\"pid\":%d,\"tid\":0,\"ts\":3.000,\"dur\":1."
        "000}"
        "\n],\"otherData\":{\"dropped\":%d,\"host\":\"%s\",\"monotonic_ns\":%ld,\"unix_ns\":%ld,"
        "\"meetings\":[%s]}}\n",
        pid, pid, pid, pid, host, monotonic, real_time, meetings);
    ASSERT_OK(wefti_file_write(file, text, (size_t)bytes));
}

/* Where the events of devices 0 and 1 begin, in us. */
static void begins(double out[2]) {
    wefti_arena *arena;
    int count;
    ASSERT_OK(wefti_arena_create(&arena));
    const wefti_json *events = parse(arena, &count);
    assert_int_equal(count, 2);
    WEFTI_JSON_EACH(event, events)
    if (wefti_json_get(event, "ts")) out[(int)real(event, "pid")] = real(event, "ts");
    wefti_arena_destroy(arena);
}

/* One host: by its monotonic clock. Two hosts: by the median of common meetings, in spite of their
 * clocks; without any, by the real-time clocks. */
static void hosts_have_one_time_line(void **state) {
    (void)state;
    char first[220], second[220];
    double at[2];
    (void)snprintf(first, sizeof first, "%s-0", path);
    (void)snprintf(second, sizeof second, "%s-1", path);
    const char *const files[2] = {first, second};
    static const struct {
        const char *hosts[2], *meetings[2];
        double at[2];
    } cases[] = {
        {{"h", "h"}, {"[1,100]", "[1,900]"}, {3, 8}},
        {{"h", "g"}, {"[1,9000],[2,20000],[3,30000]", "[2,13000],[3,23000],[4,1]"}, {3, 10}},
        {{"h", "g"}, {"[1,1000]", "[1,5000]"}, {7, 3}},
        {{"h", "g"}, {"[1,1]", "[2,1]"}, {3, 12}},
        {{"", ""}, {"", ""}, {3, 12}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_trace(first, cases[i].hosts[0], 0, 1000, 50000, cases[i].meetings[0]);
        put_trace(second, cases[i].hosts[1], 1, 6000, 59000, cases[i].meetings[1]);
        ASSERT_OK(weft_trace_merge(files, 2, path));
        begins(at);
        if (at[0] != cases[i].at[0] || at[1] != cases[i].at[1])
            fail_msg("case %zu: %g and %g", i, at[0], at[1]);
        const char *const again[1] = {path}; /* what was put together is a trace again */
        ASSERT_OK(weft_trace_merge(again, 1, path));
        begins(at);
        assert_true(at[0] == cases[i].at[0] && at[1] == cases[i].at[1]);
    }
    assert_int_equal(unlink(first) + unlink(second), 0);
}

/* Every prefix of a trace, and its bytes changed one by one: refused, or JSON comes out. */
static void damaged_traces_are_refused(void **state) {
    (void)state;
    char file[220], *text, *merged;
    int64_t bytes, length;
    const char *const files[1] = {file};
    static const wefti_json_limits limits = {16, 100, 1 << 20};
    (void)snprintf(file, sizeof file, "%s-0", path);
    put_trace(file, "h", 0, 1000, 50000, "[1,1000]");
    ASSERT_OK(wefti_file_read(file, 1 << 20, &text, &bytes));
    for (int64_t cut = 0; cut < bytes; cut++) {
        ASSERT_OK(wefti_file_write(file, text, (size_t)cut));
        ASSERT_FAILS(WEFT_E_CORRUPT, file, weft_trace_merge(files, 1, path));
    }
    for (int64_t at = 0; at < bytes; at++) {
        const char before = text[at];
        text[at] = before == '9' ? '-' : '9';
        ASSERT_OK(wefti_file_write(file, text, (size_t)bytes));
        text[at] = before;
        if (weft_trace_merge(files, 1, path) < 0) assert_true(*weft_error_message());
    }
    ASSERT_OK(wefti_file_write(file, text, (size_t)bytes));
    ASSERT_OK(weft_trace_merge(files, 1, path));
    wefti_arena *arena;
    const wefti_json *root;
    ASSERT_OK(wefti_file_read(path, 1 << 20, &merged, &length));
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, merged, length, &limits, &root));
    wefti_arena_destroy(arena);
    wefti_free(merged);
    wefti_free(text);
    assert_int_equal(weft_trace_merge(files, 0, path), WEFT_E_ARG);
    assert_int_equal(unlink(file), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_name_is_valid_json),
        cmocka_unit_test(a_session_is_traced),
        cmocka_unit_test(a_trace_that_cannot_be_written),
        cmocka_unit_test(hosts_have_one_time_line),
        cmocka_unit_test(damaged_traces_are_refused),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
