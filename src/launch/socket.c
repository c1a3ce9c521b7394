/* Addresses and sockets: see socket.h. */
#include "launch/socket.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static void set_port(wefti_address *address, int port) {
    if (address->at.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&address->at)->sin_port = htons((uint16_t)port);
}

static weft_status resolve(const char *name, int family, wefti_address *out) {
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int error = getaddrinfo(name, NULL, &hints, &found);
    WEFT_REQUIRE(error == 0 && found, WEFT_E_NOT_FOUND, "the name '%s' leads to no address: %s",
                 name, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    const struct addrinfo *best = found; /* IPv4 where there is a choice: scheduler and members
                                            must come to the same */
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        if (a->ai_family == AF_INET) {
            best = a;
            break;
        }
    out->bytes = best->ai_addrlen;
    memcpy(&out->at, best->ai_addr, best->ai_addrlen);
    freeaddrinfo(found);
    return WEFT_OK;
}

/* The first address of a network interface, IPv4 before IPv6; or of that family. */
static weft_status interface_address(const char *name, int wanted, wefti_address *out) {
    struct ifaddrs *all = NULL;
    WEFT_REQUIRE(getifaddrs(&all) == 0, WEFT_E_IO, "no list of network interfaces: %s",
                 strerror(errno));
    out->bytes = 0;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || strcmp(a->ifa_name, name) != 0) continue;
        int family = a->ifa_addr->sa_family;
        if (wanted != AF_UNSPEC && family != wanted) continue;
        if (family != AF_INET && (family != AF_INET6 || out->bytes)) continue;
        out->bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memcpy(&out->at, a->ifa_addr, out->bytes);
        if (family == AF_INET) break;
    }
    freeifaddrs(all);
    WEFT_REQUIRE(out->bytes, WEFT_E_NOT_FOUND, "network interface %s has no %saddress", name,
                 wanted == AF_INET6  ? "IPv6 "
                 : wanted == AF_INET ? "IPv4 "
                                     : "");
    return WEFT_OK;
}

static weft_status local_address(const char *where, int family, int port, wefti_address *out) {
    *out = (wefti_address){.bytes = 0};
    if (!where || !*where)
        WEFT_TRY(resolve("127.0.0.1", AF_UNSPEC, out));
    else if (if_nametoindex(where) != 0)
        WEFT_TRY(interface_address(where, family, out));
    else if (resolve(where, family, out) < 0)
        return wefti_prefix(WEFT_E_NOT_FOUND,
                            "'%s' is not a network interface of this machine (/sys/class/net lists "
                            "them), nor a name or an address of it",
                            where);
    set_port(out, port);
    return WEFT_OK;
}

weft_status wefti_address_local(const char *where, int port, wefti_address *out) {
    return local_address(where, AF_UNSPEC, port, out);
}

weft_status wefti_address_find(const char *text, wefti_address *out) {
    char name[256];
    const char *colon = strrchr(text, ':');
    WEFT_REQUIRE(colon && colon > text && colon[1], WEFT_E_ARG,
                 "'%s' is not the address of a scheduler: use host:port", text);
    char *end;
    long port = strtol(colon + 1, &end, 10);
    WEFT_REQUIRE(!*end && port > 0 && port < 65536, WEFT_E_ARG,
                 "'%s': the port is a number from 1 to 65535", text);
    size_t n = (size_t)(colon - text);
    if (text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    WEFT_REQUIRE(n > 0 && n < sizeof name, WEFT_E_ARG, "'%s': no host in front of the port", text);
    memcpy(name, text, n);
    name[n] = 0;
    *out = (wefti_address){.bytes = 0};
    WEFT_TRY(resolve(name, AF_UNSPEC, out));
    set_port(out, (int)port);
    return WEFT_OK;
}

static bool is_loopback(const wefti_address *address) {
    if (address->at.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&address->at)->sin6_addr);
    uint32_t host = ntohl(((const struct sockaddr_in *)&address->at)->sin_addr.s_addr);
    return host >> 24 == 127;
}

