/* Slices of ranks as a source. See source.h.
 *
 * A slice's place in its tensor comes from the metadata of its file, from the layouts that the
 * caller gives, or from both, which must agree. With layouts the contents of a missing file are
 * known: its pieces have no reader. */
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "checkpoint/tensor_set.h"
#include "reshard/source.h"
#include "tensor/tensor.h"

enum { SOURCE_RANKS_MAX = 100000 };

/* One tensor of one rank's file. */
typedef struct slice {
    const wefti_safetensors_entry *entry;
    int32_t rank, file, next; /* the next slice with this name; -1: none */
    bool stated;              /* its metadata give `region` and `whole` */
    wefti_region region;
    weft_desc whole;
} slice;

typedef struct gathered {
    const char *name;
    int32_t first, last; /* slices */
} gathered;

typedef struct ranks_reader {
    wefti_shards *s;
    const wefti_layouts *layouts;
    int32_t *file_of; /* [ranks]: number of the file; -1: not found */
    slice *slices;
    gathered *names;
    int64_t slice_count, slice_cap, name_count, name_cap;
    wefti_map map; /* of names */
} ranks_reader;

/* ---- files ---- */

/* "rank_7", or "anything-rank-00007-of-00008.safetensors". -1: no name of this kind. */
static int32_t parse_rank(const char *name, bool *folder) {
    const char *digits = NULL;
    char *end;
    *folder = !strncmp(name, "rank_", 5);
    if (*folder) {
        digits = name + 5;
    } else {
        for (const char *at = name; (at = strstr(at, "-rank-")); at += 6) digits = at + 6;
    }
    if (!digits || *digits < '0' || *digits > '9') return -1;
    long rank = strtol(digits, &end, 10);
    if (rank < 0 || rank >= SOURCE_RANKS_MAX) return -1;
    if (*folder) return *end ? -1 : (int32_t)rank;
    return !strncmp(end, "-of-", 4) && wefti_safetensors_is_name(name) ? (int32_t)rank : -1;
}

/* The last .safetensors file of a folder in the order of names. NULL: it has none. */
static weft_status last_file(wefti_shards *s, const char *folder, const char **out) {
    char **names = NULL;
    int64_t count = 0;
    char *dir = wefti_arena_format(s->arena, "%s/%s", s->path, folder);
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for the name of a file");
    *out = NULL;
    if (!wefti_is_dir(dir)) return WEFT_OK;
    WEFT_TRY(wefti_dir_list(dir, &names, &count));
    for (int64_t i = count - 1; i >= 0 && !*out; i--)
        if (wefti_safetensors_is_name(names[i]))
            *out = wefti_arena_format(s->arena, "%s/%s", dir, names[i]);
    weft_status status = *out ? WEFT_OK : wefti_check_formats(dir, names, count);
    wefti_free(names);
    return status;
}

static weft_status open_rank(ranks_reader *r, int32_t rank, const char *path) {
    wefti_shards *s = r->s;
    WEFT_TRY(wefti_tensor_set_check_link(path));
    return wefti_shards_add_file(s, path, rank, false, &r->file_of[rank]);
}

/* Looks for the files of all ranks, and opens them. out_found: the directory has such files. */
static weft_status find_files(ranks_reader *r, char **names, int64_t count, bool *out_found) {
    wefti_shards *s = r->s;
    int32_t ranks = r->layouts ? r->layouts->ranks : 0;
    bool folder;
    for (int64_t i = 0; i < count; i++) {
        int32_t rank = parse_rank(names[i], &folder);
        if (rank >= 0) *out_found = true;
        if (rank >= ranks) ranks = rank + 1;
    }
    if (!*out_found) return WEFT_OK;
    WEFT_REQUIRE(!r->layouts || ranks <= r->layouts->ranks, WEFT_E_MISMATCH,
                 "%s has a slice of rank %d, but %s is for %d ranks", s->path, ranks - 1,
                 r->layouts ? r->layouts->path : "", r->layouts ? r->layouts->ranks : 0);
    s->ranks = ranks;
    WEFT_NEW_ARRAY(r->file_of, int32_t, ranks);
    for (int32_t k = 0; k < ranks; k++) r->file_of[k] = -1;
    for (int64_t i = 0; i < count; i++) {
        int32_t rank = parse_rank(names[i], &folder);
        const char *path = NULL;
        if (rank < 0) continue;
        if (folder)
            WEFT_TRY(last_file(s, names[i], &path));
        else
            path = wefti_arena_format(s->arena, "%s/%s", s->path, names[i]);
        if (!path) continue;
        WEFT_REQUIRE(r->file_of[rank] < 0, WEFT_E_ARG,
                     "%s and %s are both the slices of rank %d: leave one of them in the directory",
                     s->files[r->file_of[rank] < 0 ? 0 : r->file_of[rank]].path, path, rank);
        WEFT_TRY(open_rank(r, rank, path));
    }
    return WEFT_OK;
}

