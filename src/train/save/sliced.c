/* Sliced checkpoints: each rank of a world writes what it has into a directory of its own.
 *
 * 1. Each rank begins a step in DIR/rank_R: all regions that it has, replicas too.
 * 2. At the begin of each training step the ranks exchange whether a part is pending.
 * 3. When no part is pending, the ranks exchange the sums of their parts. Each one knows the
 *    checksums of all whole tensors then, writes its manifest, and renames its step into place.
 * 4. When no rank is busy, the ranks agree whether all have done so. Only then the step counts, and
 *    each rank removes its older steps.
 *
 * After a failure on one rank the others may have the step. A reader finds regions that no rank
 * has, and takes the step before, which all ranks still have. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "layout/reshape.h"
#include "layout/transfer.h"
#include "train/save/save.h"

bool wefti_training_is_sliced(const wefti_training *t) {
    return t->job->checkpoint.sliced && t->ranks.world;
}

static int32_t own_rank(const wefti_training *t) {
    return t->ranks.world ? weft_world_rank(t->ranks.world) : 0;
}

weft_status wefti_training_lock_slices(wefti_training *t) {
    char *dir = NULL;
    if (!wefti_training_is_sliced(t) || !t->job->checkpoint.dir[0]) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_rank_dir(t->job->checkpoint.dir, own_rank(t), &dir));
    weft_status status = t->saving.slices_lock
                             ? wefti_checkpoint_lock_keep(dir, &t->saving.slices_lock)
                             : wefti_checkpoint_lock_open(dir, &t->saving.slices_lock);
    wefti_free(dir);
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : WEFT_OK;
}

/* ---- what each rank has ---- */

/* Lists being filled. Arrays grow, so places in them are numbers until the end. */
typedef struct slicing {
    wefti_training *t;
    wefti_arena *arena;
    wefti_checkpoint_slice *slices;
    wefti_checkpoint_tensor *own; /* `pieces` and `part` lie in the arena */
    int64_t slice_count, slice_room, own_count, own_room;
    /* The piece in hand. */
    int64_t tensor, rows, tensor_slices;
    int32_t own_slices; /* of the tensor */
    const wefti_saved_tensor *saved;
    const weft_desc *whole; /* of the session */
    const int32_t *ranks;
    int32_t rank_count;
    const wefti_session_piece *mine; /* this rank's; NULL: it has none */
    bool counts;
} slicing;

static weft_status add_own(slicing *s, const wefti_region *from, const wefti_region *to) {
    const wefti_saved_tensor *saved = s->saved;
    wefti_checkpoint_piece *piece = wefti_arena_alloc(s->arena, sizeof *piece);
    wefti_region *part = wefti_arena_alloc(s->arena, sizeof *part);
    const char *name = s->own_slices
                           ? wefti_arena_format(s->arena, "%s#%d", saved->name, (int)s->own_slices)
                           : wefti_arena_strdup(s->arena, saved->name);
    WEFT_REQUIRE(piece && part && name, WEFT_E_NOMEM, "no memory for the list of slices");
    *piece = (wefti_checkpoint_piece){s->mine->box, s->mine->data, s->mine->device};
    *part = *from;
    if (s->rows) part->begin[0] += saved->first / (weft_desc_elems(s->whole) / s->whole->shape[0]);
    weft_desc desc = saved->desc;
    for (int d = 0; d < desc.rank; d++) desc.shape[d] = to->size[d];
    WEFT_TRY(WEFT_GROW(s->own, s->own_count, s->own_room));
    s->own[s->own_count++] = (wefti_checkpoint_tensor){.name = name,
                                                       .role = saved->role,
                                                       .desc = desc,
                                                       .pieces = piece,
                                                       .piece_count = 1,
                                                       .whole = *s->whole,
                                                       .part = part};
    s->own_slices++;
    return WEFT_OK;
}

