/* Caches for rows of tables whose home is a file. The program says where each lies in host memory
 * (wefti_tensor.cache). */
#include "base/memory.h"
#include "exec/rank_device.h"

/* The table of a tensor whose home is a file. `value`: the tensor that numbers its rows. */
static wefti_cache_table table_of(const wefti_rank_device *d, const wefti_program *p,
                                  const wefti_tensor *x, const wefti_tensor *value) {
    const wefti_arena_block *block = wefti_arena_block_of(
        &d->arenas[WEFTI_SPACE_DISK][wefti_location_term(x->home)], wefti_location_offset(x->home));
    wefti_region here, whole;
    wefti_program_region(p, x, &here);
    wefti_program_region(p, value, &whole);
    const int64_t first = here.begin[0] - whole.begin[0], row = wefti_tensor_row_bytes(x);
    return (wefti_cache_table){
        .table = {.file = block->file,
                  .begin = wefti_location_offset(x->home) - block->begin - first * row,
                  .row_bytes = row},
        .first = first,
        .rows = x->desc.shape[0]};
}

/* The value, if it lies on a disk, then the states that do. Returns the bytes of a slot. */
static int64_t list_parts(const wefti_rank_device *d, const wefti_program *p, int32_t value,
                          wefti_disk_cache_options *out) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const int32_t t = i == 0 ? value : i <= value ? i - 1 : i;
        const wefti_tensor *x = &p->tensors[t];
        if ((t != value && x->param != value) || !wefti_tensor_row_bytes(x) ||
            wefti_location_space(x->home) != WEFTI_SPACE_DISK || out->count == WEFTI_CACHE_PARTS)
            continue;
        out->parts[out->count++] = table_of(d, p, x, &p->tensors[value]);
        bytes += wefti_tensor_row_bytes(x);
    }
    return bytes;
}

static int64_t begin_of(const wefti_cache_table *x) {
    return x->table.begin + x->first * x->table.row_bytes;
}

/* Makes records of parts that have the same rows and lie behind each other: from number i on.
 * *out: the first part behind them. */
static weft_status join_parts(const wefti_disk_cache_options *o, int i, int *out) {
    const wefti_cache_table *first = &o->parts[i];
    int64_t row_bytes[WEFTI_RECORD_PARTS];
    wefti_disk_records r, longer;
    bool joined = false;
    int count = 0;
    for (*out = i; *out < o->count; ++*out) {
        const wefti_cache_table *x = &o->parts[*out];
        if (x->first != first->first || x->rows != first->rows ||
            x->table.file != first->table.file)
            break;
        row_bytes[count++] = x->table.row_bytes;
        if (count == 1) continue;
        if (!wefti_disk_records_of(begin_of(first), x->rows, count, row_bytes, &longer) ||
            longer.part[count - 1].begin != begin_of(x))
            break;
        r = longer;
        joined = true;
    }
    return joined ? wefti_disk_stream_interleave(first->table.file, &r) : WEFT_OK;
}

/* Host memory of a device that is not direct is reached by its copies alone, unless it is exposed:
 * that of a cache is, as long as the cache lives. */
static weft_status open_cache(wefti_rank_device *d, const wefti_program *p, int32_t value,
                              wefti_cache_of *out) {
    const wefti_tensor *x = &p->tensors[value];
    wefti_disk_cache_options o = {.looked_up = wefti_location_space(x->home) == WEFTI_SPACE_DISK,
                                  .slots = x->cache_slots,
                                  .memory = wefti_rank_device_at(d, x->cache)};
    const int64_t slot_bytes = list_parts(d, p, value, &o);
    for (int part = 0; part < o.count;) WEFT_TRY(join_parts(&o, part, &part));
    *out = (wefti_cache_of){.at = x->cache,
                            .memory = {o.memory, wefti_disk_cache_bytes(o.slots, slot_bytes)}};
    if (wefti_stream_exposes(d->copies))
        WEFT_TRY(wefti_stream_expose(d->copies, WEFTI_SPACE_HOST, &out->memory, 1));
    const weft_status status = wefti_disk_cache_open(&o, &out->cache);
    if (status < 0 && wefti_stream_exposes(d->copies))
        wefti_stream_conceal(d->copies, &out->memory, 1);
    return status;
}

