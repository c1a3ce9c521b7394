/* Memory of a process on the same host, read with one copy (process_vm_readv(2)), where the kernel
 * permits it. Two processes find out by a probe: random bytes in memory, of which one says where
 * they are. Nobody writes into the memory of another process. */
#ifndef WEFTI_SERVER_REACH_H
#define WEFTI_SERVER_REACH_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFTI_PROBE_TOKEN = 16, WEFTI_PROBE_BYTES = 8 + 8 + WEFTI_PROBE_TOKEN };

/* Of a process: where its token is, and what it is. */
typedef struct wefti_probe {
    int64_t process; /* 0: nobody may read here */
    uint64_t at;
    unsigned char token[WEFTI_PROBE_TOKEN];
} wefti_probe;

/* `probe` is this process's from now on, and must stay where it is. Without random bytes nobody may
 * read here. */
void wefti_probe_make(wefti_probe *probe);
void wefti_probe_encode(const wefti_probe *probe, unsigned char out[WEFTI_PROBE_BYTES]);
void wefti_probe_decode(const unsigned char in[WEFTI_PROBE_BYTES], wefti_probe *out);
bool wefti_probe_reads(const wefti_probe *probe);
/* False: the process has ended, or has no such memory. */
bool wefti_reach_read(int64_t process, uint64_t from, void *to, int64_t bytes);

#endif
