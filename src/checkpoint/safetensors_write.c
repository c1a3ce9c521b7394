/* Writes safetensors. See safetensors.h. */
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"

const char *wefti_safetensors_dtype_name(weft_dtype dtype) {
    static const char *const names[] = {
#define NAME_ROW(name, bytes, text, file_name) file_name,
        WEFT_DTYPE_LIST(NAME_ROW)
#undef NAME_ROW
    };
    return dtype < WEFT_DTYPES ? names[dtype] : "?";
}

static weft_status check_name(const char *name) {
    WEFT_REQUIRE(strlen(name) <= WEFTI_SAFETENSORS_NAME_BYTES, WEFT_E_ARG,
                 "the tensor name \"%.60s...\" has %zu bytes; at most %d are stored", name,
                 strlen(name), WEFTI_SAFETENSORS_NAME_BYTES);
    WEFT_REQUIRE(wefti_utf8_valid(name), WEFT_E_ARG, "the tensor name \"%.200s\" is not UTF-8",
                 name);
    WEFT_REQUIRE(strcmp(name, "__metadata__"), WEFT_E_ARG,
                 "a tensor cannot be named __metadata__: the format uses that name");
    return WEFT_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static weft_status check_names(const wefti_safetensors_item *items, int64_t count) {
    const char **names;
    WEFT_NEW_ARRAY(names, const char *, count);
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        names[i] = items[i].name;
        status = check_name(names[i]);
    }
    if (count && status >= 0) qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int64_t i = 1; i < count && status >= 0; i++)
        if (!strcmp(names[i - 1], names[i]))
            status = WEFT_RAISE(WEFT_E_ARG, "two tensors are named \"%.200s\"", names[i]);
    wefti_free(names);
    return status;
}

static void add_metadata(wefti_text *text, const wefti_safetensors_pair *metadata, int64_t pairs) {
    wefti_text_add(text, "\"__metadata__\":{");
    for (int64_t i = 0; i < pairs; i++) {
        if (i) wefti_text_add(text, ",");
        wefti_json_quote(text, metadata[i].key);
        wefti_text_add(text, ":");
        wefti_json_quote(text, metadata[i].value);
    }
    wefti_text_add(text, "}");
}

static weft_status add_items(wefti_text *text, const wefti_safetensors_item *items, int64_t count,
                             bool first) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const weft_desc *desc = &items[i].desc;
        WEFT_TRY(wefti_desc_check(desc));
        if (!first || i) wefti_text_add(text, ",");
        wefti_json_quote(text, items[i].name);
        wefti_text_add(text, ":{\"dtype\":\"%s\",\"shape\":[",
                       wefti_safetensors_dtype_name(desc->dtype));
        for (int d = 0; d < desc->rank; d++)
            wefti_text_add(text, d ? ",%lld" : "%lld", (long long)desc->shape[d]);
        int64_t end;
        WEFT_REQUIRE(!wefti_add_overflows(at, weft_desc_bytes(desc), &end), WEFT_E_ARG,
                     "the tensors' bytes do not fit 63 bits");
        wefti_text_add(text, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end);
        at = end;
    }
    return WEFT_OK;
}

static weft_status build_header(wefti_text *text, const wefti_safetensors_item *items,
                                int64_t count, const wefti_safetensors_pair *metadata,
                                int64_t pairs) {
    WEFT_REQUIRE(count <= WEFTI_SAFETENSORS_TENSORS, WEFT_E_ARG,
                 "%lld tensors in one file; at most %d", (long long)count,
                 WEFTI_SAFETENSORS_TENSORS);
    WEFT_TRY(check_names(items, count));
    wefti_text_add_bytes(text, "\0\0\0\0\0\0\0\0{", 9); /* room for the length */
    if (pairs) add_metadata(text, metadata, pairs);
    WEFT_TRY(add_items(text, items, count, pairs == 0));
    wefti_text_add(text, "}");
    while (text->used % 8 && !text->failed) wefti_text_add(text, " ");
    WEFT_REQUIRE(!text->failed, WEFT_E_NOMEM, "no memory for the header of a safetensors file");
    uint64_t length = (uint64_t)text->used - 8;
    WEFT_REQUIRE(length <= WEFTI_SAFETENSORS_HEADER_BYTES, WEFT_E_ARG,
                 "the header would have %llu bytes; the format allows %d",
                 (unsigned long long)length, WEFTI_SAFETENSORS_HEADER_BYTES);
    for (int i = 0; i < 8; i++) text->data[i] = (char)(length >> (8 * i));
    return WEFT_OK;
}

