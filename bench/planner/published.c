/* Plans of published runs beside those of the search.
 *
 * For each row of a dense language model whose sizes and degrees are all given, `weft plan` is
 * asked twice: with the row's plan as constraints, and without. Model, devices, batch and memory
 * are the same, and so is the simulator. One JSON object for each row: `published` is the step of
 * the row's plan and `found` that of the search, both predicted. `slower`: the search has missed a
 * plan that it should have found. Rows whose plan does not fit here, or that weft cannot express,
 * say so and are not compared. With SOURCE, only rows whose source has this text in it.
 *
 * Products in 16 bits only: fp16 costs what bf16 does. Machine files and sizes are as the row says.
 */
#include "planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "weft/status.h"

enum { TEXT = 1024, LIMIT_SECONDS = 300 };

typedef struct row {
    const char *id;
    char words[TEXT], machine[TEXT], plan[TEXT];
} row;

/* The last question without constraints: rows of one table share it. */
typedef struct asked {
    char words[TEXT], machine[TEXT], plan[TEXT];
    double seconds; /* 0: no answer */
} asked;

typedef struct counts {
    int rows, compared, slower, not_fitting, not_found;
    double least, most; /* found / published */
} counts;

static const char *text_of(const wefti_json *object, const char *key) {
    const wefti_json *x = planner_member(object, key);
    return x && x->kind == WEFTI_JSON_TEXT ? x->as.text : "";
}

static long of(const wefti_json *object, const char *key) {
    return (long)planner_number(object, key);
}

static long at_least_one(const wefti_json *object, const char *key) {
    const long x = of(object, key);
    return x > 1 ? x : 1;
}

