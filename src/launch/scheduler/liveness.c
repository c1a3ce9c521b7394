/* Which ranks of a world live: see liveness.h. */
#include "launch/scheduler/liveness.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const int64_t second_ns = 1000000000;

/* --- the process of a seat. docs/design/launch.md has the table --- */

/* In the states from `first` to `last`. In the others the event changes nothing. */
#define S(name) WEFTI_LIFE_##name
static const struct {
    wefti_life_event event;
    wefti_life_state first, last, to;
} moves[] = {
    {S(DIES), S(RANK), S(RANK), S(DEAD)},
    {S(DIES), S(NEWCOMER), S(NEWCOMER), S(NEWCOMER_DIED)},
    {S(DIES), S(LEFT), S(PARTED), S(DEAD)},
    {S(LEAVES), S(RANK), S(PARTED), S(LEFT)},
    {S(PARTS), S(LEFT), S(LEFT), S(PARTED)},
    {S(EMPTIES), S(RANK), S(DEAD), S(DEAD)},
    {S(AWAITS), S(RANK), S(AWAITED), S(AWAITED)},
    {S(AWAITS_NONE), S(AWAITED), S(AWAITED), S(DEAD)},
    {S(FILLS), S(RANK), S(AWAITED), S(NEWCOMER)},
    {S(GOES_ON), S(NEWCOMER), S(NEWCOMER), S(RANK)},
};

void wefti_life_happens(wefti_life *rank, wefti_life_event event) {
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        if (moves[i].event != event || rank->state < moves[i].first) continue;
        if (rank->state > moves[i].last) continue;
        rank->state = moves[i].to;
        return;
    }
}

/* --- worlds --- */

static wefti_life life_of(wefti_life_state state, int64_t now_ns) {
    return (wefti_life){.state = state, .heard_ns = now_ns, .standing = {.since_ns = now_ns}};
}

void wefti_liveness_begin(wefti_liveness *l, int32_t count, int64_t now_ns) {
    const int32_t touched = count > l->count ? count : l->count;
    memset(l->ranks, 0, (size_t)touched * sizeof *l->ranks);
    for (int32_t r = 0; r < count; r++) l->ranks[r] = life_of(WEFTI_LIFE_RANK, now_ns);
    l->count = count;
    l->looked_ns = now_ns;
    l->blame.until_ns = 0;
}

void wefti_liveness_grow(wefti_liveness *l, int64_t now_ns) {
    l->ranks[l->count++] = life_of(WEFTI_LIFE_NEWCOMER, now_ns);
}

void wefti_liveness_shrink(wefti_liveness *l, int32_t count) {
    memset(&l->ranks[count], 0, (size_t)(l->count - count) * sizeof *l->ranks);
    l->count = count;
}

/* --- what ranks say --- */

/* Heartbeats tell of several steps at once, or of one after several. A rank that was mended, or
 * reads a checkpoint, may begin again at a lower number. */
static void note_pace(wefti_pace *p, int64_t step, int64_t now_ns) {
    enum { WEIGHT = 4 }; /* of all before, against the last */
    if (step == p->step) return;
    if (p->step > 0 && step > p->step && now_ns > p->since_ns) {
        const int64_t took = (now_ns - p->since_ns) / (step - p->step);
        p->pace_ns = p->pace_ns ? (WEIGHT * p->pace_ns + took) / (WEIGHT + 1) : took;
    }
    p->step = step;
    p->since_ns = now_ns;
}

void wefti_liveness_beat(wefti_liveness *l, int32_t rank, const wefti_standing *at,
                         int64_t now_ns) {
    wefti_life *of = &l->ranks[rank];
    of->standing = *at;
    of->heard_ns = of->said_ns = now_ns;
    note_pace(&of->pace, at->step, now_ns);
}

void wefti_liveness_fill(wefti_liveness *l, int32_t rank, int64_t now_ns) {
    wefti_life *of = &l->ranks[rank];
    wefti_life_happens(of, WEFTI_LIFE_FILLS);
    of->heard_ns = now_ns;
    of->standing = (wefti_standing){.since_ns = now_ns};
}

void wefti_liveness_halt(wefti_liveness *l) {
    l->blame.until_ns = 0;
    for (int32_t r = 0; r < l->count; r++) l->ranks[r].gave_up = false;
}

void wefti_liveness_go(wefti_liveness *l, int64_t now_ns) {
    for (int32_t r = 0; r < l->count; r++) {
        wefti_life_happens(&l->ranks[r], WEFTI_LIFE_GOES_ON);
        l->ranks[r].standing.waiting = false;
        l->ranks[r].standing.since_ns = now_ns;
    }
}

