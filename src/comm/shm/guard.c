/* Device memory of other processes, which a device may guard (`expose_peer` of device/device.h). A
 * rank exposes the ranges of a transfer while it moves the data. Without such a device this costs
 * one comparison. */
#include "comm/shm/shm.h"

/* A rank's arenas lie in the upper half of its heap (comm/host/device.c). */
static bool is_guarded(const wefti_shm_rank *local, int32_t place, const void *p) {
    const wefti_shm_area *area = &local->world->area[place];
    uintptr_t offset = (uintptr_t)p - area->view;
    return local->world->guarded && place != local->place && offset >= area->bytes / 2 &&
           offset < area->bytes;
}

bool wefti_shm_expose(wefti_shm_rank *local, int32_t place, const void *p, int64_t bytes) {
    if (!p || bytes <= 0 || !is_guarded(local, place, p)) return false;
    wefti_byte_range range = {p, bytes};
    if (local->world->guarded->expose_peer(&range, 1) >= 0) return true;
    wefti_shm_break(local, WEFT_RANK_OWN, "%s", weft_error_message());
    return false;
}

void wefti_shm_conceal(const wefti_shm_rank *local, const void *p, int64_t bytes) {
    wefti_byte_range range = {p, bytes};
    local->world->guarded->conceal_peer(&range, 1);
}

/* Exposes or conceals what a move may touch of a member: its source, and if all members write the
 * results of a reduction, its destination. */
static void change(wefti_shm_rank *local, wefti_shm_port *port, int32_t member, uint64_t number,
                   bool expose) {
    const wefti_shm_plan *plan = wefti_shm_in_flight_of(port, number)->plan;
    const wefti_transfer *t = &plan->transfer;
    int64_t size = (int64_t)weft_dtype_bytes(t->dtype);
    int32_t place = port->channel->places[member];
    const void *at[2] = {wefti_shm_source(local, port, member, number),
                         plan->shares ? wefti_shm_destination(local, port, member, number) : NULL};
    int64_t bytes[2] = {wefti_region_elems(&t->have[member], t->rank) * size,
                        wefti_region_elems(&t->want[member], t->rank) * size};
    for (int i = 0; i < 2; i++)
        if (expose)
            (void)wefti_shm_expose(local, place, at[i], bytes[i]);
        else if (at[i] && bytes[i] && is_guarded(local, place, at[i]))
            wefti_shm_conceal(local, at[i], bytes[i]);
}

/* All partners that give have posted, and their slots stay until this member has moved. */
wefti_shm_outcome wefti_shm_move_guarded(wefti_shm_rank *local, wefti_shm_port *port,
                                         uint64_t number) {
    const wefti_shm_plan *plan = wefti_shm_in_flight_of(port, number)->plan;
    for (int32_t i = 0; i < plan->partners; i++)
        if (plan->partner[i].gives) change(local, port, plan->partner[i].member, number, true);
    if (wefti_shm_broken(local)) return WEFTI_SHM_NOTHING;
    wefti_shm_outcome outcome = wefti_shm_move(local, port, number);
    for (int32_t i = 0; i < plan->partners; i++)
        if (plan->partner[i].gives) change(local, port, plan->partner[i].member, number, false);
    return outcome;
}
