/* The table of keys (keys.def) and functions on it. */
#include "job/job.h"

#include <string.h>

#include "topo/limits.h"

#define JOB_CHOICE_TEXT(name, text) text,
static const char *const families[] = {WEFT_FAMILY_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const formats[] = {WEFT_FORMAT_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const bad_lines[] = {"refuse", "skip", NULL};
static const char *const optimizers[] = {WEFT_OPTIMIZER_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const schedules[] = {WEFT_SCHEDULE_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const parallel_modes[] = {WEFT_JOB_MODE_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const searches[] = {WEFT_SEARCH_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const cost_models[] = {"mindspore", "machine", NULL};
static const char *const cost_phases[] = {"training", "inference", NULL};
static const char *const pipeline_schedules[] = {WEFT_PIPELINE_SCHEDULE_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const recompute_modes[] = {WEFT_RECOMPUTE_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const fusion_modes[] = {WEFT_FUSION_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const datasets[] = {WEFT_DATASET_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const offloads[] = {"none", "auto", WEFT_TIER_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const gradients[] = {"mean", "sum", NULL};
static const char *const products[] = {WEFT_PRODUCTS_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const rows_of_tables[] = {WEFT_ROWS_LIST(JOB_CHOICE_TEXT) NULL};
static const char *const masters[] = {"device", "host", NULL};
static const char *const precisions[] = {[WEFT_F32] = "f32", [WEFT_BF16] = "bf16", NULL};

/* The number of elements of a field that may be an array. */
#define COUNT_INTEGERS(field) (int)(sizeof(((weft_job *)0)->field) / sizeof(int64_t))
#define BELOW(x) ((x)-0x1p-53)
#define WEFTI_RANKS_ WEFTI_RANKS_SAME /* the column is left out */
#define JOB_ROW(path_, kind_, field_, default_, min_, max_, words_, help_, of_model_, ...)         \
    {.path = path_,                                                                                \
     .default_text = default_,                                                                     \
     .help = help_,                                                                                \
     .kind = WEFTI_JOB_##kind_,                                                                    \
     .count = COUNT_INTEGERS(field_),                                                              \
     .offset = offsetof(weft_job, field_),                                                         \
     .min = min_,                                                                                  \
     .max = max_,                                                                                  \
     .words = words_,                                                                              \
     .of_model = of_model_,                                                                        \
     .ranks = WEFTI_RANKS_##__VA_ARGS__},
#define JOB_KEY(path, kind, field, default_text, min, max, words, help, ...)                       \
    JOB_ROW(path, kind, field, default_text, min, max, words, help, false, __VA_ARGS__)
#define JOB_KEY_OF_MODEL(path, kind, field, default_text, min, max, words, help, ...)              \
    JOB_ROW(path, kind, field, default_text, min, max, words, help, true, __VA_ARGS__)
static const wefti_job_row rows[] = {
#include "job/keys.def"
};
#undef JOB_KEY
#undef JOB_KEY_OF_MODEL

enum { KEYS_ROWS = sizeof rows / sizeof *rows };
_Static_assert((int)KEYS_ROWS <= (int)WEFTI_JOB_KEYS_MAX, "raise WEFTI_JOB_KEYS_MAX");
/* Choices are stored through an int. A share is stored as a text followed by its fraction. */
_Static_assert(sizeof(weft_family) == sizeof(int) && sizeof(weft_dtype) == sizeof(int) &&
                   sizeof(weft_schedule) == sizeof(int) && sizeof(weft_dataset) == sizeof(int),
               "enum");
_Static_assert((int)WEFT_JOB_MODE_DATA == (int)WEFT_PARALLEL_DATA &&
                   (int)WEFT_JOB_MODE_AUTO == (int)WEFT_PARALLEL_MODES,
               "a job has the modes of plans, and one more");
_Static_assert(offsetof(weft_job, data.validation_fraction) ==
                   offsetof(weft_job, data.validation) + sizeof(const char *),
               "a share is a text with its fraction behind it");

const wefti_job_row *wefti_job_table(int *out_count) {
    *out_count = KEYS_ROWS;
    return rows;
}

bool wefti_job_row_auto(const wefti_job_row *row) {
    for (const char *const *word = row->words; word && *word; word++)
        if (!strcmp(*word, "auto")) return false; /* a choice like any other */
    return !strcmp(row->default_text, "auto");
}

const char *weft_format_text(weft_format format) {
    return (unsigned)format < WEFT_FORMATS ? formats[format] : "?";
}
const char *weft_optimizer_text(weft_optimizer_kind optimizer) {
    return (unsigned)optimizer < WEFT_OPTIMIZERS ? optimizers[optimizer] : "?";
}
const char *weft_schedule_text(weft_schedule_kind schedule) {
    return (unsigned)schedule < WEFT_SCHEDULES ? schedules[schedule] : "?";
}

/* The public rows come from the same list. */
#define TYPE_TEXT "text"
#define TYPE_FILE "path"
#define TYPE_CHOICE "choice"
#define TYPE_INTEGER "whole number"
#define TYPE_REAL "number"
#define TYPE_FLAG "true or false"
#define TYPE_BYTES "bytes"
#define TYPE_LIMIT "bytes or per cent"
#define TYPE_INTEGERS "list of whole numbers"
#define TYPE_REALS "list of numbers"
#define TYPE_SHARE "path or number"
#define TYPE_SIZES "{axis: size}"
#define TYPE_FLAGS "{pattern: true or false}"
#define TYPE_MESHES "list of {axis: size}"
#define TYPE_SPLITS "list of {match, split}"
#define TYPE_LAYOUTS "list of {match, layout}"
#define TYPE_STAGES "list of {match, stage}"
#define TYPE_OFFLOADS "list of {match, what, to, cache}, or a choice"
#define TYPE_PLACES "list of {match, on}"
#define TYPE_SERVERS "list of {match, sync}"
#define TYPE_TEXTS "list of texts"
#define TYPE_DATASET "choice, {input: layout}, or parts of each input"
#define TYPE_BUCKETS "bytes or list of whole numbers"
#define JOB_KEY(path_, kind_, field_, default_, min_, max_, words_, help_, ...)                    \
    {.path = path_,                                                                                \
     .type = TYPE_##kind_,                                                                         \
     .default_text = default_,                                                                     \
     .help = help_,                                                                                \
     .words = words_,                                                                              \
     .min = min_,                                                                                  \
     .max = max_},
#define JOB_KEY_OF_MODEL JOB_KEY
static const weft_job_key keys[] = {
#include "job/keys.def"
};

const weft_job_key *weft_job_keys(int *out_count) {
    *out_count = KEYS_ROWS;
    return keys;
}
