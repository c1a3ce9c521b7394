/* The end of a run: the state is checked, validated and saved, also when the run is stopped. */
#include "train/loop/loop.h"

#include <math.h>

#include "base/text.h"
#include "tensor/tensor.h"

weft_status wefti_training_failed(wefti_training *t, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (wefti_saver_end(wefti_training_saver(t)) < 0)
        wefti_setup_note(&t->setup, "%s", weft_error_message());
    (void)wefti_failure_tell(&failure);
    if (status == WEFT_E_STOPPED || t->setup.party.follows || !*t->built->job->checkpoint.dir)
        return status;
    if (!*t->result->checkpoint)
        return t->progress.step ? wefti_prefix(status, "no checkpoint is written") : status;
    /* The state before a step without a finite loss may itself be the cause. */
    if (status == WEFT_E_NUMERIC && t->saving.committed_step == t->progress.step)
        wefti_setup_note(&t->setup,
                         "going on from %s comes to this failure again: change the settings, or "
                         "remove it to go on from the checkpoint before it",
                         t->result->checkpoint);
    return wefti_prefix(status, "the checkpoint of step %lld is kept",
                        (long long)t->saving.committed_step);
}

/* ---- the last state ---- */

/* Fails if elements [first, first + count) of a piece of a parameter, which lie at `data`, have a
 * value that is not finite. */
static weft_status check_elements(const weft_tensor_info *info, const wefti_session_piece *piece,
                                  const void *data, int64_t first, int64_t count) {
    int64_t strides[WEFT_MAX_RANK];
    wefti_strides(&info->desc, strides);
    for (int64_t k = 0; k < count; k++) {
        double value = wefti_load(info->desc.dtype, data, k);
        if (isfinite(value)) continue;
        int64_t at = 0, rest = first + k;
        for (int d = info->desc.rank - 1; d >= 0; d--) {
            at += (piece->box.begin[d] + rest % piece->box.size[d]) * strides[d];
            rest /= piece->box.size[d];
        }
        WEFT_FAIL(WEFT_E_NUMERIC, "element %lld of parameter '%s' is %g after the last update",
                  (long long)at, info->name, wefti_printed(value));
    }
    return WEFT_OK;
}

static weft_status check_piece(const weft_tensor_info *info, const wefti_session_piece *piece) {
    const int64_t size = (int64_t)weft_dtype_bytes(info->desc.dtype),
                  most = WEFTI_HOME_BLOCK / size;
    for (int64_t at = 0, all = piece->home.bytes / size, part; at < all; at += part) {
        wefti_mapping m;
        part = all - at < most ? all - at : most;
        WEFT_TRY(wefti_home_map(&piece->home, at * size, part * size, WEFTI_ACCESS_READ, &m));
        WEFT_TRY(wefti_home_unmap(&m, check_elements(info, piece, m.data, at, part)));
    }
    return WEFT_OK;
}

/* No update may have left a value that is not finite. Without validation only this check tells
 * whether the last step was a good one. */
weft_status wefti_training_check_parameters(wefti_training *t) {
    wefti_session_piece *pieces;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(t->built->session));
    for (int i = 0; i < weft_session_tensors(t->built->session, 0) && status == WEFT_OK; i++) {
        weft_tensor_info info;
        int32_t count = 0;
        status = weft_session_tensor(t->built->session, 0, i, &info);
        if (status == WEFT_OK && info.role == WEFT_ROLE_PARAM)
            status = wefti_session_pieces(t->built->session, 0, i, pieces, &count);
        for (int32_t k = 0; k < count && status == WEFT_OK; k++)
            if (pieces[k].counts && wefti_home_exists(&pieces[k].home))
                status = check_piece(&info, &pieces[k]);
    }
    wefti_free(pieces);
    return status;
}

/* Only rank 0 knows. */
weft_status wefti_training_unsaved(wefti_training *t, bool *out) {
    *out = !wefti_training_is_saved(t);
    return wefti_party_broadcast(&t->setup.party, WEFT_OK, out, sizeof *out);
}

/* A run that was killed right after its last checkpoint left one more than checkpoint.keep. */
static void prune(wefti_training *t) {
    const weft_job_checkpoint *c = &t->built->job->checkpoint;
    const wefti_save_keep keep = wefti_training_keeps(t);
    weft_status status = WEFT_OK;
    if (!c->dir[0]) return;
    if (wefti_training_is_sliced(t))
        status = wefti_saver_prune_slices(wefti_training_saver(t), &keep, t->saving.committed_step);
    else if (!t->setup.party.follows)
        status = wefti_checkpoint_prune_spaced(c->dir, c->keep, keep.spacing, keep.best,
                                               t->saving.committed_step);
    if (status < 0 && !t->setup.party.follows)
        wefti_setup_note(&t->setup, "%s", weft_error_message());
    wefti_error_clear();
}

weft_status wefti_training_finish(wefti_training *t) {
    const bool whole = wefti_training_is_over(t);
    bool unsaved, stop;
    weft_status unwritten = WEFT_OK;
    if (wefti_training_has_stalled(t))
        wefti_setup_note(&t->setup, "train.stop_after: %lld validations have not improved on %.6g",
                         (long long)t->progress.ratings.not_improved, t->progress.ratings.lowest);
    else if (whole)
        WEFT_TRY(wefti_training_validate(t));
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_SAVING);
    WEFT_TRY(wefti_training_unsaved(t, &unsaved));
    if (unsaved) {
        if (whole) WEFT_TRY(wefti_training_check_parameters(t));
        WEFT_TRY(wefti_training_save(t, &unwritten));
    } else if (whole) {
        prune(t);
    }
    if (unwritten >= 0) WEFT_TRY(wefti_saver_finish(wefti_training_saver(t), &unwritten));
    if (unwritten < 0) /* on all ranks alike, which agree on it once more */
        return wefti_party_agree(&t->setup.party, unwritten);
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    WEFT_TRY(wefti_training_stops(t, WEFT_OK, &stop));
    WEFT_TRY(wefti_training_end_trace(t));
    WEFT_REQUIRE(!stop || t->ranks.stopping == WEFT_TRAIN_STOPPED_BY_FILE, WEFT_E_STOPPED,
                 "stopped after step %lld", (long long)t->progress.step);
    if (t->progress.ratings.best.step >= 0)
        wefti_setup_note(&t->setup, "the best checkpoint is of step %lld, validation loss %.6g",
                         (long long)t->progress.ratings.best.step, t->progress.ratings.best.loss);
    t->result->observed_peak_bytes = wefti_training_observed(t);
    const weft_session_memory m = weft_session_memory_of(t->built->session);
    t->result->cache_hits = m.cache_hits;
    t->result->cache_misses = m.cache_misses;
    t->result->cache_written = m.cache_written;
    t->result->cache_look_ups = m.cache_look_ups;
    t->result->cache_look_ups_hit = m.cache_look_ups_hit;
    t->result->cache_ahead = m.cache_ahead;
    return WEFT_OK;
}
