/* A transport between threads of one process that is as unpleasant as the contract allows.
 * Messages of different tags overtake each other and arrive after a random number of polls. Sends
 * that are not small finish only after the receiver has taken the message. It also checks its
 * callers: one call of a rank at a time, no request used twice, nothing under way at close. */
#ifndef ROUNDS_MESH_H
#define ROUNDS_MESH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "base/status.h"
#include "weft/transport.h"

enum { MESH_MOST = 16 };

typedef struct mesh_message {
    struct mesh_message *next; /* in the order in which they were sent */
    int from, to;
    uint64_t tag;
    const void *data;
    size_t bytes;
    bool copied;
    int looks; /* until it is there */
    struct mesh_request *sender;
} mesh_message;

typedef struct mesh_request {
    struct mesh_request *next; /* receives, in the order in which they were posted */
    uint64_t magic;
    bool receives, done, too_long, lost;
    int me, peer;
    uint64_t tag;
    void *data;
    size_t bytes;
} mesh_request;

typedef struct mesh mesh;
typedef struct mesh_side {
    mesh *m;
    int rank;
    _Atomic int inside, open; /* calls; requests under way */
    bool closed;
} mesh_side;

struct mesh {
    pthread_mutex_t lock;
    uint64_t seed, next;
    int size, most_looks;
    size_t small; /* sends that are done at once */
    mesh_message *messages;
    mesh_request *receives;
    mesh_side side[MESH_MOST];
    int host[MESH_MOST];                   /* of each rank */
    int64_t crossed[MESH_MOST][MESH_MOST]; /* bytes of data, from host to host */
    int dead;                              /* nobody reaches this rank; -1: none */
    bool slow;                             /* data is on its way as long as this says so */
    char complaint[200];
};

static void mesh_complain(mesh *m, const char *what) {
    if (!m->complaint[0]) snprintf(m->complaint, sizeof m->complaint, "%s", what);
}
static void mesh_enter(mesh_side *s) {
    if (atomic_fetch_add(&s->inside, 1) != 0) mesh_complain(s->m, "two calls at a time");
    pthread_mutex_lock(&s->m->lock);
    if (s->closed) mesh_complain(s->m, "a call after close");
}
static void mesh_leave(mesh_side *s) {
    pthread_mutex_unlock(&s->m->lock);
    atomic_fetch_sub(&s->inside, 1);
}
static bool mesh_lost(const mesh *m, int me, int peer) {
    return m->side[peer].closed || (m->dead >= 0 && (m->dead == me || m->dead == peer));
}
static bool mesh_has_message(const mesh *m, const mesh_request *r) {
    const mesh_message *o = m->messages;
    while (o && (o->from != r->peer || o->to != r->me || o->tag != r->tag)) o = o->next;
    return o != NULL;
}

static weft_status mesh_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                             void *request) {
    mesh_side *s = context;
    mesh *m = s->m;
    mesh_message *message = calloc(1, sizeof *message);
    mesh_request *r = request;
    if (!message) abort();
    mesh_enter(s);
    *r = (mesh_request){.magic = 0x6D657368, .me = s->rank, .peer = peer, .tag = tag};
    atomic_fetch_add(&s->open, 1);
    *message = (mesh_message){
        .from = s->rank, .to = peer, .tag = tag, .data = data, .bytes = bytes, .sender = r};
    if (tag != 0) m->crossed[m->host[s->rank]][m->host[peer]] += (int64_t)bytes;
    if (m->most_looks > 0)
        message->looks =
            (int)(wefti_philox_u32(m->seed, 3, m->next++) % (uint32_t)(m->most_looks + 1));
    if (bytes <= m->small) {
        void *copy = malloc(bytes + 1);
        if (!copy) abort();
        message->data = memcpy(copy, data, bytes);
        message->copied = r->done = true;
        message->sender = NULL;
    }
    mesh_message **at = &m->messages;
    while (*at) at = &(*at)->next;
    *at = message;
    mesh_leave(s);
    return WEFT_OK;
}

static weft_status mesh_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                                void *request) {
    mesh_side *s = context;
    mesh_request *r = request;
    mesh_enter(s);
    *r = (mesh_request){.magic = 0x6D657368,
                        .receives = true,
                        .me = s->rank,
                        .peer = peer,
                        .tag = tag,
                        .data = data,
                        .bytes = bytes};
    atomic_fetch_add(&s->open, 1);
    mesh_request **at = &s->m->receives;
    while (*at) at = &(*at)->next;
    *at = r;
    mesh_leave(s);
    return WEFT_OK;
}

static bool mesh_first_of_its_kind(const mesh *m, const mesh_request *r) {
    for (const mesh_request *o = m->receives; o != r; o = o->next)
        if (o->me == r->me && o->peer == r->peer && o->tag == r->tag) return false;
    return true;
}

