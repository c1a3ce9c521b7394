/* A sliced step as whole tensors. See run.h.
 *
 * The manifest of any rank describes the whole step: all tensors, their regions, and which ranks
 * have each region. The lowest rank whose manifest is good decides. A rank whose folder is missing,
 * damaged, or of another state counts as lost, and its regions are read from other ranks. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"
#include "layout/slab.h"
#include "layout/transfer.h"
#include "tensor/tensor.h"

enum { UNREAD, GOOD, BAD }; /* what is known of a slice's bytes */

typedef struct rank_folder {
    int32_t rank;
    wefti_step_files files;
} rank_folder;

/* What lies behind the reader of one tensor. */
typedef struct sliced_tensor {
    const wefti_sliced *step;
    const weft_desc *desc;
    int64_t first, end; /* slices of the manifest */
    wefti_reader *reader;
} sliced_tensor;

struct wefti_sliced {
    wefti_arena *arena;
    rank_folder *folders; /* those that can be read; the first one's manifest counts */
    int64_t folder_count;
    sliced_tensor *tensors;
    wefti_sliced_piece *pieces; /* slice by slice, by rank */
    int64_t *piece_begin;       /* [slices + 1] */
    uint32_t *crc32c;           /* [pieces] */
    atomic_int *state;          /* [pieces] */
    wefti_text lost;            /* why folders cannot be read */
};

void wefti_sliced_close(wefti_sliced *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->folder_count && s->folders; i++) {
        const wefti_manifest *m = s->folders[0].files.manifest;
        for (int64_t k = 0; i == 0 && s->tensors && k < m->tensor_count; k++)
            wefti_reader_close(s->tensors[k].reader);
    }
    for (int64_t i = s->folder_count - 1; i >= 0; i--) wefti_step_files_close(&s->folders[i].files);
    wefti_free(s->folders);
    wefti_free(s->tensors);
    wefti_free(s->state);
    wefti_text_free(&s->lost);
    wefti_arena_destroy(s->arena);
    wefti_free(s);
}

const char *wefti_sliced_path(const wefti_sliced *s) {
    return s->folders[0].files.path;
}
const wefti_manifest *wefti_sliced_manifest(const wefti_sliced *s) {
    return s->folders[0].files.manifest;
}
const wefti_reader *wefti_sliced_reader(const wefti_sliced *s, int64_t index) {
    return s->tensors[index].reader;
}

const wefti_sliced_piece *wefti_sliced_pieces(const wefti_sliced *s, int64_t index,
                                              int64_t *out_count) {
    const sliced_tensor *t = &s->tensors[index];
    *out_count = s->piece_begin[t->end] - s->piece_begin[t->first];
    return s->pieces + s->piece_begin[t->first];
}

/* ---- folders ---- */

/* Whether a rank's manifest is of the same step as the first one's. */
static bool is_same(const wefti_manifest *a, const wefti_manifest *b) {
    if (a->sliced.ranks != b->sliced.ranks || a->sliced.count != b->sliced.count ||
        a->tensor_count != b->tensor_count || a->meta.data_position != b->meta.data_position ||
        wefti_manifest_digest(a->tensors, a->tensor_count) !=
            wefti_manifest_digest(b->tensors, b->tensor_count))
        return false;
    for (int64_t i = 0; i < a->tensor_count; i++)
        if (strcmp(a->tensors[i].name, b->tensors[i].name) ||
            a->tensors[i].role != b->tensors[i].role)
            return false;
    for (int64_t i = 0; i < a->sliced.count; i++) {
        const wefti_manifest_slice *x = &a->sliced.slices[i], *y = &b->sliced.slices[i];
        if (x->tensor != y->tensor || x->rank_count != y->rank_count ||
            !wefti_regions_equal(&x->region, &y->region, a->tensors[x->tensor].desc.rank) ||
            memcmp(x->ranks, y->ranks, (size_t)x->rank_count * sizeof *x->ranks))
            return false;
    }
    return true;
}

/* The slices of the manifest's rank lie in its files. */
static weft_status check_slices(const wefti_step_files *f) {
    const wefti_manifest *m = f->manifest;
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *s = &m->sliced.slices[i];
        if (s->file < 0) continue;
        weft_desc local = m->tensors[s->tensor].desc;
        for (int d = 0; d < local.rank; d++) local.shape[d] = s->region.size[d];
        const wefti_safetensors_entry *e = wefti_safetensors_find(f->files[s->file], s->stored);
        WEFT_REQUIRE(e && wefti_desc_equal(&e->desc, &local), WEFT_E_CORRUPT,
                     "%s/%s does not hold %.200s as %s", f->path, m->files[s->file].name, s->stored,
                     wefti_desc_text(&local).text);
    }
    return WEFT_OK;
}

