/* The differences of two plans, one per line: "mesh.tp: 4 -> 2". Compares the printed plans, key by
 * key and list by list, so that it covers every setting. List entries with a "match" are compared
 * by that match. Their order counts too, since the last entry that matches decides. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"

enum { PATH = 256 };

static void write_value(const wefti_json *value, wefti_text *out) {
    bool first = true;
    switch (value->kind) {
    case WEFTI_JSON_NULL:
        wefti_text_add(out, "null");
        return;
    case WEFTI_JSON_BOOL:
        wefti_text_add(out, value->as.boolean ? "true" : "false");
        return;
    case WEFTI_JSON_INT:
        wefti_text_add(out, "%lld", (long long)value->as.integer);
        return;
    case WEFTI_JSON_REAL:
        wefti_json_real(out, value->as.real);
        return;
    case WEFTI_JSON_TEXT:
        wefti_text_add(out, "'%s'", value->as.text);
        return;
    case WEFTI_JSON_ARRAY:
    case WEFTI_JSON_OBJECT:
        wefti_text_add(out, value->kind == WEFTI_JSON_ARRAY ? "[" : "{");
        WEFTI_JSON_EACH(item, value) {
            if (!first) wefti_text_add(out, ", ");
            if (item->key) wefti_text_add(out, "%s: ", item->key);
            write_value(item, out);
            first = false;
        }
        wefti_text_add(out, value->kind == WEFTI_JSON_ARRAY ? "]" : "}");
        return;
    }
}

static bool equal(const wefti_json *a, const wefti_json *b) {
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case WEFTI_JSON_NULL:
        return true;
    case WEFTI_JSON_BOOL:
        return a->as.boolean == b->as.boolean;
    case WEFTI_JSON_INT:
        return a->as.integer == b->as.integer;
    case WEFTI_JSON_REAL:
        return a->as.real == b->as.real;
    case WEFTI_JSON_TEXT:
        return !strcmp(a->as.text, b->as.text);
    case WEFTI_JSON_ARRAY:
    case WEFTI_JSON_OBJECT:
        break;
    }
    if (a->count != b->count) return false;
    const wefti_json *x = a->as.child, *y = b->as.child;
    for (; x; x = x->next, y = y->next)
        if ((x->key && strcmp(x->key, y->key) != 0) || !equal(x, y)) return false;
    return true;
}

/* Prints one line; NULL stands for a missing value. */
static void differ(const char *path, const wefti_json *a, const wefti_json *b, wefti_text *out) {
    wefti_text_add(out, "%s: ", path);
    if (a) write_value(a, out);
    if (a && b) wefti_text_add(out, " -> ");
    if (b && !a) wefti_text_add(out, "added ");
    if (b) write_value(b, out);
    if (a && !b) wefti_text_add(out, " removed");
    wefti_text_add(out, "\n");
}

/* Entry number `nth`, from 0, among the list's entries with this match. */
static const wefti_json *find(const wefti_json *list, const char *match, int nth) {
    WEFTI_JSON_EACH(item, list) {
        const wefti_json *m = wefti_json_get(item, "match");
        if (m && !strcmp(m->as.text, match) && nth-- == 0) return item;
    }
    return NULL;
}
/* How many entries before `entry` have its match: equal matches are distinguished by their
 * order. */
static int number(const wefti_json *list, const wefti_json *entry, const char *match) {
    int before = 0;
    for (const wefti_json *item = list->as.child; item != entry; item = item->next)
        before += !strcmp(wefti_json_get(item, "match")->as.text, match);
    return before;
}

static bool is_matched(const wefti_json *list) {
    return list->count && wefti_json_get(list->as.child, "match");
}

/* What an entry says of its match: the one other value, or an object of the other values. */
static wefti_json rest_of(const wefti_json *entry) {
    if (entry->count == 2) return *entry->as.child->next;
    wefti_json rest = *entry;
    rest.as.child = entry->as.child->next;
    rest.count--;
    return rest;
}

