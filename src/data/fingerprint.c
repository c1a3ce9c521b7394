/* Fingerprints of data sets: see data/fingerprint.h. */
#include "data/fingerprint.h"

#include <stdio.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/json/json.h"

enum {
    WHOLE_BYTES = 64 << 20, /* of a part of the data that is read as a whole */
    SAMPLED_PLACES = 64,    /* of a file that is not */
    SAMPLE_BYTES = 4096,
    PART_ROWS = 64 /* of a part; with more files, a row is of several */
};

/* ---- writing ---- */

static weft_status digest_elements(const wefti_array *array, int64_t first, int64_t count,
                                   uint64_t *digest) {
    wefti_array_piece taken;
    const int64_t each = wefti_element_bytes(array->element);
    for (int64_t end = first + count; first < end; first += taken.count) {
        WEFT_TRY(wefti_array_take(array, first, end - first, &taken));
        *digest = wefti_digest_bytes(*digest, taken.array.data + taken.first * each,
                                     (size_t)(taken.count * each));
    }
    return WEFT_OK;
}

/* The position of sample i: the first is at the begin, the last at the end. */
static int64_t sample_at(int64_t i, int64_t elems, int64_t count) {
    const int64_t room = elems - count;
    return room / (SAMPLED_PLACES - 1) * i + room % (SAMPLED_PLACES - 1) * i / (SAMPLED_PLACES - 1);
}

