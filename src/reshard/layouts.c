/* Which region of each tensor each rank holds. See layouts.h. */
#include "reshard/layouts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "plan/plan.h"

enum { LAYOUT_RANKS_MAX = 1 << 20, LAYOUT_NAME_BYTES = 4096 };
#define LAYOUT_FILE_BYTES ((int64_t)512 << 20)

void wefti_layouts_close(wefti_layouts *l) {
    if (!l) return;
    wefti_map_free(&l->names);
    wefti_map_free(&l->nodes);
    weft_plan_destroy(l->plan);
    wefti_free(l->strategies);
    wefti_free(l->matched);
    wefti_free(l->items);
    wefti_free(l->path);
    wefti_arena_destroy(l->arena);
    wefti_free(l);
}

weft_status wefti_layouts_create(const char *name, wefti_layouts **out) {
    wefti_layouts *l;
    WEFT_NEW(l, wefti_layouts);
    *l = (wefti_layouts){.stages = 1, .stage = -1};
    l->path = wefti_strdup(name);
    weft_status status = l->path ? wefti_arena_create(&l->arena)
                                 : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    if (status < 0) {
        wefti_layouts_close(l);
        return status;
    }
    *out = l;
    return WEFT_OK;
}

/* ---- placements ---- */

weft_status wefti_layouts_add(wefti_layouts *l, const wefti_placement *p) {
    int64_t first = l->count;
    WEFT_REQUIRE(*p->name && strlen(p->name) <= LAYOUT_NAME_BYTES, WEFT_E_CORRUPT,
                 "%s: a parameter has a name of %zu bytes", l->path, strlen(p->name));
    WEFT_TRY(WEFT_GROW(l->items, l->count, l->cap));
    wefti_placement *item = &l->items[l->count];
    *item = *p;
    item->next = -1;
    item->name = wefti_arena_strdup(l->arena, p->name);
    WEFT_REQUIRE(item->name, WEFT_E_NOMEM, "no memory for the name of a tensor");
    WEFT_TRY(wefti_map_add_text(&l->names, item->name, first, &first));
    l->count++;
    if (first == l->count - 1) return WEFT_OK;
    for (;;) {
        wefti_placement *same = &l->items[first];
        WEFT_REQUIRE(same->mesh.first != item->mesh.first, WEFT_E_CORRUPT,
                     "%s names the tensor %.200s twice", l->path, item->name);
        if (same->next < 0) break;
        first = same->next;
    }
    l->items[first].next = (int32_t)(l->count - 1);
    return WEFT_OK;
}

/* The name of a tensor in a plan. Files of some families put one word in front of all names
 * ("transformer.wte.weight"), which the plan's patterns do not have. */
static const char *name_in_plan(const weft_plan *plan, const char *name) {
    const char *dot = strchr(name, '.');
    if (!dot || wefti_plan_tensor(plan, name)) return name;
    return wefti_plan_tensor(plan, dot + 1) ? dot + 1 : name;
}

bool wefti_layouts_names(const wefti_layouts *l, const char *name) {
    return l->plan ? wefti_plan_tensor(l->plan, name_in_plan(l->plan, name)) != NULL
                   : wefti_map_find_text(&l->names, name) >= 0;
}

int64_t wefti_layouts_patterns(const wefti_layouts *l) {
    return l->plan ? l->plan->tensor_count : 0;
}

bool wefti_placement_has(const wefti_placement *p, int32_t rank) {
    return rank >= p->mesh.first && rank < p->mesh.first + wefti_mesh_size(&p->mesh);
}

int32_t wefti_placement_stage(const wefti_layouts *l, const wefti_placement *p) {
    return l->plan ? wefti_plan_stage_of_rank(l->plan, p->mesh.first)
                   : p->mesh.first / wefti_mesh_size(&p->mesh);
}

/* The number of a rank among those that hold the same region: the coordinates along the free axes,
 * the outermost first. */
static int32_t replica_of(const wefti_placement *p, int32_t rank) {
    int32_t at[WEFTI_MAX_AXES], number = 0;
    const wefti_axes taken = wefti_layout_split_axes(&p->layout);
    wefti_mesh_coordinates(&p->mesh, rank, at);
    for (int a = 0; a < p->mesh.axes; a++)
        if (!(taken >> a & 1u)) number = number * p->mesh.axis[a].size + at[a];
    return number;
}

