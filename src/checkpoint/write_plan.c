/* The files of a step and their order. See write_plan.h. */
#include "checkpoint/write_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "checkpoint/tensor_set.h"
#include "tensor/tensor.h"

void wefti_write_plan_destroy(wefti_write_plan *plan) {
    if (!plan) return;
    wefti_arena_destroy(plan->manifest.arena);
    *plan = (wefti_write_plan){0};
}

static weft_status arena_array(wefti_write_plan *plan, int64_t count, size_t element, void **out) {
    *out = wefti_arena_alloc(plan->manifest.arena, (size_t)count * element);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to plan a checkpoint of %lld tensors",
                 (long long)count);
    return WEFT_OK;
}
#define PLAN_ARRAY(plan, out, count) arena_array((plan), (count), sizeof *(out), (void **)&(out))

static weft_status keep(wefti_write_plan *plan, const char *text, const char **out) {
    *out = wefti_arena_strdup(plan->manifest.arena, text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to plan a checkpoint");
    return WEFT_OK;
}

static weft_status copy_tensor(wefti_write_plan *plan, const wefti_checkpoint_tensor *from,
                               bool alone, wefti_manifest_tensor *to) {
    WEFT_REQUIRE(from->name && (unsigned)from->role < WEFTI_CHECKPOINT_ROLES, WEFT_E_ARG,
                 "a tensor without a name, or of the unknown role %d", (int)from->role);
    weft_status status = wefti_desc_check(&from->desc);
    if (status < 0) return wefti_prefix(status, "tensor %s", from->name);
    bool is_there = from->data || from->pieces || from->later;
    WEFT_REQUIRE(is_there || !alone || weft_desc_bytes(&from->desc) == 0, WEFT_E_ARG,
                 "tensor %s has no data", from->name);
    to->desc = from->desc;
    to->role = from->role;
    WEFT_TRY(keep(plan, from->name, &to->name));
    const char *layout = from->layout ? from->layout : "replicated";
    WEFT_REQUIRE(wefti_utf8_valid(layout), WEFT_E_ARG, "the layout of %s is not UTF-8", from->name);
    return keep(plan, layout, &to->layout);
}

/* Checks that the pieces' regions cover the tensor: each lies inside, no two overlap, and together
 * they have as many elements. If other processes have pieces too, the elements are not counted. */
static weft_status check_pieces(const wefti_checkpoint_tensor *t, bool alone) {
    const weft_desc *whole = &t->whole;
    wefti_region all = {{0}, {0}}, both;
    int64_t elems = 0;
    WEFT_REQUIRE(whole->dtype == t->desc.dtype && t->first >= 0 &&
                     t->first + weft_desc_elems(&t->desc) <= weft_desc_elems(whole),
                 WEFT_E_ARG, "tensor %s is %s, from element %lld on of pieces of %s", t->name,
                 wefti_desc_text(&t->desc).text, (long long)t->first, wefti_desc_text(whole).text);
    for (int d = 0; d < whole->rank; d++) all.size[d] = whole->shape[d];
    for (int64_t i = 0; i < t->piece_count; i++) {
        const wefti_region *box = &t->pieces[i].box;
        int64_t here = wefti_region_elems(box, whole->rank);
        bool inside = here == 0 || wefti_region_intersect(box, &all, whole->rank, &both);
        WEFT_REQUIRE(inside && (here == 0 || wefti_region_elems(&both, whole->rank) == here),
                     WEFT_E_ARG, "piece %lld of %s is not inside of it", (long long)i, t->name);
        for (int64_t j = 0; j < i && here; j++)
            WEFT_REQUIRE(!wefti_region_intersect(box, &t->pieces[j].box, whole->rank, &both),
                         WEFT_E_ARG, "pieces %lld and %lld of %s overlap", (long long)j,
                         (long long)i, t->name);
        elems += here;
    }
    WEFT_REQUIRE(elems == weft_desc_elems(whole) || !alone, WEFT_E_ARG,
                 "the pieces of %s have %lld elements of %lld", t->name, (long long)elems,
                 (long long)weft_desc_elems(whole));
    return WEFT_OK;
}

/* The part lies inside of the only piece, and has the tensor's elements. */
static weft_status check_part(const wefti_checkpoint_tensor *t) {
    wefti_region both;
    const int64_t elems = wefti_region_elems(t->part, t->whole.rank);
    const bool inside = t->piece_count == 1 &&
                        wefti_region_intersect(t->part, &t->pieces[0].box, t->whole.rank, &both) &&
                        wefti_region_elems(&both, t->whole.rank) == elems;
    WEFT_REQUIRE(inside && t->whole.dtype == t->desc.dtype && elems == weft_desc_elems(&t->desc),
                 WEFT_E_ARG, "the part of %s is not in its piece, or has not the elements of %s",
                 t->name, wefti_desc_text(&t->desc).text);
    return WEFT_OK;
}

static weft_status copy_source(wefti_write_plan *plan, const wefti_checkpoint_tensor *from,
                               bool alone, wefti_write_source *to) {
    *to = (wefti_write_source){.data = from->data, .later = from->later, .slice = -1};
    if (from->data || !from->pieces) return WEFT_OK;
    wefti_checkpoint_piece *pieces;
    WEFT_TRY(from->part ? check_part(from) : check_pieces(from, alone));
    if (from->part) to->part = *from->part;
    WEFT_TRY(PLAN_ARRAY(plan, pieces, from->piece_count + 1));
    memcpy(pieces, from->pieces, (size_t)from->piece_count * sizeof *pieces);
    to->pieces = pieces;
    to->piece_count = from->piece_count;
    to->whole = from->whole;
    to->first = from->first;
    return WEFT_OK;
}

/* A stable counting sort by element size. */
static weft_status order_tensors(wefti_write_plan *plan, const wefti_checkpoint_tensor *tensors,
                                 int64_t count, bool alone) {
    wefti_manifest *m = &plan->manifest;
    WEFT_TRY(PLAN_ARRAY(plan, m->tensors, count));
    WEFT_TRY(PLAN_ARRAY(plan, plan->order, count));
    WEFT_TRY(PLAN_ARRAY(plan, plan->sources, count));
    for (size_t size = 8; size > 0; size--)
        for (int64_t i = 0; i < count; i++) {
            if (weft_dtype_bytes(tensors[i].desc.dtype) != size) continue;
            WEFT_TRY(copy_tensor(plan, &tensors[i], alone, &m->tensors[m->tensor_count]));
            plan->order[m->tensor_count] = i;
            WEFT_TRY(copy_source(plan, &tensors[i], alone, &plan->sources[m->tensor_count]));
            m->tensor_count++;
        }
    WEFT_REQUIRE(m->tensor_count == count, WEFT_E_ARG, "a tensor has an unknown dtype");
    return WEFT_OK;
}

static int compare_tensors(const void *a, const void *b) {
    const wefti_manifest_tensor *x = *(const wefti_manifest_tensor *const *)a;
    const wefti_manifest_tensor *y = *(const wefti_manifest_tensor *const *)b;
    if (x->role != y->role) return x->role < y->role ? -1 : 1;
    return strcmp(x->name, y->name);
}

static weft_status check_unique(wefti_write_plan *plan) {
    wefti_manifest *m = &plan->manifest;
    const wefti_manifest_tensor **sorted;
    WEFT_TRY(PLAN_ARRAY(plan, sorted, m->tensor_count));
    for (int64_t k = 0; k < m->tensor_count; k++) sorted[k] = &m->tensors[k];
    qsort(sorted, (size_t)m->tensor_count, sizeof *sorted, compare_tensors);
    for (int64_t k = 1; k < m->tensor_count; k++)
        WEFT_REQUIRE(compare_tensors(&sorted[k - 1], &sorted[k]), WEFT_E_ARG,
                     "two %s tensors are named %s", wefti_checkpoint_role_text(sorted[k]->role),
                     sorted[k]->name);
    return WEFT_OK;
}

/* Fills files up to the limit for one role; returns their number. */
static int64_t assign_role(wefti_write_plan *plan, wefti_checkpoint_role role, int64_t limit) {
    wefti_manifest *m = &plan->manifest;
    int64_t used = 0, files = 0;
    for (int64_t k = 0; k < m->tensor_count; k++) {
        if (m->tensors[k].role != role) continue;
        int64_t bytes = weft_desc_bytes(&m->tensors[k].desc);
        if (!files || bytes > limit - used) {
            files++;
            used = 0;
        }
        used = bytes > limit - used ? limit : used + bytes;
        m->tensors[k].file = plan->shard_count + files - 1;
    }
    plan->shard_count += files;
    return files;
}

static weft_status name_shards(wefti_write_plan *plan, const int64_t shards[], bool sliced) {
    wefti_manifest *m = &plan->manifest;
    for (int role = 0; role < WEFTI_CHECKPOINT_ROLES; role++)
        for (int64_t i = 0; i < shards[role]; i++) {
            bool alone = !sliced && role == WEFTI_CHECKPOINT_MODEL && shards[role] == 1;
            const char *name =
                alone ? "model.safetensors"
                      : wefti_arena_format(m->arena, "%s%s-%05lld-of-%05lld.safetensors",
                                           sliced ? "slices-" : "",
                                           wefti_checkpoint_role_text((wefti_checkpoint_role)role),
                                           (long long)i + 1, (long long)shards[role]);
            WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory to plan a checkpoint");
            m->files[m->file_count++].name = name;
        }
    return WEFT_OK;
}

static weft_status fill_items(wefti_write_plan *plan) {
    wefti_manifest *m = &plan->manifest;
    WEFT_TRY(PLAN_ARRAY(plan, plan->items, m->tensor_count));
    WEFT_TRY(PLAN_ARRAY(plan, plan->shard_begin, plan->shard_count + 2));
    int64_t *next = plan->shard_begin + 1; /* next[s] ends as the end of shard s */
    for (int64_t k = 0; k < m->tensor_count; k++) next[m->tensors[k].file + 1]++;
    for (int64_t s = 0; s < plan->shard_count; s++) next[s + 1] += next[s];
    WEFT_TRY(PLAN_ARRAY(plan, plan->offset, m->tensor_count));
    WEFT_TRY(PLAN_ARRAY(plan, plan->shard_bytes, plan->shard_count));
    for (int64_t k = 0; k < m->tensor_count; k++) {
        const wefti_manifest_tensor *t = &m->tensors[k];
        plan->items[next[t->file]++] = (wefti_safetensors_item){.name = t->name, .desc = t->desc};
        plan->offset[k] = plan->shard_bytes[t->file];
        plan->shard_bytes[t->file] += weft_desc_bytes(&t->desc);
    }
    return WEFT_OK;
}

int64_t wefti_checkpoint_text_bytes(const wefti_checkpoint_text *t) {
    return t->bytes ? t->bytes : (int64_t)strlen(t->text);
}

static weft_status add_text(wefti_write_plan *plan, const wefti_checkpoint_text *from) {
    wefti_manifest *m = &plan->manifest;
    const char *name = from->name;
    WEFT_REQUIRE(name && from->text && wefti_file_name_valid(name) && wefti_utf8_valid(name) &&
                     strcmp(name, "manifest.json"),
                 WEFT_E_ARG, "\"%s\" cannot be a file of a checkpoint", name ? name : "");
    for (int64_t i = 0; i < m->file_count; i++)
        WEFT_REQUIRE(strcmp(m->files[i].name, name), WEFT_E_ARG,
                     "the file %s is given twice, or belongs to the checkpoint", name);
    wefti_manifest_file *file = &m->files[m->file_count];
    wefti_checkpoint_text *to = &plan->texts[m->file_count - plan->shard_count];
    const int64_t bytes = wefti_checkpoint_text_bytes(from);
    char *text = wefti_arena_alloc(m->arena, (size_t)bytes + 1);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory to plan a checkpoint");
    memcpy(text, from->text, (size_t)bytes);
    WEFT_TRY(keep(plan, name, &file->name));
    *to = (wefti_checkpoint_text){file->name, text, bytes};
    m->file_count++;
    return WEFT_OK;
}

/* model.safetensors.index.json: the file of each tensor, for a model in several files. */
static weft_status add_index(wefti_write_plan *plan) {
    wefti_manifest *m = &plan->manifest;
    wefti_text t = {0};
    int64_t total = 0;
    for (int64_t k = 0; k < m->tensor_count; k++)
        if (m->tensors[k].role == WEFTI_CHECKPOINT_MODEL)
            total += weft_desc_bytes(&m->tensors[k].desc);
    wefti_text_add(&t, "{\n \"metadata\": {\"total_size\": %lld},\n \"weight_map\": {",
                   (long long)total);
    const char *separator = "\n  ";
    for (int64_t k = 0; k < m->tensor_count; k++) {
        if (m->tensors[k].role != WEFTI_CHECKPOINT_MODEL) continue;
        wefti_text_add(&t, "%s", separator);
        wefti_json_quote(&t, m->tensors[k].name);
        wefti_text_add(&t, ": \"%s\"", m->files[m->tensors[k].file].name);
        separator = ",\n  ";
    }
    wefti_text_add(&t, "\n }\n}\n");
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for a checkpoint's index");
    weft_status status = add_text(
        plan, &(wefti_checkpoint_text){.name = "model.safetensors.index.json", .text = text});
    wefti_free(text);
    return status;
}

static weft_status plan_files(wefti_write_plan *plan, const wefti_checkpoint_options *options) {
    int64_t limit = options->shard_bytes ? options->shard_bytes : (int64_t)4 << 30;
    WEFT_REQUIRE(limit > 0 && options->keep >= 0 && options->nice >= 0 && options->nice <= 19,
                 WEFT_E_ARG, "shard_bytes %lld and keep %lld must be >= 0, nice %d from 0 to 19",
                 (long long)options->shard_bytes, (long long)options->keep, options->nice);
    int64_t shards[WEFTI_CHECKPOINT_ROLES];
    for (int role = 0; role < WEFTI_CHECKPOINT_ROLES; role++)
        shards[role] = assign_role(plan, (wefti_checkpoint_role)role, limit);
    WEFT_REQUIRE(plan->shard_count < 100000, WEFT_E_ARG,
                 "shard_bytes %lld makes %lld files; at most 99999", (long long)limit,
                 (long long)plan->shard_count);
    WEFT_TRY(PLAN_ARRAY(plan, plan->manifest.files, plan->shard_count + options->text_count + 1));
    WEFT_TRY(PLAN_ARRAY(plan, plan->texts, options->text_count + 1));
    WEFT_TRY(name_shards(plan, shards, options->slicing != NULL));
    WEFT_TRY(fill_items(plan));
    if (shards[WEFTI_CHECKPOINT_MODEL] > 1 && !options->slicing) WEFT_TRY(add_index(plan));
    for (int64_t i = 0; i < options->text_count; i++) WEFT_TRY(add_text(plan, &options->texts[i]));
    return WEFT_OK;
}

/* ---- sliced steps ---- */

static weft_status copy_slice(wefti_write_plan *plan, const wefti_checkpoint_slice *from,
                              int64_t number, const int64_t *place) {
    wefti_manifest *m = &plan->manifest;
    wefti_manifest_slice *to = &m->sliced.slices[number];
    int32_t *ranks;
    WEFT_TRY(PLAN_ARRAY(plan, ranks, from->rank_count + 1));
    memcpy(ranks, from->ranks, (size_t)from->rank_count * sizeof *ranks);
    *to = (wefti_manifest_slice){.tensor = from->tensor,
                                 .region = from->region,
                                 .ranks = ranks,
                                 .rank_count = from->rank_count,
                                 .file = -1};
    plan->counts[number] = from->counts;
    if (from->own < 0) return WEFT_OK;
    const int64_t k = place[from->own];
    WEFT_REQUIRE(plan->sources[k].slice < 0, WEFT_E_BUG, "two slices are the tensor %s",
                 m->tensors[k].name);
    plan->sources[k].slice = number;
    to->file = m->tensors[k].file;
    to->stored = m->tensors[k].name;
    return WEFT_OK;
}

static weft_status copy_slicing(wefti_write_plan *plan, const wefti_checkpoint_slicing *s) {
    wefti_manifest *m = &plan->manifest;
    int64_t *place; /* of the caller's tensors: their number in the plan */
    WEFT_TRY(PLAN_ARRAY(plan, plan->wholes, s->whole_count + 1));
    for (int64_t i = 0; i < s->whole_count; i++) {
        WEFT_TRY(copy_tensor(plan, &s->wholes[i], false, &plan->wholes[i]));
        plan->wholes[i].layout = "sliced";
        plan->wholes[i].file = -1;
    }
    plan->whole_count = s->whole_count;
    m->sliced =
        (wefti_manifest_sliced){.rank = s->rank, .ranks = s->ranks, .count = s->slice_count};
    WEFT_TRY(PLAN_ARRAY(plan, m->sliced.slices, s->slice_count + 1));
    WEFT_TRY(PLAN_ARRAY(plan, plan->counts, s->slice_count + 1));
    WEFT_TRY(PLAN_ARRAY(plan, place, m->tensor_count + 1));
    for (int64_t k = 0; k < m->tensor_count; k++) place[plan->order[k]] = k;
    for (int64_t i = 0; i < s->slice_count; i++)
        WEFT_TRY(copy_slice(plan, &s->slices[i], i, place));
    for (int64_t k = 0; k < m->tensor_count; k++)
        WEFT_REQUIRE(plan->sources[k].slice >= 0, WEFT_E_BUG, "the tensor %s is no slice",
                     m->tensors[k].name);
    return WEFT_OK;
}

weft_status wefti_write_plan_create(const wefti_checkpoint_meta *meta,
                                    const wefti_checkpoint_tensor *tensors, int64_t count,
                                    const wefti_checkpoint_options *options,
                                    wefti_write_plan *out) {
    static const wefti_checkpoint_options defaults = {0};
    wefti_write_plan plan = {0};
    if (!options) options = &defaults;
    WEFT_TRY(wefti_arena_create(&plan.manifest.arena));
    weft_status status = wefti_manifest_copy_meta(plan.manifest.arena, meta, &plan.manifest.meta);
    if (status >= 0)
        status = order_tensors(&plan, tensors, count, options->duty == WEFTI_CHECKPOINT_ALONE);
    if (status >= 0) status = check_unique(&plan);
    if (status >= 0) status = plan_files(&plan, options);
    if (status >= 0 && options->slicing) status = copy_slicing(&plan, options->slicing);
    if (status < 0) {
        wefti_write_plan_destroy(&plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}
