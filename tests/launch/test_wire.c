/* Frames and messages: what was sent arrives, and nothing else does. */
#include "support.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control_cases.h"
#include "launch/wire/wire.h"
#include "launch/socket.h"

static wefti_wire_stream stream(bool from_scheduler) {
    wefti_wire_stream s = {.from_scheduler = from_scheduler};
    memset(s.key, 7, sizeof s.key);
    return s;
}

static size_t build(wefti_wire_stream *s, wefti_frame_kind kind, size_t bytes, unsigned char *out) {
    for (size_t i = 0; i < bytes; i++) out[WEFTI_FRAME_HEADER + i] = (unsigned char)(i * 31 + 5);
    wefti_frame_seal(s, kind, bytes, out);
    return bytes + WEFTI_FRAME_EXTRA;
}

/* The example of docs/reference/format-wire.md. */
static void as_documented(void **state) {
    (void)state;
    static const unsigned char head[WEFTI_FRAME_HEADER] = {3, 0, 0, 0, 4, 0, 0, 0,
                                                           0, 0, 0, 0, 0, 0, 0, 0};
    unsigned char data[3 + WEFTI_FRAME_EXTRA], mac[WEFTI_FRAME_MAC];
    wefti_wire_stream s = stream(false);
    memcpy(data + WEFTI_FRAME_HEADER, "abc", 3);
    wefti_frame_seal(&s, WEFTI_FRAME_FAIL, 3, data);
    assert_memory_equal(data, head, sizeof head);
    wefti_hmac_own(s.key, sizeof s.key, data, WEFTI_FRAME_HEADER + 3, mac);
    assert_memory_equal(data + WEFTI_FRAME_HEADER + 3, mac, sizeof mac);
    char text[2 * WEFTI_FRAME_MAC + 1];
    for (int i = 0; i < WEFTI_FRAME_MAC; i++) snprintf(text + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, "bc515c48dc4e808dcc9a1031ce66d0a292044b181a36d54df7ec077bbc2360a0");
    assert_int_equal(s.number, 1);
}

static void arrives_in_any_pieces(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    wefti_wire_stream out = stream(false), in = stream(false);
    unsigned char data[8192];
    size_t used = 0, sizes[20];
    for (int i = 0; i < 20; i++) {
        sizes[i] = test_random(&seed) % 200;
        used += build(&out, WEFTI_FRAME_BEAT, sizes[i], data + used);
    }
    size_t at = 0, known = 0;
    for (int i = 0; i < 20;) {
        wefti_frame frame;
        size_t taken;
        /* Exactly as many bytes as have come lie there: reading on is seen by the sanitizer. */
        size_t have = known - at;
        unsigned char *copy = malloc(have ? have : 1);
        assert_non_null(copy);
        memcpy(copy, data + at, have);
        weft_status status = wefti_frame_parse(&in, copy, have, &frame, &taken);
        if (status == WEFT_PENDING) {
            assert_true(known < used);
            known += 1 + test_random(&seed) % 40;
            if (known > used) known = used;
        } else {
            assert_int_equal(status, WEFT_OK);
            assert_int_equal(frame.bytes, sizes[i]);
            assert_memory_equal(frame.body, data + at + WEFTI_FRAME_HEADER, frame.bytes);
            at += taken;
            i++;
        }
        free(copy);
    }
    assert_int_equal(at, used);
}

/* Any bit of a frame may change, any frame come twice, late, or the wrong way. */
static void nothing_else_arrives(void **state) {
    (void)state;
    unsigned char data[40 + WEFTI_FRAME_EXTRA], two[40 + WEFTI_FRAME_EXTRA];
    wefti_frame frame;
    size_t taken;
    wefti_wire_stream out = stream(false);
    size_t bytes = build(&out, WEFTI_FRAME_BEAT, 40, data);
    build(&out, WEFTI_FRAME_BEAT, 40, two);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        wefti_wire_stream in = stream(false);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        weft_status status = wefti_frame_parse(&in, data, bytes, &frame, &taken);
        /* A longer length waits for more, and is found out then. */
        if (bit >= 32 || status != WEFT_PENDING) assert_int_equal(status, WEFT_E_CORRUPT);
        assert_int_equal(in.number, 0);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    wefti_wire_stream in = stream(false), other = stream(true), stranger = stream(false);
    stranger.key[0] ^= 1;
    assert_int_equal(wefti_frame_parse(&in, two, bytes, &frame, &taken), WEFT_E_CORRUPT);
    assert_int_equal(wefti_frame_parse(&other, data, bytes, &frame, &taken), WEFT_E_CORRUPT);
    assert_int_equal(wefti_frame_parse(&stranger, data, bytes, &frame, &taken), WEFT_E_CORRUPT);
    assert_int_equal(wefti_frame_parse(&in, data, bytes, &frame, &taken), WEFT_OK);
    assert_int_equal(wefti_frame_parse(&in, data, bytes, &frame, &taken), WEFT_E_CORRUPT);
    assert_int_equal(wefti_frame_parse(&in, two, bytes, &frame, &taken), WEFT_OK);
}