static weft_status open_folder(const wefti_sliced *s, int64_t step, rank_folder *folder) {
    wefti_step_files *f = &folder->files;
    char *path = f->path;
    f->path = NULL;
    weft_status status = wefti_step_files_manifest(f, path);
    wefti_free(path);
    WEFT_TRY(status);
    const wefti_manifest *m = f->manifest;
    WEFT_REQUIRE(m->sliced.ranks && m->sliced.rank == folder->rank && m->meta.step == step,
                 WEFT_E_CORRUPT, "%s holds step %lld of rank %d of %d", f->path,
                 (long long)m->meta.step, (int)m->sliced.rank, (int)m->sliced.ranks);
    WEFT_REQUIRE(!s->folder_count || is_same(s->folders[0].files.manifest, m), WEFT_E_CORRUPT,
                 "%s and %s hold step %lld of different runs, or of different ranks", f->path,
                 s->folders[0].files.path, (long long)step);
    WEFT_TRY(wefti_step_files_open(f, true));
    return check_slices(f);
}

/* A folder that lacks the step is lost, too. */
static weft_status add_folder(wefti_sliced *s, const char *dir, int32_t rank, int64_t step) {
    rank_folder *folder = &s->folders[s->folder_count];
    char *own = NULL;
    if (s->folder_count && rank >= s->folders[0].files.manifest->sliced.ranks) return WEFT_OK;
    *folder = (rank_folder){.rank = rank};
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &own));
    weft_status status = wefti_step_path(own, WEFTI_STEP_COMMITTED, step, &folder->files.path);
    wefti_free(own);
    WEFT_TRY(status);
    status = open_folder(s, step, folder);
    if (status >= 0) {
        s->folder_count++;
        return WEFT_OK;
    }
    wefti_step_files_close(&folder->files);
    if (status != WEFT_E_CORRUPT) return status;
    wefti_text_add(&s->lost, "%s%.400s", s->lost.used ? "; " : "", weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status add_folders(wefti_sliced *s, const char *dir, int64_t step) {
    int32_t *ranks = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_rank_folders(dir, &ranks, &count));
    s->folders = wefti_calloc((size_t)count + 1, sizeof *s->folders);
    weft_status status =
        s->folders ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a list of folders");
    for (int64_t i = 0; i < count && status >= 0; i++) status = add_folder(s, dir, ranks[i], step);
    wefti_free(ranks);
    WEFT_TRY(status);
    WEFT_REQUIRE(count, WEFT_E_NOT_FOUND, "%s has no folders of ranks", dir);
    WEFT_REQUIRE(s->folder_count, WEFT_E_CORRUPT, "%s", s->lost.data);
    return WEFT_OK;
}

/* ---- pieces ---- */

static const rank_folder *folder_of(const wefti_sliced *s, int32_t rank) {
    for (int64_t i = 0; i < s->folder_count; i++)
        if (s->folders[i].rank == rank) return &s->folders[i];
    return NULL;
}

