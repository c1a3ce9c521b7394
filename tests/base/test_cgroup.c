/* Limits of control groups, read from trees of files as kernels, containers and job systems lay
 * them out. */
#include "support.h"

#include <math.h>

#include "base/cgroup.h"
#include "base/io.h"
#include "base/philox.h"

static char root[200];

/* An empty tree. */
static int begin(void **state) {
    const char *directory = getenv("TMPDIR");
    (void)state;
    (void)snprintf(root, sizeof root, "%s/weft-cgroup-XXXXXX", directory ? directory : P_tmpdir);
    return mkdtemp(root) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    return wefti_remove_tree(root) == WEFT_OK ? 0 : -1;
}

static void put(const char *path, const char *format, ...) {
    char full[8192], text[16384];
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_true(bytes >= 0 && bytes < (int)sizeof text);
    snprintf(full, sizeof full, "%s%s", root, path);
    char *name = strrchr(full, '/');
    *name = '\0';
    ASSERT_OK(wefti_dir_make(full));
    *name = '/';
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static const char mount_2[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 "
                              "rw,nsdelegate\n";
static const char mounts_1[] =
    "25 23 0:22 / /proc rw - proc proc rw\n"
    "31 30 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/systemd rw shared:5 - cgroup cgroup rw,xattr,name=systemd\n"
    "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:6 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:31 / /sys/fs/cgroup/memory rw master:3 shared:7 - cgroup cgroup rw,memory\n";

static void expect_limit(const wefti_cgroup_limit *limit, double amount, const char *file) {
    if (limit->amount != amount || strcmp(limit->file, file) != 0)
        fail_msg("%g by '%s', expected %g by '%s'", limit->amount, limit->file, amount, file);
}

static void expect_none(const wefti_cgroups *groups) {
    expect_limit(&groups->memory, INFINITY, "");
    expect_limit(&groups->quota, INFINITY, "");
    expect_limit(&groups->cpuset, INFINITY, "");
    assert_true(isinf(groups->memory_free));
}

/* --- version 2 --- */

static void a_container_of_version_2(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", mount_2);
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 0x1p30, "/sys/fs/cgroup/memory.max");
    expect_limit(&groups.quota, 1.5, "/sys/fs/cgroup/cpu.max");
    expect_limit(&groups.cpuset, INFINITY, "");
}

/* systemd-run -p MemoryMax=512M -p CPUQuota=100% --slice=batch: the scope has the memory, a slice
 * above it less of the processor. */
static void a_scope_of_systemd(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/batch.slice/batch-big.slice/run-r1.scope\n");
    put("/proc/self/mountinfo", mount_2);
    put("/sys/fs/cgroup/batch.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/batch.slice/memory.high", "max\n");
    put("/sys/fs/cgroup/batch.slice/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/batch.slice/cpuset.cpus.effective", "0-63\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/memory.max", "536870912\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/memory.current", "300000000\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/memory.stat",
        "anon 1\nfile 2\ninactive_anon 9\ninactive_file 100000000\n");
    put("/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/cpuset.cpus.effective", "0-3,8\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 536870912,
                 "/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/memory.max");
    expect_limit(&groups.quota, 1, "/sys/fs/cgroup/batch.slice/cpu.max");
    expect_limit(&groups.cpuset, 5,
                 "/sys/fs/cgroup/batch.slice/batch-big.slice/run-r1.scope/cpuset.cpus.effective");
    assert_true(groups.memory_free == 536870912 - 300000000 + 100000000);
}

static void memory_high_holds_a_process_back(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods/pod1\n");
    put("/proc/self/mountinfo", mount_2);
    put("/sys/fs/cgroup/kubepods/pod1/memory.max", "2000\n");
    put("/sys/fs/cgroup/kubepods/pod1/memory.high", "1800\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 1800, "/sys/fs/cgroup/kubepods/pod1/memory.high");
}

/* --- version 1 --- */

/* Slurm 20 to 22: memory at the job and the step, cores at the step. */
static void a_step_of_slurm(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "12:memory:/slurm/uid_1000/job_77/step_0/task_0\n"
                             "11:cpuset:/slurm/uid_1000/job_77/step_0\n"
                             "4:cpu,cpuacct:/slurm/uid_1000/job_77\n"
                             "1:name=systemd:/system.slice/slurmd.service\n");
    put("/proc/self/mountinfo", mounts_1);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes", "68719476736\n");
    put("/sys/fs/cgroup/memory/slurm/uid_1000/job_77/memory.limit_in_bytes", "8589934592\n");
    put("/sys/fs/cgroup/memory/slurm/uid_1000/job_77/memory.usage_in_bytes", "1000000000\n");
    put("/sys/fs/cgroup/memory/slurm/uid_1000/job_77/step_0/memory.limit_in_bytes",
        "9223372036854771712\n");
    put("/sys/fs/cgroup/cpuset/cpuset.cpus", "0-95\n");
    put("/sys/fs/cgroup/cpuset/slurm/uid_1000/job_77/step_0/cpuset.cpus", "4-7,52-55\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_77/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_77/cpu.cfs_period_us", "100000\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 0x1p33,
                 "/sys/fs/cgroup/memory/slurm/uid_1000/job_77/memory.limit_in_bytes");
    expect_limit(&groups.cpuset, 8,
                 "/sys/fs/cgroup/cpuset/slurm/uid_1000/job_77/step_0/cpuset.cpus");
    expect_limit(&groups.quota, 0.5,
                 "/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_77/cpu.cfs_quota_us");
    assert_true(groups.memory_free == 0x1p33 - 1e9);
}

/* A container sees the mount of its own group only, and /proc still names the whole path. The
 * limits of groups above are in memory.stat alone. */
static void a_container_of_version_1(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "5:memory:/docker/abc/inner\n3:cpu,cpuacct:/docker/abc\n");
    put("/proc/self/mountinfo",
        "33 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:31 /docker/abc /sys/fs/cgroup/memory ro master:19 - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "4294967296\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 0x1p31, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
    expect_limit(&groups.quota, 2, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us");
    put("/sys/fs/cgroup/memory/inner/memory.stat",
        "cache 0\nhierarchical_memory_limit 1073741824\nhierarchical_memsw_limit 1\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 0x1p30, "/sys/fs/cgroup/memory/inner/memory.stat");
}

static void a_group_that_does_not_count_those_below(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "5:memory:/a/b\n");
    put("/proc/self/mountinfo", mounts_1);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2000\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 2000, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 1000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
}

/* --- both, and neither --- */

/* Memory under version 1, the processor under version 2. */
static void both_versions(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "4:memory:/user/x\n1:name=systemd:/y\n0::/y/run:1\n");
    put("/proc/self/mountinfo", "%s41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        mounts_1);
    put("/sys/fs/cgroup/memory/user/memory.limit_in_bytes", "5000\n");
    put("/sys/fs/cgroup/unified/y/cpu.max", "30000 10000\n");
    put("/sys/fs/cgroup/unified/y/run:1/cpu.max", "max 10000\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 5000, "/sys/fs/cgroup/memory/user/memory.limit_in_bytes");
    expect_limit(&groups.quota, 3, "/sys/fs/cgroup/unified/y/cpu.max");
}

/* Of two mounts of a hierarchy the one counts that shows more parents; blanks are written as \040.
 */
static void mounts_of_one_hierarchy(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/proc/self/mountinfo", "30 23 0:26 /other /sys/fs/other rw - cgroup2 none rw\n"
                                "31 23 0:26 /a/b /mnt/deep rw - cgroup2 none rw\n"
                                "32 23 0:26 / /mnt/all\\040groups rw - cgroup2 none rw\n"
                                "33 23 0:26 /a /mnt/a rw - cgroup2 none rw\n");
    put("/sys/fs/other/memory.max", "1\n");
    put("/mnt/all groups/a/memory.max", "700\n");
    put("/mnt/all groups/a/b/memory.max", "900\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 700, "/mnt/all groups/a/memory.max");
}

/* A process that entered a container later has a path outside what is mounted. */
static void a_path_that_leaves_the_mount(void **state) {
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/../../init.scope\n");
    put("/proc/self/mountinfo", mount_2);
    put("/sys/fs/cgroup/memory.max", "12345\n");
    put("/sys/memory.max", "1\n");
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 12345, "/sys/fs/cgroup/memory.max");
}

static void no_groups_at_all(void **state) {
    wefti_cgroups groups;
    (void)state;
    wefti_cgroups_read(root, &groups);
    expect_none(&groups);
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", "23 1 0:22 / /proc rw - proc proc rw\n");
    wefti_cgroups_read(root, &groups);
    expect_none(&groups);
    put("/sys/fs/cgroup/memory.max", "99\n"); /* no mount is told, but this is its usual place */
    wefti_cgroups_read(root, &groups);
    expect_limit(&groups.memory, 99, "/sys/fs/cgroup/memory.max");
}

static void damaged_files_state_no_limit(void **state) {
    static const char *const bad[] = {
        "",        "\n",   "max",    "-",   "nan",  "inf",  "0-",    "3-1",
        "a-b",     "1,,2", "100000", "0 0", "-1 5", "5 -1", "1e999", "99999999999999999999-1",
        "\x01\xff"};
    wefti_cgroups groups;
    (void)state;
    put("/proc/self/cgroup", "0::/a\n4:memory:/a\n3:cpu,cpuacct:/a\n2:cpuset:/a\n");
    put("/proc/self/mountinfo",
        "%s41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\nshort\n - \n1 2 3 - "
        "cgroup2\n",
        mounts_1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("/sys/fs/cgroup/unified/a/cpu.max", "%s", bad[i]);
        put("/sys/fs/cgroup/unified/a/cpuset.cpus.effective", "%s",
            bad[i][0] == '1' ? "-" : bad[i]);
        put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "%s", bad[i]);
        put("/sys/fs/cgroup/memory/a/memory.stat", "hierarchical_memory_limit\n%s\n", bad[i]);
        wefti_cgroups_read(root, &groups);
        expect_none(&groups);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("/proc/self/cgroup", "0::%s\n:%s:\n%s\n", bad[i], bad[i], bad[i]);
        put("/proc/self/mountinfo", "%s%s - cgroup2 %s rw\n%s", mount_2, bad[i], bad[i], bad[i]);
        wefti_cgroups_read(root, &groups);
    }
}

/* --- the least of all parents, whatever the tree --- */

typedef struct random_state {
    uint64_t seed, drawn;
} random_state;

static uint32_t draw(random_state *random) {
    return wefti_philox_u32(random->seed, 0, random->drawn++);
}

typedef struct least {
    double amount;
    char file[WEFTI_CGROUP_PATH];
} least;

/* Writes a limit at this level, or none. */
static void put_limit(least *to, double amount, const char *folder, const char *name,
                      const char *text) {
    char path[WEFTI_CGROUP_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put(path, "%s\n", text);
    if (!(amount < to->amount)) return;
    to->amount = amount;
    strcpy(to->file, path);
}

/* One tree of `depth` levels in version 1 or 2; returns what must be found. */
static void grow(random_state *random, int version, least *memory, least *quota, least *cpuset) {
    char at[3][2048], text[128], path[1024] = "";
    static const char *const mounts[2][3] = {
        {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuset"},
        {"/sys/fs/cgroup", "/sys/fs/cgroup", "/sys/fs/cgroup"}};
    const int depth = (int)(draw(random) % 7);
    *memory = *quota = *cpuset = (least){.amount = INFINITY};
    for (int level = depth; level >= 0; level--) { /* from the root down: then sorted by depth */
        if (level < depth) snprintf(path + strlen(path), 64, "/g%d", depth - level);
        for (int c = 0; c < 3; c++)
            snprintf(at[c], sizeof at[c], "%s%s", mounts[version - 1][c], path);
        /* distinct amounts, so that one file alone counts */
        const uint64_t amount = (1 + draw(random) % 1000000) * 8 + (uint64_t)level;
        if (draw(random) % 2) {
            snprintf(text, sizeof text, "%llu", (unsigned long long)(amount * 4096));
            put_limit(memory, (double)(amount * 4096), at[0],
                      version == 1 ? "memory.limit_in_bytes" : "memory.max", text);
        }
        if (draw(random) % 2 && version == 1) {
            char period[WEFTI_CGROUP_PATH];
            snprintf(period, sizeof period, "%s/cpu.cfs_period_us", at[1]);
            put(period, "65536\n");
            snprintf(text, sizeof text, "%llu", (unsigned long long)amount);
            put_limit(quota, (double)amount / 65536, at[1], "cpu.cfs_quota_us", text);
        } else if (draw(random) % 2 && version == 2) {
            snprintf(text, sizeof text, "%llu 65536", (unsigned long long)amount);
            put_limit(quota, (double)amount / 65536, at[1], "cpu.max", text);
        }
        if (draw(random) % 2) {
            const int cores = 1 + 8 * (int)(draw(random) % 30) + level;
            if (cores > 1)
                snprintf(text, sizeof text, "0-%d,%d", cores - 2, 1000 + level);
            else
                snprintf(text, sizeof text, "%d", 1000 + level);
            put_limit(cpuset, cores, at[2], version == 1 ? "cpuset.cpus" : "cpuset.cpus.effective",
                      text);
        }
    }
    if (version == 1)
        put("/proc/self/cgroup", "9:memory:%s\n4:cpuacct,cpu:%s\n3:cpuset:%s\n", *path ? path : "/",
            *path ? path : "/", *path ? path : "/");
    else
        put("/proc/self/cgroup", "0::%s\n", *path ? path : "/");
    put("/proc/self/mountinfo", "%s", version == 1 ? mounts_1 : mount_2);
}

static void the_least_limit_of_all_parents_counts(void **state) {
    random_state random = {.seed = test_seed(7)};
    for (int round = 0; round < 120; round++) {
        least memory, quota, cpuset;
        wefti_cgroups groups;
        grow(&random, 1 + round % 2, &memory, &quota, &cpuset);
        wefti_cgroups_read(root, &groups);
        expect_limit(&groups.memory, memory.amount, memory.file);
        expect_limit(&groups.quota, quota.amount, quota.file);
        expect_limit(&groups.cpuset, cpuset.amount, cpuset.file);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* --- cores --- */

static void cores_by_quota_cpuset_and_affinity(void **state) {
    static const struct {
        double quota, cpuset;
        int all, allowed, cores;
        const char *by;
    } cases[] = {
        {INFINITY, INFINITY, 8, 8, 8, ""},  {INFINITY, INFINITY, 8, 3, 3, "affinity"},
        {1, INFINITY, 8, 8, 1, "quota"},    {0.5, INFINITY, 8, 8, 1, "quota"},
        {1.5, INFINITY, 8, 8, 2, "quota"},  {8, INFINITY, 8, 8, 8, ""},
        {4, 2, 8, 2, 2, "cpuset"},          {1, 2, 8, 2, 1, "quota"},
        {INFINITY, 4, 8, 2, 2, "affinity"}, {INFINITY, 8, 8, 8, 8, ""},
        {INFINITY, INFINITY, 1, 0, 1, ""},  {2, 96, 96, 96, 2, "quota"},
        {INFINITY, 4, 8, 8, 4, "cpuset"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const wefti_cgroups groups = {.quota = {cases[i].quota, "quota"},
                                      .cpuset = {cases[i].cpuset, "cpuset"}};
        const char *by;
        assert_int_equal(wefti_cgroups_cores(&groups, cases[i].all, cases[i].allowed, &by),
                         cases[i].cores);
        assert_string_equal(by, cases[i].by);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_container_of_version_2, begin, end),
        cmocka_unit_test_setup_teardown(a_scope_of_systemd, begin, end),
        cmocka_unit_test_setup_teardown(memory_high_holds_a_process_back, begin, end),
        cmocka_unit_test_setup_teardown(a_step_of_slurm, begin, end),
        cmocka_unit_test_setup_teardown(a_container_of_version_1, begin, end),
        cmocka_unit_test_setup_teardown(a_group_that_does_not_count_those_below, begin, end),
        cmocka_unit_test_setup_teardown(both_versions, begin, end),
        cmocka_unit_test_setup_teardown(mounts_of_one_hierarchy, begin, end),
        cmocka_unit_test_setup_teardown(a_path_that_leaves_the_mount, begin, end),
        cmocka_unit_test_setup_teardown(no_groups_at_all, begin, end),
        cmocka_unit_test_setup_teardown(damaged_files_state_no_limit, begin, end),
        cmocka_unit_test_setup_teardown(the_least_limit_of_all_parents_counts, begin, end),
        cmocka_unit_test(cores_by_quota_cpuset_and_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
