/* Sessions: programs of one or more graphs over one arena. */
#include "train/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/optimizer.h"

struct weft_session {
    weft_session_options options;
    int threads;
    wefti_optimizer *optimizer;
    wefti_program **programs;
    int64_t program_count, program_cap;
    wefti_device *device; /* NULL until started */
    int64_t device_bytes;
    wefti_trace *trace;
    int64_t step, row;
    int accumulated; /* microbatches since the last update */
    bool packed;     /* packed weights are those of the parameters */
    wefti_bf16_compute bf16;
    wefti_before_update *before_update;
    void *before_update_context;
};

weft_session_options weft_session_defaults(void) {
    return (weft_session_options){
        .optimizer = {WEFT_ADAMW, 0.9, 0.95, 1e-8, 0.9, 0.1, false},
        .microbatches = 1,
    };
}

static wefti_bf16_compute choose_bf16(weft_bf16_compute wanted) {
    if (wanted == WEFT_BF16_AS_F32) return WEFTI_BF16_AS_F32;
    if (wanted == WEFT_BF16_NATIVE) return WEFTI_BF16_NATIVE;
    for (const wefti_backend *const *b = wefti_builtin_backends(); *b; b++)
        if ((*b)->choose_bf16) return (*b)->choose_bf16(*b);
    return WEFTI_BF16_AS_F32;
}

static bool uses_bf16(const weft_graph *g) {
    for (int64_t c = -1; c < g->cell_count; c++) {
        const weft_body *b = c < 0 ? g->root : g->cells[c];
        for (int64_t v = 0; v < b->value_count; v++)
            if (b->values[v].desc.dtype == WEFT_BF16) return true;
    }
    return false;
}

static weft_status largest_text(const wefti_program *p, int count, char **out) {
    wefti_text text = {0};
    char bytes[32];
    for (int i = 0; i < count && i < p->largest_count; i++)
        wefti_text_add(&text, "%s%s %s", i ? ", " : "", p->largest[i].name,
                       wefti_bytes_text(p->largest[i].bytes, bytes));
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a list of tensors");
    return WEFT_OK;
}

static weft_status check_limit(const weft_session *s, const wefti_program *p) {
    if (s->options.memory_bytes <= 0 || p->peak_bytes <= s->options.memory_bytes) return WEFT_OK;
    char need[32], limit[32], fixed[32], *largest;
    WEFT_TRY(largest_text(p, 6, &largest));
    int64_t room = s->options.memory_bytes - p->persistent_bytes;
    double share = p->transient_bytes > 0 ? (double)room / (double)p->transient_bytes : 0;
    char advice[160];
    if (room <= 0 && !s->optimizer)
        (void)snprintf(advice, sizeof advice, "the model alone needs %s",
                       wefti_bytes_text(p->persistent_bytes, fixed));
    else if (room <= 0)
        (void)snprintf(advice, sizeof advice,
                       "the model and its optimizer alone need %s: a smaller model or another "
                       "optimizer would fit",
                       wefti_bytes_text(p->persistent_bytes, fixed));
    else if (share < 0.01)
        (void)snprintf(
            advice, sizeof advice,
            "not a hundredth of this batch would fit beside the model (train.accumulate, "
            "or a smaller batch, context or model)");
    else
        (void)snprintf(advice, sizeof advice,
                       "about %.0f %% of this batch would fit (train.accumulate, or a smaller "
                       "batch or context)",
                       share * 100);
    weft_status status = WEFT_RAISE(
        WEFT_E_NOMEM, "a step needs %s but the limit (device.memory) is %s; largest: %s; %s",
        wefti_bytes_text(p->peak_bytes, need), wefti_bytes_text(s->options.memory_bytes, limit),
        largest, advice);
    wefti_free(largest);
    return status;
}

