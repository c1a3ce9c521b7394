/* Devices: memory, copies, mappings and the order of work, alike on all of them. Host code that
 * touches the memory of a fenced device dies. weft-test: threads */
#include "support.h"

#include "device_bytes.h"
#include "memory_home.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/status.h"

enum { BYTES = 1 << 20, PART = 1000 };

static const wefti_device_table *const tables[] = {&wefti_device_host, &wefti_device_fenced};
enum { TABLES = sizeof tables / sizeof *tables };

typedef struct fixture {
    wefti_device *device;
    wefti_stream *stream;
    unsigned char *memory;
} fixture;

static fixture begin(const wefti_device_table *table) {
    fixture f;
    void *memory;
    ASSERT_OK(wefti_device_open(table, &f.device));
    ASSERT_OK(wefti_stream_create(f.device, NULL, &f.stream));
    ASSERT_OK(table->allocate(f.device, WEFTI_SPACE_DEVICE, BYTES, &memory));
    f.memory = memory;
    return f;
}

static void end(fixture *f) {
    f->device->table->free(f->device, WEFTI_SPACE_DEVICE, f->memory, BYTES);
    wefti_stream_destroy(f->stream);
    wefti_device_close(f->device);
}

static void assert_all(fixture *f, int64_t at, int64_t bytes, int byte) {
    unsigned char got[PART];
    ASSERT_OK(device_read(f->device, got, f->memory + at, bytes));
    for (int64_t i = 0; i < bytes; i++) assert_int_equal(got[i], byte);
}

static void test_memory_is_zero_and_takes_bytes(void **state) {
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        fixture f = begin(tables[t]);
        unsigned char bytes[PART];
        assert_all(&f, 0, PART, 0);
        assert_all(&f, BYTES - PART, PART, 0);
        memset(bytes, 7, sizeof bytes);
        ASSERT_OK(device_write(f.device, f.memory + 5000, bytes, PART));
        assert_all(&f, 5000, PART, 7);
        assert_all(&f, 5000 + PART, PART, 0);
        end(&f);
    }
}

static void test_work_of_a_stream_is_done_in_order(void **state) {
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        fixture f = begin(tables[t]);
        float got[4];
        const float one[4] = {1, 1, 1, 1};
        ASSERT_OK(device_write(f.device, f.memory, one, sizeof one));
        ASSERT_OK(wefti_stream_copy(f.stream, f.memory + 64, WEFTI_SPACE_DEVICE, f.memory,
                                    WEFTI_SPACE_DEVICE, sizeof one));
        ASSERT_OK(
            wefti_stream_add(f.stream, WEFTI_SPACE_DEVICE, WEFT_F32, f.memory, f.memory + 64, 4));
        ASSERT_OK(
            wefti_stream_add(f.stream, WEFTI_SPACE_DEVICE, WEFT_F32, f.memory, f.memory + 64, 4));
        ASSERT_OK(wefti_stream_fill(f.stream, f.memory + 64, WEFTI_SPACE_DEVICE, 0, sizeof one));
        ASSERT_OK(
            wefti_stream_add(f.stream, WEFTI_SPACE_DEVICE, WEFT_F32, f.memory, f.memory + 64, 4));
        ASSERT_OK(wefti_stream_copy(f.stream, got, WEFTI_SPACE_HOST, f.memory, WEFTI_SPACE_DEVICE,
                                    sizeof got));
        ASSERT_OK(wefti_stream_finish(f.stream));
        for (int i = 0; i < 4; i++) assert_true(got[i] == 3);
        end(&f);
    }
}

/* What the host reads is published work. */
static void test_the_host_waits_for_what_is_published(void **state) {
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        fixture f = begin(tables[t]);
        unsigned char bytes[PART];
        memset(bytes, 9, sizeof bytes);
        ASSERT_OK(wefti_stream_copy(f.stream, f.memory, WEFTI_SPACE_DEVICE, bytes, WEFTI_SPACE_HOST,
                                    PART));
        ASSERT_OK(wefti_stream_publish(f.stream));
        assert_all(&f, 0, PART, 9);
        end(&f);
    }
}

static void test_mappings(void **state) {
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        fixture f = begin(tables[t]);
        wefti_mapping m;
        memory_home keep;
        const wefti_home home = memory_home_of(&keep, f.device, f.memory, BYTES);
        ASSERT_OK(wefti_home_map(&home, 100, PART, WEFTI_ACCESS_WRITE, &m));
        memset(m.data, 3, PART);
        ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
        assert_all(&f, 100, PART, 3);
        ASSERT_OK(wefti_home_map(&home, 100, PART, WEFTI_ACCESS_UPDATE, &m));
        assert_int_equal(((unsigned char *)m.data)[PART - 1], 3);
        ((unsigned char *)m.data)[0] = 4;
        ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
        assert_all(&f, 100, 1, 4);
        assert_all(&f, 101, PART - 1, 3);
        ASSERT_OK(wefti_home_map(&home, 0, PART, WEFTI_ACCESS_READ, &m));
        assert_int_equal(((unsigned char *)m.data)[100], 4);
        assert_int_equal(wefti_home_unmap(&m, WEFT_E_IO), WEFT_E_IO);
        end(&f);
    }
}

