/* Structures that callers fill in: the library takes those of older and of newer headers. */
#include "support.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "infer/generator.h"
#include "no_messages.h"
#include "weft/weft.h"

static weft_graph *small_graph(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){2, 3}));
    weft_loss(g, weft_mse(g, x, weft_scale(g, x, 2)));
    return g;
}

/* As of a program that was compiled when the structure ended before `recovery`. What lies behind it
 * is no concern of the library's. */
static void smaller_ones_get_defaults(void **state) {
    (void)state;
    weft_graph *g = small_graph();
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    assert_int_equal(o.struct_bytes, sizeof o);
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    memset((char *)&o + offsetof(weft_session_options, world), 0xAB,
           sizeof o - offsetof(weft_session_options, world));
    o.struct_bytes = offsetof(weft_session_options, world);
    ASSERT_OK(weft_session_create(g, &o, &s));
    assert_int_equal(weft_session_devices(s), 1);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A library fills no more than the program has room for. */
static void defaults_of_smaller_ones_end_there(void **state) {
    (void)state;
    weft_session_options o;
    weft_search_options search;
    memset(&o, 0xAB, sizeof o);
    memset(&search, 0xAB, sizeof search);
    const size_t has = offsetof(weft_session_options, seed);
    weft_session_fill_defaults(&o, has);
    assert_int_equal(o.struct_bytes, has);
    assert_int_equal(o.microbatches, 1);
    for (size_t at = has; at < sizeof o; at++)
        assert_int_equal(((const unsigned char *)&o)[at], 0xAB);
    weft_search_fill_defaults(&search, offsetof(weft_search_options, rules));
    assert_int_equal(search.search, WEFT_SEARCH_DYNAMIC);
    assert_int_equal(((const unsigned char *)&search)[offsetof(weft_search_options, rules)], 0xAB);
}

/* A newer program may have members that this library does not know, unless they say something. */
static void larger_ones_say_nothing_new(void **state) {
    (void)state;
    struct {
        weft_session_options o;
        int64_t later[2];
    } newer = {.o = weft_session_defaults()};
    weft_graph *g = small_graph();
    weft_session *s;
    newer.o.optimizer.kind = WEFT_NO_OPTIMIZER;
    newer.o.threads = 1;
    newer.o.struct_bytes = sizeof newer;
    ASSERT_OK(weft_session_create(g, &newer.o, &s));
    weft_session_destroy(s);
    newer.later[1] = 1;
    ASSERT_FAILS(WEFT_E_NO_IMPL, "weft_session_options|library",
                 weft_session_create(g, &newer.o, &s));
    weft_graph_destroy(g);
}

/* ---- each of them ---- */

/* A call that takes the structure; most fail, so that it is quick. */
typedef struct sized {
    const char *name;
    size_t bytes;
    size_t keeps; /* what an older program has: `fill` sets members before it only */
    void (*fill)(void *out);
    weft_status (*call)(const void *given);
} sized;

#define ROWS(X)                                                                                    \
    X(weft_bench_options, weft_bench_defaults, min_bytes, o.collective = "nothing",                \
      weft_bench_comm(NULL, o, &(weft_bench *){0}))                                                \
    X(weft_machine_options, weft_machine_defaults, seconds, o.devices = -1,                        \
      weft_machine_measure(NULL, o, &(char *){0}))                                                 \
    X(weft_checkpoint_reshard_options, weft_checkpoint_reshard_defaults, only, o.to = "dp=2",      \
      weft_checkpoint_reshard("/nowhere", "/nowhere/out", o, 0, &(char *){0}))                     \
    X(weft_grid, weft_grid_defaults, before,                                                       \
      (o.dimensions = 2, o.parts[0] = o.parts[1] = 1, o.cells[0] = o.cells[1] = 4),                \
      weft_grid_tile(o, 0, (int64_t[3]){0}, (int64_t[3]){0}))                                      \
    X(weft_data_options, weft_data_defaults, labels, (o.format = "text", o.path = "/nowhere"),     \
      weft_data_open(o, &(weft_data *){0}))                                                        \
    X(weft_generator_options, weft_generator_defaults, memory_bytes, o.threads = 1,                \
      weft_generator_open("/nowhere", o, &(weft_generator *){0}))                                  \
    X(weft_generate_options, weft_generate_defaults, top_k, o.tokens = 1,                          \
      wefti_generate_take(o, &(weft_generate_options){0}))                                         \
    X(weft_eval_options, weft_eval_defaults, data, o.checkpoint = "/nowhere",                      \
      weft_eval_run(NULL, job, o, &(weft_eval_result){0}))                                         \
    X(weft_infer_options, weft_infer_defaults, batch, o.checkpoint = "/nowhere",                   \
      weft_infer_open(NULL, NULL, o, &(weft_infer *){0}))                                          \
    X(weft_infer_files, weft_infer_files_defaults, batch,                                          \
      (o.checkpoint = "/nowhere", o.input = "/nowhere", o.output = "/nowhere"),                    \
      weft_infer_files_run(NULL, NULL, o, &(weft_infer_files_result){0}))                          \
    X(weft_launch_options, weft_launch_defaults, hosts, o.processes = -1, launched(o))             \
    X(weft_health_options, weft_health_defaults, scheduler, o.job = "no such job",                 \
      weft_health_ask(o, &(weft_health){0}))                                                       \
    X(weft_dense_options, weft_dense_defaults, no_bias, o.transposed = true,                       \
      built(weft_dense(graph, "fc", weft_input(graph, "d", floats(2)), 4, o)))                     \
    X(weft_attention_options, weft_attention_defaults, window, o.causal = true,                    \
      built(attend(weft_input(graph, "a", floats(4)), o)))                                         \
    X(weft_conv_options, weft_conv_defaults, dilation, o.padding[0] = 1,                           \
      built(weft_conv2d(graph, weft_input(graph, "i", floats(4)),                                  \
                        weft_input(graph, "k", floats(4)), WEFT_NO_VALUE, o)))                     \
    X(weft_train_events, weft_train_events_defaults, start, o.context = NULL,                      \
      weft_train_run(job, o, &(weft_train_result){0}))                                             \
    X(weft_predict_options, weft_predict_defaults, disturbances, o.machine = "/nowhere",           \
      weft_plan_predict(graph, NULL, NULL, o, &(weft_prediction *){0}))                            \
    X(weft_search_options, weft_search_defaults, rules, o.machine = NULL, searched(o))             \
    X(weft_server_options, weft_server_defaults, threads, o.number = -1, weft_server_run(o))       \
    X(weft_session_options, weft_session_defaults, recovery, o.microbatches = -1,                  \
      weft_session_create(graph, o, &(weft_session *){0}))                                         \
    X(weft_session_keeper, weft_session_keeper_defaults, begin, o.context = NULL, begun(o))        \
    X(weft_session_save_options, weft_session_save_defaults, position, o.keep = -1, saved(o))      \
    X(weft_transport, weft_transport_defaults, context, o.name = "none",                           \
      weft_world_from_transport(o, NULL, &(weft_world *){0}))                                      \
    X(weft_world_options, weft_world_defaults, links, o.communicator = "nothing", joined(o))

static weft_graph *graph; /* of a call */
static weft_job *job;

static weft_desc floats(int rank) {
    return weft_desc_of(WEFT_F32, rank, (int64_t[]){2, 2, 2, 2});
}
static weft_status built(weft_value y) {
    return y.id < 0 ? weft_graph_status(graph) : WEFT_OK;
}
static weft_value attend(weft_value x, const weft_attention_options *o) {
    return weft_attention(graph, x, x, x, o);
}
static weft_session *session_of(void) {
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    ASSERT_OK(weft_session_create(graph, &o, &s));
    return s;
}
static weft_status begun(const weft_session_keeper *o) {
    weft_session *s = session_of();
    const weft_status status = weft_session_begin(s, o);
    weft_session_destroy(s);
    return status;
}
static weft_status saved(const weft_session_save_options *o) {
    weft_session *s = session_of();
    const weft_status status = weft_session_save(s, "nowhere", o);
    weft_session_destroy(s);
    return status;
}
static weft_status searched(const weft_search_options *o) {
    weft_plan *settings, *found = NULL;
    ASSERT_OK(weft_plan_create(2, &settings));
    const weft_status status = weft_plan_search(graph, settings, o, &found, NULL);
    weft_plan_destroy(settings);
    weft_plan_destroy(found);
    return status;
}
static weft_status launched(const weft_launch_options *o) {
    weft_launch_result r;
    const weft_status status = weft_launch_run(o, &r);
    weft_launch_result_free(&r);
    return status;
}
static weft_status joined(const weft_world_options *o) {
    const weft_transport none = no_messages("none", 0, 1);
    return weft_world_from_transport(&none, o, &(weft_world *){0});
}

#define FUNCTIONS(type, defaults, member, set, expr)                                               \
    static void fill_##type(void *out) {                                                           \
        type o = defaults();                                                                       \
        (void)(set);                                                                               \
        memcpy(out, &o, sizeof o);                                                                 \
    }                                                                                              \
    static weft_status call_##type(const void *given) {                                            \
        const type *o = given;                                                                     \
        return (expr);                                                                             \
    }
