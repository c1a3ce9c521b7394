/* The kinds of devices that this build has, each with the backends of its kernels. */
#include "backend/kinds.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "device/list.h"

static const wefti_backend *const processor[] = {&wefti_backend_narrow, &wefti_backend_cpu,
                                                 &wefti_backend_reference, NULL};
static const wefti_backend *const references[] = {&wefti_backend_narrow, &wefti_backend_reference,
                                                  NULL};

/* Kernels of both run on the host. */
static const wefti_device_kind host = {&wefti_device_host, processor, references};
static const wefti_device_kind fenced = {&wefti_device_fenced, processor, references};

/* A device without a kind does not compile. */
#define ROW(name_) &name_,
static const wefti_device_kind *const kinds[] = {WEFTI_DEVICES(ROW)};
#undef ROW

const wefti_device_kind *wefti_kind_of(int32_t rank) {
    const wefti_device_table *table;
    if (wefti_device_choose(rank, &table) >= 0)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (kinds[i]->table == table) return kinds[i];
    return &host;
}

const wefti_device_kind *wefti_kind_host(void) {
    return &host;
}

static const char *only_backend(void) {
    const char *only = getenv("WEFT_BACKEND");
    return only && *only ? only : NULL;
}

const wefti_backend *const *wefti_kind_backends(const wefti_device_kind *kind) {
    const char *only = only_backend();
    return only && kind->references && !strcmp(only, "reference") ? kind->references
                                                                  : kind->backends;
}

weft_status wefti_kind_check(const wefti_device_kind *kind) {
    const char *only = only_backend();
    const wefti_device_table *table;
    WEFT_REQUIRE(!only || !strcmp(only, "reference"), WEFT_E_ARG,
                 "WEFT_BACKEND is '%.64s'; it can only be reference", only);
    WEFT_REQUIRE(!only || kind->references, WEFT_E_ARG,
                 "WEFT_BACKEND is reference, but its kernels run on the host, which cannot reach "
                 "the memory of a device of kind %s; unset WEFT_BACKEND",
                 kind->table->name);
    WEFT_TRY(wefti_device_choose(0, &table));
    return wefti_isa_check();
}

wefti_bf16_compute wefti_kind_choose_bf16(const wefti_device_kind *kind) {
    for (const wefti_backend *const *b = wefti_kind_backends(kind); *b; b++)
        if ((*b)->choose_bf16) return (*b)->choose_bf16(*b);
    return WEFTI_BF16_AS_F32;
}

bool wefti_kind_has_bf16(const wefti_device_kind *kind) {
    for (const wefti_backend *const *b = wefti_kind_backends(kind); *b; b++)
        if ((*b)->has_bf16) return (*b)->has_bf16(*b);
    return false;
}

const char *wefti_kind_variant(const wefti_device_kind *kind, wefti_bf16_compute bf16) {
    for (const wefti_backend *const *b = wefti_kind_backends(kind); *b; b++)
        if ((*b)->variant) return (*b)->variant(*b, bf16);
    return "reference";
}
