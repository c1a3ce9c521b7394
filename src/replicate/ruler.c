#include "replicate/ruler.h"

static bool is_quorum(wefti_servers some, wefti_servers voters) {
    const wefti_servers servers = voters & ~wefti_server(WEFTI_SCHEDULER);
    const wefti_servers first = servers & (~servers + 1);
    const int have = 2 * wefti_count_servers(some & voters), all = wefti_count_servers(voters);
    return have > all || (have == all && (some & first));
}

bool wefti_subject_obeys(wefti_subject *s, int64_t epoch) {
    if (epoch < s->epoch) return false;
    s->epoch = epoch;
    return true;
}

bool wefti_subject_stores(wefti_subject *s, wefti_map_id id) {
    if (id.epoch < s->epoch || wefti_map_is_later(s->stored, id)) return false;
    s->epoch = id.epoch;
    s->stored = id;
    return true;
}

bool wefti_ruler_meets(wefti_ruler *r, int64_t epoch) {
    if (r->phase != WEFTI_RULER_GATHERS || epoch < r->id.epoch) return false;
    *r = (wefti_ruler){.phase = WEFTI_RULER_GATHERS, .id = {epoch + 1, 0}};
    return true;
}

bool wefti_ruler_hears(wefti_ruler *r, int32_t server, int64_t epoch, wefti_map_id id,
                       wefti_electorate of) {
    if (r->phase != WEFTI_RULER_GATHERS || epoch != r->id.epoch) return false;
    r->with |= wefti_server(server);
    if (!wefti_map_is_later(id, r->best)) return false;
    r->best = id;
    r->of = of;
    return true;
}

static bool are_both(wefti_servers some, const wefti_electorate *of) {
    return is_quorum(some, of->voters) && is_quorum(some, of->before);
}

/* The vote of the scheduler before is lost with its memory. */
bool wefti_ruler_may_begin(const wefti_ruler *r, wefti_servers expected) {
    if (r->phase != WEFTI_RULER_GATHERS || !r->with) return false;
    if (!r->of.voters) return (r->with & expected) == expected;
    return are_both(r->with, &r->of);
}

/* Nobody knows whether the map that a new scheduler has found is chosen. Its own first one, of the
 * same servers, needs the same quorums. */
wefti_map_id wefti_ruler_proposes(wefti_ruler *r, wefti_servers servers) {
    const wefti_servers own = wefti_server(WEFTI_SCHEDULER), voters = servers | own;
    if (r->phase == WEFTI_RULER_RULES || !r->of.voters)
        r->of = (wefti_electorate){voters, r->of.voters ? r->of.voters : voters};
    r->phase = WEFTI_RULER_PROPOSES;
    r->id.count++;
    r->with = own;
    return r->id;
}

bool wefti_ruler_counts(wefti_ruler *r, int32_t server, wefti_map_id id) {
    if (r->phase != WEFTI_RULER_PROPOSES || !wefti_same_map(id, r->id)) return false;
    r->with |= wefti_server(server);
    if (!are_both(r->with, &r->of)) return false;
    r->phase = WEFTI_RULER_RULES;
    return true;
}

bool wefti_ruler_may_choose(const wefti_ruler *r, wefti_servers here) {
    return r->phase != WEFTI_RULER_PROPOSES || are_both(r->with | here, &r->of);
}

void wefti_ruler_loses(wefti_ruler *r, int32_t server) {
    if (r->phase == WEFTI_RULER_GATHERS) r->with &= ~wefti_server(server);
}
