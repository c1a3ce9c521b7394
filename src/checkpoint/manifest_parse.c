/* Parses the manifest. See manifest.h. A manifest is untrusted input even with the right checksum:
 * everything in it is checked, so callers get a consistent one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_set.h"
#include "tensor/tensor.h"
#include "topo/limits.h"

void wefti_manifest_destroy(wefti_manifest *manifest) {
    if (!manifest) return;
    wefti_arena_destroy(manifest->arena);
    wefti_free(manifest);
}

static weft_status read_count(const wefti_json *object, const char *key, int64_t *out) {
    int64_t value = 0;
    WEFT_TRY(wefti_json_int(object, key, &value));
    WEFT_REQUIRE(value >= 0, WEFT_E_CORRUPT, "\"%s\" is %lld, less than 0", key, (long long)value);
    *out = value;
    return WEFT_OK;
}

static weft_status read_crc(const wefti_json *object, uint32_t *out) {
    uint64_t value = 0;
    WEFT_TRY(wefti_json_hex(object, "crc32c", "", &value));
    WEFT_REQUIRE(value <= UINT32_MAX, WEFT_E_CORRUPT, "\"crc32c\" has more than 32 bits");
    *out = (uint32_t)value;
    return WEFT_OK;
}

static weft_status read_pairs(wefti_manifest *m, const wefti_json *root, const char *key,
                              wefti_checkpoint_pairs *out) {
    const wefti_json *map = NULL;
    WEFT_TRY(wefti_json_object(root, key, &map));
    wefti_checkpoint_pair *items = wefti_arena_alloc(m->arena, (size_t)map->count * sizeof *items);
    WEFT_REQUIRE(items, WEFT_E_NOMEM, "no memory for a manifest");
    *out = (wefti_checkpoint_pairs){.items = items};
    WEFTI_JSON_EACH(item, map) {
        WEFT_REQUIRE(item->kind == WEFTI_JSON_TEXT, WEFT_E_CORRUPT,
                     "\"%s\": \"%.100s\" is not a text", key, item->key);
        items[out->count++] = (wefti_checkpoint_pair){.key = item->key, .value = item->as.text};
    }
    return WEFT_OK;
}

/* One [step, loss]. null: the loss was not finite. */
static weft_status read_loss(const wefti_json *item, wefti_checkpoint_loss *out) {
    bool pair = item->kind == WEFTI_JSON_ARRAY && item->count == 2;
    const wefti_json *step = pair ? item->as.child : NULL, *loss = pair ? step->next : NULL;
    WEFT_REQUIRE(pair && step->kind == WEFTI_JSON_INT &&
                     (loss->kind == WEFTI_JSON_REAL || loss->kind == WEFTI_JSON_INT ||
                      loss->kind == WEFTI_JSON_NULL),
                 WEFT_E_CORRUPT, "\"losses\" must hold pairs [step, loss]");
    out->step = step->as.integer;
    out->loss = loss->kind == WEFTI_JSON_REAL  ? loss->as.real
                : loss->kind == WEFTI_JSON_INT ? (double)loss->as.integer
                                               : (double)NAN;
    return WEFT_OK;
}

static weft_status read_losses(wefti_manifest *m, const wefti_json *root) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(root, "losses", &list));
    wefti_checkpoint_loss *losses =
        wefti_arena_alloc(m->arena, (size_t)list->count * sizeof *losses);
    WEFT_REQUIRE(losses, WEFT_E_NOMEM, "no memory for a manifest");
    m->meta.losses = losses;
    WEFTI_JSON_EACH(item, list) WEFT_TRY(read_loss(item, &losses[m->meta.loss_count++]));
    return WEFT_OK;
}

static weft_status read_meta(wefti_manifest *m, const wefti_json *root) {
    wefti_checkpoint_meta *meta = &m->meta;
    WEFT_TRY(wefti_json_text(root, "weft_version", &meta->weft_version));
    WEFT_TRY(wefti_json_hex(root, "fingerprint", "0x", &meta->fingerprint));
    WEFT_TRY(read_count(root, "step", &meta->step));
    WEFT_TRY(read_count(root, "data_position", &meta->data_position));
    WEFT_TRY(wefti_json_hex(root, "seed", "0x", &meta->seed));
    WEFT_TRY(wefti_json_text(root, "optimizer", &meta->optimizer));
    WEFT_TRY(read_pairs(m, root, "settings", &meta->settings));
    WEFT_TRY(read_pairs(m, root, "random", &meta->random));
    WEFT_TRY(read_pairs(m, root, "compute", &meta->compute));
    WEFT_TRY(read_pairs(m, root, "notes", &meta->notes));
    return read_losses(m, root);
}

