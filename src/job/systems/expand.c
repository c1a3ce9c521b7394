/* Words of scripts as fields: see interop/expand.h. The end of a word is found first, by its quotes
 * and brackets; then the word is expanded. */
#include "job/systems/expand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_EXPANDED = 1 << 22, /* of all fields */
    MOST_FIELDS = 1 << 14    /* of all words and arrays */
};

/* ---- the ends of words ---- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

const char *wefti_shell_name_end(const char *at, const char *end) {
    while (at < end && is_name(*at)) at++;
    return at;
}

static const char *closing(const char *at, const char *end, char close, int depth);

/* The byte behind what begins at `at`: a quoted text, an expansion, an escaped byte, or a byte. */
static const char *unit_end(const char *at, const char *end, int depth) {
    const char c = *at++;
    if (at >= end || depth > WEFTI_SHELL_NESTED) return at;
    if (c == '\\') return at + 1;
    if (c == '$' && (*at == '{' || *at == '('))
        return closing(at + 1, end, *at == '{' ? '}' : ')', depth + 1);
    if (c != '"' && c != '\'' && c != '`') return at;
    while (at < end && *at != c) {
        const bool deeper = c == '"' && (*at == '$' || *at == '\\');
        at = deeper ? unit_end(at, end, depth + 1) : at + 1;
    }
    return at < end ? at + 1 : end;
}

/* The byte behind the bracket that closes, with `at` behind the one that opens. */
static const char *closing(const char *at, const char *end, char close, int depth) {
    while (at < end && *at != close) {
        const bool nested = close == ')' && *at == '(';
        at = nested ? closing(at + 1, end, close, depth + 1) : unit_end(at, end, depth + 1);
        if (depth > WEFTI_SHELL_NESTED) return end;
    }
    return at < end ? at + 1 : end;
}

bool wefti_shell_ends_word(char c) {
    return strchr(" \t\r\n;&|()<>", c) != NULL;
}

const char *wefti_shell_word_end(const char *at, const char *end) {
    while (at < end && !wefti_shell_ends_word(*at)) at = unit_end(at, end, 0);
    return at < end ? at : end;
}

/* ---- variables ---- */

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a script");
}

