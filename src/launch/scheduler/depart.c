/* Members that leave report the calls that they made in groups of the same ranks. The scheduler
 * names members that made different calls: no other part might ever notice
 * (comm/collective/record.c). */
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* What points to it; at NULL: this is the first. */
static wefti_parted **find(wefti_scheduler *s, const wefti_call_record *record) {
    wefti_parted **at = &s->parted[record->ranks % WEFTI_PARTED_BUCKETS];
    while (*at && (*at)->record.ranks != record->ranks) at = &(*at)->next;
    return at;
}

/* `theirs` is what `other` has called. */
static void abort_with(wefti_scheduler *s, int32_t rank, const wefti_call_record *mine,
                       int32_t other, const char *theirs) {
    wefti_text text = {0};
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " and ");
    wefti_slot_name(s, other, &text);
    wefti_text_add(&text,
                   " have left, and had not made the same calls (another root, size or tag, one "
                   "left out, say): rank %d in %s; rank %d in %s",
                   (int)rank, mine->text, (int)other, theirs);
    s->unlike = true;
    wefti_scheduler_abort_text(s, WEFT_E_MISMATCH, WEFT_RANK_NONE, &text);
    wefti_client_tell_unlike(s);
}

/* Of messages more may have been received than sent: a receive that was begun, and left, of
 * whatever tag. */
static bool are_unlike(const wefti_call_record *a, const wefti_call_record *b) {
    if (a->side == WEFTI_SENT && b->side == WEFTI_RECEIVED && a->calls < b->calls) return false;
    if (a->side == WEFTI_RECEIVED && b->side == WEFTI_SENT && b->calls < a->calls) return false;
    return a->calls != b->calls || a->digest != b->digest;
}

void wefti_scheduler_compare(wefti_scheduler *s, int32_t rank, const wefti_call_records *records) {
    if (wefti_has_left(&s->live.ranks[rank])) return; /* it has said so before */
    /* One that has no memory says nothing. */
    s->slots[rank].partial = records->count == 0 || records->count == WEFTI_CALL_RECORDS;
    if (wefti_liveness_awaits_word(&s->live)) return; /* the job is about to fail, amid calls */
    if (s->mend.was) return;                          /* a newcomer has not made them all */
    for (int32_t i = 0; i < records->count && s->state == WEFTI_SCHEDULER_RUNNING; i++) {
        const wefti_call_record *mine = &records->of[i];
        wefti_parted **at = find(s, mine), *other = *at;
        if (!other) {
            *at = wefti_calloc(1, sizeof **at);
            if (*at)
                **at = (wefti_parted){.rank = rank, .record = *mine};
            else
                s->slots[rank].partial = true; /* the next is the first */
        } else if (are_unlike(mine, &other->record)) {
            abort_with(s, rank, mine, other->rank, other->record.text);
        } else if (mine->other >= 0 && other->rank != rank) { /* nobody else names them */
            *at = other->next;
            wefti_free(other);
        }
    }
}

void wefti_scheduler_compare_all(wefti_scheduler *s) {
    for (int b = 0; b < WEFTI_PARTED_BUCKETS; b++)
        for (const wefti_parted *p = s->parted[b]; p; p = p->next) {
            int32_t other = p->record.other;
            if (s->state != WEFTI_SCHEDULER_RUNNING) return;
            if (other < 0 || other >= s->taken || s->slots[other].partial) continue;
            if (p->record.side == WEFTI_RECEIVED) continue;
            abort_with(s, p->rank, &p->record, other, "none of these");
        }
}

void wefti_scheduler_forget_parted(wefti_scheduler *s) {
    for (int b = 0; b < WEFTI_PARTED_BUCKETS; b++) {
        for (wefti_parted *p = s->parted[b], *next; p; p = next) {
            next = p->next;
            wefti_free(p);
        }
        s->parted[b] = NULL;
    }
}
