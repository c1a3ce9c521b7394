/* A checkpoint that one process writes, or that all ranks of a world write. Each rank writes its
 * own pieces into files that rank 0 has created, while the next steps compute:
 *
 * 1. Rank 0 prepares the directory. Every other rank looks for it under its own checkpoint.dir.
 * 2. Rank 0 creates the files. Every other rank opens those that it needs.
 * 3. Each rank writes its pieces.
 * 4. When all have, the ranks exchange the sums of their pieces (states.c).
 * 5. Rank 0 completes the step. Until it renames the directory, the step does not exist.
 *
 * A rank that does not see the directory takes no part. Rank 0 gathers the tensors of which such a
 * rank has pieces (gather.c), before the run goes on. */
#include <string.h>
#include <time.h>

#include "checkpoint/run/run.h"
#include "session/save/parts.h"

/* ---- beginning ---- */

weft_status wefti_saver_broadcast(wefti_saver *v, weft_status status, void *data, size_t bytes) {
    if (!v->agreement) return status;
    return wefti_agree_broadcast(v->agreement, status, data, (int64_t)bytes);
}

weft_status wefti_saver_lock(wefti_saver *v) {
    if (!v->dir[0] || wefti_saver_follows(v)) return WEFT_OK;
    if (v->lock) return wefti_checkpoint_lock_keep(v->dir, &v->lock);
    WEFT_TRY(wefti_run_refuse_part(v->dir));
    return wefti_checkpoint_lock_open(v->dir, &v->lock);
}

static weft_status begin_write(wefti_saver *v, wefti_checkpoint_duty duty) {
    wefti_checkpoint_tensor *tensors;
    WEFT_TRY(wefti_saver_tensors(v, &tensors));
    wefti_save_part part = {.dir = v->dir,
                            .now = (int64_t)time(NULL),
                            .tensors = tensors,
                            .count = v->list.count,
                            .options = {.duty = duty}};
    weft_status status = WEFT_OK;
    if (duty == WEFTI_CHECKPOINT_LEADS) {
        status = wefti_delivery_create(v->list.count, &v->delivery);
        if (status >= 0) wefti_delivery_options(v->delivery, &part.options);
    }
    if (status >= 0) status = v->owner.begin(v->owner.context, &part, &v->writing);
    wefti_free(tensors);
    return status;
}

weft_status wefti_saver_begin_alone(wefti_saver *v) {
    WEFT_TRY(wefti_saver_lock(v));
    WEFT_TRY(begin_write(v, WEFTI_CHECKPOINT_ALONE));
    wefti_saver_wait_states(v);
    return WEFT_OK;
}

/* Marks the tensors that rank 0 must gather. sees: [ranks]. */
static weft_status mark_apart(wefti_saver *v, const char *sees) {
    wefti_session_piece *pieces;
    if (!v->list.apart) WEFT_NEW_ARRAY(v->list.apart, bool, v->list.count + 1);
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(v->session));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < v->list.count && status >= 0; i++) {
        int32_t found = 0;
        weft_desc whole;
        status = wefti_saved_pieces(v->session, v->list.tensors[i].tensor, pieces, &found, &whole);
        v->list.apart[i] = false;
        for (int32_t k = 0; k < found && status >= 0; k++)
            v->list.apart[i] |= pieces[k].counts && !sees[pieces[k].rank];
        if (status >= 0 && v->list.apart[i] && wefti_saves_by_hand(v->session))
            status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                                "not all ranks see %s: in mode manual all ranks must, or save "
                                "sliced",
                                v->dir);
    }
    wefti_free(pieces);
    return status;
}

/* Rank 0: the directory, with a number by which other ranks know it. */
static weft_status prepare(wefti_saver *v, uint64_t *out_number) {
    if (wefti_saver_follows(v)) return WEFT_OK;
    WEFT_TRY(wefti_saver_lock(v));
    return wefti_checkpoint_prepare(v->dir, v->step, out_number);
}

/* Collective: sees[r]: rank r sees the directory. */
static weft_status look(wefti_saver *v, uint64_t number, char *sees) {
    char own = !wefti_saver_follows(v) || wefti_checkpoint_sees(v->dir, v->step, number);
    return wefti_agree_records(v->agreement, &own, sizeof own, sees);
}

