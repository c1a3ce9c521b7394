/* Messages within a host: see comm/host/intranode.h. All calls of a process are made one at a time.
 */
#include "comm/host/intranode.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    INSIDE = 32 << 10,    /* bytes that lie with their message: fetching more costs less */
    LONG_LOOKS = 1000,    /* looks in vain after which the other process is looked after */
    PATIENCE = 1000000000 /* ns that a message which is being fetched is waited for */
};

/* What became of a message. */
enum { SHARED, FETCHED /* is being */, DONE, WITHDRAWN };

struct wefti_intranode_message {
    alignas(128) _Atomic uint64_t state;
    uint64_t tag, bytes;
    const void *source; /* an address of the sender's; NULL: `inside` */
    wefti_intranode_message
        *next; /* of whoever has it: the receiver from the ring until it is done */
    /* Of the sender alone. */
    wefti_intranode_message *older; /* among all that it ever made */
    wefti_intranode_request
        *request; /* the request that it belongs to until it is in the ring; NULL: none */
    void *block;  /* for copies that are too long for `inside` */
    size_t room;  /* bytes of it */
    bool copied, idle;
    unsigned char inside[INSIDE];
};

typedef struct message_list {
    wefti_intranode_message *first, **last;
} message_list;

typedef struct intranode_peer {
    wefti_intranode_queue *out, *in;
    uint64_t written, taken;
    message_list waiting; /* messages to it for which the ring has no room */
    message_list early;   /* messages from it that nobody has wanted so far */
    wefti_intranode_request *wanted, **wanted_end; /* receives, in their order */
    int watch; /* a descriptor of its process; -1: none so far */
    bool ended;
} intranode_peer;

struct wefti_intranode {
    wefti_host *host;
    wefti_intranode_message *idle, *newest;
    intranode_peer peer[]; /* [places] */
};

static const wefti_shm_world *world_of(const wefti_intranode *intranode) {
    return &intranode->host->world;
}
static int rank_of(const wefti_intranode *intranode, int32_t place) {
    return (int)world_of(intranode)->rank_of[place];
}
static void notify_peer(const wefti_intranode *intranode, int32_t place) {
    const wefti_shm_world *world = world_of(intranode);
    wefti_eventcount_notify(&world->common->peer[place].event, world->mode);
}

static void append(message_list *l, wefti_intranode_message *m) {
    m->next = NULL;
    *l->last = m;
    l->last = &m->next;
}
static wefti_intranode_message *take_from(message_list *l, wefti_intranode_message **at) {
    wefti_intranode_message *m = *at;
    *at = m->next;
    if (!*at) l->last = at;
    return m;
}

/* --- beginning and end --- */

weft_status wefti_intranode_create(wefti_host *host, wefti_intranode **out) {
    int32_t size = host->world.size, me = host->local.place;
    wefti_intranode_queue *queue = wefti_host_control_queues(host->control, size);
    *out = NULL;
    if (!queue) return WEFT_OK;
    wefti_intranode *intranode =
        wefti_calloc(1, sizeof *intranode + (size_t)size * sizeof *intranode->peer);
    WEFT_REQUIRE(intranode, WEFT_E_NOMEM, "no memory for messages to %d ranks", (int)size);
    intranode->host = host;
    for (int32_t p = 0; p < size; p++) {
        intranode_peer *peer = &intranode->peer[p];
        peer->out = &queue[(int64_t)me * size + p];
        peer->in = &queue[(int64_t)p * size + me];
        peer->waiting.last = &peer->waiting.first;
        peer->early.last = &peer->early.first;
        peer->wanted_end = &peer->wanted;
        peer->watch = -1;
    }
    *out = intranode;
    return WEFT_OK;
}

void wefti_intranode_destroy(wefti_intranode *intranode) {
    if (!intranode) return;
    for (int32_t p = 0; p < intranode->host->world.size; p++)
        if (intranode->peer[p].watch >= 0) close(intranode->peer[p].watch);
    wefti_free(intranode); /* messages lie in the heap, which goes as a whole */
}

/* --- whether the other process lives --- */

