/* What the jobs of a run's ranks must have in common, by the column `ranks` of keys.def. */
#include <string.h>

#include "job/job.h"

static bool is_given(const char *value) {
    return strcmp(value, "\"\"") != 0 && strcmp(value, "auto") != 0;
}

/* A value of each key, in the order of the table, with a NUL behind it. Keys that say nothing, or
 * that are not compared, have an empty one. */
weft_status wefti_job_shared(const weft_job *job, wefti_text *out) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    for (int i = 0; i < rows; i++) {
        const bool compared =
            table[i].ranks == WEFTI_RANKS_SAME || table[i].ranks == WEFTI_RANKS_GIVEN;
        if (compared && !wefti_job_is_told_elsewhere(job, &table[i]))
            wefti_job_write_value(job, &table[i], out);
        wefti_text_add_bytes(out, "", 1);
    }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory to compare jobs");
    return WEFT_OK;
}

/* The next value of a list, which another process may have cut short. */
static const char *next_value(const char **at, const char *end) {
    const char *value = *at, *stop = memchr(value, 0, (size_t)(end - value));
    if (!stop) return "";
    *at = stop + 1;
    return value;
}

static weft_status compare(wefti_job_ranks ranks, int32_t me, const wefti_text *own,
                           const char *first, int64_t bytes) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    const char *mine = own->data, *mine_end = mine + own->used, *theirs_end = first + bytes;
    for (int i = 0; i < rows; i++) {
        const char *path = table[i].path;
        const char *here = next_value(&mine, mine_end), *there = next_value(&first, theirs_end);
        if (table[i].ranks != ranks) continue;
        WEFT_REQUIRE_OF(me, ranks != WEFTI_RANKS_GIVEN || is_given(here) == is_given(there),
                        WEFT_E_MISMATCH,
                        "%s is set on rank %d, but not on rank %d: all ranks of a run need it, or "
                        "none",
                        path, is_given(here) ? (int)me : 0, is_given(here) ? 0 : (int)me);
        WEFT_REQUIRE_OF(me, ranks != WEFTI_RANKS_SAME || !strcmp(here, there), WEFT_E_MISMATCH,
                        "%s is %.200s on rank %d, but %.200s on rank 0: all ranks of a run need "
                        "the same",
                        path, *here ? here : "not set", (int)me, *there ? there : "not set");
    }
    return WEFT_OK;
}

weft_status wefti_job_same(const weft_job *job, int32_t me, const char *first, int64_t bytes) {
    wefti_text own = {0};
    weft_status status = wefti_job_shared(job, &own);
    /* Whether there are files decides which keys say anything. */
    if (status >= 0) status = compare(WEFTI_RANKS_GIVEN, me, &own, first, bytes);
    if (status >= 0) status = compare(WEFTI_RANKS_SAME, me, &own, first, bytes);
    wefti_text_free(&own);
    return status;
}
