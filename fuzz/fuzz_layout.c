/* Parses any bytes as the text of a layout. An accepted layout must print to a text that parses to
 * an equal layout. The route to it from a replicated tensor must send nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layout/redistribute.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const wefti_mesh mesh = {
        .axes = 3,
        .axis = {{.name = "dp", .size = 2}, {.name = "sp", .size = 1}, {.name = "tp", .size = 3}}};
    char *text = malloc(size + 1);
    wefti_layout layout, again;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (wefti_layout_parse(text, &mesh, &layout) >= 0) {
        must(wefti_layout_parse(wefti_layout_text(&layout, &mesh).text, &mesh, &again) >= 0);
        must(wefti_layout_equal(&layout, &again));
        weft_desc whole = {.dtype = WEFT_F32, .rank = layout.rank};
        for (int d = 0; d < whole.rank; d++) whole.shape[d] = 12 + d;
        wefti_layout none = wefti_layout_replicated(whole.rank);
        wefti_route route;
        if (wefti_layout_check(&layout, &mesh, &whole) >= 0) {
            must(wefti_redistribute(&mesh, &whole, &none, &layout, 0, &route) >= 0);
            must(route.bytes == 0);
        }
    }
    free(text);
    return 0;
}
