/* The exact minimum by eliminations equals that of trying everything, on random graphs: chains,
 * trees, diamonds, triangles, parallel edges and dense graphs, with and without a limit of memory.
 * weft-test: no threads */
#include "support.h"

#include <math.h>

#include "base/philox.h"
#include "search/choice/choice.h"

enum { VARIABLES = 8, VALUES = 5, TABLES = 16, GRAPHS = 400 };

typedef struct problem {
    wefti_choice_problem p;
    int32_t values[VARIABLES];
    double time[VARIABLES][VALUES], memory[VARIABLES][VALUES];
    const double *times[VARIABLES], *memories[VARIABLES];
    wefti_choice_table tables[TABLES];
    double edge_time[TABLES][VALUES * VALUES], edge_memory[TABLES][VALUES * VALUES];
    uint64_t seed, at;
} problem;

static int64_t roll(problem *x, int64_t sides) {
    return (int64_t)(wefti_philox_u32(x->seed, 11, x->at++) % (uint32_t)sides);
}

/* Whole numbers, so that sums are exact in every order. Some choices are not allowed. */
static void fill(problem *x, uint64_t seed) {
    *x = (problem){.seed = seed};
    x->p.variables = 1 + (int32_t)roll(x, VARIABLES);
    const bool forbids = roll(x, 4) == 0;
    for (int v = 0; v < x->p.variables; v++) {
        x->values[v] = 1 + (int32_t)roll(x, VALUES);
        x->times[v] = x->time[v];
        x->memories[v] = x->memory[v];
        for (int i = 0; i < x->values[v]; i++) {
            x->time[v][i] = (double)roll(x, 40);
            x->memory[v][i] = (double)roll(x, 40);
        }
    }
    const int64_t wanted = x->p.variables > 1 ? roll(x, TABLES + 1) : 0;
    for (int64_t k = 0; k < wanted; k++) {
        wefti_choice_table *t = &x->tables[k];
        /* half of the graphs are chains with a few more edges */
        t->from = (int32_t)(seed % 2 && k + 1 < x->p.variables ? k : roll(x, x->p.variables));
        t->to = (int32_t)(seed % 2 && k + 1 < x->p.variables ? k + 1 : roll(x, x->p.variables));
        if (t->from == t->to) t->to = (t->from + 1) % x->p.variables;
        for (int c = 0; c < x->values[t->from] * x->values[t->to]; c++) {
            x->edge_time[k][c] = forbids && roll(x, 8) == 0 ? INFINITY : (double)roll(x, 40);
            x->edge_memory[k][c] = (double)roll(x, 10);
        }
        t->time = x->edge_time[k];
        t->memory = x->edge_memory[k];
    }
    x->p.values = x->values;
    x->p.time = x->times;
    x->p.memory = x->memories;
    x->p.tables = x->tables;
    x->p.table_count = wanted;
}

static void weigh(const problem *x, const int32_t *chosen, double *time, double *memory) {
    *time = *memory = 0;
    for (int v = 0; v < x->p.variables; v++) {
        *time += x->time[v][chosen[v]];
        *memory += x->memory[v][chosen[v]];
    }
    for (int64_t k = 0; k < x->p.table_count; k++) {
        const wefti_choice_table *t = &x->tables[k];
        int cell = chosen[t->from] * x->values[t->to] + chosen[t->to];
        *time += t->time[cell];
        *memory += t->memory[cell];
    }
}

/* The least time, then memory, within the capacity; INFINITY: none. */
static void try_all(const problem *x, double capacity, double *best_time, double *best_memory,
                    double *least) {
    int32_t chosen[VARIABLES] = {0};
    *best_time = *best_memory = *least = INFINITY;
    for (;;) {
        double time, memory;
        int v = 0;
        weigh(x, chosen, &time, &memory);
        if (time < INFINITY && memory < *least) *least = memory;
        if (memory <= capacity &&
            (time < *best_time || (time == *best_time && memory < *best_memory))) {
            *best_time = time;
            *best_memory = memory;
        }
        while (v < x->p.variables && ++chosen[v] == x->values[v]) chosen[v++] = 0;
        if (v == x->p.variables) return;
    }
}

static void check(const problem *x, double capacity, int64_t used[WEFTI_ELIMINATIONS]) {
    double time, memory, least, is_time, is_memory;
    int32_t chosen[VARIABLES];
    wefti_choice_solution s;
    try_all(x, capacity, &time, &memory, &least);
    weft_status status = wefti_choice_solve(&x->p, capacity, chosen, &s);
    if (isinf(least)) {
        assert_int_equal(status, WEFT_E_ARG);
        return;
    }
    if (isinf(time)) {
        char bytes[64];
        assert_int_equal(status, WEFT_E_NOMEM);
        snprintf(bytes, sizeof bytes, "%.0f|%.0f", least, least - capacity);
        ASSERT_MESSAGE(bytes);
        return;
    }
    ASSERT_OK(status);
    weigh(x, chosen, &is_time, &is_memory);
    assert_true(s.exact);
    if (is_time != time || is_memory != memory || s.time != time || s.memory != memory)
        fail_msg("(%g, %g) found, told as (%g, %g); the best is (%g, %g)", is_time, is_memory,
                 s.time, s.memory, time, memory);
    for (int k = 0; k < WEFTI_ELIMINATIONS; k++) used[k] += s.used[k];
}

static void test_13b_equals_all(void **state) {
    (void)state;
    int64_t used[WEFTI_ELIMINATIONS] = {0};
    int bound = 0;
    TEST_SEEDS(seed, 1, GRAPHS) {
        problem x;
        double time, memory, least;
        fill(&x, seed);
        check(&x, INFINITY, used);
        /* limits between the least memory and that of the fastest choice */
        try_all(&x, INFINITY, &time, &memory, &least);
        if (isinf(time)) continue;
        for (int k = 0; k < 4; k++) {
            double limit = least + floor((memory - least) * k / 4);
            bound += limit < memory;
            check(&x, limit, used);
        }
        if (least > 0) check(&x, least - 1, used);
    }
    if (test_one_seed()) return;
    assert_true(bound > GRAPHS); /* memory decides often */
    for (int k = 0; k < WEFTI_ELIMINATIONS; k++) assert_true(used[k] > 0);
}

/* The same input gives the same choice, and the first of equal ones. */
static void test_ties(void **state) {
    (void)state;
    int32_t chosen[2] = {7, 7};
    const int32_t values[] = {3, 2};
    const double zeros[6] = {0}, *times[] = {zeros, zeros};
    const wefti_choice_table table = {.from = 0, .to = 1, .time = (double *)zeros};
    const wefti_choice_problem p = {2, values, times, NULL, &table, 1, 0};
    wefti_choice_solution s;
    ASSERT_OK(wefti_choice_solve(&p, INFINITY, chosen, &s));
    assert_int_equal(chosen[0], 0);
    assert_int_equal(chosen[1], 0);
}

static void test_primes(void **state) {
    (void)state;
    int32_t f[31];
    assert_int_equal(wefti_prime_factors(1, f), 0);
    assert_int_equal(wefti_prime_factors(12, f), 3);
    assert_int_equal(f[0], 3);
    assert_int_equal(f[2], 2);
    assert_int_equal(wefti_prime_factors(1024, f), 10);
    assert_int_equal(wefti_prime_factors(16381, f), 1);
    assert_int_equal(f[0], 16381);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_13b_equals_all),
                                       cmocka_unit_test(test_ties), cmocka_unit_test(test_primes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
