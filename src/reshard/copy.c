/* Streams tensors from pieces to items. See copy.h. */
#include "reshard/copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/pool.h"
#include "layout/slab.h"
#include "layout/transfer.h"
#include "tensor/tensor.h"

/* ---- dense blocks ---- */

/* Called for a block of a region: elements [first, first + count) of the array. */
typedef weft_status block_visit(void *context, const wefti_region *block, int64_t first,
                                int64_t count);

/* Divides `part` of an array that stores region `within` into blocks whose range in the array has
 * at most `most` elements, of which at least one in `sparse` belongs to the block. */
static weft_status each_block(const wefti_region *part, const wefti_region *within, int rank,
                              int64_t most, int64_t sparse, block_visit *visit, void *context) {
    int64_t first, count, elems = wefti_region_elems(part, rank);
    wefti_region half = *part;
    int d = 0;
    wefti_region_span(part, within, rank, &first, &count);
    if (count <= most && count <= elems * sparse) return visit(context, part, first, count);
    while (d < rank && part->size[d] == 1) d++;
    if (d == rank) return visit(context, part, first, count);
    half.size[d] = part->size[d] / 2;
    WEFT_TRY(each_block(&half, within, rank, most, sparse, visit, context));
    half.begin[d] += half.size[d];
    half.size[d] = part->size[d] - half.size[d];
    return each_block(&half, within, rank, most, sparse, visit, context);
}

/* ---- reading ---- */

typedef struct part_reader {
    const wefti_source_tensor *tensor;
    const wefti_source_piece *piece;
    const wefti_region *want; /* of the array `out` */
    unsigned char *out, *scratch;
    size_t size;
} part_reader;

static weft_status read_block(void *context, const wefti_region *block, int64_t first,
                              int64_t count) {
    const part_reader *r = context;
    const int rank = r->tensor->desc.rank;
    const int64_t size = (int64_t)r->size, elems = wefti_region_elems(block, rank);
    int64_t to, reach;
    wefti_region_span(block, r->want, rank, &to, &reach);
    const int64_t at = r->piece->at + first * size;
    if (reach == elems && count == elems) /* dense on both sides */
        return wefti_reader_at(r->piece->reader, at, count * size, r->out + to * size);
    WEFT_TRY(wefti_reader_at(r->piece->reader, at, count * size, r->scratch));
    const void *begin = (const void *)((uintptr_t)r->scratch - (uintptr_t)(first * size));
    wefti_region_copy(block, &r->piece->region, begin, r->want, r->out, rank, r->size);
    return WEFT_OK;
}

/* Blocks are read with up to three bytes beside each wanted byte: fewer calls are faster. */
enum { COPY_SPARSE = 4 };

static weft_status read_part(const wefti_source_tensor *t, const wefti_source_piece *p,
                             const wefti_region *part, const wefti_region *want, void *out,
                             unsigned char *scratch) {
    part_reader r = {t, p, want, out, scratch, weft_dtype_bytes(t->desc.dtype)};
    return each_block(part, &p->region, t->desc.rank, WEFTI_COPY_BYTES / (int64_t)r.size,
                      COPY_SPARSE, read_block, &r);
}

weft_status wefti_copy_read(const wefti_source_tensor *t, const wefti_region *want, void *out,
                            unsigned char *scratch) {
    wefti_region part;
    for (int64_t k = 0; k < t->count; k++) {
        const wefti_source_piece *p = &t->pieces[k];
        if (!p->first || p->chosen < 0) continue;
        if (!wefti_region_intersect(&p->region, want, t->desc.rank, &part)) continue;
        WEFT_TRY(read_part(t, &t->pieces[p->chosen], &part, want, out, scratch));
    }
    return WEFT_OK;
}

/* ---- writing ---- */

typedef struct part_writer {
    const wefti_target *target;
    const wefti_target_item *item;
    const wefti_region *want;
    const unsigned char *data;
    unsigned char *scratch;
    int rank;
    size_t size;
} part_writer;

static weft_status write_block(void *context, const wefti_region *block, int64_t first,
                               int64_t count) {
    const part_writer *w = context;
    const int64_t size = (int64_t)w->size;
    int64_t from, reach;
    wefti_region_span(block, w->want, w->rank, &from, &reach);
    const unsigned char *data = w->data + from * size;
    if (reach != count) {
        wefti_region_copy(block, w->want, w->data, block, w->scratch, w->rank, w->size);
        data = w->scratch;
    }
    return wefti_target_write(w->target, w->item->file, w->item->at + first * size, data,
                              (size_t)(count * size));
}

