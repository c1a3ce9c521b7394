/* Files of ranks are missing. This tells which tensors are lost with them. See source.h.
 *
 * A manifest names all tensors. A strategy file names parameters, but not all of their types and
 * shapes. A plan has patterns only: the files that are there must show the tensors of each stage.
 * Without any of these a missing file may have had tensors that nobody knows of. */
#include <string.h>

#include "plan/plan.h"
#include "reshard/source.h"
#include "tensor/tensor.h"

void wefti_shards_missing(const wefti_shards *s, wefti_text *out) {
    enum { SHOWN = 8 };
    const char *separator = "";
    int64_t listed = 0;
    for (int64_t i = 0; i < s->file_count; i++) {
        if (!s->files[i].missing) continue;
        if (++listed > SHOWN) continue;
        wefti_text_add(out, "%s%s", separator, s->files[i].path);
        separator = ", ";
    }
    if (listed > SHOWN) wefti_text_add(out, " and %lld more", (long long)(listed - SHOWN));
}

weft_status wefti_shards_fail_absent(const wefti_shards *s, const char *name) {
    wefti_text missing = {0};
    wefti_shards_missing(s, &missing);
    char *names = wefti_text_take(&missing);
    weft_status status =
        WEFT_RAISE(WEFT_E_NOT_FOUND, "%s: no file is left that has tensor %.200s; missing: %s",
                   s->path, name, names ? names : "some files");
    wefti_free(names);
    return status;
}

/* ---- named by the manifest ---- */

static weft_status place_lost(wefti_shards *s, const wefti_layouts *layouts, const int32_t *file_of,
                              const wefti_manifest_tensor *x) {
    wefti_source_tensor *t;
    wefti_placement *found = NULL;
    int32_t count = 0;
    const wefti_source_tensor lost = {.name = x->name, .role = x->role, .desc = x->desc};
    const wefti_source_tensor *parameter = wefti_shards_parameter(s, &lost);
    const char *of = parameter ? parameter->name : NULL;
    WEFT_TRY(wefti_shards_add_tensor(s, x->role, x->name, &x->desc, &t));
    if (!layouts) return WEFT_OK;
    WEFT_TRY(wefti_layouts_find(layouts, x->name, of, &x->desc, &found, &count));
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < count && status >= 0; i++) {
        const wefti_placement *p = &found[i];
        const int32_t end = p->mesh.first + wefti_mesh_size(&p->mesh);
        status = wefti_placement_check(layouts, p, &x->desc);
        for (int32_t rank = p->mesh.first; rank < end && status >= 0; rank++) {
            wefti_source_piece piece = {.file = file_of[rank]};
            if (!s->files[piece.file].missing) continue;
            wefti_placement_region(p, &x->desc, rank, &piece.region);
            status = wefti_shards_add_piece(t, &piece);
        }
    }
    wefti_free(found);
    return status;
}

static weft_status add_named(wefti_shards *s, const wefti_layouts *layouts, const int32_t *file_of,
                             wefti_checkpoint_role role) {
    const wefti_manifest *m = s->manifest;
    for (int64_t k = 0; k < m->tensor_count; k++)
        if (m->tensors[k].role == role && wefti_shards_number(s, role, m->tensors[k].name) < 0)
            WEFT_TRY(place_lost(s, layouts, file_of, &m->tensors[k]));
    return WEFT_OK;
}

/* ---- named by layouts, or by nothing ---- */

static weft_status note_absent(wefti_shards *s, const wefti_layouts *layouts) {
    for (int64_t i = 0; i < layouts->count; i++) {
        const char *name = layouts->items[i].name;
        int64_t number = s->absent_count;
        if (wefti_shards_find(s, WEFTI_CHECKPOINT_MODEL, name) ||
            wefti_shards_find(s, WEFTI_CHECKPOINT_OPTIMIZER, name))
            continue;
        const char *copy = wefti_arena_strdup(s->arena, name);
        WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for the name of a tensor");
        WEFT_TRY(wefti_map_add_text(&s->absent_names, copy, number, &number));
        if (number != s->absent_count) continue; /* on another stage, too */
        WEFT_TRY(WEFT_GROW(s->absent, s->absent_count, s->absent_cap));
        s->absent[s->absent_count++] = copy;
    }
    return WEFT_OK;
}

/* A stage of a plan of which no file is there; -1: each has one. */
static int32_t lost_stage(const wefti_shards *s, const wefti_layouts *layouts,
                          const int32_t *file_of) {
    for (int32_t stage = 0; stage < layouts->stages; stage++) {
        bool there = false;
        for (int32_t rank = 0; rank < s->ranks && !there; rank++)
            there = wefti_plan_stage_of_rank(layouts->plan, rank) == stage &&
                    !s->files[file_of[rank]].missing;
        if (!there) return stage;
    }
    return -1;
}

static weft_status note_unknown(wefti_shards *s, const wefti_layouts *layouts,
                                const int32_t *file_of) {
    bool missing = false;
    for (int64_t i = 0; i < s->file_count; i++) missing = missing || s->files[i].missing;
    if (!missing) return WEFT_OK;
    if (!layouts) {
        s->maybe_replicas = true;
        s->unknown = "nothing tells which tensors these files had: give --from, the plan, "
                     "strategy file or rules of the slices; or, to reshard, --replicas if the "
                     "others have the same";
        return WEFT_OK;
    }
    const int32_t stage = layouts->plan ? lost_stage(s, layouts, file_of) : -1;
    if (stage < 0) return WEFT_OK;
    s->unknown = wefti_arena_format(
        s->arena, "no file of stage %d is there, and %s does not name the tensors of a stage",
        stage, layouts->path);
    WEFT_REQUIRE(s->unknown, WEFT_E_NOMEM, "no memory for a message");
    return WEFT_OK;
}

weft_status wefti_shards_add_lost(wefti_shards *s, const wefti_layouts *layouts,
                                  const int32_t *file_of) {
    if (s->manifest) {
        WEFT_TRY(add_named(s, layouts, file_of, WEFTI_CHECKPOINT_MODEL));
        WEFT_TRY(add_named(s, layouts, file_of, WEFTI_CHECKPOINT_OPTIMIZER));
        return WEFT_OK;
    }
    if (layouts) WEFT_TRY(note_absent(s, layouts));
    return note_unknown(s, layouts, file_of);
}
