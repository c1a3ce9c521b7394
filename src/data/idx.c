/* IDX files (MNIST and its relatives), plain or in gzip: bytes 0, 0, type, rank; then rank sizes of
 * 32 bits and the elements, all big endian. */
#include <string.h>

#include "base/memory.h"
#include "data/array.h"

#if WEFT_HAVE_ZLIB
#include <zlib.h>
#endif

enum { HEADER_BYTES = 4, SIZE_BYTES = 4 };

static weft_status element_of(const char *path, int code, wefti_element *out) {
    switch (code) {
    case 0x08:
        *out = WEFTI_ELEMENT_U8;
        return WEFT_OK;
    case 0x09:
        *out = WEFTI_ELEMENT_I8;
        return WEFT_OK;
    case 0x0B:
        *out = WEFTI_ELEMENT_I16;
        return WEFT_OK;
    case 0x0C:
        *out = WEFTI_ELEMENT_I32;
        return WEFT_OK;
    case 0x0D:
        *out = WEFTI_ELEMENT_F32;
        return WEFT_OK;
    case 0x0E:
        *out = WEFTI_ELEMENT_F64;
        return WEFT_OK;
    default:
        WEFT_FAIL(WEFT_E_CORRUPT,
                  "%s: byte 2 names the element type 0x%02x; IDX knows 08, 09, 0b, 0c, 0d and 0e",
                  path, (unsigned)code);
    }
}

/* Everything but the elements; *out_total: bytes of the whole file. */
static weft_status parse_header(const char *path, const unsigned char *bytes, int64_t count,
                                wefti_array *out, int64_t *out_total) {
    WEFT_REQUIRE(count >= HEADER_BYTES, WEFT_E_CORRUPT,
                 "%s: %lld bytes are too few for the header of an IDX file", path,
                 (long long)count);
    if (bytes[0] || bytes[1]) WEFT_TRY(wefti_array_refuse(path, WEFTI_ARRAY_IDX, bytes, count));
    WEFT_REQUIRE(bytes[0] == 0 && bytes[1] == 0, WEFT_E_CORRUPT,
                 "%s: not an IDX file: it begins with %02x %02x, not 00 00", path, bytes[0],
                 bytes[1]);
    wefti_array array = {.big_endian = true, .rank = bytes[3], .elems = 1};
    WEFT_TRY(element_of(path, bytes[2], &array.element));
    WEFT_REQUIRE(array.rank >= 1 && array.rank <= WEFT_MAX_RANK, WEFT_E_CORRUPT,
                 "%s: byte 3 gives %d dimensions; 1 to %d are possible", path, array.rank,
                 WEFT_MAX_RANK);
    array.offset = HEADER_BYTES + SIZE_BYTES * (int64_t)array.rank;
    WEFT_REQUIRE(count >= array.offset, WEFT_E_CORRUPT,
                 "%s: the file ends at byte %lld, within the sizes of its %d dimensions", path,
                 (long long)count, array.rank);
    for (int i = 0; i < array.rank; i++) {
        const unsigned char *at = bytes + HEADER_BYTES + SIZE_BYTES * i;
        array.shape[i] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
        WEFT_REQUIRE(!wefti_mul_overflows(array.elems, array.shape[i], &array.elems),
                     WEFT_E_CORRUPT, "%s: the sizes at byte %d multiply to more than 64 bits hold",
                     path, HEADER_BYTES);
    }
    int64_t total;
    WEFT_REQUIRE(!wefti_mul_overflows(array.elems, wefti_element_bytes(array.element), &total) &&
                     !wefti_add_overflows(total, array.offset, &total),
                 WEFT_E_CORRUPT, "%s: the sizes at byte %d multiply to more than 64 bits hold",
                 path, HEADER_BYTES);
    *out = array;
    *out_total = total;
    return WEFT_OK;
}

weft_status wefti_idx_parse(const char *path, const unsigned char *bytes, int64_t count,
                            wefti_array *out) {
    wefti_array array = {0};
    int64_t total = 0;
    WEFT_TRY(parse_header(path, bytes, count, &array, &total));
    WEFT_REQUIRE(count == total, WEFT_E_CORRUPT,
                 "%s: the header at byte 0 promises a file of %lld bytes, but it has %lld", path,
                 (long long)total, (long long)count);
    array.data = bytes + array.offset;
    *out = array;
    return WEFT_OK;
}

#if WEFT_HAVE_ZLIB