/* A box of the session's tensor, less the rows before the saved one, and of the saved tensor. */
static weft_status add_slice(void *context, const wefti_region *from, const wefti_region *to) {
    slicing *s = context;
    WEFT_REQUIRE(++s->tensor_slices <= WEFTI_CHECKPOINT_SLICES_MOST, WEFT_E_NO_IMPL,
                 "checkpoint.sliced: the parts of %s that ranks hold are more than %d blocks in "
                 "the form of the model's files",
                 s->saved->name, WEFTI_CHECKPOINT_SLICES_MOST);
    WEFT_TRY(WEFT_GROW(s->slices, s->slice_count, s->slice_room));
    s->slices[s->slice_count++] = (wefti_checkpoint_slice){.tensor = s->tensor,
                                                           .region = *to,
                                                           .ranks = s->ranks,
                                                           .rank_count = s->rank_count,
                                                           .own = s->mine ? s->own_count : -1,
                                                           .counts = s->counts};
    return s->mine ? add_own(s, from, to) : WEFT_OK;
}

/* The part of a counting piece that the saved tensor has. Saved tensors are whole rows. */
static weft_status add_piece(slicing *s, const wefti_region *box) {
    const wefti_saved_tensor *saved = s->saved;
    weft_desc local = *s->whole;
    wefti_region region = *box;
    s->rows = 0;
    if (weft_desc_elems(&saved->desc) != weft_desc_elems(&local)) {
        const int64_t row = weft_desc_elems(&local) / local.shape[0];
        const int64_t begin = saved->first / row, end = begin + weft_desc_elems(&saved->desc) / row;
        const int64_t last = region.begin[0] + region.size[0];
        const int64_t from = region.begin[0] > begin ? region.begin[0] : begin,
                      to = last < end ? last : end;
        if (from >= to) return WEFT_OK;
        local.shape[0] = s->rows = end - begin;
        region.begin[0] = from - begin;
        region.size[0] = to - from;
    }
    return wefti_region_reshape(&local, &region, &saved->desc, add_slice, s);
}

/* pieces[at] counts: all ranks with its region. */
static weft_status add_region(slicing *s, const wefti_session_piece *pieces, int32_t count,
                              int32_t at) {
    const int32_t me = own_rank(s->t);
    int32_t *ranks = wefti_arena_alloc(s->arena, (size_t)count * sizeof *ranks);
    WEFT_REQUIRE(ranks, WEFT_E_NOMEM, "no memory for the list of slices");
    s->rank_count = 0;
    s->mine = NULL;
    s->counts = pieces[at].rank == me;
    for (int32_t k = 0; k < count; k++) {
        if (pieces[k].term || !wefti_regions_equal(&pieces[k].box, &pieces[at].box, s->whole->rank))
            continue;
        ranks[s->rank_count++] = pieces[k].rank;
        if (pieces[k].rank == me) s->mine = &pieces[k];
    }
    s->ranks = ranks;
    return add_piece(s, &pieces[at].box);
}

static weft_status list_tensor(slicing *s, int64_t index, wefti_session_piece *pieces) {
    const wefti_saved_tensor *saved = &s->t->saving.tensors[index];
    weft_tensor_info info;
    int32_t count = 0;
    WEFT_TRY(weft_session_tensor(s->t->session, 0, saved->tensor, &info));
    WEFT_TRY(wefti_session_pieces(s->t->session, 0, saved->tensor, pieces, &count));
    s->tensor = index;
    s->saved = saved;
    s->whole = &info.desc;
    s->own_slices = 0;
    s->tensor_slices = 0;
    for (int32_t k = 0; k < count; k++)
        if (pieces[k].counts && wefti_region_elems(&pieces[k].box, info.desc.rank) > 0)
            WEFT_TRY(add_region(s, pieces, count, k));
    return WEFT_OK;
}

static weft_status list_slices(slicing *s) {
    wefti_session_piece *pieces;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(s->t->session));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < s->t->saving.count && status >= 0; i++)
        status = list_tensor(s, i, pieces);
    wefti_free(pieces);
    return status;
}

