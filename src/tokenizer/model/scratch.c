/* What the models of tokenizers share. */
#include "base/text.h"
#include "tokenizer/model/model.h"

weft_status wefti_model_room(void **array, int64_t *capacity, int64_t wanted, size_t element) {
    if (wanted <= *capacity) return WEFT_OK;
    int64_t bigger = wanted < 256 ? 256 : wanted + wanted / 2;
    void *fresh = wefti_alloc((size_t)bigger * element);
    WEFT_REQUIRE(fresh, WEFT_E_NOMEM, "no memory for a word of %lld bytes", (long long)wanted);
    wefti_free(*array);
    *array = fresh;
    *capacity = bigger;
    return WEFT_OK;
}

void wefti_model_scratch_free(wefti_model_scratch *scratch) {
    wefti_free(scratch->symbols);
    wefti_free(scratch->heap);
    wefti_free(scratch->nodes);
    wefti_free(scratch->piece);
    *scratch = (wefti_model_scratch){0};
}

int wefti_model_character(const weft_tokenizer *t, const unsigned char *text, int64_t bytes) {
    uint32_t point;
    return t->alphabet || text[0] < 0x80 ? 1 : wefti_utf8_next(text, bytes, &point);
}