/* --- blame --- */

/* Whether something is to be heard from the blamed rank that counts more than this word. */
static bool can_say_more(const wefti_liveness *l, const wefti_last_word *word) {
    const int32_t blamed = word->said.failed;
    if (!word->runs || blamed == word->rank) return false;
    /* In a world that can be mended some process may have died, whoever is blamed. */
    if (word->mendable) return true;
    if (blamed < 0 || blamed >= l->count) return false;
    return !wefti_has_left(&l->ranks[blamed]) && !l->ranks[blamed].gave_up;
}

/* Whether the rank has lost its connection to a rank that has not left in peace: else their calls
 * were unlike. A rank may hear from another one that it is lost itself. */
static bool has_lost_connection(const wefti_liveness *l, const wefti_last_word *word) {
    const int32_t blamed = word->said.failed;
    const bool lost = word->said.status == WEFT_E_LOST;
    if ((!lost && word->said.status != WEFT_E_PEER) || word->of_itself) return false;
    if (blamed >= 0 && blamed < l->count && l->ranks[blamed].state == WEFTI_LIFE_PARTED)
        return false;
    return lost || word->mendable || blamed >= 0;
}

bool wefti_liveness_gave_up(wefti_liveness *l, const wefti_last_word *word, int64_t now_ns) {
    weft_status *status = &l->blame.reason.status;
    /* A consequence of the death that is being mended. */
    if (word->halted && !word->of_itself) return false;
    l->ranks[word->rank].gave_up = true;
    const bool awaits = wefti_liveness_awaits_word(l);
    if (awaits && word->rank != l->blame.reason.failed) return false; /* not the first */
    l->blame.reason = word->said;
    l->blame.cut_off = has_lost_connection(l, word) ? word->rank : -1;
    /* A rank that was lost, or late, may do better the next time. */
    if (l->blame.cut_off >= 0)
        *status = WEFT_E_LOST;
    else if (*status != WEFT_E_TIMEOUT && (*status != WEFT_E_LOST || !word->of_itself))
        *status = WEFT_E_PEER;
    if (!can_say_more(l, word)) return true;
    if (!awaits) l->blame.until_ns = now_ns + WEFTI_WORD_SECONDS * second_ns;
    return false;
}

/* --- leaving --- */

/* Whether some rank has not left. Each rank that leaves asks this: the search goes on where it
 * ended. */
static bool some_stays(wefti_liveness *l) {
    for (int32_t looked = 0; looked < l->count; looked++, l->staying++) {
        if (l->staying >= l->count) l->staying = 0;
        if (!wefti_has_left(&l->ranks[l->staying])) return true;
    }
    return false;
}

bool wefti_liveness_left(wefti_liveness *l, int32_t rank) {
    wefti_life_happens(&l->ranks[rank], WEFTI_LIFE_LEAVES);
    return wefti_liveness_awaits_word(l) && (rank == l->blame.reason.failed || !some_stays(l));
}

bool wefti_liveness_parted(wefti_liveness *l, int32_t rank) {
    if (!l->ranks[rank].gave_up) wefti_life_happens(&l->ranks[rank], WEFTI_LIFE_PARTS);
    return !some_stays(l);
}

/* --- waits --- */

static bool is_waiting(const wefti_life *rank) {
    return !wefti_has_left(rank) && rank->standing.waiting;
}

/* The rank that has waited longest, -1: none waits. */
static int32_t longest_wait(const wefti_liveness *l) {
    int32_t longest = -1;
    for (int32_t r = 0; r < l->count; r++)
        if (is_waiting(&l->ranks[r]) &&
            (longest < 0 || l->ranks[r].standing.since_ns < l->ranks[longest].standing.since_ns))
            longest = r;
    return longest;
}

static int by_place(const void *a, const void *b, void *ranks) {
    const wefti_life *of = ranks;
    return strcmp(of[*(const int32_t *)a].standing.what, of[*(const int32_t *)b].standing.what);
}

/* A rank that waits in the transfer in which most do; -1: there is no such transfer, or all wait in
 * it, or there is no memory. */
