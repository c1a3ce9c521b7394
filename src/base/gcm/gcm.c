/* AES-256-GCM: see gcm.h. */
#include "base/gcm/gcm.h"

#include <string.h>

#include "base/memory.h"

#ifdef WEFT_HAVE_OPENSSL

#include <openssl/evp.h>

/* What the context has the key for: then only nonces follow. */
typedef enum gcm_way { GCM_DECRYPTS, GCM_ENCRYPTS, GCM_HAS_NO_KEY } gcm_way;

struct wefti_gcm {
    EVP_CIPHER_CTX *context;
    unsigned char key[WEFTI_GCM_KEY_BYTES];
    gcm_way way;
};

bool wefti_gcm_is_built(void) {
    return true;
}

weft_status wefti_gcm_open(const unsigned char key[WEFTI_GCM_KEY_BYTES], wefti_gcm **out) {
    wefti_gcm *g;
    WEFT_NEW(g, wefti_gcm);
    memcpy(g->key, key, sizeof g->key);
    g->way = GCM_HAS_NO_KEY;
    g->context = EVP_CIPHER_CTX_new();
    if (!g->context) {
        wefti_gcm_close(g);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a cipher");
    }
    *out = g;
    return WEFT_OK;
}

void wefti_gcm_close(wefti_gcm *g) {
    if (!g) return;
    EVP_CIPHER_CTX_free(g->context);
    explicit_bzero(g->key, sizeof g->key);
    wefti_free(g);
}

static bool begin(wefti_gcm *g, const wefti_gcm_text *t, gcm_way way) {
    enum { NONCE_BYTES = 12 };
    unsigned char nonce[NONCE_BYTES] = {0};
    int none;
    for (int i = 0; i < 8; i++) nonce[NONCE_BYTES - 1 - i] = (unsigned char)(t->nonce >> 8 * i);
    if (g->way != way &&
        !EVP_CipherInit_ex(g->context, EVP_aes_256_gcm(), NULL, g->key, NULL, (int)way))
        way = GCM_HAS_NO_KEY;
    g->way = way;
    return way != GCM_HAS_NO_KEY &&
           EVP_CipherInit_ex(g->context, NULL, NULL, NULL, nonce, (int)way) &&
           (!t->extra_bytes || EVP_CipherUpdate(g->context, NULL, &none, t->extra, t->extra_bytes));
}

static bool end(const wefti_gcm_text *t, bool good) {
    if (!good && t->bytes) memset(t->to, 0, (size_t)t->bytes);
    return good;
}

bool wefti_gcm_encrypt(wefti_gcm *g, const wefti_gcm_text *t,
                       unsigned char tag[WEFTI_GCM_TAG_BYTES]) {
    int used = 0, rest = 0;
    return end(
        t, begin(g, t, GCM_ENCRYPTS) &&
               (!t->bytes || EVP_CipherUpdate(g->context, t->to, &used, t->from, t->bytes)) &&
               EVP_CipherFinal_ex(g->context, tag, &rest) &&
               EVP_CIPHER_CTX_ctrl(g->context, EVP_CTRL_GCM_GET_TAG, WEFTI_GCM_TAG_BYTES, tag) &&
               used == t->bytes && !rest);
}

bool wefti_gcm_decrypt(wefti_gcm *g, const wefti_gcm_text *t,
                       const unsigned char tag[WEFTI_GCM_TAG_BYTES]) {
    unsigned char own[WEFTI_GCM_TAG_BYTES], rests[WEFTI_GCM_TAG_BYTES];
    int used = 0, rest = 0;
    memcpy(own, tag, sizeof own);
    return end(t,
               begin(g, t, GCM_DECRYPTS) &&
                   (!t->bytes || EVP_CipherUpdate(g->context, t->to, &used, t->from, t->bytes)) &&
                   EVP_CIPHER_CTX_ctrl(g->context, EVP_CTRL_GCM_SET_TAG, sizeof own, own) &&
                   EVP_CipherFinal_ex(g->context, rests, &rest) && used == t->bytes);
}

#else

bool wefti_gcm_is_built(void) {
    return false;
}

weft_status wefti_gcm_open(const unsigned char key[WEFTI_GCM_KEY_BYTES], wefti_gcm **out) {
    (void)key, (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "this weft was built without OpenSSL");
}

void wefti_gcm_close(wefti_gcm *gcm) {
    (void)gcm;
}

bool wefti_gcm_encrypt(wefti_gcm *gcm, const wefti_gcm_text *text,
                       unsigned char tag[WEFTI_GCM_TAG_BYTES]) {
    (void)gcm, (void)text, (void)tag;
    return false;
}

bool wefti_gcm_decrypt(wefti_gcm *gcm, const wefti_gcm_text *text,
                       const unsigned char tag[WEFTI_GCM_TAG_BYTES]) {
    (void)gcm, (void)text, (void)tag;
    return false;
}

#endif
