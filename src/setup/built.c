/* From a job to a session: configuration, data, graphs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "data/source.h"
#include "interop/pretrained.h"
#include "job/job.h"
#include "models/models.h"
#include "plan/plan.h"
#include "search/search.h"
#include "setup/feed.h"
#include "weft/info.h"

void wefti_setup_note(const wefti_setup *s, const char *format, ...) {
    if (!s->note) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    s->note(s->context, text);
}

void wefti_setup_note_lines(const wefti_setup *s, char *lines) {
    char *rest = lines;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line) wefti_setup_note(s, "%s", line);
    wefti_free(lines);
}

void wefti_setup_close(wefti_setup *s) {
    wefti_side_files_free(&s->side);
    s->encrypts = false;
    explicit_bzero(&s->key, sizeof s->key);
}

weft_status wefti_setup_join(wefti_setup *s, weft_world *world) {
    if (world && weft_world_size(world) > 1 && strstr(weft_world_communicator(world), "ucx"))
        wefti_setup_note(s, "messages between ranks go by UCX, which neither authenticates nor "
                            "encrypts them: use it on trusted networks only");
    return wefti_party_join(&s->party, world);
}

static void take(int64_t *to, int64_t from) {
    if (from) *to = from;
}

/* The configuration of model.from or model.config, which rank 0 reads. */
static weft_status config_of_files(wefti_built *b, weft_model_config *out) {
    const weft_job_model *m = &b->job->model;
    weft_status status = WEFT_OK;
    if (b->setup->briefing) {
        *out = b->setup->briefing->config;
        return WEFT_OK;
    }
    if (!b->setup->party.follows)
        status = m->from[0] ? wefti_pretrained_config(m->from, out)
                            : wefti_pretrained_config_file(m->config, out);
    if (status < 0) (void)wefti_prefix(status, "%s", m->from[0] ? "model.from" : "model.config");
    return wefti_party_broadcast(&b->setup->party, status, out, sizeof *out);
}

/* Adapters that the job has; else those of the model's files remain. */
static weft_status lora_of_job(wefti_built *b, const char *files, weft_lora *out) {
    const weft_job_lora *l = &b->job->model.lora;
    const bool given = l->rank || l->alpha > 0 || l->dropout > 0 || l->targets.count;
    if (l->from[0]) {
        weft_status status = WEFT_OK;
        WEFT_REQUIRE(!given, WEFT_E_ARG,
                     "model.lora.from sets the other keys of model.lora; leave them out");
        WEFT_REQUIRE(files[0], WEFT_E_ARG,
                     "model.lora.from: adapters belong to a model: set model.from as well");
        if (b->setup->briefing) return WEFT_OK;
        if (!b->setup->party.follows) status = wefti_adapter_read(l->from, out);
        if (status < 0) (void)wefti_prefix(status, "model.lora.from");
        return wefti_party_broadcast(&b->setup->party, status, out, sizeof *out);
    }
    if (l->rank) *out = (weft_lora){.rank = l->rank};
    if (l->alpha > 0) out->alpha = l->alpha;
    if (l->dropout > 0) out->dropout = l->dropout;
    if (l->targets.count) out->targets[0] = 0;
    for (int64_t i = 0; i < l->targets.count; i++) {
        const size_t used = strlen(out->targets), room = sizeof out->targets - used;
        const int needed =
            snprintf(out->targets + used, room, "%s%s", i ? "," : "", l->targets.items[i].key);
        WEFT_REQUIRE(needed >= 0 && (size_t)needed < room, WEFT_E_ARG,
                     "model.lora.targets takes more than %zu bytes", sizeof out->targets - 1);
    }
    return WEFT_OK;
}

