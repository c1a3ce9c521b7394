/* The state of a graph under construction: handles, the open cell, names in use. */
#ifndef WEFTI_GRAPH_BUILDER_H
#define WEFTI_GRAPH_BUILDER_H

#include "base/map/map.h"
#include "graph/graph.h"

/* The value that a weft_value names. If its cell has ended, body is NULL and `ended` is the cell's
 * name. */
typedef struct wefti_handle {
    weft_body *body;
    int32_t value;
    const char *ended;
} wefti_handle;

/* The source of input k of the open cell. */
typedef struct wefti_capture {
    int32_t outer;    /* root value, or -1: a parameter or state created in the cell */
    const char *full; /* the full name of the root value that it becomes at the cell's end */
    weft_init init;
} wefti_capture;

enum { WEFTI_MAX_SCOPES = 32, WEFTI_MAX_PATH = 512, WEFTI_MAX_NAME = 256 };

typedef struct wefti_builder {
    wefti_handle *handles;
    int64_t handle_count, handle_cap;
    weft_body *current;      /* the body that receives nodes: the root, the open cell, or a
                                backward body */
    weft_body *cell;         /* the open cell, or NULL */
    int64_t cell_handles;    /* number of handles before the cell began */
    wefti_capture *captures; /* cell->in_count entries */
    int64_t capture_count, capture_cap;
    wefti_assign *assigns; /* state updates in the cell, by value indices of the cell */
    int64_t assign_count, assign_cap;
    char path[WEFTI_MAX_PATH];   /* path of the open cells: "h.3.attn" */
    int marks[WEFTI_MAX_SCOPES]; /* length of the path before each open cell */
    int depth;
    const char *scope; /* path inside the cell, arena text */
    wefti_map names;   /* a set, see wefti_builder_claim */
} wefti_builder;

/* Claims a name in a space: 'v' values of the root, 'c' cell calls, 'o' outputs, 'f' fused bodies,
 * 'b' cell bodies of a parsed text. *out_new is false if the name is taken. */
weft_status wefti_builder_claim(weft_graph *g, char space, const char *name,
                                bool *out_new) WEFT_CHECKED;
weft_status wefti_name_check(const char *what, const char *name) WEFT_CHECKED;
void wefti_builder_destroy(wefti_builder *b);

/* A new handle for a value of a body. */
weft_status wefti_handle_new(wefti_builder *b, weft_body *body, int32_t value,
                             weft_value *out) WEFT_CHECKED;

/* Named root values; names are checked and claimed. */
weft_status wefti_root_value(weft_graph *g, wefti_value_kind kind, const char *name, weft_desc desc,
                             weft_init init, int32_t *out) WEFT_CHECKED;
weft_status wefti_root_output(weft_graph *g, const char *name, int32_t value) WEFT_CHECKED;
weft_status wefti_root_loss(weft_graph *g, int32_t value) WEFT_CHECKED;
weft_status wefti_root_assign(weft_graph *g, int32_t state, int32_t next) WEFT_CHECKED;

/* Returns the stored cell of equal structure, or stores `b`. The graph owns `b` from now on, also
 * on failure. */
weft_status wefti_graph_intern(weft_graph *g, weft_body *b, weft_body **out) WEFT_CHECKED;

#endif
