/* What leaves device memory: the best of all choices, by trying each; never more bytes than the
 * naive plan. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "memory/residency.h"
#include "sanitized.h"

enum { MOST = 24, SPANS = 3, TIMES = 40, TIERS = WEFTI_RESIDENCY_TIERS, KINDS = 5 };

typedef struct instance {
    wefti_residency_problem p;
    wefti_residency_candidate candidates[MOST];
    wefti_residency_span spans[MOST][SPANS];
    int64_t need[TIMES];
} instance;

static int64_t roll(uint64_t seed, uint64_t *at, int64_t sides) {
    return (int64_t)(wefti_philox_u32(seed, 1, (*at)++) % (uint32_t)sides);
}

/* Some candidates free nothing for a part of the time, or need more; some are equal; tiers may be
 * small or missing; seconds may be 0. */
static void make(uint64_t seed, int32_t most, instance *x) {
    uint64_t at = 0;
    const int32_t count = 1 + (int32_t)roll(seed, &at, most);
    const bool roomy = roll(seed, &at, 2), hidden = roll(seed, &at, 4) == 0;
    int64_t all = 0, top = 0;
    *x = (instance){.p = {.need = x->need, .times = TIMES, .candidates = x->candidates}};
    x->p.count = count;
    for (int32_t i = 0; i < count; i++) {
        wefti_residency_candidate *c = &x->candidates[i];
        if (i && roll(seed, &at, 3) == 0) { /* like the last one */
            *c = x->candidates[i - 1];
            all += c->bytes;
            continue;
        }
        c->kind = (int32_t)roll(seed, &at, KINDS);
        c->bytes = 1 + roll(seed, &at, 1000);
        c->moved = c->bytes * (1 + roll(seed, &at, 4));
        c->spans = x->spans[i];
        c->span_count = 1 + (int32_t)roll(seed, &at, SPANS);
        for (int32_t s = 0; s < c->span_count; s++) {
            const int32_t first = s ? (int32_t)roll(seed, &at, TIMES) : 0;
            const int32_t last = s ? first + (int32_t)roll(seed, &at, TIMES - first) : TIMES - 1;
            x->spans[i][s] = (wefti_residency_span){first, last, s ? -c->bytes : c->bytes};
        }
        for (int t = 0; t < TIERS; t++) {
            c->to[t].allowed = roll(seed, &at, 5) > 0;
            c->to[t].seconds = hidden && roll(seed, &at, 2)
                                   ? 0
                                   : (double)(c->moved * (1 + roll(seed, &at, 9) * (t + 1))) / 1e4;
        }
        all += c->bytes;
    }
    for (int32_t t = 0; t < TIMES; t++) {
        x->need[t] = all + roll(seed, &at, 500);
        if (x->need[t] > top) top = x->need[t];
    }
    x->p.limit = top - roll(seed, &at, all + 1);
    for (int t = 0; t < TIERS; t++) x->p.room[t] = roomy ? INT64_MAX / 2 : roll(seed, &at, all + 1);
}

static bool fits(const instance *x, const int8_t *tier, int64_t *out_moved, double *out_seconds) {
    int64_t room[TIERS];
    memcpy(room, x->p.room, sizeof room);
    *out_moved = 0;
    *out_seconds = 0;
    for (int32_t i = 0; i < x->p.count; i++) {
        const wefti_residency_candidate *c = &x->candidates[i];
        if (tier[i] < 0) continue;
        if (!c->to[tier[i]].allowed || c->bytes > room[tier[i]]) return false;
        room[tier[i]] -= c->bytes;
        *out_moved += c->moved;
        *out_seconds += c->to[tier[i]].seconds;
    }
    for (int32_t t = 0; t < TIMES; t++) {
        int64_t need = x->need[t];
        for (int32_t i = 0; i < x->p.count; i++)
            for (int32_t s = 0; s < x->candidates[i].span_count && tier[i] >= 0; s++) {
                const wefti_residency_span *span = &x->candidates[i].spans[s];
                if (span->first <= t && t <= span->last) need -= span->bytes;
            }
        if (need > x->p.limit) return false;
    }
    return true;
}

/* The bytes of the naive plan; INT64_MAX: it does not fit. */
static int64_t naive(const instance *x) {
    int8_t tier[MOST];
    int64_t room[TIERS], moved;
    double seconds;
    memcpy(room, x->p.room, sizeof room);
    memset(tier, -1, sizeof tier);
    for (int32_t kind = 0; kind < KINDS; kind++) {
        for (int32_t i = 0; i < x->p.count; i++)
            for (int t = 0; t < TIERS; t++) {
                const wefti_residency_candidate *c = &x->candidates[i];
                if (c->kind != kind || tier[i] >= 0 || !c->to[t].allowed || c->bytes > room[t])
                    continue;
                tier[i] = (int8_t)t;
                room[t] -= c->bytes;
            }
        if (fits(x, tier, &moved, &seconds)) return moved;
    }
    return INT64_MAX;
}

