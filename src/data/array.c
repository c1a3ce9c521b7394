/* Opens files with arrays, and reads their elements. See data/array.h. */
#include "data/array.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/tensor.h"

int wefti_element_bytes(wefti_element element) {
    static const int bytes[] = {
#define ROW(name, size, largest) size,
        WEFTI_ELEMENT_LIST(ROW)
#undef ROW
    };
    return bytes[element];
}

wefti_array_words wefti_array_text(const wefti_array *a) {
    static const char *const names[] = {"u1", "i1", "u2", "i2", "u4", "i4",
                                        "i8", "f2", "f4", "f8", "b1"};
    wefti_array_words w;
    int used = snprintf(w.text, sizeof w.text, "%s [", names[a->element]);
    for (int d = 0; d < a->rank; d++)
        used += snprintf(w.text + used, sizeof w.text - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)a->shape[d]);
    (void)snprintf(w.text + used, sizeof w.text - (size_t)used, "]");
    return w;
}

double wefti_element_largest(wefti_element element) {
    static const double largest[] = {
#define ROW(name, size, value) value,
        WEFTI_ELEMENT_LIST(ROW)
#undef ROW
    };
    return largest[element];
}

bool wefti_element_is_integer(wefti_element element) {
    return element != WEFTI_ELEMENT_F16 && element != WEFTI_ELEMENT_F32 &&
           element != WEFTI_ELEMENT_F64;
}

int64_t wefti_array_place(const wefti_array *array, int64_t i) {
    if (!array->by_columns) return i;
    int64_t place = 0, stride = array->elems;
    for (int d = array->rank - 1; d >= 0; d--) {
        stride /= array->shape[d];
        place += i % array->shape[d] * stride;
        i /= array->shape[d];
    }
    return place;
}

/* The bits of element i, in this machine's order (little endian, as all of weft assumes). */
static inline uint64_t bits_of(const wefti_array *array, int64_t i, int bytes) {
    const unsigned char *at = array->data + wefti_array_place(array, i) * bytes;
    uint64_t bits = 0;
    if (array->big_endian)
        for (int b = 0; b < bytes; b++) bits = bits << 8 | at[b];
    else
        memcpy(&bits, at, (size_t)bytes);
    return bits;
}

static int64_t integer_of(wefti_element element, uint64_t bits) {
    switch (element) {
    case WEFTI_ELEMENT_I8:
        return (int8_t)bits;
    case WEFTI_ELEMENT_I16:
        return (int16_t)bits;
    case WEFTI_ELEMENT_I32:
        return (int32_t)bits;
    case WEFTI_ELEMENT_BOOL:
        return bits != 0;
    default:
        return (int64_t)bits; /* unsigned ones are narrower than 64 bits */
    }
}

static float float_of(wefti_element element, uint64_t bits) {
    if (element == WEFTI_ELEMENT_F16) return wefti_f16_to_f32((uint16_t)bits);
    if (element == WEFTI_ELEMENT_F64) {
        double value;
        memcpy(&value, &bits, sizeof value);
        return (float)value;
    }
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}

void wefti_array_integers(const wefti_array *array, int64_t first, int64_t count, int64_t *out) {
    int bytes = wefti_element_bytes(array->element);
    for (int64_t i = 0; i < count; i++)
        out[i] = integer_of(array->element, bits_of(array, first + i, bytes));
}

void wefti_array_tokens(const wefti_array *array, int64_t first, int64_t count, int32_t *out) {
    int bytes = wefti_element_bytes(array->element);
    if (array->element == WEFTI_ELEMENT_U8 &&
        !array->by_columns) { /* bytes of text: the common case */
        for (int64_t i = 0; i < count; i++) out[i] = array->data[first + i];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t value = integer_of(array->element, bits_of(array, first + i, bytes));
        out[i] = value < 0 || value > INT32_MAX ? -1 : (int32_t)value;
    }
}

