/* Parameters that training leaves as they are: weft_freeze. */
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "graph/graph.h"

/* The parameter whose name is closest to a pattern that matches none. NULL: none is close. */
static weft_status find_near(const weft_body *root, const char *pattern, const char **out) {
    const char **names;
    int64_t count = 0;
    const size_t length = strlen(pattern);
    WEFT_NEW_ARRAY(names, const char *, root->in_count + 1);
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind == WEFTI_VALUE_PARAM) names[count++] = v->name;
    }
    *out = weft_nearest(pattern, names);
    for (int64_t i = 0; i < count && !*out; i++) /* "wte" for "wte.weight" */
        if (!strncmp(names[i], pattern, length)) *out = names[i];
    wefti_free(names);
    return WEFT_OK;
}

weft_status weft_freeze(weft_graph *g, const char *pattern, bool frozen) {
    WEFT_REQUIRE(g && pattern, WEFT_E_ARG, "weft_freeze needs a graph and a pattern");
    WEFT_REQUIRE(wefti_graph_ok(g), g->status, "%s", weft_graph_message(g));
    WEFT_REQUIRE(*pattern && wefti_glob_valid(pattern), WEFT_E_ARG,
                 "'%.100s' is not a pattern for names of parameters", pattern);
    const weft_body *root = g->root;
    bool found = false;
    for (int64_t i = 0; i < root->in_count; i++) {
        wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM || !wefti_glob_match(pattern, v->name)) continue;
        v->frozen = frozen;
        found = true;
    }
    if (found) return WEFT_OK;
    const char *near;
    WEFT_TRY(find_near(root, pattern, &near));
    WEFT_FAIL(WEFT_E_NOT_FOUND, "the model has no parameter '%.100s'%s%.200s%s", pattern,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}
