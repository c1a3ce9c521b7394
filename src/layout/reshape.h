/* Regions of a tensor under two shapes with the same elements in the same order. */
#ifndef WEFTI_RESHAPE_H
#define WEFTI_RESHAPE_H

#include "layout/layout.h"

/* Boxes of equal elements: `from` in the one shape, `to` in the other. */
typedef weft_status wefti_box_visit(void *context, const wefti_region *from,
                                    const wefti_region *to);

/* Visits `region` of a tensor of shape `from` in parts that are boxes under both shapes, which have
 * equally many elements. Both boxes of a part list its elements in the same order. Where dimensions
 * are merged, as those of queries, keys and values, a region may become several parts. Ends at the
 * first failure of `visit`. */
weft_status wefti_region_reshape(const weft_desc *from, const wefti_region *region,
                                 const weft_desc *to, wefti_box_visit *visit,
                                 void *context) WEFT_CHECKED;

#endif
