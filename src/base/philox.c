/* Normal numbers, permutations and named streams, made from Philox. */
#include "base/philox.h"

#include <math.h>
#include <string.h>

/* ---- normal numbers ----
 *
 * The functions are loops over arrays of a fixed length, without branches. So compilers turn them
 * into vector code. Sums and products have one fixed order without contraction. So every form of
 * the code gives the same bits. */

enum { PHILOX_LANES = 16 }; /* Philox blocks at a time: 64 numbers */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONED
#endif

/* ln(x) for x in (0, 1]. Source: the polynomial of Cephes' logf (Moshier). */
static inline float log_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t exponent = (int32_t)(bits >> 23) - 126;
    bits = (bits & 0x007fffffu) | 0x3f000000u; /* [0.5, 1) */
    float m;
    memcpy(&m, &bits, sizeof m);
    float low = m < 0.70710678f ? 1.0f : 0.0f;
    m = m + low * m - 1.0f;
    float e = (float)exponent - low, z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return m + (p * m * z - 0.5f * z + e * -2.12194440e-4f) + e * 0.693359375f;
}

/* cos and sin of 2 pi t for t in [0, 1): quarter turns and Taylor polynomials on [-pi/4, pi/4]. */
static inline void turn(float t, float *cosine, float *sine) {
    float quarter = t * 4.0f + 0.5f;
    int32_t q = (int32_t)quarter;
    float r = (t * 4.0f - (float)q) * 1.57079633f, z = r * r;
    float s = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
    float c =
        1.0f - 0.5f * z +
        z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
    float odd = (float)(q & 1), even = 1.0f - odd;
    float flip_c = (float)(1 - ((q + 1) & 2)), flip_s = (float)(1 - (q & 2));
    *cosine = flip_c * (even * c + odd * s);
    *sine = flip_s * (even * s + odd * c);
}

static inline void pair(uint32_t a, uint32_t b, float *first, float *second) {
    float u = (float)(int32_t)((a >> 8) + 1) * (1.0f / 16777216.0f); /* (0, 1] */
    float t = (float)(int32_t)(b >> 8) * (1.0f / 16777216.0f), c, s;
    float radius = sqrtf(-2.0f * log_of(u));
    turn(t, &c, &s);
    *first = radius * c;
    *second = radius * s;
}

float wefti_philox_normal(uint64_t seed, uint64_t stream, uint64_t position) {
    uint32_t block[4];
    float first, second;
    wefti_philox_block(seed, stream, position >> 2, block);
    pair(block[position & 2], block[(position & 2) + 1], &first, &second);
    return position & 1 ? second : first;
}

/* Normal numbers of PHILOX_LANES consecutive blocks from `counter`. `counter` is a multiple of it,
 * so its low word does not wrap. */
CLONED static void normal_blocks(uint64_t seed, uint64_t stream, uint64_t counter, float scale,
                                 float *restrict out) {
    uint32_t w0[PHILOX_LANES], w1[PHILOX_LANES], w2[PHILOX_LANES], w3[PHILOX_LANES];
    for (uint32_t i = 0; i < PHILOX_LANES; i++) {
        uint32_t c0 = (uint32_t)counter + i, c1 = (uint32_t)(counter >> 32);
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
        w0[i] = c0;
        w1[i] = c1;
        w2[i] = c2;
        w3[i] = c3;
    }
    for (int i = 0; i < PHILOX_LANES; i++) {
        float a, b, c, d;
        pair(w0[i], w1[i], &a, &b);
        pair(w2[i], w3[i], &c, &d);
        out[4 * i] = scale * a;
        out[4 * i + 1] = scale * b;
        out[4 * i + 2] = scale * c;
        out[4 * i + 3] = scale * d;
    }
}

void wefti_philox_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t count,
                          float scale, float *out) {
    float block[4 * PHILOX_LANES];
    for (int64_t i = 0; i < count; i += 4 * PHILOX_LANES) {
        uint64_t counter = (first + (uint64_t)i) >> 2;
        if (count - i >= 4 * PHILOX_LANES) {
            normal_blocks(seed, stream, counter, scale, out + i);
        } else {
            normal_blocks(seed, stream, counter, scale, block);
            memcpy(out + i, block, (size_t)(count - i) * sizeof *out);
        }
    }
}

uint64_t wefti_philox_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t position) {
    if (n < 2) return 0;
    unsigned half = 1; /* bits of each half; 2 * half bits can hold n */
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
