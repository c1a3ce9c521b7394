/* Meshes and layouts: which part of a tensor lies on which device.
 *
 * A mesh is the ranks as a grid with named axes, the first one outermost (slowest). A layout says
 * for each dimension of a tensor which axes split it, in order, the first outermost, and over which
 * axes the tensor is partial: each device along such an axis holds one term of a sum, or of a
 * maximum. Along an axis named nowhere all devices hold the same. Part i of s of n units is
 * [floor(i n / s), floor((i + 1) n / s)): uneven splits are ordinary, and splitting by several axes
 * in turn gives the same parts as by their product. Source: the notation follows Shazeer et al.,
 * "Mesh-TensorFlow", NeurIPS 2018, section 3, and Xu et al., "GSPMD", 2021, section 3; partial
 * values are theirs too. */
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
    wefti_link link; /* between neighbours along it */
} wefti_axis;

typedef struct wefti_mesh {
    int axes;
    wefti_axis axis[WEFTI_MAX_AXES];
    int32_t first; /* rank of its device (0, 0, ...) */
} wefti_mesh;

/* A set of axes: bit a stands for axis a of the mesh. */
typedef uint32_t wefti_axes;

int32_t wefti_mesh_size(const wefti_mesh *mesh);
/* The same axes: only the devices are others. */
bool wefti_meshes_alike(const wefti_mesh *a, const wefti_mesh *b);
/* Coordinate of world rank `rank` (mesh->first <= rank < first + size) along each axis. */
void wefti_mesh_coordinates(const wefti_mesh *mesh, int32_t rank, int32_t out[WEFTI_MAX_AXES]);
int32_t wefti_mesh_rank(const wefti_mesh *mesh, const int32_t coordinates[WEFTI_MAX_AXES]);
int wefti_mesh_find(const wefti_mesh *mesh, const char *name); /* -1: no such axis */
/* An axis "dp_shard" behind an axis "dp" is a part of it, the inner one: what is said of "dp" by
 * its meaning (batches, numbers of cuts) holds for both together. */
enum { WEFTI_AXIS_NAME = sizeof((wefti_axis *)0)->name };
bool wefti_mesh_part(const wefti_mesh *mesh, int axis);
void wefti_mesh_part_name(const char *name, char out[WEFTI_AXIS_NAME]);
int32_t wefti_mesh_product(const wefti_mesh *mesh, wefti_axes axes); /* of their sizes */
/* The ranks that differ from `rank` along `axes` at most, ascending; returns their number; `out`
 * has room for it. */
int32_t wefti_mesh_group(const wefti_mesh *mesh, int32_t rank, wefti_axes axes, int32_t *out);
/* A mesh is legal: 1 to 8 axes with unique names and sizes >= 1. */
weft_status wefti_mesh_check(const wefti_mesh *mesh) WEFT_CHECKED;

typedef struct wefti_dim_split {
    int8_t count;                /* axes that split this dimension, 0: not split */
    int8_t axis[WEFTI_MAX_AXES]; /* outermost first */
    int64_t unit; /* parts are whole numbers of this many elements (heads); divides the size; 0 and
                     1: any. Normal form (wefti_layout_normal): 1 where it makes no difference. */
} wefti_dim_split;

typedef struct wefti_layout {
    int8_t rank; /* dimensions of the tensor */
    wefti_dim_split dim[WEFT_MAX_RANK];
    wefti_axes sum, max; /* partial over these */
} wefti_layout;

wefti_layout wefti_layout_replicated(int rank);
/* Axes of dimension d as a set; all axes that split any dimension; those and the partial ones. */
wefti_axes wefti_layout_dim_axes(const wefti_layout *layout, int d);
wefti_axes wefti_layout_split_axes(const wefti_layout *layout);
wefti_axes wefti_layout_axes(const wefti_layout *layout);
/* Parts along dimension d. */
int32_t wefti_layout_parts(const wefti_layout *layout, const wefti_mesh *mesh, int d);
/* Units of 1 where all parts are the same anyway; axes of size 1 dropped. Equal layouts have equal
 * normal forms; all functions here give normal forms. */
void wefti_layout_normal(wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole);
bool wefti_layout_equal(const wefti_layout *a, const wefti_layout *b);
/* Legal for this tensor: axes exist, each is used once, units divide sizes, rank fits. */
weft_status wefti_layout_check(const wefti_layout *layout, const wefti_mesh *mesh,
                               const weft_desc *whole) WEFT_CHECKED;