/* The job's sizes replace sizes of the model's files. */
static weft_status config_of_job(wefti_built *b, weft_model_config *out) {
    const weft_job_model *m = &b->job->model;
    const char *files = wefti_job_model_files(m);
    weft_model_config c = {.family = m->family};
    if (files[0]) {
        WEFT_TRY(config_of_files(b, &c));
        WEFT_REQUIRE(m->family == WEFT_FAMILIES || m->family == c.family, WEFT_E_ARG,
                     "model.family is %s but %s holds a %s", weft_family_text(m->family), files,
                     weft_family_text(c.family));
    } else {
        c.tied = m->tied;
        c.attention_bias = m->attention_bias;
        c.mlp_bias = m->mlp_bias;
    }
    take(&c.layers, m->layers);
    take(&c.hidden, m->hidden);
    take(&c.heads, m->heads);
    take(&c.kv_heads, m->kv_heads);
    take(&c.head_dim, m->head_dim);
    take(&c.window, m->window);
    take(&c.ffn, m->ffn);
    /* A model read from files keeps its table of positions; the job may use fewer of them. */
    bool rotary = c.rope_theta > 0;
    if (!files[0] || rotary) take(&c.context, m->context);
    WEFT_REQUIRE(m->context <= c.context || !files[0], WEFT_E_ARG,
                 "model.context is %lld but the model in %s has %lld positions",
                 (long long)m->context, files, (long long)c.context);
    take(&c.vocab, m->vocab);
    take(&c.classes, m->classes);
    for (int i = 0; i < 3; i++) take(&c.image[i], m->image[i]);
    take(&c.patch, m->patch);
    if (m->dropout >= 0) c.dropout = m->dropout, c.dropout_apart = false;
    take(&c.experts, m->experts);
    take(&c.experts_per_token, m->experts_per_token);
    if (m->capacity_factor >= 0) c.capacity_factor = m->capacity_factor;
    if (m->aux_loss >= 0) c.aux_loss = m->aux_loss;
    if (m->norm_eps > 0) c.norm_eps = m->norm_eps;
    if (m->rope_theta > 0) c.rope_theta = m->rope_theta;
    WEFT_TRY(lora_of_job(b, files, &c.lora));
    *out = c;
    return WEFT_OK;
}

static void note_lines(const wefti_built *b, const char *lines) {
    for (const char *end; *lines; lines = *end ? end + 1 : end) {
        end = strchrnul(lines, '\n');
        wefti_setup_note(b->setup, "%.*s", (int)(end - lines), lines);
    }
}

static bool sizes_known(const weft_model_config *c) {
    if (weft_family_is_language(c->family)) return c->vocab > 0;
    return c->classes > 0 && c->image[0] > 0 && c->image[1] > 0 && c->image[2] > 0;
}

static weft_status open_data(wefti_built *b) {
    const weft_job_data *d = &b->job->data;
    bool language = b->model.objective->is_language;
    weft_model_config probe = b->model.config; /* the family's context, when the job names none */
    if (!probe.vocab) probe.vocab = 1 << 20;
    if (language) WEFT_TRY(weft_model_complete(&probe));
    weft_data_options o =
        WEFT_STRUCT(weft_data_options, .format = weft_format_text(d->format), .path = d->path,
                    .labels = d->labels[0] ? d->labels : NULL,
                    .validation_path = d->validation[0] ? d->validation : NULL,
                    .validation_labels = d->validation_labels[0] ? d->validation_labels : NULL,
                    .validation_fraction = d->validation[0] ? 0 : d->validation_fraction,
                    .tokenizer = d->tokenizer[0] ? d->tokenizer : NULL,
                    .context = !language               ? 0
                               : b->job->model.context ? b->job->model.context
                                                       : probe.context,
                    .vocab = language ? b->model.config.vocab : b->model.config.classes,
                    .field = d->field, .skip_bad_lines = d->bad_lines == WEFT_BAD_LINES_SKIP);
    WEFT_REQUIRE(d->path[0], WEFT_E_ARG,
                 "data.path is missing: the file or directory to train on%s",
                 sizes_known(&b->model.config) ? ""
                 : language ? "; plans and predictions need no data if the job sets model.vocab"
                            : "; plans and predictions need no data if the job sets model.classes "
                              "and model.image");
    const char *family = weft_family_text(b->model.config.family);
    WEFT_REQUIRE(!language || d->format != WEFT_FORMAT_IDX, WEFT_E_ARG,
                 "data.format: idx is for images, but %s learns from text, tokens or npy", family);
    WEFT_REQUIRE(language || d->format == WEFT_FORMAT_IDX || d->format == WEFT_FORMAT_NPY,
                 WEFT_E_ARG,
                 "data.format: %s is for language models, but %s learns from idx or npy",
                 weft_format_text(d->format), family);
    weft_tokenizer *tokenizer;
    wefti_ends ends = {.count = 0};
    WEFT_TRY(wefti_built_tokenizer(b, &tokenizer, &ends));
    WEFT_TRY(wefti_data_open_with(&o, tokenizer, ends.count ? ends.ids[0] : -1, &b->data));
    note_lines(b, wefti_data_notes(b->data));
    return WEFT_OK;
}

static weft_status open_data_told(wefti_built *b) {
    const wefti_setup *s = b->setup;
    if (s->opens) s->opens(s->context, true);
    const weft_status status = open_data(b);
    if (s->opens) s->opens(s->context, false);
    return status;
}

