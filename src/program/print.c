/* A rank's program as text for people. See program/print.h. */
#include "program/print.h"

#include <stdio.h>

#include "base/memory.h"
#include "base/text.h"

/* ---- the head ---- */

static void print_place(wefti_text *text, const wefti_program *p, const weft_plan *plan) {
    wefti_text_add(text, "rank %d of %d", p->rank, plan ? plan->devices : 1);
    if (!plan) {
        wefti_text_add(text, "\n");
        return;
    }
    int32_t at[WEFTI_MAX_AXES], size = wefti_mesh_size(&p->mesh);
    wefti_mesh_coordinates(&p->mesh, p->rank, at);
    for (int a = 0; a < p->mesh.axes; a++)
        wefti_text_add(text, "%s%s %d of %d", a ? ", " : ": ", p->mesh.axis[a].name, at[a],
                       p->mesh.axis[a].size);
    if (plan->pipeline.stages > 1)
        wefti_text_add(text, "; stage %d of %d, ranks %d to %d",
                       wefti_plan_stage_of_rank(plan, p->rank), plan->pipeline.stages,
                       p->mesh.first, p->mesh.first + size - 1);
    wefti_text_add(text, "\n");
}

static void print_memory(wefti_text *text, const wefti_program *p) {
    char a[32], b[32], c[32], d[32];
    wefti_text_add(text,
                   "peak memory %s (%lld bytes): %s stay, %s come and go; the program itself %s\n",
                   wefti_bytes_text(p->peak_bytes, a), (long long)p->peak_bytes,
                   wefti_bytes_text(p->persistent_bytes, b),
                   wefti_bytes_text(p->transient_bytes, c), wefti_bytes_text(p->program_bytes, d));
    for (int s = WEFTI_SPACE_DEVICE + 1; s < WEFTI_SPACES; s++) {
        const int64_t *tier = p->tier_bytes[s], all = tier[0] + tier[1];
        if (all)
            wefti_text_add(text, "on the %s %s (%lld bytes): %s stay, %s come and go\n",
                           wefti_space_text((wefti_space)s), wefti_bytes_text(all, a),
                           (long long)all, wefti_bytes_text(tier[WEFTI_PERSISTENT], b),
                           wefti_bytes_text(tier[WEFTI_TRANSIENT], c));
    }
}

static const char *kind_text(const wefti_step *step) {
    switch (step->kind) {
    case WEFTI_STEP_CALL:
        return step->phase == WEFTI_OTHER ? "move" : wefti_phase_text(step);
    case WEFTI_STEP_COPY:
        return "copy";
    case WEFTI_STEP_LOSS:
        return "loss";
    case WEFTI_STEP_POST:
        return "post";
    default:
        return "wait";
    }
}

/* Adds the step at the peak, as "(at once in backward of h.3, microbatch 2)". */
static void add_instant(wefti_text *text, const wefti_program *p) {
    if (p->peak_step < 0) return;
    const wefti_step *step = &p->steps[p->peak_section][p->peak_step];
    wefti_text_add(text, " (at once in %s of %s", kind_text(step), step->name);
    if (p->all_microbatches && p->peak_section == WEFTI_SECTION_FIRST)
        wefti_text_add(text, ", microbatch %d", step->micro);
    if (p->peak_section == WEFTI_SECTION_NEXT || p->peak_section == WEFTI_SECTION_LAST)
        wefti_text_add(text, ", %s", wefti_section_text(p->peak_section));
    wefti_text_add(text, ")");
}

weft_status wefti_program_largest(const wefti_program *p, int count, char **out) {
    wefti_text text = {0};
    char bytes[32];
    for (int i = 0; i < count && i < p->largest_count; i++)
        wefti_text_add(&text, "%s%s %s", i ? ", " : "", p->largest[i].name,
                       wefti_bytes_text(p->largest[i].bytes, bytes));
    add_instant(&text, p);
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a list of tensors");
    return WEFT_OK;
}

/* ---- the schedule ---- */

