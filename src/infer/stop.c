/* Stop texts: where a growing text completes one. See infer/generate.h. */
#include <string.h>

#include "base/memory.h"
#include "infer/generate.h"

weft_status wefti_stops_open(wefti_stops *s, const char *const *texts, int64_t count,
                             const char *prompt, int64_t bytes) {
    int64_t ignored;
    WEFT_REQUIRE(count >= 0 && (texts || count == 0), WEFT_E_ARG, "%lld stop texts, at NULL",
                 (long long)count);
    s->texts = texts;
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        WEFT_REQUIRE(texts[i] && *texts[i], WEFT_E_ARG, "stop text %lld is empty", (long long)i);
        int64_t length = (int64_t)strlen(texts[i]);
        if (length > s->longest) s->longest = length;
    }
    int64_t kept = bytes < s->longest ? bytes : s->longest; /* the rest cannot be a part of one */
    return kept ? wefti_stops_add(s, prompt + bytes - kept, kept, &ignored) : WEFT_OK;
}

/* Does `text` end in the bytes of the tail from `old` on? */
static bool ends_in_new(const wefti_stops *s, const char *text, int64_t old) {
    int64_t length = (int64_t)strlen(text), first = old - length + 1;
    for (int64_t at = first < 0 ? 0 : first; at + length <= s->used; at++)
        if (!memcmp(s->tail + at, text, (size_t)length)) return true;
    return false;
}

weft_status wefti_stops_add(wefti_stops *s, const char *token, int64_t bytes, int64_t *out) {
    *out = -1;
    if (s->count == 0 || bytes == 0) return WEFT_OK;
    int64_t old = s->used;
    if (old + bytes > s->capacity) {
        char *tail = wefti_realloc(s->tail, (size_t)(old + bytes) * 2);
        WEFT_REQUIRE(tail, WEFT_E_NOMEM, "no memory to look for stop texts");
        s->tail = tail;
        s->capacity = (old + bytes) * 2;
    }
    memcpy(s->tail + old, token, (size_t)bytes);
    s->used += bytes;
    for (int64_t i = 0; i < s->count && *out < 0; i++)
        if (ends_in_new(s, s->texts[i], old)) *out = i;
    int64_t kept = s->used < s->longest - 1 ? s->used : s->longest - 1;
    memmove(s->tail, s->tail + s->used - kept, (size_t)kept);
    s->used = kept;
    return WEFT_OK;
}

void wefti_stops_close(wefti_stops *s) {
    wefti_free(s->tail);
    *s = (wefti_stops){0};
}
