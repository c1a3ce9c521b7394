/* Servers in one process: see server/local.h. */
#include "server/local.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/memory.h"
#include "server/shard.h"

/* A shard, and what waits for it. */
typedef struct local_shard {
    wefti_shard_state *state;
    int32_t bound;            /* ranks */
    int32_t *pusher;          /* [terms]: the rank, -1: none */
    int64_t pulled;           /* the number of the latest step that is to be applied */
    wefti_step_block scalars; /* of that step */
} local_shard;

/* Of all ranks of the process. */
typedef struct local_hall {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    local_shard **shards;
    int64_t count, cap;
    int32_t users; /* services */
    int threads;
    bool broken;
    wefti_failure reason;
} local_hall;

typedef struct local_service {
    wefti_service base;
    local_hall *hall;
    wefti_pool *pool;
    wefti_device *device;
    wefti_stream *stream;
} local_service;

typedef struct local_bound {
    wefti_shard base;
    local_service *service;
    local_shard *shard;
    int32_t term;
    int64_t pushed, pulled; /* numbers */
    void *value;            /* gets what is pulled */
} local_bound;

static local_service *service_of(wefti_service *service) {
    return (local_service *)service;
}
static local_bound *bound_of(wefti_shard *shard) {
    return (local_bound *)shard;
}

/* ---- waits ---- */

/* Does one piece of work that some shard has, without the lock. False: there is none. */
static bool work_on(local_service *service, local_shard *x, weft_status *out) {
    local_hall *hall = service->hall;
    const bool sums = wefti_shard_begin(x->state, WEFTI_SHARD_FULL);
    if (!sums && (wefti_shard_phase_of(x->state, x->pulled) != WEFTI_SHARD_SUM ||
                  !wefti_shard_begin(x->state, WEFTI_SHARD_SUM)))
        return false;
    const wefti_run run = {.pool = service->pool, .stream = service->stream};
    const wefti_step_block scalars = x->scalars;
    pthread_mutex_unlock(&hall->lock);
    *out = wefti_shard_work(x->state, &run, &scalars);
    if (*out == WEFT_E_NUMERIC && wefti_shard_culprit(x->state) >= 0)
        *out = wefti_prefix(*out, "rank %d", x->pusher[wefti_shard_culprit(x->state)]);
    pthread_mutex_lock(&hall->lock);
    wefti_shard_end(x->state, *out);
    pthread_cond_broadcast(&hall->changed);
    return true;
}

/* The shard that is waited for comes first. */
static bool work(local_service *service, local_shard *first, weft_status *out) {
    const local_hall *hall = service->hall;
    if (work_on(service, first, out)) return true;
    for (int64_t i = 0; i < hall->count; i++)
        if (hall->shards[i] != first && work_on(service, hall->shards[i], out)) return true;
    return false;
}

/* Waits with the lock until a shard's round is at least in this phase. */
static weft_status await(local_service *service, local_shard *x, int64_t number,
                         wefti_shard_phase phase) {
    local_hall *hall = service->hall;
    for (;;) {
        const wefti_shard_phase now = wefti_shard_phase_of(x->state, number);
        weft_status status = WEFT_OK;
        if (hall->broken)
            return wefti_adopt_of(WEFT_E_PEER, hall->reason.rank, hall->reason.message);
        if (now >= phase && now != WEFTI_SHARD_FAILED) return WEFT_OK;
        if (work(service, x, &status)) {
            WEFT_TRY(status);
            continue;
        }
        pthread_cond_wait(&hall->changed, &hall->lock);
    }
}

/* ---- ranks' calls ---- */

static weft_status local_push(wefti_shard *shard, int64_t number, const void *gradient) {
    local_bound *b = bound_of(shard);
    local_hall *hall = b->service->hall;
    pthread_mutex_lock(&hall->lock);
    b->pushed = number;
    const weft_status status = wefti_shard_push(b->shard->state, b->term, number, gradient);
    if (wefti_shard_phase_of(b->shard->state, number) == WEFTI_SHARD_FULL)
        pthread_cond_broadcast(&hall->changed);
    pthread_mutex_unlock(&hall->lock);
    return status;
}

static weft_status wait_phase(wefti_shard *shard, int64_t number, wefti_shard_phase phase) {
    local_bound *b = bound_of(shard);
    pthread_mutex_lock(&b->service->hall->lock);
    const weft_status status = await(b->service, b->shard, number, phase);
    pthread_mutex_unlock(&b->service->hall->lock);
    return status;
}

static weft_status local_wait_push(wefti_shard *shard) {
    return wait_phase(shard, bound_of(shard)->pushed, WEFTI_SHARD_SUM);
}

static weft_status local_square(wefti_shard *shard, int64_t number, void *out) {
    WEFT_TRY(wait_phase(shard, number, WEFTI_SHARD_SUM));
    wefti_shard_square(bound_of(shard)->shard->state, out);
    return WEFT_OK;
}

