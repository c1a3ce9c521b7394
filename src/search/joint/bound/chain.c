/* The bounds of a candidate and of the sets that it belongs to, from the least that is known of it
 * to the most: see branch.h. Each holds for all candidates of its set, so each holds for the last.
 */
#include <math.h>
#include <string.h>

#include "schedule/schedule.h"
#include "search/joint/branch.h"

/* Of all schedules, from the work of the calls. */
double wefti_joint_bound_of_work(const wefti_joint_branch *s, const wefti_degrees *d,
                                 const wefti_joint_work *work) {
    if (wefti_joint_alternates(&s->j)) return 0;
    return WEFTI_JOINT_ROUNDING *
           wefti_joint_least_step(&s->j, d, work->calls, (double)work->boundary);
}

/* With replicas as the inner axis, the other axes lie on the same links as with replicas as the
 * outer one, or on links further out. So the work of that order, which takes fewer programs, is a
 * bound. */
static weft_status bound_of_order(wefti_joint_branch *s, const wefti_degrees *d,
                                  wefti_joint_line_bound *out) {
    const wefti_degrees usual = wefti_joint_in_usual_order(d);
    const wefti_joint_work *work;
    wefti_joint_line_bound b;
    if (wefti_joint_outermost(d) || !s->outwards) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of_line(s, &usual, &b));
    if (b.seconds > out->seconds) out->seconds = b.seconds;
    if (b.bytes > out->bytes) out->bytes = b.bytes;
    memcpy(out->guess_bytes, b.guess_bytes, sizeof out->guess_bytes);
    if (!b.legal || b.bytes > (double)s->j.limit) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, &usual, &work));
    const double even = work->legal ? wefti_joint_bound_of_work(s, &usual, work) : 0;
    if (even > out->seconds) out->seconds = even;
    return WEFT_OK;
}

weft_status wefti_joint_bound_drawn(wefti_joint_branch *s, const wefti_degrees *d,
                                    wefti_joint_line_bound *out) {
    WEFT_TRY(wefti_joint_bound_of_line(s, d, out));
    return bound_of_order(s, d, out);
}

/* Tables of work have backward passes of one part. With gradients of weights apart they have two.
 * If a replica is split, the builder may split the products of two parts otherwise. Then they have
 * as many FLOPs, but with tiles another use of the units. So only transfers between replicas bound
 * such a candidate beside what bounds its set. */
bool wefti_joint_is_certain(const wefti_joint *j, const wefti_degrees *d) {
    const bool apart = d->stages > 1 && wefti_schedule_splits(d->schedule);
    const bool splits = d->tensor * d->context * d->expert > 1;
    if (wefti_joint_alternates(j) || wefti_joint_rules(j, d)) return false;
    return !apart || !splits || !j->problem->machine->device.units.source;
}

/* ---- all of them, for tests and explanations ---- */

weft_status wefti_joint_chain_find(wefti_joint_branch *s, const wefti_degrees *d,
                                   wefti_joint_chain *out) {
    const wefti_joint_work *work;
    const wefti_joint_state *state;
    wefti_joint_line_bound line;
    wefti_joint_bound b;
    double between, bytes, about;
    const bool certain = wefti_joint_is_certain(&s->j, d);
    *out = (wefti_joint_chain){0};
    WEFT_TRY(wefti_joint_coarse_bound(s, d, &line));
    out->seconds[WEFTI_JOINT_OF_COARSE] = line.seconds;
    out->bytes[WEFTI_JOINT_OF_COARSE] = line.bytes;
    WEFT_TRY(wefti_joint_bound_drawn(s, d, &line));
    if (!line.legal) return WEFT_OK;
    out->seconds[WEFTI_JOINT_OF_LINE] = line.seconds;
    out->bytes[WEFTI_JOINT_OF_LINE] = line.bytes;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    if (!work->legal) return WEFT_OK;
    out->seconds[WEFTI_JOINT_OF_WORK] = wefti_joint_bound_of_work(s, d, work);
    WEFT_TRY(wefti_joint_bound_of(&s->j, d, work, NULL, &b));
    if (!isfinite(b.seconds)) return WEFT_OK;
    WEFT_TRY(wefti_joint_step_of_draft(s, d, work, &between));
    WEFT_TRY(wefti_joint_bytes_of_draft(s, d, work, &bytes, &about));
    out->seconds[WEFTI_JOINT_OF_DRAFT] = certain ? wefti_larger(b.seconds, between) : between;
    out->bytes[WEFTI_JOINT_OF_DRAFT] = bytes;
    WEFT_TRY(wefti_joint_state_find(&s->j, d, &state));
    if (!state->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of(&s->j, d, work, state, &b));
    out->seconds[WEFTI_JOINT_OF_STATE] = certain ? b.seconds : 0;
    out->bytes[WEFTI_JOINT_OF_STATE] = b.bytes;
    out->legal = true;
    return WEFT_OK;
}
