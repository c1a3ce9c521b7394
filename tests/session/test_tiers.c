/* Parameters, optimizer states and saved blocks in tiers below device memory do not change what a
 * session computes. Random programs keep some of them in host memory, others on a disk, and update
 * parameters in slices, on the device or on the host. Losses and all tensors equal those of the
 * plain programs to the bit. A checker, which shares no code with the builder, proves that no step
 * touches what a copy is moving. The bytes of each tier are those that the programs predict.
 * WEFT_TEST_SEED sets the first seed. */
#include "random_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/cpu/emulated.h"
#include "base/fault.h"
#include "base/gcm/gcm.h"
#include "checkpoint/seal/seal.h"
#include "exec/exec.h"
#include "program/match.h"
#include "program/print.h"
#include "session/parts.h"
#include "simulate/simulate.h"
#include "touches.h"
#include "unnamed_file.h"

enum { STEPS = 3, MOST_COPIES = 512 };

static char folder[] = "/tmp/weft-tiers-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

/* ---- the checker ---- */

/* Copies whose waits have not come: what they read, and what they write. */
typedef struct flying {
    int32_t move;
    place from, to;
} flying;

static void check_step(const wefti_program *p, const wefti_step *step, const flying *f) {
    if (touches(p, step, f->to)) fail_msg("step '%s' touches what a copy writes", step->name);
    for (int32_t a = 0; step->kind == WEFTI_STEP_CALL && a < step->routine->args; a++) {
        const place x = {step->args[a], argument_bytes(p, step, a)};
        if (a >= step->routine->inputs && wefti_location_exists(x.at) && overlaps(x, f->from))
            fail_msg("step '%s' changes what a copy reads", step->name);
    }
}

/* Returns the number of copies. */
static int check_section(const wefti_program *p, wefti_section s) {
    flying all[MOST_COPIES];
    int count = 0, copies = 0;
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        const wefti_program_move *copy = wefti_step_copy(p, step);
        if (copy && step->kind == WEFTI_STEP_WAIT) {
            int i = 0;
            while (i < count && all[i].move != step->move) i++;
            assert_true(i < count);
            count--;
            memmove(all + i, all + i + 1, (size_t)(count - i) * sizeof *all);
            continue;
        }
        if (!copy) {
            for (int i = 0; i < count; i++) check_step(p, step, &all[i]);
            continue;
        }
        const flying x = {step->move, {step->args[0], copy->bytes}, {step->args[1], copy->bytes}};
        for (int i = 0; i < count; i++) {
            assert_false(overlaps(x.to, all[i].to));
            assert_false(overlaps(x.to, all[i].from));
            assert_false(overlaps(x.from, all[i].to));
        }
        assert_true(count < MOST_COPIES);
        all[count++] = x;
        copies++;
    }
    assert_int_equal(count, 0);
    return copies;
}

/* ---- programs ---- */

static void add_rules(const trial *t, const weft_graph *g, weft_plan *plan) {
    dice d = {t->seed, 1u << 28};
    for (int64_t i = 0; i < g->root->in_count; i++) {
        const wefti_value_info *v = &g->root->values[g->root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        const bool on_host = roll(&d, 3) == 0;
        if (on_host) {
            char update[256];
            (void)snprintf(update, sizeof update, "%s:update", v->name);
            ASSERT_OK(weft_op_place(plan, update, "host"));
        } else {
            ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_OPTIMIZER,
                                        (weft_tier)roll(&d, WEFT_TIERS)));
        }
        ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_PARAMETERS,
                                    (weft_tier)roll(&d, on_host ? WEFT_TIER_DISK : WEFT_TIERS)));
        ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_GRADIENTS,
                                    (weft_tier)roll(&d, on_host ? WEFT_TIER_DISK : WEFT_TIERS)));
    }
    for (int64_t k = 0; k < g->root->node_count; k++)
        if (g->root->nodes[k].op == &wefti_op_call)
            ASSERT_OK(weft_plan_offload(plan, g->root->nodes[k].scope, WEFT_OFFLOAD_SAVED,
                                        (weft_tier)roll(&d, WEFT_TIERS)));
    plan->offload.least = 1;
    plan->offload.slice = 16 << roll(&d, 8);
    plan->offload.ahead = roll(&d, 3) ? 16 << roll(&d, 12) : 0;
}

