/* Builds do not change the graph. Many builds leave no memory behind, and two threads build from
 * one graph at once. */
#include "support.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "graph/text/text.h"
#include "program/print.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

enum { RANKS = 4, LAYERS = 12, MOST_GROWTH = 1 << 20 };

typedef struct model {
    weft_graph *graph;
    weft_plan *plan;
    wefti_optimizer *optimizer;
} model;

/* Two stages of two devices, which split the blocks' products. */
static void open_model(model *m) {
    static const char *const splits[][2] = {{"h.*.attn.c_attn", "n1=tp"},
                                            {"h.*.attn", "heads=tp"},
                                            {"h.*.attn.c_proj", "k=tp"},
                                            {"h.*.mlp.c_fc", "n0=tp"},
                                            {"h.*.mlp.c_proj", "k=tp"}};
    weft_model_config config = {.family = WEFT_FAMILY_GPT2,
                                .layers = LAYERS,
                                .hidden = 32,
                                .heads = 4,
                                .context = 8,
                                .vocab = 50};
    weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    *m = (model){0};
    ASSERT_OK(weft_plan_create(RANKS, &m->plan));
    ASSERT_OK(weft_plan_axis(m->plan, "tp", 2));
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        ASSERT_OK(weft_plan_split_op(m->plan, splits[i][0], splits[i][1]));
    ASSERT_OK(weft_plan_pipeline(m->plan, 2, 4, WEFT_PIPELINE_1F1B, 1));
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &m->graph));
    ASSERT_OK(wefti_graph_wrap(m->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, 0, m->graph, &m->optimizer));
}

static void close_model(model *m) {
    wefti_optimizer_destroy(m->optimizer);
    weft_graph_destroy(m->graph);
    weft_plan_destroy(m->plan);
}

static weft_status build(const model *m, int32_t rank, wefti_route_cache *routes, bool dry,
                         wefti_program **out) {
    const wefti_program_spec spec = {
        .graph = m->graph,
        .kind = wefti_kind_of(rank),
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = dry},
        .optimizer = wefti_optimizer_plan_of(m->optimizer),
        .microbatches = 4,
        .plan = m->plan,
        .rank = rank,
        .routes = routes};
    return wefti_program_build(&spec, out);
}

static int64_t live_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
}

/* WEFT_TEST_BUILDS says how many; the bound is the same for any number. */
static void test_builds_leave_nothing(void **state) {
    (void)state;
    const char *text = getenv("WEFT_TEST_BUILDS");
    const int builds = text ? atoi(text) : 100;
    model m;
    wefti_route_cache *routes;
    wefti_program *program;
    open_model(&m);
    ASSERT_OK(wefti_route_cache_create(&routes));
    for (int32_t r = 0; r < RANKS; r++) { /* fills the cache of routes */
        ASSERT_OK(build(&m, r, routes, false, &program));
        wefti_program_destroy(program);
    }
    const int64_t before = live_bytes();
    for (int k = 0; k < builds; k++) {
        ASSERT_OK(build(&m, k % RANKS, routes, k % 2, &program));
        wefti_program_destroy(program);
    }
    const int64_t grown = live_bytes() - before;
    print_message("%d builds: %lld bytes more\n", builds, (long long)grown);
    assert_true(grown < MOST_GROWTH);
    wefti_route_cache_destroy(routes);
    close_model(&m);
}

typedef struct job {
    const model *m;
    int32_t rank;
    char *text;
    char message[512];
} job;

static void *build_and_print(void *context) {
    job *j = context;
    wefti_route_cache *routes;
    weft_status status = wefti_route_cache_create(&routes);
    for (int k = 0; k < 3 && status >= 0; k++) {
        wefti_program *program;
        wefti_free(j->text);
        j->text = NULL;
        status = build(j->m, j->rank, routes, false, &program);
        if (status < 0) break;
        status = wefti_program_print(program, j->m->plan, &j->text);
        wefti_program_destroy(program);
    }
    wefti_route_cache_destroy(routes);
    if (status < 0) (void)snprintf(j->message, sizeof j->message, "%s", weft_error_message());
    return NULL;
}

static void test_threads_share_a_graph(void **state) {
    (void)state;
    model m;
    open_model(&m);
    char *before, *after;
    ASSERT_OK(weft_graph_print(m.graph, &before));
    job alone[2] = {{.m = &m, .rank = 0}, {.m = &m, .rank = 2}};
    job together[2] = {alone[0], alone[1]};
    pthread_t thread[2];
    /* First together: nothing has been built from the graph that the threads could find. */
    for (int t = 0; t < 2; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, build_and_print, &together[t]), 0);
    for (int t = 0; t < 2; t++) assert_int_equal(pthread_join(thread[t], NULL), 0);
    for (int t = 0; t < 2; t++) build_and_print(&alone[t]);
    for (int t = 0; t < 2; t++) {
        assert_string_equal(alone[t].message, "");
        assert_string_equal(together[t].message, "");
        assert_string_equal(alone[t].text, together[t].text);
        wefti_free(alone[t].text);
        wefti_free(together[t].text);
    }
    ASSERT_OK(weft_graph_print(m.graph, &after));
    assert_string_equal(before, after);
    wefti_free(before);
    wefti_free(after);
    close_model(&m);
}

