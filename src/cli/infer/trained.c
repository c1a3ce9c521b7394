/* Verbs that use a trained model: their words, their job, their processes. */
#include "cli/infer/trained.h"

#include <stdlib.h>
#include <string.h>

int cli_trained_words(const cli_verb *verb, int count, char **words, cli_job_source *source,
                      const char **out_checkpoint) {
    int last = -1, plain = 0;
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '=')) continue;
        plain++;
        last = i;
    }
    if (plain == 0 || count == 1)
        return cli_usage(verb, "%s needs a job and a checkpoint", verb->name);
    if (plain > 2)
        return cli_usage(verb, "%s takes a job and a checkpoint; '%s' is one word too many",
                         verb->name, words[last]);
    *out_checkpoint = words[last];
    for (int i = last; i + 1 < count; i++) words[i] = words[i + 1];
    return cli_job_words(verb, count - 1, words, source);
}

static bool is_of_memory(const char *word, bool offload) {
    static const char *const keys[] = {"memory.disk.path", "memory.disk.size", "memory.device",
                                       "memory.host",      "device.memory",    "memory.offload",
                                       "machine"};
    enum { ALL = sizeof keys / sizeof *keys, LIMITS = ALL - 2 };
    const size_t length = strcspn(word, "=");
    for (int i = 0; i < (offload ? ALL : LIMITS); i++)
        if (strlen(keys[i]) == length && !strncmp(word, keys[i], length)) return true;
    return false;
}

/* An empty list of entries before the words: then a directory may stay without an entry. */
static int load_memory(const cli_verb *verb, int count, char **words, const cli_memory_words *how,
                       weft_job **out) {
    static char none[] = "memory.offload=[]";
    cli_job_source source = {.path = NULL};
    char **all = calloc((size_t)count + 1, sizeof *all);
    if (!all) return cli_complain("out of memory");
    all[0] = none;
    memcpy(all + 1, words, (size_t)count * sizeof *all);
    const int first = how->planned ? 0 : 1;
    int code = cli_job_words(verb, count + 1 - first, all + first, &source);
    if (code == CLI_DONE && source.path)
        code = cli_usage(verb, "%s takes one %s; '%s' is one word too many%s", verb->name,
                         how->place, source.path, how->hint);
    if (code == CLI_DONE && source.overrides) code = cli_job_load(&source, out);
    free(all);
    return code;
}

int cli_trained_memory(const cli_verb *verb, int count, char **words, cli_memory_words how,
                       weft_job **out) {
    int place = 0;
    *out = NULL;
    while (place < count && strchr(words[place], '=')) place++;
    if (count == 1 || place == count) place = 0; /* a path may have the sign, too */
    char *first = words[place];
    memmove(words + 1, words, (size_t)place * sizeof *words);
    words[0] = first;
    for (int i = 1; i < count; i++)
        if (strchr(words[i], '=') && !is_of_memory(words[i], how.offload))
            return cli_usage(verb,
                             "'%s': the keys here are %smemory.disk.path, memory.disk.size, "
                             "memory.device, memory.host and device.memory",
                             words[i], how.offload ? "memory.offload, machine, " : "");
    return count > 1 ? load_memory(verb, count - 1, words + 1, &how, out) : CLI_DONE;
}

void cli_trained_note(void *context, const char *text) {
    (void)context;
    cli_say(stderr, "weft: note: %s\n", text);
}

/* `job` NULL: an exported model. */
static int use_across(int rank, const weft_job *job, const char *program, cli_trained_use *use,
                      const void *values) {
    weft_world *world;
    char *identity = NULL;
    weft_world_options options = WEFT_STRUCT(weft_world_options, .links = "");
    if (job) options.links = *job->parallel.links ? job->parallel.links : job->machine;
    if (job && weft_job_identity(job, program, &identity) < 0) return cli_failed_rank(rank);
    options.identity = identity;
    const weft_status joined = weft_world_join(&options, &world);
    weft_text_free(identity);
    if (joined < 0) return cli_failed_to_join(rank, joined);
    int code = use(world, rank, job, values);
    return cli_leave(world, code);
}

int cli_exported_run(cli_trained_use *use, const void *values) {
    weft_launcher launcher;
    int code = cli_find_launcher(&launcher);
    if (code != CLI_DONE) return code;
    return launcher.name && launcher.size > 1 ? use_across(launcher.rank, NULL, NULL, use, values)
                                              : use(NULL, 0, NULL, values);
}

int cli_trained_run(const cli_job_source *source, const char *program, cli_trained_use *use,
                    const void *values) {
    weft_launcher launcher;
    weft_job *job;
    int code = cli_find_launcher(&launcher);
    if (code != CLI_DONE) return code;
    const int size = launcher.name ? launcher.size : 1;
    if ((code = cli_job_load_for(size, source, &job)) != CLI_DONE) return code;
    code =
        size > 1 ? use_across(launcher.rank, job, program, use, values) : use(NULL, 0, job, values);
    weft_job_free(job);
    return code;
}