static const char *machine_of(const char *gpu) {
    static const char *const names[][2] = {
        {"A100-40GB", "a100-40g"}, {"A100", "a100-80g"},      {"H100-96GB", "h100-96g"},
        {"H100-80GB", "h100-80g"}, {"H200", "h200"},          {"B200", "b200"},
        {"GH200", "gh200"},        {"V100-16GB", "v100-16g"}, {"V100-32GB", "v100"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(gpu, names[i][0], strlen(names[i][0]))) return names[i][1];
    return NULL;
}

static bool has_all(const wefti_json *r) {
    static const char *const needed[] = {"layers",  "hidden",       "heads",         "vocab",
                                         "seq_len", "num_gpus",     "gpus_per_node", "tp",
                                         "pp",      "global_batch", "micro_batch"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (of(r, needed[i]) < 1) return false;
    const char *precision = text_of(r, "precision"), *done = text_of(r, "recompute");
    const bool half = !strncmp(precision, "bf16", 4) || !strncmp(precision, "fp16", 4);
    return half && !strcmp(text_of(r, "category"), "dense") &&
           !strcmp(text_of(r, "status"), "ok") && of(r, "experts") <= 1 && !strstr(done, " of ") &&
           machine_of(text_of(r, "gpu"));
}

static void words_of(const wefti_json *r, row *out) {
    const long hidden = of(r, "hidden"), heads = of(r, "heads");
    const long ffn = of(r, "ffn") ? of(r, "ffn") : 4 * hidden;
    const long kv = of(r, "kv_heads") ? of(r, "kv_heads") : heads;
    const bool gated = kv != heads || strstr(text_of(r, "model"), "lama");
    char more[64] = "";
    if (gated) (void)snprintf(more, sizeof more, " model.kv_heads=%ld", kv);
    (void)snprintf(out->words, TEXT,
                   "model.family=%s model.layers=%ld model.hidden=%ld model.heads=%ld "
                   "model.ffn=%ld model.vocab=%ld model.context=%ld train.batch=%ld%s",
                   gated ? "llama" : "gpt2", of(r, "layers"), hidden, heads, ffn, of(r, "vocab"),
                   of(r, "seq_len"), of(r, "global_batch"), more);
}

/* False: the degrees do not make up the devices and the batch, or are not known. */
static bool plan_of(const wefti_json *r, row *out) {
    const long tp = of(r, "tp"), pp = of(r, "pp"), cp = at_least_one(r, "cp");
    const long devices = of(r, "num_gpus"), batch = of(r, "global_batch");
    const long dp = devices / (tp * pp * cp), micro = of(r, "micro_batch");
    const long chunks = at_least_one(r, "vp");
    const wefti_json *split = planner_member(r, "sequence_parallel");
    const bool sequence = split && split->kind == WEFTI_JSON_BOOL && split->as.boolean && tp > 1;
    if (dp < 1 || dp * tp * pp * cp != devices || batch % (dp * micro)) return false;
    long level = of(r, "zero_stage");
    if (!level && of(r, "fsdp") > 1) level = 3;
    const char *text = text_of(r, "recompute");
    const char *mode = !strncmp(text, "full", 4)        ? "full"
                       : !strncmp(text, "selective", 9) ? "selective"
                                                        : "none";
    char stages[96] = "";
    if (pp > 1)
        (void)snprintf(stages, sizeof stages, " schedule=%s chunks=%ld",
                       chunks > 1 ? "interleaved" : "1f1b", chunks);
    (void)snprintf(out->plan, TEXT,
                   "dp=%ld ep=1 cp=%ld tp=%ld sp=%d pp=%ld microbatches=%ld%s level=%ld "
                   "recompute=%s",
                   dp, cp, tp, sequence, pp, batch / (dp * micro), stages, dp * cp > 1 ? level : 0,
                   mode);
    return true;
}

static bool read_row(const wefti_json *r, row *out) {
    *out = (row){.id = text_of(r, "id")};
    if (r->kind != WEFTI_JSON_OBJECT || !has_all(r)) return false;
    const long devices = of(r, "num_gpus"), host = of(r, "gpus_per_node");
    if (devices > host && devices % host) return false;
    words_of(r, out);
    (void)snprintf(out->machine, TEXT, "%ld hosts of %ld %s", devices > host ? devices / host : 1,
                   devices > host ? host : devices, machine_of(text_of(r, "gpu")));
    return plan_of(r, out);
}

/* Seconds of the step, 0: no plan. `plan` NULL, or room for the constraints that give it. */
static double step_of(const char *weft, const row *r, const char *fix, char *plan) {
    const planner_question q = {.name = r->id, .words = r->words, .machine = r->machine};
    planner_answer a = {0};
    wefti_arena *arena;
    double seconds = 0;
    if (wefti_arena_create(&arena) < 0) return 0;
    if (planner_ask(weft, &q, fix, LIMIT_SECONDS, &a)) {
        const wefti_json *x = planner_parse(arena, &a);
        if (x) seconds = planner_number(x, "step_seconds");
        if (x && plan) (void)snprintf(plan, TEXT, "%s", text_of(x, "degrees"));
    }
    free(a.text);
    wefti_arena_destroy(arena);
    return seconds;
}

static void search(const char *weft, const row *r, asked *last) {
    if (!strcmp(last->words, r->words) && !strcmp(last->machine, r->machine)) return;
    memcpy(last->words, r->words, TEXT);
    memcpy(last->machine, r->machine, TEXT);
    last->plan[0] = '\0';
    last->seconds = step_of(weft, r, NULL, last->plan);
}

static void compare(const char *weft, const row *r, asked *last, counts *n) {
    const double published = step_of(weft, r, r->plan, NULL);
    printf("{\"id\": \"%s\", \"machine\": \"%s\", \"plan\": \"%s\"", r->id, r->machine, r->plan);
    n->rows++;
    if (published > 0) search(weft, r, last);
    const bool compared = published > 0 && last->seconds > 0;
    if (published <= 0) {
        n->not_fitting++;
        printf(", \"fits\": false");
    } else {
        printf(", \"published\": %.6g, \"found\": %.6g, \"found_plan\": \"%s\"", published,
               last->seconds, last->plan);
        n->not_found += !compared;
    }
    if (compared) {
        const double ratio = last->seconds / published;
        const bool slower = ratio > 1 + 1e-9;
        n->slower += slower;
        if (!n->compared || ratio < n->least) n->least = ratio;
        if (!n->compared || ratio > n->most) n->most = ratio;
        n->compared++;
        printf(", \"slower\": %s", slower ? "true" : "false");
    }
    printf("}\n");
    (void)fflush(stdout);
}

static weft_status read_rows(wefti_arena *arena, const char *path, const wefti_json **out) {
    enum { FILE_MOST = 1 << 26, ROWS_MOST = 1 << 20 };
    const wefti_json_limits limits = {.depth = 8, .members = 1000, .array_items = ROWS_MOST};
    char *bytes;
    int64_t size;
    WEFT_TRY(wefti_file_read(path, FILE_MOST, &bytes, &size));
    const weft_status status = wefti_json_parse(arena, bytes, size, &limits, out);
    wefti_free(bytes);
    if (status < 0) return wefti_prefix(status, "%s", path);
    WEFT_REQUIRE((*out)->kind == WEFTI_JSON_ARRAY, WEFT_E_ARG, "%s: it must be an array of rows",
                 path);
    return WEFT_OK;
}

int planner_published(const char *weft, const char *path, const char *source) {
    static asked last;
    static row r;
    const wefti_json *rows;
    wefti_arena *arena;
    counts n = {0};
    if (wefti_arena_create(&arena) < 0) return 1;
    if (read_rows(arena, path, &rows) < 0) {
        (void)fprintf(stderr, "planner: %s\n", weft_error_message());
        wefti_arena_destroy(arena);
        return 1;
    }
    WEFTI_JSON_EACH(item, rows)
    if (strstr(text_of(item, "source"), source) && read_row(item, &r)) compare(weft, &r, &last, &n);
    printf(
        "{\"rows\": %d, \"compared\": %d, \"slower\": %d, \"not_fitting\": %d, \"not_found\": %d, "
        "\"least_ratio\": %.4f, \"most_ratio\": %.4f}\n",
        n.rows, n.compared, n.slower, n.not_fitting, n.not_found, n.least, n.most);
    wefti_arena_destroy(arena);
    return n.compared && !n.slower && !n.not_found ? 0 : 1;
}
