/* A stranger on the network of a job: calls every port that is listened on, again and again, and
 * says what does not belong there.
 *
 *     weft-hostile COUNT EACH SECRET SCHEDULER'S-PORT HELD-PID-FILE SEED
 *
 * Runs in the network namespace of the job, in which nothing else listens. The ports besides the
 * scheduler's are the ranks', which are open while ranks connect. The process whose number is in
 * HELD-PID-FILE stops itself then (late_connect.c), so that the others wait for it. With EACH 0 it
 * goes on when half of COUNT connections were made to such ports, or after a minute. Else it goes
 * on when EACH were made to each of these ports but its own, or after five minutes. The stranger
 * ends after that and COUNT connections, or on SIGTERM, and says how many there were in all, to
 * ranks' ports, and at least to each of the ports of ranks that had not stopped. A connection
 * counts when TCP has made it. Several processes call at once, since most of the time goes into
 * waiting for what a port says.
 *
 * The connections are malformed (noise, lengths beyond all limits, other protocols), replayed (what
 * the port says, sent back), recorded (a right answer to another challenge, under the job's
 * secret), slow (a byte now and then, and silence) and oversized (up to 1 MiB). */
#include <stdio.h>

#ifdef WEFT_HAVE_OPENSSL

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/transport/mac.h"
#include "launch/auth.h"

enum { PORTS = 64, SLOW = 16, LARGEST = 1 << 20, WAIT_MS = 20, WORKERS = 6 };
/* Ranks wait 600 s for each other. */
static const int64_t HOLD_NS = 60000000000, HOLD_LONG_NS = 300000000000;

typedef struct counts { /* of all workers */
    long count, each;
    _Atomic long made, at_ranks;
    _Atomic long at[65536];         /* by port */
    _Atomic bool holds, held, ends; /* holds: a rank has stopped, the others wait for it */
} counts;
static counts *shared;

typedef struct port {
    struct sockaddr_storage at;
    socklen_t bytes;
    int number;
    unsigned long inode; /* of the socket that listens */
} port;

static port ports[PORTS];
static int port_count, slow[SLOW], slow_turn;
static uint64_t dice;
static unsigned char data[LARGEST], key[WEFTI_CONN_KEY];
static volatile sig_atomic_t ends;

static void end(int number) {
    (void)number;
    ends = 1;
}

static uint64_t random_number(void) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return dice >> 33;
}

static void add_port(const struct inet_diag_msg *m) {
    port *p = &ports[port_count];
    if (port_count == PORTS) return;
    memset(p, 0, sizeof *p);
    p->number = ntohs(m->id.idiag_sport);
    p->inode = m->idiag_inode;
    if (m->idiag_family == AF_INET6) {
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)&p->at;
        *to = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = m->id.idiag_sport};
        memcpy(&to->sin6_addr, m->id.idiag_src, sizeof to->sin6_addr);
        p->bytes = sizeof *to;
    } else {
        struct sockaddr_in *to = (struct sockaddr_in *)&p->at;
        *to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = m->id.idiag_sport};
        memcpy(&to->sin_addr, m->id.idiag_src, sizeof to->sin_addr);
        p->bytes = sizeof *to;
    }
    port_count++;
}

/* Asks the kernel for the sockets that listen (sock_diag(7)). To read /proc/net/tcp takes as long
 * as 1000 connections, since the kernel looks for those that were made as well. */
static void scan(int fd, unsigned char family) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } ask = {.head = {.nlmsg_len = sizeof ask,
                      .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
             .body = {.sdiag_family = family,
                      .sdiag_protocol = IPPROTO_TCP,
                      .idiag_states = 1u << TCP_LISTEN}};
    static _Alignas(struct nlmsghdr) char answer[1 << 15];
    if (send(fd, &ask, sizeof ask, 0) < 0) return;
    for (ssize_t n; (n = recv(fd, answer, sizeof answer, 0)) > 0;) {
        unsigned left = (unsigned)n;
        for (struct nlmsghdr *h = (struct nlmsghdr *)answer; NLMSG_OK(h, left);
             h = NLMSG_NEXT(h, left)) {
            if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY) return; /* NLMSG_DONE, or an error */
            add_port(NLMSG_DATA(h));
        }
    }
}