static weft_status read_file(const wefti_json *item, wefti_manifest_file *file) {
    WEFT_TRY(wefti_json_text(item, "name", &file->name));
    WEFT_REQUIRE(wefti_file_name_valid(file->name), WEFT_E_CORRUPT,
                 "\"%.100s\" is not a plain file name", file->name);
    WEFT_TRY(read_count(item, "bytes", &file->bytes));
    WEFT_TRY(read_count(item, "checked_bytes", &file->checked_bytes));
    WEFT_TRY(read_crc(item, &file->crc32c));
    WEFT_REQUIRE(file->checked_bytes <= file->bytes, WEFT_E_CORRUPT,
                 "%s has %lld bytes, but %lld are checked", file->name, (long long)file->bytes,
                 (long long)file->checked_bytes);
    return WEFT_OK;
}

static weft_status read_files(wefti_manifest *m, const wefti_json *root) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(root, "files", &list));
    m->files = wefti_arena_alloc(m->arena, (size_t)list->count * sizeof *m->files);
    WEFT_REQUIRE(m->files, WEFT_E_NOMEM, "no memory for a manifest");
    WEFTI_JSON_EACH(item, list) WEFT_TRY(read_file(item, &m->files[m->file_count++]));
    return WEFT_OK;
}

static bool find_dtype(const char *name, weft_dtype *out) {
    for (int d = 0; d < WEFT_DTYPES; d++)
        if (!strcmp(name, wefti_safetensors_dtype_name((weft_dtype)d))) {
            *out = (weft_dtype)d;
            return true;
        }
    return false;
}

static weft_status read_desc(const wefti_json *item, weft_desc *out) {
    const char *dtype = NULL;
    const wefti_json *shape = NULL;
    WEFT_TRY(wefti_json_text(item, "dtype", &dtype));
    WEFT_TRY(wefti_json_array(item, "shape", &shape));
    weft_desc desc = {0};
    WEFT_REQUIRE(find_dtype(dtype, &desc.dtype), WEFT_E_CORRUPT, "unknown dtype \"%.40s\"", dtype);
    WEFT_REQUIRE(shape->count <= WEFT_MAX_RANK, WEFT_E_CORRUPT, "rank %d, more than %d",
                 (int)shape->count, WEFT_MAX_RANK);
    WEFTI_JSON_EACH(size, shape) {
        WEFT_REQUIRE(size->kind == WEFTI_JSON_INT, WEFT_E_CORRUPT, "a size is not a whole number");
        desc.shape[desc.rank++] = size->as.integer;
    }
    WEFT_REQUIRE(wefti_desc_check(&desc) >= 0, WEFT_E_CORRUPT, "the shape is not possible");
    *out = desc;
    return WEFT_OK;
}

static weft_status read_file_number(const wefti_manifest *m, const wefti_json *item, int64_t *out) {
    WEFT_TRY(read_count(item, "file", out));
    WEFT_REQUIRE(*out < m->file_count, WEFT_E_CORRUPT, "\"file\" is %lld; there are %lld files",
                 (long long)*out, (long long)m->file_count);
    return WEFT_OK;
}

/* `sliced`: the tensor is in no file as a whole. */
static weft_status read_tensor(const wefti_manifest *m, const wefti_json *item, bool sliced,
                               wefti_manifest_tensor *out) {
    const char *role = NULL;
    WEFT_TRY(wefti_json_text(item, "name", &out->name));
    WEFT_TRY(wefti_json_text(item, "layout", &out->layout));
    WEFT_TRY(wefti_json_text(item, "role", &role));
    out->file = -1;
    if (!sliced) WEFT_TRY(read_file_number(m, item, &out->file));
    WEFT_TRY(read_desc(item, &out->desc));
    WEFT_TRY(read_crc(item, &out->crc32c));
    out->role = WEFTI_CHECKPOINT_MODEL;
    while (out->role < WEFTI_CHECKPOINT_ROLES &&
           strcmp(role, wefti_checkpoint_role_text(out->role)))
        out->role++;
    WEFT_REQUIRE(out->role < WEFTI_CHECKPOINT_ROLES, WEFT_E_CORRUPT, "unknown role \"%.40s\"",
                 role);
    return WEFT_OK;
}

