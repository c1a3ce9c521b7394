/* One value of a job: from the tree into the job, and back into text. See job/job.h. */
#include "job/job.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *wefti_job_where(const wefti_job_draft *draft, const wefti_job_mark *mark, char *out) {
    if (mark->override)
        snprintf(out, 512, "'%.200s': ", mark->override);
    else if (mark->line)
        snprintf(out, 512, "%.400s:%d:%d: ", draft->name, mark->line, mark->column);
    else
        out[0] = '\0';
    return out;
}

typedef struct value_place {
    const wefti_job_draft *draft;
    const wefti_job_row *row;
    const wefti_job_mark *mark;
} value_place;

/* The expected value as text, "a whole number from 1 to 10000", in 256 bytes. A bound without
 * practical meaning is named only if the value exceeds it. */
static const char *wanted(const wefti_job_row *row, const char *text, char *out) {
    static const char *const kinds[] = {
        [WEFTI_JOB_TEXT] = "a text",
        [WEFTI_JOB_FILE] = "a path",
        [WEFTI_JOB_CHOICE] = "one of",
        [WEFTI_JOB_INTEGER] = "a whole number",
        [WEFTI_JOB_REAL] = "a number",
        [WEFTI_JOB_FLAG] = "true or false",
        [WEFTI_JOB_BYTES] = "a size such as 2GiB or 500MB",
        [WEFTI_JOB_LIMIT] = "a size such as 2GiB or 500MB, per cent as 60%,",
        [WEFTI_JOB_INTEGERS] = "whole numbers",
        [WEFTI_JOB_REALS] = "numbers",
        [WEFTI_JOB_SHARE] = "a path or a fraction",
        [WEFTI_JOB_SIZES] = "names with sizes, as {dp: 2, tp: 4}",
        [WEFTI_JOB_FLAGS] = "patterns with true or false, as {\"*.bias\": true}",
        [WEFTI_JOB_MESHES] = "a list of names with sizes, as [{dp: 2, tp: 2}, {dp: 4, tp: 1}]",
        [WEFTI_JOB_SPLITS] = "a list of entries {match: pattern, split: factors with axes}",
        [WEFTI_JOB_LAYOUTS] = "a list of entries {match: pattern, layout: axes or -}",
        [WEFTI_JOB_STAGES] = "a list of entries {match: pattern, stage: whole number}",
        [WEFTI_JOB_OFFLOADS] =
            "a list of {match: pattern, what: optimizer or parameters, to: tier}, or one of",
        [WEFTI_JOB_PLACES] = "a list of entries {match: pattern, on: host or device}",
        [WEFTI_JOB_SERVERS] = "a list of entries {match: pattern, sync: sync}",
        [WEFTI_JOB_TEXTS] = "a list of texts",
        [WEFTI_JOB_DATASET] =
            "names with layouts, as {image: [dp, -, -, sp]}, parts as ((1,1,1,4),(1,)), or one of",
        [WEFTI_JOB_BUCKETS] =
            "a size such as 25MiB, of at least 1KiB, or a list of ascending whole numbers",
    };
    int used = snprintf(out, 256, "%s", kinds[row->kind]);
    if (row->kind == WEFTI_JOB_INTEGERS || row->kind == WEFTI_JOB_REALS)
        used = snprintf(out, 256, "a list of %d %s", row->count, kinds[row->kind]);
    if (row->words) {
        for (int i = 0; row->words[i] && used < 256; i++)
            used += snprintf(out + used, 256 - (size_t)used, "%s%s", i ? ", " : " ", row->words[i]);
    } else if (row->max != row->min && used < 200) {
        const char *below = row->max < 1 && row->max > 0.9999 ? "below 1" : NULL;
        if (below)
            used += snprintf(out + used, 256 - (size_t)used, " from %.10g to below 1", row->min);
        else if (row->max > 1e8 && !(text && wefti_real_read(text, NULL) > row->max))
            used += snprintf(out + used, 256 - (size_t)used, " of at least %.10g", row->min);
        else
            used += snprintf(out + used, 256 - (size_t)used, " from %.10g to %.10g", row->min,
                             row->max);
    }
    if (wefti_job_row_auto(row) && used < 240)
        snprintf(out + used, 256 - (size_t)used, ", or auto");
    return out;
}

