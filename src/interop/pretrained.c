/* Loads weights from a Hugging Face directory (config.json, safetensors), or from a step or a run
 * of weft. A step is such a directory; a run holds steps.
 *
 * Finds and checks everything before it writes the first weight. Files hold f32, bf16, f16 or f64.
 * Values are converted while they are written into the session's tensors. */
#include "interop/pretrained.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/io.h"
#include "base/map/map.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_set.h"
#include "models/family.h"
#include "models/models.h"
#include "session/session.h"
#include "tensor/tensor.h"
#include "tokenizer/tokenizer.h"

enum { NAMES = 5, NAME_BYTES = 512 }; /* how many tensors a message names */

static weft_status has_file(const char *directory, const char *name, bool *out) {
    char *path = wefti_format("%s/%s", directory, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_look_for(path, out);
    wefti_free(path);
    return status;
}

/* A step of weft_session_save has the tensors of a program's own graph, and no config.json. Closes
 * the checkpoint if it fails. */
static weft_status check_described(wefti_checkpoint **c) {
    bool described = false;
    const char *path = wefti_checkpoint_path(*c);
    weft_status status = has_file(path, "config.json", &described);
    if (status >= 0 && !described)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s has no config.json, so it does not say which model it holds: a "
                            "program wrote it, not `weft train`",
                            path);
    if (status >= 0) return status;
    wefti_checkpoint_close(*c);
    *c = NULL;
    return status;
}

/* A directory with a config.json is used as it is; of a run's directory, the newest good step.
 * verify: check all checksums of a step. out_note (may be NULL): which steps were passed over and
 * why, NULL for none; wefti_free it. */
static weft_status resolve(const char *directory, bool verify, char **out, char **out_note) {
    bool described = false, step = false, adapters = false;
    if (out_note) *out_note = NULL;
    WEFT_REQUIRE(strlen(directory) < PATH_MAX, WEFT_E_ARG,
                 "the path of the model has %zu bytes; the system opens paths of less than %d",
                 strlen(directory), PATH_MAX);
    WEFT_REQUIRE(!wefti_is_missing(directory), WEFT_E_NOT_FOUND, "directory %s does not exist%s",
                 directory, wefti_hub_hint(directory));
    WEFT_REQUIRE(wefti_is_dir(directory), WEFT_E_NOT_FOUND,
                 "%s is not a directory: give the one that holds config.json", directory);
    WEFT_TRY(has_file(directory, "config.json", &described));
    WEFT_TRY(has_file(directory, "manifest.json", &step));
    if (!described) WEFT_TRY(has_file(directory, "adapter_config.json", &adapters));
    WEFT_REQUIRE(!adapters, WEFT_E_NOT_FOUND,
                 "%s holds adapters without their model: merge both with `weft checkpoint "
                 "merge-adapter`, or train them further as model.lora.from",
                 directory);
    const char *path = directory;
    wefti_checkpoint *c = NULL;
    if (!described || (step && verify)) {
        char *note = NULL;
        weft_status status = wefti_checkpoint_open(directory, WEFTI_CHECKPOINT_LATEST, &c, &note);
        if (status == WEFT_E_NOT_FOUND)
            status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                                "%s holds neither config.json nor a checkpoint of a run%s%.1500s",
                                directory, note ? ": " : "", note ? note : "");
        if (status >= 0 && out_note)
            *out_note = note;
        else
            wefti_free(note);
        WEFT_TRY(status);
        path = wefti_checkpoint_path(c);
        if (!described) WEFT_TRY(check_described(&c));
    }
    char *copy = wefti_strdup(path);
    wefti_checkpoint_close(c);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a path");
    *out = copy;
    return WEFT_OK;
}

weft_status wefti_pretrained_path(const char *directory, char **out, char **out_note) {
    return resolve(directory, true, out, out_note);
}

typedef weft_status (*config_reader)(const char *json, weft_model_config *c);