static weft_status digest_samples(const wefti_array *array, uint64_t *digest) {
    int64_t count = SAMPLE_BYTES / wefti_element_bytes(array->element);
    if (count > array->elems) count = array->elems;
    for (int64_t i = 0; i < SAMPLED_PLACES; i++)
        WEFT_TRY(digest_elements(array, sample_at(i, array->elems, count), count, digest));
    return WEFT_OK;
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* On one line, and valid UTF-8, as manifests need it. */
static void add_name(wefti_text *out, const char *name) {
    const bool utf8 = wefti_utf8_valid(name);
    for (const char *c = name; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        wefti_text_add_bytes(out, byte < ' ' || byte == 127 || (byte > 127 && !utf8) ? "?" : c, 1);
    }
}

/* Some files as one row. */
static weft_status add_row(wefti_text *out, const char *part, const wefti_data_file *files,
                           int64_t count, bool whole) {
    uint64_t digest = 0;
    int64_t elems = 0;
    for (int64_t i = 0; i < count; i++) {
        const wefti_array *array = files[i].array;
        elems += array->elems;
        digest = wefti_digest_text(digest, wefti_array_text(array).text);
        if (!whole && count > 1) digest = wefti_digest_text(digest, name_of(files[i].path));
        weft_status status = whole || !array->reader
                                 ? digest_elements(array, 0, array->elems, &digest)
                                 : digest_samples(array, &digest);
        if (status < 0) return wefti_prefix(status, "%s", files[i].path);
    }
    wefti_text_add(out, "%s: ", part);
    if (count == 1)
        wefti_text_add(out, "%s", wefti_array_text(files->array).text);
    else
        wefti_text_add(out, "%lld files with %lld elements", (long long)count, (long long)elems);
    wefti_text_add(out, "; %s %016llx; ", whole ? "whole" : "samples", (unsigned long long)digest);
    add_name(out, name_of(files->path));
    if (count > 1) wefti_text_add(out, " and %lld more", (long long)count - 1);
    wefti_text_add(out, "\n");
    return WEFT_OK;
}

weft_status wefti_fingerprint_files(wefti_text *out, const char *part, const wefti_data_file *files,
                                    int64_t count) {
    const int64_t each = count > PART_ROWS ? (count + PART_ROWS - 1) / PART_ROWS : 1;
    int64_t bytes = 0;
    for (int64_t i = 0; i < count && bytes <= WHOLE_BYTES; i++)
        if (files[i].array->reader)
            bytes += files[i].array->elems * wefti_element_bytes(files[i].array->element);
    for (int64_t i = 0; i < count; i += each)
        WEFT_TRY(add_row(out, part, files + i, count - i < each ? count - i : each,
                         bytes <= WHOLE_BYTES));
    return WEFT_OK;
}

void wefti_fingerprint_tokenizer(wefti_text *out, const weft_tokenizer *tokenizer) {
    const int64_t vocab = weft_tokenizer_vocab(tokenizer);
    uint64_t digest = 0;
    for (int64_t id = 0; id < vocab; id++) {
        int64_t bytes = 0;
        const char *token = weft_tokenizer_token(tokenizer, (int32_t)id, &bytes);
        digest = wefti_digest_number(digest, token != NULL);
        if (token) digest = wefti_digest_bytes(digest, token, (size_t)bytes);
    }
    wefti_text_add(out, "tokenizer: %lld tokens; whole %016llx; the tokenizer\n", (long long)vocab,
                   (unsigned long long)digest);
}

/* ---- comparing ---- */

/* A row: `part: size; digest; name`. */
typedef struct print_row {
    const char *part, *size, *digest, *name;
    int part_bytes, size_bytes, digest_bytes, name_bytes;
} print_row;

/* The text up to `mark`, which *at passes; all of it without one. */
static int take(const char **at, const char *end, const char *mark, const char **out) {
    const char *stop = mark ? memmem(*at, (size_t)(end - *at), mark, strlen(mark)) : NULL;
    const int64_t bytes = (stop ? stop : end) - *at;
    *out = *at;
    *at = stop ? stop + strlen(mark) : end;
    return bytes < 256 ? (int)bytes : 256;
}

/* Rows of unknown parts count with the training data. */
static int part_of(const print_row *r) {
    static const struct {
        const char *word;
        int part;
    } parts[] = {{"tokenizer", WEFTI_DATA_TOKENIZER}, {"validation", WEFTI_DATA_VALIDATION}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strncmp(r->part, parts[i].word, strlen(parts[i].word))) return parts[i].part;
    return WEFTI_DATA_TRAINING;
}

/* The next row that counts. False: there is none. */
static bool next_row(const char **at, int parts, print_row *out) {
    while (**at) {
        const char *end = strchrnul(*at, '\n'), *from = *at;
        *at = *end ? end + 1 : end;
        out->part_bytes = take(&from, end, ": ", &out->part);
        out->size_bytes = take(&from, end, "; ", &out->size);
        out->digest_bytes = take(&from, end, "; ", &out->digest);
        out->name_bytes = take(&from, end, NULL, &out->name);
        if (part_of(out) & parts) return true;
    }
    *out = (print_row){"", "", "", "", 0, 0, 0, 0};
    return false;
}

static bool equal(const char *a, int a_bytes, const char *b, int b_bytes) {
    return a_bytes == b_bytes && !memcmp(a, b, (size_t)a_bytes);
}

/* How two rows differ, as a text; false: they do not. */
static bool differ(const print_row *a, const print_row *b, const char *here, const char *there,
                   char *out) {
    const bool sampled = a->digest_bytes > 0 && a->digest[0] == 's';
    if (!equal(a->part, a->part_bytes, b->part, b->part_bytes))
        (void)snprintf(out, WEFTI_DATA_DIFFERENCE, "%.*s: %.*s is read %s only", a->part_bytes,
                       a->part, a->name_bytes, a->name, here);
    else if (!equal(a->size, a->size_bytes, b->size, b->size_bytes))
        (void)snprintf(out, WEFTI_DATA_DIFFERENCE, "%.*s: %.*s has %.*s %s, but %.*s has %.*s %s",
                       a->part_bytes, a->part, a->name_bytes, a->name, a->size_bytes, a->size, here,
                       b->name_bytes, b->name, b->size_bytes, b->size, there);
    else if (!equal(a->digest, a->digest_bytes, b->digest, b->digest_bytes))
        (void)snprintf(out, WEFTI_DATA_DIFFERENCE,
                       "%.*s: %.*s %s has other content than %.*s %s (both have %.*s)",
                       a->part_bytes, a->part, a->name_bytes, a->name, here, b->name_bytes, b->name,
                       there, a->size_bytes, a->size);
    else if (sampled && !equal(a->name, a->name_bytes, b->name, b->name_bytes))
        (void)snprintf(out, WEFTI_DATA_DIFFERENCE,
                       "%.*s: the file is %.*s %s, but %.*s %s (a name counts where a file is too "
                       "large to be compared as a whole)",
                       a->part_bytes, a->part, a->name_bytes, a->name, here, b->name_bytes, b->name,
                       there);
    else
        return false;
    return true;
}

bool wefti_data_same(const char *mine, const char *theirs, int parts, const char *here,
                     const char *there, char out[WEFTI_DATA_DIFFERENCE]) {
    for (;;) {
        print_row a, b;
        const bool has_a = next_row(&mine, parts, &a), has_b = next_row(&theirs, parts, &b);
        if (!has_a && !has_b) return true;
        if (has_a && differ(&a, &b, here, there, out)) return false;
        if (!has_a && differ(&b, &a, there, here, out)) return false;
    }
}
