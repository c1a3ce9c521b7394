/* Translates any bytes as options of Megatron-LM or torchtitan. An accepted text gives YAML that
 * the job's parser reads or refuses with a message. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "weft/job.h"
#include "weft/types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *job, *notes, *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (weft_job_import("options", text, (int64_t)size, NULL, 0, &job, &notes) >= 0) {
        weft_job *read;
        if (weft_job_parse("job", job, (int64_t)strlen(job), NULL, 0, &read) >= 0)
            weft_job_free(read);
        else if (!*weft_error_message())
            abort();
        weft_text_free(job);
        weft_text_free(notes);
    }
    free(text);
    return 0;
}