/* What a file of weft tells of itself fits the place where it lies, and the other files. */
static weft_status check_place(const ranks_reader *r, const wefti_source_file *f, int64_t stated) {
    const wefti_source_file *first = &r->s->files[0];
    int64_t count = 0, others = 0;
    const wefti_safetensors_pair *pairs = wefti_safetensors_metadata(f->tensors, &count);
    const int64_t rank = wefti_safetensors_number(pairs, count, "rank");
    WEFT_REQUIRE(rank < 0 || rank == f->rank, WEFT_E_MISMATCH,
                 "%s lies in the place of rank %d, but has the slices of rank %lld", f->path,
                 f->rank, (long long)rank);
    pairs = wefti_safetensors_metadata(first->tensors, &count);
    others = wefti_safetensors_number(pairs, count, "ranks");
    WEFT_REQUIRE(stated < 0 || others < 0 || stated == others, WEFT_E_MISMATCH,
                 "%s is a slice for %lld ranks, but %s for %lld ranks", f->path, (long long)stated,
                 first->path, (long long)others);
    return WEFT_OK;
}

/* Files that are not there, by the number of ranks that the layouts or the other files state. */
static weft_status add_missing(ranks_reader *r) {
    wefti_shards *s = r->s;
    int64_t ranks = s->ranks;
    for (int64_t i = 0; i < s->file_count; i++) {
        int64_t count = 0;
        const wefti_safetensors_pair *pairs =
            wefti_safetensors_metadata(s->files[i].tensors, &count);
        int64_t stated = wefti_safetensors_number(pairs, count, "ranks");
        if (stated > ranks && stated < SOURCE_RANKS_MAX) ranks = stated;
        WEFT_REQUIRE(!r->layouts || stated < 0 || stated == s->ranks, WEFT_E_MISMATCH,
                     "%s is a slice for %lld ranks, but %s is for %d ranks", s->files[i].path,
                     (long long)stated, r->layouts->path, s->ranks);
        WEFT_TRY(check_place(r, &s->files[i], stated));
    }
    if (ranks > s->ranks) {
        int32_t *grown = wefti_realloc(r->file_of, (size_t)ranks * sizeof *grown);
        WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for a list of files");
        r->file_of = grown;
        while (s->ranks < ranks) r->file_of[s->ranks++] = -1;
    }
    for (int32_t k = 0; k < s->ranks; k++) {
        if (r->file_of[k] >= 0) continue;
        const char *path = wefti_arena_format(s->arena, "%s/rank_%d", s->path, k);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
        WEFT_TRY(wefti_shards_add_file(s, path, k, true, &r->file_of[k]));
    }
    return WEFT_OK;
}

/* ---- slices ---- */

static weft_status read_region(const wefti_json *regions, slice *x) {
    const wefti_json *item = wefti_json_get(regions, x->entry->name);
    const int rank = x->entry->desc.rank;
    WEFT_REQUIRE(item, WEFT_E_CORRUPT, "no region");
    x->stated = true;
    x->whole = x->entry->desc;
    WEFT_TRY(wefti_json_sizes(item, "shape", rank, x->whole.shape));
    WEFT_TRY(wefti_json_sizes(item, "begin", rank, x->region.begin));
    for (int d = 0; d < rank; d++) x->region.size[d] = x->entry->desc.shape[d];
    return wefti_desc_check(&x->whole);
}