static weft_status write_items(const wefti_target *target, int64_t tensor, const wefti_region *want,
                               const unsigned char *data, unsigned char *scratch) {
    const wefti_source_tensor *t = &target->source->tensors[tensor];
    wefti_region part;
    for (int32_t i = target->first_item[tensor]; i >= 0; i = target->items[i].next) {
        const wefti_target_item *item = &target->items[i];
        if (!wefti_region_intersect(&item->region, want, t->desc.rank, &part)) continue;
        part_writer w = {
            target, item, want, data, scratch, t->desc.rank, weft_dtype_bytes(t->desc.dtype)};
        WEFT_TRY(each_block(&part, &item->region, w.rank, WEFTI_COPY_BYTES / (int64_t)w.size, 1,
                            write_block, &w));
    }
    return WEFT_OK;
}

/* ---- tasks ---- */

typedef struct copy_task {
    int64_t tensor, first, count; /* elements [first, first + count) */
} copy_task;

typedef struct copier {
    const wefti_shard_copy *copy;
    copy_task *tasks;
    int64_t count, cap;
    unsigned char *rooms[WEFTI_COPY_THREADS]; /* of each thread: 3 buffers */
    _Atomic uint32_t *sums;                   /* [tensors] */
    atomic_bool failed;
    pthread_mutex_t mutex;
    wefti_failure failure;
} copier;

/* The bounding box of what the items need of `region`; false: nothing. */
static bool needed_of(const wefti_shard_copy *c, int64_t tensor, const wefti_region *region,
                      wefti_region *out) {
    const wefti_target *target = c->target;
    const int rank = c->source->tensors[tensor].desc.rank;
    bool any = false;
    wefti_region part;
    if (c->whole) {
        *out = *region;
        return true;
    }
    for (int32_t i = target->first_item[tensor]; i >= 0; i = target->items[i].next) {
        if (!wefti_region_intersect(&target->items[i].region, region, rank, &part)) continue;
        for (int d = 0; d < rank && any; d++) {
            int64_t end = out->begin[d] + out->size[d], other = part.begin[d] + part.size[d];
            if (part.begin[d] < out->begin[d]) out->begin[d] = part.begin[d];
            out->size[d] = (other > end ? other : end) - out->begin[d];
        }
        if (!any) *out = part;
        any = true;
    }
    return any;
}

/* Compares the replicas of a piece with what was read. */
static weft_status compare_replicas(const wefti_shards *s, const wefti_source_tensor *t,
                                    const wefti_region *want, const unsigned char *data,
                                    unsigned char *scratch, unsigned char *other) {
    const size_t size = weft_dtype_bytes(t->desc.dtype);
    wefti_region part;
    for (int64_t k = 0; k < t->count; k++) {
        const wefti_source_piece *p = &t->pieces[k];
        if (!p->first || p->same < 0 || p->chosen < 0) continue;
        if (!wefti_region_intersect(&p->region, want, t->desc.rank, &part)) continue;
        const size_t bytes = (size_t)wefti_region_elems(&part, t->desc.rank) * size;
        for (int32_t q = (int32_t)k; q >= 0; q = t->pieces[q].same) {
            if (q == p->chosen || !t->pieces[q].reader) continue;
            WEFT_TRY(read_part(t, &t->pieces[q], &part, &part, other, scratch));
            wefti_region_copy(&part, want, data, &part, scratch, t->desc.rank, size);
            WEFT_REQUIRE(!memcmp(scratch, other, bytes), WEFT_E_MISMATCH,
                         "%s and %s have different values of the same part of tensor %.200s",
                         s->files[t->pieces[p->chosen].file].path, s->files[t->pieces[q].file].path,
                         t->name);
        }
    }
    return WEFT_OK;
}

static weft_status run_task(copier *c, const copy_task *task, unsigned char *room) {
    const wefti_shard_copy *copy = c->copy;
    const wefti_source_tensor *t = &copy->source->tensors[task->tensor];
    const int64_t size = (int64_t)weft_dtype_bytes(t->desc.dtype);
    unsigned char *data = room, *scratch = room + WEFTI_COPY_BYTES,
                  *other = scratch + WEFTI_COPY_BYTES;
    wefti_region region, want;
    (void)wefti_slab(&t->desc, task->first, task->count, &region);
    if (!needed_of(copy, task->tensor, &region, &want)) return WEFT_OK;
    WEFT_TRY(wefti_copy_read(t, &want, data, scratch));
    if (copy->replicas) WEFT_TRY(compare_replicas(copy->source, t, &want, data, scratch, other));
    if (copy->whole) {
        wefti_crc_sum sum = {0};
        wefti_crc_sum_add(&sum, task->first * size, data, (size_t)(task->count * size));
        atomic_fetch_xor(&c->sums[task->tensor], wefti_crc_sum_of(&sum, weft_desc_bytes(&t->desc)));
    }
    if (!copy->target) return WEFT_OK;
    return write_items(copy->target, task->tensor, &want, data, scratch);
}

