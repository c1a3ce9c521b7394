/* What stands at the place of a job file: a file, the directory of a run, or something else that a
 * user may mean. See weft/job.h. */
#include "job/job.h"

#include <string.h>

#include "base/io.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"
#include "weft/checkpoint.h"

/* An encrypted run can be read only with its key, which only the overrides name so far. */
static weft_status take_key(const char *const *overrides, int count) {
    static const char key[] = "checkpoint.key=";
    for (int i = 0; i < count; i++)
        if (!strncmp(overrides[i], key, sizeof key - 1) && overrides[i][sizeof key - 1])
            WEFT_TRY(weft_checkpoint_key(overrides[i] + sizeof key - 1));
    return WEFT_OK;
}

/* The job in the manifest of the newest step. The run may have moved since: its directory is the
 * one given. */
static weft_status load_job_of(const wefti_checkpoint *c, const char *path,
                               const char *const *overrides, int count, weft_job **out) {
    const char *text = wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, "job");
    const char **words = wefti_calloc((size_t)count + 1, sizeof *words);
    char *dir = wefti_format("checkpoint.dir=%s", path),
         *name = wefti_format("the job of %s", path);
    weft_status status = WEFT_OK;
    if (!words || !dir || !name) {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a job");
    } else if (!text) {
        status =
            WEFT_RAISE(WEFT_E_ARG, "%s has no job: a program wrote its steps, not `weft train`",
                       wefti_checkpoint_path(c));
    } else {
        words[0] = dir;
        for (int i = 0; i < count; i++) words[i + 1] = overrides[i];
        status = weft_job_parse(name, text, (int64_t)strlen(text), words, count + 1, out);
    }
    wefti_free(name);
    wefti_free(dir);
    wefti_free(words);
    return status;
}

static weft_status load_run(const char *path, const char *const *overrides, int count,
                            weft_job **out) {
    wefti_checkpoint *c = NULL;
    WEFT_TRY(take_key(overrides, count));
    WEFT_TRY(wefti_run_refuse_part(path));
    WEFT_TRY(wefti_checkpoint_open_unread(path, INT64_MAX, &c, NULL));
    weft_status status = load_job_of(c, path, overrides, count, out);
    wefti_checkpoint_close(c);
    return status;
}

static weft_status refuse_directory(const char *path) {
    char *config = wefti_format("%s/config.json", path);
    WEFT_REQUIRE(config, WEFT_E_NOMEM, "no memory for a path");
    const bool model = wefti_exists(config);
    wefti_free(config);
    WEFT_REQUIRE(!model, WEFT_E_ARG,
                 "%s is a directory with a model: to train that model, write model.from=%s", path,
                 path);
    WEFT_FAIL(
        WEFT_E_ARG,
        "%s is a directory, without steps of a run: name a job file, or write data.path=%s to "
        "train on its files",
        path, path);
}

/* Slashes at the end do not belong to the name. */
static weft_status load_directory(const char *path, const char *const *overrides, int count,
                                  weft_job **out) {
    bool own = false;
    int64_t *steps = NULL, found = 0;
    WEFT_TRY(wefti_step_is(path, &own));
    if (own) {
        const char *slash = strrchr(path, '/');
        WEFT_FAIL(WEFT_E_ARG,
                  "%s is one step: a run continues from its newest one, as `weft train %.*s`", path,
                  slash ? (int)(slash - path) : 1, slash ? path : ".");
    }
    WEFT_TRY(wefti_run_steps(path, &steps, &found));
    wefti_free(steps);
    return found ? load_run(path, overrides, count, out) : refuse_directory(path);
}

static bool ends_as_job(const char *path) {
    static const char *const endings[] = {".yaml", ".yml", ".json"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (wefti_same_word(dot, endings[i])) return true;
    return false;
}

static weft_status load_file(const char *path, const char *const *overrides, int count,
                             weft_job **out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, WEFTI_YAML_BYTES, &text, &bytes));
    weft_status status = weft_job_parse(path, text, bytes, overrides, count, out);
    /* a text to train on is neither YAML nor the sections of a job */
    const bool other =
        status == WEFT_E_ARG && !ends_as_job(path) && !wefti_job_has_section(text, bytes);
    wefti_free(text);
    if (other)
        return wefti_prefix(status,
                            "%s is no job file; to train on it, write data.path=%s; read as a job",
                            path, path);
    WEFT_TRY(status);
    return WEFT_OK;
}

weft_status weft_job_load(const char *path, const char *const *overrides, int count,
                          weft_job **out) {
    if (!path || !*path) return weft_job_parse("the command line", NULL, 0, overrides, count, out);
    if (!wefti_is_dir(path)) return load_file(path, overrides, count, out);
    char *name = wefti_strdup(path);
    WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for a path");
    for (size_t end = strlen(name); end > 1 && name[end - 1] == '/'; end--) name[end - 1] = '\0';
    weft_status status = load_directory(name, overrides, count, out);
    wefti_free(name);
    WEFT_TRY(status);
    return WEFT_OK;
}