void wefti_placement_region(const wefti_placement *p, const weft_desc *whole, int32_t rank,
                            wefti_region *out) {
    wefti_layout_region(&p->layout, &p->mesh, whole, rank, out);
    if (p->shard_size <= 1) return;
    const int32_t index =
        p->shard_all ? replica_of(p, rank) : (rank - p->mesh.first) / p->shard_step % p->shard_size;
    int64_t begin, size;
    wefti_part(out->size[0], 1, p->shard_size, index, &begin, &size);
    out->begin[0] += begin;
    out->size[0] = size;
}

void wefti_placement_parts(const wefti_placement *p, int rank, int64_t out[WEFT_MAX_RANK]) {
    for (int d = 0; d < rank; d++) out[d] = wefti_layout_parts(&p->layout, &p->mesh, d);
    if (p->shard_size > 1 && rank) out[0] *= p->shard_size;
}

weft_status wefti_placement_check(const wefti_layouts *l, const wefti_placement *p,
                                  const weft_desc *whole) {
    int64_t parts[WEFT_MAX_RANK];
    WEFT_REQUIRE(p->rank == whole->rank, WEFT_E_SHAPE,
                 "tensor %.200s is %s, but %s describes %d dimensions", p->name,
                 wefti_desc_text(whole).text, l->path, p->rank);
    for (int d = 0; d < whole->rank && p->shaped; d++)
        WEFT_REQUIRE(p->shape[d] == whole->shape[d], WEFT_E_SHAPE,
                     "tensor %.200s is %s, but %s gives dimension %d the size %lld", p->name,
                     wefti_desc_text(whole).text, l->path, d, (long long)p->shape[d]);
    if (l->plan || l->matched) return WEFT_OK;
    wefti_placement_parts(p, whole->rank, parts);
    for (int d = 0; d < whole->rank; d++)
        WEFT_REQUIRE(whole->shape[d] % parts[d] == 0, WEFT_E_SHAPE,
                     "tensor %.200s is %s, but %s cuts dimension %d into %lld equal parts", p->name,
                     wefti_desc_text(whole).text, l->path, d, (long long)parts[d]);
    return WEFT_OK;
}

/* ---- strategy files ---- */

