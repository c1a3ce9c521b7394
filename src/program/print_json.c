/* A rank's program as one JSON object. See program/print.h. */
#include <stdio.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "program/print.h"

typedef struct print_json_writer {
    wefti_text text;
    bool first; /* of its object or array */
} print_json_writer;

static void comma(print_json_writer *w, const char *key) {
    if (!w->first) wefti_text_add(&w->text, ", ");
    w->first = false;
    if (key) wefti_text_add(&w->text, "\"%s\": ", key);
}
static void open(print_json_writer *w, const char *key, char bracket) {
    comma(w, key);
    wefti_text_add(&w->text, "%c", bracket);
    w->first = true;
}
static void close(print_json_writer *w, char bracket) {
    wefti_text_add(&w->text, "%c", bracket);
    w->first = false;
}
static void add_text(print_json_writer *w, const char *key, const char *value) {
    comma(w, key);
    wefti_json_quote(&w->text, value);
}
static void add_int(print_json_writer *w, const char *key, int64_t value) {
    comma(w, key);
    wefti_text_add(&w->text, "%lld", (long long)value);
}
static void add_shape(print_json_writer *w, const char *key, const weft_desc *desc) {
    open(w, key, '[');
    for (int d = 0; d < desc->rank; d++) add_int(w, NULL, desc->shape[d]);
    close(w, ']');
}

static void add_mesh(print_json_writer *w, const wefti_program *p, const weft_plan *plan) {
    int32_t at[WEFTI_MAX_AXES];
    add_int(w, "rank", p->rank);
    add_int(w, "devices", plan ? plan->devices : 1);
    add_int(w, "stage", plan ? wefti_plan_stage_of_rank(plan, p->rank) : 0);
    add_int(w, "stages", plan ? plan->pipeline.stages : 1);
    wefti_mesh_coordinates(&p->mesh, p->rank, at);
    open(w, "mesh", '{');
    for (int a = 0; plan && a < p->mesh.axes; a++)
        add_int(w, p->mesh.axis[a].name, p->mesh.axis[a].size);
    close(w, '}');
    open(w, "coordinates", '{');
    for (int a = 0; plan && a < p->mesh.axes; a++) add_int(w, p->mesh.axis[a].name, at[a]);
    close(w, '}');
    add_int(w, "peak_bytes", p->peak_bytes);
    add_int(w, "persistent_bytes", p->persistent_bytes);
    add_int(w, "transient_bytes", p->transient_bytes);
    add_int(w, "program_bytes", p->program_bytes);
    for (int s = WEFTI_SPACE_DEVICE + 1; s < WEFTI_SPACES; s++) {
        static const char *const keys[WEFTI_SPACES][WEFTI_TERMS] = {
            [WEFTI_SPACE_HOST] = {"host_persistent_bytes", "host_transient_bytes"},
            [WEFTI_SPACE_DISK] = {"disk_persistent_bytes", "disk_transient_bytes"},
            [WEFTI_SPACE_SERVER] = {"server_persistent_bytes", "server_transient_bytes"}};
        const int64_t *tier = p->tier_bytes[s];
        for (int t = 0; t < WEFTI_TERMS && tier[0] + tier[1]; t++) add_int(w, keys[s][t], tier[t]);
    }
}

static void add_transfer(print_json_writer *w, const wefti_step *step,
                         const wefti_step_transfer *x) {
    char name[512];
    const wefti_transfer *t = x->transfer;
    open(w, NULL, '{');
    add_text(w, "kind", wefti_transfer_kind_text(t->kind));
    add_text(w, "name", wefti_transfer_name(step, x->code, t, name, sizeof name));
    add_text(w, "reduction", t->reduction ? wefti_reduction_text(t->reduction) : "none");
    add_text(w, "dtype", weft_dtype_text(t->dtype));
    open(w, "ranks", '[');
    for (int32_t m = 0; m < t->members; m++) add_int(w, NULL, t->ranks[m]);
    close(w, ']');
    add_int(w, "gives_bytes", x->gives);
    add_int(w, "gets_bytes", x->gets);
    add_int(w, "received_bytes", x->receives);
    comma(w, "joined");
    wefti_text_add(&w->text, x->joined ? "true" : "false");
    close(w, '}');
}

static void add_step(print_json_writer *w, const wefti_program *p, const wefti_step *step,
                     const wefti_cell_use *cells, int32_t count) {
    static const char *const kinds[] = {"call", "copy", "loss", "post", "wait"};
    wefti_step_transfer x;
    int32_t cell = 0;
    open(w, NULL, '{');
    add_text(w, "kind", kinds[step->kind]);
    add_text(w, "name", step->name);
    if (step->kind == WEFTI_STEP_CALL) {
        while (cell < count && cells[cell].routine != step->routine) cell++;
        add_text(w, "phase", wefti_phase_text(step));
        add_int(w, "cell", cell);
        if (step->space == WEFTI_SPACE_HOST) add_text(w, "on", "host");
        add_int(w, "part", step->part);
        add_int(w, "parts", step->parts);
    }
    add_int(w, "microbatch", step->micro);
    const wefti_program_move *copy = wefti_step_copy(p, step);
    if (copy) {
        add_text(w, "move", wefti_copy_text(step));
        add_text(w, "tier", wefti_space_text(wefti_step_tier(step)));
        add_int(w, "bytes", copy->bytes);
        if (copy->rows) add_int(w, "rows", copy->rows);
    }
    open(w, "transfers", '[');
    for (int32_t at = 0; wefti_step_transfer_next(p, step, &at, &x);) add_transfer(w, step, &x);
    close(w, ']');
    close(w, '}');
}

