/* Groups of a model whose parts may move to tiers below device memory, and the entries of a plan
 * that move them: see setup/movable.h. */
#include "setup/movable_walk.h"

#include <string.h>

#include "graph/graph.h"

enum { GROUP_SHARES = 8 };

const wefti_space wefti_movable_spaces[WEFTI_RESIDENCY_TIERS] = {WEFTI_SPACE_HOST,
                                                                 WEFTI_SPACE_DISK};
const weft_tier wefti_movable_tiers[WEFTI_RESIDENCY_TIERS] = {WEFT_TIER_HOST, WEFT_TIER_DISK};

weft_status wefti_movable_take(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory for what may leave device memory");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

/* ---- groups ---- */

static bool is_number(const char *text, size_t bytes) {
    return bytes > 0 && strspn(text, "0123456789") == bytes;
}

/* The bytes of a name up to its first number, or up to its last dot. *out_family: without the
 * number. "h.3" is its own unit. */
static size_t unit_bytes(const char *name, size_t *out_family) {
    const char *last = strrchr(name, '.');
    for (const char *at = name, *dot; (dot = strchr(at, '.')); at = dot + 1)
        if (is_number(at, (size_t)(dot - at))) {
            *out_family = (size_t)(at - name);
            return (size_t)(dot + 1 - name);
        }
    *out_family = last ? (size_t)(last + 1 - name) : strlen(name);
    return last && is_number(last + 1, strlen(last + 1)) ? strlen(name) : *out_family;
}

/* The pattern of all names that begin like this one. */
static const char *pattern_of(wefti_arena *arena, const char *name, size_t bytes) {
    char *out = wefti_arena_alloc(arena, bytes + 2);
    if (!out) return NULL;
    memcpy(out, name, bytes);
    if (name[bytes]) out[bytes] = '*';
    return out;
}

/* What entries with this `what` match. */
const wefti_movable_names *wefti_movable_names_of(const wefti_movable *m, int what) {
    return what == WEFT_OFFLOAD_SAVED ? &m->cells : &m->parameters;
}

const wefti_movable_name *wefti_movable_name_of(const wefti_movable_names *names,
                                                const char *name) {
    const int64_t i = wefti_map_find_text(&names->map, name);
    return i < 0 ? NULL : &names->items[i];
}

static weft_status add_name(wefti_movable_names *names, wefti_movable_name name) {
    names->items[names->count] = name;
    return wefti_map_add_text(&names->map, name.name, names->count++, NULL);
}

static int64_t bytes_of(const weft_graph *graph, const wefti_movable *m, const char *unit) {
    const weft_body *root = graph->root;
    int64_t bytes = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        const wefti_movable_name *p =
            v->kind == WEFTI_VALUE_PARAM ? wefti_movable_name_of(&m->parameters, v->name) : NULL;
        if (p && !strcmp(p->unit, unit)) bytes += weft_desc_bytes(&v->desc);
    }
    return bytes;
}

/* A block with its number is a cell of that path: "h.3" of "h.3.*". */
static weft_status add_cell(wefti_movable *m, const wefti_movable_name *p) {
    size_t family;
    const size_t unit = unit_bytes(p->name, &family);
    if (family == unit || p->name[unit - 1] != '.') return WEFT_OK;
    char *path = wefti_arena_strdup(m->arena, p->name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for what may leave device memory");
    path[unit - 1] = '\0';
    return wefti_movable_name_of(&m->cells, path)
               ? WEFT_OK
               : add_name(&m->cells, (wefti_movable_name){path, path, p->group});
}

/* The parameters in the order of their units. */
static weft_status divide(const weft_graph *graph, wefti_movable *m, int64_t all) {
    int64_t used = 0;
    wefti_map units = {0};
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < m->parameters.count && status >= 0; i++) {
        wefti_movable_name *p = &m->parameters.items[i];
        const char *unit = p->unit;
        int64_t group = wefti_map_find_text(&units, unit);
        if (group < 0) {
            const int64_t bytes = bytes_of(graph, m, unit);
            if (!m->groups || used + bytes > all / GROUP_SHARES) m->groups++, used = 0;
            used += bytes;
            group = m->groups - 1;
            status = wefti_map_add_text(&units, unit, group, NULL);
        }
        p->group = (int32_t)group;
        if (status >= 0) status = add_cell(m, p);
    }
    wefti_map_free(&units);
    return status;
}

