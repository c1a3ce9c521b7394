/* Disk streams, by both engines: random reads and writes against memory, each request failed in
 * turn, full disks, and kills. weft-test: threads */
#include "disk_ways.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "unnamed_file.h"

static int names_in(const char *path) {
    DIR *d = opendir(path);
    int count = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += e->d_name[0] != '.' || e->d_name[1] == 'w';
    (void)closedir(d);
    return count;
}

static void test_engines_are_there(void **state) {
    (void)state;
    wefti_disk_stream *d;
    const wefti_disk_options any = {.directory = folder, .bytes = 1};
    ASSERT_OK(wefti_disk_stream_open(&any, &d));
    print_message("%s\n", wefti_disk_stream_text(d));
    const bool uring = wefti_disk_stream_engine(d) == WEFTI_DISK_URING;
    if (!uring) ASSERT_FACTS(wefti_disk_stream_text(d), "threads|io_uring");
    wefti_disk_stream_close(d);
    if (!uring) SKIP("no io_uring");
}

/* ---- reads and writes ---- */

static void test_random_operations_equal_memory(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 3) {
        for (int w = 0; w < WAYS; w++) {
            wefti_disk_stream *d;
            uint64_t s = seed;
            if (!open_way(ways[w], &d)) continue;
            unsigned char *image = calloc(1, FILE_BYTES), *whole = malloc(FILE_BYTES);
            assert_true(image && whole);
            for (int round = 0; round < ROUNDS; round++) random_round(d, image, &s);
            wefti_disk_ticket *t;
            ASSERT_OK(wefti_disk_stream_read(d, 0, FILE_BYTES, whole, &t));
            ASSERT_OK(wefti_disk_stream_wait(d, t));
            assert_memory_equal(image, whole, FILE_BYTES);
            wefti_disk_stream_close(d);
            free(image);
            free(whole);
        }
    }
}

/* ---- threads ---- */

/* Threads that share a stream, each with blocks of its own. */
enum { SHARERS = 4, PART = FILE_BYTES / SHARERS };

typedef struct sharer {
    wefti_disk_stream *d;
    int number;
    bool equal;
} sharer;

static void *share(void *context) {
    sharer *s = context;
    unsigned char *bytes = malloc(PART), *back = malloc(PART);
    wefti_disk_ticket *t[2];
    s->equal = bytes && back;
    for (int round = 0; s->equal && round < 10; round++) {
        memset(bytes, 16 * s->number + round, PART);
        s->equal = wefti_disk_stream_write(s->d, s->number * PART, PART, bytes, &t[0]) >= 0 &&
                   wefti_disk_stream_read(s->d, s->number * PART, PART, back, &t[1]) >= 0 &&
                   wefti_disk_stream_wait(s->d, t[1]) >= 0 &&
                   wefti_disk_stream_wait(s->d, t[0]) >= 0 && !memcmp(bytes, back, PART);
    }
    free(bytes);
    free(back);
    return NULL;
}

static void test_threads_share_a_stream(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        pthread_t threads[SHARERS];
        sharer sharers[SHARERS];
        if (!open_way(ways[w], &d)) continue;
        for (int i = 0; i < SHARERS; i++) {
            sharers[i] = (sharer){.d = d, .number = i};
            assert_int_equal(pthread_create(&threads[i], NULL, share, &sharers[i]), 0);
        }
        for (int i = 0; i < SHARERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < SHARERS; i++) assert_true(sharers[i].equal);
        wefti_disk_stream_close(d);
    }
}

/* ---- failures ---- */

/* A write that begins and ends within blocks, then a read of it. */
static weft_status write_and_read(way w, bool *equal) {
    enum { OFFSET = 1000, BYTES = 50000 };
    const wefti_disk_options o = options_of(w);
    unsigned char *bytes = malloc(BYTES), *back = calloc(1, BYTES);
    wefti_disk_stream *d = NULL;
    wefti_disk_ticket *t;
    assert_true(bytes && back);
    memset(bytes, 0x5a, BYTES);
    weft_status status = wefti_disk_stream_open(&o, &d);
    if (status >= 0) status = wefti_disk_stream_write(d, OFFSET, BYTES, bytes, &t);
    if (status >= 0) status = wefti_disk_stream_wait(d, t);
    if (status >= 0) status = wefti_disk_stream_read(d, OFFSET, BYTES, back, &t);
    if (status >= 0) status = wefti_disk_stream_wait(d, t);
    if (status >= 0) *equal = !memcmp(bytes, back, BYTES);
    wefti_disk_stream_close(d);
    free(bytes);
    free(back);
    return status;
}

