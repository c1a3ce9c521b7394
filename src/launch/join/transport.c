/* A world over the caller's messages (weft/transport.h). They carry the first all-gathers. Then
 * rank 0 hosts a scheduler as in other worlds, so that a rank that dies is named here too. Rank 0
 * creates the job's secret and sends it through the transport, since the transport reaches exactly
 * the members. */
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/join/join.h"
#include "launch/host_identity.h"
#include "launch/socket.h"

typedef struct about { /* what everyone tells everyone first */
    int32_t status;
    char host[WEFTI_NAME_MAX + 1];
    wefti_outward address;
} about;

typedef struct rendezvous { /* what rank 0 tells */
    int32_t status;
    char where[WEFTI_ADDRESS_TEXT];
    wefti_secret secret;
    char trouble[512];
} rendezvous;

static void own_addresses(wefti_outward *out) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) all = NULL; /* then the list is empty */
    wefti_outward_of(all, out);
    if (all) freeifaddrs(all);
}

/* The address from which this machine would send to `peer`: nothing is sent for that. */
static weft_status address_towards(const char *peer, char out[WEFTI_ADDRESS_TEXT]) {
    wefti_address to, mine = {.bytes = sizeof mine.at};
    WEFT_TRY(wefti_address_local(peer, 9, &to));
    int fd = socket(to.at.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && connect(fd, (const struct sockaddr *)&to.at, to.bytes) == 0 &&
                getsockname(fd, (struct sockaddr *)&mine.at, &mine.bytes) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    WEFT_REQUIRE(good, WEFT_E_IO, "no way to %s: %s", peer, strerror(error));
    wefti_address_text(&mine, false, out);
    return WEFT_OK;
}

/* Of a rank on another host, in the first family that all ranks have, or else that this one has.
 * "": there is none. */
static const char *other_address(const about *all, int size) {
    int other = 1;
    while (other < size && strcmp(all[other].host, all[0].host) == 0) other++;
    if (other == size) return "";
    const wefti_outward *address = &all[other].address;
    for (int family = 0; family < 2; family++) {
        bool common = true;
        for (int r = 0; r < size; r++) common = common && all[r].address.text[family][0];
        if (common) return address->text[family];
    }
    return address->text[0][0] ? address->text[0] : address->text[1];
}

/* Loopback on one host; and on several that have no network, which are parts of one machine. */
static weft_status choose_address(const wefti_join_plan *plan, const about *all, int size,
                                  char out[WEFTI_ADDRESS_TEXT]) {
    snprintf(out, WEFTI_ADDRESS_TEXT, "%s", plan->set.interface);
    if (*out) return WEFT_OK;
    const char *other = other_address(all, size);
    return *other ? address_towards(other, out) : WEFT_OK;
}

/* A secret that is in no file. */
static weft_status make_secret(wefti_secret *out) {
    return wefti_random_bytes(out->key, sizeof out->key);
}

static weft_status start(const wefti_join_plan *plan, const about *all, int size,
                         wefti_scheduler **out, rendezvous *entry) {
    char address[WEFTI_ADDRESS_TEXT];
    WEFT_TRY(choose_address(plan, all, size, address));
    WEFT_TRY(make_secret(&entry->secret));
    wefti_scheduler_site site = {
        .size = size, .host = "", .interface = address, .job = "", .hosted_by = 0};
    wefti_scheduler_options o = wefti_scheduler_options_of(&plan->set, &site);
    o.secret = entry->secret;
    o.restarts = 0; /* what carries the messages does not take another process in */
    WEFT_TRY(wefti_scheduler_start(&o, out));
    snprintf(entry->where, sizeof entry->where, "%s", wefti_scheduler_address(*out));
    return WEFT_OK;
}

/* Every rank learns of every other rank's error, so that none waits for a rank that has given up.
 */
static weft_status introduce(const weft_transport *t, const wefti_join_plan *plan, about *mine,
                             about *all) {
    weft_status status = WEFT_OK;
    snprintf(mine->host, sizeof mine->host, "%s", plan->set.host_id);
    if (!*mine->host) status = wefti_host_identity(mine->host);
    mine->status = status;
    own_addresses(&mine->address);
    WEFT_TRY(t->exchange(t->context, mine, sizeof *mine, all));
    WEFT_TRY(status);
    for (int r = 0; r < t->size; r++) {
        all[r].host[WEFTI_NAME_MAX] = 0;
        for (int i = 0; i < 2; i++) all[r].address.text[i][WEFTI_ADDRESS_TEXT - 1] = 0;
        WEFT_REQUIRE_OF(r, all[r].status >= 0, WEFT_E_PEER,
                        "rank %d cannot tell which host it is on", r);
    }
    return WEFT_OK;
}

static weft_status meet(const weft_transport *t, const wefti_join_plan *plan, const about *all,
                        wefti_scheduler **scheduler, rendezvous *out) {
    rendezvous mine = {.status = WEFT_OK}, *entries;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(entries, rendezvous, t->size);
    if (t->rank == 0) {
        status = start(plan, all, t->size, scheduler, &mine);
        mine.status = status;
        if (status < 0) snprintf(mine.trouble, sizeof mine.trouble, "%s", weft_error_message());
    }
    weft_status swapped = t->exchange(t->context, &mine, sizeof mine, entries);
    *out = entries[0];
    explicit_bzero(entries, (size_t)t->size * sizeof *entries);
    explicit_bzero(&mine.secret, sizeof mine.secret);
    wefti_free(entries);
    WEFT_TRY(status);
    WEFT_TRY(swapped);
    out->where[sizeof out->where - 1] = out->trouble[sizeof out->trouble - 1] = 0;
    WEFT_REQUIRE_OF(0, out->status >= 0, WEFT_E_PEER, "rank 0 cannot host the scheduler: %s",
                    out->trouble);
    return WEFT_OK;
}

static weft_status enter(const weft_transport *t, const wefti_join_plan *plan,
                         wefti_control *control) {
    about mine = {0}, *all;
    rendezvous entry;
    WEFT_NEW_ARRAY(all, about, t->size);
    weft_status status = introduce(t, plan, &mine, all);
    if (status >= 0) status = meet(t, plan, all, &control->scheduler, &entry);
    wefti_free(all);
    WEFT_TRY(status);
    wefti_member_options o = {.scheduler = entry.where,
                              .interface = plan->set.interface,
                              .secret = entry.secret,
                              .rank = t->rank,
                              .size = t->size,
                              .host = mine.host,
                              .tls = plan->set.tls,
                              .join_seconds = plan->set.join_seconds,
                              .leave_seconds = plan->leave_seconds};
    status = wefti_member_join(&o, &control->member);
    explicit_bzero(&o.secret, sizeof o.secret);
    explicit_bzero(&entry.secret, sizeof entry.secret);
    return status;
}

static weft_status check(const weft_transport *t) {
    WEFT_REQUIRE(t->size > 0 && t->rank >= 0 && t->rank < t->size, WEFT_E_ARG,
                 "a transport of rank %d of %d", t->rank, t->size);
    WEFT_REQUIRE(t->send && t->receive && t->test && t->cancel && t->exchange, WEFT_E_ARG,
                 "a transport without all of send, receive, test, cancel and exchange");
    return WEFT_OK;
}

weft_status wefti_join_transport(const weft_transport *transport, const weft_world_options *options,
                                 bool ends, weft_world **out) {
    wefti_join_plan plan;
    wefti_settings set;
    wefti_control *control = NULL;
    weft_status status = check(transport);
    if (status >= 0) status = wefti_settings_find(&set);
    if (status >= 0) status = wefti_join_options(options, &set, &plan);
    if (status >= 0 && ends)
        plan.leave_seconds = plan.set.wait_seconds > 0 ? plan.set.wait_seconds : WEFTI_WAIT_SECONDS;
    if (status >= 0 && transport->size == 1) return wefti_join_alone(transport, out);
    if (status >= 0 && !(control = wefti_calloc(1, sizeof *control)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a world");
    if (status >= 0) status = enter(transport, &plan, control);
    if (status >= 0) return wefti_join_assemble(&plan, control, transport, out);
    if (control) wefti_control_end(control);
    if (transport->close) transport->close(transport->context);
    return status;
}

weft_status weft_world_from_transport(const weft_transport *transport,
                                      const weft_world_options *options, weft_world **out) {
    weft_transport own = weft_transport_defaults();
    WEFT_REQUIRE(transport, WEFT_E_ARG, "weft_world_from_transport needs a transport");
    WEFT_TRY(wefti_struct_take("weft_transport", transport, &own));
    return wefti_join_transport(&own, options, false, out);
}
