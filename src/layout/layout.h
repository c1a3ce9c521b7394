/* Meshes and layouts: which part of a tensor lies on which device.
 *
 * A mesh is the grid of ranks with named axes. The first axis is the outermost (slowest). A layout
 * lists, for each dimension of a tensor, the axes that split it, outermost first. It also lists the
 * axes over which the tensor is partial. Each device along such an axis holds one term of a sum or
 * of a maximum. Along an axis that the layout does not name, all devices hold the same data.
 *
 * Part i of s of n units is [floor(i n / s), floor((i + 1) n / s)). The parts may therefore have
 * different sizes. A split by several axes in turn gives the same parts as a split by their
 * product.
 *
 * Source: the notation follows Shazeer et al., "Mesh-TensorFlow", NeurIPS 2018, section 3, and Xu
 * et al., "GSPMD", 2021, section 3. Both also have partial values. */
#ifndef WEFTI_LAYOUT_H
#define WEFTI_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/tensor.h"
#include "topo/links.h"

enum { WEFTI_MAX_AXES = 8 };

typedef struct wefti_axis {
    char name[16];
    int32_t size;
    wefti_link link; /* between neighbors along this axis */
} wefti_axis;

typedef struct wefti_mesh {
    int axes;
    wefti_axis axis[WEFTI_MAX_AXES];
    int32_t first; /* rank of the device at (0, 0, ...) */
} wefti_mesh;

/* A set of axes: bit a stands for axis a of the mesh. */
typedef uint32_t wefti_axes;

int32_t wefti_mesh_size(const wefti_mesh *mesh);
/* Whether the axes are equal. The devices may differ. */
bool wefti_meshes_alike(const wefti_mesh *a, const wefti_mesh *b);
/* Coordinate of world rank `rank` (mesh->first <= rank < first + size) along each axis. */
void wefti_mesh_coordinates(const wefti_mesh *mesh, int32_t rank, int32_t out[WEFTI_MAX_AXES]);
int32_t wefti_mesh_rank(const wefti_mesh *mesh, const int32_t coordinates[WEFTI_MAX_AXES]);
int wefti_mesh_find(const wefti_mesh *mesh, const char *name); /* -1: no such axis */
/* An axis "dp_shard" directly after an axis "dp" is the inner part of "dp". A setting of the whole
 * axis "dp" (batches, numbers of cuts) applies to both axes together. */
enum { WEFTI_AXIS_NAME = sizeof((wefti_axis *)0)->name };
bool wefti_mesh_part(const wefti_mesh *mesh, int axis);
void wefti_mesh_part_name(const char *name, char out[WEFTI_AXIS_NAME]);
/* The product of the axes' sizes. */
int32_t wefti_mesh_product(const wefti_mesh *mesh, wefti_axes axes);
/* Writes the ranks that differ from `rank` only along `axes`, in ascending order, to `out`. Returns
 * their number. `out` must have room for all of them. */
int32_t wefti_mesh_group(const wefti_mesh *mesh, int32_t rank, wefti_axes axes, int32_t *out);
/* Checks a mesh: it has 1 to 8 axes with unique names and sizes >= 1. */
weft_status wefti_mesh_check(const wefti_mesh *mesh) WEFT_CHECKED;

typedef struct wefti_dim_split {
    int8_t count;                /* number of axes that split this dimension; 0: not split */
    int8_t axis[WEFTI_MAX_AXES]; /* outermost first */
    /* `unit`: every part is a whole number of this many elements (such as a head). It divides the
     * size. 0 and 1 mean any size. The normal form (wefti_layout_normal) has 1 where the unit makes
     * no difference. */
    int64_t unit;
} wefti_dim_split;

typedef struct wefti_layout {
    int8_t rank; /* dimensions of the tensor */
    wefti_dim_split dim[WEFT_MAX_RANK];
    wefti_axes sum, max; /* axes over which the tensor is a partial sum or maximum */
} wefti_layout;

wefti_layout wefti_layout_replicated(int rank);
/* The axes of dimension d as a set; the axes that split any dimension; the latter and the partial
 * axes together. */
wefti_axes wefti_layout_dim_axes(const wefti_layout *layout, int d);
wefti_axes wefti_layout_split_axes(const wefti_layout *layout);
wefti_axes wefti_layout_axes(const wefti_layout *layout);
/* Parts along dimension d. */
int32_t wefti_layout_parts(const wefti_layout *layout, const wefti_mesh *mesh, int d);
/* Normal form: unit 1 where all units give the same parts, and no axes of size 1. Equal layouts
 * have equal normal forms. All functions here return normal forms. */
