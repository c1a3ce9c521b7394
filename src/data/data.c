/* Data sets: options to sources, parts and samples. See weft/data.h. */
#include "weft/data.h"

#include <string.h>

#include "base/philox.h"
#include "data/fingerprint.h"
#include "data/source.h"
#include "tokenizer/special.h"

/* Samples [first, first + samples) of a source. */
typedef struct data_part {
    int source;
    int64_t first, samples;
} data_part;

struct weft_data {
    bool images;
    int64_t context, vocab;
    int64_t known_vocab;
    weft_tokenizer *tokenizer;    /* owned; text only */
    wefti_token_source tokens[2]; /* [1]: of the validation path */
    wefti_image_source pictures[2];
    data_part parts[2];
    weft_desc input;
    wefti_text_options text;
    wefti_text notes;
    char *fingerprint; /* NULL: nobody has asked for it */
};

typedef enum data_format {
    FORMAT_TEXT,
    FORMAT_JSONL,
    FORMAT_RAW,
    FORMAT_TOKENS,
    FORMAT_IDX,
    FORMAT_NPY,
    FORMATS
} data_format;

static const wefti_array_format array_formats[FORMATS] = {[FORMAT_TOKENS] = WEFTI_ARRAY_SHARD,
                                                          [FORMAT_IDX] = WEFTI_ARRAY_IDX,
                                                          [FORMAT_NPY] = WEFTI_ARRAY_NPY};

/* Are the tokens made from text? */
static bool is_written(data_format format) {
    return format == FORMAT_TEXT || format == FORMAT_JSONL || format == FORMAT_RAW;
}

static weft_status format_of(const weft_data_options *o, data_format *out) {
    static const char *const names[FORMATS] = {"text", "jsonl", "raw", "tokens", "idx", "npy"};
    for (int i = 0; i < FORMATS; i++)
        if (o->format && !strcmp(o->format, names[i])) {
            *out = (data_format)i;
            return WEFT_OK;
        }
    WEFT_FAIL(WEFT_E_ARG, "unknown data format '%s'; known: text, jsonl, raw, tokens, idx, npy",
              o->format ? o->format : "");
}

static weft_status check_options(const weft_data_options *o, data_format format) {
    bool sequence = is_written(format) || format == FORMAT_TOKENS;
    WEFT_REQUIRE(o->path && *o->path, WEFT_E_ARG, "the path of the data is missing");
    WEFT_REQUIRE(o->context >= 0 && o->context < INT32_MAX && (o->context > 0 || !sequence),
                 WEFT_E_ARG, "%s data needs a context of 1 token or more, not %lld", o->format,
                 (long long)o->context);
    WEFT_REQUIRE(o->context == 0 || format != FORMAT_IDX, WEFT_E_ARG,
                 "idx data is of images and has no context (%lld)", (long long)o->context);
    WEFT_REQUIRE(o->vocab >= 0, WEFT_E_ARG,
                 "a vocabulary of %lld tokens: it must be 1 or more, or 0 for unknown",
                 (long long)o->vocab);
    WEFT_REQUIRE(o->validation_fraction >= 0.0 && o->validation_fraction < 1.0, WEFT_E_ARG,
                 "the validation part is a fraction from 0 to below 1, not %g",
                 o->validation_fraction);
    WEFT_REQUIRE(!(o->validation_path && o->validation_fraction > 0.0), WEFT_E_ARG,
                 "validation data is either a path of its own or a fraction (%g), not both",
                 o->validation_fraction);
    return WEFT_OK;
}

static weft_status open_tokens(weft_data *data, int which, data_format format, const char *path,
                               int64_t *out_samples) {
    wefti_token_source *source = &data->tokens[which];
    static const wefti_text_kind kinds[FORMATS] = {[FORMAT_TEXT] = WEFTI_TEXT_BY_NAME,
                                                   [FORMAT_JSONL] = WEFTI_TEXT_JSON_LINES,
                                                   [FORMAT_RAW] = WEFTI_TEXT_RAW};
    data->text.kind = kinds[format];
    if (is_written(format))
        WEFT_TRY(wefti_tokens_open_text(source, path, &data->text, &data->notes));
    else
        WEFT_TRY(wefti_tokens_open_arrays(source, path, array_formats[format]));
    WEFT_REQUIRE(source->tokens > data->context, WEFT_E_SHAPE,
                 "%s has %lld tokens; one sample of context %lld takes %lld", path,
                 (long long)source->tokens, (long long)data->context, (long long)data->context + 1);
    WEFT_TRY(wefti_tokens_check(source, data->vocab));
    *out_samples = (source->tokens - 1) / data->context;
    return WEFT_OK;
}

