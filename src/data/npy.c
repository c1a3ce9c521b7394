/* npy files: magic, version, length of a header that is a Python dictionary literal, elements.
 *
 * The parser accepts exactly the dictionaries that NumPy writes: three keys in any order. It
 * refuses Python objects, because reading them means running code from the file. */
#include <string.h>

#include "base/memory.h"
#include "data/array.h"

enum { MAGIC_BYTES = 6, LARGEST_HEADER = WEFTI_NPY_HEADER_BYTES - 12 };

/* Reads the dictionary; `at` never passes `end`. */
typedef struct reader {
    const char *path;
    const unsigned char *start, *at, *end;
} reader;

static long long offset_of(const reader *r) {
    return r->at - r->start;
}

static void skip_spaces(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t')) r->at++;
}

static bool accept(reader *r, char c) {
    skip_spaces(r);
    if (r->at == r->end || *r->at != (unsigned char)c) return false;
    r->at++;
    return true;
}

static weft_status expect(reader *r, char c) {
    WEFT_REQUIRE(accept(r, c), WEFT_E_CORRUPT, "%s: byte %lld of the header is not '%c'", r->path,
                 offset_of(r), c);
    return WEFT_OK;
}

/* A string in single or double quotes, without escapes, which keys and element types never have. */
static weft_status read_string(reader *r, char out[16]) {
    char quote = accept(r, '\'') ? '\'' : '"';
    if (quote == '"') WEFT_TRY(expect(r, '"'));
    int length = 0;
    while (r->at < r->end && *r->at != (unsigned char)quote) {
        WEFT_REQUIRE(length < 15 && *r->at >= ' ' && *r->at < 127 && *r->at != '\\', WEFT_E_CORRUPT,
                     "%s: byte %lld of the header is not part of a key or element type", r->path,
                     offset_of(r));
        out[length++] = (char)*r->at++;
    }
    out[length] = '\0';
    return expect(r, quote);
}

static weft_status read_size(reader *r, int64_t *out) {
    int64_t value = 0;
    const unsigned char *from = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        WEFT_REQUIRE(!wefti_mul_overflows(value, 10, &value) &&
                         !wefti_add_overflows(value, *r->at - '0', &value),
                     WEFT_E_CORRUPT, "%s: the size at byte %lld is larger than 64 bits hold",
                     r->path, offset_of(r));
        r->at++;
    }
    WEFT_REQUIRE(r->at > from, WEFT_E_CORRUPT, "%s: byte %lld of the header is not a size", r->path,
                 offset_of(r));
    *out = value;
    return WEFT_OK;
}

/* (), (3,), (3, 4), (3, 4,) */
static weft_status read_shape(reader *r, wefti_array *array) {
    WEFT_TRY(expect(r, '('));
    while (!accept(r, ')')) {
        WEFT_REQUIRE(array->rank < WEFT_MAX_RANK, WEFT_E_NO_IMPL,
                     "%s: an array of more than %d dimensions", r->path, WEFT_MAX_RANK);
        WEFT_TRY(read_size(r, &array->shape[array->rank++]));
        if (accept(r, ',')) continue;
        WEFT_TRY(expect(r, ')'));
        WEFT_REQUIRE(array->rank > 1, WEFT_E_CORRUPT, "%s: byte %lld: (n) is a number, not a shape",
                     r->path, offset_of(r));
        break;
    }
    return WEFT_OK;
}

static weft_status read_element(reader *r, wefti_array *array) {
    static const struct {
        const char *text;
        wefti_element element;
    } known[] = {{"f4", WEFTI_ELEMENT_F32}, {"f8", WEFTI_ELEMENT_F64}, {"f2", WEFTI_ELEMENT_F16},
                 {"i1", WEFTI_ELEMENT_I8},  {"i2", WEFTI_ELEMENT_I16}, {"i4", WEFTI_ELEMENT_I32},
                 {"i8", WEFTI_ELEMENT_I64}, {"u1", WEFTI_ELEMENT_U8},  {"u2", WEFTI_ELEMENT_U16},
                 {"u4", WEFTI_ELEMENT_U32}, {"b1", WEFTI_ELEMENT_BOOL}};
    skip_spaces(r);
    WEFT_REQUIRE(r->at == r->end || *r->at != '[', WEFT_E_NO_IMPL,
                 "%s: the array holds records; only plain numbers can be read", r->path);
    char text[16];
    WEFT_TRY(read_string(r, text));
    char order = text[0];
    for (size_t i = 0; i < sizeof known / sizeof *known && order; i++) {
        if (strcmp(text + 1, known[i].text) != 0) continue;
        bool one_byte = wefti_element_bytes(known[i].element) == 1; /* has no order: '|' */
        if (order != '<' && order != '>' && !(order == '|' && one_byte)) break;
        array->element = known[i].element;
        array->big_endian = order == '>';
        return WEFT_OK;
    }
    WEFT_REQUIRE(strcmp(text, "|O"), WEFT_E_NO_IMPL,
                 "%s: the array holds Python objects, which are never read: save numbers", r->path);
    WEFT_FAIL(WEFT_E_NO_IMPL, "%s: elements '%s'; possible are f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1",
              r->path, text);
}

