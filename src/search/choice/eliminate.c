/* The exact minimum over a graph of choices, by eliminating variables.
 *
 * Each elimination keeps the minimum over all choices. The first five make the graph smaller. The
 * sixth, star, makes one variable of two neighbors, so that edges become parallel. MindSpore's
 * dynamic programming has these six in this order. Values are fronts of (time, memory): a way with
 * more time stays if it needs less memory. The first run ignores memory. If its answer fits, it is
 * the answer. Source of the method: Bertele and Brioschi, "Nonserial Dynamic Programming", 1972. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "search/choice/choice.h"
#include "search/choice/front.h"

enum { CELLS_MOST = 1 << 25 }; /* of one edge_table */

typedef struct variable {
    bool gone;
    int32_t values;
    int32_t edges, in, out; /* live ones; in + out == edges */
    wefti_fronts own;
    int32_t *touching; /* numbers of edges, live or not */
    int64_t count, cap;
} variable;

typedef struct edge_table {
    bool gone;
    int32_t from, to;
    wefti_fronts fronts; /* [values of from][values of to] */
} edge_table;

typedef struct eliminator {
    const wefti_choice_problem *problem;
    variable *variables;
    edge_table *tables;
    int64_t table_count, table_cap;
    wefti_front_maker maker;
    wefti_fronts total; /* one cell: everything that is decided */
    int64_t used[WEFTI_ELIMINATIONS];
} eliminator;

/* ---- setup ---- */

static weft_status touch(eliminator *e, int32_t v, int64_t edge) {
    variable *x = &e->variables[v];
    WEFT_TRY(WEFT_GROW(x->touching, x->count, x->cap));
    x->touching[x->count++] = (int32_t)edge;
    return WEFT_OK;
}

static weft_status link_table(eliminator *e, int64_t edge) {
    const edge_table *t = &e->tables[edge];
    e->variables[t->from].out++;
    e->variables[t->to].in++;
    e->variables[t->from].edges++;
    e->variables[t->to].edges++;
    WEFT_TRY(touch(e, t->from, edge));
    return touch(e, t->to, edge);
}

static void drop_table(eliminator *e, int64_t edge) {
    edge_table *t = &e->tables[edge];
    t->gone = true;
    e->variables[t->from].out--;
    e->variables[t->to].in--;
    e->variables[t->from].edges--;
    e->variables[t->to].edges--;
    wefti_fronts_free(&t->fronts);
}

