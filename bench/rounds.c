/* Transfers between hosts: the communicator over messages, from 8 bytes to 64 MiB.
 *
 *   bench/rounds [--by ucx|mac|tls] [--ranks N] [--hosts NETNS:INTERFACE,NETNS:INTERFACE..]
 *                [--bytes LEAST MOST] [--seconds S] [--force ALGORITHM] [--near] [--compute US]
 *                [--only message|all_reduce] [--streams N]
 *
 * Rank r runs in the network namespace number r % (number of namespaces), as if on a host of its
 * own. Without `--hosts` all ranks use the loopback interface. All messages go by UCX, or by
 * the carrier of `--by`, in N streams for each pair of ranks (mac, tls). With
 * `--near`, as in a job, messages within a host go through its memory; without `--hosts` a host
 * then has two ranks. With `--compute` rank 0 first uses that much of a core's time while the
 * others wait for it. bench/peers/between_hosts.sh makes two namespaces and compares with iperf3.
 *
 * A line shows, for one size:
 * - microseconds and 1e9 bits/s of a message one way, from rank 0 to rank 1; rank 0 waits for an
 *   answer of 8 bytes once in `depth` messages;
 * - microseconds of an all-reduce and an all-gather of all ranks with the chosen algorithms, in
 *   bits
 *   of the whole tensor.
 *
 * Figures are medians over S seconds (1 by default). */
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/host/host.h"
#include "comm/p2p/p2p.h"
#include "comm/transport/transport.h"

enum { MOST_RANKS = 16, CARD = 8192, DEPTH = WEFTI_COMM_DEPTH, SAMPLES = 2000 };

typedef struct shared {
    _Atomic uint32_t arrived;
    unsigned char card[MOST_RANKS][CARD];
    _Atomic int samples; /* of the current row, by rank 0's clock */
} shared;

static shared *all;
static int32_t ranks = 2, hosts, rank;
static char *host[MOST_RANKS];
static int64_t least = 8, most = 64 << 20;
static double seconds = 1;
static int streams = 1;
static const char *by = "ucx", *only = ""; /* only: "" all */
static wefti_commsched_algorithm forced = WEFTI_COMMSCHED_CHOSEN;
static bool near;
static int64_t compute_ns;
static wefti_comm *comm, *messages;
static float *source, *destination;

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s: %s\n", (int)rank, what, weft_error_message());
    exit(1);
}
static void need(weft_status status, const char *what) {
    if (status < 0) fail(what);
}

static void meet(void) {
    static uint32_t rounds;
    rounds += (uint32_t)ranks;
    atomic_fetch_add(&all->arrived, 1);
    while (atomic_load(&all->arrived) < rounds) usleep(50);
}
static weft_status allgather(void *context, const void *card, size_t bytes, void *cards) {
    (void)context;
    if (bytes > CARD) abort();
    memcpy(all->card[rank], card, bytes);
    meet();
    for (int32_t r = 0; r < ranks; r++)
        memcpy((char *)cards + (size_t)r * bytes, all->card[r], bytes);
    meet();
    return WEFT_OK;
}

static const char *enter_host(void) {
    if (hosts == 0) return NULL;
    char path[256], *name = host[rank % hosts], *colon = strchr(name, ':');
    if (!colon) {
        fprintf(stderr, "'%s' is not NETNS:INTERFACE\n", name);
        exit(1);
    }
    snprintf(path, sizeof path, "/run/netns/%.*s", (int)(colon - name), name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(path);
        exit(1);
    }
    close(fd);
    /* UCX looks for interfaces in /sys, which still shows the old namespace. */
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        umount2("/sys", MNT_DETACH) != 0 || mount("sysfs", "/sys", "sysfs", 0, NULL) != 0) {
        perror("/sys");
        exit(1);
    }
    return colon + 1;
}

typedef enum work { MESSAGE, ANSWER, ALL_REDUCE, ALL_GATHER } work;

