/* Comparing the jobs of two ranks: see comm/same_job.h. */
#include "comm/same_job.h"

#include <string.h>

void wefti_job_values(const wefti_job_fact *facts, int count, wefti_job_value *out) {
    memset(out, 0, (size_t)count * sizeof *out); /* also the bytes between the members */
    for (int i = 0; i < count; i++) {
        out[i].value = facts[i].value;
        memcpy(out[i].text, facts[i].text, strnlen(facts[i].text, WEFTI_FACT_TEXT - 1));
    }
}

weft_status wefti_job_compare(const wefti_job_fact *facts, int count, int32_t me,
                              wefti_job_value *others, int32_t other, int32_t blamed) {
    for (int i = 0; i < count; i++) {
        const wefti_job_fact *f = &facts[i];
        others[i].text[WEFTI_FACT_TEXT - 1] = 0;
        if (f->value == others[i].value && strcmp(f->text, others[i].text) == 0) continue;
        const bool mine = blamed == me;
        const int32_t against = mine ? other : me;
        WEFT_REQUIRE_OF(blamed, f->verb, WEFT_E_MISMATCH,
                        "rank %d runs another job than rank %d: its %s differs; all processes of a "
                        "run need the same",
                        (int)blamed, (int)against, f->name);
        WEFT_FAIL_OF(blamed, WEFT_E_MISMATCH, "rank %d %s %s, rank %d %s: %s", (int)blamed, f->verb,
                     mine ? f->text : others[i].text, (int)against, mine ? others[i].text : f->text,
                     f->advice);
    }
    return WEFT_OK;
}