static int32_t find_crowd(const wefti_liveness *l) {
    int32_t *waits = wefti_calloc((size_t)l->count, sizeof *waits);
    int32_t waiting = 0, crowd = -1, most = 0;
    for (int32_t r = 0; waits && r < l->count; r++)
        if (is_waiting(&l->ranks[r])) waits[waiting++] = r;
    if (waits) qsort_r(waits, (size_t)waiting, sizeof *waits, by_place, l->ranks);
    for (int32_t i = 0, end; i < waiting; i = end) {
        for (end = i + 1; end < waiting && by_place(&waits[i], &waits[end], l->ranks) == 0;) end++;
        if (end - i >= most) crowd = end - i > most ? waits[i] : -1;
        if (end - i > most) most = end - i;
    }
    wefti_free(waits);
    return most < waiting ? crowd : -1;
}

/* Which ranks keep the others waiting: ranks that have left or compute (for long, if any rank
 * does); else ranks that wait in another transfer than most; else ranks that are behind. */
typedef struct suspicion {
    bool computing;
    int64_t since_before; /* counts only ranks that compute since before this time */
    int32_t crowd;        /* a rank that waits where most do; -1: where they wait tells nothing */
    uint64_t ahead;       /* the most transfers done */
} suspicion;

static suspicion suspect(const wefti_liveness *l, int64_t now) {
    suspicion by = {.since_before = now};
    for (int32_t r = 0; r < l->count; r++) {
        const wefti_life *rank = &l->ranks[r];
        if (!is_waiting(rank)) {
            by.computing = true;
            if (!wefti_has_left(rank) && now - rank->standing.since_ns > l->wait_ns / 2)
                by.since_before = now - l->wait_ns / 2;
        } else if (rank->standing.done > by.ahead) {
            by.ahead = rank->standing.done;
        }
    }
    by.crowd = by.computing ? -1 : find_crowd(l);
    return by;
}

static bool is_culprit(const wefti_liveness *l, int32_t r, const suspicion *by) {
    const wefti_life *rank = &l->ranks[r];
    if (by->computing)
        return !is_waiting(rank) &&
               (wefti_has_left(rank) || rank->standing.since_ns <= by->since_before);
    if (by->crowd >= 0) return by_place(&r, &by->crowd, l->ranks) != 0;
    return rank->standing.done < by->ahead;
}

static wefti_late accuse(const wefti_liveness *l, int32_t victim, int64_t now) {
    const suspicion by = suspect(l, now);
    wefti_late late = {.kind = WEFTI_LATE_WAITS, .rank = victim};
    for (int32_t r = 0; r < l->count; r++) {
        if (!is_culprit(l, r, &by)) continue;
        if (late.culprits < WEFTI_LATE_NAMED) late.named[late.culprits] = r;
        late.culprits++;
    }
    return late;
}

/* Somebody has left, and all others wait, and nothing comes to any of them: nobody will ever answer
 * them. What one transfer moves may take longer than heartbeats do. Only what ranks have said
 * counts: a wait may have ended since. */
static bool deserted(const wefti_liveness *l) {
    bool left = false;
    for (int32_t r = 0; r < l->count; r++) {
        const wefti_standing *standing = &l->ranks[r].standing;
        left = left || wefti_has_left(&l->ranks[r]);
        if (wefti_has_left(&l->ranks[r])) continue;
        int64_t since =
            standing->since_ns > standing->moved_ns ? standing->since_ns : standing->moved_ns;
        if (!standing->waiting || l->ranks[r].said_ns - since < l->silence_ns) return false;
    }
    return left;
}

wefti_late wefti_liveness_check(wefti_liveness *l, bool halted, int64_t now_ns) {
    const wefti_late none = {.kind = WEFTI_LATE_NONE};
    /* After a pause of our own (this process was stopped, or the machine slept) what the others
     * said meanwhile is read first. */
    if (now_ns - l->looked_ns > second_ns)
        for (int32_t r = 0; r < l->count; r++) l->ranks[r].heard_ns = now_ns;
    l->looked_ns = now_ns;
    for (int32_t r = 0; r < l->count; r++)
        if (l->ranks[r].state < WEFTI_LIFE_LEFT && now_ns - l->ranks[r].heard_ns > l->silence_ns)
            return (wefti_late){.kind = WEFTI_LATE_SILENT, .rank = r};
    const int32_t victim = halted ? -1 : longest_wait(l);
    if (victim < 0) return none;
    /* By then all others have said where they stand since the time was up. */
    const int64_t limit_ns = l->wait_ns + l->silence_ns / 3;
    const bool too_long = now_ns - l->ranks[victim].standing.since_ns > limit_ns;
    return too_long || deserted(l) ? accuse(l, victim, now_ns) : none;
}
