/* The joint search of a job: models for every microbatch, the machine, and the report. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "job/job.h"
#include "plan/plan.h"
#include "search/joint/joint.h"
#include "session/optimizer.h"
#include "setup/setup.h"
#include "weft/info.h"

/* A model that the search has asked for. */
typedef struct joint_model {
    int64_t samples, layers;
    weft_graph *graph;
    wefti_optimizer *optimizer;
} joint_model;

typedef struct joint_models {
    const wefti_built *built;
    joint_model *items;
    int64_t count, cap;
} joint_models;

static weft_status build(const wefti_built *b, joint_model *m) {
    weft_model_config config = b->model.config;
    const weft_session_options o = wefti_built_options(b);
    if (m->layers) config.layers = m->layers;
    WEFT_TRY(wefti_built_graph_of(b, &config, m->samples, &m->graph));
    WEFT_TRY(wefti_graph_wrap(m->graph));
    return wefti_optimizer_for(&o, m->graph, &m->optimizer);
}

static weft_status find_model(void *context, int64_t samples, int64_t layers, weft_graph **graph,
                              const wefti_optimizer_plan **optimizer) {
    joint_models *all = context;
    joint_model *m = NULL;
    for (int64_t i = 0; i < all->count && !m; i++)
        if (all->items[i].samples == samples && all->items[i].layers == layers) m = &all->items[i];
    if (!m) {
        WEFT_TRY(WEFT_GROW(all->items, all->count, all->cap));
        m = &all->items[all->count++];
        *m = (joint_model){.samples = samples, .layers = layers};
        WEFT_TRY(build(all->built, m));
    }
    *graph = m->graph;
    *optimizer = wefti_optimizer_plan_of(m->optimizer);
    return WEFT_OK;
}

static void free_models(joint_models *all) {
    for (int64_t i = 0; i < all->count; i++) {
        wefti_optimizer_destroy(all->items[i].optimizer);
        weft_graph_destroy(all->items[i].graph);
    }
    wefti_free(all->items);
}

/* ---- the machine ---- */

/* Per cent are of `all` bytes. One of the two keys is set at most. */
static int64_t device_limit(const weft_job *job, int64_t all) {
    const weft_job_device *d = &job->device;
    const weft_job_memory *m = &job->memory;
    const int64_t limit = wefti_job_limit(m->device_bytes, m->device_percent, all);
    return limit ? limit : wefti_job_limit(d->memory_bytes, d->memory_percent, all);
}

weft_status wefti_built_machine(const wefti_built *b, wefti_machine_model **out, int64_t *limit) {
    const weft_job *job = b->job;
    const int32_t devices = wefti_built_devices(b);
    weft_info info;
    if (*job->machine) {
        WEFT_TRY(wefti_model_find(job->machine, out));
        *limit = device_limit(job, (int64_t)(*out)->device.memory_bytes.value);
        return WEFT_OK;
    }
    weft_info_get(&info);
    const int64_t share = info.memory_bytes > devices ? info.memory_bytes / devices : 1;
    *limit = device_limit(job, share);
    if (!*limit) *limit = share;
    if (*job->parallel.links) return wefti_model_find(job->parallel.links, out);
    return wefti_joint_assume(devices, share, NULL, out);
}

/* ---- the report ---- */

/* The levels that the groups of an axis use. */
static void name_links(const wefti_machine_model *m, int64_t stride, int32_t size, char out[64]) {
    size_t used = 0;
    out[0] = '\0';
    bool seen[WEFTI_LEVELS_MAX] = {false};
    for (int64_t i = 1; i < size; i++)
        seen[wefti_model_level_of(m, (int32_t)((i - 1) * stride), (int32_t)(i * stride))] = true;
    for (int32_t l = 0; l < m->level_count && used < 64; l++)
        if (seen[l])
            used += (size_t)snprintf(out + used, 64 - used, "%s%s", used ? " and " : "",
                                     m->level[l].name);
}

static void fill_axes(const wefti_machine_model *m, const weft_plan *plan,
                      weft_search_report *out) {
    int64_t stride = 1;
    out->axis_count = plan->mesh.axes;
    for (int a = plan->mesh.axes - 1; a >= 0; a--) {
        weft_axis_links *axis = &out->axes[a];
        snprintf(axis->name, sizeof axis->name, "%s", plan->mesh.axis[a].name);
        axis->size = plan->mesh.axis[a].size;
        name_links(m, stride, axis->size, axis->links);
        stride *= axis->size;
    }
}

