/* The ops that a graph can hold. */
#include "builtin.h"

#include "graph/text/text.h"

#define DECLARE(name_) extern const weft_op_def weft_op_##name_;
WEFT_OP_LIST(DECLARE)
#undef DECLARE

#define ENTRY(name_) &weft_op_##name_,
static const weft_op_def *const op_table[] = {WEFT_OP_LIST(ENTRY)};
#undef ENTRY

static const wefti_op_registry op_registry = {op_table, sizeof op_table / sizeof *op_table};

const wefti_op_registry *wefti_builtin_ops(void) {
    return &op_registry;
}

weft_status weft_graph_create(weft_graph **out) {
    WEFT_TRY(wefti_graph_create(&op_registry, out));
    return WEFT_OK;
}

weft_status weft_graph_parse(const char *text, weft_graph **out) {
    WEFT_TRY(wefti_graph_parse(&op_registry, text, out));
    return WEFT_OK;
}
