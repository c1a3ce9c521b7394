/* The machine model: each kind of work has its own rate, and parts of a time add up. */
#include "support.h"

#include <stdint.h>

#include "topo/machine.h"

static const wefti_machine machine = {.vector_flops = 2,
                                      .product_f32 = 4,
                                      .product_bf16 = 8,
                                      .bytes_per_second = 16,
                                      .start_seconds = 100};

static void each_work_has_its_rate(void **state) {
    (void)state;
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_VECTOR, 0, 8, 0) == 104);
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_VECTOR, 1, 8, 0) == 104);
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_PRODUCT, 0, 8, 0) == 102);
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_PRODUCT, 1, 8, 0) == 101);
}

static void memory_and_start_add_up(void **state) {
    (void)state;
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_PRODUCT, 1, 8, 32) == 103);
    assert_true(wefti_machine_seconds(&machine, WEFTI_WORK_VECTOR, 0, 0, 0) == 100);
}

/* Strategies split a node in n parts and expect an n-th of its time. */
static void the_assumed_machine_is_linear(void **state) {
    (void)state;
    const wefti_machine *m = &wefti_machine_assumed;
    double whole = wefti_machine_seconds(m, WEFTI_WORK_PRODUCT, 0, 1024e9, 64e6);
    assert_true(whole > 0);
    assert_true(wefti_machine_seconds(m, WEFTI_WORK_PRODUCT, 0, 256e9, 16e6) == whole / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_work_has_its_rate),
        cmocka_unit_test(memory_and_start_add_up),
        cmocka_unit_test(the_assumed_machine_is_linear),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
