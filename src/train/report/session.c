/* The plan and the programs of a session: weft/program.h. */
#include "plan/plan.h"
#include "program/print.h"
#include "search/search.h"
#include "session/session.h"
#include "weft/program.h"

weft_status weft_session_plan(const weft_session *session, weft_plan **out) {
    WEFT_REQUIRE(session && out, WEFT_E_ARG, "weft_session_plan needs a session and a place");
    const wefti_session_origin o = wefti_session_origin_of(session);
    weft_plan *plan;
    int32_t fused[3];
    if (!o.plan) return weft_plan_create(1, out);
    WEFT_TRY(wefti_plan_copy(o.plan, &plan));
    const wefti_completion what = {
        .graph = o.graph, .plan = o.plan, .optimizer = o.optimizer, .microbatches = o.microbatches};
    weft_status status =
        wefti_plan_matters(o.plan) ? wefti_plan_complete(&what, plan, fused) : WEFT_OK;
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}

static weft_status describe(const weft_session *session, int program, int rank, bool json,
                            char **out) {
    WEFT_REQUIRE(session && out, WEFT_E_ARG, "a program's text needs a session and a place");
    const wefti_session_origin o = wefti_session_origin_of(session);
    int count = wefti_session_programs(session);
    if (rank < 0) rank = o.me;
    WEFT_REQUIRE(program >= 0 && program < count, WEFT_E_ARG,
                 "the session has no program %d; its programs are 0 to %d", program, count - 1);
    const wefti_program *p =
        rank < o.devices ? wefti_session_program_of(session, program, rank) : NULL;
    WEFT_REQUIRE(p, WEFT_E_ARG,
                 "rank %d is not a device of this process, which has %s of the %d devices", rank,
                 o.me ? "another one" : "others", o.devices);
    return json ? wefti_program_json(p, o.plan, out) : wefti_program_print(p, o.plan, out);
}

weft_status weft_session_program_text(const weft_session *session, int program, int rank,
                                      char **out) {
    return describe(session, program, rank, false, out);
}

weft_status weft_session_program_json(const weft_session *session, int program, int rank,
                                      char **out) {
    return describe(session, program, rank, true, out);
}