static void add_loop(print_json_writer *w, const wefti_loop *loop) {
    open(w, NULL, '{');
    add_int(w, "first", loop->first);
    add_int(w, "count", loop->count);
    add_int(w, "times", loop->times);
    add_int(w, "microbatches", loop->micro);
    close(w, '}');
}

static void add_place(print_json_writer *w, const wefti_program *p, const weft_desc *here,
                      const weft_desc *whole, const wefti_layout *layout) {
    add_text(w, "dtype", weft_dtype_text(here->dtype));
    add_shape(w, "shape", here);
    add_shape(w, "whole", whole);
    comma(w, "layout");
    if (layout)
        wefti_json_quote(&w->text, wefti_layout_text(layout, &p->mesh).text);
    else
        wefti_text_add(&w->text, "null");
    add_int(w, "bytes", weft_desc_bytes(here));
}

static void add_cell(print_json_writer *w, const wefti_program *p, const wefti_cell_use *use) {
    const wefti_routine *r = use->routine;
    open(w, NULL, '{');
    add_text(w, "name", use->first->name);
    add_text(w, "phase", wefti_phase_text(use->first));
    add_int(w, "calls", use->calls);
    comma(w, "flops");
    wefti_json_real(&w->text, use->flops);
    add_int(w, "saved_bytes", r->saved_bytes);
    add_int(w, "frame_bytes", r->frame_bytes);
    for (int32_t a = 0; a <= r->inputs + r->outputs; a++) {
        if (a == 0) open(w, "inputs", '[');
        if (a == r->inputs) {
            close(w, ']');
            open(w, "outputs", '[');
        }
        if (a == r->inputs + r->outputs) break;
        wefti_operand_info info = wefti_cell_operand(p, use, a);
        if (!info.name) continue;
        open(w, NULL, '{');
        add_text(w, "name", info.name);
        add_place(w, p, &info.here, &info.whole, info.layout);
        close(w, '}');
    }
    close(w, ']');
    close(w, '}');
}

/* The first element of the slice in the whole tensor. */
static void add_begin(print_json_writer *w, const wefti_program *p, const weft_plan *plan,
                      const wefti_tensor *t) {
    wefti_region box = {{0}, {0}};
    if (plan) wefti_layout_region(&t->layout, &p->mesh, &t->whole, p->rank, &box);
    open(w, "begin", '[');
    for (int d = 0; d < t->whole.rank; d++) add_int(w, NULL, box.begin[d]);
    close(w, ']');
}

static void add_tensor(print_json_writer *w, const wefti_program *p, const weft_plan *plan,
                       const wefti_tensor *t) {
    open(w, NULL, '{');
    add_text(w, "name", t->name);
    add_text(w, "role", wefti_tensor_role_text(t->role));
    if (t->role == WEFTI_TENSOR_INPUT) {
        add_int(w, "microbatches", t->microbatches);
        add_int(w, "stride_bytes", t->stride);
    }
    add_place(w, p, &t->desc, &t->whole, plan ? &t->layout : NULL);
    add_text(w, "arena", wefti_location_term(t->home) ? "transient" : "persistent");
    add_int(w, "offset", wefti_location_offset(t->home));
    if (wefti_location_space(t->home) != WEFTI_SPACE_DEVICE)
        add_text(w, "space", wefti_space_text(wefti_location_space(t->home)));
    if (wefti_location_exists(t->copy)) add_int(w, "copy_offset", wefti_location_offset(t->copy));
    add_begin(w, p, plan, t);
    close(w, '}');
}

weft_status wefti_program_json(const wefti_program *p, const weft_plan *plan, char **out) {
    static const char *const sections[] = {"first", "next", "last", "norm", "update"};
    print_json_writer w = {.first = true};
    wefti_cell_use *cells;
    int32_t count;
    WEFT_TRY(wefti_cells_used(p, &cells, &count));
    open(&w, NULL, '{');
    add_mesh(&w, p, plan);
    open(&w, "schedule", '{');
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        open(&w, sections[s], '[');
        for (int32_t i = 0; i < p->step_count[s]; i++)
            add_step(&w, p, &p->steps[s][i], cells, count);
        close(&w, ']');
    }
    close(&w, '}');
    open(&w, "loops", '{');
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        open(&w, sections[s], '[');
        for (int32_t i = 0; i < p->loop_count[s]; i++) add_loop(&w, &p->loops[s][i]);
        close(&w, ']');
    }
    close(&w, '}');
    open(&w, "cells", '[');
    for (int32_t i = 0; i < count; i++) add_cell(&w, p, &cells[i]);
    close(&w, ']');
    open(&w, "tensors", '[');
    for (int32_t i = 0; i < p->tensor_count; i++) add_tensor(&w, p, plan, &p->tensors[i]);
    close(&w, ']');
    close(&w, '}');
    wefti_text_add(&w.text, "\n");
    wefti_free(cells);
    *out = wefti_text_take(&w.text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a program's text");
    return WEFT_OK;
}