/* Turns the device matrix into a mesh without axes of one device, and the map into a layout. */
weft_status wefti_strategy_add(wefti_layouts *l, const wefti_strategy_layout *x) {
    wefti_placement p = {.name = x->name, .rank = x->rank, .shard_size = 1, .shard_step = 1};
    int axis_of[64], used[64] = {0};
    int64_t ranks = 1;
    WEFT_REQUIRE(!x->manual, WEFT_E_NO_IMPL,
                 "%s: parameter %.200s is split into parts of stated sizes (indices_offset), which "
                 "weft does not support",
                 l->path, x->name);
    for (int a = 0; a < x->axes; a++) {
        WEFT_REQUIRE(x->matrix[a] >= 1 && x->matrix[a] <= LAYOUT_RANKS_MAX / ranks, WEFT_E_CORRUPT,
                     "%s: the device matrix of parameter %.200s has a size of %lld", l->path,
                     x->name, (long long)x->matrix[a]);
        ranks *= x->matrix[a];
        axis_of[a] = -1;
        if (x->matrix[a] == 1) continue;
        WEFT_REQUIRE(p.mesh.axes < WEFTI_MAX_AXES, WEFT_E_NO_IMPL,
                     "%s: the device matrix of parameter %.200s has more than %d axes", l->path,
                     x->name, WEFTI_MAX_AXES);
        wefti_axis *axis = &p.mesh.axis[p.mesh.axes];
        axis_of[a] = p.mesh.axes++;
        axis->size = (int32_t)x->matrix[a];
        (void)snprintf(axis->name, sizeof axis->name, "a%d", a);
    }
    if (!p.mesh.axes) {
        p.mesh.axes = 1;
        p.mesh.axis[0] = (wefti_axis){.name = "a", .size = 1};
    }
    p.layout = wefti_layout_replicated(x->rank);
    for (int d = 0; d < x->rank; d++) {
        if (x->map[d] == -1) continue;
        WEFT_REQUIRE(x->map[d] >= 0 && x->map[d] < x->axes, WEFT_E_CORRUPT,
                     "%s: dimension %d of parameter %.200s is split by axis %lld of %d", l->path, d,
                     x->name, (long long)x->map[d], x->axes);
        const int a = x->axes - 1 - (int)x->map[d];
        WEFT_REQUIRE(!used[a]++, WEFT_E_CORRUPT,
                     "%s: one axis splits two dimensions of parameter %.200s", l->path, x->name);
        if (axis_of[a] < 0) continue;
        p.layout.dim[d].count = 1;
        p.layout.dim[d].axis[0] = (int8_t)axis_of[a];
    }
    for (int d = 0; d < x->rank; d++) p.layout.dim[d].unit = 1;
    const int32_t replicas =
        (int32_t)ranks / wefti_mesh_product(&p.mesh, wefti_layout_split_axes(&p.layout));
    const int64_t size = x->size == -1 && x->step ? replicas : x->size;
    if (size > 1) {
        WEFT_REQUIRE(x->rank > 0 && size <= replicas && replicas % size == 0, WEFT_E_CORRUPT,
                     "%s: %lld ranks share parameter %.200s, which %d ranks hold", l->path,
                     (long long)size, x->name, replicas);
        p.shard_size = (int32_t)size;
        p.shard_all = size == replicas;
        WEFT_REQUIRE(p.shard_all || (x->step >= 1 && x->step < ranks && ranks % x->step == 0),
                     WEFT_E_CORRUPT,
                     "%s: parameter %.200s is shared by ranks at the distance %lld, but its stage "
                     "has %lld ranks",
                     l->path, x->name, (long long)x->step, (long long)ranks);
        p.shard_step = x->step >= 1 && x->step < ranks ? (int32_t)x->step : 1;
    }
    if (x->shape_rank == x->rank) {
        p.shaped = true;
        memcpy(p.shape, x->shape, sizeof p.shape);
    }
    return wefti_layouts_add(l, &p);
}

weft_status wefti_strategy_add_item(wefti_layouts *l, const char *name, int64_t stage, int inputs,
                                    const int32_t *ranks, const int64_t *cuts) {
    int64_t all = 0;
    WEFT_REQUIRE(stage >= 0 && stage < LAYOUT_RANKS_MAX, WEFT_E_CORRUPT,
                 "%s: node %.200s is in stage %lld", l->path, name, (long long)stage);
    WEFT_REQUIRE(strlen(name) <= LAYOUT_NAME_BYTES, WEFT_E_CORRUPT,
                 "%s: a node has a name of %zu bytes", l->path, strlen(name));
    /* of nodes with one name the first counts */
    if (wefti_map_find_text(&l->nodes, name) >= 0) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(l->strategies, l->strategy_count, l->strategy_cap));
    wefti_strategy_item item = {.stage = (int32_t)stage, .inputs = inputs};
    for (int i = 0; i < inputs; i++) all += ranks[i];
    item.name = wefti_arena_strdup(l->arena, name);
    item.ranks = wefti_arena_alloc(l->arena, (size_t)(inputs + 1) * sizeof *item.ranks);
    item.cuts = wefti_arena_alloc(l->arena, (size_t)(all + 1) * sizeof *item.cuts);
    WEFT_REQUIRE(item.name && item.ranks && item.cuts, WEFT_E_NOMEM, "no memory for a strategy");
    if (inputs) memcpy(item.ranks, ranks, (size_t)inputs * sizeof *ranks);
    if (all) memcpy(item.cuts, cuts, (size_t)all * sizeof *cuts);
    l->strategies[l->strategy_count] = item;
    return wefti_map_add_text(&l->nodes, item.name, l->strategy_count++, NULL);
}

/* The stage in front of a name of a merged file, "1-w"; -1: none. */
static int32_t stage_prefix(const char *name, const char **rest) {
    char *end;
    if (!isdigit((unsigned char)*name)) return -1;
    long stage = strtol(name, &end, 10);
    if (*end != '-' || !end[1] || stage < 0 || stage > LAYOUT_RANKS_MAX) return -1;
    *rest = end + 1;
    return (int32_t)stage;
}

