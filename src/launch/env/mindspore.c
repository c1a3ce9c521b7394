/* MindSpore's msrun. Source: "Dynamic cluster startup". */
#include "launch/env/reader.h"

#include <string.h>

/* msrun also sets RANK_ID and RANK_SIZE; then they do not belong to a rank table. */
static weft_status read_msrun(wefti_env_reader *r, wefti_claim *c) {
    int rank = wefti_whole_number(wefti_reader_get(r, "RANK_ID")), size = c->place.size;
    WEFT_TRY(wefti_reader_number(r, "RANK_SIZE", 1, WEFTI_RANKS_MAX, &size));
    WEFT_REQUIRE(size == c->place.size, WEFT_E_ARG, "MS_WORKER_NUM is %d, but RANK_SIZE is %d",
                 c->place.size, size);
    if (rank < 0 || r->out->is_scheduler) return WEFT_OK;
    WEFT_REQUIRE(c->place.rank < 0 || c->place.rank == rank, WEFT_E_ARG,
                 "MS_NODE_ID is %d, but RANK_ID is %d", c->place.rank, rank);
    c->place.rank = rank;
    c->rank_name = "RANK_ID";
    return WEFT_OK;
}

static weft_status read_mindspore(wefti_env_reader *r) {
    wefti_claim *c = &r->claims[WEFTI_START_MINDSPORE];
    const char *role = wefti_reader_get(r, "MS_ROLE");
    if (!role) return WEFT_OK;
    WEFT_REQUIRE(strcmp(role, "MS_PSERVER") != 0, WEFT_E_ARG,
                 "MS_ROLE is MS_PSERVER; jobs have MS_WORKER processes and one MS_SCHED");
    WEFT_REQUIRE(!strcmp(role, "MS_WORKER") || !strcmp(role, "MS_SCHED"), WEFT_E_ARG,
                 "MS_ROLE is '%.40s'; it can be MS_WORKER or MS_SCHED", role);
    WEFT_TRY(wefti_reader_need(r, "MS_ROLE", "MS_WORKER_NUM"));
    WEFT_TRY(wefti_reader_need(r, "MS_ROLE", "MS_SCHED_HOST"));
    WEFT_TRY(wefti_reader_need(r, "MS_ROLE", "MS_SCHED_PORT"));
    c->there = true;
    r->out->is_scheduler = !strcmp(role, "MS_SCHED");
    WEFT_TRY(wefti_reader_number(r, "MS_WORKER_NUM", 1, WEFTI_RANKS_MAX, &c->place.size));
    /* A whole number is the rank. Any other text is a name, and ranks follow the order of names. */
    int id = wefti_whole_number(wefti_reader_get(r, "MS_NODE_ID"));
    if (id < c->place.size && !r->out->is_scheduler) c->place.rank = id;
    return read_msrun(r, c);
}

/* A worker that died is started again by whoever started it, as often as that is done. */
weft_status wefti_mindspore_recovery(const wefti_env_reader *r) {
    int recovers = 0;
    WEFT_TRY(wefti_variable_number(r->v, "MS_ENABLE_RECOVERY", 0, 1, &recovers));
    if (!recovers) return WEFT_OK;
    WEFT_TRY(wefti_reader_need(r, "MS_ENABLE_RECOVERY", "MS_RECOVERY_PATH"));
    r->out->recovery_path = wefti_variable(r->v, "MS_RECOVERY_PATH");
    if (!wefti_reader_get(r, "WEFT_RESTART")) r->out->set.restarts = INT32_MAX;
    return WEFT_OK;
}

const wefti_launcher_source wefti_source_mindspore = {
    .names = {"MindSpore", "MS_NODE_ID", "MS_WORKER_NUM", NULL, NULL, NULL, NULL},
    .read = read_mindspore};
