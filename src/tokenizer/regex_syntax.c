/* Parses regular expressions in the syntax of Oniguruma. See tokenizer/regex.h for what is read. A
 * possessive repeat of one character set gives nothing back, which is the same as a repeat that no
 * further character of the set follows; so it needs no operation of its own. */
#include "tokenizer/regex_syntax.h"

#include <string.h>

#include "base/text.h"

enum { LONGEST_PATTERN = 4096, DEEPEST_GROUP = 100, MOST_REPEATS = 1000 };

typedef struct regex_parser {
    wefti_arena *arena;
    const char *pattern, *at;
    int depth;
    int sets;  /* how many are open */
    bool fold; /* (?i): letters match in both cases */
} regex_parser;

static weft_status refuse(const regex_parser *p, const char *what) {
    return WEFT_RAISE(WEFT_E_NO_IMPL, "the regular expression '%.300s', byte %lld: %s", p->pattern,
                      (long long)(p->at - p->pattern), what);
}

static weft_status new_node(const regex_parser *p, wefti_regex_kind kind, wefti_regex_node **out) {
    *out = wefti_arena_alloc(p->arena, sizeof **out);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a regular expression");
    (*out)->kind = kind;
    return WEFT_OK;
}

static weft_status join(const regex_parser *p, wefti_regex_kind kind, wefti_regex_node *left,
                        wefti_regex_node *right, wefti_regex_node **out) {
    wefti_regex_node *node;
    WEFT_TRY(new_node(p, kind, &node));
    node->left = left;
    node->right = right;
    *out = node;
    return WEFT_OK;
}

static bool passed(regex_parser *p, const char *text) {
    size_t length = strlen(text);
    if (strncmp(p->at, text, length) != 0) return false;
    p->at += length;
    return true;
}

static weft_status next_character(regex_parser *p, uint32_t *out) {
    int length = wefti_utf8_next((const unsigned char *)p->at, (int64_t)strlen(p->at), out);
    if (*out == WEFTI_NO_CHARACTER) return refuse(p, "a byte that is not UTF-8");
    p->at += length;
    return WEFT_OK;
}

/* ---- sets ---- */

typedef struct adding {
    const regex_parser *p;
    wefti_charset *set;
    weft_status status;
} adding;

static bool add_range(void *to, uint32_t first, uint32_t last) {
    adding *a = to;
    a->status = wefti_charset_add(a->p->arena, a->set, first, last);
    return a->status >= 0;
}

/* In a set, \w has no small numbers and fractions of Latin-1, as in Oniguruma. */
static weft_status drop_fractions(const regex_parser *p, wefti_charset *word) {
    wefti_charset rest = {0};
    WEFT_TRY(wefti_charset_add(p->arena, &rest, 0, 0xB1));
    WEFT_TRY(wefti_charset_add(p->arena, &rest, 0xB4, 0xB8));
    WEFT_TRY(wefti_charset_add(p->arena, &rest, 0xBA, 0xBB));
    WEFT_TRY(wefti_charset_add(p->arena, &rest, 0xBF, WEFTI_CHARSET_LAST));
    return wefti_charset_intersect(p->arena, word, &rest);
}

/* Adds a class by name, inverted or not. */
static weft_status add_class(regex_parser *p, const char *name, bool invert, wefti_charset *set) {
    wefti_charset named = {0};
    adding a = {p, &named, WEFT_OK};
    bool known = wefti_unicode_class(name, add_range, &a);
    if (a.status < 0) return a.status;
    if (!known) return refuse(p, "an unknown class of characters");
    if (p->fold && (!strcmp(name, "Lu") || !strcmp(name, "Ll") || !strcmp(name, "Lt")))
        return refuse(p, "a class of letters of one case under (?i)");
    wefti_charset_sort(&named);
    if (p->sets && !strcmp(name, "Word")) WEFT_TRY(drop_fractions(p, &named));
    if (invert) WEFT_TRY(wefti_charset_invert(p->arena, &named));
    return wefti_charset_add_all(p->arena, set, &named);
}

/* \p{Lu}, \p{^Lu}, \P{Lu}, behind the letter. */
static weft_status add_property(regex_parser *p, bool invert, wefti_charset *set) {
    char name[32];
    size_t used = 0;
    if (!passed(p, "{")) return refuse(p, "\\p without {");
    if (passed(p, "^")) invert = !invert;
    while (*p->at && *p->at != '}' && used < sizeof name - 1) name[used++] = *p->at++;
    name[used] = '\0';
    if (*p->at != '}') return refuse(p, "a name of a class without an end");
    WEFT_TRY(add_class(p, name, invert, set));
    p->at++;
    return WEFT_OK;
}

