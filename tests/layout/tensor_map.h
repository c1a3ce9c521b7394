/* Conversion of layouts from and to MindSpore's device matrix and tensor map. Along an axis of the
 * matrix that the map does not name, MindSpore repeats the calculation. Here the tensor is
 * replicated along that axis. Source: the MindSpore documentation, "Tensor Redistribution", section
 * on tensor layouts. */
#ifndef WEFT_TEST_LAYOUT_TENSOR_MAP_H
#define WEFT_TEST_LAYOUT_TENSOR_MAP_H

#include "layout/layout.h"

#include <stdio.h>

static inline weft_status layout_from_map(const int32_t *device_matrix, int k,
                                          const int32_t *tensor_map, int rank, wefti_mesh *out_mesh,
                                          wefti_layout *out) {
    WEFT_REQUIRE(k >= 1 && k <= WEFTI_MAX_AXES, WEFT_E_ARG,
                 "a device matrix has 1 to %d numbers, not %d", WEFTI_MAX_AXES, k);
    WEFT_REQUIRE(rank >= 0 && rank <= WEFT_MAX_RANK, WEFT_E_ARG,
                 "a tensor map has 0 to %d entries, not %d", WEFT_MAX_RANK, rank);
    wefti_mesh mesh = {.axes = k};
    for (int a = 0; a < k; a++) {
        mesh.axis[a].size = device_matrix[a];
        (void)snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "d%d", k - 1 - a);
    }
    WEFT_TRY(wefti_mesh_check(&mesh));
    wefti_layout layout = wefti_layout_replicated(rank);
    wefti_axes used = 0;
    for (int d = 0; d < rank; d++) {
        int32_t entry = tensor_map[d];
        WEFT_REQUIRE(entry >= -1 && entry < k, WEFT_E_ARG,
                     "entry %d of the tensor map is %d; with a device matrix of %d numbers it is "
                     "-1 (not split) to %d",
                     d, entry, k, k - 1);
        if (entry < 0) continue;
        int axis = k - 1 - entry;
        WEFT_REQUIRE(!(used >> axis & 1u), WEFT_E_ARG,
                     "the tensor map names axis %d for two dimensions; an axis splits one", entry);
        used |= 1u << axis;
        layout.dim[d].axis[layout.dim[d].count++] = (int8_t)axis;
    }
    *out_mesh = mesh;
    *out = layout;
    return WEFT_OK;
}

/* WEFT_E_NO_IMPL: several axes split one dimension, or a value is partial. */
static inline weft_status layout_to_map(const wefti_layout *layout, const wefti_mesh *mesh,
                                        int32_t device_matrix[WEFTI_MAX_AXES],
                                        int32_t tensor_map[WEFT_MAX_RANK]) {
    WEFT_REQUIRE(!layout->sum && !layout->max, WEFT_E_NO_IMPL,
                 "a tensor map cannot say that a value is partial: %s",
                 wefti_layout_text(layout, mesh).text);
    for (int d = 0; d < layout->rank; d++) {
        WEFT_REQUIRE(layout->dim[d].count <= 1, WEFT_E_NO_IMPL,
                     "a tensor map names one axis for each dimension, dimension %d of %s has %d", d,
                     wefti_layout_text(layout, mesh).text, layout->dim[d].count);
        WEFT_REQUIRE(layout->dim[d].count == 0 || layout->dim[d].unit <= 1, WEFT_E_NO_IMPL,
                     "a tensor map has no units, dimension %d of %s has", d,
                     wefti_layout_text(layout, mesh).text);
    }
    for (int a = 0; a < mesh->axes; a++) device_matrix[a] = mesh->axis[a].size;
    for (int d = 0; d < layout->rank; d++)
        tensor_map[d] = layout->dim[d].count ? mesh->axes - 1 - layout->dim[d].axis[0] : -1;
    return WEFT_OK;
}

#endif