static weft_status local_pull(wefti_shard *shard, int64_t number, const wefti_step_block *scalars,
                              void *value) {
    local_bound *b = bound_of(shard);
    pthread_mutex_lock(&b->service->hall->lock);
    b->pulled = number;
    b->value = value;
    if (number > b->shard->pulled) {
        b->shard->pulled = number;
        b->shard->scalars = *scalars;
        pthread_cond_broadcast(&b->service->hall->changed);
    }
    pthread_mutex_unlock(&b->service->hall->lock);
    return WEFT_OK;
}

/* The value stays until all ranks have pushed for the next step, so it is read without the lock. */
static weft_status local_wait_pull(wefti_shard *shard) {
    const local_bound *b = bound_of(shard);
    const int64_t bytes = wefti_shard_of(b->shard->state)->part_bytes[0];
    unsigned char *value;
    WEFT_TRY(wait_phase(shard, b->pulled, WEFTI_SHARD_VALUE));
    WEFT_TRY(wefti_shard_bytes(b->shard->state, 0, 0, bytes, &value));
    memcpy(b->value, value, (size_t)bytes);
    return WEFT_OK;
}

static void local_give_up(wefti_shard *shard) {
    local_bound *b = bound_of(shard);
    local_hall *hall = b->service->hall;
    pthread_mutex_lock(&hall->lock);
    while (b->term >= 0 && !wefti_shard_withdraw(b->shard->state, b->term, b->pushed))
        pthread_cond_wait(&hall->changed, &hall->lock);
    pthread_mutex_unlock(&hall->lock);
}

static weft_status local_read(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                              void *to) {
    local_bound *b = bound_of(shard);
    unsigned char *from;
    pthread_mutex_lock(&b->service->hall->lock);
    const weft_status status = wefti_shard_bytes(b->shard->state, part, offset, bytes, &from);
    if (status >= 0) memcpy(to, from, (size_t)bytes);
    pthread_mutex_unlock(&b->service->hall->lock);
    return status;
}

static weft_status local_write(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                               const void *from) {
    local_bound *b = bound_of(shard);
    unsigned char *to;
    pthread_mutex_lock(&b->service->hall->lock);
    const weft_status status = wefti_shard_bytes(b->shard->state, part, offset, bytes, &to);
    if (status >= 0) memcpy(to, from, (size_t)bytes);
    pthread_mutex_unlock(&b->service->hall->lock);
    return status;
}

/* ---- life of shards ---- */

static bool is_of(const local_shard *x, const wefti_served *served) {
    const wefti_served *of = wefti_shard_of(x->state);
    const size_t sizes = (size_t)served->desc.rank * sizeof served->region.begin[0];
    return !strcmp(of->name, served->name) && of->desc.rank == served->desc.rank &&
           !memcmp(of->region.begin, served->region.begin, sizes) &&
           !memcmp(of->region.size, served->region.size, sizes);
}

static void free_shard(local_shard *x) {
    wefti_shard_destroy(x->state);
    wefti_free(x->pusher);
    wefti_free(x);
}

static weft_status add_shard(local_hall *hall, const wefti_served *served, local_shard **out) {
    local_shard *x;
    WEFT_TRY(WEFT_GROW(hall->shards, hall->count, hall->cap));
    WEFT_NEW(x, local_shard);
    x->pusher = wefti_calloc((size_t)served->terms, sizeof *x->pusher);
    for (int32_t t = 0; x->pusher && t < served->terms; t++) x->pusher[t] = -1;
    weft_status status = x->pusher ? wefti_shard_create(served, hall->threads, &x->state)
                                   : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a server's shard");
    if (status < 0) {
        free_shard(x);
        return wefti_prefix(status, "the server of '%s'", served->name);
    }
    hall->shards[hall->count++] = x;
    *out = x;
    return WEFT_OK;
}

static weft_status take_term(local_shard *x, const wefti_served *served, int32_t rank) {
    WEFT_TRY(wefti_shard_check(x->state, served));
    WEFT_REQUIRE(served->term < served->terms, WEFT_E_BUG, "term %d of '%s', which has %d terms",
                 served->term, served->name, served->terms);
    if (served->term < 0) return WEFT_OK;
    WEFT_REQUIRE(x->pusher[served->term] < 0, WEFT_E_MISMATCH,
                 "ranks %d and %d push term %d of the gradient of '%s'", x->pusher[served->term],
                 rank, served->term, served->name);
    x->pusher[served->term] = rank;
    return WEFT_OK;
}

static void drop_unbound(local_hall *hall, const local_shard *x) {
    int64_t kept = 0;
    for (int64_t i = 0; i < hall->count; i++)
        if (hall->shards[i] != x) hall->shards[kept++] = hall->shards[i];
    hall->count = kept;
}