static weft_status read_json(const char *path, config_reader read, weft_model_config *c) {
    enum { LIMIT = 16 << 20 };
    char *text = NULL;
    int64_t bytes;
    weft_status status = wefti_sealed_read(path, LIMIT, NULL, &text, &bytes);
    if (status == WEFT_OK && strlen(text) != (size_t)bytes)
        status = WEFT_RAISE(WEFT_E_CORRUPT, "%s holds a NUL byte", path);
    if (status == WEFT_OK) status = read(text, c);
    wefti_free(text);
    return status;
}

static weft_status read_file(const char *directory, const char *name, config_reader read,
                             weft_model_config *c) {
    char *path = wefti_format("%s/%s", directory, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = read_json(path, read, c);
    wefti_free(path);
    return status < 0 ? wefti_prefix(status, "%s", directory) : WEFT_OK;
}

weft_status wefti_pretrained_side_files(const char *directory, unsigned uses,
                                        wefti_side_files *out) {
    char *path;
    WEFT_TRY(resolve(directory, false, &path, NULL));
    weft_status status = wefti_side_files_add(out, path, uses);
    wefti_free(path);
    return status;
}

/* A tensor of the session, or a part of one, and the file entry that holds its values. */
typedef struct match {
    int tensor;    /* number in program 0 */
    int64_t first; /* element of it */
    int64_t elems;
    weft_dtype dtype;
    const wefti_safetensors_entry *entry; /* of a follower that sees no files: void */
    int64_t next;                         /* of the same tensor, set by `start`; -1: none */
} match;

/* A tensor of the files under its plain name (wefti_plain_name). */
typedef struct file_tensor {
    const char *name;
    const wefti_safetensors_entry *entry;
} file_tensor;

typedef struct loading {
    const weft_model_config *config;
    const char *directory;
    const wefti_party *party; /* rank 0 reads */
    bool adapters;            /* load these alone */
    bool lends;               /* nothing changes the values: files may lend them to a disk's tier */
    wefti_tensor_set *set;
    file_tensor *tensors; /* of the set, ordered by name; one block with the names */
    match *matches;
    int64_t count, room;
    wefti_map first; /* of a tensor's name: the number of its first match; made by `start` */
    wefti_text list; /* of the problem */
    int64_t wrong;
} loading;

static void name_one(loading *l, const char *text) {
    if (l->wrong < NAMES) wefti_text_add(&l->list, "%s%s", l->wrong ? ", " : "", text);
    l->wrong++;
}

/* Fails if the list has entries: `what` followed by the list. */
static weft_status report(loading *l, weft_status status, const char *what) {
    if (!l->wrong) return WEFT_OK;
    if (l->wrong > NAMES) wefti_text_add(&l->list, " and %lld more", (long long)(l->wrong - NAMES));
    char *list = wefti_text_take(&l->list);
    status = WEFT_RAISE(status, "%s: %s %s", l->directory, what, list ? list : "(no memory)");
    wefti_free(list);
    return status;
}

static int by_plain_name(const void *a, const void *b) {
    return strcmp(((const file_tensor *)a)->name, ((const file_tensor *)b)->name);
}

static weft_status name_tensors(loading *l) {
    const int64_t count = wefti_tensor_set_count(l->set);
    size_t bytes = (size_t)(count + 1) * sizeof *l->tensors;
    for (int64_t i = 0; i < count; i++) bytes += strlen(wefti_tensor_set_at(l->set, i)->name) + 1;
    l->tensors = wefti_alloc(bytes);
    WEFT_REQUIRE(l->tensors, WEFT_E_NOMEM, "no memory for the names of %lld tensors",
                 (long long)count);
    char *at = (char *)(l->tensors + count + 1);
    for (int64_t i = 0; i < count; i++) {
        const wefti_safetensors_entry *e = wefti_tensor_set_at(l->set, i);
        wefti_plain_name(e->name, at);
        l->tensors[i] = (file_tensor){at, e};
        at += strlen(at) + 1;
    }
    if (count) qsort(l->tensors, (size_t)count, sizeof *l->tensors, by_plain_name);
    for (int64_t i = 1; i < count; i++)
        WEFT_REQUIRE(by_plain_name(&l->tensors[i - 1], &l->tensors[i]), WEFT_E_CORRUPT,
                     "%s: %s and %s are one tensor, %s, without what wrappers of torch add to "
                     "names: remove one of them",
                     l->directory, l->tensors[i - 1].entry->name, l->tensors[i].entry->name,
                     l->tensors[i].name);
    return WEFT_OK;
}

static weft_status open_files(loading *l) {
    WEFT_TRY(l->adapters ? wefti_adapter_open(l->directory, &l->set)
                         : wefti_tensor_set_open(l->directory, &l->set));
    return name_tensors(l);
}

static const wefti_safetensors_entry *find_exact(const loading *l, const char *name) {
    const file_tensor key = {.name = name};
    const int64_t count = wefti_tensor_set_count(l->set);
    const file_tensor *found =
        count ? bsearch(&key, l->tensors, (size_t)count, sizeof key, by_plain_name) : NULL;
    return found ? found->entry : NULL;
}

static void close_files(loading *l) {
    wefti_free(l->tensors);
    wefti_tensor_set_close(l->set);
    l->tensors = NULL;
    l->set = NULL;
}

/* Finds a tensor under its usual name or under an alias. */
static weft_status find(const loading *l, const char *name, const wefti_safetensors_entry **out) {
    char other[NAME_BYTES];
    *out = find_exact(l, name);
    for (int i = 0; !*out; i++) {
        weft_status status = weft_model_file_alias(l->config, name, i, other, sizeof other);
        if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
        WEFT_TRY(status);
        *out = find_exact(l, other);
    }
    return WEFT_OK;
}

/* Elements [first, first + count) of a tensor of a file. */
static weft_status convert(weft_dtype to, void *dst, const wefti_safetensors_entry *e,
                           int64_t first, int64_t count) {
    enum { PIECE = 4096 };
    double piece[PIECE]; /* aligned for all */
    weft_dtype from = e->desc.dtype;
    int64_t bytes = (int64_t)weft_dtype_bytes(from), at = e->at + first * bytes;
    if (to == from) return wefti_reader_at(e->reader, at, count * bytes, dst);
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t n = count - i < PIECE ? count - i : PIECE;
        WEFT_TRY(wefti_reader_at(e->reader, at + i * bytes, n * bytes, piece));
        wefti_convert(to, (char *)dst + (size_t)i * weft_dtype_bytes(to), from, piece, n);
    }
    return WEFT_OK;
}

