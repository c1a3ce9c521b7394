/* Matching of moves within one program: each post and wait names a move, and each section ends the
 * copies that it begins. */
#include "program/match_parts.h"

static weft_status check_numbers(const wefti_program *p, wefti_section s) {
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        if (step->kind != WEFTI_STEP_POST && step->kind != WEFTI_STEP_WAIT) continue;
        WEFT_REQUIRE_OF(p->rank, step->move >= 0 && step->move < p->move_count, WEFT_E_MISMATCH,
                        "rank %d, step '%s': move number %d does not exist; the program has %d",
                        p->rank, step->name, step->move, p->move_count);
    }
    return WEFT_OK;
}

/* under_way: per move, copies without a wait so far; zeros before and after a section. */
static weft_status play_copies(const wefti_program *p, wefti_section s, int32_t *under_way) {
    const wefti_step *step;
    wefti_cursor at = {0};
    for (; (step = wefti_cursor_step(p, s, &at)); wefti_cursor_next(p, s, &at)) {
        if (!wefti_step_copy(p, step)) continue;
        const bool posts = step->kind == WEFTI_STEP_POST;
        int32_t *n = &under_way[step->move];
        WEFT_REQUIRE_OF(p->rank, posts ? *n < WEFTI_COMM_DEPTH : *n > 0, WEFT_E_MISMATCH,
                        "rank %d, step '%s': a copy between spaces is %s", p->rank, step->name,
                        posts ? "posted once more than may be under way"
                              : "waited for but was not posted");
        *n += posts ? 1 : -1;
    }
    for (int32_t i = 0; i < p->move_count; i++)
        WEFT_REQUIRE_OF(p->rank, !under_way[i], WEFT_E_MISMATCH,
                        "rank %d: a copy between spaces, move number %d, is posted but never "
                        "waited for",
                        p->rank, i);
    return WEFT_OK;
}

weft_status wefti_match_moves(const wefti_match *m, const wefti_program *p) {
    int32_t *under_way =
        wefti_arena_alloc(m->arena, ((size_t)p->move_count + 1) * sizeof *under_way);
    bool copies = false;
    WEFT_REQUIRE(under_way, WEFT_E_NOMEM, "no memory to match programs");
    for (int32_t i = 0; i < p->move_count; i++) copies |= p->moves[i].way == WEFTI_WAY_SPACES;
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        WEFT_TRY(check_numbers(p, (wefti_section)s));
        if (copies) WEFT_TRY(play_copies(p, (wefti_section)s, under_way));
    }
    return WEFT_OK;
}
