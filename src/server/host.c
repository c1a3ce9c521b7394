/* A server process: see server/host.h. */
#include <stdio.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/io.h"
#include "server/host_parts.h"
#include "weft/graph.h"

#ifdef WEFT_HAVE_OPENSSL

/* ---- words of ranks ---- */

static wefti_host_bound *find_bound(const wefti_server *s, const wefti_conn_link *link, uint32_t id,
                                    wefti_host_shard **out) {
    wefti_host_shard *x = s->shards;
    while (x && x->id != id) x = x->next;
    wefti_host_bound *b = x ? x->bound : NULL;
    while (b && b->link != link) b = b->next;
    *out = x;
    return b;
}

static weft_status hear_bind(wefti_server *s, wefti_conn_link *link, const wefti_conn_frame *f) {
    wefti_bind_word word;
    wefti_host_shard *x = NULL;
    wefti_arena_clear(s->scratch);
    WEFT_TRY(wefti_bind_decode(s->ops->ops, f->body, f->bytes, s->scratch, &word));
    weft_status status = wefti_host_find_or_add(s, &word, &x);
    if (status >= 0) status = wefti_host_add_bound(x, link, &word);
    if (x && !x->bound) wefti_host_drop_shard(s, x);
    if (status < 0) return wefti_host_refuse(s, link, f->tag, UINT32_MAX, status, WEFT_RANK_NONE);
    return wefti_host_answer_later(s, (wefti_host_answer){.link = link,
                                                          .shard = x,
                                                          .word = WEFTI_WORD_BOUND,
                                                          .tag = f->tag,
                                                          .part = x->bound->process != 0});
}

