/* Tensors of a session: whole to those who feed, read and write them, in pieces where they lie.
 *
 * Across processes all of these calls are collective. What is fed and written is known everywhere,
 * and each takes its part; what is read goes from where it lies to everyone; what is filled comes
 * from rank 0, and what is collected goes there. */
#include <math.h>
#include <string.h>

#include "graph/graph.h"
#include "layout/slab.h"
#include "session/parts.h"

/* The first call that needs the devices' memory is collective, also where it is a wrong one. */
static weft_status begin_together(weft_session *s) {
    return s->world ? wefti_session_start(s) : WEFT_OK;
}

/* A tensor of the right size; its pieces are in s->pieces. */
static weft_status locate(weft_session *s, int program, const char *name, const void *data,
                          size_t bytes, wefti_view **out_view, int *out_index, int32_t *out_count) {
    WEFT_TRY(begin_together(s));
    WEFT_TRY(wefti_session_look_up(s, program, name, out_view, out_index));
    const weft_desc *whole = &(*out_view)->tensors[*out_index].whole;
    WEFT_REQUIRE(data || bytes == 0, WEFT_E_ARG, "the data of '%s' are NULL", name);
    WEFT_REQUIRE(bytes == (size_t)weft_desc_bytes(whole), WEFT_E_SHAPE,
                 "'%s' is %s, %lld bytes, not %zu", name, wefti_desc_text(whole).text,
                 (long long)weft_desc_bytes(whole), bytes);
    return wefti_session_pieces(s, program, *out_index, s->pieces, out_count);
}

/* The same for what all wait for each other in, or what is to be so everywhere: a call that is
 * wrong on one rank is so on all of them, before anything is done. */
static weft_status locate_together(weft_session *s, int program, const char *name, const void *data,
                                   size_t bytes, wefti_view **out_view, int *out_index,
                                   int32_t *out_count) {
    weft_status status = locate(s, program, name, data, bytes, out_view, out_index, out_count);
    return s->world ? wefti_agree(s->agreement, status) : status;
}

static wefti_region box_of(const weft_desc *whole) {
    wefti_region box = {{0}, {0}};
    for (int d = 0; d < whole->rank; d++) box.size[d] = whole->shape[d];
    return box;
}

/* The part of `box` that each device here has, out of `data`, which is the box. */
static void scatter(const weft_desc *whole, const wefti_session_piece *pieces, int32_t count,
                    const wefti_region *box, const void *data) {
    for (int32_t i = 0; i < count; i++) {
        wefti_region part;
        if (pieces[i].data && wefti_region_intersect(box, &pieces[i].box, whole->rank, &part))
            wefti_region_copy(&part, box, data, &pieces[i].box, pieces[i].data, whole->rank,
                              weft_dtype_bytes(whole->dtype));
    }
}

static int64_t piece_bytes(const weft_desc *whole, const wefti_session_piece *piece) {
    return wefti_region_elems(&piece->box, whole->rank) * (int64_t)weft_dtype_bytes(whole->dtype);
}

/* What is fed is used. */
static void observe(const weft_session *s, const wefti_view_tensor *t,
                    const wefti_session_piece *piece) {
    wefti_rank_device_observe(wefti_workers_device(s->workers, piece->rank), piece->data,
                              piece_bytes(&t->whole, piece));
}

weft_status weft_session_feed(weft_session *s, int program, const char *name, const void *data,
                              size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(locate(s, program, name, data, bytes, &v, &index, &count));
    const wefti_view_tensor *t = &v->tensors[index];
    wefti_region box = box_of(&t->whole);
    bool input = t->role == WEFTI_TENSOR_INPUT;
    if (input) scatter(&t->whole, pieces, count, &box, data);
    for (int32_t i = 0; i < count && input; i++)
        if (pieces[i].data) observe(s, t, &pieces[i]);
    WEFT_REQUIRE(input, WEFT_E_ARG, "'%s' is no input", name);
    wefti_view_give(s, v, index, WEFTI_GIVEN_ONCE);
    return WEFT_OK;
}

/* ---- the part that lies here ---- */

