/* Job files: the tree and the overrides into a job. See weft/job.h and job/job.h. */
#include "job/job.h"

#include <stdio.h>
#include <string.h>

/* The job that callers see is the first member, so that it can be freed by its address. */
typedef struct loaded_job {
    weft_job job;
    wefti_arena *arena;
    weft_plan *plan;
} loaded_job;

int wefti_job_row_number(const char *path) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    for (int i = 0; i < rows; i++)
        if (!strcmp(table[i].path, path)) return i;
    return -1;
}

/* Whether a key lies below `path`; "" is the whole job. */
static bool is_section(const char *path) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    size_t length = strlen(path);
    for (int i = 0; i < rows; i++)
        if (!length || (!strncmp(table[i].path, path, length) && table[i].path[length] == '.'))
            return true;
    return false;
}

/* Collects into `names` the words that `section` may hold directly. Their texts lie in `storage`.
 */
typedef struct name_list {
    const char *names[WEFTI_JOB_KEYS_MAX + 1];
    char storage[WEFTI_JOB_KEYS_MAX][WEFTI_JOB_PATH];
} name_list;

static void list_names(const char *section, name_list *list) {
    int rows, count = 0;
    const wefti_job_row *table = wefti_job_table(&rows);
    size_t length = strlen(section), skip = length ? length + 1 : 0;
    for (int i = 0; i < rows; i++) {
        if (length && (strncmp(table[i].path, section, length) || table[i].path[length] != '.'))
            continue;
        const char *name = table[i].path + skip;
        snprintf(list->storage[count], WEFTI_JOB_PATH, "%.*s", (int)strcspn(name, "."), name);
        if (count && !strcmp(list->storage[count - 1], list->storage[count])) continue;
        list->names[count] = list->storage[count];
        count++;
    }
    list->names[count] = NULL;
}

/* The key that ends in `word`, for a key that stands in the wrong section. */
static const char *elsewhere(const char *word) {
    const char *path = weft_job_near_key(word), *dot = path ? strrchr(path, '.') : NULL;
    return path && !strcmp(dot ? dot + 1 : path, word) ? path : NULL;
}

static weft_status unknown(const wefti_job_draft *draft, const wefti_job_mark *mark,
                           const char *section, const char *word) {
    name_list list;
    char where[512];
    list_names(section, &list);
    wefti_job_where(draft, mark, where);
    const char *path = elsewhere(word), *near = path ? NULL : weft_nearest(word, list.names);
    if (!path && !near) path = weft_job_near_key(word);
    const char *in = *section ? " in " : "";
    if (path)
        WEFT_FAIL(WEFT_E_ARG, "%sunknown key '%.100s'%s%s; did you mean %s?", where, word, in,
                  section, path);
    if (near)
        WEFT_FAIL(WEFT_E_ARG, "%sunknown key '%.100s'%s%s; did you mean '%s'?", where, word, in,
                  section, near);
    wefti_text known = {0};
    for (const char *const *n = list.names; *n; n++)
        wefti_text_add(&known, "%s%s", n == list.names ? "" : ", ", *n);
    char *text = wefti_text_take(&known);
    weft_status status = WEFT_RAISE(WEFT_E_ARG, "%sunknown key '%.100s'%s%s; known are: %s", where,
                                    word, in, section, text ? text : "");
    wefti_free(text);
    return status;
}

static weft_status apply_section(wefti_job_draft *draft, const char *section,
                                 const wefti_yaml *tree, const wefti_job_mark *mark);

/* A section as one value. An override names one of its keys. */
static weft_status refuse_section(const wefti_job_draft *draft, const wefti_job_mark *mark,
                                  const char *path) {
    char where[512];
    name_list list;
    WEFT_REQUIRE(mark->override, WEFT_E_ARG,
                 "%s%s is a section: its keys stand below it, indented, as 'key: value'",
                 wefti_job_where(draft, mark, where), path);
    list_names(path, &list);
    WEFT_FAIL(WEFT_E_ARG,
              "%s%s is a section: write a word for each of its keys, %s.%s=..., or all in one, "
              "'%s={%s: ...}'",
              wefti_job_where(draft, mark, where), path, path, list.names[0], path, list.names[0]);
}

