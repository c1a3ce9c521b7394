/* Values of a job that are lists or mappings: into pairs of texts, and back. See job/job.h. */
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

enum { LEAST_BUCKET = 1024 }; /* bytes; less is a number of MB that was meant for other software */

bool wefti_job_is_list(wefti_job_kind kind) {
    return kind >= WEFTI_JOB_SIZES;
}

/* A list that is being read. */
typedef struct lists_reader {
    wefti_job_draft *draft;
    const wefti_job_row *row;
    const wefti_job_mark *mark;
    weft_job_pair *pairs;
    int64_t count;
} lists_reader;

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a job");
}

/* The position of an entry. An override has only its word. */
static wefti_job_mark mark_at(const lists_reader *r, const wefti_yaml *value) {
    wefti_job_mark mark = *r->mark;
    if (value->line) {
        mark.line = value->line;
        mark.column = value->column;
    }
    return mark;
}

static weft_status refuse(const lists_reader *r, const wefti_yaml *value) {
    wefti_job_mark mark = mark_at(r, value);
    return wefti_job_refuse(r->draft, r->row, &mark, value);
}

static bool is_number(const wefti_yaml *value) {
    return value->kind == WEFTI_YAML_SCALAR && *value->text &&
           strspn(value->text, "0123456789") == strlen(value->text) && strlen(value->text) < 10;
}

static bool is_flag(const wefti_yaml *value) {
    return value->kind == WEFTI_YAML_SCALAR &&
           (!strcmp(value->text, "true") || !strcmp(value->text, "false"));
}

/* Of an axis: it has one device at least. */
static bool is_size(const wefti_yaml *value) {
    return is_number(value) && strspn(value->text, "0") < strlen(value->text);
}

/* Allocates one pair for each child. */
static weft_status begin(lists_reader *r, const wefti_yaml *value) {
    r->pairs = wefti_arena_alloc(r->draft->arena, ((size_t)value->count + 1) * sizeof *r->pairs);
    return r->pairs ? WEFT_OK : no_memory();
}

static weft_status add(lists_reader *r, const wefti_yaml *entry, const char *key,
                       const char *value) {
    wefti_arena *arena = r->draft->arena;
    wefti_job_mark mark = mark_at(r, entry);
    char where[512];
    WEFT_TRY(wefti_job_check_text(r->draft, r->row, &mark, key));
    WEFT_TRY(wefti_job_check_text(r->draft, r->row, &mark, value));
    wefti_job_where(r->draft, &mark, where);
    size_t length = strlen(where); /* without the ": " */
    where[length > 2 ? length - 2 : 0] = '\0';
    weft_job_pair pair = {wefti_arena_strdup(arena, key), wefti_arena_strdup(arena, value),
                          wefti_arena_strdup(arena, where)};
    if (!pair.key || !pair.value || !pair.where) return no_memory();
    r->pairs[r->count++] = pair;
    return WEFT_OK;
}

/* ---- values as text ---- */

/* "dp", or "dp+sp" of [dp, sp] */
static weft_status write_axes(const lists_reader *r, const wefti_yaml *value, wefti_text *out) {
    if (value->kind == WEFTI_YAML_SCALAR) {
        wefti_text_add(out, "%s", value->text);
        return WEFT_OK;
    }
    if (value->kind != WEFTI_YAML_SEQUENCE || !value->count) return refuse(r, value);
    for (const wefti_yaml *axis = value->first; axis; axis = axis->next) {
        if (axis->kind != WEFTI_YAML_SCALAR) return refuse(r, axis);
        wefti_text_add(out, "%s%s", axis == value->first ? "" : "+", axis->text);
    }
    return WEFT_OK;
}

/* {n0: tp, m0: [dp, sp]}: "n0=tp m0=dp+sp" */
static weft_status write_mapping(const lists_reader *r, const wefti_yaml *value, wefti_text *out) {
    for (const wefti_yaml *child = value->first; child; child = child->next) {
        wefti_text_add(out, "%s%s=", child == value->first ? "" : " ", child->key);
        WEFT_TRY(write_axes(r, child, out));
    }
    return WEFT_OK;
}

/* [[2, 1], [1, 4]]: "((2,1),(1,4))" */
static weft_status write_cuts(const lists_reader *r, const wefti_yaml *value, wefti_text *out) {
    wefti_text_add(out, "(");
    for (const wefti_yaml *input = value->first; input; input = input->next) {
        if (input->kind != WEFTI_YAML_SEQUENCE) return refuse(r, input);
        wefti_text_add(out, input == value->first ? "(" : ",(");
        for (const wefti_yaml *cut = input->first; cut; cut = cut->next) {
            if (!is_number(cut)) return refuse(r, cut);
            wefti_text_add(out, "%s%s", cut == input->first ? "" : ",", cut->text);
        }
        wefti_text_add(out, ")");
    }
    wefti_text_add(out, ")");
    return WEFT_OK;
}

