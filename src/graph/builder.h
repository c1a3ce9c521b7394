/* What a graph remembers while it is built: handles, the open cell, names in use. */
#ifndef WEFTI_GRAPH_BUILDER_H
#define WEFTI_GRAPH_BUILDER_H

#include "graph/graph.h"

/* What a weft_value names. A handle whose cell has ended has body NULL and the cell's name. */
typedef struct wefti_handle {
    weft_body *body;
    int32_t value;
    const char *ended;
} wefti_handle;

/* Where input number k of the open cell comes from. */
typedef struct wefti_capture {
    int32_t outer;    /* root value, or -1: a parameter or state born in the cell */
    const char *full; /* its full name, made a root value at the cell's end */
    weft_init init;
} wefti_capture;

enum { WEFTI_MAX_SCOPES = 32, WEFTI_MAX_PATH = 512, WEFTI_MAX_NAME = 256 };

typedef struct wefti_builder {
    wefti_handle *handles;
    int64_t handle_count, handle_cap;
    weft_body *current;      /* where nodes go: the root, the open cell, or a backward body */
    weft_body *cell;         /* the open cell, or NULL */
    int64_t cell_handles;    /* handles before the cell began */
    wefti_capture *captures; /* cell->in_count of them */
    int64_t capture_count, capture_cap;
    wefti_assign *assigns; /* state updates in the cell, its own value indices */
    int64_t assign_count, assign_cap;
    char path[WEFTI_MAX_PATH];   /* cells that are open: "h.3.attn" */
    int marks[WEFTI_MAX_SCOPES]; /* length of the path before each */
    int depth;
    const char *scope;  /* path inside the cell, arena text */
    const char **names; /* hash set, see wefti_builder_claim */
    int64_t name_count, name_cap;
} wefti_builder;

/* Claim a name in a space ('v' values of the root, 'c' cell calls, 'o' outputs); false in *out_new
 * when taken. */
weft_status wefti_builder_claim(weft_graph *g, char space, const char *name,
                                bool *out_new) WEFT_CHECKED;
weft_status wefti_name_check(const char *what, const char *name) WEFT_CHECKED;
void wefti_builder_destroy(wefti_builder *b);

/* A new handle for a value of a body. */
weft_status wefti_handle_new(wefti_builder *b, weft_body *body, int32_t value,
                             weft_value *out) WEFT_CHECKED;
/* The value that a handle names, as seen in the current body: captured when it is of the
 * surroundings. */
weft_status wefti_handle_resolve(weft_graph *g, weft_value handle, int32_t *out) WEFT_CHECKED;

/* Named root values; names are checked and claimed. */
weft_status wefti_root_value(weft_graph *g, wefti_value_kind kind, const char *name, weft_desc desc,
                             weft_init init, int32_t *out) WEFT_CHECKED;
weft_status wefti_root_output(weft_graph *g, const char *name, int32_t value) WEFT_CHECKED;
weft_status wefti_root_loss(weft_graph *g, int32_t value) WEFT_CHECKED;
weft_status wefti_root_assign(weft_graph *g, int32_t state, int32_t next) WEFT_CHECKED;

/* The stored cell of equal structure; the graph takes `b` over, also on failure. */
weft_status wefti_graph_intern(weft_graph *g, weft_body *b, weft_body **out) WEFT_CHECKED;

#endif
