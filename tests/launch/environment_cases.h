/* Environments that are understood or refused: for the tests of launchers' variables. An
 * environment is a list of texts "NAME=value", NULL-terminated. */
#ifndef WEFT_TESTS_ENVIRONMENT_CASES_H
#define WEFT_TESTS_ENVIRONMENT_CASES_H

#include "support.h"

#include <stdint.h>
#include <string.h>

#include "launch/env/env.h"

static inline wefti_launcher read_on(const char *host, wefti_variables environment) {
    wefti_launcher l;
    weft_status status = wefti_launcher_read(environment, host, &l);
    if (status < 0) fail_msg("%s", weft_error_message());
    return l;
}
static inline wefti_launcher read_good(wefti_variables environment) {
    return read_on("", environment);
}
#define READ(...) read_good((const char *const[]){__VA_ARGS__, NULL})
#define READ_ON(host, ...) read_on(host, (const char *const[]){__VA_ARGS__, NULL})

static inline void refuse_on(const char *host, wefti_variables environment, const char *one,
                             const char *other) {
    wefti_launcher l;
    assert_int_equal(wefti_launcher_read(environment, host, &l), WEFT_E_ARG);
    if (!strstr(weft_error_message(), one) || !strstr(weft_error_message(), other))
        fail_msg("'%s' does not say '%s' and '%s'", weft_error_message(), one, other);
}
static inline void refuse_all(wefti_variables environment, const char *one, const char *other) {
    refuse_on("", environment, one, other);
}
#define REFUSE(one, other, ...) refuse_all((const char *const[]){__VA_ARGS__, NULL}, one, other)
#define REFUSE_ON(host, one, other, ...)                                                           \
    refuse_on(host, (const char *const[]){__VA_ARGS__, NULL}, one, other)

static inline void place_is(const wefti_launcher *l, const char *name, int rank, int size) {
    assert_string_equal(l->place.name, name);
    assert_int_equal(l->place.rank, rank);
    assert_int_equal(l->place.size, size);
}
static inline void address_is(const wefti_launcher *l, const char *host, int port) {
    assert_string_equal(l->scheduler_host, host);
    assert_int_equal(l->scheduler_port, port);
}

#endif
