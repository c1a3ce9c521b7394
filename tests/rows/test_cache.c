/* The policy of a cache of rows: against a plain model, and its hit rate on Zipf look-ups against
 * the best fixed set of rows. */
#include "support.h"

#include "graph/build_random.h"

#include <math.h>
#include <stdlib.h>

#include "rows/cache.h"

/* ---- against a model ---- */

enum { MODEL_ROWS = 200, MODEL_SLOTS = 40, CALLS = 4000 };

typedef struct model {
    int32_t row[MODEL_SLOTS];
    uint8_t held[MODEL_SLOTS], changed[MODEL_SLOTS];
} model;

static int64_t model_find(const model *m, int64_t slots, int32_t row) {
    for (int64_t i = 0; i < slots; i++)
        if (m->row[i] == row) return i;
    return -1;
}

/* An admission takes a free slot, or that of a row that the cache has; its masks are those that the
 * caller has set. */
static void admit_one(wefti_row_cache *c, model *m, int32_t row, bool undo) {
    wefti_row_admission a;
    const model before = *m;
    if (!wefti_row_cache_admit(c, row, &a)) return;
    assert_in_range(a.slot, 0, c->slots - 1);
    assert_int_equal(a.victim, m->row[a.slot]);
    assert_int_equal(a.held, m->held[a.slot]);
    assert_int_equal(a.changed, m->changed[a.slot]);
    m->row[a.slot] = row;
    m->held[a.slot] = m->changed[a.slot] = 0;
    if (!undo || a.victim < 0) return;
    wefti_row_cache_restore(c, &a);
    *m = before;
}

static void caches_hold_what_a_model_holds(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 20) {
        dice d = {seed, 0};
        model m = {0};
        wefti_row_cache c;
        const int64_t slots = 1 + roll(&d, MODEL_SLOTS);
        void *memory = malloc(wefti_row_cache_bytes(slots));
        wefti_row_cache_init(&c, slots, memory);
        memset(m.row, -1, sizeof m.row);
        for (int call = 0; call < CALLS; call++) {
            const int32_t row = (int32_t)roll(&d, roll(&d, 2) ? MODEL_ROWS : MODEL_SLOTS);
            const int64_t slot = wefti_row_cache_find(&c, row);
            assert_int_equal(slot, model_find(&m, slots, row));
            for (int n = (int)roll(&d, 3); n; n--) wefti_row_cache_count(&c, row);
            if (slot < 0) {
                admit_one(&c, &m, row, roll(&d, 8) == 0);
            } else {
                c.held[slot] = m.held[slot] |= (uint8_t)(1 << roll(&d, 8));
                c.changed[slot] = m.changed[slot] = (uint8_t)roll(&d, 256);
            }
        }
        for (int32_t row = 0; row < MODEL_ROWS; row++)
            assert_int_equal(wefti_row_cache_find(&c, row), model_find(&m, slots, row));
        free(memory);
    }
}

/* ---- the hit rate ---- */

/* Steps of look-ups in a table whose row r is drawn with a weight of (1 + r)^-1.05. */
enum { ROWS = 200000, STEPS = 160, LOOK_UPS = 6000, COUNTED = STEPS - 20, SLOTS = ROWS * 7 / 100 };

typedef struct zipf {
    double below[ROWS + 1]; /* the weights of all rows before */
    int32_t name[ROWS];     /* of the row that has this weight */
} zipf;

static void make_zipf(zipf *z, dice *d) {
    for (int32_t r = 0; r < ROWS; r++) {
        z->below[r + 1] = z->below[r] + pow(1 + r, -1.05);
        z->name[r] = r;
    }
    for (int32_t r = ROWS - 1; r > 0; r--) {
        const int32_t k = (int32_t)roll(d, r + 1), name = z->name[r];
        z->name[r] = z->name[k];
        z->name[k] = name;
    }
}

static int32_t draw(const zipf *z, dice *d) {
    const double at = z->below[ROWS] * (double)roll(d, 1 << 30) / (1 << 30);
    int32_t low = 0, high = ROWS;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (z->below[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return z->name[low];
}

/* One step: each row that it touches is counted and may get a slot. Returns the look-ups whose row
 * had one. */
static int64_t take_step(wefti_row_cache *c, const int32_t *ids, int32_t *seen, int32_t step) {
    wefti_row_admission a;
    int64_t hits = 0;
    for (int i = 0; i < LOOK_UPS; i++) hits += wefti_row_cache_find(c, ids[i]) >= 0;
    for (int i = 0; i < LOOK_UPS; i++) {
        if (seen[ids[i]] == step) continue;
        seen[ids[i]] = step;
        wefti_row_cache_count(c, ids[i]);
        if (wefti_row_cache_find(c, ids[i]) < 0) (void)wefti_row_cache_admit(c, ids[i], &a);
    }
    return hits;
}

static void hits_are_those_of_the_best_rows(void **state) {
    (void)state;
    static zipf z;
    static int32_t seen[ROWS], ids[LOOK_UPS];
    TEST_SEEDS(seed, 1, SANITIZED ? 1 : 2) {
        dice d = {seed, 0};
        wefti_row_cache c;
        int64_t hits = 0;
        void *memory = malloc(wefti_row_cache_bytes(SLOTS));
        make_zipf(&z, &d);
        wefti_row_cache_init(&c, SLOTS, memory);
        memset(seen, 0, sizeof seen);
        for (int32_t step = 1; step <= STEPS; step++) {
            for (int i = 0; i < LOOK_UPS; i++) ids[i] = draw(&z, &d);
            const int64_t here = take_step(&c, ids, seen, step);
            if (step > COUNTED) hits += here;
        }
        const double rate = (double)hits / (STEPS - COUNTED) / LOOK_UPS,
                     best = z.below[SLOTS] / z.below[ROWS];
        if (!(rate > best - 0.02))
            fail_msg("WEFT_TEST_SEED=%llu: %.4f of look-ups hit, of %.4f", (unsigned long long)seed,
                     rate, best);
        free(memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(caches_hold_what_a_model_holds),
                                       cmocka_unit_test(hits_are_those_of_the_best_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