/* Memory of the host needs no device; on a direct device a mapping is the memory itself. */
static void test_mappings_that_cost_nothing(void **state) {
    (void)state;
    wefti_mapping m;
    unsigned char here[16];
    memory_home keep;
    wefti_home home = memory_home_of(&keep, NULL, here, sizeof here);
    ASSERT_OK(wefti_home_map(&home, 0, sizeof here, WEFTI_ACCESS_UPDATE, &m));
    assert_ptr_equal(m.data, here);
    ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    fixture f = begin(&wefti_device_host);
    home = memory_home_of(&keep, f.device, f.memory, BYTES);
    ASSERT_OK(wefti_home_map(&home, 8, 16, WEFTI_ACCESS_UPDATE, &m));
    assert_ptr_equal(m.data, f.memory + 8);
    ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    end(&f);
}

/* ---- the fence ---- */

/* Whether `touch` dies of a segmentation fault (a sanitizer's report of one included). */
static bool dies(void (*touch)(fixture *f), fixture *f) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        touch(f);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

static void read_a_byte(fixture *f) {
    volatile unsigned char byte = *(volatile unsigned char *)(f->memory + 100);
    (void)byte;
}
static void write_a_byte(fixture *f) {
    *(volatile unsigned char *)(f->memory + 100) = 1;
}
static void read_far_away(fixture *f) {
    volatile unsigned char byte = *(volatile unsigned char *)(f->memory + 8 * PART * 64);
    (void)byte;
}

static void test_a_host_access_dies(void **state) {
    (void)state;
    fixture host = begin(&wefti_device_host), f = begin(&wefti_device_fenced);
    assert_false(dies(read_a_byte, &host));
    assert_false(dies(write_a_byte, &host));
    assert_true(dies(read_a_byte, &f));
    assert_true(dies(write_a_byte, &f));
    assert_true(dies(read_far_away, &f));
    end(&host);
    end(&f);
}

static void test_what_is_exposed_may_be_touched(void **state) {
    (void)state;
    fixture f = begin(&wefti_device_fenced);
    wefti_byte_range first = {f.memory + 90, 20}, both[] = {{f.memory, 50}, {NULL, 0}};
    ASSERT_OK(wefti_stream_expose(f.stream, WEFTI_SPACE_DEVICE, &first, 1));
    assert_false(dies(read_a_byte, &f));
    assert_false(dies(write_a_byte, &f));
    assert_true(dies(read_far_away, &f));
    ASSERT_OK(wefti_stream_expose(f.stream, WEFTI_SPACE_DEVICE, both,
                                  2)); /* Bytes that the host reads are the
                                        * result of published work. */
    wefti_stream_conceal(f.stream, both, 2);
    assert_false(dies(read_a_byte, &f));
    wefti_stream_conceal(f.stream, &first, 1);
    assert_true(dies(read_a_byte, &f));
    end(&f);
}

/* A copy is told in which space its bytes lie, and looks. */
static void test_a_copy_with_the_wrong_space_is_refused(void **state) {
    (void)state;
    fixture f = begin(&wefti_device_fenced);
    unsigned char here[16] = {0};
    assert_int_equal(wefti_stream_copy(f.stream, f.memory, WEFTI_SPACE_DEVICE, here,
                                       WEFTI_SPACE_DEVICE, sizeof here),
                     WEFT_E_BUG);
    assert_int_equal(wefti_stream_copy(f.stream, f.memory, WEFTI_SPACE_HOST, here, WEFTI_SPACE_HOST,
                                       sizeof here),
                     WEFT_E_BUG);
    wefti_byte_range range = {here, sizeof here};
    assert_int_equal(wefti_stream_expose(f.stream, WEFTI_SPACE_DEVICE, &range, 1), WEFT_E_BUG);
    end(&f);
}

/* Memory in host space: copies of the device reach it, and kernels of the host while it is exposed.
 * Kernels and transfers of the device do not. */
