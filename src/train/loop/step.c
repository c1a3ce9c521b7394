/* One training step: feeding microbatches, accumulating gradients, updating. Feeds of batches. */
#include "train/loop/loop.h"

#include <math.h>
#include <string.h>

weft_status wefti_training_feed_rows(wefti_training *t, int program, const wefti_batch *b,
                                     int64_t first) {
    weft_desc in = weft_data_input(t->data), target = weft_data_target(t->data);
    int64_t in_row = weft_desc_bytes(&in), target_row = weft_desc_bytes(&target);
    WEFT_TRY(weft_session_feed(t->session, program, t->model.objective->input,
                               (const unsigned char *)b->input + first * in_row,
                               (size_t)(t->batch.micro * in_row)));
    return weft_session_feed(t->session, program, t->model.objective->target,
                             (const unsigned char *)b->target + first * target_row,
                             (size_t)(t->batch.micro * target_row));
}

weft_status wefti_training_step(wefti_training *t, const wefti_batch *b, double lr,
                                weft_train_step *out) {
    int64_t count = t->batch.microbatches;
    const wefti_objective *o = t->model.objective;
    int64_t targets = o->targets_of_step(t, b);
    double sum = 0, loss = 0;
    int64_t known = 0; /* a pipeline returns the mean of all with the last one */
    out->gradient_norm = NAN;
    /* With recovery the loss must be known also if the update does not end. */
    if (count == 1 && t->job->train.clip == 0 && !t->job->recovery.enabled) {
        WEFT_TRY(wefti_training_feed_rows(t, 0, b, 0));
        WEFT_TRY(o->feed_weight(t, b, 0, targets));
        WEFT_TRY(weft_session_set_row(t->session, 0));
        WEFT_TRY(weft_session_step(t->session, lr, &out->loss));
        return WEFT_OK;
    }
    for (int64_t m = 0; m < count; m++) {
        WEFT_TRY(wefti_training_feed_rows(t, 0, b, m * t->batch.micro));
        WEFT_TRY(o->feed_weight(t, b, m * t->batch.micro, targets));
        WEFT_TRY(weft_session_set_row(t->session, m * t->batch.micro));
        WEFT_TRY(weft_session_accumulate(t->session, &loss));
        if (isnan(loss)) continue;
        sum += loss;
        known++;
    }
    out->loss = sum / (double)known;
    return weft_session_update(t->session, lr, &out->gradient_norm);
}

/* Widens rows [*begin, *end) of a microbatch by those of input `name` that this process needs. */
static weft_status add_rows(wefti_training *t, int program, const char *name,
                            wefti_session_piece *pieces, int64_t *begin, int64_t *end) {
    const int64_t micro = t->batch.micro;
    weft_tensor_info info;
    int index = 0;
    int32_t found;
    for (;; index++) {
        WEFT_TRY(weft_session_tensor(t->session, program, index, &info));
        if (info.role == WEFT_ROLE_INPUT && !strcmp(info.name, name)) break;
    }
    int64_t height = info.desc.rank ? info.desc.shape[0] : 1;
    WEFT_TRY(wefti_session_pieces(t->session, program, index, pieces, &found));
    for (int32_t k = 0; k < found; k++) {
        const wefti_region *box = &pieces[k].box;
        if (!pieces[k].data || !wefti_region_elems(box, info.desc.rank)) continue;
        int64_t first = box->begin[0] * micro / height,
                last = ((box->begin[0] + box->size[0]) * micro + height - 1) / height;
        if (*begin == *end || first < *begin) *begin = first;
        if (last > *end) *end = last;
    }
    return WEFT_OK;
}

weft_status wefti_training_choose_rows(wefti_training *t, int program, wefti_feed_options *o) {
    const wefti_objective *objective = t->model.objective;
    wefti_session_piece *pieces;
    if (!t->party.world) return WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(t->session));
    o->group = t->batch.micro;
    weft_status status = add_rows(t, program, objective->input, pieces, &o->own_begin, &o->own_end);
    if (status >= 0)
        status = add_rows(t, program, objective->target, pieces, &o->own_begin, &o->own_end);
    wefti_free(pieces);
    return status;
}

weft_status wefti_training_open_feed(const wefti_feed_options *o, void **out_block,
                                     wefti_feed **out) {
    int64_t bytes;
    WEFT_TRY(wefti_feed_bytes(o, &bytes));
    /* zeros, so that rows of other ranks take no memory */
    unsigned char *raw = wefti_calloc((size_t)bytes + 64, 1);
    WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for %lld bytes of prepared batches",
                 (long long)bytes);
    void *block = (void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
    weft_status status = wefti_feed_create(o, block, out);
    if (status < 0) {
        wefti_free(raw);
        return status;
    }
    *out_block = raw;
    return WEFT_OK;
}
