/* CRC32C: published values, the instruction path against the table, and splits of a message. */
#include "support.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/philox.h"

/* RFC 3720, appendix B.4, and the check value of the CRC catalogue. */
static void published_values(void **state) {
    (void)state;
    unsigned char block[32];
    assert_int_equal(wefti_crc32c(0, "", 0), 0);
    assert_int_equal(wefti_crc32c(0, "123456789", 9), 0xe3069283u);
    memset(block, 0, sizeof block);
    assert_int_equal(wefti_crc32c(0, block, 32), 0x8a9136aau);
    memset(block, 0xff, sizeof block);
    assert_int_equal(wefti_crc32c(0, block, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) block[i] = (unsigned char)i;
    assert_int_equal(wefti_crc32c(0, block, 32), 0x46dd794eu);
    assert_int_equal(wefti_crc32c_plain(0, block, 32), 0x46dd794eu);
}

enum { BYTES = 40000 };
static uint64_t random_seed;

static void paths_agree(void **state) {
    (void)state;
    unsigned char *data = malloc(BYTES);
    assert_non_null(data);
    for (int i = 0; i < BYTES; i++)
        data[i] = (unsigned char)wefti_philox_u32(random_seed, 0, (uint64_t)i);
    for (uint64_t round = 0; round < 600; round++) {
        size_t begin = wefti_philox_u32(random_seed, 1, round) % 64;
        size_t limit =
            round % 3 ? 1000 : BYTES - 64; /* short ones, and ones with all block sizes */
        size_t bytes = wefti_philox_u32(random_seed, 2, round) % limit;
        size_t cut = bytes ? wefti_philox_u32(random_seed, 3, round) % bytes : 0;
        uint32_t whole = wefti_crc32c(0, data + begin, bytes);
        assert_int_equal(whole, wefti_crc32c_plain(0, data + begin, bytes));
        uint32_t parts =
            wefti_crc32c(wefti_crc32c(0, data + begin, cut), data + begin + cut, bytes - cut);
        assert_int_equal(whole, parts);
    }
    free(data);
}

/* A message is dealt out in ranges to a few holders. Each sums its ranges; together they give the
 * checksum of the message. */
enum { HOLDERS = 4 };
static void sums_of_ranges(void **state) {
    (void)state;
    unsigned char *data = malloc(BYTES);
    assert_non_null(data);
    for (int i = 0; i < BYTES; i++)
        data[i] = (unsigned char)wefti_philox_u32(random_seed, 4, (uint64_t)i);
    for (uint64_t round = 0; round < 300; round++) {
        int64_t bytes = wefti_philox_u32(random_seed, 5, round) % (round % 4 ? 3000 : BYTES),
                at = 0;
        int64_t stride =
            1 + wefti_philox_u32(random_seed, 6, round) % 200; /* rows of a split tensor */
        wefti_crc_sum sums[HOLDERS] = {{0}};
        for (uint64_t i = 0; at < bytes; i++) {
            uint32_t draw = wefti_philox_u32(random_seed, 7 + round, i);
            int64_t n = round % 2 ? stride : 1 + draw % 700;
            if (n > bytes - at) n = bytes - at;
            uint64_t holder = round % 2 ? i % HOLDERS : draw / 1024 % HOLDERS;
            wefti_crc_sum_add(&sums[holder], at, data + at, (size_t)n);
            at += n;
        }
        uint32_t all = 0;
        for (int h = 0; h < HOLDERS; h++) all ^= wefti_crc_sum_of(&sums[h], bytes);
        if (wefti_crc32c_of_sums(all, bytes) != wefti_crc32c(0, data, (size_t)bytes))
            fail_msg("round %d", (int)round);
    }
    free(data);
}

int main(void) {
    random_seed = test_seed(7);
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_values),
                                       cmocka_unit_test(paths_agree),
                                       cmocka_unit_test(sums_of_ranges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
