/* One body for many connections: a thousand members that do not read share one block of memory.
 * Each receives the bytes and order that a copy of its own would have brought. */
#include "support.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/wire/wire.h"
#include "sanitized.h"

enum { MEMBERS = 1024, BODY = 64 << 10, BUFFER = 4096 };

typedef struct pair {
    wefti_wire scheduler, member;
} pair;

/* As after the handshake. */
static void open_pair(pair *p, int number) {
    int fd[2], bytes = BUFFER;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    *p = (pair){.scheduler = {.fd = fd[0], .scheduler = true, .phase = WEFTI_WIRE_OPEN},
                .member = {.fd = fd[1], .phase = WEFTI_WIRE_OPEN}};
    wefti_wire_stream s = {.from_scheduler = true};
    memset(s.key, number % 251, sizeof s.key);
    p->scheduler.sends = p->member.receives = s;
}
static void close_pair(pair *p) {
    wefti_wire_close(&p->scheduler);
    wefti_wire_close(&p->member);
}

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Both sides in turn, until a frame is whole. */
static wefti_frame next_frame(pair *p) {
    wefti_frame frame;
    weft_status status;
    while ((status = wefti_wire_next(&p->member, &frame)) == WEFT_PENDING) {
        assert_true(wefti_wire_flush(&p->scheduler) >= 0);
        assert_true(wefti_wire_fill(&p->member) >= 0);
    }
    assert_int_equal(status, WEFT_OK);
    return frame;
}

static void expect(pair *p, wefti_frame_kind kind, const void *body, size_t bytes) {
    wefti_frame frame = next_frame(p);
    assert_int_equal(frame.kind, kind);
    assert_int_equal(frame.bytes, bytes);
    if (bytes) assert_memory_equal(frame.body, body, bytes);
}

/* Two descriptors each; fewer members where the system gives fewer. */
static int members_that_fit(void) {
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    rlim_t fit = (files.rlim_cur - 32) / 2;
    if (fit < MEMBERS) print_message("only %d members: no more descriptors\n", (int)fit);
    return fit < MEMBERS ? (int)fit : MEMBERS;
}

static void a_thousand_hold_one_block(void **state) {
    (void)state;
    int members = members_that_fit();
    pair *all = calloc((size_t)members, sizeof *all);
    wefti_shared_body *block;
    assert_non_null(all);
    for (int i = 0; i < members; i++) open_pair(&all[i], i);
    size_t before = allocated();
    assert_int_equal(wefti_shared_body_create(BODY, &block), WEFT_OK);
    for (int i = 0; i < BODY; i++)
        wefti_shared_body_data(block)[i] = (unsigned char)(i * 7 + i / 256);
    for (int i = 0; i < members; i++) {
        wefti_wire *w = &all[i].scheduler;
        assert_int_equal(wefti_wire_send(w, WEFTI_FRAME_HEARD, NULL, 0, NULL, 0), WEFT_OK);
        assert_int_equal(wefti_wire_send_shared(w, WEFTI_FRAME_ENTRIES, block), WEFT_OK);
        assert_int_equal(wefti_wire_send(w, WEFTI_FRAME_ABORT, "words", 5, NULL, 0), WEFT_OK);
        assert_true(wefti_wire_wants_to_write(w)); /* the socket does not take it all */
        if (i % 3 == 0) assert_int_equal(wefti_wire_send_shared(w, WEFTI_FRAME_ENTRIES, block), 0);
    }
    size_t each = (allocated() - before - BODY) / (size_t)members;
    if (!SANITIZED && (each == 0 || each > 8192)) /* 4096 of these are the connection's own */
        fail_msg("%zu bytes for each of %d members", each, members);
    assert_int_equal(block->holders, 1 + members + (members + 2) / 3);
    for (int i = 0; i < members; i++) {
        expect(&all[i], WEFTI_FRAME_HEARD, NULL, 0);
        if (i % 5 == 4) { /* one that goes away in the middle */
            close_pair(&all[i]);
            continue;
        }
        expect(&all[i], WEFTI_FRAME_ENTRIES, wefti_shared_body_data(block), BODY);
        expect(&all[i], WEFTI_FRAME_ABORT, "words", 5);
        if (i % 3 == 0) expect(&all[i], WEFTI_FRAME_ENTRIES, wefti_shared_body_data(block), BODY);
        assert_false(wefti_wire_wants_to_write(&all[i].scheduler));
        close_pair(&all[i]);
    }
    assert_int_equal(block->holders, 1);
    wefti_shared_body_release(block);
    free(all);
}

static void an_empty_body_is_one(void **state) {
    (void)state;
    pair p;
    wefti_shared_body *block;
    open_pair(&p, 3);
    assert_int_equal(wefti_shared_body_create(0, &block), WEFT_OK);
    assert_int_equal(wefti_wire_send_shared(&p.scheduler, WEFTI_FRAME_GOODBYE, block), WEFT_OK);
    wefti_shared_body_release(block);
    expect(&p, WEFTI_FRAME_GOODBYE, NULL, 0);
    wefti_shared_body_release(NULL);
    close_pair(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_hold_one_block),
        cmocka_unit_test(an_empty_body_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
