/* Copies of rows of files run in a thread of their own, one after the other: the device goes on
 * with other steps between the post and the wait. The thread starts with the first program that has
 * such copies. When it has no copy to make, it reads rows that the next step will look up, a few at
 * a time, so that a copy waits for them shortly. */
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"
#include "base/thread.h"
#include "exec/rank_device.h"

enum { AHEAD_PIECE = 256 }; /* rows that are read ahead at a time */

/* Rows of a table that the next step will look up. */
typedef struct row_ahead {
    wefti_disk_table table;
    int32_t *ids; /* [cap] */
    int64_t count, cap, done;
} row_ahead;

struct wefti_row_queue {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, done;
    wefti_row_move *first, *last; /* that have not ended */
    bool closing;
    row_ahead *ahead; /* one for each table */
    int64_t ahead_count, ahead_cap;
    int64_t told; /* how often the rows ahead have changed */
    bool reading; /* rows ahead, without the lock */
};

static row_ahead *next_ahead(const wefti_row_queue *q) {
    for (int64_t i = 0; i < q->ahead_count; i++)
        if (q->ahead[i].done < q->ahead[i].count) return &q->ahead[i];
    return NULL;
}

/* Reads the next piece. The lock is open meanwhile. */
static void read_ahead(const wefti_rank_device *d, wefti_row_queue *q, row_ahead *a) {
    wefti_row_place places[AHEAD_PIECE];
    const wefti_disk_table table = a->table;
    const int64_t number = a - q->ahead, told = q->told;
    const bool turn = a->done == 0;
    int64_t count = 0, row = 0;
    int part;
    while (count < AHEAD_PIECE && a->done < a->count)
        places[count++] = (wefti_row_place){a->ids[a->done++], 0, NULL};
    q->reading = true;
    (void)pthread_mutex_unlock(&q->lock);
    wefti_disk_cache *cache = wefti_cache_with(d, &table, &part, &row);
    for (int64_t i = 0; i < count; i++)
        places[i].row = places[i].row < 0 || places[i].row > INT32_MAX - row
                            ? -1 /* no row of any table */
                            : places[i].row + (int32_t)row;
    const bool more = cache && wefti_disk_cache_ahead(cache, part, turn, places, count, d->staging);
    (void)pthread_mutex_lock(&q->lock);
    q->reading = false;
    if (!more && told == q->told) q->ahead[number].done = q->ahead[number].count;
    (void)pthread_cond_broadcast(&q->done);
}