/* Whether two tensors of files have equal values; the dtypes may differ. */
static weft_status same_values(const wefti_safetensors_entry *a, const wefti_safetensors_entry *b,
                               bool *out) {
    enum { PIECE = 1024 };
    double x[PIECE], y[PIECE];
    weft_desc there = b->desc;
    there.dtype = a->desc.dtype;
    *out = a->desc.rank >= 0 && wefti_desc_equal(&a->desc, &there) &&
           wefti_dtype_is_float(a->desc.dtype) && wefti_dtype_is_float(b->desc.dtype);
    for (int64_t i = 0, all = *out ? weft_desc_elems(&a->desc) : 0; i < all && *out; i += PIECE) {
        int64_t n = all - i < PIECE ? all - i : PIECE;
        WEFT_TRY(convert(WEFT_F64, x, a, i, n));
        WEFT_TRY(convert(WEFT_F64, y, b, i, n));
        for (int64_t k = 0; k < n && *out; k++) *out = x[k] == y[k];
    }
    return WEFT_OK;
}

/* Whether the files hold an output matrix with other values than the embedding. */
static weft_status find_own_head(const loading *l, bool *out) {
    const char *table, *head;
    const wefti_safetensors_entry *of_table = NULL, *of_head = NULL;
    *out = false;
    if (!wefti_model_tie(l->config, &table, &head)) return WEFT_OK;
    WEFT_TRY(find(l, table, &of_table));
    WEFT_TRY(find(l, head, &of_head));
    if (!of_table || !of_head) return WEFT_OK;
    WEFT_TRY(same_values(of_table, of_head, out));
    *out = !*out;
    return WEFT_OK;
}

