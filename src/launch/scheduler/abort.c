/* What the scheduler says about ranks: to all members when the job has failed, and in the table
 * for whoever started it. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

void wefti_seat_name(const wefti_scheduler *s, int32_t rank, wefti_text *out) {
    const wefti_seat *seat = &s->seats[rank];
    if (s->ranked)
        wefti_text_add(out, "rank %d (process %lld on host %d)", (int)rank,
                       (long long)seat->join.pid, (int)seat->host);
    else
        wefti_text_add(out, "process %lld at %s", (long long)seat->join.pid, seat->address);
}

int32_t wefti_seat_rank(const wefti_scheduler *s, int32_t seat) {
    return s->ranked ? seat : WEFT_RANK_NONE;
}

static void add_place(const wefti_standing *standing, wefti_text *out) {
    if (standing->step > 0) wefti_text_add(out, " in step %lld", (long long)standing->step);
    wefti_text_add(out, " (%llu transfers done)", (unsigned long long)standing->done);
}

void wefti_seat_stand(const wefti_seat *seat, int64_t now_ns, wefti_text *out) {
    const wefti_standing *standing = &seat->standing;
    double seconds = (double)(now_ns - standing->since_ns) * 1e-9;
    if (standing->waiting)
        wefti_text_add(out, "waiting for %.1f s in %s", seconds,
                       standing->what[0] ? standing->what : "a transfer");
    else if (standing->what[0])
        wefti_text_add(out, "%s for %.1f s", standing->what, seconds);
    else
        wefti_text_add(out, "computing for %.1f s", seconds);
    add_place(standing, out);
}

void wefti_scheduler_judge(wefti_scheduler *s, weft_status status, int32_t failed,
                           const char *text) {
    if (s->state == WEFTI_SCHEDULER_FAILED || s->state == WEFTI_SCHEDULER_LEFT) return;
    unsigned char body[WEFTI_MESSAGE_MAX];
    size_t bytes = wefti_verdict_encode(status, failed, text, body);
    s->verdict.status = status;
    s->verdict.failed = failed;
    size_t n = strnlen(text, WEFTI_TEXT_MAX);
    memcpy(s->verdict.text, text, n);
    s->verdict.text[n] = 0;
    s->judged_ns = wefti_now_ns();
    s->state = WEFTI_SCHEDULER_FAILED;
    pthread_cond_broadcast(&s->changed);
    for (int32_t i = 0; i < s->taken; i++) {
        if (!s->seats[i].client) continue;
        wefti_client_send(s, s->seats[i].client, WEFTI_FRAME_VERDICT, body, bytes);
        wefti_scheduler_note_told(s, s->ranked ? i : s->seats[i].join.rank);
    }
    wefti_scheduler_take_waiting(s);
}

void wefti_scheduler_note_told(wefti_scheduler *s, int32_t rank) {
    /* A rank that there is not: who counts otherwise may be on any host. */
    for (int32_t r = 0; r < s->options.size && rank >= 0; r++)
        if (r == rank || rank >= s->options.size) s->told[r] = true;
}

void wefti_scheduler_judge_text(wefti_scheduler *s, weft_status status, int32_t failed,
                                wefti_text *text) {
    char *words = wefti_text_take(text);
    wefti_scheduler_judge(s, status, failed,
                          words ? words : "a rank failed (no memory to say which)");
    wefti_free(words);
}

static const char *fate(const wefti_seat *seat) {
    return seat->dead ? "died" : seat->left ? "left" : "";
}

char *wefti_scheduler_table(wefti_scheduler *s) {
    wefti_text out = {0};
    pthread_mutex_lock(&s->lock);
    int64_t now = s->judged_ns ? s->judged_ns : wefti_now_ns();
    if (s->ranked)
        wefti_text_add(&out, "rank  host  process     where it stood\n");
    else if (s->taken > 0)
        wefti_text_add(&out, "%d of %d processes had come\n", (int)s->taken, (int)s->options.size);
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_seat *seat = &s->seats[r];
        if (s->ranked)
            wefti_text_add(&out, "%4d  %4d  %-10lld  %s", (int)r, (int)seat->host,
                           (long long)seat->join.pid, fate(seat));
        else
            wefti_text_add(&out, "process %lld at %s", (long long)seat->join.pid, seat->address);
        if (s->ranked && !seat->left) {
            wefti_text_add(&out, seat->dead ? ": " : "");
            wefti_seat_stand(seat, now, &out);
        }
        wefti_text_add(&out, "\n");
    }
    pthread_mutex_unlock(&s->lock);
    return wefti_text_take(&out);
}