static weft_status add_piece(wefti_sliced *s, const char *dir, int64_t slice, int32_t rank,
                             int64_t number) {
    const wefti_manifest *first = s->folders[0].files.manifest;
    const rank_folder *folder = folder_of(s, rank);
    wefti_sliced_piece *p = &s->pieces[number];
    *p = (wefti_sliced_piece){.region = first->sliced.slices[slice].region, .rank = rank};
    if (!folder) {
        p->path = wefti_arena_format(s->arena, "%s/rank_%d", dir, (int)rank);
    } else {
        const wefti_step_files *f = &folder->files;
        const wefti_manifest_slice *own = &f->manifest->sliced.slices[slice];
        const wefti_safetensors_entry *e = wefti_safetensors_find(f->files[own->file], own->stored);
        p->path =
            wefti_arena_format(s->arena, "%s/%s", f->path, f->manifest->files[own->file].name);
        p->reader = e->reader;
        p->at = e->at;
        s->crc32c[number] = own->crc32c;
    }
    WEFT_REQUIRE(p->path, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

/* The region "[0:8, 16:32]" of a slice and the ranks that have had it. */
static weft_status fail_slice(const wefti_sliced *s, int64_t slice, const char *why) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    const wefti_manifest_slice *x = &m->sliced.slices[slice];
    const wefti_manifest_tensor *t = &m->tensors[x->tensor];
    wefti_text text = {0};
    for (int d = 0; d < t->desc.rank; d++)
        wefti_text_add(&text, "%s%lld:%lld", d ? ", " : "", (long long)x->region.begin[d],
                       (long long)(x->region.begin[d] + x->region.size[d]));
    wefti_text_add(&text, "] of %.200s is lost: it was in the files of ", t->name);
    for (int32_t i = 0; i < x->rank_count && i < 16; i++)
        wefti_text_add(&text, "%srank %d", i ? ", " : "", (int)x->ranks[i]);
    if (x->rank_count > 16) wefti_text_add(&text, " and %d more", (int)x->rank_count - 16);
    wefti_text_add(&text, ", and %s", why);
    if (s->lost.used) wefti_text_add(&text, " (%.1000s)", s->lost.data);
    weft_status status = text.failed ? WEFT_RAISE(WEFT_E_NOMEM, "no memory for a message")
                                     : WEFT_RAISE(WEFT_E_CORRUPT, "part [%s", text.data);
    wefti_text_free(&text);
    return status;
}

static weft_status add_pieces(wefti_sliced *s, const char *dir) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    int64_t count = 0, number = 0;
    for (int64_t i = 0; i < m->sliced.count; i++) count += m->sliced.slices[i].rank_count;
    s->pieces = wefti_arena_alloc(s->arena, (size_t)(count + 1) * sizeof *s->pieces);
    s->crc32c = wefti_arena_alloc(s->arena, (size_t)(count + 1) * sizeof *s->crc32c);
    s->piece_begin =
        wefti_arena_alloc(s->arena, (size_t)(m->sliced.count + 2) * sizeof *s->piece_begin);
    s->state = wefti_calloc((size_t)count + 1, sizeof *s->state);
    WEFT_REQUIRE(s->pieces && s->crc32c && s->piece_begin && s->state, WEFT_E_NOMEM,
                 "no memory for the slices of a step");
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *x = &m->sliced.slices[i];
        bool found = false;
        s->piece_begin[i] = number;
        for (int32_t k = 0; k < x->rank_count; k++, number++) {
            WEFT_TRY(add_piece(s, dir, i, x->ranks[k], number));
            found |= s->pieces[number].reader != NULL;
        }
        if (!found) return fail_slice(s, i, "none of them is there");
    }
    s->piece_begin[m->sliced.count] = number;
    return WEFT_OK;
}

/* No two regions of a tensor overlap. As they have its number of elements, they cover it. */
static weft_status check_tensor(const wefti_sliced *s, const sliced_tensor *t) {
    const wefti_manifest_slice *slices = wefti_sliced_manifest(s)->sliced.slices;
    wefti_region both;
    for (int64_t i = t->first; i < t->end; i++)
        for (int64_t k = i + 1; k < t->end; k++)
            WEFT_REQUIRE(
                !wefti_region_intersect(&slices[i].region, &slices[k].region, t->desc->rank, &both),
                WEFT_E_CORRUPT, "%s: slices %lld and %lld of the manifest overlap",
                wefti_sliced_path(s), (long long)i, (long long)k);
    return WEFT_OK;
}

/* ---- reading ---- */

static int64_t piece_bytes(const wefti_sliced *s, int64_t slice) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    const wefti_manifest_slice *x = &m->sliced.slices[slice];
    const weft_desc *desc = &m->tensors[x->tensor].desc;
    return wefti_region_elems(&x->region, desc->rank) * (int64_t)weft_dtype_bytes(desc->dtype);
}

/* Two threads may verify one slice at a time; they find the same. */
static weft_status verify_piece(const wefti_sliced *s, int64_t slice, int64_t number) {
    uint32_t crc = 0;
    if (atomic_load(&s->state[number]) != UNREAD) return WEFT_OK;
    WEFT_TRY(wefti_reader_crc32c(s->pieces[number].reader, s->pieces[number].at,
                                 piece_bytes(s, slice), &crc));
    atomic_store(&s->state[number], crc == s->crc32c[number] ? GOOD : BAD);
    return WEFT_OK;
}

/* The first good piece with the region of a slice. */
static weft_status good_piece(const wefti_sliced *s, int64_t slice,
                              const wefti_sliced_piece **out) {
    for (int64_t k = s->piece_begin[slice]; k < s->piece_begin[slice + 1]; k++) {
        if (!s->pieces[k].reader) continue;
        WEFT_TRY(verify_piece(s, slice, k));
        *out = &s->pieces[k];
        if (atomic_load(&s->state[k]) == GOOD) return WEFT_OK;
    }
    return fail_slice(s, slice, "none that is there has the checksum that was written");
}

