/* Parses the text form: see text.h. Strict, line by line, without recursion. The text may come from
 * any source, so every number and name is checked. The checker accepts the graph before it is
 * returned. */
#include "graph/builder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "graph/text/text.h"

enum { MAX_TEXT = 256 << 20, MAX_OPERANDS = 32767, MAX_WORD = 1024, PARSE_MAX_ATTRS = 32 };

typedef struct parse_parser {
    weft_graph *g;
    const char *p;
    int line;
    weft_body *body; /* being read */
    int32_t *values; /* number in the text -> value of the body */
    int64_t value_count, value_cap;
    int32_t *operands;
    weft_desc *results; /* as stated in the text */
    int64_t operand_count, operand_cap, result_count, result_cap;
} parse_parser;

#define WANT(cond, ...) WEFT_REQUIRE(cond, WEFT_E_ARG, __VA_ARGS__)

/* ---- words ---- */

static void blanks(parse_parser *s) {
    while (*s->p == ' ') s->p++;
}

/* Length of the word at the parser's position, at most 40, for messages. */
static int here(const parse_parser *s) {
    size_t n = strcspn(s->p, " \n");
    return n > 40 ? 40 : n ? (int)n : 1;
}

static bool take(parse_parser *s, const char *token) {
    blanks(s);
    size_t n = strlen(token);
    if (strncmp(s->p, token, n) != 0) return false;
    s->p += n;
    return true;
}

static weft_status expect(parse_parser *s, const char *token) {
    WANT(take(s, token), "'%s' is expected, not '%.*s'", token, *s->p == '\n' ? 0 : here(s), s->p);
    return WEFT_OK;
}

static weft_status end_line(parse_parser *s) {
    blanks(s);
    WANT(*s->p == '\n', "the line should end before '%.*s'", *s->p ? here(s) : 0, s->p);
    while (*s->p == '\n' || *s->p == ' ') {
        if (*s->p == '\n') s->line++;
        s->p++;
    }
    return WEFT_OK;
}

static weft_status word(parse_parser *s, char out[MAX_WORD]) {
    blanks(s);
    size_t n = strspn(s->p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    WANT(n > 0, "a name is expected, not '%.*s'", *s->p == '\n' ? 0 : here(s), s->p);
    WANT(n < MAX_WORD, "a name has %zu characters, more than %d", n, MAX_WORD - 1);
    memcpy(out, s->p, n);
    out[n] = '\0';
    s->p += n;
    return WEFT_OK;
}

static weft_status integer(parse_parser *s, int64_t most, int64_t *out) {
    blanks(s);
    WANT(*s->p >= '0' && *s->p <= '9', "a number is expected, not '%.*s'",
         *s->p == '\n' ? 0 : here(s), s->p);
    char *end;
    errno = 0;
    long long v = strtoll(s->p, &end, 10);
    WANT(!errno && v <= most, "the number %.*s is too large", here(s), s->p);
    s->p = end;
    *out = v;
    return WEFT_OK;
}

static weft_status desc(parse_parser *s, weft_desc *out) {
    char name[MAX_WORD];
    weft_desc d = {0};
    WEFT_TRY(word(s, name));
    WANT(wefti_dtype_parse(name, &d.dtype), "'%s' is not a dtype", name);
    WEFT_TRY(expect(s, "["));
    while (!take(s, "]")) {
        WANT(d.rank < WEFT_MAX_RANK, "more than %d dimensions", WEFT_MAX_RANK);
        if (d.rank) WEFT_TRY(expect(s, ","));
        WEFT_TRY(integer(s, INT64_MAX, &d.shape[d.rank]));
        d.rank++;
    }
    WEFT_TRY(wefti_desc_check(&d));
    *out = d;
    return WEFT_OK;
}

/* ---- values ---- */

static weft_status define(parse_parser *s, int32_t value) {
    WEFT_TRY(WEFT_GROW(s->values, s->value_count, s->value_cap));
    s->values[s->value_count++] = value;
    return WEFT_OK;
}

/* Reads "%5", which must be the next number after `ahead` values defined earlier on this line. */
static weft_status new_number(parse_parser *s, int64_t ahead) {
    int64_t number;
    WEFT_TRY(expect(s, "%"));
    WEFT_TRY(integer(s, INT32_MAX, &number));
    WANT(number == s->value_count + ahead, "values count up: %%%lld is next, not %%%lld",
         (long long)(s->value_count + ahead), (long long)number);
    return WEFT_OK;
}

static weft_status known_value(parse_parser *s, int32_t *out) {
    int64_t number;
    WEFT_TRY(expect(s, "%"));
    WEFT_TRY(integer(s, INT32_MAX, &number));
    WANT(number < s->value_count, "%%%lld is not defined yet", (long long)number);
    *out = s->values[number];
    return WEFT_OK;
}

static weft_status kind_of(const char *name, wefti_value_kind *out) {
    if (!strcmp(name, "input"))
        *out = WEFTI_VALUE_INPUT;
    else if (!strcmp(name, "param"))
        *out = WEFTI_VALUE_PARAM;
    else if (!strcmp(name, "state"))
        *out = WEFTI_VALUE_STATE;
    else
        WEFT_FAIL(WEFT_E_ARG, "'%s' is none of input, param, state", name);
    return WEFT_OK;
}

/* ---- nodes ---- */

static weft_status results(parse_parser *s) {
    s->result_count = 0;
    do {
        WANT(s->result_count < MAX_OPERANDS, "a node has too many results");
        WEFT_TRY(new_number(s, s->result_count));
        WEFT_TRY(expect(s, ":"));
        WEFT_TRY(WEFT_GROW(s->results, s->result_count, s->result_cap));
        WEFT_TRY(desc(s, &s->results[s->result_count]));
        s->result_count++;
    } while (take(s, ","));
    return expect(s, "=");
}

static weft_status operands(parse_parser *s) {
    s->operand_count = 0;
    WEFT_TRY(expect(s, "("));
    while (!take(s, ")")) {
        WANT(s->operand_count < MAX_OPERANDS, "a node has too many operands");
        if (s->operand_count) WEFT_TRY(expect(s, ","));
        WEFT_TRY(WEFT_GROW(s->operands, s->operand_count, s->operand_cap));
        int32_t value = -1;
        if (!take(s, "_")) WEFT_TRY(known_value(s, &value));
        s->operands[s->operand_count++] = value;
    }
    return WEFT_OK;
}

static weft_status find_body(weft_body *const *list, int64_t count, const char *name,
                             weft_body **out) {
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(list[i]->name, name)) {
            *out = list[i];
            return WEFT_OK;
        }
    WEFT_FAIL(WEFT_E_ARG, "there is no '%s' above", name);
}

