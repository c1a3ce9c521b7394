/* Connections of the control plane, and the messages on them. docs/reference/format-wire.md
 * describes both.
 *
 * A link is one connection on a non-blocking socket. It runs TLS if the job wants TLS, then the
 * handshake, then frames (wire/frame.h). Without TLS a link reads exactly the bytes of the other
 * side's proof, and allocates nothing, until the other side has proved that it knows the secret.
 *
 * A message is the body of a frame as a structure. Decoding accepts exactly the bytes that encoding
 * produces: it checks that each byte belongs to a field and that each number is in its range. */
#ifndef WEFTI_WIRE_H
#define WEFTI_WIRE_H

#include <signal.h>

#include "base/text.h"
#include "comm/position.h"
#include "comm/world.h"
#include "recovery/recovery.h"
#include "launch/wire/frame.h"
#include "launch/wire/tls.h"
#include "weft/launch.h"

/* --- links --- */

enum {
    WEFTI_WIRE_MAGIC = 8,
    WEFTI_WIRE_GREETING = WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES,
    WEFTI_WIRE_ANSWER = WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES + WEFTI_DIGEST_BYTES,
    WEFTI_WIRE_WELCOME = WEFTI_WIRE_MAGIC + WEFTI_DIGEST_BYTES,
};

/* A body that several connections send, each in a frame of its own: those that have not done so
 * yet hold it together. All from one thread. */
typedef struct wefti_shared_body {
    int64_t holders;
    size_t bytes;
    unsigned char frame[]; /* the body, with room for a header before and a signature behind */
} wefti_shared_body;
/* Held by the caller. */
weft_status wefti_shared_body_create(size_t bytes, wefti_shared_body **out) WEFT_CHECKED;
static inline unsigned char *wefti_shared_body_data(wefti_shared_body *block) {
    return block->frame + WEFTI_FRAME_HEADER;
}
void wefti_shared_body_release(wefti_shared_body *block); /* NULL is legal */

/* Goes out between the bytes of a connection's own output. */
typedef struct wefti_insert {
    wefti_shared_body *block;
    size_t before, sent; /* so much of the own output goes first; bytes of the block that have */
} wefti_insert;

typedef struct wefti_wire {
    int fd; /* -1: closed */
    bool scheduler;
    enum {
        WEFTI_WIRE_CLOSED,
        WEFTI_WIRE_TLS,
        WEFTI_WIRE_GREET,
        WEFTI_WIRE_PROVE,
        WEFTI_WIRE_OPEN
    } phase;
    const wefti_secret *secret;       /* borrowed */
    wefti_tls *tls;                   /* borrowed; NULL: none is wanted */
    wefti_tls_connection *connection; /* NULL: TLS has not begun */
    wefti_nonces nonces;
    unsigned char hand[WEFTI_WIRE_ANSWER]; /* received bytes of the handshake */
    size_t hand_used;
    wefti_wire_stream sends, receives;
    unsigned char *in, *out;
    size_t in_used, in_at, in_room, out_used, out_at, out_room;
    wefti_insert *insert; /* in their order */
    int64_t inserts, insert_at, insert_room;
} wefti_wire;

/* Takes the socket over, also on failure. tls: this side's, or NULL. */
weft_status wefti_wire_open(wefti_wire *link, int fd, bool scheduler, const wefti_secret *secret,
                            wefti_tls *tls) WEFT_CHECKED;
void wefti_wire_close(wefti_wire *link);
bool wefti_wire_wants_to_write(const wefti_wire *link);

/* Reads received data. WEFT_OK: there was some. WEFT_PENDING: there was none. WEFT_E_PEER: the
 * other side has closed the connection, or it broke. WEFT_E_ARG: the other side knows another
 * secret, or speaks another version, or only one side wants TLS. */
weft_status wefti_wire_fill(wefti_wire *link) WEFT_CHECKED;
/* The next whole frame, borrowed until the next call; WEFT_PENDING: none. */
weft_status wefti_wire_next(wefti_wire *link, wefti_frame *out) WEFT_CHECKED;
/* Queue a frame with a body of two parts, and write what can be written. */
weft_status wefti_wire_send(wefti_wire *link, wefti_frame_kind kind, const void *head,
                            size_t head_bytes, const void *rest, size_t rest_bytes) WEFT_CHECKED;
/* The same with a body that is not copied. */
weft_status wefti_wire_send_shared(wefti_wire *link, wefti_frame_kind kind,
                                   wefti_shared_body *block) WEFT_CHECKED;
