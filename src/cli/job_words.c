/* The words of verbs that take a job: [JOB.yaml] key=value... */
#include "cli.h"

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
