/* Monotonic time. */
#ifndef WEFTI_BASE_CLOCK_H
#define WEFTI_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t wefti_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline double wefti_now_s(void) {
    return (double)wefti_now_ns() * 1e-9;
}
/* Converts seconds to ns, at most 1e8 s. Uses `otherwise` if `seconds` is not above 0. */
static inline int64_t wefti_ns_of_seconds(double seconds, double otherwise) {
    double chosen = seconds > 0 ? seconds : otherwise;
    return (int64_t)((chosen < 1e8 ? chosen : 1e8) * 1e9);
}

#endif
