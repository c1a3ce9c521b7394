/* A transport: point-to-point messages of another library, as a table. With it weft communicates
 * through whatever a program already has; weft/mpi.h fills it in for MPI. */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All calls but `exchange` return at once. Never two calls at a time. Messages between two ranks
 * with equal tags arrive in the order in which they were sent. A request is `request_bytes` of the
 * caller's memory, aligned to 16, which stays where it is until it is done or cancelled. A call
 * that fails says why by weft_error_raise. */
typedef struct weft_transport {
    const char *name; /* "mpi", "ucx" */
    void *context;
    int rank, size;
    bool any_thread; /* calls may come from any thread; else only from the world's one */
    size_t request_bytes;
    /** Send `bytes` of `data`, which stays unchanged until the request is done. */
    weft_status (*send)(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                        void *request);
    /** Receive a message of at most `bytes`. A longer one is an error of `test`. */
    weft_status (*receive)(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                           void *request);
    /** WEFT_OK: done, *out_bytes (may be NULL) have arrived; WEFT_PENDING; or what went wrong.
     * Makes progress. */
    weft_status (*test)(void *context, void *request, size_t *out_bytes);
    /** Give a request up: its memory may be used again when this returns. */
    void (*cancel)(void *context, void *request);
    /** Everyone's block of `bytes` to everyone, [size][bytes]. Collective, blocking. */
    weft_status (*exchange)(void *context, const void *mine, size_t bytes, void *all);
    /** Called once, when the world is left. May be NULL. */
    void (*close)(void *context);
} weft_transport;

/** A world over a transport, which is copied and closed with it, also on failure. Collective. */
WEFT_API weft_status weft_world_from_transport(const weft_transport *transport,
                                               const weft_world_options *options,
                                               weft_world **out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
