/* Partitions that are already made: a request that is equal to an earlier one gets its result. */
#include <string.h>

#include "partition/context.h"

/* ---- equivalent strategies ---- */

static bool same_layouts(const wefti_layout *a, const wefti_layout *b, const uint8_t *state,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if ((!state || state[i] <= WEFTI_LAYOUT_GIVEN_LATE) && !wefti_layout_equal(&a[i], &b[i]))
            return false;
    return true;
}

static bool same_late(const wefti_layout *a, const wefti_layout *b, const uint8_t *state,
                      int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (state[i] == WEFTI_LAYOUT_GIVEN_LATE && !wefti_layout_equal(&a[i], &b[i])) return false;
    return true;
}

static bool same_states(const uint8_t *a, const uint8_t *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if ((a ? a[i] : 0) != (b ? b[i] : 0)) return false;
    return true;
}

static bool says_nothing(const wefti_strategy *s) {
    return !s || (!s->cuts && s->split_count == 0 && !s->out);
}

static bool say_the_same(const wefti_strategy *a, const wefti_strategy *b) {
    if (a->split_count != b->split_count || a->cut_inputs != b->cut_inputs) return false;
    for (int32_t k = 0; k < a->split_count; k++)
        if (strcmp(a->splits[k].what, b->splits[k].what) != 0 ||
            a->splits[k].count != b->splits[k].count ||
            memcmp(a->splits[k].axis, b->splits[k].axis, (size_t)a->splits[k].count) != 0)
            return false;
    if (!a->out != !b->out || (a->out && !wefti_layout_equal(a->out, b->out))) return false;
    int64_t cuts = 0;
    for (int32_t i = 0; i < a->cut_inputs; i++) {
        if (a->cut_ranks[i] != b->cut_ranks[i]) return false;
        cuts += a->cut_ranks[i];
    }
    return !cuts || !memcmp(a->cuts, b->cuts, (size_t)cuts * sizeof *a->cuts);
}

/* Number of the first equivalent strategy among those that name an op. So equal cells are
 * partitioned once, even if the plan names each of them. Strategies without an op are equivalent
 * only to themselves. */
static int32_t meaning_of(wefti_partition *p, const wefti_strategy *s) {
    if (says_nothing(s)) return -1;
    int32_t *known = &p->meaning[s - p->plan->strategies];
    for (int32_t i = 0; *known == 0; i++) {
        const wefti_strategy *first = &p->plan->strategies[i];
        if (first == s || (say_the_same(first, s) && first->op && s->op)) *known = i + 1;
    }
    return *known;
}

static bool same_strategies(wefti_partition *p, const wefti_strategy *const *a,
                            const wefti_strategy *const *b, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        if (a[k] != b[k] && meaning_of(p, a[k]) != meaning_of(p, b[k])) return false;
    return true;
}

const wefti_partition_entry *wefti_partition_find_entry(wefti_partition *p,
                                                        const wefti_partition_spec *spec,
                                                        const wefti_strategy *const *strategies) {
    const weft_body *b = spec->body;
    const uint64_t request[2] = {(uintptr_t)b, spec->tag};
    const wefti_partition_entry *x;
    for (int64_t e = wefti_map_find(&p->by_request, request, sizeof request); e >= 0; e = x->next) {
        x = p->entries[e];
        if (same_strategies(p, x->strategies, strategies, b->node_count) &&
            same_states(x->in_state, spec->in_state, b->in_count) &&
            same_layouts(x->required_in, spec->in, spec->in_state, b->in_count) &&
            (spec->out_state != NULL) == (x->out_state != NULL) &&
            (!spec->out_state ||
             (same_states(x->out_state, spec->out_state, b->out_count) &&
              same_layouts(x->required_out, spec->out, spec->out_state, b->out_count) &&
              same_late(x->late, spec->late, spec->out_state, b->out_count))))
            return x;
    }
    return NULL;
}

wefti_partition_entry *wefti_partition_entry_of(const wefti_partition *p, const weft_body *local) {
    const int64_t e = wefti_map_find(&p->by_body, &local, sizeof local);
    return e < 0 ? NULL : p->entries[e];
}

weft_status wefti_partition_keep_entry(wefti_partition *p, wefti_partition_entry *e) {
    const int64_t number = p->entry_count;
    int64_t first;
    WEFT_TRY(WEFT_GROW(p->entries, number, p->entry_cap));
    WEFT_TRY(wefti_map_reserve(&p->by_request, number + 1)); /* no key without its entry */
    WEFT_TRY(wefti_map_reserve(&p->by_body, number + 1));
    WEFT_TRY(wefti_map_add(&p->by_request, e->request, sizeof e->request, number, &first));
    WEFT_TRY(wefti_map_add(&p->by_body, &e->result.body, sizeof e->result.body, number, NULL));
    p->entries[number] = e;
    p->entry_count++;
    e->next = -1;
    if (first != number) p->entries[p->entries[first]->last]->next = number;
    p->entries[first]->last = number;
    return WEFT_OK;
}

static weft_status keep(wefti_partition *p, const void *from, int64_t count, size_t bytes,
                        void *out) {
    if (!from) return WEFT_OK;
    WEFT_TRY(wefti_partition_array(p->arena, count, bytes, out));
    void *to;
    memcpy(&to, out, sizeof to);
    if (count) memcpy(to, from, (size_t)count * bytes);
    return WEFT_OK;
}

weft_status wefti_partition_new_entry(wefti_partition *p, const wefti_partition_spec *spec,
                                      const wefti_strategy *const *strategies,
                                      wefti_partition_entry **out) {
    const weft_body *b = spec->body;
    wefti_partition_entry *e;
    WEFT_TRY(wefti_partition_array(p->arena, 1, sizeof *e, &e));
    e->key = b;
    WEFT_TRY(keep(p, strategies, b->node_count, sizeof *strategies, &e->strategies));
    e->request[0] = (uintptr_t)b;
    e->request[1] = spec->tag;
    WEFT_TRY(keep(p, spec->in, b->in_count, sizeof *spec->in, &e->required_in));
    WEFT_TRY(keep(p, spec->in_state, b->in_count, 1, &e->in_state));
    WEFT_TRY(keep(p, spec->out_state, b->out_count, 1, &e->out_state));
    if (spec->out_state)
        WEFT_TRY(keep(p, spec->out, b->out_count, sizeof *spec->out, &e->required_out));
    WEFT_TRY(keep(p, spec->late, b->out_count, sizeof *spec->late, &e->late));
    *out = e;
    return WEFT_OK;
}
