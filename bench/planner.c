/* How long `weft plan` searches, and how good its plans are: one JSON object for each question.
 *
 *   bench/planner WEFT [NAME [SECONDS]]
 *   bench/planner WEFT grid [NAME [SECONDS]]
 *   bench/planner WEFT published FILE [SOURCE]
 *   bench/planner WEFT random [--seed S] [--from F] [--count N] [--sample K] [--seconds T]
 *                        [--cpu C]
 *
 * WEFT is the `weft` command. With NAME, only questions whose name begins so. Each question is one
 * process, from reading the job to the printed plan; it is ended after SECONDS (300). `seconds` is
 * elapsed time, `cpu_seconds` and `peak_bytes` are the process's. `peer` has the figures of another
 * system's search for the same question, measured on a machine of 2 cores, and `peer_plan_seconds`
 * the step that this simulator predicts for that system's plan. Run it on an idle machine.
 *
 * The second form looks for splits whose plans are faster than the plan of the search: see
 * planner/grid.c.
 *
 * The third form reads published runs (docs/reference/format-published.md) and compares their plans
 * with those of the search: see planner/published.c. The fourth form asks random questions: see
 * planner/random.c. */
#include "planner/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA_8B                                                                                   \
    "model.family=llama model.layers=32 model.hidden=4096 model.heads=32 model.kv_heads=8 "        \
    "model.ffn=14336 model.vocab=128256 model.context=8192 "
#define GPT_WIDE                                                                                   \
    "model.family=gpt2 model.hidden=12288 model.heads=96 model.context=2048 model.vocab=51200 "

static const planner_question questions[] = {
    {"llama-8b-64", LLAMA_8B "train.batch=128", "8 hosts of 8 h100-80g", NULL, NULL, NULL},
    {"gpt3-175b-1024", GPT_WIDE "model.layers=96 train.batch=1536", "128 hosts of 8 a100-80g", NULL,
     NULL, NULL},
    {"llama-405b-16384",
     "model.family=llama model.layers=126 model.hidden=16384 model.heads=128 model.kv_heads=8 "
     "model.ffn=53248 model.vocab=128256 model.context=8192 train.batch=2048",
     "2048 hosts of 8 h100-80g", NULL, NULL, NULL},
    {"moe-256-experts-2048",
     "model.family=mixtral model.layers=61 model.hidden=7168 model.heads=128 model.kv_heads=128 "
     "model.head_dim=128 model.ffn=2048 model.experts=256 model.experts_per_token=8 "
     "model.capacity_factor=1.25 "
     "model.vocab=129280 model.context=4096 train.batch=15360",
     "256 hosts of 8 h100-80g", NULL, NULL, NULL},
    {"depth-12", GPT_WIDE "model.layers=12 train.batch=64", "8 hosts of 8 a100-80g", NULL, NULL,
     NULL},
    {"depth-96", GPT_WIDE "model.layers=96 train.batch=64", "8 hosts of 8 a100-80g", NULL, NULL,
     NULL},
    {"peer-autoparallel", LLAMA_8B "train.batch=128", "8 hosts of 8 h100-80g", "pp=1",
     "\"system\": \"Meta AutoParallel a54c2529\", \"seconds\": 326, \"cpu_seconds\": 177, "
     "\"peak_bytes\": 4900000000",
     "dp=8 tp=8 pp=1 cp=1"},
    {"peer-galvatron",
     "model.family=llama model.layers=32 model.hidden=4096 model.heads=32 model.ffn=11008 "
     "model.vocab=32000 model.context=2048 train.batch=16 device.memory=36GiB",
     "1 hosts of 8 a100-40g", NULL,
     "\"system\": \"Galvatron cea12ffb\", \"seconds\": 201, \"cpu_seconds\": 81, "
     "\"step_seconds\": 1.086",
     "dp=8 tp=1 pp=1 cp=1 level=3 recompute=full"},
    {"peer-simumax", LLAMA_8B "train.batch=128", "8 hosts of 8 a100-80g", "cp=1",
     "\"system\": \"SimuMax 4dcaae51\", \"seconds\": 46, \"cpu_seconds\": 5.5", NULL},
    {"peer-calculon", GPT_WIDE "model.layers=96 train.batch=64", "8 hosts of 8 a100-80g", NULL,
     "\"system\": \"Calculon caa4b11f\", \"cpu_seconds\": 607, \"finished\": false", NULL},
};