/* Copies into `to`, which holds the slab, what a slice has of it. */
static weft_status read_part(const sliced_tensor *t, int64_t slice, const wefti_region *part,
                             const wefti_region *slab, void *to) {
    const int rank = t->desc->rank;
    const int64_t size = (int64_t)weft_dtype_bytes(t->desc->dtype);
    const wefti_sliced_piece *piece;
    int64_t first, count;
    WEFT_TRY(good_piece(t->step, slice, &piece));
    wefti_region_span(part, &piece->region, rank, &first, &count);
    if (wefti_regions_equal(part, slab, rank))
        return wefti_reader_at(piece->reader, piece->at + first * size, count * size, to);
    char *bytes = wefti_alloc((size_t)(count * size));
    WEFT_REQUIRE(bytes, WEFT_E_NOMEM, "no memory to read a slice");
    weft_status status =
        wefti_reader_at(piece->reader, piece->at + first * size, count * size, bytes);
    if (status >= 0) /* a slab's part is dense in the piece */
        wefti_region_copy(part, part, bytes, slab, to, rank, (size_t)size);
    wefti_free(bytes);
    return status;
}

static weft_status read_slab(const sliced_tensor *t, const wefti_region *slab, void *to) {
    const wefti_manifest_slice *slices = wefti_sliced_manifest(t->step)->sliced.slices;
    for (int64_t i = t->first; i < t->end; i++) {
        wefti_region part;
        if (wefti_region_intersect(&slices[i].region, slab, t->desc->rank, &part))
            WEFT_TRY(read_part(t, i, &part, slab, to));
    }
    return WEFT_OK;
}

static weft_status read_tensor(void *context, int64_t at, int64_t bytes, void *to) {
    const sliced_tensor *t = context;
    const int64_t size = (int64_t)weft_dtype_bytes(t->desc->dtype);
    WEFT_REQUIRE(at % size == 0 && bytes % size == 0, WEFT_E_BUG,
                 "%lld bytes from byte %lld on are not whole elements of %s", (long long)bytes,
                 (long long)at, wefti_desc_text(t->desc).text);
    const int64_t end = (at + bytes) / size;
    for (int64_t first = at / size, count; first < end; first += count) {
        wefti_region slab;
        count = wefti_slab(t->desc, first, end - first, &slab);
        WEFT_TRY(read_slab(t, &slab, (char *)to + first * size - at));
    }
    return WEFT_OK;
}

static weft_status add_readers(wefti_sliced *s) {
    static const wefti_reader_table table = {.read = read_tensor};
    const wefti_manifest *m = wefti_sliced_manifest(s);
    WEFT_NEW_ARRAY(s->tensors, sliced_tensor, m->tensor_count + 1);
    int64_t slice = 0;
    for (int64_t k = 0; k < m->tensor_count; k++) {
        sliced_tensor *t = &s->tensors[k];
        *t = (sliced_tensor){.step = s, .desc = &m->tensors[k].desc, .first = slice};
        while (slice < m->sliced.count && m->sliced.slices[slice].tensor == k) slice++;
        t->end = slice;
        WEFT_TRY(check_tensor(s, t));
        WEFT_TRY(
            wefti_reader_made(&table, t, m->tensors[k].name, weft_desc_bytes(t->desc), &t->reader));
    }
    return WEFT_OK;
}

weft_status wefti_sliced_verify(const wefti_sliced *s, wefti_text *out) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    for (int32_t r = 0; r < m->sliced.ranks; r++)
        if (!folder_of(s, r))
            wefti_text_add(out, "%srank %d is lost", out->used ? "; " : "", (int)r);
    for (int64_t i = 0; i < m->sliced.count; i++)
        for (int64_t k = s->piece_begin[i]; k < s->piece_begin[i + 1]; k++) {
            if (!s->pieces[k].reader) continue;
            WEFT_TRY(verify_piece(s, i, k));
            if (atomic_load(&s->state[k]) != BAD) continue;
            wefti_text_add(out, "%s%s has a damaged part of %.200s", out->used ? "; " : "",
                           s->pieces[k].path, m->tensors[m->sliced.slices[i].tensor].name);
        }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory for a list of damage");
    return WEFT_OK;
}

weft_status wefti_sliced_open(const char *dir, int64_t step, wefti_sliced **out) {
    wefti_sliced *s;
    WEFT_NEW(s, wefti_sliced);
    weft_status status = wefti_arena_create(&s->arena);
    if (status >= 0) status = add_folders(s, dir, step);
    if (status >= 0) status = add_pieces(s, dir);
    if (status >= 0) status = add_readers(s);
    if (status < 0) {
        wefti_failure failure;
        wefti_failure_keep(status, &failure);
        wefti_sliced_close(s);
        return wefti_failure_tell(&failure);
    }
    *out = s;
    return WEFT_OK;
}
