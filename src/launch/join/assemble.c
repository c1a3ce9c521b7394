/* From members to a world: see join.h. Ranks of one host reach each other's memory; where there are
 * several hosts, or the user insists, transfers go through messages too. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/memory.h"
#include "base/pool.h"
#include "launch/join/join.h"
#include "launch/socket.h"
#include "comm/p2p/p2p.h"
#include "comm/same_job.h"
#include "comm/transport/transport.h"
#include "topo/model.h"
#include "weft/version.h"

static bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/* The names of carriers of messages between processes. */
static bool is_messages(const char *name) {
    return is(name, "mac") || is(name, "tls") || is(name, "ucx") || is(name, "mpi");
}

weft_status wefti_join_options(const weft_world_options *options, const wefti_settings *set,
                               wefti_join_plan *out) {
    weft_world_options own = weft_world_defaults();
    WEFT_TRY(wefti_struct_take("weft_world_options", options, &own));
    const weft_world_options *o = &own;
    const wefti_override by = {.communicator = o->communicator,
                               .interface = o->interface,
                               .links = o->links,
                               .join_seconds = o->join_seconds,
                               .heartbeat_seconds = o->heartbeat_seconds,
                               .wait_seconds = o->wait_seconds};
    *out = (wefti_join_plan){.set = *set, .identity = o->identity};
    WEFT_TRY(wefti_settings_override(&out->set, &by));
    const char *c = out->set.communicator;
    WEFT_REQUIRE(!*c || is(c, "host") || is_messages(c), WEFT_E_ARG,
                 "WEFT_COMM is '%s'; it can be host, mac, tls, ucx or mpi", c);
    WEFT_REQUIRE(!out->set.tls || !is_messages(c) || is(c, "tls"), WEFT_E_ARG,
                 "TLS is wanted (--tls, WEFT_TLS), but WEFT_COMM is '%s', which does not encrypt "
                 "tensors; leave WEFT_COMM out, or set it to tls",
                 c);
    return *out->set.links ? wefti_links_find(out->set.links, &out->links) : WEFT_OK;
}

static void close_transport(const weft_transport *transport) {
    if (transport && transport->close) transport->close(transport->context);
}

static weft_status end_control(void *context, const wefti_call_records *records) {
    wefti_control *c = context;
    weft_status status = wefti_member_close(c->member, records);
    wefti_join_forget(c);
    wefti_scheduler_stop(c->scheduler);
    if (c->comm) wefti_comm_set_position(c->comm, NULL);
    wefti_position_destroy(c->position);
    if (c->has_transport && status < 0 && c->transport.abandon)
        c->transport.abandon(c->transport.context);
    if (c->has_transport) close_transport(&c->transport);
    wefti_free(c);
    return status;
}

void wefti_control_end(void *context) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    weft_status status = end_control(context, NULL);
    (void)status;
    (void)wefti_failure_tell(&failure);
}

static void give_up(void *context, weft_status status, int failed, const char *message) {
    wefti_control *c = context;
    if (c->member) wefti_member_fail(c->member, status, failed, message);
}

/* Ranks have made unlike calls, and this one has seen it. */
static void report_mismatch(void *context, const char *message) {
    wefti_control *c = context;
    wefti_member_found_mismatch(c->member, message);
}

static void adopt(weft_world *world, wefti_control *control) {
    world->control = control;
    world->leave = end_control;
    world->fail = give_up;
    world->mender = control->member && world->comm ? wefti_join_mender(control) : NULL;
}

weft_status wefti_join_alone(const weft_transport *transport, weft_world **out) {
    wefti_control *control = wefti_calloc(1, sizeof *control);
    if (!control) {
        close_transport(transport);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a world");
    }
    control->has_transport = transport != NULL;
    if (transport) control->transport = *transport;
    weft_status status = wefti_world_create(NULL, 0, 1, NULL, out);
    if (status < 0)
        wefti_control_end(control);
    else
        adopt(*out, control);
    return status;
}

