/* The memory that programs take themselves: the prediction equals what builds have allocated.
 * weft-test: wraps malloc (cmake/WeftPrograms.cmake): calls of the library come here. */
#include "support.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map/map.h"
#include "builder/spec.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

/* ---- the blocks that are live, by address ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void __wrap_free(void *p);

enum { MOST_BLOCKS = 1 << 20 };
static struct {
    uintptr_t address;
    size_t bytes;
} blocks[MOST_BLOCKS];
static int64_t live;
static const uintptr_t REMOVED = 1;

static size_t slot_of(uintptr_t address) {
    return (address >> 4) * 0x9E3779B97F4A7C15u % MOST_BLOCKS;
}

static void add(const void *p, size_t bytes) {
    size_t at = slot_of((uintptr_t)p);
    if (!p) return;
    while (blocks[at].address > REMOVED) at = (at + 1) % MOST_BLOCKS;
    blocks[at].address = (uintptr_t)p;
    blocks[at].bytes = bytes;
    live += (int64_t)bytes;
}

static void take(uintptr_t address) {
    size_t at = slot_of(address);
    while (blocks[at].address && blocks[at].address != address) at = (at + 1) % MOST_BLOCKS;
    if (!blocks[at].address || !address) return;
    blocks[at].address = REMOVED;
    live -= (int64_t)blocks[at].bytes;
}

void *__wrap_malloc(size_t bytes) {
    void *p = __real_malloc(bytes);
    add(p, bytes);
    return p;
}

void *__wrap_calloc(size_t count, size_t bytes) {
    void *p = __real_calloc(count, bytes);
    add(p, count * bytes);
    return p;
}

void *__wrap_realloc(void *old, size_t bytes) {
    const uintptr_t before = (uintptr_t)old;
    void *p = __real_realloc(old, bytes);
    if (!p) return NULL;
    take(before);
    add(p, bytes);
    return p;
}

void __wrap_free(void *p) {
    take((uintptr_t)p);
    __real_free(p);
}

/* ---- builds ---- */

typedef struct job {
    weft_graph *graph;
    const weft_plan *plan;
    int32_t devices, microbatches;
    bool keep_gradients;
} job;

static weft_status build(const job *j, const wefti_optimizer *optimizer, int32_t rank, bool dry,
                         wefti_route_cache *routes, wefti_program **out) {
    const wefti_program_spec spec = {
        .graph = j->graph,
        .kind = wefti_kind_of(rank),
        .prepare = {.threads = 2, .bf16 = WEFTI_BF16_AS_F32, .dry = dry},
        .optimizer = wefti_optimizer_plan_of(optimizer),
        .microbatches = j->microbatches,
        .keep_gradients = j->keep_gradients,
        .plan = j->plan,
        .rank = rank,
        .routes = routes};
    return wefti_program_build(&spec, out);
}

/* Builds each rank's program and compares. The first build fills the cache of routes. */
static void check(const job *j, const char *what) {
    const weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    ASSERT_OK(wefti_graph_wrap(j->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, 0, j->graph, &optimizer));
    ASSERT_OK(wefti_route_cache_create(&routes));
    for (int32_t rank = 0; rank < j->devices; rank++) {
        int64_t predicted[3];
        for (int k = 0; k < 3; k++) {
            wefti_program *p;
            const int64_t before = live;
            ASSERT_OK(build(j, optimizer, rank, k == 1, routes, &p));
            predicted[k] = p->program_bytes;
            assert_true(p->program_bytes > (int64_t)sizeof *p);
            if (k == 2 && live - before != predicted[k])
                fail_msg("%s, rank %d: %lld bytes predicted, %lld allocated", what, rank,
                         (long long)predicted[k], (long long)(live - before));
            wefti_program_destroy(p);
            if (k > 0) assert_int_equal(live, before);
        }
        if (predicted[1] != predicted[2])
            fail_msg("%s, rank %d: a dry build predicts %lld bytes, a real one %lld", what, rank,
                     (long long)predicted[1], (long long)predicted[2]);
    }
    wefti_route_cache_destroy(routes);
    wefti_optimizer_destroy(optimizer);
    weft_graph_destroy(j->graph);
}

static const weft_model_config gpt2 = {
    .family = WEFT_FAMILY_GPT2, .layers = 4, .hidden = 32, .heads = 4, .context = 8, .vocab = 50};

static void test_one_device(void **state) {
    (void)state;
    /* Llama's rotary positions have a table that dry kernels leave out. */
    const weft_model_config llama = {.family = WEFT_FAMILY_LLAMA,
                                     .layers = 2,
                                     .hidden = 32,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .ffn = 64,
                                     .context = 16,
                                     .vocab = 50,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 10000};
    job j = {.devices = 1, .microbatches = 1};
    ASSERT_OK(weft_model_build(&gpt2, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &j.graph));
    check(&j, "gpt2");
    ASSERT_OK(weft_model_build(&gpt2, WEFT_USE_TRAIN, 2, 0, WEFT_BF16, &j.graph));
    j.microbatches = 3;
    j.keep_gradients = true;
    check(&j, "gpt2 in bf16 with three microbatches");
    ASSERT_OK(weft_model_build(&llama, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &j.graph));
    check(&j, "llama");
}

static void test_devices(void **state) {
    (void)state;
    static const char *const splits[][2] = {{"h.*.attn.c_attn", "n1=tp"},
                                            {"h.*.attn", "heads=tp"},
                                            {"h.*.attn.c_proj", "k=tp"},
                                            {"h.*.mlp.c_fc", "n0=tp"},
                                            {"h.*.mlp.c_proj", "k=tp"}};
    const weft_schedule schedules[] = {WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_1F1B,
                                       WEFT_PIPELINE_ZERO_BUBBLE};
    for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++) {
        weft_plan *plan;
        job j = {.devices = 4, .microbatches = 6};
        ASSERT_OK(weft_plan_create(j.devices, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", 2));
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
            ASSERT_OK(weft_plan_split_op(plan, splits[i][0], splits[i][1]));
        ASSERT_OK(weft_plan_pipeline(plan, 2, j.microbatches, schedules[s], 1));
        j.plan = plan;
        ASSERT_OK(weft_model_build(&gpt2, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &j.graph));
        check(&j, "two stages");
        weft_plan_destroy(plan);
    }
}

static void test_convolutions(void **state) {
    (void)state;
    job j = {.devices = 1, .microbatches = 1};
    const weft_model_config resnet = {
        .family = WEFT_FAMILY_RESNET18, .image = {3, 32, 32}, .classes = 10};
    ASSERT_OK(weft_model_build(&resnet, WEFT_USE_TRAIN, 4, 0, WEFT_F32, &j.graph));
    check(&j, "resnet");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_device),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_convolutions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
