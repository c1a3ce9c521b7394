/* Pods of Volcano: what its plugins `env` and `svc` say of one task, of several, beside other
 * launchers, and malformed. */
#include <stdio.h>

#include "environment_cases.h"

#define HOSTS "VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job,job-worker-2.job"
#define WORKERS "VC_WORKER_NUM=3", HOSTS

static void test_one_task(void **state) {
    (void)state;
    wefti_launcher first = READ("VC_TASK_INDEX=0", WORKERS), l = READ("VC_TASK_INDEX=2", WORKERS);
    place_is(&l, "Volcano", 2, 3);
    place_is(&first, "Volcano", 0, 3);
    assert_string_equal(l.scheduler_host, "job-worker-0.job");
    assert_in_range(l.scheduler_port, 10000, 29999);
    address_is(&first, "job-worker-0.job", l.scheduler_port);
    assert_true(first.serves && !l.serves);
    assert_int_equal(l.place.local_rank, 0);
    assert_int_equal(l.place.local_size, 1);
    assert_int_equal(l.place.host, 2);
    assert_int_equal(l.place.hosts, 3);
    assert_false(l.one_host || l.mpi || l.is_scheduler);
    /* By the older name, on the network of a node, and where the list is all there is. */
    l = READ_ON("node7", "VK_TASK_INDEX=1", HOSTS);
    place_is(&l, "Volcano", 1, 3);
    l = READ("VC_TASK_INDEX=1", "VK_TASK_INDEX=1", WORKERS);
    place_is(&l, "Volcano", 1, 3);
    /* Names of tasks may hold what the names of these variables hold. */
    l = READ("VC_TASK_INDEX=1", "VC_A_HOSTS_NUM=2", "VC_A_HOSTS_HOSTS=a,b");
    place_is(&l, "Volcano", 1, 2);
    /* One pod meets nobody. */
    l = READ("VC_TASK_INDEX=0", "VC_W_NUM=1", "VC_W_HOSTS=w-0.job");
    place_is(&l, "Volcano", 0, 1);
    assert_int_equal(l.scheduler_port, 0);
    assert_false(l.serves);
}

static void test_another_address(void **state) {
    (void)state;
    wefti_launcher l = READ("VC_TASK_INDEX=0", WORKERS, "WEFT_SCHEDULER=10.0.0.1:9000");
    address_is(&l, "10.0.0.1", 9000);
    place_is(&l, "Volcano", 0, 3);
    assert_true(l.serves);
    l = READ("VC_TASK_INDEX=1", WORKERS, "MASTER_ADDR=boss", "MASTER_PORT=23456");
    address_is(&l, "boss", 23456);
    l = READ("VC_TASK_INDEX=1", WORKERS, "MASTER_ADDR=boss");
    assert_string_equal(l.scheduler_host, "job-worker-0.job");
    REFUSE("MASTER_PORT", "'x'", "VC_TASK_INDEX=1", WORKERS, "MASTER_ADDR=b", "MASTER_PORT=x");
}

#define BOSS "VC_BOSS_NUM=1", "VC_BOSS_HOSTS=job-boss-0.job"

