/* The graph: a model described once, as if for one device.
 *
 * A builder adds operations (weft/ops.h) to a graph. Errors are sticky: the first failure is kept,
 * later calls are no-ops that return an empty value, and weft_graph_status (or compiling) reports
 * it. Building calls therefore need no checks of their own: a wrong name or attribute makes
 * WEFT_E_ARG the status of the graph, shapes that do not fit WEFT_E_SHAPE. Names are copied. A
 * graph is used by one thread at a time.
 *
 * A cell is a named region (a transformer block, a stem, a head). Cells built with equal structure
 * are stored once and called many times; they are the unit of differentiation, planning,
 * compilation and recompute. A cell begun inside another cell only adds its name to the path. */
#ifndef WEFT_GRAPH_H
#define WEFT_GRAPH_H

#include "weft/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_graph weft_graph;

/* A tensor of the graph. Cheap to copy; valid as long as its graph. id < 0: no value. */
typedef struct weft_value {
    int32_t id;
} weft_value;

#ifdef __cplusplus
#define WEFT_NO_VALUE (weft_value{-1})
#else
#define WEFT_NO_VALUE ((weft_value){-1})
#endif

typedef enum weft_init_kind {
    WEFT_INIT_ZEROS,
    WEFT_INIT_CONSTANT, /* scale */
    WEFT_INIT_NORMAL,   /* mean 0, standard deviation `scale` */
    WEFT_INIT_UNIFORM   /* [-scale, scale) */
} weft_init_kind;

/* How a parameter starts: a function of the seed, the parameter's full name and the element's
 * index. */
typedef struct weft_init {
    weft_init_kind kind;
    double scale;
} weft_init;

/** An empty graph, the caller's. WEFT_E_NOMEM. */
WEFT_API weft_status weft_graph_create(weft_graph **out) WEFT_CHECKED;
/** After all sessions that use it. NULL is legal. */
WEFT_API void weft_graph_destroy(weft_graph *graph);

/** WEFT_OK, or the first failure of building this graph. */
WEFT_API weft_status weft_graph_status(const weft_graph *graph);
/** The message of that failure with the cell path in front, "" if none. Borrowed from the graph. */
WEFT_API const char *weft_graph_message(const weft_graph *graph);

/** A tensor fed from outside each step, for example [batch, context] tokens. The first dimension is
 * the batch. Names are unique. Only outside of cells. */
WEFT_API weft_value weft_input(weft_graph *graph, const char *name, weft_desc desc);

/** A trainable parameter. Its full name is the path of cells and `name` joined by dots
 *  ("h.3.attn.qkv.weight"). Use one value twice (or in two cells) to share it: gradients sum.
 *  Parameters are f32 (or f64 in f64 graphs); operations accept them beside bf16 activations. */
WEFT_API weft_value weft_param(weft_graph *graph, const char *name, weft_desc desc, weft_init init);

/** A tensor that lives between steps but is not trained: running statistics, a key/value cache. */
WEFT_API weft_value weft_state(weft_graph *graph, const char *name, weft_desc desc, weft_init init);
/** After the forward pass, `state` takes the value `next` (same shape and dtype). Legal inside the
 * cell that uses the state. Microbatches hand it on in their order; plans under which they cannot
 * are refused by weft_session_create (WEFT_E_LAYOUT). */
WEFT_API void weft_state_update(weft_graph *graph, weft_value state, weft_value next);

/** Begin a cell named printf-style: weft_cell_begin(g, "h.%d", i). Values of the surroundings may
 * be used inside. */
WEFT_API void weft_cell_begin(weft_graph *graph, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** End the innermost cell; `value` is its only result. Returns it as seen outside. */
WEFT_API weft_value weft_cell_end(weft_graph *graph, weft_value value);
/** End the innermost cell with several results, replaced in place by what is seen outside. */
WEFT_API void weft_cell_end_many(weft_graph *graph, int count, weft_value *values);

/** Name a value as a result that can be read after a step. Only outside of cells. */
WEFT_API void weft_output(weft_graph *graph, const char *name, weft_value value);
/** The scalar to minimise. Also readable as the output "loss". Only outside of cells. */
WEFT_API void weft_loss(weft_graph *graph, weft_value value);

/** Shape and dtype of a value; rank -1 for an empty one. */
WEFT_API weft_desc weft_value_desc(const weft_graph *graph, weft_value value);

/** The graph as text, in the form weft_graph_parse reads. The caller frees it with weft_text_free.
 */
WEFT_API weft_status weft_graph_print(const weft_graph *graph, char **out) WEFT_CHECKED;
/** A graph from such a text (docs/format-graph-text.md), the caller's. WEFT_E_ARG names the line
 * and what is wrong there. */
WEFT_API weft_status weft_graph_parse(const char *text, weft_graph **out) WEFT_CHECKED;
/** Free a string returned by the library; NULL is legal. */
WEFT_API void weft_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
