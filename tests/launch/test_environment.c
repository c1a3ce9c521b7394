/* The environment variables of launchers: each launcher alone, one inside another, each pair that
 * disagrees, and malformed values. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "environment_cases.h"
#include "launch/scheduler/scheduler.h"
#include "launch/env/values.h"

static void test_alone(void **state) {
    (void)state;
    wefti_launcher l = READ("HOME=/root", "WEFT_SIZE=");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    assert_null(l.place.name);
    assert_int_equal(l.place.rank, 0);
    assert_int_equal(l.place.size, 1);
    assert_false(l.serves);
    assert_int_equal(wefti_launcher_check_address(&l), WEFT_OK);
    /* Names that any script might use. */
    l = READ("RANK=gold", "RANK_ID=7", "RANK_SIZE=8");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    l = READ("WORLD_SIZE=100");
    assert_int_equal(l.start, WEFTI_START_ALONE);
}

static void test_weft(void **state) {
    (void)state;
    wefti_launcher l = READ(
        "WEFT_LAUNCH=1", "WEFT_SIZE=4", "WEFT_SCHEDULER=10.0.0.7:9000", "WEFT_LOCAL_RANK=1",
        "WEFT_LOCAL_SIZE=2", "WEFT_HOST=1", "WEFT_HOSTS=2", "WEFT_HOST_ID=h1", "WEFT_NODE_ID=h1.1",
        "WEFT_SECRET_FILE=/tmp/a b/secret", "WEFT_JOIN_SECONDS=20", "WEFT_HEARTBEAT_SECONDS=2.5",
        "WEFT_WAIT_SECONDS=100", "WEFT_INTERFACE=eth0", "WEFT_TLS=1");
    place_is(&l, "weft launch", -1, 4);
    address_is(&l, "10.0.0.7", 9000);
    assert_int_equal(l.place.local_rank, 1);
    assert_int_equal(l.place.host, 1);
    assert_int_equal(l.place.hosts, 2);
    assert_string_equal(l.set.host_id, "h1");
    assert_string_equal(l.node_id, "h1.1");
    assert_string_equal(l.set.secret_file, "/tmp/a b/secret");
    assert_string_equal(l.set.interface, "eth0");
    assert_true(l.set.tls);
    assert_true(l.set.join_seconds == 20 && l.set.heartbeat_seconds == 2.5 &&
                l.set.wait_seconds == 100);
    assert_false(l.serves);
    assert_false(l.one_host);
    /* By hand: rank 0 is the scheduler too. */
    l = READ("WEFT_SIZE=4", "WEFT_RANK=0", "WEFT_SCHEDULER=[fe80::1%eth0]:9000");
    place_is(&l, "weft launch", 0, 4);
    address_is(&l, "fe80::1%eth0", 9000);
    assert_true(l.serves);
    l = READ("WEFT_SIZE=4", "WEFT_RANK=0", "WEFT_SCHEDULER=h:9000", "WEFT_LAUNCH=1");
    assert_false(l.serves);
    l = READ("WEFT_SIZE=1", "WEFT_RANK=0", "WEFT_SCHEDULER=h:9000");
    assert_int_equal(l.scheduler_port, 0);
    l = READ("WEFT_SIZE=1", "WEFT_RANK=0", "WEFT_SCHEDULER=h:9000", "WEFT_LAUNCH=1");
    address_is(&l, "h", 9000);
    l = READ("WEFT_SIZE=4");
    assert_int_equal(wefti_launcher_check_address(&l), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_SCHEDULER"));
}

static void test_torchrun(void **state) {
    (void)state;
    wefti_launcher l = READ("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
                            "GROUP_RANK=1", "GROUP_WORLD_SIZE=2", "MASTER_ADDR=node0",
                            "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=42");
    place_is(&l, "torchrun", 3, 4);
    address_is(&l, "node0", 29500);
    assert_int_equal(l.place.local_rank, 1);
    assert_int_equal(l.place.host, 1);
    assert_false(l.one_host || l.serves);
    assert_string_equal(l.job, "torchrun 42");
    /* torchrun's own store listens on the port. */
    l = READ("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=::1",
             "MASTER_PORT=29500", "TORCHELASTIC_USE_AGENT_STORE=True");
    address_is(&l, "::1", 29501);
    assert_true(l.serves && l.one_host);
    /* One process meets nobody, and calls nobody. */
    l = READ("RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=h",
             "MASTER_PORT=29500");
    place_is(&l, "torchrun", 0, 1);
    assert_int_equal(l.scheduler_port, 0);
    assert_false(l.serves);
    REFUSE("RANK is set", "WORLD_SIZE", "RANK=0", "MASTER_ADDR=h");
    REFUSE("WORLD_SIZE is set", "RANK is not", "WORLD_SIZE=2", "MASTER_ADDR=h");
    REFUSE("MASTER_PORT", "'0'", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=0");
    REFUSE("MASTER_PORT", "'65536'", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h",
           "MASTER_PORT=65536");
}

static void test_mpi(void **state) {
    (void)state;
    wefti_launcher l = READ("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3",
                            "OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=3",
                            "PMIX_RANK=2", "PMIX_SERVER_URI2=12.0;tcp4://127.0.0.1:51677");
    assert_string_equal(l.pmix_server, "127.0.0.1:51677");
    assert_int_equal(l.pmi_fd, -1);
    place_is(&l, "Open MPI", 2, 3);
    assert_int_equal(l.place.local_size, 3);
    assert_true(l.mpi && l.one_host);
    assert_int_equal(l.scheduler_port, 0);
    l = READ("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", "PMI_FD=7",
             "WEFT_SCHEDULER=a:1");
    place_is(&l, "MPICH", 0, 2);
    address_is(&l, "a", 1);
    assert_true(l.mpi && l.serves);
    assert_false(l.one_host);
    l = READ("PMI_RANK=0", "PMI_SIZE=2", "MASTER_ADDR=b", "MASTER_PORT=2");
    address_is(&l, "b", 2);
}

static void test_slurm(void **state) {
    (void)state;
    wefti_launcher l =
        READ("SLURM_STEP_ID=0", "SLURM_JOB_ID=81", "SLURM_PROCID=3", "SLURM_NTASKS=5",
             "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=3", "SLURM_STEP_NUM_NODES=3",
             "SLURM_STEP_TASKS_PER_NODE=2(x2),1", "SLURM_STEP_NODELIST=tux[07-08,11]");
    place_is(&l, "Slurm", 3, 5);
    assert_string_equal(l.scheduler_host, "tux07");
    assert_in_range(l.scheduler_port, 10000, 29999);
    assert_int_equal(l.place.local_rank, 1);
    assert_int_equal(l.place.local_size, 2);
    assert_int_equal(l.place.host, 1);
    assert_int_equal(l.place.hosts, 3);
    assert_string_equal(l.job, "slurm 81.0");
    assert_false(l.mpi);
    /* One host; the step's number of tasks, not the job's. */
    l = READ("SLURM_STEP_ID=1", "SLURM_JOB_ID=81", "SLURM_PROCID=0", "SLURM_NTASKS=8",
             "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_NNODES=1",
             "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_STEP_NODELIST=tux07");
    place_is(&l, "Slurm", 0, 4);
    assert_string_equal(l.scheduler_host, "127.0.0.1");
    assert_true(l.serves && l.one_host);
    /* Two steps of a job meet elsewhere. */
    wefti_launcher m = READ("SLURM_STEP_ID=2", "SLURM_JOB_ID=81", "SLURM_PROCID=0",
                            "SLURM_NTASKS=4", "SLURM_NNODES=1", "SLURM_STEP_NODELIST=tux07");
    assert_int_not_equal(l.scheduler_port, m.scheduler_port);
}

/* Scripts of batch jobs, interactive shells, and shells in an allocation are no tasks. */
static void test_slurm_without_tasks(void **state) {
    (void)state;
    wefti_launcher l = READ("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=7");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    l = READ("SLURM_STEP_ID=4294967291", "SLURM_PROCID=0", "SLURM_NTASKS=8");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    l = READ("SLURM_STEP_ID=4294967290", "SLURM_PROCID=0", "SLURM_NTASKS=8");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    l = READ("SLURM_JOB_ID=7", "SLURM_NTASKS=8");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    REFUSE("SLURM_STEP_ID", "'x'", "SLURM_STEP_ID=x", "SLURM_PROCID=0", "SLURM_NTASKS=8");
}

#define MS "MS_SCHED_HOST=127.0.0.1", "MS_SCHED_PORT=8118", "MS_WORKER_NUM=4"

static void test_mindspore(void **state) {
    (void)state;
    wefti_launcher l =
        READ("MS_ROLE=MS_WORKER", MS, "MS_NODE_ID=2", "MS_TOPO_TIMEOUT=5", "MS_NODE_TIMEOUT=30");
    place_is(&l, "MindSpore", 2, 4);
    address_is(&l, "127.0.0.1", 8118);
    assert_string_equal(l.node_id, "2");
    assert_true(l.set.join_seconds == 5 && l.set.heartbeat_seconds == 30);
    assert_false(l.is_scheduler || l.serves);
    l = READ("MS_ROLE=MS_WORKER", MS, "MS_NODE_ID=0");
    assert_false(l.serves); /* a process of its own does that */
    l = READ("MS_ROLE=MS_WORKER", MS, "MS_NODE_ID=worker-a");
    place_is(&l, "MindSpore", -1, 4);
    l = READ("MS_ROLE=MS_WORKER", MS, "MS_NODE_ID=4");
    place_is(&l, "MindSpore", -1, 4);
    l = READ("MS_ROLE=MS_WORKER", MS, "RANK_ID=1", "RANK_SIZE=4"); /* msrun */
    place_is(&l, "MindSpore", 1, 4);
    l = READ("MS_ROLE=MS_WORKER", MS, "RANK_ID=-1");
    place_is(&l, "MindSpore", -1, 4);
    l = READ("MS_ROLE=MS_SCHED", MS, "MS_NODE_ID=0", "RANK_ID=0");
    place_is(&l, "MindSpore", -1, 4);
    assert_true(l.is_scheduler);
}

static void test_mindspore_is_refused(void **state) {
    (void)state;
    REFUSE("MS_ROLE is 'MS_BOSS'", "MS_WORKER or MS_SCHED", "MS_ROLE=MS_BOSS", MS);
    REFUSE("MS_PSERVER", "MS_SCHED", "MS_ROLE=MS_PSERVER", MS);
    REFUSE("MS_ROLE", "MS_WORKER_NUM", "MS_ROLE=MS_WORKER", "MS_SCHED_HOST=h", "MS_SCHED_PORT=1");
    REFUSE("MS_ROLE", "MS_SCHED_HOST", "MS_ROLE=MS_WORKER", "MS_WORKER_NUM=1", "MS_SCHED_PORT=1");
    REFUSE("MS_ROLE", "MS_SCHED_PORT", "MS_ROLE=MS_WORKER", "MS_WORKER_NUM=1", "MS_SCHED_HOST=h");
    REFUSE("MS_WORKER_NUM", "'0'", "MS_ROLE=MS_WORKER", "MS_SCHED_HOST=h", "MS_SCHED_PORT=1",
           "MS_WORKER_NUM=0");
    REFUSE("MS_TOPO_TIMEOUT", "'soon'", "MS_ROLE=MS_WORKER", MS, "MS_TOPO_TIMEOUT=soon");
    REFUSE("MS_WORKER_NUM is 4", "RANK_SIZE is 8", "MS_ROLE=MS_WORKER", MS, "RANK_SIZE=8");
    REFUSE("MS_NODE_ID is 1", "RANK_ID is 2", "MS_ROLE=MS_WORKER", MS, "MS_NODE_ID=1", "RANK_ID=2");
    REFUSE("MS_ROLE is not", "MS_SCHED_HOST", MS);
}

/* --- rank tables --- */

static char table_file[] = "/tmp/weft_table_XXXXXX", table_variable[80], other_variable[80];
static const char table_text[] =
    "{\"version\":\"1.0\",\"server_count\":\"2\",\"status\":\"completed\",\"server_list\":["
    "{\"server_id\":\"10.0.0.1\",\"device\":[{\"device_id\":\"0\",\"rank_id\":\"0\"},"
    "{\"device_id\":\"1\",\"rank_id\":\"1\"}]},"
    "{\"server_id\":\"10.0.0.2\",\"device\":[{\"device_id\":\"0\",\"rank_id\":\"2\"},"
    "{\"device_id\":\"1\",\"rank_id\":\"3\"}]}]}";

static int make_table(void **state) {
    (void)state;
    int fd = mkstemp(table_file);
    if (fd < 0 || write(fd, table_text, sizeof table_text - 1) != (ssize_t)sizeof table_text - 1)
        return -1;
    (void)snprintf(table_variable, sizeof table_variable, "RANK_TABLE_FILE=%s", table_file);
    (void)snprintf(other_variable, sizeof other_variable, "MINDSPORE_HCCL_CONFIG_PATH=%s",
                   table_file);
    return close(fd);
}
static int remove_table(void **state) {
    (void)state;
    return unlink(table_file);
}

static void test_rank_table(void **state) {
    (void)state;
    wefti_launcher l = READ(table_variable, "RANK_ID=3", "RANK_SIZE=4", "DEVICE_ID=1");
    place_is(&l, "rank table", 3, 4);
    assert_string_equal(l.scheduler_host, "10.0.0.1");
    assert_in_range(l.scheduler_port, 10000, 29999);
    assert_int_equal(l.place.local_rank, 1);
    assert_int_equal(l.place.local_size, 2);
    assert_int_equal(l.place.host, 1);
    assert_int_equal(l.place.hosts, 2);
    l = READ(other_variable, "RANK_ID=0");
    place_is(&l, "rank table", 0, 4);
    assert_true(l.serves);
    REFUSE("RANK_TABLE_FILE", "RANK_ID is not set", table_variable);
    REFUSE("RANK_SIZE is 8", "has 4 ranks", table_variable, "RANK_ID=1", "RANK_SIZE=8");
    REFUSE("RANK_ID is 4", "0 to 3", table_variable, "RANK_ID=4");
    REFUSE("RANK_ID", "'two'", table_variable, "RANK_ID=two");
    REFUSE("RANK_TABLE_FILE is /tmp", "MINDSPORE_HCCL_CONFIG_PATH is /other", table_variable,
           "MINDSPORE_HCCL_CONFIG_PATH=/other", "RANK_ID=1");
    wefti_launcher none;
    const char *const missing[] = {"RANK_TABLE_FILE=/none/x.json", "RANK_ID=0", NULL};
    assert_int_equal(wefti_launcher_read(missing, "", &none), WEFT_E_NOT_FOUND);
}

/* --- several at once --- */

/* One way to be rank `rank` of `size` for each launcher. */
typedef struct kind {
    const char *name, *rank, *size;
    const char *rest[4];
} kind;
static const kind kinds[] = {
    {"weft launch", "WEFT_RANK", "WEFT_SIZE", {NULL}},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {NULL}},
    {"MPICH", "PMI_RANK", "PMI_SIZE", {"MPI_LOCALRANKID=0", NULL}},
    {"torchrun", "RANK", "WORLD_SIZE", {"MASTER_ADDR=h", "MASTER_PORT=1", NULL}},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", {"SLURM_STEP_ID=0", "SLURM_NNODES=1", NULL}},
    {"MindSpore",
     "MS_NODE_ID",
     "MS_WORKER_NUM",
     {"MS_ROLE=MS_WORKER", "MS_SCHED_HOST=m", "MS_SCHED_PORT=9", NULL}},
    {"rank table", "RANK_ID", "RANK_SIZE", {table_variable, NULL}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct set {
    char texts[4][64];
    const char *rows[16];
    int used;
} set;

static void add(set *s, const kind *k, int slot, int rank, int size) {
    (void)snprintf(s->texts[slot], sizeof *s->texts, "%s=%d", k->rank, rank);
    (void)snprintf(s->texts[slot + 1], sizeof *s->texts, "%s=%d", k->size, size);
    s->rows[s->used++] = s->texts[slot];
    s->rows[s->used++] = s->texts[slot + 1];
    for (const char *const *row = k->rest; *row; row++) s->rows[s->used++] = *row;
    s->rows[s->used] = NULL;
}

static bool has_table(int kind_at) {
    return kind_at == KINDS - 1;
}

static void test_pairs(void **state) {
    (void)state;
    for (int a = 0; a < KINDS; a++) {
        for (int b = a + 1; b < KINDS; b++) {
            char one[64], other[64];
            set s = {0};
            add(&s, &kinds[a], 0, 2, 4);
            add(&s, &kinds[b], 2, 2, 4);
            wefti_launcher l = read_good(s.rows);
            place_is(&l, kinds[a].name, 2, 4); /* the first in the list counts */
            s = (set){0};
            add(&s, &kinds[a], 0, 2, 4);
            add(&s, &kinds[b], 2, 1, 4);
            /* msrun and rank tables share these names: the message names both. */
            (void)snprintf(one, sizeof one, "%s is 2", kinds[a].rank);
            (void)snprintf(other, sizeof other, "%s is 1", kinds[b].rank);
            refuse_all(s.rows, one, other);
            if (has_table(b)) continue; /* the table's own size decides, see test_rank_table */
            s = (set){0};
            add(&s, &kinds[a], 0, 2, 4);
            add(&s, &kinds[b], 2, 2, 8);
            (void)snprintf(one, sizeof one, "%s is 4", kinds[a].size);
            (void)snprintf(other, sizeof other, "%s is 8", kinds[b].size);
            refuse_all(s.rows, one, other);
        }
    }
}

/* Other launchers in a step of Slurm that has one task per node: those tasks are launchers. */
static void test_launchers_in_slurm(void **state) {
    (void)state;
    wefti_launcher l = READ("SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_NODEID=0",
                            "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4");
    place_is(&l, "Open MPI", 2, 4);
    l = READ("SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_NNODES=2",
             "SLURM_STEP_TASKS_PER_NODE=1(x2)", "RANK=13", "WORLD_SIZE=16", "MASTER_ADDR=n0",
             "MASTER_PORT=29500");
    place_is(&l, "torchrun", 13, 16);
    address_is(&l, "n0", 29500);
    /* Four tasks on a node that each start four ranks: four trainings instead of one. */
    REFUSE("OMPI_COMM_WORLD_RANK is 2", "SLURM_PROCID is 0", "SLURM_STEP_ID=0", "SLURM_PROCID=0",
           "SLURM_NTASKS=4", "SLURM_NNODES=1", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4");
    /* An MPI that found only itself in a step of four tasks. */
    REFUSE("PMI_SIZE is 1", "SLURM_NTASKS is 4", "SLURM_STEP_ID=0", "SLURM_PROCID=0",
           "SLURM_NTASKS=4", "SLURM_NNODES=1", "PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALRANKID=0");
    /* srun --mpi=pmi2 sets PMI's variables itself. */
    l = READ("SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_NNODES=1",
             "SLURM_JOB_ID=5", "PMI_RANK=2", "PMI_SIZE=4", "PMI_FD=11");
    place_is(&l, "Slurm", 2, 4);
    assert_true(l.mpi);
    assert_in_range(l.scheduler_port, 10000, 29999);
}

/* What one leaves open another may tell. */
static void test_places_are_filled(void **state) {
    (void)state;
    wefti_launcher l = READ("WEFT_SIZE=4", "WEFT_SCHEDULER=a:1", "RANK=2", "WORLD_SIZE=4",
                            "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=7");
    place_is(&l, "weft launch", 2, 4);
    assert_int_equal(l.place.local_rank, 0);
    assert_int_equal(l.place.local_size, 2);
    address_is(&l, "a", 1);
    /* Never one of a pair of numbers: they might not fit. */
    l = READ("WEFT_SIZE=4", "WEFT_LOCAL_RANK=2", "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1",
             "LOCAL_WORLD_SIZE=2");
    assert_int_equal(l.place.local_rank, 2);
    assert_int_equal(l.place.local_size, -1);
}

#define SIZED "WEFT_SIZE=4", "WEFT_SCHEDULER=train-0.train:9000"

/* Numbers without a size: ranks where WEFT_SIZE is said for all, and nothing says the rank. */
static void test_numbers_only(void **state) {
    (void)state;
    static const char *const all[] = {"PMIX_RANK", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX",
                                      "VK_TASK_INDEX"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char first[64], third[64], fifth[64], text[64], says[64];
        (void)snprintf(first, sizeof first, "%s=0", all[i]);
        (void)snprintf(third, sizeof third, "%s=2", all[i]);
        (void)snprintf(fifth, sizeof fifth, "%s=4", all[i]);
        (void)snprintf(text, sizeof text, "%s=x", all[i]);
        (void)snprintf(says, sizeof says, "%s is 4", all[i]);
        wefti_launcher l = READ(SIZED, third);
        place_is(&l, "weft launch", 2, 4);
        address_is(&l, "train-0.train", 9000);
        assert_false(l.serves);
        l = READ(SIZED, first);
        place_is(&l, "weft launch", 0, 4);
        assert_true(l.serves);
        REFUSE(says, "WEFT_SIZE is 4", SIZED, fifth);
        REFUSE(all[i], "'x'", SIZED, text);
        /* Others say the rank; pods may hold launchers, and several processes. */
        l = READ(SIZED, third, "WEFT_RANK=1");
        place_is(&l, "weft launch", 1, 4);
        l = READ(SIZED, third, "RANK=3", "WORLD_SIZE=4");
        place_is(&l, "weft launch", 3, 4);
        l = READ(third, "RANK=5", "WORLD_SIZE=8", "MASTER_ADDR=h", "MASTER_PORT=1");
        place_is(&l, "torchrun", 5, 8);
        l = READ(SIZED, third, "WEFT_LAUNCH=1");
        place_is(&l, "weft launch", -1, 4);
        l = READ(SIZED, third, "WEFT_LOCAL_RANK=1", "WEFT_LOCAL_SIZE=2");
        place_is(&l, "weft launch", -1, 4);
    }
    REFUSE("PMIX_RANK is 1 (PMIx)", "JOB_COMPLETION_INDEX is 2 (an Indexed Job", SIZED,
           "PMIX_RANK=1", "JOB_COMPLETION_INDEX=2");
    wefti_launcher both = READ(SIZED, "VC_TASK_INDEX=3", "VK_TASK_INDEX=3");
    place_is(&both, "weft launch", 3, 4);
    REFUSE("VC_TASK_INDEX is 1 (Volcano)", "VK_TASK_INDEX is 2 (Volcano)", SIZED, "VC_TASK_INDEX=1",
           "VK_TASK_INDEX=2");
    /* A job of one's own for each number is usual; a rank of nobody knows how many is not. */
    wefti_launcher l = READ("JOB_COMPLETION_INDEX=3");
    assert_int_equal(l.start, WEFTI_START_ALONE);
    REFUSE("PMIX_RANK is set", "WEFT_SIZE", "PMIX_RANK=0");
}

static void test_malformed(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "-1", "+1", " 1", "1 ", "0x1", "1.0", "one", "1e0", "99999999999999999999", "1048576"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        for (int k = 0; k < KINDS; k++) {
            if (!strcmp(kinds[k].rank, "MS_NODE_ID")) continue; /* may be any name */
            char rank[64], value[64];
            set s = {0};
            add(&s, &kinds[k], 0, 0, 4);
            (void)snprintf(rank, sizeof rank, "%s=%s", kinds[k].rank, wrong[i]);
            (void)snprintf(value, sizeof value, "'%s'", wrong[i]);
            s.rows[0] = rank;
            refuse_all(s.rows, kinds[k].rank, value);
        }
    }
    for (int k = 0; k < KINDS - 1; k++) {
        set s = {0};
        add(&s, &kinds[k], 0, 4, 4);
        if (!strcmp(kinds[k].rank, "MS_NODE_ID")) continue;
        refuse_all(s.rows, kinds[k].rank, "0 to 3");
        s = (set){0};
        add(&s, &kinds[k], 0, 0, 0);
        refuse_all(s.rows, kinds[k].size, "'0'");
    }
}

static void test_incomplete(void **state) {
    (void)state;
    REFUSE("WEFT_RANK is set", "WEFT_SIZE is not", "WEFT_RANK=0");
    REFUSE("WEFT_LOCAL_RANK is set", "WEFT_SIZE is not", "WEFT_LOCAL_RANK=0");
    REFUSE("WEFT_SCHEDULER is set", "WEFT_SIZE is not", "WEFT_SCHEDULER=h:1");
    REFUSE("OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_SIZE is not", "OMPI_COMM_WORLD_RANK=0");
    REFUSE("OMPI_COMM_WORLD_SIZE is set", "OMPI_COMM_WORLD_RANK is not", "OMPI_COMM_WORLD_SIZE=1");
    REFUSE("PMI_RANK is set", "PMI_SIZE is not", "PMI_RANK=0");
    REFUSE("WEFT_LOCAL_RANK is 2", "WEFT_LOCAL_SIZE is 2", "WEFT_SIZE=4", "WEFT_LOCAL_RANK=2",
           "WEFT_LOCAL_SIZE=2");
    REFUSE("WEFT_LOCAL_SIZE is 8", "WEFT_SIZE, which is 4", "WEFT_SIZE=4", "WEFT_LOCAL_SIZE=8");
    REFUSE("WEFT_HOST is 2", "WEFT_HOSTS is 2", "WEFT_SIZE=4", "WEFT_HOST=2", "WEFT_HOSTS=2");
    REFUSE("WEFT_HEARTBEAT_SECONDS", "'-1'", "WEFT_SIZE=4", "WEFT_HEARTBEAT_SECONDS=-1");
    REFUSE("WEFT_JOIN_SECONDS", "'inf'", "WEFT_SIZE=4", "WEFT_JOIN_SECONDS=inf");
    REFUSE("WEFT_INTERFACE", "space", "WEFT_SIZE=4", "WEFT_INTERFACE=eth 0");
    REFUSE("WEFT_TLS", "'yes'", "WEFT_SIZE=4", "WEFT_TLS=yes");
}

static void test_addresses(void **state) {
    static const char *const wrong[] = {
        "host",  "host:",  ":9000", "host:0", "host:65536", "host:9x",      "::1:9000",
        "[::1]", "[::1]9", "[]:9",  "a b:9",  "[::1:9",     "h:00000000009"};
    char host[WEFTI_HOST_TEXT];
    int port = 0;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(wefti_address_parse("X", wrong[i], host, &port), WEFT_E_ARG);
        assert_non_null(strstr(weft_error_message(), wrong[i]));
    }
    assert_int_equal(wefti_address_parse("X", "[::1]:65535", host, &port), WEFT_OK);
    assert_string_equal(host, "::1");
    assert_int_equal(port, 65535);
    assert_int_equal(wefti_address_parse("X", "node-3.local:1", host, &port), WEFT_OK);
    assert_string_equal(host, "node-3.local");
}

static void test_slurm_lists(void **state) {
    char host[WEFTI_HOST_TEXT];
    (void)state;
    static const char *const rows[][2] = {
        {"tux", "tux"},         {"tux3,tux4", "tux3"},      {"tux[1-3]", "tux1"},
        {"tux[007]", "tux007"}, {"r[2-3]n[05,9]", "r2n05"}, {"a[9,10-12]b,c", "a9b"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(wefti_slurm_first_host(rows[i][0], host));
        assert_string_equal(host, rows[i][1]);
    }
    assert_false(wefti_slurm_first_host("", host));
    assert_false(wefti_slurm_first_host("tux[1", host));
    assert_false(wefti_slurm_first_host("tux]1", host));
    assert_int_equal(wefti_slurm_tasks_of("2(x3),1", 2), 2);
    assert_int_equal(wefti_slurm_tasks_of("2(x3),1", 3), 1);
    assert_int_equal(wefti_slurm_tasks_of("2(x3),1", 4), -1);
    assert_int_equal(wefti_slurm_tasks_of("x", 0), -1);
    assert_true(wefti_slurm_one_task_each("1(x16)"));
    assert_true(wefti_slurm_one_task_each("1"));
    assert_false(wefti_slurm_one_task_each("1(x15),2"));
    assert_false(wefti_slurm_one_task_each("1(x"));
}

/* The one that reads the process's own environment. */
static void test_own_environment(void **state) {
    weft_launcher l;
    (void)state;
    for (const char *const *name = wefti_launcher_variables; *name; name++)
        assert_int_equal(unsetenv(*name), 0);
    assert_int_equal(weft_launcher_find(&l), WEFT_OK);
    assert_null(l.name);
    assert_int_equal(setenv("RANK", "1", 1), 0);
    assert_int_equal(setenv("WORLD_SIZE", "2", 1), 0);
    assert_int_equal(weft_launcher_find(&l), WEFT_OK);
    assert_string_equal(l.name, "torchrun");
    assert_int_equal(l.rank, 1);
}

/* Variables without effect: one note for each that is set. */
static void notes(void **state) {
    (void)state;
    static const char *const none[] = {"MS_ENABLE_RECOVERY=0", "MS_RECOVERY_PATH=", "RANK=1", NULL},
                             *const some[] = {"GROUP_INFO_FILE=groups.pb", "MS_ENABLE_RECOVERY=1",
                                              "MS_DISABLE_HEARTBEAT=0", NULL};
    assert_null(wefti_launcher_note(none, 0));
    ASSERT_FACTS(wefti_launcher_note(some, 0), "MS_ENABLE_RECOVERY|checkpoint.dir");
    ASSERT_FACTS(wefti_launcher_note(some, 1), "GROUP_INFO_FILE|slices");
    assert_null(wefti_launcher_note(some, 2));
    assert_null(wefti_launcher_note(some, -1));
    assert_int_equal(setenv("MS_ENABLE_TFT", "1", 1), 0);
    int count = 0;
    for (const char *note; (note = weft_launcher_note(count)); count++)
        assert_true(has_facts(note, "MS_ENABLE_TFT|checkpoint.every"));
    assert_int_equal(unsetenv("MS_ENABLE_TFT"), 0);
    assert_int_equal(count, 1);
    assert_null(weft_launcher_note(0));
}

/* What a call says comes before what the user has set, and the rest stays. */
static void calls_come_before_settings(void **state) {
    (void)state;
    static const char *const user[] = {"WEFT_COMM=ucx",
                                       "WEFT_INTERFACE=eth0",
                                       "WEFT_JOIN_SECONDS=5",
                                       "WEFT_HEARTBEAT_SECONDS=6",
                                       "WEFT_MODULE_PATH=/mod",
                                       "PATH=/bin",
                                       "HOME=/home/me",
                                       "WEFT_STREAMS=16",
                                       NULL};
    static const char *const none[] = {"WEFT_STREAMS=0", NULL}, *const many[] = {"WEFT_STREAMS=17",
                                                                                 NULL};
    wefti_settings set;
    assert_int_equal(wefti_settings_read(none, &set), WEFT_E_ARG);
    assert_int_equal(wefti_settings_read(many, &set), WEFT_E_ARG);
    assert_int_equal(wefti_settings_read(user, &set), WEFT_OK);
    assert_string_equal(set.module_path, "/mod");
    assert_int_equal(set.streams, 16);
    assert_string_equal(set.home, "/home/me");
    assert_string_equal(set.commands, "/bin");
    assert_string_equal(set.temporary, "/tmp");
    const wefti_override by = {.interface = "eth1", .tls = true, .join_seconds = 7};
    assert_int_equal(wefti_settings_override(&set, &by), WEFT_OK);
    assert_string_equal(set.communicator, "ucx");
    assert_string_equal(set.interface, "eth1");
    assert_true(set.tls);
    assert_true(set.join_seconds == 7 && set.heartbeat_seconds == 6);
    char wide[WEFTI_HOST_TEXT + 1];
    memset(wide, 'x', WEFTI_HOST_TEXT);
    wide[WEFTI_HOST_TEXT] = 0;
    const wefti_override too_long = {.interface = wide};
    assert_int_equal(wefti_settings_override(&set, &too_long), WEFT_E_ARG);
}

static void standby_is_read(void **state) {
    (void)state;
#define PLACED "WEFT_SIZE=4", "WEFT_RANK=1", "WEFT_SCHEDULER=a:9000"
    assert_string_equal(READ(PLACED).set.standby, "");
    assert_string_equal(READ(PLACED, "WEFT_STANDBY=b:9000").set.standby, "b:9000");
    assert_string_equal(READ(PLACED, "WEFT_STANDBY=a:9001").set.standby, "a:9001");
    REFUSE("WEFT_STANDBY", "own address", PLACED, "WEFT_STANDBY=a:9000");
    REFUSE("WEFT_STANDBY", "HOST:PORT", PLACED, "WEFT_STANDBY=b");
    REFUSE("WEFT_STANDBY", "port", PLACED, "WEFT_STANDBY=b:0");
    REFUSE("WEFT_STANDBY", "own address", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
           "MASTER_ADDR=a", "MASTER_PORT=9000", "WEFT_STANDBY=a:9000");
#undef PLACED
}

/* A scheduler listens on the interface if one is named and its host is no address. */
static void schedulers_listen_where_members_go(void **state) {
    (void)state;
    wefti_settings set = {.tls = true, .wait_seconds = 3};
    wefti_scheduler_site site = {
        .size = 4, .host = "node-0", .interface = "", .port = 9, .job = "j", .hosted_by = 0};
    wefti_scheduler_options o = wefti_scheduler_options_of(&set, &site);
    assert_string_equal(o.address, "node-0");
    assert_true(o.awaits_name && o.tls && o.wait_seconds == 3 && o.size == 4 && o.port == 9);
    site.interface = "eth0";
    o = wefti_scheduler_options_of(&set, &site);
    assert_string_equal(o.address, "eth0");
    assert_true(o.awaits_interface && !o.awaits_name);
    site.host = "10.0.0.1";
    assert_string_equal(wefti_scheduler_options_of(&set, &site).address, "10.0.0.1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_before_settings),
        cmocka_unit_test(standby_is_read),
        cmocka_unit_test(schedulers_listen_where_members_go),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_weft),
        cmocka_unit_test(test_torchrun),
        cmocka_unit_test(test_mpi),
        cmocka_unit_test(test_slurm),
        cmocka_unit_test(test_slurm_without_tasks),
        cmocka_unit_test(test_mindspore),
        cmocka_unit_test(test_mindspore_is_refused),
        cmocka_unit_test(test_rank_table),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_launchers_in_slurm),
        cmocka_unit_test(test_places_are_filled),
        cmocka_unit_test(test_numbers_only),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_slurm_lists),
        cmocka_unit_test(test_own_environment),
        cmocka_unit_test(notes),
    };
    return cmocka_run_group_tests(tests, make_table, remove_table);
}
