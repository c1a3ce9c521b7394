/* Lists and mappings in an override, "[{match: h.*, split: ((2,1),(1,4))}]": the flow style of YAML
 * without its subtleties, so that it needs no YAML reader. See job/job.h. */
#include "job/job.h"

#include <string.h>

enum { DEPTH_MAX = 8 };

typedef struct flow_reader {
    wefti_arena *arena;
    const char *word, *at; /* the override, and how far it is read */
    int depth;
} flow_reader;

static weft_status refuse(const flow_reader *r, const char *wanted) {
    WEFT_FAIL(WEFT_E_ARG, "'%.200s': %s at character %d", r->word, wanted,
              (int)(r->at - r->word) + 1);
}

static void skip_space(flow_reader *r) {
    r->at += strspn(r->at, " \t\n");
}

static weft_status copy_text(flow_reader *r, const char *from, size_t length, const char **out) {
    char *copy = wefti_arena_alloc(r->arena, length + 1);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a job");
    memcpy(copy, from, length);
    *out = copy;
    return WEFT_OK;
}

/* "..." with \" and \\, or '...' */
static weft_status read_quoted(flow_reader *r, const char **out) {
    char quote = *r->at++;
    char *copy = wefti_arena_alloc(r->arena, strlen(r->at) + 1);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a job");
    *out = copy;
    for (; *r->at != quote; r->at++) {
        if (quote == '"' && r->at[0] == '\\' && (r->at[1] == '"' || r->at[1] == '\\')) r->at++;
        if (!*r->at) return refuse(r, "a closing quote is missing");
        *copy++ = *r->at;
    }
    r->at++;
    return WEFT_OK;
}

/* Reads up to one of `ends` outside of parentheses. Spaces at both sides are dropped. */
static weft_status read_plain(flow_reader *r, const char *ends, const char **out) {
    const char *from = r->at;
    int open = 0;
    for (; *r->at && (open > 0 || !strchr(ends, *r->at)); r->at++)
        open += (*r->at == '(') - (*r->at == ')');
    size_t length = (size_t)(r->at - from);
    while (length && strchr(" \t\n", from[length - 1])) length--;
    return copy_text(r, from, length, out);
}

static weft_status read_word(flow_reader *r, const char *ends, const char **out, bool *out_quoted) {
    *out_quoted = *r->at == '"' || *r->at == '\'';
    return *out_quoted ? read_quoted(r, out) : read_plain(r, ends, out);
}

static weft_status read_value(flow_reader *r, wefti_yaml *out);

static weft_status read_entry(flow_reader *r, bool mapping, const wefti_yaml *parent,
                              wefti_yaml *out) {
    bool quoted;
    if (mapping) {
        WEFT_TRY(read_word(r, ":,]}", &out->key, &quoted));
        skip_space(r);
        if (*r->at != ':') return refuse(r, "a key needs a ':' and a value");
        r->at++;
        for (const wefti_yaml *other = parent->first; other != out; other = other->next)
            if (!strcmp(other->key, out->key)) return refuse(r, "this key was given before,");
    }
    return read_value(r, out);
}

static weft_status read_children(flow_reader *r, wefti_yaml *parent) {
    bool mapping = *r->at == '{';
    char close = mapping ? '}' : ']';
    wefti_yaml **last = &parent->first;
    parent->kind = mapping ? WEFTI_YAML_MAPPING : WEFTI_YAML_SEQUENCE;
    if (++r->depth > DEPTH_MAX) return refuse(r, "nested too deep");
    for (r->at++, skip_space(r); *r->at != close; skip_space(r)) {
        wefti_yaml *child = wefti_arena_alloc(r->arena, sizeof *child);
        WEFT_REQUIRE(child, WEFT_E_NOMEM, "no memory for a job");
        *last = child;
        last = &child->next;
        parent->count++;
        WEFT_TRY(read_entry(r, mapping, parent, child));
        skip_space(r);
        if (*r->at == ',')
            r->at++;
        else if (*r->at != close)
            return refuse(r, mapping ? "a ',' or '}' is missing" : "a ',' or ']' is missing");
    }
    r->at++;
    r->depth--;
    return WEFT_OK;
}

static weft_status read_value(flow_reader *r, wefti_yaml *out) {
    skip_space(r);
    if (*r->at == '[' || *r->at == '{') return read_children(r, out);
    out->kind = WEFTI_YAML_SCALAR;
    return read_word(r, ",]}", &out->text, &out->quoted);
}

weft_status wefti_job_flow_parse(wefti_arena *arena, const char *word, const char *text,
                                 wefti_yaml *out) {
    flow_reader r = {.arena = arena, .word = word, .at = text};
    wefti_yaml value = {0};
    WEFT_TRY(read_value(&r, &value));
    skip_space(&r);
    if (*r.at) return refuse(&r, "something follows the end,");
    *out = value;
    return WEFT_OK;
}
