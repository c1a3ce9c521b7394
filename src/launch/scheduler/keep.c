/* Launchers on hosts without the scheduler that start lost ranks again.
 *
 * Each seat of such a host has a keeper: the launcher that starts its processes, one after the
 * other. A launcher asks for the seats of its ranks, and gets them if nobody has them. It also gets
 * them if their keeper has gone and none of their processes lives. A launcher that asks for any
 * seats is a spare: it gets those of a host that is lost. One that adds processes gets further
 * seats (add.c). Until it has seats, a launcher starts nothing. So two launchers never fill the
 * same seat.
 *
 * A launcher that starts nothing again has no seats to ask for. It hears of its ranks' seats when
 * the world can go on without some of them. From then on it asks after each process that it loses.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static bool has(const wefti_span *span, int32_t number) {
    return number >= span->first && number < span->first + span->count;
}

static bool is_here(const wefti_scheduler *s, uint64_t launcher) {
    for (int64_t i = 0; i < s->client_count; i++) {
        const wefti_client *c = s->clients[i];
        if (c->state != WEFTI_CLIENT_OPEN) continue;
        if (c->keep.launcher == launcher || c->launcher.launcher == launcher) return true;
    }
    return false;
}

/* While the world is forming, seats are no ranks yet. */
static bool has_process(const wefti_scheduler *s, int32_t rank) {
    const int32_t slot = s->ranked ? wefti_slot_of_process(s, rank) : -1;
    if (s->ranked) return slot >= 0 && s->slots[slot].client;
    for (int32_t i = 0; i < s->taken; i++)
        if (s->slots[i].join.number == rank) return true;
    return false;
}

/* --- who may speak for which ranks --- */

static const wefti_client *connection_of(const wefti_scheduler *s, uint64_t launcher) {
    for (int64_t i = 0; i < s->client_count; i++) {
        const wefti_client *c = s->clients[i];
        if (c->state == WEFTI_CLIENT_OPEN && c->launcher.launcher == launcher) return c;
    }
    return NULL;
}

static void refuse_claim(wefti_scheduler *s, wefti_client *c, int32_t rank) {
    const wefti_client *owner = connection_of(s, s->keeper[rank]);
    char has[128] = "the launcher that runs the scheduler";
    if (owner)
        (void)snprintf(has, sizeof has, "launcher process %lld at %s",
                       (long long)owner->launcher.pid, owner->address);
    wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "launcher process %lld at %s may not start rank %d: it is started by %s; "
                        "give each host a --host-rank of its own",
                        (long long)c->launcher.pid, c->address, (int)rank, has);
}

static bool is_own(const wefti_scheduler *s, int32_t rank) {
    return has(&s->options.own, rank);
}

static bool is_of_another(const wefti_scheduler *s, int32_t rank, uint64_t launcher) {
    if (is_own(s, rank)) return true;
    if (!s->keeper[rank] || s->keeper[rank] == launcher) return false;
    return is_here(s, s->keeper[rank]) || has_process(s, rank);
}

weft_status wefti_keep_register(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_registration said;
    WEFT_TRY(wefti_registration_decode(frame, &said));
    const int32_t end = said.ranks.first + said.ranks.count;
    const int32_t last = end < s->options.size ? end : s->options.size;
    c->launcher = said;
    if (!wefti_alike_launcher(s, c)) return WEFT_OK;
    for (int32_t r = said.ranks.first; r < last && !said.waits; r++) {
        if (!is_of_another(s, r, said.launcher)) continue;
        refuse_claim(s, c, r);
        return WEFT_OK;
    }
    for (int32_t r = said.ranks.first; r < last && !said.waits; r++) s->keeper[r] = said.launcher;
    return WEFT_OK;
}

/* Ranks that were added, or that the job does not have, are nobody else's. */
bool wefti_keep_owns(wefti_scheduler *s, wefti_client *c, int32_t rank) {
    if (rank >= s->options.size) return true;
    const bool owns = c->launcher.launcher && s->keeper[rank] == c->launcher.launcher;
    if (!owns) refuse_claim(s, c, rank);
    return owns;
}

/* --- seats --- */

/* Whether that launcher fills the seat of the process with this number. */
static bool is_its(const wefti_scheduler *s, const wefti_client *c, int32_t number) {
    if (!c->keep.launcher) return has(&c->watch, number);
    if (number < s->options.size) return s->keeper[number] == c->keep.launcher;
    return c->keeps && has(&c->watch, number);
}