static weft_status local_piece(weft_session *s, int program, const char *name,
                               wefti_view **out_view, int *out_index, wefti_session_piece *out) {
    int32_t count;
    WEFT_TRY(begin_together(s));
    WEFT_TRY(wefti_session_look_up(s, program, name, out_view, out_index));
    WEFT_REQUIRE(s->world || s->devices == 1, WEFT_E_ARG,
                 "'%s' lies on %d devices of this process: only whole tensors can be reached", name,
                 s->devices);
    WEFT_TRY(wefti_session_pieces(s, program, *out_index, s->pieces, &count));
    *out = (wefti_session_piece){.rank = s->me};
    for (int32_t i = 0; i < count; i++)
        if (s->pieces[i].data) *out = s->pieces[i];
    return WEFT_OK;
}

weft_status weft_session_local(weft_session *s, int program, const char *name,
                               weft_session_part *out) {
    wefti_session_piece piece;
    wefti_view *v;
    int index;
    WEFT_TRY(local_piece(s, program, name, &v, &index, &piece));
    const wefti_view_tensor *t = &v->tensors[index];
    *out = (weft_session_part){.data = piece.data};
    wefti_view_give(s, v, index, WEFTI_GIVEN_LENT);
    if (!piece.data) return WEFT_OK;
    out->bytes = piece_bytes(&t->whole, &piece);
    for (int d = 0; d < t->whole.rank; d++) {
        out->begin[d] = piece.box.begin[d];
        out->size[d] = piece.box.size[d];
    }
    if (t->role == WEFTI_TENSOR_INPUT) observe(s, t, &piece);
    return WEFT_OK;
}

weft_status weft_session_feed_local(weft_session *s, int program, const char *name,
                                    const void *data, size_t bytes) {
    wefti_session_piece piece;
    wefti_view *v;
    int index;
    WEFT_TRY(local_piece(s, program, name, &v, &index, &piece));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT, WEFT_E_ARG, "'%s' is no input", name);
    int64_t here = piece.data ? piece_bytes(&t->whole, &piece) : 0;
    weft_desc part = t->whole;
    memcpy(part.shape, piece.box.size, sizeof part.shape);
    WEFT_REQUIRE(bytes == (size_t)here, WEFT_E_SHAPE,
                 "the part of '%s' on this device is %s, %lld bytes, not %zu", name,
                 wefti_desc_text(&part).text, (long long)here, bytes);
    WEFT_REQUIRE(data || bytes == 0, WEFT_E_ARG, "the data of '%s' are NULL", name);
    wefti_view_give(s, v, index, WEFTI_GIVEN_ONCE);
    if (bytes == 0) return WEFT_OK;
    memcpy(piece.data, data, bytes);
    observe(s, t, &piece);
    return WEFT_OK;
}

/* ---- terms ---- */

