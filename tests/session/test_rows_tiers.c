/* Gradients of tables as rows, with tables and states in host memory or on a disk. The bits are
 * those of tables in device memory, and only rows move. Caches and look-ups are counted, failed
 * copies are told, and no step waits for rows that were read ahead. */
#include "rows_trial.h"

#include <errno.h>

#include "base/fault.h"
#include "device/disk_cache.h"

/* What the programs of a device copy to tiers and from them in a step, at most. */
static int64_t moved(const weft_session *s, int32_t rank, int *row_copies) {
    const wefti_program *p = s->views[0]->programs[rank];
    int64_t bytes[WEFTI_SPACES], sum = 0;
    wefti_program_moved(p, 1, bytes);
    for (int i = 0; i < WEFTI_SPACES; i++) sum += bytes[i];
    for (int32_t i = 0; i < p->move_count; i++) *row_copies += p->moves[i].rows > 0;
    return sum;
}

static void tiers_change_no_bits(void **state) {
    (void)state;
    int copies = 0;
    int64_t hits = 0;
    TEST_SEEDS(seed, 1, CASES) {
        dice d = {seed, 1u << 24};
        trial t = trial_of(seed);
        weft_graph *g[2];
        weft_session *s[2];
        t.kind = (weft_optimizer_kind)roll(&d, WEFT_LAMB);
        t.clip = roll(&d, 2) ? 0.01 : 0;
        t.turned = roll(&d, 2);
        const weft_tier parameters = (weft_tier)roll(&d, WEFT_TIERS),
                        states = (weft_tier)roll(&d, WEFT_TIERS);
        const int64_t cache = roll(&d, 4) ? 256 << roll(&d, 8) : 0;
        const double percent = cache && roll(&d, 3) == 0 ? 0.1 + (double)roll(&d, 60) : 0;
        for (int k = 0; k < 2; k++) {
            s[k] = session_for(&t, WEFT_ROWS_AUTO, &g[k]);
            train(s[k], &t);
            t.parameters = parameters;
            t.states = states;
            t.cache = cache;
            t.percent = percent;
            t.told = (int)(seed % 3);
        }
        assert_int_equal(form_of(s[1], "wide"), WEFTI_ROWS_TOUCHED);
        /* Four states at most, there and back, and a look-up; of two tables. */
        const int64_t most =
            2 * 9 * t.micros * t.batch * t.seq * DIM * (int64_t)weft_dtype_bytes(t.dtype);
        for (int32_t r = 0; r < t.devices && !t.level; r++)
            if (moved(s[1], r, &copies) > most)
                fail_msg("WEFT_TEST_SEED=%llu: more than rows move", (unsigned long long)seed);
        hits += weft_session_memory_of(s[1]).cache_hits;
        if (!same_tensors(s[0], s[1], false))
            fail_msg("WEFT_TEST_SEED=%llu (optimizer %d, %s, %d devices, level %d, parameters in "
                     "tier %d, states in %d, cache of %d bytes, %g %%): bits differ",
                     (unsigned long long)seed, t.kind, weft_dtype_text(t.dtype), t.devices, t.level,
                     parameters, states, (int)cache, percent);
        for (int k = 0; k < 2; k++) {
            weft_session_destroy(s[k]);
            weft_graph_destroy(g[k]);
        }
    }
    assert_true(test_one_seed() || (copies > CASES && hits > 20 * CASES));
}

/* The same table in a tier: device memory has room for the rows of a batch alone. */
static void device_memory_holds_rows_alone(void **state) {
    (void)state;
    enum { LARGE = 100000, PLACES = 12 };
    for (int tier = WEFT_TIER_HOST; tier <= WEFT_TIER_DISK; tier++) {
        weft_graph *g;
        weft_plan *plan;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
        weft_value y = weft_embedding(g, table, in, WEFT_F32);
        weft_loss(g, weft_mean(g, weft_tanh(g, y), 0, NULL, false));
        ASSERT_OK(weft_plan_create(1, &plan));
        ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_PARAMETERS, (weft_tier)tier));
        ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_OPTIMIZER, (weft_tier)tier));
        weft_session_options o = plain_options(WEFT_ADAM, 0);
        o.rows = WEFT_ROWS_AUTO;
        o.plan = plan;
        o.disk = folder;
        weft_session *s = session_of(g, o);
        const int32_t ids[PLACES] = {5, 99999, 70000, 5};
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
        }
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
        assert_true(m.predicted_peak_bytes < 16384);
        int copies = 0;
        assert_int_equal(moved(s, 0, &copies), (1 + 2 * 3) * PLACES * DIM * 4);
        assert_int_equal(copies, 1 + 2 * 3);
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* A table with its states on a disk, in a session with a cache of `bytes` for each entry; -p: p per
 * cent. */