static weft_status build(weft_session *s, weft_graph *graph, bool train) {
    if (uses_bf16(graph) && s->bf16 == WEFTI_BF16_AUTO) s->bf16 = choose_bf16(s->options.bf16);
    bool first = s->program_count == 0;
    wefti_program_spec spec = {
        .graph = graph,
        .backends = wefti_builtin_backends(),
        .prepare = {s->threads, 0, true, s->bf16 == WEFTI_BF16_AUTO ? WEFTI_BF16_AS_F32 : s->bf16},
        .optimizer = train && s->optimizer ? wefti_optimizer_plan_of(s->optimizer) : NULL,
        .microbatches = train ? s->options.microbatches : 1,
        .keep_gradients = train && s->options.keep_gradients,
        .recompute = s->options.recompute ? 1 : 0,
        .shared = first ? NULL : s->programs[0],
    };
    for (int64_t i = 0; i < s->program_count; i++) {
        const wefti_program *other = s->programs[i];
        if (other->peak_bytes > spec.peak_bytes) spec.peak_bytes = other->peak_bytes;
        if (other->persistent_bytes > spec.persistent_bytes)
            spec.persistent_bytes = other->persistent_bytes;
    }
    wefti_program *p;
    WEFT_TRY(WEFT_GROW(s->programs, s->program_count, s->program_cap));
    WEFT_TRY(wefti_program_build(&spec, &p));
    weft_status status = check_limit(s, p);
    if (status < 0) {
        wefti_program_destroy(p);
        return status;
    }
    s->programs[s->program_count++] = p;
    return WEFT_OK;
}

weft_status weft_session_create(weft_graph *graph, const weft_session_options *options,
                                weft_session **out) {
    WEFT_REQUIRE(graph && options && out, WEFT_E_ARG, "a session needs a graph and options");
    WEFT_REQUIRE(options->microbatches >= 1, WEFT_E_ARG, "microbatches must be 1 or more, not %d",
                 options->microbatches);
    WEFT_REQUIRE(options->clip >= 0, WEFT_E_ARG, "clip must not be negative, but is %g",
                 options->clip);
    WEFT_REQUIRE(options->threads >= 0, WEFT_E_ARG, "threads must not be negative, but is %d",
                 options->threads);
    weft_session *s;
    weft_status status = WEFT_OK;
    WEFT_NEW(s, weft_session);
    s->options = *options;
    s->threads = options->threads ? options->threads : wefti_cores();
    bool train = options->optimizer.kind != WEFT_NO_OPTIMIZER;
    if (train)
        WEFT_TRY_OR(fail, status,
                    wefti_optimizer_create(&options->optimizer, options->clip > 0, graph->ops,
                                           &s->optimizer));
    WEFT_TRY_OR(fail, status, build(s, graph, true));
    *out = s;
    return WEFT_OK;
fail:
    weft_session_destroy(s);
    return status;
}

void weft_session_destroy(weft_session *s) {
    if (!s) return;
    weft_status unwritten = wefti_trace_close(s->trace); /* nobody left to tell */
    (void)unwritten;
    wefti_device_destroy(s->device);
    for (int64_t i = 0; i < s->program_count; i++) wefti_program_destroy(s->programs[i]);
    wefti_free(s->programs);
    wefti_optimizer_destroy(s->optimizer);
    wefti_free(s);
}

weft_status weft_session_add(weft_session *s, weft_graph *graph, int *out_program) {
    WEFT_REQUIRE(!s->device, WEFT_E_ARG, "add all graphs before the session's first step");
    WEFT_TRY(build(s, graph, false));
    *out_program = (int)s->program_count - 1;
    return WEFT_OK;
}

/* Map the arena and set start values, once. */
static weft_status start(weft_session *s) {
    if (s->device) return WEFT_OK;
    int64_t bytes = 0;
    for (int64_t i = 0; i < s->program_count; i++)
        if (s->programs[i]->peak_bytes > bytes) bytes = s->programs[i]->peak_bytes;
    wefti_device *d;
    WEFT_TRY(wefti_device_create(s->threads, bytes, &d));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < s->program_count && status == WEFT_OK; i++)
        if (i == 0 || s->programs[i]->persistent_bytes != s->programs[0]->persistent_bytes)
            status = wefti_device_init(d, s->programs[i], s->options.seed);
    if (status < 0) {
        wefti_device_destroy(d);
        return status;
    }
    s->device = d;
    s->device_bytes = bytes;
    wefti_device_trace(d, s->trace);
    return WEFT_OK;
}

static weft_status program_of(const weft_session *s, int program, wefti_program **out) {
    WEFT_REQUIRE(program >= 0 && program < s->program_count, WEFT_E_ARG,
                 "there is no program %d: the session has %lld", program,
                 (long long)s->program_count);
    *out = s->programs[program];
    return WEFT_OK;
}