static weft_status gather(ranks_reader *r, const slice *x) {
    int64_t number = r->name_count;
    WEFT_TRY(WEFT_GROW(r->slices, r->slice_count, r->slice_cap));
    int32_t k = (int32_t)r->slice_count++;
    r->slices[k] = *x;
    r->slices[k].next = -1;
    WEFT_TRY(wefti_map_add_text(&r->map, x->entry->name, number, &number));
    if (number == r->name_count) {
        WEFT_TRY(WEFT_GROW(r->names, r->name_count, r->name_cap));
        r->names[r->name_count++] = (gathered){x->entry->name, k, k};
        return WEFT_OK;
    }
    r->slices[r->names[number].last].next = k;
    r->names[number].last = k;
    return WEFT_OK;
}

static weft_status read_file(ranks_reader *r, int32_t file) {
    static const wefti_json_limits limits = {
        .depth = 4, .members = WEFTI_SAFETENSORS_TENSORS, .array_items = WEFTI_SAFETENSORS_RANK};
    const wefti_source_file *f = &r->s->files[file];
    const wefti_json *regions = NULL;
    if (f->missing) return WEFT_OK;
    const char *text = wefti_shards_metadata(f->tensors, WEFTI_SLICES_REGIONS);
    weft_status status = WEFT_OK;
    if (text)
        status = wefti_json_parse(r->s->arena, text, (int64_t)strlen(text), &limits, &regions);
    if (status < 0) return wefti_prefix(status, "%s: %s", f->path, WEFTI_SLICES_REGIONS);
    WEFT_REQUIRE(!regions || regions->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "%s: %s is not a JSON object", f->path, WEFTI_SLICES_REGIONS);
    const wefti_json *next = regions ? regions->as.child : NULL;
    for (int64_t i = 0; i < wefti_safetensors_count(f->tensors); i++) {
        slice x = {.entry = wefti_safetensors_at(f->tensors, i), .rank = f->rank, .file = file};
        WEFT_TRY(wefti_safetensors_check_known(f->path, x.entry));
        /* the writer lists regions in the order of names, so that none is searched for */
        bool in_turn = next && !strcmp(next->key, x.entry->name);
        wefti_json one = {.kind = WEFTI_JSON_OBJECT, .count = 1};
        wefti_json member;
        if (in_turn) {
            member = *next;
            member.next = NULL;
            one.as.child = &member;
        }
        if (next) next = next->next;
        if (regions) status = read_region(in_turn ? &one : regions, &x);
        if (status < 0)
            return wefti_prefix(status, "%s: %s of tensor %.200s", f->path, WEFTI_SLICES_REGIONS,
                                x.entry->name);
        WEFT_TRY(gather(r, &x));
    }
    return WEFT_OK;
}

/* ---- tensors ---- */

static weft_status add_slice(ranks_reader *r, wefti_source_tensor *t, int32_t rank, const slice *x,
                             const wefti_region *region) {
    wefti_source_piece piece = {.region = *region, .file = r->file_of[rank]};
    if (x) {
        piece.reader = x->entry->reader;
        piece.at = x->entry->at;
    }
    return wefti_shards_add_piece(t, &piece);
}

static weft_status add_tensor(ranks_reader *r, const gathered *g, const weft_desc *whole,
                              wefti_source_tensor **out) {
    return wefti_shards_add_tensor(r->s, wefti_shards_role(r->s, g->name), g->name, whole, out);
}

/* Without layouts: what the metadata say, or whole tensors. */
static weft_status place_stated(ranks_reader *r, const gathered *g) {
    wefti_source_tensor *t;
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next) {
        const slice *x = &r->slices[k];
        WEFT_REQUIRE(x->stated || r->s->ranks == 1, WEFT_E_ARG,
                     "%s does not tell which part of tensor %.200s it has: give --from, the plan, "
                     "strategy file or rules of the slices",
                     r->s->files[x->file].path, g->name);
        wefti_region all = {0};
        for (int d = 0; d < x->entry->desc.rank; d++) all.size[d] = x->entry->desc.shape[d];
        WEFT_TRY(add_tensor(r, g, x->stated ? &x->whole : &x->entry->desc, &t));
        WEFT_TRY(add_slice(r, t, x->rank, x, x->stated ? &x->region : &all));
    }
    return WEFT_OK;
}

/* The slice of a rank among those of a name. Slices are in the order of files, so of ranks. */
static const slice *slice_of(const ranks_reader *r, const gathered *g, int32_t rank) {
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next)
        if (r->slices[k].rank == rank) return &r->slices[k];
    return NULL;
}

