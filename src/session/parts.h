/* A session from inside, for the files of this folder.
 *
 * Every device runs programs of its own, but a session's user sees whole tensors. A view lists the
 * tensors of one graph's programs over all devices, each once, with the positions of their pieces.
 */
#ifndef WEFTI_SESSION_PARTS_H
#define WEFTI_SESSION_PARTS_H

#include "exec/workers.h"
#include "recovery/recovery.h"
#include "session/agree.h"
#include "session/optimizer.h"
#include "session/session.h"

/* Facts about a device's program, known in every process. */
typedef struct wefti_facts {
    wefti_mesh mesh;
    wefti_footprint arenas;
    int64_t program_bytes, parameter_bytes, optimizer_bytes, saved_bytes;
    double forward_flops, backward_flops;
    int32_t rank, tensor_count;
    int32_t holder;         /* the rank that keeps copies of its state; -1: none */
    int32_t fused[3];       /* as in the program */
    bool has_loss, updates; /* updates: in a section of its own */
    bool alone;             /* its update needs no other rank before it gathers parameters */
} wefti_facts;

/* A device of a view. Devices of one stage have equal tensors, in one order. `desc` and `offset` of
 * `tensors` are valid only for devices of this process. */
typedef struct wefti_site {
    wefti_facts facts;
    const wefti_tensor *tensors;
} wefti_site;

typedef struct wefti_view_tensor {
    const char *name; /* borrowed from a program */
    wefti_tensor_role role;
    int64_t param; /* OPTIMIZER: number of its parameter in the view; else -1 */
    int32_t state; /* OPTIMIZER: number of the state in the optimizer's rule; else 0 */
    weft_desc whole;
    int32_t *local;     /* [devices]: its index in a device's program, -1: not there */
    unsigned char *fed; /* [microbatches], of inputs: wefti_feeding */
} wefti_view_tensor;

/* Whether an input has its value for the coming pass. BOUND: the caller has its address and may
 * write there at any time. */
typedef enum wefti_feeding { WEFTI_INPUT_UNFED, WEFTI_INPUT_FED, WEFTI_INPUT_BOUND } wefti_feeding;

/* A graph on all devices. */
typedef struct wefti_view {
    uint64_t model;           /* in a world: digest of the graph as it was given */
    wefti_program **programs; /* [devices]; NULL: of another process */
    wefti_program *own;       /* the first one of this process */
    wefti_site *sites;        /* [devices] */
    bool loss_everywhere;     /* every device knows the loss */
    int32_t devices, microbatches;
    wefti_view_tensor *tensors;
    int64_t count, cap;
    wefti_endpoint **reads; /* [count], in a world: bound at the first read */
    wefti_arena *arena;
} wefti_view;

/* host_copy.c: host copies of tensors on a device with memory that the host cannot reach. */
typedef struct wefti_host_copy wefti_host_copy;

/* weft_session_split; `match` is owned. */
typedef struct wefti_session_split {
    char *match;
    int32_t dimension, count, stride;
} wefti_session_split;

struct weft_session {
    weft_session_options options; /* its `plan` is NULL: see `plan` below */
    weft_plan *plan;              /* NULL: one device without a plan */
    weft_graph *graph;            /* of program 0, borrowed */
    wefti_route_cache *routes;
    weft_world *world;          /* borrowed; NULL: all devices are in this process */
    wefti_agreement *agreement; /* the world's */
    int32_t devices, me;        /* me: rank of this process's first device */
    int threads;                /* of each device */
    wefti_optimizer *optimizer;
    wefti_view **views; /* per graph */
    int64_t view_count, view_cap;
    wefti_workers *workers;       /* NULL until started */
    const wefti_values *values;   /* while it starts; NULL: there are start values only */
    wefti_session_piece *pieces;  /* [devices]: of the tensor being read or written */
    wefti_host_copy *host_copies; /* the host copies that weft_session_local has made */
    wefti_trace *trace;
    wefti_profile **profiles; /* [devices]; NULL: nothing was measured */
    bool profiling;
    wefti_survivor survivor; /* what this process has of the state, after how many updates */
    int64_t row;
    int64_t *rows;    /* first global row of each microbatch since the last update */
    double *of_ranks; /* [devices]: a number of each rank, while they are compared */
    int accumulated;  /* microbatches since the last update */
    int64_t attempts; /* of passes that begin a step, for servers */
    const wefti_world_servers *servers; /* processes that the world names; NULL: none */
    uint64_t shards;                    /* equal on all ranks, and on those of no other session */
    bool copied; /* the copies of masters are those of their present values */
    wefti_bf16_compute bf16;
    wefti_before_update *before_update;
    void *before_update_context;
    struct wefti_saver *saving;  /* steps.c: the step that is being saved; NULL: none */
    wefti_session_split *splits; /* of mode MANUAL, for saving and loading */
    int64_t split_count, split_room;
    wefti_halted *halted; /* NULL: never */
    void *halted_context;
    /* session/mend/program.c: a session whose calls mend the world by themselves */
    bool mends; /* a fact of its world, until that cannot be mended */
    enum {
        WEFTI_SESSION_NEW,
        WEFTI_SESSION_NEWCOMER, /* has no state; create and add have told of the graphs */
        WEFTI_SESSION_SEATED,   /* a newcomer that mends, before it meets all the others */
        WEFTI_SESSION_MENDS,    /* mends the world, or a function of the program runs */
        WEFTI_SESSION_BEGAN
    } state;
    weft_session_keeper keeper;   /* of the program */
    struct wefti_repair *joining; /* a newcomer that has not taken its state; else NULL */
    double rate, scale, norm;     /* of the update that is being made; norm NaN: not known */
    double made_scale, made_norm; /* of the last update that was made */
};