/* For new models. Models from files have the tokens of their files. */
static weft_status ends_from_data(wefti_built *b) {
    const weft_tokenizer *tokenizer = weft_data_tokenizer(b->data);
    const char *files = wefti_job_model_files(&b->job->model);
    wefti_ends ends;
    if (!tokenizer || !b->model.objective->generates || files[0]) return WEFT_OK;
    WEFT_TRY(wefti_ends_beside(tokenizer, b->job->data.tokenizer, &ends));
    wefti_ends_of_tokenizer(&ends, &b->model.config);
    return WEFT_OK;
}

/* Sizes that only the data can tell. */
static weft_status sizes_from_data(wefti_built *b) {
    weft_model_config *c = &b->model.config;
    int64_t vocab = weft_data_vocab(b->data);
    if (weft_family_is_language(c->family)) {
        if (!c->vocab) c->vocab = b->model.objective->vocabulary(b->data, vocab);
        WEFT_TRY(wefti_built_check_bytes(b));
        WEFT_REQUIRE(c->vocab > 0, WEFT_E_ARG,
                     "model.vocab is missing: the data do not tell how many tokens there are");
        WEFT_REQUIRE(vocab <= c->vocab || b->job->data.format == WEFT_FORMAT_TOKENS, WEFT_E_ARG,
                     "model.vocab is %lld but the tokenizer makes tokens up to %lld",
                     (long long)c->vocab, (long long)vocab - 1);
        return WEFT_OK;
    }
    weft_desc image = weft_data_input(b->data);
    WEFT_REQUIRE(image.rank <= 3, WEFT_E_SHAPE,
                 "%s holds images of %d dimensions; [height, width] and [channels, height, width] "
                 "are possible",
                 b->job->data.path, image.rank);
    if (!c->classes) c->classes = vocab;
    int64_t shape[3] = {1, 1, 1};
    for (int i = 0; i < image.rank && i < 3; i++) shape[3 - image.rank + i] = image.shape[i];
    for (int i = 0; i < 3; i++) {
        if (!c->image[i]) c->image[i] = shape[i];
        WEFT_REQUIRE(
            c->image[i] == shape[i], WEFT_E_SHAPE,
            "model.image is [%lld, %lld, %lld] but the data's images are [%lld, %lld, %lld]",
            (long long)c->image[0], (long long)c->image[1], (long long)c->image[2],
            (long long)shape[0], (long long)shape[1], (long long)shape[2]);
    }
    return WEFT_OK;
}

#define SPACED(name, text) " " text

weft_status wefti_built_configure(wefti_built *b) {
    WEFT_TRY(config_of_job(b, &b->model.config));
    WEFT_REQUIRE(b->model.config.family < WEFT_FAMILIES, WEFT_E_ARG,
                 "model.family is missing; there are:" WEFT_FAMILY_LIST(SPACED));
    b->model.objective = wefti_objective_of(b->model.config.family);
    if (!sizes_known(&b->model.config)) {
        if (!b->data) WEFT_TRY(open_data_told(b));
        WEFT_TRY(sizes_from_data(b));
    }
    WEFT_TRY(weft_model_complete(&b->model.config));
    const weft_job_train *train = &b->job->train;
    b->batch.microbatches = train->accumulate * (b->job->plan ? b->job->plan->copies : 1);
    WEFT_REQUIRE(train->batch % b->batch.microbatches == 0, WEFT_E_ARG,
                 "%lld microbatches do not divide train.batch, %lld",
                 (long long)b->batch.microbatches, (long long)train->batch);
    b->batch.micro = train->batch / b->batch.microbatches;
    return WEFT_OK;
}

weft_session_options wefti_built_options(const wefti_built *b) {
    const weft_job_train *train = &b->job->train;
    weft_session_options o = weft_session_defaults();
    o.optimizer = (weft_optimizer){
        .kind = train->optimizer.name,
        .beta1 = train->optimizer.betas[0],
        .beta2 = train->optimizer.betas[1],
        .eps = train->optimizer.eps,
        .momentum = train->optimizer.momentum,
        .weight_decay = train->optimizer.weight_decay,
        .initial_accumulator = train->optimizer.initial_accumulator,
        .decay_rules = (int)train->optimizer.decay.count,
        .decay = train->optimizer.decay_rules,
    };
    o.clip = train->clip;
    o.rows = train->rows;
    o.recovery = b->job->recovery.enabled;
    o.buddy = b->job->recovery.buddy;
    o.microbatches = (int)b->batch.microbatches;
    o.threads = (int)b->job->device.threads;
    o.memory_bytes = b->limits.memory;
    o.device_bytes = b->limits.device;
    o.host_bytes = b->limits.host;
    o.held_bytes = b->limits.held;
    o.disk = *b->job->memory.disk.path ? b->job->memory.disk.path : NULL;
    o.disk_bytes = b->disk_bytes;
    o.seed = train->seed;
    o.bf16 = b->model.bf16;
    o.plan = wefti_built_plan(b);
    o.world = b->setup->party.world;
    return o;
}