/* WEFT_PENDING: not all is written. */
weft_status wefti_wire_flush(wefti_wire *link) WEFT_CHECKED;

/* --- messages --- */

typedef struct wefti_join { /* JOIN: a process asks for its place */
    uint64_t generation;    /* 0: it has none yet */
    int32_t number;         /* the rank that is wanted, -1: any; else the number of this process */
    int32_t size;           /* of the job's first world, as it was told; -1: nothing */
    int64_t pid;
    uint64_t launcher;              /* the number of the one that started it; 0: not known */
    char job[WEFTI_NAME_MAX + 1];   /* "" or the launcher's name for this run */
    char node[WEFTI_NAME_MAX + 1];  /* node id */
    char host[WEFTI_NAME_MAX + 1];  /* equal for processes that reach each other's memory */
    char facts[WEFTI_NAME_MAX + 1]; /* what all processes of a job have in common, in words */
    /* Of one that has a generation, for a scheduler that knows nothing of its world. */
    wefti_vote_place whole; /* the last world that was whole, as far as it knows, with it */
    wefti_vote_place said;  /* a later one of which it has said WHOLE, and which may have been */
    int32_t numbers;        /* processes have had numbers below */
    int32_t used;           /* restarts that the job has had */
    int32_t deaths;         /* processes that its seat has lost */
    bool armed;             /* its world may be mended */
    bool mends;             /* it is not in the middle of steps: its world is being mended */
    bool leaves;
    bool arms;   /* ARM follows WORLD */
    bool waited; /* it has asked the other scheduler before */
} wefti_join;

/* IDENTITY: what a process is about to run, as names with values; before JOIN. */
enum { WEFTI_IDENTITY_NAME = 95, WEFTI_IDENTITY_VALUE = 159 };
typedef struct wefti_identity {
    unsigned char *body; /* owned; NULL: nothing is said of it */
    size_t bytes;
} wefti_identity;

/* HOSTS: who the ranks of a world are; before JOIN. */
typedef struct wefti_hosts {
    uint64_t generation;
    int32_t size;
} wefti_hosts;
typedef struct wefti_seated { /* a rank */
    int32_t host;             /* the number of its host */
    int32_t number;           /* of its process */
} wefti_seated;

typedef struct wefti_entry { /* ENTRY: this member's part of all-gather number `number` */
    uint64_t number;
    const unsigned char *data; /* borrowed */
    size_t bytes;
} wefti_entry;

typedef struct wefti_world_message { /* WORLD */
    uint64_t generation;
    int32_t rank, size;
    int32_t first_size; /* of the job's first world */
    int32_t numbers;    /* processes have had numbers below */
    uint64_t whole;     /* the last world that was whole; 0: none yet, this one will be the first */
    int32_t hosted_by;  /* the rank whose process hosts the scheduler; -1: none */
    int64_t heartbeat_ns;
    bool mends;     /* a rank that dies is started again */
    bool resizes;   /* the world can go on with fewer ranks, and with more */
    bool newcomer;  /* this one was, and the world is being mended */
    int32_t used;   /* restarts that the job has had, besides those of the present mending */
    int32_t deaths; /* processes that the seat has lost */
    int32_t failed; /* of a generation that begins for a rank which comes back: as in HALT */
    char text[WEFTI_TEXT_MAX + 1]; /* "" else */
} wefti_world_message;

typedef struct wefti_arm { /* ARM: this member can be mended */
    int32_t least;         /* ranks with which the world may go on; 0: only as many as there are */
    int32_t patience_s;    /* how long a seat may stay empty before the world goes on without it */
    int32_t most;          /* 0: it may go on with any number; else what bits below stand for */
    unsigned char fits[WEFTI_RANKS_MAX / 8 + 1]; /* bit n, up to `most`: it may with n ranks */
} wefti_arm;

typedef struct wefti_halt { /* HALT: the world is broken, and to be mended */
    uint64_t generation;    /* that begins */
    int32_t failed;         /* the rank that died, and how */
    int32_t used;           /* restarts that the job has had, besides those of this mending */
    char text[WEFTI_TEXT_MAX + 1];
} wefti_halt;

typedef struct wefti_mend_message { /* MEND: what all do then */
    uint64_t generation;
    int64_t target;
    int32_t rank, size; /* of the receiver in the world that begins, and of that world */
    bool resized;       /* as in wefti_mend */
    int32_t numbers;    /* processes have had numbers below */
} wefti_mend_message;
typedef struct wefti_mend_rank { /* each rank of that world */
    int32_t source, was;         /* as in wefti_mend */
} wefti_mend_rank;

