/* A server process: see server/host.h. */
#include "server/host.h"

#include <stdio.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/io.h"
#include "base/memory.h"
#include "comm/connection/connection.h"
#include "graph/graph.h"
#include "server/shard.h"
#include "server/words.h"
#include "weft/graph.h"

#ifdef WEFT_HAVE_OPENSSL

/* A rank's side of a shard. */
typedef struct host_bound {
    struct host_bound *next;
    wefti_conn_link *link;
    int32_t rank, term;
    unsigned char *memory; /* of its term; NULL: it pushes nothing */
    int64_t number, come;  /* of the term that comes, and how many of its bytes have */
    int64_t process;       /* whose memory is read here; 0: it is not */
} host_bound;

typedef struct host_shard {
    struct host_shard *next;
    uint64_t session;
    uint32_t id;
    wefti_shard_state *state;
    host_bound *bound;
    int64_t pulled;           /* the latest step that is to be applied */
    wefti_step_block scalars; /* of that step */
    int64_t applied;          /* the latest step that was */
    int32_t taken;            /* ranks that have got its value */
    wefti_failed_word lost;   /* why no later round ends; status WEFT_OK: it may */
} host_shard;

/* What is to be said to a rank, once the shard is so far. */
typedef struct host_answer {
    struct host_answer *next;
    wefti_conn_link *link;
    host_shard *shard; /* NULL: of none */
    wefti_server_word word;
    uint64_t tag;
    int part;
    int64_t at, end; /* bytes of the part that are not said yet: VALUE, BYTES */
    wefti_failed_word *failed;
} host_answer;

struct wefti_server {
    wefti_conn_hub *hub;
    wefti_pool *pool;
    wefti_device *device;
    wefti_stream *stream;
    weft_graph *ops; /* for its registry */
    wefti_arena *scratch;
    host_shard *shards;
    host_answer *answers, **last;
    uint32_t next_id;
    int threads;
    wefti_server_counts counts;
    wefti_probe probe;
};

/* ---- answers ---- */

static weft_status add_answer(wefti_server *s, host_answer answer) {
    host_answer *a;
    WEFT_NEW(a, host_answer);
    *a = answer;
    a->next = NULL;
    *s->last = a;
    s->last = &a->next;
    return WEFT_OK;
}

/* This thread's failure, to a rank. */
static weft_status refuse(wefti_server *s, wefti_conn_link *link, uint64_t tag, uint32_t shard,
                          weft_status status, int rank) {
    wefti_failed_word *failed;
    WEFT_NEW(failed, wefti_failed_word);
    *failed = (wefti_failed_word){.shard = shard, .status = status, .rank = rank};
    (void)snprintf(failed->text, sizeof failed->text, "%s", weft_error_message());
    const weft_status added = add_answer(
        s, (host_answer){.link = link, .word = WEFTI_WORD_FAILED, .tag = tag, .failed = failed});
    if (added < 0) wefti_free(failed);
    return added;
}

/* Which phase of the shard's round an answer needs; whether it is there. */
static bool is_ready(const host_answer *a) {
    const bool value = a->word == WEFTI_WORD_VALUE || a->word == WEFTI_WORD_VALUE_AT;
    const wefti_shard_phase needed = value                          ? WEFTI_SHARD_VALUE
                                     : a->word == WEFTI_WORD_SQUARE ? WEFTI_SHARD_SUM
                                                                    : WEFTI_SHARD_TERMS;
    if (needed == WEFTI_SHARD_TERMS) return true;
    const wefti_shard_phase now = wefti_shard_phase_of(a->shard->state, (int64_t)a->tag);
    return now >= needed && now != WEFTI_SHARD_FAILED;
}

