/* Text generation: the model with key/value caches, fed a prompt in pieces and then token by token.
 * On several devices the session splits model and caches; all ranks of a world read the logits and
 * choose the same tokens.
 *
 * The caches hold the keys and values of the window's first `cached` tokens. */
#include "infer/generator.h"
#include "infer/trained.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/philox.h"
#include "checkpoint/seal/seal.h"
#include "interop/pretrained.h"
#include "job/job.h"
#include "partition/partition.h"
#include "setup/setup.h"

/* ---- opening ---- */

/* The tokenizer of the checkpoint. */
static weft_status find_tokenizer(weft_generator *g) {
    char *file = wefti_format("%s/tokenizer.json", g->path);
    WEFT_REQUIRE(file, WEFT_E_NOMEM, "no memory for a path");
    const bool there = !wefti_is_missing(file);
    g->bytes = !there;
    weft_status status = WEFT_OK;
    if (!there && g->config.vocab != 256)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s has no tokenizer.json, and a vocabulary of %lld tokens; only 256 "
                            "tokens are bytes: name one (--tokenizer FILE), or bytes (--tokenizer "
                            "bytes) if the model was trained on them",
                            g->path, (long long)g->config.vocab);
    else
        status = weft_tokenizer_open(there ? file : NULL, &g->tokenizer);
    wefti_free(file);
    return status;
}

/* wefti_special_read: a file of the checkpoint, which may be encrypted. */
static weft_status read_of_checkpoint(void *context, const char *name, char **out,
                                      int64_t *out_bytes) {
    enum { BYTES_MOST = 64 << 20 };
    const weft_generator *g = context;
    char *file = wefti_format("%s/%s", g->path, name);
    WEFT_REQUIRE(file, WEFT_E_NOMEM, "no memory for a path");
    bool there = false;
    weft_status status = wefti_look_for(file, &there);
    if (there) status = wefti_sealed_read(file, BYTES_MOST, NULL, out, out_bytes);
    wefti_free(file);
    return status;
}

static weft_status open_tokenizer(weft_generator *g, const char *name) {
    if (name) {
        g->bytes = !strcmp(name, "bytes");
        WEFT_TRY(weft_tokenizer_open(name, &g->tokenizer));
    } else {
        WEFT_TRY(find_tokenizer(g));
    }
    g->choices = weft_tokenizer_vocab(g->tokenizer);
    WEFT_REQUIRE(g->choices <= g->config.vocab, WEFT_E_SHAPE,
                 "%s%s makes tokens up to %lld, but the model's vocabulary is %lld",
                 name ? name : g->path, name ? "" : "/tokenizer.json", (long long)g->choices - 1,
                 (long long)g->config.vocab);
    WEFT_REQUIRE(g->choices > 0, WEFT_E_SHAPE, "%s%s has no tokens", name ? name : g->path,
                 name ? "" : "/tokenizer.json");
    wefti_ends ends;
    WEFT_TRY(name ? wefti_ends_beside(g->tokenizer, name, &ends)
                  : wefti_ends_of(g->tokenizer, read_of_checkpoint, g, &ends));
    wefti_ends_of_tokenizer(&ends, &g->config);
    return WEFT_OK;
}

weft_status wefti_generator_add(weft_generator *g, int64_t batch, int64_t seq) {
    weft_graph **graph = &g->graphs[g->programs];
    weft_model_config c = g->config;
    c.asked = batch * seq < g->answers ? batch * seq : g->answers;
    WEFT_TRY(weft_model_build(&c, WEFT_USE_DECODE, batch, seq, g->precision, graph));
    g->sizes[g->programs++] = g->piece = batch * seq;
    return WEFT_OK;
}