/* Whether two tensors have the same shape, or slices of the same shape. */
static bool same_slices(const ranks_reader *r, const gathered *a, const gathered *b) {
    const slice *x = &r->slices[a->first], *other = &r->slices[b->first];
    const bool stated = x->stated && other->stated;
    if (!stated) other = slice_of(r, b, x->rank);
    if (!other) return false;
    const weft_desc *p = stated ? &x->whole : &x->entry->desc;
    weft_desc q = stated ? other->whole : other->entry->desc;
    q.dtype = p->dtype;
    return wefti_desc_equal(p, &q);
}

/* The parameter of an optimizer's state: "w" for "w.m" and for "moments.w"; NULL: none. */
static const char *parameter_of(ranks_reader *r, const gathered *g) {
    const char *dot = strrchr(g->name, '.'), *before = strchr(g->name, '.');
    if (r->s->manifest && wefti_shards_role(r->s, g->name) != WEFTI_CHECKPOINT_OPTIMIZER)
        return NULL;
    int64_t n = dot ? wefti_map_find(&r->map, g->name, dot - g->name) : -1;
    if (n >= 0 && same_slices(r, g, &r->names[n])) return r->names[n].name;
    n = before ? wefti_map_find_text(&r->map, before + 1) : -1;
    return n >= 0 && same_slices(r, g, &r->names[n]) ? r->names[n].name : NULL;
}

/* By rules slices need not be equal: the size of the whole is that of all slices together. */
static weft_status add_up(const ranks_reader *r, const gathered *g, int d, int64_t *out) {
    int32_t left = r->layouts->ranks;
    *out = 0;
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next, left--) {
        const weft_desc *desc = &r->slices[k].entry->desc;
        WEFT_REQUIRE(d < desc->rank && !wefti_add_overflows(*out, desc->shape[d], out),
                     WEFT_E_SHAPE, "%s: tensor %.200s is %s, where other ranks have other parts",
                     r->s->files[r->slices[k].file].path, g->name, wefti_desc_text(desc).text);
    }
    WEFT_REQUIRE(!left, WEFT_E_NOT_FOUND,
                 "%s: %d of %d ranks have no part of tensor %.200s, so that its size is not known",
                 r->s->path, left, r->layouts->ranks, g->name);
    return WEFT_OK;
}

/* The shape of the whole tensor: stated by a slice or by the layouts, or of a slice times the parts
 * of the layouts. */
static weft_status whole_of(ranks_reader *r, const gathered *g, const char *of, weft_desc *out) {
    const slice *x = &r->slices[g->first];
    wefti_placement *found = NULL;
    int32_t count = 0;
    int64_t parts[WEFT_MAX_RANK];
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next)
        if (r->slices[k].stated) {
            *out = r->slices[k].whole;
            return WEFT_OK;
        }
    WEFT_REQUIRE(!r->layouts->plan, WEFT_E_ARG,
                 "%s does not tell the shape of tensor %.200s, which %s does not tell either",
                 r->s->files[x->file].path, g->name, r->layouts->path);
    WEFT_TRY(wefti_layouts_find(r->layouts, g->name, of, &x->entry->desc, &found, &count));
    *out = x->entry->desc;
    weft_status status = WEFT_OK;
    for (int32_t k = 0; k < count && status >= 0; k++) {
        if (!wefti_placement_has(&found[k], x->rank)) continue;
        if (found[k].rank != out->rank) {
            status =
                WEFT_RAISE(WEFT_E_SHAPE, "%s: tensor %.200s is %s, but %s describes %d dimensions",
                           r->s->files[x->file].path, g->name, wefti_desc_text(out).text,
                           r->layouts->path, found[k].rank);
            break;
        }
        wefti_placement_parts(&found[k], out->rank, parts);
        for (int d = 0; d < out->rank && status >= 0; d++)
            if (r->layouts->matched && parts[d] > 1)
                status = add_up(r, g, d, &out->shape[d]);
            else if (wefti_mul_overflows(out->shape[d], parts[d], &out->shape[d]))
                status = WEFT_RAISE(WEFT_E_CORRUPT, "the size of tensor %.200s overflows", g->name);
        break;
    }
    wefti_free(found);
    return status < 0 ? status : wefti_desc_check(out);
}

