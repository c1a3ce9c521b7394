/* A device from inside, for the files of this folder. */
#ifndef WEFTI_RANK_DEVICE_H
#define WEFTI_RANK_DEVICE_H

#include "exec/exec.h"

/* A program's transfers, ready to be posted. */
typedef struct wefti_binding {
    const wefti_program *program;
    wefti_endpoint **endpoints; /* by their number in the partition */
    uint8_t *posted;            /* of each: posts that were not waited for */
    int32_t count;
} wefti_binding;

struct wefti_rank_device {
    wefti_pool *pool;
    wefti_comm *comm;
    int32_t rank;
    unsigned char *memory;
    int64_t bytes, mapped, observed_peak;
    wefti_binding *bindings;
    int64_t binding_count, binding_cap;
    wefti_trace *trace;
    double loss; /* sum over the microbatches that have been */
    int losses;
    double bad_loss; /* of this section: the first that is not finite; else 0 */
    char *finding;   /* of this section, when it goes on after it: the first value that is not
                        finite; NULL: none */
    int64_t finding_order;
    int32_t step; /* of the section that runs */
    bool used;    /* something ran: the arena is no longer as mapped */
};

#endif