/* --- do all members want the same? */

/* "4.1e-07 s and 1.23e+10 bytes/s", or "none". */
typedef struct link_words {
    char text[64];
} link_words;
static link_words link_text(const wefti_measured_link *link) {
    link_words words = {"none"};
    if (wefti_link_known(link))
        snprintf(words.text, sizeof words.text, "%.6g s and %.6g bytes/s", link->latency_seconds,
                 link->bytes_per_second);
    return words;
}

static uint64_t digest_links(const wefti_links *l) {
    const double reals[] = {l->same_host.latency_seconds, l->same_host.bytes_per_second,
                            l->between_hosts.latency_seconds, l->between_hosts.bytes_per_second};
    uint64_t digest =
        wefti_digest_number(7, (uint64_t)(uint32_t)l->ranks_per_host << 2 |
                                   (uint64_t)l->by_messages << 1 | (uint64_t)l->measured);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        digest = wefti_digest_real(digest, reals[i]);
    return digest;
}

enum { FACT_VERSION, FACT_COMMUNICATOR, FACT_LINKS, JOIN_FACTS };

static void describe(const wefti_join_plan *plan, wefti_job_fact facts[JOIN_FACTS]) {
    static const char same[] = "all processes of a run need the same";
    const char *communicator = plan->set.communicator;
    facts[FACT_VERSION] = (wefti_job_fact){.name = "version", .verb = "runs", .advice = same};
    facts[FACT_COMMUNICATOR] = (wefti_job_fact){
        .name = "communicator", .verb = "has", .advice = "WEFT_COMM must be the same everywhere"};
    /* Costs that differ would choose different algorithms. */
    facts[FACT_LINKS] = (wefti_job_fact){
        .name = "links",
        .verb = "has the measured links (parallel.links, WEFT_LINKS)",
        .advice = "all processes need the same file",
        .value = digest_links(&plan->links),
    };
    snprintf(facts[FACT_VERSION].text, WEFTI_FACT_TEXT, "weft %s", WEFT_VERSION);
    snprintf(facts[FACT_COMMUNICATOR].text, WEFTI_FACT_TEXT, "communicator '%s'", communicator);
    snprintf(facts[FACT_LINKS].text, WEFTI_FACT_TEXT, "(%s within a host, %s between hosts)",
             link_text(&plan->links.same_host).text, link_text(&plan->links.between_hosts).text);
}

void wefti_join_facts(const wefti_join_plan *plan, char out[WEFTI_JOIN_FACTS_TEXT]) {
    wefti_job_fact facts[JOIN_FACTS];
    describe(plan, facts);
    (void)snprintf(out, WEFTI_JOIN_FACTS_TEXT, "%.60s, %.60s, links %.120s",
                   facts[FACT_VERSION].text, facts[FACT_COMMUNICATOR].text, facts[FACT_LINKS].text);
}

static weft_status agree(const wefti_join_plan *plan, wefti_member *m) {
    wefti_job_fact facts[JOIN_FACTS];
    wefti_job_value mine[JOIN_FACTS], *all;
    int32_t size = wefti_member_size(m), me = wefti_member_rank(m);
    describe(plan, facts);
    wefti_job_values(facts, JOIN_FACTS, mine);
    WEFT_NEW_ARRAY(all, wefti_job_value, size * JOIN_FACTS);
    weft_status status = wefti_member_allgather(m, mine, sizeof mine, all);
    for (int32_t r = 0; r < size && status >= 0; r++)
        status = wefti_job_compare(facts, JOIN_FACTS, me, all + r * JOIN_FACTS, r, r);
    wefti_free(all);
    return status;
}

/* --- the communicator */

static bool goes_on(void *member) {
    return wefti_member_check(member) >= 0 && !wefti_member_is_halted(member);
}