static weft_status read_order(reader *r, wefti_array *array) {
    skip_spaces(r);
    size_t left = (size_t)(r->end - r->at);
    array->by_columns = left >= 4 && !memcmp(r->at, "True", 4);
    bool by_rows = left >= 5 && !memcmp(r->at, "False", 5);
    WEFT_REQUIRE(array->by_columns || by_rows, WEFT_E_CORRUPT,
                 "%s: byte %lld of the header is not True or False", r->path, offset_of(r));
    r->at += by_rows ? 5 : 4;
    return WEFT_OK;
}

static weft_status read_dictionary(reader *r, wefti_array *array) {
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    int seen = 0;
    WEFT_TRY(expect(r, '{'));
    while (!accept(r, '}')) {
        char key[16];
        WEFT_TRY(read_string(r, key));
        WEFT_TRY(expect(r, ':'));
        int which = !strcmp(key, "descr")           ? DESCR
                    : !strcmp(key, "fortran_order") ? ORDER
                    : !strcmp(key, "shape")         ? SHAPE
                                                    : 0;
        WEFT_REQUIRE(which && !(seen & which), WEFT_E_CORRUPT,
                     "%s: the key '%s' at byte %lld is unknown or there twice", r->path, key,
                     offset_of(r));
        seen |= which;
        if (which == DESCR) WEFT_TRY(read_element(r, array));
        if (which == ORDER) WEFT_TRY(read_order(r, array));
        if (which == SHAPE) WEFT_TRY(read_shape(r, array));
        if (accept(r, ',')) continue;
        WEFT_TRY(expect(r, '}'));
        break;
    }
    WEFT_REQUIRE(seen == ALL, WEFT_E_CORRUPT,
                 "%s: the header lacks one of descr, fortran_order and shape", r->path);
    skip_spaces(r);
    WEFT_REQUIRE(r->at == r->end, WEFT_E_CORRUPT, "%s: byte %lld: text after the header", r->path,
                 offset_of(r));
    return WEFT_OK;
}

weft_status wefti_npy_parse(const char *path, const unsigned char *bytes, int64_t count,
                            wefti_array *out) {
    WEFT_TRY(wefti_array_refuse(path, WEFTI_ARRAY_NPY, bytes, count));
    WEFT_REQUIRE(count >= MAGIC_BYTES + 4 && !memcmp(bytes, "\x93NUMPY", MAGIC_BYTES),
                 WEFT_E_CORRUPT, "%s: not an npy file: it does not begin with \\x93NUMPY", path);
    int major = bytes[6], minor = bytes[7];
    WEFT_REQUIRE(major >= 1 && major <= 3 && minor == 0, WEFT_E_NO_IMPL,
                 "%s: npy version %d.%d; 1.0, 2.0 and 3.0 are known", path, major, minor);
    int64_t start = major == 1 ? 10 : 12;
    WEFT_REQUIRE(count >= start, WEFT_E_CORRUPT,
                 "%s: the file ends at byte %lld, within its header", path, (long long)count);
    int64_t length = bytes[8] | bytes[9] << 8;
    if (major > 1) length |= (int64_t)bytes[10] << 16 | (int64_t)bytes[11] << 24;
    WEFT_REQUIRE(length <= LARGEST_HEADER && length <= count - start, WEFT_E_CORRUPT,
                 "%s: byte 8 gives a header of %lld bytes, more than the file has or may have",
                 path, (long long)length);
    reader r = {path, bytes, bytes + start, bytes + start + length};
    wefti_array array = {.elems = 1, .offset = start + length};
    WEFT_TRY(read_dictionary(&r, &array));
    int64_t total;
    bool overflows = false;
    for (int i = 0; i < array.rank; i++)
        overflows |= wefti_mul_overflows(array.elems, array.shape[i], &array.elems);
    overflows |= wefti_mul_overflows(array.elems, wefti_element_bytes(array.element), &total);
    overflows |= wefti_add_overflows(total, array.offset, &total);
    WEFT_REQUIRE(!overflows && total == count, WEFT_E_CORRUPT,
                 overflows ? "%s: the shape in the header has more elements than 64 bits count"
                           : "%s: the header promises a file of %lld bytes, but it has %lld",
                 path, (long long)total, (long long)count);
    array.by_columns &= array.rank > 1; /* else both orders are one */
    array.data = bytes + array.offset;
    *out = array;
    return WEFT_OK;
}
