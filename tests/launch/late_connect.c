/* Preloaded into a rank (LD_PRELOAD): stops the process (SIGSTOP) before its first connection to
 * another port than LATE_CONNECT_BUT, the scheduler's; with LATE_ACCEPT, before it takes the first
 * connection that comes. The ranks then wait for it with open ports, for as long as a test wants.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_flag has_stopped = ATOMIC_FLAG_INIT;

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
    if (but && port != 0 && port != atoi(but) && !atomic_flag_test_and_set(&has_stopped))
        (void)raise(SIGSTOP);
    return (int)syscall(SYS_connect, fd, to, bytes);
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *from, socklen_t *bytes,
                                                   int flags) {
    if (getenv("LATE_ACCEPT") && !atomic_flag_test_and_set(&has_stopped)) (void)raise(SIGSTOP);
    return (int)syscall(SYS_accept4, fd, from, bytes, flags);
}
