/* Connections over TLS: what one side says arrives, nobody on the way can read it, and whoever does
 * not know the secret, or does not speak TLS, is told so. (weft-test: threads) */
#include "support.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "control_cases.h"
#include "launch/wire/wire.h"
#include "sanitized.h"

/* --- two sides, and a middle that sees every byte */

typedef struct between {
    wefti_wire member, scheduler;
    wefti_tls *tls[2];   /* the member's, the scheduler's */
    int from[2];         /* the ends towards the two */
    unsigned char *seen; /* all that went by */
    size_t seen_bytes, seen_room;
    size_t flip; /* this byte is changed on the way; SIZE_MAX: none */
    wefti_secret secret[2];
    weft_status status[2]; /* of the two sides: failures stay */
    char text[2][512];
} between;

static wefti_wire *side(between *b, int which) {
    return which == 0 ? &b->member : &b->scheduler;
}

static void meet(between *b, bool member_tls, bool scheduler_tls, int member_secret) {
    int line[2][2];
    *b = (between){.flip = SIZE_MAX, .secret = {test_secret(), test_secret()}};
    memset(&b->secret[0], member_secret, sizeof b->secret[0]);
    for (int i = 0; i < 2; i++) {
        if (i == 0 ? member_tls : scheduler_tls)
            assert_int_equal(wefti_tls_create(i == 1, &b->secret[i], &b->tls[i]), WEFT_OK);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, line[i]), 0);
        b->from[i] = line[i][1];
        assert_int_equal(wefti_wire_open(side(b, i), line[i][0], i == 1, &b->secret[i], b->tls[i]),
                         WEFT_OK);
    }
}

static void part(between *b) {
    for (int i = 0; i < 2; i++) {
        wefti_wire_close(side(b, i));
        wefti_tls_destroy(b->tls[i]);
        close(b->from[i]);
    }
    free(b->seen);
}

/* What lies at one end goes to the other, as far as there is room; whether anything did. */
static bool carry(between *b, int which) {
    unsigned char data[4096];
    ssize_t n = recv(b->from[which], data, sizeof data, MSG_DONTWAIT | MSG_PEEK);
    if (n <= 0) return false;
    if (b->flip >= b->seen_bytes && b->flip < b->seen_bytes + (size_t)n)
        data[b->flip - b->seen_bytes] ^= 0x20;
    ssize_t sent = send(b->from[1 - which], data, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0) sent = n; /* nobody is there: lost */
    if (b->seen_bytes + (size_t)sent > b->seen_room) {
        b->seen_room = 2 * b->seen_room + sizeof data;
        b->seen = realloc(b->seen, b->seen_room);
        assert_non_null(b->seen);
    }
    memcpy(b->seen + b->seen_bytes, data, (size_t)sent);
    b->seen_bytes += (size_t)sent;
    return recv(b->from[which], data, (size_t)sent, MSG_DONTWAIT) == sent;
}

static void note(between *b, int which, weft_status status) {
    if (status >= 0 || b->status[which] < 0) return;
    b->status[which] = status;
    snprintf(b->text[which], sizeof b->text[which], "%s", weft_error_message());
    wefti_wire_close(side(b, which)); /* as its owner would */
}

/* Until nothing moves any more, or a frame has come to `for_whom`. */
static bool run(between *b, int for_whom, wefti_frame *out) {
    /* What a side says in one turn is carried in the next. */
    for (int still = 0; still < 2; still++) {
        for (int i = 0; i < 2; i++) {
            wefti_wire *w = side(b, i);
            if (w->fd >= 0) {
                weft_status status = wefti_wire_flush(w);
                note(b, i, status < 0 ? status : WEFT_OK);
            }
            while (carry(b, i)) still = -1;
            while (w->fd >= 0) {
                weft_status status = wefti_wire_fill(w);
                note(b, i, status);
                if (status != WEFT_OK) break;
                still = -1;
            }
            if (i == for_whom && w->fd >= 0) {
                weft_status status = wefti_wire_next(w, out);
                note(b, i, status);
                if (status == WEFT_OK) return true;
            }
        }
    }
    return false;
}

static bool has_seen(const between *b, const char *text) {
    return memmem(b->seen, b->seen_bytes, text, strlen(text)) != NULL;
}

/* --- */

static void needs_openssl(void) {
#ifndef WEFT_HAVE_OPENSSL
    print_message("SKIP: this build has no OpenSSL\n");
    skip();
#endif
}

static const char words[] = "all_reduce of gradient of h.1.attn.weight";