/* ---- the configuration ---- */

/* If the configuration says that the output uses the embedding, but the files hold another matrix
 * for the output, the files count, as in transformers. Without weights there is nothing to
 * compare. */
static weft_status untie(const char *directory, weft_model_config *c) {
    loading l = {.config = c, .directory = directory};
    bool own = false;
    if (!c->tied) return WEFT_OK;
    weft_status status = open_files(&l);
    if (status >= 0) status = find_own_head(&l, &own);
    close_files(&l);
    if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
    WEFT_TRY(status);
    if (!own) return WEFT_OK;
    c->tied = false;
    c->untied = wefti_family_has(c->family, WEFTI_TIED);
    return WEFT_OK;
}

static weft_status read_config(const char *directory, weft_model_config *out) {
    bool more;
    WEFT_TRY(read_file(directory, "config.json", weft_model_config_read, out));
    WEFT_TRY(untie(directory, out));
    WEFT_TRY(has_file(directory, "generation_config.json", &more));
    if (!more || !weft_family_is_language(out->family)) return WEFT_OK;
    return read_file(directory, "generation_config.json", weft_model_config_read_generation, out);
}

weft_status wefti_pretrained_config(const char *directory, weft_model_config *out) {
    char *path;
    WEFT_TRY(resolve(directory, false, &path, NULL));
    weft_status status = read_config(path, out);
    wefti_free(path);
    return status;
}

weft_status wefti_adapter_read(const char *directory, weft_lora *out) {
    weft_model_config config = {0};
    WEFT_REQUIRE(!wefti_is_missing(directory), WEFT_E_NOT_FOUND, "directory %s does not exist",
                 directory);
    WEFT_TRY(read_file(directory, "adapter_config.json", wefti_adapter_config_read, &config));
    *out = config.lora;
    return WEFT_OK;
}

weft_status wefti_pretrained_config_file(const char *path, weft_model_config *out) {
    WEFT_REQUIRE(!wefti_is_missing(path), WEFT_E_NOT_FOUND, "%s does not exist%s", path,
                 wefti_hub_hint(path));
    if (wefti_is_dir(path)) return read_file(path, "config.json", weft_model_config_read, out);
    weft_status status = read_json(path, weft_model_config_read, out);
    return status < 0 ? wefti_prefix(status, "%s", path) : WEFT_OK;
}

/* ---- finding each tensor ---- */

/* The bias of bert's output has two names in files. If both are there, transformers computes with
 * the decoder's. */
static weft_status find_bias(const loading *l, const char *name,
                             const wefti_safetensors_entry **out) {
    const bool bias =
        l->config->family == WEFT_FAMILY_BERT && !strcmp(name, "cls.predictions.bias");
    *out = bias ? find_exact(l, "cls.predictions.decoder.bias") : NULL;
    return *out ? WEFT_OK : find(l, name, out);
}

/* `desc` is the expected shape of `name` in the file. */
static weft_status match_part(loading *l, int tensor, int64_t part, const char *name,
                              weft_desc desc) {
    char text[NAME_BYTES + 500];
    const wefti_safetensors_entry *e;
    WEFT_TRY(find_bias(l, name, &e));
    if (!e) {
        name_one(l, name);
        return WEFT_OK;
    }
    weft_desc there = e->desc;
    there.dtype = desc.dtype;
    if (e->desc.rank < 0 || !wefti_dtype_is_float(e->desc.dtype))
        WEFT_FAIL(WEFT_E_NO_IMPL, "%s: %s is %s: weft reads F32, BF16, F16 and F64", l->directory,
                  e->name, e->dtype);
    if (!wefti_desc_equal(&there, &desc)) {
        (void)snprintf(text, sizeof text, "%s is %s, not %s", e->name,
                       wefti_desc_text(&e->desc).text, wefti_desc_text(&desc).text);
        WEFT_FAIL(WEFT_E_SHAPE, "%s: the model does not fit: %s", l->directory, text);
    }
    WEFT_TRY(WEFT_GROW(l->matches, l->count, l->room));
    l->matches[l->count++] = (match){.tensor = tensor,
                                     .first = part * weft_desc_elems(&desc),
                                     .elems = weft_desc_elems(&desc),
                                     .dtype = desc.dtype,
                                     .entry = e};
    return WEFT_OK;
}

