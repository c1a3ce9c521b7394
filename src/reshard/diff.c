/* Differences of two checkpoints. See weft/checkpoint.h. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/json/json.h"
#include "base/pool.h"
#include "base/text.h"
#include "layout/slab.h"
#include "reshard/reshard.h"
#include "tensor/tensor.h"
#include "weft/checkpoint.h"

/* What differs in a tensor that both have. */
typedef struct tensor_diff {
    const wefti_source_tensor *a, *b; /* NULL: that side lacks it */
    int64_t count, first;             /* differing elements, and the first of them */
    int64_t at;                       /* the element with the largest difference */
    double largest;
    int64_t unordered; /* differing elements of which one is NaN */
} tensor_diff;

typedef struct reshard_diff {
    wefti_reshard_input a, b;
    tensor_diff *items;
    int64_t count, cap, differing;
    unsigned char *rooms[WEFTI_COPY_THREADS]; /* of each thread: 3 buffers */
    pthread_mutex_t mutex;
    wefti_failure failure;
} reshard_diff;

/* ---- values ---- */

static bool same_shape(const weft_desc *a, const weft_desc *b) {
    weft_desc other = *b;
    other.dtype = a->dtype;
    return wefti_desc_equal(a, &other);
}

static void compare_element(tensor_diff *d, int64_t i, double off) {
    if (!d->count++) d->first = i;
    if (isnan(off)) {
        d->unordered++;
    } else if (off > d->largest || d->count - d->unordered == 1) {
        d->largest = off;
        d->at = i;
    }
}

/* A double does not hold all integers of 64 bits, and their difference may overflow. */
static double distance(const int64_t x, const int64_t y) {
    return (double)(x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x);
}

static void compare_range(tensor_diff *d, int64_t first, int64_t count, const unsigned char *x,
                          const unsigned char *y) {
    const weft_dtype p = d->a->desc.dtype, q = d->b->desc.dtype;
    const size_t size = weft_dtype_bytes(p);
    if (p == q && !memcmp(x, y, (size_t)count * size)) return;
    for (int64_t i = 0; i < count; i++) {
        if (p == q && !memcmp(x + (size_t)i * size, y + (size_t)i * size, size)) continue;
        if (p == WEFT_I64 && q == WEFT_I64) {
            compare_element(d, first + i,
                            distance(wefti_load_integer(p, x, i), wefti_load_integer(q, y, i)));
            continue;
        }
        const double u = wefti_load(p, x, i), v = wefti_load(q, y, i);
        if (p != q && u == v) continue;
        compare_element(d, first + i, fabs(u - v));
    }
}

static weft_status compare_tensor(tensor_diff *d, unsigned char *room) {
    unsigned char *x = room, *y = x + WEFTI_COPY_BYTES, *scratch = y + WEFTI_COPY_BYTES;
    const int64_t elems = weft_desc_elems(&d->a->desc);
    size_t size = weft_dtype_bytes(d->a->desc.dtype);
    if (weft_dtype_bytes(d->b->desc.dtype) > size) size = weft_dtype_bytes(d->b->desc.dtype);
    wefti_region region;
    for (int64_t first = 0, count; first < elems; first += count) {
        count = wefti_slab(&d->a->desc, first, WEFTI_COPY_BYTES / (int64_t)size, &region);
        if (count > elems - first) count = elems - first;
        WEFT_TRY(wefti_copy_read(d->a, &region, x, scratch));
        WEFT_TRY(wefti_copy_read(d->b, &region, y, scratch));
        compare_range(d, first, count, x, y);
    }
    return WEFT_OK;
}

static void compare_task(void *context, int64_t number, int thread) {
    reshard_diff *c = context;
    tensor_diff *d = &c->items[number];
    if (!d->a || !d->b || !same_shape(&d->a->desc, &d->b->desc)) return;
    weft_status status = compare_tensor(d, c->rooms[thread]);
    if (status >= 0) return;
    pthread_mutex_lock(&c->mutex);
    if (c->failure.status >= 0) wefti_failure_keep(status, &c->failure);
    pthread_mutex_unlock(&c->mutex);
}

