/* A sliced step as whole tensors. See run.h.
 *
 * The manifest of any rank describes the whole step: all tensors, their regions, and which ranks
 * have each region. The lowest rank whose manifest is good decides. A rank whose folder is missing,
 * damaged, or of another state counts as lost, and its regions are read from other ranks.
 *
 * Every manifest lists all regions, so only the first one stays in memory. Of the others the places
 * of the own slices are kept. */
#include <pthread.h>
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

/* What is known of a slice's bytes. CHECKING: a thread verifies them. */
enum { UNREAD, CHECKING, GOOD, BAD };

typedef struct rank_folder {
    int32_t rank;
    wefti_step_files files; /* without the manifest, except the first folder's */
} rank_folder;

/* What lies behind the reader of one tensor. */
typedef struct sliced_tensor {
    wefti_sliced *step;
    const weft_desc *desc;
    int64_t first, end; /* slices of the manifest */
    wefti_reader *reader;
} sliced_tensor;

/* A slice of one rank's files. */
typedef struct stored_slice {
    const wefti_reader *reader; /* NULL: missing */
    int64_t at;
    int64_t slice; /* number in the manifest */
    uint32_t crc32c;
    atomic_int state;
} stored_slice;

struct wefti_sliced {
    wefti_arena *arena;
    rank_folder *folders; /* those that can be read; the first one's manifest counts */
    int64_t folder_count;
    sliced_tensor *tensors;
    wefti_sliced_piece *pieces; /* slice by slice, by rank */
    stored_slice *stored;       /* of each piece */
    int64_t *piece_begin;       /* [slices + 1] */
    wefti_reader *reader;       /* all pieces, one after the other */
    atomic_bool doubted;        /* slices are verified before they are first read */
    pthread_mutex_t mutex;      /* of threads that wait for the end of CHECKING */
    pthread_cond_t checked;
    wefti_text lost; /* why folders cannot be read */
};

void wefti_sliced_close(wefti_sliced *s) {
    if (!s) return;
    for (int64_t k = 0; s->tensors && k < wefti_sliced_manifest(s)->tensor_count; k++)
        wefti_reader_close(s->tensors[k].reader);
    wefti_reader_close(s->reader);
    for (int64_t i = s->folder_count - 1; i >= 0; i--) wefti_step_files_close(&s->folders[i].files);
    wefti_free(s->folders);
    wefti_free(s->tensors);
    wefti_free(s->stored);
    wefti_text_free(&s->lost);
    wefti_arena_destroy(s->arena);
    pthread_cond_destroy(&s->checked);
    pthread_mutex_destroy(&s->mutex);
    wefti_free(s);
}

bool wefti_sliced_doubt(wefti_sliced *s) {
    return !atomic_exchange(&s->doubted, true);
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

static weft_status open_folder(const wefti_sliced *s, int64_t step, const char *path,
                               rank_folder *folder) {
    wefti_step_files *f = &folder->files;
    WEFT_TRY(wefti_step_files_manifest(f, path));
    const wefti_manifest *m = f->manifest;
    WEFT_REQUIRE(m->sliced.ranks, WEFT_E_CORRUPT,
                 "%s is a whole step, of a run of its own, and no slice of rank %d", f->path,
                 (int)folder->rank);
    WEFT_REQUIRE(m->sliced.rank == folder->rank && m->meta.step == step, WEFT_E_CORRUPT,
                 "%s holds step %lld of rank %d of %d", f->path, (long long)m->meta.step,
                 (int)m->sliced.rank, (int)m->sliced.ranks);
    WEFT_REQUIRE(!s->folder_count || is_same(s->folders[0].files.manifest, m), WEFT_E_CORRUPT,
                 "%s and %s hold step %lld of different runs, or of different ranks", f->path,
                 s->folders[0].files.path, (long long)step);
    WEFT_TRY(wefti_step_files_open(f, true));
    return check_slices(f);
}

/* ---- pieces ---- */

/* All pieces that the first manifest names, as missing ones. */
static weft_status make_pieces(wefti_sliced *s) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    int64_t count = 0;
    for (int64_t i = 0; i < m->sliced.count; i++) count += m->sliced.slices[i].rank_count;
    s->pieces = wefti_arena_alloc(s->arena, (size_t)(count + 1) * sizeof *s->pieces);
    s->piece_begin =
        wefti_arena_alloc(s->arena, (size_t)(m->sliced.count + 1) * sizeof *s->piece_begin);
    s->stored = wefti_calloc((size_t)count + 1, sizeof *s->stored);
    WEFT_REQUIRE(s->pieces && s->piece_begin && s->stored, WEFT_E_NOMEM,
                 "no memory for the slices of a step");
    count = 0;
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *x = &m->sliced.slices[i];
        s->piece_begin[i] = count;
        for (int32_t k = 0; k < x->rank_count; k++, count++) {
            s->pieces[count] = (wefti_sliced_piece){.region = x->region, .rank = x->ranks[k]};
            s->stored[count].slice = i;
        }
    }
    s->piece_begin[m->sliced.count] = count;
    return WEFT_OK;
}