static bool is_merged(const wefti_layouts *l) {
    const char *rest;
    for (int64_t i = 0; i < l->count; i++)
        if (stage_prefix(l->items[i].name, &rest) < 0) return false;
    return l->count > 0;
}

static weft_status place_stage(wefti_layouts *l, wefti_placement *p, int32_t stage) {
    int64_t first = (int64_t)stage * wefti_mesh_size(&p->mesh);
    WEFT_REQUIRE(first + wefti_mesh_size(&p->mesh) <= LAYOUT_RANKS_MAX, WEFT_E_CORRUPT,
                 "%s: parameter %.200s is in stage %d", l->path, p->name, stage);
    p->mesh.first = (int32_t)first;
    return WEFT_OK;
}

weft_status wefti_layouts_finish(wefti_layouts *l) {
    const bool merged = is_merged(l);
    wefti_placement *items = l->items;
    const int64_t count = l->count;
    WEFT_REQUIRE(count > 0, WEFT_E_CORRUPT, "%s describes no parameter", l->path);
    l->items = NULL;
    l->count = l->cap = 0;
    wefti_map_clear(&l->names);
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        wefti_placement p = items[i];
        int32_t stage = merged ? stage_prefix(p.name, &p.name) : l->stage > 0 ? l->stage : 0;
        status = place_stage(l, &p, stage);
        if (status >= 0) status = wefti_layouts_add(l, &p);
        const int32_t end = p.mesh.first + wefti_mesh_size(&p.mesh);
        if (end > l->ranks) l->ranks = end;
        if (stage + 1 > l->stages) l->stages = stage + 1;
        if (status >= 0 && wefti_mesh_size(&p.mesh) != wefti_mesh_size(&items[0].mesh))
            status = WEFT_RAISE(WEFT_E_CORRUPT,
                                "%s: parameter %.200s is for %d devices, and %.200s "
                                "for %d",
                                l->path, p.name, wefti_mesh_size(&p.mesh), items[0].name,
                                wefti_mesh_size(&items[0].mesh));
    }
    wefti_free(items);
    return status;
}

weft_status wefti_layouts_merge(wefti_layouts *to, const wefti_layouts *from) {
    for (int64_t i = 0; i < from->count; i++) {
        const wefti_placement *p = &from->items[i];
        for (int64_t k = wefti_map_find_text(&to->names, p->name); k >= 0; k = to->items[k].next)
            WEFT_REQUIRE(to->items[k].mesh.first != p->mesh.first, WEFT_E_CORRUPT,
                         "%s describes the parameter %.200s of stage %d, as another one of the "
                         "files does: are both of the same stage?",
                         from->path, p->name, wefti_placement_stage(from, p));
        WEFT_TRY(wefti_layouts_add(to, p));
    }
    for (int64_t i = 0; i < from->strategy_count; i++) {
        const wefti_strategy_item *x = &from->strategies[i];
        WEFT_TRY(wefti_strategy_add_item(to, x->name, x->stage, x->inputs, x->ranks, x->cuts));
    }
    if (from->ranks > to->ranks) to->ranks = from->ranks;
    if (from->stages > to->stages) to->stages = from->stages;
    return WEFT_OK;
}

static weft_status parse_into(wefti_layouts *l, const char *text, int64_t bytes) {
    int64_t at = 0;
    while (at < bytes && isspace((unsigned char)text[at])) at++;
    WEFT_REQUIRE(at < bytes, WEFT_E_CORRUPT, "%s is empty", l->path);
    WEFT_TRY(at < bytes && text[at] == '{' ? wefti_strategy_parse_json(l, text, bytes)
                                           : wefti_strategy_parse_protobuf(l, text, bytes));
    return wefti_layouts_finish(l);
}

weft_status wefti_layouts_parse(const char *name, const char *text, int64_t bytes,
                                wefti_layouts **out) {
    wefti_layouts *l;
    WEFT_TRY(wefti_layouts_create(name, &l));
    weft_status status = parse_into(l, text, bytes);
    if (status < 0) {
        wefti_layouts_close(l);
        return status;
    }
    *out = l;
    return WEFT_OK;
}