static wefti_exec_options exec_options(weft_session *s) {
    return (wefti_exec_options){
        .random = {s->options.seed, (uint64_t)s->step, 0, s->row},
        .before_update = s->before_update,
        .before_update_context = s->before_update_context,
    };
}

static weft_status pack(weft_session *s) {
    if (s->packed) return WEFT_OK;
    wefti_exec_options o = exec_options(s);
    WEFT_TRY(wefti_device_run(s->device, s->programs[0], WEFTI_SECTION_PACK, &o));
    s->packed = true;
    return WEFT_OK;
}

/* The loss is not finite: once more, looking at every value, to name where it began. */
static weft_status name_culprit(weft_session *s, const wefti_program *p, wefti_section section,
                                weft_status status) {
    if (status != WEFT_E_NUMERIC) return status;
    char *first = wefti_strdup(weft_error_message());
    wefti_exec_options o = exec_options(s);
    o.check_finite = true;
    weft_status again = wefti_device_run(s->device, p, section, &o);
    if (again == WEFT_OK)
        (void)wefti_adopt(status, first ? first : "the loss is not finite");
    else if (first)
        (void)wefti_prefix(again, "%s", first);
    wefti_free(first);
    return status;
}

static bool updates_eagerly(const weft_session *s) {
    return s->optimizer && s->programs[0]->step_count[WEFTI_SECTION_UPDATE] == 0;
}

static weft_status accumulate(weft_session *s, double *out_loss) {
    wefti_program *p = s->programs[0];
    WEFT_TRY(start(s));
    WEFT_REQUIRE(s->accumulated < s->options.microbatches, WEFT_E_ARG,
                 "%d microbatches are accumulated already: update first", s->accumulated);
    WEFT_TRY(pack(s));
    wefti_section section = s->accumulated ? WEFTI_SECTION_NEXT : WEFTI_SECTION_FIRST;
    wefti_exec_options o = exec_options(s);
    if (s->optimizer && !s->accumulated) {
        float *scalars = (float *)(void *)(wefti_device_memory(s->device) + p->scalars);
        scalars[1] = (float)(s->step + 1);
        scalars[2] = 1.0f / (float)s->options.microbatches;
    }
    weft_status status = wefti_device_run(s->device, p, section, &o);
    if (status < 0) return name_culprit(s, p, section, status);
    s->accumulated = s->optimizer ? s->accumulated + 1 : 0;
    if (out_loss) *out_loss = wefti_device_loss(s->device);
    return WEFT_OK;
}

weft_status weft_session_accumulate(weft_session *s, double *out_loss) {
    WEFT_REQUIRE(
        !updates_eagerly(s), WEFT_E_ARG,
        "this session updates inside of its backward pass: use weft_session_step, or ask for "
        "clipping, several microbatches or keep_gradients");
    return accumulate(s, out_loss);
}

static void set_learning_rate(weft_session *s, double learning_rate) {
    float *scalars = (float *)(void *)(wefti_device_memory(s->device) + s->programs[0]->scalars);
    scalars[0] = (float)learning_rate;
}

weft_status weft_session_update(weft_session *s, double learning_rate, double *out_norm) {
    wefti_program *p = s->programs[0];
    WEFT_REQUIRE(s->optimizer, WEFT_E_ARG, "the session was made without an optimizer");
    WEFT_REQUIRE(!updates_eagerly(s), WEFT_E_ARG,
                 "this session updates inside of its backward pass: use weft_session_step");
    WEFT_REQUIRE(s->accumulated == s->options.microbatches, WEFT_E_ARG,
                 "%d of %d microbatches are accumulated", s->accumulated, s->options.microbatches);
    wefti_exec_options o = exec_options(s);
    float *scalars = (float *)(void *)(wefti_device_memory(s->device) + p->scalars);
    double norm = NAN;
    if (s->options.clip > 0) {
        WEFT_TRY(wefti_device_run(s->device, p, WEFTI_SECTION_NORM, &o));
        const float *squares = (const float *)(void *)(wefti_device_memory(s->device) + p->norms);
        double sum = 0;
        for (int32_t i = 0; i < p->norm_count; i++) sum += (double)squares[i];
        norm = sqrt(sum) / (double)s->options.microbatches;
        WEFT_REQUIRE(isfinite(norm), WEFT_E_NUMERIC,
                     "the gradient's norm is %g: nothing was updated", wefti_printed(norm));
        /* PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1. */
        double factor = s->options.clip / (norm + 1e-6);
        scalars[2] = (float)((factor < 1 ? factor : 1.0) / (double)s->options.microbatches);
    }
    set_learning_rate(s, learning_rate);
    WEFT_TRY(wefti_device_run(s->device, p, WEFTI_SECTION_UPDATE, &o));
    s->accumulated = 0;
    s->packed = false;
    s->step++;
    if (out_norm) *out_norm = norm;
    return WEFT_OK;
}