/* ---- pairs ---- */

/* The tensor of this name. If one side does not know roles, the role does not matter. */
static const wefti_source_tensor *partner(const wefti_shards *from, const wefti_shards *in,
                                          const wefti_source_tensor *t) {
    const wefti_source_tensor *found = wefti_shards_find(in, t->role, t->name);
    if (found || (from->manifest && in->manifest)) return found;
    return wefti_shards_find(
        in, t->role == WEFTI_CHECKPOINT_MODEL ? WEFTI_CHECKPOINT_OPTIMIZER : WEFTI_CHECKPOINT_MODEL,
        t->name);
}

static weft_status add_pair(reshard_diff *c, const wefti_source_tensor *a,
                            const wefti_source_tensor *b) {
    WEFT_TRY(WEFT_GROW(c->items, c->count, c->cap));
    c->items[c->count++] = (tensor_diff){.a = a, .b = b, .first = -1, .at = -1};
    return WEFT_OK;
}

static weft_status pair_up(reshard_diff *c) {
    const wefti_shards *a = c->a.shards, *b = c->b.shards;
    for (int64_t i = 0; i < a->count; i++)
        WEFT_TRY(add_pair(c, &a->tensors[i], partner(a, b, &a->tensors[i])));
    for (int64_t i = 0; i < b->count; i++)
        if (!partner(b, a, &b->tensors[i])) WEFT_TRY(add_pair(c, NULL, &b->tensors[i]));
    return WEFT_OK;
}

static weft_status choose(wefti_shards *s) {
    if (s->step) (void)wefti_checkpoint_doubt(s->step); /* no checksums are compared */
    const wefti_reads reads = {.source = s, .prefer = -1, .replicas = true};
    return wefti_reads_choose(&reads, NULL);
}

static weft_status run(reshard_diff *c) {
    wefti_pool *pool = NULL;
    int threads = wefti_cores();
    WEFT_TRY(choose(c->a.shards));
    WEFT_TRY(choose(c->b.shards));
    WEFT_TRY(pair_up(c));
    if (threads > WEFTI_COPY_THREADS) threads = WEFTI_COPY_THREADS;
    for (int i = 0; i < threads; i++) {
        c->rooms[i] = wefti_alloc(3 * (size_t)WEFTI_COPY_BYTES);
        WEFT_REQUIRE(c->rooms[i], WEFT_E_NOMEM, "no memory for %d buffers", threads);
    }
    if (threads > 1) WEFT_TRY(wefti_pool_create(threads, &pool));
    wefti_pool_run(pool, c->count, compare_task, c);
    wefti_pool_destroy(pool);
    return c->failure.status < 0 ? wefti_failure_tell(&c->failure) : WEFT_OK;
}

/* ---- the report ---- */

static const char *kind_of(const tensor_diff *d) {
    if (!d->b) return "only_first";
    if (!d->a) return "only_second";
    if (!same_shape(&d->a->desc, &d->b->desc)) return "shape";
    if (d->count) return "values";
    return d->a->desc.dtype != d->b->desc.dtype ? "dtype" : NULL;
}

static void add_index(wefti_text *text, const weft_desc *desc, int64_t element) {
    int64_t at[WEFT_MAX_RANK];
    for (int d = desc->rank - 1; d >= 0; d--) {
        at[d] = element % desc->shape[d];
        element /= desc->shape[d];
    }
    wefti_text_add(text, "[");
    for (int d = 0; d < desc->rank; d++)
        wefti_text_add(text, d ? ", %lld" : "%lld", (long long)at[d]);
    wefti_text_add(text, "]");
}

