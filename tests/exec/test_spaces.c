/* Programs with memory in two spaces. Steps copy between them. Each space has arenas and a peak of
 * its own. The builder refuses a step that works on bytes which only copies reach.
 * (weft-test: threads) */
#include "support.h"

#include <math.h>
#include <string.h>

#include "builder/build.h"
#include "exec/rank_device.h"

enum { BYTES = 4096, ROWS = 3, ROW = 100, PITCH = 256 };

static wefti_location here(wefti_term term, int64_t offset) {
    return wefti_location_of(WEFTI_SPACE_DEVICE, term, offset);
}
static wefti_location there(wefti_term term, int64_t offset) {
    return wefti_location_of(WEFTI_SPACE_HOST, term, offset);
}

static void put(wefti_rank_device *d, wefti_location at, const void *from, int64_t bytes) {
    ASSERT_OK(wefti_device_copy(wefti_rank_device_device(d), wefti_rank_device_at(d, at),
                                wefti_location_space(at), from, WEFTI_SPACE_HOST, bytes));
}
static void get(wefti_rank_device *d, wefti_location at, void *to, int64_t bytes) {
    ASSERT_OK(wefti_device_copy(wefti_rank_device_device(d), to, WEFTI_SPACE_HOST,
                                wefti_rank_device_at(d, at), wefti_location_space(at), bytes));
}

/* Rows go from device to host memory and come back behind each other. */
static void copies_go_between_spaces(void **state) {
    (void)state;
    unsigned char given[ROWS * PITCH], got[ROWS * ROW];
    wefti_location out[] = {there(WEFTI_TRANSIENT, 64), here(WEFTI_TRANSIENT, 128)};
    wefti_location spoil[] = {here(WEFTI_TRANSIENT, 128), here(WEFTI_PERSISTENT, 0)};
    wefti_location back[] = {here(WEFTI_TRANSIENT, 2048), there(WEFTI_TRANSIENT, 64)};
    wefti_step steps[] = {
        {.kind = WEFTI_STEP_COPY,
         .name = "out",
         .args = out,
         .bytes = ROW,
         .rows = ROWS,
         .pitch = {ROW, PITCH}},
        {.kind = WEFTI_STEP_COPY, .name = "spoil", .args = spoil, .bytes = ROWS * PITCH},
        {.kind = WEFTI_STEP_COPY, .name = "back", .args = back, .bytes = ROWS * ROW}};
    wefti_program p = {.steps = {steps},
                       .step_count = {3},
                       .persistent_bytes = BYTES,
                       .transient_bytes = BYTES,
                       .tier_bytes = {[WEFTI_SPACE_HOST] = {0, 2 * BYTES}}};
    wefti_rank_device *d;
    ASSERT_OK(wefti_rank_device_create(1, wefti_program_footprint(&p), NULL, NULL, &d));
    for (int i = 0; i < ROWS * PITCH; i++) given[i] = (unsigned char)(i % 251);
    put(d, out[1], given, sizeof given);
    wefti_exec_options options = {.check_finite = false};
    ASSERT_OK(wefti_rank_device_run(d, &p, WEFTI_SECTION_FIRST, &options));
    get(d, back[0], got, sizeof got);
    for (int r = 0; r < ROWS; r++) assert_memory_equal(got + r * ROW, given + r * PITCH, ROW);
    p.tier_bytes[WEFTI_SPACE_HOST][WEFTI_PERSISTENT] = 1;
    assert_int_equal(wefti_rank_device_run(d, &p, WEFTI_SECTION_FIRST, &options), WEFT_E_BUG);
    wefti_rank_device_destroy(d);
}

/* A section fails between the post of a fetch and its wait. The fetch ends with the section: it
 * does not overwrite what the next section makes there. */