/* The interface that was named, else the one that leads to the scheduler. */
static weft_status find_interface(const wefti_join_plan *plan, wefti_member *m,
                                  char interface[WEFTI_INTERFACE_TEXT]) {
    WEFT_TRY(wefti_member_interface(m, interface));
    if (if_nametoindex(plan->set.interface) != 0)
        snprintf(interface, WEFTI_INTERFACE_TEXT, "%s", plan->set.interface);
    /* It may carry connections before the system reports that it is up. */
    wefti_interface_await(interface, plan->set.join_seconds > 0 ? plan->set.join_seconds : 600,
                          goes_on, m);
    return WEFT_OK;
}

static weft_status ucx_transport(const wefti_join_plan *plan, wefti_member *m,
                                 weft_transport *out) {
    wefti_exchange exchange = wefti_member_exchange(m);
    char interface[WEFTI_INTERFACE_TEXT];
    WEFT_TRY(find_interface(plan, m, interface));
    WEFT_TRY(
        wefti_ucx_transport(wefti_member_rank(m), wefti_member_size(m), &exchange, interface, out));
    return WEFT_OK;
}

/* Streams of a pair of ranks: as many as the user says, else as many as the link needs. */
static int32_t find_streams(const wefti_join_plan *plan, const wefti_member *m,
                            const char *interface, bool encrypts) {
    const int32_t *host = wefti_member_hosts(m);
    int32_t ranks = 0, me = wefti_member_rank(m);
    if (plan->set.streams > 0) return plan->set.streams;
    for (int32_t r = 0; r < wefti_member_size(m); r++) ranks += host[r] == host[me];
    return wefti_mac_streams_for(wefti_interface_speed(interface), wefti_cores(), ranks, encrypts);
}

/* Messages that the job's secret authenticates. Their key belongs to this generation of the world,
 * whose members are the ranks of this job. */
static weft_status mac_transport(const wefti_join_plan *plan, wefti_member *m, bool encrypts,
                                 weft_transport *out) {
    char interface[WEFTI_INTERFACE_TEXT];
    wefti_mac_options o = {.rank = wefti_member_rank(m),
                           .size = wefti_member_size(m),
                           .exchange = wefti_member_exchange(m),
                           .encrypts = encrypts,
                           .interface = interface,
                           .seconds = plan->set.join_seconds,
                           .goes_on = goes_on,
                           .context = m};
    WEFT_TRY(find_interface(plan, m, interface));
    o.streams = find_streams(plan, m, interface, encrypts);
    wefti_member_data_key(m, o.key);
    weft_status status = wefti_mac_transport(&o, out);
    explicit_bzero(o.key, sizeof o.key);
    return status;
}

/* The carrier of messages between hosts: the one that was named. Else an authenticated one, or the
 * program's own if it has brought one and nothing has to be encrypted. */
static const char *carrier(const wefti_join_plan *plan, const wefti_control *c) {
    if (is_messages(plan->set.communicator)) return plan->set.communicator;
    if (plan->set.tls) return "tls";
    return c->has_transport ? "mpi" : "mac";
}

static weft_status choose_transport(const wefti_join_plan *plan, wefti_control *c,
                                    weft_transport *out) {
    const char *by = carrier(plan, c);
    if (is(by, "mac") || is(by, "tls")) return mac_transport(plan, c->member, is(by, "tls"), out);
    if (is(by, "ucx")) return ucx_transport(plan, c->member, out);
    *out = c->transport;
    c->has_transport = false; /* whoever gets it closes it */
    return WEFT_OK;
}

/* The communicator that sends messages. With `intranode`, messages within a host go through the
 * memory that its processes share. */
static weft_status make_internode(const wefti_join_plan *plan, wefti_control *c,
                                  wefti_comm *intranode, wefti_comm **out) {
    weft_transport transport, internode;
    WEFT_TRY(choose_transport(plan, c, &internode));
    transport = internode;
    if (intranode) WEFT_TRY(wefti_comm_host_route(intranode, &internode, &transport));
    wefti_commsched_costs costs = wefti_commsched_costs_of(&plan->links, intranode != NULL);
    wefti_p2p_setup setup = {&costs, wefti_member_hosts(c->member)};
    return wefti_comm_p2p(&transport, &setup, out);
}