static void converse(bool tls) {
    between b;
    wefti_frame frame;
    meet(&b, tls, tls, 42);
    assert_false(run(&b, 1, &frame));
    if (b.status[0] < 0 || b.status[1] < 0) fail_msg("'%s', '%s'", b.text[0], b.text[1]);
    assert_int_equal(b.member.phase, WEFTI_WIRE_OPEN);
    assert_int_equal(b.scheduler.phase, WEFTI_WIRE_OPEN);
    assert_int_equal(wefti_wire_send(&b.member, WEFTI_FRAME_BEAT, words, sizeof words, NULL, 0),
                     WEFT_OK);
    assert_true(run(&b, 1, &frame));
    assert_int_equal(frame.bytes, sizeof words);
    assert_memory_equal(frame.body, words, sizeof words);
    /* Many records, both ways. */
    enum { LARGE = 3000001 };
    unsigned char *large = malloc(LARGE);
    assert_non_null(large);
    for (size_t i = 0; i < LARGE; i++) large[i] = (unsigned char)(i * 7 + i / 251);
    assert_int_equal(
        wefti_wire_send(&b.scheduler, WEFTI_FRAME_ENTRIES, words, sizeof words, large, LARGE),
        WEFT_OK);
    assert_int_equal(wefti_wire_send(&b.member, WEFTI_FRAME_ENTRY, large, 60000, NULL, 0), WEFT_OK);
    assert_true(run(&b, 0, &frame));
    assert_int_equal(frame.bytes, LARGE + sizeof words);
    assert_memory_equal(frame.body + sizeof words, large, LARGE);
    assert_true(run(&b, 1, &frame));
    assert_memory_equal(frame.body, large, 60000);
    /* The greeting is there for everybody; what follows is not. */
    assert_true(has_seen(&b, tls ? "weftT" : "weftG"));
    assert_int_equal(has_seen(&b, "weftA"), !tls);
    assert_int_equal(has_seen(&b, words), !tls);
    free(large);
    part(&b);
}

static void says_the_same(void **state) {
    (void)state;
    converse(false);
    needs_openssl();
    converse(true);
}

static void other_secrets(void **state) {
    (void)state;
    needs_openssl();
    between b;
    wefti_frame frame;
    meet(&b, true, true, 43);
    (void)run(&b, 1, &frame);
    assert_int_equal(b.status[0], WEFT_E_ARG);
    assert_int_equal(b.status[1], WEFT_E_ARG);
    ASSERT_FACTS(b.text[0], "scheduler|another secret");
    ASSERT_FACTS(b.text[1], "job's secret");
    part(&b);
}

static void unlike_settings(void **state) {
    (void)state;
    needs_openssl();
    between b;
    wefti_frame frame;
    meet(&b, false, true, 42);
    (void)run(&b, 1, &frame);
    assert_int_equal(b.status[0], WEFT_E_ARG);
    ASSERT_FACTS(b.text[0], "wants TLS|WEFT_TLS is not 1");
    part(&b);
    meet(&b, true, false, 42);
    (void)run(&b, 1, &frame);
    assert_int_equal(b.status[0], WEFT_E_ARG);
    ASSERT_FACTS(b.text[0], "without TLS|WEFT_TLS is 1");
    part(&b);
}

/* Whatever byte is changed on the way, nobody takes it for something else. */
static void changed_on_the_way(void **state) {
    (void)state;
    needs_openssl();
    between b;
    wefti_frame frame;
    meet(&b, true, true, 42);
    (void)run(&b, 1, &frame);
    size_t shaken = b.seen_bytes;
    assert_true(shaken > 300);
    part(&b);
    for (size_t at = 0; at < shaken + 100; at += at < 40 ? 1 : 7) {
        meet(&b, true, true, 42);
        b.flip = at;
        (void)run(&b, 1, &frame);
        bool open = b.member.phase == WEFTI_WIRE_OPEN;
        if (open &&
            wefti_wire_send(&b.member, WEFTI_FRAME_BEAT, words, sizeof words, NULL, 0) == WEFT_OK &&
            run(&b, 1, &frame)) {
            assert_int_equal(frame.bytes, sizeof words);
            assert_memory_equal(frame.body, words, sizeof words);
        }
        part(&b);
    }
}

/* --- a scheduler and strangers */