weft_status weft_session_step(weft_session *s, double learning_rate, double *out_loss) {
    WEFT_REQUIRE(s->optimizer, WEFT_E_ARG, "the session was made without an optimizer");
    WEFT_REQUIRE(s->options.microbatches == 1, WEFT_E_ARG,
                 "a step of %d microbatches is that many accumulates and an update",
                 s->options.microbatches);
    WEFT_TRY(start(s));
    set_learning_rate(s, learning_rate);
    WEFT_TRY(accumulate(s, out_loss));
    if (!updates_eagerly(s)) return weft_session_update(s, learning_rate, NULL);
    s->accumulated = 0;
    s->packed = false;
    s->step++;
    return WEFT_OK;
}

weft_status weft_session_forward(weft_session *s, int program, double *out_loss) {
    wefti_program *p;
    WEFT_TRY(program_of(s, program, &p));
    WEFT_REQUIRE(program > 0 || !s->optimizer, WEFT_E_ARG,
                 "program 0 trains: use weft_session_step, or add a graph for evaluation");
    WEFT_TRY(start(s));
    if (program == 0) WEFT_TRY(pack(s));
    wefti_exec_options o = exec_options(s);
    weft_status status = wefti_device_run(s->device, p, WEFTI_SECTION_FIRST, &o);
    if (status < 0) return name_culprit(s, p, WEFTI_SECTION_FIRST, status);
    if (out_loss) *out_loss = wefti_device_loss(s->device);
    return WEFT_OK;
}

/* ---- tensors ---- */

static weft_tensor_info info_of(const wefti_tensor *t) {
    weft_tensor_info info = {.name = t->name, .desc = t->desc, .bytes = weft_desc_bytes(&t->desc)};
    switch (t->role) {
    case WEFTI_TENSOR_PARAM:
        info.role = WEFT_ROLE_PARAM;
        break;
    case WEFTI_TENSOR_STATE:
        info.role = WEFT_ROLE_STATE;
        break;
    case WEFTI_TENSOR_OPTIMIZER:
        info.role = WEFT_ROLE_OPTIMIZER;
        break;
    case WEFTI_TENSOR_INPUT:
        info.role = WEFT_ROLE_INPUT;
        break;
    case WEFTI_TENSOR_OUTPUT:
        info.role = WEFT_ROLE_OUTPUT;
        break;
    }
    return info;
}

int weft_session_tensors(const weft_session *s, int program) {
    wefti_program *p;
    return program_of(s, program, &p) < 0 ? 0 : p->tensor_count;
}

weft_status weft_session_tensor(const weft_session *s, int program, int index,
                                weft_tensor_info *out) {
    wefti_program *p;
    WEFT_TRY(program_of(s, program, &p));
    WEFT_REQUIRE(index >= 0 && index < p->tensor_count, WEFT_E_ARG,
                 "there is no tensor %d: the program has %d", index, p->tensor_count);
    *out = info_of(&p->tensors[index]);
    return WEFT_OK;
}

static weft_status find(const weft_session *s, int program, const char *name,
                        const wefti_tensor **out) {
    wefti_program *p;
    WEFT_TRY(program_of(s, program, &p));
    *out = wefti_program_tensor(p, name);
    WEFT_REQUIRE(*out, WEFT_E_NOT_FOUND, "the model has no tensor '%s'", name);
    return WEFT_OK;
}

weft_status weft_session_find(const weft_session *s, int program, const char *name,
                              weft_tensor_info *out) {
    const wefti_tensor *t;
    WEFT_TRY(find(s, program, name, &t));
    *out = info_of(t);
    return WEFT_OK;
}

