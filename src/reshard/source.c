/* The tensors of a checkpoint and their pieces. See source.h. */
#include "reshard/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "checkpoint/step_dir.h"
#include "tensor/tensor.h"

void wefti_shards_close(wefti_shards *s) {
    if (!s) return;
    for (int i = 0; i < s->part_count; i++) wefti_shards_close(s->parts[i]);
    wefti_free(s->parts);
    wefti_checkpoint_close(s->step);
    for (int64_t i = 0; i < s->file_count; i++) wefti_safetensors_close(s->files[i].tensors);
    for (int64_t i = 0; i < s->count; i++) wefti_free(s->tensors[i].pieces);
    wefti_free(s->files);
    wefti_free(s->tensors);
    wefti_map_free(&s->names);
    wefti_map_free(&s->roles);
    wefti_map_free(&s->paths);
    wefti_map_free(&s->absent_names);
    wefti_free(s->absent);
    wefti_manifest_destroy(s->manifest);
    wefti_free(s->path);
    wefti_arena_destroy(s->arena);
    wefti_free(s);
}

weft_status wefti_shards_add_file(wefti_shards *s, const char *path, int32_t rank, bool missing,
                                  int32_t *out) {
    WEFT_TRY(WEFT_GROW(s->files, s->file_count, s->file_cap));
    wefti_source_file file = {.path = wefti_arena_strdup(s->arena, path), .rank = rank};
    WEFT_REQUIRE(file.path, WEFT_E_NOMEM, "no memory for the name of a file");
    file.missing = missing;
    if (!missing) WEFT_TRY(wefti_safetensors_open(path, &file.tensors));
    *out = (int32_t)s->file_count;
    s->files[s->file_count++] = file;
    return WEFT_OK;
}

/* The key of a tensor in the map is a digit for its role, then its name. */
static int64_t number_of(const wefti_shards *s, wefti_checkpoint_role role, const char *name,
                         size_t length) {
    char key[1 + WEFTI_SAFETENSORS_NAME_BYTES];
    if (length >= sizeof key) return -1;
    key[0] = (char)('0' + (int)role);
    memcpy(key + 1, name, length);
    return wefti_map_find(&s->names, key, (int64_t)length + 1);
}

int64_t wefti_shards_number(const wefti_shards *s, wefti_checkpoint_role role, const char *name) {
    return number_of(s, role, name, strlen(name));
}

const wefti_source_tensor *wefti_shards_find(const wefti_shards *s, wefti_checkpoint_role role,
                                             const char *name) {
    const int64_t number = wefti_shards_number(s, role, name);
    return number < 0 ? NULL : &s->tensors[number];
}

weft_status wefti_shards_add_tensor(wefti_shards *s, wefti_checkpoint_role role, const char *name,
                                    const weft_desc *whole, wefti_source_tensor **out) {
    int64_t number = s->count;
    weft_status status = wefti_desc_check(whole);
    if (status < 0) return wefti_prefix(status, "%s: tensor %.200s", s->path, name);
    const char *key = wefti_arena_format(s->arena, "%d%s", (int)role, name);
    WEFT_REQUIRE(key, WEFT_E_NOMEM, "no memory for the name of a tensor");
    WEFT_TRY(wefti_map_add_text(&s->names, key, s->count, &number));
    if (number == s->count) {
        WEFT_TRY(WEFT_GROW(s->tensors, s->count, s->cap));
        s->tensors[s->count++] =
            (wefti_source_tensor){.name = key + 1, .role = role, .desc = *whole};
    }
    *out = &s->tensors[number];
    WEFT_REQUIRE(wefti_desc_equal(&(*out)->desc, whole), WEFT_E_MISMATCH,
                 "%s: tensor %.200s is %s in one file and %s in another one", s->path, name,
                 wefti_desc_text(&(*out)->desc).text, wefti_desc_text(whole).text);
    return WEFT_OK;
}

weft_status wefti_shards_add_piece(wefti_source_tensor *t, const wefti_source_piece *piece) {
    WEFT_TRY(WEFT_GROW(t->pieces, t->count, t->capacity));
    t->pieces[t->count] = *piece;
    t->pieces[t->count].same = -1;
    t->pieces[t->count++].first = true;
    return WEFT_OK;
}

