/* Sliced checkpoints: each rank of a world writes what it has into a directory of its own.
 *
 * 1. Each rank begins a step in DIR/rank_R: all regions that it has, replicas too.
 * 2. When all have written their parts, the ranks exchange the sums (states.c). Each one knows the
 *    checksums of all whole tensors then, writes its manifest, and renames its step into place.
 * 3. When all have done so, the step counts, and each rank removes its older steps. If one has
 *    failed, the others remove the step.
 *
 * If a process dies in between, the others may have the step. A reader finds regions that no rank
 * has, and takes the step before, which all ranks still have. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "checkpoint/step_dir.h"
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

/* A rank that cannot begin says so when the parts are written. */
weft_status wefti_training_begin_sliced(wefti_training *t) {
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
    wefti_training_wait_states(t);
    return WEFT_OK;
}

/* ---- completing ---- */

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

weft_status wefti_training_sum_sliced(wefti_training *t) {
    int64_t bytes = 0, total = 0;
    const uint32_t *part = wefti_checkpoint_sums(t->saving.writing, &bytes);
    sums s = {0};
    weft_status status = wefti_fail_world(t->ranks.world, sums_create(t, part, &s));
    if (status >= 0) status = gather_sums(t, bytes, &s, &total);
    if (status >= 0) wefti_checkpoint_complete(t->saving.writing, s.all, total);
    sums_free(&s);
    return status;
}

weft_status wefti_training_prune_slices(wefti_training *t) {
    const weft_job_checkpoint *c = &t->job->checkpoint;
    const int64_t keep = wefti_training_kept_steps(t);
    char *dir = NULL;
    WEFT_TRY(wefti_checkpoint_rank_dir(c->dir, own_rank(t), &dir));
    const int64_t best = wefti_training_best_step(t);
    weft_status status = wefti_checkpoint_prune_spaced(dir, keep, c->keep_minutes * 60, best,
                                                       t->saving.committed_step);
    wefti_free(dir);
    if (status >= 0 && !t->ranks.follows)
        status = wefti_checkpoint_prune_sliced(c->dir, weft_world_size(t->ranks.world), keep, best,
                                               t->saving.committed_step);
    return status;
}

void wefti_training_remove_slices(wefti_training *t) {
    char *dir = NULL;
    if (wefti_checkpoint_rank_dir(t->job->checkpoint.dir, own_rank(t), &dir) < 0 ||
        wefti_step_remove(dir, t->saving.writing_step) < 0)
        wefti_error_clear();
    wefti_free(dir);
}
