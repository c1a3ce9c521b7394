/* A scheduler among strangers: malformed and repeated handshakes and frames, floods, members of
 * other generations; what it listens at. (weft-test: threads) */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "control_cases.h"
#include "launch/scheduler/state.h"
#include "launch/wire/wire.h"
#include "launch/socket.h"
#include "sanitized.h"

enum {
    RELAXED = SANITIZED, /* a sanitizer keeps memory of its own */
    ATTEMPTS = SANITIZED ? 10000 : 100000,
    PATIENCE = 7200, /* seconds: however slow this machine is */
};

static wefti_scheduler *start(const wefti_scheduler_options *o) {
    wefti_scheduler *s;
    weft_status status = wefti_scheduler_start(o, &s);
    if (status < 0) fail_msg("%s", weft_error_message());
    return s;
}

/* --- connections by hand */

static int dial(wefti_scheduler *s) {
    wefti_address to;
    int fd;
    assert_int_equal(wefti_address_find(wefti_scheduler_address(s), &to), WEFT_OK);
    assert_true(wefti_connect(&to, "", &fd) >= 0);
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&wait, 1, 10000), 1);
    assert_int_equal(wefti_connected(fd), WEFT_OK);
    return fd;
}

/* Without waiting for the other side: ports are for the next ones. */
static void slam(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static size_t receive(int fd, unsigned char *out, size_t room) {
    size_t used = 0;
    while (used < room) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 10000) != 1) fail_msg("no answer in 10 s");
        ssize_t n = recv(fd, out + used, room - used, 0);
        if (n <= 0) break;
        used += (size_t)n;
    }
    return used;
}

/* The right answer to a greeting. */
static void answer(const unsigned char *greeting, wefti_nonces *nonces,
                   unsigned char out[WEFTI_WIRE_ANSWER]) {
    wefti_secret secret = test_secret();
    memcpy(nonces->scheduler, greeting + WEFTI_WIRE_MAGIC, WEFTI_NONCE_BYTES);
    memset(nonces->member, 9, WEFTI_NONCE_BYTES);
    memcpy(out, greeting, WEFTI_WIRE_MAGIC);
    out[4] = 'A';
    memcpy(out + WEFTI_WIRE_MAGIC, nonces->member, WEFTI_NONCE_BYTES);
    wefti_prove(&secret, WEFTI_PROOF_MEMBER, nonces, out + WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES);
}

/* A connection past its handshake, by hand. */
static int enter(wefti_scheduler *s, wefti_wire_stream *sends) {
    unsigned char greeting[WEFTI_WIRE_GREETING], reply[WEFTI_WIRE_ANSWER],
        welcome[WEFTI_WIRE_WELCOME];
    wefti_secret secret = test_secret();
    wefti_nonces nonces;
    int fd = dial(s);
    assert_int_equal(receive(fd, greeting, sizeof greeting), sizeof greeting);
    answer(greeting, &nonces, reply);
    assert_int_equal(send(fd, reply, sizeof reply, MSG_NOSIGNAL), sizeof reply);
    assert_int_equal(receive(fd, welcome, sizeof welcome), sizeof welcome);
    assert_memory_equal(welcome, "weftW", 5);
    *sends = (wefti_wire_stream){.from_scheduler = false};
    wefti_prove(&secret, WEFTI_KEY_MEMBER, &nonces, sends->key);
    return fd;
}

/* --- what must not change */

