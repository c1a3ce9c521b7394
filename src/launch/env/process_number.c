/* Ranks from systems that number processes without their count: PMIx, Indexed Jobs of Kubernetes,
 * Volcano. */
#include "launch/env/reader.h"

/* Systems that number processes and do not say how many there are. If the user has set WEFT_SIZE
 * alike for all processes, these numbers are ranks. */
static const wefti_claim_names numbers_only[] = {
    {.launcher = "PMIx", .rank = "PMIX_RANK"},
    {.launcher = "an Indexed Job of Kubernetes", .rank = "JOB_COMPLETION_INDEX"},
    {.launcher = "Volcano", .rank = "VC_TASK_INDEX"},
    {.launcher = "Volcano", .rank = "VK_TASK_INDEX"}, /* the older name of the same */
};

/* The number that this process has in its job; -1: none. *out_from: the variable that says so. */
weft_status wefti_process_number(const wefti_env_reader *r, int *out,
                                 const wefti_claim_names **out_from) {
    *out = -1;
    *out_from = NULL;
    for (size_t i = 0; i < sizeof numbers_only / sizeof *numbers_only; i++) {
        const wefti_claim_names *n = &numbers_only[i];
        int rank = -1;
        WEFT_TRY(wefti_reader_number(r, n->rank, 0, WEFTI_RANKS_MAX - 1, &rank));
        if (rank < 0) continue;
        WEFT_REQUIRE(!*out_from || rank == *out, WEFT_E_ARG,
                     "%s is %d (%s), but %s is %d (%s): set WEFT_SIZE and WEFT_RANK",
                     (*out_from)->rank, *out, (*out_from)->launcher, n->rank, rank, n->launcher);
        *out = rank;
        *out_from = n;
    }
    return WEFT_OK;
}

/* Where several processes share a number (a pod that starts two), it is the rank of none. */
bool wefti_shares_number(const wefti_env_reader *r, const weft_launcher *place) {
    return wefti_reader_get(r, "WEFT_LAUNCH") || place->local_size > 1;
}

weft_status wefti_rank_from_number(const wefti_env_reader *r) {
    weft_launcher *place = &r->out->place;
    const wefti_claim_names *from;
    int rank;
    if (r->out->start != WEFTI_START_WEFT || wefti_shares_number(r, place)) return WEFT_OK;
    WEFT_TRY(wefti_process_number(r, &rank, &from));
    if (rank < 0) return WEFT_OK;
    WEFT_TRY(wefti_reader_below(from->rank, rank, wefti_source_weft.names.size, place->size));
    place->rank = rank;
    return WEFT_OK;
}
