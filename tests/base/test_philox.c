/* Philox against published vectors; uniform and normal numbers; permutations; named streams. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

/* Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds): counter and key of zeros, of
 * ones, and of the digits of pi. */
static void known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t words[4];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < 3; i++) {
        uint32_t block[4];
        wefti_philox_block(vectors[i].seed, vectors[i].stream, vectors[i].counter, block);
        assert_memory_equal(block, vectors[i].words, sizeof block);
        for (uint64_t k = 0; k < 4 && i != 1; k++) /* position is counter * 4 + word */
            assert_int_equal(wefti_philox_u32(vectors[0].seed, vectors[0].stream, k),
                             vectors[0].words[k]);
    }
}

static void uniform_numbers(void **state) {
    (void)state;
    enum { COUNT = 1 << 16, BINS = 16 };
    int bins[BINS] = {0};
    double sum = 0.0;
    for (uint64_t i = 0; i < COUNT; i++) {
        float u = wefti_philox_uniform(3, 4, i);
        assert_true(u >= 0.0f && u < 1.0f);
        bins[(int)(u * BINS)]++;
        sum += (double)u;
    }
    /* mean 1/2 and deviation 1 / sqrt(12 n): five of them are never reached by chance */
    assert_true(fabs(sum / COUNT - 0.5) < 5.0 / sqrt(12.0 * COUNT));
    for (int b = 0; b < BINS; b++) assert_true(abs(bins[b] - COUNT / BINS) < 5 * 64);
}

static void normal_numbers(void **state) {
    (void)state;
    enum { COUNT = 1 << 16 };
    double sum = 0.0, squares = 0.0, fourth = 0.0, product = 0.0;
    for (uint64_t i = 0; i < COUNT; i += 2) {
        double a = (double)wefti_philox_normal(7, 1, i),
               b = (double)wefti_philox_normal(7, 1, i + 1);
        assert_true(isfinite(a) && isfinite(b));
        sum += a + b;
        squares += a * a + b * b;
        fourth += a * a * a * a + b * b * b * b;
        product += a * b;
    }
    double root = sqrt((double)COUNT); /* bounds: five deviations of each mean */
    assert_true(fabs(sum / COUNT) < 5.0 / root);
    assert_true(fabs(squares / COUNT - 1.0) < 5.0 * sqrt(2.0) / root);
    assert_true(fabs(fourth / COUNT - 3.0) < 5.0 * sqrt(96.0) / root);
    assert_true(fabs(product / (COUNT / 2)) < 5.0 * sqrt(2.0) / root);
}

static void permutations_are_bijections(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 100, 257, 1000, 4096, 4099};
    static unsigned char seen[4099];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t stream = 0; stream < 3; stream++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t to = wefti_philox_permute(1, stream, sizes[s], i);
                assert_true(to < sizes[s] && !seen[to]);
                seen[to] = 1;
            }
        }
    assert_int_equal(wefti_philox_permute(1, 1, 0, 0), 0);
    static const uint64_t large[] = {(uint64_t)1 << 32, ((uint64_t)1 << 32) + 1,
                                     ((uint64_t)1 << 62) + 1, UINT64_MAX};
    for (size_t s = 0; s < 4; s++)
        for (uint64_t i = 0; i < 50; i++) {
            uint64_t to = wefti_philox_permute(1, 0, large[s], large[s] - 1 - i);
            assert_true(to < large[s]);
            for (uint64_t k = 0; k < i; k++)
                assert_true(to != wefti_philox_permute(1, 0, large[s], large[s] - 1 - k));
        }
}

/* Every element goes everywhere equally often, over streams. */
static void permutations_are_even(void **state) {
    (void)state;
    enum { SIZE = 6, STREAMS = 6000 };
    int counts[SIZE][SIZE] = {{0}};
    for (uint64_t stream = 0; stream < STREAMS; stream++)
        for (uint64_t i = 0; i < SIZE; i++) counts[i][wefti_philox_permute(9, stream, SIZE, i)]++;
    for (int i = 0; i < SIZE; i++) /* 1000 each, deviation 29 */
        for (int k = 0; k < SIZE; k++) assert_true(abs(counts[i][k] - STREAMS / SIZE) < 5 * 29);
}

static void streams_of_names(void **state) {
    (void)state;
    assert_int_equal(wefti_stream_of(""), 0xcbf29ce484222325u); /* FNV-1a, published values */
    assert_int_equal(wefti_stream_of("a"), 0xaf63dc4c8601ec8cu);
    assert_int_equal(wefti_stream_of("foobar"), 0x85944171f73967e8u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),         cmocka_unit_test(uniform_numbers),
        cmocka_unit_test(normal_numbers),        cmocka_unit_test(permutations_are_bijections),
        cmocka_unit_test(permutations_are_even), cmocka_unit_test(streams_of_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
