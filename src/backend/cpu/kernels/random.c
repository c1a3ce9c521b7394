/* Random fill: see kernels_data.h. The uniform numbers are those of base/philox.h bit for bit. The
 * normal ones are its Box-Muller pairs with logarithm, sine and cosine evaluated here, in double
 * precision by loops that every instruction set runs with the same roundings (no fused
 * multiply-add): equal on all of them, and equal to wefti_philox_normal but for a last bit in about
 * one number of 10^8. */
#include "backend/cpu/kernels/simd_philox.h"
#include "backend/cpu/kernels/table.h"

enum { TASK = 16384, BLOCK = 512 };

/* ln u for u in (0, 1]: u = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m +
 * 1)). */
INLINE double log_unit(double u) {
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    bits -= 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    int64_t e = (int64_t)bits >> 52;
    bits = (bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return (double)e * 0.69314718055994531 + (2.0 * s + 2.0 * s * z * p);
}

/* cos and sin of 2 pi v, v in [0, 1): turned into a quarter turn around 0, Taylor series there. */
INLINE void turn(double v, double *cosine, double *sine) {
    double quarters = v * 4.0;
    double magic = 6755399441055744.0; /* 1.5 2^52: adding it rounds to integer */
    double shifted = quarters + magic;
    uint64_t k;
    memcpy(&k, &shifted, sizeof k);
    double r = (quarters - (shifted - magic)) * 1.5707963267948966, z = r * r;
    double s = -7.6471637318198165e-13; /* 1/15!, then 1/13!, ... */
    s = s * z + 1.6059043836821613e-10;
    s = s * z - 2.5052108385441720e-08;
    s = s * z + 2.7557319223985893e-06;
    s = s * z - 1.9841269841269841e-04;
    s = s * z + 8.3333333333333332e-03;
    s = s * z - 1.6666666666666666e-01;
    s = s * z * r + r;
    double c = 4.7794773323873853e-14; /* 1/16!, then 1/14!, ... */
    c = c * z - 1.1470745597729725e-11;
    c = c * z + 2.0876756987868100e-09;
    c = c * z - 2.7557319223985888e-07;
    c = c * z + 2.4801587301587302e-05;
    c = c * z - 1.3888888888888889e-03;
    c = c * z + 4.1666666666666664e-02;
    c = c * z - 0.5;
    c = c * z + 1.0;
    bool swap = k & 1u;
    double cos_size = swap ? s : c, sin_size = swap ? c : s;
    *cosine = ((k + 1) & 2u) ? -cos_size : cos_size;
    *sine = (k & 2u) ? -sin_size : sin_size;
}

/* pairs words (a, b) in, pairs of normal numbers out. */
static void box_muller(const int32_t *words, int64_t pairs, float *out) {
    for (int64_t j = 0; j < pairs; j++) {
        double u = ((double)(uint32_t)words[2 * j] + 1.0) * (1.0 / 4294967296.0);
        double v = (double)(uint32_t)words[2 * j + 1] * (1.0 / 4294967296.0), c, s;
        turn(v, &c, &s);
        double radius = __builtin_sqrt(-2.0 * log_unit(u));
        out[2 * j] = (float)(radius * c);
        out[2 * j + 1] = (float)(radius * s);
    }
}

/* out[i] = normal number of position + i. */
static void philox_normal(uint64_t seed, uint64_t stream, uint64_t position, int64_t count,
                          float *out) {
    int32_t words[PHILOX_WORDS];
    float normal[PHILOX_WORDS];
    for (int64_t done = 0; done < count;) {
        philox_words(seed, stream, position >> 2, words);
        box_muller(words, PHILOX_WORDS / 2, normal);
        int64_t skip = (int64_t)(position & 3), take = min64(PHILOX_WORDS - skip, count - done);
        memcpy(out + done, normal + skip, (size_t)take * sizeof *out);
        done += take;
        position += (uint64_t)take;
    }
}

static void random_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_random_fill_args *a = context;
    float block[BLOCK];
    int64_t end = min64(a->elements, (task + 1) * TASK);
    for (int64_t start = task * TASK; start < end; start += BLOCK) {
        int64_t count = min64(BLOCK, end - start);
        uint64_t position = a->base + (uint64_t)start;
        vf shift, scale;
        if (a->normal) {
            philox_normal(a->seed, a->stream, position, count, block);
            shift = vf_set1(a->a);
            scale = vf_set1(a->b);
        } else {
            philox_uniform(a->seed, a->stream, position, count, block);
            shift = vf_set1(a->a);
            scale = vf_set1(a->b - a->a);
        }
        FOR_VECTORS(i, n, count) {
            vf scaled = load_f32(block + i, n) * scale; /* two roundings on every instruction set */
            store(a->y, start + i, scaled + shift, n);
        }
    }
}

void KERNEL(random_fill)(wefti_pool *pool, const wefti_random_fill_args *a) {
    wefti_random_fill_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->elements, TASK), random_task, &copy);
}