/* One entry: a key, a section, or a word that stands for the `name` or `mode` in a section
 * (schedule: cosine). */
static weft_status apply(wefti_job_draft *draft, const char *section, const char *word,
                         const wefti_yaml *value, const wefti_job_mark *mark) {
    char path[WEFTI_JOB_PATH], name[WEFTI_JOB_PATH + 8];
    int length = snprintf(path, sizeof path, "%s%s%s", section, *section ? "." : "", word);
    if (length >= (int)sizeof path) return unknown(draft, mark, section, word);
    int row = wefti_job_row_number(path);
    if (row >= 0) return wefti_job_store(draft, row, value, mark);
    if (!*word || !is_section(path)) return unknown(draft, mark, section, word);
    if (value->kind == WEFTI_YAML_MAPPING) return apply_section(draft, path, value, mark);
    bool nothing = value->kind == WEFTI_YAML_SCALAR && !*value->text && !value->quoted;
    if (nothing && value->line) return WEFT_OK;
    snprintf(name, sizeof name, "%s.name", path);
    row = wefti_job_row_number(name);
    if (row < 0) {
        snprintf(name, sizeof name, "%s.mode", path);
        row = wefti_job_row_number(name);
    }
    if (row >= 0 && value->kind == WEFTI_YAML_SCALAR)
        return wefti_job_store(draft, row, value, mark);
    return refuse_section(draft, mark, path);
}

/* The keys of a file have positions of their own; those of an override have its word (`outer`). */
static weft_status apply_section(wefti_job_draft *draft, const char *section,
                                 const wefti_yaml *tree, const wefti_job_mark *outer) {
    for (const wefti_yaml *child = tree->first; child; child = child->next) {
        wefti_job_mark mark = {.line = child->line, .column = child->column};
        WEFT_TRY(apply(draft, section, child->key, child, outer->override ? outer : &mark));
    }
    return WEFT_OK;
}

/* The value of an override: a list or mapping in brackets, else the text itself. An unclosed '['
 * and a '{' begin one only for keys that hold lists (`has_parts`); a '{' also for sections. */
static weft_status override_value(wefti_job_draft *draft, const char *word, const char *text,
                                  bool has_parts, wefti_yaml *out) {
    size_t length = strlen(text);
    bool bracketed = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    if (bracketed || (has_parts && length && strchr("[{", text[0])))
        return wefti_job_flow_parse(draft->arena, word, text, out);
    const char *copy = wefti_arena_strdup(draft->arena, text);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a job");
    *out = (wefti_yaml){.kind = WEFTI_YAML_SCALAR, .text = copy};
    return WEFT_OK;
}

/* Names the first part of an override's path that is not a section. */
static weft_status no_section(wefti_job_draft *draft, const wefti_job_mark *mark, char *section) {
    char where[512];
    for (char *dot = section;; dot++) {
        dot += strcspn(dot, ".");
        bool last = !*dot;
        *dot = '\0';
        if (wefti_job_row_number(section) >= 0)
            WEFT_FAIL(WEFT_E_ARG, "%s%s has no keys of its own: it is given whole, %s=...",
                      wefti_job_where(draft, mark, where), section, section);
        if (!is_section(section) || last) break;
        *dot = '.';
    }
    char *dot = strrchr(section, '.');
    if (!dot) return unknown(draft, mark, "", section);
    *dot = '\0';
    return unknown(draft, mark, section, dot + 1);
}

static weft_status apply_override(wefti_job_draft *draft, const char *word) {
    const char *equals = strchr(word, '=');
    WEFT_REQUIRE(equals && equals != word, WEFT_E_ARG,
                 "'%.200s' is not of the form key=value, for example train.steps=500", word);
    char path[WEFTI_JOB_PATH], full[WEFTI_JOB_PATH];
    wefti_job_mark mark = {.override = word};
    snprintf(path, sizeof path, "%.*s", (int)(equals - word), word);
    memcpy(full, path, sizeof full);
    char *dot = strrchr(path, '.');
    const char *section = "", *last = path;
    wefti_yaml value;
    if (dot) {
        *dot = '\0';
        section = path;
        last = dot + 1;
        if (!is_section(section)) return no_section(draft, &mark, path);
    }
    int rows, row = wefti_job_row_number(full);
    bool has_parts =
        row >= 0 ? wefti_job_is_list(wefti_job_table(&rows)[row].kind) : is_section(full);
    WEFT_TRY(override_value(draft, word, equals + 1, has_parts, &value));
    return apply(draft, section, last, &value, &mark);
}