static weft_status cached_session(int64_t bytes, weft_graph *g, weft_session **out) {
    weft_plan *plan;
    weft_session_options o = plain_options(WEFT_ADAM, 0);
    ASSERT_OK(weft_plan_create(1, &plan));
    for (int what = WEFT_OFFLOAD_OPTIMIZER; what <= WEFT_OFFLOAD_PARAMETERS; what++) {
        ASSERT_OK(weft_plan_offload(plan, "*", (weft_offload)what, WEFT_TIER_DISK));
        if (bytes < 0)
            ASSERT_OK(weft_plan_cache_percent(plan, "*", (weft_offload)what, -(double)bytes));
        else
            ASSERT_OK(weft_plan_cache(plan, "*", (weft_offload)what, bytes));
    }
    o.rows = WEFT_ROWS_AUTO;
    o.plan = plan;
    o.disk = folder;
    const weft_status status = weft_session_create(g, &o, out);
    weft_plan_destroy(plan);
    return status;
}

static void step_on(weft_session *s, int32_t first) {
    const int32_t ids[] = {first, first + 1, first, 7};
    ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
    ASSERT_OK(weft_session_step(s, 0.1, NULL));
}

/* A device that takes another one's arenas has the rows that were in its cache alone. */
static void move_away(weft_session *s) {
    const wefti_program *p = s->views[0]->programs[0];
    const wefti_disk_place place = {.directory = folder};
    wefti_rank_device *from = wefti_workers_device(s->workers, 0), *to;
    ASSERT_OK(wefti_rank_device_create(1, wefti_program_footprint(p), &place, NULL, &to));
    ASSERT_OK(wefti_rank_device_bind(to, p));
    const int64_t written = wefti_rank_device_row_counts(from).written;
    ASSERT_OK(wefti_rank_device_take(to, from));
    assert_true(wefti_rank_device_row_counts(from).written > written);
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *x = &p->tensors[i];
        const int64_t bytes = weft_desc_bytes(&x->desc);
        if (x->role != WEFTI_TENSOR_PARAM && x->role != WEFTI_TENSOR_OPTIMIZER) continue;
        const wefti_home old = wefti_rank_device_home(from, x->home, bytes),
                         new = wefti_rank_device_home(to, x->home, bytes);
        char *a = malloc((size_t)bytes), *b = malloc((size_t)bytes);
        ASSERT_OK(wefti_home_read(&old, 0, bytes, a));
        ASSERT_OK(wefti_home_read(&new, 0, bytes, b));
        assert_memory_equal(a, b, (size_t)bytes);
        free(a);
        free(b);
    }
    wefti_rank_device_destroy(to);
}

/* The cache is host memory that the session tells, never more than it was given, and never more
 * than all rows need. One without room for a row is refused. A disk that takes no rows any more is
 * told as such. */
