/* Measured machine files: complete, valid, for as many devices as measured, and read back equal. */
#include "support.h"

#include <string.h>

#include "measure/machine.h"
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
                                   m->device.product[WEFTI_ARITHMETIC_BF16].count);
    assert_true(m->device.memory.count >= 4);
    assert_true(m->device.memory_bytes.value > 1e6);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_has_curves), cmocka_unit_test(devices_have_links),
        cmocka_unit_test(sharing_is_told_from_noise), cmocka_unit_test(wrong_options_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