static weft_status refuse(const value_place *at, const wefti_yaml *value) {
    char where[512], right[256], is[128];
    const char *text = value->kind == WEFTI_YAML_SCALAR ? value->text : NULL;
    if (text)
        snprintf(is, sizeof is, "'%.100s'", text);
    else if (value->kind == WEFTI_YAML_SEQUENCE)
        snprintf(is, sizeof is, "a list of %d", value->count);
    else
        snprintf(is, sizeof is, "a section");
    WEFT_FAIL(WEFT_E_ARG, "%s%s must be %s; it is %s", wefti_job_where(at->draft, at->mark, where),
              at->row->path, wanted(at->row, text, right), is);
}

weft_status wefti_job_refuse(const wefti_job_draft *draft, const wefti_job_row *row,
                             const wefti_job_mark *mark, const wefti_yaml *value) {
    value_place at = {draft, row, mark};
    return refuse(&at, value);
}

/* Digits with an optional sign, nothing else. */
static bool read_integer(const char *text, int64_t *out) {
    char *end;
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end) return false;
    *out = value;
    return true;
}

/* Decimal only: no hexadecimal, no "inf", no "nan". */
static bool read_real(const char *text, double *out) {
    char *end;
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
    double value = wefti_real_read(text, &end);
    if (*end || end == text || !isfinite(value)) return false;
    *out = value;
    return true;
}

bool wefti_job_read_bytes(const char *text, int64_t *out) {
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {
        {"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
        {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},     {"KB", 1e3},
        {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    };
    char number[32];
    size_t digits = strspn(text, "0123456789.");
    if (digits == 0 || digits >= sizeof number) return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    double value;
    if (!read_real(number, &value)) return false;
    const char *unit = text + digits + strspn(text + digits, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) != 0) continue;
        value *= units[i].bytes; /* "0.3GiB" is cut down to bytes, "1.5" is a slip */
        if (value > 0x1p62 || (units[i].bytes == 1 && value != floor(value))) return false;
        *out = (int64_t)value;
        return true;
    }
    return false;
}

bool wefti_job_read_percent(const char *text, double *out) {
    char number[32];
    const size_t length = strlen(text);
    if (length < 2 || length > sizeof number || text[length - 1] != '%') return false;
    memcpy(number, text, length - 1);
    number[length - 1] = '\0';
    return read_real(number, out) && *out > 0 && *out <= 100;
}

int64_t wefti_job_limit(int64_t bytes, double percent, int64_t all) {
    if (!(percent > 0)) return bytes;
    const int64_t part = (int64_t)((double)all * percent / 100);
    return part > 0 ? part : 1;
}

static bool in_range(const wefti_job_row *row, double value) {
    return value >= row->min && value <= row->max;
}

weft_status wefti_job_check_text(const wefti_job_draft *draft, const wefti_job_row *row,
                                 const wefti_job_mark *mark, const char *text) {
    uint32_t point;
    int64_t left = (int64_t)strlen(text);
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int length = wefti_utf8_next(p, left, &point);
        if (point == WEFTI_NO_CHARACTER) {
            char where[512];
            WEFT_FAIL(WEFT_E_ARG, "%s%s must be UTF-8 text; byte %lld of it is not",
                      wefti_job_where(draft, mark, where), row->path,
                      (long long)(p - (const unsigned char *)text));
        }
        p += length;
        left -= length;
    }
    return WEFT_OK;
}

