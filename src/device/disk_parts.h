/* What the engines of disk streams share: requests, which are parts of operations. */
#ifndef WEFTI_DEVICE_DISK_PARTS_H
#define WEFTI_DEVICE_DISK_PARTS_H

#include <pthread.h>
#include <sys/uio.h>

#include "device/disk_records.h"

/* A range of the file, and its memory. */
typedef struct wefti_disk_piece {
    int64_t offset, bytes;
    unsigned char *memory;
} wefti_disk_piece;

struct wefti_disk_ticket {
    wefti_disk_ticket *next, **link; /* all tickets of the stream */
    wefti_disk_ticket *queued;       /* the next operation that still has bytes to request */
    bool writes;
    int64_t offset, bytes; /* from its first byte to its last one */
    wefti_disk_piece one;
    const wefti_disk_piece *pieces; /* [count]: `one`, or those of the caller */
    int64_t count;
    int64_t piece, requested; /* the first piece that has bytes which are no requests yet, and how
                                 many are */
    int32_t under_way;        /* requests */
    int error;                /* errno of the first failure; 0: none */
    int64_t error_offset;
};

/* A file that has bytes of a stream: its own, or one that lends them. */
typedef struct wefti_disk_file {
    char *path; /* NULL: of the stream itself */
    int fd;
    int64_t alignment; /* of memory in transfers; 1 through the page cache */
    uint64_t device, number;
} wefti_disk_file;

/* Bytes [begin, end) of a stream that lie in another file, `shift` bytes further on. */
typedef struct wefti_disk_loan {
    int64_t begin, end, shift;
    int64_t file; /* its number in `lenders` */
} wefti_disk_loan;

/* Bytes [begin, end) of a stream of which newer ones are elsewhere. `before` is called before an
 * operation on any of them begins, without the lock. It brings the file up to date; with `writes`
 * the file's bytes are then the newest. */
typedef struct wefti_disk_guard wefti_disk_guard;
struct wefti_disk_guard {
    wefti_disk_guard *next;
    int64_t begin, end;
    weft_status (*before)(wefti_disk_guard *guard, bool writes);
};

typedef struct wefti_disk_ring wefti_disk_ring;
typedef struct wefti_disk_cipher wefti_disk_cipher;

struct wefti_disk_stream {
    char *directory, *text;
    wefti_disk_file own;
    int64_t bytes, block;
    int64_t unit; /* of requests: the alignment, or a block that is encrypted */
    int32_t depth;
    pthread_mutex_t lock;            /* of everything below */
    pthread_cond_t work, done;       /* there are bytes to request; an operation has ended */
    wefti_disk_ticket *tickets;      /* not waited for */
    wefti_disk_ticket *first, *last; /* the queue */
    void *buffers;                   /* one of a block for each request; NULL: none needed yet */
    int32_t numbers;                 /* given to requests */
    bool closing;
    wefti_disk_loan *loans; /* by place */
    int64_t loan_count, loan_cap;
    wefti_disk_guard *guards;
    wefti_disk_records *records;
    int64_t record_count, record_cap;
    wefti_disk_file *lenders;
    int64_t lender_count, lender_cap;
    pthread_mutex_t bouncing; /* of the bytes of `bounce`; taken before `lock` */
    void *bounce;             /* NULL: there are no records */
    pthread_t threads[WEFTI_DISK_DEPTH_MAX];
    int32_t thread_count;
    wefti_disk_ring *ring;     /* NULL: threads */
    wefti_disk_cipher *cipher; /* NULL: a plain file */
};

/* A request: bytes [at, until) of the stream, by transfers of the blocks [from, to) of the file
 * that has them. An engine keeps `depth` at most, zeroed at first. It uses them again, and they
 * keep their buffers. */
typedef struct wefti_disk_request {
    wefti_disk_ticket *ticket;
    wefti_disk_file file;
    int64_t at, until, from, to;
    unsigned char *memory;   /* of `at` */
    int64_t shift;           /* from a byte of the stream to its place in the file */
    int64_t needed;          /* the transfer may end here: a file that lends may end in a block */
    int64_t done;            /* bytes of the transfer */
    bool reads;              /* the transfer; a write of parts of blocks reads them first */
    unsigned char *transfer; /* the caller's memory, or the buffer */
    int32_t number;          /* of the buffer, from 1 on; 0: no number yet */
    struct iovec vector;     /* the rest of the transfer */
} wefti_disk_request;

