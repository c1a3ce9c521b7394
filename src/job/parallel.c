/* The plan that a job's section `parallel` describes. Messages name the line of the key. See
 * job/job.h, plan/plan.h. */
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/limits.h"
#include "plan/plan.h"
#include "search/joint/joint.h"
#include "search/search.h"
#include "topo/model.h"

#define PARALLEL_TEXT(name, text) text,
static const char *const schedule_names[] = {WEFT_PIPELINE_SCHEDULE_LIST(PARALLEL_TEXT)};
static const char *const recompute_names[] = {WEFT_RECOMPUTE_LIST(PARALLEL_TEXT)};
#undef PARALLEL_TEXT

/* A function of weft/plan.h about one key: "<where>parallel.<message>". */
static weft_status at_key(const wefti_job_draft *draft, const char *key, weft_status status) {
    char where[512];
    if (status != WEFT_E_ARG) return status;
    wefti_job_where(draft, wefti_job_mark_of(draft, key), where);
    return wefti_prefix(status, "%sparallel", where);
}
/* About one entry of a list, which knows its place. */
static weft_status at_pair(const weft_job_pair *pair, const char *key, weft_status status) {
    if (status != WEFT_E_ARG) return status;
    return wefti_prefix(status, "%s: %s", pair->where, key);
}

/* Messages of wefti_plan_check begin with the wrong key. Strategies know their position. */
static weft_status at_section(const wefti_job_draft *draft, weft_status status) {
    static const char section[] = "parallel.";
    const char *message = weft_error_message(), *mesh = "the mesh ";
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    const wefti_job_mark *first = NULL, *found = NULL;
    char where[512];
    if (status != WEFT_E_ARG) return status;
    for (int i = 0; i < rows && !found; i++) {
        const char *path = table[i].path, *name = path + sizeof section - 1;
        if (strncmp(path, section, sizeof section - 1) != 0 || !draft->marks[i].given) continue;
        size_t length = strlen(name);
        bool named = !strncmp(message, name, length) && strchr(" :", message[length]);
        if (named || (!strcmp(name, "mesh") && !strncmp(message, mesh, strlen(mesh))))
            found = &draft->marks[i];
        if (!first) first = &draft->marks[i];
    }
    if (!found) found = first;
    if (!found || !strncmp(message, draft->name, strlen(draft->name)) || *message == '\'')
        return status;
    wefti_job_where(draft, found, where);
    return wefti_prefix(status, "%sparallel", where);
}

static bool given(const wefti_job_draft *draft, const char *path) {
    return wefti_job_mark_of(draft, path)->given;
}

/* ---- keys that are not set ---- */

static bool is_joint(const wefti_job_draft *draft) {
    const weft_job_parallel *p = &draft->job.parallel;
    return p->mode == WEFT_JOB_MODE_AUTO && p->search == WEFT_SEARCH_JOINT && !*p->plan;
}

/* The microbatches of a step, from up to three keys, which must agree. One stage accumulates them;
 * several stages have them in flight. */
static weft_status join_microbatches(wefti_job_draft *draft) {
    weft_job_pipeline *pipeline = &draft->job.parallel.pipeline;
    bool stages = pipeline->stages > 1,
         interleaved = pipeline->schedule == WEFT_PIPELINE_INTERLEAVED;
    const char *const paths[] = {"train.accumulate", "parallel.accumulate",
                                 stages ? "parallel.pipeline.microbatches" : NULL};
    int64_t *const numbers[] = {&draft->job.train.accumulate, &draft->job.parallel.accumulate,
                                &pipeline->microbatches};
    int64_t number = !stages ? 1 : interleaved ? 2 * pipeline->stages : pipeline->stages;
    const char *said = NULL;
    char where[512];
    for (int i = 0; i < 3 && paths[i]; i++) {
        const wefti_job_mark *mark = wefti_job_mark_of(draft, paths[i]);
        if (!mark->given) continue;
        WEFT_REQUIRE(
            !said || *numbers[i] == number, WEFT_E_ARG,
            "%s%s is %lld and %s %lld; they are the same number, of microbatches in a step",
            wefti_job_where(draft, mark, where), paths[i], (long long)*numbers[i], said,
            (long long)number);
        said = paths[i];
        number = *numbers[i];
    }
    if (!stages && !given(draft, "parallel.pipeline.microbatches")) pipeline->microbatches = 1;
    for (int i = 0; i < 3 && paths[i]; i++) *numbers[i] = number;
    return WEFT_OK;
}

