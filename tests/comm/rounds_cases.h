/* What tests of transfers by messages share: worlds over a mesh, and the same bits as between
 * threads. After comm_scripts.h. */
#ifndef ROUNDS_CASES_H
#define ROUNDS_CASES_H

#include "rounds_mesh.h"

/* host: of each rank; NULL: each rank is a host of its own. host_of_last: as the last rank has it.
 */
static void rounds_begin_on(world_test *w, mesh *m, int32_t size, uint64_t seed, int most_looks,
                            size_t small, bool any_thread, void *context, const int32_t *host,
                            const int32_t *host_of_last) {
    memset(w, 0, sizeof *w);
    w->size = size;
    w->context = context;
    pthread_barrier_init(&w->barrier, NULL, (unsigned)size);
    pthread_mutex_init(&w->lock, NULL);
    mesh_begin(m, size, seed, most_looks, small);
    for (int32_t r = 0; r < size; r++) {
        weft_transport t = mesh_transport(m, r, any_thread);
        wefti_p2p_setup setup = {.host = r == size - 1 ? host_of_last : host};
        if (host) m->host[r] = host[r];
        assert_int_equal(wefti_comm_p2p(&t, &setup, &w->comm[r]), WEFT_OK);
    }
}
static inline void rounds_begin(world_test *w, mesh *m, int32_t size, uint64_t seed, int most_looks,
                                size_t small, bool any_thread, void *context) {
    rounds_begin_on(w, m, size, seed, most_looks, small, any_thread, context, NULL, NULL);
}
static void end_one(world_test *w, int32_t rank) {
    wefti_comm_destroy(w->comm[rank]);
}
static void rounds_end(world_test *w, mesh *m) {
    run_all(w, end_one);
    if (m->complaint[0]) fail_msg("%s", m->complaint);
    mesh_end(m);
    pthread_barrier_destroy(&w->barrier);
    pthread_mutex_destroy(&w->lock);
}
static void force(world_test *w, wefti_commsched_algorithm algorithm) {
    for (int32_t r = 0; r < w->size; r++) wefti_p2p_force(w->comm[r], algorithm);
}

/* --- the same bits as between threads --- */

static void any_values(weft_dtype dtype, void *out, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double v = (double)(int64_t)seed / 4e18;
        if (dtype == WEFT_BOOL) v = v > 0;
        if (dtype == WEFT_U8 || dtype == WEFT_U16) v = v < 0 ? -v * 40 : v * 40;
        if (dtype == WEFT_I32 || dtype == WEFT_I64) v *= 1e6;
        wefti_store(dtype, out, i, v);
    }
}

/* 0: all-reduce, 1: reduce to one, 2: to some, 3: all-gather, 4: by columns, 5: broadcast, 6:
 * reduce-scatter */
static void choose_form(bits_test *b, int form, int32_t members, int64_t n, numbers *r) {
    shared_case *c = &b->c;
    int32_t root = (int32_t)pick(r, 0, members - 1);
    c->t.rank = 2;
    for (int32_t m = 0; m < members; m++) {
        wefti_region whole = whole_box((int64_t[]){(n + 4) / 5, 5}, 2), none = {0};
        wefti_region part = part_box(whole.size, 2, form == 4 ? 1 : 0, members, m);
        bool some = m == root || (form == 2 && m % 2);
        c->have[m] = form == 3 || form == 4 ? part : form == 5 && m != root ? none : whole;
        c->want[m] = form == 6 ? part : (form == 1 || form == 2) && !some ? none : whole;
    }
    c->t.kind = form == 0                ? WEFTI_TRANSFER_ALL_REDUCE
                : form == 3 || form == 4 ? WEFTI_TRANSFER_ALL_GATHER
                : form == 6              ? WEFTI_TRANSFER_REDUCE_SCATTER
                                         : WEFTI_TRANSFER_SEND;
    if (form >= 3 && form <= 5)
        c->t.reduction = WEFTI_REDUCE_NONE;
    else
        c->t.reduction = (wefti_reduction)pick(r, WEFTI_REDUCE_SUM, WEFTI_REDUCE_MAX);
}

static mesh compared; /* the last one */

/* `host` of each rank; NULL: nobody knows. The mesh counts what hosts send each other. */
static void compare_with_threads(bits_test *b, wefti_commsched_algorithm algorithm,
                                 const int32_t *host, numbers *r) {
    world_test w;
    int32_t members = b->c.t.members;
    bits_test by_rounds = {.c = b->c};
    bool in_place = pick(r, 0, 1) && memcmp(b->c.have, b->c.want, sizeof b->c.have) == 0;
    for (int32_t k = 0; k < members; k++) {
        size_t bytes = (size_t)bytes_of(&b->c, &b->c.have[k]);
        size_t taken = (size_t)bytes_of(&b->c, &b->c.want[k]);
        b->source[k] = malloc(bytes + 8);
        b->destination[k] = calloc(1, taken + 8);
        by_rounds.destination[k] = calloc(1, taken + 8);
        assert_true(b->source[k] && b->destination[k] && by_rounds.destination[k]);
        any_values(b->c.t.dtype, b->source[k], wefti_region_elems(&b->c.have[k], 2),
                   r->seed + (uint64_t)k);
        by_rounds.source[k] = in_place ? by_rounds.destination[k] : b->source[k];
        if (in_place) memcpy(by_rounds.source[k], b->source[k], bytes);
    }
    assert_true(world_begin(&w, members, 0, b));
    run_all(&w, reduce_bits);
    if (w.failures) fail_msg("%s", w.message);
    world_end(&w);
    rounds_begin_on(&w, &compared, members, r->seed, (int)pick(r, 0, 3), 0, true, &by_rounds, host,
                    host);
    force(&w, algorithm);
    run_all(&w, reduce_bits);
    if (w.failures) fail_msg("%s: %s", wefti_commsched_algorithm_text(algorithm), w.message);
    rounds_end(&w, &compared);
    for (int32_t k = 0; k < members; k++) {
        if (memcmp(b->destination[k], by_rounds.destination[k],
                   (size_t)bytes_of(&b->c, &b->c.want[k])) != 0)
            fail_msg("%s of %d members, %s, %s, seed %llu: other bits than between threads",
                     wefti_commsched_algorithm_text(algorithm), (int)members,
                     wefti_transfer_kind_text(b->c.t.kind), weft_dtype_text(b->c.t.dtype),
                     (unsigned long long)r->seed);
        free(b->source[k]);
        free(b->destination[k]);
        free(by_rounds.destination[k]);
    }
}

#endif