/* For so long the scheduler awaits the word of a rank that another rank blames
 * (scheduler/liveness.h). By then a death is seen: docs/design/control-plane.md. */
enum { WEFTI_WORD_SECONDS = 1 };

typedef struct wefti_abort_reason { /* ABORT, REFUSED, FAIL */
    weft_status status;
    int32_t
        failed; /* the rank that the text names; else WEFT_RANK_OWN (FAIL only) or WEFT_RANK_NONE */
    char text[WEFTI_TEXT_MAX + 1];
} wefti_abort_reason;

typedef struct wefti_end { /* ENDED, OVER: how a rank's process ended */
    int32_t rank;
    int32_t code, signal; /* its exit code, or what it died of; both 0: it ended well */
    char text[WEFTI_TEXT_MAX + 1];
} wefti_end;
/* What that is for the job: a process that a signal killed was lost. */
static inline weft_status wefti_end_status(const wefti_end *end) {
    return end->signal ? WEFT_E_LOST : WEFT_E_PEER;
}
/* Whether users and job systems ask processes to end by this signal. An exit code of 128 + the
 * number then says that the process has done so. */
static inline bool wefti_is_request(int number) {
    return number == SIGHUP || number == SIGINT || number == SIGTERM || number == SIGUSR1 ||
           number == SIGUSR2 || number == SIGXCPU;
}
enum { WEFTI_EXIT_AGAIN = 75 }; /* trying again can help */
/* Whether a process with this end was lost: a signal killed it, also below a shell, or it says that
 * trying again can help. Otherwise it ended by its own decision. */
static inline bool wefti_is_loss(int code, int signal) {
    const int below = code - 128;
    if (signal || code == WEFTI_EXIT_AGAIN) return true;
    return below > 0 && below < NSIG && !wefti_is_request(below);
}

typedef struct wefti_span { /* WATCH: the ranks of a host */
    int32_t first, count;
} wefti_span;

typedef struct wefti_registration { /* REGISTER: a launcher, and the ranks that it starts */
    uint64_t launcher;              /* the same as long as it runs, and of no other one */
    int64_t pid;
    wefti_span ranks;
    bool waits;                   /* KEEP follows, and it starts no rank before SEATS */
    char job[WEFTI_NAME_MAX + 1]; /* as of JOIN */
} wefti_registration;

enum {
    WEFTI_SEATS_OF_LOST = -1, /* any of a host that is lost, so many at most */
    WEFTI_SEATS_ADDED = -2,   /* further ones: the world grows, and SEATS says their numbers */
};
typedef struct wefti_keep { /* KEEP: a launcher asks for seats, to fill them when ranks are lost */
    wefti_span seats;       /* first: a rank, or one of these */
    uint64_t launcher;      /* the same as long as it runs, and of no other one */
    bool again;             /* it has had these seats from a scheduler already */
} wefti_keep;

typedef struct wefti_loss { /* LOST: may another process take the seat? */
    wefti_end end;          /* of the last one */
    int32_t starts;         /* processes that have had the seat, or were to have it */
} wefti_loss;

typedef enum wefti_again { /* AGAIN */
                           WEFTI_AGAIN_NO,
                           WEFTI_AGAIN_YES,
                           WEFTI_AGAIN_ELSEWHERE, /* another launcher has the seat now */
                           WEFTI_AGAIN_WITHOUT,   /* no: the world goes on without it */
                           WEFTI_AGAIN_ALL,       /* yes, and all ranks are started again */
                           WEFTI_AGAIN_PENDING    /* never said: there is no answer yet */
} wefti_again;
typedef struct wefti_again_message {
    int32_t rank, starts; /* of LOST */
    wefti_again again;
} wefti_again_message;

enum { WEFTI_MESSAGE_MAX = WEFTI_TEXT_MAX + 24 }; /* of all but ENTRY, ENTRIES and WORLD */

