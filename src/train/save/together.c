/* A checkpoint that all ranks of a world write. Each rank writes its own pieces into files that
 * rank 0 has created, while the next steps compute:
 *
 * 1. Rank 0 prepares the directory. Every other rank looks for it under its own checkpoint.dir.
 * 2. Rank 0 creates the files. Every other rank opens those that it needs.
 * 3. Each rank writes its pieces. At the begin of each step the ranks exchange whether a part is
 *    pending.
 * 4. When no part is pending, the ranks send the sums of their pieces to rank 0.
 * 5. Rank 0 completes the step. Until it renames the directory, the step does not exist.
 *
 * A rank that does not see the directory takes no part. Rank 0 gathers the tensors of which such a
 * rank has pieces (world.c), before the run goes on. */
#include <string.h>

#include "base/text.h"
#include "train/save/save.h"

/* The sum of this rank's piece of a saved tensor. */
typedef struct part_sum {
    int64_t tensor;
    uint32_t sum;
    uint32_t unused;
} part_sum;

bool wefti_training_part_pending(const wefti_training *t) {
    if (!t->saving.together) return false;
    if (wefti_training_is_sliced(t)) return wefti_training_slices_pending(t);
    return t->saving.writing && wefti_checkpoint_written(t->saving.writing) == WEFT_PENDING;
}

/* ---- beginning ---- */

/* Marks the tensors that rank 0 must gather. sees: [ranks]. */
static weft_status mark_apart(wefti_training *t, const char *sees) {
    wefti_session_piece *pieces;
    if (!t->saving.apart) WEFT_NEW_ARRAY(t->saving.apart, bool, t->saving.count + 1);
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(t->session));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < t->saving.count && status >= 0; i++) {
        int32_t found = 0;
        status = wefti_session_pieces(t->session, 0, t->saving.tensors[i].tensor, pieces, &found);
        t->saving.apart[i] = false;
        for (int32_t k = 0; k < found && status >= 0; k++)
            t->saving.apart[i] |= pieces[k].counts && !sees[pieces[k].rank];
    }
    wefti_free(pieces);
    return status;
}

/* Rank 0: the directory, with a number by which other ranks know it. */
static weft_status prepare(wefti_training *t, uint64_t *out_number) {
    const char *dir = t->job->checkpoint.dir;
    if (t->ranks.follows) return WEFT_OK;
    weft_status status = wefti_checkpoint_lock_keep(dir, &t->saving.lock);
    if (status >= 0) status = wefti_checkpoint_prepare(dir, t->progress.step, out_number);
    return status < 0
               ? wefti_prefix(status, "the checkpoint of step %lld", (long long)t->progress.step)
               : WEFT_OK;
}

/* Collective: sees[r]: rank r sees the directory. */
static weft_status look(wefti_training *t, uint64_t number, char *sees) {
    char own = !t->ranks.follows ||
               wefti_checkpoint_sees(t->job->checkpoint.dir, t->progress.step, number);
    return wefti_agree_records(t->ranks.agreement, &own, sizeof own, sees);
}

/* Rank 0's answer to the others, in a broadcast that succeeds: the run goes on without the step. */
typedef struct begun {
    uint64_t number;
    bool yes;
} begun;

static weft_status tell_begun(wefti_training *t, weft_status own, uint64_t *number, bool *out) {
    wefti_failure failure;
    wefti_failure_keep(own, &failure);
    begun b = {*number, own >= 0};
    WEFT_TRY(wefti_training_broadcast(t, WEFT_OK, &b, sizeof b));
    *number = b.number;
    *out = b.yes;
    if (own < 0) (void)wefti_failure_tell(&failure);
    return WEFT_OK;
}

/* Rank 0 creates the files and begins its part. */
static weft_status lead(wefti_training *t, bool last) {
    wefti_failure failure;
    weft_status status = wefti_training_begin_write(t, last, WEFTI_CHECKPOINT_LEADS);
    if (status >= 0) return status;
    wefti_failure_keep(status, &failure);
    wefti_checkpoint_unprepare(t->job->checkpoint.dir, t->progress.step);
    return wefti_failure_tell(&failure);
}

static weft_status begin_parts(wefti_training *t, bool last, uint64_t number, char *sees,
                               weft_status *out_unwritten) {
    bool yes;
    WEFT_TRY(look(t, number, sees));
    weft_status status = mark_apart(t, sees);
    if (status < 0) return wefti_fail_world(t->ranks.world, status);
    if (!t->ranks.follows) *out_unwritten = lead(t, last);
    WEFT_TRY(tell_begun(t, *out_unwritten, &number, &yes));
    if (!yes) return WEFT_OK;
    t->saving.together = true;
    t->saving.parts_done = false;
    wefti_failure_keep(WEFT_OK, &t->saving.part);
    if (t->ranks.follows && sees[weft_world_rank(t->ranks.world)])
        wefti_failure_keep(wefti_training_begin_write(t, last, WEFTI_CHECKPOINT_JOINS),
                           &t->saving.part);
    t->saving.writing_step = t->progress.step;
    status = wefti_training_deliver(t);
    wefti_delivery_end(t->saving.delivery); /* no thread waits for tensors that will not come */
    for (int64_t i = 0; i < t->saving.states && status >= 0; i++)
        wefti_checkpoint_wait_tensor(t->saving.writing, i);
    return status;
}