/* For a single token, and for pieces of a prompt that the context has room for. */
static weft_status build_one(weft_generator *g) {
    const int64_t context = g->config.context;
    g->answers = 1;
    WEFT_TRY(wefti_generator_add(g, 1, 1));
    if (context > 1)
        WEFT_TRY(wefti_generator_add(g, 1, context < GENERATE_PIECE ? context : GENERATE_PIECE));
    for (int64_t piece = GENERATE_LONGEST / 2; piece <= context && piece <= GENERATE_LONGEST;
         piece *= 2)
        WEFT_TRY(wefti_generator_add(g, 1, piece));
    return WEFT_OK;
}

/* Frees `lines`, which may be NULL. */
static weft_status add_note(weft_generator *g, char *lines) {
    if (!lines || !*lines || g->party.follows) {
        wefti_free(lines);
        return WEFT_OK;
    }
    char *both = wefti_format("%s%s%s", g->note ? g->note : "", g->note ? "\n" : "", lines);
    wefti_free(lines);
    WEFT_REQUIRE(both, WEFT_E_NOMEM, "no memory for a note");
    wefti_free(g->note);
    g->note = both;
    return WEFT_OK;
}

static void keep_note(void *context, const char *text) {
    weft_generator *g = context;
    const weft_status status = add_note(g, wefti_strdup(text));
    if (status < 0) wefti_error_clear(); /* a text needs no notes */
}

/* Where parameters lie: the limits of options->memory, and the directory of tier disk, which is
 * tried. */
typedef struct generator_memory {
    weft_job job;
    wefti_setup setup;
    wefti_built built;
} generator_memory;

/* Collective. */
static weft_status take_memory(weft_generator *g, const weft_generator_options *options,
                               weft_plan *plan, generator_memory *m) {
    static const weft_job none = {.memory = {.disk = {.path = ""}}};
    wefti_built *b = &m->built;
    *m = (generator_memory){.job = options->memory ? *options->memory : none,
                            .setup = {.party = g->party, .note = keep_note, .context = g},
                            .built = {.setup = &m->setup, .job = &m->job}};
    m->job.plan = plan;
    if (options->memory_bytes) {
        m->job.device = (weft_job_device){.memory_bytes = options->memory_bytes};
        m->job.memory.device_bytes = 0;
        m->job.memory.device_percent = 0;
    }
    WEFT_TRY(wefti_built_try_disk(b, false));
    b->limits = wefti_built_limits(b);
    return WEFT_OK;
}

static weft_status create_session(weft_generator *g, const weft_session_options *o) {
    int program;
    WEFT_TRY(weft_session_create(g->graphs[0], o, &g->session));
    for (int k = 1; k < g->programs; k++)
        WEFT_TRY(weft_session_add(g->session, g->graphs[k], &program));
    return WEFT_OK;
}

static weft_status build_programs(weft_generator *g, int threads, wefti_built *b) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = threads;
    o.memory_bytes = b->limits.memory;
    o.device_bytes = b->limits.device;
    o.host_bytes = b->limits.host;
    o.disk = *b->job->memory.disk.path ? b->job->memory.disk.path : NULL;
    o.disk_bytes = b->disk_bytes;
    o.world = g->party.world;
    WEFT_TRY(g->rows ? wefti_many_build(g) : build_one(g));
    WEFT_TRY(wefti_built_offload(b, &o, g->graphs, g->programs));
    o.plan = wefti_built_plan(b);
    return create_session(g, &o);
}

/* Tells what the plan's moves do not match. */
static weft_status tell_unmatched(weft_generator *g, const weft_plan *plan) {
    char *lines;
    WEFT_TRY(wefti_plan_unmatched_moves(plan, g->graphs[0], &lines));
    return add_note(g, lines);
}

static weft_status tell_lent(weft_generator *g) {
    char *lines;
    WEFT_TRY(wefti_lent_note(g->session, &lines));
    return add_note(g, lines);
}

