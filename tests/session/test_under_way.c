/* Microbatches in flight together, in pipelines and as copies, and calls that read values that
 * other calls change. Results that the caller reads, states and parameters equal the values of one
 * device that runs one microbatch after the other. */
#include "session_models.h"

#include "weft/plan.h"

enum { CELLS = 4, WIDTH = 6, MICRO = 4, STEPS = 3 };
enum { HEAD = CELLS, BEHIND }; /* cells too */

/* Further work of cells: the number of a cell; -1: none. */
typedef struct row {
    bool outputs; /* hidden values are named */
    /* Another cell reads 1: what the loss is made of, 2: what its cell reads, 3: the loss. */
    int behind;
    int read, make; /* a state is read, and its next value made */
    bool factor;    /* the state is a factor of what goes on, else it is only read */
    int dims;       /* of a parameter that all cells read: 0, or 2; -1: none */
    unsigned sizes; /* bit c: cell c only asks whether it is large: no gradient comes of that */
} row;

static const row PLAIN = {.read = -1, .make = -1, .dims = -1};

static weft_value square_means(weft_graph *g, weft_value x) {
    return weft_mean(g, weft_mul(g, x, x), 1, (int[]){0}, true);
}

/* A row of products, [MICRO, WIDTH] each. */
static weft_graph *build(const row *r) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    int64_t shape[2] = {MICRO, WIDTH}, square[2] = {WIDTH, WIDTH}, line[2] = {1, WIDTH};
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F64, 2, shape)), all = x, ema = x;
    weft_value target = weft_input(g, "target", weft_desc_of(WEFT_F64, 2, shape));
    weft_init init = {WEFT_INIT_NORMAL, 0.5}, ones = {WEFT_INIT_CONSTANT, 1};
    /* Just above the half that it is compared with: its first update makes some of it less. */
    weft_init half = {WEFT_INIT_CONSTANT, 0.5 + 1e-9};
    if (r->dims >= 0) all = weft_param(g, "all", weft_desc_of(WEFT_F64, r->dims, line), half);
    if (r->make >= 0) ema = weft_state(g, "ema", weft_desc_of(WEFT_F64, 2, line), ones);
    for (int c = 0; c < CELLS; c++) {
        weft_cell_begin(g, "cell%d", c);
        weft_value w = weft_param(g, "weight", weft_desc_of(WEFT_F64, 2, square), init);
        x = weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
        if (r->dims >= 0 && r->sizes >> c & 1u) {
            weft_value limit = weft_constant(g, weft_desc_of(WEFT_F64, 0, NULL), 0.5);
            weft_value more = weft_compare(g, all, limit, WEFT_GT);
            x = weft_mul(g, x, weft_shift(g, weft_cast(g, more, WEFT_F64), 0.5));
        } else if (r->dims >= 0) {
            x = weft_mul(g, x, all);
        }
        if (c == r->read && r->factor) x = weft_mul(g, x, ema);
        if (c == r->make) {
            weft_value next = square_means(g, x);
            if (c == r->read) next = weft_add(g, weft_scale(g, ema, 0.5), weft_scale(g, next, 0.5));
            weft_state_update(g, ema, next);
        }
        x = weft_cell_end(g, x);
        if (r->outputs && c % 2 == 0) weft_output(g, c ? "third" : "first", x);
    }
    weft_value before = x;
    weft_cell_begin(g, "head");
    if (r->read == HEAD) x = weft_mul(g, x, ema);
    weft_value results[2] = {weft_mse(g, x, target), weft_scale(g, x, 2)};
    weft_cell_end_many(g, r->behind == 1 ? 2 : 1, results);
    weft_loss(g, results[0]);
    if (r->behind) {
        weft_cell_begin(g, "behind");
        x = r->behind == 1 ? results[1] : r->behind == 2 ? before : results[0];
        if (r->make == BEHIND) weft_state_update(g, ema, square_means(g, x));
        weft_output(g, "metric", weft_cell_end(g, weft_mean(g, x, 0, NULL, false)));
    }
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

static weft_session_options options_of(const weft_plan *plan, int microbatches) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_SGD;
    o.microbatches = microbatches;
    o.threads = 2;
    o.plan = plan;
    return o;
}

