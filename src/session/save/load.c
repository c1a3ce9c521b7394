/* Loads a checkpoint into the session of a saver.
 *
 * In one process the checkpoint is checked when it is opened, and copied. In a world each rank
 * reads only the ranges of the files that it needs, all ranks at once, and sums the checksums of
 * what it has read. The sums of all ranks give the checksum of each tensor. Replicas on one host
 * read the same pages of the page cache. If some rank does not see the checkpoint, rank 0 reads
 * everything and broadcasts. */
#include <string.h>

#include "base/digest/digest.h"
#include "checkpoint/step_dir.h"
#include "session/save/parts.h"

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
static weft_status restore_whole(wefti_saver *v, const wefti_checkpoint *c,
                                 wefti_failure *out_damage) {
    for (int64_t i = 0; i < v->list.count; i++) {
        const wefti_saved_tensor *s = &v->list.tensors[i];
        restored r = {c ? wefti_checkpoint_find(c, s->role, s->name) : NULL, 0};
        if (weft_desc_elems(&s->desc) == 0) continue;
        WEFT_TRY(wefti_session_fill(v->session, 0, s->tensor, s->first, weft_desc_elems(&s->desc),
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
    wefti_saver *v;
    const wefti_checkpoint *c;
    wefti_checkpoint_part *part;
    wefti_session_piece *pieces; /* of the tensor `whole`, on all devices */
    weft_desc whole;
    int64_t hinted; /* tensors [0, hinted) were announced to the disk */
    int64_t ahead;  /* bytes of those that were not read so far */
} reading;

static weft_status pieces_of(reading *r, int64_t i, const wefti_checkpoint_entry **out,
                             int32_t *found) {
    const wefti_saved_tensor *s = &r->v->list.tensors[i];
    *out = wefti_checkpoint_find(r->c, s->role, s->name);
    WEFT_REQUIRE(*out, WEFT_E_CORRUPT, "%s lacks %s", wefti_checkpoint_path(r->c), s->name);
    return wefti_saved_pieces(r->v->session, s->tensor, r->pieces, found, &r->whole);
}

/* Announces the ranges of the next tensors to the disk. */
static weft_status hint(reading *r) {
    const wefti_checkpoint_entry *e;
    int32_t found;
    for (; r->hinted < r->v->list.count && r->ahead < HINT_BYTES; r->hinted++) {
        const wefti_saved_tensor *s = &r->v->list.tensors[r->hinted];
        WEFT_TRY(pieces_of(r, r->hinted, &e, &found));
        for (int32_t k = 0; k < found; k++)
            if (wefti_home_exists(&r->pieces[k].home))
                wefti_checkpoint_soon(e, &r->whole, s->first, &r->pieces[k].box);
        r->ahead += e->bytes;
    }
    return WEFT_OK;
}

static weft_status read_tensor(reading *r, int64_t i, read_sum *out) {
    const wefti_saved_tensor *s = &r->v->list.tensors[i];
    const wefti_checkpoint_entry *e;
    int32_t found;
    WEFT_TRY(hint(r));
    WEFT_TRY(pieces_of(r, i, &e, &found));
    wefti_checkpoint_part_begin(r->part, e);
    const wefti_session_pieces_of to = {r->pieces, found, &r->whole};
    WEFT_TRY(wefti_session_fill_pieces(r->v->session, 0, s->tensor, &to, s->first,
                                       weft_desc_elems(&s->desc), read_run, r->part));
    *out = (read_sum){i, wefti_checkpoint_part_sum(r->part), 0};
    for (int32_t k = 0; k < found; k++)
        if (wefti_home_exists(&r->pieces[k].home)) out->counts |= r->pieces[k].counts;
    r->ahead -= e->bytes;
    return WEFT_OK;
}

/* Fills sums[i] for saved tensor i. */
static weft_status read_own(wefti_saver *v, const wefti_checkpoint *c, read_sum *sums) {
    reading r = {.v = v, .c = c};
    WEFT_TRY(wefti_checkpoint_part_create(&r.part));
    r.pieces = wefti_calloc((size_t)weft_session_devices(v->session), sizeof *r.pieces);
    weft_status status =
        r.pieces ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to read a checkpoint");
    for (int64_t i = 0; i < v->list.count && status >= 0; i++)
        status = read_tensor(&r, i, &sums[i]);
    wefti_free(r.pieces);
    wefti_checkpoint_part_destroy(r.part);
    return status;
}

/* Adds up the sums of all ranks, and compares. all: [ranks][saved tensors]. A replica must have the
 * sum of the counting piece that has its region. */
static weft_status check_sums(wefti_saver *v, const wefti_checkpoint *c, const read_sum *all) {
    int64_t count = v->list.count;
    const int size = weft_world_size(v->world), me = weft_world_rank(v->world);
    wefti_session_piece *pieces;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, size);
    for (int64_t i = 0; i < count && status >= 0; i++) {
        const wefti_saved_tensor *s = &v->list.tensors[i];
        const wefti_checkpoint_entry *e = wefti_checkpoint_find(c, s->role, s->name);
        uint32_t sum = 0;
        weft_desc whole;
        int32_t found = 0, own = -1;
        for (int r = 0; r < size; r++)
            if (all[r * count + i].counts) sum ^= all[r * count + i].sum;
        uint32_t crc32c = wefti_crc32c_of_sums(sum, weft_desc_bytes(&s->desc));
        if (crc32c != e->crc32c) status = damaged(c, e, crc32c);
        if (status >= 0) status = wefti_saved_pieces(v->session, s->tensor, pieces, &found, &whole);
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
static weft_status restore_once(wefti_saver *v, const wefti_checkpoint *c,
                                wefti_failure *out_damage) {
    char *all = NULL;
    read_sum *sums = wefti_calloc((size_t)v->list.count + 1, sizeof *sums);
    int64_t *offsets = NULL, bytes = v->list.count * (int64_t)sizeof *sums;
    weft_status status = wefti_agree(
        v->agreement,
        sums ? read_own(v, c, sums) : WEFT_RAISE(WEFT_E_NOMEM, "no memory to read a checkpoint"));
    if (status >= 0) status = wefti_agree_gather(v->agreement, sums, bytes, &all, &offsets);
    wefti_free(sums);
    WEFT_TRY(status);
    const read_sum *table = (const read_sum *)(const void *)all;
    wefti_failure_keep(check_sums(v, c, table), out_damage);
    wefti_free(offsets);
    return WEFT_OK;
}

/* Collective: whether one of the ranks says yes. */
static weft_status any_rank(const wefti_saver *v, bool own, bool *out) {
    const int size = weft_world_size(v->world);
    const char mine = own;
    char *all = wefti_calloc((size_t)size, 1);
    weft_status status = wefti_agree_records(v->agreement, &mine, sizeof mine, all);
    *out = false;
    for (int r = 0; r < size && status >= 0; r++) *out |= all[r] != 0;
    wefti_free(all);
    return status;
}

/* Collective: all ranks see the checkpoint. After damage they read a sliced one again, and verify
 * slices then: replicas stand in for damaged ones. */
static weft_status restore_pieces(wefti_saver *v, wefti_checkpoint *c, wefti_failure *out_damage) {
    bool damaged = false;
    WEFT_TRY(restore_once(v, c, out_damage));
    WEFT_TRY(any_rank(v, out_damage->status < 0, &damaged));
    if (!damaged || !wefti_checkpoint_doubt(c)) return WEFT_OK;
    wefti_failure_keep(WEFT_OK, out_damage);
    return restore_once(v, c, out_damage);
}

/* ---- all of it ---- */

/* A step, as rank 0 has opened it. */
typedef struct opened {
    int64_t step;
    uint32_t identity;
} opened;

/* The newest step below `below`, or the only one of a step's own directory. */
static weft_status open_below(const char *dir, int64_t below, wefti_checkpoint **out) {
    bool own = false;
    WEFT_TRY(wefti_step_is(dir, &own));
    return own ? wefti_checkpoint_open_quick(dir, out)
               : wefti_checkpoint_open_unread(dir, below, out, NULL);
}

/* Collective: whether all ranks see rank 0's checkpoint. A rank opens it under its own directory.
 */
static weft_status open_everywhere(wefti_saver *v, const opened *o, wefti_checkpoint **out,
                                   bool *all_see) {
    bool sees = true, some_do_not = false;
    if (wefti_saver_follows(v)) {
        weft_status status = open_below(v->dir, o->step + 1, out);
        if (status < 0) wefti_error_clear(); /* "no" is an answer */
        sees = status >= 0 && wefti_checkpoint_meta_of(*out)->step == o->step &&
               wefti_checkpoint_identity(*out) == o->identity;
    }
    weft_status status = any_rank(v, !sees, &some_do_not);
    *all_see = !some_do_not;
    return status;
}

/* Collective. `c`: rank 0's, or that of a rank that has opened it itself. */
static weft_status load_opened(wefti_saver *v, wefti_checkpoint *c, bool all_see) {
    wefti_failure damage;
    wefti_failure_keep(WEFT_OK, &damage);
    if (!all_see && wefti_saves_by_hand(v->session))
        return wefti_agree(v->agreement,
                           WEFT_RAISE(WEFT_E_NOT_FOUND,
                                      "not all ranks see %s: in mode manual all ranks must",
                                      v->dir));
    if (!all_see && c) (void)wefti_checkpoint_doubt(c); /* nobody could read it again */
    WEFT_TRY(all_see ? restore_pieces(v, c, &damage) : restore_whole(v, c, &damage));
    return wefti_agree(v->agreement, damage.status < 0 ? wefti_failure_tell(&damage) : WEFT_OK);
}

static weft_status load_in_world(wefti_saver *v, wefti_checkpoint *c) {
    wefti_checkpoint *mine = NULL;
    bool all_see = false;
    opened o = {0};
    if (c) o = (opened){wefti_checkpoint_meta_of(c)->step, wefti_checkpoint_identity(c)};
    WEFT_TRY(wefti_saver_broadcast(v, WEFT_OK, &o, sizeof o));
    weft_status status = open_everywhere(v, &o, &mine, &all_see);
    if (status >= 0) status = load_opened(v, c ? c : all_see ? mine : NULL, all_see);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_checkpoint_close(mine);
    return failure.status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

/* Several devices that hold parts in mode manual: each reads its own. */
static weft_status load_by_hand(wefti_saver *v, const wefti_checkpoint *c) {
    read_sum *sums;
    WEFT_NEW_ARRAY(sums, read_sum, v->list.count + 1);
    weft_status status = read_own(v, c, sums);
    wefti_free(sums);
    return status;
}

weft_status wefti_saver_load(wefti_saver *v, wefti_checkpoint *c, bool verified) {
    wefti_failure damage;
    if (v->world) return load_in_world(v, c);
    if (verified && wefti_saves_by_hand(v->session)) return load_by_hand(v, c);
    wefti_failure_keep(WEFT_OK, &damage);
    WEFT_TRY(restore_whole(v, c, &damage));
    return damage.status < 0 ? wefti_failure_tell(&damage) : WEFT_OK;
}
