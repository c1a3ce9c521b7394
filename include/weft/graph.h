/* The graph: a model described once, for one device.
 *
 * A builder adds operations (weft/ops.h) to a graph. Errors are sticky: the graph keeps the first
 * failure, later calls do nothing and return WEFT_NO_VALUE, and weft_graph_status (or compiling)
 * reports it. Building calls therefore need no checks of their own. A wrong name or attribute gives
 * the graph the status WEFT_E_ARG, and shapes that do not fit give WEFT_E_SHAPE. Names are copied.
 * One thread at a time may use a graph.
 *
 * A cell is a named region (a transformer block, a stem, a head). Cells of equal structure are
 * stored once and called many times. They are the unit of differentiation, planning, compilation
 * and recomputation. A cell begun inside another cell only adds its name to the path. */
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

/* Start values of a parameter: a function of the seed, the parameter's full name and the element's
 * index. */
typedef struct weft_init {
    weft_init_kind kind;
    double scale;
} weft_init;

/** Create an empty graph, freed with weft_graph_destroy. WEFT_E_NOMEM. */
WEFT_API weft_status weft_graph_create(weft_graph **out) WEFT_CHECKED;
/** Free a graph, after all sessions that use it. NULL is legal. */
WEFT_API void weft_graph_destroy(weft_graph *graph);

/** WEFT_OK, or the first failure of building this graph. */
WEFT_API weft_status weft_graph_status(const weft_graph *graph);
/** The message of that failure with the cell path in front, "" if none. Borrowed from the graph. */
WEFT_API const char *weft_graph_message(const weft_graph *graph);

/** A tensor that is fed before each step, for example tokens [batch, context]. The first dimension
 * is the batch. Names are unique. Only outside of cells. */
WEFT_API weft_value weft_input(weft_graph *graph, const char *name, weft_desc desc);

/** A trainable parameter. Its full name is the path of cells and `name`, joined by dots
 * ("h.3.attn.qkv.weight"). To tie parameters, use one value twice (or in two cells): gradients
 * sum. Parameters are f32 (or f64 in f64 graphs); operations accept them beside bf16 activations. A
 * graph may have bf16 parameters if it is not trained, or if its plan has masters on the host
 * (weft_plan_master): then the session has the parameter in f32. */
WEFT_API weft_value weft_param(weft_graph *graph, const char *name, weft_desc desc, weft_init init);

/** Freeze the parameters whose full names match `pattern` (with *, ? and [abc]), or train them
 * again if `frozen` is false. Training computes no gradient for a frozen parameter and keeps no
 * optimizer state, and its bits do not change. Plans split it and checkpoints hold it as any other.
 * Call this after the model is built, and before a session is created.
 * @return the graph's first error, if it has one; WEFT_E_ARG for a pattern that is not well formed;
 *   WEFT_E_NOT_FOUND for one without a parameter, with the nearest name */
WEFT_API weft_status weft_freeze(weft_graph *graph, const char *pattern, bool frozen) WEFT_CHECKED;

/** A tensor that lives between steps without training: running statistics, a key-value cache. */
WEFT_API weft_value weft_state(weft_graph *graph, const char *name, weft_desc desc, weft_init init);
/** After the forward pass, `state` takes the value `next` (same shape and dtype). Legal inside the
 * cell that uses the state. Microbatches forward the state in their order. weft_session_create
 * refuses plans that cannot do this (WEFT_E_LAYOUT). */
WEFT_API void weft_state_update(weft_graph *graph, weft_value state, weft_value next);

/** Begin a cell with a printf-style name: weft_cell_begin(g, "h.%d", i). It may use values from
 * outside. */
WEFT_API void weft_cell_begin(weft_graph *graph, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** End the innermost cell; `value` is its only result. Returns the result as a value outside the
 * cell. */
WEFT_API weft_value weft_cell_end(weft_graph *graph, weft_value value);
/** End the innermost cell with several results. Replaces `values` [count] by the values outside the
 * cell. */
WEFT_API void weft_cell_end_many(weft_graph *graph, int count, weft_value *values);

/** Name a value as a result that can be read after a step. Only outside of cells. */
WEFT_API void weft_output(weft_graph *graph, const char *name, weft_value value);
/** The scalar to minimise. Also readable as the output "loss". Only outside of cells. */
WEFT_API void weft_loss(weft_graph *graph, weft_value value);

/** Shape and dtype of a value; rank -1 for an empty one. */
WEFT_API weft_desc weft_value_desc(const weft_graph *graph, weft_value value);

/** Print the graph in the form that weft_graph_parse reads. Freed with weft_text_free. */
WEFT_API weft_status weft_graph_print(const weft_graph *graph, char **out) WEFT_CHECKED;
/** Parse a graph from text (docs/reference/format-graph-text.md); freed with weft_graph_destroy.
 * WEFT_E_ARG names the line and the error there. */
WEFT_API weft_status weft_graph_parse(const char *text, weft_graph **out) WEFT_CHECKED;
#ifdef __cplusplus
}
#endif
#endif
