/* Model directories. See tensor_set.h. */
#include "checkpoint/tensor_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"

typedef struct set_file {
    char *name;
    wefti_safetensors *tensors;
} set_file;

struct wefti_tensor_set {
    set_file *files;
    wefti_safetensors_entry *entries; /* ordered by name; names belong to the files */
    int64_t file_count, file_capacity, count;
    wefti_checkpoint *step; /* of slices; its tensors are in no file as a whole */
};

void wefti_tensor_set_close(wefti_tensor_set *set) {
    if (!set) return;
    for (int64_t i = 0; i < set->file_count; i++) {
        wefti_safetensors_close(set->files[i].tensors);
        wefti_free(set->files[i].name);
    }
    wefti_checkpoint_close(set->step);
    wefti_free(set->files);
    wefti_free(set->entries);
    wefti_free(set);
}

int64_t wefti_tensor_set_count(const wefti_tensor_set *set) {
    return set->count;
}
int64_t wefti_tensor_set_files(const wefti_tensor_set *set) {
    return set->file_count;
}

const wefti_safetensors_entry *wefti_tensor_set_at(const wefti_tensor_set *set, int64_t index) {
    return index >= 0 && index < set->count ? &set->entries[index] : NULL;
}

const char *wefti_tensor_set_file_name(const wefti_tensor_set *set, int64_t index) {
    return index >= 0 && index < set->file_count ? set->files[index].name : NULL;
}

const wefti_safetensors *wefti_tensor_set_file(const wefti_tensor_set *set, int64_t index) {
    return index >= 0 && index < set->file_count ? set->files[index].tensors : NULL;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const wefti_safetensors_entry *)a)->name,
                  ((const wefti_safetensors_entry *)b)->name);
}

const wefti_safetensors_entry *wefti_tensor_set_find(const wefti_tensor_set *set,
                                                     const char *name) {
    wefti_safetensors_entry key = {.name = name};
    return set->count ? bsearch(&key, set->entries, (size_t)set->count, sizeof key, compare_entries)
                      : NULL;
}

/* ---- the index ---- */

bool wefti_file_name_valid(const char *name) {
    return *name && *name != '.' && !strchr(name, '/') && strlen(name) <= 255;
}

bool wefti_file_path_valid(const char *path) {
    char part[256];
    for (const char *at = path;; at++) {
        const size_t length = strcspn(at, "/");
        if (length >= sizeof part) return false;
        memcpy(part, at, length);
        part[length] = 0;
        if (!wefti_file_name_valid(part)) return false;
        at += length;
        if (!*at) return strlen(path) < 1024;
    }
}

bool wefti_tensor_may_be_tied(const char *name) {
    static const char *const ends[] = {
        "lm_head.weight",   "embed_out.weight",    "decoder.weight",         "decoder.bias",
        "predictions.bias", "embed_tokens.weight", "word_embeddings.weight", "wte.weight"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);
        if (length >= n && !strcmp(name + length - n, ends[i])) return true;
    }
    return false;
}

static int compare_index(const void *a, const void *b) {
    return strcmp(((const wefti_tensor_index *)a)->tensor, ((const wefti_tensor_index *)b)->tensor);
}

/* Checks the map and adds up the bytes of its texts. */
static weft_status check_weight_map(const wefti_json *map, size_t *out_bytes) {
    size_t bytes = 0;
    WEFTI_JSON_EACH(item, map) {
        const char *file = item->kind == WEFTI_JSON_TEXT ? item->as.text : NULL;
        WEFT_REQUIRE(file && wefti_file_path_valid(file), WEFT_E_CORRUPT,
                     "tensor \"%.200s\" is in \"%.100s\"; the plain name of a file in the "
                     "directory or in a folder of it is needed",
                     item->key, file ? file : "(not a text)");
        WEFT_REQUIRE(strlen(item->key) <= WEFTI_SAFETENSORS_NAME_BYTES, WEFT_E_CORRUPT,
                     "a tensor's name has %zu bytes, more than %d", strlen(item->key),
                     WEFTI_SAFETENSORS_NAME_BYTES);
        bytes += strlen(item->key) + strlen(file) + 2;
    }
    *out_bytes = bytes;
    return WEFT_OK;
}

