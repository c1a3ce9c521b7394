/* Rows: the inputs of a published run. What was measured is never read here. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "published.h"

/* ---- fields ---- */

static weft_status number(const wefti_json *row, const char *key, double least, double *out) {
    const wefti_json *v = wefti_json_get(row, key);
    if (!v || v->kind == WEFTI_JSON_NULL) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_INT || v->kind == WEFTI_JSON_REAL, WEFT_E_ARG,
                 "line %d: %s must be a number or null", v->line, key);
    const double value = v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
    WEFT_REQUIRE(isfinite(value) && value >= least && value <= 1e12, WEFT_E_ARG,
                 "line %d: %s is %g; it must be from %g to 1e12", v->line, key, value, least);
    *out = value;
    return WEFT_OK;
}

static weft_status text(const wefti_json *row, const char *key, const char **out) {
    const wefti_json *v = wefti_json_get(row, key);
    *out = "";
    if (!v || v->kind == WEFTI_JSON_NULL) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_TEXT, WEFT_E_ARG, "line %d: %s must be a text or null",
                 v->line, key);
    *out = v->as.text;
    return WEFT_OK;
}

static weft_status truth(const wefti_json *row, const char *key, bool *out) {
    const wefti_json *v = wefti_json_get(row, key);
    if (!v || v->kind == WEFTI_JSON_NULL) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_BOOL, WEFT_E_ARG, "line %d: %s must be true, false or null",
                 v->line, key);
    *out = v->as.boolean;
    return WEFT_OK;
}

/* Whether `word` occurs, in any case. */
static bool has(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (; *text; text++) {
        size_t i = 0;
        while (i < length && tolower((unsigned char)text[i]) == tolower((unsigned char)word[i]))
            i++;
        if (i == length) return true;
    }
    return false;
}

/* The number behind `word`, or `otherwise`. */
static double after(const char *text, const char *word, double otherwise) {
    const char *at = strstr(text, word);
    const double value = at ? strtod(at + strlen(word), NULL) : otherwise;
    return value > 0 && value <= 1e6 ? value : otherwise;
}

/* ---- machines ---- */

static const struct {
    const char *word, *machine; /* the first word that occurs counts */
} devices[] = {
    {"GB300", "gb300"},        {"GB200", "gb200"},      {"B300", "b300"},
    {"B200", "b200"},          {"GH200", "gh200"},      {"H200", "h200"},
    {"HBM2e", "h100-96g"},     {"H100-9", "h100-96g"},  {"H100", "h100-80g"},
    {"H800", "h100-80g"},      {"A100-40", "a100-40g"}, {"A100", "a100-80g"},
    {"A800", "a100-80g"},      {"V100-16", "v100-16g"}, {"V100", "v100"},
    {"MI300X", "mi300x"},      {"910B", "ascend-910b"}, {"910A", "ascend-910a"},
    {"Ascend", "ascend-910a"}, {"TPU v5p", "tpu-v5p"},  {"TPU v5e", "tpu-v5e"},
    {"TPU v4", "tpu-v4"},      {"RTX", "rtx-3090"},     {"L4", "l4"},
};

/* "8x200 Gb/s HDR InfiniBand per node", "400 Gb/s per GPU", "4x Omni-Path 100 Gb/s per node". */
static void read_network(const char *link, pub_run *run) {
    const char *unit = strstr(link, "Gb/s");
    if (!unit) return;
    const char *digit = unit;
    while (digit > link && !isdigit((unsigned char)digit[-1])) digit--;
    while (digit > link && (isdigit((unsigned char)digit[-1]) || digit[-1] == '.')) digit--;
    const double bytes = strtod(digit, NULL) * 1e9 / 8;
    double times = 1;
    const char *part = digit;
    while (part > link && part[-1] != ',' && part[-1] != ':' && part[-1] != ';' && part[-1] != '(')
        part--;
    for (; part < digit; part++)
        if (part[0] == 'x' && part > link && isdigit((unsigned char)part[-1])) {
            const char *count = part;
            while (count > link && isdigit((unsigned char)count[-1])) count--;
            times = strtod(count, NULL);
        }
    if (bytes <= 0) return;
    if (strstr(unit, "per GPU") || strstr(unit, "to a device"))
        run->device_bytes_per_second = bytes;
    else
        run->node_bytes_per_second = bytes * times;
}