/* Devices of one stage by its sizes. If there are too many, returns the limit plus one. */
static int64_t mesh_devices(const weft_job_pairs *mesh) {
    int64_t size = 1;
    for (int64_t i = 0; i < mesh->count && size <= WEFTI_DEVICES_MAX; i++)
        size *= strtoll(mesh->items[i].value, NULL, 10);
    return size <= WEFTI_DEVICES_MAX ? size : WEFTI_DEVICES_MAX + 1;
}

/* "dp=3 tp=2" into a size for each axis of the mesh. Axes that it does not name get 1. */
static weft_status read_mesh(const weft_job_parallel *p, const weft_job_pair *pair,
                             int sizes[WEFTI_MAX_AXES]) {
    static const char key[] = "parallel.pipeline.meshes";
    char name[64];
    int axes = p->mesh.count < WEFTI_MAX_AXES ? (int)p->mesh.count : WEFTI_MAX_AXES;
    const char *names[WEFTI_MAX_AXES] = {"dp"}; /* of the mesh that names none */
    for (int a = 0; a < axes; a++) names[a] = p->mesh.items[a].key;
    if (!axes) axes = 1;
    int size, used;
    for (int a = 0; a < WEFTI_MAX_AXES; a++) sizes[a] = 1;
    for (const char *at = pair->value; *at; at += strspn(at, " ")) {
        used = 0;
        bool good = sscanf(at, "%63[^= ]=%9d%n", name, &size, &used) == 2 && used > 0 && size > 0 &&
                    strchr(" ", at[used]);
        WEFT_REQUIRE(good, WEFT_E_ARG, "%s: %s: '%s' must be axes with sizes, as dp=2 tp=1",
                     pair->where, key, pair->value);
        int axis = 0;
        while (axis < axes && strcmp(names[axis], name) != 0) axis++;
        WEFT_REQUIRE(axis < axes, WEFT_E_ARG, "%s: %s: parallel.mesh has no axis '%s'%s",
                     pair->where, key, name,
                     p->mesh.count ? "" : ", dp alone; name its axes there");
        sizes[axis] = size;
        at += used;
    }
    return WEFT_OK;
}

/* All devices of the job's machine; 0: it has as many as a job needs. */
static weft_status devices_of_machine(const wefti_job_draft *draft, int64_t *out) {
    wefti_machine_model *m;
    weft_status status = wefti_model_find(draft->job.machine, &m);
    if (status < 0) {
        char where[512];
        wefti_job_where(draft, wefti_job_mark_of(draft, "machine"), where);
        return wefti_prefix(status, "%smachine", where);
    }
    *out = (int64_t)m->hosts * wefti_model_per_host(m);
    wefti_model_destroy(m);
    return WEFT_OK;
}

static weft_status count_devices(wefti_job_draft *draft) {
    weft_job_parallel *p = &draft->job.parallel;
    if (given(draft, "parallel.devices")) return WEFT_OK;
    if (is_joint(draft) && *draft->job.machine && !p->mesh.count) {
        WEFT_TRY(devices_of_machine(draft, &p->devices));
        if (p->devices) return WEFT_OK;
    }
    p->devices = mesh_devices(&p->mesh) * p->pipeline.stages;
    if (p->pipeline.meshes.count) p->devices = 0;
    for (int64_t s = 0; s < p->pipeline.meshes.count; s++) {
        int sizes[WEFTI_MAX_AXES];
        int64_t devices = 1;
        WEFT_TRY(read_mesh(p, &p->pipeline.meshes.items[s], sizes));
        for (int a = 0; a < WEFTI_MAX_AXES && devices <= WEFTI_DEVICES_MAX; a++)
            devices *= sizes[a];
        p->devices += devices;
    }
    WEFT_REQUIRE(p->devices <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                 "parallel.mesh and parallel.pipeline.stages make more than %d devices",
                 WEFTI_DEVICES_MAX);
    return WEFT_OK;
}