static weft_status store_text(const value_place *at, const wefti_yaml *value, const char **out) {
    /* An empty plain scalar or a YAML null: the value was forgotten. */
    static const char *const nothing[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (!value->quoted && value->line && !strcmp(value->text, nothing[i]))
            return refuse(at, value);
    WEFT_TRY(wefti_job_check_text(at->draft, at->row, at->mark, value->text));
    char *copy = wefti_arena_strdup(at->draft->arena, value->text);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a job");
    *out = copy;
    return WEFT_OK;
}

/* What follows a shell's word for the home directory at the start of a path; NULL: no such word. */
static const char *behind_home(const char *path) {
    static const char *const words[] = {"~", "$HOME", "${HOME}"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i]);
        if (!strncmp(path, words[i], length) && (!path[length] || path[length] == '/'))
            return path + length;
    }
    return NULL;
}

/* The first part of a path that a shell would expand: a user's home, a variable. NULL: none. */
static const char *for_a_shell(const char *path) {
    for (const char *at = path; at; at = strchr(at, '/')) {
        at += *at == '/';
        const char next = *at == '$' ? at[1] : '\0';
        if (next == '{' || next == '_' || (next >= 'A' && next <= 'Z') ||
            (next >= 'a' && next <= 'z'))
            return at;
    }
    return *path == '~' ? path : NULL;
}

/* A path of a job file passes no shell, and neither does the one of "checkpoint.dir=~/run". */
static weft_status store_path(const value_place *at, const wefti_yaml *value, const char **out) {
    char where[512];
    const char *path;
    WEFT_TRY(store_text(at, value, &path));
    const char *home = getenv("HOME"), *rest = behind_home(path);
    if (rest) {
        WEFT_REQUIRE(home && *home == '/', WEFT_E_ARG,
                     "%s%s is '%.200s', but the variable HOME names no directory: write the whole "
                     "path",
                     wefti_job_where(at->draft, at->mark, where), at->row->path, path);
        path = wefti_arena_join(at->draft->arena, home, rest);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a job");
    }
    const char *shell = rest ? for_a_shell(rest) : for_a_shell(path);
    WEFT_REQUIRE(!shell, WEFT_E_ARG, "%s%s: only a shell expands '%.*s': write the path itself%s",
                 wefti_job_where(at->draft, at->mark, where), at->row->path,
                 (int)strcspn(shell, "/"), shell,
                 *shell == '~' ? ", or ./~ for a file whose name begins so" : "");
    *out = path;
    return WEFT_OK;
}

static weft_status store_scalar(const value_place *at, const wefti_yaml *value, void *field) {
    const wefti_job_row *row = at->row;
    const char *text = value->text;
    int64_t integer;
    double real;
    switch (row->kind) {
    case WEFTI_JOB_TEXT:
        return store_text(at, value, field);
    case WEFTI_JOB_FILE:
        return store_path(at, value, field);
    case WEFTI_JOB_CHOICE:
        for (int i = 0; row->words[i]; i++) {
            if (strcmp(text, row->words[i]) != 0) continue;
            *(int *)field = i;
            return WEFT_OK;
        }
        {
            char where[512], right[256];
            const char *near = weft_nearest(text, row->words);
            if (!near) return refuse(at, value);
            WEFT_FAIL(WEFT_E_ARG, "%s%s must be %s; it is '%.100s'; did you mean '%s'?",
                      wefti_job_where(at->draft, at->mark, where), row->path,
                      wanted(row, NULL, right), text, near);
        }
    case WEFTI_JOB_INTEGER:
    case WEFTI_JOB_INTEGERS:
        if (!read_integer(text, &integer) || !in_range(row, (double)integer))
            return refuse(at, value);
        *(int64_t *)field = integer;
        return WEFT_OK;
    case WEFTI_JOB_REAL:
    case WEFTI_JOB_REALS:
        if (!read_real(text, &real) || !in_range(row, real)) return refuse(at, value);
        *(double *)field = real;
        return WEFT_OK;
    case WEFTI_JOB_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return refuse(at, value);
        *(bool *)field = text[0] == 't';
        return WEFT_OK;
    case WEFTI_JOB_BYTES:
        if (!wefti_job_read_bytes(text, &integer) || !in_range(row, (double)integer))
            return refuse(at, value);
        *(int64_t *)field = integer;
        return WEFT_OK;
    case WEFTI_JOB_LIMIT: {
        int64_t *bytes = field;
        double *percent = (double *)(void *)(bytes + 1);
        const bool is_part = wefti_job_read_percent(text, &real);
        integer = 0;
        if (!is_part && (!wefti_job_read_bytes(text, &integer) || !in_range(row, (double)integer)))
            return refuse(at, value);
        *bytes = integer;
        *percent = is_part ? real : 0;
        return WEFT_OK;
    }
    case WEFTI_JOB_SHARE: {
        const char **path = field;
        double *fraction = (double *)(void *)(path + 1);
        if (!value->quoted && read_real(text, &real)) {
            if (!in_range(row, real)) return refuse(at, value);
            *path = "";
            *fraction = real;
            return WEFT_OK;
        }
        WEFT_TRY(store_path(at, value, path));
        *fraction = 0;
        return WEFT_OK;
    }
    default:
        break;
    }
    WEFT_FAIL(WEFT_E_BUG, "a key of kind %d", (int)row->kind);
}