static weft_status read_machine(const wefti_json *row, pub_run *run) {
    const char *gpu, *link;
    WEFT_TRY(text(row, "gpu", &gpu));
    WEFT_TRY(text(row, "interconnect", &link));
    for (size_t i = 0; i < sizeof devices / sizeof *devices && !*run->machine; i++)
        if (has(gpu, devices[i].word))
            snprintf(run->machine, sizeof run->machine, "%s", devices[i].machine);
    WEFT_REQUIRE(*run->machine, WEFT_E_NO_IMPL, "no machine file is known for gpu '%.60s'", gpu);
    read_network(link, run);
    /* BigScience trained on this machine with CUDA_LAUNCH_BLOCKING=1. */
    run->blocking = has(link, "Jean-Zay") && has(gpu, "A100");
    if (run->blocking) snprintf(run->machine, sizeof run->machine, "a100-jean-zay");
    WEFT_TRY(number(row, "num_gpus", 1, &run->devices));
    return number(row, "gpus_per_node", 1, &run->per_node);
}

/* ---- models ---- */

/* "MaxText decoder 16B": 16. 0: none. */
static double billions_in(const char *name) {
    for (const char *at = name; *at; at++) {
        if (!isdigit((unsigned char)*at) || (at > name && isalnum((unsigned char)at[-1]))) continue;
        char *end;
        const double value = strtod(at, &end);
        if ((*end == 'B' || *end == 'b') && !isalnum((unsigned char)end[1])) return value;
        if ((*end == 'M' || *end == 'm') && !isalnum((unsigned char)end[1])) return value / 1000;
        at = end > at ? end - 1 : at;
    }
    return 0;
}

static weft_status read_model(const wefti_json *row, const char *notes, pub_run *run) {
    pub_model *m = &run->model;
    const char *name;
    double billions = 0;
    WEFT_TRY(text(row, "model", &name));
    const bool known = pub_shape_find(name, m);
    WEFT_TRY(number(row, "params_b", 1e-6, &billions));
    if (billions == 0) billions = billions_in(name);
    WEFT_TRY(number(row, "layers", 1, &m->layers));
    WEFT_TRY(number(row, "hidden", 1, &m->hidden));
    WEFT_TRY(number(row, "seq_len", 1, &m->sequence));
    if ((m->layers <= 0 || m->hidden <= 0) && billions > 0) {
        /* Not printed. Usual proportions: a width of 128 times the layers, 12 h^2 a layer. */
        if (m->layers <= 0)
            m->layers = m->hidden > 0 ? ceil(billions * 1e9 / (12 * m->hidden * m->hidden))
                                      : ceil(cbrt(billions * 1e9 / 12 / 128 / 128));
        if (m->hidden <= 0) m->hidden = 128 * ceil(sqrt(billions * 1e9 / 12 / m->layers) / 128);
    }
    WEFT_REQUIRE(m->layers > 0 && m->hidden > 0, WEFT_E_NO_IMPL,
                 "model '%.60s': neither the row nor the table of known models has layers and "
                 "hidden, and the row has no params_b",
                 name);
    WEFT_TRY(number(row, "heads", 1, &m->heads));
    if (m->heads <= 0) m->heads = m->hidden >= 8192 ? ceil(m->hidden / 128) : ceil(m->hidden / 64);
    WEFT_TRY(number(row, "kv_heads", 1, &m->kv_heads));
    if (m->kv_heads <= 0) m->kv_heads = m->heads;
    if (m->head_size <= 0) m->head_size = m->hidden / m->heads;
    if (!known &&
        (has(name, "llama") || has(name, "mixtral") || has(name, "grok") || has(name, "qwen") ||
         has(name, "deepseek") || has(name, "swiglu") || has(name, "maxtext")))
        m->gated = true;
    if (has(notes, "swiglu") || has(notes, "deepseek")) m->gated = true;
    if (!m->gated && !known) m->learned_positions = true;
    WEFT_TRY(number(row, "ffn", 1, &m->ffn));
    if (m->ffn <= 0) m->ffn = m->gated ? 64 * ceil(8 * m->hidden / 3 / 64) : 4 * m->hidden;
    WEFT_TRY(number(row, "vocab", 1, &m->vocab));
    if (m->vocab <= 0) m->vocab = 51200;
    if (m->sequence <= 0) m->sequence = 2048;
    m->experts = after(notes, "num-experts=", m->experts);
    m->chosen = after(notes, "moe-router-topk=", m->chosen);
    m->expert_ffn = after(notes, "moe-ffn-hidden-size=", m->expert_ffn);
    m->dense_layers = after(notes, "moe-layer-freq=([0]*", m->dense_layers);
    if (m->experts <= 0 && has(notes, "experts per MoE layer")) {
        const char *at = strstr(notes, " experts per MoE layer");
        while (at > notes && isdigit((unsigned char)at[-1])) at--;
        m->experts = strtod(at, NULL);
        if (has(notes, "every other layer")) m->every = 2;
    }
    if (has(name, "grok")) m->experts = 8, m->chosen = 2;
    if (m->experts > 0) {
        if (m->chosen <= 0) m->chosen = 2;
        if (m->expert_ffn <= 0) m->expert_ffn = m->ffn;
    }
    if (m->every <= 0) m->every = 1;
    if (!known) m->tied = has(name, "GPT") || has(name, "MPT") || has(name, "OPT") || !m->gated;
    if (has(notes, "untie-embeddings") || has(notes, "untied")) m->tied = false;
    m->parameters = billions * 1e9;
    return WEFT_OK;
}

