/* What the files of attention share. */
#ifndef WEFTI_OPS_ATTENTION_H
#define WEFTI_OPS_ATTENTION_H

#include "ops/common.h"

/* A causal query i sees keys up to i + this, where no position is given. */
int64_t wefti_attention_offset(const weft_node *n);
/* attention_split.c: what one device computes of split sequences. */
weft_status wefti_attention_lower(wefti_cut *c, const weft_node *n);
weft_status wefti_attention_lower_grad(wefti_cut *c, const weft_node *n);

#endif
