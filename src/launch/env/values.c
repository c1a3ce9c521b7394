/* Values of variables: env/values.h. A malformed value is refused: a rank that was read as 0 by
 * mistake would make every process rank 0. */
#include "launch/env/values.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

const char *wefti_variable(wefti_variables v, const char *name) {
    size_t length = strlen(name);
    while (*v && (strncmp(*v, name, length) != 0 || (*v)[length] != '=')) v++;
    return *v && (*v)[length + 1] ? *v + length + 1 : NULL;
}

weft_status wefti_variable_number(wefti_variables v, const char *name, int min, int max, int *out) {
    const char *text = wefti_variable(v, name);
    if (!text) return WEFT_OK;
    size_t digits = strspn(text, "0123456789");
    long value = digits > 0 && digits < 11 && !text[digits] ? strtol(text, NULL, 10) : -1;
    WEFT_REQUIRE(value >= min && value <= max, WEFT_E_ARG,
                 "%s is '%.60s', not a whole number from %d to %d", name, text, min, max);
    *out = (int)value;
    return WEFT_OK;
}

weft_status wefti_variable_seconds(wefti_variables v, const char *name, double *out) {
    const char *text = wefti_variable(v, name);
    if (!text) return WEFT_OK;
    char *end;
    double value = isdigit((unsigned char)*text) || *text == '.' ? wefti_real_read(text, &end) : -1;
    WEFT_REQUIRE(value > 0 && value <= 1e9 && !*end, WEFT_E_ARG,
                 "%s is '%.60s', not a number of seconds above 0", name, text);
    *out = value;
    return WEFT_OK;
}

weft_status wefti_variable_word(wefti_variables v, const char *name, char *out, size_t bytes) {
    const char *text = wefti_variable(v, name);
    if (!text) return WEFT_OK;
    size_t length = strlen(text);
    WEFT_REQUIRE(length < bytes, WEFT_E_ARG, "%s has %zu bytes; it may have %zu", name, length,
                 bytes - 1);
    for (const char *c = text; *c; c++)
        WEFT_REQUIRE(isgraph((unsigned char)*c), WEFT_E_ARG,
                     "%s has a space or a control character in it", name);
    memcpy(out, text, length + 1);
    return WEFT_OK;
}
