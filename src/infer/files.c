/* Outputs for the samples of an npy file, written to an npy file. Rank 0 reads and writes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "data/array.h"
#include "infer/infer.h"

/* Rank 0's place in both files. */
typedef struct files {
    const weft_infer_files *names;
    wefti_array_file in;
    wefti_writer *out;
    int64_t samples, length; /* length 0: images */
} files;

/* ---- the input ---- */

static weft_status open_input(files *f) {
    const wefti_array *a = &f->in.array;
    WEFT_TRY(wefti_array_open(f->names->input, WEFTI_ARRAY_NPY, &f->in));
    WEFT_REQUIRE(a->rank >= 2, WEFT_E_SHAPE,
                 "%s holds %s: tokens are [samples, length], images [samples, channels, height, "
                 "width]",
                 f->names->input, wefti_array_text(a).text);
    WEFT_REQUIRE(a->elems > 0, WEFT_E_SHAPE, "%s holds %s, no samples", f->names->input,
                 wefti_array_text(a).text);
    f->samples = a->shape[0];
    return WEFT_OK;
}

/* Before the model is open: the length that it is opened for. */
static int64_t length_of(const files *f) {
    return f->in.array.rank == 2 && wefti_element_is_integer(f->in.array.element)
               ? f->in.array.shape[1]
               : 0;
}

static weft_status check_input(files *f, const weft_infer *infer) {
    const wefti_array *a = &f->in.array;
    const weft_desc *one = &infer->input;
    const bool integer = wefti_element_is_integer(a->element);
    if (infer->language) {
        WEFT_REQUIRE(a->rank == 2 && integer, WEFT_E_SHAPE,
                     "%s holds %s; the tokens of a %s are whole numbers, [samples, length]",
                     f->names->input, wefti_array_text(a).text,
                     weft_family_text(infer->model.built.model.config.family));
        WEFT_REQUIRE(f->length <= one->shape[0], WEFT_E_ARG,
                     "%s has samples of %lld tokens; the model was opened for up to %lld",
                     f->names->input, (long long)f->length, (long long)one->shape[0]);
        return WEFT_OK;
    }
    WEFT_REQUIRE(!integer || a->element == WEFTI_ELEMENT_U8, WEFT_E_SHAPE,
                 "%s holds %s; pixels are u1, divided by 255, or floating-point numbers",
                 f->names->input, wefti_array_text(a).text);
    bool fits = a->rank == 4 || (a->rank == 3 && one->shape[0] == 1);
    for (int d = 1; d < a->rank && fits; d++)
        fits = a->shape[d] == one->shape[one->rank - a->rank + d];
    WEFT_REQUIRE(fits, WEFT_E_SHAPE, "%s holds %s; images of the model are [%lld, %lld, %lld]",
                 f->names->input, wefti_array_text(a).text, (long long)one->shape[0],
                 (long long)one->shape[1], (long long)one->shape[2]);
    return WEFT_OK;
}

/* Tokens from element `at` of the file on, in `out`. A wrong one is told as it is in the file. */
static weft_status check_tokens(const files *f, const wefti_array_piece *taken, int64_t at,
                                int64_t vocab, const int32_t *out) {
    for (int64_t i = 0; i < taken->count; i++) {
        int64_t value;
        if (out[i] >= 0 && out[i] < vocab) continue;
        wefti_array_integers(&taken->array, taken->first + i, 1, &value);
        WEFT_FAIL(WEFT_E_ARG, "%s: token %lld of sample %lld is %lld; the model's are 0 to %lld",
                  f->names->input, (long long)((at + i) % f->length),
                  (long long)((at + i) / f->length), (long long)value, (long long)vocab - 1);
    }
    return WEFT_OK;
}

/* Samples [first, first + count) into `out`, as the model takes them. `vocab` 0: images. */
static weft_status read_samples(const files *f, int64_t vocab, int64_t first, int64_t count,
                                void *out) {
    const wefti_array *a = &f->in.array;
    const int64_t each = a->elems / f->samples;
    wefti_array_piece taken;
    for (int64_t done = 0; done < count * each; done += taken.count) {
        WEFT_TRY(wefti_array_take(a, first * each + done, count * each - done, &taken));
        if (!vocab) {
            wefti_array_scaled(&taken.array, taken.first, taken.count, (float *)out + done);
            continue;
        }
        wefti_array_tokens(&taken.array, taken.first, taken.count, (int32_t *)out + done);
        WEFT_TRY(check_tokens(f, &taken, first * each + done, vocab, (int32_t *)out + done));
    }
    if (vocab) return WEFT_OK;
    for (int64_t i = 0; i < count * each; i++) {
        const double value = (double)((const float *)out)[i];
        WEFT_REQUIRE(isfinite(value), WEFT_E_NUMERIC, "%s: element %lld of sample %lld is %g",
                     f->names->input, (long long)(i % each), (long long)(first + i / each),
                     wefti_printed(value));
    }
    return WEFT_OK;
}

/* ---- the output ---- */

static void output_shape(const files *f, const weft_infer *infer, weft_infer_files_result *r) {
    const weft_desc *one = &infer->output;
    r->rank = 1 + one->rank;
    r->shape[0] = f->samples;
    for (int d = 0; d < one->rank; d++) r->shape[1 + d] = one->shape[d];
    if (infer->language) r->shape[1] = f->length;
}