void wefti_outward_of(const struct ifaddrs *interfaces, wefti_outward *out) {
    *out = (wefti_outward){0};
    for (const struct ifaddrs *a = interfaces; a; a = a->ifa_next) {
        int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
        bool six = family == AF_INET6;
        if ((family != AF_INET && !six) || !(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK)
            continue;
        const struct in6_addr *in6 =
            &((const struct sockaddr_in6 *)(const void *)a->ifa_addr)->sin6_addr;
        if (out->text[six][0] || (six && (IN6_IS_ADDR_LINKLOCAL(in6) || IN6_IS_ADDR_LOOPBACK(in6))))
            continue;
        wefti_address address = {.bytes = six ? sizeof(struct sockaddr_in6)
                                              : sizeof(struct sockaddr_in)};
        memcpy(&address.at, a->ifa_addr, address.bytes);
        wefti_address_text(&address, false, out->text[six]);
    }
}

int wefti_host_and_port(const char *host, int port, char *out, size_t room) {
    return snprintf(out, room, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
}

char *wefti_address_text(const wefti_address *address, bool with_port,
                         char out[WEFTI_ADDRESS_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    bool six = address->at.ss_family == AF_INET6;
    const struct sockaddr_in *a4 = (const struct sockaddr_in *)&address->at;
    const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)&address->at;
    inet_ntop(six ? AF_INET6 : AF_INET, six ? (const void *)&a6->sin6_addr : &a4->sin_addr, host,
              sizeof host);
    int port = ntohs(six ? a6->sin6_port : a4->sin_port);
    if (with_port)
        (void)wefti_host_and_port(host, port, out, WEFTI_ADDRESS_TEXT);
    else
        snprintf(out, WEFTI_ADDRESS_TEXT, "%s", host);
    return out;
}

static weft_status new_socket(const wefti_address *address, int *out_fd) {
    int fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    WEFT_REQUIRE(fd >= 0, WEFT_E_IO, "no socket: %s", strerror(errno));
    *out_fd = fd;
    return WEFT_OK;
}

weft_status wefti_listen(wefti_address *address, int *out_fd) {
    char text[WEFTI_ADDRESS_TEXT];
    int fd, yes = 1;
    WEFT_TRY(new_socket(address, &fd));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* a port in TIME_WAIT will do */
    bool good = bind(fd, (const struct sockaddr *)&address->at, address->bytes) == 0 &&
                listen(fd, 1024) == 0;
    socklen_t bytes = sizeof address->at;
    good = good && getsockname(fd, (struct sockaddr *)&address->at, &bytes) == 0;
    if (!good) {
        int error = errno;
        close(fd);
        WEFT_FAIL(error == EADDRNOTAVAIL ? WEFT_E_NOT_FOUND : WEFT_E_IO,
                  "the scheduler cannot listen at %s: %s", wefti_address_text(address, true, text),
                  strerror(error));
    }
    *out_fd = fd;
    return WEFT_OK;
}

/* Letters, digits and -._, and something else than numbers at its end. */
static bool is_host_name(const char *text) {
    bool letter = false;
    for (const char *at = text ? text : ""; *at; at++) {
        if (!isalnum((unsigned char)*at) && !strchr("-._", *at)) return false;
        if (*at == '.' && at[1])
            letter = false;
        else
            letter = letter || isalpha((unsigned char)*at);
    }
    return letter;
}

static weft_status listen_once(const char *where, int port, wefti_address *out, int *out_fd) {
    WEFT_TRY(wefti_address_local(where, port, out));
    weft_status status = wefti_listen(out, out_fd);
    return status < 0 && is_host_name(where) ? wefti_prefix(status, "'%s'", where) : status;
}

/* Such as eth0, bond0.100, br-lan. */
static bool is_interface_name(const char *text) {
    size_t length = text ? strlen(text) : 0;
    bool letter = false;
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)text[i]) && !strchr("-._@", text[i])) return false;
        letter = letter || isalpha((unsigned char)text[i]);
    }
    return letter && length < IF_NAMESIZE;
}

static bool is_address(const char *text) {
    struct in6_addr any;
    return text && (inet_pton(AF_INET, text, &any) == 1 || inet_pton(AF_INET6, text, &any) == 1);
}

/* How long to ask for a place that was not found. */
static double seconds_for(const char *where, const wefti_patience *patience) {
    const double settle = WEFTI_SETTLE_SECONDS;
    if ((patience->of_name && is_host_name(where)) || (where && if_nametoindex(where) != 0))
        return patience->seconds;
    if (!is_address(where) && (patience->of_name || !is_interface_name(where))) return 0;
    return patience->seconds < settle ? patience->seconds : settle;
}

weft_status wefti_listen_at(const char *where, int port, const wefti_patience *patience,
                            wefti_address *out, int *out_fd) {
    const int64_t first = 50000000, longest = 1000000000;
    int64_t begin = wefti_now_ns(), pause = first;
    for (int turn = 0;; turn++) {
        wefti_failure why;
        weft_status status = listen_once(where, port, out, out_fd);
        double seconds = seconds_for(where, patience);
        if (status != WEFT_E_NOT_FOUND || seconds <= 0) return status;
        wefti_failure_keep(status, &why);
        int64_t left = begin + (int64_t)(seconds * 1e9) - wefti_now_ns();
        if (left <= 0)
            WEFT_FAIL(status, "%.1000s; it was asked for again and again for %g s", why.message,
                      seconds);
        WEFT_REQUIRE(!patience->waits || patience->waits(patience->context, turn, why.message),
                     WEFT_E_STOPPED, "the wait for '%s' was ended", where);
        pause = pause < left ? pause : left;
        (void)nanosleep(&(struct timespec){pause / 1000000000, pause % 1000000000}, NULL);
        pause = 2 * pause < longest ? 2 * pause : longest;
    }
}

/* The caller decides how long a text is tried that is no interface or address of this machine now.
 */