/* steps.c, when the session ends: gives up the step that is being saved, and frees what the
 * session has for saving. captured: waits until the session's tensors may change. */
void wefti_session_saving_end(weft_session *s);
void wefti_session_saving_captured(const weft_session *s);

/* recovery.c: whether all ranks are at one graph; NO_GRAPH: all graphs are there. Collective. */
enum { WEFTI_NO_GRAPH = -1 };
weft_status wefti_session_same_graph(const weft_session *s, int32_t graph) WEFT_CHECKED;
/* All ranks tell of the graphs that they have, of which newcomers may be the first ones' first
 * part. Collective. */
weft_status wefti_session_tell_graphs(weft_session *s) WEFT_CHECKED;
/* The session is as before wefti_session_start. */
void wefti_session_stop(weft_session *s);

/* give/give.c: a tensor has changed in another way than by a step. Call it on all ranks. */
void wefti_session_changed(weft_session *s, wefti_tensor_role role);

/* masters.c: makes the copies of masters again, unless only updates have changed these. Before
 * passes. */
weft_status wefti_session_copy_masters(weft_session *s) WEFT_CHECKED;

/* Updates with the complete gradients, by s->rate and s->scale. It may be scattered then. */
weft_status wefti_session_apply(weft_session *s) WEFT_CHECKED;
/* If the session is scattered, gathers parameters, which communicates. */
weft_status wefti_session_gather(weft_session *s) WEFT_CHECKED;
/* Whether steps [0, end) of a section communicate. */
bool wefti_section_communicates(const wefti_program *p, wefti_section section, int32_t end);
/* The inputs of views from number `first` on are consumed. */
void wefti_session_take_inputs(const weft_session *s, int64_t first);

/* build.c: how products in bf16 are computed. AUTO: what a backend measures on this processor. */
wefti_bf16_compute wefti_choose_bf16(int32_t rank, weft_bf16_compute wanted);

/* build.c: what the first `programs` of a device need. */
wefti_footprint wefti_session_footprint(const weft_session *s, int32_t rank, int64_t programs);
/* build.c: this process's devices, without start values. */
weft_status wefti_session_create_workers(const weft_session *s, wefti_workers **out) WEFT_CHECKED;
/* servers.c. name_shards: before the workers, if servers keep parameters; collective. serve: the
 * workers reach servers: those of the world, or of this process. */
weft_status wefti_session_name_shards(weft_session *s) WEFT_CHECKED;
weft_status wefti_session_serve(const weft_session *s, wefti_workers *workers) WEFT_CHECKED;
/* Traces and profiles of all devices of this process. */
void wefti_session_observe_devices(const weft_session *s);

/* profile.c: the devices measure, once they have started. */
void wefti_session_set_profiles(const weft_session *s);
void wefti_session_profiles_destroy(weft_session *s);

/* Maps the arenas and sets start values, once. */
weft_status wefti_session_start(weft_session *s) WEFT_CHECKED;
/* Sets the start values of a device. */
weft_status wefti_session_init_device(const weft_session *s, wefti_rank_device *device,
                                      int32_t rank) WEFT_CHECKED;
weft_status wefti_session_view(const weft_session *s, int program, wefti_view **out) WEFT_CHECKED;

static inline bool wefti_session_has(const weft_session *s, int32_t rank) {
    return !s->world || rank == s->me;
}

