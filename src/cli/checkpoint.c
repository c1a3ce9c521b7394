/* `weft checkpoint`: look into checkpoints and Hugging Face directories, verify and compare them,
 * join and split slices that ranks hold of tensors, and convert between formats and layouts. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "weft/checkpoint.h"
#include "weft/types.h"

typedef struct checkpoint_options {
    const char *out, *from, *to, *format, *list_text, *key, *base;
    cli_texts splits, only;
    int64_t ranks;
    bool json, replicas;
    /* Not from the table: the counts of --split, [splits.count]; the ranks of --only. */
    weft_checkpoint_slice_rule *rules;
    weft_checkpoint_reshard_options reshard;
    int *only_ranks, list;
} checkpoint_options;

#define AT(field) offsetof(checkpoint_options, field)
static const cli_option options[] = {
    {"out", "NAME", CLI_TEXT, AT(out), 0, 0,
     "merge: the .safetensors file to write; split: the prefix of the slices' names; "
     "merge-strategies: the file to write, .json or protobuf"},
    {"split", "PATTERN=DIM", CLI_TEXTS, AT(splits), 0, 0,
     "merge, split: split tensors with such names, and their optimizer states, along dimension DIM "
     "(-: keep whole); may be repeated, the last match counts"},
    {"ranks", "N", CLI_INTEGER, AT(ranks), 1, 100000, "split: number of ranks"},
    {"from", "LAYOUTS", CLI_TEXT, AT(from), 0, 0,
     "reshard, digest, diff: how ranks hold the slices of the source (of diff: of the first path): "
     "a plan, a strategy file of MindSpore, a folder with one for each stage, or ranks and rules, "
     "'4:h.*.weight=1,h.*.bias=0'"},
    {"to", "LAYOUTS", CLI_TEXT, AT(to), 0, 0,
     "reshard: write slices for these ranks; diff: the layouts of the second path"},
    {"only", "RANKS", CLI_TEXTS, AT(only), 0, 0, "reshard: write the slices of these ranks, 3,5"},
    {"format", "NAME", CLI_TEXT, AT(format), 0, 0,
     "reshard: slices or dcp (with --to), weft or hf; left out: slices with --to, weft if the "
     "source has a run's state, else hf"},
    {"list", "RANK", CLI_TEXT, AT(list_text), 0, 0,
     "reshard: only print the files that this rank's slices are made of"},
    {"replicas", NULL, CLI_FLAG, AT(replicas), 0, 0,
     "reshard: if a file is missing, read the files of ranks that hold the same"},
    {"base", "DIR", CLI_TEXT, AT(base), 0, 0,
     "adapter: the model's name in adapter_config.json; merge-adapter: the model below the "
     "adapters, "
     "if they are in PEFT's form"},
    {"key", "FILE", CLI_TEXT, AT(key), 0, 0,
     "the key of encrypted checkpoints: a file with 64 hexadecimal digits that only its owner can "
     "read, or env:NAME, a variable"},
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

static weft_status digest(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)count;
    return weft_checkpoint_digest(paths[0], o->from, o->json, out_text);
}

static weft_status diff(const checkpoint_options *o, int count, char **paths, char **out_text) {
    int64_t differing = 0;
    (void)count;
    weft_status status =
        weft_checkpoint_diff(paths[0], o->from, paths[1], o->to, o->json, &differing, out_text);
    return status >= 0 && differing ? WEFT_PENDING : status;
}

static weft_status reshard(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)count;
    if (o->list_text)
        return weft_checkpoint_sources(paths[0], o->list, &o->reshard, o->json, out_text);
    return weft_checkpoint_reshard(paths[0], paths[1], &o->reshard, o->json, out_text);
}

static weft_status merge_strategies(const checkpoint_options *o, int count, char **paths,
                                    char **out_text) {
    (void)out_text;
    return weft_checkpoint_merge_strategies((const char *const *)paths, count, o->out);
}

static weft_status adapter(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)out_text, (void)count;
    return weft_checkpoint_adapter(paths[0], o->base, paths[1]);
}

static weft_status merge_adapter(const checkpoint_options *o, int count, char **paths,
                                 char **out_text) {
    (void)out_text, (void)count;
    return weft_checkpoint_merge_adapter(paths[0], o->base, paths[1]);
}

