/* Fuzzes the JSON in headers of slices and of torch's shards that tells where each part of a tensor
 * lies; the first byte of the input chooses the form. The part beside it is a good one. Accepted
 * pieces lie inside of their tensor, are as large as what the file holds, and are equal or apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "layout/layout.h"
#include "reshard/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 4, COLUMNS = 3 };

static char root[64], folders[2][96], slices[2][128], shards[2][128];

static void make_folders(void) {
    (void)snprintf(root, sizeof root, "%s/weft-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(root)) abort();
    for (int k = 0; k < 2; k++) {
        (void)snprintf(folders[k], sizeof folders[k], "%s/rank_%d", root, k);
        if (wefti_dir_make(folders[k]) < 0) abort();
        (void)snprintf(slices[k], sizeof slices[k], "%s/s.safetensors", folders[k]);
        (void)snprintf(shards[k], sizeof shards[k], "%s/shard-%d.safetensors", root, k);
    }
}

/* "b" is whole in both files, of "w" each has some rows. */
static void write_file(const char *path, const char *key, const char *regions) {
    static const float zeros[ROWS * COLUMNS];
    const wefti_safetensors_item items[] = {{"b", WEFT_DESC(WEFT_F32, COLUMNS), zeros},
                                            {"w", WEFT_DESC(WEFT_F32, ROWS, COLUMNS), zeros}};
    const wefti_safetensors_pair pair = {key, regions};
    if (wefti_safetensors_write(path, items, 2, &pair, 1) < 0) abort();
}

static void check_piece(const wefti_source_tensor *t, const wefti_source_piece *p) {
    int64_t elems = 1;
    for (int d = 0; d < t->desc.rank; d++) {
        const int64_t begin = p->region.begin[d], count = p->region.size[d];
        if (begin < 0 || count < 0 || begin > t->desc.shape[d] - count) abort();
        elems *= count;
    }
    if (p->reader && p->at + elems * 4 > wefti_reader_bytes(p->reader)) abort();
    for (int64_t i = 0; i < t->count; i++) {
        const wefti_region *a = &p->region, *b = &t->pieces[i].region;
        bool same = true, apart = false;
        for (int d = 0; d < t->desc.rank; d++) {
            same &= a->begin[d] == b->begin[d] && a->size[d] == b->size[d];
            apart |=
                a->begin[d] + a->size[d] <= b->begin[d] || b->begin[d] + b->size[d] <= a->begin[d];
        }
        if (!same && !apart) abort();
    }
}

static void check(const wefti_shards *s) {
    for (int64_t i = 0; i < s->count; i++) {
        const wefti_source_tensor *t = &s->tensors[i];
        if (weft_desc_elems(&t->desc) < 0 || t->count < 1) abort();
        for (int64_t k = 0; k < t->count; k++) check_piece(t, &t->pieces[k]);
    }
}

static void fuzz(const char *text, const char *key, const char *good, char (*paths)[128]) {
    wefti_shards *s = NULL;
    write_file(paths[0], key, text);
    write_file(paths[1], key, good);
    if (wefti_shards_open(root, NULL, &s) >= 0) check(s);
    wefti_shards_close(s);
    for (int k = 0; k < 2; k++) (void)unlink(paths[k]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char beside_slice[] = "{\"b\": {\"shape\": [3], \"begin\": [0]}, "
                                       "\"w\": {\"shape\": [8, 3], \"begin\": [4, 0]}}";
    static const char beside_shard[] =
        "{\"b\": {\"saved_offsets\": [0]}, \"w\": {\"saved_offsets\": [4, 0]}}";
    if (size < 1 || memchr(data, 0, size)) return 0; /* metadata are texts */
    if (!*root) make_folders();
    char *text = malloc(size);
    if (!text) return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] & 1)
        fuzz(text, WEFTI_DCP_REGIONS, beside_shard, shards);
    else
        fuzz(text, WEFTI_SLICES_REGIONS, beside_slice, slices);
    free(text);
    return 0;
}
