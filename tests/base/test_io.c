/* Files: whole or absent, every call failed in turn, messages that name the path. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"

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
    (void)snprintf(root, sizeof root, "%s/weft-test-io-XXXXXX", directory ? directory : P_tmpdir);
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    return wefti_remove_tree(root) == WEFT_OK ? 0 : -1;
}

static int64_t entries(void) {
    char **names;
    int64_t count;
    assert_int_equal(wefti_dir_list(root, &names, &count), WEFT_OK);
    wefti_free(names);
    return count;
}

static void assert_content(const char *path, const char *expected) {
    char *text;
    int64_t bytes;
    assert_int_equal(wefti_file_read(path, 1 << 20, &text, &bytes), WEFT_OK);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(text, expected);
    wefti_free(text);
}

static void writes_and_reads(void **state) {
    (void)state;
    assert_int_equal(wefti_file_write(at("a"), "hello", 5), WEFT_OK);
    assert_content(at("a"), "hello");
    assert_int_equal(wefti_file_write(at("a"), "", 0), WEFT_OK);
    assert_content(at("a"), "");
    struct stat info;
    assert_int_equal(stat(at("a"), &info), 0);
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(entries(), 1);
}

/* A file is there, is missing, or nobody knows. No file has a name of 300 bytes. */
static void missing_is_not_unknown(void **state) {
    (void)state;
    const char *name = at("a");
    char long_name[301];
    bool there = true;
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    const char *const missing[] = {name, at("none/a"), long_name};
    for (size_t k = 0; k < sizeof missing / sizeof *missing; k++) {
        assert_true(wefti_is_missing(missing[k]) && !wefti_exists(missing[k]));
        assert_int_equal(wefti_look_for(missing[k], &there), WEFT_OK);
        assert_false(there);
        assert_int_equal(wefti_check_new(missing[k]), WEFT_OK);
    }
    assert_int_equal(wefti_file_write(name, "hello", 5), WEFT_OK);
    assert_true(wefti_exists(name) && !wefti_is_missing(name));
    assert_int_equal(wefti_check_new(name), WEFT_E_ARG);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, 0);
    assert_false(wefti_exists(name) || wefti_is_missing(name));
    assert_int_equal(wefti_look_for(name, &there), WEFT_E_IO);
    assert_int_equal(wefti_check_new(name), WEFT_E_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
}

static void a_writer_shows_nothing_before_commit(void **state) {
    (void)state;
    assert_int_equal(wefti_file_write(at("a"), "old", 3), WEFT_OK);
    wefti_writer *one, *two;
    assert_int_equal(wefti_writer_open(at("a"), &one), WEFT_OK);
    assert_int_equal(wefti_writer_open(at("a"), &two), WEFT_OK); /* its own temporary file */
    assert_int_equal(wefti_writer_write(one, "new", 3), WEFT_OK);
    assert_int_equal(wefti_writer_write(two, "never", 5), WEFT_OK);
    assert_content(at("a"), "old");
    wefti_writer_abort(two);
    wefti_writer_abort(NULL);
    assert_int_equal(wefti_writer_commit(one), WEFT_OK);
    assert_content(at("a"), "new");
    assert_int_equal(entries(), 1);
}

/* A device or pipe is written, not replaced by a file. A directory is refused before anything is
 * written. */
