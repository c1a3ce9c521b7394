/* Connections between processes that call each other when they need it, by ports that stay open:
 * hubs in one thread, which take turns. Random frames between random sides, with strangers at the
 * ports; newer connections in place of older ones; frames that were changed, repeated or forged;
 * and sides that do not answer, or do not know the key. */
#include "support.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/io.h"
#include "base/philox.h"
#include "comm/connection/connection.h"

#ifdef WEFT_HAVE_OPENSSL

enum { WORKER = 1, SERVER = 2, OTHER = 3 }; /* roles */
enum { NODES = 5, LINKS = 2 * NODES };

static bool encrypts; /* the form `tls` */
static const unsigned char right_key[WEFTI_CONN_KEY] = "right", wrong_key[WEFTI_CONN_KEY] = "wrong";

typedef struct numbers {
    uint64_t seed, next;
} numbers;
static size_t pick(numbers *r, size_t low, size_t high) { /* inclusive */
    return low + wefti_philox_u32(r->seed, 3, r->next++) % (high - low + 1);
}

/* --- a side: a hub, and what it has been told --- */

typedef struct node {
    wefti_conn_hub *hub;
    wefti_conn_side me;
    struct sockaddr_storage at;
    wefti_conn_link *link[LINKS]; /* that are open */
    int links, opened, closed;
    weft_status status; /* of the last one that closed */
    char why[160];
    uint64_t sent[NODES], heard[NODES]; /* to and from each, by its place among the nodes */
    uint64_t frames;                    /* heard */
    unsigned char last[64];             /* the beginning of the last body */
} node;

static node nodes[NODES];

static bool takes(void *context, wefti_conn_side from) {
    (void)context;
    return (from.role == WORKER || from.role == SERVER) && from.number >= 0 && from.number < 100;
}

static void opened(void *context, wefti_conn_link *l) {
    node *n = context;
    n->opened++;
    assert_true(n->links < LINKS);
    n->link[n->links++] = l;
}

static void closed(void *context, wefti_conn_link *l, weft_status status, const char *why) {
    node *n = context;
    n->closed++;
    n->status = status;
    snprintf(n->why, sizeof n->why, "%s", why);
    for (int i = 0; i < n->links; i++)
        if (n->link[i] == l) n->link[i--] = n->link[--n->links];
}

static node *node_of(wefti_conn_side side) {
    for (int i = 0; i < NODES; i++)
        if (nodes[i].hub && wefti_conn_same(nodes[i].me, side)) return &nodes[i];
    return NULL;
}

/* What frame `number` from a side has. */
static unsigned char byte_of(wefti_conn_side from, uint64_t number, size_t at) {
    return (unsigned char)((uint64_t)from.number * 7 + number * 31 + at * (number % 5 + 1));
}

static weft_status heard(void *context, wefti_conn_link *l, const wefti_conn_frame *f) {
    node *n = context, *from = node_of(l->side);
    n->frames++;
    memcpy(n->last, f->body, f->bytes < sizeof n->last ? f->bytes : sizeof n->last);
    WEFT_REQUIRE(f->kind != 99, WEFT_E_MISMATCH, "a kind that nobody knows");
    if (f->kind == 6) { /* in the middle of what has come */
        wefti_conn_link_close(l);
        n->links = 0;
    }
    if (f->kind != 5) return WEFT_OK;
    assert_non_null(from);
    assert_int_equal(f->tag, n->heard[from - nodes]);
    assert_int_equal(f->place, f->bytes);
    for (size_t i = 0; i < f->bytes; i++)
        if (f->body[i] != byte_of(from->me, f->tag, i)) fail_msg("byte %zu of frame", i);
    n->heard[from - nodes]++;
    return WEFT_OK;
}