static weft_status build(weft_generator *g, const weft_generator_options *options) {
    weft_plan *plan;
    const int size = g->party.world ? weft_world_size(g->party.world) : 0;
    WEFT_TRY(wefti_generator_plan(&g->config, options->plan,
                                  options->devices || options->plan ? options->devices : size,
                                  options->memory ? options->memory->plan : NULL, &plan));
    generator_memory m;
    weft_status status = take_memory(g, options, plan, &m);
    if (status >= 0) status = build_programs(g, options->threads, &m.built);
    if (status >= 0) status = tell_unmatched(g, plan);
    wefti_built_close(&m.built);
    weft_plan_destroy(plan);
    return status;
}

/* Configuration and tokenizer, which each rank reads. */
static weft_status read_model(weft_generator *g, int64_t context, const char *tokenizer) {
    WEFT_REQUIRE(g->rows >= 0 && g->rows <= GENERATE_MOST_ROWS, WEFT_E_ARG,
                 "%lld texts at once: it must be from 1 to %d", (long long)g->rows,
                 GENERATE_MOST_ROWS);
    WEFT_TRY(wefti_pretrained_config(g->path, &g->config));
    WEFT_REQUIRE(weft_family_is_language(g->config.family), WEFT_E_NO_IMPL,
                 "%s holds a %s, which does not generate text", g->path,
                 weft_family_text(g->config.family));
    WEFT_REQUIRE(context >= 0, WEFT_E_ARG, "a context of %lld tokens", (long long)context);
    if (g->config.rope_theta > 0 && context > 0 && context < g->config.context)
        g->config.context = context;
    return open_tokenizer(g, tokenizer);
}

/* Caches have room for rank 0's prompts, or for the context. */
static weft_status fit_caches(weft_generator *g, const weft_generator_options *o) {
    int64_t room = g->config.context;
    weft_status status = WEFT_OK;
    if (!g->party.follows && o->prompts)
        status = wefti_many_room(g, o->prompts, o->prompt_count, &room);
    WEFT_TRY(wefti_party_broadcast(&g->party, status, &room, sizeof room));
    g->config.cache = room;
    g->config.cache_rows = g->rows;
    return WEFT_OK;
}

static weft_status make_room(weft_generator *g) {
    WEFT_NEW_ARRAY(g->window, int32_t, g->config.context);
    WEFT_NEW_ARRAY(g->ids, int32_t, g->piece);
    WEFT_NEW_ARRAY(g->positions, int32_t, 2 * g->piece);
    WEFT_NEW_ARRAY(g->asked, int32_t, g->answers);
    WEFT_NEW_ARRAY(g->logits, float, g->answers * g->config.vocab);
    WEFT_NEW_ARRAY(g->scratch, wefti_candidate, g->choices);
    WEFT_NEW_ARRAY(g->seen, bool, g->choices);
    return WEFT_OK;
}

static weft_status finish(weft_generator *g) {
    WEFT_TRY(tell_lent(g));
    return make_room(g);
}

static weft_status open_parts(weft_generator *g, const char *checkpoint,
                              const weft_generator_options *options) {
    const bool chooses = options->memory && wefti_job_offloads_auto(options->memory);
    int64_t given[4] = {options->context, options->rows, options->precision, chooses};
    WEFT_TRY(wefti_party_join(&g->party, options->world));
    WEFT_TRY(wefti_pretrained_path_across(&g->party, checkpoint, &g->path, &g->note));
    WEFT_TRY(wefti_party_broadcast(&g->party, WEFT_OK, given, sizeof given));
    g->rows = given[1];
    g->precision = (weft_dtype)given[2];
    WEFT_REQUIRE(g->precision == WEFT_F32 || g->precision == WEFT_BF16, WEFT_E_ARG,
                 "text is generated in f32 or in bf16, not in %s",
                 weft_dtype_text((weft_dtype)given[2]));
    weft_status read = read_model(g, given[0], options->tokenizer);
    if (read >= 0 && chooses != given[3])
        read = WEFT_RAISE(WEFT_E_MISMATCH, "memory.offload is auto on some ranks only");
    WEFT_TRY(wefti_party_agree(&g->party, read));
    if (g->rows) WEFT_TRY(fit_caches(g, options));
    weft_status status = build(g, options);
    if (status < 0) return wefti_prefix(status, "%s", g->path);
    WEFT_TRY(wefti_pretrained_load_parts(&g->party, g->session, &g->config, g->path));
    return wefti_party_agree(&g->party, finish(g));
}

