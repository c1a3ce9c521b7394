/* Images and labels in two files of equal count. See data/source.h. */
#include <math.h>
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "data/source.h"

static const char *name_in(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Appends `text` with the first `from` in it replaced; false if `from` is not in it. */
static bool append_replaced(wefti_text *to, const char *text, const char *from, const char *by) {
    const char *at = strstr(text, from);
    if (!at) {
        wefti_text_add(to, "%s", text);
        return false;
    }
    wefti_text_add(to, "%.*s%s%s", (int)(at - text), text, by, at + strlen(from));
    return true;
}

/* The file of labels that belongs to `images`; either may be packed. *out is from wefti_alloc. */
static weft_status labels_beside(const char *images, char **out) {
    wefti_text named = {0}, numbered = {0};
    const char *name = name_in(images);
    bool found = append_replaced(&named, name, "images", "labels");
    char *label_name = wefti_text_take(&named);
    if (label_name && found) {
        wefti_text_add(&numbered, "%.*s", (int)(name - images), images);
        (void)append_replaced(&numbered, label_name, "idx3", "idx1");
    }
    wefti_free(label_name);
    char *path = label_name ? wefti_text_take(&numbered) : NULL;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of the labels");
    if (!found) {
        wefti_free(path);
        WEFT_FAIL(WEFT_E_ARG,
                  "%s: the name has no \"images\" to be replaced by \"labels\": name the labels",
                  images);
    }
    size_t length = strlen(path);
    if (wefti_is_missing(path)) {
        bool packed = length > 3 && !strcmp(path + length - 3, ".gz");
        char *other =
            packed ? wefti_format("%.*s", (int)length - 3, path) : wefti_format("%s.gz", path);
        if (other && !wefti_is_missing(other)) {
            wefti_free(path);
            path = other;
        } else {
            wefti_free(other);
        }
    }
    *out = path;
    return WEFT_OK;
}

static bool could_be_images(const char *name, wefti_array_format format, bool train_only) {
    size_t length = strlen(name);
    if (!strstr(name, "images") || name[0] == '.') return false;
    if (train_only && strncmp(name, "train", 5)) return false;
    return format != WEFTI_ARRAY_NPY || (length > 4 && !strcmp(name + length - 4, ".npy"));
}

/* The file of images in a directory: the only one with "images" in its name, or the only one of
 * them that begins with "train". */
static weft_status images_in(const char *directory, wefti_array_format format, char **out) {
    char **names;
    int64_t count;
    WEFT_TRY(wefti_dir_list(directory, &names, &count));
    const char *chosen = NULL;
    int matches = 0;
    for (int train_only = 0; train_only < 2 && matches != 1; train_only++) {
        matches = 0;
        for (int64_t i = 0; i < count; i++)
            if (could_be_images(names[i], format, train_only)) {
                chosen = names[i];
                matches++;
            }
    }
    char *path = matches == 1 ? wefti_format("%s/%s", directory, chosen) : NULL;
    wefti_free(names);
    WEFT_REQUIRE(matches > 0, WEFT_E_NOT_FOUND,
                 "the directory %s has no file with \"images\" in its name: weft reads images as "
                 "one npy or IDX file; name it, and data.format: npy if it is one",
                 directory);
    WEFT_REQUIRE(matches == 1, WEFT_E_NOT_FOUND,
                 "the directory %s has %d files that could be the images; name the file", directory,
                 matches);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    *out = path;
    return WEFT_OK;
}

enum { IMAGES_PIECE = 256 }; /* elements looked at together */

/* Integers from `first` on: as many as are at hand of at most `count` and a PIECE. */
static weft_status take_integers(const wefti_array *array, int64_t first, int64_t count,
                                 int64_t *out, int64_t *out_count) {
    wefti_array_piece taken;
    WEFT_TRY(wefti_array_take(array, first, count < IMAGES_PIECE ? count : IMAGES_PIECE, &taken));
    wefti_array_integers(&taken.array, taken.first, taken.count, out);
    *out_count = taken.count;
    return WEFT_OK;
}

static weft_status check_label(wefti_image_source *s, const char *path, int64_t i, int64_t label,
                               int64_t vocab) {
    WEFT_REQUIRE(label >= 0 && label < INT32_MAX, WEFT_E_ARG,
                 "%s: label %lld of image %lld: labels are whole numbers from 0 to %d", path,
                 (long long)label, (long long)i, INT32_MAX - 1);
    WEFT_REQUIRE(!vocab || label < vocab, WEFT_E_ARG,
                 "%s: label %lld of image %lld; the model has %lld classes, from 0", path,
                 (long long)label, (long long)i, (long long)vocab);
    if (label >= s->classes) s->classes = label + 1;
    return WEFT_OK;
}

static weft_status check_labels(wefti_image_source *s, const char *path, int64_t vocab) {
    const wefti_array *labels = &s->labels.array;
    int64_t extra = 1; /* [n, 1] is fine */
    for (int i = 1; i < labels->rank; i++) extra *= labels->shape[i];
    WEFT_REQUIRE(wefti_element_is_integer(labels->element) && labels->rank >= 1 && extra == 1,
                 WEFT_E_SHAPE, "%s: labels are integers in one dimension", path);
    WEFT_REQUIRE(labels->elems == s->count, WEFT_E_SHAPE,
                 "%s has %lld labels, but %s has %lld images", path, (long long)labels->elems,
                 s->path, (long long)s->count);
    int64_t values[IMAGES_PIECE];
    for (int64_t i = 0, n; i < labels->elems; i += n) {
        WEFT_TRY(take_integers(labels, i, labels->elems - i, values, &n));
        for (int64_t k = 0; k < n; k++) WEFT_TRY(check_label(s, path, i + k, values[k], vocab));
    }
    return WEFT_OK;
}

/* NumPy stores pixels as wide integers by default. Divided by the largest value of that type, all
 * pixels of 0 to 255 would be nearly black. So arrays of wide integers with only byte values are
 * refused, including 16 bits with sign. */
static weft_status check_scale(const wefti_image_source *s) {
    enum { LOOKED_AT = 1 << 20 };
    const wefti_array *images = &s->images.array;
    double largest = wefti_element_largest(images->element), most = 0;
    int64_t values[IMAGES_PIECE], end = images->elems < LOOKED_AT ? images->elems : LOOKED_AT;
    if (wefti_element_bytes(images->element) == 1 || !wefti_element_is_integer(images->element))
        return WEFT_OK;
    for (int64_t i = 0, n; i < end; i += n) {
        WEFT_TRY(take_integers(images, i, end - i, values, &n));
        for (int64_t k = 0; k < n; k++) most = fmax(most, fabs((double)values[k]));
    }
    WEFT_REQUIRE(most == 0 || (most > 255 && most >= largest / 256), WEFT_E_ARG,
                 "%s: no pixel is larger than %.0f, but whole numbers are divided by the largest "
                 "of their type, here %.0f, which leaves next to nothing: save them as bytes (0 to "
                 "255) or as fractions (f32)",
                 s->path, most, largest);
    return WEFT_OK;
}

static weft_status open_both(wefti_image_source *s, const char *labels, wefti_array_format format,
                             int64_t vocab) {
    WEFT_TRY(wefti_array_open(s->path, format, &s->images));
    const wefti_array *images = &s->images.array;
    WEFT_REQUIRE(images->rank >= 1, WEFT_E_SHAPE, "%s holds a single number, no images", s->path);
    s->count = images->shape[0];
    WEFT_REQUIRE(s->count > 0 && images->elems > 0, WEFT_E_SHAPE, "%s holds no images", s->path);
    if (labels)
        s->labels_path = wefti_strdup(labels);
    else
        WEFT_TRY(labels_beside(s->path, &s->labels_path));
    WEFT_REQUIRE(s->labels_path, WEFT_E_NOMEM, "no memory for the name of a file");
    WEFT_TRY(wefti_array_open(s->labels_path, format, &s->labels));
    return check_labels(s, s->labels_path, vocab);
}

weft_status wefti_images_open(wefti_image_source *s, const char *path, const char *labels,
                              wefti_array_format format, int64_t vocab) {
    WEFT_REQUIRE(path && *path, WEFT_E_ARG, "the path of the data is empty");
    if (wefti_is_dir(path))
        WEFT_TRY(images_in(path, format, &s->path));
    else
        s->path = wefti_strdup(path);
    WEFT_REQUIRE(s->path, WEFT_E_NOMEM, "no memory for the name of a file");
    WEFT_TRY(open_both(s, labels, format, vocab));
    return check_scale(s);
}

void wefti_images_close(wefti_image_source *s) {
    wefti_array_close(&s->images);
    wefti_array_close(&s->labels);
    wefti_free(s->path);
    wefti_free(s->labels_path);
    *s = (wefti_image_source){0};
}

weft_status wefti_images_read(const wefti_image_source *s, int64_t index, float *image,
                              int32_t *label) {
    const wefti_array *images = &s->images.array;
    int64_t each = images->elems / s->count, class, n;
    wefti_array_piece taken;
    for (int64_t done = 0; done < each; done += taken.count) {
        WEFT_TRY(wefti_array_take(images, index * each + done, each - done, &taken));
        wefti_array_scaled(&taken.array, taken.first, taken.count, image + done);
    }
    if (!wefti_element_is_integer(images->element))
        for (int64_t i = 0; i < each; i++)
            WEFT_REQUIRE(isfinite(image[i]), WEFT_E_NUMERIC, "%s: element %lld of image %lld is %g",
                         s->path, (long long)i, (long long)index, (double)image[i]);
    WEFT_TRY(take_integers(&s->labels.array, index, 1, &class, &n));
    WEFT_REQUIRE(class >= 0 && class < s->classes, WEFT_E_CORRUPT,
                 "%s: the label of image %lld is %lld now: it was another when the data was opened",
                 s->path, (long long)index, (long long)class);
    *label = (int32_t) class;
    return WEFT_OK;
}