static weft_status make_key(const checkpoint_options *o, int count, char **paths, char **out_text) {
    (void)o, (void)count, (void)out_text;
    return weft_checkpoint_make_key(paths[0]);
}

/* Options that an action takes. */
enum {
    TAKES_OUT = 1,
    TAKES_SPLIT = 2,
    TAKES_RANKS = 4,
    TAKES_FROM = 8,
    TAKES_TO = 16,
    TAKES_RESHARD = 32,
    TAKES_JSON = 64,
    TAKES_BASE = 128
};

static const struct action {
    const char *name;
    action_run run;
    int paths; /* -1: several */
    unsigned takes;
} actions[] = {
    {"inspect", inspect, 1, TAKES_JSON},
    {"verify", verify, 1, TAKES_JSON},
    {"digest", digest, 1, TAKES_JSON | TAKES_FROM},
    {"diff", diff, 2, TAKES_JSON | TAKES_FROM | TAKES_TO},
    {"reshard", reshard, 2, TAKES_JSON | TAKES_FROM | TAKES_TO | TAKES_RESHARD},
    {"merge", merge, -1, TAKES_JSON | TAKES_OUT | TAKES_SPLIT},
    {"split", split, 1, TAKES_JSON | TAKES_OUT | TAKES_SPLIT | TAKES_RANKS},
    {"merge-strategies", merge_strategies, -1, TAKES_OUT},
    {"adapter", adapter, 2, TAKES_BASE},
    {"merge-adapter", merge_adapter, 2, TAKES_BASE},
    {"make-key", make_key, 1, 0},
};
enum { ACTIONS = sizeof actions / sizeof *actions };
#define ACTION_NAMES                                                                               \
    "inspect, verify, digest, diff, reshard, merge, split, merge-strategies, adapter, "            \
    "merge-adapter or make-key"

static const struct action *find(const char *word) {
    for (int i = 0; i < ACTIONS; i++)
        if (!strcmp(word, actions[i].name)) return &actions[i];
    return NULL;
}

