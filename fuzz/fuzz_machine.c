/* Parses any bytes as a machine file, and as the name or topology of a machine. Accepted models
 * print as a file that reads back equal, and give finite costs. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

static char *printed(const wefti_machine_model *m) {
    wefti_text text = {0};
    wefti_model_print(m, &text);
    return wefti_text_take(&text);
}

static void check(wefti_machine_model *m) {
    wefti_machine_model *again;
    char *first = printed(m), *second;
    must(first != NULL);
    must(wefti_model_parse("printed", first, (int64_t)strlen(first), &again) >= 0);
    second = printed(again);
    must(second && !strcmp(first, second));
    for (int32_t a = 0; a < 4096; a = 3 * a + 1) {
        int32_t level = wefti_model_level_of(m, a, 7);
        must(level >= 0 && level < m->level_count);
        must(isfinite(wefti_model_byte_seconds(m, level, 1 + a)));
    }
    wefti_machine rates = wefti_model_rates(m);
    must(rates.product_f32 > 0 && rates.product_bf16 > 0 && rates.bytes_per_second > 0);
    wefti_links links = wefti_model_links(m);
    must(links.measured && wefti_link_known(&links.same_host));
    wefti_free(first);
    wefti_free(second);
    wefti_model_destroy(again);
    wefti_model_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_machine_model *m;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (wefti_model_parse("fuzz", text, (int64_t)size, &m) >= 0) check(m);
    /* Names with a slash or a suffix are files of this machine: leave them out. */
    if (!strchr(text, '/') && !strstr(text, ".json") && wefti_model_find(text, &m) >= 0) check(m);
    free(text);
    return 0;
}
