/* Degrees of parallelism: the few numbers by which other training systems describe a plan. They
 * stand for the usual splits of a model family (models/splits.h). */
#ifndef WEFTI_SEARCH_DEGREES_H
#define WEFTI_SEARCH_DEGREES_H

#include "plan/plan.h"
#include "weft/model.h"

typedef struct wefti_degrees {
    /* Axes of a stage's mesh. An axis of size 1 is left out. The order is that of Megatron's ranks:
     * dp outermost, then ep, cp, tp. Samples are split over dp and ep, sequences over cp, experts
     * over ep and, if their number admits it, over tp as well. */
    int32_t data, expert, context, tensor;
    /* The axes from the outermost to the innermost, as numbers of 0 dp, 1 ep, 2 cp, 3 tp. All 0:
     * the order above. */
    int8_t order[4];
    int32_t sequence; /* 1: norms and residuals are split along the sequence over tp. No padding:
                       * degrees are compared as bytes. */
    int32_t stages, chunks, microbatches; /* chunks: virtual stages of a device */
    weft_schedule schedule;
    int level;     /* of the optimizer: 0 to 3 */
    int32_t shard; /* replicas that share its states; 0: all */
    weft_recompute recompute;
} wefti_degrees;

/* All 1, nothing sharded or recomputed. */
wefti_degrees wefti_degrees_none(void);
/* Whether experts are split over tp too: their mesh has ep x tp ranks, each with whole experts.
 * Else all ranks of tp compute the same experts. */
bool wefti_degrees_spread_experts(const weft_model_config *config, const wefti_degrees *degrees);
/* Makes the plan; weft_plan_destroy it. WEFT_E_ARG if the family has no such splits or its sizes do
 * not admit them: the message names the degree. */
weft_status wefti_degrees_plan(const weft_model_config *config, const wefti_degrees *degrees,
                               weft_plan **out) WEFT_CHECKED;
/* Reads the degrees off a plan with axes of these names. The plan may hold more than degrees can
 * say: compare it with the plan made from them. `out_notes` gets a line for each axis of another
 * name. */
weft_status wefti_degrees_of_plan(const weft_plan *plan, wefti_degrees *out,
                                  wefti_text *out_notes) WEFT_CHECKED;

#endif