static void start_node(node *n, wefti_conn_side me, const unsigned char *key, double seconds) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    wefti_conn_hub_options o = {.me = me,
                                .encrypts = encrypts,
                                .seconds = seconds,
                                .queue_bytes = (1 << 20) + 1000,
                                .context = n,
                                .takes = takes,
                                .opened = opened,
                                .heard = heard,
                                .closed = closed};
    memcpy(o.key, key, sizeof o.key);
    *n = (node){.me = me};
    memcpy(&n->at, &at, sizeof at);
    assert_int_equal(wefti_conn_hub_open(&o, &n->at, sizeof at, &n->hub), WEFT_OK);
}

static void turn_all(void) {
    for (int i = 0; i < NODES; i++)
        if (nodes[i].hub) assert_int_equal(wefti_conn_hub_turn(nodes[i].hub, 0), WEFT_OK);
}

/* As an owner whose loop polls other things too. */
static void wait_all(void) {
    struct pollfd polled[NODES];
    for (int i = 0; i < NODES; i++)
        polled[i] = (struct pollfd){.fd = nodes[i].hub ? wefti_conn_hub_poller(nodes[i].hub) : -1,
                                    .events = POLLIN};
    assert_true(poll(polled, NODES, -1) > 0);
    turn_all();
}

static void end_nodes(void) {
    for (int i = 0; i < NODES; i++) {
        wefti_conn_hub_close(nodes[i].hub);
        nodes[i] = (node){.hub = NULL};
    }
}

static wefti_conn_link *call(node *from, const node *to) {
    wefti_conn_link *l, *again;
    assert_int_equal(
        wefti_conn_hub_call(from->hub, to->me, &to->at, sizeof(struct sockaddr_in), &l), WEFT_OK);
    assert_int_equal(
        wefti_conn_hub_call(from->hub, to->me, &to->at, sizeof(struct sockaddr_in), &again),
        WEFT_OK);
    assert_ptr_equal(l, again); /* one link is enough */
    return l;
}

static weft_status send_text(wefti_conn_link *l, uint32_t kind, const char *text) {
    struct iovec body = {(void *)(uintptr_t)text, strlen(text)};
    return wefti_conn_link_send(l, kind, 0, 0, &body, 1);
}

/* --- strangers: sockets of this test, which never wait --- */

static int call_raw(const node *to) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to->at, sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* False: the connection was closed. */
static bool read_raw(int fd, void *out, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = recv(fd, (char *)out + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
        if (n > 0) at += (size_t)n;
        turn_all();
    }
    return true;
}

static bool is_closed(int fd) {
    char byte;
    return !read_raw(fd, &byte, 1);
}

static void answer_raw(int fd, const unsigned char *key, wefti_conn_hello *hello, size_t bytes) {
    unsigned char text[WEFTI_CONN_ANSWER];
    assert_true(read_raw(fd, hello->listener, WEFTI_CONN_NONCE));
    memset(hello->connector, 3, WEFTI_CONN_NONCE);
    wefti_conn_write_answer(hello, text);
    assert_int_equal(wefti_conn_prove(key, "connect", hello, text + WEFTI_CONN_PROOF_AT), WEFT_OK);
    assert_int_equal(send(fd, text, bytes, MSG_NOSIGNAL), bytes);
}

