/* Outputs: every family on every kind of split has the logits of one device, in one process and in
 * a world; any number of samples, and shorter ones; npy files; what does not fit is refused. */
#include "infer_fixture.h"

#include "infer/infer.h"

enum { MOST_INPUT = 12 * 144, MOST_OUTPUT = 12 * 8 * 300, SAMPLES = 6 };

/* One run of a family on one device, and inputs for it. */
typedef struct trial {
    const family *f;
    char checkpoint[600];
    int64_t samples, length, each; /* each: elements of the output of a sample */
    unsigned char input[MOST_INPUT * 4];
    float *one; /* the output on one device */
} trial;

/* Tokens below 256 or pixels, the same in each test. */
static void fill(trial *t, int64_t samples, int64_t length, const weft_desc *input) {
    const int64_t elems = samples * (length ? length : weft_desc_elems(input));
    assert_in_range(elems, 1, MOST_INPUT);
    t->samples = samples;
    t->length = length;
    for (int64_t i = 0; i < elems; i++) {
        const uint32_t dice = wefti_philox_u32(9, 4, (uint64_t)i);
        if (length)
            ((int32_t *)(void *)t->input)[i] = (int32_t)(dice % 256);
        else
            ((float *)(void *)t->input)[i] = (float)(dice % 256) / 255;
    }
}

static weft_status open_on(weft_world *world, const trial *t, const weft_job *job, int64_t batch,
                           weft_infer **out) {
    const weft_infer_options o =
        WEFT_STRUCT(weft_infer_options, .checkpoint = t->checkpoint, .batch = batch);
    return weft_infer_open(world, job, &o, out);
}

static weft_status run_on(weft_world *world, const trial *t, const weft_job *job, int64_t batch,
                          float *output, int *out_devices) {
    weft_infer *model;
    weft_status status = open_on(world, t, job, batch, &model);
    if (status < 0) return status;
    *out_devices = weft_infer_info_of(model).devices;
    status = weft_infer_run(model, t->samples, t->length, t->input, output);
    weft_infer_close(model);
    return status;
}

static void assert_near(const trial *t, const float *many, const char *what) {
    double largest = 0;
    for (int64_t i = 0; i < t->samples * t->each; i++)
        largest = fmax(largest, fabs((double)t->one[i]));
    assert_true(largest > 0);
    for (int64_t i = 0; i < t->samples * t->each; i++)
        if (!(fabs((double)many[i] - (double)t->one[i]) <= 1e-5 * largest))
            fail_msg("%s, %s: logit %d is %.9g, on one device %.9g; the largest is %g", t->f->name,
                     what, (int)i, (double)many[i], (double)t->one[i], largest);
}

static trial *trial_of(const family *f) {
    record run = {.first = 0};
    int devices;
    trial *t = calloc(1, sizeof *t);
    t->f = f;
    (void)snprintf(t->checkpoint, sizeof t->checkpoint, "%s", train(f, &run));
    weft_job *job = job_on(f, NULL);
    weft_infer *model;
    ASSERT_OK(open_on(NULL, t, job, 0, &model));
    weft_infer_info info = weft_infer_info_of(model);
    assert_int_equal(info.batch, 4);
    assert_int_equal(info.causal, f->language && strcmp(f->name, "bert") != 0);
    t->each = weft_desc_elems(&info.output);
    fill(t, SAMPLES, f->language ? info.input.shape[0] : 0, &info.input);
    weft_infer_close(model);
    t->one = calloc((size_t)(MOST_OUTPUT), sizeof *t->one);
    ASSERT_OK(run_on(NULL, t, job, 0, t->one, &devices));
    assert_int_equal(devices, 1);
    weft_job_free(job);
    return t;
}

static void trial_end(trial *t) {
    ASSERT_OK(wefti_remove_tree(in_root(t->f->name)));
    free(t->one);
    free(t);
}

/* ---- every split ---- */

