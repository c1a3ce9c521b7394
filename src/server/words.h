/* What ranks and servers say to each other: frames of connections (comm/connection). Bodies are
 * numbers in little-endian order. docs/reference/format-servers.md has the table. */
#ifndef WEFTI_SERVER_WORDS_H
#define WEFTI_SERVER_WORDS_H

#include "base/memory.h"
#include "graph/op.h"
#include "program/service.h"
#include "server/reach.h"

enum { WEFTI_ROLE_WORKER = 1, WEFTI_ROLE_SERVER = 2 }; /* of the sides of connections */

/* Kinds of frames. Tag: the number of the request, or of the step. Place: the first byte. */
typedef enum wefti_server_word {
    WEFTI_WORD_BIND = 1, /* request; wefti_bind_word */
    WEFTI_WORD_TERM,     /* step, place; shard, bytes: a term, from its first byte on */
    WEFTI_WORD_ASK,      /* step; shard: the square */
    WEFTI_WORD_PULL,     /* step; shard, 1 if the rank reads the server's memory; scalars */
    WEFTI_WORD_READ,     /* request, place; shard, part, number of bytes */
    WEFTI_WORD_WRITE,    /* request, place; shard, part, bytes */
    WEFTI_WORD_UNBIND,   /* -; shard */
    WEFTI_WORD_BOUND,    /* answers BIND: request; shard, 1 if the server reads the rank's memory;
                            the server's probe */
    WEFTI_WORD_SQUARE,   /* answers ASK: step; shard, bytes */
    WEFTI_WORD_VALUE,    /* answers PULL: step, place; shard, bytes */
    WEFTI_WORD_BYTES,    /* answers READ: request, place; shard, bytes */
    WEFTI_WORD_DONE,     /* answers WRITE: request; shard */
    WEFTI_WORD_FAILED,   /* answers any: request or step; wefti_failed_word */
    WEFTI_WORD_TERM_AT,  /* rank: step; shard, address: the server reads the term there */
    WEFTI_WORD_VALUE_AT, /* server: step; shard, address: the rank reads the value there */
    WEFTI_WORD_TAKEN,    /* answers both: step; shard */
    WEFTI_WORDS
} wefti_server_word;

enum {
    WEFTI_WORD_HEAD = 8,          /* of bodies with bytes: shard u32, part u32 */
    WEFTI_WORD_CHUNK = 128 << 10, /* most bytes behind it */
    WEFTI_WORD_TEXT = 1000,       /* longest text */
    WEFTI_WORD_SCALARS = 12 * WEFTI_STEP_SCALARS,
    WEFTI_WORD_BIND_BYTES = 16 << 10 /* most, of a BIND */
};

typedef struct wefti_bind_word {
    uint64_t session; /* of the ranks that share shards */
    int32_t rank;
    wefti_probe probe; /* of the rank */
    wefti_served served;
} wefti_bind_word;
/* The body; *out is to be freed. */
weft_status wefti_bind_encode(const wefti_bind_word *word, unsigned char **out,
                              size_t *out_bytes) WEFT_CHECKED;
/* WEFT_E_CORRUPT: it is none. Names and attributes lie in the arena. */
weft_status wefti_bind_decode(const wefti_op_registry *ops, const unsigned char *body, size_t bytes,
                              wefti_arena *arena, wefti_bind_word *out) WEFT_CHECKED;

typedef struct wefti_failed_word {
    uint32_t shard; /* UINT32_MAX: of none */
    weft_status status;
    int rank; /* that is to blame, or WEFT_RANK_NONE */
    char text[WEFTI_WORD_TEXT + 1];
} wefti_failed_word;
enum { WEFTI_FAILED_HEAD = 12 };
size_t wefti_failed_encode(const wefti_failed_word *word,
                           unsigned char out[WEFTI_FAILED_HEAD + WEFTI_WORD_TEXT]);
weft_status wefti_failed_decode(const unsigned char *body, size_t bytes,
                                wefti_failed_word *out) WEFT_CHECKED;

void wefti_scalars_encode(const wefti_step_block *scalars, unsigned char out[WEFTI_WORD_SCALARS]);
void wefti_scalars_decode(const unsigned char body[WEFTI_WORD_SCALARS], wefti_step_block *out);

#endif
