/* Memory for transfers, of the device that WEFT_DEVICE names. On a guarded device (`fenced`) it is
 * exposed in this process while the test has it. A communicator must expose it in other processes,
 * and nobody may touch it after the test gave it back. */
#ifndef COMM_DEVICE_MEMORY_H
#define COMM_DEVICE_MEMORY_H

#include <pthread.h>
#include <stdlib.h>

#include "comm/comm.h"

typedef struct device_block {
    struct device_block *next;
    wefti_comm *comm; /* NULL: the device's own memory */
    wefti_byte_range range;
} device_block;

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static device_block *device_blocks;
static wefti_stream *device_stream; /* of the device of this process; NULL: not opened yet */

/* NULL: a direct device, on which the host may touch all memory. */
static wefti_device *guarded_device(void) {
    const wefti_device_table *table;
    wefti_device *device;
    if (wefti_device_choose(0, &table) < 0) abort();
    if (table->direct) return NULL;
    pthread_mutex_lock(&device_lock);
    if (!device_stream && (wefti_device_open(table, &device) < 0 ||
                           wefti_stream_create(device, NULL, &device_stream) < 0))
        abort();
    pthread_mutex_unlock(&device_lock);
    return device_stream->device;
}

static void keep_block(wefti_comm *comm, void *p, int64_t bytes) {
    device_block *block = malloc(sizeof *block);
    if (!block) abort();
    *block = (device_block){NULL, comm, {p, bytes}};
    if (wefti_stream_expose(device_stream, WEFTI_SPACE_DEVICE, &block->range, 1) < 0) abort();
    pthread_mutex_lock(&device_lock);
    block->next = device_blocks;
    device_blocks = block;
    pthread_mutex_unlock(&device_lock);
}

/* With a communicator that has `map`: memory that all ranks of the host map. */
static void *take_memory(wefti_comm *comm, int64_t bytes) {
    wefti_device *device = guarded_device();
    void *p = NULL;
    if (comm && !comm->engine->map) comm = NULL;
    if (!comm && !device) return malloc((size_t)bytes);
    weft_status status = comm ? comm->engine->map(comm, device, (size_t)bytes, &p)
                              : device->table->allocate(device, WEFTI_SPACE_DEVICE, bytes, &p);
    if (status < 0) return NULL;
    if (device) keep_block(comm, p, bytes);
    return p;
}

/* Takes back what take_memory gave; false: it is not memory of a guarded device. */
static bool give_block(void *p) {
    pthread_mutex_lock(&device_lock);
    device_block **at = &device_blocks, *block;
    while (*at && (*at)->range.memory != p) at = &(*at)->next;
    block = *at;
    if (block) *at = block->next;
    pthread_mutex_unlock(&device_lock);
    if (!block) return false;
    wefti_device *device = device_stream->device;
    wefti_stream_conceal(device_stream, &block->range, 1);
    if (block->comm)
        block->comm->engine->unmap(block->comm, device, p, (size_t)block->range.bytes);
    else
        device->table->free(device, WEFTI_SPACE_DEVICE, p, block->range.bytes);
    free(block);
    return true;
}

/* Of take_memory without a communicator. */
__attribute__((unused)) static void give_memory(void *p) {
    if (!p || !give_block(p)) free(p);
}

#endif