static weft_status unprepare(wefti_saver *v, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (!wefti_saver_follows(v)) wefti_checkpoint_unprepare(v->dir, v->step);
    return wefti_failure_tell(&failure);
}

/* Rank 0 creates the files and begins its part. */
static weft_status lead(wefti_saver *v) {
    if (wefti_saver_follows(v)) return WEFT_OK;
    weft_status status = begin_write(v, WEFTI_CHECKPOINT_LEADS);
    return status < 0 ? unprepare(v, status) : WEFT_OK;
}

static weft_status begin_parts(wefti_saver *v, uint64_t number, char *sees) {
    WEFT_TRY(look(v, number, sees));
    weft_status status = wefti_agree(v->agreement, mark_apart(v, sees));
    if (status < 0) return unprepare(v, status);
    WEFT_TRY(wefti_saver_broadcast(v, lead(v), &number, sizeof number));
    if (wefti_saver_follows(v) && sees[weft_world_rank(v->world)])
        wefti_failure_keep(begin_write(v, WEFTI_CHECKPOINT_JOINS), &v->part);
    status = wefti_saver_deliver(v);
    wefti_delivery_end(v->delivery); /* no thread waits for tensors that will not come */
    if (status >= 0) wefti_saver_wait_states(v);
    return status;
}

weft_status wefti_saver_begin_together(wefti_saver *v) {
    uint64_t number = 0;
    WEFT_TRY(wefti_saver_broadcast(v, prepare(v, &number), &number, sizeof number));
    char *sees = wefti_calloc((size_t)weft_world_size(v->world), 1);
    weft_status status = begin_parts(v, number, sees);
    wefti_free(sees);
    return status;
}

/* ---- completing, also of sliced steps ---- */

/* The sum of this rank's pieces of a saved tensor. */
typedef struct part_sum {
    int64_t tensor;
    uint32_t sum;
    uint32_t unused;
} part_sum;

typedef struct sums {
    part_sum *own; /* [tensors]: those that are not 0 */
    int64_t used, bytes;
    uint32_t *all;    /* [tensors]: of all ranks */
    int64_t *written; /* [ranks]: bytes */
} sums;

static weft_status sums_create(const wefti_saver *v, sums *s) {
    WEFT_NEW_ARRAY(s->own, part_sum, v->list.count + 1);
    WEFT_NEW_ARRAY(s->all, uint32_t, v->list.count + 1);
    WEFT_NEW_ARRAY(s->written, int64_t, weft_world_size(v->world));
    if (!v->writing) return WEFT_OK; /* a rank that does not see the directory */
    const uint32_t *part = wefti_checkpoint_sums(v->writing, &s->bytes);
    for (int64_t i = 0; i < v->list.count; i++)
        if (part[i]) s->own[s->used++] = (part_sum){.tensor = i, .sum = part[i]};
    return WEFT_OK;
}

/* Collective: the sums and the bytes of all ranks. */
static weft_status gather_sums(wefti_saver *v, sums *s, int64_t *out_bytes) {
    const int size = weft_world_size(v->world);
    int64_t *offsets = NULL;
    char *all = NULL;
    WEFT_TRY(wefti_agree_records(v->agreement, &s->bytes, sizeof s->bytes, s->written));
    WEFT_TRY(wefti_agree_gather(v->agreement, s->own, s->used * (int64_t)sizeof *s->own, &all,
                                &offsets));
    for (int r = 0; r < size; r++) *out_bytes += s->written[r];
    for (int64_t at = 0; at < offsets[size]; at += (int64_t)sizeof(part_sum)) {
        part_sum part;
        memcpy(&part, all + at, sizeof part);
        s->all[part.tensor] ^= part.sum;
    }
    wefti_free(offsets);
    return WEFT_OK;
}

weft_status wefti_saver_sum(wefti_saver *v) {
    const bool completes = wefti_saver_is_sliced(v) || !wefti_saver_follows(v);
    int64_t bytes = 0;
    sums s = {0};
    weft_status status = wefti_agree(v->agreement, sums_create(v, &s));
    if (status >= 0) status = gather_sums(v, &s, &bytes);
    if (status >= 0 && completes) wefti_checkpoint_complete(v->writing, s.all, bytes);
    wefti_free(s.own);
    wefti_free(s.all);
    wefti_free(s.written);
    return status;
}
