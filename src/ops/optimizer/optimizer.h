/* Declarations that the files of optimizer steps share. */
#ifndef WEFTI_OPS_OPTIMIZER_H
#define WEFTI_OPS_OPTIMIZER_H

#include <stddef.h>

#include "ops/common.h"

/* optimizer/split.c: the part of one device in a step that needs norms or means of the whole
 * tensor. */
weft_status wefti_lamb_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor1_lower(wefti_lowering *c, const weft_node *n);

#endif
