/* The hash map: what was added is found, for keys of any bytes, and memory that is missing. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/map/map.h"
#include "base/memory.h"

static void finds_what_was_added(void **state) {
    (void)state;
    enum { KEYS = 5000 };
    static char keys[KEYS][12];
    wefti_map map = {0};
    assert_int_equal(wefti_map_find_text(&map, "absent"), -1);
    for (int i = 0; i < KEYS; i++) {
        int64_t value;
        (void)snprintf(keys[i], sizeof keys[i], "%d", i * 7919);
        assert_int_equal(wefti_map_add_text(&map, keys[i], i, &value), WEFT_OK);
        assert_int_equal(value, i);
        assert_int_equal(wefti_map_add_text(&map, keys[i], i + 1, &value), WEFT_OK);
        assert_int_equal(value, i); /* keeps the first value */
    }
    assert_int_equal(map.count, KEYS);
    for (int i = 0; i < KEYS; i++) assert_int_equal(wefti_map_find_text(&map, keys[i]), i);
    assert_int_equal(wefti_map_find_text(&map, "absent"), -1);
    wefti_map_clear(&map);
    assert_int_equal(wefti_map_find_text(&map, keys[0]), -1);
    assert_int_equal(wefti_map_add_text(&map, keys[1], 5, NULL), WEFT_OK);
    assert_int_equal(wefti_map_find_text(&map, keys[1]), 5);
    wefti_map_free(&map);
}

/* Zero bytes count, as does the length: no key is the prefix of another one. */
static void keys_are_bytes(void **state) {
    (void)state;
    static const char zeros[17];
    wefti_map map = {0};
    for (int64_t bytes = 0; bytes <= 16; bytes++)
        assert_int_equal(wefti_map_add(&map, zeros, bytes, bytes, NULL), WEFT_OK);
    for (int64_t bytes = 0; bytes <= 16; bytes++)
        assert_int_equal(wefti_map_find(&map, zeros, bytes), bytes);
    wefti_map_free(&map);
}

static void reserved_room_is_enough(void **state) {
    (void)state;
    static int64_t keys[1000];
    wefti_map map = {0};
    assert_int_equal(wefti_map_reserve(&map, 1000), WEFT_OK);
    const wefti_map_slot *slots = map.slots;
    for (int64_t i = 0; i < 1000; i++) {
        keys[i] = i << 40;
        assert_int_equal(wefti_map_add(&map, &keys[i], sizeof keys[i], i, NULL), WEFT_OK);
    }
    assert_ptr_equal(map.slots, slots);
    wefti_map_free(&map);
}

static void missing_memory_loses_nothing(void **state) {
    (void)state;
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    wefti_map map = {0};
    for (int i = 0; i < 8; i++)
        assert_int_equal(wefti_map_add_text(&map, keys[i], i, NULL), WEFT_OK);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, false, 0);
    assert_int_equal(wefti_map_add_text(&map, keys[8], 8, NULL), WEFT_E_NOMEM);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    for (int i = 0; i < 8; i++) assert_int_equal(wefti_map_find_text(&map, keys[i]), i);
    assert_int_equal(wefti_map_find_text(&map, keys[8]), -1);
    wefti_map_free(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_was_added),
        cmocka_unit_test(keys_are_bytes),
        cmocka_unit_test(reserved_room_is_enough),
        cmocka_unit_test(missing_memory_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
