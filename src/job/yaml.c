/* YAML to a tree. See job/yaml.h. */
#include "job/yaml.h"

#include <string.h>

#ifdef WEFT_HAVE_YAML
#include <yaml.h>

typedef struct yaml_reader {
    const char *name, *text, *end;
    wefti_arena *arena;
    yaml_parser_t parser;
} yaml_reader;

static int line_of(yaml_mark_t mark) {
    return (int)mark.line + 1;
}
static int column_of(yaml_mark_t mark) {
    return (int)mark.column + 1;
}

/* Whether the line begins with a tab: the usual reason for "found character that cannot start any
 * token". */
static bool begins_with_tab(const yaml_reader *r, size_t line) {
    const char *at = r->text;
    for (; line > 0 && at < r->end; at++) line -= *at == '\n';
    while (at < r->end && *at == ' ') at++;
    return at < r->end && *at == '\t';
}

/* What libyaml finds wrong, and in which context, in words for people who do not know its grammar.
 * `context` NULL: any. The first row that fits counts. */
static const struct {
    const char *context, *problem, *plain;
} plain_words[] = {
    {"flow mapping", "did not find expected",
     "the '{' of line %d has no '}', or a ',' is missing before this"},
    {"flow sequence", "did not find expected",
     "the '[' of line %d has no ']', or a ',' is missing before this"},
    {"simple key", "could not find expected ':'",
     "line %d is no 'key: value': a ':' with a space behind it is missing"},
    {"quoted scalar", "unexpected end of stream", "the quote that opens in line %d has no end"},
    {"quoted scalar", "document indicator", "the quote that opens in line %d has no end"},
    {"quoted scalar", "escape",
     "a backslash in \"...\" begins an escape, and this is none: double "
     "the backslash, or use '...'"},
    {"quoted scalar", "hexdecimal", "this escape needs more hexadecimal digits"},
    {"quoted scalar", "Unicode", "this escape is no character"},
    {"block scalar", "", "a text behind '|' or '>' begins in the next line, indented"},
    {"block collection", "", "this entry does not begin with '-', as those from line %d on do"},
    {"block mapping", "",
     "this line does not fit the keys from line %d on: indent it as they are, with one 'key: "
     "value' "
     "a line"},
    {NULL, "mapping values are not allowed",
     "a ':' does not belong here: this line is indented too deep, a ':' before it has no space "
     "behind "
     "it, or a text with ': ' needs quotes"},
    {NULL, "block sequence entries are not allowed",
     "a '-' does not belong here: a list begins in a line of its own, or stands in [ ]"},
    {NULL, "mapping keys are not allowed", "a '?' does not belong here"},
    {NULL, "cannot start any token", "a value that begins with this character needs quotes"},
    {"anchor", "", "a value that begins with '&' needs quotes"},
    {"alias", "", "a value that begins with '*' needs quotes"},
    {"tag", "", "a value that begins with '!' needs quotes"},
    {NULL, "YAML document", "a job file needs no %YAML line"},
    {NULL, "directive", "a line that begins with '%' does not belong in a job file"},
    {NULL, "document start", "a second document begins here; a job file holds one"},
    {NULL, "", "this is no YAML: expected are lines 'key: value'"},
};

/* In 256 bytes. `line`: where the context began. */
static const char *plain_problem(const yaml_parser_t *p, char *out) {
    const char *context = p->context ? p->context : "", *problem = p->problem ? p->problem : "";
    const size_t rows = sizeof plain_words / sizeof *plain_words;
    for (size_t i = 0; i < rows; i++) {
        if (plain_words[i].context && !strstr(context, plain_words[i].context)) continue;
        if (!strstr(problem, plain_words[i].problem)) continue;
        const char *plain = plain_words[i].plain, *number = strstr(plain, "%d");
        const int before = (int)(number ? (size_t)(number - plain) : strlen(plain));
        if (number)
            snprintf(out, 256, "%.*s%d%s", before, plain, line_of(p->context_mark), number + 2);
        else
            snprintf(out, 256, "%s", plain);
        break;
    }
    return out;
}

/* A byte that is not text. */
static weft_status refuse_byte(const yaml_reader *r, const yaml_parser_t *p) {
    int line = 1, column = 1;
    for (size_t i = 0; i < p->problem_offset && r->text + i < r->end; i++) {
        column = r->text[i] == '\n' ? 1 : column + 1;
        line += r->text[i] == '\n';
    }
    const bool control = p->problem && strstr(p->problem, "control");
    WEFT_FAIL(WEFT_E_ARG, "%s:%d:%d: %s; a job file is UTF-8 text", r->name, line, column,
              control ? "a control character" : "this byte is no UTF-8");
}

