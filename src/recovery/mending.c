/* The scheduler's side: which step a broken world goes on with, and who gives its states to whom.
 */
#include "base/status.h"
#include "recovery/recovery.h"

void wefti_mending_begin(wefti_mending *w, int32_t size, wefti_seat *seats, int64_t generation) {
    *w = (wefti_mending){.generation = generation, .size = size, .whole = size, .seats = seats};
    for (int32_t i = 0; i < size; i++)
        seats[i] = (wefti_seat){.filled = true, .source = WEFTI_SOURCE_OWN, .was = i};
}

/* A new generation: nobody has told it where it stands. */
static unsigned halt(wefti_mending *w) {
    w->phase = WEFTI_MENDING_COUNTING;
    if (w->generation < w->least) w->generation = w->least;
    w->generation++;
    for (int32_t i = 0; i < w->size; i++) {
        w->seats[i].stood = w->seats[i].whole = false;
        w->seats[i].at = (wefti_stand){.step = -1};
    }
    return WEFTI_MENDING_HALT;
}

void wefti_mending_gather(wefti_mending *w, int32_t size, wefti_seat *seats, int64_t least) {
    *w = (wefti_mending){.phase = WEFTI_MENDING_GATHERING,
                         .least = least,
                         .generation = -1,
                         .size = size,
                         .whole = size,
                         .seats = seats};
    for (int32_t i = 0; i < size; i++)
        seats[i] = (wefti_seat){.source = WEFTI_SOURCE_OWN, .was = i};
}

/* The world makes steps if all its ranks say so, of one generation. Else what the scheduler before
 * has said may have reached some ranks and not others: a new generation makes it void. */
static unsigned settle(wefti_mending *w) {
    for (int32_t i = 0; i < w->size; i++)
        if (!w->seats[i].settled) return 0;
    bool whole = !w->broken;
    for (int32_t i = 0; i < w->size; i++) whole = whole && w->seats[i].filled;
    w->phase = WEFTI_MENDING_NOT;
    return WEFTI_MENDING_GATHERED | (whole ? 0 : halt(w));
}

unsigned wefti_mending_returned(wefti_mending *w, int32_t seat, int64_t generation, bool mends,
                                bool is_new) {
    wefti_seat *s = &w->seats[seat];
    if (w->phase != WEFTI_MENDING_GATHERING || s->settled) return 0;
    if (mends || (w->generation >= 0 && generation != w->generation)) w->broken = true;
    if (generation > w->generation) w->generation = generation;
    s->filled = s->settled = true;
    if (is_new) s->was = -1;
    return settle(w);
}

unsigned wefti_mending_missing(wefti_mending *w, int32_t seat) {
    if (w->phase != WEFTI_MENDING_GATHERING || w->seats[seat].settled) return 0;
    w->seats[seat].settled = true;
    return settle(w);
}

unsigned wefti_mending_died(wefti_mending *w, int32_t seat) {
    if (!w->seats[seat].filled) return 0;
    w->seats[seat].filled = false;
    return w->phase == WEFTI_MENDING_GATHERING ? 0 : halt(w);
}

unsigned wefti_mending_rejoined(wefti_mending *w, bool mends) {
    return mends || w->phase != WEFTI_MENDING_NOT ? halt(w) : 0;
}

unsigned wefti_mending_filled(wefti_mending *w, int32_t seat) {
    if (w->seats[seat].filled || w->phase != WEFTI_MENDING_COUNTING) return 0;
    w->seats[seat] = (wefti_seat){.filled = true, .source = WEFTI_SOURCE_OWN, .was = -1};
    return WEFTI_MENDING_HALT;
}

void wefti_mending_dismiss(wefti_mending *w, int32_t seat) {
    if (w->phase == WEFTI_MENDING_COUNTING) w->seats[seat].filled = false;
}

unsigned wefti_mending_grow(wefti_mending *w) {
    w->seats[w->size++] = (wefti_seat){.filled = true, .source = WEFTI_SOURCE_OWN, .was = -1};
    return halt(w);
}

bool wefti_mending_is_resized(const wefti_mending *w) {
    bool moved = w->size != w->whole;
    for (int32_t i = 0; i < w->size; i++)
        moved = moved || (w->seats[i].was >= 0 && w->seats[i].was != i);
    return moved;
}

bool wefti_stand_holds(const wefti_stand *at, int32_t rank) {
    for (int32_t i = 0; i < at->holds_count; i++)
        if (at->holds[i] == rank) return true;
    return false;
}

/* The lowest holder of a seat's state; WEFTI_SOURCE_DISK if nobody has it. */
static int32_t holder(const wefti_mending *w, int32_t seat) {
    for (int32_t i = 0; i < w->size; i++)
        if (w->seats[i].at.step >= 0 && wefti_stand_holds(&w->seats[i].at, seat)) return i;
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
    const bool resized = wefti_mending_is_resized(w);
    if (w->target < 0) {
        all_from_disk(w);
        return WEFT_OK;
    }
    for (int32_t i = 0; i < w->size; i++) {
        wefti_seat *s = &w->seats[i];
        const bool has = s->at.step >= 0;
        s->source = has ? WEFTI_SOURCE_OWN : resized ? WEFTI_SOURCE_ALL : holder(w, i);
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

/* Once all seats are filled and stand. */
static weft_status begin_giving(wefti_mending *w, unsigned *out_actions) {
    for (int32_t i = 0; i < w->size; i++)
        if (!w->seats[i].filled || !w->seats[i].stood) return WEFT_OK;
    w->phase = WEFTI_MENDING_GIVING;
    *out_actions = WEFTI_MENDING_MEND;
    return choose(w);
}

weft_status wefti_mending_stood(wefti_mending *w, int32_t seat, int64_t generation, wefti_stand at,
                                unsigned *out_actions) {
    *out_actions = 0;
    wefti_seat *s = &w->seats[seat];
    if (w->phase != WEFTI_MENDING_COUNTING || generation != w->generation || !s->filled)
        return WEFT_OK;
    s->stood = true;
    s->at = at;
    return begin_giving(w, out_actions);
}

weft_status wefti_mending_shrink(wefti_mending *w, unsigned *out_actions) {
    int32_t kept = 0;
    *out_actions = 0;
    for (int32_t i = 0; i < w->size; i++) kept += w->seats[i].filled;
    if (w->phase != WEFTI_MENDING_COUNTING || kept == 0) return WEFT_OK;
    kept = 0;
    for (int32_t i = 0; i < w->size; i++)
        if (w->seats[i].filled) w->seats[kept++] = w->seats[i];
    w->size = kept;
    return begin_giving(w, out_actions);
}

unsigned wefti_mending_whole(wefti_mending *w, int32_t seat, int64_t generation) {
    if (w->phase != WEFTI_MENDING_GIVING || generation != w->generation) return 0;
    w->seats[seat].whole = true;
    for (int32_t i = 0; i < w->size; i++)
        if (!w->seats[i].whole) return 0;
    w->phase = WEFTI_MENDING_NOT;
    w->whole = w->size;
    for (int32_t i = 0; i < w->size; i++) w->seats[i].was = i;
    return WEFTI_MENDING_GO;
}
