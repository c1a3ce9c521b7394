/* The table of `weft model`: a job's cells, from the program that the job would run. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "program/print.h"
#include "search/search.h"
#include "setup/programs.h"

/* The source of a row of the table. */
typedef struct report_row {
    const wefti_program *program; /* of the first device that runs the cell */
    const wefti_step *step;       /* that computes its results */
    const weft_node *call;
} report_row;

/* State of the walk over the steps of a device. */
typedef struct table {
    weft_model_report *report;
    const weft_graph *graph;
    report_row *rows; /* beside the report's cells */
    const wefti_program *program;
    bool *counted;    /* beside the program's tensors */
    int32_t routines; /* of the programs walked before */
} table;

static const weft_node *call_named(const weft_graph *g, const char *name) {
    for (int64_t k = 0; k < g->root->node_count; k++)
        if (!strcmp(g->root->nodes[k].scope, name)) return &g->root->nodes[k];
    return NULL;
}

/* A call's forward and backward steps share their name, and the backward pass runs in reverse.
 * NULL: the step belongs to no cell. */
static weft_cell_info *cell_of(table *t, const wefti_step *step, int *near) {
    weft_model_report *r = t->report;
    for (int i = *near; i >= 0 && i < r->cell_count && i > *near - 2; i--)
        if (!strcmp(r->cells[i].name, step->name)) return &r->cells[*near = i];
    for (int i = r->cell_count - 1; i >= 0; i--)
        if (!strcmp(r->cells[i].name, step->name)) return &r->cells[*near = i];
    const weft_node *call = call_named(t->graph, step->name);
    if (!call) return NULL;
    weft_cell_info *c = &r->cells[ *near = r->cell_count++];
    c->name = step->name;
    c->kind = -1;
    t->rows[*near] = (report_row){t->program, step, call};
    return c;
}

/* Cells of one structure on different devices count as one kind. */
static int kind_of(const table *t, const report_row *of, const wefti_routine *routine) {
    for (int i = 0; i < t->report->cell_count; i++)
        if (t->rows[i].program != of->program && t->rows[i].call->callee == of->call->callee)
            return t->report->cells[i].kind;
    for (int32_t i = 0; i < of->program->routine_count; i++)
        if (of->program->routines[i] == routine) return t->routines + i;
    return -1;
}

static void add_step(table *t, const wefti_step *s, int *near) {
    const wefti_routine *routine = s->routine;
    weft_cell_info *c = cell_of(t, s, near);
    double flops = 0;
    if (!c) return;
    for (int32_t k = 0; k < routine->code_count; k++) flops += routine->code[k].cost.flops;
    if (s->phase == WEFTI_FORWARD)
        c->forward_flops += flops;
    else
        c->backward_flops += flops;
    if (routine->frame_bytes > c->frame_bytes) c->frame_bytes = routine->frame_bytes;
    if (routine->saved_bytes > c->saved_bytes) c->saved_bytes = routine->saved_bytes;
    if (c->kind < 0) c->kind = kind_of(t, &t->rows[*near], routine);
    for (int32_t a = 0; a < routine->inputs; a++) {
        int32_t param = s->params[a];
        if (param < 0 || t->counted[param]) continue;
        t->counted[param] = true;
        c->parameters += weft_desc_elems(&t->program->tensors[param].whole);
        c->device_bytes += weft_desc_bytes(&t->program->tensors[param].desc);
    }
}

/* Work of a whole body. */
static double flops_of(const weft_body *body) {
    double flops = 0;
    for (int64_t k = 0; k < body->node_count; k++) {
        wefti_cost cost;
        wefti_node_cost(&body->nodes[k], &cost);
        flops += cost.flops;
    }
    return flops;
}

/* A call with its two passes fused into one. Its forward work is the work of its cell. If devices
 * share the work, it is the same share of the cell's work as of the whole. */
static void part_fused(const table *t) {
    for (int i = 0; i < t->report->cell_count; i++) {
        weft_cell_info *c = &t->report->cells[i];
        const report_row *of = &t->rows[i];
        const weft_body *whole = NULL;
        wefti_cost forward;
        if (c->forward_flops > 0) continue;
        wefti_node_cost(of->call, &forward);
        if (of->program->partition &&
            wefti_partition_of_local(of->program->partition, of->step->routine->unfused, &whole)) {
            double all = flops_of(whole);
            forward.flops = all > 0 ? c->backward_flops * (forward.flops / all) : 0;
        }
        if (forward.flops > c->backward_flops) continue;
        c->forward_flops = forward.flops;
        c->backward_flops -= forward.flops;
    }
}