/* The own task has this host at this position of its list. */
static void test_several_tasks(void **state) {
    (void)state;
    wefti_launcher l = READ_ON("job-worker-0", "VC_TASK_INDEX=0", BOSS, WORKERS);
    place_is(&l, "Volcano", 0, 3);
    assert_true(l.serves);
    l = READ_ON("job-worker-2", "VC_TASK_INDEX=2", WORKERS, BOSS);
    place_is(&l, "Volcano", 2, 3);
    assert_string_equal(l.scheduler_host, "job-worker-0.job");
    l = READ_ON("job-boss-0.job.default.svc.cluster.local", "VC_TASK_INDEX=0", BOSS, WORKERS);
    place_is(&l, "Volcano", 0, 1);
    assert_int_equal(l.scheduler_port, 0);
    /* A task without pods has an empty list. */
    l = READ_ON("node7", "VC_TASK_INDEX=2", WORKERS, "VC_SPARE_NUM=0", "VC_SPARE_HOSTS=");
    place_is(&l, "Volcano", 2, 3);
    static const char *const strangers[] = {"node7", "job-worker-2", "job-worker", "job", ""};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        REFUSE_ON(strangers[i], "VC_TASK_INDEX is 1", "VC_BOSS_HOSTS, VC_WORKER_HOSTS none has",
                  "VC_TASK_INDEX=1", BOSS, WORKERS);
        REFUSE_ON(strangers[i], strangers[i], "set WEFT_SIZE, WEFT_RANK and WEFT_SCHEDULER",
                  "VK_TASK_INDEX=1", BOSS, WORKERS);
    }
    REFUSE_ON("x", "VC_A_HOSTS, VC_B_HOSTS several have", "'x', as number 0", "VC_TASK_INDEX=0",
              "VC_A_HOSTS=x.job", "VC_B_HOSTS=x.job");
    REFUSE_ON("y", "of the 3 tasks", "and others", "VC_TASK_INDEX=0", "VC_A_HOSTS=a",
              "VC_B_HOSTS=b", "VC_C_HOSTS=c");
}

/* A launcher that gives the rank counts in pods too; lists are not read then. */
static void test_beside_others(void **state) {
    (void)state;
    wefti_launcher l = READ("VC_TASK_INDEX=1", "VC_A_HOSTS=,", "RANK=5", "WORLD_SIZE=8",
                            "MASTER_ADDR=h", "MASTER_PORT=1");
    place_is(&l, "torchrun", 5, 8);
    address_is(&l, "h", 1);
    l = READ("VC_TASK_INDEX=1", "VC_A_HOSTS=,", "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8");
    place_is(&l, "Open MPI", 5, 8);
    assert_int_equal(l.scheduler_port, 0);
    l = READ("VC_TASK_INDEX=1", "VC_A_HOSTS=,", "WEFT_RANK=0", "WEFT_SIZE=1");
    place_is(&l, "weft launch", 0, 1); /* each pod a job of its own */
    l = READ("VC_TASK_INDEX=1", "VC_A_HOSTS=,", "WEFT_SIZE=8", "WEFT_SCHEDULER=a:1");
    place_is(&l, "weft launch", 1, 8);
    address_is(&l, "a", 1);
    l = READ("VC_TASK_INDEX=1", WORKERS, "WEFT_SIZE=8", "WEFT_LOCAL_RANK=1", "WEFT_LOCAL_SIZE=2");
    place_is(&l, "weft launch", -1, 8);
    assert_int_equal(l.scheduler_port, 0);
    /* What WEFT_SIZE leaves open the list tells, if it is of the same job. */
    l = READ("VC_TASK_INDEX=1", WORKERS, "WEFT_SIZE=3");
    place_is(&l, "weft launch", 1, 3);
    assert_string_equal(l.scheduler_host, "job-worker-0.job");
    assert_in_range(l.scheduler_port, 10000, 29999);
    l = READ("VC_TASK_INDEX=0", WORKERS, "WEFT_SIZE=3");
    assert_true(l.serves);
    REFUSE("WEFT_SIZE is 4", "the number of VC_WORKER_HOSTS is 3", "VC_TASK_INDEX=1", WORKERS,
           "WEFT_SIZE=4");
    REFUSE("WEFT_LOCAL_RANK is set", "WEFT_SIZE", "VC_TASK_INDEX=1", WORKERS, "WEFT_LOCAL_RANK=0");
    REFUSE("MS_ROLE is not", "MS_WORKER_NUM", "VC_TASK_INDEX=1", WORKERS, "MS_SCHED_HOST=h",
           "MS_WORKER_NUM=3");
    REFUSE("PMIX_RANK is set", "WEFT_SIZE", "VC_TASK_INDEX=1", WORKERS, "PMIX_RANK=1");
}

