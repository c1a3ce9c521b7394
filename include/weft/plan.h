/* Plans: how a model is split over devices. A plan is filled in by these functions, one for each
 * decision, read from a JSON file, or taken from a job. weft completes the rest.
 *
 *     weft_plan *p;
 *     weft_plan_create(8, &p);
 *     weft_plan_axis(p, "dp", 2);
 *     weft_plan_axis(p, "tp", 4);
 *     weft_plan_split_op(p, "h.*.mlp.c_fc", "n0=tp");
 *     weft_session_options o = weft_session_defaults();
 *     o.plan = p;
 *
 * All return WEFT_E_ARG with a message that names the valid values, or WEFT_E_NOMEM. Checks that
 * need the model (names, shapes, whether everything fits together) are made by weft_session_create.
 * Texts are copied. Plans are plain data: no call is collective, and all processes of a world must
 * make equal plans. One thread at a time may use a plan. */
#ifndef WEFT_PLAN_H
#define WEFT_PLAN_H

#include <stdbool.h>

#include "weft/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_PARALLEL_MODE_LIST(X) X(DATA, "data") X(SEMI, "semi") X(MANUAL, "manual")
#define WEFT_PIPELINE_SCHEDULE_LIST(X)                                                             \
    X(GPIPE, "gpipe") X(1F1B, "1f1b") X(INTERLEAVED, "interleaved") X(ZERO_BUBBLE, "zero_bubble")
#define WEFT_RECOMPUTE_LIST(X) X(NONE, "none") X(SELECTIVE, "selective") X(FULL, "full")
#define WEFT_FUSION_LIST(X) X(NONE, "none") X(AUTO, "auto") X(SIZE, "size") X(INDEX, "index")
#define WEFT_DATASET_LIST(X) X(DATA_PARALLEL, "data_parallel") X(FULL_BATCH, "full_batch")
/* What may lie in a tier below device memory, and the tiers. */
#define WEFT_OFFLOAD_LIST(X)                                                                       \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(PARAMETERS, "parameters") X(SAVED, "saved") X(GRADIENTS, "gradients") X(COPIES, "copies")
#define WEFT_TIER_LIST(X) X(DEVICE, "device") X(HOST, "host") X(DISK, "disk")

#define WEFT_ROW(name, text) WEFT_PARALLEL_##name,
typedef enum weft_parallel_mode {
    WEFT_PARALLEL_MODE_LIST(WEFT_ROW) WEFT_PARALLEL_MODES
} weft_parallel_mode;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_PIPELINE_##name,
typedef enum weft_schedule {
    WEFT_PIPELINE_SCHEDULE_LIST(WEFT_ROW) WEFT_PIPELINE_SCHEDULES
} weft_schedule;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_RECOMPUTE_##name,
typedef enum weft_recompute { WEFT_RECOMPUTE_LIST(WEFT_ROW) WEFT_RECOMPUTES } weft_recompute;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_FUSION_##name,
typedef enum weft_fusion_mode { WEFT_FUSION_LIST(WEFT_ROW) WEFT_FUSIONS } weft_fusion_mode;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_DATASET_##name,
typedef enum weft_dataset { WEFT_DATASET_LIST(WEFT_ROW) WEFT_DATASETS } weft_dataset;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_OFFLOAD_##name,
typedef enum weft_offload { WEFT_OFFLOAD_LIST(WEFT_ROW) WEFT_OFFLOADS } weft_offload;
#undef WEFT_ROW
#define WEFT_ROW(name, text) WEFT_TIER_##name,
typedef enum weft_tier { WEFT_TIER_LIST(WEFT_ROW) WEFT_TIERS } weft_tier;
#undef WEFT_ROW

typedef struct weft_plan weft_plan;

/** Create an empty plan for `devices` devices, freed with weft_plan_destroy. Without axes its mesh
 * is one axis "dp" of that size. */
WEFT_API weft_status weft_plan_create(int devices, weft_plan **out) WEFT_CHECKED;
/** Free a plan. Sessions have copies, so a plan may be freed as soon as they are created. */
WEFT_API void weft_plan_destroy(weft_plan *plan); /* NULL is legal */
/** Append an axis to the mesh; the first one is outermost. */
WEFT_API weft_status weft_plan_axis(weft_plan *plan, const char *name, int size) WEFT_CHECKED;
/** DATA: batches are split, the rest is inferred. SEMI (the default): the plan's settings hold, the
 * rest is inferred. MANUAL: weft splits nothing; the graph communicates by its own ops
 * (weft_graph_all_reduce...). */
WEFT_API weft_status weft_plan_mode(weft_plan *plan, weft_parallel_mode mode) WEFT_CHECKED;
/** Split ops. `match` is a glob over "label" or "label:op" ("h.*.mlp.c_fc", "h.*.attn:attention").
 * `split` assigns axes to factors or dimensions, "n0=tp", "m0=dp n0=tp+sp", or gives the parts of
 * each input, as in MindSpore, "((2,1),(1,4))". After either, "-> [dp, tp]" is the layout of the
 * first result. */
