/* Normal numbers, permutations and named streams on top of Philox. */
#include "base/philox.h"

#include <math.h>

float wefti_philox_normal(uint64_t seed, uint64_t stream, uint64_t position) {
    uint32_t block[4];
    wefti_philox_block(seed, stream, position >> 2, block);
    uint32_t a = block[position & 2], b = block[(position & 2) + 1];
    double u = ((double)a + 1.0) * (1.0 / 4294967296.0); /* (0, 1] */
    double angle = 6.283185307179586 * ((double)b * (1.0 / 4294967296.0));
    double radius = sqrt(-2.0 * log(u));
    return (float)(radius * ((position & 1) ? sin(angle) : cos(angle)));
}

uint64_t wefti_philox_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t position) {
    if (n < 2) return 0;
    unsigned half = 1; /* bits of each half: 2 * half bits cover n */
    while (half < 32 && (n - 1) >> (2 * half)) half++;
    uint32_t mask = half >= 32 ? 0xFFFFFFFFu : (1u << half) - 1u;
    do {
        uint32_t left = (uint32_t)(position >> half) & mask, right = (uint32_t)position & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t block[4];
            wefti_philox_block(seed, stream, ((uint64_t)round << 32) | right, block);
            uint32_t next = left ^ (block[0] & mask);
            left = right;
            right = next;
        }
        position = ((uint64_t)left << half) | right;
    } while (position >= n);
    return position;
}

uint64_t wefti_stream_of(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}
