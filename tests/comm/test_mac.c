/* The communicator over authenticated messages: processes that send each other messages through
 * loopback, in one stream for each pair and in several. Random transfers, ranks that break off or
 * are killed. And strangers: what does not prove the key, and frames that were changed, repeated or
 * forged, change no state. (weft-test: threads) */
#include "support.h"

#include <netinet/in.h>
#include <poll.h>

#include "comm/p2p/p2p.h"
#include "comm/transport/mac.h"
#include "comm/transport/transport.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* not all of it is needed here */
#include "processes.h"

#ifdef WEFT_HAVE_OPENSSL

enum {
    SCRIPTS = 12,
    BROKEN = 10,
    KILLED = 6,
    SPOKEN = 2 /* streams of a rank that is spoken for */
};

static bool encrypts;       /* the form `tls` */
static int32_t streams = 1; /* for each pair */

static weft_status join_by_mac(process_world *p, int32_t rank) {
    static seat_at_meeting seat; /* of this process; the transport keeps a pointer */
    seat = (seat_at_meeting){&p->meeting, rank, 0};
    wefti_mac_options o = {.rank = rank,
                           .size = p->w.size,
                           .exchange = {&seat, swap_cards},
                           .key = "a key that all ranks know",
                           .encrypts = encrypts,
                           /* A pair uses the fewer of both. */
                           .streams = streams > 1 ? streams + rank % 2 : 1,
                           .interface = "",
                           .seconds = 60};
    weft_transport transport;
    WEFT_TRY(wefti_mac_transport(&o, &transport));
    WEFT_TRY(wefti_comm_p2p(&transport, NULL, &p->w.comm[rank]));
    wefti_p2p_force(p->w.comm[rank], (wefti_commsched_algorithm)p->memory);
    return WEFT_OK;
}

static process_world *mac_begin(int32_t size, wefti_commsched_algorithm forced, void *context) {
    process_world *p = processes_begin(size, context);
    p->join = join_by_mac;
    p->w.get = NULL;
    p->w.put = NULL;
    p->memory = (int)forced;
    return p;
}

static process_world *begin_any(int32_t size, int round, numbers *r, script *script) {
    (void)round;
    return mac_begin(size, (wefti_commsched_algorithm)pick(r, 0, WEFTI_COMMSCHED_ALGORITHMS - 1),
                     script);
}
static void random_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){
        .rounds = SCRIPTS, .least = 1, .body = follow_to_the_end, .begin = begin_any});
}

/* A group of all makes everyone known to everyone. */
static process_world *begin_with_all(int32_t size, int round, numbers *r, script *script) {
    (void)round;
    script->cases[0] = all_reduce_of(size, pick(r, 0, 1) ? 30000 : 3, WEFT_F32);
    return mac_begin(size, WEFTI_COMMSCHED_CHOSEN, script);
}
static void broken_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){.rounds = BROKEN,
                                       .least = 2,
                                       .mask = 0xB0,
                                       .break_every = 1,
                                       .body = follow_script,
                                       .begin = begin_with_all});
}

static void who_is_killed_is_named(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0x9;
    for (int round = 0; round < KILLED; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 2, 5);
        killing *k = share(sizeof *k);
        k->c = all_reduce_of(size, round % 2 ? 60000 : 5, WEFT_F32);
        k->victim = (int32_t)pick(&r, 0, size - 1);
        process_world *p = mac_begin(size, WEFTI_COMMSCHED_CHOSEN, k);
        kill_and_hear(p, k, &r, " is lost");
        processes_end(p);
        munmap(k, sizeof *k);
    }
}

/* A process that stands still for long after its proof does not give up a connection that the other
 * side takes for open. */
static void late_connectors(void **state) {
    int64_t before = wefti_mac_call_ns;
    wefti_mac_call_ns = -1; /* each call is late at once */
    random_scripts(state);
    wefti_mac_call_ns = before;
}

/* --- strangers: rank 0 of 2 is a transport, and this test speaks for rank 1 --- */

static const unsigned char right_key[WEFTI_CONN_KEY] = "right", wrong_key[WEFTI_CONN_KEY] = "wrong";

typedef struct rank_0 {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sockaddr_storage at; /* where it listens; ss_family 0: nowhere yet */
    weft_status status;
    weft_transport transport;
} rank_0;

