/* Errors that all engines report in the same words: comm/comm.h. */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

const char *wefti_comm_mismatch(char out[WEFTI_COMM_MISMATCH], const char *mine, uint64_t call,
                                int32_t rank, const char *theirs) {
    static const char rule[] = "; transfers of one group and tag must be equal on all members and "
                               "posted in the same order";
    const char *unknown = "something else";
    char number[32] = "";
    if (call > 0) (void)snprintf(number, sizeof number, ", call %llu,", (unsigned long long)call);
    if (mine && theirs && strcmp(mine, theirs) == 0)
        (void)snprintf(out, WEFTI_COMM_MISMATCH,
                       "posts %s%s as rank %d does, but before that another transfer than rank %d "
                       "(another root, say)%s",
                       mine, number, (int)rank, (int)rank, rule);
    else
        (void)snprintf(out, WEFTI_COMM_MISMATCH, "posts %s%s where rank %d posts %s%s",
                       mine ? mine : unknown, number, (int)rank, theirs ? theirs : unknown, rule);
    return out;
}

weft_status wefti_comm_too_many_posts(const wefti_comm *comm, const char *text) {
    WEFT_REQUIRE_OF(comm->rank, false, WEFT_E_ARG,
                    "rank %d: %d posts of %s are under way, the most that one endpoint can have: "
                    "wait for the oldest first",
                    (int)comm->rank, (int)WEFTI_COMM_DEPTH, text);
    return WEFT_OK;
}

weft_status wefti_comm_not_posted(const wefti_comm *comm, const char *text) {
    WEFT_REQUIRE_OF(comm->rank, false, WEFT_E_ARG, "rank %d waits for %s, which is not posted",
                    (int)comm->rank, text);
    return WEFT_OK;
}
