/* Device workers: every device works in a thread of its own. The first failure is reported, and
 * nobody waits for a failed device. */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "device_bytes.h"
#include "exec/workers.h"

enum { MOST = 8, ROUNDS = 200 };

static wefti_workers *workers_of(int32_t devices) {
    wefti_footprint need[MOST];
    wefti_workers *workers;
    for (int r = 0; r < MOST; r++) need[r] = (wefti_footprint){{{4096 * (r + 1), 0}}};
    ASSERT_OK(wefti_workers_create(devices, 1, need, NULL, &workers));
    assert_non_null(wefti_workers_device(workers, devices - 1));
    assert_null(wefti_workers_device(workers, devices));
    return workers;
}

typedef struct shared {
    pthread_t threads[MOST];
    int64_t sum[MOST];
    atomic_int calls;
    int32_t failing; /* -1: nobody */
    bool late;       /* it fails when all others have begun to wait */
    wefti_endpoint *endpoints[MOST];
    int32_t devices;
} shared;

static weft_status count(void *context, wefti_rank_device *device, int32_t rank) {
    shared *s = context;
    s->threads[rank] = pthread_self();
    s->sum[rank] += rank + 1;
    unsigned char sum = (unsigned char)s->sum[rank];
    WEFT_TRY(device_write(wefti_rank_device_device(device),
                          wefti_rank_device_at(device, (wefti_location){0}), &sum, 1));
    atomic_fetch_add(&s->calls, 1);
    return WEFT_OK;
}

static unsigned char first_byte(wefti_rank_device *device) {
    unsigned char byte;
    ASSERT_OK(device_read(wefti_rank_device_device(device), &byte,
                          wefti_rank_device_at(device, (wefti_location){0}), 1));
    return byte;
}

/* *context: the cores of each device's thread. */
static weft_status look_at_cores(void *context, wefti_rank_device *device, int32_t rank) {
    cpu_set_t *cores = context;
    (void)device;
    WEFT_REQUIRE(sched_getaffinity(0, sizeof *cores, &cores[rank]) == 0, WEFT_E_BUG, "no affinity");
    return WEFT_OK;
}

/* With more devices than cores, the devices of one core are as many as those of another, or one
 * more. With fewer, and after the workers, threads run where they may. */