/* A stranger of random kind at the port of a node: no welcome, and the connection ends. */
static void be_stranger(numbers *r, const node *to) {
    enum {
        NOISE,
        CUT,
        WRONG_KEY,
        OTHER_TO,
        OTHER_TO_ROLE,
        OTHER_ROLE,
        UNKNOWN,
        STREAM,
        REPLAY,
        KINDS
    };
    wefti_conn_hello hello = {.from = {7, WORKER}, .to = to->me};
    unsigned char data[WEFTI_CONN_ANSWER], recorded[WEFTI_CONN_ANSWER];
    size_t way = pick(r, 0, KINDS - 1);
    int fd = call_raw(to);
    if (way == OTHER_TO) hello.to.number++;
    if (way == OTHER_TO_ROLE) hello.to.role = OTHER;
    if (way == OTHER_ROLE) hello.from.role = OTHER;
    if (way == UNKNOWN) hello.from.number = 100;
    if (way == STREAM) hello.stream = 1;
    if (way == NOISE) {
        for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)pick(r, 0, 255);
        assert_int_equal(send(fd, data, sizeof data, MSG_NOSIGNAL), sizeof data);
        assert_true(read_raw(fd, data, WEFTI_CONN_CHALLENGE));
    } else if (way == REPLAY) { /* an answer to another challenge */
        wefti_conn_write_answer(&hello, recorded);
        assert_int_equal(
            wefti_conn_prove(right_key, "connect", &hello, recorded + WEFTI_CONN_PROOF_AT),
            WEFT_OK);
        assert_true(read_raw(fd, data, WEFTI_CONN_CHALLENGE));
        assert_int_equal(send(fd, recorded, sizeof recorded, MSG_NOSIGNAL), sizeof recorded);
    } else {
        answer_raw(fd, way == WRONG_KEY ? wrong_key : right_key, &hello,
                   way == CUT ? pick(r, 0, WEFTI_CONN_ANSWER - 1) : WEFTI_CONN_ANSWER);
    }
    if (way == CUT) shutdown(fd, SHUT_WR);
    assert_true(is_closed(fd));
    close(fd);
}

/* --- */

static size_t pick_bytes(numbers *r) {
    size_t most[] = {0, 10, 3000, 70000, WEFTI_CONN_BODY};
    return pick(r, 0, most[pick(r, 0, 4)]);
}

/* The next frame from a side to that of the link, in up to four pieces. */
static void send_next(numbers *r, node *from, wefti_conn_link *l) {
    static unsigned char body[WEFTI_CONN_BODY];
    node *to = node_of(l->side);
    uint64_t number = from->sent[to - nodes];
    size_t bytes = pick_bytes(r), a = pick(r, 0, bytes), b = pick(r, a, bytes);
    struct iovec part[] = {{body, a}, {body + a, b - a}, {NULL, 0}, {body + b, bytes - b}};
    for (size_t i = 0; i < bytes; i++) body[i] = byte_of(from->me, number, i);
    weft_status status = wefti_conn_link_send(l, 5, number, bytes, part, 4);
    assert_true(status == WEFT_OK || status == WEFT_PENDING);
    from->sent[to - nodes] += status == WEFT_OK;
}

static bool all_heard(void) {
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < NODES; k++)
            if (nodes[i].sent[k] != nodes[k].heard[i]) return false;
    return true;
}

/* Of each pair the higher one calls; then frames go both ways, beside strangers. All come once, in
 * order and whole. */
static void random_frames(void **state) {
    (void)state;
    enum { ACTS = 1500 };
    numbers r = {test_new_seed(), 0};
    for (int i = 0; i < NODES; i++)
        start_node(&nodes[i],
                   (wefti_conn_side){(int32_t)pick(&r, 0, 9) * NODES + i, i % 2 ? WORKER : SERVER},
                   right_key, 60);
    for (int act = 0; act < ACTS; act++) {
        node *a = &nodes[pick(&r, 0, NODES - 1)], *b = &nodes[pick(&r, 0, NODES - 1)];
        size_t what = pick(&r, 0, 19);
        if (what < 4 && a > b) send_next(&r, a, call(a, b));
        if (what >= 4 && what < 18 && a->links > 0)
            send_next(&r, a, a->link[pick(&r, 0, (size_t)a->links - 1)]);
        if (what == 18) be_stranger(&r, a);
        if (pick(&r, 0, 1)) turn_all();
    }
    while (!all_heard()) wait_all();
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(nodes[i].closed, 0);
        assert_int_equal(nodes[i].links, nodes[i].opened);
    }
    end_nodes();
}

/* More silent strangers than there is room for: the oldest goes, and a side with the key gets in.
 */
