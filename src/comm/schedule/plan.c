/* Plans of rounds: which algorithm, and the lists in the order in which they are run. */
#include "comm/schedule/schedule.h"

#include "base/digest/digest.h"
#include "comm/schedule/build.h"

const char *wefti_commsched_algorithm_text(wefti_commsched_algorithm algorithm) {
    static const char *const text[] = {
#define ROW(name, text) text,
        WEFTI_COMMSCHED_LIST(ROW)
#undef ROW
    };
    return text[algorithm];
}

/* A network of some 20 Gbit/s under a kernel's TCP. */
wefti_commsched_costs wefti_commsched_default_costs(void) {
    return (wefti_commsched_costs){.latency_s = 15e-6,
                                   .message_s = 2e-6,
                                   .bytes_per_s = 2e9,
                                   .crowd = 0.01,
                                   .reduce_bytes_per_s = 6e9,
                                   .intranode_latency_s = 15e-6,
                                   .intranode_bytes_per_s = 2e9};
}

/* The latency that is measured has the work of both sides in it. */
wefti_commsched_costs wefti_commsched_costs_of(const wefti_links *links, bool shares) {
    wefti_commsched_costs c = wefti_commsched_default_costs();
    if (shares) {
        c.intranode_latency_s = 2e-6;
        c.intranode_bytes_per_s = 8e9;
    }
    const wefti_measured_link *intranode = &links->same_host, *internode = &links->between_hosts;
    if (wefti_link_known(internode)) {
        if (c.message_s > internode->latency_seconds / 4)
            c.message_s = internode->latency_seconds / 4;
        c.latency_s = internode->latency_seconds - 2 * c.message_s;
        c.bytes_per_s = internode->bytes_per_second;
    }
    if (!wefti_link_known(intranode) || links->by_messages == shares) return c;
    c.intranode_latency_s = intranode->latency_seconds > 4 * c.message_s
                                ? intranode->latency_seconds - 2 * c.message_s
                                : intranode->latency_seconds / 2;
    c.intranode_bytes_per_s = intranode->bytes_per_second;
    return c;
}

/* --- the form of a transfer --- */

static bool empty(const wefti_transfer *t, const wefti_region *box) {
    return wefti_region_elems(box, t->rank) == 0;
}

static wefti_commsched_form form_of_reduction(const wefti_transfer *t,
                                              const wefti_commsched_build *b) {
    int64_t wanted = 0, first;
    bool whole = true, runs = true;
    for (int32_t m = 0; m < t->members; m++) {
        if (!wefti_regions_equal(&t->have[m], &t->have[0], t->rank)) return WEFTI_COMMSCHED_GENERAL;
        if (empty(t, &t->want[m])) continue;
        whole = whole && wefti_regions_equal(&t->want[m], &t->have[0], t->rank);
        runs = runs && wefti_commsched_run(&t->want[m], &t->have[0], t->rank, &first);
        wanted += wefti_region_elems(&t->want[m], t->rank);
    }
    if (whole)
        return b->wanting == t->members ? WEFTI_COMMSCHED_ALL_REDUCE : WEFTI_COMMSCHED_REDUCE;
    return runs && wanted <= wefti_region_elems(&t->have[0], t->rank)
               ? WEFTI_COMMSCHED_REDUCE_SCATTER
               : WEFTI_COMMSCHED_GENERAL;
}

static void find_form(wefti_commsched_build *b) {
    const wefti_transfer *t = b->t;
    int32_t having = 0;
    bool all_of_it = true;
    for (int32_t m = 0; m < t->members; m++) {
        if (!empty(t, &t->have[m]) && having++ == 0) b->root = m;
        if (!empty(t, &t->want[m]) && b->wanting++ == 0) b->first = m;
    }
    b->form = WEFTI_COMMSCHED_GENERAL;
    if (t->members < 2 || having == 0 || b->wanting == 0) return;
    if (t->reduction != WEFTI_REDUCE_NONE) {
        b->form = form_of_reduction(t, b);
        return;
    }
    for (int32_t m = 0; m < t->members; m++)
        all_of_it &=
            empty(t, &t->want[m]) || wefti_regions_equal(&t->want[m], &t->have[b->root], t->rank);
    if (having == 1 && all_of_it) {
        b->form = WEFTI_COMMSCHED_BROADCAST;
        return;
    }
    if (b->wanting == t->members && wefti_transfer_is_all_gather(t, NULL))
        b->form = WEFTI_COMMSCHED_ALL_GATHER;
}

