/* Joins slices of all ranks into whole tensors. See weft/checkpoint.h. */
#include <string.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/slices.h"
#include "tensor/tensor.h"

typedef const wefti_safetensors_entry *slices_merge_part;

/* A tensor to write: one part for each slice. */
typedef struct joined {
    const slices_merge_part *parts;
    int count, dimension;
} joined;

typedef struct merge {
    wefti_source **slices;
    int slice_count;
    int64_t count; /* of tensors */
    int *dimensions;
    slices_merge_part *parts; /* [tensor, slice] */
    joined *tensors;
    wefti_safetensors_item *items;
    wefti_safetensors_pair *metadata;
    int64_t pairs;
} merge;

static void merge_free(merge *m) {
    for (int s = 0; m->slices && s < m->slice_count; s++) wefti_source_close(m->slices[s]);
    wefti_free(m->slices);
    wefti_free(m->dimensions);
    wefti_free(m->parts);
    wefti_free(m->tensors);
    wefti_free(m->items);
    wefti_free(m->metadata);
}

static int64_t number_of(const merge *m, int s, const char *key) {
    return wefti_source_number(m->slices[s], key);
}

/* A listing of files may be in another order than the ranks, for example by name. So slices with
 * rank numbers must come in the order of ranks. Some ranks may be missing, unless the slices know
 * their number. */
static weft_status check_order(const merge *m) {
    int64_t last = -1, at = 0;
    for (int s = 0; s < m->slice_count; s++) {
        int64_t rank = number_of(m, s, WEFTI_SLICE_RANK);
        if (rank < 0) continue;
        WEFT_REQUIRE(rank > last, WEFT_E_ARG,
                     "slice %d (%s) is of rank %lld, slice %lld before it of rank %lld; slices are "
                     "joined in the order of ranks",
                     s, wefti_source_path(m->slices[s]), (long long)rank, (long long)at,
                     (long long)last);
        last = rank;
        at = s;
    }
    return WEFT_OK;
}

/* If all slices know their number, none may be missing and none may belong to another set. */
static weft_status check_complete(const merge *m) {
    const int64_t ranks = number_of(m, 0, WEFTI_SLICE_RANKS);
    for (int s = 0; s < m->slice_count; s++)
        if (number_of(m, s, WEFTI_SLICE_RANKS) < 0) return WEFT_OK;
    for (int s = 0; s < m->slice_count; s++) {
        int64_t other = number_of(m, s, WEFTI_SLICE_RANKS);
        WEFT_REQUIRE(other == ranks, WEFT_E_ARG,
                     "slice %d (%s) is one of %lld, slice 0 (%s) one of %lld", s,
                     wefti_source_path(m->slices[s]), (long long)other,
                     wefti_source_path(m->slices[0]), (long long)ranks);
        bool here = number_of(m, s, WEFTI_SLICE_RANK) == s;
        WEFT_REQUIRE(here && (s + 1 < m->slice_count || s + 1 >= ranks), WEFT_E_ARG,
                     "slice %d (%s) is one of %lld; the slice of rank %d is missing", s,
                     wefti_source_path(m->slices[s]), (long long)ranks, here ? s + 1 : s);
    }
    return WEFT_OK;
}

static weft_status open_slices(merge *m, const char *const *paths) {
    WEFT_NEW_ARRAY(m->slices, wefti_source *, m->slice_count);
    for (int s = 0; s < m->slice_count; s++) {
        weft_status status = wefti_source_open(paths[s], &m->slices[s]);
        if (status < 0) return wefti_prefix(status, "slice %d", s);
        int64_t step = wefti_source_step(m->slices[s]), first = wefti_source_step(m->slices[0]);
        WEFT_REQUIRE(step == first || step < 0 || first < 0, WEFT_E_ARG,
                     "slice %d (%s) is of step %lld, slice 0 (%s) of step %lld", s, paths[s],
                     (long long)step, paths[0], (long long)first);
    }
    m->count = wefti_source_count(m->slices[0]);
    WEFT_TRY(check_order(m));
    return check_complete(m);
}