/* A report before anything loads has the peaks of the loaded model, of each device, and its weights
 * and layouts. */
static void assert_was_foreseen(const trial *t, const weft_job *job, const weft_infer *model,
                                const char *what) {
    weft_infer_report *r;
    weft_session *s = model->model.built.session;
    if (weft_job_infer_report(job, 0, t->length, &r) < 0)
        fail_msg("%s, %s: %s", t->f->name, what, weft_error_message());
    assert_int_equal(r->devices, weft_session_devices(s));
    for (int rank = 0; rank < r->devices; rank++) {
        int64_t predicted, observed, weights = 0;
        const wefti_program *p = wefti_session_program_of(s, 0, rank);
        ASSERT_OK(weft_session_device_memory(s, rank, &predicted, &observed));
        if (r->ranks[rank].peak_bytes != observed || predicted != observed)
            fail_msg("%s, %s: rank %d uses %lld bytes, not %lld", t->f->name, what, rank,
                     (long long)observed, (long long)r->ranks[rank].peak_bytes);
        for (int32_t i = 0; i < p->tensor_count; i++)
            if (p->tensors[i].role == WEFTI_TENSOR_PARAM ||
                p->tensors[i].role == WEFTI_TENSOR_STATE)
                weights += weft_desc_bytes(&p->tensors[i].desc);
        assert_int_equal(r->ranks[rank].weight_bytes, weights);
    }
    int64_t listed = 0, parameters = 0;
    for (int i = 0; i < r->tensor_count; i++) {
        assert_in_range(r->tensors[i].ranks, 1, r->devices);
        listed += weft_desc_elems(&r->tensors[i].whole);
    }
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, i, &info));
        if (info.role == WEFT_ROLE_PARAM || info.role == WEFT_ROLE_STATE)
            parameters += weft_desc_elems(&info.desc);
    }
    assert_int_equal(listed, parameters);
    weft_infer_report_free(r);
}

static void on_plan(const trial *t, const split *p) {
    float *many = calloc((size_t)MOST_OUTPUT, sizeof *many);
    weft_job *job = job_on(t->f, p);
    weft_infer *model;
    weft_status status = open_on(NULL, t, job, 0, &model);
    if (status >= 0) status = weft_infer_run(model, t->samples, t->length, t->input, many);
    if (status < 0) fail_msg("%s, %s: %s", t->f->name, p->name, weft_error_message());
    assert_int_equal(weft_infer_info_of(model).devices, p->devices);
    assert_near(t, many, p->name);
    assert_was_foreseen(t, job, model, p->name);
    weft_infer_close(model);
    weft_job_free(job);
    free(many);
}

typedef struct member {
    const trial *t;
    const weft_job *job;
    float *output;
    int devices;
} member;

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    return run_on(world, m->t, m->job, 0, m->output, &m->devices);
}