/* With one microbatch, parameters change while the backward pass continues. Returns the loss of the
 * last step: the mean of the known losses. */
static double train(weft_session *s, int microbatches, bool at_the_end) {
    double loss, sum = 0;
    int known = 0;
    for (int n = 0; n < STEPS; n++) {
        for (int m = 0; m < microbatches; m++) {
            feed_rows(s, 0, (uint64_t)(n * microbatches + m), 0);
            if (microbatches > 1 || at_the_end)
                ASSERT_OK(weft_session_accumulate(s, &loss));
            else
                ASSERT_OK(weft_session_step(s, 0.5, &loss));
            if (n < STEPS - 1 || isnan(loss)) continue;
            sum += loss;
            known++;
        }
        if (microbatches > 1 || at_the_end) ASSERT_OK(weft_session_update(s, 0.5, NULL));
    }
    return sum / known;
}

/* f64: numbers around 1. Some devices sum them in another order. */
static void equal_tensors(const char *what, weft_session *one, weft_session *other) {
    for (int t = 0; t < weft_session_tensors(one, 0); t++) {
        weft_tensor_info info;
        double a[WIDTH * WIDTH], b[WIDTH * WIDTH];
        ASSERT_OK(weft_session_tensor(one, 0, t, &info));
        if (info.role == WEFT_ROLE_INPUT) continue;
        ASSERT_OK(weft_session_read(one, 0, info.name, a, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(other, 0, info.name, b, (size_t)info.bytes));
        for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++)
            if (!(fabs(a[e] - b[e]) <= 1e-12))
                fail_msg("%s: %s[%d] is %.15g, not %.15g", what, info.name, (int)e, b[e], a[e]);
    }
}

/* The session of `options` ends with the values of one device that updates parameters at the end of
 * the step. */
static void same_as_one(const char *what, const row *r, weft_session_options o) {
    weft_graph *g = build(r), *h = build(r);
    weft_session_options alone = options_of(NULL, o.microbatches);
    alone.clip = o.microbatches == 1 ? 1e9 : 0;
    weft_session *one = session_of(g, alone), *other = session_of(h, o);
    double of_one = train(one, o.microbatches, true);
    double of_other = train(other, o.microbatches, o.clip > 0);
    if (!(fabs(of_one - of_other) <= 1e-12))
        fail_msg("%s: the loss is %.15g, not %.15g", what, of_other, of_one);
    equal_tensors(what, one, other);
    weft_session_destroy(one);
    weft_session_destroy(other);
    weft_graph_destroy(g);
    weft_graph_destroy(h);
}

static void refused(const char *part, const row *r, weft_session_options o) {
    weft_graph *g = build(r);
    weft_session *s;
    ASSERT_FAILS(WEFT_E_LAYOUT, part, weft_session_create(g, &o, &s));
    weft_graph_destroy(g);
}

/* ---- plans ---- */

static const struct {
    weft_schedule kind;
    int chunks;
    const char *name;
} schedules[] = {
    {WEFT_PIPELINE_GPIPE, 1, "gpipe"},
    {WEFT_PIPELINE_1F1B, 1, "1f1b"},
    {WEFT_PIPELINE_INTERLEAVED, 2, "interleaved"},
    {WEFT_PIPELINE_ZERO_BUBBLE, 1, "zero bubble"},
    {WEFT_PIPELINE_ZERO_BUBBLE, 2, "zero bubble, two chunks"},
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* Two stages of one device, four microbatches of `copies`. */
static weft_plan *pipeline(int schedule, int copies) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_pipeline(plan, 2, 4, schedules[schedule].kind, schedules[schedule].chunks));
    ASSERT_OK(weft_plan_copies(plan, copies));
    return plan;
}

static weft_plan *copies_of(int devices, int copies) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(devices, &plan));
    ASSERT_OK(weft_plan_copies(plan, copies));
    return plan;
}

/* A stage of one device and one of two. */
static weft_plan *unlike_stages(int level) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(3, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", 2));
    ASSERT_OK(weft_plan_pipeline(plan, 2, 4, WEFT_PIPELINE_1F1B, 1));
    ASSERT_OK(weft_plan_stage_mesh(plan, 0, 1, (int[]){1}));
    ASSERT_OK(weft_plan_stage_mesh(plan, 1, 1, (int[]){2}));
    ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
    return plan;
}

