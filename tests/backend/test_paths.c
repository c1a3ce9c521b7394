/* Prints the kernel paths that this machine runs natively and those that it only emulates, one line
 * each. Tests the emulated TDPBF16PS with results computed by hand, and both emulated instructions
 * element by element. Compares it and the emulated
 * VDPBF16PS with the processor's instructions, if it has them. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/tile/emulated.h"
#include "backend/paths.h"

static void test_paths(void **state) {
    (void)state;
    for (int path = 0; path < PATHS; path++) {
        const bool there = path_begin_product(path, false);
        if (path_is_emulated(path)) assert_int_equal(there, path_isa(path) != WEFTI_ISA_PLAIN);
        if (there && wefti_isa_has_bf16(path_isa(path))) path_ran_bf16[path] = true;
    }
    path_end();
}

/* ---- TDPBF16PS: one element, by hand ---- */

static uint16_t bf16_of(double x) { /* x has at most 8 digits */
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    assert_int_equal(bits & 0xffff, 0);
    return (uint16_t)(bits >> 16);
}

typedef struct product {
    int k; /* even and odd k have sums of their own */
    double a, b;
} product;

typedef struct dot_case {
    const char *what;
    double c;
    product products[4]; /* up to one of 0 by 0 */
    double want;
} dot_case;

static float emulated_dot(const dot_case *d) {
    uint16_t a[16][32] = {{0}}, b[16][32] = {{0}};
    float c[16][16] = {{0}};
    for (int i = 0; i < 4 && (d->products[i].a != 0.0 || d->products[i].b != 0.0); i++) {
        const int k = d->products[i].k;
        a[3][k] = bf16_of(d->products[i].a);
        b[k / 2][2 * 5 + k % 2] = bf16_of(d->products[i].b);
    }
    c[3][5] = (float)d->c;
    wefti_emulated_tiles_configure();
    wefti_emulated_tile_load(0, c, 64);
    wefti_emulated_tile_load(1, a, 64);
    wefti_emulated_tile_load(2, b, 64);
    wefti_emulated_tile_dot(0, 1, 2);
    wefti_emulated_tile_store(0, c, 64);
    wefti_emulated_tiles_release();
    return c[3][5];
}

static void test_tdpbf16ps_by_hand(void **state) {
    (void)state;
    const double big = 0x1p24, tiny = 0x1p-63;
    const dot_case cases[] = {
        /* even: 2^24 + 1 is 2^24; odd: -2^24 + 1 is exact. In the order of k it would be 2. */
        {"even and odd k have sums of their own",
         0,
         {{0, 0x1p12, 0x1p12}, {1, -0x1p12, 0x1p12}, {2, 1, 1}, {3, 1, 1}},
         1},
        /* each alone would be lost in c */
        {"the two sums are added before c", big, {{0, 1, 1}, {1, 1, 1}}, big + 2},
        {"a tie rounds to even, down", 0, {{0, 1, 1}, {2, 0x1p-12, 0x1p-12}}, 1},
        {"a tie rounds to even, up",
         0,
         {{0, 1, 1}, {2, 0x1p-12, 0x1p-11}, {4, 0x1p-12, 0x1p-12}},
         1 + 0x1p-22},
        {"c is rounded too", big, {{0, 1, 1}}, big},
        {"a product is not rounded before its addition",
         0,
         {{0, -0x1p64, 0x1p63}, {2, 0x1p64, 0x1p64}},
         0x1p127},
        {"a sum overflows", 0, {{0, 0x1p64, 0x1p64}}, INFINITY},
        {"infinite sums of other signs", 0, {{0, 0x1p64, 0x1p64}, {1, -0x1p64, 0x1p64}}, NAN},
        {"infinity by zero", 0, {{0, INFINITY, 0}}, NAN},
        {"a NaN", 1, {{7, NAN, 1}}, NAN},
        {"a subnormal operand is zero", 0, {{0, 0x1p-127, 0x1p100}}, 0},
        {"a subnormal c is zero", -0x1p-130, {{0, 0, 0}}, 0},
        {"a subnormal sum of a chain becomes zero", 0, {{0, tiny, 0x1p-64}, {2, tiny, 0x1p-64}}, 0},
        {"a subnormal sum of both chains becomes zero",
         0,
         {{0, 1.5 * tiny, tiny}, {1, -tiny, tiny}},
         0},
        {"a subnormal result becomes zero", -1.5 * tiny * tiny, {{0, tiny, tiny}}, 0},
        {"the smallest normal number stays", 0, {{0, tiny, tiny}}, 0x1p-126},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float got = emulated_dot(&cases[i]), want = (float)cases[i].want;
        if (isnan(want) ? !isnan(got) : got != want)
            fail_msg("%s: %a, not %a", cases[i].what, (double)got, (double)want);
    }
}

