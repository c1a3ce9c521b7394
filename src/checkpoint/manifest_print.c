/* Prints the manifest. See manifest.h. */
#include <stdio.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/json/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"
#include "weft/version.h"

const char *wefti_checkpoint_role_text(wefti_checkpoint_role role) {
    return role == WEFTI_CHECKPOINT_MODEL ? "model" : "optimizer";
}

void wefti_manifest_tail(const char *body, int64_t bytes, char out[WEFTI_MANIFEST_TAIL_BYTES + 1]) {
    (void)snprintf(out, WEFTI_MANIFEST_TAIL_BYTES + 1, ",\n \"checksum\": \"crc32c:%08x\"\n}\n",
                   wefti_crc32c(0, body, (size_t)bytes));
}

uint64_t wefti_manifest_fingerprint(const wefti_manifest_tensor *tensors, int64_t count) {
    uint64_t sum = 0; /* a sum, so that order does not matter */
    for (int64_t i = 0; i < count; i++) {
        if (tensors[i].role != WEFTI_CHECKPOINT_MODEL) continue;
        uint64_t hash = wefti_stream_of(tensors[i].name);
        for (int d = 0; d < tensors[i].desc.rank; d++)
            hash = (hash ^ (uint64_t)tensors[i].desc.shape[d]) * 0x9e3779b97f4a7c15u + 1;
        sum += hash;
    }
    return sum;
}

uint64_t wefti_manifest_digest(const wefti_manifest_tensor *tensors, int64_t count) {
    uint64_t sum = 0; /* a sum, so that order does not matter */
    for (int64_t i = 0; i < count; i++) {
        const wefti_manifest_tensor *t = &tensors[i];
        uint64_t hash = wefti_digest_text(1, t->name);
        hash = wefti_digest_text(hash, wefti_checkpoint_role_text(t->role));
        hash = wefti_digest_text(hash, wefti_safetensors_dtype_name(t->desc.dtype));
        for (int d = 0; d < t->desc.rank; d++)
            hash = wefti_digest_number(hash, (uint64_t)t->desc.shape[d]);
        sum += wefti_digest_number(hash, t->crc32c);
    }
    return sum;
}

static void add_pairs(wefti_text *t, const char *key, const wefti_checkpoint_pairs *pairs) {
    wefti_text_add(t, ",\n \"%s\": {", key);
    for (int64_t i = 0; i < pairs->count; i++) {
        wefti_text_add(t, i ? ", " : "");
        wefti_json_quote(t, pairs->items[i].key);
        wefti_text_add(t, ": ");
        wefti_json_quote(t, pairs->items[i].value);
    }
    wefti_text_add(t, "}");
}

/* null: the loss is not finite. */
static void add_losses(wefti_text *t, const wefti_checkpoint_loss *losses, int64_t count) {
    wefti_text_add(t, ",\n \"losses\": [");
    for (int64_t i = 0; i < count; i++) {
        wefti_text_add(t, "%s[%lld, ", i ? ", " : "", (long long)losses[i].step);
        wefti_json_real(t, losses[i].loss);
        wefti_text_add(t, "]");
    }
    wefti_text_add(t, "]");
}

static void add_meta(wefti_text *t, const wefti_checkpoint_meta *meta, int version,
                     uint64_t fingerprint, uint64_t digest) {
    wefti_text_add(t, "{\n \"format\": \"weft-checkpoint\",\n \"format_version\": %d", version);
    wefti_text_add(t, ",\n \"weft_version\": \"%s\"", WEFT_VERSION);
    wefti_text_add(t, ",\n \"fingerprint\": \"0x%016llx\"", (unsigned long long)fingerprint);
    wefti_text_add(t, ",\n \"digest\": \"0x%016llx\"", (unsigned long long)digest);
    wefti_text_add(t, ",\n \"step\": %lld", (long long)meta->step);
    wefti_text_add(t, ",\n \"data_position\": %lld", (long long)meta->data_position);
    wefti_text_add(t, ",\n \"seed\": \"0x%016llx\"", (unsigned long long)meta->seed);
    wefti_text_add(t, ",\n \"optimizer\": ");
    wefti_json_quote(t, meta->optimizer ? meta->optimizer : "");
    add_pairs(t, "settings", &meta->settings);
    add_pairs(t, "random", &meta->random);
    add_pairs(t, "compute", &meta->compute);
    add_pairs(t, "notes", &meta->notes);
    add_losses(t, meta->losses, meta->loss_count);
}

