/* Whether a plan of a grid is faster than the plan of the search.
 *
 * `weft plan` is asked once without further constraints, and once for each split of the grid:
 * tensor and context parallelism, stages, microbatches and, for mixtures, experts. Schedules,
 * levels and recomputation stay free. Each search of one split has the whole budget for it. One
 * JSON object for each split whose plan is faster by more than the tolerance of the search, and one
 * with the counts. */
#include "planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { TEXT = 256, STAGES_MOST = 64, EXPERTS_MOST = 64 };
static const double tolerance = 0.002;

typedef struct grid {
    const char *weft;
    const planner_question *question;
    unsigned limit;
    long devices, batch, experts;
    double found; /* step of the search without further constraints */
    int asked, fitting, faster;
    double least; /* step of the best split / found */
} grid;

/* The number behind a word of the question, 0: it has none. */
static long number_of(const char *words, const char *key) {
    const char *at = strstr(words, key);
    return at ? strtol(at + strlen(key), NULL, 10) : 0;
}

static long devices_of(const char *machine) {
    char *end;
    const long hosts = strtol(machine, &end, 10);
    const char *of = strstr(end, "of ");
    return of ? hosts * strtol(of + 3, NULL, 10) : hosts;
}

/* Seconds of the step, 0: no plan. `plan` has room for TEXT bytes. */
static double step_of(const grid *g, const char *fix, char *plan) {
    planner_answer a = {0};
    wefti_arena *arena;
    double seconds = 0;
    if (wefti_arena_create(&arena) < 0) return 0;
    if (planner_ask(g->weft, g->question, fix, g->limit, &a)) {
        const wefti_json *x = planner_parse(arena, &a);
        const wefti_json *degrees = x ? planner_member(x, "degrees") : NULL;
        if (x) seconds = planner_number(x, "step_seconds");
        if (degrees) (void)snprintf(plan, TEXT, "%s", degrees->as.text);
    }
    free(a.text);
    wefti_arena_destroy(arena);
    return seconds;
}

static void ask_split(grid *g, const char *split) {
    char fix[2 * TEXT], plan[TEXT] = "";
    const char *own = g->question->fix ? g->question->fix : "";
    (void)snprintf(fix, sizeof fix, "%s %s", own, split);
    const double seconds = step_of(g, fix, plan);
    g->asked++;
    if (seconds <= 0) return;
    g->fitting++;
    if (seconds < g->least * g->found) g->least = seconds / g->found;
    if (seconds * (1 + tolerance) >= g->found) return;
    g->faster++;
    printf("{\"question\": \"%s\", \"split\": \"%s\", \"step_seconds\": %.6g, \"found\": %.6g, "
           "\"plan\": \"%s\"}\n",
           g->question->name, split, seconds, g->found, plan);
    (void)fflush(stdout);
}

/* Stages need as many microbatches. */
static void ask_microbatches(grid *g, const char *split, long stages, long replicas) {
    for (long m = 1; m * replicas <= g->batch; m *= 2) {
        char text[TEXT];
        if (g->batch % m || (stages > 1 && m < stages)) continue;
        (void)snprintf(text, sizeof text, "%s microbatches=%ld", split, m);
        ask_split(g, text);
    }
}

static void ask_axes(grid *g, long tensor, long stages, long context) {
    const long left = g->devices / (tensor * stages * context);
    if (!left || g->devices % (tensor * stages * context)) return;
    for (long e = 1; e == 1 || (e <= g->experts && e <= EXPERTS_MOST); e *= 8) {
        char text[TEXT];
        if (left % e) continue;
        (void)snprintf(text, sizeof text, "tp=%ld pp=%ld cp=%ld ep=%ld", tensor, stages, context,
                       e);
        ask_microbatches(g, text, stages, left);
    }
}

int planner_grid(const char *weft, const planner_question *q, unsigned limit) {
    char plan[TEXT] = "";
    grid g = {.weft = weft, .question = q, .limit = limit, .least = 1};
    g.devices = devices_of(q->machine);
    g.batch = number_of(q->words, "train.batch=");
    g.experts = number_of(q->words, "model.experts=");
    g.found = step_of(&g, q->fix, plan);
    if (g.found <= 0) return 1;
    for (long tensor = 1; tensor <= 16; tensor *= 2)
        for (long stages = 1; stages <= STAGES_MOST; stages *= 2)
            for (long context = 1; context <= 2; context++) ask_axes(&g, tensor, stages, context);
    printf("{\"question\": \"%s\", \"found\": %.6g, \"plan\": \"%s\", \"splits\": %d, \"fitting\": "
           "%d, \"faster\": %d, \"least_ratio\": %.4f}\n",
           q->name, g.found, plan, g.asked, g.fitting, g.faster, g.least);
    (void)fflush(stdout);
    return g.faster != 0;
}
