/* The frame of the `weft` command: a table of verbs, and for each verb a table of options. Parsing
 * and help texts come from these tables. The command uses the public interface only.
 *
 * Exit codes:
 * - 0: done.
 * - 1: failed for good.
 * - 2: wrong usage.
 * - 75 (EX_TEMPFAIL): worth trying again. A process, a host or the scheduler was lost or late.
 * - 128 + N: stopped by signal N (129, 130, 141, 143).
 *
 * `weft launch` ends with the exit code of the failed rank, or with 75 if a signal killed it. */
#ifndef WEFT_CLI_H
#define WEFT_CLI_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "weft/job.h"
#include "weft/status.h"
#include "weft/world.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_AGAIN = 75 };

typedef enum cli_kind {
    CLI_FLAG,    /* bool, no value */
    CLI_TEXT,    /* const char *, borrowed from argv; never "": that is a variable not set */
    CLI_PROSE,   /* the same, and "" is a text as well */
    CLI_TEXTS,   /* cli_texts: the option may be repeated */
    CLI_INTEGER, /* int64_t */
    CLI_REAL,    /* double */
} cli_kind;

/* Values of an option that may be repeated, borrowed from argv. Ends with a NULL. */
typedef struct cli_texts {
    const char **items;
    int count;
} cli_texts;
/* Before parsing: makes room for the values among `words` words. False after a message. */
bool cli_texts_create(cli_texts *texts, int words);
void cli_texts_free(cli_texts *texts);

/* One option. `offset` is the place of its value in the verb's own struct; min and max bound
 * numbers. */
typedef struct cli_option {
    const char *name, *argument; /* "tokens", "N" for --tokens N; argument is NULL for flags */
    cli_kind kind;
    size_t offset;
    double min, max;
    const char *help;
} cli_option;

typedef struct cli_verb {
    const char *name, *summary, *usage, *example, *notes; /* notes may be NULL */
    const cli_option *options;                            /* ends with a NULL name */
    int (*run)(const struct cli_verb *verb, int count, char **words);
} cli_verb;

#define CLI_VERBS(X)                                                                               \
    X(train)                                                                                       \
    X(generate)                                                                                    \
    X(eval)                                                                                        \
    X(infer)                                                                                       \
    X(model)                                                                                       \
    X(plan)                                                                                        \
    X(program)                                                                                     \
    X(simulate)                                                                                    \
    X(audit)                                                                                       \
    X(trace) X(info) X(machine) X(checkpoint) X(launch) X(server) X(health) X(jobs) X(bench)
#define CLI_VERB_DECLARE(name) extern const cli_verb cli_##name;
CLI_VERBS(CLI_VERB_DECLARE)

/* Reads the words after the verb into `values`. Words that are not options stay in order in
 * words[0..*out_count-1]. False ends the verb with *out_exit: help was shown, or the words were
 * wrong. */
bool cli_parse(const cli_verb *verb, int count, char **words, void *values, int *out_count,
               int *out_exit);

/* --- errors.c: each failure is said by one of these calls, on stderr. With --json the last one is
 * an object on stdout as well, {"error": {"status", "message", "exit_code"}}, printed at the end.
 */
