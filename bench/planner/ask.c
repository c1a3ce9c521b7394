/* Asks `weft plan` in a process of its own. */
#include "planner.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { WORDS = 64, ROOM = 1 << 20 };

/* Splits at spaces, in place. */
static int split(char *text, char **words, int count) {
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word && count < WORDS - 16;
         word = strtok_r(NULL, " ", &save))
        words[count++] = word;
    return count;
}

static void run_child(const char *weft, const planner_question *q, const char *fix, int out) {
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

bool planner_ask(const char *weft, const planner_question *q, const char *fix, unsigned limit,
                 planner_answer *out) {
    int ends[2], status = 0;
    struct rusage use = {0};
    const double begin = wefti_now_s();
    *out = (planner_answer){.text = calloc(ROOM, 1)};
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

const wefti_json *planner_member(const wefti_json *object, const char *key) {
    WEFTI_JSON_EACH(item, object)
    if (item->key && !strcmp(item->key, key)) return item;
    return NULL;
}

double planner_number(const wefti_json *object, const char *key) {
    const wefti_json *x = planner_member(object, key);
    if (!x) return 0;
    return x->kind == WEFTI_JSON_INT ? (double)x->as.integer
                                     : (x->kind == WEFTI_JSON_REAL ? x->as.real : 0);
}

const wefti_json *planner_parse(wefti_arena *arena, const planner_answer *a) {
    const wefti_json_limits limits = {16, 256, 4096};
    const wefti_json *out = NULL;
    if (a->code != 0 ||
        wefti_json_parse(arena, a->text, (int64_t)strlen(a->text), &limits, &out) < 0)
        return NULL;
    return out->kind == WEFTI_JSON_OBJECT ? out : NULL;
}

bool planner_begin(void) {
    const struct sigaction alarmed = {.sa_handler = end_child, .sa_flags = SA_RESTART};
    return sigaction(SIGALRM, &alarmed, NULL) == 0;
}
