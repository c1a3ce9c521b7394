/* Making a world once its members can exchange all-gather entries. Used by both ways in: join.c (a
 * launcher's variables) and transport.c (somebody else's messages). */
#ifndef WEFTI_JOIN_H
#define WEFTI_JOIN_H

#include "comm/world.h"
#include "launch/env/env.h"
#include "launch/member/member.h"
#include "launch/scheduler/scheduler.h"
#include "topo/links.h"
#include "weft/transport.h"

typedef struct wefti_join_plan {
    wefti_settings set; /* the user's, with the caller's options in their place */
    wefti_links links;
    const char *identity; /* the caller's, while it joins */
    double leave_seconds; /* how long leaving waits for the others; 0: 5 */
} wefti_join_plan;

/* Takes the caller's options, and settings where an option is not given. */
weft_status wefti_join_options(const weft_world_options *options, const wefti_settings *set,
                               wefti_join_plan *out) WEFT_CHECKED;

/* What a world keeps to be watched and left. Parts may be NULL. */
typedef struct wefti_control {
    wefti_member *member;
    wefti_scheduler *scheduler; /* when this process is its host */
    wefti_position *position;
    wefti_comm *comm;
    wefti_join_plan plan; /* for the next communicator */
    wefti_comm **retired; /* communicators of older generations */
    int64_t retired_count, retired_room;
    wefti_mender mender; /* of the world */
    wefti_mend mended;   /* what a newcomer has come for, ... */
    bool is_newcomer;    /* ... until it is whole */
    bool has_transport;  /* of the program's own, not used by `far`: to be closed */
    weft_transport transport;
} wefti_control;
void wefti_control_end(void *control);

/* Communicator, position and watch over the members of control->member, which is taken over, also
 * on failure. `transport` (may be NULL) is copied and closed with the world, also on failure. */
weft_status wefti_join_assemble(const wefti_join_plan *plan, wefti_control *control,
                                const weft_transport *transport, weft_world **out) WEFT_CHECKED;
/* The communicator of the members of control->member, after all have compared what they want.
 * Collective. *out is NULL in a world of one. */
weft_status wefti_join_make_comm(wefti_control *control, wefti_comm **out) WEFT_CHECKED;
enum { WEFTI_JOIN_FACTS_TEXT = 256 };
/* What all members must have in common, in words. */
void wefti_join_facts(const wefti_join_plan *plan, char out[WEFTI_JOIN_FACTS_TEXT]);

/* join/servers.c: those that the settings name; NULL: none. The world's, to be freed with it. */
weft_status wefti_join_servers(const wefti_settings *set, wefti_world_servers **out) WEFT_CHECKED;

/* --- join/mend.c */

/* A newcomer's first communicator, in place of wefti_join_make_comm. */
weft_status wefti_join_mend_first(wefti_control *control, wefti_comm **out) WEFT_CHECKED;
/* What mends the worlds of this control; NULL: nothing does. */
const wefti_mender *wefti_join_mender(wefti_control *control);
void wefti_join_forget(wefti_control *control);

/* weft_world_from_transport. `ends`: closing ends the transport of all processes at once, as
 * finalising MPI does. Then leaving waits for processes that still use it, up to wait_seconds,
 * unless something fails. */
weft_status wefti_join_transport(const weft_transport *transport, const weft_world_options *options,
                                 bool ends, weft_world **out) WEFT_CHECKED;
/* A world of one: nobody to watch and nothing to send. */
weft_status wefti_join_alone(const weft_transport *transport, weft_world **out) WEFT_CHECKED;

#endif