static int descriptors(void) {
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

static void lanes_start(test_lane *lanes, int from, int to, wefti_scheduler *s) {
    for (int i = from; i < to; i++) {
        memset(&lanes[i], 0, sizeof lanes[i]);
        lanes[i].options = test_member(wefti_scheduler_address(s));
        lanes[i].options.join_seconds = PATIENCE;
        lanes[i].options.rank = i;
        lanes[i].swaps = 3;
        snprintf(lanes[i].node, sizeof lanes[i].node, "n%d", i);
        test_lanes_start(&lanes[i], 1);
    }
}

static void lanes_join(test_lane *lanes, int count) {
    test_lanes_join(lanes, count);
    for (int i = 0; i < count; i++) {
        if (lanes[i].status < 0) fail_msg("member %d: %s", i, lanes[i].text);
        assert_int_equal(lanes[i].rank, i);
        assert_false(lanes[i].wrong);
    }
}

/* --- 100,000 attempts, in one connection each or several in one */

static uint64_t seed;
static unsigned char recorded[WEFTI_WIRE_ANSWER]; /* of a member that was let in */
static bool has_recorded;

/* At least one byte is another. */
static void mutate(unsigned char *data, size_t bytes) {
    size_t at = test_random(&seed) % bytes;
    data[at] ^= (unsigned char)(1 + test_random(&seed) % 255);
    for (uint64_t n = test_random(&seed) % 4; n > 0; n--) {
        size_t other = test_random(&seed) % bytes;
        if (other != at) data[other] = (unsigned char)test_random(&seed);
    }
}

static size_t noise(unsigned char *data, size_t room) {
    size_t bytes = test_random(&seed) % room;
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)test_random(&seed);
    return bytes;
}

/* Handshakes that are wrong in one of several ways, some at a time. Nothing but the fixed refusal
 * comes back. */
enum { BATCH = 24 };
typedef struct attempt {
    int fd;
    size_t bytes;
    unsigned char data[512];
} attempt;

static void strike(attempt *a) {
    unsigned char greeting[WEFTI_WIRE_GREETING];
    wefti_nonces nonces;
    a->bytes = WEFTI_WIRE_ANSWER;
    assert_int_equal(receive(a->fd, greeting, sizeof greeting), sizeof greeting);
    answer(greeting, &nonces, a->data);
    uint64_t way = test_random(&seed) % 8;
    if (way == 0) /* noise of any length */
        a->bytes = noise(a->data, sizeof a->data);
    else if (way == 1 && has_recorded)
        memcpy(a->data, recorded, sizeof recorded); /* it was right once */
    else if (way == 2)
        memcpy(a->data, greeting, sizeof greeting); /* its own words */
    else if (way == 3)
        a->bytes = test_random(&seed) % WEFTI_WIRE_ANSWER; /* breaks off */
    else
        mutate(a->data, WEFTI_WIRE_ANSWER);
    if (a->bytes > 0) assert_true(send(a->fd, a->data, a->bytes, MSG_NOSIGNAL) > 0);
}

static void look(const attempt *a) {
    unsigned char reply[WEFTI_WIRE_WELCOME];
    if (a->bytes != WEFTI_WIRE_ANSWER) return;
    assert_int_equal(receive(a->fd, reply, sizeof reply), sizeof reply);
    assert_memory_equal(reply, "weftN", 5);
    for (size_t i = WEFTI_WIRE_MAGIC; i < sizeof reply; i++) assert_int_equal(reply[i], 0);
}

static void bad_handshakes(wefti_scheduler *s, int count) {
    static attempt all[BATCH];
    for (int done = 0; done < count; done += BATCH) {
        int now = count - done < BATCH ? count - done : BATCH;
        for (int i = 0; i < now; i++) all[i].fd = dial(s);
        for (int i = 0; i < now; i++) strike(&all[i]);
        for (int i = 0; i < now; i++) look(&all[i]);
        for (int i = 0; i < now; i++) slam(all[i].fd);
    }
}

static size_t join_frame(wefti_wire_stream *sends, const wefti_join *join, unsigned char *out) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    size_t bytes = wefti_join_encode(join, body);
    memcpy(out + WEFTI_FRAME_HEADER, body, bytes);
    wefti_frame_seal(sends, WEFTI_FRAME_JOIN, bytes, out);
    return bytes + WEFTI_FRAME_EXTRA;
}