size_t wefti_join_encode(const wefti_join *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_join_decode(const wefti_frame *frame, wefti_join *out) WEFT_CHECKED;

/* Ages are relative to the sender's clock at `now_ns`, so that clocks need not agree. */
size_t wefti_beat_encode(const wefti_standing *m, int64_t now_ns,
                         unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_beat_decode(const wefti_frame *frame, int64_t now_ns,
                              wefti_standing *out) WEFT_CHECKED;

size_t wefti_abort_reason_encode(weft_status status, int32_t failed, const char *text,
                                 unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_abort_reason_decode(const wefti_frame *frame,
                                      wefti_abort_reason *out) WEFT_CHECKED;

size_t wefti_end_encode(const wefti_end *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_end_decode(const wefti_frame *frame, wefti_end *out) WEFT_CHECKED;
void wefti_unpack_process_end(wefti_unpack *u, wefti_end *out); /* as a part of another body */
size_t wefti_span_encode(const wefti_span *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_span_decode(const wefti_frame *frame, wefti_span *out) WEFT_CHECKED;

/* --- wire/identity.c --- */

/* Of a text of lines "name = value"; NULL, "": nothing. A value that is too long is cut, and gets a
 * digest. WEFT_E_ARG for other lines, or too many. */
weft_status wefti_identity_encode(const char *text, wefti_identity *out) WEFT_CHECKED;
weft_status wefti_identity_decode(const wefti_frame *frame, wefti_identity *out) WEFT_CHECKED;
weft_status wefti_identity_copy(const wefti_identity *from, wefti_identity *out) WEFT_CHECKED;
void wefti_identity_free(wefti_identity *identity);
/* How many names that both have stand for different values; `out` gets the first difference and the
 * names of others. */
int wefti_identity_compare(const wefti_identity *mine, const wefti_identity *theirs,
                           wefti_text *out);

/* --- wire/keeping.c --- */

size_t wefti_registration_encode(const wefti_registration *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_registration_decode(const wefti_frame *frame,
                                      wefti_registration *out) WEFT_CHECKED;
size_t wefti_keep_encode(const wefti_keep *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_keep_decode(const wefti_frame *frame, wefti_keep *out) WEFT_CHECKED;
size_t wefti_loss_encode(const wefti_loss *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_loss_decode(const wefti_frame *frame, wefti_loss *out) WEFT_CHECKED;
size_t wefti_again_encode(const wefti_again_message *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_again_decode(const wefti_frame *frame, wefti_again_message *out) WEFT_CHECKED;
/* SEATS: a launcher's, and how many processes each has lost. Fresh memory. deaths: [count]. */
weft_status wefti_seats_encode(const wefti_span *seats, int32_t size, const int32_t *deaths,
                               unsigned char **out, size_t *out_bytes) WEFT_CHECKED;
/* *out_deaths: fresh memory. */
weft_status wefti_seats_decode(const wefti_frame *frame, wefti_span *out, int32_t *out_size,
                               int32_t **out_deaths) WEFT_CHECKED;

/* --- wire/message.c --- */

/* LEAVE: what a member has called. Fresh memory. NULL: nothing is said of that. */
enum { WEFTI_RECORDS_MAX = WEFTI_CALL_RECORDS * (36 + WEFTI_CALL_TEXT) };
_Static_assert((int)WEFTI_RECORDS_MAX <= (int)WEFTI_LEAVE_MAX, "all records go into one frame");
weft_status wefti_records_encode(const wefti_call_records *m, unsigned char **out,
                                 size_t *out_bytes) WEFT_CHECKED;
weft_status wefti_records_decode(const wefti_frame *frame, wefti_call_records *out) WEFT_CHECKED;

/* The numbers in front of a card, or of all cards. */
enum { WEFTI_ENTRY_HEAD = 16 };
void wefti_entry_head(uint64_t number, uint64_t bytes, unsigned char out[WEFTI_ENTRY_HEAD]);
/* Of ENTRY (ranks 1) and ENTRIES: data is ranks x bytes. */
weft_status wefti_entry_decode(const wefti_frame *frame, int32_t ranks,
                               wefti_entry *out) WEFT_CHECKED;

/* The body of WORLD: fresh memory. seats: [size]. */
weft_status wefti_world_message_encode(const wefti_world_message *m, const wefti_seated *seats,
                                       unsigned char **out, size_t *out_bytes) WEFT_CHECKED;
/* *out_seats: fresh memory. */
weft_status wefti_world_message_decode(const wefti_frame *frame, wefti_world_message *out,
                                       wefti_seated **out_seats) WEFT_CHECKED;

/* --- wire/seats.c: ranks as runs of neighbors on one host, with numbers that follow each other */

enum { WEFTI_SEATED_BYTES = 12 }; /* of a run */
void wefti_pack_seats(wefti_pack *p, const wefti_seated *seats, int32_t size);
/* All that is left of a body, called `what` in messages. *in_out_size: ranks; -1: it is to be
 * found. Numbers are below `numbers`, and each is there once. *out: fresh memory. */
weft_status wefti_unpack_seats(wefti_unpack *u, const char *what, int32_t numbers,
                               int32_t *in_out_size, wefti_seated **out) WEFT_CHECKED;
/* Fresh memory. seats: [m->size]. */
weft_status wefti_hosts_encode(const wefti_hosts *m, const wefti_seated *seats, unsigned char **out,
                               size_t *out_bytes) WEFT_CHECKED;
/* *out_seats: fresh memory. */
weft_status wefti_hosts_decode(const wefti_frame *frame, wefti_hosts *out,
                               wefti_seated **out_seats) WEFT_CHECKED;

/* --- wire/mending.c --- */

enum { WEFTI_ARM_BYTES = 12 + WEFTI_RANKS_MAX / 8 + 1 };
size_t wefti_arm_encode(const wefti_arm *m, unsigned char out[WEFTI_ARM_BYTES]);
weft_status wefti_arm_decode(const wefti_frame *frame, wefti_arm *out) WEFT_CHECKED;
size_t wefti_halt_encode(const wefti_halt *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_halt_decode(const wefti_frame *frame, wefti_halt *out) WEFT_CHECKED;
/* STANDING: where a rank stands when its world is halted. Fresh memory. */
weft_status wefti_standing_encode(uint64_t generation, const wefti_stand *at, unsigned char **out,
                                  size_t *out_bytes) WEFT_CHECKED;
/* *out_holds: out->holds, in fresh memory; NULL if there are none. Ranks below `size`. */
weft_status wefti_standing_decode(const wefti_frame *frame, int32_t size, uint64_t *out_generation,
                                  wefti_stand *out, int32_t **out_holds) WEFT_CHECKED;
/* Fresh memory. ranks, seats: [m->size]. */
weft_status wefti_mend_encode(const wefti_mend_message *m, const wefti_mend_rank *ranks,
                              const wefti_seated *seats, unsigned char **out,
                              size_t *out_bytes) WEFT_CHECKED;
/* *out_ranks, *out_seats: fresh memory. */
weft_status wefti_mend_decode(const wefti_frame *frame, wefti_mend_message *out,
                              wefti_mend_rank **out_ranks, wefti_seated **out_seats) WEFT_CHECKED;
/* GO: a generation, and the restarts that the job has had. */
enum { WEFTI_GO_BYTES = 12 };
void wefti_go_encode(uint64_t generation, int32_t used, unsigned char out[WEFTI_GO_BYTES]);
weft_status wefti_go_decode(const wefti_frame *frame, uint64_t *out,
                            int32_t *out_used) WEFT_CHECKED;
/* WHOLE: a generation. */
enum { WEFTI_GENERATION_BYTES = 8 };
void wefti_generation_encode(uint64_t generation, unsigned char out[WEFTI_GENERATION_BYTES]);
weft_status wefti_generation_decode(const wefti_frame *frame, uint64_t *out) WEFT_CHECKED;

/* --- wire/health.c --- */

typedef enum wefti_job_state {
    WEFTI_JOB_FORMING, /* processes are missing */
    WEFTI_JOB_RUNNING,
    WEFTI_JOB_LEFT,   /* all ranks have left in peace */
    WEFTI_JOB_FAILED, /* `text` says why */
    WEFTI_JOB_STATES
} wefti_job_state;

typedef struct wefti_rank_health { /* ages and times in ns */
    weft_health_state state;
    int32_t host;
    int64_t step, heard_ns, step_ns;
    int64_t pace_ns; /* that a step takes; 0: not known */
} wefti_rank_health;

typedef struct wefti_job_health { /* STATE */
    wefti_job_state state;
    uint64_t generation; /* 0: none yet */
    int32_t size, here;
    int32_t restarts; /* that the job has had, as far as its scheduler knows */
    int64_t heartbeat_ns;
    char text[WEFTI_TEXT_MAX + 1];
    int32_t ranks; /* size or 0 */
} wefti_job_health;

/* Fresh memory. rank: [ranks]. */
weft_status wefti_health_encode(const wefti_job_health *m, const wefti_rank_health *rank,
                                unsigned char **out, size_t *out_bytes) WEFT_CHECKED;
/* *out_rank: fresh memory, NULL if there are none. */
weft_status wefti_health_decode(const wefti_frame *frame, wefti_job_health *out,
                                wefti_rank_health **out_rank) WEFT_CHECKED;

#endif
