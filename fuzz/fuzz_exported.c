/* Fuzzes exported.json: what is accepted prints to a text that parses to the same facts. */
#include <stdlib.h>
#include <string.h>

#include "infer/exported.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_exported a, b;
    char *text;
    if (wefti_exported_parse((const char *)data, (int64_t)size, &a) < 0) {
        if (a.ranks || !*weft_error_message()) abort();
        return 0;
    }
    if (a.devices < 1 || wefti_exported_print(&a, &text) < 0) abort();
    if (wefti_exported_parse(text, (int64_t)strlen(text), &b) < 0) abort();
    if (a.family != b.family || a.vocab != b.vocab || a.bf16 != b.bf16 || a.devices != b.devices ||
        a.has_plan != b.has_plan || a.graph != b.graph || (a.has_plan && a.plan != b.plan) ||
        memcmp(a.ranks, b.ranks, (size_t)a.devices * sizeof *a.ranks) != 0)
        abort();
    wefti_free(a.ranks);
    wefti_free(b.ranks);
    wefti_free(text);
    return 0;
}
