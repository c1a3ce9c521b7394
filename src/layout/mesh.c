/* Meshes: conversion between ranks and coordinates (mixed radix, last axis fastest), groups, and
 * the choice of axes for a number of cuts. */
#include "layout/layout.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

int32_t wefti_mesh_size(const wefti_mesh *mesh) {
    int32_t size = 1;
    for (int a = 0; a < mesh->axes; a++) size *= mesh->axis[a].size;
    return size;
}

bool wefti_meshes_alike(const wefti_mesh *a, const wefti_mesh *b) {
    bool same = a->axes == b->axes;
    for (int i = 0; same && i < a->axes; i++)
        same = a->axis[i].size == b->axis[i].size && !strcmp(a->axis[i].name, b->axis[i].name);
    return same;
}

void wefti_mesh_coordinates(const wefti_mesh *mesh, int32_t rank, int32_t out[WEFTI_MAX_AXES]) {
    int32_t rest = rank - mesh->first;
    for (int a = mesh->axes - 1; a >= 0; a--) {
        out[a] = rest % mesh->axis[a].size;
        rest /= mesh->axis[a].size;
    }
}

int32_t wefti_mesh_rank(const wefti_mesh *mesh, const int32_t coordinates[WEFTI_MAX_AXES]) {
    int32_t place = 0;
    for (int a = 0; a < mesh->axes; a++) place = place * mesh->axis[a].size + coordinates[a];
    return mesh->first + place;
}

int wefti_mesh_find(const wefti_mesh *mesh, const char *name) {
    for (int a = 0; a < mesh->axes; a++)
        if (!strcmp(mesh->axis[a].name, name)) return a;
    return -1;
}

void wefti_mesh_part_name(const char *name, char out[WEFTI_AXIS_NAME]) {
    (void)snprintf(out, WEFTI_AXIS_NAME, "%.9s_shard", name);
}

bool wefti_mesh_part(const wefti_mesh *mesh, int axis) {
    char name[WEFTI_AXIS_NAME];
    if (axis == 0) return false;
    wefti_mesh_part_name(mesh->axis[axis - 1].name, name);
    return !strcmp(mesh->axis[axis].name, name);
}

int32_t wefti_mesh_product(const wefti_mesh *mesh, wefti_axes axes) {
    int32_t product = 1;
    for (int a = 0; a < mesh->axes; a++)
        if (axes >> a & 1u) product *= mesh->axis[a].size;
    return product;
}

int32_t wefti_mesh_group(const wefti_mesh *mesh, int32_t rank, wefti_axes axes, int32_t *out) {
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(mesh, rank, at);
    for (int a = 0; a < mesh->axes; a++)
        if (axes >> a & 1u) at[a] = 0;
    int32_t count = 0;
    for (;;) { /* counts like an odometer, last digit fastest, so ranks ascend */
        out[count++] = wefti_mesh_rank(mesh, at);
        int a = mesh->axes - 1;
        for (; a >= 0; a--) {
            if (!(axes >> a & 1u)) continue;
            if (++at[a] < mesh->axis[a].size) break;
            at[a] = 0;
        }
        if (a < 0) return count;
    }
}

static bool name_is_legal(const char *name) {
    size_t length = strnlen(name, sizeof((wefti_axis){0}).name);
    if (length == 0 || length == sizeof((wefti_axis){0}).name) return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
    return true;
}

