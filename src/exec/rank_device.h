/* Internals of a rank's device, for the files of this folder. */
#ifndef WEFTI_RANK_DEVICE_H
#define WEFTI_RANK_DEVICE_H

#include "exec/exec.h"
#include "exec/profile.h"

/* Memory that the posts of one endpoint may touch, from the oldest post on: source and
 * destination. */
typedef struct wefti_exposure {
    wefti_byte_range ranges[WEFTI_COMM_DEPTH][2];
    int posts;
} wefti_exposure;

/* A program's transfers, ready to be posted. */
typedef struct wefti_binding {
    const wefti_program *program;
    wefti_endpoint **endpoints; /* indexed by transfer number in the partition */
    uint8_t *posted;            /* of each transfer: number of posts not yet waited for */
    int64_t (*posted_ns)[WEFTI_COMM_DEPTH]; /* of each transfer: when it was posted, the oldest
                                               post first; for traces */
    wefti_exposure *exposures; /* of each transfer; NULL: the device does not use them */
    int32_t count;
} wefti_binding;

/* A read or write of a file that is under way. */
typedef struct wefti_file_move {
    int32_t move; /* of the program */
    wefti_disk_stream *file;
    wefti_disk_ticket *ticket;
    wefti_byte_range memory; /* device memory, exposed until the wait */
    int64_t posted_ns;
} wefti_file_move;

/* A copy of rows of a file. */
typedef struct wefti_row_move wefti_row_move;
struct wefti_row_move {
    wefti_row_move *next; /* in the queue */
    bool over;            /* of the queue's lock */
    bool reads;
    wefti_disk_table table;
    wefti_row_place *places; /* [cap] */
    int64_t count, cap;
    wefti_byte_range memory; /* device memory, exposed until the wait; NULL: not under way */
    int64_t posted_ns;
    wefti_failure failure;
};
typedef struct wefti_row_queue wefti_row_queue;

/* A cache for rows of files, and its host memory. */
typedef struct wefti_cache_of {
    wefti_location at;
    wefti_byte_range memory;
    wefti_disk_cache *cache;
} wefti_cache_of;

/* A copy to or from servers that is under way. */
typedef struct wefti_served_move {
    wefti_byte_range memory; /* device memory, exposed until the wait; NULL: not under way */
    int64_t posted_ns;
} wefti_served_move;

/* A parameter on servers, bound to its shard. */
typedef struct wefti_served_shard {
    const wefti_program *program;
    const wefti_program_served *of;
    wefti_shard *shard;
    wefti_served_move moves[2]; /* the push, the pull */
} wefti_served_shard;

struct wefti_rank_device {
    wefti_pool *pool;
    wefti_comm *comm;
    int32_t rank;
    const wefti_device_kind *kind;
    wefti_device *device;
    wefti_stream *stream;     /* runs kernels and copies */
    wefti_stream *transfers;  /* a posted transfer begins behind the work of this stream */
    wefti_event *computed;    /* `transfers` waits for `stream`, */
    wefti_event *transferred; /* and the other way round */
    wefti_stream *copies;     /* runs copies between spaces, */
    wefti_event *copies_begin, *copied; /* likewise */
    char *directory;                    /* of files for tensors on the disk; NULL: none */
    bool encrypted;                     /* these files */
    int64_t disk_limit;                 /* of their bytes; 0: none */
    wefti_file_move *files;             /* reads and writes under way, the oldest first */
    int64_t file_count, file_cap;
    int32_t *rows; /* the rows of a copy */
    int64_t row_cap;
    wefti_row_move *row_moves; /* of rows of files, by the program's move */
    int64_t row_move_count, row_move_cap;
    wefti_row_queue *row_queue; /* NULL: no program moves rows of files */
    void *staging;              /* of its thread */
    wefti_cache_of *caches;     /* in the order of their places */
    int64_t cache_count, cache_cap;
    wefti_device_arena arenas[WEFTI_SPACES][WEFTI_TERMS];
    wefti_service *service; /* reaches servers, borrowed; NULL: there are none */
    wefti_remote remote;    /* their bytes */
    wefti_served_shard *shards;
    int64_t shard_count, shard_cap;
    wefti_binding *bindings;
    int64_t binding_count, binding_cap;
    int64_t waited_ns; /* in waits for transfers */
    wefti_trace *trace;
    wefti_profile *profile; /* NULL: nothing is measured */
    double loss;            /* sum over the microbatches so far */
    int losses;
    double bad_loss; /* the first loss of this section that is not finite; else 0 */
    /* message about the first value of this section that is not finite; NULL: none found */
    char *finding;
    int64_t finding_order;
    const wefti_exec_options *options; /* of the section that is running */
    wefti_section section;
    wefti_cursor at; /* the step that is running, in its section */
    int32_t micro;   /* its microbatch */
    bool used;       /* a program ran, so the arenas may hold data */
};

/* ---- exec.c ---- */

