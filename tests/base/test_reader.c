/* Files read in pieces: any piece of any size. A file that is cut, replaced or removed meanwhile is
 * an error that names the file. Every call fails in turn. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/philox.h"
#include "base/reader.h"

enum { MOST = 300000, MANY = 150 };
static uint64_t random_seed;

static unsigned char data[MOST];
static char root[200];

static const char *at(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ & 3];
    (void)snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static int setup(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    (void)snprintf(root, sizeof root, "%s/weft-test-reader-XXXXXX",
                   directory ? directory : P_tmpdir);
    for (int i = 0; i < MOST; i++)
        data[i] = (unsigned char)wefti_philox_u32(random_seed, 0, (uint64_t)i);
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    return wefti_remove_tree(root) == WEFT_OK ? 0 : -1;
}

static wefti_reader *open_file(const char *path) {
    wefti_reader *r;
    if (wefti_reader_open(path, &r) < 0) fail_msg("%s", weft_error_message());
    return r;
}

static const char *write_file(const char *name, int64_t bytes) {
    const char *path = at(name);
    assert_int_equal(wefti_file_write(path, data, (size_t)bytes), WEFT_OK);
    return path;
}

static void assert_says(const char *text) {
    if (!has_facts(weft_error_message(), text))
        fail_msg("\"%s\" does not say \"%s\"", weft_error_message(), text);
}

static int64_t below(uint64_t *number, int64_t limit) {
    return limit ? (int64_t)(wefti_philox_u32(random_seed, 1, (*number)++) % (uint64_t)limit) : 0;
}

static void assert_pieces(const wefti_reader *r, int64_t bytes) {
    static unsigned char got[MOST];
    static wefti_reader_window window;
    window = (wefti_reader_window){.reader = r};
    uint64_t number = 0;
    uint32_t crc;
    assert_int_equal(wefti_reader_bytes(r), bytes);
    assert_int_equal(wefti_reader_at(r, 0, bytes, got), WEFT_OK);
    assert_memory_equal(got, data, (size_t)bytes);
    for (int i = 0; i < 500; i++) {
        int64_t from = below(&number, bytes + 1), most = bytes - from;
        int64_t count = below(&number, (i % 2 && most > 100 ? 100 : most) + 1);
        assert_int_equal(wefti_reader_at(r, from, count, got), WEFT_OK);
        assert_memory_equal(got, data + from, (size_t)count);
        assert_int_equal(wefti_reader_near(&window, from, count, got), WEFT_OK);
        assert_memory_equal(got, data + from, (size_t)count);
        if (i % 50) continue;
        assert_int_equal(wefti_reader_crc32c(r, from, count, &crc), WEFT_OK);
        assert_int_equal(crc, wefti_crc32c(0, data + from, (size_t)count));
    }
    /* ascending, as the runs of a region: near each other, and far */
    for (int64_t run = 1; run < 20000; run = run * 3 + 1)
        for (int64_t gap = 0; gap < 9000; gap = gap * 4 + 3)
            for (int64_t from = below(&number, 50); from + run <= bytes; from += run + gap) {
                assert_int_equal(wefti_reader_near(&window, from, run, got), WEFT_OK);
                assert_memory_equal(got, data + from, (size_t)run);
            }
    assert_int_equal(wefti_reader_at(r, 0, bytes + 1, got), WEFT_E_ARG);
    assert_int_equal(wefti_reader_at(r, bytes + 1, 0, got), WEFT_E_ARG);
    assert_int_equal(wefti_reader_at(r, -1, 1, got), WEFT_E_ARG);
}

static void any_piece(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 100, 65535, 65536, 65537, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wefti_reader *r = open_file(write_file("f", sizes[i]));
        wefti_reader_ahead(r);
        assert_pieces(r, sizes[i]);
        wefti_reader_close(r);
    }
    wefti_reader *memory;
    assert_int_equal(wefti_reader_of(data, MOST, &memory), WEFT_OK);
    assert_pieces(memory, MOST);
    wefti_reader_close(memory);
    wefti_reader_close(NULL);
}

typedef struct supply {
    int reads, closes;
    weft_status status;
} supply;

static weft_status supply_read(void *context, int64_t from, int64_t bytes, void *to) {
    supply *s = context;
    s->reads++;
    if (s->status < 0) return WEFT_RAISE(s->status, "the source is dry");
    memcpy(to, data + from, (size_t)bytes);
    return WEFT_OK;
}

static void supply_close(void *context) {
    supply *s = context;
    s->closes++;
}

/* Functions are asked for no range outside of their bytes, and for none that is empty. */
static void functions_as_a_file(void **state) {
    (void)state;
    static const wefti_reader_table table = {supply_read, supply_close}, open = {supply_read, NULL};
    supply s = {0};
    wefti_reader *r;
    unsigned char byte;
    assert_int_equal(wefti_reader_made(&table, &s, "made", MOST, &r), WEFT_OK);
    assert_pieces(r, MOST);
    s.reads = 0;
    assert_int_equal(wefti_reader_at(r, 7, 0, &byte), WEFT_OK);
    assert_int_equal(wefti_reader_at(r, MOST, 1, &byte), WEFT_E_ARG);
    assert_says("made");
    assert_int_equal(s.reads, 0);
    s.status = WEFT_E_IO;
    assert_int_equal(wefti_reader_at(r, 7, 1, &byte), WEFT_E_IO);
    assert_says("dry");
    assert_int_equal(s.closes, 0);
    wefti_reader_close(r);
    assert_int_equal(s.closes, 1);
    for (int64_t nth = 0; nth < 2; nth++) { /* without memory the context stays the caller's */
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        assert_int_equal(wefti_reader_made(&table, &s, "made", MOST, &r), WEFT_E_NOMEM);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    }
    assert_int_equal(s.closes, 1);
    assert_int_equal(wefti_reader_made(&open, &s, "made", MOST, &r), WEFT_OK);
    wefti_reader_close(r);
    assert_int_equal(s.closes, 1);
}

