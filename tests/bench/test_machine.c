/* Measured machine files: complete, valid, for as many devices as measured, and read back equal. */
#include "support.h"

#include <string.h>

#include "measure/machine.h"
#include "session/world_fixture.h"
#include "topo/model.h"
#include "weft/bench.h"
#include "weft/graph.h"

typedef struct seen {
    int figures, curves, pairs;
} seen;

static void count(void *context, const weft_machine_figure *figure) {
    seen *s = context;
    assert_true(figure->value > 0);
    s->figures++;
    s->curves += figure->work > 0;
    s->pairs += figure->ranks[0] >= 0 && figure->ranks[1] > figure->ranks[0];
}

static wefti_machine_model *measured(int devices, seen *s) {
    const weft_machine_options o =
        WEFT_STRUCT(weft_machine_options, .devices = devices, .seconds = 1e-4, .name = "tested",
                    .context = s, .figure = count);
    wefti_machine_model *m;
    char *text;
    ASSERT_OK(weft_machine_measure(NULL, &o, &text));
    ASSERT_OK(wefti_model_parse("measured", text, (int64_t)strlen(text), &m));
    weft_text_free(text);
    return m;
}

static void one_device_has_curves(void **state) {
    (void)state;
    seen s = {0};
    wefti_machine_model *m = measured(1, &s);
    assert_string_equal(m->name, "tested");
    assert_int_equal(m->hosts, 1);
    assert_int_equal(m->level_count, 1);
    assert_int_equal(s.pairs, 0);
    assert_int_equal(s.curves, m->device.memory.count +
                                   m->device.product[WEFTI_ARITHMETIC_F32].count +
                                   m->device.product[WEFTI_ARITHMETIC_BF16].count +
                                   WEFTI_TIER_WAYS * m->device.host_bytes_per_second.way[0].count);
    assert_true(m->device.memory.count >= 4);
    assert_true(m->device.memory_bytes.value > 1e6);
    assert_int_equal(m->device.host_bytes_per_second.way[WEFTI_TIER_BOTH].count, 6);
    assert_true(m->device.host_bytes_per_second.spends_cores); /* these devices are the cores */
    assert_null(m->device.disk_bytes_per_second.source);
    assert_int_equal(wefti_model_fits(m, 2), WEFT_E_ARG);
    wefti_model_destroy(m);
}

static void devices_have_links(void **state) {
    (void)state;
    seen s = {0};
    wefti_machine_model *m = measured(3, &s);
    assert_int_equal(s.pairs, 2 * 3); /* latency and bandwidth */
    assert_int_equal(m->level[0].devices, 3);
    assert_true(m->level[0].all_reduce.count >= 4);
    ASSERT_OK(wefti_model_fits(m, 3));
    assert_int_equal(wefti_model_fits(m, 4), WEFT_E_ARG);
    wefti_model_destroy(m);
}

/* Devices and hosts that share processors take twice as long, or more; noise takes less. */
static void sharing_is_told_from_noise(void **state) {
    (void)state;
    assert_int_equal(wefti_measured_at_once(2, 0.9), 0);
    assert_int_equal(wefti_measured_at_once(2, 1.3), 0);
    assert_int_equal(wefti_measured_at_once(2, 1.7), 1); /* siblings of one core */
    assert_int_equal(wefti_measured_at_once(2, 2.4), 1);
    assert_int_equal(wefti_measured_at_once(4, 2.0), 2);
    assert_int_equal(wefti_measured_at_once(4, 4.3), 1);
    assert_int_equal(wefti_measured_at_once(3, 2.0), 2); /* the third one shares with the first */
    assert_int_equal(wefti_measured_at_once(8, 1.3), 0);
    assert_int_equal(wefti_measured_at_once(64, 1.3), 0); /* one of many hosts is slow */
    assert_int_equal(wefti_measured_at_once(1, 9), 0);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    char *text;
    assert_int_equal(weft_machine_measure(NULL, NULL, NULL), WEFT_E_ARG);
    const struct {
        int devices;
        double seconds;
    } wrong[] = {{-1, 0}, {65, 0}, {0, -1}, {0, 61}, {0, 1e-9}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const weft_machine_options o = WEFT_STRUCT(
            weft_machine_options, .devices = wrong[i].devices, .seconds = wrong[i].seconds);
        assert_int_equal(weft_machine_measure(NULL, &o, &text), WEFT_E_ARG);
    }
    const weft_machine_options nowhere =
        WEFT_STRUCT(weft_machine_options, .seconds = 1e-4, .disk = "/absent");
    const weft_status status = weft_machine_measure(NULL, &nowhere, &text);
    assert_true(status == WEFT_E_IO || status == WEFT_E_NOT_FOUND);
    assert_int_equal(weft_machine_write(NULL, "x.json"), WEFT_E_ARG);
    assert_true(weft_machine_write("{}", "x.json") < 0);
    assert_int_equal(weft_machine_path(NULL), WEFT_E_ARG);
}

