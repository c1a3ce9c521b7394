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

int cli_job_load(const char *path, char **words, int overrides, int64_t devices, const char *plan,
                 weft_job **out) {
    enum { OPTIONS = 2 };
    const size_t plan_bytes = plan ? strlen(plan) + 32 : 1;
    const char **all = calloc((size_t)overrides + OPTIONS, sizeof *all);
    char *plan_word = calloc(1, plan_bytes), devices_word[64];
    int count = overrides, code = CLI_DONE;
    if (!all || !plan_word) {
        cli_say(stderr, "weft: out of memory\n");
        code = CLI_FAILED;
    } else {
        for (int i = 0; i < overrides; i++) all[i] = words[i];
        snprintf(plan_word, plan_bytes, "parallel.plan=%s", plan ? plan : "");
        snprintf(devices_word, sizeof devices_word, "parallel.devices=%lld", (long long)devices);
        if (plan) all[count++] = plan_word;
        if (devices) all[count++] = devices_word;
        if (weft_job_load(path, all, count, out) < 0)
            code = cli_failed();
        else
            (*out)->progress.call = cli_show_ranks;
    }
    free(all);
    free(plan_word);
    return code;
}

/* Parts without effect are legal, but most likely a mistake. */
void cli_unmatched(const char *lines) {
    for (const char *line = lines, *end; line && (end = strchr(line, '\n')); line = end + 1)
        cli_say(stderr, "weft: note: %.*s\n", (int)(end - line), line);
}