static void test_each_call_fails_in_turn(void **state) {
    (void)state;
    for (int kind = WEFTI_FAULT_ALLOC; kind <= WEFTI_FAULT_IO; kind++) {
        for (int w = 0; w < WAYS; w++) {
            wefti_disk_stream *d;
            bool equal = false;
            if (!open_way(ways[w], &d)) continue;
            wefti_disk_stream_close(d);
            wefti_fault_arm((wefti_fault_kind)kind, INT64_MAX, false, 0);
            ASSERT_OK(write_and_read(ways[w], &equal));
            assert_true(equal);
            const int64_t calls = wefti_fault_count((wefti_fault_kind)kind);
            assert_in_range(calls, 4, 100);
            for (int64_t nth = 0; nth < calls; nth++) {
                wefti_fault_arm((wefti_fault_kind)kind, nth, false, EIO);
                equal = false;
                const weft_status status = write_and_read(ways[w], &equal);
                if (kind == WEFTI_FAULT_IO) {
                    assert_int_equal(status, WEFT_E_IO);
                    ASSERT_FACTS(weft_error_message(), folder);
                } else {
                    assert_true(status < 0 || equal);
                }
                assert_int_equal(names_in(folder), 0);
            }
            wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
        }
    }
}

/* Bytes that begin on a page, so that whole blocks need no buffer. */
static unsigned char *make_pages(int64_t bytes, int byte) {
    void *memory;
    assert_int_equal(posix_memalign(&memory, WEFTI_DISK_ALIGNMENT, (size_t)bytes), 0);
    memset(memory, byte, (size_t)bytes);
    return memory;
}

/* A write in several requests changes nothing if one of its allocations fails. With one request at
 * once, an engine that allocates between requests would do some and not others. */
static void no_allocation_leaves_a_part(way w, int32_t depth) {
    enum { BYTES = 1 << 16, OFFSET = 1000, PART = 50000 };
    wefti_disk_options o = options_of(w);
    unsigned char *old = make_pages(BYTES, 0x5a), *back = make_pages(BYTES, 0),
                  *zeros = make_pages(PART, 0);
    bool fails = true;
    o.depth = depth;
    for (int64_t nth = 0; fails; nth++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        ASSERT_OK(wefti_disk_stream_open(&o, &d));
        ASSERT_OK(wefti_disk_stream_write(d, 0, BYTES, old, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = wefti_disk_stream_write(d, OFFSET, PART, zeros, &t);
        if (status >= 0) status = wefti_disk_stream_wait(d, t);
        fails = wefti_fault_count(WEFTI_FAULT_ALLOC) > nth;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_int_equal(status, fails ? WEFT_E_NOMEM : WEFT_OK);
        if (!fails) memset(old + OFFSET, 0, PART);
        ASSERT_OK(wefti_disk_stream_read(d, 0, BYTES, back, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        assert_memory_equal(back, old, BYTES);
        wefti_disk_stream_close(d);
    }
    free(old);
    free(back);
    free(zeros);
}

static void test_a_failed_allocation_changes_nothing(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        no_allocation_leaves_a_part(ways[w], 1);
        no_allocation_leaves_a_part(ways[w], 5);
    }
}

/* ---- encryption ---- */

/* Blocks with a pattern, which the file must not show. */
enum { SECRETS = 8, SECRET_BYTES = SECRETS * WEFTI_DISK_ALIGNMENT };

static void transfer(wefti_disk_stream *d, int64_t offset, int64_t bytes, unsigned char *memory,
                     bool writes, weft_status expected) {
    wefti_disk_ticket *t;
    if (writes)
        ASSERT_OK(wefti_disk_stream_write(d, offset, bytes, memory, &t));
    else
        ASSERT_OK(wefti_disk_stream_read(d, offset, bytes, memory, &t));
    assert_int_equal(wefti_disk_stream_wait(d, t), expected);
    if (expected < 0) ASSERT_FACTS(weft_error_message(), folder);
}

static void check_secrets(wefti_disk_stream *d) {
    const int fd = open_unnamed(folder);
    unsigned char *plain = make_pages(SECRET_BYTES, 0x5a), *old = make_pages(SECRET_BYTES, 0),
                  *now = make_pages(SECRET_BYTES, 0), *back = make_pages(SECRET_BYTES, 0);
    /* written twice, the same bytes differ in the file; other bytes stay zeros */
    for (int k = 0; k < 2; k++) {
        transfer(d, 0, SECRET_BYTES, plain, true, WEFT_OK);
        assert_int_equal(pread(fd, k ? now : old, SECRET_BYTES, 0), SECRET_BYTES);
        assert_null(memmem(k ? now : old, SECRET_BYTES, plain, 16));
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_OK);
        assert_memory_equal(back, plain, SECRET_BYTES);
    }
    for (int b = 0; b < SECRETS; b++)
        assert_memory_not_equal(old + b * WEFTI_DISK_ALIGNMENT, now + b * WEFTI_DISK_ALIGNMENT, 64);
    transfer(d, FILE_BYTES / 2, 100, back, false, WEFT_OK);
    for (int i = 0; i < 100; i++) assert_int_equal(back[i], 0);
    /* a bit that changed, an older block, and a block from another place */
    for (int wrong = 0; wrong < 3; wrong++) {
        const unsigned char *from =
            wrong == 1 ? old + WEFTI_DISK_ALIGNMENT : now + 2 * WEFTI_DISK_ALIGNMENT;
        unsigned char block[WEFTI_DISK_ALIGNMENT];
        memcpy(block, wrong ? from : now + WEFTI_DISK_ALIGNMENT, sizeof block);
        if (!wrong) block[1234] ^= 4;
        assert_int_equal(pwrite(fd, block, sizeof block, WEFTI_DISK_ALIGNMENT), sizeof block);
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_E_CORRUPT);
        transfer(d, 5000, 10, plain, true, WEFT_E_CORRUPT); /* a part of the block */
        transfer(d, 0, WEFTI_DISK_ALIGNMENT, back, false, WEFT_OK);
        assert_int_equal(pwrite(fd, now + WEFTI_DISK_ALIGNMENT, sizeof block, WEFTI_DISK_ALIGNMENT),
                         sizeof block);
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_OK);
        assert_memory_equal(back, plain, SECRET_BYTES);
    }
    (void)close(fd);
    free(plain);
    free(old);
    free(now);
    free(back);
}