/* ---- plans ---- */

static weft_status read_plan(const wefti_json *row, pub_run *run) {
    double level = -1, fsdp = 0;
    WEFT_TRY(number(row, "global_batch", 1, &run->batch));
    WEFT_TRY(number(row, "micro_batch", 1e-3, &run->micro));
    WEFT_TRY(number(row, "tp", 1, &run->tensor));
    WEFT_TRY(number(row, "pp", 1, &run->stages));
    WEFT_TRY(number(row, "vp", 1, &run->chunks));
    WEFT_TRY(number(row, "dp", 1, &run->data));
    WEFT_TRY(number(row, "cp", 1, &run->context));
    WEFT_TRY(number(row, "ep", 1, &run->expert));
    WEFT_TRY(number(row, "zero_stage", 0, &level));
    run->level = (int)level;
    WEFT_TRY(truth(row, "sequence_parallel", &run->sequence_parallel));
    const wefti_json *sequence = wefti_json_get(row, "sequence_parallel");
    run->sequence_open = !sequence || sequence->kind == WEFTI_JSON_NULL;
    run->degrees_open = run->tensor <= 0 && (run->stages <= 0 || run->stages == 1);
    const wefti_json *shards = wefti_json_get(row, "fsdp");
    if (shards && shards->kind == WEFTI_JSON_TEXT) { /* "8 in node x 16 or 32 across" */
        const char *times = strstr(shards->as.text, " x ");
        fsdp = strtod(shards->as.text, NULL);
        if (times) fsdp *= strtod(times + 3, NULL);
    } else {
        WEFT_TRY(number(row, "fsdp", 1, &fsdp));
    }
    run->shards = fsdp;
    if (fsdp > 1 && run->level < 0) run->level = 3;
    return WEFT_OK;
}

