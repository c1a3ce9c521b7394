/* The words of verbs that take a job: [JOB.yaml] key=value..., and the options that stand for keys.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- words that a shell has split --- */

/* How many brackets of the word stay open. */
static int open_brackets(const char *word) {
    int open = 0;
    for (; *word; word++) open += !!strchr("[{(", *word) - !!strchr("]})", *word);
    return open;
}

/* "key=[a," and the words behind it, up to the closing bracket. */
static int refuse_split_list(const cli_verb *verb, int count, char **words) {
    char text[400];
    int used = 0, open = 0;
    for (int i = 0; i < count && used < (int)sizeof text && (i == 0 || open > 0); i++) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s", i ? " " : "", words[i]);
        open += open_brackets(words[i]);
    }
    return cli_usage(verb, "the shell splits this value at its spaces: write '%s' in quotes", text);
}

static bool ends_with(const char *word, const char *end) {
    const size_t length = strlen(word), tail = strlen(end);
    return length >= tail && !strcmp(word + length - tail, end);
}

static bool is_key(const char *word) {
    const char *near = weft_job_near_key(word);
    return near && !strcmp(near, word);
}

/* CLI_DONE, or CLI_USAGE after a complaint about words[at], which a shell made of a longer one. */
static int check_split(const cli_verb *verb, int count, char **words, int at) {
    const char *word = words[at], *equals = strchr(word, '='), *value;
    const bool more = at + 1 < count;
    if (equals && equals != word && more && open_brackets(equals + 1) > 0)
        return refuse_split_list(verb, count - at, words + at);
    if (equals == word && at > 0 && !strchr(words[at - 1], '=')) {
        value = word[1] ? word + 1 : more ? words[at + 1] : "VALUE";
        return cli_usage(verb, "write %s=%s without spaces around '='", words[at - 1], value);
    }
    if (equals && !equals[1] && equals != word && more && !strchr(words[at + 1], '=') &&
        !ends_with(words[at + 1], ".yaml") && !ends_with(words[at + 1], ".yml"))
        return cli_usage(verb, "write %s%s without spaces around '='", word, words[at + 1]);
    if (!equals && is_key(word) && !(more && words[at + 1][0] == '='))
        return cli_usage(verb, "'%s' is a key: write %s=VALUE", word, word);
    return CLI_DONE;
}

int cli_job_words(const cli_verb *verb, int count, char **words, cli_job_source *source) {
    source->words = words;
    source->overrides = 0;
    if (count == 0 && !source->model && !source->import)
        return cli_usage(verb, "%s needs a job file or key=value words", verb->name);
    for (int i = 0; i < count; i++) {
        const int code = check_split(verb, count, words, i);
        if (code != CLI_DONE) return code;
    }
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '=')) {
            words[source->overrides++] = words[i];
            continue;
        }
        if (source->path)
            return cli_usage(verb, "two job files, '%s' and '%s'; one is taken at a time",
                             source->path, words[i]);
        source->path = words[i];
    }
    if (source->import_env && !source->import)
        return cli_usage(verb, "--import-env belongs to --import");
    if (source->path && source->import)
        return cli_usage(verb, "--import takes the place of a job file, but '%s' is one too",
                         source->path);
    if (source->machine && source->topology)
        return cli_usage(verb, "--machine and --topology are two names of one option: give one");
    return CLI_DONE;
}

enum { OPTIONS = 16, DECIMAL_BYTES = 32 };

/* The words of a job while it is loaded: the caller's, then those of the options. */
typedef struct word_list {
    const char **items;
    int count;
    char *made[OPTIONS];
    int made_count;
    bool failed; /* for lack of memory */
} word_list;

/* Does nothing if the option was not given (NULL). */
static void add_text(word_list *list, const char *key, const char *value) {
    if (!value || list->failed) return;
    const size_t bytes = strlen(key) + strlen(value) + 2;
    char *word = malloc(bytes);
    if (!word) {
        list->failed = true;
        return;
    }
    snprintf(word, bytes, "%s=%s", key, value);
    list->made[list->made_count++] = word;
    list->items[list->count++] = word;
}

/* Does nothing if the option was not given (0). */
static void add_number(word_list *list, const char *key, int64_t value) {
    char text[DECIMAL_BYTES];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add_text(list, key, value ? text : NULL);
}

