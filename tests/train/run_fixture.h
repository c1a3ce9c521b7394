/* Shared parts of the tests of training runs: small jobs over data of their own, a recorder of a
 * run's reports, and comparison of its files. */
#ifndef WEFT_TESTS_TRAIN_RUN_FIXTURE_H
#define WEFT_TESTS_TRAIN_RUN_FIXTURE_H

#include "data/data_fixture.h"

#include <math.h>

#include "checkpoint/checkpoint.h"
#include "weft/train.h"

enum { RUN_STEPS = 30, MAX_STEPS = 64, MAX_NOTES = 8, MAX_WORDS = 40 };

/* ---- jobs ---- */

typedef struct words {
    char text[MAX_WORDS][256];
    int count;
} words;

static inline void add_word(words *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void add_word(words *w, const char *format, ...) {
    va_list args;
    assert_true(w->count < MAX_WORDS);
    va_start(args, format);
    (void)vsnprintf(w->text[w->count++], sizeof w->text[0], format, args);
    va_end(args);
}

static inline void add_words(words *w, const char *const *more) {
    for (; more && *more; more++) add_word(w, "%s", *more);
}

static inline weft_job *job_of(const words *w) {
    const char *list[MAX_WORDS];
    for (int i = 0; i < w->count; i++) list[i] = w->text[i];
    weft_job *job;
    ASSERT_OK(weft_job_load(NULL, list, w->count, &job));
    return job;
}

/* Text in which a byte tells something about the next: 4 KiB. */
static inline const char *text_file(void) {
    static char text[4096];
    static const char *const parts[] = {"the ", "weft ",  "runs ", "over ",
                                        "and ", "under ", "warp\n"};
    size_t used = 0;
    uint64_t next = 1;
    while (used + 8 < sizeof text) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        const char *part = parts[(next >> 33) % 7];
        memcpy(text + used, part, strlen(part));
        used += strlen(part);
    }
    return put_file("text", text, used);
}

/* A tokenizer of single letters: letter i of `letters` is token i. */
static inline const char *put_tokenizer(const char *name, const char *letters) {
    char json[1024];
    int used = snprintf(json, sizeof json, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int i = 0; letters[i]; i++)
        used += snprintf(json + used, sizeof json - (size_t)used, "%s\"%c\": %d", i ? ", " : "",
                         letters[i], i);
    used += snprintf(json + used, sizeof json - (size_t)used,
                     "}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                     "\"add_prefix_space\": false, \"use_regex\": true}, "
                     "\"decoder\": {\"type\": \"ByteLevel\"}}");
    return put_file(name, json, (size_t)used);
}

/* 64 images of 1 x 8 x 8. The label (0 to 3) is the bright quadrant. */
static inline const char *image_file(void) {
    enum { IMAGES = 64, SIDE = 8 };
    buffer images = {.count = 0}, labels = {.count = 0};
    put_big(&images, 0x803, 4);
    put_big(&images, IMAGES, 4);
    put_big(&images, SIDE, 4);
    put_big(&images, SIDE, 4);
    put_big(&labels, 0x801, 4);
    put_big(&labels, IMAGES, 4);
    for (int i = 0; i < IMAGES; i++) {
        int label = i % 4;
        put_big(&labels, (uint64_t)label, 1);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                int quadrant = (y >= SIDE / 2) * 2 + (x >= SIDE / 2);
                put_big(&images,
                        (uint64_t)((i * 7 + x * 3 + y * 5) % 64 + (quadrant == label) * 128), 1);
            }
    }
    (void)put_file("labels-idx1-ubyte", labels.bytes, (size_t)labels.count);
    return put_file("images-idx3-ubyte", images.bytes, (size_t)images.count);
}

/* A language model of some thousand parameters. */
static inline words tiny_gpt2(void) {
    words w = {.count = 0};
    add_word(&w, "model.family=gpt2");
    add_word(&w, "model.layers=2");
    add_word(&w, "model.hidden=16");
    add_word(&w, "model.heads=2");
    add_word(&w, "model.context=8");
    add_word(&w, "data.path=%s", text_file());
    add_word(&w, "train.steps=%d", RUN_STEPS);
    add_word(&w, "train.batch=4");
    add_word(&w, "train.optimizer.lr=0.01");
    add_word(&w, "train.eval_every=0");
    add_word(&w, "train.eval_batches=2");
    add_word(&w, "device.threads=1");
    return w;
}

/* A network with states (running means and variances) and nothing else that is slow. */
static inline words tiny_resnet(void) {
    words w = {.count = 0};
    add_word(&w, "model.family=resnet18");
    add_word(&w, "model.hidden=4");
    add_word(&w, "data.path=%s", image_file());
    add_word(&w, "data.validation=0.25");
    add_word(&w, "train.steps=%d", RUN_STEPS);
    add_word(&w, "train.batch=4");
    add_word(&w, "train.optimizer.lr=0.003");
    add_word(&w, "train.eval_every=0");
    add_word(&w, "device.threads=1");
    return w;
}

static inline words tiny_mlp(void) {
    words w = {.count = 0};
    add_word(&w, "model.family=mlp");
    add_word(&w, "model.hidden=16");
    add_word(&w, "data.path=%s", image_file());
    add_word(&w, "data.validation=0.25");
    add_word(&w, "train.steps=%d", RUN_STEPS);
    add_word(&w, "train.batch=8");
    add_word(&w, "train.eval_every=0");
    add_word(&w, "device.threads=1");
    return w;
}

