/* What the processes of a world tell each other beside the transfers of their programs: small
 * records of each to all, who failed and why, and data of rank 0 for everyone. All calls are
 * collective: every rank makes the same ones in the same order. When one fails, all ranks know:
 * they have agreed on it, or, where one rank alone could not go on in the midst of it, the world
 * has ended.
 */
#ifndef WEFTI_SESSION_AGREE_H
#define WEFTI_SESSION_AGREE_H

#include "comm/world.h"

typedef struct wefti_agreement wefti_agreement;

enum { WEFTI_RECORD_BYTES = 64 };

/* This rank alone has failed, between the calls below: the others, who may wait for it, are told,
 * which ends the world. Returns `status`. Nothing to do: in a world of one or none (NULL), or for
 * what came from others (WEFT_E_PEER). */
weft_status wefti_fail_world(weft_world *world, weft_status status);

/* That of a world of several ranks; it lives as long as the world. Nothing has failed yet. */
weft_status wefti_agreement_of(weft_world *world, wefti_agreement **out) WEFT_CHECKED;
/* The last of the calls below failed, and did so on all ranks: nobody needs to be told. */
bool wefti_agreement_failed(const wefti_agreement *a);

/* A record of at most WEFTI_RECORD_BYTES of each rank to all of them. Cheap: for every step. */
weft_status wefti_agree_records(wefti_agreement *a, const void *record, size_t bytes,
                                void *out_records /* [size] */) WEFT_CHECKED;
/* How this rank is doing. When any has failed all fail: those that did with their own message, the
 * others with that of the lowest one, "rank 3: " in front of it. */
weft_status wefti_agree(wefti_agreement *a, weft_status status) WEFT_CHECKED;
/* The same where all with a failure shall have one and the same: that with the lowest `order`. */
weft_status wefti_agree_first(wefti_agreement *a, weft_status status, int64_t order) WEFT_CHECKED;
/* What each rank has, of any size, one behind the other: part r is at out[offsets[r]], up to
 * offsets[r + 1]. Both are one block, *out_offsets; wefti_free. */
weft_status wefti_agree_gather(wefti_agreement *a, const void *part, int64_t bytes, char **out,
                               int64_t **out_offsets) WEFT_CHECKED;
/* `bytes` of rank 0 at `data` to all, there. `status` is rank 0's: a failure goes to all instead.
 */
weft_status wefti_agree_broadcast(wefti_agreement *a, weft_status status, void *data,
                                  int64_t bytes) WEFT_CHECKED;

/* Large data through a buffer of the agreement's own, piece by piece: room for
 * WEFTI_BROADCAST_BYTES, filled by rank 0 before, and by all others in the call. */
enum { WEFTI_BROADCAST_BYTES = 1 << 20 };
weft_status wefti_broadcast_buffer(wefti_agreement *a, void **out) WEFT_CHECKED;
weft_status wefti_broadcast_piece(wefti_agreement *a, weft_status status,
                                  int64_t bytes) WEFT_CHECKED;

/* One transfer among all ranks, bound, run and unbound. have, want: [size]. Scalars are boxes of
 * one dimension. */
typedef struct wefti_world_transfer {
    wefti_transfer_kind kind;
    weft_dtype dtype;
    int rank;
    wefti_region *have, *want;
    const char *name;
} wefti_world_transfer;
weft_status wefti_world_transfer_bind(wefti_agreement *a, const wefti_world_transfer *what,
                                      wefti_endpoint **out) WEFT_CHECKED;
weft_status wefti_world_transfer_run(wefti_agreement *a, const wefti_world_transfer *what,
                                     const void *source, void *destination) WEFT_CHECKED;

#endif
