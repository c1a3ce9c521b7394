/* The per-thread error trail. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = WEFTI_ERROR_TEXT, TRAIL_BYTES = 2048 };

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local char trail[TRAIL_BYTES];
static _Thread_local size_t trail_used;
static _Thread_local int blamed = WEFT_RANK_OWN;

const char *weft_status_text(weft_status status) {
    switch (status) {
#define WEFT_STATUS_ROW(name, value, text)                                                         \
    case WEFT_##name:                                                                              \
        return text;
        WEFT_STATUS_LIST(WEFT_STATUS_ROW)
#undef WEFT_STATUS_ROW
    }
    return "unknown status";
}

const char *weft_error_message(void) {
    return message;
}
const char *weft_error_trail(void) {
    return trail;
}
int weft_error_rank(void) {
    return blamed;
}

void wefti_error_clear(void) {
    message[0] = '\0';
    trail[0] = '\0';
    trail_used = 0;
    blamed = WEFT_RANK_OWN;
}

weft_status wefti_note(weft_status status, const char *function, const char *file, int line) {
    const char *base = strrchr(file, '/');
    int n = snprintf(trail + trail_used, TRAIL_BYTES - trail_used, "%s (%s:%d)\n", function,
                     base ? base + 1 : file, line);
    if (n > 0 && (size_t)n < TRAIL_BYTES - trail_used) trail_used += (size_t)n;
    trail[trail_used] = '\0';
    return status;
}

weft_status wefti_raise(weft_status status, const char *function, const char *file, int line,
                        const char *format, ...) {
    char fresh[MESSAGE_BYTES]; /* arguments may point into the old message */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fresh, sizeof fresh, format, args);
    va_end(args);
    memcpy(message, fresh, sizeof fresh);
    trail_used = 0;
    blamed = WEFT_RANK_OWN;
    return wefti_note(status, function, file, line);
}

weft_status wefti_prefix(weft_status status, const char *format, ...) {
    char fresh[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(fresh, sizeof fresh, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof fresh - 3) return status;
    (void)snprintf(fresh + n, sizeof fresh - (size_t)n, ": %.*s",
                   (int)(sizeof fresh - (size_t)n - 3), message);
    memcpy(message, fresh, sizeof fresh);
    return status;
}

weft_status wefti_adopt_of(weft_status status, int rank, const char *text) {
    char fresh[MESSAGE_BYTES];
    (void)snprintf(fresh, sizeof fresh, "%s", text);
    memcpy(message, fresh, sizeof fresh);
    return wefti_blame(status, rank);
}
weft_status wefti_adopt(weft_status status, const char *text) {
    return wefti_adopt_of(status, WEFT_RANK_OWN, text);
}

weft_status wefti_blame(weft_status status, int rank) {
    blamed = rank;
    return status;
}

weft_status wefti_name_rank(weft_status status, int rank) {
    if (blamed != WEFT_RANK_OWN) return status;
    (void)wefti_prefix(status, "rank %d", rank);
    return wefti_blame(status, rank);
}

void wefti_failure_keep(weft_status status, wefti_failure *out) {
    out->status = status;
    out->rank = blamed;
    memcpy(out->message, message, sizeof message);
}
weft_status wefti_failure_tell(const wefti_failure *failure) {
    return wefti_adopt_of(failure->status, failure->rank, failure->message);
}

weft_status weft_error_raise(weft_status status, const char *text) {
    trail[0] = '\0';
    trail_used = 0;
    return wefti_adopt(status, text ? text : "");
}

/* ---- structures of callers ---- */

weft_status wefti_struct_take(const char *what, const void *given, void *own) {
    size_t has, knows;
    if (!given) return WEFT_OK;
    memcpy(&has, given, sizeof has);
    memcpy(&knows, own, sizeof knows);
    WEFT_REQUIRE(has >= sizeof has && has <= 1 << 16, WEFT_E_ARG,
                 "%s.struct_bytes is %zu: begin with the defaults of the structure, or set it to "
                 "sizeof(%s)",
                 what, has, what);
    memcpy(own, given, has < knows ? has : knows); /* a call that fails may need its world */
    memcpy(own, &knows, sizeof knows);
    for (size_t at = knows; at < has; at++)
        WEFT_REQUIRE(!((const unsigned char *)given)[at], WEFT_E_NO_IMPL,
                     "%s has a member set that this library, which is older than the program, does "
                     "not have",
                     what);
    return WEFT_OK;
}

void wefti_struct_fill(const void *defaults, void *out, size_t bytes) {
    size_t knows;
    memcpy(&knows, defaults, sizeof knows);
    const size_t has = bytes < knows ? bytes : knows;
    if (bytes < sizeof bytes) return;
    memcpy(out, defaults, has);
    memset((char *)out + has, 0, bytes - has);
    memcpy(out, &bytes, sizeof bytes);
}
