/* What the answer says about each unique cell: its splits, stages, seconds and bytes, and what
 * other choices for it alone would take. From the tables of the search. */
#include <stdio.h>
#include <string.h>

#include "schedule/schedule.h"
#include "search/joint/parts.h"

/* "h.12.attn" as "h.*.attn". */
static void pattern_of(const char *name, char *out, size_t room) {
    size_t used = 0;
    for (bool begins = true; *name && used + 1 < room; begins = name[-1] == '.') {
        const size_t digits = begins ? strspn(name, "0123456789") : 0;
        if (digits && (name[digits] == '.' || !name[digits])) {
            out[used++] = '*';
            name += digits;
        } else {
            out[used++] = *name++;
        }
    }
    out[used] = '\0';
}

static int parts_of_name(const char *name) {
    int parts = 1;
    for (; *name; name++) parts += *name == '.';
    return parts;
}

/* Whether a strategy speaks of ops in the cell: its first parts match the cell's name. */
static bool speaks_of(const char *match, const char *cell) {
    char begin[256];
    size_t used = 0;
    int parts = parts_of_name(cell);
    if (*match == '*') return true;
    for (; match[used] && match[used] != ':' && used + 1 < sizeof begin; used++) {
        if (match[used] == '.' && --parts == 0) break;
        begin[used] = match[used];
    }
    begin[used] = '\0';
    return wefti_glob_match(begin, cell);
}

static weft_status find_splits(const weft_plan *plan, const char *cell, char **out) {
    wefti_text text = {0};
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        const wefti_strategy *s = &plan->strategies[i];
        if (!speaks_of(s->match, cell)) continue;
        wefti_text_add(&text, "%s%s ", text.used ? ", " : "", s->match);
        wefti_split_print(plan, s, &text);
    }
    if (!text.used) wefti_text_add(&text, "the batch only");
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a report");
    return WEFT_OK;
}

/* The cell of this name and these seconds in the list, NULL: a new one. */
static weft_cell_report *known(wefti_joint_cells *all, const char *name,
                               const wefti_joint_call *call) {
    for (int i = 0; i < all->count; i++) {
        const weft_cell_choice *own = &all->cells[i].choices[0];
        if (!strcmp(all->cells[i].name, name) && own->forward_seconds == call->forward &&
            own->backward_seconds == call->backward)
            return &all->cells[i];
    }
    return NULL;
}

static weft_cell_choice choice_of(const wefti_joint_call *call, const char *name) {
    weft_cell_choice c = {.forward_seconds = call->forward,
                          .backward_seconds = call->backward,
                          .kept_bytes = call->saved + call->kept,
                          .working_bytes = call->frame};
    (void)snprintf(c.name, sizeof c.name, "%s", name);
    return c;
}

static weft_status add_call(wefti_joint *j, const wefti_joint_work *work, int32_t call,
                            int32_t stage, const weft_plan *plan, wefti_joint_cells *out) {
    char full[256], name[128];
    const int32_t k = wefti_joint_short_call(&j->shape, call);
    pattern_of(wefti_joint_call_name(&j->shape, call, full), name, sizeof name);
    weft_cell_report *cell = known(out, name, &work->calls[k]);
    if (!cell) {
        int64_t count = out->count;
        WEFT_TRY(WEFT_GROW(out->cells, count, out->cap));
        cell = &out->cells[out->count++];
        *cell = (weft_cell_report){.first_stage = stage, .choice_count = 1, .call = k};
        (void)snprintf(cell->name, sizeof cell->name, "%s", name);
        cell->choices[0] = choice_of(&work->calls[k], "plan");
        WEFT_TRY(find_splits(plan, full, &cell->splits));
    }
    cell->calls++;
    cell->last_stage = stage > cell->last_stage ? stage : cell->last_stage;
    cell->first_stage = stage < cell->first_stage ? stage : cell->first_stage;
    return WEFT_OK;
}

/* The cells with other degrees, each by itself. */
static weft_status add_choice(wefti_joint *j, const wefti_degrees *d, const char *name,
                              wefti_joint_cells *out) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(j, d, &work));
    if (!work->legal) return WEFT_OK;
    for (int i = 0; i < out->count; i++) {
        weft_cell_report *cell = &out->cells[i];
        if (cell->choice_count < WEFT_CELL_CHOICES)
            cell->choices[cell->choice_count++] = choice_of(&work->calls[cell->call], name);
    }
    return WEFT_OK;
}

static weft_status add_choices(wefti_joint *j, const wefti_degrees *d, wefti_joint_cells *out) {
    static const char *const modes[] = {
#define CELLS_MODE(name, text) [WEFT_RECOMPUTE_##name] = "recompute=" text,
        WEFT_RECOMPUTE_LIST(CELLS_MODE)
#undef CELLS_MODE
    };
    for (int m = 0; m < (int)(sizeof modes / sizeof *modes); m++) {
        wefti_degrees other = *d;
        other.recompute = (weft_recompute)m;
        if (other.recompute != d->recompute) WEFT_TRY(add_choice(j, &other, modes[m], out));
    }
    /* Half and twice as many devices for tensors; replicas make up for them. */
    const int32_t tensor[] = {d->tensor / 2, d->tensor * 2};
    for (int i = 0; i < 2; i++) {
        wefti_degrees other = *d;
        char name[32];
        const int32_t both = d->data * d->tensor;
        if (!tensor[i] || (i == 0 && d->tensor % 2) || both % tensor[i]) continue;
        other.tensor = tensor[i];
        other.data = both / tensor[i];
        other.sequence = d->sequence && other.tensor > 1;
        const int64_t samples = j->problem->source.batch / other.microbatches;
        if (samples % ((int64_t)other.data * other.expert)) continue;
        (void)snprintf(name, sizeof name, "tp=%d dp=%d", other.tensor, other.data);
        WEFT_TRY(add_choice(j, &other, name, out));
    }
    return WEFT_OK;
}

weft_status wefti_joint_cells_find(wefti_joint *j, const wefti_degrees *d, const weft_plan *plan,
                                   wefti_joint_cells *out) {
    const int32_t calls = wefti_joint_calls(&j->shape), parts = d->stages * d->chunks;
    const wefti_joint_work *work;
    int32_t *part_of;
    WEFT_TRY(wefti_joint_work_find(j, d, &work));
    if (!work->legal) return WEFT_OK;
    WEFT_NEW_ARRAY(part_of, int32_t, calls + 1);
    bool divided = parts == 1 || wefti_joint_divide(j, work, parts, part_of);
    weft_status status = WEFT_OK;
    for (int32_t k = 0; k < calls && divided && status >= 0; k++) {
        int32_t stage = 0, chunk = 0;
        if (parts > 1) wefti_schedule_place(d->schedule, d->stages, part_of[k], &stage, &chunk);
        status = add_call(j, work, k, stage, plan, out);
    }
    wefti_free(part_of);
    if (status < 0 || !j->known || !j->scalable) return status;
    return add_choices(j, d, out);
}

void wefti_joint_cells_free(wefti_joint_cells *cells) {
    for (int i = 0; i < cells->count; i++) wefti_free(cells->cells[i].splits);
    wefti_free(cells->cells);
    *cells = (wefti_joint_cells){0};
}