weft_session_options wefti_built_forward_options(const wefti_built *b) {
    weft_session_options o = wefti_built_options(b);
    o.optimizer = (weft_optimizer){.kind = WEFT_NO_OPTIMIZER};
    o.clip = 0;
    o.recovery = o.buddy = false;
    o.microbatches = 1;
    return o;
}

/* Tokens of a sample; 0: the model's whole context, or not a language model. */
static int64_t context_of(const wefti_built *b) {
    return b->model.objective->is_language ? b->job->model.context : 0;
}

weft_status wefti_built_graph_of(const wefti_built *b, const weft_model_config *config,
                                 int64_t samples, weft_graph **out) {
    const weft_job_pairs *frozen = &b->job->train.frozen;
    weft_graph *graph;
    const wefti_model_form form = {.f8 = b->job->train.products == WEFT_PRODUCTS_F8,
                                   .narrow = b->job->train.master == WEFT_TIER_HOST};
    weft_status status = wefti_model_build_of(config, WEFT_USE_TRAIN, samples, context_of(b),
                                              b->job->train.precision, form, &graph);
    if (status < 0) return status;
    for (int64_t i = 0; i < frozen->count && status >= 0; i++)
        status = weft_freeze(graph, frozen->items[i].key, !strcmp(frozen->items[i].value, "true"));
    if (status < 0) {
        weft_graph_destroy(graph);
        return wefti_prefix(status, "train.frozen");
    }
    *out = graph;
    return WEFT_OK;
}

weft_status wefti_built_graph(wefti_built *b) {
    const weft_plan *plan = b->job->plan;
    const bool first = wefti_built_is_joint(b);
    if (first) WEFT_TRY(wefti_built_search(b));
    WEFT_TRY(wefti_built_graph_of(b, &b->model.config, b->batch.micro, &b->model.graph));
    WEFT_TRY(wefti_plan_check_model(plan, b->model.graph, b->job->parallel.plan));
    return first ? WEFT_OK : wefti_built_search(b);
}

static bool validates(const wefti_built *b) {
    return b->data && weft_data_samples(b->data, WEFT_DATA_VALIDATION) > 0;
}

static weft_status build_eval_graph(wefti_built *b) {
    const wefti_model_form form = {.narrow = b->job->train.master == WEFT_TIER_HOST};
    return wefti_model_build_of(&b->model.config, WEFT_USE_EVAL, b->batch.micro, context_of(b),
                                b->job->train.precision, form, &b->model.eval_graph);
}

weft_status wefti_built_graphs(wefti_built *b) {
    WEFT_TRY(wefti_built_graph(b));
    wefti_built_hold_batches(b, true);
    if (validates(b)) WEFT_TRY(build_eval_graph(b));
    weft_graph *const graphs[] = {b->model.graph, b->model.eval_graph};
    const weft_session_options o = wefti_built_options(b);
    return wefti_built_offload(b, &o, graphs, b->model.eval_graph ? 2 : 1);
}

/* Warns of parts of the plan without effect. */
static weft_status note_unmatched(const wefti_built *b) {
    char *lines;
    int32_t fused[3];
    if (!wefti_built_plan(b)) return WEFT_OK;
    wefti_session_fused(b->session, fused);
    WEFT_TRY(wefti_plan_unmatched(wefti_built_plan(b), b->model.graph, fused, &lines));
    wefti_setup_note_lines(b->setup, lines);
    return WEFT_OK;
}

weft_status wefti_built_open_data(wefti_built *b) {
    if (!b->data) {
        WEFT_TRY(open_data_told(b));
        WEFT_TRY(sizes_from_data(b));
    }
    WEFT_TRY(wefti_built_same_data(b));
    b->model.mask_token = wefti_mask_token(b->data, b->model.config.vocab);
    return WEFT_OK;
}

int32_t wefti_built_devices(const wefti_built *b) {
    return b->job->plan            ? weft_plan_devices(b->job->plan)
           : b->setup->party.world ? weft_world_size(b->setup->party.world)
                                   : 1;
}

int64_t wefti_built_sharing(const wefti_built *b) {
    return b->setup->party.world ? weft_world_local_size(b->setup->party.world)
                                 : wefti_built_devices(b);
}