weft_status wefti_mesh_check(const wefti_mesh *mesh) {
    WEFT_REQUIRE(mesh->axes >= 1 && mesh->axes <= WEFTI_MAX_AXES, WEFT_E_ARG,
                 "a mesh has 1 to %d axes, this one has %d", WEFTI_MAX_AXES, mesh->axes);
    int64_t size = 1;
    for (int a = 0; a < mesh->axes; a++) {
        const wefti_axis *axis = &mesh->axis[a];
        WEFT_REQUIRE(
            name_is_legal(axis->name), WEFT_E_ARG,
            "axis %d of the mesh is called '%.15s'; a name has 1 to 15 letters, digits and "
            "underscores",
            a, axis->name);
        WEFT_REQUIRE(axis->size >= 1, WEFT_E_ARG, "axis '%s' of the mesh has size %d, at least 1",
                     axis->name, axis->size);
        WEFT_REQUIRE(wefti_mesh_find(mesh, axis->name) == a, WEFT_E_ARG,
                     "two axes of the mesh are called '%s'", axis->name);
        WEFT_REQUIRE(axis->link.latency >= 0 && axis->link.seconds_per_byte >= 0, WEFT_E_ARG,
                     "the link of axis '%s' has latency %g s and %g s/byte; neither is negative",
                     axis->name, axis->link.latency, axis->link.seconds_per_byte);
        size *= axis->size;
        WEFT_REQUIRE(size <= INT32_MAX, WEFT_E_ARG, "a mesh of more than %d devices", INT32_MAX);
    }
    WEFT_REQUIRE(mesh->first >= 0 && mesh->first <= INT32_MAX - size, WEFT_E_ARG,
                 "a mesh of %d devices cannot start at rank %d", (int)size, mesh->first);
    return WEFT_OK;
}

/* Whether the set contains an axis and its inner part ("dp" and "dp_shard") only together.
 * `out_count` counts such a pair as one axis. */
static bool keeps_parts(const wefti_mesh *mesh, wefti_axes set, int *out_count) {
    bool kept = true;
    *out_count = __builtin_popcount(set);
    for (int a = 1; a < mesh->axes; a++) {
        if (!wefti_mesh_part(mesh, a)) continue;
        kept = kept && (set >> a & 1u) == (set >> (a - 1) & 1u);
        *out_count -= (int)(set >> a & 1u);
    }
    return kept;
}

/* Whether the set contains an axis that, with its inner part, has only one device. It cuts
 * nothing. */
static bool has_trivial(const wefti_mesh *mesh, wefti_axes set) {
    for (int a = 0; a < mesh->axes; a++) {
        bool parted = a + 1 < mesh->axes && wefti_mesh_part(mesh, a + 1);
        int32_t size = mesh->axis[a].size * (parted ? mesh->axis[a + 1].size : 1);
        if (wefti_mesh_part(mesh, a)) size *= mesh->axis[a - 1].size;
        if (set >> a & 1u && size == 1) return true;
    }
    return false;
}

static weft_status refuse_cuts(const wefti_mesh *mesh, int64_t cuts, wefti_axes used) {
    wefti_text axes = {0}, numbers = {0};
    for (int a = 0; a < mesh->axes; a++)
        wefti_text_add(&axes, "%s%s=%d%s", a ? ", " : "", mesh->axis[a].name, mesh->axis[a].size,
                       used >> a & 1u ? " (used)" : "");
    int64_t last = 0; /* products of the free axes, ascending, without repetition */
    for (bool more = true; more;) {
        int64_t next = INT64_MAX;
        for (wefti_axes set = 0; set < 1u << mesh->axes; set++) {
            int64_t product = wefti_mesh_product(mesh, set);
            int count;
            if (!(set & used) && keeps_parts(mesh, set, &count) && product > last && product < next)
                next = product;
        }
        more = next != INT64_MAX;
        if (more) wefti_text_add(&numbers, "%s%lld", last ? ", " : "", (long long)next);
        last = next;
    }
    for (int a = 0; a < mesh->axes && cuts > 1; a++) {
        if (used >> a & 1u || mesh->axis[a].size % cuts != 0 || mesh->axis[a].size == cuts)
            continue;
        wefti_text_add(&numbers, "; with two axes, of %lld and %lld, in place of '%s' it would",
                       (long long)cuts, (long long)(mesh->axis[a].size / cuts), mesh->axis[a].name);
        break;
    }
    char *axes_text = wefti_text_take(&axes), *numbers_text = wefti_text_take(&numbers);
    weft_status status =
        WEFT_RAISE(WEFT_E_ARG, "the mesh (%s) has no free axes for %lld cuts; it allows %s",
                   axes_text ? axes_text : "", (long long)cuts, numbers_text ? numbers_text : "1");
    wefti_text_free(&axes);
    wefti_text_free(&numbers);
    wefti_free(axes_text);
    wefti_free(numbers_text);
    return status;
}

