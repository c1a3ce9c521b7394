/* Searched plans of all model families, for several numbers of devices, give the results of one
 * device. */
#include "models/model_fixture.h"

#include <math.h>

#include "plan/plan.h"
#include "session/optimizer.h"
#include "verify.h"
#include "weft/search.h"

enum { BATCH = 4, STEPS = 2 };

static weft_session *session_for(weft_graph *g, const weft_plan *plan, const char *name) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.seed = 5;
    o.threads = 2;
    o.plan = plan;
    if (weft_session_create(g, &o, &s) < 0) fail_msg("%s: %s", name, weft_error_message());
    return s;
}

static void verify(const weft_graph *g, const weft_plan *plan, const weft_plan *settings) {
    const weft_optimizer adamw = weft_optimizer_defaults(WEFT_ADAMW);
    wefti_optimizer *optimizer;
    ASSERT_OK(wefti_optimizer_create(&adamw, false, g, &optimizer));
    (void)verify_plan(&(verify_question){.graph = g,
                                         .plan = plan,
                                         .settings = settings,
                                         .optimizer = wefti_optimizer_plan_of(optimizer)});
    wefti_optimizer_destroy(optimizer);
}

static void check(weft_family family, int devices, weft_search search) {
    const weft_model_config config = tiny(family);
    weft_graph *one_graph = built(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32),
               *graph = built(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32);
    weft_search_options o = weft_search_defaults();
    weft_plan *settings, *plan;
    char name[96];
    snprintf(name, sizeof name, "%s, %d devices, search %d", weft_family_text(family), devices,
             (int)search);
    o.search = search;
    ASSERT_OK(weft_plan_create(devices, &settings));
    if (weft_plan_search(graph, settings, &o, &plan, NULL) < 0)
        fail_msg("%s: %s", name, weft_error_message());
    verify(graph, plan, settings);
    weft_session *one = session_for(one_graph, NULL, name), *s = session_for(graph, plan, name);
    /* ResNet's batch norms magnify rounding from the first update on
     * (docs/guide/reproducibility.md). */
    const bool chaotic = family == WEFT_FAMILY_RESNET18 || family == WEFT_FAMILY_RESNET50;
    for (int k = 0; k < (chaotic ? 1 : STEPS); k++) {
        double want, is;
        feed_all(one, 0, &config, 17 + (uint64_t)k);
        feed_all(s, 0, &config, 17 + (uint64_t)k);
        ASSERT_OK(weft_session_step(one, 1e-3, &want));
        if (weft_session_step(s, 1e-3, &is) < 0) fail_msg("%s: %s", name, weft_error_message());
        if (!(fabs(is - want) <= 5e-5 * fabs(want)))
            fail_msg("%s: loss %d is %.8g, not %.8g", name, k, is, want);
    }
    weft_session_destroy(s);
    weft_session_destroy(one);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(graph);
    weft_graph_destroy(one_graph);
}

static void searched_plans_give_the_result_of_one_device(void **state) {
    (void)state;
    static const int devices[] = {2, 3, 4, 6, 8};
    for (int f = 0; f < WEFT_FAMILIES; f++)
        for (int search = WEFT_SEARCH_DYNAMIC; search <= WEFT_SEARCH_JOINT; search++)
            check((weft_family)f, devices[(f * 2 + search) % 5], (weft_search)search);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(searched_plans_give_the_result_of_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