/* How a cell's first result is placed on the devices that run the cell. */
static void tell_layout(const table *t, int cell) {
    const report_row *of = &t->rows[cell];
    weft_cell_info *c = &t->report->cells[cell];
    wefti_cell_use use = {.routine = of->step->routine, .first = of->step};
    if (use.routine->outputs == 0) return;
    wefti_operand_info info = wefti_cell_operand(of->program, &use, use.routine->inputs);
    if (info.layout)
        (void)snprintf(c->layout, sizeof c->layout, "%s",
                       wefti_layout_text(info.layout, &of->program->mesh).text);
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

static weft_status walk(table *t, const wefti_program *p) {
    int near = t->report->cell_count;
    t->program = p;
    WEFT_NEW_ARRAY(t->counted, bool, p->tensor_count + 1);
    for (int32_t s = 0; s < p->step_count[WEFTI_SECTION_FIRST]; s++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][s];
        bool once = step->part == 0 && (!p->all_microbatches || step->micro == 0);
        bool pass = step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD;
        if (step->kind == WEFTI_STEP_CALL && pass && once) add_step(t, step, &near);
    }
    wefti_free(t->counted);
    t->routines += p->routine_count;
    return WEFT_OK;
}

/* Sorts rows into the model's order, since stages of a pipeline were walked one after the other. */
static void sort_cells(table *t) {
    weft_cell_info *cells = t->report->cells;
    for (int i = 1; i < t->report->cell_count; i++)
        for (int k = i; k > 0 && t->rows[k].call < t->rows[k - 1].call; k--) {
            weft_cell_info cell = cells[k];
            report_row of = t->rows[k];
            cells[k] = cells[k - 1];
            t->rows[k] = t->rows[k - 1];
            cells[k - 1] = cell;
            t->rows[k - 1] = of;
        }
}

/* Memory of a class's ranks. */
static void add_memory(weft_model_report *r, const wefti_rank_class *c, int32_t graphs,
                       int32_t microbatches, int64_t *out_peak) {
    const wefti_program *p = c->programs[0];
    int64_t parameters = 0, optimizer = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const int64_t bytes = weft_desc_bytes(&p->tensors[i].desc);
        if (p->tensors[i].role == WEFTI_TENSOR_PARAM) parameters += bytes;
        if (p->tensors[i].role == WEFTI_TENSOR_OPTIMIZER) optimizer += bytes;
    }
    wefti_keep_most(&r->parameter_bytes, parameters);
    wefti_keep_most(&r->optimizer_bytes, optimizer);
    wefti_keep_most(&r->transient_bytes, p->transient_bytes);
    int64_t copies = 0;
    for (int32_t i = 0; i < p->copy_count; i++)
        if (p->copies[i].tensor < 0) copies += weft_desc_bytes(&p->copies[i].desc);
    wefti_keep_most(&r->copy_bytes, copies);
    const wefti_footprint all = wefti_programs_footprint(c->programs, graphs);
    *out_peak = wefti_footprint_bytes(all, WEFTI_SPACE_DEVICE);
    wefti_keep_most(&r->host_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_HOST));
    wefti_keep_most(&r->disk_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_DISK));
    int64_t moved[WEFTI_SPACES];
    wefti_program_moved(p, microbatches, moved);
    wefti_keep_most(&r->host_moved_bytes, moved[WEFTI_SPACE_HOST]);
    wefti_keep_most(&r->disk_moved_bytes, moved[WEFTI_SPACE_DISK]);
    wefti_keep_most(&r->server_moved_bytes, moved[WEFTI_SPACE_SERVER]);
    int64_t programs = 0;
    for (int32_t g = 0; g < graphs; g++) programs += c->programs[g]->program_bytes;
    wefti_keep_most(&r->predicted_peak_bytes, *out_peak);
    wefti_keep_most(&r->program_bytes, programs);
}

static weft_status fill_memory(const wefti_job_programs *p, weft_model_report *r) {
    int64_t *peaks;
    WEFT_NEW_ARRAY(peaks, int64_t, p->classes->count);
    for (int32_t c = 0; c < p->classes->count; c++)
        add_memory(r, &p->classes->classes[c], p->graphs, p->microbatches, &peaks[c]);
    double served = 0;
    for (int rank = 0; rank < r->devices; rank++) {
        const int32_t c = p->classes->class_of[rank];
        r->peaks[rank] = peaks[c];
        served += wefti_program_server_share(p->classes->classes[c].programs[0]);
    }
    r->server_bytes = (int64_t)(served + 0.5);
    wefti_free(peaks);
    return WEFT_OK;
}

