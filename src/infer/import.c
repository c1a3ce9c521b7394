/* Opens an exported model: the graph and the plan from their texts, each device's weights from its
 * file. Every file is checked against its checksum before it is used. */
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "infer/exported.h"
#include "plan/plan.h"

enum { MOST_TEXT = 1 << 28 };

static weft_status check_sum(const char *path, uint32_t wanted) {
    uint32_t sum;
    WEFT_TRY(wefti_exported_sum(path, &sum));
    WEFT_REQUIRE(sum == wanted, WEFT_E_CORRUPT,
                 "%s is damaged: its checksum is %08x, exported.json says %08x", path, sum, wanted);
    return WEFT_OK;
}

/* The text of a file of the folder. `wanted` NULL: without a checksum. */
static weft_status read_text(const char *folder, const char *name, const uint32_t *wanted,
                             char **out, int64_t *out_bytes) {
    char *path = wefti_format("%s/%s", folder, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wanted ? check_sum(path, *wanted) : WEFT_OK;
    if (status >= 0) status = wefti_file_read(path, MOST_TEXT, out, out_bytes);
    wefti_free(path);
    return status;
}

static weft_status read_facts(const char *folder, wefti_exported *out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(read_text(folder, "exported.json", NULL, &text, &bytes));
    weft_status status = wefti_exported_parse(text, bytes, out);
    wefti_free(text);
    return status < 0 ? wefti_prefix(status, "%s/exported.json", folder) : status;
}

static weft_status read_graph(const char *folder, const wefti_exported *facts, weft_graph **out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(read_text(folder, "graph.txt", &facts->graph, &text, &bytes));
    weft_status status = (int64_t)strlen(text) == bytes
                             ? weft_graph_parse(text, out)
                             : WEFT_RAISE(WEFT_E_CORRUPT, "a graph has no byte 0");
    wefti_free(text);
    return status < 0 ? wefti_prefix(status, "%s/graph.txt", folder) : status;
}

static weft_status read_plan(const char *folder, const wefti_exported *facts, weft_plan **out) {
    char *text;
    int64_t bytes;
    *out = NULL;
    if (!facts->has_plan) return WEFT_OK;
    WEFT_TRY(read_text(folder, "plan.json", &facts->plan, &text, &bytes));
    weft_status status = weft_plan_parse("plan.json", text, bytes, out);
    wefti_free(text);
    return status < 0 ? wefti_prefix(status, "%s", folder) : status;
}

/* ---- weights ---- */

static weft_status load_tensor(const wefti_safetensors *file, const wefti_safetensors_item *item) {
    const wefti_session_piece *piece = item->data;
    const wefti_safetensors_entry *entry = wefti_safetensors_find(file, item->name);
    const int64_t bytes = weft_desc_bytes(&item->desc);
    WEFT_REQUIRE(entry && entry->desc.rank >= 0 && wefti_desc_equal(&entry->desc, &item->desc),
                 WEFT_E_SHAPE, "tensor \"%s\" is %s; the graph and the plan say %s", item->name,
                 entry ? wefti_desc_text(&entry->desc).text : "missing",
                 wefti_desc_text(&item->desc).text);
    for (int64_t at = 0, part; at < bytes; at += part) {
        wefti_mapping m;
        part = bytes - at < WEFTI_HOME_BLOCK ? bytes - at : WEFTI_HOME_BLOCK;
        WEFT_TRY(wefti_home_map(&piece->home, at, part, WEFTI_ACCESS_WRITE, &m));
        WEFT_TRY(
            wefti_home_unmap(&m, wefti_reader_at(entry->reader, entry->at + at, part, m.data)));
    }
    return WEFT_OK;
}

static weft_status load_file(const char *path, uint32_t sum, const wefti_exported_tensors *t) {
    wefti_safetensors *file;
    WEFT_TRY(check_sum(path, sum));
    WEFT_TRY(wefti_safetensors_open(path, &file));
    weft_status status = WEFT_OK;
    if (wefti_safetensors_count(file) != t->count)
        status = WEFT_RAISE(WEFT_E_SHAPE, "it has %lld tensors; the graph and the plan say %lld",
                            (long long)wefti_safetensors_count(file), (long long)t->count);
    for (int64_t i = 0; i < t->count && status >= 0; i++) status = load_tensor(file, &t->items[i]);
    wefti_safetensors_close(file);
    return status < 0 ? wefti_prefix(status, "%s", path) : status;
}

static weft_status load_rank(weft_infer *f, const char *folder, const wefti_exported *facts,
                             int rank) {
    wefti_exported_tensors tensors;
    char *path = wefti_exported_rank_file(folder, rank);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_exported_list(f->model.built.session, rank, &tensors);
    if (status >= 0) status = load_file(path, facts->ranks[rank], &tensors);
    wefti_exported_tensors_free(&tensors);
    wefti_free(path);
    return status;
}

static weft_status load(weft_infer *f, const char *folder, const wefti_exported *facts) {
    const wefti_party *party = &f->model.setup.party;
    if (party->agreement)
        return wefti_party_agree(party, load_rank(f, folder, facts, wefti_party_rank(party)));
    for (int r = 0; r < facts->devices; r++) WEFT_TRY(load_rank(f, folder, facts, r));
    return WEFT_OK;
}

/* ---- opening ---- */

static weft_status read_parts(weft_infer *f, const char *folder, const wefti_exported *facts,
                              weft_plan **out_plan) {
    wefti_built *b = &f->model.built;
    const int size = b->setup->party.agreement ? weft_world_size(b->setup->party.world) : 0;
    WEFT_REQUIRE(!size || size == facts->devices, WEFT_E_ARG,
                 "%s was exported for %d devices, but there are %d processes", folder,
                 facts->devices, size);
    WEFT_TRY(read_graph(folder, facts, &b->model.eval_graph));
    WEFT_TRY(read_plan(folder, facts, out_plan));
    WEFT_REQUIRE(!*out_plan || weft_plan_devices(*out_plan) == facts->devices, WEFT_E_CORRUPT,
                 "%s/plan.json is for %d devices, not for %d", folder, weft_plan_devices(*out_plan),
                 facts->devices);
    b->model.config = (weft_model_config){.family = facts->family, .vocab = facts->vocab};
    b->model.objective = wefti_objective_of(facts->family);
    return WEFT_OK;
}

static weft_status create_session(wefti_trained *m, const wefti_exported *facts, int threads) {
    wefti_built *b = &m->built;
    weft_session_options o = weft_session_defaults();
    WEFT_TRY(wefti_built_try_disk(b, false));
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = threads;
    o.bf16 = facts->bf16;
    o.plan = m->job.plan;
    o.world = b->setup->party.world;
    const wefti_limits limits = wefti_built_limits(b);
    o.memory_bytes = limits.memory;
    o.device_bytes = limits.device;
    o.host_bytes = limits.host;
    o.disk = *m->job.memory.disk.path ? m->job.memory.disk.path : NULL;
    o.disk_bytes = b->disk_bytes;
    /* A plan of a training also splits tensors that only a training has. */
    return wefti_session_create(b->model.eval_graph, &o, &b->session);
}

static weft_status build(weft_infer *f, const char *folder, const wefti_exported *facts,
                         int threads) {
    weft_plan *plan = NULL;
    weft_status status =
        wefti_party_agree(&f->model.setup.party, read_parts(f, folder, facts, &plan));
    f->model.job.plan = plan;
    if (status >= 0) status = create_session(&f->model, facts, threads);
    f->model.job.plan = NULL;
    weft_plan_destroy(plan);
    if (status < 0) return status;
    return load(f, folder, facts);
}

weft_status wefti_exported_open(weft_infer *f, const weft_infer_options *o) {
    wefti_trained *m = &f->model;
    wefti_exported facts = {.devices = 0};
    weft_job job = {.parallel = {.plan = ""}, .memory = {.disk = {.path = ""}}};
    if (o->memory) {
        job.memory = o->memory->memory; /* the entries are the exported plan's */
        job.memory.offload = (weft_job_pairs){.items = NULL};
        job.device = o->memory->device;
    }
    WEFT_TRY(wefti_trained_join(m, f->world, &job, &o->events));
    m->path = wefti_strdup(o->checkpoint);
    WEFT_REQUIRE(m->path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_party_agree(&f->model.setup.party, read_facts(m->path, &facts));
    if (status >= 0) status = build(f, m->path, &facts, o->threads);
    wefti_free(facts.ranks);
    return status;
}