weft_status wefti_bind_caches(wefti_rank_device *d, const wefti_program *p) {
    for (int32_t t = 0; t < p->tensor_count; t++) {
        if (!wefti_location_exists(p->tensors[t].cache)) continue;
        WEFT_TRY(WEFT_GROW(d->caches, d->cache_count, d->cache_cap));
        WEFT_TRY(open_cache(d, p, t, &d->caches[d->cache_count]));
        d->cache_count++;
    }
    for (int64_t i = 0; i < d->cache_count; i++)
        WEFT_TRY(wefti_disk_cache_reserve(d->caches[i].cache, d->row_cap));
    return WEFT_OK;
}

void wefti_close_caches(wefti_rank_device *d, int64_t keep) {
    wefti_rank_device_end_ahead(d, true);
    while (d->cache_count && wefti_location_offset(d->caches[d->cache_count - 1].at) >= keep) {
        wefti_cache_of *x = &d->caches[--d->cache_count];
        wefti_disk_cache_close(x->cache);
        if (wefti_stream_exposes(d->copies)) wefti_stream_conceal(d->copies, &x->memory, 1);
    }
}

wefti_disk_cache *wefti_cache_with(const wefti_rank_device *d, const wefti_disk_table *table,
                                   int *out_part, int64_t *out_row) {
    for (int64_t i = 0; i < d->cache_count; i++) {
        *out_part = wefti_disk_cache_part(d->caches[i].cache, table, out_row);
        if (*out_part >= 0) return d->caches[i].cache;
    }
    return NULL;
}

weft_status wefti_move_rows(const wefti_rank_device *d, wefti_row_move *m) {
    int part;
    int64_t first;
    wefti_disk_cache *cache = wefti_cache_with(d, &m->table, &part, &first);
    if (!cache) return wefti_disk_rows_move(&m->table, m->reads, m->places, m->count, d->staging);
    for (int64_t k = 0; k < m->count; k++) m->places[k].row += (int32_t)first;
    return wefti_disk_cache_move(cache, part, m->reads, m->places, m->count, d->staging);
}

/* ---- rows of the next step ---- */

/* The table in a file of which a step begins to look up rows of an input; false: none. */
static bool looks_up(const wefti_rank_device *d, const wefti_program *p, wefti_section s, int32_t k,
                     wefti_location input, wefti_disk_table *out) {
    const wefti_step *post = &p->steps[s][k];
    if (post->kind != WEFTI_STEP_POST || !p->moves[post->move].looks_up ||
        wefti_step_tier(post) != WEFTI_SPACE_DISK)
        return false;
    *out = wefti_table_at(d, post->args[0], p->moves[post->move].row_bytes);
    for (int32_t i = k - 1; i >= 0; i--) {
        const wefti_step *find = &p->steps[s][i];
        if (find->kind == WEFTI_STEP_CALL && find->routine->args == 2 &&
            wefti_location_equal(find->args[1], post->args[2]))
            return wefti_location_equal(find->args[0], input);
    }
    return false;
}

weft_status wefti_rank_device_ahead(wefti_rank_device *d, const wefti_program *p,
                                    wefti_location input, const int32_t *ids, int64_t count) {
    wefti_disk_table table;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++)
            if (looks_up(d, p, (wefti_section)s, k, input, &table))
                WEFT_TRY(wefti_row_queue_ahead(d, &table, ids, count));
    return WEFT_OK;
}

bool wefti_rank_device_caches(const wefti_rank_device *d) {
    return d->cache_count > 0;
}

wefti_row_counts wefti_rank_device_row_counts(const wefti_rank_device *d) {
    wefti_row_counts all = {0};
    for (int64_t i = 0; i < d->cache_count; i++) {
        const wefti_row_counts one = wefti_disk_cache_counts(d->caches[i].cache);
        all.hits += one.hits;
        all.misses += one.misses;
        all.written += one.written;
        all.look_ups += one.look_ups;
        all.look_ups_hit += one.look_ups_hit;
        all.ahead += one.ahead;
    }
    return all;
}