static void test_copies_and_the_host_reach_host_space(void **state) {
    (void)state;
    for (int t = 0; t < TABLES; t++) {
        fixture f = begin(tables[t]);
        void *memory;
        ASSERT_OK(tables[t]->allocate(f.device, WEFTI_SPACE_HOST, BYTES, &memory));
        fixture other = {f.device, f.stream, memory};
        unsigned char bytes[PART];
        assert_int_equal(dies(read_a_byte, &other), t == 1);
        memset(bytes, 9, sizeof bytes);
        ASSERT_OK(wefti_device_copy(f.device, other.memory, WEFTI_SPACE_HOST, bytes,
                                    WEFTI_SPACE_HOST, PART));
        ASSERT_OK(wefti_stream_copy(f.stream, f.memory + 70, WEFTI_SPACE_DEVICE, other.memory,
                                    WEFTI_SPACE_HOST, PART));
        ASSERT_OK(wefti_stream_fill(f.stream, other.memory, WEFTI_SPACE_HOST, 3, PART));
        ASSERT_OK(wefti_stream_copy(f.stream, f.memory + 70 + PART, WEFTI_SPACE_DEVICE,
                                    other.memory, WEFTI_SPACE_HOST, PART));
        ASSERT_OK(wefti_stream_publish(f.stream));
        assert_all(&f, 70, PART, 9);
        assert_all(&f, 70 + PART, PART, 3);
        wefti_byte_range range = {other.memory, PART};
        if (t == 1) {
            assert_int_equal(wefti_stream_expose(f.stream, WEFTI_SPACE_DEVICE, &range, 1),
                             WEFT_E_BUG);
            assert_int_equal(wefti_stream_copy(f.stream, f.memory, WEFTI_SPACE_DEVICE, other.memory,
                                               WEFTI_SPACE_DEVICE, PART),
                             WEFT_E_BUG);
            const wefti_byte_range here = {f.memory, PART};
            assert_int_equal(wefti_stream_expose(f.stream, WEFTI_SPACE_HOST, &here, 1), WEFT_E_BUG);
            ASSERT_OK(wefti_stream_expose(f.stream, WEFTI_SPACE_HOST, &range, 1));
            assert_int_equal(dies(read_a_byte, &other), false);
            wefti_stream_conceal(f.stream, &range, 1);
            assert_true(dies(read_a_byte, &other));
        }
        ASSERT_OK(wefti_stream_finish(f.stream));
        tables[t]->free(f.device, WEFTI_SPACE_HOST, memory, BYTES);
        end(&f);
    }
}

/* Copies run late: a host that does not wait reads old bytes. */
static void test_a_copy_is_done_when_somebody_waits(void **state) {
    (void)state;
    fixture f = begin(&wefti_device_fenced);
    unsigned char got[16];
    memset(got, 1, sizeof got);
    ASSERT_OK(wefti_stream_copy(f.stream, got, WEFTI_SPACE_HOST, f.memory, WEFTI_SPACE_DEVICE,
                                sizeof got));
    assert_int_equal(got[0], 1);
    ASSERT_OK(wefti_stream_finish(f.stream));
    assert_int_equal(got[0], 0);
    end(&f);
}

static void test_memory_of_others_is_fenced_while_it_is_the_devices(void **state) {
    (void)state;
    fixture f = begin(&wefti_device_fenced), other = begin(&wefti_device_host);
    fixture adopted = {f.device, f.stream, other.memory};
    ASSERT_OK(f.device->table->adopt(f.device, other.memory, BYTES));
    assert_true(dies(read_a_byte, &adopted));
    f.device->table->release(f.device, other.memory, BYTES);
    assert_false(dies(read_a_byte, &adopted));
    end(&f);
    end(&other);
}

static void test_an_unknown_device_is_refused(void **state) {
    (void)state;
    const wefti_device_table *table = NULL;
    const char *before = getenv("WEFT_DEVICE");
    char *kept = before ? strdup(before) : NULL;
    setenv("WEFT_DEVICE", "fencd", 1);
    assert_int_equal(wefti_device_choose(0, &table), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_DEVICE"));
    assert_non_null(strstr(weft_error_message(), "fencd"));
    assert_null(table);
    setenv("WEFT_DEVICE", "fenced", 1);
    ASSERT_OK(wefti_device_choose(0, &table));
    assert_ptr_equal(table, &wefti_device_fenced);
    setenv("WEFT_DEVICE", "fenced,host", 1);
    for (int32_t rank = 0; rank < 5; rank++) {
        ASSERT_OK(wefti_device_choose(rank, &table));
        assert_ptr_equal(table, rank % 2 ? &wefti_device_host : &wefti_device_fenced);
    }
    static const char *const empty_words[] = {"host,", ",host", "host,,fenced", ","};
    for (size_t i = 0; i < sizeof empty_words / sizeof *empty_words; i++) {
        char facts[64];
        snprintf(facts, sizeof facts, "WEFT_DEVICE=%s|empty|host, fenced", empty_words[i]);
        setenv("WEFT_DEVICE", empty_words[i], 1);
        ASSERT_FAILS(WEFT_E_ARG, facts, wefti_device_choose(0, &table));
    }
    unsetenv("WEFT_DEVICE");
    ASSERT_OK(wefti_device_choose(0, &table));
    assert_ptr_equal(table, &wefti_device_host);
    if (kept) setenv("WEFT_DEVICE", kept, 1);
    free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_zero_and_takes_bytes),
        cmocka_unit_test(test_work_of_a_stream_is_done_in_order),
        cmocka_unit_test(test_the_host_waits_for_what_is_published),
        cmocka_unit_test(test_mappings),
        cmocka_unit_test(test_mappings_that_cost_nothing),
        cmocka_unit_test(test_a_host_access_dies),
        cmocka_unit_test(test_what_is_exposed_may_be_touched),
        cmocka_unit_test(test_a_copy_with_the_wrong_space_is_refused),
        cmocka_unit_test(test_copies_and_the_host_reach_host_space),
        cmocka_unit_test(test_a_copy_is_done_when_somebody_waits),
        cmocka_unit_test(test_memory_of_others_is_fenced_while_it_is_the_devices),
        cmocka_unit_test(test_an_unknown_device_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
