/* What a scheduler knows. One thread changes it, under the lock; others look, under the lock. */
#ifndef WEFTI_SCHEDULER_STATE_H
#define WEFTI_SCHEDULER_STATE_H

#include <pthread.h>

#include "base/text.h"
#include "recovery/recovery.h"
#include "launch/scheduler/liveness.h"
#include "launch/scheduler/scheduler.h"
#include "launch/wire/wire.h"
#include "launch/socket.h"

/* A connection. It has a seat once its member was taken in. Its booleans are facts, of what each
 * side has said: any of them may be so with any other. */
typedef struct wefti_client {
    wefti_wire link;
    int32_t slot; /* -1: none */
    enum {        /* each leads to the next, or the first one to the last */
           WEFTI_CLIENT_OPEN,
           WEFTI_CLIENT_ENDS, /* closed as soon as all is written */
           WEFTI_CLIENT_GONE  /* to be freed after this round of events */
    } state;
    bool polls_write;            /* what epoll was told */
    int64_t since_ns;            /* of the connection, or of its ending */
    wefti_registration launcher; /* launcher.launcher 0: it is none, or has not said which */
    wefti_span watch;            /* ranks of the launcher that it is; count 0: it is none */
    wefti_keep keep;  /* of one that fills seats again; launcher 0: it does not. again: it had its
                         seats from an earlier scheduler */
    bool keeps;       /* it has its seats, which are those of `watch`, or asks after its losses */
    int32_t coming;   /* of one that adds processes: those that have not come yet */
    bool unanswered;  /* that launcher has asked, and there was no answer yet */
    bool told;        /* that launcher knows that the job is over */
    bool told_unlike; /* and that calls were unlike */
    wefti_identity identity; /* of a process, until its world is complete */
    bool is_first;           /* what it runs is alike.identity, byte by byte, and not kept here */
    wefti_join *next;        /* it waits for the next world; NULL: it does not */
    char address[64];
} wefti_client;

/* The launcher of a process that runs something else: alike.c. */
typedef struct wefti_dismissed {
    uint64_t launcher;
    char *why; /* NULL: there was no memory */
} wefti_dismissed;

/* What the processes of this world run: alike.c. */
typedef struct wefti_alike_state {
    wefti_identity identity; /* that all have; none: the first one has none, or has not come */
    enum {
        WEFTI_ALIKE_FIRST, /* the first one has said it */
        WEFTI_ALIKE_OWN,   /* one that the scheduler's launcher has started */
        WEFTI_ALIKE_HOST,  /* the one that hosts the scheduler, for all its worlds */
    } by;
    char who[192];              /* has it */
    wefti_dismissed *launchers; /* of processes that were refused */
    int64_t count, room;
    char refusal[1024]; /* of the last one, while this world forms; "" there was none */
} wefti_alike_state;

enum {
    WEFTI_DEATHS_UNKNOWN = 1 << 20, /* more than any launcher has started */
    WEFTI_NOTES = 8                 /* that one look of the launcher may find */
};

enum {
    WEFTI_ENTRIES_AHEAD = 2
}; /* after a restart a member repeats its last card before the next */

/* A rank. While the world is forming: a member that waits for its rank, in order of arrival. */
typedef struct wefti_member_slot {
    wefti_client *client; /* NULL: its connection is closed */
    wefti_join join;
    uint64_t came; /* the generation with which it came from an earlier scheduler; 0: with none */
    char address[64];
    int32_t host;
    int32_t number;    /* the rank that it was started with, which its launcher knows */
    int32_t told;      /* the rank that its process has been told last */
    int32_t later;     /* its rank, plus 1, in a world of mend.later_size ranks; 0: none */
    int32_t next_node; /* seats.c: the next seat of its list, plus 1; 0: none */
    enum {
        WEFTI_ARMED_NOT,
        WEFTI_ARMED,     /* its world may be mended */
        WEFTI_ARMED_HERE /* and it has said to this scheduler how */
    } armed;
    /* Facts, in any state: */
    bool partial;   /* has not said all that it has called */
    int deaths;     /* processes that this seat has lost */
    int refused;    /* how many it had lost with the last one that could not take it; 0: none */
    bool uncounted; /* how many is not known: the scheduler before knew it */
    struct {
        uint64_t number; /* 0: no card */
        unsigned char *data;
        size_t bytes;
    } entry[WEFTI_ENTRIES_AHEAD];
} wefti_member_slot;

