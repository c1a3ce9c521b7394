/* Attributes as text. Used by the text form of graphs and by the test cases of ops. */
#include "graph/text/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_dtype(const wefti_attr *a) {
    return a->id == WEFTI_AT_dtype;
}

static bool is_named(const wefti_attr *a, const char *text, size_t length) {
    const char *name = wefti_attr_name(a->id);
    return strlen(name) == length && !strncmp(name, text, length);
}

void wefti_float_print(double value, wefti_text *out) {
    char text[32];
    wefti_text_add(out, "%s", wefti_real_text(value, 6, 17, text));
}

static void print_ints(int count, const int64_t *v, wefti_text *out) {
    for (int k = 0; k < count; k++) wefti_text_add(out, "%s%lld", k ? "," : "(", (long long)v[k]);
    wefti_text_add(out, count ? ")" : "()");
}

void wefti_attrs_print(const weft_op_def *op, const wefti_attr *attrs, wefti_text *out) {
    for (int i = 0; i < wefti_attr_count(op); i++) {
        const wefti_attr *a = &attrs[i];
        wefti_text_add(out, " %s=", wefti_attr_name(a->id));
        switch (a->kind) {
        case WEFTI_ATTR_INT:
            if (is_dtype(a) && a->i >= 0 && a->i < WEFT_DTYPES)
                wefti_text_add(out, "%s", weft_dtype_text((weft_dtype)a->i));
            else
                wefti_text_add(out, "%lld", (long long)a->i);
            break;
        case WEFTI_ATTR_FLOAT:
            wefti_float_print(a->f, out);
            break;
        case WEFTI_ATTR_INTS:
            print_ints(a->ints.count, a->ints.v, out);
            break;
        case WEFTI_ATTR_TABLE:
            print_ints(a->table.count, a->table.v, out);
            break;
        }
    }
}

static bool read_int(const char **p, int64_t *out) {
    char *end;
    if (**p != '-' && (**p < '0' || **p > '9')) return false;
    errno = 0;
    long long v = strtoll(*p, &end, 10);
    if (end == *p || errno) return false;
    *out = v;
    *p = end;
    return true;
}

/* "(1,2)": at most `most` numbers. */
static bool read_ints(const char **p, int most, int64_t *v, int *out_count) {
    int count = 0;
    if (**p != '(') return false;
    (*p)++;
    while (**p != ')') {
        if (count == most) return false;
        if (count && *(*p)++ != ',') return false;
        if (!read_int(p, &v[count])) return false;
        count++;
    }
    (*p)++;
    *out_count = count;
    return true;
}

static bool read_table(const char **p, wefti_arena *arena, wefti_table *out) {
    int64_t v[WEFTI_MAX_TABLE];
    if (!read_ints(p, WEFTI_MAX_TABLE, v, &out->count)) return false;
    int64_t *kept = wefti_arena_alloc(arena, ((size_t)out->count + 1) * sizeof *v);
    if (!kept) return false;
    memcpy(kept, v, (size_t)out->count * sizeof *v);
    out->v = kept;
    return true;
}

static bool read_float(const char **p, double *out) {
    size_t length = strcspn(*p, " ");
    char word[64], *end;
    if (!length || length >= sizeof word) return false;
    memcpy(word, *p, length);
    word[length] = '\0';
    *out = wefti_real_read(word, &end);
    if (*end) return false;
    *p += length;
    return true;
}

static bool read_value(wefti_attr *a, const char **p, wefti_arena *arena) {
    switch (a->kind) {
    case WEFTI_ATTR_INTS:
        a->ints = (wefti_ints){0};
        return read_ints(p, WEFT_MAX_RANK, a->ints.v, &a->ints.count);
    case WEFTI_ATTR_TABLE:
        return read_table(p, arena, &a->table);
    case WEFTI_ATTR_FLOAT:
        return read_float(p, &a->f);
    case WEFTI_ATTR_INT:
        if (is_dtype(a)) {
            size_t length = strcspn(*p, " ");
            char word[8] = "";
            weft_dtype dtype;
            if (length < sizeof word) memcpy(word, *p, length);
            if (wefti_dtype_parse(word, &dtype)) {
                a->i = (int64_t)dtype;
                *p += length;
                return true;
            }
        }
        return read_int(p, &a->i);
    }
    return false;
}

weft_status wefti_attrs_parse(const weft_op_def *op, const char *text, wefti_arena *arena,
                              wefti_attr *attrs) {
    int count = wefti_attr_count(op);
    bool seen[64] = {false};
    WEFT_REQUIRE(count <= 64, WEFT_E_BUG, "%s has too many attributes", op->name);
    for (int i = 0; i < count; i++) attrs[i] = op->attrs[i];
    const char *p = text;
    for (;;) {
        while (*p == ' ') p++;
        if (!*p) return WEFT_OK;
        size_t length = strcspn(p, "= ");
        int found = -1;
        for (int i = 0; i < count; i++)
            if (is_named(&attrs[i], p, length)) found = i;
        WEFT_REQUIRE(found >= 0, WEFT_E_ARG, "%s has no attribute '%.*s'", op->name,
                     length > 60 ? 60 : (int)length, p);
        WEFT_REQUIRE(!seen[found], WEFT_E_ARG, "%s: attribute '%s' is given twice", op->name,
                     wefti_attr_name(attrs[found].id));
        seen[found] = true;
        p += length;
        bool good = *p == '=';
        if (good) p++;
        good = good && read_value(&attrs[found], &p, arena) && (*p == ' ' || !*p);
        WEFT_REQUIRE(good, WEFT_E_ARG, "%s: attribute '%s' wants %s", op->name,
                     wefti_attr_name(attrs[found].id),
                     attrs[found].kind == WEFTI_ATTR_INT     ? "=integer"
                     : attrs[found].kind == WEFTI_ATTR_FLOAT ? "=number"
                     : attrs[found].kind == WEFTI_ATTR_INTS  ? "=(integer,...), at most 8"
                                                             : "=(integer,...), at most 1024");
    }
}