/* out += piece, or the larger of both, row by row. */
static void add_term(const weft_desc *whole, const wefti_session_piece *piece, bool largest,
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

/* ---- across processes ---- */

static wefti_region none(void) {
    return (wefti_region){{0}, {0}};
}

/* Boxes of one transfer over all ranks; scalars have one dimension. */
typedef struct crossing {
    wefti_across across;
    wefti_region *boxes; /* [2 * devices] */
} crossing;

static weft_status begin_crossing(const weft_session *s, const wefti_view_tensor *t,
                                  wefti_transfer_kind kind, crossing *out) {
    WEFT_NEW_ARRAY(out->boxes, wefti_region, 2 * s->devices);
    out->across =
        (wefti_across){kind,       t->whole.dtype,          t->whole.rank ? t->whole.rank : 1,
                       out->boxes, out->boxes + s->devices, t->name};
    return WEFT_OK;
}

static wefti_region one_dimension_at_least(const weft_desc *whole, wefti_region box) {
    if (whole->rank == 0) box.size[0] = 1;
    return box;
}

/* All that counts, from where it lies to everyone. */
static weft_status read_counted(weft_session *s, wefti_view *v, int index, int32_t count,
                                void *data) {
    const wefti_view_tensor *t = &v->tensors[index];
    const void *mine = NULL;
    crossing c;
    for (int32_t i = 0; i < count; i++)
        if (s->pieces[i].counts && s->pieces[i].data && piece_bytes(&t->whole, &s->pieces[i]))
            mine = s->pieces[i].data;
    if (!v->reads[index]) {
        WEFT_TRY(begin_crossing(s, t, WEFTI_TRANSFER_ALL_GATHER, &c));
        for (int32_t i = 0; i < count; i++)
            if (s->pieces[i].counts)
                c.across.have[s->pieces[i].rank] =
                    one_dimension_at_least(&t->whole, s->pieces[i].box);
        for (int32_t r = 0; r < s->devices; r++)
            c.across.want[r] = one_dimension_at_least(&t->whole, box_of(&t->whole));
        weft_status status = wefti_across_bind(s->agreement, &c.across, &v->reads[index]);
        wefti_free(c.boxes);
        WEFT_TRY(status);
    }
    return wefti_comm_run(v->reads[index], mine, weft_desc_bytes(&t->whole) ? data : NULL);
}

/* One term to everyone, who adds it: the same additions in the same order as in one process. */
static weft_status read_term(weft_session *s, const wefti_view_tensor *t,
                             const wefti_session_piece *piece, bool largest, void *data) {
    wefti_session_piece copy = *piece;
    crossing c;
    size_t bytes = (size_t)piece_bytes(&t->whole, piece);
    if (bytes == 0) return WEFT_OK;
    copy.data = wefti_alloc(bytes);
    WEFT_REQUIRE(copy.data, WEFT_E_NOMEM, "no memory to read '%s'", t->name);
    weft_status status = begin_crossing(s, t, WEFTI_TRANSFER_BROADCAST, &c);
    if (status >= 0) {
        wefti_region box = one_dimension_at_least(&t->whole, piece->box);
        for (int32_t r = 0; r < s->devices; r++) {
            c.across.have[r] = r == piece->rank ? box : none();
            c.across.want[r] = box;
        }
        status = wefti_across_run(s->agreement, &c.across, piece->data, copy.data);
        wefti_free(c.boxes);
    }
    if (status >= 0) add_term(&t->whole, &copy, largest, data);
    wefti_free(copy.data);
    return status;
}

/* Elements [first, first + count), a box of the whole, to rank 0. */
static weft_status collect(weft_session *s, const wefti_view_tensor *t, int32_t pieces,
                           const wefti_region *slab, void *out) {
    const unsigned char *mine = NULL;
    crossing c;
    WEFT_TRY(begin_crossing(s, t, WEFTI_TRANSFER_GATHER, &c));
    for (int32_t i = 0; i < pieces; i++) {
        const wefti_session_piece *p = &s->pieces[i];
        wefti_region part;
        if (!p->counts || !wefti_region_intersect(slab, &p->box, t->whole.rank, &part)) continue;
        c.across.have[p->rank] = one_dimension_at_least(&t->whole, part);
        if (!p->data) continue;
        int64_t at = 0; /* contiguous there, as the slab is in the whole */
        for (int d = 0; d < t->whole.rank; d++)
            at = at * p->box.size[d] + part.begin[d] - p->box.begin[d];
        mine = (const unsigned char *)p->data + at * (int64_t)weft_dtype_bytes(t->whole.dtype);
    }
    c.across.want[0] = one_dimension_at_least(&t->whole, *slab);
    weft_status status = wefti_across_run(s->agreement, &c.across, mine, out);
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
        WEFT_TRY(wefti_give_up(s->world,
                               collect(s, t, pieces, &slab, out ? (char *)out + offset : NULL)));
    }
    return WEFT_OK;
}

/* ---- rows of each rank ---- */

