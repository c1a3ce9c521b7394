/* Files of a destination. See target.h. */
#include "reshard/target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/json/json.h"
#include "base/text.h"
#include "tensor/tensor.h"

enum { TARGET_OPEN_FILES = 256 };

wefti_region wefti_region_whole(const weft_desc *desc) {
    wefti_region whole = {{0}, {0}};
    for (int d = 0; d < desc->rank; d++) whole.size[d] = desc->shape[d];
    return whole;
}

void wefti_target_destroy(wefti_target *t) {
    if (!t) return;
    for (int64_t i = 0; i < t->file_count; i++)
        if (t->files[i].fd >= 0) (void)WEFTI_DISK_WATCH(close(t->files[i].fd));
    const weft_status removed = t->made ? wefti_remove_tree(t->temporary) : WEFT_OK;
    (void)removed; /* the next run with this destination removes it */
    if (t->claim >= 0) (void)WEFTI_DISK_WATCH(close(t->claim));
    wefti_free(t->files);
    wefti_free(t->items);
    wefti_free(t->first_item);
    wefti_free(t->crc32c);
    wefti_free(t->path);
    wefti_free(t->temporary);
    wefti_arena_destroy(t->arena);
    wefti_free(t);
}

/* The hidden name beside the destination, DIR/.NAME.weft-tmp. */
static char *temporary_of(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    return wefti_format("%.*s.%s.weft-tmp", (int)(name - path), path, name);
}

/* What must become the directory of the destination may be a file. */
static weft_status check_parent(const char *path) {
    char *parent = wefti_strdup(path), *slash;
    WEFT_REQUIRE(parent, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = WEFT_OK;
    while (status >= 0 && (slash = strrchr(parent, '/')) && slash != parent) {
        *slash = '\0';
        if (!wefti_exists(parent)) continue;
        if (!wefti_is_dir(parent))
            status = WEFT_RAISE(WEFT_E_ARG, "cannot write %s: %s is a file, not a directory", path,
                                parent);
        break;
    }
    wefti_free(parent);
    return status;
}

static weft_status name_target(wefti_target *t, const char *path) {
    size_t length = strlen(path);
    t->path = wefti_strdup(path);
    WEFT_REQUIRE(t->path, WEFT_E_NOMEM, "no memory for the name of a directory");
    while (length > 1 && t->path[length - 1] == '/') t->path[--length] = '\0';
    WEFT_REQUIRE(length && strcmp(t->path, ".") != 0 && strcmp(t->path, "/") != 0, WEFT_E_ARG,
                 "'%s' cannot be a new directory", path);
    WEFT_TRY(wefti_check_new(t->path));
    WEFT_TRY(check_parent(t->path));
    t->temporary = temporary_of(t->path);
    WEFT_REQUIRE(t->temporary, WEFT_E_NOMEM, "no memory for the name of a directory");
    return WEFT_OK;
}

/* The directory of the file `path`. */
static char *parent_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return wefti_format("%.*s.", slash ? (int)(slash + 1 - path) : 0, path);
}

static weft_status name_beside(wefti_target *t, const char *stem) {
    char *parent = parent_of(stem);
    WEFT_REQUIRE(parent, WEFT_E_NOMEM, "no memory for the name of a directory");
    const bool missing = wefti_is_missing(parent);
    wefti_free(parent);
    WEFT_REQUIRE(!missing, WEFT_E_NOT_FOUND, "cannot write %s: its directory does not exist", stem);
    t->path = wefti_strdup(stem);
    t->temporary = temporary_of(stem);
    WEFT_REQUIRE(t->path && t->temporary, WEFT_E_NOMEM, "no memory for the name of a directory");
    return WEFT_OK;
}

static weft_status begin(wefti_target *t, const char *path) {
    static const wefti_safetensors_pair format = {"format", "pt"};
    t->pairs = &format;
    t->pairs_count = 1;
    WEFT_TRY(wefti_arena_create(&t->arena));
    if (path) WEFT_TRY(t->beside ? name_beside(t, path) : name_target(t, path));
    WEFT_NEW_ARRAY(t->first_item, int32_t, t->source->count + 1);
    WEFT_NEW_ARRAY(t->crc32c, uint32_t, t->source->count + 1);
    for (int64_t i = 0; i < t->source->count; i++) t->first_item[i] = -1;
    return WEFT_OK;
}