static void devices_take_turns_on_cores(void **state) {
    (void)state;
    cpu_set_t all, few, now, seen[MOST];
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&few);
    for (size_t c = 0; c < CPU_SETSIZE && CPU_COUNT(&few) < 3; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &few);
    const int cores = CPU_COUNT(&few);
    assert_int_equal(sched_setaffinity(0, sizeof few, &few), 0);
    for (int32_t n = 2; n <= MOST; n++) {
        wefti_workers *workers = workers_of(n);
        int load[CPU_SETSIZE] = {0};
        ASSERT_OK(wefti_workers_run(workers, look_at_cores, seen));
        for (int32_t r = 0; r < n; r++) {
            assert_int_equal(CPU_COUNT(&seen[r]), n > cores ? 1 : cores);
            for (size_t c = 0; c < CPU_SETSIZE; c++) load[c] += CPU_ISSET(c, &seen[r]) != 0;
        }
        for (size_t c = 0; c < CPU_SETSIZE && n > cores; c++)
            if (CPU_ISSET(c, &few))
                assert_in_range(load[c], n / cores, (n + cores - 1) / cores);
            else
                assert_int_equal(load[c], 0);
        wefti_workers_destroy(workers);
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_true(CPU_EQUAL(&now, &few));
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void every_device_has_a_thread(void **state) {
    (void)state;
    for (int32_t n = 1; n <= MOST; n++) {
        wefti_workers *workers = workers_of(n);
        shared s = {.failing = -1};
        pthread_t first[MOST];
        for (int i = 0; i < ROUNDS; i++) {
            ASSERT_OK(wefti_workers_run(workers, count, &s));
            assert_int_equal(atomic_load(&s.calls), n * (i + 1));
            for (int32_t r = 0; r < n; r++) {
                if (i == 0) first[r] = s.threads[r];
                assert_true(pthread_equal(first[r], s.threads[r]));
                assert_int_equal(s.sum[r], (r + 1) * (i + 1));
                assert_int_equal(first_byte(wefti_workers_device(workers, r)),
                                 (unsigned char)s.sum[r]);
            }
        }
        assert_int_equal(pthread_equal(first[0], pthread_self()) != 0, n == 1);
        for (int32_t a = 0; a < n; a++)
            for (int32_t b = 0; b < a; b++) assert_false(pthread_equal(first[a], first[b]));
        wefti_workers_destroy(workers);
    }
}

/* The sum of all devices' numbers, unless a device fails before it gives its number. */
static weft_status wait_for_all(void *context, wefti_rank_device *device, int32_t rank) {
    shared *s = context;
    float mine = (float)(rank + 1), all = 0;
    if (rank == s->failing) {
        while (s->late && atomic_load(&s->calls) < s->devices - 1) sched_yield();
        WEFT_FAIL(WEFT_E_NUMERIC, "device %d has had enough", rank);
    }
    atomic_fetch_add(&s->calls, 1);
    (void)device;
    WEFT_TRY(wefti_comm_run(s->endpoints[rank], &mine, &all));
    s->sum[rank] = (int64_t)all;
    return WEFT_OK;
}

static weft_status bind(void *context, wefti_rank_device *device, int32_t rank) {
    shared *s = context;
    int32_t ranks[MOST];
    wefti_region boxes[MOST];
    for (int32_t r = 0; r < s->devices; r++) {
        ranks[r] = r;
        boxes[r] = (wefti_region){{0}, {1}};
    }
    wefti_transfer t = {.kind = WEFTI_TRANSFER_ALL_REDUCE,
                        .reduction = WEFTI_REDUCE_SUM,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = s->devices,
                        .me = rank,
                        .ranks = ranks,
                        .have = boxes,
                        .want = boxes,
                        .tag = 7,
                        .name = "count"};
    wefti_comm *comm = wefti_rank_device_comm(device);
    return comm->engine->bind(comm, &t, &s->endpoints[rank]);
}

static weft_status unbind(void *context, wefti_rank_device *device, int32_t rank) {
    shared *s = context;
    wefti_rank_device_comm(device)->engine->unbind(s->endpoints[rank]);
    return WEFT_OK;
}

static void a_failure_ends_all_waiting(void **state) {
    (void)state;
    for (int32_t n = 2; n <= MOST; n += 3) {
        wefti_workers *workers = workers_of(n);
        shared s = {.failing = -1, .devices = n};
        ASSERT_OK(wefti_workers_run(workers, bind, &s));
        for (int i = 0; i < 60; i++) {
            char want[64];
            atomic_store(&s.calls, 0);
            s.failing = i % 3 == 2 ? -1 : i % n;
            s.late = i % 3 == 1;
            weft_status status = wefti_workers_run(workers, wait_for_all, &s);
            if (s.failing < 0) {
                ASSERT_OK(status);
                for (int32_t r = 0; r < n; r++) assert_int_equal(s.sum[r], n * (n + 1) / 2);
                continue;
            }
            assert_int_equal(status, WEFT_E_NUMERIC);
            (void)snprintf(want, sizeof want, "device %d has had enough", s.failing);
            assert_string_equal(weft_error_message(), want);
            (void)snprintf(want, sizeof want, "device %d: device %d has had enough", s.failing,
                           s.failing);
            assert_int_equal(wefti_workers_name(workers, status), WEFT_E_NUMERIC);
            assert_string_equal(weft_error_message(), want);
        }
        ASSERT_OK(wefti_workers_run(workers, unbind, &s));
        wefti_workers_destroy(workers);
    }
}

static void no_devices_are_refused(void **state) {
    (void)state;
    wefti_workers *workers = NULL;
    assert_int_equal(wefti_workers_create(0, 1, (wefti_footprint[1]){{{{1, 0}}}}, NULL, &workers),
                     WEFT_E_ARG);
    assert_int_equal(
        wefti_workers_create(2, 0, (wefti_footprint[2]){{{{1, 0}}}, {{{1, 0}}}}, NULL, &workers),
        WEFT_E_ARG);
    assert_null(workers);
    wefti_workers_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_device_has_a_thread),
        cmocka_unit_test(devices_take_turns_on_cores),
        cmocka_unit_test(a_failure_ends_all_waiting),
        cmocka_unit_test(no_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