static bool is_free(const wefti_scheduler *s, int32_t rank, uint64_t launcher) {
    const uint64_t keeper = s->keeper[rank];
    if (keeper == 0 || keeper == launcher) return true;
    return !is_here(s, keeper) && !has_process(s, rank);
}

static bool are_free(const wefti_scheduler *s, const wefti_span *seats, uint64_t launcher) {
    for (int32_t r = seats->first; r < seats->first + seats->count; r++)
        if (!is_free(s, r, launcher)) return false;
    return true;
}

/* A number of which the scheduler has no slot: its seat was given up, or its process has not come.
 */
static int32_t deaths_of(const wefti_scheduler *s, const wefti_client *c, int32_t number) {
    const int32_t slot = wefti_slot_of_process(s, number);
    if (slot >= 0) return wefti_slot_killable(&s->slots[slot]);
    if (!c->keep.launcher) return 0; /* it heard so, or its process is a new one */
    return c->coming > 0 || wefti_mend_was_dismissed(s, number) ? 0 : INT32_MAX;
}

static weft_status say_seats(wefti_scheduler *s, wefti_client *c) {
    int32_t *deaths;
    unsigned char *body;
    size_t bytes;
    WEFT_NEW_ARRAY(deaths, int32_t, c->watch.count);
    for (int32_t i = 0; i < c->watch.count; i++)
        deaths[i] = s->ranked ? deaths_of(s, c, c->watch.first + i)
                              : wefti_again_deaths(s, c->watch.first + i);
    weft_status status = wefti_seats_encode(&c->watch, s->options.size, deaths, &body, &bytes);
    wefti_free(deaths);
    WEFT_TRY(status);
    wefti_client_send(s, c, WEFTI_FRAME_SEATS, body, bytes);
    wefti_free(body);
    return WEFT_OK;
}

/* Without memory it goes without its seats, and the time for joining ends that. */
void wefti_keep_say(wefti_scheduler *s, wefti_client *c) {
    c->keeps = say_seats(s, c) >= 0;
}

static void give(wefti_scheduler *s, wefti_client *c, const wefti_span *seats) {
    c->watch = *seats;
    for (int32_t r = seats->first; r < seats->first + seats->count; r++) {
        s->keeper[r] = c->keep.launcher;
        s->earlier[r] = c->keep.again;
        s->called[r] = true;
    }
    wefti_keep_say(s, c);
}

/* The number of the host of an empty seat that no launcher has asked for. It was of a launcher that
 * was lost with the scheduler before. -1: the seat is another one. */
static int32_t orphan_host(const wefti_scheduler *s, int32_t rank) {
    const int32_t slot = s->ranked ? wefti_slot_of_process(s, rank) : -1;
    if (!s->options.fills_no_seats || s->keeper[rank] || slot < 0 || s->slots[slot].client)
        return -1;
    return s->slots[slot].host;
}

static bool have_one_keeper(const wefti_scheduler *s, int32_t a, int32_t b) {
    return s->keeper[a] == s->keeper[b] && orphan_host(s, a) == orphan_host(s, b);
}

/* All seats that `rank`'s keeper has, which are neighbors. */
static wefti_span seats_with(const wefti_scheduler *s, int32_t rank) {
    int32_t first = rank, end = rank + 1;
    while (first > 0 && have_one_keeper(s, first - 1, rank)) first--;
    while (end < s->options.size && have_one_keeper(s, end, rank)) end++;
    return (wefti_span){first, end - first};
}

/* The world waits for processes: it is forming, or is being mended. */
static bool waits(const wefti_scheduler *s) {
    if (s->state == WEFTI_SCHEDULER_FORMING) return true;
    return wefti_mend_phase(s) == WEFTI_MENDING_COUNTING;
}

/* Seats of a host that is lost. False: there are none that so many processes could fill. */
static bool find_lost(const wefti_scheduler *s, const wefti_keep *by, wefti_span *out) {
    if (!waits(s)) return false;
    for (int32_t r = 0; r < s->options.size; r = out->first + out->count) {
        *out = seats_with(s, r);
        const bool kept = s->keeper[r] != 0 || orphan_host(s, r) >= 0;
        if (kept && out->count <= by->seats.count && are_free(s, out, by->launcher)) return true;
    }
    return false;
}