static void a_failed_section_leaves_no_copy(void **state) {
    (void)state;
    wefti_location fetch[] = {there(WEFTI_TRANSIENT, 0), here(WEFTI_TRANSIENT, 0)};
    wefti_location store[] = {here(WEFTI_TRANSIENT, 0), there(WEFTI_TRANSIENT, ROW)};
    wefti_location make[] = {here(WEFTI_TRANSIENT, 0), here(WEFTI_PERSISTENT, 0)};
    wefti_location more[] = {here(WEFTI_TRANSIENT, 1024), here(WEFTI_PERSISTENT, 0)};
    wefti_location loss[] = {here(WEFTI_PERSISTENT, 1024)};
    const wefti_program_move move = {.way = WEFTI_WAY_SPACES, .transfer = -1, .bytes = ROW};
    wefti_program_move moves[] = {move, move};
    wefti_step fails[] = {{.kind = WEFTI_STEP_POST, .name = "fetch", .args = fetch, .move = 0},
                          {.kind = WEFTI_STEP_LOSS, .name = "loss", .args = loss},
                          {.kind = WEFTI_STEP_WAIT, .name = "fetch", .args = fetch, .move = 0}};
    wefti_step works[] = {{.kind = WEFTI_STEP_COPY, .name = "make", .args = make, .bytes = ROW},
                          {.kind = WEFTI_STEP_COPY, .name = "more", .args = more, .bytes = ROW},
                          {.kind = WEFTI_STEP_POST, .name = "store", .args = store, .move = 1},
                          {.kind = WEFTI_STEP_WAIT, .name = "store", .args = store, .move = 1}};
    wefti_program p = {.steps = {fails, works},
                       .step_count = {3, 4},
                       .persistent_bytes = BYTES,
                       .transient_bytes = BYTES,
                       .tier_bytes = {[WEFTI_SPACE_HOST] = {0, BYTES}},
                       .loss_dtype = WEFT_F32,
                       .moves = moves,
                       .move_count = 2};
    const float infinite = INFINITY;
    unsigned char fetched[ROW], made[ROW], got[ROW];
    wefti_rank_device *d;
    ASSERT_OK(wefti_rank_device_create(1, wefti_program_footprint(&p), NULL, NULL, &d));
    memset(fetched, 7, ROW);
    memset(made, 8, ROW);
    put(d, fetch[0], fetched, ROW);
    put(d, make[1], made, ROW);
    put(d, loss[0], &infinite, sizeof infinite);
    wefti_exec_options options = {.check_finite = false};
    ASSERT_STATUS(WEFT_E_NUMERIC, wefti_rank_device_run(d, &p, WEFTI_SECTION_FIRST, &options));
    ASSERT_OK(wefti_rank_device_run(d, &p, WEFTI_SECTION_NEXT, &options));
    get(d, store[1], got, ROW);
    assert_memory_equal(got, made, ROW);
    wefti_rank_device_destroy(d);
}

/* Both spaces grow when a program comes, keep what persists, go when it goes, and are taken. */
static void each_space_has_arenas_of_its_own(void **state) {
    (void)state;
    const wefti_footprint first = {{{BYTES, 0}, {BYTES, 0}}},
                          second = {{{BYTES, 0}, {3 * BYTES, 9}}};
    unsigned char given[BYTES], got[BYTES];
    wefti_rank_device *d, *other;
    memset(given, 5, sizeof given);
    ASSERT_OK(wefti_rank_device_create(1, first, NULL, NULL, &d));
    put(d, there(WEFTI_PERSISTENT, 0), given, BYTES);
    ASSERT_OK(wefti_rank_device_reserve(d, second));
    memset(given, 6, sizeof given);
    put(d, there(WEFTI_PERSISTENT, BYTES), given, BYTES);
    wefti_rank_device_observe(d, there(WEFTI_PERSISTENT, 0), 2 * BYTES);
    wefti_rank_device_observe(d, there(WEFTI_TRANSIENT, 0), 7);
    wefti_rank_device_observe(d, here(WEFTI_PERSISTENT, 0), 11);
    assert_int_equal(wefti_rank_device_observed_peak(d, WEFTI_SPACE_HOST), 2 * BYTES + 7);
    assert_int_equal(wefti_rank_device_observed_peak(d, WEFTI_SPACE_DEVICE), 11);
    ASSERT_OK(wefti_rank_device_create(1, second, NULL, NULL, &other));
    ASSERT_OK(wefti_rank_device_take(other, d));
    for (int b = 0; b < 2; b++) {
        get(other, there(WEFTI_PERSISTENT, b * BYTES), got, BYTES);
        for (int i = 0; i < BYTES; i++) assert_int_equal(got[i], 5 + b);
    }
    wefti_rank_device_forget(d, NULL, first);
    assert_int_equal(wefti_rank_device_observed_peak(d, WEFTI_SPACE_HOST), BYTES + 7);
    get(d, there(WEFTI_PERSISTENT, 0), got, BYTES);
    assert_int_equal(got[0], 5);
    wefti_rank_device_forget(d, NULL, (wefti_footprint){{{0}}});
    assert_int_equal(d->arenas[WEFTI_SPACE_HOST][WEFTI_PERSISTENT].count, 0);
    assert_int_equal(d->arenas[WEFTI_SPACE_DEVICE][WEFTI_PERSISTENT].count, 1);
    wefti_rank_device_destroy(other);
    wefti_rank_device_destroy(d);
}

