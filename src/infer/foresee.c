/* What a model in use will take: its programs, built dry, without weights and without a session. */
#include <stdio.h>
#include <string.h>

#include "builder/fold/fold.h"
#include "setup/programs.h"
#include "weft/infer.h"

/* The graph and the plan of weft_infer_open: trained.c. The graph that is trained decides about the
 * plan. */
static weft_status open_programs(wefti_job_programs *p, const weft_job *job, int64_t batch,
                                 int64_t length) {
    *p = (wefti_job_programs){
        .built = {.setup = &p->setup, .job = job}, .graphs = 1, .microbatches = 1};
    wefti_built *b = &p->built;
    WEFT_TRY(wefti_built_configure(b));
    WEFT_TRY(wefti_built_graph(b));
    if (!length && b->model.objective->is_language) length = job->model.context;
    WEFT_TRY(weft_model_build(&b->model.config, WEFT_USE_LOGITS, batch ? batch : b->batch.micro,
                              length, job->train.precision, &b->model.eval_graph));
    weft_graph *graph = p->graph[0] = b->model.eval_graph;
    WEFT_TRY(wefti_graph_wrap(graph));
    const weft_session_options given = wefti_built_forward_options(b);
    WEFT_TRY(wefti_built_offload(b, &given, &graph, 1));
    const weft_session_options o = wefti_built_forward_options(b);
    p->devices = 1;
    if (o.plan) {
        WEFT_TRY(wefti_session_take_plan(&o, &p->microbatches, &p->plan));
        p->devices = p->plan->devices;
        WEFT_TRY(wefti_route_cache_create(&p->routes));
    }
    const int threads = (o.threads ? o.threads : wefti_cores()) / p->devices;
    p->prepare = (wefti_prepare){.threads = threads > 1 ? threads : 1,
                                 .bf16 = wefti_session_choose_bf16(graph, o.bf16)};
    return WEFT_OK;
}

/* ---- tensors ---- */

static bool is_kept(const wefti_tensor *t) {
    return t->role == WEFTI_TENSOR_PARAM || t->role == WEFTI_TENSOR_STATE;
}

static weft_infer_tensor *tensor_named(weft_infer_report *r, const char *name) {
    for (int i = 0; i < r->tensor_count; i++)
        if (!strcmp(r->tensors[i].name, name)) return &r->tensors[i];
    return NULL;
}

/* A tensor of several stages is listed once, as the first of them has it. */
static void add_tensors(weft_infer_report *r, const wefti_program *p, int ranks) {
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (!is_kept(t)) continue;
        weft_infer_tensor *to = tensor_named(r, t->name);
        if (!to) {
            to = &r->tensors[r->tensor_count++];
            *to = (weft_infer_tensor){.name = t->name, .whole = t->whole, .part = t->desc};
            (void)snprintf(to->layout, sizeof to->layout, "%s",
                           wefti_layout_text(&t->layout, &p->mesh).text);
        }
        to->ranks += ranks;
    }
}

static weft_status fill_tensors(const wefti_rank_classes *all, weft_infer_report *r) {
    int64_t most = 0;
    for (int32_t c = 0; c < all->count; c++) most += all->classes[c].programs[0]->tensor_count;
    WEFT_NEW_ARRAY(r->tensors, weft_infer_tensor, most + 1);
    for (int32_t c = 0; c < all->count; c++) {
        int ranks = 0;
        for (int rank = 0; rank < r->devices; rank++) ranks += all->class_of[rank] == c;
        add_tensors(r, all->classes[c].programs[0], ranks);
    }
    return WEFT_OK;
}

/* ---- ranks ---- */

static void fill_rank(const wefti_program *p, weft_infer_rank *to) {
    const wefti_footprint all = wefti_program_footprint(p);
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (is_kept(&p->tensors[i]) &&
            wefti_location_space(p->tensors[i].home) == WEFTI_SPACE_DEVICE)
            to->weight_bytes += weft_desc_bytes(&p->tensors[i].desc);
    to->host_bytes = wefti_footprint_bytes(all, WEFTI_SPACE_HOST);
    to->disk_bytes = wefti_footprint_bytes(all, WEFTI_SPACE_DISK);
    to->peak_bytes = p->peak_bytes;
    to->program_bytes = p->program_bytes;
}

static weft_status fill(wefti_job_programs *p, weft_infer_report *r) {
    r->devices = p->devices;
    r->notes = p->built.search_notes;
    WEFT_TRY(wefti_job_programs_classes(p));
    WEFT_TRY(wefti_job_programs_within(p));
    WEFT_NEW_ARRAY(r->ranks, weft_infer_rank, r->devices);
    for (int rank = 0; rank < r->devices; rank++)
        fill_rank(p->classes->classes[p->classes->class_of[rank]].programs[0], &r->ranks[rank]);
    return fill_tensors(p->classes, r);
}

weft_status weft_job_infer_report(const weft_job *job, int64_t batch, int64_t length,
                                  weft_infer_report **out) {
    weft_infer_report *r;
    WEFT_REQUIRE(job && out, WEFT_E_ARG, "a report needs a job and a place");
    WEFT_REQUIRE(batch >= 0 && length >= 0, WEFT_E_ARG,
                 "batch and length must be 0 or more, not %lld and %lld", (long long)batch,
                 (long long)length);
    WEFT_NEW(r, weft_infer_report);
    wefti_job_programs *p = wefti_calloc(1, sizeof *p);
    weft_status status = p ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a report");
    r->owner = p; /* names of tensors belong to the programs */
    if (status >= 0) status = open_programs(p, job, batch, length);
    if (status >= 0) status = fill(p, r);
    if (status < 0) {
        weft_infer_report_free(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}

void weft_infer_report_free(weft_infer_report *r) {
    if (!r) return;
    if (r->owner) wefti_job_programs_close(r->owner);
    wefti_free(r->owner);
    wefti_free(r->ranks);
    wefti_free(r->tensors);
    wefti_free(r);
}