/* The address of an argument of the running step. */
static inline wefti_location wefti_argument_location(const wefti_rank_device *d,
                                                     const wefti_step *step, int32_t arg) {
    return wefti_cursor_arg(step, &d->at, arg);
}
/* The address of an operand; absent if the operand is. */
wefti_location wefti_operand_location(const wefti_rank_device *d, const wefti_step *step,
                                      wefti_ref ref);

/* Fails if this rank is to give up the section. */
weft_status wefti_check_halted(const wefti_rank_device *d) WEFT_CHECKED;

/* ---- transfers.c ---- */

/* Runs the joined transfers that begin with code[k]. If they end the step, the last step->leaves
 * of them stay in flight. */
weft_status wefti_run_transfers(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                                int32_t k, int32_t *out_next) WEFT_CHECKED;
/* Waits for the transfers that the previous part left in flight. */
weft_status wefti_finish_part(wefti_rank_device *d, wefti_binding *b,
                              const wefti_step *step) WEFT_CHECKED;
/* Runs a move of the schedule itself: a transfer between stages, or a copy between spaces. The
 * operands keep their places from the post to the wait. */
weft_status wefti_run_post(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                           const wefti_step *step) WEFT_CHECKED;
weft_status wefti_run_wait(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                           const wefti_step *step) WEFT_CHECKED;
/* Waits for all transfers in flight. `b` NULL: the program has no transfers. */
weft_status wefti_drain(wefti_rank_device *d, wefti_binding *b) WEFT_CHECKED;
/* Call it before a section. It drops posts that a failed section left without a wait. */
void wefti_forget_posts(wefti_rank_device *d, wefti_binding *b);
/* Destroys the endpoints of a program; NULL: of all. */
void wefti_unbind(wefti_rank_device *d, const wefti_program *program);

/* ---- copies.c ---- */

/* Begins a copy between spaces, and ends the oldest one of a move. */
weft_status wefti_post_copy(wefti_rank_device *d, const wefti_program_move *move,
                            const wefti_step *step) WEFT_CHECKED;
weft_status wefti_wait_copy(wefti_rank_device *d, const wefti_program_move *move,
                            const wefti_step *step) WEFT_CHECKED;
/* caches.c. Opens the caches that a program has; makes room in all for the device's rows. */
weft_status wefti_bind_caches(wefti_rank_device *d, const wefti_program *program) WEFT_CHECKED;
/* Closes those that lie at byte `keep` of persistent host memory, or behind it. Call it while files
 * and memory are there. */
void wefti_close_caches(wefti_rank_device *d, int64_t keep);
/* The cache that a table has, its part, and the number there of the table's row 0; NULL: none. */
wefti_disk_cache *wefti_cache_with(const wefti_rank_device *d, const wefti_disk_table *table,
                                   int *out_part, int64_t *out_row);
/* Reads or writes rows, by way of the table's cache if it has one. */
weft_status wefti_move_rows(const wefti_rank_device *d, wefti_row_move *move) WEFT_CHECKED;

/* ---- servers.c ---- */

weft_status wefti_bind_served(wefti_rank_device *d, const wefti_program *program) WEFT_CHECKED;
void wefti_unbind_served(wefti_rank_device *d, const wefti_program *program); /* NULL: of all */
/* A copy to or from servers. */
weft_status wefti_post_served(wefti_rank_device *d, const wefti_program_move *move,
                              const wefti_step *step) WEFT_CHECKED;
weft_status wefti_wait_served(wefti_rank_device *d, const wefti_step *step) WEFT_CHECKED;
/* Gives up all that are under way. */
void wefti_end_served(wefti_rank_device *d);

/* ---- row_queue.c ---- */

/* Makes room for the rows that a program's copies name. */
weft_status wefti_bind_rows(wefti_rank_device *d, const wefti_program *program) WEFT_CHECKED;
/* Begins one of d->row_moves, which is not under way. They run one after the other. end: waits. */
void wefti_row_move_begin(wefti_rank_device *d, wefti_row_move *move);
weft_status wefti_row_move_end(wefti_rank_device *d, wefti_row_move *move) WEFT_CHECKED;
/* When it has nothing else to do, the thread reads rows of a table that has a cache, for the next
 * step. They replace those of an earlier call. Copies `ids`. */
weft_status wefti_row_queue_ahead(wefti_rank_device *d, const wefti_disk_table *table,
                                  const int32_t *ids, int64_t count) WEFT_CHECKED;
/* Ends the thread. No copy is under way. */
void wefti_row_queue_stop(wefti_rank_device *d);

/* ---- copies.c ---- */

/* A table in a file, from its row at this place on. */
wefti_disk_table wefti_table_at(const wefti_rank_device *d, wefti_location at, int64_t row_bytes);
/* Ends all copies that a failed section has posted. Returns `failure`. */
weft_status wefti_end_copies(wefti_rank_device *d, weft_status failure) WEFT_CHECKED;

#endif
