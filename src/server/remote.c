/* A rank's side of servers in other processes: see server/remote.h. */
#include "server/remote.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/thread.h"
#include "comm/connection/connection.h"
#include "server/words.h"

#ifdef WEFT_HAVE_OPENSSL

enum { REMOTE_QUEUE = 4 << 20, REMOTE_AGAIN_MS = 100 };

/* Frames on their way out: a head, and bytes of the rank in chunks. */
typedef struct remote_letter {
    struct remote_letter *next;
    int32_t server;
    wefti_server_word word;
    uint64_t tag, place;
    unsigned char *body; /* [body_bytes], borrowed: of one frame; NULL: `head` and data */
    size_t body_bytes;
    unsigned char head[WEFTI_WORD_HEAD + WEFTI_WORD_SCALARS];
    size_t head_bytes;
    const unsigned char *data;
    int64_t bytes, sent;
    bool waits; /* it is in the list */
} remote_letter;

typedef struct remote_server {
    wefti_conn_address address;
    wefti_conn_link *link; /* NULL: not connected */
    bool opened;
    int64_t load; /* bytes of parameters */
} remote_server;

typedef struct remote_bound {
    wefti_shard base;
    struct remote_service *service;
    struct remote_bound *next;
    int32_t server;
    uint32_t id;
    int64_t part_bytes[WEFTI_SERVED_PARTS];
    size_t square_bytes;
    remote_letter push, pull, taken;
    bool is_read;    /* the server reads what is pushed, */
    bool pushes;     /* and has not said that it has */
    int64_t process; /* of the server, whose memory is read; 0: it is not */
    /* What comes: */
    unsigned char *value;
    int64_t pulled, come, asked; /* the number, and bytes; of the square */
    unsigned char square[sizeof(double)];
    bool has_square;
} remote_bound;

/* The answer to a call that waits. One at a time. */
typedef struct remote_reply {
    uint64_t tag;
    bool there;
    uint32_t shard, part;
    wefti_probe probe; /* BOUND */
    unsigned char *to; /* BYTES */
    int64_t at, come, bytes;
} remote_reply;

typedef struct remote_service {
    wefti_service base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool runs; /* the thread */
    int wake;
    wefti_conn_hub *hub;
    remote_server *servers;
    int32_t count;
    uint64_t session, next_tag;
    int64_t until_ns; /* for all servers to answer */
    remote_letter *letters, **last;
    remote_bound *bound;
    remote_reply reply;
    bool ends, by_frames;
    wefti_probe probe;
    wefti_failure broken; /* status WEFT_OK: it is not */
    bool lost;            /* it cannot be mended */
} remote_service;

static remote_service *service_of(wefti_service *service) {
    return (remote_service *)service;
}
static remote_bound *bound_of(wefti_shard *shard) {
    return (remote_bound *)shard;
}

/* The first failure counts. With the lock. */
static void fail(remote_service *s, weft_status status, int rank, const char *text) {
    if (s->broken.status == WEFT_OK) {
        s->broken.status = status;
        s->broken.rank = rank;
        (void)snprintf(s->broken.message, sizeof s->broken.message, "%s", text);
    }
    pthread_cond_broadcast(&s->changed);
}

static weft_status check(const remote_service *s) {
    return s->broken.status == WEFT_OK ? WEFT_OK : wefti_failure_tell(&s->broken);
}

static void wake(const remote_service *s) {
    const uint64_t one = 1;
    const ssize_t written = write(s->wake, &one, sizeof one);
    (void)written; /* a full counter wakes too */
}

/* ---- the thread: letters go out ---- */

/* WEFT_PENDING: the queue is full. */
static weft_status send_letter(remote_service *s, remote_letter *l) {
    wefti_conn_link *link = s->servers[l->server].link;
    if (!link || !s->servers[l->server].opened) return WEFT_PENDING;
    if (l->body) {
        const struct iovec part = {l->body, l->body_bytes};
        return wefti_conn_link_send(link, (uint32_t)l->word, l->tag, 0, &part, 1);
    }
    do {
        const int64_t left = l->bytes - l->sent;
        const int64_t bytes = left < WEFTI_WORD_CHUNK ? left : WEFTI_WORD_CHUNK;
        const struct iovec part[] = {
            {l->head, l->head_bytes},
            {(void *)(uintptr_t)(l->data ? l->data + l->sent : NULL), (size_t)bytes}};
        const weft_status status = wefti_conn_link_send(
            link, (uint32_t)l->word, l->tag, l->place + (uint64_t)l->sent, part, bytes ? 2 : 1);
        if (status != WEFT_OK) return status;
        l->sent += bytes;
    } while (l->sent < l->bytes);
    return WEFT_OK;
}

