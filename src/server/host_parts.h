/* A server process, for the files that make it: host.c has what ranks say, work and life,
 * host_answers.c what they are told, host_shards.c the shards and who is bound to them. */
#ifndef WEFTI_HOST_PARTS_H
#define WEFTI_HOST_PARTS_H

#include "base/memory.h"
#include "comm/connection/connection.h"
#include "graph/graph.h"
#include "server/host.h"
#include "server/shard.h"
#include "server/words.h"

/* A rank's side of a shard. */
typedef struct wefti_host_bound {
    struct wefti_host_bound *next;
    wefti_conn_link *link;
    int32_t rank, term;
    unsigned char *memory; /* of its term; NULL: it pushes nothing */
    int64_t number, come;  /* of the term that comes, and how many of its bytes have */
    int64_t process;       /* whose memory is read here; 0: it is not */
} wefti_host_bound;

typedef struct wefti_host_shard {
    struct wefti_host_shard *next;
    uint64_t session;
    uint32_t id;
    wefti_shard_state *state;
    wefti_host_bound *bound;
    int64_t pulled;           /* the latest step that is to be applied */
    wefti_step_block scalars; /* of that step */
    int64_t applied;          /* the latest step that was */
    int32_t taken;            /* ranks that have got its value */
    wefti_failed_word lost;   /* why no later round ends; status WEFT_OK: it may */
} wefti_host_shard;

/* What is to be said to a rank, once the shard is so far. */
typedef struct wefti_host_answer {
    struct wefti_host_answer *next;
    wefti_conn_link *link;
    wefti_host_shard *shard; /* NULL: of none */
    wefti_server_word word;
    uint64_t tag;
    int part;
    int64_t at, end; /* bytes of the part that are not said yet: VALUE, BYTES */
    wefti_failed_word *failed;
} wefti_host_answer;

struct wefti_server {
    wefti_conn_hub *hub;
    wefti_pool *pool;
    wefti_device *device;
    wefti_stream *stream;
    weft_graph *ops; /* for its registry */
    wefti_arena *scratch;
    wefti_host_shard *shards;
    wefti_host_answer *answers, **last;
    uint32_t next_id;
    int threads;
    int32_t number;
    int64_t memory_bytes; /* that shards may take; 0: any */
    wefti_server_counts counts;
    wefti_probe probe;
};

/* ---- host_answers.c ---- */

weft_status wefti_host_answer_later(wefti_server *s, wefti_host_answer answer) WEFT_CHECKED;
/* This thread's failure, to a rank. */
weft_status wefti_host_refuse(wefti_server *s, wefti_conn_link *link, uint64_t tag, uint32_t shard,
                              weft_status status, int rank) WEFT_CHECKED;
/* Says what can be said. A link that fails is closed by its hub, and its answers go then. */
void wefti_host_say(wefti_server *s);
/* Forgets the answers to a link; shard NULL: of any. */
void wefti_host_drop_answers(wefti_server *s, const wefti_conn_link *link,
                             const wefti_host_shard *shard);
void wefti_host_free_answer(wefti_host_answer *answer);

/* ---- host_shards.c ---- */

/* The shard of a region; a new one has no rank yet. */
weft_status wefti_host_find_or_add(wefti_server *s, const wefti_bind_word *word,
                                   wefti_host_shard **out) WEFT_CHECKED;
weft_status wefti_host_add_bound(wefti_host_shard *x, wefti_conn_link *link,
                                 const wefti_bind_word *word) WEFT_CHECKED;
void wefti_host_drop_shard(wefti_server *s, wefti_host_shard *x);
void wefti_host_free_shard(wefti_server *s, wefti_host_shard *x); /* that is in no list */
/* A rank has left. Rounds that lack its term do not end. The shard goes with its last rank. */
void wefti_host_unbind(wefti_server *s, wefti_host_shard *x, const wefti_conn_link *link);

#endif
