/* What the control groups (cgroups) of this process allow it.
 *
 * A process is in one group of each hierarchy, and the limits of all parents hold as well: Slurm,
 * systemd, and nested containers set them at different levels. So the effective limit is the least
 * one from the process's own group up to the root that is mounted here. Both versions of the
 * interface are read, also side by side (hybrid). Source: cgroups(7), the kernel's
 * admin-guide/cgroup-v2.rst and cgroup-v1/. */
#ifndef WEFTI_BASE_CGROUP_H
#define WEFTI_BASE_CGROUP_H

enum { WEFTI_CGROUP_PATH = 4096 };

typedef struct wefti_cgroup_limit {
    double amount;                /* INFINITY: no limit */
    char file[WEFTI_CGROUP_PATH]; /* that states it; "" without a limit */
} wefti_cgroup_limit;

typedef struct wefti_cgroups {
    wefti_cgroup_limit memory; /* bytes */
    wefti_cgroup_limit quota;  /* processor time, in cores */
    wefti_cgroup_limit cpuset; /* cores */
    double memory_free;        /* bytes left below the limits, caches taken as free; INFINITY */
} wefti_cgroups;

/* `root` stands before all paths that are read: "" for this machine. A file that is missing or
 * damaged states no limit. */
void wefti_cgroups_read(const char *root, wefti_cgroups *out);

/* The cores that a process may use, at least 1, of `all` of the machine and the `allowed` ones of
 * its affinity. Part of a core counts as one. `out_by`: what keeps it from the others, the file of
 * a limit or "affinity"; "": nothing. Valid as long as `groups`. */
int wefti_cgroups_cores(const wefti_cgroups *groups, int all, int allowed, const char **out_by);

#endif
