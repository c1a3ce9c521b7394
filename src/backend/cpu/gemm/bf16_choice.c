/* Decides whether the processor's own bf16 arithmetic multiplies bf16 matrices faster than f32
 * arithmetic does. On some processors, dot products of bf16 run at half the rate of f32, on others
 * at twice the rate. Tiles may be emulated or shared. So the code times a product as large as the
 * products of a training step. It does so once in a process, since a second measurement may come to
 * another choice. */
#include "backend/cpu/gemm/gemm.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/tuning.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"

enum { CHOICE_M = 128, CHOICE_SIZE = 768, CHOICE_RUNS = 3 };
enum { AS_F32, AS_BF16, WAYS };
enum { A, B, C, WORKSPACE, BUFFERS };

static bool bf16_is_faster(const wefti_gemm ways[WAYS], char *const buffers[BUFFERS]) {
    const wefti_gemm_args args = {.a = buffers[A], .b = buffers[B], .c = buffers[C]};
    int64_t best[WAYS] = {INT64_MAX, INT64_MAX};
    for (int i = 0; i < CHOICE_RUNS; i++)
        for (int way = 0; way < WAYS; way++) {
            const int64_t start = wefti_now_ns();
            wefti_gemm_run(&ways[way], &args, buffers[WORKSPACE], NULL);
            const int64_t taken = wefti_now_ns() - start;
            if (taken < best[way]) best[way] = taken;
        }
    return best[AS_BF16] < best[AS_F32];
}

static weft_status measure(wefti_isa isa, bool *out) {
    wefti_gemm_spec spec = wefti_gemm_spec_of(WEFT_BF16, CHOICE_M, CHOICE_SIZE, CHOICE_SIZE);
    wefti_gemm ways[WAYS];
    int64_t bytes[BUFFERS] = {2 * CHOICE_M * CHOICE_SIZE, 2 * CHOICE_SIZE * CHOICE_SIZE,
                              2 * CHOICE_M * CHOICE_SIZE, 0};
    for (int way = 0; way < WAYS; way++) {
        spec.bf16 = way == AS_BF16;
        WEFT_TRY(wefti_gemm_prepare(&spec, isa, &ways[way]));
        const int64_t need = wefti_gemm_workspace_bytes(&ways[way], 1);
        if (need > bytes[WORKSPACE]) bytes[WORKSPACE] = need;
    }
    int64_t total = WEFTI_ALIGNMENT;
    for (int i = 0; i < BUFFERS; i++) total += wefti_aligned(bytes[i]);
    char *memory, *buffers[BUFFERS];
    WEFT_NEW_ARRAY(memory, char, total);
    memset(memory, 0, (size_t)total); /* touches the memory, and avoids subnormals */
    char *next = memory + (WEFTI_ALIGNMENT - (uintptr_t)memory % WEFTI_ALIGNMENT) % WEFTI_ALIGNMENT;
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i] = next;
        next += wefti_aligned(bytes[i]);
    }
    *out = bf16_is_faster(ways, buffers);
    wefti_free(memory);
    return WEFT_OK;
}

weft_status wefti_gemm_bf16_choice(wefti_isa isa, bool *out) {
    static _Atomic unsigned char measured[WEFTI_ISAS];
    unsigned char speed = WEFTI_BF16_MEASURED;
    *out = false;
    if (!wefti_isa_has_bf16(isa)) return WEFT_OK;
    if (wefti_cpu_tuned()) speed = (unsigned char)wefti_cpu_tuned()->bf16;
    if (speed == WEFTI_BF16_MEASURED) speed = atomic_load(&measured[isa]);
    if (speed == WEFTI_BF16_MEASURED) {
        WEFT_TRY(measure(isa, out));
        const unsigned char own = *out ? WEFTI_BF16_FASTER : WEFTI_BF16_SLOWER;
        /* Another thread may have been first: then its choice holds, and `speed` gets it. */
        if (atomic_compare_exchange_strong(&measured[isa], &speed, own)) speed = own;
    }
    *out = speed == WEFTI_BF16_FASTER;
    return WEFT_OK;
}
