/* Feeding inputs: the whole tensor, or the rows that each rank has. */
#include <string.h>

#include "layout/slab.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

static weft_status try_feed(weft_session *s, int program, const char *name, const void *data,
                            size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(wefti_session_locate(s, program, name, data, bytes, &v, &index, &count));
    const wefti_view_tensor *t = &v->tensors[index];
    wefti_region box = wefti_whole_region(&t->whole);
    bool input = t->role == WEFTI_TENSOR_INPUT;
    if (input)
        WEFT_TRY(wefti_fail_world(s->world, wefti_session_scatter(s, v, index, count, &box, data)));
    for (int32_t i = 0; i < count && input; i++)
        if (wefti_home_exists(&pieces[i].home)) wefti_session_observe(s, &pieces[i]);
    WEFT_REQUIRE(input, WEFT_E_ARG, "'%s' is not an input", name);
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    return WEFT_OK;
}

weft_status weft_session_feed(weft_session *s, int program, const char *name, const void *data,
                              size_t bytes) {
    return wefti_session_settle(s, try_feed(s, program, name, data, bytes));
}

/* The ids that a device will have go to its caches. */
static weft_status tell_piece(const weft_session *s, const wefti_view *v, const weft_desc *whole,
                              const wefti_session_piece *piece, const int32_t *ids) {
    const wefti_region all = wefti_whole_region(whole);
    const int64_t count = wefti_region_elems(&piece->box, whole->rank);
    int32_t *here;
    if (!wefti_home_exists(&piece->home) || !count) return WEFT_OK;
    wefti_rank_device *device = wefti_workers_device(s->workers, piece->rank);
    if (!wefti_rank_device_caches(device)) return WEFT_OK;
    WEFT_NEW_ARRAY(here, int32_t, count);
    wefti_region_copy(&piece->box, &all, ids, &piece->box, here, whole->rank, sizeof *here);
    const weft_status status =
        wefti_rank_device_ahead(device, v->programs[piece->rank], piece->at, here, count);
    wefti_free(here);
    return status;
}

weft_status weft_session_feed_ahead(weft_session *s, int program, const char *name,
                                    const void *data, size_t bytes) {
    wefti_view *v;
    int index;
    int32_t count;
    WEFT_REQUIRE(s && name && data, WEFT_E_ARG,
                 "weft_session_feed_ahead needs a session, a name and data");
    WEFT_TRY(wefti_session_look_up(s, program, name, &v, &index));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT, WEFT_E_ARG, "'%s' is not an input", name);
    WEFT_REQUIRE(bytes == (size_t)weft_desc_bytes(&t->whole), WEFT_E_SHAPE,
                 "'%s' is %s, %lld bytes, not %zu", name, wefti_desc_text(&t->whole).text,
                 (long long)weft_desc_bytes(&t->whole), bytes);
    if (!s->workers || t->whole.dtype != WEFT_I32) return WEFT_OK;
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &count));
    for (int32_t i = 0; i < count; i++) WEFT_TRY(tell_piece(s, v, &t->whole, &s->pieces[i], data));
    return WEFT_OK;
}

/* ---- rows of each rank ---- */

static weft_status check_rows(const wefti_view_tensor *t, const void *data, size_t bytes,
                              int64_t *out_rows) {
    int64_t height = t->whole.rank ? t->whole.shape[0] : 1;
    int64_t row = height ? weft_desc_bytes(&t->whole) / height : 1;
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT && t->whole.rank > 0, WEFT_E_ARG,
                 "'%s' is not an input with rows", t->name);
    WEFT_REQUIRE(data || !bytes, WEFT_E_ARG, "the data of '%s' are NULL", t->name);
    WEFT_REQUIRE(row > 0 && bytes % (size_t)row == 0, WEFT_E_SHAPE,
                 "'%s' is %s: %zu bytes are not a whole number of its rows", t->name,
                 wefti_desc_text(&t->whole).text, bytes);
    *out_rows = (int64_t)bytes / row;
    return WEFT_OK;
}

/* Gathers how many rows each rank feeds. begin[r]: the first row of rank r, [ranks + 1]. All ranks
 * reach the same result. */
static weft_status agree_on_rows(weft_session *s, const wefti_view_tensor *t, int64_t rows,
                                 int64_t *begin) {
    int64_t height = t->whole.shape[0];
    WEFT_TRY(wefti_agree_records(s->agreement, &rows, sizeof rows, begin + 1));
    begin[0] = 0;
    for (int32_t r = 0; r < s->devices; r++) begin[r + 1] += begin[r];
    WEFT_REQUIRE(begin[s->devices] == height, WEFT_E_SHAPE,
                 "'%s' has %lld rows; the ranks give %lld of them together", t->name,
                 (long long)height, (long long)begin[s->devices]);
    return WEFT_OK;
}

/* One slab of the rows: from the ranks that feed it to the devices that need it. If every rank
 * already has its own rows, this is a local copy. `rows`: those that this rank feeds. `mine` NULL:
 * it needs none. */
