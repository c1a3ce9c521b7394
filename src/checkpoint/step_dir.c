/* The directory of a run. See step_dir.h. */
#include "checkpoint/step_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"
#include "checkpoint/safetensors.h"

static const char *const prefixes[WEFTI_STEP_KINDS] = {"step-", ".tmp-step-", ".old-step-",
                                                       ".trash-step-"};

char *wefti_step_name(wefti_step_dir_kind kind, int64_t step, char out[WEFTI_STEP_NAME_BYTES]) {
    (void)snprintf(out, WEFTI_STEP_NAME_BYTES, "%s%012lld", prefixes[kind], (long long)step);
    return out;
}

/* Accepts only names that wefti_step_name makes, so that a step has one name. */
bool wefti_step_parse(const char *name, wefti_step_dir_kind *out_kind, int64_t *out_step) {
    for (int kind = 0; kind < WEFTI_STEP_KINDS; kind++) {
        size_t skip = strlen(prefixes[kind]);
        if (strncmp(name, prefixes[kind], skip)) continue;
        const char *digits = name + skip;
        size_t count = strlen(digits);
        if (count < 12 || count > 18 || strspn(digits, "0123456789") != count) return false;
        char canonical[WEFTI_STEP_NAME_BYTES];
        int64_t step = strtoll(digits, NULL, 10);
        if (strcmp(name, wefti_step_name((wefti_step_dir_kind)kind, step, canonical))) return false;
        *out_kind = (wefti_step_dir_kind)kind;
        *out_step = step;
        return true;
    }
    return false;
}

weft_status wefti_step_path(const char *dir, wefti_step_dir_kind kind, int64_t step, char **out) {
    char name[WEFTI_STEP_NAME_BYTES];
    char *path = wefti_format("%s/%s", dir, wefti_step_name(kind, step, name));
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a directory");
    *out = path;
    return WEFT_OK;
}

/* context: a wefti_step_dir_kind. */
static int64_t step_of(const char *name, const void *context) {
    wefti_step_dir_kind kind;
    int64_t step;
    const bool found = wefti_step_parse(name, &kind, &step);
    return found && kind == *(const wefti_step_dir_kind *)context ? step : -1;
}

weft_status wefti_step_list(const char *dir, wefti_step_dir_kind kind, int64_t **out_steps,
                            int64_t *out_count) {
    return wefti_dir_numbers(dir, step_of, &kind, out_steps, out_count);
}

weft_status wefti_step_holds(const char *path, bool *out) {
    *out = false;
    if (wefti_safetensors_is_name(path)) return WEFT_OK;
    int64_t *steps = NULL, count = 0;
    weft_status status = wefti_step_is(path, out);
    if (status >= 0) status = wefti_run_steps(path, &steps, &count);
    WEFT_REQUIRE(status >= 0 || !wefti_exists(path) || wefti_is_dir(path), WEFT_E_NOT_FOUND,
                 "%s is neither a directory nor a .safetensors file", path);
    WEFT_TRY(status);
    wefti_free(steps);
    *out = *out || count > 0;
    return WEFT_OK;
}

/* Renames a step from one kind to another. WEFT_E_NOT_FOUND without a message if it does not exist.
 */
static weft_status move(const char *dir, int64_t step, wefti_step_dir_kind from,
                        wefti_step_dir_kind to) {
    char *source = NULL, *target = NULL;
    weft_status status = wefti_step_path(dir, from, step, &source);
    if (status >= 0) status = wefti_step_path(dir, to, step, &target);
    if (status >= 0) status = wefti_rename(source, target);
    wefti_free(source);
    wefti_free(target);
    return status;
}

static weft_status remove_kind(const char *dir, int64_t step, wefti_step_dir_kind kind) {
    char *path = NULL;
    WEFT_TRY(wefti_step_path(dir, kind, step, &path));
    weft_status status = wefti_remove_tree(path);
    wefti_free(path);
    return status;
}

weft_status wefti_step_commit(const char *dir, int64_t step) {
    weft_status status = move(dir, step, WEFTI_STEP_COMMITTED, WEFTI_STEP_OLD);
    if (status == WEFT_E_NOT_FOUND) status = WEFT_OK; /* the ordinary case: the step is new */
    WEFT_TRY(status);
    WEFT_TRY(move(dir, step, WEFTI_STEP_TEMPORARY, WEFTI_STEP_COMMITTED));
    return remove_kind(dir, step, WEFTI_STEP_OLD);
}

