/* Feeding inputs: the whole tensor, or the rows that each rank has. */
#include <string.h>

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
    if (input) WEFT_TRY(wefti_session_scatter(s, v, index, count, &box, data));
    for (int32_t i = 0; i < count && input; i++)
        if (pieces[i].data) wefti_session_observe(s, t, &pieces[i]);
    WEFT_REQUIRE(input, WEFT_E_ARG, "'%s' is not an input", name);
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    return WEFT_OK;
}

weft_status weft_session_feed(weft_session *s, int program, const char *name, const void *data,
                              size_t bytes) {
    return wefti_session_settle(s, try_feed(s, program, name, data, bytes));
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

/* Brings the ranks' rows to the devices that need them. If every rank already has its own rows,
 * this is a local copy. */
static weft_status move_rows(weft_session *s, const wefti_view *v, int index, int32_t count,
                             const int64_t *begin, const void *data) {
    const wefti_view_tensor *t = &v->tensors[index];
    const wefti_session_piece *mine = NULL;
    wefti_mapping m = {.data = NULL};
    wefti_session_transfer c;
    WEFT_TRY(wefti_session_transfer_begin(s, t, WEFTI_TRANSFER_SEND, &c));
    for (int32_t r = 0; r < s->devices; r++) {
        if (begin[r] == begin[r + 1]) continue;
        c.what.have[r] = wefti_whole_region(&t->whole);
        c.what.have[r].begin[0] = begin[r];
        c.what.have[r].size[0] = begin[r + 1] - begin[r];
    }
    for (int32_t i = 0; i < count; i++) {
        if (s->pieces[i].data) mine = &s->pieces[i];
        if (wefti_region_elems(&s->pieces[i].box, t->whole.rank))
            c.what.want[s->pieces[i].rank] = s->pieces[i].box;
    }
    size_t all = (size_t)s->devices * sizeof *c.boxes;
    weft_status status = mine ? wefti_piece_map(&t->whole, mine, WEFTI_ACCESS_WRITE, &m) : WEFT_OK;
    if (status < 0) {
        wefti_free(c.boxes);
        return status;
    }
    if (memcmp(c.what.have, c.what.want, all) != 0)
        status = wefti_world_transfer_run(s->agreement, &c.what, data, m.data);
    else if (mine && wefti_piece_bytes(&t->whole, mine))
        memcpy(m.data, data, (size_t)wefti_piece_bytes(&t->whole, mine));
    status = wefti_device_unmap(&m, status);
    wefti_free(c.boxes);
    if (!mine || status < 0) return status;
    wefti_session_observe(s, t, mine);
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