void wefti_disk_stream_guard(wefti_disk_stream *d, wefti_disk_guard *guard);
void wefti_disk_stream_unguard(wefti_disk_stream *d, const wefti_disk_guard *guard);
/* Calls the guards of bytes [begin, end). */
weft_status wefti_disk_stream_ask(wefti_disk_stream *d, bool writes, int64_t begin,
                                  int64_t end) WEFT_CHECKED;
/* Begins a read or write that no guard sees, at a place of the file. */
weft_status wefti_disk_stream_begin(wefti_disk_stream *d, bool writes, int64_t offset,
                                    int64_t bytes, void *memory,
                                    wefti_disk_ticket **out) WEFT_CHECKED;

/* The same for several ranges, in the order of their places, of which no two share a block. Other
 * operations wait as if it were one range from the first byte to the last one. The caller keeps
 * `pieces` until the wait. */
weft_status wefti_disk_stream_begin_all(wefti_disk_stream *d, bool writes,
                                        const wefti_disk_piece *pieces, int64_t count,
                                        wefti_disk_ticket **out) WEFT_CHECKED;

/* disk_records.c. wefti_disk_stream_begin at an offset of the stream: bytes among records lie
 * elsewhere. */
weft_status wefti_disk_stream_begin_at(wefti_disk_stream *d, bool writes, int64_t offset,
                                       int64_t bytes, void *memory,
                                       wefti_disk_ticket **out) WEFT_CHECKED;

/* Takes the next request from the queue. False: there is none; with `block`, the stream is closing.
 */
bool wefti_disk_request_take(wefti_disk_stream *d, wefti_disk_request *r, bool block);
/* Makes `vector` the whole transfer. False: the request has failed and ended. */
bool wefti_disk_request_begin(wefti_disk_stream *d, wefti_disk_request *r);
/* Takes the result of a transfer of `vector` at from + done: bytes, or a negative errno. True: the
 * request has ended. False: `vector` is the next transfer. */
bool wefti_disk_request_advance(wefti_disk_stream *d, wefti_disk_request *r, int64_t result);
bool wefti_disk_stream_closing(wefti_disk_stream *d); /* and nothing is left to request */

/* disk_cipher.c. `bytes` and `depth` of the stream are set. */
weft_status wefti_disk_cipher_create(wefti_disk_stream *d) WEFT_CHECKED;
void wefti_disk_cipher_destroy(wefti_disk_cipher *cipher); /* NULL is legal */
/* Encrypt the blocks of a request, from `from` to its transfer, and decrypt its transfer in place.
 * Return 0 or an errno; EBADMSG: a block is not what was written. */
int wefti_disk_encrypt(wefti_disk_cipher *cipher, const wefti_disk_request *r,
                       const unsigned char *from);
int wefti_disk_decrypt(wefti_disk_cipher *cipher, const wefti_disk_request *r);

/* disk_loans.c; under the lock, but for the last two. The loan that has byte `at` of the stream, or
 * NULL. *end, which is behind `at`, becomes the end of the bytes that lie in the same file. */
const wefti_disk_loan *wefti_disk_loan_at(const wefti_disk_stream *d, int64_t at, int64_t *end);
/* These bytes lie in the stream's own file again. */
weft_status wefti_disk_end_loans(wefti_disk_stream *d, int64_t begin, int64_t end) WEFT_CHECKED;
void wefti_disk_loans_close(wefti_disk_stream *d);
/* Sets the file's alignment if it can be used past the page cache, by a try that reads or writes
 * its first block. */
weft_status wefti_disk_go_direct(wefti_disk_file *file, bool writes, int *out_error) WEFT_CHECKED;

/* The engine io_uring: disk_uring.c. A negative errno: it is not there. Destroy waits for all
 * requests; the stream is closing. Wake: there are bytes to request. */
int wefti_disk_ring_create(wefti_disk_stream *d);
void wefti_disk_ring_destroy(wefti_disk_ring *ring);
void wefti_disk_ring_wake(wefti_disk_ring *ring);

#endif
