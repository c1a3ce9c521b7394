/* Reads safetensors. See safetensors.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/seal/seal.h"
#include "tensor/tensor.h"

struct wefti_safetensors {
    wefti_arena *arena;
    wefti_reader *reader;             /* its own, or NULL */
    wefti_safetensors_entry *entries; /* ordered by name */
    wefti_safetensors_pair *pairs;
    int64_t count, pair_count;
    int64_t bytes, header_bytes;
};

void wefti_safetensors_close(wefti_safetensors *file) {
    if (!file) return;
    wefti_arena_destroy(file->arena);
    wefti_reader_close(file->reader);
    wefti_free(file->entries);
    wefti_free(file->pairs);
    wefti_free(file);
}

int64_t wefti_safetensors_count(const wefti_safetensors *file) {
    return file->count;
}
int64_t wefti_safetensors_bytes(const wefti_safetensors *file) {
    return file->bytes;
}
int64_t wefti_safetensors_header_bytes(const wefti_safetensors *file) {
    return file->header_bytes;
}

const wefti_safetensors_entry *wefti_safetensors_at(const wefti_safetensors *file, int64_t index) {
    return index >= 0 && index < file->count ? &file->entries[index] : NULL;
}

const wefti_safetensors_pair *wefti_safetensors_metadata(const wefti_safetensors *file,
                                                         int64_t *out_count) {
    *out_count = file->pair_count;
    return file->pairs;
}

bool wefti_safetensors_is_name(const char *path) {
    static const char suffix[] = ".safetensors";
    const size_t length = strlen(path), bytes = strlen(suffix);
    return length > bytes && !strcmp(path + length - bytes, suffix);
}

int64_t wefti_safetensors_number(const wefti_safetensors_pair *pairs, int64_t count,
                                 const char *key) {
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(pairs[i].key, key) != 0) continue;
        char *end;
        errno = 0;
        int64_t number = strtoll(pairs[i].value, &end, 10);
        return errno || end == pairs[i].value || *end || number < 0 ? -2 : number;
    }
    return -1;
}

weft_status wefti_safetensors_check_known(const char *path, const wefti_safetensors_entry *entry) {
    WEFT_REQUIRE(entry->desc.rank >= 0, WEFT_E_NO_IMPL,
                 "%s: tensor \"%.200s\" of %s has an element type or so many dimensions that weft "
                 "cannot write it",
                 path, entry->name, entry->dtype);
    return WEFT_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const wefti_safetensors_entry *)a)->name,
                  ((const wefti_safetensors_entry *)b)->name);
}

const wefti_safetensors_entry *wefti_safetensors_find(const wefti_safetensors *file,
                                                      const char *name) {
    wefti_safetensors_entry key = {.name = name};
    return file->count
               ? bsearch(&key, file->entries, (size_t)file->count, sizeof key, compare_names)
               : NULL;
}

/* All element types of the format, with their weft dtypes. */
typedef struct file_dtype {
    const char *name;
    int bits;
    weft_dtype dtype; /* WEFT_DTYPES: weft has no such type (wefti_safetensors_check_known) */
} file_dtype;

static const file_dtype dtypes[] = {
#define DTYPE_ROW(name, bytes, text, file_name) {file_name, (bytes)*8, WEFT_##name},
    WEFT_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
        {"I8", 8, WEFT_DTYPES},
    {"I16", 16, WEFT_DTYPES},
    {"U32", 32, WEFT_DTYPES},
    {"U64", 64, WEFT_DTYPES},
    {"C64", 64, WEFT_DTYPES},
    {"F8_E5M2", 8, WEFT_DTYPES},
    {"F8_E4M3", 8, WEFT_DTYPES},
    {"F8_E8M0", 8, WEFT_DTYPES},
    {"F8_E4M3FNUZ", 8, WEFT_DTYPES},
    {"F8_E5M2FNUZ", 8, WEFT_DTYPES},
    {"F6_E2M3", 6, WEFT_DTYPES},
    {"F6_E3M2", 6, WEFT_DTYPES},
    {"F4", 4, WEFT_DTYPES},
};

static const file_dtype *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name)) return &dtypes[i];
    return NULL;
}

/* The byte range of a tensor, for the check that tensors tile the file. */
typedef struct extent {
    int64_t begin, end;
    wefti_safetensors_entry *entry;
} extent;

