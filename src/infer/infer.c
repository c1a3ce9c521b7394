/* Outputs of a trained model: loaded once, called many times. */
#include "infer/exported.h"

#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

/* ---- opening ---- */

/* The shape of one sample: `desc` without its first dimension. */
static weft_desc sample_of(const weft_desc *desc) {
    weft_desc one = *desc;
    one.rank--;
    for (int d = 0; d < one.rank; d++) one.shape[d] = desc->shape[d + 1];
    return one;
}

/* An exported graph comes from a file. */
static weft_status check_tensors(const wefti_built *b, const weft_desc *in, const weft_desc *out) {
    const bool language = b->model.objective->is_language;
    const bool fits =
        in->rank == (language ? 2 : 4) && out->rank == (language ? 3 : 2) &&
        in->dtype == (language ? WEFT_I32 : WEFT_F32) && wefti_dtype_is_float(out->dtype) &&
        in->shape[0] == out->shape[0] &&
        (!language || (in->shape[1] == out->shape[1] && out->shape[2] == b->model.config.vocab));
    WEFT_REQUIRE(fits, WEFT_E_CORRUPT,
                 "the graph takes %s and gives %s, which is no batch of a %s with its logits",
                 wefti_desc_text(in).text, wefti_desc_text(out).text,
                 weft_family_text(b->model.config.family));
    return WEFT_OK;
}

static weft_status find_tensors(weft_infer *f) {
    const wefti_built *b = &f->model.built;
    weft_tensor_info in, out;
    WEFT_TRY(weft_session_find(b->session, 0, b->model.objective->input, &in));
    WEFT_TRY(weft_session_find(b->session, 0, "logits", &out));
    f->language = b->model.objective->is_language;
    WEFT_TRY(check_tensors(b, &in.desc, &out.desc));
    f->causal = b->model.objective->generates;
    f->input = sample_of(&in.desc);
    f->output = sample_of(&out.desc);
    f->dtype = out.desc.dtype;
    f->output.dtype = WEFT_F32;
    f->batch = in.desc.shape[0];
    f->in = wefti_calloc((size_t)in.bytes, 1);
    f->logits = wefti_alloc((size_t)out.bytes);
    WEFT_REQUIRE(f->in && f->logits, WEFT_E_NOMEM, "no memory for a batch of %lld samples",
                 (long long)f->batch);
    return WEFT_OK;
}

static weft_status open_parts(weft_infer *f, const weft_job *job, const weft_infer_options *o) {
    WEFT_REQUIRE(o->batch >= 0 && o->length >= 0, WEFT_E_ARG,
                 "batch and length must be 0 or more, not %lld and %lld", (long long)o->batch,
                 (long long)o->length);
    if (!job) {
        WEFT_REQUIRE(!o->batch && !o->length, WEFT_E_ARG,
                     "an exported model has its batch and length: leave them 0");
        WEFT_TRY(wefti_exported_open(f, o));
        return find_tensors(f);
    }
    WEFT_TRY(wefti_trained_begin(&f->model, f->world, job, o->checkpoint, &o->events));
    WEFT_TRY(wefti_trained_open(&f->model, WEFT_USE_LOGITS, o->batch, o->length));
    return find_tensors(f);
}

weft_status weft_infer_open(weft_world *world, const weft_job *job,
                            const weft_infer_options *options, weft_infer **out) {
    weft_infer_options own = weft_infer_defaults();
    WEFT_TRY(wefti_fail_world(world, wefti_struct_take("weft_infer_options", options, &own)));
    if (!own.checkpoint || !out)
        return wefti_fail_world(
            world,
            WEFT_RAISE(WEFT_E_ARG, "a model in use needs a checkpoint or an exported folder"));
    weft_infer *f = wefti_calloc(1, sizeof *f);
    if (!f) return wefti_fail_world(world, WEFT_RAISE(WEFT_E_NOMEM, "no memory for a model"));
    f->world = world;
    weft_status status = open_parts(f, job, &own);
    status = f->model.setup.party.agreement ? wefti_party_end(&f->model.setup.party, status)
                                            : wefti_fail_world(world, status);
    if (status < 0) {
        wefti_failure failure;
        wefti_failure_keep(status, &failure);
        weft_infer_close(f);
        return wefti_failure_tell(&failure);
    }
    *out = f;
    return WEFT_OK;
}

void weft_infer_close(weft_infer *f) {
    if (!f) return;
    wefti_trained_close(&f->model);
    wefti_free(f->in);
    wefti_free(f->logits);
    wefti_free(f);
}

weft_infer_info weft_infer_info_of(const weft_infer *f) {
    const weft_session_memory memory = weft_session_memory_of(f->model.built.session);
    return (weft_infer_info){
        .checkpoint = f->model.path,
        .input = f->input,
        .output = f->output,
        .batch = f->batch,
        .causal = f->causal,
        .devices = weft_session_devices(f->model.built.session),
        .predicted_peak_bytes = memory.predicted_peak_bytes,
        .host_bytes = memory.host_bytes,
        .disk_bytes = memory.disk_bytes,
    };
}

