/* Restores a checkpoint.
 *
 * In one process the checkpoint is checked when it is opened, and copied. In a world each rank
 * reads only the ranges of the files that it needs, all ranks at once, and sums the checksums of
 * what it has read. The sums of all ranks give the checksum of each tensor. Replicas on one host
 * read the same pages of the page cache. If some rank does not see the checkpoint, rank 0 reads
 * everything and broadcasts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/digest/digest.h"
#include "session/optimizer.h"
#include "data/fingerprint.h"
#include "train/save/save.h"

static weft_status compare(wefti_training *t, const wefti_checkpoint *c) {
    wefti_checkpoint_tensor *expected;
    WEFT_TRY(wefti_training_saved(t, &expected));
    weft_status status =
        wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, expected, t->saving.count);
    const char *before = wefti_checkpoint_meta_of(c)->optimizer,
               *now = wefti_optimizer_text(t->job->train.optimizer.name);
    if (status == WEFT_OK) {
        status = wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_OPTIMIZER, expected, t->saving.count);
        if (status < 0 && before && strcmp(before, now) != 0)
            (void)wefti_prefix(status, "the run began with train.optimizer.name: %s, not %s",
                               before, now);
    }
    wefti_free(expected);
    return status;
}

static weft_status damaged(const wefti_checkpoint *c, const wefti_checkpoint_entry *e,
                           uint32_t crc32c) {
    WEFT_FAIL(WEFT_E_CORRUPT, "tensor %s in %s/%s has the checksum %08x; %08x was written", e->name,
              wefti_checkpoint_path(c), e->file, crc32c, e->crc32c);
}

/* ---- whole tensors, which rank 0 reads ---- */

typedef struct restored {
    const wefti_checkpoint_entry *entry;
    uint32_t crc32c; /* of the copied bytes */
} restored;

static weft_status copy_out(void *context, int64_t first, int64_t count, void *out) {
    restored *r = context;
    size_t size = weft_dtype_bytes(r->entry->desc.dtype), bytes = (size_t)count * size;
    WEFT_TRY(wefti_reader_at(r->entry->reader, r->entry->at + first * (int64_t)size, (int64_t)bytes,
                             out));
    r->crc32c = wefti_crc32c(r->crc32c, out, bytes);
    return WEFT_OK;
}

/* Goes on after damage, so that all ranks make the same calls; *out_damage has the first one. */
static weft_status restore_whole(wefti_training *t, const wefti_checkpoint *c,
                                 wefti_failure *out_damage) {
    for (int64_t i = 0; i < t->saving.count; i++) {
        const wefti_saved_tensor *s = &t->saving.tensors[i];
        restored r = {c ? wefti_checkpoint_find(c, s->role, s->name) : NULL, 0};
        if (weft_desc_elems(&s->desc) == 0) continue;
        WEFT_TRY(wefti_session_fill(t->session, 0, s->tensor, s->first, weft_desc_elems(&s->desc),
                                    copy_out, &r));
        if (c && r.crc32c != r.entry->crc32c && out_damage->status >= 0)
            wefti_failure_keep(damaged(c, r.entry, r.crc32c), out_damage);
    }
    return WEFT_OK;
}

/* ---- pieces, which each rank reads ---- */

/* The sum of what a rank has read of a saved tensor. */
typedef struct read_sum {
    int64_t tensor;
    uint32_t sum;
    uint32_t counts; /* 1: the rank's piece counts; 0: it is a replica */
} read_sum;

static weft_status read_run(void *context, int64_t first, int64_t count, void *out) {
    return wefti_checkpoint_part_read(context, first, count, out);
}

/* HINT_BYTES: of the tensors whose ranges the disk reads ahead. */
enum { HINT_BYTES = 32 << 20 };

/* A pass over the saved tensors of this rank. */
typedef struct reading {
    wefti_training *t;
    const wefti_checkpoint *c;
    wefti_checkpoint_part *part;
    wefti_session_piece *pieces; /* of a tensor, on all devices */
    int64_t hinted;              /* tensors [0, hinted) were announced to the disk */
    int64_t ahead;               /* bytes of those that were not read so far */
} reading;

static weft_status pieces_of(reading *r, int64_t i, const wefti_checkpoint_entry **out,
                             int32_t *found) {
    const wefti_saved_tensor *s = &r->t->saving.tensors[i];
    *out = wefti_checkpoint_find(r->c, s->role, s->name);
    WEFT_REQUIRE(*out, WEFT_E_CORRUPT, "%s lacks %s", wefti_checkpoint_path(r->c), s->name);
    return wefti_session_pieces(r->t->session, 0, s->tensor, r->pieces, found);
}

