/* The conformance suite of communicators: all collectives over groups of any shape, all dtypes and
 * reductions, sizes from 0 to 64 MiB, and random programs that start many requests and wait for
 * them in random orders. Each rank runs conformance_run on its world, on any communicator:
 * threads, processes, hosts. Results are compared bit by bit with the naive reference of
 * conformance_values.h, so they are equal on all communicators. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/world.h"
#include "conformance_values.h"
#include "device_memory.h"

enum { CONFORMANCE_GROUPS = 10, CONFORMANCE_GUARD = 64, CONFORMANCE_FLIGHT = 10 };

typedef struct conformance {
    weft_world *world;
    uint64_t seed; /* the same on all ranks */
    int programs;  /* random ones */
    int64_t bytes; /* of the largest tensor */
    bool brief;    /* fewer sizes in the sweep */
    /* Filled in. */
    weft_group *groups[CONFORMANCE_GROUPS]; /* [0]: NULL, everyone */
    int64_t calls;
    uint64_t digest; /* of all that this rank got, in whatever order */
    char message[900];
} conformance;

/* One call of this rank, under way or not yet. */
typedef struct conformance_run_of {
    conformance_call call;
    int group, me;
    bool in_place;
    void *source, *destination;
    weft_request *request; /* NULL: done */
} conformance_flight;

static int conformance_size(const conformance *c, int group) {
    return c->groups[group] ? weft_group_size(c->groups[group]) : weft_world_size(c->world);
}
static int conformance_me(const conformance *c, int group) {
    return c->groups[group] ? weft_group_rank(c->groups[group]) : weft_world_rank(c->world);
}

static bool conformance_fail(conformance *c, const conformance_flight *f, const char *what) {
    const conformance_call *call = &f->call;
    if (c->message[0]) return false;
    (void)snprintf(c->message, sizeof c->message,
                   "rank %d of %d, seed %llu, call %lld: %s %s of %lld x %s in group %d as member "
                   "%d of %d, root %d: %s",
                   weft_world_rank(c->world), weft_world_size(c->world),
                   (unsigned long long)c->seed, (long long)c->calls, conformance_text[call->kind],
                   (const char *[]){"sum", "max", "min", "prod"}[call->reduction],
                   (long long)call->count, weft_dtype_text(call->dtype), f->group, f->me,
                   call->members, call->root, what);
    weft_world_fail(c->world, c->message);
    return false;
}

/* ---- one call ---- */

/* On a device that guards its memory, every other call has buffers in shared memory. */
static void *conformance_buffer(const conformance *c, int64_t bytes) {
    bool shared = guarded_device() && c->calls % 2;
    unsigned char *p = take_memory(shared ? c->world->comm : NULL, bytes + CONFORMANCE_GUARD);
    if (!p) abort();
    memset(p + bytes, 0xA5, CONFORMANCE_GUARD);
    return p;
}
static bool conformance_guarded(const void *p, int64_t bytes) {
    for (int i = 0; i < CONFORMANCE_GUARD; i++)
        if (((const unsigned char *)p)[bytes + i] != 0xA5) return false;
    return true;
}

static int64_t conformance_bytes(const conformance_call *c, int64_t elements) {
    return elements * (int64_t)conformance_size_of(c->dtype);
}

/* The members that a member sends to, or receives from, in an order that begins after itself. */
static int conformance_neighbors(const conformance_call *c, int me, bool sends, int *ranks,
                                 int64_t *counts) {
    int found = 0;
    for (int other = 0; other < c->members; other++) {
        int64_t block = sends ? c->blocks[me][other] : c->blocks[other][me];
        if (block < 0) continue;
        ranks[found] = other;
        counts[found++] = block;
    }
    return found;
}

