/* Names of the steps and transfers of programs, for messages and texts. See program/print.h. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "graph/lower/lower.h"
#include "program/print.h"

const char *wefti_phase_text(const wefti_step *step) {
    static const char *const names[] = {"forward", "backward", "update", ""};
    return names[step->phase];
}

const char *wefti_copy_text(const wefti_step *step) {
    const bool serves = wefti_step_tier(step) == WEFTI_SPACE_SERVER;
    if (wefti_step_fetches(step)) return serves ? "pull" : "fetch";
    return serves ? "push" : "store";
}

const char *wefti_section_text(wefti_section section) {
    static const char *const names[WEFTI_SECTIONS] = {"first microbatch", "each further microbatch",
                                                      "last microbatch", "norms of gradients",
                                                      "update"};
    return names[section];
}

/* The routine's input from which a transfer's operand is computed, found along first operands; -1:
 * none. */
static int32_t origin(const wefti_routine *r, const weft_node *n) {
    int32_t v = n->inputs ? n->in[0] : -1;
    while (v >= 0 && r->body->values[v].node >= 0) {
        const weft_node *maker = &r->body->nodes[r->body->values[v].node];
        v = maker->inputs ? maker->in[0] : -1;
    }
    return v < 0 ? -1 : r->body->values[v].slot;
}

const char *wefti_transfer_what(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer) {
    if (code && code->node->scope && code->node->scope[0]) return code->node->scope;
    int32_t arg = code && step->names ? origin(step->routine, code->node) : -1;
    if (arg >= 0 && step->names[arg]) return step->names[arg];
    return transfer->name ? transfer->name : step->name;
}

const char *wefti_transfer_name(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer, char *buffer, size_t bytes) {
    const char *what = wefti_transfer_what(step, code, transfer), *role = "";
    bool inside = code && code->node->scope == what && step->name[0];
    if (inside) {
        role = wefti_moved_text((wefti_moved)wefti_attr_int(code->node, WEFTI_AT_moves));
        what += strlen(role);
    }
    (void)snprintf(buffer, bytes, "%s%s%s%s", role, inside ? step->name : "",
                   inside && what[0] != ':' ? "." : "", what);
    return buffer;
}

/* ---- cells and steps ---- */

const char *wefti_tensor_role_text(wefti_tensor_role role) {
    static const char *const names[] = {"parameter", "state",  "optimizer",
                                        "input",     "output", "output"};
    return names[role];
}

weft_status wefti_cells_used(const wefti_program *p, wefti_cell_use **out, int32_t *out_count) {
    wefti_cell_use *list;
    int32_t count = 0;
    WEFT_NEW_ARRAY(list, wefti_cell_use, p->routine_count + 1);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < p->step_count[s]; i++) {
            const wefti_step *step = &p->steps[s][i];
            int32_t at = 0;
            if (step->kind != WEFTI_STEP_CALL) continue;
            while (at < count && list[at].routine != step->routine) at++;
            if (at == count) list[count++] = (wefti_cell_use){step->routine, step, 0, 0};
            if (step->part == 0) list[at].calls += wefti_program_times(p, (wefti_section)s, i);
        }
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < list[i].routine->code_count; k++)
            list[i].flops += list[i].routine->code[k].cost.flops;
    *out = list;
    *out_count = count;
    return WEFT_OK;
}

wefti_operand_info wefti_cell_operand(const wefti_program *p, const wefti_cell_use *use,
                                      int32_t arg) {
    const wefti_routine *r = use->routine;
    const weft_body *body = r->unfused, *whole = NULL;
    bool input = arg < r->inputs;
    int32_t at = input ? arg : arg - r->inputs;
    const wefti_local_body *local =
        p->partition ? wefti_partition_of_local(p->partition, body, &whole) : NULL;
    wefti_operand_info info = {.name = use->first->names[arg]};
    info.here = info.whole = body->values[input ? body->in[at] : body->out[at]].desc;
    if (!local) return info;
    info.whole = whole->values[input ? whole->in[at] : whole->out[at]].desc;
    info.layout = input ? &local->in[at] : &local->out[at];
    return info;
}

static int64_t bytes_of(const wefti_transfer *t, const wefti_region *box) {
    return wefti_region_elems(box, t->rank) * (int64_t)weft_dtype_bytes(t->dtype);
}

bool wefti_step_transfer_next(const wefti_program *p, const wefti_step *step, int32_t *at,
                              wefti_step_transfer *out) {
    const wefti_transfer *t = NULL;
    *out = (wefti_step_transfer){0};
    if (step->kind == WEFTI_STEP_CALL) {
        for (; !t && step->from + *at < step->to; ++*at) {
            const wefti_instruction *x = &step->routine->code[step->from + *at];
            if (x->transfer < 0) continue;
            t = wefti_partition_transfer(p->partition, x->transfer);
            out->code = x;
            out->joined = x->joined;
        }
    } else if (step->kind == WEFTI_STEP_POST && !wefti_step_copy(p, step) && !*at) {
        t = wefti_partition_transfer(p->partition, wefti_step_transfer_of(p, step));
        ++*at;
    }
    if (!t) return false;
    out->transfer = t;
    out->gives = bytes_of(t, &t->have[t->me]);
    out->gets = bytes_of(t, &t->want[t->me]);
    out->receives = wefti_transfer_bytes(t);
    return true;
}
