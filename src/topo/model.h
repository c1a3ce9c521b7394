/* Machine models as data: devices, and the links between them as a tree of levels
 * (docs/reference/format-machine.md). A model describes this machine, another one, or one that does
 * not exist. Every figure has a source.
 *
 * Rank r of a job is device r % devices_per_host of host r / devices_per_host. A level is a set of
 * blocks of devices: pairs, hosts, racks, and last all of the machine. Two devices communicate by
 * the innermost level that has a block with both. */
#ifndef WEFTI_TOPO_MODEL_H
#define WEFTI_TOPO_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/text.h"
#include "topo/links.h"
#include "topo/machine.h"

enum {
    WEFTI_LEVELS_MAX = 8,
    WEFTI_CURVE_POINTS = 256,
    WEFTI_OP_FACTORS_MAX = 256,
    WEFTI_MODEL_DEVICES_MAX = 1 << 20,
    WEFTI_MODEL_FILE_MAX = 1 << 20
};

/* A number and its origin. source NULL: the figure is absent, value 0. */
typedef struct wefti_figure {
    double value;
    const char *source;
} wefti_figure;

/* A measured rate by size: work[i] ascends. count 0: absent. Between points, the rate is
 * interpolated on logarithmic axes. Outside of them it is that of the nearest point. */
typedef struct wefti_curve {
    const char *source;
    const double *work, *rate;
    int32_t count;
} wefti_curve;
double wefti_curve_rate(const wefti_curve *curve, double work);

/* The arithmetic of products. */
#define WEFTI_ARITHMETIC_LIST(X)                                                                   \
    X(F64, "f64") X(F32, "f32") X(TF32, "tf32") X(BF16, "bf16") X(F16, "f16") X(F8, "f8")
typedef enum wefti_arithmetic {
#define WEFTI_ARITHMETIC_ROW(name, text) WEFTI_ARITHMETIC_##name,
    WEFTI_ARITHMETIC_LIST(WEFTI_ARITHMETIC_ROW)
#undef WEFTI_ARITHMETIC_ROW
        WEFTI_ARITHMETICS
} wefti_arithmetic;
const char *wefti_arithmetic_text(wefti_arithmetic arithmetic);

/* Figures of a device: field, least and greatest value, whether the file must have it. */
#define WEFTI_DEVICE_FIGURES(X)                                                                    \
    X(memory_bytes, 1, 1e18, true)                                                                 \
    X(memory_bytes_per_second, 1, 1e18, true)                                                      \
    X(memory_efficiency, 1e-6, 1, false)                                                           \
    X(vector_flops, 1, 1e21, true)                                                                 \
    X(product_efficiency, 1e-6, 1, false)                                                          \
    X(launch_seconds, 0, 1, true)                                                                  \
    X(step_seconds, 0, 60, false)                                                                  \
    X(devices_at_once, 1, 1e6, false)                                                              \
    X(hosts_at_once, 1, 1e6, false)                                                                \
    X(units, 1, 1e6, false)                                                                        \
    X(tile_rows, 1, 1e6, false)                                                                    \
    X(tile_columns, 1, 1e6, false)                                                                 \
    X(tile_depth, 0, 1e6, false)                                                                   \
    X(aligned_bytes, 1, 4096, false)                                                               \
    X(context_bytes, 0, 1e18, false)                                                               \
    X(communicator_bytes, 0, 1e18, false)                                                          \
    X(allocation_bytes, 1, 1e12, false)                                                            \
    X(host_memory_bytes_per_second, 1, 1e18, false)

/* Ways between device memory and a tier below it: towards the device, away from it, and both at
 * once, where the rate counts the bytes of both. */
#define WEFTI_TIER_WAY_LIST(X) X(READ, "read") X(WRITE, "write") X(BOTH, "both")
typedef enum wefti_tier_way {
#define WEFTI_TIER_WAY_ROW(name, text) WEFTI_TIER_##name,
    WEFTI_TIER_WAY_LIST(WEFTI_TIER_WAY_ROW)
#undef WEFTI_TIER_WAY_ROW
        WEFTI_TIER_WAYS
} wefti_tier_way;

/* Tiers below device memory: host memory and the disk. */
#define WEFTI_DEVICE_TIERS(X) X(host_bytes_per_second) X(disk_bytes_per_second)
typedef struct wefti_tier_rates {
    const char *source;               /* NULL: absent */
    double value;                     /* one rate for all sizes and ways; 0: curves */
    wefti_curve way[WEFTI_TIER_WAYS]; /* bytes/s by bytes of a block */
    int32_t depth;                    /* blocks under way at once; 0: not known */
    bool spends_cores;                /* cores that compute do the copies */
} wefti_tier_rates;
/* bytes/s of blocks of `bytes` bytes. The tier is not absent. */
double wefti_tier_rate(const wefti_tier_rates *tier, wefti_tier_way way, double bytes);

/* Corrections of an op's time by its size: formula times factor. `op`: "linear"; in another
 * arithmetic than f32 "linear.bf16". The curve's rate is the factor; its work is the op's FLOPs for
 * products, and bytes for all others. */
typedef struct wefti_op_curve {
    const char *op;
    wefti_curve curve;
} wefti_op_curve;