/* ---- one element after the other ---- */

/* Any bits, without NaN and infinity: subnormal numbers, results below the smallest normal number,
 * and overflows are among them. */
static uint32_t random_bits(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(*state >> 32);
    /* Half of the numbers have sizes at which sums are near the subnormal numbers. */
    if (*state >> 20 & 1) bits = (bits & 0x807fffff) | (56 + (bits >> 23) % 16) << 23;
    return (bits & 0x7f800000) == 0x7f800000 ? bits & 0xbfffffff : bits;
}
static float flushed(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

static float value_of(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return flushed(value);
}

/* a b + c, rounded once, with subnormal operands and results as zero. A result counts as subnormal
 * before it is rounded: 2^24 times as large, it is exact there. */
static float fused(float a, float b, float c) {
    const float sum = fmaf(a, b, flushed(c));
    const bool tiny = fabsf(sum) <= FLT_MIN &&
                      fabsf(fmaf(a * 0x1p24f, b, flushed(c) * 0x1p24f)) < FLT_MIN * 0x1p24f;
    return tiny ? copysignf(0.0f, sum) : flushed(sum);
}

static void assert_same(float got, float want, const char *what, int round) {
    if ((isnan(got) && isnan(want)) || !memcmp(&got, &want, sizeof got)) return;
    fail_msg("%s, round %d: %a, not %a", what, round, (double)got, (double)want);
}

/* The emulation computes many elements at once. Each has the bits that it has alone. */
static void test_elements_are_alone(void **state) {
    (void)state;
    uint64_t seed = test_seed(20251125);
    for (int round = 0; round < 20000; round++) {
        uint16_t a[32], b[32];
        float sums[16], c[16];
        _Alignas(64) wefti_emulated_row left[16] = {{0}}, right[16] = {{0}}, tile[16] = {{0}};
        for (int i = 0; i < 32; i++) {
            a[i] = (uint16_t)(random_bits(&seed) >> 16);
            b[i] = (uint16_t)(random_bits(&seed) >> 16);
            if (random_bits(&seed) % 8 == 0) a[i] = 0;
        }
        for (int i = 0; i < 16; i++) {
            uint32_t bits = random_bits(&seed);
            if (bits & 1) bits &= 0x80ffffff;
            memcpy(&sums[i], &bits, sizeof bits);
        }
        memcpy(c, sums, sizeof c);
        wefti_emulated_vdpbf16ps(c, a, b);
        for (int i = 0; i < 16; i++) {
            const float odd = fused(value_of(a[2 * i + 1]), value_of(b[2 * i + 1]), sums[i]);
            assert_same(c[i], fused(value_of(a[2 * i]), value_of(b[2 * i]), odd), "VDPBF16PS",
                        round);
        }
        if (round % 8) continue;
        /* Row 0 times column 0: the pairs of k are those of a and b. */
        memcpy(left[0], a, sizeof a);
        for (int k = 0; k < 16; k++) memcpy(right[k], b + 2 * k, 4);
        memcpy(tile[0], sums, 4);
        wefti_emulated_tdpbf16ps(tile, left, right);
        float even = 0.0f, odd = 0.0f, got;
        for (int k = 0; k < 16; k++) {
            even = fused(value_of(a[2 * k]), value_of(b[2 * k]), even);
            odd = fused(value_of(a[2 * k + 1]), value_of(b[2 * k + 1]), odd);
        }
        memcpy(&got, tile[0], sizeof got);
        assert_same(got, flushed(flushed(sums[0]) + flushed(even + odd)), "TDPBF16PS", round);
    }
}

/* ---- the processor's instructions ---- */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bf16"))) static void dot(float sums[16], const uint16_t *a,
                                                              const uint16_t *b) {
    const __m512bh left = (__m512bh)_mm512_loadu_si512(a), right = (__m512bh)_mm512_loadu_si512(b);
    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), left, right));
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
            wefti_emulated_vdpbf16ps(sums, a, b);
            for (int i = 0; i < 16; i++)
                if (!isnan(want[i]) || !isnan(sums[i]))
                    assert_memory_equal(&sums[i], &want[i], sizeof want[i]);
        }
        print_message("VDPBF16PS: emulated bits are those of this processor\n");
        return;
    }
