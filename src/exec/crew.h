/* A crew: the devices of one process, each with a thread of its own that lives as long as the crew,
 * and the world in which they communicate. A single device needs neither: its work is done by the
 * caller. */
#ifndef WEFTI_CREW_H
#define WEFTI_CREW_H

#include "exec/exec.h"

typedef struct wefti_crew wefti_crew;

/* `devices` devices with `threads` threads and an arena of bytes[rank] each. */
weft_status wefti_crew_create(int32_t devices, int threads, const int64_t *bytes,
                              wefti_crew **out) WEFT_CHECKED;
void wefti_crew_destroy(wefti_crew *crew);
int32_t wefti_crew_size(const wefti_crew *crew);
wefti_device *wefti_crew_device(const wefti_crew *crew, int32_t rank);

/* What a device does, in its own thread. */
typedef weft_status wefti_crew_work(void *context, wefti_device *device, int32_t rank);
/* All devices do `work`; returns when the last one is done. When one fails, those that wait for it
 * give up too; the failure that was the first one is returned, and the crew can work again. */
weft_status wefti_crew_run(wefti_crew *crew, wefti_crew_work *work, void *context) WEFT_CHECKED;
/* "device 3: " in front of the failure that wefti_crew_run has returned, where there are several.
 */
weft_status wefti_crew_name(const wefti_crew *crew, weft_status status);

#endif
