/* See isa.h. The processor is asked only once, because cpuid leaves a virtual machine: that takes
 * as long as a small kernel. The environment is read at each call, so that it is not hidden
 * state. */
#include "backend/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/tuning.h"

static const char *const names[WEFTI_ISAS] = {"plain", "avx2", "avx512", "amx"};

const char *wefti_isa_text(wefti_isa isa) {
    return (unsigned)isa < WEFTI_ISAS ? names[isa] : "?";
}

static const wefti_cpu_tuning *tuned;

void wefti_cpu_tune(const wefti_cpu_tuning *tuning) {
    tuned = tuning;
}
const wefti_cpu_tuning *wefti_cpu_tuned(void) {
    return tuned;
}

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux lets a process use tile registers (8 KiB of state a thread) only on request. One request
 * covers all threads. Repeating it costs a system call. Source: Linux,
 * Documentation/arch/x86/xstate.rst. */
static bool tiles_allowed(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQUEST_XCOMP_PERMISSION = 0x1023, XFEATURE_TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQUEST_XCOMP_PERMISSION, XFEATURE_TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool ask_for(wefti_isa isa) {
    __builtin_cpu_init();
    switch (isa) {
    case WEFTI_ISA_PLAIN:
        return true;
    case WEFTI_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case WEFTI_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    case WEFTI_ISA_AMX:
        return wefti_isa_has_amx_bf16() && wefti_isa_has_avx512_bf16() && tiles_allowed();
    case WEFTI_ISAS:
        break;
    }
    return false;
}

enum { UNKNOWN, ABSENT, PRESENT };

bool wefti_isa_has(wefti_isa isa) {
    static _Atomic unsigned char known[WEFTI_ISAS];
    if ((unsigned)isa >= WEFTI_ISAS) return false;
    if (tuned && tuned->emulated) return tuned->has[isa];
    unsigned char is = atomic_load_explicit(&known[isa], memory_order_relaxed);
    if (is == UNKNOWN) {
        is = ask_for(isa) ? PRESENT : ABSENT;
        atomic_store_explicit(&known[isa], is, memory_order_relaxed);
    }
    return is == PRESENT;
}

static bool ask_for_avx512_bf16(void) {
    unsigned a, b, c, d;
    return wefti_isa_has(WEFTI_ISA_AVX512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
           (a >> 5 & 1u);
}

bool wefti_isa_has_avx512_bf16(void) {
    if (tuned && tuned->emulated) return tuned->has_avx512_bf16;
    static _Atomic unsigned char known;
    unsigned char is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is == UNKNOWN) {
        is = ask_for_avx512_bf16() ? PRESENT : ABSENT;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return is == PRESENT;
}

bool wefti_isa_has_amx_bf16(void) {
    unsigned a, b, c, d;
    return wefti_isa_has(WEFTI_ISA_AVX512) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d >> 22 & 1u) && (d >> 24 & 1u);
}

#else

bool wefti_isa_has(wefti_isa isa) {
    if (tuned && tuned->emulated && (unsigned)isa < WEFTI_ISAS) return tuned->has[isa];
    return isa == WEFTI_ISA_PLAIN;
}
bool wefti_isa_has_avx512_bf16(void) {
    return tuned && tuned->emulated && tuned->has_avx512_bf16;
}
bool wefti_isa_has_amx_bf16(void) {
    return false;
}

#endif

/* WEFT_ISA=avx512_bf16 is not a separate isa: everything except bf16 products equals avx512. */
static const char dot_products[] = "avx512_bf16";

weft_status wefti_isa_check(void) {
    const char *wanted = getenv("WEFT_ISA");
    bool known = !wanted || !*wanted || strcmp(wanted, dot_products) == 0;
    for (int isa = 0; isa < WEFTI_ISAS && !known; isa++) known = strcmp(wanted, names[isa]) == 0;
    WEFT_REQUIRE(known, WEFT_E_ARG, "WEFT_ISA is '%.64s'; it can be %s, %s, %s, %s or %s", wanted,
                 names[WEFTI_ISA_PLAIN], names[WEFTI_ISA_AVX2], names[WEFTI_ISA_AVX512],
                 dot_products, names[WEFTI_ISA_AMX]);
    return WEFT_OK;
}

wefti_isa wefti_isa_best(void) {
    wefti_isa best = WEFTI_ISA_PLAIN;
    for (int isa = 0; isa < WEFTI_ISAS; isa++)
        if (wefti_isa_has((wefti_isa)isa)) best = (wefti_isa)isa;
    const char *wanted = getenv("WEFT_ISA");
    if (wanted && strcmp(wanted, dot_products) == 0) wanted = names[WEFTI_ISA_AVX512];
    for (int isa = 0; wanted && isa < (int)best; isa++)
        if (strcmp(wanted, names[isa]) == 0) best = (wefti_isa)isa;
    return best;
}

bool wefti_isa_has_bf16(wefti_isa isa) {
    return wefti_isa_has(isa) &&
           (isa == WEFTI_ISA_AVX512 ? wefti_isa_has_avx512_bf16() : isa >= WEFTI_ISA_AMX);
}

bool wefti_isa_best_has_bf16(void) {
    const wefti_isa best = wefti_isa_best();
    const char *wanted = getenv("WEFT_ISA");
    const bool without = wanted && strcmp(wanted, names[WEFTI_ISA_AVX512]) == 0;
    return wefti_isa_has_bf16(best) && !(best == WEFTI_ISA_AVX512 && without);
}

const char *wefti_isa_arithmetic(bool bf16) {
    const wefti_isa best = wefti_isa_best();
    return bf16 && best == WEFTI_ISA_AVX512 && wefti_isa_best_has_bf16() ? dot_products
                                                                         : names[best];
}
