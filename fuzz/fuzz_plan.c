/* Parses any bytes as a plan. An accepted plan must print to a text that reads back to the same
 * text, without a difference between the two. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "weft/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), *first, *second, *differences;
    weft_plan *plan, *again;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (weft_plan_parse("plan", text, (int64_t)size, &plan) >= 0) {
        must(weft_plan_print(plan, &first) >= 0);
        must(weft_plan_parse("again", first, (int64_t)strlen(first), &again) >= 0);
        must(weft_plan_print(again, &second) >= 0);
        must(strcmp(first, second) == 0);
        must(weft_plan_diff(plan, again, &differences) >= 0);
        must(*differences == '\0');
        weft_status verdict = weft_plan_check(plan); /* either way */
        must(verdict == weft_plan_check(again));
        weft_text_free(first);
        weft_text_free(second);
        weft_text_free(differences);
        weft_plan_destroy(plan);
        weft_plan_destroy(again);
    }
    free(text);
    return 0;
}
