/* A process and those that it works with.
 *
 * Calls with a status are collective, unless they say otherwise. In a party of one they return the
 * status that they are given, so that the code of runs and generators is the same for one process
 * and for many. */
#ifndef WEFTI_SESSION_PARTY_H
#define WEFTI_SESSION_PARTY_H

#include "session/agree.h"

typedef struct wefti_party {
    weft_world *world;          /* borrowed; NULL: one process */
    wefti_agreement *agreement; /* the world's; NULL: one process, or the world is being mended */
    bool follows;               /* rank 0 reads, decides, reports and writes; this one follows */
} wefti_party;

/* NULL, or a world of one rank: a party of one. */
weft_status wefti_party_join(wefti_party *p, weft_world *world) WEFT_CHECKED;
static inline int wefti_party_rank(const wefti_party *p) {
    return p->world ? weft_world_rank(p->world) : 0;
}
/* After a failed call: the ranks have agreed on the failure, so they are in the same place. */
bool wefti_party_agreed(const wefti_party *p);
/* As the calls of agree.h. */
weft_status wefti_party_agree(const wefti_party *p, weft_status status) WEFT_CHECKED;
weft_status wefti_party_broadcast(const wefti_party *p, weft_status status, void *data,
                                  size_t bytes) WEFT_CHECKED;
weft_status wefti_party_same(const wefti_party *p, weft_status status, const wefti_job_fact *facts,
                             int count) WEFT_CHECKED;
/* Broadcasts rank 0's *text, of *bytes bytes. On other ranks *text is NULL before, and the caller's
 * to free after; it has a zero at its end, and stays NULL if there are no bytes. */
weft_status wefti_party_share_text(const wefti_party *p, weft_status status, char **text,
                                   int64_t *bytes) WEFT_CHECKED;
/* *out, on all ranks alike: whether `own` is true on some rank. */
weft_status wefti_party_any(const wefti_party *p, bool own, bool *out) WEFT_CHECKED;
/* Not collective: tells the other ranks of a failure of this rank alone. Returns `status`. */
weft_status wefti_party_tell(const wefti_party *p, weft_status status);
/* The end of common work: the same status on all ranks. */
weft_status wefti_party_end(const wefti_party *p, weft_status status);

#endif