static weft_status locate(weft_session *s, int program, const char *name, size_t bytes,
                          const wefti_tensor **out_tensor, void **out) {
    const wefti_tensor *t;
    WEFT_TRY(find(s, program, name, &t));
    WEFT_REQUIRE(bytes == (size_t)weft_desc_bytes(&t->desc), WEFT_E_SHAPE,
                 "'%s' is %s, %lld bytes, not %zu", name, wefti_desc_text(&t->desc).text,
                 (long long)weft_desc_bytes(&t->desc), bytes);
    *out_tensor = t;
    return wefti_session_address(s, program, t, out);
}

weft_status weft_session_feed(weft_session *s, int program, const char *name, const void *data,
                              size_t bytes) {
    const wefti_tensor *t;
    void *to;
    WEFT_TRY(locate(s, program, name, bytes, &t, &to));
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT, WEFT_E_ARG, "'%s' is no input", name);
    memcpy(to, data, bytes);
    wefti_device_observe(s->device, to, (int64_t)bytes);
    return WEFT_OK;
}

weft_status weft_session_read(weft_session *s, int program, const char *name, void *data,
                              size_t bytes) {
    const wefti_tensor *t;
    void *from;
    WEFT_TRY(locate(s, program, name, bytes, &t, &from));
    memcpy(data, from, bytes);
    return WEFT_OK;
}

weft_status weft_session_write(weft_session *s, int program, const char *name, const void *data,
                               size_t bytes) {
    const wefti_tensor *t;
    void *to;
    WEFT_TRY(locate(s, program, name, bytes, &t, &to));
    memcpy(to, data, bytes);
    s->packed = false;
    return WEFT_OK;
}

/* ---- the rest ---- */

int64_t weft_session_step_number(const weft_session *s) {
    return s->step;
}
void weft_session_set_step(weft_session *s, int64_t step) {
    s->step = step;
}
void weft_session_set_row(weft_session *s, int64_t global_row) {
    s->row = global_row;
}

weft_session_memory weft_session_memory_of(const weft_session *s) {
    const wefti_program *p = s->programs[0];
    weft_session_memory m = {.transient_bytes = p->transient_bytes,
                             .saved_bytes = p->saved_bytes,
                             .forward_flops = p->forward_flops,
                             .backward_flops = p->backward_flops};
    for (int64_t i = 0; i < s->program_count; i++)
        if (s->programs[i]->peak_bytes > m.predicted_peak_bytes)
            m.predicted_peak_bytes = s->programs[i]->peak_bytes;
    if (s->device) m.observed_peak_bytes = wefti_device_observed_peak(s->device);
    for (int32_t t = 0; t < p->tensor_count; t++) {
        int64_t bytes = weft_desc_bytes(&p->tensors[t].desc);
        if (p->tensors[t].role == WEFTI_TENSOR_PARAM) m.parameter_bytes += bytes;
        if (p->tensors[t].role == WEFTI_TENSOR_OPTIMIZER) m.optimizer_bytes += bytes;
    }
    return m;
}

weft_status weft_session_trace(weft_session *s, const char *path) {
    wefti_trace *old = s->trace;
    s->trace = NULL;
    if (s->device) wefti_device_trace(s->device, NULL);
    WEFT_TRY(wefti_trace_close(old));
    if (!path) return WEFT_OK;
    WEFT_TRY(wefti_trace_open(path, &s->trace));
    if (s->device) wefti_device_trace(s->device, s->trace);
    return WEFT_OK;
}

weft_bf16_compute weft_session_bf16(const weft_session *s) {
    return s->bf16 == WEFTI_BF16_NATIVE ? WEFT_BF16_NATIVE : WEFT_BF16_AS_F32;
}

const wefti_program *wefti_session_program(const weft_session *s, int program) {
    return s->programs[program];
}

weft_status wefti_session_address(weft_session *s, int program, const wefti_tensor *tensor,
                                  void **out) {
    (void)program;
    WEFT_TRY(start(s));
    *out = wefti_device_memory(s->device) + tensor->offset;
    return WEFT_OK;
}

void wefti_session_before_update(weft_session *s, wefti_before_update *call, void *context) {
    s->before_update = call;
    s->before_update_context = context;
}

wefti_pool *wefti_session_pool(weft_session *s) {
    return s->device ? wefti_device_pool(s->device) : NULL;
}

weft_status wefti_session_largest(const weft_session *s, int count, char **out) {
    return largest_text(s->programs[0], count, out);
}