static void lengths_are_limited(void **state) {
    (void)state;
    static const struct {
        wefti_frame_kind kind;
        bool from_scheduler;
        uint32_t limit;
    } all[] = {
#define LIMIT_ROW(name, from, most) {WEFTI_FRAME_##name, from, most},
        WEFTI_FRAME_LIST(LIMIT_ROW)
#undef LIMIT_ROW
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (uint32_t over = 0; over < 2; over++) {
            uint32_t length = all[i].limit + over;
            unsigned char head[WEFTI_FRAME_HEADER] = {0};
            for (int b = 0; b < 4; b++) head[b] = (unsigned char)(length >> 8 * b);
            head[4] = (unsigned char)all[i].kind;
            wefti_wire_stream in = stream(all[i].from_scheduler);
            wefti_frame frame;
            size_t taken;
            assert_int_equal(wefti_frame_parse(&in, head, sizeof head, &frame, &taken),
                             over ? WEFT_E_CORRUPT : WEFT_PENDING);
        }
    }
}

static wefti_frame frame_of(wefti_frame_kind kind, const unsigned char *body, size_t bytes) {
    return (wefti_frame){.kind = kind, .body = body, .bytes = bytes};
}

static void messages_return(void **state) {
    (void)state;
    unsigned char body[WEFTI_MESSAGE_MAX];
    wefti_join join = {.generation = 1ull << 60,
                       .number = 6,
                       .size = 4,
                       .pid = 12345,
                       .launcher = 5},
               join_back;
    join.whole = (wefti_vote_place){join.generation - 2, 2, 3};
    join.said = (wefti_vote_place){join.generation - 1, 4, 5};
    join.numbers = 7;
    join.used = 5;
    join.deaths = 2;
    join.armed = join.leaves = join.arms = true;
    strcpy(join.job, "a job");
    memset(join.node, 'n', WEFTI_NAME_MAX);
    wefti_frame f = frame_of(WEFTI_FRAME_JOIN, body, wefti_join_encode(&join, body));
    assert_int_equal(wefti_join_decode(&f, &join_back), WEFT_OK);
    assert_string_equal(join_back.node, join.node);
    assert_string_equal(join_back.host, "");
    assert_true(join_back.generation == join.generation && join_back.number == 6 &&
                join_back.size == 4 && join_back.pid == 12345 && join_back.launcher == 5);
    assert_memory_equal(&join_back.whole, &join.whole, sizeof join.whole);
    assert_memory_equal(&join_back.said, &join.said, sizeof join.said);
    assert_true(join_back.numbers == 7 && join_back.used == 5 && join_back.deaths == 2);
    assert_true(join_back.armed && !join_back.mends && join_back.leaves && join_back.arms);
    const wefti_join good = join;
    for (int wrong = 0; wrong < 6; wrong++) {
        join = good;
        if (wrong == 0) join.said.generation = join.generation + 1; /* a world of the future */
        if (wrong == 1) join.said = join.whole; /* which it knows to have been whole */
        if (wrong == 2) join.whole.rank = 3;    /* of three */
        if (wrong == 3) join.whole.generation = 0;
        if (wrong == 4) join.numbers = 6; /* its own was not given */
        if (wrong == 5) join.number = -1;
        f = frame_of(WEFTI_FRAME_JOIN, body, wefti_join_encode(&join, body));
        assert_int_equal(wefti_join_decode(&f, &join_back), WEFT_E_CORRUPT);
    }

    wefti_standing standing = {
        .step = 9, .done = 77, .waiting = true, .since_ns = 1000, .moved_ns = 3000};
    wefti_standing back;
    strcpy(standing.what, "all_reduce of wte");
    f = frame_of(WEFTI_FRAME_BEAT, body, wefti_beat_encode(&standing, 5000, body));
    assert_int_equal(wefti_beat_decode(&f, 905000, &back), WEFT_OK);
    assert_true(back.step == 9 && back.done == 77 && back.waiting && back.since_ns == 901000);
    assert_int_equal(back.moved_ns, 903000);
    assert_string_equal(back.what, standing.what);

    wefti_abort_reason reason;
    char longer[WEFTI_TEXT_MAX + 50];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    longer[5] = '\n'; /* shown as a blank */
    f = frame_of(WEFTI_FRAME_ABORT, body, wefti_abort_reason_encode(WEFT_E_PEER, 7, longer, body));
    assert_int_equal(wefti_abort_reason_decode(&f, &reason), WEFT_OK);
    assert_int_equal(reason.status, WEFT_E_PEER);
    assert_int_equal(reason.failed, 7);
    assert_int_equal(strlen(reason.text), WEFTI_TEXT_MAX);
    assert_int_equal(reason.text[5], ' ');
    f = frame_of(WEFTI_FRAME_ABORT, body,
                 wefti_abort_reason_encode(WEFT_E_PEER, WEFT_RANK_NONE - 1, "", body));
    assert_int_equal(wefti_abort_reason_decode(&f, &reason), WEFT_E_CORRUPT); /* no rank */
    f = frame_of(WEFTI_FRAME_ABORT, body, wefti_abort_reason_encode(WEFT_OK, 0, "", body));
    assert_int_equal(wefti_abort_reason_decode(&f, &reason), WEFT_E_CORRUPT); /* no failure */

    wefti_world_message placed = {.generation = 5,
                                  .rank = 2,
                                  .size = 3,
                                  .first_size = 4,
                                  .numbers = 6,
                                  .whole = 4,
                                  .hosted_by = -1,
                                  .heartbeat_ns = 1,
                                  .used = 4,
                                  .deaths = 3,
                                  .failed = 1,
                                  .text = "rank 1 died"},
                        placed_back;
    const wefti_seated seats[] = {{0, 0}, {1, 5}, {1, 2}};
    wefti_seated *seats_back;
    unsigned char *large;
    size_t bytes;
    assert_int_equal(wefti_world_message_encode(&placed, seats, &large, &bytes), WEFT_OK);
    f = frame_of(WEFTI_FRAME_WORLD, large, bytes);
    assert_int_equal(wefti_world_message_decode(&f, &placed_back, &seats_back), WEFT_OK);
    assert_memory_equal(seats, seats_back, sizeof seats);
    assert_true(placed_back.first_size == 4 && placed_back.numbers == 6 && placed_back.whole == 4);
    assert_true(placed_back.used == 4 && placed_back.deaths == 3 && placed_back.failed == 1);
    assert_string_equal(placed_back.text, placed.text);
    wefti_free(seats_back);
    for (size_t i = 0; i < bytes; i++) { /* cut anywhere: refused, and nothing leaks */
        f.bytes = i;
        assert_int_equal(wefti_world_message_decode(&f, &placed_back, &seats_back), WEFT_E_CORRUPT);
    }
    f.bytes = bytes;
    large[bytes - WEFTI_SEATED_BYTES] = 3; /* host 3 of three ranks */
    assert_int_equal(wefti_world_message_decode(&f, &placed_back, &seats_back), WEFT_E_CORRUPT);
    large[bytes - WEFTI_SEATED_BYTES] = 1;
    large[bytes - 8] = 5; /* process 5 twice */
    assert_int_equal(wefti_world_message_decode(&f, &placed_back, &seats_back), WEFT_E_CORRUPT);
    large[bytes - 8] = 6; /* which was not given */
    assert_int_equal(wefti_world_message_decode(&f, &placed_back, &seats_back), WEFT_E_CORRUPT);
    wefti_free(large);
}

