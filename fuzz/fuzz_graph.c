/* Parses any bytes as the text of a graph. An accepted graph must pass the checker and print to a
 * text that parses to the same text again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "weft/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), *first, *second;
    weft_graph *g, *again;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (weft_graph_parse(text, &g) >= 0) {
        must(weft_graph_print(g, &first) >= 0);
        must(weft_graph_parse(first, &again) >= 0);
        must(weft_graph_print(again, &second) >= 0);
        must(strcmp(first, second) == 0);
        weft_text_free(first);
        weft_text_free(second);
        weft_graph_destroy(g);
        weft_graph_destroy(again);
    }
    free(text);
    return 0;
}