static weft_status leave_from(int fd, const char *from, int family) {
    wefti_address mine;
    char why[512];
    if (local_address(from, family, 0, &mine) < 0) {
        snprintf(why, sizeof why, "%s", weft_error_message());
        WEFT_FAIL(if_nametoindex(from) != 0 ? WEFT_E_PEER : WEFT_E_ARG, "%s", why);
    }
    WEFT_REQUIRE(bind(fd, (const struct sockaddr *)&mine.at, mine.bytes) == 0, WEFT_E_ARG,
                 "%s is not an interface or address of this machine: %s", from, strerror(errno));
    return WEFT_OK;
}

weft_status wefti_connect(const wefti_address *to, const char *from, int *out_fd) {
    int fd;
    WEFT_TRY(new_socket(to, &fd));
    weft_status status = WEFT_OK;
    if (from && *from && !is_loopback(to)) status = leave_from(fd, from, to->at.ss_family);
    if (status >= 0 && connect(fd, (const struct sockaddr *)&to->at, to->bytes) != 0)
        status =
            errno == EINPROGRESS ? WEFT_PENDING : WEFT_RAISE(WEFT_E_PEER, "%s", strerror(errno));
    if (status < 0)
        close(fd);
    else
        *out_fd = fd;
    return status;
}

weft_status wefti_connected(int fd) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    WEFT_REQUIRE(error == 0, error == ECONNREFUSED ? WEFT_E_NOT_FOUND : WEFT_E_PEER, "%s",
                 strerror(error));
    /* A connection to a port where nobody listens can end at its own beginning, when the system
     * chooses that very port for it. */
    struct sockaddr_storage mine = {0}, theirs = {0};
    socklen_t mine_bytes = sizeof mine, their_bytes = sizeof theirs;
    bool itself = getsockname(fd, (struct sockaddr *)&mine, &mine_bytes) == 0 &&
                  getpeername(fd, (struct sockaddr *)&theirs, &their_bytes) == 0 &&
                  memcmp(&mine, &theirs, sizeof mine) == 0;
    WEFT_REQUIRE(!itself, WEFT_E_NOT_FOUND, "no process listens there");
    return WEFT_OK;
}

static bool same_host(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
           ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

bool wefti_socket_is_remote(int fd) {
    struct sockaddr_storage mine = {0}, theirs = {0};
    socklen_t mine_bytes = sizeof mine, their_bytes = sizeof theirs;
    return getsockname(fd, (struct sockaddr *)&mine, &mine_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&theirs, &their_bytes) == 0 &&
           !same_host((const struct sockaddr *)&mine, (const struct sockaddr *)&theirs);
}

weft_status wefti_socket_interface(int fd, char out[WEFTI_INTERFACE_TEXT]) {
    wefti_address mine = {.bytes = sizeof mine.at};
    struct ifaddrs *all = NULL;
    WEFT_REQUIRE(getsockname(fd, (struct sockaddr *)&mine.at, &mine.bytes) == 0 &&
                     getifaddrs(&all) == 0,
                 WEFT_E_IO, "this end of a connection is unknown: %s", strerror(errno));
    out[0] = 0;
    if (is_loopback(&mine)) snprintf(out, WEFTI_INTERFACE_TEXT, "lo");
    for (const struct ifaddrs *a = all; a && !out[0]; a = a->ifa_next) {
        if (a->ifa_addr &&
            (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6) &&
            same_host(a->ifa_addr, (const struct sockaddr *)&mine.at))
            snprintf(out, WEFTI_INTERFACE_TEXT, "%s", a->ifa_name);
    }
    freeifaddrs(all);
    WEFT_REQUIRE(out[0], WEFT_E_IO, "no network interface has the address of this connection");
    return WEFT_OK;
}

static bool is_running(const char *name) {
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    bool known = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    if (fd >= 0) close(fd);
    return !known || ((request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING));
}

void wefti_interface_await(const char *name, double seconds, bool (*goes_on)(void *),
                           void *context) {
    const int64_t pause = 20000000, end = wefti_now_ns() + (int64_t)(seconds * 1e9);
    while (!is_running(name) && wefti_now_ns() < end && (!goes_on || goes_on(context)))
        (void)nanosleep(&(struct timespec){0, pause}, NULL);
}

/* After a network failure, the pauses between retransmissions grow beyond the rest of a heartbeat
 * time. Little is sent here, so retransmit every second. Linux 6.15 and later support it. */
static void try_often(int fd) {
#ifdef TCP_RTO_MAX_MS
    int option = TCP_RTO_MAX_MS;
#else
    int option = 44; /* older headers do not name it */
#endif
    int milliseconds = 1000;
    setsockopt(fd, IPPROTO_TCP, option, &milliseconds, sizeof milliseconds);
}

void wefti_socket_watch(int fd, double seconds) {
    int yes = 1, whole = seconds < 3 ? 3 : seconds > 600 ? 600 : (int)seconds;
    int idle = whole / 3, count = 2;
    unsigned milliseconds = (unsigned)whole * 1000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
    try_often(fd);
}
