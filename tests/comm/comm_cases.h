/* Transfers of every kind, built by hand as boxes, their values, and what must come out. */
#ifndef COMM_CASES_H
#define COMM_CASES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "comm/comm.h"

enum { MOST_RANKS = 8 };

typedef struct numbers {
    uint64_t seed, next;
} numbers;
static int64_t pick(numbers *r, int64_t low, int64_t high) { /* inclusive */
    return low + (int64_t)(wefti_philox_u32(r->seed, 7, r->next++) % (uint64_t)(high - low + 1));
}

/* A transfer as all see it; `me` is set by each. */
typedef struct shared_case {
    wefti_transfer t;
    int32_t ranks[MOST_RANKS];
    wefti_region have[MOST_RANKS], want[MOST_RANKS];
    char name[24];
} shared_case;

static wefti_transfer for_member(shared_case *c, int32_t me) {
    wefti_transfer t = c->t;
    t.me = me;
    t.ranks = c->ranks;
    t.have = c->have;
    t.want = c->want;
    t.name = c->name;
    return t;
}
static int32_t member_of(const shared_case *c, int32_t rank) { /* -1: none */
    for (int32_t m = 0; m < c->t.members; m++)
        if (c->ranks[m] == rank) return m;
    return -1;
}

static void choose_group(shared_case *c, int32_t world, numbers *r) {
    c->t.members = 0;
    while (c->t.members == 0)
        for (int32_t rank = 0; rank < world; rank++)
            if (pick(r, 0, 2)) c->ranks[c->t.members++] = rank;
}

static wefti_region whole_box(const int64_t *shape, int rank) {
    wefti_region box = {0};
    for (int d = 0; d < rank; d++) box.size[d] = shape[d];
    return box;
}
static wefti_region part_box(const int64_t *shape, int rank, int d, int32_t parts, int32_t index) {
    wefti_region box = whole_box(shape, rank);
    wefti_part(shape[d], 1, parts, index, &box.begin[d], &box.size[d]);
    return box;
}

static void choose_boxes(shared_case *c, const int64_t *shape, numbers *r) {
    int rank = c->t.rank, a = (int)pick(r, 0, rank - 1), b = (int)pick(r, 0, rank - 1);
    int32_t p = c->t.members, turn = (int32_t)pick(r, 0, p - 1), first = (int32_t)pick(r, 0, p - 1);
    for (int32_t m = 0; m < p; m++) {
        wefti_region whole = whole_box(shape, rank), mine = part_box(shape, rank, a, p, m);
        wefti_region *have = &c->have[m], *want = &c->want[m];
        *have = *want = (wefti_region){0};
        switch (c->t.kind) {
        case WEFTI_TRANSFER_ALL_REDUCE:
            *have = *want = whole;
            break;
        case WEFTI_TRANSFER_ALL_GATHER:
            *have = mine, *want = whole;
            break;
        case WEFTI_TRANSFER_REDUCE_SCATTER:
            *have = whole, *want = mine;
            break;
        case WEFTI_TRANSFER_ALL_TO_ALL:
            *have = mine, *want = part_box(shape, rank, b, p, m);
            break;
        case WEFTI_TRANSFER_PERMUTE:
        case WEFTI_TRANSFER_SHIFT:
            *have = mine, *want = part_box(shape, rank, a, p, (m + turn) % p);
            break;
        case WEFTI_TRANSFER_HALO: /* one more on each side, as far as there is */
            *have = *want = mine;
            if (mine.size[a] > 0 && mine.begin[a] > 0) want->begin[a]--, want->size[a]++;
            if (mine.size[a] > 0 && want->begin[a] + want->size[a] < shape[a]) want->size[a]++;
            break;
        default: /* send: some have, replicated or not; the others, or all, want */
            if (m == first || pick(r, 0, 2) == 0) *have = whole;
            if (m != first && pick(r, 0, 2) > 0)
                *want = pick(r, 0, 1) ? whole : part_box(shape, rank, b, 2, m % 2);
        }
    }
}

