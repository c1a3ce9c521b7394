/* Philox4x32-10 on vectors, with the bits of base/philox.h. Each lane runs one block of four
 * words. */
#ifndef WEFTI_CPU_KERNELS_SIMD_PHILOX_H
#define WEFTI_CPU_KERNELS_SIMD_PHILOX_H

#include "backend/cpu/kernels/simd/simd.h"
#include "base/philox.h"

enum { PHILOX_WORDS = 4 * VL }; /* words made at once */

/* The words of the VL blocks counter, counter + 1, ... in order. */
INLINE void philox_words(uint64_t seed, uint64_t stream, uint64_t counter, int32_t *out) {
    vi lane = vi_iota(), low = vi_set1((int32_t)(uint32_t)counter);
    vi c0 = low + lane, c1 = vi_set1((int32_t)(uint32_t)(counter >> 32));
    if ((uint32_t)counter > UINT32_MAX - VL) { /* a carry within the vector */
        int32_t high[VL];
        for (uint64_t i = 0; i < VL; i++) high[i] = (int32_t)(uint32_t)((counter + i) >> 32);
        c1 = vi_load(high);
    }
    vi c2 = vi_set1((int32_t)(uint32_t)stream), c3 = vi_set1((int32_t)(uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vi h0, l0, h1, l1;
        vi_mulhilo(c0, 0xD2511F53u, &h0, &l0);
        vi_mulhilo(c2, 0xCD9E8D57u, &h1, &l1);
        c0 = h1 ^ c1 ^ vi_set1((int32_t)k0);
        c2 = h0 ^ c3 ^ vi_set1((int32_t)k1);
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vi_store_interleaved4(out, c0, c1, c2, c3);
}

/* out[i] = wefti_philox_uniform(seed, stream, position + i). */
static void __attribute__((unused))
philox_uniform(uint64_t seed, uint64_t stream, uint64_t position, int64_t count, float *out) {
    int32_t words[PHILOX_WORDS];
    const vf unit = vf_set1(1.0f / 16777216.0f);
    int64_t done = 0;
    while (done < count) {
        philox_words(seed, stream, position >> 2, words);
        int64_t skip = (int64_t)(position & 3);
        int64_t take = min64(PHILOX_WORDS - skip, count - done);
        if (skip == 0 && take == PHILOX_WORDS) {
            for (int64_t j = 0; j < PHILOX_WORDS; j += VL)
                vf_store(out + done + j, vf_from_int(vi_shr(vi_load(words + j), 8)) * unit);
        } else {
            for (int64_t j = 0; j < take; j++)
                out[done + j] = (float)((uint32_t)words[skip + j] >> 8) * (1.0f / 16777216.0f);
        }
        done += take;
        position += (uint64_t)take;
    }
}

#endif