/* A dry build prepares no kernel and places all buffers as a real one does. */
static void test_dry_builds_take_the_same_memory(void **state) {
    (void)state;
    model m;
    wefti_route_cache *routes;
    open_model(&m);
    ASSERT_OK(wefti_route_cache_create(&routes));
    for (int32_t r = 0; r < RANKS; r++) {
        wefti_program *real, *dry;
        ASSERT_OK(build(&m, r, routes, false, &real));
        ASSERT_OK(build(&m, r, routes, true, &dry));
        assert_int_equal(real->peak_bytes, dry->peak_bytes);
        assert_int_equal(real->persistent_bytes, dry->persistent_bytes);
        assert_int_equal(real->step_count[0], dry->step_count[0]);
        for (int32_t i = 0; i < real->routine_count; i++)
            assert_int_equal(real->routines[i]->frame_bytes, dry->routines[i]->frame_bytes);
        for (int32_t i = 0; i < dry->routine_count; i++)
            for (int32_t k = 0; k < dry->routines[i]->code_count; k++)
                assert_null(dry->routines[i]->code[k].kernel);
        wefti_program_destroy(real);
        wefti_program_destroy(dry);
    }
    wefti_route_cache_destroy(routes);
    close_model(&m);
}

/* ---- a kind of device that is not here ---- */

static int asked;
static const char *without; /* the op that it has no kernel for; NULL: it has all */

static weft_status open_nothing(wefti_device **out) {
    (void)out;
    fail_msg("a build opened a device");
    return WEFT_E_BUG;
}
static void destroy_kernel(wefti_kernel *kernel) {
    free(kernel);
}
static weft_status prepare_remote(const wefti_backend *backend, const weft_node *node,
                                  const wefti_prepare *options, wefti_kernel **out) {
    (void)backend;
    asked++;
    assert_true(options->dry);
    if (options->accumulate || (without && !strcmp(node->op->name, without))) return WEFT_E_NO_IMPL;
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    **out = (wefti_kernel){
        .destroy = destroy_kernel, .label = "remote", .workspace_bytes = 4096, .in_place = -1};
    return WEFT_OK;
}

/* A dry build needs the kind's backends and no device of it. Another kind's kernels never stand in
 * for one that is missing. */
static void test_a_kind_needs_no_device(void **state) {
    (void)state;
    static const wefti_device_table table = {.name = "remote", .open = open_nothing};
    static const wefti_backend remote = {.name = "remote", .prepare = prepare_remote};
    static const wefti_backend *const backends[] = {&remote, NULL};
    static const wefti_device_kind kind = {&table, backends, NULL};
    model m;
    wefti_route_cache *routes;
    open_model(&m);
    ASSERT_OK(wefti_route_cache_create(&routes));
    wefti_program_spec spec = {.graph = m.graph,
                               .kind = &kind,
                               .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
                               .optimizer = wefti_optimizer_plan_of(m.optimizer),
                               .microbatches = 4,
                               .plan = m.plan,
                               .routes = routes};
    for (int32_t r = 0; r < RANKS; r++) {
        wefti_program *program, *other;
        int kernels = 0;
        spec.rank = r;
        ASSERT_OK(wefti_program_build(&spec, &program));
        assert_ptr_equal(program->kind, &kind);
        for (int32_t i = 0; i < program->routine_count; i++)
            for (int32_t k = 0; k < program->routines[i]->code_count; k++) {
                const wefti_instruction *x = &program->routines[i]->code[k];
                if (!x->node || x->transfer >= 0) continue;
                assert_int_equal(x->workspace_bytes, 4096);
                kernels++;
            }
        assert_true(kernels > 0 && asked >= kernels);
        /* what the ranks send each other does not depend on their kinds */
        ASSERT_OK(build(&m, r, routes, true, &other));
        assert_int_equal(wefti_partition_transfers(program->partition),
                         wefti_partition_transfers(other->partition));
        wefti_program_destroy(other);
        wefti_program_destroy(program);
        without = "linear";
        assert_int_equal(wefti_program_build(&spec, &program), WEFT_E_NO_IMPL);
        assert_non_null(strstr(weft_error_message(), "linear"));
        without = NULL;
    }
    (void)setenv("WEFT_BACKEND", "reference", 1);
    assert_int_equal(wefti_kind_check(&kind), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "remote"));
    (void)unsetenv("WEFT_BACKEND");
    wefti_route_cache_destroy(routes);
    close_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builds_leave_nothing),
        cmocka_unit_test(test_a_kind_needs_no_device),
        cmocka_unit_test(test_dry_builds_take_the_same_memory),
        cmocka_unit_test(test_threads_share_a_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
