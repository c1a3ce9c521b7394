/* Parses any bytes as measured links. Accepted values must give valid costs. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/links.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_links links;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (wefti_links_parse("links", text, (int64_t)size, &links) >= 0) {
        must(links.measured);
        must(links.ranks_per_host >= 0);
        for (int64_t ranks = 1; ranks <= 64; ranks *= 4)
            for (int64_t block = 1; block <= ranks; block *= 2) {
                wefti_link link = wefti_links_of_blocks(&links, 0, ranks, block);
                must(isfinite(link.latency) && link.latency >= 0);
                must(isfinite(link.seconds_per_byte) && link.seconds_per_byte > 0);
            }
    }
    free(text);
    return 0;
}
