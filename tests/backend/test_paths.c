/* Prints the kernel paths that this machine runs natively and those that it only emulates, one line
 * each. Compares the emulated VDPBF16PS with the processor's instruction, if it has one. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/tile/emulated.h"
#include "backend/paths.h"

static const char *how(bool native) {
    return native ? "native and emulated" : "emulated";
}

static void test_paths(void **state) {
    (void)state;
    path_end();
    print_message("path plain: native\n");
    print_message("path avx2: %s\n", how(wefti_isa_has(WEFTI_ISA_AVX2)));
    print_message("path avx512: %s\n", how(wefti_isa_has(WEFTI_ISA_AVX512)));
    print_message("path avx512_bf16: %s\n", how(wefti_isa_has_bf16(WEFTI_ISA_AVX512)));
    print_message("path amx: %s\n", how(wefti_isa_has(WEFTI_ISA_AMX)));
    for (int path = WEFTI_ISAS + 1; path < PATHS; path++) assert_true(path_begin(path));
    path_end();
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bf16"))) static void dot(float sums[16], const uint16_t *a,
                                                              const uint16_t *b) {
    const __m512bh left = (__m512bh)_mm512_loadu_si512(a), right = (__m512bh)_mm512_loadu_si512(b);
    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), left, right));
}

/* Any bits, without NaN and infinity: subnormal numbers, results below the smallest normal number,
 * and overflows are among them. */
static uint32_t random_bits(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(*state >> 32);
    /* Half of the numbers have sizes at which sums are near the subnormal numbers. */
    if (*state >> 20 & 1) bits = (bits & 0x807fffff) | (56 + (bits >> 23) % 16) << 23;
    return (bits & 0x7f800000) == 0x7f800000 ? bits & 0xbfffffff : bits;
}
#endif

static void test_vdpbf16ps(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (wefti_isa_has_bf16(WEFTI_ISA_AVX512)) {
        uint64_t seed = test_seed(20241124);
        for (int round = 0; round < 200000; round++) {
            uint16_t a[32], b[32];
            float sums[16], want[16];
            for (int i = 0; i < 32; i++) {
                a[i] = (uint16_t)(random_bits(&seed) >> 16);
                b[i] = (uint16_t)(random_bits(&seed) >> 16);
            }
            for (int i = 0; i < 16; i++) {
                uint32_t bits = random_bits(&seed);
                if (bits & 1) bits &= 0x80ffffff; /* small enough for products to show */
                memcpy(&sums[i], &bits, sizeof bits);
            }
            memcpy(want, sums, sizeof want);
            dot(want, a, b);
            for (int i = 0; i < 16; i++) {
                const float got = wefti_emulated_vdpbf16ps(sums[i], a + 2 * i, b + 2 * i);
                if (isnan(want[i]) && isnan(got)) continue;
                assert_memory_equal(&got, &want[i], sizeof got);
            }
        }
        print_message("VDPBF16PS: emulated bits are those of this processor\n");
        return;
    }
#endif
    print_message("VDPBF16PS: this processor has none; emulated only\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_paths),
                                       cmocka_unit_test(test_vdpbf16ps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
