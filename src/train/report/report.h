/* The door of this folder: programs of a job, built without a session, for the records of runs. */
#ifndef WEFTI_TRAIN_REPORT_H
#define WEFTI_TRAIN_REPORT_H

#include "train/report/programs.h"

#endif
