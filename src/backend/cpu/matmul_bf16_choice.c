/* Which implementation multiplies bf16 matrices faster here: ours, which computes in f32 (onto bf16
 * storage), ours on AMX tiles, or, where there are none, oneDNN with the processor's bf16
 * instructions. AVX-512's bf16 dot products run at half the rate of f32 on some processors and
 * ahead of it on others, and tiles may be emulated or shared. So a product of the size of a
 * training step's is timed. */
#include "backend/cpu/onednn_matmul.h"
#include "base/clock.h"
#include "base/memory.h"

const char *wefti_bf16_matmul_text(wefti_bf16_matmul choice) {
    return choice == WEFTI_BF16_ONEDNN    ? "onednn"
           : choice == WEFTI_BF16_OWN_AMX ? "own amx"
                                          : "own";
}

enum { CHOICE_M = 128, CHOICE_SIZE = 768, CHOICE_RUNS = 3, ALIGNMENT = 64 };
enum { OWN_WORKSPACE, OTHER_WORKSPACE, PACKED, A, B, C, BUFFERS };

static int64_t round_up(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

typedef struct trial {
    wefti_gemm own, amx;
    wefti_onednn_matmul *other; /* NULL: `amx` is tried */
    char *memory;
    void *buffers[BUFFERS];
} trial;

static weft_status trial_prepare(trial *t, wefti_isa isa) {
    wefti_gemm_spec spec = wefti_gemm_spec_of(WEFT_BF16, CHOICE_M, CHOICE_SIZE, CHOICE_SIZE);
    WEFT_TRY(wefti_gemm_prepare(&spec, isa, &t->own));
    int64_t other = 0, packed = 0;
    if (isa >= WEFTI_ISA_AMX) {
        spec.bf16 = true;
        WEFT_TRY(wefti_gemm_prepare(&spec, isa, &t->amx));
        other = wefti_gemm_workspace_bytes(&t->amx, 1);
    } else {
        spec.b_packed = true; /* weights are packed once and used several times */
        WEFT_TRY(wefti_onednn_matmul_create(&spec, isa, 1, &t->other));
        other = wefti_onednn_matmul_workspace_bytes(t->other);
        packed = wefti_onednn_matmul_packed_bytes(t->other);
    }
    const int64_t bytes[BUFFERS] = {wefti_gemm_workspace_bytes(&t->own, 1),
                                    other,
                                    packed,
                                    2 * CHOICE_M * CHOICE_SIZE,
                                    2 * CHOICE_SIZE * CHOICE_SIZE,
                                    2 * CHOICE_M * CHOICE_SIZE};
    int64_t total = ALIGNMENT, offset = 0;
    for (int i = 0; i < BUFFERS; i++) total += round_up(bytes[i]);
    WEFT_NEW_ARRAY(t->memory, char, total);
    const int64_t start = round_up((int64_t)(uintptr_t)t->memory) - (int64_t)(uintptr_t)t->memory;
    for (int i = 0; i < BUFFERS; i++) {
        t->buffers[i] = t->memory + start + offset;
        offset += round_up(bytes[i]);
    }
    return WEFT_OK;
}

static weft_status trial_run(trial *t, wefti_bf16_matmul *out) {
    wefti_gemm_args args = {.a = t->buffers[A], .b = t->buffers[B], .c = t->buffers[C]};
    int64_t own_ns = INT64_MAX, other_ns = INT64_MAX;
    if (t->other)
        WEFT_TRY(wefti_onednn_matmul_pack_b(t->other, t->buffers[B], t->buffers[PACKED],
                                            t->buffers[OTHER_WORKSPACE], NULL));
    for (int i = 0; i < CHOICE_RUNS; i++) {
        int64_t start = wefti_now_ns();
        args.b = t->buffers[B];
        wefti_gemm_run(&t->own, &args, t->buffers[OWN_WORKSPACE], NULL);
        int64_t middle = wefti_now_ns();
        if (t->other) args.b = t->buffers[PACKED];
        if (t->other)
            WEFT_TRY(wefti_onednn_matmul_run(t->other, &args, t->buffers[OTHER_WORKSPACE], NULL));
        else
            wefti_gemm_run(&t->amx, &args, t->buffers[OTHER_WORKSPACE], NULL);
        int64_t end = wefti_now_ns();
        if (middle - start < own_ns) own_ns = middle - start;
        if (end - middle < other_ns) other_ns = end - middle;
    }
    *out = other_ns >= own_ns ? WEFTI_BF16_OWN : t->other ? WEFTI_BF16_ONEDNN : WEFTI_BF16_OWN_AMX;
    return WEFT_OK;
}

weft_status wefti_matmul_bf16_choice(wefti_isa isa, wefti_bf16_matmul *out) {
    if (isa < WEFTI_ISA_AVX512 || !wefti_isa_has_avx512_bf16() ||
        (isa < WEFTI_ISA_AMX && !wefti_onednn_matmul_available())) {
        *out = WEFTI_BF16_OWN;
        return WEFT_OK;
    }
    trial t = {0};
    wefti_bf16_matmul choice = WEFTI_BF16_OWN;
    weft_status status = trial_prepare(&t, isa);
    if (status >= 0) status = trial_run(&t, &choice);
    wefti_onednn_matmul_destroy(t.other);
    wefti_free(t.memory);
    if (status == WEFT_E_NO_IMPL) { /* a oneDNN without bf16: ours it is */
        wefti_error_clear();
        status = WEFT_OK;
    }
    WEFT_TRY(status);
    *out = choice;
    return WEFT_OK;
}
