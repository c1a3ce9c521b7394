/* The words of verbs that take a job: [JOB.yaml] key=value..., and the options that stand for keys.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

int cli_job_words(const cli_verb *verb, int count, char **words, const char **out_path,
                  int *out_overrides) {
    int overrides = 0;
    *out_path = NULL;
    if (count == 0) return cli_usage(verb, "%s needs a job file or key=value words", verb->name);
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '=')) {
            words[overrides++] = words[i];
            continue;
        }
        if (*out_path)
            return cli_usage(verb, "two job files, '%s' and '%s'; one is taken at a time",
                             *out_path, words[i]);
        *out_path = words[i];
    }
    *out_overrides = overrides;
    return CLI_DONE;
}

int cli_job_load(const char *path, char **words, int overrides, const cli_job_options *options,
                 weft_job **out) {
    enum { OPTIONS = 4 };
    const char *mode = options->mode ? options->mode : options->search ? "auto" : NULL;
    const struct {
        const char *key, *value;
    } texts[] = {{"parallel.plan", options->plan},
                 {"parallel.mode", mode},
                 {"parallel.search", options->search}};
    const char **all = calloc((size_t)overrides + OPTIONS, sizeof *all);
    char *made[OPTIONS] = {0};
    int count = overrides, own = 0, code = CLI_DONE;
    for (int i = 0; all && i < overrides; i++) all[i] = words[i];
    for (int i = 0; i < 3 && all; i++) {
        if (!texts[i].value) continue;
        const size_t bytes = strlen(texts[i].key) + strlen(texts[i].value) + 2;
        if ((made[own] = malloc(bytes)))
            snprintf(made[own], bytes, "%s=%s", texts[i].key, texts[i].value);
        all[count++] = made[own++];
    }
    if (options->devices && all && (made[own] = malloc(64))) {
        snprintf(made[own], 64, "parallel.devices=%lld", (long long)options->devices);
        all[count++] = made[own++];
    }
    bool full = all != NULL;
    for (int i = 0; full && i < count; i++) full = all[i] != NULL;
    if (!full) {
        cli_say(stderr, "weft: out of memory\n");
        code = CLI_FAILED;
    } else if (weft_job_load(path, all, count, out) < 0) {
        code = cli_failed();
    }
    for (int i = 0; i < OPTIONS; i++) free(made[i]);
    free(all);
    return code;
}

/* Parts without effect are legal, but most likely a mistake. */
void cli_unmatched(const char *lines) {
    for (const char *line = lines, *end; line && (end = strchr(line, '\n')); line = end + 1)
        cli_say(stderr, "weft: note: %.*s\n", (int)(end - line), line);
}