/* Announces the ranges of the next tensors to the disk. */
static weft_status hint(reading *r) {
    const wefti_checkpoint_entry *e;
    weft_tensor_info info;
    int32_t found;
    for (; r->hinted < r->t->saving.count && r->ahead < HINT_BYTES; r->hinted++) {
        const wefti_saved_tensor *s = &r->t->saving.tensors[r->hinted];
        WEFT_TRY(pieces_of(r, r->hinted, &e, &found));
        WEFT_TRY(weft_session_tensor(r->t->session, 0, s->tensor, &info));
        for (int32_t k = 0; k < found; k++)
            if (r->pieces[k].data)
                wefti_checkpoint_soon(e, &info.desc, s->first, &r->pieces[k].box);
        r->ahead += e->bytes;
    }
    return WEFT_OK;
}

static weft_status read_tensor(reading *r, int64_t i, read_sum *out) {
    const wefti_saved_tensor *s = &r->t->saving.tensors[i];
    const wefti_checkpoint_entry *e;
    int32_t found;
    WEFT_TRY(hint(r));
    WEFT_TRY(pieces_of(r, i, &e, &found));
    wefti_checkpoint_part_begin(r->part, e);
    WEFT_TRY(wefti_session_fill_own(r->t->session, 0, s->tensor, s->first,
                                    weft_desc_elems(&s->desc), read_run, r->part));
    *out = (read_sum){i, wefti_checkpoint_part_sum(r->part), 0};
    for (int32_t k = 0; k < found; k++)
        if (r->pieces[k].data) out->counts |= r->pieces[k].counts;
    r->ahead -= e->bytes;
    return WEFT_OK;
}

/* Fills sums[i] for saved tensor i. */
static weft_status read_own(wefti_training *t, const wefti_checkpoint *c, read_sum *sums) {
    reading r = {.t = t, .c = c};
    WEFT_TRY(wefti_checkpoint_part_create(&r.part));
    r.pieces = wefti_calloc((size_t)weft_session_devices(t->session), sizeof *r.pieces);
    weft_status status =
        r.pieces ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to read a checkpoint");
    for (int64_t i = 0; i < t->saving.count && status >= 0; i++)
        status = read_tensor(&r, i, &sums[i]);
    wefti_free(r.pieces);
    wefti_checkpoint_part_destroy(r.part);
    return status;
}

/* Adds up the sums of all ranks, and compares. all: [ranks][saved tensors]. A replica must have the
 * sum of the counting piece that has its region. */
static weft_status check_sums(wefti_training *t, const wefti_checkpoint *c, const read_sum *all) {
    int64_t count = t->saving.count;
    const int size = weft_world_size(t->ranks.world), me = weft_world_rank(t->ranks.world);
    wefti_session_piece *pieces;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, size);
    for (int64_t i = 0; i < count && status >= 0; i++) {
        const wefti_saved_tensor *s = &t->saving.tensors[i];
        const wefti_checkpoint_entry *e = wefti_checkpoint_find(c, s->role, s->name);
        uint32_t sum = 0;
        int32_t found = 0, own = -1;
        for (int r = 0; r < size; r++)
            if (all[r * count + i].counts) sum ^= all[r * count + i].sum;
        uint32_t crc32c = wefti_crc32c_of_sums(sum, weft_desc_bytes(&s->desc));
        if (crc32c != e->crc32c) status = damaged(c, e, crc32c);
        if (status >= 0) status = wefti_session_pieces(t->session, 0, s->tensor, pieces, &found);
        for (int32_t k = 0; k < found; k++)
            if (pieces[k].rank == me && !pieces[k].counts && !pieces[k].term) own = k;
        for (int32_t k = 0; k < found && own >= 0 && status >= 0; k++)
            if (pieces[k].counts &&
                !memcmp(&pieces[k].box, &pieces[own].box, sizeof pieces[k].box) &&
                all[pieces[k].rank * count + i].sum != all[me * count + i].sum)
                status = WEFT_RAISE(WEFT_E_CORRUPT,
                                    "rank %d has read other bytes of %s from %s than rank %d", me,
                                    s->name, wefti_checkpoint_path(c), (int)pieces[k].rank);
    }
    wefti_free(pieces);
    return status;
}