static void test_encrypted_files_show_nothing(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        if (!ways[w].encrypted || !open_way(ways[w], &d)) continue;
        check_secrets(d);
        wefti_disk_stream_close(d);
    }
}

static void test_failures_name_the_offset(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        char bytes[64] = "", others[64];
        if (!open_way(ways[w], &d)) continue;
        wefti_fault_arm(WEFTI_FAULT_IO, 0, true, EIO);
        ASSERT_OK(wefti_disk_stream_read(d, 123456, sizeof bytes, bytes, &t));
        ASSERT_FAILS(WEFT_E_IO, "123456", wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        ASSERT_OK(wefti_disk_stream_read(d, 123456, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        ASSERT_FAILS(WEFT_E_ARG, "1048577",
                     wefti_disk_stream_read(d, 0, FILE_BYTES + 1, bytes, &t));
        ASSERT_FAILS(WEFT_E_ARG, "-1", wefti_disk_stream_read(d, -1, 1, bytes, &t));
        ASSERT_FAILS(WEFT_E_ARG, "1048576", wefti_disk_stream_write(d, FILE_BYTES, 1, bytes, &t));
        /* close waits for what nobody waits for */
        ASSERT_OK(wefti_disk_stream_write(d, 5, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_read(d, 500000, sizeof others, others, &t));
        wefti_disk_stream_close(d);
    }
}

/* A call that a signal interrupts is repeated, and one that never succeeds ends with an error. */
static void test_interrupted_calls_are_repeated(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        char bytes[64] = "";
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        wefti_fault_arm(WEFTI_FAULT_IO, 1, false, EINTR); /* the reservation */
        assert_true(open_way(ways[w], &d));
        wefti_fault_arm(WEFTI_FAULT_IO, 0, false, EINTR);
        ASSERT_OK(wefti_disk_stream_read(d, 0, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, 0, true, EAGAIN);
        ASSERT_OK(wefti_disk_stream_read(d, 0, sizeof bytes, bytes, &t));
        ASSERT_FAILS(WEFT_E_IO, folder, wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        wefti_disk_stream_close(d);
    }
}

/* A slow disk changes the time only. */
static void test_slow_disks_give_the_same(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        bool equal = false;
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        wefti_fault_slow(WEFTI_SLOW_DISK, 2000000);
        ASSERT_OK(write_and_read(ways[w], &equal));
        wefti_fault_slow(WEFTI_SLOW_DISK, 0);
        assert_true(equal);
    }
}

/* A file system without O_TMPFILE: the file's name is removed at once. */
static void test_files_without_o_tmpfile(void **state) {
    (void)state;
    static const int errors[] = {EOPNOTSUPP, EISDIR};
    for (int e = 0; e < 2; e++) {
        bool equal = false;
        wefti_fault_arm(WEFTI_FAULT_IO, 0, false, errors[e]);
        ASSERT_OK(write_and_read(ways[2], &equal));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_true(equal);
        assert_int_equal(names_in(folder), 0);
    }
}

/* A file system that takes O_DIRECT and refuses the transfers: calls are open, fallocate, write. */
static void test_files_without_o_direct(void **state) {
    (void)state;
    wefti_disk_stream *d;
    const wefti_disk_options o = options_of(ways[2]);
    wefti_fault_arm(WEFTI_FAULT_IO, 2, false, EINVAL);
    ASSERT_OK(wefti_disk_stream_open(&o, &d));
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    assert_false(wefti_disk_stream_direct(d));
    ASSERT_FACTS(wefti_disk_stream_text(d), "page cache");
    wefti_disk_stream_close(d);
}

static void test_wrong_options_are_refused(void **state) {
    (void)state;
    static const struct {
        wefti_disk_options o;
        const char *facts;
    } cases[] = {{{.bytes = 0}, "0"},
                 {{.bytes = -5}, "-5"},
                 {{.bytes = 1, .block = 4095}, "4095|4096"},
                 {{.bytes = 1, .block = -4096}, "-4096"},
                 {{.bytes = 1, .depth = 65}, "65|64"},
                 {{.bytes = 1, .depth = -1}, "-1"}};
    wefti_disk_stream *d;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wefti_disk_options o = cases[i].o;
        o.directory = folder;
        ASSERT_FAILS(WEFT_E_ARG, cases[i].facts, wefti_disk_stream_open(&o, &d));
    }
    const wefti_disk_options absent = {.directory = "/var/tmp/weft-absent", .bytes = 1};
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/var/tmp/weft-absent", wefti_disk_stream_open(&absent, &d));
    const wefti_disk_options file = {.directory = "/proc/self/status", .bytes = 1};
    ASSERT_FAILS(WEFT_E_IO, "/proc/self/status", wefti_disk_stream_open(&file, &d));
}

/* ---- a small disk ---- */

/* Runs in a child with mounts of its own; the status is that of the check that failed. */
enum { SMALL = 1 << 20, REFUSED = 77 };

static int use_small_disk(void) {
    struct statvfs before, after;
    wefti_disk_stream *d;
    wefti_disk_options o = {.directory = folder, .bytes = 2 * SMALL};
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=1m"))
        return REFUSED;
    if (statvfs(folder, &before)) return 1;
    if (wefti_disk_stream_open(&o, &d) != WEFT_E_IO) return 2;
    if (!has_facts(weft_error_message(), "1048576|2097152")) return 3;
    const pid_t pid = fork();
    if (!pid) { /* dies with a write under way */
        static unsigned char bytes[SMALL / 2];
        wefti_disk_ticket *t;
        o.bytes = SMALL / 2;
        if (wefti_disk_stream_open(&o, &d) < 0) _exit(1);
        if (wefti_disk_stream_write(d, 0, o.bytes, bytes, &t) < 0) _exit(1);
        (void)raise(SIGKILL);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status)) return 4;
    if (names_in(folder)) return 5;
    const time_t end = time(NULL) + 60; /* the kernel ends a ring's requests after the process */
    do {
        if (statvfs(folder, &after)) return 6;
    } while (after.f_bfree != before.f_bfree && time(NULL) < end && !usleep(1000));
    if (after.f_bfree != before.f_bfree) return 7;
    if (mount("none", folder, NULL, MS_REMOUNT | MS_RDONLY, NULL)) return 8;
    if (wefti_disk_stream_open(&o, &d) != WEFT_E_IO) return 9;
    return has_facts(weft_error_message(), folder) ? 0 : 10;
}

static void test_small_disks(void **state) {
    (void)state;
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) _exit(use_small_disk());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == REFUSED) SKIP("no tmpfs can be mounted");
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Kills at random moments leave no name. */
static void test_kills_leave_nothing(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 6) {
        uint64_t s = seed;
        const way w = ways[random_below(&s, 2) * 2];
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            for (;;) {
                bool equal;
                (void)write_and_read(w, &equal);
            }
        (void)usleep((useconds_t)random_below(&s, 30000));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(names_in(folder), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kills_leave_nothing), /* before threads of this process */
        cmocka_unit_test(test_small_disks),
        cmocka_unit_test(test_engines_are_there),
        cmocka_unit_test(test_random_operations_equal_memory),
        cmocka_unit_test(test_threads_share_a_stream),
        cmocka_unit_test(test_each_call_fails_in_turn),
        cmocka_unit_test(test_a_failed_allocation_changes_nothing),
        cmocka_unit_test(test_encrypted_files_show_nothing),
        cmocka_unit_test(test_failures_name_the_offset),
        cmocka_unit_test(test_interrupted_calls_are_repeated),
        cmocka_unit_test(test_slow_disks_give_the_same),
        cmocka_unit_test(test_files_without_o_tmpfile),
        cmocka_unit_test(test_files_without_o_direct),
        cmocka_unit_test(test_wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
