/* What ranks do with a communicator, whatever it is and whatever they are: random scripts, and
 * bodies of single tests. */
#ifndef COMM_SCRIPTS_H
#define COMM_SCRIPTS_H

#include <time.h>
#include <unistd.h>

#include "comm_cases.h"
#include "device_memory.h"

/* --- random scripts: all ranks post the same transfers in the same order, but wait as they like */

enum { CASES = 10, ROUNDS = 4, GUARD = 64 };

typedef struct script {
    uint64_t seed;
    int32_t breaker; /* this rank breaks the world before its post number break_at; -1: none does */
    int break_at;
    shared_case cases[CASES];
} script;

typedef struct lane { /* one rank's side of one case */
    wefti_endpoint *endpoint;
    int32_t member;
    int posted, waited;
    void *source[WEFTI_COMM_DEPTH], *destination[WEFTI_COMM_DEPTH];
} lane;

static int64_t bytes_of(const shared_case *c, const wefti_region *box) {
    return wefti_region_elems(box, c->t.rank) * (int64_t)weft_dtype_bytes(c->t.dtype);
}

static void *guarded(world_test *w, int32_t rank, int64_t bytes, numbers *r) {
    unsigned char *p =
        w->get ? w->get(w, rank, bytes + GUARD, r) : take_memory(NULL, bytes + GUARD);
    if (!p) abort();
    memset(p, 0xA5, (size_t)bytes + GUARD);
    return p;
}
static void release(world_test *w, int32_t rank, void *p) {
    if (w->put)
        w->put(w, rank, p);
    else
        give_memory(p);
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
    const wefti_region *have = &c->have[l->member], *want = &c->want[l->member];
    int64_t sent = bytes_of(c, have), taken = bytes_of(c, want), none = 0;
    l->source[which] = guarded(w, rank, sent, r);
    bool in_place = memcmp(have, want, sizeof *have) == 0 && pick(r, 0, 1);
    l->destination[which] = in_place ? l->source[which] : guarded(w, rank, taken, r);
    visit_box(c, have, l->member, l->posted, l->source[which], &none, fill_one);
    l->posted++;
    return good(w, rank,
                w->comm[rank]->engine->post(l->endpoint, sent ? l->source[which] : NULL,
                                            taken ? l->destination[which] : NULL),
                "post");
}

