/* Fuzzes files of prompts: what is read is within limits, and the same again from its own lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "weft/generate.h"
#include "weft/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64];
    weft_prompts *prompts;
    int64_t count;
    if (file < 0) {
        file = memfd_create("fuzz.jsonl", 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (file < 0 || ftruncate(file, 0) || pwrite(file, data, size, 0) != (int64_t)size) abort();
    const weft_status status = weft_prompts_read(path, &prompts);
    if (status < 0) {
        /* NO_IMPL: in another encoding. */
        if ((status != WEFT_E_CORRUPT && status != WEFT_E_NO_IMPL) || !*weft_error_message())
            abort();
        return 0;
    }
    const weft_prompt *items = weft_prompts_items(prompts, &count);
    if (count < 1 || count > (int64_t)size) abort();
    for (int64_t i = 0; i < count; i++) {
        const weft_prompt *p = &items[i];
        if (p->bytes != (int64_t)strlen(p->text) || p->bytes > (int64_t)size) abort();
        if (p->tokens < 0 || (p->id && p->id_is_number && !*p->id)) abort();
    }
    weft_prompts_free(prompts);
    return 0;
}
