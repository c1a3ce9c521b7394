/* The keys of a job file as a Markdown table: `weft train --keys`, and docs/reference/job-file.md.
 */
#include "cli.h"

#include <string.h>

#include "weft/job.h"

static void show_type(const weft_job_key *key) {
    if (key->words) {
        for (const char *const *w = key->words; *w; w++)
            cli_say(stdout, "%s%s", w == key->words ? "" : ", ", *w);
        return;
    }
    cli_say(stdout, "%s", key->type);
    if (key->min == key->max) return;
    if (key->max < 1 && key->max > 0.9999)
        cli_say(stdout, ", %g to below 1", key->min);
    else if (key->max > 1e8)
        cli_say(stdout, ", at least %.10g", key->min);
    else
        cli_say(stdout, ", %g to %.10g", key->min, key->max);
}

void cli_show_keys(void) {
    int count;
    const weft_job_key *keys = weft_job_keys(&count);
    const char *before = "";
    for (int i = 0; i < count; i++) {
        size_t section = strcspn(keys[i].path, ".");
        if (strncmp(before, keys[i].path, section + 1) != 0) {
            cli_say(stdout,
                    "%s## %.*s\n\n| key | default | values | meaning |\n|---|---|---|---|\n",
                    i ? "\n" : "", (int)section, keys[i].path);
        }
        cli_say(stdout, "| `%s` | %s | ", keys[i].path,
                *keys[i].default_text ? keys[i].default_text : "");
        show_type(&keys[i]);
        cli_say(stdout, " | %s |\n", keys[i].help);
        before = keys[i].path;
    }
}
