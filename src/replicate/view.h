/* Which servers hold a shard: the next view after servers were lost, came, or have to leave. */
#ifndef WEFTI_VIEW_H
#define WEFTI_VIEW_H

#include "replicate/ruler.h"

/* Without a primary the shard waits until all members have told how many updates they have. */
typedef struct wefti_shard_view {
    wefti_map_id made;     /* the map that made it */
    int32_t primary;       /* a member; -1: none */
    int32_t last;          /* without a primary: the last one; -1: none */
    wefti_servers members; /* have all updates that are acknowledged */
    wefti_servers filling; /* gets the state from the primary: one server at most */
} wefti_shard_view;

/* What the scheduler knows of servers, and of a shard in its present view. */
typedef struct wefti_view_facts {
    wefti_servers here;      /* not lost */
    wefti_servers leaving;   /* of these, who has to hand over its shards */
    wefti_servers caught_up; /* of `filling`: the primary says that it has all updates */
    const int64_t *updates;  /* by server: its number of updates, told since it has halted for the
                                present view without a primary; -1: not yet */
    const int32_t *order;    /* which servers shall hold the shard, the best first */
    int32_t order_count;
    int32_t copies; /* members wanted */
} wefti_view_facts;

/* Whether the shard needs another view; *out is that one, without `made`. With no member the shard
 * is lost. */
bool wefti_view_next(const wefti_shard_view *now, const wefti_view_facts *f,
                     wefti_shard_view *out) WEFT_CHECKED;
/* The first view of a shard, whose members all have its start values. */
wefti_shard_view wefti_view_first(const wefti_view_facts *f);
/* Whether the present view serves. */
static inline bool wefti_view_leads(const wefti_shard_view *v) {
    return v->primary >= 0;
}

#endif