static void *run(void *context) {
    wefti_rank_device *d = context;
    wefti_row_queue *q = d->row_queue;
    (void)pthread_mutex_lock(&q->lock);
    for (;;) {
        row_ahead *ahead = NULL;
        while (!q->first && !q->closing && !(ahead = next_ahead(q)))
            (void)pthread_cond_wait(&q->work, &q->lock);
        wefti_row_move *m = q->first;
        if (!m && !ahead) break;
        if (!m) {
            read_ahead(d, q, ahead);
            continue;
        }
        (void)pthread_mutex_unlock(&q->lock);
        wefti_failure_keep(wefti_move_rows(d, m), &m->failure);
        (void)pthread_mutex_lock(&q->lock);
        q->first = m->next;
        m->over = true;
        (void)pthread_cond_broadcast(&q->done);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void free_queue(wefti_rank_device *d) {
    (void)pthread_mutex_destroy(&d->row_queue->lock);
    (void)pthread_cond_destroy(&d->row_queue->work);
    (void)pthread_cond_destroy(&d->row_queue->done);
    for (int64_t i = 0; i < d->row_queue->ahead_count; i++) wefti_free(d->row_queue->ahead[i].ids);
    wefti_free(d->row_queue->ahead);
    wefti_free(d->row_queue);
    wefti_free(d->staging);
    d->row_queue = d->staging = NULL;
}

static weft_status start(wefti_rank_device *d) {
    wefti_row_queue *q;
    WEFT_NEW(q, wefti_row_queue);
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_cond_init(&q->work, NULL);
    (void)pthread_cond_init(&q->done, NULL);
    d->row_queue = q;
    d->staging = wefti_alloc(WEFTI_ROWS_STAGING);
    const int error = d->staging ? wefti_thread_start(&q->thread, run, d) : 0;
    if (d->staging && !error) return WEFT_OK;
    free_queue(d);
    WEFT_FAIL(WEFT_E_NOMEM, "no memory or no thread for rows of files");
}

void wefti_row_queue_stop(wefti_rank_device *d) {
    wefti_row_queue *q = d->row_queue;
    if (q) {
        (void)pthread_mutex_lock(&q->lock);
        q->closing = true;
        (void)pthread_cond_broadcast(&q->work);
        (void)pthread_mutex_unlock(&q->lock);
        (void)pthread_join(q->thread, NULL);
        free_queue(d);
    }
    for (int64_t m = 0; m < d->row_move_count; m++) wefti_free(d->row_moves[m].places);
    wefti_free(d->row_moves);
}

static weft_status set_ahead(wefti_row_queue *q, const wefti_disk_table *table, const int32_t *ids,
                             int64_t count) {
    int64_t i = 0;
    while (i < q->ahead_count &&
           (q->ahead[i].table.file != table->file || q->ahead[i].table.begin != table->begin))
        i++;
    if (i == q->ahead_count) {
        WEFT_TRY(WEFT_GROW(q->ahead, i, q->ahead_cap));
        q->ahead[q->ahead_count++] = (row_ahead){.table = *table};
    }
    row_ahead *a = &q->ahead[i];
    a->count = a->done = 0;
    q->told++;
    if (count > a->cap) {
        int32_t *more = wefti_realloc(a->ids, (size_t)count * sizeof *more);
        WEFT_REQUIRE(more, WEFT_E_NOMEM, "no memory for the numbers of %lld rows",
                     (long long)count);
        a->ids = more;
        a->cap = count;
    }
    memcpy(a->ids, ids, (size_t)count * sizeof *ids);
    a->count = count;
    return WEFT_OK;
}

weft_status wefti_row_queue_ahead(wefti_rank_device *d, const wefti_disk_table *table,
                                  const int32_t *ids, int64_t count) {
    wefti_row_queue *q = d->row_queue;
    int part;
    int64_t row;
    if (!q || !wefti_cache_with(d, table, &part, &row)) return WEFT_OK;
    (void)pthread_mutex_lock(&q->lock);
    const weft_status status = set_ahead(q, table, ids, count);
    (void)pthread_cond_signal(&q->work);
    (void)pthread_mutex_unlock(&q->lock);
    return status;
}

void wefti_rank_device_end_ahead(wefti_rank_device *d, bool drop) {
    wefti_row_queue *q = d->row_queue;
    if (!q) return;
    (void)pthread_mutex_lock(&q->lock);
    for (int64_t i = 0; i < q->ahead_count && drop; i++) q->ahead[i].done = q->ahead[i].count;
    while (q->reading || next_ahead(q)) (void)pthread_cond_wait(&q->done, &q->lock);
    (void)pthread_mutex_unlock(&q->lock);
}

weft_status wefti_bind_rows(wefti_rank_device *d, const wefti_program *p) {
    wefti_rank_device_end_ahead(d, true);
    int64_t most = d->row_cap;
    for (int32_t m = 0; m < p->move_count; m++) wefti_keep_most(&most, p->moves[m].rows);
    if (most == 0) return WEFT_OK;
    int32_t *more = wefti_realloc(d->rows, (size_t)most * sizeof *more);
    WEFT_REQUIRE(more, WEFT_E_NOMEM, "no memory for the numbers of %lld rows", (long long)most);
    d->rows = more;
    d->row_cap = most;
    if (!d->directory) return WEFT_OK;
    if (!d->row_queue) WEFT_TRY(start(d));
    for (int64_t count = d->row_move_count; count < p->move_count; count = d->row_move_count) {
        WEFT_TRY(WEFT_GROW(d->row_moves, count, d->row_move_cap));
        d->row_moves[d->row_move_count++] = (wefti_row_move){.places = NULL};
    }
    for (int32_t m = 0; m < p->move_count; m++) {
        wefti_row_move *x = &d->row_moves[m];
        if (p->moves[m].rows <= x->cap) continue;
        wefti_row_place *places =
            wefti_realloc(x->places, (size_t)p->moves[m].rows * sizeof *places);
        WEFT_REQUIRE(places, WEFT_E_NOMEM, "no memory for the places of %lld rows",
                     (long long)p->moves[m].rows);
        x->places = places;
        x->cap = p->moves[m].rows;
    }
    return WEFT_OK;
}

void wefti_row_move_begin(wefti_rank_device *d, wefti_row_move *m) {
    wefti_row_queue *q = d->row_queue;
    m->next = NULL;
    m->over = false;
    (void)pthread_mutex_lock(&q->lock);
    *(q->first ? &q->last->next : &q->first) = m;
    q->last = m;
    (void)pthread_cond_signal(&q->work);
    (void)pthread_mutex_unlock(&q->lock);
}

weft_status wefti_row_move_end(wefti_rank_device *d, wefti_row_move *m) {
    wefti_row_queue *q = d->row_queue;
    (void)pthread_mutex_lock(&q->lock);
    while (!m->over) (void)pthread_cond_wait(&q->done, &q->lock);
    (void)pthread_mutex_unlock(&q->lock);
    return m->failure.status < 0 ? wefti_failure_tell(&m->failure) : WEFT_OK;
}
