/* The parts of an exported model that writing and reading share. */
#include "infer/exported.h"

#include <string.h>

#include "base/json/json.h"
#include "base/reader.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

enum { EXPORTED_VERSION = 1, MOST_DEVICES = 1 << 20 };
#define EXPORTED_SUM "crc32c:"

/* ---- exported.json ---- */

static weft_status read_sum(const wefti_json *object, const char *key, uint32_t *out) {
    uint64_t sum;
    WEFT_TRY(wefti_json_hex(object, key, EXPORTED_SUM, &sum));
    WEFT_REQUIRE(sum <= UINT32_MAX, WEFT_E_CORRUPT, "\"%s\" is no checksum of 32 bits", key);
    *out = (uint32_t)sum;
    return WEFT_OK;
}

static weft_status read_family(const wefti_json *root, wefti_exported *out) {
    const char *name;
    int family = 0;
    WEFT_TRY(wefti_json_text(root, "family", &name));
    while (family < WEFT_FAMILIES && strcmp(name, weft_family_text((weft_family)family)) != 0)
        family++;
    WEFT_REQUIRE(family < WEFT_FAMILIES, WEFT_E_CORRUPT, "unknown family \"%s\"", name);
    out->family = (weft_family)family;
    WEFT_TRY(wefti_json_int(root, "vocab", &out->vocab));
    WEFT_REQUIRE(out->vocab >= 0 && out->vocab <= INT32_MAX, WEFT_E_CORRUPT, "\"vocab\" is %lld",
                 (long long)out->vocab);
    return WEFT_OK;
}

static weft_status read_ranks(const wefti_json *root, wefti_exported *out) {
    const wefti_json *ranks;
    int rank = 0;
    WEFT_TRY(wefti_json_array(root, "ranks", &ranks));
    WEFT_REQUIRE(ranks->count >= 1, WEFT_E_CORRUPT, "\"ranks\" is empty");
    out->devices = ranks->count;
    WEFT_NEW_ARRAY(out->ranks, uint32_t, ranks->count);
    WEFTI_JSON_EACH(item, ranks) WEFT_TRY(read_sum(item, "sum", &out->ranks[rank++]));
    const wefti_json *plan = wefti_json_get(root, "plan");
    out->has_plan = plan && plan->kind != WEFTI_JSON_NULL;
    WEFT_REQUIRE(out->has_plan || out->devices == 1, WEFT_E_CORRUPT, "%d ranks need a \"plan\"",
                 out->devices);
    return out->has_plan ? read_sum(root, "plan", &out->plan) : WEFT_OK;
}

static weft_status read_root(const wefti_json *root, wefti_exported *out) {
    const char *text;
    int64_t version;
    WEFT_TRY(wefti_json_text(root, "format", &text));
    WEFT_REQUIRE(!strcmp(text, "weft-exported"), WEFT_E_CORRUPT,
                 "\"format\" is \"%s\", not \"weft-exported\"", text);
    WEFT_TRY(wefti_json_int(root, "version", &version));
    WEFT_REQUIRE(version == EXPORTED_VERSION, WEFT_E_CORRUPT,
                 "it has version %lld; this weft reads version %d", (long long)version,
                 EXPORTED_VERSION);
    WEFT_TRY(read_family(root, out));
    WEFT_TRY(wefti_json_text(root, "bf16", &text));
    WEFT_REQUIRE(!strcmp(text, "native") || !strcmp(text, "f32"), WEFT_E_CORRUPT,
                 "\"bf16\" is \"%s\", not \"native\" or \"f32\"", text);
    out->bf16 = !strcmp(text, "native") ? WEFT_BF16_NATIVE : WEFT_BF16_AS_F32;
    WEFT_TRY(read_sum(root, "graph", &out->graph));
    return read_ranks(root, out);
}