/* In a world of another size the axis dp has as many parts as the devices are. */
static weft_status follow_devices(wefti_job_draft *draft) {
    const weft_job_parallel *p = &draft->job.parallel;
    weft_job_pair *dp = NULL;
    int64_t others = p->pipeline.stages;
    char size[32];
    if (!draft->devices || !p->mesh.count || p->pipeline.meshes.count) return WEFT_OK;
    for (int64_t i = 0; i < p->mesh.count; i++) {
        const weft_job_pair *axis = &p->mesh.items[i];
        if (!strcmp(axis->key, "dp"))
            dp = (weft_job_pair *)(uintptr_t)axis; /* it lies in the draft's arena */
        else
            others *= strtoll(axis->value, NULL, 10);
    }
    if (!dp || others <= 0 || others > WEFTI_DEVICES_MAX) return WEFT_OK; /* the plan is checked */
    WEFT_REQUIRE(draft->devices % others == 0, WEFT_E_ARG,
                 "%s: parallel.mesh: %lld devices are no multiple of %lld, the product of the "
                 "stages and of all axes but dp",
                 dp->where, (long long)draft->devices, (long long)others);
    (void)snprintf(size, sizeof size, "%lld", (long long)(draft->devices / others));
    dp->value = wefti_arena_strdup(draft->arena, size);
    WEFT_REQUIRE(dp->value, WEFT_E_NOMEM, "no memory for a job");
    return WEFT_OK;
}

static weft_status fill(wefti_job_draft *draft) {
    weft_job_pipeline *pipeline = &draft->job.parallel.pipeline;
    bool interleaved = pipeline->schedule == WEFT_PIPELINE_INTERLEAVED;
    if (!given(draft, "parallel.pipeline.virtual_stages"))
        pipeline->virtual_stages = interleaved && pipeline->stages > 1 ? 2 : 1;
    WEFT_TRY(join_microbatches(draft));
    WEFT_TRY(follow_devices(draft));
    return count_devices(draft);
}

/* ---- constraints of the joint search ---- */

static void add_number(const wefti_job_draft *draft, const char *key, const char *name,
                       int64_t value, wefti_text *out) {
    if (given(draft, key)) wefti_text_add(out, " %s=%lld", name, (long long)value);
}

static weft_status add_mesh(const wefti_job_draft *draft, wefti_text *out) {
    static const char *const axes[] = {"dp", "ep", "cp", "tp"};
    const weft_job_pairs *mesh = &draft->job.parallel.mesh;
    for (int64_t i = 0; i < mesh->count; i++) {
        bool known = false;
        for (int a = 0; a < 4; a++) known |= !strcmp(mesh->items[i].key, axes[a]);
        WEFT_REQUIRE(known, WEFT_E_ARG,
                     "%s: parallel.mesh: the joint search knows the axes dp, ep, cp and tp, not "
                     "'%s'; use another search, or mode semi",
                     mesh->items[i].where, mesh->items[i].key);
    }
    for (int a = 0; a < 4 && mesh->count; a++) {
        const char *size = "1";
        for (int64_t i = 0; i < mesh->count; i++)
            if (!strcmp(mesh->items[i].key, axes[a])) size = mesh->items[i].value;
        wefti_text_add(out, " %s=%s", axes[a], size);
    }
    return WEFT_OK;
}

