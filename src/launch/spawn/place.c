/* Which ranks run on this host, and where the scheduler is: from numbers or from a rank table. */
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/spawn/launch.h"
#include "launch/rank_table.h"

/* Whether an interface of this machine has it. */
static bool has_address(const char *text) {
    struct ifaddrs *all, *at;
    char own[NI_MAXHOST];
    bool found = false;
    if (getifaddrs(&all)) return false;
    for (at = all; at && !found; at = at->ifa_next) {
        int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
        socklen_t bytes = family == AF_INET    ? sizeof(struct sockaddr_in)
                          : family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                               : 0;
        if (bytes &&
            getnameinfo(at->ifa_addr, bytes, own, sizeof own, NULL, 0, NI_NUMERICHOST) == 0)
            found = !strcmp(own, text);
    }
    freeifaddrs(all);
    return found;
}

static weft_status scheduler_at(wefti_launch_place *p, const char *host, int port) {
    char text[sizeof p->scheduler];
    int bytes = wefti_host_and_port(host, port, text, sizeof text);
    WEFT_REQUIRE(bytes > 0 && bytes < (int)sizeof text && strlen(host) < sizeof p->address,
                 WEFT_E_ARG, "the scheduler's address %.80s... is too long", host);
    (void)snprintf(p->scheduler, sizeof p->scheduler, "%s", text);
    (void)snprintf(p->address, sizeof p->address, "%s", host);
    p->port = port;
    return WEFT_OK;
}

/* The address that was given, if one was. */
static weft_status given_scheduler(const weft_launch_options *o, wefti_launch_place *p) {
    char host[WEFTI_HOST_TEXT];
    int port;
    if (!o->scheduler) return WEFT_OK;
    WEFT_TRY(wefti_address_parse("the scheduler's address", o->scheduler, host, &port));
    return scheduler_at(p, host, port);
}

/* --- numbers --- */

static weft_status place_by_numbers(const weft_launch_options *o, wefti_launch_place *p) {
    int hosts = o->hosts ? o->hosts : 1;
    WEFT_REQUIRE(o->processes > 0, WEFT_E_ARG,
                 "the number of processes is %d: it must be at least 1", o->processes);
    WEFT_REQUIRE(hosts > 0 && (int64_t)hosts * o->processes <= WEFTI_RANKS_MAX, WEFT_E_ARG,
                 "%d hosts with %d processes each are more than the %d ranks that are possible",
                 hosts, o->processes, WEFTI_RANKS_MAX);
    WEFT_REQUIRE(!o->add || (hosts == 1 && o->host_rank == 0 && !o->spare && !o->restarts),
                 WEFT_E_ARG, "processes are added to a job whose hosts and restarts are given");
    WEFT_REQUIRE(!o->spare || (hosts > 1 && o->restarts > 0), WEFT_E_ARG,
                 "a spare host is for jobs of several hosts whose lost ranks are started again");
    WEFT_REQUIRE(o->host_rank >= 0 && o->host_rank < hosts, WEFT_E_ARG,
                 "this host's number is %d; with %d %s it is from 0 to %d", o->host_rank, hosts,
                 hosts == 1 ? "host" : "hosts", hosts - 1);
    WEFT_REQUIRE(o->scheduler || !o->scheduler_elsewhere, WEFT_E_ARG,
                 "the scheduler runs elsewhere: its address is needed, 10.0.0.1:9000");
    WEFT_REQUIRE(!o->standby || hosts > 1 || o->scheduler_elsewhere || o->add, WEFT_E_ARG,
                 "on one host a standby scheduler is of use only if the scheduler is a process of "
                 "its own");
    WEFT_REQUIRE(hosts == 1 || o->scheduler, WEFT_E_ARG,
                 "with %d hosts the scheduler's address is needed: one of host 0 and a free port, "
                 "10.0.0.1:9000",
                 hosts);
    p->hosts = hosts;
    p->host = o->host_rank;
    p->count = o->processes;
    p->first_rank = o->host_rank * o->processes;
    p->size = hosts * o->processes;
    WEFT_NEW_ARRAY(p->host_begin, int, hosts + 1);
    for (int h = 0; h <= hosts; h++) p->host_begin[h] = h * o->processes;
    return WEFT_OK;
}