static weft_status copy_weight_map(const wefti_json *map, wefti_tensor_index **out) {
    size_t bytes = 0, count = (size_t)map->count;
    WEFT_TRY(check_weight_map(map, &bytes));
    wefti_tensor_index *pairs = wefti_alloc(count * sizeof *pairs + bytes), *pair = pairs;
    WEFT_REQUIRE(pairs, WEFT_E_NOMEM, "no memory for an index of %zu tensors", count);
    char *at = (char *)(pairs + count);
    WEFTI_JSON_EACH(item, map) {
        pair->tensor = strcpy(at, item->key);
        at += strlen(at) + 1;
        pair->file = strcpy(at, item->as.text);
        at += strlen(at) + 1;
        pair++;
    }
    qsort(pairs, count, sizeof *pairs, compare_index);
    *out = pairs;
    return WEFT_OK;
}

weft_status wefti_tensor_index_parse(const char *text, int64_t bytes, wefti_tensor_index **out,
                                     int64_t *out_count) {
    static const wefti_json_limits limits = {
        .depth = 8, .members = WEFTI_SAFETENSORS_TENSORS, .array_items = 1000};
    wefti_arena *arena = NULL;
    WEFT_TRY(wefti_arena_create(&arena));
    const wefti_json *root = NULL, *map = NULL;
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &root);
    if (status >= 0) status = wefti_json_object(root, "weight_map", &map);
    if (status >= 0) status = copy_weight_map(map, out);
    if (status >= 0) *out_count = map->count;
    wefti_arena_destroy(arena);
    return status;
}

/* ---- opening ---- */

bool wefti_link_of_cache(const char *path) {
    static const char blobs[] = "../../blobs/";
    char target[300] = {0};
    const ssize_t length = readlink(path, target, sizeof target - 1);
    return length > 0 && (size_t)length < sizeof target - 1 &&
           !strncmp(target, blobs, strlen(blobs)) && wefti_file_name_valid(target + strlen(blobs));
}

/* A directory of links to the files of a model is a model, too. What a link leads to must be a
 * regular file: others may block. The check and the opening are two calls. So this protects against
 * the directory's contents as delivered, not against a process that changes them meanwhile. */
weft_status wefti_tensor_set_check_link(const char *path) {
    struct stat info;
    if (WEFTI_DISK(lstat(path, &info))) {
        int error = errno;
        WEFT_FAIL(error == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO, "cannot look at %s: %s", path,
                  strerror(error));
    }
    if (!S_ISLNK(info.st_mode)) return WEFT_OK;
    const bool there = !stat(path, &info);
    WEFT_REQUIRE(there && S_ISREG(info.st_mode), WEFT_E_CORRUPT, "%s is a link to %s", path,
                 there ? "something that is no regular file" : "a file that does not exist");
    return WEFT_OK;
}

static weft_status join(const char *dir, const char *name, char **out) {
    *out = wefti_format("%s/%s", dir, name);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

/* Opens DIR/name, or returns its index if it is already open. */
static weft_status add_file(wefti_tensor_set *set, const char *path, const char *name,
                            int64_t *out_index) {
    for (int64_t i = 0; i < set->file_count; i++)
        if (!strcmp(set->files[i].name, name)) {
            *out_index = i;
            return WEFT_OK;
        }
    WEFT_TRY(WEFT_GROW(set->files, set->file_count, set->file_capacity));
    WEFT_TRY(wefti_tensor_set_check_link(path));
    set_file file = {0};
    WEFT_TRY(wefti_safetensors_open(path, &file.tensors));
    file.name = wefti_strdup(name);
    if (!file.name) {
        wefti_safetensors_close(file.tensors);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the name of a file");
    }
    *out_index = set->file_count;
    set->files[set->file_count++] = file;
    return WEFT_OK;
}

static weft_status open_single(wefti_tensor_set *set, const char *path, const char *name) {
    int64_t index = 0;
    WEFT_TRY(add_file(set, path, name, &index));
    const wefti_safetensors *file = set->files[index].tensors;
    int64_t count = wefti_safetensors_count(file);
    WEFT_NEW_ARRAY(set->entries, wefti_safetensors_entry, count);
    for (int64_t i = 0; i < count; i++) set->entries[i] = *wefti_safetensors_at(file, i);
    set->count = count;
    return WEFT_OK;
}

static weft_status add_indexed(wefti_tensor_set *set, const char *dir,
                               const wefti_tensor_index *pair) {
    char *path = NULL;
    WEFT_TRY(join(dir, pair->file, &path));
    int64_t index = 0;
    weft_status status = add_file(set, path, pair->file, &index);
    wefti_free(path);
    if (status == WEFT_E_NOT_FOUND)
        status = wefti_prefix(WEFT_E_CORRUPT, "a file of the index is missing");
    if (status < 0) return status;
    const wefti_safetensors_entry *entry =
        wefti_safetensors_find(set->files[index].tensors, pair->tensor);
    if (!entry && wefti_tensor_may_be_tied(pair->tensor)) return WEFT_OK;
    WEFT_REQUIRE(entry, WEFT_E_CORRUPT, "%s/%s has no tensor \"%.200s\", where the index places it",
                 dir, pair->file, pair->tensor);
    set->entries[set->count++] = *entry;
    return WEFT_OK;
}

static weft_status open_index(wefti_tensor_set *set, const char *dir, const char *path) {
    char *text = NULL;
    int64_t bytes = 0, count = 0;
    WEFT_TRY(wefti_tensor_set_check_link(path));
    WEFT_TRY(wefti_sealed_read(path, WEFTI_SAFETENSORS_HEADER_BYTES, NULL, &text, &bytes));
    wefti_tensor_index *pairs = NULL;
    weft_status status = wefti_tensor_index_parse(text, bytes, &pairs, &count);
    wefti_free(text);
    if (status < 0) return wefti_prefix(status, "%s", path);
    set->entries = wefti_calloc((size_t)count, sizeof *set->entries);
    if (!set->entries)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count && status >= 0; i++) status = add_indexed(set, dir, &pairs[i]);
    wefti_free(pairs);
    return status;
}

