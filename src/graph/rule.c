/* Helpers to state split rules. The notation follows einsum, with words for dimensions. */
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

void wefti_rule_begin(wefti_split_rule *r) {
    r->factors = 0;
    memset(r->in, -1, sizeof r->in);
    memset(r->out, -1, sizeof r->out);
    memset(r->sum_once, 0, sizeof r->sum_once);
}

int wefti_rule_factor(wefti_split_rule *r, const char *name, int64_t size, wefti_factor_kind kind) {
    if (r->factors == WEFTI_MAX_FACTORS) return -1;
    wefti_factor *f = &r->factor[r->factors];
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    f->size = size;
    f->kind = kind;
    return r->factors++;
}

/* One operand of the text: its words, separated by blanks. */
typedef struct pattern {
    char word[WEFT_MAX_RANK + 1][12];
    int words, ellipsis; /* index of "..." or -1 */
} pattern;

static weft_status read_pattern(const char **text, const weft_node *n, pattern *out) {
    const char *p = *text;
    *out = (pattern){.ellipsis = -1};
    for (;;) {
        while (*p == ' ') p++;
        if (!*p || *p == ',' || (p[0] == '-' && p[1] == '>')) break;
        size_t length = strcspn(p, " ,");
        WEFT_REQUIRE(length < sizeof out->word[0] && out->words <= WEFT_MAX_RANK, WEFT_E_BUG,
                     "split rule of %s: a word or an operand is too long", n->op->name);
        memcpy(out->word[out->words], p, length);
        if (!strcmp(out->word[out->words], "...")) {
            WEFT_REQUIRE(out->ellipsis < 0, WEFT_E_BUG, "split rule of %s: two ... in one operand",
                         n->op->name);
            out->ellipsis = out->words;
        }
        out->words++;
        p += length;
    }
    *text = p;
    return WEFT_OK;
}

/* Assigns factors to the dimensions of one operand; dimensions of size 1 stay replicated. */
static weft_status assign(const weft_node *n, const pattern *p, const weft_desc *desc, bool output,
                          wefti_split_rule *r, int8_t *row) {
    int named = p->words - (p->ellipsis >= 0), leading = desc->rank - named;
    WEFT_REQUIRE(leading == 0 || (leading > 0 && p->ellipsis >= 0), WEFT_E_BUG,
                 "split rule of %s: %d names for %s", n->op->name, named,
                 wefti_desc_text(desc).text);
    for (int d = 0; d < desc->rank; d++) {
        char name[16];
        bool inside = p->ellipsis >= 0 && d >= p->ellipsis && d < p->ellipsis + leading;
        int word = p->ellipsis < 0 || d < p->ellipsis ? d : d - leading + 1;
        if (inside) /* counted from the end of the "...", so that broadcast operands align */
            (void)snprintf(name, sizeof name, "lead%d", leading - (d - p->ellipsis));
        else
            (void)snprintf(name, sizeof name, "%s", p->word[word]);
        int64_t size = desc->shape[d];
        if (size == 1) continue;
        int f = -1;
        if (!strcmp(name, "*")) {
            (void)snprintf(name, sizeof name, "*%d", r->factors);
            f = wefti_rule_factor(r, name, size, WEFTI_FACTOR_WHOLE);
        } else {
            for (int k = 0; k < r->factors; k++)
                if (!strcmp(r->factor[k].name, name)) f = k;
            if (f < 0) f = wefti_rule_factor(r, name, size, WEFTI_FACTOR_SUM);
        }
        WEFT_REQUIRE(f >= 0, WEFT_E_BUG, "split rule of %s: more than %d factors", n->op->name,
                     WEFTI_MAX_FACTORS);
        WEFT_REQUIRE(r->factor[f].size == size, WEFT_E_BUG,
                     "split rule of %s: factor %s is %lld in one place and %lld in another",
                     n->op->name, name, (long long)r->factor[f].size, (long long)size);
        if (output && r->factor[f].kind == WEFTI_FACTOR_SUM) r->factor[f].kind = WEFTI_FACTOR_FREE;
        row[d] = (int8_t)f;
    }
    return WEFT_OK;
}

weft_status wefti_rule_from_text(const weft_node *n, const char *text, wefti_split_rule *r) {
    const char *p = text;
    wefti_rule_begin(r);
    bool output = false;
    int at = 0;
    for (;;) {
        pattern one;
        WEFT_TRY(read_pattern(&p, n, &one));
        const weft_desc *desc = output ? wefti_out(n, at) : wefti_in(n, at);
        if (desc) WEFT_TRY(assign(n, &one, desc, output, r, output ? r->out[at] : r->in[at]));
        at++;
        if (*p == ',') {
            p++;
        } else if (*p) { /* "->" */
            WEFT_REQUIRE(!output && at >= n->inputs, WEFT_E_BUG,
                         "split rule of %s: %d operands for %d inputs", n->op->name, at, n->inputs);
            output = true;
            at = 0;
            p += 2;
        } else {
            break;
        }
    }
    WEFT_REQUIRE(output && at == n->outputs, WEFT_E_BUG,
                 "split rule of %s: %d results for %d outputs", n->op->name, at, n->outputs);
    return WEFT_OK;
}