/* ---- runs ---- */

typedef struct record {
    double losses[MAX_STEPS + 1], rates[MAX_STEPS + 1], norms[MAX_STEPS + 1];
    double validations[MAX_STEPS + 1];
    int64_t first, last; /* steps that ran */
    int64_t predicted, programs;
    double flops; /* of a step */
    int starts, checkpoints, validated, notes;
    int64_t checkpoint_steps[MAX_STEPS];
    char note[MAX_NOTES][512];
    int64_t stop_after; /* set the stop flag in this step's report; 0: never */
    volatile int stop;
    weft_train_result result;
} record;

static inline void on_start(void *context, const weft_train_start *s) {
    record *r = context;
    r->starts++;
    r->predicted = s->predicted_peak_bytes;
    r->programs = s->program_bytes;
    r->flops = s->flops_per_step;
}
static inline void on_step(void *context, const weft_train_step *s) {
    record *r = context;
    assert_in_range(s->step, 1, MAX_STEPS);
    r->losses[s->step] = s->loss;
    r->rates[s->step] = s->learning_rate;
    r->norms[s->step] = s->gradient_norm;
    if (!r->first) r->first = s->step;
    r->last = s->step;
    if (r->stop_after == s->step) r->stop = 1;
}
static inline void on_validation(void *context, const weft_train_validation *v) {
    record *r = context;
    r->validations[v->step] = v->loss;
    r->validated++;
}
static inline void on_checkpoint(void *context, int64_t step, const char *path) {
    record *r = context;
    (void)path;
    if (r->checkpoints < MAX_STEPS) r->checkpoint_steps[r->checkpoints++] = step;
}
static inline void on_note(void *context, const char *text) {
    record *r = context;
    if (r->notes < MAX_NOTES)
        (void)snprintf(r->note[r->notes++], sizeof r->note[0], "%.500s", text);
}

static inline weft_status run_job(const weft_job *job, record *r) {
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = r, .start = on_start, .step = on_step,
                    .validation = on_validation, .checkpoint = on_checkpoint, .note = on_note,
                    .stop = &r->stop);
    return weft_train_run(job, &events, &r->result);
}

static inline weft_status run_words(const words *w, record *r) {
    weft_job *job = job_of(w);
    weft_status status = run_job(job, r);
    weft_job_free(job);
    return status;
}

/* The words of `base` with `more` behind them (later words win). */
static inline weft_status run_with(const words *base, const char *const *more, record *r) {
    words w = *base;
    add_words(&w, more);
    return run_words(&w, r);
}
#define WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline const char *dir_word(const char *name) {
    static char text[8][300];
    static int next;
    char *t = text[next++ & 7];
    (void)snprintf(t, sizeof text[0], "checkpoint.dir=%s", in_root(name));
    return t;
}

/* ---- what runs leave behind ---- */

static inline const char *step_path(const char *dir, int64_t step) {
    static char paths[4][600];
    static int next;
    char *p = paths[next++ & 3];
    (void)snprintf(p, sizeof paths[0], "%s/step-%012lld", in_root(dir), (long long)step);
    return p;
}

/* All tensors of two steps, bit for bit. */
static inline void assert_same_checkpoint(const char *path_a, const char *path_b) {
    wefti_checkpoint *a, *b;
    ASSERT_OK(wefti_checkpoint_open(path_a, WEFTI_CHECKPOINT_LATEST, &a, NULL));
    ASSERT_OK(wefti_checkpoint_open(path_b, WEFTI_CHECKPOINT_LATEST, &b, NULL));
    assert_true(wefti_checkpoint_count(a) > 0);
    assert_int_equal(wefti_checkpoint_count(a), wefti_checkpoint_count(b));
    for (int64_t i = 0; i < wefti_checkpoint_count(a); i++) {
        const wefti_checkpoint_entry *x = wefti_checkpoint_at(a, i);
        const wefti_checkpoint_entry *y = wefti_checkpoint_find(b, x->role, x->name);
        unsigned char *of_x, *of_y;
        ASSERT_OK(wefti_reader_take(x->reader, x->at, x->bytes, &of_x));
        if (!y || x->bytes != y->bytes)
            fail_msg("%s is another in %s and %s", x->name, path_a, path_b);
        ASSERT_OK(wefti_reader_take(y->reader, y->at, y->bytes, &of_y));
        if (memcmp(of_x, of_y, (size_t)x->bytes) != 0)
            fail_msg("%s differs between %s and %s", x->name, path_a, path_b);
        wefti_free(of_x);
        wefti_free(of_y);
    }
    wefti_checkpoint_close(a);
    wefti_checkpoint_close(b);
}

static inline int64_t steps_in(const char *dir, int64_t *out_last) {
    int64_t *steps, count;
    ASSERT_OK(wefti_checkpoint_list(in_root(dir), &steps, &count));
    if (out_last) *out_last = count ? steps[count - 1] : -1;
    wefti_free(steps);
    return count;
}

static inline void assert_note(const record *r, const char *part) {
    for (int i = 0; i < r->notes; i++)
        if (has_facts(r->note[i], part)) return;
    fail_msg("no note says \"%s\"; the first of %d: %s", part, r->notes,
             r->notes ? r->note[0] : "");
}

#endif
