/* The same job and the same data on all ranks. */
#include <stdio.h>
#include <string.h>

#include "data/fingerprint.h"
#include "job/job.h"
#include "plan/plan.h"
#include "setup/setup.h"

/* Compares this rank's job with rank 0's. */
weft_status wefti_built_same_job(const wefti_built *b) {
    if (!b->setup->party.agreement) return WEFT_OK;
    wefti_text own = {0};
    weft_status status = b->setup->party.follows ? WEFT_OK : wefti_job_shared(b->job, &own);
    int64_t bytes = own.used;
    char *first = b->setup->party.follows ? NULL : wefti_text_take(&own);
    status = wefti_party_share_text(&b->setup->party, status, &first, &bytes);
    if (status >= 0)
        status = wefti_party_agree(
            &b->setup->party,
            wefti_job_same(b->job, weft_world_rank(b->setup->party.world), first, bytes));
    wefti_free(first);
    WEFT_TRY(status);
    const wefti_job_fact key = {.name = "key, which checkpoint.key names,",
                                .value = b->setup->key.number};
    return wefti_party_same(&b->setup->party, WEFT_OK, &key, 1);
}

/* Compares this rank's data with rank 0's. In mode manual each rank trains on its own. */
static weft_status compare_data(const wefti_built *b, const char *mine, const char *first,
                                bool manual) {
    const int me = weft_world_rank(b->setup->party.world);
    char here[32], difference[WEFTI_DATA_DIFFERENCE];
    (void)snprintf(here, sizeof here, "on rank %d", me);
    if (wefti_data_same(mine, first, manual ? WEFTI_DATA_ALL - WEFTI_DATA_TRAINING : WEFTI_DATA_ALL,
                        here, "on rank 0", difference))
        return WEFT_OK;
    WEFT_FAIL_OF(me, WEFT_E_MISMATCH,
                 "rank %d and rank 0 read different data: %s; all ranks of a run need the same", me,
                 difference);
}

weft_status wefti_built_same_data(const wefti_built *b) {
    const char *own = NULL;
    const bool follows = b->setup->party.follows;
    weft_status status = b->setup->party.agreement || b->job->checkpoint.dir[0]
                             ? wefti_data_fingerprint(b->data, &own)
                             : WEFT_OK;
    if (!b->setup->party.agreement) return status;
    const bool manual = b->job->plan && b->job->plan->mode == WEFT_PARALLEL_MANUAL;
    WEFT_TRY(wefti_party_agree(&b->setup->party, status));
    char *first = follows ? NULL : (char *)own;
    int64_t bytes = (int64_t)strlen(own);
    status = wefti_party_share_text(&b->setup->party, WEFT_OK, &first, &bytes);
    if (status >= 0)
        status = wefti_party_agree(&b->setup->party,
                                   follows ? compare_data(b, own, first, manual) : WEFT_OK);
    if (follows) wefti_free(first);
    WEFT_TRY(status);
    const wefti_job_fact facts[] = {
        {.name = "number of training samples",
         .value = manual ? 0 : (uint64_t)weft_data_samples(b->data, WEFT_DATA_TRAIN)},
        {.name = "number of validation samples",
         .value = (uint64_t)weft_data_samples(b->data, WEFT_DATA_VALIDATION)}};
    return wefti_party_same(&b->setup->party, WEFT_OK, facts, sizeof facts / sizeof *facts);
}
