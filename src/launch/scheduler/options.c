/* What every scheduler has in common, whoever starts it: the one place that decides where it
 * listens and which of the user's settings it follows. */
#include <arpa/inet.h>
#include <string.h>

#include "launch/scheduler/scheduler.h"

/* An address, or loopback's name: where everybody goes, wherever this is. */
static bool is_address(const char *host) {
    struct in6_addr any;
    return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1 ||
           strcmp(host, "localhost") == 0;
}

wefti_scheduler_options wefti_scheduler_options_of(const wefti_settings *set,
                                                   const wefti_scheduler_site *site) {
    /* A machine's own name may lead to loopback on that machine only, which a named interface sets
     * right. An address is where everybody goes: an interface may have several. */
    bool by_interface = *site->interface && !is_address(site->host);
    return (wefti_scheduler_options){.size = site->size,
                                     .address = by_interface ? site->interface : site->host,
                                     .awaits_name = !by_interface && *site->host,
                                     .awaits_interface = by_interface,
                                     .port = site->port,
                                     .job = site->job,
                                     .tls = set->tls,
                                     .hosted_by = site->hosted_by,
                                     .restarts = set->restarts,
                                     .restart_window_seconds = set->restart_window_seconds,
                                     .join_seconds = set->join_seconds,
                                     .heartbeat_seconds = set->heartbeat_seconds,
                                     .wait_seconds = set->wait_seconds};
}
