/* Measurement of collectives: the figures of `weft bench comm`, and the links that plans use
 * (docs/reference/format-links.md); and of whole machines (docs/reference/format-machine.md). */
#ifndef WEFT_BENCH_H
#define WEFT_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_bench_options {
    size_t struct_bytes;
    const char *collective;       /* "all_reduce"; "all" or NULL: each of them */
    int64_t min_bytes, max_bytes; /* each size is 4 times the one before; 0: 1 KiB, 64 MiB */
    int threads;    /* without a world: ranks, as threads of this process; 0: its cores, 2 to 8 */
    double seconds; /* time for each line; 0: 0.05 */
} weft_bench_options;
WEFTI_ZERO_DEFAULTS(weft_bench_options, weft_bench_defaults)

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
 * @return WEFT_E_ARG for an unknown collective, or sizes and threads out of range; WEFT_E_MISMATCH
 *   on all ranks for unlike options; the errors of the collectives; WEFT_E_NOMEM */
WEFT_API weft_status weft_bench_comm(weft_world *world, const weft_bench_options *options,
                                     weft_bench **out) WEFT_CHECKED;
WEFT_API void weft_bench_free(weft_bench *bench); /* NULL is legal */
/** Write the links to a file, completely or not at all. WEFT_E_IO. */
WEFT_API weft_status weft_bench_write_links(const weft_bench *bench, const char *path) WEFT_CHECKED;
/* ---- machines ---- */

/* A figure of a machine file. */
typedef struct weft_machine_figure {
    const char *name; /* the key in the file, "product_curves.f32"; static storage */
    double work;      /* of a curve: the size, as the file has it; else 0 */
    double value;
    int ranks[2]; /* of a link between two ranks; else -1, -1 */
} weft_machine_figure;

typedef struct weft_machine_options {
    size_t struct_bytes;
    int devices;      /* without a world: devices of this process, 1 to 64, which share its cores;
                         0: one. With a world: 0, each process is a device */
    double seconds;   /* time for each figure, 1e-4 to 60; 0: 0.05 */
    const char *disk; /* directory whose disk is measured; NULL: none is */
    const char *name; /* of the machine; NULL: "this-machine" */
    void *context;
    /* Called on rank 0 for each figure, from the measuring thread. NULL: nothing. */
    void (*figure)(void *context, const weft_machine_figure *figure);
} weft_machine_options;
WEFTI_ZERO_DEFAULTS(weft_machine_options, weft_machine_defaults)

/** Measure a machine file: kernels, copies and the disk by size, links, memory. All devices measure
 * at the same time. Collective; takes about 110 times `seconds`. The text is equal on all ranks.
 * @param world  NULL: the devices are threads of this process
 * @param out    freed with weft_text_free
 * @return WEFT_E_ARG for options out of range, or hosts with unequal numbers of devices;
 *   WEFT_E_MISMATCH on all ranks for unlike options; WEFT_E_IO or WEFT_E_NOT_FOUND for a disk that
 *   cannot be written; the errors of the collectives; WEFT_E_NOMEM */
WEFT_API weft_status weft_machine_measure(weft_world *world, const weft_machine_options *options,
                                          char **out) WEFT_CHECKED;
/** Where the machine `this-machine` lies: the path in WEFT_THIS_MACHINE, else
 * weft/this-machine.json in XDG_CONFIG_HOME or $HOME/.config.
 * @param out  freed with weft_text_free
 * @return WEFT_E_NOT_FOUND if the environment has none of these variables */
WEFT_API weft_status weft_machine_path(char **out) WEFT_CHECKED;
/** Write a machine file to `path`, completely or not at all; NULL: as `this-machine`. WEFT_E_ARG
 * for a text that is no machine file; WEFT_E_IO. */
WEFT_API weft_status weft_machine_write(const char *text, const char *path) WEFT_CHECKED;

/** The name of collective number `index`, from 0; NULL after the last. Static storage. */
WEFT_API const char *weft_bench_collective(int index);

#ifdef __cplusplus
}
#endif
#endif