static weft_status bind_to(local_hall *hall, const wefti_served *served, local_bound *b) {
    local_shard *x = NULL;
    for (int64_t i = 0; i < hall->count && !x; i++)
        if (is_of(hall->shards[i], served)) x = hall->shards[i];
    if (!x) WEFT_TRY(add_shard(hall, served, &x));
    const weft_status status = take_term(x, served, b->service->base.rank);
    if (status < 0 && !x->bound) {
        drop_unbound(hall, x);
        free_shard(x);
    }
    WEFT_TRY(status);
    x->bound++;
    b->shard = x;
    b->term = served->term;
    return WEFT_OK;
}

static weft_status local_bind(wefti_service *service, const wefti_served *served,
                              wefti_shard **out) {
    local_hall *hall = service_of(service)->hall;
    local_bound *b;
    WEFT_NEW(b, local_bound);
    *b = (local_bound){.base.engine = service->engine, .service = service_of(service)};
    pthread_mutex_lock(&hall->lock);
    const weft_status status = bind_to(hall, served, b);
    pthread_mutex_unlock(&hall->lock);
    if (status < 0) {
        wefti_free(b);
        return status;
    }
    *out = &b->base;
    return WEFT_OK;
}

static void local_unbind(wefti_shard *shard) {
    local_bound *b = bound_of(shard);
    local_hall *hall = b->service->hall;
    pthread_mutex_lock(&hall->lock);
    if (b->term >= 0) b->shard->pusher[b->term] = -1;
    const bool last = --b->shard->bound == 0;
    if (last) drop_unbound(hall, b->shard);
    pthread_mutex_unlock(&hall->lock);
    if (last) free_shard(b->shard);
    wefti_free(b);
}

/* ---- life of services ---- */

static void local_break(wefti_service *service, int failed, const char *message) {
    local_hall *hall = service_of(service)->hall;
    pthread_mutex_lock(&hall->lock);
    if (!hall->broken) {
        hall->broken = true;
        hall->reason.rank = failed == WEFT_RANK_OWN ? service->rank : failed;
        (void)snprintf(hall->reason.message, sizeof hall->reason.message, "rank %d: %s",
                       service->rank, message);
    }
    pthread_cond_broadcast(&hall->changed);
    pthread_mutex_unlock(&hall->lock);
}

static void local_mend(wefti_service *service) {
    local_hall *hall = service_of(service)->hall;
    pthread_mutex_lock(&hall->lock);
    hall->broken = false;
    pthread_mutex_unlock(&hall->lock);
}

static void free_hall(local_hall *hall) {
    pthread_cond_destroy(&hall->changed);
    pthread_mutex_destroy(&hall->lock);
    wefti_free(hall->shards);
    wefti_free(hall);
}

static void local_destroy(wefti_service *service) {
    local_service *s = service_of(service);
    local_hall *hall = s->hall;
    wefti_stream_destroy(s->stream);
    wefti_device_close(s->device);
    wefti_pool_destroy(s->pool);
    wefti_free(s);
    pthread_mutex_lock(&hall->lock);
    const bool last = --hall->users == 0;
    pthread_mutex_unlock(&hall->lock);
    if (last) free_hall(hall);
}

static const wefti_service_engine engine = {.name = "local",
                                            .bind = local_bind,
                                            .push = local_push,
                                            .wait_push = local_wait_push,
                                            .square = local_square,
                                            .pull = local_pull,
                                            .wait_pull = local_wait_pull,
                                            .give_up = local_give_up,
                                            .read = local_read,
                                            .write = local_write,
                                            .unbind = local_unbind,
                                            .break_off = local_break,
                                            .mend = local_mend,
                                            .destroy = local_destroy};

static weft_status add_service(local_hall *hall, int32_t rank, wefti_service **out) {
    local_service *s;
    WEFT_NEW(s, local_service);
    s->base = (wefti_service){&engine, rank};
    s->hall = hall;
    hall->users++;
    *out = &s->base;
    WEFT_TRY(wefti_pool_create(hall->threads, &s->pool));
    WEFT_TRY(wefti_device_open(wefti_kind_host()->table, &s->device));
    return wefti_stream_create(s->device, s->pool, &s->stream);
}

weft_status wefti_service_local(int32_t ranks, int threads, wefti_service **out) {
    local_hall *hall;
    weft_status status = WEFT_OK;
    WEFT_NEW(hall, local_hall);
    pthread_mutex_init(&hall->lock, NULL);
    pthread_cond_init(&hall->changed, NULL);
    hall->threads = threads;
    for (int32_t r = 0; r < ranks; r++) out[r] = NULL;
    for (int32_t r = 0; r < ranks && status >= 0; r++) status = add_service(hall, r, &out[r]);
    if (status >= 0) return WEFT_OK;
    if (!hall->users) free_hall(hall);
    for (int32_t r = 0; r < ranks; r++) {
        wefti_service_destroy(out[r]);
        out[r] = NULL;
    }
    return status;
}