static void silent_strangers(void **state) {
    (void)state;
    enum { SILENT = WEFTI_CONN_STRANGERS + 20 };
    int fd[SILENT];
    unsigned char challenge[WEFTI_CONN_CHALLENGE];
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, right_key, 60);
    start_node(&nodes[1], (wefti_conn_side){1, WORKER}, right_key, 60);
    for (int i = 0; i < SILENT; i++) {
        fd[i] = call_raw(&nodes[0]);
        assert_true(read_raw(fd[i], challenge, sizeof challenge));
    }
    for (int i = 0; i < SILENT; i++) /* closed, or still there */
        assert_int_equal(recv(fd[i], challenge, 1, MSG_DONTWAIT),
                         i < SILENT - WEFTI_CONN_STRANGERS ? 0 : -1);
    assert_int_equal(send_text(call(&nodes[1], &nodes[0]), 1, "here"), WEFT_OK);
    while (nodes[0].frames == 0) turn_all();
    assert_memory_equal(nodes[0].last, "here", 4);
    for (int i = 0; i < SILENT; i++) close(fd[i]);
    end_nodes();
}

/* A side that comes again, as another process of the same number does. */
static void newer_connections(void **state) {
    (void)state;
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, right_key, 60);
    for (int i = 1; i < 4; i++) {
        start_node(&nodes[i], (wefti_conn_side){i < 3 ? 5 : 6, WORKER}, right_key, 60);
        assert_int_equal(send_text(call(&nodes[i], &nodes[0]), 1, i == 1 ? "first" : "other"),
                         WEFT_OK);
        while (nodes[0].frames < (uint64_t)i) wait_all();
    }
    while (nodes[1].closed == 0) wait_all();
    assert_int_equal(nodes[0].status, WEFT_E_STOPPED);
    assert_int_equal(nodes[0].opened, 3);
    assert_int_equal(nodes[0].closed, 1);
    assert_int_equal(nodes[0].links, 2);
    assert_int_equal(nodes[2].closed + nodes[3].closed, 0);
    /* A link that its owner closes is told to the other side only. */
    wefti_conn_link_close(nodes[3].link[0]);
    while (nodes[0].closed == 1) wait_all();
    assert_int_equal(nodes[0].status, WEFT_E_PEER);
    assert_int_equal(nodes[3].closed, 0);
    end_nodes();
}

/* An owner that closes a link while it hears: what came behind is not told. */
static void closed_while_heard(void **state) {
    (void)state;
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, right_key, 60);
    start_node(&nodes[1], (wefti_conn_side){1, WORKER}, right_key, 60);
    wefti_conn_link *l = call(&nodes[1], &nodes[0]);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(send_text(l, i == 1 ? 6 : 1, i < 2 ? "before" : "behind"), WEFT_OK);
    while (nodes[1].closed == 0) wait_all();
    assert_int_equal(nodes[0].frames, 2);
    assert_memory_equal(nodes[0].last, "before", 6);
    assert_int_equal(nodes[0].closed, 0);
    end_nodes();
}