/* Takes the places of the slices in a folder that is in order. */
static weft_status find_slices(wefti_sliced *s, const rank_folder *folder) {
    const wefti_step_files *f = &folder->files;
    const wefti_manifest *m = f->manifest;
    const char **paths = wefti_arena_alloc(s->arena, (size_t)(m->file_count + 1) * sizeof *paths);
    WEFT_REQUIRE(paths, WEFT_E_NOMEM, "no memory for the names of files");
    for (int64_t i = 0; i < m->file_count; i++) {
        paths[i] = wefti_arena_format(s->arena, "%s/%s", f->path, m->files[i].name);
        WEFT_REQUIRE(paths[i], WEFT_E_NOMEM, "no memory for the name of a file");
    }
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *own = &m->sliced.slices[i];
        if (own->file < 0) continue;
        int64_t k = s->piece_begin[i];
        while (s->pieces[k].rank != folder->rank) k++;
        const wefti_safetensors_entry *e = wefti_safetensors_find(f->files[own->file], own->stored);
        s->pieces[k].path = paths[own->file];
        s->stored[k].reader = e->reader;
        s->stored[k].at = e->at;
        s->stored[k].crc32c = own->crc32c;
    }
    return WEFT_OK;
}

/* Keeps the folder, which open_folder has found in order. */
static weft_status keep_folder(wefti_sliced *s, const rank_folder *folder) {
    rank_folder *kept = &s->folders[s->folder_count++];
    *kept = *folder;
    if (s->folder_count == 1) WEFT_TRY(make_pieces(s));
    WEFT_TRY(find_slices(s, kept));
    if (s->folder_count > 1) wefti_step_files_forget(&kept->files);
    return WEFT_OK;
}

/* A folder that lacks the step is lost, too. */
static weft_status add_folder(wefti_sliced *s, const char *dir, int32_t rank, int64_t step) {
    rank_folder folder = {.rank = rank};
    char *own = NULL, *path = NULL;
    if (s->folder_count && rank >= s->folders[0].files.manifest->sliced.ranks) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &own));
    weft_status status = wefti_step_path(own, WEFTI_STEP_COMMITTED, step, &path);
    wefti_free(own);
    if (status >= 0) status = open_folder(s, step, path, &folder);
    wefti_free(path);
    if (status >= 0) return keep_folder(s, &folder);
    wefti_step_files_close(&folder.files);
    if (status != WEFT_E_CORRUPT) return status;
    wefti_text_add(&s->lost, "%s%.400s", s->lost.used ? "; " : "", weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status add_folders(wefti_sliced *s, const char *dir, int64_t step) {
    int64_t *ranks = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_rank_folders(dir, &ranks, &count));
    s->folders = wefti_calloc((size_t)count + 1, sizeof *s->folders);
    weft_status status =
        s->folders ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a list of folders");
    for (int64_t i = 0; i < count && status >= 0; i++)
        status = add_folder(s, dir, (int32_t)ranks[i], step);
    wefti_free(ranks);
    WEFT_TRY(status);
    WEFT_REQUIRE(count, WEFT_E_NOT_FOUND, "%s has no folders of ranks", dir);
    WEFT_REQUIRE(s->folder_count, WEFT_E_CORRUPT, "%s", s->lost.data);
    return WEFT_OK;
}

/* ---- checks ---- */

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

static weft_status check_all_there(const wefti_sliced *s, const char *dir) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    for (int64_t i = 0; i < m->sliced.count; i++) {
        bool found = false;
        for (int64_t k = s->piece_begin[i]; k < s->piece_begin[i + 1]; k++)
            found |= s->stored[k].reader != NULL;
        if (found) continue;
        WEFT_TRY(wefti_sliced_check_finished(dir, m));
        return fail_slice(s, i, "none of them is there");
    }
    return WEFT_OK;
}

static int compare_begins(const void *a, const void *b) {
    const wefti_manifest_slice *x = *(const wefti_manifest_slice *const *)a,
                               *y = *(const wefti_manifest_slice *const *)b;
    return (x->region.begin[0] > y->region.begin[0]) - (x->region.begin[0] < y->region.begin[0]);
}