static weft_status hexadecimal(regex_parser *p, int most, uint32_t *out) {
    int digits = 0;
    for (*out = 0; digits < most; digits++, p->at++) {
        char c = *p->at;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) break;
        *out = *out << 4 | (uint32_t)digit;
    }
    return digits && *out <= 0x10FFFF ? WEFT_OK : refuse(p, "not the number of a character");
}

/* Behind a backslash: a class is added to `set`, a character is returned. */
static weft_status escape(regex_parser *p, wefti_charset *set, bool *out_class, uint32_t *out) {
    static const char letters[] = "tnrfvae", meaning[] = "\t\n\r\f\v\a\x1b";
    static const struct {
        char letter;
        const char *class;
    } classes[] = {{'s', "Space"}, {'d', "Nd"}, {'w', "Word"}};
    char c = *p->at;
    *out_class = true;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (c == classes[i].letter || c == classes[i].letter - 32) {
            p->at++;
            return add_class(p, classes[i].class, c != classes[i].letter, set);
        }
    if (c == 'p' || c == 'P') {
        p->at++;
        return add_property(p, c == 'P', set);
    }
    *out_class = false;
    const char *known = c ? strchr(letters, c) : NULL;
    if (known) {
        p->at++;
        *out = (unsigned char)meaning[known - letters];
        return WEFT_OK;
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        bool braces = c == 'x' && passed(p, "{");
        WEFT_TRY(hexadecimal(p, braces ? 8 : c == 'x' ? 2 : 4, out));
        if (!braces && *out >= 0x80 && c == 'x') return refuse(p, "a byte as part of a character");
        return !braces || passed(p, "}") ? WEFT_OK : refuse(p, "\\x{ without an end");
    }
    if (!c || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(p, "an escape that weft does not read");
    return next_character(p, out);
}

/* Adds the other cases of the set's letters. Only ASCII letters occur under (?i) in published
 * patterns; the long s and the sign of kelvin are other cases of theirs. */
static weft_status fold(const regex_parser *p, wefti_charset *set) {
    wefti_charset_sort(set);
    int64_t count = set->count;
    for (uint32_t small = 'a'; small <= 'z'; small++) {
        uint32_t other = small == 's' ? 0x17F : small == 'k' ? 0x212A : small;
        wefti_charset sorted = {set->ranges, count, count};
        if (!wefti_charset_has(&sorted, small) && !wefti_charset_has(&sorted, small - 32) &&
            (other == small || !wefti_charset_has(&sorted, other)))
            continue;
        WEFT_TRY(wefti_charset_add(p->arena, set, small, small));
        WEFT_TRY(wefti_charset_add(p->arena, set, small - 32, small - 32));
        WEFT_TRY(wefti_charset_add(p->arena, set, other, other));
    }
    wefti_charset_sort(set);
    return WEFT_OK;
}

static weft_status check_fold(const regex_parser *p, uint32_t first, uint32_t last) {
    bool plain = last < 0x80 || !p->fold;
    uint32_t lower[2];
    if (!plain && first == last)
        plain = wefti_unicode_lower(first, lower) == 1 && lower[0] == first &&
                (first < 0xB5 || first >= 0x2E80);
    return plain ? WEFT_OK : refuse(p, "a letter beyond ASCII under (?i)");
}

static weft_status parse_set(regex_parser *p, wefti_charset *out);

/* [:alpha:], behind the bracket and the colon. */
static weft_status posix_class(regex_parser *p, wefti_charset *set) {
    static const char *const names[][2] = {{"space", "Space"}, {"word", "Word"}, {"digit", "Nd"}};
    bool invert = passed(p, "^");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i][0]);
        if (strncmp(p->at, names[i][0], length) != 0 || strncmp(p->at + length, ":]", 2) != 0)
            continue;
        p->at += length + 2;
        return add_class(p, names[i][1], invert, set);
    }
    return refuse(p, "a class in brackets that weft does not read");
}

