/* Parses any bytes as a job file. Parsing must not crash, and an accepted job must print to a text
 * that reads back to the same text. */
#include <stdlib.h>
#include <string.h>

#include "weft/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* The bytes after a zero byte are an override. */
    const uint8_t *zero = memchr(data, 0, size);
    char word[256] = "";
    if (zero) {
        size_t length = size - (size_t)(zero - data) - 1;
        if (length >= sizeof word) length = sizeof word - 1;
        memcpy(word, zero + 1, length);
        size = (size_t)(zero - data);
    }
    const char *override = word;
    weft_job *job, *again;
    if (weft_job_parse("job.yaml", (const char *)data, (int64_t)size, &override, *word ? 1 : 0,
                       &job) < 0) {
        if (!*weft_error_message()) abort();
        return 0;
    }
    if (weft_job_parse("printed", job->text, (int64_t)strlen(job->text), NULL, 0, &again) < 0)
        abort();
    if (strcmp(job->text, again->text) != 0) abort();
    weft_job_free(again);
    weft_job_free(job);
    return 0;
}