static void scan_ports(void) {
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    port_count = 0;
    if (fd < 0) return;
    scan(fd, AF_INET);
    scan(fd, AF_INET6);
    close(fd);
}

static int call(const port *p) {
    int fd = socket(p->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&p->at, p->bytes) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (poll(&wait, 1, WAIT_MS) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 &&
        error == 0)
        return fd;
    close(fd);
    return -1;
}

static void say(int fd, const void *what, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        ssize_t n = poll(&wait, 1, WAIT_MS) == 1
                        ? send(fd, (const char *)what + at, bytes - at, MSG_NOSIGNAL)
                        : -1;
        if (n <= 0) return;
        at += (size_t)n;
    }
}

static size_t hear(int fd, void *to, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&wait, 1, WAIT_MS) == 1 ? recv(fd, (char *)to + at, bytes - at, 0) : -1;
        if (n <= 0) break;
        at += (size_t)n;
    }
    return at;
}

static void make_noise(size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)random_number();
}

/* Right in every byte, for another challenge. */
static void say_recorded(int fd) {
    wefti_conn_hello hello = {.from.number = (int32_t)(1 + random_number() % 3),
                              .stream = (uint8_t)(random_number() % 4)};
    unsigned char answer[WEFTI_CONN_ANSWER], challenge[WEFTI_CONN_CHALLENGE];
    memset(hello.listener, 7, sizeof hello.listener);
    memset(hello.connector, 9, sizeof hello.connector);
    wefti_conn_write_answer(&hello, answer);
    if (wefti_conn_prove(key, "connect", &hello, answer + WEFTI_CONN_PROOF_AT) < 0) abort();
    (void)hear(fd, challenge, sizeof challenge);
    say(fd, answer, sizeof answer);
    make_noise(100); /* and frames */
    say(fd, data, 100);
}

static void make_malformed(void) {
    static const char *const others[] = {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n",
                                         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
    const char *text = others[random_number() % 4];
    make_noise(512);
    memcpy(data, text, strlen(text));
}

/* False: no connection came about. */
static bool attack(const port *p) {
    int fd = call(p);
    if (fd < 0) return false;
    shared->made++;
    size_t bytes = 1 + random_number() % 300;
    switch (random_number() % 8) {
    case 0:
        make_noise(bytes);
        say(fd, data, bytes);
        break;
    case 1:
        make_malformed();
        say(fd, data, 512);
        break;
    case 2: /* oversized */
        say(fd, data, random_number() % 16 ? 65536 : LARGEST);
        break;
    case 3: /* replayed */
        say(fd, data, hear(fd, data, WEFTI_CONN_CHALLENGE));
        break;
    case 4:
    case 5:
        say_recorded(fd);
        break;
    case 6: /* slow */
        make_noise(1);
        for (int i = 0; i < SLOW; i += 3) (void)!send(slow[i], data, 1, MSG_NOSIGNAL);
        if (slow[slow_turn] >= 0) close(slow[slow_turn]);
        slow[slow_turn] = fd;
        slow_turn = (slow_turn + 1) % SLOW;
        return true;
    default:
        break;
    }
    close(fd);
    return true;
}

static pid_t read_pid(const char *path) {
    FILE *file = fopen(path, "re");
    int pid = 0;
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return (pid_t)pid;
}

/* As wefti_member_data_key, of a generation of before. */
static void make_key(const char *path) {
    unsigned char text[32] = "weft data plane";
    wefti_secret secret;
    if (wefti_secret_read(path, &secret) < 0) {
        fprintf(stderr, "%s\n", weft_error_message());
        exit(1);
    }
    text[16] = 1;
    text[24] = 4;
    wefti_hmac_own(secret.key, sizeof secret.key, text, sizeof text, key);
}

/* --- the workers: each calls all ports, in turns, until the count is reached --- */

/* Not before the rank has stopped, and goes on: nobody else lets it. */
static bool is_done(void) {
    return ends || shared->ends || (shared->held && shared->made >= shared->count);
}

/* All ports once. False: a port has closed, or there was none to call. `silent`: a port that did
 * not answer, as that of the stopped rank, which is rarely called again. */
static bool call_all(int scheduler, bool rarely, int *silent) {
    bool good = true, called = false;
    for (int i = 0; i < port_count && !is_done(); i++) {
        bool rank = ports[i].number != scheduler;
        if (!rank && shared->holds) continue; /* the ranks' first */
        if (ports[i].number == *silent && !rarely) continue;
        called = true;
        if (attack(&ports[i])) {
            shared->at_ranks += rank;
            shared->at[ports[i].number]++;
        } else {
            *silent = ports[i].number;
            good = false;
        }
    }
    return good && called;
}

static void work(uint64_t seed, int scheduler) {
    enum { ROUNDS = 32 };
    int silent = 0;
    dice = seed;
    for (int i = 0; i < SLOW; i++) slow[i] = -1;
    for (int round = 0; !is_done(); round++) {
        if (round % ROUNDS == 0) scan_ports();
        if (!call_all(scheduler, round % ROUNDS == 0, &silent)) round = -1;
        if (port_count == 0) (void)poll(NULL, 0, 1);
    }
    _exit(0);
}

static bool is_stopped(pid_t pid) {
    char path[64], state = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    if (file) fclose(file);
    return state == 'T';
}

static bool owns(pid_t pid, unsigned long inode) {
    char path[300], link[64], wanted[64];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    (void)snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && !found && (e = readdir(folder));) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, e->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n > 0) link[n] = 0;
        found = n > 0 && strcmp(link, wanted) == 0;
    }
    if (folder) closedir(folder);
    return found;
}

