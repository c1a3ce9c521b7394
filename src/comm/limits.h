/* The limits of communicators, stated once. Arrays that grow with them are sized by the members at
 * hand; sets of members have a bit for each member that there may be. */
#ifndef WEFTI_COMM_LIMITS_H
#define WEFTI_COMM_LIMITS_H

enum {
    /* Members of a transfer, and so of a group and of a world that agrees; ranks of one process or
     * of one host. */
    WEFTI_COMM_MEMBERS = 16384
};

#endif