/* The calls of the first member that has left, in groups of some ranks; or the blocks and messages
 * between it and a member that has not reported its side yet. */
typedef struct wefti_parted {
    struct wefti_parted *next; /* in its bucket */
    int32_t rank;
    wefti_call_record record;
} wefti_parted;
enum { WEFTI_PARTED_BUCKETS = 1 << 16 };

/* The mending of a world that has lost processes: mend.c. */
typedef struct wefti_mending_state {
    wefti_mending world; /* of `seats`, which is NULL if the world cannot be mended */
    wefti_seat *seats;   /* [size] */
    int32_t **holds;     /* [size] of the ranks' standings */
    int32_t armed;       /* ranks that may be mended */
    wefti_arm elastic;   /* what the ranks allow */
    bool allows;         /* one has said so */
    int32_t later_size;  /* of a world that may have been whole after the last that surely was: the
                            ranks that came from an earlier scheduler do not know; 0: none */
    bool gathered;       /* its ranks came from an earlier scheduler, and say `elastic` again */
    int32_t *dismissed;  /* numbers of processes that were too many for each plan of the job */
    int64_t dismissed_count, dismissed_room;
    bool was;         /* the world has been mended */
    int64_t since_ns; /* of COUNTING */
    wefti_halt halt;  /* the last death */
} wefti_mending_state;

/* Ranks come back to a scheduler that knows nothing of their world: gather.c. */
typedef struct wefti_gathered_world { /* as a rank has said that it was */
    uint64_t generation;
    int32_t size;
    wefti_seated *seats; /* [size] */
} wefti_gathered_world;
typedef struct wefti_gathering {
    int64_t since_ns; /* when the first came; 0: none has */
    int64_t came_ns;  /* when the last came */
    wefti_gathered_world *worlds;
    int64_t world_count, world_room;
    int32_t *ended; /* [WEFTI_RANKS_MAX] processes that a number has had, of which all have ended;
                       or NULL */
    wefti_voter *voters; /* [room], for the vote */
} wefti_gathering;

/* Worlds that begin again: again.c. */
typedef struct wefti_again_state {
    int32_t *lost; /* [size] processes that each number has lost to worlds that began again */
    bool *ending;  /* [size] the last of them was not lost by itself: its world began again */
    bool follows;  /* a world has ended, and another one followed */
    char text[WEFTI_TEXT_MAX + 1]; /* why the last one began again; "" none did */
} wefti_again_state;

/* A process that was lost to a scheduler beside which there is another one. */
typedef struct wefti_lost_process {
    int32_t number, starts; /* how many processes its seat has lost with it */
    int64_t since_ns;
    bool known; /* a launcher has said in time that it has ended */
    bool of_whole,
        of_later; /* it was a rank of the world that was whole last; of mend.later_size */
} wefti_lost_process;

typedef struct wefti_doubt {
    int64_t since_ns, until_ns; /* whether the other scheduler has the job; 0: there is no doubt */
    int32_t rank;               /* the death with which it began */
    char text[WEFTI_TEXT_MAX + 1];
    wefti_lost_process *lost; /* since the world was whole */
    int64_t lost_count, lost_room;
    int32_t gone, gone_later; /* those on no side */
} wefti_doubt;