static void in_world(const trial *t, const split *p) {
    member members[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    weft_job *job = job_on(t->f, p);
    for (int r = 0; r < p->devices; r++)
        members[r] = (member){t, job, calloc((size_t)MOST_OUTPUT, sizeof(float)), 0};
    run_world(p->devices, run_member, members, sizeof *members, ranks);
    assert_all_ok(ranks, p->devices, t->f->name);
    for (int r = 0; r < p->devices; r++) {
        assert_near(t, members[r].output, p->name);
        assert_memory_equal(members[r].output, members[0].output,
                            (size_t)(t->samples * t->each) * sizeof(float));
    }
    for (int r = 0; r < p->devices; r++) free(members[r].output);
    weft_job_free(job);
}

/* accept 32(a), 32(b) */
static void every_split_has_the_logits_of_one_device(void **state) {
    (void)state;
    for (int i = 0; i < FAMILY_COUNT; i++) {
        const family *f = &families[i];
        trial *t = trial_of(f);
        for (int k = 0; k < PLAN_COUNT; k++) on_plan(t, &plans[k]);
        in_world(t, &plans[(i + 2) % PLAN_COUNT]);
        const split tensor = tensor_split(f), expert = expert_split(), sequence = sequence_split();
        if (f->language) on_plan(t, &sequence);
        if (f->language) in_world(t, &sequence);
        if (f->tensor_parallel) on_plan(t, &tensor);
        if (f->tensor_parallel) in_world(t, &tensor);
        if (f->experts) on_plan(t, &expert);
        if (f->experts) in_world(t, &expert);
        trial_end(t);
    }
}

/* ---- the numbers themselves ---- */

/* The mean cross entropy of the logits is the loss that the evaluation computes. */
static void logits_have_the_loss_of_the_evaluation(void **state) {
    (void)state;
    enum { WINDOWS = 12, LENGTH = 8, VOCAB = 256 };
    trial *t = trial_of(&families[0]);
    const char *text = text_file();
    char *bytes;
    int64_t count;
    ASSERT_OK(wefti_file_read(text, 1 << 20, &bytes, &count));
    const char *part = put_file("part", bytes, WINDOWS * LENGTH + 1);
    int32_t tokens[WINDOWS * LENGTH];
    for (int i = 0; i < WINDOWS * LENGTH; i++) tokens[i] = (unsigned char)bytes[i];
    float *logits = calloc((size_t)WINDOWS * LENGTH * VOCAB, sizeof *logits);
    weft_job *job = job_on(t->f, NULL);
    weft_infer *model;
    ASSERT_OK(open_on(NULL, t, job, 5, &model));
    assert_int_equal(weft_infer_info_of(model).batch, 5);
    ASSERT_OK(weft_infer_run(model, WINDOWS, LENGTH, tokens, logits));
    double sum = 0;
    for (int i = 0; i < WINDOWS * LENGTH; i++) {
        const float *row = logits + (size_t)i * VOCAB;
        double all = 0;
        for (int v = 0; v < VOCAB; v++) all += exp((double)row[v]);
        sum += log(all) - (double)row[(unsigned char)bytes[i + 1]];
    }
    weft_eval_result r;
    const weft_eval_options o =
        WEFT_STRUCT(weft_eval_options, .checkpoint = t->checkpoint, .data = part);
    ASSERT_OK(weft_eval_run(NULL, job, &o, &r));
    assert_int_equal(r.targets, WINDOWS * LENGTH);
    if (!near(sum / (WINDOWS * LENGTH), r.loss))
        fail_msg("%.9g from the logits, %.9g from the evaluation", sum / (WINDOWS * LENGTH),
                 r.loss);
    weft_infer_close(model);
    weft_job_free(job);
    wefti_free(bytes);
    free(logits);
    trial_end(t);
}

/* One model, called with any number of samples of any length: each sample has the bits that it has
 * in other company, and its beginning those of the whole. */
static void calls_of_any_size(void **state) {
    (void)state;
    enum { VOCAB = 256 };
    trial *t = trial_of(&families[0]);
    weft_job *job = job_on(t->f, NULL);
    weft_infer *model;
    float *out = calloc((size_t)MOST_OUTPUT, sizeof *out);
    ASSERT_OK(open_on(NULL, t, job, 3, &model));
    /* the first call starts the session */
    ASSERT_OK(weft_infer_run(model, 1, 8, t->input, out));
    TEST_SEEDS(seed, 0, 12) {
        const int64_t samples = 1 + wefti_philox_u32(seed, 1, 0) % SAMPLES,
                      length = 1 + wefti_philox_u32(seed, 1, 1) % 8;
        int32_t cut[SAMPLES * 8];
        for (int64_t s = 0; s < samples; s++)
            for (int64_t i = 0; i < length; i++)
                cut[s * length + i] = ((const int32_t *)(const void *)t->input)[s * 8 + i];
        wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, true, 0); /* nothing is allocated */
        weft_status status = weft_infer_run(model, samples, length, cut, out);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status < 0) fail_msg("seed %d: %s", (int)seed, weft_error_message());
        for (int64_t s = 0; s < samples; s++)
            for (int64_t i = 0; i < length * VOCAB; i++)
                if (!(fabs((double)out[s * length * VOCAB + i] - (double)t->one[s * t->each + i]) <=
                      1e-5))
                    fail_msg("seed %d: sample %d of %d, length %d: logit %d differs", (int)seed,
                             (int)s, (int)samples, (int)length, (int)i);
    }
    weft_infer_close(model);
    weft_job_free(job);
    free(out);
    trial_end(t);
}

