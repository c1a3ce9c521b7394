#include "search/choice/front.h"

#include <math.h>
#include <stdlib.h>

weft_status wefti_fronts_create(int64_t cells, wefti_fronts *out) {
    *out = (wefti_fronts){.cells = cells};
    WEFT_NEW_ARRAY(out->first, int64_t, cells + 1);
    return WEFT_OK;
}

void wefti_fronts_free(wefti_fronts *fronts) {
    wefti_free(fronts->first);
    wefti_free(fronts->ways);
    *fronts = (wefti_fronts){0};
}

static weft_status add_trace(wefti_front_maker *m, wefti_way_trace trace, int32_t *out) {
    WEFT_REQUIRE(m->trace_count < INT32_MAX, WEFT_E_NO_IMPL,
                 "the graph has too many ways to split it: set "
                 "parallel.algorithm.enable_algo_approxi=true");
    WEFT_TRY(WEFT_GROW(m->traces, m->trace_count, m->trace_cap));
    m->traces[m->trace_count] = trace;
    *out = (int32_t)m->trace_count++;
    return WEFT_OK;
}

weft_status wefti_front_leaf(wefti_front_maker *m, int32_t variable, int32_t value, int32_t *out) {
    return add_trace(m, (wefti_way_trace){{-1, -1, -1}, variable, value}, out);
}

/* In single mode the best trial so far is the only one. */
static weft_status add_trial(wefti_front_maker *m, double time, double memory, int32_t a, int32_t b,
                             int32_t c) {
    const struct wefti_front_trial trial = {time, memory, {a, b, c}};
    if (!(time < (double)INFINITY) || memory > m->capacity) return WEFT_OK;
    if (m->single && m->trial_count) {
        struct wefti_front_trial *best = m->trials;
        if (time < best->time || (time == best->time && memory < best->memory)) *best = trial;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(m->trials, m->trial_count, m->trial_cap));
    m->trials[m->trial_count++] = trial;
    return WEFT_OK;
}

weft_status wefti_front_sum(wefti_front_maker *m, const wefti_way *a, int64_t a_count,
                            const wefti_way *b, int64_t b_count, const wefti_way *c,
                            int64_t c_count) {
    static const wefti_way nothing = {0, 0, -1};
    if (!b) b = &nothing, b_count = 1;
    if (!c) c = &nothing, c_count = 1;
    m->trials_left -= a_count * b_count * c_count;
    WEFT_REQUIRE(m->trials_left >= 0, WEFT_E_NO_IMPL,
                 "the graph has too many ways to split it: set "
                 "parallel.algorithm.enable_algo_approxi=true");
    for (int64_t i = 0; i < a_count; i++)
        for (int64_t j = 0; j < b_count; j++)
            for (int64_t k = 0; k < c_count; k++)
                WEFT_TRY(add_trial(m, a[i].time + b[j].time + c[k].time,
                                   a[i].memory + b[j].memory + c[k].memory, a[i].trace, b[j].trace,
                                   c[k].trace));
    return WEFT_OK;
}

/* Equal trials stay in the order in which they came, because parts are numbered in order. */
static int compare(const void *x, const void *y) {
    const struct wefti_front_trial *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->memory != b->memory) return a->memory < b->memory ? -1 : 1;
    for (int i = 0; i < 3; i++)
        if (a->part[i] != b->part[i]) return a->part[i] < b->part[i] ? -1 : 1;
    return 0;
}

/* Keeps the front: of trials with more time, only those with less memory. */
static void prune(wefti_front_maker *m) {
    int64_t kept = 0;
    qsort(m->trials, (size_t)m->trial_count, sizeof *m->trials, compare);
    for (int64_t i = 0; i < m->trial_count; i++)
        if (!kept || m->trials[i].memory < m->trials[kept - 1].memory)
            m->trials[kept++] = m->trials[i];
    if (kept > WEFTI_FRONT_MOST) {
        /* evenly; the first has the least time, the last the least memory */
        m->thinned = true;
        for (int64_t i = 0; i < WEFTI_FRONT_MOST; i++)
            m->trials[i] = m->trials[i * (kept - 1) / (WEFTI_FRONT_MOST - 1)];
        kept = WEFTI_FRONT_MOST;
    }
    m->trial_count = kept;
}

weft_status wefti_front_end(wefti_front_maker *m, wefti_fronts *out, int64_t cell) {
    int64_t at = out->first[cell];
    if (m->trial_count > 1) prune(m);
    for (int64_t i = 0; i < m->trial_count; i++) {
        const struct wefti_front_trial *t = &m->trials[i];
        int32_t trace = -1, parts = 0, only = -1;
        for (int k = 0; k < 3; k++)
            if (t->part[k] >= 0) {
                parts++;
                only = t->part[k];
            }
        if (parts == 1)
            trace = only;
        else if (parts)
            WEFT_TRY(add_trace(m, (wefti_way_trace){{t->part[0], t->part[1], t->part[2]}, -1, 0},
                               &trace));
        WEFT_TRY(WEFT_GROW(out->ways, at, out->cap));
        out->ways[at++] = (wefti_way){t->time, t->memory, trace};
    }
    m->trial_count = 0;
    out->first[cell + 1] = at;
    return WEFT_OK;
}

void wefti_front_maker_free(wefti_front_maker *m) {
    wefti_free(m->traces);
    wefti_free(m->trials);
    *m = (wefti_front_maker){0};
}
