/* Which ranks of a world live: see liveness.h. */
#include "launch/scheduler/liveness.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const int64_t second_ns = 1000000000;

/* --- the process of a seat. docs/design/launch.md has the table in words --- */

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

weft_status wefti_liveness_create(wefti_liveness *l, int32_t room) {
    WEFT_NEW_ARRAY(l->ranks, wefti_life, room);
    return WEFT_OK;
}

void wefti_liveness_free(wefti_liveness *l) {
    wefti_free(l->ranks);
    l->ranks = NULL;
}

void wefti_liveness_begin(wefti_liveness *l, int32_t count, int64_t now_ns) {
    const int32_t touched = count > l->count ? count : l->count;
    memset(l->ranks, 0, (size_t)touched * sizeof *l->ranks);
    for (int32_t r = 0; r < count; r++)
        l->ranks[r] = (wefti_life){.heard_ns = now_ns, .standing = {.since_ns = now_ns}};
    l->count = count;
    l->looked_ns = now_ns;
    l->blame.until_ns = 0;
}

void wefti_liveness_grow(wefti_liveness *l, int64_t now_ns) {
    l->ranks[l->count++] = (wefti_life){
        .state = WEFTI_LIFE_NEWCOMER, .heard_ns = now_ns, .standing = {.since_ns = now_ns}};
}

