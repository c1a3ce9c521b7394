/* How groups lie on meshes: see program/groups.h. */
#include "program/groups.h"

#include <string.h>

const wefti_mesh *wefti_group_mesh(const wefti_match_classes *classes, int32_t rank) {
    return &classes->programs[classes->class_of[rank]]->mesh;
}

static wefti_axes axes_between(const wefti_mesh *mesh, const wefti_transfer *t) {
    int32_t here[WEFTI_MAX_AXES], there[WEFTI_MAX_AXES];
    wefti_axes axes = 0;
    wefti_mesh_coordinates(mesh, t->ranks[0], here);
    for (int32_t i = 1; i < t->members; i++) {
        wefti_mesh_coordinates(mesh, t->ranks[i], there);
        for (int a = 0; a < mesh->axes; a++)
            if (here[a] != there[a]) axes |= 1u << a;
    }
    return axes;
}

bool wefti_group_find_place(const wefti_match_classes *classes, const wefti_transfer *t,
                            wefti_group_place *out) {
    bool one_place = true, whole = true;
    out->stages = 0;
    out->axes = 0;
    for (int32_t i = 0, end; i < t->members; i = end) {
        const wefti_mesh *mesh = wefti_group_mesh(classes, t->ranks[i]);
        const int32_t size = wefti_mesh_size(mesh);
        for (end = i + 1; end < t->members && t->ranks[end] < mesh->first + size;) end++;
        out->firsts[out->stages++] = mesh->first;
        one_place = one_place && end == i + 1 &&
                    t->ranks[i] - mesh->first == t->ranks[0] - out->firsts[0] &&
                    size == wefti_mesh_size(wefti_group_mesh(classes, t->ranks[0]));
        whole = whole && end - i == size;
    }
    out->form = out->stages == 1 ? WEFTI_GROUP_ALONG
                : one_place      ? WEFTI_GROUP_AT
                                 : WEFTI_GROUP_STAGES;
    if (out->stages > 1) return one_place || whole;
    const wefti_mesh *mesh = wefti_group_mesh(classes, t->ranks[0]);
    out->axes = axes_between(mesh, t);
    return wefti_mesh_product(mesh, out->axes) == t->members;
}

bool wefti_group_places_equal(const wefti_group_place *a, const wefti_group_place *b) {
    return a->form == b->form && a->axes == b->axes && a->stages == b->stages &&
           !memcmp(a->firsts, b->firsts, (size_t)a->stages * sizeof *a->firsts);
}

int32_t wefti_group_size(const wefti_match_classes *classes, const wefti_group_place *name) {
    int32_t size = 0;
    if (name->form == WEFTI_GROUP_AT) return name->stages;
    if (name->form == WEFTI_GROUP_ALONG)
        return wefti_mesh_product(wefti_group_mesh(classes, name->firsts[0]), name->axes);
    for (int32_t s = 0; s < name->stages; s++)
        size += wefti_mesh_size(wefti_group_mesh(classes, name->firsts[s]));
    return size;
}

void wefti_group_ranks(const wefti_match_classes *classes, const wefti_group_place *name,
                       int32_t rank, int32_t *out) {
    const wefti_mesh *mesh = wefti_group_mesh(classes, rank);
    int32_t count = 0;
    switch (name->form) {
    case WEFTI_GROUP_ALONG:
        (void)wefti_mesh_group(mesh, rank, name->axes, out);
        break;
    case WEFTI_GROUP_AT:
        for (int32_t s = 0; s < name->stages; s++) out[s] = name->firsts[s] + rank - mesh->first;
        break;
    case WEFTI_GROUP_STAGES:
        for (int32_t s = 0; s < name->stages; s++)
            for (int32_t i = 0; i < wefti_mesh_size(wefti_group_mesh(classes, name->firsts[s]));
                 i++)
                out[count++] = name->firsts[s] + i;
        break;
    }
}

bool wefti_group_is_lowest(const wefti_match_classes *classes, const wefti_group_place *name,
                           int32_t rank) {
    const wefti_mesh *mesh = wefti_group_mesh(classes, rank);
    int32_t at[WEFTI_MAX_AXES];
    if (name->form == WEFTI_GROUP_AT) return mesh->first == name->firsts[0];
    if (name->form == WEFTI_GROUP_STAGES) return rank == name->firsts[0];
    wefti_mesh_coordinates(mesh, rank, at);
    for (int a = 0; a < mesh->axes; a++)
        if (name->axes >> a & 1u && at[a]) return false;
    return true;
}