static void caches_are_counted(void **state) {
    (void)state;
    enum { LARGE = 5000, SLOT = 3 * DIM * 4 };
    weft_graph *g;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, 4));
    weft_loss(g,
              weft_mean(g, weft_tanh(g, weft_embedding(g, table, in, WEFT_F32)), 0, NULL, false));
    assert_int_equal(cached_session(40, g, &s), WEFT_E_ARG);
    ASSERT_FACTS(weft_error_message(), "cache|table|room");
    for (int64_t bytes = 400; bytes < 4 << 20; bytes *= 7) {
        ASSERT_OK(cached_session(bytes, g, &s));
        const int64_t slots = wefti_program_tensor(s->views[0]->programs[0], "table")->cache_slots,
                      exact = wefti_disk_cache_bytes(slots, SLOT), given = 2 * bytes,
                      host = weft_session_memory_of(s).host_bytes;
        assert_in_range(host, exact, exact + 63);
        assert_true(host <= given);
        assert_true(slots == LARGE || wefti_disk_cache_bytes(slots + 1, SLOT) > given - 63);
        step_on(s, 1);
        assert_int_equal(
            wefti_rank_device_observed_peak(wefti_workers_device(s->workers, 0), WEFTI_SPACE_HOST),
            host);
        weft_session_destroy(s);
    }
    for (int percent = 1; percent < 100; percent += 12) { /* of either entry */
        const int64_t slots = percent < 50 ? LARGE * percent / 50 : LARGE;
        ASSERT_OK(cached_session(-percent, g, &s));
        assert_in_range(weft_session_memory_of(s).host_bytes, wefti_disk_cache_bytes(slots, SLOT),
                        wefti_disk_cache_bytes(slots, SLOT) + 63);
        weft_session_destroy(s);
    }
    ASSERT_OK(cached_session(400, g, &s));
    for (int32_t step = 0; step < 20; step++) step_on(s, 211 * step);
    const weft_session_memory m = weft_session_memory_of(s);
    assert_true(m.cache_hits > 20 && m.cache_misses > 20 && m.cache_written > 0);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, ENOSPC);
    int64_t count;
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, 0, "table", &info));
    float *values = malloc((size_t)info.bytes);
    assert_int_equal(weft_session_read(s, 0, "table", values, (size_t)info.bytes), WEFT_E_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    ASSERT_FACTS(weft_error_message(), "rows|cache|offset");
    free(values);
    values = read_tensor(s, 0, "table", &count);
    assert_true(values[7 * DIM] != 0); /* the row is not lost */
    free(values);
    step_on(s, 3);
    move_away(s);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A cache with room for all rows has the row of each look-up whose row an earlier step looked up.
 * Updates look nothing up. */
static void look_ups_are_counted(void **state) {
    (void)state;
    enum { LARGE = 900, PLACES = 60, UNLIKE = 150 };
    TEST_SEEDS(seed, 1, 6) {
        dice d = {seed, 0};
        weft_graph *g;
        weft_session *s;
        bool seen[LARGE] = {0};
        int64_t look_ups = 0, hit = 0;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES / 4, 4));
        weft_loss(g, weft_mean(g, weft_embedding(g, table, in, WEFT_F32), 0, NULL, false));
        ASSERT_OK(cached_session(1 << 20, g, &s));
        for (int step = 0; step < 8; step++) {
            int32_t ids[PLACES];
            const int64_t unlike = 1 + roll(&d, UNLIKE);
            for (int i = 0; i < PLACES; i++) {
                ids[i] = (int32_t)(roll(&d, unlike) * (LARGE / UNLIKE));
                hit += seen[ids[i]];
            }
            for (int i = 0; i < PLACES; i++) seen[ids[i]] = true;
            look_ups += PLACES;
            ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
            const weft_session_memory m = weft_session_memory_of(s);
            if (m.cache_look_ups != look_ups || m.cache_look_ups_hit != hit)
                fail_msg("WEFT_TEST_SEED=%llu: %lld of %lld look-ups hit, not %lld of %lld",
                         (unsigned long long)seed, (long long)m.cache_look_ups_hit,
                         (long long)m.cache_look_ups, (long long)hit, (long long)look_ups);
        }
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* The copies of all tables' rows begin before any call computes. */
static void look_ups_begin_with_the_pass(void **state) {
    (void)state;
    const trial t = {.kind = WEFT_ADAM,
                     .dtype = WEFT_F32,
                     .devices = 1,
                     .batch = 2,
                     .seq = 3,
                     .parameters = WEFT_TIER_DISK};
    weft_graph *g;
    weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
    const wefti_program *p = s->views[0]->programs[0];
    int posts = 0;
    for (int32_t i = 0; p->steps[0][i].phase != WEFTI_FORWARD; i++) {
        const wefti_program_move *copy = wefti_step_copy(p, &p->steps[0][i]);
        posts += p->steps[0][i].kind == WEFTI_STEP_POST && copy && copy->rows > 0;
    }
    assert_int_equal(posts, 2);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* Each call of the disk fails in turn: the step says so, and names the table. */
static void failed_copies_are_told(void **state) {
    (void)state;
    const trial t = {.kind = WEFT_ADAM,
                     .dtype = WEFT_F32,
                     .devices = 1,
                     .batch = 2,
                     .seq = 3,
                     .parameters = WEFT_TIER_DISK,
                     .states = WEFT_TIER_DISK,
                     .cache = 300};
    for (int64_t nth = 0; nth < 30; nth += 3) {
        weft_graph *g;
        weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
        feed_ids(s, &t, 0);
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        feed_ids(s, &t, 1);
        wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
        const weft_status status = weft_session_step(s, 0.1, NULL);
        const bool failed = wefti_fault_count(WEFTI_FAULT_IO) > nth;
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_int_equal(status, failed ? WEFT_E_IO : WEFT_OK);
        if (failed) ASSERT_FACTS(weft_error_message(), "offset");
        if (failed)
            assert_true(strstr(weft_error_message(), "wide") ||
                        strstr(weft_error_message(), "second"));
        assert_true(failed || nth > 3);
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

static void feed_ahead(weft_session *s, const int32_t *ids, size_t bytes, int64_t nth) {
    wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
    ASSERT_OK(weft_session_feed_ahead(s, 0, "ids", ids, bytes));
    wefti_rank_device_end_ahead(wefti_workers_device(s->workers, 0), false);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
}

/* A step waits for none of the rows that the step before it has read ahead, and for all of those
 * whose reads failed. The bits are those of a session that is told nothing. */
static void steps_do_not_wait_for_rows_ahead(void **state) {
    (void)state;
    enum { LARGE = 5000, PLACES = 4, FAR = 100, COUNT = 9 };
    weft_graph *g;
    weft_session *s[2];
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
    weft_loss(g,
              weft_mean(g, weft_tanh(g, weft_embedding(g, table, in, WEFT_F32)), 0, NULL, false));
    int32_t ids[COUNT + 1][PLACES];
    for (int i = 0; i < (COUNT + 1) * PLACES; i++) ids[i / PLACES][i % PLACES] = i * FAR;
    for (int k = 0; k < 2; k++) ASSERT_OK(cached_session(400, g, &s[k]));
    assert_int_equal(weft_session_feed_ahead(s[0], 0, "ids", ids, 7), WEFT_E_SHAPE);
    assert_int_equal(weft_session_feed_ahead(s[0], 0, "table", ids, 7), WEFT_E_ARG);
    ASSERT_OK(weft_session_feed_ahead(s[0], 0, "ids", ids, sizeof *ids)); /* it has not started */
    for (int step = 0; step < COUNT; step++) {
        const bool failed = step % 3 == 1;
        const weft_session_memory before = weft_session_memory_of(s[0]);
        for (int k = 0; k < 2; k++) {
            ASSERT_OK(weft_session_feed(s[k], 0, "ids", ids[step], sizeof *ids));
            if (!k && step) feed_ahead(s[k], ids[step], sizeof *ids, failed ? 0 : INT64_MAX);
            ASSERT_OK(weft_session_step(s[k], 0.1, NULL));
        }
        const weft_session_memory after = weft_session_memory_of(s[0]);
        const bool ahead = step && !failed;
        assert_int_equal(after.cache_misses - before.cache_misses, ahead ? 0 : PLACES);
        assert_int_equal(after.cache_ahead - before.cache_ahead, ahead ? PLACES : 0);
    }
    assert_true(same_tensors(s[0], s[1], false));
    for (int k = 0; k < 2; k++) weft_session_destroy(s[k]);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_no_bits),
        cmocka_unit_test(device_memory_holds_rows_alone),
        cmocka_unit_test(caches_are_counted),
        cmocka_unit_test(look_ups_are_counted),
        cmocka_unit_test(look_ups_begin_with_the_pass),
        cmocka_unit_test(failed_copies_are_told),
        cmocka_unit_test(steps_do_not_wait_for_rows_ahead),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
