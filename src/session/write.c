/* Writing whole tensors: from the caller's memory, or from a source that is asked piece by piece.
 *
 * Several processes: both are collective. Writing takes the same whole tensor on every rank;
 * filling asks rank 0's source only. */
#include "layout/runs.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

static weft_status try_write(weft_session *s, int program, const char *name, const void *data,
                             size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    bool terms = false;
    WEFT_TRY(wefti_session_locate_together(s, program, name, data, bytes, &v, &index, &count));
    for (int32_t i = 0; i < count; i++) terms |= pieces[i].term;
    wefti_region box = wefti_whole_region(&v->tensors[index].whole);
    wefti_session_changed(s, v->tensors[index].role);
    if (!terms)
        WEFT_TRY(wefti_fail_world(s->world, wefti_session_scatter(s, v, index, count, &box, data)));
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    WEFT_REQUIRE(!terms, WEFT_E_ARG,
                 "'%s' is a sum of terms on several devices: it can be read, not written", name);
    return WEFT_OK;
}

weft_status weft_session_write(weft_session *s, int program, const char *name, const void *data,
                               size_t bytes) {
    return wefti_session_settle(s, try_write(s, program, name, data, bytes));
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
    const int64_t size = (int64_t)weft_dtype_bytes(v->tensors[index].whole.dtype),
                  most = WEFTI_HOME_BLOCK / size;
    const wefti_session_piece *piece = &s->pieces[0];
    for (int64_t at = 0, part; at < count; at += part) {
        wefti_mapping m;
        part = count - at < most ? count - at : most;
        WEFT_TRY(
            wefti_home_map(&piece->home, (first + at) * size, part * size, WEFTI_ACCESS_WRITE, &m));
        WEFT_TRY(wefti_home_unmap(&m, source(context, at, part, m.data)));
    }
    return wefti_host_copy_refresh(s, v, index, piece);
}

weft_status wefti_session_fill(weft_session *s, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, program, &v));
    wefti_session_changed(s, v->tensors[index].role);
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &found));
    if (s->world) return fill_across(s, v, index, found, first, count, source, context);
    if (s->devices == 1) return fill_whole(s, v, index, first, count, source, context);
    return fill_pieces(s, v, index, found, first, count, source, context);
}

/* ---- only what this process has ---- */

/* Fills the runs of a block. `first` is the first element of the fill in the whole tensor. */
static weft_status fill_block(const wefti_session_piece *piece, const wefti_piece_blocks *b,
                              int64_t first, wefti_session_source *source, void *context) {
    int64_t size = (int64_t)weft_dtype_bytes(b->whole->dtype);
    wefti_mapping m;
    WEFT_TRY(wefti_home_map(&piece->home, b->here * size, b->count * size, WEFTI_ACCESS_WRITE, &m));
    wefti_region_runs run = wefti_region_runs_of(b->whole, &b->block);
    weft_status status = WEFT_OK;
    while (status >= 0 && wefti_region_runs_next(&run))
        status = source(context, run.at - first, run.count, (char *)m.data + run.here * size);
    return wefti_home_unmap(&m, status);
}

weft_status wefti_session_fill_pieces(weft_session *s, int program, int index,
                                      const wefti_session_pieces_of *to, int64_t first,
                                      int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    WEFT_TRY(wefti_session_view(s, program, &v));
    wefti_session_changed(s, v->tensors[index].role);
    int64_t most = FILL_BYTES / (int64_t)weft_dtype_bytes(to->whole->dtype);
    for (int32_t i = 0; i < to->count; i++) {
        const wefti_session_piece *piece = &to->pieces[i];
        if (!wefti_home_exists(&piece->home)) continue;
        wefti_piece_blocks b = wefti_piece_blocks_of(to->whole, &piece->box, first, count, most);
        while (wefti_piece_blocks_next(&b)) WEFT_TRY(fill_block(piece, &b, first, source, context));
        WEFT_TRY(wefti_host_copy_refresh(s, v, index, piece));
    }
    return WEFT_OK;
}

weft_status wefti_session_fill_own(weft_session *s, int program, int index, int64_t first,
                                   int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    wefti_session_pieces_of to = {.pieces = s->pieces};
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &to.count));
    for (int32_t i = 0; i < to.count; i++)
        if (wefti_home_is_lent(&s->pieces[i].home)) s->pieces[i].home.arena = NULL;
    to.whole = &v->tensors[index].whole;
    return wefti_session_fill_pieces(s, program, index, &to, first, count, source, context);
}