struct wefti_scheduler {
    wefti_scheduler_options options;
    char *job;
    wefti_tls *tls; /* NULL: none is wanted */
    wefti_address address;
    char address_text[WEFTI_ADDRESS_TEXT];
    int listener, poller, alarm; /* alarm: an eventfd that ends the poll */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* state */
    bool stopping, ranked;  /* ranked: seats are ranks */
    bool told_missing;      /* which members the first world waits for */
    wefti_scheduler_state state;
    wefti_abort_reason reason;
    wefti_liveness live; /* of the ranks, as long as there are any */
    wefti_mending_state mend;
    wefti_gathering gather;
    wefti_alike_state alike;
    wefti_again_state again;
    wefti_restart_budget restarts; /* of all its worlds */
    char refusal[512];             /* why a rank is not started again */
    struct {
        char text[WEFTI_NOTES][1024]; /* note n at n % WEFTI_NOTES */
        int64_t count;
    } notes;             /* the newest that this host's launcher prints: wefti_scheduler_noted */
    uint64_t generation; /* 0: none yet; while forming: the generation of returning members */
    uint64_t whole;      /* of the world that was whole last */
    uint64_t past;       /* of the last world that all have left; 0: none */
    uint64_t own;        /* generations from here on are those of this scheduler */
    wefti_parted *parted[WEFTI_PARTED_BUCKETS];
    bool unlike;   /* members have left that made unlike calls, and that is the verdict */
    wefti_end end; /* of the first process that failed the job; if it `is_over` */
    bool is_over;
    wefti_end first_end; /* of the first process that has ended, well or not; if one `has_ended` */
    bool has_ended;
    int64_t start_ns, checked_ns;
    wefti_doubt doubt;
    bool deposed;      /* the other scheduler may have the job: standby.c */
    int64_t paused_ns; /* this process has gone on after a pause; 0: it had none */
    int64_t deaf_ns;   /* since when nobody new is taken; 0: all are */
    wefti_client **clients;
    int64_t client_count, client_room;
    bool some_gone;           /* connections are to be freed */
    wefti_member_slot *slots; /* [size] */
    struct {
        int32_t *of_number; /* [size] */
        int32_t *of_node;   /* [size] lists */
    } seats;                /* of members that wait for their rank: seats.c */
    uint64_t *keeper;       /* [size] the launcher that starts the rank; 0: none, or this host's */
    bool *earlier;          /* [size] that launcher had the seat from an earlier scheduler */
    bool *told;             /* [size] ranks that know the verdict, or have ended */
    bool *called;           /* [size] ranks whose launcher has called */
    int32_t room;           /* slots, and seats of `mend` */
    int32_t taken;          /* slots in use */
    int32_t numbers;        /* processes have numbers below; from `size` on: added ones */
    int32_t lacking;        /* where to look first for a slot without entry */
    int64_t allgather_since_ns; /* 0: no card waits for others */
    uint64_t answered;          /* number of the last all-gather; what it brought */
    wefti_shared_body *answer;  /* NULL: there was none */
    int64_t heartbeat_ns, join_ns;
};

/* client.c */
/* Accepts all pending connections. WEFT_E_IO: this process has no free descriptors. */
weft_status wefti_scheduler_accept(wefti_scheduler *s) WEFT_CHECKED;
void wefti_client_read(wefti_scheduler *s, wefti_client *client);
void wefti_client_write(wefti_scheduler *s, wefti_client *client);
void wefti_client_send(wefti_scheduler *s, wefti_client *client, wefti_frame_kind kind,
                       const void *body, size_t bytes);
void wefti_client_send_shared(wefti_scheduler *s, wefti_client *client, wefti_frame_kind kind,
                              wefti_shared_body *block);
