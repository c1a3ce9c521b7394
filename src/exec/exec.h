/* The executor: one device that runs programs. It allocates nothing in a step: its arenas are
 * mapped when it is created, and grow when a program is added.
 *
 * The executor communicates through endpoints, bound once for each program. It posts consecutive
 * independent transfers together before it waits for the first. */
#ifndef WEFTI_EXEC_H
#define WEFTI_EXEC_H

#include "comm/comm.h"
#include "device/disk_cache.h"
#include "device/home.h"
#include "program/program.h"

typedef struct wefti_rank_device wefti_rank_device;
typedef struct wefti_trace wefti_trace;

/* Creates a device with `threads` threads and arenas for `need`. They are mapped but not touched;
 * if the communicator has shared memory, they use it. `disk`: where the arenas on the disk have
 * their files, which have no names; NULL: there are none. `comm`: this rank's side of its
 * world, borrowed; NULL: a single device. */
weft_status wefti_rank_device_create(int threads, wefti_footprint need,
                                     const wefti_disk_place *disk, wefti_comm *comm,
                                     wefti_rank_device **out) WEFT_CHECKED;
/* Makes the arenas larger, between two sections, if `need` is more than they have. Persistent bytes
 * keep their addresses. A larger transient arena replaces the old one with all that was in it. For
 * a moment both exist. */
weft_status wefti_rank_device_reserve(wefti_rank_device *device, wefti_footprint need) WEFT_CHECKED;
void wefti_rank_device_destroy(wefti_rank_device *device); /* before its comm */
/* The device reaches servers by `service`, borrowed. Call it before programs are bound. */
void wefti_rank_device_serve(wefti_rank_device *device, wefti_service *service);
/* Creates the endpoints of all transfers of a program, and binds what servers keep of it. Call it
 * once before the program runs. The program must outlive the device. */
weft_status wefti_rank_device_bind(wefti_rank_device *device,
                                   const wefti_program *program) WEFT_CHECKED;
/* Frees the endpoints of a program, and its persistent memory, which lies behind that of the other
 * programs. */
void wefti_rank_device_forget(wefti_rank_device *device, const wefti_program *program,
                              wefti_footprint others);
/* Copies the used part of the arenas into those of another device, of the same sizes. The work of
 * the first device has ended. Its programs go on there once they are bound. */
weft_status wefti_rank_device_take(wefti_rank_device *to, wefti_rank_device *from) WEFT_CHECKED;
wefti_comm *wefti_rank_device_comm(wefti_rank_device *device); /* NULL: alone */
/* the device that owns the arenas */
wefti_device *wefti_rank_device_device(wefti_rank_device *device);
/* The pointer of an address, valid only for the owner of its bytes; NULL: the address is absent. */
unsigned char *wefti_rank_device_at(const wefti_rank_device *device, wefti_location at);
/* The home of `bytes` bytes at an address; an absent address has a home nowhere. */
wefti_home wefti_rank_device_home(const wefti_rank_device *device, wefti_location at,
                                  int64_t bytes);
/* The highest bytes that executed steps have used of both arenas of a space, added. */
int64_t wefti_rank_device_observed_peak(const wefti_rank_device *device, wefti_space space);
/* Of the caches for rows of tables on a disk, if it has any. */
bool wefti_rank_device_caches(const wefti_rank_device *device);
wefti_row_counts wefti_rank_device_row_counts(const wefti_rank_device *device);
/* A later pass will look up these ids of the input at an address of the program. If the table lies
 * on a disk, the rows that its cache lacks are read while steps run. Nothing else changes. Reads
 * that fail are left to the pass. The device's thread may be in a step meanwhile. */
weft_status wefti_rank_device_ahead(wefti_rank_device *device, const wefti_program *program,
                                    wefti_location input, const int32_t *ids,
                                    int64_t count) WEFT_CHECKED;
/* Waits until nothing is read ahead. drop: what has not been read is forgotten. */
void wefti_rank_device_end_ahead(wefti_rank_device *device, bool drop);
/* Nanoseconds of all waits for transfers, which includes waits for other ranks. */
int64_t wefti_rank_device_waited(const wefti_rank_device *device);
/* Counts memory at an address as used. Running steps does this by itself; feeding an input does
 * not. */
void wefti_rank_device_observe(wefti_rank_device *device, wefti_location at, int64_t bytes);
/* The mean loss over the microbatches, of the last section that computes a loss. */
double wefti_rank_device_loss(const wefti_rank_device *device);
void wefti_rank_device_trace(wefti_rank_device *device, wefti_trace *trace); /* NULL: off */

/* Called before a step that updates tensor `tensor` of rank `rank`'s program (for checkpoints being
 * written), from that rank's thread. May block. */
typedef void wefti_before_update(void *context, int32_t rank, int32_t tensor);

/* Asked before each step and each wait of a section, from the thread of rank `rank`. True: the rank
 * gives up the section, which fails with WEFT_E_PEER. */