static weft_status match_one(loading *l, int tensor, const weft_tensor_info *t) {
    char name[NAME_BYTES];
    for (int64_t part = 0;; part++) {
        weft_desc desc;
        weft_status status =
            weft_model_file_name(l->config, t->name, &t->desc, part, name, sizeof name, &desc);
        if (status == WEFT_E_NOT_FOUND) return WEFT_OK; /* a cache, or the end */
        WEFT_TRY(status);
        WEFT_TRY(match_part(l, tensor, part, name, desc));
    }
}

static int by_entry(const void *a, const void *b) {
    const wefti_safetensors_entry *x = ((const match *)a)->entry, *y = ((const match *)b)->entry;
    return (x > y) - (x < y);
}

/* Refuses tensors of the file that the model does not use, since their values would be lost without
 * notice. `l->matches` is ordered by entry. */
static weft_status check_rest(loading *l) {
    for (int64_t i = 0; i < wefti_tensor_set_count(l->set); i++) {
        match key = {.entry = l->tensors[i].entry};
        if (l->count && bsearch(&key, l->matches, (size_t)l->count, sizeof *l->matches, by_entry))
            continue;
        if (!weft_model_file_extra(l->config, l->tensors[i].name)) name_one(l, key.entry->name);
    }
    char what[80];
    (void)snprintf(what, sizeof what, "a %s has no tensors", weft_family_text(l->config->family));
    return report(l, WEFT_E_NO_IMPL, what);
}

/* A tied model would lose an output matrix of its own without notice. */
static weft_status check_tied(const loading *l) {
    bool own = false;
    if (l->config->tied) WEFT_TRY(find_own_head(l, &own));
    WEFT_REQUIRE(!own, WEFT_E_NO_IMPL,
                 "%s: the output has a matrix of its own, but the model uses its embedding there: "
                 "build the model without tied parameters",
                 l->directory);
    return WEFT_OK;
}

/* Whether the files hold one adapter at least. Without, a session's adapters keep their start. */
static bool holds_adapters(const loading *l) {
    bool any = false;
    for (int64_t i = 0; i < wefti_tensor_set_count(l->set) && !any; i++)
        any = wefti_lora_is_adapter(l->tensors[i].name);
    return any;
}

static weft_status match_all(loading *l, const weft_session *session) {
    const bool adapters = holds_adapters(l);
    WEFT_REQUIRE(adapters || !l->adapters, WEFT_E_NOT_FOUND, "%s holds no adapters", l->directory);
    if (!l->adapters) WEFT_TRY(check_tied(l));
    for (int i = 0; i < weft_session_tensors(session, 0); i++) {
        weft_tensor_info t;
        WEFT_TRY(weft_session_tensor(session, 0, i, &t));
        if (wefti_lora_is_adapter(t.name) ? !adapters : l->adapters) continue;
        if (t.role == WEFT_ROLE_PARAM || t.role == WEFT_ROLE_STATE) WEFT_TRY(match_one(l, i, &t));
    }
    WEFT_TRY(report(l, WEFT_E_NOT_FOUND, "these tensors are missing:"));
    if (l->count) qsort(l->matches, (size_t)l->count, sizeof *l->matches, by_entry);
    return check_rest(l);
}

static weft_status take(void *context, int64_t first, int64_t count, void *out) {
    const match *m = context;
    return convert(m->dtype, out, m->entry, first, count);
}

static weft_status look(loading *l, const weft_session *session) {
    WEFT_TRY(open_files(l));
    return match_all(l, session);
}

