/* Digests of checkpoints of every format. See weft/checkpoint.h. */
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "reshard/reshard.h"
#include "tensor/tensor.h"
#include "weft/checkpoint.h"

weft_status wefti_reshard_open(const char *path, const char *layouts, wefti_reshard_input *out) {
    *out = (wefti_reshard_input){0};
    if (layouts) WEFT_TRY(wefti_layouts_open(layouts, &out->layouts));
    weft_status status = wefti_shards_open(path, out->layouts, &out->shards);
    if (status < 0) wefti_reshard_close(out);
    return status;
}

void wefti_reshard_close(wefti_reshard_input *in) {
    wefti_shards_close(in->shards);
    wefti_layouts_close(in->layouts);
    *in = (wefti_reshard_input){0};
}

void wefti_reshard_tell(wefti_text *text, const char *name, wefti_checkpoint_role role,
                        const weft_desc *desc) {
    wefti_text_add(text, "\"name\": ");
    wefti_json_quote(text, name);
    wefti_text_add(text, ", \"role\": \"%s\", \"dtype\": \"%s\", \"shape\": [",
                   wefti_checkpoint_role_text(role), wefti_safetensors_dtype_name(desc->dtype));
    for (int d = 0; d < desc->rank; d++)
        wefti_text_add(text, d ? ", %lld" : "%lld", (long long)desc->shape[d]);
    wefti_text_add(text, "]");
}

weft_status wefti_reshard_give(weft_status status, wefti_text *text, char **out) {
    char *taken = wefti_text_take(text);
    if (status >= 0 && !taken) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a report");
    if (status < 0)
        wefti_free(taken);
    else
        *out = taken;
    return status;
}

static weft_status sum_all(wefti_shards *s, uint32_t *sums) {
    const wefti_reads reads = {.source = s, .prefer = -1, .replicas = true};
    const wefti_shard_copy copy = {.source = s, .whole = true, .replicas = true, .crc32c = sums};
    WEFT_TRY(wefti_reads_choose(&reads, NULL));
    return wefti_copy_run(&copy);
}

static weft_status digest_of(const wefti_shards *s, const uint32_t *sums, uint64_t *out) {
    wefti_manifest_tensor *tensors;
    WEFT_NEW_ARRAY(tensors, wefti_manifest_tensor, s->count + 1);
    for (int64_t i = 0; i < s->count; i++)
        tensors[i] = (wefti_manifest_tensor){.name = s->tensors[i].name,
                                             .role = s->tensors[i].role,
                                             .desc = s->tensors[i].desc,
                                             .crc32c = sums[i]};
    *out = wefti_manifest_digest(tensors, s->count);
    wefti_free(tensors);
    return WEFT_OK;
}

static void tell(const wefti_shards *s, const uint32_t *sums, uint64_t digest, bool json,
                 wefti_text *text) {
    if (json) {
        wefti_text_add(text, "{\"path\": ");
        wefti_json_quote(text, s->path);
        wefti_text_add(text, ", \"digest\": \"0x%016llx\", \"tensors\": [",
                       (unsigned long long)digest);
    } else {
        wefti_text_add(text, "digest       0x%016llx\ntensors      %lld\n",
                       (unsigned long long)digest, (long long)s->count);
    }
    for (int64_t i = 0; i < s->count; i++) {
        const wefti_source_tensor *t = &s->tensors[i];
        if (!json) {
            wefti_text_add(text, "  %08x  %-48s %s\n", sums[i], t->name,
                           wefti_desc_text(&t->desc).text);
            continue;
        }
        wefti_text_add(text, i ? ", {" : "{");
        wefti_reshard_tell(text, t->name, t->role, &t->desc);
        wefti_text_add(text, ", \"crc32c\": \"%08x\"}", sums[i]);
    }
    if (json) wefti_text_add(text, "]}\n");
}

weft_status weft_checkpoint_digest(const char *path, const char *layouts, int json,
                                   char **out_text) {
    wefti_reshard_input in;
    wefti_text text = {0};
    uint64_t digest = 0;
    WEFT_TRY(wefti_reshard_open(path, layouts, &in));
    uint32_t *sums = wefti_calloc((size_t)in.shards->count + 1, sizeof *sums);
    weft_status status =
        sums ? sum_all(in.shards, sums) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for checksums");
    if (status >= 0) status = digest_of(in.shards, sums, &digest);
    if (status >= 0) tell(in.shards, sums, digest, json != 0, &text);
    wefti_free(sums);
    wefti_reshard_close(&in);
    return wefti_reshard_give(status, &text, out_text);
}