static int compare_extents(const void *a, const void *b) {
    const extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static weft_status as_count(const wefti_json *value, int64_t *out) {
    WEFT_REQUIRE(value->kind == WEFTI_JSON_INT && value->as.integer >= 0, WEFT_E_CORRUPT,
                 "a size or offset is not a whole number >= 0");
    *out = value->as.integer;
    return WEFT_OK;
}

static weft_status read_shape(const wefti_json *shape, const file_dtype *dtype,
                              wefti_safetensors_entry *entry) {
    entry->desc = (weft_desc){.dtype = dtype->dtype};
    int64_t bits = dtype->bits;
    WEFTI_JSON_EACH(item, shape) {
        int64_t size = 0;
        WEFT_TRY(as_count(item, &size));
        if (entry->desc.rank < WEFT_MAX_RANK) entry->desc.shape[entry->desc.rank] = size;
        entry->desc.rank++;
        WEFT_REQUIRE(!wefti_mul_overflows(bits, size, &bits), WEFT_E_CORRUPT,
                     "the shape's bits do not fit 63 bits");
    }
    WEFT_REQUIRE(bits % 8 == 0, WEFT_E_CORRUPT, "%lld bits are not a whole number of bytes",
                 (long long)bits);
    entry->bytes = bits / 8;
    if (dtype->dtype == WEFT_DTYPES || wefti_desc_check(&entry->desc) < 0)
        entry->desc = (weft_desc){.rank = -1};
    return WEFT_OK;
}

static weft_status read_entry(const wefti_json *info, wefti_safetensors_entry *entry,
                              extent *where) {
    WEFT_REQUIRE(info->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "its description is not an object");
    const wefti_json *shape = NULL, *offsets = NULL;
    const char *name = NULL;
    WEFT_TRY(wefti_json_text(info, "dtype", &name));
    WEFT_TRY(wefti_json_array(info, "shape", &shape));
    WEFT_TRY(wefti_json_array(info, "data_offsets", &offsets));
    WEFT_REQUIRE(info->count == 3, WEFT_E_CORRUPT,
                 "it has members other than dtype, shape, data_offsets");
    const file_dtype *dtype = find_dtype(name);
    WEFT_REQUIRE(dtype, WEFT_E_CORRUPT, "unknown dtype \"%.40s\"", name);
    entry->dtype = dtype->name;
    WEFT_TRY(read_shape(shape, dtype, entry));
    WEFT_REQUIRE(offsets->count == 2, WEFT_E_CORRUPT, "data_offsets has %d values, not 2",
                 (int)offsets->count);
    WEFT_TRY(as_count(offsets->as.child, &where->begin));
    WEFT_TRY(as_count(offsets->as.child->next, &where->end));
    WEFT_REQUIRE(where->end >= where->begin && where->end - where->begin == entry->bytes,
                 WEFT_E_CORRUPT, "its shape needs %lld bytes, its offsets are [%lld, %lld)",
                 (long long)entry->bytes, (long long)where->begin, (long long)where->end);
    return WEFT_OK;
}

static weft_status read_metadata(wefti_safetensors *file, const wefti_json *map) {
    WEFT_REQUIRE(map->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT, "__metadata__ is not an object");
    WEFT_NEW_ARRAY(file->pairs, wefti_safetensors_pair, map->count);
    WEFTI_JSON_EACH(item, map) {
        WEFT_REQUIRE(item->kind == WEFTI_JSON_TEXT, WEFT_E_CORRUPT,
                     "__metadata__ \"%.100s\" is not a text", item->key);
        file->pairs[file->pair_count++] =
            (wefti_safetensors_pair){.key = item->key, .value = item->as.text};
    }
    return WEFT_OK;
}

static weft_status read_members(wefti_safetensors *file, const wefti_json *root, extent *extents) {
    WEFTI_JSON_EACH(member, root) {
        if (!strcmp(member->key, "__metadata__")) {
            WEFT_TRY(read_metadata(file, member));
            continue;
        }
        WEFT_REQUIRE(strlen(member->key) <= WEFTI_SAFETENSORS_NAME_BYTES, WEFT_E_CORRUPT,
                     "a tensor's name has %zu bytes, more than %d", strlen(member->key),
                     WEFTI_SAFETENSORS_NAME_BYTES);
        wefti_safetensors_entry *entry = &file->entries[file->count];
        extent *where = &extents[file->count];
        weft_status status = read_entry(member, entry, where);
        if (status < 0) return wefti_prefix(status, "tensor \"%.200s\"", member->key);
        entry->name = member->key;
        where->entry = entry;
        file->count++;
    }
    return WEFT_OK;
}

/* The tensors, in order of position, must cover [0, bytes) without gap or overlap. */
static weft_status check_tiling(extent *extents, int64_t count, int64_t bytes) {
    if (count) qsort(extents, (size_t)count, sizeof *extents, compare_extents);
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        WEFT_REQUIRE(extents[i].begin == at, WEFT_E_CORRUPT,
                     "tensor \"%.200s\" begins at %lld; the one before it ends at %lld",
                     extents[i].entry->name, (long long)extents[i].begin, (long long)at);
        at = extents[i].end;
    }
    WEFT_REQUIRE(at == bytes, WEFT_E_CORRUPT, "the tensors have %lld bytes, the file holds %lld",
                 (long long)at, (long long)bytes);
    return WEFT_OK;
}

