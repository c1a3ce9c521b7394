/* The limit of a device's memory: see program/limit.h. */
#include "program/limit.h"

#include <stdio.h>

#include "base/memory.h"
#include "base/text.h"
#include "program/print.h"

/* Of the optimizer, in device memory. */
static int64_t state_bytes(const wefti_program *p) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (t->role == WEFTI_TENSOR_OPTIMIZER &&
            wefti_location_space(t->home) == WEFTI_SPACE_DEVICE)
            bytes += weft_desc_bytes(&t->desc);
    }
    return bytes;
}

static void advise(const wefti_program *p, int64_t programs, int64_t limit, bool trains, char *out,
                   size_t bytes) {
    char fixed[32], states[32];
    const int64_t room = limit - p->persistent_bytes - programs;
    const double share = p->transient_bytes > 0 ? (double)room / (double)p->transient_bytes : 0;
    wefti_bytes_text(p->persistent_bytes, fixed);
    wefti_bytes_text(state_bytes(p), states);
    if (room <= 0 && !trains)
        (void)snprintf(out, bytes,
                       "The model alone needs %s: memory.offload keeps parameters on a disk",
                       fixed);
    else if (room <= 0)
        (void)snprintf(out, bytes,
                       "The model and its optimizer alone need %s (%s of it the optimizer): "
                       "memory.offload=auto keeps some on a disk; a smaller model or another "
                       "optimizer would fit",
                       fixed, states);
    else if (!trains)
        (void)snprintf(out, bytes,
                       "About %.*f %% of these samples would fit (fewer at once: --rows or "
                       "train.batch; or shorter ones)",
                       share < 0.01 ? 4 : 0, share * 100);
    else if (share < 0.01)
        (void)snprintf(out, bytes,
                       "Less than 1 %% of this batch would fit beside the model (train.accumulate, "
                       "memory.offload=auto, or a smaller batch, context or model)");
    else
        (void)snprintf(
            out, bytes,
            "About %.0f %% of this batch would fit (train.accumulate, memory.offload=auto, "
            "or a smaller batch or context)",
            share * 100);
}

weft_status wefti_program_within(const wefti_program *p, int64_t arena, int64_t programs,
                                 int64_t limit, bool trains, int32_t devices) {
    char need[32], most[32], own[32], advice[192], *largest;
    if (limit <= 0 || arena + programs <= limit) return WEFT_OK;
    WEFT_TRY(wefti_program_largest(p, 6, &largest));
    advise(p, programs, limit, trains, advice, sizeof advice);
    weft_status status = WEFT_RAISE(
        WEFT_E_NOMEM,
        "a step needs %s, %s of it for programs, but the limit (device.memory) is %s. Largest: "
        "%s. %s",
        wefti_bytes_text(arena + programs, need), wefti_bytes_text(programs, own),
        wefti_bytes_text(limit, most), largest, advice);
    wefti_free(largest);
    return devices > 1 ? wefti_prefix(status, "device %d", p->rank) : status;
}
