/* Philox4x32-10, the counter-based generator of every random number of weft.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11, section
 * 4.3.
 *
 * A number is a function of (seed, stream, position) only. So it does not depend on the split of a
 * tensor, on threads, or on the order of execution. Position is the global element index. Element i
 * uses word i % 4 of the block with counter {i / 4 low, i / 4 high, stream low, stream high} and
 * key seed. */
#ifndef WEFTI_BASE_PHILOX_H
#define WEFTI_BASE_PHILOX_H

#include <stdint.h>

static inline void wefti_philox_block(uint64_t seed, uint64_t stream, uint64_t counter,
                                      uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static inline uint32_t wefti_philox_u32(uint64_t seed, uint64_t stream, uint64_t position) {
    uint32_t block[4];
    wefti_philox_block(seed, stream, position >> 2, block);
    return block[position & 3];
}

/* Uniform in [0, 1) with 24 bits: exact in f32. Dropout keeps an element if this number is >=
 * rate. */
static inline float wefti_philox_uniform(uint64_t seed, uint64_t stream, uint64_t position) {
    return (float)(wefti_philox_u32(seed, stream, position) >> 8) * (1.0f / 16777216.0f);
}

/* Standard normal by Box-Muller in f32 with fixed polynomials. Elements 2j and 2j+1 share words 2j
 * and 2j+1. Every processor gives the same bits. */
float wefti_philox_normal(uint64_t seed, uint64_t stream, uint64_t position);
/* out[i] = scale * wefti_philox_normal(seed, stream, first + i). `first` must be a multiple of
 * 64. */
void wefti_philox_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t count,
                          float scale, float *out);

/* A bijection of [0, n): returns element `position` of the permutation that (seed, stream) names.
 * It is a Feistel network with cycle walking and Philox as the round function; it needs no table.
 * Source: Black & Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 4-5. */
uint64_t wefti_philox_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t position);

/* Hashes a name to the stream of a parameter or a node: FNV-1a 64. */
uint64_t wefti_stream_of(const char *name);

#endif