/* --- a host that keeps failing --- */

/* A launcher that waits for the seats of any host. */
static wefti_client *find_spare(const wefti_scheduler *s, const wefti_span *seats) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->state != WEFTI_CLIENT_OPEN || c->keeps || !c->keep.launcher) continue;
        if (c->keep.seats.first == WEFTI_SEATS_OF_LOST && c->keep.seats.count >= seats->count)
            return c;
    }
    return NULL;
}

/* Ranks of another launcher on the same machine could not follow. */
static bool share_memory(const wefti_scheduler *s, const wefti_span *seats) {
    for (int32_t r = 0; s->ranked && r < s->taken; r++)
        for (int32_t q = 0; q < s->taken && has(seats, s->slots[r].number); q++)
            if (s->slots[q].host == s->slots[r].host && !has(seats, s->slots[q].number))
                return true;
    return false;
}

/* With a standby scheduler only processes that have ended are counted, and these may run on. */
bool wefti_keep_leaves_out(wefti_scheduler *s, int32_t number, wefti_span *out) {
    const int64_t now_ns = wefti_now_ns();
    int64_t ns;
    if (number < 0 || number >= s->options.size || !s->keeper[number] || is_own(s, number))
        return false;
    if (s->options.has_other || s->mend.gathered) return false;
    *out = seats_with(s, number);
    const wefti_client *spare = find_spare(s, out);
    const int32_t row =
        wefti_restart_leaves_out(&s->restarts, number, out->first, out->count, now_ns, &ns);
    if (!spare || !row || share_memory(s, out)) return false;
    for (int32_t i = 0; i < out->count; i++) wefti_restart_forget(&s->restarts, out->first + i);
    if (!wefti_restart_take(&s->restarts, WEFTI_RESTART_NOBODY, now_ns)) return false;
    wefti_scheduler_note(s,
                         "the host of ranks %d to %d has failed %d times within %.3g s, rank %d "
                         "last; the spare host at %s takes its place",
                         (int)out->first, (int)(out->first + out->count - 1), (int)row,
                         (double)ns * 1e-9, (int)number, spare->address);
    return true;
}

void wefti_keep_hand_over(wefti_scheduler *s, const wefti_span *seats) {
    wefti_client *spare = find_spare(s, seats);
    if (spare) give(s, spare, seats);
}

/* The launcher of a host that was left out ends its processes, and one of them may still come. */
bool wefti_keep_admits(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (!join->launcher || join->generation || join->number < 0 ||
        join->number >= s->options.size || is_own(s, join->number))
        return true;
    const uint64_t keeper = s->keeper[join->number];
    if (!keeper || keeper == join->launcher || !is_here(s, keeper)) return true;
    wefti_client_refuse(s, client, WEFT_E_LOST, WEFT_RANK_NONE,
                        "another launcher fills the seat of rank %d now", (int)join->number);
    return false;
}

static bool adds(const wefti_scheduler *s, const wefti_span *seats) {
    return seats->first == WEFTI_SEATS_ADDED || seats->first >= s->options.size;
}

static void try_to_give(wefti_scheduler *s, wefti_client *c) {
    wefti_span seats = c->keep.seats;
    if (adds(s, &seats)) {
        wefti_add_try(s, c);
        return;
    }
    if (seats.first < 0 ? find_lost(s, &c->keep, &seats) : are_free(s, &seats, c->keep.launcher))
        give(s, c, &seats);
}

weft_status wefti_keep_ask(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_keep keep;
    WEFT_TRY(wefti_keep_decode(frame, &keep));
    const wefti_span *seats = &keep.seats;
    const bool further = adds(s, seats) && wefti_add_knows(s, &keep);
    if (c->keeps && seats->first < 0) { /* said before it had heard of its seats */
        wefti_client_send(s, c, WEFTI_FRAME_HEARD, NULL, 0);
    } else if (!further && s->options.restarts <= 0) {
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this launcher was started with --restart, but the one that runs the "
                            "scheduler was not: give all of them the same");
    } else if (!further && seats->first >= 0 && seats->first + seats->count > s->options.size) {
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this launcher asks for the seats of %d ranks from rank %d on, but the "
                            "job has %d ranks",
                            (int)seats->count, (int)seats->first, (int)s->options.size);
    } else {
        const bool known = seats->first >= 0 && seats->first < s->options.size &&
                           s->keeper[seats->first] == keep.launcher && !s->earlier[seats->first];
        c->keep = keep;
        /* A launcher without ranks, which says no WATCH, hears that this scheduler has its job. */
        if (c->watch.count == 0 || seats->first < 0)
            wefti_client_send(s, c, WEFTI_FRAME_HEARD, NULL, 0);
        c->keep.again = keep.again && !known;
        c->watch = *seats;
        if (s->is_over) wefti_client_tell_over(s);
        try_to_give(s, c);
    }
    return WEFT_OK;
}