/* Rank 0 tells all ranks which tensors it will fill. */
static weft_status share(loading *l, weft_status status) {
    WEFT_TRY(wefti_party_broadcast(l->party, status, &l->count, sizeof l->count));
    if (l->party->follows) WEFT_NEW_ARRAY(l->matches, match, l->count + 1);
    return wefti_party_broadcast(l->party, WEFT_OK, l->matches,
                                 (size_t)l->count * sizeof *l->matches);
}

static weft_status end(loading *l, weft_status status) {
    wefti_text_free(&l->list);
    wefti_free(l->matches);
    wefti_map_free(&l->first);
    close_files(l);
    return status;
}

/* What ranks must have in common to read parts of the same files. */
typedef struct sight {
    uint64_t digest; /* of the places of all tensors, and of the manifest of a step */
    int64_t sees;
} sight;

static weft_status digest_of(const loading *l, uint64_t *out) {
    uint64_t digest = 11;
    bool step = false;
    for (int64_t i = 0; i < l->count; i++) {
        const match *m = &l->matches[i];
        digest = wefti_digest_number(digest, (uint64_t)m->tensor);
        digest = wefti_digest_number(digest, (uint64_t)m->first);
        digest = wefti_digest_number(digest, (uint64_t)m->elems);
        digest = wefti_digest_number(digest, (uint64_t)m->entry->desc.dtype);
        digest = wefti_digest_number(digest, (uint64_t)m->entry->at);
    }
    WEFT_TRY(has_file(l->directory, "manifest.json", &step));
    if (step) {
        wefti_checkpoint *c;
        WEFT_TRY(wefti_checkpoint_open_quick(l->directory, &c));
        digest = wefti_digest_number(digest, wefti_checkpoint_identity(c));
        wefti_checkpoint_close(c);
    }
    *out = digest;
    return WEFT_OK;
}