/* Each allocation of opening fails once: a status, and nothing is left behind. */
static void opening_without_memory(void **state) {
    (void)state;
    trial *t = trial_of(&families[0]);
    weft_job *job = job_on(t->f, &plans[2]);
    int failures = 0;
    for (int64_t n = 0;; n += 7) {
        weft_infer *model = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        weft_status status = open_on(NULL, t, job, 0, &model);
        const bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > n;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status >= 0) weft_infer_close(model);
        if (!reached) break;
        if (status < 0) {
            assert_int_equal(status, WEFT_E_NOMEM);
            failures++;
        }
    }
    assert_true(failures > 20);
    weft_job_free(job);
    trial_end(t);
}

/* ---- files ---- */

/* An npy file of `type` ("<i4", "|u1", "<f4") with the shape in text. */
static const char *npy_file(const char *name, const char *type, const char *shape, const void *data,
                            size_t bytes) {
    static unsigned char file[128 + MOST_INPUT * 8];
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    const int used =
        snprintf((char *)file + 10, 118, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                 type, shape);
    file[10 + used] = ' ';
    file[127] = '\n';
    assert_true(bytes + 128 <= sizeof file);
    memcpy(file + 128, data, bytes);
    return put_file(name, file, 128 + bytes);
}

static void assert_file(const char *path, const char *shape, const trial *t) {
    char *bytes;
    int64_t count;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &bytes, &count));
    const int64_t begin = 10 + (unsigned char)bytes[8] + 256 * (unsigned char)bytes[9];
    assert_memory_equal(bytes, "\x93NUMPY\x01", 7);
    assert_int_equal(begin % 64, 0);
    assert_int_equal(bytes[begin - 1], '\n');
    bytes[begin - 1] = '\0';
    if (!strstr(bytes + 10, shape) || !strstr(bytes + 10, "'<f4'"))
        fail_msg("the header is %s, not %s", bytes + 10, shape);
    assert_int_equal(count - begin, t->samples * t->each * (int64_t)sizeof(float));
    float *values = malloc((size_t)(count - begin));
    memcpy(values, bytes + begin, (size_t)(count - begin));
    assert_near(t, values, path);
    free(values);
    wefti_free(bytes);
}

typedef struct file_member {
    const weft_job *job;
    weft_infer_files files;
    weft_infer_files_result result;
} file_member;

static weft_status run_files(void *context, weft_world *world) {
    file_member *m = context;
    return weft_infer_files_run(world, m->job, &m->files, &m->result);
}

