/* Options of a verb: parsing, help and complaints, all from the verb's table. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "weft/job.h"

/* An option with its help, which begins in column 26 or behind a longer name. */
static void show_option(const char *name, const char *argument, const char *help) {
    char left[64];
    snprintf(left, sizeof left, "  --%s%s%s", name, argument ? " " : "", argument ? argument : "");
    cli_say(stdout, "%-24s ", left);
    cli_say_wrapped(stdout, strlen(left) < 24 ? 25 : (int)strlen(left) + 1, 25, help);
}

static void show_help(const cli_verb *verb) {
    cli_say_bold(stdout, "weft %s", verb->name);
    cli_say(stdout, ": ");
    cli_say_wrapped(stdout, (int)strlen(verb->name) + 7, 2, verb->summary);
    cli_say(stdout, "\nusage: weft ");
    cli_say_wrapped(stdout, 12, 12, verb->usage);
    cli_say(stdout, "\noptions:\n");
    for (const cli_option *o = verb->options; o->name; o++)
        show_option(o->name, o->argument, o->help);
    show_option("help", NULL, "show this text");
    if (verb->notes) {
        cli_say(stdout, "\n");
        cli_say_wrapped(stdout, 0, 0, verb->notes);
    }
    cli_say(stdout, "\nexample:\n  ");
    cli_say_wrapped(stdout, 2, 4, verb->example);
}

static const cli_option *find(const cli_verb *verb, const char *name, size_t length) {
    for (const cli_option *o = verb->options; o->name; o++)
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0) return o;
    return NULL;
}

/* An option that the verb lacks, as typed: "--max-steps=5". */
typedef struct unknown {
    const char *typed, *name; /* name: behind the dashes, without the value */
    size_t dashes;
    const char *value; /* NULL: none */
} unknown;

/* The option that is the end of `word`: tokens for max-tokens. NULL if none is. */
static const char *by_end(const char *word, const char *const *names) {
    for (const char *part = word; *(part += strcspn(part, "-_"));) {
        part++;
        for (const char *const *n = names; *n; n++)
            if (!strcmp(part, *n)) return *n;
    }
    return NULL;
}

/* Whether the last word of the key's path is `word`, or the path itself. */
static bool is_key(const char *path, const char *word) {
    const char *dot = strrchr(path, '.');
    return !strcmp(path, word) || !strcmp(dot ? dot + 1 : path, word);
}

static bool takes_keys(const cli_verb *verb) {
    return strstr(verb->usage, "[key=value ...]") != NULL;
}

/* In this order: a key by its name, a near option, an option by its end, a near key. */
static int unknown_option(const cli_verb *verb, const unknown *u) {
    const char *names[64];
    int known = 0;
    for (const cli_option *o = verb->options; o->name && known < 62; o++) names[known++] = o->name;
    names[known++] = "help";
    names[known] = NULL;
    const char *key = takes_keys(verb) ? weft_job_near_key(u->name) : NULL, *near = NULL;
    if (!key || !is_key(key, u->name)) near = weft_nearest(u->name, names);
    if (!near && (!key || !is_key(key, u->name))) near = by_end(u->name, names);
    const int typed = (int)(u->dashes + strlen(u->name));
    if (near)
        return cli_usage(verb, "unknown option %.*s; did you mean --%s?", typed, u->typed, near);
    if (key)
        return cli_usage(verb,
                         "unknown option %.*s; did you mean the key %s=%s? Keys are words without "
                         "dashes",
                         typed, u->typed, key, u->value ? u->value : "VALUE");
    return cli_usage(verb, "unknown option %.*s%s", typed, u->typed,
                     u->dashes == 1 ? "; options are written out, as --help" : "");
}

/* words[at] begins with a dash and is no option of the verb. */
static int refuse_option(const cli_verb *verb, int count, char **words, int at) {
    char name[64];
    const char *word = words[at];
    const size_t dashes = strspn(word, "-"), length = strcspn(word + dashes, "=");
    const char *equals = word[dashes + length] ? word + dashes + length + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)length, word + dashes);
    const bool follows = at + 1 < count && words[at + 1][0] != '-' && !strchr(words[at + 1], '=');
    const unknown u = {word, name, dashes, equals ? equals : follows ? words[at + 1] : NULL};
    return unknown_option(verb, &u);
}