/* No two regions of a tensor overlap. As they have its number of elements, they cover it. In the
 * order of dimension 0, only those before the end of a region can meet it. */
static weft_status check_overlaps(const wefti_sliced *s, const sliced_tensor *t) {
    const wefti_manifest_slice *slices = wefti_sliced_manifest(s)->sliced.slices, **sorted;
    const int64_t count = t->end - t->first;
    weft_status status = WEFT_OK;
    wefti_region both;
    if (count < 2) return WEFT_OK;
    WEFT_NEW_ARRAY(sorted, const wefti_manifest_slice *, count);
    for (int64_t i = 0; i < count; i++) sorted[i] = &slices[t->first + i];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_begins);
    for (int64_t i = 0; i < count && status >= 0; i++) {
        const wefti_region *p = &sorted[i]->region;
        for (int64_t k = i + 1; k < count && status >= 0; k++) {
            const wefti_region *q = &sorted[k]->region;
            if (t->desc->rank && q->begin[0] >= p->begin[0] + p->size[0]) break;
            if (wefti_region_intersect(p, q, t->desc->rank, &both))
                status =
                    WEFT_RAISE(WEFT_E_CORRUPT, "%s: slices %lld and %lld of the manifest overlap",
                               wefti_sliced_path(s), (long long)(sorted[i] - slices),
                               (long long)(sorted[k] - slices));
        }
    }
    wefti_free(sorted);
    return status;
}

/* ---- reading ---- */

static int64_t slice_bytes(const wefti_sliced *s, int64_t slice) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    const wefti_manifest_slice *x = &m->sliced.slices[slice];
    const weft_desc *desc = &m->tensors[x->tensor].desc;
    return wefti_region_elems(&x->region, desc->rank) * (int64_t)weft_dtype_bytes(desc->dtype);
}

static void set_state(wefti_sliced *s, stored_slice *x, int state) {
    pthread_mutex_lock(&s->mutex);
    atomic_store(&x->state, state);
    pthread_cond_broadcast(&s->checked);
    pthread_mutex_unlock(&s->mutex);
}

/* Verifies a slice once. Other threads that need it wait for the result. */
static weft_status verify_stored(wefti_sliced *s, stored_slice *x) {
    uint32_t crc = 0;
    if (atomic_load(&x->state) >= GOOD) return WEFT_OK;
    pthread_mutex_lock(&s->mutex);
    while (atomic_load(&x->state) == CHECKING) pthread_cond_wait(&s->checked, &s->mutex);
    const bool known = atomic_load(&x->state) >= GOOD;
    if (!known) atomic_store(&x->state, CHECKING);
    pthread_mutex_unlock(&s->mutex);
    if (known) return WEFT_OK;
    weft_status status = wefti_reader_crc32c(x->reader, x->at, slice_bytes(s, x->slice), &crc);
    set_state(s, x, status < 0 ? UNREAD : crc == x->crc32c ? GOOD : BAD);
    return status;
}

static weft_status is_usable(wefti_sliced *s, stored_slice *x, bool *out) {
    *out = false;
    if (!x->reader) return WEFT_OK;
    if (atomic_load(&s->doubted)) WEFT_TRY(verify_stored(s, x));
    *out = atomic_load(&x->state) != BAD;
    return WEFT_OK;
}

/* The slice of piece `prefer` where that is good, or else the first good one with its region. */
static weft_status find_good(wefti_sliced *s, int64_t prefer, const stored_slice **out) {
    const int64_t slice = s->stored[prefer].slice;
    bool usable = false;
    *out = &s->stored[prefer];
    WEFT_TRY(is_usable(s, &s->stored[prefer], &usable));
    for (int64_t k = s->piece_begin[slice]; k < s->piece_begin[slice + 1] && !usable; k++) {
        *out = &s->stored[k];
        WEFT_TRY(is_usable(s, &s->stored[k], &usable));
    }
    return usable ? WEFT_OK
                  : fail_slice(s, slice, "none that is there has the checksum that was written");
}

