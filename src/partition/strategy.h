/* The strategy of a node, in two parts: what the plan states (strategy_plan.c), and the choice of
 * what it leaves open (strategy.c). */
#ifndef WEFTI_PARTITION_STRATEGY_H
#define WEFTI_PARTITION_STRATEGY_H

#include "partition/context.h"

bool wefti_strategy_splittable(const wefti_lowering *c, int f); /* by this factor */
/* Elements of a dimension of `size` for each unit of its factor; 1 if both are split on their own
 * (spatial dimensions). */
int64_t wefti_strategy_unit(const wefti_lowering *c, int f, int64_t size);
int64_t wefti_strategy_parts(const wefti_lowering *c, const wefti_dim_split *split);

/* WEFT_E_LAYOUT: the strategy says `what`, which is wrong because of `why`. */
weft_status wefti_strategy_refuse(const wefti_lowering *c, const wefti_strategy *s,
                                  const char *what, const char *why) WEFT_CHECKED;

/* The functions below set factors of c->factor, and add their axes to *used. */

/* One factor. `what` are the strategy's words, for a message. */
weft_status wefti_strategy_take(wefti_lowering *c, const wefti_strategy *s, int f,
                                const wefti_dim_split *split, const char *what,
                                wefti_axes *used) WEFT_CHECKED;
/* All factors that the strategy names. A strategy of an op must apply as a whole. */
weft_status wefti_strategy_take_splits(wefti_lowering *c, const wefti_strategy *s,
                                       wefti_axes *used) WEFT_CHECKED;
/* What the strategy of a model's op means for its gradient (wefti_partition_guided). */
void wefti_strategy_take_guidance(wefti_lowering *c, const wefti_strategy *s, wefti_axes *used);

/* MindSpore's cuts: the number of parts of each factor, in the order in which the factors occur. */
typedef struct wefti_cut_list {
    int count;
    int factor[WEFTI_MAX_FACTORS];
    int64_t cuts[WEFTI_MAX_FACTORS];
    char what[WEFTI_MAX_FACTORS][64]; /* for messages */
} wefti_cut_list;

/* Lists the cuts: for each input in turn, one number per dimension. */
weft_status wefti_strategy_list_cuts(const wefti_lowering *c, const wefti_strategy *s,
                                     wefti_cut_list *list) WEFT_CHECKED;

#endif
