/* Building plans of rounds: lists that grow, and their order at the end. */
#include "base/number.h"
#include "comm/schedule/build.h"

weft_status wefti_commsched_begin_round(wefti_commsched_build *b) {
    wefti_commsched *plan = b->plan;
    WEFT_TRY(WEFT_GROW(plan->round, plan->rounds, plan->round_capacity));
    plan->round[plan->rounds++] = (wefti_commsched_round){plan->sends, 0, plan->ops, false};
    return WEFT_OK;
}

static weft_status add_message(wefti_commsched_message **list, int64_t *used, int64_t *capacity,
                               int32_t member, wefti_commsched_message message) {
    WEFT_TRY(WEFT_GROW(*list, *used, *capacity));
    message.partner = member; /* of the group; wefti_commsched_create makes it one of the plan */
    (*list)[(*used)++] = message;
    return WEFT_OK;
}

weft_status wefti_commsched_send(wefti_commsched_build *b, int32_t member,
                                 wefti_commsched_place from, int64_t bytes) {
    wefti_commsched *plan = b->plan;
    for (int64_t done = 0; done < bytes;) {
        int64_t n = bytes - done < WEFTI_COMMSCHED_MESSAGE ? bytes - done : WEFTI_COMMSCHED_MESSAGE;
        WEFT_TRY(add_message(&plan->send, &plan->sends, &plan->send_capacity, member,
                             (wefti_commsched_message){.round = wefti_commsched_current_round(b),
                                                       .gate_send = -1,
                                                       .at = {from.array, from.offset + done},
                                                       .bytes = n}));
        done += n;
    }
    plan->round[plan->rounds - 1].sends = plan->sends;
    return WEFT_OK;
}

weft_status wefti_commsched_receive_gated(wefti_commsched_build *b, int32_t member,
                                          wefti_commsched_place to, int64_t bytes, int32_t round,
                                          int32_t gate_round, int64_t gate_send) {
    wefti_commsched *plan = b->plan;
    for (int64_t done = 0; done < bytes;) {
        int64_t n = bytes - done < WEFTI_COMMSCHED_MESSAGE ? bytes - done : WEFTI_COMMSCHED_MESSAGE;
        WEFT_TRY(add_message(&plan->receive, &plan->receives, &plan->receive_capacity, member,
                             (wefti_commsched_message){.round = round,
                                                       .gate_round = gate_round,
                                                       .gate_send = (int32_t)gate_send,
                                                       .at = {to.array, to.offset + done},
                                                       .bytes = n}));
        done += n;
    }
    return WEFT_OK;
}
weft_status wefti_commsched_receive(wefti_commsched_build *b, int32_t member,
                                    wefti_commsched_place to, int64_t bytes, int32_t round) {
    return wefti_commsched_receive_gated(b, member, to, bytes, round, 0, -1);
}

weft_status wefti_commsched_op_regions(wefti_commsched_build *b, const wefti_region *part, int rank,
                                       wefti_commsched_place to, const wefti_region *to_box,
                                       int32_t sources, const wefti_commsched_place *from,
                                       const wefti_region *boxes) {
    wefti_commsched *plan = b->plan;
    if (wefti_region_elems(part, rank) == 0) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(plan->op, plan->ops, plan->op_capacity));
    size_t count = (size_t)sources;
    wefti_commsched_place *places = wefti_arena_alloc(plan->arena, count * sizeof *places);
    wefti_move_side *sides = wefti_arena_alloc(plan->arena, count * sizeof *sides);
    WEFT_REQUIRE(places && sides, WEFT_E_NOMEM, "no memory for a move of %d sources", (int)sources);
    memcpy(places, from, count * sizeof *places);
    wefti_commsched_op *op = &plan->op[plan->ops++];
    op->to = to;
    op->from = places;
    wefti_move_prepare(part, rank, b->t->dtype, b->t->reduction, to_box, boxes, b->each, sources,
                       sides, &op->move);
    plan->round[plan->rounds - 1].ops = plan->ops;
    return WEFT_OK;
}

weft_status wefti_commsched_op_flat(wefti_commsched_build *b, int64_t elements,
                                    wefti_commsched_place to, int32_t sources,
                                    const wefti_commsched_place *from) {
    if (elements == 0) return WEFT_OK;
    wefti_region part = {.size = {elements}}, *boxes;
    WEFT_NEW_ARRAY(boxes, wefti_region, sources);
    for (int32_t s = 0; s < sources; s++) boxes[s] = part;
    weft_status status = wefti_commsched_op_regions(b, &part, 1, to, &part, sources, from, boxes);
    wefti_free(boxes);
    return status;
}

/* Each room begins at a cache line. */
wefti_commsched_place wefti_commsched_stage_space(wefti_commsched_build *b, int64_t bytes) {
    wefti_commsched_place place = {WEFTI_COMMSCHED_STAGE, b->plan->stage};
    b->plan->stage += wefti_aligned(bytes);
    return place;
}

bool wefti_commsched_run(const wefti_region *part, const wefti_region *box, int rank,
                         int64_t *first) {
    wefti_copy_move move;
    wefti_move_side side;
    int32_t member = 0;
    wefti_move_prepare(part, rank, WEFT_U8, WEFTI_REDUCE_NONE, part, box, &member, 1, &side, &move);
    *first = side.offset;
    return move.loops == 0;
}

wefti_commsched_span wefti_commsched_part(const wefti_commsched_build *b, wefti_commsched_span all,
                                          int64_t i, int64_t n) {
    int64_t line = 64 / b->element, lines = (all.count + line - 1) / line;
    int64_t begin = lines * i / n * line, end = lines * (i + 1) / n * line;
    if (begin > all.count) begin = all.count;
    if (end > all.count) end = all.count;
    return (wefti_commsched_span){all.begin + begin, end - begin};
}
