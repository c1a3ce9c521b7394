/* Reports the built-in components and the properties of the machine. See weft/info.h. */
#include "weft/info.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/cgroup.h"
#include "base/pool.h"

#ifndef WEFT_HAVE_ONEDNN
#define WEFT_HAVE_ONEDNN 0
#endif
#ifndef WEFT_HAVE_YAML
#define WEFT_HAVE_YAML 0
#endif
#ifndef WEFT_HAVE_ZLIB
#define WEFT_HAVE_ZLIB 0
#endif
#ifndef WEFT_HAVE_HWLOC
#define WEFT_HAVE_HWLOC 0
#endif
#ifndef WEFT_HAVE_OPENSSL
#define WEFT_HAVE_OPENSSL 0
#endif
#ifndef WEFT_HAVE_URING
#define WEFT_HAVE_URING 0
#endif
#ifndef WEFT_HAVE_UCX
#define WEFT_HAVE_UCX 0
#endif
#ifndef WEFT_HAVE_OPENMPI_MODULE
#define WEFT_HAVE_OPENMPI_MODULE 0
#endif
#ifndef WEFT_HAVE_MPICH_MODULE
#define WEFT_HAVE_MPICH_MODULE 0
#endif

enum { ONEDNN }; /* its index in `components` */

static const weft_component components[] = {
    [ONEDNN] = {"oneDNN", "fast convolutions", WEFT_HAVE_ONEDNN, NULL},
    {"libyaml", "job files", WEFT_HAVE_YAML, NULL},
    {"zlib", "compressed data files", WEFT_HAVE_ZLIB, NULL},
    {"hwloc", "machine discovery", WEFT_HAVE_HWLOC, NULL},
    {"OpenSSL", "who may join a job; messages between hosts; encrypted checkpoints",
     WEFT_HAVE_OPENSSL, NULL},
    {"liburing", "asynchronous disks", WEFT_HAVE_URING, NULL},
    {"UCX", "messages that anybody may forge: trusted networks, WEFT_COMM=ucx", WEFT_HAVE_UCX,
     NULL},
    {"Open MPI", "a module for its mpirun", WEFT_HAVE_OPENMPI_MODULE, NULL},
    {"MPICH", "a module for its mpirun", WEFT_HAVE_MPICH_MODULE, NULL},
};

const char *weft_version(void) {
    return WEFT_VERSION;
}

int weft_version_number(void) {
    return WEFT_VERSION_NUMBER;
}

/* Reads the value after `key` and a colon from a file of "key : value" lines. False if the key is
 * missing. */
static bool proc_value(const char *path, const char *key, char *out, size_t capacity) {
    FILE *file = fopen(path, "re");
    char line[4096];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        size_t length = strlen(key);
        if (!colon || strncmp(line, key, length) != 0) continue;
        if (strspn(line + length, " \t") != (size_t)(colon - line) - length) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, capacity, "%.*s", (int)capacity - 1, colon);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

static int64_t memory_line(const char *key) {
    char text[64];
    return proc_value("/proc/meminfo", key, text, sizeof text) ? strtoll(text, NULL, 10) * 1024 : 0;
}

static void copy_end(const char *from, char *to, size_t room) {
    const size_t length = strlen(from);
    (void)snprintf(to, room, "%s", length < room ? from : from + length - room + 1);
}

static void find_cores(const wefti_cgroups *groups, weft_info *out) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const char *by;
    cpu_set_t set;
    int allowed = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) allowed = CPU_COUNT(&set);
    out->machine_cores = online > allowed ? (int)online : allowed;
    (void)wefti_cgroups_cores(groups, out->machine_cores, allowed, &by);
    copy_end(by, out->cores_limit, sizeof out->cores_limit);
}

static void find_memory(const wefti_cgroups *groups, weft_info *out) {
    out->memory_bytes = out->machine_memory_bytes = memory_line("MemTotal");
    out->memory_free_bytes = memory_line("MemAvailable");
    if (groups->memory.amount < (double)out->memory_bytes) {
        out->memory_bytes = (int64_t)groups->memory.amount;
        copy_end(groups->memory.file, out->memory_limit, sizeof out->memory_limit);
    }
    if (groups->memory_free < (double)out->memory_free_bytes)
        out->memory_free_bytes = (int64_t)groups->memory_free;
    if (out->memory_free_bytes > out->memory_bytes) out->memory_free_bytes = out->memory_bytes;
}

static void add_feature(char *features, size_t capacity, bool has, const char *name) {
    size_t used = strlen(features);
    if (has) snprintf(features + used, capacity - used, "%s%s", used ? " " : "", name);
}

void weft_info_get(weft_info *out) {
    weft_info info = {
        .component_count = (int)(sizeof components / sizeof *components),
        .isa = wefti_isa_text(wefti_isa_best()),
        .cores = wefti_cores(),
#if defined(__clang__)
        .compiler = "clang " __clang_version__,
#elif defined(__GNUC__)
        .compiler = "gcc " __VERSION__,
#else
        .compiler = "unknown",
#endif
    };
    memcpy(info.components, components, sizeof components);
    info.components[ONEDNN].unused = wefti_onednn_unused();
    proc_value("/proc/cpuinfo", "model name", info.processor, sizeof info.processor);
    add_feature(info.features, sizeof info.features, wefti_isa_has(WEFTI_ISA_AVX2), "avx2 fma");
    add_feature(info.features, sizeof info.features, wefti_isa_has(WEFTI_ISA_AVX512), "avx512");
    add_feature(info.features, sizeof info.features, wefti_isa_has_avx512_bf16(), "avx512_bf16");
    add_feature(info.features, sizeof info.features, wefti_isa_has_amx_bf16(), "amx_bf16");
    wefti_cgroups groups;
    wefti_cgroups_read("", &groups);
    find_cores(&groups, &info);
    find_memory(&groups, &info);
    *out = info;
}