static void writes_what_is_no_file(void **state) {
    (void)state;
    char got[16] = {0};
    wefti_writer *w;
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    int fd = open(at("pipe"), O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(wefti_file_write(at("pipe"), "through", 7), WEFT_OK);
    assert_int_equal(read(fd, got, sizeof got), 7);
    assert_string_equal(got, "through");
    assert_int_equal(wefti_writer_open(at("pipe"), &w), WEFT_OK);
    wefti_writer_abort(w);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, false, ENOSPC);
    assert_int_equal(wefti_file_write(at("pipe"), "through", 7), WEFT_E_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    ASSERT_MESSAGE("/pipe: No space");
    close(fd);
    struct stat info;
    assert_int_equal(stat(at("pipe"), &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(entries(), 1);
    assert_int_equal(wefti_writer_open(root, &w), WEFT_E_IO);
    ASSERT_MESSAGE("directory");
    assert_int_equal(wefti_writer_open(at("none/a"), &w), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE("none/a: No such");
}

/* The target of a link is replaced and the link stays. A link without a target is replaced
 * itself. */
static void writes_where_links_lead(void **state) {
    (void)state;
    struct stat info;
    assert_int_equal(wefti_file_write(at("a"), "old", 3), WEFT_OK);
    assert_int_equal(symlink("a", at("link")), 0);
    assert_int_equal(symlink("link", at("further")), 0);
    assert_int_equal(wefti_file_write(at("further"), "new", 3), WEFT_OK);
    assert_content(at("a"), "new");
    assert_true(wefti_is_link(at("link")) && wefti_is_link(at("further")));
    assert_int_equal(symlink("nowhere", at("lost")), 0);
    assert_int_equal(wefti_file_write(at("lost"), "found", 5), WEFT_OK);
    assert_content(at("lost"), "found");
    assert_int_equal(entries(), 4);
    /* An open file without a name, by the link that stands for it. */
    int fd = open(at("a"), O_RDWR);
    assert_true(fd >= 0 && unlink(at("a")) == 0);
    char name[64], got[8] = {0};
    (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (stat(name, &info) == 0) {
        assert_int_equal(wefti_file_write(name, "own", 3), WEFT_OK);
        assert_int_equal(pread(fd, got, sizeof got, 0), 3);
        assert_string_equal(got, "own");
    }
    close(fd);
}

static void reading_is_limited(void **state) {
    (void)state;
    char *text;
    int64_t bytes;
    assert_int_equal(wefti_file_write(at("a"), "12345", 5), WEFT_OK);
    assert_int_equal(wefti_file_read(at("a"), 5, &text, &bytes), WEFT_OK);
    wefti_free(text);
    assert_int_equal(wefti_file_read(at("a"), 4, &text, &bytes), WEFT_E_IO);
    ASSERT_MESSAGE("at most 4");
    assert_int_equal(wefti_file_read(at("a"), -1, &text, &bytes), WEFT_E_ARG);
    /* a file without a size, longer than the first buffer */
    assert_int_equal(wefti_file_read("/proc/self/environ", 1 << 24, &text, &bytes), WEFT_OK);
    assert_int_equal(text[bytes], 0);
    wefti_free(text);
    assert_int_equal(wefti_file_read("/dev/zero", 100000, &text, &bytes), WEFT_E_IO);
    assert_int_equal(wefti_file_read(root, 100, &text, &bytes), WEFT_E_IO);
    assert_int_equal(wefti_file_read(at("absent"), 100, &text, &bytes), WEFT_E_NOT_FOUND);
}

static int64_t number_up_to(const char *name, const void *most) {
    const int64_t number = *name >= '0' && *name <= '9' ? atoll(name) : -1;
    return number <= *(const int64_t *)most ? number : -1;
}

static void directories(void **state) {
    (void)state;
    assert_int_equal(wefti_dir_make(at("x/y/z")), WEFT_OK);
    assert_int_equal(wefti_dir_make(at("x/y/z/")), WEFT_OK);
    assert_true(wefti_is_dir(at("x/y/z")));
    assert_int_equal(wefti_dir_make("/"), WEFT_OK);
    assert_int_equal(wefti_dir_make(""), WEFT_E_ARG);
    assert_int_equal(wefti_file_write(at("x/b"), "1", 1), WEFT_OK);
    assert_int_equal(wefti_file_write(at("x/a"), "1", 1), WEFT_OK);
    assert_false(wefti_is_dir(at("x/a")));
    assert_true(wefti_exists(at("x/a")));
    assert_false(wefti_exists(at("x/c")));
    assert_int_equal(wefti_dir_make(at("x/a")), WEFT_E_IO);
    assert_int_equal(wefti_dir_make(at("x/a/b")), WEFT_E_IO);
    char **names;
    int64_t count;
    assert_int_equal(wefti_dir_list(at("x"), &names, &count), WEFT_OK);
    assert_int_equal(count, 3);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[1], "b");
    assert_string_equal(names[2], "y");
    wefti_free(names);
    assert_int_equal(wefti_dir_list(at("x/y/z"), &names, &count), WEFT_OK);
    assert_int_equal(count, 0);
    wefti_free(names);
    assert_int_equal(wefti_dir_list(at("none"), &names, &count), WEFT_E_NOT_FOUND);
    int64_t *numbers, most = 20;
    ASSERT_OK(wefti_dir_make(at("numbers")));
    ASSERT_OK(wefti_file_write(at("numbers/9"), "", 0));
    ASSERT_OK(wefti_file_write(at("numbers/10"), "", 0));
    ASSERT_OK(wefti_file_write(at("numbers/30"), "", 0));
    ASSERT_OK(wefti_file_write(at("numbers/x"), "", 0));
    ASSERT_OK(wefti_dir_numbers(at("numbers"), number_up_to, &most, &numbers, &count));
    assert_int_equal(count, 2); /* not in the order of names */
    assert_true(numbers[0] == 9 && numbers[1] == 10);
    wefti_free(numbers);
    ASSERT_OK(wefti_dir_numbers(at("none"), number_up_to, &most, &numbers, &count));
    assert_int_equal(count, 0);
    assert_null(numbers);
    assert_int_equal(wefti_rename(at("x/a"), at("x/y/a")), WEFT_OK);
    assert_true(wefti_exists(at("x/y/a")));
    assert_int_equal(wefti_rename(at("x/a"), at("x/y/a")), WEFT_E_NOT_FOUND);
    assert_int_equal(wefti_dir_sync(at("x")), WEFT_OK);
    assert_int_equal(wefti_dir_sync(at("none")), WEFT_E_NOT_FOUND);
}

/* Reports which calls sync while a/b is created: the directories that got a new name. */
static void new_directories_are_synced(void **state) {
    (void)state;
    bool above = false, below = false;
    char expected[2][600];
    (void)snprintf(expected[0], sizeof expected[0], "the directory %s:", root);
    (void)snprintf(expected[1], sizeof expected[1], "the directory %s:", at("a"));
    for (int64_t n = 0, reached = 1; reached; n++) {
        wefti_fault_arm(WEFTI_FAULT_IO, n, false, EIO);
        weft_status status = wefti_dir_make(at("a/b"));
        reached = wefti_fault_count(WEFTI_FAULT_IO) > n;
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_int_equal(status, reached ? WEFT_E_IO : WEFT_OK);
        bool syncs = reached && has_facts(weft_error_message(), "sync|directory");
        above = above || (syncs && has_facts(weft_error_message(), expected[0]));
        below = below || (syncs && has_facts(weft_error_message(), expected[1]));
        assert_int_equal(wefti_remove_tree(at("a")), WEFT_OK);
    }
    assert_true(above);
    assert_true(below);
}

static void removing_does_not_follow_links(void **state) {
    (void)state;
    assert_int_equal(wefti_dir_make(at("keep")), WEFT_OK);
    assert_int_equal(wefti_file_write(at("keep/file"), "1", 1), WEFT_OK);
    assert_int_equal(wefti_dir_make(at("gone/deep")), WEFT_OK);
    assert_int_equal(symlink(at("keep"), at("gone/link")), 0);
    assert_int_equal(wefti_remove_tree(at("gone")), WEFT_OK);
    assert_false(wefti_exists(at("gone")));
    assert_true(wefti_exists(at("keep/file")));
    assert_int_equal(wefti_remove_tree(at("gone")), WEFT_OK);
    assert_int_equal(wefti_remove_tree(at("keep/file")), WEFT_OK);
    assert_int_equal(wefti_remove_tree(""), WEFT_E_ARG);
}

/* Fail call n = 0, 1, 2... of an overwrite: old or new content, no leftovers, until none fails. */
static void fail_each(wefti_fault_kind kind, int error_number) {
    for (int64_t n = 0;; n++) {
        assert_int_equal(wefti_file_write(at("f"), "old", 3), WEFT_OK);
        wefti_fault_arm(kind, n, false, error_number);
        weft_status status = wefti_file_write(at("f"), "new", 3);
        bool reached = wefti_fault_count(kind) > n;
        wefti_fault_arm(kind, -1, false, 0);
        assert_int_equal(entries(), 1);
        char *text;
        int64_t bytes;
        assert_int_equal(wefti_file_read(at("f"), 100, &text, &bytes), WEFT_OK);
        assert_true(!strcmp(text, "old") || !strcmp(text, "new"));
        if (status == WEFT_OK) assert_string_equal(text, "new");
        wefti_free(text);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            assert_true(n > 2);
            return;
        }
        assert_true(status < 0);
        assert_true(weft_error_message()[0]);
    }
}

static void every_call_of_a_write_failed(void **state) {
    (void)state;
    fail_each(WEFTI_FAULT_IO, EIO);
    fail_each(WEFTI_FAULT_IO, ENOSPC);
    fail_each(WEFTI_FAULT_ALLOC, 0);
}

static void every_call_of_the_others_failed(void **state) {
    (void)state;
    for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
        for (int64_t n = 0, reached = 1; reached; n++) {
            assert_int_equal(wefti_file_write(at("f"), "text", 4), WEFT_OK);
            wefti_fault_arm((wefti_fault_kind)kind, n, false, EIO);
            char *text, **names;
            int64_t bytes, failures = 0;
            if (wefti_file_read(at("f"), 100, &text, &bytes) == WEFT_OK)
                wefti_free(text);
            else
                failures++;
            failures += wefti_dir_make(at("d/e")) != WEFT_OK;
            if (wefti_dir_list(root, &names, &bytes) == WEFT_OK)
                wefti_free(names);
            else
                failures++;
            failures += wefti_rename(at("f"), at("g")) != WEFT_OK;
            failures += wefti_remove_tree(at("d")) != WEFT_OK;
            reached = wefti_fault_count((wefti_fault_kind)kind) > n;
            wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
            assert_int_equal(failures, reached ? 1 : 0);
            assert_int_equal(wefti_remove_tree(at("d")), WEFT_OK);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_and_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_is_not_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_shows_nothing_before_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(writes_what_is_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(writes_where_links_lead, setup, teardown),
        cmocka_unit_test_setup_teardown(reading_is_limited, setup, teardown),
        cmocka_unit_test_setup_teardown(directories, setup, teardown),
        cmocka_unit_test_setup_teardown(new_directories_are_synced, setup, teardown),
        cmocka_unit_test_setup_teardown(removing_does_not_follow_links, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_of_a_write_failed, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_of_the_others_failed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
