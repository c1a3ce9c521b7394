/* What becomes of the process of a seat. docs/design/launch.md has the table in words. */
#include "launch/scheduler/state.h"

/* In the states from `first` to `last`. In the others the event changes nothing. */
#define S(name) WEFTI_SLOT_##name
static const struct {
    wefti_slot_event event;
    wefti_slot_state first, last, to;
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

void wefti_slot_happens(wefti_member_slot *slot, wefti_slot_event event) {
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        if (moves[i].event != event || slot->state < moves[i].first) continue;
        if (slot->state > moves[i].last) continue;
        slot->state = moves[i].to;
        return;
    }
}
