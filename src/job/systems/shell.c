/* A reader of launch scripts: see interop/shell.h. It goes through the text once. In branches that
 * do not run, words are read and dropped. */
#include "job/systems/shell.h"

#include <stdlib.h>
#include <string.h>

#include "job/systems/expand.h"

typedef wefti_shell_word word;
typedef wefti_shell_words words;

typedef enum truth { TRUTH_FALSE, TRUTH_TRUE, TRUTH_UNKNOWN } truth;

/* How far an `if` or a `case` is. */
typedef enum branch_state {
    BRANCH_DEAD,  /* nothing around it runs */
    BRANCH_ASKS,  /* its condition runs */
    BRANCH_SEEKS, /* no branch was taken so far */
    BRANCH_RUNS,
    BRANCH_PAST, /* a branch was taken */
    BRANCH_STATES
} branch_state;

typedef struct shell_block {
    branch_state state;
    const char *subject; /* of a case; NULL: an if */
    bool pattern;        /* of a case: a pattern comes next */
} shell_block;

typedef struct script_reader {
    const wefti_shell_script *script;
    const char *at, *end;
    wefti_expander x;
    shell_block blocks[WEFTI_SHELL_NESTED];
    int depth;
    truth last;    /* of the command before */
    bool ordinary; /* that was no test: it is taken to succeed before && */
    char joined;   /* the operator before this command: '&', '|', or 0 */
} script_reader;

/* ---- words of the script ---- */

static void pass(script_reader *r, const char *to) {
    for (; r->at < to; r->at++) r->x.line += *r->at == '\n';
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
    const char *end = wefti_shell_word_end(r->at, r->end);
    const weft_status status = wefti_expand_word(&r->x, r->at, end, out);
    pass(r, end);
    return status;
}

static bool is_word(const script_reader *r, const char *text) {
    const size_t length = strlen(text);
    return (size_t)(r->end - r->at) >= length && !memcmp(r->at, text, length) &&
           wefti_shell_word_end(r->at, r->end) == r->at + length;
}

/* "NAME=value", "NAME+=value", "NAME=(a b)"; false: no assignment begins here. */
static bool assigns(const script_reader *r, const char **out_name_end, bool *out_adds) {
    const char *last = wefti_shell_name_end(r->at, r->end);
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
        if (wefti_shell_ends_word(*r->at))
            pass(r, r->at + 1);
        else
            WEFT_TRY(read_word(r, out));
    }
}

static weft_status assign(script_reader *r, const char *last, bool adds, bool runs) {
    const char *name = r->at;
    const size_t length = (size_t)(last - name);
    words list = {0};
    word one;
    pass(r, last + (adds ? 2 : 1));
    const bool array = r->at < r->end && *r->at == '(';
    weft_status status;
    if (array) {
        status = read_array(r, &list);
    } else {
        const char *end = wefti_shell_word_end(r->at, r->end);
        status = wefti_expand_value(&r->x, r->at, end, &one);
        pass(r, end);
    }
    if (status >= 0 && runs)
        status = array ? wefti_expand_set_array(&r->x, name, length, &list, adds)
                       : wefti_expand_set(&r->x, name, length, &one, adds);
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
    const branch_state state = r->depth ? r->blocks[r->depth - 1].state : BRANCH_RUNS;
    return state == BRANCH_RUNS || state == BRANCH_ASKS;
}

static weft_status open_block(script_reader *r, shell_block b) {
    WEFT_REQUIRE(r->depth < WEFTI_SHELL_NESTED, WEFT_E_ARG, "%s:%d: blocks are nested too deeply",
                 r->script->name, r->x.line);
    if (!runs(r)) b.state = BRANCH_DEAD;
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
    return open_block(r, (shell_block){.state = BRANCH_SEEKS, .pattern = true, .subject = subject});
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
        if (r->at < r->end && *r->at != ')' && wefti_shell_ends_word(*r->at)) pass(r, r->at + 1);
        const weft_status status = read_word(r, &list);
        if (status >= 0 && list.count) matches |= wefti_glob_match(list.items[0].text, b->subject);
        wefti_free(list.items);
        WEFT_TRY(status);
        skip_blanks(r, false);
    }
    if (r->at < r->end && *r->at == ')') pass(r, r->at + 1);
    if (matches && b->state == BRANCH_SEEKS) b->state = BRANCH_RUNS;
    return WEFT_OK;
}

static void note_unknown(const script_reader *r) {
    wefti_text_add(r->script->notes,
                   "line %d: a condition that only a run can evaluate; its branch is left out\n",
                   r->x.line);
}

