/* Seats of a world that grows beyond its first size. */
#include <string.h>

#include "base/memory.h"
#include "launch/scheduler/state.h"

int32_t wefti_most_ranks(const wefti_scheduler *s) {
    const wefti_arm *elastic = &s->mend.elastic;
    return elastic->least && elastic->most > s->options.size ? elastic->most : s->options.size;
}

/* A larger array, with zeros at its end. False: no memory, and the old one stays. */
static bool enlarge(void **array, int32_t from, int32_t to, size_t element) {
    char *larger = wefti_realloc(*array, (size_t)to * element);
    if (!larger) return false;
    memset(larger + (size_t)from * element, 0, (size_t)(to - from) * element);
    *array = larger;
    return true;
}

weft_status wefti_make_room(wefti_scheduler *s, int32_t ranks) {
    wefti_mending_state *m = &s->mend;
    if (ranks <= s->room) return WEFT_OK;
    bool has = enlarge((void **)&s->slots, s->room, ranks, sizeof *s->slots);
    if (m->seats) { /* else it makes room for slots alone */
        has = has && enlarge((void **)&m->seats, s->room, ranks, sizeof *m->seats) &&
              enlarge((void **)&m->holds, s->room, ranks, sizeof *m->holds) &&
              enlarge((void **)&m->first, s->room + 1, ranks + 1, sizeof *m->first);
        m->world.seats = m->seats;
        m->world.holders =
            (wefti_holders){.first = m->first, .holder = m->holder ? m->holder : m->first};
    }
    WEFT_REQUIRE(has, WEFT_E_NOMEM, "no memory for a world of %d ranks", (int)ranks);
    s->room = ranks;
    return WEFT_OK;
}