/* ---- plans ---- */

/* The stage of a tensor: that of the longest beginning of its name that is a call of a rule; -1:
 * no rule says it, and every stage has the tensor. */
static int32_t stage_of(const weft_plan *plan, const char *name) {
    char call[512];
    size_t length = strlen(name);
    const int32_t stages = plan->pipeline.stages;
    if (stages == 1) return 0;
    if (length >= sizeof call) return -1;
    memcpy(call, name, length + 1);
    for (;;) {
        int32_t stage = wefti_plan_stage(plan, call);
        /* the second virtual stages of zero_bubble go back up */
        if (stage >= 0 && plan->pipeline.schedule == WEFT_PIPELINE_ZERO_BUBBLE && stage >= stages)
            return 2 * stages - 1 - stage;
        if (stage >= 0) return stage % stages;
        char *dot = strrchr(call, '.');
        if (!dot) return -1;
        *dot = '\0';
    }
}

bool wefti_layouts_may_have(const wefti_layouts *l, const char *name, int32_t rank) {
    if (l->plan) {
        const int32_t stage = stage_of(l->plan, name_in_plan(l->plan, name));
        return stage < 0 || wefti_plan_stage_of_rank(l->plan, rank) == stage;
    }
    const int64_t first = wefti_map_find_text(&l->names, name);
    for (int64_t i = first; i >= 0; i = l->items[i].next)
        if (wefti_placement_has(&l->items[i], rank)) return true;
    return first < 0; /* whole on every rank */
}

/* Files may merge the last dimensions of a model's tensor into one (queries, keys and values of
 * attention). If an axis splits one of these, a rank's part is no region of the file's tensor: the
 * merged dimension stays whole. */
void wefti_placement_merge(wefti_layout *layout, int rank) {
    bool split = false;
    if (rank < 1 || layout->rank <= rank) return;
    for (int d = rank - 1; d < layout->rank; d++) split = split || layout->dim[d].count;
    layout->rank = (int8_t)rank;
    if (split) layout->dim[rank - 1] = (wefti_dim_split){.unit = 1};
}

static weft_status place_by_plan(const wefti_layouts *l, const char *name, const char *of,
                                 const weft_desc *whole, int32_t stage, wefti_placement *out) {
    const weft_plan *plan = l->plan;
    const char *parameter = name_in_plan(plan, of ? of : name);
    const wefti_tensor_strategy *t = wefti_plan_tensor(plan, parameter);
    *out = (wefti_placement){.name = name, .rank = whole->rank, .next = -1};
    out->mesh = wefti_plan_mesh(plan, stage);
    out->layout = wefti_layout_replicated(whole->rank);
    out->shard_size = out->shard_step = 1;
    if (t) {
        weft_status status = wefti_layout_parse(t->layout, &out->mesh, &out->layout);
        if (status >= 0) wefti_placement_merge(&out->layout, whole->rank);
        if (status >= 0) status = wefti_layout_check(&out->layout, &out->mesh, whole);
        if (status < 0) return wefti_prefix(status, "%s: tensor %.200s", l->path, name);
        wefti_layout_normal(&out->layout, &out->mesh, whole);
    }
    if (of || wefti_plan_divides(plan, parameter))
        out->layout = wefti_plan_state_layout(plan, &out->mesh, whole, &out->layout);
    return WEFT_OK;
}

static weft_status find_by_plan(const wefti_layouts *l, const char *name, const char *of,
                                const weft_desc *whole, wefti_placement **out, int32_t *out_count) {
    const int32_t stages = l->plan->pipeline.stages;
    const int32_t stage = stage_of(l->plan, name_in_plan(l->plan, of ? of : name));
    const int32_t first = stage < 0 ? 0 : stage, end = stage < 0 ? stages : stage + 1;
    wefti_placement *found;
    WEFT_NEW_ARRAY(found, wefti_placement, end - first);
    weft_status status = WEFT_OK;
    for (int32_t s = first; s < end && status >= 0; s++)
        status = place_by_plan(l, name, of, whole, s, &found[s - first]);
    if (status < 0) {
        wefti_free(found);
        return status;
    }
    *out = found;
    *out_count = end - first;
    return WEFT_OK;
}