void wefti_liveness_move(wefti_liveness *l, int32_t to, int32_t from) {
    l->ranks[to] = l->ranks[from];
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

void wefti_liveness_fail(wefti_liveness *l) {
    l->blame.until_ns = 0;
}

/* --- blame --- */

/* Whether something is to be heard from `blamed` that counts more than this word. */
static bool can_say_more(const wefti_liveness *l, const wefti_last_word *word, int32_t blamed) {
    if (!word->runs || blamed == word->rank) return false;
    /* In a world that can be mended some process may have died, whoever is blamed. */
    if (word->mendable) return true;
    if (blamed < 0 || blamed >= l->count) return false;
    return !wefti_has_left(&l->ranks[blamed]) && !l->ranks[blamed].gave_up;
}

/* Whether the rank has lost its connection to a rank that has not left in peace: else their calls
 * were unlike. A rank may hear from another one that it is lost itself. */
static bool is_of_connection(const wefti_liveness *l, const wefti_last_word *word) {
    const int32_t blamed = word->said.failed;
    const bool lost = word->said.status == WEFT_E_LOST;
    if ((!lost && word->said.status != WEFT_E_PEER) || word->of_itself) return false;
    if (blamed >= 0 && blamed < l->count) return l->ranks[blamed].state != WEFTI_LIFE_PARTED;
    return lost || word->mendable;
}

/* A rank that was lost, or late, may do better the next time. */
static weft_status status_of(const wefti_last_word *word, bool of_connection) {
    const weft_status said = word->said.status;
    if (of_connection) return WEFT_E_LOST;
    if (said == WEFT_E_TIMEOUT || (said == WEFT_E_LOST && word->of_itself)) return said;
    return WEFT_E_PEER;
}

wefti_word_answer wefti_liveness_gave_up(wefti_liveness *l, const wefti_last_word *word,
                                         int64_t now_ns) {
    wefti_life *rank = &l->ranks[word->rank];
    const bool mends = word->phase != WEFTI_MENDING_NOT;
    if (mends && wefti_is_new(rank) && word->of_itself) return WEFTI_WORD_REFUSES;
    /* A consequence of the death that is being mended. */
    if (word->phase == WEFTI_MENDING_COUNTING && !word->of_itself) return WEFTI_WORD_IGNORED;
    rank->gave_up = true;
    const bool awaits = wefti_liveness_awaits_word(l);
    if (awaits && word->rank != l->blame.reason.failed) return WEFTI_WORD_IGNORED; /* not first */
    l->blame.reason = word->said;
    l->blame.by = word->rank;
    l->blame.of_connection = is_of_connection(l, word);
    l->blame.reason.status = status_of(word, l->blame.of_connection);
    if (!can_say_more(l, word, word->said.failed)) return WEFTI_WORD_COUNTS;
    if (!awaits) l->blame.until_ns = now_ns + WEFTI_WORD_SECONDS * second_ns;
    return WEFTI_WORD_IGNORED;
}

bool wefti_liveness_is_word_late(const wefti_liveness *l, int64_t now_ns) {
    return wefti_liveness_awaits_word(l) && now_ns > l->blame.until_ns;
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

static bool same_transfer(const wefti_life *a, const wefti_life *b) {
    return strcmp(a->standing.what, b->standing.what) == 0;
}

static int by_place(const void *a, const void *b, void *ranks) {
    const wefti_life *of = ranks;
    return strcmp(of[*(const int32_t *)a].standing.what, of[*(const int32_t *)b].standing.what);
}

/* For each rank that waits, how many wait where it waits; wefti_free. NULL: no memory. */
static int32_t *find_company(const wefti_liveness *l) {
    int32_t *sorted = wefti_calloc((size_t)l->count, sizeof *sorted), waiting = 0;
    int32_t *company = sorted ? wefti_calloc((size_t)l->count, sizeof *company) : NULL;
    for (int32_t r = 0; company && r < l->count; r++)
        if (is_waiting(&l->ranks[r])) sorted[waiting++] = r;
    if (company) qsort_r(sorted, (size_t)waiting, sizeof *sorted, by_place, l->ranks);
    for (int32_t i = 0, end; company && i < waiting; i = end) {
        for (end = i + 1; end < waiting && by_place(&sorted[i], &sorted[end], l->ranks) == 0;)
            end++;
        for (int32_t k = i; k < end; k++) company[sorted[k]] = end - i;
    }
    wefti_free(sorted);
    return company;
}

/* Which ranks keep the others waiting: ranks that have left or compute (for long, if any rank
 * does); else ranks that wait in another transfer than most; else ranks that are behind. */
typedef struct suspicion {
    bool computing, elsewhere, behind;
    int64_t since_before; /* counts only ranks that compute since before this time */
    int32_t place;        /* a rank that waits where most do */
    uint64_t ahead;       /* the most transfers done */
} suspicion;

static suspicion suspect(const wefti_liveness *l, int64_t now) {
    suspicion by = {.since_before = now, .place = -1};
    int32_t most = 0;
    bool tie = false, one_place = true;
    uint64_t least = UINT64_MAX;
    int32_t *company = find_company(l);
    for (int32_t r = 0; r < l->count; r++) {
        const wefti_life *rank = &l->ranks[r];
        if (!is_waiting(rank)) {
            by.computing = true;
            if (!wefti_has_left(rank) && now - rank->standing.since_ns > l->wait_ns / 2)
                by.since_before = now - l->wait_ns / 2;
            continue;
        }
        int32_t with = company ? company[r] : 1;
        if (by.place >= 0 && !same_transfer(rank, &l->ranks[by.place])) one_place = false;
        if (with > most) {
            tie = false;
            by.place = r;
            most = with;
        } else if (with == most && !same_transfer(rank, &l->ranks[by.place]))
            tie = true;
        if (rank->standing.done > by.ahead) by.ahead = rank->standing.done;
        if (rank->standing.done < least) least = rank->standing.done;
    }
    wefti_free(company);
    by.elsewhere = !by.computing && !one_place && !tie;
    by.behind = !by.computing && !by.elsewhere && least < by.ahead;
    return by;
}

static bool is_culprit(const wefti_liveness *l, int32_t r, const suspicion *by) {
    const wefti_life *rank = &l->ranks[r];
    const bool left = wefti_has_left(rank);
    if (by->computing)
        return !is_waiting(rank) && (left || rank->standing.since_ns <= by->since_before);
    if (by->elsewhere) return !same_transfer(rank, &l->ranks[by->place]);
    return by->behind && rank->standing.done < by->ahead;
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