/* Which word is wrong and how to get help. Returns CLI_USAGE. */
int cli_usage(const cli_verb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_usage_of_none(const char *format, ...) __attribute__((format(printf, 1, 2))); /* no verb */
/* "weft: <the library's message>", with WEFT_TRACE=1 its trail too. Returns CLI_FAILED. */
int cli_failed(void);
/* A failure of the command itself. Returns CLI_FAILED. */
int cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_errors_as_json(bool json); /* the verb has --json, and this process reports */
void cli_errors_told(void);         /* the verb's JSON says already what is wrong */
int cli_errors_end(int code);       /* prints the object; returns `code` */

/* Whether a file can be written there. Asked before long work; an existing file stays as it is.
 * False with a message for cli_failed. */
bool cli_can_write(const char *path);

/* Where a job comes from: a file, `key=value` words, and options that stand for keys. Options that
 * were not given are 0 and NULL. */
typedef struct cli_job_source {
    const char *path; /* NULL: no file */
    char **words;     /* [overrides] */
    int overrides;
    int64_t devices, batch, context;
    const char *plan, *model, *precision;
    const char *mode, *search;  /* --search without --mode means mode auto */
    const char *fix, *fix_more; /* constraints of the joint search: with them too */
    const char *memory, *search_seconds;
    int64_t evaluations;
    const char *machine, *topology; /* the same under two names; at most one is given */
    const char *import;             /* options of another system, in place of a job file */
    bool import_env;                /* its variables come from the environment, too */
    const char *recovery;           /* weft_launch_recovery() */
    bool into_recovery;             /* checkpoints go there too */
} cli_job_source;
/* The options of verbs that ask about a model without training it: their values lie in the member
 * `source` of the verb's struct. */
#define CLI_JOB_AT(type, field) (offsetof(type, source) + offsetof(cli_job_source, field))
#define CLI_MODEL_OPTIONS(type)                                                                     \
    {"model",                                                                                       \
     "FILE",                                                                                        \
     CLI_TEXT,                                                                                      \
     CLI_JOB_AT(type, model),                                                                       \
     0,                                                                                             \
     0,                                                                                             \
     "the model of this config.json (Hugging Face); needs no job file, data or weights"},           \
        {"import",                                                                                  \
         "FILE",                                                                                    \
         CLI_TEXT,                                                                                  \
         CLI_JOB_AT(type, import),                                                                  \
         0,                                                                                         \
         0,                                                                                         \
         "the job of these options: a script or list of Megatron-LM, or a file of torchtitan"},     \
        {"import-env",                                                                              \
         NULL,                                                                                      \
         CLI_FLAG,                                                                                  \
         CLI_JOB_AT(type, import_env),                                                              \
         0,                                                                                         \
         0,                                                                                         \
         "variables that this script does not set come from the environment"},                      \
        {"batch", "N", CLI_INTEGER, CLI_JOB_AT(type, batch), 1, INT32_MAX, "samples of a step"},    \
        {"context", "N", CLI_INTEGER, CLI_JOB_AT(type, context), 1, 1 << 24, "tokens of a sample"}, \
    {                                                                                               \
        "precision", "NAME", CLI_TEXT, CLI_JOB_AT(type, precision), 0, 0, "f32 or bf16"             \
    }
/* Of the joint search; the job's keys say the same. */
/* clang-format off */
#define CLI_SEARCH_OPTIONS(type) \
    {"fix", "TEXT", CLI_TEXT, CLI_JOB_AT(type, fix), 0, 0, \
     "constraints of the joint search, \"pp=4 tp=2\""}, \
    {"memory", "BYTES", CLI_TEXT, CLI_JOB_AT(type, memory), 0, 0, \
     "memory of a device, 80GiB: the same as device.memory"}, \
    {"evaluations", "N", CLI_INTEGER, CLI_JOB_AT(type, evaluations), 1, 1 << 20, \
     "the joint search simulates at most so many plans"}, \
    {"search-seconds", "S", CLI_TEXT, CLI_JOB_AT(type, search_seconds), 0, 0, \
     "the joint search ends then, with the best plan so far or none; it cannot be repeated"}
/* clang-format on */
#define CLI_MODE_OPTIONS(type)                                                                     \
    {"mode",                                                                                       \
     "MODE",                                                                                       \
     CLI_TEXT,                                                                                     \
     CLI_JOB_AT(type, mode),                                                                       \
     0,                                                                                            \
     0,                                                                                            \
     "the same as parallel.mode: data, semi, manual, or auto, where a search makes the plan"},     \
        {"search",                                                                                 \
         "SEARCH",                                                                                 \
         CLI_TEXT,                                                                                 \
         CLI_JOB_AT(type, search),                                                                 \
         0,                                                                                        \
         0,                                                                                        \
         "mode auto by this search: propagation, dynamic, recursive or joint"},                    \
        {"machine",                                                                                \
         "MACHINE",                                                                                \
         CLI_TEXT,                                                                                 \
         CLI_JOB_AT(type, machine),                                                                \
         0,                                                                                        \
         0,                                                                                        \
         "for this machine: a name (weft machine list), a topology or a file"},                    \
    {                                                                                              \
        "topology", "TEXT", CLI_TEXT, CLI_JOB_AT(type, topology), 0, 0,                            \
            "the same as --machine: \"hosts=8 gpus=8 gpu=h100-80g intra=450e9,3e-6\""              \
    }
/* [JOB.yaml] key=value...: the file is the one word without '='. The overrides are moved to the
 * front of `words`. Returns CLI_DONE, or CLI_USAGE after a complaint. */
int cli_job_words(const cli_verb *verb, int count, char **words, cli_job_source *source);
/* --- world.c: verbs that run as one of several processes, each with one device --- */
/* Which launcher has started this process; says its notes. CLI_DONE, or CLI_FAILED. */
int cli_find_launcher(weft_launcher *out);
/* cli_failed; of a rank that is not the first, the message says which. */
int cli_failed_rank(int rank);
/* CLI_AGAIN if a process, a host or the scheduler was lost, or is missing; else CLI_FAILED. */
int cli_code_of(weft_status status);
/* weft_world_join has failed: cli_failed_rank, with the code of cli_code_of. */
int cli_failed_to_join(int rank, weft_status status);
/* Leaves the world. Where `code` is CLI_FAILED, cli_code_of the job's failure; else `code`. */
int cli_leave(weft_world *world, int code);
/* The job for `size` processes: as many devices, unless the job or an option sets a number, which
 * then must be that. */
int cli_job_load_for(int size, const cli_job_source *source, weft_job **out);
/* CLI_DONE, or CLI_FAILED after a complaint. */
int cli_job_load(const cli_job_source *source, weft_job **out);
/* Writes notes to stderr, each line of `lines` for itself: what of a plan has no effect, or what a
 * search has done. NULL: none. */
void cli_notes(const char *lines);
/* --- signals.c --- */
/* SIGUSR1, SIGUSR2 and SIGXCPU. A job system announces by them that it will end the job soon. They
 * ask for a stop, but never hasten one: the kernel repeats SIGXCPU every second, and Slurm sends
 * SIGTERM after its announcement. */
bool cli_is_announcement(int number);
/* For a scheduler that runs alone: it must outlive the ranks that save their states. */
void cli_ignore_announcements(void);
/* Calls `handler` in this thread at SIGINT, SIGTERM, SIGHUP, SIGPIPE and announcements, one at a
 * time. A signal that was ignored when the command started (nohup) stays ignored; SIGINT and
 * SIGTERM only with `keep_ignored`. If a call to the file system does not return for 3.5 s after a
 * request, which an announcement is not, the process ends with the exit code 128 + signal. */
void cli_catch_signals(void (*handler)(int), bool keep_ignored);
/* Catches them so that the first one is a request to stop: it is told once, with `text` ("stopping
 * after this step"), unless `text` is NULL. A signal within a second of it counts as the same
 * request: a job system signals all processes of a job, and a launcher among them passes the signal
 * on. A later signal ends the process at once, unless it is an announcement, or the first after
 * one. Returns the number of the signal that asked, 0 for none yet. */
const volatile int *cli_stop_by_signals(const char *text);
/* Ends the process by this signal; the first process of a container with 128 + its number. */
void cli_end_by(int number);
/* The kernel applies no default action to signals of the first process of a container: without a
 * handler it would ignore a request to end while it joins a job, or plans one. Now such a request
 * ends it, until signals are caught. Other processes: nothing. */
void cli_hear_signals_as_first_process(void);
/* There is no step to end any more: a request ends the process at once, and one that came before
 * (0: none did) ends it after 4 s. */
void cli_let_requests_end_this(int stop_signal);
/* For such a handler: an output whose reader has taken nothing for a second goes to /dev/null from
 * now on. The write that waits for this reader ends with EINTR, and no further one waits. */
void cli_drop_stuck_output(void);

void cli_show_keys(void); /* the keys of a job file, in Markdown */

/* --- terminal.c: output for people; colours and progress on terminals only --- */
bool cli_is_terminal(FILE *stream); /* that knows escape sequences */
int cli_columns(FILE *stream);      /* width of the terminal, 80 if unknown */
int cli_width(FILE *stream);        /* the same; 0 if the stream is no terminal */
/* All output for people goes through here (tools/check_floors checks that), because files, models
 * and other programs may supply any of its bytes. As fprintf, but on a terminal each control
 * character except tab and line end becomes '?'. */
void cli_say(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_say_list(FILE *stream, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
/* On terminals bold, and dim. */
void cli_say_bold(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_say_dim(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_bold_begin(FILE *stream);
void cli_bold_end(FILE *stream);
/* The same for a text that arrives in pieces of any bytes. *last: the byte before, first 0. */
void cli_say_piece(FILE *stream, const char *bytes, size_t count, unsigned char *last);
void cli_line_anew(
    FILE *stream); /* the next output overwrites the line; does nothing off terminals */
/* Progress on standard error, if it is a terminal and a report takes more than 2 s. */
void cli_show_ranks(void *context, int done, int of);
/* Bytes that another program wrote, as it did. */
void cli_pass_on(FILE *stream, const char *bytes, size_t count);
bool cli_is_control(
    unsigned char before,
    unsigned char c); /* whether `c` is a control character after the byte `before` */

/* --- table.c: tables and texts that fit the width of a terminal --- */
typedef struct cli_column {
    const char *title;
    int width; /* usual width; a longer cell widens the column */
    int rank;  /* if the terminal is too narrow, columns of the highest rank are left out first; 0:
                  never */
    bool left; /* alignment */
} cli_column;
typedef struct cli_table cli_table;
/* The columns are borrowed. NULL without memory: the other calls accept that, and the print says
 * so.
 */
cli_table *cli_table_create(const cli_column *columns, int count);
void cli_table_row(cli_table *table); /* begins the next row, with empty cells */
void cli_table_cell(cli_table *table, int column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Prints titles and rows, names the columns left out, and frees the table. */
void cli_table_print(cli_table *table, FILE *stream);
/* Prints a text and a line end. On a terminal, breaks lines at spaces; `used` columns of the first
 * line are taken, further lines begin at `indent`. A line of the text keeps its leading spaces. */
void cli_say_wrapped(FILE *stream, int used, int indent, const char *text);
/* text.c: prints a text of the library as it is. On a terminal that is narrower than its lines,
 * columns of tables move together, and long lines go on in further lines. */
void cli_say_text(FILE *stream, const char *text);

/* --- json.c: one JSON object a line, written piece by piece --- */
/* Bytes of the UTF-8 character at `p` (RFC 3629, table 3-7 of Unicode); 0 if there is none. */
size_t cli_character(const unsigned char *p, size_t left);
typedef struct cli_json {
    FILE *stream;
    bool first;
} cli_json;
void cli_json_begin(cli_json *json, FILE *stream);
void cli_json_text(cli_json *json, const char *key, const char *value); /* NULL value: null */
void cli_json_bytes(cli_json *json, const char *key, const char *value, size_t bytes);
void cli_json_integer(cli_json *json, const char *key, int64_t value);
void cli_json_real(cli_json *json, const char *key, double value); /* not finite: null */
void cli_json_bool(cli_json *json, const char *key, bool value);
void cli_json_object(cli_json *json, const char *key);
void cli_json_array(cli_json *json, const char *key); /* values inside: key NULL */
void cli_json_close(cli_json *json, char bracket);    /* '}' or ']' */
void cli_json_end(cli_json *json);                    /* the closing brace, newline, flush */

/* --- predict/prediction.c --- */
struct weft_prediction;
/* The members step_seconds, tokens_per_second, mfu, predicted_peak_bytes and seconds_by_cause of an
 * open object, and what belongs to them; a summary and the causes as text. */
void cli_prediction_json(cli_json *json, const struct weft_prediction *prediction);
void cli_prediction_text(const struct weft_prediction *prediction);
/* The same with all classes of ranks: what `weft simulate` prints. */
void cli_simulation_json(const struct weft_prediction *prediction);
void cli_simulation_text(const struct weft_prediction *prediction);

/* "12.3 GiB", "1.2 GFLOP/s": a number with three digits and a prefix, into the caller's buffer. */
const char *cli_bytes(double bytes, char out[32]); /* binary prefixes */
/* What a device keeps in tiers below its memory: ", in host memory 2.0 GiB, on the disk 8.0 GiB";
 * "" if nothing. The members host_bytes and disk_bytes, those that are not 0. */
enum { CLI_TIERS = 112 };
const char *cli_tiers(int64_t host_bytes, int64_t disk_bytes, char out[CLI_TIERS]);
void cli_tiers_json(cli_json *json, int64_t host_bytes, int64_t disk_bytes);
/* What a step copies to and from these tiers: a line of text; "" if nothing. The members
 * host_moved_bytes and disk_moved_bytes, those that are not 0. */
const char *cli_moves(int64_t host_bytes, int64_t disk_bytes, char out[CLI_TIERS]);
void cli_moves_json(cli_json *json, int64_t host_bytes, int64_t disk_bytes);
/* A line about servers of parameters; nothing if there are none. The members server_bytes and
 * server_moved_bytes. */
void cli_servers(FILE *stream, int64_t bytes, int64_t moved_bytes);
void cli_servers_json(cli_json *json, int64_t bytes, int64_t moved_bytes);
const char *cli_amount(double amount, const char *unit, char out[32]); /* decimal prefixes */

#endif
