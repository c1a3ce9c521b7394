/* Layouts as text: "[dp, tp+sp:64, -] sum(tp)". */
#include "layout/layout.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"

static void put(wefti_layout_words *words, size_t *used, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put(wefti_layout_words *words, size_t *used, const char *format, ...) {
    if (*used >= sizeof words->text) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(words->text + *used, sizeof words->text - *used, format, args);
    va_end(args);
    if (n > 0) *used += (size_t)n;
}

/* Accepts layouts that are not legal, because error messages print them. */
static const char *axis_name(const wefti_mesh *mesh, int axis) {
    return axis >= 0 && axis < mesh->axes ? mesh->axis[axis].name : "?";
}

static void put_partial(wefti_layout_words *words, size_t *used, const wefti_mesh *mesh,
                        const char *name, wefti_axes axes) {
    if (!axes) return;
    put(words, used, " %s(", name);
    const char *between = "";
    for (int a = 0; a < WEFTI_MAX_AXES; a++)
        if (axes >> a & 1u) {
            put(words, used, "%s%s", between, axis_name(mesh, a));
            between = ", ";
        }
    put(words, used, ")");
}

wefti_layout_words wefti_layout_text(const wefti_layout *layout, const wefti_mesh *mesh) {
    wefti_layout_words words = {{0}};
    size_t used = 0;
    put(&words, &used, "[");
    for (int d = 0; d < layout->rank && d < WEFT_MAX_RANK; d++) {
        const wefti_dim_split *split = &layout->dim[d];
        put(&words, &used, "%s", d ? ", " : "");
        if (split->count <= 0) put(&words, &used, "-");
        for (int i = 0; i < split->count && i < WEFTI_MAX_AXES; i++)
            put(&words, &used, "%s%s", i ? "+" : "", axis_name(mesh, split->axis[i]));
        if (split->count > 0 && split->unit > 1)
            put(&words, &used, ":%lld", (long long)split->unit);
    }
    put(&words, &used, "]");
    put_partial(&words, &used, mesh, "sum", layout->sum);
    put_partial(&words, &used, mesh, "max", layout->max);
    return words;
}

/* ---- parsing ---- */

typedef struct layout_text_reader {
    const char *text, *at;
    const wefti_mesh *mesh;
    wefti_axes used;
} layout_text_reader;

static bool take(layout_text_reader *r, char c) {
    while (isspace((unsigned char)*r->at)) r->at++;
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* A name consists of letters, digits and underscores. */
static int word(layout_text_reader *r, char *out, int room) {
    while (isspace((unsigned char)*r->at)) r->at++;
    int length = 0;
    for (; isalnum((unsigned char)*r->at) || *r->at == '_'; r->at++)
        if (length < room - 1) out[length++] = *r->at;
    out[length] = 0;
    return length;
}

static weft_status expected(const layout_text_reader *r, const char *what) {
    WEFT_FAIL(WEFT_E_ARG,
              "layout '%s': expected %s at '%s'; a layout reads [dp, tp+sp:64, -] "
              "sum(tp)",
              r->text, what, r->at);
}

static weft_status unknown_axis(const layout_text_reader *r, const char *name) {
    wefti_text axes = {0};
    for (int a = 0; a < r->mesh->axes; a++)
        wefti_text_add(&axes, "%s%s=%d", a ? ", " : "", r->mesh->axis[a].name,
                       r->mesh->axis[a].size);
    char *list = wefti_text_take(&axes);
    weft_status status = WEFT_RAISE(WEFT_E_ARG, "layout '%s': the mesh has no axis '%s'; it has %s",
                                    r->text, name, list ? list : "others");
    wefti_text_free(&axes);
    wefti_free(list);
    return status;
}

static weft_status read_axis(layout_text_reader *r, int *out) {
    char name[40];
    if (!word(r, name, sizeof name)) return expected(r, "the name of an axis");
    int axis = wefti_mesh_find(r->mesh, name);
    if (axis < 0) return unknown_axis(r, name);
    WEFT_REQUIRE(!(r->used >> axis & 1u), WEFT_E_ARG, "layout '%s' uses axis '%s' twice", r->text,
                 name);
    r->used |= 1u << axis;
    *out = axis;
    return WEFT_OK;
}

static weft_status read_dim(layout_text_reader *r, wefti_dim_split *out) {
    if (take(r, '-')) return WEFT_OK;
    do {
        int axis = 0;
        WEFT_TRY(read_axis(r, &axis));
        out->axis[out->count++] = (int8_t)axis;
    } while (take(r, '+'));
    if (!take(r, ':')) return WEFT_OK;
    char digits[24], *end = NULL;
    if (!word(r, digits, sizeof digits)) return expected(r, "a number of elements");
    long long unit = strtoll(digits, &end, 10);
    WEFT_REQUIRE(!*end && unit >= 1 && unit < INT64_MAX, WEFT_E_ARG,
                 "layout '%s': a unit is a whole number of at least 1, not '%s'", r->text, digits);
    out->unit = unit;
    return WEFT_OK;
}

static weft_status read_partial(layout_text_reader *r, wefti_layout *layout) {
    const char *before = r->at;
    char name[8];
    if (!word(r, name, sizeof name)) return expected(r, "the end, sum(...) or max(...)");
    bool sum = !strcmp(name, "sum");
    if ((!sum && strcmp(name, "max")) || !take(r, '(')) {
        r->at = before;
        return expected(r, "the end, sum(...) or max(...)");
    }
    do {
        int axis = 0;
        WEFT_TRY(read_axis(r, &axis));
        if (sum)
            layout->sum |= 1u << axis;
        else
            layout->max |= 1u << axis;
    } while (take(r, ','));
    return take(r, ')') ? WEFT_OK : expected(r, "')'");
}

weft_status wefti_layout_parse(const char *text, const wefti_mesh *mesh, wefti_layout *out) {
    layout_text_reader r = {.text = text, .at = text, .mesh = mesh};
    wefti_layout layout = wefti_layout_replicated(0);
    if (!take(&r, '[')) return expected(&r, "'['");
    if (!take(&r, ']')) {
        do {
            WEFT_REQUIRE(layout.rank < WEFT_MAX_RANK, WEFT_E_ARG,
                         "layout '%s' has more than %d dimensions", text, WEFT_MAX_RANK);
            WEFT_TRY(read_dim(&r, &layout.dim[layout.rank++]));
        } while (take(&r, ','));
        if (!take(&r, ']')) return expected(&r, "',' or ']'");
    }
    while (!take(&r, '\0')) WEFT_TRY(read_partial(&r, &layout));
    *out = layout;
    return WEFT_OK;
}
