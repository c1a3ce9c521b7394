/* Options of other training systems: Megatron-LM's command line, and torchtitan's configuration.
 * Each system is one table: an option, the key of the job that says the same, and functions for
 * what is not one to one. Both directions read the table. Sources: megatron/training/arguments.py
 * and core/transformer/pipeline_parallel_layer_layout.py of Megatron-LM 0.16 to 0.20, and
 * torchtitan/config/configs.py of torchtitan 0.3.0. */
#ifndef WEFTI_JOB_SYSTEMS_SYSTEMS_H
#define WEFTI_JOB_SYSTEMS_SYSTEMS_H

#include "base/memory.h"
#include "base/text.h"
#include "job/job.h"
#include "search/degrees.h"
#include "weft/model.h"

typedef struct wefti_translation wefti_translation;

typedef enum wefti_option_form {
    WEFTI_OPTION_OF_KEY, /* as the key of the job: a whole number or a number */
    WEFTI_OPTION_INTEGER,
    WEFTI_OPTION_REAL,
    WEFTI_OPTION_TEXT,
    WEFTI_OPTION_SWITCH, /* no value, or one that says nothing more */
} wefti_option_form;

/* Which jobs an option says something of. */
typedef enum wefti_option_jobs {
    WEFTI_JOBS_ALL,
    WEFTI_JOBS_ROTARY,
    WEFTI_JOBS_EXPERTS,
    WEFTI_JOBS_ADAM, /* adam, adamw */
    WEFTI_JOBS_DECAY /* a learning rate that falls to a share of it */
} wefti_option_jobs;

/* The value in the member of its form; a switch has none. */
typedef struct wefti_option_value {
    bool given;
    int64_t integer;
    double real;
    const char *text;
} wefti_option_value;

/* What options mean that are not one to one with keys. `read`: from the values into the job, and
 * whatever else they mean. `write`: gives values, and adds notes of what has none. */
typedef struct wefti_transform {
    weft_status (*read)(wefti_translation *x);
    void (*write)(wefti_translation *x);
} wefti_transform;

typedef struct wefti_option {
    const char *name;
    wefti_option_form form;
    const char *key;           /* of the job: where the value goes */
    const wefti_transform *by; /* NULL: key and option have the same value. Options in a row with
                                  one transform are read and written by one call */
    const char *aliases; /* names with the same meaning, each with a space before; only read */
    int part;            /* of a key that is a list */
    wefti_option_jobs jobs;
    const char *standard; /* what the system takes where the option is missing; NULL: the job's own
                             default counts */
    bool brief;           /* a value equal to the standard is not written */
    bool only_write;      /* another option says the same */
} wefti_option;

typedef struct wefti_system {
    const char *name;
    const wefti_option *options;
    int count;
    /* The values of a text, in x->values. Texts live in x->arena. Messages begin with `name`.
     * `variables` as in weft_job_import. */
    weft_status (*read)(const char *name, const char *text, int64_t bytes,
                        const char *const *variables, wefti_translation *x);
    /* WEFT_E_NO_IMPL if it has no such model. */
    weft_status (*check)(weft_family family);
    /* The text of a value; `before`: the option before it, NULL for the first. `o` NULL: the end.
     */
    void (*add)(const wefti_option *o, const wefti_option *before, const wefti_option_value *v,
                wefti_text *out);
    bool has_stages; /* its options say the stage of each layer */
} wefti_system;
const wefti_system *wefti_system_of(weft_system system);

enum { WEFTI_OPTIONS_MAX = 96 };
/* A job on its way to another system, or from there. */
struct wefti_translation {
    const wefti_system *system;
    weft_job job; /* model, train and, import, parallel */
    wefti_arena *arena;
    bool told[WEFTI_JOB_KEYS_MAX]; /* import: keys that the options say */
    weft_model_config config;      /* export: complete; import: what degrees need to know */
    wefti_degrees degrees;
    int64_t devices;
    int32_t *stage_of; /* [layers]: the virtual stage of each; NULL: not said. wefti_free */
    wefti_option_value values[WEFTI_OPTIONS_MAX];
    bool failed;       /* no memory for the text of a value */
    wefti_text left;   /* import: names of options that are not taken over, each with a comma */
    wefti_text *notes; /* a line for each option, or part of a job, without counterpart */
};

/* `x` has the system, the job, its complete configuration, degrees and notes; `plan` is
 * completed. */
weft_status wefti_translation_export(wefti_translation *x, const weft_plan *plan,
                                     wefti_text *out) WEFT_CHECKED;

/* ---- for the tables ---- */

/* The given value of an option; else the standard, "" for a text. A whole number 0 counts as not
 * given. */
const wefti_option_value *wefti_value_of(const wefti_translation *x, const char *name);
int64_t wefti_whole_of(const wefti_translation *x, const char *name, int64_t standard);
double wefti_real_of(const wefti_translation *x, const char *name, double standard);
bool wefti_is_given(const wefti_translation *x, const char *name);
bool wefti_word_is(const wefti_translation *x, const char *name, const char *word);
/* Marks a key of the job as said by the options. */
void wefti_tell(wefti_translation *x, const char *key);
bool wefti_is_rotary(const wefti_translation *x);
/* Give an option its value; a switch, if `given`. */
void wefti_give_whole(wefti_translation *x, const char *name, int64_t value);
void wefti_give_real(wefti_translation *x, const char *name, double value);
void wefti_give_text(wefti_translation *x, const char *name, const char *value);
void wefti_give_if(wefti_translation *x, const char *name, bool given);
/* The samples of a part, if the batch has as many equal parts; else 0, and a note. */
int64_t wefti_samples_of_part(wefti_translation *x, int64_t parts);
/* A fraction of `whole`, with the fewest digits that give `part` again. */
double wefti_fraction(double part, double whole);

/* ---- texts ---- */

/* megatron_words.c: a launch script (shell.h) or a list of options. WEFT_E_NO_IMPL for a program
 * that trains another model than pretrain_gpt.py. */
weft_status wefti_megatron_read(const char *name, const char *text, int64_t bytes,
                                const char *const *variables, wefti_translation *x) WEFT_CHECKED;
/* Never OF_KEY. */
wefti_option_form wefti_option_form_of(const wefti_option *o);
/* Reads a value in the form of an option. False: it has another form, or is out of its range. */
bool wefti_option_parse(const wefti_option *o, const char *text, wefti_option_value *out);
/* The range of a number, for messages; `out` has room for 64 bytes. */
const char *wefti_option_wanted(const wefti_option *o, char *out);

/* The value alone; `digits`: the least of a number that is not whole. */
void wefti_option_print(const wefti_option *o, const wefti_option_value *v, int digits,
                        wefti_text *out);

/* Rows: of a key that the system has in the same form, and of what a transform reads and writes. */
#define WEFTI_OPTION_SAME(key_, name_, ...)                                                        \
    { .name = name_, .key = key_, __VA_ARGS__ }
#define WEFTI_OPTION_BY(by_, key_, form_, name_, ...)                                              \
    { .name = name_, .form = WEFTI_OPTION_##form_, .key = key_, .by = &(by_), __VA_ARGS__ }
#define WEFTI_TRANSFORM(name) static const wefti_transform name = {read_##name, write_##name}

/* megatron_parallel.c */
extern const wefti_transform wefti_megatron_degrees, wefti_megatron_stages, wefti_megatron_shards,
    wefti_megatron_recompute;
extern const wefti_system wefti_megatron, wefti_torchtitan;

#endif
