/* Homes: where the bytes of a tensor lie. The host reads, writes and maps ranges of a home in
 * blocks.
 *
 * Code outside of kernels and transfers has homes and no pointers. A pointer would promise that the
 * host can reach the bytes, and that they stay where they are in one range. A home says where in
 * its arena the bytes are. Each call finds the memory anew.
 *
 * - wefti_home_read and wefti_home_write copy a range of any length.
 * - wefti_home_map gives the address of a range of at most WEFTI_HOME_BLOCK bytes. On a direct
 *   device this is the memory itself, without a copy. On others, and of files, it is a buffer of
 *   the host. It is read when the mapping begins, or written back when the mapping ends.
 *
 * The calls wait for the work that the device's stream has published. Any thread may make them. */
#ifndef WEFTI_HOME_H
#define WEFTI_HOME_H

#include "device/device.h"
#include "device/disk.h"

/* How to reach bytes that servers keep, by their offsets in the arena. */
typedef struct wefti_remote {
    weft_status (*read)(void *context, int64_t offset, int64_t bytes, void *to);
    weft_status (*write)(void *context, int64_t offset, int64_t bytes, const void *from);
    void *context;
} wefti_remote;

/* An arena of a device: blocks of memory, files on a disk, or bytes of servers, one behind the
 * other by offset. A buffer of a program lies in one block. */
typedef struct wefti_arena_block {
    unsigned char
        *memory; /* in device memory the host must not touch it; NULL: it is one of these */
    wefti_disk_stream *file;    /* of a block on the disk; else NULL */
    const wefti_remote *remote; /* of bytes of servers; else NULL */
    int64_t begin, mapped;      /* the offset of its first byte; its size */
} wefti_arena_block;
typedef struct wefti_device_arena {
    wefti_arena_block *blocks;
    int64_t count, cap;
    int64_t bytes, observed; /* observed: the end of the highest byte that was used */
} wefti_device_arena;

/* The block that an offset lies in; NULL: the arena is empty. */
const wefti_arena_block *wefti_arena_block_of(const wefti_device_arena *arena, int64_t offset);
/* The memory of an offset, for the owner of the bytes; NULL: the arena is empty, or a file. */
unsigned char *wefti_arena_at(const wefti_device_arena *arena, int64_t offset);

typedef struct wefti_home {
    wefti_device *device; /* the owner of the arena; NULL: memory of this process */
    wefti_space space;
    const wefti_device_arena *arena; /* NULL: the bytes are not in this process */
    int64_t offset, bytes;
} wefti_home;

enum { WEFTI_HOME_BLOCK = 4 << 20 };

static inline bool wefti_home_exists(const wefti_home *home) {
    return home->arena != NULL;
}

/* The address of all bytes of a home, for weft_session_local, which promises one; NULL: the host
 * cannot reach them there. */
void *wefti_home_memory(const wefti_home *home);

/* Copies bytes [offset, offset + bytes) of a home. The copy is done when the call returns. A copy
 * that fails may have copied a part. If an allocation failed, that part is whole blocks of the
 * arena. */
weft_status wefti_home_read(const wefti_home *home, int64_t offset, int64_t bytes,
                            void *to) WEFT_CHECKED;
weft_status wefti_home_write(const wefti_home *home, int64_t offset, int64_t bytes,
                             const void *from) WEFT_CHECKED;

/* Bytes [offset, offset + bytes) of a home on a disk are those of another file, from its byte `at`
 * on, until they are written (wefti_disk_stream_lend). *out false: nothing was done; such bytes
 * must be written. */
weft_status wefti_home_lend(const wefti_home *home, int64_t offset, int64_t bytes,
                            const wefti_reader *reader, int64_t at, bool *out) WEFT_CHECKED;
/* Whether all bytes of a home are those of other files. */
bool wefti_home_is_lent(const wefti_home *home);

/* READ: `data` has the bytes of the home. WRITE: the home gets the bytes of `data` when the mapping
 * ends. Without READ the caller writes all of them. */
typedef enum wefti_access {
    WEFTI_ACCESS_READ = 1,
    WEFTI_ACCESS_WRITE = 2,
    WEFTI_ACCESS_UPDATE = WEFTI_ACCESS_READ | WEFTI_ACCESS_WRITE
} wefti_access;

typedef struct wefti_mapping {
    void *data;      /* NULL: an empty range, or a home that is not in this process */
    wefti_home part; /* the bytes that `data` is a copy of */
    wefti_access access;
    bool copied; /* false: `data` is the memory itself */
} wefti_mapping;

weft_status wefti_home_map(const wefti_home *home, int64_t offset, int64_t bytes,
                           wefti_access access, wefti_mapping *out) WEFT_CHECKED;
/* Ends a mapping. Call it also if the work on the mapping failed, with that failure as `status`:
 * then nothing is written back. Returns `status`, or the failure to write. */
weft_status wefti_home_unmap(wefti_mapping *mapping, weft_status status);

#endif