static weft_status begin_own(wefti_training *t, slicing *s, int64_t now) {
    wefti_checkpoint_tensor *wholes;
    const int64_t count = t->saving.count;
    WEFT_TRY(wefti_training_lock_slices(t));
    WEFT_TRY(list_slices(s));
    WEFT_NEW_ARRAY(wholes, wefti_checkpoint_tensor, count + 1);
    for (int64_t i = 0; i < count; i++)
        wholes[i] = (wefti_checkpoint_tensor){.name = t->saving.tensors[i].name,
                                              .role = t->saving.tensors[i].role,
                                              .desc = t->saving.tensors[i].desc};
    const wefti_checkpoint_slicing what = {.rank = own_rank(t),
                                           .ranks = weft_world_size(t->ranks.world),
                                           .wholes = wholes,
                                           .whole_count = count,
                                           .slices = s->slices,
                                           .slice_count = s->slice_count};
    weft_status status = wefti_training_begin_slices(t, &what, s->own, s->own_count, now);
    wefti_free(wholes);
    return status;
}

/* Collective. A rank that cannot begin says so when the parts are complete. */
weft_status wefti_training_save_sliced(wefti_training *t, bool last) {
    slicing s = {.t = t};
    int64_t now = wefti_training_clock();
    WEFT_TRY(
        wefti_training_broadcast(t, WEFT_OK, &now, sizeof now)); /* one time in all manifests */
    weft_status status = wefti_arena_create(&s.arena);
    if (status >= 0) status = begin_own(t, &s, now);
    wefti_failure_keep(status, &t->saving.part);
    wefti_free(s.slices);
    wefti_free(s.own);
    wefti_arena_destroy(s.arena);
    t->saving.together = true;
    t->saving.committing = false;
    t->saving.last = last;
    t->saving.parts_done = false;
    t->saving.writing_step = t->progress.step;
    for (int64_t i = 0; i < t->saving.states; i++)
        wefti_checkpoint_wait_tensor(t->saving.writing, i);
    return WEFT_OK;
}

/* ---- completing ---- */

bool wefti_training_slices_pending(const wefti_training *t) {
    if (!t->saving.writing) return false;
    return t->saving.committing ? wefti_checkpoint_poll(t->saving.writing) == WEFT_PENDING
                                : wefti_checkpoint_written(t->saving.writing) == WEFT_PENDING;
}

typedef struct slice_sum {
    int64_t tensor;
    uint32_t sum;
    uint32_t unused;
} slice_sum;

/* What exchange_sums works with. */
typedef struct sums {
    slice_sum *own; /* [tensors]: those that are not 0 */
    int64_t used;
    uint32_t *all;    /* [tensors]: of all ranks */
    int64_t *written; /* [ranks]: bytes */
} sums;

static weft_status sums_create(const wefti_training *t, const uint32_t *part, sums *s) {
    const int64_t count = t->saving.count;
    WEFT_NEW_ARRAY(s->own, slice_sum, count + 1);
    WEFT_NEW_ARRAY(s->all, uint32_t, count + 1);
    WEFT_NEW_ARRAY(s->written, int64_t, weft_world_size(t->ranks.world));
    for (int64_t i = 0; i < count; i++)
        if (part[i]) s->own[s->used++] = (slice_sum){.tensor = i, .sum = part[i]};
    return WEFT_OK;
}

static void sums_free(sums *s) {
    wefti_free(s->own);
    wefti_free(s->all);
    wefti_free(s->written);
}

/* Collective: gathers the sums and the bytes of all ranks. */
static weft_status gather_sums(wefti_training *t, int64_t bytes, sums *s, int64_t *out_bytes) {
    const int size = weft_world_size(t->ranks.world);
    int64_t *offsets = NULL;
    char *all = NULL;
    WEFT_TRY(wefti_agree_records(t->ranks.agreement, &bytes, sizeof bytes, s->written));
    WEFT_TRY(wefti_agree_gather(t->ranks.agreement, s->own, s->used * (int64_t)sizeof *s->own, &all,
                                &offsets));
    for (int r = 0; r < size; r++) *out_bytes += s->written[r];
    for (int64_t at = 0; at < offsets[size]; at += (int64_t)sizeof(slice_sum)) {
        slice_sum part;
        memcpy(&part, all + at, sizeof part);
        s->all[part.tensor] ^= part.sum;
    }
    wefti_free(offsets);
    return WEFT_OK;
}