static weft_status find_op(parse_parser *s, const weft_op_def **out_op, weft_body **out_callee) {
    char name[MAX_WORD], callee[MAX_WORD];
    weft_graph *g = s->g;
    *out_callee = NULL;
    WEFT_TRY(word(s, name));
    if (!strcmp(name, wefti_op_call.name)) {
        WANT(s->body == g->root, "only the graph may call cells");
        *out_op = &wefti_op_call;
        WEFT_TRY(word(s, callee));
        return find_body(g->cells, g->cell_count, callee, out_callee);
    }
    if (!strcmp(name, wefti_op_fused.name)) {
        *out_op = &wefti_op_fused;
        WEFT_TRY(word(s, callee));
        return find_body(g->fused, g->fused_count, callee, out_callee);
    }
    *out_op = wefti_op_find(g->ops, name);
    WANT(*out_op, "there is no op '%s'", name);
    return WEFT_OK;
}

/* Reads the attributes after the operands, up to "#", "@" or the end of the line. */
static weft_status attributes(parse_parser *s, const weft_op_def *op,
                              wefti_attr attrs[PARSE_MAX_ATTRS]) {
    char text[8192];
    blanks(s);
    size_t n = strcspn(s->p, "#@\n");
    WANT(n < sizeof text, "the attributes take more than %zu characters", sizeof text - 1);
    WANT(wefti_attr_count(op) < PARSE_MAX_ATTRS, "%s has too many attributes", op->name);
    memcpy(text, s->p, n);
    text[n] = '\0';
    s->p += n;
    return wefti_attrs_parse(op, text, s->g->arena, attrs);
}

static weft_status claim(weft_graph *g, char space, const char *what, const char *name) {
    bool fresh;
    WEFT_TRY(wefti_builder_claim(g, space, name, &fresh));
    WANT(fresh, "%s '%s' is there already", what, name);
    return WEFT_OK;
}