static weft_status apply_defaults(wefti_job_draft *draft) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    wefti_job_mark none = {0};
    for (int i = 0; i < rows; i++) {
        if (wefti_job_row_auto(&table[i])) continue; /* resolved at the end */
        wefti_yaml value = {.kind = WEFTI_YAML_SCALAR, .text = table[i].default_text};
        WEFT_TRY(wefti_job_store(draft, i, &value, &none));
        draft->marks[i].given = false;
    }
    return WEFT_OK;
}

const char *wefti_job_model_files(const weft_job_model *model) {
    return *model->from ? model->from : model->config;
}

bool wefti_job_is_told_elsewhere(const weft_job *job, const wefti_job_row *row) {
    static const char section[] = "parallel.";
    if (row->of_model && *wefti_job_model_files(&job->model)) return true;
    return *job->parallel.plan && !strncmp(row->path, section, sizeof section - 1) &&
           strcmp(row->path, "parallel.plan") != 0 && strcmp(row->path, "parallel.links") != 0 &&
           strcmp(row->path, "parallel.devices") != 0;
}

/* Sections as they change from one path to the next. */
void wefti_job_write(const weft_job *job, const bool *only, wefti_text *out) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    const char *before = "";
    for (int i = 0; i < rows; i++) {
        const char *path = table[i].path;
        if (only ? !only[i]
                 : wefti_job_is_told_elsewhere(job, &table[i]) || !wefti_job_is_used(job, path))
            continue;
        int same = 0, depth = 0; /* bytes shared in whole sections, sections passed */
        for (int at = 0; path[at] && path[at] == before[at]; at++)
            if (path[at] == '.') same = at + 1;
        for (int at = 0; at < same; at++) depth += path[at] == '.';
        const char *rest = path + same;
        for (const char *dot; (dot = strchr(rest, '.')); rest = dot + 1)
            wefti_text_add(out, "%*s%.*s:\n", 2 * depth++, "", (int)(dot - rest), rest);
        wefti_text_add(out, "%*s%s: ", 2 * depth, "", rest);
        wefti_job_write_value(job, &table[i], out);
        wefti_text_add(out, "\n");
        before = path;
    }
}

static weft_status write_job(wefti_job_draft *draft) {
    wefti_text out = {0};
    wefti_job_write(&draft->job, NULL, &out);
    char *text = wefti_text_take(&out);
    if (text) draft->job.text = wefti_arena_strdup(draft->arena, text);
    wefti_free(text);
    WEFT_REQUIRE(draft->job.text, WEFT_E_NOMEM, "no memory for a job");
    return WEFT_OK;
}

static weft_status read_job(wefti_job_draft *draft, const char *text, int64_t bytes,
                            const char *const *overrides, int count) {
    WEFT_TRY(apply_defaults(draft));
    if (text) {
        wefti_yaml *tree;
        WEFT_TRY(wefti_yaml_parse(draft->name, text, bytes, draft->arena, &tree));
        WEFT_REQUIRE(tree->kind == WEFTI_YAML_MAPPING, WEFT_E_ARG,
                     "%s:%d:%d: a job is written as 'section:' with 'key: value' lines below it",
                     draft->name, tree->line, tree->column);
        const wefti_job_mark top = {0};
        WEFT_TRY(apply_section(draft, "", tree, &top));
    }
    for (int i = 0; i < count; i++) WEFT_TRY(apply_override(draft, overrides[i]));
    if (draft->devices) {
        char word[64];
        (void)snprintf(word, sizeof word, "parallel.devices=%lld", (long long)draft->devices);
        const char *copy = wefti_arena_strdup(draft->arena, word);
        WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a job");
        WEFT_TRY(apply_override(draft, copy));
    }
    WEFT_TRY(wefti_job_resolve(draft));
    return write_job(draft);
}