static weft_status check_rows(const wefti_view_tensor *t, const void *data, size_t bytes,
                              int64_t *out_rows) {
    int64_t height = t->whole.rank ? t->whole.shape[0] : 1;
    int64_t row = height ? weft_desc_bytes(&t->whole) / height : 1;
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT && t->whole.rank > 0, WEFT_E_ARG,
                 "'%s' is no input with rows", t->name);
    WEFT_REQUIRE(data || !bytes, WEFT_E_ARG, "the data of '%s' are NULL", t->name);
    WEFT_REQUIRE(row > 0 && bytes % (size_t)row == 0, WEFT_E_SHAPE,
                 "'%s' is %s: %zu bytes are no rows of it", t->name,
                 wefti_desc_text(&t->whole).text, bytes);
    *out_rows = (int64_t)bytes / row;
    return WEFT_OK;
}

/* Where the rows of all begin, [ranks + 1]; the same verdict everywhere. */
static weft_status agree_on_rows(weft_session *s, const wefti_view_tensor *t, int64_t rows,
                                 int64_t *begin) {
    int64_t height = t->whole.shape[0];
    WEFT_TRY(wefti_agree_cards(s->agreement, &rows, sizeof rows, begin + 1));
    begin[0] = 0;
    for (int32_t r = 0; r < s->devices; r++) begin[r + 1] += begin[r];
    WEFT_REQUIRE(begin[s->devices] == height, WEFT_E_SHAPE,
                 "'%s' has %lld rows; the ranks give %lld of them together", t->name,
                 (long long)height, (long long)begin[s->devices]);
    return WEFT_OK;
}

static weft_status move_rows(weft_session *s, const wefti_view_tensor *t, int32_t count,
                             const int64_t *begin, const void *data) {
    const wefti_session_piece *mine = NULL;
    crossing c;
    WEFT_TRY(begin_crossing(s, t, WEFTI_TRANSFER_SEND, &c));
    for (int32_t r = 0; r < s->devices; r++) {
        if (begin[r] == begin[r + 1]) continue;
        c.across.have[r] = box_of(&t->whole);
        c.across.have[r].begin[0] = begin[r];
        c.across.have[r].size[0] = begin[r + 1] - begin[r];
    }
    for (int32_t i = 0; i < count; i++) {
        if (s->pieces[i].data) mine = &s->pieces[i];
        if (wefti_region_elems(&s->pieces[i].box, t->whole.rank))
            c.across.want[s->pieces[i].rank] = s->pieces[i].box;
    }
    size_t all = (size_t)s->devices * sizeof *c.boxes;
    weft_status status = WEFT_OK;
    if (memcmp(c.across.have, c.across.want, all) != 0)
        status = wefti_across_run(s->agreement, &c.across, data, mine ? mine->data : NULL);
    else if (mine && piece_bytes(&t->whole, mine))
        memcpy(mine->data, data, (size_t)piece_bytes(&t->whole, mine));
    wefti_free(c.boxes);
    if (mine && status >= 0) observe(s, t, mine);
    return status;
}