static bool wait_one(world_test *w, int32_t rank, shared_case *c, lane *l) {
    int which = l->waited % WEFTI_COMM_DEPTH, round = l->waited++;
    weft_status status = WEFT_PENDING;
    if (round % 3 == 2) /* not blocking */
        while ((status = w->comm[rank]->engine->test(l->endpoint)) == WEFT_PENDING) sched_yield();
    else
        status = w->comm[rank]->engine->wait(l->endpoint);
    if (!good(w, rank, status, "wait")) return false;
    const wefti_region *have = &c->have[l->member], *want = &c->want[l->member];
    int64_t wrong = 0;
    visit_box(c, want, l->member, round, l->destination[which], &wrong, check_one);
    if (!guard_stands(l->destination[which], bytes_of(c, want)) ||
        !guard_stands(l->source[which], bytes_of(c, have)))
        wrong++;
    /* The source is ours again: nobody reads, or writes, what we do to it now. */
    memset(l->source[which], 0x5A, (size_t)bytes_of(c, have));
    if (l->destination[which] != l->source[which]) release(w, rank, l->destination[which]);
    release(w, rank, l->source[which]);
    l->destination[which] = l->source[which] = NULL;
    if (wrong > 0) {
        char detail[160];
        snprintf(detail, sizeof detail, "%lld wrong of %lld in %s, %s, %s, %d members, round %d",
                 (long long)wrong, (long long)wefti_region_elems(want, c->t.rank), c->name,
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
        if (rank == s->breaker && next >= s->break_at) {
            wefti_comm_break(w->comm[rank], WEFT_RANK_OWN, "stop");
            break;
        }
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
    /* After a failure posts may remain; they are not read any more. */
    for (int i = 0; i < CASES; i++)
        for (int which = 0; which < WEFTI_COMM_DEPTH; which++) {
            if (lanes[i].destination[which] != lanes[i].source[which])
                release(w, rank, lanes[i].destination[which]);
            release(w, rank, lanes[i].source[which]);
        }
}

static void choose_script(script *s, uint64_t seed, numbers *r, int32_t size) {
    s->seed = seed;
    s->breaker = -1;
    for (int i = 0; i < CASES; i++) choose_case(&s->cases[i], size, i, r);
}

/* Some rank breaks the world somewhere; `out` is what all others then hear. */
__attribute__((unused)) static void choose_breaker(script *s, numbers *r, int32_t size,
                                                   char out[64]) {
    s->breaker = (int32_t)pick(r, 0, size - 1);
    s->break_at = (int)pick(r, 0, CASES * ROUNDS);
    snprintf(out, 64, "rank %d: stop", (int)s->breaker);
}

/* --- one thing at a time --- */

static shared_case all_reduce_of(int32_t members, int64_t elements, weft_dtype dtype) {
    shared_case c = {0};
    c.t.kind = WEFTI_TRANSFER_ALL_REDUCE;
    c.t.reduction = WEFTI_REDUCE_SUM;
    c.t.dtype = dtype;
    c.t.rank = 1;
    c.t.members = members;
    for (int32_t m = 0; m < members; m++) {
        c.ranks[m] = m;
        c.have[m].size[0] = c.want[m].size[0] = elements;
    }
    snprintf(c.name, sizeof c.name, "gradients");
    return c;
}
__attribute__((unused)) static shared_case send_of(int32_t from, int32_t to, int64_t elements) {
    shared_case c = all_reduce_of(2, elements, WEFT_F32);
    c.t.kind = WEFTI_TRANSFER_SEND;
    c.t.reduction = WEFTI_REDUCE_NONE;
    c.have[to].size[0] = c.want[from].size[0] = 0;
    snprintf(c.name, sizeof c.name, "activations");
    return c;
}
static wefti_endpoint *bound(world_test *w, int32_t rank, shared_case *c) {
    wefti_transfer t = for_member(c, member_of(c, rank));
    wefti_endpoint *endpoint = NULL;
    (void)good(w, rank, w->comm[rank]->engine->bind(w->comm[rank], &t, &endpoint), "bind");
    return endpoint;
}

typedef struct bits_test {
    shared_case c;
    float *source[MOST_RANKS], *destination[MOST_RANKS];
} bits_test;

static void reduce_bits(world_test *w, int32_t rank) {
    bits_test *b = w->context;
    wefti_endpoint *e = bound(w, rank, &b->c);
    if (!e) return;
    (void)good(w, rank, wefti_comm_run(e, b->source[rank], b->destination[rank]), "all-reduce");
    w->comm[rank]->engine->unbind(e);
}

/* Nobody is there, yet post returns: for more posts than a channel has slots. What was posted
 * arrives in order, with the values it had when it was posted or when it was taken. */
enum { MANY = 40 };
__attribute__((unused)) static void post_many(world_test *w, int32_t rank) {
    shared_case c[2] = {send_of(0, 1, 100), send_of(0, 1, 9000)};
    static float values[MANY][9000], got[MANY][9000];
    wefti_endpoint *e[MANY];
    for (int i = 0; i < MANY; i++) {
        if (!(e[i] = bound(w, rank, &c[i % 2]))) return;
        for (int j = 0; rank == 0 && j < 9000; j++) values[i][j] = (float)(i * 10000 + j);
    }
    if (rank == 1) pthread_barrier_wait(&w->barrier); /* not before the sender has posted all */
    for (int i = 0; i < MANY; i++)
        (void)good(w, rank,
                   w->comm[rank]->engine->post(e[i], rank == 0 ? values[i] : NULL,
                                               rank == 1 ? got[i] : NULL),
                   "post");
    if (rank == 0) pthread_barrier_wait(&w->barrier);
    for (int i = MANY - 1; i >= 0; i--) /* waits in the other order */
        (void)good(w, rank, w->comm[rank]->engine->wait(e[i]), "wait");
    for (int i = 0; rank == 1 && i < MANY; i++)
        for (int j = 0; j < (i % 2 ? 9000 : 100); j++)
            if (got[i][j] != (float)(i * 10000 + j)) {
                complain(w, rank, "values", "are not those that were sent");
                return;
            }
    for (int i = 0; i < MANY; i++) w->comm[rank]->engine->unbind(e[i]);
}

/* --- failures --- */

typedef struct mismatch_test {
    shared_case c[MOST_RANKS];
    _Atomic int found, told;
    char message[MOST_RANKS][256];
} mismatch_test;

__attribute__((unused)) static void meet_wrongly(world_test *w, int32_t rank) {
    mismatch_test *test = w->context;
    wefti_endpoint *e = bound(w, rank, &test->c[rank]);
    static float arrays[MOST_RANKS][2][20000];
    weft_status status = wefti_comm_run(e, arrays[rank][0], arrays[rank][1]);
    if (status == WEFT_E_MISMATCH) atomic_fetch_add(&test->found, 1);
    if (status == WEFT_E_PEER) atomic_fetch_add(&test->told, 1);
    if (status < 0)
        snprintf(test->message[rank], sizeof test->message[rank], "%s", weft_error_message());
    w->comm[rank]->engine->unbind(e);
}

/* Three ranks, one of which (the result) posts something else; 12 variants of it. */
__attribute__((unused)) static int32_t prepare_mismatch(mismatch_test *test, int variant) {
    int64_t n = variant % 2 ? 12000 : 12;
    int32_t odd = variant % 3;
    memset(test, 0, sizeof *test);
    for (int32_t r = 0; r < 3; r++) {
        shared_case *c = &test->c[r];
        *c = all_reduce_of(3, n, WEFT_F32);
        if (r != odd) continue;
        snprintf(c->name, sizeof c->name, "other");
        switch (variant / 2) {
        case 0:
            c->t.dtype = WEFT_I32;
            break;
        case 1:
            c->t.reduction = WEFTI_REDUCE_MAX;
            break;
        case 2:
            for (int m = 0; m < 3; m++) c->have[m].size[0] = c->want[m].size[0] = n + 1;
            break;
        case 3:
            c->t.kind = WEFTI_TRANSFER_SEND;
            break;
        case 4:
            c->t.rank = 2, c->t.kind = WEFTI_TRANSFER_ALL_GATHER;
            for (int m = 0; m < 3; m++) c->have[m].size[1] = c->want[m].size[1] = 1;
            c->t.reduction = WEFTI_REDUCE_NONE;
            break;
        default: /* has nothing to do with the others */
            c->t.kind = WEFTI_TRANSFER_PERMUTE;
            c->t.reduction = WEFTI_REDUCE_NONE;
        }
    }
    return odd;
}

/* Checks that all stopped ranks have one reason, which names rank `odd` and both transfers. NULL:
 * they do. */
__attribute__((unused)) static const char *wrong_mismatch(const mismatch_test *test, int32_t odd) {
    const char *reason = NULL;
    char rank[16];
    snprintf(rank, sizeof rank, "rank %d", (int)odd);
    if (test->found < 1) return "nobody found it";
    for (int32_t r = 0; r < 3; r++) {
        const char *message = test->message[r];
        if (!message[0]) continue;
        if (reason && strcmp(message, reason) != 0) return message;
        reason = message;
    }
    bool named = reason && strstr(reason, rank) && strstr(reason, "of other (") &&
                 strstr(reason, "of gradients (");
    return named ? NULL : reason ? reason : "nobody stopped";
}

__attribute__((unused)) static void wait_for_nobody(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    static float arrays[MOST_RANKS][12000];
    if (rank == 2) {
        pthread_barrier_wait(&w->barrier);
        usleep(2000); /* so that some sleep already; whether they do changes nothing below */
        wefti_comm_break(w->comm[rank], WEFT_RANK_OWN, "out of memory");
        wefti_comm_break(w->comm[rank], WEFT_RANK_OWN, "later failures are not the reason");
        return;
    }
    wefti_endpoint *e = bound(w, rank, c);
    pthread_barrier_wait(&w->barrier);
    for (int i = 0; i < 2; i++) { /* the waits under way, and those to come */
        weft_status status =
            i == 0 ? w->comm[rank]->engine->post(e, arrays[rank], arrays[rank]) : WEFT_OK;
        if (status >= 0) status = w->comm[rank]->engine->wait(e);
        if (status >= 0) complain(w, rank, "wait", "ended well");
        (void)good(w, rank, status, "wait");
    }
    w->comm[rank]->engine->unbind(e);
}

#endif
