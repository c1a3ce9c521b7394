/* Forming a world: which members are taken or refused, and the start once all are here.
 *
 * A restarted scheduler finds members of a running world. They come with their generation and
 * rank, and the world is complete when all are back. Members of an older generation are left over
 * from a job that has ended. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

void wefti_scheduler_release_slot(wefti_scheduler *s, int32_t slot) {
    wefti_slot_clear(&s->slots[slot]);
    wefti_seats_remove(s, slot);
    int32_t last = --s->taken;
    if (last == 0) wefti_alike_next_world(s);
    if (slot != last) {
        wefti_seats_remove(s, last);
        s->slots[slot] = s->slots[last];
        s->slots[slot].client->slot = slot;
        wefti_seats_add(s, slot);
    }
    s->slots[last] = (wefti_member_slot){0};
}

void wefti_scheduler_take_seat(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_member_slot *slot = &s->slots[s->taken];
    *slot = (wefti_member_slot){.client = client, .join = *join, .came = join->generation};
    memcpy(slot->address, client->address, sizeof slot->address);
    client->slot = s->taken++;
    wefti_seats_add(s, client->slot);
    wefti_again_came(s, join->number);
    wefti_alike_seated(s, client, join);
}

/* Dismisses waiting members without a generation, or with an older one, when `generation` comes
 * back. */
static void dismiss_others(wefti_scheduler *s, uint64_t generation) {
    for (int32_t i = s->taken - 1; i >= 0; i--) {
        wefti_client *client = s->slots[i].client;
        if (s->slots[i].join.generation == generation) continue;
        wefti_scheduler_release_slot(s, i);
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this job runs already, and its members come back to a scheduler that "
                            "was started again (generation %llu)",
                            (unsigned long long)generation);
    }
}

void wefti_scheduler_replace(wefti_scheduler *s, int32_t slot, wefti_client *client) {
    wefti_client *old = s->slots[slot].client;
    s->slots[slot].client = client;
    client->slot = slot;
    wefti_slot_clear(&s->slots[slot]); /* it repeats its cards */
    if (old) {
        old->slot = -1;
        wefti_client_lost(s, old, "");
    }
}

bool wefti_same_process(const wefti_join *a, const wefti_join *b) {
    return a->pid == b->pid && strcmp(a->host, b->host) == 0;
}

/* Whether another process has the rank or node id already; then the answer is given here. */
static bool collides(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    int32_t by_rank = wefti_seats_of_number(s, join->number);
    int32_t seat = by_rank >= 0 ? by_rank : wefti_seats_of_node(s, join);
    if (seat < 0) return false;
    const wefti_member_slot *slot = &s->slots[seat];
    if (join->generation && wefti_same_process(join, &slot->join))
        wefti_scheduler_replace(s, seat, client);
    else if (by_rank >= 0)
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "two processes are to be rank %d: process %lld at %s, which came "
                            "first, and process "
                            "%lld at %s, which is refused",
                            (int)join->number, (long long)slot->join.pid, slot->address,
                            (long long)join->pid, client->address);
    else
        wefti_client_refuse(
            s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
            "two processes of one host have node id '%s': process %lld, which came first, and "
            "process %lld, which is refused",
            join->node, (long long)slot->join.pid, (long long)join->pid);
    return true;
}

/* A world, and the next one has not begun. */
static bool has_ended(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_LEFT || (s->state == WEFTI_SCHEDULER_FORMING && s->past);
}

/* It was added to a world that runs. An earlier scheduler may have given it its number. */
static bool was_added(const wefti_scheduler *s, const wefti_join *join) {
    return join->number >= s->options.size && (join->size > 0 || join->number < s->numbers);
}

static bool fits_job(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    int32_t size = s->options.size;
    if (strcmp(join->job, s->job) != 0)
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this is the scheduler of job '%s', not of '%s'", s->job, join->job);
    else if (join->size >= 0 && join->size != size)
        wefti_client_refuse(
            s, client, join->armed ? WEFT_E_LOST : WEFT_E_MISMATCH, WEFT_RANK_NONE,
            "this process expects a job of %d, but the scheduler was started for %d",
            (int)join->size, (int)size);
    else if (join->generation)
        return true;
    else if (was_added(s, join) && has_ended(s))
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this process was added to a world that has ended");
    else if (join->number >= s->numbers && !was_added(s, join))
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "rank %d is not among the ranks 0 to %d of this job", (int)join->number,
                            (int)size - 1);
    else
        return true;
    return false;
}

