/* Copies regions of a tensor between its home and an array of the host, block by block. */
#ifndef WEFTI_HOME_REGION_H
#define WEFTI_HOME_REGION_H

#include "device/home.h"
#include "layout/layout.h"

/* A home that has the region `box` of a tensor, and an array `data` that has the region `of`.
 * Copies region `part`, which lies in both. All regions are in coordinates of the tensor. */
weft_status wefti_home_read_region(const wefti_home *home, const wefti_region *box,
                                   const weft_desc *whole, const wefti_region *part,
                                   const wefti_region *of, void *data) WEFT_CHECKED;
weft_status wefti_home_write_region(const wefti_home *home, const wefti_region *box,
                                    const weft_desc *whole, const wefti_region *part,
                                    const wefti_region *of, const void *data) WEFT_CHECKED;

#endif