/* The set with fewer axes comes first. Of two sets of equal size, the set that contains the lowest
 * axis in which they differ comes first. */
static bool is_before(wefti_axes a, int a_count, wefti_axes b, int b_count) {
    wefti_axes differ = a ^ b;
    return a_count < b_count || (a_count == b_count && a & (differ & (0u - differ)));
}

/* The next set of free axes in this order, after the set `after` (0: the first set). The sizes of
 * its axes multiply to `cuts`. */
static wefti_axes next_set(const wefti_mesh *mesh, int64_t cuts, wefti_axes used,
                           wefti_axes after) {
    wefti_axes best = 0;
    int best_count = 0, after_count = 0;
    (void)keeps_parts(mesh, after, &after_count);
    for (wefti_axes set = 1; set < 1u << mesh->axes; set++) {
        int count;
        bool whole = keeps_parts(mesh, set, &count) && !has_trivial(mesh, set);
        if (!whole || set & used || wefti_mesh_product(mesh, set) != cuts) continue;
        if (after && !is_before(after, after_count, set, count)) continue;
        if (best && !is_before(set, count, best, best_count)) continue;
        best = set;
        best_count = count;
    }
    return best;
}

static wefti_dim_split split_of(const wefti_mesh *mesh, wefti_axes set) {
    wefti_dim_split split = {.unit = 1};
    for (int a = 0; a < mesh->axes; a++)
        if (set >> a & 1u) split.axis[split.count++] = (int8_t)a;
    return split;
}

weft_status wefti_cut_axes(const wefti_mesh *mesh, int64_t cuts, wefti_axes *used,
                           wefti_dim_split *out) {
    wefti_axes set = cuts == 1 ? 0 : next_set(mesh, cuts, *used, 0);
    if (!set && cuts != 1) return refuse_cuts(mesh, cuts, *used);
    *used |= set;
    *out = split_of(mesh, set);
    return WEFT_OK;
}

typedef struct mesh_sharing {
    const wefti_mesh *mesh;
    int count, ways;
    const int64_t *cuts;
    wefti_dim_split *splits; /* [count] */
    wefti_cut_visit *visit;
    void *context;
} mesh_sharing;

/* Each cut above 1 takes an axis, so the recursion is at most as deep as the mesh has axes. */
static weft_status share_axes(mesh_sharing *s, int at, wefti_axes used) {
    for (; at < s->count && s->cuts[at] == 1; at++) s->splits[at] = split_of(s->mesh, 0);
    if (at == s->count) {
        s->ways++;
        return s->visit(s->context, s->splits);
    }
    for (wefti_axes set = 0; (set = next_set(s->mesh, s->cuts[at], used, set));) {
        s->splits[at] = split_of(s->mesh, set);
        WEFT_TRY(share_axes(s, at + 1, used | set));
    }
    return WEFT_OK;
}

weft_status wefti_cut_each(const wefti_mesh *mesh, int count, const int64_t *cuts,
                           wefti_cut_visit *visit, void *context, int *out_failed) {
    wefti_axes used = 0;
    wefti_dim_split one, *splits = wefti_calloc((size_t)count + 1, sizeof *splits);
    WEFT_REQUIRE(splits, WEFT_E_NOMEM, "no memory for the axes of %d cuts", count);
    mesh_sharing s = {mesh, count, 0, cuts, splits, visit, context};
    weft_status status = share_axes(&s, 0, 0);
    wefti_free(splits);
    if (status < 0 || s.ways) return status;
    for (*out_failed = 0; *out_failed < count; ++*out_failed)
        WEFT_TRY(wefti_cut_axes(mesh, cuts[*out_failed], &used, &one));
    WEFT_FAIL(WEFT_E_BUG, "cuts have axes one by one, but not together");
}