/* One element of a set: a character, a range, a class, or a set. */
static weft_status set_element(regex_parser *p, wefti_charset *set) {
    uint32_t first, last;
    bool class = false;
    if (passed(p, "[:")) return posix_class(p, set);
    if (passed(p, "[")) {
        wefti_charset inner = {0};
        WEFT_TRY(parse_set(p, &inner));
        return wefti_charset_add_all(p->arena, set, &inner);
    }
    if (passed(p, "\\"))
        WEFT_TRY(escape(p, set, &class, &first));
    else
        WEFT_TRY(next_character(p, &first));
    if (class) return WEFT_OK;
    last = first;
    if (p->at[0] == '-' && p->at[1] && p->at[1] != ']') {
        p->at++;
        if (passed(p, "\\"))
            WEFT_TRY(escape(p, set, &class, &last));
        else if (*p->at == '[')
            return refuse(p, "a range that ends with a set");
        else
            WEFT_TRY(next_character(p, &last));
        if (class || last < first) return refuse(p, "a range that ends before it begins");
    }
    WEFT_TRY(check_fold(p, first, last));
    return wefti_charset_add(p->arena, set, first, last);
}

/* Behind the opening bracket, to behind the closing one. */
static weft_status parse_set(regex_parser *p, wefti_charset *out) {
    wefti_charset whole = {0}, part = {0};
    bool invert = passed(p, "^"), parts = false, first = true;
    if (++p->sets > DEEPEST_GROUP) return refuse(p, "sets nested too deeply");
    for (;; first = false) {
        if (!*p->at) return refuse(p, "a set without an end");
        bool ends = *p->at == ']' && !first, and = !ends && passed(p, "&&");
        if (!ends && !and) {
            WEFT_TRY(set_element(p, &part));
            continue;
        }
        if (p->fold) WEFT_TRY(fold(p, &part));
        wefti_charset_sort(&part);
        if (parts)
            WEFT_TRY(wefti_charset_intersect(p->arena, &whole, &part));
        else
            whole = part;
        parts = true;
        part = (wefti_charset){0};
        if (ends) break;
    }
    p->at++;
    p->sets--;
    if (invert) WEFT_TRY(wefti_charset_invert(p->arena, &whole));
    *out = whole;
    return WEFT_OK;
}

/* ---- the tree ---- */

static weft_status set_node(regex_parser *p, wefti_charset set, wefti_regex_node **out) {
    wefti_regex_node *node;
    WEFT_TRY(new_node(p, WEFTI_REGEX_SET, &node));
    if (p->fold) WEFT_TRY(fold(p, &set));
    wefti_charset_sort(&set);
    node->set = set;
    *out = node;
    return WEFT_OK;
}

static weft_status look_node(const regex_parser *p, bool behind, bool edge, bool invert,
                             wefti_charset set, wefti_regex_node **out) {
    wefti_regex_node *node;
    WEFT_TRY(new_node(p, WEFTI_REGEX_LOOK, &node));
    wefti_charset_sort(&set);
    if (invert) WEFT_TRY(wefti_charset_invert(p->arena, &set));
    node->set = set;
    node->behind = behind;
    node->edge = edge;
    *out = node;
    return WEFT_OK;
}

/* ^ and $ hold beside line ends, \A and \z at the edges of the text only. */
static weft_status edge_node(const regex_parser *p, bool behind, bool lines,
                             wefti_regex_node **out) {
    wefti_charset set = {0};
    if (lines) WEFT_TRY(wefti_charset_add(p->arena, &set, '\n', '\n'));
    return look_node(p, behind, true, false, set, out);
}

/* \b: on one side is a character of a word; \B: on both sides or on none. */
static weft_status word_edge(regex_parser *p, bool same, wefti_regex_node **out) {
    wefti_charset word = {0};
    wefti_regex_node *sides[4], *in, *outside;
    WEFT_TRY(add_class(p, "Word", false, &word));
    for (int i = 0; i < 4; i++)
        WEFT_TRY(look_node(p, i < 2, i % 2 == 1, i % 2 == 1, word, &sides[i]));
    WEFT_TRY(join(p, WEFTI_REGEX_THEN, sides[0], sides[same ? 2 : 3], &in));
    WEFT_TRY(join(p, WEFTI_REGEX_THEN, sides[1], sides[same ? 3 : 2], &outside));
    return join(p, WEFTI_REGEX_OR, in, outside, out);
}

static weft_status parse_either(regex_parser *p, wefti_regex_node **out);

/* A group to behind its closing bracket. */
static weft_status parse_inner(regex_parser *p, wefti_regex_node **out) {
    bool fold_before = p->fold;
    if (++p->depth > DEEPEST_GROUP) return refuse(p, "groups nested too deeply");
    WEFT_TRY(parse_either(p, out));
    if (!passed(p, ")")) return refuse(p, "a group without an end");
    p->depth--;
    p->fold = fold_before;
    return WEFT_OK;
}

