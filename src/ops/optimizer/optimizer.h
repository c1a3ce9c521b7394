/* What the files of optimizer steps share. */
#ifndef WEFTI_OPS_OPTIMIZER_H
#define WEFTI_OPS_OPTIMIZER_H

#include "ops/common.h"

/* Places in the scalars of a step. */
enum { WEFTI_LEARNING_RATE, WEFTI_STEP_NUMBER, WEFTI_GRAD_SCALE };

/* Operand number of the gradient; the scalars come next, then what a piece is told of the whole. */
int wefti_optimizer_gradient(const weft_node *n);
/* optimizer_split.c: what one device does of a step that needs norms or means of the whole. */
weft_status wefti_lamb_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_adafactor1_lower(wefti_lowering *c, const weft_node *n);

#endif
