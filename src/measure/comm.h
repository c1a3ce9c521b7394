/* One rank of a measurement (comm.c), for the code that starts the ranks (comm_threads.c). */
#ifndef WEFTI_BENCH_COMM_H
#define WEFTI_BENCH_COMM_H

#include "weft/bench.h"

weft_status wefti_bench_world(weft_world *world, const weft_bench_options *options,
                              weft_bench **out) WEFT_CHECKED;

#endif