/* Every rank adds the sums of all ranks, and goes on with its step. */
static weft_status exchange_sums(wefti_training *t) {
    int64_t bytes = 0, total = 0;
    const uint32_t *part = wefti_checkpoint_sums(t->saving.writing, &bytes);
    sums s = {0};
    weft_status status = wefti_fail_world(t->ranks.world, sums_create(t, part, &s));
    if (status >= 0) status = gather_sums(t, bytes, &s, &total);
    if (status >= 0) wefti_checkpoint_complete(t->saving.writing, s.all, total);
    sums_free(&s);
    return status;
}

static weft_status end_job(wefti_training *t, bool good) {
    wefti_checkpoint_job *job = t->saving.writing;
    t->saving.writing = NULL;
    t->saving.together = t->saving.committing = false;
    if (good) return wefti_checkpoint_finish(job, NULL);
    wefti_checkpoint_cancel(job);
    return WEFT_OK;
}

/* The ranks have agreed on a failure. The run itself goes on. */
static weft_status give_up(wefti_training *t, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    weft_status ended = end_job(t, false);
    if (ended < 0) wefti_error_clear();
    (void)wefti_failure_tell(&failure);
    if (!wefti_agreement_failed(t->ranks.agreement)) return status;
    status = wefti_prefix(status, "the checkpoint of step %lld", (long long)t->saving.writing_step);
    if (!t->ranks.follows) wefti_training_note_unwritten(t, status);
    return wefti_agree(t->ranks.agreement, WEFT_OK);
}

weft_status wefti_training_prune_slices(wefti_training *t, bool last) {
    const weft_job_checkpoint *c = &t->job->checkpoint;
    const int64_t keep = c->keep + !last;
    char *dir = NULL;
    WEFT_TRY(wefti_checkpoint_rank_dir(c->dir, own_rank(t), &dir));
    weft_status status =
        wefti_checkpoint_prune_spaced(dir, keep, c->keep_minutes * 60, t->saving.committed_step);
    wefti_free(dir);
    if (status >= 0 && !t->ranks.follows)
        status = wefti_checkpoint_prune_sliced(c->dir, weft_world_size(t->ranks.world), keep,
                                               t->saving.committed_step);
    return status;
}

/* All ranks have the step. */
static weft_status commit(wefti_training *t) {
    WEFT_TRY(end_job(t, true));
    WEFT_TRY(wefti_training_report_written(t));
    if (wefti_training_prune_slices(t, t->saving.last) >= 0) return WEFT_OK;
    if (!t->ranks.follows)
        wefti_training_note(t, "step %lld is written, but: %s", (long long)t->saving.committed_step,
                            weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

weft_status wefti_training_complete_slices(wefti_training *t) {
    const bool committing = t->saving.committing;
    weft_status status = t->saving.part.status < 0 ? wefti_failure_tell(&t->saving.part) : WEFT_OK;
    if (status >= 0)
        status = committing ? wefti_checkpoint_poll(t->saving.writing)
                            : wefti_checkpoint_written(t->saving.writing);
    status = wefti_agree(t->ranks.agreement, status < 0 ? status : WEFT_OK);
    if (status < 0) return give_up(t, status);
    if (committing) return commit(t);
    t->saving.committing = true;
    return exchange_sums(t);
}

weft_status wefti_training_finish_slices(wefti_training *t) {
    while (t->saving.together) {
        if (t->saving.writing && t->saving.committing)
            wefti_checkpoint_wait_done(t->saving.writing);
        else if (t->saving.writing)
            wefti_checkpoint_wait_written(t->saving.writing);
        WEFT_TRY(wefti_training_complete_slices(t));
    }
    return WEFT_OK;
}