/* Words that only arrange commands. *out: whether one was read. */
static weft_status read_keyword(script_reader *r, bool *out) {
    static const struct {
        const char *word;
        branch_state to[BRANCH_STATES]; /* from each; ASKS: the condition holds */
    } steps[] = {
        {"then", {BRANCH_DEAD, BRANCH_RUNS, BRANCH_SEEKS, BRANCH_RUNS, BRANCH_PAST}},
        {"elif", {BRANCH_DEAD, BRANCH_ASKS, BRANCH_ASKS, BRANCH_PAST, BRANCH_PAST}},
        {"else", {BRANCH_DEAD, BRANCH_RUNS, BRANCH_RUNS, BRANCH_PAST, BRANCH_PAST}},
    };
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
        return open_block(r, (shell_block){.state = BRANCH_ASKS});
    }
    if (is_word(r, "case")) {
        pass(r, r->at + 4);
        return open_case(r);
    }
    if (b && is_word(r, b->subject ? "esac" : "fi")) {
        pass(r, wefti_shell_word_end(r->at, r->end));
        r->depth--;
        r->last = TRUTH_TRUE;
        return WEFT_OK;
    }
    for (size_t i = 0; b && !b->subject && i < sizeof steps / sizeof *steps; i++)
        if (is_word(r, steps[i].word)) {
            if (b->state == BRANCH_ASKS && r->last == TRUTH_UNKNOWN) note_unknown(r);
            pass(r, r->at + 4);
            b->state = b->state == BRANCH_ASKS && r->last != TRUTH_TRUE ? BRANCH_SEEKS
                                                                        : steps[i].to[b->state];
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
    const weft_status status =
        r->at < r->end && !wefti_shell_ends_word(*r->at) ? read_word(r, &list) : WEFT_OK;
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

/* The operator of a test, where a byte that ends words stands. */
static const char *operator_at(const script_reader *r) {
    static const char *const all[] = {"&&", "||", "((", "))", "<<", ">>",
                                      "&",  "|",  "(",  ")",  "<",  ">"};
    size_t i = 0;
    for (; i + 1 < sizeof all / sizeof *all; i++) {
        const size_t length = strlen(all[i]);
        if ((size_t)(r->end - r->at) >= length && !memcmp(r->at, all[i], length)) break;
    }
    return all[i];
}

/* The words of a command, up to its end; assignments before them are made. */
static weft_status read_words(script_reader *r, bool runs_now, words *out) {
    bool test_brackets = false;
    for (;;) {
        const char *last;
        bool adds;
        skip_blanks(r, false);
        if (r->at >= r->end) return WEFT_OK;
        const char *end = wefti_shell_word_end(r->at, r->end);
        const bool number =
            end > r->at && end < r->end && strchr("<>", *end) && is_number(r->at, end);
        if (number) pass(r, end);
        const char c = *r->at;
        if ((c == '<' || c == '>') && !test_brackets) {
            WEFT_TRY(skip_redirection(r));
        } else if (test_brackets && wefti_shell_ends_word(c) && c != '\n' && c != ';') {
            const char *text = operator_at(r);
            WEFT_TRY(wefti_expand_add(&r->x, out, (word){text, NULL, r->x.line}));
            pass(r, r->at + strlen(text));
        } else if (c == '&' && r->at + 1 < r->end && r->at[1] == '>') {
            WEFT_TRY(skip_redirection(r));
        } else if (wefti_shell_ends_word(c)) {
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
        if (r->at >= r->end || !wefti_shell_ends_word(*r->at) || strchr("<>", *r->at)) return;
        const char c = *r->at;
        const bool two = r->at + 1 < r->end && r->at[1] == c;
        shell_block *b = r->depth ? &r->blocks[r->depth - 1] : NULL;
        if (two && c == ';' && b && b->subject) {
            b->pattern = true;
            if (b->state == BRANCH_RUNS) b->state = BRANCH_PAST;
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
    for (int64_t i = 0; i < r->x.variable_count; i++) {
        words list = {0};
        weft_status status = wefti_expand_elements(&r->x, &r->x.variables[i], &list);
        if (status >= 0 && list.count)
            status = r->script->command(r->script->context, list.items, list.count);
        wefti_free(list.items);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

static weft_status set_environment(script_reader *r) {
    for (const char *const *e = r->script->variables; e && *e; e++) {
        const char *last = wefti_shell_name_end(*e, *e + strlen(*e));
        const word value = {last + 1, NULL, 0};
        if (last > *e && *last == '=')
            WEFT_TRY(wefti_expand_set(&r->x, *e, (size_t)(last - *e), &value, false));
    }
    return WEFT_OK;
}

weft_status wefti_shell_read(const wefti_shell_script *script) {
    script_reader r = {.script = script,
                       .at = script->text,
                       .end = script->text + script->bytes,
                       .x = {.name = script->name, .arena = script->arena, .line = 1},
                       .last = TRUTH_TRUE};
    weft_status status = set_environment(&r);
    if (status >= 0) status = read_all(&r);
    if (status >= 0 && !script->enough(script->context)) status = give_variables(&r);
    wefti_expander_free(&r.x);
    return status;
}