#endif
    print_message("SKIPPED: this processor has no VDPBF16PS\n");
    skip();
}

#if defined(__x86_64__)
typedef struct tile_problem {
    float c[16][16];
    uint16_t a[16][32], b[16][32];
} tile_problem;

__attribute__((target("amx-tile,amx-bf16"))) static void tile_dot(tile_problem *p) {
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 3; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* as in tile.h */
    _tile_loadconfig(&config);
    _tile_loadd(0, p->c, 64);
    _tile_loadd(1, p->a, 64);
    _tile_loadd(2, p->b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, p->c, 64);
    _tile_release();
}

static void emulated_tile_dot(tile_problem *p) {
    wefti_emulated_tiles_configure();
    wefti_emulated_tile_load(0, p->c, 64);
    wefti_emulated_tile_load(1, p->a, 64);
    wefti_emulated_tile_load(2, p->b, 64);
    wefti_emulated_tile_dot(0, 1, 2);
    wefti_emulated_tile_store(0, p->c, 64);
    wefti_emulated_tiles_release();
}

static void random_tiles(tile_problem *p, uint64_t *seed) {
    for (int i = 0; i < 16 * 32; i++) {
        p->a[i / 32][i % 32] = (uint16_t)(random_bits(seed) >> 16);
        p->b[i / 32][i % 32] = (uint16_t)(random_bits(seed) >> 16);
    }
    for (int i = 0; i < 16 * 16; i++) {
        const uint32_t bits = random_bits(seed);
        memcpy(&p->c[i / 16][i % 16], &bits, sizeof bits);
    }
}
#endif

static void test_tdpbf16ps(void **state) {
    (void)state;
#if defined(__x86_64__)
    path_end();
    if (wefti_isa_has(WEFTI_ISA_AMX)) {
        uint64_t seed = 20241125;
        for (int round = 0; round < 4000; round++) {
            static tile_problem native, emulated;
            random_tiles(&native, &seed);
            emulated = native;
            tile_dot(&native);
            emulated_tile_dot(&emulated);
            for (int i = 0; i < 16 * 16; i++) {
                const float want = native.c[i / 16][i % 16], got = emulated.c[i / 16][i % 16];
                if (isnan(want) && isnan(got)) continue;
                assert_memory_equal(&got, &want, sizeof got);
            }
        }
        print_message("TDPBF16PS: emulated bits are those of this processor\n");
        return;
    }
#endif
    print_message("SKIPPED: this processor has no TDPBF16PS\n");
    skip();
}

static int teardown(void **state) {
    (void)state;
    paths_print();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths), cmocka_unit_test(test_tdpbf16ps_by_hand),
        cmocka_unit_test(test_elements_are_alone), cmocka_unit_test(test_vdpbf16ps),
        cmocka_unit_test(test_tdpbf16ps)};
    return cmocka_run_group_tests(tests, NULL, teardown);
}