/* The shape of one image: all sizes but the first, which counts images. */
static weft_desc image_desc(const wefti_image_source *source) {
    const wefti_array *array = &source->images.array;
    return weft_desc_of(WEFT_F32, array->rank - 1, array->shape + 1);
}

static weft_status open_images(weft_data *data, int which, data_format format, const char *path,
                               const char *labels, int64_t *out_samples) {
    wefti_image_source *source = &data->pictures[which];
    WEFT_TRY(wefti_images_open(source, path, labels, array_formats[format], data->vocab));
    if (which == 0) data->input = image_desc(source);
    weft_desc desc = image_desc(source);
    bool same = desc.rank == data->input.rank;
    for (int i = 0; same && i < desc.rank; i++) same = desc.shape[i] == data->input.shape[i];
    WEFT_REQUIRE(same, WEFT_E_SHAPE, "the images of %s and %s have different sizes", source->path,
                 data->pictures[0].path);
    if (source->classes > data->known_vocab) data->known_vocab = source->classes;
    *out_samples = source->count;
    return WEFT_OK;
}

static weft_status open_part(weft_data *data, int which, data_format format, const char *path,
                             const char *labels) {
    int64_t samples = 0;
    if (data->images)
        WEFT_TRY(open_images(data, which, format, path, labels, &samples));
    else
        WEFT_TRY(open_tokens(data, which, format, path, &samples));
    data->parts[which] = (data_part){which, 0, samples};
    return WEFT_OK;
}

/* The last samples of the training source become the validation part. */
static weft_status hold_out(weft_data *data, double fraction, const char *path) {
    data_part *train = &data->parts[WEFT_DATA_TRAIN];
    int64_t held = (int64_t)((double)train->samples * fraction);
    WEFT_REQUIRE(
        held >= 1 && held < train->samples, WEFT_E_SHAPE,
        "%s has %lld samples: a fraction of %g leaves %lld for validation and %lld for training; "
        "both need one; 0 keeps none",
        path, (long long)train->samples, fraction, (long long)held,
        (long long)(train->samples - held));
    train->samples -= held;
    data->parts[WEFT_DATA_VALIDATION] = (data_part){0, train->samples, held};
    return WEFT_OK;
}

/* The tokenizer that the options name, and its end of a text. */
static weft_status open_tokenizer(weft_data *data, const char *name) {
    wefti_ends ends = {.count = 0};
    WEFT_TRY(weft_tokenizer_open(name, &data->tokenizer));
    WEFT_TRY(wefti_ends_beside(data->tokenizer, name, &ends));
    data->text.end = ends.count ? ends.ids[0] : -1;
    return WEFT_OK;
}

static weft_status open_all(weft_data *data, const weft_data_options *o, data_format format) {
    data->context = o->context;
    data->vocab = o->vocab;
    data->images = o->context == 0;
    data->input = weft_desc_of(WEFT_I32, 1, &o->context);
    if (is_written(format)) {
        weft_status status = data->tokenizer ? WEFT_OK : open_tokenizer(data, o->tokenizer);
        if (status < 0) return wefti_prefix(status, "the tokenizer");
        data->known_vocab = weft_tokenizer_vocab(data->tokenizer);
        data->text.tokenizer = data->tokenizer;
        data->text.field = o->field;
        data->text.skip_bad = o->skip_bad_lines;
    }
    WEFT_TRY(open_part(data, WEFT_DATA_TRAIN, format, o->path, o->labels));
    if (!o->validation_path)
        return o->validation_fraction > 0.0 ? hold_out(data, o->validation_fraction, o->path)
                                            : WEFT_OK;
    weft_status status =
        open_part(data, WEFT_DATA_VALIDATION, format, o->validation_path, o->validation_labels);
    return status < 0 ? wefti_prefix(status, "the validation data") : WEFT_OK;
}

static weft_status create(const weft_data_options *options, weft_tokenizer *tokenizer, int32_t end,
                          data_format *format, weft_data **out) {
    WEFT_TRY(format_of(options, format));
    WEFT_TRY(check_options(options, *format));
    WEFT_NEW(*out, weft_data);
    (*out)->tokenizer = tokenizer;
    (*out)->text.end = end;
    return WEFT_OK;
}

