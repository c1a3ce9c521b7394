/* A rank of a world that can be mended. */
#include "recovery/recovery.h"

wefti_survivor wefti_survivor_begin(int64_t step, int64_t generation, bool wards) {
    return (wefti_survivor){.phase = WEFTI_SURVIVOR_STEPPING,
                            .wards = wards,
                            .generation = generation,
                            .at = {.step = step, .copies = true}};
}

/* It has nothing, and so all copies only if there are none to have. */
static wefti_standing_report nothing(bool wards) {
    return (wefti_standing_report){.step = -1, .copies = !wards};
}

wefti_survivor wefti_survivor_newcomer(bool wards) {
    return (wefti_survivor){
        .phase = WEFTI_SURVIVOR_HALTED, .wards = wards, .generation = -1, .at = nothing(wards)};
}

unsigned wefti_survivor_reduced(wefti_survivor *s) {
    if (s->phase != WEFTI_SURVIVOR_STEPPING) return 0;
    s->phase = WEFTI_SURVIVOR_READY;
    s->at.ready = true;
    return WEFTI_RECOVERY_SAY_READY;
}

static unsigned update(wefti_survivor *s) {
    s->at.step++;
    s->at.ready = false;
    return WEFTI_RECOVERY_UPDATE;
}

unsigned wefti_survivor_committed(wefti_survivor *s) {
    if (s->phase != WEFTI_SURVIVOR_READY) return 0;
    s->phase = WEFTI_SURVIVOR_STEPPING;
    return update(s);
}

unsigned wefti_survivor_halt(wefti_survivor *s, int64_t generation) {
    if (generation <= s->generation) return 0;
    s->generation = generation;
    s->phase = WEFTI_SURVIVOR_HALTED;
    /* Copies without a state are of no known step. */
    if (s->borrowed || s->at.step < 0) s->at = nothing(s->wards);
    s->borrowed = false;
    return WEFTI_RECOVERY_ABANDON | WEFTI_RECOVERY_SAY_STANDING;
}

/* Whole, once nothing is lacking. */
static unsigned settle(wefti_survivor *s) {
    if (s->phase != WEFTI_SURVIVOR_MENDING || s->lacks_state || s->lacks_copies) return 0;
    s->phase = WEFTI_SURVIVOR_WHOLE;
    return WEFTI_RECOVERY_SAY_WHOLE;
}

unsigned wefti_survivor_mend(wefti_survivor *s, int64_t generation, int64_t target, int32_t source,
                             bool gives) {
    unsigned actions = 0;
    if (generation != s->generation || s->phase != WEFTI_SURVIVOR_HALTED) return 0;
    s->phase = WEFTI_SURVIVOR_MENDING;
    s->target = target;
    s->lacks_state = s->lacks_copies = false;
    if (source == WEFTI_SOURCE_DISK) {
        s->at = (wefti_standing_report){.step = target, .copies = true};
        return WEFTI_RECOVERY_FORGET | WEFTI_RECOVERY_LOAD | settle(s);
    }
    if (source != WEFTI_SOURCE_OWN) {
        s->at = nothing(s->wards);
        s->lacks_state = true;
        s->borrowed = source == WEFTI_SOURCE_ALL;
    } else if (s->at.step == target - 1) {
        actions |= update(s); /* another rank has seen the commit, so this one was ready */
    } else {
        s->at.ready = false;
        actions |= WEFTI_RECOVERY_FORGET;
    }
    s->lacks_copies = !s->at.copies;
    if (gives) actions |= WEFTI_RECOVERY_GIVE;
    return actions | settle(s);
}

unsigned wefti_survivor_took_state(wefti_survivor *s) {
    if (s->phase != WEFTI_SURVIVOR_MENDING || !s->lacks_state) return 0;
    s->lacks_state = false;
    s->at.step = s->target;
    return settle(s);
}

unsigned wefti_survivor_took_copies(wefti_survivor *s) {
    if (s->phase != WEFTI_SURVIVOR_MENDING || !s->lacks_copies) return 0;
    s->lacks_copies = false;
    s->at.copies = true;
    return settle(s);
}

unsigned wefti_survivor_go(wefti_survivor *s, int64_t generation) {
    if (generation != s->generation || s->phase != WEFTI_SURVIVOR_WHOLE) return 0;
    s->phase = WEFTI_SURVIVOR_STEPPING;
    s->borrowed = false;
    return 0;
}