/* Copies keep the loops: of the steps that the plain program repeats, none is written out. */
static void check_loops(uint64_t seed, const weft_session *plain, const weft_session *tiers) {
    for (int32_t r = 0; r < plain->devices; r++)
        for (int s = 0; s < WEFTI_SECTIONS; s++) {
            const int32_t one = plain->views[0]->programs[r]->loop_count[s],
                          other = tiers->views[0]->programs[r]->loop_count[s];
            if (one != other)
                fail_msg("seed %llu, rank %d: %d loops in section %d, with tiers %d",
                         (unsigned long long)seed, r, one, s, other);
        }
}

static int64_t bytes_of(const wefti_program *p, wefti_space space) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *x = &p->tensors[i];
        const int64_t unit = space == WEFTI_SPACE_DISK ? 4096 : 64;
        if (wefti_location_space(x->home) != space) continue;
        assert_true(x->role == WEFTI_TENSOR_OPTIMIZER || x->role == WEFTI_TENSOR_PARAM);
        assert_int_equal(wefti_location_offset(x->home) % unit, 0);
        bytes += weft_desc_bytes(&x->desc);
    }
    return bytes;
}

static int64_t later(int64_t end, const place *x, wefti_space space) {
    const int64_t begin = wefti_location_of(space, WEFTI_TRANSIENT, 0).bits;
    if (!wefti_location_exists(x->at) || wefti_location_space(x->at) != space ||
        wefti_location_term(x->at) != WEFTI_TRANSIENT)
        return end;
    const int64_t last = x->at.bits - begin + x->bytes;
    return last > end ? last : end;
}

/* The end of what the calls of the host work on for a while. All of it lies in host memory. */
static int64_t host_calls_end(const wefti_program *p, int *calls) {
    int64_t end = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            place all[MOST_RANGES + 1];
            if (step->kind != WEFTI_STEP_CALL || step->space != WEFTI_SPACE_HOST) continue;
            ++*calls;
            for (int i = places_of(p, step, all) - 1; i >= 0; i--) {
                assert_int_equal(wefti_location_space(all[i].at), WEFTI_SPACE_HOST);
                end = later(end, &all[i], WEFTI_SPACE_HOST);
            }
        }
    return end;
}

/* The end of what copies store for a while, and how many do. */
static int64_t transient_end(const wefti_program *p, wefti_space space, int *stores) {
    const wefti_location begin = wefti_location_of(space, WEFTI_TRANSIENT, 0);
    int64_t end = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            const wefti_program_move *copy = wefti_step_copy(p, step);
            if (!copy || wefti_location_space(step->args[1]) != space ||
                wefti_location_term(step->args[1]) != WEFTI_TRANSIENT)
                continue;
            const int64_t at = step->args[1].bits - begin.bits;
            assert_int_equal(at % (space == WEFTI_SPACE_DISK ? 4096 : 64), 0);
            if (at + copy->bytes > end) end = at + copy->bytes;
            *stores += step->kind == WEFTI_STEP_POST;
        }
    return end;
}