/* The parameters of the sliced step of which `dir` is one rank's folder. */
static weft_status open_slices(wefti_tensor_set *set, const char *dir) {
    WEFT_TRY(wefti_checkpoint_open_quick(dir, &set->step));
    (void)wefti_checkpoint_doubt(set->step); /* readers of a set compare no checksums */
    const int64_t count = wefti_checkpoint_count(set->step);
    WEFT_NEW_ARRAY(set->entries, wefti_safetensors_entry, count + 1);
    for (int64_t i = 0; i < count; i++) { /* ordered by role, then name */
        const wefti_checkpoint_entry *e = wefti_checkpoint_at(set->step, i);
        if (e->role != WEFTI_CHECKPOINT_MODEL) continue;
        set->entries[set->count++] =
            (wefti_safetensors_entry){.name = e->name,
                                      .dtype = wefti_safetensors_dtype_name(e->desc.dtype),
                                      .desc = e->desc,
                                      .reader = e->reader,
                                      .at = e->at,
                                      .bytes = e->bytes};
    }
    return WEFT_OK;
}

/* Whether `dir` is a folder of slices. */
static weft_status holds_slices(const char *dir, bool *out) {
    wefti_step_files files = {0};
    char *path = NULL;
    bool there = false;
    *out = false;
    WEFT_TRY(join(dir, "manifest.json", &path));
    weft_status status = wefti_look_for(path, &there);
    wefti_free(path);
    if (!there) return status;
    status = wefti_step_files_manifest(&files, dir);
    *out = status >= 0 && files.manifest->sliced.ranks > 0;
    wefti_step_files_close(&files);
    return status;
}

/* Whether the names of a directory are those of slices for other programs. */
static weft_status holds_shards(const char *dir, bool *out) {
    char **names = NULL;
    int64_t count = 0;
    *out = false;
    WEFT_TRY(wefti_dir_list(dir, &names, &count));
    for (int64_t i = 0; i < count; i++)
        *out = *out || !strncmp(names[i], "rank_", 5) || strstr(names[i], "-rank-") ||
               !strncmp(names[i], "shard-", 6);
    wefti_free(names);
    return WEFT_OK;
}

/* `model.fp16.safetensors`, `model.safetensors.index.fp16.json`: a variant of the model. */
static bool is_variant(const char *name) {
    static const char begin[] = "model.", end[] = ".safetensors",
                      index[] = "model.safetensors.index.";
    const size_t length = strlen(name), tail = sizeof end - 1;
    if (!strncmp(name, index, sizeof index - 1)) return strcmp(name + sizeof index - 1, "json");
    return !strncmp(name, begin, sizeof begin - 1) && length > sizeof begin - 1 + tail &&
           !strcmp(name + length - tail, end);
}

