/* The text form of graphs. It is printed for people and diffs, and parsed back to the same graph.
 *
 *     weft-graph 1
 *     cell h.0(%0 x: f32[4,256,768], %1 param ln.weight: f32[768]) {
 *       %2: f32[4,256,768], %3: f32[4,256] = rms_norm(%0, %1) eps=1e-05 @ln
 *       return %2
 *     }
 *     graph {
 *       %0 = input x: f32[4,256,768]
 *       %1 = param h.0.ln.weight: f32[768] constant(1)
 *       %2: f32[4,256,768] = call h.0(%0, %1) @h.0
 *       output y = %2
 *     }
 *
 * `_` is an absent optional input. `@` is the scope inside the cell; of a call it is the path. `#n`
 * is the number of a random node. Every attribute is written, so that the text keeps its meaning if
 * defaults change. */
#ifndef WEFTI_GRAPH_TEXT_H
#define WEFTI_GRAPH_TEXT_H

#include "base/text.h"
#include "graph/graph.h"

weft_status wefti_graph_parse(const wefti_op_registry *ops, const char *text,
                              weft_graph **out) WEFT_CHECKED;

/* Prints the shortest decimal that reads back to the same bits. */
void wefti_float_print(double value, wefti_text *out);

/* Prints attributes of a node in the text form: " axis=1 eps=1e-05 stride=(2,2)". */
void wefti_attrs_print(const weft_op_def *op, const wefti_attr *attrs, wefti_text *out);
/* Parses "axis=1 eps=1e-5 stride=(2,2)" (the whole text) into attrs[], over the op's defaults.
 * attrs[] has room for all attributes of the op. A dtype may be a word; tables lie in the arena. */
weft_status wefti_attrs_parse(const weft_op_def *op, const char *text, wefti_arena *arena,
                              wefti_attr *attrs) WEFT_CHECKED;

#endif
