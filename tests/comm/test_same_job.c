/* Ranks compare their jobs by lists of facts: what differs is named with both ranks. */
#include "support.h"

#include "comm/same_job.h"

enum { FACTS = 3 };

static void facts_of(uint64_t seed, const char *text, wefti_job_fact out[FACTS]) {
    out[0] = (wefti_job_fact){.name = "seed", .value = seed};
    out[1] = (wefti_job_fact){.name = "model", .value = 5};
    out[2] = (wefti_job_fact){.name = "version", .verb = "runs", .advice = "take one"};
    (void)snprintf(out[2].text, sizeof out[2].text, "%s", text);
}

/* What rank 2 finds when rank 0 has the given facts. */
static weft_status compare(uint64_t seed, const char *text, int32_t blamed) {
    wefti_job_fact mine[FACTS], theirs[FACTS];
    wefti_job_value values[FACTS];
    facts_of(1, "weft 1", mine);
    facts_of(seed, text, theirs);
    wefti_job_values(theirs, FACTS, values);
    return wefti_job_compare(mine, FACTS, 2, values, 0, blamed);
}

static void equal_jobs_are_the_same(void **state) {
    (void)state;
    ASSERT_OK(compare(1, "weft 1", 2));
}

static void unlike_values_are_named(void **state) {
    (void)state;
    assert_int_equal(compare(9, "weft 1", 2), WEFT_E_MISMATCH);
    assert_int_equal(weft_error_rank(), 2);
    assert_non_null(strstr(weft_error_message(), "rank 2"));
    assert_non_null(strstr(weft_error_message(), "rank 0"));
    assert_non_null(strstr(weft_error_message(), "seed"));
    assert_null(strstr(weft_error_message(), "model"));
}

/* Both texts are shown, each with its rank, whichever is to blame. */
static void unlike_texts_are_shown(void **state) {
    (void)state;
    for (int32_t blamed = 0; blamed <= 2; blamed += 2) {
        assert_int_equal(compare(1, "weft 2", blamed), WEFT_E_MISMATCH);
        assert_int_equal(weft_error_rank(), blamed);
        const char *own = strstr(weft_error_message(), "rank 2"),
                   *other = strstr(weft_error_message(), "rank 0");
        assert_true(own && other);
        assert_non_null(strstr(own, "weft 1"));
        assert_non_null(strstr(other, "weft 2"));
        assert_non_null(strstr(weft_error_message(), "take one"));
    }
}

/* A text of another process need not end. */
static void texts_without_end_are_cut(void **state) {
    (void)state;
    wefti_job_fact mine[FACTS];
    wefti_job_value values[FACTS];
    facts_of(1, "weft 1", mine);
    wefti_job_values(mine, FACTS, values);
    memset(values[2].text, 'x', WEFTI_FACT_TEXT);
    assert_int_equal(wefti_job_compare(mine, FACTS, 2, values, 0, 0), WEFT_E_MISMATCH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_jobs_are_the_same),
        cmocka_unit_test(unlike_values_are_named),
        cmocka_unit_test(unlike_texts_are_shown),
        cmocka_unit_test(texts_without_end_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
