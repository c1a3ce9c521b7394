/* Start values of tensors by global position: a piece holds exactly what the whole would hold
 * there, whatever the split. Element i of a tensor has the random number of position i of its
 * stream (base/philox.h). */
#ifndef WEFTI_FILL_H
#define WEFTI_FILL_H

#include "layout/layout.h"
#include "weft/graph.h"

/* Write elements [first, first + count) of the region, in the region's own row-major order, to
 * `region_data` (its element 0; dtype of `whole`). Calls for other elements may run beside it. */
void wefti_fill_region(const weft_init *init, uint64_t seed, uint64_t stream,
                       const weft_desc *whole, const wefti_region *region, int64_t first,
                       int64_t count, void *region_data);

#endif
