/* Measurement of collectives: the figures of `weft bench comm`, and the links that plans use
 * (docs/format-links.md). */
#ifndef WEFT_BENCH_H
#define WEFT_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_bench_options {
    const char *collective;       /* "all_reduce"; "all" or NULL: each of them */
    int64_t min_bytes, max_bytes; /* each size is 4 times the one before; 0: 1 KiB, 64 MiB */
    int threads;    /* without a world: ranks, as threads of this process; 0: its cores, 2 to 8 */
    double seconds; /* time for each line; 0: 0.05 */
} weft_bench_options;

/* One line, with the definitions of nccl-tests. `bytes` is the size of a rank's larger buffer. The
 * algorithm bandwidth is bytes / seconds. The bus bandwidth is the algorithm bandwidth times the
 * part of the bytes that must cross each rank's link under any algorithm, so that it can be
 * compared with the hardware's. */
typedef struct weft_bench_row {
    const char *collective; /* static storage */
    int64_t bytes;
    int64_t repeats;
    double seconds;        /* of one call, on the slowest rank */
    double algorithm, bus; /* bytes per second */
} weft_bench_row;

typedef struct weft_bench_link {
    bool measured; /* false: the world has no such pair of ranks */
    double latency_seconds, bytes_per_second;
} weft_bench_link;

typedef struct weft_bench {
    char communicator[32];
    int ranks, hosts;
    weft_bench_row *rows; /* complete on rank 0; all ranks have as many */
    int64_t row_count;
    weft_bench_link same_host, between_hosts;
} weft_bench;

/** Measure the world's communicator. Collective; blocks for about `seconds` of each line. NULL
 * world: threads of this process. NULL options: defaults.
 * @param out  freed with weft_bench_free
 * @return WEFT_E_ARG for an unknown collective, or sizes and threads out of range; the errors of
 *   the
 * collectives; WEFT_E_NOMEM */
WEFT_API weft_status weft_bench_comm(weft_world *world, const weft_bench_options *options,
                                     weft_bench **out) WEFT_CHECKED;
WEFT_API void weft_bench_free(weft_bench *bench); /* NULL is legal */
/** Write the links to a file, completely or not at all. WEFT_E_IO. */
WEFT_API weft_status weft_bench_write_links(const weft_bench *bench, const char *path) WEFT_CHECKED;
/** The name of collective number `index`, from 0; NULL after the last. Static storage. */
WEFT_API const char *weft_bench_collective(int index);

#ifdef __cplusplus
}
#endif
#endif