/* [dp, -, [tp, sp]]: "[dp, -, tp+sp]" */
static weft_status write_layout(const lists_reader *r, const wefti_yaml *value, wefti_text *out) {
    wefti_text_add(out, "[");
    for (const wefti_yaml *dim = value->first; dim; dim = dim->next) {
        if (dim != value->first) wefti_text_add(out, ", ");
        WEFT_TRY(write_axes(r, dim, out));
    }
    wefti_text_add(out, "]");
    return WEFT_OK;
}

static weft_status write_text(const lists_reader *r, const wefti_yaml *value, wefti_text *out) {
    wefti_job_kind kind = r->row->kind;
    bool layout = kind == WEFTI_JOB_LAYOUTS || kind == WEFTI_JOB_DATASET;
    if (value->kind == WEFTI_YAML_SCALAR) {
        if (kind == WEFTI_JOB_STAGES && !is_number(value)) return refuse(r, value);
        wefti_text_add(out, "%s", value->text);
        return WEFT_OK;
    }
    if (value->kind == WEFTI_YAML_SEQUENCE && layout) return write_layout(r, value, out);
    if (value->kind == WEFTI_YAML_SEQUENCE && kind == WEFTI_JOB_SPLITS)
        return write_cuts(r, value, out);
    if (value->kind == WEFTI_YAML_MAPPING && (kind == WEFTI_JOB_SPLITS || kind == WEFTI_JOB_MESHES))
        return write_mapping(r, value, out);
    return refuse(r, value);
}

/* Adds a pair whose value is the texts of `values`, up to a NULL, with a space between them. */
static weft_status add_values(lists_reader *r, const wefti_yaml *entry, const char *key,
                              const wefti_yaml *const *values) {
    wefti_text text = {0};
    weft_status status = WEFT_OK;
    for (int i = 0; values[i] && status >= 0; i++) {
        if (i) wefti_text_add(&text, " ");
        status = write_text(r, values[i], &text);
    }
    char *taken = wefti_text_take(&text);
    if (status >= 0) status = taken ? add(r, entry, key, taken) : no_memory();
    wefti_free(taken);
    return status;
}

static weft_status add_value(lists_reader *r, const wefti_yaml *entry, const char *key,
                             const wefti_yaml *value) {
    return add_values(r, entry, key, (const wefti_yaml *const[]){value, NULL});
}

/* ---- lists ---- */

typedef enum rule_need {
    RULE_NEEDED,
    RULE_SIZE, /* may be absent; bytes or per cent */
    RULE_WORD  /* may be absent, which is its first word */
} rule_need;

/* A key of an entry {match: pattern, ...}. */
typedef struct rule_key {
    const char *name;
    bool plain;               /* its value is written without quotes */
    const char *const *words; /* its values; NULL: any text */
    rule_need need;
} rule_key;

static const char *const server_paces[] = {"sync", NULL};

enum { RULE_KEYS = 4 };
/* The keys of an entry by the kind of the list. Only the last value may contain spaces. */
static const rule_key rule_keys[][RULE_KEYS + 1] = {
    [WEFTI_JOB_SPLITS] = {{"match", false, NULL, RULE_NEEDED}, {"split", false, NULL, RULE_NEEDED}},
    [WEFTI_JOB_LAYOUTS] = {{"match", false, NULL, RULE_NEEDED},
                           {"layout", false, NULL, RULE_NEEDED}},
    [WEFTI_JOB_STAGES] = {{"match", false, NULL, RULE_NEEDED}, {"stage", true, NULL, RULE_NEEDED}},
    [WEFTI_JOB_PLACES] = {{"match", false, NULL, RULE_NEEDED},
                          {"on", true, wefti_place_words, RULE_NEEDED}},
    [WEFTI_JOB_SERVERS] = {{"match", false, NULL, RULE_NEEDED},
                           {"sync", true, server_paces, RULE_WORD}},
    [WEFTI_JOB_OFFLOADS] = {{"match", false, NULL, RULE_NEEDED},
                            {"what", true, wefti_offload_words, RULE_NEEDED},
                            {"to", true, wefti_tier_words, RULE_NEEDED},
                            {"cache", true, NULL, RULE_SIZE}},
};