/* Those behind the first, which is the answer. */
static weft_status fill_alternatives(const wefti_joint_answer *answer, weft_search_report *r) {
    const int most = (int)(sizeof r->alternatives / sizeof *r->alternatives);
    for (int32_t i = 1; i < answer->walked_count && r->alternative_count < most; i++) {
        const wefti_joint_walked *w = &answer->walked[i];
        wefti_text text = {0};
        wefti_joint_degrees_text(&w->degrees, &text);
        char *degrees = wefti_text_take(&text);
        WEFT_REQUIRE(degrees, WEFT_E_NOMEM, "no memory for a report");
        r->alternatives[r->alternative_count++] =
            (weft_search_alternative){degrees, w->seconds, w->bytes, w->fits};
    }
    return WEFT_OK;
}

static weft_status make_report(const wefti_machine_model *m, int64_t limit,
                               wefti_joint_answer *answer, double seconds,
                               weft_search_report **out) {
    const wefti_degrees *d = &answer->degrees;
    weft_search_report *r;
    wefti_text text = {0};
    WEFT_NEW(r, weft_search_report);
    *r = (weft_search_report){.prediction = answer->prediction,
                              .lower_bound_seconds = answer->lower_bound_seconds,
                              .bound_scope = wefti_joint_bound_scope,
                              .gap = answer->gap,
                              .search_seconds = seconds,
                              .candidates = answer->candidates,
                              .evaluations = answer->evaluations,
                              .programs = answer->programs,
                              .exhausted = answer->exhausted,
                              .cut = answer->cut,
                              .stages = d->stages,
                              .chunks = d->chunks,
                              .microbatches = d->microbatches,
                              .level = d->level,
                              .shard = d->shard,
                              .schedule = d->schedule,
                              .recompute = d->recompute,
                              .device_memory_bytes = limit,
                              .plan_bound_seconds = answer->plan_bound_seconds,
                              .least_bound = answer->least};
    answer->prediction = NULL;
    answer->least = NULL;
    r->cells = answer->cells.cells;
    r->cell_count = answer->cells.count;
    answer->cells = (wefti_joint_cells){0};
    fill_axes(m, answer->plan, r);
    wefti_joint_degrees_text(d, &text);
    r->degrees = wefti_text_take(&text);
    *out = r;
    WEFT_REQUIRE(r->degrees, WEFT_E_NOMEM, "no memory for a report");
    return fill_alternatives(answer, r);
}

void weft_search_report_free(weft_search_report *report) {
    if (!report) return;
    weft_prediction_free(report->prediction);
    for (int i = 0; i < report->cell_count; i++) wefti_free(report->cells[i].splits);
    wefti_free(report->cells);
    wefti_free(report->degrees);
    wefti_free(report->least_bound);
    wefti_free(report->idle_constraints);
    wefti_free(report->moves);
    for (int i = 0; i < report->alternative_count; i++) wefti_free(report->alternatives[i].degrees);
    wefti_free(report);
}

/* ---- the search ---- */

static int next_tier(const bool tiers[WEFT_TIERS], int from) {
    while (from < WEFT_TIERS && !tiers[from]) from++;
    return from;
}

/* What a search moves as a whole if no plan fits. Parameters allow fewer optimizer levels, so they
 * come last. */
static const struct {
    const char *text;
    int count;
    weft_offload what[4];
} moved_kinds[] = {{"optimizer states", 1, {WEFT_OFFLOAD_OPTIMIZER}},
                   {"optimizer states, gradients, saved blocks and parameters",
                    4,
                    {WEFT_OFFLOAD_OPTIMIZER, WEFT_OFFLOAD_GRADIENTS, WEFT_OFFLOAD_SAVED,
                     WEFT_OFFLOAD_PARAMETERS}}};
enum { MOVED_KINDS = sizeof moved_kinds / sizeof *moved_kinds };

static weft_status search_moved(wefti_joint_problem *p, const weft_plan *settings, int kinds,
                                weft_tier to, wefti_joint_answer *answer) {
    weft_plan *moved;
    weft_status status = WEFT_OK;
    WEFT_TRY(wefti_plan_copy(settings, &moved));
    p->settings = moved;
    p->moves_less = true;
    for (int i = 0; i < moved_kinds[kinds].count && status >= 0; i++)
        status = weft_plan_offload(moved, "*", moved_kinds[kinds].what[i], to);
    if (status >= 0) status = wefti_joint_search(p, answer);
    p->settings = settings;
    weft_plan_destroy(moved);
    return status;
}