static void check_simulation(const trial *t, const weft_session *s) {
    wefti_machine_model *machine;
    wefti_simulation *slow, *fast;
    ASSERT_OK(wefti_model_find("h100-80g", &machine));
    wefti_simulate_options o = {.machine = machine, .microbatches = t->microbatches};
    const wefti_program *const *programs = (const wefti_program *const *)s->views[0]->programs;
    machine->device.disk_bytes_per_second = (wefti_tier_rates){.source = "tested", .value = 1e6};
    machine->device.host_bytes_per_second = (wefti_tier_rates){.source = "tested", .value = 1e6};
    ASSERT_OK(wefti_simulate(programs, s->devices, &o, &slow));
    machine->device.disk_bytes_per_second.value = 1e12;
    machine->device.host_bytes_per_second.value = 1e12;
    ASSERT_OK(wefti_simulate(programs, s->devices, &o, &fast));
    assert_true(slow->step > fast->step);
    wefti_simulation_free(slow);
    wefti_simulation_free(fast);
    wefti_model_destroy(machine);
}

/* What programs have of a kind: copies, those that store saved blocks or what an update on the host
 * needs, and updates on the host. */
typedef struct totals {
    int copies, stores, host_calls;
} totals;

static void check_programs(const trial *t, const weft_session *s, totals *out) {
    int copies = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_program *p = s->views[0]->programs[r];
        const wefti_footprint f = wefti_program_footprint(p);
        for (int section = 0; section < WEFTI_SECTIONS; section++)
            copies += check_section(p, (wefti_section)section);
        for (int space = WEFTI_SPACE_HOST; space < WEFTI_SPACES; space++) {
            assert_true(f.of[space][WEFTI_PERSISTENT] >= bytes_of(p, (wefti_space)space));
            const int64_t stored = transient_end(p, (wefti_space)space, &out->stores);
            const int64_t used =
                space == WEFTI_SPACE_HOST ? host_calls_end(p, &out->host_calls) : 0;
            assert_int_equal(f.of[space][WEFTI_TRANSIENT], stored > used ? stored : used);
        }
    }
    ASSERT_OK(
        wefti_programs_match((const wefti_program *const *)s->views[0]->programs, s->devices));
    if (copies) check_simulation(t, s);
    out->copies += copies;
}

static void check_observed(const weft_session *s) {
    for (int32_t r = 0; r < s->devices; r++)
        for (int space = 0; space < WEFTI_SPACES; space++)
            assert_int_equal(wefti_rank_device_observed_peak(wefti_workers_device(s->workers, r),
                                                             (wefti_space)space),
                             wefti_footprint_bytes(wefti_session_footprint(s, r, s->view_count),
                                                   (wefti_space)space));
}

/* ---- runs ---- */

static double step_of(const trial *t, weft_session *s, int number) {
    double sum = 0, loss;
    for (int m = 0; m < t->microbatches; m++) {
        ASSERT_OK(feed(s, (uint64_t)(number * t->microbatches + m)));
        ASSERT_OK(weft_session_set_row(s, (number * t->microbatches + m) * t->batch));
        if (t->microbatches == 1 && t->clip == 0)
            return weft_session_step(s, 1e-2, &loss) < 0 ? NAN : loss;
        ASSERT_OK(weft_session_accumulate(s, &loss));
        if (!isnan(loss)) sum += loss;
    }
    ASSERT_OK(weft_session_update(s, 1e-2, NULL));
    return sum;
}

static void compare(uint64_t seed, weft_session *a, weft_session *b) {
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role > WEFT_ROLE_OPTIMIZER) continue;
        void *x = malloc((size_t)info.bytes + 1), *y = malloc((size_t)info.bytes + 1);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        if (memcmp(x, y, (size_t)info.bytes) != 0)
            fail_msg("seed %llu: '%s' differs", (unsigned long long)seed, info.name);
        free(x);
        free(y);
    }
}

static weft_status create(const trial *t, weft_graph *g, bool recovery, weft_session **out) {
    weft_session_options o = weft_session_defaults();
    o.bf16 = t->dtype == WEFT_BF16 ? WEFT_BF16_NATIVE : WEFT_BF16_AUTO;
    o.optimizer.kind = t->optimizer;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = 1;
    o.seed = t->seed;
    o.plan = t->plan;
    o.recovery = recovery;
    o.disk = folder;
    return weft_session_create(g, &o, out);
}

