/* Compiles regular expressions to automata, and matches. See tokenizer/regex.h.
 *
 * The tree becomes a program of threads: match a character of a set, go to one of two places, look
 * at a neighbour, end. A state of an automaton is the list of threads that are alive at a place of
 * the text, in the order of preference, before anything that takes no character was done. Those
 * steps are done when the next character is known, so that looking ahead costs nothing. An entry of
 * the table says for a state and the class of the next character whether a match ends before the
 * character, and what the next state is.
 *
 * A search tries to match at its start first, which most patterns of tokenizers always do. When
 * that fails, a second automaton, which may begin anywhere, finds where the leftmost match ends,
 * and a third one, of the reversed pattern, from there where it begins. */
#include "tokenizer/regex.h"

#include <string.h>

#include "base/map/map.h"
#include "base/text.h"
#include "tokenizer/regex_syntax.h"

enum {
    REGEX_STEPS = 1 << 14,
    REGEX_STATES = 1 << 13,
    REGEX_ENTRIES = 1 << 20, /* of a table */
    REGEX_SETS = 128,
    REGEX_CLASSES = 250,
    REGEX_BLOCKS = (WEFTI_CHARSET_LAST >> 8) + 1,
    DEAD = 0,
};

typedef enum step_kind { STEP_SET, STEP_FORK, STEP_LOOK, STEP_MATCH } step_kind;

typedef struct regex_step {
    step_kind kind;
    int32_t next, other; /* fork: `next` is preferred */
    int32_t set;
    bool behind, edge;
} regex_step;

typedef struct automaton {
    /* [state, classes + 1]: place of the next state's row << 1 | match; the last class: the text
     * ends. A state is known by the place of its row, which saves the inner loop a product. */
    uint32_t *table;
    int32_t *starts; /* [classes + 1], by the class of the character before */
} automaton;

struct wefti_regex {
    const unsigned char *literal; /* matches this alone; no automata */
    int64_t literal_bytes;
    int32_t classes;   /* of characters, and one more for an edge of the text */
    bool looks_behind; /* else all starts are the same */
    uint16_t *blocks;  /* [REGEX_BLOCKS], of 256 characters: where in `class_of` */
    uint8_t *class_of;
    uint8_t ascii[128];
    automaton here, anywhere, back;
};

/* ---- the program ---- */

typedef struct compiler {
    wefti_arena *arena; /* of temporary memory */
    const char *pattern;
    regex_step *steps;
    int64_t count, capacity;
    const wefti_charset *sets[REGEX_SETS];
    int32_t set_count;
    uint8_t *has; /* [set, class] */
    wefti_regex *r;
    bool reversed;
} compiler;

static weft_status too_large(const compiler *c) {
    return WEFT_RAISE(WEFT_E_NO_IMPL, "the regular expression '%.300s' is too large", c->pattern);
}

static weft_status new_step(compiler *c, regex_step each, int32_t *out) {
    if (c->count == REGEX_STEPS) return too_large(c);
    if (c->count == c->capacity) {
        int64_t capacity = c->capacity ? c->capacity * 2 : 64;
        regex_step *steps = wefti_arena_alloc(c->arena, (size_t)capacity * sizeof *steps);
        WEFT_REQUIRE(steps, WEFT_E_NOMEM, "no memory for a regular expression");
        if (c->count) memcpy(steps, c->steps, (size_t)c->count * sizeof *steps);
        c->steps = steps;
        c->capacity = capacity;
    }
    *out = (int32_t)c->count;
    c->steps[c->count++] = each;
    return WEFT_OK;
}

static weft_status set_number(compiler *c, const wefti_charset *set, int32_t *out) {
    for (*out = 0; *out < c->set_count; ++*out)
        if (wefti_charset_equal(c->sets[*out], set)) return WEFT_OK;
    if (c->set_count == REGEX_SETS) return too_large(c);
    c->sets[c->set_count++] = set;
    return WEFT_OK;
}

static weft_status emit(compiler *c, const wefti_regex_node *node, int32_t next, int32_t *out);

