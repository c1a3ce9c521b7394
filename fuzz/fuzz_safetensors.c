/* Fuzzes the safetensors reader. Accepted tensors must tile the file, be readable to the last byte
 * and be found by name; written again they must read as the same. The first byte of the input
 * chooses between a whole file and a bare header. The fuzzer completes a bare header with the right
 * length and the data bytes that its offsets need, so that mutations reach the checks after the
 * length. */
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA_BYTES = 4096 };

static void check(wefti_safetensors *file) {
    int64_t total = 0, pairs = 0;
    unsigned char sum = 0;
    for (int64_t i = 0; i < wefti_safetensors_count(file); i++) {
        const wefti_safetensors_entry *e = wefti_safetensors_at(file, i);
        unsigned char *bytes;
        if (wefti_reader_take(e->reader, e->at, e->bytes, &bytes) < 0) abort();
        for (int64_t k = 0; k < e->bytes; k++) sum = (unsigned char)(sum + bytes[k]);
        wefti_free(bytes);
        if (wefti_safetensors_find(file, e->name) != e) abort();
        if (e->desc.rank >= 0 && weft_desc_bytes(&e->desc) != e->bytes) abort();
        if (!wefti_utf8_valid(e->name)) abort();
        total += e->bytes;
    }
    volatile unsigned char sink = sum; /* so that every byte is read */
    (void)sink;
    if (total != wefti_safetensors_bytes(file) - wefti_safetensors_header_bytes(file)) abort();
    const wefti_safetensors_pair *metadata = wefti_safetensors_metadata(file, &pairs);
    for (int64_t i = 0; i < pairs; i++)
        if (!wefti_utf8_valid(metadata[i].key) || !wefti_utf8_valid(metadata[i].value)) abort();
}

/* The header that weft writes for an accepted file must be accepted too. */
static void write_again(const wefti_safetensors *file) {
    int64_t count = wefti_safetensors_count(file), pairs = 0, bytes = 0, data_bytes = 0;
    wefti_safetensors_item *items = calloc((size_t)count + 1, sizeof *items);
    if (!items) return;
    bool ours = true;
    for (int64_t i = 0; i < count; i++) {
        const wefti_safetensors_entry *e = wefti_safetensors_at(file, i);
        items[i] = (wefti_safetensors_item){e->name, e->desc, NULL};
        ours = ours && e->desc.rank >= 0;
        data_bytes += e->bytes;
    }
    const wefti_safetensors_pair *metadata = wefti_safetensors_metadata(file, &pairs);
    char *header = NULL;
    if (ours && wefti_safetensors_header(items, count, metadata, pairs, &header, &bytes) < 0)
        abort();
    if (ours && data_bytes <= DATA_BYTES) {
        char *whole = calloc(1, (size_t)(bytes + data_bytes));
        wefti_safetensors *again = NULL;
        if (whole) memcpy(whole, header, (size_t)bytes);
        if (whole && wefti_safetensors_parse(whole, bytes + data_bytes, &again) < 0) abort();
        if (whole && wefti_safetensors_count(again) != count) abort();
        if (whole) wefti_safetensors_close(again);
        free(whole);
    }
    wefti_free(header);
    free(items);
}

static void parse(const unsigned char *bytes, size_t size) {
    wefti_safetensors *file = NULL;
    if (wefti_safetensors_parse(bytes, (int64_t)size, &file) < 0) return;
    check(file);
    write_again(file);
    wefti_safetensors_close(file);
}

/* The largest number in the text that could be the end of the data. */
static size_t wanted_bytes(const uint8_t *text, size_t size) {
    size_t most = 0, number = 0;
    for (size_t i = 0; i < size; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        number = digit && number < DATA_BYTES ? number * 10 + text[i] - '0' : 0;
        if (number > most && number <= DATA_BYTES) most = number;
    }
    return most;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (data[0] & 1) {
        parse(data + 1, size - 1);
        return 0;
    }
    size_t header = size - 1, behind = wanted_bytes(data + 1, header);
    unsigned char *file = malloc(8 + header + behind);
    if (!file) return 0;
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)header >> (8 * i));
    memcpy(file + 8, data + 1, header);
    memset(file + 8 + header, 0x5a, behind);
    parse(file, 8 + header + behind);
    free(file);
    return 0;
}
