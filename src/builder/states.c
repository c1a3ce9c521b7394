/* States: when they take their next values.
 *
 * If nothing reads the old value after the call that makes the new one, the state takes the new
 * value after that call. Otherwise a backward pass or a later call still reads the old value, and
 * the state takes the new one at the end. Then microbatches in flight together (pipelines, copies)
 * forward the state: each reads the new value of the microbatch before it from that one's buffer.
 * So microbatches see each other's values in order, as if they ran one after the other. Plans that
 * prevent this are refused.
 *
 * With recovery, passes use a second buffer. A step copies the state there before its first pass,
 * and back once it is committed. Until then it can be made again from the state. */
#include "builder/build.h"

/* Each node of the root is a call, with the same number. */
int32_t wefti_call_maker(const wefti_decisions *dec, int32_t value) {
    return dec->root->values[value].node;
}

bool wefti_call_reads(const wefti_call_plan *call, int32_t value) {
    for (int i = 0; i < call->node->inputs; i++)
        if (call->node->in[i] == value) return true;
    return false;
}

/* The call that makes a state's next value, if nothing reads the old value after its forward pass;
 * else -1. */
static int32_t last_reader(const wefti_decisions *dec, const wefti_assign *a) {
    int32_t maker = wefti_call_maker(dec, a->next);
    for (int32_t k = 0; k < dec->call_count; k++) {
        const wefti_call_plan *call = &dec->calls[k];
        for (int i = 0; i < call->node->inputs; i++) {
            if (call->node->in[i] != a->state) continue;
            if (k > maker) return -1;
            if (!call->differentiated || call->fused) continue;
            const wefti_cell_grad *grad = &dec->grads[call->grad];
            for (int64_t j = 0; j < grad->backward->in_count; j++)
                if (grad->bindings[j].source == WEFTI_GRAD_INPUT && grad->bindings[j].index == i)
                    return -1;
        }
    }
    return maker;
}

/* Checks that a reader of a state can see the value of the microbatch before: it must be in the
 * same stage as the maker and must not run before it. */
static weft_status check_reader(const wefti_decisions *dec, const char *state, int32_t reader,
                                int32_t maker) {
    const wefti_call_plan *r = &dec->calls[reader], *m = &dec->calls[maker];
    WEFT_REQUIRE(r->stage == m->stage, WEFT_E_LAYOUT,
                 "the state '%s' is read by cell '%s' in stage %d, and cell '%s' in stage %d makes "
                 "its next value: both must be in one stage",
                 state, r->node->scope, r->stage, m->node->scope, m->stage);
    bool copies = dec->micros > 1 && dec->copies > 1;
    bool in_order = reader >= maker || dec->micros == 1 || (!copies && r->part == m->part);
    WEFT_REQUIRE(in_order, WEFT_E_LAYOUT,
                 "the state '%s' is read by cell '%s', and cell '%s' behind it makes its next "
                 "value: where %s, both must be in one %s",
                 state, r->node->scope, m->node->scope,
                 copies ? "microbatches interleave" : "stages are virtual ones",
                 copies ? "cell" : "of them");
    return WEFT_OK;
}

weft_status wefti_decide_states(wefti_decisions *dec) {
    for (int64_t i = 0; i < dec->g->assign_count; i++) {
        const wefti_assign *a = &dec->g->assigns[i];
        int32_t maker = wefti_call_maker(dec, a->next);
        const char *name = dec->root->values[a->state].name;
        for (int32_t k = 0; k < dec->call_count && maker >= 0; k++)
            if (wefti_call_reads(&dec->calls[k], a->state))
                WEFT_TRY(check_reader(dec, name, k, maker));
        dec->state_after[i] = last_reader(dec, a);
        if (maker >= 0 && dec->state_after[i] < 0) dec->forwarded[a->state] = a->next;
    }
    return WEFT_OK;
}

/* The first of the microbatches that are in flight together reads the state itself, which earlier
 * ones have updated. */
int32_t wefti_state_forwarded(const wefti_decisions *dec, int32_t micro, int32_t value) {
    if (micro == 0 || (dec->stages == 1 && micro % dec->copies == 0)) return -1;
    return dec->forwarded[value];
}

weft_status wefti_build_states(wefti_emitter *b, wefti_section s, int32_t micro, int32_t after) {
    for (int64_t i = 0; i < b->g->assign_count; i++) {
        wefti_assign a = b->g->assigns[i];
        if (b->dec->state_after[i] != after) continue;
        int32_t to = b->param_buffer[a.state], from = *wefti_build_value(b, micro, a.next);
        if (to == from || from < 0) continue; /* written in place, or on another stage */
        WEFT_REQUIRE(b->root->values[a.next].node >= 0, WEFT_E_NO_IMPL,
                     "the state '%s' becomes '%s' itself, which may change in the same step: pass "
                     "it through an operation",
                     b->buffers[to].name, b->root->values[a.next].name);
        wefti_draft_step *d;
        WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_COPY, WEFTI_OTHER, b->buffers[to].name, 2, &d));
        wefti_build_arg(b, d, 0, to, 0);
        wefti_build_arg(b, d, 1, from, 0);
        d->step.bytes = b->buffers[to].life.bytes;
        b->now++;
    }
    return WEFT_OK;
}

/* ---- recovery ---- */

weft_status wefti_build_second_states(wefti_emitter *b) {
    if (!b->spec->optimizer || !b->spec->optimizer->recovery) return WEFT_OK;
    for (int64_t i = 0; i < b->g->assign_count; i++) {
        int32_t v = b->g->assigns[i].state, kept = b->param_buffer[v];
        if (kept < 0 || b->state_kept[v] >= 0) continue; /* of another stage */
        b->state_kept[v] = kept;
        WEFT_TRY(wefti_buffer_persistent(b, b->buffers[kept].life.bytes,
                                         wefti_build_name(b, "next ", b->root->values[v].name),
                                         &b->param_buffer[v]));
    }
    return WEFT_OK;
}

/* `back`: from the passes' buffers to the states; else to these buffers. */
static weft_status copy_states(wefti_emitter *b, wefti_section s, bool back) {
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i], kept = b->state_kept[v], next = b->param_buffer[v];
        wefti_draft_step *d;
        if (kept < 0) continue;
        WEFT_TRY(
            wefti_build_begin(b, s, WEFTI_STEP_COPY, WEFTI_OTHER, b->root->values[v].name, 2, &d));
        wefti_build_arg(b, d, 0, back ? kept : next, 0);
        wefti_build_arg(b, d, 1, back ? next : kept, 0);
        d->step.bytes = b->buffers[kept].life.bytes;
        b->now++;
    }
    return WEFT_OK;
}

weft_status wefti_build_take_states(wefti_emitter *b) {
    return copy_states(b, WEFTI_SECTION_FIRST, false);
}

weft_status wefti_build_keep_states(wefti_emitter *b) {
    return copy_states(b, WEFTI_SECTION_UPDATE, true);
}
