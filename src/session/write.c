/* Writing whole tensors: from the caller's memory, or from a source that is asked piece by piece.
 *
 * Several processes: both are collective. Writing takes the same whole tensor on every rank;
 * filling asks rank 0's source only. */
#include "layout/runs.h"
#include "layout/slab.h"
#include "layout/transfer.h"
#include "session/tensors.h"

weft_status weft_session_write(weft_session *s, int program, const char *name, const void *data,
                               size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    bool terms = false;
    WEFT_TRY(wefti_session_locate_together(s, program, name, data, bytes, &v, &index, &count));
    for (int32_t i = 0; i < count; i++) terms |= pieces[i].term;
    wefti_region box = wefti_whole_region(&v->tensors[index].whole);
    if (!terms) WEFT_TRY(wefti_session_scatter(s, v, index, count, &box, data));
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    WEFT_REQUIRE(!terms, WEFT_E_ARG,
                 "'%s' is a sum of terms on several devices: it can be read, not written", name);
    return WEFT_OK;
}

enum { FILL_BYTES = 1 << 20 };

/* Asks the source for slabs, which are contiguous in the whole tensor, and scatters each. */
static weft_status fill_pieces(const weft_session *s, const wefti_view *v, int index,
                               int32_t piece_count, int64_t first, int64_t count,
                               wefti_session_source *source, void *context) {
    const weft_desc *whole = &v->tensors[index].whole;
    int64_t most = FILL_BYTES / (int64_t)weft_dtype_bytes(whole->dtype), part;
    weft_status status = WEFT_OK;
    void *buffer = wefti_alloc(FILL_BYTES);
    WEFT_REQUIRE(buffer, WEFT_E_NOMEM, "no memory to cut a tensor into pieces");
    for (int64_t at = 0; at < count && status == WEFT_OK; at += part) {
        wefti_region box;
        part = wefti_slab(whole, first + at, count - at < most ? count - at : most, &box);
        status = source(context, at, part, buffer);
        if (status == WEFT_OK)
            status = wefti_session_scatter(s, v, index, piece_count, &box, buffer);
    }
    wefti_free(buffer);
    return status;
}

/* The same with rank 0's source: rank 0 broadcasts each slab, so that only rank 0 needs the file.
 */
static weft_status fill_across(weft_session *s, const wefti_view *v, int index, int32_t piece_count,
                               int64_t first, int64_t count, wefti_session_source *source,
                               void *context) {
    const weft_desc *whole = &v->tensors[index].whole;
    int64_t size = (int64_t)weft_dtype_bytes(whole->dtype), most = WEFTI_BROADCAST_BYTES / size,
            part;
    void *room;
    WEFT_TRY(wefti_broadcast_buffer(s->agreement, &room));
    for (int64_t at = 0; at < count; at += part) {
        wefti_region box;
        part = wefti_slab(whole, first + at, count - at < most ? count - at : most, &box);
        weft_status status = s->me == 0 ? source(context, at, part, room) : WEFT_OK;
        WEFT_TRY(wefti_broadcast_piece(s->agreement, status, part * size));
        WEFT_TRY(wefti_fail_world(s->world,
                                  wefti_session_scatter(s, v, index, piece_count, &box, room)));
    }
    return WEFT_OK;
}

/* Lets the source write into the tensor of the only device. */
static weft_status fill_whole(const weft_session *s, const wefti_view *v, int index, int64_t first,
                              int64_t count, wefti_session_source *source, void *context) {
    int64_t size = (int64_t)weft_dtype_bytes(v->tensors[index].whole.dtype);
    const wefti_session_piece *piece = &s->pieces[0];
    wefti_mapping m;
    WEFT_TRY(wefti_device_map(piece->device, (char *)piece->data + first * size, count * size,
                              WEFTI_ACCESS_WRITE, &m));
    WEFT_TRY(wefti_device_unmap(&m, source(context, 0, count, m.data)));
    return wefti_host_copy_refresh(s, v, index, piece);
}

weft_status wefti_session_fill(weft_session *s, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &found));
    if (s->world) return fill_across(s, v, index, found, first, count, source, context);
    if (s->devices == 1) return fill_whole(s, v, index, first, count, source, context);
    return fill_pieces(s, v, index, found, first, count, source, context);
}

/* ---- only what this process has ---- */

/* A fill of one piece: elements of the whole tensor from `first` on. */
typedef struct own_fill {
    const weft_desc *whole;
    const wefti_session_piece *piece;
    int64_t first;
    wefti_session_source *source;
    void *context;
} own_fill;

/* Region `part` is contiguous in the piece. */
static weft_status fill_runs(const own_fill *f, const wefti_region *part) {
    int64_t size = (int64_t)weft_dtype_bytes(f->whole->dtype), begin, count;
    wefti_mapping m;
    wefti_region_span(part, &f->piece->box, f->whole->rank, &begin, &count);
    WEFT_TRY(wefti_device_map(f->piece->device, (char *)f->piece->data + begin * size, count * size,
                              WEFTI_ACCESS_WRITE, &m));
    wefti_region_runs run = wefti_region_runs_of(f->whole, part);
    weft_status status = WEFT_OK;
    while (status >= 0 && wefti_region_runs_next(&run))
        status =
            f->source(f->context, run.at - f->first, run.count, (char *)m.data + run.here * size);
    return wefti_device_unmap(&m, status);
}

/* In parts of at most FILL_BYTES, so that little of a device's memory is mapped at once. */
static weft_status fill_region(const own_fill *f, const wefti_region *region) {
    weft_desc local = *f->whole;
    int64_t most = FILL_BYTES / (int64_t)weft_dtype_bytes(f->whole->dtype), count;
    for (int d = 0; d < local.rank; d++) local.shape[d] = region->size[d];
    for (int64_t at = 0, all = weft_desc_elems(&local); at < all; at += count) {
        wefti_region part;
        count = wefti_slab(&local, at, all - at < most ? all - at : most, &part);
        for (int d = 0; d < local.rank; d++) part.begin[d] += region->begin[d];
        WEFT_TRY(fill_runs(f, &part));
    }
    return WEFT_OK;
}

weft_status wefti_session_fill_own(weft_session *s, int program, int index, int64_t first,
                                   int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &found));
    const weft_desc *whole = &v->tensors[index].whole;
    for (int32_t i = 0; i < found; i++) {
        own_fill f = {whole, &s->pieces[i], first, source, context};
        if (!f.piece->data) continue;
        for (int64_t at = first, end = first + count, n; at < end; at += n) {
            wefti_region slab, part;
            n = wefti_slab(whole, at, end - at, &slab);
            if (wefti_region_intersect(&slab, &f.piece->box, whole->rank, &part))
                WEFT_TRY(fill_region(&f, &part));
        }
        WEFT_TRY(wefti_host_copy_refresh(s, v, index, f.piece));
    }
    return WEFT_OK;
}
