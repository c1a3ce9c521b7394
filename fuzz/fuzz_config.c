/* Reads any bytes as a config.json of Hugging Face. An accepted configuration writes as a file that
 * reads back and writes equal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "weft/model.h"
#include "weft/status.h"
#include "weft/types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

static void check(const weft_model_config *config) {
    weft_model_config again;
    char *first, *second;
    if (weft_model_config_write(config, &first) < 0) {
        must(*weft_error_message() != '\0');
        return;
    }
    must(weft_model_config_read(first, &again) >= 0);
    must(weft_model_config_write(&again, &second) >= 0);
    must(!strcmp(first, second));
    weft_text_free(first);
    weft_text_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_model_config config;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (weft_model_config_read(text, &config) >= 0)
        check(&config);
    else
        must(*weft_error_message() != '\0');
    free(text);
    return 0;
}
