/* The one place that names concrete parts: the ops that a graph can hold, the backends that run
 * them. */
#include "builtin.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "graph/text/text.h"
#include "ops/ops.def"

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

static const wefti_backend *const all_backends[] = {&wefti_backend_cpu, &wefti_backend_reference,
                                                    NULL};

const wefti_backend *const *wefti_builtin_backends(void) {
    const char *only = getenv("WEFT_BACKEND");
    return only && !strcmp(only, "reference") ? all_backends + 1 : all_backends;
}

bool wefti_builtin_has_bf16(void) {
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->has_bf16) return (*b)->has_bf16(*b);
    return false;
}

const char *wefti_builtin_variant(wefti_bf16_compute bf16) {
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->variant) return (*b)->variant(*b, bf16);
    return "reference";
}
