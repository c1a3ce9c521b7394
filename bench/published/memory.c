/* Bytes of the device that holds the most: parameters and states, what backward keeps, and what
 * the framework takes beside them. Formulas: Korthikanti et al., "Reducing Activation Recomputation
 * in Large Transformer Models", 2022; Rajbhandari et al., "ZeRO", 2020. */
#include <math.h>

#include "published.h"

static double larger(double a, double b) {
    return a > b ? a : b;
}
static double smaller(double a, double b) {
    return a < b ? a : b;
}

/* ---- parameters of one device ---- */

double pub_expert_parameters(const pub_run *run) {
    const pub_model *m = &run->model;
    return m->experts * (m->gated ? 3 : 2) * m->hidden * m->expert_ffn / run->expert /
           run->expert_tensor;
}

double pub_layer_parameters(const pub_run *run, bool experts) {
    const pub_model *m = &run->model;
    const double h = m->hidden, q = m->heads * m->head_size, kv = m->kv_heads * m->head_size;
    double attention = h * (q + 2 * kv) + q * h;
    if (m->value_rank > 0)
        attention = (m->query_rank > 0 ? h * m->query_rank + m->query_rank * q : h * q) +
                    h * (m->value_rank + 64) + m->value_rank * m->heads * 256 + m->heads * 128 * h;
    const double wide = m->gated ? 3 : 2;
    if (experts)
        return (attention + wide * h * m->shared_ffn) / run->tensor + h * m->experts +
               pub_expert_parameters(run);
    return (attention + wide * h * m->ffn) / run->tensor + 4 * h;
}

double pub_table_parameters(const pub_run *run) {
    const pub_model *m = &run->model;
    double tables = m->tied && run->stages == 1 ? 1 : 2;
    double positions = m->learned_positions ? m->sequence * m->hidden : 0;
    return tables * m->vocab * m->hidden / run->tensor + positions;
}

/* The embedding and the output count as a layer each where layers alone do not divide. */
bool pub_ends_count(const pub_run *run) {
    const double parts = run->stages * run->chunks;
    return fmod(run->model.layers, parts) > 0 && fmod(run->model.layers + 2, parts) == 0;
}

double pub_layers_of_stage(const pub_run *run, int stage) {
    const double p = run->stages, layers = run->model.layers;
    if (pub_ends_count(run)) return (layers + 2) / p - (stage == 0) - (stage == (int)p - 1);
    const double each = floor(layers / p), more = layers - each * p;
    /* The first stages keep the most microbatches, and the last has the output: between them. */
    return each + (stage >= 1 && stage <= (int)more ? 1 : stage == 0 && more > p - 1 ? 1 : 0);
}

/* ---- kept for backward: one layer, one microbatch ---- */

static double kept(const pub_run *run, const pub_profile *p, bool experts) {
    const pub_model *m = &run->model;
    const double rows = m->sequence * run->micro / run->context, t = run->tensor;
    const double part = run->sequence_parallel ? rows / t : rows, e = run->element_bytes;
    const double h = m->hidden, q = m->heads * m->head_size, kv = m->kv_heads * m->head_size;
    const double wide = m->gated ? 2 : 1;
    const bool flash = p->flash > 0.5 && !run->flash_off;
    /* Operands of products are kept with 8 bits if the framework does so. */
    const double o = run->arithmetic == WEFTI_ARITHMETIC_F8 ? smaller(p->kept_f8_bytes, e) : e;
    double linear = (e + o) * 2 * part * h;     /* norms: inputs and results */
    linear += e * rows * (q + 2 * kv) / t;      /* queries, keys, values */
    linear += (flash ? e : o) * rows * q / t;   /* result of attention */
    if (p->dropout > 0) linear += 2 * part * h; /* masks */
    if (experts) {
        const double tokens = rows * m->chosen / t;
        linear += tokens * (o * h + (e * wide + o) * m->expert_ffn + e * h);
        linear += rows * (e * wide + o) * m->shared_ffn / t;
    } else {
        linear += rows * (e * wide + o) * m->ffn / t;
    }
    if (run->frozen) linear *= 0.5; /* operands of products of frozen weights are not kept */
    const double scores = m->sequence * m->sequence * run->micro / run->context * m->heads / t;
    double core = flash ? 4 * rows * m->heads / t : (2 * e + (p->dropout > 0 ? 1 : 0)) * scores;
    if (!flash && p->dropout <= 0) core = 1 * e * scores;
    const double input = e * (run->sequence_parallel ? part : rows) * h;
    switch (run->recompute) {
    case PUB_RECOMPUTE_FULL:
        return run->recompute_part * input + (1 - run->recompute_part) * (linear + core);
    case PUB_RECOMPUTE_PRODUCTS:
        return 0.5 * linear;
    case PUB_RECOMPUTE_CHAINS:
        linear -= o * 2 * part * h;
        linear -= experts ? o * rows * m->chosen / t * m->expert_ffn : o * rows * m->ffn / t;
        return linear + (flash ? core : 0);
    case PUB_RECOMPUTE_CORE:
        return linear + (flash ? core : 0);
    default:
        return linear + core;
    }
}