/* The fewest connections that were made to a rank's port, of the ranks that have not stopped. */
static long fewest(int scheduler, pid_t held) {
    long least = -1;
    scan_ports();
    for (int i = 0; i < port_count; i++) {
        if (ports[i].number == scheduler || owns(held, ports[i].inode)) continue;
        long made = shared->at[ports[i].number];
        if (least < 0 || made < least) least = made;
    }
    return least < 0 ? 0 : least;
}

/* While the rank has stopped, the ports of the others stay open. Returns the fewest connections
 * that were made to one of them. */
static long watch(int scheduler, const char *pid_file) {
    pid_t held = 0;
    int64_t since_ns = 0, most_ns = shared->each ? HOLD_LONG_NS : HOLD_NS;
    long least = 0;
    while (!is_done()) {
        int64_t now = wefti_now_ns();
        if (held == 0) held = read_pid(pid_file);
        bool holds = held > 0 && is_stopped(held);
        if (since_ns == 0) since_ns = holds ? now : 0;
        if (holds) least = fewest(scheduler, held);
        bool enough = shared->each ? least >= shared->each : shared->at_ranks >= shared->count / 2;
        shared->holds = holds && !enough && now - since_ns < most_ns;
        if (holds && !shared->holds) shared->held = kill(held, SIGCONT) == 0;
        (void)poll(NULL, 0, 20);
    }
    if (held > 0) (void)kill(held, SIGCONT);
    return least;
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    int scheduler = atoi(argv[4]), status, failed = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    shared->count = atol(argv[1]);
    shared->each = atol(argv[2]);
    make_key(argv[3]);
    uint64_t seed = strtoull(argv[6], NULL, 10) * (uint64_t)WORKERS;
    signal(SIGTERM, end);
    for (int i = 0; i < WORKERS; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) work(seed + (uint64_t)i, scheduler);
    }
    long least = watch(scheduler, argv[5]);
    shared->ends = true;
    for (pid_t child; (child = wait(&status)) > 0 || errno == EINTR;)
        failed += child > 0 && status != 0;
    printf("connections %ld, to ports of ranks %ld, at least %ld\n", shared->made, shared->at_ranks,
           least);
    return failed > 0;
}

#else
int main(void) {
    printf("SKIP: this build has no OpenSSL, by which messages are authenticated\n");
    return 77;
}
#endif