void wefti_array_scaled(const wefti_array *array, int64_t first, int64_t count, float *out) {
    int bytes = wefti_element_bytes(array->element);
    bool integer = wefti_element_is_integer(array->element);
    double largest = wefti_element_largest(array->element);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = bits_of(array, first + i, bytes);
        out[i] = integer ? (float)((double)integer_of(array->element, bits) / largest)
                         : float_of(array->element, bits);
    }
}

weft_status wefti_array_take(const wefti_array *array, int64_t first, int64_t count,
                             wefti_array_piece *out) {
    out->array = *array;
    out->first = first;
    out->count = count;
    if (!array->reader) return WEFT_OK;
    int64_t bytes = wefti_element_bytes(array->element), most = (int64_t)sizeof out->bytes / bytes;
    if (count > most) out->count = most;
    out->first = 0;
    out->array.reader = NULL;
    out->array.data = out->bytes;
    return wefti_reader_at(array->reader, array->offset + first * bytes, out->count * bytes,
                           out->bytes);
}

static weft_status parse(const char *path, wefti_array_format format, const unsigned char *bytes,
                         int64_t count, wefti_array *out) {
    switch (format) {
    case WEFTI_ARRAY_NPY:
        return wefti_npy_parse(path, bytes, count, out);
    case WEFTI_ARRAY_SHARD:
        return wefti_shard_parse(path, bytes, count, out);
    default:
        return wefti_idx_parse(path, bytes, count, out);
    }
}

static weft_status open_packed(const char *path, wefti_array_file *file) {
    unsigned char *packed;
    int64_t bytes = wefti_reader_bytes(file->reader), count = 0;
    WEFT_TRY(wefti_reader_take(file->reader, 0, bytes, &packed));
    weft_status status = wefti_idx_unpack(path, packed, bytes, &file->unpacked, &count);
    wefti_free(packed);
    WEFT_TRY(status);
    return parse(path, WEFTI_ARRAY_IDX, file->unpacked, count, &file->array);
}

static weft_status open_plain(const char *path, wefti_array_format format,
                              const unsigned char *header, wefti_array_file *file) {
    int64_t bytes = wefti_reader_bytes(file->reader);
    WEFT_TRY(parse(path, format, header, bytes, &file->array));
    file->array.reader = file->reader;
    file->array.data = NULL;
    if (!file->array.by_columns) return WEFT_OK;
    WEFT_TRY(wefti_reader_take(file->reader, file->array.offset, bytes - file->array.offset,
                               &file->unpacked));
    file->array.data = file->unpacked;
    file->array.reader = NULL;
    return WEFT_OK;
}

static weft_status open_file(const char *path, wefti_array_format format, wefti_array_file *file) {
    unsigned char *header;
    WEFT_TRY(wefti_reader_open(path, &file->reader));
    int64_t bytes = wefti_reader_bytes(file->reader);
    int64_t first = format == WEFTI_ARRAY_NPY ? WEFTI_NPY_HEADER_BYTES : WEFTI_ARRAY_HEADER_BYTES;
    if (first > bytes) first = bytes;
    WEFT_TRY(wefti_reader_take(file->reader, 0, first, &header));
    bool packed = format == WEFTI_ARRAY_IDX && first >= 2 && header[0] == 0x1f && header[1] == 0x8b;
    weft_status status = packed ? open_packed(path, file) : open_plain(path, format, header, file);
    wefti_free(header);
    if (status >= 0 && file->unpacked) { /* all of it is here */
        wefti_reader_close(file->reader);
        file->reader = NULL;
    }
    return status;
}

weft_status wefti_array_open(const char *path, wefti_array_format format, wefti_array_file *out) {
    wefti_array_file file = {0};
    weft_status status = open_file(path, format, &file);
    if (status < 0) {
        wefti_array_close(&file);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = file;
    return WEFT_OK;
}

void wefti_array_close(wefti_array_file *file) {
    wefti_free(file->unpacked);
    wefti_reader_close(file->reader);
    *file = (wefti_array_file){0};
}