/* Under all schedules, with and without copies, and in copies without stages. */
static void under_all(const row *r) {
    for (int copies = 1; copies <= 2; copies++)
        for (int k = 0; k < SCHEDULES; k++) {
            weft_plan *plan = pipeline(k, copies);
            same_as_one(schedules[k].name, r, options_of(plan, 4 * copies));
            weft_plan_destroy(plan);
        }
    for (int devices = 1; devices <= 2; devices++) {
        weft_plan *plan = copies_of(devices, 2);
        same_as_one("copies", r, options_of(plan, 4));
        weft_plan_destroy(plan);
    }
    weft_plan *plan = unlike_stages(0);
    same_as_one("unlike stages", r, options_of(plan, 4));
    weft_plan_destroy(plan);
}

/* ---- what must hold ---- */

/* A later microbatch must not overwrite a value that an earlier one still reads. */
static void outputs_are_those_of_the_last_microbatch(void **state) {
    (void)state;
    row r = PLAIN;
    r.outputs = true;
    under_all(&r);
}

/* The loss cell is a part of the backward pass, unless a later cell reads its results. */
static void cells_behind_the_loss_have_its_results(void **state) {
    (void)state;
    row r = PLAIN;
    for (r.behind = 1; r.behind <= 3; r.behind++) under_all(&r);
}

/* The later cell may be in another stage than the loss cell, or in a stage that receives its
 * operands. */