/* Processes that are alone without Volcano stay alone. */
static void test_says_nothing(void **state) {
    (void)state;
    static const char *const environments[][4] = {
        {"VC_TASK_INDEX=2"},
        {WORKERS},
        {"VC_WORKER_HOSTS=,"},
        {"VC_TASK_INDEX=", WORKERS},
        {"VC_TASK_INDEX=2", "VC_BATCH_NUM=many"},
        {"VC_TASK_INDEX=2", "VC_WORKER_NUM=3", "VC_WORKER_HOSTS="},
        {"VC_TASK_INDEX=2", "VC_HOSTS=a,b", "VC__HOSTS"},
        {"VC_TASK_INDEX=2", "VC_worker_HOSTS=a b", "XVC_A_HOSTS=a"},
    };
    for (size_t i = 0; i < sizeof environments / sizeof *environments; i++) {
        wefti_launcher l = read_good(environments[i]);
        assert_int_equal(l.start, WEFTI_START_ALONE);
        assert_null(l.place.name);
        assert_int_equal(l.scheduler_port, 0);
    }
    char longer[200];
    memset(longer, 'A', sizeof longer);
    memcpy(longer, "VC_", 3);
    (void)snprintf(longer + 150, sizeof longer - 150, "_HOSTS=a b");
    wefti_launcher l = READ("VC_TASK_INDEX=0", longer);
    assert_int_equal(l.start, WEFTI_START_ALONE);
}

static void test_malformed(void **state) {
    (void)state;
    static const char *const lists[][2] = {
        {"a,,b", "number 1,"},  {",a", "number 0,"},         {"a,", "number 1,"},
        {"a, b", "number 1,"},  {" a,b", "number 0,"},       {"a,b ", "number 1,"},
        {"a\n,b", "number 0,"}, {"a,b:9000", "number 1,"},   {",", "number 0,"},
        {"a;b", "number 0,"},   {"[fe80::1],b", "number 0,"}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char text[80], value[80];
        (void)snprintf(text, sizeof text, "VC_WORKER_HOSTS=%s", lists[i][0]);
        (void)snprintf(value, sizeof value, "VC_WORKER_HOSTS is '%s'", lists[i][0]);
        REFUSE(value, lists[i][1], "VC_TASK_INDEX=0", text);
        REFUSE(value, lists[i][1], BOSS, "VC_TASK_INDEX=0", text);
    }
    char longer[400];
    memset(longer, 'a', sizeof longer);
    memcpy(longer, "VC_W_HOSTS=", 11);
    longer[11 + WEFTI_HOST_TEXT] = '\0';
    REFUSE("VC_W_HOSTS is 'aaa", "number 0,", "VC_TASK_INDEX=0", longer);
    REFUSE("VC_WORKER_NUM", "'three'", "VC_TASK_INDEX=0", "VC_WORKER_NUM=three", HOSTS);
    REFUSE("VC_WORKER_NUM", "'-3'", "VC_TASK_INDEX=0", "VC_WORKER_NUM=-3", HOSTS);
    REFUSE("VC_WORKER_NUM is 4", "VC_WORKER_HOSTS has 3 hosts", "VC_TASK_INDEX=0",
           "VC_WORKER_NUM=4", HOSTS);
    REFUSE("VC_WORKER_NUM is 0", "VC_WORKER_HOSTS has 1 host:", "VC_TASK_INDEX=0",
           "VC_WORKER_NUM=0", "VC_WORKER_HOSTS=a");
    REFUSE("VC_TASK_INDEX is 3", "VC_WORKER_HOSTS has 3 hosts", "VC_TASK_INDEX=3", WORKERS);
    REFUSE("VC_TASK_INDEX", "'one'", "VC_TASK_INDEX=one", WORKERS);
    REFUSE("VC_TASK_INDEX is 1 (Volcano)", "VK_TASK_INDEX is 2 (Volcano)", "VC_TASK_INDEX=1",
           "VK_TASK_INDEX=2", WORKERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_task),      cmocka_unit_test(test_another_address),
        cmocka_unit_test(test_several_tasks), cmocka_unit_test(test_beside_others),
        cmocka_unit_test(test_says_nothing),  cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