weft_status wefti_exported_parse(const char *text, int64_t bytes, wefti_exported *out) {
    static const wefti_json_limits limits = {
        .depth = 4, .members = 16, .array_items = MOST_DEVICES};
    const wefti_json *root;
    wefti_arena *arena;
    *out = (wefti_exported){.devices = 0};
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &root);
    if (status >= 0) status = read_root(root, out);
    wefti_arena_destroy(arena);
    if (status >= 0) return status;
    wefti_free(out->ranks);
    out->ranks = NULL;
    return status;
}

weft_status wefti_exported_print(const wefti_exported *facts, char **out) {
    wefti_text t = {0};
    wefti_text_add(&t, "{\n  \"format\": \"weft-exported\",\n  \"version\": %d,\n",
                   EXPORTED_VERSION);
    wefti_text_add(&t, "  \"family\": \"%s\",\n  \"vocab\": %lld,\n",
                   weft_family_text(facts->family), (long long)facts->vocab);
    wefti_text_add(&t, "  \"bf16\": \"%s\",\n  \"graph\": \"" EXPORTED_SUM "%x\",\n",
                   facts->bf16 == WEFT_BF16_NATIVE ? "native" : "f32", facts->graph);
    if (facts->has_plan) wefti_text_add(&t, "  \"plan\": \"" EXPORTED_SUM "%x\",\n", facts->plan);
    wefti_text_add(&t, "  \"ranks\": [");
    for (int r = 0; r < facts->devices; r++)
        wefti_text_add(&t, "%s\n    {\"sum\": \"" EXPORTED_SUM "%x\"}", r ? "," : "",
                       facts->ranks[r]);
    wefti_text_add(&t, "\n  ]\n}\n");
    *out = wefti_text_take(&t);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for exported.json");
    return WEFT_OK;
}

/* ---- files ---- */

char *wefti_exported_rank_file(const char *folder, int rank) {
    return wefti_format("%s/rank-%d.safetensors", folder, rank);
}

weft_status wefti_exported_sum(const char *path, uint32_t *out) {
    wefti_reader *file;
    WEFT_TRY(wefti_reader_open(path, &file));
    wefti_reader_ahead(file);
    weft_status status = wefti_reader_crc32c(file, 0, wefti_reader_bytes(file), out);
    wefti_reader_close(file);
    return status;
}

/* ---- tensors ---- */

/* The piece of a tensor on a device; without a home: none. */
static weft_status piece_on(weft_session *s, int tensor, int rank, wefti_session_piece *all,
                            wefti_session_piece *out) {
    int32_t count;
    *out = (wefti_session_piece){.rank = rank};
    WEFT_TRY(wefti_session_pieces(s, 0, tensor, all, &count));
    for (int32_t i = 0; i < count; i++)
        if (all[i].rank == rank && wefti_home_exists(&all[i].home)) *out = all[i];
    return WEFT_OK;
}

static weft_status list(weft_session *s, int rank, wefti_session_piece *all,
                        wefti_exported_tensors *out) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        wefti_session_piece *piece = &out->pieces[out->count];
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_STATE) continue;
        WEFT_TRY(piece_on(s, t, rank, all, piece));
        if (!wefti_home_exists(&piece->home)) continue;
        for (int d = 0; d < info.desc.rank; d++) info.desc.shape[d] = piece->box.size[d];
        out->items[out->count++] = (wefti_safetensors_item){info.name, info.desc, piece};
    }
    return WEFT_OK;
}

weft_status wefti_exported_list(weft_session *s, int rank, wefti_exported_tensors *out) {
    const int tensors = weft_session_tensors(s, 0);
    wefti_session_piece *all;
    *out = (wefti_exported_tensors){.count = 0};
    WEFT_NEW_ARRAY(out->items, wefti_safetensors_item, tensors + 1);
    WEFT_NEW_ARRAY(out->pieces, wefti_session_piece, tensors + 1);
    WEFT_NEW_ARRAY(all, wefti_session_piece, weft_session_devices(s));
    weft_status status = list(s, rank, all, out);
    wefti_free(all);
    return status;
}

void wefti_exported_tensors_free(wefti_exported_tensors *t) {
    wefti_free(t->items);
    wefti_free(t->pieces);
}
