/* Mending a world: a new communicator among the ranks of the next generation. comm/world.h. */
#include <string.h>

#include "base/memory.h"
#include "launch/join/join.h"

static wefti_control *of(const weft_world *w) {
    return w->control;
}

/* A failure that no death explains. What else fails here, fails because a rank has died again. */
static bool is_own(weft_status status) {
    return status == WEFT_E_NOMEM || status == WEFT_E_ARG || status == WEFT_E_MISMATCH;
}

/* Each turn is a generation. */
static weft_status make_next(wefti_control *c, const wefti_stand *at, wefti_mend *mend,
                             wefti_comm **out) {
    weft_status status;
    do {
        WEFT_TRY(wefti_member_mend(c->member, at, mend));
        status = wefti_join_make_comm(c, out);
    } while (status < 0 && !is_own(status));
    return status;
}

weft_status wefti_join_mend_first(wefti_control *c, wefti_comm **out) {
    const wefti_stand nothing = {.step = -1};
    WEFT_TRY(make_next(c, &nothing, &c->mended, out));
    c->is_newcomer = true;
    return WEFT_OK;
}

/* --- what worlds call --- */

static void arm(void *control, const wefti_elastic *elastic) {
    wefti_member_arm(((wefti_control *)control)->member, elastic);
}

static bool is_halted(void *control) {
    return wefti_member_is_halted(((wefti_control *)control)->member);
}

/* Bound transfers belong to the old communicator. */
static void part_with_old(weft_world *w) {
    if (w->agreement) w->end_agreement(w->agreement);
    w->agreement = NULL;
    wefti_collectives_destroy(w->collectives);
    w->collectives = NULL;
}

static weft_status mend(weft_world *w, const wefti_stand *at, wefti_mend *out) {
    wefti_control *c = of(w);
    wefti_comm *next;
    WEFT_TRY(make_next(c, at, out, &next));
    weft_status status = WEFT_GROW(c->retired, c->retired_count, c->retired_room);
    if (status >= 0)
        status = wefti_world_resize(w, out->rank, out->size, wefti_member_hosts(c->member));
    if (status < 0) {
        wefti_comm_destroy(next);
        return status;
    }
    part_with_old(w);
    c->retired[c->retired_count++] = c->comm;
    wefti_comm_set_position(c->comm, NULL);
    wefti_comm_set_position(next, c->position);
    w->comm = c->comm = next;
    wefti_member_watch(c->member, next, c->position);
    if (c->is_newcomer) c->mended = *out;
    return WEFT_OK;
}

static const wefti_mend *newcomer(void *control) {
    const wefti_control *c = control;
    return c->is_newcomer ? &c->mended : NULL;
}

static weft_status whole(void *control) {
    wefti_control *c = control;
    weft_status status = wefti_member_whole(c->member);
    if (status == WEFT_OK) c->is_newcomer = false;
    return status;
}

void wefti_join_forget(wefti_control *c) {
    for (int64_t i = 0; i < c->retired_count; i++) wefti_comm_destroy(c->retired[i]);
    wefti_free(c->retired);
    c->retired = NULL;
    c->retired_count = c->retired_room = 0;
}

static void forget(void *control) {
    wefti_join_forget(control);
}

static void break_off(void *control, int failed, const char *message) {
    wefti_member_break(((wefti_control *)control)->member, failed, message);
}

/* Connections of UCX and MPI are not made again. */
const wefti_mender *wefti_join_mender(wefti_control *c) {
    const char *by = c->plan.set.communicator;
    const wefti_member *m = c->member;
    c->mender = (wefti_mender){.restarts = wefti_member_mends(m),
                               .resizes = wefti_member_resizes(m),
                               .arm = arm,
                               .is_halted = is_halted,
                               .mend = mend,
                               .newcomer = newcomer,
                               .whole = whole,
                               .forget = forget,
                               .break_off = break_off};
    bool can = (c->mender.restarts || c->mender.resizes) && !c->has_transport &&
               strcmp(by, "ucx") != 0 && strcmp(by, "mpi") != 0;
    return can ? &c->mender : NULL;
}
