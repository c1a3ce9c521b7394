/* The update of one parameter, or of a piece of it, by an optimizer's op. */
#ifndef WEFTI_UPDATE_H
#define WEFTI_UPDATE_H

#include "graph/graph.h"

typedef struct wefti_update_rule {
    const weft_op_def *op;
    const wefti_attr *attrs; /* full table of the op */
    int states;              /* in-place tensors after the parameter */
    int absent;              /* optional operands left out after the states */
    const char *state_names[4];
    weft_desc state_descs[4];
} wefti_update_rule;

/* Of the scalars that the update of such a parameter reads. */
weft_dtype wefti_update_scalars(const weft_desc *param);
/* (parameter, states, gradient, scalars), and the results of the op, which replace their operands.
 * `copies`: the last result is the new value in bf16. */
weft_status wefti_update_body(weft_graph *g, const weft_desc *desc, const wefti_update_rule *rule,
                              bool copies, weft_body **out) WEFT_CHECKED;

#endif
