/* The text of a strategy: "m0=dp n0=tp+sp", or MindSpore's cuts for each input, "((2,1),(1,4))"
 * (the argument of its op.shard). Either may be followed by the layout of the result, "-> [dp,
 * tp]". See plan/plan.h. */
#include "plan/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { SPLITS_MAX = 32, INPUTS_MAX = 32, CUT_MAX = 1 << 20 };

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a strategy");
}

static weft_status unknown_axis(const wefti_mesh *mesh, const char *name) {
    const char *names[WEFTI_MAX_AXES + 1] = {0};
    char list[256] = "";
    int used = 0;
    for (int a = 0; a < mesh->axes; a++) {
        names[a] = mesh->axis[a].name;
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s=%d", a ? ", " : "",
                         names[a], (int)mesh->axis[a].size);
    }
    const char *near = weft_nearest(name, names);
    WEFT_FAIL(WEFT_E_ARG, "the mesh has no axis '%s'; it has %s%s%s%s", name, list,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- factors and dimensions ---- */

/* Whether `what` names a dimension, such as "1" or "in0.1". Two dimensions may have the same
 * factor. Other names are factors. */
static bool is_dimension(const char *what) {
    return isdigit((unsigned char)*what) || strchr(what, '.') != NULL;
}

static weft_status check_what(const char *what) {
    bool word = *what != '\0';
    for (const char *p = what; *p; p++)
        word = word && (isalnum((unsigned char)*p) || *p == '_' || *p == '.');
    int input, dimension, end = 0;
    if (word && is_dimension(what)) {
        bool number = strspn(what, "0123456789") == strlen(what);
        bool of_in = sscanf(what, "in%2d.%2d%n", &input, &dimension, &end) == 2 && !what[end];
        bool of_out = sscanf(what, "out%2d.%2d%n", &input, &dimension, &end) == 2 && !what[end];
        word = number || of_in || of_out;
    }
    WEFT_REQUIRE(
        word, WEFT_E_ARG,
        "'%.40s' names nothing to split: a factor of the op's split rule (n0), a dimension "
        "of its first input (1), of an input (in1.0) or of an output (out0.1)",
        what);
    return WEFT_OK;
}

/* Parses axes joined by +; modifies `text`. */
static weft_status parse_axes(const wefti_mesh *mesh, char *text, wefti_split *split) {
    char *rest = text;
    while (rest) {
        char *name = strsep(&rest, "+");
        int axis = wefti_mesh_find(mesh, name);
        if (axis < 0) return unknown_axis(mesh, name);
        for (int i = 0; i < split->count; i++)
            WEFT_REQUIRE(split->axis[i] != axis, WEFT_E_ARG, "axis %s splits %s twice", name,
                         split->what);
        split->axis[split->count++] = (int8_t)axis; /* no axis occurs twice, so there is room */
    }
    return WEFT_OK;
}

static weft_status check_shared(const weft_plan *plan, const wefti_split *splits, int count) {
    const wefti_split *last = &splits[count - 1];
    for (int i = 0; i < count - 1; i++) {
        WEFT_REQUIRE(strcmp(splits[i].what, last->what) != 0, WEFT_E_ARG,
                     "%s is split twice; name all its axes in one place, as %s=dp+tp", last->what,
                     last->what);
        if (is_dimension(splits[i].what) || is_dimension(last->what)) continue;
        for (int a = 0; a < splits[i].count; a++)
            for (int b = 0; b < last->count; b++)
                WEFT_REQUIRE(splits[i].axis[a] != last->axis[b], WEFT_E_ARG,
                             "axis %s splits both %s and %s; it can split one of them",
                             plan->mesh.axis[last->axis[b]].name, splits[i].what, last->what);
    }
    return WEFT_OK;
}

static weft_status parse_splits(const weft_plan *plan, char *text, wefti_strategy *out) {
    wefti_split splits[SPLITS_MAX];
    int count = 0;
    char *rest = text;
    for (char *item; (item = strsep(&rest, " \t"));) {
        if (!*item) continue;
        char *equals = strchr(item, '=');
        WEFT_REQUIRE(equals && equals != item && equals[1], WEFT_E_ARG,
                     "'%.60s' is no split: write what=axis, as n0=tp or m0=dp+sp, or cuts for each "
                     "input, as ((2,1),(1,4))",
                     item);
        WEFT_REQUIRE(count < SPLITS_MAX, WEFT_E_ARG, "more than %d splits", SPLITS_MAX);
        *equals = '\0';
        wefti_split *split = &splits[count++];
        *split = (wefti_split){0};
        WEFT_TRY(check_what(item));
        WEFT_REQUIRE(strlen(item) < sizeof split->what, WEFT_E_ARG,
                     "'%.40s' is too long for a factor's name", item);
        memcpy(split->what, item, strlen(item) + 1);
        WEFT_TRY(parse_axes(&plan->mesh, equals + 1, split));
        WEFT_TRY(check_shared(plan, splits, count));
    }
    if (count) {
        out->splits = wefti_arena_alloc(plan->arena, (size_t)count * sizeof *splits);
        if (!out->splits) return no_memory();
        memcpy(out->splits, splits, (size_t)count * sizeof *splits);
    }
    out->split_count = count;
    return WEFT_OK;
}

/* ---- cuts ---- */

typedef struct cut_reader {
    const char *text, *at;
    int64_t cuts[INPUTS_MAX * WEFT_MAX_RANK];
    int32_t ranks[INPUTS_MAX];
    int32_t inputs, count;
} cut_reader;

static bool passed(cut_reader *r, char c) {
    r->at += strspn(r->at, " ");
    if (*r->at != c) return false;
    r->at++;
    return true;
}

static weft_status not_cuts(const cut_reader *r) {
    WEFT_FAIL(WEFT_E_ARG,
              "'%.80s' is not of the form ((2,1),(1,4)), which has for each input in parentheses "
              "the parts of each dimension (character %d)",
              r->text, (int)(r->at - r->text) + 1);
}

/* Parses numbers up to the closing parenthesis. A comma may follow the last one, as in Python. */
static weft_status parse_input(cut_reader *r) {
    int32_t rank = 0;
    while (!passed(r, ')')) {
        WEFT_REQUIRE(rank < WEFT_MAX_RANK, WEFT_E_ARG,
                     "'%.80s': input %d has more than %d dimensions", r->text, r->inputs,
                     WEFT_MAX_RANK);
        if (!isdigit((unsigned char)*r->at)) return not_cuts(r);
        int64_t cut = 0;
        for (; isdigit((unsigned char)*r->at) && cut <= CUT_MAX; r->at++)
            cut = cut * 10 + (*r->at - '0');
        WEFT_REQUIRE(cut >= 1 && cut <= CUT_MAX, WEFT_E_ARG,
                     "'%.80s': dimension %d of input %d is cut into %lld; 1 leaves it whole",
                     r->text, rank, r->inputs, (long long)cut);
        r->cuts[r->count++] = cut;
        rank++;
        if (!passed(r, ',')) {
            if (!passed(r, ')')) return not_cuts(r);
            break;
        }
    }
    r->ranks[r->inputs++] = rank;
    return WEFT_OK;
}

static weft_status parse_cuts(const weft_plan *plan, const char *text, wefti_strategy *out) {
    cut_reader r = {.text = text, .at = text};
    if (!passed(&r, '(')) return not_cuts(&r);
    while (!passed(&r, ')')) {
        WEFT_REQUIRE(r.inputs < INPUTS_MAX, WEFT_E_ARG, "'%.80s': more than %d inputs", text,
                     INPUTS_MAX);
        if (!passed(&r, '(')) return not_cuts(&r);
        WEFT_TRY(parse_input(&r));
        if (!passed(&r, ',')) {
            if (!passed(&r, ')')) return not_cuts(&r);
            break;
        }
    }
    r.at += strspn(r.at, " ");
    if (*r.at || !r.inputs) return not_cuts(&r);
    out->cuts = wefti_arena_alloc(plan->arena, ((size_t)r.count + 1) * sizeof *r.cuts);
    out->cut_ranks = wefti_arena_alloc(plan->arena, (size_t)r.inputs * sizeof *r.ranks);
    if (!out->cuts || !out->cut_ranks) return no_memory();
    memcpy(out->cuts, r.cuts, (size_t)r.count * sizeof *r.cuts);
    memcpy(out->cut_ranks, r.ranks, (size_t)r.inputs * sizeof *r.ranks);
    out->cut_inputs = r.inputs;
    return WEFT_OK;
}

/* ---- the result ---- */

static weft_status parse_result(const weft_plan *plan, const char *text, wefti_strategy *out) {
    text += strspn(text, " \t");
    WEFT_REQUIRE(*text != '(', WEFT_E_ARG,
                 "'-> %.60s': a result's layout names axes, as -> [dp+tp, -]", text);
    wefti_layout layout;
    WEFT_TRY(wefti_layout_parse(text, &plan->mesh, &layout));
    WEFT_REQUIRE(!layout.sum && !layout.max, WEFT_E_ARG,
                 "'-> %.60s': a result is partial where a summed factor is split, not because its "
                 "layout says so",
                 text);
    out->out = wefti_arena_alloc(plan->arena, sizeof layout);
    if (!out->out) return no_memory();
    *out->out = layout;
    return WEFT_OK;
}

weft_status wefti_split_parse(const weft_plan *plan, const char *text, wefti_strategy *out) {
    text += strspn(text, " \t");
    wefti_strategy parsed = {0};
    char *copy = wefti_strdup(text);
    if (!copy) return no_memory();
    char *arrow = strstr(copy, "->");
    if (arrow) *arrow = '\0';
    weft_status status =
        *text == '(' ? parse_cuts(plan, copy, &parsed) : parse_splits(plan, copy, &parsed);
    wefti_free(copy);
    WEFT_TRY(status);
    if (arrow) WEFT_TRY(parse_result(plan, strstr(text, "->") + 2, &parsed));
    *out = parsed;
    return WEFT_OK;
}

void wefti_split_print(const weft_plan *plan, const wefti_strategy *strategy, wefti_text *out) {
    const int64_t *cut = strategy->cuts;
    for (int32_t i = 0; i < strategy->split_count; i++) {
        const wefti_split *split = &strategy->splits[i];
        wefti_text_add(out, "%s%s=", i ? " " : "", split->what);
        for (int a = 0; a < split->count; a++)
            wefti_text_add(out, "%s%s", a ? "+" : "", plan->mesh.axis[split->axis[a]].name);
    }
    for (int32_t i = 0; i < strategy->cut_inputs && cut; i++) {
        wefti_text_add(out, i ? ",(" : "((");
        for (int32_t d = 0; d < strategy->cut_ranks[i]; d++)
            wefti_text_add(out, "%s%lld", d ? "," : "", (long long)*cut++);
        wefti_text_add(out, i + 1 == strategy->cut_inputs ? "))" : ")");
    }
    if (strategy->out)
        wefti_text_add(out, "%s-> %s", cut || strategy->split_count ? " " : "",
                       wefti_layout_text(strategy->out, &plan->mesh).text);
}
