/* Published training runs: what a row says, and what weft predicts for it. See bench/published.c.
 */
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json/json.h"
#include "cost/cost.h"
#include "topo/model.h"

/* ---- profiles of frameworks (profiles.json) ---- */

/* name, least, most. The file gives each constant's unit, its meaning and its source. */
#define PUB_CONSTANTS(X)                                                                           \
    X(product_use, 0.05, 1.5)                                                                      \
    X(f8_use, 0.05, 1.5)                                                                           \
    X(f4_speedup, 1, 4)                                                                            \
    X(attention_use, 0.01, 1.5)                                                                    \
    X(flash, 0, 1)                                                                                 \
    X(mask_part, 0.25, 1)                                                                          \
    X(hopper_products, 0.1, 2)                                                                     \
    X(hopper_attention, 0.1, 2)                                                                    \
    X(blocking_seconds, 0, 1e-3)                                                                   \
    X(vocab_multiple, 1, 1024)                                                                     \
    X(kept_f8_bytes, 1, 2)                                                                         \
    X(score_bytes, 0, 100)                                                                         \
    X(norm_bytes, 0, 100)                                                                          \
    X(residual_bytes, 0, 100)                                                                      \
    X(act_bytes, 0, 100)                                                                           \
    X(cast_bytes, 0, 100)                                                                          \
    X(loss_bytes, 0, 200)                                                                          \
    X(gradient_bytes, 2, 4)                                                                        \
    X(optimizer_bytes, 0, 400)                                                                     \
    X(kernels, 0, 1000)                                                                            \
    X(kernel_seconds, 0, 1e-3)                                                                     \
    X(deterministic_slowdown, 1, 100)                                                              \
    X(gather_calls, 1, 100)                                                                        \
    X(hop_seconds, 0, 1e-3)                                                                        \
    X(network_hop_seconds, 0, 1e-3)                                                                \
    X(call_seconds, 0, 0.1)                                                                        \
    X(microbatch_seconds, 0, 1)                                                                    \
    X(step_seconds, 0, 10)                                                                         \
    X(network_use, 0.05, 1)                                                                        \
    X(network_decay, 0, 1)                                                                         \
    X(tensor_exposed, 0, 1)                                                                        \
    X(tensor_backward_exposed, 0, 1)                                                               \
    X(context_exposed, 0, 1)                                                                       \
    X(expert_use, 0.05, 1.5)                                                                       \
    X(route_bytes, 0, 100)                                                                         \
    X(expert_exposed, 0, 1)                                                                        \
    X(stage_exposed, 0, 1)                                                                         \
    X(data_overlap, 0, 1)                                                                          \
    X(overlap_slowdown, 0, 1)                                                                      \
    X(straggling, 0, 1)                                                                            \
    X(sequence_default, 0, 1)                                                                      \
    X(bf16_state_bytes, 0, 8)                                                                      \
    X(recompute_default, 0, 2)                                                                     \
    X(dropout, 0, 1)                                                                               \
    X(level_default, 0, 3)                                                                         \
    X(microbatch_default, 1, 64)                                                                   \
    X(parameter_state_bytes, 2, 20)                                                                \
    X(shared_state_bytes, 0, 20)                                                                   \
    X(logit_bytes, 0, 40)                                                                          \
    X(allocator_part, 0, 1)                                                                        \
    X(reserved_part, 0, 1)                                                                         \
    X(context_bytes, 0, 1e10)                                                                      \
    X(fit_margin, 0, 0.5)

typedef struct pub_profile {
    const char *name;
#define PUB_FIELD(name, least, most) double name;
    PUB_CONSTANTS(PUB_FIELD)
#undef PUB_FIELD
} pub_profile;

typedef struct pub_profiles {
    const wefti_json *rules;  /* patterns over names of frameworks */
    const wefti_json *fitted; /* patterns over sources and ids of rows */
    pub_profile *profile;
    int count;
} pub_profiles;
weft_status pub_profiles_read(wefti_arena *arena, const char *path, const char *const *set,
                              int set_count, pub_profiles *out) WEFT_CHECKED;