static weft_status check_slice(ranks_reader *r, const gathered *g, const slice *x,
                               const weft_desc *whole, const wefti_region *region) {
    const char *path = r->s->files[x->file].path;
    weft_desc local = *whole;
    for (int d = 0; d < whole->rank; d++) local.shape[d] = region->size[d];
    WEFT_REQUIRE(wefti_desc_equal(&local, &x->entry->desc), WEFT_E_SHAPE,
                 "%s: tensor %.200s is %s, but %s gives rank %d a part of %s", path, g->name,
                 wefti_desc_text(&x->entry->desc).text, r->layouts->path, x->rank,
                 wefti_desc_text(&local).text);
    for (int d = 0; d < whole->rank && x->stated; d++)
        WEFT_REQUIRE(x->region.begin[d] == region->begin[d], WEFT_E_MISMATCH,
                     "%s: its part of tensor %.200s begins at %lld in dimension %d, but %s gives "
                     "rank %d the part from %lld on",
                     path, g->name, (long long)x->region.begin[d], d, r->layouts->path, x->rank,
                     (long long)region->begin[d]);
    return WEFT_OK;
}

static weft_status place_ranks(ranks_reader *r, const gathered *g, const wefti_placement *p,
                               wefti_source_tensor *t) {
    const int32_t ranks = wefti_mesh_size(&p->mesh);
    wefti_region region;
    WEFT_TRY(wefti_placement_check(r->layouts, p, &t->desc));
    int32_t k = g->first;
    for (int32_t rank = p->mesh.first; rank < p->mesh.first + ranks; rank++) {
        while (k >= 0 && r->slices[k].rank < rank) k = r->slices[k].next;
        const slice *x = k >= 0 && r->slices[k].rank == rank ? &r->slices[k] : slice_of(r, g, rank);
        const wefti_source_file *file = &r->s->files[r->file_of[rank]];
        WEFT_REQUIRE(x || file->missing, WEFT_E_MISMATCH,
                     "%s lacks tensor %.200s, of which %s gives rank %d a part", file->path,
                     g->name, r->layouts->path, rank);
        wefti_placement_region(p, &t->desc, rank, &region);
        if (x) WEFT_TRY(check_slice(r, g, x, &t->desc, &region));
        WEFT_TRY(add_slice(r, t, rank, x, &region));
    }
    return WEFT_OK;
}

/* No slice may lie on a rank to which the layouts give none. */
static weft_status check_ranks(ranks_reader *r, const gathered *g, const wefti_placement *found,
                               int32_t count) {
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next) {
        bool has = false;
        for (int32_t i = 0; i < count; i++)
            has = has || wefti_placement_has(&found[i], r->slices[k].rank);
        WEFT_REQUIRE(
            has, WEFT_E_MISMATCH, "%s has tensor %.200s, of which %s gives rank %d no part",
            r->s->files[r->slices[k].file].path, g->name, r->layouts->path, r->slices[k].rank);
    }
    return WEFT_OK;
}

/* A tensor that the layouts do not name is whole in every slice that has it. */
static weft_status place_whole(ranks_reader *r, const gathered *g, wefti_source_tensor *t) {
    wefti_region all = {0};
    t->unplaced = true;
    for (int d = 0; d < t->desc.rank; d++) all.size[d] = t->desc.shape[d];
    for (int32_t k = g->first; k >= 0; k = r->slices[k].next) {
        const slice *x = &r->slices[k];
        WEFT_REQUIRE(wefti_desc_equal(&x->entry->desc, &t->desc), WEFT_E_SHAPE,
                     "%s: tensor %.200s is %s and not %s; %s does not say that it is split",
                     r->s->files[x->file].path, g->name, wefti_desc_text(&x->entry->desc).text,
                     wefti_desc_text(&t->desc).text, r->layouts->path);
        WEFT_TRY(add_slice(r, t, x->rank, x, &all));
    }
    return WEFT_OK;
}