/* ---- one rank's wrong calls ---- */

typedef enum flaw { NO_FLAW, NO_PLACE, OTHER_SIZES, WRONG_CHOICE, NO_DISK, FLAWS } flaw;

typedef struct measurer {
    flaw flaw;
    bool machine; /* else collectives */
} measurer;

static weft_status measure_wrongly(void *context, weft_world *world) {
    const measurer *c = context;
    const flaw f = c->flaw;
    const weft_machine_options m =
        WEFT_STRUCT(weft_machine_options, .seconds = f == WRONG_CHOICE ? 61 : 1e-4,
                    .disk = f == NO_DISK ? NULL : "/absent");
    const weft_bench_options b =
        WEFT_STRUCT(weft_bench_options, .collective = f == WRONG_CHOICE ? "nothing" : "broadcast",
                    .min_bytes = 4, .max_bytes = f == OTHER_SIZES ? 4096 : 4, .seconds = 1e-4);
    char *text = NULL;
    weft_bench *bench = NULL;
    const weft_status status = c->machine
                                   ? weft_machine_measure(world, &m, f == NO_PLACE ? NULL : &text)
                                   : weft_bench_comm(world, &b, f == NO_PLACE ? NULL : &bench);
    weft_text_free(text);
    weft_bench_free(bench);
    return status;
}

/* The other rank does not wait for it. */
static void wrong_calls_of_one_rank_are_told(void **state) {
    (void)state;
    for (int machine = 0; machine < 2; machine++)
        for (flaw f = NO_PLACE; f < FLAWS; f++) {
            if ((f == OTHER_SIZES && machine) || (f == NO_DISK && !machine)) continue;
            measurer two[2] = {{f, machine}, {NO_FLAW, machine}};
            rank_of_world ranks[2];
            run_world(2, measure_wrongly, two, sizeof *two, ranks);
            const weft_status all = f == NO_PLACE                  ? WEFT_E_ARG
                                    : f == WRONG_CHOICE && machine ? WEFT_E_ARG
                                                                   : WEFT_E_MISMATCH;
            for (int r = 0; r < 2; r++) assert_int_equal(ranks[r].status, all);
        }
}

/* Rank 0 finds that the disk is not there. The others learn it in the same call. */
static void a_disk_that_fails_is_told(void **state) {
    (void)state;
    measurer three[3] = {{NO_FLAW, true}, {NO_FLAW, true}, {NO_FLAW, true}};
    rank_of_world ranks[3];
    run_world(3, measure_wrongly, three, sizeof *three, ranks);
    for (int r = 0; r < 3; r++) assert_rank_fails(&ranks[r], r, WEFT_E_NOT_FOUND, "/absent");
    const weft_machine_options threads =
        WEFT_STRUCT(weft_machine_options, .devices = 3, .seconds = 1e-4, .disk = "/absent");
    char *text;
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/absent", weft_machine_measure(NULL, &threads, &text));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_device_has_curves),
                                       cmocka_unit_test(devices_have_links),
                                       cmocka_unit_test(sharing_is_told_from_noise),
                                       cmocka_unit_test(wrong_options_are_refused),
                                       cmocka_unit_test(wrong_calls_of_one_rank_are_told),
                                       cmocka_unit_test(a_disk_that_fails_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
