/* A long, bad cable between two network namespaces, where the kernel has no netem: a TAP device in
 * each, and this process between them, which passes frames on late, loses some, and can be told to
 * cut the cable and to mend it:
 *
 *     weft-slow-link A ADDRESS B ADDRESS [delay=MS] [jitter=MS] [loss=PERCENT] [reorder=PERCENT]
 *                    [rate=MBIT] [mtu=BYTES] [device=NAME] [seed=N]
 *
 * A and B are names of `ip netns`, addresses have 24 bits of network. `delay` and `loss` are those
 * of one way. Frames keep their order but for those that overtake (`reorder`: they are not late).
 * `mtu` is at most 9000: large frames take this process less time.
 * SIGUSR1 cuts: what is under way and all that follows is lost, as when nothing tells the hosts
 * that the way between them is gone. SIGUSR2 mends. SIGTERM ends, and so does the death of who
 * started it. The first line says that the cable lies, the last what it has carried. Exit code 77
 * where there are no TAP devices. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum {
    LARGEST = 9000,
    FRAME = LARGEST + 64, /* bytes, with a header */
    UNDER_WAY = 4096,     /* frames in one direction; more are lost */
    SKIPPED = 77,
};

typedef struct frame {
    int64_t due_ns;
    size_t bytes;
    unsigned char data[FRAME];
} frame;

typedef struct way { /* one direction */
    int from, to;
    int64_t free_ns;  /* when the cable has taken what it was given, at its rate */
    int64_t due_ns;   /* of the last frame */
    int first, count; /* in the ring */
    frame ring[UNDER_WAY];
} way;

static struct cable {
    double delay, jitter, loss, reorder, rate; /* ms, ms, percent, percent, Mbit/s (0: any) */
    double mtu;                                /* bytes */
    uint64_t seed;
    char device[IFNAMSIZ];
    bool cut;
    int64_t carried, lost, overtook, cut_off;
} cable = {.seed = 1, .mtu = 1500, .device = "weft0"};
static way ways[2];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* In [0, 1): splitmix64. */
static double chance(void) {
    uint64_t x = cable.seed += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

/* ---- making it ---- */

static void give_up(const char *what, const char *name) {
    int error = errno;
    printf("SKIP: %s %s: %s\n", what, name, strerror(error));
    exit(SKIPPED);
}

static void set_address(const char *device, const char *address) {
    struct ifreq r = {0};
    struct sockaddr_in in = {.sin_family = AF_INET};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", device);
    if (s < 0 || inet_pton(AF_INET, address, &in.sin_addr) != 1) give_up("no address", address);
    memcpy(&r.ifr_addr, &in, sizeof in);
    if (ioctl(s, SIOCSIFADDR, &r) != 0) give_up("cannot take the address", address);
    in.sin_addr.s_addr = htonl(0xFFFFFF00);
    memcpy(&r.ifr_netmask, &in, sizeof in);
    if (ioctl(s, SIOCSIFNETMASK, &r) != 0) give_up("cannot set the network of", address);
    r.ifr_mtu = (int)cable.mtu;
    if (ioctl(s, SIOCSIFMTU, &r) != 0) give_up("cannot set the MTU of", device);
    if (ioctl(s, SIOCGIFFLAGS, &r) != 0) give_up("cannot ask for", device);
    r.ifr_flags |= IFF_UP;
    if (ioctl(s, SIOCSIFFLAGS, &r) != 0) give_up("cannot bring up", device);
    close(s);
}

/* A TAP device in the namespace: this process's end of it. */
static int make_end(const char *namespace, const char *address) {
    char path[128];
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (in < 0 || home < 0 || setns(in, CLONE_NEWNET) != 0) give_up("cannot enter", path);
    close(in);
    int end = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (end < 0) give_up("no TAP devices:", "/dev/net/tun");
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", cable.device);
    if (ioctl(end, TUNSETIFF, &r) != 0) give_up("cannot make a TAP device in", namespace);
    set_address(cable.device, address);
    if (setns(home, CLONE_NEWNET) != 0) give_up("cannot go back from", namespace);
    close(home);
    return end;
}

/* ---- carrying ---- */

static void take(way *w) {
    frame spare, *f = w->count < UNDER_WAY ? &w->ring[(w->first + w->count) % UNDER_WAY] : &spare;
    ssize_t got = read(w->from, f->data, sizeof f->data);
    if (got <= 0) return;
    bool loses = chance() * 100 < cable.loss, overtakes = chance() * 100 < cable.reorder;
    double late = cable.delay + (2 * chance() - 1) * cable.jitter;
    if (cable.cut || loses || f == &spare) {
        cable.cut_off += cable.cut;
        cable.lost += !cable.cut;
        return;
    }
    if (overtakes) {
        cable.overtook++;
        if (write(w->to, f->data, (size_t)got) < 0) cable.lost++;
        return;
    }
    int64_t now = now_ns();
    if (w->free_ns < now) w->free_ns = now;
    if (cable.rate > 0) w->free_ns += (int64_t)((double)got * 8e3 / cable.rate);
    int64_t due = w->free_ns + (late > 0 ? (int64_t)(late * 1e6) : 0);
    f->due_ns = w->due_ns = due > w->due_ns ? due : w->due_ns;
    f->bytes = (size_t)got;
    w->count++;
}

static void deliver(way *w, int64_t now) {
    while (w->count > 0 && w->ring[w->first].due_ns <= now) {
        const frame *f = &w->ring[w->first];
        if (write(w->to, f->data, f->bytes) == (ssize_t)f->bytes)
            cable.carried++;
        else
            cable.lost++;
        w->first = (w->first + 1) % UNDER_WAY;
        w->count--;
    }
}

static void set_cut(bool cut) {
    cable.cut = cut;
    for (int i = 0; cut && i < 2; i++) {
        cable.cut_off += ways[i].count;
        ways[i].count = 0;
    }
    printf("%s\n", cut ? "cut" : "mended");
    fflush(stdout);
}

/* Until SIGTERM. */
static void carry(int signals) {
    struct pollfd wanted[3] = {{.fd = ways[0].from, .events = POLLIN},
                               {.fd = ways[1].from, .events = POLLIN},
                               {.fd = signals, .events = POLLIN}};
    for (;;) {
        int64_t now = now_ns(), wait = 1000000000;
        for (int i = 0; i < 2; i++) {
            deliver(&ways[i], now);
            if (ways[i].count == 0) continue;
            int64_t left = ways[i].ring[ways[i].first].due_ns - now;
            if (left < wait) wait = left;
        }
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(wanted, 3, &timeout, NULL) <= 0) continue;
        for (int i = 0; i < 2; i++)
            if (wanted[i].revents) take(&ways[i]);
        struct signalfd_siginfo told;
        if (!wanted[2].revents || read(signals, &told, sizeof told) != sizeof told) continue;
        if (told.ssi_signo == SIGTERM || told.ssi_signo == SIGINT) return;
        set_cut(told.ssi_signo == SIGUSR1);
    }
}

