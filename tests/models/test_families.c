/* The table of families (models/family.h) says the truth of each family, and other tables have
 * what a family needs: splits for plans, equal blocks for the search. A family that lacks a row
 * would train and plan, but slowly, without a word. */
#include "model_fixture.h"

#include "base/text.h"
#include "graph/graph.h"
#include "models/splits.h"
#include "partition/partition.h"

enum { LAYERS = 6, NAME = 600 };

/* adapter: the layer that has adapters; NULL: none. */
static weft_graph *deep(weft_family family, const char *adapter) {
    weft_model_config c = tiny(family);
    if (adapter) {
        c.lora.rank = 1;
        (void)snprintf(c.lora.targets, sizeof c.lora.targets, "%s", adapter);
    }
    if (wefti_family_has(family, WEFTI_LAYERS)) c.layers = LAYERS;
    return built(&c, WEFT_USE_TRAIN, 2, 0, WEFT_F32);
}

/* The body of block `number`, the cell whose scope has this number as a component. */
static const weft_body *block_of(const weft_graph *g, int number) {
    char text[16];
    (void)snprintf(text, sizeof text, ".%d", number);
    const size_t length = strlen(text);
    for (int64_t i = 0; i < g->root->node_count; i++) {
        const weft_node *n = &g->root->nodes[i];
        const size_t all = n->callee ? strlen(n->scope) : 0;
        if (all > length && !strcmp(n->scope + all - length, text)) return n->callee;
    }
    return NULL;
}

static void blocks_are_equal(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        weft_graph *g = deep((weft_family)f, NULL);
        bool equal = wefti_family_has((weft_family)f, WEFTI_HEADS);
        for (int k = 2; k < LAYERS && equal; k++)
            equal = block_of(g, k) && block_of(g, k) == block_of(g, 1);
        if (equal != wefti_family_has((weft_family)f, WEFTI_EQUAL_BLOCKS))
            fail_msg("%s: its blocks are %s, but models/family.h says otherwise",
                     weft_family_text((weft_family)f), equal ? "equal" : "not equal");
        weft_graph_destroy(g);
    }
}

/* The name of a node as plans match it, LABEL:OP. */
static void name_of(const weft_node *call, const weft_node *n, char out[NAME]) {
    char label[NAME - WEFTI_OP_NAME_BYTES - 1], op[WEFTI_OP_NAME_BYTES];
    (void)snprintf(out, NAME, "%s:%s",
                   wefti_node_label(call->callee, call->scope, n, label, sizeof label),
                   wefti_node_op(n, op, sizeof op));
}

typedef struct search {
    const char *match; /* counts the names that match; NULL: checks the products of blocks */
    weft_family family;
    int found;
} search;

static bool is_split(weft_family family, const char *name, bool products) {
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    for (int i = 0; i < count; i++) {
        const bool role = rows[i].role == WEFTI_SPLIT_TENSOR || rows[i].role == WEFTI_SPLIT_HEADS ||
                          rows[i].role == WEFTI_SPLIT_EXPERT;
        if (rows[i].families >> family & 1 && (role || !products) &&
            wefti_glob_match(rows[i].match, name))
            return true;
    }
    return false;
}