const char *wefti_shards_metadata(const wefti_safetensors *file, const char *key) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_safetensors_metadata(file, &count);
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(pairs[i].key, key)) return pairs[i].value;
    return NULL;
}

/* ---- replicas and overlaps ---- */

static int compare_regions(const wefti_region *a, const wefti_region *b, int rank) {
    for (int d = 0; d < rank; d++)
        if (a->begin[d] != b->begin[d]) return a->begin[d] < b->begin[d] ? -1 : 1;
    for (int d = 0; d < rank; d++)
        if (a->size[d] != b->size[d]) return a->size[d] < b->size[d] ? -1 : 1;
    return 0;
}

/* By region, then by rank. Unused dimensions are 0, so all of them can be compared. */
static int compare_pieces(const void *a, const void *b) {
    const wefti_source_piece *x = a, *y = b;
    int order = compare_regions(&x->region, &y->region, WEFT_MAX_RANK);
    if (order) return order;
    return x->order == y->order ? 0 : x->order < y->order ? -1 : 1;
}

static const char *place_of(const wefti_shards *s, const wefti_source_piece *p) {
    return s->files[p->file].path;
}

static weft_status check_inside(const wefti_shards *s, const wefti_source_tensor *t,
                                const wefti_source_piece *p) {
    for (int d = 0; d < t->desc.rank; d++) {
        int64_t end;
        bool inside = p->region.begin[d] >= 0 && p->region.size[d] >= 0 &&
                      !wefti_add_overflows(p->region.begin[d], p->region.size[d], &end) &&
                      end <= t->desc.shape[d];
        WEFT_REQUIRE(inside, WEFT_E_CORRUPT,
                     "%s: its part of tensor %.200s has %lld elements from %lld on in dimension "
                     "%d, but the tensor is %s",
                     place_of(s, p), t->name, (long long)p->region.size[d],
                     (long long)p->region.begin[d], d, wefti_desc_text(&t->desc).text);
    }
    return WEFT_OK;
}

/* Pieces are ordered by begin, so only those before the end of this one in dimension 0 can meet
 * it. */
static weft_status check_overlaps(const wefti_shards *s, const wefti_source_tensor *t, int64_t i) {
    const wefti_source_piece *p = &t->pieces[i];
    wefti_region both;
    for (int64_t j = i + 1; j < t->count; j++) {
        const wefti_source_piece *q = &t->pieces[j];
        if (t->desc.rank && q->region.begin[0] >= p->region.begin[0] + p->region.size[0]) break;
        if (!q->first || !wefti_region_intersect(&p->region, &q->region, t->desc.rank, &both))
            continue;
        WEFT_FAIL(WEFT_E_CORRUPT,
                  "%s and %s overlap: both have a part of the same elements of tensor %.200s, but "
                  "not the same part",
                  place_of(s, p), place_of(s, q), t->name);
    }
    return WEFT_OK;
}

static weft_status finish_tensor(wefti_shards *s, wefti_source_tensor *t) {
    for (int64_t i = 0; i < t->count; i++) {
        const wefti_source_file *file = &s->files[t->pieces[i].file];
        t->pieces[i].order = file->rank >= 0 ? file->rank : t->pieces[i].file;
    }
    if (t->count) qsort(t->pieces, (size_t)t->count, sizeof *t->pieces, compare_pieces);
    for (int64_t i = 0; i < t->count; i++) {
        wefti_source_piece *p = &t->pieces[i];
        WEFT_TRY(check_inside(s, t, p));
        if (i && !compare_regions(&p[-1].region, &p->region, WEFT_MAX_RANK)) {
            p->first = false;
            p[-1].same = (int32_t)i;
        }
    }
    for (int64_t i = 0; i < t->count; i++)
        if (t->pieces[i].first) WEFT_TRY(check_overlaps(s, t, i));
    return WEFT_OK;
}

static int compare_tensors(const void *a, const void *b) {
    const wefti_source_tensor *x = a, *y = b;
    if (x->role != y->role) return x->role < y->role ? -1 : 1;
    return strcmp(x->name, y->name);
}

weft_status wefti_shards_finish(wefti_shards *s) {
    if (s->count) qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, compare_tensors);
    wefti_map_clear(&s->names);
    for (int64_t i = 0; i < s->count; i++) {
        WEFT_TRY(wefti_map_add_text(&s->names, s->tensors[i].name - 1, i, NULL));
        WEFT_TRY(finish_tensor(s, &s->tensors[i]));
    }
    return WEFT_OK;
}