/* Both lists of constraints, in quotes: they contain spaces. */
static void add_fix(word_list *list, const cli_job_source *source) {
    const char *a = source->fix ? source->fix : "", *b = source->fix_more ? source->fix_more : "";
    const size_t bytes = strlen(a) + strlen(b) + 4;
    if (!*a && !*b) return;
    char *both = malloc(bytes);
    if (both) snprintf(both, bytes, "%s%s%s", a, *a && *b ? " " : "", b);
    list->failed |= !both;
    add_text(list, "parallel.fix", both);
    free(both);
}

/* The whole file; NULL after a complaint. */
static char *read_whole(const char *path, int64_t *out_bytes) {
    enum { LIMIT = 1 << 20 };
    FILE *file = fopen(path, "rb");
    char *text = malloc(LIMIT + 1);
    size_t bytes = 0;
    if (file && text) bytes = fread(text, 1, LIMIT + 1, file);
    const bool failed = !file || ferror(file);
    if (failed)
        (void)cli_complain("%s: %s", path, strerror(errno));
    else if (!text)
        (void)cli_complain("out of memory");
    else if (bytes > LIMIT)
        (void)cli_complain("%s: too long for a list of options", path);
    if (file) fclose(file);
    *out_bytes = (int64_t)bytes;
    if (text && !failed && bytes <= LIMIT) return text;
    free(text);
    return NULL;
}

static int load_imported(const cli_job_source *source, const word_list *list, weft_job **out) {
    int64_t bytes;
    char *options = read_whole(source->import, &bytes), *job = NULL, *notes = NULL;
    if (!options) return CLI_FAILED;
    const char *const *variables = (const char *const *)(source->import_env ? environ : NULL);
    weft_status status = weft_job_import(source->import, options, bytes, variables,
                                         (int)source->devices, &job, &notes);
    free(options);
    if (status >= 0) {
        cli_notes(notes);
        char name[512]; /* lines are those of the job, not of the options */
        (void)snprintf(name, sizeof name, "the job of %.480s", source->import);
        status = weft_job_parse(name, job, (int64_t)strlen(job), list->items, list->count, out);
    }
    weft_text_free(job);
    weft_text_free(notes);
    return status < 0 ? cli_failed() : CLI_DONE;
}

int cli_job_load(const cli_job_source *source, weft_job **out) {
    word_list list = {.items = calloc((size_t)source->overrides + OPTIONS, sizeof *list.items)};
    list.failed = !list.items;
    for (int i = 0; i < source->overrides && !list.failed; i++)
        list.items[list.count++] = source->words[i];
    add_text(&list, "model.config", source->model);
    add_number(&list, "model.context", source->context);
    add_number(&list, "train.batch", source->batch);
    add_text(&list, "train.precision", source->precision);
    add_text(&list, "parallel.plan", source->plan);
    add_text(&list, "parallel.mode", source->mode ? source->mode : source->search ? "auto" : NULL);
    add_text(&list, "parallel.search", source->search);
    add_text(&list, "machine", source->machine ? source->machine : source->topology);
    add_fix(&list, source);
    add_text(&list, "device.memory", source->memory);
    add_number(&list, "parallel.evaluations", source->evaluations);
    add_text(&list, "parallel.search_seconds", source->search_seconds);
    add_text(&list, "recovery.enabled", source->recovery ? "true" : NULL);
    add_text(&list, "checkpoint.dir", source->into_recovery ? source->recovery : NULL);
    if (!source->import) add_number(&list, "parallel.devices", source->devices);
    int code = CLI_DONE;
    if (list.failed) {
        code = cli_complain("out of memory");
    } else if (source->import) {
        code = load_imported(source, &list, out);
    } else if (weft_job_load(source->path, list.items, list.count, out) < 0) {
        code = cli_failed();
    }
    if (code == CLI_DONE) (*out)->progress.call = cli_show_ranks;
    for (int i = 0; i < list.made_count; i++) free(list.made[i]);
    free(list.items);
    return code;
}

void cli_notes(const char *lines) {
    for (const char *line = lines, *end; line && (end = strchr(line, '\n')); line = end + 1)
        cli_say(stderr, "weft: note: %.*s\n", (int)(end - line), line);
}
