/* What a data set is made of, as text: to compare it with that of another rank, or of the run's
 * checkpoint. A row for each file says its part of the data, its type and shape, a digest, and its
 * name:
 *
 *   training data: u2 [9300]; whole 63f1c6a1b2f0d8e4; a.bin
 *
 * The digest is of all elements if the whole is in memory or small. Of larger files it is of
 * elements at fixed positions; then their names count, too. */
#ifndef WEFTI_DATA_FINGERPRINT_H
#define WEFTI_DATA_FINGERPRINT_H

#include "base/text.h"
#include "data/array.h"
#include "weft/data.h"

/* Written once, when first asked for, and owned by the data. Reads from the files. */
weft_status wefti_data_fingerprint(weft_data *data, const char **out) WEFT_CHECKED;

/* Parts that a comparison looks at. */
enum {
    WEFTI_DATA_TOKENIZER = 1,
    WEFTI_DATA_TRAINING = 2,
    WEFTI_DATA_VALIDATION = 4,
    WEFTI_DATA_ALL = 7
};
/* Compares two fingerprints; either may come from any source. False: they differ, and `out` names
 * the part of the data, the files and the kind of difference. `here`, `there`: where the two are
 * read, "on rank 1" and "on rank 0". */
enum { WEFTI_DATA_DIFFERENCE = 700 };
bool wefti_data_same(const char *mine, const char *theirs, int parts, const char *here,
                     const char *there, char out[WEFTI_DATA_DIFFERENCE]);

/* Adds the rows of files, in their order. */
typedef struct wefti_data_file {
    const char *path;
    const wefti_array *array;
} wefti_data_file;
weft_status wefti_fingerprint_files(wefti_text *out, const char *part, const wefti_data_file *files,
                                    int64_t count) WEFT_CHECKED;
void wefti_fingerprint_tokenizer(wefti_text *out, const weft_tokenizer *tokenizer);

#endif
