/* Rows of a record: see rows.h. */
#include "train/record/rows.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cost/cost.h"

bool wefti_run_record_same(const wefti_run_record_row *a, const wefti_run_record_row *b) {
    return a->kind == b->kind && a->product == b->product && a->arithmetic == b->arithmetic &&
           a->members == b->members && a->flops == b->flops && a->bytes == b->bytes &&
           !strcmp(a->name, b->name);
}

weft_status wefti_run_record_add(wefti_run_record_rows *rows, const wefti_run_record_row *row) {
    for (int64_t i = 0; i < rows->count; i++) {
        wefti_run_record_row *same = &rows->items[i];
        if (!wefti_run_record_same(same, row)) continue;
        same->calls += row->calls;
        same->seconds += row->seconds;
        same->processor += row->processor;
        same->under_way += row->under_way;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(rows->items, rows->count, rows->cap));
    rows->items[rows->count++] = *row;
    return WEFT_OK;
}

void wefti_run_record_rows_free(wefti_run_record_rows *rows) {
    wefti_free(rows->items);
    *rows = (wefti_run_record_rows){0};
}

/* ---- from programs ---- */

static wefti_run_record_row row_of_kernel(const wefti_instruction *x) {
    if (!x->node)
        return (wefti_run_record_row){.name = x->add ? "add" : "copy",
                                      .bytes = 2 * (double)x->bytes};
    return (wefti_run_record_row){.name = x->node->op->name,
                                  .product = x->node->op->work == WEFTI_WORK_PRODUCT,
                                  .arithmetic = wefti_node_arithmetic(x->node),
                                  .flops = x->cost.flops,
                                  .bytes = x->cost.bytes};
}

static wefti_run_record_row row_of_transfer(const wefti_transfer *t) {
    return (wefti_run_record_row){.name = wefti_transfer_kind_text(t->kind),
                                  .kind = WEFTI_RUN_RECORD_TRANSFER,
                                  .members = t->members,
                                  .bytes = (double)wefti_transfer_bytes(t)};
}

static wefti_run_record_row row_of_copy(const wefti_program *p, const wefti_step *step) {
    static const char *const names[WEFTI_SPACES][2] = {
        [WEFTI_SPACE_HOST] = {"store to host", "fetch from host"},
        [WEFTI_SPACE_DISK] = {"store to disk", "fetch from disk"},
        [WEFTI_SPACE_SERVER] = {"push to server", "pull from server"}};
    return (wefti_run_record_row){.name = names[wefti_step_tier(step)][wefti_step_fetches(step)],
                                  .kind = WEFTI_RUN_RECORD_COPY,
                                  .bytes = (double)p->moves[step->move].bytes};
}

typedef struct row_walk {
    const wefti_program *program;
    const wefti_machine_model *machine;
    int32_t ranks;
    double sharing;
    wefti_run_record_rows *out;
} row_walk;

static weft_status add_kernel(const row_walk *p, wefti_space space, const wefti_instruction *x,
                              double calls) {
    wefti_run_record_row row = row_of_kernel(x);
    row.calls = calls;
    const double once = x->node ? wefti_node_model_seconds(p->machine, space, x->node, &x->cost)
                                : wefti_copy_seconds(p->machine, (double)x->bytes);
    row.seconds = calls * p->sharing * once;
    return wefti_run_record_add(p->out, &row);
}

static weft_status add_transfer(const row_walk *p, int32_t index, double calls) {
    const wefti_transfer *t = wefti_partition_transfer(p->program->partition, index);
    const wefti_mesh *mesh = &p->program->mesh;
    wefti_run_record_row row = row_of_transfer(t);
    row.calls = calls;
    row.level = wefti_transfer_level(p->machine, t);
    row.seconds = calls * wefti_transfer_seconds(
                              p->machine, t, (wefti_active){mesh->first, wefti_mesh_size(mesh)});
    return wefti_run_record_add(p->out, &row);
}

