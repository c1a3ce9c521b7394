#include "replicate/view.h"

static int32_t first_of(wefti_servers x) {
    return x ? __builtin_ctzll(x) : -1;
}
/* The best servers by order, out of `from`. */
static wefti_servers best(const wefti_view_facts *f, wefti_servers from, int count) {
    wefti_servers out = 0;
    for (int32_t i = 0; i < f->order_count && count > 0; i++)
        if (wefti_has_server(from & ~out, f->order[i])) out |= wefti_server(f->order[i]), count--;
    return out;
}

wefti_shard_view wefti_view_first(const wefti_view_facts *f) {
    const wefti_servers members = best(f, f->here & ~f->leaving, f->copies);
    return (wefti_shard_view){
        .primary = first_of(best(f, members, 1)), .last = -1, .members = members};
}

/* Of the members, one with the most updates, by order; -1: some have not told theirs, or the last
 * primary has not, which may answer until it halts. */
static int32_t newest(const wefti_view_facts *f, wefti_servers members, int32_t last) {
    int64_t most = -1;
    wefti_servers newest = 0;
    if (wefti_has_server(f->here, last) && f->updates[last] < 0) return -1;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++) {
        if (!wefti_has_server(members, s)) continue;
        if (f->updates[s] < 0) return -1;
        if (f->updates[s] > most) newest = 0;
        if (f->updates[s] >= most) newest |= wefti_server(s), most = f->updates[s];
    }
    const wefti_servers first = best(f, newest, 1);
    return first_of(first ? first : newest);
}

bool wefti_view_next(const wefti_shard_view *now, const wefti_view_facts *f,
                     wefti_shard_view *out) {
    *out = *now;
    out->members = (now->members | (now->filling & f->caught_up)) & f->here;
    /* Who leaves goes once there are enough without it. */
    const wefti_servers stay = out->members & ~f->leaving;
    if (wefti_count_servers(stay) >= f->copies || (stay && !(f->here & ~f->leaving & ~stay)))
        out->members = stay;
    out->filling = now->filling & f->here & ~f->leaving & ~out->members;
    if (!wefti_has_server(out->members, now->primary)) {
        out->primary = now->primary < 0 ? newest(f, out->members, now->last) : -1;
        out->last = now->primary < 0 ? now->last : now->primary;
    }
    const wefti_servers free = f->here & ~f->leaving & ~out->members;
    if (out->primary >= 0 && !out->filling &&
        wefti_count_servers(out->members & ~f->leaving) < f->copies)
        out->filling = best(f, free, 1);
    return out->members != now->members || out->filling != now->filling ||
           out->primary != now->primary;
}
