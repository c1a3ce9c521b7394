/* What ranks need besides their step: memory as the driver of the device shows it, and the time of
 * a checkpoint. Figures of the machine decide. */
#include <math.h>

#include "base/map/map.h"
#include "search/predict/predict.h"

/* Groups of ranks have a communicator each. All messages between stages share one. */
static weft_status communicators(const wefti_partition *p, int64_t *out) {
    const int32_t transfers = p ? wefti_partition_transfers(p) : 0;
    wefti_map groups = {0};
    bool sends = false;
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < transfers && status >= 0; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p, i);
        if (t->members < 2) continue;
        if (t->kind == WEFTI_TRANSFER_SEND)
            sends = true;
        else
            status =
                wefti_map_add(&groups, t->ranks, (int64_t)sizeof *t->ranks * t->members, 0, NULL);
    }
    *out = groups.count + sends;
    wefti_map_free(&groups);
    return status;
}

static double whole_allocations(const wefti_figure *allocation, int64_t bytes) {
    const double unit = allocation->source ? allocation->value : 1;
    return ceil((double)bytes / unit) * unit;
}

static weft_status driver_memory(const wefti_rank_classes *all, const wefti_rank_class *c,
                                 const wefti_device_model *d, weft_driver_memory *out) {
    const wefti_footprint footprint = wefti_programs_footprint(c->programs, all->graphs);
    const int64_t *arenas = footprint.of[WEFTI_SPACE_DEVICE];
    weft_driver_memory m = {.rank = c->rank, .known = true};
    for (int32_t g = 0; g < all->graphs; g++) {
        int64_t count;
        WEFT_TRY(communicators(c->programs[g]->partition, &count));
        if (count > m.communicators) m.communicators = (int)count;
    }
    m.context_bytes = (int64_t)d->context_bytes.value;
    m.communicator_bytes = (int64_t)(d->communicator_bytes.value * m.communicators);
    m.bytes = (int64_t)(whole_allocations(&d->allocation_bytes, arenas[WEFTI_PERSISTENT]) +
                        whole_allocations(&d->allocation_bytes, arenas[WEFTI_TRANSIENT])) +
              m.context_bytes + m.communicator_bytes;
    m.fits = (double)m.bytes <= d->memory_bytes.value;
    *out = m;
    return WEFT_OK;
}

static int64_t state_bytes(const wefti_program *p) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (t->role == WEFTI_TENSOR_PARAM || t->role == WEFTI_TENSOR_STATE ||
            t->role == WEFTI_TENSOR_OPTIMIZER)
            bytes += weft_desc_bytes(&t->desc);
    }
    return bytes;
}

weft_status wefti_predict_besides(const wefti_rank_classes *all, const wefti_machine_model *machine,
                                  weft_prediction *out) {
    const wefti_device_model *d = &machine->device;
    const int32_t per_host = wefti_model_per_host(machine);
    out->hosts = (int)((all->ranks + (int64_t)per_host - 1) / per_host);
    for (int32_t i = 0; i < all->count; i++) {
        const wefti_rank_class *c = &all->classes[i];
        const int64_t state = state_bytes(c->programs[0]);
        if (state > out->state_bytes) out->state_bytes = state;
        if (!d->context_bytes.source && !d->communicator_bytes.source) continue;
        weft_driver_memory m;
        WEFT_TRY(driver_memory(all, c, d, &m));
        if (m.bytes > out->driver.bytes) out->driver = m;
    }
    if (d->disk_bytes_per_second.source)
        out->checkpoint_seconds =
            (double)out->state_bytes /
            wefti_tier_rate(&d->disk_bytes_per_second, WEFTI_TIER_WRITE, (double)out->state_bytes);
    return WEFT_OK;
}
