/* Captures live tensors into the files of a step. See write.c.
 *
 * A tensor has its place in a file before anything is written. A process that has the whole tensor
 * writes it from begin to end. A process that has a region of it writes the runs of the region to
 * their places. Both sum the checksum of the whole tensor from their ranges. */
#include "base/digest/digest.h"
#include "base/text.h"
#include "checkpoint/write/job.h"
#include "comm/home_region.h"
#include "layout/runs.h"

enum { WRITE_BLOCK_BYTES = 256 * 1024 };

/* ---- files ---- */

static weft_status shard_path(const wefti_checkpoint_job *job, int64_t s, char **out) {
    *out = wefti_format("%s/%s", job->temporary, job->plan.manifest.files[s].name);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

static weft_status open_sealer(wefti_checkpoint_job *job, int64_t s) {
    const wefti_manifest_file *file = &job->plan.manifest.files[s];
    wefti_seal seal;
    WEFT_TRY(wefti_seal_make(&job->key, &job->mark, file->name, file->bytes, WEFTI_SEAL_FRAME_BYTES,
                             &seal));
    return wefti_sealer_open(&seal, &job->sealers[s]);
}

/* Bytes of a shard from byte `at` on. Those of an encrypted one come from begin to end. */
static weft_status put_bytes(wefti_checkpoint_job *job, int64_t s, int64_t at, const void *data,
                             size_t bytes) {
    if (job->sealers[s])
        return wefti_sealer_write(job->sealers[s], job->shards[s], at, data, bytes);
    WEFT_TRY(wefti_bulk_seek(job->shards[s], at));
    return wefti_bulk_write(job->shards[s], data, bytes);
}

static weft_status create_shard(wefti_checkpoint_job *job, int64_t s, const char *header) {
    const int64_t plain = job->plan.manifest.files[s].bytes,
                  bytes = job->mark.sealed ? wefti_seal_file_bytes(plain, WEFTI_SEAL_FRAME_BYTES)
                                           : plain;
    char *path = NULL;
    WEFT_TRY(shard_path(job, s, &path));
    weft_status status = wefti_bulk_open(path, bytes, &job->shards[s]);
    wefti_free(path);
    WEFT_TRY(status);
    if (job->mark.sealed) WEFT_TRY(open_sealer(job, s));
    if (job->duty == WEFTI_CHECKPOINT_LEADS) wefti_bulk_share(job->shards[s]);
    WEFT_TRY(put_bytes(job, s, 0, header, (size_t)job->header_bytes[s]));
    return wefti_bulk_park(job->shards[s]);
}

weft_status wefti_write_shards(wefti_checkpoint_job *job, bool create) {
    static const wefti_safetensors_pair framework = {"format", "pt"}; /* transformers insists */
    const wefti_write_plan *plan = &job->plan;
    for (int64_t s = 0; s < plan->shard_count; s++) {
        wefti_manifest_file *file = &plan->manifest.files[s];
        int64_t begin = plan->shard_begin[s], end = plan->shard_begin[s + 1];
        char *header = NULL;
        WEFT_TRY(wefti_safetensors_header(plan->items + begin, end - begin, &framework, 1, &header,
                                          &job->header_bytes[s]));
        file->checked_bytes = job->header_bytes[s];
        file->bytes = job->header_bytes[s] + plan->shard_bytes[s];
        file->crc32c = wefti_crc32c(0, header, (size_t)job->header_bytes[s]);
        weft_status status = create ? create_shard(job, s, header) : WEFT_OK;
        wefti_free(header);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* Writes bytes of a tensor, from its byte `at` on, into its shard. One shard of each role has a
 * buffer: captures fill the shards of a role one after the other. */
static weft_status write_shard(wefti_checkpoint_job *job, int64_t k, int64_t at, const void *data,
                               size_t bytes) {
    const wefti_manifest_tensor *tensor = &job->plan.manifest.tensors[k];
    int64_t s = tensor->file, *active = &job->active[tensor->role];
    if (*active != s && *active >= 0) WEFT_TRY(wefti_bulk_park(job->shards[*active]));
    *active = s;
    if (!job->shards[s]) {
        char *path = NULL;
        WEFT_TRY(shard_path(job, s, &path));
        weft_status status =
            wefti_bulk_join(path, job->plan.manifest.files[s].bytes, &job->shards[s]);
        wefti_free(path);
        WEFT_TRY(status);
    }
    return put_bytes(job, s, job->header_bytes[s] + job->plan.offset[k] + at, data, bytes);
}

weft_status wefti_write_sync(wefti_checkpoint_job *job) {
    for (int64_t s = 0; s < job->plan.shard_count; s++) {
        wefti_bulk *shard = job->shards[s];
        job->shards[s] = NULL; /* removed whether the commit succeeds or not */
        if (shard) WEFT_TRY(wefti_bulk_commit(shard));
        wefti_sealer_close(job->sealers[s]);
        job->sealers[s] = NULL;
    }
    return WEFT_OK;
}

/* ---- tensors ---- */

/* A tensor on its way into its file. */
typedef struct capture {
    wefti_checkpoint_job *job;
    int64_t k;
    wefti_crc_sum sum;
} capture;

/* Writes bytes of the tensor from byte `at` on. */
static weft_status put(capture *c, int64_t at, const void *data, size_t bytes) {
    WEFT_REQUIRE(!atomic_load(&c->job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
    wefti_crc_sum_add(&c->sum, at, data, bytes);
    c->job->own_bytes += (int64_t)bytes;
    return write_shard(c->job, c->k, at, data, bytes);
}

/* Blocks stay in the core's cache between the checksum and the copy. */
static weft_status put_blocks(capture *c, int64_t at, const unsigned char *data, int64_t bytes) {
    for (int64_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < WRITE_BLOCK_BYTES ? bytes - done : WRITE_BLOCK_BYTES;
        WEFT_TRY(put(c, at + done, data + done, (size_t)part));
    }
    return WEFT_OK;
}

static weft_status need_block(wefti_checkpoint_job *job) {
    if (!job->block) job->block = wefti_alloc(WRITE_BLOCK_BYTES);
    WEFT_REQUIRE(job->block, WEFT_E_NOMEM, "no memory to join pieces of tensors");
    return WEFT_OK;
}

/* All pieces are here: block by block, each gathered from the pieces that have a part of it. */
static weft_status capture_joined(capture *c, const wefti_write_source *source,
                                  const weft_desc *desc) {
    const weft_desc *whole = &source->whole;
    int64_t size = (int64_t)weft_dtype_bytes(whole->dtype), most = WRITE_BLOCK_BYTES / size;
    int64_t end = source->first + weft_desc_elems(desc), count;
    WEFT_TRY(need_block(c->job));
    for (int64_t at = source->first; at < end; at += count) {
        wefti_region slab, part;
        count = wefti_slab(whole, at, end - at < most ? end - at : most, &slab);
        for (int64_t i = 0; i < source->piece_count; i++) {
            const wefti_checkpoint_piece *piece = &source->pieces[i];
            if (wefti_region_intersect(&slab, &piece->box, whole->rank, &part))
                WEFT_TRY(wefti_home_read_region(&piece->home, &piece->box, whole, &part, &slab,
                                                c->job->block));
        }
        WEFT_TRY(put(c, (at - source->first) * size, c->job->block, (size_t)(count * size)));
    }
    return WEFT_OK;
}

/* A slab of a slice's own elements, as part of the sum of the whole tensor. */
static void add_to_whole(const wefti_checkpoint_job *job, const wefti_manifest_slice *slice,
                         const wefti_region *slab, const unsigned char *data, wefti_crc_sum *sum) {
    const weft_desc *whole = &job->plan.wholes[slice->tensor].desc;
    const int64_t size = (int64_t)weft_dtype_bytes(whole->dtype);
    wefti_region there = *slab;
    for (int d = 0; d < whole->rank; d++) there.begin[d] += slice->region.begin[d];
    wefti_region_runs run = wefti_region_runs_of(whole, &there);
    while (wefti_region_runs_next(&run))
        wefti_crc_sum_add(sum, run.at * size, data + run.here * size, (size_t)(run.count * size));
}

/* A slice: block by block of the region of its piece. */
static weft_status capture_slice(wefti_checkpoint_job *job, int64_t k) {
    wefti_write_plan *plan = &job->plan;
    wefti_manifest_tensor *t = &plan->manifest.tensors[k];
    const wefti_write_source *source = &plan->sources[k];
    wefti_manifest_slice *slice = &plan->manifest.sliced.slices[source->slice];
    weft_desc local = source->whole;
    wefti_crc_sum sum = {0};
    const int64_t size = (int64_t)weft_dtype_bytes(t->desc.dtype), most = WRITE_BLOCK_BYTES / size,
                  all = weft_desc_elems(&t->desc);
    for (int d = 0; d < local.rank; d++) local.shape[d] = source->part.size[d];
    WEFT_TRY(need_block(job));
    for (int64_t at = 0, count; at < all; at += count) {
        wefti_region slab, own; /* in the session's shape and in the file's */
        WEFT_REQUIRE(!atomic_load(&job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
        count =
            wefti_slab_both(&local, &t->desc, at, all - at < most ? all - at : most, &slab, &own);
        for (int d = 0; d < local.rank; d++) slab.begin[d] += source->part.begin[d];
        WEFT_TRY(wefti_home_read_region(&source->pieces[0].home, &source->pieces[0].box,
                                        &source->whole, &slab, &slab, job->block));
        t->crc32c = wefti_crc32c(t->crc32c, job->block, (size_t)(count * size));
        if (plan->counts[source->slice]) add_to_whole(job, slice, &own, job->block, &sum);
        WEFT_TRY(write_shard(job, k, at * size, job->block, (size_t)(count * size)));
    }
    slice->crc32c = t->crc32c;
    if (!plan->counts[source->slice]) return WEFT_OK;
    job->own_bytes += all * size;
    job->sums[slice->tensor] ^=
        wefti_crc_sum_of(&sum, weft_desc_bytes(&plan->wholes[slice->tensor].desc));
    return WEFT_OK;
}

/* Writes the runs of a block. */
static weft_status put_block(capture *c, const wefti_write_source *source,
                             const wefti_checkpoint_piece *piece, const wefti_piece_blocks *b) {
    int64_t size = (int64_t)weft_dtype_bytes(b->whole->dtype);
    wefti_mapping m;
    WEFT_TRY(wefti_home_map(&piece->home, b->here * size, b->count * size, WEFTI_ACCESS_READ, &m));
    wefti_region_runs run = wefti_region_runs_of(b->whole, &b->block);
    weft_status status = WEFT_OK;
    while (status >= 0 && wefti_region_runs_next(&run))
        status = put_blocks(c, (run.at - source->first) * size,
                            (const unsigned char *)m.data + run.here * size, run.count * size);
    return wefti_home_unmap(&m, status);
}

/* Other processes have pieces too: writes what this piece has of the file's tensor. */
static weft_status capture_piece(capture *c, const wefti_write_source *source,
                                 const wefti_checkpoint_piece *piece, const weft_desc *desc) {
    const weft_desc *whole = &source->whole;
    int64_t most = WRITE_BLOCK_BYTES / (int64_t)weft_dtype_bytes(whole->dtype);
    wefti_piece_blocks b =
        wefti_piece_blocks_of(whole, &piece->box, source->first, weft_desc_elems(desc), most);
    while (wefti_piece_blocks_next(&b)) WEFT_TRY(put_block(c, source, piece, &b));
    return WEFT_OK;
}

static weft_status capture_pieces(capture *c, const wefti_write_source *source,
                                  const weft_desc *desc) {
    if (c->job->duty == WEFTI_CHECKPOINT_ALONE) return capture_joined(c, source, desc);
    uint32_t sums = 0;
    for (int64_t i = 0; i < source->piece_count; i++) {
        c->sum = (wefti_crc_sum){0};
        if (wefti_home_exists(&source->pieces[i].home))
            WEFT_TRY(capture_piece(c, source, &source->pieces[i], desc));
        sums ^= wefti_crc_sum_of(&c->sum, weft_desc_bytes(desc));
    }
    c->sum.sum = sums;
    return WEFT_OK;
}

weft_status wefti_write_capture(wefti_checkpoint_job *job, int64_t k) {
    const weft_desc *desc = &job->plan.manifest.tensors[k].desc;
    const wefti_write_source *source = &job->plan.sources[k];
    int64_t bytes = weft_desc_bytes(desc), index = job->plan.order[k];
    const void *data = source->data;
    bool later = source->later && bytes > 0;
    capture c = {.job = job, .k = k};
    if (source->slice >= 0) return capture_slice(job, k);
    if (later) {
        data = job->take(job->context, index);
        WEFT_REQUIRE(data, WEFT_E_STOPPED, "the checkpoint was given up");
    }
    if (source->pieces) WEFT_TRY(capture_pieces(&c, source, desc));
    if (data) WEFT_TRY(put_blocks(&c, 0, data, bytes));
    if (later) job->give_back(job->context, index);
    job->sums[index] = wefti_crc_sum_of(&c.sum, bytes);
    return WEFT_OK;
}
