/* A server's part in one shard, as a state machine without sockets, clocks or bytes. The primary of
 * the shard's view gives each push a number, and sends it to the other members. All apply updates
 * in this order. A push is acknowledged when all members have it. docs/design/servers.md has the
 * table of states and the messages; tests/replicate/test_replicate.c explores all interleavings.
 *
 * The caller keeps the shard's state, the bytes of the updates in the window, and for each worker
 * the number of its last push, which is a part of the state. */
#ifndef WEFTI_REPLICA_H
#define WEFTI_REPLICA_H

#include "replicate/view.h"

typedef enum wefti_replica_phase {
    WEFTI_REPLICA_OUT,     /* not in the view: it has no state */
    WEFTI_REPLICA_HALTED,  /* a member; a later view is under way, or has no primary */
    WEFTI_REPLICA_FILLS,   /* gets the state from the primary */
    WEFTI_REPLICA_FILLED,  /* has it, and waits to become a member */
    WEFTI_REPLICA_FOLLOWS, /* applies the primary's updates */
    WEFTI_REPLICA_LEADS,   /* is the primary */
} wefti_replica_phase;

enum { WEFTI_REPLICA_WINDOW = 16 /* updates that not all members have */ };

typedef struct wefti_push {
    int32_t worker;
    int64_t number; /* of this worker's pushes to the shard; ascending */
} wefti_push;

typedef struct wefti_replica {
    int32_t me;
    wefti_replica_phase phase;
    wefti_shard_view view; /* the last one that was chosen */
    int64_t updates;       /* in the state, or in the parts of it that are here; -1: none */
    int64_t acknowledged;  /* updates that all members have, as far as it knows */
    wefti_push window[WEFTI_REPLICA_WINDOW]; /* update n is at n % WINDOW; those later than
                                                `acknowledged`, up to `updates` */
    int32_t parts; /* FILLS: of the state, it has; LEADS: it has sent to the server that fills */
    int64_t filled_from; /* LEADS: updates in the state when the first part was sent */
    /* LEADS: */
    wefti_servers met;       /* members, and the one that fills, that have answered in this view */
    wefti_servers caught_up; /* of view.filling: it has all updates, and acknowledges */
    int64_t has[WEFTI_SERVERS_MOST]; /* updates that each of those has, at least; -1: not known */
} wefti_replica;

/* The messages between servers. All carry the number of the view; those of another are ignored. */
typedef enum wefti_replica_word {
    WEFTI_REPLICA_ASK,    /* primary: what do you have? */
    WEFTI_REPLICA_HAVE,   /* to the primary: so many updates, or -1 */
    WEFTI_REPLICA_UPDATE, /* primary: update number `update` */
    WEFTI_REPLICA_PART,   /* primary: part number `part` of the state with `update` updates */
} wefti_replica_word;

typedef struct wefti_replica_message {
    wefti_replica_word word;
    wefti_map_id made;
    int64_t update;
    int64_t acknowledged; /* UPDATE: by all */
    wefti_push push;      /* UPDATE */
    int32_t part, parts;  /* PART */
} wefti_replica_message;

/* What the caller does with a message that has come. */
typedef enum wefti_replica_act {
    WEFTI_REPLICA_NOTHING,
    WEFTI_REPLICA_APPLY,       /* to the parts of the state that are here */
    WEFTI_REPLICA_TAKE,        /* the part; part 0: after the state that is here is dropped */
    WEFTI_REPLICA_ACKNOWLEDGE, /* `acknowledged` has grown, or who fills has caught up */
    WEFTI_REPLICA_RESEND,      /* to this server: all updates behind has[server]; then as before */
} wefti_replica_act;

/* The shard has its start values on this server, a member of its first view. */
wefti_replica wefti_replica_begin(int32_t me, bool has_state);

/* A map is stored in which the shard's view is another one than this server's: it serves no more.
 */
void wefti_replica_halt(wefti_replica *r);
/* The view is chosen, and is another one. False: the caller drops the shard's state. */
bool wefti_replica_enter(wefti_replica *r, const wefti_shard_view *view) WEFT_CHECKED;
/* To whom the server says something in its new view: as the primary ASK to all others, else HAVE to
 * the primary. The primary also says it to a server whose connection was lost; see _misses. */
wefti_servers wefti_replica_greets(const wefti_replica *r);
wefti_replica_message wefti_replica_greeting(const wefti_replica *r);
/* LEADS: messages to this server may be lost, so it is asked again. */
void wefti_replica_misses(wefti_replica *r, int32_t server);

/* LEADS: whether another push has room. */
bool wefti_replica_has_room(const wefti_replica *r);
/* LEADS, with room: a push that the state does not have. Returns its number. The caller applies it,
 * and sends UPDATE to wefti_replica_hearers. A push, or a reading of the state, is answered when
 * `acknowledged` reaches the number of updates that the state had then, if the view is still the
 * same one. A push that the state has already is answered in the same way. */
int64_t wefti_replica_pushes(wefti_replica *r, wefti_push push);
wefti_servers wefti_replica_hearers(const wefti_replica *r);
wefti_replica_message wefti_replica_update(const wefti_replica *r, int64_t number);

/* LEADS: whether the next part of the state is to be sent to view.filling. */
bool wefti_replica_has_part(const wefti_replica *r, int32_t parts);
wefti_replica_message wefti_replica_sends_part(wefti_replica *r, int32_t parts);

/* A message from a server. After that and the work that it brings, the caller sends
 * wefti_replica_greeting to the primary if wefti_replica_answers. */
wefti_replica_act wefti_replica_hears(wefti_replica *r, int32_t from,
                                      const wefti_replica_message *m) WEFT_CHECKED;
bool wefti_replica_answers(const wefti_replica *r, const wefti_replica_message *m) WEFT_CHECKED;

#endif