/* Bytes that are whole on a device although replicas share parameters. Three layers are: one
 * computes, one is gathered, one is being freed. One layer also has its whole gradient, and a copy
 * of it in the type in which it is summed. Source: Zhao et al., "PyTorch FSDP", 2023, section 4.
 * The output's table stays whole from the forward pass to the backward pass. Source: torchtitan,
 * parallelize_llama.py, reshard_after_forward. */
static double gathered(const pub_run *run, const pub_profile *p, double table) {
    const double e = run->element_bytes, gradient = e + p->gradient_bytes;
    const double layer = pub_layer_parameters(run, false);
    return run->frozen ? e * (3 * layer + table)
                       : (3 * e + gradient) * layer + (e + gradient) * table;
}

static double stage_bytes(const pub_run *run, const pub_profile *p, int stage) {
    const pub_model *m = &run->model;
    const int last = (int)run->stages - 1;
    const double layers = pub_layers_of_stage(run, stage), t = run->tensor;
    double mixed = 0;
    if (m->experts > 0)
        mixed = ceil((layers - (stage == 0 ? smaller(m->dense_layers, layers) : 0)) / m->every);
    /* Parameters, gradients and states. */
    double tables = 0;
    const double table = m->vocab * m->hidden / t;
    if (stage == 0) tables += table + (m->learned_positions ? m->sequence * m->hidden : 0);
    if (stage == last && !(last == 0 && m->tied)) tables += table;
    const double expert = mixed * pub_expert_parameters(run);
    const double other = (layers - mixed) * pub_layer_parameters(run, false) +
                         mixed * (pub_layer_parameters(run, true) - pub_expert_parameters(run)) +
                         tables;
    double each = p->parameter_state_bytes, common = p->shared_state_bytes;
    if (run->arithmetic == WEFTI_ARITHMETIC_BF16) each += p->bf16_state_bytes;
    if (run->frozen) each = run->element_bytes, common = 0;
    const double all = each + common;
    const double shards = larger(1, run->shards);
    const double expert_shards =
        larger(1, run->level >= 1 ? shards * t / run->expert / run->expert_tensor : 1);
    double bytes;
    if (run->level >= 3)
        bytes = other * all / shards + expert * all / expert_shards;
    else if (run->level == 2)
        bytes = (other + expert) * run->element_bytes + (other * all / shards);
    else if (run->level == 1)
        bytes = other * (each + common / shards) + expert * (each + common / expert_shards);
    else
        bytes = (other + expert) * all;
    /* Kept for backward: the first stage of 1F1B has as many microbatches as stages. */
    const double microbatches = larger(1, ceil(run->batch / (run->data * run->micro) - 1e-6));
    double flight = smaller(microbatches, run->stages - stage);
    if (run->chunks > 1)
        flight =
            smaller(microbatches, (run->stages * (run->chunks + 1) - 1 - 2 * stage) / run->chunks);
    const double plain = kept(run, p, false), with = m->experts > 0 ? kept(run, p, true) : 0;
    bytes += flight * ((layers - mixed) * plain + mixed * with);
    /* While a layer is computed again, it is there as a whole; and results on the way. */
    pub_run whole = *run;
    const double rows = m->sequence * run->micro / run->context;
    if (run->recompute != PUB_RECOMPUTE_NONE) {
        whole.recompute = PUB_RECOMPUTE_NONE;
        bytes += kept(&whole, p, mixed > 0);
    }
    bytes += 4 * run->element_bytes * rows * m->hidden;
    if (run->level >= 3) bytes += gathered(run, p, stage == last ? table : 0);
    if (stage == last) bytes += p->logit_bytes * rows * m->vocab / t;
    if (stage == 0)
        bytes += flight * run->element_bytes * rows * m->hidden * (p->dropout > 0 ? 1.5 : 1);
    return bytes;
}

void pub_predict_memory(const pub_run *run, const pub_profile *p,
                        const wefti_machine_model *machine, pub_prediction *out) {
    double most = 0, last = 0;
    for (int i = 0; i < (int)run->stages; i++) {
        last = stage_bytes(run, p, i);
        most = larger(most, last);
    }
    const double used = most * (1 + p->allocator_part) + p->context_bytes;
    /* The allocator keeps what it has freed as long as the device has room, and then gives it back.
     */
    const double device = machine->device.memory_bytes.value - p->context_bytes;
    const double held =
        larger(most * (1 + p->allocator_part), smaller(most * (1 + p->reserved_part), device));
    out->largest_bytes = used;
    out->memory_bytes = run->last_stage_memory ? last
                        : run->used_memory     ? held + p->context_bytes
                        : run->reserved_memory ? held
                                               : most;
    /* What is offloaded lies in the host's memory. */
    const double room = machine->device.memory_bytes.value * (1 + p->fit_margin);
    out->fits = run->offloaded || used <= room;
}
