/* Fuzzes the manifest of a checkpoint, and the index of a sharded model; the first byte of the
 * input chooses. The fuzzer first corrects the manifest's own checksum, which no mutation would get
 * past. An accepted manifest must be consistent and print to a manifest that is accepted as well.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/manifest.h"
#include "checkpoint/tensor_set.h"
#include "tensor/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const wefti_manifest *m) {
    for (int64_t i = 0; i < m->file_count; i++)
        if (!wefti_file_name_valid(m->files[i].name) ||
            m->files[i].checked_bytes > m->files[i].bytes)
            abort();
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const wefti_manifest_tensor *t = &m->tensors[i];
        if (t->file >= m->file_count || (t->file < 0) != (m->sliced.ranks > 0)) abort();
        if (t->role >= WEFTI_CHECKPOINT_ROLES) abort();
        if (wefti_desc_check(&t->desc) < 0) abort();
    }
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *s = &m->sliced.slices[i];
        if (s->tensor < 0 || s->tensor >= m->tensor_count || s->file >= m->file_count) abort();
        if (s->rank_count < 1 || s->ranks[s->rank_count - 1] >= m->sliced.ranks) abort();
        if (wefti_region_elems(&s->region, m->tensors[s->tensor].desc.rank) < 1) abort();
    }
    if (m->meta.step < 0 || m->meta.data_position < 0) abort();
}

static void fuzz_manifest(const uint8_t *data, size_t size) {
    char *text = malloc(size + WEFTI_MANIFEST_TAIL_BYTES + 1);
    if (!text) return;
    memcpy(text, data, size);
    wefti_manifest_tail(text, (int64_t)size, text + size);
    wefti_manifest *m = NULL, *again = NULL;
    if (wefti_manifest_parse(text, (int64_t)(size + WEFTI_MANIFEST_TAIL_BYTES), &m) >= 0) {
        check(m);
        char *printed = NULL;
        int64_t bytes = 0;
        if (wefti_manifest_print(m, &printed, &bytes) < 0) abort();
        if (wefti_manifest_parse(printed, bytes, &again) < 0) abort();
        if (again->sliced.count != m->sliced.count) abort();
        if (again->tensor_count != m->tensor_count || again->file_count != m->file_count) abort();
        wefti_manifest_destroy(again);
        wefti_free(printed);
        wefti_manifest_destroy(m);
    }
    free(text);
}

static void fuzz_index(const uint8_t *data, size_t size) {
    wefti_tensor_index *pairs = NULL;
    int64_t count = 0;
    if (wefti_tensor_index_parse((const char *)data, (int64_t)size, &pairs, &count) < 0) return;
    for (int64_t i = 0; i < count; i++) {
        if (!wefti_file_path_valid(pairs[i].file)) abort();
        if (i && strcmp(pairs[i - 1].tensor, pairs[i].tensor) >= 0) abort();
    }
    wefti_free(pairs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (data[0] & 1)
        fuzz_manifest(data + 1, size - 1);
    else
        fuzz_index(data + 1, size - 1);
    return 0;
}