static void add_file(wefti_text *t, const wefti_manifest_file *file) {
    wefti_text_add(t, "{\"name\": ");
    wefti_json_quote(t, file->name);
    wefti_text_add(t, ", \"bytes\": %lld, \"checked_bytes\": %lld, \"crc32c\": \"%08x\"}",
                   (long long)file->bytes, (long long)file->checked_bytes, file->crc32c);
}

static void add_sizes(wefti_text *t, const char *key, const int64_t *sizes, int count) {
    wefti_text_add(t, ", \"%s\": [", key);
    for (int d = 0; d < count; d++) wefti_text_add(t, d ? ", %lld" : "%lld", (long long)sizes[d]);
    wefti_text_add(t, "]");
}

static void add_tensor(wefti_text *t, const wefti_manifest_tensor *tensor) {
    wefti_text_add(t, "{\"name\": ");
    wefti_json_quote(t, tensor->name);
    wefti_text_add(t, ", \"role\": \"%s\"", wefti_checkpoint_role_text(tensor->role));
    if (tensor->file >= 0) wefti_text_add(t, ", \"file\": %lld", (long long)tensor->file);
    wefti_text_add(t, ", \"dtype\": \"%s\"", wefti_safetensors_dtype_name(tensor->desc.dtype));
    add_sizes(t, "shape", tensor->desc.shape, tensor->desc.rank);
    wefti_text_add(t, ", \"layout\": ");
    wefti_json_quote(t, tensor->layout);
    wefti_text_add(t, ", \"crc32c\": \"%08x\"}", tensor->crc32c);
}

static void add_slice(wefti_text *t, const wefti_manifest *m, const wefti_manifest_slice *s) {
    const int rank = m->tensors[s->tensor].desc.rank;
    wefti_text_add(t, "{\"tensor\": %lld", (long long)s->tensor);
    add_sizes(t, "begin", s->region.begin, rank);
    add_sizes(t, "size", s->region.size, rank);
    wefti_text_add(t, ", \"ranks\": [");
    for (int32_t i = 0; i < s->rank_count; i++)
        wefti_text_add(t, i ? ", %d" : "%d", (int)s->ranks[i]);
    wefti_text_add(t, "]");
    if (s->file >= 0) {
        wefti_text_add(t, ", \"file\": %lld, \"name\": ", (long long)s->file);
        wefti_json_quote(t, s->stored);
        wefti_text_add(t, ", \"crc32c\": \"%08x\"", s->crc32c);
    }
    wefti_text_add(t, "}");
}

static void add_sliced(wefti_text *t, const wefti_manifest *m) {
    wefti_text_add(t, ",\n \"rank\": %d,\n \"ranks\": %d,\n \"slices\": [", (int)m->sliced.rank,
                   (int)m->sliced.ranks);
    for (int64_t i = 0; i < m->sliced.count; i++) {
        wefti_text_add(t, i ? ",\n  " : "\n  ");
        add_slice(t, m, &m->sliced.slices[i]);
    }
    wefti_text_add(t, "]");
}

