/* The kernel paths that tests run: each isa of this processor natively, and each of x86-64 in plain
 * C (backend/cpu/emulated.h), so that every path is tested on every processor. */
#ifndef TESTS_BACKEND_PATHS_H
#define TESTS_BACKEND_PATHS_H

#include <stdio.h>

#include "backend/cpu/emulated.h"

enum { PATHS = 2 * WEFTI_ISAS };

static inline wefti_isa path_isa(int path) {
    return (wefti_isa)(path % WEFTI_ISAS);
}
static inline bool path_is_emulated(int path) {
    return path >= WEFTI_ISAS;
}
static inline const char *path_text(int path) {
    static char text[32];
    snprintf(text, sizeof text, "%s, %s", wefti_isa_text(path_isa(path)),
             path_is_emulated(path) ? "emulated" : "native");
    return text;
}
/* Makes the backend use the path until path_end. False: this processor lacks it, or, for plain C,
 * there is nothing to emulate. Use it as `if (!path_begin(path)) continue;`. */
static inline bool path_begin(int path) {
    if (path_is_emulated(path)) {
        if (path_isa(path) == WEFTI_ISA_PLAIN) return false;
        wefti_cpu_tune(&wefti_cpu_emulated);
        return true;
    }
    wefti_cpu_tune(NULL);
    return wefti_isa_has(path_isa(path));
}
static inline void path_end(void) {
    wefti_cpu_tune(NULL);
}

#endif
