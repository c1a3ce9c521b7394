/* A rank of a world that can be mended. */
#include "recovery/recovery.h"

#include <stddef.h>

/* ---- what it has of the state ---- */

wefti_survivor wefti_survivor_begin(int64_t step) {
    return (wefti_survivor){
        .step = step, .phase = WEFTI_SURVIVOR_STEPPING, .copies = WEFTI_COPIES_STALE};
}

wefti_survivor wefti_survivor_new(void) {
    return (wefti_survivor){.phase = WEFTI_SURVIVOR_NEW, .copies = WEFTI_COPIES_LACKING};
}

wefti_stand wefti_survivor_stands(const wefti_survivor *s) {
    return (wefti_stand){.step = wefti_survivor_has_state(s) ? s->step : -1,
                         .ready = s->phase == WEFTI_SURVIVOR_READY};
}

void wefti_survivor_reduced(wefti_survivor *s) {
    if (s->phase == WEFTI_SURVIVOR_STEPPING) s->phase = WEFTI_SURVIVOR_READY;
}

void wefti_survivor_forget(wefti_survivor *s) {
    if (s->phase == WEFTI_SURVIVOR_READY) s->phase = WEFTI_SURVIVOR_STEPPING;
}

void wefti_survivor_updates(wefti_survivor *s) {
    s->phase = WEFTI_SURVIVOR_TORN;
}

void wefti_survivor_updated(wefti_survivor *s, bool scattered) {
    s->phase = scattered ? WEFTI_SURVIVOR_SCATTERED : WEFTI_SURVIVOR_STEPPING;
    s->step++;
}

void wefti_survivor_gathered(wefti_survivor *s) {
    if (s->phase == WEFTI_SURVIVOR_SCATTERED) s->phase = WEFTI_SURVIVOR_STEPPING;
}

void wefti_survivor_changed(wefti_survivor *s) {
    s->copies = WEFTI_COPIES_STALE;
}

void wefti_survivor_copied(wefti_survivor *s) {
    s->copies = WEFTI_COPIES_HELD;
}

void wefti_survivor_halt(wefti_survivor *s) {
    if (s->borrowed)
        *s = (wefti_survivor){.phase = WEFTI_SURVIVOR_TORN, .copies = WEFTI_COPIES_LACKING};
}

wefti_survivor_way wefti_survivor_mend(wefti_survivor *s, int64_t target) {
    if (!wefti_survivor_has_state(s)) return WEFTI_SURVIVOR_TAKES;
    if (s->step == target - 1 && s->phase == WEFTI_SURVIVOR_READY) return WEFTI_SURVIVOR_UPDATES;
    if (s->step != target) return WEFTI_SURVIVOR_CANNOT;
    wefti_survivor_forget(s);
    return WEFTI_SURVIVOR_STAYS;
}

/* Copies that it had without a state are of no known step. */
void wefti_survivor_took(wefti_survivor *s, int64_t target) {
    *s = wefti_survivor_begin(target);
    s->copies = WEFTI_COPIES_LACKING;
    s->borrowed = true;
}

void wefti_survivor_moved(wefti_survivor *s, int64_t target, bool borrowed) {
    *s = wefti_survivor_begin(target);
    s->borrowed = borrowed;
}

/* A world of another size may still go back to the one before. */
void wefti_survivor_settled(wefti_survivor *s, bool resized) {
    if (!resized) s->borrowed = false;
}

void wefti_survivor_scatter(wefti_survivor *s) {
    if (s->phase == WEFTI_SURVIVOR_STEPPING) s->phase = WEFTI_SURVIVOR_SCATTERED;
}

void wefti_survivor_go(wefti_survivor *s) {
    s->borrowed = false;
}

/* ---- which words of the scheduler count ---- */

wefti_round wefti_round_begin(int64_t generation) {
    return (wefti_round){.phase = WEFTI_ROUND_STEPS, .generation = generation};
}

wefti_round wefti_round_newcomer(void) {
    return (wefti_round){.phase = WEFTI_ROUND_HALTED, .generation = -1};
}

static const struct {
    wefti_round_event event;
    wefti_round_phase from, last, to;
} moves[] = {
    {WEFTI_HEARS_HALT, WEFTI_ROUND_STEPS, WEFTI_ROUND_STEPS, WEFTI_ROUND_HALTED},
    {WEFTI_HEARS_HALT, WEFTI_ROUND_ASKS, WEFTI_ROUND_ASKS, WEFTI_ROUND_STANDS},
    {WEFTI_HEARS_HALT, WEFTI_ROUND_HALTED, WEFTI_ROUND_HALTED, WEFTI_ROUND_HALTED},
    {WEFTI_HEARS_HALT, WEFTI_ROUND_STANDS, WEFTI_ROUND_ASKS_AGAIN, WEFTI_ROUND_STANDS},
    {WEFTI_HEARS_HALT, WEFTI_ROUND_MENDS, WEFTI_ROUND_SAID, WEFTI_ROUND_HALTED},
    {WEFTI_DOES_ASK, WEFTI_ROUND_STEPS, WEFTI_ROUND_STEPS, WEFTI_ROUND_ASKS},
    {WEFTI_DOES_ASK, WEFTI_ROUND_HALTED, WEFTI_ROUND_HALTED, WEFTI_ROUND_STANDS},
    {WEFTI_DOES_ASK, WEFTI_ROUND_MENDS, WEFTI_ROUND_MENDS, WEFTI_ROUND_ASKS_AGAIN},
    {WEFTI_DOES_STAND, WEFTI_ROUND_STANDS, WEFTI_ROUND_STANDS, WEFTI_ROUND_STOOD},
    {WEFTI_HEARS_MEND, WEFTI_ROUND_STOOD, WEFTI_ROUND_STOOD, WEFTI_ROUND_ANSWERED},
    {WEFTI_DOES_TAKE, WEFTI_ROUND_ANSWERED, WEFTI_ROUND_ANSWERED, WEFTI_ROUND_MENDS},
    {WEFTI_DOES_REACH, WEFTI_ROUND_MENDS, WEFTI_ROUND_MENDS, WEFTI_ROUND_WHOLE},
    {WEFTI_DOES_SAY, WEFTI_ROUND_WHOLE, WEFTI_ROUND_WHOLE, WEFTI_ROUND_SAID},
    {WEFTI_HEARS_GO, WEFTI_ROUND_SAID, WEFTI_ROUND_SAID, WEFTI_ROUND_STEPS},
};

bool wefti_round_happens(wefti_round *r, wefti_round_event event, int64_t generation) {
    const bool halts = event == WEFTI_HEARS_HALT;
    if (halts ? generation <= r->generation : generation != r->generation) return false;
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        if (moves[i].event != event || r->phase < moves[i].from || r->phase > moves[i].last)
            continue;
        *r = (wefti_round){.phase = moves[i].to, .generation = generation};
        return true;
    }
    return false;
}
