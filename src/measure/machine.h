/* Measuring a machine file: what the files of this folder share. All ranks measure at the same
 * time, so that figures are those of a device whose neighbours compute too. */
#ifndef WEFTI_MEASURE_MACHINE_H
#define WEFTI_MEASURE_MACHINE_H

#include "base/pool.h"
#include "measure/comm.h"
#include "topo/model.h"

enum { WEFTI_MEASURED_POINTS = 24 };

/* A rate by size. */
typedef struct wefti_measured_curve {
    double work[WEFTI_MEASURED_POINTS], rate[WEFTI_MEASURED_POINTS];
    int32_t count;
} wefti_measured_curve;

/* Rates of a tier below device memory. */
typedef struct wefti_measured_tier {
    wefti_measured_curve way[WEFTI_TIER_WAYS]; /* count 0: not measured */
    int32_t depth;
    bool spends_cores;
    char how[256]; /* the source, behind the word "measured" */
} wefti_measured_tier;

typedef struct wefti_measured_level {
    double latency_seconds, bytes_per_second, uplink; /* uplink 0: not shared */
    wefti_measured_curve all_reduce;
} wefti_measured_level;

/* Figures of a machine, equal on all ranks. */
typedef struct wefti_measured {
    int32_t hosts, per_host;
    int32_t at_once; /* devices of a host that compute at the same time; 0: all */
    int32_t
        hosts_at_once; /* hosts that compute at the same time, if they share processors; 0: all */
    double memory_bytes, vector_flops, launch_seconds;
    wefti_measured_curve product[WEFTI_ARITHMETICS], memory;
    wefti_measured_tier host, disk;
    wefti_measured_level level[2]; /* within a host, between hosts */
} wefti_measured;

typedef struct wefti_measuring {
    weft_world *world;
    wefti_pool *pool;
    int threads;
    double seconds; /* for each figure */
    const weft_machine_options *options;
    wefti_measured *out;
} wefti_measuring;

/* Reports a figure, on rank 0. */
void wefti_measured_report(const wefti_measuring *m, const weft_machine_figure *figure);
void wefti_measured_figure(const wefti_measuring *m, const char *name, double value);
void wefti_measured_point(const wefti_measuring *m, wefti_measured_curve *curve, const char *name,
                          double work, double rate);
/* Seconds of one run: the best of several batches, since other programs only add time; of the
 * slowest rank. Collective. Ranks whose `run` is NULL measure nothing and sleep meanwhile: a rank
 * that waits for a transfer polls, and would take a processor. */
typedef weft_status wefti_measured_run(void *context);
weft_status wefti_measured_seconds(const wefti_measuring *m, wefti_measured_run *run, void *context,
                                   double *out) WEFT_CHECKED;

/* Sleeps while others measure. At most a minute. */
void wefti_measured_rest(double seconds);

/* Whether larger points would take too long, given the seconds of the last one: far more than a
 * figure should take. `seconds` must be equal on all ranks. */
bool wefti_measured_enough(const wefti_measuring *m, const wefti_measured_curve *curve,
                           double seconds);

/* How many of `count` devices or hosts have a processor of their own, if the slowest of them is so
 * many times as slow with the others as without. 0: all. One that shares with another one takes
 * twice as long; less than 1.4 times as long is noise, or caches. */
int32_t wefti_measured_at_once(int32_t count, double slower);

/* machine_kernels.c, machine_links.c, machine_tiers.c. Collective. */
weft_status wefti_measure_kernels(const wefti_measuring *m) WEFT_CHECKED;
weft_status wefti_measure_tiers(const wefti_measuring *m) WEFT_CHECKED;
weft_status wefti_measure_levels(const wefti_measuring *m) WEFT_CHECKED;

#endif
