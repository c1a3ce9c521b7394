/* Addresses and sockets of the control plane. Everything is non-blocking and closed on exec. */
#ifndef WEFTI_WIRE_SOCKET_H
#define WEFTI_WIRE_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

enum { WEFTI_ADDRESS_TEXT = 128, WEFTI_INTERFACE_TEXT = 32 };

typedef struct wefti_address {
    struct sockaddr_storage at;
    socklen_t bytes;
} wefti_address;

/* "" loopback; the name of a network interface; an address or name of this machine. */
weft_status wefti_address_local(const char *where, int port, wefti_address *out) WEFT_CHECKED;
/* "host:port", "[::1]:port". May ask a name server. */
weft_status wefti_address_find(const char *text, wefti_address *out) WEFT_CHECKED;
/* By which others may reach this machine: the first of each family among network interfaces that
 * work, no loopback, and no address that says nothing without its interface. "": none. */
typedef struct wefti_outward {
    char text[2][WEFTI_ADDRESS_TEXT]; /* IPv4, IPv6 */
} wefti_outward;
struct ifaddrs;
void wefti_outward_of(const struct ifaddrs *interfaces, wefti_outward *out);
/* "host:port", or "[host]:port" if the host is an IPv6 address. Returns as snprintf. */
int wefti_host_and_port(const char *host, int port, char *out, size_t room);
/* "10.0.0.1:4711"; with_port false: "10.0.0.1". Returns out. */
char *wefti_address_text(const wefti_address *address, bool with_port,
                         char out[WEFTI_ADDRESS_TEXT]);

/* Bound to exactly that address; *address gets the port that was chosen. WEFT_E_NOT_FOUND: it is
 * none of this machine. */
weft_status wefti_listen(wefti_address *address, int *out_fd) WEFT_CHECKED;
/* How long a place is asked for that may come. A host's name may lead nowhere yet, or where it led
 * before (a pod's, until name servers know it). An interface may be without an address yet. Both
 * are asked for `seconds`. An address that no interface has, and an interface that is not there,
 * may be mistakes too: WEFTI_SETTLE_SECONDS at most. */
enum { WEFTI_SETTLE_SECONDS = 10 };
typedef struct wefti_patience {
    double seconds; /* 0: it is asked for once */
    bool of_name;   /* the place is a host's name, or an address */
    /* Called before each pause, with `turn` from 0 and the reason. If it returns false, the wait
     * ends with WEFT_E_STOPPED. NULL: no callback. */
    bool (*waits)(void *context, int turn, const char *why);
    void *context;
} wefti_patience;
/* Resolves the place and listens there; *out is the address. A text that can be neither a name nor
 * an address is refused at once. */
weft_status wefti_listen_at(const char *where, int port, const wefti_patience *patience,
                            wefti_address *out, int *out_fd) WEFT_CHECKED;
/* Begins; WEFT_PENDING: poll for writing, then wefti_connected. `from`: an interface or address of
 * this machine, or "". WEFT_E_ARG: there is none such now. WEFT_E_PEER: it has no address now. */
weft_status wefti_connect(const wefti_address *to, const char *from, int *out_fd) WEFT_CHECKED;
weft_status wefti_connected(int fd) WEFT_CHECKED;
/* Waits until a network interface of this machine is up, `seconds` at most. `goes_on` (may be
 * NULL): called while it waits; if it returns false, the wait ends. */
void wefti_interface_await(const char *name, double seconds, bool (*goes_on)(void *),
                           void *context);
/* The network interface at this end of a connection, "lo" for loopback. */
weft_status wefti_socket_interface(int fd, char out[WEFTI_INTERFACE_TEXT]) WEFT_CHECKED;
/* Whether the other end of a connection has another address than this end. */
bool wefti_socket_is_remote(int fd);
/* Disables delays. A peer that does not answer for `seconds` counts as gone. Lost data is
 * retransmitted at least once a second, if the system supports it. */
void wefti_socket_watch(int fd, double seconds);

#endif
