/* A rank's side of servers in other processes: see server/remote.h. */
#include "server/remote_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/thread.h"

#ifdef WEFT_HAVE_OPENSSL

static wefti_remote_service *service_of(wefti_service *service) {
    return (wefti_remote_service *)service;
}
static wefti_remote_bound *bound_of(wefti_shard *shard) {
    return (wefti_remote_bound *)shard;
}

void wefti_remote_fail(wefti_remote_service *s, weft_status status, int rank, const char *text) {
    if (s->broken.status == WEFT_OK) {
        s->broken.status = status;
        s->broken.rank = rank;
        (void)snprintf(s->broken.message, sizeof s->broken.message, "%s", text);
    }
    pthread_cond_broadcast(&s->changed);
}

static weft_status check(const wefti_remote_service *s) {
    return s->broken.status == WEFT_OK ? WEFT_OK : wefti_failure_tell(&s->broken);
}

/* ---- ranks' calls ---- */

static void add_address(wefti_remote_letter *l, const void *memory) {
    wefti_put_number(l->head + l->head_bytes, (uint64_t)(uintptr_t)memory, 8);
    l->head_bytes += 8;
}

/* Waits until the server has read what it may read. */
static weft_status await_taken(wefti_remote_bound *b) {
    wefti_remote_service *s = b->service;
    weft_status status = WEFT_OK;
    while ((b->push.waits || b->pushes) && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    return status;
}

/* Sends a letter and waits for its reply. */
static weft_status ask(wefti_remote_service *s, wefti_remote_letter *l, wefti_remote_reply reply) {
    weft_status status = check(s);
    if (status < 0) return status;
    l->tag = ++s->next_tag;
    reply.tag = l->tag;
    s->reply = reply;
    wefti_remote_write(s, l);
    while (!s->reply.there && (status = check(s)) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, l);
    s->reply.tag = 0;
    return status;
}

static weft_status remote_push(wefti_shard *shard, int64_t number, const void *gradient) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = check(s);
    if (status >= 0) {
        wefti_remote_address(&b->push, b, b->is_read ? WEFTI_WORD_TERM_AT : WEFTI_WORD_TERM,
                             (uint64_t)number, 0);
        b->pushes = b->is_read;
        if (b->is_read) {
            add_address(&b->push, gradient);
        } else {
            b->push.data = gradient;
            b->push.bytes = b->part_bytes[0];
        }
        wefti_remote_write(s, &b->push);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_wait_push(wefti_shard *shard) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = await_taken(b);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_square(wefti_shard *shard, int64_t number, void *out) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    wefti_remote_letter l;
    pthread_mutex_lock(&s->lock);
    weft_status status = check(s);
    b->asked = number;
    b->has_square = false;
    wefti_remote_address(&l, b, WEFTI_WORD_ASK, (uint64_t)number, 0);
    if (status >= 0) wefti_remote_write(s, &l);
    while (status >= 0 && !b->has_square && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, &l);
    memcpy(out, b->square, b->square_bytes);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_pull(wefti_shard *shard, int64_t number, const wefti_step_block *scalars,
                               void *value) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    const weft_status status = check(s);
    if (status >= 0) {
        wefti_remote_address(&b->pull, b, WEFTI_WORD_PULL, (uint64_t)number, b->process != 0);
        wefti_scalars_encode(scalars, b->pull.head + WEFTI_WORD_HEAD);
        b->pull.head_bytes += WEFTI_WORD_SCALARS;
        b->value = value;
        b->pulled = number;
        b->come = 0;
        wefti_remote_write(s, &b->pull);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status remote_wait_pull(wefti_shard *shard) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&s->lock);
    while (b->come < b->part_bytes[0] && (status = check(s)) >= 0)
        pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, &b->pull);
    b->value = NULL;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void remote_give_up(wefti_shard *shard) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    pthread_mutex_lock(&s->lock);
    if (b->push.waits) b->pushes = false; /* the server has not heard of it */
    wefti_remote_take_back(s, &b->push);
    while (b->pushes && !s->lost) pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, &b->pull);
    b->value = NULL;
    pthread_mutex_unlock(&s->lock);
}

static weft_status check_range(const wefti_remote_bound *b, int part, int64_t offset,
                               int64_t bytes) {
    WEFT_REQUIRE(part >= 0 && part < WEFTI_SERVED_PARTS && offset >= 0 && bytes >= 0 &&
                     bytes <= b->part_bytes[part] - offset,
                 WEFT_E_BUG, "bytes %lld to %lld of part %d of a shard", (long long)offset,
                 (long long)(offset + bytes), part);
    return WEFT_OK;
}

static weft_status remote_read(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                               void *to) {
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_letter l;
    WEFT_TRY(check_range(b, part, offset, bytes));
    pthread_mutex_lock(&b->service->lock);
    wefti_remote_address(&l, b, WEFTI_WORD_READ, 0, part);
    l.place = (uint64_t)offset;
    wefti_put_number(l.head + WEFTI_WORD_HEAD, (uint64_t)bytes, 8);
    l.head_bytes += 8;
    const weft_status status =
        ask(b->service, &l, (wefti_remote_reply){.to = to, .at = offset, .bytes = bytes});
    pthread_mutex_unlock(&b->service->lock);
    return status;
}

