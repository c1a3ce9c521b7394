/* Preloaded into a rank (LD_PRELOAD): stops the process (SIGSTOP) once, so that the other ranks
 * wait for it as long as a test wants.
 * - By default it stops before its first connection to a port that is not LATE_CONNECT_BUT. That is
 *   the scheduler's.
 * - With LATE_ACCEPT it stops before it takes the first connection that comes.
 * - With LATE_SEND="AT HEX" it stops before it first sends a message with these bytes from byte AT
 * on.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_flag has_stopped = ATOMIC_FLAG_INIT;

static void stop_once(void) {
    if (!atomic_flag_test_and_set(&has_stopped)) (void)raise(SIGSTOP);
}

static int port_of(const struct sockaddr *to) {
    struct sockaddr_in at;
    struct sockaddr_in6 at6;
    if (to->sa_family == AF_INET) {
        memcpy(&at, to, sizeof at);
        return ntohs(at.sin_port);
    }
    if (to->sa_family != AF_INET6) return 0;
    memcpy(&at6, to, sizeof at6);
    return ntohs(at6.sin6_port);
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *to,
                                                   socklen_t bytes) {
    const char *but = getenv("LATE_CONNECT_BUT");
    int port = port_of(to);
    if (but && port != 0 && port != atoi(but)) stop_once();
    return (int)syscall(SYS_connect, fd, to, bytes);
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *from, socklen_t *bytes,
                                                   int flags) {
    if (getenv("LATE_ACCEPT")) stop_once();
    return (int)syscall(SYS_accept4, fd, from, bytes, flags);
}

static bool has_bytes(const unsigned char *data, size_t bytes, const char *wanted) {
    char *hex;
    unsigned long at = strtoul(wanted, &hex, 10);
    unsigned byte;
    for (hex++; sscanf(hex, "%2x", &byte) == 1; hex += 2, at++)
        if (at >= bytes || data[at] != byte) return false;
    return true;
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t bytes,
                                                    int flags) {
    const char *wanted = getenv("LATE_SEND");
    if (wanted && has_bytes(data, bytes, wanted)) stop_once();
    return syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0);
}
