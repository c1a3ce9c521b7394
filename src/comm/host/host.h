/* The state behind comm/host/host.c: a rank that is one of several processes on its host.
 *
 * Processes map one file that has no name, so nothing remains if all processes are killed. The
 * file begins with the control part: it holds the word that marks a broken world, one peer record
 * for each rank, and the slots of the channels, which are added without a lock. The heaps of all
 * ranks follow. A heap belongs to one rank. It holds the arrays of transfers and whatever the rank
 * publishes. The file is far larger than needed; the kernel provides pages on first touch. */
#ifndef WEFTI_HOST_H
#define WEFTI_HOST_H

#include "comm/shm/shm.h"

typedef struct wefti_host_range {
    size_t begin, bytes;
} wefti_host_range;

/* One rank's memory that others reach. Given out to any thread. */
typedef struct wefti_host_heap {
    pthread_mutex_t lock;
    unsigned char *base;
    size_t bytes;
    wefti_host_range *range; /* in use, ascending */
    int64_t ranges, capacity;
    bool halved;          /* the upper half is for arenas of devices alone */
    unsigned char *chunk; /* for memory that is kept until the end */
    size_t chunk_left;
} wefti_host_heap;

typedef struct wefti_intranode wefti_intranode;
typedef struct wefti_intranode_queue wefti_intranode_queue;

/* Bytes that messages of this rank had, by the road they took. */
typedef struct wefti_host_traffic {
    int64_t intranode_bytes, internode_bytes;
} wefti_host_traffic;

/* --- comm/host/memory.c --- */

/* A file without a name. */
weft_status wefti_host_file(const char *what, int *out, uint64_t *inode) WEFT_CHECKED;
/* The file that is `fd` in another process, if it is the one with that inode. */
weft_status wefti_host_open(int64_t process, int fd, uint64_t inode, int *out) WEFT_CHECKED;
/* Addresses that nobody else gets, from a huge page on; the caller unmaps them. */
weft_status wefti_host_reserve(size_t bytes, unsigned char **out) WEFT_CHECKED;
/* Maps a file at reserved addresses. */
weft_status wefti_host_map(int fd, size_t bytes, unsigned char *at) WEFT_CHECKED;
/* Says how mapped files are used: one call for all of them. */
void wefti_host_advise(unsigned char *at, size_t bytes);
/* The most bytes that can be mapped `times` + 1 times in this process, at most `wish`, and half of
 * what there is where addresses are limited (RLIMIT_AS). */
size_t wefti_host_most(size_t wish, int32_t times);

weft_status wefti_host_take(wefti_host_heap *heap, size_t bytes, void **out) WEFT_CHECKED;
void wefti_host_give(wefti_host_heap *heap, void *memory);
/* From the upper half, which then holds nothing else. */
weft_status wefti_host_take_upper(wefti_host_heap *heap, size_t bytes, void **out) WEFT_CHECKED;
/* At a cache line, until the end. */
weft_status wefti_host_keep(wefti_host_heap *heap, size_t bytes, void **out) WEFT_CHECKED;

/* --- comm/host/control.c --- */

typedef struct wefti_host_control wefti_host_control;
void wefti_host_control_begin(wefti_host_control *control, size_t bytes, int32_t ranks);
wefti_shm_common *wefti_host_control_common(wefti_host_control *control);
/* [ranks][ranks], from one to another; NULL: the file is too small. */
wefti_intranode_queue *wefti_host_control_queues(wefti_host_control *control, int32_t ranks);
/* The rows of a group and tag: the same for whoever asks. */
weft_status wefti_host_control_rings(wefti_host_control *control, const wefti_transfer *t,
                                     wefti_shm_ring **out) WEFT_CHECKED;

/* --- comm/host/host.c --- */

typedef struct wefti_host_internode wefti_host_internode;

typedef struct wefti_host {
    wefti_shm_rank local;
    wefti_comm_engine engine; /* with a name of its own */
    char name[48];
    wefti_shm_world world;
    wefti_host_heap heap;
    unsigned char *mapped; /* the control part, then the heaps of all ranks of this host */
    size_t mapped_bytes;
    wefti_host_control *control;
    size_t control_bytes;
    wefti_comm *internode;           /* NULL: all ranks are on this host */
    wefti_host_internode *under_way; /* transfers of `far` */
    wefti_host_traffic traffic;
} wefti_host;

static inline wefti_host *wefti_host_of(wefti_shm_world *world) {
    return (wefti_host *)((char *)world - offsetof(wefti_host, world));
}

/* --- comm/host/internode.c: transfers with members on other hosts --- */

weft_status wefti_host_internode_bind(wefti_host *host, const wefti_transfer *transfer,
                                      wefti_endpoint **out) WEFT_CHECKED;
bool wefti_host_is_internode(const wefti_endpoint *endpoint);
weft_status wefti_host_internode_post(wefti_endpoint *endpoint, const void *source,
                                      void *destination);
weft_status wefti_host_internode_wait(wefti_endpoint *endpoint);
weft_status wefti_host_internode_test(wefti_endpoint *endpoint);
void wefti_host_internode_unbind(wefti_endpoint *endpoint);

/* --- comm/host/device.c: `map` and `unmap` of comm.h for a device --- */

weft_status wefti_host_map_device(wefti_host *host, wefti_device *device, size_t bytes,
                                  void **out) WEFT_CHECKED;
void wefti_host_unmap_device(wefti_host *host, wefti_device *device, void *memory, size_t bytes);

/* --- comm/host/map.c --- */

/* Collective: this process and its neighbours map each other's memory. */
weft_status wefti_host_join(wefti_host *host, const int32_t *hosts,
                            const wefti_exchange *exchange) WEFT_CHECKED;

#endif