/* Adds what the programs have, which is nothing if no split fits. */
static void run(uint64_t seed, totals *out) {
    trial t = trial_of(seed, false, 4);
    weft_session *plain, *tiers;
    weft_graph *g[2];
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g[0]);
    if (create(&t, g[0], seed % 4 == 0, &plain) >= 0) {
        add_rules(&t, g[1], t.plan);
        ASSERT_OK(create(&t, g[1], seed % 4 == 0, &tiers));
        check_programs(&t, tiers, out);
        check_loops(seed, plain, tiers);
        for (int n = 0; n < STEPS; n++) {
            const double one = step_of(&t, plain, n), other = step_of(&t, tiers, n);
            if (one != other && !(isnan(one) && isnan(other)))
                fail_msg("seed %llu, step %d: losses %g and %g", (unsigned long long)seed, n, one,
                         other);
            compare(seed, plain, tiers);
        }
        check_observed(tiers);
        weft_session_destroy(plain);
        weft_session_destroy(tiers);
    }
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    weft_plan_destroy(t.plan);
}

static void tiers_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    TEST_SEEDS(seed, 1, SANITIZED ? 16 : 40) run(seed, &all);
    print_message("%d copies, %d of them to transient memory; %d updates on the host\n", all.copies,
                  all.stores, all.host_calls);
    if (!test_one_seed()) assert_true(all.copies > 100 && all.stores > 20 && all.host_calls > 50);
}

/* ---- ops on the host ---- */

static bool works_on_state(const weft_body *cell, const weft_node *n) {
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && cell->values[n->in[i]].kind == WEFTI_VALUE_STATE) return true;
    return false;
}

/* Places some ops of a network on the host, or only look-ups, and all updates or none. */
static void place_some(const trial *t, const weft_graph *g, bool look_ups, weft_plan *plan) {
    dice d = {t->seed, 1u << 29};
    const int64_t one_in = 1 + roll(&d, 4);
    for (int round = 0; round < 2; round++)
        for (int64_t k = 0; k < g->root->node_count; k++) {
            const weft_node *call = &g->root->nodes[k];
            for (int64_t j = 0; j < call->callee->node_count; j++) {
                const weft_node *n = &call->callee->nodes[j];
                const bool state = works_on_state(call->callee, n);
                char label[256];
                label_of(call->callee, n, call->scope, label, sizeof label);
                if (look_ups && strcmp(n->op->name, "embedding") != 0) continue;
                if (round ? !state : !look_ups && roll(&d, one_in)) continue;
                ASSERT_OK(weft_op_place(plan, label, round ? "device" : "host"));
            }
        }
    if (roll(&d, 2)) ASSERT_OK(weft_op_place(plan, "*:update", "host"));
}

/* Numbers are equal, or as near as another order of sums leaves them. */
static void compare_near(uint64_t seed, weft_session *a, weft_session *b) {
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role > WEFT_ROLE_STATE || info.desc.dtype != WEFT_F64) continue;
        double *x = malloc((size_t)info.bytes + 1), *y = malloc((size_t)info.bytes + 1);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        for (size_t i = 0; i < (size_t)info.bytes / sizeof *x; i++)
            if (fabs(x[i] - y[i]) > 1e-6 * (1 + fabs(x[i])))
                fail_msg("seed %llu: '%s' differs", (unsigned long long)seed, info.name);
        free(x);
        free(y);
    }
}