/* In chunks, each of which is answered. */
static weft_status remote_write(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                                const void *from) {
    wefti_remote_bound *b = bound_of(shard);
    weft_status status = WEFT_OK;
    WEFT_TRY(check_range(b, part, offset, bytes));
    pthread_mutex_lock(&b->service->lock);
    for (int64_t at = 0; at < bytes && status >= 0;) {
        wefti_remote_letter l;
        const int64_t left = bytes - at, chunk = left < WEFTI_WORD_CHUNK ? left : WEFTI_WORD_CHUNK;
        wefti_remote_address(&l, b, WEFTI_WORD_WRITE, 0, part);
        l.place = (uint64_t)(offset + at);
        l.data = (const unsigned char *)from + at;
        l.bytes = chunk;
        status = ask(b->service, &l, (wefti_remote_reply){.to = NULL});
        at += chunk;
    }
    pthread_mutex_unlock(&b->service->lock);
    return status;
}

/* ---- binding ---- */

static int32_t choose_server(wefti_remote_service *s, const wefti_served *served) {
    int32_t best = 0;
    for (int32_t i = 1; i < s->count; i++)
        if (s->servers[i].load < s->servers[best].load) best = i;
    s->servers[best].load += weft_desc_bytes(&served->whole) * (1 + served->rule.states);
    return best;
}

static weft_status bind_there(wefti_remote_service *s, const wefti_served *served,
                              wefti_remote_bound *b) {
    const wefti_bind_word word = {s->session, s->base.rank,
                                  s->by_frames ? (wefti_probe){0} : s->probe, *served};
    wefti_remote_letter l = {.word = WEFTI_WORD_BIND};
    WEFT_TRY(wefti_bind_encode(&word, &l.body, &l.body_bytes));
    pthread_mutex_lock(&s->lock);
    l.server = b->server = choose_server(s, served);
    const weft_status status = ask(s, &l, (wefti_remote_reply){.to = NULL});
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
    wefti_remote_bound *b;
    WEFT_NEW(b, wefti_remote_bound);
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
    wefti_remote_bound *b = bound_of(shard);
    wefti_remote_service *s = b->service;
    wefti_remote_letter l;
    pthread_mutex_lock(&s->lock);
    wefti_remote_take_back(s, &b->push);
    wefti_remote_take_back(s, &b->pull);
    while (b->taken.waits && check(s) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, &b->taken);
    wefti_remote_address(&l, b, WEFTI_WORD_UNBIND, 0, 0);
    if (check(s) >= 0) wefti_remote_write(s, &l);
    while (l.waits && check(s) >= 0) pthread_cond_wait(&s->changed, &s->lock);
    wefti_remote_take_back(s, &l);
    wefti_remote_bound **at = &s->bound;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    pthread_mutex_unlock(&s->lock);
    wefti_free(b);
}

/* ---- life ---- */

static void remote_break(wefti_service *service, int failed, const char *message) {
    wefti_remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    wefti_remote_fail(s, WEFT_E_PEER, failed == WEFT_RANK_OWN ? service->rank : failed, message);
    pthread_mutex_unlock(&s->lock);
}

static void remote_mend(wefti_service *service) {
    wefti_remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    if (!s->lost) s->broken.status = WEFT_OK;
    pthread_mutex_unlock(&s->lock);
}

static void remote_destroy(wefti_service *service) {
    wefti_remote_service *s = service_of(service);
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_mutex_unlock(&s->lock);
    if (s->wake >= 0) wefti_remote_wake(s);
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

static weft_status connect_all(wefti_remote_service *s) {
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

static weft_status start(wefti_remote_service *s, const wefti_remote_options *o) {
    WEFT_NEW_ARRAY(s->servers, wefti_remote_server, o->count);
    for (int32_t i = 0; i < o->count; i++) s->servers[i].address = o->servers[i];
    wefti_probe_make(&s->probe);
    s->by_frames = o->by_frames;
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    WEFT_REQUIRE(s->wake >= 0, WEFT_E_IO, "no event: %s", strerror(errno));
    WEFT_TRY(wefti_remote_open_hub(s, o));
    const int error = wefti_thread_start(&s->thread, wefti_remote_run, s);
    WEFT_REQUIRE(!error, WEFT_E_NOMEM, "cannot start the thread of a service: %s", strerror(error));
    s->runs = true;
    return connect_all(s);
}

weft_status wefti_service_remote(const wefti_remote_options *o, wefti_service **out) {
    wefti_remote_service *s;
    WEFT_REQUIRE(o->count >= 1, WEFT_E_ARG, "a service without servers");
    WEFT_NEW(s, wefti_remote_service);
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