/* A peer with the key that errs, or whose frames are changed on their way. Others go on. */
static void bad_frames(void **state) {
    (void)state;
    enum { REPEATED, CHANGED, TOO_LONG, SHORTER, OTHER_KIND, NOT_LIKED, ENDS, WAYS };
    numbers r = {test_new_seed(), 0};
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, right_key, 60);
    start_node(&nodes[1], (wefti_conn_side){1, WORKER}, right_key, 60);
    wefti_conn_link *good = call(&nodes[1], &nodes[0]);
    for (int way = 0; way < WAYS; way++) {
        wefti_conn_hello hello = {.from = {2, WORKER}, .to = nodes[0].me};
        wefti_conn_direction sends;
        unsigned char frame[WEFTI_CONN_HEADER + 5 + WEFTI_CONN_TAG] = {5, 0, 0, 0, 1},
                                                    welcome[WEFTI_CONN_PROOF],
                                                    proof[WEFTI_CONN_PROOF];
        int fd = call_raw(&nodes[0]);
        answer_raw(fd, right_key, &hello, WEFTI_CONN_ANSWER);
        assert_true(read_raw(fd, welcome, sizeof welcome));
        assert_int_equal(wefti_conn_prove(right_key, "accept", &hello, proof), WEFT_OK);
        assert_memory_equal(welcome, proof, sizeof proof);
        assert_int_equal(wefti_conn_prove(right_key, "up", &hello, proof), WEFT_OK);
        assert_int_equal(wefti_conn_direction_open(&sends, proof), WEFT_OK);
        uint64_t frames = nodes[0].frames;
        int closed_before = nodes[0].closed;
        memcpy(frame + WEFTI_CONN_HEADER, "right", 5);
        for (int i = 0; i < 2; i++) {
            unsigned char *tag = frame + WEFTI_CONN_HEADER + 5;
            if (i > 0) memcpy(frame + WEFTI_CONN_HEADER, "wrong", 5);
            if (i > 0 && way == NOT_LIKED) frame[4] = 99;
            if (i > 0 && way == REPEATED) memcpy(frame + WEFTI_CONN_HEADER, "right", 5);
            if (i == 0 || way != REPEATED)
                assert_int_equal(wefti_conn_sign(&sends, frame, frame + WEFTI_CONN_HEADER, 5, tag),
                                 WEFT_OK);
            if (i > 0 && way == CHANGED)
                frame[pick(&r, 4, sizeof frame - 1)] ^= (unsigned char)(1 << pick(&r, 0, 7));
            if (i > 0 && way == TOO_LONG) wefti_put_number(frame, WEFTI_CONN_BODY + 1, 4);
            if (i > 0 && way == SHORTER) frame[0] = 4;
            if (i > 0 && way == OTHER_KIND) frame[5] = 1;
            size_t bytes = i > 0 && way == ENDS ? pick(&r, 0, sizeof frame - 1) : sizeof frame;
            assert_int_equal(send(fd, frame, bytes, MSG_NOSIGNAL), bytes);
        }
        shutdown(fd, SHUT_WR);
        while (nodes[0].closed == closed_before) turn_all();
        assert_int_equal(nodes[0].frames, frames + (way == NOT_LIKED ? 2 : 1));
        if (way != NOT_LIKED) assert_memory_equal(nodes[0].last, "right", 5);
        assert_int_equal(nodes[0].status, way == NOT_LIKED ? WEFT_E_MISMATCH
                                          : way == ENDS    ? WEFT_E_PEER
                                                           : WEFT_E_CORRUPT);
        wefti_conn_direction_close(&sends);
        close(fd);
        frames = nodes[0].frames;
        assert_int_equal(send_text(good, 1, "good"), WEFT_OK);
        while (nodes[0].frames == frames) turn_all();
        assert_memory_equal(nodes[0].last, "good", 4);
    }
    end_nodes();
}

/* Calls to a listener without the key, to a silent one, and to a closed port. And a caller that
 * does not go on with TLS. */
