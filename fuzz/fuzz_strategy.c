/* Fuzzes strategy files of MindSpore, in JSON and in protobuf. An accepted file gives every rank a
 * region inside of each tensor, and prints in both forms to files that are accepted as well. The
 * same bytes are read as rules: accepted ones place a tensor on all ranks. */
#include <stdlib.h>
#include <string.h>

#include "reshard/layouts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_regions(const wefti_layouts *l) {
    for (int64_t i = 0; i < l->count; i++) {
        const wefti_placement *p = &l->items[i];
        weft_desc whole = {.dtype = WEFT_F32, .rank = p->rank};
        wefti_region region;
        wefti_placement_parts(p, p->rank, whole.shape);
        for (int32_t r = p->mesh.first; r < p->mesh.first + 64 && wefti_placement_has(p, r); r++) {
            wefti_placement_region(p, &whole, r, &region);
            for (int d = 0; d < p->rank; d++)
                if (region.size[d] != 1 || region.begin[d] < 0 || region.begin[d] >= whole.shape[d])
                    abort();
        }
    }
}

static void check_text(const wefti_layouts *l, char *text, int64_t bytes) {
    wefti_layouts *again = NULL;
    if (wefti_layouts_parse("printed", text, bytes, &again) < 0) abort();
    if (again->count != l->count) abort();
    wefti_layouts_close(again);
    wefti_free(text);
}

static void read_rules(const uint8_t *data, size_t size) {
    const weft_desc whole = {.dtype = WEFT_F32, .rank = 2, .shape = {3, 5}};
    char text[4096];
    wefti_layouts *l = NULL;
    wefti_placement *found = NULL;
    int32_t count = 0;
    if (size >= sizeof text) return;
    if (size) memcpy(text, data, size);
    text[size] = '\0';
    if (wefti_layouts_parse_rules(text, &l) < 0) return;
    if (l->ranks < 1 || l->rule_count < 1) abort();
    if (wefti_layouts_find(l, "h.0.w", NULL, &whole, &found, &count) >= 0 && count) {
        wefti_region region;
        wefti_placement_region(found, &whole, l->ranks - 1, &region);
        for (int d = 0; d < whole.rank; d++)
            if (region.size[d] < 0 || region.begin[d] + region.size[d] != whole.shape[d]) abort();
    }
    wefti_free(found);
    wefti_layouts_close(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_layouts *l = NULL;
    char *text = NULL;
    int64_t bytes = 0;
    read_rules(data, size);
    if (wefti_layouts_parse("input", (const char *)data, (int64_t)size, &l) < 0) return 0;
    check_regions(l);
    /* shapes that do not divide have no form */
    if (wefti_layouts_print_json(l, &text, &bytes) >= 0) check_text(l, text, bytes);
    if (wefti_layouts_print_protobuf(l, &text, &bytes) >= 0) check_text(l, text, bytes);
    wefti_layouts_close(l);
    return 0;
}