bool cli_texts_create(cli_texts *texts, int words) {
    *texts = (cli_texts){.items = calloc((size_t)words + 1, sizeof *texts->items)};
    if (!texts->items) (void)cli_complain("out of memory");
    return texts->items != NULL;
}

void cli_texts_free(cli_texts *texts) {
    free(texts->items);
}

/* Store one value; 0, or the exit code after a complaint. */
static int store(const cli_verb *verb, const cli_option *o, const char *text, void *values) {
    char *at = (char *)values + o->offset, *end;
    errno = 0;
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)(void *)at = true;
        return 0;
    case CLI_TEXT:
        if (!*text)
            return cli_usage(verb, "--%s is empty; it takes a value: --%s %s", o->name, o->name,
                             o->argument);
        if (text[0] == '~' && text[1] == '/')
            return cli_usage(verb, "no shell has expanded '%s': write --%s %s, without =", text,
                             o->name, text);
        memcpy(at, &text, sizeof text);
        return 0;
    case CLI_PROSE:
        memcpy(at, &text, sizeof text);
        return 0;
    case CLI_TEXTS: {
        cli_texts *texts = (cli_texts *)(void *)at;
        texts->items[texts->count++] = text;
        return 0;
    }
    case CLI_INTEGER: {
        long long value = strtoll(text, &end, 10);
        if (end == text || *end)
            return cli_usage(verb, "--%s takes a whole number, not '%s'", o->name, text);
        if (errno || (double)value < o->min || (double)value > o->max)
            return cli_usage(verb, "--%s must be from %.0f to %.0f; it is %s", o->name, o->min,
                             o->max, text);
        *(int64_t *)(void *)at = value;
        return 0;
    }
    case CLI_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end || !isfinite(value))
            return cli_usage(verb, "--%s takes a number, not '%s'", o->name, text);
        if (value < o->min || value > o->max)
            return cli_usage(verb, "--%s must be from %g to %g; it is %s", o->name, o->min, o->max,
                             text);
        *(double *)(void *)at = value;
        return 0;
    }
    }
    return 0;
}

/* Before the words are parsed, since they may be wrong in front of the option. */
static bool asks_for_json(int count, char **words) {
    for (int i = 0; i < count && strcmp(words[i], "--"); i++)
        if (!strcmp(words[i], "--json")) return true;
    return false;
}

bool cli_parse(const cli_verb *verb, int count, char **words, void *values, int *out_count,
               int *out_exit) {
    int kept = 0;
    bool options = true;
    cli_errors_as_json(asks_for_json(count, words));
    for (int i = 0; i < count; i++) {
        char *word = words[i];
        if (options && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            show_help(verb);
            *out_exit = CLI_DONE;
            return false;
        }
        if (options && !strcmp(word, "--")) {
            options = false;
        } else if (options && !strncmp(word, "--", 2)) {
            const char *name = word + 2, *equals = strchr(name, '='), *value = NULL;
            size_t length = equals ? (size_t)(equals - name) : strlen(name);
            const cli_option *o = find(verb, name, length);
            if (!o)
                *out_exit = refuse_option(verb, count, words, i);
            else if (o->kind == CLI_FLAG && equals)
                *out_exit = cli_usage(verb, "--%s takes no value", o->name);
            else if (o->kind != CLI_FLAG && !equals && i + 1 == count)
                *out_exit =
                    cli_usage(verb, "--%s needs a value: --%s %s", o->name, o->name, o->argument);
            else {
                if (o->kind != CLI_FLAG) value = equals ? equals + 1 : words[++i];
                *out_exit = store(verb, o, value, values);
                if (*out_exit == 0) continue;
            }
            return false;
        } else if (options && word[0] == '-' && word[1]) {
            *out_exit = refuse_option(verb, count, words, i);
            return false;
        } else if (!*word) {
            *out_exit = cli_usage(verb, "word %d behind %s is empty", i + 1, verb->name);
            return false;
        } else {
            words[kept++] = word;
        }
    }
    *out_count = kept;
    return true;
}