weft_status wefti_manifest_print(const wefti_manifest *manifest, char **out, int64_t *out_bytes) {
    wefti_text t = {0};
    add_meta(&t, &manifest->meta, manifest->sliced.ranks ? 3 : 2,
             wefti_manifest_fingerprint(manifest->tensors, manifest->tensor_count),
             wefti_manifest_digest(manifest->tensors, manifest->tensor_count));
    wefti_text_add(&t, ",\n \"files\": [");
    for (int64_t i = 0; i < manifest->file_count; i++) {
        wefti_text_add(&t, i ? ",\n  " : "\n  ");
        add_file(&t, &manifest->files[i]);
    }
    wefti_text_add(&t, "],\n \"tensors\": [");
    for (int64_t i = 0; i < manifest->tensor_count; i++) {
        wefti_text_add(&t, i ? ",\n  " : "\n  ");
        add_tensor(&t, &manifest->tensors[i]);
    }
    wefti_text_add(&t, "]");
    if (manifest->sliced.ranks) add_sliced(&t, manifest);
    char tail[WEFTI_MANIFEST_TAIL_BYTES + 1];
    if (!t.failed) wefti_manifest_tail(t.data, t.used, tail);
    if (!t.failed) wefti_text_add_bytes(&t, tail, WEFTI_MANIFEST_TAIL_BYTES);
    int64_t bytes = t.used;
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for a manifest of %lld tensors",
                 (long long)manifest->tensor_count);
    *out = text;
    *out_bytes = bytes;
    return WEFT_OK;
}

/* ---- copies ---- */

static weft_status copy_text(wefti_arena *arena, const char *text, const char *what,
                             const char **out) {
    WEFT_REQUIRE(text && wefti_utf8_valid(text), WEFT_E_ARG, "%s is %s", what,
                 text ? "not UTF-8" : "missing");
    *out = wefti_arena_strdup(arena, text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a checkpoint's description");
    return WEFT_OK;
}

static weft_status copy_pairs(wefti_arena *arena, const wefti_checkpoint_pairs *from,
                              wefti_checkpoint_pairs *out) {
    wefti_checkpoint_pair *items = wefti_arena_alloc(arena, (size_t)from->count * sizeof *items);
    WEFT_REQUIRE(items, WEFT_E_NOMEM, "no memory for a checkpoint's description");
    for (int64_t i = 0; i < from->count; i++) {
        WEFT_TRY(copy_text(arena, from->items[i].key, "a key", &items[i].key));
        WEFT_TRY(copy_text(arena, from->items[i].value, items[i].key, &items[i].value));
        for (int64_t j = 0; j < i; j++)
            WEFT_REQUIRE(strcmp(items[j].key, items[i].key), WEFT_E_ARG,
                         "the key \"%.100s\" is given twice", items[i].key);
    }
    *out = (wefti_checkpoint_pairs){.items = items, .count = from->count};
    return WEFT_OK;
}

weft_status wefti_manifest_copy_meta(wefti_arena *arena, const wefti_checkpoint_meta *meta,
                                     wefti_checkpoint_meta *out) {
    *out = *meta;
    WEFT_REQUIRE(meta->step >= 0 && meta->data_position >= 0, WEFT_E_ARG,
                 "step %lld at sample %lld: both must be >= 0", (long long)meta->step,
                 (long long)meta->data_position);
    WEFT_TRY(copy_text(arena, meta->optimizer ? meta->optimizer : "", "the optimizer's name",
                       &out->optimizer));
    WEFT_TRY(copy_pairs(arena, &meta->settings, &out->settings));
    WEFT_TRY(copy_pairs(arena, &meta->random, &out->random));
    WEFT_TRY(copy_pairs(arena, &meta->compute, &out->compute));
    WEFT_TRY(copy_pairs(arena, &meta->notes, &out->notes));
    wefti_checkpoint_loss *losses =
        wefti_arena_alloc(arena, (size_t)meta->loss_count * sizeof *losses);
    WEFT_REQUIRE(losses, WEFT_E_NOMEM, "no memory for a checkpoint's description");
    if (meta->loss_count) memcpy(losses, meta->losses, (size_t)meta->loss_count * sizeof *losses);
    out->losses = losses;
    return WEFT_OK;
}