static bool has_ended(intranode_peer *peer, pid_t process) {
    if (peer->ended) return true;
#if defined(SYS_pidfd_open)
    if (peer->watch < 0) peer->watch = (int)syscall(SYS_pidfd_open, process, 0);
    if (peer->watch >= 0) {
        struct pollfd look = {.fd = peer->watch, .events = POLLIN};
        return peer->ended = poll(&look, 1, 0) > 0;
    }
#endif
    return peer->ended = kill(process, 0) != 0 && errno == ESRCH;
}

static weft_status peer_failed(const wefti_intranode *intranode, int32_t place) {
    WEFT_FAIL_OF(rank_of(intranode, place), WEFT_E_PEER, "rank %d (process %lld) has ended",
                 rank_of(intranode, place), (long long)world_of(intranode)->area[place].process);
}

/* WEFT_PENDING, or that nothing will come any more. */
static weft_status look_after(wefti_intranode *intranode, wefti_intranode_request *r) {
    if (++r->looks % LONG_LOOKS != 0 && !intranode->peer[r->place].ended) return WEFT_PENDING;
    pid_t process = (pid_t)world_of(intranode)->area[r->place].process;
    return has_ended(&intranode->peer[r->place], process) ? peer_failed(intranode, r->place)
                                                          : WEFT_PENDING;
}

/* --- messages of this process --- */

/* The receiver has copied what no request waits for any more. */
static void collect(wefti_intranode *intranode) {
    for (wefti_intranode_message *m = intranode->newest; m; m = m->older) {
        if (m->idle || !m->copied || m->request || atomic_load(&m->state) != DONE) continue;
        m->idle = true;
        m->next = intranode->idle;
        intranode->idle = m;
    }
}

static weft_status get_message(wefti_intranode *intranode, wefti_intranode_message **out) {
    if (!intranode->idle) collect(intranode);
    if (intranode->idle) {
        *out = intranode->idle;
        intranode->idle = (*out)->next;
    } else {
        void *p;
        WEFT_TRY(wefti_host_keep(&intranode->host->heap, sizeof **out, &p));
        *out = p;
        (*out)->older = intranode->newest;
        intranode->newest = *out;
    }
    (*out)->idle = false;
    return WEFT_OK;
}

static void put_message(wefti_intranode *intranode, wefti_intranode_message *m) {
    m->request = NULL;
    m->idle = true;
    m->next = intranode->idle;
    intranode->idle = m;
}

static weft_status copy(wefti_intranode *intranode, wefti_intranode_message *m, const void *data,
                        size_t bytes) {
    m->copied = true;
    m->source = NULL;
    if (bytes > INSIDE && m->room < bytes) {
        wefti_host_heap *heap = &intranode->host->heap;
        if (m->block) wefti_host_give(heap, m->block);
        m->block = NULL;
        m->room = 0;
        WEFT_TRY(wefti_host_take(heap, bytes, &m->block));
        m->room = bytes;
    }
    if (bytes > INSIDE) m->source = m->block;
    if (bytes > 0) memcpy(bytes > INSIDE ? m->block : m->inside, data, bytes);
    return WEFT_OK;
}

/* Long messages stay where they are if the receiver can fetch them there. */
static weft_status fill(wefti_intranode *intranode, wefti_intranode_message *m, const void *data,
                        size_t bytes) {
    const wefti_shm_world *world = world_of(intranode);
    m->bytes = bytes;
    bool reached = wefti_shm_reach(world, intranode->host->local.place, data) != NULL;
    if (bytes <= INSIDE || (!reached && world->single_copy_bytes == 0))
        return copy(intranode, m, data, bytes);
    m->copied = false;
    m->source = data;
    return WEFT_OK;
}

/* --- sending --- */

static bool publish(wefti_intranode *intranode, int32_t place, wefti_intranode_message *m) {
    intranode_peer *peer = &intranode->peer[place];
    if (peer->written - atomic_load(&peer->out->taken) >= WEFTI_INTRANODE_RING) return false;
    if (m->copied) {
        if (m->request) {
            m->request->done = true;
            m->request->message = NULL;
        }
        m->request = NULL;
    }
    peer->out->message[peer->written % WEFTI_INTRANODE_RING] = (uint64_t)(uintptr_t)m;
    wefti_eventcount_store(&peer->out->written, ++peer->written, world_of(intranode)->mode);
    notify_peer(intranode, place);
    return true;
}