/* Collective: all ranks see the checkpoint. Each reads its pieces once. */
static weft_status restore_once(wefti_training *t, const wefti_checkpoint *c,
                                wefti_failure *out_damage) {
    read_sum *sums;
    char *all = NULL;
    int64_t *offsets = NULL, bytes = t->saving.count * (int64_t)sizeof *sums;
    WEFT_NEW_ARRAY(sums, read_sum, t->saving.count + 1);
    weft_status status = wefti_agree(t->ranks.agreement, read_own(t, c, sums));
    if (status >= 0) status = wefti_agree_gather(t->ranks.agreement, sums, bytes, &all, &offsets);
    wefti_free(sums);
    WEFT_TRY(status);
    const read_sum *table = (const read_sum *)(const void *)all;
    wefti_failure_keep(check_sums(t, c, table), out_damage);
    wefti_free(offsets);
    return WEFT_OK;
}

/* Collective: whether one of the ranks says yes. */
static weft_status any_rank(const wefti_training *t, bool own, bool *out) {
    const int size = weft_world_size(t->ranks.world);
    const char mine = own;
    char *all;
    WEFT_NEW_ARRAY(all, char, size);
    weft_status status = wefti_agree_records(t->ranks.agreement, &mine, sizeof mine, all);
    *out = false;
    for (int r = 0; r < size; r++) *out |= all[r] != 0;
    wefti_free(all);
    return status;
}

/* Collective: all ranks see the checkpoint. After damage they read a sliced one again, and verify
 * slices then: replicas stand in for damaged ones. */
static weft_status restore_pieces(wefti_training *t, wefti_checkpoint *c,
                                  wefti_failure *out_damage) {
    bool damaged = false;
    WEFT_TRY(restore_once(t, c, out_damage));
    WEFT_TRY(any_rank(t, out_damage->status < 0, &damaged));
    if (!damaged || !wefti_checkpoint_doubt(c)) return WEFT_OK;
    wefti_failure_keep(WEFT_OK, out_damage);
    return restore_once(t, c, out_damage);
}

/* ---- all of it ---- */

/* A checkpoint without its tensors, read by rank 0. */
typedef struct progress {
    int64_t step, position;
    double loss;
    uint32_t identity; /* of the checkpoint */
    wefti_training_ratings ratings;
} progress;

/* Where the data are not those that the run has read, the order of samples and their loss mean
 * nothing any more. Validation data may change: the run says so. */
static weft_status check_data(wefti_training *t, const wefti_checkpoint *c) {
    const char *now = NULL, *path = wefti_checkpoint_path(c);
    const char *then =
        wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, WEFTI_TRAINING_DATA);
    char difference[WEFTI_DATA_DIFFERENCE];
    if (!then) {
        wefti_training_note(t,
                            "%s does not say which data it was trained on, so they cannot be "
                            "compared with those that are read now",
                            path);
        return WEFT_OK;
    }
    WEFT_TRY(wefti_data_fingerprint(t->data, &now));
    if (!wefti_data_same(now, then, WEFTI_DATA_TOKENIZER | WEFTI_DATA_TRAINING, "now",
                         "in the checkpoint", difference)) {
        WEFT_REQUIRE(t->job->checkpoint.other_data, WEFT_E_ARG,
                     "%s was trained on other data: %s; checkpoint.other_data: true goes on with "
                     "the data as they are now",
                     path, difference);
        wefti_training_note(t, "the run goes on with other data: %s", difference);
    }
    if (!wefti_data_same(now, then, WEFTI_DATA_VALIDATION, "now", "in the checkpoint", difference))
        wefti_training_note(t, "the run goes on with other validation data: %s", difference);
    return WEFT_OK;
}

static weft_status check_restored(wefti_training *t, const wefti_checkpoint *c, progress *out) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    WEFT_TRY(compare(t, c));
    WEFT_REQUIRE(meta->seed == t->job->train.seed, WEFT_E_ARG,
                 "%s was trained with train.seed %llu, not %llu: the same samples would not follow",
                 wefti_checkpoint_path(c), (unsigned long long)meta->seed,
                 (unsigned long long)t->job->train.seed);
    WEFT_TRY(check_data(t, c));
    *out = (progress){meta->step, meta->data_position, t->result->final_loss,
                      wefti_checkpoint_identity(c), t->progress.ratings};
    WEFT_TRY(wefti_training_read_ratings(t, meta, &out->ratings));
    if (meta->loss_count > 0) out->loss = meta->losses[meta->loss_count - 1].loss;
    return WEFT_OK;
}

