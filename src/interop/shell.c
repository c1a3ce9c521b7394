/* A reader of launch scripts: see interop/shell.h. It goes through the text once. The end of a word
 * is found first, by its quotes and brackets; then the word is expanded to fields. In branches that
 * do not run, words are read and dropped. */
#include "interop/shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_BYTES = 1 << 20,    /* of a script */
    MOST_EXPANDED = 1 << 22, /* of all fields */
    MOST_FIELDS = 1 << 14,   /* of all words and arrays */
    MOST_NESTED = 32         /* brackets in brackets, blocks in blocks */
};

typedef wefti_shell_word word;

typedef struct words {
    word *items;
    int64_t count, cap;
} words;

typedef struct script_variable {
    const char *name;
    words value;
} script_variable;

typedef enum truth { TRUTH_FALSE, TRUTH_TRUE, TRUTH_UNKNOWN } truth;

typedef struct shell_block {
    bool is_case, parent, done,
        active;          /* parent: what is around it runs; done: a branch was taken */
    bool pattern;        /* of a case: a pattern comes next */
    const char *subject; /* of a case */
} shell_block;

typedef struct script_reader {
    const wefti_shell_script *script;
    const char *at, *end;
    int line;
    script_variable *variables;
    int64_t variable_count, variable_cap;
    shell_block blocks[MOST_NESTED];
    int depth;
    truth last;    /* of the command before */
    bool ordinary; /* that was no test: it is taken to succeed before && */
    char joined;   /* the operator before this command: '&', '|', or 0 */
    int64_t fields, expanded;
} script_reader;

/* ---- the ends of words ---- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *name_end(const char *at, const char *end) {
    while (at < end && is_name(*at)) at++;
    return at;
}

static const char *closing(const char *at, const char *end, char close, int depth);

/* The byte behind what begins at `at`: a quoted text, an expansion, an escaped byte, or a byte. */
static const char *unit_end(const char *at, const char *end, int depth) {
    const char c = *at++;
    if (at >= end || depth > MOST_NESTED) return at;
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
        if (depth > MOST_NESTED) return end;
    }
    return at < end ? at + 1 : end;
}

static bool ends_word(char c) {
    return strchr(" \t\r\n;&|()<>", c) != NULL;
}

static const char *word_end(const char *at, const char *end) {
    while (at < end && !ends_word(*at)) at = unit_end(at, end, 0);
    return at < end ? at : end;
}

/* ---- variables ---- */

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a script");
}