weft_status wefti_step_abandon(const char *dir, int64_t step) {
    WEFT_TRY(remove_kind(dir, step, WEFTI_STEP_TEMPORARY));
    char *committed = NULL;
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &committed));
    bool replaced = wefti_exists(committed);
    wefti_free(committed);
    if (replaced) return remove_kind(dir, step, WEFTI_STEP_OLD);
    /* a directory is never renamed onto one with files, so an existing step is safe */
    weft_status status = move(dir, step, WEFTI_STEP_OLD, WEFTI_STEP_COMMITTED);
    return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
}

void wefti_step_undo(const char *dir, int64_t step) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    if (wefti_step_abandon(dir, step) < 0) wefti_error_clear();
    (void)wefti_failure_tell(&failure);
}

weft_status wefti_step_latest(const char *dir, int64_t *out) {
    enum { LATEST_BYTES = 4096 };
    char *path = wefti_format("%s/latest", dir), *text = NULL;
    int64_t bytes, step;
    wefti_step_dir_kind kind;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = wefti_file_read(path, LATEST_BYTES, &text, &bytes);
    wefti_free(path);
    *out = -1;
    if (status == WEFT_E_NOT_FOUND) wefti_error_clear();
    if (status < 0) return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
    text[strcspn(text, "\n")] = '\0';
    if (wefti_step_parse(text, &kind, &step) && kind == WEFTI_STEP_COMMITTED) *out = step;
    wefti_free(text);
    return WEFT_OK;
}

/* `latest` must not name a step that is gone: readers would count it as lost. */
static weft_status forget_latest(const char *dir, int64_t step) {
    int64_t latest = -1;
    WEFT_TRY(wefti_step_latest(dir, &latest));
    if (latest != step) return WEFT_OK;
    char *path = wefti_format("%s/latest", dir);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = wefti_remove_tree(path);
    wefti_free(path);
    return status;
}

weft_status wefti_step_remove(const char *dir, int64_t step) {
    WEFT_TRY(forget_latest(dir, step));
    WEFT_TRY(remove_kind(dir, step, WEFTI_STEP_TRASH));
    WEFT_TRY(move(dir, step, WEFTI_STEP_COMMITTED, WEFTI_STEP_TRASH));
    return remove_kind(dir, step, WEFTI_STEP_TRASH);
}

static weft_status clean_kind(const char *dir, wefti_step_dir_kind kind) {
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_step_list(dir, kind, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++)
        status = kind == WEFTI_STEP_TRASH ? remove_kind(dir, steps[i], kind)
                                          : wefti_step_abandon(dir, steps[i]);
    wefti_free(steps);
    return status;
}

/* A `latest` file that a killed run had written but not yet renamed: latest.<process>.<number>.tmp.
 */
static weft_status clean_latest(const char *dir) {
    char **names = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_dir_list(dir, &names, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(names[i], "latest.", 7) || length < 11 || strcmp(names[i] + length - 4, ".tmp"))
            continue;
        char *path = wefti_format("%s/%s", dir, names[i]);
        status = path ? wefti_remove_tree(path) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a path");
        wefti_free(path);
    }
    wefti_free(names);
    return status;
}

weft_status wefti_step_clean(const char *dir) {
    WEFT_TRY(clean_latest(dir));
    WEFT_TRY(clean_kind(dir, WEFTI_STEP_TEMPORARY));
    WEFT_TRY(clean_kind(dir, WEFTI_STEP_OLD));
    return clean_kind(dir, WEFTI_STEP_TRASH);
}

weft_status wefti_step_is(const char *path, bool *out) {
    char **names = NULL;
    int64_t count = 0, step;
    wefti_step_dir_kind kind;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    char base[WEFTI_STEP_NAME_BYTES] = {0};
    if (length - begin < sizeof base) memcpy(base, path + begin, length - begin);
    bool found = wefti_step_parse(base, &kind, &step);
    weft_status status = wefti_dir_list(path, &names, &count);
    if (status == WEFT_E_NOT_FOUND)
        WEFT_FAIL(status, "no checkpoint in %s: it does not exist%s", path, wefti_hub_hint(path));
    WEFT_TRY(status);
    for (int64_t i = 0; i < count; i++) found = found || !strcmp(names[i], "manifest.json");
    wefti_free(names);
    *out = found;
    return WEFT_OK;
}