static weft_status add_copy(const row_walk *p, const wefti_step *step, double calls) {
    wefti_run_record_row row = row_of_copy(p->program, step);
    row.calls = calls;
    row.seconds =
        calls * wefti_tier_seconds(p->machine, wefti_step_tier(step),
                                   wefti_step_fetches(step) ? WEFTI_TIER_READ : WEFTI_TIER_WRITE,
                                   row.bytes, p->ranks);
    return wefti_run_record_add(p->out, &row);
}

static weft_status add_step(const row_walk *p, const wefti_step *step, double calls) {
    if (step->kind == WEFTI_STEP_POST && wefti_step_copy(p->program, step))
        return add_copy(p, step, calls);
    if (step->kind == WEFTI_STEP_POST)
        return add_transfer(p, wefti_step_transfer_of(p->program, step), calls);
    for (int32_t k = step->from; step->kind == WEFTI_STEP_CALL && k < step->to; k++) {
        const wefti_instruction *x = &step->routine->code[k];
        WEFT_TRY(x->transfer >= 0 ? add_transfer(p, x->transfer, calls)
                                  : add_kernel(p, step->space, x, calls));
    }
    return WEFT_OK;
}

weft_status wefti_run_record_predicted(const wefti_program *program,
                                       const wefti_machine_model *machine, int32_t microbatches,
                                       int32_t ranks, wefti_run_record_rows *out) {
    const row_walk p = {program, machine, ranks, wefti_model_sharing(machine, ranks), out};
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        const int64_t runs = wefti_program_runs(program, (wefti_section)s, microbatches);
        for (int32_t i = 0; i < program->step_count[s] && runs > 0; i++) {
            const int64_t times = wefti_program_times(program, (wefti_section)s, i);
            WEFT_TRY(add_step(&p, &program->steps[s][i], (double)(runs * times)));
        }
    }
    return WEFT_OK;
}

weft_status wefti_run_record_measured(const wefti_profile *profile, uint64_t steps,
                                      wefti_run_record_rows *out) {
    for (int32_t i = 0; i < wefti_profile_entries(profile); i++) {
        wefti_profile_time t;
        wefti_profile_entry(profile, steps, i, &t);
        if (t.calls <= 0) continue;
        wefti_run_record_row row = t.x      ? row_of_kernel(t.x)
                                   : t.copy ? row_of_copy(wefti_profile_program(profile), t.copy)
                                            : row_of_transfer(t.transfer);
        row.calls = t.calls;
        row.seconds = t.seconds;
        row.processor = t.processor;
        row.under_way = t.under_way;
        WEFT_TRY(wefti_run_record_add(out, &row));
    }
    return WEFT_OK;
}

/* ---- as JSON ---- */

static void add_real(wefti_text *out, const char *key, double value) {
    wefti_text_add(out, ", \"%s\": ", key);
    wefti_json_real(out, value);
}

/* The key of a row's name. */
static const char *const words[WEFTI_RUN_RECORD_KINDS] = {"op", "transfer", "move"};

void wefti_run_record_rows_print(const wefti_run_record_rows *rows, wefti_text *out) {
    wefti_text_add(out, "[");
    for (int64_t i = 0; i < rows->count; i++) {
        const wefti_run_record_row *r = &rows->items[i];
        wefti_text_add(out, "%s\n      {\"%s\": ", i ? "," : "", words[r->kind]);
        wefti_json_quote(out, r->name);
        if (r->kind == WEFTI_RUN_RECORD_TRANSFER) {
            add_real(out, "members", r->members);
            add_real(out, "level", r->level);
        } else if (r->kind == WEFTI_RUN_RECORD_KERNEL) {
            wefti_text_add(out, ", \"arithmetic\": \"%s\", \"product\": %s",
                           wefti_arithmetic_text(r->arithmetic), r->product ? "true" : "false");
            add_real(out, "flops", r->flops);
        }
        add_real(out, "bytes", r->bytes);
        add_real(out, "calls", r->calls);
        add_real(out, "seconds", r->seconds);
        if (r->processor > 0) add_real(out, "processor", r->processor);
        if (r->under_way > 0) add_real(out, "under_way", r->under_way);
        wefti_text_add(out, "}");
    }
    wefti_text_add(out, "]");
}

