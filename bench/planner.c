/* How long `weft plan` searches, and how good its plans are: one JSON object for each question.
 *
 *   bench/planner WEFT [NAME [SECONDS]]
 *
 * WEFT is the `weft` command. With NAME, only questions whose name begins so. Each question is one
 * process, from reading the job to the printed plan; it is ended after SECONDS (300). `seconds` is
 * elapsed time, `cpu_seconds` and `peak_bytes` are the process's. `peer` has the figures of another
 * system's search for the same question, measured on a machine of 2 cores, and `peer_plan_seconds`
 * the step that this simulator predicts for that system's plan. Run it on an idle machine. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json/json.h"

enum { WORDS = 64, ROOM = 1 << 20 };

typedef struct question {
    const char *name, *words;
    const char *machine, *fix; /* fix NULL: none */
    const char *peer;          /* members of a JSON object; NULL: none */
    const char *peer_plan;     /* the peer's plan as constraints; NULL: unknown */
} question;

#define LLAMA_8B                                                                                   \
    "model.family=llama model.layers=32 model.hidden=4096 model.heads=32 model.kv_heads=8 "        \
    "model.ffn=14336 model.vocab=128256 model.context=8192 "
#define GPT_WIDE                                                                                   \
    "model.family=gpt2 model.hidden=12288 model.heads=96 model.context=2048 model.vocab=51200 "

static const question questions[] = {
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

typedef struct answer {
    double seconds, cpu_seconds;
    int64_t peak_bytes;
    int code; /* exit code; -1: ended for time */
    char *text;
} answer;

/* Splits at spaces, in place. */
static int split(char *text, char **words, int count) {
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word && count < WORDS - 16;
         word = strtok_r(NULL, " ", &save))
        words[count++] = word;
    return count;
}

static void run_child(const char *weft, const question *q, const char *fix, int out) {
    static char copy[4096];
    char *words[WORDS] = {
        (char *)weft,       "plan",  "data.path=none", "train.precision=bf16", "--machine",
        (char *)q->machine, "--json"};
    int count = 7;
    if (fix) {
        words[count++] = "--fix";
        words[count++] = (char *)fix;
    }
    (void)snprintf(copy, sizeof copy, "%s", q->words);
    count = split(copy, words, count);
    words[count] = NULL;
    (void)dup2(out, 1);
    (void)execv(weft, words);
    _exit(127);
}

static void read_all(int in, char *text) {
    size_t used = 0;
    ssize_t got;
    while (used < ROOM - 1 && (got = read(in, text + used, ROOM - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
}

static volatile sig_atomic_t child;
static void end_child(int signal) {
    (void)signal;
    if (child > 0) (void)kill((pid_t)child, SIGKILL);
}

static bool ask(const char *weft, const question *q, const char *fix, unsigned limit, answer *out) {
    int ends[2], status = 0;
    struct rusage use = {0};
    const double begin = wefti_now_s();
    *out = (answer){.text = calloc(ROOM, 1)};
    if (!out->text || pipe(ends) != 0) return false;
    (void)fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) run_child(weft, q, fix, ends[1]);
    child = pid;
    (void)close(ends[1]);
    (void)alarm(limit);
    read_all(ends[0], out->text);
    (void)close(ends[0]);
    const bool ended = wait4(pid, &status, 0, &use) == pid;
    (void)alarm(0);
    child = 0;
    out->seconds = wefti_now_s() - begin;
    out->cpu_seconds = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                       1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
    out->peak_bytes = (int64_t)use.ru_maxrss * 1024;
    out->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ended;
}

/* ---- what it has printed ---- */

static const wefti_json *member(const wefti_json *object, const char *key) {
    WEFTI_JSON_EACH(item, object)
    if (item->key && !strcmp(item->key, key)) return item;
    return NULL;
}

static double number(const wefti_json *object, const char *key) {
    const wefti_json *x = member(object, key);
    if (!x) return 0;
    return x->kind == WEFTI_JSON_INT ? (double)x->as.integer
                                     : (x->kind == WEFTI_JSON_REAL ? x->as.real : 0);
}

static const wefti_json *parse(wefti_arena *arena, const answer *a) {
    const wefti_json_limits limits = {16, 256, 4096};
    const wefti_json *out = NULL;
    if (a->code != 0 ||
        wefti_json_parse(arena, a->text, (int64_t)strlen(a->text), &limits, &out) < 0)
        return NULL;
    return out->kind == WEFTI_JSON_OBJECT ? out : NULL;
}

static void show(const question *q, const answer *a, const wefti_json *x) {
    printf("{\"question\": \"%s\", \"seconds\": %.3f, \"cpu_seconds\": %.3f, \"peak_bytes\": %lld",
           q->name, a->seconds, a->cpu_seconds, (long long)a->peak_bytes);
    if (!x) {
        printf(", \"answered\": false, \"code\": %d", a->code);
        return;
    }
    const wefti_json *degrees = member(x, "degrees"), *exhausted = member(x, "exhausted");
    printf(", \"answered\": true, \"step_seconds\": %.6g, \"lower_bound_seconds\": %.6g, "
           "\"gap\": %.5f, \"exhausted\": %s, \"evaluations\": %.0f, \"programs\": %.0f, "
           "\"plan\": \"%s\"",
           number(x, "step_seconds"), number(x, "lower_bound_seconds"), number(x, "gap"),
           exhausted && exhausted->as.boolean ? "true" : "false", number(x, "evaluations"),
           number(x, "programs"),
           degrees && degrees->kind == WEFTI_JSON_TEXT ? degrees->as.text : "");
}

static int show_question(const char *weft, const question *q, unsigned limit, wefti_arena *arena) {
    answer a, of_peer;
    if (!ask(weft, q, q->fix, limit, &a)) {
        free(a.text);
        return 1;
    }
    const wefti_json *x = parse(arena, &a);
    show(q, &a, x);
    if (q->peer) printf(", \"peer\": {%s}", q->peer);
    if (q->peer_plan && ask(weft, q, q->peer_plan, limit, &of_peer)) {
        const wefti_json *y = parse(arena, &of_peer);
        if (y) printf(", \"peer_plan_seconds\": %.6g", number(y, "step_seconds"));
        free(of_peer.text);
    }
    printf("}\n");
    (void)fflush(stdout);
    free(a.text);
    return x ? 0 : 1;
}

int main(int argc, char **argv) {
    wefti_arena *arena;
    int asked = 0, failed = 0;
    const struct sigaction alarmed = {.sa_handler = end_child, .sa_flags = SA_RESTART};
    if (argc < 2 || argc > 4) {
        (void)fprintf(stderr, "usage: planner WEFT [NAME [SECONDS]]\n");
        return 2;
    }
    const unsigned limit = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 300;
    if (wefti_arena_create(&arena) < 0 || sigaction(SIGALRM, &alarmed, NULL) != 0) return 1;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        if (argc > 2 && strncmp(questions[i].name, argv[2], strlen(argv[2])) != 0) continue;
        asked++;
        failed += show_question(argv[1], &questions[i], limit, arena);
    }
    wefti_arena_destroy(arena);
    if (!asked) (void)fprintf(stderr, "planner: no question is named '%s'\n", argv[2]);
    return asked && !failed ? 0 : 1;
}
