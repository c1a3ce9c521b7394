/* The contents of this build, and the machine. */
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
    const char *
        unused; /* the reason why weft does not use a built-in library; else NULL; static storage */
} weft_component;

enum { WEFT_MAX_COMPONENTS = 16 };

typedef struct weft_info {
    const char *compiler; /* static storage */
    weft_component components[WEFT_MAX_COMPONENTS];
    int component_count;
    char processor[64];   /* the maker's name; "" if the system does not report it */
    char features[128];   /* instructions that kernels can use, "avx2 fma avx512 ..." */
    const char *isa;      /* the chosen form of the kernels: plain, avx2, avx512, amx */
    int cores;            /* that this process may use, by affinity and the limits of its cgroups */
    int64_t memory_bytes; /* of the machine, or the least limit of its cgroups if smaller */
    int64_t memory_free_bytes; /* available without swapping, by the system's estimate */
    int machine_cores;         /* that are online */
    int64_t machine_memory_bytes;
    /* What keeps this process from the rest of the machine: the file of a cgroup's limit, or
     * "affinity"; "": nothing. A longer path keeps its end. */
    char cores_limit[256], memory_limit[256];
} weft_info;

/** Describe the build and the machine. Reads /proc and /sys; a missing fact becomes "" or 0. */
WEFT_API void weft_info_get(weft_info *out);

/** Names of the machines that are built in (docs/reference/format-machine.md), in order; NULL from
 * the last one on. Static storage. */
WEFT_API const char *weft_machine_name(int index);
/** The machine file of a machine: JSON, with the source of every figure.
 * @param machine  a name, "8 hosts of 8 h100-80g", a topology, or a file
 * @param out      freed with weft_text_free
 * @return WEFT_E_NOT_FOUND or WEFT_E_ARG for a text that names none; WEFT_E_CORRUPT for a damaged
 * file */
WEFT_API weft_status weft_machine_text(const char *machine, char **out) WEFT_CHECKED;

typedef struct weft_rates {
    int threads;
    double matmul_f32;  /* floating-point operations per second, [1024, 1024] x [1024, 1024] */
    double matmul_bf16; /* the same with bf16 operands and f32 sums */
    double copy;        /* bytes copied per second (each is read and written once), 64 MiB blocks */
} weft_rates;

/** Measure the rates for about half a second, with `threads` threads (0: all cores). Takes the best
 * of a few runs.
 * @return WEFT_E_ARG for a negative number of threads; WEFT_E_NOMEM without about 160 MiB */
WEFT_API weft_status weft_info_measure(int threads, weft_rates *out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
