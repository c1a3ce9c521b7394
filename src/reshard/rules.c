/* Layouts by rules: patterns of names, and the dimension that is split. See layouts.h, source.h. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "reshard/source.h"
#include "tensor/tensor.h"

static weft_status check_rules(const weft_checkpoint_slice_rule *rules, int count) {
    WEFT_REQUIRE(count >= 0, WEFT_E_ARG, "there are %d rules", count);
    for (int i = 0; i < count; i++) {
        WEFT_REQUIRE(*rules[i].match && wefti_glob_valid(rules[i].match), WEFT_E_ARG,
                     "'%.200s' is not a pattern for names of tensors", rules[i].match);
        WEFT_REQUIRE(rules[i].dimension >= WEFTI_SPLIT_NONE && rules[i].dimension < WEFT_MAX_RANK,
                     WEFT_E_ARG,
                     "'%.200s' is split along dimension %d; there are 0 to %d, and -1 for none",
                     rules[i].match, rules[i].dimension, WEFT_MAX_RANK - 1);
    }
    return WEFT_OK;
}

static weft_status take_rules(wefti_layouts *l, const weft_checkpoint_slice_rule *rules, int count,
                              int32_t ranks) {
    WEFT_TRY(check_rules(rules, count));
    l->ranks = ranks;
    l->rules = rules;
    l->rule_count = count;
    l->matched = wefti_calloc((size_t)count + 1, sizeof *l->matched);
    WEFT_REQUIRE(l->matched, WEFT_E_NOMEM, "no memory for %d rules", count);
    return WEFT_OK;
}

/* "w=1", or "w=-". */
static bool parse_rule(char *text, weft_checkpoint_slice_rule *out) {
    char *equals = strrchr(text, '=');
    if (!equals || !equals[1] || equals[2]) return false;
    const bool whole = equals[1] == '-';
    *equals = '\0';
    *out = (weft_checkpoint_slice_rule){text, whole ? WEFTI_SPLIT_NONE : equals[1] - '0'};
    return whole || (out->dimension >= 0 && out->dimension < WEFT_MAX_RANK);
}

static weft_status take_text(wefti_layouts *l, const char *text) {
    char *end, *at = wefti_arena_strdup(l->arena, text), *next;
    weft_checkpoint_slice_rule *rules =
        wefti_arena_alloc(l->arena, (strlen(text) + 1) * sizeof *rules);
    WEFT_REQUIRE(at && rules, WEFT_E_NOMEM, "no memory for rules");
    int count = 0;
    const long ranks = strtol(at, &end, 10);
    bool good = *end == ':' && ranks >= 1 && ranks <= WEFTI_RULES_RANKS;
    for (at = end + 1; good && at; at = next) {
        next = strchr(at, ',');
        if (next) *next++ = '\0';
        good = parse_rule(at, &rules[count++]);
    }
    WEFT_REQUIRE(good, WEFT_E_ARG,
                 "'%.200s' is neither a file nor a number of ranks with rules, as in "
                 "4:h.*.weight=1,h.*.bias=0",
                 text);
    return take_rules(l, rules, count, (int32_t)ranks);
}

static weft_status open_rules(const char *text, const weft_checkpoint_slice_rule *rules, int count,
                              int32_t ranks, wefti_layouts **out) {
    wefti_layouts *l = NULL;
    WEFT_TRY(wefti_layouts_create(text, &l));
    weft_status status = ranks ? take_rules(l, rules, count, ranks) : take_text(l, text);
    if (status < 0)
        wefti_layouts_close(l);
    else
        *out = l;
    return status;
}

weft_status wefti_layouts_of_rules(const weft_checkpoint_slice_rule *rules, int count,
                                   int32_t ranks, wefti_layouts **out) {
    return open_rules("the list of rules", rules, count, ranks, out);
}

weft_status wefti_layouts_parse_rules(const char *text, wefti_layouts **out) {
    return open_rules(text, NULL, 0, 0, out);
}

weft_status wefti_layouts_check_matched(const wefti_layouts *l, const char *path) {
    for (int i = 0; i < l->rule_count; i++)
        WEFT_REQUIRE(l->matched[i], WEFT_E_ARG, "'%.200s' matches no tensor of %s",
                     l->rules[i].match, path);
    return WEFT_OK;
}

/* The dimension along which rules split a tensor, WEFTI_SPLIT_NONE or WEFTI_SPLIT_UNSAID. Marks the
 * rules that match. `of` as for wefti_layouts_find. */
static int dimension_of(const wefti_layouts *l, const char *name, const char *of) {
    int dimension = WEFTI_SPLIT_UNSAID;
    for (int i = 0; i < l->rule_count; i++) {
        const char *match = l->rules[i].match;
        if (!wefti_glob_match(match, name) && !(of && wefti_glob_match(match, of))) continue;
        l->matched[i] = true;
        dimension = l->rules[i].dimension;
    }
    return dimension;
}

weft_status wefti_layouts_find_by_rules(const wefti_layouts *l, const char *name, const char *of,
                                        const weft_desc *whole, wefti_placement **out,
                                        int32_t *out_count) {
    const int dimension = dimension_of(l, name, of);
    if (dimension < 0) return WEFT_OK; /* whole on every rank */
    WEFT_REQUIRE(dimension < whole->rank, WEFT_E_SHAPE,
                 "tensor \"%.200s\" is %s; it cannot be split along dimension %d", name,
                 wefti_desc_text(whole).text, dimension);
    wefti_placement *p;
    WEFT_NEW(p, wefti_placement);
    *p = (wefti_placement){.name = name, .rank = whole->rank, .shard_size = 1, .shard_step = 1};
    p->mesh.axes = 1;
    p->mesh.axis[0] = (wefti_axis){.name = "rank", .size = l->ranks};
    p->layout = wefti_layout_replicated(whole->rank);
    p->layout.dim[dimension].count = 1;
    p->next = -1;
    *out = p;
    *out_count = 1;
    return WEFT_OK;
}

/* An optimizer's tensor with another shape than its parameter cannot be split like the parameter,
 * and is most likely not whole either: the caller must name it. */
static weft_status check_other_shapes(const wefti_shards *s, const int *dimensions) {
    for (int64_t k = 0; k < s->count; k++) {
        const wefti_source_tensor *t = &s->tensors[k], *of = wefti_shards_before(s, t);
        if (dimensions[k] != WEFTI_SPLIT_UNSAID || weft_desc_elems(&t->desc) <= 1 || !of) continue;
        const int dimension = dimensions[of - s->tensors];
        WEFT_REQUIRE(dimension < 0, WEFT_E_SHAPE,
                     "tensor \"%.200s\" is %s: say along which dimension it is split, because its "
                     "parameter \"%.200s\", %s, is split along dimension %d",
                     t->name, wefti_desc_text(&t->desc).text, of->name,
                     wefti_desc_text(&of->desc).text, dimension);
    }
    return WEFT_OK;
}

weft_status wefti_shards_dimensions(const wefti_shards *s, const wefti_layouts *l, int *out) {
    for (int64_t k = 0; k < s->count; k++) {
        const wefti_source_tensor *t = &s->tensors[k], *of = wefti_shards_parameter(s, t);
        out[k] = dimension_of(l, t->name, of ? of->name : NULL);
        WEFT_REQUIRE(out[k] < t->desc.rank, WEFT_E_SHAPE,
                     "%s: tensor \"%.200s\" is %s; it cannot be split along dimension %d", s->path,
                     t->name, wefti_desc_text(&t->desc).text, out[k]);
    }
    WEFT_TRY(wefti_layouts_check_matched(l, s->path));
    return check_other_shapes(s, out);
}