/* Slice `s` has exactly the tensors of slice 0. */
static weft_status find_parts(merge *m, int s) {
    const wefti_source *first = m->slices[0], *slice = m->slices[s];
    for (int64_t k = 0; k < m->count; k++) {
        const char *name = wefti_source_at(first, k)->name;
        slices_merge_part found = wefti_source_find(slice, name);
        WEFT_REQUIRE(found, WEFT_E_SHAPE, "slice %d (%s) has no tensor \"%.200s\", as slice 0 has",
                     s, wefti_source_path(slice), name);
        m->parts[k * m->slice_count + s] = found;
    }
    for (int64_t k = 0; k < wefti_source_count(slice); k++) {
        const char *name = wefti_source_at(slice, k)->name;
        WEFT_REQUIRE(wefti_source_find(first, name), WEFT_E_SHAPE,
                     "slice %d (%s) has a tensor \"%.200s\", which slice 0 (%s) has not", s,
                     wefti_source_path(slice), name, wefti_source_path(first));
    }
    return WEFT_OK;
}

/* Whether two parts can belong to one tensor: equal in all but the size along `dimension`. */
static bool fits(const weft_desc *a, const weft_desc *b, int dimension) {
    weft_desc other = *b;
    if (a->rank == b->rank && dimension >= 0) other.shape[dimension] = a->shape[dimension];
    return wefti_desc_equal(a, &other);
}

static weft_status compare(slices_merge_part a, slices_merge_part b, bool *out_same) {
    enum { PIECE = WEFTI_READER_PIECE / 2 };
    unsigned char x[PIECE], y[PIECE];
    *out_same = true;
    for (int64_t at = 0, n; at < a->bytes && *out_same; at += n) {
        n = a->bytes - at < PIECE ? a->bytes - at : PIECE;
        WEFT_TRY(wefti_reader_at(a->reader, a->at + at, n, x));
        WEFT_TRY(wefti_reader_at(b->reader, b->at + at, n, y));
        *out_same = !memcmp(x, y, (size_t)n);
    }
    return WEFT_OK;
}

static weft_status check_part(const merge *m, const joined *t, int s) {
    slices_merge_part a = t->parts[0], b = t->parts[s];
    wefti_shape_text first = wefti_desc_text(&a->desc), other = wefti_desc_text(&b->desc);
    const char *is = b->desc.rank < 0 ? b->dtype : other.text;
    if (t->dimension >= 0) {
        WEFT_REQUIRE(fits(&a->desc, &b->desc, t->dimension), WEFT_E_SHAPE,
                     "tensor \"%.200s\" is %s in slice 0 and %s in slice %d (%s); split along "
                     "dimension %d they do not fit",
                     a->name, first.text, is, s, wefti_source_path(m->slices[s]), t->dimension);
        return WEFT_OK;
    }
    bool shape = fits(&a->desc, &b->desc, -1);
    WEFT_REQUIRE(shape || t->dimension != WEFTI_SLICE_NONE, WEFT_E_SHAPE,
                 "tensor \"%.200s\" is said to be whole; it is %s in slice 0 and %s in slice %d "
                 "(%s)",
                 a->name, first.text, is, s, wefti_source_path(m->slices[s]));
    bool same = false;
    if (shape) WEFT_TRY(compare(a, b, &same));
    WEFT_REQUIRE(same, WEFT_E_MISMATCH,
                 "tensor \"%.200s\" is not the same in slice 0 (%s) and slice %d (%s), %s", a->name,
                 first.text, s, is,
                 t->dimension == WEFTI_SLICE_NONE
                     ? "but is said to be whole"
                     : "and nothing says along which dimension it is split");
    return WEFT_OK;
}

static weft_status join_tensor(merge *m, int64_t k) {
    joined *t = &m->tensors[k];
    *t = (joined){&m->parts[k * m->slice_count], m->slice_count, m->dimensions[k]};
    weft_desc whole = t->parts[0]->desc;
    for (int s = 1; s < t->count; s++) {
        WEFT_TRY(check_part(m, t, s));
        if (t->dimension < 0) continue;
        int64_t *size = &whole.shape[t->dimension];
        WEFT_REQUIRE(!wefti_add_overflows(*size, t->parts[s]->desc.shape[t->dimension], size),
                     WEFT_E_SHAPE, "tensor \"%.200s\" has too many elements", t->parts[0]->name);
    }
    m->items[k] = (wefti_safetensors_item){t->parts[0]->name, whole, t};
    return wefti_desc_check(&whole);
}

static bool has_pair(const wefti_source *source, const wefti_safetensors_pair *pair) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_source_metadata(source, &count);
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(pairs[i].key, pair->key)) return !strcmp(pairs[i].value, pair->value);
    return false;
}