/* Whether it is legal and gives each part something of each dimension. Pieces of states may be
 * empty; who asks for a layout by name means more parts than that by mistake. */
weft_status wefti_layout_check_asked(const wefti_layout *layout, const wefti_mesh *mesh,
                                     const weft_desc *whole) WEFT_CHECKED;

/* Part `index` of `parts` of n elements in units of `unit`. */
void wefti_part(int64_t n, int64_t unit, int32_t parts, int32_t index, int64_t *out_begin,
                int64_t *out_size);
/* The smallest unit that gives the same parts as `unit`, a divisor of n, does. */
int64_t wefti_part_unit(int64_t n, int64_t unit, int32_t parts);

/* A region of a tensor, in coordinates of the whole. */
typedef struct wefti_region {
    int64_t begin[WEFT_MAX_RANK], size[WEFT_MAX_RANK];
} wefti_region;

/* What `rank` holds. */
void wefti_layout_region(const wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole,
                         int32_t rank, wefti_region *out);
/* The same by the device's coordinates. */
void wefti_layout_region_at(const wefti_layout *layout, const wefti_mesh *mesh,
                            const weft_desc *whole, const int32_t at[WEFTI_MAX_AXES],
                            wefti_region *out);
/* The same as a tensor: dtype of `whole`, sizes of the region. */
weft_desc wefti_layout_local(const wefti_layout *layout, const wefti_mesh *mesh,
                             const weft_desc *whole, int32_t rank);
int64_t wefti_region_elems(const wefti_region *region, int rank);
bool wefti_region_intersect(const wefti_region *a, const wefti_region *b, int rank,
                            wefti_region *out); /* not empty */
/* Whether `rank` is the device that counts among those that hold the same region: coordinate 0
 * along all axes that the layout does not use, and its partial ones. */
bool wefti_layout_counts(const wefti_layout *layout, const wefti_mesh *mesh, int32_t rank);

/* "[dp, tp+sp:64, -] sum(tp)": dimension 0 split by dp, 1 by tp then sp in units of 64, 2 not;
 * partial over tp. Parsing refuses what the mesh does not have, naming the axes it has. */
typedef struct wefti_layout_words {
    char text[320]; /* of eight axes with the longest names, each with a unit */
} wefti_layout_words;
wefti_layout_words wefti_layout_text(const wefti_layout *layout, const wefti_mesh *mesh);
weft_status wefti_layout_parse(const char *text, const wefti_mesh *mesh,
                               wefti_layout *out) WEFT_CHECKED;

/* MindSpore's forms. device_matrix has k numbers, the last one fastest; tensor_map has one entry
 * for each dimension: the axis that splits it, counted from the right (rightmost is 0), -1: none.
 * A mesh made from a device matrix names its axes "d0".. from the right. */
weft_status wefti_layout_from_map(const int32_t *device_matrix, int k, const int32_t *tensor_map,
                                  int rank, wefti_mesh *out_mesh, wefti_layout *out) WEFT_CHECKED;
/* Back again: WEFT_E_NO_IMPL when several axes split one dimension or a value is partial. */
weft_status wefti_layout_to_map(const wefti_layout *layout, const wefti_mesh *mesh,
                                int32_t device_matrix[WEFTI_MAX_AXES],
                                int32_t tensor_map[WEFT_MAX_RANK]) WEFT_CHECKED;
/* Cuts for each dimension, (4, 1): axes of the mesh, in its order, whose sizes multiply to each
 * number in turn, each axis used once over all dimensions of all the op's operands (`used` is
 * updated; equal factors share axes by the caller). WEFT_E_ARG naming the cuts the mesh allows. */
weft_status wefti_cut_axes(const wefti_mesh *mesh, int64_t cuts, wefti_axes *used,
                           wefti_dim_split *out) WEFT_CHECKED;
/* All cuts of an op at once, so that none takes the axes that another needs: all ways to do so, in
 * order. The first one has, of each cut in turn, the fewest axes, among those the outermost, with
 * which there are some for the others. A visit that fails ends it. Where there is no way,
 * *out_failed is the cut that wefti_cut_axes, one after the other, has none for. */
typedef weft_status wefti_cut_visit(void *context, const wefti_dim_split *splits /* [count] */);
weft_status wefti_cut_each(const wefti_mesh *mesh, int count, const int64_t *cuts,
                           wefti_cut_visit *visit, void *context, int *out_failed) WEFT_CHECKED;

#endif
