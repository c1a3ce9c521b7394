/* Slices that the caller lists in the order of ranks, as one source. See source.h. */
#include <string.h>

#include "reshard/copy.h"
#include "tensor/tensor.h"

/* ---- which slices these are ---- */

static int64_t number_of(const wefti_shards *s, const char *key) {
    int64_t count = 0;
    const wefti_safetensors_pair *pairs = wefti_shards_pairs(s, &count);
    int64_t number = wefti_safetensors_number(pairs, count, key);
    return number < 0 ? -1 : number;
}

static int64_t step_of(const wefti_shards *s) {
    return s->manifest ? s->manifest->meta.step : number_of(s, "step");
}

/* A listing of files may be in another order than the ranks, for example by name. So slices with
 * rank numbers must come in the order of ranks. Some ranks may be missing, unless the slices know
 * their number. */
static weft_status check_order(const wefti_shards *all) {
    int64_t last = -1, at = 0;
    for (int i = 0; i < all->part_count; i++) {
        const wefti_shards *part = all->parts[i];
        const int64_t rank = number_of(part, "rank"), step = step_of(part),
                      first = step_of(all->parts[0]);
        WEFT_REQUIRE(step == first || step < 0 || first < 0, WEFT_E_ARG,
                     "slice %d (%s) is of step %lld, slice 0 (%s) of step %lld", i, part->path,
                     (long long)step, all->path, (long long)first);
        if (rank < 0) continue;
        WEFT_REQUIRE(rank > last, WEFT_E_ARG,
                     "slice %d (%s) is of rank %lld, slice %lld before it of rank %lld; slices are "
                     "joined in the order of ranks",
                     i, part->path, (long long)rank, (long long)at, (long long)last);
        last = rank;
        at = i;
    }
    return WEFT_OK;
}

/* If all slices know their number, none may be missing and none may belong to another set. */
static weft_status check_complete(const wefti_shards *all) {
    const int64_t ranks = number_of(all->parts[0], "ranks");
    for (int i = 0; i < all->part_count; i++)
        if (number_of(all->parts[i], "ranks") < 0) return WEFT_OK;
    for (int i = 0; i < all->part_count; i++) {
        const wefti_shards *part = all->parts[i];
        const int64_t other = number_of(part, "ranks");
        WEFT_REQUIRE(other == ranks, WEFT_E_ARG,
                     "slice %d (%s) is one of %lld, slice 0 (%s) one of %lld", i, part->path,
                     (long long)other, all->path, (long long)ranks);
        const bool here = number_of(part, "rank") == i;
        WEFT_REQUIRE(here && (i + 1 < all->part_count || i + 1 >= ranks), WEFT_E_ARG,
                     "slice %d (%s) is one of %lld; the slice of rank %d is missing", i, part->path,
                     (long long)ranks, here ? i + 1 : i);
    }
    return WEFT_OK;
}

/* A slice is complete, and has the checksums that it states: they do not hold for the whole. */
static weft_status check_part(wefti_shards *part) {
    const wefti_reads reads = {.source = part, .prefer = -1, .replicas = true};
    wefti_shard_copy sums = {.source = part, .whole = true, .replicas = true};
    WEFT_TRY(wefti_reads_choose(&reads, NULL));
    if (!part->manifest) return WEFT_OK;
    WEFT_NEW_ARRAY(sums.crc32c, uint32_t, part->count + 1);
    weft_status status = wefti_copy_run(&sums);
    wefti_free(sums.crc32c);
    return status;
}

static weft_status open_parts(wefti_shards *s, const char *const *paths, int count) {
    int32_t file;
    WEFT_NEW_ARRAY(s->parts, wefti_shards *, count);
    for (int i = 0; i < count; i++) {
        weft_status status = wefti_shards_open_slice(paths[i], &s->parts[i]);
        if (status < 0) return wefti_prefix(status, "slice %d", i);
        s->part_count++;
        WEFT_TRY(check_part(s->parts[i]));
        WEFT_TRY(wefti_shards_add_file(s, paths[i], i, true, &file));
        s->files[file].missing = false;
    }
    WEFT_TRY(check_order(s));
    return check_complete(s);
}