#define CONFORMANCE_CALL(name, ...)                                                                \
    (out ? name##_start(world, group, __VA_ARGS__, out) : name(world, group, __VA_ARGS__))

static weft_status conformance_do(conformance *c, conformance_flight *f, weft_request **out) {
    weft_world *world = c->world;
    weft_group *group = c->groups[f->group];
    const conformance_call *k = &f->call;
    int to[CONFORMANCE_RANKS], from[CONFORMANCE_RANKS], sends, receives;
    int64_t sent[CONFORMANCE_RANKS], received[CONFORMANCE_RANKS];
    switch (k->kind) {
    case ALL_REDUCE:
        return CONFORMANCE_CALL(weft_all_reduce, f->source, f->destination, k->count, k->dtype,
                                k->reduction);
    case ALL_GATHER:
        return CONFORMANCE_CALL(weft_all_gather, f->source, f->destination, k->count, k->dtype);
    case REDUCE_SCATTER:
        return CONFORMANCE_CALL(weft_reduce_scatter, f->source, f->destination, k->count, k->dtype,
                                k->reduction);
    case ALL_TO_ALL:
        return CONFORMANCE_CALL(weft_all_to_all, f->source, f->destination, k->count, k->dtype);
    case ALL_TO_ALL_V:
        (void)conformance_neighbors(k, f->me, true, to, sent);
        (void)conformance_neighbors(k, f->me, false, from, received);
        return CONFORMANCE_CALL(weft_all_to_all_v, f->source, sent, f->destination, received,
                                k->dtype);
    case BROADCAST:
        return CONFORMANCE_CALL(weft_broadcast, f->me == k->root ? f->source : f->destination,
                                k->count, k->dtype, k->root);
    case REDUCE:
        return CONFORMANCE_CALL(weft_reduce, f->source, f->destination, k->count, k->dtype,
                                k->reduction, k->root);
    case GATHER:
        return CONFORMANCE_CALL(weft_gather, f->source, f->destination, k->count, k->dtype,
                                k->root);
    case SCATTER:
        return CONFORMANCE_CALL(weft_scatter, f->source, f->destination, k->count, k->dtype,
                                k->root);
    case NEIGHBORS:
        sends = conformance_neighbors(k, f->me, true, to, sent);
        receives = conformance_neighbors(k, f->me, false, from, received);
        return CONFORMANCE_CALL(weft_neighbor_exchange, f->source, to, sent, sends, f->destination,
                                from, received, receives, k->dtype);
    case MESSAGE:
        if (f->me == k->root)
            return CONFORMANCE_CALL(weft_send, f->source, k->count, k->dtype, k->other, k->tag);
        return CONFORMANCE_CALL(weft_recv, f->destination, k->count, k->dtype, k->root, k->tag);
    default:
        return weft_barrier(world, group);
    }
}

/* Whether this rank takes part; if so the buffers are made and filled. */
static bool conformance_begin(conformance *c, const conformance_call *call, int group,
                              bool in_place, conformance_flight *f) {
    *f = (conformance_flight){.call = *call, .group = group, .me = conformance_me(c, group)};
    if (f->me < 0) return false;
    for (int rank = 0, found = 0; rank < weft_world_size(c->world); rank++)
        for (int m = 0; m < call->members; m++)
            if ((c->groups[group] ? weft_group_world_rank(c->groups[group], m) : m) == rank)
                f->call.order[found++] = m;
    call = &f->call;
    if (call->kind == MESSAGE && f->me != call->root && f->me != call->other) return false;
    int64_t source = conformance_source(call, f->me);
    int64_t destination = conformance_destination(call, f->me);
    bool may = (call->kind == ALL_REDUCE || call->kind == REDUCE) && source == destination;
    f->in_place = in_place && may;
    f->source = conformance_buffer(c, conformance_bytes(call, source));
    for (int64_t i = 0; i < source; i++)
        conformance_give(call, f->me, i, (char *)f->source + conformance_bytes(call, i));
    f->destination =
        f->in_place ? f->source : conformance_buffer(c, conformance_bytes(call, destination));
    return true;
}

/* Of what a member got, every bit. */
static uint64_t conformance_digest(const conformance_call *call, int me, const void *got,
                                   int64_t bytes) {
    uint64_t digest = conformance_hash(call->salt ^ (uint64_t)me << 48), word = 0;
    for (int64_t at = 0; at < bytes; at += 8) {
        memcpy(&word, (const char *)got + at, bytes - at < 8 ? (size_t)(bytes - at) : 8);
        digest = (digest ^ word) * 0x9E3779B97F4A7C15u;
        digest ^= digest >> 29;
    }
    return digest;
}

/* What came out is right, and nothing else was touched. Frees the buffers. */
static bool conformance_end(conformance *c, conformance_flight *f) {
    const conformance_call *call = &f->call;
    int64_t source = conformance_source(call, f->me);
    int64_t destination = conformance_destination(call, f->me), wrong = -1;
    bool ok = true, kept = true;
    unsigned char value[8];
    for (int64_t i = 0; i < destination && wrong < 0; i++) {
        conformance_expected(call, f->me, i, value);
        if (!conformance_same(call->dtype, value,
                              (char *)f->destination + conformance_bytes(call, i)))
            wrong = i;
    }
    for (int64_t i = 0; i < source && kept && !f->in_place; i++) {
        conformance_give(call, f->me, i, value);
        kept = conformance_load(call->dtype, value) ==
               conformance_load(call->dtype, (char *)f->source + conformance_bytes(call, i));
    }
    char text[96];
    (void)snprintf(text, sizeof text, "element %lld of %lld is wrong", (long long)wrong,
                   (long long)destination);
    if (wrong >= 0) ok = conformance_fail(c, f, text);
    if (!kept) ok = conformance_fail(c, f, "the source was changed");
    if (!conformance_guarded(f->source, conformance_bytes(call, source)) ||
        !conformance_guarded(f->destination, conformance_bytes(call, destination)))
        ok = conformance_fail(c, f, "something was written behind a buffer");
    c->digest +=
        conformance_digest(call, f->me, f->destination, conformance_bytes(call, destination));
    /* Both are the caller's again: nobody reads or writes them any more. */
    memset(f->source, 0x5A, (size_t)conformance_bytes(call, source));
    memset(f->destination, 0x5A,
           (size_t)conformance_bytes(call, f->in_place ? source : destination));
    if (f->destination != f->source) give_memory(f->destination);
    give_memory(f->source);
    c->calls++;
    return ok;
}

static bool conformance_one(conformance *c, const conformance_call *call, int group,
                            bool in_place) {
    conformance_flight f;
    if (!conformance_begin(c, call, group, in_place, &f)) return true;
    if (conformance_do(c, &f, NULL) < 0) {
        (void)conformance_fail(c, &f, weft_error_message());
        (void)conformance_end(c, &f);
        return false;
    }
    return conformance_end(c, &f);
}

/* ---- calls at random ---- */

static int64_t conformance_count(conformance_random *r) {
    static const int64_t edges[] = {0,   1,   2,    3,    7,    8,    9,    15,   16,   17,
                                    63,  64,  65,   127,  129,  1000, 1023, 1024, 1025, 2047,
                                    511, 513, 4095, 4096, 4097, 8191, 8193, 16384};
    int64_t which = conformance_pick(r, 0, 9);
    if (which < 6)
        return edges[conformance_pick(r, 0, (int64_t)(sizeof edges / sizeof *edges) - 1)];
    if (which < 9) return conformance_pick(r, 0, 300);
    return conformance_pick(r, 0, 20000);
}

static conformance_call conformance_choose(conformance_random *r, conformance_kind kind,
                                           int members, int64_t count) {
    conformance_call call = {.kind = kind, .members = members, .count = count};
    call.dtype = (weft_dtype)conformance_pick(r, 0, WEFT_DTYPES - 1);
    call.reduction = (weft_reduction)conformance_pick(r, 0, WEFT_REDUCTIONS - 1);
    call.root = (int)conformance_pick(r, 0, members - 1);
    call.other =
        (int)((call.root + conformance_pick(r, 1, members > 1 ? members - 1 : 1)) % members);
    call.tag = (int)conformance_pick(r, -1, 2);
    call.salt = conformance_hash(r->seed + r->next);
    for (int from = 0; from < members; from++)
        for (int to = 0; to < members; to++) {
            bool none = kind == NEIGHBORS && conformance_pick(r, 0, 1);
            int64_t most = count < 2000 ? count : 2000;
            call.blocks[from][to] = none ? -1 : conformance_pick(r, 0, most);
        }
    return call;
}

static conformance_kind conformance_choose_kind(conformance_random *r, int members) {
    for (;;) {
        conformance_kind kind = (conformance_kind)conformance_pick(r, 0, CONFORMANCE_KINDS - 1);
        if (kind != MESSAGE || members > 1) return kind;
    }
}

/* ---- groups ---- */

/* Everyone; once more everyone, from the last to the first; the even ones; each half; a pair; some
 * at random in any order, and twice the same in another order. */
static bool conformance_make_groups(conformance *c) {
    int size = weft_world_size(c->world);
    conformance_random r = {c->seed ^ 0x6709, 0};
    for (int g = 1; g < CONFORMANCE_GROUPS; g++) {
        int ranks[CONFORMANCE_RANKS], count = 0;
        while (count == 0)
            for (int rank = count = 0; rank < size; rank++) {
                bool in = g == 1                        ? true
                          : g == 2                      ? rank % 2 == 0
                          : g == 3                      ? rank < (size + 1) / 2
                          : g == 4                      ? rank >= size / 2
                          : g == 5                      ? rank == 0 || rank == size - 1
                          : g == CONFORMANCE_GROUPS - 1 ? false
                                                        : conformance_pick(&r, 0, 1) == 1;
                if (g == CONFORMANCE_GROUPS - 1) /* the members of the group before */
                    for (int m = 0; m < weft_group_size(c->groups[g - 1]); m++)
                        in |= weft_group_world_rank(c->groups[g - 1], m) == rank;
                if (in) ranks[count++] = rank;
            }
        for (int m = 0; g == 1 && m < count; m++) ranks[m] = count - 1 - m;
        for (int m = count - 1; g >= 5 && m > 0; m--) {
            int other = (int)conformance_pick(&r, 0, m), rank = ranks[m];
            ranks[m] = ranks[other];
            ranks[other] = rank;
        }
        if (weft_group_create(c->world, ranks, count, &c->groups[g]) < 0) {
            (void)snprintf(c->message, sizeof c->message, "group: %s", weft_error_message());
            return false;
        }
    }
    return true;
}

/* ---- the three parts ---- */

/* All collectives, dtypes and reductions at sizes around the edges of all that is blocked. */
static bool conformance_sweep(conformance *c) {
    static const int64_t counts[] = {0, 1, 7, 64, 1023, 2048, 4099};
    conformance_random r = {c->seed, 0};
    for (int kind = 0; kind < CONFORMANCE_KINDS; kind++)
        for (int dtype = 0; dtype < WEFT_DTYPES; dtype++)
            for (int reduction = 0; reduction < WEFT_REDUCTIONS; reduction++)
                for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                    bool reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
                    if (!reduces && reduction > 0) break;
                    if (kind == BARRIER && (n > 0 || dtype > 0)) break;
                    if (c->brief && conformance_pick(&r, 0, 3)) continue;
                    int group = (int)conformance_pick(&r, 0, CONFORMANCE_GROUPS - 1);
                    if (kind == MESSAGE && conformance_size(c, group) == 1) continue;
                    conformance_call call = conformance_choose(
                        &r, (conformance_kind)kind, conformance_size(c, group), counts[n]);
                    call.dtype = (weft_dtype)dtype;
                    call.reduction = (weft_reduction)reduction;
                    if (!conformance_one(c, &call, group, conformance_pick(&r, 0, 1))) return false;
                }
    return true;
}

