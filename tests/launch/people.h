/* Members of a world that is mended, as threads of this process: what all tests of them share. */
#ifndef WEFT_TEST_PEOPLE_H
#define WEFT_TEST_PEOPLE_H

#include "lanes.h"

#include <stdatomic.h>
#include <sys/socket.h>

enum { PEOPLE = 5 };

/* A member. */
typedef struct person {
    wefti_member_options options;
    char address[64]; /* of its scheduler, which it may outlive */
    wefti_member *member;
    weft_status status;
    char text[2048];
    wefti_stand at;
    wefti_mend mend;
    int32_t cards[PEOPLE];
    int32_t was;            /* its rank when its world was whole; -1: it was not there */
    _Atomic uint64_t whole; /* the generation in which its world was whole, after a repair */
    atomic_bool ended, gone;
    const wefti_elastic *allows;
    bool holds_all; /* it has the state of all ranks */
    int32_t holds[PEOPLE];
    struct person *all; /* [count] */
    int32_t count;
    pthread_t thread;
} person;

static const wefti_elastic keeps_size;

static inline void note(person *p, weft_status status) {
    p->status = status;
    if (status < 0) snprintf(p->text, sizeof p->text, "%s", weft_error_message());
}

static inline void *join(void *context) {
    person *p = context;
    note(p, wefti_member_join(&p->options, &p->member));
    if (p->status >= 0) p->was = wefti_member_rank(p->member);
    return NULL;
}

static inline void *leave(void *context) {
    person *p = context;
    note(p, wefti_member_close(p->member, NULL));
    return NULL;
}

static inline void begin(person *p, void *(*what)(void *)) {
    assert_int_equal(pthread_create(&p->thread, NULL, what, p), 0);
}
static inline void end(person *p) {
    assert_int_equal(pthread_join(p->thread, NULL), 0);
}
static inline void end_well(person *p) {
    end(p);
    if (p->status < 0) fail_msg("%s", p->text);
}

static inline void leave_all(person *p, int count) {
    for (int r = 0; r < count; r++) begin(&p[r], leave);
    for (int r = 0; r < count; r++) end_well(&p[r]);
}

#endif
