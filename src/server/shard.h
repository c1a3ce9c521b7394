/* A shard: what servers keep of a region of one parameter, and the terms of its gradient's sum.
 * Pure: the caller has the lock, the threads and the order of calls.
 *
 * A step's number begins a round. The round's phase rises by what the caller does:
 *
 *   phase       what is there                     next, and by which call
 *   TERMS       some terms                        FULL: push of the last one
 *   FULL        all terms                         SUM: sum
 *   SUM         the sum and its square            VALUE: update
 *   VALUE       the value of this step            TERMS: push for a later number
 *   FAILED      a sum or an update that failed    TERMS: push for a later number
 *
 * A push for a later number begins a round in every phase: what the round before has and has not
 * applied is dropped. */
#ifndef WEFTI_SERVER_SHARD_H
#define WEFTI_SERVER_SHARD_H

#include "backend/backend.h"
#include "program/service.h"

typedef enum wefti_shard_phase {
    WEFTI_SHARD_TERMS,
    WEFTI_SHARD_FULL,
    WEFTI_SHARD_SUM,
    WEFTI_SHARD_VALUE,
    WEFTI_SHARD_FAILED
} wefti_shard_phase;

typedef struct wefti_shard_state wefti_shard_state;

/* Copies the description; the rank's own term is left out. `threads`: of the runs. Zeroed. */
weft_status wefti_shard_create(const wefti_served *served, int threads,
                               wefti_shard_state **out) WEFT_CHECKED;
void wefti_shard_destroy(wefti_shard_state *shard); /* NULL is legal */
const wefti_served *wefti_shard_of(const wefti_shard_state *shard);
/* Refuses another description of the same region. */
weft_status wefti_shard_check(const wefti_shard_state *shard,
                              const wefti_served *served) WEFT_CHECKED;

wefti_shard_phase wefti_shard_phase_of(const wefti_shard_state *shard, int64_t number);
/* The memory is read by the sum. A number below that of the round is of a step that was given up:
 * its term is dropped. */
weft_status wefti_shard_push(wefti_shard_state *shard, int32_t term, int64_t number,
                             const void *gradient) WEFT_CHECKED;
/* Takes a term back that no sum has read. False: work is reading it. */
bool wefti_shard_withdraw(wefti_shard_state *shard, int32_t term, int64_t number);
/* Each is one piece of work, of which the shard has one at a time; between begin and end the caller
 * may give up the lock. begin: a shard whose round is FULL, or SUM: work on it makes SUM, or
 * VALUE. end: the phase changes, unless a later round has begun. */
bool wefti_shard_begin(wefti_shard_state *shard, wefti_shard_phase from); /* false: not now */
/* WEFT_E_NUMERIC: a term has a value that is not finite. */
weft_status wefti_shard_work(wefti_shard_state *shard, const wefti_run *run,
                             const wefti_step_block *scalars) WEFT_CHECKED;
void wefti_shard_end(wefti_shard_state *shard, weft_status status);
/* The term for which a sum has failed with WEFT_E_NUMERIC: it has a value that is not finite. Else
 * -1. */
int32_t wefti_shard_culprit(const wefti_shard_state *shard);
/* Of the sum, in the dtype of the description. */
void wefti_shard_square(const wefti_shard_state *shard, void *out);
/* The bytes of a part; fails if the range is not in it. */
weft_status wefti_shard_bytes(wefti_shard_state *shard, int part, int64_t offset, int64_t bytes,
                              unsigned char **out) WEFT_CHECKED;

#endif