static bool fits_generation(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    uint64_t known = s->generation > s->past ? s->generation : s->past;
    if (join->generation > known && !s->options.generation && s->state == WEFTI_SCHEDULER_FORMING) {
        s->generation = join->generation;
        dismiss_others(s, join->generation);
        return true;
    }
    /* A generation that was given to us may be made, or come back. */
    bool fresh =
        join->generation == 0 && (s->generation == 0 || s->generation == s->options.generation);
    if (fresh || (s->generation && join->generation == s->generation)) return true;
    if (join->generation == 0)
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this job runs already (generation %llu): no new process can join it",
                            (unsigned long long)known);
    else
        wefti_scheduler_refuse_past(s, client, join);
    return false;
}

/* One that was lost to a world that goes on may be started again. */
void wefti_scheduler_refuse_past(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const uint64_t known = s->generation > s->past ? s->generation : s->past;
    wefti_client_refuse(
        s, client, join->armed ? WEFT_E_LOST : WEFT_E_MISMATCH, WEFT_RANK_NONE,
        "this process belongs to generation %llu of the job, which is over; this is %llu",
        (unsigned long long)join->generation, (unsigned long long)known);
}

static weft_status tell_rank(wefti_scheduler *s, int32_t rank, const wefti_seated *seats) {
    wefti_world_message placed = {.generation = s->generation,
                                  .rank = rank,
                                  .size = s->taken,
                                  .first_size = s->options.size,
                                  .numbers = s->numbers,
                                  .whole = s->whole,
                                  .hosted_by = s->options.hosted_by,
                                  .heartbeat_ns = s->heartbeat_ns,
                                  .mends = s->mend.seats && s->options.restarts > 0,
                                  .resizes = s->mend.seats != NULL,
                                  .newcomer = wefti_is_new(&s->live.ranks[rank]),
                                  .used = wefti_mend_used(s),
                                  .deaths = s->slots[rank].deaths};
    unsigned char *body;
    size_t bytes;
    if (!s->slots[rank].client) return WEFT_OK;
    if (s->slots[rank].join.generation < s->generation) { /* it is a HALT */
        placed.failed = s->mend.halt.failed;
        memcpy(placed.text, s->mend.halt.text, sizeof placed.text);
    }
    WEFT_TRY(wefti_world_message_encode(&placed, seats, &body, &bytes));
    s->slots[rank].told = rank;
    wefti_client_send(s, s->slots[rank].client, WEFTI_FRAME_WORLD, body, bytes);
    wefti_free(body);
    return WEFT_OK;
}

weft_status wefti_scheduler_seats(const wefti_scheduler *s, wefti_seated **out) {
    WEFT_NEW_ARRAY(*out, wefti_seated, s->taken);
    for (int32_t r = 0; r < s->taken; r++)
        (*out)[r] = (wefti_seated){s->slots[r].host, s->slots[r].number};
    return WEFT_OK;
}

weft_status wefti_scheduler_tell_world(wefti_scheduler *s, int32_t first, int32_t count) {
    wefti_seated *seats;
    weft_status status = WEFT_OK;
    WEFT_TRY(wefti_scheduler_seats(s, &seats));
    for (int32_t r = first; r < first + count && status >= 0; r++) status = tell_rank(s, r, seats);
    wefti_free(seats);
    return status;
}

static void come_back(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const int32_t rank = wefti_slot_of_process(s, join->number);
    if (rank < 0) {
        wefti_scheduler_refuse_past(s, client, join);
        return;
    }
    const wefti_member_slot *slot = &s->slots[rank];
    wefti_life *life = &s->live.ranks[rank];
    if (life->state >= WEFTI_LIFE_LEFT || !wefti_same_process(join, &slot->join)) {
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, rank, "rank %d of generation %llu %s",
                            (int)rank, (unsigned long long)join->generation,
                            wefti_is_dead(life)    ? "has died, as far as this job is concerned"
                            : wefti_has_left(life) ? "has left"
                                                   : "is another process");
        return;
    }
    wefti_scheduler_replace(s, rank, client);
    life->heard_ns = wefti_now_ns();
    weft_status status = wefti_scheduler_tell_world(s, rank, 1);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
}