/* ---- running ---- */

static weft_status check_tokens(const weft_infer *f, const int32_t *tokens, int64_t samples,
                                int64_t length) {
    const int64_t vocab = f->model.built.model.config.vocab;
    for (int64_t i = 0; i < samples * length; i++)
        WEFT_REQUIRE(tokens[i] >= 0 && tokens[i] < vocab, WEFT_E_ARG,
                     "token %lld of sample %lld is %d; the model's tokens are 0 to %lld",
                     (long long)(i % length), (long long)(i / length), tokens[i],
                     (long long)vocab - 1);
    return WEFT_OK;
}

static weft_status check_call(const weft_infer *f, int64_t samples, int64_t length,
                              const void *input, const float *output) {
    WEFT_REQUIRE(input && output, WEFT_E_ARG, "a pass needs an input and an output");
    WEFT_REQUIRE(samples >= 1, WEFT_E_ARG, "samples must be 1 or more, not %lld",
                 (long long)samples);
    if (!f->language) {
        WEFT_REQUIRE(length == 0, WEFT_E_ARG, "a length of %lld, but images have none",
                     (long long)length);
        return WEFT_OK;
    }
    const int64_t most = f->input.shape[0];
    WEFT_REQUIRE(length >= 1 && length <= most, WEFT_E_ARG,
                 "samples of %lld tokens: the model was opened for 1 to %lld", (long long)length,
                 (long long)most);
    WEFT_REQUIRE(length == most || f->causal, WEFT_E_ARG,
                 "samples of %lld tokens: a %s sees tokens on both sides, and was opened for "
                 "samples of exactly %lld",
                 (long long)length, weft_family_text(f->model.built.model.config.family),
                 (long long)most);
    return check_tokens(f, input, samples, length);
}

/* All ranks compute the same batches: one with more samples would wait in a pass that others lack.
 */
static weft_status agree_on_call(const weft_infer *f, int64_t samples, int64_t length,
                                 weft_status status) {
    wefti_job_fact call = {
        .name = "call", .verb = "passes", .advice = "all ranks pass the same samples"};
    (void)snprintf(call.text, sizeof call.text, "%lld samples of length %lld", (long long)samples,
                   (long long)length);
    return wefti_party_same(&f->model.setup.party, status, &call, 1);
}

/* Puts samples [0, count) of `from` into the batch. Tokens behind the end of a sample, and samples
 * behind the last, are 0. */
static void fill_batch(weft_infer *f, const char *from, int64_t count, int64_t length) {
    const int64_t whole = weft_desc_bytes(&f->input), own = f->language ? 4 * length : whole;
    char *to = f->in;
    memset(to, 0, (size_t)(f->batch * whole));
    for (int64_t i = 0; i < count; i++) memcpy(to + i * whole, from + i * own, (size_t)own);
}

static void take_logits(const weft_infer *f, float *to, int64_t count, int64_t length) {
    const int64_t whole = weft_desc_elems(&f->output);
    const int64_t own = f->language ? length * f->output.shape[1] : whole;
    const char *from = f->logits;
    for (int64_t i = 0; i < count; i++)
        wefti_convert(WEFT_F32, to + i * own, f->dtype,
                      from + (size_t)(i * whole) * weft_dtype_bytes(f->dtype), own);
}

weft_status weft_infer_run(weft_infer *f, int64_t samples, int64_t length, const void *input,
                           float *output) {
    WEFT_REQUIRE(f, WEFT_E_ARG, "a pass needs a model");
    wefti_built *b = &f->model.built;
    weft_status status = check_call(f, samples, length, input, output);
    WEFT_TRY(agree_on_call(f, samples, length, status));
    const int64_t in = f->language ? 4 * length : weft_desc_bytes(&f->input),
                  out = f->language ? length * f->output.shape[1] : weft_desc_elems(&f->output);
    for (int64_t first = 0, count; first < samples; first += count) {
        bool stop;
        count = samples - first < f->batch ? samples - first : f->batch;
        WEFT_TRY(wefti_trained_stops(&f->model, &stop));
        WEFT_REQUIRE(!stop, WEFT_E_STOPPED, "stopped after %lld samples", (long long)first);
        fill_batch(f, (const char *)input + first * in, count, length);
        WEFT_TRY(weft_session_feed(b->session, 0, b->model.objective->input, f->in,
                                   (size_t)(f->batch * weft_desc_bytes(&f->input))));
        WEFT_TRY(weft_session_forward(b->session, 0, NULL));
        WEFT_TRY(weft_session_read(b->session, 0, "logits", f->logits,
                                   (size_t)(f->batch * weft_desc_elems(&f->output)) *
                                       weft_dtype_bytes(f->dtype)));
        take_logits(f, output + first * out, count, length);
    }
    return WEFT_OK;
}