static weft_status read_tensors(wefti_manifest *m, const wefti_json *root, bool sliced) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(root, "tensors", &list));
    m->tensors = wefti_arena_alloc(m->arena, (size_t)list->count * sizeof *m->tensors);
    WEFT_REQUIRE(m->tensors, WEFT_E_NOMEM, "no memory for a manifest");
    WEFTI_JSON_EACH(item, list) {
        weft_status status = read_tensor(m, item, sliced, &m->tensors[m->tensor_count]);
        if (status < 0)
            return wefti_prefix(status, "tensor %lld of the manifest", (long long)m->tensor_count);
        m->tensor_count++;
    }
    WEFT_REQUIRE(wefti_manifest_fingerprint(m->tensors, m->tensor_count) == m->meta.fingerprint,
                 WEFT_E_CORRUPT, "the model's fingerprint does not match its tensors");
    return WEFT_OK;
}

/* ---- sliced steps ---- */

static weft_status read_region(const wefti_json *item, const weft_desc *whole, wefti_region *out) {
    *out = (wefti_region){{0}, {0}};
    WEFT_TRY(wefti_json_sizes(item, "begin", whole->rank, out->begin));
    WEFT_TRY(wefti_json_sizes(item, "size", whole->rank, out->size));
    for (int d = 0; d < whole->rank; d++)
        WEFT_REQUIRE(out->begin[d] <= whole->shape[d] &&
                         out->size[d] <= whole->shape[d] - out->begin[d],
                     WEFT_E_CORRUPT, "the region is not inside of the tensor");
    return WEFT_OK;
}

/* *out_own: whether the manifest's rank is one of them. */
static weft_status read_ranks(const wefti_manifest *m, const wefti_json *item,
                              wefti_manifest_slice *s, bool *out_own) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(item, "ranks", &list));
    int32_t *ranks = wefti_arena_alloc(m->arena, (size_t)(list->count + 1) * sizeof *ranks);
    WEFT_REQUIRE(ranks, WEFT_E_NOMEM, "no memory for a manifest");
    WEFTI_JSON_EACH(rank, list) {
        const int64_t least = s->rank_count ? (int64_t)ranks[s->rank_count - 1] + 1 : 0;
        WEFT_REQUIRE(rank->kind == WEFTI_JSON_INT && rank->as.integer >= least &&
                         rank->as.integer < m->sliced.ranks,
                     WEFT_E_CORRUPT, "\"ranks\" is not an ascending list of ranks");
        *out_own |= rank->as.integer == m->sliced.rank;
        ranks[s->rank_count++] = (int32_t)rank->as.integer;
    }
    WEFT_REQUIRE(s->rank_count, WEFT_E_CORRUPT, "no rank has the region");
    s->ranks = ranks;
    return WEFT_OK;
}

static weft_status read_slice(const wefti_manifest *m, const wefti_json *item,
                              wefti_manifest_slice *out) {
    bool own = false;
    WEFT_TRY(read_count(item, "tensor", &out->tensor));
    WEFT_REQUIRE(out->tensor < m->tensor_count, WEFT_E_CORRUPT,
                 "\"tensor\" is %lld; there are %lld tensors", (long long)out->tensor,
                 (long long)m->tensor_count);
    WEFT_TRY(read_region(item, &m->tensors[out->tensor].desc, &out->region));
    WEFT_TRY(read_ranks(m, item, out, &own));
    out->file = -1;
    if (!own) return WEFT_OK;
    WEFT_TRY(read_file_number(m, item, &out->file));
    WEFT_TRY(wefti_json_text(item, "name", &out->stored));
    return read_crc(item, &out->crc32c);
}

/* Regions of one tensor follow each other. They must have as many elements as the tensor; that none
 * overlap is checked where files are read (checkpoint/run). */
static weft_status check_elems(const wefti_manifest *m) {
    int64_t *elems = wefti_arena_alloc(m->arena, (size_t)(m->tensor_count + 1) * sizeof *elems);
    int64_t same = 0; /* slices of the present tensor */
    WEFT_REQUIRE(elems, WEFT_E_NOMEM, "no memory for a manifest");
    for (int64_t i = 0; i < m->sliced.count; i++) {
        const wefti_manifest_slice *s = &m->sliced.slices[i];
        const weft_desc *desc = &m->tensors[s->tensor].desc;
        WEFT_REQUIRE(i == 0 || s->tensor >= s[-1].tensor, WEFT_E_CORRUPT,
                     "the slices are not in the order of the tensors");
        same = i && s->tensor == s[-1].tensor ? same + 1 : 1;
        WEFT_REQUIRE(same <= WEFTI_CHECKPOINT_SLICES_MOST, WEFT_E_CORRUPT,
                     "%.200s has more than %d slices", m->tensors[s->tensor].name,
                     WEFTI_CHECKPOINT_SLICES_MOST);
        const int64_t here = wefti_region_elems(&s->region, desc->rank);
        WEFT_REQUIRE(here > 0 && here <= weft_desc_elems(desc) - elems[s->tensor], WEFT_E_CORRUPT,
                     "the slices of %.200s overlap", m->tensors[s->tensor].name);
        elems[s->tensor] += here;
    }
    for (int64_t k = 0; k < m->tensor_count; k++)
        WEFT_REQUIRE(elems[k] == weft_desc_elems(&m->tensors[k].desc), WEFT_E_CORRUPT,
                     "the slices of %.200s have %lld of its %lld elements", m->tensors[k].name,
                     (long long)elems[k], (long long)weft_desc_elems(&m->tensors[k].desc));
    return WEFT_OK;
}

