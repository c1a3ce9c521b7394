/* Growing text, nearest words, sizes for people. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/text.h"

static void grows(void **state) {
    (void)state;
    wefti_text t = {0};
    for (int i = 0; i < 1000; i++) wefti_text_add(&t, "%03d,", i);
    wefti_text_add_bytes(&t, "a\0b", 3);
    wefti_text_add_bytes(&t, NULL, 0);
    assert_int_equal(t.used, 4003);
    char *text = wefti_text_take(&t);
    assert_non_null(text);
    assert_memory_equal(text, "000,001,", 8);
    assert_memory_equal(text + 3996, "999,a\0b", 8); /* with its NUL */
    wefti_free(text);
    assert_null(t.data);
}

static void empty_is_a_string(void **state) {
    (void)state;
    wefti_text t = {0};
    char *text = wefti_text_take(&t);
    assert_non_null(text);
    assert_string_equal(text, "");
    wefti_free(text);
    wefti_text_free(&t);
    wefti_text_free(&t);
}

static void out_of_memory_sticks(void **state) {
    (void)state;
    for (int64_t n = 0; n < 2; n++) {
        wefti_text t = {0};
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        for (int i = 0; i < 50; i++) wefti_text_add(&t, "%s", "0123456789");
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        wefti_text_add(&t, "more");
        assert_true(t.failed);
        assert_null(wefti_text_take(&t));
        assert_false(t.failed); /* taken: a fresh text */
        wefti_text_add(&t, "x");
        wefti_text_free(&t);
    }
}

static void nearest(void **state) {
    (void)state;
    const char *const words[] = {"layers", "hidden", "heads", "kv_heads", "vocab", NULL};
    assert_string_equal(weft_nearest("layer", words), "layers");
    assert_string_equal(weft_nearest("hiden", words), "hidden");
    assert_string_equal(weft_nearest("heasd", words), "heads"); /* a swap is one edit */
    assert_string_equal(weft_nearest("vocab", words), "vocab");
    assert_null(weft_nearest("temperature", words));
    const char *const rules[] = {"adam", "adamw", "Lion", "weight_decay", NULL};
    assert_string_equal(weft_nearest("adamW", rules), "adamw"); /* case does not count */
    assert_string_equal(weft_nearest("ADAM", rules), "adam");
    assert_string_equal(weft_nearest("lion", rules), "Lion");
    assert_string_equal(weft_nearest("Weight-Decay", rules), "weight_decay");
    const char *const short_words[] = {"dir", "x", NULL};
    assert_null(weft_nearest("lr", short_words)); /* half of a word is no mistake in it */
    const char *const none[] = {NULL};
    assert_null(weft_nearest("layers", none));
    /* the nearest wins wherever it stands, the first among equals */
    const char *const order[] = {"abcx", "abcd", "abcy", NULL};
    assert_string_equal(weft_nearest("abcd", order), "abcd");
    assert_string_equal(weft_nearest("abcz", order), "abcx");
    /* the limit: two edits, or a third of the length */
    const char *const limit[] = {"aaaaaaaaaaaa", NULL};
    assert_non_null(weft_nearest("aaaaaaaabbbb", limit));
    assert_null(weft_nearest("aaaaaaabbbbb", limit));
    char longest[400];
    memset(longest, 'a', sizeof longest - 1);
    longest[399] = 0;
    assert_null(weft_nearest(longest, words));
    const char *const long_word[] = {longest, NULL};
    assert_null(weft_nearest("aaa", long_word));
}

static void sizes(void **state) {
    (void)state;
    char out[32];
    assert_string_equal(wefti_bytes_text(0, out), "0 B");
    assert_string_equal(wefti_bytes_text(1023, out), "1023 B");
    assert_string_equal(wefti_bytes_text(1024, out), "1.0 KiB");
    assert_string_equal(wefti_bytes_text(1610612736, out), "1.5 GiB");
    assert_string_equal(wefti_bytes_text((1 << 20) - 1, out), "1.0 MiB");
    assert_string_equal(wefti_bytes_text(INT64_MAX, out), "8.0 EiB");
    assert_string_equal(wefti_bytes_text(-2048, out), "-2.0 KiB");
}

static void a_nan_has_no_sign(void **state) {
    (void)state;
    char text[32];
    assert_true(signbit(wefti_printed(copysign(NAN, -1))) == 0);
    (void)snprintf(text, sizeof text, "%g", wefti_printed(copysign(NAN, -1)));
    assert_string_equal(text, "nan");
    assert_true(wefti_printed(-1.5) == -1.5);
    assert_true(wefti_printed(-INFINITY) == -INFINITY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),
        cmocka_unit_test(empty_is_a_string),
        cmocka_unit_test(out_of_memory_sticks),
        cmocka_unit_test(nearest),
        cmocka_unit_test(sizes),
        cmocka_unit_test(a_nan_has_no_sign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