static void print_transfer(wefti_text *text, const wefti_step *step, const wefti_step_transfer *x) {
    char name[512], gives[32], gets[32], receives[32];
    const wefti_transfer *t = x->transfer;
    const char *reduction = wefti_reduction_text(t->reduction);
    wefti_text_add(text, "          %s%s%s of %s, ranks", wefti_transfer_kind_text(t->kind),
                   *reduction ? " " : "", reduction,
                   wefti_transfer_name(step, x->code, t, name, sizeof name));
    bool row = t->members > 4 && t->ranks[t->members - 1] - t->ranks[0] == t->members - 1;
    if (row) wefti_text_add(text, " %d to %d", t->ranks[0], t->ranks[t->members - 1]);
    for (int32_t m = 0; m < t->members && !row; m++) wefti_text_add(text, " %d", t->ranks[m]);
    wefti_text_add(text, ", %s: gives %s, gets %s, receives %s%s\n", weft_dtype_text(t->dtype),
                   wefti_bytes_text(x->gives, gives), wefti_bytes_text(x->gets, gets),
                   wefti_bytes_text(x->receives, receives),
                   x->joined ? "; together with the next" : "");
}

static int32_t cell_number(const wefti_cell_use *cells, int32_t count, const wefti_routine *r) {
    for (int32_t i = 0; i < count; i++)
        if (cells[i].routine == r) return i;
    return -1;
}

static void print_copy(wefti_text *text, const wefti_step *step, const wefti_program_move *copy) {
    char bytes[32];
    wefti_text_add(text, "          %s of ", wefti_copy_text(step));
    if (copy->rows) wefti_text_add(text, "up to %lld rows, ", (long long)copy->rows);
    wefti_text_add(text, "%s, %s\n", wefti_bytes_text(copy->bytes, bytes),
                   wefti_space_text(wefti_step_tier(step)));
}

static void print_section(wefti_text *text, const wefti_program *p, wefti_section s,
                          const wefti_cell_use *cells, int32_t cell_count) {
    if (!p->step_count[s]) return;
    const char *title = wefti_section_text(s);
    if (s == WEFTI_SECTION_FIRST && p->all_microbatches) title = "all microbatches";
    if (s == WEFTI_SECTION_FIRST && !p->all_microbatches && !p->step_count[WEFTI_SECTION_NEXT] &&
        !p->step_count[WEFTI_SECTION_LAST])
        title = "the batch";
    wefti_text_add(text, "\n%s:\n", title);
    const wefti_loop *loop = p->loops[s], *end = loop ? loop + p->loop_count[s] : NULL;
    for (int32_t i = 0; i < p->step_count[s]; i++) {
        const wefti_step *step = &p->steps[s][i];
        wefti_step_transfer x;
        while (loop != end && i == loop->first + loop->count) loop++;
        if (loop != end && i == loop->first)
            wefti_text_add(
                text, "  steps %d to %d run %d times, each time %d microbatch%s later:\n", i,
                i + loop->count - 1, loop->times, loop->micro, loop->micro == 1 ? "" : "es");
        wefti_text_add(text, "  %5d  %-8s  %s", i, kind_text(step), step->name);
        if (step->kind == WEFTI_STEP_CALL && step->space == WEFTI_SPACE_HOST)
            wefti_text_add(text, "  on the host");
        if (step->kind == WEFTI_STEP_CALL)
            wefti_text_add(text, "  [cell %d]", cell_number(cells, cell_count, step->routine));
        if (p->all_microbatches && s == WEFTI_SECTION_FIRST && step->kind != WEFTI_STEP_WAIT)
            wefti_text_add(text, "  microbatch %d", step->micro);
        if (step->parts > 1) wefti_text_add(text, "  part %d of %d", step->part + 1, step->parts);
        wefti_text_add(text, "\n");
        for (int32_t at = 0; wefti_step_transfer_next(p, step, &at, &x);)
            print_transfer(text, step, &x);
        const wefti_program_move *copy = wefti_step_copy(p, step);
        if (copy && step->kind == WEFTI_STEP_POST) print_copy(text, step, copy);
    }
}