void wefti_client_end(wefti_client *client); /* closes it when all is written */
/* Say no, and close when that is written. `failed`: the rank to blame, or WEFT_RANK_NONE. */
void wefti_client_refuse(wefti_scheduler *s, wefti_client *client, weft_status status,
                         int32_t failed, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* A connection that is over: what that means for its rank, and the end of it. */
void wefti_client_lost(wefti_scheduler *s, wefti_client *client, const char *why);
void wefti_client_tell_over(wefti_scheduler *s);   /* to all watchers */
void wefti_client_tell_unlike(wefti_scheduler *s); /* the verdict, to them */
void wefti_client_expire(wefti_scheduler *s, int64_t now_ns);
void wefti_scheduler_sweep(wefti_scheduler *s);                   /* frees closed connections */
void wefti_client_drop(wefti_scheduler *s, wefti_client *client); /* closes one without a seat */

/* form.c */
void wefti_scheduler_take_in(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* Takes the members that wait for the next world, once this one has ended. */
void wefti_scheduler_take_waiting(wefti_scheduler *s);
/* It asks again then. */
void wefti_scheduler_wait_for_next_world(wefti_scheduler *s, wefti_client *client,
                                         const wefti_join *join);
void wefti_scheduler_release_slot(wefti_scheduler *s, int32_t slot); /* while forming */
void wefti_scheduler_check_forming(wefti_scheduler *s, int64_t now_ns);
/* Who the ranks are: fresh memory, [taken]. */
weft_status wefti_scheduler_seats(const wefti_scheduler *s, wefti_seated **out) WEFT_CHECKED;
/* WORLD, to `count` ranks from `first` on. */
weft_status wefti_scheduler_tell_world(wefti_scheduler *s, int32_t first,
                                       int32_t count) WEFT_CHECKED;
void wefti_scheduler_rank_ended(wefti_scheduler *s, const wefti_end *end);

/* Later worlds have higher numbers, even across schedulers. */
uint64_t wefti_new_generation(uint64_t past);
void wefti_scheduler_take_seat(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* The same process with a connection that it lost before we did. */
void wefti_scheduler_replace(wefti_scheduler *s, int32_t slot, wefti_client *client);
bool wefti_same_process(const wefti_join *a, const wefti_join *b);
/* It belongs to a generation that is over. */
void wefti_scheduler_refuse_past(wefti_scheduler *s, wefti_client *client, const wefti_join *join);

/* alike.c */
weft_status wefti_alike_begin(wefti_scheduler *s) WEFT_CHECKED;
void wefti_alike_end(wefti_scheduler *s); /* frees */
/* The next world may run something else, unless a process of it hosts the scheduler. */
void wefti_alike_next_world(wefti_scheduler *s);
/* Whether it runs what the others run; else it is refused here. */
bool wefti_alike_check(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* It has a seat. The first one says what all run. */
void wefti_alike_seated(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
void wefti_alike_complete(wefti_scheduler *s); /* all have seats: frees */
/* Whether a launcher that has registered is of this job; else it is refused here. */
bool wefti_alike_launcher(wefti_scheduler *s, wefti_client *client);

/* again.c */
weft_status wefti_again_create(wefti_scheduler *s) WEFT_CHECKED;
void wefti_again_free(wefti_scheduler *s);
/* All have left, and one comes for the next world, which is forming from now on. */
void wefti_again_next_world(wefti_scheduler *s);
/* Whether all processes could be started again, if this world lost the rank; -1: none that is
 * known. */
bool wefti_again_is_possible(const wefti_scheduler *s, int32_t rank);
/* A rank has died of a world that cannot be mended. True: all are started again. */
bool wefti_again_died(wefti_scheduler *s, int32_t rank, const char *text);
/* A launcher's question: of a world that is forming, or begins again. */
wefti_again wefti_again_awaits(wefti_scheduler *s, const wefti_end *end, int starts);
/* A process with that number is here. */
void wefti_again_came(wefti_scheduler *s, int32_t number);
int32_t wefti_again_deaths(const wefti_scheduler *s, int32_t number); /* while forming */

/* gather.c */
/* Takes JOIN while ranks of an earlier scheduler come back. False: nobody has. */
bool wefti_gather_take(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
weft_status wefti_gather_hosts(wefti_scheduler *s, const wefti_frame *frame) WEFT_CHECKED;
/* A launcher's word, of the last of `starts` processes with a number. */
void wefti_gather_note(wefti_scheduler *s, int32_t number, int starts);
/* The same if ranks come back; else false. */
bool wefti_gather_ended(wefti_scheduler *s, int32_t number, int starts);
/* Launchers that have asked in vain call and ask again. */
void wefti_gather_release_launchers(wefti_scheduler *s);
void wefti_gather_check(wefti_scheduler *s, int64_t now_ns);
/* regain.c: the world that was whole last begins again with the ranks that came. */
void wefti_gather_begin_world(wefti_scheduler *s, const wefti_vote *v);
/* What a rank has said of that world; NULL: none has. */
const wefti_gathered_world *wefti_gather_find(const wefti_scheduler *s, uint64_t generation);
int32_t wefti_gather_has_ended(const wefti_scheduler *s, int32_t number); /* how many processes */
wefti_voter wefti_gather_voter(const wefti_join *join);
/* Whether so many ranks have come back that no other scheduler can go on with their world. */
bool wefti_gather_may_begin(const wefti_scheduler *s);
void wefti_gather_end(wefti_scheduler *s); /* frees */

/* seats.c: an index of the seats, while forming. Changes of a seat's number or its member are told
 * to it: remove before, add after. */
weft_status wefti_seats_create(wefti_scheduler *s) WEFT_CHECKED;
void wefti_seats_free(wefti_scheduler *s);
void wefti_seats_clear(wefti_scheduler *s);
void wefti_seats_add(wefti_scheduler *s, int32_t seat);
void wefti_seats_remove(wefti_scheduler *s, int32_t seat);
/* The seat of the process with this number, or with the node id, on the same host, that `join`
 * wants; -1: none. */
int32_t wefti_seats_of_number(const wefti_scheduler *s, int32_t number);
int32_t wefti_seats_of_node(const wefti_scheduler *s, const wefti_join *join);

/* rank.c: put the seats into the order of ranks and number their hosts. */
weft_status wefti_scheduler_rank(wefti_scheduler *s) WEFT_CHECKED;
/* Numbers the hosts of the first `count` ranks anew. */
weft_status wefti_scheduler_number_hosts(wefti_member_slot *slots, int32_t count) WEFT_CHECKED;

/* allgather.c */
void wefti_scheduler_entry(wefti_scheduler *s, wefti_client *client, const wefti_entry *entry);
void wefti_scheduler_allgather(wefti_scheduler *s); /* carries out the complete one */
void wefti_scheduler_check_allgather(wefti_scheduler *s, int64_t now_ns);
void wefti_slot_clear(wefti_member_slot *slot); /* frees its cards */

/* watch.c */
void wefti_scheduler_check_ranks(wefti_scheduler *s, int64_t now_ns);
void wefti_scheduler_check_word(wefti_scheduler *s, int64_t now_ns); /* of a rank that is blamed */
void wefti_scheduler_rank_died(wefti_scheduler *s, int32_t rank, const char *why);
/* The same, by a launcher's word. */
void wefti_scheduler_rank_ended_so(wefti_scheduler *s, int32_t rank, const wefti_end *end);
void wefti_scheduler_rank_left(wefti_scheduler *s, int32_t rank);
void wefti_scheduler_rank_gave_up(wefti_scheduler *s, int32_t rank,
                                  const wefti_abort_reason *reason);
void wefti_scheduler_goodbye(wefti_scheduler *s); /* to all: nobody watches any more */

/* standby.c: two schedulers for one job */
/* Whether a scheduler that stands by has ended this connection, since the other one has the job. */
bool wefti_standby_turns_away(wefti_scheduler *s, wefti_client *client, const wefti_frame *frame);
void wefti_standby_check(wefti_scheduler *s, int64_t now_ns); /* while forming */
/* While the members of a world come back: whether so many are here that no other scheduler can have
 * as many. */
bool wefti_standby_may_begin(const wefti_scheduler *s);
/* The same of a world that runs and loses `rank`. False: the job is over for this scheduler, for
 * the reason `text`, and its launchers go to the other one. */
bool wefti_standby_goes_on(wefti_scheduler *s, int32_t rank, weft_status status, const char *text);
/* Whether a rank that has a seat, and calls again, has heard of generations since of which this
 * scheduler knows nothing: the other one may have counted it. */
bool wefti_standby_has_strayed(const wefti_scheduler *s, const wefti_join *join);
/* Whether the job may go on with the other scheduler: launchers are not sent away. */
bool wefti_standby_hands_over(const wefti_scheduler *s);

/* While the majority is lost, and launchers may say that its processes have ended. */
static inline bool wefti_is_in_doubt(const wefti_scheduler *s) {
    return s->doubt.until_ns && s->state == WEFTI_SCHEDULER_RUNNING;
}
/* A launcher's word, of the last of `starts` processes with this number. */
void wefti_doubt_ended(wefti_scheduler *s, int32_t number, int32_t starts);
void wefti_doubt_forget(wefti_scheduler *s); /* the world is whole, or has ended; frees */

/* mend.c */
/* A world begins, with all ranks in their seats. Without memory it cannot be mended. */
void wefti_mend_begin(wefti_scheduler *s);
void wefti_mend_end(wefti_scheduler *s); /* frees */
/* A rank comes back over a new connection amid a mending, which begins again. False: it does not.
 */
bool wefti_mend_rejoin(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* A job that has failed mends no more, whatever its ranks still say. */
static inline wefti_mending_phase wefti_mend_phase(const wefti_scheduler *s) {
    const bool mends = s->mend.seats && s->state == WEFTI_SCHEDULER_RUNNING;
    return mends ? s->mend.world.phase : WEFTI_MENDING_NOT;
}
/* A rank has died. False: the world cannot be mended, and *why says more, if there is more. */
bool wefti_mend_died(wefti_scheduler *s, int32_t rank, const char *text, const char **why);
/* Two ranks have lost their connection, and nobody has died: all make new ones. It counts as a
 * restart. Once none is left, an elastic world goes on without `rank`. False: neither is possible,
 * as above. */
bool wefti_mend_reconnects(wefti_scheduler *s, int32_t rank, const char *text, const char **why);
weft_status wefti_mend_arm(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) WEFT_CHECKED;
/* Carries out what the mending asks for after a standing. */
weft_status wefti_mend_act(wefti_scheduler *s, unsigned actions) WEFT_CHECKED;
weft_status wefti_mend_stood(wefti_scheduler *s, int32_t rank,
                             const wefti_frame *frame) WEFT_CHECKED;
weft_status wefti_mend_whole(wefti_scheduler *s, int32_t rank,
                             const wefti_frame *frame) WEFT_CHECKED;
/* A process has ended, and no other one will take its seat. */
void wefti_mend_ended(wefti_scheduler *s, const wefti_end *end);
/* How many processes of a seat its launcher may end. One that was refused ends by itself, and says
 * why. */
static inline int wefti_slot_killable(const wefti_member_slot *slot) {
    return slot->deaths - (slot->refused > 0 && slot->refused == slot->deaths);
}
/* A newcomer says that it cannot take its seat. However it ends, that is no end of the job. */
void wefti_mend_refused(wefti_scheduler *s, int32_t rank);
/* Reads what a newcomer that has ended by its own decision said before: that it is refused. */
void wefti_mend_hear_out(wefti_scheduler *s, const wefti_end *end);
bool wefti_mend_awaits(wefti_scheduler *s, const wefti_end *end, int starts);
void wefti_mend_left(wefti_scheduler *s, int32_t rank); /* amid it: that ends the job */
void wefti_mend_check(wefti_scheduler *s, int64_t now_ns);

/* health.c */
weft_status wefti_scheduler_tell_health(wefti_scheduler *s, wefti_client *client) WEFT_CHECKED;

/* newcomer.c */
/* A process that comes for an empty seat is taken, or refused. False: there is no such seat. */
bool wefti_mend_take_in(wefti_scheduler *s, wefti_client *client, const wefti_join *join);

/* keep.c: launchers of other hosts */
/* REGISTER: a launcher owns its ranks as long as one of its connections lives, and is heard for
 * them alone. Another one that claims one of them is refused, unless it waits for its seats. */
weft_status wefti_keep_register(wefti_scheduler *s, wefti_client *client,
                                const wefti_frame *frame) WEFT_CHECKED;
/* Whether it may speak for this rank; else it is refused. */
bool wefti_keep_owns(wefti_scheduler *s, wefti_client *client, int32_t rank);
/* KEEP and LOST of a launcher. */
weft_status wefti_keep_ask(wefti_scheduler *s, wefti_client *client,
                           const wefti_frame *frame) WEFT_CHECKED;
weft_status wefti_keep_lost(wefti_scheduler *s, wefti_client *client,
                            const wefti_frame *frame) WEFT_CHECKED;
void wefti_keep_tell(wefti_scheduler *s, int32_t rank); /* how many processes that has lost */
/* Whether another process may follow the last of the `starts` processes with a number. */
wefti_again wefti_keep_answer(wefti_scheduler *s, const wefti_end *end, int starts);
/* SEATS for its `watch`. False: no memory. */
void wefti_keep_say(wefti_scheduler *s, wefti_client *client);
/* Whether a spare launcher is to fill the seats of the host that lost this process: the host keeps
 * failing. *out: its seats. If so, that counts as a restart. The caller ends the processes of the
 * other seats, and hands the seats over. */
bool wefti_keep_leaves_out(wefti_scheduler *s, int32_t number, wefti_span *out);
void wefti_keep_hand_over(wefti_scheduler *s, const wefti_span *seats);
/* Whether no other launcher that is here fills the seat of a process that comes; else it is refused
 * here. */
bool wefti_keep_admits(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* Gives seats to those that wait, and tells those that watch of a world that can shrink. */
void wefti_keep_check(wefti_scheduler *s);

/* add.c: processes that come in addition */
/* Gives a launcher numbers for its processes, once the world can grow; or refuses. */
void wefti_add_try(wefti_scheduler *s, wefti_client *client);
/* A process with such a number has its slot. */
void wefti_add_came(wefti_scheduler *s, int32_t number);
/* After ranks have been gathered: which of these are there. */
void wefti_add_count(wefti_scheduler *s);
/* Whether such numbers were given, by this scheduler or by an earlier one. */
bool wefti_add_knows(wefti_scheduler *s, const wefti_keep *keep);
/* resize.c: elastic worlds. */
static inline bool wefti_mend_is_elastic(const wefti_scheduler *s) {
    return s->mend.seats && s->mend.elastic.least > 0;
}
/* Allows only what another rank allows as well. */
void wefti_mend_also_allows(wefti_arm *all, const wefti_arm *said);
/* Whether the process with this number, which has no seat any more, was told to leave. */
bool wefti_mend_was_dismissed(const wefti_scheduler *s, int32_t number);
/* Whether the world may go on without one more process. */
bool wefti_mend_may_shrink(const wefti_scheduler *s);
/* While the world counts: gives up the empty seats for which no process is awaited any more. */
void wefti_mend_give_up_seats(wefti_scheduler *s, int64_t now_ns);
/* A process comes whose seat was given up. The world grows, or the process waits until there are
 * enough for a plan. False: there is no place for it. */
bool wefti_mend_take_back(wefti_scheduler *s, wefti_client *client, const wefti_join *join);
/* resize.c: the most ranks that the job may have */
int32_t wefti_most_ranks(const wefti_scheduler *s);
/* Makes room for so many ranks. Void afterwards: pointers to slots and seats. */
weft_status wefti_make_room(wefti_scheduler *s, int32_t ranks) WEFT_CHECKED;
/* mend.c: restarts that the job has had. One restart does not count: that of all seats that are
 * empty or have new processes. A scheduler that comes later sees it itself. */
int32_t wefti_mend_used(const wefti_scheduler *s);
/* All ranks hear that a generation begins, and why: mend.halt. */
void wefti_mend_halt(wefti_scheduler *s);
/* Whether some rank has left: then the world stays as it is. */
bool wefti_mend_some_left(const wefti_scheduler *s);
/* The seat of the process that was started as this rank; -1: it has none any more. */
int32_t wefti_slot_of_process(const wefti_scheduler *s, int32_t number);
/* A process has ended, and the world goes on without it. */
bool wefti_mend_goes_on(wefti_scheduler *s, const wefti_end *end);

/* depart.c: compares the calls of a leaving member with those of members that left before. */
void wefti_scheduler_compare(wefti_scheduler *s, int32_t rank, const wefti_call_records *records);
void wefti_scheduler_compare_all(wefti_scheduler *s); /* all have left */
void wefti_scheduler_forget_parted(wefti_scheduler *s);

/* For whoever watches the scheduler's launcher. */
void wefti_scheduler_note(wefti_scheduler *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* abort.c */
/* The first one counts: everybody is told. `failed`: the rank that the text names, or
 * WEFT_RANK_NONE. */
void wefti_scheduler_abort(wefti_scheduler *s, weft_status status, int32_t failed,
                           const char *text);
void wefti_scheduler_abort_text(wefti_scheduler *s, weft_status status, int32_t failed,
                                wefti_text *text);
/* That rank knows the verdict, or has ended. -1, unknown: it is not noted; one that the job does
 * not have: all ranks are. */
void wefti_scheduler_note_told(wefti_scheduler *s, int32_t rank);
/* WEFT_RANK_NONE before there are ranks. */
int32_t wefti_slot_rank(const wefti_scheduler *s, int32_t slot);
/* "rank 3 (process 123 on host 0)" */
void wefti_slot_name(const wefti_scheduler *s, int32_t rank, wefti_text *out);
/* "it was computing in step 12 (345 transfers done)" */
void wefti_life_describe(const wefti_life *life, int64_t now_ns, wefti_text *out);

#endif
