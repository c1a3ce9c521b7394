/* Random programs with tiers below device memory, and ops on the host: what all of them must keep.
 * A checker, which shares no code with the builder, proves that no step touches what a copy is
 * moving. The bytes of each tier are those that the programs predict. */
#ifndef WEFT_TESTS_TIERS_TRIAL_H
#define WEFT_TESTS_TIERS_TRIAL_H

#include "random_plan.h"

#include <stdlib.h>
#include <unistd.h>

#include "exec/exec.h"
#include "program/match.h"
#include "program/print.h"
#include "session/parts.h"
#include "simulate/simulate.h"
#include "touches.h"
#include "unnamed_file.h"

enum { STEPS = 3, MOST_COPIES = 128 };

static char folder[] = "/tmp/weft-tiers-XXXXXX";

static inline int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static inline int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

/* ---- the checker ---- */

/* Copies whose waits have not come: what they read, and what they write. */
typedef struct flying {
    int32_t move;
    place from, to;
} flying;

static inline void check_step(const wefti_program *p, const wefti_step *step, const flying *f) {
    if (touches(p, step, f->to)) fail_msg("step '%s' touches what a copy writes", step->name);
    for (int32_t a = 0; step->kind == WEFTI_STEP_CALL && a < step->routine->args; a++) {
        const place x = {step->args[a], argument_bytes(p, step, a)};
        if (a >= step->routine->inputs && wefti_location_exists(x.at) && overlaps(x, f->from))
            fail_msg("step '%s' changes what a copy reads", step->name);
    }
}

/* Returns the number of copies. */
static inline int check_section(const wefti_program *p, wefti_section s) {
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

/* Copies keep the loops: of the steps that the plain program repeats, none is written out. */
static inline void check_loops(uint64_t seed, const weft_session *plain,
                               const weft_session *tiers) {
    for (int32_t r = 0; r < plain->devices; r++)
        for (int s = 0; s < WEFTI_SECTIONS; s++) {
            const int32_t one = plain->views[0]->programs[r]->loop_count[s],
                          other = tiers->views[0]->programs[r]->loop_count[s];
            if (one != other)
                fail_msg("seed %llu, rank %d: %d loops in section %d, with tiers %d",
                         (unsigned long long)seed, r, one, s, other);
        }
}

static inline int64_t bytes_of(const wefti_program *p, wefti_space space) {
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

static inline int64_t later(int64_t end, const place *x, wefti_space space) {
    const int64_t begin = wefti_location_of(space, WEFTI_TRANSIENT, 0).bits;
    if (!wefti_location_exists(x->at) || wefti_location_space(x->at) != space ||
        wefti_location_term(x->at) != WEFTI_TRANSIENT)
        return end;
    const int64_t last = x->at.bits - begin + x->bytes;
    return last > end ? last : end;
}

/* The end of what the calls of the host work on for a while. All of it lies in host memory. */
static inline int64_t host_calls_end(const wefti_program *p, int *calls) {
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
static inline int64_t transient_end(const wefti_program *p, wefti_space space, int *stores) {
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

static inline void check_simulation(const trial *t, const weft_session *s) {
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

static inline void check_programs(const trial *t, const weft_session *s, totals *out) {
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

static inline void check_observed(const weft_session *s) {
    for (int32_t r = 0; r < s->devices; r++)
        for (int space = 0; space < WEFTI_SPACES; space++)
            assert_int_equal(wefti_rank_device_observed_peak(wefti_workers_device(s->workers, r),
                                                             (wefti_space)space),
                             wefti_footprint_bytes(wefti_session_footprint(s, r, s->view_count),
                                                   (wefti_space)space));
}

/* ---- runs ---- */

static inline double step_of(const trial *t, weft_session *s, int number) {
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

static inline void compare(uint64_t seed, weft_session *a, weft_session *b) {
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

static inline weft_session_options options_of(const trial *t) {
    weft_session_options o = weft_session_defaults();
    o.bf16 = t->dtype == WEFT_BF16 ? WEFT_BF16_NATIVE : WEFT_BF16_AUTO;
    o.optimizer.kind = t->optimizer;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = 1;
    o.seed = t->seed;
    o.plan = t->plan;
    o.disk = folder;
    return o;
}

static inline weft_status create(const trial *t, weft_graph *g, bool recovery, weft_session **out) {
    weft_session_options o = options_of(t);
    o.recovery = recovery;
    return weft_session_create(g, &o, out);
}

#endif