static void mesh_match(mesh *m, mesh_request *r) {
    if (!mesh_first_of_its_kind(m, r) || (m->slow && r->tag != 0)) return;
    mesh_message **at = &m->messages;
    while (*at && ((*at)->from != r->peer || (*at)->to != r->me || (*at)->tag != r->tag))
        at = &(*at)->next;
    mesh_message *message = *at;
    if (!message || message->looks-- > 0) return;
    *at = message->next;
    r->too_long = message->bytes > r->bytes;
    if (!r->too_long) memcpy(r->data, message->data, message->bytes);
    r->bytes = message->bytes;
    r->done = true;
    if (message->sender) message->sender->done = true;
    if (message->copied) free((void *)(uintptr_t)message->data);
    free(message);
    mesh_request **mine = &m->receives;
    while (*mine != r) mine = &(*mine)->next;
    *mine = r->next;
}

static weft_status mesh_test(void *context, void *request, size_t *out_bytes) {
    mesh_side *s = context;
    mesh_request *r = request;
    mesh_enter(s);
    if (r->magic != 0x6D657368 || r->me != s->rank)
        mesh_complain(s->m, "a test of what is no request");
    if (!r->done && r->receives) mesh_match(s->m, r);
    bool lost =
        !r->done && mesh_lost(s->m, r->me, r->peer) && !(r->receives && mesh_has_message(s->m, r));
    weft_status status = r->too_long ? WEFT_E_CORRUPT : r->done ? WEFT_OK : WEFT_PENDING;
    if (lost) {
        status = WEFT_E_PEER;
        mesh_request **mine = &s->m->receives;
        while (*mine && *mine != r) mine = &(*mine)->next;
        if (*mine) *mine = r->next;
        for (mesh_message *o = s->m->messages; o; o = o->next)
            if (o->sender == r) o->sender = NULL, o->to = -1;
    }
    if (status != WEFT_PENDING) {
        r->magic = 0;
        atomic_fetch_sub(&s->open, 1);
    }
    if (out_bytes && status == WEFT_OK) *out_bytes = r->bytes;
    mesh_leave(s);
    if (lost) WEFT_FAIL(WEFT_E_PEER, "the wire is cut");
    if (status < 0) WEFT_FAIL(status, "a longer message than expected");
    return status;
}

static void mesh_cancel(void *context, void *request) {
    mesh_side *s = context;
    mesh_request *r = request;
    mesh_enter(s);
    if (r->magic != 0x6D657368) mesh_complain(s->m, "what is no request is cancelled");
    mesh_request **mine = &s->m->receives;
    while (*mine && *mine != r) mine = &(*mine)->next;
    if (*mine) *mine = r->next;
    for (mesh_message **at = &s->m->messages; *at;) {
        mesh_message *message = *at;
        if (message->sender != r) {
            at = &message->next;
            continue;
        }
        *at = message->next;
        free(message);
    }
    r->magic = 0;
    atomic_fetch_sub(&s->open, 1);
    mesh_leave(s);
}

static weft_status mesh_exchange(void *context, const void *mine, size_t bytes, void *all) {
    (void)context;
    (void)mine;
    (void)bytes;
    (void)all;
    WEFT_FAIL(WEFT_E_NO_IMPL, "nobody exchanges over a mesh");
}

static void mesh_close(void *context) {
    mesh_side *s = context;
    mesh_enter(s);
    s->closed = true;
    if (atomic_load(&s->open) != 0) mesh_complain(s->m, "requests are left when it is closed");
    mesh_leave(s);
}

static void mesh_begin(mesh *m, int size, uint64_t seed, int most_looks, size_t small) {
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->size = size;
    m->seed = seed;
    m->most_looks = most_looks;
    m->small = small;
    m->dead = -1;
    for (int r = 0; r < size; r++) {
        m->side[r].m = m;
        m->side[r].rank = r;
    }
}
static weft_transport mesh_transport(mesh *m, int rank, bool any_thread) {
    return WEFT_STRUCT(weft_transport, .name = "mesh", .context = &m->side[rank], .rank = rank,
                       .size = m->size, .any_thread = any_thread,
                       .request_bytes = sizeof(mesh_request), .send = mesh_send,
                       .receive = mesh_receive, .test = mesh_test, .cancel = mesh_cancel,
                       .exchange = mesh_exchange, .close = mesh_close);
}
/* After all sides are closed. */
static void mesh_end(mesh *m) {
    while (m->messages) {
        mesh_message *next = m->messages->next;
        if (m->messages->copied) free((void *)(uintptr_t)m->messages->data);
        free(m->messages);
        m->messages = next;
    }
    pthread_mutex_destroy(&m->lock);
}

#endif
