/* Maps host memory for the devices of this folder. */
#ifndef WEFTI_DEVICE_MEMORY_H
#define WEFTI_DEVICE_MEMORY_H

#include "device/device.h"

enum { WEFTI_HUGE_PAGE = 2 << 20 };

/* Zeroed memory that begins at a huge page. `protection`: as of mmap(2). */
weft_status wefti_memory_map(int64_t bytes, int protection, void **out) WEFT_CHECKED;
void wefti_memory_unmap(void *memory, int64_t bytes);

#endif
