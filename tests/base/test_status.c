/* Statuses, messages, breadcrumbs; one of each per thread. */
#include "support.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"

static weft_status innermost(int size) {
    WEFT_REQUIRE(size > 0, WEFT_E_SHAPE, "size is %d", size);
    return WEFT_OK;
}

static weft_status middle(int size) {
    WEFT_TRY(innermost(size));
    return WEFT_OK;
}

static weft_status outer(int size, int *undone) {
    weft_status status;
    WEFT_TRY_OR(undo, status, middle(size));
    return WEFT_OK;
undo:
    ++*undone;
    return status;
}

static void messages_and_trail(void **state) {
    (void)state;
    int undone = 0;
    assert_int_equal(outer(3, &undone), WEFT_OK);
    assert_int_equal(undone, 0);
    assert_int_equal(outer(-2, &undone), WEFT_E_SHAPE);
    assert_int_equal(undone, 1);
    assert_string_equal(weft_error_message(), "size is -2");
    const char *trail = weft_error_trail();
    const char *a = strstr(trail, "innermost (test_status.c:"), *b = strstr(trail, "middle ("),
               *c = strstr(trail, "outer (");
    assert_true(a && b && c && a < b && b < c);
    assert_int_equal(outer(-3, &undone), WEFT_E_SHAPE); /* a new failure starts a new trail */
    assert_true(strstr(weft_error_trail(), "innermost") == weft_error_trail());
    assert_null(strstr(weft_error_trail() + 1, "innermost"));
    wefti_error_clear();
    assert_string_equal(weft_error_message(), "");
    assert_string_equal(weft_error_trail(), "");
}

static void prefix_and_adopt(void **state) {
    (void)state;
    (void)WEFT_RAISE(WEFT_E_IO, "no space");
    assert_int_equal(wefti_prefix(WEFT_E_IO, "%s", "a.bin"), WEFT_E_IO);
    assert_string_equal(weft_error_message(), "a.bin: no space");
    /* a message may be made from the old one */
    (void)WEFT_RAISE(WEFT_E_IO, "again: %s", weft_error_message());
    assert_string_equal(weft_error_message(), "again: a.bin: no space");
    assert_int_equal(wefti_adopt(WEFT_E_PEER, "rank 3 died"), WEFT_E_PEER);
    assert_string_equal(weft_error_message(), "rank 3 died");
    assert_int_equal(wefti_adopt(WEFT_E_PEER, weft_error_message()), WEFT_E_PEER);
    assert_string_equal(weft_error_message(), "rank 3 died");
}

static weft_status fail_of_three(void) {
    WEFT_FAIL_OF(3, WEFT_E_PEER, "rank 3 died");
}
static weft_status require_of_four(bool holds) {
    WEFT_REQUIRE_OF(4, holds, WEFT_E_PEER, "rank 4 left");
    return WEFT_OK;
}

/* The rank that failed is stored with the failure, not read from its text. */
static void who_failed_is_told(void **state) {
    (void)state;
    wefti_failure kept;
    (void)WEFT_RAISE(WEFT_E_IO, "rank 9 here");
    assert_int_equal(weft_error_rank(), WEFT_RANK_OWN);
    assert_int_equal(wefti_name_rank(WEFT_E_IO, 2), WEFT_E_IO);
    assert_string_equal(weft_error_message(), "rank 2: rank 9 here");
    assert_int_equal(weft_error_rank(), 2);
    (void)wefti_prefix(WEFT_E_IO, "step 7");
    (void)wefti_name_rank(WEFT_E_IO, 5); /* it has a name */
    assert_string_equal(weft_error_message(), "step 7: rank 2: rank 9 here");
    assert_int_equal(weft_error_rank(), 2);
    wefti_failure_keep(WEFT_E_IO, &kept);
    assert_int_equal(fail_of_three(), WEFT_E_PEER);
    assert_int_equal(weft_error_rank(), 3);
    assert_int_equal(require_of_four(true), WEFT_OK);
    assert_int_equal(require_of_four(false), WEFT_E_PEER);
    assert_int_equal(weft_error_rank(), 4);
    assert_int_equal(wefti_failure_tell(&kept), WEFT_E_IO);
    assert_string_equal(weft_error_message(), "step 7: rank 2: rank 9 here");
    assert_int_equal(weft_error_rank(), 2);
    (void)wefti_adopt(WEFT_E_PEER, "rank 1 is lost"); /* no rank is stored */
    assert_int_equal(weft_error_rank(), WEFT_RANK_OWN);
    (void)wefti_adopt_of(WEFT_E_PEER, WEFT_RANK_NONE, "all wait");
    (void)wefti_name_rank(WEFT_E_PEER, 0);
    assert_string_equal(weft_error_message(), "all wait");
    wefti_error_clear();
    assert_int_equal(weft_error_rank(), WEFT_RANK_OWN);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    char longest[5000];
    memset(longest, '=', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    (void)WEFT_RAISE(WEFT_E_ARG, "%s", longest);
    size_t length = strlen(weft_error_message());
    assert_true(length > 1000 && length < sizeof longest - 1);
    (void)wefti_prefix(WEFT_E_ARG, "cell h.3");
    assert_int_equal(strncmp(weft_error_message(), "cell h.3: ===", 13), 0);
    (void)wefti_prefix(WEFT_E_ARG, "%s", longest); /* no room for anything behind: left as it is */
    assert_int_equal(strncmp(weft_error_message(), "cell h.3: ===", 13), 0);
    for (int i = 0; i < 1000; i++) (void)wefti_note(WEFT_E_ARG, __func__, __FILE__, i);
    assert_true(strlen(weft_error_trail()) > 1000);
}

static void *fail_elsewhere(void *unused) {
    (void)unused;
    (void)WEFT_RAISE(WEFT_E_ARG, "another thread");
    return NULL;
}

static void threads_have_their_own(void **state) {
    (void)state;
    (void)WEFT_RAISE(WEFT_E_ARG, "this thread");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(weft_error_message(), "this thread");
}

static void texts(void **state) {
    (void)state;
    assert_string_equal(weft_status_text(WEFT_OK), "success");
    ASSERT_FACTS(weft_status_text(WEFT_E_SHAPE), "shapes");
    assert_string_equal(weft_status_text((weft_status)12345), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_and_trail),     cmocka_unit_test(prefix_and_adopt),
        cmocka_unit_test(who_failed_is_told),     cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(threads_have_their_own), cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