weft_status wefti_safetensors_header(const wefti_safetensors_item *items, int64_t count,
                                     const wefti_safetensors_pair *metadata, int64_t pairs,
                                     char **out, int64_t *out_bytes) {
    wefti_text text = {0};
    weft_status status = build_header(&text, items, count, metadata, pairs);
    if (status < 0) {
        wefti_text_free(&text);
        return status;
    }
    *out_bytes = text.used;
    *out = text.data; /* the buffer itself: its content begins with NUL bytes */
    return WEFT_OK;
}

static int compare_items(const void *a, const void *b) {
    const wefti_safetensors_item *x = a, *y = b;
    size_t size_x = weft_dtype_bytes(x->desc.dtype), size_y = weft_dtype_bytes(y->desc.dtype);
    if (size_x != size_y) return size_x > size_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Without `make` the items are in memory. */
static weft_status write_items(wefti_writer *w, const wefti_safetensors_item *items, int64_t count,
                               wefti_safetensors_make make) {
    int64_t most = 1;
    for (int64_t i = 0; i < count && make; i++)
        if (weft_desc_bytes(&items[i].desc) > most) most = weft_desc_bytes(&items[i].desc);
    void *room = wefti_alloc((size_t)most);
    WEFT_REQUIRE(room, WEFT_E_NOMEM, "no memory for a tensor of %lld bytes", (long long)most);
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        const void *data = make ? room : items[i].data;
        if (make) status = make(&items[i], room);
        if (status >= 0)
            status = wefti_writer_write(w, data, (size_t)weft_desc_bytes(&items[i].desc));
    }
    wefti_free(room);
    return status;
}

static weft_status write_file(const char *path, const char *header, int64_t header_bytes,
                              const wefti_safetensors_item *items, int64_t count,
                              wefti_safetensors_make make) {
    wefti_writer *w = NULL;
    WEFT_TRY(wefti_writer_open(path, &w));
    weft_status status = wefti_writer_write(w, header, (size_t)header_bytes);
    if (status >= 0) status = write_items(w, items, count, make);
    if (status >= 0) return wefti_writer_commit(w);
    wefti_writer_abort(w);
    return status;
}

weft_status wefti_safetensors_write_made(const char *path, const wefti_safetensors_item *items,
                                         int64_t count, const wefti_safetensors_pair *metadata,
                                         int64_t pairs, wefti_safetensors_make make) {
    wefti_safetensors_item *ordered;
    WEFT_NEW_ARRAY(ordered, wefti_safetensors_item, count);
    if (count) {
        memcpy(ordered, items, (size_t)count * sizeof *items);
        qsort(ordered, (size_t)count, sizeof *ordered, compare_items);
    }
    char *header = NULL;
    int64_t header_bytes = 0;
    weft_status status =
        wefti_safetensors_header(ordered, count, metadata, pairs, &header, &header_bytes);
    if (status >= 0) status = write_file(path, header, header_bytes, ordered, count, make);
    wefti_free(header);
    wefti_free(ordered);
    return status;
}

weft_status wefti_safetensors_write(const char *path, const wefti_safetensors_item *items,
                                    int64_t count, const wefti_safetensors_pair *metadata,
                                    int64_t pairs) {
    return wefti_safetensors_write_made(path, items, count, metadata, pairs, NULL);
}
