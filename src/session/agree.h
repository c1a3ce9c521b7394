/* Agreement between the processes of a world, beside the transfers of their programs: small records
 * all to all, failures, and data of rank 0.
 *
 * All calls are collective: every rank makes the same calls in the same order. If a call fails on
 * one rank, all ranks know. Either they have agreed on the failure, or the failed rank could not
 * complete the call and the world has ended.
 *
 * A public collective call never returns on one rank before its first agreement. It checks what
 * that rank's caller gave, and hands the status to the agreement; where none follows,
 * wefti_fail_world. */
#ifndef WEFTI_SESSION_AGREE_H
#define WEFTI_SESSION_AGREE_H

#include "comm/same_job.h"
#include "comm/world.h"

enum { WEFTI_RECORD_BYTES = 64 };

/* For a rank that failed outside of the calls below, while other ranks may wait for it: reports the
 * failure to them, which ends the world. Returns `status`. Does nothing without a world (NULL), in
 * a world of one rank, or for a failure of another rank (WEFT_E_PEER), and for one that mending may
 * repair. */
weft_status wefti_fail_world(weft_world *world, weft_status status);
/* Whether this thread's failure came from another rank, or from the way to it. A mended world can
 * go on after that. */
bool wefti_is_of_others(const weft_world *world, weft_status status);

/* The agreement of a world of several ranks. It lives as long as the world, and begins without a
 * failure. */
weft_status wefti_agreement_of(weft_world *world, wefti_agreement **out) WEFT_CHECKED;
/* The last of the calls below failed, and it failed on all ranks: there is nothing to report. */
bool wefti_agreement_failed(const wefti_agreement *a);

/* Gathers a record of at most WEFTI_RECORD_BYTES from each rank on all ranks. Cheap enough for
 * every step. out_records: [size]; NULL: this rank had no memory for them, and all ranks fail. So
 * callers pass on what they allocate before the call. */
weft_status wefti_agree_records(wefti_agreement *a, const void *record, size_t bytes,
                                void *out_records) WEFT_CHECKED;
/* Succeeds on all ranks or fails on all. A failed rank keeps its own message. Other ranks get the
 * message of the lowest failed rank, with "rank 3: " in front. */
weft_status wefti_agree(wefti_agreement *a, weft_status status) WEFT_CHECKED;
/* The same, but all ranks get the failure with the lowest `order`. */
weft_status wefti_agree_first(wefti_agreement *a, weft_status status, int64_t order) WEFT_CHECKED;
/* Gathers a part of any size from each rank, one after the other. Part r is at out[offsets[r]] up
 * to offsets[r + 1]. Both are one block, *out_offsets; wefti_free. */
weft_status wefti_agree_gather(wefti_agreement *a, const void *part, int64_t bytes, char **out,
                               int64_t **out_offsets) WEFT_CHECKED;
/* Broadcasts `bytes` at `data` from rank 0. `status` is rank 0's: a failure replaces the data. */
weft_status wefti_agree_broadcast(wefti_agreement *a, weft_status status, void *data,
                                  int64_t bytes) WEFT_CHECKED;

/* Whether all ranks have the facts of rank 0. The lowest rank that differs is named on all. If
 * `status` is a failure of this rank, it fails with that. */
weft_status wefti_agree_same(wefti_agreement *a, weft_status status, const wefti_job_fact *facts,
                             int count) WEFT_CHECKED;

/* Broadcasts large data piece by piece through a buffer of WEFTI_BROADCAST_BYTES. Rank 0 fills the
 * buffer before the call; the call fills it on the other ranks. */
enum { WEFTI_BROADCAST_BYTES = 1 << 20 };
weft_status wefti_broadcast_buffer(wefti_agreement *a, void **out) WEFT_CHECKED;
weft_status wefti_broadcast_piece(wefti_agreement *a, weft_status status,
                                  int64_t bytes) WEFT_CHECKED;

/* One transfer between all ranks: bound, run and unbound. have, want: [size]. A scalar has regions
 * of one dimension. */
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