/* Keys of the section that the job sets, as constraints. */
static weft_status fill_constraints(wefti_job_draft *draft) {
    weft_job_parallel *p = &draft->job.parallel;
    wefti_text text = {0};
    if (!is_joint(draft)) return WEFT_OK;
    wefti_text_add(&text, "%s", p->fix);
    weft_status status = add_mesh(draft, &text);
    add_number(draft, "parallel.pipeline.stages", "pp", p->pipeline.stages, &text);
    add_number(draft, "parallel.pipeline.virtual_stages", "chunks", p->pipeline.virtual_stages,
               &text);
    add_number(draft, "parallel.pipeline.microbatches", "microbatches", p->pipeline.microbatches,
               &text);
    add_number(draft, "train.accumulate", "microbatches", draft->job.train.accumulate, &text);
    add_number(draft, "parallel.accumulate", "microbatches", p->accumulate, &text);
    add_number(draft, "parallel.optimizer.level", "level", p->optimizer.level, &text);
    add_number(draft, "parallel.optimizer.shard_size", "shard", p->optimizer.shard_size, &text);
    if (given(draft, "parallel.pipeline.schedule"))
        wefti_text_add(&text, " schedule=%s", schedule_names[p->pipeline.schedule]);
    if (given(draft, "parallel.recompute.mode"))
        wefti_text_add(&text, " recompute=%s", recompute_names[p->recompute.mode]);
    char *taken = wefti_text_take(&text);
    if (status >= 0 && taken) p->constraints = wefti_arena_strdup(draft->arena, taken);
    if (status >= 0 && (!taken || !p->constraints))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a job");
    wefti_free(taken);
    WEFT_TRY(status);
    wefti_joint_fix fix = wefti_joint_free();
    return at_key(draft, "parallel.fix", wefti_joint_fix_add(p->constraints, &fix));
}

/* A machine or a key of the joint search, and nothing about the split but the number of devices:
 * the split is searched for. */
void wefti_job_choose_mode(wefti_job_draft *draft) {
    static const char section[] = "parallel.";
    static const char *const asks[] = {"fix", "evaluations", "search_seconds"};
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    bool asked = *draft->job.machine != '\0';
    for (int i = 0; i < rows; i++) {
        const char *name = table[i].path + sizeof section - 1;
        if (!draft->marks[i].given || strncmp(table[i].path, section, sizeof section - 1) != 0)
            continue;
        bool is_question = false;
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++)
            is_question |= !strcmp(name, asks[k]);
        asked |= is_question;
        if (!is_question && strcmp(name, "devices") != 0 && strcmp(name, "links") != 0) return;
    }
    if (asked) draft->job.parallel.mode = WEFT_JOB_MODE_AUTO;
}

/* ---- the plan ---- */

static weft_status build_mesh(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_parallel *p = &draft->job.parallel;
    for (int64_t i = 0; i < p->mesh.count; i++) {
        const weft_job_pair *axis = &p->mesh.items[i];
        int size = (int)strtol(axis->value, NULL, 10);
        WEFT_TRY(at_pair(axis, "parallel.mesh", weft_plan_axis(plan, axis->key, size)));
    }
    return WEFT_OK;
}

static weft_status build_pipeline(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_parallel *p = &draft->job.parallel;
    const weft_job_pipeline *l = &p->pipeline;
    WEFT_TRY(at_key(draft, "parallel.pipeline.stages",
                    weft_plan_pipeline(plan, (int)l->stages, (int)l->microbatches, l->schedule,
                                       (int)l->virtual_stages)));
    for (int64_t i = 0; i < l->stage_of.count; i++) {
        const weft_job_pair *rule = &l->stage_of.items[i];
        int stage = (int)strtol(rule->value, NULL, 10);
        WEFT_TRY(at_pair(rule, "parallel", weft_plan_stage(plan, rule->key, stage)));
    }
    for (int64_t s = 0; s < l->meshes.count; s++) {
        int sizes[WEFTI_MAX_AXES];
        WEFT_TRY(read_mesh(p, &l->meshes.items[s], sizes));
        WEFT_TRY(at_pair(&l->meshes.items[s], "parallel",
                         weft_plan_stage_mesh(plan, (int)s, plan->mesh.axes, sizes)));
    }
    char where[512];
    WEFT_REQUIRE(
        !l->meshes.count || l->meshes.count == l->stages, WEFT_E_ARG,
        "%sparallel.pipeline.meshes has %lld meshes; each of the %lld stages needs one",
        wefti_job_where(draft, wefti_job_mark_of(draft, "parallel.pipeline.meshes"), where),
        (long long)l->meshes.count, (long long)l->stages);
    return WEFT_OK;
}