weft_status wefti_data_open_with(const weft_data_options *options, weft_tokenizer *tokenizer,
                                 int32_t end, weft_data **out) {
    data_format format = FORMAT_TEXT;
    weft_data *data;
    weft_status status = create(options, tokenizer, end, &format, &data);
    if (status < 0) {
        weft_tokenizer_close(tokenizer);
        return status;
    }
    status = open_all(data, options, format);
    data->text.field = NULL; /* borrowed for the call */
    if (status >= 0 && data->notes.failed)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for notes on the data");
    if (status < 0) {
        weft_data_close(data);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = data;
    return WEFT_OK;
}

weft_status weft_data_open(const weft_data_options *options, weft_data **out) {
    weft_data_options own = weft_data_defaults();
    WEFT_TRY(wefti_struct_take("weft_data_options", options, &own));
    return wefti_data_open_with(&own, NULL, -1, out);
}

void weft_data_close(weft_data *data) {
    if (!data) return;
    for (int i = 0; i < 2; i++) {
        wefti_tokens_close(&data->tokens[i]);
        wefti_images_close(&data->pictures[i]);
    }
    weft_tokenizer_close(data->tokenizer);
    wefti_text_free(&data->notes);
    wefti_free(data->fingerprint);
    wefti_free(data);
}

static weft_status print_source(const weft_data *data, int which, wefti_text *out) {
    const wefti_token_source *tokens = &data->tokens[which];
    const wefti_image_source *pictures = &data->pictures[which];
    if (data->images) {
        const wefti_data_file images = {pictures->path, &pictures->images.array};
        const wefti_data_file labels = {pictures->labels_path, &pictures->labels.array};
        WEFT_TRY(wefti_fingerprint_files(out, which ? "validation images" : "training images",
                                         &images, 1));
        return wefti_fingerprint_files(out, which ? "validation labels" : "training labels",
                                       &labels, 1);
    }
    wefti_data_file *files;
    WEFT_NEW_ARRAY(files, wefti_data_file, tokens->count);
    for (int64_t i = 0; i < tokens->count; i++)
        files[i] = (wefti_data_file){tokens->pieces[i].path, &tokens->pieces[i].array};
    weft_status status = wefti_fingerprint_files(out, which ? "validation data" : "training data",
                                                 files, tokens->count);
    wefti_free(files);
    return status;
}

weft_status wefti_data_fingerprint(weft_data *data, const char **out) {
    wefti_text text = {0};
    weft_status status = WEFT_OK;
    if (!data->fingerprint) {
        if (data->tokenizer) wefti_fingerprint_tokenizer(&text, data->tokenizer);
        status = print_source(data, WEFT_DATA_TRAIN, &text);
        if (status >= 0 && data->parts[WEFT_DATA_VALIDATION].source)
            status = print_source(data, WEFT_DATA_VALIDATION, &text);
        if (status >= 0 && !(data->fingerprint = wefti_text_take(&text)))
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the fingerprint of the data");
    }
    wefti_text_free(&text);
    *out = data->fingerprint;
    return status;
}

int64_t weft_data_samples(const weft_data *data, weft_data_part which) {
    return which == WEFT_DATA_TRAIN || which == WEFT_DATA_VALIDATION ? data->parts[which].samples
                                                                     : 0;
}

weft_desc weft_data_input(const weft_data *data) {
    return data->input;
}

weft_desc weft_data_target(const weft_data *data) {
    return weft_desc_of(WEFT_I32, data->images ? 0 : 1, &data->context);
}

int64_t weft_data_vocab(const weft_data *data) {
    return data->known_vocab;
}

const weft_tokenizer *weft_data_tokenizer(const weft_data *data) {
    return data->tokenizer;
}

const char *wefti_data_notes(const weft_data *data) {
    return data->notes.data ? data->notes.data : "";
}

weft_status weft_data_read(const weft_data *data, weft_data_part which, int64_t index, void *input,
                           int32_t *target) {
    int64_t samples = weft_data_samples(data, which);
    WEFT_REQUIRE(index >= 0 && index < samples, WEFT_E_ARG, "sample %lld of a part with %lld",
                 (long long)index, (long long)samples);
    const data_part *p = &data->parts[which];
    if (data->images)
        return wefti_images_read(&data->pictures[p->source], p->first + index, input, target);
    const wefti_token_source *source = &data->tokens[p->source];
    int64_t first = (p->first + index) * data->context;
    WEFT_TRY(wefti_tokens_read(source, first, data->context, data->vocab, input));
    memcpy(target, (int32_t *)input + 1, (size_t)(data->context - 1) * sizeof *target);
    return wefti_tokens_read(source, first + data->context, 1, data->vocab,
                             target + data->context - 1);
}

int64_t weft_data_order(uint64_t seed, int64_t samples, int64_t position) {
    if (samples < 1 || position < 0) return 0;
    uint64_t n = (uint64_t)samples, at = (uint64_t)position;
    uint64_t stream = wefti_stream_of("weft.data.order") + at / n;
    return (int64_t)wefti_philox_permute(seed, stream, n, at % n);
}