static void show(const planner_question *q, const planner_answer *a, const wefti_json *x) {
    printf("{\"question\": \"%s\", \"seconds\": %.3f, \"cpu_seconds\": %.3f, \"peak_bytes\": %lld",
           q->name, a->seconds, a->cpu_seconds, (long long)a->peak_bytes);
    if (!x) {
        printf(", \"answered\": false, \"code\": %d", a->code);
        return;
    }
    const wefti_json *degrees = planner_member(x, "degrees"),
                     *exhausted = planner_member(x, "exhausted");
    printf(", \"answered\": true, \"step_seconds\": %.6g, \"lower_bound_seconds\": %.6g, "
           "\"gap\": %.5f, \"exhausted\": %s, \"evaluations\": %.0f, \"programs\": %.0f, "
           "\"plan\": \"%s\"",
           planner_number(x, "step_seconds"), planner_number(x, "lower_bound_seconds"),
           planner_number(x, "gap"), exhausted && exhausted->as.boolean ? "true" : "false",
           planner_number(x, "evaluations"), planner_number(x, "programs"),
           degrees && degrees->kind == WEFTI_JSON_TEXT ? degrees->as.text : "");
}

static int show_question(const char *weft, const planner_question *q, unsigned limit,
                         wefti_arena *arena) {
    planner_answer a, of_peer;
    if (!planner_ask(weft, q, q->fix, limit, &a)) {
        free(a.text);
        return 1;
    }
    const wefti_json *x = planner_parse(arena, &a);
    show(q, &a, x);
    if (q->peer) printf(", \"peer\": {%s}", q->peer);
    if (q->peer_plan && planner_ask(weft, q, q->peer_plan, limit, &of_peer)) {
        const wefti_json *y = planner_parse(arena, &of_peer);
        if (y) printf(", \"peer_plan_seconds\": %.6g", planner_number(y, "step_seconds"));
        free(of_peer.text);
    }
    printf("}\n");
    (void)fflush(stdout);
    free(a.text);
    return x ? 0 : 1;
}

static bool is_published(int argc, char **argv) {
    return argc > 3 && !strcmp(argv[2], "published");
}

static bool is_grid(int argc, char **argv) {
    return argc > 2 && !strcmp(argv[2], "grid");
}

int main(int argc, char **argv) {
    wefti_arena *arena;
    int asked = 0, failed = 0;
    const bool grid = is_grid(argc, argv);
    if (argc > 2 && !strcmp(argv[2], "random"))
        return planner_begin() ? planner_random(argv[1], argc - 3, argv + 3) : 1;
    if (argc < 2 || argc > (grid || is_published(argc, argv) ? 5 : 4)) {
        (void)fprintf(stderr, "usage: planner WEFT [NAME [SECONDS]]\n"
                              "       planner WEFT grid [NAME [SECONDS]]\n"
                              "       planner WEFT published FILE [SOURCE]\n"
                              "       planner WEFT random [--seed S] [--from F] [--count N] "
                              "[--sample K] [--seconds T] [--cpu C]\n");
        return 2;
    }
    if (is_published(argc, argv))
        return planner_begin() ? planner_published(argv[1], argv[3], argc > 4 ? argv[4] : "") : 1;
    char **asks = argv + grid; /* NAME, SECONDS */
    const int words = argc - grid;
    const unsigned limit = words > 3 ? (unsigned)strtoul(asks[3], NULL, 10) : 300;
    if (wefti_arena_create(&arena) < 0 || !planner_begin()) return 1;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        const planner_question *q = &questions[i];
        if (words > 2 && strncmp(q->name, asks[2], strlen(asks[2])) != 0) continue;
        asked++;
        failed += grid ? planner_grid(argv[1], q, limit) : show_question(argv[1], q, limit, arena);
    }
    wefti_arena_destroy(arena);
    if (!asked) (void)fprintf(stderr, "planner: no question is named '%s'\n", asks[2]);
    return asked && !failed ? 0 : 1;
}