static weft_status emit_repeat(compiler *c, const wefti_regex_node *node, int32_t next,
                               int32_t *out) {
    int32_t to = next, fork;
    if (node->most < 0) { /* any number more */
        WEFT_TRY(new_step(c, (regex_step){.kind = STEP_FORK}, &fork));
        WEFT_TRY(emit(c, node->left, fork, &to));
        c->steps[fork].next = node->lazy ? next : to;
        c->steps[fork].other = node->lazy ? to : next;
        to = fork;
    }
    for (int i = node->least; i < node->most;
         i++) { /* some more, each only behind the one before */
        int32_t inner;
        WEFT_TRY(emit(c, node->left, to, &inner));
        regex_step choice = {.kind = STEP_FORK,
                             .next = node->lazy ? next : inner,
                             .other = node->lazy ? inner : next};
        WEFT_TRY(new_step(c, choice, &to));
    }
    for (int i = 0; i < node->least; i++) WEFT_TRY(emit(c, node->left, to, &to));
    *out = to;
    return WEFT_OK;
}

/* Emits the steps of a tree that go on at `next`; *out: where they begin. */
static weft_status emit(compiler *c, const wefti_regex_node *node, int32_t next, int32_t *out) {
    int32_t set, left, right;
    switch (node->kind) {
    case WEFTI_REGEX_SET:
        WEFT_TRY(set_number(c, &node->set, &set));
        return new_step(c, (regex_step){.kind = STEP_SET, .next = next, .set = set}, out);
    case WEFTI_REGEX_LOOK: {
        bool behind = node->behind != c->reversed;
        WEFT_TRY(set_number(c, &node->set, &set));
        c->r->looks_behind |= behind;
        regex_step look = {
            .kind = STEP_LOOK, .next = next, .set = set, .behind = behind, .edge = node->edge};
        return new_step(c, look, out);
    }
    case WEFTI_REGEX_THEN:
        WEFT_TRY(emit(c, c->reversed ? node->left : node->right, next, &next));
        return emit(c, c->reversed ? node->right : node->left, next, out);
    case WEFTI_REGEX_OR:
        WEFT_TRY(emit(c, node->left, next, &left));
        WEFT_TRY(emit(c, node->right, next, &right));
        return new_step(c, (regex_step){.kind = STEP_FORK, .next = left, .other = right}, out);
    case WEFTI_REGEX_REPEAT:
        return emit_repeat(c, node, next, out);
    default:
        *out = next;
        return WEFT_OK;
    }
}

/* ---- classes of characters that no set tells apart ---- */

static int32_t class_at(const wefti_regex *r, uint32_t point) {
    if (point == WEFTI_NO_CHARACTER) point = WEFTI_CHARSET_LAST;
    return r->class_of[r->blocks[point >> 8] * 256 + (point & 255)];
}

/* The class whose members are in exactly these sets. */
static weft_status class_like(compiler *c, const uint8_t *in, int32_t *out) {
    for (*out = 0; *out < c->r->classes; ++*out) {
        bool same = true;
        for (int32_t s = 0; s < c->set_count && same; s++)
            same = c->has[s * REGEX_CLASSES + *out] == in[s];
        if (same) return WEFT_OK;
    }
    if (c->r->classes == REGEX_CLASSES - 1) return too_large(c);
    for (int32_t s = 0; s < c->set_count; s++) c->has[s * REGEX_CLASSES + *out] = in[s];
    c->r->classes++;
    return WEFT_OK;
}

/* Fills one block of 256 characters; returns whether all are of one class. */
static weft_status fill_block(compiler *c, const int64_t *places, uint32_t first, uint8_t *to) {
    uint8_t in[REGEX_SETS];
    int64_t at[REGEX_SETS];
    int32_t class = 0;
    memcpy(at, places, sizeof at);
    for (uint32_t point = first, change = first; point < first + 256; point++) {
        if (point == change) { /* the next place where membership of a set changes */
            change = UINT32_MAX;
            for (int32_t s = 0; s < c->set_count; s++) {
                const wefti_charset *set = c->sets[s];
                while (at[s] < set->count && set->ranges[at[s]].last < point) at[s]++;
                in[s] = at[s] < set->count && set->ranges[at[s]].first <= point;
                uint32_t until = at[s] == set->count ? UINT32_MAX
                                 : in[s]             ? set->ranges[at[s]].last + 1
                                                     : set->ranges[at[s]].first;
                if (until < change) change = until;
            }
            WEFT_TRY(class_like(c, in, &class));
        }
        to[point - first] = (uint8_t) class;
    }
    return WEFT_OK;
}