static weft_status node(parse_parser *s) {
    const weft_op_def *op;
    weft_body *callee;
    wefti_attr attrs[PARSE_MAX_ATTRS] = {{0}};
    char scope_word[MAX_WORD];
    const char *scope = "";
    int64_t stream = -1;
    int32_t index;
    WEFT_TRY(results(s));
    WEFT_TRY(find_op(s, &op, &callee));
    WEFT_TRY(operands(s));
    WEFT_TRY(attributes(s, op, attrs));
    if (op->flags & WEFTI_OP_RANDOM) {
        WEFT_TRY(expect(s, "#"));
        WEFT_TRY(integer(s, UINT32_MAX - 1, &stream));
    }
    if (take(s, "@")) {
        WEFT_TRY(word(s, scope_word));
        scope = wefti_arena_strdup(s->g->arena, scope_word);
        WEFT_REQUIRE(scope, WEFT_E_NOMEM, "no memory for a name");
    }
    if (op == &wefti_op_call) {
        WANT(scope[0], "a call needs its path, @name");
        WEFT_TRY(claim(s->g, 'c', "a cell", scope));
    }
    WEFT_TRY(wefti_body_add(s->body, op, callee, (int)s->operand_count, s->operands, attrs, scope,
                            &index));
    weft_node *n = &s->body->nodes[index];
    if (stream >= 0) {
        n->stream = (uint32_t)stream;
        if (s->body->streams <= n->stream) s->body->streams = n->stream + 1;
    }
    WANT(n->outputs == s->result_count, "%s has %d results, not %lld", op->name, n->outputs,
         (long long)s->result_count);
    for (int o = 0; o < n->outputs; o++) {
        WANT(wefti_desc_equal(wefti_out(n, o), &s->results[o]), "result %d of %s is %s, not %s", o,
             op->name, wefti_desc_text(wefti_out(n, o)).text, wefti_desc_text(&s->results[o]).text);
        WEFT_TRY(define(s, n->out[o]));
    }
    return end_line(s);
}

/* ---- cells ---- */

static weft_status cell_input(parse_parser *s) {
    char text[MAX_WORD];
    const char *name = NULL;
    wefti_value_kind kind;
    weft_desc d;
    int32_t value;
    WEFT_TRY(new_number(s, 0));
    WEFT_TRY(word(s, text));
    WEFT_TRY(kind_of(text, &kind));
    if (!take(s, ":")) {
        WEFT_TRY(word(s, text));
        WEFT_TRY(expect(s, ":"));
        name = text;
    }
    WEFT_TRY(desc(s, &d));
    WEFT_TRY(wefti_body_input(s->body, d, kind, name, &value));
    return define(s, value);
}

static weft_status cell_lines(parse_parser *s) {
    s->value_count = 0;
    WEFT_TRY(expect(s, "("));
    while (!take(s, ")")) {
        if (s->body->in_count) WEFT_TRY(expect(s, ","));
        WANT(s->body->in_count < MAX_OPERANDS, "a cell has too many inputs");
        WEFT_TRY(cell_input(s));
    }
    WEFT_TRY(expect(s, "{"));
    WEFT_TRY(end_line(s));
    while (!take(s, "return ")) WEFT_TRY(node(s));
    do {
        int32_t value;
        WEFT_TRY(known_value(s, &value));
        WANT(s->body->values[value].kind == WEFTI_VALUE_NODE, "an input is returned");
        for (int64_t o = 0; o < s->body->out_count; o++)
            WANT(s->body->out[o] != value, "a value is returned twice");
        WANT(s->body->out_count < MAX_OPERANDS, "a cell has too many results");
        WEFT_TRY(wefti_body_output(s->body, value));
    } while (take(s, ","));
    WEFT_TRY(end_line(s));
    WEFT_TRY(expect(s, "}"));
    return end_line(s);
}

static weft_status cell(parse_parser *s, bool fused) {
    weft_graph *g = s->g;
    char name[MAX_WORD];
    weft_body *stored;
    WEFT_TRY(word(s, name));
    if (!fused) WEFT_TRY(claim(g, 'b', "a cell", name));
    for (int64_t i = 0; i < g->fused_count && fused; i++)
        WANT(strcmp(g->fused[i]->name, name) != 0, "a fused body '%s' is there already", name);
    WEFT_TRY(wefti_body_create(g, name, &s->body));
    int line = s->line;
    weft_status st = cell_lines(s);
    if (st < 0) {
        wefti_body_destroy(s->body);
        return st;
    }
    st = fused ? wefti_graph_intern_fused(g, s->body, &stored)
               : wefti_graph_intern(g, s->body, &stored);
    if (st >= 0 && stored != s->body) {
        s->line = line;
        return WEFT_RAISE(WEFT_E_ARG, "%s is equal to %s above; equal cells are stored once", name,
                          stored->name);
    }
    return st;
}

/* ---- the root ---- */