/* Devices of one mesh run the same cells, so this looks at the first device of each mesh. */
static weft_status walk_devices(const wefti_job_programs *programs, table *all) {
    weft_model_report *r = all->report;
    for (int32_t c = 0; c < programs->classes->count; c++) {
        const wefti_program *p = programs->classes->classes[c].programs[0];
        if (p->rank == p->mesh.first) WEFT_TRY(walk(all, p));
    }
    sort_cells(all);
    WEFT_TRY(number_kinds(r, all->routines));
    part_fused(all);
    for (int i = 0; i < r->cell_count; i++) {
        weft_cell_info *c = &r->cells[i];
        int32_t devices = wefti_mesh_size(&all->rows[i].program->mesh);
        c->device_bytes += c->saved_bytes;
        r->forward_flops += c->forward_flops * devices;
        r->backward_flops += c->backward_flops * devices;
        tell_layout(all, i);
    }
    return WEFT_OK;
}

static weft_status fill_cells(const wefti_job_programs *p, weft_model_report *r) {
    table all = {.report = r, .graph = p->built.model.graph};
    const int64_t calls = all.graph->root->node_count;
    WEFT_NEW_ARRAY(r->cells, weft_cell_info, calls + 1);
    WEFT_NEW_ARRAY(all.rows, report_row, calls + 1);
    weft_status status = walk_devices(p, &all);
    wefti_free(all.rows);
    return status;
}

/* All ranks decide alike, and no stage has rows where another has whole tables. */
static weft_status tell_rows(const wefti_program *p, char **out) {
    static const char *const forms[] = {
#define WEFTI_ROWS_FORM(name, text) text,
        WEFTI_ROWS_FORMS(WEFTI_ROWS_FORM)
#undef WEFTI_ROWS_FORM
    };
    wefti_text text = {0};
    bool any = false;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].rows == WEFTI_ROWS_UNASKED) continue;
        wefti_text_add(&text, "%s is updated %s\n", p->tensors[i].name, forms[p->tensors[i].rows]);
        any = true;
    }
    if (!any) return WEFT_OK;
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a report");
    return WEFT_OK;
}

static weft_status fill(wefti_job_programs *p, weft_model_report *r) {
    const weft_body *root = p->built.model.graph->root;
    const double micro = (double)p->built.batch.microbatches;
    r->devices = p->devices;
    WEFT_NEW_ARRAY(r->peaks, int64_t, r->devices);
    WEFT_TRY(wefti_job_programs_classes(p));
    WEFT_TRY(wefti_job_programs_within(p));
    WEFT_TRY(fill_cells(p, r));
    WEFT_TRY(fill_memory(p, r));
    r->forward_flops *= micro;
    r->backward_flops *= micro;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        r->parameters += weft_desc_elems(&v->desc);
        if (!v->frozen) r->trained += weft_desc_elems(&v->desc);
    }
    WEFT_TRY(tell_rows(p->classes->classes[0].programs[0], &r->rows));
    int32_t fused[3];
    wefti_job_programs_fused(p, fused);
    if (p->plan)
        WEFT_TRY(wefti_plan_unmatched(p->plan, p->built.model.graph, fused, &r->unmatched));
    return wefti_program_largest(wefti_job_programs_largest(p, 0), 6, &r->largest);
}

weft_status weft_job_report(const weft_job *job, weft_model_report **out) {
    weft_model_report *r;
    WEFT_NEW(r, weft_model_report);
    wefti_job_programs *p = wefti_calloc(1, sizeof *p);
    weft_status status = p ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a report");
    r->owner = p; /* names in the report belong to the programs */
    if (status >= 0) status = wefti_job_programs_open(job, p);
    if (status >= 0) status = fill(p, r);
    if (status < 0) {
        weft_model_report_free(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}

void weft_model_report_free(weft_model_report *r) {
    if (!r) return;
    if (r->owner) wefti_job_programs_close(r->owner);
    wefti_free(r->owner);
    wefti_free(r->cells);
    wefti_free(r->peaks);
    wefti_free(r->largest);
    wefti_free(r->rows);
    wefti_free(r->unmatched);
    wefti_free(r);
}