static weft_status read_sliced(wefti_manifest *m, const wefti_json *root) {
    const wefti_json *list = NULL;
    int64_t rank = 0, ranks = 0;
    WEFT_TRY(read_count(root, "rank", &rank));
    WEFT_TRY(read_count(root, "ranks", &ranks));
    WEFT_REQUIRE(ranks > 0 && ranks <= WEFTI_RANKS_MAX && rank < ranks, WEFT_E_CORRUPT,
                 "rank %lld of %lld ranks", (long long)rank, (long long)ranks);
    m->sliced.rank = (int32_t)rank;
    m->sliced.ranks = (int32_t)ranks;
    WEFT_TRY(wefti_json_array(root, "slices", &list));
    m->sliced.slices =
        wefti_arena_alloc(m->arena, (size_t)(list->count + 1) * sizeof *m->sliced.slices);
    WEFT_REQUIRE(m->sliced.slices, WEFT_E_NOMEM, "no memory for a manifest");
    WEFTI_JSON_EACH(item, list) {
        weft_status status = read_slice(m, item, &m->sliced.slices[m->sliced.count]);
        if (status < 0)
            return wefti_prefix(status, "slice %lld of the manifest", (long long)m->sliced.count);
        m->sliced.count++;
    }
    return check_elems(m);
}

static weft_status check_digest(const wefti_manifest *m, const wefti_json *root) {
    uint64_t digest = 0;
    WEFT_TRY(wefti_json_hex(root, "digest", "0x", &digest));
    WEFT_REQUIRE(wefti_manifest_digest(m->tensors, m->tensor_count) == digest, WEFT_E_CORRUPT,
                 "the digest does not match the tensors' checksums");
    return WEFT_OK;
}

static weft_status read_root(wefti_manifest *m, const wefti_json *root) {
    const char *format = NULL;
    int64_t version = 0;
    WEFT_TRY(wefti_json_text(root, "format", &format));
    WEFT_REQUIRE(!strcmp(format, "weft-checkpoint"), WEFT_E_CORRUPT,
                 "the format is \"%.40s\", not \"weft-checkpoint\"", format);
    WEFT_TRY(wefti_json_int(root, "format_version", &version));
    WEFT_REQUIRE(version >= 1 && version <= 3, WEFT_E_NO_IMPL,
                 "the checkpoint has format version %lld; this weft reads versions 1 to 3",
                 (long long)version);
    WEFT_TRY(read_meta(m, root));
    WEFT_TRY(read_files(m, root));
    WEFT_TRY(read_tensors(m, root, version == 3));
    if (version == 3) WEFT_TRY(read_sliced(m, root));
    return version == 1 ? WEFT_OK : check_digest(m, root);
}

static weft_status parse_into(wefti_manifest *m, const char *text, int64_t bytes) {
    static const wefti_json_limits limits = {
        .depth = 5, .members = 2000000, .array_items = 2000000};
    char tail[WEFTI_MANIFEST_TAIL_BYTES + 1];
    int64_t body = bytes - WEFTI_MANIFEST_TAIL_BYTES;
    WEFT_REQUIRE(body > 0, WEFT_E_CORRUPT, "the manifest is cut off at %lld bytes",
                 (long long)bytes);
    wefti_manifest_tail(text, body, tail);
    WEFT_REQUIRE(!memcmp(text + body, tail, WEFTI_MANIFEST_TAIL_BYTES), WEFT_E_CORRUPT,
                 "the manifest does not end in its own checksum: it is cut off or altered");
    const wefti_json *root = NULL; /* its texts stay in the manifest's arena */
    WEFT_TRY(wefti_json_parse(m->arena, text, bytes, &limits, &root));
    return read_root(m, root);
}

weft_status wefti_manifest_parse(const char *text, int64_t bytes, wefti_manifest **out) {
    wefti_manifest *m;
    WEFT_NEW(m, wefti_manifest);
    weft_status status = wefti_arena_create(&m->arena);
    if (status >= 0) status = parse_into(m, text, bytes);
    if (status < 0) {
        wefti_manifest_destroy(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}