static wefti_endpoint *bind(work what, int64_t bytes) {
    int32_t group[MOST_RANKS], members = what >= ALL_REDUCE ? ranks : 2;
    wefti_region have[MOST_RANKS] = {0}, want[MOST_RANKS] = {0};
    if (rank >= members) return NULL;
    int32_t from = what == ANSWER;
    for (int32_t m = 0; m < members; m++) {
        group[m] = m;
        if (what >= ALL_REDUCE || m == from) have[m].size[0] = bytes / 4;
        if (what >= ALL_REDUCE || m != from) want[m].size[0] = bytes / 4;
        if (what == ALL_GATHER)
            wefti_part(bytes / 4, 1, members, m, &have[m].begin[0], &have[m].size[0]);
    }
    wefti_transfer t = {.kind = what == ALL_REDUCE   ? WEFTI_TRANSFER_ALL_REDUCE
                                : what == ALL_GATHER ? WEFTI_TRANSFER_ALL_GATHER
                                                     : WEFTI_TRANSFER_SEND,
                        .reduction = what == ALL_REDUCE ? WEFTI_REDUCE_SUM : WEFTI_REDUCE_NONE,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = members,
                        .me = rank,
                        .ranks = group,
                        .have = have,
                        .want = want,
                        .tag = (uint64_t)what,
                        .name = "a tensor"};
    wefti_endpoint *e;
    need(comm->engine->bind(comm, &t, &e), "bind");
    return e;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rank 0 chooses the number of repeats and tells the others through shared memory, one turn ahead.
 */
static bool once_more(int turn, int64_t until) {
    if (rank == 0)
        atomic_store(&all->samples,
                     turn < 5 || (wefti_now_ns() < until && turn < SAMPLES) ? turn + 1 : -1);
    int told;
    while ((told = atomic_load(&all->samples)) != turn + 1 && told != -1) usleep(20);
    return told != -1;
}

/* A row of messages, and an answer to the last. */
static void send_some(wefti_endpoint *message, wefti_endpoint *answer) {
    bool sends = rank == 0;
    float word[2] = {0};
    for (int i = 0; i < DEPTH; i++)
        need(wefti_comm_post(message, sends ? source : NULL, sends ? NULL : destination), "post");
    for (int i = 0; i < DEPTH; i++) need(wefti_comm_wait(message), "wait");
    need(wefti_comm_run(answer, sends ? NULL : word, sends ? word : NULL), "answer");
}

static int64_t own_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static void compute(void) {
    int64_t until = own_ns() + compute_ns;
    while (rank == 0 && own_ns() < until) continue;
}

/* Median seconds. */
static double measure(work what, int64_t bytes, const char **algorithm) {
    static double sample[SAMPLES];
    wefti_endpoint *e = bind(what, bytes), *answer = what == MESSAGE ? bind(ANSWER, 8) : NULL;
    if (e && !near) *algorithm = wefti_commsched_algorithm_text(wefti_p2p_chosen(e));
    int64_t until = wefti_now_ns() + (int64_t)(seconds * 1e9);
    int turns = 0;
    if (rank == 0) atomic_store(&all->samples, 0);
    meet();
    for (; once_more(turns, until); turns++) {
        meet();
        int64_t begin = wefti_now_ns();
        if (compute_ns > 0) compute();
        if (e && answer)
            send_some(e, answer);
        else if (e)
            need(wefti_comm_run(e,
                                what == ALL_GATHER ? source + rank * (bytes / 4) / ranks : source,
                                destination),
                 "run");
        sample[turns] = (double)(wefti_now_ns() - begin) * 1e-9 / (answer ? DEPTH : 1);
        meet();
    }
    meet();
    wefti_comm_unbind(e);
    wefti_comm_unbind(answer);
    qsort(sample, (size_t)turns, sizeof *sample, by_size);
    return sample[turns / 2];
}

/* By the carrier that was named. */
static weft_status open_messages(const wefti_exchange *exchange, const char *interface,
                                 weft_transport *out) {
    wefti_mac_options o = {.rank = rank,
                           .size = ranks,
                           .exchange = *exchange,
                           .key = "measured",
                           .encrypts = !strcmp(by, "tls"),
                           .streams = streams,
                           .interface = interface,
                           .seconds = 60};
    if (!strcmp(by, "ucx")) return wefti_ucx_transport(rank, ranks, exchange, interface, out);
    return wefti_mac_transport(&o, out);
}

static void make_communicator(const char *interface) {
    wefti_exchange exchange = {NULL, allgather};
    weft_transport transport, far;
    int32_t of_rank[MOST_RANKS];
    for (int32_t r = 0; r < ranks; r++) of_rank[r] = hosts > 0 ? r % hosts : r / 2;
    need(open_messages(&exchange, interface, &far), by);
    transport = far;
    if (near) {
        need(wefti_comm_host(rank, ranks, of_rank, &exchange, &comm), "memory of the host");
        need(wefti_comm_host_route(comm, &far, &transport), "roads");
    }
    wefti_commsched_costs costs = wefti_commsched_costs_of(&(wefti_links){0}, true);
    wefti_p2p_setup setup = {&costs, of_rank};
    need(wefti_comm_p2p(&transport, near ? &setup : NULL, &messages), "communicator");
    wefti_p2p_force(messages, forced);
    if (near) {
        wefti_comm_host_set_internode(comm, messages);
    } else {
        comm = messages;
    }
}

static void run_rank(void) {
    make_communicator(enter_host());
    source = calloc(1, (size_t)most + 64);
    destination = calloc(1, (size_t)most + 64);
    if (!source || !destination) abort();
    memset(source, 0, (size_t)most);
    memset(destination, 0, (size_t)most);
    if (rank == 0)
        printf("%12s  %12s %9s  %12s %9s %-8s %12s %9s %-8s\n", "bytes", "message us", "Gbit/s",
               "all-reduce", "Gbit/s", "", "all-gather", "Gbit/s", "");
    for (int64_t bytes = least; bytes <= most; bytes *= 8) {
        const char *none = "", *reduce = "", *gather = "";
        double m = *only == 'a' ? NAN : measure(MESSAGE, bytes, &none);
        double r = *only == 'm' ? NAN : measure(ALL_REDUCE, bytes, &reduce);
        double g = *only ? NAN : measure(ALL_GATHER, bytes, &gather);
        double gigabits = (double)bytes * 8e-9;
        if (rank == 0)
            printf("%12lld  %12.1f %9.3f  %12.1f %9.3f %-8s %12.1f %9.3f %-8s\n", (long long)bytes,
                   m * 1e6, gigabits / m, r * 1e6, gigabits / r, reduce, g * 1e6, gigabits / g,
                   gather);
        fflush(stdout);
    }
    meet();
    wefti_comm_destroy(comm);
}

static void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--ranks") && i + 1 < argc) {
            ranks = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--hosts") && i + 1 < argc) {
            for (char *h = strtok(argv[++i], ","); h && hosts < MOST_RANKS; h = strtok(NULL, ","))
                host[hosts++] = h;
        } else if (!strcmp(argv[i], "--bytes") && i + 2 < argc) {
            least = atoll(argv[++i]);
            most = atoll(argv[++i]);
        } else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) {
            seconds = atof(argv[++i]);
        } else if (!strcmp(argv[i], "--by") && i + 1 < argc &&
                   (!strcmp(argv[i + 1], "ucx") || !strcmp(argv[i + 1], "mac") ||
                    !strcmp(argv[i + 1], "tls"))) {
            by = argv[++i];
        } else if (!strcmp(argv[i], "--streams") && i + 1 < argc) {
            streams = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--only") && i + 1 < argc &&
                   (!strcmp(argv[i + 1], "message") || !strcmp(argv[i + 1], "all_reduce"))) {
            only = argv[++i];
        } else if (!strcmp(argv[i], "--near")) {
            near = true;
        } else if (!strcmp(argv[i], "--compute") && i + 1 < argc) {
            compute_ns = atoll(argv[++i]) * 1000;
        } else if (!strcmp(argv[i], "--force") && i + 1 < argc) {
            i++;
            for (int a = 0; a < WEFTI_COMMSCHED_ALGORITHMS; a++)
                if (!strcmp(argv[i], wefti_commsched_algorithm_text((wefti_commsched_algorithm)a)))
                    forced = (wefti_commsched_algorithm)a;
        } else {
            fprintf(stderr, "unknown: %s\n", argv[i]);
            exit(1);
        }
    }
    if (ranks < 2 || ranks > MOST_RANKS || least < 8) exit(1);
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) abort();
    pid_t process[MOST_RANKS];
    for (int32_t r = 0; r < ranks; r++) {
        pid_t pid = fork();
        if (pid < 0) abort();
        process[r] = pid;
        if (pid > 0) continue;
        rank = r;
        run_rank();
        exit(0);
    }
    int failed = 0;
    for (int32_t r = 0; r < ranks; r++) {
        int how = 0;
        pid_t ended = wait(&how);
        for (int32_t other = 0; other < ranks; other++)
            if (process[other] == ended) process[other] = 0;
        if (how != 0 && failed++ == 0) /* the others would wait for it */
            for (int32_t other = 0; other < ranks; other++)
                if (process[other] > 0) kill(process[other], SIGTERM);
    }
    return failed > 0;
}