/* Metadata that is equal in all slices also holds for the whole. */
static weft_status join_metadata(merge *m) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_source_metadata(m->slices[0], &count);
    WEFT_NEW_ARRAY(m->metadata, wefti_safetensors_pair, count + 1);
    for (int64_t i = 0; i < count; i++) {
        bool all = !wefti_slices_own(pairs[i].key);
        for (int s = 1; s < m->slice_count && all; s++) all = has_pair(m->slices[s], &pairs[i]);
        if (all) m->metadata[m->pairs++] = pairs[i];
    }
    return WEFT_OK;
}

static weft_status prepare(merge *m, const char *const *paths,
                           const weft_checkpoint_slice_rule *rules, int rule_count) {
    WEFT_TRY(open_slices(m, paths));
    WEFT_NEW_ARRAY(m->dimensions, int, m->count + 1);
    WEFT_NEW_ARRAY(m->parts, slices_merge_part, m->count * m->slice_count + 1);
    WEFT_NEW_ARRAY(m->tensors, joined, m->count + 1);
    WEFT_NEW_ARRAY(m->items, wefti_safetensors_item, m->count + 1);
    WEFT_TRY(wefti_slices_dimensions(m->slices[0], rules, rule_count, m->dimensions));
    for (int s = 0; s < m->slice_count; s++) WEFT_TRY(find_parts(m, s));
    for (int64_t k = 0; k < m->count; k++) WEFT_TRY(join_tensor(m, k));
    return join_metadata(m);
}

static weft_status join_bytes(const wefti_safetensors_item *item, void *room) {
    const joined *t = item->data;
    slices_merge_part first = t->parts[0];
    if (t->dimension < 0) return wefti_reader_at(first->reader, first->at, first->bytes, room);
    wefti_runs whole = wefti_runs_of(&item->desc, t->dimension);
    wefti_reader_window *window;
    weft_status status = WEFT_OK;
    char *to = room;
    WEFT_NEW(window, wefti_reader_window);
    for (int s = 0; s < t->count && status >= 0; s++) {
        wefti_runs runs = wefti_runs_of(&t->parts[s]->desc, t->dimension);
        int64_t bytes = runs.size * runs.inner;
        window->reader = t->parts[s]->reader;
        window->begin = window->end = window->last = 0;
        for (int64_t i = 0; i < runs.outer && bytes && status >= 0; i++)
            status = wefti_reader_near(window, t->parts[s]->at + i * bytes, bytes,
                                       to + i * whole.size * whole.inner);
        to += bytes;
    }
    wefti_free(window);
    return status;
}

static void tell(const merge *m, const char *path, bool json, wefti_text *text) {
    if (json) {
        wefti_text_add(text, "{\"file\": ");
        wefti_json_quote(text, path);
        wefti_text_add(text, ", \"slices\": %d, \"tensors\": [", m->slice_count);
    } else {
        wefti_text_add(text, "file         %s\nslices       %d\ntensors      %lld\n", path,
                       m->slice_count, (long long)m->count);
    }
    for (int64_t k = 0; k < m->count; k++)
        wefti_slices_tell(text, json, k == 0, &m->items[k], "joined", m->tensors[k].dimension);
    if (json) wefti_text_add(text, "]}\n");
}

static weft_status check_path(const char *path) {
    WEFT_REQUIRE(wefti_safetensors_is_name(path), WEFT_E_ARG,
                 "%s: the name of the output must end in .safetensors", path);
    return wefti_slices_check_new(path);
}

weft_status weft_checkpoint_merge(const char *const *slices, int slice_count,
                                  const weft_checkpoint_slice_rule *rules, int rule_count,
                                  const char *path, int json, char **out_text) {
    WEFT_REQUIRE(slice_count > 0, WEFT_E_ARG, "merge needs one slice or more");
    WEFT_TRY(check_path(path));
    merge m = {.slice_count = slice_count};
    char *text = NULL;
    weft_status status = prepare(&m, slices, rules, rule_count);
    if (status >= 0 && out_text) {
        wefti_text told = {0};
        tell(&m, path, json != 0, &told);
        status = wefti_slices_take(&told, &text);
    }
    if (status >= 0) {
        status =
            wefti_safetensors_write_made(path, m.items, m.count, m.metadata, m.pairs, join_bytes);
        if (status < 0) (void)unlink(path); /* syncing the directory may be the last failure */
    }
    merge_free(&m);
    return wefti_slices_give(status, text, out_text);
}