static weft_status place(ranks_reader *r, const gathered *g) {
    wefti_source_tensor *t;
    wefti_placement *found = NULL;
    int32_t count = 0;
    weft_desc whole;
    const char *of = parameter_of(r, g);
    WEFT_TRY(whole_of(r, g, of, &whole));
    WEFT_TRY(add_tensor(r, g, &whole, &t));
    WEFT_TRY(wefti_layouts_find(r->layouts, g->name, of, &whole, &found, &count));
    weft_status status = count ? check_ranks(r, g, found, count) : place_whole(r, g, t);
    for (int32_t i = 0; i < count && status >= 0; i++) status = place_ranks(r, g, &found[i], t);
    wefti_free(found);
    return status;
}

/* A strategy file names only tensors of its model. If all files with a tensor are missing, nothing
 * is known of it: source_lost.c. */
static weft_status check_named(const ranks_reader *r) {
    const wefti_layouts *l = r->layouts;
    WEFT_TRY(wefti_layouts_check_matched(l, r->s->path));
    for (int64_t i = 0; i < l->count; i++) {
        const wefti_placement *p = &l->items[i];
        bool expected = false;
        if (wefti_map_find_text(&r->map, p->name) >= 0) continue;
        for (int32_t k = 0; k < r->s->ranks; k++)
            expected =
                expected || (wefti_placement_has(p, k) && !r->s->files[r->file_of[k]].missing);
        WEFT_REQUIRE(!expected, WEFT_E_MISMATCH,
                     "%s describes the parameter %.200s, which no file of %s has: are both of the "
                     "same model?",
                     l->path, p->name, r->s->path);
    }
    return WEFT_OK;
}

/* ---- opening ---- */

static weft_status take_carried(wefti_shards *s) {
    char *path = wefti_arena_format(s->arena, "%s/%s", s->path, WEFTI_SLICES_MANIFEST);
    char *text = NULL;
    int64_t bytes = 0;
    bool there = false;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    WEFT_TRY(wefti_look_for(path, &there));
    if (!there) return wefti_shards_take_side_files(s);
    WEFT_TRY(wefti_file_read(path, (int64_t)512 << 20, &text, &bytes));
    weft_status status = wefti_shards_take_manifest(s, text, bytes);
    wefti_free(text);
    if (status < 0) return wefti_prefix(status, "%s", path);
    return wefti_shards_take_texts(s, s->path);
}

static weft_status check_carried(wefti_shards *s) {
    const wefti_manifest *m = s->manifest;
    for (int64_t k = 0; m && k < m->tensor_count; k++) {
        const int64_t n = wefti_shards_number(s, m->tensors[k].role, m->tensors[k].name);
        if (n < 0) continue; /* no file has a name in this role: the copy refuses it */
        WEFT_REQUIRE(wefti_desc_equal(&s->tensors[n].desc, &m->tensors[k].desc), WEFT_E_MISMATCH,
                     "%s: the slices have %s %s, but %s names %s", s->path, m->tensors[k].name,
                     wefti_desc_text(&s->tensors[n].desc).text, WEFTI_SLICES_MANIFEST,
                     wefti_desc_text(&m->tensors[k].desc).text);
        s->tensors[n].checked = true;
        s->tensors[n].crc32c = m->tensors[k].crc32c;
    }
    return WEFT_OK;
}

static weft_status read_all(ranks_reader *r, bool *out) {
    char **names = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_dir_list(r->s->path, &names, &count));
    weft_status status = find_files(r, names, count, out);
    wefti_free(names);
    if (status < 0 || !*out) return status;
    WEFT_TRY(take_carried(r->s));
    WEFT_TRY(add_missing(r));
    for (int32_t k = 0; k < r->s->ranks; k++) WEFT_TRY(read_file(r, r->file_of[k]));
    for (int64_t i = 0; i < r->name_count; i++)
        WEFT_TRY(r->layouts ? place(r, &r->names[i]) : place_stated(r, &r->names[i]));
    if (r->layouts) WEFT_TRY(check_named(r));
    WEFT_TRY(wefti_shards_add_lost(r->s, r->layouts, r->file_of));
    return check_carried(r->s);
}

weft_status wefti_shards_open_ranks(wefti_shards *s, const wefti_layouts *layouts, bool *out) {
    ranks_reader r = {.s = s, .layouts = layouts};
    weft_status status = read_all(&r, out);
    wefti_map_free(&r.map);
    wefti_free(r.names);
    wefti_free(r.slices);
    wefti_free(r.file_of);
    return status;
}
