/* How many ranks a job may have, and what bounds them. Each limit stands here once; code that meets
 * a limit refuses with a message that names it.
 *
 * | bound by | limit | where |
 * |---|---|---|
 * | frames of the control plane: a WORLD frame has 4 bytes for each rank, and all entries of one
 *   bootstrap all-gather go in one frame | WEFTI_RANKS_MAX, WEFTI_ENTRIES_MAX | launch/wire |
 * | ports | one for a job: the scheduler's; members need none that listens | launch/scheduler |
 * | file descriptors (ulimit -n): the scheduler has one for each member, and a launcher four for
 *   each process that it starts | checked when they start | launch/scheduler, launch/spawn |
 * | addresses: each rank maps the memory of all ranks of its host; how much each may have becomes
 *   less with more ranks | 4 MiB for each rank of a host | comm/host |
 * | memory of plans and programs, which no process of a job builds for all ranks |
 *   WEFTI_DEVICES_MAX | plan, job | */
#ifndef WEFTI_TOPO_LIMITS_H
#define WEFTI_TOPO_LIMITS_H

enum {
    WEFTI_RANKS_MAX = 1 << 16,          /* processes of a job */
    WEFTI_DEVICES_MAX = 1 << 20,        /* devices of a plan, which need not exist */
    WEFTI_MOVE_MOST = 1024,             /* members of one transfer */
    WEFTI_ENTRY_MAX = 1 << 16,          /* bytes of a rank's entry in a bootstrap all-gather */
    WEFTI_ENTRIES_MAX = 256 * (1 << 20) /* bytes of all entries together: 4 KiB for each rank if
                                           there are as many as possible */
};

#endif