static void files_only(void **state) {
    (void)state;
    wefti_reader *r;
    assert_int_equal(wefti_reader_open(root, &r), WEFT_E_IO);
    assert_says("directory");
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(wefti_reader_open(at("pipe"), &r), WEFT_E_IO); /* and does not wait */
    assert_int_equal(wefti_reader_open(at("absent"), &r), WEFT_E_NOT_FOUND);
    assert_says(at("absent"));
}

static void cut_meanwhile(void **state) {
    (void)state;
    enum { LEFT = 100001 }; /* within a page */
    static unsigned char got[MOST];
    const char *path = write_file("cut", MOST);
    wefti_reader *r = open_file(path);
    assert_int_equal(truncate(path, LEFT), 0);
    assert_int_equal(wefti_reader_at(r, 0, LEFT, got), WEFT_OK);
    assert_memory_equal(got, data, LEFT);
    assert_int_equal(wefti_reader_at(r, LEFT - 1, 2, got), WEFT_E_IO);
    assert_says(path);
    assert_says("300000 bytes|100001");
    assert_int_equal(wefti_reader_at(r, MOST - 1, 1, got), WEFT_E_IO);
    assert_says("ends after 100001 now");
    uint32_t crc;
    assert_int_equal(wefti_reader_crc32c(r, 0, MOST, &crc), WEFT_E_IO);
    static wefti_reader_window window;
    window = (wefti_reader_window){.reader = r};
    assert_int_equal(wefti_reader_near(&window, LEFT, 1, got), WEFT_E_IO);
    unsigned char *whole;
    assert_int_equal(wefti_reader_take(r, 0, MOST, &whole), WEFT_E_IO);
    assert_int_equal(wefti_file_write(path, data, MOST), WEFT_OK); /* another in its place */
    assert_int_equal(wefti_reader_at(r, LEFT, 1, got), WEFT_E_IO);
    wefti_reader_close(r);
}

/* More files than a process may have open: the files beyond the limit are opened again for each
 * piece. */
static void many(void **state) {
    (void)state;
    enum { BYTES = 70000 };
    static wefti_reader *readers[MANY];
    char name[32], before[300];
    unsigned char got[100];
    struct rlimit limit, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = 200, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(root), 0);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "many%d", i);
        assert_int_equal(wefti_file_write(name, data, BYTES), WEFT_OK);
        readers[i] = open_file(name); /* a name that is good here only */
    }
    assert_int_equal(chdir(before), 0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(wefti_reader_at(readers[i], 69000, 100, got), WEFT_OK);
        assert_memory_equal(got, data + 69000, 100);
    }
    const char *path = at("many149");
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(wefti_reader_at(readers[149], 69000, 100, got), WEFT_E_IO);
    assert_says("was cut");
    assert_int_equal(wefti_file_write(path, data, BYTES + 1), WEFT_OK);
    assert_int_equal(wefti_reader_at(readers[149], 69000, 100, got), WEFT_E_IO);
    assert_says("replaced|another");
    struct stat info; /* the same file under another number, as some file systems give */
    assert_int_equal(stat(at("many148"), &info), 0);
    assert_int_equal(rename(at("many148"), at("away")), 0);
    assert_int_equal(wefti_file_write(at("many148"), data, BYTES), WEFT_OK);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, at("many148"), times, 0), 0);
    assert_int_equal(wefti_reader_at(readers[148], 69000, 100, got), WEFT_OK);
    path = at("many149");
    assert_says(path);
    assert_int_equal(remove(path), 0);
    assert_int_equal(wefti_reader_at(readers[149], 69000, 100, got), WEFT_E_IO);
    assert_says("while|use");
    assert_says(path);
    for (int i = 0; i < MANY; i++) wefti_reader_close(readers[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    wefti_reader *r = open_file(write_file("after", BYTES)); /* there is room again */
    assert_int_equal(remove(at("after")), 0);
    assert_int_equal(wefti_reader_at(r, 69000, 100, got), WEFT_OK);
    wefti_reader_close(r);
}

static void fail_every_call(void) {
    static const int64_t sizes[] = {100, MOST};
    for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
        for (int size = 0; size < 2; size++)
            for (int64_t n = 0, reached = 1; reached; n++) {
                const char *path = write_file("f", sizes[size]);
                wefti_fault_arm((wefti_fault_kind)kind, n, false, 0);
                wefti_reader *r;
                unsigned char *got;
                weft_status status = wefti_reader_open(path, &r);
                if (status >= 0) {
                    status = wefti_reader_take(r, 10, sizes[size] - 10, &got);
                    if (status >= 0) wefti_free(got);
                    wefti_reader_close(r);
                }
                reached = wefti_fault_count((wefti_fault_kind)kind) > n;
                wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
                assert_int_equal(status < 0, reached);
            }
}

static void every_call_failed(void **state) {
    (void)state;
    enum { OPEN = 10 }; /* as many as may stay open: the rest is opened for each piece */
    wefti_reader *readers[OPEN];
    struct rlimit limit, few;
    fail_every_call();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < OPEN; i++) readers[i] = open_file(write_file("kept", MOST));
    few = (struct rlimit){.rlim_cur = 2 * OPEN, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    fail_every_call();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < OPEN; i++) wefti_reader_close(readers[i]);
}

int main(void) {
    random_seed = test_seed(5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_piece),  cmocka_unit_test(functions_as_a_file),
        cmocka_unit_test(files_only), cmocka_unit_test(cut_meanwhile),
        cmocka_unit_test(many),       cmocka_unit_test(every_call_failed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
