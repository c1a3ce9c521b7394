/* The directory of tier disk, before a run spends time on its data and its plan. */
#include "base/text.h"
#include "device/disk.h"
#include "job/job.h"
#include "plan/plan.h"
#include "session/optimizer.h"
#include "setup/setup.h"

/* Whether the plan keeps tensors on the disk, if weft chooses none. Forward passes have parameters
 * only. Equal on all ranks. */
static bool has_entries(const wefti_built *b, bool trains) {
    for (int what = 0; what < WEFT_OFFLOADS; what++)
        if ((trains || what == WEFT_OFFLOAD_PARAMETERS) &&
            wefti_plan_may_offload(b->job->plan, (weft_offload)what, WEFT_TIER_DISK))
            return true;
    return false;
}

static bool may_use_disk(const wefti_built *b, bool trains) {
    return wefti_job_offloads_auto(b->job) || has_entries(b, trains);
}

static bool has_directory(const wefti_built *b) {
    return *b->job->memory.disk.path != '\0';
}

/* No rank of the host reserves space before all have read how much is free. */
static weft_status try_disk(wefti_built *b) {
    const char *path = b->job->memory.disk.path;
    const double percent = b->job->memory.disk.size_percent;
    int64_t room = 0;
    WEFT_TRY(wefti_disk_try(path));
    if (percent > 0) WEFT_TRY(wefti_disk_free_bytes(path, &room));
    b->disk_bytes =
        wefti_job_limit(b->job->memory.disk.size_bytes, percent, room / wefti_built_sharing(b));
    return WEFT_OK;
}

weft_status wefti_built_try_disk(wefti_built *b, bool trains) {
    if (!may_use_disk(b, trains)) return WEFT_OK;
    weft_status status = has_directory(b) ? try_disk(b) : WEFT_OK;
    if (status < 0)
        status = wefti_prefix(status, "memory.disk.path must be a directory of a local disk in "
                                      "which this user may make files");
    return wefti_party_agree(&b->setup->party, status);
}

/* The parameters and optimizer states that the plan keeps on the disk, each once. */
static weft_status sum_tensors(const weft_plan *plan, const weft_graph *graph,
                               const wefti_optimizer_plan *optimizer, int64_t *out) {
    const weft_body *root = graph->root;
    *out = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        wefti_update_rule rule;
        if (v->kind == WEFTI_VALUE_PARAM &&
            wefti_plan_tier(plan, WEFT_OFFLOAD_PARAMETERS, v->name) == WEFT_TIER_DISK)
            *out += weft_desc_bytes(&v->desc);
        if (v->kind != WEFTI_VALUE_PARAM || v->frozen ||
            wefti_plan_tier(plan, WEFT_OFFLOAD_OPTIMIZER, v->name) != WEFT_TIER_DISK)
            continue;
        WEFT_TRY(optimizer->rule(optimizer->context, v->name, &v->desc, &rule));
        for (int s = 0; s < rule.states; s++) *out += weft_desc_bytes(&rule.state_descs[s]);
    }
    return WEFT_OK;
}

static weft_status tensors_of_model(const wefti_built *b, int64_t *out) {
    const weft_session_options o = wefti_built_options(b);
    wefti_optimizer *optimizer = NULL;
    weft_graph *graph;
    WEFT_TRY(wefti_built_graph_of(b, &b->model.config, b->batch.micro, &graph));
    weft_status status = wefti_optimizer_for(&o, graph, &optimizer);
    if (status >= 0)
        status = sum_tensors(b->job->plan, graph, wefti_optimizer_plan_of(optimizer), out);
    wefti_optimizer_destroy(optimizer);
    weft_graph_destroy(graph);
    return status;
}

/* Each of them lies on some device. So one of the devices has at least an equal part, and devices
 * of one process have all. */
static weft_status check_room(const wefti_built *b) {
    const char *path = b->job->memory.disk.path;
    const int64_t limit = b->disk_bytes;
    int64_t all, room;
    char need[32], most[32];
    WEFT_TRY(tensors_of_model(b, &all));
    const int64_t devices = weft_plan_devices(b->job->plan), part = all / devices;
    const int64_t here = b->setup->party.world ? part : all;
    WEFT_REQUIRE(!limit || part <= limit, WEFT_E_NOMEM,
                 "memory.disk.size is %s, but the tensors of a device there take %s or more",
                 wefti_bytes_text(limit, most), wefti_bytes_text(part, need));
    WEFT_TRY(wefti_disk_free_bytes(path, &room));
    WEFT_REQUIRE(here <= room, WEFT_E_IO,
                 "memory.disk.path: %s has room for %s, but the tensors there take %s or "
                 "more: name a directory of a larger disk",
                 path, wefti_bytes_text(room, most), wefti_bytes_text(here, need));
    return WEFT_OK;
}

weft_status wefti_built_disk_room(const wefti_built *b) {
    if (!has_entries(b, true)) return WEFT_OK;
    const weft_status status = has_directory(b) ? check_room(b) : WEFT_OK;
    return wefti_party_agree(&b->setup->party, status);
}