/* A few large ones: the larger side of each is of about `bytes`. */
static bool conformance_large(conformance *c) {
    static const conformance_kind kinds[] = {ALL_REDUCE, ALL_GATHER, MESSAGE, REDUCE_SCATTER,
                                             ALL_TO_ALL, BROADCAST,  REDUCE};
    conformance_random r = {c->seed ^ 0xB16, 0};
    int size = weft_world_size(c->world);
    for (int64_t bytes = c->bytes; bytes > 100000; bytes = bytes / 8 - 3)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            bool parts =
                kinds[k] == ALL_GATHER || kinds[k] == REDUCE_SCATTER || kinds[k] == ALL_TO_ALL;
            if (kinds[k] == MESSAGE && size == 1) continue;
            if (bytes > 16 << 20 && k > 2) break; /* the reference takes its time */
            conformance_call call = conformance_choose(&r, kinds[k], size, 1);
            if (bytes > 1 << 20) call.dtype = k % 2 ? WEFT_F64 : WEFT_F32;
            call.count = bytes / (int64_t)weft_dtype_bytes(call.dtype) / (parts ? size : 1);
            if (!conformance_one(c, &call, 0, conformance_pick(&r, 0, 1))) return false;
        }
    return true;
}

static void conformance_delay(conformance_random *own) {
    int64_t what = conformance_pick(own, 0, 31);
    if (what == 0) (void)sched_yield();
    if (what == 1) (void)usleep((useconds_t)conformance_pick(own, 1, 100));
}