/* The message leaves this list first: from then on the receiver uses the same field. */
static void publish_waiting(wefti_intranode *intranode, int32_t place) {
    intranode_peer *peer = &intranode->peer[place];
    while (peer->waiting.first) {
        wefti_intranode_message *m = peer->waiting.first, *next = m->next;
        if (!publish(intranode, place, m)) return;
        peer->waiting.first = next;
        if (!next) peer->waiting.last = &peer->waiting.first;
    }
}

weft_status wefti_intranode_send(wefti_intranode *intranode, int32_t rank, uint64_t tag,
                                 const void *data, size_t bytes, wefti_intranode_request *r) {
    int32_t place = world_of(intranode)->place_of[rank];
    intranode_peer *peer = &intranode->peer[place];
    wefti_intranode_message *m;
    if (peer->ended) return peer_failed(intranode, place);
    WEFT_TRY(get_message(intranode, &m));
    weft_status status = fill(intranode, m, data, bytes);
    if (status < 0) {
        put_message(intranode, m);
        return status;
    }
    *r = (wefti_intranode_request){.message = m, .place = place, .tag = tag, .bytes = bytes};
    m->tag = tag;
    m->request = r;
    atomic_store(&m->state, SHARED);
    publish_waiting(intranode, place);
    if (peer->waiting.first || !publish(intranode, place, m)) append(&peer->waiting, m);
    return WEFT_OK;
}

static weft_status test_send(wefti_intranode *intranode, wefti_intranode_request *r) {
    if (!r->done) publish_waiting(intranode, r->place);
    if (!r->done && r->message && atomic_load(&r->message->state) == DONE) {
        put_message(intranode, r->message);
        r->message = NULL;
        r->done = true;
    }
    return r->done ? WEFT_OK : look_after(intranode, r);
}

/* --- receiving --- */

static void meet(intranode_peer *peer, wefti_intranode_message *m) {
    for (wefti_intranode_request **at = &peer->wanted; *at; at = &(*at)->next) {
        wefti_intranode_request *r = *at;
        if (r->tag != m->tag) continue;
        *at = r->next;
        if (!*at) peer->wanted_end = at;
        r->message = m;
        return;
    }
    append(&peer->early, m);
}

static weft_status empty_ring(wefti_intranode *intranode, int32_t place) {
    intranode_peer *peer = &intranode->peer[place];
    uint64_t written = atomic_load_explicit(&peer->in->written, memory_order_acquire);
    if (peer->taken == written) return WEFT_OK;
    for (; peer->taken != written; peer->taken++) {
        uint64_t at = peer->in->message[peer->taken % WEFTI_INTRANODE_RING];
        wefti_intranode_message *m =
            wefti_shm_reach(world_of(intranode), place, (const void *)(uintptr_t)at);
        WEFT_REQUIRE_OF(rank_of(intranode, place), m, WEFT_E_CORRUPT,
                        "rank %d has a message where it has no memory", rank_of(intranode, place));
        meet(peer, m);
    }
    atomic_store_explicit(&peer->in->taken, peer->taken, memory_order_release);
    return WEFT_OK;
}

void wefti_intranode_receive(wefti_intranode *intranode, int32_t rank, uint64_t tag, void *data,
                             size_t bytes, wefti_intranode_request *r) {
    int32_t place = world_of(intranode)->place_of[rank];
    intranode_peer *peer = &intranode->peer[place];
    *r = (wefti_intranode_request){
        .place = place, .tag = tag, .data = data, .bytes = bytes, .receives = true};
    for (wefti_intranode_message **at = &peer->early.first; *at; at = &(*at)->next)
        if ((*at)->tag == tag) {
            r->message = take_from(&peer->early, at);
            return;
        }
    *peer->wanted_end = r;
    peer->wanted_end = &r->next;
}