static weft_status next_event(yaml_reader *r, yaml_event_t *event) {
    if (yaml_parser_parse(&r->parser, event)) return WEFT_OK;
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) WEFT_FAIL(WEFT_E_NOMEM, "no memory to read %s", r->name);
    if (p->error == YAML_READER_ERROR) return refuse_byte(r, p);
    WEFT_REQUIRE(!begins_with_tab(r, p->problem_mark.line), WEFT_E_ARG,
                 "%s:%d:%d: the line begins with a tab; YAML is indented with spaces", r->name,
                 line_of(p->problem_mark), column_of(p->problem_mark));
    char plain[256];
    WEFT_FAIL(WEFT_E_ARG, "%s:%d:%d: %s", r->name, line_of(p->problem_mark),
              column_of(p->problem_mark), plain_problem(p, plain));
}

static weft_status read_node(yaml_reader *r, yaml_event_t *event, int depth, wefti_yaml *node);

static weft_status refuse_extras(yaml_reader *r, const yaml_event_t *event, const void *anchor,
                                 const void *tag) {
    WEFT_REQUIRE(!anchor, WEFT_E_ARG, "%s:%d:%d: anchors (&%s) are not used in job files", r->name,
                 line_of(event->start_mark), column_of(event->start_mark), (const char *)anchor);
    WEFT_REQUIRE(!tag, WEFT_E_ARG, "%s:%d:%d: tags (%s) are not used in job files", r->name,
                 line_of(event->start_mark), column_of(event->start_mark), (const char *)tag);
    return WEFT_OK;
}

static weft_status copy_scalar(yaml_reader *r, const yaml_event_t *event, const char **out) {
    const char *value = (const char *)event->data.scalar.value;
    WEFT_REQUIRE(strlen(value) == event->data.scalar.length, WEFT_E_ARG,
                 "%s:%d:%d: a text may not hold a zero byte", r->name, line_of(event->start_mark),
                 column_of(event->start_mark));
    *out = wefti_arena_strdup(r->arena, value);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to read %s", r->name);
    return WEFT_OK;
}

static weft_status new_child(yaml_reader *r, const yaml_event_t *event, wefti_yaml *parent,
                             wefti_yaml **last, wefti_yaml **out) {
    WEFT_REQUIRE(parent->count < WEFTI_YAML_ITEMS, WEFT_E_ARG,
                 "%s:%d:%d: more than %d entries in one place", r->name, line_of(event->start_mark),
                 column_of(event->start_mark), WEFTI_YAML_ITEMS);
    wefti_yaml *child = wefti_arena_alloc(r->arena, sizeof *child);
    WEFT_REQUIRE(child, WEFT_E_NOMEM, "no memory to read %s", r->name);
    child->line = line_of(event->start_mark);
    child->column = column_of(event->start_mark);
    if (*last)
        (*last)->next = child;
    else
        parent->first = child;
    *last = child;
    parent->count++;
    *out = child;
    return WEFT_OK;
}

/* The key of a mapping's next entry; the event is a scalar, or the mapping is refused. */
static weft_status read_key(yaml_reader *r, const yaml_event_t *event, const wefti_yaml *parent,
                            wefti_yaml *child) {
    WEFT_REQUIRE(event->type == YAML_SCALAR_EVENT, WEFT_E_ARG,
                 "%s:%d:%d: a key must be a plain word", r->name, line_of(event->start_mark),
                 column_of(event->start_mark));
    WEFT_TRY(refuse_extras(r, event, event->data.scalar.anchor, event->data.scalar.tag));
    WEFT_TRY(copy_scalar(r, event, &child->key));
    for (const wefti_yaml *other = parent->first; other != child; other = other->next)
        WEFT_REQUIRE(strcmp(other->key, child->key) != 0, WEFT_E_ARG,
                     "%s:%d:%d: the key '%s' is given twice; first in line %d", r->name,
                     child->line, child->column, child->key, other->line);
    return WEFT_OK;
}

/* Children up to the end event of a mapping or sequence. */
static weft_status read_children(yaml_reader *r, bool mapping, int depth, wefti_yaml *parent) {
    yaml_event_type_t end = mapping ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    wefti_yaml *last = NULL;
    for (;;) {
        yaml_event_t event;
        wefti_yaml *child = NULL;
        WEFT_TRY(next_event(r, &event));
        if (event.type == end) {
            yaml_event_delete(&event);
            return WEFT_OK;
        }
        weft_status status = new_child(r, &event, parent, &last, &child);
        if (status >= 0 && mapping) {
            status = read_key(r, &event, parent, child);
            yaml_event_delete(&event);
            if (status >= 0) status = next_event(r, &event);
            if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
        }
        if (status >= 0) status = read_node(r, &event, depth + 1, child);
        yaml_event_delete(&event);
        WEFT_TRY(status);
    }
}

