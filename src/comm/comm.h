/* Communicators: the engines that carry transfers out, behind one table.
 *
 * A transfer is bound once, to an endpoint, and then posted and waited for as often as the program
 * runs. Post does not block; wait blocks until what is wanted has arrived and `source` may be
 * changed. At most WEFTI_COMM_DEPTH posts of one endpoint are under way at a time. Between members,
 * transfers of one tag and group meet in the order in which they were posted.
 *
 * Sums and maxima are taken in the order of the group's members, whatever the engine and the road
 * that the data takes: the result is the same to the bit between threads, processes and hosts. */
#ifndef WEFTI_COMM_H
#define WEFTI_COMM_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/position.h"
#include "layout/transfer.h"

enum { WEFTI_COMM_DEPTH = 2 };

typedef struct wefti_comm wefti_comm;         /* one rank's side of a world */
typedef struct wefti_endpoint wefti_endpoint; /* a bound transfer */

typedef struct wefti_comm_engine {
    const char *name;
    /* Collective only in that all members bind an equal transfer at some time. The transfer is
     * copied. */
    weft_status (*bind)(wefti_comm *comm, const wefti_transfer *transfer, wefti_endpoint **out);
    /* `source` holds the box that this member has, `destination` gets the one it wants; they may be
     * the same memory when the boxes are equal (all-reduce in place), else they do not overlap.
     * NULL where the box is empty. */
    weft_status (*post)(wefti_endpoint *endpoint, const void *source, void *destination);
    /* The oldest post under way. WEFT_E_PEER when the world was broken by another rank,
     * WEFT_E_MISMATCH when this rank's transfer and another's are not equal. */
    weft_status (*wait)(wefti_endpoint *endpoint);
    /* As wait, but WEFT_PENDING instead of blocking. Carries on with all that is under way. */
    weft_status (*test)(wefti_endpoint *endpoint);
    /* Both for who waits for something else too, and so by `test`. NULL: nobody needs them.
     * From attend(true) to attend(false) it tests so often that the engine need not carry on by
     * itself. linger: nothing has happened for so long. */
    void (*attend)(wefti_comm *comm, bool on);
    void (*idle)(wefti_comm *comm, int64_t ns);
    void (*unbind)(wefti_endpoint *endpoint);
    /* Nobody waits any more: all waits under way and to come, on all ranks of this process (and,
     * where the engine can reach them, of others), fail with `message`, the first one given, and
     * are blamed on `failed` (weft_error_rank); WEFT_RANK_OWN: on this rank, whose name is put in
     * front. From any thread. */
    void (*break_off)(wefti_comm *comm, int failed, const char *message);
    /* After all ranks have stopped: usable again. NULL: this engine's worlds stay broken. */
    void (*mend)(wefti_comm *comm);
    /* Page-aligned zeroed memory that ranks of this host reach directly: transfers in it take the
     * shortest road. `bytes` may be far more than is ever touched. NULL: there is no such. */
    weft_status (*map)(wefti_comm *comm, size_t bytes, void **out);
    void (*unmap)(wefti_comm *comm, void *memory, size_t bytes);
    /* For one thread that watches, whatever the others do: whether anything under way has gone on
     * since the last call, or data is on its way to this rank, where all is there that it takes.
     * NULL: nobody watches this engine's ranks. */
    bool (*moves)(wefti_comm *comm);
    /* The engine passes the position on to communicators below it. NULL: there are none. */
    void (*set_position)(wefti_comm *comm, wefti_position *position);
    void (*destroy)(wefti_comm *comm);
} wefti_comm_engine;

struct wefti_comm {
    const wefti_comm_engine *engine;
    int32_t rank, size;
    wefti_position *position; /* what this rank is doing, for those who watch; NULL: nobody does */
};

/* Every engine's endpoint begins with this. */
struct wefti_endpoint {
    const wefti_comm_engine *engine;
    uint64_t call; /* which call of its group is posted next, for messages; 0: it is not counted */
};

/* Fills `out` with what this rank has done wrong, and returns it: it posts `mine`, in call number
 * `call` of the group (0: not known), where `rank` posts `theirs` (NULL: not known). Where these
 * are equal what differs came before, in a transfer that gave neither of the two anything to look
 * at, such as broadcasts from different roots. */
enum { WEFTI_COMM_MISMATCH = 768 };
const char *wefti_comm_mismatch(char out[WEFTI_COMM_MISMATCH], const char *mine, uint64_t call,
                                int32_t rank, const char *theirs);

/* Errors of callers, in the same words from all engines: a post while WEFTI_COMM_DEPTH of the
 * endpoint are under way, and a wait for a transfer that is not posted. `text` names it. */
weft_status wefti_comm_too_many_posts(const wefti_comm *comm, const char *text);
weft_status wefti_comm_not_posted(const wefti_comm *comm, const char *text);

/* The ranks of one process: threads that read each other's memory. out[0..size-1]: one side per
 * rank, to be used by one thread at a time each, and all to be destroyed. `spin`: iterations of
 * busy waiting before a waiting thread sleeps; 0 when there are more devices than cores; -1: chosen
 * by that rule. */
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
/* Messages between all ranks: those of this host send each other theirs through its memory, all
 * others through `far`, which is taken over, also on failure. `comm` is that of wefti_comm_host,
 * and lives longer. On all ranks or on none. */
weft_status wefti_comm_host_route(wefti_comm *comm, const weft_transport *internode,
                                  weft_transport *out) WEFT_CHECKED;
/* Processes that send each other messages (comm/p2p/p2p.c): any transfer in terms of point-to-point
 * messages of `transport`, whose close is called by destroy. Owned also on failure. */
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