/* Somebody on the way changes or repeats what a member says after its handshake. */
static void bad_frames(wefti_scheduler *s) {
    wefti_wire_stream sends;
    unsigned char data[4096];
    wefti_join join = {.number = 2, .size = 3, .pid = 77, .node = "x", .host = "here"};
    int fd = enter(s, &sends);
    sends.number = test_random(&seed) % 4 == 0 ? 1 : 0; /* a frame was left out */
    bool late = sends.number > 0;
    size_t bytes = join_frame(&sends, &join, data);
    if (!late && test_random(&seed) % 8 == 0) { /* another kind, well signed */
        sends.number = 0;
        wefti_frame_seal(&sends, (wefti_frame_kind)(test_random(&seed) % 20 + 2), 40, data);
        bytes = 40 + WEFTI_FRAME_EXTRA;
    } else if (!late)
        mutate(data, bytes);
    assert_true(send(fd, data, bytes, MSG_NOSIGNAL) > 0);
    slam(fd);
}

static bool strangers_have_gone(const wefti_scheduler *s) {
    return s->client_count == s->taken;
}

static void attacked(void **state) {
    (void)state;
    seed = test_new_seed();
    wefti_scheduler_options o = test_scheduler(3);
    o.join_seconds = PATIENCE;
    wefti_scheduler *s = start(&o);
    test_lane lanes[3];
    lanes_start(lanes, 0, 2, s); /* wait for the third all the while */
    unsigned char greeting[WEFTI_WIRE_GREETING];
    wefti_nonces nonces;
    int fd = dial(s);
    assert_int_equal(receive(fd, greeting, sizeof greeting), sizeof greeting);
    answer(greeting, &nonces, recorded);
    assert_int_equal(send(fd, recorded, sizeof recorded, MSG_NOSIGNAL), sizeof recorded);
    has_recorded = true;
    slam(fd);
    int attempts = getenv("WEFT_TEST_ATTEMPTS") ? atoi(getenv("WEFT_TEST_ATTEMPTS")) : ATTEMPTS;
    bad_handshakes(s, attempts / 10);
    test_wait_until(s, strangers_have_gone);
    long resident = resident_kib();
    int open_before = descriptors();
    for (int done = attempts / 10; done < attempts; done += 100) {
        bad_handshakes(s, 90);
        for (int i = 0; i < 10; i++) bad_frames(s);
    }
    test_wait_until(s, strangers_have_gone);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 0), WEFTI_SCHEDULER_FORMING);
    long grown = resident_kib() - resident;
    print_message("%d attempts; %ld KiB more in use\n", attempts, grown);
    if (!RELAXED) assert_true(grown < 1024);
    assert_true(descriptors() < open_before + 70);
    char *table = wefti_scheduler_table(s);
    ASSERT_FACTS(table, "2 of 3 processes");
    wefti_free(table);
    lanes_start(lanes, 2, 3, s);
    lanes_join(lanes, 3);
    wefti_scheduler_stop(s);
}

/* Connections that say nothing keep nobody out, and are not kept for ever. */
static void flooded(void **state) {
    (void)state;
    enum { MANY = 400 };
    wefti_scheduler_options o = test_scheduler(3);
    wefti_scheduler *s = start(&o);
    int before = descriptors(), fds[MANY];
    for (int i = 0; i < MANY; i++) fds[i] = dial(s);
    struct pollfd last = {.fd = fds[MANY - 1], .events = POLLIN};
    assert_int_equal(poll(&last, 1, 20000), 1); /* it is greeted: all before it were taken */
    assert_in_range(descriptors() - before, MANY, MANY + 3 + 64 + 1); /* theirs, and few of ours */
    test_lane lanes[3];
    lanes_start(lanes, 0, 3, s);
    lanes_join(lanes, 3);
    for (int i = 0; i < MANY; i++) slam(fds[i]);
    wefti_scheduler_stop(s);
}

