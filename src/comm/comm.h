/* Communicators: engines that carry transfers out, behind one table.
 *
 * A transfer is bound once, to an endpoint. The program then posts it and waits for it as often as
 * it runs. Post does not block. Wait blocks until the result has arrived and `source` may be
 * changed. At most WEFTI_COMM_DEPTH posts of one endpoint are under way at a time. Between
 * members, transfers of one tag and group match in the order of their posts.
 *
 * Sums and maxima are taken in the order of the group's members, on every engine and every path.
 * The result has the same bits between threads, processes and hosts. */
#ifndef WEFTI_COMM_H
#define WEFTI_COMM_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/position.h"
#include "device/device.h"
#include "layout/transfer.h"

enum { WEFTI_COMM_DEPTH = 2 };

typedef struct wefti_comm wefti_comm;         /* one rank's side of a world */
typedef struct wefti_endpoint wefti_endpoint; /* a bound transfer */

typedef struct wefti_comm_engine {
    const char *name;
    /* Collective only in that all members bind an equal transfer at some time. The transfer is
     * copied. */
    weft_status (*bind)(wefti_comm *comm, const wefti_transfer *transfer, wefti_endpoint **out);
    /* `source` holds this member's region, `destination` receives the region that it wants. If
     * both regions are equal (all-reduce in place) they may be the same memory; otherwise they
     * must not overlap. NULL if the region is empty. */
    weft_status (*post)(wefti_endpoint *endpoint, const void *source, void *destination);
    /* The oldest post under way. WEFT_E_PEER when the world was broken by another rank,
     * WEFT_E_MISMATCH when this rank's transfer and another's are not equal. */
    weft_status (*wait)(wefti_endpoint *endpoint);
    /* As wait, but WEFT_PENDING instead of blocking. Carries on with all that is under way. */
    weft_status (*test)(wefti_endpoint *endpoint);
    /* For a caller that also waits for something else, and therefore polls with `test`. NULL: the
     * engine does not need them. Between attend(true) and attend(false) the caller polls so often
     * that the engine's own thread can rest. idle: nothing has happened for `ns`. */
    void (*attend)(wefti_comm *comm, bool on);
    void (*idle)(wefti_comm *comm, int64_t ns);
    void (*unbind)(wefti_endpoint *endpoint);
    /* Breaks the world, from any thread. All waits under way and to come fail with `message`, on
     * all ranks of this process and on other processes that the engine can reach. The first
     * message counts. `failed` is the rank to blame (weft_error_rank); WEFT_RANK_OWN: this rank,
     * and the engine puts its name in front. */
    void (*break_off)(wefti_comm *comm, int failed, const char *message);
    /* After all ranks have stopped: usable again. NULL: this engine's worlds stay broken. */
    void (*mend)(wefti_comm *comm);
    /* Page-aligned zeroed memory that all ranks of this host map: transfers in it take the fastest
     * path. `bytes` may be far more than the caller touches. With a device, whose table has
     * `adopt`, the memory is the device's from map to unmap; NULL: the host's. A NULL `map`: the
     * engine has no such memory. */
    weft_status (*map)(wefti_comm *comm, wefti_device *device, size_t bytes, void **out);
    void (*unmap)(wefti_comm *comm, wefti_device *device, void *memory, size_t bytes);
    /* For one watching thread: has anything under way progressed since the last call, or is data
     * arriving that this rank will accept? NULL: the engine's ranks are not watched. */
    bool (*moves)(wefti_comm *comm);
    /* The engine passes the position on to communicators below it. NULL: it has none. */
    void (*set_position)(wefti_comm *comm, wefti_position *position);
    void (*destroy)(wefti_comm *comm);
} wefti_comm_engine;

/* Is told of a mismatch that this rank has found, before any other rank hears of it. So whoever
 * watches the ranks knows the reason before one of them ends of it. */
typedef struct wefti_comm_finder {
    void (*found)(void *context, const char *message); /* NULL: nobody is told */
    void *context;
} wefti_comm_finder;

struct wefti_comm {
    const wefti_comm_engine *engine;
    int32_t rank, size;
    wefti_position *position; /* of this rank, for watchers; NULL: the rank is not watched */
    wefti_comm_finder finder;
};

/* Every engine's endpoint begins with this. */
struct wefti_endpoint {
    const wefti_comm_engine *engine;
    uint64_t call; /* which call of its group is posted next, for messages; 0: it is not counted */
};

/* Writes the message for a mismatch to `out` and returns it: this rank posts `mine` in call number
 * `call` of the group (0: unknown), but `rank` posts `theirs` (NULL: unknown). If the two are
 * equal, an earlier transfer differed without either side reading the other's data: broadcasts
 * from different roots, for example. */
