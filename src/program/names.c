/* Names of what programs do, for messages and texts: program/print.h. */
#include <stdio.h>

#include "program/print.h"

const char *wefti_phase_text(const wefti_step *step) {
    static const char *const names[] = {"forward", "backward", "update", ""};
    return names[step->phase];
}

const char *wefti_section_text(wefti_section section) {
    static const char *const names[WEFTI_SECTIONS] = {"first microbatch", "further microbatches",
                                                      "norms of gradients", "update",
                                                      "packing of weights"};
    return names[section];
}

/* The routine's input from which the transfer's operand comes, by first operands; -1: none. */
static int32_t origin(const wefti_routine *r, const weft_node *n) {
    int32_t v = n->inputs ? n->in[0] : -1;
    while (v >= 0 && r->body->values[v].node >= 0) {
        const weft_node *maker = &r->body->nodes[r->body->values[v].node];
        v = maker->inputs ? maker->in[0] : -1;
    }
    return v < 0 ? -1 : r->body->values[v].slot;
}

const char *wefti_transfer_what(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer) {
    if (code && code->node->scope && code->node->scope[0]) return code->node->scope;
    int32_t arg = code && step->names ? origin(step->routine, code->node) : -1;
    if (arg >= 0 && step->names[arg]) return step->names[arg];
    return transfer->name ? transfer->name : step->name;
}

const char *wefti_transfer_name(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer, char *buffer, size_t bytes) {
    const char *what = wefti_transfer_what(step, code, transfer);
    bool inside = code && code->node->scope == what;
    (void)snprintf(buffer, bytes, "%s%s%s", inside ? step->name : "",
                   inside && step->name[0] ? "." : "", what);
    return buffer;
}