weft_status weft_generator_open(const char *checkpoint, const weft_generator_options *options,
                                weft_generator **out) {
    weft_generator_options own = weft_generator_defaults();
    weft_status status = wefti_struct_take("weft_generator_options", options, &own);
    WEFT_TRY(wefti_fail_world(own.world, status));
    if (!checkpoint || !out)
        return wefti_fail_world(own.world,
                                WEFT_RAISE(WEFT_E_ARG, "a generator needs a checkpoint"));
    weft_generator *g = wefti_calloc(1, sizeof *g);
    if (!g)
        return wefti_fail_world(own.world, WEFT_RAISE(WEFT_E_NOMEM, "no memory for a generator"));
    status = wefti_party_tell(&g->party, open_parts(g, checkpoint, &own));
    if (status < 0) {
        wefti_failure failure;
        wefti_failure_keep(status, &failure);
        weft_generator_close(g);
        return wefti_failure_tell(&failure);
    }
    *out = g;
    return WEFT_OK;
}

void weft_generator_close(weft_generator *g) {
    if (!g) return;
    weft_session_destroy(g->session);
    for (int i = 0; i < GENERATE_PROGRAMS; i++) weft_graph_destroy(g->graphs[i]);
    weft_tokenizer_close(g->tokenizer);
    wefti_free(g->window);
    wefti_free(g->ids);
    wefti_free(g->positions);
    wefti_free(g->asked);
    wefti_free(g->logits);
    wefti_free(g->scratch);
    wefti_free(g->seen);
    wefti_free(g->path);
    wefti_free(g->note);
    wefti_free(g);
}

weft_generator_info weft_generator_info_of(const weft_generator *g) {
    const weft_session_memory memory = weft_session_memory_of(g->session);
    return (weft_generator_info){
        .config = g->config,
        .path = g->path,
        .note = g->note,
        .bytes = g->bytes,
        .tokens = g->choices,
        .peak_bytes = memory.predicted_peak_bytes,
        .devices = weft_session_devices(g->session),
        .host_bytes = memory.host_bytes,
        .disk_bytes = memory.disk_bytes,
    };
}

/* ---- the window ---- */

/* A full window keeps its last half; the caches begin anew, as all positions change. */
static void append(weft_generator *g, int32_t token) {
    if (g->count == g->config.context) {
        int64_t kept = g->config.context / 2;
        memmove(g->window, g->window + g->count - kept, (size_t)kept * sizeof *g->window);
        g->count = kept;
        g->cached = 0;
    }
    g->window[g->count++] = token;
}

/* The next tokens of the window, by one program. Its tokens may begin with some that are already
 * cached, so that they end within the context. They may also reach past the window: later passes
 * overwrite those cache rows before any token attends to them. */
static weft_status run_pass(weft_generator *g, int program, float **out_logits) {
    const int64_t size = g->sizes[program], last = g->config.context - size,
                  first = g->cached < last ? g->cached : last;
    const size_t bytes = (size_t)size * sizeof *g->ids;
    for (int64_t i = 0; i < size; i++) {
        g->ids[i] = first + i < g->count ? g->window[first + i] : 0;
        g->positions[i] = (int32_t)(first + i);
    }
    g->cached = first + size < g->count ? first + size : g->count;
    const int32_t asked = (int32_t)(g->cached - 1 - first);
    weft_tensor_info info;
    WEFT_TRY(weft_session_feed(g->session, program, "tokens", g->ids, bytes));
    WEFT_TRY(weft_session_feed(g->session, program, "position", g->positions, 4));
    if (size > 1 && weft_session_find(g->session, program, "positions", &info) == WEFT_OK)
        WEFT_TRY(weft_session_feed(g->session, program, "positions", g->positions, bytes));
    WEFT_TRY(weft_session_feed(g->session, program, "asked", &asked, 4));
    WEFT_TRY(weft_session_forward(g->session, program, NULL));
    *out_logits = g->logits;
    if (g->cached < g->count) return WEFT_OK;
    return weft_session_read(g->session, program, "logits", g->logits,
                             (size_t)g->config.vocab * sizeof *g->logits);
}

