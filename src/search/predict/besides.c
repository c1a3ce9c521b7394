/* What ranks need besides their step: memory as the driver of the device shows it, and the time of
 * a checkpoint. Figures of the machine decide. */
#include <math.h>
#include <string.h>

#include "search/predict/predict.h"

static bool same_group(const wefti_transfer *a, const wefti_transfer *b) {
    return a->members == b->members &&
           !memcmp(a->ranks, b->ranks, sizeof *a->ranks * (size_t)a->members);
}

/* Groups of ranks have a communicator each. All messages between stages share one. */
static int communicators(const wefti_partition *p) {
    const int32_t transfers = p ? wefti_partition_transfers(p) : 0;
    bool sends = false;
    int count = 0;
    for (int32_t i = 0; i < transfers; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p, i);
        bool known = t->members < 2;
        if (t->kind == WEFTI_TRANSFER_SEND) {
            known |= sends;
            sends = true;
        }
        for (int32_t k = 0; k < i && !known && t->kind != WEFTI_TRANSFER_SEND; k++) {
            const wefti_transfer *u = wefti_partition_transfer(p, k);
            known = u->kind != WEFTI_TRANSFER_SEND && same_group(t, u);
        }
        count += !known;
    }
    return count;
}

static double whole_allocations(const wefti_figure *allocation, int64_t bytes) {
    const double unit = allocation->source ? allocation->value : 1;
    return ceil((double)bytes / unit) * unit;
}

static weft_driver_memory driver_memory(const wefti_rank_classes *all, const wefti_rank_class *c,
                                        const wefti_device_model *d) {
    const wefti_footprint footprint = wefti_programs_footprint(c->programs, all->graphs);
    const int64_t *arenas = footprint.of[WEFTI_SPACE_DEVICE];
    weft_driver_memory m = {.rank = c->rank, .known = true};
    for (int32_t g = 0; g < all->graphs; g++) {
        const int count = communicators(c->programs[g]->partition);
        if (count > m.communicators) m.communicators = count;
    }
    m.context_bytes = (int64_t)d->context_bytes.value;
    m.communicator_bytes = (int64_t)(d->communicator_bytes.value * m.communicators);
    m.bytes = (int64_t)(whole_allocations(&d->allocation_bytes, arenas[WEFTI_PERSISTENT]) +
                        whole_allocations(&d->allocation_bytes, arenas[WEFTI_TRANSIENT])) +
              m.context_bytes + m.communicator_bytes;
    m.fits = (double)m.bytes <= d->memory_bytes.value;
    return m;
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

void wefti_predict_besides(const wefti_rank_classes *all, const wefti_machine_model *machine,
                           weft_prediction *out) {
    const wefti_device_model *d = &machine->device;
    const int32_t per_host = wefti_model_per_host(machine);
    out->hosts = (int)((all->ranks + (int64_t)per_host - 1) / per_host);
    for (int32_t i = 0; i < all->count; i++) {
        const wefti_rank_class *c = &all->classes[i];
        const int64_t state = state_bytes(c->programs[0]);
        if (state > out->state_bytes) out->state_bytes = state;
        if (!d->context_bytes.source && !d->communicator_bytes.source) continue;
        const weft_driver_memory m = driver_memory(all, c, d);
        if (m.bytes > out->driver.bytes) out->driver = m;
    }
    if (d->disk_bytes_per_second.source)
        out->checkpoint_seconds = (double)out->state_bytes / d->disk_bytes_per_second.value;
}
