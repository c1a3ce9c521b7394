/* Helpers of the calls on tensors: see tensors.h. */
#include "session/tensors.h"

#include <math.h>

#include "comm/home_region.h"
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

weft_status wefti_session_scatter(const weft_session *s, const wefti_view *view, int index,
                                  int32_t count, const wefti_region *box, const void *data) {
    const weft_desc *whole = &view->tensors[index].whole;
    for (int32_t i = 0; i < count; i++) {
        const wefti_session_piece *piece = &s->pieces[i];
        wefti_region part;
        if (!wefti_home_exists(&piece->home) ||
            !wefti_region_intersect(box, &piece->box, whole->rank, &part))
            continue;
        WEFT_TRY(wefti_home_write_region(&piece->home, &piece->box, whole, &part, box, data));
        WEFT_TRY(wefti_host_copy_refresh(s, view, index, piece));
    }
    return WEFT_OK;
}

void wefti_session_observe(const weft_session *s, const wefti_session_piece *piece) {
    wefti_rank_device_observe(wefti_workers_device(s->workers, piece->rank), piece->at,
                              piece->home.bytes);
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

void wefti_add_terms(const weft_desc *whole, const wefti_region *part, const void *terms,
                     bool largest, const wefti_region *box, void *out) {
    for (int64_t e = 0, elems = wefti_region_elems(part, whole->rank); e < elems; e++) {
        int64_t rest = e, at = 0, stride = 1;
        for (int d = whole->rank - 1; d >= 0; d--) {
            at += (part->begin[d] + rest % part->size[d] - box->begin[d]) * stride;
            stride *= box->size[d];
            rest /= part->size[d];
        }
        double a = wefti_load(whole->dtype, out, at), b = wefti_load(whole->dtype, terms, e);
        wefti_store(whole->dtype, out, at, largest ? fmax(a, b) : a + b);
    }
}