weft_status wefti_layouts_find(const wefti_layouts *l, const char *name, const char *of,
                               const weft_desc *whole, wefti_placement **out, int32_t *out_count) {
    int32_t count = 0;
    *out = NULL;
    *out_count = 0;
    if (l->plan) return find_by_plan(l, name, of, whole, out, out_count);
    if (l->matched) return wefti_layouts_find_by_rules(l, name, of, whole, out, out_count);
    int64_t first = wefti_map_find_text(&l->names, name);
    if (first < 0 && of) first = wefti_map_find_text(&l->names, of);
    for (int64_t i = first; i >= 0; i = l->items[i].next) count++;
    if (!count) return WEFT_OK;
    WEFT_NEW_ARRAY(*out, wefti_placement, count);
    for (int64_t i = first; i >= 0; i = l->items[i].next) (*out)[(*out_count)++] = l->items[i];
    return WEFT_OK;
}

/* ---- files ---- */

static weft_status open_plan(wefti_layouts *l, const char *text, int64_t bytes) {
    WEFT_TRY(wefti_plan_parse(l->path, text, bytes, &l->plan));
    WEFT_TRY(wefti_plan_check(l->plan));
    WEFT_TRY(wefti_plan_refine(l->plan));
    l->ranks = l->plan->devices;
    l->stages = l->plan->pipeline.stages;
    WEFT_REQUIRE(l->plan->tensor_count || l->ranks == 1 || l->plan->mode == WEFT_PARALLEL_DATA ||
                     l->plan->mode == WEFT_PARALLEL_MANUAL,
                 WEFT_E_ARG,
                 "%s is not complete: it has no layouts of tensors. `weft plan JOB --out` writes "
                 "the completed plan",
                 l->path);
    return WEFT_OK;
}

static weft_status open_file(const char *path, wefti_layouts **out) {
    char *text = NULL;
    int64_t bytes = 0;
    WEFT_TRY(wefti_file_read(path, LAYOUT_FILE_BYTES, &text, &bytes));
    weft_status status = WEFT_OK;
    if (memmem(text, (size_t)bytes, "\"weft_plan\"", 11) && *text == '{') {
        wefti_layouts *l = NULL;
        status = wefti_layouts_create(path, &l);
        if (status >= 0) status = open_plan(l, text, bytes);
        if (status < 0)
            wefti_layouts_close(l);
        else
            *out = l;
    } else {
        status = wefti_layouts_parse(path, text, bytes, out);
    }
    wefti_free(text);
    return status;
}

static weft_status merge_file(wefti_layouts *to, const char *dir, const char *name) {
    char *path = wefti_format("%s/%s", dir, name);
    wefti_layouts *one = NULL;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = open_file(path, &one);
    if (status >= 0 && one->plan)
        status = WEFT_RAISE(WEFT_E_ARG, "%s is a plan; a folder holds the strategy files of stages",
                            path);
    if (status >= 0) status = wefti_layouts_merge(to, one);
    wefti_layouts_close(one);
    wefti_free(path);
    return status;
}

static weft_status open_folder(const char *path, wefti_layouts **out) {
    char **names = NULL;
    int64_t count = 0;
    wefti_layouts *l;
    WEFT_TRY(wefti_layouts_create(path, &l));
    weft_status status = wefti_dir_list(path, &names, &count);
    for (int64_t i = 0; i < count && status >= 0; i++)
        if (*names[i] != '.') status = merge_file(l, path, names[i]);
    wefti_free(names);
    if (status >= 0 && !l->count)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%s holds no strategy file", path);
    if (status < 0) {
        wefti_layouts_close(l);
        return status;
    }
    *out = l;
    return WEFT_OK;
}

weft_status wefti_layouts_open(const char *path, wefti_layouts **out) {
    if (strchr(path, '=') && wefti_is_missing(path)) return wefti_layouts_parse_rules(path, out);
    return wefti_is_dir(path) ? open_folder(path, out) : open_file(path, out);
}
