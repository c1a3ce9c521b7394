/* Reading whole tensors from the pieces of all devices.
 *
 * Several processes: reading is collective and brings the tensor to every rank; collecting brings
 * it to rank 0. */
#include "layout/slab.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

/* Brings all pieces that count to every rank. The transfer is bound at the first read. */
static weft_status read_counted(weft_session *s, wefti_view *v, int index, int32_t count,
                                void *data) {
    const wefti_view_tensor *t = &v->tensors[index];
    const wefti_session_piece *mine = NULL;
    wefti_session_transfer c;
    for (int32_t i = 0; i < count; i++)
        if (s->pieces[i].counts && s->pieces[i].data && wefti_piece_bytes(&t->whole, &s->pieces[i]))
            mine = &s->pieces[i];
    if (!v->reads[index]) {
        WEFT_TRY(wefti_session_transfer_begin(s, t, WEFTI_TRANSFER_ALL_GATHER, &c));
        for (int32_t i = 0; i < count; i++)
            if (s->pieces[i].counts)
                c.what.have[s->pieces[i].rank] = wefti_region_1d(&t->whole, s->pieces[i].box);
        for (int32_t r = 0; r < s->devices; r++)
            c.what.want[r] = wefti_region_1d(&t->whole, wefti_whole_region(&t->whole));
        weft_status status = wefti_world_transfer_bind(s->agreement, &c.what, &v->reads[index]);
        wefti_free(c.boxes);
        WEFT_TRY(status);
    }
    wefti_mapping m = {.data = NULL};
    if (mine) WEFT_TRY(wefti_piece_map(&t->whole, mine, WEFTI_ACCESS_READ, &m));
    return wefti_device_unmap(
        &m, wefti_comm_run(v->reads[index], m.data, weft_desc_bytes(&t->whole) ? data : NULL));
}

/* Broadcasts one partial term. Every rank adds the terms itself, in the order of a single process,
 * so the sum has the same bits. */
static weft_status read_term(weft_session *s, const wefti_view_tensor *t,
                             const wefti_session_piece *piece, bool largest, void *data) {
    wefti_session_piece copy = *piece;
    wefti_session_transfer c;
    size_t bytes = (size_t)wefti_piece_bytes(&t->whole, piece);
    if (bytes == 0) return WEFT_OK;
    copy.data = wefti_alloc(bytes);
    WEFT_REQUIRE(copy.data, WEFT_E_NOMEM, "no memory to read '%s'", t->name);
    weft_status status = wefti_session_transfer_begin(s, t, WEFTI_TRANSFER_BROADCAST, &c);
    if (status >= 0) {
        wefti_region box = wefti_region_1d(&t->whole, piece->box);
        for (int32_t r = 0; r < s->devices; r++) {
            c.what.have[r] = r == piece->rank ? box : (wefti_region){{0}, {0}};
            c.what.want[r] = box;
        }
        wefti_mapping m;
        status = wefti_piece_map(&t->whole, piece, WEFTI_ACCESS_READ, &m);
        if (status >= 0)
            status = wefti_device_unmap(
                &m, wefti_world_transfer_run(s->agreement, &c.what, m.data, copy.data));
        wefti_free(c.boxes);
    }
    if (status >= 0) wefti_add_term(&t->whole, &copy, largest, data);
    wefti_free(copy.data);
    return status;
}

/* Copies a piece of this process that counts into the whole tensor `data`. */
static weft_status copy_piece(const weft_desc *whole, const wefti_session_piece *piece,
                              void *data) {
    wefti_region all = wefti_whole_region(whole);
    wefti_mapping m;
    WEFT_TRY(wefti_piece_map(whole, piece, WEFTI_ACCESS_READ, &m));
    wefti_region_copy(&piece->box, &piece->box, m.data, &all, data, whole->rank,
                      weft_dtype_bytes(whole->dtype));
    return wefti_device_unmap(&m, WEFT_OK);
}

