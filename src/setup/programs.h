/* The programs of a job, built without a session: one rank of each class of equal ranks. */
#ifndef WEFTI_JOB_PROGRAMS_H
#define WEFTI_JOB_PROGRAMS_H

#include "builder/fold/fold.h"
#include "session/optimizer.h"
#include "topo/model.h"
#include "setup/setup.h"

enum { WEFTI_JOB_GRAPHS = 8 }; /* of a session, at most */

typedef struct wefti_job_programs {
    wefti_setup setup; /* of one process */
    wefti_built built; /* without a session */
    weft_plan *plan;   /* NULL: one device */
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_prepare prepare;
    int32_t microbatches, devices, graphs;
    weft_graph *graph[WEFTI_JOB_GRAPHS]; /* [graphs], borrowed: that of steps first */
    int32_t *host;                       /* [devices]; NULL: all are on one */
    wefti_rank_classes *classes;         /* once all are built */
} wefti_job_programs;

/* Graphs, plan and optimizer of a job. Opens the data only if sizes depend on them. Also on
 * failure, the caller calls wefti_job_programs_close. */
weft_status wefti_job_programs_open(const weft_job *job, wefti_job_programs *p) WEFT_CHECKED;
void wefti_job_programs_close(wefti_job_programs *p);
/* Frees all but `setup` and `built`, which belong to somebody else. */
void wefti_job_programs_free(wefti_job_programs *p);
/* The hosts of the devices on a machine, before programs are built: buddies are on another one. */
weft_status wefti_job_programs_place(wefti_job_programs *p,
                                     const wefti_machine_model *machine) WEFT_CHECKED;
/* The programs of one rank: programs[graphs]. dry: without kernels. */
weft_status wefti_job_programs_build(const wefti_job_programs *p, int32_t rank, bool dry,
                                     wefti_program **programs) WEFT_CHECKED;
/* Builds a rank of each class, dry, and matches the classes. */
weft_status wefti_job_programs_classes(wefti_job_programs *p) WEFT_CHECKED;
/* What the programs of one rank need, one for each graph. */
wefti_needs wefti_job_programs_needs(wefti_program *const *programs, int32_t graphs);
/* WEFT_E_NOMEM if a class needs more than a limit of the job; the machine's memory is none here. */
weft_status wefti_job_programs_within(const wefti_job_programs *p) WEFT_CHECKED;
/* The same for the programs of one rank. */
weft_status wefti_job_programs_fits(const wefti_job_programs *p,
                                    wefti_program *const *programs) WEFT_CHECKED;
/* For each fusion of the plan: the most tensors that it may join on a rank. */
void wefti_job_programs_fused(const wefti_job_programs *p, int32_t out[3]);
/* Of the classes' programs for the graph to train: the one that needs most memory. */
const wefti_program *wefti_job_programs_largest(const wefti_job_programs *p, int32_t graph);

#endif