static void diff_matched(const char *path, const wefti_json *a, const wefti_json *b,
                         wefti_text *out) {
    bool moved = false;
    const wefti_json *last = NULL; /* in b, of the entries that are in both */
    WEFTI_JSON_EACH(item, a) {
        const char *match = wefti_json_get(item, "match")->as.text;
        const wefti_json *other = find(b, match, number(a, item, match));
        const wefti_json rest = rest_of(item), of_other = other ? rest_of(other) : rest;
        char inner[PATH];
        snprintf(inner, sizeof inner, "%s[%.160s]", path, match);
        if (!other || !equal(item, other)) differ(inner, &rest, other ? &of_other : NULL, out);
        if (!other) continue;
        bool behind = !last;
        for (const wefti_json *at = last; at && !behind; at = at->next) behind = at == other;
        moved = moved || !behind;
        last = other;
    }
    WEFTI_JSON_EACH(item, b) {
        const char *match = wefti_json_get(item, "match")->as.text;
        char inner[PATH];
        if (find(a, match, number(b, item, match))) continue;
        snprintf(inner, sizeof inner, "%s[%.160s]", path, match);
        const wefti_json rest = rest_of(item);
        differ(inner, NULL, &rest, out);
    }
    if (moved) wefti_text_add(out, "%s: in another order\n", path);
}

static void diff(const char *path, const wefti_json *a, const wefti_json *b, wefti_text *out) {
    if (equal(a, b)) return;
    bool lists = a->kind == WEFTI_JSON_ARRAY && b->kind == WEFTI_JSON_ARRAY;
    if (lists && (is_matched(a) || is_matched(b))) {
        diff_matched(path, a, b, out);
        return;
    }
    /* the order of a mesh's axes is the order of the ranks */
    bool open = a->kind == WEFTI_JSON_OBJECT && b->kind == WEFTI_JSON_OBJECT;
    if (!open || !strcmp(path, "mesh")) {
        differ(path, a, b, out);
        return;
    }
    char inner[PATH];
    WEFTI_JSON_EACH(member, a) {
        const wefti_json *other = wefti_json_get(b, member->key);
        snprintf(inner, sizeof inner, "%.120s%s%s", path, *path ? "." : "", member->key);
        if (other)
            diff(inner, member, other, out);
        else
            differ(inner, member, NULL, out);
    }
    WEFTI_JSON_EACH(member, b) {
        if (wefti_json_get(a, member->key)) continue;
        snprintf(inner, sizeof inner, "%.120s%s%s", path, *path ? "." : "", member->key);
        differ(inner, NULL, member, out);
    }
}

static weft_status tree_of(const weft_plan *plan, wefti_arena *arena, const wefti_json **out) {
    static const wefti_json_limits limits = {.depth = 8, .members = 64, .array_items = INT32_MAX};
    char *text;
    WEFT_TRY(wefti_plan_print(plan, &text));
    weft_status status = wefti_json_parse(arena, text, (int64_t)strlen(text), &limits, out);
    wefti_free(text);
    return status;
}

static weft_status diff_trees(const weft_plan *a, const weft_plan *b, wefti_arena *arena,
                              char **out) {
    const wefti_json *first, *second;
    wefti_text text = {0};
    WEFT_TRY(tree_of(a, arena, &first));
    WEFT_TRY(tree_of(b, arena, &second));
    diff("", first, second, &text);
    char *taken = wefti_text_take(&text);
    WEFT_REQUIRE(taken, WEFT_E_NOMEM, "no memory for the differences of two plans");
    *out = taken;
    return WEFT_OK;
}

weft_status weft_plan_diff(const weft_plan *a, const weft_plan *b, char **out) {
    WEFT_REQUIRE(a && b && out, WEFT_E_ARG, "weft_plan_diff needs two plans and a place for text");
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = diff_trees(a, b, arena, out);
    wefti_arena_destroy(arena);
    return status;
}