static weft_status make_classes(compiler *c, wefti_arena *keep) {
    wefti_regex *r = c->r;
    int64_t places[REGEX_SETS] = {0};
    uint8_t *all = wefti_arena_alloc(c->arena, (size_t)REGEX_BLOCKS * 256);
    wefti_map seen = {0};
    int64_t count = 0;
    c->has = wefti_arena_alloc(c->arena, (size_t)REGEX_SETS * REGEX_CLASSES);
    r->blocks = wefti_arena_alloc(keep, REGEX_BLOCKS * sizeof *r->blocks);
    WEFT_REQUIRE(all && c->has && r->blocks, WEFT_E_NOMEM, "no memory for a regular expression");
    weft_status status = wefti_map_reserve(&seen, REGEX_BLOCKS);
    for (uint32_t b = 0; b < REGEX_BLOCKS && status >= 0; b++) {
        uint8_t *block = all + count * 256;
        int64_t number;
        for (int32_t s = 0; s < c->set_count; s++)
            while (places[s] < c->sets[s]->count && c->sets[s]->ranges[places[s]].last < b << 8)
                places[s]++;
        status = fill_block(c, places, b << 8, block);
        if (status >= 0) status = wefti_map_add(&seen, block, 256, count, &number);
        if (status >= 0) r->blocks[b] = (uint16_t)number;
        if (status >= 0 && number == count) count++;
    }
    wefti_map_free(&seen);
    WEFT_TRY(status);
    r->class_of = wefti_arena_alloc(keep, (size_t)count * 256);
    WEFT_REQUIRE(r->class_of, WEFT_E_NOMEM, "no memory for a regular expression");
    memcpy(r->class_of, all, (size_t)count * 256);
    for (uint32_t p = 0; p < 128; p++) r->ascii[p] = (uint8_t)class_at(r, p);
    return WEFT_OK;
}

/* ---- automata ---- */

typedef struct threads {
    int32_t *at;
    int32_t count;
} threads;

typedef struct automaton_builder {
    compiler *c;
    int32_t width; /* classes + 1; also the class of an edge is `classes` */
    bool longest;  /* a match does not end the threads behind it */
    wefti_map states;
    const int32_t **keyed; /* [state]: class before, threads */
    int32_t *lengths;
    int32_t count;
    uint32_t *table;
    int64_t rows;
    int32_t *marks, mark; /* [step]: in the list already */
    int32_t *stack;
    threads next;
} automaton_builder;

/* The state of a list of threads; none of them: dead. */
static weft_status state_of(automaton_builder *b, int32_t before, const threads *list,
                            int32_t *out) {
    if (!list->count) {
        *out = DEAD;
        return WEFT_OK;
    }
    int32_t *key = wefti_arena_alloc(b->c->arena, ((size_t)list->count + 1) * sizeof *key);
    WEFT_REQUIRE(key, WEFT_E_NOMEM, "no memory for a regular expression");
    key[0] = b->c->r->looks_behind ? before : 0;
    memcpy(key + 1, list->at, (size_t)list->count * sizeof *key);
    int64_t number;
    WEFT_TRY(wefti_map_add(&b->states, key, (list->count + 1) * (int64_t)sizeof *key, b->count,
                           &number));
    *out = (int32_t)number;
    if (number < b->count) return WEFT_OK;
    if (b->count == REGEX_STATES || (int64_t)b->count * b->width > REGEX_ENTRIES)
        return too_large(b->c);
    b->keyed[b->count] = key;
    b->lengths[b->count++] = list->count;
    return WEFT_OK;
}

static bool looks(const automaton_builder *b, const regex_step *s, int32_t before, int32_t class) {
    int32_t at = s->behind ? before : class;
    return at == b->width - 1 ? s->edge : b->c->has[s->set * REGEX_CLASSES + at];
}