/* The largest program that `left` tokens fill, or a piece that they fill in part. */
static int program_for(const weft_generator *g, int64_t left) {
    enum { WORTH = 4 }; /* tokens from which on a piece is faster than single tokens */
    int k = left < WORTH ? 0 : g->programs - 1;
    while (k > 1 && g->sizes[k] > left) k--;
    return k;
}

/* The logits of the last token of the window. */
static weft_status run_window(weft_generator *g, float **out_logits) {
    while (g->cached < g->count)
        WEFT_TRY(run_pass(g, program_for(g, g->count - g->cached), out_logits));
    return WEFT_OK;
}

/* ---- the prompt ---- */

bool wefti_generator_is_end(const weft_generator *g, int32_t token) {
    for (int64_t i = 0; i < g->config.end_count; i++)
        if (g->config.ends[i] == token) return true;
    return false;
}

/* GPT-2 begins texts with the end of the one before; others without a prefix from a newline. */
static int32_t start_token(const weft_generator *g) {
    int32_t token = weft_tokenizer_find(g->tokenizer, "<|endoftext|>"), newline[8];
    int64_t count;
    if (token >= 0) return token;
    weft_status status = weft_tokenizer_encode(g->tokenizer, "\n", 1, newline, 8, &count);
    return status == WEFT_OK && count > 0 ? newline[count - 1] : 0;
}

weft_status wefti_generator_encode(const weft_generator *g, const char *prompt, int64_t bytes,
                                   int32_t **out, int64_t *out_count) {
    int64_t prefix_count, count = 0, room = 4 * bytes + 4;
    const int32_t *prefix = weft_tokenizer_prefix(g->tokenizer, &prefix_count);
    int32_t *ids = wefti_alloc((size_t)(prefix_count + room + 1) * sizeof *ids);
    WEFT_REQUIRE(ids, WEFT_E_NOMEM, "no memory for a prompt of %lld bytes", (long long)bytes);
    for (int64_t i = 0; i < prefix_count; i++) ids[i] = prefix[i];
    weft_status status = WEFT_OK;
    if (bytes)
        status =
            weft_tokenizer_encode(g->tokenizer, prompt, bytes, ids + prefix_count, room, &count);
    if (status < 0 && count > room) { /* normalising made the text longer */
        int32_t *more = wefti_realloc(ids, (size_t)(prefix_count + count + 1) * sizeof *ids);
        if (more) ids = more;
        status = more ? weft_tokenizer_encode(g->tokenizer, prompt, bytes, ids + prefix_count,
                                              count, &count)
                      : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a prompt of %lld tokens",
                                   (long long)count);
    }
    if (status < 0) {
        wefti_free(ids);
        return status;
    }
    count += prefix_count;
    if (count == 0) ids[count++] = start_token(g);
    *out = ids;
    *out_count = count;
    return WEFT_OK;
}

static weft_status set_prompt(weft_generator *g, const char *prompt, int64_t bytes,
                              weft_generation *done) {
    int32_t *ids;
    int64_t count;
    WEFT_TRY(wefti_generator_encode(g, prompt, bytes, &ids, &count));
    int64_t dropped = count > g->config.context ? count - g->config.context : 0;
    g->count = count - dropped;
    g->cached = 0;
    memcpy(g->window, ids + dropped, (size_t)g->count * sizeof *ids);
    memset(g->seen, 0, (size_t)g->choices * sizeof *g->seen);
    for (int64_t i = 0; i < count; i++) g->seen[ids[i]] = true;
    done->prompt_tokens = g->count;
    done->dropped_tokens = dropped;
    wefti_free(ids);
    return WEFT_OK;
}

