/* The allocator door, arenas, growing arrays, checked arithmetic. */
#include "support.h"

#include <string.h>

#include "base/fault.h"
#include "base/memory.h"

static void door(void **state) {
    (void)state;
    void *p = wefti_alloc(0);
    assert_non_null(p);
    wefti_free(p);
    unsigned char *zeros = wefti_calloc(7, 3);
    for (int i = 0; i < 21; i++) assert_int_equal(zeros[i], 0);
    zeros = wefti_realloc(zeros, 100);
    assert_int_equal(zeros[20], 0);
    wefti_free(zeros);
    wefti_free(NULL);
    assert_null(wefti_calloc(SIZE_MAX / 2, 3));
    char *text = wefti_format("%d-%s", 7, "x");
    assert_string_equal(text, "7-x");
    wefti_free(text);
    text = wefti_strdup("");
    assert_string_equal(text, "");
    wefti_free(text);
}

static void every_kind_can_be_told_to_fail(void **state) {
    (void)state;
    char *kept = wefti_strdup("kept");
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, true, 0);
    void *p[] = {wefti_alloc(1), wefti_calloc(1, 1), wefti_realloc(kept, 100), wefti_strdup("x"),
                 wefti_format("x")};
    wefti_arena *arena;
    weft_status status = wefti_arena_create(&arena);
    assert_int_equal(wefti_fault_count(WEFTI_FAULT_ALLOC), 6);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    for (int i = 0; i < 5; i++) assert_null(p[i]);
    assert_int_equal(status, WEFT_E_NOMEM);
    assert_string_equal(kept, "kept"); /* a failed realloc keeps the old block */
    wefti_free(kept);
    /* once: only call number 1 fails */
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 1, false, 0);
    void *a = wefti_alloc(1), *b = wefti_alloc(1), *c = wefti_alloc(1);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    wefti_free(a);
    wefti_free(c);
}

static weft_status new_array(int64_t count, int **out) {
    int *numbers;
    WEFT_NEW_ARRAY(numbers, int, count);
    *out = numbers;
    return WEFT_OK;
}

static void new_arrays(void **state) {
    (void)state;
    int *numbers;
    assert_int_equal(new_array(10, &numbers), WEFT_OK);
    assert_int_equal(numbers[9], 0);
    wefti_free(numbers);
    assert_int_equal(new_array(INT64_MAX / 2, &numbers), WEFT_E_NOMEM);
    ASSERT_MESSAGE("x 4 bytes");
}

static void arenas(void **state) {
    (void)state;
    wefti_arena *arena;
    assert_int_equal(wefti_arena_create(&arena), WEFT_OK);
    static const size_t sizes[] = {0, 1, 15, 16, 17, 1000, 65536, 65537, 200000, 3};
    unsigned char *blocks[100];
    for (int i = 0; i < 100; i++) {
        size_t bytes = sizes[i % 10];
        blocks[i] = wefti_arena_alloc(arena, bytes);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < bytes; k++) assert_int_equal(blocks[i][k], 0);
        memset(blocks[i], i + 1, bytes);
    }
    for (int i = 0; i < 100; i++) /* none overlaps another */
        for (size_t k = 0; k < sizes[i % 10]; k++) assert_int_equal(blocks[i][k], i + 1);
    assert_string_equal(wefti_arena_strdup(arena, "word"), "word");
    assert_string_equal(wefti_arena_format(arena, "%s %d", "layer", 3), "layer 3");
    assert_null(wefti_arena_alloc(arena, SIZE_MAX)); /* too large, not wrapped to small */
    assert_null(wefti_arena_alloc(arena, SIZE_MAX - 40));
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, true, 0);
    void *none = wefti_arena_alloc(arena, 1 << 20);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    assert_null(none);
    assert_non_null(wefti_arena_alloc(arena, 1 << 20));
    wefti_arena_destroy(arena);
    wefti_arena_destroy(NULL);
}

static void growing(void **state) {
    (void)state;
    int64_t *numbers = NULL, capacity = 0;
    for (int64_t used = 0; used < 1000; used++) {
        assert_int_equal(WEFT_GROW(numbers, used, capacity), WEFT_OK);
        assert_true(capacity > used);
        numbers[used] = used;
    }
    for (int64_t i = 0; i < 1000; i++) assert_int_equal(numbers[i], i);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, false, 0);
    weft_status status = WEFT_GROW(numbers, capacity, capacity);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    assert_int_equal(status, WEFT_E_NOMEM);
    assert_int_equal(numbers[999], 999); /* still there */
    wefti_free(numbers);
}

static void checked_arithmetic(void **state) {
    (void)state;
    int64_t out;
    assert_false(wefti_mul_overflows(1 << 20, 1 << 20, &out));
    assert_int_equal(out, (int64_t)1 << 40);
    assert_true(wefti_mul_overflows((int64_t)1 << 40, (int64_t)1 << 40, &out));
    assert_true(wefti_add_overflows(INT64_MAX, 1, &out));
    assert_false(wefti_add_overflows(INT64_MAX, 0, &out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(door),       cmocka_unit_test(every_kind_can_be_told_to_fail),
        cmocka_unit_test(new_arrays), cmocka_unit_test(arenas),
        cmocka_unit_test(growing),    cmocka_unit_test(checked_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