weft_status wefti_movable_find(const weft_graph *graph, const weft_plan *plan, wefti_arena *arena,
                               wefti_movable *out) {
    const weft_body *root = graph->root;
    int64_t all = 0;
    *out = (wefti_movable){.arena = arena, .plan = plan};
    WEFT_TRY(
        wefti_movable_take(arena, root->in_count, sizeof *out->cells.items, &out->cells.items));
    WEFT_TRY(wefti_movable_take(arena, root->in_count, sizeof *out->cells.items,
                                &out->parameters.items));
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        size_t family;
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        const char *unit = pattern_of(arena, v->name, unit_bytes(v->name, &family));
        WEFT_REQUIRE(unit, WEFT_E_NOMEM, "no memory for what may leave device memory");
        WEFT_TRY(add_name(&out->parameters, (wefti_movable_name){v->name, unit, 0}));
        all += weft_desc_bytes(&v->desc);
    }
    WEFT_TRY(divide(graph, out, all));
    const int64_t candidates = (int64_t)WEFT_OFFLOADS * out->groups;
    WEFT_TRY(wefti_movable_take(arena, candidates, sizeof *out->candidates, &out->candidates));
    WEFT_TRY(wefti_movable_take(arena, candidates, sizeof *out->span_cap, &out->span_cap));
    return wefti_movable_take(arena, candidates, sizeof *out->spans, &out->spans);
}

void wefti_movable_free(wefti_movable *m) {
    for (int32_t i = 0; m->spans && i < WEFT_OFFLOADS * m->groups; i++) wefti_free(m->spans[i]);
    wefti_map_free(&m->parameters.map);
    wefti_map_free(&m->cells.map);
}

/* ---- entries ---- */

/* How entries name what moves: the first one that moves nothing else is used. */
typedef enum entry_form {
    ENTRY_ALL,
    ENTRY_FAMILIES,
    ENTRY_UNITS,
    ENTRY_NAMES,
    ENTRY_FORMS
} entry_form;

static weft_tier tier_of(const wefti_movable *m, const int8_t *tier, int what,
                         const wefti_movable_name *x) {
    const int to = tier[what * m->groups + x->group];
    return to == WEFTI_RESIDENCY_STAYS ? wefti_plan_tier(m->plan, (weft_offload)what, x->name)
                                       : wefti_movable_tiers[to];
}

/* Whether all whose names begin like this one have its tier. */
static bool family_moves(const wefti_movable *m, const int8_t *tier, int what,
                         const wefti_movable_name *x, size_t family) {
    const wefti_movable_names *names = wefti_movable_names_of(m, what);
    bool same = true;
    for (int32_t i = 0; i < names->count && same; i++)
        same = strncmp(names->items[i].name, x->name, family) != 0 ||
               tier_of(m, tier, what, &names->items[i]) == tier_of(m, tier, what, x);
    return same;
}

static weft_status add_entry(const wefti_movable *m, const int8_t *tier, int what,
                             const wefti_movable_name *x, entry_form form, weft_plan *plan) {
    size_t family;
    const size_t unit = unit_bytes(x->name, &family);
    const char *match = form == ENTRY_ALL ? "*" : form == ENTRY_NAMES ? x->name : x->unit;
    if (form == ENTRY_FAMILIES && family < unit && family_moves(m, tier, what, x, family))
        match = pattern_of(m->arena, x->name, family);
    WEFT_REQUIRE(match, WEFT_E_NOMEM, "no memory for what may leave device memory");
    return weft_plan_offload(plan, match, (weft_offload)what, tier_of(m, tier, what, x));
}

static bool says_it(const wefti_movable *m, const int8_t *tier, int what, const weft_plan *plan) {
    const wefti_movable_names *names = wefti_movable_names_of(m, what);
    for (int32_t p = 0; p < names->count; p++)
        if (wefti_plan_tier(plan, (weft_offload)what, names->items[p].name) !=
            tier_of(m, tier, what, &names->items[p]))
            return false;
    return true;
}

static weft_status add_entries(const wefti_movable *m, const int8_t *tier, int what,
                               weft_plan *plan) {
    const int64_t before = plan->offload.count;
    /* An entry replaces one of the plan that has the same pattern. */
    const wefti_movable_names *names = wefti_movable_names_of(m, what);
    const bool others = what == WEFT_OFFLOAD_SAVED; /* cells that are no candidates */
    const bool rules = m->plan->offload.count || m->plan->place.count;
    const entry_form first = rules ? ENTRY_NAMES : others ? ENTRY_FAMILIES : ENTRY_ALL;
    for (int form = (int)first; form < ENTRY_FORMS; form++) {
        plan->offload.count = before;
        for (int32_t p = 0; p < names->count; p++)
            if (tier[what * m->groups + names->items[p].group] != WEFTI_RESIDENCY_STAYS)
                WEFT_TRY(add_entry(m, tier, what, &names->items[p], (entry_form)form, plan));
        if (says_it(m, tier, what, plan)) break;
    }
    return WEFT_OK;
}

weft_status wefti_movable_rules(const wefti_movable *m, const int8_t *tier, weft_plan *plan) {
    for (int what = 0; what < WEFT_OFFLOADS; what++) WEFT_TRY(add_entries(m, tier, what, plan));
    return WEFT_OK;
}
