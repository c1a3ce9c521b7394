/* Steps that are given up before their commit, and made again. */
#include "session/parts.h"

void wefti_session_halt_when(weft_session *s, wefti_halted *call, void *context) {
    s->halted = call;
    s->halted_context = context;
}

wefti_session_standing wefti_session_stands(const weft_session *s) {
    return (wefti_session_standing){.step = s->torn ? -1 : s->step, .ready = s->ready && !s->torn};
}

weft_status wefti_session_abandon(weft_session *s) {
    WEFT_REQUIRE(s->options.recovery, WEFT_E_ARG,
                 "a step can be made again only if the session has recovery");
    WEFT_REQUIRE(!s->world, WEFT_E_NO_IMPL,
                 "a step of several processes cannot be made again: the world has ended");
    s->accumulated = 0;
    s->ready = false;
    wefti_session_take_inputs(s, 0);
    WEFT_REQUIRE(!s->torn, WEFT_E_MISMATCH, "update %lld ended half-way: there is no whole state",
                 (long long)s->step + 1);
    return WEFT_OK;
}