/* ---- cells and tensors ---- */

static void print_layout(wefti_text *text, const wefti_program *p, const weft_desc *here,
                         const weft_desc *whole, const wefti_layout *layout) {
    wefti_text_add(text, "%s", wefti_desc_text(here).text);
    if (!layout) return;
    if (!wefti_desc_equal(here, whole)) wefti_text_add(text, " of %s", wefti_desc_text(whole).text);
    wefti_text_add(text, "  %s", wefti_layout_text(layout, &p->mesh).text);
}

static void print_cell(wefti_text *text, const wefti_program *p, const wefti_cell_use *use,
                       int32_t number) {
    const wefti_routine *r = use->routine;
    char saved[32], frame[32];
    int32_t kernels = 0, transfers = 0;
    for (int32_t k = 0; k < r->code_count; k++) {
        kernels += r->code[k].kernel != NULL;
        transfers += r->code[k].transfer >= 0;
    }
    wefti_text_add(text, "\ncell %d: %s %s", number, use->first->name,
                   wefti_phase_text(use->first));
    if (use->calls > 1) wefti_text_add(text, ", called %d times", use->calls);
    wefti_text_add(text, "; %d kernel%s, %d transfer%s, %.3g GFLOP, saves %s, works in %s\n",
                   kernels, kernels == 1 ? "" : "s", transfers, transfers == 1 ? "" : "s",
                   use->flops / 1e9, wefti_bytes_text(r->saved_bytes, saved),
                   wefti_bytes_text(r->frame_bytes, frame));
    for (int32_t a = 0; a < r->inputs + r->outputs; a++) {
        wefti_operand_info info = wefti_cell_operand(p, use, a);
        if (!info.name) continue;
        wefti_text_add(text, "    %-5s %s  ", a < r->inputs ? "reads" : "makes", info.name);
        print_layout(text, p, &info.here, &info.whole, info.layout);
        wefti_text_add(text, "\n");
    }
}

/* The first element of the slice in the whole tensor. */
static void print_begin(wefti_text *text, const wefti_program *p, const wefti_tensor *t) {
    wefti_region box = {{0}, {0}};
    wefti_layout_region(&t->layout, &p->mesh, &t->whole, p->rank, &box);
    wefti_text_add(text, "  from (");
    for (int d = 0; d < t->whole.rank; d++)
        wefti_text_add(text, "%s%lld", d ? ", " : "", (long long)box.begin[d]);
    wefti_text_add(text, ")");
}

static void print_tensors(wefti_text *text, const wefti_program *p, const weft_plan *plan) {
    wefti_text_add(text, "\ntensors:\n");
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        char bytes[32];
        wefti_text_add(text, "  %-9s  %s", wefti_tensor_role_text(t->role), t->name);
        if (t->microbatches > 1)
            wefti_text_add(text, " of each of %d microbatches", t->microbatches);
        wefti_text_add(text, "  ");
        print_layout(text, p, &t->desc, &t->whole, plan ? &t->layout : NULL);
        if (plan && !wefti_desc_equal(&t->desc, &t->whole)) print_begin(text, p, t);
        wefti_text_add(text, "  %s\n", wefti_bytes_text(weft_desc_bytes(&t->desc), bytes));
    }
}

weft_status wefti_program_print(const wefti_program *p, const weft_plan *plan, char **out) {
    wefti_text text = {0};
    wefti_cell_use *cells;
    int32_t count;
    WEFT_TRY(wefti_cells_used(p, &cells, &count));
    print_place(&text, p, plan);
    print_memory(&text, p);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        print_section(&text, p, (wefti_section)s, cells, count);
    for (int32_t i = 0; i < count; i++) print_cell(&text, p, &cells[i], i);
    print_tensors(&text, p, plan);
    wefti_free(cells);
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a program's text");
    return WEFT_OK;
}