/* Rank 1's entry is rank 0's: nobody calls rank 1. */
static weft_status learn_address(void *context, const void *mine, size_t bytes, void *all) {
    rank_0 *r = context;
    memcpy(all, mine, bytes);
    memcpy((unsigned char *)all + bytes, mine, bytes);
    pthread_mutex_lock(&r->lock);
    memcpy(&r->at, mine, sizeof r->at); /* an entry begins with the address */
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return WEFT_OK;
}

static void *be_rank_0(void *context) {
    rank_0 *r = context;
    wefti_mac_options o = {.rank = 0,
                           .size = 2,
                           .exchange = {r, learn_address},
                           .streams = SPOKEN,
                           .interface = "",
                           .seconds = 60};
    memcpy(o.key, right_key, sizeof o.key);
    r->status = wefti_mac_transport(&o, &r->transport);
    return NULL;
}

static void start_rank_0(rank_0 *r) {
    *r = (rank_0){.status = WEFT_PENDING};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    assert_int_equal(pthread_create(&r->thread, NULL, be_rank_0, r), 0);
    pthread_mutex_lock(&r->lock);
    while (!r->at.ss_family) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static int call_rank_0(const rank_0 *r) {
    int fd = socket(r->at.ss_family, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&r->at, sizeof(struct sockaddr_in)), 0);
    return fd;
}

static bool read_all(int fd, void *data, size_t bytes) {
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static void number(unsigned char *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(x >> 8 * i);
}

/* Answers the challenge, as `said`; true: welcome. */
static bool shake(int fd, const unsigned char *key, const wefti_conn_hello *said,
                  wefti_conn_hello *hello, unsigned char answer[WEFTI_CONN_ANSWER]) {
    unsigned char welcome[WEFTI_CONN_PROOF], proof[WEFTI_CONN_PROOF];
    *hello = *said;
    assert_true(read_all(fd, hello->listener, WEFTI_CONN_NONCE));
    memset(hello->connector, 3, WEFTI_CONN_NONCE);
    wefti_conn_write_answer(hello, answer);
    assert_int_equal(wefti_conn_prove(key, "connect", hello, answer + WEFTI_CONN_PROOF_AT),
                     WEFT_OK);
    assert_int_equal(send(fd, answer, WEFTI_CONN_ANSWER, MSG_NOSIGNAL), WEFTI_CONN_ANSWER);
    if (!read_all(fd, welcome, sizeof welcome)) return false;
    assert_int_equal(wefti_conn_prove(key, "accept", hello, proof), WEFT_OK);
    assert_memory_equal(welcome, proof, sizeof proof);
    return true;
}

/* Wrong keys, ranks and streams, a recorded answer, noise, halves of answers, silence: none gets
 * in, and the right one does afterwards. */
static void strangers(rank_0 *r, numbers *seed) {
    enum { NOISE = 200, SILENT = 100 };
    static const wefti_conn_hello right = {.from.number = 1},
                                  wrong[] = {{.from.number = 1, .to.number = 1},
                                             {.from.number = 0},
                                             {.from.number = 2},
                                             {.from.number = -1},
                                             {.from = {1, 1}},
                                             {.from.number = 1, .to.role = 1},
                                             {.from.number = 1, .stream = SPOKEN},
                                             {.from.number = 1, .stream = UINT8_MAX}};
    unsigned char recorded[WEFTI_CONN_ANSWER], noise[256], challenge[WEFTI_CONN_NONCE];
    wefti_conn_hello hello;
    int silent[SILENT];
    int fd = call_rank_0(r);
    assert_false(shake(fd, wrong_key, &right, &hello, recorded));
    close(fd);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fd = call_rank_0(r);
        assert_false(shake(fd, right_key, &wrong[i], &hello, recorded));
        close(fd);
    }
    /* The proof is of stream 0, and the answer names stream 1. */
    fd = call_rank_0(r);
    assert_true(read_all(fd, hello.listener, WEFTI_CONN_NONCE));
    hello.from.number = 1, hello.to.number = hello.stream = 0;
    assert_int_equal(wefti_conn_prove(right_key, "connect", &hello, recorded + WEFTI_CONN_PROOF_AT),
                     WEFT_OK);
    hello.stream = 1;
    wefti_conn_write_answer(&hello, recorded);
    assert_int_equal(send(fd, recorded, sizeof recorded, MSG_NOSIGNAL), sizeof recorded);
    assert_false(read_all(fd, challenge, 1));
    close(fd);
    for (int i = 0; i < SILENT; i++) silent[i] = call_rank_0(r);
    for (int i = 0; i < NOISE; i++) {
        size_t bytes = 1 + (size_t)pick(seed, 0, 255);
        for (size_t k = 0; k < bytes; k++) noise[k] = (unsigned char)pick(seed, 0, 255);
        fd = call_rank_0(r);
        (void)!send(fd, noise, bytes, MSG_NOSIGNAL);
        close(fd);
    }
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    /* `recorded` answers another challenge. */
    fd = call_rank_0(r);
    assert_true(read_all(fd, challenge, sizeof challenge));
    assert_int_equal(send(fd, recorded, sizeof recorded, MSG_NOSIGNAL), sizeof recorded);
    assert_false(read_all(fd, challenge, 1));
    close(fd);
}

