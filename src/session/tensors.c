/* Helpers of the calls on tensors: see tensors.h. */
#include "session/tensors.h"

#include <math.h>

#include "graph/graph.h"

weft_status wefti_session_start_in_world(weft_session *s) {
    return s->world ? wefti_session_start(s) : WEFT_OK;
}

weft_status wefti_session_locate(weft_session *s, int program, const char *name, const void *data,
                                 size_t bytes, wefti_view **out_view, int *out_index,
                                 int32_t *out_count) {
    WEFT_TRY(wefti_session_start_in_world(s));
    WEFT_TRY(wefti_session_look_up(s, program, name, out_view, out_index));
    const weft_desc *whole = &(*out_view)->tensors[*out_index].whole;
    WEFT_REQUIRE(data || bytes == 0, WEFT_E_ARG, "the data of '%s' are NULL", name);
    WEFT_REQUIRE(bytes == (size_t)weft_desc_bytes(whole), WEFT_E_SHAPE,
                 "'%s' is %s, %lld bytes, not %zu", name, wefti_desc_text(whole).text,
                 (long long)weft_desc_bytes(whole), bytes);
    return wefti_session_pieces(s, program, *out_index, s->pieces, out_count);
}

weft_status wefti_session_locate_together(weft_session *s, int program, const char *name,
                                          const void *data, size_t bytes, wefti_view **out_view,
                                          int *out_index, int32_t *out_count) {
    weft_status status =
        wefti_session_locate(s, program, name, data, bytes, out_view, out_index, out_count);
    return s->world ? wefti_agree(s->agreement, status) : status;
}

wefti_region wefti_whole_region(const weft_desc *whole) {
    wefti_region box = {{0}, {0}};
    for (int d = 0; d < whole->rank; d++) box.size[d] = whole->shape[d];
    return box;
}

int64_t wefti_piece_bytes(const weft_desc *whole, const wefti_session_piece *piece) {
    return wefti_region_elems(&piece->box, whole->rank) * (int64_t)weft_dtype_bytes(whole->dtype);
}

weft_status wefti_piece_map(const weft_desc *whole, const wefti_session_piece *piece,
                            wefti_access access, wefti_mapping *out) {
    return wefti_device_map(piece->device, piece->data, wefti_piece_bytes(whole, piece), access,
                            out);
}

/* Copies the part of `data` that a piece has. Only the elements of the piece from the first to the
 * last one of the part are mapped. */
static weft_status write_part(const weft_desc *whole, const wefti_session_piece *piece,
                              const wefti_region *part, const wefti_region *box, const void *data) {
    int64_t size = (int64_t)weft_dtype_bytes(whole->dtype), first, count;
    wefti_region_span(part, &piece->box, whole->rank, &first, &count);
    bool all = wefti_region_elems(part, whole->rank) == count;
    wefti_mapping m;
    WEFT_TRY(wefti_device_map(piece->device, (char *)piece->data + first * size, count * size,
                              all ? WEFTI_ACCESS_WRITE : WEFTI_ACCESS_UPDATE, &m));
    void *begin = (void *)((uintptr_t)m.data - (uintptr_t)(first * size));
    wefti_region_copy(part, box, data, &piece->box, begin, whole->rank, (size_t)size);
    return wefti_device_unmap(&m, WEFT_OK);
}

weft_status wefti_session_scatter(const weft_session *s, const wefti_view *view, int index,
                                  int32_t count, const wefti_region *box, const void *data) {
    const weft_desc *whole = &view->tensors[index].whole;
    for (int32_t i = 0; i < count; i++) {
        const wefti_session_piece *piece = &s->pieces[i];
        wefti_region part;
        if (!piece->data || !wefti_region_intersect(box, &piece->box, whole->rank, &part)) continue;
        WEFT_TRY(write_part(whole, piece, &part, box, data));
        WEFT_TRY(wefti_host_copy_refresh(s, view, index, piece));
    }
    return WEFT_OK;
}

void wefti_session_observe(const weft_session *s, const wefti_view_tensor *t,
                           const wefti_session_piece *piece) {
    wefti_rank_device_observe(wefti_workers_device(s->workers, piece->rank), piece->home,
                              wefti_piece_bytes(&t->whole, piece));
}

weft_status wefti_session_transfer_begin(const weft_session *s, const wefti_view_tensor *t,
                                         wefti_transfer_kind kind, wefti_session_transfer *out) {
    WEFT_NEW_ARRAY(out->boxes, wefti_region, 2 * s->devices);
    out->what = (wefti_world_transfer){
        kind,       t->whole.dtype,          t->whole.rank ? t->whole.rank : 1,
        out->boxes, out->boxes + s->devices, t->name};
    return WEFT_OK;
}

wefti_region wefti_region_1d(const weft_desc *whole, wefti_region box) {
    if (whole->rank == 0) box.size[0] = 1;
    return box;
}

void wefti_add_term(const weft_desc *whole, const wefti_session_piece *piece, bool largest,
                    void *out) {
    int64_t strides[WEFT_MAX_RANK], elems = wefti_region_elems(&piece->box, whole->rank);
    wefti_strides(whole, strides);
    for (int64_t e = 0; e < elems; e++) {
        int64_t rest = e, at = 0;
        for (int d = whole->rank - 1; d >= 0; d--) {
            at += (piece->box.begin[d] + rest % piece->box.size[d]) * strides[d];
            rest /= piece->box.size[d];
        }
        double a = wefti_load(whole->dtype, out, at), b = wefti_load(whole->dtype, piece->data, e);
        wefti_store(whole->dtype, out, at, largest ? fmax(a, b) : a + b);
    }
}
