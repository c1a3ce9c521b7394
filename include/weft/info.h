/* What this build of weft contains and what this machine can do. */
#ifndef WEFT_INFO_H
#define WEFT_INFO_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/status.h"
#include "weft/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A third-party library that a build may contain. */
typedef struct weft_component {
    const char *name, *purpose; /* "oneDNN", "fast convolutions"; static storage */
    bool built_in;
    const char *unused; /* built in, but the library found here is not used: why; else NULL; static
                           storage */
} weft_component;

enum { WEFT_MAX_COMPONENTS = 16 };

typedef struct weft_info {
    const char *compiler; /* static storage */
    weft_component components[WEFT_MAX_COMPONENTS];
    int component_count;
    char processor[64];   /* the maker's name of it, "" where the system does not tell */
    char features[128];   /* vector and matrix instructions of use here, "avx2 fma avx512 ..." */
    const char *isa;      /* the kernels' form chosen for it: plain, avx2, avx512, amx */
    int cores;            /* that this process may use: affinity and quota respected */
    int64_t memory_bytes; /* of the machine, or the cgroup's limit where that is smaller */
    int64_t memory_free_bytes; /* that can be had without swapping, an estimate of the system */
} weft_info;

/** Look at the build and the machine. Reads /proc and /sys; what they do not tell is "" or 0. */
WEFT_API void weft_info_get(weft_info *out);

typedef struct weft_rates {
    int threads;
    double matmul_f32;  /* floating-point operations per second, [1024, 1024] x [1024, 1024] */
    double matmul_bf16; /* the same with bf16 operands and f32 sums */
    double copy;        /* bytes copied per second (each is read and written once), 64 MiB blocks */
} weft_rates;

/** Measure for about half a second, with `threads` threads (0: all cores); the best of a few runs
 * counts. WEFT_E_ARG for a negative number of threads, WEFT_E_NOMEM without about 160 MiB. */
WEFT_API weft_status weft_info_measure(int threads, weft_rates *out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
