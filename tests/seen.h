/* The states that an explorer has seen, by digests of 128 bits. */
#ifndef WEFT_TEST_SEEN_H
#define WEFT_TEST_SEEN_H

#include "support.h"

#include "base/digest/digest.h"

typedef struct seen_digest {
    uint64_t a, b;
} seen_digest;

typedef struct seen_states {
    seen_digest *digest;
    unsigned char *mark; /* of each slot: 0 empty */
    size_t slots, count;
} seen_states;

static inline size_t seen_slot(const seen_states *s, seen_digest of) {
    size_t at = of.a & (s->slots - 1);
    while (s->mark[at] && (s->digest[at].a != of.a || s->digest[at].b != of.b))
        at = (at + 1) & (s->slots - 1);
    return at;
}

static inline void seen_free(seen_states *s) {
    free(s->digest);
    free(s->mark);
    *s = (seen_states){0};
}

static inline void seen_grow(seen_states *s) {
    seen_states old = *s;
    s->slots = old.slots ? 2 * old.slots : 1 << 16;
    s->digest = calloc(s->slots, sizeof *s->digest);
    s->mark = calloc(s->slots, 1);
    assert_non_null(s->digest);
    assert_non_null(s->mark);
    for (size_t i = 0; i < old.slots; i++) {
        if (!old.mark[i]) continue;
        const size_t at = seen_slot(s, old.digest[i]);
        s->digest[at] = old.digest[i];
        s->mark[at] = old.mark[i];
    }
    seen_free(&old);
}

/* The mark of a state. 0: it is new, and the caller sets a mark. Void once another one is asked
 * for. */
static inline unsigned char *seen_mark(seen_states *s, seen_digest of) {
    if (2 * (s->count + 1) > s->slots) seen_grow(s);
    const size_t at = seen_slot(s, of);
    if (s->mark[at]) return &s->mark[at];
    s->digest[at] = of;
    s->count++;
    return &s->mark[at];
}

#endif