static void choose_case(shared_case *c, int32_t world, int number, numbers *r) {
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_F64,
                                        WEFT_I32, WEFT_I64, WEFT_U16,  WEFT_U8,  WEFT_BOOL};
    memset(c, 0, sizeof *c);
    choose_group(c, world, r);
    c->t.kind = (wefti_transfer_kind)pick(r, 0, WEFTI_TRANSFER_KINDS - 1);
    bool reduces =
        c->t.kind == WEFTI_TRANSFER_ALL_REDUCE || c->t.kind == WEFTI_TRANSFER_REDUCE_SCATTER;
    if (c->t.kind == WEFTI_TRANSFER_SEND) reduces = pick(r, 0, 2) == 0;
    c->t.reduction = reduces ? (wefti_reduction)pick(r, 1, 2) : WEFTI_REDUCE_NONE;
    c->t.dtype = dtypes[pick(r, 0, 9)];
    c->t.rank = (int)pick(r, 1, 4);
    c->t.tag = (uint64_t)pick(r, 0, 1);
    int64_t shape[WEFT_MAX_RANK];
    for (int d = 0; d < c->t.rank; d++) shape[d] = pick(r, pick(r, 0, 9) ? 1 : 0, 7);
    if (pick(r, 0, 3) == 0) shape[pick(r, 0, c->t.rank - 1)] *= pick(r, 100, 2000);
    while (weft_desc_elems(
               &(weft_desc){c->t.dtype,
                            c->t.rank,
                            {shape[0], c->t.rank > 1 ? shape[1] : 1, c->t.rank > 2 ? shape[2] : 1,
                             c->t.rank > 3 ? shape[3] : 1}}) > 40000)
        for (int d = 0; d < c->t.rank; d++) shape[d] = (shape[d] + 1) / 2;
    choose_boxes(c, shape, r);
    snprintf(c->name, sizeof c->name, "case %d", number);
}

/* Small whole numbers, exact in all dtypes together with their sums. */
static double value_of(const shared_case *c, int32_t member, int round, const int64_t *at) {
    uint64_t h = (uint64_t)(member * 31 + round * 7 + 3);
    for (int d = 0; d < c->t.rank; d++) h = (h ^ (uint64_t)at[d]) * 0x9E3779B97F4A7C15u;
    h >>= 40;
    return (double)(h % (c->t.dtype == WEFT_BOOL ? 2 : 8));
}
static bool box_holds(const wefti_region *box, int rank, const int64_t *at) {
    for (int d = 0; d < rank; d++)
        if (at[d] < box->begin[d] || at[d] >= box->begin[d] + box->size[d]) return false;
    return true;
}
static double expected(const shared_case *c, int32_t member, int round, const int64_t *at) {
    if (c->t.reduction == WEFTI_REDUCE_NONE) {
        if (box_holds(&c->have[member], c->t.rank, at)) return value_of(c, member, round, at);
        for (int32_t m = 0; m < c->t.members; m++)
            if (box_holds(&c->have[m], c->t.rank, at)) return value_of(c, m, round, at);
    }
    double result = 0;
    for (int32_t m = 0; m < c->t.members; m++) {
        if (!box_holds(&c->have[m], c->t.rank, at)) continue;
        double v = value_of(c, m, round, at);
        if (c->t.reduction == WEFTI_REDUCE_SUM && c->t.dtype != WEFT_BOOL)
            result += v;
        else if (v > result)
            result = v;
    }
    return result;
}

/* Calls for each coordinate of a box, in order. */
typedef void visit(const shared_case *c, int32_t member, int round, const int64_t *at,
                   int64_t index, void *array, int64_t *wrong);