static weft_status read_recompute(const wefti_json *row, pub_run *run) {
    const char *how;
    WEFT_TRY(text(row, "recompute", &how));
    run->recompute_part = 1;
    const char *of = strstr(how, " of ");
    if (!*how) {
        run->recompute_part = -1; /* the profile decides */
    } else if (has(how, "none")) {
        run->recompute = PUB_RECOMPUTE_NONE;
    } else if (has(how, "every other")) {
        run->recompute = PUB_RECOMPUTE_FULL;
        run->recompute_part = 0.5;
    } else if (of && isdigit((unsigned char)*how)) {
        run->recompute = PUB_RECOMPUTE_FULL;
        const double some = strtod(how, NULL), whole = strtod(of + 4, NULL);
        WEFT_REQUIRE(whole > 0 && some <= whole, WEFT_E_ARG,
                     "recompute is '%.40s'; it must be at most all layers", how);
        run->recompute_part = some / whole;
    } else if (has(how, "projections")) { /* all but these */
        run->recompute = PUB_RECOMPUTE_FULL;
        run->recompute_part = 0.9;
    } else if (has(how, "modules")) {
        run->recompute = PUB_RECOMPUTE_CHAINS;
    } else if (has(how, "per-op") || has(how, "partial")) {
        run->recompute = PUB_RECOMPUTE_PRODUCTS;
    } else if (has(how, "selective")) {
        run->recompute = PUB_RECOMPUTE_CORE;
    } else {
        run->recompute = PUB_RECOMPUTE_FULL;
    }
    return WEFT_OK;
}

static weft_status read_precision(const wefti_json *row, pub_run *run) {
    const char *p;
    WEFT_TRY(text(row, "precision", &p));
    run->element_bytes = 2;
    run->arithmetic = WEFTI_ARITHMETIC_BF16;
    if (has(p, "fp8") || has(p, "fp4"))
        run->arithmetic = WEFTI_ARITHMETIC_F8;
    else if (has(p, "fp32") && !has(p, "bf16") && !has(p, "fp16"))
        run->arithmetic = WEFTI_ARITHMETIC_F32, run->element_bytes = 4;
    else if (has(p, "tf32"))
        run->arithmetic = WEFTI_ARITHMETIC_TF32, run->element_bytes = 4;
    else if (has(p, "fp16"))
        run->arithmetic = WEFTI_ARITHMETIC_F16;
    run->four_bits = has(p, "fp4");
    return WEFT_OK;
}

static const char *name_of(const wefti_json *row) {
    const wefti_json *v = wefti_json_get(row, "model");
    return v && v->kind == WEFTI_JSON_TEXT ? v->as.text : "";
}

weft_status pub_run_read(const wefti_json *row, pub_run *out) {
    const char *notes, *kind, *category;
    *out = (pub_run){.level = -1};
    WEFT_REQUIRE(row->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "line %d: a row must be an object",
                 row->line);
    WEFT_TRY(text(row, "id", &out->id));
    WEFT_REQUIRE(*out->id, WEFT_E_ARG, "line %d: a row needs an id", row->line);
    WEFT_TRY(text(row, "framework", &out->framework));
    WEFT_TRY(text(row, "notes", &notes));
    WEFT_TRY(text(row, "memory_kind", &kind));
    WEFT_TRY(text(row, "category", &category));
    WEFT_TRY(read_plan(row, out));
    WEFT_TRY(read_recompute(row, out));
    WEFT_TRY(read_precision(row, out));
    WEFT_TRY(read_machine(row, out));
    WEFT_TRY(read_model(row, notes, out));
    if (out->micro <= 0) out->micro = after(notes, "per-device batch ", 0);
    out->flash_off = has(notes, "attention-backend=unfused");
    out->compiled = has(notes, "compile") && !has(notes, "no compile");
    out->async_tensor = has(notes, "async TP");
    out->frozen = has(notes, "LoRA");
    out->deterministic = has(notes, "deterministic-mode");
    out->offloaded = has(notes, "offload") && !has(notes, "offload setting");
    out->expert_tensor = after(notes, "ETP", 0);
    if (has(name_of(row), "etp1")) out->expert_tensor = 1;
    out->layer_only = has(category, "layer-microbench");
    out->last_stage_memory = has(kind, "LAST rank");
    out->used_memory = has(kind, "nvidia-smi");
    out->reserved_memory = has(kind, "reserved");
    return WEFT_OK;
}

/* ---- what the row leaves open ---- */