/* Letters to one server keep their order. */
static void send_letters(remote_service *s) {
    bool any = false;
    for (remote_letter **at = &s->letters, *l; (l = *at);) {
        bool waits = false;
        for (const remote_letter *b = s->letters; b != l; b = b->next)
            waits = waits || b->server == l->server;
        if (waits || send_letter(s, l) != WEFT_OK) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        if (!l->next) s->last = at;
        l->waits = false;
        any = true;
    }
    if (any) pthread_cond_broadcast(&s->changed);
}

static void write_letter(remote_service *s, remote_letter *l) {
    l->next = NULL;
    l->sent = 0;
    l->waits = true;
    *s->last = l;
    s->last = &l->next;
    wake(s);
}

static void take_back(remote_service *s, remote_letter *l) {
    if (!l->waits) return;
    remote_letter **at = &s->letters;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    if (!l->next) s->last = at;
    l->waits = false;
}

/* With the lock: a word of a shard. */
static void address(remote_letter *l, const remote_bound *b, wefti_server_word word, uint64_t tag,
                    int part) {
    *l = (remote_letter){
        .server = b->server, .word = word, .tag = tag, .head_bytes = WEFTI_WORD_HEAD};
    wefti_put_number(l->head, b->id, 4);
    wefti_put_number(l->head + 4, (uint64_t)part, 4);
}

/* ---- the thread: what comes ---- */

static remote_bound *find_bound(const remote_service *s, int32_t server, uint32_t id) {
    remote_bound *b = s->bound;
    while (b && (b->server != server || b->id != id)) b = b->next;
    return b;
}