/* Whether all ranks see the files of rank 0. Then each rank's matches are entries of its own. */
static weft_status all_see(loading *l, const weft_session *session, bool *out) {
    loading mine = {.config = l->config, .directory = l->directory, .adapters = l->adapters};
    sight own = {0, 0}, *all;
    weft_status status = WEFT_OK;
    if (l->party->follows) status = look(&mine, session);
    if (status >= 0) status = digest_of(l->party->follows ? &mine : l, &own.digest);
    own.sees = status >= 0;
    if (status < 0) wefti_error_clear(); /* "no" is an answer */
    const int size = (int)weft_session_devices(session);
    all = wefti_calloc((size_t)size, sizeof *all);
    status = wefti_party_agree(
        l->party, all ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to read a model"));
    if (status >= 0) status = wefti_agree_records(l->party->agreement, &own, sizeof own, all);
    *out = status >= 0;
    for (int r = 0; r < size && *out; r++) *out = all[r].sees && all[r].digest == all[0].digest;
    if (*out && l->party->follows) {
        wefti_free(l->matches);
        l->matches = mine.matches;
        l->set = mine.set;
        l->tensors = mine.tensors;
        mine.matches = NULL;
        mine.tensors = NULL;
        mine.set = NULL;
    }
    wefti_free(all);
    return end(&mine, status);
}

/* wefti_values: all matches of a tensor together give it all of its values. What is contiguous both
 * in the file and on the device, of the same dtype, may stay in the file. */
static weft_status give(void *context, int32_t rank, const wefti_tensor *x, const wefti_region *box,
                        const wefti_home *home, bool *out) {
    const loading *l = context;
    const int64_t size = (int64_t)weft_dtype_bytes(x->desc.dtype);
    wefti_region whole = {{0}, {0}};
    int64_t begin, count;
    bool lent;
    (void)rank;
    for (int d = 0; d < x->whole.rank; d++) whole.size[d] = x->whole.shape[d];
    wefti_region_span(box, &whole, x->whole.rank, &begin, &count);
    const bool lends = l->lends && count == weft_desc_elems(&x->desc);
    for (int64_t i = wefti_map_find_text(&l->first, x->name); i >= 0; i = l->matches[i].next) {
        const match *m = &l->matches[i];
        *out = true;
        if (!lends || m->entry->desc.dtype != x->desc.dtype) continue;
        const int64_t first = m->first > begin ? m->first : begin;
        int64_t end = m->first + m->elems;
        if (end > begin + count) end = begin + count;
        if (first >= end) continue;
        WEFT_TRY(wefti_home_lend(home, (first - begin) * size, (end - first) * size,
                                 m->entry->reader, m->entry->at + (first - m->first) * size,
                                 &lent));
    }
    return WEFT_OK;
}

/* Starts the session without start values for what is loaded. */
static weft_status start(loading *l, weft_session *session) {
    const wefti_values values = {give, l};
    for (int64_t i = 0; i < l->count; i++) {
        match *m = &l->matches[i];
        weft_tensor_info t;
        int64_t first;
        m->next = -1;
        WEFT_TRY(weft_session_tensor(session, 0, m->tensor, &t));
        WEFT_TRY(wefti_map_add_text(&l->first, t.name, i, &first));
        if (first == i) continue;
        m->next = l->matches[first].next;
        l->matches[first].next = i;
    }
    return wefti_session_start_with(session, &values);
}

/* everywhere: if all ranks see the files, each reads its parts. */
static weft_status load(loading *l, weft_session *session, bool everywhere) {
    bool parts = everywhere;
    weft_status status = WEFT_OK;
    WEFT_TRY(share(l, l->party->follows ? WEFT_OK : look(l, session)));
    if (everywhere && l->party->agreement) WEFT_TRY(all_see(l, session, &parts));
    l->lends = parts;
    if (everywhere) WEFT_TRY(start(l, session));
    for (int64_t i = 0; i < l->count && status >= 0; i++) {
        match *m = &l->matches[i];
        status = (parts ? wefti_session_fill_own : wefti_session_fill)(session, 0, m->tensor,
                                                                       m->first, m->elems, take, m);
    }
    return parts ? wefti_party_agree(l->party, status) : status;
}

static weft_status load_path(weft_session *session, const weft_model_config *config,
                             const char *path) {
    const wefti_party alone = {.world = NULL};
    loading l = {.config = config, .directory = path, .party = &alone};
    return end(&l, load(&l, session, false));
}

weft_status wefti_pretrained_load_across(const wefti_party *party, weft_session *session,
                                         const weft_model_config *config, const char *directory,
                                         char **out_note) {
    char *path = NULL;
    *out_note = NULL;
    if (!party->follows) WEFT_TRY(resolve(directory, true, &path, out_note));
    loading l = {.config = config, .directory = path, .party = party};
    weft_status status = end(&l, load(&l, session, false));
    wefti_free(path);
    return status;
}

weft_status wefti_adapter_load_across(const wefti_party *party, weft_session *session,
                                      const weft_model_config *config, const char *directory) {
    loading l = {.config = config, .directory = directory, .party = party, .adapters = true};
    return end(&l, load(&l, session, false));
}

weft_status wefti_pretrained_path_across(const wefti_party *party, const char *directory,
                                         char **out, char **out_note) {
    weft_status status = WEFT_OK;
    if (!party->follows) status = wefti_pretrained_path(directory, out, out_note);
    int64_t bytes = *out ? (int64_t)strlen(*out) : 0;
    return wefti_party_share_text(party, status, out, &bytes);
}

weft_status wefti_pretrained_load_parts(const wefti_party *party, weft_session *session,
                                        const weft_model_config *config, const char *path) {
    loading l = {.config = config, .directory = path, .party = party};
    return end(&l, load(&l, session, true));
}

weft_status wefti_pretrained_load(weft_session *session, const weft_model_config *config,
                                  const char *directory) {
    char *path;
    WEFT_TRY(resolve(directory, true, &path, NULL));
    weft_status status = load_path(session, config, path);
    wefti_free(path);
    return status;
}

void wefti_ends_of_tokenizer(const wefti_ends *ends, weft_model_config *config) {
    if (config->end_count > 0) return;
    for (int i = 0; i < ends->count && config->end_count < WEFT_MAX_END_TOKENS; i++)
        if (ends->ids[i] < config->vocab) config->ends[config->end_count++] = ends->ids[i];
}
