/* From a job and a checkpoint to a session for forward passes. See trained.h. */
#include "infer/trained.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "interop/pretrained.h"
#include "train/save/save.h"

/* Rank 0 looks for the weights, and checks them if they are a step. All ranks get the path. */
static weft_status find_weights(wefti_trained *m, const char *checkpoint) {
    wefti_training *t = &m->training;
    char *path = NULL, *note = NULL;
    weft_status status = WEFT_OK;
    if (!t->party.follows) status = wefti_pretrained_path(checkpoint, &path, &note);
    if (note) wefti_training_note(t, "%s", note);
    if (status >= 0 && path) {
        if (strlen(path) < sizeof m->path)
            (void)snprintf(m->path, sizeof m->path, "%s", path);
        else
            status = WEFT_RAISE(WEFT_E_ARG, "the path of the checkpoint has more than %zu bytes",
                                sizeof m->path - 1);
    }
    wefti_free(note);
    wefti_free(path);
    return wefti_party_broadcast(&t->party, status, m->path, sizeof m->path);
}

weft_status wefti_trained_begin(wefti_trained *m, weft_world *world, const weft_job *job,
                                const char *checkpoint, const weft_infer_events *events) {
    const bool follows = world && weft_world_rank(world) > 0;
    *m = (wefti_trained){.job = *job, .events = {.context = events->context, .stop = events->stop}};
    if (!follows) m->events.note = events->note;
    m->training = (wefti_training){.job = &m->job, .events = &m->events, .result = &m->result};
    WEFT_TRY(wefti_training_join(&m->training, world));
    WEFT_TRY(wefti_training_take_key(&m->training, false));
    WEFT_TRY(find_weights(m, checkpoint));
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
    weft_model_config *config = &m->training.model.config;
    weft_job_model given = m->job.model;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *at(&m->job.model, sizes[i].of_job) = 0;
    WEFT_TRY(wefti_training_configure(&m->training));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t wanted = *at(&given, sizes[i].of_job), own = *at(config, sizes[i].of_model);
        WEFT_REQUIRE(!wanted || wanted == own, WEFT_E_ARG,
                     "the job's model.%s is %lld, but the model in %s has %lld", sizes[i].name,
                     (long long)wanted, m->path, (long long)own);
    }
    return WEFT_OK;
}

/* The plan's microbatches and optimizer states have no meaning here. */
static weft_status build_session(wefti_trained *m, weft_model_use use, int64_t batch,
                                 int64_t length) {
    wefti_training *t = &m->training;
    weft_session_options o = wefti_training_options(t);
    if (!length && t->model.objective->is_language) length = m->job.model.context;
    o.optimizer = (weft_optimizer){.kind = WEFT_NO_OPTIMIZER};
    o.clip = 0;
    o.recovery = o.buddy = false;
    o.microbatches = 1;
    WEFT_TRY(weft_model_build(&t->model.config, use, batch ? batch : t->batch.micro, length,
                              m->job.train.precision, &t->model.eval_graph));
    return wefti_session_create(t->model.eval_graph, &o, &t->session);
}

weft_status wefti_trained_open(wefti_trained *m, weft_model_use use, int64_t batch,
                               int64_t length) {
    wefti_training *t = &m->training;
    WEFT_TRY(wefti_training_same_job(t));
    WEFT_TRY(configure(m));
    WEFT_REQUIRE(!t->model.objective->is_language || length <= t->model.config.context, WEFT_E_ARG,
                 "samples of %lld tokens are longer than the context of %s, %lld tokens",
                 (long long)length, m->path, (long long)t->model.config.context);
    if (use == WEFT_USE_EVAL) WEFT_TRY(wefti_training_open_data(t));
    wefti_training_limit_memory(t);
    WEFT_TRY(wefti_training_graph(t)); /* plans are made for the graph that is trained */
    WEFT_TRY(build_session(m, use, batch, length));
    return wefti_pretrained_load_parts(&t->party, t->session, &t->model.config, m->path);
}

void wefti_trained_close(wefti_trained *m) {
    wefti_training_close(&m->training);
}