static void files_of_tokens_and_images(void **state) {
    (void)state;
    static const struct {
        int family;
        const char *type, *in, *out;
        int bytes;
    } cases[] = {{0, "<i4", "6, 8", "(6, 8, 256)", 4},
                 {4, "<i4", "6, 8", "(6, 8, 257)", 4},
                 {8, "<f4", "6, 1, 8, 8", "(6, 4)", 4},
                 {8, "<f4", "6, 8, 8", "(6, 4)", 4},
                 {8, "|u1", "6, 1, 8, 8", "(6, 4)", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial *t = trial_of(&families[cases[i].family]);
        const int64_t elems = t->samples * (t->length ? t->length : 64);
        unsigned char pixels[SAMPLES * 64];
        for (int64_t k = 0; k < elems && cases[i].bytes == 1; k++)
            pixels[k] = (unsigned char)lroundf(((const float *)(const void *)t->input)[k] * 255);
        const void *data = cases[i].bytes == 1 ? (const void *)pixels : t->input;
        const char *input = npy_file("x.npy", cases[i].type, cases[i].in, data,
                                     (size_t)(elems * cases[i].bytes)),
                   *output = in_root("y.npy");
        for (int world = 0; world < 2; world++) {
            weft_job *job = job_on(t->f, world ? &plans[2] : NULL);
            file_member members[2];
            rank_of_world ranks[2];
            for (int r = 0; r < 2; r++)
                members[r] = (file_member){
                    .job = job,
                    .files = WEFT_STRUCT(weft_infer_files, .checkpoint = t->checkpoint,
                                         .input = r ? "of rank 0" : input,
                                         .output = r ? "nowhere/y" : output)};
            if (world) {
                run_world(2, run_files, members, sizeof *members, ranks);
                assert_all_ok(ranks, 2, t->f->name);
            } else {
                weft_status status = run_files(&members[0], NULL);
                if (status < 0) fail_msg("%s: %s", t->f->name, weft_error_message());
            }
            assert_int_equal(members[0].result.devices, world ? 2 : 1);
            assert_int_equal(members[0].result.shape[0], SAMPLES);
            assert_file(output, cases[i].out, t);
            assert_int_equal(remove(output), 0);
            weft_job_free(job);
        }
        trial_end(t);
    }
}

/* ---- what is refused ---- */

static void refuse_file(const trial *t, weft_status status, const char *part, const char *type,
                        const char *shape, const void *data, size_t bytes) {
    weft_job *job = job_on(t->f, NULL);
    weft_infer_files_result r;
    const weft_infer_files files = WEFT_STRUCT(
        weft_infer_files, .checkpoint = t->checkpoint,
        .input = npy_file("bad.npy", type, shape, data, bytes), .output = in_root("none.npy"));
    ASSERT_FAILS(status, part, weft_infer_files_run(NULL, job, &files, &r));
    assert_false(wefti_exists(in_root("none.npy")));
    weft_job_free(job);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    trial *t = trial_of(&families[0]);
    int32_t tokens[SAMPLES * 9] = {0};
    float out[SAMPLES * 256];
    refuse_file(t, WEFT_E_SHAPE, "bad.npy|i4 [6]", "<i4", "6,", tokens, 24);
    refuse_file(t, WEFT_E_SHAPE, "bad.npy|gpt2|f4 [6, 8]", "<f4", "6, 8", tokens, 192);
    refuse_file(t, WEFT_E_SHAPE, "bad.npy", "<i4", "0, 8", tokens, 0);
    refuse_file(t, WEFT_E_ARG, "9|8", "<i4", "6, 9", tokens, 216);
    refuse_file(t, WEFT_E_CORRUPT, "bad.npy", "<i4", "6, 8", tokens, 100);
    tokens[10] = 256;
    refuse_file(t, WEFT_E_ARG, "bad.npy|token 2|sample 1|256", "<i4", "6, 8", tokens, 192);
    tokens[10] = -1;
    refuse_file(t, WEFT_E_ARG, "token 2|sample 1", "<i4", "6, 8", tokens, 192);
    tokens[10] = 0;
    weft_job *job = job_on(t->f, NULL);
    weft_infer_files_result r;
    weft_infer_files files =
        WEFT_STRUCT(weft_infer_files, .checkpoint = t->checkpoint, .input = in_root("nothere.npy"),
                    .output = in_root("none.npy"));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "nothere.npy", weft_infer_files_run(NULL, job, &files, &r));
    files.input = npy_file("good.npy", "<i4", "6, 8", tokens, 192);
    files.output = in_root("nodir/none.npy");
    assert_true(weft_infer_files_run(NULL, job, &files, &r) < 0);
    weft_infer *model;
    ASSERT_OK(open_on(NULL, t, job, 0, &model));
    ASSERT_FAILS(WEFT_E_ARG, "samples", weft_infer_run(model, 0, 8, tokens, out));
    ASSERT_FAILS(WEFT_E_ARG, "9", weft_infer_run(model, 1, 9, tokens, out));
    ASSERT_FAILS(WEFT_E_ARG, "0", weft_infer_run(model, 1, 0, tokens, out));
    ASSERT_OK(weft_infer_run(model, 1, 1, tokens, out)); /* it goes on */
    weft_infer_close(model);
    weft_job_free(job);
    trial_end(t);

    t = trial_of(&families[4]); /* bert */
    job = job_on(t->f, NULL);
    ASSERT_OK(open_on(NULL, t, job, 0, &model));
    ASSERT_FAILS(WEFT_E_ARG, "bert|7|8", weft_infer_run(model, 1, 7, tokens, t->one));
    weft_infer_close(model);
    weft_job_free(job);
    trial_end(t);

    t = trial_of(&families[8]); /* mlp */
    refuse_file(t, WEFT_E_SHAPE, "bad.npy|f4 [1, 1, 6, 8]|[1, 8, 8]", "<f4", "1, 1, 6, 8", tokens,
                192);
    refuse_file(t, WEFT_E_SHAPE, "bad.npy|u1|i4 [1, 1, 6, 8]", "<i4", "1, 1, 6, 8", tokens, 192);
    const float odd[64] = {1, NAN};
    refuse_file(t, WEFT_E_NUMERIC, "bad.npy|1", "<f4", "1, 1, 8, 8", odd, sizeof odd);
    trial_end(t);
}