/* --- the choice --- */

static wefti_commsched_algorithm choose(const wefti_commsched_build *b,
                                        const wefti_commsched_costs *costs,
                                        wefti_commsched_algorithm forced) {
    wefti_commsched_algorithm best = WEFTI_COMMSCHED_DIRECT;
    if (forced != WEFTI_COMMSCHED_CHOSEN && wefti_commsched_cost(b, costs, forced) >= 0)
        return forced;
    for (int a = WEFTI_COMMSCHED_DIRECT + 1; a < WEFTI_COMMSCHED_ALGORITHMS; a++) {
        double seconds = wefti_commsched_cost(b, costs, (wefti_commsched_algorithm)a);
        if (seconds >= 0 && seconds < 0.99 * wefti_commsched_cost(b, costs, best))
            best = (wefti_commsched_algorithm)a;
    }
    return best;
}

static weft_status build(wefti_commsched_build *b) {
    switch (b->plan->algorithm) {
    case WEFTI_COMMSCHED_BRUCK:
        return wefti_commsched_bruck(b);
    case WEFTI_COMMSCHED_RING:
        return wefti_commsched_ring(b);
    case WEFTI_COMMSCHED_SHARES:
        return wefti_commsched_shares(b);
    case WEFTI_COMMSCHED_CHAIN:
        return b->form == WEFTI_COMMSCHED_BROADCAST ? wefti_commsched_chain_broadcast(b)
                                                    : wefti_commsched_chain(b);
    case WEFTI_COMMSCHED_TREE:
        return wefti_commsched_tree_broadcast(b);
    case WEFTI_COMMSCHED_HOSTS:
        return b->form == WEFTI_COMMSCHED_BROADCAST    ? wefti_commsched_host_broadcast(b)
               : b->form == WEFTI_COMMSCHED_ALL_GATHER ? wefti_commsched_host_gather(b)
                                                       : wefti_commsched_host_reduce(b);
    default:
        return wefti_commsched_direct(b);
    }
}

/* --- the lists --- */

/* Members become partners, and messages get their numbers. */
static weft_status number_messages(const wefti_transfer *t, wefti_commsched *plan,
                                   int32_t *partner_of) {
    int32_t *sends = partner_of + t->members, *receives = sends + t->members;
    for (int64_t i = 0; i < plan->sends; i++) {
        wefti_commsched_message *m = &plan->send[i];
        m->number = sends[m->partner]++;
        m->request = m->bytes > WEFTI_COMMSCHED_SMALL ? plan->requests++ : -1;
    }
    for (int64_t i = 0; i < plan->receives; i++) {
        wefti_commsched_message *m = &plan->receive[i];
        m->number = receives[m->partner]++;
        m->request = m->bytes > WEFTI_COMMSCHED_SMALL ? plan->requests++ : -1;
    }
    plan->partner = wefti_arena_alloc(plan->arena, (size_t)t->members * sizeof *plan->partner);
    WEFT_REQUIRE(plan->partner, WEFT_E_NOMEM, "no memory for %d partners", (int)t->members);
    for (int32_t m = 0; m < t->members; m++) {
        if (sends[m] + receives[m] == 0) continue;
        partner_of[m] = (int32_t)plan->partners;
        wefti_commsched_partner *p = &plan->partner[plan->partners++];
        *p = (wefti_commsched_partner){t->ranks[m], m, sends[m], receives[m], NULL};
        p->receive = wefti_arena_alloc(plan->arena, (size_t)(receives[m] + 1) * sizeof *p->receive);
        WEFT_REQUIRE(p->receive, WEFT_E_NOMEM, "no memory for %d receives", (int)receives[m]);
    }
    for (int64_t i = 0; i < plan->sends; i++)
        plan->send[i].partner = partner_of[plan->send[i].partner];
    for (int64_t i = 0; i < plan->receives; i++)
        plan->receive[i].partner = partner_of[plan->receive[i].partner];
    return WEFT_OK;
}

