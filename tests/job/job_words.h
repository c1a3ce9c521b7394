/* Jobs from a text and words, as tests take and refuse them. */
#ifndef WEFT_TESTS_JOB_WORDS_H
#define WEFT_TESTS_JOB_WORDS_H

#include "support.h"

#include <string.h>

#include "job/job.h"

/* The file used by most tests: "job.yaml". */
static inline weft_status parse_with(const char *text, const char *const *words, int count,
                                     weft_job **out) {
    return weft_job_parse("job.yaml", text, text ? (int64_t)strlen(text) : 0, words, count, out);
}
static inline weft_job *parse(const char *text) {
    weft_job *job = NULL;
    weft_status status = parse_with(text, NULL, 0, &job);
    if (status < 0) fail_msg("refused: %s", weft_error_message());
    return job;
}
static inline void refused(const char *text, const char *message) {
    weft_job *job = NULL;
    assert_int_equal(parse_with(text, NULL, 0, &job), WEFT_E_ARG);
    assert_null(job);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}
static inline void refused_word(const char *word, const char *message) {
    weft_job *job = NULL;
    assert_int_equal(parse_with(NULL, &word, 1, &job), WEFT_E_ARG);
    assert_null(job);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

#endif
