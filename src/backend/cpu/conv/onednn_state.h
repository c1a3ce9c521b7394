/* The state of a prepared convolution by oneDNN. For the files onednn_*.c only:
 * - onednn_primitives.c makes oneDNN's descriptors and primitives;
 * - onednn_conv.c divides the batch, and makes and destroys everything;
 * - onednn_run.c runs it. */
#ifndef WEFTI_CPU_ONEDNN_STATE_H
#define WEFTI_CPU_ONEDNN_STATE_H

#ifdef WEFT_HAVE_ONEDNN

#include "backend/cpu/conv/onednn.h"
#include "base/number.h"

enum { WEFTI_ONEDNN_PARTS = 8 }; /* of the weights, at most */

/* One operand in the caller's layout and in the kernel's. `reorder` converts one to the other; NULL
 * if both are the same. */
typedef struct wefti_onednn_operand {
    wefti_md outer, inner;
    dnnl_primitive_t reorder;
    int64_t inner_bytes;
} wefti_onednn_operand;

/* The primitives for pieces of one size. */
typedef struct wefti_onednn_unit {
    int64_t images;
    wefti_onednn_operand x, y;
    wefti_md w, bias, scratch;
    int64_t scratch_bytes;
    dnnl_primitive_t conv;
} wefti_onednn_unit;

/* Memory objects of one thread for one unit. */
typedef struct wefti_onednn_slot {
    dnnl_memory_t x_outer, x_inner, y_outer, y_inner, w, bias, scratch;
} wefti_onednn_slot;

/* A range of output channels of the weights. */
typedef struct wefti_onednn_part {
    dnnl_primitive_t reorder;
    wefti_md outer, inner;
    dnnl_memory_t from, to;
} wefti_onednn_part;

struct wefti_onednn_conv {
    wefti_conv conv;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    wefti_onednn_unit units[2]; /* for a whole piece; for the shorter last one */
    wefti_onednn_slot *slots;   /* [threads][2] */
    wefti_onednn_part parts[WEFTI_ONEDNN_PARTS];
    int part_count; /* 0: the kernel takes the weights as they are */
    int threads;
    bool dry; /* only sizes: descriptors, no primitives */
    int64_t pieces, images, w_bytes;
    /* bytes of x and y in the kernel's layout, and of the kernel's scratchpad */
    int64_t thread_bytes;
};

/* Bytes, rounded up to whole cache lines. */
static inline int64_t wefti_onednn_rounded(size_t bytes) {
    return wefti_aligned((int64_t)bytes);
}

/* Makes the primitives for pieces of u->images. `fixed_w`, if not NULL, is the layout of the
 * weights. dnnl_unimplemented: oneDNN has only slow loops for the problem. */
dnnl_status_t wefti_onednn_make_unit(wefti_onednn_conv *c, wefti_onednn_unit *u,
                                     const wefti_md *fixed_w);
/* Makes the parts of the weights, if the kernel of units[0] takes them in a layout of its own. */
dnnl_status_t wefti_onednn_make_parts(wefti_onednn_conv *c);
/* Copies of the weights in the workspace. */
int64_t wefti_onednn_weight_copies(const wefti_onednn_conv *c);

#endif
#endif
