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
/* Replace this thread's message, for failures that travelled from another thread; as the first of a
 * failure's, it names no rank. */
weft_status wefti_adopt(weft_status status, const char *message);

/* Who failed (weft_error_rank) is told with the failure, never read off its text. The message names
 * `rank` already, or is complete without (WEFT_RANK_NONE). Returns `status`. */
weft_status wefti_blame(weft_status status, int rank);
/* The same of a message that came from elsewhere. */
weft_status wefti_adopt_of(weft_status status, int rank, const char *message);
/* "rank N: " in front of the message, unless it was blamed on somebody already. */
weft_status wefti_name_rank(weft_status status, int rank);

/* A failure that is kept while other calls, which may fail too, follow. */
enum { WEFTI_ERROR_TEXT = 2048 };
typedef struct wefti_failure {
    weft_status status; /* WEFT_OK: there is none */
    int rank;
    char message[WEFTI_ERROR_TEXT];
} wefti_failure;
void wefti_failure_keep(weft_status status, wefti_failure *out);
/* Makes it this thread's again. Returns its status. */
weft_status wefti_failure_tell(const wefti_failure *failure);
void wefti_error_clear(void);

#define WEFT_RAISE(status, ...) wefti_raise((status), __func__, __FILE__, __LINE__, __VA_ARGS__)
#define WEFT_FAIL(status, ...) return WEFT_RAISE((status), __VA_ARGS__)
/* The message names `rank_`. */
#define WEFT_FAIL_OF(rank_, status, ...)                                                           \
    return wefti_blame(WEFT_RAISE((status), __VA_ARGS__), (rank_))
#define WEFT_REQUIRE_OF(rank_, cond, status, ...)                                                  \
    do {                                                                                           \
        if (!(cond)) WEFT_FAIL_OF((rank_), (status), __VA_ARGS__);                                 \
    } while (0)
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
