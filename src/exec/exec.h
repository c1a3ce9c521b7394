/* The executor: one device that runs programs. Maps the arena once; allocates nothing in a step.
 *
 * Communication is carried out through endpoints that are bound once for each program. Transfers
 * that follow each other and do not need each other's results are all posted before the first is
 * waited for. */
#ifndef WEFTI_EXEC_H
#define WEFTI_EXEC_H

#include "comm/comm.h"
#include "device/device.h"
#include "program/program.h"

typedef struct wefti_rank_device wefti_rank_device;
typedef struct wefti_trace wefti_trace;

/* A device with `threads` threads and an arena of `bytes` (mapped, not touched; of the engine's
 * memory where it has such). `comm`: its side of the world that it is a rank of, borrowed; NULL:
 * alone. */
weft_status wefti_rank_device_create(int threads, int64_t bytes, wefti_comm *comm,
                                     wefti_rank_device **out) WEFT_CHECKED;
void wefti_rank_device_destroy(wefti_rank_device *device); /* before its comm */
/* Endpoints for all transfers of a program, which outlives the device: once, before it runs. */
weft_status wefti_rank_device_bind(wefti_rank_device *device,
                                   const wefti_program *program) WEFT_CHECKED;
wefti_comm *wefti_rank_device_comm(wefti_rank_device *device);      /* NULL: alone */
wefti_device *wefti_rank_device_device(wefti_rank_device *device);  /* that has the arena */
unsigned char *wefti_rank_device_memory(wefti_rank_device *device); /* the arena's base */
int64_t wefti_rank_device_observed_peak(
    const wefti_rank_device *device); /* highest byte any executed step used */
/* Memory at `p` is in use: what runs tells it by itself, feeding an input does not. */
void wefti_rank_device_observe(wefti_rank_device *device, const void *p, int64_t bytes);
/* Of the last section that has one: the mean over its microbatches. */
double wefti_rank_device_loss(const wefti_rank_device *device);
void wefti_rank_device_trace(wefti_rank_device *device, wefti_trace *trace); /* NULL: off */

/* Called before a step that updates tensor `tensor` of rank `rank`'s program (for checkpoints being
 * written), from that rank's thread. May block. */
typedef void wefti_before_update(void *context, int32_t rank, int32_t tensor);

typedef struct wefti_exec_options {
    wefti_random random; /* call_stream is filled in per step */
    const int64_t
        *rows;         /* sections that run all microbatches: first global row of each; else NULL */
    bool check_finite; /* after each kernel, look for NaN and infinity in its outputs: names the
                          first cell */
    /* What a section does after a loss that is not finite, so that the world can go on.
     * orderly: it waits for its transfers and fails. All ranks must have that loss.
     * to_the_end: it runs to its end and fails then. It must change nothing that is kept. */
    bool orderly, to_the_end;
    wefti_before_update *before_update;
    void *before_update_context;
} wefti_exec_options;

/* Run one section. WEFT_E_NUMERIC when the loss is not finite (nothing was updated after it). */
weft_status wefti_rank_device_run(wefti_rank_device *device, const wefti_program *program,
                                  wefti_section section,
                                  const wefti_exec_options *options) WEFT_CHECKED;
/* When it failed with `check_finite` and `orderly`: of the ranks' findings the one with the lowest
 * order was the first. INT64_MAX: it found nothing. */
int64_t wefti_rank_device_finding_order(const wefti_rank_device *device);
/* Start values of all parameters, states and optimizer tensors, as functions of seed and name. */
weft_status wefti_rank_device_init(wefti_rank_device *device, const wefti_program *program,
                                   uint64_t seed) WEFT_CHECKED;

/* The program's constants (the 1 that seeds the backward pass); wefti_rank_device_init does it too.
 */
weft_status wefti_rank_device_seed(wefti_rank_device *device,
                                   const wefti_program *program) WEFT_CHECKED;

/* ---- traces: Chrome JSON, opens in Perfetto ---- */
/* For `devices` ranks, each of which tells its events from one thread at a time. */
weft_status wefti_trace_open(const char *path, int32_t devices, wefti_trace **out) WEFT_CHECKED;
weft_status wefti_trace_close(wefti_trace *trace) WEFT_CHECKED; /* writes the file; frees */

enum { WEFTI_TRACK_CELLS, WEFTI_TRACK_KERNELS, WEFTI_TRACK_COMMUNICATION, WEFTI_TRACKS };

/* One complete event of a device. Times in ns (monotonic). */
void wefti_trace_event(wefti_trace *trace, int32_t device, int track, const char *name,
                       const char *category, int64_t begin_ns, int64_t end_ns, double flops,
                       double bytes);

#endif