/* Tries all choices that move at most so many bytes; infinite: none fits. */
static double least_seconds(const instance *x, int64_t most_moved) {
    int8_t tier[MOST];
    double least = INFINITY, seconds;
    int64_t moved;
    memset(tier, -1, sizeof tier);
    for (;;) {
        if (fits(x, tier, &moved, &seconds) && moved <= most_moved && seconds < least)
            least = seconds;
        int32_t i = 0;
        while (i < x->p.count && ++tier[i] == TIERS) tier[i++] = -1;
        if (i == x->p.count) return least;
    }
}

static void check(const instance *x, const wefti_residency *r) {
    int64_t moved;
    double seconds;
    const int64_t most = naive(x);
    int8_t none[MOST];
    memset(none, -1, sizeof none);
    if (r->fits) {
        const bool right = fits(x, r->tier, &moved, &seconds) && moved == r->moved &&
                           fabs(seconds - r->seconds) <= 1e-9 * seconds && moved <= most;
        assert_true(right);
        return;
    }
    assert_true(r->lacks > 0);
    assert_true(most == INT64_MAX);
    assert_false(fits(x, none, &moved, &seconds));
}

static void the_best_of_all_choices_is_found(void **state) {
    (void)state;
    int32_t some[2] = {0};
    TEST_SEEDS(seed, 0, SANITIZED ? 60 : 400) {
        static instance x;
        int8_t tier[MOST];
        wefti_residency r = {.tier = tier};
        make(seed, seed % 50 == 0 ? 10 : 7, &x);
        assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
        check(&x, &r);
        const double least = least_seconds(&x, naive(&x));
        const bool right = r.exact && r.fits == (bool)isfinite(least) &&
                           (!r.fits || fabs(r.seconds - least) <= 1e-9 * least);
        assert_true(right);
        some[r.fits]++;
    }
    assert_true(test_one_seed() || (some[0] > 5 && some[1] > 5));
}

/* With more room, or a larger limit, a lack of so many bytes ends. */
static void a_lack_is_what_is_missing(void **state) {
    (void)state;
    int32_t tiers = 0, devices = 0;
    TEST_SEEDS(seed, 0, SANITIZED ? 60 : 400) {
        static instance x;
        int8_t tier[MOST];
        wefti_residency r = {.tier = tier};
        make(seed, 8, &x);
        assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
        if (r.fits) continue;
        if (r.lacking == WEFTI_RESIDENCY_STAYS) {
            x.p.limit += r.lacks;
            for (int t = 0; t < TIERS; t++) x.p.room[t] = INT64_MAX / 2;
            devices++;
        } else {
            x.p.room[r.lacking] += r.lacks;
            for (int t = 0; t < TIERS; t++)
                if (t != r.lacking) x.p.room[t] = INT64_MAX / 2;
            tiers++;
        }
        assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
        assert_true(r.fits);
    }
    assert_true(test_one_seed() || (tiers > 0 && devices > 0));
}

static void many_candidates_have_a_choice_that_fits(void **state) {
    (void)state;
    TEST_SEEDS(seed, 0, SANITIZED ? 20 : 200) {
        static instance x;
        int8_t tier[MOST];
        wefti_residency r = {.tier = tier};
        make(seed, MOST, &x);
        assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
        check(&x, &r);
        assert_true(r.exact || x.p.count > 20);
    }
}

static void nothing_moves_if_all_fits(void **state) {
    (void)state;
    static instance x;
    int8_t tier[MOST];
    wefti_residency r = {.tier = tier};
    make(1, 8, &x);
    x.p.limit = INT64_MAX / 4;
    assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
    assert_true(r.fits);
    assert_int_equal(r.moved, 0);
    for (int32_t i = 0; i < x.p.count; i++) assert_int_equal(tier[i], WEFTI_RESIDENCY_STAYS);
    x.p.count = 0;
    x.p.limit = 0;
    assert_int_equal(wefti_residency_choose(&x.p, &r), WEFT_OK);
    assert_false(r.fits);
    assert_int_equal(r.lacking, WEFTI_RESIDENCY_STAYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_of_all_choices_is_found),
        cmocka_unit_test(a_lack_is_what_is_missing),
        cmocka_unit_test(many_candidates_have_a_choice_that_fits),
        cmocka_unit_test(nothing_moves_if_all_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