static void visit_box(const shared_case *c, const wefti_region *box, int32_t member, int round,
                      void *array, int64_t *wrong, visit *f) {
    int64_t n = wefti_region_elems(box, c->t.rank), at[WEFT_MAX_RANK];
    memcpy(at, box->begin, sizeof at);
    for (int64_t i = 0; i < n; i++) {
        f(c, member, round, at, i, array, wrong);
        for (int d = c->t.rank - 1; d >= 0; d--) {
            if (++at[d] < box->begin[d] + box->size[d]) break;
            at[d] = box->begin[d];
        }
    }
}
static void fill_one(const shared_case *c, int32_t member, int round, const int64_t *at,
                     int64_t index, void *array, int64_t *wrong) {
    (void)wrong;
    wefti_store(c->t.dtype, array, index, value_of(c, member, round, at));
}
static void check_one(const shared_case *c, int32_t member, int round, const int64_t *at,
                      int64_t index, void *array, int64_t *wrong) {
    if (wefti_load(c->t.dtype, array, index) != expected(c, member, round, at)) ++*wrong;
}

/* --- ranks as threads --- */

typedef struct world_test world_test;
typedef void rank_body(world_test *w, int32_t rank);
struct world_test {
    int32_t size;
    wefti_comm *comm[MOST_RANKS];
    rank_body *body;
    void *context;
    pthread_barrier_t barrier;
    _Atomic int failures;
    pthread_mutex_t lock;
    char message[512];    /* of the first failure */
    const char *expected; /* this message of WEFT_E_PEER is not one */
    _Atomic int stopped;  /* ranks that got it */
    /* Memory for a transfer; NULL: take_memory and give_memory. */
    void *(*get)(world_test *w, int32_t rank, int64_t bytes, numbers *r);
    void (*put)(world_test *w, int32_t rank, void *p);
};

static void complain(world_test *w, int32_t rank, const char *what, const char *detail) {
    pthread_mutex_lock(&w->lock);
    if (atomic_fetch_add(&w->failures, 1) == 0)
        snprintf(w->message, sizeof w->message, "rank %d: %s: %s", (int)rank, what, detail);
    pthread_mutex_unlock(&w->lock);
    /* The others shall not wait for this rank. */
    wefti_comm_break(w->comm[rank], WEFT_RANK_OWN, what);
}
static bool good(world_test *w, int32_t rank, weft_status status, const char *what) {
    if (status >= 0) return true;
    if (w->expected && status == WEFT_E_PEER && strcmp(weft_error_message(), w->expected) == 0) {
        atomic_fetch_add(&w->stopped, 1);
        return false;
    }
    complain(w, rank, what, weft_error_message());
    return false;
}

typedef struct rank_thread {
    world_test *w;
    int32_t rank;
} rank_thread;
static void *run_rank(void *argument) {
    rank_thread *t = argument;
    t->w->body(t->w, t->rank);
    return NULL;
}
/* The body on all ranks at once. */
static void run_all(world_test *w, rank_body *body) {
    pthread_t thread[MOST_RANKS];
    rank_thread argument[MOST_RANKS];
    w->body = body;
    for (int32_t r = 0; r < w->size; r++) {
        argument[r] = (rank_thread){w, r};
        if (pthread_create(&thread[r], NULL, run_rank, &argument[r]) != 0) abort();
    }
    for (int32_t r = 0; r < w->size; r++) pthread_join(thread[r], NULL);
}
static bool world_begin(world_test *w, int32_t size, int spin, void *context) {
    memset(w, 0, sizeof *w);
    w->size = size;
    w->context = context;
    pthread_barrier_init(&w->barrier, NULL, (unsigned)size);
    pthread_mutex_init(&w->lock, NULL);
    return wefti_comm_threads(size, spin, w->comm) >= 0;
}
static void world_end(world_test *w) {
    for (int32_t r = 0; r < w->size; r++) w->comm[r]->engine->destroy(w->comm[r]);
    pthread_barrier_destroy(&w->barrier);
    pthread_mutex_destroy(&w->lock);
}

#endif
