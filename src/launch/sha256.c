/* SHA-256 and HMAC: see launch/sha256.h. */
#include "launch/sha256.h"

#include <stdint.h>
#include <string.h>

#ifdef WEFT_HAVE_OPENSSL
/* HMAC() would load OpenSSL's providers first: 2 ms in each process. The functions of SHA-256 alone
 * need none. OpenSSL 3 calls them deprecated for that reason, and keeps them. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#endif

enum { SHA256_BLOCK = 64 };

typedef struct hash {
    uint32_t state[8];
    unsigned char block[SHA256_BLOCK];
    size_t used;
    uint64_t bytes;
} hash;

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void expand(const unsigned char *block, uint32_t w[64]) {
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | (uint32_t)block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], s[8];
    expand(block, w);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t one = s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                       ((e & s[5]) ^ (~e & s[6])) + round_constant[i] + w[i];
        uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                       ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static void begin(hash *h) {
    *h = (hash){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                          0x1f83d9ab, 0x5be0cd19}};
}

static void add(hash *h, const void *data, size_t bytes) {
    const unsigned char *p = data;
    h->bytes += bytes;
    while (bytes > 0) {
        size_t n = SHA256_BLOCK - h->used < bytes ? SHA256_BLOCK - h->used : bytes;
        memcpy(h->block + h->used, p, n);
        h->used += n;
        p += n;
        bytes -= n;
        if (h->used == SHA256_BLOCK) {
            compress(h->state, h->block);
            h->used = 0;
        }
    }
}

static void end(hash *h, unsigned char out[WEFTI_DIGEST_BYTES]) {
    static const unsigned char padding[SHA256_BLOCK] = {0x80};
    uint64_t bits = h->bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    add(h, padding, h->used < 56 ? 56 - h->used : 120 - h->used);
    add(h, length, sizeof length);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void wefti_sha256(const void *data, size_t bytes, unsigned char out[WEFTI_DIGEST_BYTES]) {
    hash h;
    begin(&h);
    add(&h, data, bytes);
    end(&h, out);
}

/* The key's two pads, as RFC 2104 has them. */
typedef struct hmac_pads {
    unsigned char inner[SHA256_BLOCK], outer[SHA256_BLOCK];
} hmac_pads;

static void make_pads(const void *key, size_t key_bytes, hmac_pads *out) {
    unsigned char short_key[SHA256_BLOCK] = {0};
    if (key_bytes > SHA256_BLOCK)
        wefti_sha256(key, key_bytes, short_key);
    else if (key_bytes > 0)
        memcpy(short_key, key, key_bytes);
    for (int i = 0; i < SHA256_BLOCK; i++) {
        out->inner[i] = short_key[i] ^ 0x36;
        out->outer[i] = short_key[i] ^ 0x5c;
    }
    explicit_bzero(short_key, sizeof short_key);
}

static void hash_two(const unsigned char pad[SHA256_BLOCK], const void *data, size_t bytes,
                     unsigned char out[WEFTI_DIGEST_BYTES]) {
    hash h;
    begin(&h);
    add(&h, pad, SHA256_BLOCK);
    add(&h, data, bytes);
    end(&h, out);
}

void wefti_hmac_own(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char out[WEFTI_DIGEST_BYTES]) {
    unsigned char inner[WEFTI_DIGEST_BYTES];
    hmac_pads pads;
    make_pads(key, key_bytes, &pads);
    hash_two(pads.inner, data, bytes, inner);
    hash_two(pads.outer, inner, sizeof inner, out);
    explicit_bzero(&pads, sizeof pads);
}

void wefti_openssl_begin(void) {
#if defined(WEFT_HAVE_OPENSSL) && defined(OPENSSL_INIT_NO_ATEXIT)
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
#endif
}

#ifdef WEFT_HAVE_OPENSSL
static bool openssl_hash_two(const unsigned char pad[SHA256_BLOCK], const void *data, size_t bytes,
                             unsigned char out[WEFTI_DIGEST_BYTES]) {
    SHA256_CTX context;
    bool good = SHA256_Init(&context) && SHA256_Update(&context, pad, SHA256_BLOCK) &&
                SHA256_Update(&context, data, bytes) && SHA256_Final(out, &context);
    OPENSSL_cleanse(&context, sizeof context);
    return good;
}
#endif

void wefti_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                unsigned char out[WEFTI_DIGEST_BYTES]) {
#ifdef WEFT_HAVE_OPENSSL
    unsigned char inner[WEFTI_DIGEST_BYTES];
    hmac_pads pads;
    make_pads(key, key_bytes, &pads);
    bool good = openssl_hash_two(pads.inner, data, bytes, inner) &&
                openssl_hash_two(pads.outer, inner, sizeof inner, out);
    explicit_bzero(&pads, sizeof pads);
    if (good) return;
#endif
    wefti_hmac_own(key, key_bytes, data, bytes, out);
}

bool wefti_equal_secretly(const void *a, const void *b, size_t bytes) {
    const volatile unsigned char *x = a, *y = b;
    unsigned char different = 0;
    for (size_t i = 0; i < bytes; i++) different = (unsigned char)(different | (x[i] ^ y[i]));
    return different == 0;
}