/* Takes over the fronts, also on failure. */
static weft_status add_table(eliminator *e, int32_t from, int32_t to, wefti_fronts *fronts) {
    weft_status status = WEFT_GROW(e->tables, e->table_count, e->table_cap);
    if (status < 0) {
        wefti_fronts_free(fronts);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    e->tables[e->table_count] = (edge_table){false, from, to, *fronts};
    *fronts = (wefti_fronts){0};
    return link_table(e, e->table_count++);
}

static weft_status cells_of(int64_t a, int64_t b, wefti_fronts *out) {
    int64_t cells;
    WEFT_REQUIRE(!wefti_mul_overflows(a, b, &cells) && cells <= CELLS_MOST, WEFT_E_NO_IMPL,
                 "the graph is too dense: two ops have %lld x %lld ways together; set "
                 "parallel.algorithm.enable_algo_approxi=true",
                 (long long)a, (long long)b);
    return wefti_fronts_create(cells, out);
}

static weft_status set_variables(eliminator *e) {
    const wefti_choice_problem *p = e->problem;
    for (int32_t v = 0; v < p->variables; v++) {
        variable *x = &e->variables[v];
        x->values = p->values[v];
        WEFT_TRY(wefti_fronts_create(x->values, &x->own));
        for (int32_t i = 0; i < x->values; i++) {
            wefti_way way = {p->time[v][i], p->memory ? p->memory[v][i] : 0, -1};
            WEFT_TRY(wefti_front_leaf(&e->maker, v, i, &way.trace));
            WEFT_TRY(wefti_front_sum(&e->maker, &way, 1, NULL, 0, NULL, 0));
            WEFT_TRY(wefti_front_end(&e->maker, &x->own, i));
        }
    }
    return WEFT_OK;
}

static weft_status set_tables(eliminator *e) {
    const wefti_choice_problem *p = e->problem;
    for (int64_t k = 0; k < p->table_count; k++) {
        const wefti_choice_table *t = &p->tables[k];
        wefti_fronts fronts;
        int64_t cells = (int64_t)p->values[t->from] * p->values[t->to];
        weft_status status = cells_of(p->values[t->from], p->values[t->to], &fronts);
        for (int64_t i = 0; i < cells && status >= 0; i++) {
            const wefti_way way = {t->time[i], t->memory ? t->memory[i] : 0, -1};
            status = wefti_front_sum(&e->maker, &way, 1, NULL, 0, NULL, 0);
            if (status >= 0) status = wefti_front_end(&e->maker, &fronts, i);
        }
        if (status < 0) {
            wefti_fronts_free(&fronts);
            return wefti_note(status, __func__, __FILE__, __LINE__);
        }
        WEFT_TRY(add_table(e, t->from, t->to, &fronts));
    }
    return WEFT_OK;
}

/* ---- eliminations ---- */

/* The n-th live table at variable v. */
static int64_t live(const eliminator *e, int32_t v, int n) {
    const variable *x = &e->variables[v];
    for (int64_t i = 0; i < x->count; i++)
        if (!e->tables[x->touching[i]].gone && n-- == 0) return x->touching[i];
    return -1;
}

static int32_t other_end(const edge_table *t, int32_t v) {
    return t->from == v ? t->to : t->from;
}

/* The front for value i of variable v and value j of the other end. */
static const wefti_way *cell(const eliminator *e, const edge_table *t, int32_t v, int64_t i,
                             int64_t j, int64_t *out) {
    int64_t width = e->variables[t->to].values;
    return wefti_front(&t->fronts, t->from == v ? i * width + j : j * width + i, out);
}

/* Adds table `second` to table `first`, which has the same ends in any direction. */
static weft_status join_parallel(eliminator *e, int64_t first, int64_t second) {
    edge_table *a = &e->tables[first], *b = &e->tables[second];
    int64_t rows = e->variables[a->from].values, columns = e->variables[a->to].values;
    wefti_fronts sum;
    WEFT_TRY(cells_of(rows, columns, &sum));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < rows && status >= 0; i++)
        for (int64_t j = 0; j < columns && status >= 0; j++) {
            int64_t n, m;
            const wefti_way *x = cell(e, a, a->from, i, j, &n), *y = cell(e, b, a->from, i, j, &m);
            status = wefti_front_sum(&e->maker, x, n, y, m, NULL, 0);
            if (status >= 0) status = wefti_front_end(&e->maker, &sum, i * columns + j);
        }
    if (status < 0) {
        wefti_fronts_free(&sum);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_fronts_free(&a->fronts);
    a->fronts = sum;
    drop_table(e, second);
    e->used[WEFTI_ELIMINATE_EDGE]++;
    return WEFT_OK;
}

static weft_status join_all_parallel(eliminator *e, int32_t v, bool *changed) {
    const variable *x = &e->variables[v];
    for (int64_t i = 0; i < x->count; i++) {
        if (e->tables[x->touching[i]].gone) continue;
        for (int64_t k = i + 1; k < x->count; k++) {
            const edge_table *a = &e->tables[x->touching[i]], *b = &e->tables[x->touching[k]];
            if (b->gone || other_end(a, v) != other_end(b, v)) continue;
            WEFT_TRY(join_parallel(e, x->touching[i], x->touching[k]));
            *changed = true;
        }
    }
    return WEFT_OK;
}

static void remove_variable(eliminator *e, int32_t v) {
    e->variables[v].gone = true;
    wefti_fronts_free(&e->variables[v].own);
}

/* A variable with one edge: the minimum over its values goes into its neighbor. */
static weft_status fold_leaf(eliminator *e, int32_t v) {
    const int64_t edge = live(e, v, 0);
    const edge_table *t = &e->tables[edge];
    const int32_t w = other_end(t, v);
    variable *to = &e->variables[w];
    wefti_fronts sum;
    WEFT_TRY(wefti_fronts_create(to->values, &sum));
    weft_status status = WEFT_OK;
    for (int64_t j = 0; j < to->values && status >= 0; j++) {
        int64_t n, m, k;
        const wefti_way *z = wefti_front(&to->own, j, &k);
        for (int64_t i = 0; i < e->variables[v].values && status >= 0; i++) {
            const wefti_way *x = wefti_front(&e->variables[v].own, i, &n),
                            *y = cell(e, t, v, i, j, &m);
            status = wefti_front_sum(&e->maker, x, n, y, m, z, k);
        }
        if (status >= 0) status = wefti_front_end(&e->maker, &sum, j);
    }
    if (status < 0) {
        wefti_fronts_free(&sum);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_fronts_free(&to->own);
    to->own = sum;
    drop_table(e, edge);
    remove_variable(e, v);
    return WEFT_OK;
}

/* A variable between two others becomes an edge of these. */
static weft_status fold_between(eliminator *e, int32_t v) {
    int64_t first = live(e, v, 0), second = live(e, v, 1);
    if (e->tables[first].from == v && e->tables[second].to == v) { /* keep the direction */
        int64_t swapped = first;
        first = second;
        second = swapped;
    }
    const edge_table *a = &e->tables[first], *b = &e->tables[second];
    const int32_t u = other_end(a, v), w = other_end(b, v);
    const int64_t rows = e->variables[u].values, columns = e->variables[w].values;
    wefti_fronts sum;
    WEFT_TRY(cells_of(rows, columns, &sum));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < rows && status >= 0; i++)
        for (int64_t j = 0; j < columns && status >= 0; j++) {
            for (int64_t s = 0; s < e->variables[v].values && status >= 0; s++) {
                int64_t n, m, k;
                const wefti_way *x = cell(e, a, v, s, i, &n);
                const wefti_way *y = wefti_front(&e->variables[v].own, s, &m);
                const wefti_way *z = cell(e, b, v, s, j, &k);
                status = wefti_front_sum(&e->maker, x, n, y, m, z, k);
            }
            if (status >= 0) status = wefti_front_end(&e->maker, &sum, i * columns + j);
        }
    if (status < 0) {
        wefti_fronts_free(&sum);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    drop_table(e, first);
    drop_table(e, second);
    remove_variable(e, v);
    return add_table(e, u, w, &sum);
}

static bool adjacent(const eliminator *e, int32_t u, int32_t w) {
    const variable *x = &e->variables[u];
    for (int64_t i = 0; i < x->count; i++)
        if (!e->tables[x->touching[i]].gone && other_end(&e->tables[x->touching[i]], u) == w)
            return true;
    return false;
}

/* Which of the first five applies to a variable without parallel edges; -1: none. */
static int kind_of(const eliminator *e, int32_t v) {
    const variable *x = &e->variables[v];
    if (x->gone) return -1;
    if (x->edges == 1) return x->out ? WEFTI_ELIMINATE_MERGE : WEFTI_ELIMINATE_CONTRACT;
    if (x->edges != 2) return -1;
    int32_t u = other_end(&e->tables[live(e, v, 0)], v),
            w = other_end(&e->tables[live(e, v, 1)], v);
    bool through = x->in == 1 && !adjacent(e, u, w);
    return through ? WEFTI_ELIMINATE_OPERATOR : WEFTI_ELIMINATE_TRIANGLE;
}

static weft_status eliminate_simple(eliminator *e, bool *changed) {
    for (int32_t v = 0; v < e->problem->variables; v++) {
        if (e->variables[v].gone) continue;
        WEFT_TRY(join_all_parallel(e, v, changed));
        int kind = kind_of(e, v);
        if (kind < 0) continue;
        *changed = true;
        e->used[kind]++;
        WEFT_TRY(e->variables[v].edges == 1 ? fold_leaf(e, v) : fold_between(e, v));
    }
    return WEFT_OK;
}

/* ---- star ---- */

/* The table between w and the pair (u, v), for an edge of u or v. */
static weft_status widen(eliminator *e, int64_t edge, int32_t u, int32_t v) {
    edge_table *t = &e->tables[edge];
    const bool at_u = t->from == u || t->to == u;
    const int32_t end = at_u ? u : v, w = other_end(t, end);
    const int64_t of_u = e->variables[u].values, of_v = e->variables[v].values,
                  of_w = e->variables[w].values;
    const bool forward = t->from == end;
    wefti_fronts wide;
    WEFT_TRY(cells_of(of_u * of_v, of_w, &wide));
    weft_status status = WEFT_OK;
    for (int64_t c = 0; c < of_u * of_v * of_w && status >= 0; c++) {
        int64_t pair = forward ? c / of_w : c % (of_u * of_v),
                other = forward ? c % of_w : c / (of_u * of_v), n;
        const wefti_way *x = cell(e, t, end, at_u ? pair / of_v : pair % of_v, other, &n);
        status = wefti_front_sum(&e->maker, x, n, NULL, 0, NULL, 0);
        if (status >= 0) status = wefti_front_end(&e->maker, &wide, c);
    }
    if (status < 0) {
        wefti_fronts_free(&wide);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    drop_table(e, edge);
    return forward ? add_table(e, u, w, &wide) : add_table(e, w, u, &wide);
}

static weft_status join_own(eliminator *e, int64_t edge, int32_t u, int32_t v, wefti_fronts *out) {
    const variable *x = &e->variables[u], *y = &e->variables[v];
    for (int64_t i = 0; i < x->values; i++)
        for (int64_t j = 0; j < y->values; j++) {
            int64_t n, m, k;
            const wefti_way *a = wefti_front(&x->own, i, &n), *b = wefti_front(&y->own, j, &m),
                            *c = cell(e, &e->tables[edge], u, i, j, &k);
            WEFT_TRY(wefti_front_sum(&e->maker, a, n, b, m, c, k));
            WEFT_TRY(wefti_front_end(&e->maker, out, i * y->values + j));
        }
    return WEFT_OK;
}

/* Variables u and v become one, which is u. */
static weft_status join_pair(eliminator *e, int64_t edge) {
    const int32_t u = e->tables[edge].from, v = e->tables[edge].to;
    wefti_fronts own;
    WEFT_TRY(cells_of(e->variables[u].values, e->variables[v].values, &own));
    weft_status status = join_own(e, edge, u, v, &own);
    drop_table(e, edge);
    for (int side = 0; side < 2 && status >= 0; side++) {
        const int64_t count = e->variables[side ? v : u].count; /* new tables come behind */
        for (int64_t i = 0; i < count && status >= 0; i++) {
            int32_t k = e->variables[side ? v : u].touching[i];
            if (!e->tables[k].gone) status = widen(e, k, u, v);
        }
    }
    if (status < 0) {
        wefti_fronts_free(&own);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_fronts_free(&e->variables[u].own);
    e->variables[u].own = own;
    e->variables[u].values *= e->variables[v].values;
    remove_variable(e, v);
    e->used[WEFTI_ELIMINATE_STAR]++;
    return WEFT_OK;
}

/* The edge whose ends have the fewest values together. -1: no edge is left. */
static int64_t smallest_pair(const eliminator *e) {
    int64_t best = -1;
    double least = INFINITY;
    for (int64_t k = 0; k < e->table_count; k++) {
        const edge_table *t = &e->tables[k];
        if (t->gone) continue;
        double cells = (double)e->variables[t->from].values * e->variables[t->to].values *
                       (e->variables[t->from].edges + e->variables[t->to].edges);
        if (cells >= least) continue;
        best = k;
        least = cells;
    }
    return best;
}

/* ---- the whole ---- */

/* Adds the components, each one variable now, to the total. */
static weft_status sum_components(eliminator *e) {
    for (int32_t v = 0; v < e->problem->variables; v++) {
        variable *x = &e->variables[v];
        if (x->gone) continue;
        wefti_fronts sum;
        int64_t n, m;
        WEFT_TRY(wefti_fronts_create(1, &sum));
        weft_status status = WEFT_OK;
        const wefti_way *total = wefti_front(&e->total, 0, &m);
        for (int64_t i = 0; i < x->values && status >= 0; i++) {
            const wefti_way *own = wefti_front(&x->own, i, &n);
            status = wefti_front_sum(&e->maker, own, n, total, m, NULL, 0);
        }
        if (status >= 0) status = wefti_front_end(&e->maker, &sum, 0);
        if (status < 0) {
            wefti_fronts_free(&sum);
            return wefti_note(status, __func__, __FILE__, __LINE__);
        }
        wefti_fronts_free(&e->total);
        e->total = sum;
        remove_variable(e, v);
    }
    return WEFT_OK;
}

static weft_status eliminate(eliminator *e) {
    const wefti_way nothing = {0, 0, -1};
    WEFT_TRY(set_variables(e));
    WEFT_TRY(set_tables(e));
    WEFT_TRY(wefti_fronts_create(1, &e->total));
    WEFT_TRY(wefti_front_sum(&e->maker, &nothing, 1, NULL, 0, NULL, 0));
    WEFT_TRY(wefti_front_end(&e->maker, &e->total, 0));
    for (;;) {
        bool changed = true;
        while (changed) {
            changed = false;
            WEFT_TRY(eliminate_simple(e, &changed));
        }
        int64_t pair = smallest_pair(e);
        if (pair < 0) break;
        WEFT_TRY(join_pair(e, pair));
    }
    return sum_components(e);
}

/* Reads the decisions of a way off its trace. */
static weft_status unroll(const eliminator *e, int32_t trace, int32_t *chosen) {
    int32_t *open = NULL;
    int64_t count = 0, cap = 0;
    weft_status status = WEFT_GROW(open, count, cap);
    if (status >= 0 && trace >= 0) open[count++] = trace;
    while (count && status >= 0) {
        const wefti_way_trace *t = &e->maker.traces[open[--count]];
        if (t->variable >= 0) chosen[t->variable] = t->value;
        for (int k = 0; k < 3 && status >= 0; k++) {
            if (t->part[k] < 0) continue;
            status = WEFT_GROW(open, count, cap);
            if (status >= 0) open[count++] = t->part[k];
        }
    }
    wefti_free(open);
    return status;
}

static void free_eliminator(eliminator *e) {
    for (int32_t v = 0; v < e->problem->variables && e->variables; v++) {
        wefti_fronts_free(&e->variables[v].own);
        wefti_free(e->variables[v].touching);
    }
    for (int64_t k = 0; k < e->table_count; k++) wefti_fronts_free(&e->tables[k].fronts);
    wefti_free(e->variables);
    wefti_free(e->tables);
    wefti_fronts_free(&e->total);
    wefti_front_maker_free(&e->maker);
}

/* One run; *out_found: some choice fits. */
static weft_status solve(const wefti_choice_problem *problem, bool single, double capacity,
                         int32_t *chosen, wefti_choice_solution *out, bool *out_found) {
    eliminator e = {.problem = problem,
                    .maker = {.single = single,
                              .capacity = capacity,
                              .trials_left = problem->trials ? problem->trials : INT64_MAX}};
    int64_t n = 0;
    WEFT_NEW_ARRAY(e.variables, variable, problem->variables + 1);
    weft_status status = eliminate(&e);
    if (status >= 0) {
        const wefti_way *best = wefti_front(&e.total, 0, &n);
        if (n) {
            out->time = best->time;
            out->memory = best->memory;
            status = unroll(&e, best->trace, chosen);
        }
        out->exact = !e.maker.thinned;
        memcpy(out->used, e.used, sizeof out->used);
    }
    *out_found = n > 0;
    free_eliminator(&e);
    return status;
}

/* The least memory of any choice that is allowed: memory in place of time. */
static weft_status least_memory(const wefti_choice_problem *problem, int32_t *chosen, double *out,
                                bool *out_found) {
    wefti_choice_problem swapped = *problem;
    wefti_choice_table *tables = NULL;
    wefti_choice_solution solution;
    double **time = NULL;
    WEFT_NEW_ARRAY(time, double *, problem->variables + 1);
    weft_status status = WEFT_OK;
    for (int32_t v = 0; v < problem->variables && status >= 0; v++) {
        time[v] = wefti_calloc((size_t)problem->values[v], sizeof **time);
        if (!time[v]) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
        for (int32_t i = 0; i < problem->values[v] && status >= 0; i++)
            time[v][i] = !(problem->time[v][i] < (double)INFINITY) ? (double)INFINITY
                         : problem->memory                         ? problem->memory[v][i]
                                                                   : 0;
    }
    tables = wefti_calloc((size_t)problem->table_count + 1, sizeof *tables);
    if (status >= 0 && !tables) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
    for (int64_t k = 0; k < problem->table_count && status >= 0; k++) {
        const wefti_choice_table *t = &problem->tables[k];
        int64_t cells = (int64_t)problem->values[t->from] * problem->values[t->to];
        tables[k] = (wefti_choice_table){.from = t->from, .to = t->to};
        tables[k].time = wefti_calloc((size_t)cells, sizeof *tables[k].time);
        if (!tables[k].time) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
        for (int64_t i = 0; i < cells && status >= 0; i++)
            tables[k].time[i] = !(t->time[i] < (double)INFINITY) ? (double)INFINITY
                                : t->memory                      ? t->memory[i]
                                                                 : 0;
    }
    if (status >= 0) {
        swapped.time = (const double *const *)time;
        swapped.memory = NULL;
        swapped.tables = tables;
        status = solve(&swapped, true, INFINITY, chosen, &solution, out_found);
        *out = *out_found ? solution.time : 0;
    }
    for (int32_t v = 0; v < problem->variables; v++) wefti_free(time[v]);
    for (int64_t k = 0; tables && k < problem->table_count; k++) wefti_free(tables[k].time);
    wefti_free(time);
    wefti_free(tables);
    return status;
}

weft_status wefti_choice_solve(const wefti_choice_problem *problem, double capacity,
                               int32_t *chosen, wefti_choice_solution *out) {
    bool found;
    *out = (wefti_choice_solution){0};
    WEFT_TRY(solve(problem, true, INFINITY, chosen, out, &found));
    WEFT_REQUIRE(found, WEFT_E_ARG,
                 "no choice of strategies is allowed: set "
                 "parallel.algorithm.fully_use_devices=false or "
                 "parallel.algorithm.elementwise_op_strategy_follow=false");
    if (out->memory <= capacity) return WEFT_OK;
    WEFT_TRY(least_memory(problem, chosen, &out->least_memory, &found));
    WEFT_REQUIRE(out->least_memory <= capacity, WEFT_E_NOMEM,
                 "no strategy fits the device memory: the one that needs least needs %.0f bytes "
                 "on each device, %.0f more than the %.0f of parallel.cost.capacity",
                 out->least_memory, out->least_memory - capacity, capacity);
    WEFT_TRY(solve(problem, false, capacity, chosen, out, &found));
    if (found) return WEFT_OK;
    /* a thinned front may have lost the last way that fits */
    double least = 0;
    WEFT_TRY(least_memory(problem, chosen, &least, &found));
    out->memory = out->least_memory = least;
    out->exact = false;
    return WEFT_OK;
}