static void tell_json(const tensor_diff *d, const char *kind, wefti_text *text) {
    const wefti_source_tensor *t = d->a ? d->a : d->b;
    wefti_text_add(text, "{");
    wefti_reshard_tell(text, t->name, t->role, &t->desc);
    wefti_text_add(text, ", \"difference\": \"%s\"", kind);
    if (d->a && d->b) {
        wefti_text_add(text, ", \"other\": {");
        wefti_reshard_tell(text, d->b->name, d->b->role, &d->b->desc);
        wefti_text_add(text, "}");
    }
    if (d->count) {
        wefti_text_add(text, ", \"elements\": %lld, \"not_comparable\": %lld, \"first_index\": ",
                       (long long)d->count, (long long)d->unordered);
        add_index(text, &t->desc, d->first);
        wefti_text_add(text, ", \"largest\": ");
        wefti_json_real(text, d->at < 0 ? NAN : d->largest);
        wefti_text_add(text, ", \"largest_index\": ");
        if (d->at < 0)
            wefti_text_add(text, "null");
        else
            add_index(text, &t->desc, d->at);
    }
    wefti_text_add(text, "}");
}

static void tell_text(const tensor_diff *d, const char *kind, wefti_text *text) {
    const wefti_source_tensor *t = d->a ? d->a : d->b;
    wefti_text_add(text, "  %-48s ", t->name);
    if (!d->a || !d->b) {
        wefti_text_add(text, "%s, only in the %s\n", wefti_desc_text(&t->desc).text,
                       d->a ? "first" : "second");
    } else if (!d->count) {
        wefti_text_add(text, "%s: %s and %s\n", kind, wefti_desc_text(&d->a->desc).text,
                       wefti_desc_text(&d->b->desc).text);
    } else {
        wefti_text_add(text, "%lld of %lld elements differ, first at ", (long long)d->count,
                       (long long)weft_desc_elems(&t->desc));
        add_index(text, &t->desc, d->first);
        if (d->at >= 0) wefti_text_add(text, ", by at most %.6g at ", d->largest);
        if (d->at >= 0) add_index(text, &t->desc, d->at);
        wefti_text_add(text, "\n");
    }
}

static void tell(reshard_diff *c, bool json, wefti_text *text) {
    for (int64_t i = 0; i < c->count; i++) c->differing += kind_of(&c->items[i]) != NULL;
    if (json)
        wefti_text_add(text, "{\"equal\": %s, \"tensors\": %lld, \"differences\": [",
                       c->differing ? "false" : "true", (long long)c->count);
    else
        wefti_text_add(text, "tensors      %lld, of which %lld differ\n", (long long)c->count,
                       (long long)c->differing);
    const char *separator = "";
    for (int64_t i = 0; i < c->count; i++) {
        const char *kind = kind_of(&c->items[i]);
        if (!kind) continue;
        if (json) wefti_text_add(text, "%s", separator);
        (json ? tell_json : tell_text)(&c->items[i], kind, text);
        separator = ", ";
    }
    if (json) wefti_text_add(text, "]}\n");
}

weft_status weft_checkpoint_diff(const char *a, const char *a_layouts, const char *b,
                                 const char *b_layouts, int json, int64_t *out_differing,
                                 char **out_text) {
    reshard_diff c = {0};
    wefti_text text = {0};
    if (pthread_mutex_init(&c.mutex, NULL)) WEFT_FAIL(WEFT_E_NOMEM, "no memory for a mutex");
    weft_status status = wefti_reshard_open(a, a_layouts, &c.a);
    if (status >= 0) status = wefti_reshard_open(b, b_layouts, &c.b);
    if (status >= 0) status = run(&c);
    if (status >= 0) tell(&c, json != 0, &text);
    for (int i = 0; i < WEFTI_COPY_THREADS; i++) wefti_free(c.rooms[i]);
    wefti_free(c.items);
    wefti_reshard_close(&c.a);
    wefti_reshard_close(&c.b);
    pthread_mutex_destroy(&c.mutex);
    if (status >= 0) *out_differing = c.differing;
    return wefti_reshard_give(status, &text, out_text);
}
