/* Options of other training systems: Megatron-LM's command line, read and written, and torchtitan's
 * configuration, written. Sources: megatron/training/arguments.py and
 * core/transformer/pipeline_parallel_layer_layout.py of Megatron-LM 0.16 to 0.20, and
 * torchtitan/config/configs.py of torchtitan 0.3.0. Private to this folder, except the two writers.
 */
#ifndef WEFTI_INTEROP_SYSTEMS_H
#define WEFTI_INTEROP_SYSTEMS_H

#include "base/memory.h"
#include "base/text.h"
#include "search/degrees.h"
#include "weft/job.h"
#include "weft/model.h"

/* Values of Megatron-LM's options. 0, false and NULL: not given. */
typedef struct wefti_megatron {
    /* model */
    int64_t layers, hidden, ffn, heads, head_dim, groups, sequence, positions, vocab, divisible;
    int64_t experts, experts_per_token, expert_ffn, window;
    bool grouped, swiglu, no_bias, qkv_bias, qk_norm, untied, rotary, merges, layernorm_1p;
    const char *position, *normalization, *tokenizer;
    double norm_eps, rope_theta, dropout, hidden_dropout, aux_loss, capacity;
    /* training */
    int64_t micro_batch, batch, steps, warmup, seed;
    double lr, min_lr, weight_decay, clip, beta1, beta2, eps, momentum;
    const char *decay, *optimizer;
    bool bf16, fp16, fp8;
    /* parallelism */
    int64_t tensor, pipeline, context, expert, expert_tensor, chunk_layers, chunks;
    int64_t nodes, per_node, recompute_layers,
        instances; /* instances: of the distributed optimizer */
    bool sequence_parallel, distributed_optimizer, fsdp, selective;
    const char *recompute, *recompute_method, *sharding, *layout;
} wefti_megatron;

/* megatron_words.c: reads a launch script (interop/shell.h) or a list of options. WEFT_E_NO_IMPL
 * for a program that trains another model than pretrain_gpt.py. `notes` gets a line for each option
 * that has no counterpart. `variables` as in weft_job_import. Texts live in `arena`. Messages begin
 * with `name`. */
weft_status wefti_megatron_read(const char *name, const char *text, int64_t bytes,
                                const char *const *variables, wefti_arena *arena,
                                wefti_megatron *out, wefti_text *notes) WEFT_CHECKED;

/* What the writers need to know of a job besides its degrees. */
typedef struct wefti_system_job {
    const weft_model_config *config; /* complete */
    const weft_job *job;
    const weft_plan *plan; /* completed */
    wefti_degrees degrees;
} wefti_system_job;
/* megatron_write.c, torchtitan_write.c: add the options to `out`, and to `notes` a line for each
 * setting of the job that the system cannot express. WEFT_E_NO_IMPL if it has no such model. */
weft_status wefti_megatron_write(const wefti_system_job *what, wefti_text *out,
                                 wefti_text *notes) WEFT_CHECKED;
weft_status wefti_torchtitan_write(const wefti_system_job *what, wefti_text *out,
                                   wefti_text *notes) WEFT_CHECKED;

/* Whether Megatron-LM's options give each virtual stage the layers that the plan gives it. */
bool wefti_megatron_has_stages(const wefti_system_job *what);

#endif