/* Replaces figures of a machine, for experiments. */
weft_status pub_set_figures(const char *const *set, int set_count,
                            wefti_machine_model *machine) WEFT_CHECKED;
/* NULL: no pattern matches. */
const pub_profile *pub_profile_for(const pub_profiles *profiles, const char *framework);

/* ---- rows ---- */

typedef struct pub_model {
    double layers, hidden, heads, kv_heads, head_size, ffn, vocab, sequence, parameters;
    bool gated, tied, learned_positions;
    /* Mixtures: the first dense_layers layers have no experts; of the others, every `every`-th. */
    double experts, chosen, expert_ffn, shared_ffn, dense_layers, every;
    /* Latent attention: ranks of the compressed queries, keys and values; 0: none. */
    double query_rank, value_rank;
} pub_model;

typedef enum pub_recompute {
    PUB_RECOMPUTE_NONE,
    PUB_RECOMPUTE_CORE,     /* scores of attention */
    PUB_RECOMPUTE_CHAINS,   /* norms and activations */
    PUB_RECOMPUTE_PRODUCTS, /* half of the products are kept, the rest is computed again */
    PUB_RECOMPUTE_FULL
} pub_recompute;

typedef struct pub_run {
    const char *id, *framework;
    char machine[32];
    pub_model model;
    wefti_arithmetic arithmetic; /* of linear layers */
    bool four_bits;              /* ... with half of the bits of f8 */
    double element_bytes;        /* of activations */
    double devices, per_node, batch, micro, tensor, stages, chunks, data, context, expert;
    double shards; /* devices that share parameters and states */
    int level;
    bool sequence_parallel, flash_off, compiled, async_tensor, layer_only;
    bool deterministic; /* slower kernels that always add up in one order */
    bool frozen;        /* weights have no gradients: adapters are trained */
    bool blocking;      /* the host waits for each kernel */
    pub_recompute recompute;
    double recompute_part; /* of the layers */
    /* What the row does not say; then the plan that computes the least again among those that fit,
     * and the least tensor parallelism and the fewest stages. */
    bool recompute_open, degrees_open, sequence_open, offloaded;
    double expert_tensor;                                  /* devices that share one expert */
    double node_bytes_per_second, device_bytes_per_second; /* into the network; 0: the machine's */
    bool last_stage_memory, used_memory, reserved_memory;
} pub_run;

/* Fills the run from the inputs of a row; never reads what was measured. */
weft_status pub_run_read(const wefti_json *row, pub_run *out) WEFT_CHECKED;
/* Public shapes of models by name; false: unknown. */
bool pub_shape_find(const char *name, pub_model *out);
/* Finds the row's machine and fills what the profile decides. */
weft_status pub_run_finish(pub_run *run, const pub_profile *profile,
                           wefti_machine_model *machine) WEFT_CHECKED;

/* ---- predictions ---- */

typedef struct pub_times { /* seconds of a step */
    double forward, backward, again, tensor, context, expert, stage, bubble, data, update, fixed;
} pub_times;

typedef struct pub_prediction {
    double seconds, memory_bytes, largest_bytes;
    bool fits;
    pub_times part;
} pub_prediction;

weft_status pub_predict(const pub_run *run, const pub_profile *profile,
                        const wefti_machine_model *machine, pub_prediction *out) WEFT_CHECKED;
void pub_predict_memory(const pub_run *run, const pub_profile *profile,
                        const wefti_machine_model *machine, pub_prediction *out);

/* Parameters of one layer on one device of the stage, and of the embedding and the output. */
double pub_layer_parameters(const pub_run *run, bool experts);
double pub_expert_parameters(const pub_run *run);
double pub_table_parameters(const pub_run *run);
double pub_layers_of_stage(const pub_run *run, int stage);
bool pub_ends_count(const pub_run *run);

/* ---- scores ---- */

/* fitted: patterns over sources and ids of the rows that constants were fitted on. */
weft_status pub_score(const wefti_json *rows, const wefti_json *fitted,
                      const pub_prediction *predictions) WEFT_CHECKED;

#endif