static void run_places(uint64_t seed, totals *out, int *exact) {
    trial t = trial_of(seed, false, seed % 4 == 1 ? 1 : 2);
    weft_session *plain, *placed;
    weft_graph *g[2];
    const bool fits = t.stages == 1 && t.plan->copies == 1;
    const bool look_ups = seed % 2, same = look_ups && t.devices == 1;
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g[0]);
    if (fits && create(&t, g[0], seed % 4 == 0, &plain) >= 0) {
        place_some(&t, g[1], look_ups, t.plan);
        ASSERT_OK(create(&t, g[1], seed % 4 == 0, &placed));
        const int before = out->host_calls;
        check_programs(&t, placed, out);
        check_loops(seed, plain, placed);
        *exact += same && out->host_calls > before;
        for (int n = 0; n < STEPS; n++) {
            const double one = step_of(&t, plain, n), other = step_of(&t, placed, n);
            if (same ? one != other && !(isnan(one) && isnan(other))
                     : fabs(one - other) > 1e-6 * (1 + fabs(one)))
                fail_msg("seed %llu, step %d: losses %g and %g", (unsigned long long)seed, n, one,
                         other);
            same ? compare(seed, plain, placed) : compare_near(seed, plain, placed);
        }
        check_observed(placed);
        weft_session_destroy(plain);
        weft_session_destroy(placed);
    }
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    weft_plan_destroy(t.plan);
}

static void places_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    int exact = 0;
    TEST_SEEDS(seed, 501, SANITIZED ? 16 : 48) run_places(seed, &all, &exact);
    print_message("%d copies; %d calls on the host; %d trials to the bit\n", all.copies,
                  all.host_calls, exact);
    if (!test_one_seed())
        assert_true(all.copies > 100 && all.host_calls > 100 && exact > (SANITIZED ? 1 : 5));
}

/* ---- masters on the host ---- */

/* The copies of masters are those of their present values. Returns their number. */
static int check_copies(uint64_t seed, const weft_session *s) {
    int copies = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_program *p = s->views[0]->programs[r];
        const wefti_rank_device *d = wefti_workers_device(s->workers, r);
        for (int32_t i = 0; i < p->tensor_count; i++) {
            const wefti_tensor *x = &p->tensors[i];
            const int64_t elems = weft_desc_elems(&x->desc);
            if (!wefti_location_exists(x->copy)) continue;
            assert_int_equal(wefti_location_space(x->home), WEFTI_SPACE_HOST);
            assert_int_equal(wefti_location_space(x->copy), WEFTI_SPACE_DEVICE);
            const wefti_home master = wefti_rank_device_home(d, x->home, 4 * elems),
                             copy = wefti_rank_device_home(d, x->copy, 2 * elems);
            float *wide = malloc((size_t)elems * 4 + 1);
            uint16_t *narrow = malloc((size_t)elems * 2 + 1);
            ASSERT_OK(wefti_home_read(&master, 0, 4 * elems, wide));
            ASSERT_OK(wefti_home_read(&copy, 0, 2 * elems, narrow));
            for (int64_t e = 0; e < elems; e++)
                if (!isnan(wide[e]) && narrow[e] != wefti_f32_to_bf16(wide[e]))
                    fail_msg("seed %llu, rank %d: the copy of '%s' is not that of element %lld",
                             (unsigned long long)seed, r, x->name, (long long)e);
            free(wide);
            free(narrow);
            copies++;
        }
    }
    return copies;
}

/* Doubles a parameter. */
static void write_one(weft_session *s) {
    weft_tensor_info info;
    int k = 0;
    do ASSERT_OK(weft_session_tensor(s, 0, k++, &info));
    while (info.role != WEFT_ROLE_PARAM || strcmp(info.name, "stem.table") != 0);
    float *x = malloc((size_t)info.bytes + 1);
    ASSERT_OK(weft_session_read(s, 0, info.name, x, (size_t)info.bytes));
    for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++) x[e] *= 2;
    ASSERT_OK(weft_session_write(s, 0, info.name, x, (size_t)info.bytes));
    free(x);
}

/* A session trains a network in mixed precision, with parameters in f32 or with masters on the
 * host. Both have an evaluation. */
