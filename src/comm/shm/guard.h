/* Device memory of other processes, which a device may guard (`expose_peer` of device/device.h). A
 * rank exposes the ranges of a transfer while it moves the data. Without such a device this costs
 * one comparison. */
#ifndef WEFTI_SHM_GUARD_H
#define WEFTI_SHM_GUARD_H

#include "comm/shm/shm.h"

/* `bytes` at p, in this process, of rank `place`. If they are guarded, they are exposed from true
 * to wefti_shm_conceal. False: there is nothing to expose, or the world is broken. */
bool wefti_shm_expose(wefti_shm_rank *local, int32_t place, const void *p, int64_t bytes);
void wefti_shm_conceal(const wefti_shm_rank *local, const void *p, int64_t bytes);
/* wefti_shm_move, with what it touches of other processes exposed. */
wefti_shm_outcome wefti_shm_move_guarded(wefti_shm_rank *local, wefti_shm_port *port,
                                         uint64_t number);

#endif
