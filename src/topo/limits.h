/* How many ranks a job may have, and what bounds them. Each limit stands here once.
 *
 * - Frames of the control plane: a WORLD frame has 4 bytes for each rank (WEFTI_RANKS_MAX). All
 *   entries of one bootstrap all-gather go in one frame (WEFTI_ENTRIES_MAX).
 * - Ports: a job needs one, the scheduler's.
 * - File descriptors (ulimit -n): the scheduler has one for each member, and a launcher four for
 *   each process that it starts. Both check the limit when they start.
 * - Addresses: each rank maps the memory of all ranks of its host. With more ranks each may have
 *   less, but at least 4 MiB (comm/host).
 * - Memory: a plan may be for more devices than a job has ranks (WEFTI_DEVICES_MAX). */
#ifndef WEFTI_TOPO_LIMITS_H
#define WEFTI_TOPO_LIMITS_H

enum {
    WEFTI_RANKS_MAX = 1 << 16,   /* processes of a job */
    WEFTI_DEVICES_MAX = 1 << 20, /* devices of a plan, which need not exist */
    /* Members of a transfer, and so of a group and of a world that agrees; ranks of one process or
     * of one host. Sets of members have a bit for each that there may be. */
    WEFTI_COMM_MEMBERS = 16384,
    WEFTI_ENTRY_MAX = 1 << 16,          /* bytes of a rank's entry in a bootstrap all-gather */
    WEFTI_ENTRIES_MAX = 256 * (1 << 20) /* bytes of all entries together: 4 KiB for each rank if
                                           there are as many as possible */
};

#endif