static weft_status build_strategies(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_parallel *p = &draft->job.parallel;
    for (int64_t i = 0; i < p->strategies.count; i++) {
        const weft_job_pair *s = &p->strategies.items[i];
        WEFT_TRY(at_pair(s, "parallel", wefti_plan_split(plan, s->key, s->value, s->where)));
    }
    for (int64_t i = 0; i < p->tensors.count; i++) {
        const weft_job_pair *t = &p->tensors.items[i];
        WEFT_TRY(at_pair(t, "parallel", wefti_plan_split_tensor(plan, t->key, t->value, t->where)));
    }
    for (int64_t i = 0; i < p->dataset.inputs.count; i++) {
        const weft_job_pair *t = &p->dataset.inputs.items[i];
        WEFT_TRY(at_pair(t, "parallel.dataset",
                         wefti_plan_split_tensor(plan, t->key, t->value, t->where)));
    }
    return WEFT_OK;
}

/* The config is "" or digits, or "[20, 35]". */
static weft_status build_fusion(const wefti_job_draft *draft, weft_plan *plan,
                                const char *collective, const weft_job_fusion *fusion) {
    char key[64], where[512];
    const char *config = fusion->config;
    int *index = NULL, count = 0;
    bool list = *config == '[', takes_list = fusion->mode == WEFT_FUSION_INDEX;
    bool takes_bytes = fusion->mode == WEFT_FUSION_SIZE;
    snprintf(key, sizeof key, "parallel.fusion.%s.config", collective);
    const wefti_job_mark *mark = wefti_job_mark_of(draft, key);
    WEFT_REQUIRE(!*config || (list ? takes_list : takes_bytes), WEFT_E_ARG,
                 "%s%s is %s; bytes are for mode size and a list for mode index",
                 wefti_job_where(draft, mark, where), key, config);
    if (list) {
        WEFT_NEW_ARRAY(index, int, strlen(config));
        char *end;
        for (const char *at = config + 1; *at && *at != ']'; at = end + strspn(end, ", "))
            index[count++] = (int)strtol(at, &end, 10);
    }
    int64_t bytes = list ? 0 : strtoll(config, NULL, 10);
    weft_status status = weft_plan_fusion(plan, collective, fusion->mode, bytes, count, index);
    wefti_free(index);
    snprintf(key, sizeof key, "parallel.fusion.%s.mode", collective);
    return at_key(draft, key, status);
}

/* A value is the words of `what` and of a tier, and the size of a cache: "optimizer disk 1GiB". */
static weft_status build_offload(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_pairs *rules = &draft->job.memory.offload;
    for (int64_t i = 0; i < rules->count && !wefti_job_offloads_auto(&draft->job); i++) {
        const weft_job_pair *rule = &rules->items[i];
        const size_t bytes = strcspn(rule->value, " ");
        const char *tier = rule->value + bytes + 1;
        const size_t end = strcspn(tier, " ");
        int64_t kept = 0;
        double percent;
        int what = 0, to = 0;
        while (what < WEFT_OFFLOADS &&
               (strncmp(wefti_offload_words[what], rule->value, bytes) != 0 ||
                wefti_offload_words[what][bytes]))
            what++;
        while (to < WEFT_TIERS &&
               (strncmp(wefti_tier_words[to], tier, end) != 0 || wefti_tier_words[to][end]))
            to++;
        WEFT_TRY(at_pair(rule, "memory",
                         weft_plan_offload(plan, rule->key, (weft_offload)what, (weft_tier)to)));
        const char *cache = tier[end] ? tier + end + 1 : "0";
        const bool is_part = wefti_job_read_percent(cache, &percent);
        if (!is_part) (void)wefti_job_read_bytes(cache, &kept);
        WEFT_TRY(at_pair(rule, "memory",
                         is_part
                             ? weft_plan_cache_percent(plan, rule->key, (weft_offload)what, percent)
                             : weft_plan_cache(plan, rule->key, (weft_offload)what, kept)));
    }
    return WEFT_OK;
}

