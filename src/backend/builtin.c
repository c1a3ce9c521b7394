/* The backends that run ops, in order of preference. */
#include "backend/backend.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

static const wefti_backend *const all_backends[] = {&wefti_backend_narrow, &wefti_backend_cpu,
                                                    &wefti_backend_reference, NULL};
static const wefti_backend *const references[] = {&wefti_backend_narrow, &wefti_backend_reference,
                                                  NULL};

const wefti_backend *const *wefti_builtin_backends(void) {
    const char *only = getenv("WEFT_BACKEND");
    return only && !strcmp(only, "reference") ? references : all_backends;
}

weft_status wefti_builtin_check(void) {
    const char *only = getenv("WEFT_BACKEND");
    WEFT_REQUIRE(!only || !*only || !strcmp(only, "reference"), WEFT_E_ARG,
                 "WEFT_BACKEND is '%.64s'; it can only be reference", only);
    return wefti_isa_check();
}

wefti_bf16_compute wefti_builtin_choose_bf16(void) {
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->choose_bf16) return (*b)->choose_bf16(*b);
    return WEFTI_BF16_AS_F32;
}

bool wefti_builtin_has_bf16(void) {
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->has_bf16) return (*b)->has_bf16(*b);
    return false;
}

const char *wefti_builtin_variant(wefti_bf16_compute bf16) {
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->variant) return (*b)->variant(*b, bf16);
    return "reference";
}
