/* Weights are packed once per update, out of where they lie between steps: never out of what is
 * gathered for one call, which is not there when they are packed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "program/program.h"
#include "train/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

#define ASSERT_OK(expr)                                                                            \
    do {                                                                                           \
        weft_status status_ = (expr);                                                              \
        if (status_ < 0) fail_msg("%s: %s", #expr, weft_error_message());                          \
    } while (0)

enum { RANKS = 2, PACKED_BYTES = 64 };

/* ---- a backend whose products want their weights packed ---- */

static weft_status pack(const wefti_kernel *kernel, const wefti_run *run, const void *source,
                        void *packed) {
    (void)kernel;
    (void)run;
    (void)source;
    (void)packed;
    return WEFT_OK;
}

static weft_status prepare(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out) {
    (void)backend;
    WEFT_TRY(wefti_backend_reference.prepare(&wefti_backend_reference, node, options, out));
    if (strcmp(node->op->name, "linear") != 0 || !options->pack_weights ||
        !wefti_in_is_param(node, 1))
        return WEFT_OK;
    (*out)->packed_input = 1;
    (*out)->packed_bytes = PACKED_BYTES;
    (*out)->packed_format = 1;
    (*out)->pack = pack;
    return WEFT_OK;
}

static const wefti_backend packing = {"packing", prepare, NULL, NULL, NULL};
static const wefti_backend *const backends[] = {&packing, NULL};

/* ---- what is packed ---- */

static bool is_parameter(const wefti_program *p, int64_t offset) {
    for (int32_t t = 0; t < p->tensor_count; t++)
        if (p->tensors[t].role == WEFTI_TENSOR_PARAM && p->tensors[t].offset == offset) return true;
    return false;
}

static int32_t packed_weights(const weft_plan *plan, int32_t rank) {
    weft_model_config config = {
        .family = WEFT_FAMILY_GPT2, .layers = 2, .hidden = 8, .heads = 2, .context = 4, .vocab = 9};
    weft_optimizer adamw = {WEFT_ADAMW, 0.9, 0.95, 1e-8, 0.9, 0.1, false};
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_program *p;
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, 0, graph->ops, &optimizer));
    ASSERT_OK(wefti_route_cache_create(&routes));
    wefti_program_spec spec = {.graph = graph,
                               .backends = backends,
                               .prepare = {1, 0, true, WEFTI_BF16_AS_F32},
                               .optimizer = wefti_optimizer_plan_of(optimizer),
                               .microbatches = 1,
                               .plan = plan,
                               .rank = rank,
                               .routes = routes};
    ASSERT_OK(wefti_program_build(&spec, &p));
    int32_t count = p->step_count[WEFTI_SECTION_PACK];
    for (int32_t k = 0; k < count; k++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_PACK][k];
        assert_int_equal(step->kind, WEFTI_STEP_PACK);
        if (!is_parameter(p, step->args[1])) fail_msg("'%s' is no parameter's", step->name);
    }
    wefti_program_destroy(p);
    wefti_route_cache_destroy(routes);
    wefti_optimizer_destroy(optimizer);
    weft_graph_destroy(graph);
    return count;
}

static void weights_are_packed_where_they_lie(void **state) {
    (void)state;
    assert_true(packed_weights(NULL, 0) > 0);
    for (int level = 0; level <= 3; level++)
        for (int32_t rank = 0; rank < RANKS; rank++) {
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(RANKS, &plan));
            ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
            int32_t count = packed_weights(plan, rank);
            assert_true(level == 3 ? count == 0 : count > 0);
            weft_plan_destroy(plan);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_are_packed_where_they_lie)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