/* Copies into `to`, which holds the slab, what a slice has of it. */
static weft_status read_part(const sliced_tensor *t, int64_t slice, const wefti_region *part,
                             const wefti_region *slab, void *to) {
    const int rank = t->desc->rank;
    const int64_t size = (int64_t)weft_dtype_bytes(t->desc->dtype);
    const wefti_region *region = &wefti_sliced_manifest(t->step)->sliced.slices[slice].region;
    const stored_slice *x;
    int64_t first, count;
    WEFT_TRY(find_good(t->step, t->step->piece_begin[slice], &x));
    wefti_region_span(part, region, rank, &first, &count);
    if (wefti_regions_equal(part, slab, rank))
        return wefti_reader_at(x->reader, x->at + first * size, count * size, to);
    char *bytes = wefti_alloc((size_t)(count * size));
    WEFT_REQUIRE(bytes, WEFT_E_NOMEM, "no memory to read a slice");
    weft_status status = wefti_reader_at(x->reader, x->at + first * size, count * size, bytes);
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

/* Reads a range of one piece: the last one that begins at `at` or before it. */
static weft_status read_piece(void *context, int64_t at, int64_t bytes, void *to) {
    wefti_sliced *s = context;
    const stored_slice *x;
    int64_t low = 0, high = s->piece_begin[wefti_sliced_manifest(s)->sliced.count];
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        *(s->pieces[middle].at <= at ? &low : &high) = middle;
    }
    const int64_t first = at - s->pieces[low].at;
    WEFT_REQUIRE(s->pieces[low].reader && first + bytes <= slice_bytes(s, s->stored[low].slice),
                 WEFT_E_BUG, "%lld bytes of a slice from byte %lld on", (long long)bytes,
                 (long long)first);
    WEFT_TRY(find_good(s, low, &x));
    return wefti_reader_at(x->reader, x->at + first, bytes, to);
}

static weft_status add_readers(wefti_sliced *s) {
    static const wefti_reader_table whole = {.read = read_tensor}, pieces = {.read = read_piece};
    const wefti_manifest *m = wefti_sliced_manifest(s);
    WEFT_NEW_ARRAY(s->tensors, sliced_tensor, m->tensor_count + 1);
    int64_t slice = 0, bytes = 0;
    for (int64_t k = 0; k < m->tensor_count; k++) {
        sliced_tensor *t = &s->tensors[k];
        *t = (sliced_tensor){.step = s, .desc = &m->tensors[k].desc, .first = slice};
        while (slice < m->sliced.count && m->sliced.slices[slice].tensor == k) slice++;
        t->end = slice;
        WEFT_TRY(check_overlaps(s, t));
        WEFT_TRY(
            wefti_reader_made(&whole, t, m->tensors[k].name, weft_desc_bytes(t->desc), &t->reader));
    }
    for (int64_t k = 0; k < s->piece_begin[m->sliced.count]; k++) {
        s->pieces[k].at = bytes;
        const int64_t own = s->stored[k].reader ? slice_bytes(s, s->stored[k].slice) : 0;
        WEFT_REQUIRE(!wefti_add_overflows(bytes, own, &bytes), WEFT_E_CORRUPT,
                     "%s: the slices of all ranks have too many bytes", wefti_sliced_path(s));
    }
    WEFT_TRY(wefti_reader_made(&pieces, s, wefti_sliced_path(s), bytes, &s->reader));
    for (int64_t k = 0; k < s->piece_begin[m->sliced.count]; k++)
        s->pieces[k].reader = s->stored[k].reader ? s->reader : NULL;
    return WEFT_OK;
}

static void tell_lost(const wefti_sliced *s, wefti_text *out) {
    int64_t next = 0;
    for (int32_t r = 0; r < wefti_sliced_manifest(s)->sliced.ranks; r++)
        if (next < s->folder_count && s->folders[next].rank == r)
            next++;
        else
            wefti_text_add(out, "%srank %d is lost", out->used ? "; " : "", (int)r);
}

weft_status wefti_sliced_verify(wefti_sliced *s, wefti_text *out) {
    const wefti_manifest *m = wefti_sliced_manifest(s);
    tell_lost(s, out);
    for (int64_t k = 0; k < s->piece_begin[m->sliced.count]; k++) {
        stored_slice *x = &s->stored[k];
        if (!x->reader) continue;
        WEFT_TRY(verify_stored(s, x));
        if (atomic_load(&x->state) != BAD) continue;
        wefti_text_add(out, "%s%s has a damaged part of %.200s", out->used ? "; " : "",
                       s->pieces[k].path, m->tensors[m->sliced.slices[x->slice].tensor].name);
    }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory for a list of damage");
    return WEFT_OK;
}

weft_status wefti_sliced_open(const char *dir, int64_t step, wefti_sliced **out) {
    wefti_sliced *s;
    WEFT_NEW(s, wefti_sliced);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->checked, NULL);
    weft_status status = wefti_arena_create(&s->arena);
    if (status >= 0) status = add_folders(s, dir, step);
    if (status >= 0) status = check_all_there(s, dir);
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
