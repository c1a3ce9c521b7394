/* What the backward pass keeps of the forward pass: the cheapest set of values from which the rest
 * can be recomputed by cheap ops.
 *
 * A value is available in the backward pass when it is kept, or when its op is cheap and all its
 * operands are available. So the values to keep are a minimum vertex cut, weighed by bytes, between
 * the results of expensive ops and the values that the backward pass reads (He and Yu,
 * "Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware", MLSys 2023,
 * without its fusion heuristics). */
#ifndef WEFTI_GRAPH_FRONTIER_H
#define WEFTI_GRAPH_FRONTIER_H

#include "graph/grad/grad.h"

typedef enum wefti_fate {
    WEFTI_FATE_UNUSED,
    WEFTI_FATE_INPUT,    /* an input of the cell: the caller has it */
    WEFTI_FATE_OUTPUT,   /* an output of the cell: likewise */
    WEFTI_FATE_SAVED,    /* kept in the saved block */
    WEFTI_FATE_RECOMPUTE /* its node is cloned into the backward body */
} wefti_fate;

/* What may be recomputed. */
typedef struct wefti_recompute_rule {
    wefti_recompute_mode mode;
    const bool
        *keep; /* per value of the cell: never recomputed (it took communication); NULL: none */
} wefti_recompute_rule;

/* How value `v` is recomputed: fills in[] (room for WEFTI_MAX_IN) with values of the cell and sets
 * *out_op (the node's own op, or its `apply`). False: it is not. */
bool wefti_recompute_of(const weft_body *cell, int32_t v, const wefti_recompute_rule *rule,
                        const weft_op_def **out_op, int32_t *in, int *out_in_count);

/* fate[v] for each value of the cell that is read (`wanted[v]`) or needed to recompute one that is.
 */
weft_status wefti_saved_set(const weft_body *cell, const bool *wanted,
                            const wefti_recompute_rule *rule, wefti_fate *fate) WEFT_CHECKED;

#endif