/* A file may spell a key in several ways: schedule, schedule.name, or train.schedule.name at the
 * top. Overrides replace values of the file and of earlier overrides. */
static weft_status check_once(const wefti_job_draft *draft, const wefti_job_row *row, int index,
                              const wefti_job_mark *mark) {
    char where[512];
    const wefti_job_mark *before = &draft->marks[index];
    bool twice = before->line && !before->override && !mark->override; /* `auto` counts as set */
    WEFT_REQUIRE(!twice, WEFT_E_ARG, "%s%s is given twice; first in line %d",
                 wefti_job_where(draft, mark, where), row->path, before->line);
    return WEFT_OK;
}

weft_status wefti_job_store(wefti_job_draft *draft, int index, const wefti_yaml *value,
                            const wefti_job_mark *mark) {
    int rows;
    const wefti_job_row *row = &wefti_job_table(&rows)[index];
    value_place at = {draft, row, mark};
    WEFT_TRY(check_once(draft, row, index, mark));
    char *field = (char *)&draft->job + row->offset;
    bool list = row->kind == WEFTI_JOB_INTEGERS || row->kind == WEFTI_JOB_REALS;
    if (value->kind == WEFTI_YAML_SCALAR && !value->quoted && wefti_job_row_auto(row) &&
        !strcmp(value->text, "auto")) {
        size_t bytes = row->kind == WEFTI_JOB_CHOICE  ? sizeof(int)
                       : row->kind == WEFTI_JOB_FLAG  ? sizeof(bool)
                       : row->kind == WEFTI_JOB_LIMIT ? sizeof(int64_t) + sizeof(double)
                                                      : (size_t)row->count * sizeof(int64_t);
        memset(field, 0, bytes); /* drops the value of an earlier line */
        draft->marks[index] = *mark;
        draft->marks[index].given = false;
        return WEFT_OK;
    }
    if (wefti_job_is_list(row->kind)) {
        WEFT_TRY(wefti_job_store_list(draft, row, field, value, mark));
    } else if (list) {
        if (value->kind != WEFTI_YAML_SEQUENCE || value->count != row->count)
            return refuse(&at, value);
        for (const wefti_yaml *item = value->first; item; item = item->next, field += 8) {
            if (item->kind != WEFTI_YAML_SCALAR) return refuse(&at, item);
            WEFT_TRY(store_scalar(&at, item, field));
        }
    } else {
        if (value->kind != WEFTI_YAML_SCALAR) return refuse(&at, value);
        WEFT_TRY(store_scalar(&at, value, field));
    }
    draft->marks[index] = *mark;
    draft->marks[index].given = true;
    return WEFT_OK;
}