static weft_status build_place(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_pairs *rules = &draft->job.parallel.place;
    for (int64_t i = 0; i < rules->count; i++)
        WEFT_TRY(at_pair(&rules->items[i], "parallel",
                         weft_op_place(plan, rules->items[i].key, rules->items[i].value)));
    return WEFT_OK;
}

static weft_status build_server(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_pairs *rules = &draft->job.parallel.server;
    for (int64_t i = 0; i < rules->count; i++)
        WEFT_TRY(
            at_pair(&rules->items[i], "parallel", weft_plan_server(plan, rules->items[i].key)));
    return WEFT_OK;
}

static weft_status build_rest(const wefti_job_draft *draft, weft_plan *plan) {
    const weft_job_parallel *p = &draft->job.parallel;
    const weft_job_recompute *r = &p->recompute;
    const bool searched = p->mode == WEFT_JOB_MODE_AUTO; /* a searched plan has mode semi */
    WEFT_TRY(weft_plan_mode(plan, searched ? WEFT_PARALLEL_SEMI : (weft_parallel_mode)p->mode));
    WEFT_TRY(at_key(draft, "parallel.optimizer.shard_size",
                    weft_plan_optimizer(plan, (int)p->optimizer.level, p->optimizer.threshold,
                                        (int)p->optimizer.shard_size)));
    WEFT_TRY(weft_plan_accumulate(plan, p->pipeline.stages > 1 ? 1 : (int)p->accumulate));
    WEFT_TRY(weft_plan_copies(plan, (int)p->copies));
    WEFT_TRY(weft_plan_recompute(plan, r->mode, NULL, r->communication));
    for (int64_t i = 0; i < r->cells.count; i++)
        WEFT_TRY(
            at_pair(&r->cells.items[i], "parallel",
                    weft_plan_recompute(plan, r->mode, r->cells.items[i].key, r->communication)));
    WEFT_TRY(build_offload(draft, plan));
    WEFT_TRY(build_place(draft, plan));
    WEFT_TRY(build_server(draft, plan));
    WEFT_TRY(weft_plan_master(plan, draft->job.train.master));
    WEFT_TRY(weft_plan_gradients_sum(plan, p->gradients == WEFT_GRADIENTS_SUM));
    WEFT_TRY(build_fusion(draft, plan, "allreduce", &p->fusion.allreduce));
    WEFT_TRY(build_fusion(draft, plan, "allgather", &p->fusion.allgather));
    WEFT_TRY(build_fusion(draft, plan, "reducescatter", &p->fusion.reducescatter));
    WEFT_TRY(weft_plan_dataset(plan, p->dataset.kind));
    if (p->dataset.cuts && *p->dataset.cuts)
        WEFT_TRY(at_key(draft, "parallel.dataset", weft_plan_dataset_cuts(plan, p->dataset.cuts)));
    return weft_plan_overlap(plan, p->overlap);
}

static weft_status build_links(const wefti_job_draft *draft, weft_plan *plan) {
    const char *links = draft->job.parallel.links, *machine = draft->job.machine;
    char where[512];
    if (*machine) {
        weft_status found = wefti_plan_machine(plan, machine);
        wefti_job_where(draft, wefti_job_mark_of(draft, "machine"), where);
        if (found < 0) return wefti_prefix(found, "%smachine", where);
    }
    if (!*links) return WEFT_OK;
    weft_status status = weft_plan_links(plan, links);
    if (status >= 0) return WEFT_OK;
    wefti_job_where(draft, wefti_job_mark_of(draft, "parallel.links"), where);
    return wefti_prefix(status, "%sparallel.links", where);
}

static weft_status build(const wefti_job_draft *draft, weft_plan *plan) {
    WEFT_TRY(build_links(draft, plan));
    WEFT_TRY(build_mesh(draft, plan));
    WEFT_TRY(build_pipeline(draft, plan));
    WEFT_TRY(build_rest(draft, plan));
    WEFT_TRY(build_strategies(draft, plan));
    const bool searched = draft->job.parallel.mode == WEFT_JOB_MODE_AUTO;
    return at_section(draft, searched ? wefti_plan_check_settings(plan) : wefti_plan_check(plan));
}

