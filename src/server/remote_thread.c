/* The thread of a rank's side of servers: letters go out, words come. See server/remote_parts.h. */
#include "server/remote_parts.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "comm/connection/connection.h"

#ifdef WEFT_HAVE_OPENSSL

enum { REMOTE_QUEUE = 4 << 20, REMOTE_AGAIN_MS = 100 };

void wefti_remote_wake(const wefti_remote_service *s) {
    const uint64_t one = 1;
    const ssize_t written = write(s->wake, &one, sizeof one);
    (void)written; /* a full counter wakes too */
}
/* ---- letters go out ---- */

/* WEFT_PENDING: the queue is full. */
static weft_status send_letter(wefti_remote_service *s, wefti_remote_letter *l) {
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
static void send_letters(wefti_remote_service *s) {
    bool any = false;
    for (wefti_remote_letter **at = &s->letters, *l; (l = *at);) {
        bool waits = false;
        for (const wefti_remote_letter *b = s->letters; b != l; b = b->next)
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

void wefti_remote_write(wefti_remote_service *s, wefti_remote_letter *l) {
    l->next = NULL;
    l->sent = 0;
    l->waits = true;
    *s->last = l;
    s->last = &l->next;
    wefti_remote_wake(s);
}

void wefti_remote_take_back(wefti_remote_service *s, wefti_remote_letter *l) {
    if (!l->waits) return;
    wefti_remote_letter **at = &s->letters;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    if (!l->next) s->last = at;
    l->waits = false;
}

/* With the lock: a word of a shard. */
void wefti_remote_address(wefti_remote_letter *l, const wefti_remote_bound *b,
                          wefti_server_word word, uint64_t tag, int part) {
    *l = (wefti_remote_letter){
        .server = b->server, .word = word, .tag = tag, .head_bytes = WEFTI_WORD_HEAD};
    wefti_put_number(l->head, b->id, 4);
    wefti_put_number(l->head + 4, (uint64_t)part, 4);
}

/* ---- words come ---- */

static wefti_remote_bound *find_bound(const wefti_remote_service *s, int32_t server, uint32_t id) {
    wefti_remote_bound *b = s->bound;
    while (b && (b->server != server || b->id != id)) b = b->next;
    return b;
}

static weft_status hear_value(wefti_remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
    if ((int64_t)f->tag != b->pulled || !b->value) return WEFT_OK; /* it was given up */
    WEFT_REQUIRE((int64_t)f->place == b->come && bytes <= b->part_bytes[0] - b->come,
                 WEFT_E_CORRUPT, "a value that does not fit");
    memcpy(b->value + b->come, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
    b->come += bytes;
    return WEFT_OK;
}

/* The value is read at once; the server keeps it until it hears TAKEN. */
static weft_status hear_value_at(wefti_remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
    WEFT_REQUIRE(bytes == 8 && b->process, WEFT_E_CORRUPT, "a value that cannot be read");
    if ((int64_t)f->tag == b->pulled && b->value) {
        WEFT_REQUIRE(wefti_reach_read(b->process, wefti_get_number(f->body + WEFTI_WORD_HEAD, 8),
                                      b->value, b->part_bytes[0]),
                     WEFT_E_PEER, "its memory cannot be read");
        b->come = b->part_bytes[0];
    }
    if (b->taken.waits) wefti_remote_take_back(b->service, &b->taken);
    wefti_remote_address(&b->taken, b, WEFTI_WORD_TAKEN, f->tag, 0);
    wefti_remote_write(b->service, &b->taken);
    return WEFT_OK;
}

static weft_status hear_reply(wefti_remote_service *s, const wefti_conn_frame *f, int64_t bytes) {
    wefti_remote_reply *r = &s->reply;
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

static weft_status hear_failure(wefti_remote_service *s, const wefti_conn_frame *f) {
    wefti_failed_word failed;
    WEFT_TRY(wefti_failed_decode(f->body, f->bytes, &failed));
    wefti_remote_fail(s, failed.status, failed.rank, failed.text);
    return WEFT_OK;
}

static weft_status hear_shard(wefti_remote_bound *b, const wefti_conn_frame *f, int64_t bytes) {
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
    wefti_remote_service *s = context;
    const int64_t bytes = (int64_t)f->bytes - WEFTI_WORD_HEAD;
    pthread_cond_broadcast(&s->changed);
    if (f->kind == WEFTI_WORD_FAILED) return hear_failure(s, f);
    WEFT_REQUIRE(bytes >= 0, WEFT_E_CORRUPT, "a word of %zu bytes", f->bytes);
    if (f->kind == WEFTI_WORD_BOUND || f->kind == WEFTI_WORD_BYTES || f->kind == WEFTI_WORD_DONE)
        return hear_reply(s, f, bytes);
    wefti_remote_bound *b =
        find_bound(s, link->side.number, (uint32_t)wefti_get_number(f->body, 4));
    return b ? hear_shard(b, f, bytes) : WEFT_OK; /* of a shard that is unbound by now */
}

static bool takes(void *context, wefti_conn_side from) {
    (void)context;
    (void)from;
    return false;
}

static void opened(void *context, wefti_conn_link *link) {
    wefti_remote_service *s = context;
    s->servers[link->side.number].opened = true;
    pthread_cond_broadcast(&s->changed);
}

/* A server that has not answered yet is called again. */
static void closed(void *context, wefti_conn_link *link, weft_status status, const char *why) {
    wefti_remote_service *s = context;
    wefti_remote_server *of = &s->servers[link->side.number];
    char text[WEFTI_WORD_TEXT];
    of->link = NULL;
    if (s->ends || (!of->opened && status == WEFT_E_PEER && wefti_now_ns() < s->until_ns)) return;
    s->lost = true;
    (void)snprintf(text, sizeof text, "server %d (%s) %s: %.300s", link->side.number,
                   of->address.text, of->opened ? "is lost" : "does not answer", why);
    wefti_remote_fail(s, WEFT_E_PEER, WEFT_RANK_NONE, text);
}

/* ---- the thread ---- */

static bool call_servers(wefti_remote_service *s) {
    bool all = true;
    for (int32_t i = 0; i < s->count; i++) {
        wefti_remote_server *to = &s->servers[i];
        const wefti_conn_side side = {.number = i, .role = WEFTI_ROLE_SERVER};
        if (!to->link && !s->lost &&
            wefti_conn_hub_call(s->hub, side, &to->address.at, to->address.bytes, &to->link) < 0) {
            to->link = NULL;
            if (wefti_now_ns() > s->until_ns)
                wefti_remote_fail(s, WEFT_E_PEER, WEFT_RANK_NONE, weft_error_message());
        }
        all = all && to->link;
    }
    return all;
}

void *wefti_remote_run(void *context) {
    wefti_remote_service *s = context;
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
            wefti_remote_fail(s, WEFT_E_IO, WEFT_RANK_NONE, weft_error_message());
        pthread_mutex_unlock(&s->lock);
    }
}

/* Servers know ranks by numbers that are unlike for the ranks of all sessions. */
static int32_t number_of(const wefti_remote_options *o) {
    const uint64_t digest =
        wefti_digest_number(wefti_digest_number(11, o->session), (uint64_t)o->rank);
    return (int32_t)(digest & INT32_MAX);
}

weft_status wefti_remote_open_hub(wefti_remote_service *s, const wefti_remote_options *o) {
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

#endif
