/* What two ranks have posted where they should have posted the same. See comm.h. */
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
