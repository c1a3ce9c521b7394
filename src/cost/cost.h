/* Costs: seconds of kernels and transfers on a machine model, from first principles.
 *
 * Kernels. seconds = launch + factor x max(flops / rate, bytes / bandwidth).
 * - The factor is 1, or the op's own correction by its size, measured on runs.
 * - The rate of a product is peak x product_efficiency x the use of its tiles. With a measured
 *   curve it is the curve's rate for the product's flops instead.
 * - Tiles: a product of r rows and c columns has ceil(r / tile_rows) x ceil(c / tile_columns)
 *   output tiles. The device's units compute them in waves. The use is the part of all elements of
 *   all waves that the product has. Libraries have smaller tiles for small products; they reach
 *   less of the peak (wefti_tile_use).
 * - Depth: a tile of depth d takes as long as one of d + tile_depth at the full rate, since units
 *   load the first operands before they compute, and store results after that.
 * - Alignment: if rows of an operand are no multiples of aligned_bytes, loads are narrower.
 * - Products with operands in 8 bits (attribute f8): a cast of each operand comes before. It is a
 *   kernel that reads the operand and writes a byte for each element. The product reads these
 * bytes, at the rate of f8. Scales are those of the step before (delayed scaling), so nothing is
 * read twice.
 *
 * Transfers. A group has n_l blocks of level l - 1 in each block of level l. Collectives run level
 * by level, as hierarchical algorithms do. With one level, these are the usual ring and tree.
 * - all-gather and reduce-scatter at one level: min(n - 1, ceil(log2 n)) latencies, and the bytes
 *   that a device receives there.
 * - all-reduce: a reduce-scatter and an all-gather; or a tree of 2 ceil(log2 n) latencies and twice
 *   the bytes; or, if switches reduce, 2 latencies and the bytes once.
 * - If a level has a measured curve of all-reduces, no collective within it is faster than that.
 * - all-to-all: the level with the most seconds counts; messages of all levels are under way at the
 *   same time.
 * - Other transfers: each pair of members moves its bytes over its own level; the busiest member
 *   counts.
 *
 * Shared uplinks: all devices of the group's mesh that lie in one block send at the same time,
 * since a mesh has equal groups side by side.
 *
 * Sources: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
 * MPICH", 2005 (latency and bytes of each algorithm); NVIDIA, "Matrix multiplication background
 * user's guide" (tile and wave quantisation, alignment). */
#ifndef WEFTI_COST_H
#define WEFTI_COST_H

#include "device/location.h"
#include "graph/op.h"
#include "layout/transfer.h"
#include "topo/model.h"

/* Sizes of a product: `batch` products of rows x depth by depth x columns. */
typedef struct wefti_product_shape {
    double batch, rows, columns, depth;
} wefti_product_shape;

/* The part of the units' time that output elements use, at most 1. 1 if the model has no tiles. */
double wefti_tile_use(const wefti_device_model *device, const wefti_product_shape *shape);
/* The part of the rate that depth and alignment leave. 1 if the model has no such figures. */
double wefti_shape_use(const wefti_device_model *device, wefti_arithmetic arithmetic,
                       const wefti_product_shape *shape);
/* shape NULL: unknown, tiles count as fully used. */
double wefti_product_seconds(const wefti_device_model *device, wefti_arithmetic arithmetic,
                             const wefti_product_shape *shape, double flops, double bytes);
double wefti_vector_seconds(const wefti_device_model *device, double flops, double bytes);

/* The arithmetic of a node: f8 by its attribute, else that of its narrowest floating-point operand.
 */
wefti_arithmetic wefti_node_arithmetic(const weft_node *n);
/* The sizes of a product, from its split rule: free factors of the first operand are rows, those of
 * the second columns, those of both batches; summed factors are depth. False: none of that form. */
bool wefti_node_product(const weft_node *n, wefti_product_shape *out);
/* space HOST: the host computes the node, on its memory, which moves at the machine's
 * host_memory_bytes_per_second; without that figure, as on the device. */
double wefti_node_model_seconds(const wefti_machine_model *machine, wefti_space space,
                                const weft_node *n, const wefti_cost *cost);
/* Copies of `bytes` within the device: read and written. */
double wefti_copy_seconds(const wefti_machine_model *machine, double bytes);
/* The machine's rates of a tier below device memory. */
const wefti_tier_rates *wefti_tier_rates_of(const wefti_machine_model *machine, wefti_space tier);
/* A copy between device memory and a tier, at the machine's rate of the tier. Where that is
 * unknown, a copy to host memory is like one within the device, and the disk has an assumed rate.
 * The ranks of a host share its disk: it serves all of them at the same time. */
double wefti_tier_seconds(const wefti_machine_model *machine, wefti_space tier, wefti_tier_way way,
                          double bytes, int32_t ranks);

/* The devices that communicate at the same time: a stage's mesh. */
typedef struct wefti_active {
    int32_t first, count;
} wefti_active;
/* The outermost level that the members of a transfer need. */
int32_t wefti_transfer_level(const wefti_machine_model *machine, const wefti_transfer *t);
double wefti_transfer_seconds(const wefti_machine_model *machine, const wefti_transfer *t,
                              wefti_active active);
/* Seconds of a collective by its group's shape, without regions: for searches. `bytes`: of the
 * whole value. per_level[l]: blocks of level l - 1 (level 0: members) in one block of level l. */
double wefti_collective_seconds(const wefti_machine_model *machine, wefti_transfer_kind kind,
                                double bytes, const int32_t *per_level, wefti_active active);

#endif
