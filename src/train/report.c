/* The table behind `weft model`: what a job would run, cell by cell, from the very program that it
 * would run. */
#include <string.h>

#include "train/run.h"

/* Walks the first section: a call's forward and backward steps share their name. */
static weft_cell_info *cell_of(weft_model_report *r, const char *name) {
    for (int i = r->cell_count - 1; i >= 0; i--)
        if (!strcmp(r->cells[i].name, name)) return &r->cells[i];
    weft_cell_info *c = &r->cells[r->cell_count++];
    c->name = name;
    c->kind = -1;
    return c;
}

static void add_step(weft_model_report *r, const wefti_program *p, const wefti_step *s,
                     bool *counted) {
    const wefti_routine *routine = s->routine;
    weft_cell_info *c = cell_of(r, s->name);
    double flops = 0;
    for (int32_t k = 0; k < routine->code_count; k++) flops += routine->code[k].cost.flops;
    if (s->phase == WEFTI_FORWARD)
        c->forward_flops += flops;
    else
        c->backward_flops += flops;
    if (routine->frame_bytes > c->frame_bytes) c->frame_bytes = routine->frame_bytes;
    if (routine->saved_bytes > c->saved_bytes) c->saved_bytes = routine->saved_bytes;
    for (int32_t i = 0; i < p->routine_count && c->kind < 0; i++)
        if (p->routines[i] == routine) c->kind = i;
    for (int32_t a = 0; a < routine->inputs; a++)
        for (int32_t t = 0; t < p->tensor_count; t++)
            if (p->tensors[t].role == WEFTI_TENSOR_PARAM && s->args[a] == p->tensors[t].offset &&
                !counted[t]) {
                counted[t] = true;
                c->parameters += weft_desc_elems(&p->tensors[t].desc);
            }
}

/* Routines' numbers to 0, 1, 2... in order of appearance. */
static void number_kinds(weft_model_report *r) {
    for (int i = 0; i < r->cell_count; i++) {
        int same = -1;
        for (int j = 0; j < i && same < 0; j++)
            if (r->cells[j].kind / 1000000 == r->cells[i].kind + 1) same = j;
        int number = same < 0 ? r->kinds++ : r->cells[same].kind % 1000000;
        r->cells[i].kind = (r->cells[i].kind + 1) * 1000000 + number;
    }
    for (int i = 0; i < r->cell_count; i++) r->cells[i].kind %= 1000000;
}

static weft_status fill(wefti_training *t, weft_model_report *r) {
    const wefti_program *p = wefti_session_program(t->session, 0);
    bool *counted;
    int32_t steps = p->step_count[WEFTI_SECTION_FIRST];
    WEFT_NEW_ARRAY(r->cells, weft_cell_info, steps + 1);
    WEFT_NEW_ARRAY(counted, bool, p->tensor_count + 1);
    for (int32_t s = 0; s < steps; s++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][s];
        if (step->kind == WEFTI_STEP_CALL && step->phase != WEFTI_UPDATE)
            add_step(r, p, step, counted);
    }
    wefti_free(counted);
    number_kinds(r);
    weft_session_memory m = weft_session_memory_of(t->session);
    double micro = (double)t->job->train.accumulate;
    r->parameter_bytes = m.parameter_bytes;
    r->optimizer_bytes = m.optimizer_bytes;
    r->transient_bytes = m.transient_bytes;
    r->predicted_peak_bytes = m.predicted_peak_bytes;
    r->forward_flops = m.forward_flops * micro;
    r->backward_flops = m.backward_flops * micro;
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role == WEFTI_TENSOR_PARAM)
            r->parameters += weft_desc_elems(&p->tensors[i].desc);
    return wefti_session_largest(t->session, 6, &r->largest);
}

weft_status weft_job_report(const weft_job *job, weft_model_report **out) {
    weft_train_result unused = {0};
    weft_job unlimited = *job; /* a table of what does not fit is the more wanted */
    unlimited.device.memory_bytes = 0;
    weft_model_report *r;
    wefti_training *t;
    WEFT_NEW(r, weft_model_report);
    t = wefti_calloc(1, sizeof *t);
    weft_status status = t ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a report");
    if (t) {
        r->owner = t;
        t->job = &unlimited;
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
