/* Status codes and the error trail: how every call of weft that can fail reports.
 *
 * A call returns WEFT_OK (0), WEFT_PENDING (1) or a negative code. The codes are grouped by the
 * loss: the call, the operation, the communicator, the process. The function that detects an error
 * writes one message with the values involved, and each caller on the way up adds a breadcrumb.
 * Both are kept per thread. The library never prints them. */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STATUS_LIST(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(PENDING, 1, "not finished yet")                                                              \
    X(E_ARG, -1, "bad argument")                                                                   \
    X(E_SHAPE, -2, "shapes do not fit")                                                            \
    X(E_LAYOUT, -3, "layout not possible")                                                         \
    X(E_NO_IMPL, -4, "not applicable here")                                                        \
    X(E_NOT_FOUND, -5, "not found")                                                                \
    X(E_NOMEM, -20, "out of memory")                                                               \
    X(E_IO, -21, "input or output failed")                                                         \
    X(E_CORRUPT, -22, "damaged data")                                                              \
    X(E_NUMERIC, -23, "not a finite number")                                                       \
    X(E_STOPPED, -24, "stopped on request")                                                        \
    X(E_PEER, -40, "a peer failed")                                                                \
    X(E_TIMEOUT, -41, "timed out")                                                                 \
    X(E_MISMATCH, -42, "peers disagree")                                                           \
    X(E_LOST, -43, "a peer was lost")                                                              \
    X(E_RECOVERED, -44, "a peer was lost and replaced")                                            \
    X(E_DEVICE, -60, "device failed")                                                              \
    X(E_BUG, -99, "internal error")

typedef enum weft_status {
#define WEFT_STATUS_ROW(name, value, text) WEFT_##name = value,
    WEFT_STATUS_LIST(WEFT_STATUS_ROW)
#undef WEFT_STATUS_ROW
} weft_status;

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_CHECKED __attribute__((warn_unused_result))
#else
#define WEFT_API
#define WEFT_CHECKED
#endif

/* Structures that callers fill in, and that may get more members at their end, begin with
 * struct_bytes, the size that the caller was compiled with. Begin with the ..._defaults() of the
 * structure, which sets it, or set it to sizeof yourself. A library takes smaller structures, of
 * older headers: it uses defaults for the members that they lack. It refuses a larger one in which
 * a member is set that it does not know (WEFT_E_NO_IMPL). */
#define WEFTI_ZERO_DEFAULTS(type, name)                                                            \
    static inline type name(void) {                                                                \
        type structure;                                                                            \
        memset(&structure, 0, sizeof structure);                                                   \
        structure.struct_bytes = sizeof structure;                                                 \
        return structure;                                                                          \
    }
#define WEFTI_FILLED_DEFAULTS(type, name, fill)                                                    \
    static inline type name(void) {                                                                \
        type structure;                                                                            \
        memset(&structure, 0, sizeof structure);                                                   \
        fill(&structure, sizeof structure);                                                        \
        return structure;                                                                          \
    }

/* A structure with its size and some members set; the others are zero:
 * WEFT_STRUCT(weft_generate_options, .tokens = 100). The ..._defaults() set more where zero is not
 * the default. */
#ifdef __cplusplus
#define WEFT_STRUCT(type, ...) (type{.struct_bytes = sizeof(type), __VA_ARGS__})
#else
#define WEFT_STRUCT(type, ...) ((type){.struct_bytes = sizeof(type), __VA_ARGS__})
#endif

/** Free a text that a call has returned and that its caller frees; NULL is legal. */
WEFT_API void weft_text_free(char *text);

/** Short text of a status code, for example "shapes do not fit". Never NULL; static storage. */
WEFT_API const char *weft_status_text(weft_status status);

/** The message of this thread's last failure, "" if none. Valid until this thread's next failing
 * call. */
WEFT_API const char *weft_error_message(void);

/** The breadcrumbs of this thread's last failure, innermost first, one "function (file:line)" per
 * line. Valid until this thread's next failing call. */
WEFT_API const char *weft_error_trail(void);

/** The rank of the world that failed, according to the message of this thread's last failure. */
enum {
    WEFT_RANK_OWN = -1, /* this process failed; the message names no rank */
    WEFT_RANK_NONE = -2 /* no single rank failed; the message names all that are known */
};
WEFT_API int weft_error_rank(void);

/** Make `message` (copied) this thread's message, and return `status`. For functions that a program
 * passes to weft, such as those of weft/transport.h, to report their failures. */
WEFT_API weft_status weft_error_raise(weft_status status, const char *message);

/** The entry of `words` (NULL-terminated) nearest to `word` by edit distance, for messages that ask
 * "did you mean ...?". Case does not count, nor does '-' for '_'. NULL: no entry is within
 * max(2, length / 3) edits (a word of two characters: within one). */
WEFT_API const char *weft_nearest(const char *word, const char *const *words);

#ifdef __cplusplus
}
#endif
#endif