typedef struct wefti_device_model {
#define WEFTI_DEVICE_FIELD(name, least, most, needed) wefti_figure name;
    WEFTI_DEVICE_FIGURES(WEFTI_DEVICE_FIELD)
#undef WEFTI_DEVICE_FIELD
#define WEFTI_DEVICE_TIER(name) wefti_tier_rates name;
    WEFTI_DEVICE_TIERS(WEFTI_DEVICE_TIER)
#undef WEFTI_DEVICE_TIER
    wefti_figure peak_flops[WEFTI_ARITHMETICS]; /* of products */
    wefti_curve product[WEFTI_ARITHMETICS];     /* flop/s by flops; replaces peak and efficiency */
    wefti_curve memory;                         /* bytes/s by bytes read and written */
    wefti_op_curve *op_factors;                 /* measured on runs (weft audit --calibrate) */
    int32_t op_factor_count;
} wefti_device_model;

typedef struct wefti_level {
    const char *name;
    int32_t devices; /* of a block, up to the host; 0: `hosts` counts */
    int32_t hosts;   /* of a block, beyond the host; 0, and devices 0: all hosts */
    wefti_figure latency_seconds;
    wefti_figure bytes_per_second;        /* of one device, in each direction */
    wefti_figure uplink_bytes_per_second; /* into or out of a block of the next lower level, shared
                                             by its devices; absent: not shared */
    bool reduces;                         /* the switches add up what devices send */
    bool moved_in_waits;    /* devices move the data themselves, when they wait for it */
    wefti_curve all_reduce; /* bus bandwidth (nccl-tests) by bytes, with all devices of a block */
} wefti_level;

typedef struct wefti_machine_model {
    wefti_arena *arena; /* of everything below */
    const char *name, *description;
    int32_t hosts; /* 0: as many as a job needs */
    wefti_device_model device;
    int32_t level_count;
    int32_t host_level; /* index of the outermost level that has `devices` */
    wefti_level level[WEFTI_LEVELS_MAX];
} wefti_machine_model;

/* ---- files ---- */

/* Messages name the file or `name`, the line and the key. */
weft_status wefti_model_parse(const char *name, const char *text, int64_t bytes,
                              wefti_machine_model **out) WEFT_CHECKED;
weft_status wefti_model_load(const char *path, wefti_machine_model **out) WEFT_CHECKED;
void wefti_model_destroy(wefti_machine_model *model); /* NULL is legal */
void wefti_model_print(const wefti_machine_model *model, wefti_text *out);
/* Rules that hold between figures, for a model that was not parsed. */
weft_status wefti_model_check(const wefti_machine_model *model) WEFT_CHECKED;

/* The files that are built into the library, by name; the last one has name NULL. */
typedef struct wefti_model_file {
    const char *name;
    const char *text;
    int64_t bytes;
} wefti_model_file;
extern const wefti_model_file wefti_model_files[];

/* ---- texts ---- */

/* Any of
 *   h100-80g                             a built-in machine, with as many hosts as a job needs
 *   8 hosts of 8 h100-80g
 *   hosts=8 gpus=8 gpu=h100-80g intra=450e9,3e-6 inter=50e9,8e-6
 *   machine.json, links.json             a machine, or measured links between assumed devices
 *   this-machine                         the measured file */
weft_status wefti_model_find(const char *text, wefti_machine_model **out) WEFT_CHECKED;

/* "this-machine" is the file that weft machine measure writes: WEFT_THIS_MACHINE in the
 * environment, else weft/this-machine.json in XDG_CONFIG_HOME or $HOME/.config. The path is for
 * wefti_free. */
weft_status wefti_model_this_machine(char **out) WEFT_CHECKED;

/* The links of any of these texts; files of measured links as they are. */
weft_status wefti_links_find(const char *text, wefti_links *out) WEFT_CHECKED;

/* ---- use ---- */

static inline int32_t wefti_model_per_host(const wefti_machine_model *m) {
    return m->level[m->host_level].devices;
}
/* Refuses a machine with fewer devices than `ranks`. */
weft_status wefti_model_fits(const wefti_machine_model *model, int64_t ranks) WEFT_CHECKED;
/* Devices of a block; the last level may have one without end: INT32_MAX. */
int32_t wefti_model_block(const wefti_machine_model *model, int32_t level);
/* The innermost level that has a block with both devices. */
int32_t wefti_model_level_of(const wefti_machine_model *model, int32_t a, int32_t b);
/* Seconds per byte of one device at a level while `active` devices of each lower block send. */
double wefti_model_byte_seconds(const wefti_machine_model *model, int32_t level, double active);
/* How many times as long kernels take because `ranks` devices share the processors of their hosts,
 * if all of them compute: at least 1. */
double wefti_model_sharing(const wefti_machine_model *model, int64_t ranks);
/* The processor of a rank among those that compute at the same time, from 0 on. Device d of a host
 * has processor d modulo devices_at_once. Host h has the processors of host h modulo hosts_at_once.
 */
int64_t wefti_model_processor(const wefti_machine_model *model, int32_t rank);
/* flop/s of large products. Without this arithmetic: of the nearest one that the device has. */
double wefti_model_product_rate(const wefti_device_model *device, wefti_arithmetic arithmetic);
/* The correction of an op: 1 without one. `work`: FLOPs of products, bytes of all others. */
double wefti_model_op_factor(const wefti_device_model *device, const char *op,
                             wefti_arithmetic arithmetic, double work);
/* The name under which an op has its correction; in `out`. */
const char *wefti_model_op_key(const char *op, wefti_arithmetic arithmetic, char out[64]);
/* The rates that decide between strategies and stages. */
wefti_machine wefti_model_rates(const wefti_machine_model *model);
/* The two kinds of links that redistributions and collectives know: within a host, and the
 * outermost level. Levels beyond the host with at least half its bandwidth count as the host. */
wefti_links wefti_model_links(const wefti_machine_model *model);

#endif
