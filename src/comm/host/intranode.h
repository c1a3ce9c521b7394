/* The intra-node transport: messages between processes of one host through shared memory, by the
 * rules of weft/transport.h. Thus no algorithm for transfers between hosts sends messages of one
 * host over the network.
 *
 * A message lies in its sender's heap. It holds the data if the data is short, otherwise the
 * data's address. The receiver then copies the data straight to its destination, out of mapped
 * memory or with process_vm_readv. The sender puts the message's address into a ring that only
 * these two processes use. The receiver always empties the ring and keeps messages that it does
 * not want yet, so that no message blocks another. A process writes only one word of another
 * process's memory: the state of a message. */
#ifndef WEFTI_HOST_INTRANODE_H
#define WEFTI_HOST_INTRANODE_H

#include "comm/host/host.h"

enum { WEFTI_INTRANODE_RING = 64 };

/* From one rank to another, in the control part. */
typedef struct wefti_intranode_queue {
    alignas(128) _Atomic uint64_t written;  /* by the sender, so far */
    alignas(128) _Atomic uint64_t taken;    /* by the receiver */
    uint64_t message[WEFTI_INTRANODE_RING]; /* addresses of the sender's */
} wefti_intranode_queue;

typedef struct wefti_intranode_message wefti_intranode_message;

/* In the caller's memory, where it stays. */
typedef struct wefti_intranode_request {
    struct wefti_intranode_request *next; /* receives of a rank that nothing is there for */
    wefti_intranode_message *message;     /* NULL: none yet, or no longer */
    int32_t place;
    uint32_t looks; /* that found nothing */
    uint64_t tag;
    void *data;
    size_t bytes;
    bool receives, done;
} wefti_intranode_request;

/* NULL where the memory that is shared is too little for it. */
weft_status wefti_intranode_create(wefti_host *host, wefti_intranode **out) WEFT_CHECKED;
void wefti_intranode_destroy(wefti_intranode *intranode);

weft_status wefti_intranode_send(wefti_intranode *intranode, int32_t rank, uint64_t tag,
                                 const void *data, size_t bytes,
                                 wefti_intranode_request *request) WEFT_CHECKED;
void wefti_intranode_receive(wefti_intranode *intranode, int32_t rank, uint64_t tag, void *data,
                             size_t bytes, wefti_intranode_request *request);
weft_status wefti_intranode_test(wefti_intranode *intranode, wefti_intranode_request *request,
                                 size_t *out_bytes);
void wefti_intranode_cancel(wefti_intranode *intranode, wefti_intranode_request *request);

#endif
