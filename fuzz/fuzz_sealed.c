/* Fuzzes encrypted files. The first byte of the input chooses. Either the rest is a file, of which
 * the fuzzer corrects the first members of the header; it must be refused. Or the rest is encrypted
 * and changed in one byte; it must read as it was if nothing changed, and be refused otherwise. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/seal/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef WEFT_HAVE_OPENSSL

static const wefti_seal_mark mark = {.sealed = true, .salt = {1, 2, 3}};

static const wefti_key *kept_key(void) {
    static wefti_key key;
    if (key.number) return &key;
    if (setenv("WEFT_FUZZ_KEY", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
               1) ||
        wefti_key_read("env:WEFT_FUZZ_KEY", &key) < 0 || wefti_key_keep(&key) < 0)
        abort();
    return &key;
}

/* Whether all of the file can be read; *out: its bytes. */
static bool read_file(const unsigned char *file, size_t size, unsigned char **out,
                      int64_t *out_bytes) {
    wefti_reader *raw = NULL, *plain = NULL;
    if (wefti_reader_of(file, (int64_t)size, &raw) < 0) abort();
    if (wefti_sealed_of(raw, "run/file", &mark, &plain) < 0) {
        wefti_reader_close(raw);
        return false;
    }
    *out_bytes = wefti_reader_bytes(plain);
    const bool good = wefti_reader_take(plain, 0, *out_bytes, out) >= 0;
    wefti_reader_close(plain);
    return good;
}

/* Nobody can make a file without the key. */
static void refuse(const uint8_t *data, size_t size) {
    unsigned char *file = malloc(size + 1), *bytes = NULL;
    int64_t count = 0;
    wefti_seal seal;
    if (!file) return;
    if (size) memcpy(file, data, size);
    if (wefti_seal_make(kept_key(), &mark, "file", 0, 64, &seal) < 0) abort();
    if (size >= WEFTI_SEAL_HEADER_BYTES) { /* all but the sizes */
        memcpy(file, seal.header, 12);
        memcpy(file + 24, seal.header + 24, 40);
    }
    if (read_file(file, size, &bytes, &count)) abort();
    free(file);
}

static void change(const uint8_t *data, size_t size) {
    unsigned char *file = NULL, *bytes = NULL;
    int64_t file_bytes = 0, count = 0;
    wefti_seal seal;
    if (size < 4) return;
    const uint8_t mask = data[3];
    const size_t at = (size_t)data[1] << 8 | data[2], plain = size - 4;
    if (wefti_seal_make(kept_key(), &mark, "file", (int64_t)plain, 64 + data[0], &seal) < 0 ||
        wefti_seal_text(&seal, data + 4, &file, &file_bytes) < 0)
        abort();
    file[at % (size_t)file_bytes] ^= mask;
    const bool good = read_file(file, (size_t)file_bytes, &bytes, &count);
    if (good != !mask) abort();
    if (good && (count != (int64_t)plain || memcmp(bytes, data + 4, plain) != 0)) abort();
    wefti_free(bytes);
    wefti_free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (data[0] & 1)
        refuse(data + 1, size - 1);
    else
        change(data + 1, size - 1);
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)data, (void)size;
    return 0;
}

#endif
