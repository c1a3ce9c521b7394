/* Declarations that the files of optimizer steps share. */
#ifndef WEFTI_OPS_OPTIMIZER_H
#define WEFTI_OPS_OPTIMIZER_H

#include <stddef.h>

#include "ops/common.h"

/* The place of a scalar among the scalars of a step, for references and slices. */
#define WEFTI_STEP_PLACE(field) (offsetof(wefti_step_scalars, field) / sizeof(float))

/* optimizer/split.c: the part of one device in a step that needs norms or means of the whole
 * tensor. */
weft_status wefti_lamb_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor1_lower(wefti_lowering *c, const weft_node *n);

#endif