typedef struct mixed {
    weft_graph *graphs[2];
    weft_session *session;
} mixed;

static bool open_mixed(const trial *t, bool recovery, bool masters, mixed *out) {
    int program;
    *out = (mixed){.session = NULL};
    for (int k = 0; k < 2; k++) {
        out->graphs[k] = random_network_of(t->seed, t->cells, t->batch, WEFT_BF16, WEFT_F32,
                                           masters ? WEFT_BF16 : WEFT_F32);
        ASSERT_OK(weft_graph_status(out->graphs[k]));
    }
    if (create(t, out->graphs[0], recovery, &out->session) < 0) return false;
    ASSERT_OK(weft_session_add(out->session, out->graphs[1], &program));
    assert_int_equal(program, 1);
    return true;
}
static void close_mixed(mixed *x) {
    if (x->session) weft_session_destroy(x->session);
    for (int k = 0; k < 2; k++) weft_graph_destroy(x->graphs[k]);
}

/* The loss of the evaluation. */
static double evaluate(mixed *x) {
    double loss;
    for (int k = 0; k < weft_session_tensors(x->session, 1); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(x->session, 1, k, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        void *zeros = calloc(1, (size_t)info.bytes + 1);
        ASSERT_OK(weft_session_feed(x->session, 1, info.name, zeros, (size_t)info.bytes));
        free(zeros);
    }
    return weft_session_forward(x->session, 1, &loss) < 0 ? NAN : loss;
}

static void same_loss(uint64_t seed, int step, double one, double other) {
    if (one != other && !(isnan(one) && isnan(other)))
        fail_msg("seed %llu, step %d: losses %.9g and %.9g", (unsigned long long)seed, step, one,
                 other);
}

static void run_masters(uint64_t seed, totals *all, int *copies) {
    trial t = trial_of(seed, false, 4);
    dice d = {seed, 1u << 27};
    mixed plain, masters;
    t.dtype = WEFT_BF16;
    t.batch = 24; /* products of few rows do not round weights */
    const bool recovery = roll(&d, 4) == 0;
    t.optimizer = (weft_optimizer_kind)roll(&d, WEFT_OPTIMIZERS);
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    weft_graph *g = random_network_of(t.seed, t.cells, t.batch, WEFT_BF16, WEFT_F32, WEFT_F32);
    ASSERT_OK(wefti_graph_wrap(g));
    split_ops(&t, g);
    weft_graph_destroy(g);
    if (open_mixed(&t, recovery, false, &plain)) {
        ASSERT_OK(weft_plan_master(t.plan, WEFT_TIER_HOST));
        ASSERT_OK(weft_plan_offload(t.plan, "*", WEFT_OFFLOAD_GRADIENTS,
                                    (weft_tier)roll(&d, WEFT_TIER_DISK)));
        ASSERT_OK(
            weft_plan_offload(t.plan, "*", WEFT_OFFLOAD_SAVED, (weft_tier)roll(&d, WEFT_TIERS)));
        t.plan->offload.least = 1;
        t.plan->offload.slice = 16 << roll(&d, 8);
        t.plan->offload.ahead = 16 << roll(&d, 12);
        assert_true(open_mixed(&t, recovery, true, &masters));
        check_programs(&t, masters.session, all);
        check_loops(seed, plain.session, masters.session);
        for (int n = 0; n < STEPS; n++) {
            same_loss(seed, n, step_of(&t, plain.session, n), step_of(&t, masters.session, n));
            compare(seed, plain.session, masters.session);
            *copies += check_copies(seed, masters.session);
            same_loss(seed, n, evaluate(&plain), evaluate(&masters));
            if (n == 0) write_one(plain.session);
            if (n == 0) write_one(masters.session);
        }
        check_observed(masters.session);
        close_mixed(&masters);
    }
    close_mixed(&plain);
    weft_plan_destroy(t.plan);
}

/* Where products multiply bf16, masters on the host change no bit. */
static void masters_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    int copies = 0;
    wefti_cpu_tune(&wefti_cpu_emulated);
    assert_int_equal(setenv("WEFT_ISA", "amx", 1), 0);
    TEST_SEEDS(seed, 301, SANITIZED ? 3 : 8) run_masters(seed, &all, &copies);
    wefti_cpu_tune(NULL);
    (void)unsetenv("WEFT_ISA");
    print_message("%d copies of masters; %d updates on the host\n", copies, all.host_calls);
    if (!test_one_seed()) assert_true(copies > 50 && all.host_calls > 50);
}

