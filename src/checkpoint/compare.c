/* Compares a checkpoint's tensors with a model's. See checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "tensor/tensor.h"

enum { NAMED_DIFFERENCES = 5 };

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const wefti_checkpoint_tensor *const *)a)->name,
                  (*(const wefti_checkpoint_tensor *const *)b)->name);
}

typedef struct differences {
    wefti_text text;
    int64_t count;
} differences;

/* One of `expected` and `found` may be NULL. */
static void add_difference(differences *d, const wefti_checkpoint_tensor *expected,
                           const wefti_checkpoint_entry *found) {
    if (d->count++ >= NAMED_DIFFERENCES) return;
    if (!found)
        wefti_text_add(&d->text, "; %s %s is missing", expected->name,
                       wefti_desc_text(&expected->desc).text);
    else if (!expected)
        wefti_text_add(&d->text, "; %s %s is not in this model", found->name,
                       wefti_desc_text(&found->desc).text);
    else
        wefti_text_add(&d->text, "; %s is %s, this model has %s", found->name,
                       wefti_desc_text(&found->desc).text, wefti_desc_text(&expected->desc).text);
}

/* Walks two lists that are ordered by name. */
static void walk(const wefti_checkpoint_tensor *const *expected, int64_t expected_count,
                 const wefti_checkpoint *c, int64_t begin, int64_t end, differences *d) {
    int64_t i = 0, j = begin;
    while (i < expected_count || j < end) {
        const wefti_checkpoint_entry *found = j < end ? wefti_checkpoint_at(c, j) : NULL;
        int order = i == expected_count ? 1 : !found ? -1 : strcmp(expected[i]->name, found->name);
        if (order < 0)
            add_difference(d, expected[i], NULL);
        else if (order > 0)
            add_difference(d, NULL, found);
        else if (!wefti_desc_equal(&expected[i]->desc, &found->desc))
            add_difference(d, expected[i], found);
        i += order <= 0;
        j += order >= 0;
    }
}

weft_status wefti_checkpoint_compare(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                     const wefti_checkpoint_tensor *expected, int64_t count) {
    const wefti_checkpoint_tensor **sorted;
    WEFT_NEW_ARRAY(sorted, const wefti_checkpoint_tensor *, count);
    int64_t used = 0, begin = 0, total = wefti_checkpoint_count(c);
    for (int64_t i = 0; i < count; i++)
        if (expected[i].role == role) sorted[used++] = &expected[i];
    qsort(sorted, (size_t)used, sizeof *sorted, compare_names);
    while (begin < total && wefti_checkpoint_at(c, begin)->role < role) begin++;
    int64_t end = begin;
    while (end < total && wefti_checkpoint_at(c, end)->role == role) end++;
    differences d = {0};
    walk(sorted, used, c, begin, end, &d);
    wefti_free(sorted);
    weft_status status =
        d.text.failed ? WEFT_RAISE(WEFT_E_NOMEM, "no memory for a comparison") : WEFT_OK;
    if (d.count && status >= 0)
        status = WEFT_RAISE(
            WEFT_E_SHAPE, "%s is of another %s: %lld of its tensors differ%s%s",
            wefti_checkpoint_path(c), role == WEFTI_CHECKPOINT_MODEL ? "model" : "optimizer state",
            (long long)d.count, d.text.data, d.count > NAMED_DIFFERENCES ? "; ..." : "");
    wefti_text_free(&d.text);
    return status;
}
