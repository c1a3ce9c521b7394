/* The text form of graphs: printed for people and diffs, parsed back to the same graph.
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
 * `_` is an absent optional input, `@` the scope inside the cell (of a call: its path), `#n` the
 * number of a random node. Every attribute is written, so that a text means the same under other
 * defaults. */
#ifndef WEFTI_GRAPH_TEXT_H
#define WEFTI_GRAPH_TEXT_H

#include "base/text.h"
#include "graph/graph.h"

/* One body, for dumps of programs and for messages. */
void wefti_body_print(const weft_body *b, wefti_text *out);
weft_status wefti_graph_parse(const wefti_op_registry *ops, const char *text,
                              weft_graph **out) WEFT_CHECKED;

/* The shortest decimal that reads back to the same bits. */
void wefti_float_print(double value, wefti_text *out);

/* Attributes of a node as the text form writes them: " axis=1 eps=1e-05
 * stride=(2,2)". */
void wefti_attrs_print(const weft_op_def *op, const wefti_attr *attrs, wefti_text *out);
/* Parse "axis=1 eps=1e-5 stride=(2,2)" (whole text) over the op's defaults into attrs[] (room for
 * the op's count). A dtype may be written as a word; tables lie in the arena. */
weft_status wefti_attrs_parse(const weft_op_def *op, const char *text, wefti_arena *arena,
                              wefti_attr *attrs) WEFT_CHECKED;
int wefti_attr_count(const weft_op_def *op);

#endif
