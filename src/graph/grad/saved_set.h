/* The saved set: the cheapest set of forward values from which cheap ops can recompute all others
 * that the backward pass reads.
 *
 * A value is available in the backward pass if it is saved, or if its op is cheap and all operands
 * of the op are available. So the saved set is a minimum vertex cut, weighted by bytes. It
 * separates the results of expensive ops from the values that the backward pass reads. Source: He
 * and Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware", MLSys
 * 2023, without its fusion heuristics. */
#ifndef WEFTI_GRAPH_FRONTIER_H
#define WEFTI_GRAPH_FRONTIER_H

#include "graph/grad/grad.h"

typedef enum wefti_fate {
    WEFTI_FATE_UNUSED,
    WEFTI_FATE_INPUT,    /* an input of the cell: the caller keeps it */
    WEFTI_FATE_OUTPUT,   /* an output of the cell: likewise */
    WEFTI_FATE_SAVED,    /* stored in the saved block */
    WEFTI_FATE_RECOMPUTE /* its node is cloned into the backward body */
} wefti_fate;

/* Which values may be recomputed. */
typedef struct wefti_recompute_rule {
    wefti_recompute_mode mode;
    const bool
        *keep; /* per value of the cell: never recompute it (it needed communication); NULL: none */
} wefti_recompute_rule;

/* How value `v` is recomputed: fills in[] (room for WEFTI_MAX_IN + WEFTI_MAX_OUT) with operand
 * values of the cell, and sets *out_op to the node's own op or its `apply`. False: the value cannot
 * be recomputed. */
bool wefti_recompute_of(const weft_body *cell, int32_t v, const wefti_recompute_rule *rule,
                        const weft_op_def **out_op, int32_t *in, int *out_in_count);

/* Sets fate[v], the residency, for each value of the cell that is read (`wanted[v]`) or needed to
 * recompute a read value. */
weft_status wefti_saved_set(const weft_body *cell, const bool *wanted,
                            const wefti_recompute_rule *rule, wefti_fate *fate) WEFT_CHECKED;

#endif