static void change_state(wefti_scheduler *s, wefti_scheduler_state state) {
    s->state = state;
    pthread_cond_broadcast(&s->changed);
}

uint64_t wefti_new_generation(uint64_t past) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return now > past ? now : past + 1;
}

static void judge_missing(wefti_scheduler *s, const wefti_end *end) {
    wefti_text text = {0};
    bool known = end->rank < s->options.size;
    wefti_text_add(&text, "%s", end->text);
    if (known)
        wefti_text_add(&text, " before all ranks had come%s%s", s->alike.refusal[0] ? "; " : "",
                       s->alike.refusal);
    else
        wefti_text_add(&text,
                       ", and is none of the %d ranks of this job; its host was told another "
                       "number",
                       (int)s->options.size);
    wefti_scheduler_abort_text(s, wefti_end_status(end), known ? end->rank : WEFT_RANK_NONE, &text);
}

/* Programs may join several worlds, one after the other. */
static void begin_again(wefti_scheduler *s) {
    wefti_again_next_world(s);
    if (s->has_ended) judge_missing(s, &s->first_end); /* that one will not come */
}

static void complete(wefti_scheduler *s) {
    weft_status status = wefti_scheduler_rank(s);
    if (status >= 0) {
        if (!s->generation) s->generation = wefti_new_generation(s->past);
        s->own = s->generation;
        s->whole = s->generation;
        wefti_liveness_begin(&s->live, s->taken, wefti_now_ns());
        for (int32_t r = 0; r < s->taken; r++)
            if (!s->slots[r].came) s->slots[r].deaths = wefti_again_deaths(s, r);
        s->ranked = true;
        wefti_restart_went_on(&s->restarts);
        wefti_alike_complete(s);
        wefti_mend_begin(s);
        change_state(s, WEFTI_SCHEDULER_RUNNING);
        status = wefti_scheduler_tell_world(s, 0, s->taken);
    }
    if (status < 0)
        wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    else
        wefti_gather_release_launchers(s);
    if (status >= 0)
        wefti_scheduler_allgather(s); /* cards that were repeated while the others came back */
    if (status >= 0) wefti_scheduler_take_waiting(s);
}

/* One that has left this world comes for the next, while others are still in this one. */
static bool is_early(const wefti_scheduler *s, const wefti_join *join) {
    if (s->state != WEFTI_SCHEDULER_RUNNING || !s->options.repeats || join->generation)
        return false;
    const int32_t slot = wefti_slot_of_process(s, join->number);
    return slot >= 0 && wefti_has_left(&s->live.ranks[slot]);
}

void wefti_scheduler_wait_for_next_world(wefti_scheduler *s, wefti_client *client,
                                         const wefti_join *join) {
    client->next = wefti_calloc(1, sizeof *client->next);
    if (client->next)
        *client->next = *join;
    else
        wefti_client_refuse(s, client, WEFT_E_NOMEM, WEFT_RANK_NONE, "no memory for a member");
}

void wefti_scheduler_take_waiting(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *client = s->clients[i];
        wefti_join *join = client->next;
        if (!join || client->state == WEFTI_CLIENT_GONE) continue;
        client->next = NULL;
        wefti_scheduler_take_in(s, client, join);
        wefti_free(join);
    }
}

static void refuse_failed(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_client_refuse(s, client, s->reason.status, s->reason.failed, "this job has failed: %s",
                        s->reason.text);
    wefti_scheduler_note_told(s, join->number);
}

