/* One rank of a measurement (comm.c), and the threads that stand for ranks without a world
 * (comm_threads.c). */
#ifndef WEFTI_BENCH_COMM_H
#define WEFTI_BENCH_COMM_H

#include "weft/bench.h"
#include "weft/collective.h"

weft_status wefti_bench_world(weft_world *world, const weft_bench_options *options,
                              weft_bench **out) WEFT_CHECKED;

/* The place and the time of measurements. Collectives are between the members of the group. */
typedef struct wefti_bench_run {
    weft_world *world;
    weft_group *group; /* NULL: all ranks */
    int rank, size;    /* of this process in the group */
    void *source, *destination;
    size_t room; /* of each, in bytes */
    double seconds;
} wefti_bench_run;

/* Allocates source and destination of `room` bytes. Close frees them, also after a failure. */
weft_status wefti_bench_open(wefti_bench_run *run, size_t room) WEFT_CHECKED;
void wefti_bench_close(wefti_bench_run *run);
/* Measures one collective by its name. Collective over the group. */
weft_status wefti_bench_row(wefti_bench_run *run, const char *collective, int64_t bytes,
                            weft_bench_row *out) WEFT_CHECKED;
/* Messages between two ranks of the world. Collective over the world: all ranks call it. */
weft_status wefti_bench_pair(wefti_bench_run *run, int one, int other,
                             weft_bench_link *out) WEFT_CHECKED;

/* Runs `work` on `size` ranks that are threads of this process, each with its own element of
 * `contexts`. If one fails, all end, and the failure is the first rank's that did not fail by
 * another's. */
enum { WEFTI_BENCH_THREADS = 64 };
typedef weft_status wefti_bench_work(weft_world *world, void *context);
weft_status wefti_bench_threads(int size, wefti_bench_work *work, void *contexts,
                                size_t bytes) WEFT_CHECKED;

#endif
