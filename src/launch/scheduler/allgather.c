/* Bootstrap all-gathers. Each member numbers its entries from 1. After a restart the scheduler
 * receives each member's last entry once more, because some member may lack the answer. So it may
 * hold two entries of a member. A second answer to a member that has it already is harmless. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static void drop_first(wefti_member_slot *slot) {
    wefti_free(slot->entry[0].data);
    for (int i = 1; i < WEFTI_ENTRIES_AHEAD; i++) slot->entry[i - 1] = slot->entry[i];
    memset(&slot->entry[WEFTI_ENTRIES_AHEAD - 1], 0, sizeof slot->entry[0]);
}

void wefti_slot_clear(wefti_member_slot *slot) {
    for (int i = 0; i < WEFTI_ENTRIES_AHEAD; i++) drop_first(slot);
}

void wefti_scheduler_entry(wefti_scheduler *s, wefti_client *client, const wefti_entry *entry) {
    if (wefti_mend_phase(s) == WEFTI_MENDING_COUNTING) return; /* of a world that is broken */
    if (entry->number > 0 && entry->number <= s->answered) {   /* it lost the answer, if any */
        if (entry->number == s->answered)
            wefti_client_send_shared(s, client, WEFTI_FRAME_ENTRIES, s->answer);
        return;
    }
    wefti_member_slot *slot = &s->slots[client->slot];
    int at = 0;
    while (at < WEFTI_ENTRIES_AHEAD && slot->entry[at].number) at++;
    unsigned char *copy = NULL;
    bool in_order = at < WEFTI_ENTRIES_AHEAD && entry->number > 0 &&
                    (at == 0 || entry->number == slot->entry[at - 1].number + 1);
    if (in_order && !(copy = wefti_alloc(entry->bytes ? entry->bytes : 1))) in_order = false;
    if (!in_order) {
        wefti_client_lost(s, client, "its all-gather entries came out of order");
        return;
    }
    memcpy(copy, entry->data, entry->bytes);
    slot->entry[at].number = entry->number;
    slot->entry[at].data = copy;
    slot->entry[at].bytes = entry->bytes;
    if (!s->allgather_since_ns) s->allgather_since_ns = wefti_now_ns();
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_scheduler_allgather(s);
}

/* Whether some slot has no entry. Each entry asks this: the search goes on where it ended. */
static bool some_lacks(wefti_scheduler *s) {
    for (int32_t looked = 0; looked < s->taken; looked++, s->lacking++) {
        if (s->lacking >= s->taken) s->lacking = 0;
        if (!s->slots[s->lacking].entry[0].number) return true;
    }
    return false;
}

/* The number that is due, 0 unless all have a card of it. Cards before it were answered, else their
 * member could not have gone on. */
static uint64_t complete_number(wefti_scheduler *s) {
    uint64_t due = 0;
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].entry[0].number > due) due = s->slots[r].entry[0].number;
    bool complete = due > 0;
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        while (slot->entry[0].number && slot->entry[0].number < due) drop_first(slot);
        complete = complete && slot->entry[0].number == due;
    }
    return complete ? due : 0;
}

static bool sizes_agree(wefti_scheduler *s) {
    for (int32_t r = 1; r < s->taken; r++) {
        if (s->slots[r].entry[0].bytes == s->slots[0].entry[0].bytes) continue;
        wefti_text text = {0};
        wefti_slot_name(s, 0, &text);
        wefti_text_add(&text, " and ");
        wefti_slot_name(s, r, &text);
        wefti_text_add(&text, " gather entries of %zu and %zu bytes: they are at different places",
                       s->slots[0].entry[0].bytes, s->slots[r].entry[0].bytes);
        wefti_scheduler_abort_text(s, WEFT_E_MISMATCH, WEFT_RANK_NONE, &text);
        return false;
    }
    return true;
}

/* One block for all: it is as large as there are members, and copies would be so once more. */
static weft_status answer(wefti_scheduler *s, uint64_t number) {
    size_t each = s->slots[0].entry[0].bytes, bytes = WEFTI_ENTRY_HEAD + each * (size_t)s->taken;
    WEFT_REQUIRE(bytes <= WEFTI_ENTRIES_MAX, WEFT_E_ARG,
                 "entries of %zu bytes are too large for an all-gather among %d ranks", each,
                 (int)s->taken);
    wefti_shared_body *block;
    WEFT_TRY(wefti_shared_body_create(bytes, &block));
    unsigned char *body = wefti_shared_body_data(block);
    wefti_entry_head(number, each, body);
    for (int32_t r = 0; r < s->taken; r++)
        memcpy(body + WEFTI_ENTRY_HEAD + each * (size_t)r, s->slots[r].entry[0].data, each);
    for (int32_t r = 0; r < s->taken; r++) {
        drop_first(&s->slots[r]);
        if (s->slots[r].client)
            wefti_client_send_shared(s, s->slots[r].client, WEFTI_FRAME_ENTRIES, block);
    }
    wefti_shared_body_release(s->answer);
    s->answer = block;
    s->answered = number;
    return WEFT_OK;
}

void wefti_scheduler_allgather(wefti_scheduler *s) {
    uint64_t number;
    while (s->state == WEFTI_SCHEDULER_RUNNING && !some_lacks(s) &&
           (number = complete_number(s)) > 0) {
        if (!sizes_agree(s)) return;
        weft_status status = answer(s, number);
        if (status < 0) {
            wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
            return;
        }
        s->allgather_since_ns = 0;
    }
    for (int32_t r = 0; r < s->taken && !s->allgather_since_ns; r++)
        if (s->slots[r].entry[0].number) s->allgather_since_ns = wefti_now_ns();
}

void wefti_scheduler_check_allgather(wefti_scheduler *s, int64_t now_ns) {
    if (!s->allgather_since_ns || now_ns - s->allgather_since_ns <= s->join_ns) return;
    wefti_text text = {0};
    int absent = 0;
    int32_t culprit = WEFT_RANK_NONE; /* if there is only one */
    for (int32_t r = 0; r < s->taken; r++) {
        if (s->slots[r].entry[0].number || ++absent > 8) continue;
        culprit = absent == 1 ? wefti_slot_rank(s, r) : WEFT_RANK_NONE;
        wefti_text_add(&text, absent > 1 ? ", " : "");
        wefti_slot_name(s, r, &text);
    }
    wefti_text_add(&text,
                   "%s %s not come to an exchange of addresses that the others began %.4g s ago",
                   absent > 8 ? " and more" : "", absent > 1 ? "have" : "has",
                   (double)(now_ns - s->allgather_since_ns) * 1e-9);
    wefti_scheduler_abort_text(s, WEFT_E_TIMEOUT, culprit, &text);
}