/* Whether what an answer needs never comes. */
static bool is_vain(const host_answer *a) {
    if (a->word != WEFTI_WORD_VALUE && a->word != WEFTI_WORD_VALUE_AT &&
        a->word != WEFTI_WORD_SQUARE)
        return false;
    const wefti_shard_phase now = wefti_shard_phase_of(a->shard->state, (int64_t)a->tag);
    return a->shard->lost.status < 0 && (now == WEFTI_SHARD_TERMS || now == WEFTI_SHARD_FAILED);
}

/* WEFT_PENDING: there is more to say. */
static weft_status say_bytes(host_answer *a) {
    unsigned char head[WEFTI_WORD_HEAD] = {0}, *from;
    wefti_put_number(head, a->shard->id, 4);
    wefti_put_number(head + 4, (uint64_t)a->part, 4);
    do {
        const int64_t left = a->end - a->at;
        const int64_t bytes = left < WEFTI_WORD_CHUNK ? left : WEFTI_WORD_CHUNK;
        WEFT_TRY(wefti_shard_bytes(a->shard->state, a->part, a->at, bytes, &from));
        const struct iovec part[] = {{head, sizeof head}, {from, (size_t)bytes}};
        const weft_status status =
            wefti_conn_link_send(a->link, (uint32_t)a->word, a->tag, (uint64_t)a->at, part, 2);
        if (status != WEFT_OK) return status;
        a->at += bytes;
    } while (a->at < a->end);
    if (a->word == WEFTI_WORD_VALUE) a->shard->taken++;
    return WEFT_OK;
}

/* What BOUND and VALUE_AT say behind the head. */
static weft_status add_place(const wefti_server *s, const host_answer *a, unsigned char *body,
                             size_t *bytes) {
    unsigned char *value;
    if (a->word == WEFTI_WORD_BOUND) {
        wefti_probe_encode(&s->probe, body + *bytes);
        *bytes += WEFTI_PROBE_BYTES;
    }
    if (a->word != WEFTI_WORD_VALUE_AT) return WEFT_OK;
    WEFT_TRY(wefti_shard_bytes(a->shard->state, 0, 0, a->end, &value));
    wefti_put_number(body + *bytes, (uint64_t)(uintptr_t)value, 8);
    *bytes += 8;
    return WEFT_OK;
}

static weft_status say(const wefti_server *s, host_answer *a) {
    unsigned char body[WEFTI_FAILED_HEAD + WEFTI_WORD_TEXT] = {0};
    size_t bytes = WEFTI_WORD_HEAD;
    if (a->word == WEFTI_WORD_VALUE || a->word == WEFTI_WORD_BYTES) return say_bytes(a);
    if (a->failed) bytes = wefti_failed_encode(a->failed, body);
    if (a->shard) wefti_put_number(body, a->shard->id, 4);
    if (!a->failed) wefti_put_number(body + 4, (uint64_t)a->part, 4);
    WEFT_TRY(add_place(s, a, body, &bytes));
    if (a->word == WEFTI_WORD_SQUARE) {
        wefti_shard_square(a->shard->state, body + bytes);
        bytes += sizeof(double);
    }
    const struct iovec part = {body, bytes};
    return wefti_conn_link_send(a->link, (uint32_t)a->word, a->tag, 0, &part, 1);
}

static void free_answer(host_answer *a) {
    wefti_free(a->failed);
    wefti_free(a);
}

/* Says what can be said. A link that fails is closed by its hub, and its answers go then. */
static void say_answers(wefti_server *s) {
    for (host_answer **at = &s->answers, *a; (a = *at);) {
        if (is_vain(a)) {
            a->failed = wefti_calloc(1, sizeof *a->failed);
            if (a->failed) *a->failed = a->shard->lost;
            if (a->failed) a->word = WEFTI_WORD_FAILED;
        }
        if (!is_ready(a) || say(s, a) != WEFT_OK) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        if (!a->next) s->last = at;
        free_answer(a);
    }
}