/* Follows one thread between the characters of two classes; what it can match of the second joins
 * `next`. True: the thread, or one that it became, matched; *out_stop: no thread behind it counts.
 */
static bool follow(automaton_builder *b, int32_t from, int32_t before, int32_t class,
                   bool *out_stop) {
    int32_t depth = 0;
    bool match = false;
    b->stack[depth++] = from;
    while (depth && !*out_stop) {
        int32_t at = b->stack[--depth];
        if (b->marks[at] == b->mark) continue;
        b->marks[at] = b->mark;
        const regex_step *s = &b->c->steps[at];
        switch (s->kind) {
        case STEP_MATCH:
            match = true;
            *out_stop = !b->longest;
            break;
        case STEP_FORK:
            b->stack[depth++] = s->other;
            b->stack[depth++] = s->next;
            break;
        case STEP_LOOK:
            if (looks(b, s, before, class)) b->stack[depth++] = s->next;
            break;
        case STEP_SET:
            if (class < b->width - 1 && b->c->has[s->set * REGEX_CLASSES + class])
                b->next.at[b->next.count++] = s->next;
        }
    }
    return match;
}

/* Several threads of a list may be at the same place; only the first counts. */
static void drop_doubles(automaton_builder *b) {
    int32_t used = 0;
    b->mark++;
    for (int32_t i = 0; i < b->next.count; i++) {
        int32_t at = b->next.at[i];
        if (b->marks[at] == b->mark) continue;
        b->marks[at] = b->mark;
        b->next.at[used++] = at;
    }
    b->next.count = used;
}

static weft_status fill_state(automaton_builder *b, int32_t state) {
    for (int32_t class = 0; class < b->width; class ++) {
        const int32_t *key = b->keyed[state];
        bool match = false, stop = false;
        int32_t to;
        b->mark++;
        b->next.count = 0;
        for (int32_t i = 0; i < b->lengths[state] && !stop; i++)
            match |= follow(b, key[i + 1], key[0], class, &stop);
        drop_doubles(b);
        WEFT_TRY(state_of(b, class, &b->next, &to));
        b->table[(int64_t)state * b->width + class] = (uint32_t)(to * b->width) << 1 | match;
    }
    return WEFT_OK;
}

/* Room for the row of every state so far. */
static weft_status grow_table(automaton_builder *b) {
    if (b->count <= b->rows) return WEFT_OK;
    int64_t rows = b->rows ? b->rows * 2 : 32;
    uint32_t *table = wefti_arena_alloc(b->c->arena, (size_t)(rows * b->width) * sizeof *table);
    WEFT_REQUIRE(table, WEFT_E_NOMEM, "no memory for a regular expression");
    if (b->rows) memcpy(table, b->table, (size_t)(b->rows * b->width) * sizeof *table);
    b->table = table;
    b->rows = rows;
    return grow_table(b);
}

static weft_status fill_automaton(automaton_builder *b, int32_t first, wefti_arena *keep,
                                  automaton *out) {
    out->starts = wefti_arena_alloc(keep, (size_t)b->width * sizeof *out->starts);
    WEFT_REQUIRE(out->starts, WEFT_E_NOMEM, "no memory for a regular expression");
    for (int32_t before = 0; before < b->width; before++) {
        WEFT_TRY(state_of(b, before, &(threads){&first, 1}, &out->starts[before]));
        out->starts[before] *= b->width;
    }
    for (int32_t state = DEAD + 1; state < b->count; state++) {
        WEFT_TRY(grow_table(b));
        WEFT_TRY(fill_state(b, state));
    }
    size_t bytes = (size_t)b->count * (size_t)b->width * sizeof *out->table;
    out->table = wefti_arena_alloc(keep, bytes);
    WEFT_REQUIRE(out->table, WEFT_E_NOMEM, "no memory for a regular expression");
    WEFT_TRY(grow_table(b));
    memcpy(out->table, b->table, bytes);
    return WEFT_OK;
}

