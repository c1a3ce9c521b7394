/* What the trainer needs of a session beyond the public calls. */
#ifndef WEFTI_SESSION_SESSION_H
#define WEFTI_SESSION_SESSION_H

#include "exec/exec.h"
#include "weft/session.h"

/* What a device runs of graph number `program`; tensors have other numbers there than in
 * weft_session_tensor. Without a rank: the first device of this process; NULL: of another one. */
const wefti_program *wefti_session_program(const weft_session *session, int program);
const wefti_program *wefti_session_program_of(const weft_session *session, int program,
                                              int32_t rank);
/* Which tensor of weft_session_tensor number `local` of a device's program is. */
int wefti_session_number(const weft_session *session, int program, int32_t rank, int32_t local);

/* Where a tensor lies: a box of it, contiguous, on one device. */
typedef struct wefti_session_piece {
    int32_t rank;
    wefti_region box;
    void *data; /* memory of `device`; NULL: of another process */
    wefti_device *device;
    bool counts; /* boxes of those that count cover the tensor, each element once */
    bool term; /* does not count, but what lies here is to be added (or maximised) for the value */
} wefti_session_piece;

/* All pieces of tensor `index` of weft_session_tensor; `out` has room for one a device. Starts the
 * session (maps the arenas, sets start values) if that has not happened. */
weft_status wefti_session_pieces(weft_session *session, int program, int index,
                                 wefti_session_piece *out, int32_t *out_count) WEFT_CHECKED;
/* Gives elements [first, first + count) of what is written, in order, each once; `out` has the
 * tensor's dtype. */
typedef weft_status wefti_session_source(void *context, int64_t first, int64_t count, void *out);
/* Write `count` elements of a tensor from element `first` on, on all devices that have them. Across
 * processes: collective, and only rank 0 is asked for the elements. */
weft_status wefti_session_fill(weft_session *session, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source,
                               void *context) WEFT_CHECKED;
/* Across processes: `count` elements from element `first` on to `out` of rank 0, collective. They
 * are whole slices along the first dimension. */
weft_status wefti_session_collect(weft_session *session, int program, int index, int64_t first,
                                  int64_t count, void *out) WEFT_CHECKED;
/* Called before a step updates a tensor: its number in program 0 of the rank. NULL: off. */
void wefti_session_before_update(weft_session *session, wefti_before_update *call, void *context);
/* Of each of the plan's fusions, how many tensors it has a say in at most on a device. */
void wefti_session_fused(const weft_session *session, int32_t out[3]);
int wefti_session_threads(const weft_session *session); /* of all devices */
/* Names what holds memory at the peak of the device that needs most: "parameters ... 474.7 MiB,
 * ..." into *out (wefti_free). */
weft_status wefti_session_largest(const weft_session *session, int count, char **out) WEFT_CHECKED;

#endif