/* ---- generating ---- */

weft_status wefti_generate_take(const weft_generate_options *given, weft_generate_options *o) {
    *o = weft_generate_defaults();
    WEFT_TRY(wefti_struct_take("weft_generate_options", given, o));
    WEFT_REQUIRE(o->tokens >= 1, WEFT_E_ARG, "tokens must be 1 or more, not %lld",
                 (long long)o->tokens);
    WEFT_REQUIRE(o->temperature >= 0 && o->temperature <= 1e6, WEFT_E_ARG,
                 "temperature must be from 0 (greedy) to 1e6, not %g", o->temperature);
    WEFT_REQUIRE(o->top_k >= 0, WEFT_E_ARG, "top_k must be 0 (all) or more, not %lld",
                 (long long)o->top_k);
    WEFT_REQUIRE(o->top_p >= 0 && o->top_p <= 1, WEFT_E_ARG,
                 "top_p must be from 0 to 1 (both: all tokens), not %g", o->top_p);
    WEFT_REQUIRE(o->min_p >= 0 && o->min_p <= 1, WEFT_E_ARG,
                 "min_p must be from 0 (all tokens) to 1, not %g", o->min_p);
    WEFT_REQUIRE(o->repetition_penalty == 0 ||
                     (o->repetition_penalty >= 1e-6 && o->repetition_penalty <= 1e6),
                 WEFT_E_ARG, "repetition_penalty must be 0 (none) or from 1e-6 to 1e6, not %g",
                 o->repetition_penalty);
    return WEFT_OK;
}

/* Chooses the next token and shows its text; *out_last: it ends the text. */
static weft_status next_token(weft_generator *g, const weft_generate_options *o,
                              const float *logits, wefti_stops *stops, weft_generation *done,
                              bool *out_last) {
    int32_t token;
    int64_t bytes = 0;
    WEFT_TRY(wefti_choose_token(logits, g->choices, g->seen, o, done->tokens, g->scratch, &token));
    done->tokens++;
    done->ended = *out_last = wefti_generator_is_end(g, token);
    if (done->ended) return WEFT_OK;
    const char *text = weft_tokenizer_token(g->tokenizer, token, &bytes);
    if (text && o->text) o->text(o->context, text, bytes);
    g->seen[token] = true;
    append(g, token);
    WEFT_TRY(wefti_stops_add(stops, text, text ? bytes : 0, &done->stop_text));
    *out_last = done->stop_text >= 0;
    return WEFT_OK;
}

/* Whether some rank was asked to stop. */
weft_status wefti_generator_stopped(const weft_generator *g, const weft_generate_options *o,
                                    bool *out) {
    return wefti_party_any(&g->party, o->stop && *o->stop, out);
}

static weft_status generate(weft_generator *g, const weft_generate_options *o, float *logits,
                            wefti_stops *stops, weft_generation *done) {
    bool last = false;
    while (!last && done->tokens < o->tokens) {
        WEFT_TRY(wefti_generator_stopped(g, o, &last));
        if (last) break;
        if (done->tokens > 0) WEFT_TRY(run_window(g, &logits));
        WEFT_TRY(next_token(g, o, logits, stops, done, &last));
    }
    return WEFT_OK;
}

/* With the prompt in the window. */
static weft_status run_prompt(weft_generator *g, const weft_generate_options *o, wefti_stops *stops,
                              weft_generation *done) {
    float *logits;
    double start = wefti_now_s();
    WEFT_TRY(run_window(g, &logits));
    double ready = wefti_now_s();
    WEFT_TRY(generate(g, o, logits, stops, done));
    done->prompt_seconds = ready - start;
    done->seconds = wefti_now_s() - ready;
    return WEFT_OK;
}

