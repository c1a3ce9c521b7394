/* What the files of the HTML report share: see report.c. */
#ifndef WEFTI_SEARCH_PREDICT_REPORT_H
#define WEFTI_SEARCH_PREDICT_REPORT_H

#include "search/predict/predict.h"

/* Adds a text with the characters escaped that HTML reserves. */
void wefti_report_escaped(wefti_text *out, const char *from);

/* report_plan.c: the degrees of the plan, and for each axis of the mesh the ranks on their hosts,
 * in colors of the groups that communicate. */
void wefti_report_mesh(wefti_text *out, const weft_plan *plan, const wefti_machine_model *machine,
                       const weft_prediction *p, const wefti_simulation *s);
/* report_plan.c: the plans that the joint search has simulated beside its answer. */
void wefti_report_alternatives(wefti_text *out, const weft_search_report *search);

#endif