/* ---- what goes wrong ---- */

/* A small session whose parameters, optimizer states and saved blocks all lie on the disk. */
typedef struct small {
    trial trial;
    weft_graph *graph;
} small;

static small small_session(void) {
    small x = {.trial = {.seed = 7, .batch = 4, .microbatches = 1, .optimizer = WEFT_ADAM}};
    x.graph = random_network(7, 2, 4, WEFT_F32);
    ASSERT_OK(weft_graph_status(x.graph));
    ASSERT_OK(weft_plan_create(1, &x.trial.plan));
    for (int what = 0; what < WEFT_OFFLOADS; what++)
        ASSERT_OK(weft_plan_offload(x.trial.plan, "*", (weft_offload)what, WEFT_TIER_DISK));
    x.trial.plan->offload.least = 1;
    return x;
}
static void free_small(small *x) {
    weft_graph_destroy(x->graph);
    weft_plan_destroy(x->trial.plan);
}

/* Builds a session, makes two steps and reads a tensor. */
static weft_status two_steps(small *x) {
    weft_session *s;
    weft_tensor_info info;
    double loss;
    weft_status status = create(&x->trial, x->graph, false, &s);
    for (int n = 0; n < 2 && status >= 0; n++) {
        status = feed(s, (uint64_t)n);
        if (status >= 0) status = weft_session_step(s, 1e-2, &loss);
    }
    for (int k = 0; status >= 0 && k < weft_session_tensors(s, 0); k++) {
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role != WEFT_ROLE_OPTIMIZER) continue;
        char *bytes = malloc((size_t)info.bytes + 1);
        status = weft_session_read(s, 0, info.name, bytes, (size_t)info.bytes);
        free(bytes);
    }
    if (s) weft_session_destroy(s);
    return status;
}

/* Each call to the system fails in turn. The folder has no file afterwards, which rmdir proves. */
static void each_call_fails_in_turn(void **state) {
    (void)state;
    small x = small_session();
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    ASSERT_OK(two_steps(&x));
    const int64_t calls = wefti_fault_count(WEFTI_FAULT_IO);
    print_message("%lld calls\n", (long long)calls);
    assert_true(calls > 20);
    int named = 0;
    for (int64_t nth = 0; nth < calls; nth++) {
        wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
        ASSERT_FAILS(WEFT_E_IO, folder, two_steps(&x));
        named += strstr(weft_error_message(), "weight.m") != NULL;
    }
    assert_true(named > 0); /* the tensor */
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    ASSERT_OK(two_steps(&x));
    free_small(&x);
}

static void limits_are_told(void **state) {
    (void)state;
    small x = small_session();
    weft_session *s;
    weft_session_part part;
    weft_session_options o = weft_session_defaults();
    o.plan = x.trial.plan;
    ASSERT_FAILS(WEFT_E_ARG, "memory.disk.path", weft_session_create(x.graph, &o, &s));
    o.disk = folder;
    o.disk_bytes = 1;
    ASSERT_FAILS(WEFT_E_NOMEM, "memory.disk.size", weft_session_create(x.graph, &o, &s));
    o.disk_bytes = 1 << 20;
    ASSERT_OK(weft_session_create(x.graph, &o, &s));
    const weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.host_bytes, 0);
    assert_true(m.disk_bytes >= m.optimizer_bytes + m.parameter_bytes && m.optimizer_bytes > 0);
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role == WEFT_ROLE_OPTIMIZER || info.role == WEFT_ROLE_PARAM)
            ASSERT_FAILS(WEFT_E_ARG, "weft_session_read_rows",
                         weft_session_local(s, 0, info.name, &part));
    }
    weft_session_destroy(s);
    o.disk = "/no/such/folder";
    ASSERT_OK(weft_session_create(x.graph, &o, &s));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/no/such/folder", feed(s, 0)); /* devices begin here */
    weft_session_destroy(s);
    free_small(&x);
}