static weft_status create(const wefti_shards *source, const char *path, bool beside,
                          wefti_target **out) {
    wefti_target *t;
    WEFT_NEW(t, wefti_target);
    t->source = source;
    t->beside = beside;
    t->claim = -1;
    weft_status status = begin(t, path);
    if (status < 0) {
        wefti_target_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

weft_status wefti_target_create(const wefti_shards *source, const char *path, wefti_target **out) {
    return create(source, path, false, out);
}

weft_status wefti_target_create_beside(const wefti_shards *source, const char *stem,
                                       wefti_target **out) {
    return create(source, stem, true, out);
}

weft_status wefti_target_add_file(wefti_target *t, const char *name, int32_t rank, int32_t *out) {
    WEFT_TRY(WEFT_GROW(t->files, t->file_count, t->file_cap));
    wefti_target_file file = {.name = wefti_arena_strdup(t->arena, name), .rank = rank, .fd = -1};
    const char *slash = strrchr(t->path ? t->path : "", '/');
    if (t->beside)
        file.place = wefti_arena_format(t->arena, "%.*s%s", slash ? (int)(slash + 1 - t->path) : 0,
                                        t->path, name);
    WEFT_REQUIRE(file.name && (file.place || !t->beside), WEFT_E_NOMEM,
                 "no memory for the name of a file");
    if (file.place) WEFT_TRY(wefti_check_new(file.place));
    *out = (int32_t)t->file_count;
    t->files[t->file_count++] = file;
    return WEFT_OK;
}

weft_status wefti_target_add_item(wefti_target *t, int32_t file, int64_t tensor,
                                  const wefti_region *region) {
    WEFT_TRY(WEFT_GROW(t->items, t->item_count, t->item_cap));
    t->items[t->item_count] = (wefti_target_item){
        .tensor = tensor,
        .region = *region,
        .file = file,
        .order = tensor,
        .next = t->first_item[tensor],
    };
    t->first_item[tensor] = (int32_t)t->item_count++;
    return WEFT_OK;
}

/* ---- headers ---- */

static void add_sizes(wefti_text *text, const char *key, const int64_t *sizes, int rank) {
    wefti_text_add(text, "\"%s\":[", key);
    for (int d = 0; d < rank; d++) wefti_text_add(text, d ? ",%lld" : "%lld", (long long)sizes[d]);
    wefti_text_add(text, "]");
}

/* The metadata that tell the regions of a file's items, which are ordered by name. */
static void add_regions(const wefti_target *t, const wefti_target_item *const *items, int64_t count,
                        wefti_text *text) {
    wefti_text_add(text, "{");
    for (int64_t i = 0; i < count; i++) {
        const wefti_source_tensor *tensor = &t->source->tensors[items[i]->tensor];
        const int rank = tensor->desc.rank;
        if (i) wefti_text_add(text, ",");
        wefti_json_quote(text, tensor->name);
        wefti_text_add(text, ":{");
        if (t->regions == WEFTI_REGIONS_SLICES) {
            add_sizes(text, "shape", tensor->desc.shape, rank);
            wefti_text_add(text, ",");
            add_sizes(text, "begin", items[i]->region.begin, rank);
        } else {
            add_sizes(text, "saved_offsets", items[i]->region.begin, rank);
        }
        wefti_text_add(text, "}");
    }
    wefti_text_add(text, "}");
}

typedef struct header_maker {
    wefti_target *target;
    wefti_target_item **items; /* of the file: in the order of its bytes */
    const wefti_target_item **named;
    wefti_safetensors_item *entries;
    int64_t count;
} header_maker;

/* By descending element size, so that each tensor is aligned; then by order. */
static int compare_layout(const void *a, const void *b) {
    const wefti_target_item *x = *(wefti_target_item *const *)a,
                            *y = *(wefti_target_item *const *)b;
    if (x->at != y->at) return x->at > y->at ? -1 : 1; /* element size, before the layout */
    return x->order == y->order ? 0 : x->order < y->order ? -1 : 1;
}

static weft_status make_header(header_maker *h, int32_t file, char **out) {
    wefti_target *t = h->target;
    wefti_target_file *f = &t->files[file];
    char *regions = NULL, rank[16], ranks[16];
    wefti_safetensors_pair *pairs = NULL;
    int64_t count = 0, at = 0;
    wefti_text text = {0};
    for (int64_t i = 0; i < h->count; i++) {
        const wefti_target_item *item = h->items[i];
        const wefti_source_tensor *tensor = &t->source->tensors[item->tensor];
        h->entries[i] = (wefti_safetensors_item){.name = tensor->name, .desc = tensor->desc};
        for (int d = 0; d < tensor->desc.rank; d++)
            h->entries[i].desc.shape[d] = item->region.size[d];
    }
    if (t->regions >= WEFTI_REGIONS_SLICES) {
        add_regions(t, h->named, h->count, &text);
        regions = wefti_text_take(&text);
        WEFT_REQUIRE(regions, WEFT_E_NOMEM, "no memory for the header of a file");
    }
    pairs = wefti_calloc((size_t)t->pairs_count + 4, sizeof *pairs);
    if (!pairs) {
        wefti_free(regions);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the header of a file");
    }
    for (; count < t->pairs_count; count++) pairs[count] = t->pairs[count];
    if (t->regions != WEFTI_REGIONS_NONE) {
        (void)snprintf(rank, sizeof rank, "%d", f->rank);
        (void)snprintf(ranks, sizeof ranks, "%d", t->ranks);
        pairs[count++] = (wefti_safetensors_pair){"rank", rank};
        pairs[count++] = (wefti_safetensors_pair){"ranks", ranks};
    }
    if (t->regions == WEFTI_REGIONS_SLICES) {
        pairs[count++] = (wefti_safetensors_pair){WEFTI_SLICES_REGIONS, regions};
    } else if (t->regions == WEFTI_REGIONS_DCP) {
        pairs[count++] = (wefti_safetensors_pair){WEFTI_DCP_REGIONS, regions};
        pairs[count++] = (wefti_safetensors_pair){"DCP_VERSION", "1.0"};
    }
    weft_status status =
        wefti_safetensors_header(h->entries, h->count, pairs, count, out, &f->header_bytes);
    wefti_free(pairs);
    wefti_free(regions);
    if (status < 0) return wefti_prefix(status, "%s/%s", t->path, f->name);
    for (int64_t i = 0; i < h->count; i++) {
        h->items[i]->at = f->header_bytes + at;
        at += weft_desc_bytes(&h->entries[i].desc);
    }
    f->bytes = f->header_bytes + at;
    f->header_crc32c = wefti_crc32c(0, *out, (size_t)f->header_bytes);
    return WEFT_OK;
}

/* ---- files ---- */

static char *path_of(const wefti_target *t, const char *name) {
    return wefti_format("%s/%s", t->temporary, name);
}

static weft_status make_folder(const wefti_target *t, const char *name) {
    const char *slash = strrchr(name, '/');
    if (!slash) return wefti_dir_make(t->temporary);
    char *dir = wefti_format("%s/%.*s", t->temporary, (int)(slash - name), name);
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = wefti_dir_make(dir);
    wefti_free(dir);
    return status;
}

static weft_status fail_file(const char *what, const char *path, int error) {
    WEFT_FAIL(WEFT_E_IO, "cannot %s %s: %s", what, path, strerror(error));
}

static weft_status write_all(int fd, const char *path, int64_t at, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = WEFTI_DISK(
            pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + (int64_t)done)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_file("write", path, errno);
        done += (size_t)n;
    }
    return WEFT_OK;
}

static weft_status create_file(wefti_target *t, int32_t file, const char *header) {
    wefti_target_file *f = &t->files[file];
    WEFT_TRY(make_folder(t, f->name));
    char *path = path_of(t, f->name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = WEFT_OK;
    const int fd = WEFTI_DISK(open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666));
    if (fd < 0) status = fail_file("create", path, errno);
    /* a full disk shows here, where the file system can reserve space */
    int error = fd < 0 ? 0 : posix_fallocate(fd, 0, (off_t)f->bytes);
    if (error == EINVAL || error == EOPNOTSUPP) error = ftruncate(fd, (off_t)f->bytes) ? errno : 0;
    if (error) status = fail_file("reserve space for", path, error);
    if (status >= 0) status = write_all(fd, path, 0, header, (size_t)f->header_bytes);
    wefti_free(path);
    if (fd >= 0 && status >= 0 && file < TARGET_OPEN_FILES)
        f->fd = fd;
    else if (fd >= 0)
        (void)WEFTI_DISK_WATCH(close(fd));
    return status;
}

static weft_status make_file(header_maker *h, int32_t file) {
    char *header = NULL;
    weft_status status = make_header(h, file, &header);
    if (status >= 0) status = create_file(h->target, file, header);
    wefti_free(header);
    return status;
}

static int compare_files(const void *a, const void *b) {
    const wefti_target_item *x = *(wefti_target_item *const *)a,
                            *y = *(wefti_target_item *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->tensor == y->tensor ? 0 : x->tensor < y->tensor ? -1 : 1;
}

static weft_status make_files(wefti_target *t, wefti_target_item **all, header_maker *h) {
    for (int64_t i = 0; i < t->item_count; i++) {
        all[i] = &t->items[i];
        all[i]->at = (int64_t)weft_dtype_bytes(t->source->tensors[all[i]->tensor].desc.dtype);
    }
    if (t->item_count) qsort(all, (size_t)t->item_count, sizeof *all, compare_files);
    int64_t first = 0;
    for (int32_t file = 0; file < t->file_count; file++, first += h->count) {
        h->count = 0;
        while (first + h->count < t->item_count && all[first + h->count]->file == file) h->count++;
        h->items = all + first;
        for (int64_t i = 0; i < h->count; i++) h->named[i] = all[first + i];
        if (h->count) qsort(h->items, (size_t)h->count, sizeof *h->items, compare_layout);
        WEFT_TRY(make_file(h, file));
    }
    return WEFT_OK;
}

weft_status wefti_target_make(wefti_target *t) {
    header_maker h = {.target = t};
    wefti_target_item **all = NULL;
    WEFT_TRY(wefti_target_claim(t));
    all = wefti_calloc((size_t)t->item_count + 1, sizeof *all);
    h.named = wefti_calloc((size_t)t->item_count + 1, sizeof *h.named);
    h.entries = wefti_calloc((size_t)t->item_count + 1, sizeof *h.entries);
    weft_status status = all && h.named && h.entries
                             ? make_files(t, all, &h)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the headers of files");
    wefti_free(all);
    wefti_free((void *)h.named);
    wefti_free(h.entries);
    return status;
}

weft_status wefti_target_write(const wefti_target *t, int32_t file, int64_t at, const void *data,
                               size_t bytes) {
    const wefti_target_file *f = &t->files[file];
    if (f->fd >= 0) return write_all(f->fd, f->name, at, data, bytes);
    char *path = path_of(t, f->name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    const int fd = WEFTI_DISK_WATCH(open(path, O_WRONLY | O_CLOEXEC));
    weft_status status = fd < 0 ? fail_file("open", path, errno) : WEFT_OK;
    if (status >= 0) status = write_all(fd, path, at, data, bytes);
    if (fd >= 0 && WEFTI_DISK_WATCH(close(fd)) && status >= 0)
        status = fail_file("write", path, errno);
    wefti_free(path);
    return status;
}

weft_status wefti_target_text(const wefti_target *t, const char *name, const char *text,
                              int64_t bytes) {
    WEFT_TRY(make_folder(t, name));
    char *path = path_of(t, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = wefti_file_write(path, text, (size_t)bytes);
    wefti_free(path);
    return status;
}

/* ---- the end ---- */

static weft_status sync_file(wefti_target *t, wefti_target_file *f) {
    char *path = path_of(t, f->name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = WEFT_OK;
    const int fd = f->fd >= 0 ? f->fd : WEFTI_DISK_WATCH(open(path, O_WRONLY | O_CLOEXEC));
    f->fd = -1;
    if (fd < 0 || WEFTI_DISK(fsync(fd))) status = fail_file("sync", path, errno);
    if (fd >= 0 && WEFTI_DISK_WATCH(close(fd)) && status >= 0)
        status = fail_file("write", path, errno);
    wefti_free(path);
    return status;
}

static weft_status sync_folder(const wefti_target *t, const wefti_target_file *f) {
    const char *slash = strrchr(f->name, '/');
    if (!slash) return WEFT_OK;
    char *dir = wefti_format("%s/%.*s", t->temporary, (int)(slash - f->name), f->name);
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = wefti_dir_sync(dir);
    wefti_free(dir);
    return status;
}

static weft_status place_directory(wefti_target *t) {
    WEFT_TRY(wefti_dir_sync(t->temporary));
    WEFT_TRY(wefti_check_new(t->path));
    WEFT_TRY(wefti_rename(t->temporary, t->path));
    t->made = false;
    return WEFT_OK;
}

static weft_status place_file(const wefti_target *t, const wefti_target_file *f) {
    char *path = path_of(t, f->name);
    weft_status status = wefti_check_new(f->place);
    if (!path) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    if (status >= 0) status = wefti_rename_unsynced(path, f->place);
    wefti_free(path);
    return status;
}

static weft_status place_files(wefti_target *t) {
    char *parent = parent_of(t->path);
    weft_status status = WEFT_OK;
    int64_t placed = 0;
    if (!parent) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a directory");
    while (status >= 0 && placed < t->file_count)
        if ((status = place_file(t, &t->files[placed])) >= 0) placed++;
    if (status >= 0) status = wefti_dir_sync(parent);
    if (status < 0)
        while (placed > 0) (void)unlink(t->files[--placed].place); /* all or none */
    wefti_free(parent);
    return status;
}

weft_status wefti_target_commit(wefti_target *t) {
    for (int64_t i = 0; i < t->file_count; i++) WEFT_TRY(sync_file(t, &t->files[i]));
    for (int64_t i = 0; i < t->file_count; i++) WEFT_TRY(sync_folder(t, &t->files[i]));
    return t->beside ? place_files(t) : place_directory(t);
}
