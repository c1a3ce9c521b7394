/* Helpers of the calls on tensors: the tensor's entry and pieces, and transfers between ranks. */
#ifndef WEFTI_SESSION_TENSORS_H
#define WEFTI_SESSION_TENSORS_H

#include "session/parts.h"

/* In a world: starts the session, which is collective. Every call on tensors begins with it, so
 * that all ranks make the collective call even where one rank's arguments are wrong. */
weft_status wefti_session_start_in_world(weft_session *s) WEFT_CHECKED;
/* The entry of a tensor in its view. Its pieces are in s->pieces. Refuses data of another size. */
weft_status wefti_session_locate(weft_session *s, int program, const char *name, const void *data,
                                 size_t bytes, wefti_view **out_view, int *out_index,
                                 int32_t *out_count) WEFT_CHECKED;
/* The same for collective calls: arguments that are wrong on one rank fail on all ranks, before
 * anything is done. */
weft_status wefti_session_locate_together(weft_session *s, int program, const char *name,
                                          const void *data, size_t bytes, wefti_view **out_view,
                                          int *out_index, int32_t *out_count) WEFT_CHECKED;
/* Copies `data`, which holds the region `box` of a tensor, into s->pieces [count] of this process.
 */
weft_status wefti_session_scatter(const weft_session *s, const wefti_view *view, int index,
                                  int32_t count, const wefti_region *box,
                                  const void *data) WEFT_CHECKED;
/* Counts a fed input's bytes as used memory. */
void wefti_session_observe(const weft_session *s, const wefti_session_piece *piece);

/* out += terms, in host memory; with `largest` the maximum of both instead. `terms` has the region
 * `part` of a tensor, and `out` the region `box`. */
void wefti_add_terms(const weft_desc *whole, const wefti_region *part, const void *terms,
                     bool largest, const wefti_region *box, void *out);

wefti_region wefti_whole_region(const weft_desc *whole);

/* One transfer between all ranks; free `boxes`. Boxes begin empty. A scalar has boxes of one
 * dimension (wefti_region_1d). */
typedef struct wefti_session_transfer {
    wefti_world_transfer what;
    wefti_region *boxes; /* [2 * devices]: what each rank has, then what it wants */
} wefti_session_transfer;
weft_status wefti_session_transfer_begin(const weft_session *s, const wefti_view_tensor *t,
                                         wefti_transfer_kind kind,
                                         wefti_session_transfer *out) WEFT_CHECKED;
wefti_region wefti_region_1d(const weft_desc *whole, wefti_region box);

#endif
