/* All-gathers of cards. Each member's cards are numbered from 1. A scheduler that was started again
 * gets each member's last card once more, as somebody may not have got the answer, and so may hold
 * two cards of a member; the answer to a card that all have is harmless. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static void drop_first(wefti_seat *seat) {
    wefti_free(seat->card[0].data);
    for (int i = 1; i < WEFTI_CARDS_AHEAD; i++) seat->card[i - 1] = seat->card[i];
    memset(&seat->card[WEFTI_CARDS_AHEAD - 1], 0, sizeof seat->card[0]);
}

void wefti_seat_clear(wefti_seat *seat) {
    for (int i = 0; i < WEFTI_CARDS_AHEAD; i++) drop_first(seat);
}

void wefti_scheduler_card(wefti_scheduler *s, wefti_client *client, const wefti_card *card) {
    if (card->number > 0 && card->number <= s->answered) { /* it lost the answer, if any */
        if (card->number == s->answered)
            wefti_client_send_block(s, client, WEFTI_FRAME_CARDS, s->answer);
        return;
    }
    wefti_seat *seat = &s->seats[client->seat];
    int at = 0;
    while (at < WEFTI_CARDS_AHEAD && seat->card[at].number) at++;
    unsigned char *copy = NULL;
    bool in_order = at < WEFTI_CARDS_AHEAD && card->number > 0 &&
                    (at == 0 || card->number == seat->card[at - 1].number + 1);
    if (in_order && !(copy = wefti_alloc(card->bytes ? card->bytes : 1))) in_order = false;
    if (!in_order) {
        wefti_client_lost(s, client, "its cards came out of order");
        return;
    }
    memcpy(copy, card->data, card->bytes);
    seat->card[at].number = card->number;
    seat->card[at].data = copy;
    seat->card[at].bytes = card->bytes;
    if (!s->swap_since_ns) s->swap_since_ns = wefti_now_ns();
    if (s->state == WEFTI_SCHEDULER_RUNNING) wefti_scheduler_swap(s);
}

/* The number that is due, 0 unless all have a card of it. Cards before it were answered, else their
 * member could not have gone on. */
static uint64_t complete_number(wefti_scheduler *s) {
    uint64_t due = 0;
    for (int32_t r = 0; r < s->taken; r++)
        if (s->seats[r].card[0].number > due) due = s->seats[r].card[0].number;
    bool complete = due > 0;
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_seat *seat = &s->seats[r];
        while (seat->card[0].number && seat->card[0].number < due) drop_first(seat);
        complete = complete && seat->card[0].number == due;
    }
    return complete ? due : 0;
}

static bool sizes_agree(wefti_scheduler *s) {
    for (int32_t r = 1; r < s->taken; r++) {
        if (s->seats[r].card[0].bytes == s->seats[0].card[0].bytes) continue;
        wefti_text text = {0};
        wefti_seat_name(s, 0, &text);
        wefti_text_add(&text, " and ");
        wefti_seat_name(s, r, &text);
        wefti_text_add(&text, " exchange cards of %zu and %zu bytes: they are at different places",
                       s->seats[0].card[0].bytes, s->seats[r].card[0].bytes);
        wefti_scheduler_judge_text(s, WEFT_E_MISMATCH, WEFT_RANK_NONE, &text);
        return false;
    }
    return true;
}

/* One block for all: it is as large as there are members, and copies would be so once more. */
static weft_status answer(wefti_scheduler *s, uint64_t number) {
    size_t each = s->seats[0].card[0].bytes, bytes = WEFTI_CARD_HEAD + each * (size_t)s->taken;
    WEFT_REQUIRE(bytes <= WEFTI_CARDS_MAX, WEFT_E_ARG,
                 "cards of %zu bytes are too large for an exchange among %d", each, (int)s->taken);
    wefti_block *block;
    WEFT_TRY(wefti_block_create(bytes, &block));
    unsigned char *body = wefti_block_body(block);
    wefti_card_head(number, each, body);
    for (int32_t r = 0; r < s->taken; r++)
        memcpy(body + WEFTI_CARD_HEAD + each * (size_t)r, s->seats[r].card[0].data, each);
    for (int32_t r = 0; r < s->taken; r++) {
        drop_first(&s->seats[r]);
        if (s->seats[r].client)
            wefti_client_send_block(s, s->seats[r].client, WEFTI_FRAME_CARDS, block);
    }
    wefti_block_release(s->answer);
    s->answer = block;
    s->answered = number;
    return WEFT_OK;
}

void wefti_scheduler_swap(wefti_scheduler *s) {
    uint64_t number;
    while (s->state == WEFTI_SCHEDULER_RUNNING && (number = complete_number(s)) > 0) {
        if (!sizes_agree(s)) return;
        weft_status status = answer(s, number);
        if (status < 0) {
            wefti_scheduler_judge(s, status, WEFT_RANK_NONE, weft_error_message());
            return;
        }
        s->swap_since_ns = 0;
    }
    for (int32_t r = 0; r < s->taken && !s->swap_since_ns; r++)
        if (s->seats[r].card[0].number) s->swap_since_ns = wefti_now_ns();
}

void wefti_scheduler_check_swap(wefti_scheduler *s, int64_t now_ns) {
    if (!s->swap_since_ns || now_ns - s->swap_since_ns <= s->join_ns) return;
    wefti_text text = {0};
    int absent = 0;
    int32_t culprit = WEFT_RANK_NONE; /* if there is only one */
    for (int32_t r = 0; r < s->taken; r++) {
        if (s->seats[r].card[0].number || ++absent > 8) continue;
        culprit = absent == 1 ? wefti_seat_rank(s, r) : WEFT_RANK_NONE;
        wefti_text_add(&text, absent > 1 ? ", " : "");
        wefti_seat_name(s, r, &text);
    }
    wefti_text_add(&text,
                   "%s %s not come to an exchange of addresses that the others began %.4g s ago",
                   absent > 8 ? " and more" : "", absent > 1 ? "have" : "has",
                   (double)(now_ns - s->swap_since_ns) * 1e-9);
    wefti_scheduler_judge_text(s, WEFT_E_TIMEOUT, culprit, &text);
}
