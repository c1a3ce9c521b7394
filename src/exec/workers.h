/* A crew: the devices of one process, each with a thread of its own that lives as long as the crew,
 * and the world in which they communicate. A single device needs neither: its work is done by the
 * caller; so is that of a process which is one rank of a world of processes. */
#ifndef WEFTI_WORKERS_H
#define WEFTI_WORKERS_H

#include "exec/exec.h"

typedef struct wefti_crew wefti_crew;

/* `devices` devices with `threads` threads and an arena of bytes[rank] each. */
weft_status wefti_crew_create(int32_t devices, int threads, const int64_t *bytes,
                              wefti_crew **out) WEFT_CHECKED;
/* The device of rank comm->rank alone, the others being those of other processes. `comm` is
 * borrowed. */
weft_status wefti_crew_join(wefti_comm *comm, int threads, int64_t bytes,
                            wefti_crew **out) WEFT_CHECKED;
void wefti_crew_destroy(wefti_crew *crew);
int32_t wefti_crew_size(const wefti_crew *crew); /* devices here */
/* NULL: of another process. */
wefti_device *wefti_crew_device(const wefti_crew *crew, int32_t rank);

/* What a device does, in its own thread. */
typedef weft_status wefti_crew_work(void *context, wefti_device *device, int32_t rank);
/* All devices do `work`; returns when the last one is done. When one fails, those that wait for it
 * give up too; the failure that was the first one is returned, and the crew can work again. Devices
 * of other processes go on: it is the caller who breaks off a world of processes. */
weft_status wefti_crew_run(wefti_crew *crew, wefti_crew_work *work, void *context) WEFT_CHECKED;
/* "device 3: " in front of the failure that wefti_crew_run has returned, where there are several;
 * "rank 3: " in a world of processes, unless it was another one's. */
weft_status wefti_crew_name(const wefti_crew *crew, weft_status status);

#endif