/* With memory.offload: auto, optimizer states leave device memory if no plan fits with them, and
 * then all that can. wefti_built_offload then takes back that for which there is room. */
static weft_status search_tiers(const wefti_built *b, wefti_joint_problem *p,
                                wefti_joint_answer *answer) {
    const weft_plan *settings = p->settings;
    bool tiers[WEFT_TIERS] = {false};
    if (wefti_job_offloads_auto(b->job)) wefti_built_tiers(b, p->machine, tiers);
    p->plain = next_tier(tiers, 0) < WEFT_TIERS;
    weft_status status = wefti_joint_search(p, answer);
    for (int kinds = 0; kinds < MOVED_KINDS; kinds++)
        for (int to = next_tier(tiers, 0); status == WEFT_E_NOMEM && to < WEFT_TIERS;
             to = next_tier(tiers, to + 1)) {
            wefti_error_clear();
            wefti_setup_note(b->setup,
                             "memory.offload: auto: no plan fits so far: the search moves all %s "
                             "to tier %s",
                             moved_kinds[kinds].text, wefti_tier_words[to]);
            p->plain = kinds + 1 < MOVED_KINDS || next_tier(tiers, to + 1) < WEFT_TIERS;
            status = search_moved(p, settings, kinds, (weft_tier)to, answer);
        }
    return status;
}

static weft_status search(wefti_built *b, const wefti_machine_model *machine, int64_t limit,
                          const wefti_joint_fix *fix, joint_models *models,
                          wefti_joint_answer *answer) {
    const weft_job *job = b->job;
    const double samples = (double)job->train.batch;
    const double context =
        b->model.objective->is_language
            ? (double)(job->model.context ? job->model.context : b->model.config.context)
            : 1;
    wefti_joint_problem p = {.source = {.context = models,
                                        .model = find_model,
                                        .config = &b->model.config,
                                        .batch = job->train.batch,
                                        .tokens = samples * context},
                             .settings = job->plan,
                             .machine = machine,
                             .fix = *fix,
                             .memory_bytes = limit,
                             .host_bytes = wefti_built_limits(b).host,
                             .evaluations = (int32_t)job->parallel.evaluations,
                             .seconds = job->parallel.search_seconds};
    return search_tiers(b, &p, answer);
}

/* Which constraints decide nothing of the answer. */
static weft_status find_idle(const wefti_built *b, const wefti_joint_fix *fix,
                             const wefti_degrees *degrees, char **out) {
    wefti_text text = {0};
    WEFT_TRY(wefti_joint_idle_text(fix, degrees, &text));
    if (!text.used) return WEFT_OK;
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a report");
    wefti_setup_note(b->setup, "constraints that decide nothing of this plan: %s", *out);
    return WEFT_OK;
}

static weft_status search_on(wefti_built *b, const wefti_machine_model *machine, int64_t limit) {
    const double begin = wefti_now_s();
    joint_models models = {.built = b};
    wefti_joint_answer answer = {0};
    wefti_joint_fix fix = wefti_joint_free();
    WEFT_TRY(wefti_joint_fix_add(b->job->parallel.constraints, &fix));
    weft_status status = search(b, machine, limit, &fix, &models, &answer);
    if (!limit) limit = (int64_t)machine->device.memory_bytes.value;
    if (status >= 0)
        status = make_report(machine, limit, &answer, wefti_now_s() - begin, &b->report);
    if (status >= 0) status = find_idle(b, &fix, &answer.degrees, &b->report->idle_constraints);
    free_models(&models);
    if (status < 0) {
        wefti_joint_answer_free(&answer);
        return status;
    }
    b->searched = answer.plan;
    if (answer.cut)
        wefti_setup_note(b->setup, "the search was cut off after %g s: it cannot be repeated",
                         b->job->parallel.search_seconds);
    return WEFT_OK;
}

weft_status wefti_built_joint(wefti_built *b) {
    wefti_machine_model *machine;
    int64_t limit;
    WEFT_TRY(wefti_built_machine(b, &machine, &limit));
    const weft_status status = search_on(b, machine, limit);
    wefti_model_destroy(machine);
    return status;
}
