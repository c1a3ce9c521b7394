/* Kinds of devices: a table for memory and order (device/device.h), and the backends of the kernels
 * that work on this memory.
 *
 * Each rank has a kind, and its program is built for it. The reference backend and the CPU backend
 * run on the host. So only kinds whose memory the host can reach list them.
 * A dry build asks the backends only and opens no device. So it works on a machine without such a
 * device. */
#ifndef WEFTI_KINDS_H
#define WEFTI_KINDS_H

#include "backend/backend.h"

typedef struct wefti_device_kind {
    const wefti_device_table *table;
    const wefti_backend *const *backends; /* in order of preference; ends with NULL */
    /* The backends with WEFT_BACKEND=reference in the environment. NULL: the host cannot reach the
     * memory of such a device. */
    const wefti_backend *const *references;
} wefti_device_kind;

/* The kind of a rank's device, from WEFT_DEVICE (wefti_device_choose). If WEFT_DEVICE has a name of
 * no device, the kind is `host`, and wefti_kind_check fails. */
const wefti_device_kind *wefti_kind_of(int32_t rank);
/* The kind of the host itself: its kernels work on host memory, beside a device of any kind. */
const wefti_device_kind *wefti_kind_host(void);
/* WEFT_E_ARG if WEFT_DEVICE, WEFT_BACKEND or WEFT_ISA in the environment has a value that names
 * nothing, or nothing that the kind has. */
weft_status wefti_kind_check(const wefti_device_kind *kind) WEFT_CHECKED;
const wefti_backend *const *wefti_kind_backends(const wefti_device_kind *kind);
/* The kernel form that runs here, from the first backend that has several forms. */
const char *wefti_kind_variant(const wefti_device_kind *kind, wefti_bf16_compute bf16);
bool wefti_kind_has_bf16(const wefti_device_kind *kind); /* likewise */
/* From the first backend that has bf16 arithmetic: AS_F32 or NATIVE. */
wefti_bf16_compute wefti_kind_choose_bf16(const wefti_device_kind *kind);

#endif