/* What a member has called comes back as it was, as much of it as there may be; and nothing is that
 * too. */
static void records_come_back(void **state) {
    (void)state;
    static wefti_call_records all, back;
    for (all.count = 0; all.count <= WEFTI_CALL_RECORDS; all.count += 64) {
        for (int i = 0; i < all.count; i++) {
            all.of[i].ranks = (uint64_t)i * 7;
            all.of[i].other = i % 3 - 1;
            all.of[i].side = i % 3;
            all.of[i].calls = 1;
            all.of[i].digest = ~0ull;
            memset(all.of[i].text, 'a', (size_t)i % WEFTI_CALL_TEXT);
        }
        unsigned char *body;
        size_t bytes;
        assert_int_equal(wefti_records_encode(all.count ? &all : NULL, &body, &bytes), WEFT_OK);
        wefti_frame f = frame_of(WEFTI_FRAME_LEAVE, body, bytes);
        memset(&back, 0, sizeof back);
        assert_int_equal(wefti_records_decode(&f, &back), WEFT_OK);
        assert_int_equal(back.count, all.count);
        assert_memory_equal(back.of, all.of, (size_t)all.count * sizeof all.of[0]);
        if (bytes > 0) {
            f.bytes = bytes - 1;
            assert_int_equal(wefti_records_decode(&f, &back), WEFT_E_CORRUPT);
        }
        wefti_free(body);
    }
}