static weft_status read_header(wefti_safetensors *file, const wefti_reader *reader,
                               const wefti_json *root) {
    extent *extents;
    WEFT_NEW_ARRAY(file->entries, wefti_safetensors_entry, root->count);
    WEFT_NEW_ARRAY(extents, extent, root->count);
    weft_status status = read_members(file, root, extents);
    if (status >= 0) status = check_tiling(extents, file->count, file->bytes - file->header_bytes);
    for (int64_t i = 0; i < file->count && status >= 0; i++) {
        extents[i].entry->reader = reader;
        extents[i].entry->at = file->header_bytes + extents[i].begin;
    }
    wefti_free(extents);
    if (status < 0) return status;
    if (file->count)
        qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_names);
    return WEFT_OK;
}

static weft_status header_length(const wefti_reader *reader, int64_t bytes, int64_t *out) {
    unsigned char data[8];
    WEFT_REQUIRE(bytes >= 8, WEFT_E_CORRUPT, "%lld bytes are too few for a safetensors file",
                 (long long)bytes);
    WEFT_TRY(wefti_reader_at(reader, 0, sizeof data, data));
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)data[i] << (8 * i);
    WEFT_REQUIRE(length <= WEFTI_SAFETENSORS_HEADER_BYTES, WEFT_E_CORRUPT,
                 "a header of %llu bytes; at most %d are read (is this a safetensors file?)",
                 (unsigned long long)length, WEFTI_SAFETENSORS_HEADER_BYTES);
    WEFT_REQUIRE((int64_t)length <= bytes - 8, WEFT_E_CORRUPT,
                 "a header of %llu bytes in a file of %lld: the file is cut off",
                 (unsigned long long)length, (long long)bytes);
    *out = (int64_t)length;
    return WEFT_OK;
}

static weft_status parse_header(wefti_safetensors *file, const char *header, int64_t length,
                                const wefti_json **out) {
    static const wefti_json_limits limits = {.depth = 8,
                                             .members = WEFTI_SAFETENSORS_TENSORS + 1,
                                             .array_items = WEFTI_SAFETENSORS_RANK};
    while (length > 0 && header[length - 1] == ' ') length--; /* padding, of spaces only */
    WEFT_REQUIRE(length > 1 && header[0] == '{' && header[length - 1] == '}', WEFT_E_CORRUPT,
                 "the header does not run from { to }");
    return wefti_json_parse(file->arena, header, length, &limits, out);
}

static weft_status parse_into(wefti_safetensors *file, const wefti_reader *reader) {
    int64_t length = 0;
    unsigned char *header;
    const wefti_json *root = NULL; /* names and metadata stay in its arena with the file */
    WEFT_TRY(header_length(reader, file->bytes, &length));
    file->header_bytes = 8 + length;
    WEFT_TRY(wefti_reader_take(reader, 8, length, &header));
    weft_status status = parse_header(file, (const char *)header, length, &root);
    wefti_free(header);
    WEFT_TRY(status);
    return read_header(file, reader, root);
}

weft_status wefti_safetensors_read(const wefti_reader *reader, wefti_safetensors **out) {
    wefti_safetensors *file;
    WEFT_NEW(file, wefti_safetensors);
    file->bytes = wefti_reader_bytes(reader);
    weft_status status = wefti_arena_create(&file->arena);
    if (status >= 0) status = parse_into(file, reader);
    if (status < 0) {
        wefti_safetensors_close(file);
        return status;
    }
    *out = file;
    return WEFT_OK;
}

/* Takes over the reader. */
static weft_status read_own(wefti_reader *reader, wefti_safetensors **out) {
    wefti_safetensors *file = NULL;
    weft_status status = wefti_safetensors_read(reader, &file);
    if (status < 0) {
        wefti_reader_close(reader);
        return status;
    }
    file->reader = reader;
    *out = file;
    return WEFT_OK;
}

weft_status wefti_safetensors_parse(const void *data, int64_t bytes, wefti_safetensors **out) {
    wefti_reader *reader;
    WEFT_TRY(wefti_reader_of(data, bytes, &reader));
    return read_own(reader, out);
}

weft_status wefti_safetensors_open(const char *path, wefti_safetensors **out) {
    wefti_reader *reader;
    WEFT_TRY(wefti_sealed_open(path, NULL, &reader));
    weft_status status = read_own(reader, out);
    return status < 0 ? wefti_prefix(status, "%s", path) : WEFT_OK;
}
