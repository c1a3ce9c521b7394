/* Pareto fronts of (time, memory) in tables. Internal to this folder. */
#ifndef WEFTI_CHOICE_FRONT_H
#define WEFTI_CHOICE_FRONT_H

#include <stdbool.h>

#include "base/memory.h"

/* One way to decide everything that is eliminated so far. */
typedef struct wefti_way {
    double time, memory;
    int32_t trace; /* -1: nothing decided */
} wefti_way;

/* What a way consists of: up to three earlier ways, and at most one decision of its own. */
typedef struct wefti_way_trace {
    int32_t part[3];         /* -1: none */
    int32_t variable, value; /* variable -1: no decision */
} wefti_way_trace;

/* A front for each cell of a table. Ways are sorted by time; memory falls strictly. */
typedef struct wefti_fronts {
    int64_t cells;
    int64_t *first; /* [cells + 1] */
    wefti_way *ways;
    int64_t cap;
} wefti_fronts;

enum { WEFTI_FRONT_MOST = 1024 }; /* ways of a front; longer ones are thinned out */

/* Collects the ways of one cell, and the traces of those that stay. */
typedef struct wefti_front_maker {
    bool single;     /* memory does not matter: a front is its way with least time, then memory */
    double capacity; /* ways with more memory are dropped */
    bool thinned;
    int64_t trials_left; /* sums that it may still make; fewer: WEFT_E_NO_IMPL */
    wefti_way_trace *traces;
    int64_t trace_count, trace_cap;
    struct wefti_front_trial {
        double time, memory;
        int32_t part[3];
    } * trials;
    int64_t trial_count, trial_cap;
} wefti_front_maker;

weft_status wefti_fronts_create(int64_t cells, wefti_fronts *out) WEFT_CHECKED;
void wefti_fronts_free(wefti_fronts *fronts);
/* The ways of a cell; never NULL, also if there are none. */
static inline const wefti_way *wefti_front(const wefti_fronts *f, int64_t cell, int64_t *out) {
    static const wefti_way none = {0, 0, -1};
    *out = f->first[cell + 1] - f->first[cell];
    return f->ways ? f->ways + f->first[cell] : &none;
}

weft_status wefti_front_leaf(wefti_front_maker *m, int32_t variable, int32_t value,
                             int32_t *out) WEFT_CHECKED;
/* Adds all sums of one way of each front to the cell in progress; b and c may be NULL. */
weft_status wefti_front_sum(wefti_front_maker *m, const wefti_way *a, int64_t a_count,
                            const wefti_way *b, int64_t b_count, const wefti_way *c,
                            int64_t c_count) WEFT_CHECKED;
/* Ends the cell: keeps its front as cell `cell` of `out`. Cells are ended in order. */
weft_status wefti_front_end(wefti_front_maker *m, wefti_fronts *out, int64_t cell) WEFT_CHECKED;
void wefti_front_maker_free(wefti_front_maker *m);

#endif