/* Adds a term that lies in this process. */
static weft_status add_piece(const weft_desc *whole, const wefti_session_piece *piece, bool largest,
                             void *data) {
    wefti_session_piece term = *piece;
    wefti_mapping m;
    WEFT_TRY(wefti_piece_map(whole, piece, WEFTI_ACCESS_READ, &m));
    term.data = m.data;
    wefti_add_term(whole, &term, largest, data);
    return wefti_device_unmap(&m, WEFT_OK);
}

static weft_status try_read(weft_session *s, int program, const char *name, void *data,
                            size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(wefti_session_locate_together(s, program, name, data, bytes, &v, &index, &count));
    const wefti_view_tensor *t = &v->tensors[index];
    if (s->world) WEFT_TRY(wefti_fail_world(s->world, read_counted(s, v, index, count, data)));
    for (int32_t i = 0; i < count && !s->world; i++)
        if (pieces[i].counts) WEFT_TRY(copy_piece(&t->whole, &pieces[i], data));
    for (int32_t i = 0; i < count; i++) {
        if (!pieces[i].term) continue;
        int32_t r = pieces[i].rank;
        bool largest = v->sites[r].tensors[t->local[r]].layout.max != 0;
        if (s->world)
            WEFT_TRY(wefti_fail_world(s->world, read_term(s, t, &pieces[i], largest, data)));
        else
            WEFT_TRY(add_piece(&t->whole, &pieces[i], largest, data));
    }
    return WEFT_OK;
}

weft_status weft_session_read(weft_session *s, int program, const char *name, void *data,
                              size_t bytes) {
    return wefti_session_settle(s, try_read(s, program, name, data, bytes));
}

/* ---- collecting on rank 0 ---- */

/* A slab, elements that are contiguous in the whole tensor. */
static weft_status collect(weft_session *s, const wefti_view_tensor *t, int32_t pieces,
                           const wefti_region *slab, void *out) {
    const unsigned char *mine = NULL;
    int64_t mine_bytes = 0, size = (int64_t)weft_dtype_bytes(t->whole.dtype);
    wefti_device *device = NULL;
    wefti_mapping m;
    wefti_session_transfer c;
    WEFT_TRY(wefti_session_transfer_begin(s, t, WEFTI_TRANSFER_GATHER, &c));
    for (int32_t i = 0; i < pieces; i++) {
        const wefti_session_piece *p = &s->pieces[i];
        wefti_region part;
        if (!p->counts || !wefti_region_intersect(slab, &p->box, t->whole.rank, &part)) continue;
        c.what.have[p->rank] = wefti_region_1d(&t->whole, part);
        if (!p->data) continue;
        int64_t at = 0; /* contiguous there, as the slab is in the whole */
        for (int d = 0; d < t->whole.rank; d++)
            at = at * p->box.size[d] + part.begin[d] - p->box.begin[d];
        mine = (const unsigned char *)p->data + at * size;
        mine_bytes = wefti_region_elems(&part, t->whole.rank) * size;
        device = p->device;
    }
    c.what.want[0] = wefti_region_1d(&t->whole, *slab);
    weft_status status = wefti_device_map(device, mine, mine_bytes, WEFTI_ACCESS_READ, &m);
    if (status >= 0)
        status =
            wefti_device_unmap(&m, wefti_world_transfer_run(s->agreement, &c.what, m.data, out));
    wefti_free(c.boxes);
    return status;
}

weft_status wefti_session_collect(weft_session *s, int program, int index, int64_t first,
                                  int64_t count, void *out) {
    wefti_view *v;
    int32_t pieces;
    WEFT_TRY(wefti_session_view(s, program, &v));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &pieces));
    for (int64_t at = 0, part; at < count; at += part) {
        wefti_region slab;
        int64_t offset = at * (int64_t)weft_dtype_bytes(t->whole.dtype); /* `out`: of rank 0 only */
        part = wefti_slab(&t->whole, first + at, count - at, &slab);
        WEFT_TRY(wefti_fail_world(s->world,
                                  collect(s, t, pieces, &slab, out ? (char *)out + offset : NULL)));
    }
    return WEFT_OK;
}