static bool conformance_settle(conformance *c, conformance_flight *f, conformance_random *own) {
    weft_status status = WEFT_PENDING;
    for (int64_t tests = conformance_pick(own, 0, 2) * 3; tests > 0 && status == WEFT_PENDING;
         tests--)
        status = weft_request_test(f->request);
    if (status == WEFT_PENDING) status = weft_request_wait(f->request);
    f->request = NULL;
    bool ok = status >= 0 || conformance_fail(c, f, weft_error_message());
    return conformance_end(c, f) && ok;
}

/* All ranks follow one list of calls, but each starts, waits and tests as it likes. */
static bool conformance_program(conformance *c, uint64_t seed) {
    conformance_random r = {seed, 0};
    conformance_random own = {seed ^ 0x5EED, (uint64_t)weft_world_rank(c->world) << 32};
    conformance_flight flights[CONFORMANCE_FLIGHT] = {0};
    int length = (int)conformance_pick(&r, 4, 24), under_way = 0;
    bool ok = true;
    for (int n = 0; n < length && ok; n++) {
        int group = (int)conformance_pick(&r, 0, CONFORMANCE_GROUPS - 1);
        int members = conformance_size(c, group);
        conformance_kind kind = conformance_choose_kind(&r, members);
        conformance_call call = conformance_choose(&r, kind, members, conformance_count(&r));
        /* Several equal ones in a row: more than one endpoint takes. */
        int64_t repeat = conformance_pick(&r, 0, 5) ? 1 : conformance_pick(&r, 2, 6);
        for (int64_t turn = 0; turn < repeat && ok; turn++) {
            int free_one = 0;
            while (under_way == CONFORMANCE_FLIGHT ||
                   (ok && under_way > 0 && conformance_pick(&own, 0, 3) == 0)) {
                int which = (int)conformance_pick(&own, 0, CONFORMANCE_FLIGHT - 1);
                while (!flights[which].request) which = (which + 1) % CONFORMANCE_FLIGHT;
                ok = conformance_settle(c, &flights[which], &own) && ok;
                under_way--;
            }
            while (flights[free_one].request) free_one++;
            call.salt = conformance_hash(call.salt);
            conformance_flight *f = &flights[free_one];
            if (!ok || !conformance_begin(c, &call, group, conformance_pick(&own, 0, 1), f))
                continue;
            conformance_delay(&own);
            bool blocks = kind == BARRIER || conformance_pick(&own, 0, 7) == 0;
            weft_status status = conformance_do(c, f, blocks ? NULL : &f->request);
            if (status < 0) ok = conformance_fail(c, f, weft_error_message());
            if (f->request)
                under_way++;
            else
                ok = conformance_end(c, f) && ok;
        }
    }
    for (int which = 0; which < CONFORMANCE_FLIGHT; which++)
        if (flights[which].request) ok = conformance_settle(c, &flights[which], &own) && ok;
    return ok;
}

/* false: `message` says what was wrong, and the world has failed. */
static bool conformance_run(conformance *c) {
    bool ok = weft_world_size(c->world) <= CONFORMANCE_RANKS && conformance_make_groups(c) &&
              conformance_sweep(c);
    for (int n = 0; n < c->programs && ok; n++)
        ok = conformance_program(c, conformance_hash(c->seed + (uint64_t)n));
    ok = ok && conformance_large(c);
    for (int g = 1; g < CONFORMANCE_GROUPS; g++) weft_group_destroy(c->groups[g]);
    return ok;
}

#endif
