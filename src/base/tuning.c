/* See tuning.h. */
#include "base/tuning.h"

static wefti_tuning tuned;

void wefti_tune(const wefti_tuning *tuning) {
    tuned = tuning ? *tuning : (wefti_tuning){0};
}

const wefti_tuning *wefti_tuned(void) {
    return &tuned;
}
