/* Values of variables (see the header). What is set must be right: a number that is quietly read as
 * 0 makes every process rank 0. */
#include "launch/env/values.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
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
                 "%s is '%.60s', which is no whole number from %d to %d", name, text, min, max);
    *out = (int)value;
    return WEFT_OK;
}

weft_status wefti_variable_seconds(wefti_variables v, const char *name, double *out) {
    const char *text = wefti_variable(v, name);
    if (!text) return WEFT_OK;
    char *end;
    double value = isdigit((unsigned char)*text) || *text == '.' ? wefti_real_read(text, &end) : -1;
    WEFT_REQUIRE(value > 0 && value <= 1e9 && !*end, WEFT_E_ARG,
                 "%s is '%.60s', which is no number of seconds above 0", name, text);
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

weft_status wefti_address_parse(const char *what, const char *text, char host[WEFTI_HOST_TEXT],
                                int *out_port) {
    const char *start = text, *end, *colon;
    if (*text == '[') {
        start = text + 1;
        end = strchr(text, ']');
        colon = end ? end + 1 : NULL;
    } else {
        end = colon = strrchr(text, ':');
    }
    size_t length = end && end > start ? (size_t)(end - start) : 0;
    bool good = length > 0 && length < WEFTI_HOST_TEXT && *colon == ':';
    WEFT_REQUIRE(good && (*text == '[' || colon == strchr(text, ':')), WEFT_E_ARG,
                 "%s is '%.80s', which is no HOST:PORT; IPv6 addresses are written [::1]:9000",
                 what, text);
    for (size_t i = 0; i < length; i++)
        good = good && isgraph((unsigned char)start[i]) && !strchr("/[]@", start[i]);
    size_t digits = strspn(colon + 1, "0123456789");
    long port = digits > 0 && digits < 6 && !colon[1 + digits] ? strtol(colon + 1, NULL, 10) : 0;
    WEFT_REQUIRE(good && port > 0 && port < 65536, WEFT_E_ARG,
                 "%s is '%.80s', which is no HOST:PORT with a port from 1 to 65535", what, text);
    memcpy(host, start, length);
    host[length] = '\0';
    *out_port = (int)port;
    return WEFT_OK;
}

int wefti_port_of(const void *data, size_t bytes) {
    /* Linux gives clients 32768 to 60999; well-known services lie below 10000. */
    return 10000 + (int)(wefti_crc32c(0, data, bytes) % 20000);
}

/* "node[03-05,9],other", "a,b", "rack1node[2-4]": what stands before the first comma, with the
 * first number of each bracket. */
bool wefti_slurm_first_host(const char *list, char out[WEFTI_HOST_TEXT]) {
    int used = 0;
    bool inside = false, taken = false; /* within brackets; past their first number */
    for (const char *c = list; *c; c++) {
        if (*c == '[') {
            if (inside) return false;
            inside = true;
            taken = false;
        } else if (*c == ']') {
            if (!inside) return false;
            inside = false;
        } else if (inside && (*c == ',' || *c == '-')) {
            taken = true;
        } else if (!inside && *c == ',') {
            break;
        } else if (!inside || !taken) {
            if (!isgraph((unsigned char)*c) || used == WEFTI_HOST_TEXT - 1) return false;
            out[used++] = *c;
        }
    }
    out[used] = '\0';
    return used > 0 && !inside;
}

/* One item "TASKS(xNODES)" or "TASKS" at *at, which moves behind it and its comma. */
static bool next_tasks(const char **at, int *tasks, int *nodes) {
    char *end;
    if (!isdigit((unsigned char)**at)) return false;
    long count = strtol(*at, &end, 10), times = 1;
    if (end[0] == '(' && end[1] == 'x' && isdigit((unsigned char)end[2])) {
        times = strtol(end + 2, &end, 10);
        if (*end++ != ')') return false;
    }
    if (count < 0 || count > WEFTI_RANKS_MAX || times < 1 || times > WEFTI_RANKS_MAX) return false;
    if (*end == ',') end++;
    *at = end;
    *tasks = (int)count;
    *nodes = (int)times;
    return true;
}

int wefti_slurm_tasks_of(const char *list, int node) {
    int tasks, nodes, before = 0;
    while (list && next_tasks(&list, &tasks, &nodes)) {
        if (node >= before && node - before < nodes) return tasks;
        if (before > WEFTI_RANKS_MAX) return -1;
        before += nodes;
    }
    return -1;
}

bool wefti_slurm_one_task_each(const char *list) {
    int tasks, nodes;
    while (next_tasks(&list, &tasks, &nodes))
        if (tasks != 1) return false;
    return !*list;
}
