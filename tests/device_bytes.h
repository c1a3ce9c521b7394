/* Copies between a test's own memory and device memory. */
#ifndef WEFT_TEST_DEVICE_BYTES_H
#define WEFT_TEST_DEVICE_BYTES_H

#include "device/device.h"

static inline weft_status device_write(wefti_device *device, void *to, const void *from,
                                       int64_t bytes) {
    return wefti_device_copy(device, to, WEFTI_SPACE_DEVICE, from, WEFTI_SPACE_HOST, bytes);
}

static inline weft_status device_read(wefti_device *device, void *to, const void *from,
                                      int64_t bytes) {
    return wefti_device_copy(device, to, WEFTI_SPACE_HOST, from, WEFTI_SPACE_DEVICE, bytes);
}

#endif