weft_status wefti_run_record_real(const wefti_json *object, const char *key, double *out) {
    const wefti_json *value = wefti_json_get(object, key);
    const bool whole = value && value->kind == WEFTI_JSON_INT;
    WEFT_REQUIRE(whole || (value && value->kind == WEFTI_JSON_REAL), WEFT_E_CORRUPT,
                 "%s is missing, or no number", key);
    *out = whole ? (double)value->as.integer : value->as.real;
    WEFT_REQUIRE(isfinite(*out) && *out >= 0 && *out <= 1e30, WEFT_E_CORRUPT,
                 "%s is %g; it must be from 0 to 1e30", key, *out);
    return WEFT_OK;
}

static weft_status read_arithmetic(const wefti_json *object, wefti_arithmetic *out) {
    const char *text;
    WEFT_TRY(wefti_json_text(object, "arithmetic", &text));
    for (int a = 0; a < WEFTI_ARITHMETICS; a++) {
        if (strcmp(text, wefti_arithmetic_text((wefti_arithmetic)a)) != 0) continue;
        *out = (wefti_arithmetic)a;
        return WEFT_OK;
    }
    WEFT_FAIL(WEFT_E_CORRUPT, "arithmetic is '%.40s'", text);
}

static weft_status read_kernel(const wefti_json *object, wefti_run_record_row *r) {
    const wefti_json *product = wefti_json_get(object, "product");
    WEFT_TRY(wefti_json_text(object, "op", &r->name));
    WEFT_TRY(read_arithmetic(object, &r->arithmetic));
    WEFT_REQUIRE(product && product->kind == WEFTI_JSON_BOOL, WEFT_E_CORRUPT,
                 "product must be true or false");
    r->product = product->as.boolean;
    return wefti_run_record_real(object, "flops", &r->flops);
}

static weft_status read_row(const wefti_json *object, wefti_run_record_row *r) {
    double members = 0, level = 0;
    while (r->kind < WEFTI_RUN_RECORD_COPY && !wefti_json_get(object, words[r->kind])) r->kind++;
    if (r->kind == WEFTI_RUN_RECORD_COPY) {
        WEFT_TRY(wefti_json_text(object, words[r->kind], &r->name));
    } else if (r->kind == WEFTI_RUN_RECORD_TRANSFER) {
        WEFT_TRY(wefti_json_text(object, "transfer", &r->name));
        WEFT_TRY(wefti_run_record_real(object, "members", &members));
        WEFT_TRY(wefti_run_record_real(object, "level", &level));
        r->members = members < 1e9 ? (int32_t)members : 0;
        r->level = level < WEFTI_LEVELS_MAX ? (int32_t)level : 0;
    } else {
        WEFT_TRY(read_kernel(object, r));
    }
    WEFT_TRY(wefti_run_record_real(object, "bytes", &r->bytes));
    WEFT_TRY(wefti_run_record_real(object, "calls", &r->calls));
    WEFT_TRY(wefti_run_record_real(object, "seconds", &r->seconds));
    if (wefti_json_get(object, "processor"))
        WEFT_TRY(wefti_run_record_real(object, "processor", &r->processor));
    if (wefti_json_get(object, "under_way"))
        WEFT_TRY(wefti_run_record_real(object, "under_way", &r->under_way));
    return WEFT_OK;
}

weft_status wefti_run_record_rows_read(const wefti_json *array, wefti_run_record_rows *out) {
    WEFTI_JSON_EACH(item, array) {
        wefti_run_record_row row = {0};
        weft_status status = read_row(item, &row);
        if (status < 0) return wefti_prefix(status, "line %d", item->line);
        WEFT_TRY(wefti_run_record_add(out, &row));
    }
    return WEFT_OK;
}