/* The products that every device computes: routers, and layers of encoders around the blocks. */
static bool is_whole(const char *name) {
    static const char *const whole[] = {"*.gate:linear", "head*:linear", "classifier*:linear",
                                        "cls.predictions.*:linear", "embed*"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (wefti_glob_match(whole[i], name)) return true;
    return false;
}

static void visit(search *s, const weft_graph *g) {
    char name[NAME];
    for (int64_t i = 0; i < g->root->node_count; i++) {
        const weft_node *call = &g->root->nodes[i];
        if (!call->callee) continue;
        for (int64_t k = 0; k < call->callee->node_count; k++) {
            const weft_node *n = &call->callee->nodes[k];
            if (!n->op) continue;
            name_of(call, n, name);
            if (s->match) {
                s->found += wefti_glob_match(s->match, name);
                continue;
            }
            const bool product = !strcmp(n->op->name, "linear") ||
                                 !strcmp(n->op->name, "moe_linear") ||
                                 !strcmp(n->op->name, "attention");
            if (product && !is_whole(name) && !is_split(s->family, name, true))
                fail_msg("%s: models/splits.c has no row for %s", weft_family_text(s->family),
                         name);
        }
    }
}

/* Each row of a family matches ops of it, and each product in its blocks has a row. */
static void splits_cover_blocks(void **state) {
    (void)state;
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        const bool heads = wefti_family_has(family, WEFTI_HEADS);
        weft_graph *g = deep(family, NULL);
        for (int i = 0; i < count; i++) {
            search s = {.match = rows[i].match, .family = family};
            if (!(rows[i].families >> f & 1)) continue;
            char layer[NAME];
            size_t length = 0;
            const char *of = wefti_split_adapter(&rows[i], &length);
            (void)snprintf(layer, sizeof layer, "%.*s", (int)length, of ? of : "");
            weft_graph *adapted = of ? deep(family, layer) : NULL;
            visit(&s, adapted ? adapted : g);
            weft_graph_destroy(adapted);
            if (!s.found)
                fail_msg("%s: %s of models/splits.c matches nothing", weft_family_text(family),
                         rows[i].match);
        }
        if (heads) visit(&(search){.family = family}, g);
        weft_graph_destroy(g);
        assert_int_equal(wefti_family_has_split(family, WEFTI_SPLIT_TENSOR),
                         heads || family == WEFT_FAMILY_MLP);
        assert_int_equal(wefti_family_has_split(family, WEFTI_SPLIT_SEQUENCE), heads);
        assert_int_equal(wefti_family_has_split(family, WEFTI_SPLIT_VOCABULARY),
                         wefti_family_has(family, WEFTI_LANGUAGE));
        assert_int_equal(wefti_family_has_split(family, WEFTI_SPLIT_EXPERT),
                         wefti_family_has(family, WEFTI_EXPERTS));
    }
}

/* Norms of blocks lie along the sequence, except those of queries and keys, which follow heads. */
static void norms_have_rows(void **state) {
    (void)state;
    char name[NAME];
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        if (!wefti_family_has((weft_family)f, WEFTI_HEADS)) continue;
        weft_graph *g = deep((weft_family)f, NULL);
        for (int64_t i = 0; i < g->root->node_count; i++) {
            const weft_node *call = &g->root->nodes[i];
            for (int64_t k = 0; call->callee && k < call->callee->node_count; k++) {
                const weft_node *n = &call->callee->nodes[k];
                if (!n->op || !strstr(n->op->name, "_norm")) continue;
                name_of(call, n, name);
                const bool of_heads = wefti_glob_match("*.[qk]_norm:*", name);
                if (wefti_glob_match("*.[0-9]*", name) && !of_heads &&
                    !is_split((weft_family)f, name, false))
                    fail_msg("%s: models/splits.c has no row for %s",
                             weft_family_text((weft_family)f), name);
            }
        }
        weft_graph_destroy(g);
    }
}

/* Sets of families are those that functions tell. */
static void sets_are_traits(void **state) {
    (void)state;
    const unsigned generates = WEFTI_FAMILIES_WITH(WEFTI_GENERATES),
                   llama = WEFTI_FAMILIES_LIKE(WEFTI_STYLE_LLAMA);
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        weft_model_config c = tiny(family);
        weft_graph *g = NULL;
        assert_int_equal(generates >> f & 1, wefti_family_has(family, WEFTI_GENERATES));
        assert_int_equal(llama >> f & 1, wefti_family_style_of(family) == WEFTI_STYLE_LLAMA);
        const weft_status status = weft_model_build(&c, WEFT_USE_DECODE, 1, 0, WEFT_F32, &g);
        assert_int_equal(status >= 0, wefti_family_has(family, WEFTI_GENERATES));
        weft_graph_destroy(g);
        ASSERT_OK(weft_model_complete(&c));
        assert_int_equal(c.rope_theta > 0, wefti_family_has(family, WEFTI_ROTARY));
        assert_int_equal(c.experts > 0, wefti_family_has(family, WEFTI_EXPERTS));
        assert_int_equal(weft_family_is_language(family), wefti_family_has(family, WEFTI_LANGUAGE));
    }
    assert_false(wefti_family_has(WEFT_FAMILIES, ~0u));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_equal), cmocka_unit_test(splits_cover_blocks),
        cmocka_unit_test(norms_have_rows), cmocka_unit_test(sets_are_traits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
