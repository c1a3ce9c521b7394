/* Arenas of devices that processes of one host map. An arena lies in its rank's heap, as all memory
 * that others reach. If the device must know what touches its memory (`expose_peer`), the upper
 * half of each heap is for arenas alone. Each process makes the upper halves of the others' heaps
 * device memory too: it opens the ranges of a transfer there while it moves the data. */
#include "comm/host/host.h"

static unsigned char *device_half(const wefti_host *host, int32_t place, size_t *bytes) {
    const wefti_shm_area *area = &host->world.area[place];
    *bytes = (size_t)area->bytes / 2;
    return (unsigned char *)(area->view + *bytes);
}

static void release_peers(wefti_host *host, wefti_device *device, int32_t places) {
    size_t bytes;
    for (int32_t p = 0; p < places; p++) {
        if (p == host->local.place) continue;
        unsigned char *half = device_half(host, p, &bytes);
        device->table->release(device, half, (int64_t)bytes);
    }
    if (places == host->world.size && --host->world.guests == 0) host->world.guarded = NULL;
}

static weft_status adopt_peers(wefti_host *host, wefti_device *device) {
    weft_status status = WEFT_OK;
    for (int32_t p = 0; p < host->world.size && status >= 0; p++) {
        size_t bytes;
        unsigned char *half = device_half(host, p, &bytes);
        if (p != host->local.place) status = device->table->adopt(device, half, (int64_t)bytes);
        if (status < 0) release_peers(host, device, p);
    }
    if (status >= 0) {
        host->world.guarded = device->table;
        host->world.guests++;
    }
    return status;
}

static weft_status adopt(wefti_host *host, wefti_device *device, void *memory, size_t bytes) {
    WEFT_TRY(device->table->adopt(device, memory, (int64_t)bytes));
    if (!device->table->expose_peer) return WEFT_OK;
    weft_status status = adopt_peers(host, device);
    if (status < 0) device->table->release(device, memory, (int64_t)bytes);
    return status;
}

weft_status wefti_host_map_device(wefti_host *host, wefti_device *device, size_t bytes,
                                  void **out) {
    void *p;
    if (device->table->expose_peer)
        WEFT_TRY(wefti_host_take_upper(&host->heap, bytes, &p));
    else
        WEFT_TRY(wefti_host_take(&host->heap, bytes, &p));
    weft_status status = adopt(host, device, p, bytes);
    if (status < 0) {
        wefti_host_give(&host->heap, p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

void wefti_host_unmap_device(wefti_host *host, wefti_device *device, void *memory, size_t bytes) {
    if (device->table->expose_peer) release_peers(host, device, host->world.size);
    device->table->release(device, memory, (int64_t)bytes);
    wefti_host_give(&host->heap, memory);
}