static void *zlib_alloc(void *context, unsigned count, unsigned bytes) {
    (void)context;
    return wefti_calloc(count, bytes);
}

static void zlib_free(void *context, void *p) {
    (void)context;
    wefti_free(p);
}

/* zlib counts in 32 bits: feed it at most this much at a time. */
enum { PIECE_BYTES = 1 << 30 };

static unsigned piece_of(int64_t bytes) {
    return (unsigned)(bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
}

/* Unpack exactly `wanted` bytes; *out_ended: and there the packed file ended, too. */
static weft_status inflate_to(const char *path, const unsigned char *bytes, int64_t count,
                              unsigned char *to, int64_t wanted, bool *out_ended) {
    z_stream z = {.zalloc = zlib_alloc, .zfree = zlib_free};
    int code = inflateInit2(&z, 15 + 16); /* 32 KiB window, gzip wrapping */
    WEFT_REQUIRE(code == Z_OK, WEFT_E_NOMEM, "no memory to unpack %s", path);
    int64_t in = 0, out = 0;
    unsigned char spare; /* room for more, to notice data beyond the expected end */
    for (;;) {
        z.next_in = (unsigned char *)bytes + in; /* zlib 1.2 has no const here */
        z.avail_in = piece_of(count - in);
        z.next_out = out < wanted ? to + out : &spare;
        z.avail_out = out < wanted ? piece_of(wanted - out) : 1;
        unsigned had_in = z.avail_in, had_out = z.avail_out;
        code = inflate(&z, Z_NO_FLUSH);
        in += had_in - z.avail_in;
        out += had_out - z.avail_out;
        if (code == Z_STREAM_END && in < count && inflateReset(&z) == Z_OK)
            continue; /* next member */
        if (code != Z_OK || out > wanted) break;
    }
    inflateEnd(&z);
    WEFT_REQUIRE(code != Z_MEM_ERROR, WEFT_E_NOMEM, "no memory to unpack %s", path);
    WEFT_REQUIRE(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, WEFT_E_CORRUPT,
                 "%s: damaged gzip data at byte %lld", path, (long long)in);
    WEFT_REQUIRE(out >= wanted, WEFT_E_CORRUPT,
                 "%s: the gzip data ends after %lld of the %lld bytes that its content promises",
                 path, (long long)out, (long long)wanted);
    *out_ended = code == Z_STREAM_END && out == wanted;
    return WEFT_OK;
}

weft_status wefti_idx_unpack(const char *path, const unsigned char *bytes, int64_t count,
                             unsigned char **out, int64_t *out_bytes) {
    /* Unpacks the header first and checks the size in it, before memory is allocated for that size.
     */
    unsigned char header[HEADER_BYTES + SIZE_BYTES * WEFT_MAX_RANK];
    bool ended;
    WEFT_TRY(inflate_to(path, bytes, count, header, HEADER_BYTES, &ended));
    int64_t known = HEADER_BYTES + SIZE_BYTES * (int64_t)header[3];
    if (known > (int64_t)sizeof header) known = HEADER_BYTES; /* parsing reports the error */
    WEFT_TRY(inflate_to(path, bytes, count, header, known, &ended));
    wefti_array array;
    int64_t total = 0;
    WEFT_TRY(parse_header(path, header, known, &array, &total));
    enum { LARGEST_RATIO = 1032 }; /* of deflate: zlib, doc/algorithm.txt */
    WEFT_REQUIRE(total / LARGEST_RATIO <= count, WEFT_E_CORRUPT,
                 "%s: the header inside promises %lld bytes, which %lld packed ones cannot hold",
                 path, (long long)total, (long long)count);
    unsigned char *data = wefti_alloc((size_t)total);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the %lld bytes of %s", (long long)total, path);
    weft_status status = inflate_to(path, bytes, count, data, total, &ended);
    if (status >= 0 && !ended)
        status = WEFT_RAISE(WEFT_E_CORRUPT,
                            "%s: the gzip data does not end after the %lld bytes of its content",
                            path, (long long)total);
    if (status < 0) {
        wefti_free(data);
        return status;
    }
    *out = data;
    *out_bytes = total;
    return WEFT_OK;
}

#else

weft_status wefti_idx_unpack(const char *path, const unsigned char *bytes, int64_t count,
                             unsigned char **out, int64_t *out_bytes) {
    (void)bytes, (void)count, (void)out, (void)out_bytes;
    WEFT_FAIL(WEFT_E_NO_IMPL, "%s is packed by gzip, and this build has no zlib: unpack it first",
              path);
}

#endif