static weft_status make_automaton(compiler *c, int32_t first, bool longest, wefti_arena *keep,
                                  automaton *out) {
    size_t steps = (size_t)c->count;
    automaton_builder b = {
        .c = c, .width = c->r->classes + 1, .longest = longest, .count = DEAD + 1};
    b.keyed = wefti_arena_alloc(c->arena, REGEX_STATES * sizeof *b.keyed);
    b.lengths = wefti_arena_alloc(c->arena, REGEX_STATES * sizeof *b.lengths);
    b.marks = wefti_arena_alloc(c->arena, steps * sizeof *b.marks);
    b.stack = wefti_arena_alloc(c->arena, (2 * steps + 2) * sizeof *b.stack);
    b.next.at = wefti_arena_alloc(c->arena, (steps + 1) * sizeof *b.next.at);
    WEFT_REQUIRE(b.keyed && b.lengths && b.marks && b.stack && b.next.at, WEFT_E_NOMEM,
                 "no memory for a regular expression");
    weft_status status = fill_automaton(&b, first, keep, out);
    wefti_map_free(&b.states);
    return status;
}

/* The program of a tree, with the loop that lets it begin anywhere if `out_anywhere`. */
static weft_status make_program(compiler *c, const wefti_regex_node *tree, bool reversed,
                                int32_t *out_here, int32_t *out_anywhere) {
    int32_t end, any, loop;
    c->reversed = reversed;
    WEFT_TRY(new_step(c, (regex_step){.kind = STEP_MATCH}, &end));
    WEFT_TRY(emit(c, tree, end, out_here));
    if (!out_anywhere) return WEFT_OK;
    wefti_charset *all = wefti_arena_alloc(c->arena, sizeof *all);
    WEFT_REQUIRE(all, WEFT_E_NOMEM, "no memory for a regular expression");
    WEFT_TRY(wefti_charset_invert(c->arena, all));
    regex_step anything = {.kind = STEP_SET};
    WEFT_TRY(set_number(c, all, &anything.set));
    WEFT_TRY(new_step(c, anything, &any));
    WEFT_TRY(new_step(c, (regex_step){.kind = STEP_FORK, .next = *out_here, .other = any}, &loop));
    c->steps[any].next = loop;
    *out_anywhere = loop;
    return WEFT_OK;
}

static weft_status compile(compiler *c, wefti_arena *keep, const wefti_regex_node *tree) {
    int32_t here, anywhere, back;
    WEFT_TRY(make_program(c, tree, false, &here, &anywhere));
    WEFT_TRY(make_program(c, tree, true, &back, NULL));
    WEFT_TRY(make_classes(c, keep));
    WEFT_TRY(make_automaton(c, here, false, keep, &c->r->here));
    WEFT_TRY(make_automaton(c, anywhere, false, keep, &c->r->anywhere));
    return make_automaton(c, back, true, keep, &c->r->back);
}

weft_status wefti_regex_compile(wefti_arena *arena, const char *pattern, const wefti_regex **out) {
    wefti_arena *scratch;
    wefti_regex_node *tree;
    compiler c = {.pattern = pattern};
    c.r = wefti_arena_alloc(arena, sizeof *c.r);
    WEFT_REQUIRE(c.r, WEFT_E_NOMEM, "no memory for a regular expression");
    WEFT_TRY(wefti_arena_create(&scratch));
    c.arena = scratch;
    weft_status status = wefti_regex_parse(scratch, pattern, &tree);
    if (status >= 0) status = compile(&c, arena, tree);
    wefti_arena_destroy(scratch);
    *out = c.r;
    return status;
}

weft_status wefti_regex_literal(wefti_arena *arena, const char *text, const wefti_regex **out) {
    wefti_regex *r = wefti_arena_alloc(arena, sizeof *r);
    char *literal = wefti_arena_strdup(arena, text);
    WEFT_REQUIRE(r && literal, WEFT_E_NOMEM, "no memory for a pattern");
    r->literal = (const unsigned char *)literal;
    r->literal_bytes = (int64_t)strlen(text);
    *out = r;
    return WEFT_OK;
}

/* ---- matching ---- */

static int class_next(const wefti_regex *r, const unsigned char *text, int64_t bytes,
                      int32_t *out) {
    if (text[0] < 128) {
        *out = r->ascii[text[0]];
        return 1;
    }
    uint32_t point;
    int length = wefti_utf8_next(text, bytes, &point);
    *out = class_at(r, point);
    return length;
}