/* The shortest form that reads back equal. */
static void write_real(double value, wefti_text *out) {
    char text[32];
    wefti_text_add(out, "%s", wefti_real_text(value, 6, 17, text));
}

/* In double quotes. Escapes control characters, and characters that YAML reads as a line break or a
 * byte order mark. */
void wefti_job_write_quoted(const char *text, wefti_text *out) {
    int64_t left = (int64_t)strlen(text);
    wefti_text_add(out, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        uint32_t point;
        int length = wefti_utf8_next(p, left, &point);
        if (point == '"' || point == '\\')
            wefti_text_add(out, "\\%c", (int)point);
        else if (point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 ||
                 point == 0x2029 || point == 0xfeff || point == 0xfffe || point == 0xffff)
            wefti_text_add(out, "\\u%04x", point);
        else
            wefti_text_add_bytes(out, (const char *)p, length);
        p += length;
        left -= length;
    }
    wefti_text_add(out, "\"");
}

static double percent_of(const int64_t *limit) {
    return *(const double *)(const void *)(limit + 1);
}

void wefti_job_write_value(const weft_job *job, const wefti_job_row *row, wefti_text *out) {
    const char *field = (const char *)job + row->offset;
    const int64_t *integers = (const int64_t *)(const void *)field;
    const double *reals = (const double *)(const void *)field;
    switch (row->kind) {
    case WEFTI_JOB_TEXT:
    case WEFTI_JOB_FILE: {
        const char *text = *(const char *const *)(const void *)field;
        if (!*text && wefti_job_row_auto(row))
            wefti_text_add(out, "auto");
        else
            wefti_job_write_quoted(text, out);
        return;
    }
    case WEFTI_JOB_CHOICE: {
        int choice = *(const int *)(const void *)field, words = 0;
        while (row->words[words]) words++;
        wefti_text_add(out, "%s", choice < words ? row->words[choice] : "auto");
        return;
    }
    case WEFTI_JOB_INTEGER:
    case WEFTI_JOB_BYTES:
    case WEFTI_JOB_LIMIT:
        if (row->kind == WEFTI_JOB_LIMIT && percent_of(integers) > 0) {
            write_real(percent_of(integers), out);
            wefti_text_add(out, "%%");
            return;
        }
        /* A size that only the data or a model directory can tell is still 0. */
        if ((double)*integers < row->min)
            wefti_text_add(out, "auto");
        else
            wefti_text_add(out, "%lld", (long long)*integers);
        return;
    case WEFTI_JOB_REAL:
        if (*reals < row->min)
            wefti_text_add(out, "auto");
        else
            write_real(*reals, out);
        return;
    case WEFTI_JOB_FLAG:
        wefti_text_add(out, *(const bool *)(const void *)field ? "true" : "false");
        return;
    case WEFTI_JOB_INTEGERS:
    case WEFTI_JOB_REALS:
        if (row->kind == WEFTI_JOB_INTEGERS && (double)*integers < row->min) {
            wefti_text_add(out, "auto");
            return;
        }
        for (int i = 0; i < row->count; i++) {
            wefti_text_add(out, i ? ", " : "[");
            if (row->kind == WEFTI_JOB_INTEGERS)
                wefti_text_add(out, "%lld", (long long)integers[i]);
            else
                write_real(reals[i], out);
        }
        wefti_text_add(out, "]");
        return;
    case WEFTI_JOB_SHARE: {
        const char *const *path = (const char *const *)(const void *)field;
        if (**path)
            wefti_job_write_quoted(*path, out);
        else
            write_real(*(const double *)(const void *)(path + 1), out);
        return;
    }
    default:
        wefti_job_write_list(row, field, out);
    }
}