static const char *keep(const wefti_expander *x, const char *text, size_t length) {
    char *copy = wefti_arena_alloc(x->arena, length + 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static wefti_shell_variable *find(const wefti_expander *x, const char *name, size_t length) {
    for (int64_t i = 0; i < x->variable_count; i++)
        if (strlen(x->variables[i].name) == length && !memcmp(x->variables[i].name, name, length))
            return &x->variables[i];
    return NULL;
}

static weft_status find_or_add(wefti_expander *x, const char *name, size_t length,
                               wefti_shell_variable **out) {
    *out = find(x, name, length);
    if (*out) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(x->variables, x->variable_count, x->variable_cap));
    *out = &x->variables[x->variable_count];
    **out = (wefti_shell_variable){.name = keep(x, name, length)};
    if (!(*out)->name) return no_memory();
    x->variable_count++;
    return WEFT_OK;
}

weft_status wefti_expand_add(wefti_expander *x, wefti_shell_words *list, wefti_shell_word w) {
    WEFT_REQUIRE(++x->fields <= MOST_FIELDS, WEFT_E_ARG, "%s has more than %d words", x->name,
                 MOST_FIELDS);
    WEFT_TRY(WEFT_GROW(list->items, list->count, list->cap));
    list->items[list->count++] = w;
    return WEFT_OK;
}

/* ---- expansion ---- */

/* Fields in the making. */
typedef struct field_builder {
    wefti_shell_words *out;
    wefti_text text;
    const char *unset;
    bool open;  /* a field has begun, if only by quotes */
    bool whole; /* everything is one field, elements with blanks between them */
    int line;
} field_builder;

static weft_status end_field(wefti_expander *x, field_builder *b) {
    if (!b->open) return WEFT_OK;
    const char *text = keep(x, b->text.data ? b->text.data : "", (size_t)b->text.used);
    if (!text || b->text.failed) return no_memory();
    const wefti_shell_word w = {text, b->unset, b->line};
    b->text.used = 0;
    b->open = false;
    b->unset = NULL;
    b->line = x->line;
    return wefti_expand_add(x, b->out, w);
}

static weft_status add_bytes(wefti_expander *x, field_builder *b, const char *text, size_t length) {
    x->bytes += (int64_t)length;
    WEFT_REQUIRE(x->bytes <= MOST_EXPANDED, WEFT_E_ARG, "%s: its words are longer than %d bytes",
                 x->name, MOST_EXPANDED);
    b->open = true;
    if (length) wefti_text_add_bytes(&b->text, text, (int64_t)length);
    return WEFT_OK;
}

/* A value: without quotes around it, its blanks end fields. */
static weft_status add_value(wefti_expander *x, field_builder *b, const wefti_shell_word *w,
                             bool quoted) {
    if (w->unset) b->unset = w->unset;
    if (!b->open) b->line = w->line;
    if (quoted || b->whole || w->unset) return add_bytes(x, b, w->text, strlen(w->text));
    for (const char *at = w->text; *at;) {
        const size_t blanks = strspn(at, " \t\n"), length = strcspn(at + blanks, " \t\n");
        if (blanks) WEFT_TRY(end_field(x, b));
        if (length) WEFT_TRY(add_bytes(x, b, at + blanks, length));
        at += blanks + length;
    }
    return WEFT_OK;
}

static weft_status mark_unset(wefti_expander *x, field_builder *b, const char *what,
                              size_t length) {
    enum { SHOWN = 48 };
    char text[SHOWN + 2];
    const size_t shown = length < SHOWN ? length : SHOWN;
    text[0] = '$';
    memcpy(text + 1, what, shown);
    b->open = true;
    if (!b->unset) b->unset = keep(x, text, shown + 1);
    return b->unset ? WEFT_OK : no_memory();
}

static weft_status expand(wefti_expander *x, const char *at, const char *end, field_builder *b,
                          bool quoted, int depth);

/* The text of a range as one field, of which blanks are part. */
static weft_status expand_one(wefti_expander *x, const char *at, const char *end, bool quoted,
                              int depth, wefti_shell_word *out) {
    wefti_shell_words list = {0};
    field_builder b = {.out = &list, .open = true, .whole = true, .line = x->line};
    weft_status status = expand(x, at, end, &b, quoted, depth);
    if (status >= 0) status = end_field(x, &b);
    if (status >= 0) *out = list.items[0];
    wefti_text_free(&b.text);
    wefti_free(list.items);
    return status;
}

/* ---- arithmetic ---- */

typedef struct sum {
    const wefti_expander *x;
    const char *at;
    bool bad;
    int depth;
} sum;

static int64_t read_sum(sum *s);

static int64_t read_factor(sum *s) {
    s->at += strspn(s->at, " \t\n");
    if (s->bad || ++s->depth > WEFTI_SHELL_NESTED) {
        s->bad = true;
        return 0;
    }
    int64_t value = 0;
    char *end = NULL;
    if (*s->at == '(') {
        s->at++;
        value = read_sum(s);
        s->bad |= *s->at != ')';
        s->at += *s->at == ')';
    } else if (*s->at == '-') {
        s->at++;
        value = -read_factor(s);
    } else if (*s->at >= '0' && *s->at <= '9') {
        value = strtoll(s->at, &end, 10);
        s->at = end;
        s->bad |= value > (int64_t)1 << 52;
    } else {
        const char *last = wefti_shell_name_end(s->at, s->at + strlen(s->at));
        const wefti_shell_variable *v = find(s->x, s->at, (size_t)(last - s->at));
        const wefti_shell_word *w = v && v->value.count ? &v->value.items[0] : NULL;
        value = w && !w->unset ? strtoll(w->text, &end, 10) : 0;
        s->bad |= !w || w->unset || end == w->text || *end || value > (int64_t)1 << 52;
        s->at = last;
    }
    s->depth--;
    s->at += strspn(s->at, " \t\n");
    return s->bad ? 0 : value;
}

static int64_t read_product(sum *s) {
    int64_t value = read_factor(s);
    while (!s->bad && *s->at && strchr("*/%", *s->at)) {
        const char op = *s->at++;
        const int64_t by = read_factor(s);
        if (op == '*')
            s->bad |= __builtin_mul_overflow(value, by, &value);
        else if (by <= 0) /* no script divides by less */
            s->bad = true;
        else
            value = op == '/' ? value / by : value % by;
    }
    return value;
}

static int64_t read_sum(sum *s) {
    int64_t value = read_product(s);
    while (!s->bad && (*s->at == '+' || *s->at == '-')) {
        const char op = *s->at++;
        const int64_t by = read_product(s);
        s->bad |= op == '+' ? __builtin_add_overflow(value, by, &value)
                            : __builtin_sub_overflow(value, by, &value);
    }
    return value;
}

/* "$((2 * GPUS))": `at` behind the brackets, `end` before them. */
static weft_status expand_sum(wefti_expander *x, const char *at, const char *end, field_builder *b,
                              int depth) {
    wefti_shell_word inner;
    char text[24];
    WEFT_TRY(expand_one(x, at, end, true, depth + 1, &inner));
    sum s = {.x = x, .at = inner.text, .bad = inner.unset != NULL};
    const int64_t value = read_sum(&s);
    if (inner.unset) b->unset = inner.unset;
    if (s.bad || *s.at) return mark_unset(x, b, "((...))", 7);
    const int length = snprintf(text, sizeof text, "%lld", (long long)value);
    return add_bytes(x, b, text, (size_t)length);
}

/* ---- variables in words ---- */

/* "[@]": all elements; else the first, or the one that the index names. */
static weft_status add_elements(wefti_expander *x, field_builder *b, const wefti_shell_variable *v,
                                const char *index, size_t length, bool quoted) {
    const bool all = length == 1 && (*index == '@' || *index == '*');
    const int64_t n = v->value.count, one = length && !all ? strtoll(index, NULL, 10) : 0;
    if (!all) return one >= 0 && one < n ? add_value(x, b, &v->value.items[one], quoted) : WEFT_OK;
    for (int64_t i = 0; i < v->value.count; i++) {
        if (i) WEFT_TRY(b->whole ? add_bytes(x, b, " ", 1) : end_field(x, b));
        const wefti_shell_word w =
            v->value.items[i]; /* which the list of fields may be growing beside */
        WEFT_TRY(add_value(x, b, &w, quoted));
        if (quoted) b->open = true;
    }
    return WEFT_OK;
}

/* "NAME:-default" and its relatives; patterns are not known. */
static weft_status expand_braces(wefti_expander *x, const char *at, const char *end,
                                 field_builder *b, bool quoted, int depth) {
    const bool counts = at < end && *at == '#';
    const char *first = at + counts, *last = wefti_shell_name_end(first, end), *index = last,
               *op = last;
    if (op < end && *op == '[') {
        const char *close = memchr(op, ']', (size_t)(end - op));
        index = op + 1;
        op = close ? close + 1 : end;
    }
    const size_t index_length = index > last && op > index ? (size_t)(op - 1 - index) : 0;
    wefti_shell_variable *v = find(x, first, (size_t)(last - first));
    const bool empty =
        !v || !v->value.count ||
        (v->value.count == 1 && !*v->value.items[0].text && !v->value.items[0].unset);
    const bool colon = op < end && *op == ':';
    const char *what = op + colon;
    const bool missing = colon ? empty : !v;
    if (counts) {
        char text[24];
        const int length = snprintf(text, sizeof text, "%lld", v ? (long long)v->value.count : 0);
        return add_bytes(x, b, text, (size_t)length);
    }
    if (what < end && *what == '+')
        return missing ? WEFT_OK : expand(x, what + 1, end, b, quoted, depth + 1);
    if (what < end && strchr("-=", *what) && missing) {
        if (*what == '-') return expand(x, what + 1, end, b, quoted, depth + 1);
        wefti_shell_word w;
        WEFT_TRY(expand_one(x, what + 1, end, true, depth + 1, &w));
        WEFT_TRY(find_or_add(x, first, (size_t)(last - first), &v));
        v->value.count = 0;
        WEFT_TRY(wefti_expand_add(x, &v->value, w));
        return add_value(x, b, &w, quoted);
    }
    const bool plain = op == end || (what < end && strchr("-=?", *what));
    if (!v || !plain) return mark_unset(x, b, at, (size_t)(end - at));
    return add_elements(x, b, v, index, index_length, quoted);
}

/* At a '$'; *at gets the byte behind the expansion. */
static weft_status expand_dollar(wefti_expander *x, const char **at, const char *end,
                                 field_builder *b, bool quoted, int depth) {
    const char *first = *at + 1, *behind = unit_end(*at, end, depth);
    if (first < end && *first == '(') {
        const bool is_sum = first + 1 < end && first[1] == '(' && behind - first > 3;
        *at = behind;
        if (is_sum) return expand_sum(x, first + 2, behind - 2, b, depth);
        return mark_unset(x, b, first, (size_t)(behind - first));
    }
    if (first < end && *first == '{') {
        *at = behind;
        return expand_braces(x, first + 1, behind - (behind > first + 1 && behind[-1] == '}'), b,
                             quoted, depth);
    }
    const bool digit = first < end && *first >= '0' && *first <= '9';
    const char *last = digit ? first + 1 : wefti_shell_name_end(first, end);
    if (last == first && first < end && strchr("@*#?$!-", *first)) last = first + 1;
    *at = last;
    if (last == first) return add_bytes(x, b, "$", 1);
    const wefti_shell_variable *v = find(x, first, (size_t)(last - first));
    if (v && v->value.count) return add_elements(x, b, v, "", 0, quoted);
    if (v || (last - first == 1 && (*first == '@' || *first == '*'))) return WEFT_OK;
    return mark_unset(x, b, first, (size_t)(last - first));
}

static weft_status expand_quotes(wefti_expander *x, const char **at, const char *end,
                                 field_builder *b, int depth) {
    const char *first = *at + 1, *behind = unit_end(*at, end, depth);
    const char *last = behind > first && behind[-1] == **at ? behind - 1 : behind;
    const char quote = **at;
    *at = behind;
    if (quote == '`') return mark_unset(x, b, "(...)", 5);
    b->open = true;
    if (quote == '\'') return add_bytes(x, b, first, (size_t)(last - first));
    return expand(x, first, last, b, true, depth + 1);
}

/* `quoted`: inside of double quotes, where single quotes and blanks are plain bytes. */
static weft_status expand(wefti_expander *x, const char *at, const char *end, field_builder *b,
                          bool quoted, int depth) {
    WEFT_REQUIRE(depth <= WEFTI_SHELL_NESTED, WEFT_E_ARG, "%s:%d: brackets are nested too deeply",
                 x->name, x->line);
    while (at < end) {
        if (*at == '$') {
            WEFT_TRY(expand_dollar(x, &at, end, b, quoted, depth));
        } else if (*at == '"' || *at == '`' || (*at == '\'' && !quoted)) {
            WEFT_TRY(expand_quotes(x, &at, end, b, depth));
        } else if (*at == '\\' && at + 1 < end) {
            const bool joins = at[1] == '\n', stays = quoted && !strchr("\"\\$`", at[1]);
            if (!joins) WEFT_TRY(add_bytes(x, b, stays ? at : at + 1, stays ? 2 : 1));
            at += 2;
        } else if (!quoted && !b->whole && strchr(" \t\n", *at)) {
            WEFT_TRY(end_field(x, b));
            at++;
        } else {
            WEFT_TRY(add_bytes(x, b, at++, 1));
        }
    }
    return WEFT_OK;
}

/* ---- what scripts ask for ---- */

weft_status wefti_expand_word(wefti_expander *x, const char *at, const char *end,
                              wefti_shell_words *out) {
    field_builder b = {.out = out, .line = x->line};
    weft_status status = expand(x, at, end, &b, false, 0);
    if (status >= 0) status = end_field(x, &b);
    wefti_text_free(&b.text);
    return status;
}

weft_status wefti_expand_value(wefti_expander *x, const char *at, const char *end,
                               wefti_shell_word *out) {
    return expand_one(x, at, end, false, 0, out);
}

weft_status wefti_expand_elements(wefti_expander *x, const wefti_shell_variable *v,
                                  wefti_shell_words *out) {
    field_builder b = {.out = out, .line = x->line};
    weft_status status = add_elements(x, &b, v, "@", 1, false);
    if (status >= 0) status = end_field(x, &b);
    wefti_text_free(&b.text);
    return status;
}

/* "NAME+=more" of a text. */
static weft_status append(wefti_expander *x, wefti_shell_variable *v,
                          const wefti_shell_word *more) {
    wefti_shell_words joined = {0};
    field_builder b = {.out = &joined, .open = true, .whole = true, .line = x->line};
    weft_status status = add_value(x, &b, &v->value.items[0], true);
    if (status >= 0) status = add_value(x, &b, more, true);
    if (status >= 0) status = end_field(x, &b);
    if (status >= 0) v->value.items[0] = joined.items[0];
    wefti_text_free(&b.text);
    wefti_free(joined.items);
    return status;
}

weft_status wefti_expand_set(wefti_expander *x, const char *name, size_t length,
                             const wefti_shell_word *value, bool adds) {
    wefti_shell_variable *v;
    WEFT_TRY(find_or_add(x, name, length, &v));
    if (adds && v->value.count) return append(x, v, value);
    v->value.count = 0;
    return wefti_expand_add(x, &v->value, *value);
}

weft_status wefti_expand_set_array(wefti_expander *x, const char *name, size_t length,
                                   const wefti_shell_words *elements, bool adds) {
    wefti_shell_variable *v;
    WEFT_TRY(find_or_add(x, name, length, &v));
    if (!adds) v->value.count = 0;
    for (int64_t i = 0; i < elements->count; i++)
        WEFT_TRY(wefti_expand_add(x, &v->value, elements->items[i]));
    return WEFT_OK;
}

void wefti_expander_free(wefti_expander *x) {
    for (int64_t i = 0; i < x->variable_count; i++) wefti_free(x->variables[i].value.items);
    wefti_free(x->variables);
}
