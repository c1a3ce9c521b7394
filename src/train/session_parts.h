/* A session from inside, for the files that make it up.
 *
 * Every device runs programs of its own; a session's user sees whole tensors. A view lists the
 * tensors of one graph's programs over all devices, each once, and says where their pieces are. */
#ifndef WEFTI_SESSION_PARTS_H
#define WEFTI_SESSION_PARTS_H

#include "exec/crew.h"
#include "train/optimizer.h"
#include "train/session.h"

typedef struct wefti_view_tensor {
    const char *name; /* borrowed from a program */
    wefti_tensor_role role;
    weft_desc whole;
    int32_t *local; /* [microbatches, devices]: its number in a device's program, -1: not there */
} wefti_view_tensor;

/* A graph on all devices. */
typedef struct wefti_view {
    wefti_program **programs; /* [devices] */
    int32_t devices, microbatches;
    wefti_view_tensor *tensors;
    int64_t count, cap;
    wefti_arena *arena;
} wefti_view;

struct weft_session {
    weft_session_options options; /* `plan` is not the caller's any more: see below */
    weft_plan *plan;              /* NULL: one device without a plan */
    wefti_route_cache *routes;
    int32_t devices;
    int threads; /* of each device */
    wefti_optimizer *optimizer;
    wefti_view **views; /* per graph */
    int64_t view_count, view_cap;
    wefti_crew *crew;            /* NULL until started */
    wefti_session_piece *pieces; /* [devices]: of the tensor that is being read or written */
    wefti_trace *trace;
    int64_t step, row;
    int64_t *rows;   /* first global row of each microbatch since the last update */
    int accumulated; /* microbatches since the last update */
    bool packed;     /* packed weights are those of the parameters */
    wefti_bf16_compute bf16;
    wefti_before_update *before_update;
    void *before_update_context;
};

/* Maps the arenas and sets start values, once. */
weft_status wefti_session_start(weft_session *s) WEFT_CHECKED;
weft_status wefti_session_view(const weft_session *s, int program, wefti_view **out) WEFT_CHECKED;

/* session_view.c. Takes programs[devices] over, also on failure. */
weft_status wefti_view_create(const weft_graph *graph, wefti_program **programs, int32_t devices,
                              wefti_view **out) WEFT_CHECKED;
void wefti_view_destroy(wefti_view *view);

#endif