/* The set of characters that a tree of one character matches; false: it is another tree. */
static weft_status one_of(const regex_parser *p, wefti_regex_node *node, wefti_charset *set,
                          bool *out) {
    if (node->kind == WEFTI_REGEX_THEN && node->right->kind == WEFTI_REGEX_EMPTY)
        return one_of(p, node->left, set, out);
    *out = node->kind == WEFTI_REGEX_SET;
    if (*out) return wefti_charset_add_all(p->arena, set, &node->set);
    if (node->kind != WEFTI_REGEX_OR) return WEFT_OK;
    WEFT_TRY(one_of(p, node->left, set, out));
    return *out ? one_of(p, node->right, set, out) : WEFT_OK;
}

static weft_status parse_look(regex_parser *p, bool behind, bool invert, wefti_regex_node **out) {
    wefti_regex_node *inner;
    const char *from = p->at;
    wefti_charset set = {0};
    bool one;
    WEFT_TRY(parse_inner(p, &inner));
    WEFT_TRY(one_of(p, inner, &set, &one));
    if (!one) {
        p->at = from;
        return refuse(p, "a lookaround of other than one character");
    }
    return look_node(p, behind, invert, invert, set, out);
}

/* (?i) and (?i-mx:...), behind the question mark. */
static weft_status parse_flags(regex_parser *p, wefti_regex_node **out) {
    bool fold = p->fold, on = true, before = p->fold;
    for (; *p->at && *p->at != ':' && *p->at != ')'; p->at++) {
        if (*p->at == '-')
            on = false;
        else if (*p->at == 'i')
            fold = on;
        else if (on || (*p->at != 'm' && *p->at != 'x'))
            return refuse(p, "a group of a kind that weft does not read");
    }
    p->fold = fold;
    if (passed(p, ":")) {
        WEFT_TRY(parse_inner(p, out));
        p->fold = before;
        return WEFT_OK;
    }
    if (!passed(p, ")")) return refuse(p, "a group without an end");
    return parse_either(p, out); /* up to the end of the group around it */
}

static weft_status parse_group(regex_parser *p, wefti_regex_node **out) {
    if (!passed(p, "?")) return parse_inner(p, out);
    if (passed(p, ":")) return parse_inner(p, out);
    if (passed(p, "=")) return parse_look(p, false, false, out);
    if (passed(p, "!")) return parse_look(p, false, true, out);
    if (passed(p, "<=")) return parse_look(p, true, false, out);
    if (passed(p, "<!")) return parse_look(p, true, true, out);
    return parse_flags(p, out);
}

static weft_status parse_atom(regex_parser *p, wefti_regex_node **out) {
    wefti_charset set = {0};
    bool class = false;
    uint32_t point;
    if (passed(p, "(")) return parse_group(p, out);
    if (passed(p, "[")) {
        WEFT_TRY(parse_set(p, &set));
        bool folded = p->fold;
        p->fold = false; /* its elements are folded */
        weft_status status = set_node(p, set, out);
        p->fold = folded;
        return status;
    }
    if (passed(p, "^")) return edge_node(p, true, true, out);
    if (passed(p, "$")) return edge_node(p, false, true, out);
    if (passed(p, "\\A")) return edge_node(p, true, false, out);
    if (passed(p, "\\z")) return edge_node(p, false, false, out);
    if (passed(p, "\\b")) return word_edge(p, false, out);
    if (passed(p, "\\B")) return word_edge(p, true, out);
    if (passed(p, ".")) {
        WEFT_TRY(wefti_charset_add(p->arena, &set, '\n', '\n'));
        WEFT_TRY(wefti_charset_invert(p->arena, &set));
        return set_node(p, set, out);
    }
    if (*p->at == '*' || *p->at == '+' || *p->at == '?') return refuse(p, "a repeat of nothing");
    if (passed(p, "\\"))
        WEFT_TRY(escape(p, &set, &class, &point));
    else
        WEFT_TRY(next_character(p, &point));
    if (!class) {
        WEFT_TRY(check_fold(p, point, point));
        WEFT_TRY(wefti_charset_add(p->arena, &set, point, point));
    }
    return set_node(p, set, out);
}

static int number(regex_parser *p) {
    int value = -1;
    for (; *p->at >= '0' && *p->at <= '9'; p->at++)
        value = (value < 0 ? 0 : value > MOST_REPEATS ? value : value * 10) + (*p->at - '0');
    return value;
}