static int refuse_action(const cli_verb *verb, const char *word) {
    const char *names[ACTIONS + 1] = {NULL};
    for (int i = 0; i < ACTIONS; i++) names[i] = actions[i].name;
    const char *near = weft_nearest(word, names);
    return cli_usage(verb, "checkpoint cannot '%s'; it can %s", word, near ? near : ACTION_NAMES);
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

static int check_paths(const cli_verb *verb, const struct action *a, const checkpoint_options *o,
                       int paths) {
    if (a->paths < 0 && paths == 0)
        return cli_usage(verb,
                         a->run == merge ? "checkpoint %s needs the slices, in the order of ranks"
                                         : "checkpoint %s needs the strategy files",
                         a->name);
    const int wanted = o->list_text ? 1 : a->paths;
    if (a->paths == 1 && paths != 1)
        return cli_usage(verb, "checkpoint %s takes one path", a->name);
    if (a->paths >= 0 && paths != wanted)
        return cli_usage(verb, "checkpoint %s takes %d paths, not %d", a->name, wanted, paths);
    return CLI_DONE;
}

static int check(const cli_verb *verb, const struct action *a, const checkpoint_options *o,
                 int paths) {
    int code = check_paths(verb, a, o, paths);
    if (code != CLI_DONE) return code;
    if (!(a->takes & TAKES_OUT) && o->out)
        return cli_usage(verb, "--out and --split are for checkpoint merge and split");
    if (!(a->takes & TAKES_SPLIT) && o->splits.count)
        return cli_usage(verb, "--out and --split are for checkpoint merge and split");
    if (!(a->takes & TAKES_RANKS) && o->ranks)
        return cli_usage(verb, "--ranks is for checkpoint split");
    if (!(a->takes & TAKES_FROM) && o->from)
        return cli_usage(verb, "--from is for checkpoint reshard, digest and diff");
    if (!(a->takes & TAKES_TO) && o->to)
        return cli_usage(verb, "--to is for checkpoint reshard and diff");
    if (!(a->takes & TAKES_RESHARD) && (o->only.count || o->format || o->list_text || o->replicas))
        return cli_usage(verb,
                         "--only, --format, --list and --replicas are for checkpoint reshard");
    if (!(a->takes & TAKES_BASE) && o->base)
        return cli_usage(verb, "--base is for checkpoint adapter and merge-adapter");
    if (!(a->takes & TAKES_JSON) && o->json)
        return cli_usage(verb, "checkpoint %s prints nothing, so --json has no use", a->name);
    if ((a->run == merge_strategies || a->run == make_key) && o->key)
        return cli_usage(verb, "--key is for commands that read checkpoints");
    if ((a->takes & TAKES_OUT) && !o->out)
        return cli_usage(verb, "checkpoint %s needs --out", a->name);
    if ((a->takes & TAKES_RANKS) && !o->ranks)
        return cli_usage(verb, "checkpoint %s needs --ranks", a->name);
    if ((a->takes & TAKES_RANKS) && !o->splits.count)
        return cli_usage(verb, "checkpoint %s needs a --split: which tensors are split?", a->name);
    return CLI_DONE;
}

/* ---- options of reshard ---- */

static bool parse_rank(const char *text, char **end, int *out) {
    if (*text < '0' || *text > '9') return false;
    char *behind;
    const long rank = strtol(text, &behind, 10);
    if (rank > 1000000) return false;
    *out = (int)rank;
    *end = behind;
    return true;
}

static int parse_only(const cli_verb *verb, checkpoint_options *o) {
    size_t room = 1;
    for (int i = 0; i < o->only.count; i++) room += strlen(o->only.items[i]);
    o->only_ranks = calloc(room, sizeof *o->only_ranks);
    if (!o->only_ranks) {
        return cli_complain("out of memory");
    }
    for (int i = 0; i < o->only.count; i++) {
        const char *at = o->only.items[i];
        char *end = NULL;
        bool good;
        while ((good = parse_rank(at, &end, &o->only_ranks[o->reshard.only_count]))) {
            o->reshard.only_count++;
            if (*end != ',') break;
            at = end + 1;
        }
        if (!good || *end)
            return cli_usage(verb, "--only takes ranks, as 3,5; not '%s'", o->only.items[i]);
    }
    o->reshard.only = o->only_ranks;
    return CLI_DONE;
}

static int parse_reshard(const cli_verb *verb, checkpoint_options *o) {
    static const struct {
        const char *name;
        weft_checkpoint_format format;
    } formats[] = {{"slices", WEFT_CHECKPOINT_SLICES},
                   {"dcp", WEFT_CHECKPOINT_DCP},
                   {"weft", WEFT_CHECKPOINT_RUN},
                   {"hf", WEFT_CHECKPOINT_HF}};
    char *end = NULL;
    o->reshard = WEFT_STRUCT(weft_checkpoint_reshard_options, .from = o->from, .to = o->to,
                             .replicas = o->replicas);
    for (size_t i = 0; o->format && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(o->format, formats[i].name)) o->reshard.format = formats[i].format;
    if (o->format && o->reshard.format == WEFT_CHECKPOINT_AUTO)
        return cli_usage(verb, "--format is slices, dcp, weft or hf, not '%s'", o->format);
    const bool slices =
        o->reshard.format == WEFT_CHECKPOINT_SLICES || o->reshard.format == WEFT_CHECKPOINT_DCP;
    if (slices && !o->to) return cli_usage(verb, "--format %s needs --to", o->format);
    if (o->format && !slices && o->to)
        return cli_usage(verb, "--format %s has no ranks: leave --to out", o->format);
    if ((o->only.count || o->list_text) && !o->to)
        return cli_usage(verb, "--only and --list need --to");
    if (o->only.count && o->list_text)
        return cli_usage(verb, "--only and --list are two different things");
    if (o->only.count && o->reshard.format == WEFT_CHECKPOINT_DCP)
        return cli_usage(verb, "--only is for slices, not for --format dcp");
    if (o->list_text && (!parse_rank(o->list_text, &end, &o->list) || *end))
        return cli_usage(verb, "--list takes a rank, not '%s'", o->list_text);
    return parse_only(verb, o);
}

/* argv's words are the command's to change. */
static int parse_rules(const cli_verb *verb, checkpoint_options *o) {
    o->rules = calloc((size_t)o->splits.count + 1, sizeof *o->rules);
    if (!o->rules) {
        return cli_complain("out of memory");
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
    if (count == 0) return cli_usage(verb, "checkpoint needs a command: " ACTION_NAMES);
    const struct action *action = find(words[0]);
    if (!action) return refuse_action(verb, words[0]);
    int code = check(verb, action, o, count - 1);
    if (code == CLI_DONE) code = parse_rules(verb, o);
    if (code == CLI_DONE && (action->takes & TAKES_RESHARD)) code = parse_reshard(verb, o);
    if (code != CLI_DONE) return code;
    char *text = NULL;
    if (o->key && weft_checkpoint_key(o->key) < 0) return cli_failed();
    weft_status status = action->run(o, count - 1, words + 1, &text);
    if (text && o->json) {
        cli_say(stdout, "%s", text);
        cli_errors_told();
    }
    if (text && !o->json) cli_say_text(stdout, text);
    weft_checkpoint_text_free(text);
    if (status == WEFT_PENDING) return CLI_FAILED; /* as diff(1) */
    return status < 0 ? cli_failed() : CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    checkpoint_options values = {0};
    int code, left;
    if (!cli_texts_create(&values.splits, count)) return CLI_FAILED;
    if (!cli_texts_create(&values.only, count)) {
        cli_texts_free(&values.splits);
        return CLI_FAILED;
    }
    if (cli_parse(verb, count, words, &values, &left, &code))
        code = act(verb, left, words, &values);
    free(values.rules);
    free(values.only_ranks);
    cli_texts_free(&values.splits);
    cli_texts_free(&values.only);
    return code;
}

const cli_verb cli_checkpoint = {
    .name = "checkpoint",
    .summary = "look into checkpoints, verify, compare and convert them",
    .usage = "checkpoint inspect|verify PATH [--json]\n"
             "       weft checkpoint digest PATH [--from LAYOUTS] [--json]\n"
             "       weft checkpoint diff PATH PATH [--from LAYOUTS] [--to LAYOUTS] [--json]\n"
             "       weft checkpoint reshard SRC DST [--from LAYOUTS] [--to LAYOUTS] [--only "
             "RANKS]\n"
             "       weft checkpoint reshard SRC --list RANK --to LAYOUTS [--from LAYOUTS]\n"
             "       weft checkpoint merge-strategies FILE... --out FILE\n"
             "       weft checkpoint make-key FILE\n"
             "       weft checkpoint adapter RUN DIR [--base MODEL]\n"
             "       weft checkpoint merge-adapter RUN|DIR DIR [--base MODEL]\n"
             "       weft checkpoint merge --out FILE [--split PATTERN=DIM]... SLICE...\n"
             "       weft checkpoint split PATH --ranks N --split PATTERN=DIM... --out PREFIX",
    .example = "weft checkpoint verify run/\n"
               "  weft checkpoint merge --out whole.safetensors --split 'fc1.*=1' --split "
               "'fc2.weight=0' slice-*.safetensors\n"
               "  weft checkpoint split whole.safetensors --ranks 2 --split 'fc1.*=1' --split "
               "'fc2.weight=0' --out half",
    .notes =
        "PATH is a run's directory, one of its steps, a Hugging Face directory or a "
        ".safetensors file; so is each SLICE.\n"
        "digest, diff, reshard and split also take slices of ranks (folders rank_0, rank_1, ...) "
        "and torch's distributed checkpoints in safetensors.\n"
        "diff exits 1 when tensors differ.\n"
        "verify reads every byte and exits 1 when anything is damaged.\n"
        "merge takes one slice of each rank, in the order of ranks. What no --split names "
        "must be the same in all slices.\n"
        "make-key makes a random key for checkpoint.key; --key reads what it has encrypted.\n"
        "adapter writes the adapters of a run in PEFT's form; merge-adapter writes the model with "
        "what its adapters add in its weights.\n"
        "What is written is not encrypted, also if it comes from an encrypted checkpoint.\n"
        "split writes PREFIX-rank-00000-of-0000N.safetensors and so on. Nothing is written "
        "over a file.",
    .options = options,
    .run = run,
};