/* What a job was read from, to read it again for another number of devices. */
typedef struct job_origin {
    const char *name, *text;
    int64_t bytes;
    const char **overrides;
    int count;
} job_origin;

static weft_status keep_origin(wefti_job_draft *draft, const char *text, int64_t bytes,
                               const char *const *overrides, int count) {
    job_origin *o = wefti_arena_alloc(draft->arena, sizeof *o);
    const char **words = wefti_arena_alloc(draft->arena, ((size_t)count + 1) * sizeof *words);
    char *copy = text ? wefti_arena_alloc(draft->arena, (size_t)bytes + 1) : NULL;
    const char *name = wefti_arena_strdup(draft->arena, draft->name);
    bool whole = o && words && name && (copy || !text);
    for (int i = 0; i < count && whole; i++) {
        words[i] = wefti_arena_strdup(draft->arena, overrides[i]);
        whole = words[i];
    }
    WEFT_REQUIRE(whole, WEFT_E_NOMEM, "no memory for a job");
    if (copy) memcpy(copy, text, (size_t)bytes);
    *o = (job_origin){name, copy, bytes, words, count};
    draft->job.origin = o;
    return WEFT_OK;
}

/* devices 0: as the job says. */
static weft_status parse(const job_origin *from, int64_t devices, weft_job **out) {
    wefti_job_draft draft = {.name = from->name, .devices = devices};
    loaded_job *loaded = wefti_calloc(1, sizeof *loaded);
    WEFT_REQUIRE(loaded, WEFT_E_NOMEM, "no memory for a job");
    weft_status status;
    WEFT_TRY_OR(err_arena, status, wefti_arena_create(&draft.arena));
    WEFT_TRY_OR(err_read, status,
                read_job(&draft, from->text, from->bytes, from->overrides, from->count));
    WEFT_TRY_OR(err_read, status,
                keep_origin(&draft, from->text, from->bytes, from->overrides, from->count));
    loaded->job = draft.job;
    loaded->arena = draft.arena;
    loaded->plan = draft.plan;
    *out = &loaded->job;
    return WEFT_OK;
err_read:
    weft_plan_destroy(draft.plan);
    wefti_arena_destroy(draft.arena);
err_arena:
    wefti_free(loaded);
    return status;
}

weft_status weft_job_parse(const char *name, const char *text, int64_t bytes,
                           const char *const *overrides, int count, weft_job **out) {
    WEFT_REQUIRE(name && out && bytes >= 0 && count >= 0 && (overrides || !count), WEFT_E_ARG,
                 "weft_job_parse needs a name, a place for the result and a count of overrides");
    const job_origin from = {name, text, bytes, (const char **)(uintptr_t)overrides, count};
    return parse(&from, 0, out);
}

weft_status wefti_job_for_devices(const weft_job *job, int devices, weft_job **out) {
    WEFT_REQUIRE(job->origin, WEFT_E_ARG,
                 "only a job that was read can be read for another number of devices");
    WEFT_TRY(parse(job->origin, devices, out));
    (*out)->progress = job->progress;
    return WEFT_OK;
}

/* Whether a line of the text begins with a section of a job, or a key outside of all sections. */
bool wefti_job_has_section(const char *text, int64_t bytes) {
    for (const char *at = text, *end = text + bytes; at < end;) {
        char word[WEFTI_JOB_PATH];
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_.");
        if (length && length < sizeof word && at[length] == ':') {
            snprintf(word, sizeof word, "%.*s", (int)length, at);
            if (is_section(word) || wefti_job_row_number(word) >= 0) return true;
        }
        const char *line = memchr(at, '\n', (size_t)(end - at));
        at = line ? line + 1 : end;
    }
    return false;
}

void weft_job_free(weft_job *job) {
    if (!job) return;
    loaded_job *loaded = (loaded_job *)(void *)job;
    weft_plan_destroy(loaded->plan);
    wefti_arena_destroy(loaded->arena);
    wefti_free(loaded);
}