/* Forgets the answers to a link; shard NULL: of any. */
static void drop_answers(wefti_server *s, const wefti_conn_link *link, const host_shard *shard) {
    for (host_answer **at = &s->answers, *a; (a = *at);) {
        if (a->link != link || (shard && a->shard != shard)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        free_answer(a);
    }
    s->last = &s->answers;
    while (*s->last) s->last = &(*s->last)->next;
}

/* ---- shards ---- */

static int64_t memory_of(const host_shard *x) {
    const wefti_served *of = wefti_shard_of(x->state);
    int64_t bytes = of->part_bytes[0] * (1 + of->terms);
    for (int k = 0; k <= of->rule.states; k++) bytes += of->part_bytes[k];
    return bytes;
}

static void free_bound(host_bound *b) {
    wefti_free(b->memory);
    wefti_free(b);
}

static void free_shard(wefti_server *s, host_shard *x) {
    for (host_bound *b; (b = x->bound); free_bound(b)) x->bound = b->next;
    if (x->state) {
        s->counts.shards--;
        s->counts.bytes -= memory_of(x);
    }
    wefti_shard_destroy(x->state);
    wefti_free(x);
}

static bool is_of(const host_shard *x, const wefti_bind_word *word) {
    const wefti_served *of = wefti_shard_of(x->state), *served = &word->served;
    const size_t sizes = (size_t)served->desc.rank * sizeof served->region.begin[0];
    return x->session == word->session && !strcmp(of->name, served->name) &&
           of->desc.rank == served->desc.rank &&
           !memcmp(of->region.begin, served->region.begin, sizes) &&
           !memcmp(of->region.size, served->region.size, sizes);
}

static weft_status find_or_add(wefti_server *s, const wefti_bind_word *word, host_shard **out) {
    host_shard *x = s->shards;
    while (x && !is_of(x, word)) x = x->next;
    *out = x;
    if (x) return wefti_shard_check(x->state, &word->served);
    WEFT_NEW(x, host_shard);
    const weft_status status = wefti_shard_create(&word->served, s->threads, &x->state);
    if (status < 0) {
        wefti_free(x);
        return wefti_prefix(status, "'%.100s'", word->served.name);
    }
    x->session = word->session;
    x->id = s->next_id++;
    x->next = s->shards;
    s->shards = x;
    s->counts.shards++;
    s->counts.bytes += memory_of(x);
    *out = x;
    return WEFT_OK;
}

static weft_status add_bound(host_shard *x, wefti_conn_link *link, const wefti_bind_word *word) {
    const wefti_served *served = &word->served;
    host_bound *b;
    for (b = x->bound; b; b = b->next) {
        WEFT_REQUIRE(b->link != link, WEFT_E_MISMATCH, "rank %d binds '%.100s' twice", word->rank,
                     served->name);
        WEFT_REQUIRE(served->term < 0 || b->term != served->term, WEFT_E_MISMATCH,
                     "ranks %d and %d push term %d of the gradient of '%.100s'", b->rank,
                     word->rank, served->term, served->name);
    }
    WEFT_NEW(b, host_bound);
    *b = (host_bound){.link = link, .rank = word->rank, .term = served->term};
    if (wefti_probe_reads(&word->probe)) b->process = word->probe.process;
    if (served->term >= 0) b->memory = wefti_alloc((size_t)served->part_bytes[0] + 1);
    if (served->term >= 0 && !b->memory) {
        wefti_free(b);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a gradient of '%.100s'", served->name);
    }
    b->next = x->bound;
    x->bound = b;
    return WEFT_OK;
}

static void drop_shard(wefti_server *s, host_shard *x) {
    host_shard **at = &s->shards;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    free_shard(s, x);
}

/* A rank has left. Rounds that lack its term do not end. */
static void unbind(wefti_server *s, host_shard *x, const wefti_conn_link *link) {
    host_bound **at = &x->bound, *b;
    while ((b = *at) && b->link != link) at = &b->next;
    if (!b) return;
    drop_answers(s, link, x);
    if (b->term >= 0 && x->lost.status == WEFT_OK) {
        (void)wefti_shard_withdraw(x->state, b->term, b->number);
        x->lost = (wefti_failed_word){.shard = x->id, .status = WEFT_E_PEER, .rank = b->rank};
        (void)snprintf(x->lost.text, sizeof x->lost.text,
                       "rank %d has left the servers, and has not pushed the gradient of '%.100s'",
                       b->rank, wefti_shard_of(x->state)->name);
    }
    *at = b->next;
    free_bound(b);
    if (!x->bound) drop_shard(s, x);
}

/* ---- words of ranks ---- */

static host_bound *find_bound(const wefti_server *s, const wefti_conn_link *link, uint32_t id,
                              host_shard **out) {
    host_shard *x = s->shards;
    while (x && x->id != id) x = x->next;
    host_bound *b = x ? x->bound : NULL;
    while (b && b->link != link) b = b->next;
    *out = x;
    return b;
}

static weft_status hear_bind(wefti_server *s, wefti_conn_link *link, const wefti_conn_frame *f) {
    wefti_bind_word word;
    host_shard *x = NULL;
    wefti_arena_clear(s->scratch);
    WEFT_TRY(wefti_bind_decode(s->ops->ops, f->body, f->bytes, s->scratch, &word));
    weft_status status = find_or_add(s, &word, &x);
    if (status >= 0) status = add_bound(x, link, &word);
    if (x && !x->bound) drop_shard(s, x);
    if (status < 0) return refuse(s, link, f->tag, UINT32_MAX, status, WEFT_RANK_NONE);
    return add_answer(s, (host_answer){.link = link,
                                       .shard = x,
                                       .word = WEFTI_WORD_BOUND,
                                       .tag = f->tag,
                                       .part = x->bound->process != 0});
}

static weft_status hear_term(host_shard *x, host_bound *b, const wefti_conn_frame *f) {
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
static weft_status hear_term_at(wefti_server *s, host_shard *x, host_bound *b,
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
    WEFT_TRY(add_answer(
        s, (host_answer){.link = b->link, .shard = x, .word = WEFTI_WORD_TAKEN, .tag = f->tag}));
    return wefti_shard_push(x->state, b->term, b->number, b->memory);
}

static weft_status hear_pull(wefti_server *s, host_shard *x, wefti_conn_link *link,
                             const wefti_conn_frame *f, bool reads) {
    WEFT_REQUIRE(f->bytes == WEFTI_WORD_HEAD + WEFTI_WORD_SCALARS && f->tag <= INT64_MAX,
                 WEFT_E_CORRUPT, "a pull of %zu bytes", f->bytes);
    if ((int64_t)f->tag > x->pulled) {
        x->pulled = (int64_t)f->tag;
        wefti_scalars_decode(f->body + WEFTI_WORD_HEAD, &x->scalars);
    }
    return add_answer(s, (host_answer){.link = link,
                                       .shard = x,
                                       .word = reads ? WEFTI_WORD_VALUE_AT : WEFTI_WORD_VALUE,
                                       .tag = f->tag,
                                       .end = wefti_shard_of(x->state)->part_bytes[0]});
}

static weft_status hear_read(wefti_server *s, host_shard *x, wefti_conn_link *link,
                             const wefti_conn_frame *f, int part) {
    unsigned char *unused;
    WEFT_REQUIRE(f->bytes == WEFTI_WORD_HEAD + 8, WEFT_E_CORRUPT, "a read of %zu bytes", f->bytes);
    const int64_t bytes = (int64_t)wefti_get_number(f->body + WEFTI_WORD_HEAD, 8);
    WEFT_REQUIRE(wefti_shard_bytes(x->state, part, (int64_t)f->place, bytes, &unused) >= 0,
                 WEFT_E_CORRUPT, "%s", weft_error_message());
    return add_answer(s, (host_answer){.link = link,
                                       .shard = x,
                                       .word = WEFTI_WORD_BYTES,
                                       .tag = f->tag,
                                       .part = part,
                                       .at = (int64_t)f->place,
                                       .end = (int64_t)f->place + bytes});
}

static weft_status hear_write(wefti_server *s, host_shard *x, wefti_conn_link *link,
                              const wefti_conn_frame *f, int part) {
    unsigned char *to;
    const int64_t bytes = (int64_t)f->bytes - WEFTI_WORD_HEAD;
    WEFT_REQUIRE(wefti_shard_bytes(x->state, part, (int64_t)f->place, bytes, &to) >= 0,
                 WEFT_E_CORRUPT, "%s", weft_error_message());
    memcpy(to, f->body + WEFTI_WORD_HEAD, (size_t)bytes);
    return add_answer(
        s, (host_answer){.link = link, .shard = x, .word = WEFTI_WORD_DONE, .tag = f->tag});
}

/* A failure closes the link: the rank has sent what makes no sense. */
static weft_status heard(void *context, wefti_conn_link *link, const wefti_conn_frame *f) {
    wefti_server *s = context;
    host_shard *x;
    if (f->kind == WEFTI_WORD_BIND) return hear_bind(s, link, f);
    WEFT_REQUIRE(f->bytes >= WEFTI_WORD_HEAD, WEFT_E_CORRUPT, "a word of %zu bytes", f->bytes);
    const int part = (int)(wefti_get_number(f->body + 4, 4) & 0xff);
    host_bound *b = find_bound(s, link, (uint32_t)wefti_get_number(f->body, 4), &x);
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
        return add_answer(
            s, (host_answer){.link = link, .shard = x, .word = WEFTI_WORD_SQUARE, .tag = f->tag});
    case WEFTI_WORD_PULL:
        return hear_pull(s, x, link, f, part);
    case WEFTI_WORD_READ:
        return hear_read(s, x, link, f, part);
    case WEFTI_WORD_WRITE:
        return hear_write(s, x, link, f, part);
    case WEFTI_WORD_UNBIND:
        unbind(s, x, link);
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
    for (host_shard *x = s->shards, *next; x; x = next) {
        next = x->next;
        unbind(s, x, link);
    }
    drop_answers(s, link, NULL);
}

/* ---- work ---- */

/* Whether all ranks have the value that an update would replace. */
static bool is_read(const host_shard *x) {
    int32_t bound = 0;
    for (const host_bound *b = x->bound; b; b = b->next) bound++;
    return !x->applied || x->taken >= bound;
}

/* One piece of work of a shard. False: it has none. */
static bool work_on(wefti_server *s, host_shard *x) {
    const wefti_run run = {.pool = s->pool, .stream = s->stream};
    const bool sums = wefti_shard_begin(x->state, WEFTI_SHARD_FULL);
    if (!sums && (wefti_shard_phase_of(x->state, x->pulled) != WEFTI_SHARD_SUM || !is_read(x) ||
                  !wefti_shard_begin(x->state, WEFTI_SHARD_SUM)))
        return false;
    const weft_status status = wefti_shard_work(x->state, &run, &x->scalars);
    wefti_shard_end(x->state, status);
    const int32_t culprit = status == WEFT_E_NUMERIC ? wefti_shard_culprit(x->state) : -1;
    const host_bound *b = culprit >= 0 ? x->bound : NULL;
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
    for (host_shard *x = s->shards; x && !worked; x = x->next) worked = work_on(s, x);
    say_answers(s);
    WEFT_TRY(wefti_conn_hub_turn(s->hub, worked ? 0 : milliseconds));
    say_answers(s);
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
    for (host_answer *a; (a = s->answers); free_answer(a)) s->answers = a->next;
    for (host_shard *x; (x = s->shards); free_shard(s, x)) s->shards = x->next;
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