/* {2}, {2,}, {,3}, {2,3}; any other brace is a character. */
static bool parse_braces(regex_parser *p, int *least, int *most) {
    const char *from = p->at;
    p->at++;
    *least = *most = number(p);
    bool comma = passed(p, ",");
    if (comma) *most = number(p);
    if (!passed(p, "}") || (*least < 0 && *most < 0)) {
        p->at = from;
        return false;
    }
    if (*least < 0) *least = 0;
    return true;
}

static weft_status repeat_node(const regex_parser *p, wefti_regex_node *inner, int least, int most,
                               bool lazy, wefti_regex_node **out) {
    wefti_regex_node *node;
    WEFT_TRY(new_node(p, WEFTI_REGEX_REPEAT, &node));
    node->left = inner;
    node->least = least;
    node->most = most;
    node->lazy = lazy;
    *out = node;
    return WEFT_OK;
}

/* A repeat of one set that gives nothing back: no further character of the set follows. Behind the
 * one of ?+ anything may follow. */
static weft_status possessive(regex_parser *p, wefti_regex_node *inner, int least, int most,
                              wefti_regex_node **out) {
    wefti_regex_node *repeat, *none;
    if (inner->kind != WEFTI_REGEX_SET)
        return refuse(p, "a possessive repeat of other than one set of characters");
    WEFT_TRY(look_node(p, false, true, true, inner->set, &none));
    if (most == 1) return join(p, WEFTI_REGEX_OR, inner, none, out);
    WEFT_TRY(repeat_node(p, inner, least, most, false, &repeat));
    return join(p, WEFTI_REGEX_THEN, repeat, none, out);
}

static weft_status parse_repeat(regex_parser *p, wefti_regex_node **out) {
    WEFT_TRY(parse_atom(p, out));
    for (;;) {
        int least, most;
        bool braces = false;
        char c = *p->at;
        if (c == '{') {
            braces = parse_braces(p, &least, &most);
            if (!braces) return WEFT_OK;
        } else if (c == '*' || c == '+' || c == '?') {
            p->at++;
            least = c == '+';
            most = c == '?' ? 1 : -1;
        } else {
            return WEFT_OK;
        }
        if (least > MOST_REPEATS || most > MOST_REPEATS || (most >= 0 && most < least))
            return refuse(p, "a repeat of more than 1000 times, or of more at least than at most");
        if (!braces && passed(p, "+")) {
            WEFT_TRY(possessive(p, *out, least, most, out));
            continue;
        }
        bool lazy = passed(p, "?");
        if (lazy && braces && least == most) return refuse(p, "a lazy repeat of a fixed number");
        WEFT_TRY(repeat_node(p, *out, least, most, lazy, out));
    }
}

/* The parts of a sequence, or of alternatives, are read into a list and joined from behind, so that
 * trees lean to the right and a walk of them needs little stack. */
static weft_status parse_sequence(regex_parser *p, wefti_regex_node **out) {
    wefti_regex_node *first;
    WEFT_TRY(new_node(p, WEFTI_REGEX_EMPTY, &first));
    *out = first;
    wefti_regex_node *last = NULL;
    while (*p->at && *p->at != '|' && *p->at != ')') {
        wefti_regex_node *part, *pair;
        WEFT_TRY(parse_repeat(p, &part));
        WEFT_TRY(join(p, WEFTI_REGEX_THEN, part, first, &pair));
        if (last)
            last->right = pair;
        else
            *out = pair;
        last = pair;
    }
    return WEFT_OK;
}

static weft_status parse_either(regex_parser *p, wefti_regex_node **out) {
    WEFT_TRY(parse_sequence(p, out));
    wefti_regex_node *last = NULL;
    while (passed(p, "|")) {
        wefti_regex_node *right, *pair;
        WEFT_TRY(parse_sequence(p, &right));
        WEFT_TRY(join(p, WEFTI_REGEX_OR, last ? last->right : *out, right, &pair));
        if (last)
            last->right = pair;
        else
            *out = pair;
        last = pair;
    }
    return WEFT_OK;
}

weft_status wefti_regex_parse(wefti_arena *arena, const char *pattern, wefti_regex_node **out) {
    regex_parser p = {.arena = arena, .pattern = pattern, .at = pattern};
    if (strlen(pattern) > LONGEST_PATTERN) return refuse(&p, "longer than 4096 bytes");
    WEFT_TRY(parse_either(&p, out));
    return *p.at ? refuse(&p, "a bracket that closes no group") : WEFT_OK;
}