/* Ranks of one host need not be neighbors. */
static void hosts_come_back(void **state) {
    (void)state;
    const wefti_seated seats[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {1, 6}, {0, 5}, {2, 4}};
    const int32_t ranks = 7;
    const wefti_hosts said = {.generation = 9, .size = ranks};
    wefti_hosts back;
    wefti_seated *seats_back;
    unsigned char *body;
    size_t bytes;
    assert_int_equal(wefti_hosts_encode(&said, seats, &body, &bytes), WEFT_OK);
    assert_int_equal(bytes, 8 + 5 * WEFTI_SEATED_BYTES);
    wefti_frame f = frame_of(WEFTI_FRAME_HOSTS, body, bytes);
    assert_int_equal(wefti_hosts_decode(&f, &back, &seats_back), WEFT_OK);
    assert_true(back.generation == 9 && back.size == ranks);
    assert_memory_equal(seats_back, seats, sizeof seats);
    wefti_free(seats_back);
    for (f.bytes = 0; f.bytes < bytes; f.bytes++) { /* whole runs are a smaller world */
        if (f.bytes > 8 && (f.bytes - 8) % WEFTI_SEATED_BYTES == 0) continue;
        assert_int_equal(wefti_hosts_decode(&f, &back, &seats_back), WEFT_E_CORRUPT);
    }
    f.bytes = bytes;
    body[16] = 0; /* a run of no ranks */
    assert_int_equal(wefti_hosts_decode(&f, &back, &seats_back), WEFT_E_CORRUPT);
    body[16] = 2;
    body[8] = 7; /* a host too many */
    assert_int_equal(wefti_hosts_decode(&f, &back, &seats_back), WEFT_E_CORRUPT);
    memcpy(body + 8, "\xff\xff\xff\x7f", 4); /* INT32_MAX */
    assert_int_equal(wefti_hosts_decode(&f, &back, &seats_back), WEFT_E_CORRUPT);
    wefti_free(body);
}

