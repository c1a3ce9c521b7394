/* A checkpoint that all ranks of a world write. Each rank writes its own pieces into files that
 * rank 0 has created, while the next steps compute:
 *
 * 1. Rank 0 prepares the directory. Every other rank looks for it under its own checkpoint.dir.
 * 2. Rank 0 creates the files. Every other rank opens those that it needs.
 * 3. Each rank writes its pieces.
 * 4. When all have, the ranks send the sums of their pieces to rank 0 (states.c).
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
    WEFT_TRY(wefti_checkpoint_lock_keep(dir, &t->saving.lock));
    return wefti_checkpoint_prepare(dir, t->progress.step, out_number);
}

/* Collective: sees[r]: rank r sees the directory. */
static weft_status look(wefti_training *t, uint64_t number, char *sees) {
    char own = !t->ranks.follows ||
               wefti_checkpoint_sees(t->job->checkpoint.dir, t->progress.step, number);
    return wefti_agree_records(t->ranks.agreement, &own, sizeof own, sees);
}

/* Rank 0 creates the files and begins its part. */
static weft_status lead(wefti_training *t) {
    if (t->ranks.follows) return WEFT_OK;
    weft_status status = wefti_training_begin_write(t, WEFTI_CHECKPOINT_LEADS);
    if (status < 0) wefti_checkpoint_unprepare(t->job->checkpoint.dir, t->progress.step);
    return status;
}

static weft_status begin_parts(wefti_training *t, uint64_t number, char *sees) {
    WEFT_TRY(look(t, number, sees));
    weft_status status = mark_apart(t, sees);
    if (status < 0) return wefti_fail_world(t->ranks.world, status);
    WEFT_TRY(wefti_training_broadcast(t, lead(t), &number, sizeof number));
    if (t->ranks.follows && sees[weft_world_rank(t->ranks.world)])
        wefti_failure_keep(wefti_training_begin_write(t, WEFTI_CHECKPOINT_JOINS), &t->saving.part);
    status = wefti_training_deliver(t);
    wefti_delivery_end(t->saving.delivery); /* no thread waits for tensors that will not come */
    if (status >= 0) wefti_training_wait_states(t);
    return status;
}

weft_status wefti_training_begin_together(wefti_training *t) {
    uint64_t number = 0;
    char *sees;
    WEFT_TRY(wefti_training_broadcast(t, prepare(t, &number), &number, sizeof number));
    WEFT_NEW_ARRAY(sees, char, weft_world_size(t->ranks.world));
    weft_status status = begin_parts(t, number, sees);
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
        status = sums ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to complete a checkpoint");
        wefti_free(sums);
    }
    wefti_free(offsets);
    return wefti_fail_world(t->ranks.world, status);
}

weft_status wefti_training_sum_together(wefti_training *t) {
    part_sum *own = NULL;
    int64_t count = 0, bytes = 0;
    weft_status status = wefti_agree(t->ranks.agreement, own_sums(t, &own, &count, &bytes));
    if (status >= 0) status = complete(t, own, count, bytes);
    wefti_free(own);
    return status;
}