/* The value that begins with `event`, which stays the caller's. */
static weft_status read_node(yaml_reader *r, yaml_event_t *event, int depth, wefti_yaml *node) {
    int line = line_of(event->start_mark), column = column_of(event->start_mark);
    WEFT_REQUIRE(depth <= WEFTI_YAML_DEPTH, WEFT_E_ARG, "%s:%d:%d: nested deeper than %d", r->name,
                 line, column, WEFTI_YAML_DEPTH);
    if (!node->key) {
        node->line = line;
        node->column = column;
    }
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        WEFT_TRY(refuse_extras(r, event, event->data.scalar.anchor, event->data.scalar.tag));
        node->kind = WEFTI_YAML_SCALAR;
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        return copy_scalar(r, event, &node->text);
    case YAML_SEQUENCE_START_EVENT:
        WEFT_TRY(refuse_extras(r, event, event->data.sequence_start.anchor,
                               event->data.sequence_start.tag));
        node->kind = WEFTI_YAML_SEQUENCE;
        return read_children(r, false, depth, node);
    case YAML_MAPPING_START_EVENT:
        WEFT_TRY(refuse_extras(r, event, event->data.mapping_start.anchor,
                               event->data.mapping_start.tag));
        node->kind = WEFTI_YAML_MAPPING;
        return read_children(r, true, depth, node);
    case YAML_ALIAS_EVENT:
        WEFT_FAIL(WEFT_E_ARG, "%s:%d:%d: aliases (*%s) are not used in job files", r->name, line,
                  column, (const char *)event->data.alias.anchor);
    default:
        WEFT_FAIL(WEFT_E_ARG, "%s:%d:%d: a value is missing here", r->name, line, column);
    }
}

/* stream start, [document start, value, document end], stream end */
static weft_status read_stream(yaml_reader *r, wefti_yaml *root) {
    bool seen = false;
    for (;;) {
        yaml_event_t event;
        weft_status status = WEFT_OK;
        WEFT_TRY(next_event(r, &event));
        yaml_event_type_t type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT && seen)
            status = WEFT_RAISE(WEFT_E_ARG, "%s:%d:%d: a second document; a job file holds one",
                                r->name, line_of(event.start_mark), column_of(event.start_mark));
        else if (type == YAML_DOCUMENT_START_EVENT)
            seen = true;
        else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                 type != YAML_DOCUMENT_END_EVENT)
            status = read_node(r, &event, 1, root);
        yaml_event_delete(&event);
        WEFT_TRY(status);
        if (type == YAML_STREAM_END_EVENT) return WEFT_OK;
    }
}

weft_status wefti_yaml_parse(const char *name, const char *text, int64_t bytes, wefti_arena *arena,
                             wefti_yaml **out) {
    WEFT_REQUIRE(bytes >= 0 && bytes <= WEFTI_YAML_BYTES, WEFT_E_ARG,
                 "%s has %lld bytes; a job file has at most %d", name, (long long)bytes,
                 WEFTI_YAML_BYTES);
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors write it before UTF-8 */
    if (bytes >= 3 && !memcmp(text, mark, 3)) text += 3, bytes -= 3;
    yaml_reader r = {.name = name, .text = text, .end = text + bytes, .arena = arena};
    wefti_yaml *root = wefti_arena_alloc(arena, sizeof *root);
    WEFT_REQUIRE(root, WEFT_E_NOMEM, "no memory to read %s", name);
    root->kind = WEFTI_YAML_MAPPING;
    WEFT_REQUIRE(yaml_parser_initialize(&r.parser), WEFT_E_NOMEM, "no memory to read %s", name);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, (size_t)bytes);
    weft_status status = read_stream(&r, root);
    yaml_parser_delete(&r.parser);
    WEFT_TRY(status);
    *out = root;
    return WEFT_OK;
}

#else

weft_status wefti_yaml_parse(const char *name, const char *text, int64_t bytes, wefti_arena *arena,
                             wefti_yaml **out) {
    (void)text, (void)bytes, (void)arena, (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL,
              "cannot read %s: this build has no libyaml; give the job as key=value words", name);
}

#endif
