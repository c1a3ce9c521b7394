/* The words of verbs that take a job: [JOB.yaml] key=value..., and the options that stand for keys.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

int cli_job_words(const cli_verb *verb, int count, char **words, cli_job_source *source) {
    source->words = words;
    source->overrides = 0;
    if (count == 0 && !source->model)
        return cli_usage(verb, "%s needs a job file or key=value words", verb->name);
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
    return CLI_DONE;
}

enum { OPTIONS = 6, DECIMAL_BYTES = 32 };

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
    add_number(&list, "parallel.devices", source->devices);
    int code = CLI_DONE;
    if (list.failed) {
        cli_say(stderr, "weft: out of memory\n");
        code = CLI_FAILED;
    } else if (weft_job_load(source->path, list.items, list.count, out) < 0) {
        code = cli_failed();
    }
    for (int i = 0; i < list.made_count; i++) free(list.made[i]);
    free(list.items);
    return code;
}

/* Parts without effect are legal, but most likely a mistake. */
void cli_unmatched(const char *lines) {
    for (const char *line = lines, *end; line && (end = strchr(line, '\n')); line = end + 1)
        cli_say(stderr, "weft: note: %.*s\n", (int)(end - line), line);
}
