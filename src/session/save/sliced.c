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
#include <time.h>

#include "base/text.h"
#include "checkpoint/step_dir.h"
#include "layout/reshape.h"
#include "layout/transfer.h"
#include "session/save/parts.h"

weft_status wefti_saver_lock_slices(wefti_saver *v) {
    char *dir = NULL;
    if (!wefti_saver_is_sliced(v) || !v->dir[0]) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_rank_dir(v->dir, wefti_saver_rank(v), &dir));
    weft_status status = v->slices_lock ? wefti_checkpoint_lock_keep(dir, &v->slices_lock)
                                        : wefti_checkpoint_lock_open(dir, &v->slices_lock);
    wefti_free(dir);
    return status;
}

weft_status wefti_saver_clean(const wefti_saver *v, int64_t restored) {
    if (!v->slices_lock) return WEFT_OK;
    return wefti_checkpoint_clean_sliced(v->dir, wefti_saver_rank(v), restored);
}

/* ---- what each rank has ---- */

/* Lists being filled. Arrays grow, so places in them are numbers until the end. */
typedef struct slicing {
    wefti_saver *v;
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
    *piece = (wefti_checkpoint_piece){s->mine->box, s->mine->home};
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
    const int32_t me = wefti_saver_rank(s->v);
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
    const wefti_saved_tensor *saved = &s->v->list.tensors[index];
    weft_desc whole;
    int32_t count = 0;
    WEFT_TRY(wefti_saved_pieces(s->v->session, saved->tensor, pieces, &count, &whole));
    s->tensor = index;
    s->saved = saved;
    s->whole = &whole;
    s->own_slices = 0;
    s->tensor_slices = 0;
    for (int32_t k = 0; k < count; k++)
        if (pieces[k].counts && wefti_region_elems(&pieces[k].box, whole.rank) > 0)
            WEFT_TRY(add_region(s, pieces, count, k));
    return WEFT_OK;
}

static weft_status list_slices(slicing *s) {
    wefti_session_piece *pieces;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(s->v->session));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < s->v->list.count && status >= 0; i++)
        status = list_tensor(s, i, pieces);
    wefti_free(pieces);
    return status;
}

static weft_status begin_own(wefti_saver *v, slicing *s, int64_t now) {
    wefti_checkpoint_tensor *wholes;
    char *dir = NULL;
    const int64_t count = v->list.count;
    WEFT_TRY(wefti_saver_lock(v));
    WEFT_TRY(wefti_saver_lock_slices(v));
    WEFT_TRY(list_slices(s));
    WEFT_TRY(wefti_checkpoint_rank_dir(v->dir, wefti_saver_rank(v), &dir));
    wholes = wefti_calloc((size_t)count + 1, sizeof *wholes);
    for (int64_t i = 0; i < count && wholes; i++)
        wholes[i] = (wefti_checkpoint_tensor){.name = v->list.tensors[i].name,
                                              .role = v->list.tensors[i].role,
                                              .desc = v->list.tensors[i].desc};
    const wefti_checkpoint_slicing what = {.rank = wefti_saver_rank(v),
                                           .ranks = weft_world_size(v->world),
                                           .wholes = wholes,
                                           .whole_count = count,
                                           .slices = s->slices,
                                           .slice_count = s->slice_count};
    const wefti_save_part part = {.dir = dir,
                                  .now = now,
                                  .tensors = s->own,
                                  .count = s->own_count,
                                  .options = {.duty = WEFTI_CHECKPOINT_SLICES, .slicing = &what}};
    weft_status status = wholes ? v->owner.begin(v->owner.context, &part, &v->writing)
                                : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the list of slices");
    wefti_free(wholes);
    wefti_free(dir);
    return status;
}

/* A rank that cannot begin says so when the parts are written. */
weft_status wefti_saver_begin_sliced(wefti_saver *v) {
    slicing s = {.v = v};
    int64_t now = (int64_t)time(NULL);
    WEFT_TRY(wefti_saver_broadcast(v, WEFT_OK, &now, sizeof now)); /* one time in all manifests */
    weft_status status = wefti_arena_create(&s.arena);
    if (status >= 0) status = begin_own(v, &s, now);
    wefti_failure_keep(status, &v->part);
    wefti_free(s.slices);
    wefti_free(s.own);
    wefti_arena_destroy(s.arena);
    wefti_saver_wait_states(v);
    return WEFT_OK;
}

/* ---- afterwards ---- */

weft_status wefti_saver_prune_slices(wefti_saver *v, const wefti_save_keep *keep, int64_t good) {
    const int64_t steps = keep->keep > 0 ? keep->keep : INT64_MAX;
    char *dir = NULL;
    WEFT_TRY(wefti_checkpoint_rank_dir(v->dir, wefti_saver_rank(v), &dir));
    weft_status status =
        keep->keep > 0 ? wefti_checkpoint_prune_spaced(dir, steps, keep->spacing, keep->best, good)
                       : WEFT_OK;
    wefti_free(dir);
    if (status >= 0 && !wefti_saver_follows(v))
        status = wefti_checkpoint_prune_sliced(v->dir, weft_world_size(v->world), steps, keep->best,
                                               good);
    return status;
}

void wefti_saver_remove_slices(wefti_saver *v) {
    char *dir = NULL;
    if (wefti_checkpoint_rank_dir(v->dir, wefti_saver_rank(v), &dir) < 0 ||
        wefti_step_remove(dir, v->step) < 0)
        wefti_error_clear();
    wefti_free(dir);
}