/* The character that ends before text[at], at > 0. */
static int class_before(const wefti_regex *r, const unsigned char *text, int64_t at, int32_t *out) {
    uint32_t point = WEFTI_NO_CHARACTER;
    int length = 1;
    for (int tried = at < 4 ? (int)at : 4; tried >= 1; tried--) {
        length = tried;
        if (wefti_utf8_next(text + at - tried, tried, &point) == tried &&
            point != WEFTI_NO_CHARACTER)
            break;
        point = WEFTI_NO_CHARACTER;
    }
    *out = class_at(r, point);
    return length;
}

static int32_t start_at(const wefti_regex *r, const automaton *a, const unsigned char *text,
                        int64_t at) {
    int32_t before = r->classes; /* an edge */
    if (!r->looks_behind) return a->starts[0];
    if (at > 0) (void)class_before(r, text, at, &before);
    return a->starts[before];
}

/* Where a match from `at` on ends, or -1. */
static int64_t run(const wefti_regex *r, const automaton *a, const unsigned char *text,
                   int64_t bytes, int64_t at) {
    const uint32_t *table = a->table;
    uint32_t state = (uint32_t)start_at(r, a, text, at);
    int64_t last = -1;
    while (at < bytes) {
        int32_t class;
        int length = class_next(r, text + at, bytes - at, &class);
        uint32_t entry = table[state + (uint32_t) class];
        if (entry & 1) last = at;
        state = entry >> 1;
        if (state == DEAD) return last;
        at += length;
    }
    return table[state + (uint32_t)r->classes] & 1 ? bytes : last;
}

/* Where the longest match that ends at `end` begins, down to `from`. */
static int64_t run_back(const wefti_regex *r, const unsigned char *text, int64_t bytes,
                        int64_t from, int64_t end) {
    int32_t before = r->classes;
    if (end < bytes) (void)class_next(r, text + end, bytes - end, &before);
    uint32_t state = (uint32_t)r->back.starts[r->looks_behind ? before : 0];
    int64_t first = end, at = end;
    while (state != DEAD) {
        int32_t class = r->classes;
        int length = at > 0 ? class_before(r, text, at, &class) : 0;
        uint32_t entry = r->back.table[state + (uint32_t) class];
        if (entry & 1) first = at;
        if (at <= from) break;
        state = entry >> 1;
        at -= length;
    }
    return first;
}

static bool search_literal(const wefti_regex *r, const unsigned char *text, int64_t bytes,
                           wefti_regex_search *s) {
    int64_t last = bytes - r->literal_bytes; /* where it could begin at most */
    while (s->at <= last) {
        const unsigned char *hit = memchr(text + s->at, r->literal[0], (size_t)(last - s->at + 1));
        if (!hit) return false;
        s->first = hit - text;
        s->at = s->behind = s->first + r->literal_bytes;
        if (!memcmp(hit, r->literal, (size_t)r->literal_bytes)) return true;
        s->at = s->first + 1;
    }
    return false;
}

static bool search_once(const wefti_regex *r, const unsigned char *text, int64_t bytes,
                        wefti_regex_search *s) {
    s->first = s->at;
    s->behind = run(r, &r->here, text, bytes, s->at);
    if (s->behind >= 0) return true;
    s->behind = run(r, &r->anywhere, text, bytes, s->at);
    if (s->behind < 0) return false;
    s->first = run_back(r, text, bytes, s->at, s->behind);
    return true;
}

bool wefti_regex_next(const wefti_regex *r, const unsigned char *text, int64_t bytes,
                      wefti_regex_search *s) {
    if (r->literal) return search_literal(r, text, bytes, s);
    int64_t last = s->found ? s->behind : -1;
    while (s->at <= bytes && search_once(r, text, bytes, s)) {
        if (s->behind > s->first || s->behind != last) {
            s->found = true;
            s->at = s->behind;
            return true;
        }
        if (s->at == bytes) break;
        int32_t class;
        s->at += class_next(r, text + s->at, bytes - s->at, &class);
    }
    return false;
}
