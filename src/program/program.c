/* Destroys programs, and finds their tensors by name. */
#include "program/program.h"

#include <string.h>

#include "base/memory.h"

void wefti_program_destroy(wefti_program *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->routine_count; i++) wefti_routine_destroy(p->routines[i]);
    for (int32_t i = 0; i < p->grad_count; i++) wefti_cell_grad_free(&p->grads[i]);
    for (int32_t i = 0; i < p->body_count; i++) wefti_body_destroy(p->bodies[i]);
    wefti_free(p->routines);
    wefti_free(p->grads);
    wefti_free(p->bodies);
    wefti_free(p->tensors);
    wefti_partition_destroy(p->partition);
    weft_graph_destroy(p->graph);
    wefti_arena_destroy(p->arena);
    wefti_free(p);
}

const wefti_tensor *wefti_program_tensor(const wefti_program *p, const char *name) {
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (!strcmp(p->tensors[i].name, name)) return &p->tensors[i];
    return NULL;
}