static weft_status hear_value(remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
    if ((int64_t)f->tag != b->pulled || !b->value) return WEFT_OK; /* it was given up */
    WEFT_REQUIRE((int64_t)f->place == b->come && bytes <= b->part_bytes[0] - b->come,
                 WEFT_E_CORRUPT, "a value that does not fit");
    memcpy(b->value + b->come, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
    b->come += bytes;
    return WEFT_OK;
}

/* The value is read at once; the server keeps it until it hears TAKEN. */
static weft_status hear_value_at(remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
    WEFT_REQUIRE(bytes == 8 && b->process, WEFT_E_CORRUPT, "a value that cannot be read");
    if ((int64_t)f->tag == b->pulled && b->value) {
        WEFT_REQUIRE(wefti_reach_read(b->process, wefti_get_number(f->body + WEFTI_WORD_HEAD, 8),
                                      b->value, b->part_bytes[0]),
                     WEFT_E_PEER, "its memory cannot be read");
        b->come = b->part_bytes[0];
    }
    if (b->taken.waits) take_back(b->service, &b->taken);
    address(&b->taken, b, WEFTI_WORD_TAKEN, f->tag, 0);
    write_letter(b->service, &b->taken);
    return WEFT_OK;
}

static weft_status hear_reply(remote_service *s, const wefti_conn_frame *f, int64_t bytes) {
    remote_reply *r = &s->reply;
    if (f->tag != r->tag || r->there) return WEFT_OK;
    r->shard = (uint32_t)wefti_get_number(f->body, 4);
    r->part = (uint32_t)wefti_get_number(f->body + 4, 4);
    if (f->kind == WEFTI_WORD_BOUND) {
        WEFT_REQUIRE(bytes == WEFTI_PROBE_BYTES, WEFT_E_CORRUPT, "a probe of %lld bytes",
                     (long long)bytes);
        wefti_probe_decode(f->body + WEFTI_WORD_HEAD, &r->probe);
    }
    if (f->kind == WEFTI_WORD_BYTES) {
        WEFT_REQUIRE(r->to && (int64_t)f->place == r->at + r->come && bytes <= r->bytes - r->come,
                     WEFT_E_CORRUPT, "bytes that were not asked for");
        memcpy(r->to + r->come, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
        r->come += bytes;
    }
    r->there = r->come == r->bytes;
    return WEFT_OK;
}

static weft_status hear_failure(remote_service *s, const wefti_conn_frame *f) {
    wefti_failed_word failed;
    WEFT_TRY(wefti_failed_decode(f->body, f->bytes, &failed));
    fail(s, failed.status, failed.rank, failed.text);
    return WEFT_OK;
}

static weft_status hear_shard(remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
    if (f->kind == WEFTI_WORD_VALUE) return hear_value(b, f, bytes);
    if (f->kind == WEFTI_WORD_VALUE_AT) return hear_value_at(b, f, bytes);
    if (f->kind == WEFTI_WORD_TAKEN) {
        b->pushes = false;
        return WEFT_OK;
    }
    WEFT_REQUIRE(f->kind == WEFTI_WORD_SQUARE && bytes == sizeof b->square, WEFT_E_CORRUPT,
                 "word %u, which no server says", f->kind);
    if ((int64_t)f->tag != b->asked) return WEFT_OK;
    memcpy(b->square, f->body + WEFTI_WORD_HEAD, sizeof b->square);
    b->has_square = true;
    return WEFT_OK;
}

static weft_status heard(void *context, wefti_conn_link *link, const wefti_conn_frame *f) {
    remote_service *s = context;
    const int64_t bytes = (int64_t)f->bytes - WEFTI_WORD_HEAD;
    pthread_cond_broadcast(&s->changed);
    if (f->kind == WEFTI_WORD_FAILED) return hear_failure(s, f);
    WEFT_REQUIRE(bytes >= 0, WEFT_E_CORRUPT, "a word of %zu bytes", f->bytes);
    if (f->kind == WEFTI_WORD_BOUND || f->kind == WEFTI_WORD_BYTES || f->kind == WEFTI_WORD_DONE)
        return hear_reply(s, f, bytes);
    remote_bound *b = find_bound(s, link->side.number, (uint32_t)wefti_get_number(f->body, 4));
    return b ? hear_shard(b, f, bytes) : WEFT_OK; /* of a shard that is unbound by now */
}

static bool takes(void *context, wefti_conn_side from) {
    (void)context;
    (void)from;
    return false;
}

static void opened(void *context, wefti_conn_link *link) {
    remote_service *s = context;
    s->servers[link->side.number].opened = true;
    pthread_cond_broadcast(&s->changed);
}

/* A server that has not answered yet is called again. */
static void closed(void *context, wefti_conn_link *link, weft_status status, const char *why) {
    remote_service *s = context;
    remote_server *of = &s->servers[link->side.number];
    char text[WEFTI_WORD_TEXT];
    of->link = NULL;
    if (s->ends || (!of->opened && status == WEFT_E_PEER && wefti_now_ns() < s->until_ns)) return;
    s->lost = true;
    (void)snprintf(text, sizeof text, "server %d (%s) %s: %.300s", link->side.number,
                   of->address.text, of->opened ? "is lost" : "does not answer", why);
    fail(s, WEFT_E_PEER, WEFT_RANK_NONE, text);
}

/* ---- the thread ---- */

static bool call_servers(remote_service *s) {
    bool all = true;
    for (int32_t i = 0; i < s->count; i++) {
        remote_server *to = &s->servers[i];
        const wefti_conn_side side = {.number = i, .role = WEFTI_ROLE_SERVER};
        if (!to->link && !s->lost &&
            wefti_conn_hub_call(s->hub, side, &to->address.at, to->address.bytes, &to->link) < 0) {
            to->link = NULL;
            if (wefti_now_ns() > s->until_ns)
                fail(s, WEFT_E_PEER, WEFT_RANK_NONE, weft_error_message());
        }
        all = all && to->link;
    }
    return all;
}

static void *run(void *context) {
    remote_service *s = context;
    for (;;) {
        uint64_t count;
        pthread_mutex_lock(&s->lock);
        const bool ends = s->ends, all = ends || call_servers(s);
        send_letters(s);
        pthread_mutex_unlock(&s->lock);
        if (ends) return NULL;
        struct pollfd polled[] = {{wefti_conn_hub_poller(s->hub), POLLIN, 0}, {s->wake, POLLIN, 0}};
        (void)poll(polled, 2, all ? 1000 : REMOTE_AGAIN_MS);
        if (polled[1].revents && read(s->wake, &count, sizeof count) < 0 && errno != EAGAIN)
            return NULL;
        pthread_mutex_lock(&s->lock);
        if (wefti_conn_hub_turn(s->hub, 0) < 0)
            fail(s, WEFT_E_IO, WEFT_RANK_NONE, weft_error_message());
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- ranks' calls ---- */

static void add_address(remote_letter *l, const void *memory) {
    wefti_put_number(l->head + l->head_bytes, (uint64_t)(uintptr_t)memory, 8);
    l->head_bytes += 8;
}

/* Waits until the server has read what it may read. */
static weft_status await_taken(remote_bound *b) {
    remote_service *s = b->service;
    weft_status status = WEFT_OK;
    while ((b->push.waits || b->pushes) && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    return status;
}

/* Sends a letter and waits for its reply. */
static weft_status ask(remote_service *s, remote_letter *l, remote_reply reply) {
    weft_status status = check(s);
    if (status < 0) return status;
    l->tag = ++s->next_tag;
    reply.tag = l->tag;
    s->reply = reply;
    write_letter(s, l);
    while (!s->reply.there && (status = check(s)) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, l);
    s->reply.tag = 0;
    return status;
}

static weft_status remote_push(wefti_shard *shard, int64_t number, const void *gradient) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = check(s);
    if (status >= 0) {
        address(&b->push, b, b->is_read ? WEFTI_WORD_TERM_AT : WEFTI_WORD_TERM, (uint64_t)number,
                0);
        b->pushes = b->is_read;
        if (b->is_read) {
            add_address(&b->push, gradient);
        } else {
            b->push.data = gradient;
            b->push.bytes = b->part_bytes[0];
        }
        write_letter(s, &b->push);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_wait_push(wefti_shard *shard) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = await_taken(b);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_square(wefti_shard *shard, int64_t number, void *out) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    remote_letter l;
    pthread_mutex_lock(&s->lock);
    weft_status status = check(s);
    b->asked = number;
    b->has_square = false;
    address(&l, b, WEFTI_WORD_ASK, (uint64_t)number, 0);
    if (status >= 0) write_letter(s, &l);
    while (status >= 0 && !b->has_square && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, &l);
    memcpy(out, b->square, b->square_bytes);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_pull(wefti_shard *shard, int64_t number, const wefti_step_block *scalars,
                               void *value) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = check(s);
    if (status >= 0) {
        address(&b->pull, b, WEFTI_WORD_PULL, (uint64_t)number, b->process != 0);
        wefti_scalars_encode(scalars, b->pull.head + WEFTI_WORD_HEAD);
        b->pull.head_bytes += WEFTI_WORD_SCALARS;
        b->value = value;
        b->pulled = number;
        b->come = 0;
        write_letter(s, &b->pull);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_wait_pull(wefti_shard *shard) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&s->lock);
    while (b->come < b->part_bytes[0] && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, &b->pull);
    b->value = NULL;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void remote_give_up(wefti_shard *shard) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    if (b->push.waits) b->pushes = false; /* the server has not heard of it */
    take_back(s, &b->push);
    while (b->pushes && !s->lost) pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, &b->pull);
    b->value = NULL;
    pthread_mutex_unlock(&s->lock);
}

static weft_status check_range(const remote_bound *b, int part, int64_t offset, int64_t bytes) {
    WEFT_REQUIRE(part >= 0 && part < WEFTI_SERVED_PARTS && offset >= 0 && bytes >= 0 &&
                     bytes <= b->part_bytes[part] - offset,
                 WEFT_E_BUG, "bytes %lld to %lld of part %d of a shard", (long long)offset,
                 (long long)(offset + bytes), part);
    return WEFT_OK;
}

static weft_status remote_read(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                               void *to) {
    remote_bound *b = bound_of(shard);
    remote_letter l;
    WEFT_TRY(check_range(b, part, offset, bytes));
    pthread_mutex_lock(&b->service->lock);
    address(&l, b, WEFTI_WORD_READ, 0, part);
    l.place = (uint64_t)offset;
    wefti_put_number(l.head + WEFTI_WORD_HEAD, (uint64_t)bytes, 8);
    l.head_bytes += 8;
    const weft_status status =
        ask(b->service, &l, (remote_reply){.to = to, .at = offset, .bytes = bytes});
    pthread_mutex_unlock(&b->service->lock);
    return status;
}

/* In chunks, each of which is answered. */
static weft_status remote_write(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                                const void *from) {
    remote_bound *b = bound_of(shard);
    weft_status status = WEFT_OK;
    WEFT_TRY(check_range(b, part, offset, bytes));
    pthread_mutex_lock(&b->service->lock);
    for (int64_t at = 0; at < bytes && status >= 0;) {
        remote_letter l;
        const int64_t left = bytes - at, chunk = left < WEFTI_WORD_CHUNK ? left : WEFTI_WORD_CHUNK;
        address(&l, b, WEFTI_WORD_WRITE, 0, part);
        l.place = (uint64_t)(offset + at);
        l.data = (const unsigned char *)from + at;
        l.bytes = chunk;
        status = ask(b->service, &l, (remote_reply){.to = NULL});
        at += chunk;
    }
    pthread_mutex_unlock(&b->service->lock);
    return status;
}

/* ---- binding ---- */

static int32_t choose_server(remote_service *s, const wefti_served *served) {
    int32_t best = 0;
    for (int32_t i = 1; i < s->count; i++)
        if (s->servers[i].load < s->servers[best].load) best = i;
    s->servers[best].load += weft_desc_bytes(&served->whole) * (1 + served->rule.states);
    return best;
}

static weft_status bind_there(remote_service *s, const wefti_served *served, remote_bound *b) {
    const wefti_bind_word word = {s->session, s->base.rank,
                                  s->by_frames ? (wefti_probe){0} : s->probe, *served};
    remote_letter l = {.word = WEFTI_WORD_BIND};
    WEFT_TRY(wefti_bind_encode(&word, &l.body, &l.body_bytes));
    pthread_mutex_lock(&s->lock);
    l.server = b->server = choose_server(s, served);
    const weft_status status = ask(s, &l, (remote_reply){.to = NULL});
    b->id = s->reply.shard;
    b->is_read = s->reply.part != 0;
    if (status >= 0 && !s->by_frames && wefti_probe_reads(&s->reply.probe))
        b->process = s->reply.probe.process;
    if (status >= 0) {
        b->next = s->bound;
        s->bound = b;
    }
    pthread_mutex_unlock(&s->lock);
    wefti_free(l.body);
    return status;
}

static weft_status remote_bind(wefti_service *service, const wefti_served *served,
                               wefti_shard **out) {
    remote_bound *b;
    WEFT_NEW(b, remote_bound);
    b->base.engine = service->engine;
    b->service = service_of(service);
    b->square_bytes = weft_dtype_bytes(served->square);
    memcpy(b->part_bytes, served->part_bytes, sizeof b->part_bytes);
    const weft_status status = bind_there(b->service, served, b);
    if (status < 0) {
        wefti_free(b);
        return status;
    }
    *out = &b->base;
    return WEFT_OK;
}

/* The letter goes before the connection does, if it can. */
static void remote_unbind(wefti_shard *shard) {
    remote_bound *b = bound_of(shard);
    remote_service *s = b->service;
    remote_letter l;
    pthread_mutex_lock(&s->lock);
    take_back(s, &b->push);
    take_back(s, &b->pull);
    while (b->taken.waits && check(s) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, &b->taken);
    address(&l, b, WEFTI_WORD_UNBIND, 0, 0);
    if (check(s) >= 0) write_letter(s, &l);
    while (l.waits && check(s) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    take_back(s, &l);
    remote_bound **at = &s->bound;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    pthread_mutex_unlock(&s->lock);
    wefti_free(b);
}

/* ---- life ---- */

static void remote_break(wefti_service *service, int failed, const char *message) {
    remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    fail(s, WEFT_E_PEER, failed == WEFT_RANK_OWN ? service->rank : failed, message);
    pthread_mutex_unlock(&s->lock);
}

static void remote_mend(wefti_service *service) {
    remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    if (!s->lost) s->broken.status = WEFT_OK;
    pthread_mutex_unlock(&s->lock);
}

static void remote_destroy(wefti_service *service) {
    remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_mutex_unlock(&s->lock);
    if (s->wake >= 0) wake(s);
    if (s->runs) pthread_join(s->thread, NULL);
    wefti_conn_hub_close(s->hub);
    if (s->wake >= 0) close(s->wake);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    wefti_free(s->servers);
    wefti_free(s);
}

static const wefti_service_engine engine = {.name = "remote",
                                            .bind = remote_bind,
                                            .push = remote_push,
                                            .wait_push = remote_wait_push,
                                            .square = remote_square,
                                            .pull = remote_pull,
                                            .wait_pull = remote_wait_pull,
                                            .give_up = remote_give_up,
                                            .read = remote_read,
                                            .write = remote_write,
                                            .unbind = remote_unbind,
                                            .break_off = remote_break,
                                            .mend = remote_mend,
                                            .destroy = remote_destroy};

/* Servers know ranks by numbers that are unlike for the ranks of all sessions. */
static int32_t number_of(const wefti_remote_options *o) {
    const uint64_t digest =
        wefti_digest_number(wefti_digest_number(11, o->session), (uint64_t)o->rank);
    return (int32_t)(digest & INT32_MAX);
}

static weft_status open_hub(remote_service *s, const wefti_remote_options *o) {
    const struct sockaddr_in none = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_storage at = {0};
    wefti_conn_hub_options hub = {.me = {.number = number_of(o), .role = WEFTI_ROLE_WORKER},
                                  .encrypts = o->encrypts,
                                  .seconds = o->seconds > 0 ? o->seconds : 60,
                                  .queue_bytes = REMOTE_QUEUE,
                                  .context = s,
                                  .takes = takes,
                                  .opened = opened,
                                  .heard = heard,
                                  .closed = closed};
    memcpy(&at, &none, sizeof none);
    s->until_ns = wefti_now_ns() + (int64_t)(hub.seconds * 1e9);
    memcpy(hub.key, o->key, sizeof hub.key);
    const weft_status status = wefti_conn_hub_open(&hub, &at, sizeof none, &s->hub);
    explicit_bzero(hub.key, sizeof hub.key);
    return status;
}

static weft_status connect_all(remote_service *s) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->count && status >= 0;) {
        status = check(s);
        if (s->servers[i].opened)
            i++;
        else if (status >= 0)
            pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status start(remote_service *s, const wefti_remote_options *o) {
    WEFT_NEW_ARRAY(s->servers, remote_server, o->count);
    for (int32_t i = 0; i < o->count; i++) s->servers[i].address = o->servers[i];
    wefti_probe_make(&s->probe);
    s->by_frames = o->by_frames;
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    WEFT_REQUIRE(s->wake >= 0, WEFT_E_IO, "no event: %s", strerror(errno));
    WEFT_TRY(open_hub(s, o));
    const int error = wefti_thread_start(&s->thread, run, s);
    WEFT_REQUIRE(!error, WEFT_E_NOMEM, "cannot start the thread of a service: %s", strerror(error));
    s->runs = true;
    return connect_all(s);
}

weft_status wefti_service_remote(const wefti_remote_options *o, wefti_service **out) {
    remote_service *s;
    WEFT_REQUIRE(o->count >= 1, WEFT_E_ARG, "a service without servers");
    WEFT_NEW(s, remote_service);
    s->base = (wefti_service){&engine, o->rank};
    s->count = o->count;
    s->session = o->session;
    s->last = &s->letters;
    s->wake = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    const weft_status status = start(s, o);
    if (status < 0) {
        remote_destroy(&s->base);
        return status;
    }
    *out = &s->base;
    return WEFT_OK;
}

#else

weft_status wefti_service_remote(const wefti_remote_options *o, wefti_service **out) {
    (void)o;
    (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "servers in other processes need a build with OpenSSL");
}

#endif