weft_status wefti_training_save_together(wefti_training *t, bool last, weft_status *out_unwritten) {
    uint64_t number = 0;
    bool yes;
    char *sees;
    *out_unwritten = prepare(t, &number);
    WEFT_TRY(tell_begun(t, *out_unwritten, &number, &yes));
    if (!yes) return WEFT_OK;
    WEFT_NEW_ARRAY(sees, char, weft_world_size(t->ranks.world));
    weft_status status = begin_parts(t, last, number, sees, out_unwritten);
    wefti_free(sees);
    return status;
}

/* ---- completing ---- */

/* The sums of the own pieces, of tensors that have some. */
static weft_status own_sums(const wefti_training *t, part_sum **out, int64_t *out_count,
                            int64_t *out_bytes) {
    WEFT_NEW_ARRAY(*out, part_sum, t->saving.count + 1);
    if (!t->saving.writing) return WEFT_OK;
    const uint32_t *sums = wefti_checkpoint_sums(t->saving.writing, out_bytes);
    for (int64_t i = 0; i < t->saving.count; i++)
        if (sums[i]) (*out)[(*out_count)++] = (part_sum){.tensor = i, .sum = sums[i]};
    return WEFT_OK;
}

/* Rank 0 adds the sums of all ranks. */
static weft_status complete(wefti_training *t, const part_sum *own, int64_t count, int64_t bytes) {
    const int size = weft_world_size(t->ranks.world);
    char *all;
    int64_t *offsets, *written, total = 0;
    uint32_t *sums;
    WEFT_NEW_ARRAY(written, int64_t, size);
    weft_status status = wefti_agree_records(t->ranks.agreement, &bytes, sizeof bytes, written);
    for (int r = 0; r < size && status >= 0; r++) total += written[r];
    wefti_free(written);
    WEFT_TRY(status);
    WEFT_TRY(
        wefti_agree_gather(t->ranks.agreement, own, count * (int64_t)sizeof *own, &all, &offsets));
    if (!t->ranks.follows) {
        sums = wefti_calloc((size_t)t->saving.count + 1, sizeof *sums);
        for (int64_t at = 0; sums && at < offsets[size]; at += (int64_t)sizeof(part_sum)) {
            part_sum part;
            memcpy(&part, all + at, sizeof part);
            sums[part.tensor] ^= part.sum;
        }
        if (sums) wefti_checkpoint_complete(t->saving.writing, sums, total);
        t->saving.incomplete = !sums;
        status = sums ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to complete a checkpoint");
        wefti_free(sums);
    }
    wefti_free(offsets);
    return wefti_fail_world(t->ranks.world, status);
}

/* Ends the job of this rank after the parts are agreed on. Rank 0's goes on if all is well. */
static void end_part(wefti_training *t, bool good) {
    if (good && !t->ranks.follows) return;
    wefti_checkpoint_cancel(t->saving.writing);
    t->saving.writing = NULL;
    t->saving.incomplete = false;
    wefti_delivery_destroy(t->saving.delivery);
    t->saving.delivery = NULL;
}

weft_status wefti_training_complete(wefti_training *t) {
    if (wefti_training_is_sliced(t)) return wefti_training_complete_slices(t);
    part_sum *own = NULL;
    int64_t count = 0, bytes = 0;
    weft_status status = t->saving.part.status < 0 ? wefti_failure_tell(&t->saving.part) : WEFT_OK;
    t->saving.together = false;
    if (status >= 0 && t->saving.writing) status = wefti_checkpoint_written(t->saving.writing);
    if (status >= 0) status = own_sums(t, &own, &count, &bytes);
    status = wefti_agree(t->ranks.agreement, status < 0 ? status : WEFT_OK);
    if (status >= 0) {
        status = complete(t, own, count, bytes);
        end_part(t, status >= 0);
    } else if (wefti_agreement_failed(t->ranks.agreement)) {
        end_part(t, false);
        status =
            wefti_prefix(status, "the checkpoint of step %lld", (long long)t->saving.writing_step);
        if (!t->ranks.follows) wefti_training_note_unwritten(t, status);
        status = wefti_agree(t->ranks.agreement, WEFT_OK); /* the run itself has not failed */
    } else {
        end_part(t, false);
    }
    wefti_free(own);
    return status;
}
