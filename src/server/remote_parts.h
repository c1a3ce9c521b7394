/* A rank's side of servers in other processes, for the files that make it: remote.c has the calls
 * of ranks, remote_thread.c the thread with the connections. */
#ifndef WEFTI_REMOTE_PARTS_H
#define WEFTI_REMOTE_PARTS_H

#include <pthread.h>

#include "server/remote.h"
#include "server/words.h"

/* Frames on their way out: a head, and bytes of the rank in chunks. */
typedef struct wefti_remote_letter {
    struct wefti_remote_letter *next;
    int32_t server;
    wefti_server_word word;
    uint64_t tag, place;
    unsigned char *body; /* [body_bytes], borrowed: of one frame; NULL: `head` and data */
    size_t body_bytes;
    unsigned char head[WEFTI_WORD_HEAD + WEFTI_WORD_SCALARS];
    size_t head_bytes;
    const unsigned char *data;
    int64_t bytes, sent;
    bool waits; /* it is in the list */
} wefti_remote_letter;

typedef struct wefti_remote_server {
    wefti_conn_address address;
    wefti_conn_link *link; /* NULL: not connected */
    bool opened;
    int64_t load; /* bytes of parameters */
} wefti_remote_server;

typedef struct wefti_remote_bound {
    wefti_shard base;
    struct wefti_remote_service *service;
    struct wefti_remote_bound *next;
    int32_t server;
    uint32_t id;
    int64_t part_bytes[WEFTI_SERVED_PARTS];
    size_t square_bytes;
    wefti_remote_letter push, pull, taken;
    bool is_read;    /* the server reads what is pushed, */
    bool pushes;     /* and has not said that it has */
    int64_t process; /* of the server, whose memory is read; 0: it is not */
    /* What comes: */
    unsigned char *value;
    int64_t pulled, come, asked; /* the number, and bytes; of the square */
    unsigned char square[sizeof(double)];
    bool has_square;
} wefti_remote_bound;

/* The answer to a call that waits. One at a time. */
typedef struct wefti_remote_reply {
    uint64_t tag;
    bool there;
    uint32_t shard, part;
    wefti_probe probe; /* BOUND */
    unsigned char *to; /* BYTES */
    int64_t at, come, bytes;
} wefti_remote_reply;

typedef struct wefti_remote_service {
    wefti_service base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool runs; /* the thread */
    int wake;
    wefti_conn_hub *hub;
    wefti_remote_server *servers;
    int32_t count;
    uint64_t session, next_tag;
    int64_t until_ns; /* for all servers to answer */
    wefti_remote_letter *letters, **last;
    wefti_remote_bound *bound;
    wefti_remote_reply reply;
    bool ends, by_frames;
    wefti_probe probe;
    wefti_failure broken; /* status WEFT_OK: it is not */
    bool lost;            /* it cannot be mended */
} wefti_remote_service;

/* ---- remote.c ---- */

/* With the lock. The first failure counts. */
void wefti_remote_fail(wefti_remote_service *s, weft_status status, int rank, const char *text);

/* ---- remote_thread.c ---- */

weft_status wefti_remote_open_hub(wefti_remote_service *s,
                                  const wefti_remote_options *o) WEFT_CHECKED;
void *wefti_remote_run(void *service); /* the thread */
void wefti_remote_wake(const wefti_remote_service *s);
/* With the lock: a word of a shard; it goes out; it does not, or no further. */
void wefti_remote_address(wefti_remote_letter *l, const wefti_remote_bound *b,
                          wefti_server_word word, uint64_t tag, int part);
void wefti_remote_write(wefti_remote_service *s, wefti_remote_letter *l);
void wefti_remote_take_back(wefti_remote_service *s, wefti_remote_letter *l);

#endif
