/* The communicator between threads: every kind of transfer on random groups and boxes gives what it
 * must, however the ranks interleave; a failure reaches everybody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "comm_cases.h"

/* --- random scripts: all ranks post the same transfers in the same order, but wait as they like */

enum { CASES = 10, ROUNDS = 4, GUARD = 64 };

typedef struct script {
    uint64_t seed;
    shared_case cases[CASES];
} script;

typedef struct lane { /* one rank's side of one case */
    wefti_endpoint *endpoint;
    int32_t member;
    int posted, waited;
    void *source[WEFTI_COMM_DEPTH], *destination[WEFTI_COMM_DEPTH];
} lane;

static int64_t bytes_of(const shared_case *c, const wefti_box *box) {
    return wefti_box_elems(box, c->t.rank) * (int64_t)weft_dtype_bytes(c->t.dtype);
}

static void *guarded(int64_t bytes) {
    unsigned char *p = malloc((size_t)bytes + GUARD);
    if (!p) abort();
    memset(p, 0xA5, (size_t)bytes + GUARD);
    return p;
}
static bool guard_stands(const void *p, int64_t bytes) {
    for (int i = 0; i < GUARD; i++)
        if (((const unsigned char *)p)[bytes + i] != 0xA5) return false;
    return true;
}

static void delay(numbers *r) {
    int64_t what = pick(r, 0, 15);
    if (what == 0) sched_yield();
    if (what == 1) usleep((useconds_t)pick(r, 1, 200));
    for (volatile int64_t i = pick(r, 0, 300); what < 6 && i > 0;) i = i - 1;
}

static bool post_one(world_test *w, int32_t rank, shared_case *c, lane *l, numbers *r) {
    int which = l->posted % WEFTI_COMM_DEPTH;
    const wefti_box *have = &c->have[l->member], *want = &c->want[l->member];
    int64_t sent = bytes_of(c, have), taken = bytes_of(c, want), none = 0;
    l->source[which] = guarded(sent);
    bool in_place = memcmp(have, want, sizeof *have) == 0 && pick(r, 0, 1);
    l->destination[which] = in_place ? l->source[which] : guarded(taken);
    visit_box(c, have, l->member, l->posted, l->source[which], &none, fill_one);
    l->posted++;
    return good(w, rank,
                w->comm[rank]->engine->post(l->endpoint, sent ? l->source[which] : NULL,
                                            taken ? l->destination[which] : NULL),
                "post");
}

static bool wait_one(world_test *w, int32_t rank, shared_case *c, lane *l) {
    int which = l->waited % WEFTI_COMM_DEPTH, round = l->waited++;
    if (!good(w, rank, w->comm[rank]->engine->wait(l->endpoint), "wait")) return false;
    const wefti_box *have = &c->have[l->member], *want = &c->want[l->member];
    int64_t wrong = 0, changed = 0;
    visit_box(c, want, l->member, round, l->destination[which], &wrong, check_one);
    if (!guard_stands(l->destination[which], bytes_of(c, want)) ||
        !guard_stands(l->source[which], bytes_of(c, have)))
        wrong++;
    /* The source is ours again: nobody reads, or writes, what we do to it now. */
    memset(l->source[which], 0x5A, (size_t)bytes_of(c, have));
    if (l->destination[which] != l->source[which]) free(l->destination[which]);
    free(l->source[which]);
    l->destination[which] = l->source[which] = NULL;
    if (wrong + changed > 0) {
        char detail[160];
        snprintf(detail, sizeof detail, "%lld wrong of %lld in %s, %s, %s, %d members, round %d",
                 (long long)wrong, (long long)wefti_box_elems(want, c->t.rank), c->name,
                 wefti_transfer_kind_text(c->t.kind), weft_dtype_text(c->t.dtype),
                 (int)c->t.members, round);
        complain(w, rank, "values", detail);
    }
    return wrong == 0;
}

static void follow_script(world_test *w, int32_t rank) {
    script *s = w->context;
    numbers r = {s->seed + 1000 * (uint64_t)(rank + 1), 0};
    lane lanes[CASES] = {0};
    for (int i = 0; i < CASES; i++) {
        lanes[i].member = member_of(&s->cases[i], rank);
        if (lanes[i].member < 0) continue;
        wefti_transfer t = for_member(&s->cases[i], lanes[i].member);
        if (!good(w, rank, w->comm[rank]->engine->bind(w->comm[rank], &t, &lanes[i].endpoint),
                  "bind"))
            return;
    }
    bool fine = true;
    int under_way = 0;
    for (int next = 0; fine && (next < CASES * ROUNDS || under_way > 0);) {
        lane *l = &lanes[next % CASES];
        delay(&r);
        if (next < CASES * ROUNDS && l->member < 0) {
            next++;
        } else if (next < CASES * ROUNDS && l->posted - l->waited < WEFTI_COMM_DEPTH &&
                   pick(&r, 0, 2) > 0) {
            fine = post_one(w, rank, &s->cases[next % CASES], l, &r);
            next++;
            under_way++;
        } else if (under_way > 0) {
            int which = (int)pick(&r, 0, CASES - 1);
            while (lanes[which].posted == lanes[which].waited) which = (which + 1) % CASES;
            fine = wait_one(w, rank, &s->cases[which], &lanes[which]);
            under_way--;
        }
    }
    for (int i = 0; i < CASES; i++) w->comm[rank]->engine->unbind(lanes[i].endpoint);
    /* What is left over after a failure: nobody reads it any more. */
    for (int i = 0; i < CASES; i++)
        for (int which = 0; which < WEFTI_COMM_DEPTH; which++) {
            if (lanes[i].destination[which] != lanes[i].source[which])
                free(lanes[i].destination[which]);
            free(lanes[i].source[which]);
        }
}

static uint64_t first_seed(void) {
    const char *given = getenv("WEFT_SEED");
    return given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
}

static void random_scripts(void **state) {
    (void)state;
    uint64_t seed = first_seed();
    print_message("seed %llu (WEFT_SEED)\n", (unsigned long long)seed);
    static script s;
    for (int round = 0; round < 150; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 1, MOST_RANKS);
        s.seed = seed + (uint64_t)round;
        for (int i = 0; i < CASES; i++) choose_case(&s.cases[i], size, i, &r);
        world_test w;
        assert_true(world_begin(&w, size, (int)pick(&r, 0, 2) * 20, &s));
        run_all(&w, follow_script);
        if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
        world_end(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scripts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