void wefti_layout_normal(wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole);
bool wefti_layout_equal(const wefti_layout *a, const wefti_layout *b);
/* Checks the layout for this tensor: all axes exist, each axis is used once, units divide sizes,
 * and the rank fits. */
weft_status wefti_layout_check(const wefti_layout *layout, const wefti_mesh *mesh,
                               const weft_desc *whole) WEFT_CHECKED;
/* Checks the layout and refuses empty parts. Pieces of states may be empty. A user that names such
 * a layout most likely made a mistake: more parts than elements. */
weft_status wefti_layout_check_stated(const wefti_layout *layout, const wefti_mesh *mesh,
                                      const weft_desc *whole) WEFT_CHECKED;

/* Part `index` of `parts` of n elements in units of `unit`. */
void wefti_part(int64_t n, int64_t unit, int32_t parts, int32_t index, int64_t *out_begin,
                int64_t *out_size);
/* The smallest unit that gives the same parts as `unit`, which is a divisor of n. */
int64_t wefti_part_unit(int64_t n, int64_t unit, int32_t parts);

/* A region of a tensor, in coordinates of the whole tensor. */
typedef struct wefti_region {
    int64_t begin[WEFT_MAX_RANK], size[WEFT_MAX_RANK];
} wefti_region;

/* The region that `rank` holds. */
void wefti_layout_region(const wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole,
                         int32_t rank, wefti_region *out);
/* The same region, for a device given by its coordinates. */
void wefti_layout_region_at(const wefti_layout *layout, const wefti_mesh *mesh,
                            const weft_desc *whole, const int32_t at[WEFTI_MAX_AXES],
                            wefti_region *out);
/* The same region as a tensor: the dtype of `whole`, the sizes of the region. */
weft_desc wefti_layout_local(const wefti_layout *layout, const wefti_mesh *mesh,
                             const weft_desc *whole, int32_t rank);
int64_t wefti_region_elems(const wefti_region *region, int rank);
bool wefti_region_contains(const wefti_region *outer, const wefti_region *inner, int rank);
bool wefti_region_intersect(const wefti_region *a, const wefti_region *b, int rank,
                            wefti_region *out); /* true if the intersection is not empty */
/* Of all devices that hold the same region, exactly one counts. This device has coordinate 0 along
 * every axis that does not split the tensor (unused and partial axes). Returns whether `rank` is
 * that device. */
bool wefti_layout_counts(const wefti_layout *layout, const wefti_mesh *mesh, int32_t rank);

/* Example: "[dp, tp+sp:64, -] sum(tp)". Axis dp splits dimension 0. Axes tp and then sp split
 * dimension 1 in units of 64. Dimension 2 is not split. The tensor is partial over tp. The parser
 * refuses an axis that the mesh lacks and lists the axes of the mesh. */
typedef struct wefti_layout_words {
    char text[320]; /* fits eight axes with the longest names, each with a unit */
} wefti_layout_words;
wefti_layout_words wefti_layout_text(const wefti_layout *layout, const wefti_mesh *mesh);
weft_status wefti_layout_parse(const char *text, const wefti_mesh *mesh,
                               wefti_layout *out) WEFT_CHECKED;

/* Chooses free axes of the mesh, in mesh order. Their sizes multiply to `cuts`. An op gives its
 * cuts (the number of parts) for each dimension, such as (4, 1). The function adds the axes to
 * `used`, so that each axis splits at most one dimension of the op's operands. If several
 * dimensions share a factor, the caller gives them equal axes. WEFT_E_ARG: no axes fit; the message
 * lists the possible cuts. */
weft_status wefti_cut_axes(const wefti_mesh *mesh, int64_t cuts, wefti_axes *used,
                           wefti_dim_split *out) WEFT_CHECKED;
/* Chooses the axes of all cuts of an op at once, so that no cut takes an axis that another cut
 * needs. Visits every possible choice, in order. For each cut in turn, the first choice has the
 * fewest axes, and among equals the outermost axes. A choice must leave axes for the other cuts.
 * The function stops at the first visit that fails. If no choice is possible, *out_failed is the
 * first cut that wefti_cut_axes refuses when it runs for one cut after the other. */
typedef weft_status wefti_cut_visit(void *context, const wefti_dim_split *splits /* [count] */);
weft_status wefti_cut_each(const wefti_mesh *mesh, int count, const int64_t *cuts,
                           wefti_cut_visit *visit, void *context, int *out_failed) WEFT_CHECKED;

#endif
