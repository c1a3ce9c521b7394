/* Finds the classes of ranks: see builder/fold/fold.h. */
#include "builder/fold/fold.h"

static void destroy_programs(const wefti_rank_classes *all, wefti_rank_class *c) {
    for (int32_t g = 0; c->programs && g < all->graphs; g++) wefti_program_destroy(c->programs[g]);
    wefti_free(c->programs);
}

void wefti_rank_classes_destroy(wefti_rank_classes *all) {
    if (!all) return;
    for (int32_t i = 0; i < all->count; i++) destroy_programs(all, &all->classes[i]);
    wefti_free(all->classes);
    wefti_free(all->class_of);
    wefti_free(all);
}

/* Whether the builds of two ranks of the representative's stage take the same course. */
static weft_status is_alike(const wefti_rank_classes *all, const wefti_rank_class *c, int32_t rank,
                            bool *out) {
    *out = true;
    for (int32_t g = 0; g < all->graphs && *out; g++) {
        const wefti_program *p = c->programs[g];
        const wefti_rank_reads *reads = wefti_partition_reads(p->partition);
        int32_t a[WEFTI_MAX_AXES], b[WEFTI_MAX_AXES];
        WEFT_REQUIRE(!reads->lost, WEFT_E_NOMEM, "no memory to compare ranks");
        wefti_mesh_coordinates(&p->mesh, c->rank, a);
        wefti_mesh_coordinates(&p->mesh, rank, b);
        *out = wefti_rank_reads_same(reads, &p->mesh, a, b);
    }
    return WEFT_OK;
}

static weft_status build_class(const wefti_fold *fold, wefti_rank_classes *all, int32_t rank,
                               wefti_rank_class **out) {
    int64_t count = all->count;
    WEFT_TRY(WEFT_GROW(all->classes, count, all->cap));
    wefti_rank_class *c = &all->classes[all->count++];
    *c = (wefti_rank_class){.rank = rank};
    c->stage = fold->plan ? wefti_plan_stage_of_rank(fold->plan, rank) : 0;
    WEFT_NEW_ARRAY(c->programs, wefti_program *, all->graphs);
    *out = c;
    return fold->build(fold->context, rank, c->programs);
}

/* Finds the ranks of a stage that are equal to the representative, among those without a class. */
static weft_status find_members(wefti_rank_classes *all, wefti_rank_class *c, int32_t end) {
    for (int32_t r = c->rank; r < end; r++) {
        bool alike = r == c->rank;
        if (all->class_of[r] >= 0) continue;
        if (!alike) WEFT_TRY(is_alike(all, c, r, &alike));
        if (!alike) continue;
        all->class_of[r] = (int32_t)(c - all->classes);
        c->count++;
    }
    return WEFT_OK;
}

static weft_status find_all(const wefti_fold *fold, wefti_rank_classes *all) {
    int32_t done = 0;
    WEFT_NEW_ARRAY(all->class_of, int32_t, all->ranks);
    for (int32_t r = 0; r < all->ranks; r++) all->class_of[r] = -1;
    for (int32_t r = 0; r < all->ranks; r++) {
        wefti_rank_class *c;
        if (all->class_of[r] >= 0) continue;
        WEFT_TRY(build_class(fold, all, r, &c));
        const wefti_mesh *mesh = &c->programs[0]->mesh;
        WEFT_TRY(find_members(all, c, mesh->first + wefti_mesh_size(mesh)));
        done += c->count;
        if (fold->found) WEFT_TRY(fold->found(fold->context, c, done));
    }
    return WEFT_OK;
}

weft_status wefti_rank_classes_find(const wefti_fold *fold, wefti_rank_classes **out) {
    wefti_rank_classes *all;
    WEFT_NEW(all, wefti_rank_classes);
    all->ranks = fold->plan ? fold->plan->devices : 1;
    all->graphs = fold->graphs;
    weft_status status = find_all(fold, all);
    if (status < 0) {
        wefti_rank_classes_destroy(all);
        return status;
    }
    *out = all;
    return WEFT_OK;
}
