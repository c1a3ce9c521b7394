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

/* `programs`: of the limit, or 0 if it does not count them. */
static weft_status check_device(const wefti_program *p, int64_t arena, int64_t programs,
                                int64_t limit, const char *key, bool trains) {
    char need[32], most[32], own[32], part[64] = "", advice[192], *largest;
    if (limit <= 0 || arena + programs <= limit) return WEFT_OK;
    WEFT_TRY(wefti_program_largest(p, 6, &largest));
    advise(p, programs, limit, trains, advice, sizeof advice);
    if (programs)
        (void)snprintf(part, sizeof part, ", %s of it for programs",
                       wefti_bytes_text(programs, own));
    const weft_status status = WEFT_RAISE(
        WEFT_E_NOMEM,
        "a step needs %s of device memory%s, but the limit (%s) is %s, which lacks %lld bytes. "
        "Largest: %s. %s",
        wefti_bytes_text(arena + programs, need), part, key, wefti_bytes_text(limit, most),
        (long long)(arena + programs - limit), largest, advice);
    wefti_free(largest);
    return status;
}

static weft_status check_host(const wefti_needs *needs, const wefti_limits *limits) {
    const int64_t need = wefti_needs_host(needs, limits);
    const int64_t tier = wefti_footprint_bytes(needs->arenas, WEFTI_SPACE_HOST);
    char all[32], of_tier[32], own[32], held[32], most[32];
    if (limits->host <= 0 || need <= limits->host) return WEFT_OK;
    WEFT_FAIL(WEFT_E_NOMEM,
              "a step needs %s of host memory beside device memory (%s for tier host, %s for "
              "programs, %s for batches), but the limit (memory.host) is %s, which lacks %lld "
              "bytes. %s",
              wefti_bytes_text(need, all), wefti_bytes_text(tier, of_tier),
              wefti_bytes_text(needs->programs, own), wefti_bytes_text(limits->held, held),
              wefti_bytes_text(limits->host, most), (long long)(need - limits->host),
              need - tier <= limits->host
                  ? "It would fit if memory.offload kept less on the host, or more on a disk with "
                    "smaller caches"
                  : "Programs and batches alone need more: raise memory.host");
}

weft_status wefti_program_within(const wefti_program *p, const wefti_needs *needs,
                                 const wefti_limits *limits, bool trains, int32_t devices) {
    const int64_t arena = wefti_footprint_bytes(needs->arenas, WEFTI_SPACE_DEVICE);
    weft_status status =
        check_device(p, arena, needs->programs, limits->memory, "device.memory", trains);
    if (status >= 0) status = check_device(p, arena, 0, limits->device, "memory.device", trains);
    if (status >= 0) status = check_host(needs, limits);
    return status < 0 && devices > 1 ? wefti_prefix(status, "device %d", p->rank) : status;
}