WEFT_API weft_status weft_plan_split_op(weft_plan *plan, const char *match,
                                        const char *split) WEFT_CHECKED;
/** Split named tensors (parameters, states, fed inputs): "[dp, -]", "[-, tp]", "[dp+tp, -]". Not in
 * mode MANUAL. */
WEFT_API weft_status weft_plan_split_tensor(weft_plan *plan, const char *match,
                                            const char *layout) WEFT_CHECKED;
/** Sharding of optimizer states (ZeRO, Rajbhandari et al. 2020): level 0 none (the only one in mode
 * MANUAL), 1 states, 2 also gradients, 3 also parameters. Parameters below `threshold` bytes stay
 * whole. `shard`: number of replicas that share, 0: all. */
WEFT_API weft_status weft_plan_optimizer(weft_plan *plan, int level, int64_t threshold,
                                         int shard) WEFT_CHECKED;
/** Where the optimizer has its masters. DEVICE (the default): parameters are their own. HOST: the
 * host of a device updates all parameters, with their states in its memory. A parameter that is
 * bf16 in the graph, as those of weft_model_build_master, has an f32 master there. Device memory
 * has its bf16 copy, which calls read. Sessions, checkpoints and digests know the master. Gradients
 * go to the host in f32, and the copies come back. At levels 1 and 2 devices have pieces of
 * parameters, as at level 3. Not beside rules of weft_op_place. */
WEFT_API weft_status weft_plan_master(weft_plan *plan, weft_tier tier) WEFT_CHECKED;
/** Pipeline of `stages` blocks of devices, with `microbatches` per step. `chunks`: virtual stages
 * per device (interleaved, zero_bubble; else 1). */
WEFT_API weft_status weft_plan_pipeline(weft_plan *plan, int stages, int microbatches,
                                        weft_schedule schedule, int chunks) WEFT_CHECKED;
/** Assign cells with a matching call path to a stage (from 0, counted over all chunks). weft
 * assigns the other cells by cost. */
WEFT_API weft_status weft_plan_stage(weft_plan *plan, const char *match, int stage) WEFT_CHECKED;
/** Give one stage another mesh: a size for each axis of the plan's mesh, in order. Stages not named
 * keep the plan's sizes. Over all stages they must add up to the devices. In mode MANUAL all
 * stages have one mesh, since each rank sends to the rank at its place in the next stage. */
WEFT_API weft_status weft_plan_stage_mesh(weft_plan *plan, int stage, int axes,
                                          const int *sizes) WEFT_CHECKED;
/** Microbatches of a step with one stage. */
WEFT_API weft_status weft_plan_accumulate(weft_plan *plan, int microbatches) WEFT_CHECKED;
/** Micro-batch interleaving: divide each microbatch into `copies` that alternate, so that one
 * computes while another communicates. The session's number of microbatches is then the product of
 * both. */
WEFT_API weft_status weft_plan_copies(weft_plan *plan, int copies) WEFT_CHECKED;
/** Recomputation: the values that cells do not save for their backward pass. `match` NULL: all
 * cells. `communication`: also repeat transfers. */
WEFT_API weft_status weft_plan_recompute(weft_plan *plan, weft_recompute mode, const char *match,
                                         bool communication) WEFT_CHECKED;
/** Keep values in a tier below device memory, and copy them to the device when they are used.
 * OPTIMIZER: the optimizer states of the parameters whose names match the glob ("h.*", "*").
 * PARAMETERS: these parameters. SAVED: what the calls of cells whose paths match ("h.*") save in
 * forward passes for their backward passes, from one pass to the other. GRADIENTS: the gradients of
 * these parameters, from a backward pass that adds to one to the next, and to the update. COPIES:
 * what a rank keeps of them and of their states for its buddy. HOST: memory of the host. DISK: a
 * file. DEVICE: undo an earlier rule. Of several rules with the same `what` the last that matches
 * counts. A rule replaces an earlier one of the same `match` and `what`. */
WEFT_API weft_status weft_plan_offload(weft_plan *plan, const char *match, weft_offload what,
                                       weft_tier to) WEFT_CHECKED;
/** Keep the rows of tables on a disk that are used most in `bytes` of host memory, on each device
 * and for each table that the rule matches. The rule is the one of weft_plan_offload with this
 * `match` and `what`, PARAMETERS or OPTIMIZER, to DISK. The table must be updated by rows (the
 * session's option `rows`). A row's states on the disk are kept with its value, so the bytes of
 * both rules count for both. 0: no cache. */
WEFT_API weft_status weft_plan_cache(weft_plan *plan, const char *match, weft_offload what,
                                     int64_t bytes) WEFT_CHECKED;
/** The same with room for a part of the table's rows on each device: above 0, at most 100 per cent.
 * On top come 30 bytes for each row that is kept, and blocks of an eighth of the rows' bytes. The
 * last of the two calls for a rule counts. */
WEFT_API weft_status weft_plan_cache_percent(weft_plan *plan, const char *match, weft_offload what,
                                             double percent) WEFT_CHECKED;
