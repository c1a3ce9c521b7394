/* How a job differs from the one that a run began with. See job/job.h. */
#include "job/job.h"

#include <string.h>

enum { KEYS_NAMED = 8 };

/* Settings that change how a run goes on, besides those of the model: prefixes of keys. */
static const char *const settings[] = {"train.batch",     "train.accumulate", "train.precision",
                                       "train.optimizer", "train.schedule",   "train.clip",
                                       "train.master",    "model.dropout",    "model.aux_loss"};

static bool is_setting(const char *path) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strncmp(path, settings[i], strlen(settings[i]))) return true;
    return false;
}

static bool is_model(const wefti_job_row *row) {
    return !strncmp(row->path, "model.", 6) && strcmp(row->path, "model.dropout") != 0;
}

/* The value as a job has it; NULL without memory. */
static char *value_text(const weft_job *job, const wefti_job_row *row) {
    wefti_text text = {0};
    wefti_job_write_value(job, row, &text);
    return wefti_text_take(&text);
}

/* A key that only one of the jobs uses differs as well: its choice (of the optimizer) does. */
static int compare(const weft_job *job, const weft_job *before, const wefti_job_row *row, int found,
                   wefti_text *out) {
    if (!wefti_job_is_used(job, row->path) || !wefti_job_is_used(before, row->path)) return found;
    char *now = value_text(job, row), *was = value_text(before, row);
    if (now && was && strcmp(now, was) != 0) {
        if (found < KEYS_NAMED)
            wefti_text_add(out, "%s%s %s -> %s", found ? ", " : "", row->path, was, now);
        else if (found == KEYS_NAMED)
            wefti_text_add(out, ", ...");
        found++;
    }
    wefti_free(now);
    wefti_free(was);
    return found;
}

char *wefti_job_differences(const weft_job *job, const char *before, bool of_model) {
    int rows, found = 0;
    const wefti_job_row *table = wefti_job_table(&rows);
    weft_job *old;
    wefti_text out = {0};
    if (!before ||
        weft_job_parse("the run's job", before, (int64_t)strlen(before), NULL, 0, &old) < 0) {
        wefti_error_clear();
        return NULL;
    }
    for (int i = 0; i < rows; i++)
        if (of_model ? is_model(&table[i]) : is_setting(table[i].path))
            found = compare(job, old, &table[i], found, &out);
    weft_job_free(old);
    if (found) return wefti_text_take(&out);
    wefti_text_free(&out);
    return NULL;
}