/* What ranks and the scheduler say while a world is mended. */
static void mending_comes_back(void **state) {
    (void)state;
    unsigned char body[WEFTI_MESSAGE_MAX], *large;
    wefti_halt halt = {.generation = 9, .failed = 3, .used = 6, .text = "rank 3 died"}, halt_back;
    size_t bytes = wefti_halt_encode(&halt, body);
    wefti_frame f = frame_of(WEFTI_FRAME_HALT, body, bytes);
    assert_int_equal(wefti_halt_decode(&f, &halt_back), WEFT_OK);
    assert_true(halt_back.generation == 9 && halt_back.failed == 3 && halt_back.used == 6);
    assert_string_equal(halt_back.text, halt.text);
    for (f.bytes = 0; f.bytes < bytes; f.bytes++)
        assert_int_equal(wefti_halt_decode(&f, &halt_back), WEFT_E_CORRUPT);

    const int32_t holds[] = {0, 2, 5};
    wefti_stand stands = {.step = 12, .ready = true, .holds = holds, .holds_count = 3}, back_at;
    uint64_t generation;
    int32_t *held;
    assert_int_equal(wefti_standing_encode(9, &stands, &large, &bytes), WEFT_OK);
    f = frame_of(WEFTI_FRAME_STANDING, large, bytes);
    assert_int_equal(wefti_standing_decode(&f, 6, &generation, &back_at, &held), WEFT_OK);
    assert_true(generation == 9 && back_at.step == 12 && back_at.ready);
    assert_int_equal(back_at.holds_count, 3);
    assert_memory_equal(held, holds, sizeof holds);
    wefti_free(held);
    assert_int_equal(wefti_standing_decode(&f, 5, &generation, &back_at, &held), WEFT_E_CORRUPT);
    large[28] = 0; /* rank 0 twice */
    assert_int_equal(wefti_standing_decode(&f, 6, &generation, &back_at, &held), WEFT_E_CORRUPT);
    for (f.bytes = 0; f.bytes < bytes; f.bytes++)
        assert_int_equal(wefti_standing_decode(&f, 6, &generation, &back_at, &held),
                         WEFT_E_CORRUPT);
    wefti_free(large);
    stands = (wefti_stand){.step = -1, .ready = true};
    assert_int_equal(wefti_standing_encode(9, &stands, &large, &bytes), WEFT_OK);
    f = frame_of(WEFTI_FRAME_STANDING, large, bytes);
    assert_int_equal(wefti_standing_decode(&f, 6, &generation, &back_at, &held), WEFT_E_CORRUPT);
    wefti_free(large);

    const wefti_mend_rank ranks[] = {{-1, 0}, {0, 3}, {-2, -1}};
    const wefti_seated who[] = {{0, 0}, {1, 3}, {0, 4}};
    wefti_mend_rank *back;
    wefti_seated *who_back;
    wefti_mend_message mend = {.generation = 10,
                               .target = 4,
                               .rank = 2,
                               .size = 3,
                               .resized = true,
                               .numbers = 5},
                       mend_back;
    assert_int_equal(wefti_mend_encode(&mend, ranks, who, &large, &bytes), WEFT_OK);
    f = frame_of(WEFTI_FRAME_MEND, large, bytes);
    assert_int_equal(wefti_mend_decode(&f, &mend_back, &back, &who_back), WEFT_OK);
    assert_true(mend_back.generation == 10 && mend_back.target == 4 && mend_back.rank == 2 &&
                mend_back.size == 3 && mend_back.resized && mend_back.numbers == 5);
    assert_memory_equal(ranks, back, sizeof ranks);
    assert_memory_equal(who, who_back, sizeof who);
    wefti_free(back);
    wefti_free(who_back);
    for (f.bytes = 0; f.bytes < bytes; f.bytes++)
        assert_int_equal(wefti_mend_decode(&f, &mend_back, &back, &who_back), WEFT_E_CORRUPT);
    f.bytes = bytes;
    large[40] = 1; /* rank 1 gives its own state */
    assert_int_equal(wefti_mend_decode(&f, &mend_back, &back, &who_back), WEFT_E_CORRUPT);
    wefti_free(large);

    wefti_arm arm = {.least = 2, .patience_s = 60}, arm_back;
    unsigned char arm_body[WEFTI_ARM_BYTES];
    for (int most = 0; most <= 8; most += 8) {
        arm.most = most;
        arm.fits[0] = 0x14;
        arm.fits[1] = 1;
        f = frame_of(WEFTI_FRAME_ARM, arm_body, wefti_arm_encode(&arm, arm_body));
        assert_int_equal(f.bytes, most ? 14 : 12);
        assert_int_equal(wefti_arm_decode(&f, &arm_back), WEFT_OK);
        assert_true(arm_back.least == 2 && arm_back.patience_s == 60 && arm_back.most == most);
        if (most) assert_memory_equal(arm_back.fits, arm.fits, 2);
        f.bytes--;
        assert_int_equal(wefti_arm_decode(&f, &arm_back), WEFT_E_CORRUPT);
    }

    wefti_generation_encode(77, body);
    f = frame_of(WEFTI_FRAME_WHOLE, body, WEFTI_GENERATION_BYTES);
    assert_int_equal(wefti_generation_decode(&f, &generation), WEFT_OK);
    assert_true(generation == 77);
    wefti_generation_encode(0, body);
    assert_int_equal(wefti_generation_decode(&f, &generation), WEFT_E_CORRUPT);
    int32_t used;
    wefti_go_encode(78, 3, body);
    f = frame_of(WEFTI_FRAME_GO, body, WEFTI_GO_BYTES);
    assert_int_equal(wefti_go_decode(&f, &generation, &used), WEFT_OK);
    assert_true(generation == 78 && used == 3);
    wefti_go_encode(78, -1, body);
    assert_int_equal(wefti_go_decode(&f, &generation, &used), WEFT_E_CORRUPT);
}