static void task_body(void *context, int64_t number, int thread) {
    copier *c = context;
    if (atomic_load(&c->failed)) return;
    weft_status status = run_task(c, &c->tasks[number], c->rooms[thread]);
    if (status >= 0) return;
    pthread_mutex_lock(&c->mutex);
    if (!atomic_load(&c->failed)) wefti_failure_keep(status, &c->failure);
    atomic_store(&c->failed, true);
    pthread_mutex_unlock(&c->mutex);
}

static weft_status list_tasks(copier *c) {
    const wefti_shard_copy *copy = c->copy;
    wefti_region region;
    for (int64_t i = 0; i < copy->source->count; i++) {
        const weft_desc *desc = &copy->source->tensors[i].desc;
        const int64_t elems = weft_desc_elems(desc);
        if (!copy->whole && copy->target->first_item[i] < 0) continue;
        for (int64_t first = 0, count; first < elems; first += count) {
            count = wefti_slab(desc, first,
                               WEFTI_COPY_BYTES / (int64_t)weft_dtype_bytes(desc->dtype), &region);
            WEFT_TRY(WEFT_GROW(c->tasks, c->count, c->cap));
            c->tasks[c->count++] = (copy_task){i, first, count};
        }
    }
    return WEFT_OK;
}

static weft_status run_all(copier *c) {
    wefti_pool *pool = NULL;
    int threads = wefti_cores();
    WEFT_TRY(list_tasks(c));
    WEFT_NEW_ARRAY(c->sums, _Atomic uint32_t, c->copy->source->count + 1);
    if (threads > WEFTI_COPY_THREADS) threads = WEFTI_COPY_THREADS;
    if (threads > c->count) threads = c->count ? (int)c->count : 1;
    for (int i = 0; i < threads; i++) {
        c->rooms[i] = wefti_alloc(3 * (size_t)WEFTI_COPY_BYTES);
        WEFT_REQUIRE(c->rooms[i], WEFT_E_NOMEM, "no memory for %d buffers", threads);
    }
    if (threads > 1) WEFT_TRY(wefti_pool_create(threads, &pool));
    wefti_pool_run(pool, c->count, task_body, c);
    wefti_pool_destroy(pool);
    if (atomic_load(&c->failed)) return wefti_failure_tell(&c->failure);
    for (int64_t i = 0; i < c->copy->source->count && c->copy->whole; i++)
        c->copy->crc32c[i] = wefti_crc32c_of_sums(
            atomic_load(&c->sums[i]), weft_desc_bytes(&c->copy->source->tensors[i].desc));
    return WEFT_OK;
}

static weft_status check(const wefti_shards *s, const uint32_t *crc32c) {
    for (int64_t i = 0; i < s->count; i++)
        WEFT_REQUIRE(!s->tensors[i].checked || s->tensors[i].crc32c == crc32c[i], WEFT_E_CORRUPT,
                     "%s: tensor %.200s has the checksum %08x; %08x was written", s->path,
                     s->tensors[i].name, crc32c[i], s->tensors[i].crc32c);
    return WEFT_OK;
}

static weft_status run_once(const wefti_shard_copy *copy) {
    copier c = {.copy = copy};
    if (pthread_mutex_init(&c.mutex, NULL)) WEFT_FAIL(WEFT_E_NOMEM, "no memory for a mutex");
    weft_status status = run_all(&c);
    for (int i = 0; i < WEFTI_COPY_THREADS; i++) wefti_free(c.rooms[i]);
    wefti_free((void *)c.sums);
    wefti_free(c.tasks);
    pthread_mutex_destroy(&c.mutex);
    return status >= 0 && copy->whole ? check(copy->source, copy->crc32c) : status;
}

weft_status wefti_copy_run(const wefti_shard_copy *copy) {
    wefti_checkpoint *step = copy->source->step;
    if (step && !copy->whole) (void)wefti_checkpoint_doubt(step);
    weft_status status = run_once(copy);
    if (status != WEFT_E_CORRUPT && status != WEFT_E_MISMATCH) return status;
    return step && wefti_checkpoint_doubt(step) ? run_once(copy) : status;
}
