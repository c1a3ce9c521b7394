/* The devices of this build, by name. A device has a table wefti_device_NAME (device/device.h) and
 * a kind (backend/kinds.c). */
#ifndef WEFTI_DEVICE_LIST_H
#define WEFTI_DEVICE_LIST_H

#define WEFTI_DEVICES(ROW)                                                                         \
    ROW(host)                                                                                      \
    ROW(fenced)

#endif