/* How a job does. */
static void health_comes_back(void **state) {
    (void)state;
    static wefti_job_health job = {.state = WEFTI_JOB_RUNNING,
                                   .generation = 9,
                                   .size = 2,
                                   .here = 2,
                                   .restarts = 5,
                                   .heartbeat_ns = 1000,
                                   .text = "rank 1 died",
                                   .ranks = 2},
                            back;
    const wefti_rank_health rank[2] = {
        {.state = WEFT_HEALTH_STEPPING, .host = 0, .step = 7, .heard_ns = 5, .step_ns = 6},
        {.state = WEFT_HEALTH_LEAVING, .host = 1, .step = INT64_MAX, .pace_ns = 8}};
    wefti_rank_health *rank_back;
    unsigned char *body;
    size_t bytes;
    assert_int_equal(wefti_health_encode(&job, rank, &body, &bytes), WEFT_OK);
    wefti_frame f = frame_of(WEFTI_FRAME_STATE, body, bytes);
    assert_int_equal(wefti_health_decode(&f, &back, &rank_back), WEFT_OK);
    assert_memory_equal(&job, &back, sizeof job);
    assert_memory_equal(rank, rank_back, sizeof rank);
    wefti_free(rank_back);
    for (f.bytes = 0; f.bytes < bytes; f.bytes++)
        assert_int_equal(wefti_health_decode(&f, &back, &rank_back), WEFT_E_CORRUPT);
    body[bytes - 2 * WEFTI_STATE_RANK] = WEFT_HEALTH_LEAVING + 1; /* a state that there is not */
    assert_int_equal(wefti_health_decode(&f, &back, &rank_back), WEFT_E_CORRUPT);
    wefti_free(body);
}

/* Bodies that no encoder made, from the right key: every decoder says no, or keeps its promises. */
static void bodies_are_checked(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    unsigned char body[WEFTI_MESSAGE_MAX];
    for (int round = 0; round < 100000; round++) {
        wefti_join join = {.number = (int32_t)(round % 9) - 1, .size = 8, .pid = 1, .node = "n"};
        size_t bytes = wefti_join_encode(&join, body);
        if (round % 5 == 1) {
            wefti_standing standing = {.what = "all_gather of h.1"};
            bytes = wefti_beat_encode(&standing, 100, body);
        } else if (round % 5 == 2) {
            bytes = wefti_abort_reason_encode(WEFT_E_PEER, 1, "words", body);
        } else if (round % 5 == 3) {
            bytes = wefti_end_encode(&(wefti_end){.rank = 3, .code = 7, .text = "words"}, body);
        } else if (round % 5 == 4)
            bytes = wefti_span_encode(&(wefti_span){4, 4}, body);
        for (uint64_t n = 1 + test_random(&seed) % 3; n > 0; n--)
            body[test_random(&seed) % bytes] = (unsigned char)test_random(&seed);
        if (test_random(&seed) % 4 == 0) bytes = test_random(&seed) % (bytes + 1);
        wefti_frame f = frame_of(WEFTI_FRAME_JOIN, body, bytes);
        wefti_standing standing;
        wefti_abort_reason reason;
        wefti_end end;
        wefti_span span;
        wefti_entry card;
        if (wefti_join_decode(&f, &join) >= 0)
            assert_true(join.number >= -1 && join.number < WEFTI_RANKS_MAX && join.pid > 0 &&
                        strlen(join.node) <= WEFTI_NAME_MAX);
        if (wefti_beat_decode(&f, 100, &standing) >= 0)
            assert_true(standing.step >= 0 && strlen(standing.what) < WEFTI_POSITION_TEXT);
        if (wefti_abort_reason_decode(&f, &reason) >= 0)
            assert_true(reason.status < 0 && reason.failed >= WEFT_RANK_NONE &&
                        strlen(reason.text) <= WEFTI_TEXT_MAX);
        if (wefti_end_decode(&f, &end) >= 0)
            assert_true(end.rank >= 0 && end.rank < WEFTI_RANKS_MAX && !(end.code && end.signal) &&
                        strlen(end.text) <= WEFTI_TEXT_MAX);
        static wefti_call_records records;
        if (wefti_records_decode(&f, &records) >= 0)
            assert_true(records.count <= WEFTI_CALL_RECORDS);
        if (wefti_span_decode(&f, &span) >= 0) assert_true(span.first >= 0 && span.count > 0);
        if (wefti_entry_decode(&f, 1, &card) >= 0)
            assert_true(card.bytes + WEFTI_ENTRY_HEAD == bytes);
    }
}