static weft_status check_devices(const pub_run *run) {
    const double model = run->tensor * run->stages * run->context;
    WEFT_REQUIRE(run->stages <= 4096 && run->tensor <= 4096 && run->context <= 4096, WEFT_E_ARG,
                 "tp %g, pp %g or cp %g is beyond 4096", run->tensor, run->stages, run->context);
    WEFT_REQUIRE(run->devices <= WEFTI_MODEL_DEVICES_MAX && run->devices >= 1, WEFT_E_ARG,
                 "num_gpus is %g; it must be from 1 to %d", run->devices, WEFTI_MODEL_DEVICES_MAX);
    WEFT_REQUIRE(model <= WEFTI_MODEL_DEVICES_MAX, WEFT_E_ARG,
                 "tp %g x pp %g x cp %g are too many devices", run->tensor, run->stages,
                 run->context);
    return WEFT_OK;
}

weft_status pub_run_finish(pub_run *run, const pub_profile *p, wefti_machine_model *machine) {
    wefti_level *host = &machine->level[machine->host_level];
    wefti_level *network = &machine->level[machine->level_count - 1];
    if (run->per_node <= 0) run->per_node = host->devices;
    if (run->tensor <= 0) run->tensor = 1;
    if (run->stages <= 0) run->stages = 1;
    if (run->chunks <= 0) run->chunks = 1;
    if (run->context <= 0) run->context = 1;
    if (run->expert <= 0) run->expert = 1;
    if (run->level < 0) run->level = (int)p->level_default;
    const double model = run->tensor * run->stages * run->context;
    /* Tables without a number of devices are of tests with some hosts: 16 replicas. */
    if (run->devices <= 0)
        run->devices = model * (run->data > 0 ? run->data : run->expert > 16 ? run->expert : 16);
    /* Where the product of the degrees is not the number of devices, the devices count. */
    run->data = run->devices > model ? run->devices / model : 1;
    WEFT_TRY(check_devices(run));
    if (run->micro <= 0) {
        run->micro = p->microbatch_default;
        if (run->batch > 0 && run->micro > run->batch / run->data)
            run->micro = run->batch / run->data;
    }
    if (run->batch <= 0)
        run->batch = run->micro * run->data * (run->stages > 1 ? 4 * run->stages : 1);
    if (run->micro > run->batch / run->data) run->micro = run->batch / run->data;
    if (run->sequence_open) run->sequence_parallel = p->sequence_default > 0.5 && run->tensor > 1;
    if (run->recompute_part < 0) {
        run->recompute_part = 1;
        run->recompute_open = true;
        run->recompute = p->recompute_default > 1.5   ? PUB_RECOMPUTE_FULL
                         : p->recompute_default > 0.5 ? PUB_RECOMPUTE_CORE
                                                      : PUB_RECOMPUTE_NONE;
    }
    if (run->expert_tensor <= 0) run->expert_tensor = run->tensor;
    /* Devices that share a sequence share parameters too. */
    if (run->level >= 3 && run->shards > 0 &&
        run->shards * run->context <= run->data * run->context)
        run->shards *= run->context;
    if (run->shards <= 0) run->shards = run->level >= 1 ? run->data * run->context : 1;
    const double padded = p->vocab_multiple * run->tensor;
    if (padded > 1) run->model.vocab = padded * ceil(run->model.vocab / padded);
    /* Hosts of the row's size, and its network. */
    if (host->devices != (int32_t)run->per_node && run->per_node >= 1 && run->per_node <= 4096) {
        host->devices = (int32_t)run->per_node;
        for (int l = 0; l < machine->host_level; l++)
            if (machine->level[l].devices > host->devices)
                machine->level[l].devices = host->devices;
    }
    if (run->device_bytes_per_second > 0)
        network->bytes_per_second.value = run->device_bytes_per_second,
        network->uplink_bytes_per_second = (wefti_figure){0, NULL};
    if (run->node_bytes_per_second > 0) {
        network->bytes_per_second.value = run->node_bytes_per_second;
        network->uplink_bytes_per_second = (wefti_figure){run->node_bytes_per_second, "the row"};
    }
    return WEFT_OK;
}
