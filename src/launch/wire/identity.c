/* What a process is about to run, as names with values: see wire.h. A body is a name and a value,
 * again and again, and is kept as it came: equal identities are equal bytes, so that most
 * comparisons are one memcmp. */
#include <stdio.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/memory.h"
#include "launch/wire/wire.h"

typedef struct identity_line {
    char name[WEFTI_IDENTITY_NAME + 1], value[WEFTI_IDENTITY_VALUE + 1];
} identity_line;

static const char blanks[] = " \t\r";

/* What is between them, without the blanks around it. */
static size_t trim(const char **from, const char *to) {
    while (*from < to && strchr(blanks, **from)) ++*from;
    while (to > *from && strchr(blanks, to[-1])) to--;
    return (size_t)(to - *from);
}

/* As printable text. A digest stands for the end of one that is too long. */
static void copy(const char *text, size_t bytes, size_t limit, char *out) {
    enum { DIGEST = 20 }; /* "... 0123456789abcdef" */
    const bool cut = bytes > limit;
    const size_t kept = cut ? limit - DIGEST : bytes;
    for (size_t i = 0; i < kept; i++)
        out[i] = (char)((unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
    out[kept] = '\0';
    if (cut)
        (void)snprintf(out + kept, DIGEST + 1, "... %016llx",
                       (unsigned long long)wefti_digest_bytes(0, text, bytes));
}

static weft_status pack_line(wefti_pack *p, const char *from, const char *end) {
    identity_line x;
    const char *equals = memchr(from, '=', (size_t)(end - from)),
               *value = equals ? equals + 1 : end;
    const size_t name_bytes = trim(&from, equals ? equals : end), bytes = trim(&value, end);
    if (!equals && name_bytes == 0) return WEFT_OK;
    WEFT_REQUIRE(equals && name_bytes > 0, WEFT_E_ARG,
                 "a line of an identity is '%.*s'; it should be 'name = value'",
                 (int)(name_bytes < 80 ? name_bytes : 80), from);
    copy(from, name_bytes, WEFTI_IDENTITY_NAME, x.name);
    copy(value, bytes, WEFTI_IDENTITY_VALUE, x.value);
    wefti_pack_text(p, x.name, WEFTI_IDENTITY_NAME);
    wefti_pack_text(p, x.value, WEFTI_IDENTITY_VALUE);
    return WEFT_OK;
}

static weft_status take_copy(const unsigned char *body, size_t bytes, wefti_identity *out) {
    *out = (wefti_identity){0};
    if (bytes == 0) return WEFT_OK;
    WEFT_NEW_ARRAY(out->body, unsigned char, bytes);
    memcpy(out->body, body, bytes);
    out->bytes = bytes;
    return WEFT_OK;
}

weft_status wefti_identity_copy(const wefti_identity *from, wefti_identity *out) {
    return take_copy(from->body, from->bytes, out);
}

void wefti_identity_free(wefti_identity *identity) {
    wefti_free(identity->body);
    *identity = (wefti_identity){0};
}

weft_status wefti_identity_encode(const char *text, wefti_identity *out) {
    *out = (wefti_identity){0};
    if (!text || !*text) return WEFT_OK;
    WEFT_NEW_ARRAY(out->body, unsigned char, WEFTI_IDENTITY_MAX);
    wefti_pack p = {.data = out->body, .room = WEFTI_IDENTITY_MAX};
    weft_status status = WEFT_OK;
    for (const char *at = text, *end; *at && status >= 0; at = *end ? end + 1 : end) {
        end = strchrnul(at, '\n');
        status = pack_line(&p, at, end);
    }
    if (status >= 0 && p.full)
        status = WEFT_RAISE(WEFT_E_ARG, "an identity has more than %d bytes", WEFTI_IDENTITY_MAX);
    out->bytes = p.used;
    if (status < 0) wefti_identity_free(out);
    return status;
}

static void unpack_line(wefti_unpack *u, identity_line *out) {
    wefti_unpack_text(u, out->name, WEFTI_IDENTITY_NAME);
    wefti_unpack_text(u, out->value, WEFTI_IDENTITY_VALUE);
    if (!out->name[0]) u->bad = true;
}

weft_status wefti_identity_decode(const wefti_frame *frame, wefti_identity *out) {
    wefti_unpack u = wefti_unpack_of(frame);
    identity_line x;
    *out = (wefti_identity){0};
    while (!u.bad && u.at < u.bytes) unpack_line(&u, &x);
    WEFT_TRY(wefti_unpack_end(&u, "identity"));
    return take_copy(u.data, u.bytes, out);
}

static wefti_unpack lines_of(const wefti_identity *identity) {
    return (wefti_unpack){.data = identity->body, .bytes = identity->bytes};
}

/* The line of this name. Where two have the same lines, it is the next one. */
static bool find(wefti_unpack *at, const wefti_identity *in, const char *name, identity_line *out) {
    wefti_unpack u = *at;
    size_t end = u.bytes;
    for (int round = 0; round < 2; round++, u = lines_of(in), end = at->at)
        while (u.at < end) {
            unpack_line(&u, out);
            if (strcmp(out->name, name) != 0) continue;
            *at = u;
            return true;
        }
    return false;
}

int wefti_identity_compare(const wefti_identity *mine, const wefti_identity *theirs,
                           wefti_text *out) {
    enum { NAMED = 5 };
    int count = 0;
    identity_line x, other;
    if (mine->bytes == theirs->bytes &&
        (mine->bytes == 0 || !memcmp(mine->body, theirs->body, mine->bytes)))
        return 0;
    wefti_unpack u = lines_of(mine), at = lines_of(theirs);
    while (u.at < u.bytes) {
        unpack_line(&u, &x);
        if (!find(&at, theirs, x.name, &other) || strcmp(x.value, other.value) == 0) continue;
        if (count++ == 0)
            wefti_text_add(out, "%s is %s here and %s there", x.name, x.value, other.value);
        else if (count <= NAMED)
            wefti_text_add(out, "%s%s", count == 2 ? "; they also differ in " : ", ", x.name);
    }
    if (count > NAMED) wefti_text_add(out, " and %d more", count - NAMED);
    return count;
}