/* --- rank tables --- */

static bool is_own_address(const char *text) {
    char own[NI_MAXHOST];
    if (gethostname(own, sizeof own) == 0 && !strcmp(own, text)) return true;
    return has_address(text);
}

/* This host's server. */
static weft_status own_server(const weft_launch_options *o, const wefti_rank_table *t, int *out) {
    *out = t->server_count == 1 ? 0 : -1;
    if (o->server_id) {
        *out = wefti_rank_table_server(t, o->server_id);
        WEFT_REQUIRE(*out >= 0, WEFT_E_ARG, "rank table %s has no server '%s'", o->rank_table,
                     o->server_id);
    }
    for (int s = 0; s < t->server_count && !o->server_id && t->server_count > 1; s++) {
        if (!is_own_address(t->servers[s].address) && !is_own_address(t->servers[s].id)) continue;
        WEFT_REQUIRE(*out < 0, WEFT_E_ARG,
                     "servers '%s' and '%s' of the rank table %s are both this host; say which one "
                     "it is by its server_id",
                     t->servers[*out].id, t->servers[s].id, o->rank_table);
        *out = s;
    }
    WEFT_REQUIRE(*out >= 0, WEFT_E_ARG,
                 "none of the %d servers of the rank table %s has an address of this host; say "
                 "which one it is by its server_id",
                 t->server_count, o->rank_table);
    return WEFT_OK;
}

static weft_status place_in_table(const weft_launch_options *o, const wefti_rank_table *t,
                                  wefti_launch_place *p) {
    WEFT_TRY(own_server(o, t, &p->host));
    p->hosts = t->server_count;
    p->count = t->servers[p->host].devices;
    p->first_rank = t->servers[p->host].first_rank;
    p->size = t->size;
    WEFT_NEW_ARRAY(p->host_begin, int, p->hosts + 1);
    for (int h = 0; h < p->hosts; h++) p->host_begin[h] = t->servers[h].first_rank;
    p->host_begin[p->hosts] = p->size;
    return p->hosts == 1 ? WEFT_OK : scheduler_at(p, t->servers[0].address, t->port);
}

static weft_status place_by_table(const weft_launch_options *o, wefti_launch_place *p) {
    wefti_rank_table *table;
    WEFT_REQUIRE(!o->spare && !o->add, WEFT_E_ARG,
                 "the hosts of a rank table are named there: none is spare");
    WEFT_REQUIRE(o->processes == 0 && o->hosts == 0, WEFT_E_ARG,
                 "the rank table says how many processes and hosts there are; leave their numbers "
                 "out");
    WEFT_TRY(wefti_rank_table_load(o->rank_table, &table));
    weft_status status = place_in_table(o, table, p);
    wefti_rank_table_free(table);
    return status;
}

weft_status wefti_launch_place_find(const weft_launch_options *options, wefti_launch_place *out) {
    *out = (wefti_launch_place){0};
    WEFT_TRY((options->rank_table ? place_by_table : place_by_numbers)(options, out));
    out->serves =
        out->host == 0 && !options->spare && !options->add && !options->scheduler_elsewhere;
    if (options->add) return WEFT_OK; /* add.c */
    WEFT_TRY(given_scheduler(options, out));
    if (options->standby)
        WEFT_TRY(wefti_standby_address_check("the standby scheduler's address", options->standby,
                                             out->scheduler));
    /* An address of this machine is where everybody goes: an interface may have several. */
    if (options->interface && *options->interface && !has_address(out->address)) {
        WEFT_REQUIRE(strlen(options->interface) < sizeof out->address, WEFT_E_ARG,
                     "%.40s... is not a network interface", options->interface);
        (void)snprintf(out->address, sizeof out->address, "%s", options->interface);
        out->by_interface = true;
    }
    return WEFT_OK;
}
