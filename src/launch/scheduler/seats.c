/* Finds the member that has a number or a node id already, while a world is forming. Each member
 * that comes asks, so the search must not pass all seats. */
#include <string.h>

#include "base/digest/digest.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* Seats in a list and in the index of numbers are stored as their number plus 1; 0 is none. */

weft_status wefti_seats_create(wefti_scheduler *s) {
    s->seats.of_number = wefti_calloc((size_t)s->options.size, sizeof *s->seats.of_number);
    s->seats.of_node = wefti_calloc((size_t)s->options.size, sizeof *s->seats.of_node);
    WEFT_REQUIRE(s->seats.of_number && s->seats.of_node, WEFT_E_NOMEM,
                 "no memory for a scheduler of %d members", (int)s->options.size);
    return WEFT_OK;
}

void wefti_seats_free(wefti_scheduler *s) {
    wefti_free(s->seats.of_number);
    wefti_free(s->seats.of_node);
}

void wefti_seats_clear(wefti_scheduler *s) {
    memset(s->seats.of_number, 0, (size_t)s->options.size * sizeof *s->seats.of_number);
    memset(s->seats.of_node, 0, (size_t)s->options.size * sizeof *s->seats.of_node);
}

/* The list of all node ids with the same remainder. */
static int32_t *list_of(const wefti_scheduler *s, const wefti_join *join) {
    uint64_t digest = wefti_digest_text(wefti_digest_text(0, join->node), join->host);
    return &s->seats.of_node[digest % (uint64_t)s->options.size];
}

/* Processes that were added are few. */
static bool is_indexed(const wefti_scheduler *s, int32_t number) {
    return number >= 0 && number < s->options.size;
}

void wefti_seats_add(wefti_scheduler *s, int32_t seat) {
    wefti_member_slot *slot = &s->slots[seat];
    if (is_indexed(s, slot->join.number)) s->seats.of_number[slot->join.number] = seat + 1;
    if (!slot->join.node[0]) return;
    int32_t *list = list_of(s, &slot->join);
    slot->next_node = *list;
    *list = seat + 1;
}

void wefti_seats_remove(wefti_scheduler *s, int32_t seat) {
    const wefti_member_slot *slot = &s->slots[seat];
    if (is_indexed(s, slot->join.number)) s->seats.of_number[slot->join.number] = 0;
    if (!slot->join.node[0]) return;
    int32_t *at = list_of(s, &slot->join);
    while (*at && *at != seat + 1) at = &s->slots[*at - 1].next_node;
    if (*at) *at = slot->next_node;
}

int32_t wefti_seats_of_number(const wefti_scheduler *s, int32_t number) {
    if (number < 0) return -1;
    if (is_indexed(s, number)) return s->seats.of_number[number] - 1;
    int32_t seat = s->taken - 1;
    while (seat >= 0 && s->slots[seat].join.number != number) seat--;
    return seat;
}

int32_t wefti_seats_of_node(const wefti_scheduler *s, const wefti_join *join) {
    if (!join->node[0]) return -1;
    int32_t at = *list_of(s, join);
    for (; at; at = s->slots[at - 1].next_node) {
        const wefti_join *other = &s->slots[at - 1].join;
        if (!strcmp(join->node, other->node) && !strcmp(join->host, other->host)) break;
    }
    return at - 1;
}
