/* What the scheduler says about ranks: to all members when the job has failed, and in the table
 * for whoever started it. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

void wefti_slot_name(const wefti_scheduler *s, int32_t rank, wefti_text *out) {
    const wefti_member_slot *slot = &s->slots[rank];
    if (s->ranked)
        wefti_text_add(out, "rank %d (process %lld on host %d)", (int)rank,
                       (long long)slot->join.pid, (int)slot->host);
    else
        wefti_text_add(out, "process %lld at %s", (long long)slot->join.pid, slot->address);
}

int32_t wefti_slot_rank(const wefti_scheduler *s, int32_t slot) {
    return s->ranked ? slot : WEFT_RANK_NONE;
}

static void add_place(const wefti_standing *standing, wefti_text *out) {
    if (standing->step > 0) wefti_text_add(out, " in step %lld", (long long)standing->step);
    wefti_text_add(out, " (%llu transfers done)", (unsigned long long)standing->done);
}

/* A table's time may be earlier than the last beat of a rank. */
static double seconds_since(int64_t then_ns, int64_t now_ns) {
    return now_ns > then_ns ? (double)(now_ns - then_ns) * 1e-9 : 0;
}

void wefti_life_describe(const wefti_life *life, int64_t now_ns, wefti_text *out) {
    const wefti_standing *standing = &life->standing;
    const double seconds = seconds_since(standing->since_ns, now_ns);
    if (standing->waiting)
        wefti_text_add(out, "waiting for %.1f s in %s", seconds,
                       standing->what[0] ? standing->what : "a transfer");
    else if (standing->what[0])
        wefti_text_add(out, "%s for %.1f s", standing->what, seconds);
    else
        wefti_text_add(out, "computing for %.1f s", seconds);
    add_place(standing, out);
}

void wefti_scheduler_abort(wefti_scheduler *s, weft_status status, int32_t failed,
                           const char *text) {
    if (s->state == WEFTI_SCHEDULER_FAILED || s->state == WEFTI_SCHEDULER_LEFT) return;
    unsigned char body[WEFTI_MESSAGE_MAX];
    size_t bytes = wefti_abort_reason_encode(status, failed, text, body);
    s->reason.status = status;
    s->reason.failed = failed;
    size_t n = strnlen(text, WEFTI_TEXT_MAX);
    memcpy(s->reason.text, text, n);
    s->reason.text[n] = 0;
    s->checked_ns = wefti_now_ns();
    s->live.blame.until_ns = 0;
    s->state = WEFTI_SCHEDULER_FAILED;
    pthread_cond_broadcast(&s->changed);
    for (int32_t i = 0; i < s->taken; i++) {
        if (!s->slots[i].client) continue;
        wefti_client_send(s, s->slots[i].client, WEFTI_FRAME_ABORT, body, bytes);
        wefti_scheduler_note_told(s, s->ranked ? s->slots[i].number : s->slots[i].join.number);
    }
    wefti_gather_release_launchers(s);
    wefti_scheduler_take_waiting(s);
}

void wefti_scheduler_note_told(wefti_scheduler *s, int32_t rank) {
    /* `rank` may be outside [0, size) when a foreign launcher numbers ranks differently: then mark
     * every rank as told. Those that were added are no ranks of the first world. */
    if (rank >= s->options.size && rank < s->numbers) return;
    if (rank >= 0 && rank < s->options.size) s->told[rank] = true;
    for (int32_t r = 0; r < s->options.size && rank >= s->options.size; r++) s->told[r] = true;
}

void wefti_scheduler_abort_text(wefti_scheduler *s, weft_status status, int32_t failed,
                                wefti_text *text) {
    char *words = wefti_text_take(text);
    wefti_scheduler_abort(s, status, failed,
                          words ? words : "a rank failed (no memory to say which)");
    wefti_free(words);
}

static const char *fate(const wefti_life *life) {
    return wefti_is_dead(life) ? "died" : wefti_has_left(life) ? "left" : "";
}

/* How old an entry is: what it says held when the rank said so. */
static void add_age(const wefti_life *life, int64_t now, wefti_text *out) {
    char age[32] = "-";
    if (life->said_ns > 0)
        (void)snprintf(age, sizeof age, "%.1f s ago", seconds_since(life->said_ns, now));
    wefti_text_add(out, "%-11s  ", age);
}

char *wefti_scheduler_table(wefti_scheduler *s) {
    wefti_text out = {0};
    pthread_mutex_lock(&s->lock);
    int64_t now = s->checked_ns ? s->checked_ns : wefti_now_ns();
    if (s->ranked)
        wefti_text_add(&out, "rank  host  process     said         where it stood\n");
    else if (s->taken > 0)
        wefti_text_add(&out, "%d of %d processes had come\n", (int)s->taken, (int)s->options.size);
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        const wefti_life *life = &s->live.ranks[r];
        if (s->ranked)
            wefti_text_add(&out, "%4d  %4d  %-10lld  ", (int)r, (int)slot->host,
                           (long long)slot->join.pid);
        else
            wefti_text_add(&out, "process %lld at %s", (long long)slot->join.pid, slot->address);
        if (s->ranked) {
            add_age(life, now, &out);
            wefti_text_add(&out, "%s", fate(life));
        }
        if (s->ranked && !wefti_has_left(life)) {
            wefti_text_add(&out, wefti_is_dead(life) ? ": " : "");
            wefti_life_describe(life, now, &out);
        }
        wefti_text_add(&out, "\n");
    }
    pthread_mutex_unlock(&s->lock);
    return wefti_text_take(&out);
}