static weft_status fetch(wefti_intranode *intranode, const wefti_intranode_request *r,
                         wefti_intranode_message *m) {
    const wefti_shm_world *world = world_of(intranode);
    const void *here = m->source ? wefti_shm_reach(world, r->place, m->source) : m->inside;
    if (m->bytes == 0) return WEFT_OK;
    wefti_shm_rank *local = &intranode->host->local;
    int64_t bytes = (int64_t)m->bytes;
    if (!here) {
        WEFT_REQUIRE(wefti_shm_read_peer(local, r->place, m->source, r->data, bytes), WEFT_E_PEER,
                     "a message of rank %d cannot be fetched", rank_of(intranode, r->place));
        return WEFT_OK;
    }
    bool exposed = wefti_shm_expose(local, r->place, here, bytes);
    memcpy(r->data, here, (size_t)m->bytes);
    if (exposed) wefti_shm_conceal(local, here, bytes);
    return WEFT_OK;
}

static weft_status take(wefti_intranode *intranode, wefti_intranode_request *r) {
    wefti_intranode_message *m = r->message;
    uint64_t lent = SHARED;
    r->message = NULL;
    r->done = true;
    WEFT_REQUIRE_OF(rank_of(intranode, r->place),
                    atomic_compare_exchange_strong(&m->state, &lent, FETCHED), WEFT_E_PEER,
                    "rank %d has given a message up", rank_of(intranode, r->place));
    weft_status status = WEFT_OK;
    if (m->bytes > r->bytes)
        status =
            WEFT_RAISE(WEFT_E_ARG, "a message of rank %d has %llu bytes; there is room for %zu",
                       rank_of(intranode, r->place), (unsigned long long)m->bytes, r->bytes);
    else
        status = fetch(intranode, r, m);
    r->bytes = (size_t)m->bytes;
    bool waited_for = !m->copied;
    wefti_eventcount_store(&m->state, DONE, world_of(intranode)->mode);
    if (waited_for) notify_peer(intranode, r->place);
    return status;
}

static weft_status test_receive(wefti_intranode *intranode, wefti_intranode_request *r) {
    publish_waiting(intranode, r->place);
    if (!r->message) WEFT_TRY(empty_ring(intranode, r->place));
    if (!r->message) {
        weft_status status = look_after(intranode, r);
        if (status == WEFT_PENDING) return status;
        /* What it sent before it ended counts. */
        WEFT_TRY(empty_ring(intranode, r->place));
        if (!r->message) return peer_failed(intranode, r->place);
    }
    return take(intranode, r);
}

/* One that fails is over: its memory is the caller's again. */
static weft_status test_once(wefti_intranode *intranode, wefti_intranode_request *r) {
    if (r->done) return WEFT_OK;
    weft_status status = r->receives ? test_receive(intranode, r) : test_send(intranode, r);
    if (status < 0) wefti_intranode_cancel(intranode, r);
    return status;
}

weft_status wefti_intranode_test(wefti_intranode *intranode, wefti_intranode_request *r,
                                 size_t *out_bytes) {
    weft_status status = test_once(intranode, r);
    if (status == WEFT_OK && r->receives && out_bytes) *out_bytes = r->bytes;
    return status;
}

/* --- giving up --- */

/* One that somebody may have seen is never used again: the world has come to its end anyway. */
static void withdraw(wefti_intranode *intranode, wefti_intranode_request *r) {
    wefti_intranode_message *m = r->message;
    intranode_peer *peer = &intranode->peer[r->place];
    uint64_t lent = SHARED;
    for (wefti_intranode_message **at = &peer->waiting.first; *at; at = &(*at)->next)
        if (*at == m) {
            put_message(intranode, take_from(&peer->waiting, at));
            return;
        }
    m->request = NULL;
    if (atomic_compare_exchange_strong(&m->state, &lent, WITHDRAWN)) return;
    pid_t process = (pid_t)world_of(intranode)->area[r->place].process;
    int64_t until = wefti_now_ns() + PATIENCE;
    while (atomic_load(&m->state) == FETCHED && wefti_now_ns() < until && !has_ended(peer, process))
        sched_yield();
}

void wefti_intranode_cancel(wefti_intranode *intranode, wefti_intranode_request *r) {
    intranode_peer *peer = &intranode->peer[r->place];
    if (r->done) return;
    r->done = true;
    if (!r->receives) {
        if (r->message) withdraw(intranode, r);
        return;
    }
    for (wefti_intranode_request **at = &peer->wanted; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            if (!*at) peer->wanted_end = at;
            return;
        }
}