typedef struct speaker {
    int fd[SPOKEN];
    wefti_conn_direction sends[SPOKEN];
} speaker;

/* Streams in any order. */
static void join_rank_0(rank_0 *r, speaker *out) {
    for (int i = SPOKEN - 1; i >= 0; i--) {
        unsigned char answer[WEFTI_CONN_ANSWER], up[WEFTI_CONN_PROOF];
        wefti_conn_hello hello, said = {.from.number = 1, .stream = (uint8_t)i};
        out->fd[i] = call_rank_0(r);
        assert_true(shake(out->fd[i], right_key, &said, &hello, answer));
        assert_int_equal(wefti_conn_prove(right_key, "up", &hello, up), WEFT_OK);
        assert_int_equal(wefti_conn_direction_open(&out->sends[i], up), WEFT_OK);
    }
    pthread_join(r->thread, NULL);
    if (r->status < 0) fail_msg("rank 0 has status %d", (int)r->status);
}

static void leave_rank_0(rank_0 *r, speaker *s) {
    r->transport.abandon(r->transport.context);
    r->transport.close(r->transport.context);
    for (int i = 0; i < SPOKEN; i++) {
        wefti_conn_direction_close(&s->sends[i]);
        close(s->fd[i]);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
}

/* A frame of a stream; its length. */
static size_t seal_frame(speaker *s, int stream, const wefti_mac_part *place, wefti_mac_kind kind,
                         const void *body, unsigned char *frame) {
    number(frame, place->bytes, 4);
    number(frame + 4, kind, 4);
    number(frame + 8, place->id, 8);
    number(frame + 16, place->at, 8);
    memcpy(frame + WEFTI_CONN_HEADER, body, place->bytes);
    assert_int_equal(wefti_conn_sign(&s->sends[stream], frame, frame + WEFTI_CONN_HEADER,
                                     place->bytes, frame + WEFTI_CONN_HEADER + place->bytes),
                     WEFT_OK);
    return WEFTI_CONN_HEADER + place->bytes + WEFTI_CONN_TAG;
}

/* A frame of an eager message with `text`; its length. */
static size_t make_frame(speaker *s, uint64_t tag, const char *text, unsigned char *frame) {
    wefti_mac_part whole = {tag, strlen(text), strlen(text)};
    return seal_frame(s, 0, &whole, WEFTI_MAC_DATA, text, frame);
}

static weft_status receive_text(rank_0 *r, uint64_t tag, char *out, size_t room) {
    wefti_mac_request request;
    size_t bytes = 0;
    weft_status status = r->transport.receive(r->transport.context, 1, tag, out, room, &request);
    while (status >= 0 &&
           (status = r->transport.test(r->transport.context, &request, &bytes)) == WEFT_PENDING) {
    }
    if (status >= 0) out[bytes] = '\0';
    return status;
}

static void frames(void **state) {
    (void)state;
    enum { REPEATED, CHANGED, TOO_LONG, SHORTER, OTHER_TAG, WAYS };
    numbers seed = {test_new_seed(), 0};
    for (int way = 0; way < WAYS; way++) {
        rank_0 r;
        speaker s;
        unsigned char frame[128];
        char got[64] = "nothing";
        start_rank_0(&r);
        if (way == 0) strangers(&r, &seed);
        join_rank_0(&r, &s);
        size_t bytes = make_frame(&s, 7, "right", frame);
        assert_int_equal(send(s.fd[0], frame, bytes, MSG_NOSIGNAL), bytes);
        assert_int_equal(receive_text(&r, 7, got, sizeof got - 1), WEFT_OK);
        assert_string_equal(got, "right");
        if (way != REPEATED) bytes = make_frame(&s, 7, "forged", frame);
        if (way == CHANGED)
            frame[(size_t)pick(&seed, 0, (int64_t)bytes - 1)] ^= (unsigned char)(1 << way);
        if (way == TOO_LONG) number(frame, WEFTI_CONN_BODY + 1, 4);
        if (way == SHORTER) number(frame, 3, 4);
        if (way == OTHER_TAG) number(frame + 8, 8, 8);
        assert_int_equal(send(s.fd[0], frame, bytes, MSG_NOSIGNAL), bytes);
        shutdown(s.fd[0], SHUT_WR); /* a length that was changed may ask for more */
        assert_int_equal(receive_text(&r, way == OTHER_TAG ? 8 : 7, got, sizeof got - 1),
                         WEFT_E_PEER);
        assert_string_equal(got, "right");
        leave_rank_0(&r, &s);
    }
}

/* --- parts of long messages, over two streams --- */

enum { LONG = 100000, PARTS = 64 };

typedef struct long_message {
    rank_0 r;
    speaker s;
    wefti_mac_request request;
    unsigned char sent[LONG], got[LONG], frame[WEFTI_CONN_HEADER + LONG + WEFTI_CONN_TAG];
} long_message;

static weft_status test_long(long_message *l) {
    return l->r.transport.test(l->r.transport.context, &l->request, NULL);
}

/* Rank 0 has a receive for a message, which is announced with number 5. */
static void announce(long_message *l, numbers *seed) {
    unsigned char ready[WEFTI_CONN_HEADER + WEFTI_CONN_TAG], id[8];
    wefti_mac_part announcement = {7, LONG, 8};
    start_rank_0(&l->r);
    join_rank_0(&l->r, &l->s);
    for (size_t i = 0; i < LONG; i++) l->sent[i] = (unsigned char)pick(seed, 0, 255);
    memset(l->got, 0, LONG);
    assert_int_equal(
        l->r.transport.receive(l->r.transport.context, 1, 7, l->got, LONG, &l->request), WEFT_OK);
    number(id, 5, 8);
    size_t bytes = seal_frame(&l->s, 0, &announcement, WEFTI_MAC_ANNOUNCE, id, l->frame);
    assert_int_equal(send(l->s.fd[0], l->frame, bytes, MSG_NOSIGNAL), bytes);
    while (recv(l->s.fd[0], ready, sizeof ready, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof ready)
        assert_int_equal(test_long(l), WEFT_PENDING);
    assert_true(read_all(l->s.fd[0], ready, sizeof ready));
    assert_int_equal(ready[4], WEFTI_MAC_READY);
    assert_int_equal(ready[8], 5);
}

static bool send_frame(long_message *l, int stream, const wefti_mac_part *part) {
    size_t bytes =
        seal_frame(&l->s, stream, part, WEFTI_MAC_PART, l->sent + part->at % LONG, l->frame);
    return send(l->s.fd[stream], l->frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* A message cut into random parts, which come in any order by any stream. */
static void parts_in_any_order(void **state) {
    (void)state;
    numbers seed = {test_new_seed(), 0};
    long_message *l = malloc(sizeof *l);
    assert_non_null(l);
    announce(l, &seed);
    wefti_mac_part part[PARTS];
    size_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        size_t left = LONG - at, n = (size_t)pick(&seed, 0, 2 * LONG / PARTS);
        if (n > left || i == PARTS - 1) n = left;
        part[i] = (wefti_mac_part){5, at, n};
        at += n;
    }
    for (int i = PARTS - 1; i > 0; i--) {
        int other = (int)pick(&seed, 0, i);
        wefti_mac_part swapped = part[i];
        part[i] = part[other];
        part[other] = swapped;
    }
    for (int i = 0; i < PARTS; i++) {
        assert_true(send_frame(l, (int)pick(&seed, 0, SPOKEN - 1), &part[i]));
        (void)!test_long(l);
    }
    weft_status status;
    while ((status = test_long(l)) == WEFT_PENDING) {
    }
    assert_int_equal(status, WEFT_OK);
    assert_memory_equal(l->got, l->sent, LONG);
    leave_rank_0(&l->r, &l->s);
    free(l);
}

/* A further stream that ends, lies, or says what belongs to the first: the pair is lost, with a
 * message that names the stream, and nothing is written beyond the message. */
static void bad_streams(void **state) {
    (void)state;
    enum { ENDS, CHANGED, REPEATED, OTHER_STREAM, BEYOND, FAR, OVERLAP, NO_PART, WAYS };
    static const char *const said[WAYS] = {"connection closed",      "was changed on its way",
                                           "was changed on its way", "was changed on its way",
                                           "beyond its message",     "beyond its message",
                                           "beyond its message",     "of another stream"};
    numbers seed = {test_new_seed(), 0};
    long_message *l = malloc(sizeof *l);
    assert_non_null(l);
    for (int way = 0; way < WAYS; way++) {
        wefti_mac_part half = {5, 0, LONG / 2}, rest = {5, LONG / 2, LONG / 4};
        announce(l, &seed);
        assert_true(send_frame(l, 1, &half));
        size_t bytes = WEFTI_CONN_HEADER + half.bytes + WEFTI_CONN_TAG; /* of the frame before */
        if (way == BEYOND) rest.bytes = LONG / 2 + 1, rest.at = LONG / 2 - 1;
        if (way == FAR) rest.at = UINT64_MAX - 5;
        if (way == OVERLAP) rest.at = 0, rest.bytes = LONG / 2 + 1;
        if (way > REPEATED)
            bytes = seal_frame(&l->s, way == OTHER_STREAM ? 0 : 1, &rest,
                               way == NO_PART ? WEFTI_MAC_DATA : WEFTI_MAC_PART, l->sent, l->frame);
        if (way == CHANGED) {
            bytes = seal_frame(&l->s, 1, &rest, WEFTI_MAC_PART, l->sent, l->frame);
            l->frame[pick(&seed, 4, (int64_t)bytes - 1)] ^= 4;
        }
        if (way != ENDS) assert_int_equal(send(l->s.fd[1], l->frame, bytes, MSG_NOSIGNAL), bytes);
        shutdown(l->s.fd[1], SHUT_WR);
        weft_status status;
        while ((status = test_long(l)) == WEFT_PENDING) {
        }
        assert_int_equal(status, WEFT_E_PEER);
        if (!strstr(weft_error_message(), said[way]) ||
            !strstr(weft_error_message(), "stream 1 of 2"))
            fail_msg("way %d: '%s'", way, weft_error_message());
        leave_rank_0(&l->r, &l->s);
    }
    free(l);
}

/* The table of docs/design/data-plane.md. */
static void streams_fill_a_link(void **state) {
    (void)state;
    static const struct {
        double gigabits;
        int cores;
        int32_t ranks, mac, tls;
    } row[] = {{0, 64, 1, 1, 1},   {10, 16, 1, 1, 1},   {25, 16, 1, 2, 3},  {100, 16, 1, 5, 8},
               {100, 16, 4, 2, 2}, {400, 128, 8, 3, 5}, {400, 16, 8, 1, 1}, {100, 1, 4, 1, 1}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        assert_int_equal(wefti_mac_streams_for(row[i].gigabits, row[i].cores, row[i].ranks, false),
                         row[i].mac);
        assert_int_equal(wefti_mac_streams_for(row[i].gigabits, row[i].cores, row[i].ranks, true),
                         row[i].tls);
    }
    assert_true(wefti_interface_speed("lo") == 0); /* which has none */
    assert_true(wefti_interface_speed("") == 0 && wefti_interface_speed("../lo") == 0);
}

static int begin_streams(void **state) {
    (void)state;
    streams = 3;
    wefti_mac_used = (wefti_mac_sizes){.eager = 1000, .split = 2000, .part = 700};
    return 0;
}
static int begin_encrypted_streams(void **state) {
    encrypts = true;
    return begin_streams(state);
}
static int begin_encrypted(void **state) {
    (void)state;
    encrypts = true;
    return 0;
}
static int end_form(void **state) {
    (void)state;
    encrypts = false;
    streams = 1;
    wefti_mac_used = (wefti_mac_sizes){WEFTI_MAC_EAGER, 1 << 20, WEFTI_CONN_BODY};
    return 0;
}
#define ENCRYPTED(test)                                                                            \
    { #test " encrypted", test, begin_encrypted, end_form, NULL }
#define STREAMS(test)                                                                              \
    {#test " in streams", test, begin_streams, end_form, NULL}, {                                  \
#test " encrypted in streams", test, begin_encrypted_streams, end_form, NULL               \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(late_connectors),
        cmocka_unit_test(who_is_killed_is_named),
        ENCRYPTED(random_scripts),
        ENCRYPTED(broken_scripts),
        ENCRYPTED(late_connectors),
        ENCRYPTED(who_is_killed_is_named),
        STREAMS(random_scripts),
        STREAMS(broken_scripts),
        STREAMS(who_is_killed_is_named),
        cmocka_unit_test(frames),
        cmocka_unit_test(parts_in_any_order),
        cmocka_unit_test(bad_streams),
        cmocka_unit_test(streams_fill_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void) {
    printf("SKIP: this build has no OpenSSL, which signs messages\n");
    return 77;
}
#endif
