/* The scheduler's side: which step a broken world goes on with, and who gives its states to whom.
 */
#include "base/status.h"
#include "launch/recovery/recovery.h"

void wefti_mending_begin(wefti_mending *w, int32_t size, wefti_seat *seats, wefti_holders holders,
                         int64_t generation) {
    *w =
        (wefti_mending){.generation = generation, .size = size, .seats = seats, .holders = holders};
    for (int32_t i = 0; i < size; i++)
        seats[i] = (wefti_seat){.filled = true, .source = WEFTI_SOURCE_OWN};
}

/* A new generation: nobody has told it where it stands. */
static unsigned halt(wefti_mending *w) {
    w->phase = WEFTI_MENDING_COUNTING;
    w->generation++;
    for (int32_t i = 0; i < w->size; i++) w->seats[i].stood = w->seats[i].whole = false;
    return WEFTI_MENDING_HALT;
}

unsigned wefti_mending_died(wefti_mending *w, int32_t seat) {
    if (!w->seats[seat].filled) return 0;
    w->seats[seat].filled = false;
    return halt(w);
}

unsigned wefti_mending_filled(wefti_mending *w, int32_t seat) {
    if (w->seats[seat].filled || w->phase != WEFTI_MENDING_COUNTING) return 0;
    w->seats[seat] = (wefti_seat){.filled = true, .source = WEFTI_SOURCE_OWN};
    return WEFTI_MENDING_HALT;
}

/* A holder of a seat's state that has it; WEFTI_SOURCE_DISK if none has. */
static int32_t holder(const wefti_mending *w, int32_t seat) {
    for (int32_t k = w->holders.first[seat]; k < w->holders.first[seat + 1]; k++) {
        const wefti_standing_report *at = &w->seats[w->holders.holder[k]].at;
        if (at->step >= 0 && (at->copies || !w->holders.copies)) return w->holders.holder[k];
    }
    return WEFTI_SOURCE_DISK;
}

static void all_from_disk(wefti_mending *w) {
    w->target = w->saved;
    for (int32_t i = 0; i < w->size; i++) w->seats[i].source = WEFTI_SOURCE_DISK;
}

/* The furthest step that a survivor has committed. All others then have that step's gradients. */
static weft_status choose(wefti_mending *w) {
    int32_t first = 0;
    for (int32_t i = 1; i < w->size; i++)
        if (w->seats[i].at.step > w->seats[first].at.step) first = i;
    w->target = w->seats[first].at.step;
    for (int32_t i = 0; i < w->size; i++) {
        wefti_seat *s = &w->seats[i];
        const bool has = s->at.step >= 0;
        s->source = has ? WEFTI_SOURCE_OWN : holder(w, i);
        if (s->source == WEFTI_SOURCE_DISK) {
            all_from_disk(w);
            return WEFT_OK;
        }
        const bool follows =
            s->at.step == w->target || (s->at.step == w->target - 1 && s->at.ready);
        if (has && !follows) {
            const int64_t step = s->at.step, target = w->target;
            all_from_disk(w);
            WEFT_FAIL(WEFT_E_CORRUPT,
                      "rank %d has committed %lld steps, but rank %d only %lld, and it has not the "
                      "gradients of the next",
                      (int)first, (long long)target, (int)i, (long long)step);
        }
    }
    return WEFT_OK;
}

weft_status wefti_mending_stood(wefti_mending *w, int32_t seat, int64_t generation,
                                wefti_standing_report at, unsigned *out_actions) {
    *out_actions = 0;
    wefti_seat *s = &w->seats[seat];
    if (w->phase != WEFTI_MENDING_COUNTING || generation != w->generation || !s->filled)
        return WEFT_OK;
    s->stood = true;
    s->at = at;
    for (int32_t i = 0; i < w->size; i++)
        if (!w->seats[i].filled || !w->seats[i].stood) return WEFT_OK;
    w->phase = WEFTI_MENDING_GIVING;
    *out_actions = WEFTI_MENDING_MEND;
    return choose(w);
}

unsigned wefti_mending_whole(wefti_mending *w, int32_t seat, int64_t generation) {
    if (w->phase != WEFTI_MENDING_GIVING || generation != w->generation) return 0;
    w->seats[seat].whole = true;
    for (int32_t i = 0; i < w->size; i++)
        if (!w->seats[i].whole) return 0;
    w->phase = WEFTI_MENDING_NOT;
    return WEFTI_MENDING_GO;
}

bool wefti_mending_gives(const wefti_mending *w, int32_t from, int32_t of, int32_t to) {
    const wefti_seat *x = &w->seats[of];
    if (to == of) return x->source == from;
    if (!w->holders.copies || x->source == WEFTI_SOURCE_DISK || w->seats[to].at.copies)
        return false;
    /* An owner without state takes it first; its source gives the copy as well. */
    const int32_t giver = x->source == WEFTI_SOURCE_OWN ? of : x->source;
    bool holds = false;
    for (int32_t k = w->holders.first[of]; k < w->holders.first[of + 1]; k++)
        holds = holds || w->holders.holder[k] == to;
    return holds && giver == from;
}