ROWS(FUNCTIONS)

static const sized all[] = {
#define ROW(type, defaults, member, set, expr)                                                     \
    {#type, sizeof(type), offsetof(type, member), fill_##type, call_##type},
    ROWS(ROW)
#undef ROW
};
enum { SIZED = sizeof all / sizeof *all, BYTES = 2048 };

/* The call's status and message. */
static weft_status call(const sized *s, size_t bytes, unsigned char *given, char message[400]) {
    graph = small_graph();
    memcpy(given, &bytes, sizeof bytes);
    const weft_status status = s->call(given);
    (void)snprintf(message, 400, "%s", status < 0 ? weft_error_message() : "");
    weft_graph_destroy(graph);
    return status;
}

static void each_is_taken_in_other_sizes(void **state) {
    (void)state;
    ASSERT_OK(weft_job_load(NULL, (const char *[]){"model.family=mlp"}, 1, &job));
    for (int i = 0; i < SIZED; i++) {
        const sized *s = &all[i];
        _Alignas(16) unsigned char given[BYTES] = {0};
        char wants[400], is[400], refusal[120];
        assert_true(s->bytes + 16 <= BYTES && s->keeps < s->bytes);
        s->fill(given);
        const weft_status status = call(s, s->bytes, given, wants);
        /* newer, with nothing set; then with something set */
        if (call(s, s->bytes + 16, given, is) != status || strcmp(is, wants) != 0)
            fail_msg("%s, larger: %s, not %s", s->name, is, wants);
        given[s->bytes + 8] = 1;
        if (call(s, s->bytes + 16, given, is) != WEFT_E_NO_IMPL || !strstr(is, s->name))
            fail_msg("%s with a member of later headers: %s", s->name, is);
        /* older: what lies behind it does not count */
        memset(given + s->keeps, 0xAB, BYTES - s->keeps);
        if (call(s, s->keeps, given, is) != status || strcmp(is, wants) != 0)
            fail_msg("%s, smaller: %s, not %s", s->name, is, wants);
        /* without a size, and with one that cannot be */
        (void)snprintf(refusal, sizeof refusal, "%s.struct_bytes is ", s->name);
        static const size_t wrong[] = {0, 7, (1 << 16) + 1, SIZE_MAX};
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
            if (call(s, wrong[w], given, is) != WEFT_E_ARG || !strstr(is, refusal))
                fail_msg("%s of %zu bytes: %s", s->name, wrong[w], is);
    }
    weft_job_free(job);
}

/* A new structure with struct_bytes needs a row above. */
static void the_headers_have_no_others(void **state) {
    (void)state;
    FILE *f = popen("grep -h -B1 'size_t struct_bytes;$' include/weft/*.h", "r");
    char line[256], name[128];
    int found = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        int known = 0;
        if (sscanf(line, "typedef struct %127s {", name) != 1) continue;
        for (int i = 0; i < SIZED; i++) known += !strcmp(all[i].name, name);
        if (known != 1) fail_msg("%s begins with struct_bytes: add it to ROWS", name);
        found++;
    }
    assert_int_equal(pclose(f), 0);
    assert_int_equal(found, SIZED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_ones_get_defaults),
        cmocka_unit_test(defaults_of_smaller_ones_end_there),
        cmocka_unit_test(larger_ones_say_nothing_new),
        cmocka_unit_test(each_is_taken_in_other_sizes),
        cmocka_unit_test(the_headers_have_no_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
