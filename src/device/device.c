/* Opens the device that WEFT_DEVICE names, and gives the host access to device memory. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "device/list.h"

#define ROW(name_) &wefti_device_##name_,
static const wefti_device_table *const tables[] = {WEFTI_DEVICES(ROW)};
#undef ROW
enum { TABLES = sizeof tables / sizeof *tables };

static weft_status refuse(const char *names, const char *name, int length) {
    char all[128] = "";
    size_t at = 0;
    for (size_t i = 0; i < TABLES && at < sizeof all; i++)
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", tables[i]->name);
    WEFT_REQUIRE(length, WEFT_E_ARG,
                 "WEFT_DEVICE=%.64s has an empty word; between commas there must be one of the "
                 "devices of this build: %s",
                 names, all);
    WEFT_FAIL(WEFT_E_ARG, "WEFT_DEVICE has '%.*s'; this build has these devices: %s",
              length < 64 ? length : 64, name, all);
}

static const wefti_device_table *table_of(const char *name, size_t length) {
    for (size_t i = 0; i < TABLES; i++)
        if (strlen(tables[i]->name) == length && !memcmp(tables[i]->name, name, length))
            return tables[i];
    return NULL;
}

/* All names are checked, whatever the rank. */
weft_status wefti_device_choose(int32_t rank, const wefti_device_table **out) {
    const char *names = getenv("WEFT_DEVICE");
    const wefti_device_table *chosen = NULL;
    if (!names || !*names) names = wefti_device_host.name;
    int32_t count = 1;
    for (const char *c = names; *c; c++) count += *c == ',';
    const char *name = names;
    for (int32_t i = 0; i < count; i++) {
        const size_t length = strcspn(name, ",");
        const wefti_device_table *table = table_of(name, length);
        if (!table) return refuse(names, name, (int)length);
        if (i == rank % count) chosen = table;
        name += length + (i + 1 < count);
    }
    *out = chosen;
    return WEFT_OK;
}

weft_status wefti_device_open(const wefti_device_table *table, wefti_device **out) {
    wefti_device *d;
    WEFT_TRY(table->open(&d));
    d->table = table;
    pthread_mutex_init(&d->lock, NULL);
    weft_status status = WEFT_OK;
    if (!table->direct) {
        status = table->stream_create(d, NULL, &d->copies);
        if (status >= 0) status = wefti_event_create(d, &d->published);
    }
    if (status < 0) {
        wefti_device_close(d);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = d;
    return WEFT_OK;
}

void wefti_device_close(wefti_device *d) {
    if (!d) return;
    wefti_stream_destroy(d->copies);
    wefti_event_destroy(d->published);
    pthread_mutex_destroy(&d->lock);
    d->table->close(d);
}

/* ---- copies for the host ---- */

weft_status wefti_device_copy(wefti_device *d, void *to, wefti_space to_space, const void *from,
                              wefti_space from_space, int64_t bytes) {
    if (!bytes) return WEFT_OK;
    if (!d || d->table->direct) {
        memcpy(to, from, (size_t)bytes);
        return WEFT_OK;
    }
    pthread_mutex_lock(&d->lock);
    weft_status status = d->table->await(d->copies, d->published);
    if (status >= 0) status = d->table->copy(d->copies, to, to_space, from, from_space, bytes);
    if (status >= 0) status = d->table->finish(d->copies);
    pthread_mutex_unlock(&d->lock);
    return status;
}