/* --- generations */

/* The first frame that answers this JOIN. */
static wefti_frame ask(wefti_scheduler *s, const wefti_join *join, const wefti_secret *secret,
                       wefti_wire *wire) {
    wefti_frame frame;
    unsigned char body[WEFTI_MESSAGE_MAX];
    bool asked = false;
    assert_int_equal(wefti_wire_open(wire, dial(s), false, secret, NULL), WEFT_OK);
    for (;;) {
        struct pollfd wait = {.fd = wire->fd, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, 10000), 1);
        weft_status status = wefti_wire_fill(wire);
        if (status < 0) fail_msg("%s", weft_error_message());
        if (wire->phase == WEFTI_WIRE_OPEN && !asked) {
            asked = true;
            assert_int_equal(wefti_wire_send(wire, WEFTI_FRAME_JOIN, body,
                                             wefti_join_encode(join, body), NULL, 0),
                             WEFT_OK);
        }
        if (wefti_wire_next(wire, &frame) == WEFT_OK) return frame;
    }
}

static wefti_abort_reason refused(wefti_scheduler *s, const wefti_join *join) {
    wefti_wire wire;
    wefti_secret secret = test_secret();
    wefti_abort_reason reason;
    wefti_frame frame = ask(s, join, &secret, &wire);
    assert_int_equal(frame.kind, WEFTI_FRAME_REFUSED);
    assert_int_equal(wefti_abort_reason_decode(&frame, &reason), WEFT_OK);
    wefti_wire_close(&wire);
    return reason;
}

static void *hold(void *context) { /* a member that stays until told */
    test_lane *l = context;
    wefti_member *m;
    l->options.host = "here";
    l->status = wefti_member_join(&l->options, &m);
    if (l->status < 0) return NULL;
    l->generation = wefti_member_generation(m);
    while (__atomic_load_n(&l->delay_us, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    (void)wefti_member_close(m, NULL);
    return NULL;
}

static void fenced(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(1);
    o.generation = 7;
    wefti_scheduler *s = start(&o);
    wefti_join join = {.generation = 6, .numbers = 1, .size = 1, .pid = 1, .host = "here"};
    wefti_abort_reason v = refused(s, &join);
    ASSERT_FACTS(v.text, "generation 6|7");
    join.generation = 8;
    v = refused(s, &join);
    assert_int_equal(v.status, WEFT_E_MISMATCH);
    test_lane l = {.options = test_member(wefti_scheduler_address(s))};
    assert_int_equal(pthread_create(&l.thread, NULL, hold, &l), 0);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 10), WEFTI_SCHEDULER_RUNNING);
    join.generation = 6;
    v = refused(s, &join);
    ASSERT_FACTS(v.text, "generation 6|7");
    join.generation = 7; /* the right one, but not that process */
    v = refused(s, &join);
    ASSERT_FACTS(v.text, "rank 0|generation 7|another process");
    join.generation = 0;
    join.number = -1;
    v = refused(s, &join);
    ASSERT_FACTS(v.text, "too many|1 members");
    __atomic_store_n(&l.delay_us, 1, __ATOMIC_RELEASE);
    pthread_join(l.thread, NULL);
    assert_int_equal(l.status, WEFT_OK);
    assert_int_equal(l.generation, 7);
    wefti_scheduler_stop(s);
}

/* A member's connection breaks on its side alone. It comes back before the scheduler misses it,
 * and receives its world again. */