weft_status wefti_shards_open_parts(const char *const *paths, int count, wefti_shards **out) {
    wefti_shards *s = NULL;
    WEFT_TRY(wefti_shards_create(paths[0], &s));
    weft_status status = open_parts(s, paths, count);
    if (status < 0)
        wefti_shards_close(s);
    else
        *out = s;
    return status;
}

/* ---- whole tensors ---- */

/* The tensor of this name. Only steps tell roles. */
static const wefti_source_tensor *same_name(const wefti_shards *s, const wefti_source_tensor *t) {
    const wefti_source_tensor *found = wefti_shards_find(s, t->role, t->name);
    for (int role = 0; role < WEFTI_CHECKPOINT_ROLES && !found; role++)
        found = wefti_shards_find(s, (wefti_checkpoint_role)role, t->name);
    return found;
}

/* Slice `i` has exactly the tensors of slice 0. */
static weft_status check_names(const wefti_shards *all, int i) {
    const wefti_shards *first = all->parts[0], *part = all->parts[i];
    for (int64_t k = 0; k < first->count; k++)
        WEFT_REQUIRE(same_name(part, &first->tensors[k]), WEFT_E_SHAPE,
                     "slice %d (%s) has no tensor \"%.200s\", as slice 0 has", i, part->path,
                     first->tensors[k].name);
    for (int64_t k = 0; k < part->count; k++)
        WEFT_REQUIRE(same_name(first, &part->tensors[k]), WEFT_E_SHAPE,
                     "slice %d (%s) has a tensor \"%.200s\", which slice 0 (%s) has not", i,
                     part->path, part->tensors[k].name, first->path);
    return WEFT_OK;
}

/* The parts of one tensor are equal in all but the size along `dimension`. */
static weft_status check_fit(const wefti_shards *all, int i, const wefti_source_tensor *a,
                             const wefti_source_tensor *b, int dimension) {
    weft_desc other = b->desc;
    if (other.rank == a->desc.rank && dimension >= 0)
        other.shape[dimension] = a->desc.shape[dimension];
    WEFT_REQUIRE(wefti_desc_equal(&a->desc, &other),
                 dimension == WEFTI_SPLIT_UNSAID ? WEFT_E_MISMATCH : WEFT_E_SHAPE,
                 "tensor \"%.200s\" is %s in slice 0 and %s in slice %d (%s); %s", a->name,
                 wefti_desc_text(&a->desc).text, wefti_desc_text(&b->desc).text, i,
                 all->parts[i]->path,
                 dimension == WEFTI_SPLIT_UNSAID ? "nothing says along which dimension it is split"
                 : dimension < 0                 ? "it is said to be whole"
                                                 : "they do not fit along the split dimension");
    return WEFT_OK;
}

static weft_status join_tensor(wefti_shards *s, const wefti_source_tensor *a, int dimension) {
    weft_desc whole = a->desc;
    wefti_source_tensor *t;
    for (int i = 1; i < s->part_count; i++) {
        const wefti_source_tensor *b = same_name(s->parts[i], a);
        WEFT_TRY(check_fit(s, i, a, b, dimension));
        if (dimension < 0) continue;
        int64_t *size = &whole.shape[dimension];
        WEFT_REQUIRE(!wefti_add_overflows(*size, b->desc.shape[dimension], size), WEFT_E_SHAPE,
                     "tensor \"%.200s\" has too many elements", a->name);
    }
    WEFT_TRY(wefti_shards_add_tensor(s, a->role, a->name, &whole, &t));
    int64_t begin = 0;
    for (int i = 0; i < s->part_count; i++) {
        const wefti_source_tensor *b = same_name(s->parts[i], a);
        for (int64_t k = 0; k < b->count; k++) {
            wefti_source_piece piece = b->pieces[k];
            piece.file = i;
            if (dimension >= 0) piece.region.begin[dimension] += begin;
            WEFT_TRY(wefti_shards_add_piece(t, &piece));
        }
        if (dimension >= 0) begin += b->desc.shape[dimension];
    }
    return WEFT_OK;
}

weft_status wefti_shards_join(wefti_shards *s, const int *dimensions) {
    const wefti_shards *first = s->parts[0];
    for (int i = 1; i < s->part_count; i++) WEFT_TRY(check_names(s, i));
    for (int64_t k = 0; k < first->count; k++)
        WEFT_TRY(join_tensor(s, &first->tensors[k], dimensions[k]));
    return wefti_shards_finish(s);
}