void wefti_scheduler_take_in(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (s->state == WEFTI_SCHEDULER_FAILED) {
        refuse_failed(s, client, join);
        return;
    }
    if (!fits_job(s, client, join)) return;
    if (join->number >= s->numbers) s->numbers = join->number + 1;
    if (is_early(s, join)) {
        wefti_scheduler_wait_for_next_world(s, client, join);
        return;
    }
    if (s->state == WEFTI_SCHEDULER_LEFT && s->options.repeats && join->generation == 0) {
        begin_again(s);
        if (s->state == WEFTI_SCHEDULER_FAILED) {
            refuse_failed(s, client, join);
            return;
        }
    }
    if (wefti_standby_has_strayed(s, join)) {
        wefti_client_drop(s, client); /* it tries the other one again */
        return;
    }
    if (!wefti_alike_check(s, client, join) || !wefti_keep_admits(s, client, join)) return;
    if (wefti_gather_take(s, client, join) || wefti_mend_rejoin(s, client, join)) return;
    if (wefti_mend_take_in(s, client, join)) return;
    if (s->state != WEFTI_SCHEDULER_FORMING && join->generation == 0) {
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "one process too many: this job has %d members, and all of them are "
                            "here (generation %llu)",
                            (int)s->options.size, (unsigned long long)s->generation);
        return;
    }
    if (join->number >= s->options.size) {
        if (join->generation)
            wefti_scheduler_refuse_past(s, client, join);
        else /* the world to which it was added has not come back yet */
            wefti_scheduler_wait_for_next_world(s, client, join);
        return;
    }
    if (!fits_generation(s, client, join)) return;
    if (s->state != WEFTI_SCHEDULER_FORMING) {
        come_back(s, client, join);
        return;
    }
    if (collides(s, client, join)) return;
    wefti_scheduler_take_seat(s, client, join);
    if (s->taken == s->options.size) complete(s);
}

static void add_missing_ranks(const wefti_scheduler *s, wefti_text *text) {
    bool known = s->taken > 0;
    for (int32_t i = 0; i < s->taken; i++) known = known && s->slots[i].join.number >= 0;
    if (!known) return;
    int listed = 0;
    bool *here = wefti_calloc((size_t)s->options.size, sizeof *here);
    for (int32_t i = 0; here && i < s->taken; i++) here[s->slots[i].join.number] = true;
    for (int32_t r = 0; here && r < s->options.size && listed < 16; r++)
        if (!here[r]) wefti_text_add(text, "%s%d", listed++ ? ", " : ": rank ", (int)r);
    wefti_free(here);
    if (s->options.size - s->taken > listed) wefti_text_add(text, ", ...");
}

void wefti_scheduler_check_forming(wefti_scheduler *s, int64_t now_ns) {
    if (s->gather.since_ns) {
        wefti_gather_check(s, now_ns);
        return;
    }
    const int64_t early_ns = 10000000000;
    const int64_t waited_ns = now_ns - s->start_ns;
    const bool too_late = waited_ns > s->join_ns;
    /* Not of programs of which none ever joins, nor while lost processes pause. */
    const bool is_due = s->taken > 0 && !s->told_missing && !s->past && s->restarts.all == 0;
    if (!too_late && (!is_due || waited_ns < early_ns)) return;
    int missing = (int)(s->options.size - s->taken);
    wefti_text text = {0};
    wefti_text_add(&text, "%d of %d processes %s missing after %.4g s", missing,
                   (int)s->options.size, missing == 1 ? "is" : "are",
                   (double)(too_late ? s->join_ns : early_ns) * 1e-9);
    add_missing_ranks(s, &text);
    if (s->alike.refusal[0]) wefti_text_add(&text, "; %s", s->alike.refusal);
    if (too_late) {
        wefti_scheduler_abort_text(s, WEFT_E_TIMEOUT, WEFT_RANK_NONE, &text);
        return;
    }
    s->told_missing = true;
    wefti_scheduler_note(s, "%.800s; the others wait for %.4g s at most (ctrl-C ends that)",
                         text.data ? text.data : "some processes are missing",
                         (double)s->join_ns * 1e-9);
    wefti_text_free(&text);
}

/* The exit code of a process that was asked to stop and has left: 128 + the signal, as shells
 * report it. */
static bool ended_by_request(const wefti_scheduler *s, const wefti_end *end) {
    const int32_t slot = s->ranked ? wefti_slot_of_process(s, end->rank) : -1;
    return slot >= 0 && wefti_has_left(&s->live.ranks[slot]) && wefti_is_request(end->code - 128);
}

void wefti_scheduler_rank_ended(wefti_scheduler *s, const wefti_end *end) {
    bool failed = (end->code || end->signal) && !ended_by_request(s, end);
    wefti_scheduler_note_told(s, end->rank);
    if (failed && !s->is_over) {
        s->is_over = true;
        s->end = *end;
        wefti_client_tell_over(s);
    }
    if (!s->has_ended) {
        s->has_ended = true;
        s->first_end = *end;
    }
    const bool gathers = !failed && wefti_gather_ended(s, end->rank, 1);
    if (s->state == WEFTI_SCHEDULER_FORMING && !gathers) judge_missing(s, end);
    wefti_mend_ended(s, end);
}