static void calls_that_fail(void **state) {
    (void)state;
    wefti_conn_link *l;
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof at;
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, wrong_key, 60);
    start_node(&nodes[1], (wefti_conn_side){1, WORKER}, right_key, 60);
    start_node(&nodes[2], (wefti_conn_side){2, WORKER}, right_key, 1e-9);
    int silent = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(listen(silent, 1), 0);
    assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &bytes), 0);
    /* Another key: the listener sees it first. */
    (void)call(&nodes[1], &nodes[0]);
    while (nodes[1].closed < 1) turn_all();
    assert_int_equal(nodes[1].status, WEFT_E_PEER);
    /* It welcomes whom it cannot know. */
    wefti_conn_side me = {4, SERVER};
    unsigned char noise[WEFTI_CONN_ANSWER] = {1};
    assert_int_equal(wefti_conn_hub_call(nodes[1].hub, me, &at, bytes, &l), WEFT_OK);
    int fd = accept(silent, NULL, NULL);
    assert_int_equal(send(fd, noise, WEFTI_CONN_CHALLENGE, MSG_NOSIGNAL), WEFTI_CONN_CHALLENGE);
    assert_true(read_raw(fd, noise, sizeof noise));
    assert_int_equal(send(fd, noise, WEFTI_CONN_PROOF, MSG_NOSIGNAL), WEFTI_CONN_PROOF);
    while (nodes[1].closed < 2) turn_all();
    ASSERT_FACTS(nodes[1].why, "key");
    close(fd);
    /* Nothing comes, in its time. */
    assert_int_equal(wefti_conn_hub_call(nodes[2].hub, me, &at, bytes, &l), WEFT_OK);
    while (nodes[2].closed < 1) turn_all();
    assert_int_equal(nodes[2].status, WEFT_E_TIMEOUT);
    close(silent);
    /* Nobody is there any more. */
    weft_status status = wefti_conn_hub_call(nodes[1].hub, me, &at, bytes, &l);
    while (status >= 0 && nodes[1].closed < 3) turn_all();
    assert_non_null(strstr(status < 0 ? weft_error_message() : nodes[1].why, "refused"));
    if (encrypts) { /* a caller that has the key, and says nothing that TLS understands */
        wefti_conn_hello hello = {.from = {7, WORKER}, .to = nodes[1].me};
        fd = call_raw(&nodes[1]);
        answer_raw(fd, right_key, &hello, WEFTI_CONN_ANSWER);
        assert_true(read_raw(fd, noise, WEFTI_CONN_PROOF));
        assert_int_equal(send(fd, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
        while (read_raw(fd, noise, 1)) continue; /* an alert */
        close(fd);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(nodes[i].opened, 0);
    end_nodes();
}

/* A link takes no more than its queue holds, and says so; what it took comes. */
static void full_queues(void **state) {
    (void)state;
    static unsigned char body[WEFTI_CONN_BODY + 1];
    struct iovec one = {body, WEFTI_CONN_BODY};
    uint64_t sent = 0;
    weft_status status;
    start_node(&nodes[0], (wefti_conn_side){0, SERVER}, right_key, 60);
    start_node(&nodes[1], (wefti_conn_side){1, WORKER}, right_key, 60);
    wefti_conn_link *l = call(&nodes[1], &nodes[0]);
    do status = wefti_conn_link_send(l, 1, 0, 0, NULL, 0); /* frames without bodies count too */
    while (status == WEFT_OK);
    assert_int_equal(status, WEFT_PENDING);
    wefti_conn_link_close(l);
    l = call(&nodes[1], &nodes[0]);
    while ((status = wefti_conn_link_send(l, 1, 0, 0, &one, 1)) == WEFT_OK) sent++;
    assert_int_equal(status, WEFT_PENDING);
    assert_int_equal(sent, 4); /* before it is open: what the queue holds */
    while (nodes[1].links == 0) turn_all();
    for (int i = 0; i < 1000 && status == WEFT_PENDING; i++) {
        status = wefti_conn_link_send(l, 1, 0, 0, &one, 1);
        if (status == WEFT_PENDING) turn_all();
    }
    assert_int_equal(status, WEFT_OK);
    for (sent++; nodes[0].frames < sent;) wait_all();
    one.iov_len++;
    assert_int_equal(wefti_conn_link_send(l, 1, 0, 0, &one, 1), WEFT_E_ARG);
    wefti_conn_hub_close(nodes[0].hub);
    nodes[0].hub = NULL;
    while (nodes[1].closed == 0) turn_all();
    end_nodes();
}

static int begin_encrypted(void **state) {
    (void)state;
    encrypts = true;
    return 0;
}
static int end_form(void **state) {
    (void)state;
    encrypts = false;
    return 0;
}
#define BOTH(test)                                                                                 \
    cmocka_unit_test(test), {                                                                      \
#test " encrypted", test, begin_encrypted, end_form, NULL                                  \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(random_frames),      BOTH(silent_strangers),       BOTH(newer_connections),
        BOTH(closed_while_heard), cmocka_unit_test(bad_frames), BOTH(calls_that_fail),
        BOTH(full_queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void) {
    printf("SKIP: this build has no OpenSSL, which signs messages\n");
    return 77;
}
#endif