static const char *keep(const script_reader *r, const char *text, size_t length) {
    char *copy = wefti_arena_alloc(r->script->arena, length + 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static script_variable *find(const script_reader *r, const char *name, size_t length) {
    for (int64_t i = 0; i < r->variable_count; i++)
        if (strlen(r->variables[i].name) == length && !memcmp(r->variables[i].name, name, length))
            return &r->variables[i];
    return NULL;
}

static weft_status find_or_add(script_reader *r, const char *name, size_t length,
                               script_variable **out) {
    *out = find(r, name, length);
    if (*out) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(r->variables, r->variable_count, r->variable_cap));
    *out = &r->variables[r->variable_count];
    **out = (script_variable){.name = keep(r, name, length)};
    if (!(*out)->name) return no_memory();
    r->variable_count++;
    return WEFT_OK;
}

static weft_status push(script_reader *r, words *list, word w) {
    WEFT_REQUIRE(++r->fields <= MOST_FIELDS, WEFT_E_ARG, "%s has more than %d words",
                 r->script->name, MOST_FIELDS);
    WEFT_TRY(WEFT_GROW(list->items, list->count, list->cap));
    list->items[list->count++] = w;
    return WEFT_OK;
}

/* ---- expansion ---- */

/* Fields in the making. */
typedef struct field_builder {
    words *out;
    wefti_text text;
    const char *unset;
    bool open;  /* a field has begun, if only by quotes */
    bool whole; /* everything is one field, elements with blanks between them */
    int line;
} field_builder;

static weft_status end_field(script_reader *r, field_builder *b) {
    if (!b->open) return WEFT_OK;
    const char *text = keep(r, b->text.data ? b->text.data : "", (size_t)b->text.used);
    if (!text || b->text.failed) return no_memory();
    const word w = {text, b->unset, b->line};
    b->text.used = 0;
    b->open = false;
    b->unset = NULL;
    b->line = r->line;
    return push(r, b->out, w);
}

static weft_status add_bytes(script_reader *r, field_builder *b, const char *text, size_t length) {
    r->expanded += (int64_t)length;
    WEFT_REQUIRE(r->expanded <= MOST_EXPANDED, WEFT_E_ARG, "%s: its words are longer than %d bytes",
                 r->script->name, MOST_EXPANDED);
    b->open = true;
    if (length) wefti_text_add_bytes(&b->text, text, (int64_t)length);
    return WEFT_OK;
}

/* A value: without quotes around it, its blanks end fields. */
static weft_status add_value(script_reader *r, field_builder *b, const word *w, bool quoted) {
    if (w->unset) b->unset = w->unset;
    if (!b->open) b->line = w->line;
    if (quoted || w->unset) return add_bytes(r, b, w->text, strlen(w->text));
    for (const char *at = w->text; *at;) {
        const size_t blanks = strspn(at, " \t\n"), length = strcspn(at + blanks, " \t\n");
        if (blanks) WEFT_TRY(end_field(r, b));
        if (length) WEFT_TRY(add_bytes(r, b, at + blanks, length));
        at += blanks + length;
    }
    return WEFT_OK;
}

static weft_status mark_unset(script_reader *r, field_builder *b, const char *what, size_t length) {
    enum { SHOWN = 48 };
    char text[SHOWN + 2];
    const size_t shown = length < SHOWN ? length : SHOWN;
    text[0] = '$';
    memcpy(text + 1, what, shown);
    b->open = true;
    if (!b->unset) b->unset = keep(r, text, shown + 1);
    return b->unset ? WEFT_OK : no_memory();
}

static weft_status expand(script_reader *r, const char *at, const char *end, field_builder *b,
                          bool quoted, int depth);

/* The text of a range as one field, of which blanks are part. */
static weft_status expand_one(script_reader *r, const char *at, const char *end, int depth,
                              word *out) {
    words list = {0};
    field_builder b = {.out = &list, .open = true, .whole = true, .line = r->line};
    weft_status status = expand(r, at, end, &b, true, depth);
    if (status >= 0) status = end_field(r, &b);
    if (status >= 0) *out = list.items[0];
    wefti_text_free(&b.text);
    wefti_free(list.items);
    return status;
}

/* ---- arithmetic ---- */

typedef struct sum {
    const script_reader *r;
    const char *at;
    bool bad;
    int depth;
} sum;

static int64_t read_sum(sum *s);

static int64_t read_factor(sum *s) {
    s->at += strspn(s->at, " \t\n");
    if (s->bad || ++s->depth > MOST_NESTED) {
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
        const char *last = name_end(s->at, s->at + strlen(s->at));
        const script_variable *v = find(s->r, s->at, (size_t)(last - s->at));
        const word *w = v && v->value.count ? &v->value.items[0] : NULL;
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
static weft_status expand_sum(script_reader *r, const char *at, const char *end, field_builder *b,
                              int depth) {
    word inner;
    char text[24];
    WEFT_TRY(expand_one(r, at, end, depth + 1, &inner));
    sum s = {.r = r, .at = inner.text, .bad = inner.unset != NULL};
    const int64_t value = read_sum(&s);
    if (inner.unset) b->unset = inner.unset;
    if (s.bad || *s.at) return mark_unset(r, b, "((...))", 7);
    const int length = snprintf(text, sizeof text, "%lld", (long long)value);
    return add_bytes(r, b, text, (size_t)length);
}

/* ---- variables in words ---- */

/* "[@]": all elements; else the first, or the one that the index names. */
static weft_status add_elements(script_reader *r, field_builder *b, const script_variable *v,
                                const char *index, size_t length, bool quoted) {
    const bool all = length == 1 && (*index == '@' || *index == '*');
    const int64_t n = v->value.count, one = length && !all ? strtoll(index, NULL, 10) : 0;
    if (!all) return one >= 0 && one < n ? add_value(r, b, &v->value.items[one], quoted) : WEFT_OK;
    for (int64_t i = 0; i < v->value.count; i++) {
        if (i) WEFT_TRY(b->whole ? add_bytes(r, b, " ", 1) : end_field(r, b));
        const word w = v->value.items[i]; /* which the list of fields may be growing beside */
        WEFT_TRY(add_value(r, b, &w, quoted));
        if (quoted) b->open = true;
    }
    return WEFT_OK;
}

/* "NAME:-default" and its relatives; patterns are not known. */
static weft_status expand_braces(script_reader *r, const char *at, const char *end,
                                 field_builder *b, bool quoted, int depth) {
    const bool counts = at < end && *at == '#';
    const char *first = at + counts, *last = name_end(first, end), *index = last, *op = last;
    if (op < end && *op == '[') {
        const char *close = memchr(op, ']', (size_t)(end - op));
        index = op + 1;
        op = close ? close + 1 : end;
    }
    const size_t index_length = index > last && op > index ? (size_t)(op - 1 - index) : 0;
    script_variable *v = find(r, first, (size_t)(last - first));
    const bool empty =
        !v || !v->value.count ||
        (v->value.count == 1 && !*v->value.items[0].text && !v->value.items[0].unset);
    const bool colon = op < end && *op == ':';
    const char *what = op + colon;
    const bool missing = colon ? empty : !v;
    if (counts) {
        char text[24];
        const int length = snprintf(text, sizeof text, "%lld", v ? (long long)v->value.count : 0);
        return add_bytes(r, b, text, (size_t)length);
    }
    if (what < end && *what == '+')
        return missing ? WEFT_OK : expand(r, what + 1, end, b, quoted, depth + 1);
    if (what < end && strchr("-=", *what) && missing) {
        if (*what == '-') return expand(r, what + 1, end, b, quoted, depth + 1);
        word w;
        WEFT_TRY(expand_one(r, what + 1, end, depth + 1, &w));
        WEFT_TRY(find_or_add(r, first, (size_t)(last - first), &v));
        v->value.count = 0;
        WEFT_TRY(push(r, &v->value, w));
        return add_value(r, b, &w, quoted);
    }
    const bool plain = op == end || (what < end && strchr("-=?", *what));
    if (!v || !plain) return mark_unset(r, b, at, (size_t)(end - at));
    return add_elements(r, b, v, index, index_length, quoted);
}

/* At a '$'; *at gets the byte behind the expansion. */
static weft_status expand_dollar(script_reader *r, const char **at, const char *end,
                                 field_builder *b, bool quoted, int depth) {
    const char *first = *at + 1, *behind = unit_end(*at, end, depth);
    if (first < end && *first == '(') {
        const bool is_sum = first + 1 < end && first[1] == '(' && behind - first > 3;
        *at = behind;
        if (is_sum) return expand_sum(r, first + 2, behind - 2, b, depth);
        return mark_unset(r, b, first, (size_t)(behind - first));
    }
    if (first < end && *first == '{') {
        *at = behind;
        return expand_braces(r, first + 1, behind - (behind > first + 1 && behind[-1] == '}'), b,
                             quoted, depth);
    }
    const bool digit = first < end && *first >= '0' && *first <= '9';
    const char *last = digit ? first + 1 : name_end(first, end);
    if (last == first && first < end && strchr("@*#?$!-", *first)) last = first + 1;
    *at = last;
    if (last == first) return add_bytes(r, b, "$", 1);
    const script_variable *v = find(r, first, (size_t)(last - first));
    if (v && v->value.count) return add_elements(r, b, v, "", 0, quoted);
    if (v || (last - first == 1 && (*first == '@' || *first == '*'))) return WEFT_OK;
    return mark_unset(r, b, first, (size_t)(last - first));
}

static weft_status expand_quotes(script_reader *r, const char **at, const char *end,
                                 field_builder *b, int depth) {
    const char *first = *at + 1, *behind = unit_end(*at, end, depth);
    const char *last = behind > first && behind[-1] == **at ? behind - 1 : behind;
    const char quote = **at;
    *at = behind;
    if (quote == '`') return mark_unset(r, b, "(...)", 5);
    b->open = true;
    if (quote == '\'') return add_bytes(r, b, first, (size_t)(last - first));
    return expand(r, first, last, b, true, depth + 1);
}

/* `quoted`: inside of double quotes, where single quotes and blanks are plain bytes. */
static weft_status expand(script_reader *r, const char *at, const char *end, field_builder *b,
                          bool quoted, int depth) {
    WEFT_REQUIRE(depth <= MOST_NESTED, WEFT_E_ARG, "%s:%d: brackets are nested too deeply",
                 r->script->name, r->line);
    while (at < end) {
        if (*at == '$') {
            WEFT_TRY(expand_dollar(r, &at, end, b, quoted, depth));
        } else if (*at == '"' || *at == '`' || (*at == '\'' && !quoted)) {
            WEFT_TRY(expand_quotes(r, &at, end, b, depth));
        } else if (*at == '\\' && at + 1 < end) {
            const bool joins = at[1] == '\n', stays = quoted && !strchr("\"\\$`", at[1]);
            if (!joins) WEFT_TRY(add_bytes(r, b, stays ? at : at + 1, stays ? 2 : 1));
            at += 2;
        } else if (!quoted && strchr(" \t\n", *at)) {
            WEFT_TRY(end_field(r, b));
            at++;
        } else {
            WEFT_TRY(add_bytes(r, b, at++, 1));
        }
    }
    return WEFT_OK;
}

/* ---- words of the script ---- */

static void pass(script_reader *r, const char *to) {
    for (; r->at < to; r->at++) r->line += *r->at == '\n';
}

/* Blanks, joined lines, comments; `lines`: also ends of lines. */
static void skip_blanks(script_reader *r, bool lines) {
    while (r->at < r->end) {
        const bool joined = *r->at == '\\' && r->at + 1 < r->end && r->at[1] == '\n';
        if (*r->at == '#')
            while (r->at < r->end && *r->at != '\n') r->at++;
        else if (joined || strchr(" \t\r", *r->at) || (lines && *r->at == '\n'))
            pass(r, r->at + (joined ? 2 : 1));
        else
            return;
    }
}

static weft_status read_word(script_reader *r, words *out) {
    const char *end = word_end(r->at, r->end);
    field_builder b = {.out = out, .line = r->line};
    weft_status status = expand(r, r->at, end, &b, false, 0);
    if (status >= 0) status = end_field(r, &b);
    wefti_text_free(&b.text);
    pass(r, end);
    return status;
}

static bool is_word(const script_reader *r, const char *text) {
    const size_t length = strlen(text);
    return (size_t)(r->end - r->at) >= length && !memcmp(r->at, text, length) &&
           word_end(r->at, r->end) == r->at + length;
}

/* "NAME=value", "NAME+=value", "NAME=(a b)"; false: no assignment begins here. */
static bool assigns(const script_reader *r, const char **out_name_end, bool *out_adds) {
    const char *last = name_end(r->at, r->end);
    if (last == r->at || last >= r->end || (*r->at >= '0' && *r->at <= '9')) return false;
    *out_adds = *last == '+' && last + 1 < r->end && last[1] == '=';
    *out_name_end = last;
    return *out_adds || *last == '=';
}

static weft_status read_array(script_reader *r, words *out) {
    pass(r, r->at + 1);
    for (;;) {
        skip_blanks(r, true);
        if (r->at >= r->end) return WEFT_OK;
        if (*r->at == ')') {
            pass(r, r->at + 1);
            return WEFT_OK;
        }
        if (ends_word(*r->at))
            pass(r, r->at + 1);
        else
            WEFT_TRY(read_word(r, out));
    }
}

/* "NAME+=more" of a text. */
static weft_status append(script_reader *r, script_variable *v, const word *more) {
    if (!v->value.count) return push(r, &v->value, *more);
    word *w = &v->value.items[0];
    field_builder b = {.out = &(words){0}, .open = true};
    weft_status status = add_bytes(r, &b, w->text, strlen(w->text));
    if (status >= 0) status = add_bytes(r, &b, more->text, strlen(more->text));
    const char *text =
        status < 0 ? NULL : keep(r, b.text.data ? b.text.data : "", (size_t)b.text.used);
    wefti_text_free(&b.text);
    WEFT_TRY(status);
    if (!text) return no_memory();
    w->text = text;
    if (more->unset) w->unset = more->unset;
    return WEFT_OK;
}

static weft_status assign(script_reader *r, const char *last, bool adds, bool runs) {
    const char *name = r->at;
    words list = {0};
    word one = {"", NULL, r->line};
    script_variable *v;
    pass(r, last + (adds ? 2 : 1));
    const bool array = r->at < r->end && *r->at == '(';
    weft_status status = WEFT_OK;
    if (array) {
        status = read_array(r, &list);
    } else {
        const char *end = word_end(r->at, r->end);
        words fields = {0};
        field_builder b = {.out = &fields, .open = true, .whole = true, .line = r->line};
        /* A value is one field: blanks of what it expands to stay. */
        for (const char *at = r->at; at < end && status >= 0;) {
            if (*at == '"' || *at == '\'' || *at == '`')
                status = expand_quotes(r, &at, end, &b, 0);
            else if (*at == '$')
                status = expand_dollar(r, &at, end, &b, true, 0);
            else if (*at == '\\' && at + 1 < end && at[1] == '\n')
                at += 2;
            else
                status = add_bytes(r, &b, *at == '\\' && at + 1 < end ? ++at : at, 1), at++;
        }
        if (status >= 0) status = end_field(r, &b);
        if (status >= 0) one = fields.items[fields.count - 1];
        wefti_text_free(&b.text);
        wefti_free(fields.items);
        pass(r, end);
    }
    if (status >= 0 && runs) status = find_or_add(r, name, (size_t)(last - name), &v);
    if (status >= 0 && runs) {
        if (!adds) v->value.count = 0;
        for (int64_t i = 0; i < list.count && status >= 0; i++)
            status = push(r, &v->value, list.items[i]);
        if (!array && status >= 0) status = append(r, v, &one);
    }
    wefti_free(list.items);
    return status;
}

/* ---- conditions ---- */

static truth of_bool(bool value) {
    return value ? TRUTH_TRUE : TRUTH_FALSE;
}

static truth negated(truth t) {
    return t == TRUTH_UNKNOWN ? t : t == TRUTH_TRUE ? TRUTH_FALSE : TRUTH_TRUE;
}

static truth compare(const char *a, const char *op, const char *b) {
    static const char *const numbers[] = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"};
    if (!strcmp(op, "=") || !strcmp(op, "==")) return of_bool(wefti_glob_match(b, a));
    if (!strcmp(op, "!=")) return of_bool(!wefti_glob_match(b, a));
    char *end_a, *end_b;
    const long long x = strtoll(a, &end_a, 10), y = strtoll(b, &end_b, 10);
    if (*end_a || *end_b || end_a == a || end_b == b) return TRUTH_UNKNOWN;
    const bool is[] = {x == y, x != y, x<y, x <= y, x> y, x >= y};
    for (int i = 0; i < 6; i++)
        if (!strcmp(op, numbers[i])) return of_bool(is[i]);
    return TRUTH_UNKNOWN;
}

/* Words between brackets, without operators. */
static truth test_words(const word *w, int64_t n) {
    if (n > 0 && !strcmp(w[0].text, "!")) return negated(test_words(w + 1, n - 1));
    for (int64_t i = 0; i < n; i++) /* "$(...)": a command, which is not run */
        if (w[i].unset && w[i].unset[1] == '(') return TRUTH_UNKNOWN;
    if (n == 0) return TRUTH_FALSE;
    if (n == 1) return of_bool(*w[0].text);
    if (n == 2 && !strcmp(w[0].text, "-n")) return of_bool(*w[1].text);
    if (n == 2 && !strcmp(w[0].text, "-z")) return of_bool(!*w[1].text);
    return n == 3 ? compare(w[0].text, w[1].text, w[2].text) : TRUTH_UNKNOWN;
}

/* "a && b || c" of a test, from the left. */
static truth test(const word *w, int64_t n) {
    truth value = TRUTH_TRUE;
    bool and = true;
    for (int64_t i = 0, begin = 0; i <= n; i++) {
        const bool joins = i < n && (!strcmp(w[i].text, "&&") || !strcmp(w[i].text, "||"));
        if (i < n && !joins) continue;
        const truth part = test_words(w + begin, i - begin);
        if (and)
            value = value == TRUTH_FALSE || part == TRUTH_FALSE ? TRUTH_FALSE
                    : value == TRUTH_TRUE                       ? part
                                                                : value;
        else
            value = value == TRUTH_TRUE || part == TRUTH_TRUE ? TRUTH_TRUE
                    : value == TRUTH_FALSE                    ? part
                                                              : value;
        if (joins) and = w[i].text[0] == '&';
        begin = i + 1;
    }
    return value;
}

static truth status_of(const words *list) {
    const word *w = list->items;
    int64_t n = list->count;
    if (n && !strcmp(w[0].text, "!")) {
        const words rest = {list->items + 1, n - 1, n - 1};
        return negated(status_of(&rest));
    }
    const char *first = n ? w[0].text : "true";
    const bool brackets = !strcmp(first, "[") || !strcmp(first, "[[");
    if (brackets && (!strcmp(w[n - 1].text, "]") || !strcmp(w[n - 1].text, "]]"))) n--;
    if (brackets || !strcmp(first, "test")) return test(w + 1, n - 1);
    if (!strcmp(first, "true") || !strcmp(first, "false")) return of_bool(*first == 't');
    return TRUTH_UNKNOWN;
}

/* ---- blocks ---- */

static bool runs(const script_reader *r) {
    return r->depth == 0 || r->blocks[r->depth - 1].active;
}

static weft_status open_block(script_reader *r, shell_block b) {
    WEFT_REQUIRE(r->depth < MOST_NESTED, WEFT_E_ARG, "%s:%d: blocks are nested too deeply",
                 r->script->name, r->line);
    b.parent = b.active = runs(r);
    if (b.is_case) b.active = false;
    r->blocks[r->depth++] = b;
    return WEFT_OK;
}

static weft_status open_case(script_reader *r) {
    words list = {0};
    skip_blanks(r, true);
    weft_status status = read_word(r, &list);
    const char *subject = status >= 0 && list.count ? list.items[0].text : "";
    wefti_free(list.items);
    WEFT_TRY(status);
    skip_blanks(r, true);
    if (is_word(r, "in")) pass(r, r->at + 2);
    return open_block(r, (shell_block){.is_case = true, .pattern = true, .subject = subject});
}

/* "a | b)": whether the branch runs. */
static weft_status read_patterns(script_reader *r, shell_block *b) {
    bool matches = false;
    b->pattern = false;
    while (r->at < r->end && *r->at != ')' && *r->at != '\n') {
        words list = {0};
        skip_blanks(r, false);
        if (r->at < r->end && (*r->at == '|' || *r->at == '(')) pass(r, r->at + 1);
        skip_blanks(r, false);
        if (r->at < r->end && *r->at != ')' && ends_word(*r->at)) pass(r, r->at + 1);
        const weft_status status = read_word(r, &list);
        if (status >= 0 && list.count) matches |= wefti_glob_match(list.items[0].text, b->subject);
        wefti_free(list.items);
        WEFT_TRY(status);
        skip_blanks(r, false);
    }
    if (r->at < r->end && *r->at == ')') pass(r, r->at + 1);
    b->active = b->parent && !b->done && matches;
    b->done |= matches;
    return WEFT_OK;
}

static void note_unknown(const script_reader *r) {
    wefti_text_add(r->script->notes,
                   "line %d: a condition that only a run can evaluate; its branch is left out\n",
                   r->line);
}

/* Words that only arrange commands. *out: whether one was read. */
static weft_status read_keyword(script_reader *r, bool *out) {
    static const char *const empty[] = {"do", "done", "{", "}", "time", "while", "until", "exec"};
    shell_block *b = r->depth ? &r->blocks[r->depth - 1] : NULL;
    *out = true;
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
        if (is_word(r, empty[i])) {
            pass(r, r->at + strlen(empty[i]));
            return WEFT_OK;
        }
    if (is_word(r, "if")) {
        pass(r, r->at + 2);
        return open_block(r, (shell_block){0});
    }
    if (is_word(r, "case")) {
        pass(r, r->at + 4);
        return open_case(r);
    }
    if (b && b->is_case ? is_word(r, "esac") : b && is_word(r, "fi")) {
        pass(r, word_end(r->at, r->end));
        r->depth--;
        r->last = TRUTH_TRUE;
        return WEFT_OK;
    }
    const bool then = b && !b->is_case && is_word(r, "then");
    if (then || (b && !b->is_case && is_word(r, "else"))) {
        const bool taken = !b->done && (!then || r->last == TRUTH_TRUE);
        if (then && b->active && r->last == TRUTH_UNKNOWN) note_unknown(r);
        pass(r, r->at + 4);
        b->active = b->parent && taken;
        b->done |= taken;
        return WEFT_OK;
    }
    if (b && !b->is_case && is_word(r, "elif")) {
        pass(r, r->at + 4);
        b->active = b->parent && !b->done;
        return WEFT_OK;
    }
    *out = false;
    return WEFT_OK;
}

/* ---- commands ---- */

/* "> file", "2>&1", "< file": the operator and the word behind it. */
static weft_status skip_redirection(script_reader *r) {
    words list = {0};
    while (r->at < r->end && strchr("<>&|", *r->at)) pass(r, r->at + 1);
    skip_blanks(r, false);
    const weft_status status = r->at < r->end && !ends_word(*r->at) ? read_word(r, &list) : WEFT_OK;
    wefti_free(list.items);
    return status;
}

static bool is_number(const char *at, const char *end) {
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at == end;
}

static bool takes_assignments(const words *list) {
    static const char *const names[] = {"export", "local", "declare", "readonly", "env"};
    for (size_t i = 0; list->count && i < sizeof names / sizeof *names; i++)
        if (!strcmp(list->items[0].text, names[i])) return true;
    return list->count == 0;
}

/* The words of a command, up to its end; assignments before them are made. */
static weft_status read_words(script_reader *r, bool runs_now, words *out) {
    bool test_brackets = false;
    for (;;) {
        const char *last;
        bool adds;
        skip_blanks(r, false);
        if (r->at >= r->end) return WEFT_OK;
        const char *end = word_end(r->at, r->end);
        const bool number =
            end > r->at && end < r->end && strchr("<>", *end) && is_number(r->at, end);
        if (number) pass(r, end);
        const char c = *r->at;
        if ((c == '<' || c == '>') && !test_brackets) {
            WEFT_TRY(skip_redirection(r));
        } else if (test_brackets && ends_word(c) && c != '\n' && c != ';') {
            const bool two = r->at + 1 < r->end && r->at[1] == c;
            const char *text = keep(r, r->at, two ? 2 : 1);
            if (!text) return no_memory();
            WEFT_TRY(push(r, out, (word){text, NULL, r->line}));
            pass(r, r->at + (two ? 2 : 1));
        } else if (c == '&' && r->at + 1 < r->end && r->at[1] == '>') {
            WEFT_TRY(skip_redirection(r));
        } else if (ends_word(c)) {
            return WEFT_OK;
        } else if (takes_assignments(out) && assigns(r, &last, &adds)) {
            WEFT_TRY(assign(r, last, adds, runs_now));
        } else {
            const bool opens = is_word(r, "[[") && (!out->count || out->items[0].text[0] == '!');
            const bool closes = test_brackets && is_word(r, "]]");
            WEFT_TRY(read_word(r, out));
            test_brackets = (test_brackets || opens) && !closes;
        }
    }
}

static weft_status read_command(script_reader *r) {
    words list = {0};
    const bool succeeds = r->last == TRUTH_TRUE || (r->last == TRUTH_UNKNOWN && r->ordinary);
    const bool skipped =
        (r->joined == '&' && !succeeds) || (r->joined == '|' && r->last != TRUTH_FALSE);
    const bool runs_now = runs(r) && !skipped;
    weft_status status = read_words(r, runs_now, &list);
    if (status >= 0 && runs_now) {
        r->last = status_of(&list);
        const char first = list.count ? list.items[0].text[0] : '[';
        r->ordinary = first != '[' && first != '!';
        if (r->ordinary) status = r->script->command(r->script->context, list.items, list.count);
    }
    wefti_free(list.items);
    return status;
}

/* What stands between commands: ends of lines, ";", "&&", "||", "|", brackets. */
static void skip_separators(script_reader *r) {
    r->joined = 0;
    while (r->at < r->end) {
        skip_blanks(r, false);
        if (r->at >= r->end || !ends_word(*r->at) || strchr("<>", *r->at)) return;
        const char c = *r->at;
        const bool two = r->at + 1 < r->end && r->at[1] == c;
        shell_block *b = r->depth ? &r->blocks[r->depth - 1] : NULL;
        if (two && c == ';' && b && b->is_case) {
            b->pattern = true;
            b->active = false;
        }
        if (c != '\n') r->joined = two && (c == '&' || c == '|') ? c : 0;
        pass(r, r->at + (two && strchr("&|;", c) ? 2 : 1));
    }
}

static weft_status read_all(script_reader *r) {
    for (;;) {
        bool keyword;
        const char *before = r->at;
        skip_separators(r);
        if (r->at >= r->end) return WEFT_OK;
        shell_block *b = r->depth ? &r->blocks[r->depth - 1] : NULL;
        if (b && b->pattern && !is_word(r, "esac")) {
            WEFT_TRY(read_patterns(r, b));
            continue;
        }
        WEFT_TRY(read_keyword(r, &keyword));
        if (!keyword) WEFT_TRY(read_command(r));
        if (r->at == before) pass(r, r->at + 1); /* no progress: a byte that begins nothing */
    }
}

/* The values of variables as the words of commands. */
static weft_status give_variables(script_reader *r) {
    for (int64_t i = 0; i < r->variable_count; i++) {
        words list = {0};
        field_builder b = {.out = &list, .line = r->line};
        const script_variable *v = &r->variables[i];
        weft_status status = add_elements(r, &b, v, "@", 1, false);
        if (status >= 0) status = end_field(r, &b);
        if (status >= 0 && list.count)
            status = r->script->command(r->script->context, list.items, list.count);
        wefti_text_free(&b.text);
        wefti_free(list.items);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

weft_status wefti_shell_read(const wefti_shell_script *script) {
    WEFT_REQUIRE(script->bytes <= MOST_BYTES, WEFT_E_ARG,
                 "%s is too long for a list of options: %lld bytes", script->name,
                 (long long)script->bytes);
    WEFT_REQUIRE(!memchr(script->text, '\0', (size_t)script->bytes), WEFT_E_ARG,
                 "%s holds a NUL byte", script->name);
    script_reader r = {.script = script,
                       .at = script->text,
                       .end = script->text + script->bytes,
                       .line = 1,
                       .last = TRUTH_TRUE};
    weft_status status = read_all(&r);
    if (status >= 0 && !script->enough(script->context)) status = give_variables(&r);
    for (int64_t i = 0; i < r.variable_count; i++) wefti_free(r.variables[i].value.items);
    wefti_free(r.variables);
    return status;
}
