/* Destroys programs, adds up their memory, finds their tensors by name, and walks through their
 * loops. */
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
    wefti_free(p->moves);
    wefti_free(p->tensors);
    wefti_free(p->served);
    wefti_partition_destroy(p->partition);
    weft_graph_destroy(p->graph);
    wefti_arena_destroy(p->arena);
    wefti_free(p);
}

wefti_footprint wefti_program_footprint(const wefti_program *p) {
    wefti_footprint f = {{{p->persistent_bytes, p->transient_bytes}}};
    for (int s = WEFTI_SPACE_DEVICE + 1; s < WEFTI_SPACES; s++)
        for (int t = 0; t < WEFTI_TERMS; t++) f.of[s][t] = p->tier_bytes[s][t];
    return f;
}

wefti_footprint wefti_programs_footprint(wefti_program *const *programs, int32_t count) {
    wefti_footprint all = {0};
    for (int32_t i = 0; i < count; i++)
        wefti_footprint_join(&all, wefti_program_footprint(programs[i]));
    return all;
}

const wefti_tensor *wefti_program_tensor(const wefti_program *p, const char *name) {
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (!strcmp(p->tensors[i].name, name)) return &p->tensors[i];
    return NULL;
}

/* ---- sections with their loops expanded ---- */

int32_t wefti_cursor_micro(const wefti_program *p, wefti_section s, const wefti_cursor *at) {
    const wefti_loop *l = wefti_cursor_loop(p, s, at);
    return p->steps[s][at->step].micro + (l ? at->iteration * l->micro : 0);
}

void wefti_cursor_next(const wefti_program *p, wefti_section s, wefti_cursor *at) {
    const wefti_loop *l = wefti_cursor_loop(p, s, at);
    at->number++;
    at->step++;
    if (!l || at->step < l->first + l->count) return;
    if (at->iteration + 1 < l->times) {
        at->iteration++;
        at->step = l->first;
        return;
    }
    at->iteration = 0;
    at->loop++;
}

int32_t wefti_program_runs(const wefti_program *p, wefti_section s, int32_t microbatches) {
    const int32_t more = p->all_microbatches ? 0 : microbatches - 1;
    const bool last = more > 0 && p->step_count[WEFTI_SECTION_LAST] > 0;
    if (s == WEFTI_SECTION_LAST) return last;
    return s == WEFTI_SECTION_NEXT ? more - last : 1;
}

void wefti_program_moved(const wefti_program *p, int32_t microbatches, int64_t out[WEFTI_SPACES]) {
    for (int i = 0; i < WEFTI_SPACES; i++) out[i] = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        const int64_t runs = wefti_program_runs(p, (wefti_section)s, microbatches);
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            const wefti_program_move *copy = wefti_step_copy(p, step);
            if (copy && step->kind == WEFTI_STEP_POST)
                out[wefti_step_tier(step)] +=
                    copy->bytes * runs * wefti_program_times(p, (wefti_section)s, k);
        }
    }
}

double wefti_program_server_share(const wefti_program *p) {
    double sum = 0;
    for (int32_t i = 0; i < p->served_count; i++) {
        const wefti_served *x = &p->served[i].piece;
        int64_t bytes = x->part_bytes[0] * (1 + x->terms);
        if (x->term < 0) continue;
        for (int k = 0; k <= x->rule.states; k++) bytes += x->part_bytes[k];
        sum += (double)bytes / x->terms;
    }
    return sum;
}

int32_t wefti_program_times(const wefti_program *p, wefti_section s, int32_t step) {
    for (int32_t i = 0; i < p->loop_count[s]; i++) {
        const wefti_loop *l = &p->loops[s][i];
        if (step >= l->first && step < l->first + l->count) return l->times;
    }
    return 1;
}