static int dial(wefti_scheduler *s) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)wefti_scheduler_port(s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void slam(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

/* The beginning of a member's own words, recorded. */
static size_t first_words(unsigned char *out, size_t room) {
    wefti_secret secret = test_secret();
    wefti_tls *tls;
    wefti_wire wire;
    unsigned char greeting[WEFTI_WIRE_GREETING] = {'w', 'e', 'f', 't',
                                                   'T', 0,   0,   WEFTI_WIRE_VERSION};
    int line[2];
    assert_int_equal(wefti_tls_create(false, &secret, &tls), WEFT_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, line), 0);
    assert_int_equal(wefti_wire_open(&wire, line[0], false, &secret, tls), WEFT_OK);
    assert_int_equal(write(line[1], greeting, sizeof greeting), sizeof greeting);
    assert_int_equal(wefti_wire_fill(&wire), WEFT_PENDING);
    ssize_t bytes = read(line[1], out, room);
    assert_true(bytes > 100);
    wefti_wire_close(&wire);
    wefti_tls_destroy(tls);
    close(line[1]);
    return (size_t)bytes;
}

static void stranger(wefti_scheduler *s, const unsigned char *hello, size_t bytes, uint64_t *seed) {
    unsigned char data[2048], back[256];
    int fd = dial(s);
    memcpy(data, hello, bytes);
    uint64_t way = test_random(seed) % 4;
    if (way == 0) /* noise */
        for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)test_random(seed);
    else if (way == 1) /* breaks off */
        bytes = 1 + test_random(seed) % (bytes - 1);
    else if (way == 2) /* something is changed */
        for (int n = 0; n < 3; n++)
            data[test_random(seed) % bytes] ^= (unsigned char)(1 + test_random(seed) % 255);
    /* else: what was right once. It cannot go on from there. */
    if (send(fd, data, bytes, MSG_NOSIGNAL) > 0 && test_random(seed) % 2 == 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 10000) == 1 && recv(fd, back, sizeof back, 0) > 0)
            (void)send(fd, data, bytes, MSG_NOSIGNAL);
    }
    slam(fd);
}

static bool strangers_have_gone(const wefti_scheduler *s) {
    return s->client_count == s->taken;
}

static void strangers(void **state) {
    (void)state;
    needs_openssl();
    enum { ROUNDS = 4000, SETTLE = 1000 };
    uint64_t seed = test_new_seed();
    unsigned char hello[2048];
    size_t bytes = first_words(hello, sizeof hello);
    wefti_scheduler_options o = test_scheduler(2);
    o.tls = true;
    o.join_seconds = 200;
    wefti_scheduler *s;
    if (wefti_scheduler_start(&o, &s) < 0) fail_msg("%s", weft_error_message());
    test_lane lanes[2] = {0};
    for (int i = 0; i < 2; i++) {
        lanes[i].options = test_member(wefti_scheduler_address(s));
        lanes[i].options.tls = true;
        lanes[i].options.join_seconds = 200;
        lanes[i].options.rank = i;
        lanes[i].swaps = 20;
    }
    test_lanes_start(lanes, 1); /* waits for the other all the while */
    long before = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (round == SETTLE) before = resident_kib();
        stranger(s, hello, bytes, &seed);
    }
    test_wait_until(s, strangers_have_gone);
    long grown = resident_kib() - before;
    print_message("%d strangers; %ld KiB more in use\n", ROUNDS, grown);
    /* 3000 connections; one holds some 20 KiB while it is there. */
    if (!SANITIZED) assert_true(grown < 4096);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 0), WEFTI_SCHEDULER_FORMING);
    test_lanes_start(lanes + 1, 1);
    test_lanes_join(lanes, 2);
    for (int i = 0; i < 2; i++) {
        if (lanes[i].status < 0) fail_msg("member %d: %s", i, lanes[i].text);
        assert_false(lanes[i].wrong);
    }
    wefti_scheduler_stop(s);
}

#ifndef WEFT_HAVE_OPENSSL
static void without_openssl(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(1);
    wefti_scheduler *s;
    o.tls = true;
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_E_NO_IMPL);
    assert_non_null(strstr(weft_error_message(), "built without OpenSSL"));
    wefti_member *m;
    wefti_member_options member = test_member("127.0.0.1:9");
    member.tls = true;
    assert_int_equal(wefti_member_join(&member, &m), WEFT_E_NO_IMPL);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_the_same),   cmocka_unit_test(other_secrets),
        cmocka_unit_test(unlike_settings), cmocka_unit_test(changed_on_the_way),
        cmocka_unit_test(strangers),
#ifndef WEFT_HAVE_OPENSSL
        cmocka_unit_test(without_openssl),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
