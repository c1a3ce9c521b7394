/* Chooses among the claims of all launchers, and checks that they agree. */
#include "launch/env/reader.h"

static weft_status agree(const wefti_claim *a, const char *a_launcher, const wefti_claim *b,
                         const char *b_launcher) {
    static const char advice[] =
        "they belong to different launchers; unset those of the one that did not start this "
        "process";
    int rank = a->place.rank, other = b->place.rank;
    WEFT_REQUIRE(rank < 0 || other < 0 || rank == other, WEFT_E_ARG,
                 "%s is %d (%s), but %s is %d (%s): %s", a->rank_name, rank, a_launcher,
                 b->rank_name, other, b_launcher, advice);
    WEFT_REQUIRE(a->place.size == b->place.size, WEFT_E_ARG, "%s is %d (%s), but %s is %d (%s): %s",
                 a->size_name, a->place.size, a_launcher, b->size_name, b->place.size, b_launcher,
                 advice);
    return WEFT_OK;
}

/* A pair of numbers comes from one launcher: of two they need not fit. */
static void fill(int *rank, int *size, int other_rank, int other_size) {
    if (*rank >= 0 || *size >= 0) return;
    *rank = other_rank;
    *size = other_size;
}

/* The claim that counts: the first. A carrier counts only alone. */
static wefti_start choose(wefti_env_reader *r) {
    int there = 0;
    for (int s = 0; s < WEFTI_START_ALONE; s++) there += r->claims[s].there;
    wefti_claim *slurm = &r->claims[WEFTI_START_SLURM];
    if (slurm->there && slurm->carrier && there > 1) slurm->there = false;
    /* PMI of Slurm itself: it needs no MPI to find the others. */
    const wefti_claim *pmi = &r->claims[WEFTI_START_MPICH];
    if (pmi->there && slurm->there && !wefti_reader_get(r, "MPI_LOCALRANKID") &&
        !r->claims[WEFTI_START_OPEN_MPI].there && !r->claims[WEFTI_START_WEFT].there)
        return WEFTI_START_SLURM;
    for (int s = 0; s < WEFTI_START_ALONE; s++)
        if (r->claims[s].there) return (wefti_start)s;
    return WEFTI_START_ALONE;
}

weft_status wefti_claims_merge(wefti_env_reader *r) {
    wefti_launcher *out = r->out;
    out->mpi = r->claims[WEFTI_START_OPEN_MPI].there || r->claims[WEFTI_START_MPICH].there ||
               wefti_reader_get(r, "PMIX_RANK");
    out->open_mpi = r->claims[WEFTI_START_OPEN_MPI].there;
    out->start = choose(r);
    if (out->start == WEFTI_START_ALONE) {
        out->place = (weft_launcher){NULL, 0, 1, 0, 1, 0, 1};
        return WEFT_OK;
    }
    const wefti_claim *chosen = &r->claims[out->start];
    out->place = chosen->place;
    out->place.name = wefti_launchers[out->start]->names.launcher;
    out->one_host = chosen->one_host;
    for (int s = 0; s < WEFTI_START_ALONE; s++) {
        const wefti_claim *c = &r->claims[s];
        if (!c->there || c == chosen) continue;
        WEFT_TRY(agree(chosen, out->place.name, c, wefti_launchers[s]->names.launcher));
        if (out->place.rank < 0) out->place.rank = c->place.rank;
        fill(&out->place.local_rank, &out->place.local_size, c->place.local_rank,
             c->place.local_size);
        fill(&out->place.host, &out->place.hosts, c->place.host, c->place.hosts);
        out->one_host = out->one_host || c->one_host;
    }
    if (out->place.rank < 0) WEFT_TRY(wefti_rank_from_number(r));
    if (out->is_scheduler) out->place.rank = -1;
    return WEFT_OK;
}
