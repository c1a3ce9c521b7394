/* From the user's optimizer settings to the ops that a program places for each parameter. */
#ifndef WEFTI_SESSION_OPTIMIZER_H
#define WEFTI_SESSION_OPTIMIZER_H

#include "builder/spec.h"
#include "weft/session.h"

typedef struct wefti_optimizer wefti_optimizer;

/* For the parameters of `graph`, which may be wrapped, and whose names and registry must outlive
 * the result. */
weft_status wefti_optimizer_create(const weft_optimizer *settings, bool clip,
                                   const weft_graph *graph, wefti_optimizer **out) WEFT_CHECKED;
/* The same from the options of a session: with clipping and recovery as they say. */
weft_status wefti_optimizer_for(const weft_session_options *options, const weft_graph *graph,
                                wefti_optimizer **out) WEFT_CHECKED;
void wefti_optimizer_destroy(wefti_optimizer *optimizer);
const wefti_optimizer_plan *
wefti_optimizer_plan_of(const wefti_optimizer *optimizer); /* NULL: of none */
/* Which parameters decay, as a digest. */
uint64_t wefti_optimizer_digest(const wefti_optimizer *optimizer);
const char *wefti_optimizer_text(weft_optimizer_kind kind); /* "adamw" */

#endif