/* ---- one rank's wrong calls ---- */

typedef enum call { EVALUATES, OPENS, READS_FILES, CALLS } call;
typedef enum fault { NO_FAULT, NO_CHECKPOINT, LATER_MEMBER } fault;

typedef struct caller {
    call call;
    fault fault;
    const char *checkpoint;
    const weft_job *job;
} caller;

/* Options as of a program that is newer than the library, and has set a member that only it has. */
#define CALLED_WITH(type, c, ...)                                                                  \
    struct {                                                                                       \
        type known;                                                                                \
        char later[8];                                                                             \
    } o = {WEFT_STRUCT(type, .checkpoint = (c)->fault == NO_CHECKPOINT ? NULL : (c)->checkpoint,   \
                       __VA_ARGS__),                                                               \
           {(c)->fault == LATER_MEMBER}};                                                          \
    if ((c)->fault == LATER_MEMBER) o.known.struct_bytes = sizeof o

static weft_status evaluate_wrongly(const caller *c, weft_world *world) {
    weft_eval_result result;
    CALLED_WITH(weft_eval_options, c, .data = NULL);
    return weft_eval_run(world, c->job, &o.known, &result);
}

static weft_status open_wrongly(const caller *c, weft_world *world) {
    weft_infer *model = NULL;
    CALLED_WITH(weft_infer_options, c, .batch = 1);
    const weft_status status = weft_infer_open(world, c->job, &o.known, &model);
    weft_infer_close(model);
    return status;
}

static weft_status read_files_wrongly(const caller *c, weft_world *world) {
    weft_infer_files_result result;
    CALLED_WITH(weft_infer_files, c, .input = in_root("nothere.npy"), .output = in_root("out.npy"));
    return weft_infer_files_run(world, c->job, &o.known, &result);
}

static weft_status call_wrongly(void *context, weft_world *world) {
    static weft_status (*const calls[CALLS])(const caller *, weft_world *) = {
        [EVALUATES] = evaluate_wrongly, [OPENS] = open_wrongly, [READS_FILES] = read_files_wrongly};
    const caller *c = context;
    return calls[c->call](c, world);
}

typedef enum wrong_pass {
    NO_INPUT,
    MORE_SAMPLES,
    SHORTER_SAMPLES,
    NO_FOLDER, /* to export to */
    NO_FLAW,
    WRONG_PASSES
} wrong_pass;