weft_status wefti_check_formats(const char *dir, char *const *names, int64_t count) {
    static const struct {
        const char *end, *advice;
    } others[] = {
        {".ckpt", "mindspore.ckpt_to_safetensors converts files of MindSpore"},
        {".distcp", "torch writes safetensors with HuggingFaceStorageWriter"},
        {".bin",
         "write the model anew with transformers: python3 -c 'import sys; from transformers "
         "import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1], "
         "dtype=\"auto\").save_pretrained(sys.argv[2])' OLD NEW"},
        {".pt",
         "write its tensors anew: python3 -c 'import sys, torch; from safetensors.torch import "
         "save_file; save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])' OLD.pt "
         "model.safetensors"},
        {".pth",
         "write its tensors anew: python3 -c 'import sys, torch; from safetensors.torch import "
         "save_file; save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])' OLD.pth "
         "model.safetensors"},
        {".h5", "transformers reads it with from_tf=True; save_pretrained writes safetensors"},
        {".msgpack", "transformers reads it with from_flax=True; save_pretrained writes "
                     "safetensors"},
        {".gguf", "transformers reads it with gguf_file=NAME; save_pretrained writes safetensors"},
    };
    for (int64_t i = 0; i < count; i++) {
        const char *end = strrchr(names[i], '.');
        WEFT_REQUIRE(strcmp(names[i], "adapter_model.safetensors") != 0, WEFT_E_NO_IMPL,
                     "%s has an adapter only, %s, without the model: merge both with "
                     "`weft checkpoint merge-adapter`, or train it further as model.lora.from",
                     dir, names[i]);
        WEFT_REQUIRE(!is_variant(names[i]), WEFT_E_NO_IMPL,
                     "%s has a variant of the model only, %s: to use it, rename %s", dir, names[i],
                     strstr(names[i], ".index.") ? "it to model.safetensors.index.json"
                                                 : "it to model.safetensors");
        WEFT_REQUIRE(!strstr(names[i], ".bin.index."), WEFT_E_NO_IMPL,
                     "%s has only the list of the weights, %s, not their files: download them, as "
                     "safetensors if there are any",
                     dir, names[i]);
        for (size_t k = 0; end && k < sizeof others / sizeof *others; k++)
            WEFT_REQUIRE(strcmp(end, others[k].end) != 0, WEFT_E_NO_IMPL,
                         "%s has no .safetensors file, and weft does not read %s; %s", dir,
                         names[i], others[k].advice);
    }
    return WEFT_OK;
}

static weft_status check_dir(const char *dir) {
    char **names = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_dir_list(dir, &names, &count));
    weft_status status = wefti_check_formats(dir, names, count);
    wefti_free(names);
    return status;
}

static weft_status fail_empty(const char *dir) {
    bool shards = false;
    if (wefti_is_dir(dir)) {
        WEFT_TRY(holds_shards(dir, &shards));
        const weft_status status = check_dir(dir);
        if (status == WEFT_E_NO_IMPL) return wefti_prefix(WEFT_E_NOT_FOUND, "no weights");
        WEFT_TRY(status);
    }
    WEFT_FAIL(WEFT_E_NOT_FOUND,
              "%s has neither model.safetensors nor model.safetensors.index.json%s", dir,
              shards
                  ? ": it holds slices; `weft checkpoint reshard` makes a whole checkpoint of them"
                  : "");
}

static weft_status open_dir(wefti_tensor_set *set, const char *dir) {
    bool slices = false;
    char *path = NULL;
    WEFT_TRY(join(dir, "model.safetensors", &path));
    weft_status status = open_single(set, path, "model.safetensors");
    wefti_free(path);
    if (status != WEFT_E_NOT_FOUND) return status;
    WEFT_TRY(join(dir, "model.safetensors.index.json", &path));
    status = open_index(set, dir, path);
    wefti_free(path);
    if (status != WEFT_E_NOT_FOUND) return status;
    WEFT_TRY(holds_slices(dir, &slices));
    if (slices) return open_slices(set, dir);
    return fail_empty(dir);
}

weft_status wefti_tensor_set_open(const char *path, wefti_tensor_set **out) {
    wefti_tensor_set *set;
    WEFT_NEW(set, wefti_tensor_set);
    weft_status status;
    if (wefti_safetensors_is_name(path)) {
        const char *slash = strrchr(path, '/');
        status = open_single(set, path, slash ? slash + 1 : path);
    } else {
        status = open_dir(set, path);
    }
    if (status < 0) {
        wefti_tensor_set_close(set);
        return status;
    }
    *out = set;
    return WEFT_OK;
}
