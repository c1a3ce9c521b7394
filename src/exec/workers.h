/* Device workers: the devices of one process. Each device has a thread that lives as long as the
 * workers, and a side of the world in which the devices communicate. The caller's own thread does
 * the work of a single device. It also does the work of a process that is one rank of a world of
 * processes. */
#ifndef WEFTI_WORKERS_H
#define WEFTI_WORKERS_H

#include "exec/exec.h"

typedef struct wefti_workers wefti_workers;

/* Creates `devices` devices, each with `threads` threads and arenas for need[rank]. `disk`: as
 * for wefti_rank_device_create. */
weft_status wefti_workers_create(int32_t devices, int threads, const wefti_footprint *need,
                                 const wefti_disk_place *disk, wefti_workers **out) WEFT_CHECKED;
/* Creates only the device of rank comm->rank: the others belong to other processes. `comm` is
 * borrowed. */
weft_status wefti_workers_join(wefti_comm *comm, int threads, wefti_footprint need,
                               const wefti_disk_place *disk, wefti_workers **out) WEFT_CHECKED;
/* The devices reach servers by these, one for each. Takes over the array and what is in it. Call it
 * before programs are bound. */
void wefti_workers_serve(wefti_workers *workers, wefti_service **services);
void wefti_workers_destroy(wefti_workers *workers);
/* NULL: the device belongs to another process. */
wefti_rank_device *wefti_workers_device(const wefti_workers *workers, int32_t rank);

/* The work of a device. It runs in the device's own thread. */
typedef weft_status wefti_workers_work(void *context, wefti_rank_device *device, int32_t rank);
/* All devices do `work`; returns when the last device has finished. If a device fails, the devices
 * that wait for it stop too, and the first failure is returned. The workers can work again. Devices
 * of other processes go on: the caller decides whether to abort a world of processes. */
weft_status wefti_workers_run(wefti_workers *workers, wefti_workers_work *work,
                              void *context) WEFT_CHECKED;
/* Puts "device 3: " in front of the failure that wefti_workers_run returned, if there are several
 * devices. In a world of processes puts "rank 3: ", unless another rank failed. */
weft_status wefti_workers_name(const wefti_workers *workers, weft_status status);

#endif
