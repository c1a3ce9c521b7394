/* Communicators: the engines that carry transfers out, behind one table.
 *
 * A transfer is bound once, to an endpoint, and then posted and waited for as often as the program
 * runs. Post does not block; wait blocks until what is wanted has arrived and `source` may be
 * changed. At most WEFTI_COMM_DEPTH posts of one endpoint are under way at a time. Between members,
 * transfers of one tag and group meet in the order in which they were posted. */
#ifndef WEFTI_COMM_H
#define WEFTI_COMM_H

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
    /* The oldest post under way. WEFT_E_PEER when the world was broken by another rank. */
    weft_status (*wait)(wefti_endpoint *endpoint);
    void (*unbind)(wefti_endpoint *endpoint);
    void (*destroy)(wefti_comm *comm);
} wefti_comm_engine;

struct wefti_comm {
    const wefti_comm_engine *engine;
    int32_t rank, size;
};

/* The ranks of one process: threads that read each other's memory. out[0..size-1]: one side per
 * rank, to be used by one thread at a time each, and all to be destroyed. `spin`: iterations of
 * busy waiting before a waiting thread sleeps; 0 when there are more devices than cores; -1: chosen
 * by that rule. */
weft_status wefti_comm_local(int32_t size, int spin, wefti_comm **out) WEFT_CHECKED;
/* Nobody waits any more: all waits under way and to come return WEFT_E_PEER, with the message of
 * the rank that failed first. From any thread. */
void wefti_comm_break(wefti_comm *comm, const char *message);
/* After all ranks have stopped: usable again. */
void wefti_comm_mend(wefti_comm *comm);

static inline weft_status wefti_comm_run(const wefti_comm *comm, wefti_endpoint *e,
                                         const void *source, void *destination) {
    weft_status status = comm->engine->post(e, source, destination);
    return status < 0 ? status : comm->engine->wait(e);
}

#endif
