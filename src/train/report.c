/* The table behind `weft model`: what a job would run, cell by cell, from the very program that it
 * would run. */
#include <stdlib.h>
#include <string.h>

#include "train/run.h"

/* What the walk over the steps needs to know of the program. */
typedef struct table {
    weft_model_report *report;
    const wefti_program *program;
    const wefti_tensor **params; /* by place in the arena */
    bool *counted;               /* beside params */
    int64_t param_count;
} table;

static int compare_places(const void *a, const void *b) {
    const wefti_tensor *x = *(const wefti_tensor *const *)a, *y = *(const wefti_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The parameter that lies at an address, as a number into `params`, or -1. */
static int64_t param_at(const table *t, int64_t offset) {
    int64_t low = 0, high = t->param_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (t->params[middle]->offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->param_count && t->params[low]->offset == offset ? low : -1;
}

/* A call's forward and backward steps share their name, and the backward pass comes in reverse. */
static weft_cell_info *cell_of(weft_model_report *r, const char *name, int *near) {
    for (int i = *near; i >= 0 && i < r->cell_count && i > *near - 2; i--)
        if (!strcmp(r->cells[i].name, name)) return &r->cells[*near = i];
    for (int i = r->cell_count - 1; i >= 0; i--)
        if (!strcmp(r->cells[i].name, name)) return &r->cells[*near = i];
    weft_cell_info *c = &r->cells[ *near = r->cell_count++];
    c->name = name;
    c->kind = -1;
    return c;
}

static void add_step(table *t, const wefti_step *s, int *near) {
    const wefti_routine *routine = s->routine;
    weft_cell_info *c = cell_of(t->report, s->name, near);
    double flops = 0;
    for (int32_t k = 0; k < routine->code_count; k++) flops += routine->code[k].cost.flops;
    if (s->phase == WEFTI_FORWARD)
        c->forward_flops += flops;
    else
        c->backward_flops += flops;
    if (routine->frame_bytes > c->frame_bytes) c->frame_bytes = routine->frame_bytes;
    if (routine->saved_bytes > c->saved_bytes) c->saved_bytes = routine->saved_bytes;
    for (int32_t i = 0; i < t->program->routine_count && c->kind < 0; i++)
        if (t->program->routines[i] == routine) c->kind = i;
    for (int32_t a = 0; a < routine->inputs; a++) {
        int64_t param = param_at(t, s->args[a]);
        if (param < 0 || t->counted[param]) continue;
        t->counted[param] = true;
        c->parameters += weft_desc_elems(&t->params[param]->desc);
    }
}

/* The call whose two passes run as one: its forward work is that of its cell. */
static void part_joint(weft_model_report *r, const weft_graph *g) {
    for (int64_t k = 0; k < g->root->node_count; k++) {
        const weft_node *call = &g->root->nodes[k];
        int near = r->cell_count - 1;
        wefti_cost forward;
        weft_cell_info *c = NULL;
        for (; near >= 0 && !c; near--)
            if (!strcmp(r->cells[near].name, call->scope)) c = &r->cells[near];
        if (!c || c->forward_flops > 0) continue;
        wefti_node_cost(call, &forward);
        if (forward.flops > c->backward_flops) continue;
        c->forward_flops = forward.flops;
        c->backward_flops -= forward.flops;
    }
}

/* A weight is packed once for each form that is wanted of it. */
static int64_t packed_bytes(const wefti_program *p) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < p->step_count[WEFTI_SECTION_PACK]; s++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_PACK][s];
        const wefti_routine *r = step->routine;
        for (int32_t i = 0; i < r->packed_count; i++)
            if (r->packed[i].instruction == step->bytes) bytes += r->packed[i].bytes;
    }
    return bytes;
}

/* Numbers of routines to 0, 1, 2... in order of appearance. */
static weft_status number_kinds(weft_model_report *r, int32_t routines) {
    int *numbers;
    WEFT_NEW_ARRAY(numbers, int, routines + 1);
    for (int i = 0; i < r->cell_count; i++) {
        int *number = &numbers[r->cells[i].kind + 1]; /* plus one: 0 is new */
        if (!*number) *number = ++r->kinds;
        r->cells[i].kind = *number - 1;
    }
    wefti_free(numbers);
    return WEFT_OK;
}

static weft_status walk(table *t) {
    const wefti_program *p = t->program;
    int32_t steps = p->step_count[WEFTI_SECTION_FIRST];
    WEFT_NEW_ARRAY(t->report->cells, weft_cell_info, steps + 1);
    WEFT_NEW_ARRAY(t->params, const wefti_tensor *, p->tensor_count + 1);
    WEFT_NEW_ARRAY(t->counted, bool, p->tensor_count + 1);
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role == WEFTI_TENSOR_PARAM) t->params[t->param_count++] = &p->tensors[i];
    qsort(t->params, (size_t)t->param_count, sizeof *t->params, compare_places);
    int near = 0;
    for (int32_t s = 0; s < steps; s++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][s];
        if (step->kind == WEFTI_STEP_CALL && step->phase != WEFTI_UPDATE) add_step(t, step, &near);
    }
    return number_kinds(t->report, p->routine_count);
}

static weft_status fill(wefti_training *t, weft_model_report *r) {
    const wefti_program *p = wefti_session_program(t->session, 0);
    table whole = {.report = r, .program = p};
    weft_status status = walk(&whole);
    wefti_free(whole.params);
    wefti_free(whole.counted);
    WEFT_TRY(status);
    part_joint(r, t->graph);
    weft_session_memory m = weft_session_memory_of(t->session);
    double micro = (double)t->job->train.accumulate;
    r->parameter_bytes = m.parameter_bytes;
    r->optimizer_bytes = m.optimizer_bytes;
    r->transient_bytes = m.transient_bytes;
    r->predicted_peak_bytes = m.predicted_peak_bytes;
    r->packed_bytes = packed_bytes(p);
    for (int i = 0; i < r->cell_count; i++) {
        r->forward_flops += r->cells[i].forward_flops * micro;
        r->backward_flops += r->cells[i].backward_flops * micro;
    }
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role == WEFTI_TENSOR_PARAM)
            r->parameters += weft_desc_elems(&p->tensors[i].desc);
    return wefti_session_largest(t->session, 6, &r->largest);
}

weft_status weft_job_report(const weft_job *job, weft_model_report **out) {
    weft_train_result unused = {0};
    weft_model_report *r;
    wefti_training *t;
    WEFT_NEW(r, weft_model_report);
    t = wefti_calloc(1, sizeof *t);
    weft_status status = t ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a report");
    if (t) {
        r->owner = t;
        t->job = job;
        t->result = &unused;
        status = wefti_training_prepare(t);
        if (status == WEFT_OK) status = fill(t, r);
        t->job = NULL;
        t->result = NULL;
    }
    if (status < 0) {
        weft_model_report_free(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}

void weft_model_report_free(weft_model_report *r) {
    if (!r) return;
    if (r->owner) wefti_training_close(r->owner);
    wefti_free(r->owner);
    wefti_free(r->cells);
    wefti_free(r->largest);
    wefti_free(r);
}