typedef struct passing {
    const caller *caller;
    bool wrong; /* this rank's passes; the other's are right */
    weft_status status[WRONG_PASSES];
} passing;

/* Wrong passes fail on all ranks, which can make others afterwards. */
static weft_status pass_wrongly(void *context, weft_world *world) {
    passing *p = context;
    const weft_infer_options o =
        WEFT_STRUCT(weft_infer_options, .checkpoint = p->caller->checkpoint, .batch = 2);
    weft_infer *model;
    TRY(weft_infer_open(world, p->caller->job, &o, &model));
    const weft_infer_info info = weft_infer_info_of(model);
    enum { MORE = 3 }; /* two batches; the other rank has one */
    void *input = calloc(MORE, (size_t)weft_desc_bytes(&info.input));
    float *output = calloc(MORE * (size_t)weft_desc_elems(&info.output), sizeof *output);
    for (wrong_pass k = 0; k < WRONG_PASSES; k++) {
        const wrong_pass how = p->wrong ? k : NO_FLAW;
        p->status[k] = k == NO_FOLDER
                           ? weft_infer_export(model, p->wrong ? NULL : in_root("exported"))
                           : weft_infer_run(model, how == MORE_SAMPLES ? MORE : 1,
                                            info.input.shape[0] - (how == SHORTER_SAMPLES),
                                            how == NO_INPUT ? NULL : input, output);
    }
    free(input);
    free(output);
    weft_infer_close(model);
    return WEFT_OK;
}

/* Rank 0 is the one that calls wrongly, so that the other waits for what rank 0 reads. */
static void wrong_calls_of_one_rank_are_told(void **state) {
    (void)state;
    const family *f = &families[0];
    record run = {.first = 0};
    char checkpoint[600];
    (void)snprintf(checkpoint, sizeof checkpoint, "%s", train(f, &run));
    weft_job *job = job_on(f, NULL);
    for (int i = 0; i < 2 * CALLS; i++) {
        const fault wrong = i < CALLS ? NO_CHECKPOINT : LATER_MEMBER;
        const call made = (call)(i % CALLS);
        caller two[2] = {{made, wrong, checkpoint, job}, {made, NO_FAULT, checkpoint, job}};
        rank_of_world ranks[2];
        run_world(2, call_wrongly, two, sizeof *two, ranks);
        assert_int_equal(ranks[0].status, wrong == NO_CHECKPOINT ? WEFT_E_ARG : WEFT_E_NO_IMPL);
        assert_int_equal(ranks[1].status, WEFT_E_PEER); /* it names rank 0, and its error */
    }
    const caller right = {.checkpoint = checkpoint, .job = job};
    static const weft_status expected[WRONG_PASSES] = {[NO_INPUT] = WEFT_E_ARG,
                                                       [MORE_SAMPLES] = WEFT_E_MISMATCH,
                                                       [SHORTER_SAMPLES] = WEFT_E_MISMATCH,
                                                       [NO_FOLDER] = WEFT_E_ARG};
    for (int wrong = 0; wrong < 2; wrong++) {
        passing two[2] = {{&right, wrong == 0, {0}}, {&right, wrong == 1, {0}}};
        rank_of_world ranks[2];
        run_world(2, pass_wrongly, two, sizeof *two, ranks);
        assert_all_ok(ranks, 2, "wrong passes");
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < WRONG_PASSES; k++) assert_int_equal(two[r].status[k], expected[k]);
    }
    weft_job_free(job);
    ASSERT_OK(wefti_remove_tree(in_root(f->name)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_has_the_logits_of_one_device),
        cmocka_unit_test(logits_have_the_loss_of_the_evaluation),
        cmocka_unit_test(calls_of_any_size),
        cmocka_unit_test(opening_without_memory),
        cmocka_unit_test(files_of_tokens_and_images),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(wrong_calls_of_one_rank_are_told),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