static void note_differences(const wefti_training *t, const wefti_checkpoint *c) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    const char *samples = wefti_checkpoint_value(&meta->notes, "samples");
    int64_t now = weft_data_samples(t->data, WEFT_DATA_TRAIN);
    if (samples && strtoll(samples, NULL, 10) != now)
        wefti_training_note(t,
                            "the data have %lld samples, but had %s when the checkpoint was "
                            "written: the order of samples changes from here on",
                            (long long)now, samples);
    const char *optimizer = wefti_optimizer_text(t->job->train.optimizer.name);
    if (meta->optimizer && strcmp(meta->optimizer, optimizer))
        wefti_training_note(
            t,
            "the run began with train.optimizer.name: %s; it continues with %s, from "
            "that optimizer's states",
            meta->optimizer, optimizer);
    const char *isa = wefti_checkpoint_value(&meta->compute, "isa");
    if (isa && strcmp(isa, wefti_training_arithmetic(t)))
        wefti_training_note(
            t,
            "the checkpoint was computed with %s instructions, this processor uses %s: "
            "the last bits will differ",
            isa, wefti_training_arithmetic(t));
}

/* Collective: whether all ranks see rank 0's checkpoint. A rank opens it under its own directory.
 */
static weft_status open_everywhere(wefti_training *t, const progress *p, wefti_checkpoint **out,
                                   bool *all_see) {
    bool sees = true, some_do_not = false;
    if (t->ranks.follows) {
        weft_status status =
            wefti_checkpoint_open_unread(t->job->checkpoint.dir, p->step + 1, out, NULL);
        if (status < 0) wefti_error_clear(); /* "no" is an answer */
        sees = status >= 0 && wefti_checkpoint_meta_of(*out)->step == p->step &&
               wefti_checkpoint_identity(*out) == p->identity;
    }
    weft_status status = any_rank(t, !sees, &some_do_not);
    *all_see = !some_do_not;
    return status;
}

static weft_status restore_in_world(wefti_training *t, wefti_checkpoint *c, const progress *p) {
    wefti_checkpoint *mine = NULL;
    wefti_failure damage;
    bool all_see = false;
    wefti_failure_keep(WEFT_OK, &damage);
    weft_status status = open_everywhere(t, p, &mine, &all_see);
    if (c && !all_see) (void)wefti_checkpoint_doubt(c); /* nobody could read it again */
    if (status >= 0)
        status = all_see ? restore_pieces(t, c ? c : mine, &damage) : restore_whole(t, c, &damage);
    wefti_checkpoint_close(mine);
    WEFT_TRY(status);
    return wefti_agree(t->ranks.agreement,
                       damage.status < 0 ? wefti_failure_tell(&damage) : WEFT_OK);
}

static weft_status restore_alone(wefti_training *t, const wefti_checkpoint *c) {
    wefti_failure damage;
    wefti_failure_keep(WEFT_OK, &damage);
    WEFT_TRY(restore_whole(t, c, &damage));
    return damage.status < 0 ? wefti_failure_tell(&damage) : WEFT_OK;
}

/* compare() has checked the checkpoint's tensors. */
weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *c) {
    progress p = {0};
    wefti_checkpoint_tensor *all;
    WEFT_TRY(wefti_training_saved(t, &all)); /* starts the session, which is collective */
    wefti_free(all);
    weft_status status = c ? check_restored(t, c, &p) : WEFT_OK;
    WEFT_TRY(wefti_training_broadcast(t, status, &p, sizeof p));
    WEFT_TRY(t->ranks.world ? restore_in_world(t, c, &p) : restore_alone(t, c));
    t->progress.step = t->saving.committed_step = p.step;
    t->progress.position = p.position;
    t->result->final_loss = p.loss;
    t->progress.ratings = p.ratings;
    /* A run that was stopped in the midst of a validation makes it again. */
    const int64_t every = t->job->train.eval_every;
    if (wefti_training_rates(t) && p.step > p.ratings.step && every > 0 && p.step % every == 0)
        t->progress.stage = WEFTI_STAGE_STEPPED;
    WEFT_TRY(weft_session_set_step(t->session, t->progress.step));
    if (!c) return WEFT_OK;
    note_differences(t, c);
    (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s",
                   wefti_checkpoint_path(c));
    return WEFT_OK;
}