/* ---- encryption ---- */

/* The first parameter with some bytes. */
static void first_parameter(weft_session *s, weft_tensor_info *out) {
    int k = 0;
    do ASSERT_OK(weft_session_tensor(s, 0, k++, out));
    while (out->role != WEFT_ROLE_PARAM || out->bytes < 64);
}

/* Whether the file of a session has the bytes of a parameter. Then all of its blocks change, and a
 * step reads them: *out_status. */
static bool shows_parameters(small *x, weft_status *out_status) {
    weft_session *s;
    weft_tensor_info info;
    double loss;
    ASSERT_OK(create(&x->trial, x->graph, false, &s));
    ASSERT_OK(feed(s, 0));
    ASSERT_OK(weft_session_step(s, 1e-2, &loss));
    first_parameter(s, &info);
    const int64_t bytes = weft_session_memory_of(s).disk_bytes;
    unsigned char *file = malloc((size_t)bytes), *tensor = malloc((size_t)info.bytes);
    ASSERT_OK(weft_session_read(s, 0, info.name, tensor, (size_t)info.bytes));
    const int fd = open_unnamed(folder);
    assert_int_equal(pread(fd, file, (size_t)bytes, 0), bytes);
    const bool shown = memmem(file, (size_t)bytes, tensor, 64) != NULL;
    for (int64_t i = 0; i < bytes; i += 4096) file[i] ^= 1;
    assert_int_equal(pwrite(fd, file, (size_t)bytes, 0), bytes);
    ASSERT_OK(feed(s, 1));
    *out_status = weft_session_step(s, 1e-2, &loss);
    if (*out_status < 0) ASSERT_FACTS(weft_error_message(), folder);
    (void)close(fd);
    free(file);
    free(tensor);
    weft_session_destroy(s);
    return shown;
}

/* A process with a key of checkpoints encrypts files of tensors. Last: the key stays. */
static void keys_encrypt_the_file(void **state) {
    (void)state;
    small x = small_session();
    weft_status status;
    const wefti_key key = {.bytes = {1}, .number = 1};
    /* one file */
    ASSERT_OK(weft_plan_offload(x.trial.plan, "*", WEFT_OFFLOAD_SAVED, WEFT_TIER_DEVICE));
    ASSERT_OK(weft_plan_offload(x.trial.plan, "*", WEFT_OFFLOAD_GRADIENTS, WEFT_TIER_DEVICE));
    assert_true(shows_parameters(&x, &status));
    assert_int_equal(status, WEFT_OK); /* a wrong bit is a wrong number */
    if (!wefti_gcm_is_built()) SKIP("no OpenSSL");
    ASSERT_OK(wefti_key_keep(&key));
    assert_false(shows_parameters(&x, &status));
    assert_int_equal(status, WEFT_E_CORRUPT);
    free_small(&x);
    totals unused = {0};
    TEST_SEEDS(seed, 101, SANITIZED ? 2 : 6) run(seed, &unused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_nothing),   cmocka_unit_test(places_change_nothing),
        cmocka_unit_test(masters_change_nothing), cmocka_unit_test(each_call_fails_in_turn),
        cmocka_unit_test(limits_are_told),        cmocka_unit_test(keys_encrypt_the_file)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