/* Lost data is retransmitted every second, however long the network was gone. */
static void connections_that_try_often(void **state) {
    (void)state;
    enum { LONGEST_PAUSE = 44 }; /* TCP_RTO_MAX_MS, of Linux 6.15 */
    wefti_address at;
    int listener, near, far, milliseconds = 0;
    socklen_t bytes = sizeof milliseconds;
    assert_int_equal(wefti_address_local("127.0.0.1", 0, &at), WEFT_OK);
    assert_int_equal(wefti_listen(&at, &listener), WEFT_OK);
    assert_true(wefti_connect(&at, "", &near) >= 0);
    wefti_socket_watch(near, 100);
    if (getsockopt(near, IPPROTO_TCP, LONGEST_PAUSE, &milliseconds, &bytes) == 0)
        assert_int_equal(milliseconds, 1000);
    else
        print_message("SKIP: this system cannot be told so\n");
    assert_false(wefti_socket_is_remote(near));
    /* From one address to another. */
    far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000002)};
    assert_int_equal(bind(far, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(far, (struct sockaddr *)&at.at, at.bytes), 0);
    assert_true(wefti_socket_is_remote(far));
    close(far);
    close(near);
    close(listener);
}

/* An interface more, in front of the others. */
typedef struct port {
    struct ifaddrs base;
    wefti_address address;
} port;
static struct ifaddrs *plug(port *p, const char *text, unsigned flags, struct ifaddrs *others) {
    p->base = (struct ifaddrs){.ifa_next = others, .ifa_flags = flags};
    if (!text) return &p->base; /* it has no address */
    assert_int_equal(wefti_address_local(text, 0, &p->address), WEFT_OK);
    p->base.ifa_addr = (struct sockaddr *)&p->address.at;
    return &p->base;
}

/* Even without IPv4, others get an address that reaches this machine. */
static void addresses_that_others_reach(void **state) {
    (void)state;
    port p[8];
    wefti_outward out;
    wefti_outward_of(NULL, &out);
    assert_string_equal(out.text[0], "");
    assert_string_equal(out.text[1], "");
    struct ifaddrs *all = plug(&p[0], "fd00::2", IFF_UP, NULL);
    all = plug(&p[1], "fd00::1", IFF_UP, all);
    all = plug(&p[2], "fe80::1", IFF_UP, all);
    all = plug(&p[3], "::1", IFF_UP | IFF_LOOPBACK, all);
    all = plug(&p[4], "10.0.0.7", 0, all);
    all = plug(&p[5], "127.0.0.1", IFF_UP | IFF_LOOPBACK, all);
    all = plug(&p[6], NULL, IFF_UP, all);
    wefti_outward_of(all, &out);
    assert_string_equal(out.text[0], "");
    assert_string_equal(out.text[1], "fd00::1");
    wefti_outward_of(plug(&p[7], "10.0.0.8", IFF_UP, all), &out);
    assert_string_equal(out.text[0], "10.0.0.8");
    assert_string_equal(out.text[1], "fd00::1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_try_often),
        cmocka_unit_test(as_documented),
        cmocka_unit_test(arrives_in_any_pieces),
        cmocka_unit_test(nothing_else_arrives),
        cmocka_unit_test(lengths_are_limited),
        cmocka_unit_test(messages_return),
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(mending_comes_back),
        cmocka_unit_test(hosts_come_back),
        cmocka_unit_test(health_comes_back),
        cmocka_unit_test(bodies_are_checked),
        cmocka_unit_test(addresses_that_others_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