static bool option(const char *word) {
    static const struct {
        const char *name;
        double *at;
    } numbers[] = {{"delay=", &cable.delay},
                   {"jitter=", &cable.jitter},
                   {"loss=", &cable.loss},
                   {"rate=", &cable.rate},
                   {"reorder=", &cable.reorder},
                   {"mtu=", &cable.mtu},
                   {NULL, NULL}};
    for (int i = 0; numbers[i].name; i++) {
        size_t n = strlen(numbers[i].name);
        char *end;
        if (strncmp(word, numbers[i].name, n) != 0) continue;
        *numbers[i].at = strtod(word + n, &end);
        return end > word + n && !*end;
    }
    if (strncmp(word, "seed=", 5) == 0) cable.seed = strtoull(word + 5, NULL, 10);
    if (strncmp(word, "device=", 7) == 0)
        snprintf(cable.device, sizeof cable.device, "%s", word + 7);
    return strncmp(word, "seed=", 5) == 0 || strncmp(word, "device=", 7) == 0;
}

int main(int argc, char **argv) {
    bool good = argc >= 5;
    for (int i = 5; i < argc; i++) good = option(argv[i]) && good;
    good = good && cable.mtu >= 576 && cable.mtu <= LARGEST;
    if (!good) {
        fprintf(stderr, "usage: weft-slow-link A ADDRESS B ADDRESS [delay=MS] [jitter=MS] "
                        "[loss=PERCENT] [reorder=PERCENT] [rate=MBIT] [mtu=BYTES] [device=NAME] "
                        "[seed=N]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigset_t set;
    sigemptyset(&set);
    for (const int *s = (const int[]){SIGUSR1, SIGUSR2, SIGTERM, SIGINT, 0}; *s; s++)
        sigaddset(&set, *s);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    ways[0].from = ways[1].to = make_end(argv[1], argv[2]);
    ways[0].to = ways[1].from = make_end(argv[3], argv[4]);
    printf("cable between %s and %s: delay %g ms, jitter %g ms, loss %g %%, reorder %g %%, rate %g "
           "Mbit/s, seed %llu\n",
           argv[2], argv[4], cable.delay, cable.jitter, cable.loss, cable.reorder, cable.rate,
           (unsigned long long)cable.seed);
    fflush(stdout);
    carry(signals);
    printf("carried %lld, lost %lld, overtook %lld, cut off %lld\n", (long long)cable.carried,
           (long long)cable.lost, (long long)cable.overtook, (long long)cable.cut_off);
    return 0;
}
