/* Mending of worlds, by whoever has made them: see comm/world.h. */
#include "base/status.h"
#include "comm/world.h"

bool wefti_world_mends(const weft_world *w) {
    return w && w->mender && (w->mender->restarts || w->elastic || w->mender->newcomer(w->control));
}

bool wefti_world_is_repaired(const weft_world *w) {
    return wefti_world_mends(w) && (w->armed || w->mender->newcomer(w->control));
}

bool wefti_world_resizes(const weft_world *w) {
    return w && w->mender && w->mender->resizes;
}

void wefti_world_arm(weft_world *w, const wefti_elastic *elastic) {
    static const wefti_elastic none;
    w->elastic = elastic && elastic->least > 0 && wefti_world_resizes(w);
    w->armed = true;
    if (w->mender) w->mender->arm(w->control, w->elastic ? elastic : &none);
}

bool wefti_world_is_halted(const weft_world *w) {
    return w->mender && w->mender->is_halted(w->control);
}

weft_status wefti_world_mend(weft_world *w, const wefti_stand *at, wefti_mend *out) {
    WEFT_REQUIRE(w->mender, WEFT_E_NO_IMPL, "this world ends with the first process that dies");
    return w->mender->mend(w, at, out);
}

const wefti_mend *wefti_world_newcomer(const weft_world *w) {
    return w->mender ? w->mender->newcomer(w->control) : NULL;
}

weft_status wefti_world_whole(weft_world *w) {
    WEFT_REQUIRE(w->mender, WEFT_E_NO_IMPL, "this world ends with the first process that dies");
    return w->mender->whole(w->control);
}

void wefti_world_forget(weft_world *w) {
    if (w->mender) w->mender->forget(w->control);
}