/* What decides about tokens, of rank 0. */
typedef struct numbers {
    int64_t tokens, top_k;
    double repetition_penalty, temperature, top_p, min_p;
    uint64_t seed;
} numbers;

/* Each rank looks for the stop texts itself. */
static wefti_job_fact stops_of(const weft_generate_options *o) {
    wefti_job_fact stops = {
        .name = "stop texts", .verb = "has", .advice = "all ranks have the same stop texts"};
    uint64_t digest = 0;
    for (int64_t i = 0; i < o->stop_count && o->stop_texts; i++)
        digest = 31 * digest + (o->stop_texts[i] ? wefti_stream_of(o->stop_texts[i]) : 0);
    (void)snprintf(stops.text, sizeof stops.text, "%lld stop texts of digest %016llx",
                   (long long)o->stop_count, (unsigned long long)digest);
    return stops;
}

weft_status wefti_generate_share(const weft_generator *g, weft_status status,
                                 weft_generate_options *o) {
    const wefti_job_fact stops = stops_of(o);
    WEFT_TRY(wefti_party_same(&g->party, status, &stops, 1));
    numbers n = {.tokens = o->tokens,
                 .top_k = o->top_k,
                 .repetition_penalty = o->repetition_penalty,
                 .temperature = o->temperature,
                 .top_p = o->top_p,
                 .min_p = o->min_p,
                 .seed = o->seed};
    WEFT_TRY(wefti_party_broadcast(&g->party, WEFT_OK, &n, sizeof n));
    o->tokens = n.tokens;
    o->top_k = n.top_k;
    o->repetition_penalty = n.repetition_penalty;
    o->temperature = n.temperature;
    o->top_p = n.top_p;
    o->min_p = n.min_p;
    o->seed = n.seed;
    return WEFT_OK;
}

static weft_status run(weft_generator *g, const char *prompt, int64_t bytes,
                       const weft_generate_options *o, weft_generation *done) {
    wefti_stops stops = {0};
    char *text = g->party.follows ? NULL : (char *)prompt; /* rank 0's, on all ranks */
    weft_status status = wefti_party_share_text(&g->party, WEFT_OK, &text, &bytes);
    if (status >= 0)
        status = wefti_party_agree(
            &g->party, wefti_stops_open(&stops, o->stop_texts, o->stop_count, text, bytes));
    if (status >= 0) status = wefti_party_agree(&g->party, set_prompt(g, text, bytes, done));
    if (status >= 0) status = run_prompt(g, o, &stops, done);
    wefti_stops_close(&stops);
    if (g->party.follows) wefti_free(text);
    return status;
}

static weft_status take_call(const weft_generator *g, const char *prompt, int64_t prompt_bytes,
                             const weft_generate_options *options, weft_generate_options *own) {
    WEFT_REQUIRE(options && (prompt || prompt_bytes == 0) && prompt_bytes >= 0, WEFT_E_ARG,
                 "generating needs a generator, a prompt and options");
    WEFT_REQUIRE(!g->rows, WEFT_E_ARG,
                 "the generator was opened for several texts at once: use weft_generator_run_many");
    return wefti_generate_take(options, own);
}

weft_status weft_generator_run(weft_generator *g, const char *prompt, int64_t prompt_bytes,
                               const weft_generate_options *options, weft_generation *out) {
    weft_generation done = {.stop_text = -1};
    weft_generate_options own = weft_generate_defaults();
    WEFT_REQUIRE(g, WEFT_E_ARG, "generating needs a generator");
    const weft_status taken = take_call(g, prompt, prompt_bytes, options, &own);
    WEFT_TRY(wefti_party_tell(&g->party, wefti_generate_share(g, taken, &own)));
    WEFT_TRY(wefti_party_tell(&g->party, run(g, prompt, prompt_bytes, &own, &done)));
    if (out) *out = done;
    return WEFT_OK;
}