/* Whether the plan says no more than the plan of one device that says nothing. */
static weft_status is_trivial(const weft_plan *plan, bool *out) {
    weft_plan *none;
    char *differences;
    *out = false;
    if (plan->devices != 1) return WEFT_OK;
    WEFT_TRY(weft_plan_create(1, &none));
    none->accumulate = plan->accumulate;
    none->links = plan->links;
    none->rates = plan->rates;
    weft_status status = weft_plan_diff(plan, none, &differences);
    weft_plan_destroy(none);
    WEFT_TRY(status);
    *out = !*differences;
    wefti_free(differences);
    return WEFT_OK;
}

static weft_status plan_of_section(wefti_job_draft *draft, weft_plan **out) {
    weft_plan *plan;
    bool trivial = false;
    WEFT_TRY(fill(draft));
    WEFT_TRY(fill_constraints(draft));
    WEFT_TRY(weft_plan_create((int)draft->job.parallel.devices, &plan));
    weft_status status = build(draft, plan);
    if (status >= 0 && !is_joint(draft)) status = is_trivial(plan, &trivial);
    if (status < 0 || trivial) {
        weft_plan_destroy(plan);
        plan = NULL;
    }
    WEFT_TRY(status);
    *out = plan;
    return WEFT_OK;
}

/* parallel.plan: the file decides. The job's devices and microbatches must agree with it. */
static weft_status plan_of_file(wefti_job_draft *draft, weft_plan **out) {
    weft_job *job = &draft->job;
    weft_job_parallel *p = &job->parallel;
    const wefti_job_mark *devices = wefti_job_mark_of(draft, "parallel.devices");
    const wefti_job_mark *accumulate = wefti_job_mark_of(draft, "train.accumulate");
    weft_plan *plan;
    char where[512];
    weft_status status = weft_plan_load(p->plan, &plan);
    if (status < 0) {
        wefti_job_where(draft, wefti_job_mark_of(draft, "parallel.plan"), where);
        return wefti_prefix(status, "%sparallel.plan", where);
    }
    int microbatches = plan->pipeline.stages > 1 ? plan->pipeline.microbatches : plan->accumulate;
    status = wefti_plan_check(plan);
    if (status < 0)
        status = wefti_prefix(status, "%s", p->plan);
    else if (devices->given && p->devices != plan->devices)
        status = WEFT_RAISE(WEFT_E_ARG, "%sparallel.devices is %lld; the plan %s is for %d devices",
                            wefti_job_where(draft, devices, where), (long long)p->devices, p->plan,
                            plan->devices);
    else if (accumulate->given && job->train.accumulate != microbatches)
        status =
            WEFT_RAISE(WEFT_E_ARG, "%strain.accumulate is %lld; the plan %s has %d microbatches",
                       wefti_job_where(draft, accumulate, where), (long long)job->train.accumulate,
                       p->plan, microbatches);
    else
        status = build_links(draft, plan);
    if (status >= 0) status = build_offload(draft, plan);
    if (status >= 0 && given(draft, "train.master"))
        status = weft_plan_master(plan, job->train.master);
    if (status < 0) {
        weft_plan_destroy(plan);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    p->devices = plan->devices;
    p->accumulate = job->train.accumulate = microbatches;
    job->train.master = plan->optimizer.master;
    *out = plan;
    return WEFT_OK;
}

weft_status wefti_job_plan(wefti_job_draft *draft, weft_plan **out) {
    *out = NULL;
    draft->job.parallel.constraints = "";
    WEFT_TRY(*draft->job.parallel.plan ? plan_of_file(draft, out) : plan_of_section(draft, out));
    /* a search makes the mesh first */
    if (!*out || draft->job.parallel.mode == WEFT_JOB_MODE_AUTO) return WEFT_OK;
    weft_status status = wefti_plan_refine(*out);
    if (status == WEFT_E_ARG && *draft->job.parallel.plan)
        return wefti_prefix(status, "%s", draft->job.parallel.plan);
    return at_section(draft, status);
}
