/* The door of this folder. */
#ifndef WEFTI_TRAIN_REPORT_H
#define WEFTI_TRAIN_REPORT_H

#include "setup/setup.h"

/* plan.c: a copy of the plan with all decisions written down, of one device too. */
weft_status wefti_built_completed_plan(wefti_built *b, weft_plan **out) WEFT_CHECKED;

#endif