typedef bool wefti_halted(void *context, int32_t rank);

typedef struct wefti_exec_options {
    wefti_random random; /* the executor sets call_stream for each step */
    /* First global row of each microbatch, for sections that run all microbatches; else NULL. */
    const int64_t *rows;
    /* checks each kernel's outputs for NaN and infinity; names the first cell that has one */
    bool check_finite;
    /* What a section does after a loss that is not finite, so that other ranks can go on.
     * `orderly`: the section waits for its transfers and fails. All ranks must see the same loss.
     * `to_the_end`: the section runs to its end and then fails. It must change nothing that the
     * session keeps. */
    bool orderly, to_the_end;
    wefti_before_update *before_update;
    void *before_update_context;
    int64_t number;       /* of the step, for servers: see program/service.h */
    wefti_halted *halted; /* NULL: never. A section that must end once it has begun has none */
    void *halted_context;
    int32_t first_step, end_step; /* of a section without loops; end_step 0: to its end */
} wefti_exec_options;

/* Runs one section. WEFT_E_NUMERIC if the loss is not finite; then nothing was updated. */
weft_status wefti_rank_device_run(wefti_rank_device *device, const wefti_program *program,
                                  wefti_section section,
                                  const wefti_exec_options *options) WEFT_CHECKED;
/* For a section that failed with `check_finite` and `orderly`: the order of this rank's finding. Of
 * all ranks' findings, the lowest order was the first. INT64_MAX: this rank found nothing. */
int64_t wefti_rank_device_finding_order(const wefti_rank_device *device);
/* How many steps of the section that ran last have ended, with loops expanded. */
int64_t wefti_rank_device_ended(const wefti_rank_device *device);
/* Where parameters and states have their values from, if not from their start values. Any thread
 * calls it, before any value is written. *out_given: the caller of this call gives the tensor its
 * values afterwards, or the call has lent bytes of files to its home (wefti_home_lend). `box` is
 * the home's region of the tensor. */
typedef struct wefti_values {
    weft_status (*give)(void *context, int32_t rank, const wefti_tensor *tensor,
                        const wefti_region *box, const wefti_home *home, bool *out_given);
    void *context;
} wefti_values;

/* Reserves space on the disk, and fills parameters, states and optimizer tensors with start values:
 * functions of seed and name. Tensors in the persistent memory of the programs `before` stay as
 * they are, and so do those that `values` (NULL: none) gives. */
weft_status wefti_rank_device_init(wefti_rank_device *device, const wefti_program *program,
                                   wefti_footprint before, uint64_t seed,
                                   const wefti_values *values) WEFT_CHECKED;
/* Bytes of its tensors that lie in files which lend them. */
int64_t wefti_rank_device_lent(const wefti_rank_device *device);

/* ---- traces: Chrome JSON, opens in Perfetto ---- */
/* Whose times a trace has. Simulated times say nothing about a host, so such a file has the same
 * bytes in each run. */
typedef enum wefti_trace_clock { WEFTI_TRACE_OF_HOST, WEFTI_TRACE_SIMULATED } wefti_trace_clock;
/* Opens a trace for `devices` ranks. Each rank adds its events from one thread at a time. */
weft_status wefti_trace_open(const char *path, int32_t devices, wefti_trace_clock clock,
                             wefti_trace **out) WEFT_CHECKED;
/* writes the file and frees the trace */
weft_status wefti_trace_close(wefti_trace *trace) WEFT_CHECKED;

enum {
    WEFTI_TRACK_CELLS,
    WEFTI_TRACK_KERNELS,
    WEFTI_TRACK_COMMUNICATION, /* and up: transfers that overlap have tracks of their own */
    WEFTI_TRACK_LINES = 16,    /* of communication, at most */
    WEFTI_TRACK_RUN = WEFTI_TRACK_COMMUNICATION + WEFTI_TRACK_LINES /* what the run does */
};

/* Adds one complete event of a device. Times are in ns (monotonic). Transfers overlap: call it for
 * them in the order of their ends. */
void wefti_trace_event(wefti_trace *trace, int32_t device, int track, const char *name,
                       const char *category, int64_t begin_ns, int64_t end_ns, double flops,
                       double bytes);
/* Adds a value that a counter of a device takes on at a time. */
void wefti_trace_counter(wefti_trace *trace, int32_t device, const char *name, int64_t at_ns,
                         double value);
/* All ranks of a job have left the exchange before step `step` at about this time: by this, traces
 * of unlike hosts are put together. The first WEFTI_TRACE_MEETINGS count. */
enum { WEFTI_TRACE_MEETINGS = 64 };
void wefti_trace_meeting(wefti_trace *trace, int64_t step, int64_t at_ns);
/* Gives a device another number and name than its own. */
weft_status wefti_trace_name(wefti_trace *trace, int32_t device, int32_t number,
                             const char *name) WEFT_CHECKED;

#endif
