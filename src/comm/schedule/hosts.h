/* On which hosts the members of a group are: for algorithms that send as little as possible between
 * hosts, and for their costs. */
#ifndef WEFTI_SCHEDULE_HOSTS_H
#define WEFTI_SCHEDULE_HOSTS_H

#include "layout/transfer.h"
#include "base/memory.h"

typedef struct wefti_commsched_hosts {
    int32_t hosts, most;   /* hosts, by their first members; members of the one with most */
    const int32_t *host;   /* [members] */
    const int32_t *place;  /* [members]: position among the members of the same host */
    const int32_t *begin;  /* [hosts + 1]: where in ... */
    const int32_t *member; /* [members]: the members of each host, ascending */
    bool in_order;         /* members of one host are neighbours in the group */
} wefti_commsched_hosts;

/* `host`: of each rank of the world; NULL: each rank is a host of its own. In the arena. */
weft_status wefti_commsched_hosts_find(wefti_arena *arena, const wefti_transfer *t,
                                       const int32_t *host,
                                       wefti_commsched_hosts *out) WEFT_CHECKED;

static inline int32_t wefti_commsched_hosts_count(const wefti_commsched_hosts *h, int32_t host) {
    return h->begin[host + 1] - h->begin[host];
}
/* The member of `host` that handles part number `part` there. */
static inline int32_t wefti_commsched_hosts_responsible(const wefti_commsched_hosts *h,
                                                        int32_t host, int32_t part) {
    return h->member[h->begin[host] + part % wefti_commsched_hosts_count(h, host)];
}

#endif
