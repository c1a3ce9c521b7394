/* The four error macros and what stands behind them. See weft/status.h for the contract. */
#ifndef WEFTI_BASE_STATUS_H
#define WEFTI_BASE_STATUS_H

#include "weft/status.h"

/* Record a failure: the first detector's message. Returns `status`. */
weft_status wefti_raise(weft_status status, const char *function, const char *file, int line,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Add a breadcrumb. Returns `status`. */
weft_status wefti_note(weft_status status, const char *function, const char *file, int line);
/* Put `format...` and ": " in front of the current message (cell path, file name...). Returns
 * `status`. */
weft_status wefti_prefix(weft_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Replace this thread's message, for failures that travelled from another thread. */
weft_status wefti_adopt(weft_status status, const char *message);
void wefti_error_clear(void);

#define WEFT_RAISE(status, ...) wefti_raise((status), __func__, __FILE__, __LINE__, __VA_ARGS__)
#define WEFT_FAIL(status, ...) return WEFT_RAISE((status), __VA_ARGS__)
#define WEFT_REQUIRE(cond, status, ...)                                                            \
    do {                                                                                           \
        if (!(cond)) WEFT_FAIL((status), __VA_ARGS__);                                             \
    } while (0)
#define WEFT_TRY(expr)                                                                             \
    do {                                                                                           \
        weft_status weft_s_ = (expr);                                                              \
        if (weft_s_ < 0) return wefti_note(weft_s_, __func__, __FILE__, __LINE__);                 \
    } while (0)
#define WEFT_TRY_OR(label, st, expr)                                                               \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if ((st) < 0) {                                                                            \
            (void)wefti_note((st), __func__, __FILE__, __LINE__);                                  \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#endif