static weft_status make_comm(wefti_control *c, int32_t hosts, wefti_comm **out) {
    const wefti_join_plan *plan = &c->plan;
    const char *want = plan->set.communicator;
    wefti_member *m = c->member;
    wefti_comm *host, *internode = NULL;
    WEFT_REQUIRE(!is(want, "host") || hosts == 1, WEFT_E_ARG,
                 "WEFT_COMM is host, but the ranks are on %d hosts", (int)hosts);
    WEFT_REQUIRE(!is(want, "mpi") || c->has_transport, WEFT_E_ARG,
                 "WEFT_COMM is mpi, but these processes were not started by mpirun");
    wefti_comm_finder finder = {report_mismatch, c};
    if (is_messages(want)) {
        WEFT_TRY(make_internode(plan, c, NULL, out));
        (*out)->finder = finder;
        return WEFT_OK;
    }
    wefti_exchange exchange = wefti_member_exchange(m);
    WEFT_TRY(wefti_comm_host(wefti_member_rank(m), wefti_member_size(m), wefti_member_hosts(m),
                             &exchange, &host));
    weft_status status = hosts > 1 ? make_internode(plan, c, host, &internode) : WEFT_OK;
    if (status < 0) {
        wefti_comm_destroy(host);
        return status;
    }
    if (internode) {
        internode->finder = finder;
        wefti_comm_host_set_internode(host, internode);
    }
    host->finder = finder;
    *out = host;
    return WEFT_OK;
}

weft_status wefti_join_make_comm(wefti_control *c, wefti_comm **out) {
    wefti_member *m = c->member;
    const int32_t *host = wefti_member_hosts(m);
    int32_t size = wefti_member_size(m), hosts = 1;
    for (int32_t r = 0; r < size; r++)
        if (host[r] >= hosts) hosts = host[r] + 1;
    *out = NULL;
    WEFT_TRY(agree(&c->plan, m));
    return size > 1 ? make_comm(c, hosts, out) : WEFT_OK;
}

static weft_status make_world(wefti_control *c, weft_world **out) {
    wefti_member *m = c->member;
    WEFT_TRY(wefti_position_create(&c->position));
    WEFT_TRY(wefti_member_is_newcomer(m) ? wefti_join_mend_first(c, &c->comm)
                                         : wefti_join_make_comm(c, &c->comm));
    if (c->comm) wefti_comm_set_position(c->comm, c->position);
    wefti_comm *comm = c->comm;
    weft_status status = wefti_world_create(comm, wefti_member_rank(m), wefti_member_size(m),
                                            wefti_member_hosts(m), out);
    if (status < 0) { /* which has destroyed it */
        c->comm = NULL;
        return status;
    }
    wefti_member_watch(m, comm, c->position);
    return WEFT_OK;
}

weft_status wefti_join_assemble(const wefti_join_plan *plan, wefti_control *control,
                                const weft_transport *transport, weft_world **out) {
    control->has_transport = transport != NULL;
    if (transport) control->transport = *transport;
    control->plan = *plan;
    control->plan.identity = NULL;
    weft_status status = make_world(control, out);
    if (status >= 0) {
        adopt(*out, control);
        return WEFT_OK;
    }
    /* Another rank's end was seen first as a connection that failed: the scheduler knows more. */
    if (status == WEFT_E_PEER) {
        const weft_status known = wefti_member_check(control->member);
        if (known < 0) status = known;
    }
    /* The others learn it at once, instead of waiting. Leaving overwrites no message. */
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_member_fail(control->member, status, failure.rank, failure.message);
    wefti_control_end(control);
    return wefti_failure_tell(&failure);
}