const wefti_source_tensor *wefti_shards_before(const wefti_shards *s,
                                               const wefti_source_tensor *t) {
    const char *dot = strrchr(t->name, '.');
    const int64_t number =
        dot ? number_of(s, WEFTI_CHECKPOINT_MODEL, t->name, (size_t)(dot - t->name)) : -1;
    return number < 0 ? NULL : &s->tensors[number];
}

const wefti_source_tensor *wefti_shards_parameter(const wefti_shards *s,
                                                  const wefti_source_tensor *t) {
    const char *rest = strchr(t->name, '.');
    if (!rest || (s->manifest && t->role != WEFTI_CHECKPOINT_OPTIMIZER)) return NULL;
    for (int i = 0; i < 2; i++) {
        const wefti_source_tensor *found =
            i ? wefti_shards_find(s, WEFTI_CHECKPOINT_MODEL, rest + 1) : wefti_shards_before(s, t);
        if (!found) continue;
        weft_desc other = found->desc;
        other.dtype = t->desc.dtype;
        if (wefti_desc_equal(&other, &t->desc)) return found;
    }
    return NULL;
}

const wefti_safetensors_pair *wefti_shards_pairs(const wefti_shards *s, int64_t *out_count) {
    static const wefti_safetensors_pair of_steps = {"format", "pt"};
    *out_count = 1;
    if (!s->file_count || !s->files[0].tensors) return &of_steps;
    return wefti_safetensors_metadata(s->files[0].tensors, out_count);
}

void wefti_shards_holders(const wefti_shards *s, const wefti_source_tensor *t,
                          const wefti_source_piece *p, wefti_text *out) {
    const char *separator = "";
    for (int64_t i = p - t->pieces; i >= 0; i = t->pieces[i].same) {
        const wefti_source_file *file = &s->files[t->pieces[i].file];
        if (file->rank >= 0)
            wefti_text_add(out, "%srank %d", separator, file->rank);
        else
            wefti_text_add(out, "%s%s", separator, file->path);
        separator = ", ";
    }
}

/* ---- opening ---- */

static weft_status open_any(wefti_shards *s, const wefti_layouts *layouts) {
    bool steps = false, ranks = false;
    WEFT_REQUIRE(!wefti_is_missing(s->path), WEFT_E_NOT_FOUND, "%s does not exist%s", s->path,
                 wefti_hub_hint(s->path));
    WEFT_TRY(wefti_step_holds(s->path, &steps));
    if (wefti_is_dir(s->path) && !steps) WEFT_TRY(wefti_shards_open_ranks(s, layouts, &ranks));
    if (ranks) return WEFT_OK;
    WEFT_REQUIRE(!layouts, WEFT_E_ARG,
                 "%s has no slices of ranks (folders rank_0, rank_1, ...), but %s says how ranks "
                 "hold tensors",
                 s->path, layouts->path);
    return steps ? wefti_shards_open_step(s) : wefti_shards_open_dir(s);
}

weft_status wefti_shards_create(const char *path, wefti_shards **out) {
    wefti_shards *s;
    WEFT_NEW(s, wefti_shards);
    s->path = wefti_strdup(path);
    weft_status status = s->path
                             ? wefti_arena_create(&s->arena)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a checkpoint");
    if (status < 0)
        wefti_shards_close(s);
    else
        *out = s;
    return status;
}

static weft_status open_as(const char *path, const wefti_layouts *layouts, bool slice,
                           wefti_shards **out) {
    wefti_shards *s = NULL;
    WEFT_TRY(wefti_shards_create(path, &s));
    s->slice = slice;
    weft_status status = open_any(s, layouts);
    if (status >= 0) status = wefti_shards_finish(s);
    if (status < 0)
        wefti_shards_close(s);
    else
        *out = s;
    return status;
}

weft_status wefti_shards_open(const char *path, const wefti_layouts *layouts, wefti_shards **out) {
    return open_as(path, layouts, false, out);
}

weft_status wefti_shards_open_slice(const char *path, wefti_shards **out) {
    return open_as(path, NULL, true, out);
}
