/* The four error macros and the functions that they call. See weft/status.h for the contract. */
#ifndef WEFTI_BASE_STATUS_H
#define WEFTI_BASE_STATUS_H

#include "weft/status.h"

/* Records a failure. Called where the failure is first detected. Returns `status`. */
weft_status wefti_raise(weft_status status, const char *function, const char *file, int line,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Adds one entry to the error trail. Returns `status`. */
weft_status wefti_note(weft_status status, const char *function, const char *file, int line);
/* Puts `format...` and ": " in front of the current message (cell path, file name...). Returns
 * `status`. */
weft_status wefti_prefix(weft_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Replaces this thread's message by the message of a failure from another thread. Like a fresh
 * failure, it has no recorded rank. */
weft_status wefti_adopt(weft_status status, const char *message);

/* Records the rank that failed (weft_error_rank); no code parses the rank from the message. The
 * message already names `rank`, or is complete without it (WEFT_RANK_NONE). Returns `status`. */
weft_status wefti_blame(weft_status status, int rank);
/* wefti_adopt and wefti_blame together, for a message from elsewhere. */
weft_status wefti_adopt_of(weft_status status, int rank, const char *message);
/* Puts "rank N: " in front of the message, unless a rank was already recorded. Returns `status`. */
weft_status wefti_name_rank(weft_status status, int rank);

/* A saved failure: other calls, which may also fail, can run before it is returned. */
enum { WEFTI_ERROR_TEXT = 2048 };
typedef struct wefti_failure {
    weft_status status; /* WEFT_OK: no failure */
    int rank;
    char message[WEFTI_ERROR_TEXT];
} wefti_failure;
void wefti_failure_keep(weft_status status, wefti_failure *out);
/* Makes the saved failure this thread's failure again. Returns its status. */
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

/* Structures that callers fill in (weft/status.h). Copies what the caller's has to `own`, which has
 * this library's defaults and size. `given` NULL: nothing. */
weft_status wefti_struct_take(const char *what, const void *given, void *own) WEFT_CHECKED;
/* The first bytes of `defaults` for a caller with a structure of `bytes` bytes. */
void wefti_struct_fill(const void *defaults, void *out, size_t bytes);

#endif