static void cells_behind_the_loss_may_be_in_any_stage(void **state) {
    (void)state;
    static const char *const cells[] = {"cell3", "head", "behind"};
    row r = PLAIN;
    for (r.behind = 1; r.behind <= 3; r.behind++)
        for (int cut = 1; cut < 3; cut++)
            for (int k = 0; k < SCHEDULES; k++) {
                if (schedules[k].chunks > 1) continue;
                weft_plan *plan = pipeline(k, 1);
                ASSERT_OK(weft_plan_stage(plan, cells[cut - 1], 0));
                ASSERT_OK(weft_plan_stage(plan, cells[cut], 1));
                r.read = r.make = -1;
                same_as_one(schedules[k].name, &r, options_of(plan, 4));
                r.read = HEAD;
                r.make = BEHIND;
                if (cut == 1 && r.behind == 2)
                    same_as_one(schedules[k].name, &r, options_of(plan, 4));
                weft_plan_destroy(plan);
            }
    weft_plan *plan = pipeline(SCHEDULES - 1, 1); /* the last virtual stage is on the first stage */
    ASSERT_OK(weft_plan_stage(plan, "head", 2));
    ASSERT_OK(weft_plan_stage(plan, "behind", 3));
    r = PLAIN;
    r.behind = 3;
    same_as_one("the first stage reads the loss", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
}

/* Also if a backward pass reads the old value, or if no pass reads it. */
static void states_go_from_microbatch_to_microbatch(void **state) {
    (void)state;
    row r = PLAIN;
    for (r.make = 0; r.make < CELLS; r.make += CELLS - 1)
        for (r.read = -1; r.read <= r.make; r.read += r.make + 1)
            for (int factor = 0; factor < 2; factor++) {
                r.factor = factor;
                under_all(&r);
            }
}

/* A cell reads a state that another cell of the same stage changes: before or after it. */
static void states_of_a_stage_may_be_of_two_cells(void **state) {
    (void)state;
    row r = PLAIN;
    r.factor = true;
    weft_plan *plan = pipeline(1, 1);
    r.read = 0;
    r.make = 1;
    same_as_one("before", &r, options_of(plan, 4));
    r.read = 1;
    r.make = 0;
    same_as_one("behind", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
    plan = copies_of(2, 2);
    r.read = 3;
    same_as_one("copies", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
}

static void states_that_cannot_be_in_order_are_refused(void **state) {
    (void)state;
    row r = PLAIN;
    r.factor = true;
    weft_plan *plan = pipeline(1, 1);
    r.read = 3;
    r.make = 0;
    refused("ema|cell3|stage 1|cell0|stage 0", &r, options_of(plan, 4));
    r.read = 0;
    r.make = 3;
    refused("stage", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
    plan = pipeline(2, 1); /* cells 0 and 2 are on the first stage, but not in one virtual stage */
    r.make = 2;
    refused("virtual", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
    plan = copies_of(2, 2);
    refused("cell", &r, options_of(plan, 4));
    weft_plan_destroy(plan);
}

/* Also a parameter without dimensions, and a stage that reads it without having a gradient for
 * it. */
static void parameters_of_all_stages_have_one_gradient(void **state) {
    (void)state;
    static const unsigned sizes[] = {0, 3, 12, 5, 10};
    row r = PLAIN;
    for (r.dims = 0; r.dims <= 2; r.dims += 2)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            r.sizes = sizes[k];
            under_all(&r);
            for (int level = 1; level <= 3; level++) {
                weft_plan *plan = unlike_stages(level);
                weft_session_options o = options_of(plan, 4);
                same_as_one("levels", &r, o);
                o.clip = 1e9;
                same_as_one("levels, clipped", &r, o);
                weft_plan_destroy(plan);
            }
        }
}

/* Cells that have no gradient for a parameter may still read it in their backward passes after its
 * gradient is complete. */
static void parameters_are_updated_when_nobody_reads_them(void **state) {
    (void)state;
    row r = PLAIN;
    r.dims = 2;
    for (r.sizes = 0; r.sizes + 1 < 1u << CELLS; r.sizes++) {
        same_as_one("one device", &r, options_of(NULL, 1));
        for (int level = 0; level <= 3; level++)
            for (int full = 0; full < 2; full++) {
                weft_plan *plan = copies_of(2, 1);
                ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
                if (full) ASSERT_OK(weft_plan_recompute(plan, WEFT_RECOMPUTE_FULL, NULL, false));
                ASSERT_OK(weft_plan_fusion(plan, "allreduce", WEFT_FUSION_NONE, 0, 0, NULL));
                ASSERT_OK(weft_plan_fusion(plan, "reducescatter", WEFT_FUSION_NONE, 0, 0, NULL));
                same_as_one("two devices", &r, options_of(plan, 1));
                weft_plan_destroy(plan);
            }
    }
}

/* Programs share their memory. */
static void passes_of_other_programs_take_what_is_under_way(void **state) {
    (void)state;
    for (int copies = 1; copies <= 2; copies++) {
        weft_graph *g = build(&PLAIN), *h = build(&PLAIN);
        weft_plan *plan = copies_of(1, copies);
        weft_session *s = session_of(g, options_of(plan, 2));
        int other;
        ASSERT_OK(weft_session_add(s, h, &other));
        feed_rows(s, 0, 1, 0);
        ASSERT_OK(weft_session_accumulate(s, NULL));
        feed_rows(s, 0, 2, 0);
        feed_rows(s, other, 3, 0);
        ASSERT_OK(weft_session_forward(s, other, NULL));
        ASSERT_FAILS(WEFT_E_ARG, "fed", weft_session_accumulate(s, NULL));
        feed_rows(s, 0, 2, 0);
        ASSERT_OK(weft_session_accumulate(s, NULL));
        ASSERT_FAILS(WEFT_E_ARG, "1|2", weft_session_update(s, 0.5, NULL));
        feed_rows(s, 0, 1, 0);
        ASSERT_OK(weft_session_accumulate(s, NULL));
        feed_rows(s, other, 3, 0);
        ASSERT_OK(weft_session_update(s, 0.5, NULL));
        ASSERT_FAILS(WEFT_E_ARG, "fed", weft_session_forward(s, other, NULL));
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
        weft_graph_destroy(h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_those_of_the_last_microbatch),
        cmocka_unit_test(cells_behind_the_loss_have_its_results),
        cmocka_unit_test(cells_behind_the_loss_may_be_in_any_stage),
        cmocka_unit_test(states_go_from_microbatch_to_microbatch),
        cmocka_unit_test(states_of_a_stage_may_be_of_two_cells),
        cmocka_unit_test(states_that_cannot_be_in_order_are_refused),
        cmocka_unit_test(parameters_of_all_stages_have_one_gradient),
        cmocka_unit_test(parameters_are_updated_when_nobody_reads_them),
        cmocka_unit_test(passes_of_other_programs_take_what_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
