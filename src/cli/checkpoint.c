/* `weft checkpoint`: look into checkpoints and Hugging Face directories, verify them, and join and
 * split slices that ranks hold of tensors. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "weft/checkpoint.h"
#include "weft/types.h"

typedef struct checkpoint_options {
    const char *out;
    cli_texts splits;
    int64_t ranks;
    bool json;
    /* Not from the table: the counts of --split, [splits.count]. */
    weft_checkpoint_slice_rule *rules;
} checkpoint_options;

#define AT(field) offsetof(checkpoint_options, field)
static const cli_option options[] = {
    {"out", "NAME", CLI_TEXT, AT(out), 0, 0,
     "merge: the .safetensors file to write; split: the prefix of the slices' names"},
    {"split", "PATTERN=DIM", CLI_TEXTS, AT(splits), 0, 0,
     "merge, split: split tensors with such names, and their optimizer states, along dimension DIM "
     "(-: keep whole); may be repeated, the last match counts"},
    {"ranks", "N", CLI_INTEGER, AT(ranks), 1, 100000, "split: number of ranks"},
    {"json", NULL, CLI_FLAG, AT(json), 0, 0, "one JSON object"},
    {0},
};

typedef weft_status (*action_run)(const checkpoint_options *o, int count, char **paths,
                                  char **out_text);

static weft_status inspect(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)count;
    return weft_checkpoint_describe(paths[0], o->json, out_text);
}

static weft_status verify(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)count;
    return weft_checkpoint_verify(paths[0], o->json, out_text);
}

static weft_status merge(const checkpoint_options *o, int count, char **paths, char **out_text) {
    return weft_checkpoint_merge((const char *const *)paths, count, o->rules, o->splits.count,
                                 o->out, o->json, out_text);
}

static weft_status split(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)count;
    return weft_checkpoint_split(paths[0], (int)o->ranks, o->rules, o->splits.count, o->out,
                                 o->json, out_text);
}

static const struct action {
    const char *name;
    action_run run;
    bool several, rules, ranks; /* its options: slices, --out and --split, --ranks */
} actions[] = {
    {"inspect", inspect, false, false, false},
    {"verify", verify, false, false, false},
    {"merge", merge, true, true, false},
    {"split", split, false, true, true},
};
enum { ACTIONS = sizeof actions / sizeof *actions };

static const struct action *find(const char *word) {
    for (int i = 0; i < ACTIONS; i++)
        if (!strcmp(word, actions[i].name)) return &actions[i];
    return NULL;
}

static int refuse_action(const cli_verb *verb, const char *word) {
    const char *names[ACTIONS + 1] = {NULL};
    for (int i = 0; i < ACTIONS; i++) names[i] = actions[i].name;
    const char *near = weft_nearest(word, names);
    return cli_usage(verb, "checkpoint cannot '%s'; it can %s", word,
                     near ? near : "inspect, verify, merge or split");
}

/* PATTERN=DIM; patterns may have a = too. */
static bool parse_rule(char *text, weft_checkpoint_slice_rule *out) {
    char *equals = strrchr(text, '=');
    if (!equals || equals == text || !equals[1]) return false;
    bool whole = !strcmp(equals + 1, "-");
    bool digit = equals[1] >= '0' && equals[1] < '0' + WEFT_MAX_RANK && !equals[2];
    if (!whole && !digit) return false;
    *equals = '\0';
    *out = (weft_checkpoint_slice_rule){text, whole ? -1 : equals[1] - '0'};
    return true;
}

static int check(const cli_verb *verb, const struct action *a, const checkpoint_options *o,
                 int paths) {
    if (paths == 0 && a->several)
        return cli_usage(verb, "checkpoint %s needs the slices, in the order of ranks", a->name);
    if (paths != 1 && !a->several) return cli_usage(verb, "checkpoint %s takes one path", a->name);
    if (!a->rules && (o->out || o->splits.count))
        return cli_usage(verb, "--out and --split are for checkpoint merge and split");
    if (!a->ranks && o->ranks) return cli_usage(verb, "--ranks is for checkpoint split");
    if (a->rules && !o->out) return cli_usage(verb, "checkpoint %s needs --out", a->name);
    if (a->ranks && !o->ranks) return cli_usage(verb, "checkpoint %s needs --ranks", a->name);
    if (a->ranks && !o->splits.count)
        return cli_usage(verb, "checkpoint %s needs a --split: which tensors are split?", a->name);
    return CLI_DONE;
}

/* argv's words are the command's to change. */
static int parse_rules(const cli_verb *verb, checkpoint_options *o) {
    o->rules = calloc((size_t)o->splits.count + 1, sizeof *o->rules);
    if (!o->rules) {
        cli_say(stderr, "weft: out of memory\n");
        return CLI_FAILED;
    }
    for (int i = 0; i < o->splits.count; i++)
        if (!parse_rule((char *)o->splits.items[i], &o->rules[i]))
            return cli_usage(verb,
                             "--split takes PATTERN=DIM, as 'h.*.weight=1' or 'bias=-', with DIM "
                             "from 0 to %d or -; not '%s'",
                             WEFT_MAX_RANK - 1, o->splits.items[i]);
    return CLI_DONE;
}

static int act(const cli_verb *verb, int count, char **words, checkpoint_options *o) {
    if (count == 0)
        return cli_usage(verb, "checkpoint needs a command: inspect, verify, merge or split");
    const struct action *action = find(words[0]);
    if (!action) return refuse_action(verb, words[0]);
    int code = check(verb, action, o, count - 1);
    if (code == CLI_DONE) code = parse_rules(verb, o);
    if (code != CLI_DONE) return code;
    char *text = NULL;
    weft_status status = action->run(o, count - 1, words + 1, &text);
    if (text && o->json) cli_say(stdout, "%s", text);
    if (text && !o->json) cli_say_text(stdout, text);
    weft_checkpoint_text_free(text);
    return status < 0 ? cli_failed() : CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    checkpoint_options values = {0};
    int code, left;
    if (!cli_texts_create(&values.splits, count)) return CLI_FAILED;
    if (cli_parse(verb, count, words, &values, &left, &code))
        code = act(verb, left, words, &values);
    free(values.rules);
    cli_texts_free(&values.splits);
    return code;
}

const cli_verb cli_checkpoint = {
    .name = "checkpoint",
    .summary = "look into checkpoints, verify them, merge and split slices",
    .usage = "checkpoint inspect|verify PATH [--json]\n"
             "       weft checkpoint merge --out FILE [--split PATTERN=DIM]... SLICE...\n"
             "       weft checkpoint split PATH --ranks N --split PATTERN=DIM... --out PREFIX",
    .example = "weft checkpoint verify run/\n"
               "  weft checkpoint merge --out whole.safetensors --split 'fc1.*=1' --split "
               "'fc2.weight=0' slice-*.safetensors\n"
               "  weft checkpoint split whole.safetensors --ranks 2 --split 'fc1.*=1' --split "
               "'fc2.weight=0' --out half",
    .notes = "PATH is a run's directory, one of its steps, a Hugging Face directory or a "
             ".safetensors file; so is each SLICE.\n"
             "verify reads every byte and exits 1 when anything is damaged.\n"
             "merge takes one slice of each rank, in the order of ranks. What no --split names "
             "must be the same in all slices.\n"
             "split writes PREFIX-rank-00000-of-0000N.safetensors and so on. Nothing is written "
             "over a file.",
    .options = options,
    .run = run,
};