/* Whether the ranks may know more of the launcher's loss than this scheduler, which will hear it
 * from them: it had no world yet, or one whose ranks have not said all. The launcher had its seats,
 * or the leave to ask, from an earlier scheduler. */
static bool is_of_earlier(const wefti_scheduler *s, const wefti_client *c) {
    if (s->state == WEFTI_SCHEDULER_RUNNING && s->mend.gathered) return true;
    if (s->state != WEFTI_SCHEDULER_FORMING || s->whole) return false;
    return c->keep.launcher ? c->keep.again : !c->keeps;
}

wefti_again wefti_keep_answer(wefti_scheduler *s, const wefti_end *end, int starts) {
    if (wefti_mend_awaits(s, end, starts)) return WEFTI_AGAIN_YES;
    return wefti_again_awaits(s, end, starts);
}

static wefti_again answer(wefti_scheduler *s, const wefti_client *c, const wefti_loss *loss) {
    if (!is_its(s, c, loss->end.rank)) return WEFTI_AGAIN_ELSEWHERE;
    wefti_again again = WEFTI_AGAIN_NO;
    if (c->keep.launcher) again = wefti_keep_answer(s, &loss->end, loss->starts);
    if (!is_its(s, c, loss->end.rank)) return WEFTI_AGAIN_ELSEWHERE; /* since this loss */
    if (again != WEFTI_AGAIN_NO) return again;
    return wefti_mend_goes_on(s, &loss->end) ? WEFTI_AGAIN_WITHOUT : WEFTI_AGAIN_NO;
}

weft_status wefti_keep_lost(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_loss loss;
    WEFT_TRY(wefti_loss_decode(frame, &loss));
    unsigned char body[WEFTI_MESSAGE_MAX];
    const int32_t rank = loss.end.rank;
    if (is_of_earlier(s, c)) {
        wefti_gather_note(s, rank, loss.starts);
        c->unanswered = true;
        return WEFT_OK;
    }
    WEFT_REQUIRE(c->watch.count > 0 && rank < s->numbers, WEFT_E_CORRUPT,
                 "the loss of rank %d, which is not this launcher's", (int)rank);
    const wefti_again_message said = {
        .rank = rank, .starts = loss.starts, .again = answer(s, c, &loss)};
    if (said.again != WEFTI_AGAIN_ELSEWHERE) wefti_doubt_ended(s, rank, loss.starts);
    wefti_client_send(s, c, WEFTI_FRAME_AGAIN, body, wefti_again_encode(&said, body));
    return WEFT_OK;
}

void wefti_keep_tell(wefti_scheduler *s, int32_t rank) {
    const int32_t number = s->slots[rank].number;
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->keeps && c->state < WEFTI_CLIENT_GONE && is_its(s, c, number)) wefti_keep_say(s, c);
    }
}

/* A launcher of ranks that starts nothing again, and that the world's end is told to. */
static bool only_watches(const wefti_scheduler *s, const wefti_client *c) {
    const wefti_span *ranks = &c->watch;
    return !c->keep.launcher && ranks->count > 0 && ranks->first >= 0 &&
           ranks->first + ranks->count <= s->options.size;
}

void wefti_keep_check(wefti_scheduler *s) {
    const bool shrinks = s->state == WEFTI_SCHEDULER_RUNNING && wefti_mend_is_elastic(s) &&
                         s->mend.armed >= s->taken && !s->mend.gathered;
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->keeps || c->state != WEFTI_CLIENT_OPEN) continue;
        if (c->keep.launcher)
            try_to_give(s, c);
        else if (shrinks && only_watches(s, c))
            wefti_keep_say(s, c);
    }
}