/* `name`: of the key of an entry; "": the list as a whole. */
static weft_status check_word(const lists_reader *r, const wefti_yaml *value, const char *name,
                              const char *const *words) {
    wefti_job_mark mark = mark_at(r, value);
    char where[512], list[128] = "";
    if (value->kind != WEFTI_YAML_SCALAR) return refuse(r, value);
    for (int i = 0; words[i]; i++) {
        if (!strcmp(value->text, words[i])) return WEFT_OK;
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    const char *near = weft_nearest(value->text, words);
    if (!near && !*name) return refuse(r, value);
    WEFT_FAIL(WEFT_E_ARG, "%s%s%s%s must be one of %s; it is '%.100s'%s%s%s",
              wefti_job_where(r->draft, &mark, where), r->row->path, *name ? ": " : "", name, list,
              value->text, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static weft_status check_size(const lists_reader *r, const wefti_yaml *value, const char *name) {
    wefti_job_mark mark = mark_at(r, value);
    char where[512];
    int64_t bytes;
    double percent;
    WEFT_REQUIRE(value->kind == WEFTI_YAML_SCALAR &&
                     (wefti_job_read_percent(value->text, &percent) ||
                      (wefti_job_read_bytes(value->text, &bytes) && bytes > 0)),
                 WEFT_E_ARG,
                 "%s%s: %s must be a size such as 2GiB or 500MB, or above 0%% and at most 100%%; "
                 "it is '%.100s'",
                 wefti_job_where(r->draft, &mark, where), r->row->path, name,
                 value->kind == WEFTI_YAML_SCALAR ? value->text : "a list");
    return WEFT_OK;
}

/* {match: pattern, split: value} */
static weft_status read_rule(lists_reader *r, const wefti_yaml *entry) {
    const rule_key *keys = rule_keys[r->row->kind];
    const wefti_yaml *found[RULE_KEYS + 1] = {NULL};
    wefti_job_mark mark = mark_at(r, entry);
    char where[512], list[64] = "";
    if (entry->kind != WEFTI_YAML_MAPPING) return refuse(r, entry);
    for (const wefti_yaml *child = entry->first; child; child = child->next) {
        int which = 0;
        while (keys[which].name && strcmp(child->key, keys[which].name) != 0) which++;
        if (keys[which].name) {
            found[which] = child;
            continue;
        }
        mark = mark_at(r, child);
        for (int i = 0; keys[i].name; i++) {
            size_t used = strlen(list);
            (void)snprintf(list + used, sizeof list - used, "%s'%s'",
                           !i                 ? ""
                           : keys[i + 1].name ? ", "
                                              : " and ",
                           keys[i].name);
        }
        WEFT_FAIL(WEFT_E_ARG, "%sunknown key '%.60s' in %s; an entry has %s",
                  wefti_job_where(r->draft, &mark, where), child->key, r->row->path, list);
    }
    wefti_yaml first = {.kind = WEFTI_YAML_SCALAR};
    for (int i = 0; keys[i].name; i++) {
        if (keys[i].need == RULE_SIZE && found[i]) WEFT_TRY(check_size(r, found[i], keys[i].name));
        if (keys[i].need == RULE_WORD && !found[i]) {
            first.text = keys[i].words[0];
            found[i] = &first;
        }
        WEFT_REQUIRE(found[i] || keys[i].need == RULE_SIZE, WEFT_E_ARG,
                     "%san entry of %s needs '%s'", wefti_job_where(r->draft, &mark, where),
                     r->row->path, keys[i].name);
        if (keys[i].words) WEFT_TRY(check_word(r, found[i], keys[i].name, keys[i].words));
    }
    if (found[0]->kind != WEFTI_YAML_SCALAR) return refuse(r, found[0]);
    return add_values(r, entry, found[0]->text, found + 1);
}

/* One word in place of the entries: none, auto, or the tier of all optimizer states. */
static weft_status read_tier(lists_reader *r, const wefti_yaml *value) {
    WEFT_TRY(check_word(r, value, "", r->row->words));
    if (!strcmp(value->text, "none")) return WEFT_OK;
    if (!strcmp(value->text, "auto")) return add(r, value, value->text, "");
    const wefti_yaml what = {.kind = WEFTI_YAML_SCALAR,
                             .text = wefti_offload_words[WEFT_OFFLOAD_OPTIMIZER]};
    return add_values(r, value, "*", (const wefti_yaml *const[]){&what, value, NULL});
}

static weft_status read_item(lists_reader *r, const wefti_yaml *item) {
    if (r->row->kind == WEFTI_JOB_MESHES) return add_value(r, item, "", item);
    if (r->row->kind != WEFTI_JOB_TEXTS) return read_rule(r, item);
    return item->kind == WEFTI_YAML_SCALAR ? add(r, item, item->text, "") : refuse(r, item);
}

static weft_status read_sequence(lists_reader *r, const wefti_yaml *value) {
    WEFT_TRY(begin(r, value));
    if (value->kind == WEFTI_YAML_SCALAR && r->row->kind == WEFTI_JOB_TEXTS)
        return add(r, value, value->text, ""); /* one text stands for a list of one */
    if (value->kind == WEFTI_YAML_SCALAR && r->row->kind == WEFTI_JOB_OFFLOADS)
        return read_tier(r, value);
    if (value->kind != WEFTI_YAML_SEQUENCE) return refuse(r, value);
    for (const wefti_yaml *item = value->first; item; item = item->next)
        WEFT_TRY(read_item(r, item));
    return WEFT_OK;
}

/* {axis: size}, {pattern: flag}, {input: layout} */
static weft_status read_mapping(lists_reader *r, const wefti_yaml *value) {
    if (value->kind != WEFTI_YAML_MAPPING) return refuse(r, value);
    WEFT_TRY(begin(r, value));
    for (const wefti_yaml *child = value->first; child; child = child->next) {
        if (r->row->kind == WEFTI_JOB_SIZES && !is_size(child)) return refuse(r, child);
        if (r->row->kind == WEFTI_JOB_FLAGS && !is_flag(child)) return refuse(r, child);
        WEFT_TRY(add_value(r, child, child->key, child));
    }
    return WEFT_OK;
}

/* ((1,1,1,4),(1,)), or [[1, 1, 1, 4], [1]] */
static weft_status read_dataset_cuts(const lists_reader *r, const wefti_yaml *value,
                                     weft_job_dataset *out) {
    wefti_text text = {0};
    weft_status status = WEFT_OK;
    if (value->kind == WEFTI_YAML_SCALAR)
        wefti_text_add(&text, "%s", value->text);
    else
        status = write_cuts(r, value, &text);
    char *taken = wefti_text_take(&text);
    const char *kept = status >= 0 && taken ? wefti_arena_strdup(r->draft->arena, taken) : NULL;
    wefti_free(taken);
    WEFT_TRY(status);
    if (!kept) return no_memory();
    *out = (weft_job_dataset){.kind = WEFT_DATASET_DATA_PARALLEL, .cuts = kept};
    return WEFT_OK;
}

static weft_status read_dataset(lists_reader *r, const wefti_yaml *value, weft_job_dataset *out) {
    for (int i = 0; value->kind == WEFTI_YAML_SCALAR && r->row->words[i]; i++)
        if (!strcmp(value->text, r->row->words[i])) {
            *out = (weft_job_dataset){.kind = (weft_dataset)i};
            return WEFT_OK;
        }
    bool in_text = value->kind == WEFTI_YAML_SCALAR && *value->text == '(';
    if (in_text || value->kind == WEFTI_YAML_SEQUENCE) return read_dataset_cuts(r, value, out);
    WEFT_TRY(read_mapping(r, value));
    *out = (weft_job_dataset){.kind = WEFT_DATASET_DATA_PARALLEL, .inputs = {r->pairs, r->count}};
    return WEFT_OK;
}

/* "": nothing; bytes; or ends. */
static weft_status read_buckets(lists_reader *r, const wefti_yaml *value, const char **out) {
    int64_t bytes;
    wefti_text text = {0};
    if (value->kind == WEFTI_YAML_SCALAR) {
        bool nothing = !*value->text && (value->quoted || !value->line);
        if (!nothing && (!wefti_job_read_bytes(value->text, &bytes) || bytes < LEAST_BUCKET))
            return refuse(r, value);
        if (!nothing) wefti_text_add(&text, "%lld", (long long)bytes);
    } else {
        if (value->kind != WEFTI_YAML_SEQUENCE || !value->count) return refuse(r, value);
        for (const wefti_yaml *item = value->first; item; item = item->next) {
            if (!is_number(item)) {
                wefti_text_free(&text);
                return refuse(r, item);
            }
            wefti_text_add(&text, "%s%s", item == value->first ? "[" : ", ", item->text);
        }
        wefti_text_add(&text, "]");
    }
    char *taken = wefti_text_take(&text);
    *out = taken ? wefti_arena_strdup(r->draft->arena, taken) : NULL;
    wefti_free(taken);
    return *out ? WEFT_OK : no_memory();
}

weft_status wefti_job_store_list(wefti_job_draft *draft, const wefti_job_row *row, void *field,
                                 const wefti_yaml *value, const wefti_job_mark *mark) {
    lists_reader r = {.draft = draft, .row = row, .mark = mark};
    if (row->kind == WEFTI_JOB_DATASET) return read_dataset(&r, value, field);
    if (row->kind == WEFTI_JOB_BUCKETS) return read_buckets(&r, value, field);
    bool empty = value->kind == WEFTI_YAML_SCALAR && value->text == row->default_text; /* itself */
    bool mapping = row->kind == WEFTI_JOB_SIZES || row->kind == WEFTI_JOB_FLAGS;
    if (!empty) WEFT_TRY(mapping ? read_mapping(&r, value) : read_sequence(&r, value));
    *(weft_job_pairs *)field = (weft_job_pairs){r.pairs, r.count};
    return WEFT_OK;
}

/* ---- writing ---- */

static void write_rule(const weft_job_pair *pair, const rule_key *keys, wefti_text *out) {
    const char *at = pair->value;
    wefti_text_add(out, "{%s: ", keys[0].name);
    wefti_job_write_quoted(pair->key, out);
    for (int k = 1; keys[k].name && (*at || keys[k].need != RULE_SIZE); k++) {
        const bool last = !keys[k + 1].name;
        const size_t bytes = last ? strlen(at) : strcspn(at, " ");
        wefti_text_add(out, ", %s: ", keys[k].name);
        if (keys[k].plain)
            wefti_text_add_bytes(out, at, (int64_t)bytes);
        else
            wefti_job_write_quoted(at, out);
        at += at[bytes] ? bytes + 1 : bytes;
    }
    wefti_text_add(out, "}");
}

static void write_rules(const weft_job_pairs *pairs, const rule_key *keys, wefti_text *out) {
    if (pairs->count == 1 && !*pairs->items[0].value) { /* a word */
        wefti_text_add(out, "%s", pairs->items[0].key);
        return;
    }
    wefti_text_add(out, "[");
    for (int64_t i = 0; i < pairs->count; i++) {
        wefti_text_add(out, "%s\n        ", i ? "," : "");
        write_rule(&pairs->items[i], keys, out);
    }
    wefti_text_add(out, "]");
}

/* The keys or the values, each in quotes. */
static void write_texts(const weft_job_pairs *pairs, bool keys, wefti_text *out) {
    wefti_text_add(out, "[");
    for (int64_t i = 0; i < pairs->count; i++) {
        if (i) wefti_text_add(out, ", ");
        wefti_job_write_quoted(keys ? pairs->items[i].key : pairs->items[i].value, out);
    }
    wefti_text_add(out, "]");
}

static void write_pairs(const weft_job_pairs *pairs, bool quoted, wefti_text *out) {
    wefti_text_add(out, "{");
    for (int64_t i = 0; i < pairs->count; i++) {
        if (i) wefti_text_add(out, ", ");
        wefti_job_write_quoted(pairs->items[i].key, out);
        wefti_text_add(out, ": ");
        if (quoted)
            wefti_job_write_quoted(pairs->items[i].value, out);
        else
            wefti_text_add(out, "%s", pairs->items[i].value);
    }
    wefti_text_add(out, "}");
}

void wefti_job_write_list(const wefti_job_row *row, const void *field, wefti_text *out) {
    const weft_job_dataset *dataset = field;
    const char *text = row->kind == WEFTI_JOB_BUCKETS ? *(const char *const *)field : NULL;
    switch (row->kind) {
    case WEFTI_JOB_SIZES:
    case WEFTI_JOB_FLAGS:
        write_pairs(field, false, out);
        return;
    case WEFTI_JOB_DATASET:
        if (dataset->cuts && *dataset->cuts)
            wefti_job_write_quoted(dataset->cuts, out);
        else if (dataset->inputs.count)
            write_pairs(&dataset->inputs, true, out);
        else
            wefti_text_add(out, "%s", row->words[dataset->kind]);
        return;
    case WEFTI_JOB_BUCKETS:
        wefti_text_add(out, "%s", *text ? text : "\"\"");
        return;
    case WEFTI_JOB_TEXTS:
    case WEFTI_JOB_MESHES:
        write_texts(field, row->kind == WEFTI_JOB_TEXTS, out);
        return;
    default:
        write_rules(field, rule_keys[row->kind], out);
    }
}
