/* Asks `weft plan` in a process of its own. See bench/planner.c. */
#ifndef PLANNER_H
#define PLANNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json/json.h"

typedef struct planner_question {
    const char *name, *words;
    const char *machine, *fix; /* fix NULL: none */
    const char *peer;          /* members of a JSON object; NULL: none */
    const char *peer_plan;     /* the peer's plan as constraints; NULL: unknown */
} planner_question;

typedef struct planner_answer {
    double seconds, cpu_seconds;
    int64_t peak_bytes;
    int code; /* exit code; -1: ended for time */
    char *text;
} planner_answer;

/* Children end when their time is over. False: not possible. */
bool planner_begin(void);
/* `fix` NULL: none. The text of `out` is the caller's. False: no process. */
bool planner_ask(const char *weft, const planner_question *q, const char *fix, unsigned limit,
                 planner_answer *out);
/* The printed object, NULL: none. */
const wefti_json *planner_parse(wefti_arena *arena, const planner_answer *a);
const wefti_json *planner_member(const wefti_json *object, const char *key);
double planner_number(const wefti_json *object, const char *key);

/* grid.c: the search beside searches of single splits. The exit code: 1 if one is faster. */
int planner_grid(const char *weft, const planner_question *q, unsigned limit);

/* published.c: plans of published runs beside those of the search. The exit code. */
int planner_published(const char *weft, const char *path, const char *source);

/* random.c: random questions against other answers to them. The exit code. */
int planner_random(const char *weft, int words, char **word);

#endif