int64_t wefti_built_share(const wefti_built *b) {
    weft_info info;
    weft_info_get(&info);
    return info.memory_bytes / wefti_built_sharing(b);
}

wefti_limits wefti_built_limits(const wefti_built *b) {
    const weft_job_device *d = &b->job->device;
    const weft_job_memory *m = &b->job->memory;
    const bool shares = d->memory_percent > 0 || m->device_percent > 0 || m->host_percent > 0;
    const int64_t share = shares ? wefti_built_share(b) : 0;
    return (wefti_limits){.memory = wefti_job_limit(d->memory_bytes, d->memory_percent, share),
                          .device = wefti_job_limit(m->device_bytes, m->device_percent, share),
                          .host = wefti_job_limit(m->host_bytes, m->host_percent, share),
                          .held = b->limits.held};
}

void wefti_built_limit_memory(wefti_built *b) {
    b->limits = wefti_built_limits(b);
    if (!b->limits.memory && !b->limits.device) b->limits.memory = wefti_built_share(b);
}

/* Of a row of the input with this name. */
static int64_t row_bytes(const wefti_built *b, const char *name) {
    const weft_body *root = b->model.graph->root;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind == WEFTI_VALUE_INPUT && !strcmp(v->name, name))
            return weft_desc_bytes(&v->desc) / b->batch.micro;
    }
    return 0;
}

void wefti_built_hold_batches(wefti_built *b, bool trains) {
    const wefti_objective *objective = b->model.objective;
    const int64_t input = row_bytes(b, objective->input), target = row_bytes(b, objective->target);
    const bool passes = !trains || validates(b);
    const int64_t all =
        (trains ? wefti_feed_ring_bytes(WEFTI_RING_TRAIN, b->job->train.batch, input, target) : 0) +
        (passes ? wefti_feed_ring_bytes(WEFTI_RING_PASSES, b->batch.micro, input, target) : 0);
    b->limits.held = all / wefti_built_devices(b);
}

static weft_status check_machine(const wefti_built *b) {
    const weft_session_memory m = weft_session_memory_of(b->session);
    const int64_t share = wefti_built_share(b),
                  host = m.host_bytes + m.program_bytes + b->limits.held,
                  need = m.predicted_peak_bytes + host;
    char all[32], device[32], other[32], has[32];
    WEFT_REQUIRE(
        b->limits.host || need <= share, WEFT_E_NOMEM,
        "a step needs %s: %s of device memory, and %s for tier host, programs and batches; "
        "the machine has %s for each device, which lacks %lld bytes. It would fit if "
        "memory.offload kept that much on a disk",
        wefti_bytes_text(need, all), wefti_bytes_text(m.predicted_peak_bytes, device),
        wefti_bytes_text(host, other), wefti_bytes_text(share, has), (long long)(need - share));
    return WEFT_OK;
}

weft_status wefti_built_fits_machine(const wefti_built *b) {
    return wefti_party_agree(&b->setup->party, check_machine(b));
}

weft_status wefti_built_prepare(wefti_built *b) {
    WEFT_TRY(wefti_built_try_disk(b, true));
    WEFT_TRY(wefti_built_configure(b));
    WEFT_TRY(wefti_built_disk_room(b));
    WEFT_TRY(wefti_built_open_data(b));
    WEFT_TRY(ends_from_data(b));
    int64_t samples = weft_data_samples(b->data, WEFT_DATA_TRAIN);
    WEFT_REQUIRE(samples > 0, WEFT_E_SHAPE, "%s holds no training sample", b->job->data.path);
    if (samples < b->job->train.batch)
        wefti_setup_note(b->setup,
                         "the data have %lld samples, fewer than train.batch, %lld: samples "
                         "repeat within a step",
                         (long long)samples, (long long)b->job->train.batch);
    wefti_built_limit_memory(b);
    return wefti_built_graphs(b);
}

weft_status wefti_built_build(wefti_built *b) {
    weft_session_options o = wefti_built_options(b);
    WEFT_TRY(wefti_session_create(b->model.graph, &o, &b->session));
    if (b->model.eval_graph)
        WEFT_TRY(weft_session_add(b->session, b->model.eval_graph, &b->model.eval_program));
    return note_unmatched(b);
}

void wefti_built_close(wefti_built *b) {
    weft_session_destroy(b->session);
    weft_plan_destroy(b->searched);
    wefti_free(b->search_notes);
    weft_search_report_free(b->report);
    weft_graph_destroy(b->model.graph);
    weft_graph_destroy(b->model.eval_graph);
    weft_data_close(b->data);
    wefti_saved_list_free(&b->saved);
    weft_job_free(b->resized_job);
}