weft_status weft_session_feed_rows(weft_session *s, int program, const char *name, const void *data,
                                   size_t bytes) {
    if (!s->world) return weft_session_feed(s, program, name, data, bytes);
    wefti_view *v = NULL;
    int index = 0;
    int32_t count = 0;
    int64_t rows = 0, *begin = NULL;
    WEFT_TRY(begin_together(s));
    weft_status status = wefti_session_look_up(s, program, name, &v, &index);
    if (status >= 0) status = check_rows(&v->tensors[index], data, bytes, &rows);
    if (status >= 0) status = wefti_session_pieces(s, program, index, s->pieces, &count);
    if (status >= 0 && !(begin = wefti_calloc((size_t)s->devices + 1, sizeof *begin)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to feed '%s'", name);
    status = wefti_agree(s->agreement, status);
    if (status >= 0) status = agree_on_rows(s, &v->tensors[index], rows, begin);
    if (status >= 0)
        status = wefti_give_up(s->world, move_rows(s, &v->tensors[index], count, begin, data));
    if (status >= 0) wefti_view_give(s, v, index, WEFTI_GIVEN_ONCE);
    wefti_free(begin);
    return status;
}

/* ---- reading ---- */

weft_status weft_session_read(weft_session *s, int program, const char *name, void *data,
                              size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(locate_together(s, program, name, data, bytes, &v, &index, &count));
    const wefti_view_tensor *t = &v->tensors[index];
    wefti_region box = box_of(&t->whole);
    if (s->world) WEFT_TRY(wefti_give_up(s->world, read_counted(s, v, index, count, data)));
    for (int32_t i = 0; i < count && !s->world; i++)
        if (pieces[i].counts)
            wefti_region_copy(&pieces[i].box, &pieces[i].box, pieces[i].data, &box, data,
                              t->whole.rank, weft_dtype_bytes(t->whole.dtype));
    for (int32_t i = 0; i < count; i++) {
        if (!pieces[i].term) continue;
        int32_t r = pieces[i].rank;
        bool largest = v->sites[r].tensors[t->local[r]].layout.max != 0;
        if (s->world)
            WEFT_TRY(wefti_give_up(s->world, read_term(s, t, &pieces[i], largest, data)));
        else
            add_term(&t->whole, &pieces[i], largest, data);
    }
    return WEFT_OK;
}

/* ---- writing ---- */

weft_status weft_session_write(weft_session *s, int program, const char *name, const void *data,
                               size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    bool terms = false;
    WEFT_TRY(locate_together(s, program, name, data, bytes, &v, &index, &count));
    for (int32_t i = 0; i < count; i++) terms |= pieces[i].term;
    wefti_region box = box_of(&v->tensors[index].whole);
    if (!terms) scatter(&v->tensors[index].whole, pieces, count, &box, data);
    wefti_view_give(s, v, index, WEFTI_GIVEN_ONCE);
    WEFT_REQUIRE(!terms, WEFT_E_ARG,
                 "'%s' is a sum of terms on several devices: it can be read, not written", name);
    return WEFT_OK;
}

enum { FILL_BYTES = 1 << 20 };

/* Through a buffer, in boxes that are contiguous in the whole. */
static weft_status fill_pieces(const weft_desc *whole, const wefti_session_piece *pieces,
                               int32_t piece_count, int64_t first, int64_t count,
                               wefti_session_source *source, void *context) {
    int64_t most = FILL_BYTES / (int64_t)weft_dtype_bytes(whole->dtype), part;
    weft_status status = WEFT_OK;
    void *buffer = wefti_alloc(FILL_BYTES);
    WEFT_REQUIRE(buffer, WEFT_E_NOMEM, "no memory to cut a tensor into pieces");
    for (int64_t at = 0; at < count && status == WEFT_OK; at += part) {
        wefti_region box;
        part = wefti_slab(whole, first + at, count - at < most ? count - at : most, &box);
        status = source(context, at, part, buffer);
        if (status == WEFT_OK) scatter(whole, pieces, piece_count, &box, buffer);
    }
    wefti_free(buffer);
    return status;
}

/* Rank 0's source, through the agreement's room: the others need no file that they can reach. */
static weft_status fill_across(weft_session *s, const weft_desc *whole, int32_t piece_count,
                               int64_t first, int64_t count, wefti_session_source *source,
                               void *context) {
    int64_t size = (int64_t)weft_dtype_bytes(whole->dtype), most = WEFTI_SPREAD_BYTES / size, part;
    void *room;
    WEFT_TRY(wefti_spread_room(s->agreement, &room));
    for (int64_t at = 0; at < count; at += part) {
        wefti_region box;
        part = wefti_slab(whole, first + at, count - at < most ? count - at : most, &box);
        weft_status status = s->me == 0 ? source(context, at, part, room) : WEFT_OK;
        WEFT_TRY(wefti_spread(s->agreement, status, part * size));
        scatter(whole, s->pieces, piece_count, &box, room);
    }
    return WEFT_OK;
}

weft_status wefti_session_fill(weft_session *s, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, program, &v));
    const weft_desc *whole = &v->tensors[index].whole;
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &found));
    if (s->world) return fill_across(s, whole, found, first, count, source, context);
    if (s->devices == 1)
        return source(context, 0, count,
                      (char *)pieces[0].data + first * (int64_t)weft_dtype_bytes(whole->dtype));
    return fill_pieces(whole, pieces, found, first, count, source, context);
}
