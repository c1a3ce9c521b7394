/* Tensors on the way to rank 0, of ranks that do not see the checkpoint's directory.
 *
 * Rank 0 gathers one tensor after another, in the order in which its writing thread captures them.
 * Gathered tensors wait in memory until they are captured. If they exceed a bound, all ranks wait.
 * The run goes on as soon as the last tensor is gathered, while the thread still writes. */
#include <pthread.h>
#include <string.h>

#include "session/save/parts.h"

static const int64_t MOST_BYTES = 256
                                  << 20; /* waiting to be captured; a single tensor may be larger */

struct wefti_delivery {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int64_t count, used; /* waiting bytes */
    void **tensors;      /* [count]: gathered and not captured yet */
    int64_t *bytes;      /* [count] */
    bool ended;          /* no more tensors come */
    bool unwanted;       /* the writer asks for no more */
};

weft_status wefti_delivery_create(int64_t count, wefti_delivery **out) {
    wefti_delivery *d;
    WEFT_NEW(d, wefti_delivery);
    d->count = count;
    d->tensors = wefti_calloc((size_t)count + 1, sizeof *d->tensors);
    d->bytes = wefti_calloc((size_t)count + 1, sizeof *d->bytes);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->change, NULL);
    if (!d->tensors || !d->bytes) {
        wefti_delivery_destroy(d);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory to gather a checkpoint");
    }
    *out = d;
    return WEFT_OK;
}

void wefti_delivery_destroy(wefti_delivery *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->count && d->tensors; i++) wefti_free(d->tensors[i]);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->change);
    wefti_free(d->tensors);
    wefti_free(d->bytes);
    wefti_free(d);
}

void wefti_delivery_end(wefti_delivery *d) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->ended = true;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->lock);
}

/* ---- the writing thread ---- */

static const void *take(void *context, int64_t index) {
    wefti_delivery *d = context;
    pthread_mutex_lock(&d->lock);
    while (!d->tensors[index] && !d->ended) pthread_cond_wait(&d->change, &d->lock);
    const void *tensor = d->tensors[index];
    pthread_mutex_unlock(&d->lock);
    return tensor;
}

static void give_back(void *context, int64_t index) {
    wefti_delivery *d = context;
    pthread_mutex_lock(&d->lock);
    if (index < 0) {
        d->unwanted = true;
    } else {
        wefti_free(d->tensors[index]);
        d->tensors[index] = NULL;
        d->used -= d->bytes[index];
    }
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->lock);
}

void wefti_delivery_options(wefti_delivery *d, wefti_checkpoint_options *options) {
    options->take = take;
    options->give_back = give_back;
    options->context = d;
}

/* ---- the run's thread ---- */

static void wait_for_room(wefti_delivery *d, int64_t bytes) {
    pthread_mutex_lock(&d->lock);
    while (d->used > 0 && d->used + bytes > MOST_BYTES && !d->unwanted)
        pthread_cond_wait(&d->change, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void put(wefti_delivery *d, int64_t index, void *tensor, int64_t bytes) {
    pthread_mutex_lock(&d->lock);
    bool wanted = !d->unwanted;
    if (wanted) {
        d->tensors[index] = tensor;
        d->bytes[index] = bytes;
        d->used += bytes;
        pthread_cond_broadcast(&d->change);
    }
    pthread_mutex_unlock(&d->lock);
    if (!wanted) wefti_free(tensor);
}

static weft_status deliver_one(wefti_saver *v, int64_t index) {
    const wefti_saved_tensor *s = &v->list.tensors[index];
    int64_t bytes = weft_desc_bytes(&s->desc), elems = weft_desc_elems(&s->desc);
    if (bytes == 0) return WEFT_OK;
    if (wefti_saver_follows(v))
        return wefti_session_collect(v->session, 0, s->tensor, s->first, elems, NULL);
    wait_for_room(v->delivery, bytes);
    void *tensor = wefti_alloc((size_t)bytes);
    WEFT_REQUIRE(tensor, WEFT_E_NOMEM, "no memory to gather %s for a checkpoint", s->name);
    weft_status status = wefti_session_collect(v->session, 0, s->tensor, s->first, elems, tensor);
    if (status < 0)
        wefti_free(tensor);
    else
        put(v->delivery, index, tensor, bytes);
    return status;
}

/* In the order of capture: by element size, then in the order of saving. */
weft_status wefti_saver_deliver(wefti_saver *v) {
    weft_status status = WEFT_OK;
    for (size_t size = 8; size > 0; size--)
        for (int64_t i = 0; i < v->list.count && status >= 0; i++)
            if (v->list.apart[i] && weft_dtype_bytes(v->list.tensors[i].desc.dtype) == size)
                status = deliver_one(v, i);
    wefti_delivery_end(v->delivery);
    return status;
}