/* Receives in the order of the rounds that need them. */
static weft_status sort_receives(wefti_commsched *plan) {
    wefti_commsched_message *sorted = NULL;
    int64_t *end;
    WEFT_NEW_ARRAY(end, int64_t, plan->rounds + 1);
    if (plan->receives > 0) sorted = wefti_alloc((size_t)plan->receives * sizeof *sorted);
    if (plan->receives > 0 && !sorted) {
        wefti_free(end);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %lld receives", (long long)plan->receives);
    }
    for (int64_t i = 0; i < plan->receives; i++) end[plan->receive[i].round + 1]++;
    for (int64_t r = 0; r < plan->rounds; r++) end[r + 1] += end[r];
    for (int64_t i = 0; i < plan->receives; i++)
        sorted[end[plan->receive[i].round]++] = plan->receive[i];
    for (int64_t r = 0; r < plan->rounds; r++) plan->round[r].receives = end[r];
    for (int64_t i = 0; i < plan->receives; i++)
        plan->partner[sorted[i].partner].receive[sorted[i].number] = i;
    wefti_free(plan->receive);
    wefti_free(end);
    plan->receive = sorted;
    return WEFT_OK;
}

static weft_status fill(const wefti_transfer *t, const wefti_commsched_costs *costs,
                        const int32_t *host, wefti_commsched_algorithm forced,
                        wefti_commsched *plan) {
    const char *name = t->name ? t->name : "a tensor";
    int32_t *each = wefti_arena_alloc(plan->arena, (size_t)t->members * 4 * sizeof *each);
    plan->text = wefti_arena_format(
        plan->arena, "%s of %s (%s, %lld elements)", wefti_transfer_kind_text(t->kind), name,
        weft_dtype_text(t->dtype), (long long)wefti_region_elems(&t->have[t->me], t->rank));
    WEFT_REQUIRE(each && plan->text, WEFT_E_NOMEM, "no memory for a transfer of %d members",
                 (int)t->members);
    for (int32_t m = 0; m < t->members; m++) each[m] = m;
    wefti_commsched_build b = {
        .t = t, .plan = plan, .element = (int64_t)weft_dtype_bytes(t->dtype), .each = each};
    WEFT_TRY(wefti_commsched_hosts_find(plan->arena, t, host, &b.hosts));
    find_form(&b);
    plan->algorithm = choose(&b, costs, forced);
    plan->hash = wefti_digest_number(wefti_transfer_digest(t), (uint64_t)plan->algorithm);
    for (int32_t m = 0; m < t->members && plan->algorithm == WEFTI_COMMSCHED_HOSTS; m++)
        plan->hash = wefti_digest_number(plan->hash, (uint64_t)b.hosts.host[m]);
    plan->hash = wefti_digest_text(plan->hash, name);
    WEFT_TRY(build(&b));
    WEFT_TRY(number_messages(t, plan, each + t->members));
    return sort_receives(plan);
}

weft_status wefti_commsched_create(const wefti_transfer *t, const wefti_commsched_costs *costs,
                                   const int32_t *host, wefti_commsched_algorithm forced,
                                   wefti_commsched **out) {
    wefti_commsched *plan;
    WEFT_REQUIRE(t->members <= WEFTI_COMM_MEMBERS, WEFT_E_ARG,
                 "a transfer of %d members; possible are %d", (int)t->members,
                 (int)WEFTI_COMM_MEMBERS);
    WEFT_NEW(plan, wefti_commsched);
    weft_status status = wefti_arena_create(&plan->arena);
    if (status >= 0) status = fill(t, costs, host, forced, plan);
    if (status < 0) {
        wefti_commsched_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}

void wefti_commsched_destroy(wefti_commsched *plan) {
    if (!plan) return;
    wefti_free(plan->send);
    wefti_free(plan->receive);
    wefti_free(plan->op);
    wefti_free(plan->round);
    wefti_arena_destroy(plan->arena);
    wefti_free(plan);
}

wefti_commsched_partner *wefti_commsched_find_partner(const wefti_commsched *plan, int32_t rank) {
    int64_t low = 0, high = plan->partners;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (plan->partner[middle].rank == rank) return &plan->partner[middle];
        if (plan->partner[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