/* view.c. Takes over programs[devices], also on failure. */
weft_status wefti_view_create(const weft_session *s, const weft_graph *graph,
                              wefti_program **programs, wefti_view **out) WEFT_CHECKED;
void wefti_view_destroy(wefti_view *view);
weft_status wefti_session_look_up(const weft_session *s, int program, const char *name,
                                  wefti_view **out_view, int *out) WEFT_CHECKED;
/* Marks an input of the coming microbatch as fed; checks that every input is fed; after a pass,
 * marks the inputs that it consumed. */
void wefti_view_mark_fed(const weft_session *s, wefti_view *view, int index, wefti_feeding how);
weft_status wefti_view_check_fed(const weft_session *s, int program) WEFT_CHECKED;
void wefti_view_consume(wefti_view *view);
static inline wefti_region wefti_site_region(const wefti_site *site, const wefti_tensor *tensor) {
    wefti_region box = {{0}, {0}};
    if (site->facts.mesh.axes)
        wefti_layout_region(&tensor->layout, &site->facts.mesh, &tensor->whole, site->facts.rank,
                            &box);
    else
        for (int d = 0; d < tensor->whole.rank; d++) box.size[d] = tensor->whole.shape[d];
    return box;
}

/* host_copy.c. Only devices that are not direct have host copies. The caller reads and writes a
 * buffer in host memory. A pass copies it to the device at its begin, and back at its end. */
/* The caller's address of a piece of tensor `index`, in *out. */
weft_status wefti_host_copy_of(weft_session *s, const wefti_view *view, int index,
                               const wefti_session_piece *piece, void **out) WEFT_CHECKED;
/* Copies to the device before a section of the view's programs, and back after the section. */
weft_status wefti_host_copies_push(const weft_session *s, const wefti_view *view,
                                   wefti_section section) WEFT_CHECKED;
weft_status wefti_host_copies_pull(const weft_session *s, const wefti_view *view) WEFT_CHECKED;
/* Copies parameters, states and optimizer tensors to the device before the session reads their
 * pieces. */
weft_status wefti_host_copies_push_piece(const weft_session *s, const wefti_view *view, int index,
                                         const wefti_session_piece *pieces,
                                         int32_t count) WEFT_CHECKED;
/* After the session has written a piece: updates the caller's buffer. */
weft_status wefti_host_copy_refresh(const weft_session *s, const wefti_view *view, int index,
                                    const wefti_session_piece *piece) WEFT_CHECKED;
/* The devices of this process have moved to other workers. */
void wefti_host_copies_move(weft_session *s, const wefti_workers *to);
void wefti_host_copies_destroy(weft_session *s);

/* world.c: sessions over a world of processes. All calls are collective and fail like the calls of
 * session/agree.h. */
/* Before a graph is compiled: agrees on `status`, and compares the ranks' jobs. `model`: the
 * graph's digest, before the graph is wrapped. `bf16`: the graph has values in bf16. How products
 * in bf16 are computed is decided once; ranks that come later take that decision over. */
weft_status wefti_session_digest_graph(const weft_graph *graph, uint64_t *out) WEFT_CHECKED;
weft_status wefti_session_same_job(weft_session *s, uint64_t model, bool bf16,
                                   weft_status status) WEFT_CHECKED;
/* Gathers the facts and tensors of all ranks into the view, which already has this rank's program.
 * Refuses programs if their transfers do not match. */
weft_status wefti_view_gather_sites(const weft_session *s, wefti_view *view) WEFT_CHECKED;
/* Whether each rank has a loss of its own: models that communicate by hand. */
bool wefti_session_loss_is_own(const weft_session *s);
/* Agrees on the result of a pass. If the loss is not finite on one rank, it counts as not finite on
 * all ranks. If ranks have losses of their own, that rank counts as failed on the other ranks. */
weft_status wefti_session_agree_on_loss(weft_session *s, const wefti_view *view, weft_status status,
                                        double *loss) WEFT_CHECKED;

/* match.c: the transfers of a program by channel, as digests of everything that all members of a
 * channel must have in common. One block; wefti_free. */
typedef struct wefti_channel_record {
    uint64_t channel; /* a digest of its ranks and tag */
    uint64_t digest;  /* of the transfers in order, with their calls */
    int64_t count;
} wefti_channel_record;
weft_status wefti_channels_of(const wefti_program *program, wefti_channel_record **out,
                              int64_t *out_count) WEFT_CHECKED;
/* Compares `program`'s channels with the other members' channels: records[r] of rank r. */
weft_status wefti_channels_match(const wefti_program *program,
                                 const wefti_channel_record *const *records,
                                 const int64_t *counts) WEFT_CHECKED;

#endif