/* The header of version 1 of the format, so long that the elements begin at a multiple of 64. */
static weft_status write_header(const files *f, const weft_infer_files_result *r) {
    enum { BYTES = 192, ALIGNED = 64 };
    char text[BYTES], shape[80] = "";
    for (int d = 0; d < r->rank; d++)
        (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", d ? ", " : "",
                       (long long)r->shape[d]);
    memset(text, ' ', sizeof text);
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    int used = snprintf(text + 10, sizeof text - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", shape);
    const int bytes = (10 + used + ALIGNED) / ALIGNED * ALIGNED;
    text[10 + used] = ' ';
    text[bytes - 1] = '\n';
    text[8] = (char)((bytes - 10) & 0xff);
    text[9] = (char)((bytes - 10) >> 8);
    return wefti_writer_write(f->out, text, (size_t)bytes);
}

/* ---- both ---- */

/* A header, which the other ranks do not read. */
typedef struct facts {
    int64_t samples, length;
} facts;

static weft_status open_files(files *f) {
    WEFT_TRY(open_input(f));
    f->length = length_of(f);
    WEFT_REQUIRE(!wefti_same_file(f->names->input, f->names->output), WEFT_E_ARG,
                 "the output %s is the input %s: give another file", f->names->output,
                 f->names->input);
    return wefti_writer_open(f->names->output, &f->out);
}

static weft_status convert(files *f, weft_infer *infer, bool leads, void *in, float *out) {
    const int64_t elems = infer->language ? f->length : weft_desc_elems(&infer->input);
    const int64_t each =
        infer->language ? f->length * infer->output.shape[1] : weft_desc_elems(&infer->output);
    const int64_t vocab = infer->language ? infer->model.built.model.config.vocab : 0;
    weft_status mine = WEFT_OK; /* of rank 0, which the others learn with the next batch */
    for (int64_t first = 0, count; first < f->samples; first += count) {
        count = f->samples - first < infer->batch ? f->samples - first : infer->batch;
        if (leads && mine >= 0) mine = read_samples(f, vocab, first, count, in);
        WEFT_TRY(wefti_party_broadcast(&infer->model.setup.party, mine, in,
                                       (size_t)(count * elems * 4)));
        WEFT_TRY(weft_infer_run(infer, count, f->length, in, out));
        if (leads) mine = wefti_writer_write(f->out, out, (size_t)(count * each) * sizeof *out);
    }
    return mine;
}

static weft_status convert_all(files *f, weft_infer *infer, bool leads,
                               weft_infer_files_result *r) {
    const int64_t elems = infer->batch * weft_desc_elems(&infer->input),
                  results = infer->batch * weft_desc_elems(&infer->output);
    facts shared = {f->samples, f->length};
    weft_status status = leads ? check_input(f, infer) : WEFT_OK;
    WEFT_TRY(wefti_party_broadcast(&infer->model.setup.party, status, &shared, sizeof shared));
    f->samples = shared.samples;
    f->length = shared.length;
    output_shape(f, infer, r);
    void *in = wefti_alloc((size_t)elems * 4);
    float *out = wefti_alloc((size_t)results * sizeof *out);
    status = in && out ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a batch");
    if (status >= 0 && leads) status = write_header(f, r);
    status = wefti_party_agree(&infer->model.setup.party, status);
    if (status >= 0) status = convert(f, infer, leads, in, out);
    wefti_free(in);
    wefti_free(out);
    return status;
}

static weft_status run(files *f, weft_infer *infer, bool leads, weft_infer_files_result *r) {
    const double start = wefti_now_s();
    WEFT_TRY(convert_all(f, infer, leads, r));
    if (leads) {
        wefti_writer *writer = f->out;
        f->out = NULL;
        WEFT_TRY(wefti_writer_commit(writer));
    }
    const weft_infer_info info = weft_infer_info_of(infer);
    (void)snprintf(r->checkpoint, sizeof r->checkpoint, "%s", info.checkpoint);
    r->devices = info.devices;
    r->predicted_peak_bytes = info.predicted_peak_bytes;
    r->host_bytes = info.host_bytes;
    r->disk_bytes = info.disk_bytes;
    r->seconds = wefti_now_s() - start;
    return WEFT_OK;
}

/* All ranks learn whether rank 0 could open the files, and for which length. */
static weft_status open_shared(files *f, weft_world *world, bool leads) {
    wefti_party party = {.world = NULL};
    const weft_status status = leads ? open_files(f) : WEFT_OK;
    WEFT_TRY(wefti_party_join(&party, world));
    return wefti_party_broadcast(&party, status, &f->length, sizeof f->length);
}

weft_status weft_infer_files_run(weft_world *world, const weft_job *job,
                                 const weft_infer_files *names, weft_infer_files_result *out) {
    weft_infer_files own = weft_infer_files_defaults();
    WEFT_TRY(wefti_fail_world(world, wefti_struct_take("weft_infer_files", names, &own)));
    if (!own.checkpoint || !own.input || !own.output || !out)
        return wefti_fail_world(
            world,
            WEFT_RAISE(WEFT_E_ARG, "outputs need a checkpoint, an input and an output file"));
    const bool leads = !world || weft_world_rank(world) == 0;
    files f = {.names = &own};
    weft_infer *infer = NULL;
    weft_infer_files_result result = {.devices = 0};
    weft_status status = open_shared(&f, world, leads);
    const weft_infer_options o =
        WEFT_STRUCT(weft_infer_options, .checkpoint = own.checkpoint, .batch = own.batch,
                    .length = job ? f.length : 0, .events = own.events, .memory = own.memory);
    if (status >= 0) status = weft_infer_open(world, job, &o, &infer);
    if (status >= 0)
        status = wefti_party_end(&infer->model.setup.party, run(&f, infer, leads, &result));
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (f.out) wefti_writer_abort(f.out);
    wefti_array_close(&f.in);
    weft_infer_close(infer);
    if (status < 0) return wefti_failure_tell(&failure);
    *out = result;
    return WEFT_OK;
}