static void comes_back(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(1);
    o.generation = 7;
    wefti_scheduler *s = start(&o);
    wefti_secret secret = test_secret();
    test_lane l = {.options = test_member(wefti_scheduler_address(s))};
    assert_int_equal(pthread_create(&l.thread, NULL, hold, &l), 0);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 10), WEFTI_SCHEDULER_RUNNING);
    /* In its name: the member itself loses its connection by that, and comes back too. */
    wefti_join join = {.generation = 7, .numbers = 1, .size = 1, .pid = getpid(), .host = "here"};
    wefti_wire wire;
    assert_int_equal(ask(s, &join, &secret, &wire).kind, WEFTI_FRAME_WORLD);
    weft_status status = WEFT_OK;
    while (status >= 0) {
        struct pollfd wait = {.fd = wire.fd, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, 10000), 1); /* it has taken our place */
        status = wefti_wire_fill(&wire);
    }
    wefti_wire_close(&wire);
    __atomic_store_n(&l.delay_us, 1, __ATOMIC_RELEASE);
    pthread_join(l.thread, NULL);
    assert_int_equal(l.status, WEFT_OK);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 10), WEFTI_SCHEDULER_LEFT);
    wefti_scheduler_stop(s);
}

static double processor_time(int whose) {
    struct rusage u;
    assert_int_equal(getrusage(whose, &u), 0);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static bool one_is_taken(const wefti_scheduler *s) {
    return s->taken == 1;
}

/* A process without free descriptors for new connections continues, and does not spin. */
static void out_of_descriptors(void **state) {
    (void)state;
    struct rlimit before, few;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    test_lane lanes[2];
    lanes_start(lanes, 0, 1, s);
    test_wait_until(s, one_is_taken);
    int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)wefti_scheduler_port(s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int called = connect(other, (struct sockaddr *)&to, sizeof to);
    /* On a busy machine time says nothing: this thread works all the while, and is compared with.
     */
    double others = processor_time(RUSAGE_SELF), mine = processor_time(RUSAGE_THREAD);
    for (int64_t until = wefti_now_ns() + 700000000; wefti_now_ns() < until;) continue;
    mine = processor_time(RUSAGE_THREAD) - mine;
    others = processor_time(RUSAGE_SELF) - others - mine;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(called, 0);
    print_message("%.3f s of processor time, a thread that works has %.3f s\n", others, mine);
    assert_true(others < mine / 2);
    lanes_start(lanes, 1, 2, s);
    lanes_join(lanes, 2);
    slam(other);
    wefti_scheduler_stop(s);
}

/* --- what listens */

static bool is_mine(unsigned long inode) {
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    bool mine = false;
    assert_non_null(d);
    while (!mine && (e = readdir(d))) {
        char path[300];
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        mine = stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == inode;
    }
    closedir(d);
    return mine;
}

/* Sockets of this process that listen, in one of the kernel's tables. */
static int listening(const char *path, char *where, size_t room) {
    char line[512];
    int count = 0;
    FILE *f = fopen(path, "r");
    if (!f) return 0; /* no IPv6 */
    while (fgets(line, sizeof line, f)) {
        char local[80], remote[80];
        unsigned state;
        unsigned long inode;
        if (sscanf(line, " %*d: %79s %79s %x %*x:%*x %*x:%*x %*x %*d %*d %lu", local, remote,
                   &state, &inode) != 4)
            continue;
        if (state != 0x0A || !is_mine(inode)) continue; /* TCP_LISTEN */
        snprintf(where, room, "%s", local);
        count++;
    }
    fclose(f);
    return count;
}

static bool all_are_in(const wefti_scheduler *s) {
    return s->taken == s->options.size;
}

static void listens_where_it_says(void **state) {
    (void)state;
    char where[80] = "", wanted[80];
    assert_int_equal(listening("/proc/self/net/tcp", where, sizeof where), 0);
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    test_lane lanes[2];
    lanes_start(lanes, 0, 2, s);
    test_wait_until(s, all_are_in);
    assert_int_equal(listening("/proc/self/net/tcp", where, sizeof where), 1);
    assert_int_equal(listening("/proc/self/net/tcp6", wanted, sizeof wanted), 0);
    uint32_t loopback = htonl(INADDR_LOOPBACK);
    snprintf(wanted, sizeof wanted, "%08X:%04X", loopback, (unsigned)wefti_scheduler_port(s));
    assert_string_equal(where, wanted);
    lanes_join(lanes, 2);
    wefti_scheduler_stop(s);
    assert_int_equal(listening("/proc/self/net/tcp", where, sizeof where), 0);
    static const char *const bad[] = {"no-such-interface-or-host.invalid", "192.0.2.77"};
    for (int i = 0; i < 2; i++) {
        o.address = bad[i];
        assert_true(wefti_scheduler_start(&o, &s) < 0);
        assert_non_null(strstr(weft_error_message(), bad[i]));
    }
    o.address = "lo";
    s = start(&o);
    assert_memory_equal(wefti_scheduler_address(s), "127.0.0.1:", 10);
    wefti_scheduler_stop(s);
}

/* Members connect from the named interface, by its address of the scheduler's family. A text that
 * is not an interface is refused at once. */
static void leaves_from_where_it_is_told(void **state) {
    (void)state;
    wefti_address six, far;
    int fd = -1;
    assert_int_equal(wefti_address_find("192.0.2.77:9", &far), WEFT_OK);
    assert_int_equal(wefti_connect(&far, "no-such-interface.invalid", &fd), WEFT_E_ARG);
    ASSERT_MESSAGE("'no-such-interface.invalid'|/sys/class/net");
    assert_int_equal(wefti_address_local("::1", 0, &six), WEFT_OK);
    if (wefti_listen(&six, &fd) < 0) {
        print_message("SKIP: there is no IPv6 here\n");
        return;
    }
    close(fd);
    assert_int_equal(wefti_address_find("[2001:db8::77]:9", &far), WEFT_OK);
    weft_status status = wefti_connect(&far, "lo", &fd); /* which leads nowhere */
    if (status == WEFT_E_ARG) fail_msg("%s", weft_error_message());
    if (status >= 0) close(fd);
}

/* Blocks that two ranks have exchanged are kept until both have said so, and said the same. */
static void pairs_are_forgotten(void **state) {
    (void)state;
    enum { RANKS = 500, NEAR = 32 };
    static wefti_call_records records;
    wefti_scheduler *s = wefti_calloc(1, sizeof *s);
    s->slots = wefti_calloc(RANKS, sizeof *s->slots);
    s->live.ranks = wefti_calloc(RANKS, sizeof *s->live.ranks);
    s->state = WEFTI_SCHEDULER_RUNNING;
    s->taken = RANKS;
    for (int32_t r = 0; r < RANKS; r++) {
        records.count = 0;
        for (int32_t d = 1; d <= NEAR; d++) {
            int32_t up = (r + d) % RANKS, down = (r + RANKS - d) % RANKS;
            int32_t pair[4][2] = {{r, up}, {up, r}, {r, down}, {down, r}};
            for (int i = 0; i < 4; i++)
                records.of[records.count++] =
                    (wefti_call_record){.ranks = (uint64_t)pair[i][0] << 32 | (uint64_t)pair[i][1],
                                        .other = i < 2 ? up : down,
                                        .calls = 1,
                                        .digest = (uint64_t)pair[i][0]};
        }
        wefti_scheduler_compare(s, r, &records);
    }
    for (int b = 0; b < WEFTI_PARTED_BUCKETS; b++) assert_null(s->parted[b]);
    wefti_scheduler_compare_all(s);
    assert_int_equal(s->state, WEFTI_SCHEDULER_RUNNING);
    wefti_free(s->live.ranks);
    wefti_free(s->slots);
    wefti_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listens_where_it_says),
        cmocka_unit_test(leaves_from_where_it_is_told),
        cmocka_unit_test(pairs_are_forgotten),
        cmocka_unit_test(fenced),
        cmocka_unit_test(comes_back),
        cmocka_unit_test(out_of_descriptors),
        cmocka_unit_test(flooded),
        cmocka_unit_test(attacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