static weft_status hear_term(wefti_host_shard *x, wefti_host_bound *b, const wefti_conn_frame *f) {
    const int64_t whole = wefti_shard_of(x->state)->part_bytes[0],
                  bytes = (int64_t)f->bytes - WEFTI_WORD_HEAD;
    if (f->place == 0) b->come = 0;
    if (f->place == 0) b->number = (int64_t)f->tag;
    WEFT_REQUIRE(b->term >= 0 && (int64_t)f->place == b->come && (int64_t)f->tag == b->number &&
                     bytes <= whole - b->come && b->number > 0,
                 WEFT_E_CORRUPT, "a term that does not fit its shard");
    memcpy(b->memory + b->come, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
    b->come += bytes;
    return b->come < whole ? WEFT_OK : wefti_shard_push(x->state, b->term, b->number, b->memory);
}

/* The rank keeps the memory until it hears TAKEN. */
static weft_status hear_term_at(wefti_server *s, wefti_host_shard *x, wefti_host_bound *b,
                                const wefti_conn_frame *f) {
    const int64_t whole = wefti_shard_of(x->state)->part_bytes[0];
    WEFT_REQUIRE(f->bytes == WEFTI_WORD_HEAD + 8 && b->term >= 0 && b->process && f->tag > 0 &&
                     f->tag <= INT64_MAX,
                 WEFT_E_CORRUPT, "a term that cannot be read");
    b->number = (int64_t)f->tag;
    b->come = whole;
    WEFT_REQUIRE(wefti_reach_read(b->process, wefti_get_number(f->body + WEFTI_WORD_HEAD, 8),
                                  b->memory, whole),
                 WEFT_E_PEER, "the memory of rank %d cannot be read", b->rank);
    WEFT_TRY(wefti_host_answer_later(
        s,
        (wefti_host_answer){.link = b->link, .shard = x, .word = WEFTI_WORD_TAKEN, .tag = f->tag}));
    return wefti_shard_push(x->state, b->term, b->number, b->memory);
}

static weft_status hear_pull(wefti_server *s, wefti_host_shard *x, wefti_conn_link *link,
                             const wefti_conn_frame *f, bool reads) {
    WEFT_REQUIRE(f->bytes == WEFTI_WORD_HEAD + WEFTI_WORD_SCALARS && f->tag <= INT64_MAX,
                 WEFT_E_CORRUPT, "a pull of %zu bytes", f->bytes);
    if ((int64_t)f->tag > x->pulled) {
        x->pulled = (int64_t)f->tag;
        wefti_scalars_decode(f->body + WEFTI_WORD_HEAD, &x->scalars);
    }
    return wefti_host_answer_later(
        s, (wefti_host_answer){.link = link,
                               .shard = x,
                               .word = reads ? WEFTI_WORD_VALUE_AT : WEFTI_WORD_VALUE,
                               .tag = f->tag,
                               .end = wefti_shard_of(x->state)->part_bytes[0]});
}

static weft_status hear_read(wefti_server *s, wefti_host_shard *x, wefti_conn_link *link,
                             const wefti_conn_frame *f, int part) {
    unsigned char *unused;
    WEFT_REQUIRE(f->bytes == WEFTI_WORD_HEAD + 8, WEFT_E_CORRUPT, "a read of %zu bytes", f->bytes);
    const int64_t bytes = (int64_t)wefti_get_number(f->body + WEFTI_WORD_HEAD, 8);
    WEFT_REQUIRE(wefti_shard_bytes(x->state, part, (int64_t)f->place, bytes, &unused) >= 0,
                 WEFT_E_CORRUPT, "%s", weft_error_message());
    return wefti_host_answer_later(s, (wefti_host_answer){.link = link,
                                                          .shard = x,
                                                          .word = WEFTI_WORD_BYTES,
                                                          .tag = f->tag,
                                                          .part = part,
                                                          .at = (int64_t)f->place,
                                                          .end = (int64_t)f->place + bytes});
}

static weft_status hear_write(wefti_server *s, wefti_host_shard *x, wefti_conn_link *link,
                              const wefti_conn_frame *f, int part) {
    unsigned char *to;
    const int64_t bytes = (int64_t)f->bytes - WEFTI_WORD_HEAD;
    WEFT_REQUIRE(wefti_shard_bytes(x->state, part, (int64_t)f->place, bytes, &to) >= 0,
                 WEFT_E_CORRUPT, "%s", weft_error_message());
    memcpy(to, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
    return wefti_host_answer_later(
        s, (wefti_host_answer){.link = link, .shard = x, .word = WEFTI_WORD_DONE, .tag = f->tag});
}

/* A failure closes the link: the rank has sent what makes no sense. */
static weft_status heard(void *context, wefti_conn_link *link, const wefti_conn_frame *f) {
    wefti_server *s = context;
    wefti_host_shard *x;
    if (f->kind == WEFTI_WORD_BIND) return hear_bind(s, link, f);
    WEFT_REQUIRE(f->bytes >= WEFTI_WORD_HEAD, WEFT_E_CORRUPT, "a word of %zu bytes", f->bytes);
    const int part = (int)(wefti_get_number(f->body + 4, 4) & 0xff);
    wefti_host_bound *b = find_bound(s, link, (uint32_t)wefti_get_number(f->body, 4), &x);
    WEFT_REQUIRE(b, WEFT_E_CORRUPT, "a word for a shard to which this rank is not bound");
    switch ((wefti_server_word)f->kind) {
    case WEFTI_WORD_TERM:
        return hear_term(x, b, f);
    case WEFTI_WORD_TERM_AT:
        return hear_term_at(s, x, b, f);
    case WEFTI_WORD_TAKEN:
        x->taken += (int64_t)f->tag == x->applied;
        return WEFT_OK;
    case WEFTI_WORD_ASK:
        return wefti_host_answer_later(
            s, (wefti_host_answer){
                   .link = link, .shard = x, .word = WEFTI_WORD_SQUARE, .tag = f->tag});
    case WEFTI_WORD_PULL:
        return hear_pull(s, x, link, f, part);
    case WEFTI_WORD_READ:
        return hear_read(s, x, link, f, part);
    case WEFTI_WORD_WRITE:
        return hear_write(s, x, link, f, part);
    case WEFTI_WORD_UNBIND:
        wefti_host_unbind(s, x, link);
        return WEFT_OK;
    default:
        WEFT_FAIL(WEFT_E_CORRUPT, "word %u, which no rank says", f->kind);
    }
}

static bool takes(void *context, wefti_conn_side from) {
    (void)context;
    return from.role == WEFTI_ROLE_WORKER;
}

static void opened(void *context, wefti_conn_link *link) {
    (void)link;
    ((wefti_server *)context)->counts.ranks++;
}

static void closed(void *context, wefti_conn_link *link, weft_status status, const char *why) {
    wefti_server *s = context;
    (void)status;
    (void)why;
    s->counts.ranks--;
    for (wefti_host_shard *x = s->shards, *next; x; x = next) {
        next = x->next;
        wefti_host_unbind(s, x, link);
    }
    wefti_host_drop_answers(s, link, NULL);
}

/* ---- work ---- */

/* Whether all ranks have the value that an update would replace. */
static bool is_read(const wefti_host_shard *x) {
    int32_t bound = 0;
    for (const wefti_host_bound *b = x->bound; b; b = b->next) bound++;
    return !x->applied || x->taken >= bound;
}

/* One piece of work of a shard. False: it has none. */
static bool work_on(wefti_server *s, wefti_host_shard *x) {
    const wefti_run run = {.pool = s->pool, .stream = s->stream};
    const bool sums = wefti_shard_begin(x->state, WEFTI_SHARD_FULL);
    if (!sums && (wefti_shard_phase_of(x->state, x->pulled) != WEFTI_SHARD_SUM || !is_read(x) ||
                  !wefti_shard_begin(x->state, WEFTI_SHARD_SUM)))
        return false;
    const weft_status status = wefti_shard_work(x->state, &run, &x->scalars);
    wefti_shard_end(x->state, status);
    const int32_t culprit = status == WEFT_E_NUMERIC ? wefti_shard_culprit(x->state) : -1;
    const wefti_host_bound *b = culprit >= 0 ? x->bound : NULL;
    while (b && b->term != culprit) b = b->next;
    if (b) (void)wefti_prefix(status, "rank %d", b->rank);
    if (status < 0) {
        x->lost = (wefti_failed_word){.shard = x->id, .status = status, .rank = WEFT_RANK_NONE};
        (void)snprintf(x->lost.text, sizeof x->lost.text, "%s", weft_error_message());
    } else if (!sums) {
        x->applied = x->pulled;
        x->taken = 0;
        s->counts.updates++;
    }
    return true;
}

weft_status wefti_server_turn(wefti_server *s, int milliseconds) {
    bool worked = false;
    for (wefti_host_shard *x = s->shards; x && !worked; x = x->next) worked = work_on(s, x);
    wefti_host_say(s);
    WEFT_TRY(wefti_conn_hub_turn(s->hub, worked ? 0 : milliseconds));
    wefti_host_say(s);
    return WEFT_OK;
}

wefti_server_counts wefti_server_counts_of(const wefti_server *s) {
    return s->counts;
}

/* ---- life ---- */

enum { HOST_QUEUE = 8 << 20 };

static weft_status start(wefti_server *s, const wefti_server_options *o,
                         struct sockaddr_storage *at, socklen_t bytes) {
    wefti_conn_hub_options hub = {.me = {.number = o->number, .role = WEFTI_ROLE_SERVER},
                                  .encrypts = o->encrypts,
                                  .seconds = o->seconds > 0 ? o->seconds : 60,
                                  .queue_bytes = HOST_QUEUE,
                                  .context = s,
                                  .takes = takes,
                                  .opened = opened,
                                  .heard = heard,
                                  .closed = closed};
    wefti_probe_make(&s->probe);
    s->number = o->number;
    s->memory_bytes = o->memory_bytes;
    s->threads = o->threads > 0 ? o->threads : wefti_cores();
    WEFT_TRY(wefti_arena_create(&s->scratch));
    WEFT_TRY(weft_graph_create(&s->ops));
    WEFT_TRY(wefti_pool_create(s->threads, &s->pool));
    WEFT_TRY(wefti_device_open(wefti_kind_host()->table, &s->device));
    WEFT_TRY(wefti_stream_create(s->device, s->pool, &s->stream));
    memcpy(hub.key, o->key, sizeof hub.key);
    const weft_status status = wefti_conn_hub_open(&hub, at, bytes, &s->hub);
    explicit_bzero(hub.key, sizeof hub.key);
    return status;
}

weft_status wefti_server_open(const wefti_server_options *o, struct sockaddr_storage *at,
                              socklen_t bytes, wefti_server **out) {
    wefti_server *s;
    WEFT_NEW(s, wefti_server);
    s->last = &s->answers;
    const weft_status status = start(s, o, at, bytes);
    if (status < 0) {
        wefti_server_close(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void wefti_server_close(wefti_server *s) {
    if (!s) return;
    wefti_conn_hub_close(s->hub);
    for (wefti_host_answer *a; (a = s->answers); wefti_host_free_answer(a)) s->answers = a->next;
    for (wefti_host_shard *x; (x = s->shards); wefti_host_free_shard(s, x)) s->shards = x->next;
    wefti_stream_destroy(s->stream);
    wefti_device_close(s->device);
    wefti_pool_destroy(s->pool);
    weft_graph_destroy(s->ops);
    wefti_arena_destroy(s->scratch);
    wefti_free(s);
}

#else

weft_status wefti_server_open(const wefti_server_options *o, struct sockaddr_storage *at,
                              socklen_t bytes, wefti_server **out) {
    (void)o;
    (void)at;
    (void)bytes;
    (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "a server needs a build with OpenSSL");
}
void wefti_server_close(wefti_server *s) {
    (void)s;
}
weft_status wefti_server_turn(wefti_server *s, int milliseconds) {
    (void)s;
    (void)milliseconds;
    return WEFT_E_NO_IMPL;
}
wefti_server_counts wefti_server_counts_of(const wefti_server *s) {
    (void)s;
    return (wefti_server_counts){0};
}

#endif
