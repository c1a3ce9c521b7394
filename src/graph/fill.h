/* Initial values of tensors by global position. A piece gets exactly the values that the whole
 * tensor has there, for every split. Element i of a tensor gets the random number at position i of
 * the tensor's stream (base/philox.h). */
#ifndef WEFTI_FILL_H
#define WEFTI_FILL_H

#include "layout/layout.h"
#include "weft/graph.h"

/* Writes elements [first, first + count) of the region, in the region's own row-major order, to
 * `region_data`, which points to element 0 and has the dtype of `whole`. Calls for other elements
 * may run in parallel. */
void wefti_fill_region(const weft_init *init, uint64_t seed, uint64_t stream,
                       const weft_desc *whole, const wefti_region *region, int64_t first,
                       int64_t count, void *region_data);

#endif