/** Place work: `where` is "host" or "device" (undo an earlier rule). `match` is a glob over two
 * kinds of names:
 * - Ops, as in weft_plan_split_op. The host of a device runs them and their backward passes. A
 *   look-up matches by the name of its table too: "wte.weight" or "wte". Parameters of such ops
 *   and their gradients lie in host memory. Other operands go there, and results come back. A
 *   session refuses such ops with WEFT_E_NO_IMPL if they work on a state, or if the plan has stages
 *   or copies.
 * - Parameters, followed by ":update" ("h.*:update"). The host updates them, and their optimizer
 *   states lie in host memory. Gradients and values go there, and new values come back.
 * The last rule that matches counts. A rule replaces an earlier one of the same `match`. */
WEFT_API weft_status weft_op_place(weft_plan *plan, const char *match,
                                   const char *where) WEFT_CHECKED;
/** Let servers keep the parameters whose names match the glob ("wte.*", "*"), with their optimizer
 * states. The servers update them, by the sum of the gradients that the devices push. Each device
 * has a copy of what its ops read, which it pulls after each update. The steps are those without
 * servers. Parameters that no rule matches, and frozen ones, stay on the devices. Of one process
 * they are part; the processes of a world need servers of their own (weft/server.h). Refused are
 * recovery, readable gradients, mode MANUAL, masters on the host, and other tiers for the same
 * parameters. An optimizer that needs whole parameters cannot update pieces of them. */
WEFT_API weft_status weft_plan_server(weft_plan *plan, const char *match) WEFT_CHECKED;
/** Sum the losses of devices and microbatches instead of averaging them. Devices that all have the
 * whole batch (WEFT_DATASET_FULL_BATCH) have one loss, which counts once. */
WEFT_API weft_status weft_plan_gradients_sum(weft_plan *plan, bool sum) WEFT_CHECKED;
/** Fuse transfers of a collective into buckets. `collective` is one of
 * - "allreduce": gradients in stages without sharding; at level 3, those of parameters that stay
 *   whole.
 * - "reducescatter": at level 1 gradients; at level 2 the parameters that are updated together.
 * - "allgather": at levels 1 and 2 those parameters.
 *
 * `bytes` is for SIZE. `index` [index_count], ascending, is for INDEX, allreduce only. */
WEFT_API weft_status weft_plan_fusion(weft_plan *plan, const char *collective,
                                      weft_fusion_mode mode, int64_t bytes, int index_count,
                                      const int *index) WEFT_CHECKED;
/** Layout of inputs: split along the batch, or whole on each device. Replaces
 * weft_plan_dataset_cuts. */
WEFT_API weft_status weft_plan_dataset(weft_plan *plan, weft_dataset dataset) WEFT_CHECKED;
/** Layout of inputs by parts, as MindSpore's dataset_strategy: for each input of the graph in turn,
 * the parts of each dimension, "((1,1,1,4),(1,))". Its rules hold: an input is cut in at most one
 * dimension, and the input of the highest rank into at least as many parts as any other. Numbers
 * stay without rank "()", and may be left out at the end. Batches take the axis "dp" first, other
 * dimensions the other axes. weft_plan_split_tensor has no such limits. Not in mode MANUAL. */
WEFT_API weft_status weft_plan_dataset_cuts(weft_plan *plan, const char *cuts) WEFT_CHECKED;
/** Whether devices compute while they communicate; on by default. */
WEFT_API weft_status weft_plan_overlap(weft_plan *plan, bool overlap) WEFT_CHECKED;
/** Cost of transfers, as measured by weft_bench_comm and written by weft_bench_write_links
 * (docs/reference/format-links.md). Redistributions and strategies are chosen by it. The values
 * become part of the plan. WEFT_E_NOT_FOUND, WEFT_E_IO. */
WEFT_API weft_status weft_plan_links(weft_plan *plan, const char *path) WEFT_CHECKED;
/** Number of devices of a plan; 0 for NULL. */
WEFT_API int weft_plan_devices(const weft_plan *plan);

/** JSON text of a plan (docs/reference/format-plan.md; freed with weft_text_free), and a plan from
 * `bytes` of text or from a file (freed with weft_plan_destroy). `name` stands for the text in
 * messages, which give the path to the error. WEFT_E_NOT_FOUND, WEFT_E_IO for a file. */
WEFT_API weft_status weft_plan_print(const weft_plan *plan, char **out) WEFT_CHECKED;
WEFT_API weft_status weft_plan_parse(const char *name, const char *text, int64_t bytes,
                                     weft_plan **out) WEFT_CHECKED;
WEFT_API weft_status weft_plan_load(const char *path, weft_plan **out) WEFT_CHECKED;
/** Write the text to a file, completely or not at all. WEFT_E_IO. */
WEFT_API weft_status weft_plan_save(const weft_plan *plan, const char *path) WEFT_CHECKED;
/** Differences, one per line, "" if the plans are equal; freed with weft_text_free. */
WEFT_API weft_status weft_plan_diff(const weft_plan *a, const weft_plan *b,
                                    char **out) WEFT_CHECKED;
/** Check everything about a plan that does not need a model. */
WEFT_API weft_status weft_plan_check(const weft_plan *plan) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
