/* A transport: the point-to-point messages of another library, as a table of functions. With it
 * weft communicates through a library that the program already uses. weft/mpi.h makes one for MPI.
 */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All calls but `exchange` are nonblocking, and weft never makes two calls at a time. Messages
 * between two ranks with equal tags arrive in the order of their sends. A request is
 * `request_bytes` of the caller's memory, aligned to 16; it stays in place until it is done or
 * cancelled. A call that fails sets its message with weft_error_raise. */
typedef struct weft_transport {
    size_t struct_bytes;
    const char *name; /* "mpi", "ucx" */
    void *context;
    int rank, size;
    bool any_thread; /* any thread may call; else only the world's thread */
    size_t request_bytes;
    /** Start to send `bytes` of `data`, which stays unchanged until the request is done. */
    weft_status (*send)(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                        void *request);
    /** Start to receive a message of at most `bytes`. `test` fails for a longer one. */
    weft_status (*receive)(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                           void *request);
    /** Make progress. Returns WEFT_OK if the request is done, with the received bytes in *out_bytes
     * (may be NULL); WEFT_PENDING; or an error. */
    weft_status (*test)(void *context, void *request, size_t *out_bytes);
    /** Cancel a request. When this returns, its memory may be used again. */
    void (*cancel)(void *context, void *request);
    /** All-gather of one block of `bytes` from each rank into `all` [size][bytes]. Collective,
     * blocking. */
    weft_status (*exchange)(void *context, const void *mine, size_t bytes, void *all);
    /** Called once, when the world is left. May be NULL. */
    void (*close)(void *context);
    /** Called before `close` if the world has failed: ranks may be lost, so `close` waits for other
     * ranks a second at most. May be NULL. */
    void (*abandon)(void *context);
    /** A number that changes if bytes have come or gone. A rank that waits does not sleep while it
     * changes. May be NULL. */
    uint64_t (*moved)(void *context);
} weft_transport;
WEFTI_ZERO_DEFAULTS(weft_transport, weft_transport_defaults)

/** Make a world over a transport. Collective. The transport is copied; the world closes it when it
 * is left, and also if this call fails, unless struct_bytes is wrong (WEFT_E_ARG). */
WEFT_API weft_status weft_world_from_transport(const weft_transport *transport,
                                               const weft_world_options *options,
                                               weft_world **out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