static weft_status initial(parse_parser *s, weft_init *out) {
    static const char *const words[] = {"zeros", "constant", "normal", "uniform"};
    char name[MAX_WORD];
    WEFT_TRY(word(s, name));
    for (int k = 0; k < 4; k++) {
        if (strcmp(name, words[k]) != 0) continue;
        *out = (weft_init){(weft_init_kind)k, 0};
        if (k == WEFT_INIT_ZEROS) return WEFT_OK;
        WEFT_TRY(expect(s, "("));
        char *end;
        out->scale = *s->p == ' ' || *s->p == '\n' ? NAN : wefti_real_read(s->p, &end);
        WANT(isfinite(out->scale) && end != s->p, "%s wants a finite number", name);
        s->p = end;
        return expect(s, ")");
    }
    WEFT_FAIL(WEFT_E_ARG, "'%s' is none of zeros, constant, normal, uniform", name);
}

/* Reads "%3 = param h.0.w: f32[2] zeros". The "=" after the number distinguishes it from a node. */
static weft_status root_value(parse_parser *s) {
    char text[MAX_WORD];
    wefti_value_kind kind;
    weft_desc d;
    weft_init init = {WEFT_INIT_ZEROS, 0};
    int32_t value;
    WEFT_TRY(new_number(s, 0));
    WEFT_TRY(expect(s, "="));
    WEFT_TRY(word(s, text));
    WEFT_TRY(kind_of(text, &kind));
    WANT(s->body->node_count == 0, "inputs, parameters and states come before all nodes");
    WEFT_TRY(word(s, text));
    WEFT_TRY(claim(s->g, 'v', "an input, parameter or state", text));
    WEFT_TRY(expect(s, ":"));
    WEFT_TRY(desc(s, &d));
    if (kind != WEFTI_VALUE_INPUT) WEFT_TRY(initial(s, &init));
    const bool frozen = kind == WEFTI_VALUE_PARAM && take(s, "frozen");
    WEFT_TRY(wefti_root_value(s->g, kind, text, d, init, &value));
    s->g->root->values[value].frozen = frozen;
    WEFT_TRY(define(s, value));
    return end_line(s);
}

static bool at_root_value(const parse_parser *s) {
    const char *p = s->p;
    if (*p != '%') return false;
    p++;
    while (*p >= '0' && *p <= '9') p++;
    while (*p == ' ') p++;
    return *p == '=';
}

static weft_status root_line(parse_parser *s) {
    char name[MAX_WORD];
    int32_t value, next;
    blanks(s);
    if (at_root_value(s)) return root_value(s);
    if (*s->p == '%') return node(s);
    if (take(s, "output ")) {
        WEFT_TRY(word(s, name));
        WEFT_TRY(expect(s, "="));
        WEFT_TRY(known_value(s, &value));
        WEFT_TRY(wefti_root_output(s->g, name, value));
    } else if (take(s, "loss ")) {
        WEFT_TRY(known_value(s, &value));
        WEFT_TRY(wefti_root_loss(s->g, value));
    } else {
        WEFT_TRY(expect(s, "update "));
        WEFT_TRY(known_value(s, &value));
        WEFT_TRY(expect(s, "="));
        WEFT_TRY(known_value(s, &next));
        WEFT_TRY(wefti_root_assign(s->g, value, next));
    }
    return end_line(s);
}

static weft_status whole(parse_parser *s) {
    WEFT_TRY(expect(s, "weft-graph 1"));
    WEFT_TRY(end_line(s));
    for (;;) {
        if (take(s, "fused "))
            WEFT_TRY(cell(s, true));
        else if (take(s, "cell "))
            WEFT_TRY(cell(s, false));
        else
            break;
    }
    WEFT_TRY(expect(s, "graph"));
    WEFT_TRY(expect(s, "{"));
    WEFT_TRY(end_line(s));
    s->body = s->g->root;
    s->value_count = 0;
    while (!take(s, "}")) WEFT_TRY(root_line(s));
    WEFT_TRY(end_line(s));
    WANT(!*s->p, "nothing may follow the graph");
    return WEFT_OK;
}

static weft_status parse(parse_parser *s) {
    weft_status st = whole(s);
    if (st < 0) return wefti_prefix(st, "line %d", s->line);
    WEFT_TRY(wefti_graph_check(s->g));
    return WEFT_OK;
}

weft_status wefti_graph_parse(const wefti_op_registry *ops, const char *text, weft_graph **out) {
    WANT(text, "no text");
    WANT(strnlen(text, MAX_TEXT) < MAX_TEXT, "the text has more than %d MiB", MAX_TEXT >> 20);
    parse_parser s = {.p = text, .line = 1};
    WEFT_TRY(wefti_graph_create(ops, &s.g));
    weft_status st = parse(&s);
    wefti_free(s.values);
    wefti_free(s.operands);
    wefti_free(s.results);
    if (st < 0) {
        weft_graph_destroy(s.g);
        return wefti_note(st, __func__, __FILE__, __LINE__);
    }
    *out = s.g;
    return WEFT_OK;
}