enum { WEFTI_COMM_MISMATCH = 768 };
const char *wefti_comm_mismatch(char out[WEFTI_COMM_MISMATCH], const char *mine, uint64_t call,
                                int32_t rank, const char *theirs);

/* Tells the finder. */
static inline void wefti_comm_found(const wefti_comm *comm, const char *message) {
    if (comm->finder.found) comm->finder.found(comm->finder.context, message);
}

/* Errors of callers, in the same words from all engines: a post while WEFTI_COMM_DEPTH of the
 * endpoint are under way, and a wait for a transfer that is not posted. `text` names it. */
weft_status wefti_comm_too_many_posts(const wefti_comm *comm, const char *text);
weft_status wefti_comm_not_posted(const wefti_comm *comm, const char *text);

/* The ranks of one process: threads that read each other's memory. out[0..size-1] gets one
 * communicator per rank. Each is used by one thread at a time, and all must be destroyed. `spin`:
 * iterations of busy waiting before a thread sleeps; 0 if there are more devices than cores; -1:
 * the engine chooses by that rule. */
weft_status wefti_comm_threads(int32_t size, int spin, wefti_comm **out) WEFT_CHECKED;

/* How processes that cannot communicate yet tell each other where they are: `swap` is collective
 * and blocking (with a time limit), and brings everyone's card of `bytes` to everyone. */
typedef struct wefti_exchange {
    void *context;
    weft_status (*allgather)(void *context, const void *entry, size_t bytes,
                             void *entries /* [size] */);
} wefti_exchange;

/* Processes, one rank each. Those that share a host (host[rank] equal, [size]) reach each other's
 * memory. Collective: two exchanges. A break is seen by all of the host at once. Called "host". */
weft_status wefti_comm_host(int32_t rank, int32_t size, const int32_t *host,
                            const wefti_exchange *exchange, wefti_comm **out) WEFT_CHECKED;
/* Before anything is bound: transfers with members on several hosts go through `far`, which is
 * taken over, and whoever waits carries on with both. Called "host+" and the name of `far`. */
void wefti_comm_host_set_internode(wefti_comm *comm, wefti_comm *internode);

typedef struct weft_transport weft_transport; /* weft/transport.h */
/* What algorithms are chosen by. It must be equal on all ranks. */
typedef struct wefti_p2p_setup {
    const struct wefti_commsched_costs *costs; /* of messages; NULL: defaults */
    const int32_t *host;                       /* [size] of each rank, copied; NULL: not known */
} wefti_p2p_setup;
/* A transport that routes: messages to ranks of this host go through shared memory, all others
 * through `internode`, which is taken over even on failure. `comm` comes from wefti_comm_host and
 * must live longer. Collective: all ranks call it, or none does. */
weft_status wefti_comm_host_route(wefti_comm *comm, const weft_transport *internode,
                                  weft_transport *out) WEFT_CHECKED;
/* Processes that send each other messages (comm/p2p): every transfer becomes point-to-point
 * messages of `transport`. Destroying the communicator closes the transport. The transport is
 * taken over even on failure. */
weft_status wefti_comm_p2p(const weft_transport *transport, const wefti_p2p_setup *setup,
                           wefti_comm **out) WEFT_CHECKED;

static inline weft_status wefti_comm_post(wefti_endpoint *e, const void *source,
                                          void *destination) {
    return e->engine->post(e, source, destination);
}
static inline weft_status wefti_comm_wait(wefti_endpoint *e) {
    return e->engine->wait(e);
}
static inline weft_status wefti_comm_test(wefti_endpoint *e) {
    return e->engine->test(e);
}
static inline void wefti_comm_unbind(wefti_endpoint *e) {
    if (e) e->engine->unbind(e);
}
static inline void wefti_comm_break(wefti_comm *comm, int failed, const char *message) {
    comm->engine->break_off(comm, failed, message);
}
/* For the reason of this thread's failure. */
static inline void wefti_comm_break_by_failure(wefti_comm *comm) {
    comm->engine->break_off(comm, weft_error_rank(), weft_error_message());
}
static inline bool wefti_comm_moves(wefti_comm *comm) {
    return comm->engine->moves && comm->engine->moves(comm);
}
/* This rank's position is kept in `position`, which is borrowed, from now on. NULL: no longer. */
static inline void wefti_comm_set_position(wefti_comm *comm, wefti_position *position) {
    comm->position = position;
    if (comm->engine->set_position) comm->engine->set_position(comm, position);
}
static inline void wefti_comm_mend(wefti_comm *comm) {
    if (comm->engine->mend) comm->engine->mend(comm);
}
static inline void wefti_comm_destroy(wefti_comm *comm) {
    if (comm) comm->engine->destroy(comm);
}
static inline weft_status wefti_comm_run(wefti_endpoint *e, const void *source, void *destination) {
    weft_status status = e->engine->post(e, source, destination);
    return status < 0 ? status : e->engine->wait(e);
}

#endif
