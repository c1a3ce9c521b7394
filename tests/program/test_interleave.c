/* Copies interleave inside calls: while a transfer of one copy is in flight, another copy computes,
 * on every rank alike. Without overlap, and with one copy, calls stay whole. A gathered operand of
 * a call is gathered once for all copies. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "backend/kinds.h"
#include "program/match.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

enum { RANKS = 4, LAYERS = 3 };

typedef struct world {
    weft_graph *graph;
    weft_plan *plan;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_program *programs[RANKS];
} world;

/* Megatron's split over two of four devices. */
static void open_world(world *w, int copies, int level, bool overlap) {
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
    *w = (world){0};
    ASSERT_OK(weft_plan_create(RANKS, &w->plan));
    ASSERT_OK(weft_plan_axis(w->plan, "dp", 2));
    ASSERT_OK(weft_plan_axis(w->plan, "tp", 2));
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        ASSERT_OK(weft_plan_split_op(w->plan, splits[i][0], splits[i][1]));
    ASSERT_OK(weft_plan_copies(w->plan, copies));
    ASSERT_OK(weft_plan_overlap(w->plan, overlap));
    if (level) ASSERT_OK(weft_plan_optimizer(w->plan, level, 0, 0));
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 4, 0, WEFT_F32, &w->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, 0, w->graph, &w->optimizer));
    ASSERT_OK(wefti_graph_wrap(w->graph));
    ASSERT_OK(wefti_route_cache_create(&w->routes));
    for (int32_t r = 0; r < RANKS; r++) {
        wefti_program_spec spec = {.graph = w->graph,
                                   .kind = wefti_kind_of(r),
                                   .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32},
                                   .optimizer = wefti_optimizer_plan_of(w->optimizer),
                                   .microbatches = copies,
                                   .plan = w->plan,
                                   .rank = r,
                                   .routes = w->routes};
        ASSERT_OK(wefti_program_build(&spec, &w->programs[r]));
    }
    ASSERT_OK(wefti_programs_match((const wefti_program *const *)w->programs, RANKS));
}

static void close_world(world *w) {
    for (int32_t r = 0; r < RANKS; r++) wefti_program_destroy(w->programs[r]);
    wefti_route_cache_destroy(w->routes);
    wefti_optimizer_destroy(w->optimizer);
    weft_graph_destroy(w->graph);
    weft_plan_destroy(w->plan);
}

static int32_t kernels_in(const wefti_step *step) {
    int32_t count = 0;
    for (int32_t k = step->from; step->kind == WEFTI_STEP_CALL && k < step->to; k++)
        count += step->routine->code[k].kernel != NULL;
    return count;
}

/* The step that continues the call of which step `at` is a part. */
static int32_t next_part(const wefti_program *p, int32_t at) {
    const wefti_step *steps = p->steps[WEFTI_SECTION_FIRST], *x = &steps[at];
    for (int32_t i = at + 1; i < p->step_count[WEFTI_SECTION_FIRST]; i++)
        if (steps[i].kind == WEFTI_STEP_CALL && steps[i].micro == x->micro &&
            steps[i].phase == x->phase && !strcmp(steps[i].name, x->name)) {
            assert_int_equal(steps[i].part, x->part + 1);
            assert_int_equal(steps[i].from, x->to);
            assert_ptr_equal(steps[i].routine, x->routine);
            return i;
        }
    fail_msg("'%s' of microbatch %d does not go on", x->name, x->micro);
    return -1;
}

/* Counts the parts with a transfer in flight while another copy's kernels run, in blocks of the
 * model, and all parts with transfers. */
static void count_hidden(const wefti_program *p, int32_t *hidden, int32_t *all) {
    const wefti_step *steps = p->steps[WEFTI_SECTION_FIRST];
    *hidden = *all = 0;
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        int32_t kernels = 0;
        if (steps[i].kind != WEFTI_STEP_CALL || steps[i].part + 1 == steps[i].parts) continue;
        for (int32_t k = i + 1, end = next_part(p, i); k < end; k++)
            kernels += steps[k].micro != steps[i].micro ? kernels_in(&steps[k]) : 0;
        if (steps[i].name[0] != 'h' || steps[i].name[1] != '.') continue;
        ++*all;
        *hidden += kernels > 0;
    }
}

static void one_computes_while_the_other_waits(void **state) {
    (void)state;
    for (int copies = 2; copies <= 4; copies++)
        for (int level = 0, behind[RANKS] = {0}; level <= 3; level++) {
            world w;
            open_world(&w, copies, level, true);
            for (int32_t r = 0; r < RANKS; r++) {
                const wefti_program *p = w.programs[r], *q = w.programs[0];
                int32_t hidden, all, sums = LAYERS * 4 * (copies / 2 * 2); /* two by two */
                count_hidden(p, &hidden, &all);
                /* two sums in each block's forward pass, two in its backward pass; at level 3, the
                 * backward pass also sums gradients */
                assert_true(level == 3 ? all > sums : all == sums);
                assert_true(hidden >= sums * 3 / 4);
                /* reductions between the calls do not hinder */
                if (level == 0) behind[r] = hidden;
                if (level == 2) assert_int_equal(hidden, behind[r]);
                assert_int_equal(p->step_count[WEFTI_SECTION_FIRST],
                                 q->step_count[WEFTI_SECTION_FIRST]);
                for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
                    const wefti_step *x = &p->steps[WEFTI_SECTION_FIRST][i],
                                     *y = &q->steps[WEFTI_SECTION_FIRST][i];
                    assert_string_equal(x->name, y->name);
                    assert_int_equal(x->micro, y->micro);
                    assert_int_equal(x->part, y->part);
                }
            }
            close_world(&w);
        }
}

static void calls_stay_whole(void **state) {
    (void)state;
    for (int copies = 1; copies <= 2; copies++) {
        world w;
        open_world(&w, copies, 0, copies == 1);
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            for (int32_t i = 0; i < w.programs[0]->step_count[s]; i++) {
                const wefti_step *x = &w.programs[0]->steps[s][i];
                bool reduces = !strncmp(x->name, "gradients up to ", 16);
                if (x->kind != WEFTI_STEP_CALL || reduces) continue;
                assert_int_equal(x->parts, 1);
                assert_int_equal(x->from, 0);
                assert_int_equal(x->to, x->routine->code_count);
            }
        close_world(&w);
    }
}

static int32_t count_gathers(const wefti_program *p) {
    int32_t count = 0;
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *x = &p->steps[WEFTI_SECTION_FIRST][i];
        count += x->kind == WEFTI_STEP_POST || !strncmp(x->name, "gather ", 7);
    }
    return count;
}

static void gathered_once(void **state) {
    world one, two;
    (void)state;
    open_world(&one, 1, 3, true);
    open_world(&two, 2, 3, true);
    int32_t gathers = count_gathers(one.programs[0]);
    assert_true(gathers > 4 * LAYERS);
    assert_int_equal(count_gathers(two.programs[0]), gathers);
    close_world(&one);
    close_world(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_computes_while_the_other_waits),
        cmocka_unit_test(calls_stay_whole),
        cmocka_unit_test(gathered_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
