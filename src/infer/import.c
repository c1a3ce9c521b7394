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
    if (wefti_home_is_lent(&piece->home)) return WEFT_OK;
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

static weft_status load_file(const wefti_safetensors *file, const wefti_exported_tensors *t) {
    WEFT_REQUIRE(wefti_safetensors_count(file) == t->count, WEFT_E_SHAPE,
                 "it has %lld tensors; the graph and the plan say %lld",
                 (long long)wefti_safetensors_count(file), (long long)t->count);
    for (int64_t i = 0; i < t->count; i++) WEFT_TRY(load_tensor(file, &t->items[i]));
    return WEFT_OK;
}

/* The files of the ranks of this process, [devices]; NULL: of another process. */
typedef struct weights {
    weft_infer *infer;
    const char *folder;
    const wefti_exported *facts;
    wefti_safetensors **files;
} weights;

static weft_status open_rank(weights *w, int rank) {
    char *path = wefti_exported_rank_file(w->folder, rank);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = check_sum(path, w->facts->ranks[rank]);
    if (status >= 0) status = wefti_safetensors_open(path, &w->files[rank]);
    wefti_free(path);
    return status;
}

static weft_status open_ranks(weights *w) {
    const wefti_party *party = &w->infer->model.setup.party;
    WEFT_NEW_ARRAY(w->files, wefti_safetensors *, w->facts->devices);
    if (party->agreement) return open_rank(w, wefti_party_rank(party));
    for (int r = 0; r < w->facts->devices; r++) WEFT_TRY(open_rank(w, r));
    return WEFT_OK;
}

static weft_status load_rank(const weights *w, int rank) {
    wefti_exported_tensors tensors;
    weft_status status = wefti_exported_list(w->infer->model.built.session, rank, &tensors);
    if (status >= 0) status = load_file(w->files[rank], &tensors);
    wefti_exported_tensors_free(&tensors);
    return status < 0 ? wefti_prefix(status, "%s: rank %d", w->folder, rank) : status;
}

static weft_status load_ranks(const weights *w) {
    for (int r = 0; r < w->facts->devices; r++)
        if (w->files[r]) WEFT_TRY(load_rank(w, r));
    return WEFT_OK;
}

/* wefti_values: a tier on a disk reads the file itself. */
static weft_status give(void *context, int32_t rank, const wefti_tensor *x, const wefti_region *box,
                        const wefti_home *home, bool *out) {
    const weights *w = context;
    const wefti_safetensors_entry *e = wefti_safetensors_find(w->files[rank], x->name);
    bool lent;
    (void)box;
    if (!e || e->desc.rank < 0 || !wefti_desc_equal(&e->desc, &x->desc)) return WEFT_OK;
    *out = true;
    return wefti_home_lend(home, 0, e->bytes, e->reader, e->at, &lent);
}

static weft_status load_all(weights *w) {
    const wefti_party *party = &w->infer->model.setup.party;
    const wefti_values values = {give, w};
    WEFT_TRY(wefti_party_agree(party, open_ranks(w)));
    WEFT_TRY(wefti_session_start_with(w->infer->model.built.session, &values));
    return wefti_party_agree(party, load_ranks(w));
}

static weft_status load(weft_infer *f, const char *folder, const wefti_exported *facts) {
    weights w = {f, folder, facts, NULL};
    const weft_status status = load_all(&w);
    for (int r = 0; w.files && r < facts->devices; r++) wefti_safetensors_close(w.files[r]);
    wefti_free(w.files);
    return status;
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
    WEFT_TRY(load(f, folder, facts));
    return wefti_trained_tell_lent(&f->model.setup, f->model.built.session);
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
