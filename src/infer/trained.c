/* From a job and a checkpoint to a session for forward passes. See trained.h. */
#include "infer/trained.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "interop/pretrained.h"
#include "partition/partition.h"
#include "setup/setup.h"

weft_status wefti_trained_join(wefti_trained *m, weft_world *world, const weft_job *job,
                               const weft_infer_events *events) {
    const bool follows = world && weft_world_rank(world) > 0;
    *m = (wefti_trained){.job = *job, .stop = events->stop};
    m->setup = (wefti_setup){.note = follows ? NULL : events->note, .context = events->context};
    m->built = (wefti_built){.setup = &m->setup, .job = &m->job};
    return wefti_setup_join(&m->setup, world);
}

weft_status wefti_trained_begin(wefti_trained *m, weft_world *world, const weft_job *job,
                                const char *checkpoint, const weft_infer_events *events) {
    WEFT_TRY(wefti_trained_join(m, world, job, events));
    WEFT_TRY(wefti_built_take_key(&m->built, false));
    char *note = NULL;
    const weft_status found =
        wefti_pretrained_path_across(&m->setup.party, checkpoint, &m->path, &note);
    if (note) wefti_setup_note(&m->setup, "%s", note);
    wefti_free(note);
    WEFT_TRY(found);
    m->job.model.from = m->path;
    m->job.model.config = "";
    m->job.model.lora = (weft_job_lora){.from = ""}; /* the checkpoint tells */
    return WEFT_OK;
}

/* Sizes that a job may set, and the model's own. */
#define SIZE(name)                                                                                 \
    { #name, offsetof(weft_job_model, name), offsetof(weft_model_config, name) }
static const struct {
    const char *name;
    size_t of_job, of_model;
} sizes[] = {SIZE(layers),   SIZE(hidden), SIZE(heads),   SIZE(kv_heads),
             SIZE(head_dim), SIZE(window), SIZE(ffn),     SIZE(vocab),
             SIZE(classes),  SIZE(patch),  SIZE(experts), SIZE(experts_per_token)};
#undef SIZE

static int64_t *at(void *base, size_t offset) {
    return (int64_t *)(void *)((char *)base + offset);
}

/* The model is the checkpoint's. A job of another model is refused. */
static weft_status configure(wefti_trained *m) {
    weft_model_config *config = &m->built.model.config;
    weft_job_model given = m->job.model;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *at(&m->job.model, sizes[i].of_job) = 0;
    WEFT_TRY(wefti_built_configure(&m->built));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t wanted = *at(&given, sizes[i].of_job), own = *at(config, sizes[i].of_model);
        WEFT_REQUIRE(!wanted || wanted == own, WEFT_E_ARG,
                     "the job's model.%s is %lld, but the model in %s has %lld", sizes[i].name,
                     (long long)wanted, m->path, (long long)own);
    }
    return WEFT_OK;
}

/* The graph of the passes: model.eval_graph. Then decides what memory.offload: auto moves. */
static weft_status build_graph(wefti_built *b, weft_model_use use, int64_t batch, int64_t length) {
    const weft_session_options o = wefti_built_forward_options(b);
    if (!length && b->model.objective->is_language) length = b->job->model.context;
    WEFT_TRY(weft_model_build(&b->model.config, use, batch ? batch : b->batch.micro, length,
                              b->job->train.precision, &b->model.eval_graph));
    return wefti_built_offload(b, &o, &b->model.eval_graph, 1);
}

static weft_status build_session(wefti_built *b) {
    const weft_session_options o = wefti_built_forward_options(b);
    return wefti_session_create(b->model.eval_graph, &o, &b->session);
}

static weft_status tell_unmatched(const wefti_trained *m) {
    const wefti_built *b = &m->built;
    char *lines;
    WEFT_TRY(wefti_plan_unmatched_moves(wefti_built_plan(b), b->model.eval_graph, &lines));
    wefti_setup_note_lines(&m->setup, lines);
    return WEFT_OK;
}

weft_status wefti_trained_open(wefti_trained *m, weft_model_use use, int64_t batch,
                               int64_t length) {
    wefti_built *b = &m->built;
    WEFT_TRY(wefti_built_same_job(b));
    WEFT_TRY(wefti_built_try_disk(b, false));
    WEFT_TRY(configure(m));
    WEFT_REQUIRE(!b->model.objective->is_language || length <= b->model.config.context, WEFT_E_ARG,
                 "samples of %lld tokens are longer than the context of %s, %lld tokens",
                 (long long)length, m->path, (long long)b->model.config.context);
    if (use == WEFT_USE_EVAL) WEFT_TRY(wefti_built_open_data(b));
    wefti_built_limit_memory(b);
    WEFT_TRY(wefti_built_graph(b)); /* plans are made for the graph that is trained */
    if (use == WEFT_USE_EVAL) wefti_built_hold_batches(b, false);
    WEFT_TRY(build_graph(b, use, batch, length));
    WEFT_TRY(build_session(b));
    WEFT_TRY(wefti_built_fits_machine(b));
    WEFT_TRY(tell_unmatched(m));
    WEFT_TRY(wefti_pretrained_load_parts(&b->setup->party, b->session, &b->model.config, m->path));
    return wefti_trained_tell_lent(&m->setup, b->session);
}

weft_status wefti_lent_note(const weft_session *s, char **out) {
    char lent[32], all[32];
    const weft_session_memory m = weft_session_memory_of(s);
    *out = NULL;
    if (!m.lent_bytes) return WEFT_OK;
    *out = wefti_format("on the disk: %s of %s for each device are read from the checkpoint's own "
                        "files, without a copy",
                        wefti_bytes_text(m.lent_bytes, lent), wefti_bytes_text(m.disk_bytes, all));
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a note");
    return WEFT_OK;
}

weft_status wefti_trained_tell_lent(const wefti_setup *setup, const weft_session *s) {
    char *lines;
    WEFT_TRY(wefti_lent_note(s, &lines));
    wefti_setup_note_lines(setup, lines);
    return WEFT_OK;
}

weft_status wefti_trained_stops(const wefti_trained *m, bool *out) {
    return wefti_party_any(&m->setup.party, m->stop && *m->stop, out);
}

void wefti_trained_close(wefti_trained *m) {
    wefti_built_close(&m->built);
    wefti_setup_close(&m->setup);
    wefti_free(m->path);
}