static weft_status move_slab(const weft_session *s, const wefti_session_transfer *c,
                             const weft_desc *whole, const wefti_region *rows, const void *data,
                             const wefti_session_piece *mine) {
    const int64_t size = (int64_t)weft_dtype_bytes(whole->dtype);
    const wefti_region *have = &c->what.have[s->me], *want = &c->what.want[s->me];
    const bool gives = wefti_region_elems(have, whole->rank) > 0,
               takes = mine && wefti_region_elems(want, whole->rank) > 0;
    int64_t from = 0, to = 0, count = 0;
    wefti_mapping m = {.data = NULL};
    if (gives) wefti_region_span(have, rows, whole->rank, &from, &count);
    if (takes) wefti_region_span(want, &mine->box, whole->rank, &to, &count);
    const void *source = gives ? (const char *)data + from * size : NULL;
    if (!memcmp(c->what.have, c->what.want, (size_t)s->devices * sizeof *c->boxes))
        return takes ? wefti_home_write(&mine->home, to * size, count * size, source) : WEFT_OK;
    if (takes)
        WEFT_TRY(wefti_home_map(&mine->home, to * size, count * size, WEFTI_ACCESS_WRITE, &m));
    return wefti_home_unmap(&m, wefti_world_transfer_run(s->agreement, &c->what, source, m.data));
}

/* begin[r]: the first row that rank r feeds, [ranks + 1]. */
static weft_status move_slabs(const weft_session *s, const wefti_session_transfer *c,
                              const weft_desc *whole, int32_t count, const int64_t *begin,
                              const void *data, const wefti_session_piece *mine) {
    const int64_t most = WEFTI_HOME_BLOCK / (int64_t)weft_dtype_bytes(whole->dtype);
    wefti_region rows = wefti_whole_region(whole), slab, part;
    for (int64_t at = 0, all = weft_desc_elems(whole), elems; at < all; at += elems) {
        elems = wefti_slab(whole, at, all - at < most ? all - at : most, &slab);
        memset(c->boxes, 0, 2 * (size_t)s->devices * sizeof *c->boxes);
        for (int32_t r = 0; r < s->devices; r++) {
            rows.begin[0] = begin[r];
            rows.size[0] = begin[r + 1] - begin[r];
            if (wefti_region_intersect(&slab, &rows, whole->rank, &part)) c->what.have[r] = part;
        }
        for (int32_t i = 0; i < count; i++)
            if (wefti_region_intersect(&slab, &s->pieces[i].box, whole->rank, &part))
                c->what.want[s->pieces[i].rank] = part;
        rows.begin[0] = begin[s->me];
        rows.size[0] = begin[s->me + 1] - begin[s->me];
        WEFT_TRY(move_slab(s, c, whole, &rows, data, mine));
    }
    return WEFT_OK;
}

/* Brings the ranks' rows to the devices that need them. */
static weft_status move_rows(weft_session *s, const wefti_view *v, int index, int32_t count,
                             const int64_t *begin, const void *data) {
    const wefti_view_tensor *t = &v->tensors[index];
    const wefti_session_piece *mine = NULL;
    wefti_session_transfer c;
    WEFT_TRY(wefti_session_transfer_begin(s, t, WEFTI_TRANSFER_SEND, &c));
    for (int32_t i = 0; i < count; i++)
        if (wefti_home_exists(&s->pieces[i].home)) mine = &s->pieces[i];
    weft_status status = move_slabs(s, &c, &t->whole, count, begin, data, mine);
    wefti_free(c.boxes);
    if (!mine || status < 0) return status;
    wefti_session_observe(s, mine);
    return wefti_host_copy_refresh(s, v, index, mine);
}

weft_status weft_session_rows(const weft_session *s, int program, const char *name,
                              int64_t *out_first, int64_t *out_rows) {
    wefti_view *v;
    int index;
    WEFT_REQUIRE(s && name && out_first && out_rows, WEFT_E_ARG,
                 "weft_session_rows needs a session, a name and places for its results");
    WEFT_TRY(wefti_session_look_up(s, program, name, &v, &index));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT && t->whole.rank > 0, WEFT_E_ARG,
                 "'%s' is not an input with rows", name);
    int64_t height = t->whole.shape[0], ranks = s->world ? s->devices : 1;
    int64_t share = (height + ranks - 1) / ranks, first = share * (s->world ? s->me : 0);
    if (first > height) first = height;
    *out_first = first;
    *out_rows = first + share < height ? share : height - first;
    return WEFT_OK;
}

static weft_status try_feed_rows(weft_session *s, int program, const char *name, const void *data,
                                 size_t bytes) {
    if (!s->world) return try_feed(s, program, name, data, bytes);
    wefti_view *v = NULL;
    int index = 0;
    int32_t count = 0;
    int64_t rows = 0, *begin = NULL;
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = wefti_session_look_up(s, program, name, &v, &index);
    if (status >= 0) status = check_rows(&v->tensors[index], data, bytes, &rows);
    if (status >= 0) status = wefti_session_pieces(s, program, index, s->pieces, &count);
    if (status >= 0 && !(begin = wefti_calloc((size_t)s->devices + 1, sizeof *begin)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to feed '%s'", name);
    status = wefti_agree(s->agreement, status);
    if (status >= 0) status = agree_on_rows(s, &v->tensors[index], rows, begin);
    if (status >= 0)
        status = wefti_fail_world(s->world, move_rows(s, v, index, count, begin, data));
    if (status >= 0) wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    wefti_free(begin);
    return status;
}

weft_status weft_session_feed_rows(weft_session *s, int program, const char *name, const void *data,
                                   size_t bytes) {
    return wefti_session_settle(s, try_feed_rows(s, program, name, data, bytes));
}