/* A loss in `space`, and a copy of it to the other one. */
static weft_status finish_draft(wefti_space space, wefti_program *p) {
    wefti_program_spec spec = {.microbatches = 1};
    wefti_emitter b = {.p = p, .spec = &spec};
    wefti_draft_step *d;
    int32_t buffer[WEFTI_SPACES];
    ASSERT_OK(wefti_arena_create(&p->arena));
    ASSERT_OK(wefti_arena_create(&b.scratch));
    for (int s = 0; s < WEFTI_SPACES; s++) {
        ASSERT_OK(wefti_buffer_add(&b, 100 * (s + 1), s ? "there" : "here", &buffer[s]));
        b.buffers[buffer[s]].space = (wefti_space)s;
    }
    ASSERT_OK(
        wefti_build_begin(&b, WEFTI_SECTION_FIRST, WEFTI_STEP_COPY, WEFTI_OTHER, "copy", 2, &d));
    wefti_build_arg(&b, d, 0, buffer[1], 0);
    wefti_build_arg(&b, d, 1, buffer[0], 0);
    b.now++;
    ASSERT_OK(
        wefti_build_begin(&b, WEFTI_SECTION_FIRST, WEFTI_STEP_LOSS, WEFTI_OTHER, "loss", 1, &d));
    wefti_build_arg(&b, d, 0, buffer[space], 0);
    b.now++;
    const weft_status status = wefti_buffers_finish(&b);
    wefti_free(b.buffers);
    wefti_free(b.steps[WEFTI_SECTION_FIRST]);
    wefti_arena_destroy(b.scratch);
    return status;
}

static void a_step_works_on_device_memory_only(void **state) {
    (void)state;
    wefti_program p = {0}, refused = {0};
    ASSERT_OK(finish_draft(WEFTI_SPACE_DEVICE, &p));
    const wefti_location *args = p.steps[WEFTI_SECTION_FIRST][0].args;
    assert_int_equal(wefti_location_space(args[0]), WEFTI_SPACE_HOST);
    assert_int_equal(wefti_location_space(args[1]), WEFTI_SPACE_DEVICE);
    assert_true(p.peak_bytes >= 100 && p.peak_bytes < 200);
    assert_int_equal(p.peak_bytes, p.transient_bytes);
    assert_true(p.tier_bytes[WEFTI_SPACE_HOST][WEFTI_TRANSIENT] >= 200);
    assert_int_equal(finish_draft(WEFTI_SPACE_HOST, &refused), WEFT_E_BUG);
    wefti_arena_destroy(refused.arena);
    wefti_arena_destroy(p.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_go_between_spaces),
        cmocka_unit_test(a_failed_section_leaves_no_copy),
        cmocka_unit_test(each_space_has_arenas_of_its_own),
        cmocka_unit_test(a_step_works_on_device_memory_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
